//! Reads the current values of gauges from the parts of Seawall once a second, for the history.

use std::{
    mem,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use crate::{client::Shared, observe, pool::PoolSnapshot};
use seawall_stats::{Gauge, Gauges, Traffic, float, float_usize};

/// Interval, in seconds, at which descriptors are counted one by one if the operating system does
/// not report their number. Counting them each second would cost too much CPU time.
const COUNT_INTERVAL_SECONDS: u64 = 10;

/// Minimum period over which a rate is computed. The gauges may be read for the first time right
/// after the start, and a few events within some milliseconds would give a meaningless rate.
const MIN_RATE_PERIOD: Duration = Duration::from_millis(100);

/// Reads gauges. Each rate covers the time since the previous call of [`GaugeReader::read`]. The
/// first call covers the time since this `GaugeReader` was created.
#[derive(Debug)]
pub(super) struct GaugeReader {
    shared: Arc<Shared>,
    /// The time of the previous call of [`Self::read`], and the CPU time of the process at that
    /// time. Before the first call: the values when this `GaugeReader` was created.
    last: (Instant, Option<Duration>),
}

impl GaugeReader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            last: (Instant::now(), observe::process_cpu()),
        }
    }

    /// Reads all gauges. `traffic` has the events since the previous call.
    pub(super) fn read(&mut self, traffic: &Traffic, now: SystemTime) -> Gauges {
        let mut gauges = Gauges::default();
        let pools = &self.shared.routing.topology.snapshot().pools;
        let pools: Vec<_> = pools.iter().map(|pool| pool.snapshot()).collect();
        record_pools(&mut gauges, &pools);
        self.record_shared(&mut gauges);
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let counts = since_epoch.as_secs().is_multiple_of(COUNT_INTERVAL_SECONDS);
        let known = observe::open_descriptors(counts);
        let of_process = [
            (Gauge::ResidentMemoryBytes, observe::resident_bytes()),
            (Gauge::OpenDescriptors, known),
        ];
        for (gauge, value) in of_process {
            gauges.record(gauge, value.map_or(f64::NAN, float_usize));
        }
        self.record_rates(&mut gauges, traffic);
        gauges
    }

    fn record_shared(&self, gauges: &mut Gauges) {
        let shared = &self.shared;
        let memory = shared.memory.requests.used_bytes() + shared.memory.replies.used_bytes();
        let delay = shared.arrivals.lateness.now(Instant::now());
        gauges.record(Gauge::DataPlaneDelaySeconds, delay.as_secs_f64());
        let (cursors, _) = shared.routing.pins.counts();
        for (gauge, value) in [
            (Gauge::ClientConnections, shared.clients.count()),
            (
                Gauge::ClientsAuthenticated,
                shared.clients.authenticated_count(),
            ),
            (
                Gauge::OperationsInFlight,
                shared.limits.operations().in_flight(),
            ),
            (Gauge::MessageMemoryBytes, memory),
            (Gauge::PinnedCursors, cursors),
        ] {
            gauges.record(gauge, float_usize(value));
        }
    }

    /// Records events per second and the CPU time per second since the previous call.
    fn record_rates(&mut self, gauges: &mut Gauges, traffic: &Traffic) {
        let (now, cpu) = (Instant::now(), observe::process_cpu());
        let (last, cpu_before) = mem::replace(&mut self.last, (now, cpu));
        let period = now.saturating_duration_since(last).max(MIN_RATE_PERIOD);
        let seconds = period.as_secs_f64();
        if let (Some(cpu), Some(before)) = (cpu, cpu_before) {
            let used = cpu.saturating_sub(before).as_secs_f64();
            gauges.record(Gauge::CpuCores, used / seconds);
        }
        for (gauge, events) in [
            (Gauge::LoginsHere, traffic.client_authentications),
            (Gauge::LoginsAtServers, traffic.server_authentications),
            (Gauge::ConnectionsArrived, traffic.arrivals),
            (Gauge::ConnectionsRefused, traffic.refusals),
            (Gauge::OperationsShed, traffic.shed_operations),
        ] {
            gauges.record(gauge, float(events) / seconds);
        }
    }
}

/// Records the sums over all pools.
fn record_pools(gauges: &mut Gauges, pools: &[PoolSnapshot]) {
    let sum = |part: fn(&PoolSnapshot) -> usize| float_usize(pools.iter().map(part).sum());
    for (gauge, value) in [
        (Gauge::ServerConnectionsAvailable, sum(|p| p.available)),
        (Gauge::ServerConnectionsInUse, sum(|p| p.in_use)),
        (Gauge::ServerConnectionsPending, sum(|p| p.pending)),
        (Gauge::WaitQueueLength, sum(|p| p.wait_queue)),
        (
            Gauge::ConcurrencyInProgress,
            sum(|p| p.concurrency.in_progress),
        ),
        (Gauge::ConcurrencyWaiting, sum(|p| p.concurrency.waiting)),
    ] {
        gauges.record(gauge, value);
    }
    let limits = pools.iter().filter_map(|pool| pool.concurrency.limit);
    let limit = limits.map(u64::from).reduce(|sum, limit| sum + limit);
    gauges.record(Gauge::ConcurrencyLimit, limit.map_or(f64::NAN, float));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ConcurrencySnapshot;

    fn pool(in_use: usize, limit: Option<u32>) -> PoolSnapshot {
        PoolSnapshot {
            state: "ready",
            pending: 1,
            available: 2,
            in_use,
            wait_queue: 4,
            users: Vec::new(),
            concurrency: ConcurrencySnapshot {
                mode: "auto",
                limit,
                settled: None,
                in_progress: 3,
                reserved: 0,
                exempt: 0,
                waiting: 5,
                reason: None,
            },
        }
    }

    fn value(gauges: &Gauges, wanted: Gauge) -> Option<f64> {
        let mut all = gauges.iter();
        all.find(|(gauge, _)| *gauge == wanted)
            .map(|(_, span)| span.sum)
    }

    #[test]
    fn gauges_of_servers_are_the_sums_over_all_pools() {
        let mut gauges = Gauges::default();
        record_pools(&mut gauges, &[pool(3, Some(9)), pool(4, None)]);
        assert_eq!(value(&gauges, Gauge::ServerConnectionsInUse), Some(7.0));
        assert_eq!(value(&gauges, Gauge::ConcurrencyWaiting), Some(10.0));
        assert_eq!(value(&gauges, Gauge::ConcurrencyLimit), Some(9.0));
        let mut unlimited = Gauges::default();
        record_pools(&mut unlimited, &[pool(3, None)]);
        assert_eq!(value(&unlimited, Gauge::ConcurrencyLimit), None);
    }
}
