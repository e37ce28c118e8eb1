//! Detects reconnect storms by their churn.
//!
//! *Churn* is the number of client connections per second that end soon after they were accepted. A
//! deploy brings many clients that stay connected, and ends old connections. A daily peak brings
//! more connections slowly. If the churn suddenly rises, clients usually time out and connect again
//! and again. The detector compares the churn with its average over the last minutes. That average
//! follows a slow rise, but a short burst hardly changes it. An application that has always opened
//! a connection for each operation causes no storm, because the average includes its connections.

/// The client connections of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Churn {
    /// Number of accepted connections.
    pub(super) arrivals: u64,
    /// Number of connections that ended soon after they were accepted.
    pub(super) short_lived: u64,
}

/// The start or the end of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormChange {
    /// A storm began: the last `StormDetector::BEGINS_AFTER` seconds had high churn.
    Began,
    /// The storm ended.
    Ended,
}

/// Detects storms. [`Self::second`] must be called once a second.
#[derive(Clone, Debug, Default)]
pub(super) struct StormDetector {
    /// The normal churn: the average number of short-lived connections per second.
    normal: f64,
    /// Number of calls of [`Self::second`].
    seconds: u64,
    /// Number of consecutive seconds that contradict `is_storm`: high churn outside of a storm, or
    /// low churn during a storm.
    against: u32,
    is_storm: bool,
}

/// Minimum churn of a storm, in short-lived connections per second. With less churn, no storm
/// begins, even if the churn is many times the normal churn. During a storm, less churn always
/// counts as low.
const MIN_CHURN: f64 = 20.0;

/// Churn is high, and may begin a storm, if it is more than this many times the normal churn.
const FACTOR: f64 = 4.0;

/// During a storm, churn is low if it is less than this many times the normal churn, or less than
/// [`MIN_CHURN`].
const CALM_FACTOR: f64 = 2.0;

/// Averaging time of the normal churn outside of storms, in seconds.
const MEMORY: f64 = 300.0;

/// Averaging time of the normal churn during a storm, in seconds. If the high churn of a storm
/// lasts, the normal churn slowly rises to it, and the storm ends.
const STORM_MEMORY: f64 = 1800.0;

/// Number of seconds after the start of the detector in which the normal churn is still unknown. No
/// storm begins in this time.
const LEARNING: u64 = 10;

impl StormDetector {
    /// Number of consecutive seconds with high churn that begin a storm.
    const BEGINS_AFTER: u32 = 3;

    /// Number of consecutive seconds with low churn that end a storm.
    pub(super) const ENDS_AFTER: u32 = 10;

