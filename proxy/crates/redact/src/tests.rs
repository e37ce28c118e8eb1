#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "tests end with a panic"
)]

use std::cmp::Ordering;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bson::{
    Binary, Bson, DateTime, Decimal128, Document, RawDocument, Regex, doc, oid::ObjectId,
    raw::CString, spec::BinarySubtype,
};
use proptest::prelude::*;
use seawall_capture::record::{self, Content, Header, OmissionReason, Redaction};
use seawall_command::{CommandBytes, ReplyForm};
use seawall_shape::{describe, fingerprint};
use seawall_wire::{CHECKSUM_PRESENT, OpMsg, encode_op_msg_like, encode_request};

use crate::{Mode, Records, RedactError, Redactor};

#[path = "../../shape/src/tests/corpus.rs"]
mod grammar;
mod values;

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

fn redactor(mode: Mode) -> Redactor {
    Redactor::new(KEY, mode)
}

fn redacted(mode: Mode, document: &Document) -> Document {
    let bytes = redactor(mode)
        .document(&document.to_vec().unwrap())
        .unwrap();
    Document::from_reader(bytes.as_slice()).unwrap()
}

fn value(mode: Mode, value: impl Into<Bson>) -> Bson {
    redacted(mode, &doc! { "v": value.into() })
        .get("v")
        .unwrap()
        .clone()
}

fn command(mode: Mode, command: &Document) -> Document {
    let message = encode_request(1, &command.to_vec().unwrap());
    let message = redactor(mode).command(&message).unwrap();
    let body = OpMsg::parse(&message).unwrap().body.to_vec();
    Document::from_reader(body.as_slice()).unwrap()
}

fn reply(document: &Document) -> Document {
    let message = encode_request(1, &document.to_vec().unwrap());
    let message = redactor(Mode::Ordered)
        .reply(ReplyForm::Plain, &message)
        .unwrap();
    let body = OpMsg::parse(&message).unwrap().body.to_vec();
    Document::from_reader(body.as_slice()).unwrap()
}

fn text(mode: Mode, string: &str) -> String {
    value(mode, string).as_str().unwrap().to_owned()
}

fn regex(pattern: &str, options: &str) -> Bson {
    Bson::RegularExpression(Regex {
        pattern: CString::try_from(pattern).unwrap(),
        options: CString::try_from(options).unwrap(),
    })
}

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse::<Decimal128>().unwrap())
}

/// Converts a number of any BSON type to a float. So numbers of different types can be compared.
fn number(value: &Bson) -> f64 {
    match value {
        Bson::Int32(number) => f64::from(*number),
        Bson::Int64(number) => *number as f64,
        Bson::Double(number) => *number,
        Bson::Decimal128(number) => number.to_string().parse().unwrap(),
        other => panic!("{other:?} is not a number"),
    }
}

const MODES: [Mode; 2] = [Mode::Equality, Mode::Ordered];

#[test]
fn equal_numbers_of_different_types_have_equal_pseudonyms_in_the_ordered_mode() {
    for one in [1, 2, 7, 1_000_000, -1, -4096] {
        let int = number(&value(Mode::Ordered, one));
        assert_ne!(int, f64::from(one));
        for other in [
            Bson::Int64(one.into()),
            Bson::Double(one.into()),
            decimal(&one.to_string()),
            decimal(&format!("{one}.000")),
        ] {
            let other = value(Mode::Ordered, other);
            assert_eq!(number(&other), int, "{one} {other:?}");
        }
    }
}

#[test]
fn a_number_keeps_its_type_if_its_pseudonym_fits_this_type() {
    assert!(matches!(value(Mode::Ordered, 1000), Bson::Int32(_)));
    assert!(matches!(value(Mode::Ordered, i32::MAX), Bson::Int64(_)));
    assert!(matches!(value(Mode::Ordered, 1_i64 << 50), Bson::Int64(_)));
    assert!(matches!(
        value(Mode::Ordered, i64::MAX),
        Bson::Decimal128(_)
    ));
    assert!(matches!(value(Mode::Ordered, 1.5), Bson::Double(_)));
    assert!(matches!(
        value(Mode::Ordered, decimal("1.5")),
        Bson::Decimal128(_)
    ));
}

