//! Checks that known failures of other controllers do not happen. These tests give the controller
//! made-up samples; `simulation` tests the same failures with a simulated server.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this crate contains only tests and their helpers"
)]

use std::time::Duration;

use seawall_concurrency::{Controller, Kept, Load, Reason, Sample};

/// The limit at the start and after a reset.
const START: u32 = 32;

/// The lowest limit.
const FLOOR: u32 = 1;

const WINDOW: Duration = Duration::from_millis(100);

/// A controller that gets made-up samples, one per window.
struct Bench {
    controller: Controller,
    now: Duration,
    /// The limits after each window.
    limits: Vec<u32>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        Self {
            controller: Controller::new(512, seed),
            now: Duration::ZERO,
            limits: Vec::new(),
        }
    }

    /// The sample of a window in which operations waited all the time.
    fn busy(&self, completed: u64) -> Sample {
        let limit = self.controller.limit();
        let mut sample = Sample {
            epoch: self.controller.epoch(),
            window: WINDOW,
            time_with_waiting: WINDOW,
            waiting: 100,
            mean_in_progress: f64::from(limit),
            in_progress: u64::from(limit),
            ..Sample::default()
        };
        sample.groups[0].completed = completed;
        sample.groups[0].server_time = WINDOW * limit;
        // The controller divides the squares by the sum of the server times, and gets 0.1 ms as the
        // mean time of an operation in progress. So a change of the limit takes effect immediately.
        sample.server_time_squares = 0.0001 * WINDOW.as_secs_f64() * f64::from(limit);
        sample
    }

    /// The sample of a window in which 100 operations took `time` each, and other operations waited
    /// for `waiting` of the window.
    fn timed(&self, time: Duration, waiting: Duration) -> Sample {
        let mut sample = self.busy(0);
        sample.groups[0].server_time = Duration::ZERO;
        (0..100).for_each(|_| sample.record(0, time, false));
        sample.time_with_waiting = waiting;
        sample.wait_time = time * 200;
        sample
    }

    /// Passes ten seconds without operations.
    fn rest(&mut self) {
        for _ in 0..=100 {
            let sample = Sample {
                epoch: self.controller.epoch(),
                window: WINDOW,
                ..Sample::default()
            };
            let _decision = self.pass(&sample);
        }
    }

    fn pass(&mut self, sample: &Sample) -> seawall_concurrency::Decision {
        self.now += WINDOW;
        let decision = self.controller.update(sample, self.now);
        self.limits.push(decision.limit);
        decision
    }

    /// Runs for `seconds` with a server that completes `rate(limit)` operations per window.
    fn run(&mut self, seconds: u64, rate: impl Fn(u32) -> u64) {
        for _ in 0..seconds * 10 {
            let sample = self.busy(rate(self.controller.limit()));
            let _decision = self.pass(&sample);
        }
    }

    fn last_second(&self) -> &[u32] {
        &self.limits[self.limits.len() - 10..]
    }
}

/// Random numbers: a linear congruential generator, with the constants of MMIX by Knuth.
struct Noise(u64);

impl Noise {
    /// A number from `least` to `most`.
    fn between(&mut self, least: u32, most: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let numbers = u64::from(most - least) + 1;
        least + u32::try_from((self.0 >> 33) % numbers).unwrap()
    }
}

#[test]
fn limit_does_not_rise_over_time_if_throughput_is_the_same_at_every_limit() {
    // 1,000 operations complete per window at every limit, and operations always wait.
    for seed in 0..10 {
        let mut bench = Bench::new(seed);
        bench.run(300, |_| 1_000);
        let highest = *bench.limits[200..].iter().max().unwrap();
        assert!(highest <= START * 6 / 5, "seed {seed}: {highest}");
    }
}