    /// Updates the detector with the connections of one second. The churn is limited to the number
    /// of accepted connections, because clients that disconnect and do not connect again cause no
    /// reconnect storm. Returns a change if a storm began or ended.
    pub(super) fn second(&mut self, seen: Churn) -> Option<StormChange> {
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
            StormChange::Began
        } else {
            StormChange::Ended
        })
    }

    /// Ends the storm, if there is one. If the churn stays high for [`Self::BEGINS_AFTER`] further
    /// seconds, a new storm begins.
    pub(super) fn end_storm(&mut self) {
        self.is_storm = false;
        self.against = 0;
    }

    /// Number of consecutive seconds with high churn so far; 0 during a storm.
    pub(super) fn suspicion(&self) -> u32 {
        if self.is_storm { 0 } else { self.against }
    }

    /// True while the normal churn is not known yet, because the detector has seen too few seconds.
    pub(super) fn is_learning(&self) -> bool {
        self.seconds <= LEARNING
    }

    /// The normal churn: the average number of short-lived connections per second over the last
    /// minutes.
    pub(super) fn normal(&self) -> f64 {
        self.normal
    }

    /// Updates the normal churn. Outside of storms, seconds that indicate a storm are skipped.
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

    /// Runs a detector over phases of constant traffic: (seconds, connections per second,
    /// short-lived connections per second). Returns each change with its second.
    fn changes(series: impl IntoIterator<Item = (u32, u64, u64)>) -> Vec<(u32, StormChange)> {
        let mut detector = StormDetector::default();
        let mut now = 0;
        let mut changes = Vec::new();
        for (seconds, arrivals, short_lived) in series {
            for _ in 0..seconds {
                now += 1;
                let change = detector.second(Churn {
                    arrivals,
                    short_lived,
                });
                changes.extend(change.map(|change| (now, change)));
            }
        }
        changes
    }

    #[test]
    fn minute_of_reconnecting_clients_is_one_storm() {
        // Normal traffic, then one minute of a stall in which clients time out, then normal
        // traffic.
        let changes = changes([(600, 3, 1), (60, 4_000, 3_900), (120, 3, 1)]);
        assert_eq!(
            changes,
            [(603, StormChange::Began), (670, StormChange::Ended)]
        );
    }

    #[test]
    fn storm_with_short_pauses_is_one_storm() {
        let gusts = (0..5).flat_map(|_| [(20, 2_000, 1_900), (5, 10, 5)]);
        let changes = changes([(600, 3, 1)].into_iter().chain(gusts).chain([(60, 3, 1)]));
        assert_eq!(
            changes
                .iter()
                .filter(|(_, change)| *change == StormChange::Began)
                .count(),
            1,
            "{changes:?}"
        );
    }

    #[test]
    fn a_deploy_is_not_a_storm() {
        // In two minutes 300 new processes open 20 connections each and keep them. The closed
        // connections of the old processes were not short-lived.
        let changes = changes([(600, 5, 2), (120, 50, 2), (600, 5, 2)]);
        assert_eq!(changes, []);
    }

    #[test]
    fn a_health_check_that_connects_and_disconnects_is_not_a_storm() {
        assert_eq!(changes([(3_600, 12, 12)]), []);
    }

    #[test]
    fn a_daily_peak_of_short_lived_connections_is_not_a_storm() {
        // The rate rises from 30 to 630 connections per second in two hours and falls in two hours,
        // in steps of one minute.
        let up = (0..120_u64).map(|minute| (60, 30 + minute * 5, 30 + minute * 5));
        let down = (0..120_u64).map(|minute| (60, 630 - minute * 5, 630 - minute * 5));
        assert_eq!(changes(up.chain(down)), []);
    }

    #[test]
    fn a_daily_peak_of_lasting_connections_is_not_a_storm() {
        let hours = [5, 40, 150, 300, 150, 40, 5].map(|arrivals| (1_800, arrivals, arrivals / 20));
        assert_eq!(changes(hours), []);
    }

    #[test]
    fn a_storm_is_detected_even_if_many_short_lived_connections_are_normal() {
        let changes = changes([(1_800, 200, 200), (30, 3_000, 2_900), (120, 200, 200)]);
        assert_eq!(changes.first(), Some(&(1_803, StormChange::Began)));
        assert_eq!(changes.len(), 2, "{changes:?}");
    }

    /// A storm is a sudden rise of the rate of short-lived connections. The detector does not know
    /// the rate before its start, so it cannot see a rise.
    #[test]
    fn a_high_rate_of_short_lived_connections_since_the_start_is_not_a_storm() {
        assert_eq!(changes([(600, 500, 500)]), []);
    }

    /// The average rate of short-lived connections slowly rises to the high rate. Then the storm
    /// ends.
    #[test]
    fn a_storm_ends_if_the_high_rate_of_short_lived_connections_lasts() {
        // A new application opens a connection for each operation.
        let changes = changes([(600, 3, 1), (7_200, 500, 500)]);
        assert_eq!(changes.len(), 2, "{changes:?}");
    }

    proptest! {
        /// Also checks that the normal churn (the average rate of short-lived connections) is
        /// always finite.
        #[test]
        fn starts_and_ends_of_storms_alternate(
            series in prop::collection::vec((0_u64..10_000, 0_u64..10_000), 1..500)
        ) {
            let mut detector = StormDetector::default();
            let mut last = StormChange::Ended;
            for (arrivals, short_lived) in series {
                if let Some(change) = detector.second(Churn { arrivals, short_lived }) {
                    prop_assert_ne!(change, last);
                    prop_assert_eq!(change == StormChange::Began, detector.is_storm);
                    last = change;
                }
                prop_assert!(detector.normal().is_finite() && detector.normal() >= 0.0);
            }
        }
    }
}
