//! The printed form of names: paths, operators, collections. Data in a name becomes `*`. A name
//! that could be misread is quoted.
//!
//! A name is normalized one component at a time, in a small buffer. The whole name is never copied.

use super::hidden::NameKey;
use super::learned::Names;

/// A name to print in a shape.
#[derive(Copy, Clone, Debug)]
pub(super) struct Name<'a> {
    bytes: &'a [u8],
    /// Number of `$` with which `bytes` begins, if this is a path in an expression. These `$` are
    /// printed, but are not part of the path.
    sigils: usize,
    rule: Rule,
    /// The learned prefixes (paths below which all names count as data), if there are any.
    known: Option<&'a Names<'a>>,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Rule {
    /// Parts that look like data are printed as `*`.
    Normalised,
    /// The whole name is printed unchanged.
    Verbatim,
}

impl<'a> Name<'a> {
    /// The name of a path, a field or a variable.
    #[inline]
    pub(super) fn path(bytes: &'a [u8], known: Option<&'a Names<'a>>) -> Self {
        Self::expression_path(bytes, 0, known)
    }

    /// The name of a path in an expression. `bytes` begins with one or two `$`, and `sigils` is
    /// their number.
    pub(super) fn expression_path(
        bytes: &'a [u8],
        sigils: usize,
        known: Option<&'a Names<'a>>,
    ) -> Self {
        Self {
            bytes,
            sigils,
            rule: Rule::Normalised,
            known,
        }
    }

    /// A name that is printed unchanged: the name of a namespace, or of an index if there is no key
    /// for hashing names. The field names and the strings in a collation are printed in the same
    /// way.
    pub(super) fn verbatim(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            sigils: 0,
            rule: Rule::Verbatim,
            known: None,
        }
    }

    /// The name, if a quick check shows that it has one component and is printed unchanged. Most
    /// names pass this check.
    #[inline]
    pub(super) fn as_simple(&self) -> Option<&'a [u8]> {
        let is_short = (1..=MAX_COMPONENT_BYTES).contains(&self.bytes.len());
        (is_short && self.bytes.iter().all(|&byte| class_of(byte) == PLAIN)).then_some(self.bytes)
    }

    /// Calls `each` once for every component, with the bytes to print and with a flag that is true
    /// for the last component. Returns true if the name must be quoted.
    pub(super) fn each_component(&self, mut each: impl FnMut(&[u8], bool)) -> bool {
        let mut is_quoted = self.bytes.is_empty();
        let mut sigils = self.sigils;
        let mut rest = Some(self.bytes);
        let mut prefix = None;
        while let Some(name) = rest {
            let length = name.iter().take_while(|&&byte| byte != b'.').count();
            let (component, after) = name.split_at_checked(length).unwrap_or_default();
            rest = after.split_first().map(|(_, after)| after);
            let (own_sigils, data) = component.split_at_checked(sigils).unwrap_or_default();
            let is_learned = self
                .known
                .zip(prefix)
                .is_some_and(|(known, prefix)| known.is_data(prefix, data));
            let dynamic = match self.rule {
                Rule::Verbatim => 0,
                Rule::Normalised if is_learned => u64::MAX,
                Rule::Normalised => dynamic_bytes(data),
            };
            if dynamic == 0 {
                is_quoted |= component.iter().any(|&byte| class_of(byte) == QUOTED);
                each(component, rest.is_none());
                prefix = self.known.map(|known| known.descend(prefix, data));
            } else {
                let normal = NormalisedComponent::new(own_sigils, data, dynamic);
                is_quoted |= normal.needs_quotes;
                let printed = normal.as_bytes();
                each(printed, rest.is_none());
                let printed = printed.get(own_sigils.len()..).unwrap_or_default();
                prefix = self.known.map(|known| known.descend(prefix, printed));
            }
            sigils = 0;
        }
        is_quoted
    }

    /// The key for hashing the components; `None` if they are not hashed. Names of collections are
    /// never hashed.
    pub(super) fn key(&self) -> Option<&'a NameKey> {
        self.known.and_then(Names::key)
    }

    /// Number of `$` with which a path in an expression begins; 0 for other names.
    pub(super) fn sigils(&self) -> usize {
        self.sigils
    }

    /// Number of bracket pairs around the printed name; 0 if the name is quoted.
    pub(super) fn brackets(&self) -> usize {
        if !self.bytes.contains(&b'[') {
            return 0;
        }
        let (mut opening, mut closing, mut components) = (0, 0, 0_usize);
        let is_quoted = self.each_component(|component, _| {
            if components == 0 {
                opening = component.iter().take_while(|&&byte| byte == b'[').count();
            }
            closing = component
                .iter()
                .rev()
                .take_while(|&&byte| byte == b']')
                .count();
            components += 1;
        });
        if is_quoted { 0 } else { opening.min(closing) }
    }
}

