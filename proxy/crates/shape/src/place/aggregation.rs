//! How redaction treats the elements of pipelines and expressions: which elements are values of
//! users.

use super::{
    Inner, Treatment, filter, flag, inside_array, inside_document, kept_number, names, numbers,
    pipeline, word_of,
};
use crate::bson::{Array, Field, Value};
use crate::pipeline::{Argument, KeyedStage, Stage, holds_values};
use crate::walk::META_NAMES;

/// A document or array in a pipeline, expression or update. It decides how redaction treats the
/// elements in it.
#[derive(Clone, Copy, Debug)]
pub(super) enum AggregationPart {
    /// A document whose field names are operators.
    Operators,
    /// A document whose field names are paths or names of arguments, and whose values are
    /// expressions.
    Object,
    /// An array of expressions.
    List,
    /// The named arguments of an operator in [`OPTION_OPERATORS`]. Some of them are options, such
    /// as `unit`.
    Options,
    /// The array of an operator's arguments. The variant stores the index of one argument. Numbers
    /// at this index and after it are positions or counts, and not values of users.
    Positions(u8),
    /// The argument of a `$sort` in a pipeline that is in the argument of an outer stage. The
    /// function [`stage`] has no rule for the outer stage.
    InnerSort,
    /// The argument of `$slice` in a projection: an array of numbers.
    Counts,
    /// `{$meta: word}`.
    Meta,
    /// `{$elemMatch: filter}`, `{$slice: count}` or `{$meta: word}` in a projection.
    Projected,
    /// A document with operators such as `$each`, in the argument of `$push` or `$addToSet`.
    Pushed,
    /// The argument of `$changeStream`.
    ChangeStream,
    /// The argument of `$search`, or a document inside this argument.
    Search,
    /// An array in the argument of `$search`.
    SearchList,
    /// The argument of `$bucketAuto`.
    BucketAuto,
    /// `output` of `$setWindowFields`.
    WindowOutput,
    /// One field of `output` of `$setWindowFields`.
    WindowField,
    /// `window` of one field of `output`.
    Window,
    /// `documents` of a window: bounds as positions relative to the current document.
    Bounds,
    /// `range` of a window: bounds as differences from the current document's sort key. Redaction
    /// treats such differences as values of users.
    RangeBounds,
    /// `output` of `$fill`.
    FillOutput,
    /// One field of `output` of `$fill`.
    FillField,
    /// `range` of `$densify`.
    DensifyRange,
}

impl AggregationPart {
    pub(super) fn treatment(self, name: &[u8], value: &Value<'_>) -> Treatment {
        match self {
            Self::Operators => operator(name, value),
            Self::Object => match (name, value) {
                (b"sortBy", Value::Document(_)) => inside_document(value, Inner::Keys),
                _ => expression(value),
            },
            Self::List => expression(value),
            Self::Options if name == b"regex" => pattern(value),
            // The ranks of `$percentile` are an array of numbers.
            Self::Options if name == b"p" => numbers(value),
            Self::Options if KEPT_OPTIONS.contains(&name) => option(value),
            Self::Options if name == b"sortBy" => sort_by(value),
            Self::Options => expression(value),
            Self::Positions(first) => match (value.number(), name) {
                // The index has one digit, because these operators have only a few arguments.
                (Some(_), &[digit @ b'0'..=b'9']) if digit - b'0' >= first => Treatment::Keep,
                _ => expression(value),
            },
            Self::InnerSort if value.number().is_some() => flag(value),
            Self::InnerSort => expression(value),
            Self::Counts => kept_number(value),
            Self::Meta => match name {
                b"$meta" => meta(value),
                _ => Treatment::Value,
            },
            Self::Projected => match (name, value) {
                (b"$elemMatch", _) => filter(value),
                (b"$meta", _) => meta(value),
                (b"$slice", &Value::Array(array)) => match array.first() {
                    Some(first) if first.number().is_some() => {
                        inside_array(value, Inner::Aggregation(Self::Counts))
                    }
                    _ => operator(name, value),
                },
                (b"$slice", _) => kept_number(value),
                _ => Treatment::Value,
            },
            Self::Pushed => match name {
                b"$slice" | b"$position" => kept_number(value),
                b"$sort" => sort_by(value),
                _ => Treatment::Value,
            },
            Self::ChangeStream => match name {
                b"fullDocument" | b"fullDocumentBeforeChange" => word_of(&CHANGE_WORDS, value),
                b"allChangesForCluster" | b"showExpandedEvents" => kept_number(value),
                _ => Treatment::Value,
            },
            Self::Search => match (name, value) {
                // The value of `like` contains whole documents, whose content is values of users.
                (b"like", _) => Treatment::Value,
                (b"$meta", _) => meta(value),
                (b"index" | b"path" | b"defaultPath", Value::String(_)) => Treatment::Keep,
                (b"index" | b"path" | b"defaultPath", &Value::Array(array)) if is_names(array) => {
                    names(value)
                }
                _ => searched(value),
            },
            Self::SearchList => searched(value),
            Self::BucketAuto => match name {
                b"buckets" | b"granularity" => option(value),
                _ => expression(value),
            },
            _ => self.of_stage(name, value),
        }
    }