#[test]
fn zero_and_infinity_are_unchanged_and_extreme_numbers_keep_their_sign() {
    for special in [0.0, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(value(Mode::Ordered, special), Bson::Double(special));
    }
    assert_eq!(value(Mode::Ordered, 0), Bson::Int32(0));
    for extreme in [f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, -5e-324] {
        let pseudonym = number(&value(Mode::Ordered, extreme));
        assert!(pseudonym.is_finite() && pseudonym != 0.0);
        assert_eq!(pseudonym.is_sign_negative(), extreme.is_sign_negative());
    }
    for text in ["1E+6000", "1E-6000", "NaN", "Infinity", "0E+3", "-1E-40"] {
        value(Mode::Ordered, decimal(text));
        value(Mode::Equality, decimal(text));
    }
}

/// The data of a binary of subtype 2 begins with its length. `bson` refuses a wrong length.
#[test]
fn redacted_binaries_of_subtype_2_keep_the_length_in_their_data() {
    let original = Binary {
        subtype: BinarySubtype::BinaryOld,
        bytes: vec![1, 2, 3, 4, 5],
    };
    for mode in MODES {
        let Bson::Binary(redacted) = value(mode, original.clone()) else {
            panic!("not a binary");
        };
        assert_eq!(redacted.subtype, original.subtype);
        assert!(redacted.bytes.len() == 5 && redacted.bytes != original.bytes);
    }
}

#[test]
fn the_largest_binaries_and_patterns_are_redacted_in_linear_time() {
    // If the time were quadratic, the binary alone would take an hour.
    let bytes = vec![7; 15 << 20];
    let binary = |bytes| Binary {
        subtype: BinarySubtype::Generic,
        bytes,
    };
    let Bson::Binary(redacted) = value(Mode::Equality, binary(bytes.clone())) else {
        panic!("not a binary");
    };
    assert!(redacted.bytes.len() == bytes.len() && redacted.bytes != bytes);
    let pattern = "a|".repeat(1 << 20);
    let Bson::RegularExpression(redacted) = value(Mode::Equality, regex(&pattern, "")) else {
        panic!("not a pattern");
    };
    assert_eq!(redacted.pattern.as_str().len(), pattern.len());
}

#[test]
fn pseudonym_of_a_prefix_regex_matches_the_pseudonyms_of_strings_with_this_prefix() {
    let Bson::RegularExpression(pattern) = value(Mode::Ordered, regex("^abc.*x", "")) else {
        panic!("not a pattern");
    };
    let unescaped = pattern.pattern.as_str().replace('\\', "");
    let prefix = unescaped.strip_prefix('^').unwrap();
    let pseudonym = text(Mode::Ordered, "abcdef");
    assert!(
        pseudonym.replace('\\', "").starts_with(prefix),
        "{prefix} {pseudonym}"
    );
    let Bson::RegularExpression(other) = value(Mode::Ordered, regex("secret", "i")) else {
        panic!("not a pattern");
    };
    assert_eq!(other.pattern.as_str().len(), 6);
    assert_ne!(other.pattern.as_str(), "secret");
    assert_eq!(other.options.as_str(), "i");
}

