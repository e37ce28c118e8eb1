//! Builds the text of a shape for people. This happens once per new shape, so it may allocate
//! memory.

use super::form::{Bracket, Form, MemberStorage, Word};
use super::hash::Digest;
use super::name::Name;

/// One form (a part of a shape) as text. Only the first [`KEPT_BYTES`] are kept, so that a form
/// uses little memory even if the command has very long names.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Default, Debug)]
pub(super) struct Text {
    kept: String,
    /// Hash of the bytes that are not kept; `None` if all bytes are kept. Because of this hash, two
    /// long forms are equal only if their whole texts are equal.
    rest: Option<u64>,
}

impl Text {
    fn of(parts: &[&str]) -> Self {
        let mut text = Self::default();
        parts.iter().for_each(|part| text.push(part));
        text
    }

    fn push(&mut self, part: &str) {
        let room = match self.rest {
            None => KEPT_BYTES.saturating_sub(self.kept.len()),
            Some(_) => 0,
        };
        let (kept, rest) = part.split_at(part.floor_char_boundary(room));
        self.kept.push_str(kept);
        if !rest.is_empty() {
            self.push_rest(rest.as_bytes());
        }
    }

    fn push_text(&mut self, part: &Self) {
        self.push(&part.kept);
        if let Some(rest) = part.rest {
            self.push_rest(&rest.to_le_bytes());
        }
    }

    fn push_rest(&mut self, bytes: &[u8]) {
        let rest = Digest::of_number(self.rest.unwrap_or_default());
        self.rest = Some(rest.then(Digest::of_bytes(bytes)).as_u64());
    }

    /// The text, cut if it is too long.
    pub(super) fn into_string(self) -> String {
        let mut text = self.kept;
        if text.len() > MAX_TEXT_BYTES {
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES - CUT.len()));
            text.push_str(CUT);
        }
        text
    }
}

impl Form for Text {
    type MemberStorage = Vec<Self>;
    type Unordered = Vec<Self>;
    type Ordered = Vec<Self>;

    fn word(word: Word) -> Self {
        Self::of(&[word.text])
    }

    fn leaf(text: &[u8]) -> Self {
        let (kept, rest) = text.split_at(text.len().min(KEPT_BYTES));
        let mut leaf = Self::of(&[&String::from_utf8_lossy(kept)]);
        if !rest.is_empty() {
            leaf.push_rest(rest);
        }
        leaf
    }

    fn name(name: Name<'_>) -> Self {
        let (mut bytes, mut rest) = (Vec::new(), Self::default());
        let mut push = |part: &[u8]| {
            let room = KEPT_BYTES.saturating_sub(bytes.len());
            let (kept, cut) = part.split_at(part.len().min(room));
            bytes.extend_from_slice(kept);
            if !cut.is_empty() {
                rest.push_rest(cut);
            }
            room > part.len()
        };
        let mut sigils = name.sigils();
        let mut has_room = true;
        let is_quoted = name.each_component(|component, is_last| {
            has_room = match name.key().filter(|_| has_room) {
                None => push(component),
                Some(key) => push(&key.hide(component, sigils)),
            };
            sigils = 0;
            if !is_last {
                push(b".");
            }
        });
        let mut text = match is_quoted {
            true => Self::of(&[&quoted(&bytes)]),
            false => Self::of(&[&String::from_utf8_lossy(&bytes)]),
        };
        if let Some(rest) = rest.rest {
            text.push_rest(&rest.to_le_bytes());
        }
        text
    }

    fn entry(key: &Self, value: &Self) -> Self {
        let mut entry = key.clone();
        entry.push(":");
        entry.push_text(value);
        entry
    }

    fn add(entries: &mut Vec<Self>, entry: &Self) {
        entries.push(entry.clone());
    }

    fn close_set(mut entries: Vec<Self>, bracket: Bracket) -> Self {
        entries.sort_unstable();
        Self::close_sequence(&entries, bracket)
    }

    fn append(items: &mut Vec<Self>, item: &Self) {
        items.push(item.clone());
    }

    fn close_sequence(items: &Vec<Self>, bracket: Bracket) -> Self {
        let (open, close) = match bracket {
            Bracket::Document => ("{", "}"),
            Bracket::List => ("[", "]"),
        };
        let mut text = Self::of(&[open]);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                text.push(",");
            }
            text.push_text(item);
        }
        text.push(close);
        text
    }
}

impl MemberStorage<Text> for Vec<Text> {
    fn members(&self, count: usize) -> &[Text] {
        self.get(..count).unwrap_or(self)
    }

    fn put(&mut self, count: usize, member: Text) {
        self.truncate(count);
        self.push(member);
    }
}

/// Converts bytes to text; bytes that are not UTF-8 become `\xhh`.
pub(super) fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        push_invalid(&mut text, chunk.invalid());
    }
    text
}

fn quoted(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 2);
    text.push('"');
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => text.extend(['\\', character]),
                '\0'..='\x1f' => text.push_str(&format!("\\u{:04x}", u32::from(character))),
                _ => text.push(character),
            }
        }
        push_invalid(&mut text, chunk.invalid());
    }
    text.push('"');
    text
}

fn push_invalid(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push_str(&format!("\\x{byte:02x}"));
    }
}

/// Maximum length of a shape's text, which is used as a label and in logs. The hash covers the
/// whole shape.
const MAX_TEXT_BYTES: usize = 4096;

/// Maximum number of bytes of a form that are kept. Only whole characters are kept, so a cut form
/// can have up to three bytes fewer. It still has more than [`MAX_TEXT_BYTES`], so
/// [`Text::into_string`] always marks it with [`CUT`].
const KEPT_BYTES: usize = MAX_TEXT_BYTES + 8;
const CUT: &str = "...";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_with_different_ends_are_different_although_only_their_beginnings_are_stored() {
        let name = |end: &str| Text::name(Name::verbatim(("b".repeat(5_000) + end).as_bytes()));
        assert_eq!(name("x"), name("x"));
        assert_ne!(name("x"), name("y"));
        let list = |end| Text::close_sequence(&vec![name(end); 60], Bracket::List);
        assert_ne!(list("x"), list("y"));
        for long in [name("x"), Text::leaf(&[b'x'; 5_000]), list("x")] {
            assert!(
                long.kept.capacity() <= 2 * KEPT_BYTES,
                "{}",
                long.kept.capacity()
            );
            assert_eq!(long.into_string().len(), MAX_TEXT_BYTES);
        }
    }
}
