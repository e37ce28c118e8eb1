//! Finds the values of users in a command, a reply or a document.
//!
//! A shape prints names and replaces values. Redaction also separates names from values, but for
//! every element of a message: the limits of a fingerprint (depth, number of elements) do not
//! apply. A [`Place`] is the role of one document or array in a message, such as "filter" or
//! "pipeline". It determines the treatment of each element in this document or array. Redaction and
//! fingerprints use the same tables: the clauses of commands, the stages and their arguments. An
//! element for which there is no rule is a value.
//!
//! This module changes no bytes. It reads only the element and, if a rule needs them, some names
//! and types in the element.

mod aggregation;
mod option;
mod reply;

use super::bson::{Document, Number, Value};
use super::clause::{BULK_DELETE, BULK_UPDATE, Content, INDEX, Table};
use super::command_name::{self, KnownCommand, UNKNOWN};
use super::pipeline::KeyedStage;
use super::update::is_replacement;
use super::walk::INDEX_TYPES;
use seawall_command::ReplyForm;
use seawall_command::table::{FirstField, Syntax};
use seawall_wire::RawElement;
use seawall_wire::kind::ARRAY;

/// How redaction treats one element.
#[derive(Clone, Copy, Debug)]
pub enum Treatment {
    /// The element is not a value of a user. For example, it is an operator, a name, an option or a
    /// limit.
    Keep,
    /// The element and everything in it are values of a user, except the field names.
    Value,
    /// The element is a regular expression, or a string that contains a regular expression.
    Pattern,
    /// The element is a text that may contain values of a user, so it must be removed.
    Remove,
    /// The element is a document or an array whose elements have treatments of their own.
    Inside(Place),
}

/// The role of a document or an array in a message, such as "filter" or "pipeline".
#[derive(Clone, Copy, Debug)]
pub struct Place(Inner);

