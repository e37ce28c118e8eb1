//! Metrics of one server. Its pool counts connections, and the code that establishes connections
//! counts logins.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};

use metrics::{Counter, Gauge, Label};

use super::{
    logins::LoginCounts, metric_handles::Metrics, metric_name::MetricName, registry::OTHER,
    shards::Shards, sums::ServerIndex,
};
use seawall_stats::float_usize;

/// The reason why a connection to a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The connection was unused for too long.
    Idle,
    /// The connection exceeded its maximum age, or has sent almost as many records as the keys of
    /// TLS 1.2 allow. Or the TLS configuration has changed since the connection was established.
    Expired,
    /// The pool was cleared after Seawall had begun to establish the connection.
    Stale,
    /// Another user needed a connection, or the pool could not keep this connection, for example
    /// because a limit of the pool was lowered.
    GaveWay,
    /// The server or the kernel closed the connection while it was unused in the pool.
    Ended,
    /// The connection failed, or its last operation left unread bytes.
    Broken,
    /// The user of the connection no longer exists, or a server refused the user's keys.
    Unauthorized,
    /// The pool was closed, or Seawall stopped.
    PoolClosed,
    /// The connection belonged to a relayed client (a client whose bytes Seawall forwards to a
    /// server connection that no other client uses). The client or the server ended its connection,
    /// or Seawall ended the relay.
    RelayEnded,
}

impl CloseReason {
    /// The value of the label `reason`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Stale => "stale",
            Self::GaveWay => "gave_way",
            Self::Ended => "ended",
            Self::Broken => "broken",
            Self::Unauthorized => "unauthorized",
            Self::PoolClosed => "pool_closed",
            Self::RelayEnded => "relay_ended",
        }
    }
}

/// Counts a relayed client's server connection (see `CloseReason::RelayEnded`) until this guard
/// is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct RelayedConnection(ServerMetrics);

impl RelayedConnection {
    /// The index of the server's row in the statistics of operations.
    pub(crate) fn index(&self) -> ServerIndex {
        self.0.index()
    }
}

impl Drop for RelayedConnection {
    fn drop(&mut self) {
        self.0.relayed.decrement(1.0);
        self.0.count_closed_connection(CloseReason::RelayEnded);
    }
}

/// Handles of the registered metrics of one server.
pub struct ServerMetrics {
    metrics: Arc<Metrics>,
    logins: Arc<LoginCounts>,
    shards: Arc<Shards>,
    server: String,
    index: ServerIndex,
    created: Counter,
    pending: Gauge,
    available: Gauge,
    in_use: Gauge,
    wait_queue: Gauge,
    awaiting: Gauge,
    lane_queue: Gauge,
    relayed: Gauge,
    /// The gauge is registered when there is a limit for the first time, because a registered gauge
    /// is exported even without a limit.
    concurrency_limit: OnceLock<Gauge>,
    in_progress: Gauge,
    reserved: Gauge,
    exempt: Gauge,
    waiting: Gauge,
}

