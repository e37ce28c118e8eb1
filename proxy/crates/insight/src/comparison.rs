//! A comparison of the present with a baseline, and whether the two can be compared.

use std::fmt;

use seawall_stats::{Figures, Label, Period};

use super::changes::Change;

/// Minimum known time of a period for a comparison. For a short period, half of its length is
/// enough.
const MIN_KNOWN_SECONDS: u64 = 30;

/// Two periods and their differences.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The earlier period.
    pub before: Compared,
    /// The later period.
    pub now: Compared,
    /// The differences, ordered by their cost for the servers.
    pub changes: Vec<Change>,
    /// The reason why the periods could not be compared, if so.
    pub incomparable: Option<Incomparable>,
}

/// One of the two compared periods.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Start, in seconds since the epoch.
    pub from: u64,
    /// End, in seconds since the epoch.
    pub to: u64,
    /// Its sums.
    pub period: Period,
}

/// The reason why two periods cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// Nothing is known of the period: Seawall did not run, or the history begins later.
    #[error("no data for {0}")]
    Unknown(Side),
    /// Too little of the period is known.
    #[error("only {known_seconds} s of {side} have data")]
    TooLittle {
        /// The period that is too short.
        side: Side,
        /// Known seconds of it.
        known_seconds: u64,
    },
    /// No operation ended in the period.
    #[error("no operation ended in {0}")]
    Idle(Side),
}

/// One of the two compared periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The earlier one.
    Baseline,
    /// The later one.
    Now,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "the baseline",
            Self::Now => "the current period",
        })
    }
}

/// Returns the reason if two periods cannot be compared. `length` is the intended length of each,
/// in seconds.
pub fn incomparable(before: &Period, now: &Period, length: u64) -> Option<Incomparable> {
    let least = MIN_KNOWN_SECONDS.min(length / 2);
    let sides = [(Side::Baseline, before), (Side::Now, now)];
    sides.into_iter().find_map(|(side, period)| {
        let known_seconds = period.length.as_secs();
        match known_seconds {
            0 => Some(Incomparable::Unknown(side)),
            known if known < least => Some(Incomparable::TooLittle {
                side,
                known_seconds,
            }),
            _ if period.series.values().all(|figures| figures.count == 0) => {
                Some(Incomparable::Idle(side))
            }
            _ => None,
        }
    })
}

/// The figures of all operations in a period.
pub fn whole(period: &Period) -> Figures {
    let whole = period.series.get(&Label::Whole);
    whole.cloned().unwrap_or_default()
}
