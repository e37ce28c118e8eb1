//! Tests that a redacted command contains no value of a user, wherever the user put the value.

use bson::{Binary, Bson, Document, Timestamp, doc, oid::ObjectId, spec::BinarySubtype};
use seawall_command::table::{COMMANDS, CommandSpec, FirstField};

use super::{MODES, assert_same_shape, command, reply};

const TEXT: &str = "hunter2-sentinel";
const NUMBER: i32 = 471_147;
const ID: [u8; 12] = *b"sentinel-oid";

/// The sentinels: values that redaction must replace. Some sentinels are in documents or arrays.
fn sentinels() -> Vec<Bson> {
    let scalars = [
        Bson::from(TEXT),
        Bson::Int32(NUMBER),
        Bson::Int64(NUMBER.into()),
        Bson::Double(NUMBER.into()),
        Bson::ObjectId(ObjectId::from_bytes(ID)),
    ];
    let [text, int, long, double, id] = scalars.clone();
    let lists = [vec![text, id], vec![int, long, double]];
    let inside = lists.into_iter().flat_map(|list| {
        let list = Bson::Array(list);
        [
            doc! { "user field": &list }.into(),
            doc! { "find": "c", "filter": { "a": &list } }.into(),
            doc! { "_id": { "a": &list } }.into(),
            Bson::Array(vec![doc! { "user field": &list }.into()]),
            Bson::Array(vec![list]),
        ]
    });
    let documents = scalars
        .each_ref()
        .map(|scalar| doc! { "user field": scalar }.into());
    let arrays = scalars
        .each_ref()
        .map(|scalar| vec![doc! { "a": scalar }].into());
    let scalars = scalars.into_iter().chain(documents).chain(arrays);
    scalars.chain(inside).collect()
}

fn has_sentinel(value: &Bson) -> bool {
    match value {
        Bson::Document(document) => document.values().any(has_sentinel),
        Bson::Array(items) => items.iter().any(has_sentinel),
        Bson::String(text) => text.contains(TEXT),
        Bson::Int32(number) => *number == NUMBER,
        Bson::Int64(number) => *number == i64::from(NUMBER),
        #[expect(clippy::float_cmp, reason = "an unchanged number is exactly equal")]
        Bson::Double(number) => *number == f64::from(NUMBER),
        Bson::ObjectId(id) => id.bytes() == ID,
        _ => false,
    }
}

fn is_number(value: &Bson) -> bool {
    matches!(value, Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_))
}

/// The first field is named after the command. Its value is a collection name, an option such as a
/// log level, or data.
#[test]
fn redaction_keeps_the_value_of_the_first_field_only_if_it_can_be_a_name_or_an_option() {
    for spec in COMMANDS {
        for name in [spec.name].iter().chain(spec.aliases) {
            for sentinel in sentinels() {
                let is_text = matches!(sentinel, Bson::String(_));
                let is_kept = match spec.first_field {
                    // As documented, redaction keeps names of databases and collections.
                    FirstField::Name => is_text,
                    // The option is a cursor id, a level, a number of seconds, or a keyword.
                    FirstField::Option => is_text || is_number(&sentinel),
                    FirstField::Flag | FirstField::Command | FirstField::Sessions => false,
                };
                let original = doc! { *name: &sentinel, "$db": "d" };
                for mode in MODES {
                    let redacted = command(mode, &original);
                    let has = has_sentinel(redacted.get(*name).unwrap());
                    assert_eq!(has, is_kept, "{mode:?} {original} {redacted}");
                }
            }
        }
    }
}

/// In the listed commands, the first field has an option, another command, or session ids. In all
/// other commands, it has a name or a flag (the number 1).
#[test]
fn the_first_field_has_a_name_or_a_flag_in_all_commands_except_the_listed_commands() {
    let names = |first_field| {
        let rows = COMMANDS.iter().filter(|row| row.first_field == first_field);
        rows.map(|row| row.name).collect::<Vec<_>>()
    };
    assert_eq!(
        names(FirstField::Option),
        [
            "getMore",
            "seawall",
            "setFeatureCompatibilityVersion",
            "getLog",
            "profile",
            "replSetFreeze",
            "replSetStepDown",
        ]
    );
    assert_eq!(
        names(FirstField::Command),
        ["explain", "setQuerySettings", "removeQuerySettings"]
    );
    assert_eq!(
        names(FirstField::Sessions),
        ["refreshSessions", "endSessions", "killSessions"]
    );
}

