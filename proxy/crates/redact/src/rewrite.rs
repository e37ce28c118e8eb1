//! Redacts messages and documents, element by element.

use seawall_command::ReplyForm;
use seawall_shape::{Place, Treatment};
use seawall_wire::{
    CHECKSUM_PRESENT, HEADER_BYTES, MAX_MESSAGE_BYTES, OpMsg, RawElement, checksum, document_at,
};

use crate::{Mode, RedactError, Redactor, number, text};

/// Largest depth of documents. Servers allow 180 for a stored document, and more in commands.
const MAX_DEPTH: u32 = 255;

/// The type byte of a document, and of an array.
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;

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
    let mut out = Output::default();
    out.container(redactor, document, None, 0)?;
    Ok(out.0)
}

/// Redacts a whole message. The body becomes the first section.
fn rewrite(
    redactor: &Redactor,
    message: &[u8],
    parsed: &OpMsg<'_>,
    place: Place,
) -> Result<Vec<u8>, RedactError> {
    let mut out = Output(Vec::with_capacity(message.len()));
    let head = message
        .get(..HEADER_BYTES + 4)
        .ok_or(RedactError::Malformed)?;
    out.0.extend_from_slice(head);
    out.0.push(0);
    out.container(redactor, parsed.body, Some(place), 0)?;
    for sequence in parsed.sequences() {
        out.0.push(1);
        let start = out.0.len();
        out.0.extend_from_slice(&[0; 4]);
        out.0.extend_from_slice(sequence.identifier);
        out.0.push(0);
        let treatment = place.sequence(sequence.identifier);
        out.documents(redactor, sequence.documents, treatment)?;
        out.set_length(start)?;
    }
    if parsed.flags & CHECKSUM_PRESENT != 0 {
        out.0.extend_from_slice(&[0; 4]);
    }
    if out.0.len() > MAX_MESSAGE_BYTES {
        return Err(RedactError::TooLarge);
    }
    out.set_length(0)?;
    if parsed.flags & CHECKSUM_PRESENT != 0 {
        let covered = out.0.len() - 4;
        out.0.truncate(covered);
        let sum = checksum([out.0.as_slice()]);
        out.0.extend_from_slice(&sum.to_le_bytes());
    }
    Ok(out.0)
}

/// The redacted bytes.
#[derive(Default)]
struct Output(Vec<u8>);