/// True if the name may be printed as the name of an operator or stage. All operator names of
/// servers pass this check.
pub(super) fn is_operator_name(name: &[u8]) -> bool {
    name.len() <= MAX_COMPONENT_BYTES
        && name
            .iter()
            .all(|&byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$')
}

/// One component of a path (a part between dots), with `*` in place of bytes that are data.
struct NormalisedComponent {
    bytes: [u8; MAX_COMPONENT_BYTES + MAX_SIGILS],
    length: usize,
    /// True if the component needs quotes. A `*` in place of data needs none.
    needs_quotes: bool,
}

impl NormalisedComponent {
    fn new(sigils: &[u8], data: &[u8], dynamic: u64) -> Self {
        let bytes = [0; MAX_COMPONENT_BYTES + MAX_SIGILS];
        let mut normal = Self {
            bytes,
            length: 0,
            needs_quotes: false,
        };
        sigils.iter().for_each(|&sigil| normal.push(sigil));
        let mut follows_dynamic = false;
        // The first bytes are sufficient: if a component has more bytes than the mask `dynamic` has
        // bits, it counts as data and becomes one `*`.
        for (index, &byte) in data.iter().take(MAX_COMPONENT_BYTES).enumerate() {
            let is_dynamic = dynamic >> index & 1 == 1;
            if !is_dynamic {
                normal.needs_quotes |= class_of(byte) == QUOTED;
                normal.push(byte);
            } else if !follows_dynamic {
                // Adjacent bytes of data become one `*`.
                normal.push(b'*');
            }
            follows_dynamic = is_dynamic;
        }
        normal
    }

    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.length) {
            *slot = byte;
            self.length += 1;
        }
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// A bit mask of the bytes of a component that look like data, such as the digits of an id or a
/// date. The lowest bit is for the first byte.
fn dynamic_bytes(name: &[u8]) -> u64 {
    if name.len() > MAX_COMPONENT_BYTES {
        return u64::MAX;
    }
    if name.first().is_none_or(|&first| first == b'$') {
        return 0;
    }
    let digits = name.iter().filter(|byte| byte.is_ascii_digit()).count();
    if digits == name.len() {
        return u64::MAX;
    }
    // Data contains at least one decimal digit, and at least four decimal or sixteen hexadecimal
    // digits.
    if digits == 0 || (digits < MIN_DIGITS && name.len() < MIN_HEX_DIGITS) {
        return 0;
    }
    let hex = runs(
        name,
        0,
        |byte| byte.is_ascii_hexdigit(),
        b"-",
        |run| {
            let hex_digits = run.iter().filter(|byte| byte.is_ascii_hexdigit()).count();
            hex_digits >= MIN_HEX_DIGITS && run.iter().any(u8::is_ascii_digit)
        },
    );
    runs(
        name,
        hex,
        |byte| byte.is_ascii_digit(),
        b"-_:",
        |run| run.iter().filter(|byte| byte.is_ascii_digit()).count() >= MIN_DIGITS,
    )
}

/// Finds all runs of digits (see `is_digit`) in a name. A run contains only digits and
/// `separators`, begins and ends with a digit, and is as long as possible. `taken` is a bit mask of
/// bytes that cannot be part of a run. A run is data if `qualifies` returns true for it. Returns a
/// bit mask: the bytes in `taken`, and the bytes of all runs that are data.
fn runs(
    name: &[u8],
    taken: u64,
    is_digit: fn(&u8) -> bool,
    separators: &[u8],
    qualifies: fn(&[u8]) -> bool,
) -> u64 {
    let mut result = taken;
    let mut start = 0;
    while start < name.len() {
        let rest = name.get(start..).unwrap_or_default();
        let belongs = |(i, byte): (usize, &u8)| {
            taken >> (start + i) & 1 == 0 && (is_digit(byte) || separators.contains(byte))
        };
        let length = rest
            .iter()
            .enumerate()
            .take_while(|&indexed| belongs(indexed))
            .count();
        let run = rest.get(..length).unwrap_or_default();
        if let Some(first) = run.iter().position(is_digit)
            && let Some(last) = run.iter().rposition(is_digit)
            && run.get(first..=last).is_some_and(qualifies)
        {
            for index in first..=last {
                result |= 1 << (start + index);
            }
        }
        // The byte that ended this run belongs to no run, so it is skipped.
        start += length + 1;
    }
    result
}

#[inline]
fn class_of(byte: u8) -> u8 {
    CLASSES.get(usize::from(byte)).copied().unwrap_or(QUOTED)
}

/// A byte without a special meaning, allowed in every name.
const PLAIN: u8 = 0;
/// A byte that needs a closer check: a digit, dot or bracket.
const SPECIAL: u8 = 1;
/// A byte that is allowed only in a quoted name.
const QUOTED: u8 = 2;

#[expect(
    clippy::as_conversions,
    reason = "const code cannot call try_from; the index is below 256"
)]
#[expect(
    clippy::indexing_slicing,
    reason = "const code cannot call get_mut; the index is below 256"
)]
const CLASSES: [u8; 256] = {
    let mut classes = [QUOTED; 256];
    let mut byte = 0;
    while byte < classes.len() {
        match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'-' => classes[byte] = PLAIN,
            b'0'..=b'9' | b'.' | b'[' | b']' => classes[byte] = SPECIAL,
            _ => {}
        }
        byte += 1;
    }
    classes
};

/// The longest component that is printed, in bytes. Longer components are usually data, and the bit
/// mask of data ([`dynamic_bytes`]) has one bit for each byte of a component.
const MAX_COMPONENT_BYTES: usize = 64;
const MAX_SIGILS: usize = 2;
/// Minimum number of digits in a run that counts as data: the four digits of a year. A component
/// that has only digits is always data.
const MIN_DIGITS: usize = 4;
/// Minimum number of hexadecimal digits in a run that counts as data: half a UUID.
const MIN_HEX_DIGITS: usize = 16;

const _: () = assert!(
    MAX_COMPONENT_BYTES <= 64,
    "dynamic_bytes has one bit per byte"
);