    /// How redaction treats an element in the argument of `$setWindowFields`, `$fill` or
    /// `$densify`.
    fn of_stage(self, name: &[u8], value: &Value<'_>) -> Treatment {
        match self {
            Self::WindowOutput => inside(value, Self::WindowField),
            Self::WindowField if name == b"window" => inside(value, Self::Window),
            Self::Window => match name {
                b"documents" => inside_array(value, Inner::Aggregation(Self::Bounds)),
                b"range" => inside_array(value, Inner::Aggregation(Self::RangeBounds)),
                b"unit" => word_of(&UNITS, value),
                _ => Treatment::Value,
            },
            Self::Bounds => word_of(&BOUNDS, value),
            Self::RangeBounds => match value {
                Value::String(_) => word_of(&BOUNDS, value),
                _ => Treatment::Value,
            },
            Self::WindowField => operator(name, value),
            Self::FillOutput => inside(value, Self::FillField),
            Self::FillField if name == b"method" => word_of(&[b"linear", b"locf"], value),
            Self::FillField => expression(value),
            Self::DensifyRange => match (name, value) {
                (b"bounds", Value::String(_)) => word_of(&[b"full", b"partition"], value),
                (b"unit", Value::String(_)) => word_of(&UNITS, value),
                _ => Treatment::Value,
            },
            _ => expression(value),
        }
    }
}

/// How redaction treats the argument of the stage `name`.
pub(super) fn stage(name: &[u8], value: &Value<'_>) -> Treatment {
    match (Stage::named(name), value) {
        (Stage::Match, _) => filter(value),
        (Stage::Sort, _) => inside_document(value, Inner::Keys),
        (Stage::Project, _) => inside_document(value, Inner::Projection),
        (Stage::Facet, _) => inside_document(value, Inner::Facets),
        (Stage::Value, _) if name != b"$count" => kept_number(value),
        (Stage::Value | Stage::Unset, _) => names(value),
        (Stage::Search, _) => inside(value, AggregationPart::Search),
        _ if name == b"$searchBeta" => inside(value, AggregationPart::Search),
        (Stage::Opaque, _) => match name {
            b"$changeStream" => inside(value, AggregationPart::ChangeStream),
            b"$documents" => expression(value),
            _ => numbers(value),
        },
        (Stage::Keyed(stage), Value::Document(_)) => inside_document(value, Inner::Keyed(stage)),
        (
            Stage::Keyed(
                KeyedStage::UnionWith | KeyedStage::Out | KeyedStage::Merge | KeyedStage::Unwind,
            ),
            Value::String(_),
        ) => Treatment::Keep,
        (Stage::Expression, Value::Document(_)) if name == b"$bucketAuto" => {
            inside(value, AggregationPart::BucketAuto)
        }
        (Stage::Keyed(_) | Stage::Expression, _) => expression(value),
    }
}