impl Output {
    /// Redacts and writes the documents of one document sequence (a section of an `OP_MSG`).
    fn documents(
        &mut self,
        redactor: &Redactor,
        mut documents: &[u8],
        treatment: Treatment,
    ) -> Result<(), RedactError> {
        while !documents.is_empty() {
            let document = document_at(documents).map_err(|_| RedactError::Malformed)?;
            documents = documents.get(document.len()..).unwrap_or_default();
            let element = RawElement {
                kind: DOCUMENT,
                name: b"0",
                head: 0,
                value: document,
            };
            let treatment = match treatment {
                Treatment::Inside(place) => place.treatment(&element, false),
                other => other,
            };
            match treatment {
                Treatment::Keep => self.0.extend_from_slice(document),
                Treatment::Inside(place) => self.container(redactor, document, Some(place), 1)?,
                Treatment::Value | Treatment::Pattern | Treatment::Remove => {
                    self.container(redactor, document, None, 1)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a document or an array. If `place` is `None`, each element is treated as user data
    /// ([`Treatment::Value`]).
    fn container(
        &mut self,
        redactor: &Redactor,
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
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        for (index, element) in RawElement::all(document).enumerate() {
            let element = element.map_err(|_| RedactError::Malformed)?;
            let treatment = match place {
                Some(place) => place.treatment(&element, index == 0),
                None => Treatment::Value,
            };
            self.element(redactor, &element, treatment, depth)?;
        }
        self.0.push(0);
        self.set_length(start)
    }

    fn element(
        &mut self,
        redactor: &Redactor,
        element: &RawElement<'_>,
        treatment: Treatment,
        depth: u32,
    ) -> Result<(), RedactError> {
        if matches!(treatment, Treatment::Remove) {
            return Ok(());
        }
        let kind_at = self.0.len();
        self.0.push(element.kind);
        self.0.extend_from_slice(element.name);
        self.0.push(0);
        let value = element.value;
        let place = match treatment {
            Treatment::Inside(place) => Some(place),
            Treatment::Keep | Treatment::Value | Treatment::Pattern | Treatment::Remove => None,
        };
        match (treatment, element.kind) {
            (Treatment::Keep, _) => self.0.extend_from_slice(value),
            (_, DOCUMENT | ARRAY) => self.container(redactor, value, place, depth + 1)?,
            (Treatment::Pattern, 0x02) => {
                let bytes = string_at(value)?;
                self.string(&text::pattern(&redactor.keyed, redactor.mode, bytes))?;
            }
            _ => self.scalar(redactor, kind_at, element, depth)?,
        }
        Ok(())
    }

    /// Writes the pseudonym of a value that is neither a document nor an array.
    fn scalar(
        &mut self,
        redactor: &Redactor,
        kind_at: usize,
        element: &RawElement<'_>,
        depth: u32,
    ) -> Result<(), RedactError> {
        let (kind, value) = (element.kind, element.value);
        let Redactor { keyed, mode } = redactor;
        match kind {
            0x02 | 0x0d | 0x0e => self.string(&text::text(keyed, *mode, string_at(value)?))?,
            0x05 => {
                let (head, data) = value.split_at_checked(5).ok_or(RedactError::Malformed)?;
                self.0.extend_from_slice(head);
                self.permuted(redactor, kind, data);
            }
            0x07 => self.object_id(redactor, value),
            0x09 => {
                let date = value.first_chunk().ok_or(RedactError::Malformed)?;
                let date = i64::from_le_bytes(*date);
                let date = match mode {
                    Mode::Equality => number::equal_date(keyed, date),
                    Mode::Ordered => number::ordered_date(keyed, date),
                };
                self.0.extend_from_slice(&date.to_le_bytes());
            }
            0x0b => {
                let end = value.iter().position(|&byte| byte == 0);
                let (pattern, options) = value
                    .split_at_checked(end.unwrap_or_default())
                    .ok_or(RedactError::Malformed)?;
                self.0.extend(text::pattern(keyed, *mode, pattern));
                self.0.extend_from_slice(options);
            }
            0x0c => {
                let (name, id) = value
                    .split_last_chunk::<12>()
                    .ok_or(RedactError::Malformed)?;
                self.string(&text::text(keyed, *mode, string_at(name)?))?;
                self.object_id(redactor, id);
            }
            0x0f => self.code_with_scope(redactor, value, depth)?,
            0x11 if *mode == Mode::Equality => self.permuted(redactor, kind, value),
            number::DOUBLE | number::INT32 | number::INT64 | number::DECIMAL => {
                self.number(redactor, kind_at, kind, value);
            }
            // Booleans, null and similar types stay unchanged. So do timestamps in the ordered
            // mode, because their pseudonyms would need more than the 64 bits of a timestamp.
            _ => self.0.extend_from_slice(value),
        }
        Ok(())
    }

    fn number(&mut self, redactor: &Redactor, kind_at: usize, kind: u8, value: &[u8]) {
        let Redactor { keyed, mode } = redactor;
        match mode {
            Mode::Equality => self.0.extend(number::equal_number(keyed, kind, value)),
            Mode::Ordered => match number::ordered_number(keyed, kind, value) {
                None => self.0.extend_from_slice(value),
                Some((kind, value)) => {
                    if let Some(byte) = self.0.get_mut(kind_at) {
                        *byte = kind;
                    }
                    self.0.extend(value);
                }
            },
        }
    }

    fn object_id(&mut self, redactor: &Redactor, id: &[u8]) {
        match (redactor.mode, id.first_chunk()) {
            (Mode::Ordered, Some(id)) => {
                let id = number::ordered_object_id(&redactor.keyed, *id);
                self.0.extend_from_slice(&id);
            }
            _ => self.permuted(redactor, 0x07, id),
        }
    }

    fn code_with_scope(
        &mut self,
        redactor: &Redactor,
        value: &[u8],
        depth: u32,
    ) -> Result<(), RedactError> {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        let inside = value.get(4..).ok_or(RedactError::Malformed)?;
        let length = inside.first_chunk().ok_or(RedactError::Malformed)?;
        let length = usize::try_from(i32::from_le_bytes(*length));
        let length = length.ok().and_then(|length| length.checked_add(4));
        let (code, scope) = length
            .and_then(|length| inside.split_at_checked(length))
            .ok_or(RedactError::Malformed)?;
        let code = string_at(code)?;
        self.string(&text::text(&redactor.keyed, redactor.mode, code))?;
        self.container(redactor, scope, None, depth + 1)?;
        self.set_length(start)
    }

    fn permuted(&mut self, redactor: &Redactor, domain: u8, bytes: &[u8]) {
        let start = self.0.len();
        self.0.extend_from_slice(bytes);
        if let Some(bytes) = self.0.get_mut(start..).filter(|bytes| !bytes.is_empty()) {
            redactor.keyed.permute(domain, &[], bytes);
        }
    }

    /// Writes a string with its length and its NUL.
    fn string(&mut self, bytes: &[u8]) -> Result<(), RedactError> {
        let length = i32::try_from(bytes.len() + 1).map_err(|_| RedactError::TooLarge)?;
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(bytes);
        self.0.push(0);
        Ok(())
    }

    /// Writes the length of everything from `start` on into the four bytes at `start`.
    fn set_length(&mut self, start: usize) -> Result<(), RedactError> {
        let length = i32::try_from(self.0.len() - start).map_err(|_| RedactError::TooLarge)?;
        let field = self.0.get_mut(start..).and_then(<[u8]>::first_chunk_mut);
        if let Some(field) = field {
            *field = length.to_le_bytes();
        }
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
