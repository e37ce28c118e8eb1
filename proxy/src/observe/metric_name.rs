//! The names of all metrics, in one place.

/// A metric's name. Names are a contract with dashboards: add freely, rename none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricName {
    /// Clients connected now.
    ClientConnections,
    /// Clients ever accepted.
    ClientConnectionsTotal,
    /// Clients turned away, by `reason`.
    ClientConnectionsRefusedTotal,
    /// Logins of clients, by `mechanism` and `result`.
    ClientAuthenticationsTotal,
    /// Time from `saslStart` to the end of a login.
    ClientAuthenticationSeconds,
    /// Connections to a server, by `state`.
    ServerConnections,
    /// Connections ever established to a server.
    ServerConnectionsCreatedTotal,
    /// Connections to a server ended, by `reason`.
    ServerConnectionsClosedTotal,
    /// Our logins at a server, by `mechanism` and `result`.
    ServerAuthenticationsTotal,
    /// Operations by command, namespace and `outcome`.
    OperationsTotal,
    /// Last request byte read to last reply byte written.
    OperationDurationSeconds,
    /// The same by phase.
    OperationPhaseSeconds,
    /// Bytes of requests.
    OperationRequestBytesTotal,
    /// Bytes of replies.
    OperationReplyBytesTotal,
    /// Documents returned, written or counted.
    OperationDocumentsTotal,
    /// `seawall_operations_streamed_total`
    OperationsStreamedTotal,
    /// Operations of a shape.
    ShapeOperationsTotal,
    /// Durations of a shape.
    ShapeDurationSeconds,
    /// What a shape's id stands for.
    ShapeInfo,
    /// Operations that wait for a connection to a server.
    WaitQueueLength,
    /// Operations that wait for something to happen, by `state`.
    AwaitingOperations,
    /// Clients with a server connection of their own.
    RelayedConnections,
    /// Time to get a connection to a server.
    CheckoutSeconds,
    /// Operations refused, by `reason`.
    OperationsShedTotal,
    /// Clients that left in mid-operation, by `stage`.
    ClientsGoneTotal,
    /// Replies that were read for nobody, by `result`.
    AbandonedRepliesTotal,
    /// Reads ended at a server because their clients had left.
    ServerOperationsEndedTotal,
    /// Client connections that ended, by `stage` and `how`.
    ClientDeparturesTotal,
    /// Storms of clients that began.
    StormsTotal,
    /// Whether there is a storm of clients now.
    StormActive,
    /// Operations that a configured fault struck, by `kind`.
    FaultsInjectedTotal,
    /// New clients that waited for their turn.
    ArrivalsDelayedTotal,
    /// Logins that waited for their turn among their user's.
    LoginsDelayedTotal,
    /// Time until a server began to answer.
    ServerOperationSeconds,
    /// Single writes that failed within replies that are `ok: 1`, by `code`.
    WriteErrorsTotal,
    /// Write concerns that were not satisfied, by `code`.
    WriteConcernErrorsTotal,
    /// Operations that Seawall sent again by itself, by `server`.
    OperationsRepeatedTotal,
    /// Writes sent again with the same session and transaction number.
    OperationsRetriedTotal,
    /// Errors answered, by `code`.
    OperationErrorsTotal,
    /// Look-ups of shapes without a row, by the `level` that they count in.
    FingerprintFoldedTotal,
    /// Rows taken from shapes for heavier ones.
    FingerprintEvictedTotal,
    /// How much later than asked for a task was woken, by `plane`.
    EventLoopDelaySeconds,
    /// Memory by `owner`.
    MemoryBytes,
    /// CPU time used so far by `thread`.
    ThreadCpuSeconds,
    /// Lines that the slow log left out.
    SlowLogLeftOutTotal,
    /// Steps of the history dropped before their time.
    HistoryDroppedTotal,
    /// Shapes whose text was not that of their row.
    FingerprintMismatchTotal,
    /// What was not understood, or left out of statistics, by `reason`.
    UnobservedTotal,
}

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

