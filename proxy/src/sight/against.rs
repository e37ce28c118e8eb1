//! What now is held against: a baseline by name, as a time ago or as a moment, and the two periods that come of it.
//!
//! Reads no clock. The baseline ends at a step of the resolution that is kept of it, so that both of its ends are those of
//! what is really looked at.

use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::history::TIERS;

const DAY: Duration = Duration::from_secs(86_400);

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// What now is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The same time yesterday.
    Yesterday,
    /// The same time a week ago.
    LastWeek,
    /// So long ago.
    Ago(Duration),
    /// What was before a moment, such as that of a deploy.
    Before(SystemTime),
}

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// Not a number and a unit.
    #[error("{0:?} is not a time such as 30s, 10m, 24h or 7d")]
    NoTime(String),
    /// Nothing, or more than a week.
    #[error("{0:?} is not from 1s to 7d")]
    OutOfRange(String),
    /// Neither a name nor a time nor a moment.
    #[error(
        "{0:?} is not yesterday, last_week, a time such as 2h, or a moment such as 2026-11-21T10:00:00Z or 1795255200"
    )]
    NoBaseline(String),
}

/// Reads a number with `s`, `m`, `h` or `d`, of a week at most.
///
/// # Errors
/// If it is something else.
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

/// Seconds since the epoch, or a date and time by RFC 3339.
fn moment(text: &str) -> Option<SystemTime> {
    if let Ok(seconds) = text.parse() {
        return UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    }
    // The plus of an offset is a space to whoever decodes a query.
    let text = text.trim().replace(' ', "+");
    let moment = bson::DateTime::parse_rfc3339_str(text).ok()?;
    Some(moment.to_system_time())
}

/// How long the two periods shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// So long, or not at all.
    Exactly(Duration),
    /// Shorter where there was less time since the baseline, or where less is kept.
    AtMost(Duration),
}

/// Why there are no two periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// A moment that is still to come.
    #[error("the baseline is not over yet")]
    NotOver,
    /// The later period would begin before the earlier one ended.
    #[error("a window of {window_seconds} s against {ago_seconds} s ago: the two would overlap")]
    Overlap {
        /// The length of each.
        window_seconds: u64,
        /// How long ago the earlier one ended.
        ago_seconds: u64,
    },
    /// Before all that is kept.
    #[error("the baseline began {ago_seconds} s ago, and the history is kept for {kept_seconds} s")]
    NotKept {
        /// How long ago it began.
        ago_seconds: u64,
        /// How far back is kept.
        kept_seconds: u64,
    },
}

/// Two periods, from and to, in seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spans {
    pub(super) before: (u64, u64),
    pub(super) now: (u64, u64),
}

impl Against {
    /// Which two periods are to be compared.
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
        // Of long ago only long steps are known, and the baseline is two of them at least. Rates are of each one's length.
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

    /// Half past a minute, so that steps begin elsewhere.
    const NOW: u64 = 1_795_283_430;

    fn spans(against: &str, window: Window) -> Result<Spans, SpanError> {
        let against: Against = against.parse().unwrap();
        against.spans(window, at(NOW))
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn times_have_a_unit_and_a_week_is_the_longest() {
        assert_eq!(parse_time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_time("24h").unwrap(), DAY);
        assert_eq!(parse_time("7d").unwrap(), WEEK);
        for wrong in ["", "s", "10", "10x", "0s", "8d", "-1s", "1.5h", "\u{fc}"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_baseline_is_a_name_a_time_or_a_moment() {
        let moment = Against::Before(at(1_795_255_200));
        for (text, against) in [
            ("yesterday", Against::Yesterday),
            ("last_week", Against::LastWeek),
            ("2h", Against::Ago(Duration::from_secs(7_200))),
            ("1795255200", moment),
            ("2026-11-21T10:00:00Z", moment),
            ("2026-11-21T11:30:00+01:30", moment),
            // As a query has it in which the plus was not spelled out.
            ("2026-11-21T11:30:00 01:30", moment),
        ] {
            assert_eq!(text.parse(), Ok(against), "{text}");
        }
        for wrong in ["", "tomorrow", "8d", "2026-11-21", "-5", "2h ago"] {
            assert!(wrong.parse::<Against>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn last_week_is_seven_days_ago_with_any_window_that_is_kept() {
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
    fn periods_of_minutes_are_exact_and_longer_ago_they_are_whole_steps() {
        let exact = spans("5m", Window::Exactly(2 * MINUTE)).unwrap();
        assert_eq!(exact.before, (NOW - 420, NOW - 300));
        let hours = spans("2h", Window::Exactly(10 * MINUTE)).unwrap();
        assert_eq!(hours.before, (NOW - 30 - 7_200 - 600, NOW - 30 - 7_200));
    }

    #[test]
    fn a_moment_ends_the_baseline_and_shortens_a_window_that_nobody_asked_for() {
        let deploy = (NOW - 90).to_string();
        let after = spans(&deploy, Window::AtMost(10 * MINUTE)).unwrap();
        assert_eq!(after.before, (NOW - 180, NOW - 90));
        assert_eq!(after.now, (NOW - 90, NOW));
    }

    #[test]
    fn what_cannot_be_compared_is_refused_with_its_reason() {
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
        // As much of it as is kept is compared where no length was asked for.
        let week = spans("last_week", Window::AtMost(WEEK)).unwrap();
        assert_eq!(week.before.1 - week.before.0, 86_400);
    }
}
