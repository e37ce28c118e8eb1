//! The names of all metrics, in one place.

/// What kind of metric a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

/// Makes the enum of names, and what is known of each: its kind, its name as exported and its help text.
macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident: $kind:ident = $text:literal, $help:literal;)*) => {
        /// A metric's name. Names are a contract with dashboards: add freely, rename none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum MetricName {
            $($(#[$doc])* $name,)*
        }

        impl MetricName {
            /// Every metric.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name as exported.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Counter, gauge or histogram.
            pub fn kind(self) -> MetricKind {
                match self {
                    $(Self::$name => MetricKind::$kind,)*
                }
            }

            /// The help text.
            pub fn help(self) -> &'static str {
                match self {
                    $(Self::$name => $help,)*
                }
            }
        }
    };
}

metrics! {
    /// Clients connected now.
    ClientConnections: Gauge = "seawall_client_connections", "Clients connected now.";
    /// Clients ever accepted.
    ClientConnectionsTotal: Counter = "seawall_client_connections_total", "Client connections accepted.";
    /// Clients turned away, by `reason`.
    ClientConnectionsRefusedTotal: Counter = "seawall_client_connections_refused_total", "Client connections turned away.";
    /// Logins of clients, by `mechanism` and `result`.
    ClientAuthenticationsTotal: Counter = "seawall_client_authentications_total", "Logins of clients.";
    /// Time from `saslStart` to the end of a login.
    ClientAuthenticationSeconds: Histogram = "seawall_client_authentication_seconds", "Time of a client's login, its own part included.";
    /// Connections to a server, by `state`.
    ServerConnections: Gauge = "seawall_server_connections", "Connections to a server by state.";
    /// Connections ever established to a server.
    ServerConnectionsCreatedTotal: Counter = "seawall_server_connections_created_total", "Connections established to a server.";
    /// Connections to a server ended, by `reason`.
    ServerConnectionsClosedTotal: Counter = "seawall_server_connections_closed_total", "Connections to a server that ended.";
    /// Our logins at a server, by `mechanism` and `result`.
    ServerAuthenticationsTotal: Counter = "seawall_server_authentications_total", "Logins of Seawall at a server.";
    /// Operations by command, namespace and `outcome`.
    OperationsTotal: Counter = "seawall_operations_total", "Operations by command, namespace and outcome.";
    /// Last request byte read to last reply byte written.
    OperationDurationSeconds: Histogram = "seawall_operation_duration_seconds", "Time from the last request byte read to the last reply byte written.";
    /// The same by phase.
    OperationPhaseSeconds: Histogram = "seawall_operation_phase_seconds", "The parts of an operation's time.";
    /// Bytes of requests.
    OperationRequestBytesTotal: Counter = "seawall_operation_request_bytes_total", "Bytes of requests.";
    /// Bytes of replies.
    OperationReplyBytesTotal: Counter = "seawall_operation_reply_bytes_total", "Bytes of replies.";
    /// Documents returned, written or counted.
    OperationDocumentsTotal: Counter = "seawall_operation_documents_total", "Documents returned, written or counted.";
    /// `seawall_operations_streamed_total`
    OperationsStreamedTotal: Counter = "seawall_operations_streamed_total", "Operations whose large request was forwarded as it came, timed from its first byte.";
    /// Operations of a shape.
    ShapeOperationsTotal: Counter = "seawall_shape_operations_total", "Operations of a shape.";
    /// Durations of a shape.
    ShapeDurationSeconds: Histogram = "seawall_shape_duration_seconds", "Durations of a shape's operations.";
    /// What a shape's id stands for.
    ShapeInfo: Gauge = "seawall_shape_info", "What a shape's id stands for; always 1.";
    /// Operations that wait for a connection to a server.
    WaitQueueLength: Gauge = "seawall_wait_queue_length", "Operations waiting for a connection to a server.";
    /// Operations that wait for something to happen, by `state`.
    AwaitingOperations: Gauge = "seawall_awaiting_operations", "Operations waiting for something to happen: change streams and tailable cursors.";
    /// Clients with a server connection of their own.
    RelayedConnections: Gauge = "seawall_relayed_connections", "Clients relayed over a connection of their own.";
    /// Time to get a connection to a server.
    CheckoutSeconds: Histogram = "seawall_checkout_seconds", "Time to get a connection to a server.";
    /// Operations refused, by `reason`.
    OperationsShedTotal: Counter = "seawall_operations_shed_total", "Operations refused by Seawall.";
    /// Clients that left in mid-operation, by `stage`.
    ClientsGoneTotal: Counter = "seawall_clients_gone_total", "Clients that left while an operation of theirs was under way.";
    /// Replies that were read for nobody, by `result`.
    AbandonedRepliesTotal: Counter = "seawall_abandoned_replies_total", "Replies read to their end after their clients had left.";
    /// Reads ended at a server because their clients had left.
    ServerOperationsEndedTotal: Counter = "seawall_server_operations_ended_total", "Reads ended at a server because their clients had left.";
    /// Client connections that ended, by `stage` and `how`.
    ClientDeparturesTotal: Counter = "seawall_client_departures_total", "Client connections that ended.";
    /// Storms of clients that began.
    StormsTotal: Counter = "seawall_storms_total", "Storms of clients that began.";
    /// Whether there is a storm of clients now.
    StormActive: Gauge = "seawall_storm_active", "Whether there is a storm of clients now: 1 or 0.";
    /// Operations that a configured fault struck, by `kind`.
    FaultsInjectedTotal: Counter = "seawall_faults_injected_total", "Operations that a configured fault struck.";
    /// New clients that waited for their turn.
    ArrivalsDelayedTotal: Counter = "seawall_arrivals_delayed_total", "New clients that waited for their turn.";
    /// Logins that waited for their turn among their user's.
    LoginsDelayedTotal: Counter = "seawall_logins_delayed_total", "Logins of clients that waited for their turn among their user's.";
    /// Time until a server began to answer.
    ServerOperationSeconds: Histogram = "seawall_server_operation_seconds", "Time until a server began to answer.";
    /// Single writes that failed within replies that are `ok: 1`, by `code`.
    WriteErrorsTotal: Counter = "seawall_write_errors_total", "Single writes that failed within replies that are ok, by code.";
    /// Write concerns that were not satisfied, by `code`.
    WriteConcernErrorsTotal: Counter = "seawall_write_concern_errors_total", "Write concerns that were not satisfied, by code.";
    /// Operations that Seawall sent again by itself, by `server`.
    OperationsRepeatedTotal: Counter = "seawall_operations_repeated_total", "Operations that Seawall sent again, by the server that had failed.";
    /// Writes sent again with the same session and transaction number.
    OperationsRetriedTotal: Counter = "seawall_operations_retried_total", "Writes and ends of transactions that clients sent again, by session and number.";
    /// Errors answered, by `code`.
    OperationErrorsTotal: Counter = "seawall_operation_errors_total", "Errors answered, by code.";
    /// Operations of shapes without a row, by the `level` that they count in.
    FingerprintFoldedTotal: Counter = "seawall_fingerprint_folded_total", "Operations of shapes without a row of their own, by the level that they count in.";
    /// Rows taken from shapes for heavier ones.
    FingerprintEvictedTotal: Counter = "seawall_fingerprint_evicted_total", "Rows taken from shapes for heavier ones.";
    /// Prefixes of paths below which names were found to be data.
    FingerprintNamesLearnedTotal: Counter = "seawall_fingerprint_names_learned_total", "Prefixes of paths below which names were found to be data.";
    /// How much later than asked for a task was woken, by `plane`.
    EventLoopDelaySeconds: Histogram = "seawall_event_loop_delay_seconds", "How much later than asked for a task was woken.";
    /// Memory by `owner`.
    MemoryBytes: Gauge = "seawall_memory_bytes", "Memory by owner; process is all that is resident.";
    /// CPU time used so far by `thread`.
    ThreadCpuSeconds: Gauge = "seawall_thread_cpu_seconds", "CPU time used so far by threads of a name.";
    /// Lines that the slow log left out.
    SlowLogLeftOutTotal: Counter = "seawall_slow_log_left_out_total", "Lines that the slow log left out.";
    /// Steps of the history dropped before their time.
    HistoryDroppedTotal: Counter = "seawall_history_dropped_total", "Steps of the history dropped before their time, for want of room.";
    /// Shapes whose text was not that of their row.
    FingerprintMismatchTotal: Counter = "seawall_fingerprint_mismatch_total", "Shapes whose text was not that of their row: two of one hash.";
    /// What was not understood, or left out of statistics, by `reason`.
    UnobservedTotal: Counter = "seawall_unobserved_total", "What was not understood, or left out of statistics.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for name in MetricName::ALL {
            let text = name.as_str();
            assert!(text.starts_with("seawall_"), "{text}");
            assert_eq!(
                text.ends_with("_total"),
                name.kind() == MetricKind::Counter,
                "{text}"
            );
            let is_histogram = name.kind() == MetricKind::Histogram;
            assert!(!is_histogram || text.ends_with("_seconds"), "{text}");
        }
    }
}