/// Fields whose value is the name of a database, collection, field or index. Redaction keeps names.
const NAMES: [&str; 9] = [
    "$db",
    "collection",
    "hint",
    "index",
    "key",
    "name",
    "out",
    "to",
    "viewOn",
];

/// Fields for an option, such as a flag, a limit, a size or a time. Also fields for an id that the
/// server or the driver chose. Redaction keeps the numbers in these fields.
const NUMBERS: [&str; 60] = [
    "abortOnError",
    "allowDiskUse",
    "allowPartialResults",
    "apiDeprecationErrors",
    "apiStrict",
    "apiVersion",
    "authorizedCollections",
    "authorizedDatabases",
    "autocommit",
    "awaitData",
    "batchSize",
    "bypassDocumentValidation",
    "capped",
    "clusteredIndex",
    "commitQuorum",
    "dropTarget",
    "errorsOnly",
    "expireAfterSeconds",
    "explain",
    "freeStorage",
    "full",
    "hidden",
    "includeIndexBuildInfo",
    "max",
    "maxAwaitTimeMS",
    "maxTimeMS",
    "mode",
    "multi",
    "nameOnly",
    "new",
    "noCursorTimeout",
    "oplogReplay",
    "ordered",
    "rawData",
    "returnKey",
    "scale",
    "showRecordId",
    "singleBatch",
    "size",
    "startTransaction",
    "stmtId",
    "tailable",
    "term",
    "txnNumber",
    "unique",
    "upsert",
    "validationAction",
    "validationLevel",
    "verbosity",
    "changeStreamPreAndPostImages",
    "cursor",
    "cursors",
    "stmtIds",
    "limit",
    "skip",
    "remove",
    "sparse",
    "projection",
    "fields",
    "sort",
];

/// Fields with a document or an array. Redaction keeps every number in it, because such a number is
/// an option or an id: a limit, a cursor id or similar.
const OF_NUMBERS: [&str; 6] = [
    "changeStreamPreAndPostImages",
    "cursor",
    "cursors",
    "stmtIds",
    "projection",
    "fields",
];

/// Fields in which redaction keeps neither text nor numbers. These fields are for values of a user,
/// or for options that are documents.
const OTHERS: [&str; 33] = [
    "$client",
    "$clusterTime",
    "$configTime",
    "$readPreference",
    "collation",
    "comment",
    "customData",
    "documents",
    "filter",
    "query",
    "update",
    "updates",
    "deletes",
    "ops",
    "indexes",
    "pipeline",
    "let",
    "arrayFilters",
    "nsInfo",
    "indexOptionDefaults",
    "lsid",
    "min",
    "readConcern",
    "recoveryToken",
    "storageEngine",
    "timeseries",
    "validator",
    "writeConcern",
    "scope",
    "map",
    "reduce",
    "settings",
    "a field that Seawall does not know",
];

/// This test is for all fields of a command except the first.
#[test]
fn only_fields_for_names_keep_strings_and_only_fields_for_options_keep_numbers() {
    // The syntax of a command decides which values of these fields are kept, so one command of each
    // syntax is enough.
    let mut rows: Vec<&CommandSpec> = Vec::new();
    for spec in COMMANDS {
        if rows.iter().all(|row| row.syntax != spec.syntax) {
            rows.push(spec);
        }
    }
    for spec in rows {
        for sentinel in sentinels() {
            let mut original = doc! { spec.name: "c" };
            let fields = NAMES.iter().chain(&NUMBERS).chain(&OTHERS);
            for field in fields.filter(|field| **field != spec.name) {
                original.insert(*field, &sentinel);
            }
            for mode in MODES {
                let redacted = command(mode, &original);
                for (field, value) in redacted.iter().skip(1) {
                    let has = has_sentinel(value) && !is_exception(field, &sentinel);
                    assert!(!has, "{mode:?} {} {field} {value}", spec.name);
                }
            }
        }
    }
}

