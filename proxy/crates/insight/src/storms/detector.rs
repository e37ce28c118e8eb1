//! Detects reconnect storms.
//!
//! The sign of a storm is *churn*: connections that end soon after they were accepted. A deploy
//! brings many clients that stay, and ends old connections. A daily peak brings more connections
//! slowly. Only clients that time out connect and leave again. The detector compares the churn with
//! its average over the last minutes. That average follows a daily rise, but a short burst hardly
//! changes it. Applications that open a connection for each request have churn all day; only a
//! sudden rise counts.

/// The churn of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Churn {
    /// Connections accepted.
    pub(super) arrivals: u64,
    /// Connections that ended soon after they were accepted.
    pub(super) short_lived: u64,
}

/// A change of the detector's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormTurn {
    /// A storm began `StormDetector::BEGINS_AFTER` seconds ago.
    Began,
    /// The storm ended.
    Ended,
}

/// Watches one series. It gets one call per second.
#[derive(Clone, Debug, Default)]
pub(super) struct StormDetector {
    normal: f64,
    seconds: u64,
    /// Consecutive seconds that contradict the present state.
    against: u32,
    is_storm: bool,
}

/// Lower churn (connections per second) is never a storm, whatever the normal value.
const MIN_CHURN: f64 = 20.0;

/// A storm begins when the churn is this many times the normal churn.
const FACTOR: f64 = 4.0;

/// A storm ends when the churn falls below this many times the normal churn.
const CALM_FACTOR: f64 = 2.0;

/// Averaging time of the normal churn, in seconds.
const MEMORY: f64 = 300.0;

/// Averaging time during a storm, in seconds: lasting churn becomes normal in the end.
const STORM_MEMORY: f64 = 1800.0;

/// Seconds after the start in which the normal churn is still unknown.
const LEARNING: u64 = 10;

impl StormDetector {
    /// Consecutive seconds that begin a storm.
    pub(super) const BEGINS_AFTER: u32 = 3;

    /// Consecutive seconds that end a storm.
    pub(super) const ENDS_AFTER: u32 = 10;

    /// Adds one second.
    pub(super) fn second(&mut self, seen: Churn) -> Option<StormTurn> {
        let churn = f64::from(
            u32::try_from(seen.short_lived.min(seen.arrivals.max(1))).unwrap_or(u32::MAX),
        );
        self.seconds += 1;
        let is_against = match self.is_storm {
            false => !self.is_learning() && churn >= MIN_CHURN && churn > self.normal * FACTOR,
            true => churn < MIN_CHURN.max(self.normal * CALM_FACTOR),
        };
        self.against = if is_against { self.against + 1 } else { 0 };
        self.learn(churn, is_against);
        let needed = match self.is_storm {
            false => Self::BEGINS_AFTER,
            true => Self::ENDS_AFTER,
        };
        if self.against < needed {
            return None;
        }
        self.against = 0;
        self.is_storm = !self.is_storm;
        Some(if self.is_storm {
            StormTurn::Began
        } else {
            StormTurn::Ended
        })
    }

    /// Consecutive seconds that indicate a storm before it has begun.
    pub(super) fn suspicion(&self) -> u32 {
        if self.is_storm { 0 } else { self.against }
    }

    /// True while too few seconds have been seen to know the normal churn.
    pub(super) fn is_learning(&self) -> bool {
        self.seconds <= LEARNING
    }

    /// The normal churn, in connections per second.
    pub(super) fn normal(&self) -> f64 {
        self.normal
    }

