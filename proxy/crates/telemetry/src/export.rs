//! One export: sends a message. After a temporary failure, the message is sent again, but only
//! until the next export is due.

use std::time::Duration;

use axum::body::Bytes;
use rand::{TryRng as _, rngs::SysRng};
use tokio::time::{Instant, sleep_until};

use super::collector::{Collector, Response};

/// The wait before the second request of an export. Each further wait is twice as long. Each wait
/// is shortened at random (see [`jittered`]).
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The longest wait between two requests, unless the collector asks for a longer wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How an export ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The collector accepted all points.
    Ok,
    /// The collector accepted some points and refused the others.
    Partial,
    /// The collector refused the message.
    Refused,
    /// The collector did not respond within the timeout.
    TimedOut,
    /// The connection ended before the end of the response, the response is too large, or it is not
    /// valid OTLP.
    Failed,
    /// This export ended early, because the next export is due before this export could repeat its
    /// request. The next export contains all counts of this export.
    Overtaken,
}

impl Outcome {
    /// The label value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Partial => "partial",
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::Overtaken => "overtaken",
        }
    }
}

/// An export that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Exported {
    /// How the export ended.
    pub outcome: Outcome,
    /// The cause of a failure. After a success or a partial success, this is the collector's
    /// explanation or warning, or empty if the collector sent none.
    pub reason: String,
    /// Number of points that the collector refused in a partial success.
    pub rejected: u64,
    /// If `outcome` is `Overtaken` and the collector asked Seawall to wait: the end of this wait.
    /// Otherwise `None`.
    pub not_before: Option<Instant>,
}

impl Collector {
    /// Sends a message, and repeats it after temporary failures. `until` is when the next export is
    /// due: if the wait before a repetition would last until then, this export ends immediately. A
    /// request in flight at `until` continues, at most until the collector's timeout. Cancel safe.
    pub async fn export(&self, message: Vec<u8>, until: Instant) -> Exported {
        let body = self.body(message);
        with_retries(|| self.send(Bytes::clone(&body)), until).await
    }
}

/// Calls `send` again after each [`Response::Retryable`]. Ends after any other response, or if the
/// wait before the next call would end at `until` or later.
async fn with_retries<F: Future<Output = Response>>(
    mut send: impl FnMut() -> F,
    until: Instant,
) -> Exported {
    let mut wait = FIRST_WAIT;
    loop {
        let (reason, after) = match send().await {
            Response::Retryable { reason, after } => (reason, after),
            ended => return Exported::of(ended),
        };
        let now = Instant::now();
        let not_before = after.map(|after| now + after);
        let next = now + jittered(wait).max(after.unwrap_or_default());
        if next >= until {
            return Exported {
                outcome: Outcome::Overtaken,
                reason,
                rejected: 0,
                not_before,
            };
        }
        sleep_until(next).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

impl Exported {
    fn of(response: Response) -> Self {
        let mut rejected = 0;
        let (outcome, reason) = match response {
            Response::Accepted {
                rejected: 0,
                message,
            } => (Outcome::Ok, message),
            Response::Accepted {
                rejected: some,
                message,
            } => {
                rejected = some;
                (Outcome::Partial, message)
            }
            Response::Refused(reason) => (Outcome::Refused, reason),
            Response::TimedOut => (Outcome::TimedOut, "timed out".to_owned()),
            Response::Retryable { reason, .. } | Response::Broken(reason) => {
                (Outcome::Failed, reason)
            }
        };
        Self {
            outcome,
            reason,
            rejected,
            not_before: None,
        }
    }
}

/// A random time from half of `wait` to `wait`, so that several instances do not send at the same
/// moments.
fn jittered(wait: Duration) -> Duration {
    // If the operating system returns no random number, the wait has its full length.
    let random = SysRng.try_next_u32().unwrap_or(u32::MAX);
    wait.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests;
