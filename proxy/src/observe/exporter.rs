//! The exporter: sets the gauges of Seawall's own state, and renders all metrics for a scrape.

use std::{
    fmt,
    iter::repeat,
    sync::{Arc, OnceLock},
};

use metrics::Label as MetricLabel;

use seawall_locks::Mutex;
use seawall_stats::Distribution;

use super::{
    ObserveError, Recorder, Totals,
    histograms::{HistogramText, Histograms},
    metric_handles::Metrics,
    metric_name::MetricName,
    own::CpuTimes,
    protobuf::{self, NativeHistograms},
    totals::Collected,
};

/// One series of the metric that shows when certificates and revocation lists expire: the labels of
/// the series, and its value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CertificateSeries {
    /// The path of the file.
    pub(crate) file: String,
    /// `certificate` or `revocation_list`.
    pub(crate) kind: &'static str,
    /// The subject of the certificate, or the issuer of the revocation list.
    pub(crate) subject: String,
    /// The serial number of the certificate; empty for a revocation list.
    pub(crate) serial: String,
    /// The end of the validity in seconds since the epoch.
    pub(crate) not_after: i64,
}

/// Exports the totals and Seawall's own state as metrics.
pub struct Exporter {
    pub(super) metrics: Arc<Metrics>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) totals: Arc<Totals>,
    pub(super) cpu: Mutex<CpuTimes>,
    /// The series of `seawall_info` and of the certificates' expiry; `None` until
    /// [`Exporter::set_info`] is called. The metrics library cannot remove a single series, so each
    /// call replaces all these series.
    info: Mutex<Option<Metrics>>,
    /// Returns the number of log lines that were not written. Not set if Seawall writes no log.
    pub(super) log_left_out: OnceLock<LeftOutLines>,
}