/// The throughput grows with the limit up to 64, and is the same at all higher limits. It varies at
/// random by 7 % (the standard deviation). Each of 200 seeds gives one limit after a minute. More
/// than four of five of these limits must be from 45 to 127. On average, the limits must be less
/// than 0.33 doublings above 64.
#[test]
fn noise_seldom_raises_the_limit_where_throughput_no_longer_rises() {
    let settled_after_a_minute = |seed: u64| {
        let mut bench = Bench::new(seed);
        let mut noise = Noise(seed);
        for _ in 0..600 {
            // From 88.0 to 112.0 operations per window for each operation in progress.
            let tenths = noise.between(880, 1_120);
            let completed = bench.controller.limit().min(64) * tenths / 10;
            let sample = bench.busy(u64::from(completed));
            let _decision = bench.pass(&sample);
        }
        bench.controller.settled()
    };
    let limits: Vec<_> = (0..200).map(settled_after_a_minute).collect();
    let near = limits.iter().filter(|limit| (45..128).contains(*limit));
    assert!(near.count() > 160, "{limits:?}");
    let doublings = limits.iter().map(|limit| (f64::from(*limit) / 64.0).log2());
    assert!(doublings.sum::<f64>() / 200.0 < 0.33, "{limits:?}");
}

#[test]
fn after_a_pause_the_search_for_the_best_limit_can_use_its_full_time() {
    let rate = |limit: u32| 100 * u64::from(limit.min(256));
    let mut bench = Bench::new(1);
    let sample = bench.busy(rate(START));
    let _decision = bench.pass(&sample);
    bench.rest();
    bench.run(3, rate);
    let reached = bench.controller.limit();
    assert!(reached >= 128, "{reached}");
}

#[test]
fn a_trial_that_a_pause_interrupts_does_not_compare_the_loads_before_and_after_the_pause() {
    let mut bench = Bench::new(1);
    for _ in 0..2 {
        let sample = bench.busy(1_000);
        let _decision = bench.pass(&sample);
    }
    assert_eq!(bench.controller.limit(), 2 * START, "a trial runs");
    // No operation runs for an hour, so there are no samples. After the pause, the server is faster
    // at each limit.
    bench.now += Duration::from_secs(3_600);
    bench.controller.resume(bench.now);
    bench.run(3, |_| 1_600);
    assert_eq!(bench.controller.settled(), START);
}

/// A server is crowded if operations take more than eight times as long as without load. After half
/// a second, the controller lowers the limit step by step.
#[test]
fn after_a_pause_the_limit_of_a_crowded_server_is_not_lowered_immediately() {
    let slow = Duration::from_millis(20);
    // After one crowded window, the limit is still the same. After eight crowded windows, it is
    // lower.
    for crowded in [1, 8] {
        let mut bench = Bench::new(1);
        let _decision = bench.pass(&low_load());
        for _ in 0..crowded {
            let sample = bench.timed(slow, WINDOW);
            let _decision = bench.pass(&sample);
        }
        assert_eq!(bench.controller.limit() < START, crowded == 8);
        bench.rest();
        let before = bench.controller.limit();
        for window in 0..5 {
            let sample = bench.timed(slow, WINDOW);
            let decision = bench.pass(&sample);
            assert!(decision.limit >= before, "{crowded}: window {window}");
        }
    }
}

/// A reply is late if the operation has exceeded its time limit, or if its client has left.
#[test]
fn limit_falls_to_the_minimum_while_every_reply_is_late() {
    let mut bench = Bench::new(1);
    let mut lowest = START;
    for _ in 0..100 {
        let mut sample = bench.busy(0);
        sample.late = 20;
        let decision = bench.pass(&sample);
        assert_eq!(decision.reason, Reason::NothingInTime);
        lowest = lowest.min(decision.limit);
    }
    assert_eq!(lowest, FLOOR);
}

/// A reply is late if the operation has exceeded its time limit, or if its client has left.
#[test]
fn limit_is_lowered_because_of_late_replies_even_if_a_few_replies_are_in_time() {
    let mut bench = Bench::new(1);
    for window in 1..=5 {
        let mut sample = bench.busy(2);
        sample.late = 20;
        let decision = bench.pass(&sample);
        assert_eq!(decision.inputs.late, 20);
        let lowered = (START / 2, Reason::NothingInTime);
        let is_lowered = (decision.settled, decision.reason) == lowered;
        assert_eq!(is_lowered, window == 5, "window {window}: {decision:?}");
    }
}

