//! The options of commands contain numbers, names and words. This module decides which of them
//! redaction keeps.
//!
//! A document or an array is never kept whole, because a user may have put any value into it.
//! Redaction keeps only elements that the server knows, and only if they have the type that the
//! server expects.

use super::{
    Inner, Treatment, direction, flag, inside_array, inside_document, kept_number, kept_unless,
    name_only, names, numbers, of_clause, word_of,
};
use crate::bson::Value;
use crate::clause::Content;
use seawall_wire::kind::{BINARY, TIMESTAMP};

/// A document or an array in the options of a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum OptionPart {
    /// `lsid`, or one element of [`OptionPart::Sessions`].
    Session,
    /// An array of session ids: the argument of `endSessions` and similar commands.
    Sessions,
    /// `$clusterTime`.
    ClusterTime,
    /// `signature` of `$clusterTime`.
    Signature,
    /// `$client`.
    Client,
    /// `$readPreference`.
    ReadPreference,
    /// `readConcern`.
    ReadConcern,
    /// `writeConcern`.
    WriteConcern,
    /// `recoveryToken`.
    RecoveryToken,
    /// A collation.
    Collation,
    /// `nsInfo` of `bulkWrite`.
    Namespaces,
    /// One element of `nsInfo`.
    Namespace,
    /// `clusteredIndex`, or `index` of a `collMod` or `dropIndexes`.
    Index,
    /// `timeseries`.
    Timeseries,
    /// `out` of `mapReduce`.
    Output,
    /// `$currentDate`.
    CurrentDate,
    /// The document `{$type: word}` for one field of `$currentDate`.
    DateType,
    /// An array with names or numbers of BSON types.
    Types,
}

impl OptionPart {
    pub(super) fn treatment(self, name: &[u8], kind: u8, value: &Value<'_>) -> Treatment {
        match (self, name) {
            (Self::Session, b"id" | b"uid") => kept_unless(kind != BINARY),
            (Self::Session, b"txnNumber") => kept_number(value),
            (Self::Session, b"txnUUID") => kept_unless(kind != BINARY),
            (Self::Sessions, _) => inside(value, Self::Session),
            (Self::ClusterTime, b"clusterTime") => kept_unless(kind != TIMESTAMP),
            (Self::ClusterTime, b"signature") => inside(value, Self::Signature),
            (Self::Signature, b"hash") => kept_unless(kind != BINARY),
            (Self::Signature, b"keyId") => kept_number(value),
            (Self::Client, b"application" | b"driver" | b"os" | b"mongos") => names(value),
            (Self::Client, b"platform") => name_only(value),
            (Self::ReadPreference, b"mode") => word_of(&READ_MODES, value),
            (Self::ReadPreference, b"maxStalenessSeconds" | b"hedge") => numbers(value),
            (Self::ReadConcern, b"level") => word_of(&READ_LEVELS, value),
            (Self::ReadConcern, b"afterClusterTime" | b"atClusterTime") => {
                kept_unless(kind != TIMESTAMP)
            }
            (Self::WriteConcern, b"w") => word_of(&[b"majority"], value),
            (Self::WriteConcern, b"j" | b"fsync" | b"wtimeout") => kept_number(value),
            (Self::RecoveryToken, b"recoveryShardId") => name_only(value),
            (Self::Collation, name) if COLLATION_WORDS.contains(&name) => name_only(value),
            (Self::Collation, name) if COLLATION_NUMBERS.contains(&name) => kept_number(value),
            (Self::Namespaces, _) => inside(value, Self::Namespace),
            (Self::Namespace, b"ns") => name_only(value),
            (Self::Index, b"key" | b"keyPattern") => inside_document(value, Inner::Keys),
            (Self::Index, b"name") => name_only(value),
            (Self::Index, b"expireAfterSeconds" | b"v") => kept_number(value),
            (Self::Index, _) => direction(value),
            (Self::Timeseries, b"timeField" | b"metaField") => name_only(value),
            (Self::Timeseries, b"granularity") => word_of(&GRANULARITIES, value),
            (Self::Timeseries, b"bucketMaxSpanSeconds" | b"bucketRoundingSeconds") => {
                kept_number(value)
            }
            (Self::Output, b"replace" | b"merge" | b"reduce" | b"db") => name_only(value),
            (Self::Output, _) => flag(value),
            (Self::CurrentDate, _) => match value {
                Value::Document(_) => inside(value, Self::DateType),
                _ => flag(value),
            },
            (Self::DateType, b"$type") => word_of(&[b"date", b"timestamp"], value),
            (Self::Types, _) => word_of(&TYPES, value),
            _ => Treatment::Value,
        }
    }
}

