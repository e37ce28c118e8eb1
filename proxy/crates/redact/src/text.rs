//! Pseudonyms of strings and regular expressions.
//!
//! A string keeps its length in bytes. Each character is replaced by a character of the same class.
//! The classes are the printable ASCII characters, the control characters, and the characters of
//! two, three and four bytes in UTF-8. Within a class the replacement is a permutation, so
//! different strings have different pseudonyms. In [`Mode::Ordered`], the permutation depends on
//! the preceding characters, so equal prefixes have equal pseudonyms. In [`Mode::Equality`], all
//! characters are replaced three times, in alternating directions, so each character depends on all
//! others.

use seawall_shape::has_literal_prefix;

use crate::Mode;
use crate::keyed::{Block, Keyed, Purpose};

/// A string is divided into groups of characters, and the permutation of a character depends on all
/// earlier groups. Up to this number, each character is a group of its own.
const SINGLE_CHARACTERS: usize = 64;

/// Number of characters in each of the later groups, after the [`SINGLE_CHARACTERS`].
const GROUP: usize = 8;

/// The pseudonym of a string. Bytes that are not UTF-8 become characters of one byte.
pub(crate) fn text(keyed: &Keyed, mode: Mode, bytes: &[u8]) -> Vec<u8> {
    let mut characters = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        characters.extend(chunk.valid().chars());
        let invalid = chunk.invalid().iter();
        characters.extend(invalid.map(|byte| char::from(byte & 0x7f | 0x20)));
    }
    let last = characters.len().saturating_sub(1);
    pass(keyed, 0, &mut characters, 0);
    if mode == Mode::Equality {
        characters.reverse();
        pass(keyed, 1, &mut characters, last);
        characters.reverse();
        pass(keyed, 2, &mut characters, 0);
    }
    characters.into_iter().collect::<String>().into_bytes()
}

/// The pseudonym of a regular expression. It has a literal prefix if and only if the original has
/// one. There are two cases:
/// - In the ordered mode, if the original has a literal prefix that [`literal_prefix`] can read:
///   `^` and the pseudonym of this prefix. This regular expression matches the pseudonyms of all
///   strings that begin with the prefix.
/// - In all other cases: letters. They follow a `^` if the original has a literal prefix.
pub(crate) fn pattern(keyed: &Keyed, mode: Mode, bytes: &[u8]) -> Vec<u8> {
    if !has_literal_prefix(bytes) {
        return letters(keyed, bytes, bytes.len());
    }
    if mode == Mode::Ordered {
        let literal = literal_prefix(bytes);
        if !literal.is_empty() {
            return escaped(&text(keyed, mode, &literal));
        }
    }
    let letters = letters(keyed, bytes, bytes.len().saturating_sub(1).max(1));
    [&b"^"[..], &letters].concat()
}

/// Replaces each character. `characters` may be the reversed string. `first` is the index of the
/// string's first character: 0, or the last index if the string is reversed.
fn pass(keyed: &Keyed, domain: u8, characters: &mut [char], first: usize) {
    let mut block = Block::default();
    let mut earlier = Vec::new();
    let mut index = 0;
    let (single, groups) = characters.split_at_mut(characters.len().min(SINGLE_CHARACTERS));
    for group in single.chunks_mut(1).chain(groups.chunks_mut(GROUP)) {
        block = keyed.block(Purpose::Text, domain, &[&block, &earlier]);
        earlier.clear();
        for (character, seed) in group.iter_mut().zip(block.chunks_exact(4)) {
            let seed = seed
                .first_chunk()
                .map_or(0, |seed| u32::from_le_bytes(*seed));
            earlier.extend(u32::from(*character).to_le_bytes());
            *character = replaced(*character, seed, index == first);
            index += 1;
        }
    }
}

