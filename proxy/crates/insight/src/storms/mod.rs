//! Reconnect storms: when they happened, which clients connected, how their connections ended, and
//! how many client connections and logins caused no connection or login at a server.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use super::{MAX_REPEATED_SECONDS, tiers::MAX_GAP_SECONDS};
use seawall_stats::Traffic;

mod detector;

pub use self::detector::StormChange;
use self::detector::{Churn, StormDetector};

/// Maximum number of past storms that are remembered.
const REMEMBERED: usize = 100;

/// A storm, current or past.
#[derive(Clone, Debug)]
pub struct Storm {
    /// When the storm began.
    pub started_at: SystemTime,
    /// When the storm ended; `None` for the current storm.
    pub ended_at: Option<SystemTime>,
    /// Maximum number of connections accepted in one second. If the figures of several seconds
    /// arrived together, this is the mean of these seconds.
    pub peak_arrivals: u64,
    /// Number of short-lived connections per second that was normal before the storm.
    pub usual: f64,
    /// Connections and logins during the storm.
    pub traffic: Traffic,
}

impl Storm {
    /// Number of client connections that caused no server connection: the accepted client
    /// connections minus the established server connections.
    pub fn connections_absorbed(&self) -> u64 {
        let Traffic {
            arrivals,
            server_connections,
            ..
        } = self.traffic;
        arrivals.saturating_sub(server_connections)
    }

    /// Number of client logins that caused no login at a server: the logins of clients minus the
    /// logins at servers.
    pub fn authentications_absorbed(&self) -> u64 {
        let Traffic {
            client_authentications,
            server_authentications,
            ..
        } = self.traffic;
        client_authentications.saturating_sub(server_authentications)
    }
}

/// Detects storms and keeps the latest storms.
#[derive(Debug, Default)]
pub(super) struct Storms {
    detector: StormDetector,
    /// The storm that begins if the churn (the number of short-lived connections) stays high. Its
    /// traffic is that of the last consecutive seconds with high churn.
    suspected: Option<Storm>,
    current: Option<Storm>,
    past: VecDeque<Storm>,
    /// The time of the previous call of [`Storms::second`].
    last: Option<SystemTime>,
}

impl Storms {
    /// Updates the detector with the traffic since the previous call, which was usually a second
    /// ago. If this call detects the beginning or the end of a storm, it returns the change and the
    /// storm. If the clock jumped since the previous call, the seconds with high churn before the
    /// jump do not count for the beginning of a storm. A jump also ends the current storm, if any,
    /// at the time of the previous call; this call then ignores its `traffic`.
    pub(super) fn second(
        &mut self,
        traffic: &Traffic,
        now: SystemTime,
    ) -> Option<(StormChange, Storm)> {
        let last = self.last.replace(now);
        if let Some(last) = last.filter(|last| has_jumped(*last, now)) {
            self.suspected = None;
            self.detector.end_storm();
            if let Some(ended) = self.end(last) {
                return Some(ended);
            }
        }
        let seconds = whole_seconds(last, now);
        let arrivals = traffic.arrivals.div_ceil(seconds);
        let usual = self.detector.normal();
        let change = self.detector.second(Churn {
            arrivals,
            short_lived: traffic.short_lived().div_ceil(seconds),
        });
        let storm = match &mut self.current {
            Some(storm) => storm,
            None => self.suspected.get_or_insert_with(|| Storm {
                started_at: now.checked_sub(Duration::from_secs(seconds)).unwrap_or(now),
                ended_at: None,
                peak_arrivals: 0,
                usual,
                traffic: Traffic::default(),
            }),
        };
        storm.traffic.merge(traffic);
        storm.peak_arrivals = arrivals.max(storm.peak_arrivals);
        match change {
            Some(change @ StormChange::Began) => {
                let storm = self.suspected.take()?;
                self.current = Some(storm.clone());
                Some((change, storm))
            }
            Some(StormChange::Ended) => self.end(now),
            None => {
                // Traffic before the first second with high churn does not belong to a storm.
                if self.detector.suspicion() == 0 {
                    self.suspected = None;
                }
                None
            }
        }
    }