/// How redaction treats a command's field that is neither the first field nor a clause (a field
/// that is part of the shape). The content of an unknown field counts as a value of a user, because
/// new versions of the server may add fields.
pub(super) fn of_command(name: &[u8], kind: u8, value: &Value<'_>) -> Treatment {
    match name {
        name if NUMBERS.contains(&name) => kept_number(value),
        name if NAMES.contains(&name) => name_only(value),
        name if WORDS.contains(&name) => word_of(&KNOWN_WORDS, value),
        b"$configTime" => kept_unless(kind != TIMESTAMP),
        b"changeStreamPreAndPostImages" | b"cursor" | b"cursors" | b"stmtIds" => numbers(value),
        b"collation" => collation(value),
        b"hint" => of_clause(Content::Hint, value),
        b"index" => match value {
            Value::Array(_) => names(value),
            Value::Document(_) => inside(value, OptionPart::Index),
            _ => name_only(value),
        },
        b"key" => match value {
            Value::Document(_) => inside_document(value, Inner::Keys),
            _ => name_only(value),
        },
        b"sort" => inside_document(value, Inner::Keys),
        b"out" => match value {
            Value::Document(_) => inside(value, OptionPart::Output),
            _ => name_only(value),
        },
        b"nsInfo" => inside_array(value, Inner::Option(OptionPart::Namespaces)),
        b"clusteredIndex" => match value {
            Value::Document(_) => inside(value, OptionPart::Index),
            _ => kept_number(value),
        },
        _ => match part_of(name) {
            Some(part) => inside(value, part),
            None => Treatment::Value,
        },
    }
}

/// The [`OptionPart`] for an option whose value must be a document; `None` for all other fields.
fn part_of(name: &[u8]) -> Option<OptionPart> {
    Some(match name {
        b"lsid" => OptionPart::Session,
        b"$clusterTime" => OptionPart::ClusterTime,
        b"$client" => OptionPart::Client,
        b"$readPreference" => OptionPart::ReadPreference,
        b"readConcern" => OptionPart::ReadConcern,
        b"writeConcern" => OptionPart::WriteConcern,
        b"recoveryToken" => OptionPart::RecoveryToken,
        b"timeseries" => OptionPart::Timeseries,
        _ => return None,
    })
}

/// How redaction treats a field in an element of `indexes` of `createIndexes`. Applies only to
/// fields that are not clauses. A clause is a field that is part of the shape.
pub(super) fn of_index(name: &[u8], value: &Value<'_>) -> Treatment {
    match name {
        b"name" | b"ns" | b"default_language" | b"language_override" => name_only(value),
        b"weights" => numbers(value),
        b"wildcardProjection" | b"columnstoreProjection" => {
            inside_document(value, Inner::Projection)
        }
        name if INDEX_NUMBERS.contains(&name) => kept_number(value),
        _ => Treatment::Value,
    }
}

pub(super) fn collation(value: &Value<'_>) -> Treatment {
    inside(value, OptionPart::Collation)
}

pub(super) fn sessions(value: &Value<'_>) -> Treatment {
    inside_array(value, Inner::Option(OptionPart::Sessions))
}

