//! The clauses of a command or statement: the fields that are part of its shape, and their order in
//! the text of the shape.

use super::bson::{Document, Documents, Field, Fields, Number, Value};
use super::form::{Bracket, Form, Node, Sequence as Ordered, Set, Word, word};
use super::walk::Walk;
use seawall_wire::Sequence;
use seawall_wire::head_of;

/// The clauses of one command or statement, in the order in which a shape has them.
#[derive(Debug)]
pub(super) struct Table {
    /// The first eight bytes of each clause's field name, in one array so that a scan finds a
    /// clause fast.
    heads: [u64; MAX_CLAUSES],
    clauses: &'static [Clause],
    /// One bit per clause. It is set if the shape may have the clause even if the field is absent.
    always: u16,
}

/// One part of a shape, and the field from which it is made.
#[derive(Debug)]
struct Clause {
    field: &'static str,
    key: Word,
    content: Content,
}

/// The content of a clause's field. It decides how a shape shows the field's value. If the field is
/// absent, empty or of another type, the shape does not contain the clause. The comments of the
/// variants state the exceptions.
#[derive(Copy, Clone, Debug)]
pub(super) enum Content {
    Filter,
    /// An array of filters.
    Filters,
    /// Field names in their order, with directions: a sort or an index.
    Keys,
    /// Field names in their order, without directions: the bounds of an index scan.
    Bounds,
    /// A projection. Only the fine shape contains it, not the coarse shape (see [`crate`]).
    Projection,
    /// A pipeline. The shape has this clause even if the field is absent.
    Pipeline,
    /// The fields of an index, or the name of an index.
    Hint,
    /// The name of a field. The shape has this clause even if the field is absent.
    Name,
    /// An update. The shape has this clause even if the update is an empty document: such an update
    /// replaces the whole document.
    Update,
    Collation,
    Expression,
    /// A number. The shape contains `limit:1` for 1 and -1, no clause for 0, and `limit:?` for
    /// all other numbers.
    Limit,
    /// A number. The shape contains the clause unless the number is 0.
    Skip,
    /// A boolean, or another value that servers read as one. The shape contains the clause only if
    /// the value is true.
    Flag,
    /// The `limit` of a delete statement. The shape contains `multi:true` unless the limit is 1.
    UnlessOne,
    /// A value of any type. The shape shows only that the field is present: it prints `?` as the
    /// value.
    Presence,
    /// An array of documents with their own clauses. A client may send it as a document sequence.
    Statements(&'static Table),
}

/// The values of a document's clauses, by the position of the clause in its table.
pub(super) struct Slots<'a> {
    values: [Value<'a>; MAX_CLAUSES],
    /// The clauses whose field is present, one bit per clause.
    present: u16,
}

impl<'a> Slots<'a> {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            values: [Value::Null; MAX_CLAUSES],
            present: 0,
        }
    }

    /// Stores the value if the field is a clause. If several fields have the same name, the first
    /// is used.
    #[inline]
    pub(super) fn put(&mut self, table: &Table, field: &Field<'a>) {
        let Some(index) = table.heads.iter().position(|&head| head == field.head) else {
            return;
        };
        let Some(clause) = table.clauses.get(index) else {
            return;
        };
        if field.has_rest_of(clause.field) && self.present >> index & 1 == 0 {
            self.set(index, field.value);
        }
    }

    /// Stores a value for the clause of the field `name`. Used for legacy messages, whose fields
    /// are not in a document.
    pub(super) fn put_value(&mut self, table: &Table, name: &str, value: Value<'a>) {
        let index = table.clauses.iter().position(|clause| clause.field == name);
        debug_assert!(index.is_some(), "the table has every field of the message");
        if let Some(index) = index {
            self.set(index, value);
        }
    }

    #[inline]
    fn set(&mut self, index: usize, value: Value<'a>) {
        if let Some(slot) = self.values.get_mut(index) {
            *slot = value;
            self.present |= 1 << index;
        }
    }
}

impl Table {
    /// The kind of content of this field; `None` if the field belongs to no clause of the table.
    pub(super) fn content_of(&self, field: &[u8]) -> Option<Content> {
        let clause = self
            .clauses
            .iter()
            .find(|clause| clause.field.as_bytes() == field);
        clause.map(|clause| clause.content)
    }
}

