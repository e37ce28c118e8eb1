//! The name, kind and help text of every metric.

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only rises.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// A distribution of times.
    Histogram,
}

/// Declares the enum of metric names: for each metric its kind, exported name and help text.
macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident: $kind:ident = $text:literal, $help:literal;)*) => {
        /// A metric's name. Dashboards depend on the names, so an existing name must not change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum MetricName {
            $($(#[$doc])* $name,)*
        }

        impl MetricName {
            /// Every metric.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The exported name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The metric's kind.
            pub fn kind(self) -> MetricKind {
                match self {
                    $(Self::$name => MetricKind::$kind,)*
                }
            }

            /// The metric's help text.
            pub fn help(self) -> &'static str {
                match self {
                    $(Self::$name => $help,)*
                }
            }
        }
    };
}

metrics! {
    /// This instance: its version and the hash of its configuration; the value is always 1.
    Info: Gauge = "seawall_info", "This instance: version and config_hash, the hash of its configuration; always 1.";
    /// 1 if Seawall can serve operations, else 0.
    Ready: Gauge = "seawall_ready", "1 if Seawall can serve operations, as /health/ready reports, else 0.";
    /// 1 while Seawall drains, else 0.
    Draining: Gauge = "seawall_draining", "1 while Seawall drains, else 0.";
    /// Reloads of the configuration, by `result`.
    ReloadsTotal: Counter = "seawall_reloads_total", "Reloads of the configuration.";
    /// 1 if the last reload of the configuration succeeded, or if there was none; else 0.
    LastReloadSuccessful: Gauge = "seawall_last_reload_successful", "1 if the last reload of the configuration succeeded, or if there was none; else 0.";
    /// Clients connected now.
    ClientConnections: Gauge = "seawall_client_connections", "Clients connected now.";
    /// Client connections accepted.
    ClientConnectionsTotal: Counter = "seawall_client_connections_total", "Client connections accepted.";
    /// Client connections refused, by `reason`.
    ClientConnectionsRefusedTotal: Counter = "seawall_client_connections_refused_total", "Client connections refused.";
    /// Logins of clients, by `mechanism` and `result`.
    ClientAuthenticationsTotal: Counter = "seawall_client_authentications_total", "Logins of clients.";
    /// Time from `saslStart` to the end of a login.
    ClientAuthenticationSeconds: Histogram = "seawall_client_authentication_seconds", "Time of a client's login, including the time for which Seawall waits for the client.";
    /// Pooled connections to a server, by `state`.
    ServerConnections: Gauge = "seawall_server_connections", "Connections to a server by state.";
    /// Connections established to a server.
    ServerConnectionsCreatedTotal: Counter = "seawall_server_connections_created_total", "Connections established to a server.";
    /// Ended connections to a server, by `reason`.
    ServerConnectionsClosedTotal: Counter = "seawall_server_connections_closed_total", "Connections to a server that ended.";
    /// How often the pool of a server was cleared because the server had failed.
    PoolClearsTotal: Counter = "seawall_pool_clears_total", "How often the pool of a server was cleared because the server had failed.";
    /// Logins of Seawall at a server, by `mechanism` and `result`.
    ServerAuthenticationsTotal: Counter = "seawall_server_authentications_total", "Logins of Seawall at a server.";
    /// Operations by command, namespace and `outcome`.
    OperationsTotal: Counter = "seawall_operations_total", "Operations by command, namespace and outcome.";
    /// Time from reading the last byte of a command to writing the last byte of its reply.
    /// Operations that wait for an event are not included.
    OperationDurationSeconds: Histogram = "seawall_operation_duration_seconds", "Time from reading the last byte of a command to writing the last byte of its reply.";
    /// Time of an operation, by `phase`. Operations that wait for an event are not included, and
    /// neither are operations to which Seawall itself replied.
    OperationPhaseSeconds: Histogram = "seawall_operation_phase_seconds", "Time of an operation by phase.";
    /// Bytes of commands.
    OperationRequestBytesTotal: Counter = "seawall_operation_request_bytes_total", "Bytes of commands.";
    /// Bytes of replies.
    OperationReplyBytesTotal: Counter = "seawall_operation_reply_bytes_total", "Bytes of replies.";
    /// Documents that operations returned, wrote or counted.
    OperationDocumentsTotal: Counter = "seawall_operation_documents_total", "Documents returned, written or counted.";
    /// Operations whose large command was forwarded while it arrived. Such an operation is timed
    /// from the first byte of its command.
    OperationsStreamedTotal: Counter = "seawall_operations_streamed_total", "Operations whose large command was forwarded while it arrived. Such an operation is timed from the first byte of its command.";
    /// Operations of a shape. A shape is a command without its values.
    ShapeOperationsTotal: Counter = "seawall_shape_operations_total", "Operations of a shape.";
    /// Durations of a shape's operations.
    ShapeDurationSeconds: Histogram = "seawall_shape_duration_seconds", "Durations of a shape's operations.";
    /// Time of the `getMore`s on cursors that the operations of a shape opened, without `getMore`s
    /// that wait for an event.
    ShapeGetmoreSecondsTotal: Counter = "seawall_shape_getmore_seconds_total", "Time of the getMores on cursors that a shape opened.";
    /// Description of a shape; the value is always 1.
    ShapeInfo: Gauge = "seawall_shape_info", "Description of a shape: command, namespace and text; always 1.";
    /// Operations that wait for a connection to a server or for a slot of the concurrency limit.
    WaitQueueLength: Gauge = "seawall_wait_queue_length", "Operations waiting for a connection to a server, or for a slot.";
    /// Maximum number of operations in progress on a server; absent if there is no limit.
    ConcurrencyLimit: Gauge = "seawall_concurrency_limit", "Maximum number of operations in progress on a server; absent if there is no limit.";
    /// Operations by `state`: they hold a slot or a reserved slot of the concurrency limit, run
    /// without a slot, or wait.
    ConcurrencyOperations: Gauge = "seawall_concurrency_operations", "Operations by their state with regard to the concurrency limit.";
    /// Changes of the concurrency limit, by `reason`.
    ConcurrencyLimitChangesTotal: Counter = "seawall_concurrency_limit_changes_total", "Changes of the concurrency limit, by reason.";
    /// Operations waiting for an event (change streams, tailable cursors), by `state`.
    AwaitingOperations: Gauge = "seawall_awaiting_operations", "Operations waiting for an event: change streams and tailable cursors.";
    /// Relayed clients: Seawall forwards the bytes of such a client over a server connection that
    /// no other client uses.
    RelayedConnections: Gauge = "seawall_relayed_connections", "Clients relayed over a server connection of their own.";
    /// Time to get a connection to a server.
    CheckoutSeconds: Histogram = "seawall_checkout_seconds", "Time to get a connection to a server.";
    /// Operations refused by Seawall, by `reason`.
    OperationsShedTotal: Counter = "seawall_operations_shed_total", "Operations refused by Seawall.";
    /// Clients that left during an operation or a handshake, by `stage`.
    ClientsGoneTotal: Counter = "seawall_clients_gone_total", "Clients that left during an operation or a handshake.";
    /// Replies whose client left before it had the whole reply, by `result`: `kept` if Seawall read
    /// the reply to its end and kept the server connection, else `closed`.
    AbandonedRepliesTotal: Counter = "seawall_abandoned_replies_total", "Replies whose client left before it had the whole reply.";
    /// Reads that Seawall killed at a server because the client had left.
    ServerOperationsEndedTotal: Counter = "seawall_server_operations_ended_total", "Reads that Seawall killed at a server because the client had left.";
    /// Client connections that ended, by `stage` and `how`.
    ClientDeparturesTotal: Counter = "seawall_client_departures_total", "Client connections that ended.";
    /// Client storms (sudden rises in the number of short-lived client connections) that began.
    StormsTotal: Counter = "seawall_storms_total", "Client storms that began.";
    /// 1 while there is a client storm, else 0.
    StormActive: Gauge = "seawall_storm_active", "1 while there is a client storm, else 0.";
    /// Number of servers that now stall at a regular interval.
    RecurringStalls: Gauge = "seawall_recurring_stalls", "Number of servers whose stalls recur now at a regular interval.";
    /// Operations with an injected fault, by `kind`.
    FaultsInjectedTotal: Counter = "seawall_faults_injected_total", "Operations with an injected fault.";
    /// New clients that waited before Seawall read their first byte, because its threads for
    /// clients were overloaded.
    ArrivalsDelayedTotal: Counter = "seawall_arrivals_delayed_total", "New clients that waited before Seawall read their first byte, because its threads for clients were overloaded.";
    /// Client logins that were delayed by a login gate (a limit on the rate of logins under
    /// overload) or another limit of logins.
    LoginsDelayedTotal: Counter = "seawall_logins_delayed_total", "Client logins that were delayed by a login gate or a limit of logins.";
    /// Time at a server: starts when the last byte of a command was written to the server, and ends
    /// at the first byte of the reply.
    ServerOperationSeconds: Histogram = "seawall_server_operation_seconds", "Time from the last byte of a command written to a server to the first byte of the reply.";
    /// Failed single writes of commands whose reply has `ok: 1`, by `code`.
    WriteErrorsTotal: Counter = "seawall_write_errors_total", "Single writes that failed in replies with ok: 1, by code.";
    /// Write concerns that were not satisfied, by `code`.
    WriteConcernErrorsTotal: Counter = "seawall_write_concern_errors_total", "Write concerns that were not satisfied, by code.";
    /// Operations that Seawall repeated, by the `server` that had failed.
    OperationsRepeatedTotal: Counter = "seawall_operations_repeated_total", "Operations that Seawall repeated, by the server that had failed.";
    /// Writes, commits and aborts that clients sent again with the same session and transaction
    /// number.
    OperationsRetriedTotal: Counter = "seawall_operations_retried_total", "Writes, commits and aborts that clients sent again with the same session and transaction number.";
    /// Error replies (`ok: 0`), by `code`.
    OperationErrorsTotal: Counter = "seawall_operation_errors_total", "Error replies (ok: 0), by code.";
    /// Operations whose shape has no row of its own in the shape table. A row for several shapes
    /// counts them; `level` says which kind of row (`coarse` or `rest`).
    FingerprintFoldedTotal: Counter = "seawall_fingerprint_folded_total", "Operations of shapes without a row of their own, by the level of the row that counts them.";
    /// Rows that were evicted from the shape table, for example because the operations of another
    /// shape took more time than those of the evicted shape.
    FingerprintEvictedTotal: Counter = "seawall_fingerprint_evicted_total", "Rows evicted from the shape table, for example for heavier shapes.";
    /// Prefixes of field paths. Below each of them, Seawall has seen too many different field
    /// names. So it now treats these names as data (for example as ids), not as part of a shape.
    FingerprintNamesLearnedTotal: Counter = "seawall_fingerprint_names_learned_total", "Prefixes of field paths below which all names now count as data.";
    /// How late a periodic task of a runtime woke up, by `plane` (`data` or `control`).
    EventLoopDelaySeconds: Histogram = "seawall_event_loop_delay_seconds", "How late a periodic task of a runtime woke up.";
    /// Memory for each `owner`, in bytes.
    MemoryBytes: Gauge = "seawall_memory_bytes", "Memory for each owner, in bytes. The owner process is the resident memory of the whole process.";
    /// CPU time since Seawall started, by `thread` name.
    ThreadCpuSeconds: Gauge = "seawall_thread_cpu_seconds", "CPU time since Seawall started, by thread name.";
    /// Log lines that were dropped, because too many lines already waited to be written.
    LogLeftOutTotal: Counter = "seawall_log_left_out_total", "Log lines that were dropped, because too many lines already waited to be written.";
    /// Slow log lines that were not written.
    SlowLogLeftOutTotal: Counter = "seawall_slow_log_left_out_total", "Slow log lines that were not written.";
    /// Steps of the history that were dropped early because their memory limit was reached. A step
    /// has the figures of a second or of a longer interval.
    HistoryDroppedTotal: Counter = "seawall_history_dropped_total", "Steps of the history dropped early because their memory limit was reached.";
    /// Failed writes of the history file.
    HistoryWriteFailuresTotal: Counter = "seawall_history_write_failures_total", "Failed writes of the history file.";
    /// How often the text of a command's shape differed from the text of the row that counts the
    /// command. Seawall compares the texts for one operation in 65,536.
    FingerprintMismatchTotal: Counter = "seawall_fingerprint_mismatch_total", "How often the text of a shape differed from the text of its row. Seawall compares the texts for one operation in 65,536.";
    /// Expiry time of a certificate or revocation list, in seconds since the epoch, by `file`,
    /// `kind`, `subject` and `serial`. For a revocation list, `serial` is empty.
    CertificateExpiryTimestampSeconds: Gauge = "seawall_certificate_expiry_timestamp_seconds", "When a certificate or revocation list expires, in seconds since the epoch.";
    /// Operations on cursors and transactions that this instance does not know, by `kind`.
    ForeignOperationsTotal: Counter = "seawall_foreign_operations_total", "Operations on cursors and transactions that this instance does not know.";
    /// Exports of metrics to a collector, by `result`.
    TelemetryExportsTotal: Counter = "seawall_telemetry_exports_total", "Exports of metrics to a collector, by result.";
    /// Data points that a collector refused in exports with the result `partial`.
    TelemetryRejectedPointsTotal: Counter = "seawall_telemetry_rejected_points_total", "Data points that a collector refused in exports with the result partial.";
    /// 1 while a capture runs, else 0.
    CaptureRunning: Gauge = "seawall_capture_running", "1 while a capture runs, else 0.";
    /// Operations recorded in captures.
    CaptureOperationsTotal: Counter = "seawall_capture_operations_total", "Operations recorded in captures.";
    /// Operations that were not recorded although their client was captured, and replies that were
    /// recorded without their message, by `reason`.
    CaptureOmittedTotal: Counter = "seawall_capture_omitted_total", "Operations of captured clients that were not recorded, and replies that were recorded without their message, by reason.";
    /// Captures that have ended, by `reason`.
    CaptureEndedTotal: Counter = "seawall_capture_ended_total", "Captures that have ended, by reason.";
    /// Bytes written to captures, after compression.
    CaptureWrittenBytesTotal: Counter = "seawall_capture_written_bytes_total", "Bytes written to captures, after compression.";
    /// Bytes of all captures on disk.
    CaptureBytes: Gauge = "seawall_capture_bytes", "Bytes of all captures on disk.";
    /// Events that Seawall did not understand or could not include in statistics, by `reason`.
    UnobservedTotal: Counter = "seawall_unobserved_total", "Events that Seawall did not understand or could not include in statistics.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_counters_end_with_total_and_the_names_of_histograms_with_seconds() {
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
