//! The hash function of shapes.
//!
//! The mixing step is the multiply-and-fold of wyhash (Wang Yi, final version 4, public domain),
//! with its constants: it multiplies two 64-bit words to 128 bits and combines the two halves. The
//! code is not from a crate, because the hash must never change: statistics of instances with
//! different releases are merged by hash. All reads are little-endian, and nothing depends on the
//! word size.

/// The hash of one form (a part of a shape).
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub(super) struct Digest(pub(super) u64);

impl Digest {
    /// The digest's 64 bits.
    pub(super) const fn as_u64(self) -> u64 {
        self.0
    }

    /// The hash of bytes and of their number.
    pub(super) const fn of_bytes(bytes: &[u8]) -> Self {
        Self(hash_bytes(bytes))
    }

    /// The digest whose [`Self::as_u64`] returned this number.
    pub(super) const fn of_number(number: u64) -> Self {
        Self(number)
    }

    /// The hash of unquoted text. A path is hashed component by component, because names are read
    /// one component at a time.
    pub(super) const fn of_text(text: &[u8]) -> Self {
        if let b"{}" = text {
            return Self(close(0, 0, Bracket::Document));
        }
        // A list with one item prints like a name in brackets, so both must have the same hash.
        if let [b'[', inside @ .., b']'] = text {
            return match inside {
                [] => Self(close(0, 0, Bracket::List)),
                _ => Self::list_of_one(Self::of_text(inside)),
            };
        }
        let mut path = Path::EMPTY;
        let mut rest = text;
        let mut length = 0;
        while let Some((component, after)) = rest.split_at_checked(length) {
            match after {
                [] => {
                    path.push(component);
                    break;
                }
                [b'.', after @ ..] => {
                    path.push(component);
                    rest = after;
                    length = 0;
                }
                _ => length += 1,
            }
        }
        path.digest()
    }

    /// The digest of two digests in this order.
    pub(super) const fn then(self, next: Self) -> Self {
        Self(combine(self.0, next.0))
    }

    pub(super) const fn list_of_one(item: Self) -> Self {
        Self(close(item.0, 1, Bracket::List))
    }
}

/// The brackets around a set or sequence.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Bracket {
    /// `{…}`
    Document,
    /// `[…]`
    List,
}

/// The hash of a path, to which components are added one by one.
pub(super) struct Path {
    folded: u64,
    pub(super) components: u64,
}

impl Path {
    pub(super) const EMPTY: Self = Self {
        folded: 0,
        components: 0,
    };

    pub(super) const fn push(&mut self, component: &[u8]) {
        let component = hash_bytes(component);
        self.folded = if self.components == 0 {
            component
        } else {
            combine(self.folded, component)
        };
        self.components += 1;
    }

    /// The hash of the path. For a path with one component, it is the hash of the component, so
    /// the hash of a plain name needs no further step.
    pub(super) const fn digest(&self) -> Digest {
        if self.components == 1 {
            Digest(self.folded)
        } else {
            Digest(combine(self.folded, self.components))
        }
    }
}

#[inline]
pub(super) const fn close(folded: u64, count: u64, bracket: Bracket) -> u64 {
    let tag = match bracket {
        Bracket::Document => DOCUMENT,
        Bracket::List => LIST,
    };
    combine(folded, tag ^ count)
}

#[inline]
pub(super) const fn combine(left: u64, right: u64) -> u64 {
    let (low, high) = multiply(left ^ SECRET_0, right ^ SECRET_1);
    fold(low ^ SECRET_0, high ^ SECRET_1)
}

#[inline]
pub(super) const fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut seed = SECRET_2;
    let mut rest = bytes;
    while rest.len() > 16 {
        let Some((block, after)) = rest.split_first_chunk::<16>() else {
            break;
        };
        let (left, right) = ends(block);
        seed = fold(left ^ SECRET_1, right ^ seed);
        rest = after;
    }
    let (left, right) = ends(rest);
    let (low, high) = multiply(left ^ SECRET_1, right ^ seed);
    fold(low ^ SECRET_0 ^ length(bytes), high ^ SECRET_1)
}

/// Up to 16 bytes as two words, which may overlap. The words and the length together identify the
/// bytes.
#[inline]
const fn ends(bytes: &[u8]) -> (u64, u64) {
    match bytes {
        [] => (0, 0),
        [a] => (u64_from(&[*a, 0, 0, 0]), 0),
        [a, b] => (u64_from(&[*a, *b, 0, 0]), 0),
        [a, b, c] => (u64_from(&[*a, *b, *c, 0]), 0),
        _ => match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
            _ => match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
                (Some(first), Some(last)) => (u64_from(first), u64_from(last)),
                _ => (0, 0),
            },
        },
    }
}

#[inline]
const fn u64_from(bytes: &[u8; 4]) -> u64 {
    let [a, b, c, d] = *bytes;
    u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0])
}

#[inline]
const fn fold(left: u64, right: u64) -> u64 {
    let (low, high) = multiply(left, right);
    low ^ high
}

#[inline]
#[expect(
    clippy::as_conversions,
    reason = "const code cannot call From; each cast to u64 takes one half of the product"
)]
const fn multiply(left: u64, right: u64) -> (u64, u64) {
    let product = (left as u128) * (right as u128);
    (product as u64, (product >> 64) as u64)
}

#[inline]
#[expect(
    clippy::as_conversions,
    reason = "const code cannot call From; a usize has at most 64 bits"
)]
const fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

const SECRET_0: u64 = 0x2d35_8dcc_aa6c_78a5;
const SECRET_1: u64 = 0x8bb8_4b93_962e_acc9;
const SECRET_2: u64 = 0x4b33_a62e_d433_d4a3;

/// Constants that distinguish documents, lists, sets and quoted names in the hash. For documents
/// and lists, [`close`] puts the number of items into the low 16 bits.
const DOCUMENT: u64 = 0x4d5a_2da5_1de1_0000;
const LIST: u64 = 0xa0b7_2c36_94e5_0000;
pub(super) const SET: u64 = 0x71d3_08b5_c2fa_0000;
pub(super) const QUOTED: Digest = Digest(0xe390_5ba1_7f64_0000);
