//! Tests of the fingerprint rules that the published examples (the test vectors) do not cover.

use bson::{Bson, Document, doc};

use super::super::{
    Legacy, Query, ShapeId, describe, describe_legacy, fingerprint, fingerprint_legacy,
};
use super::{described, filter_shape, hashed, shape};
use seawall_command::CommandBytes;
use seawall_wire::Sequence;

#[test]
fn filters_have_the_expected_shape_texts() {
    let cases = [
        (doc! { "a": { "$eq": null } }, "{a:null}"),
        (
            doc! { "a": { "$gt": null, "$ne": Bson::Undefined } },
            "{a:{$gt:null,$ne:null}}",
        ),
        (
            doc! { "a": { "$exists": 1.0 }, "b": { "$exists": Bson::Null } },
            "{a:{$exists:true},b:{$exists:false}}",
        ),
        (doc! { "a": { "$ref": "c", "$id": 1 } }, "{a:{?}}"),
        (doc! { "a": { "$gt": 1, "$ref": "c", "$id": 1 } }, "{a:{?}}"),
        (doc! { "a": { "$ref": "c" } }, "{a:{$ref:?}}"),
        (doc! { "a": {} }, "{a:{?}}"),
        (doc! { "a": { "$gt": 1, "b": [1] } }, "{a:{$gt:?,b:[?]}}"),
        (
            doc! { "a": 1, "$and": [{ "a": { "$in": [1] } }, 5] },
            "{a:{$eq:?,$in:[?]}}",
        ),
        (
            doc! { "$and": [{ "$or": [{ "a": 1 }] }, { "$or": [{ "b": 1 }] }] },
            "{$or:[{a:?}],$or:[{b:?}]}",
        ),
        (doc! { "$and": 1, "$or": [] }, "{$and:?,$or:[]}"),
        (
            doc! { "$where": "f", "$comment": "c", "$jsonSchema": { "a": 1 } },
            "{$jsonSchema:?,$where:?}",
        ),
        (
            doc! { "a": { "$all": [{ "$elemMatch": { "$gt": 1 } }] } },
            "{a:{$all:[{$elemMatch:{$gt:?}}]}}",
        ),
        (
            doc! { "a": { "$elemMatch": { "$or": [{ "b": 1 }] } } },
            "{a:{$elemMatch:{$or:[{b:?}]}}}",
        ),
        (doc! { "a": { "$elemMatch": {} } }, "{a:{$elemMatch:{}}}"),
        (
            doc! { "a": { "$not": 1, "$elemMatch": 1 } },
            "{a:{$elemMatch:?,$not:?}}",
        ),
        (
            doc! { "a": { "$geoWithin": { "type": 1 } }, "b": { "$near": [1, 2] } },
            "{a:{$geoWithin:?},b:{$near:[?]}}",
        ),
        (
            doc! { "a": { "$regex": "x", "$eq": 1 } },
            "{a:{$eq:?,$regex:/?/}}",
        ),
        (doc! { "a": { "$regex": 5 } }, "{a:?}"),
        (
            doc! { "a": { "$not": { "$regex": "^x", "$options": "sm" } } },
            "{a:{$not:{$regex:/?/ms}}}",
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(filter_shape(filter.clone()), expected, "{filter}");
    }
}

#[test]
fn a_regex_is_printed_with_a_caret_only_if_it_has_a_literal_prefix() {
    let narrow = ["^a", "\\Aa", "^\\-", "^\\Qa?", "^ab*", "^é", "^a+", "^]"];
    let wide = [
        "a", "^", "^.", "^a?", "^a*", "^a{2}", "^a|b", "^\\d", "^\\", "^(a)", "^[a]", "^^", "^é*",
        "^\\-?", "^\\Qa|b", "",
    ];
    for pattern in narrow {
        assert_eq!(
            filter_shape(doc! { "a": { "$regex": pattern } }),
            "{a:/^?/}",
            "{pattern}"
        );
    }
    for pattern in wide {
        assert_eq!(
            filter_shape(doc! { "a": { "$regex": pattern } }),
            "{a:/?/}",
            "{pattern}"
        );
    }
}

#[test]
fn clauses_of_find_have_the_expected_shape_texts() {
    let decimal = |text: &str| text.parse::<bson::Decimal128>().unwrap();
    let cases = [
        (
            doc! { "find": "c", "filter": { "$comment": "x" }, "sort": {}, "hint": "" },
            "{}",
        ),
        (doc! { "find": "c", "limit": 0, "skip": Bson::Null }, "{}"),
        (
            doc! { "find": "c", "limit": -1.0, "skip": 1 },
            "{limit:1,skip:?}",
        ),
        (doc! { "find": "c", "limit": decimal("1.00") }, "{limit:1}"),
        (doc! { "find": "c", "limit": decimal("1E1") }, "{limit:?}"),
        (doc! { "find": "c", "limit": decimal("0E3") }, "{}"),
        (
            doc! { "find": "c", "limit": "1", "tailable": true },
            "{tailable:true}",
        ),
        (
            doc! { "find": "c", "min": { "b": 1, "a": 1 }, "max": { "a": 1 } },
            "{min:{b:?,a:?},max:{a:?}}",
        ),
        (
            doc! { "find": "c", "sort": { "a": "text", "b": "x", "$natural": decimal("-2") } },
            "{sort:{a:text,b:?,$natural:-1}}",
        ),
        (
            doc! { "find": "c", "sort": { "a": f64::NAN, "b": 0, "c": { "$meta": "x" } } },
            "{sort:{a:?,b:?,c:{$meta:?}}}",
        ),
        (
            doc! { "find": "c", "collation": { "locale": "en US", "strength": -1i64, "x": 1.5 } },
            "{collation:{locale:\"en US\",strength:-1,x:?}}",
        ),
        (
            doc! { "find": "c", "collation": { "locale": "x".repeat(33), "b": i64::MIN } },
            "{collation:{b:-9223372036854775808,locale:?}}",
        ),
        (
            doc! { "find": "c", "projection": { "a": { "$slice": [1, 2] }, "b": { "$slice": 1 } } },
            "{projection:{a:{$slice:[?]},b:{$slice:?}}}",
        ),
        (
            doc! {
                "find": "c",
                "projection": { "a": { "$elemMatch": { "x": 1 } }, "b": { "c": 0.0 } },
            },
            "{projection:{a:{$elemMatch:{x:?}},b:{c:0}}}",
        ),
        (
            doc! { "find": "c", "projection": { "a": "$b", "c": {}, "d": { "$add": [1, 2] } } },
            "{projection:{a:$b,c:{},d:{$add:[?]}}}",
        ),
    ];
    for (command, expected) in cases {
        assert_eq!(shape(&command), expected, "{command}");
    }
}

#[test]
fn clauses_of_commands_other_than_find_have_the_expected_shape_texts() {
    let cases = [
        (doc! { "aggregate": "c" }, "{pipeline:[]}"),
        (doc! { "distinct": "c" }, "{key:?}"),
        (
            doc! { "mapReduce": "c", "map": "f", "query": { "a": 1 }, "limit": 5 },
            "{filter:{a:?},limit:?}",
        ),
        (
            doc! {
                "delete": "c",
                "deletes": [{ "q": {}, "limit": 0 }, { "q": { "a": 1 }, "limit": 1.0 }],
            },
            "{deletes:[{filter:{a:?}},{multi:true}]}",
        ),
        (
            doc! { "update": "c", "updates": [{ "q": {}, "u": {} }, 5] },
            "{updates:[{update:{?}}]}",
        ),
        (doc! { "update": "c", "updates": [] }, "{}"),
        (
            doc! { "findAndModify": "c", "remove": true, "fields": { "a": 1 } },
            "{projection:{a:1},remove:true}",
        ),
        (
            doc! {
                "createIndexes": "c",
                "indexes": [{ "key": { "$**": 1 }, "expireAfterSeconds": 0, "sparse": 1 }],
            },
            "{indexes:[{key:{$?:1},sparse:true,expireAfterSeconds:?}]}",
        ),
    ];
    for (command, expected) in cases {
        assert_eq!(shape(&command), expected, "{command}");
    }
}

#[test]
fn updates_have_the_expected_shape_texts() {
    let cases = [
        (
            doc! { "$push": { "a": { "$each": [1], "$slice": 2 }, "b": 1 } },
            "{$push:{a:{$each:?,$slice:?},b:?}}",
        ),
        (
            doc! { "$addToSet": { "a": { "k": 1 } }, "$rename": 5 },
            "{$addToSet:{a:?},$rename:?}",
        ),
        (
            doc! { "$pull": { "a": { "$gt": 1 }, "b": { "c": 1 }, "d": null } },
            "{$pull:{a:{$gt:?},b:{c:?},d:?}}",
        ),
    ];
    for (update, expected) in cases {
        let command = doc! { "findAndModify": "c", "update": update, "$db": "d" };
        assert_eq!(shape(&command), format!("{{update:{expected}}}"));
    }
}

fn assert_stage(stage: Document, expected: &str) {
    let command = doc! { "aggregate": "c", "pipeline": [stage], "$db": "d" };
    assert_eq!(shape(&command), format!("{{pipeline:[{expected}]}}"));
}

#[test]
fn pipeline_stages_that_read_or_write_another_collection_have_the_expected_shape_texts() {
    let cases = [
        (
            doc! { "$lookup": {
                "from": { "db": "x", "coll": 1 },
                "let": { "v": "$a" },
                "pipeline": [{ "$match": {} }],
            } },
            "{$lookup:{from:{coll:?,db:x},let:{v:$a},pipeline:[{$match:{}}]}}",
        ),
        (doc! { "$unionWith": "other" }, "{$unionWith:{coll:other}}"),
        (
            doc! { "$out": { "db": "x", "coll": "y", "timeseries": { "timeField": "t" } } },
            "{$out:{coll:y,db:x,timeseries:?}}",
        ),
        (
            doc! { "$merge": {
                "into": "x",
                "on": ["b", "a"],
                "whenMatched": [{ "$set": { "a": 1 } }],
                "whenNotMatched": "discard",
            } },
            "{$merge:{into:x,on:[a,b],whenMatched:[{$set:{a:?}}],whenNotMatched:discard}}",
        ),
        (
            doc! { "$merge": { "into": "x", "whenMatched": "secret" } },
            "{$merge:{into:x,whenMatched:?}}",
        ),
        (
            doc! { "$graphLookup": {
                "from": "f",
                "startWith": "$a",
                "connectToField": "c",
                "restrictSearchWithMatch": { "x": 1 },
            } },
            "{$graphLookup:{connectToField:c,from:f,restrictSearchWithMatch:{x:?},startWith:$a}}",
        ),
    ];
    for (stage, expected) in cases {
        assert_stage(stage, expected);
    }
}

#[test]
fn strings_of_filters_and_searches_inside_of_stages_without_a_rule_are_values() {
    let cases = [
        (
            doc! { "$rankFusion": { "input": { "pipelines": { "p": [
                { "$match": { "x": "$5", "y": { "$gt": "$v" }, "$expr": { "$eq": ["$a", "$b"] } } },
                { "$sort": { "t": -1 } },
                { "$project": { "z": "$a" } },
            ] } } } },
            "{$rankFusion:{input:{pipelines:{p:[\
             {$match:{$expr:{$eq:[$a,$b]},x:?,y:{$gt:?}}},{$sort:{t:?}},{$project:{z:$a}}]}}}}",
        ),
        (
            doc! { "$scoreFusion": {
                "input": { "pipelines": { "p": [{ "$vectorSearch": { "query": "$v" } }] } },
                "combination": { "expression": "$$p" },
            } },
            "{$scoreFusion:{combination:{expression:$$p},\
             input:{pipelines:{p:[{$vectorSearch:{query:?}}]}}}}",
        ),
        (
            doc! { "$searchBeta": { "text": { "path": "a", "query": "$v" } } },
            "{$searchBeta:{text:{path:?,query:?}}}",
        ),
        (
            doc! { "$future": [[{ "$search": { "text": { "query": "$v" } } }], "$a"] },
            "{$future:[[{$search:{text:{query:?}}}],$a]}",
        ),
    ];
    for (stage, expected) in cases {
        assert_stage(stage, expected);
    }
}

#[test]
fn pipeline_stages_that_use_no_other_collection_have_the_expected_shape_texts() {
    let cases = [
        (doc! { "$unset": "a" }, "{$unset:[a]}"),
        (
            doc! { "$unwind": { "path": "$a", "includeArrayIndex": "i" } },
            "{$unwind:{includeArrayIndex:i,path:$a}}",
        ),
        (doc! { "$sample": { "size": 5 } }, "{$sample:{size:?}}"),
        (doc! { "$documents": [{ "a": 1 }] }, "{$documents:[?]}"),
        (doc! { "$match": 1 }, "{$match:?}"),
        (doc! { "$sort": { "b": 1, "a": -1 } }, "{$sort:{b:1,a:-1}}"),
        (doc! { "$match": {}, "$sort": {} }, "?"),
        (
            doc! { "$search": {
                "index": "i",
                "text": { "path": ["a", "b"], "query": "q" },
                "compound": { "must": [{ "range": { "path": "x", "gt": 1 } }] },
                "w": ["x"],
            } },
            "{$search:{compound:{must:[{range:{gt:?,path:x}}]},index:i,\
             text:{path:[a,b],query:?},w:[?]}}",
        ),
        (
            doc! { "$search": { "moreLikeThis": { "like": { "path": "/home/ann" } } } },
            "{$search:{moreLikeThis:{like:{?}}}}",
        ),
        (
            doc! { "$search": { "moreLikeThis": { "like": [{ "index": "ann" }] } } },
            "{$search:{moreLikeThis:{like:[?]}}}",
        ),
        (
            doc! { "$setWindowFields": {
                "sortBy": { "b": 1, "a": 1 },
                "output": { "n": { "$sum": 1 } },
            } },
            "{$setWindowFields:{output:{n:{$sum:?}},sortBy:{b:1,a:1}}}",
        ),
        (
            doc! { "$group": {
                "_id": { "$literal": "x" },
                "t": { "$topN": { "sortBy": { "b": 1, "a": 1 }, "n": 3 } },
            } },
            "{$group:{_id:?,t:{$topN:{n:?,sortBy:{b:1,a:1}}}}}",
        ),
        (
            doc! { "$group": { "_id": "$a", "f": { "$accumulator": { "init": "f" } } } },
            "{$group:{_id:$a,f:{$accumulator:?}}}",
        ),
        (
            doc! { "$project": { "s": { "$add": ["$a", 1, 2, "$a", "$a", []] } } },
            "{$project:{s:{$add:[$a,?,$a,[?]]}}}",
        ),
        (
            doc! { "$densify": { "field": "t", "range": { "step": 1 } } },
            "{$densify:{field:t,range:?}}",
        ),
        (doc! { "$facet": { "x": 5 } }, "{$facet:{x:?}}"),
    ];
    for (stage, expected) in cases {
        assert_stage(stage, expected);
    }
}

#[test]
fn a_fingerprint_has_the_operation_database_and_collection_of_the_command() {
    let cases = [
        (
            doc! { "aggregate": 1, "pipeline": [], "$db": "d" },
            ("aggregate", "d", "$cmd.aggregate"),
        ),
        (doc! { "find": 5, "$db": "d" }, ("find", "d", "")),
        (
            doc! { "collstats": "c", "$db": "d" },
            ("collStats", "d", "c"),
        ),
        (doc! { "ping": "c", "$db": "d" }, ("ping", "d", "")),
        (doc! { "find": "c" }, ("find", "", "c")),
        (
            doc! { "explain": { "count": "c" }, "$db": "d" },
            ("explain", "d", "c"),
        ),
        (
            doc! { "explain": { "count": "c", "$db": "e" }, "$db": "d" },
            ("explain", "e", "c"),
        ),
        (doc! {}, ("<unknown>", "", "")),
        (doc! { "Find": "c", "$db": "d" }, ("<unknown>", "d", "")),
        // The table of commands marks `copydb` as `uncounted`, so its name is `<unknown>` here.
        (doc! { "copydb": 1, "$db": "d" }, ("<unknown>", "d", "")),
    ];
    for (command, (op, db, collection)) in cases {
        let text = described(&command);
        assert_eq!(
            (text.op, text.db.as_str(), text.collection.as_str()),
            (op, db, collection)
        );
    }
}

#[test]
fn shape_of_explain_contains_the_shape_of_the_explained_command() {
    let explain = doc! { "explain": { "find": "c", "filter": { "a": 1 } }, "$db": "d" };
    assert_eq!(shape(&explain), "{find:{filter:{a:?}}}");
    let aggregate = doc! { "aggregate": "c", "pipeline": [], "explain": true, "$db": "d" };
    assert_eq!(described(&aggregate).op, "explain");
    assert_eq!(shape(&aggregate), "{aggregate:{pipeline:[]}}");
    assert_eq!(shape(&doc! { "explain": 5, "$db": "d" }), "{}");
}

#[test]
fn shape_of_a_bulk_write_to_several_namespaces_contains_the_namespaces() {
    let command = doc! {
        "bulkWrite": 1,
        "ops": [{ "insert": 0 }, { "insert": 1 }, { "insert": 9 }, { "shrug": 1 }],
        "nsInfo": [{ "ns": "a.b" }, { "ns": "a.c d" }],
        "$db": "admin",
    };
    let text = described(&command);
    assert_eq!(
        (text.db.as_str(), text.collection.as_str()),
        ("admin", "$cmd.bulkWrite")
    );
    let expected = "{ops:[?,{ns:\"a.c d\",insert:{}},{ns:?,insert:{}},{ns:a.b,insert:{}}]}";
    assert_eq!(text.shape, expected);
}

#[test]
fn document_sequences_give_the_same_shape_as_arrays() {
    let statements = [
        doc! { "q": { "a": 1 }, "u": { "$set": { "b": 1 } } },
        doc! { "q": {} },
    ];
    let whole = doc! { "update": "c", "$db": "d", "updates": statements.to_vec() };
    let body = doc! { "update": "c", "$db": "d" }.to_vec().unwrap();
    let documents: Vec<u8> = statements
        .iter()
        .flat_map(|s| s.to_vec().unwrap())
        .collect();
    let sequences = [
        Sequence {
            identifier: b"other",
            documents: &[],
        },
        Sequence {
            identifier: b"updates",
            documents: &documents,
        },
    ];
    let input = CommandBytes {
        body: &body,
        sequences: &sequences,
    };
    assert_eq!(describe(&input), described(&whole));
    let print = fingerprint(&input);
    assert_eq!((print.shape, print.coarse), hashed(&whole));
}

fn query_text(namespace: &[u8], query: Document, flags: u32, to_return: i32) -> String {
    let (query, projection) = (query.to_vec().unwrap(), doc! { "p": 1 }.to_vec().unwrap());
    let message = Legacy::Query(Query {
        flags,
        namespace,
        number_to_skip: to_return,
        number_to_return: to_return,
        query: &query,
        return_fields_selector: &projection,
    });
    let text = describe_legacy(&message);
    assert_eq!(fingerprint_legacy(&message).op, text.op);
    format!("{} {} {} {}", text.op, text.db, text.collection, text.shape)
}

#[test]
fn op_query_messages_are_printed_as_finds_or_commands() {
    let wrapped = doc! { "$query": { "a": 1 }, "$hint": "h", "$max": { "a": 1 }, "$explain": 1 };
    let by_driver = doc! { "$readPreference": 1, "$query": { "count": "c" } };
    let cases = [
        (
            query_text(b"d.c.x", doc! { "a": 1 }, 2, 0),
            "find d c.x {filter:{a:?},projection:{p:1},tailable:true}",
        ),
        (
            query_text(b"d.c", wrapped, 0, -5),
            "explain d c {find:{filter:{a:?},projection:{p:1},hint:h,max:{a:?},limit:?,skip:?}}",
        ),
        (
            query_text(b"d.c", doc! { "query": 1 }, 0, 1),
            "find d c {filter:{query:?},projection:{p:1},limit:1,skip:?}",
        ),
        (
            query_text(b"d.$cmd", doc! { "count": "c" }, 0, -1),
            "count d c {}",
        ),
        (query_text(b"d.$cmd", by_driver, 0, -1), "count d c {}"),
        (
            query_text(b"d.$cmd", doc! { "query": { "ping": 1 } }, 0, -1),
            "ping d  {}",
        ),
    ];
    for (printed, expected) in cases {
        assert_eq!(printed, expected);
    }
}

#[test]
fn legacy_messages_except_op_query_have_the_shapes_of_the_commands_that_replaced_them() {
    let selector = doc! { "a": 1 }.to_vec().unwrap();
    let update = doc! { "$set": { "b": 1 } }.to_vec().unwrap();
    let (namespace, selector, update) = (b"d.c", &selector, &update);
    let delete = |limit| {
        doc! { "delete": "c", "deletes": [{ "q": { "a": 1 }, "limit": limit }], "$db": "d" }
    };
    let updated = doc! {
        "update": "c",
        "updates": [{
            "q": { "a": 1 },
            "u": { "$set": { "b": 1 } },
            "multi": true,
            "upsert": true,
        }],
        "$db": "d",
    };
    let get_more = doc! { "getMore": 1i64, "collection": "c", "$db": "d" };
    let messages = [
        (
            Legacy::Insert { namespace },
            doc! { "insert": "c", "$db": "d" },
        ),
        (
            Legacy::Update {
                namespace,
                flags: 3,
                selector,
                update,
            },
            updated,
        ),
        (
            Legacy::Delete {
                namespace,
                flags: 1,
                selector,
            },
            delete(1),
        ),
        (
            Legacy::Delete {
                namespace,
                flags: 0,
                selector,
            },
            delete(0),
        ),
        (Legacy::GetMore { namespace }, get_more),
        (Legacy::KillCursors, doc! { "killCursors": 1 }),
    ];
    for (message, command) in messages {
        assert_eq!(describe_legacy(&message), described(&command));
        let print = fingerprint_legacy(&message);
        assert_eq!((print.shape, print.coarse), hashed(&command));
    }
}

/// Hashes are stored, and compared between releases. They must not change while the version of the
/// rules is `fp1`.
#[test]
fn shape_hashes_never_change_between_releases() {
    let cases = [
        (doc! { "ping": 1 }, "1d034ff9760613ee", "1d034ff9760613ee"),
        (
            doc! { "find": "orders", "filter": { "_id": 1 }, "$db": "shop" },
            "83ca69d6e70f0ac4",
            "83ca69d6e70f0ac4",
        ),
        (
            doc! {
                "find": "a collection with a long name",
                "filter": { "$or": [{ "a.0.b": 1 }, { "x y": { "$gt": 1, "$lt": 2 } }] },
                "sort": { "b": -1, "a": 1 },
                "projection": { "a": 1 },
                "$db": "shop",
            },
            "236757c08976e248",
            "5dfabe4a774e3f95",
        ),
    ];
    for (command, fine, coarse) in cases {
        let (shape, coarse_shape) = hashed(&command);
        assert_eq!(
            (shape.to_string(), coarse_shape.to_string()),
            (fine.into(), coarse.into())
        );
    }
}

#[test]
fn shape_ids_parse_from_their_hex_text() {
    let (shape, _) = hashed(&doc! { "ping": 1 });
    assert_eq!(ShapeId::from_hex(&shape.to_string()), Some(shape));
    assert_eq!(shape.to_string(), format!("{:016x}", shape.as_u64()));
    for hex in [
        "",
        "12",
        "+123456789abcdef",
        "00000000000000000",
        "g000000000000000",
    ] {
        assert_eq!(ShapeId::from_hex(hex), None, "{hex}");
    }
}
