use super::{
    super::recurrence::{Ends, recurrence},
    *,
};
use crate::random::Random;

const SEEDS: u64 = 30;

const EPOCH: u64 = 1_700_000_000;

/// A simulated load: operations, and the stalls that delay them.
struct Workload {
    random: Random,
    /// Operations per second.
    rate: f64,
    median_ms: f64,
    sigma: f64,
    /// Periods (start, end) in which no operation ends, in seconds from the start of the load.
    stops: Vec<(f64, f64)>,
    /// Periods (start, end, factor) in which operations take `factor` times as long.
    slow: Vec<(f64, f64, f64)>,
    /// Maximum factor by which all durations of a second are scaled up or down.
    jitter: f64,
    /// Probability that a second has one operation of 0.5 s to 2 s.
    outlier: f64,
    /// The phase in which stalled operations spend the additional time.
    phase: Phase,
}

impl Workload {
    fn steady(seed: u64) -> Self {
        Self {
            random: Random::of(seed),
            rate: 100.0,
            median_ms: 2.0,
            sigma: 0.6,
            stops: Vec::new(),
            slow: Vec::new(),
            jitter: 1.2,
            outlier: 0.0,
            phase: Phase::Server,
        }
    }

    /// The episodes that a detector finds in the first `seconds` seconds of the load.
    fn episodes(mut self, seconds: u32) -> Vec<Episode> {
        let mut detector = StallDetector::default();
        let beats = self.beats(seconds);
        let episodes = beats.iter().filter_map(|beat| detector.second(beat));
        episodes.collect()
    }

    /// The operations that end in each of the first `seconds` seconds of the load. Clients start
    /// operations at random times, without waiting for earlier operations.
    fn beats(&mut self, seconds: u32) -> Vec<EndedOperations> {
        let mut beats: Vec<EndedOperations> = (1..=u64::from(seconds) + 60)
            .map(|second| EndedOperations {
                at: EPOCH + second,
                ..EndedOperations::default()
            })
            .collect();
        let mut jitter = 1.0;
        let (mut now, mut second) = (0.0, -1.0);
        while now < f64::from(seconds) {
            now += -(1.0 - self.random.unit()).ln() / self.rate;
            let mut usual = self.median_ms / 1e3 * (self.sigma * self.random.normal()).exp();
            if now.floor() > second {
                second = now.floor();
                let most = self.jitter.ln();
                jitter = self.random.between(-most, most).exp();
                if self.random.is(self.outlier) {
                    usual += self.random.between(0.5, 2.0);
                }
            }
            usual *= jitter;
            let factor = (self.slow.iter()).find(|(start, end, _)| (*start..*end).contains(&now));
            let mut duration = usual * factor.map_or(1.0, |(_, _, factor)| *factor);
            for (start, end) in &self.stops {
                if now < *end && now + duration > *start {
                    duration = end - now + usual;
                }
            }
            self.end(&mut beats, now + duration, usual, duration);
        }
        beats.truncate(usize::try_from(seconds).unwrap());
        beats
    }

    fn end(&self, beats: &mut [EndedOperations], at: f64, usual: f64, duration: f64) {
        let Some(beat) = (beats.iter_mut()).find(|beat| float(beat.at - EPOCH) > at) else {
            return;
        };
        beat.durations.record(seconds(duration));
        beat.phases[Phase::Server] += seconds(usual * 0.9);
        beat.phases[Phase::Send] += seconds(usual * 0.1);
        beat.phases[self.phase] += seconds(duration - usual);
    }
}

fn every(period: f64, first: f64, length: f64, times: u32) -> Vec<(f64, f64)> {
    let starts = (0..times).map(|number| first + period * f64::from(number));
    starts.map(|start| (start, start + length)).collect()
}

/// Checks that there is one episode for each stall. The starts of a stall and its episode may
/// differ by at most 1.2 s, and their lengths by at most `tolerance`.
fn assert_found(found: &[Episode], stalls: &[(f64, f64)], tolerance: f64) {
    assert_eq!(found.len(), stalls.len(), "{found:#?}");
    for (episode, (start, end)) in found.iter().zip(stalls) {
        let started_at = episode.started_at - float(EPOCH);
        assert!((started_at - start).abs() <= 1.2, "{episode:?} {start}");
        let length = episode.length.as_secs_f64();
        assert!(
            (length - (end - start)).abs() <= tolerance,
            "{episode:?} {end}"
        );
    }
}

