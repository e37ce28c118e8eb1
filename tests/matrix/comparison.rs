//! Lists the differences between two runs of a program.

use serde_json::Value;

use crate::program::Step;

/// Describes each difference: the step's name with the path of fields to the value, the value in
/// the direct run, and the value in the run through Seawall.
pub(crate) fn differences(direct: &[Step], through: &[Step]) -> Vec<String> {
    let names = |steps: &[Step]| {
        steps
            .iter()
            .map(|step| step.name.clone())
            .collect::<Vec<_>>()
    };
    let (expected, seen) = (names(direct), names(through));
    if expected != seen {
        return vec![format!(
            "different steps: direct {expected:?}\n  through {seen:?}"
        )];
    }
    let mut found = Vec::new();
    for (direct, through) in direct.iter().zip(through) {
        compare(&direct.name, &direct.outcome, &through.outcome, &mut found);
    }
    found
}

fn compare(path: &str, direct: &Value, through: &Value, found: &mut Vec<String>) {
    match (direct, through) {
        (Value::Object(expected), Value::Object(seen)) if expected.keys().eq(seen.keys()) => {
            for ((name, expected), seen) in expected.iter().zip(seen.values()) {
                compare(&format!("{path}.{name}"), expected, seen, found);
            }
        }
        (Value::Array(expected), Value::Array(seen)) if expected.len() == seen.len() => {
            for (expected, seen) in expected.iter().zip(seen) {
                compare(path, expected, seen, found);
            }
        }
        (expected, seen) if expected != seen => {
            found.push(format!(
                "{path}\n  direct  {}\n  through {}",
                brief(expected),
                brief(seen)
            ));
        }
        _ => {}
    }
}

fn brief(value: &Value) -> String {
    value.to_string().chars().take(MAX_SHOWN_CHARS).collect()
}

/// Maximum length of a value in a difference. Without this limit, a large document would hide other
/// differences.
const MAX_SHOWN_CHARS: usize = 2000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(outcome: Value) -> [Step; 1] {
        let name = "step".to_owned();
        [Step { name, outcome }]
    }

    #[test]
    fn only_differing_values_are_listed_with_their_path() {
        let direct = step(json!({"value": {"a": [{"b": 1}, {"b": 2}], "c": 3}}));
        let through = step(json!({"value": {"a": [{"b": 1}, {"b": 4}], "c": 3}}));
        assert!(differences(&direct, &direct).is_empty());
        let found = differences(&direct, &through);
        assert_eq!(found, ["step.value.a.b\n  direct  2\n  through 4"]);
    }

    #[test]
    fn an_added_field_or_a_missing_element_is_a_difference() {
        let direct = step(json!({"value": [1, {"a": 1}]}));
        for through in [
            json!({"value": [1, {"a": 1, "b": 2}]}),
            json!({"value": [1]}),
        ] {
            assert_eq!(differences(&direct, &step(through)).len(), 1);
        }
    }

    #[test]
    fn steps_in_a_different_order_are_a_difference() {
        let steps = ["a", "b"].map(|name| Step {
            name: name.to_owned(),
            outcome: Value::Null,
        });
        let [a, b] = &steps;
        let turned = [b, a].map(|step| Step {
            name: step.name.clone(),
            outcome: Value::Null,
        });
        assert_eq!(differences(&steps, &turned).len(), 1);
    }
}