/// True if redaction may keep this value in this field.
fn is_exception(field: &str, value: &Bson) -> bool {
    match value {
        Bson::String(_) => NAMES.contains(&field),
        Bson::Document(_) | Bson::Array(_) => !has_text(value) && OF_NUMBERS.contains(&field),
        number => is_number(number) && NUMBERS.contains(&field),
    }
}

/// True for values that contain a sentinel other than a number.
fn has_text(value: &Bson) -> bool {
    match value {
        Bson::Document(document) => document.values().any(has_text),
        Bson::Array(items) => items.iter().any(has_text),
        other => has_sentinel(other) && !is_number(other),
    }
}

/// Asserts that the redacted command contains no sentinel.
fn assert_redacted(original: &Document) {
    for mode in MODES {
        let redacted = command(mode, original);
        let text = redacted.to_string();
        assert!(
            !redacted.values().any(has_sentinel) && !text.contains(TEXT),
            "{mode:?} {original} {redacted}"
        );
    }
}

#[test]
fn values_that_earlier_versions_of_seawall_kept_are_redacted() {
    let id = ObjectId::from_bytes(ID);
    for original in [
        doc! { "filemd5": TEXT, "root": "fs", "$db": "d" },
        doc! { "filemd5": id, "root": "fs", "$db": "d" },
        doc! { "setQuerySettings": { "find": "c", "filter": { "email": TEXT }, "$db": "d" },
        "settings": { "comment": TEXT }, "$db": "admin" },
        doc! { "removeQuerySettings": { "find": "c", "filter": { "email": TEXT }, "$db": "d" }, "$db": "admin" },
        doc! { "setQuerySettings": TEXT, "$db": "admin" },
        doc! { "dataSize": "d.c", "min": { "email": TEXT }, "max": { "email": TEXT }, "$db": "d" },
        doc! { "dataSize": "d.c", "keyPattern": { "n": 1 }, "max": { "n": NUMBER }, "$db": "d" },
        doc! { "eval": TEXT, "args": [NUMBER], "$db": "d" },
        doc! { "explain": { "filemd5": TEXT }, "$db": "d" },
        doc! { "currentOp": 1, "$ownOps": true, "command.filter": TEXT, "$db": "admin" },
        doc! { "killAllSessionsByPattern": [{ "users": [{ "user": TEXT }] }], "$db": "admin" },
        doc! { "endSessions": [{ "id": TEXT, "x": NUMBER }], "$db": "admin" },
        doc! { "updateUser": TEXT, "customData": { "a": TEXT }, "$db": "d" },
        doc! { "create": "c", "storageEngine": { "wiredTiger": { "configString": TEXT } }, "$db": "d" },
        doc! { "collMod": "c", "index": { "name": "a", "x": TEXT }, "validator": { "a": TEXT }, "$db": "d" },
        doc! { "mapReduce": "c", "map": TEXT, "scope": { "a": NUMBER }, "out": { "inline": TEXT }, "$db": "d" },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1", "storageEngine": { "x": TEXT },
        "partialFilterExpression": { "a": TEXT }, "comment": TEXT, "collation": { "x": TEXT } }], "$db": "d" },
        doc! { "find": "c", "sort": { "a": { "$meta": TEXT }, "b": { "$meta": "textScore", "x": NUMBER } }, "$db": "d" },
        doc! { "find": "c", "filter": { "a": { "$type": TEXT }, "$text": { "$search": TEXT, "x": TEXT } }, "$db": "d" },
        doc! { "distinct": "c", "key": { "a": TEXT }, "$db": "d" },
        doc! { "update": "c", "updates": [{ "q": {}, "u": { "$currentDate": { "a": TEXT, "b": { "x": TEXT } } } }], "$db": "d" },
    ] {
        assert_redacted(&original);
    }
}

