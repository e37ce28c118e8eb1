//! The latest samples of each server's counters.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use seawall_stats::ServerSample;

use super::moved::Sample;

/// Time for which samples are kept. It is long enough to contain calm times before and after a
/// stall.
const KEPT: Duration = Duration::from_secs(600);

/// Maximum number of samples kept per server: ten minutes at the shortest interval, which is 100
/// ms. A sample is about 400 bytes. At an interval of one second, the samples of ten minutes take a
/// quarter of a MiB.
const MAX_SAMPLES: usize = 6_000;

/// The samples of all servers.
#[derive(Debug, Default)]
pub(super) struct Samples(HashMap<Box<str>, VecDeque<ServerSample>>);

impl Samples {
    /// Adds new samples. `later` has the address of each server and the new samples of this server,
    /// the oldest first. Drops samples that are older than [`KEPT`] at `now`.
    pub(super) fn add(&mut self, later: Vec<(Box<str>, Vec<ServerSample>)>, now: SystemTime) {
        for (server, later) in later {
            self.0.entry(server).or_default().extend(later);
        }
        let is_old = |sample: &ServerSample| sample.at + KEPT < now;
        self.0.retain(|_, samples| {
            while samples.len() > MAX_SAMPLES || samples.front().is_some_and(is_old) {
                samples.pop_front();
            }
            !samples.is_empty()
        });
    }

    /// The samples of a server that are at most [`KEPT`] old at `now`, the oldest first.
    pub(super) fn of(&self, server: &str, now: SystemTime) -> Vec<Sample> {
        let samples = self.0.get(server).into_iter().flatten();
        let kept = samples.filter(|sample| sample.at + KEPT >= now);
        kept.map(named).collect()
    }
}

fn named(sample: &ServerSample) -> Sample {
    let since = sample.at.duration_since(UNIX_EPOCH);
    Sample {
        at: since.unwrap_or_default().as_secs_f64(),
        has_reply: sample.has_reply,
        values: sample.counters.iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use seawall_stats::Counters;

    fn sample(second: u64) -> ServerSample {
        ServerSample {
            at: at(second),
            has_reply: true,
            counters: Counters::new(&["connections", "inserts"], [3.0, f64::NAN].into()),
        }
    }

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn samples_are_bounded_by_age_and_by_number() {
        let mut samples = Samples::default();
        for second in 0..=1_300 {
            samples.add(vec![("a:1".into(), vec![sample(second)])], at(second));
        }
        let kept = samples.of("a:1", at(1_300));
        assert_eq!((kept[0].at, kept.len()), (700.0, 601));
        assert_eq!(kept[0].values, BTreeMap::from([("connections", 3.0)]));
        assert_eq!(samples.of("a:1", at(1_899)).len(), 2);
        assert!(samples.of("b:1", at(1_300)).is_empty());
        let many = (0..2 * MAX_SAMPLES).map(|_| sample(1_300)).collect();
        samples.add(vec![("a:1".into(), many)], at(1_300));
        assert_eq!(samples.of("a:1", at(1_300)).len(), MAX_SAMPLES);
        samples.add(Vec::new(), at(2_000));
        assert!(samples.0.is_empty());
    }
}