impl MetricName {
    /// Every metric.
    pub const ALL: [Self; 48] = [
        Self::ClientConnections,
        Self::ClientConnectionsTotal,
        Self::ClientConnectionsRefusedTotal,
        Self::ClientAuthenticationsTotal,
        Self::ClientAuthenticationSeconds,
        Self::ServerConnections,
        Self::ServerConnectionsCreatedTotal,
        Self::ServerConnectionsClosedTotal,
        Self::ServerAuthenticationsTotal,
        Self::OperationsTotal,
        Self::OperationDurationSeconds,
        Self::OperationPhaseSeconds,
        Self::OperationRequestBytesTotal,
        Self::OperationReplyBytesTotal,
        Self::OperationDocumentsTotal,
        Self::OperationsStreamedTotal,
        Self::ShapeOperationsTotal,
        Self::ShapeDurationSeconds,
        Self::ShapeInfo,
        Self::WaitQueueLength,
        Self::AwaitingOperations,
        Self::RelayedConnections,
        Self::CheckoutSeconds,
        Self::OperationsShedTotal,
        Self::ClientsGoneTotal,
        Self::AbandonedRepliesTotal,
        Self::ServerOperationsEndedTotal,
        Self::ClientDeparturesTotal,
        Self::StormsTotal,
        Self::StormActive,
        Self::FaultsInjectedTotal,
        Self::ArrivalsDelayedTotal,
        Self::LoginsDelayedTotal,
        Self::ServerOperationSeconds,
        Self::WriteErrorsTotal,
        Self::WriteConcernErrorsTotal,
        Self::OperationsRepeatedTotal,
        Self::OperationsRetriedTotal,
        Self::OperationErrorsTotal,
        Self::FingerprintFoldedTotal,
        Self::FingerprintEvictedTotal,
        Self::EventLoopDelaySeconds,
        Self::MemoryBytes,
        Self::ThreadCpuSeconds,
        Self::SlowLogLeftOutTotal,
        Self::HistoryDroppedTotal,
        Self::FingerprintMismatchTotal,
        Self::UnobservedTotal,
    ];

