//! A server's current latency: a moving average that rises at once and falls slowly (peak EWMA).
//!
//! Source: Finagle's peak EWMA load metric, <https://twitter.github.io/finagle/guide/Clients.html>.
//! The crate `tower` has the same measure (`tower::load::PeakEwma`), but `tower` measures the
//! durations itself and accepts none from its caller.

use std::time::Duration;

use tokio::time::Instant;

/// After this time, the weight of a measurement has fallen to about a third (1/e).
const DECAY: Duration = Duration::from_secs(10);

/// Largest factor by which a single operation may raise the average. A single operation may be slow
/// because it is expensive, so its duration says little about the server.
const MAX_RISE_FACTOR: f64 = 10.0;

/// A server's latency, computed from the durations of its operations; `None` before the first
/// operation.
#[derive(Debug, Default)]
pub(super) struct Latency(Option<Average>);

#[derive(Clone, Copy, Debug)]
struct Average {
    seconds: f64,
    at: Instant,
}

impl Average {
    /// The average at `now`, in seconds. It falls while a server gets no operations, so that a slow
    /// server is tried again later.
    fn at(self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        self.seconds * (-age / DECAY.as_secs_f64()).exp()
    }
}

impl Latency {
    /// Records how long an operation took at the server.
    pub(super) fn observe(&mut self, took: Duration, now: Instant) {
        let took = took.as_secs_f64();
        let seconds = match self.0 {
            None => took,
            Some(before) if took >= before.seconds => took.min(before.seconds * MAX_RISE_FACTOR),
            Some(before) => {
                let left = before.at(now);
                let weight = left / before.seconds.max(f64::MIN_POSITIVE);
                left + took * (1.0 - weight)
            }
        };
        self.0 = Some(Average { seconds, at: now });
    }

    /// Records that an operation took at least this long: its client left before the reply. The
    /// average only rises. Without this, a server that no longer replies in time would seem to
    /// become faster, because the average falls.
    pub(super) fn observe_at_least(&mut self, took: Duration, now: Instant) {
        if took.as_secs_f64() > self.seconds(now) {
            self.observe(took, now);
        }
    }

    /// The average at `now`, in seconds; 0 before the first operation.
    pub(super) fn seconds(&self, now: Instant) -> f64 {
        self.0.map_or(0.0, |average| average.at(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_average_latency_rises_at_once_and_falls_slowly() {
        let (mut latency, began) = (Latency::default(), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        let millis = Duration::from_millis;
        assert!(latency.seconds(began) == 0.0);
        latency.observe(millis(1), began);
        latency.observe(millis(100), after(1));
        let raised = latency.seconds(after(1));
        assert!((0.009..0.011).contains(&raised), "{raised}");
        latency.observe(millis(1), after(2));
        assert!(latency.seconds(after(2)) > 0.008);
        for second in 3..60 {
            latency.observe(millis(1), after(second));
        }
        let settled = latency.seconds(after(60));
        assert!((0.0009..0.002).contains(&settled), "{settled}");
        // Without operations, the average falls.
        assert!(latency.seconds(after(200)) < 0.000_1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_five_times_slower_than_the_average_raises_the_average_to_its_latency() {
        let (mut latency, now) = (Latency::default(), Instant::now());
        latency.observe(Duration::from_millis(1), now);
        latency.observe(Duration::from_millis(5), now);
        let raised = latency.seconds(now);
        assert!((0.0049..0.0051).contains(&raised), "{raised}");
    }

    /// The clients of a server that no longer replies leave after their time limit of 5 s.
    #[tokio::test(start_paused = true)]
    async fn operations_whose_clients_left_raise_the_average_but_never_lower_it() {
        let (mut latency, began) = (Latency::default(), Instant::now());
        latency.observe(Duration::from_millis(10), began);
        latency.observe_at_least(Duration::from_millis(1), began);
        assert!(latency.seconds(began) > 0.009);
        for second in 1..90 {
            let now = began + Duration::from_secs(second);
            latency.observe_at_least(Duration::from_secs(5), now);
        }
        let raised = latency.seconds(began + Duration::from_secs(90));
        assert!((4.0..5.1).contains(&raised), "{raised}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_faster_than_the_average_counts_more_after_a_longer_pause() {
        let (mut latency, began) = (Latency::default(), Instant::now());
        latency.observe(Duration::from_millis(10), began);
        let later = began + DECAY;
        latency.observe(Duration::from_millis(1), later);
        // One decay time later, about one third of the average comes from the old value (10 ms).
        // The other two thirds come from the new value (1 ms).
        let fallen = latency.seconds(later);
        assert!((0.0043..0.0044).contains(&fallen), "{fallen}");
    }
}