#[test]
fn limit_recovers_from_the_minimum_after_late_replies() {
    let mut bench = Bench::new(1);
    for _ in 0..100 {
        let mut sample = bench.busy(0);
        sample.late = 20;
        let _decision = bench.pass(&sample);
    }
    bench.run(10, |limit| 100 * u64::from(limit.min(64)));
    let reached = bench.last_second();
    assert!(reached.iter().all(|limit| *limit >= 50), "{reached:?}");
}

#[test]
fn limit_recovers_from_the_minimum_after_it_has_settled_there() {
    let mut bench = Bench::new(1);
    bench.run(30, |limit| 4_000 / u64::from(limit));
    assert_eq!(bench.last_second()[9], FLOOR);
    bench.run(30, |limit| 4_000 * u64::from(limit.min(40)));
    let reached = bench.last_second();
    assert!(reached.iter().all(|limit| *limit >= 30), "{reached:?}");
}

/// The sample of a window in which each operation took 1 ms and hardly any load slowed it down.
fn low_load() -> Sample {
    let mut sample = Sample {
        window: WINDOW,
        ..Sample::default()
    };
    sample.record(0, Duration::from_millis(1), true);
    sample.record(0, Duration::from_millis(1), true);
    sample
}

/// The limit of a crowded server is lowered, and restored if the server then completes less work.
#[test]
fn a_restored_limit_is_at_most_the_highest_limit_that_is_now_allowed() {
    let highest = 20;
    let mut bench = Bench::new(1);
    let _decision = bench.pass(&low_load());
    for _ in 0..50 {
        let limit = bench.controller.limit();
        if limit == START / 2 {
            bench.controller.set_ceiling(highest, bench.now);
        }
        // At each limit, an operation takes 20 times as long as without load.
        let completed = match limit {
            START => 160,
            _ => 20,
        };
        let mut sample = bench.busy(0);
        sample.groups[0].server_time = Duration::ZERO;
        (0..completed).for_each(|_| sample.record(0, Duration::from_millis(20), false));
        let decision = bench.pass(&sample);
        if decision.reason == Reason::NotCrowded {
            assert_eq!(decision.limit, highest);
            return;
        }
    }
    panic!("the limit was not restored");
}

/// A trial uses two limits alternately: the base limit and the tried limit. Here, the highest limit
/// falls below the tried limit while the trial uses the base limit.
#[test]
fn a_trial_ends_if_its_limit_is_above_the_highest_limit_that_is_now_allowed() {
    let highest = START * 3 / 2;
    // The tried limit is twice the limit at the start, and is better by a fifth.
    let rate = |limit: u32| if limit > START { 1_200 } else { 1_000 };
    let limit_after_window = |bench: &mut Bench| {
        let sample = bench.busy(rate(bench.controller.limit()));
        bench.pass(&sample).limit
    };
    let mut bench = Bench::new(1);
    while limit_after_window(&mut bench) == START {}
    assert!(bench.controller.limit() > highest);
    while limit_after_window(&mut bench) != START {}
    bench.controller.set_ceiling(highest, bench.now);
    for _ in 0..50 {
        let limit = limit_after_window(&mut bench);
        assert!(limit <= highest, "{limit}");
    }
}

/// The measurements of one window of 100 ms at a server that several clients share. The server can
/// run 40 operations at a time at full speed. `others` is the number of operations of the other
/// clients.
fn shared(bench: &Bench, others: u32) -> Sample {
    let limit = bench.controller.limit();
    let time = Duration::from_millis(1).mul_f64((f64::from(limit + others) / 40.0).max(1.0));
    let mut sample = bench.busy(0);
    sample.groups[0].server_time = Duration::ZERO;
    sample.server_time_squares = 0.0;
    let completed = f64::from(limit) * WINDOW.div_duration_f64(time);
    let mut recorded = 0.0;
    while recorded < completed {
        sample.record(0, time, limit <= 2);
        recorded += 1.0;
    }
    sample
}

#[test]
fn limit_recovers_when_the_other_clients_of_a_crowded_server_leave() {
    for seed in 0..8 {
        let mut bench = Bench::new(seed);
        let _decision = bench.pass(&low_load());
        for _ in 0..200 {
            // 49 other proxies have the same limit.
            let sample = shared(&bench, 49 * bench.controller.limit());
            let _decision = bench.pass(&sample);
        }
        let crowded = bench.limits[bench.limits.len() - 1];
        assert!(crowded <= 8, "seed {seed}: {crowded}");
        for _ in 0..100 {
            let sample = shared(&bench, 0);
            let _decision = bench.pass(&sample);
        }
        let reached = bench.last_second();
        assert!(
            reached.iter().all(|limit| *limit >= 32),
            "seed {seed}: {reached:?}"
        );
    }
}

