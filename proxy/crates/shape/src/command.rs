//! The fingerprint of one command: its operation, database, collection and shape.

use super::Collection;
use super::bson::{Document, Field, MAX_ELEMENTS, Number, Value};
use super::clause::{BULK_DELETE, BULK_UPDATE, Slots, Statements};
use super::command_name::{self, UNKNOWN};
use super::form::{Bracket, Form, Node, Sequence as Ordered, Word, word};
use super::name::Name;
use super::walk::{MAX_DEPTH, Walk};
use seawall_command::table::Syntax;
use seawall_wire::Sequence;

/// A command with its fine and its coarse shape (see [`crate`]).
#[derive(Debug)]
pub(super) struct ShapedCommand<'a, F> {
    pub(super) op: Word,
    pub(super) db: &'a [u8],
    pub(super) collection: Collection<'a>,
    pub(super) shape: Node<F>,
}

impl<F: Form> Walk<'_, F> {
    /// The shape of a whole command. If the command has no `$db`, its database is `db`.
    pub(super) fn command<'a>(
        &mut self,
        body: Document<'a>,
        sequences: &[Sequence<'a>],
        db: &'a [u8],
    ) -> ShapedCommand<'a, F> {
        let shaped = self.command_at(body, sequences, db, 0);
        self.bounded(shaped)
    }

    /// Replaces the shape by `{...}` if the limit on the number of fields and elements was reached
    /// before the whole command was read.
    pub(super) fn bounded<'a>(&self, shaped: ShapedCommand<'a, F>) -> ShapedCommand<'a, F> {
        if self.is_spent() {
            return ShapedCommand {
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
    ) -> ShapedCommand<'a, F> {
        let mut fields = body.fields();
        let first = self.visit(&mut fields);
        let known = first.as_ref().map_or(&UNKNOWN, command_name::find);
        let first = first.as_ref().map_or(&Value::Null, |first| &first.value);
        let table = known.clauses();
        let mut slots = Slots::new();
        let mut db = db;
        while let Some(field) = &self.visit_inline(&mut fields) {
            match (field.name, &field.value) {
                (b"$db", &Value::String(name)) => db = name,
                _ => slots.put(table, field),
            }
        }
        let shaped = |collection, shape| ShapedCommand {
            op: known.name,
            db,
            collection,
            shape,
        };
        match known.syntax {
            Syntax::Explain => self.explain(first, sequences, db, depth + 1),
            Syntax::BulkWrite => self.bulk_write(body, sequences, db, depth),
            Syntax::Plain => shaped(Collection::NONE, empty()),
            Syntax::OnCollection => shaped(named_collection(first), empty()),
            Syntax::GetMore => shaped(collection_field(body), empty()),
            Syntax::Aggregate => {
                self.enter_collection(db, aggregated_collection(first));
                let shape = self.clauses(table, &slots, sequences, depth);
                let aggregate = shaped(aggregated_collection(first), shape);
                let is_explained = body.value_of(b"explain").is_some_and(|value| value.truth());
                if is_explained {
                    explained(aggregate)
                } else {
                    aggregate
                }
            }
            Syntax::Find
            | Syntax::Count
            | Syntax::Distinct
            | Syntax::MapReduce
            | Syntax::Update
            | Syntax::Delete
            | Syntax::FindAndModify
            | Syntax::CreateIndexes => {
                self.enter_collection(db, named_collection(first));
                let shape = self.clauses(table, &slots, sequences, depth);
                shaped(named_collection(first), shape)
            }
        }
    }

    fn explain<'a>(
        &mut self,
        inner: &Value<'a>,
        sequences: &[Sequence<'a>],
        db: &'a [u8],
        depth: u32,
    ) -> ShapedCommand<'a, F> {
        match *inner {
            Value::Document(_) if depth > MAX_DEPTH => ShapedCommand {
                op: EXPLAIN,
                db,
                collection: Collection::NONE,
                shape: Node::cut(),
            },
            Value::Document(body) => explained(self.command_at(body, sequences, db, depth)),
            _ => ShapedCommand {
                op: EXPLAIN,
                db,
                collection: Collection::NONE,
                shape: empty(),
            },
        }
    }

    fn bulk_write<'a>(
        &mut self,
        body: Document<'a>,
        sequences: &[Sequence<'a>],
        db: &'a [u8],
        depth: u32,
    ) -> ShapedCommand<'a, F> {
        let namespaces = Namespaces {
            value: body.value_of(b"nsInfo"),
            sequences,
        };
        let only = namespaces.only();
        let (db, collection) = match only {
            Some(namespace) => split_namespace(namespace),
            None => (db, Collection::new(b"$cmd.bulkWrite")),
        };
        self.enter_collection(db, collection);
        let mut shape = Ordered::new();
        let ops = body.value_of(b"ops");
        if let Some(ops) = Statements::find("ops", ops.as_ref(), sequences) {
            let ops = self.list_of_statements(ops, |walk, op| {
                walk.bulk_op(op, only.is_none().then_some(&namespaces), depth + 2)
            });
            shape.entry(&F::word(word!("ops")), &ops);
        }
        ShapedCommand {
            op: word!("bulkWrite"),
            db,
            collection,
            shape: shape.close(Bracket::Document),
        }
    }

    /// The shape of one op of a `bulkWrite`, with the op's namespace if the command has several
    /// namespaces.
    fn bulk_op(
        &mut self,
        op: Document<'_>,
        namespaces: Option<&Namespaces<'_, '_>>,
        depth: u32,
    ) -> Node<F> {
        let Some(Field { name, value, .. }) = op.first() else {
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

/// The collection of most commands: the string in the first field.
fn named_collection<'a>(first: &Value<'a>) -> Collection<'a> {
    match *first {
        Value::String(name) => Collection::new(name),
        _ => Collection::NONE,
    }
}

