//! Decides when to do work that is due once in each period. All periods have the same length.

use seawall_locks::Mutex;

/// Work that is late by more than this time is omitted. Otherwise, work that is late by nearly a
/// whole period would run just before the work of the next period, with almost the same result. In
/// periods of at most this length, no work is omitted.
const MAX_DELAY_SECONDS: u64 = 60;

/// Divides the time into periods of one length. The caller asks about once a second, but may skip
/// seconds, for example after a pause of the machine.
#[derive(Debug)]
pub(super) struct Cadence {
    /// The length of a period in seconds.
    length: u64,
    /// The number of the last period in which the work was done or was not needed.
    last: Mutex<Option<u64>>,
}

impl Cadence {
    /// Periods of `length` seconds. Each begins at a multiple of `length` since the Unix epoch.
    pub(super) fn every(length: u64) -> Self {
        Self {
            length,
            last: Mutex::default(),
        }
    }

    /// True if the work must be done at the time `now`, in seconds since the Unix epoch. The first
    /// call returns true only in the first second of a period. After that, the first call in each
    /// period returns true, unless the work is late by more than [`MAX_DELAY_SECONDS`].
    pub(super) fn is_due(&self, now: u64) -> bool {
        let period = now / self.length;
        let mut last = self.last.lock();
        let is_due = match *last {
            None => now.is_multiple_of(self.length),
            // The clock may have been set back by some seconds.
            Some(last) if period == last || period + 1 == last => return false,
            Some(_) => now % self.length <= MAX_DELAY_SECONDS,
        };
        *last = Some(period);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_at_most_once_per_period_even_if_seconds_are_skipped_or_the_clock_is_set_back() {
        for (times, due) in [
            (&[598, 599, 600, 601][..], &[600][..]),
            (&[599, 601, 602], &[601]),
            (&[599, 600, 595, 600, 601], &[600]),
            (&[600, 601, 1_800], &[600, 1_800]),
            // The machine pauses until shortly before the next period.
            (&[600, 1_790, 1_800], &[600, 1_800]),
            // The clock is set back by an hour.
            (&[7_200, 3_600, 3_601], &[7_200, 3_600]),
        ] {
            let cadence = Cadence::every(600);
            let found = times.iter().copied().filter(|now| cadence.is_due(*now));
            assert_eq!(found.collect::<Vec<_>>(), due, "{times:?}");
        }
    }
}
