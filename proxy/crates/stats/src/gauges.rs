//! Gauges: values of Seawall that rise and fall, measured once a second.

use std::collections::BTreeMap;

use super::float;

/// Declares the enum of gauges. The input has, for each gauge, its meaning and its name in the API.
macro_rules! gauges {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A value that is measured once a second. The history file stores the position of a gauge
        /// in [`Gauge::ALL`], so new gauges are added at the end and none is removed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Gauge {
            $($(#[$doc])* $name,)*
        }

        impl Gauge {
            /// All gauges, in the order of their numbers in the history file.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in the API.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

gauges! {
    /// Open client connections.
    ClientConnections = "client_connections";
    /// Clients that have logged in.
    ClientsAuthenticated = "clients_authenticated";
    /// Established server connections that no operation uses.
    ServerConnectionsAvailable = "server_connections_available";
    /// Server connections in use.
    ServerConnectionsInUse = "server_connections_in_use";
    /// Server connections that are being established.
    ServerConnectionsPending = "server_connections_pending";
    /// Operations that wait. They wait for a server connection, or for the concurrency limit to
    /// allow them to run.
    WaitQueueLength = "wait_queue_length";
    /// Operations in flight: each has one of the permits that limit their number.
    OperationsInFlight = "operations_in_flight";
    /// The sum of the servers' concurrency limits. Servers without a limit are omitted. Missing if
    /// no server has a limit.
    ConcurrencyLimit = "concurrency_limit";
    /// Operations that run and count toward the concurrency limits.
    ConcurrencyInProgress = "concurrency_in_progress";
    /// Waiting operations to which a concurrency limit applies. They wait for the limit to allow
    /// them to run, or for a server connection.
    ConcurrencyWaiting = "concurrency_waiting";
    /// Logins of clients, per second. The logins of relayed clients at servers are included.
    LoginsHere = "logins_here";
    /// Logins of Seawall and of relayed clients at servers, per second.
    LoginsAtServers = "logins_at_servers";
    /// Client connections accepted, per second.
    ConnectionsArrived = "connections_arrived";
    /// Client connections refused, per second.
    ConnectionsRefused = "connections_refused";
    /// Operations that Seawall refused, per second.
    OperationsShed = "operations_shed";
    /// Number of CPU cores that the process used, on average: CPU seconds per second.
    CpuCores = "cpu_cores";
    /// Resident memory of the process, in bytes.
    ResidentMemoryBytes = "resident_memory_bytes";
    /// Delay with which the threads that handle operations (the data plane) wake up, in seconds.
    DataPlaneDelaySeconds = "data_plane_delay_seconds";
    /// Memory that messages use, in bytes.
    MessageMemoryBytes = "message_memory_bytes";
    /// Open cursors for which Seawall stores the server that gets their `getMore`s.
    PinnedCursors = "pinned_cursors";
    /// Open file descriptors of the process.
    OpenDescriptors = "open_descriptors";
}

/// The number, the sum, the minimum and the maximum of one gauge's values in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaugeSpan {
    /// Number of measured values; at least 1.
    pub count: u64,
    /// The sum of the values.
    pub sum: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
}

impl GaugeSpan {
    /// The values of a gauge that was measured once.
    fn of(value: f64) -> Self {
        Self {
            count: 1,
            sum: value,
            min: value,
            max: value,
        }
    }

    /// The mean of all values.
    pub fn mean(&self) -> f64 {
        self.sum / float(self.count.max(1))
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// The gauges that were measured in a period. A gauge without a value is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauges(BTreeMap<Gauge, GaugeSpan>);

impl Gauges {
    /// Adds a measured value. A value that is not a finite number is ignored.
    pub fn record(&mut self, gauge: Gauge, value: f64) {
        if value.is_finite() {
            self.add(gauge, GaugeSpan::of(value));
        }
    }

    /// Adds the values of one gauge.
    pub fn add(&mut self, gauge: Gauge, span: GaugeSpan) {
        let all = self.0.entry(gauge);
        all.and_modify(|all| all.merge(&span)).or_insert(span);
    }

    /// Adds the values of another period.
    pub fn merge(&mut self, other: &Self) {
        for (gauge, span) in other.iter() {
            self.add(gauge, *span);
        }
    }

    /// The measured gauges, in the order of [`Gauge::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Gauge, &GaugeSpan)> {
        self.0.iter().map(|(gauge, span)| (*gauge, span))
    }

    /// True if no gauge was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_gauges_have_the_extremes_and_the_mean_of_all_values() {
        let mut all = Gauges::default();
        all.record(Gauge::CpuCores, 2.0);
        all.record(Gauge::CpuCores, f64::NAN);
        let mut later = Gauges::default();
        later.record(Gauge::CpuCores, 0.5);
        later.record(Gauge::CpuCores, 3.5);
        later.record(Gauge::LoginsHere, 7.0);
        all.merge(&later);
        let spans: Vec<_> = all.iter().map(|(gauge, span)| (gauge, *span)).collect();
        let (logins, cpu) = (spans[0], spans[1].1);
        assert_eq!(
            (cpu.count, cpu.min, cpu.mean(), cpu.max),
            (3, 0.5, 2.0, 3.5)
        );
        assert_eq!(logins, (Gauge::LoginsHere, GaugeSpan::of(7.0)));
    }

    #[test]
    fn gauges_keep_their_positions_because_the_history_file_stores_these_positions() {
        assert!(Gauge::ALL.is_sorted());
        assert_eq!(Gauge::ALL[0], Gauge::ClientConnections);
        assert_eq!(Gauge::ALL[20], Gauge::OpenDescriptors);
    }
}
