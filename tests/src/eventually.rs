//! Waits for a condition without assuming how long it takes.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Repeats `attempt` until it succeeds, for at most `limit`.
///
/// An attempt succeeds with `Some`, `Ok` or `true`. An attempt that hangs fails at the limit. The
/// wait uses tokio's clock, so it takes no time while that clock is paused.
pub async fn eventually<A>(
    limit: Duration,
    mut attempt: impl FnMut() -> A,
) -> Result<<A::Output as Attempt>::Value, TooLate>
where
    A: Future<Output: Attempt>,
{
    let deadline = Instant::now() + limit;
    let mut last = "the first attempt did not end".to_owned();
    loop {
        match timeout_at(deadline, attempt()).await.map(Attempt::value) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(reason)) => last = reason,
            Err(_) => return Err(TooLate { limit, last }),
        }
        if Instant::now() >= deadline {
            return Err(TooLate { limit, last });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The error if no attempt succeeded within the time limit.
#[derive(Debug, thiserror::Error)]
#[error("no success within {limit:?}: {last}")]
pub struct TooLate {
    /// The time limit that was exceeded.
    pub limit: Duration,
    /// The reason why the last completed attempt failed.
    pub last: String,
}

/// The result of one attempt: a value, or the reason why there is no value yet.
pub trait Attempt {
    /// The type of a successful attempt's value.
    type Value;

    /// Returns the value, or the reason for the failure as text.
    fn value(self) -> Result<Self::Value, String>;
}

impl<T> Attempt for Option<T> {
    type Value = T;

    fn value(self) -> Result<T, String> {
        self.ok_or_else(|| "the attempt returned no value".to_owned())
    }
}

impl<T, E: Display> Attempt for Result<T, E> {
    type Value = T;

    fn value(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

impl Attempt for bool {
    type Value = ();

    fn value(self) -> Result<(), String> {
        self.then_some(())
            .ok_or_else(|| "the condition was false".to_owned())
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn value_of_the_first_success_is_returned() {
        let attempts = Cell::new(0);
        let attempt = || async {
            attempts.set(attempts.get() + 1);
            (attempts.get() == 3).then_some("third")
        };
        assert_eq!(eventually(LIMIT, attempt).await.unwrap(), "third");
        assert_eq!(attempts.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_reason_of_the_last_failed_attempt_is_reported_when_the_time_limit_is_reached() {
        let began = Instant::now();
        let attempt = || async { Err::<(), _>("still dark") };
        let late = eventually(LIMIT, attempt).await.unwrap_err();
        assert_eq!(late.last, "still dark");
        assert!(began.elapsed() <= LIMIT + POLL_INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_attempt_ends_at_the_time_limit() {
        let late = eventually(LIMIT, pending::<bool>).await.unwrap_err();
        assert_eq!(late.limit, LIMIT);
    }
}
