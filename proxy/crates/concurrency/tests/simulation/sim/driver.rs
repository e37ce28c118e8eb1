//! Runs one scenario with one policy: a fixed limit, or limits that the controller selects.

use seawall_concurrency::Controller;

use super::{
    limiter::Limiter,
    outcome::Outcome,
    scenarios::Scenario,
    server::Server,
    world::{Record, Workload, World},
};

/// The source of the limits: a fixed number or the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// A fixed limit for each server, in each proxy.
    Fixed(u32),
    /// The controller selects the limits.
    Auto,
}

/// The highest limit of the controllers: `max_server_connections` of 500 without its reserve.
const CEILING: u32 = 492;

/// Runs a scenario for `to` seconds. The measurement begins at `from` seconds.
pub(crate) fn run(scenario: &Scenario, policy: Policy, from: f64, to: f64, seed: u64) -> Outcome {
    let servers = (0..scenario.servers)
        .map(|_| Server::new(scenario.cores, scenario.contention))
        .collect();
    let limiters = (0..scenario.proxies * scenario.servers)
        .map(|index| {
            let fixed = match policy {
                Policy::Fixed(limit) => Some(limit),
                Policy::Auto => None,
            };
            let controller = Controller::new(CEILING, seed * 1_000 + index as u64);
            Limiter::new(fixed, controller, scenario.users, scenario.connections)
        })
        .collect();
    let load = Workload {
        mixes: scenario.mixes.clone(),
        users: scenario.users,
        timeout_us: scenario.timeout_ms * 1e3,
        clients_leave: scenario.clients_leave,
        network_us: scenario.network_ms * 1e3,
    };
    let record = Record {
        from: from * 1e6,
        to: to * 1e6,
        wants_latencies: true,
        ..Record::default()
    };
    let changes = scenario
        .changes
        .iter()
        .map(|(s, change)| (s * 1e6, *change))
        .collect();
    let mut world = World::new(servers, limiters, load, changes, seed, record);
    world.run(to * 1e6);
    Outcome::new(world, from, to)
}
