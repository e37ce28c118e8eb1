//! Random inputs: corpus entries with some changes. On average, one of 16 inputs consists only of
//! random bytes.
//!
//! There is no coverage feedback. The same seed gives the same inputs on every machine.

use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};

/// Maximum length of an input. 8 KiB are more than enough for every command of the corpora.
pub const MAX_INPUT_BYTES: usize = 8 * 1024;

/// Upper bound for the length of an input of random bytes.
const MAX_RANDOM_BYTES: usize = 300;

/// Maximum number of changes to one corpus entry.
const MAX_CHANGES: u32 = 8;

/// Numbers that often reveal errors in the handling of lengths and counts.
const INTERESTING: [i32; 24] = [
    0,
    1,
    2,
    3,
    4,
    5,
    12,
    13,
    14,
    15,
    16,
    17,
    26,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    16_777_216,
    48_000_000,
    i32::MAX,
    i32::MIN,
    -1,
];

/// Bytes with a meaning in the formats of inputs, such as BSON types and separators in texts.
const INTERESTING_BYTES: &[u8] =
    b"\x00\x01\x02\x03\x04\x05\x0b\x0f\x10\x12\x7f\x80\xff,=.$\"'[]\n ";

/// Generates inputs from a corpus.
#[derive(Debug)]
pub struct Mutator<'a> {
    corpus: &'a [Vec<u8>],
    random: StdRng,
    input: Vec<u8>,
}

impl<'a> Mutator<'a> {
    /// Creates a generator. The same seed gives the same inputs.
    pub fn new(corpus: &'a [Vec<u8>], seed: u64) -> Self {
        Self {
            corpus,
            random: StdRng::seed_from_u64(seed),
            input: Vec::with_capacity(MAX_INPUT_BYTES),
        }
    }

    /// Returns the next input.
    pub fn next_input(&mut self) -> &[u8] {
        self.input.clear();
        let is_new = self.corpus.is_empty() || self.random.random_ratio(1, 16);
        if is_new {
            let length = self.random.random_range(0..MAX_RANDOM_BYTES);
            self.input.resize(length, 0);
            self.random.fill_bytes(&mut self.input);
        } else {
            let entry = self.entry();
            self.input.extend_from_slice(entry);
            // A small number of changes is more likely than a large number: the tested code reads
            // more of an input if most of the corpus entry is unchanged.
            let most = self.random.random_range(1..=MAX_CHANGES);
            for _ in 0..self.random.random_range(1..=most) {
                self.change();
            }
        }
        self.input.truncate(MAX_INPUT_BYTES);
        &self.input
    }

    fn entry(&mut self) -> &'a [u8] {
        let index = self.random.random_range(0..self.corpus.len().max(1));
        self.corpus.get(index).map_or(&[], Vec::as_slice)
    }

    fn change(&mut self) {
        match self.random.random_range(0..10) {
            0 | 1 => self.flip_bit(),
            2 => self.set_byte(),
            3 => self.set_interesting_byte(),
            4 | 5 => self.set_integer(),
            6 => self.remove(),
            7 => self.insert(),
            8 => self.copy_from_entry(),
            _ => self.truncate_or_repeat(),
        }
    }

    /// Returns a random offset into the input. It may be the end of the input.
    fn offset(&mut self) -> usize {
        self.random.random_range(0..=self.input.len())
    }

    /// Returns a range within `length`, mostly of a few bytes.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.random.random_range(0..=length);
        let most = match self.random.random_range(0..4) {
            0 => length - start,
            _ => (length - start).min(16),
        };
        start..start + self.random.random_range(0..=most)
    }

    fn flip_bit(&mut self) {
        let (offset, bit) = (self.offset(), self.random.random_range(0..8));
        if let Some(byte) = self.input.get_mut(offset) {
            *byte ^= 1 << bit;
        }
    }

    fn set_byte(&mut self) {
        let (offset, value) = (self.offset(), self.random.random());
        if let Some(byte) = self.input.get_mut(offset) {
            *byte = value;
        }
    }

    fn set_interesting_byte(&mut self) {
        let offset = self.offset();
        let index = self.random.random_range(0..INTERESTING_BYTES.len());
        let value = INTERESTING_BYTES.get(index).copied().unwrap_or_default();
        if let Some(byte) = self.input.get_mut(offset) {
            *byte = value;
        }
    }

    /// Overwrites four bytes with a number in little endian. This is a number from `INTERESTING`, a
    /// small number, a number slightly below the input's length, or a number near the overwritten
    /// number.
    fn set_integer(&mut self) {
        let offset = self.offset();
        let length = i32::try_from(self.input.len()).unwrap_or(i32::MAX);
        let number = match self.random.random_range(0..4) {
            0 => length.saturating_sub(self.random.random_range(0..32)),
            1 => self.random.random_range(-4..512),
            _ => {
                let index = self.random.random_range(0..INTERESTING.len());
                INTERESTING.get(index).copied().unwrap_or_default()
            }
        };
        let is_near = self.random.random_ratio(1, 4);
        let Some(current) = self
            .input
            .get_mut(offset..)
            .and_then(|rest| rest.first_chunk_mut())
        else {
            return;
        };
        *current = match is_near {
            true => i32::from_le_bytes(*current)
                .wrapping_add(number % 8)
                .to_le_bytes(),
            false => number.to_le_bytes(),
        };
    }

    fn remove(&mut self) {
        let range = self.range(self.input.len());
        self.input.drain(range);
    }

    fn insert(&mut self) {
        let offset = self.offset();
        let mut bytes = [0; 16];
        let count = self.random.random_range(1..=bytes.len());
        match self.random.random_range(0..3) {
            0 => bytes.fill(self.random.random()),
            1 => {}
            _ => self.random.fill_bytes(&mut bytes),
        }
        self.input
            .splice(offset..offset, bytes.into_iter().take(count));
    }

    /// Copies a piece of a corpus entry into the input. The piece overwrites bytes of the input, or
    /// is inserted between them.
    fn copy_from_entry(&mut self) {
        let entry = self.entry();
        let from = self.range(entry.len());
        let piece = entry.get(from).unwrap_or_default();
        let start = self.offset();
        let end = match self.random.random_bool(0.5) {
            true => start,
            false => (start + piece.len()).min(self.input.len()),
        };
        self.input.splice(start..end, piece.iter().copied());
    }

    fn truncate_or_repeat(&mut self) {
        if self.random.random_bool(0.5) {
            let length = self.offset();
            self.input.truncate(length);
            return;
        }
        let range = self.range(self.input.len());
        let piece = self.input.get(range.clone()).unwrap_or_default().to_vec();
        let times = self.random.random_range(1..8);
        self.input
            .splice(range.start..range.start, piece.repeat(times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_inputs() {
        let corpus = [b"some bytes".to_vec(), b"others".to_vec()];
        let mut one = Mutator::new(&corpus, 7);
        let mut other = Mutator::new(&corpus, 7);
        for _ in 0..1_000 {
            assert_eq!(one.next_input(), other.next_input());
        }
    }

    #[test]
    fn no_input_exceeds_the_size_limit_for_any_corpus() {
        for corpus in [vec![], vec![vec![]], vec![vec![1; 2 * MAX_INPUT_BYTES]]] {
            let mut mutator = Mutator::new(&corpus, 1);
            for _ in 0..10_000 {
                assert!(mutator.next_input().len() <= MAX_INPUT_BYTES);
            }
        }
    }
}