/// How redaction treats the value of the key `name` in the argument of `stage`.
pub(super) fn keyed(stage: KeyedStage, name: &[u8], value: &Value<'_>) -> Treatment {
    match (stage, name) {
        (KeyedStage::Out, b"timeseries") => {
            return inside_document(value, Inner::Option(super::option::OptionPart::Timeseries));
        }
        (KeyedStage::GraphLookup, b"maxDepth") => return numbers(value),
        (KeyedStage::VectorSearch, b"limit" | b"numCandidates") => return numbers(value),
        (KeyedStage::Densify, b"range") => return inside(value, AggregationPart::DensifyRange),
        (KeyedStage::SetWindowFields, b"output") => {
            return inside(value, AggregationPart::WindowOutput);
        }
        (KeyedStage::Fill, b"output") => return inside(value, AggregationPart::FillOutput),
        _ => {}
    }
    match stage.argument(name) {
        Argument::Namespace | Argument::Names => names(value),
        Argument::Pipeline => pipeline(value),
        Argument::Filter => filter(value),
        Argument::Keys => inside_document(value, Inner::Keys),
        Argument::Value => Treatment::Value,
        Argument::Expression => expression(value),
        Argument::WhenMatched | Argument::WhenNotMatched => match value {
            Value::Array(_) => pipeline(value),
            _ => word_of(&MERGE_WORDS, value),
        },
    }
}

/// How redaction treats an operator's option. A document or an array is an expression that computes
/// the option.
fn option(value: &Value<'_>) -> Treatment {
    match value {
        Value::Document(_) | Value::Array(_) => expression(value),
        Value::String(_) => Treatment::Keep,
        _ => kept_number(value),
    }
}

/// How redaction treats the argument of `$meta`. It keeps a word that the server defines, such as
/// `textScore`.
fn meta(value: &Value<'_>) -> Treatment {
    match value {
        Value::String(_) => word_of(&META_NAMES, value),
        _ => Treatment::Value,
    }
}

/// How redaction treats an operator's argument `sortBy`, or `$sort` in a `$push`. The argument is a
/// document of sort keys, or only a direction (1 or -1).
fn sort_by(value: &Value<'_>) -> Treatment {
    match value {
        Value::Document(_) => inside_document(value, Inner::Keys),
        _ => flag(value),
    }
}

/// How redaction treats an expression. It keeps field paths and variables. Constants are values of
/// users.
pub(super) fn expression(value: &Value<'_>) -> Treatment {
    match *value {
        Value::String([b'$', _, ..]) => Treatment::Keep,
        Value::Regex(_) => Treatment::Pattern,
        Value::Array(_) => inside_array(value, Inner::Aggregation(AggregationPart::List)),
        Value::Document(document) => match document.first().map(|first| first.name) {
            Some(b"$literal" | b"$const") => Treatment::Value,
            Some([b'$', ..]) => inside(value, AggregationPart::Operators),
            _ => inside(value, AggregationPart::Object),
        },
        _ => Treatment::Value,
    }
}

/// How redaction treats the argument of the operator `name` in an expression.
fn operator(name: &[u8], value: &Value<'_>) -> Treatment {
    match (name, value) {
        (b"$function" | b"$accumulator", _) => Treatment::Value,
        (b"$meta", _) => meta(value),
        (b"$getField", Value::String(_)) => Treatment::Keep,
        _ if holds_values(name) => stage(name, value),
        // No operator of expressions has the name of these stages. So this is a stage of a pipeline
        // in the argument of an outer stage. The function `stage` has no rule for the outer stage.
        (b"$limit" | b"$skip", _) if value.number().is_some() => Treatment::Keep,
        (b"$sort", Value::Document(_)) => inside(value, AggregationPart::InnerSort),
        (b"$sum", _) if value.number().is_some() => flag(value),
        (_, Value::Document(document)) if OPTION_OPERATORS.contains(&name) => {
            // An argument may itself be an operator, such as `{$year: {$max: "$date"}}`.
            match document.first().map(|first| first.name) {
                Some([b'$', ..]) => expression(value),
                _ => inside(value, AggregationPart::Options),
            }
        }
        (_, Value::Array(_)) => match first_position(name) {
            Some(first) => {
                inside_array(value, Inner::Aggregation(AggregationPart::Positions(first)))
            }
            None => expression(value),
        },
        _ => expression(value),
    }
}

