//! Measures one value of `pool.concurrency` (a limit). During a measurement, the number of clients
//! is constant, or it changes from phase to phase.

use std::time::Duration;

use seawall_transport::connection::Connection;
use tokio::time::timeout;

use super::{
    plan::{AUTO, ConcurrencyPlan, MeasurementTimes, Situation},
    testbed::ConcurrencyTestbed,
};
use crate::{
    insight::{float, seawall::Seawall},
    load::{self, Load, Outcome, Work},
    process::cpu_split,
};

/// Time limit for the operations that are in progress at the end of a load.
const END_LIMIT: Duration = Duration::from_secs(120);

/// The figures of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The average number of operations per second, over all clients.
    pub throughput: f64,
    /// The median latency in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of the latency in milliseconds.
    pub p99_ms: f64,
    /// User CPU time of Seawall per operation, in microseconds.
    pub seawall_user_us: f64,
    /// CPU time of the server per operation, in microseconds.
    pub server_us: f64,
}

/// Measures one cell: one limit with one number of clients. The number of clients in `situation`
/// must not change over time.
pub async fn measure(
    testbed: &ConcurrencyTestbed,
    situation: Situation,
    limit: &str,
    clients: usize,
    times: &MeasurementTimes,
) -> Figures {
    let seawall = testbed.seawall(situation, limit).await;
    let open = testbed.connect(&seawall, clients).await;
    let warm_up = match limit {
        AUTO => times.auto_warm_up,
        _ => times.warm_up,
    };
    let (_, open) = run(open, situation.work(), warm_up).await;
    let measured = measure_load(testbed, &seawall, open, situation.work(), times.cell);
    measured.await.0
}

/// Measures a load whose number of clients changes from phase to phase. Clients that run no
/// operations in a phase stay connected.
pub async fn measure_change(
    testbed: &ConcurrencyTestbed,
    seawall: &Seawall,
    plan: &ConcurrencyPlan,
) -> Vec<Figures> {
    let most = plan.phases.iter().copied().max().unwrap_or(0);
    let mut open = testbed.connect(seawall, most).await;
    let mut figures = Vec::new();
    for clients in plan.phases {
        let active = open.split_off(most.saturating_sub(clients));
        let work = Situation::Change.work();
        let measured = measure_load(testbed, seawall, active, work, plan.times.phase);
        let (phase, active) = measured.await;
        figures.push(phase);
        open.extend(active);
    }
    figures
}

/// Runs a load in a closed loop. Returns its result and the connections.
///
/// # Panics
/// If an operation fails, or does not end in time.
pub async fn run(open: Vec<Connection>, work: Work, time: Duration) -> (Outcome, Vec<Connection>) {
    let load = Load {
        work,
        rate: None,
        time,
    };
    let ended = timeout(time + END_LIMIT, load::run(open, load)).await;
    ended.expect("all operations end in time")
}

async fn measure_load(
    testbed: &ConcurrencyTestbed,
    seawall: &Seawall,
    open: Vec<Connection>,
    work: Work,
    time: Duration,
) -> (Figures, Vec<Connection>) {
    let cpu = || (cpu_split(seawall.process_id()).0, testbed.server_cpu());
    let (user, server) = cpu();
    let (outcome, open) = run(open, work, time).await;
    let (user_after, server_after) = cpu();
    assert!(outcome.operations > 0, "no operation got a reply");
    let each_us = |after: Duration, before: Duration| {
        let spent = after.saturating_sub(before);
        spent.as_secs_f64() * 1e6 / float(outcome.operations)
    };
    let millis = |percent: usize| outcome.percentile(percent).as_secs_f64() * 1e3;
    let figures = Figures {
        throughput: outcome.rate(),
        p50_ms: millis(50),
        p99_ms: millis(99),
        seawall_user_us: each_us(user_after, user),
        server_us: each_us(server_after, server),
    };
    (figures, open)
}
