//! Problems of a configuration, written for the person who corrects it.
//!
//! A problem is one line and never shows a secret. So a problem shows no value of a secret key, and
//! no line of a file that is not TOML. It also shows no value of an unknown key, because this may
//! be the misspelled key of a secret.

use std::fmt;

use toml::Value;

/// One problem that must be fixed before Seawall can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path of the key that has the problem (`pool.max_pool_size`, `auth.users[0].name`). If
    /// the problem is not in a key: the name of the configuration file or of the environment
    /// variable.
    pub key: String,
    /// The wrong value; empty if there is no value, or if it must not be shown.
    pub value: String,
    /// The requirement as a statement: `must be an integer from 1 to 65535`.
    pub allowed: String,
}

impl Problem {
    /// Creates a problem with a value that may be shown.
    pub(crate) fn new(key: &str, value: &str, allowed: &str) -> Self {
        Self {
            key: key.to_owned(),
            value: value.to_owned(),
            allowed: allowed.to_owned(),
        }
    }

    /// Creates a problem with a value that is absent or must not be shown.
    pub(crate) fn without_value(key: &str, allowed: &str) -> Self {
        Self::new(key, "", allowed)
    }

    /// Creates the problem of a file that is not TOML. The problem contains the position of the
    /// first error.
    pub(crate) fn syntax(name: &str, text: &str, error: &toml::de::Error) -> Self {
        let before = error
            .span()
            .and_then(|span| text.get(..span.start))
            .unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let reasons: Vec<&str> = error.message().lines().collect();
        Self::without_value(
            &format!("{name}, line {line}, column {column}"),
            &format!("must be TOML: {}", reasons.join("; ")),
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() {
            write!(f, "{}: {}", self.key, self.allowed)
        } else {
            write!(f, "{} = {}: {}", self.key, self.value, self.allowed)
        }
    }
}

/// All problems of a configuration. They are printed one per line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a problem. Callers of this crate also add the problems of later checks, for example
    /// those of the connection string.
    pub fn add(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// The problems in the order of their discovery.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// Number of problems.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no problems.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `key` already has a problem. In this case, the caller does not report problems that
    /// only follow from that problem.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|problem| problem.key == key)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Formats a value that is not secret, on one line.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => shown_text(text),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => shown_type(value).to_owned(),
    }
}

/// Formats a text on one line: in quotes, with escaped control characters, and shortened. Hides a
/// text that may be a connection string with a password.
pub(crate) fn shown_text(text: &str) -> String {
    // A user may have given a connection string for the wrong key, for example for `uri_file`. If
    // the text may be a connection string with a password, it is not shown. The password may be
    // before the hosts, or in an option, such as `tlsCertificateKeyFilePassword`.
    let has_password = || text.contains('@') || text.to_ascii_lowercase().contains("password");
    if text.contains("://") && has_password() {
        return HIDDEN.to_owned();
    }
    if text.chars().count() <= MAX_SHOWN_CHARACTERS {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(MAX_SHOWN_CHARACTERS).collect();
    format!("{start:?}…")
}

/// Returns the type of a value, for a message that shows only the type and not the value.
pub(crate) fn shown_type(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "(a string)",
        Value::Integer(_) => "(an integer)",
        Value::Float(_) => "(a number)",
        Value::Boolean(_) => "(a boolean)",
        Value::Datetime(_) => "(a date)",
        Value::Array(_) => "(a list)",
        Value::Table(_) => "(a table)",
    }
}

/// The text that is shown instead of a secret.
pub(crate) const HIDDEN: &str = "(hidden)";

/// Maximum length of a shown text, in characters, so that a problem fits on one line.
const MAX_SHOWN_CHARACTERS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_its_key_its_value_and_the_allowed_values_on_one_line() {
        let problem = Problem::new("pool.max_pool_size", "0", "must be more");
        assert_eq!(problem.to_string(), "pool.max_pool_size = 0: must be more");
        let absent = Problem::without_value("deployment.uri", "must be given");
        assert_eq!(absent.to_string(), "deployment.uri: must be given");
    }

    #[test]
    fn problems_are_printed_one_per_line() {
        let mut problems = Problems::from(Problem::without_value("a", "must be b"));
        problems.add(Problem::without_value("c", "must be d"));
        assert_eq!(problems.to_string(), "a: must be b\nc: must be d");
    }

    #[test]
    fn a_long_text_is_shortened_and_line_breaks_are_escaped_in_an_error_message() {
        assert_eq!(shown_text("two\nlines"), r#""two\nlines""#);
        assert!(shown_text(&"x".repeat(10_000)).chars().count() < 100);
    }

    /// A user may write a connection string with a password into a key for which it is not meant,
    /// such as `uri_file`.
    #[test]
    fn a_text_that_may_be_a_connection_string_is_hidden_in_an_error_message() {
        for text in [
            "mongodb://app:hunter2@host/",
            "mongodb://host/?tls=true&tlsCertificateKeyFilePassword=hunter2",
            "mongodb://host/?tlscertificatekeyfilepassword=hunter2",
        ] {
            assert_eq!(shown_text(text), HIDDEN);
        }
    }

    #[test]
    fn a_syntax_error_shows_line_and_column_but_not_the_text_of_the_line() {
        let text = "[deployment]\nuri = \"mongodb://app:hunter2@host/\" trailing\n";
        let error = text.parse::<toml::Table>().unwrap_err();
        let problem = Problem::syntax("seawall.toml", text, &error);
        assert_eq!(problem.key, "seawall.toml, line 2, column 37");
        assert!(!problem.to_string().contains("hunter2"));
        assert!(!problem.to_string().contains('\n'));
    }
}
