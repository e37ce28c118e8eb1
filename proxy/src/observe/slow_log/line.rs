//! The JSON format of a slow log line.

use std::{
    io::{self, Write},
    mem,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bson::{RawArray, RawBinaryRef, RawBsonRef, RawDocument};
use serde::{Serialize, Serializer};
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

use super::super::json_text::write_escaped;
use seawall_command::CommandBytes;
use seawall_stats::PhaseTimes;
use seawall_wire::MAX_BSON_DEPTH;

/// Maximum length of a character in UTF-8, in bytes.
const MAX_CHARACTER_BYTES: usize = 4;

/// Maximum number of levels of a document whose values are written: the document itself, and the
/// levels of nesting that servers accept inside it.
const MAX_LEVELS: usize = 1 + MAX_BSON_DEPTH;

/// The data of one line: a slow operation.
#[derive(Clone, Debug)]
pub(crate) struct SlowLogEntry<'a> {
    /// When the operation ended.
    pub at: SystemTime,
    /// The id of the shape, or group of shapes, that `text` describes.
    pub shape: u64,
    /// The kind of the row that counts the operation: a `fine` row counts one shape, a `coarse` or
    /// `rest` row counts a group of shapes. The value is `evicted` if the row was removed while the
    /// operation ran, and `None` if shapes are not counted.
    pub level: Option<&'static str>,
    /// The id of the operation's own shape, if it differs from [`SlowLogEntry::shape`]; else
    /// `None`.
    pub fine_shape: Option<u64>,
    /// The command's name.
    pub command: &'a str,
    /// For a `getMore`: the command that opened its cursor. `shape` and `text` then describe that
    /// command. `None` for other commands, and if the cursor is unknown.
    pub opened_by: Option<&'a str>,
    /// The database.
    pub db: &'a str,
    /// The collection; empty if there is none.
    pub collection: &'a str,
    /// The shape's text, without values.
    pub text: &'a str,
    /// How the operation ended.
    pub outcome: &'static str,
    /// The error code, from the server or from Seawall; `None` if there is none.
    pub error_code: Option<i32>,
    /// Time from the last byte of the command to the last byte of the reply. For a streamed
    /// command, the time starts at the command's first byte.
    pub total: Duration,
    /// The time in each phase.
    pub phases: PhaseTimes,
    /// Size of the command in bytes.
    pub request_bytes: u64,
    /// Size of the replies in bytes.
    pub reply_bytes: u64,
    /// Number of documents that the operation returned, wrote or counted.
    pub documents: u64,
    /// The server to which the operation was sent last; `None` if it was sent to no server.
    pub server: Option<&'a str>,
    /// The client's number; 0 if the client is not known.
    pub client: i32,
    /// The client's user, as `source.name`; `None` if the client has not logged in or is not known.
    pub user: Option<&'a str>,
    /// The client's application; `None` if it is not known.
    pub application: Option<&'a str>,
    /// The command with its values; `None` if the line must have no values. The line contains the
    /// values only if the setting `redact` is off and `command_may_be_shown` is true.
    pub values: Option<CommandBytes<'a>>,
    /// True if the command was streamed: `values` then has only its first part.
    pub is_streamed: bool,
}

/// The values of a command as extended JSON, cut if they are too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Values {
    json: String,
    is_cut: bool,
}

impl Values {
    /// Writes the command as one JSON document, with its document sequences as arrays, and cuts it
    /// after `max_bytes`.
    pub(super) fn of(command: &CommandBytes<'_>, max_bytes: usize) -> Self {
        let mut bounded = BoundedBuffer {
            bytes: Vec::new(),
            max_bytes,
        };
        // Writing ends early at the limit or at an unreadable document. The part written so far is
        // used.
        let is_whole = write_command(&mut bounded, command).is_ok();
        let mut bytes = bounded.bytes;
        let valid = match std::str::from_utf8(&bytes) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        bytes.truncate(valid);
        Self {
            json: String::from_utf8(bytes).unwrap_or_default(),
            is_cut: !is_whole,
        }
    }
}