#[test]
fn a_steady_load_with_noise_has_no_stall() {
    for seed in 0..SEEDS {
        let mut random = Random::of(seed);
        let workload = Workload {
            rate: random.between(2.0, 200.0),
            median_ms: random.between(0.3, 8.0),
            sigma: random.between(0.3, 1.0),
            jitter: 3.0,
            ..Workload::steady(seed)
        };
        assert_eq!(workload.episodes(300), [], "seed {seed}");
    }
}

#[test]
fn single_slow_operations_among_many_are_not_a_stall() {
    for seed in 0..SEEDS {
        let workload = Workload {
            outlier: 0.1,
            ..Workload::steady(seed)
        };
        assert_eq!(workload.episodes(300), [], "seed {seed}");
    }
}

#[test]
fn stops_of_two_seconds_every_fifteen_seconds_are_reported_as_recurring_after_three_stops() {
    for seed in 0..SEEDS {
        let mut random = Random::of(seed);
        let stops = every(15.0, random.between(22.0, 37.0), 2.0, 4);
        let workload = Workload {
            rate: random.between(20.0, 300.0),
            stops: stops.clone(),
            ..Workload::steady(seed)
        };
        let episodes = workload.episodes(100);
        assert_found(&episodes, &stops, 1.1);
        for episode in &episodes {
            assert_eq!(episode.phase, Phase::Server);
            assert!(episode.worst >= Duration::from_millis(1_500), "{episode:?}");
            assert!(episode.usual < Duration::from_millis(20), "{episode:?}");
            assert!(
                episode.waited.as_secs_f64() >= 0.3 * float(episode.operations),
                "{episode:?}"
            );
        }
        let recurrence = recurrence(&episodes[..3], Ends::ANY, float(EPOCH)).unwrap();
        assert!((recurrence.period.as_secs_f64() - 15.0).abs() < 1.0);
        assert!((recurrence.length.as_secs_f64() - 2.0).abs() < 1.1);
        assert_eq!((recurrence.times, recurrence.phase), (3, Phase::Server));
    }
}

/// In a closed loop, a client sends its next operation only after a reply. So while the server is
/// stopped, only one operation per connection waits. Here, eight operations wait.
#[test]
fn stall_is_found_if_only_one_operation_per_connection_waits() {
    let mut random = Random::of(1);
    let mut detector = StallDetector::default();
    let mut found = Vec::new();
    for second in 1..=80_u64 {
        let mut beat = EndedOperations {
            at: EPOCH + second,
            ..EndedOperations::default()
        };
        // The server stops from second 50.5 to second 52.5.
        let (operations, waiting) = match second {
            51 => (4_000, 0),
            52 => (0, 0),
            53 => (4_000, 8),
            _ => (8_000, 0),
        };
        for _ in 0..operations {
            let duration = seconds(1e-3 * (0.3 * random.normal()).exp());
            beat.durations.record(duration);
            beat.phases[Phase::Server] += duration;
        }
        for _ in 0..waiting {
            beat.durations.record(Duration::from_secs(2));
            beat.phases[Phase::Server] += Duration::from_secs(2);
        }
        found.extend(detector.second(&beat));
    }
    assert_found(&found, &[(51.0, 53.0)], 0.01);
    assert_eq!(found[0].operations, 8);
}

/// The stalls that the detector finds. For each second, `operations` returns groups of operations
/// that end: their number, and the duration of each in milliseconds. They spend the whole duration
/// at the server.
fn episodes(seconds: u64, operations: fn(u64) -> &'static [(u64, u64)]) -> Vec<Episode> {
    let mut detector = StallDetector::default();
    let beats = (1..=seconds).map(|second| {
        let mut beat = EndedOperations {
            at: EPOCH + second,
            ..EndedOperations::default()
        };
        for (number, ms) in operations(second) {
            for _ in 0..*number {
                let duration = Duration::from_millis(*ms);
                beat.durations.record(duration);
                beat.phases[Phase::Server] += duration;
            }
        }
        beat
    });
    beats.filter_map(|beat| detector.second(&beat)).collect()
}