fn aggregated_collection<'a>(first: &Value<'a>) -> Collection<'a> {
    match first.number() {
        Some(Number::One) => Collection::new(b"$cmd.aggregate"),
        _ => named_collection(first),
    }
}

/// The collection of a `getMore`, whose first field is the cursor id, not the collection.
fn collection_field(body: Document<'_>) -> Collection<'_> {
    body.value_of(b"collection")
        .map_or(Collection::NONE, |value| named_collection(&value))
}

/// The namespaces of a `bulkWrite`, from a field or from a document sequence.
struct Namespaces<'s, 'a> {
    value: Option<Value<'a>>,
    sequences: &'s [Sequence<'a>],
}

impl<'a> Namespaces<'_, 'a> {
    /// The namespace, if the command has exactly one namespace.
    fn only(&self) -> Option<&'a [u8]> {
        let mut documents = Statements::find("nsInfo", self.value.as_ref(), self.sequences)?;
        let (Some(document), None) = (documents.next(), documents.next()) else {
            return None;
        };
        namespace_of(document?)
    }

    /// The namespace at `index`. The first field of an op has the index of the op's namespace.
    fn at(&self, index: &Value<'_>) -> Option<&'a [u8]> {
        let &Value::Integer(index) = index else {
            return None;
        };
        let index = usize::try_from(index).ok()?;
        let documents = Statements::find("nsInfo", self.value.as_ref(), self.sequences)?;
        namespace_of(documents.take(MAX_ELEMENTS).nth(index)??)
    }
}

/// Converts the explained command (`inner`) to the command `explain`. The shape of the `explain`
/// contains the operation and the shape of `inner`.
pub(super) fn explained<F: Form>(inner: ShapedCommand<'_, F>) -> ShapedCommand<'_, F> {
    let mut shape = Ordered::new();
    shape.entry(&F::word(inner.op), &inner.shape);
    ShapedCommand {
        op: EXPLAIN,
        shape: shape.close(Bracket::Document),
        ..inner
    }
}

/// Splits a namespace at its first dot.
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

const EXPLAIN: Word = Word::new("explain");
