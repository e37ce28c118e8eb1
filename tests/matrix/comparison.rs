//! What two runs of a program told differently.

use serde_json::Value;

use crate::program::Step;

/// Each difference with its path and what was told directly and through Seawall.
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
            "other steps: direct {expected:?}\n  through {seen:?}"
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

/// Of each side of a difference; a large document would hide all others.
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
    fn only_what_differs_is_told_with_its_path() {
        let direct = step(json!({"value": {"a": [{"b": 1}, {"b": 2}], "c": 3}}));
        let through = step(json!({"value": {"a": [{"b": 1}, {"b": 4}], "c": 3}}));
        assert!(differences(&direct, &direct).is_empty());
        let told = differences(&direct, &through);
        assert_eq!(told, ["step.value.a.b\n  direct  2\n  through 4"]);
    }

    #[test]
    fn a_field_more_or_an_element_less_differs() {
        let direct = step(json!({"value": [1, {"a": 1}]}));
        for through in [
            json!({"value": [1, {"a": 1, "b": 2}]}),
            json!({"value": [1]}),
        ] {
            assert_eq!(differences(&direct, &step(through)).len(), 1);
        }
    }

    #[test]
    fn steps_in_another_order_differ() {
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
