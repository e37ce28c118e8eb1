//! Tests of how a shape prints names.

use bson::doc;
use seawall_command::CommandBytes;

use super::{filter_shape, hashed, shape};

fn printed(name: &str) -> String {
    let shape = filter_shape(doc! { name: 1 });
    shape
        .strip_prefix('{')
        .unwrap()
        .strip_suffix(":?}")
        .unwrap()
        .to_owned()
}

#[test]
fn data_in_field_names_is_replaced_by_a_star() {
    let long = "x".repeat(65);
    let cases = [
        // A component (a part between dots) that has only digits is data. Its length does not
        // matter.
        ("0", "*"),
        ("items.17.sku", "items.*.sku"),
        ("a.b", "a.b"),
        // A run of fewer than four digits is part of the name.
        ("line2", "line2"),
        ("f123", "f123"),
        ("f1234", "f*"),
        ("y2024", "y*"),
        // A run of at least sixteen hexadecimal digits is data if it contains a decimal digit.
        ("507f1f77bcf86cd799439011", "*"),
        ("u_507f1f77bcf86cd799439011_x", "u_*_x"),
        ("550e8400-e29b-41d4-a716-446655440000", "*"),
        ("deadbeefdeadbeef", "deadbeefdeadbeef"),
        ("deadbeefdeadbee1", "*"),
        ("deadbeefdeadbe1", "deadbeefdeadbe1"),
        // A run contains digits and separators. Separators at its ends stay part of the name.
        ("-2024-01-15-", "-*-"),
        ("at-12:30:45", "at-*"),
        ("2024-01-15T10:00:00Z", "*T*Z"),
        ("1-2-3-4", "*"),
        ("1-2-3", "1-2-3"),
        // A colon inside a run becomes part of the `*`. Any other colon makes the name quoted.
        ("a:1", "\"a:1\""),
        ("507f1f77bcf86cd799439011:2024", "\"*:*\""),
        (long.as_str(), "*"),
        ("a..b", "a..b"),
    ];
    for (name, expected) in cases {
        assert_eq!(printed(name), expected, "{name}");
    }
}

#[test]
fn names_with_special_characters_are_quoted() {
    let cases = [
        ("", "\"\""),
        ("a b", "\"a b\""),
        ("a*", "\"a*\""),
        ("a\"b\\c", "\"a\\\"b\\\\c\""),
        ("tab\there", "\"tab\\u0009here\""),
        ("größe", "\"größe\""),
        ("A-z_0[x].$", "A-z_0[x].$"),
        ("a b.2024", "\"a b.*\""),
    ];
    for (name, expected) in cases {
        assert_eq!(printed(name), expected, "{name}");
    }
}

#[test]
fn bytes_that_are_not_utf8_print_as_hex() {
    // The bson crate cannot write such a name, so the test changes a byte of a valid name.
    let mut body = doc! { "find": "c", "filter": { "aXb": 1 }, "$db": "d" }
        .to_vec()
        .unwrap();
    let position = body.windows(3).position(|window| window == b"aXb").unwrap() + 1;
    body[position] = 0xFF;
    let text = super::describe(&CommandBytes::of_body(&body));
    assert_eq!(text.shape, "{filter:{\"a\\xffb\":?}}");
}

#[test]
fn field_paths_in_expressions_keep_dollar_signs_and_data_in_them_is_replaced_by_a_star() {
    let cases = [
        ("$a.b", "$a.b"),
        ("$$ROOT.a", "$$ROOT.a"),
        ("$items.3.n", "$items.*.n"),
        ("$2024", "$*"),
        ("$$2024", "$$*"),
        ("$", "?"),
        ("$$", "$$"),
        ("$a b", "\"$a b\""),
        ("plain", "?"),
    ];
    for (string, expected) in cases {
        let shape = filter_shape(doc! { "$expr": string });
        assert_eq!(shape, format!("{{$expr:{expected}}}"), "{string}");
    }
}

#[test]
fn operator_names_with_invalid_characters_or_length_are_not_printed() {
    let long = format!("${}", "x".repeat(64));
    for name in ["$a-b", "$a b", "$é", long.as_str()] {
        assert_eq!(filter_shape(doc! { name: 1 }), "{$?:?}", "{name}");
    }
    assert_eq!(
        filter_shape(doc! { "a": { "$made_Up1": 1 } }),
        "{a:{$made_Up1:?}}"
    );
}

#[test]
fn namespaces_and_index_names_are_printed_unchanged() {
    let command = doc! { "find": "c", "hint": "day_2024_1", "$db": "d" };
    assert_eq!(shape(&command), "{hint:day_2024_1}");
    let lookup = doc! { "$lookup": { "from": "log_20240115", "as": "x_20240115" } };
    let command = doc! { "aggregate": "c", "pipeline": [lookup], "$db": "d" };
    assert_eq!(
        shape(&command),
        "{pipeline:[{$lookup:{as:x_*,from:log_20240115}}]}"
    );
}

#[test]
fn a_string_in_brackets_and_a_list_have_equal_hashes_if_and_only_if_their_texts_are_equal() {
    let pairs = [
        (doc! { "key": "[a]" }, doc! { "key": ["a"] }),
        (doc! { "key": "[a.b]" }, doc! { "key": ["a.b"] }),
        (doc! { "key": "[a.2024]" }, doc! { "key": ["a.2024]"] }),
        (doc! { "key": "[]" }, doc! { "key": [] }),
        (doc! { "key": "[a b]" }, doc! { "key": ["a b"] }),
        (doc! { "key": "[...]" }, doc! { "key": ["..."] }),
        (doc! { "key": "[[a]" }, doc! { "key": ["[a"] }),
    ];
    for (left, right) in pairs {
        let command = |key: &bson::Document| {
            let mut command = doc! { "distinct": "c", "$db": "d" };
            command.extend(key.clone());
            command
        };
        let (left, right) = (command(&left), command(&right));
        let same_text = shape(&left) == shape(&right);
        assert_eq!(same_text, hashed(&left) == hashed(&right), "{left} {right}");
    }
}
