//! One command: what it is, where it goes, and its shape.

use super::bson::{Document, Field, Number, Value};
use super::clause::{BULK_DELETE, BULK_UPDATE, Slots, Statements};
use super::command_name::{self, Kind};
use super::form::{Bracket, Form, Node, Sequence as Ordered, word};
use super::name::Name;
use super::walk::{MAX_DEPTH, MAX_ELEMENTS, Walk};
use super::{Collection, Sequence};

/// A command with its shape in both versions.
#[derive(Debug)]
pub(super) struct Shaped<'a, F> {
    pub(super) op: &'static str,
    pub(super) db: &'a [u8],
    pub(super) collection: Collection<'a>,
    pub(super) shape: Node<F>,
}

/// What the top level of a command says.
struct Header<'a> {
    first: Value<'a>,
    db: Option<&'a [u8]>,
    collection: Option<&'a [u8]>,
    is_explained: bool,
    slots: Slots<'a>,
    namespaces: Option<Value<'a>>,
    ops: Option<Value<'a>>,
}

impl<F: Form> Walk<F> {
    /// A whole command. Its database is `db` if it names none itself.
    pub(super) fn command<'a>(
        &mut self,
        body: Document<'a>,
        sequences: &[Sequence<'a>],
        db: &'a [u8],
    ) -> Shaped<'a, F> {
        let shaped = self.command_at(body, sequences, db, 0);
        self.bounded(shaped)
    }

    /// The same with only a mark for a shape if it took too much looking.
    pub(super) fn bounded<'a>(&self, shaped: Shaped<'a, F>) -> Shaped<'a, F> {
        if self.is_spent() {
            return Shaped {
                shape: Node::word(word!("{...}")),
                ..shaped
            };
        }
        shaped
    }

    fn command_at<'a>(
        &mut self,
        body: Document<'a>,
        sequences: &[Sequence<'a>],
        db: &'a [u8],
        depth: u32,
    ) -> Shaped<'a, F> {
        let known = body
            .first()
            .and_then(|first| command_name::find(first.name));
        let kind = known.map_or(Kind::Plain, |known| known.kind);
        let header = self.header(body, kind);
        let db = header.db.unwrap_or(db);
        let op = known.map_or(UNKNOWN, |known| known.name);
        let shaped = |collection, shape| Shaped {
            op,
            db,
            collection,
            shape,
        };
        match kind {
            Kind::Explain => self.explain(&header.first, sequences, db, depth + 1),
            Kind::BulkWrite => self.bulk_write(&header, sequences, db, depth),
            Kind::Plain => shaped(Collection::NONE, empty()),
            Kind::OnCollection => shaped(header.named_collection(), empty()),
            Kind::GetMore => {
                let collection = header.collection.map_or(Collection::NONE, Collection::new);
                shaped(collection, empty())
            }
            Kind::Aggregate => {
                let shape = self.clauses(kind.clauses(), &header.slots, sequences, depth);
                let aggregate = shaped(header.aggregated_collection(), shape);
                if header.is_explained {
                    explained(aggregate)
                } else {
                    aggregate
                }
            }
            Kind::Find
            | Kind::Count
            | Kind::Distinct
            | Kind::MapReduce
            | Kind::Update
            | Kind::Delete
            | Kind::FindAndModify
            | Kind::CreateIndexes => {
                let shape = self.clauses(kind.clauses(), &header.slots, sequences, depth);
                shaped(header.named_collection(), shape)
            }
        }
    }

    fn header<'a>(&mut self, body: Document<'a>, kind: Kind) -> Header<'a> {
        let clauses = kind.clauses();
        let mut header = Header {
            first: Value::Null,
            db: None,
            collection: None,
            is_explained: false,
            slots: Slots::new(),
            namespaces: None,
            ops: None,
        };
        let mut fields = body.fields();
        if let Some(first) = self.look(&mut fields) {
            header.first = first.value;
        }
        while let Some(field) = self.look(&mut fields) {
            match (field.name, &field.value) {
                (b"$db", &Value::String(db)) => header.db = header.db.or(Some(db)),
                (b"collection", &Value::String(name)) => header.collection = Some(name),
                (b"explain", value) => header.is_explained = value.truth(),
                (b"nsInfo", value) => header.namespaces = Some(*value),
                (b"ops", value) => header.ops = Some(*value),
                _ => header.slots.put(clauses, &field),
            }
        }
        header
    }

    fn explain<'a>(
        &mut self,
        inner: &Value<'a>,
        sequences: &[Sequence<'a>],
        db: &'a [u8],
        depth: u32,
    ) -> Shaped<'a, F> {
        match *inner {
            Value::Document(_) if depth > MAX_DEPTH => Shaped {
                op: EXPLAIN,
                db,
                collection: Collection::NONE,
                shape: Node::cut(),
            },
            Value::Document(body) => explained(self.command_at(body, sequences, db, depth)),
            _ => Shaped {
                op: EXPLAIN,
                db,
                collection: Collection::NONE,
                shape: empty(),
            },
        }
    }

    fn bulk_write<'a>(
        &mut self,
        header: &Header<'a>,
        sequences: &[Sequence<'a>],
        db: &'a [u8],
        depth: u32,
    ) -> Shaped<'a, F> {
        let namespaces = Namespaces {
            value: header.namespaces,
            sequences,
        };
        let only = namespaces.only();
        let mut shape = Ordered::new();
        if let Some(ops) = Statements::find("ops", header.ops.as_ref(), sequences) {
            let ops = self.list_of_statements(ops, |walk, op| {
                walk.bulk_op(op, only.is_none().then_some(&namespaces), depth + 2)
            });
            shape.entry(&F::word(word!("ops")), &ops);
        }
        let (db, collection) = match only {
            Some(namespace) => split_namespace(namespace),
            None => (db, Collection::new(b"$cmd.bulkWrite")),
        };
        Shaped {
            op: "bulkWrite",
            db,
            collection,
            shape: shape.close(Bracket::Document),
        }
    }

    /// One of the ops, with its namespace if there are several to tell apart.
    fn bulk_op(
        &mut self,
        op: Document<'_>,
        namespaces: Option<&Namespaces<'_, '_>>,
        depth: u32,
    ) -> Node<F> {
        let Some(Field { name, value }) = op.first() else {
            return Node::value();
        };
        let (key, form) = match name {
            b"insert" => (word!("insert"), empty()),
            b"update" => (word!("update"), self.statement(op, &BULK_UPDATE, depth)),
            b"delete" => (word!("delete"), self.statement(op, &BULK_DELETE, depth)),
            _ => return Node::value(),
        };
        let mut shape = Ordered::new();
        if let Some(namespaces) = namespaces {
            let namespace = namespaces.at(&value);
            let form = namespace.map_or_else(Node::value, |name| Node::name(Name::verbatim(name)));
            shape.entry(&F::word(word!("ns")), &form);
        }
        shape.entry(&F::word(key), &form);
        shape.close(Bracket::Document)
    }
}