impl<F: Form> Walk<'_, F> {
    /// The shape of one statement. `depth` is its nesting level in the command.
    pub(super) fn statement(
        &mut self,
        statement: Document<'_>,
        table: &Table,
        depth: u32,
    ) -> Node<F> {
        let mut slots = Slots::new();
        let mut fields = statement.fields();
        while let Some(field) = &self.visit_inline(&mut fields) {
            slots.put(table, field);
        }
        self.clauses(table, &slots, &[], depth)
    }

    /// The shape of a document, from the fields in `slots`. `depth` is its nesting level.
    pub(super) fn clauses(
        &mut self,
        table: &Table,
        slots: &Slots<'_>,
        sequences: &[Sequence<'_>],
        depth: u32,
    ) -> Node<F> {
        let mut shape = Ordered::new();
        for index in set_bits(slots.present | table.always) {
            let (Some(clause), Some(value)) = (table.clauses.get(index), slots.values.get(index))
            else {
                break;
            };
            let value = (slots.present >> index & 1 == 1).then_some(value);
            let form = match clause.content {
                Content::Statements(table) => {
                    Statements::find(clause.field, value, sequences).map(|statements| {
                        self.list_of_statements(statements, |walk, statement| {
                            walk.statement(statement, table, depth + 2)
                        })
                    })
                }
                content => self.clause(content, value, depth + 1),
            };
            let Some(form) = form else { continue };
            match clause.content {
                Content::Projection => shape.fine_entry(&F::word(clause.key), &form),
                _ => shape.entry(&F::word(clause.key), &form),
            }
        }
        shape.close(Bracket::Document)
    }

    /// The text or hash of one clause's value in the shape; `None` if the shape does not contain
    /// the clause. `depth` is the nesting level of the value in the command.
    fn clause(
        &mut self,
        content: Content,
        value: Option<&Value<'_>>,
        depth: u32,
    ) -> Option<Node<F>> {
        let Some(value) = value else {
            return content.without_field();
        };
        match (content, value) {
            (_, &Value::Document(document)) if !document.is_empty() => {
                self.document(content, document, depth)
            }
            (Content::Name, _) => Some(self.names(value)),
            (Content::Update, _) => self.update(value, depth),
            (Content::Limit, _) => limit(value),
            (Content::Skip, _) => (value.number()? != Number::Zero).then(Node::value),
            (Content::Flag, _) => value.truth().then(|| Node::word(word!("true"))),
            (Content::UnlessOne, _) if value.number() == Some(Number::One) => None,
            (Content::Presence, _) => Some(Node::value()),
            (Content::Pipeline, &Value::Array(pipeline)) => Some(self.pipeline(pipeline, depth)),
            (Content::Hint, &Value::String(name)) if !name.is_empty() => {
                Some(Node::same(self.index_name(name)))
            }
            (Content::Filters, &Value::Array(filters)) if !filters.is_empty() => {
                Some(self.filters(filters, depth))
            }
            _ => content.without_field(),
        }
    }

    /// Like [`Walk::clause`], for a value that is a document with at least one field.
    fn document(
        &mut self,
        content: Content,
        document: Document<'_>,
        depth: u32,
    ) -> Option<Node<F>> {
        match content {
            Content::Filter => {
                let filter = self.filter(document, depth);
                (filter.fine != F::word(word!("{}"))).then_some(filter)
            }
            Content::Keys | Content::Hint => Some(self.keys(document)),
            Content::Bounds => Some(self.bounds(document)),
            Content::Projection => Some(self.projection(document, depth)),
            Content::Update => self.update(&Value::Document(document), depth),
            Content::Collation => Some(self.collation(document)),
            Content::Expression => Some(self.expression(&Value::Document(document), depth)),
            Content::Flag => Some(Node::word(word!("true"))),
            Content::Presence | Content::Name => Some(Node::value()),
            Content::Filters
            | Content::Limit
            | Content::Skip
            | Content::Pipeline
            | Content::UnlessOne
            | Content::Statements(_) => content.without_field(),
        }
    }

    /// The set of the shapes of the first [`MAX_STATEMENTS`] statements. If they have more than
    /// [`MAX_STATEMENT_SHAPES`] different shapes, `[...]` replaces the set.
    pub(super) fn list_of_statements<'a>(
        &mut self,
        statements: Statements<'a>,
        mut shape: impl FnMut(&mut Self, Document<'a>) -> Node<F>,
    ) -> Node<F> {
        Set::with_max(MAX_STATEMENT_SHAPES, Bracket::List, |set| {
            let mut statements = statements.take(MAX_STATEMENTS);
            while let Some(statement) = self.visit(&mut statements) {
                if let Some(statement) = statement {
                    let form = shape(self, statement);
                    set.item(&form);
                }
            }
        })
    }
}

