//! The CPU time of the load harness itself, and how late its timers are. If the harness is
//! overloaded, its results do not describe the target.

use std::{fs, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::Shared;

/// Interval at which the lateness of timers is measured.
const MEASURE_INTERVAL: Duration = Duration::from_millis(5);

/// Number of clock ticks per second (USER_HZ). `/proc` reports CPU time in these ticks.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time in seconds that this process has used from its start until `at`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    at: Instant,
    user: f64,
    system: f64,
}

/// CPU time divided by elapsed time. 1 means one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub(super) user: f64,
    pub(super) system: f64,
}

impl Usage {
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The process name in parentheses may contain spaces, so fields are counted from the
        // closing parenthesis.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        let mut times = fields.split(' ').skip(11).map(|field| field.parse::<f64>());
        let mut next = || times.next().and_then(Result::ok).unwrap_or(0.0) / TICKS_PER_SECOND;
        Self {
            at: Instant::now(),
            user: next(),
            system: next(),
        }
    }

    pub(super) fn since(&self) -> Share {
        let now = Self::now();
        let elapsed = (now.at - self.at).as_secs_f64().max(f64::MIN_POSITIVE);
        Share {
            user: (now.user - self.user) / elapsed,
            system: (now.system - self.system) / elapsed,
        }
    }
}

/// Measures how late timers wake up on the clients' runtime.
pub(super) async fn watch_lateness(shared: Arc<Shared>) {
    loop {
        let due = Instant::now() + MEASURE_INTERVAL;
        sleep_until(due).await;
        shared.record.lock().record_lateness(due.elapsed());
    }
}
