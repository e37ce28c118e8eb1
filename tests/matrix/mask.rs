//! Masks the values that may differ between a program's direct run and its run through Seawall.
//! `drivers/masked.txt` lists these values.

use serde_json::Value;

use crate::program::Step;

/// All masks in `drivers/masked.txt`.
#[derive(Debug)]
pub(crate) struct Masks(Vec<Mask>);

impl Masks {
    /// The masks for all programs.
    pub(crate) fn of_the_drivers() -> Self {
        Self::parse(include_str!("../drivers/masked.txt"))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(Mask::parse).collect())
    }

    /// Replaces the masked parts of the step's outcome, so that two outcomes that differ only in
    /// these parts become equal.
    pub(crate) fn apply(&self, step: &mut Step) {
        let mut path = vec![step.name.clone()];
        self.walk(&mut path, &mut step.outcome);
    }

    fn walk(&self, path: &mut Vec<String>, value: &mut Value) {
        for mask in self.0.iter().filter(|mask| mask.is_at(path)) {
            mask.hide(value);
        }
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    path.push(name.clone());
                    self.walk(path, field);
                    path.pop();
                }
            }
            Value::Array(elements) => {
                for element in elements {
                    self.walk(path, element);
                }
            }
            _ => {}
        }
    }
}

/// One line of `drivers/masked.txt`: the path of the masked values, and the part of these values
/// that is hidden.
#[derive(Debug)]
struct Mask {
    path: Vec<String>,
    is_anywhere: bool,
    part: Part,
}

/// The part of a value that a mask hides.
#[derive(Debug)]
enum Part {
    /// The whole value, which is replaced by the name of its type.
    Value,
    /// The text after the first occurrence of this string. A text that does not contain the string
    /// is not masked.
    TextAfter(String),
    /// The order of an array's elements.
    Order,
}

impl Mask {
    fn parse(line: &str) -> Self {
        let (path, part) = if let Some(path) = line.strip_suffix(" unordered") {
            (path, Part::Order)
        } else if let Some((path, quoted)) = line.split_once(" after ") {
            let text = quoted
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"'));
            let text = text.unwrap_or_else(|| panic!("not a quoted text: {line}"));
            (path, Part::TextAfter(text.to_owned()))
        } else {
            (line, Part::Value)
        };
        let anywhere = path.strip_prefix("**.");
        let names = anywhere.unwrap_or(path).split('.');
        Self {
            path: names.map(str::to_owned).collect(),
            is_anywhere: anywhere.is_some(),
            part,
        }
    }

    fn is_at(&self, path: &[String]) -> bool {
        if self.is_anywhere {
            path.ends_with(&self.path)
        } else {
            path == self.path
        }
    }

    fn hide(&self, value: &mut Value) {
        match (&self.part, &mut *value) {
            (Part::Value, _) => *value = Value::String(format!("masked {}", kind(value))),
            (Part::Order, Value::Array(elements)) => elements.sort_by_key(Value::to_string),
            (Part::TextAfter(after), Value::String(text)) => {
                if let Some(start) = text.find(after.as_str()) {
                    text.truncate(start + after.len());
                    text.push_str("masked");
                }
            }
            (Part::Order | Part::TextAfter(_), _) => {}
        }
    }
}

/// The name of a value's type, including the types of extended JSON.
fn kind(value: &Value) -> &str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(fields) => match fields.keys().next() {
            Some(name) if fields.len() == 1 && name.starts_with('$') => name,
            _ => "object",
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn masked(list: &str, outcome: Value) -> Value {
        let mut step = Step {
            name: "a step".to_owned(),
            outcome,
        };
        Masks::parse(list).apply(&mut step);
        step.outcome
    }

    #[test]
    fn the_value_of_a_masked_field_at_any_depth_becomes_the_name_of_its_type() {
        let outcome = json!({"value": [{"at": {"$date": "now"}}, {"at": 1, "on": {"at": null}}]});
        let left = json!({"value": [
            {"at": "masked $date"},
            {"at": "masked number", "on": {"at": "masked null"}},
        ]});
        assert_eq!(masked("# why\n**.at\n", outcome), left);
    }

    #[test]
    fn a_mask_with_a_full_path_applies_only_to_that_path_in_the_named_step() {
        let outcome = json!({"value": {"a": {"b": 1}, "b": 2}});
        let left = json!({"value": {"a": {"b": "masked number"}, "b": 2}});
        assert_eq!(masked("a step.value.a.b", outcome.clone()), left);
        assert_eq!(masked("another step.value.a.b", outcome.clone()), outcome);
        assert_eq!(masked("value.a.b", outcome.clone()), outcome);
    }

    #[test]
    fn an_array_marked_as_unordered_is_sorted() {
        let [a, b] = ["a", "b"].map(|role| json!({"role": role, "db": "admin"}));
        let one = json!({"value": {"roles": [a, b], "list": [2, 1]}});
        let other = json!({"value": {"roles": [b, a], "list": [2, 1]}});
        assert_eq!(masked("**.roles unordered", other), one);
    }

    #[test]
    fn only_the_text_after_the_given_string_is_masked() {
        let list = r#"**.message after "the command ""#;
        let outcome = json!({"error": {"message": "refused the command {a: 1}", "code": 13}});
        let left = json!({"error": {"message": "refused the command masked", "code": 13}});
        assert_eq!(masked(list, outcome), left);
        let other = json!({"error": {"message": "another"}, "message": 1});
        assert_eq!(masked(list, other.clone()), other);
    }
}