/// Returns the number of log lines that were not written.
pub(crate) type LeftOutLines = Box<dyn Fn() -> u64 + Send + Sync>;

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl Exporter {
    pub(super) fn new(recorder: Arc<Recorder>, totals: Arc<Totals>) -> Self {
        let exporter = Self {
            metrics: Arc::clone(&recorder.metrics),
            recorder,
            totals,
            cpu: Mutex::default(),
            info: Mutex::new(None),
            log_left_out: OnceLock::new(),
        };
        // The series of storms exist before the first storm, so that a scraper sees the first storm
        // as an increase from 0.
        let storms = exporter.metrics.counter(MetricName::StormsTotal, vec![]);
        storms.absolute(0);
        exporter.set_storm_active(false);
        let reload = exporter
            .metrics
            .gauge(MetricName::LastReloadSuccessful, vec![]);
        reload.set(1.0);
        exporter
    }

    /// Exports the hash of the configuration as a label of `seawall_info`, and the expiry times of
    /// certificates and revocation lists. No two series in `certificates` may have the same labels.
    ///
    /// # Errors
    /// [`ObserveError`] if the library for metrics refuses the histogram buckets.
    pub(crate) fn set_info(
        &self,
        config_hash: &str,
        certificates: Vec<CertificateSeries>,
    ) -> Result<(), ObserveError> {
        let metrics = Metrics::new(None)?;
        let labels = vec![
            MetricLabel::new("version", env!("CARGO_PKG_VERSION")),
            MetricLabel::new("config_hash", config_hash.to_owned()),
        ];
        metrics.gauge(MetricName::Info, labels).set(1.0);
        for certificate in certificates {
            let labels = vec![
                MetricLabel::new("file", certificate.file),
                MetricLabel::new("kind", certificate.kind),
                MetricLabel::new("subject", certificate.subject),
                MetricLabel::new("serial", certificate.serial),
            ];
            // No date in a certificate is after the year 9999, so an `f64` represents it exactly.
            let not_after = u64::try_from(certificate.not_after).map_or(0.0, seawall_stats::float);
            metrics
                .gauge(MetricName::CertificateExpiryTimestampSeconds, labels)
                .set(not_after);
        }
        *self.info.lock() = Some(metrics);
        Ok(())
    }

    /// Counts a client storm (a sudden rise in the number of short-lived client connections) that
    /// began, and sets the gauge `seawall_storm_active` to 1.
    pub(crate) fn record_storm_begin(&self) {
        self.metrics.count(MetricName::StormsTotal, &[]);
        self.set_storm_active(true);
    }

    /// Sets the gauge `seawall_storm_active` to 0.
    pub(crate) fn record_storm_end(&self) {
        self.set_storm_active(false);
    }

    /// Sets the gauge `seawall_recurring_stalls`: the number of servers that now stall at a regular
    /// interval.
    pub(crate) fn set_recurring_stalls(&self, servers: usize) {
        let gauge = self.metrics.gauge(MetricName::RecurringStalls, vec![]);
        gauge.set(seawall_stats::float_usize(servers));
    }

    /// Sets the gauge that shows if Seawall can serve operations.
    pub(crate) fn set_ready(&self, is_ready: bool) {
        let gauge = self.metrics.gauge(MetricName::Ready, vec![]);
        gauge.set(f64::from(u8::from(is_ready)));
    }

    /// Sets the gauge that shows if Seawall drains.
    pub(crate) fn set_draining(&self, is_draining: bool) {
        let gauge = self.metrics.gauge(MetricName::Draining, vec![]);
        gauge.set(f64::from(u8::from(is_draining)));
    }

    fn set_storm_active(&self, is_active: bool) {
        let gauge = self.metrics.gauge(MetricName::StormActive, vec![]);
        gauge.set(f64::from(u8::from(is_active)));
    }

    /// Renders all metrics as Prometheus text. Collects the threads' sums first.
    pub(crate) fn render(&self) -> String {
        self.render_with(&self.totals.collect_all())
    }

    fn render_with(&self, collected: &Collected) -> String {
        let mut text = self.render_values();
        text.push_str(&collected.series.render());
        let mut histograms = HistogramText::new(&mut text);
        self.add_histograms(collected, &mut histograms);
        self.add_checkouts(collected, &mut histograms);
        text
    }

    /// Renders all metrics except the histograms that are made from distributions, and except the
    /// metrics of shapes.
    pub(super) fn render_values(&self) -> String {
        let clients = u32::try_from(self.recorder.clients.count()).unwrap_or(u32::MAX);
        let gauge = self.metrics.gauge(MetricName::ClientConnections, vec![]);
        gauge.set(f64::from(clients));
        let mut text = self.metrics.render();
        if let Some(info) = &*self.info.lock() {
            text.push_str(&info.render());
        }
        text
    }

    /// Adds the times of checkouts to `histograms`.
    pub(super) fn add_checkouts(&self, collected: &Collected, histograms: &mut impl Histograms) {
        let servers = self.recorder.servers.lock().clone();
        // Each server has a series even before its first checkout, so that a scraper sees the first
        // checkout as an increase from 0.
        let none = Distribution::default();
        let checkouts = collected.checkouts.iter().map(Option::as_deref);
        for (address, checkouts) in servers.iter().zip(checkouts.chain(repeat(None))) {
            let labels = [("server", &**address)];
            let name = MetricName::CheckoutSeconds;
            histograms.add(name, &labels, checkouts.unwrap_or(&none));
        }
    }

    /// Adds all distributions of operations to `histograms`.
    fn add_histograms(&self, collected: &Collected, histograms: &mut impl Histograms) {
        for (namespace, sums) in self.totals.namespaces_of(collected) {
            let labels = [
                ("command", namespace.command),
                ("db", &*namespace.db),
                ("collection", &*namespace.collection),
            ];
            let name = MetricName::OperationDurationSeconds;
            // Awaiting operations (they wait for an event) are excluded, because their times do not
            // show load.
            histograms.add(name, &labels, &sums.durations);
        }
        self.add_histograms_of_servers_and_phases(collected, histograms);
        collected.series.add_histograms(histograms);
    }

    /// Adds the distributions of servers and of phases to `histograms`.
    pub(super) fn add_histograms_of_servers_and_phases(
        &self,
        collected: &Collected,
        histograms: &mut impl Histograms,
    ) {
        let servers = self.recorder.servers.lock().clone();
        for (address, sums) in servers.iter().zip(&collected.servers) {
            if let Some(sums) = sums {
                let name = MetricName::ServerOperationSeconds;
                histograms.add(name, &[("server", &**address)], &sums.durations);
            }
        }
        for (phase, distribution) in collected.phases.iter() {
            let name = MetricName::OperationPhaseSeconds;
            histograms.add(name, &[("phase", phase.as_str())], distribution);
        }
    }

    /// Renders all metrics in Prometheus' protobuf format. The histograms of operations have native
    /// buckets in addition to the classic buckets.
    pub(crate) fn render_protobuf(&self) -> Vec<u8> {
        // The classic and the native buckets come from one snapshot: a scraper refuses a histogram
        // whose classic and native counts differ.
        let collected = self.totals.collect_all();
        let text = self.render_with(&collected);
        let mut natives = NativeHistograms::default();
        self.add_histograms(&collected, &mut natives);
        drop(collected);
        protobuf::encode(&text, &natives)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bson::doc;
    use tokio::time::Instant;

    use crate::observe::Observer;
    use seawall_command::CommandBytes;
    use seawall_stats::Outcome;

    /// The labels of the operations of [`record_get_more`].
    const LABELS: &str = r#"command="getMore",db="shop",collection="orders""#;

    fn observer() -> Observer {
        Observer::with_shapes()
    }

    /// Records a successful `getMore` with the given duration.
    fn record_get_more(observer: &Observer, is_awaiting: bool, duration: Duration) {
        let body = doc! { "getMore": 7_i64, "collection": "orders", "$db": "shop" };
        let body = body.to_vec().unwrap();
        let input = CommandBytes::of_body(&body);
        let began = Instant::now();
        let mut operation = observer.recorder.begin(&input, 100, began);
        if is_awaiting {
            operation.mark_awaiting();
        }
        operation.finish(Outcome::Ok, began + duration);
    }

    #[test]
    fn the_metrics_of_client_storms_are_0_before_the_first_storm() {
        let exporter = observer().exporter;
        let assert_shows = |storms: u64, active: u64| {
            let text = exporter.render();
            for line in [
                format!("\nseawall_storms_total {storms}\n"),
                format!("\nseawall_storm_active {active}\n"),
            ] {
                assert!(text.contains(&line), "{line}: {text}");
            }
        };
        assert_shows(0, 0);
        exporter.record_storm_begin();
        assert_shows(1, 1);
        exporter.record_storm_end();
        assert_shows(1, 0);
    }

    /// For example, a `getMore` on a tailable cursor waits at the server for new documents.
    #[test]
    fn an_operation_that_waits_for_an_event_is_counted_but_its_time_is_not_exported() {
        let observer = observer();
        for (is_awaiting, seconds) in [(false, 2), (true, 30)] {
            record_get_more(&observer, is_awaiting, Duration::from_secs(seconds));
        }
        let text = observer.exporter.render();
        for line in [
            format!("seawall_operations_total{{{LABELS},outcome=\"ok\"}} 2\n"),
            format!("seawall_operation_duration_seconds_bucket{{{LABELS},le=\"+Inf\"}} 1\n"),
            format!("seawall_operation_duration_seconds_sum{{{LABELS}}} 2\n"),
            "seawall_operation_phase_seconds_count{phase=\"permit\"} 1\n".to_owned(),
            "seawall_operation_phase_seconds_sum{phase=\"permit\"} 2\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
        let (_, sums) = observer.totals.namespaces().remove(0);
        assert_eq!(sums.all_durations().count(), 2);
        assert_eq!(sums.awaited.sum(), Duration::from_secs(30));
    }

    /// Sums saturate at 2^64 ns. A thousand change streams reach this time after 213 days.
    #[test]
    fn the_exported_time_does_not_fall_when_the_time_of_awaiting_operations_saturates() {
        let observer = observer();
        // All these durations belong to the same bucket.
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let century = hours(24 * 365 * 100);
        for (is_awaiting, time) in [
            (false, hours(2)),
            (true, century),
            (true, century * 3),
            (true, century * 3),
        ] {
            record_get_more(&observer, is_awaiting, time);
            let text = observer.exporter.render();
            let line = format!("seawall_operation_duration_seconds_sum{{{LABELS}}} 7200\n");
            assert!(text.contains(&line), "{time:?}: {text}");
        }
    }
}
