//! Redacts messages and documents, element by element.

use seawall_command::ReplyForm;
use seawall_shape::{Place, Treatment};
use seawall_wire::{
    CHECKSUM_PRESENT, HEADER_BYTES, MAX_MESSAGE_BYTES, OpMsg, RawElement, checksum, document_at,
    kind, reserve_length, set_length, string_value,
};

use crate::{Mode, RedactError, Redactor, number, text};

/// Maximum nesting depth of documents. Servers allow 180 for a stored document, and more in
/// commands.
const MAX_DEPTH: u32 = 255;

pub(crate) fn command(redactor: &Redactor, message: &[u8]) -> Result<Vec<u8>, RedactError> {
    let parsed = OpMsg::parse(message).map_err(|_| RedactError::Malformed)?;
    rewrite(redactor, message, &parsed, Place::command(parsed.body))
}

pub(crate) fn reply(
    redactor: &Redactor,
    form: ReplyForm,
    message: &[u8],
) -> Result<Vec<u8>, RedactError> {
    let parsed = OpMsg::parse(message).map_err(|_| RedactError::Malformed)?;
    rewrite(redactor, message, &parsed, Place::reply(form))
}

pub(crate) fn document(redactor: &Redactor, document: &[u8]) -> Result<Vec<u8>, RedactError> {
    let bytes = Vec::new();
    let mut out = Output { redactor, bytes };
    out.container(document, None, 0)?;
    Ok(out.bytes)
}

/// Redacts a whole message. The body becomes the first section.
fn rewrite(
    redactor: &Redactor,
    message: &[u8],
    parsed: &OpMsg<'_>,
    place: Place,
) -> Result<Vec<u8>, RedactError> {
    let bytes = Vec::with_capacity(message.len());
    let mut out = Output { redactor, bytes };
    let head = message
        .get(..HEADER_BYTES + 4)
        .ok_or(RedactError::Malformed)?;
    out.bytes.extend_from_slice(head);
    out.bytes.push(0);
    out.container(parsed.body, Some(place), 0)?;
    for sequence in parsed.sequences() {
        out.bytes.push(1);
        let start = reserve_length(&mut out.bytes);
        out.bytes.extend_from_slice(sequence.identifier);
        out.bytes.push(0);
        let treatment = place.sequence(sequence.identifier);
        out.documents(sequence.documents, treatment)?;
        set_length(&mut out.bytes, start);
    }
    let mut bytes = out.bytes;
    if parsed.flags & CHECKSUM_PRESENT != 0 {
        bytes.extend_from_slice(&[0; 4]);
    }
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(RedactError::TooLarge);
    }
    set_length(&mut bytes, 0);
    if parsed.flags & CHECKSUM_PRESENT != 0 {
        let covered = bytes.len() - 4;
        bytes.truncate(covered);
        let sum = checksum([bytes.as_slice()]);
        bytes.extend_from_slice(&sum.to_le_bytes());
    }
    Ok(bytes)
}

/// The redacted bytes of a message or a document, and the redactor that creates them.
struct Output<'a> {
    redactor: &'a Redactor,
    bytes: Vec<u8>,
}

