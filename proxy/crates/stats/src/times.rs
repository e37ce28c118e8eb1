//! Parses the times in requests to the API: the length of a period, and the baseline of a
//! comparison.

use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// The time at which the baseline of a comparison ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// 24 hours ago.
    Yesterday,
    /// Seven days ago.
    LastWeek,
    /// This duration ago.
    Ago(Duration),
    /// At this time, for example just before a deploy.
    Before(SystemTime),
}

/// The reason why a text is not a valid duration or baseline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The text is not a whole number with a unit.
    #[error("{0:?} is not a time such as 30s, 10m, 24h or 7d")]
    NoTime(String),
    /// The duration is zero, or longer than a week.
    #[error("{0:?} is out of range: expected a time from 1s to 7d")]
    OutOfRange(String),
    /// The text is not a baseline. A baseline is `yesterday`, `last_week`, a duration, a number of
    /// seconds since the epoch, or a date with a time.
    #[error(
        "{0:?} is not a baseline: expected yesterday, last_week, a time such as 2h, or a moment such as 2026-11-21T10:00:00Z or 1795255200"
    )]
    NoBaseline(String),
}

/// Parses a duration from one second to a week: a whole number with the unit `s`, `m`, `h` or `d`.
///
/// # Errors
/// If the text is not a whole number with a unit, or the duration is out of range.
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
    // If the plus sign of a time zone offset is not escaped in a URL, URL decoding turns it into a
    // space. The plus sign is restored here.
    let text = text.trim().replace(' ', "+");
    OffsetDateTime::parse(&text, &Rfc3339).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn durations_have_a_unit_and_are_at_most_a_week() {
        assert_eq!(parse_time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_time("24h").unwrap(), WEEK / 7);
        assert_eq!(parse_time("7d").unwrap(), WEEK);
        for wrong in ["", "s", "10", "10x", "0s", "8d", "-1s", "1.5h", "\u{fc}"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_baseline_of_a_comparison_is_given_by_a_name_a_duration_or_a_timestamp() {
        let moment = Against::Before(at(1_795_255_200));
        for (text, against) in [
            ("yesterday", Against::Yesterday),
            ("last_week", Against::LastWeek),
            ("2h", Against::Ago(Duration::from_secs(7_200))),
            ("1795255200", moment),
            ("2026-11-21T10:00:00Z", moment),
            ("2026-11-21T11:30:00+01:30", moment),
            // The plus sign was not escaped in the URL, so URL decoding turned it into a space.
            ("2026-11-21T11:30:00 01:30", moment),
        ] {
            assert_eq!(text.parse(), Ok(against), "{text}");
        }
        for wrong in ["", "tomorrow", "8d", "2026-11-21", "-5", "2h ago"] {
            assert!(wrong.parse::<Against>().is_err(), "{wrong}");
        }
    }
}
