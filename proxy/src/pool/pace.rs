//! The pace at which new connections to one server are begun, over all users.
//!
//! Many users may want connections at the same time, for instance after a server's restart. Their
//! logins are spread: a few begin at once, the others one after another. The intervals vary by up
//! to half, so that several Seawalls do not synchronize. This is the generic cell rate algorithm
//! (ITU-T I.371, annex A).

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

/// Connections that are begun at once after a pause.
const BURST: u32 = 8;

#[derive(Debug)]
pub(super) struct Pace {
    /// Average time between two connections; `None` for no limit.
    interval: Option<Duration>,
    /// When the next one would be due at an even pace.
    due: Option<Instant>,
    /// From 0 to 1; changes with each connection.
    chance: f64,
}

/// Steps of the golden ratio spread evenly and never repeat.
const STEP: f64 = 0.618_033_988_749_895;

impl Pace {
    /// `chance`, from 0 to 1, is the start of the variation.
    pub(super) fn new(per_second: Option<NonZeroU32>, chance: f64) -> Self {
        Self {
            interval: per_second.map(|rate| Duration::from_secs(1) / rate.get()),
            due: None,
            chance,
        }
    }

    /// Counts one connection that is wanted now. Returns when it may be begun.
    pub(super) fn turn(&mut self, now: Instant) -> Instant {
        let Some(interval) = self.interval else {
            return now;
        };
        let due = self.due.map_or(now, |due| due.max(now));
        self.chance = (self.chance + STEP).fract();
        self.due = Some(due + interval.mul_f64(0.5 + self.chance));
        let tolerance = interval * BURST;
        due.checked_sub(tolerance).map_or(now, |turn| turn.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(pace: &mut Pace, count: u32, now: Instant) -> Vec<Duration> {
        (0..count).map(|_| pace.turn(now) - now).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_connections_begin_at_once_and_the_others_are_spread() {
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
    async fn a_pause_earns_no_more_than_the_burst() {
        let mut pace = Pace::new(NonZeroU32::new(100), 0.25);
        let now = Instant::now();
        turns(&mut pace, 50, now);
        let later = turns(&mut pace, 20, now + Duration::from_secs(60));
        let at_once = later.iter().filter(|turn| turn.is_zero()).count();
        assert!((8..=10).contains(&at_once), "{at_once}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_no_connection_waits() {
        let mut pace = Pace::new(None, 0.25);
        let all = turns(&mut pace, 1_000, Instant::now());
        assert!(all.iter().all(Duration::is_zero));
    }
}