/// An index build of an hour ends. Nine other operations waited for a second.
#[test]
fn a_stall_does_not_begin_with_an_operation_that_took_far_longer_than_all_others() {
    let found = episodes(80, |second| match second {
        60 => &[(100, 2), (9, 1_000), (1, 3_600_000)],
        _ => &[(100, 2)],
    });
    assert_found(&found, &[(59.0, 60.0)], 0.01);
    assert_eq!(found[0].worst, Duration::from_secs(3_600));
}

/// An index build of an hour ends half a minute before the stall.
#[test]
fn a_single_long_operation_does_not_change_the_phase_of_the_next_stall() {
    let found = episodes(100, |second| match second {
        50 => &[(100, 2), (1, 3_600_000)],
        80 => &[(100, 2), (10, 1_000)],
        _ => &[(100, 2)],
    });
    let phases: Vec<_> = found.iter().map(|episode| episode.phase).collect();
    assert_eq!(phases, [Phase::Server]);
}

#[test]
fn stalls_every_minute_are_found_to_recur_after_the_third_stall() {
    for seed in 0..SEEDS {
        let mut random = Random::of(seed);
        let spikes = every(60.0, random.between(30.0, 80.0), 3.0, 3);
        let slow = spikes.iter().map(|(start, end)| (*start, *end, 40.0));
        let workload = Workload {
            slow: slow.collect(),
            median_ms: 3.0,
            ..Workload::steady(seed)
        };
        let episodes = workload.episodes(240);
        assert_found(&episodes, &spikes, 2.0);
        let recurrence = recurrence(&episodes, Ends::ANY, float(EPOCH))
            .unwrap_or_else(|| panic!("{episodes:#?}"));
        assert!((recurrence.period.as_secs_f64() - 60.0).abs() < 1.0);
        assert!((recurrence.length.as_secs_f64() - 3.0).abs() <= 1.5);
        assert_eq!(recurrence.phase, Phase::Server);
    }
}

#[test]
fn a_stop_of_a_server_with_few_operations_per_second_is_found() {
    for seed in 0..SEEDS {
        let workload = Workload {
            rate: 3.0,
            stops: vec![(100.0, 103.0)],
            ..Workload::steady(seed)
        };
        let episodes = workload.episodes(150);
        assert_eq!(episodes.len(), 1, "{episodes:?}");
        assert!(episodes[0].operations >= 1);
    }
}

/// After a slow second, the server stops for eight seconds.
#[test]
fn a_slow_second_and_a_stop_of_the_server_after_it_are_one_stall() {
    for seed in 0..SEEDS {
        let workload = Workload {
            slow: vec![(60.0, 61.0, 200.0)],
            stops: vec![(61.0, 69.0)],
            ..Workload::steady(seed)
        };
        assert_found(&workload.episodes(100), &[(60.0, 69.0)], 1.2);
    }
}

#[test]
fn a_stall_after_which_the_load_ends_is_found() {
    let mut workload = Workload {
        stops: vec![(60.0, 62.0)],
        ..Workload::steady(1)
    };
    let mut beats = workload.beats(64);
    beats.extend((65..105).map(|second| EndedOperations {
        at: EPOCH + second,
        ..EndedOperations::default()
    }));
    let mut detector = StallDetector::default();
    let found = beats.iter().filter_map(|beat| detector.second(beat));
    assert_found(&found.collect::<Vec<_>>(), &[(60.0, 62.0)], 1.1);
}

#[test]
fn stall_has_the_phase_in_which_operations_spent_the_most_time_beyond_the_usual_time() {
    let workload = Workload {
        stops: vec![(60.0, 62.0)],
        phase: Phase::Checkout,
        ..Workload::steady(3)
    };
    let episodes = workload.episodes(100);
    let phases: Vec<_> = episodes.iter().map(|episode| episode.phase).collect();
    assert_eq!(phases, [Phase::Checkout]);
}

