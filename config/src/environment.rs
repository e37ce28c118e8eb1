//! Converts the environment to a table: `SEAWALL_POOL__MAX_POOL_SIZE=200` is `pool.max_pool_size`.
//!
//! Two underscores separate section and key, because keys contain single underscores. A value is
//! parsed according to the kind of its key. If parsing fails, the value stays text, and the check
//! against the schema (module `check`) reports it.

use toml::Table;

use crate::keys::{self, KEYS};
use crate::overrides::insert;
use crate::problem::{Problem, Problems};
use crate::schema::{Key, KeyKind};
use crate::suggestion::{did_you_mean, most_similar};

/// Converts the variables that set keys, and ignores variables of other programs and of Kubernetes
/// services. Other unknown variables with the prefix `SEAWALL_` are reported as problems.
pub(crate) fn table(environment: &[(String, String)], problems: &mut Problems) -> Table {
    let mut table = Table::new();
    for (name, value) in environment {
        if !name.starts_with(PREFIX) || NOT_KEYS.contains(&name.as_str()) {
            continue;
        }
        if let Some(key) = key_of(name) {
            // A container image may set `SEAWALL_LISTEN__ADDRESS`. A container can only replace
            // this variable, not remove it, so an empty value counts as absent.
            if key.kind == KeyKind::Addresses && value.is_empty() {
                continue;
            }
            // The caller of this crate has replaced bytes that are not UTF-8 with this character.
            if value.contains(char::REPLACEMENT_CHARACTER) {
                problems.add(Problem::without_value(name, "must be UTF-8"));
                continue;
            }
            insert(&mut table, key.path, key.kind.parse(value));
        } else if !is_service_link(name) {
            // The value is not shown, because the name may be the misspelled name of a secret.
            problems.add(Problem::without_value(
                &name.escape_debug().to_string(),
                &unknown(name),
            ));
        }
    }
    table
}

fn key_of(variable: &str) -> Option<&'static Key> {
    KEYS.iter()
        .find(|key| key.variable().as_deref() == Some(variable))
}

fn unknown(variable: &str) -> String {
    let name = variable.strip_prefix(PREFIX).unwrap_or(variable);
    let section = name
        .split_once("__")
        .map(|(section, _)| section.to_lowercase());
    // The names are compared without their common prefix, which would make all of them similar.
    let variables = KEYS.iter().filter_map(Key::variable);
    let names = variables.filter_map(|known| known.strip_prefix(PREFIX).map(str::to_owned));
    let meant = most_similar(name, names).map(|name| format!("{PREFIX}{name}"));
    let suggestion = did_you_mean(meant);
    let names = section.as_deref().map(keys::names_in).unwrap_or_default();
    let listed = match (section, names.is_empty()) {
        (Some(section), false) => format!("; [{section}] has {}", names.join(", ")),
        _ => String::new(),
    };
    format!("unknown variable; {suggestion}{EXPECTED}{listed}")
}

/// True if Kubernetes has set this variable. For a service named `seawall` or `seawall-…`, each pod
/// of the namespace gets `SEAWALL_SERVICE_HOST`, `SEAWALL_SERVICE_PORT[_NAME]`, `SEAWALL_PORT` and
/// `SEAWALL_PORT_27018_TCP[_ADDR|_PORT|_PROTO]`. If these variables were problems, the pods of the
/// service itself could not start.
fn is_service_link(name: &str) -> bool {
    if name.contains("__") {
        return false;
    }
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT")
        || name.split_once("_PORT_").is_some_and(|(_, rest)| {
            let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            digits.len() < rest.len() && digits.starts_with('_')
        })
}

/// Prefix of all variables of Seawall.
const PREFIX: &str = "SEAWALL_";

/// Variables of Seawall that set no key. One is the path of the mongod for the demo and the tests,
/// and one is the log filter. The third is the URL of the admin API, for the commands that use this
/// API, such as `seawall top`.
const NOT_KEYS: [&str; 3] = ["SEAWALL_MONGOD", "SEAWALL_LOG", "SEAWALL_ADMIN_URL"];

const EXPECTED: &str = "expected SEAWALL_<SECTION>__<KEY>, for example SEAWALL_POOL__MAX_POOL_SIZE; \
                        [[listeners]] and [[auth.users]] cannot be set by variables";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_unknown_variable_suggests_a_name_and_lists_the_keys_of_the_section() {
        for (name, suggestion, keys) in [
            (
                "SEAWALL_LOG__LEVLE",
                Some("did you mean SEAWALL_LOG__LEVEL? "),
                Some("; [log] has level, format"),
            ),
            ("SEAWALL_LOGS__COLOUR", None, None),
            ("SEAWALL_X", None, None),
        ] {
            let text = unknown(name);
            let expected = format!(
                "unknown variable; {}{EXPECTED}{}",
                suggestion.unwrap_or_default(),
                keys.unwrap_or_default()
            );
            assert_eq!(text, expected, "{name}");
        }
    }

    /// The caller has replaced bytes that are not UTF-8 with U+FFFD, so a value with this character
    /// is reported.
    #[test]
    fn a_variable_whose_value_was_not_utf8_is_a_problem() {
        let name = "SEAWALL_HISTORY__DIRECTORY";
        let mut problems = Problems::default();
        let table = table(&[(name.to_owned(), "/a\u{fffd}".to_owned())], &mut problems);
        assert!(table.is_empty());
        let text = problems.to_string();
        assert!(
            text.contains(name) && text.contains("must be UTF-8"),
            "{text}"
        );
    }

    #[test]
    fn variables_of_kubernetes_services_are_ignored() {
        for (name, is_link) in [
            ("SEAWALL_SERVICE_HOST", true),
            ("SEAWALL_SERVICE_PORT", true),
            ("SEAWALL_SERVICE_PORT_MONGODB", true),
            ("SEAWALL_PORT", true),
            ("SEAWALL_PORT_27018_TCP", true),
            ("SEAWALL_PORT_27018_TCP_ADDR", true),
            ("SEAWALL_ADMIN_PORT_9909_TCP_PROTO", true),
            ("SEAWALL_POOL_MAX_POOL_SIZE", false),
            ("SEAWALL_LISTEN__PORT", false),
            ("SEAWALL_LISTEN_ADDRESS", false),
            ("SEAWALL_PORT_NUMBER", false),
        ] {
            assert_eq!(is_service_link(name), is_link, "{name}");
        }
    }
}
