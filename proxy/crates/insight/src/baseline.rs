//! Computes the two periods of a comparison. The earlier period is the baseline. The user gives the
//! end of the baseline in one of three forms: a name such as `yesterday`, a duration before the end
//! of the later period, or a time.
//!
//! The history stores the figures of each step. A step has a length of 1 s for the last 10 minutes,
//! and is longer (up to 10 minutes) for older times. A baseline consists of whole steps. This
//! module reads no clock.

use std::time::{Duration, SystemTime};

use super::tiers::TIERS;
use seawall_stats::Against;

const DAY: Duration = Duration::from_secs(86_400);

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// The length of the later period. The baseline has the same length, rounded up to whole steps of
/// the history, but at least two steps. A step is an interval of 1 s for recent times, and of up to
/// 10 minutes for older times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineWindow {
    /// Exactly this length. The result is an error if the later period would begin before the
    /// baseline ended, or if the history does not reach back far enough.
    Exactly(Duration),
    /// At most this length. The later period is shorter in two cases: the baseline ended less than
    /// this length ago, or the history does not have a baseline of this length.
    AtMost(Duration),
}

/// The reason why the two periods of a comparison cannot be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The baseline ends with the later period, or after it.
    #[error("the baseline does not end before the period")]
    NotOver,
    /// The later period would begin before the baseline ended.
    #[error("a window of {window_seconds} s overlaps a baseline that ended {ago_seconds} s ago")]
    Overlap {
        /// Length of the later period.
        window_seconds: u64,
        /// Time from the end of the baseline to the end of the later period.
        ago_seconds: u64,
    },
    /// The baseline begins before the history begins.
    #[error(
        "the baseline began {ago_seconds} s ago, but the history is kept for only {kept_seconds} s"
    )]
    NotKept {
        /// Time since the start of the baseline.
        ago_seconds: u64,
        /// Time for which the history is kept.
        kept_seconds: u64,
    },
}

/// The two periods as pairs (from, to), in seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spans {
    pub(super) before: (u64, u64),
    pub(super) now: (u64, u64),
}