fn searched(value: &Value<'_>) -> Treatment {
    match *value {
        Value::Document(_) => inside(value, AggregationPart::Search),
        Value::Array(array) if matches!(array.first(), Some(Value::Document(_))) => {
            inside_array(value, Inner::Aggregation(AggregationPart::SearchList))
        }
        _ => Treatment::Value,
    }
}

/// How redaction treats an operator's argument `regex`: a string, a regular expression, or an
/// expression that computes one of them.
fn pattern(value: &Value<'_>) -> Treatment {
    match expression(value) {
        Treatment::Value if matches!(value, Value::String(_)) => Treatment::Pattern,
        other => other,
    }
}

fn inside(value: &Value<'_>, part: AggregationPart) -> Treatment {
    inside_document(value, Inner::Aggregation(part))
}

fn is_names(array: Array<'_>) -> bool {
    let mut elements = array.elements();
    let is_string = |element: Field<'_>| matches!(element.value, Value::String(_));
    elements.by_ref().all(is_string) && !elements.is_cut()
}

/// Operators with named arguments. Some of the arguments are options.
const OPTION_OPERATORS: [&[u8]; 46] = [
    b"$bottom",
    b"$bottomN",
    b"$convert",
    b"$dateAdd",
    b"$dateDiff",
    b"$dateFromParts",
    b"$dateFromString",
    b"$dateSubtract",
    b"$dateToParts",
    b"$dateToString",
    b"$dateTrunc",
    b"$dayOfMonth",
    b"$dayOfWeek",
    b"$dayOfYear",
    b"$derivative",
    b"$expMovingAvg",
    b"$filter",
    b"$firstN",
    b"$getField",
    b"$hour",
    b"$integral",
    b"$isoDayOfWeek",
    b"$isoWeek",
    b"$isoWeekYear",
    b"$lastN",
    b"$map",
    b"$maxN",
    b"$median",
    b"$millisecond",
    b"$minN",
    b"$minute",
    b"$month",
    b"$percentile",
    b"$reduce",
    b"$regexFind",
    b"$regexFindAll",
    b"$regexMatch",
    b"$second",
    b"$setField",
    b"$shift",
    b"$sortArray",
    b"$top",
    b"$topN",
    b"$unsetField",
    b"$week",
    b"$year",
];

/// The options of [`OPTION_OPERATORS`] that are not values of users. They are names, counts, and
/// words that the server defines.
const KEPT_OPTIONS: [&[u8]; 14] = [
    b"as",
    b"N",
    b"alpha",
    b"by",
    b"field",
    b"format",
    b"limit",
    b"method",
    b"n",
    b"options",
    b"startOfWeek",
    b"timezone",
    b"to",
    b"unit",
];

/// The index of the first argument that is a position or a count; `None` if the operator has no
/// such argument.
fn first_position(operator: &[u8]) -> Option<u8> {
    Some(match operator {
        b"$range" => 0,
        b"$arrayElemAt" | b"$round" | b"$slice" | b"$substr" | b"$substrBytes" | b"$substrCP"
        | b"$trunc" => 1,
        b"$indexOfArray" | b"$indexOfBytes" | b"$indexOfCP" => 2,
        _ => return None,
    })
}

/// The words that the server accepts for `fullDocument` and `fullDocumentBeforeChange`.
const CHANGE_WORDS: [&[u8]; 5] = [
    b"default",
    b"off",
    b"required",
    b"updateLookup",
    b"whenAvailable",
];

/// The words that the server accepts as a bound of a window, in place of a number.
const BOUNDS: [&[u8]; 2] = [b"current", b"unbounded"];

/// The words that the server accepts for `whenMatched` and `whenNotMatched`.
const MERGE_WORDS: [&[u8]; 6] = [
    b"discard",
    b"fail",
    b"insert",
    b"keepExisting",
    b"merge",
    b"replace",
];

/// The units of time.
const UNITS: [&[u8]; 9] = [
    b"year",
    b"quarter",
    b"month",
    b"week",
    b"day",
    b"hour",
    b"minute",
    b"second",
    b"millisecond",
];
