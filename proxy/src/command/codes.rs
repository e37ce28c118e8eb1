//! Error codes and how often each came, in a fixed number of places.

/// Codes that are told apart in one reply: a batch fails for one or two reasons.
const PLACES: usize = 8;

/// Codes of failed writes, in the order of their first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeCounts {
    /// A place without a count is free, and so are those after it.
    places: [(i32, u32); PLACES],
}

impl CodeCounts {
    /// Counts one more. Without a place left for its code it is not counted here.
    pub(super) fn add(&mut self, code: i32) {
        let mut places = self.places.iter_mut();
        let place = places.find(|(known, count)| *known == code || *count == 0);
        if let Some((known, count)) = place {
            *known = code;
            *count = count.saturating_add(1);
        }
    }

    /// Codes and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (i32, u64)> {
        let taken = self.places.iter().take_while(|(_, count)| *count > 0);
        taken.map(|(code, count)| (*code, u64::from(*count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_codes_are_told_apart_as_there_are_places() {
        let mut counts = CodeCounts::default();
        for code in [0, 11000, 0, 11000, 11000, 121] {
            counts.add(code);
        }
        let told: Vec<_> = counts.iter().collect();
        assert_eq!(told, [(0, 2), (11000, 3), (121, 1)]);
        (1..=20).for_each(|code| counts.add(code));
        counts.add(11000);
        let told: Vec<_> = counts.iter().collect();
        assert_eq!(told.len(), PLACES);
        assert_eq!((told[1], told[3], told[7]), ((11000, 4), (1, 1), (5, 1)));
    }
}