impl<'a> Header<'a> {
    /// The first field's string, which is the collection of most commands.
    fn named_collection(&self) -> Collection<'a> {
        match self.first {
            Value::String(name) => Collection::new(name),
            _ => Collection::NONE,
        }
    }

    fn aggregated_collection(&self) -> Collection<'a> {
        match self.first.number() {
            Some(Number::One) => Collection::new(b"$cmd.aggregate"),
            _ => self.named_collection(),
        }
    }
}

/// The namespaces of a `bulkWrite`: a field or a kind-1 section.
struct Namespaces<'s, 'a> {
    value: Option<Value<'a>>,
    sequences: &'s [Sequence<'a>],
}

impl<'a> Namespaces<'_, 'a> {
    /// The namespace, if it is the only one.
    fn only(&self) -> Option<&'a [u8]> {
        let mut documents = Statements::find("nsInfo", self.value.as_ref(), self.sequences)?;
        let (Some(document), None) = (documents.next(), documents.next()) else {
            return None;
        };
        namespace_of(document?)
    }

    /// The namespace of that number, which an op gives as its first value.
    fn at(&self, number: &Value<'_>) -> Option<&'a [u8]> {
        let &Value::Integer(number) = number else {
            return None;
        };
        let number = usize::try_from(number).ok()?;
        let documents = Statements::find("nsInfo", self.value.as_ref(), self.sequences)?;
        namespace_of(documents.take(MAX_ELEMENTS).nth(number)??)
    }
}

/// A command that is only asked about: its own shape below the name of its operation.
pub(super) fn explained<F: Form>(inner: Shaped<'_, F>) -> Shaped<'_, F> {
    let mut shape = Ordered::new();
    shape.entry(&F::leaf(inner.op.as_bytes()), &inner.shape);
    Shaped {
        op: EXPLAIN,
        shape: shape.close(Bracket::Document),
        ..inner
    }
}

/// A namespace at its first dot.
pub(super) fn split_namespace(namespace: &[u8]) -> (&[u8], Collection<'_>) {
    let mut parts = namespace.splitn(2, |&byte| byte == b'.');
    let db = parts.next().unwrap_or_default();
    (db, parts.next().map_or(Collection::NONE, Collection::new))
}

pub(super) fn empty<F: Form>() -> Node<F> {
    Node::word(word!("{}"))
}

fn namespace_of(document: Document<'_>) -> Option<&[u8]> {
    match document.value_of(b"ns")? {
        Value::String(namespace) => Some(namespace),
        _ => None,
    }
}

const UNKNOWN: &str = "<unknown>";
const EXPLAIN: &str = "explain";
