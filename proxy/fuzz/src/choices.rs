//! A fuzz target uses the first bytes of its input to decide what it does: which mode it tests, how
//! large a value is, where it splits a message. This module decodes these bytes.

/// Makes the decisions of a fuzz target. Each decision uses the next bytes of the input, or zeros
/// after the end of the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        byte
    }

    /// Returns an index below `count`, which must not be zero.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        let [low, high] = [self.byte(), self.byte()];
        usize::from(u16::from_le_bytes([low, high])) % count
    }

    pub(crate) fn bool(&mut self) -> bool {
        !self.byte().is_multiple_of(2)
    }

    /// Reads one byte as a count, and returns at most that many of the bytes after it.
    pub(crate) fn short(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte()).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    /// Returns all remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// A pseudo-random sequence of piece sizes, for feeding bytes in pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    state: u32,
}

impl Pieces {
    pub(crate) fn new(seed: u8) -> Self {
        Self {
            state: u32::from(seed) | 0x100,
        }
    }

    /// Returns a size from 1 to 511. About half of the sizes are at most 7.
    pub(crate) fn next_size(&mut self) -> usize {
        self.state = self
            .state
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        let [_, low, high, kind] = self.state.to_le_bytes();
        match kind % 4 {
            0 => 1,
            1 => 1 + usize::from(low % 7),
            2 => 1 + usize::from(low),
            _ => 1 + usize::from(low) + usize::from(high),
        }
    }

    /// Splits `bytes` into pieces.
    pub(crate) fn split(mut self, mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
        std::iter::from_fn(move || {
            let size = self.next_size().min(bytes.len());
            let (piece, rest) = bytes.split_at(size);
            bytes = rest;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

/// Returns the bytes with up to `count` changes that the choices select: a byte replaced, inserted
/// or removed, or the end cut off.
pub(crate) fn altered(bytes: &[u8], choices: &mut Choices<'_>, count: u8) -> Vec<u8> {
    let mut altered = bytes.to_vec();
    for _ in 0..choices.byte() % count.saturating_add(1) {
        let offset = choices.index(altered.len().max(1));
        let (kind, byte) = (choices.byte(), choices.byte());
        match kind % 4 {
            0 => altered.insert(offset, byte),
            1 if !altered.is_empty() => {
                altered.remove(offset);
            }
            2 => altered.truncate(offset),
            _ => {
                if let Some(current) = altered.get_mut(offset) {
                    *current = byte;
                }
            }
        }
    }
    altered
}
