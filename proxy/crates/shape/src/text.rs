//! Builds the text of a shape for people. This happens once per new shape, so it may allocate
//! memory.

use super::form::{Bracket, Form, MemberStorage, Word};
use super::name::Name;

/// One form as text.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Default, Debug)]
pub(super) struct Text(String);

impl Text {
    /// The text, cut if it is too long.
    pub(super) fn into_string(self) -> String {
        let Self(mut text) = self;
        if text.len() > MAX_TEXT_BYTES {
            let mut end = MAX_TEXT_BYTES - CUT.len();
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
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
        Self(word.text.to_owned())
    }

    fn leaf(text: &[u8]) -> Self {
        Self(String::from_utf8_lossy(text).into_owned())
    }

    fn name(name: Name<'_>) -> Self {
        let mut bytes = Vec::new();
        let mut sigils = name.sigils();
        let is_quoted = name.each_component(|component, is_last| {
            match name.key() {
                None => bytes.extend_from_slice(component),
                Some(key) => bytes.extend(key.hide(component, sigils)),
            }
            sigils = 0;
            if !is_last {
                bytes.push(b'.');
            }
        });
        Self(if is_quoted {
            quoted(&bytes)
        } else {
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }

    fn entry(key: &Self, value: &Self) -> Self {
        Self(format!("{}:{}", key.0, value.0))
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
        let items: Vec<&str> = items.iter().map(|item| item.0.as_str()).collect();
        Self(format!("{open}{}{close}", items.join(",")))
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
const CUT: &str = "...";
