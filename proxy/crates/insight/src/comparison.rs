//! The comparison of a period with an earlier period (the baseline), and the reasons why the two
//! periods may not be comparable.

use std::fmt;

use seawall_stats::{Figures, Label, Period};

use super::changes::Change;

/// Minimum number of seconds with data in each period of a comparison. If the later period is
/// shorter than twice this time, half of its length is enough.
const MIN_KNOWN_SECONDS: u64 = 30;

/// Two periods and the changes between them.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The earlier period.
    pub before: Compared,
    /// The later period.
    pub now: Compared,
    /// The changes, in the order of [`compare`](crate::compare).
    pub changes: Vec<Change>,
    /// The reason why the periods could not be compared; `None` if they could be compared.
    pub incomparable: Option<Incomparable>,
}

/// One of the two compared periods.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Start, in seconds since the epoch.
    pub from: u64,
    /// End, in seconds since the epoch.
    pub to: u64,
    /// The figures of the period.
    pub period: Period,
}

/// The reason why two periods cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// The period has no data: Seawall did not run, or the history begins later.
    #[error("no data for {0}")]
    Unknown(Side),
    /// The period has too little data.
    #[error("only {known_seconds} s of {side} have data")]
    TooLittle {
        /// The period that has too little data.
        side: Side,
        /// Number of seconds of the period that have data.
        known_seconds: u64,
    },
    /// No operation ended in the period.
    #[error("no operation ended in {0}")]
    Idle(Side),
}

/// One of the two compared periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The earlier period.
    Baseline,
    /// The later period.
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

/// The reason why two periods cannot be compared, if there is one. `length` is the length of the
/// later period in seconds.
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
