//! The clauses of a command or statement: which field becomes which part of a shape, in which order.

use super::Sequence;
use super::bson::{Document, Documents, Field, Fields, Number, Value};
use super::form::{Bracket, Form, Node, Sequence as Ordered, Set, Word, word};
use super::name::Name;
use super::walk::Walk;

/// One part of a shape and the field it comes from.
#[derive(Debug)]
pub(super) struct Clause {
    field: &'static str,
    key: Word,
    content: Content,
}

/// What a field holds. A clause is left out when its field is absent, of another type, or empty.
#[derive(Copy, Clone, Debug)]
enum Content {
    Filter,
    /// A list of filters.
    Filters,
    /// Keys in their order, with directions.
    Keys,
    /// Keys in their order, without.
    Bounds,
    /// Left out of the coarse shape.
    Projection,
    /// Printed even if there is none.
    Pipeline,
    /// Keys, or the name of an index.
    Hint,
    /// The name of a field, printed even if there is none.
    Name,
    Update,
    Collation,
    Expression,
    Limit,
    Skip,
    /// `true` if true.
    Flag,
    /// `true` unless the number is one: how a delete says that it means many.
    UnlessOne,
    /// `?` if there.
    Presence,
    /// A list of documents, each with clauses of its own, which may come as a kind-1 section.
    Statements(&'static [Clause]),
}

/// The fields of one document that are clauses, by the clause's place in its table.
pub(super) struct Slots<'a> {
    values: [Option<Value<'a>>; MAX_CLAUSES],
}

impl<'a> Slots<'a> {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            values: [None; MAX_CLAUSES],
        }
    }

    /// Keeps the value if a clause is made of it.
    #[inline]
    pub(super) fn put(&mut self, clauses: &[Clause], field: &Field<'a>) {
        for (slot, clause) in self.values.iter_mut().zip(clauses) {
            if clause.field.as_bytes() == field.name {
                if slot.is_none() {
                    *slot = Some(field.value);
                }
                return;
            }
        }
    }
}

impl<F: Form> Walk<F> {
    /// The clauses of a statement at `depth`.
    pub(super) fn statement(
        &mut self,
        statement: Document<'_>,
        clauses: &[Clause],
        depth: u32,
    ) -> Node<F> {
        let mut slots = Slots::new();
        let mut fields = statement.fields();
        while let Some(field) = self.look(&mut fields) {
            slots.put(clauses, &field);
        }
        self.clauses(clauses, &slots, &[], depth)
    }

    /// The clauses of a document at `depth`, of which the fields have been found.
    pub(super) fn clauses(
        &mut self,
        clauses: &[Clause],
        slots: &Slots<'_>,
        sequences: &[Sequence<'_>],
        depth: u32,
    ) -> Node<F> {
        let mut shape = Ordered::new();
        for (clause, value) in clauses.iter().zip(&slots.values) {
            let form = match clause.content {
                Content::Statements(clauses) => {
                    Statements::find(clause.field, value.as_ref(), sequences).map(|statements| {
                        self.list_of_statements(statements, |walk, statement| {
                            walk.statement(statement, clauses, depth + 2)
                        })
                    })
                }
                content => self.clause(content, value.as_ref(), depth + 1),
            };
            let Some(form) = form else { continue };
            match clause.content {
                Content::Projection => shape.fine_entry(&F::word(clause.key), &form),
                _ => shape.entry(&F::word(clause.key), &form),
            }
        }
        shape.close(Bracket::Document)
    }

    /// What a clause prints after its key, if it is not left out; `depth` is that of the value.
    fn clause(
        &mut self,
        content: Content,
        value: Option<&Value<'_>>,
        depth: u32,
    ) -> Option<Node<F>> {
        Some(match (content, value) {
            (Content::Pipeline, Some(&Value::Array(pipeline))) => self.pipeline(pipeline, depth),
            (Content::Pipeline, _) => Ordered::new().close(Bracket::List),
            (Content::Name, value) => value.map_or_else(Node::value, |value| self.names(value)),
            (Content::UnlessOne, value) => {
                let is_one = value.and_then(Value::number) == Some(Number::One);
                return (!is_one).then(|| Node::word(word!("true")));
            }
            (Content::Update, Some(value)) => return self.update(value, depth),
            (Content::Limit, Some(value)) => return limit(value),
            (Content::Skip, Some(value)) => return skip(value),
            (Content::Flag, Some(value)) => {
                return value.truth().then(|| Node::word(word!("true")));
            }
            (Content::Presence, Some(_)) => Node::value(),
            (Content::Hint, Some(&Value::String(name))) => {
                return (!name.is_empty()).then(|| Node::name(Name::verbatim(name)));
            }
            (Content::Filters, Some(&Value::Array(filters))) => {
                return filters.first().map(|_| self.filters(filters, depth));
            }
            (content, Some(&Value::Document(document))) => {
                return document
                    .first()
                    .and_then(|_| self.document(content, document, depth));
            }
            _ => return None,
        })
    }

    /// A clause whose field holds a document that is not empty.
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
            Content::Collation => Some(self.collation(document)),
            Content::Expression => Some(self.expression(&Value::Document(document), depth)),
            Content::Filters
            | Content::Pipeline
            | Content::Name
            | Content::Update
            | Content::Limit
            | Content::Skip
            | Content::Flag
            | Content::UnlessOne
            | Content::Presence
            | Content::Statements(_) => None,
        }
    }

    /// The set of the shapes of the first statements. A batch that mixes too many is not told apart from others.
    pub(super) fn list_of_statements<'a>(
        &mut self,
        statements: Statements<'a>,
        mut shape: impl FnMut(&mut Self, Document<'a>) -> Node<F>,
    ) -> Node<F> {
        let mut set = Set::with_max(MAX_STATEMENT_SHAPES);
        let mut statements = statements.take(MAX_STATEMENTS);
        while let Some(statement) = self.look(&mut statements) {
            if let Some(statement) = statement {
                let form = shape(self, statement);
                set.item(&form);
            }
        }
        set.close(Bracket::List)
    }
}