impl Output<'_> {
    /// Redacts and writes the documents of one document sequence (a section of an `OP_MSG`).
    fn documents(&mut self, mut documents: &[u8], treatment: Treatment) -> Result<(), RedactError> {
        while !documents.is_empty() {
            let document = document_at(documents).map_err(|_| RedactError::Malformed)?;
            documents = documents.get(document.len()..).unwrap_or_default();
            let element = RawElement::new(kind::DOCUMENT, b"0", document);
            let treatment = match treatment {
                Treatment::Inside(place) => place.treatment(&element, false),
                other => other,
            };
            match treatment {
                Treatment::Keep => self.bytes.extend_from_slice(document),
                Treatment::Inside(place) => self.container(document, Some(place), 1)?,
                Treatment::Value | Treatment::Pattern | Treatment::Remove => {
                    self.container(document, None, 1)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a document or an array. If `place` is `None`, each element is treated as user data
    /// ([`Treatment::Value`]).
    fn container(
        &mut self,
        document: &[u8],
        place: Option<Place>,
        depth: u32,
    ) -> Result<(), RedactError> {
        if depth > MAX_DEPTH {
            return Err(RedactError::TooDeep);
        }
        match document_at(document) {
            Ok(whole) if whole.len() == document.len() => {}
            _ => return Err(RedactError::Malformed),
        }
        let start = reserve_length(&mut self.bytes);
        for (index, element) in RawElement::all(document).enumerate() {
            let element = element.map_err(|_| RedactError::Malformed)?;
            let treatment = match place {
                Some(place) => place.treatment(&element, index == 0),
                None => Treatment::Value,
            };
            self.element(&element, treatment, depth)?;
        }
        self.bytes.push(0);
        set_length(&mut self.bytes, start);
        Ok(())
    }

    fn element(
        &mut self,
        element: &RawElement<'_>,
        treatment: Treatment,
        depth: u32,
    ) -> Result<(), RedactError> {
        if matches!(treatment, Treatment::Remove) {
            return Ok(());
        }
        let kind_at = self.bytes.len();
        element.write_name(&mut self.bytes);
        let value = element.value;
        let place = match treatment {
            Treatment::Inside(place) => Some(place),
            Treatment::Keep | Treatment::Value | Treatment::Pattern | Treatment::Remove => None,
        };
        match (treatment, element.kind) {
            (Treatment::Keep, _) => self.bytes.extend_from_slice(value),
            (_, kind::DOCUMENT | kind::ARRAY) => self.container(value, place, depth + 1)?,
            (Treatment::Pattern, kind::STRING) => {
                let Redactor { keyed, mode } = self.redactor;
                let pattern = text::pattern(keyed, *mode, string_at(value)?);
                self.bytes.extend(string_value(&pattern));
            }
            _ => self.scalar(kind_at, element, depth)?,
        }
        Ok(())
    }

    /// Writes the pseudonym of a value that is neither a document nor an array.
    fn scalar(
        &mut self,
        kind_at: usize,
        element: &RawElement<'_>,
        depth: u32,
    ) -> Result<(), RedactError> {
        let (kind, value) = (element.kind, element.value);
        let Redactor { keyed, mode } = self.redactor;
        match kind {
            kind::STRING | kind::CODE | kind::SYMBOL => self.string(value)?,
            kind::BINARY => {
                let (head, mut data) = value.split_at_checked(5).ok_or(RedactError::Malformed)?;
                self.bytes.extend_from_slice(head);
                // The data of a binary of subtype 2 begins with its length, which drivers check.
                if let ([.., 2], Some((length, rest))) = (head, data.split_first_chunk())
                    && usize::try_from(i32::from_le_bytes(*length)) == Ok(rest.len())
                {
                    self.bytes.extend_from_slice(length);
                    data = rest;
                }
                self.permuted(kind, data);
            }
            kind::OBJECT_ID => self.object_id(value),
            kind::DATE => {
                let date = value.first_chunk().ok_or(RedactError::Malformed)?;
                let date = i64::from_le_bytes(*date);
                let date = match mode {
                    Mode::Equality => number::equal_date(keyed, date),
                    Mode::Ordered => number::ordered_date(keyed, date),
                };
                self.bytes.extend_from_slice(&date.to_le_bytes());
            }
            kind::REGEX => {
                let end = value.iter().position(|&byte| byte == 0);
                let (pattern, options) = value
                    .split_at_checked(end.unwrap_or_default())
                    .ok_or(RedactError::Malformed)?;
                self.bytes.extend(text::pattern(keyed, *mode, pattern));
                // A client may send any text as options, so only valid options are kept.
                let valid = b"ilmsux".iter().filter(|option| options.contains(option));
                self.bytes.push(0);
                self.bytes.extend(valid);
                self.bytes.push(0);
            }
            kind::DB_POINTER => {
                let (name, id) = value
                    .split_last_chunk::<12>()
                    .ok_or(RedactError::Malformed)?;
                self.string(name)?;
                self.object_id(id);
            }
            kind::CODE_WITH_SCOPE => self.code_with_scope(value, depth)?,
            kind::TIMESTAMP if *mode == Mode::Equality => self.permuted(kind, value),
            kind::DOUBLE | kind::INT32 | kind::INT64 | kind::DECIMAL => {
                self.number(kind_at, kind, value);
            }
            // Booleans, null and similar types stay unchanged. In the ordered mode, timestamps also
            // stay unchanged, because their pseudonyms would need more than the 64 bits of a
            // timestamp.
            _ => self.bytes.extend_from_slice(value),
        }
        Ok(())
    }

    fn number(&mut self, kind_at: usize, kind: u8, value: &[u8]) {
        let Redactor { keyed, mode } = self.redactor;
        match mode {
            Mode::Equality => self.bytes.extend(number::equal_number(keyed, kind, value)),
            Mode::Ordered => match number::ordered_number(keyed, kind, value) {
                None => self.bytes.extend_from_slice(value),
                Some((kind, value)) => {
                    if let Some(byte) = self.bytes.get_mut(kind_at) {
                        *byte = kind;
                    }
                    self.bytes.extend(value);
                }
            },
        }
    }

    fn object_id(&mut self, id: &[u8]) {
        match (self.redactor.mode, id.first_chunk()) {
            (Mode::Ordered, Some(id)) => {
                let id = number::ordered_object_id(&self.redactor.keyed, *id);
                self.bytes.extend_from_slice(&id);
            }
            _ => self.permuted(kind::OBJECT_ID, id),
        }
    }

    fn code_with_scope(&mut self, value: &[u8], depth: u32) -> Result<(), RedactError> {
        let start = reserve_length(&mut self.bytes);
        let inside = value.get(4..).ok_or(RedactError::Malformed)?;
        let length = inside.first_chunk().ok_or(RedactError::Malformed)?;
        let length = usize::try_from(i32::from_le_bytes(*length));
        let length = length.ok().and_then(|length| length.checked_add(4));
        let (code, scope) = length
            .and_then(|length| inside.split_at_checked(length))
            .ok_or(RedactError::Malformed)?;
        self.string(code)?;
        self.container(scope, None, depth + 1)?;
        set_length(&mut self.bytes, start);
        Ok(())
    }

    fn permuted(&mut self, domain: u8, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let written = self.bytes.get_mut(start..).unwrap_or_default();
        if !written.is_empty() {
            self.redactor.keyed.permute(domain, &[], written);
        }
    }

    /// Writes the pseudonym of a string.
    fn string(&mut self, value: &[u8]) -> Result<(), RedactError> {
        let Redactor { keyed, mode } = self.redactor;
        let text = text::text(keyed, *mode, string_at(value)?);
        self.bytes.extend(string_value(&text));
        Ok(())
    }
}

/// The bytes of a string, without its length and its NUL.
fn string_at(value: &[u8]) -> Result<&[u8], RedactError> {
    match value.split_last() {
        Some((0, rest)) => rest.get(4..).ok_or(RedactError::Malformed),
        _ => Err(RedactError::Malformed),
    }
}