fn inside(value: &Value<'_>, part: OptionPart) -> Treatment {
    inside_document(value, Inner::Option(part))
}

/// Names of fields in commands. The values of these fields are numbers or booleans.
const NUMBERS: [&[u8]; 41] = [
    b"abortOnError",
    b"allowDiskUse",
    b"allowPartialResults",
    b"apiDeprecationErrors",
    b"apiStrict",
    b"authorizedCollections",
    b"authorizedDatabases",
    b"autocommit",
    b"awaitData",
    b"batchSize",
    b"bypassDocumentValidation",
    b"capped",
    b"dropTarget",
    b"errorsOnly",
    b"explain",
    b"freeStorage",
    b"full",
    b"includeIndexBuildInfo",
    b"max",
    b"maxAwaitTimeMS",
    b"maxTimeMS",
    b"nameOnly",
    b"new",
    b"noCursorTimeout",
    b"oplogReplay",
    b"ordered",
    b"rawData",
    b"returnKey",
    b"scale",
    b"showRecordId",
    b"singleBatch",
    b"size",
    b"startTransaction",
    b"stmtId",
    b"tailable",
    b"term",
    b"txnNumber",
    b"unique",
    b"upsert",
    b"multi",
    b"hidden",
];

/// Names of fields in commands. The values of these fields are names of databases, collections,
/// fields or indexes.
const NAMES: [&[u8]; 5] = [b"$db", b"collection", b"name", b"to", b"viewOn"];

/// Names of fields in commands. The values of these fields are numbers, or words that the server
/// defines.
const WORDS: [&[u8]; 7] = [
    b"apiVersion",
    b"commitQuorum",
    b"expireAfterSeconds",
    b"mode",
    b"validationAction",
    b"validationLevel",
    b"verbosity",
];

/// The words that redaction keeps in the fields that [`WORDS`] lists.
const KNOWN_WORDS: [&[u8]; 13] = [
    b"1",
    b"allPlansExecution",
    b"error",
    b"errorAndLog",
    b"executionStats",
    b"full",
    b"majority",
    b"moderate",
    b"off",
    b"queryPlanner",
    b"strict",
    b"votingMembers",
    b"warn",
];

const READ_MODES: [&[u8]; 5] = [
    b"primary",
    b"primaryPreferred",
    b"secondary",
    b"secondaryPreferred",
    b"nearest",
];

const READ_LEVELS: [&[u8]; 5] = [
    b"available",
    b"linearizable",
    b"local",
    b"majority",
    b"snapshot",
];

const COLLATION_WORDS: [&[u8]; 5] = [
    b"locale",
    b"caseFirst",
    b"alternate",
    b"maxVariable",
    b"version",
];

const COLLATION_NUMBERS: [&[u8]; 5] = [
    b"strength",
    b"caseLevel",
    b"numericOrdering",
    b"normalization",
    b"backwards",
];

const GRANULARITIES: [&[u8]; 3] = [b"seconds", b"minutes", b"hours"];

const INDEX_NUMBERS: [&[u8]; 13] = [
    b"2dsphereIndexVersion",
    b"background",
    b"bits",
    b"bucketSize",
    b"coarsestIndexedLevel",
    b"dropDups",
    b"finestIndexedLevel",
    b"hidden",
    b"max",
    b"min",
    b"prepareUnique",
    b"textIndexVersion",
    b"v",
];

/// The names of the BSON types.
pub(super) const TYPES: [&[u8]; 22] = [
    b"array",
    b"binData",
    b"bool",
    b"date",
    b"dbPointer",
    b"decimal",
    b"double",
    b"int",
    b"javascript",
    b"javascriptWithScope",
    b"long",
    b"maxKey",
    b"minKey",
    b"null",
    b"number",
    b"object",
    b"objectId",
    b"regex",
    b"string",
    b"symbol",
    b"timestamp",
    b"undefined",
];
