//! The JSON schema of the configuration file, for editors.

use serde_json::{Map, Value, json};

use crate::keys;
use crate::path::join;
use crate::schema::{Change, Key, KeyKind, LIST};
use crate::settings::SECTIONS;

/// Returns the JSON schema (draft 7) of a configuration file: every key with its type, bounds,
/// default and meaning. No key is required, because the environment and the command line can set
/// keys, too.
pub fn json_schema() -> Value {
    let mut schema = object("");
    if let Value::Object(members) = &mut schema {
        members.insert("$schema".to_owned(), DRAFT.into());
        members.insert("title".to_owned(), "Seawall's configuration".into());
    }
    schema
}

/// The schema of a section, with its keys and the sections below it.
fn object(path: &str) -> Value {
    let names = keys::names_in(path).into_iter();
    let properties = names.map(|name| (name.to_owned(), property(&join(path, name))));
    let section = SECTIONS.iter().find(|section| section.path == path);
    json!({
        "type": "object",
        "description": section.map_or("Seawall's configuration.", |section| section.about),
        "additionalProperties": false,
        "properties": properties.collect::<Map<_, _>>(),
    })
}

fn property(path: &str) -> Value {
    let list = format!("{path}{LIST}");
    if let Some(key) = keys::key(path) {
        of_key(key)
    } else if keys::names_in(&list).is_empty() {
        object(path)
    } else {
        json!({ "type": "array", "items": object(&list) })
    }
}

fn of_key(key: &Key) -> Value {
    let mut schema = of_kind(key.kind);
    if let Value::Object(members) = &mut schema {
        members.insert("description".to_owned(), description(key).into());
        if let Some(default) = key.default {
            members.insert("default".to_owned(), default_value(key.kind, default));
        }
    }
    schema
}

fn description(key: &Key) -> String {
    let unit = match key.unit {
        "" => String::new(),
        unit => format!(" Unit: {unit}."),
    };
    let change = match key.change {
        Change::Live => "reload",
        Change::Restart => "start",
    };
    format!(
        "{}{unit} Allowed: {}. A change takes effect at the next {change}.",
        key.meaning, key.kind
    )
}

/// Converts the default `text` of a key to a JSON value with the type that the key has in the
/// configuration file.
fn default_value(kind: KeyKind, text: &str) -> Value {
    match kind {
        KeyKind::Integer { .. }
        | KeyKind::IntegerOr { .. }
        | KeyKind::Percent
        | KeyKind::Boolean => text.parse().unwrap_or_else(|_| text.into()),
        _ => text.into(),
    }
}

fn of_kind(kind: KeyKind) -> Value {
    match kind {
        KeyKind::Text
        | KeyKind::Secret
        | KeyKind::Path
        | KeyKind::ReadableFile
        | KeyKind::ReadableFiles
        | KeyKind::SecretFile
        | KeyKind::SecretFiles
        | KeyKind::Directory
        | KeyKind::Base64 { .. }
        | KeyKind::AdminAddress => json!({ "type": "string", "minLength": 1 }),
        KeyKind::HttpUrl => json!({ "type": "string", "pattern": HTTP_URL }),
        KeyKind::ConnectionString => json!({ "type": "string", "pattern": CONNECTION_STRING }),
        KeyKind::Addresses => json!({ "anyOf": [
            { "type": "string", "minLength": 1 },
            { "type": "array", "minItems": 1, "items": { "type": "string", "minLength": 1 } },
        ] }),
        KeyKind::Choice { accepted } => json!({ "type": "string", "enum": accepted }),
        KeyKind::Integer { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        KeyKind::IntegerOr { accepted, min, max } => json!({ "anyOf": [
            of_kind(KeyKind::Choice { accepted }),
            of_kind(KeyKind::Integer { min, max }),
        ] }),
        KeyKind::Percent => json!({ "type": "number", "minimum": 0, "maximum": 100 }),
        KeyKind::ShapeThresholds { max_ms } => json!({
            "type": "object",
            "additionalProperties": false,
            "patternProperties": {
                SHAPE_ID: { "type": "integer", "minimum": 0, "maximum": max_ms },
            },
        }),
        KeyKind::Boolean => json!({ "type": "boolean" }),
    }
}

/// The draft of JSON Schema that editors for TOML support.
const DRAFT: &str = "http://json-schema.org/draft-07/schema#";

const CONNECTION_STRING: &str = r"^mongodb(\+srv)?://.";

const HTTP_URL: &str = "^https?://.";

const SHAPE_ID: &str = "^[0-9a-f]{16}$";
