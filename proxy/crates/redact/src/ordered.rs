//! Keyed maps from numbers to pseudonyms that keep the order of the numbers.
//!
//! A number other than zero is `±2^e · (1 + f)` with an exponent `e` and a fraction `f`. Its
//! pseudonym has the same sign and the exponent `e + s`; `s` is `OrderedMap::spread_bits`. So each
//! exponent has 2^s times as many pseudonyms as integers. Pseudonyms can therefore keep the order
//! of the numbers although their positions are random. The integers of one exponent are the leaves
//! of a tree. Each node divides its range of pseudonyms among 16 children, by weights that depend
//! on the key. But every child gets at least one pseudonym for each of its leaves.
//!
//! The pseudonym of a number depends on all bits before the binary point, and at least on the first
//! 40 bits of `f`. Two numbers that differ only in the remaining bits can get equal pseudonyms.

use crate::keyed::{Keyed, Purpose, number_of};

/// Exponents are limited to this range. All numbers of one sign with a larger exponent share one
/// pseudonym, and all numbers of one sign with a smaller exponent share another pseudonym.
const EXPONENTS: std::ops::RangeInclusive<i32> = -60..=100;

/// Bits of precision of a number with a fraction.
const PRECISION_BITS: u32 = 40;

/// Number of bits by which the fraction of a pseudonym is longer than the fraction of the number.
const FRACTION_SPREAD_BITS: u32 = 4;

/// One level of the tree selects at most this number of bits of a leaf's index. The tree is
/// described at the top of this file: its leaves are the integers of one exponent.
const LEVEL_BITS: u32 = 4;

/// A number other than zero, NaN and infinity: `±2^exponent · (1 + fraction / 2^63)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number {
    pub is_negative: bool,
    pub exponent: i32,
    /// The digits after the binary point, as a number of 63 bits.
    pub fraction: u64,
}

/// The pseudonym of a number: `±2^scale · (whole + part / 2^part_bits)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pseudonym {
    pub is_negative: bool,
    /// The exponent of the number, limited to [`EXPONENTS`]; 0 if the exponent is positive.
    pub scale: i32,
    pub whole: u128,
    pub part: u64,
    pub part_bits: u32,
}

/// An increasing map from numbers to pseudonyms. Numbers, dates and the times of ObjectIds have
/// different maps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderedMap<'a> {
    pub keyed: &'a Keyed,
    pub domain: u8,
    /// The pseudonym has this many bits more than the number.
    pub spread_bits: u32,
}

impl Number {
    /// The number with this absolute value, which is not zero.
    pub(crate) fn of_integer(is_negative: bool, magnitude: u128) -> Self {
        let bits = magnitude.max(1).ilog2();
        let fraction = magnitude & !(1 << bits);
        let fraction = match bits.checked_sub(FRACTION_BITS) {
            Some(lost) => fraction >> lost,
            None => fraction << (FRACTION_BITS - bits),
        };
        Self {
            is_negative,
            exponent: i32::try_from(bits).unwrap_or(i32::MAX),
            fraction: u64::try_from(fraction).unwrap_or(u64::MAX >> 1),
        }
    }

    /// Returns the number with its exponent limited to [`EXPONENTS`].
    fn limited(self) -> Self {
        if self.exponent > *EXPONENTS.end() {
            return Self {
                exponent: *EXPONENTS.end(),
                fraction: u64::MAX >> 1,
                ..self
            };
        }
        if self.exponent < *EXPONENTS.start() {
            return Self {
                exponent: *EXPONENTS.start(),
                fraction: 0,
                ..self
            };
        }
        self
    }
}