impl fmt::Debug for ServerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerMetrics")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl ServerMetrics {
    pub(super) fn new(
        metrics: Arc<Metrics>,
        logins: Arc<LoginCounts>,
        shards: Arc<Shards>,
        server: &str,
        index: ServerIndex,
    ) -> Self {
        let labels = || vec![Label::new("server", server.to_owned())];
        let in_state = |name, state| gauge(&metrics, name, server, Some(state));
        let connections = |state| in_state(MetricName::ServerConnections, state);
        let awaiting = |state| in_state(MetricName::AwaitingOperations, state);
        let operations = |state| in_state(MetricName::ConcurrencyOperations, state);
        Self {
            awaiting: awaiting("running"),
            lane_queue: awaiting("queued"),
            concurrency_limit: OnceLock::new(),
            in_progress: operations("in_progress"),
            reserved: operations("reserved"),
            exempt: operations("exempt"),
            waiting: operations("waiting"),
            relayed: metrics.gauge(MetricName::RelayedConnections, labels()),
            server: server.to_owned(),
            index,
            logins,
            shards,
            created: metrics.counter(MetricName::ServerConnectionsCreatedTotal, labels()),
            pending: connections("pending"),
            available: connections("available"),
            in_use: connections("in_use"),
            wait_queue: gauge(&metrics, MetricName::WaitQueueLength, server, None),
            metrics,
        }
    }

    /// The index of the server's row in the statistics of operations.
    pub fn index(&self) -> ServerIndex {
        self.index
    }

    /// Counts an established connection.
    pub(crate) fn count_created_connection(&self) {
        self.created.increment(1);
        self.logins
            .server_connections
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that ended.
    pub(crate) fn count_closed_connection(&self, reason: CloseReason) {
        self.counter(
            MetricName::ServerConnectionsClosedTotal,
            &[("reason", reason.as_str())],
        );
    }

    /// Counts a clear of the server's pool.
    pub(crate) fn count_pool_clear(&self) {
        self.counter(MetricName::PoolClearsTotal, &[]);
    }

    /// Counts a login of Seawall at the server. `mechanism` is the name of the SCRAM mechanism.
    pub(crate) fn count_login(&self, mechanism: &'static str, is_ok: bool) {
        let result = if is_ok { "ok" } else { "failed" };
        let labels = [("mechanism", mechanism), ("result", result)];
        self.counter(MetricName::ServerAuthenticationsTotal, &labels);
        self.logins.at_servers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reply whose client disconnected before it had received the whole reply. `is_kept`
    /// is true if Seawall read the reply to its end and kept the server connection.
    pub(crate) fn count_abandoned_reply(&self, is_kept: bool) {
        let result = if is_kept { "kept" } else { "closed" };
        self.counter(MetricName::AbandonedRepliesTotal, &[("result", result)]);
    }

    /// Counts a read operation that Seawall killed at the server because its client had
    /// disconnected.
    pub(crate) fn count_ended_operation(&self) {
        self.counter(MetricName::ServerOperationsEndedTotal, &[]);
    }

    /// Records how long the checkout of a connection from the pool took.
    pub(crate) fn record_checkout(&self, time: Duration) {
        let mut shard = self.shards.mine();
        shard.tally.add_checkout(self.index, time);
    }

    /// Counts the server connection of a relayed client (see `CloseReason::RelayEnded`) until the
    /// returned guard is dropped.
    pub(crate) fn relayed(self) -> RelayedConnection {
        self.count_created_connection();
        self.relayed.increment(1.0);
        RelayedConnection(self)
    }

    /// Sets the gauges of the pool's connections and of its wait queue.
    pub fn show(&self, pending: usize, available: usize, in_use: usize, wait_queue: usize) {
        self.pending.set(float_usize(pending));
        self.available.set(float_usize(available));
        self.in_use.set(float_usize(in_use));
        self.wait_queue.set(float_usize(wait_queue));
    }

    /// Sets the gauges of the concurrency limit, and of the operations by their state. Operations
    /// `in_progress` hold a slot, so they count towards the limit. `reserved` operations use a
    /// reserved slot, because other operations may wait for them: for example a commit, which
    /// releases locks. `exempt` operations have run too long to count towards the limit. `waiting`
    /// operations wait for a slot or a connection. `limit` is `None` if there is no limit. A gauge
    /// cannot be removed, so a limit that has ended is shown as infinite.
    pub(crate) fn show_concurrency(
        &self,
        limit: Option<u32>,
        in_progress: usize,
        reserved: usize,
        exempt: usize,
        waiting: usize,
    ) {
        if limit.is_none() {
            let gauge = self.concurrency_limit.get();
            gauge.inspect(|gauge| gauge.set(f64::INFINITY));
        }
        if let Some(limit) = limit {
            let gauge = self.concurrency_limit.get_or_init(|| {
                let name = MetricName::ConcurrencyLimit;
                gauge(&self.metrics, name, &self.server, None)
            });
            gauge.set(f64::from(limit));
        }
        self.in_progress.set(float_usize(in_progress));
        self.reserved.set(float_usize(reserved));
        self.exempt.set(float_usize(exempt));
        self.waiting.set(float_usize(waiting));
    }

    /// Sets the gauges of the pool, of awaiting operations and of the concurrency limit to zero.
    /// Called when the server is no longer part of the deployment.
    pub(crate) fn show_removed(&self) {
        self.show(0, 0, 0, 0);
        self.show_lane(0, 0);
        self.show_concurrency(self.removed_limit(), 0, 0, 0, 0);
    }

    /// The concurrency limit to show for a server that is no longer part of the deployment: zero,
    /// or `None` if no limit was ever shown. A limit of zero does not change sums over servers, but
    /// an infinite limit would.
    pub(crate) fn removed_limit(&self) -> Option<u32> {
        self.concurrency_limit.get().map(|_| 0)
    }

    /// Counts a change of the concurrency limit. `reason` is the name of the reason for this
    /// change.
    pub(crate) fn count_limit_change(&self, reason: &'static str) {
        self.counter(
            MetricName::ConcurrencyLimitChangesTotal,
            &[("reason", reason)],
        );
    }

    /// Sets the gauges of awaiting operations, which wait at the server for an event: how many have
    /// a permit or a connection for this wait, and how many wait for a permit.
    pub(crate) fn show_lane(&self, running: usize, queued: usize) {
        self.awaiting.set(float_usize(running));
        self.lane_queue.set(float_usize(queued));
    }

    /// Adds one to a counter. No handle of the counter is kept, because it changes rarely.
    fn counter(&self, name: MetricName, labels: &[(&'static str, &'static str)]) {
        let mut all = vec![Label::new("server", self.server.clone())];
        all.extend(labels.iter().map(|(key, value)| Label::new(*key, *value)));
        self.metrics.counter(name, all).increment(1);
    }
}

/// A gauge whose value is set. It is not exported if the server shares its row with other servers,
/// because each of them would overwrite the value.
fn gauge(metrics: &Metrics, name: MetricName, server: &str, state: Option<&'static str>) -> Gauge {
    if server == OTHER {
        return Gauge::noop();
    }
    let mut labels = vec![Label::new("server", server.to_owned())];
    labels.extend(state.map(|state| Label::new("state", state)));
    metrics.gauge(name, labels)
}

#[cfg(test)]
mod tests {
    use crate::observe::Observer;

    #[test]
    fn the_concurrency_limit_is_exported_only_if_a_limit_exists() {
        let observer = Observer::without_shapes();
        let server = observer.recorder.server("a:1");
        server.show_concurrency(None, 3, 1, 2, 4);
        server.count_limit_change("crowded");
        let text = observer.exporter.render();
        for line in [
            r#"seawall_concurrency_operations{server="a:1",state="in_progress"} 3"#,
            r#"seawall_concurrency_operations{server="a:1",state="reserved"} 1"#,
            r#"seawall_concurrency_operations{server="a:1",state="exempt"} 2"#,
            r#"seawall_concurrency_operations{server="a:1",state="waiting"} 4"#,
            r#"seawall_concurrency_limit_changes_total{server="a:1",reason="crowded"} 1"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("seawall_concurrency_limit{"), "{text}");
        for limit in [8, 9] {
            server.show_concurrency(Some(limit), 0, 0, 0, 0);
            let line = format!(r#"seawall_concurrency_limit{{server="a:1"}} {limit}"#);
            let text = observer.exporter.render();
            assert!(text.contains(&line), "{text}");
        }
    }
}
