//! Metrics of one server. Its pool counts connections, and the code that establishes connections
//! counts logins.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Label};

use super::{logins::Logins, metric_handles::Metrics, metric_name::MetricName, sums::ServerIndex};
use seawall_stats::float;

/// Why a connection to a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The connection was unused for too long.
    Idle,
    /// The connection exceeded its maximum age.
    Expired,
    /// The connection belonged to an earlier generation of its pool.
    Stale,
    /// Seawall closed the connection to make room for another user's connection.
    GaveWay,
    /// The server or the kernel closed the connection while it was available.
    Ended,
    /// The connection failed, or its last operation left unread bytes.
    Broken,
    /// The server no longer knows the connection's user.
    Unauthorized,
    /// The pool was closed, or Seawall stopped.
    PoolClosed,
    /// The connection belonged to a relayed client that disconnected or was closed.
    RelayEnded,
}

impl CloseReason {
    /// The value of the label `reason`.
    pub fn as_str(self) -> &'static str {
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

/// Counts a relayed client's server connection until dropped.
#[derive(Debug)]
#[must_use]
pub struct Relayed(ServerMetrics);

impl Relayed {
    /// The index of the server's row in the statistics of operations.
    pub fn index(&self) -> ServerIndex {
        self.0.index()
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.0.relayed.decrement(1.0);
        self.0.connection_closed(CloseReason::RelayEnded);
    }
}

/// Registered handles on the metrics of one server.
pub struct ServerMetrics {
    metrics: Arc<Metrics>,
    logins: Arc<Logins>,
    server: String,
    index: ServerIndex,
    created: Counter,
    checkout: Histogram,
    pending: Gauge,
    available: Gauge,
    in_use: Gauge,
    wait_queue: Gauge,
    awaiting: Gauge,
    lane_queue: Gauge,
    relayed: Gauge,
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
        logins: Arc<Logins>,
        server: &str,
        index: ServerIndex,
    ) -> Self {
        let labels = || vec![Label::new("server", server.to_owned())];
        let state = |state: &'static str| {
            let mut labels = labels();
            labels.push(Label::new("state", state));
            metrics.gauge(MetricName::ServerConnections, labels)
        };
        let awaiting = |state: &'static str| {
            let mut labels = labels();
            labels.push(Label::new("state", state));
            metrics.gauge(MetricName::AwaitingOperations, labels)
        };
        Self {
            awaiting: awaiting("running"),
            lane_queue: awaiting("queued"),
            relayed: metrics.gauge(MetricName::RelayedConnections, labels()),
            server: server.to_owned(),
            index,
            logins,
            created: metrics.counter(MetricName::ServerConnectionsCreatedTotal, labels()),
            checkout: metrics.histogram(MetricName::CheckoutSeconds, labels()),
            pending: state("pending"),
            available: state("available"),
            in_use: state("in_use"),
            wait_queue: metrics.gauge(MetricName::WaitQueueLength, labels()),
            metrics,
        }
    }

    /// The index of the server's row in the statistics of operations.
    pub fn index(&self) -> ServerIndex {
        self.index
    }

    /// Counts an established connection.
    pub(crate) fn connection_created(&self) {
        self.created.increment(1);
        self.logins
            .server_connections
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that ended.
    pub(crate) fn connection_closed(&self, reason: CloseReason) {
        self.counter(
            MetricName::ServerConnectionsClosedTotal,
            &[("reason", reason.as_str())],
        );
    }

    /// Counts a login of Seawall at the server. `mechanism` is the name of the SCRAM mechanism.
    pub fn authenticated(&self, mechanism: &'static str, is_ok: bool) {
        let result = if is_ok { "ok" } else { "failed" };
        let labels = [("mechanism", mechanism), ("result", result)];
        self.counter(MetricName::ServerAuthenticationsTotal, &labels);
        self.logins.at_servers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reply that was read after its client had left. `is_kept` is true if the whole reply
    /// was read, so the connection was kept.
    pub(crate) fn abandoned(&self, is_kept: bool) {
        let result = if is_kept { "kept" } else { "closed" };
        self.counter(MetricName::AbandonedRepliesTotal, &[("result", result)]);
    }

    /// Counts a read that Seawall killed at the server because its client had left.
    pub(crate) fn operation_ended(&self) {
        self.counter(MetricName::ServerOperationsEndedTotal, &[]);
    }

    /// Records how long a checkout took.
    pub(crate) fn checked_out(&self, time: Duration) {
        self.checkout.record(time.as_secs_f64());
    }

    /// Counts a relayed client until the guard is dropped.
    pub fn relayed(self) -> Relayed {
        self.connection_created();
        self.relayed.increment(1.0);
        Relayed(self)
    }

    /// Sets the gauges of the pool's connections and of its wait queue.
    pub fn show(&self, pending: usize, available: usize, in_use: usize, wait_queue: usize) {
        self.pending.set(count(pending));
        self.available.set(count(available));
        self.in_use.set(count(in_use));
        self.wait_queue.set(count(wait_queue));
    }

    /// Sets the gauges of awaiting operations: how many run, and how many wait for a connection.
    pub(crate) fn show_lane(&self, running: usize, queued: usize) {
        self.awaiting.set(count(running));
        self.lane_queue.set(count(queued));
    }

    /// Adds one to a counter that changes too rarely to keep a handle.
    fn counter(&self, name: MetricName, labels: &[(&'static str, &'static str)]) {
        let mut all = vec![Label::new("server", self.server.clone())];
        all.extend(labels.iter().map(|(key, value)| Label::new(*key, *value)));
        self.metrics.counter(name, all).increment(1);
    }
}

fn count(number: usize) -> f64 {
    float(u64::try_from(number).unwrap_or(u64::MAX))
}