impl OrderedMap<'_> {
    /// The pseudonym of a number.
    pub(crate) fn map(&self, number: Number) -> Pseudonym {
        let number = number.limited();
        let whole_bits = u32::try_from(number.exponent).unwrap_or(0);
        // An integer with a large exponent has more bits than the fraction. The lowest bits of the
        // integer are then zero.
        let fraction = u128::from(number.fraction) << FRACTION_BITS;
        let integer = fraction >> (2 * FRACTION_BITS - whole_bits);
        let rest = fraction & ((1 << (2 * FRACTION_BITS - whole_bits)) - 1);
        let part_bits = PRECISION_BITS.saturating_sub(whole_bits);
        let part = rest >> (2 * FRACTION_BITS - whole_bits - part_bits);

        let prefix = Prefix::new(number);
        let position = self.leaf(&prefix, integer, whole_bits, self.spread_bits);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        Pseudonym {
            is_negative: number.is_negative,
            scale: number.exponent.min(0),
            whole: (1 << (whole_bits + self.spread_bits)) + position,
            part: self.part(&prefix, integer, part, part_bits),
            part_bits: match part_bits {
                0 => 0,
                bits => bits + FRACTION_SPREAD_BITS,
            },
        }
    }

    /// Selects the pseudonym of one integer. The integers of one exponent share
    /// `2^(bits + spread_bits)` pseudonyms. Returns the index of the selected pseudonym among these
    /// pseudonyms. `leaf` is the integer's index in the tree, whose `2^bits` leaves are the
    /// integers of this exponent.
    fn leaf(&self, prefix: &Prefix, leaf: u128, bits: u32, spread_bits: u32) -> u128 {
        let mut position = 0;
        let mut range: u128 = 1 << (bits + spread_bits);
        let mut left = bits;
        while left > 0 {
            let level_bits = match left % LEVEL_BITS {
                0 => LEVEL_BITS,
                first => first,
            };
            let path = leaf >> left;
            left -= level_bits;
            let leaves: u128 = 1 << left;
            let child = (leaf >> left) & ((1 << level_bits) - 1);
            let spare = range - (leaves << level_bits);
            let parts = [&prefix.0[..], &left.to_le_bytes(), &path.to_le_bytes()];
            let weights = self.keyed.block(Purpose::Tree, self.domain, &parts);
            let (before, own, all) = shares(&weights, child, level_bits);
            let offset = spare * before / all;
            let end = spare * (before + own) / all;
            position += child * leaves + offset;
            range = leaves + end - offset;
        }
        let parts = [&prefix.0[..], &leaf.to_le_bytes()];
        let block = self.keyed.block(Purpose::Leaf, self.domain, &parts);
        position + u128::from(number_of(&block)) % range
    }

    /// The pseudonym of the fractional part of a number. A part of zero stays zero, so that
    /// integers stay integers.
    fn part(&self, prefix: &Prefix, integer: u128, part: u64, bits: u32) -> u64 {
        if part == 0 {
            return 0;
        }
        let level_bits = bits.min(LEVEL_BITS);
        let left = bits - level_bits;
        let child = part >> left;
        let inner = part & ((1 << left) - 1);
        let leaves: u128 = 1 << left;
        let integer = integer.to_le_bytes();
        let parts = [&prefix.0[..], &integer];
        let weights = self.keyed.block(Purpose::Fraction, self.domain, &parts);
        let (before, own, all) = shares(&weights, child.into(), level_bits);
        let spare = (leaves << level_bits) * ((1 << FRACTION_SPREAD_BITS) - 1);
        let offset = spare * before / all;
        let range = leaves + spare * (before + own) / all - offset;
        let start = u128::from(child) * leaves + offset;

        let step = range / leaves;
        let noise = match inner {
            0 => 0,
            _ => {
                let parts = [&prefix.0[..], &integer, &part.to_le_bytes()];
                let block = self.keyed.block(Purpose::Leaf, self.domain, &parts);
                u128::from(number_of(&block)) % step
            }
        };
        let position = start + u128::from(inner) * step + noise;
        u64::try_from(position).unwrap_or(u64::MAX)
    }
}

/// A node of the tree divides its range of pseudonyms among its children by weights, which come
/// from the keyed function. Returns three sums of these weights: of the children before `child`, of
/// `child` alone, and of all children.
fn shares(weights: &[u8; 32], child: u128, level_bits: u32) -> (u128, u128, u128) {
    let (mut before, mut own, mut all) = (0, 0, 0);
    let children = 1_u128 << level_bits;
    for (index, pair) in (0..children).zip(weights.chunks_exact(2)) {
        let [low, high] = *pair else { continue };
        let weight = u128::from(u16::from_le_bytes([low, high])) + 1;
        all += weight;
        before += if index < child { weight } else { 0 };
        own += if index == child { weight } else { 0 };
    }
    (before, own, all)
}

/// The bytes that select a tree. Each combination of a sign and an exponent has its own tree.
#[derive(Clone, Copy, Debug)]
struct Prefix([u8; 5]);

impl Prefix {
    fn new(number: Number) -> Self {
        let [a, b, c, d] = number.exponent.to_le_bytes();
        Self([u8::from(number.is_negative), a, b, c, d])
    }
}

/// Number of bits of [`Number::fraction`].
pub(crate) const FRACTION_BITS: u32 = 63;