    /// The name as exported.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientConnections => "seawall_client_connections",
            Self::ClientConnectionsTotal => "seawall_client_connections_total",
            Self::ClientConnectionsRefusedTotal => "seawall_client_connections_refused_total",
            Self::ClientAuthenticationsTotal => "seawall_client_authentications_total",
            Self::ClientAuthenticationSeconds => "seawall_client_authentication_seconds",
            Self::ServerConnections => "seawall_server_connections",
            Self::ServerConnectionsCreatedTotal => "seawall_server_connections_created_total",
            Self::ServerConnectionsClosedTotal => "seawall_server_connections_closed_total",
            Self::ServerAuthenticationsTotal => "seawall_server_authentications_total",
            Self::OperationsTotal => "seawall_operations_total",
            Self::OperationDurationSeconds => "seawall_operation_duration_seconds",
            Self::OperationPhaseSeconds => "seawall_operation_phase_seconds",
            Self::OperationRequestBytesTotal => "seawall_operation_request_bytes_total",
            Self::OperationReplyBytesTotal => "seawall_operation_reply_bytes_total",
            Self::OperationDocumentsTotal => "seawall_operation_documents_total",
            Self::OperationsStreamedTotal => "seawall_operations_streamed_total",
            Self::ShapeOperationsTotal => "seawall_shape_operations_total",
            Self::ShapeDurationSeconds => "seawall_shape_duration_seconds",
            Self::ShapeInfo => "seawall_shape_info",
            Self::WaitQueueLength => "seawall_wait_queue_length",
            Self::AwaitingOperations => "seawall_awaiting_operations",
            Self::RelayedConnections => "seawall_relayed_connections",
            Self::CheckoutSeconds => "seawall_checkout_seconds",
            Self::OperationsShedTotal => "seawall_operations_shed_total",
            Self::ClientsGoneTotal => "seawall_clients_gone_total",
            Self::AbandonedRepliesTotal => "seawall_abandoned_replies_total",
            Self::ServerOperationsEndedTotal => "seawall_server_operations_ended_total",
            Self::ClientDeparturesTotal => "seawall_client_departures_total",
            Self::StormsTotal => "seawall_storms_total",
            Self::StormActive => "seawall_storm_active",
            Self::FaultsInjectedTotal => "seawall_faults_injected_total",
            Self::ArrivalsDelayedTotal => "seawall_arrivals_delayed_total",
            Self::LoginsDelayedTotal => "seawall_logins_delayed_total",
            Self::ServerOperationSeconds => "seawall_server_operation_seconds",
            Self::WriteErrorsTotal => "seawall_write_errors_total",
            Self::WriteConcernErrorsTotal => "seawall_write_concern_errors_total",
            Self::OperationsRepeatedTotal => "seawall_operations_repeated_total",
            Self::OperationsRetriedTotal => "seawall_operations_retried_total",
            Self::OperationErrorsTotal => "seawall_operation_errors_total",
            Self::FingerprintFoldedTotal => "seawall_fingerprint_folded_total",
            Self::FingerprintEvictedTotal => "seawall_fingerprint_evicted_total",
            Self::EventLoopDelaySeconds => "seawall_event_loop_delay_seconds",
            Self::MemoryBytes => "seawall_memory_bytes",
            Self::ThreadCpuSeconds => "seawall_thread_cpu_seconds",
            Self::SlowLogLeftOutTotal => "seawall_slow_log_left_out_total",
            Self::HistoryDroppedTotal => "seawall_history_dropped_total",
            Self::FingerprintMismatchTotal => "seawall_fingerprint_mismatch_total",
            Self::UnobservedTotal => "seawall_unobserved_total",
        }
    }

    /// Counter, gauge or histogram.
    pub fn kind(self) -> MetricKind {
        match self {
            Self::ClientConnections
            | Self::ServerConnections
            | Self::WaitQueueLength
            | Self::AwaitingOperations
            | Self::RelayedConnections
            | Self::StormActive
            | Self::MemoryBytes
            | Self::ThreadCpuSeconds
            | Self::ShapeInfo => MetricKind::Gauge,
            Self::ClientAuthenticationSeconds
            | Self::OperationDurationSeconds
            | Self::OperationPhaseSeconds
            | Self::ShapeDurationSeconds
            | Self::ServerOperationSeconds
            | Self::EventLoopDelaySeconds
            | Self::CheckoutSeconds => MetricKind::Histogram,
            Self::WriteErrorsTotal
            | Self::WriteConcernErrorsTotal
            | Self::OperationsRepeatedTotal
            | Self::OperationsRetriedTotal
            | Self::OperationErrorsTotal
            | Self::FingerprintFoldedTotal
            | Self::FingerprintEvictedTotal
            | Self::SlowLogLeftOutTotal
            | Self::HistoryDroppedTotal
            | Self::FingerprintMismatchTotal
            | Self::ArrivalsDelayedTotal
            | Self::ClientConnectionsTotal
            | Self::ClientConnectionsRefusedTotal
            | Self::ClientAuthenticationsTotal
            | Self::ServerConnectionsCreatedTotal
            | Self::ServerConnectionsClosedTotal
            | Self::ServerAuthenticationsTotal
            | Self::OperationsTotal
            | Self::OperationRequestBytesTotal
            | Self::OperationReplyBytesTotal
            | Self::OperationDocumentsTotal
            | Self::OperationsStreamedTotal
            | Self::ShapeOperationsTotal
            | Self::OperationsShedTotal
            | Self::ClientsGoneTotal
            | Self::AbandonedRepliesTotal
            | Self::ServerOperationsEndedTotal
            | Self::ClientDeparturesTotal
            | Self::StormsTotal
            | Self::FaultsInjectedTotal
            | Self::LoginsDelayedTotal
            | Self::UnobservedTotal => MetricKind::Counter,
        }
    }

    /// The help text.
    pub fn help(self) -> &'static str {
        match self {
            Self::ClientConnections => "Clients connected now.",
            Self::ClientConnectionsTotal => "Client connections accepted.",
            Self::ClientConnectionsRefusedTotal => "Client connections turned away.",
            Self::ClientAuthenticationsTotal => "Logins of clients.",
            Self::ClientAuthenticationSeconds => "Time of a client's login, its own part included.",
            Self::ServerConnections => "Connections to a server by state.",
            Self::ServerConnectionsCreatedTotal => "Connections established to a server.",
            Self::ServerConnectionsClosedTotal => "Connections to a server that ended.",
            Self::ServerAuthenticationsTotal => "Logins of Seawall at a server.",
            Self::OperationsTotal => "Operations by command, namespace and outcome.",
            Self::OperationDurationSeconds => {
                "Time from the last request byte read to the last reply byte written."
            }
            Self::OperationPhaseSeconds => "The parts of an operation's time.",
            Self::OperationRequestBytesTotal => "Bytes of requests.",
            Self::OperationReplyBytesTotal => "Bytes of replies.",
            Self::OperationDocumentsTotal => "Documents returned, written or counted.",
            Self::OperationsStreamedTotal => {
                "Operations whose large request was forwarded as it came, timed from its first byte."
            }
            Self::ShapeOperationsTotal => "Operations of a shape.",
            Self::ShapeDurationSeconds => "Durations of a shape's operations.",
            Self::ShapeInfo => "What a shape's id stands for; always 1.",
            Self::WaitQueueLength => "Operations waiting for a connection to a server.",
            Self::AwaitingOperations => {
                "Operations waiting for something to happen: change streams and tailable cursors."
            }
            Self::RelayedConnections => "Clients relayed over a connection of their own.",
            Self::CheckoutSeconds => "Time to get a connection to a server.",
            Self::OperationsShedTotal => "Operations refused by Seawall.",
            Self::ClientsGoneTotal => {
                "Clients that left while an operation of theirs was under way."
            }
            Self::AbandonedRepliesTotal => {
                "Replies read to their end after their clients had left."
            }
            Self::ServerOperationsEndedTotal => {
                "Reads ended at a server because their clients had left."
            }
            Self::ClientDeparturesTotal => "Client connections that ended.",
            Self::StormsTotal => "Storms of clients that began.",
            Self::StormActive => "Whether there is a storm of clients now: 1 or 0.",
            Self::FaultsInjectedTotal => "Operations that a configured fault struck.",
            Self::ArrivalsDelayedTotal => "New clients that waited for their turn.",
            Self::LoginsDelayedTotal => {
                "Logins of clients that waited for their turn among their user's."
            }
            Self::ServerOperationSeconds => "Time until a server began to answer.",
            Self::WriteErrorsTotal => {
                "Single writes that failed within replies that are ok, by code."
            }
            Self::WriteConcernErrorsTotal => "Write concerns that were not satisfied, by code.",
            Self::OperationsRepeatedTotal => {
                "Operations that Seawall sent again, by the server that had failed."
            }
            Self::OperationsRetriedTotal => {
                "Writes and ends of transactions that clients sent again, by session and number."
            }
            Self::OperationErrorsTotal => "Errors answered, by code.",
            Self::FingerprintFoldedTotal => {
                "Look-ups of shapes without a row of their own, by the level that they count in."
            }
            Self::FingerprintEvictedTotal => "Rows taken from shapes for heavier ones.",
            Self::EventLoopDelaySeconds => "How much later than asked for a task was woken.",
            Self::MemoryBytes => "Memory by owner; process is all that is resident.",
            Self::ThreadCpuSeconds => "CPU time used so far by threads of a name.",
            Self::SlowLogLeftOutTotal => "Lines that the slow log left out.",
            Self::HistoryDroppedTotal => {
                "Steps of the history dropped before their time, for want of room."
            }
            Self::FingerprintMismatchTotal => {
                "Shapes whose text was not that of their row: two of one hash."
            }
            Self::UnobservedTotal => "What was not understood, or left out of statistics.",
        }
    }
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