/// The statements of a bulk command, from whichever place they came. What is no document is `None`.
pub(super) enum Statements<'a> {
    Array(Fields<'a>),
    Section(Documents<'a>),
}

impl<'a> Statements<'a> {
    /// The statements under that name, unless there are none.
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
        Number::Positive | Number::Negative | Number::NotANumber => Some(Node::value()),
    }
}

fn skip<F: Form>(value: &Value<'_>) -> Option<Node<F>> {
    (value.number()? != Number::Zero).then(Node::value)
}

const fn clause(field: &'static str, key: &'static str, content: Content) -> Clause {
    Clause {
        field,
        key: Word::new(key),
        content,
    }
}

/// Clauses of `find`.
pub(super) const FIND: [Clause; 11] = [
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
];

/// Clauses of `aggregate`.
pub(super) const AGGREGATE: [Clause; 4] = [
    clause("pipeline", "pipeline", Content::Pipeline),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("let", "let", Content::Expression),
];

/// Clauses of `count`.
pub(super) const COUNT: [Clause; 5] = [
    clause("query", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("limit", "limit", Content::Limit),
    clause("skip", "skip", Content::Skip),
];

/// Clauses of `distinct`.
pub(super) const DISTINCT: [Clause; 4] = [
    clause("key", "key", Content::Name),
    clause("query", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
];

/// Clauses of `mapReduce`.
pub(super) const MAP_REDUCE: [Clause; 4] = [
    clause("query", "filter", Content::Filter),
    clause("sort", "sort", Content::Keys),
    clause("collation", "collation", Content::Collation),
    clause("limit", "limit", Content::Limit),
];

/// Clauses of `update`.
pub(super) const UPDATE: [Clause; 2] = [
    clause("updates", "updates", Content::Statements(&UPDATE_STATEMENT)),
    clause("let", "let", Content::Expression),
];

/// Clauses of `delete`.
pub(super) const DELETE: [Clause; 2] = [
    clause("deletes", "deletes", Content::Statements(&DELETE_STATEMENT)),
    clause("let", "let", Content::Expression),
];

/// Clauses of `findAndModify`.
pub(super) const FIND_AND_MODIFY: [Clause; 10] = [
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
];

/// Clauses of `createIndexes`.
pub(super) const CREATE_INDEXES: [Clause; 1] =
    [clause("indexes", "indexes", Content::Statements(&INDEX))];

/// Clauses of one statement of `update`.
pub(super) const UPDATE_STATEMENT: [Clause; 8] = [
    clause("q", "filter", Content::Filter),
    clause("u", "update", Content::Update),
    clause("sort", "sort", Content::Keys),
    clause("arrayFilters", "arrayFilters", Content::Filters),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("multi", "multi", Content::Flag),
    clause("upsert", "upsert", Content::Flag),
];

/// Clauses of one statement of `delete`.
pub(super) const DELETE_STATEMENT: [Clause; 4] = [
    clause("q", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("limit", "multi", Content::UnlessOne),
];

/// Clauses of an update in `bulkWrite`.
pub(super) const BULK_UPDATE: [Clause; 8] = [
    clause("filter", "filter", Content::Filter),
    clause("updateMods", "update", Content::Update),
    clause("sort", "sort", Content::Keys),
    clause("arrayFilters", "arrayFilters", Content::Filters),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("multi", "multi", Content::Flag),
    clause("upsert", "upsert", Content::Flag),
];

/// Clauses of a delete in `bulkWrite`.
pub(super) const BULK_DELETE: [Clause; 4] = [
    clause("filter", "filter", Content::Filter),
    clause("hint", "hint", Content::Hint),
    clause("collation", "collation", Content::Collation),
    clause("multi", "multi", Content::Flag),
];

/// Clauses of one index of `createIndexes`.
pub(super) const INDEX: [Clause; 6] = [
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
];

/// Clauses of the longest table.
const MAX_CLAUSES: usize = FIND.len();
/// Statements of one bulk command that are looked at.
const MAX_STATEMENTS: usize = 16;
/// Different shapes of statements that one bulk command may print.
const MAX_STATEMENT_SHAPES: usize = 4;

const _: () = assert!(
    FIND_AND_MODIFY.len() <= MAX_CLAUSES,
    "a table longer than its slots"
);
const _: () = assert!(
    UPDATE_STATEMENT.len() <= MAX_CLAUSES,
    "a table longer than its slots"
);