#[test]
fn constants_in_stages_and_expressions_are_redacted() {
    for stage in [
        doc! { "$set": { "x": { "$indexOfArray": ["$ids", NUMBER] } } },
        doc! { "$set": { "x": { "$indexOfArray": [[NUMBER], NUMBER, 0, 5] } } },
        doc! { "$set": { "x": { "$indexOfBytes": ["$a", TEXT, 1] } } },
        doc! { "$set": { "x": { "$indexOfCP": [NUMBER, NUMBER] } } },
        doc! { "$set": { "x": { "$round": [NUMBER, 2] }, "y": { "$substrCP": [NUMBER, 0, 2] } } },
        doc! { "$set": { "x": { "$arrayElemAt": [[NUMBER], 0] }, "y": { "$meta": TEXT } } },
        doc! { "$set": { "sortBy": { "price": NUMBER }, "x": { "$zip": [NUMBER] } } },
        doc! { "$documents": [{ "sortBy": { "price": NUMBER } }, { "a": TEXT }] },
        doc! { "$group": { "_id": null, "n": { "$sum": NUMBER } } },
        doc! { "$bucket": { "groupBy": "$a", "boundaries": [0, NUMBER], "default": TEXT } },
        doc! { "$densify": { "field": "a", "range": { "step": NUMBER, "bounds": [NUMBER, NUMBER] } } },
        doc! { "$densify": { "field": "a", "range": { "step": 1, "bounds": TEXT, "unit": TEXT } } },
        doc! { "$fill": { "output": { "a": { "value": NUMBER }, "b": { "method": TEXT } } } },
        doc! { "$setWindowFields": { "sortBy": { "a": 1 }, "output": {
        "x": { "$sum": "$a", "window": { "range": [-5, NUMBER], "unit": TEXT } } } } },
        doc! { "$geoNear": { "near": [NUMBER, 1], "distanceField": "d", "query": { "a": TEXT } } },
        doc! { "$lookup": { "from": "c", "let": { "v": TEXT }, "pipeline": [{ "$match": { "a": TEXT } }], "as": "x" } },
        doc! { "$search": { "moreLikeThis": { "like": { "path": TEXT, "index": TEXT } } } },
        doc! { "$search": { "text": { "query": TEXT, "path": "a" } } },
        doc! { "$changeStream": { "fullDocument": TEXT, "resumeAfter": { "_data": TEXT }, "x": TEXT } },
        doc! { "$listSessions": { "users": [{ "user": TEXT, "db": TEXT }] } },
        doc! { "$merge": { "into": "c", "whenMatched": TEXT } },
        doc! { "$set": { "x": { "$function": { "body": TEXT, "args": [NUMBER], "lang": "js" } } } },
    ] {
        assert_redacted(&doc! { "aggregate": "c", "pipeline": [stage], "cursor": {}, "$db": "d" });
    }
}

/// Seawall has no rule for the outer stages. So the strings in these filters and searches are
/// values, even if they begin with `$`, as paths do.
#[test]
fn filters_and_searches_inside_of_stages_without_a_rule_are_redacted() {
    let text = format!("${TEXT}");
    let text = text.as_str();
    for stage in [
        doc! { "$rankFusion": { "input": { "pipelines": { "a": [
        { "$match": { "x": text, "y": { "$in": [text] }, "$expr": { "$eq": ["$p", 1] } } },
        { "$search": { "text": { "query": text, "path": "p" },
            "sort": { "s": { "$meta": "searchScore" } } } },
        { "$limit": 5 }] } } } },
        doc! { "$scoreFusion": { "input": { "pipelines": { "a": [
        { "$vectorSearch": { "index": "i", "query": text, "filter": { "x": text } } }] } },
        "combination": { "expression": "$$a" } } },
        doc! { "$future": [[{ "$geoNear": { "query": { "x": text } } }]] },
        doc! { "$searchBeta": { "text": { "query": text, "path": "p" } } },
    ] {
        let original = doc! { "aggregate": "c", "pipeline": [stage], "cursor": {}, "$db": "d" };
        assert_redacted(&original);
        for mode in MODES {
            let redacted = command(mode, &original).to_vec().unwrap();
            assert_same_shape(&original.to_vec().unwrap(), &redacted);
        }
    }
}

/// Seawall has no rule for the outer stage. It must still keep the sort directions and limits: the
/// server would refuse other directions, and other limits would change the results of a replay.
#[test]
fn directions_and_limits_of_pipelines_inside_of_stages_without_a_rule_are_kept() {
    let stage = doc! { "$rankFusion": { "input": { "pipelines": { "a": [
    { "$sort": { "x": -1, "y": { "$meta": "textScore" } } }, { "$skip": 2 }, { "$limit": 5 }] } } } };
    let original = doc! { "aggregate": "c", "pipeline": [stage], "cursor": {}, "$db": "d" };
    for mode in MODES {
        assert_eq!(command(mode, &original), original);
    }
    let value = doc! { "$future": [{ "$sort": { "x": NUMBER, "y": TEXT } }, { "$limit": TEXT }] };
    assert_redacted(&doc! { "aggregate": "c", "pipeline": [value], "cursor": {}, "$db": "d" });
}

