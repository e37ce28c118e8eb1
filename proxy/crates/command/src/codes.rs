//! Counts of the error codes in a reply, in a fixed number of slots.

/// Maximum number of different codes counted in one reply. The writes of a batch usually fail with
/// one or two codes.
const MAX_CODES: usize = 8;

/// The codes of a reply's failed writes, each with the number of failures, in the order of their
/// first occurrence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeCounts {
    /// The codes with their counts. A slot with count 0 is free, and so are all slots after it.
    slots: [(i32, u32); MAX_CODES],
}

impl CodeCounts {
    /// Counts one occurrence of a code. A new code is not counted if no slot is free.
    pub(super) fn add(&mut self, code: i32) {
        let mut slots = self.slots.iter_mut();
        let slot = slots.find(|(known, count)| *known == code || *count == 0);
        if let Some((known, count)) = slot {
            *known = code;
            *count = count.saturating_add(1);
        }
    }

    /// The codes, each with the number of failed writes.
    pub fn iter(&self) -> impl Iterator<Item = (i32, u64)> {
        let taken = self.slots.iter().take_while(|(_, count)| *count > 0);
        taken.map(|(code, count)| (*code, u64::from(*count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_8_different_error_codes_of_a_reply_are_counted() {
        let mut counts = CodeCounts::default();
        for code in [0, 11000, 0, 11000, 11000, 121] {
            counts.add(code);
        }
        let counted: Vec<_> = counts.iter().collect();
        assert_eq!(counted, [(0, 2), (11000, 3), (121, 1)]);
        (1..=20).for_each(|code| counts.add(code));
        counts.add(11000);
        let counted: Vec<_> = counts.iter().collect();
        assert_eq!(counted.len(), MAX_CODES);
        assert_eq!(
            (counted[1], counted[3], counted[7]),
            ((11000, 4), (1, 1), (5, 1))
        );
    }
}