#[derive(Clone, Copy, Debug)]
enum Inner {
    Command(&'static KnownCommand),
    Statements(&'static Table),
    Statement(&'static Table),
    BulkOps,
    BulkOp(&'static Table),
    Filter,
    Filters,
    Operators,
    OperatorList,
    Text,
    /// A document or an array, such as `{batchSize: 100}`, in which numbers, booleans and null are
    /// kept.
    Numbers,
    /// An array or a document whose strings are all names, for example of collections or fields.
    Names,
    /// The options of a command, and documents in them.
    Option(option::OptionPart),
    /// Keys in their order, each with a direction or an index type.
    Keys,
    Projection,
    Update,
    Changes(Modifier),
    Pipeline,
    Stage,
    Facets,
    Keyed(KeyedStage),
    Aggregation(aggregation::AggregationPart),
    Reply(ReplyForm, reply::ReplyPart),
}

/// A kind of modifier in an update. The kind determines how redaction treats the values in the
/// modifier's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Modifier {
    Push,
    Pull,
    Other,
}

impl Place {
    /// The role of a command's body.
    pub fn command(body: &[u8]) -> Self {
        let first = Document::at(body).first();
        let known = first.as_ref().map_or(&UNKNOWN, command_name::find);
        Self(Inner::Command(known))
    }

    /// The role of a reply's body. `form` says which fields of the reply contain the results. These
    /// fields depend on the command.
    pub fn reply(form: ReplyForm) -> Self {
        Self(Inner::Reply(form, reply::ReplyPart::Body))
    }

    /// How redaction treats a document sequence of a command: like an array with the same name and
    /// the same documents.
    pub fn sequence(self, identifier: &[u8]) -> Treatment {
        let empty = Value::Array(Document::default().into());
        match self.0 {
            Inner::Command(known) => of_field(known, identifier, ARRAY, &empty),
            _ => Treatment::Value,
        }
    }

    /// How redaction treats an element of this document or array. `is_first` is true for the first
    /// element.
    pub fn treatment(self, element: &RawElement<'_>, is_first: bool) -> Treatment {
        let Some(value) = Value::of(*element) else {
            return Treatment::Value;
        };
        let (name, value) = (element.name, &value);
        match self.0 {
            Inner::Command(known) if is_first => first_field(known, value),
            Inner::Command(known) => of_field(known, name, element.kind, value),
            Inner::Statements(table) => inside_document(value, Inner::Statement(table)),
            Inner::Statement(table) => of_statement(table, name, value),
            Inner::BulkOps => bulk_op(value),
            Inner::BulkOp(_) if is_first => kept_number(value),
            Inner::BulkOp(table) => of_statement(table, name, value),
            Inner::Filter => in_filter(name, value),
            Inner::Filters => filter(value),
            Inner::Operators => operator(name, value),
            Inner::OperatorList => inside_document(value, Inner::Operators),
            Inner::Text if name == b"$language" => name_only(value),
            Inner::Text => match name {
                b"$caseSensitive" | b"$diacriticSensitive" => kept_number(value),
                _ => Treatment::Value,
            },
            Inner::Numbers => numbers(value),
            Inner::Names => name_only(value),
            Inner::Option(part) => part.treatment(name, element.kind, value),
            Inner::Keys => direction(value),
            Inner::Projection => projected(value),
            Inner::Update => changes(name, value),
            Inner::Changes(modifier) => change(modifier, value),
            Inner::Pipeline => inside_document(value, Inner::Stage),
            Inner::Stage => aggregation::stage(name, value),
            Inner::Facets => pipeline(value),
            Inner::Keyed(stage) => aggregation::keyed(stage, name, value),
            Inner::Aggregation(part) => part.treatment(name, value),
            Inner::Reply(form, part) => part.treatment(form, name, value),
        }
    }
}

/// How redaction treats a command's first field. The kind of its value ([`FirstField`]) depends on
/// the command.
fn first_field(known: &'static KnownCommand, value: &Value<'_>) -> Treatment {
    match (known.first_field, value) {
        (FirstField::Command, &Value::Document(inner)) => {
            let inner = inner.first();
            let known = inner.as_ref().map_or(&UNKNOWN, command_name::find);
            Treatment::Inside(Place(Inner::Command(known)))
        }
        (FirstField::Name | FirstField::Option, Value::String(_)) => Treatment::Keep,
        (FirstField::Option, _) => kept_number(value),
        (FirstField::Sessions, _) => option::sessions(value),
        _ => flag(value),
    }
}

/// How redaction treats a field of a command, except the first field.
fn of_field(known: &'static KnownCommand, name: &[u8], kind: u8, value: &Value<'_>) -> Treatment {
    if let Some(content) = known.clauses().content_of(name) {
        return of_clause(content, value);
    }
    match (known.syntax, name) {
        (Syntax::BulkWrite, b"ops") => inside_array(value, Inner::BulkOps),
        (_, b"validator") => filter(value),
        (Syntax::OnCollection, b"pipeline") => pipeline(value),
        _ => option::of_command(name, kind, value),
    }
}

fn of_statement(table: &'static Table, name: &[u8], value: &Value<'_>) -> Treatment {
    match table.content_of(name) {
        Some(content) => of_clause(content, value),
        None if std::ptr::eq(table, &raw const INDEX) => option::of_index(name, value),
        None => Treatment::Value,
    }
}

fn of_clause(content: Content, value: &Value<'_>) -> Treatment {
    match content {
        Content::Filter => filter(value),
        Content::Filters => inside_array(value, Inner::Filters),
        Content::Hint if matches!(value, Value::String(_)) => Treatment::Keep,
        Content::Keys | Content::Hint => inside_document(value, Inner::Keys),
        Content::Projection => inside_document(value, Inner::Projection),
        Content::Pipeline => pipeline(value),
        Content::Name => name_only(value),
        Content::Collation => option::collation(value),
        Content::Update => update(value),
        Content::Expression => aggregation::expression(value),
        Content::Limit | Content::Skip | Content::Flag | Content::UnlessOne | Content::Presence => {
            kept_number(value)
        }
        Content::Bounds => Treatment::Value,
        Content::Statements(table) => inside_array(value, Inner::Statements(table)),
    }
}

fn bulk_op(value: &Value<'_>) -> Treatment {
    let table = match value {
        Value::Document(op) => op.first().map(|first| first.name),
        _ => None,
    };
    match table {
        Some(b"delete") => inside_document(value, Inner::BulkOp(&BULK_DELETE)),
        Some(b"insert" | b"update") => inside_document(value, Inner::BulkOp(&BULK_UPDATE)),
        _ => Treatment::Value,
    }
}

fn filter(value: &Value<'_>) -> Treatment {
    inside_document(value, Inner::Filter)
}

fn pipeline(value: &Value<'_>) -> Treatment {
    inside_array(value, Inner::Pipeline)
}

/// How redaction treats an element of a filter.
fn in_filter(name: &[u8], value: &Value<'_>) -> Treatment {
    match (name, value) {
        (b"$and" | b"$or" | b"$nor", Value::Array(_)) => inside_array(value, Inner::Filters),
        (b"$text", Value::Document(_)) => inside_document(value, Inner::Text),
        (b"$expr", _) => aggregation::expression(value),
        (b"$sampleRate" | b"$alwaysTrue" | b"$alwaysFalse", _) => kept_number(value),
        ([b'$', ..], _) => Treatment::Value,
        (_, Value::Regex(_)) => Treatment::Pattern,
        (_, &Value::Document(document)) if document.is_operator_document() => {
            Treatment::Inside(Place(Inner::Operators))
        }
        _ => Treatment::Value,
    }
}

/// How redaction treats the argument of the operator `name` in a filter.
fn operator(name: &[u8], value: &Value<'_>) -> Treatment {
    match (name, value) {
        (b"$options", _) => regex_options(value),
        (b"$type", _) => types(value),
        (b"$exists" | b"$size" | b"$mod" | b"$maxDistance" | b"$minDistance", _) => numbers(value),
        (b"$regex", Value::String(_) | Value::Regex(_)) => Treatment::Pattern,
        (b"$not", Value::Regex(_)) => Treatment::Pattern,
        (b"$not", &Value::Document(document)) if document.is_operator_document() => {
            Treatment::Inside(Place(Inner::Operators))
        }
        (b"$elemMatch", &Value::Document(document)) => Treatment::Inside(Place(
            match document.is_operator_document() && !document.begins_filter() {
                true => Inner::Operators,
                false => Inner::Filter,
            },
        )),
        (b"$all", &Value::Array(array)) => match array.first() {
            Some(Value::Document(first))
                if first
                    .first()
                    .is_some_and(|field| field.name == b"$elemMatch") =>
            {
                Treatment::Inside(Place(Inner::OperatorList))
            }
            _ => Treatment::Value,
        },
        _ => Treatment::Value,
    }
}

/// How redaction treats a sort key's direction, or an index key's type.
fn direction(value: &Value<'_>) -> Treatment {
    match *value {
        Value::String(kind) => kept_unless(!INDEX_TYPES.contains(&kind)),
        Value::Document(_) => inside_document(
            value,
            Inner::Aggregation(aggregation::AggregationPart::Meta),
        ),
        // This number may be data of a user: an unknown command may have a field with the name of
        // an option, such as `sort`. So only the numbers that are usual as a direction are kept.
        _ => flag(value),
    }
}

fn projected(value: &Value<'_>) -> Treatment {
    let &Value::Document(document) = value else {
        return match value.number() {
            Some(_) => Treatment::Keep,
            None => aggregation::expression(value),
        };
    };
    match document.first().map(|first| first.name) {
        Some(b"$elemMatch" | b"$slice" | b"$meta") => Treatment::Inside(Place(Inner::Aggregation(
            aggregation::AggregationPart::Projected,
        ))),
        Some([b'$', ..]) | None => aggregation::expression(value),
        Some(_) => Treatment::Inside(Place(Inner::Projection)),
    }
}

fn update(value: &Value<'_>) -> Treatment {
    match *value {
        Value::Array(_) => pipeline(value),
        Value::Document(document) if !is_replacement(document) => {
            Treatment::Inside(Place(Inner::Update))
        }
        _ => Treatment::Value,
    }
}

/// How redaction treats the argument of a modifier (such as `$push`) in an update.
fn changes(modifier: &[u8], value: &Value<'_>) -> Treatment {
    let modifier = match modifier {
        b"$rename" => return names(value),
        b"$currentDate" => {
            return inside_document(value, Inner::Option(option::OptionPart::CurrentDate));
        }
        b"$pop" => return numbers(value),
        b"$push" | b"$addToSet" => Modifier::Push,
        b"$pull" => Modifier::Pull,
        _ => Modifier::Other,
    };
    inside_document(value, Inner::Changes(modifier))
}

fn change(modifier: Modifier, value: &Value<'_>) -> Treatment {
    match (modifier, value) {
        (Modifier::Push, &Value::Document(document)) if document.is_operator_document() => {
            Treatment::Inside(Place(Inner::Aggregation(
                aggregation::AggregationPart::Pushed,
            )))
        }
        (Modifier::Pull, Value::Regex(_)) => Treatment::Pattern,
        (Modifier::Pull, &Value::Document(document)) if document.is_operator_document() => {
            Treatment::Inside(Place(Inner::Operators))
        }
        (Modifier::Pull, Value::Document(_)) => filter(value),
        _ => Treatment::Value,
    }
}

fn inside_document(value: &Value<'_>, inner: Inner) -> Treatment {
    match value {
        Value::Document(_) => Treatment::Inside(Place(inner)),
        _ => Treatment::Value,
    }
}

fn inside_array(value: &Value<'_>, inner: Inner) -> Treatment {
    match value {
        Value::Array(_) => Treatment::Inside(Place(inner)),
        _ => Treatment::Value,
    }
}

fn kept_number(value: &Value<'_>) -> Treatment {
    let is_flag = matches!(value, Value::True | Value::False | Value::Null);
    kept_unless(!is_flag && value.number().is_none())
}

/// Redaction keeps numbers, booleans and null. It also keeps them inside a document or an array.
fn numbers(value: &Value<'_>) -> Treatment {
    match value {
        Value::Document(_) | Value::Array(_) => Treatment::Inside(Place(Inner::Numbers)),
        _ => kept_number(value),
    }
}

/// Redaction keeps 1, 0, -1, booleans and null, because they hardly reveal a value of a user.
fn flag(value: &Value<'_>) -> Treatment {
    match value.number() {
        Some(Number::Zero | Number::One | Number::MinusOne) => Treatment::Keep,
        Some(_) => Treatment::Value,
        None => kept_number(value),
    }
}

/// Redaction keeps a string, which here is always a name, for example of a collection, a field or
/// an index.
fn name_only(value: &Value<'_>) -> Treatment {
    kept_unless(!matches!(value, Value::String(_)))
}

/// Redaction keeps one name, or the names in an array or document.
fn names(value: &Value<'_>) -> Treatment {
    match value {
        Value::Document(_) | Value::Array(_) => Treatment::Inside(Place(Inner::Names)),
        _ => name_only(value),
    }
}

/// Redaction keeps a string only if it is one of `words`, which the server defines. It also keeps
/// numbers, booleans and null.
fn word_of(words: &[&[u8]], value: &Value<'_>) -> Treatment {
    match value {
        Value::String(word) => kept_unless(!words.contains(word)),
        _ => kept_number(value),
    }
}

/// Redaction keeps the options of a regular expression if all of them are valid.
fn regex_options(value: &Value<'_>) -> Treatment {
    match value {
        Value::String(options) => kept_unless(!options.iter().all(|c| b"imsuxl".contains(c))),
        _ => Treatment::Value,
    }
}

/// Redaction keeps the name or the number of a BSON type, and the names and numbers of types in an
/// array.
fn types(value: &Value<'_>) -> Treatment {
    match value {
        Value::Array(_) => inside_array(value, Inner::Option(option::OptionPart::Types)),
        _ => word_of(&option::TYPES, value),
    }
}

fn kept_unless(is_value: bool) -> Treatment {
    match is_value {
        true => Treatment::Value,
        false => Treatment::Keep,
    }
}