/// These documents and arrays contain only options, names, ids and times. A server or a driver
/// chose the ids and the times.
#[test]
fn redaction_keeps_documents_and_arrays_that_contain_no_user_data() {
    let binary = |subtype| {
        Bson::Binary(Binary {
            subtype,
            bytes: vec![7; 16],
        })
    };
    let time = Bson::Timestamp(Timestamp {
        time: 5,
        increment: 1,
    });
    let original = doc! {
        "create": "c", "timeseries": { "timeField": "t", "metaField": "m", "granularity": "hours" },
        "clusteredIndex": { "key": { "_id": 1 }, "unique": true, "name": "i" },
        "collation": { "locale": "en", "strength": 2 }, "validationLevel": "moderate",
        "changeStreamPreAndPostImages": { "enabled": true },
        "lsid": { "id": binary(BinarySubtype::Uuid), "uid": binary(BinarySubtype::Generic) },
        "$clusterTime": { "clusterTime": &time, "signature": {
            "hash": binary(BinarySubtype::Generic), "keyId": 9_i64 } },
        "readConcern": { "level": "snapshot", "atClusterTime": &time },
        "writeConcern": { "w": "majority", "j": true, "wtimeout": 500 },
        "$readPreference": { "mode": "nearest", "maxStalenessSeconds": 90 },
        "$client": { "driver": { "name": "n", "version": "1" }, "platform": "p" }, "$db": "d",
    };
    let indexes = doc! { "dropIndexes": "c", "index": ["a_1", "b_1"], "$db": "d" };
    let by_key = doc! { "dropIndexes": "c", "index": { "a": 1, "b": "hashed" }, "$db": "d" };
    let reduce = doc! { "mapReduce": "c", "out": { "merge": "o", "db": "e" }, "$db": "d" };
    let sessions = doc! { "endSessions": [{ "id": binary(BinarySubtype::Uuid) }], "$db": "admin" };
    for original in [original, indexes, by_key, reduce, sessions] {
        for mode in MODES {
            assert_eq!(command(mode, &original), original);
        }
    }
}

#[test]
fn redacted_error_replies_contain_no_user_data() {
    let original = doc! { "ok": 0.0, "code": 11000, "errmsg": TEXT, "errInfo": { "a": TEXT },
    "keyPattern": { "a": TEXT }, "keyValue": { "a": NUMBER },
    "writeErrors": [{ "code": 1, "errmsg": TEXT, "errInfo": { "a": NUMBER }, "keyPattern": { "a": TEXT } }],
    "writeConcernError": { "code": 1, "errmsg": TEXT, "errInfo": { "a": TEXT } } };
    let redacted = reply(&original);
    assert!(!redacted.values().any(has_sentinel), "{redacted}");
}

#[test]
fn a_redacted_reply_to_start_session_keeps_only_the_id_of_the_session() {
    let id = Bson::Binary(Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    });
    let original = doc! { "id": { "id": &id }, "timeoutMinutes": 30, "ok": 1.0 };
    assert_eq!(reply(&original).get("id"), original.get("id"));
    let other = doc! { "id": { "id": TEXT, "x": &id }, "ok": 1.0 };
    let redacted = reply(&other);
    let redacted = redacted.get_document("id").unwrap();
    assert_ne!(redacted.get("id"), Some(&Bson::from(TEXT)));
    assert_ne!(redacted.get("x"), Some(&id));
}

#[test]
fn a_redacted_reply_to_kill_cursors_keeps_the_ids_of_the_cursors() {
    let original = doc! {
        "cursorsKilled": [7_i64], "cursorsNotFound": [8_i64, 9_i64], "cursorsAlive": [10_i64],
        "cursorsUnknown": [], "ok": 1.0,
    };
    assert_eq!(reply(&original), original);
}
