//! Runs one scenario with one policy: a fixed limit, or limits that the controller selects.

use seawall_concurrency::Controller;

use super::{
    limiter::Limiter,
    outcome::Outcome,
    scenarios::Scenario,
    server::Server,
    world::{Load, Record, World},
};

/// The source of the limits: a fixed number or the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// A fixed limit for each server, in each proxy.
    Fixed(u32),
    /// The controller selects the limits. The number is the highest limit.
    Auto(u32),
}

/// Runs a scenario for `to` seconds. The measurement begins at `from` seconds.
pub(crate) fn run(scenario: &Scenario, policy: Policy, from: f64, to: f64, seed: u64) -> Outcome {
    let servers = (0..scenario.servers)
        .map(|_| Server::new(scenario.cores, scenario.contention))
        .collect();
    let limiters = (0..scenario.proxies * scenario.servers)
        .map(|index| {
            let (limit, controller) = match policy {
                Policy::Fixed(limit) => (limit, None),
                Policy::Auto(ceiling) => (
                    0,
                    Some(Controller::new(ceiling, seed * 1_000 + index as u64)),
                ),
            };
            Limiter::new(limit, controller, scenario.users, 0.0)
        })
        .collect();
    let load = Load {
        mixes: scenario.mixes.clone(),
        users: scenario.users,
        timeout_us: scenario.timeout_ms * 1e3,
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