#[test]
fn trials_lower_the_limit_by_at_most_half_during_the_search_and_by_at_most_a_fifth_after_it() {
    // In a trial, the controller uses another limit for a short time and compares the throughput.
    // While it searches for the best limit, a trial lowers the limit at most by half, and later by
    // about a tenth. The test allows a fifth.
    let mut bench = Bench::new(1);
    bench.run(120, |limit| 30 * u64::from(limit.min(32)));
    assert!(bench.limits.iter().all(|limit| *limit >= START / 2));
    assert!(
        bench.limits[100..]
            .iter()
            .all(|limit| *limit >= START * 4 / 5)
    );
}

#[test]
fn samples_from_before_a_reset_of_the_controller_are_ignored() {
    let mut bench = Bench::new(1);
    bench.run(10, |limit| 100 * u64::from(limit.min(64)));
    assert!(bench.controller.limit() > START);
    let late = bench.busy(1);
    bench.controller.reset(Kept::Nothing);
    assert_eq!(bench.controller.limit(), START);
    let before = bench.controller.clone();
    let decision = bench.pass(&late);
    assert_eq!(
        (decision.reason, decision.limit),
        (Reason::EarlierEpoch, START)
    );
    assert_eq!(bench.controller.epoch(), before.epoch());
    let sample = bench.busy(100);
    let decision = bench.pass(&sample);
    assert_eq!(decision.reason, Reason::Measuring);
}

/// An exempt operation is a long operation that no longer counts toward the limit.
#[test]
fn limit_stays_and_no_operation_becomes_exempt_while_the_server_stalls() {
    let mut bench = Bench::new(1);
    bench.run(20, |limit| 100 * u64::from(limit.min(32)));
    let before = bench.controller.limit();
    for window in 0..30 {
        let sample = bench.busy(0);
        let decision = bench.pass(&sample);
        if window >= 3 {
            assert_eq!(decision.inputs.load, Load::Stalled);
            assert_eq!(decision.limit, decision.settled);
        }
        assert!(!decision.may_exempt, "window {window}");
    }
    bench.run(5, |limit| 100 * u64::from(limit.min(32)));
    let after = f64::from(bench.controller.limit());
    assert!((after - f64::from(before)).abs() <= 0.2 * f64::from(before));
}

/// An exempt operation is a long operation that no longer counts toward the limit.
#[test]
fn no_operation_becomes_exempt_while_operations_complete_at_less_than_half_the_usual_rate() {
    let mut bench = Bench::new(1);
    let usual = 1_000;
    bench.run(20, |_| usual);
    // The usual rate follows the rate within seconds, so each rate lasts for only five windows.
    let mut may_exempt = |completed| {
        let windows = (0..5).map(|_| {
            let sample = bench.busy(completed);
            bench.pass(&sample).may_exempt
        });
        windows.collect::<Vec<_>>()
    };
    assert_eq!(may_exempt(usual), [true; 5]);
    assert_eq!(may_exempt(usual * 4 / 10), [false; 5]);
    assert_eq!(may_exempt(usual * 6 / 10), [true; 5]);
}

/// The number of connections can keep the operations in progress below the limit. With a limit of
/// 32, the controller compares limits only while at least 28.8 operations are in progress.
#[test]
fn limit_stays_and_the_reason_names_another_bound_while_operations_do_not_reach_the_limit() {
    for (in_progress, stays) in [(28, true), (29, false)] {
        let mut bench = Bench::new(1);
        let mut reasons = Vec::new();
        for _ in 0..100 {
            let mut sample = bench.busy(1_000);
            sample.mean_in_progress = f64::from(in_progress);
            reasons.push(bench.pass(&sample).reason.to_string());
        }
        let another = "something else limits the operations in progress".to_owned();
        assert_eq!(reasons[50..].iter().all(|reason| *reason == another), stays);
        assert_eq!(bench.limits.iter().all(|limit| *limit == START), stays);
    }
}