    /// Moves the current storm, if any, to the past storms.
    fn end(&mut self, ended_at: SystemTime) -> Option<(StormChange, Storm)> {
        let mut storm = self.current.take()?;
        storm.ended_at = Some(ended_at);
        self.past.truncate(REMEMBERED - 1);
        self.past.push_front(storm.clone());
        Some((StormChange::Ended, storm))
    }

    /// True while the detector still learns the normal churn: the usual number of short-lived
    /// connections.
    pub(super) fn is_learning(&self) -> bool {
        self.detector.is_learning()
    }

    /// The current storm, if any, followed by past storms, the latest first.
    pub(super) fn list(&self) -> Vec<Storm> {
        self.current.iter().chain(&self.past).cloned().collect()
    }
}

/// True if the clock was set back by more than [`MAX_REPEATED_SECONDS`] between two calls, or if
/// more than [`MAX_GAP_SECONDS`] are missing between them: the machine slept, or the clock was set
/// forward.
fn has_jumped(last: SystemTime, now: SystemTime) -> bool {
    match now.duration_since(last) {
        Ok(time) => time > Duration::from_secs(MAX_GAP_SECONDS),
        Err(back) => back.duration() > Duration::from_secs(MAX_REPEATED_SECONDS),
    }
}

/// The time from `last` until `now` in whole seconds, rounded, because calls are early or late by
/// some milliseconds. The result is at least 1, also if the clock was set back.
fn whole_seconds(last: Option<SystemTime>, now: SystemTime) -> u64 {
    let time = last.and_then(|last| now.duration_since(last).ok());
    let rounded = time.unwrap_or_default() + Duration::from_millis(500);
    rounded.as_secs().max(1)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use seawall_stats::{Departure, Leaving, Stage};

    const CLIENT: Leaving<'_> = Leaving {
        age: Duration::from_millis(100),
        ip: None,
        application: Some("shop"),
        driver: Some("nodejs 6.8"),
        user: None,
        stage: Stage::LoggingIn,
        how: Departure::GaveUp,
    };

    /// A detector under test, with the changes of its state and the second of each change.
    struct Scene {
        storms: Storms,
        now: SystemTime,
        changes: Vec<(u64, StormChange, Storm)>,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                storms: Storms::default(),
                now: UNIX_EPOCH,
                changes: Vec::new(),
            }
        }

        fn seconds(&mut self, number: u32, traffic: &Traffic) {
            for _ in 0..number {
                self.now += Duration::from_secs(1);
                let second = self.now.duration_since(UNIX_EPOCH).unwrap().as_secs();
                let change = self.storms.second(traffic, self.now);
                self.changes
                    .extend(change.map(|(change, storm)| (second, change, storm)));
            }
        }
    }

    fn traffic(clients: u64, leaving: &Leaving<'_>) -> Traffic {
        let mut traffic = Traffic {
            arrivals: clients,
            client_authentications: clients,
            server_connections: 1,
            ..Traffic::default()
        };
        (0..clients).for_each(|_| traffic.add_departure(leaving));
        traffic
    }

    /// A storm also reports the absorbed connections: the client connections for which Seawall
    /// opened no connection to a server.
    #[test]
    fn a_storm_reports_the_networks_and_applications_of_its_clients() {
        let mut scene = Scene::new();
        let leaving = Leaving {
            ip: Some([10, 1, 2, 3].into()),
            ..CLIENT
        };
        scene.seconds(30, &Traffic::default());
        scene.seconds(5, &traffic(100, &leaving));
        scene.seconds(StormDetector::ENDS_AFTER, &Traffic::default());
        let [
            (33, StormChange::Began, began),
            (45, StormChange::Ended, ended),
        ] = &*scene.changes
        else {
            panic!("{:?}", scene.changes);
        };
        assert_eq!((began.peak_arrivals, began.traffic.arrivals), (100, 300));
        assert_eq!(began.started_at, UNIX_EPOCH + Duration::from_secs(30));
        assert_eq!(ended.ended_at, Some(scene.now));
        let traffic = &ended.traffic;
        assert_eq!(traffic.networks.ranked(), [("10.1.2.0/24", 500)]);
        assert_eq!(traffic.applications.ranked(), [("shop", 500)]);
        assert_eq!(traffic.departures, [0, 500, 0, 0]);
        assert_eq!(traffic.gave_up_in.get("logging_in"), Some(&500));
        let absorbed = (
            ended.connections_absorbed(),
            ended.authentications_absorbed(),
        );
        assert_eq!(absorbed, (495, 500));
        assert_eq!(scene.storms.list().len(), 1);
    }

    /// A late call has the traffic of several seconds.
    #[test]
    fn rates_of_a_storm_are_per_second_even_if_the_traffic_of_some_seconds_arrives_together() {
        let mut scene = Scene::new();
        scene.seconds(30, &traffic(4, &CLIENT));
        // Nine connections per second are too few for a storm.
        for _ in 0..5 {
            scene.now += Duration::from_millis(2_990);
            scene.seconds(1, &traffic(36, &CLIENT));
        }
        assert!(scene.changes.is_empty(), "{:?}", scene.changes);
        for _ in 0..5 {
            scene.now += Duration::from_millis(3_010);
            scene.seconds(1, &traffic(400, &CLIENT));
        }
        let [(_, StormChange::Began, began)] = &*scene.changes else {
            panic!("{:?}", scene.changes);
        };
        assert_eq!((began.peak_arrivals, began.traffic.arrivals), (100, 1_200));
        // A storm begins with the third call with high churn. The first call with high churn is at
        // 53.96 s. Its traffic counts as that of the last 4 s, so the storm started at 49.96 s.
        let started_at = UNIX_EPOCH + Duration::from_millis(49_960);
        assert_eq!(began.started_at, started_at);
        // The clock is set back.
        scene.now -= Duration::from_secs(10);
        scene.seconds(1, &traffic(70, &CLIENT));
        assert_eq!(scene.storms.list()[0].peak_arrivals, 100);
    }

    /// The clock jumps forward if the machine slept, or if the clock is set forward.
    #[test]
    fn a_storm_ends_at_the_last_second_before_the_clock_jumps() {
        const HOUR: Duration = Duration::from_secs(3_600);
        for is_forward in [true, false] {
            let mut scene = Scene::new();
            scene.now += 2 * HOUR;
            scene.seconds(30, &Traffic::default());
            scene.seconds(5, &traffic(100, &CLIENT));
            let last = scene.now;
            match is_forward {
                true => scene.now += HOUR,
                false => scene.now -= HOUR,
            }
            scene.seconds(5, &traffic(100, &CLIENT));
            let [
                (_, StormChange::Began, _),
                (_, StormChange::Ended, ended),
                (_, StormChange::Began, _),
            ] = &*scene.changes
            else {
                panic!("{:?}", scene.changes);
            };
            assert_eq!(ended.ended_at, Some(last), "{is_forward}");
            assert_eq!(ended.traffic.arrivals, 500);
        }
    }

    /// Two seconds with high churn are not a storm yet, because a storm begins with the third.
    #[test]
    fn a_storm_that_begins_after_the_clock_was_set_back_does_not_begin_in_the_future() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let mut scene = Scene::new();
        scene.now += 2 * HOUR;
        scene.seconds(30, &Traffic::default());
        scene.seconds(2, &traffic(100, &CLIENT));
        scene.now -= HOUR;
        let set_back_to = scene.now;
        scene.seconds(3, &traffic(100, &CLIENT));
        let [(_, StormChange::Began, began)] = &*scene.changes else {
            panic!("{:?}", scene.changes);
        };
        assert_eq!(began.started_at, set_back_to);
        assert_eq!(began.traffic.arrivals, 300);
    }

    #[test]
    fn closed_long_lived_connections_are_not_a_sign_of_a_storm() {
        let mut scene = Scene::new();
        let leaving = Leaving {
            age: Duration::from_secs(60),
            how: Departure::Clean,
            ..CLIENT
        };
        scene.seconds(60, &traffic(1_000, &leaving));
        assert!(scene.changes.is_empty());
    }
}