/// The positions of the set bits, the lowest first.
fn set_bits(bits: u16) -> impl Iterator<Item = usize> {
    let mut left = u32::from(bits);
    std::iter::from_fn(move || {
        let position = usize::try_from(left.trailing_zeros()).ok();
        left &= left.checked_sub(1)?;
        position
    })
}

impl Content {
    const fn may_lack_field(self) -> bool {
        matches!(
            self,
            Self::Pipeline | Self::Name | Self::UnlessOne | Self::Statements(_)
        )
    }

    /// The text or hash of a clause's value in the shape, if the field is absent or invalid; `None`
    /// if the shape does not contain the clause.
    fn without_field<F: Form>(self) -> Option<Node<F>> {
        match self {
            Self::Pipeline => Some(Ordered::new().close(Bracket::List)),
            Self::Name => Some(Node::value()),
            Self::UnlessOne => Some(Node::word(word!("true"))),
            _ => None,
        }
    }
}

/// The statements of a bulk command, from an array in its body or from a document sequence. The
/// iterator returns `Some(None)` for an element that is not a document.
pub(super) enum Statements<'a> {
    Array(Fields<'a>),
    Section(Documents<'a>),
}

impl<'a> Statements<'a> {
    /// The statements in the document sequence `name` or, if there is no such sequence, in the
    /// array `value`. `None` if there are no statements.
    pub(super) fn find(
        name: &str,
        value: Option<&Value<'a>>,
        sequences: &[Sequence<'a>],
    ) -> Option<Self> {
        let mut named = sequences
            .iter()
            .filter(|sequence| sequence.identifier == name.as_bytes());
        if let Some(sequence) = named.next() {
            let documents = Documents::new(sequence.documents);
            return documents.clone().next().map(|_| Self::Section(documents));
        }
        let Some(&Value::Array(array)) = value else {
            return None;
        };
        array.first().map(|_| Self::Array(array.elements()))
    }
}

impl<'a> Iterator for Statements<'a> {
    type Item = Option<Document<'a>>;

    fn next(&mut self) -> Option<Option<Document<'a>>> {
        match self {
            Self::Array(elements) => elements.next().map(|element| match element.value {
                Value::Document(document) => Some(document),
                _ => None,
            }),
            Self::Section(documents) => documents.next().map(Some),
        }
    }
}

fn limit<F: Form>(value: &Value<'_>) -> Option<Node<F>> {
    match value.number()? {
        Number::Zero => None,
        Number::One | Number::MinusOne => Some(Node::word(word!("1"))),
        Number::Positive | Number::Negative | Number::Nan => Some(Node::value()),
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "const code cannot call get; an index out of bounds fails the build"
)]
const fn table(clauses: &'static [Clause]) -> Table {
    let mut table = Table {
        heads: [0; MAX_CLAUSES],
        clauses,
        always: 0,
    };
    let mut index = 0;
    while index < clauses.len() {
        table.heads[index] = head_of(clauses[index].field.as_bytes());
        if clauses[index].content.may_lack_field() {
            table.always |= 1 << index;
        }
        index += 1;
    }
    table
}

const fn clause(field: &'static str, key: &'static str, content: Content) -> Clause {
    Clause {
        field,
        key: Word::new(key),
        content,
    }
}

/// The empty table, for commands that have an empty shape.
pub(super) static NONE: Table = table(&[]);

pub(super) static FIND: Table = table(&[
    clause("filter", "filter", Content::Filter),
    clause("sort", "sort", Content::Keys),
    clause("projection", "projection", Content::Projection),
    clause("hint", "hint", Content::Hint),
    clause("min", "min", Content::Bounds),
    clause("max", "max", Content::Bounds),
    clause("collation", "collation", Content::Collation),
    clause("let", "let", Content::Expression),
    clause("limit", "limit", Content::Limit),
    clause("skip", "skip", Content::Skip),
    clause("tailable", "tailable", Content::Flag),
]);

pub(super) static AGGREGATE: Table = table(&[
    clause("pipeline", "pipeline", Content::Pipeline),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("let", "let", Content::Expression),
]);

pub(super) static COUNT: Table = table(&[
    clause("query", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("limit", "limit", Content::Limit),
    clause("skip", "skip", Content::Skip),
]);

pub(super) static DISTINCT: Table = table(&[
    clause("key", "key", Content::Name),
    clause("query", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
]);

pub(super) static MAP_REDUCE: Table = table(&[
    clause("query", "filter", Content::Filter),
    clause("sort", "sort", Content::Keys),
    clause("collation", "collation", Content::Collation),
    clause("limit", "limit", Content::Limit),
]);

pub(super) static UPDATE: Table = table(&[
    clause("updates", "updates", Content::Statements(&UPDATE_STATEMENT)),
    clause("let", "let", Content::Expression),
]);

pub(super) static DELETE: Table = table(&[
    clause("deletes", "deletes", Content::Statements(&DELETE_STATEMENT)),
    clause("let", "let", Content::Expression),
]);

pub(super) static FIND_AND_MODIFY: Table = table(&[
    clause("query", "filter", Content::Filter),
    clause("sort", "sort", Content::Keys),
    clause("fields", "projection", Content::Projection),
    clause("update", "update", Content::Update),
    clause("remove", "remove", Content::Flag),
    clause("arrayFilters", "arrayFilters", Content::Filters),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("let", "let", Content::Expression),
    clause("upsert", "upsert", Content::Flag),
]);

pub(super) static CREATE_INDEXES: Table =
    table(&[clause("indexes", "indexes", Content::Statements(&INDEX))]);

/// Clauses of one statement of `update`.
pub(super) static UPDATE_STATEMENT: Table = table(&[
    clause("q", "filter", Content::Filter),
    clause("u", "update", Content::Update),
    clause("sort", "sort", Content::Keys),
    clause("arrayFilters", "arrayFilters", Content::Filters),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("multi", "multi", Content::Flag),
    clause("upsert", "upsert", Content::Flag),
]);

/// Clauses of one statement of `delete`.
pub(super) static DELETE_STATEMENT: Table = table(&[
    clause("q", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("limit", "multi", Content::UnlessOne),
]);

/// Clauses of an update in `bulkWrite`.
pub(super) static BULK_UPDATE: Table = table(&[
    clause("filter", "filter", Content::Filter),
    clause("updateMods", "update", Content::Update),
    clause("sort", "sort", Content::Keys),
    clause("arrayFilters", "arrayFilters", Content::Filters),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("multi", "multi", Content::Flag),
    clause("upsert", "upsert", Content::Flag),
]);

/// Clauses of a delete in `bulkWrite`.
pub(super) static BULK_DELETE: Table = table(&[
    clause("filter", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("multi", "multi", Content::Flag),
]);

/// Clauses of one index of `createIndexes`.
pub(super) static INDEX: Table = table(&[
    clause("key", "key", Content::Keys),
    clause(
        "partialFilterExpression",
        "partialFilterExpression",
        Content::Filter,
    ),
    clause("collation", "collation", Content::Collation),
    clause("unique", "unique", Content::Flag),
    clause("sparse", "sparse", Content::Flag),
    clause(
        "expireAfterSeconds",
        "expireAfterSeconds",
        Content::Presence,
    ),
]);

/// The number of clauses in the longest table.
const MAX_CLAUSES: usize = 11;
/// Maximum number of statements read in one bulk command. It limits the time of a fingerprint.
pub const MAX_STATEMENTS: usize = 16;
/// Maximum number of different statement shapes in the shape of one bulk command. With more,
/// `[...]` replaces all of them, because each combination would be a new shape.
const MAX_STATEMENT_SHAPES: usize = 4;