/// The character of the same class that replaces `character`. NUL and DEL stay. `|` stays, and is
/// never a replacement, because it would end the literal prefix of a pattern. A `$` that begins a
/// string stays, and no other character becomes a `$` there, because in an expression this `$`
/// marks a path.
fn replaced(character: char, seed: u32, is_first: bool) -> char {
    let code = u32::from(character);
    let code = match code {
        0 | PIPE | 0x7f => code,
        DOLLAR if is_first => code,
        0x01..=0x1f => permuted(code, 0x01, 0x1f, seed),
        0x20..=0x7e if is_first => {
            // `$` and `|` are excluded: a code is reduced by one for each of them that is below
            // it, so that the remaining codes are consecutive.
            let dense = code - u32::from(code > DOLLAR) - u32::from(code > PIPE);
            let moved = permuted(dense, 0x20, 0x7c, seed);
            let moved = moved + u32::from(moved >= DOLLAR);
            moved + u32::from(moved >= PIPE)
        }
        0x20..=0x7e => {
            let dense = code - u32::from(code > PIPE);
            let moved = permuted(dense, 0x20, 0x7d, seed);
            moved + u32::from(moved >= PIPE)
        }
        0x80..=0x7ff => permuted(code, 0x80, 0x7ff, seed),
        // Surrogates are not characters. The codes above them are reduced, so that the remaining
        // codes are consecutive.
        0x800..=0xffff => {
            let dense = code - if code > 0xdfff { SURROGATES } else { 0 };
            let moved = permuted(dense, 0x800, 0xffff - SURROGATES, seed);
            moved + if moved > 0xd7ff { SURROGATES } else { 0 }
        }
        _ => permuted(code, 0x1_0000, 0x10_ffff, seed),
    };
    char::from_u32(code).unwrap_or(character)
}

const DOLLAR: u32 = 0x24;
const PIPE: u32 = 0x7c;

/// Number of surrogates. Their codes are between codes of characters that have three bytes in
/// UTF-8.
const SURROGATES: u32 = 0x800;

/// Replaces a code by a code within `first..=last`, with a permutation that does not keep the order
/// of the codes.
fn permuted(code: u32, first: u32, last: u32, seed: u32) -> u32 {
    let count = u64::from(last - first) + 1;
    let mut factor = 1 + u64::from(seed) % (count - 1);
    while !is_coprime(factor, count) {
        factor += 1;
    }
    // The upper bits of the product depend on all bits of the seed.
    let shift = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let moved = (u64::from(code - first) * factor + shift) % count;
    first + u32::try_from(moved).unwrap_or(0)
}

fn is_coprime(one: u64, other: u64) -> bool {
    let (mut one, mut other) = (one, other);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one == 1
}

/// The literal characters at the beginning of a pattern. An anchor (`^` or `\A`) before them is
/// skipped.
fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let anchored = pattern.strip_prefix(b"^");
    let mut rest = anchored
        .or_else(|| pattern.strip_prefix(b"\\A"))
        .unwrap_or(pattern);
    let mut literal = Vec::new();
    loop {
        let (byte, after) = match rest {
            [b'\\', escaped, after @ ..] if escaped.is_ascii_punctuation() => (*escaped, after),
            [byte, after @ ..] if !META.contains(byte) => (*byte, after),
            _ => break,
        };
        literal.push(byte);
        rest = after;
    }
    // A quantifier can make the last character optional, so this character is not in the prefix.
    if matches!(rest.first(), Some(b'?' | b'*' | b'{')) {
        let end = literal.utf8_chunks().last().map_or(0, |chunk| {
            let last = chunk.valid().chars().next_back();
            last.map_or(1, char::len_utf8)
        });
        literal.truncate(literal.len().saturating_sub(end));
    }
    literal
}

/// An anchored pattern that matches strings with this prefix.
fn escaped(literal: &[u8]) -> Vec<u8> {
    let mut pattern = b"^".to_vec();
    for byte in literal {
        if byte.is_ascii_punctuation() {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern
}

/// Returns `count` letters that depend on the key and on the pattern.
fn letters(keyed: &Keyed, pattern: &[u8], count: usize) -> Vec<u8> {
    let bytes = keyed.bytes(Purpose::Pattern, 0, &[pattern], count);
    bytes.into_iter().map(|byte| b'a' + byte % 26).collect()
}

/// The characters with a special meaning in a regular expression.
const META: &[u8] = b"\\^$.|?*+()[]{}";