    /// Updates the normal churn. Seconds that indicate a storm are not normal and are skipped.
    fn learn(&mut self, churn: f64, is_against: bool) {
        let known = f64::from(u32::try_from(self.seconds).unwrap_or(u32::MAX));
        let memory = match (self.is_storm, is_against) {
            (false, false) => MEMORY.min(known),
            (false, true) => return,
            (true, _) => STORM_MEMORY,
        };
        self.normal += (churn - self.normal) / memory;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds a series of (seconds, arrivals, short lived). Returns the state changes with their
    /// seconds.
    fn turns(series: impl IntoIterator<Item = (u32, u64, u64)>) -> Vec<(u32, StormTurn)> {
        let mut detector = StormDetector::default();
        let mut now = 0;
        let mut turns = Vec::new();
        for (seconds, arrivals, short_lived) in series {
            for _ in 0..seconds {
                now += 1;
                let turn = detector.second(Churn {
                    arrivals,
                    short_lived,
                });
                turns.extend(turn.map(|turn| (now, turn)));
            }
        }
        turns
    }

    #[test]
    fn an_avalanche_is_one_storm() {
        // Normal traffic of a router, then a stall of one minute in which clients time out, then
        // calm.
        let turns = turns([(600, 3, 1), (60, 4_000, 3_900), (120, 3, 1)]);
        assert_eq!(turns, [(603, StormTurn::Began), (670, StormTurn::Ended)]);
    }

    #[test]
    fn a_storm_that_pauses_is_one_storm() {
        let gusts = (0..5).flat_map(|_| [(20, 2_000, 1_900), (5, 10, 5)]);
        let turns = turns([(600, 3, 1)].into_iter().chain(gusts).chain([(60, 3, 1)]));
        assert_eq!(
            turns
                .iter()
                .filter(|(_, turn)| *turn == StormTurn::Began)
                .count(),
            1,
            "{turns:?}"
        );
    }

    #[test]
    fn a_deploy_is_no_storm() {
        // 300 new processes in two minutes with 20 connections each, which stay. The old processes'
        // connections were not short-lived.
        let turns = turns([(600, 5, 2), (120, 50, 2), (600, 5, 2)]);
        assert_eq!(turns, []);
    }

    #[test]
    fn a_health_check_that_connects_and_leaves_is_no_storm() {
        assert_eq!(turns([(3_600, 12, 12)]), []);
    }

    #[test]
    fn a_daily_peak_of_short_connections_is_no_storm() {
        // From 30 to 630 connections per second and back, two hours each way, in steps of one
        // minute.
        let up = (0..120_u64).map(|minute| (60, 30 + minute * 5, 30 + minute * 5));
        let down = (0..120_u64).map(|minute| (60, 630 - minute * 5, 630 - minute * 5));
        assert_eq!(turns(up.chain(down)), []);
    }

    #[test]
    fn a_daily_peak_of_lasting_connections_is_no_storm() {
        let hours = [5, 40, 150, 300, 150, 40, 5].map(|arrivals| (1_800, arrivals, arrivals / 20));
        assert_eq!(turns(hours), []);
    }

    #[test]
    fn a_storm_on_top_of_many_short_connections_is_detected() {
        let turns = turns([(1_800, 200, 200), (30, 3_000, 2_900), (120, 200, 200)]);
        assert_eq!(turns.first(), Some(&(1_803, StormTurn::Began)));
        assert_eq!(turns.len(), 2, "{turns:?}");
    }

    #[test]
    fn a_start_among_many_short_connections_is_no_storm() {
        assert_eq!(turns([(600, 500, 500)]), []);
    }

    #[test]
    fn lasting_churn_becomes_normal() {
        // A new application that opens a connection for each request.
        let turns = turns([(600, 3, 1), (7_200, 500, 500)]);
        assert_eq!(turns.len(), 2, "{turns:?}");
    }

    proptest! {
        #[test]
        fn turns_alternate_and_the_normal_churn_stays_finite(
            series in prop::collection::vec((0_u64..10_000, 0_u64..10_000), 1..500)
        ) {
            let mut detector = StormDetector::default();
            let mut last = StormTurn::Ended;
            for (arrivals, short_lived) in series {
                if let Some(turn) = detector.second(Churn { arrivals, short_lived }) {
                    prop_assert_ne!(turn, last);
                    prop_assert_eq!(turn == StormTurn::Began, detector.is_storm);
                    last = turn;
                }
                prop_assert!(detector.normal().is_finite() && detector.normal() >= 0.0);
            }
        }
    }
}
