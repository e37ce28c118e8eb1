//! Computes the two periods of a comparison. The user names the baseline (the earlier period): a
//! name, a duration ago, or a moment.
//!
//! This module reads no clock. The history has long steps for old times. A baseline ends where a
//! step of the history ends, so it consists of whole steps.

use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::tiers::TIERS;

const DAY: Duration = Duration::from_secs(86_400);

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// The end of the baseline of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// At this time of the day, yesterday.
    Yesterday,
    /// At this time of the day, seven days ago.
    LastWeek,
    /// A duration before now.
    Ago(Duration),
    /// At this moment, for example just before a deploy.
    Before(SystemTime),
}

/// The text is not a valid duration or baseline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The text is not a number with a unit.
    #[error("{0:?} is not a time such as 30s, 10m, 24h or 7d")]
    NoTime(String),
    /// The duration is zero, or more than a week.
    #[error("{0:?} is not from 1s to 7d")]
    OutOfRange(String),
    /// The text is not a name, a duration or a moment.
    #[error(
        "{0:?} is not yesterday, last_week, a time such as 2h, or a moment such as 2026-11-21T10:00:00Z or 1795255200"
    )]
    NoBaseline(String),
}

/// Parses a number with the unit `s`, `m`, `h` or `d`, at most a week.
///
/// # Errors
/// If the text is not such a duration, or is out of range.
pub fn parse_time(text: &str) -> Result<Duration, TimeError> {
    let wrong = || TimeError::NoTime(text.to_owned());
    let unit = text.char_indices().next_back().ok_or_else(wrong)?;
    let number: u64 = text
        .get(..unit.0)
        .and_then(|number| number.parse().ok())
        .ok_or_else(wrong)?;
    let seconds = match unit.1 {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let time = Duration::from_secs(number.saturating_mul(seconds));
    if time.is_zero() || time > WEEK {
        return Err(TimeError::OutOfRange(text.to_owned()));
    }
    Ok(time)
}

impl FromStr for Against {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        match text {
            "yesterday" => return Ok(Self::Yesterday),
            "last_week" => return Ok(Self::LastWeek),
            _ => {}
        }
        match parse_time(text) {
            Ok(ago) => Ok(Self::Ago(ago)),
            Err(TimeError::OutOfRange(text)) => Err(TimeError::OutOfRange(text)),
            Err(_) => moment(text)
                .map(Self::Before)
                .ok_or_else(|| TimeError::NoBaseline(text.to_owned())),
        }
    }
}

/// Parses seconds since the epoch, or a date and time by RFC 3339.
fn moment(text: &str) -> Option<SystemTime> {
    if let Ok(seconds) = text.parse() {
        return UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    }
    // URL decoding turns the plus sign of a time zone offset into a space.
    let text = text.trim().replace(' ', "+");
    let moment = bson::DateTime::parse_rfc3339_str(text).ok()?;
    Some(moment.to_system_time())
}

/// The length of the baseline and of the later period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Exactly this length, or an error.
    Exactly(Duration),
    /// At most this length. The length is shorter if the baseline ended more recently than this, or
    /// if less history is kept.
    AtMost(Duration),
}

/// The two periods of a comparison cannot be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The baseline ends in the future.
    #[error("the baseline has not ended yet")]
    NotOver,
    /// The later period would begin before the baseline ended.
    #[error("a window of {window_seconds} s overlaps a baseline that ended {ago_seconds} s ago")]
    Overlap {
        /// Length of each period.
        window_seconds: u64,
        /// How long ago the baseline ended.
        ago_seconds: u64,
    },
    /// The baseline begins before the history begins.
    #[error("the baseline began {ago_seconds} s ago, and the history is kept for {kept_seconds} s")]
    NotKept {
        /// How long ago the baseline began.
        ago_seconds: u64,
        /// How long the history is kept.
        kept_seconds: u64,
    },
}

/// The two periods as pairs (from, to), in seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spans {
    pub(super) before: (u64, u64),
    pub(super) now: (u64, u64),
}

