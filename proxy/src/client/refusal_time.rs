//! Decides when the reply to a refused login is sent. No I/O, no clock.
//!
//! The time that Seawall needs to find the reason for a refusal depends on the reason. For example,
//! Seawall checks a known user's proof itself, but it asks a server about an unknown name. If
//! Seawall replied as soon as it knows the reason, the time of the reply would show the reason. So
//! Seawall sends a refusal only at fixed times after the beginning of the login. See
//! `docs/decisions/0010-refusal-times.md`.

use std::time::Duration;

use tokio::time::Instant;

/// Refusals are sent at multiples of this time after a login began. Most exchanges with servers
/// take less time than one step.
const STEP: Duration = Duration::from_millis(50);

/// Minimum time between the arrival of a refused message and the reply. Without this minimum, a
/// client could send its proof just before a multiple of [`STEP`]. The time of the reply would then
/// show if Seawall found the reason before or after this multiple.
const SHORTEST: Duration = Duration::from_millis(25);

/// The time at which a refusal is sent. The login began at `began`, its refused message arrived at
/// `arrived`, and the reason is known at `now`.
pub(super) fn refusal_time(began: Instant, arrived: Instant, now: Instant) -> Instant {
    let earliest = now.max(arrived + SHORTEST);
    let elapsed = earliest.saturating_duration_since(began);
    let steps = elapsed.as_nanos().div_ceil(STEP.as_nanos()).max(1);
    began + STEP * u32::try_from(steps).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refusal is also delayed until at least 25 ms after the refused message arrived. Both
    /// delays hide the reason for the refusal.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_sent_at_a_multiple_of_50_ms_after_the_login_began() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        for (arrived, known, sent) in [
            (0, 0, 50),
            (0, 1, 50),
            (0, 49, 50),
            (0, 50, 50),
            (0, 51, 100),
            (0, 501, 550),
            (24, 24, 50),
            (25, 26, 50),
            (26, 26, 100),
            (49, 51, 100),
            (76, 76, 150),
        ] {
            let time = refusal_time(began, at(arrived), at(known));
            assert_eq!(
                time,
                at(sent),
                "arrived after {arrived}, known after {known}"
            );
        }
    }
}
