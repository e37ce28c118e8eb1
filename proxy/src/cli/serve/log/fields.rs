//! The fields of a line. They may contain text of clients and servers, for example user names. So
//! control characters are escaped: otherwise, a line break could forge a line of the log, and an
//! escape sequence could change what a terminal shows. In the text format, [`EscapedFields`]
//! escapes them. The JSON format itself escapes line breaks and ESC, and [`EscapedJson`] escapes
//! the others.

use std::fmt::{self, Write};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::{RecordFields, VisitOutput as _},
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{DefaultVisitor, Writer},
    },
    registry::LookupSpan,
};

use crate::observe::write_escaped;

/// Writes fields as the log library does by default, but with escaped control characters.
pub(super) struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = EscapingVisitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct EscapingVisitor<'a>(DefaultVisitor<'a>);

impl Visit for EscapingVisitor<'_> {
    // The other functions of the trait call this function.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, &Escaped(value));
    }
}

/// Shows a value with escaped control characters. All other characters stay as they are.
struct Escaped<'a>(&'a dyn fmt::Debug);

impl fmt::Debug for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapingWriter(f), "{:?}", self.0)
    }
}

struct EscapingWriter<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for EscapingWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character.is_control() {
                true => write!(self.0, "{}", character.escape_debug())?,
                false => self.0.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Writes events in the JSON format `F`, but with escaped control characters.
pub(super) struct EscapedJson<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for EscapedJson<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut escaping = EscapingJsonWriter(writer);
        self.0
            .format_event(context, Writer::new(&mut escaping), event)
    }
}

struct EscapingJsonWriter<'a>(Writer<'a>);

impl Write for EscapingJsonWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_escaped(&mut self.0, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::MemoryLog;

    #[test]
    fn only_control_characters_are_escaped() {
        for (text, expected) in [
            ("app", "app"),
            ("Zoë \"the\\app\" 🦀", "Zoë \"the\\app\" 🦀"),
            ("a\r\n\tb\0", r"a\r\n\tb\0"),
            ("\u{1b}[31m\u{7f}\u{9b}", r"\u{1b}[31m\u{7f}\u{9b}"),
        ] {
            assert_eq!(format!("{:?}", Escaped(&format_args!("{text}"))), expected);
        }
    }

    #[test]
    fn a_user_name_cannot_forge_a_line_of_the_text_log() {
        let log = MemoryLog::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(EscapedFields)
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(subscriber.finish(), || {
            let (user, quoted) = ("u\n INFO forged", "q\n");
            tracing::info!(%user, quoted, number = 7, "refused\n INFO forged");
        });
        let log = log.text();
        let expected = r#" INFO refused\n INFO forged user=u\n INFO forged quoted="q\n" number=7"#;
        assert_eq!(log, format!("{expected}\n"));
    }

    /// U+009B begins an escape sequence, like ESC and `[`.
    #[test]
    fn control_characters_are_escaped_in_the_json_log() {
        let log = MemoryLog::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .map_event_format(EscapedJson)
            .with_writer(move || writer.clone());
        let user = "Zoë\n\u{1b}[31m\u{7f}\u{9b}31m";
        tracing::subscriber::with_default(subscriber.finish(), || {
            tracing::info!(%user, "refused");
        });
        let log = log.text();
        let line = log.strip_suffix('\n').unwrap();
        assert!(!line.contains(char::is_control), "{line:?}");
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(read["fields"]["user"], user);
    }
}