fn write_command(out: &mut BoundedBuffer, command: &CommandBytes<'_>) -> io::Result<()> {
    let body = RawDocument::from_bytes(command.body).map_err(io::Error::other)?;
    write_document(out, body, MAX_LEVELS)?;
    for sequence in command.sequences {
        out.bytes.pop_if(|last| *last == b'}');
        if out.bytes.last() != Some(&b'{') {
            out.write_all(b",")?;
        }
        let name = String::from_utf8_lossy(sequence.identifier);
        serde_json::to_writer(&mut *out, &name)?;
        out.write_all(b":[")?;
        let mut rest = sequence.documents;
        while !rest.is_empty() {
            let (document, after) = split_document(rest).ok_or(io::ErrorKind::InvalidData)?;
            write_document(out, document, MAX_LEVELS)?;
            if !after.is_empty() {
                out.write_all(b",")?;
            }
            rest = after;
        }
        out.write_all(b"]}")?;
    }
    Ok(())
}

/// Writes a document that may be nested at most `levels` levels deep; its own level counts. Fails
/// at the first deeper document. Without this limit, a client could exhaust the stack, because the
/// client chooses the depth.
fn write_document(
    out: &mut BoundedBuffer,
    document: &RawDocument,
    levels: usize,
) -> io::Result<()> {
    let levels = levels.checked_sub(1).ok_or(io::ErrorKind::InvalidData)?;
    out.write_all(b"{")?;
    let mut is_first = true;
    for element in document {
        let (name, value) = element.map_err(io::Error::other)?;
        if !mem::take(&mut is_first) {
            out.write_all(b",")?;
        }
        let name = out.start_of(name.as_str());
        serde_json::to_writer(&mut *out, name)?;
        out.write_all(b":")?;
        write_value(out, value, levels)?;
    }
    out.write_all(b"}")
}

/// Writes an array as [`write_document`] writes a document.
fn write_array(out: &mut BoundedBuffer, array: &RawArray, levels: usize) -> io::Result<()> {
    let levels = levels.checked_sub(1).ok_or(io::ErrorKind::InvalidData)?;
    out.write_all(b"[")?;
    let mut is_first = true;
    for value in array {
        let value = value.map_err(io::Error::other)?;
        if !mem::take(&mut is_first) {
            out.write_all(b",")?;
        }
        write_value(out, value, levels)?;
    }
    out.write_all(b"]")
}

