//! Operation statistics: counts every operation, login and connection exactly once.
//!
//! The data path calls the [`Recorder`]. For each operation, the thread that serves it does one
//! look-up and a few additions in a table that few other threads use. Once a second and before
//! every scrape, the control plane adds the sums in these tables to the [`Totals`], which the API
//! and the history read. The [`Exporter`] renders them as metrics. The [`ClientDirectory`] lists
//! the connected clients. Recording never waits for a server or a client, and every operation is
//! counted.
//!
//! An *awaiting* operation is a `getMore` on a change stream or on a tailable cursor: its client
//! asks the server to wait for an event. The time of awaiting operations is counted separately,
//! because this time does not show load.
//!
//! Invariants: the sums by (command, database, collection) are exact, and the limits of the tables
//! do not change them. The phases of an operation add up to its total.

mod applications;
mod clients;
mod described;
mod exporter;
mod histograms;
mod json_text;
mod logins;
#[cfg(test)]
mod memory_log;
mod metric_handles;
mod metric_name;
mod names;
mod observation;
mod own;
mod phases;
mod plain;
mod process;
mod protobuf;
mod recorder;
mod registry;
mod rows;
mod servers;
mod shape_series;
mod shards;
mod shared_names;
mod sketch;
mod slow;
mod slow_log;
mod slow_ring;
mod sums;
mod tally;
mod telemetry;
mod totals;

use std::sync::Arc;

use seawall_shape::NameKey;

#[cfg(test)]
pub(crate) use self::memory_log::MemoryLog;
use self::metric_handles::Metrics;
pub use self::{
    applications::ApplicationCounts,
    clients::{ClientDirectory, ClientRow, ConnectedClient},
    exporter::Exporter,
    metric_name::{MetricKind, MetricName},
    observation::{CursorOrigin, Observation, outcome_of},
    recorder::Recorder,
    registry::{Namespace, Shape, ShapeRow},
    servers::ServerMetrics,
    slow_log::SlowLog,
    slow_ring::SlowOperation,
    sums::{FailureKind, NamespaceSums, ServerIndex, ServerSums, ShapeSums},
    totals::Totals,
};
pub(crate) use self::{
    clients::close,
    exporter::{CertificateSeries, LeftOutLines},
    json_text::write_escaped,
    logins::{ConnectionTotals, RefusalTarget, RefusedCounts},
    own::{open_descriptors, process_cpu, resident_bytes},
    process::{HistoryLosses, Memory},
    protobuf::PROTOBUF,
    servers::{CloseReason, RelayedConnection},
    slow_log::SlowLogSettings,
    sums::RowIndexes,
    totals::code_name,
};

/// Options of the statistics. They select the figures to count, and limit the number of rows.
#[derive(Clone, Debug)]
pub struct ObserverSettings {
    /// True if shapes are counted. Namespaces are always counted.
    pub counts_shapes: bool,
    /// Maximum number of shape rows. The row `other` of a namespace (level `rest`), which counts
    /// the shapes that no other row counts, does not count towards this number.
    pub max_shapes: usize,
    /// Key for hashing the field names in shapes; `None` shows the names.
    pub name_key: Option<NameKey>,
    /// Maximum number of namespace rows. Two kinds of rows do not count towards this number: first,
    /// the `other` row of each command, which counts the namespaces without a row of their own;
    /// second, the rows of commands without a collection on the databases `admin` and `other`,
    /// which also count commands of clients that have not logged in.
    pub max_namespaces: usize,
    /// True if the figures of each second are kept for [`Totals::take_second`].
    pub keeps_seconds: bool,
}

/// The metrics could not be set up, because the library `metrics-exporter-prometheus` refused the
/// histogram buckets.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up metrics: {0}")]
pub struct ObserveError(#[from] metrics_exporter_prometheus::BuildError);

/// The four parts of the statistics. A process has one instance; each test makes its own.
#[derive(Clone, Debug)]
pub struct Observer {
    /// Counts operations and events. The data path calls it.
    pub recorder: Arc<Recorder>,
    /// The connected clients.
    pub clients: Arc<ClientDirectory>,
    /// The sums of all operations, logins and connections. The API and the history read them.
    pub totals: Arc<Totals>,
    /// Exports the totals and Seawall's own state as metrics.
    pub exporter: Arc<Exporter>,
}

impl Observer {
    /// Creates the statistics. Slow operations are written to `slow_log`, if there is one.
    ///
    /// # Errors
    /// [`ObserveError`] if the library for metrics refuses the histogram buckets.
    pub fn new(
        settings: ObserverSettings,
        slow_log: Option<SlowLog>,
    ) -> Result<Self, ObserveError> {
        let keeps_seconds = settings.keeps_seconds;
        let metrics = Arc::new(Metrics::new(None)?);
        let clients = Arc::new(ClientDirectory::new(Arc::clone(&metrics)));
        let recorder = Recorder::new(settings, slow_log, metrics, Arc::clone(&clients));
        let recorder = Arc::new(recorder);
        let totals = Arc::new(Totals::new(Arc::clone(&recorder), keeps_seconds)?);
        let exporter = Exporter::new(Arc::clone(&recorder), Arc::clone(&totals));
        Ok(Self {
            recorder,
            clients,
            totals,
            exporter: Arc::new(exporter),
        })
    }

    /// An observer that does not count shapes, for tests.
    #[cfg(test)]
    pub(crate) fn without_shapes() -> Self {
        let settings = ObserverSettings {
            counts_shapes: false,
            max_shapes: 1,
            name_key: None,
            max_namespaces: 1,
            keeps_seconds: false,
        };
        Self::new(settings, None).unwrap()
    }

    /// An observer that counts up to ten shapes and up to ten namespaces, for tests.
    #[cfg(test)]
    pub(crate) fn with_shapes() -> Self {
        let settings = ObserverSettings {
            counts_shapes: true,
            max_shapes: 10,
            name_key: None,
            max_namespaces: 10,
            keeps_seconds: false,
        };
        Self::new(settings, None).unwrap()
    }
}