#[test]
fn limit_stays_the_same_while_no_operation_waits() {
    let mut bench = Bench::new(1);
    for _ in 0..600 {
        let mut sample = bench.busy(50);
        sample.time_with_waiting = Duration::ZERO;
        sample.waiting = 0;
        sample.mean_in_progress = 3.0;
        let decision = bench.pass(&sample);
        assert_eq!(decision.limit, START);
        assert_eq!(decision.inputs.load, Load::Idle);
    }
}

#[test]
fn a_load_whose_operations_wait_only_at_times_does_not_raise_the_limit_of_a_slow_server() {
    // In this load, operations wait only for a part of the time: the rate of arriving operations
    // limits the throughput. If load has slowed down the server, a trial of a higher limit would
    // make operations slower.
    let highest = |time: Duration| {
        let mut bench = Bench::new(1);
        let _decision = bench.pass(&low_load());
        for _ in 0..600 {
            let sample = bench.timed(time, WINDOW / 2);
            let _decision = bench.pass(&sample);
        }
        *bench.limits.iter().max().unwrap()
    };
    assert!(highest(Duration::from_millis(1)) > START);
    assert_eq!(highest(Duration::from_millis(10)), START);
}

/// If operations wait only for a part of the time, the rate of arriving operations bounds the
/// throughput.
#[test]
fn limit_is_never_lowered_while_the_rate_of_arrivals_bounds_the_throughput() {
    let fast = Duration::from_millis(1);
    // On the slow server, operations take ten times as long as without load.
    for usual in [fast, 10 * fast] {
        for seed in 0..10 {
            let mut bench = Bench::new(seed);
            let mut noise = Noise(seed);
            let mut settled = START;
            let _decision = bench.pass(&low_load());
            for _ in 0..6_000 {
                let time = usual * noise.between(50, 150) / 100;
                let waiting = WINDOW * noise.between(0, 85) / 100;
                let mut sample = bench.timed(time, waiting);
                (0..noise.between(0, 100)).for_each(|_| sample.record(0, time, false));
                sample.wait_time = time * noise.between(0, 400);
                let decision = bench.pass(&sample);
                let is_lower = decision.limit < decision.settled || decision.settled < settled;
                assert!(!is_lower, "{usual:?}, seed {seed}: {decision:?}");
                settled = decision.settled;
            }
            let has_tried = bench.limits.iter().any(|limit| *limit > START);
            assert_eq!(has_tried, usual == fast, "seed {seed}");
        }
    }
}

#[test]
fn changed_share_of_long_operations_does_not_restart_the_search_for_the_best_limit() {
    let mut bench = Bench::new(1);
    let sample_of = |bench: &Bench, short: u64, long: u64| {
        let mut sample = bench.busy(short);
        sample.groups[0].server_time = Duration::from_millis(1) * u32::try_from(short).unwrap();
        sample.groups[4].completed = long;
        sample.groups[4].server_time = Duration::from_millis(20) * u32::try_from(long).unwrap();
        sample
    };
    for _ in 0..200 {
        let sample = sample_of(&bench, 1_800, 10);
        let _decision = bench.pass(&sample);
    }
    // Now 290 instead of 1,810 operations complete per window, but the work is the same.
    for _ in 0..100 {
        let sample = sample_of(&bench, 200, 90);
        let decision = bench.pass(&sample);
        assert_ne!(decision.reason, Reason::RateChanged);
        assert!(decision.limit.abs_diff(START) <= 7, "{decision:?}");
    }
}

#[test]
fn controllers_with_different_seeds_try_other_limits_at_different_times() {
    let limits = |seed| {
        let mut bench = Bench::new(seed);
        bench.run(60, |_| 1_000);
        bench.limits
    };
    assert_eq!(limits(1), limits(1));
    assert_ne!(limits(1), limits(2));
}

#[test]
fn reason_of_a_decision_is_printed_as_readable_text() {
    assert_eq!(Reason::NothingWaits.to_string(), "no operation waits");
    let text = Reason::RaisedForThroughput.to_string();
    assert_eq!(text, "raised: the server completed more work");
}
