//! Parses the header `Retry-After` of a response.
//!
//! Source: RFC 9110, section 10.2.3.

use std::time::{Duration, SystemTime};

use time::{OffsetDateTime, format_description::well_known::Rfc2822};

/// The maximum wait. A longer wait is cut to this length, because a collector must not stop the
/// export for days.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Returns the wait from `now`, at most an hour. `None` if `value` is neither a number of seconds
/// nor a date.
pub(crate) fn parse(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        // An HTTP date is also a valid date of RFC 2822, which still accepts the time zone `GMT`.
        Err(_) => {
            let date = OffsetDateTime::parse(value, &Rfc2822).ok()?;
            SystemTime::from(date)
                .duration_since(now)
                .unwrap_or_default()
        }
    };
    Some(wait.min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_date_and_at_most_an_hour() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let seconds = |value| parse(value, now).map(|wait| wait.as_secs());
        assert_eq!(seconds("7"), Some(7));
        assert_eq!(seconds(" 0 "), Some(0));
        assert_eq!(seconds("99999999999"), Some(3_600));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(7));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        for wrong in ["", "-1", "1.5", "soon", "99999999999999999999999"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
