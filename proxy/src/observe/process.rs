//! Metrics of Seawall itself. They cover CPU time by thread, memory by owner, the delay of the
//! event loops, and captures. They also cover unwritten lines of the log and the slow log, and
//! losses of the history.

use std::time::Duration;

use metrics::Label;

use super::{Exporter, exporter::LeftOutLines, metric_name::MetricName, own::resident_bytes};
use seawall_stats::{CaptureCounts, float, float_usize};

/// The memory of one part of Seawall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The value of the label `owner`.
    pub owner: &'static str,
    /// Size of the memory in bytes.
    pub bytes: usize,
}

/// Losses of the history since Seawall started. The history consists of steps: a step has the
/// figures of a second or of a longer interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryLosses {
    /// Number of steps that were dropped before the end of their retention, because of the memory
    /// limit.
    pub dropped_early: u64,
    /// Number of failed writes of the history file.
    pub failed_writes: u64,
}

impl Exporter {
    /// Records how late a periodic task woke up. `plane` is the runtime of the task: `data` or
    /// `control`.
    pub(crate) fn record_event_loop_delay(&self, plane: &'static str, delay: Duration) {
        let labels = vec![Label::new("plane", plane)];
        let name = MetricName::EventLoopDelaySeconds;
        self.metrics
            .histogram(name, labels)
            .record(delay.as_secs_f64());
    }

    /// Exports the number of log lines that were not written. Only the first call has an effect.
    pub(crate) fn count_log_left_out(&self, left_out: LeftOutLines) {
        self.log_left_out.get_or_init(|| left_out);
    }

    /// Updates the metrics of the process. Must be called once a second.
    pub(crate) fn update_process_metrics(&self, memory: &[Memory], history: HistoryLosses) {
        let tables = Memory {
            owner: "tables",
            bytes: self.totals.table_bytes(),
        };
        let resident = resident_bytes().map(|bytes| Memory {
            owner: "process",
            bytes,
        });
        for Memory { owner, bytes } in memory.iter().copied().chain([tables]).chain(resident) {
            let labels = vec![Label::new("owner", owner)];
            let name = MetricName::MemoryBytes;
            self.metrics.gauge(name, labels).set(float_usize(bytes));
        }
        self.export_cpu();
        let left_out = self.recorder.slow_log_left_out();
        let log_left_out = self.log_left_out.get().map_or(0, |left_out| left_out());
        for (name, count) in [
            (MetricName::LogLeftOutTotal, log_left_out),
            (MetricName::SlowLogLeftOutTotal, left_out),
            (MetricName::HistoryDroppedTotal, history.dropped_early),
            (MetricName::HistoryWriteFailuresTotal, history.failed_writes),
        ] {
            self.metrics.counter(name, vec![]).absolute(count);
        }
    }

    /// Updates the metrics of captures. Must be called once a second.
    pub(crate) fn update_capture_metrics(&self, counts: &CaptureCounts) {
        let gauges = [
            (MetricName::CaptureRunning, u64::from(counts.is_running)),
            (MetricName::CaptureBytes, counts.kept_bytes),
        ];
        for (name, value) in gauges {
            self.metrics.gauge(name, vec![]).set(float(value));
        }
        let counters = [
            (MetricName::CaptureOperationsTotal, counts.operations),
            (MetricName::CaptureWrittenBytesTotal, counts.written_bytes),
        ];
        for (name, count) in counters {
            self.metrics.counter(name, vec![]).absolute(count);
        }
        for (name, counts) in [
            (MetricName::CaptureOmittedTotal, &counts.omitted),
            (MetricName::CaptureEndedTotal, &counts.ended),
        ] {
            for (reason, count) in counts {
                let labels = vec![Label::new("reason", *reason)];
                self.metrics.counter(name, labels).absolute(*count);
            }
        }
    }

    fn export_cpu(&self) {
        let mut cpu = self.cpu.lock();
        cpu.measure();
        for (thread, time) in cpu.by_thread() {
            let labels = vec![Label::new("thread", thread.to_owned())];
            let name = MetricName::ThreadCpuSeconds;
            self.metrics.gauge(name, labels).set(time.as_secs_f64());
        }
    }
}