impl Against {
    /// Computes the two periods.
    pub(super) fn spans(self, window: Window, now: SystemTime) -> Result<Spans, SpanError> {
        let now = super::seconds(now);
        let ago = match self {
            Self::Yesterday => DAY.as_secs(),
            Self::LastWeek => WEEK.as_secs(),
            Self::Ago(ago) => ago.as_secs(),
            Self::Before(moment) => now.saturating_sub(super::seconds(moment)),
        };
        if ago == 0 {
            return Err(SpanError::NotOver);
        }
        let kept = TIERS.iter().map(|(_, kept)| *kept).max().unwrap_or(0);
        let length = match window {
            Window::Exactly(length) => length.as_secs(),
            Window::AtMost(length) => length.as_secs().min(ago).min(kept.saturating_sub(ago)),
        };
        if length > ago {
            return Err(SpanError::Overlap {
                window_seconds: length,
                ago_seconds: ago,
            });
        }
        if length == 0 || ago + length > kept {
            return Err(SpanError::NotKept {
                ago_seconds: ago + length,
                kept_seconds: kept,
            });
        }
        // For old times, the history has only long steps. The baseline has at least two steps. The
        // two periods may differ in length, because rates are computed from each period's own
        // length.
        let reaches = |(step, kept): &&(u64, u64)| ago + length.max(step * 2) <= *kept;
        let step = TIERS.iter().find(reaches).or(TIERS.last());
        let step = step.map_or(1, |(step, _)| *step);
        let ended = (now - ago) - (now - ago) % step;
        let before = length.max(step * 2).next_multiple_of(step);
        Ok(Spans {
            before: (ended.saturating_sub(before), ended),
            now: (now - length, now),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// The moment is not the start of a minute, so it differs from all step boundaries.
    const NOW: u64 = 1_795_283_430;

    fn spans(against: &str, window: Window) -> Result<Spans, SpanError> {
        let against: Against = against.parse().unwrap();
        against.spans(window, at(NOW))
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn durations_have_a_unit_and_are_at_most_a_week() {
        assert_eq!(parse_time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_time("24h").unwrap(), DAY);
        assert_eq!(parse_time("7d").unwrap(), WEEK);
        for wrong in ["", "s", "10", "10x", "0s", "8d", "-1s", "1.5h", "\u{fc}"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_baseline_is_a_name_a_duration_or_a_moment() {
        let moment = Against::Before(at(1_795_255_200));
        for (text, against) in [
            ("yesterday", Against::Yesterday),
            ("last_week", Against::LastWeek),
            ("2h", Against::Ago(Duration::from_secs(7_200))),
            ("1795255200", moment),
            ("2026-11-21T10:00:00Z", moment),
            ("2026-11-21T11:30:00+01:30", moment),
            // A decoded URL query whose plus sign was not escaped.
            ("2026-11-21T11:30:00 01:30", moment),
        ] {
            assert_eq!(text.parse(), Ok(against), "{text}");
        }
        for wrong in ["", "tomorrow", "8d", "2026-11-21", "-5", "2h ago"] {
            assert!(wrong.parse::<Against>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn last_week_accepts_any_window_within_the_kept_history() {
        for seconds in [600, 3_600, 86_400] {
            let window = Window::Exactly(Duration::from_secs(seconds));
            let spans = spans("last_week", window).unwrap();
            let (from, to) = spans.before;
            assert_eq!(to, (NOW - 7 * 86_400) - (NOW - 7 * 86_400) % 600);
            assert_eq!(to - from, seconds.max(1_200));
            assert_eq!(spans.now, (NOW - seconds, NOW));
        }
    }

    #[test]
    fn recent_baselines_are_exact_and_older_ones_are_whole_steps() {
        let exact = spans("5m", Window::Exactly(2 * MINUTE)).unwrap();
        assert_eq!(exact.before, (NOW - 420, NOW - 300));
        let hours = spans("2h", Window::Exactly(10 * MINUTE)).unwrap();
        assert_eq!(hours.before, (NOW - 30 - 7_200 - 600, NOW - 30 - 7_200));
    }

    #[test]
    fn a_moment_ends_the_baseline_and_shortens_a_default_window() {
        let deploy = (NOW - 90).to_string();
        let after = spans(&deploy, Window::AtMost(10 * MINUTE)).unwrap();
        assert_eq!(after.before, (NOW - 180, NOW - 90));
        assert_eq!(after.now, (NOW - 90, NOW));
    }

    #[test]
    fn incomparable_spans_are_refused_with_a_reason() {
        let window = Window::Exactly(2 * 60 * MINUTE);
        let overlap = SpanError::Overlap {
            window_seconds: 7_200,
            ago_seconds: 3_600,
        };
        assert_eq!(spans("1h", window), Err(overlap));
        let (old, coming) = ((NOW - 9 * 86_400).to_string(), (NOW + 60).to_string());
        for window in [Window::Exactly(MINUTE), Window::AtMost(MINUTE)] {
            let refused = spans(&old, window).unwrap_err();
            assert!(matches!(refused, SpanError::NotKept { .. }), "{refused}");
            assert_eq!(spans(&coming, window), Err(SpanError::NotOver));
        }
        // Without a required length, the window is as long as the history allows.
        let week = spans("last_week", Window::AtMost(WEEK)).unwrap();
        assert_eq!(week.before.1 - week.before.0, 86_400);
    }
}