/// The server stops twice. The clock jumps forward just before the operations of the second stop
/// end.
#[test]
fn a_stall_does_not_include_the_time_by_which_the_clock_jumps_forward() {
    const JUMP: u64 = 7_200;
    let mut workload = Workload {
        stops: vec![(60.0, 62.0), (64.0, 66.0)],
        ..Workload::steady(1)
    };
    let mut detector = StallDetector::default();
    let mut found = Vec::new();
    for mut beat in workload.beats(100) {
        if beat.at > EPOCH + 66 {
            beat.at += JUMP;
        }
        found.extend(detector.second(&beat));
    }
    let later = |at: f64| at + float(JUMP);
    let stalls = [(60.0, 62.0), (later(64.0), later(66.0))];
    assert_found(&found, &stalls, 1.1);
}

/// The machine sleeps during a stall. In the first second after the sleep, operations end that took
/// longer than `LASTING_SECONDS`.
#[test]
fn a_gap_ends_a_stall_and_does_not_hide_the_stall_that_ends_right_after_the_gap() {
    let mut workload = Workload {
        stops: vec![(60.0, 62.0)],
        ..Workload::steady(1)
    };
    let mut beats = workload.beats(63);
    let mut after_gap = EndedOperations {
        at: EPOCH + 1_063,
        ..EndedOperations::default()
    };
    for _ in 0..SEVERAL {
        after_gap.durations.record(Duration::from_secs(200));
    }
    beats.push(after_gap);
    beats.push(EndedOperations {
        at: EPOCH + 1_064,
        ..EndedOperations::default()
    });
    let mut detector = StallDetector::default();
    let found = beats.iter().filter_map(|beat| detector.second(beat));
    let stalls = [(60.0, 62.0), (863.0, 1_063.0)];
    assert_found(&found.collect::<Vec<_>>(), &stalls, 1.1);
}

#[test]
fn lasting_slowdown_is_reported_as_at_most_one_stall() {
    let mut most = 0;
    for seed in 0..SEEDS {
        let factor = Random::of(seed).between(1.5, 40.0);
        let workload = Workload {
            slow: vec![(100.0, 1_000.0, factor)],
            jitter: 1.5,
            ..Workload::steady(seed)
        };
        let episodes = workload.episodes(600);
        assert!(
            episodes.len() <= 1,
            "seed {seed} factor {factor} {episodes:#?}"
        );
        most = most.max(episodes.len());
    }
    assert_eq!(most, 1);
}

#[test]
fn a_stall_is_found_within_a_slowdown_that_has_lasted_for_minutes() {
    let workload = Workload {
        slow: vec![(100.0, 1_000.0, 20.0)],
        stops: vec![(500.0, 503.0)],
        ..Workload::steady(9)
    };
    let episodes = workload.episodes(600);
    assert_found(&episodes[1..], &[(500.0, 503.0)], 0.6);
}

#[test]
fn gradual_rise_of_durations_is_not_a_stall() {
    // Every two minutes the durations double, up to sixteen times the initial value.
    let steps = (0..480_u32).map(|number| {
        let start = 60.0 + f64::from(number);
        (start, start + 1.0, (f64::from(number) / 120.0).exp2())
    });
    let workload = Workload {
        slow: steps.collect(),
        ..Workload::steady(4)
    };
    assert_eq!(workload.episodes(540), []);
}

#[test]
fn no_stall_is_found_while_no_operations_end_or_while_the_detector_learns_the_usual_values() {
    let early = Workload {
        stops: vec![(10.0, 13.0)],
        ..Workload::steady(1)
    };
    assert_eq!(early.episodes(60), []);
    let mut detector = StallDetector::default();
    let mut beats = Workload::steady(2).beats(60);
    beats.extend((61..300).map(|second| EndedOperations {
        at: EPOCH + second,
        ..EndedOperations::default()
    }));
    assert!(beats.iter().all(|beat| detector.second(beat).is_none()));
    assert!(!detector.is_learning());
}

#[test]
fn a_short_delay_without_a_long_operation_is_not_a_stall() {
    let with = |length| Workload {
        slow: vec![(60.0, 60.0 + length, 20.0)],
        ..Workload::steady(5)
    };
    assert_eq!(with(0.5).episodes(100), []);
    assert_eq!(with(3.0).episodes(100).len(), 1);
}
