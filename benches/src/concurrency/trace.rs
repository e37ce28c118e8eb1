//! A trace: Seawall's concurrency limit and its throughput over time.

use std::{convert::Infallible, time::Duration};

use seawall_api::Pools;
use seawall_tests::seawall::sum_of;
use tokio::{
    select,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    cells::{measure_change, run},
    plan::{AUTO, ConcurrencyPlan, Situation},
    testbed::ConcurrencyTestbed,
};
use crate::insight::{float, seawall::Seawall};

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// A sample of Seawall's concurrency limit and throughput.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The time since the start of the trace, in seconds.
    pub at_seconds: f64,
    /// The limit in effect. It differs from `settled` while the controller tries a limit other than
    /// the best limit.
    pub limit: f64,
    /// The best limit that the controller has found. Trials of other limits do not change it.
    pub settled: f64,
    /// Completed operations per second since the previous sample.
    pub throughput: f64,
}

/// The limit and the throughput over time.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The title of the trace's picture.
    pub title: String,
    /// The times at which the conditions (the load or the server) changed, in seconds since the
    /// start of the trace.
    pub changes: Vec<f64>,
    /// The samples, from the earliest to the latest.
    pub samples: Vec<Sample>,
}

/// Starts a Seawall process whose `pool.concurrency` is `auto`, and records a trace from its first
/// operation.
///
/// # Panics
/// If an operation fails.
pub async fn record(
    testbed: &ConcurrencyTestbed,
    situation: Situation,
    plan: &ConcurrencyPlan,
) -> Trace {
    let seawall = testbed.seawall(situation, AUTO).await;
    let title = situation.title();
    if situation == Situation::Change {
        let [first, second, third] = plan.phases;
        let phase = plan.times.phase.as_secs_f64();
        let load = measure_change(testbed, &seawall, plan);
        return Trace {
            title: format!("{title}: {first}, {second}, {third} clients"),
            changes: vec![phase, 2.0 * phase],
            samples: sample_during(&seawall, load).await,
        };
    }
    let open = testbed.connect(&seawall, plan.traced_connections).await;
    let load = run(open, situation.work(), plan.times.trace);
    Trace {
        title: format!("{title}, {} clients", plan.traced_connections),
        changes: Vec::new(),
        samples: sample_during(&seawall, load).await,
    }
}

/// Runs the load, and records samples of Seawall's limit and throughput until the load ends.
async fn sample_during<T>(seawall: &Seawall, load: impl Future<Output = T>) -> Vec<Sample> {
    let mut samples = Vec::new();
    select! {
        _ = load => samples,
        never = sample(seawall, &mut samples) => match never {},
    }
}

async fn sample(seawall: &Seawall, samples: &mut Vec<Sample>) -> Infallible {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes at once.
    ticks.tick().await;
    let mut began = None;
    let (mut previous, mut previous_at) = (operations(seawall).await, Instant::now());
    loop {
        ticks.tick().await;
        let completed = operations(seawall).await;
        let at = Instant::now();
        let pools: Pools = seawall.api("/api/v1/pools").await;
        let concurrency = pools
            .pools
            .into_iter()
            .next()
            .unwrap_or_default()
            .concurrency;
        // The clients connect before they run operations. The trace begins with the first
        // operation.
        if completed > 0.0 {
            let began = *began.get_or_insert(previous_at);
            samples.push(Sample {
                at_seconds: (at - began).as_secs_f64(),
                limit: concurrency.limit.map_or(f64::NAN, float),
                settled: concurrency.settled.map_or(f64::NAN, float),
                throughput: (completed - previous) / (at - previous_at).as_secs_f64(),
            });
        }
        (previous, previous_at) = (completed, at);
    }
}

/// Number of finds that Seawall has completed.
async fn operations(seawall: &Seawall) -> f64 {
    let metrics = seawall.metrics().await;
    sum_of(&metrics, "seawall_operations_total", &["command=\"find\""])
}