/// Writes a value. Documents in it may be nested at most `levels` levels deep.
fn write_value(out: &mut BoundedBuffer, value: RawBsonRef<'_>, levels: usize) -> io::Result<()> {
    let value = match value {
        RawBsonRef::Document(inner) => return write_document(out, inner, levels),
        RawBsonRef::Array(inner) => return write_array(out, inner, levels),
        RawBsonRef::JavaScriptCodeWithScope(inner) => {
            out.write_all(br#"{"$code":"#)?;
            let code = out.start_of(inner.code);
            serde_json::to_writer(&mut *out, code)?;
            out.write_all(br#","$scope":"#)?;
            write_document(out, inner.scope, levels)?;
            return out.write_all(b"}");
        }
        RawBsonRef::String(text) => RawBsonRef::String(out.start_of(text)),
        RawBsonRef::JavaScriptCode(code) => RawBsonRef::JavaScriptCode(out.start_of(code)),
        RawBsonRef::Symbol(text) => RawBsonRef::Symbol(out.start_of(text)),
        // The JSON text of binary data is longer than the data. So as many bytes as still fit into
        // the buffer are enough to fill the buffer.
        RawBsonRef::Binary(RawBinaryRef { subtype, bytes }) => {
            let bytes = bytes.get(..out.room()).unwrap_or(bytes);
            RawBsonRef::Binary(RawBinaryRef { subtype, bytes })
        }
        value => value,
    };
    Ok(serde_json::to_writer(out, &value)?)
}

/// Splits a sequence of documents into its first document and the rest.
fn split_document(bytes: &[u8]) -> Option<(&RawDocument, &[u8])> {
    let length = i32::from_le_bytes(*bytes.first_chunk()?);
    let (document, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    Some((RawDocument::from_bytes(document).ok()?, rest))
}

/// A buffer that accepts at most `max_bytes`.
struct BoundedBuffer {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl BoundedBuffer {
    /// Number of bytes that still fit.
    fn room(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes.len())
    }

    /// The start of a text, so that a long text is not read to its end. The start is either the
    /// whole text, or too long for the buffer. In both cases, the buffer gets the same bytes as
    /// from the whole text.
    fn start_of<'a>(&self, text: &'a str) -> &'a str {
        let end = self.room().saturating_add(MAX_CHARACTER_BYTES);
        text.get(..text.floor_char_boundary(end)).unwrap_or(text)
    }
}

impl Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room();
        let fitting = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.bytes.extend_from_slice(fitting);
        // If the buffer is full, no byte is written. Then `write_all` fails, which ends the
        // writing.
        Ok(fitting.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The line without its end. [`finish`] adds the end, with the number of dropped lines.
pub(super) fn line(entry: &SlowLogEntry<'_>, values: Option<&Values>) -> Option<Vec<u8>> {
    let line = Line {
        at: rfc_3339(entry.at),
        shape: hex(entry.shape),
        level: entry.level,
        fine_shape: entry.fine_shape.map(hex),
        command: entry.command,
        opened_by: entry.opened_by,
        db: entry.db,
        collection: entry.collection,
        text: entry.text,
        outcome: entry.outcome,
        code: entry.error_code,
        total_ms: entry.total,
        phases_ms: entry.phases,
        request_bytes: entry.request_bytes,
        reply_bytes: entry.reply_bytes,
        documents: entry.documents,
        server: entry.server,
        client: entry.client,
        user: entry.user,
        application: entry.application,
        values: values.map(|values| &*values.json),
        values_cut: values.is_some_and(|values| values.is_cut || entry.is_streamed),
    };
    let json = serde_json::to_string(&line).ok()?;
    let mut line = String::with_capacity(json.len());
    write_escaped(&mut line, &json).ok()?;
    let mut line = line.into_bytes();
    line.pop_if(|last| *last == b'}');
    Some(line)
}

/// A line that only reports how many lines were dropped before it.
pub(super) fn only_left_out(at: SystemTime, left_out: u64) -> Vec<u8> {
    let mut line = format!(r#"{{"at":"{}""#, rfc_3339(at)).into_bytes();
    finish(&mut line, left_out);
    line
}

fn hex(shape: u64) -> String {
    format!("{shape:016x}")
}

/// Ends a line, and adds how many lines were dropped before it.
pub(super) fn finish(line: &mut Vec<u8>, left_out: u64) {
    if left_out > 0 {
        line.extend_from_slice(format!(r#","left_out":{left_out}"#).as_bytes());
    }
    line.extend_from_slice(b"}\n");
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    shape: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fine_shape: Option<String>,
    command: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    opened_by: Option<&'a str>,
    db: &'a str,
    collection: &'a str,
    text: &'a str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(serialize_with = "milliseconds")]
    total_ms: Duration,
    #[serde(serialize_with = "milliseconds_by_phase")]
    phases_ms: PhaseTimes,
    request_bytes: u64,
    reply_bytes: u64,
    documents: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    client: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    values_cut: bool,
}

#[derive(Serialize)]
struct Milliseconds(#[serde(serialize_with = "milliseconds")] Duration);

fn milliseconds_by_phase<S: Serializer>(
    phases: &PhaseTimes,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let named = phases.iter();
    serializer.collect_map(named.map(|(phase, time)| (phase.as_str(), Milliseconds(*time))))
}

/// Writes milliseconds with at most six decimals. A float prints up to 15 digits exactly, so
/// durations of up to eleven days lose no nanosecond.
fn milliseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    let (ms, rest_ns) = (duration.as_millis(), duration.subsec_nanos() % 1_000_000);
    let number: f64 = format!("{ms}.{rest_ns:06}")
        .parse()
        .map_err(serde::ser::Error::custom)?;
    serializer.serialize_f64(number)
}

/// The time in UTC with microseconds, in the format of RFC 3339. Times before 1970 become 1970.
fn rfc_3339(at: SystemTime) -> String {
    const FORMAT: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    let at = OffsetDateTime::from(at.max(UNIX_EPOCH));
    // Formatting fails only if a component of the format is missing, and a date with a time has all
    // components.
    at.format(FORMAT).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bson::{
        Binary, Bson, DateTime, JavaScriptCodeWithScope, RawDocumentBuf, doc, spec::BinarySubtype,
    };

    use super::*;
    use seawall_wire::Sequence;

    #[test]
    fn times_are_written_as_dates_in_utc() {
        for (since_epoch, expected) in [
            (Duration::ZERO, "1970-01-01T00:00:00.000000Z"),
            (
                Duration::new(951_782_399, 999_999_999),
                "2000-02-28T23:59:59.999999Z",
            ),
            (
                Duration::from_secs(951_782_400),
                "2000-02-29T00:00:00.000000Z",
            ),
            (
                Duration::from_secs(1_709_251_199),
                "2024-02-29T23:59:59.000000Z",
            ),
            (
                Duration::from_secs(1_735_689_599),
                "2024-12-31T23:59:59.000000Z",
            ),
            (
                Duration::from_micros(1_795_284_044_756_001),
                "2026-11-21T18:00:44.756001Z",
            ),
            (
                Duration::from_secs(4_107_542_400),
                "2100-03-01T00:00:00.000000Z",
            ),
        ] {
            assert_eq!(rfc_3339(UNIX_EPOCH + since_epoch), expected);
        }
    }

    #[test]
    fn times_in_milliseconds_are_exact_to_the_nanosecond() {
        #[derive(Serialize)]
        struct InMilliseconds(#[serde(serialize_with = "milliseconds")] Duration);
        for (ns, expected) in [
            (0, "0.0"),
            (1, "1e-6"),
            (1_000_001, "1.000001"),
            (12_500_000, "12.5"),
            (299_999_999, "299.999999"),
            (604_800_000_000_001, "604800000.000001"),
        ] {
            let written = serde_json::to_string(&InMilliseconds(Duration::from_nanos(ns))).unwrap();
            assert_eq!(written, expected);
        }
    }

    fn of_body(command: &RawDocument, max_bytes: usize) -> Values {
        let input = CommandBytes::of_body(command.as_bytes());
        Values::of(&input, max_bytes)
    }

    #[test]
    fn values_are_cut_between_characters() {
        let command = bson::rawdoc! { "a": "aß" };
        let all = r#"{"a":"aß"}"#;
        for (max_bytes, json, is_cut) in [
            (11, all, false),
            (10, r#"{"a":"aß""#, true),
            (9, r#"{"a":"aß"#, true),
            (8, r#"{"a":"a"#, true),
            (0, "", true),
        ] {
            let values = of_body(&command, max_bytes);
            assert_eq!((&*values.json, values.is_cut), (json, is_cut));
        }
    }

    #[test]
    fn the_json_writer_stops_at_the_length_limit() {
        let command =
            bson::rawdoc! { "find": "c", "filter": { "name": "ß".repeat(1_000), "n": 5 } };
        let all = of_body(&command, usize::MAX).json;
        assert!(
            all.starts_with(r#"{"find":"c","filter":{"name":"ßß"#),
            "{all}"
        );
        let read_back: bson::Document = serde_json::from_str(&all).unwrap();
        assert_eq!(read_back, bson::Document::try_from(&command).unwrap());
        for max_bytes in 0..60 {
            let some = of_body(&command, max_bytes).json;
            assert!(all.starts_with(&some));
            assert!(
                some.len() <= max_bytes && some.len() + 1 >= max_bytes,
                "{max_bytes}"
            );
        }
    }

    /// The document `{a: {a: … {} …}}` with this many levels of nesting inside the document.
    fn nested(levels: usize) -> RawDocumentBuf {
        let mut bytes = vec![5, 0, 0, 0, 0];
        for _ in 0..levels {
            let length = i32::try_from(bytes.len() + 8).unwrap();
            bytes = [&length.to_le_bytes()[..], b"\x03a\0", &bytes, &[0]].concat();
        }
        RawDocumentBuf::from_bytes(bytes).unwrap()
    }

    #[test]
    fn values_are_cut_before_a_document_that_is_nested_too_deeply() {
        let deepest = of_body(&nested(MAX_BSON_DEPTH), usize::MAX);
        let levels = r#"{"a":"#.repeat(MAX_BSON_DEPTH);
        let whole = format!("{levels}{{}}{}", "}".repeat(MAX_BSON_DEPTH));
        assert_eq!((deepest.json, deepest.is_cut), (whole, false));
        let cut = format!(r#"{levels}{{"a":"#);
        for levels in [MAX_BSON_DEPTH + 1, 16_000] {
            let values = of_body(&nested(levels), usize::MAX);
            assert_eq!((&values.json, values.is_cut), (&cut, true), "{levels}");
        }
    }

    #[test]
    fn values_have_the_same_json_as_in_the_bson_library_and_can_be_cut_at_any_length() {
        let binary = |subtype| Binary {
            subtype,
            bytes: vec![0, 200, 7, 255],
        };
        let code = JavaScriptCodeWithScope {
            code: "f(\"ß\")".to_owned(),
            scope: doc! { "x": [1, doc! { "y": "\n" }] },
        };
        let command = doc! {
            "find": "c", "ß\"": "🦀ß", "empty": "", "nothing": Bson::Null, "no": {}, "none": [],
            "number": 1.5, "long": 7_i64, "yes": true, "time": DateTime::from_millis(7),
            "bytes": binary(BinarySubtype::Generic), "uuid": binary(BinarySubtype::Uuid),
            "code": Bson::JavaScriptCode("🦀🦀".to_owned()), "scoped": code,
            "symbol": Bson::Symbol("🦀🦀".to_owned()), "array": [["🦀🦀"], {"a": "🦀🦀"}],
        };
        let command = RawDocumentBuf::from_bytes(command.to_vec().unwrap()).unwrap();
        let all = serde_json::to_string(&command).unwrap();
        let whole = of_body(&command, all.len());
        assert_eq!((&whole.json, whole.is_cut), (&all, false));
        for max_bytes in 0..all.len() {
            let some = of_body(&command, max_bytes);
            let end = all.floor_char_boundary(max_bytes);
            assert_eq!((&*some.json, some.is_cut), (&all[..end], true));
        }
    }

    fn sequences(documents: &[u8]) -> [Sequence<'_>; 2] {
        let updates = Sequence {
            identifier: b"updates",
            documents,
        };
        let strange = Sequence {
            identifier: b"a\"b\xff",
            documents: &[],
        };
        [updates, strange]
    }

    #[test]
    fn document_sequences_are_written_as_arrays() {
        let body = bson::rawdoc! { "update": "c", "ordered": true };
        let statements: Vec<u8> = [1, 2]
            .map(|n| bson::rawdoc! { "q": { "a": n }, "u": { "$set": { "b": "x" } } })
            .iter()
            .flat_map(|statement| statement.as_bytes().to_vec())
            .collect();
        let values = |documents, max_bytes| {
            let input = CommandBytes {
                body: body.as_bytes(),
                sequences: &sequences(documents),
            };
            Values::of(&input, max_bytes)
        };
        let all = r#"{"update":"c","ordered":true,"updates":[{"q":{"a":1},"u":{"$set":{"b":"x"}}},{"q":{"a":2},"u":{"$set":{"b":"x"}}}],"a\"b�":[]}"#;
        let whole = values(&statements, usize::MAX);
        assert_eq!((&*whole.json, whole.is_cut), (all, false));
        for max_bytes in 0..all.len() {
            let some = values(&statements, max_bytes);
            assert!(some.is_cut && some.json.len() <= max_bytes);
            assert!(all.starts_with(&some.json), "{}", some.json);
        }
        // The last document lacks its last byte, so the array ends before that document.
        let broken = values(&statements[..statements.len() - 1], usize::MAX);
        assert!(broken.is_cut && all.starts_with(&broken.json));
        assert!(broken.json.contains(r#"{"a":1}"#));
        let (body, sequences) = (bson::rawdoc! {}, sequences(&[]));
        let empty = CommandBytes {
            body: body.as_bytes(),
            sequences: &sequences[..1],
        };
        assert_eq!(Values::of(&empty, 100).json, r#"{"updates":[]}"#);
    }
}
