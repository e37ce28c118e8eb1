//! Builds the shapes of messages with legacy opcodes. Such a message has the shape of the command
//! that replaced it.

use super::bson::{Document, Field, Value};
use super::clause::{DELETE_STATEMENT, FIND, Slots, UPDATE_STATEMENT};
use super::command::{ShapedCommand, empty, explained, split_namespace};
use super::form::{Bracket, Form, Node, Sequence as Ordered, Word, word};
use super::walk::Walk;

/// A message with an opcode older than OP_MSG. A `namespace` is the protocol's
/// `fullCollectionName`. The other fields have names similar to those in the protocol.
#[derive(Copy, Clone, Debug)]
pub enum Legacy<'a> {
    /// OP_QUERY: a find, or a command if the collection is `$cmd`.
    Query(Query<'a>),
    /// OP_INSERT.
    Insert {
        /// `fullCollectionName`.
        namespace: &'a [u8],
    },
    /// OP_UPDATE, which contains one update statement.
    Update {
        /// `fullCollectionName`.
        namespace: &'a [u8],
        /// Bit 0 is `upsert`, bit 1 is `multi`.
        flags: u32,
        /// The filter.
        selector: &'a [u8],
        /// The replacement or the modifiers.
        update: &'a [u8],
    },
    /// OP_DELETE, which contains one delete statement.
    Delete {
        /// `fullCollectionName`.
        namespace: &'a [u8],
        /// Bit 0: delete at most one document.
        flags: u32,
        /// The filter.
        selector: &'a [u8],
    },
    /// OP_GET_MORE.
    GetMore {
        /// `fullCollectionName`.
        namespace: &'a [u8],
    },
    /// OP_KILL_CURSORS, which has no namespace.
    KillCursors,
}

/// The parts of an OP_QUERY.
#[derive(Copy, Clone, Debug)]
pub struct Query<'a> {
    /// Bit 1 is `tailable`. The other bits are not used here.
    pub flags: u32,
    /// `fullCollectionName`: the database, a dot, the collection.
    pub namespace: &'a [u8],
    /// Number of documents to skip.
    pub number_to_skip: i32,
    /// `numberToReturn`. A negative number or 1 limits the number of documents in the result. Any
    /// other number is only the size of a batch.
    pub number_to_return: i32,
    /// The filter of a find, or a command. Drivers may wrap the filter or command: the field
    /// `$query` or `query` of this document then contains it.
    pub query: &'a [u8],
    /// `returnFieldsSelector`: the projection; empty if the client sent none.
    pub return_fields_selector: &'a [u8],
}

impl<F: Form> Walk<'_, F> {
    /// The shape of a legacy message: the shape of the command that replaced this message.
    pub(super) fn legacy<'a>(&mut self, message: &Legacy<'a>) -> ShapedCommand<'a, F> {
        let shaped = match *message {
            Legacy::Query(query) => self.legacy_query(&query),
            Legacy::Insert { namespace } => on_namespace(word!("insert"), namespace, empty()),
            Legacy::Update {
                namespace,
                flags,
                selector,
                update,
            } => {
                let mut slots = Slots::new();
                let mut put = |name, value| slots.put_value(&UPDATE_STATEMENT, name, value);
                put("q", Value::Document(Document::at(selector)));
                put("u", Value::Document(Document::at(update)));
                put("upsert", Value::boolean(flags & 1 != 0));
                put("multi", Value::boolean(flags & 2 != 0));
                let form = self.clauses(&UPDATE_STATEMENT, &slots, &[], STATEMENT_DEPTH);
                on_namespace(
                    word!("update"),
                    namespace,
                    batch_of_one(word!("updates"), &form),
                )
            }
            Legacy::Delete {
                namespace,
                flags,
                selector,
            } => {
                let mut slots = Slots::new();
                let mut put = |name, value| slots.put_value(&DELETE_STATEMENT, name, value);
                put("q", Value::Document(Document::at(selector)));
                put("limit", Value::Integer(i64::from(flags & 1)));
                let form = self.clauses(&DELETE_STATEMENT, &slots, &[], STATEMENT_DEPTH);
                on_namespace(
                    word!("delete"),
                    namespace,
                    batch_of_one(word!("deletes"), &form),
                )
            }
            Legacy::GetMore { namespace } => on_namespace(word!("getMore"), namespace, empty()),
            Legacy::KillCursors => on_namespace(word!("killCursors"), b"", empty()),
        };
        self.bounded(shaped)
    }

    fn legacy_query<'a>(&mut self, message: &Query<'a>) -> ShapedCommand<'a, F> {
        let (db, collection) = split_namespace(message.namespace);
        let query = Document::at(message.query);
        if collection.as_bytes() == b"$cmd" {
            return self.command(unwrapped_command(query), &[], db);
        }
        self.enter_collection(db, collection);
        let mut slots = Slots::new();
        let mut put = |name, value| slots.put_value(&FIND, name, value);
        let mut is_explained = false;
        if wrapped_filter(query).is_some() {
            let mut fields = query.fields();
            while let Some(Field { name, value, .. }) = self.visit(&mut fields) {
                match name {
                    b"$query" | b"query" => put("filter", value),
                    b"$orderby" | b"orderby" => put("sort", value),
                    b"$hint" => put("hint", value),
                    b"$min" => put("min", value),
                    b"$max" => put("max", value),
                    b"$explain" => is_explained = value.truth(),
                    _ => {}
                }
            }
        } else {
            put("filter", Value::Document(query));
        }
        put(
            "projection",
            Value::Document(Document::at(message.return_fields_selector)),
        );
        if message.number_to_return < 0 || message.number_to_return == 1 {
            put("limit", Value::Integer(message.number_to_return.into()));
        }
        put("skip", Value::Integer(message.number_to_skip.into()));
        put("tailable", Value::boolean(message.flags & 2 != 0));
        let shape = self.clauses(&FIND, &slots, &[], 0);
        let find = ShapedCommand {
            op: word!("find"),
            db,
            collection,
            shape,
        };
        if is_explained { explained(find) } else { find }
    }
}

/// The filter in the first field of a query, if this field is `$query` or `query`. Drivers wrap a
/// filter to add modifiers.
fn wrapped_filter(query: Document<'_>) -> Option<Document<'_>> {
    let first = query.first()?;
    match (first.name, first.value) {
        (b"$query" | b"query", Value::Document(filter)) => Some(filter),
        _ => None,
    }
}

/// The command in the field `$query` or `query`, or `command` itself if it has no such field. Old
/// drivers wrap a command in this way to add a read preference.
fn unwrapped_command(command: Document<'_>) -> Document<'_> {
    let begins_with_modifier = command
        .first()
        .is_some_and(|first| first.name.first() == Some(&b'$'));
    match command.value_of(b"$query") {
        Some(Value::Document(inner)) if begins_with_modifier => inner,
        _ => wrapped_filter(command).unwrap_or(command),
    }
}

fn on_namespace<'a, F>(op: Word, namespace: &'a [u8], shape: Node<F>) -> ShapedCommand<'a, F> {
    let (db, collection) = split_namespace(namespace);
    ShapedCommand {
        op,
        db,
        collection,
        shape,
    }
}

/// The shape of a write command with one statement.
fn batch_of_one<F: Form>(key: Word, statement: &Node<F>) -> Node<F> {
    let mut batch = Ordered::new();
    batch.item(statement);
    let mut shape = Ordered::new();
    shape.entry(&F::word(key), &batch.close(Bracket::List));
    shape.close(Bracket::Document)
}

/// The nesting level of a statement, which is an element of an array in the command.
const STATEMENT_DEPTH: u32 = 2;