/// Computes the two periods to compare. The later period ends at `end`, which is not after `now`.
pub(super) fn spans(
    against: Against,
    window: BaselineWindow,
    end: SystemTime,
    now: SystemTime,
) -> Result<Spans, SpanError> {
    let (end, now) = (super::seconds(end), super::seconds(now));
    let age = now.saturating_sub(end);
    let ago = match against {
        Against::Yesterday => DAY.as_secs(),
        Against::LastWeek => WEEK.as_secs(),
        Against::Ago(ago) => ago.as_secs(),
        Against::Before(moment) => end.saturating_sub(super::seconds(moment)),
    };
    if ago == 0 {
        return Err(SpanError::NotOver);
    }
    let kept = TIERS.iter().map(|(_, kept)| *kept).max().unwrap_or(0);
    let length = match window {
        BaselineWindow::Exactly(length) => length.as_secs(),
        BaselineWindow::AtMost(length) => {
            let left = kept.saturating_sub(age + ago);
            length.as_secs().min(ago).min(left)
        }
    };
    if length > ago {
        return Err(SpanError::Overlap {
            window_seconds: length,
            ago_seconds: ago,
        });
    }
    let began = age + ago + length;
    if length == 0 || began > kept {
        return Err(SpanError::NotKept {
            ago_seconds: began,
            kept_seconds: kept,
        });
    }
    // Use the finest tier that still has the whole baseline. The baseline has at least two steps of
    // this tier, so it can be longer than the current period. Rates stay comparable, because each
    // rate is computed with the length of its own period.
    let reaches = |(step, kept): &&(u64, u64)| age + ago + length.max(step * 2) <= *kept;
    let step = TIERS.iter().find(reaches).or(TIERS.last());
    let step = step.map_or(1, |(step, _)| *step);
    let ended = (end - ago) - (end - ago) % step;
    let before = length.max(step * 2).next_multiple_of(step);
    Ok(Spans {
        before: (ended.saturating_sub(before), ended),
        now: (end - length, end),
    })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// A time in the middle of a minute, so no step of one minute or more begins at this time.
    const NOW: u64 = 1_795_283_430;

    fn spans(against: &str, window: BaselineWindow) -> Result<Spans, SpanError> {
        super::spans(against.parse().unwrap(), window, at(NOW), at(NOW))
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn baseline_named_last_week_ends_seven_days_ago_for_windows_up_to_a_day() {
        for seconds in [600, 3_600, 86_400] {
            let window = BaselineWindow::Exactly(Duration::from_secs(seconds));
            let spans = spans("last_week", window).unwrap();
            let (from, to) = spans.before;
            assert_eq!(to, (NOW - 7 * 86_400) - (NOW - 7 * 86_400) % 600);
            assert_eq!(to - from, seconds.max(1_200));
            assert_eq!(spans.now, (NOW - seconds, NOW));
        }
    }

    /// The history has steps of 1 s for the last 10 minutes, and longer steps for older times.
    #[test]
    fn a_recent_baseline_is_exact_and_an_older_baseline_is_rounded_to_whole_steps_of_the_history() {
        let exact = spans("5m", BaselineWindow::Exactly(2 * MINUTE)).unwrap();
        assert_eq!(exact.before, (NOW - 420, NOW - 300));
        let hours = spans("2h", BaselineWindow::Exactly(10 * MINUTE)).unwrap();
        assert_eq!(hours.before, (NOW - 30 - 7_200 - 600, NOW - 30 - 7_200));
    }

    #[test]
    fn the_baseline_of_a_past_period_has_the_steps_that_the_history_keeps_for_its_age() {
        let minutes = BaselineWindow::AtMost(5 * MINUTE);
        let compared = |age| {
            let against = Against::Ago(5 * MINUTE);
            super::spans(against, minutes, at(NOW - age), at(NOW)).unwrap()
        };
        assert_eq!(compared(0).before, (NOW - 600, NOW - 300));
        let past = compared(7_200);
        assert_eq!(past.now, (NOW - 7_500, NOW - 7_200));
        let to = (NOW - 7_500) - (NOW - 7_500) % 60;
        assert_eq!(past.before, (to - 300, to));
    }

    #[test]
    fn a_baseline_that_ends_after_a_past_period_is_refused() {
        let baseline = Against::Before(at(NOW - 3_600));
        let window = BaselineWindow::AtMost(MINUTE);
        let refused = super::spans(baseline, window, at(NOW - 7_200), at(NOW)).unwrap_err();
        let expected = "the baseline does not end before the period";
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn both_compared_periods_are_shortened_to_the_time_since_the_deploy() {
        let deploy = (NOW - 90).to_string();
        let after = spans(&deploy, BaselineWindow::AtMost(10 * MINUTE)).unwrap();
        assert_eq!(after.before, (NOW - 180, NOW - 90));
        assert_eq!(after.now, (NOW - 90, NOW));
    }

    #[test]
    fn time_ranges_that_cannot_be_compared_are_refused_with_a_reason() {
        let window = BaselineWindow::Exactly(2 * 60 * MINUTE);
        let overlap = SpanError::Overlap {
            window_seconds: 7_200,
            ago_seconds: 3_600,
        };
        assert_eq!(spans("1h", window), Err(overlap));
        let (old, coming) = ((NOW - 9 * 86_400).to_string(), (NOW + 60).to_string());
        for window in [
            BaselineWindow::Exactly(MINUTE),
            BaselineWindow::AtMost(MINUTE),
        ] {
            let refused = spans(&old, window).unwrap_err();
            assert!(matches!(refused, SpanError::NotKept { .. }), "{refused}");
            assert_eq!(spans(&coming, window), Err(SpanError::NotOver));
        }
        // `AtMost` allows a shorter window. The window is one day long, because the history is kept
        // for eight days and the baseline ended seven days ago.
        let week = spans("last_week", BaselineWindow::AtMost(WEEK)).unwrap();
        assert_eq!(week.before.1 - week.before.0, 86_400);
    }
}