#[test]
fn redacted_commands_keep_everything_that_is_not_a_value() {
    let find = doc! {
        "find": "orders", "filter": {
            "status": { "$in": ["new", "paid"] }, "n": { "$exists": true, "$type": "string", "$size": 3 },
            "$expr": { "$gt": ["$total", "$$limit"] }, "x": null, "flag": true,
            "items": { "$elemMatch": { "sku": "abc" } },
        },
        "projection": { "a": 1, "b": { "$slice": 5 } }, "sort": { "a": -1 }, "limit": 7, "skip": 2,
        "hint": "a_1", "batchSize": 10, "collation": { "locale": "en" }, "comment": "by alice",
        "lsid": { "id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] } }, "$db": "shop", "readConcern": { "level": "majority" },
    };
    for mode in MODES {
        let redacted = command(mode, &find);
        for kept in [
            "find",
            "projection",
            "sort",
            "limit",
            "skip",
            "hint",
            "batchSize",
            "collation",
            "lsid",
            "$db",
            "readConcern",
        ] {
            assert_eq!(redacted.get(kept), find.get(kept), "{kept}");
        }
        assert_ne!(redacted.get("comment"), find.get("comment"));
        let filter = redacted.get_document("filter").unwrap();
        let original = find.get_document("filter").unwrap();
        for kept in ["n", "$expr", "x", "flag"] {
            assert_eq!(filter.get(kept), original.get(kept), "{kept}");
        }
        let listed = filter
            .get_document("status")
            .unwrap()
            .get_array("$in")
            .unwrap();
        assert_eq!(listed, &[value(mode, "new"), value(mode, "paid")]);
        let inner = filter.get_document("items").unwrap();
        let sku = inner
            .get_document("$elemMatch")
            .unwrap()
            .get("sku")
            .unwrap();
        assert_eq!(sku, &value(mode, "abc"));
    }
}

#[test]
fn only_the_valid_options_of_a_regular_expression_are_kept() {
    for mode in MODES {
        for (options, expected) in [("", ""), ("im", "im"), ("a text: mix", "imx")] {
            let Bson::RegularExpression(redacted) = value(mode, regex("a", options)) else {
                panic!("expected a regular expression");
            };
            assert_eq!(redacted.options.as_str(), expected);
        }
    }
}

#[test]
fn redacted_pipeline_stages_keep_paths_and_options() {
    let aggregate = doc! { "aggregate": "c", "pipeline": [
        { "$match": { "a": "secret" } },
        { "$lookup": { "from": "o", "localField": "a", "foreignField": "b", "as": "j" } },
        { "$group": { "_id": { "$dateToString": { "format": "%Y", "date": "$t" } }, "n": { "$sum": 1 } } },
        { "$addFields": { "x": { "$concat": ["$a", "secret"] }, "y": { "$arrayElemAt": ["$l", 3] } } },
        { "$sort": { "n": -1 } }, { "$limit": 5 }, { "$count": "total" },
        { "$merge": { "into": "out", "whenMatched": "replace" } },
    ], "cursor": { "batchSize": 5 }, "$db": "d" };
    for mode in MODES {
        let redacted = command(mode, &aggregate);
        let secret = text(mode, "secret");
        let mut expected = aggregate.clone();
        let stages = expected.get_array_mut("pipeline").unwrap();
        stages[0] = doc! { "$match": { "a": &secret } }.into();
        stages[3] = doc! { "$addFields": {
        "x": { "$concat": ["$a", &secret] }, "y": { "$arrayElemAt": ["$l", 3] } } }
        .into();
        assert_eq!(redacted, expected);
    }
}

/// Servers refuse other values of these options.
#[test]
fn redacted_operators_keep_ranks_limits_and_offsets() {
    let aggregate = doc! { "aggregate": "c", "pipeline": [
        { "$group": { "_id": null, "p": { "$percentile": {
            "input": "$a", "p": [0.5, 0.95], "method": "approximate" } } } },
        { "$project": { "f": { "$filter": { "input": "$l", "cond": "$$this", "limit": 3 } } } },
        { "$setWindowFields": { "output": { "before": { "$shift": {
            "output": "$a", "by": -2 } } } } },
    ], "$db": "d" };
    for mode in MODES {
        assert_eq!(command(mode, &aggregate), aggregate);
    }
}

#[test]
fn writes_and_their_document_sequences_are_redacted() {
    let rows = [
        doc! { "_id": 1, "name": "alice" },
        doc! { "_id": 2, "name": "bob" },
    ];
    let body = doc! { "insert": "c", "ordered": true, "$db": "d" };
    let mut section = b"documents\0".to_vec();
    rows.iter()
        .for_each(|row| section.extend(row.to_vec().unwrap()));
    let mut message = encode_request(1, &body.to_vec().unwrap());
    message.push(1);
    message.extend(u32::try_from(section.len() + 4).unwrap().to_le_bytes());
    message.extend(section);
    let length = u32::try_from(message.len()).unwrap();
    message[..4].copy_from_slice(&length.to_le_bytes());
    for mode in MODES {
        let redacted = redactor(mode).command(&message).unwrap();
        let parsed = OpMsg::parse(&redacted).unwrap();
        let sequence = parsed.sequences().next().unwrap();
        let mut documents = sequence.documents;
        for row in &rows {
            let document = Document::from_reader(&mut documents).unwrap();
            assert_eq!(document, self::redacted(mode, row));
        }
        assert!(documents.is_empty());
        let update = doc! { "update": "c", "updates": [{
        "q": { "_id": 1 }, "u": { "$set": { "name": "alice" }, "$unset": { "x": "" } },
        "multi": false, "upsert": true, "c": { "v": "alice" } }], "$db": "d" };
        let redacted = command(mode, &update);
        let statement = redacted.get_array("updates").unwrap()[0]
            .as_document()
            .unwrap();
        assert!(statement.get_bool("upsert").unwrap());
        let set = statement
            .get_document("u")
            .unwrap()
            .get_document("$set")
            .unwrap();
        assert_eq!(set.get("name").unwrap(), &value(mode, "alice"));
        assert!(!redacted.to_string().contains("alice"));
    }
}

#[test]
fn redacted_replies_keep_counts_and_codes_but_no_original_values() {
    let row = doc! { "_id": 7, "name": "alice" };
    let original = doc! {
        "cursor": { "firstBatch": [row.clone()], "id": 99_i64, "ns": "d.c" }, "n": 3, "ok": 1.0,
        "writeErrors": [{ "index": 0, "code": 11000, "errmsg": "dup key: alice",
            "keyPattern": { "name": 1 }, "keyValue": { "name": "alice" } }],
        "upserted": [{ "index": 2, "_id": "alice" }], "value": { "name": "alice" },
    };
    let redacted = reply(&original);
    let cursor = redacted.get_document("cursor").unwrap();
    assert_eq!(cursor.get_i64("id").unwrap(), 99);
    assert_eq!(cursor.get_str("ns").unwrap(), "d.c");
    let batch = cursor.get_array("firstBatch").unwrap();
    assert_eq!(
        batch[0].as_document().unwrap(),
        &self::redacted(Mode::Ordered, &row)
    );
    assert_eq!(
        (
            redacted.get_i32("n").unwrap(),
            redacted.get_f64("ok").unwrap()
        ),
        (3, 1.0)
    );
    let error = redacted.get_array("writeErrors").unwrap()[0]
        .as_document()
        .unwrap();
    assert_eq!(
        (error.get_i32("code").unwrap(), error.get("errmsg")),
        (11000, None)
    );
    assert!(!redacted.to_string().contains("alice"), "{redacted}");
}

#[test]
fn a_redacted_message_has_a_valid_checksum() {
    let body = doc! { "find": "c", "filter": { "a": "b" }, "$db": "d" }
        .to_vec()
        .unwrap();
    let message = encode_op_msg_like(CHECKSUM_PRESENT, 1, 0, &body);
    let redacted = redactor(Mode::Ordered).command(&message).unwrap();
    assert!(OpMsg::parse(&redacted).unwrap().has_checksum());
}

#[test]
fn invalid_bytes_are_reported_as_malformed() {
    let redactor = redactor(Mode::Ordered);
    assert_eq!(
        redactor.document(b"\x06\0\0\0\x99\0"),
        Err(RedactError::Malformed)
    );
    assert_eq!(redactor.command(b"too short"), Err(RedactError::Malformed));
}

#[test]
fn a_document_that_is_nested_too_deeply_is_reported_as_too_deep() {
    let redactor = redactor(Mode::Ordered);
    let deep = (0..300).fold(doc! {}, |inner, _| doc! { "a": inner });
    assert_eq!(
        redactor.document(&deep.to_vec().unwrap()),
        Err(RedactError::TooDeep)
    );
}

#[test]
fn another_key_or_mode_gives_other_pseudonyms() {
    let other = Redactor::new(b"another key", Mode::Ordered);
    let document = doc! { "a": "a long string", "n": 123_456 }
        .to_vec()
        .unwrap();
    let one = redactor(Mode::Ordered).document(&document).unwrap();
    assert_ne!(one, other.document(&document).unwrap());
    assert_ne!(one, redactor(Mode::Equality).document(&document).unwrap());
    assert_eq!(one, redactor(Mode::Ordered).document(&document).unwrap());
    let first = format!("{other:?}");
    assert!(!first.contains("another"), "{first}");
}

/// The published commands are the test vectors for fingerprints.
#[test]
fn redaction_keeps_the_fingerprints_of_all_published_commands() {
    let file = include_str!("../../shape/testdata/fingerprint-vectors.json");
    let file: serde_json::Value = serde_json::from_str(file).unwrap();
    let mut count = 0;
    for vector in file["vectors"].as_array().unwrap() {
        let Some(body) = vector["bson"].as_str() else {
            continue;
        };
        let body = STANDARD.decode(body).unwrap();
        count += 1;
        for mode in MODES {
            let redacted = redactor(mode).command(&encode_request(1, &body)).unwrap();
            assert_same_shape(&body, OpMsg::parse(&redacted).unwrap().body);
        }
    }
    assert!(count > 50, "{count} commands");
}

fn assert_same_shape(one: &[u8], other: &[u8]) {
    let (one_command, other_command) = (CommandBytes::of_body(one), CommandBytes::of_body(other));
    let (before, after) = (describe(&one_command), describe(&other_command));
    let printed = |body| RawDocument::from_bytes(body).map(|d| format!("{d:?}"));
    assert_eq!(before, after, "{:?}\n{:?}", printed(one), printed(other));
    let (before, after) = (fingerprint(&one_command), fingerprint(&other_command));
    assert_eq!(before.shape, after.shape);
    assert_eq!(before.coarse, after.coarse);
}

#[test]
fn commands_and_replies_that_cannot_be_redacted_are_omitted_from_a_capture() {
    let mut records = Records::new(redactor(Mode::Ordered));
    let mut header = Header::default();
    records.mark(&mut header);
    assert_eq!(header.redaction(), Redaction::Ordered);
    let message = |document: &Document| encode_request(1, &document.to_vec().unwrap());
    let command = |operation, message: Vec<u8>| {
        Content::Command(record::Command {
            client: 1,
            operation,
            at_us: 5,
            message: message.into(),
        })
    };
    let reply = |operation, message: Vec<u8>| {
        Content::Reply(record::Reply {
            operation,
            message: message.into(),
            ..record::Reply::default()
        })
    };
    let find = message(&doc! { "find": "c", "filter": { "a": "alice" }, "$db": "d" });
    let batch = doc! { "cursor": { "firstBatch": [{ "a": "alice" }], "id": 0_i64 }, "ok": 1.0 };
    let redactor = redactor(Mode::Ordered);
    let mut redact = |record| records.redact(record).collect::<Vec<_>>();
    let expected = redactor.command(&find).unwrap();
    assert_eq!(redact(command(1, find.clone())), [command(1, expected)]);
    let expected = redactor.reply(ReplyForm::Plain, &message(&batch)).unwrap();
    assert_eq!(redact(reply(1, message(&batch))), [reply(1, expected)]);

    let damaged = || encode_request(1, b"\x06\0\0\0\x99\0");
    let is_omission = |record: &Content, client, operations| {
        let Content::Omitted(omitted) = record else {
            return false;
        };
        (omitted.client, omitted.operations) == (client, operations)
            && omitted.reason() == OmissionReason::NotRedactable
    };
    let written = redact(command(2, damaged()));
    assert!(is_omission(&written[0], 1, 1) && written.len() == 1);
    assert_eq!(redact(reply(2, message(&batch))), []);
    redact(command(3, find));
    let written = redact(reply(3, damaged()));
    assert_eq!(written[0], reply(3, Vec::new()));
    assert!(is_omission(&written[1], 0, 0) && written.len() == 2);
    let end = record::End {
        operations: 3,
        ..record::End::default()
    };
    let written = redact(Content::End(end));
    let [Content::End(end)] = &written[..] else {
        panic!("{written:?}");
    };
    assert_eq!((end.operations, end.omitted), (2, 2));
}

/// A capture may lack the replies to many commands: a client that disconnects while its command
/// runs gets no reply.
#[test]
fn after_100_000_commands_without_a_reply_only_the_oldest_command_loses_its_reply() {
    let message = |document: Document| {
        let message = encode_request(1, &document.to_vec().unwrap());
        bytes::Bytes::from(message)
    };
    let ping = message(doc! { "ping": 1, "$db": "d" });
    let mut records = Records::new(redactor(Mode::Equality));
    for operation in 0..=100_000 {
        let command = Content::Command(record::Command {
            client: 1,
            operation,
            at_us: 5,
            message: ping.clone(),
        });
        assert_eq!(records.redact(command.clone()).next(), Some(command));
    }
    let mut reply = |operation| {
        let reply = Content::Reply(record::Reply {
            operation,
            message: message(doc! { "ok": 1.0 }),
            ..record::Reply::default()
        });
        records.redact(reply).count()
    };
    assert_eq!((reply(0), reply(1), reply(100_000)), (0, 1, 1));
}

fn numbers() -> impl Strategy<Value = Bson> {
    prop_oneof![
        any::<i32>().prop_map(Bson::Int32),
        (-500..500).prop_map(Bson::Int32),
        any::<i64>().prop_map(Bson::Int64),
        (-100_000_i64..100_000).prop_map(|n| Bson::Double(n as f64 / 128.0)),
        (-1e9..1e9).prop_map(Bson::Double),
        (-1_000_000_i64..1_000_000, 0..6_u32).prop_map(|(n, d)| decimal(&format!("{n}E-{d}"))),
    ]
}

/// Compares two numbers. `None` if their pseudonyms may be equal although the numbers differ. This
/// is possible if at least one number is not an integer, and the numbers are very close (see the
/// precision in `ordered`).
fn compare(one: &Bson, other: &Bson) -> Option<Ordering> {
    if let (Some(one), Some(other)) = (integer(one), integer(other)) {
        return Some(one.cmp(&other));
    }
    let (one, other) = (number(one), number(other));
    let difference = (one - other).abs();
    let is_equal = difference == 0.0;
    let is_clear = difference > one.abs().max(other.abs()) * 2_f64.powi(-39);
    (is_equal || is_clear).then(|| one.total_cmp(&other))
}

fn integer(value: &Bson) -> Option<i128> {
    match value {
        Bson::Int32(number) => Some((*number).into()),
        Bson::Int64(number) => Some((*number).into()),
        Bson::Decimal128(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// Checks that no value contains [`grammar::PLANTED`], a text that every original string contains.
/// Field names are not checked.
fn assert_nothing_planted(value: &Bson) {
    let text = match value {
        Bson::Document(document) => return document.values().for_each(assert_nothing_planted),
        Bson::Array(items) => return items.iter().for_each(assert_nothing_planted),
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => text,
        Bson::RegularExpression(regex) => regex.pattern.as_str(),
        Bson::Binary(binary) => &String::from_utf8_lossy(&binary.bytes),
        _ => return,
    };
    assert!(!text.contains(grammar::PLANTED), "{text}");
}

proptest! {
    #[test]
    fn no_value_of_a_command_is_in_its_redacted_form(choices in proptest::collection::vec(any::<u8>(), 1..300)) {
        let original = grammar::Dice::new(&choices).command();
        for mode in MODES {
            let redacted = command(mode, &original);
            redacted.values().for_each(assert_nothing_planted);
            assert_same_shape(&original.to_vec().unwrap(), &redacted.to_vec().unwrap());
        }
    }

    #[test]
    fn redacted_numbers_keep_their_order(one in numbers(), other in numbers()) {
        let pseudonyms = [&one, &other].map(|number| value(Mode::Ordered, number.clone()));
        let expected = compare(&one, &other);
        let found = match (integer(&pseudonyms[0]), integer(&pseudonyms[1])) {
            (Some(one), Some(other)) => one.cmp(&other),
            _ => number(&pseudonyms[0]).total_cmp(&number(&pseudonyms[1])),
        };
        if let Some(expected) = expected {
            let is_exact = |value: &Bson| integer(value).is_none_or(|n| n.abs() < 1 << 44);
            let are_exact = is_exact(&one) && is_exact(&other);
            let are_integers = integer(&one).is_some() && integer(&other).is_some();
            if are_exact || are_integers {
                prop_assert_eq!(found, expected, "{:?} {:?} {:?}", one, other, pseudonyms);
            }
        }
    }

    #[test]
    fn redacted_adjacent_integers_keep_their_order(n in any::<i64>()) {
        let next = n.saturating_add(1);
        let [one, other] = [n, next].map(|n| integer(&value(Mode::Ordered, n)).unwrap());
        prop_assert_eq!(one < other, n < next);
    }

    #[test]
    fn redacted_dates_and_object_ids_keep_their_order(one in 0..4_000_000_000_000_i64, step in 1_i64..5000) {
        let date = |ms| match value(Mode::Ordered, DateTime::from_millis(ms)) {
            Bson::DateTime(date) => date.timestamp_millis(),
            other => panic!("{other:?}"),
        };
        prop_assert!(date(one) < date(one + step));
        prop_assert!(date(-one - step) < date(-one));
        let id = |seconds: i64, rest: u8| {
            let mut bytes = [rest; 12];
            bytes[..4].copy_from_slice(&u32::try_from(seconds).unwrap().to_be_bytes());
            match value(Mode::Ordered, ObjectId::from_bytes(bytes)) {
                Bson::ObjectId(id) => id.bytes(),
                other => panic!("{other:?}"),
            }
        };
        let seconds = one / 2000;
        prop_assert!(id(seconds, 255) < id(seconds + step, 0));
        prop_assert_ne!(id(seconds, 1), id(seconds, 2));
    }

    /// In the mode `Ordered`, if one string begins with another string, its pseudonym begins with
    /// the pseudonym of the other string.
    #[test]
    fn pseudonyms_of_strings_keep_length_and_equality_and_in_ordered_mode_they_keep_prefixes(
        one in ".{0,90}",
        other in ".{0,90}",
    ) {
        for mode in MODES {
            let (a, b) = (text(mode, &one), text(mode, &other));
            prop_assert_eq!(a.len(), one.len());
            prop_assert_eq!(a == b, one == other);
            prop_assert_eq!(a.starts_with('$'), one.starts_with('$'));
        }
        let joined = text(Mode::Ordered, &format!("{one}{other}"));
        let prefix = text(Mode::Ordered, &one);
        prop_assert!(joined.starts_with(&prefix) || one.is_empty());
    }

    #[test]
    fn pseudonyms_have_the_type_and_length_of_the_values_and_are_equal_for_equal_values(
        a in any::<[u8; 16]>(),
        b in any::<[u8; 16]>(),
    ) {
        let values = |bytes: &[u8; 16]| [
            Bson::Int32(i32::from_le_bytes(*bytes.first_chunk().unwrap())),
            Bson::Int64(i64::from_le_bytes(*bytes.first_chunk().unwrap())),
            Bson::Double(f64::from_le_bytes(*bytes.first_chunk().unwrap())),
            Bson::DateTime(DateTime::from_millis(i64::from_le_bytes(*bytes.first_chunk().unwrap()))),
            Bson::ObjectId(ObjectId::from_bytes(*bytes.first_chunk().unwrap())),
            Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes[..5].to_vec() }),
            Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: bytes.to_vec() }),
        ];
        for (one, other) in values(&a).into_iter().zip(values(&b)) {
            let pseudonyms = [&one, &other].map(|v| value(Mode::Equality, v.clone()));
            prop_assert_eq!(pseudonyms[0].element_type(), one.element_type());
            let length = |value: &Bson| doc! { "v": value.clone() }.to_vec().unwrap().len();
            prop_assert_eq!(length(&pseudonyms[0]), length(&one));
            let is_nan = matches!(&one, Bson::Double(n) if n.is_nan());
            prop_assert!(is_nan || (pseudonyms[0] == pseudonyms[1]) == (one == other));
        }
    }
}
