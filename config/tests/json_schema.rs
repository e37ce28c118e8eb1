//! Checks that the JSON schema accepts all examples, and refuses wrong values.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use seawall_config::{KEYS, KeyKind, json_schema};
use serde_json::{Map, Value, json};

#[test]
fn every_example_file_matches_the_json_schema() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(errors(&text), [""; 0], "{}", path.display());
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn json_schema_accepts_words_and_numbers_for_pool_concurrency() {
    for value in ["\"auto\"", "\"off\"", "1", "1000000"] {
        let text = format!("pool.concurrency = {value}");
        assert_eq!(errors(&text), [""; 0], "{text}");
    }
}

#[test]
fn json_schema_reports_a_wrong_value_at_its_path() {
    for (text, pointer) in [
        ("[pol]", "/pol"),
        ("pool = 3", "/pool"),
        ("pool.max_pol_size = 1", "/pool/max_pol_size"),
        ("pool.max_pool_size = 0", "/pool/max_pool_size"),
        ("pool.max_pool_size = 1000001", "/pool/max_pool_size"),
        ("pool.max_pool_size = 1.5", "/pool/max_pool_size"),
        ("pool.concurrency = 0", "/pool/concurrency"),
        ("pool.concurrency = 1000001", "/pool/concurrency"),
        ("pool.concurrency = 1.5", "/pool/concurrency"),
        ("pool.concurrency = \"on\"", "/pool/concurrency"),
        ("deployment.uri = \"server\"", "/deployment/uri"),
        ("deployment.mode = \"direct\"", "/deployment/mode"),
        ("deployment.repeat = \"yes\"", "/deployment/repeat"),
        ("listen.address = 7", "/listen/address"),
        ("listen.address = []", "/listen/address"),
        ("listen.tls.key = \"k\"", "/listen/tls/key"),
        ("listeners = 7", "/listeners"),
        ("[[listeners]]\nbacklog = 0", "/listeners/0/backlog"),
        ("[[listeners]]\ntls.key = \"k\"", "/listeners/0/tls/key"),
        ("admin.tls.mode = \"prefer\"", "/admin/tls/mode"),
        ("auth.users = 7", "/auth/users"),
        ("[[auth.users]]\nnam = \"a\"", "/auth/users/0/nam"),
        (
            "[[auth.users]]\nscram_sha_1.iterations = 1",
            "/auth/users/0/scram_sha_1/iterations",
        ),
        ("history.directory = \"\"", "/history/directory"),
        ("telemetry.endpoint = \"host:4318\"", "/telemetry/endpoint"),
        (
            "slow_log.sample_percent = 100.5",
            "/slow_log/sample_percent",
        ),
        (
            "slow_log.shape_thresholds_ms.0123456789ABCDEF = 5",
            "/slow_log/shape_thresholds_ms/0123456789ABCDEF",
        ),
    ] {
        assert_eq!(errors(text), [pointer], "{text}");
    }
}

#[test]
fn json_schema_has_default_and_description_of_every_key() {
    let schema = json_schema();
    for key in KEYS.iter() {
        let path = key.path.replace("[]", "/items");
        let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
        let property = schema.pointer(&pointer).unwrap();
        let description = property["description"].as_str().unwrap();
        assert!(description.starts_with(key.meaning), "{}", key.path);
        let default = match (key.kind, key.default) {
            (_, None) => Value::Null,
            (KeyKind::Integer { .. } | KeyKind::Percent | KeyKind::Boolean, Some(text)) => {
                serde_json::from_str(text).unwrap()
            }
            (_, Some(text)) => text.into(),
        };
        assert_eq!(property["default"], default, "{}", key.path);
        if !default.is_null() {
            let mut wrong = Vec::new();
            validate(property, &default, "", &mut wrong);
            assert_eq!(wrong, [""; 0], "{}", key.path);
        }
    }
}

/// Checks the values in a TOML text against the schema. Returns the JSON pointer of each value that
/// the schema refuses.
fn errors(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap();
    let mut errors = Vec::new();
    validate(&json_schema(), &json!(table), "", &mut errors);
    errors
}

/// Validates a value, and adds the JSON pointer of each wrong value in it to `errors`. Supports
/// only the keywords of JSON Schema that our schema uses, and panics for other keywords.
fn validate(schema: &Value, value: &Value, pointer: &str, errors: &mut Vec<String>) {
    let schema = schema.as_object().unwrap();
    let mut is_valid = true;
    for (keyword, expected) in schema {
        is_valid &= match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "type" => has_type(value, expected.as_str().unwrap()),
            "minimum" => value.as_f64() >= expected.as_f64(),
            "maximum" => value.as_f64() <= expected.as_f64(),
            "minLength" => value.as_str().is_none_or(|text| !text.is_empty()),
            "minItems" => value.as_array().is_none_or(|items| !items.is_empty()),
            "enum" => expected.as_array().unwrap().contains(value),
            "pattern" => matches(value.as_str().unwrap_or_default(), expected),
            "anyOf" => expected.as_array().unwrap().iter().any(|schema| {
                let mut errors = Vec::new();
                validate(schema, value, pointer, &mut errors);
                errors.is_empty()
            }),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(expected, item, &format!("{pointer}/{index}"), errors);
                }
                true
            }
            // `member_schema` handles these three keywords together.
            "properties" | "patternProperties" | "additionalProperties" => true,
            other => panic!("unknown keyword {other}"),
        };
    }
    if !is_valid {
        errors.push(pointer.to_owned());
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        let pointer = format!("{pointer}/{name}");
        match member_schema(schema, name) {
            Some(schema) => validate(schema, member, &pointer, errors),
            None => errors.push(pointer),
        }
    }
}

/// The schema of a member of a table; `None` if the table's schema does not list this member. Then
/// the table must not have the member: the schemas of all our tables refuse unknown members.
fn member_schema<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    assert_eq!(schema["additionalProperties"], false);
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let mut patterns = patterns.into_iter().flatten();
    let of_pattern = patterns.find(|(pattern, _)| matches(name, &json!(pattern)));
    let property = schema.get("properties").and_then(|all| all.get(name));
    property.or(of_pattern.map(|(_, schema)| schema))
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        other => panic!("unknown type {other}"),
    }
}

/// True if the text matches the pattern. Supports only the three patterns of our schema.
fn matches(text: &str, pattern: &Value) -> bool {
    match pattern.as_str().unwrap() {
        r"^mongodb(\+srv)?://." => ["mongodb://", "mongodb+srv://"].iter().any(|scheme| {
            text.strip_prefix(scheme)
                .is_some_and(|rest| !rest.is_empty())
        }),
        "^https?://." => ["http://", "https://"].iter().any(|scheme| {
            text.strip_prefix(scheme)
                .is_some_and(|rest| !rest.is_empty())
        }),
        "^[0-9a-f]{16}$" => {
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            text.len() == 16 && text.bytes().all(is_digit)
        }
        other => panic!("unknown pattern {other}"),
    }
}
