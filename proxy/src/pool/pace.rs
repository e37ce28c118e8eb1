//! Spreads the establishment of new connections to one server over time, for all users together.
//!
//! Many users may need connections at the same time, for instance after a server's restart. Seawall
//! begins to establish a few of these connections immediately, and the others one after another. In
//! this module, a connection *begins* when Seawall begins to establish it. The intervals between
//! the connections that begin one after another vary: each of them is longer or shorter than the
//! average interval by up to half. So several instances of Seawall do not log in at the same
//! moments. The algorithm is the generic cell rate algorithm (ITU-T I.371, annex A).

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

/// Approximate number of connections that may begin at the same time after a pause.
const BURST: u32 = 8;

#[derive(Debug)]
pub(super) struct Pace {
    /// Average time between two connections; `None` for no limit.
    interval: Option<Duration>,
    /// When the next connection could begin if no burst were allowed; `None` before the first
    /// connection.
    due: Option<Instant>,
    /// A number from 0 to 1 that varies the next interval. Changes with each connection.
    variation: f64,
}

/// With each connection, this number is added to the variation, modulo 1. Multiples of the golden
/// ratio, modulo 1, are spread evenly and never repeat.
const STEP: f64 = 0.618_033_988_749_895;

impl Pace {
    /// Creates a pace of `per_second` connections per second; `None` for no limit. `variation`,
    /// from 0 to 1, varies the first interval.
    pub(super) fn new(per_second: Option<NonZeroU32>, variation: f64) -> Self {
        Self {
            interval: interval(per_second),
            due: None,
            variation,
        }
    }

    /// Changes the number of connections per second. Returns true if the number has changed. The
    /// start times that [`Self::turn`] has returned are then invalid, and the connections that have
    /// not begun must be scheduled again.
    pub(super) fn set_rate(&mut self, per_second: Option<NonZeroU32>) -> bool {
        let interval = interval(per_second);
        if interval == self.interval {
            return false;
        }
        self.interval = interval;
        self.restart();
        true
    }

    /// Cancels all start times. Connections that are still needed must be scheduled again.
    pub(super) fn restart(&mut self) {
        self.due = None;
    }

    /// Schedules one connection that is needed now. Returns the time at which the connection may
    /// begin.
    pub(super) fn turn(&mut self, now: Instant) -> Instant {
        let Some(interval) = self.interval else {
            return now;
        };
        let due = self.due.map_or(now, |due| due.max(now));
        self.variation = (self.variation + STEP).fract();
        self.due = Some(due + interval.mul_f64(0.5 + self.variation));
        let tolerance = interval * BURST;
        due.checked_sub(tolerance).map_or(now, |turn| turn.max(now))
    }
}

fn interval(per_second: Option<NonZeroU32>) -> Option<Duration> {
    per_second.map(|rate| Duration::from_secs(1) / rate.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(pace: &mut Pace, count: u32, now: Instant) -> Vec<Duration> {
        (0..count).map(|_| pace.turn(now) - now).collect()
    }

    /// About eight connections may begin at the same time (a *burst*).
    #[tokio::test(start_paused = true)]
    async fn new_connections_begin_at_the_given_rate_after_a_burst() {
        let mut pace = Pace::new(NonZeroU32::new(100), 0.25);
        let turns = turns(&mut pace, 108, Instant::now());
        let at_once = turns.iter().filter(|turn| turn.is_zero()).count();
        assert!((8..=10).contains(&at_once), "{at_once}");
        assert!(turns.is_sorted());
        let last = turns.last().unwrap().as_secs_f64();
        assert!((0.95..1.05).contains(&last), "{last}");
        let gaps: Vec<_> = turns.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longest = gaps.iter().max().unwrap().as_millis();
        assert!((13..=15).contains(&longest), "{longest} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_small_burst_of_connections_begins_at_once_after_a_long_pause() {
        let mut pace = Pace::new(NonZeroU32::new(100), 0.25);
        let now = Instant::now();
        turns(&mut pace, 50, now);
        let later = turns(&mut pace, 20, now + Duration::from_secs(60));
        let at_once = later.iter().filter(|turn| turn.is_zero()).count();
        assert!((8..=10).contains(&at_once), "{at_once}");
    }

    #[tokio::test(start_paused = true)]
    async fn all_connections_begin_at_once_without_a_rate_limit() {
        let mut pace = Pace::new(None, 0.25);
        let all = turns(&mut pace, 1_000, Instant::now());
        assert!(all.iter().all(Duration::is_zero));
    }
}
