//! What the generator itself cost, and how late it was: figures of a load that could not keep up are its own.

use std::{fs, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::Shared;

/// Between two looks at how late timers are.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What `/proc` counts in (USER_HZ).
const TICKS_A_SECOND: f64 = 100.0;

/// CPU time of this process so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    at: Instant,
    user: f64,
    system: f64,
}

/// CPU time over wall-clock time: 1 is one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub(super) user: f64,
    pub(super) system: f64,
}

impl Usage {
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name in brackets may hold spaces; fields are counted after it.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        let mut times = fields.split(' ').skip(11).map(|field| field.parse::<f64>());
        let mut next = || times.next().and_then(Result::ok).unwrap_or(0.0) / TICKS_A_SECOND;
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

/// Notes how much later than asked a timer wakes, on the threads that the clients run on.
pub(super) async fn watch_lateness(shared: Arc<Shared>) {
    loop {
        let due = Instant::now() + LOOK_EVERY;
        sleep_until(due).await;
        shared.record.lock().late(due.elapsed());
    }
}
