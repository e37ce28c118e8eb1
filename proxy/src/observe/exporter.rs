//! The exporter: once a second and before every scrape, it collects the sums of the operations that
//! all threads have counted. It exports these sums as metrics and as tables for the API, and
//! returns the figures of each second for the history.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    iter::repeat,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, SystemTime},
};

use metrics::Label as MetricLabel;
use tokio::time::Instant;

use seawall_locks::{Mutex, MutexGuard};
use seawall_stats::{
    Distribution, Figures, Label, Level, Outcome, Traffic, WeighedSeries, add_weighed,
};

use super::{
    Namespace, NamespaceSums, ObserveError, Recorder, ServerSums, Shape, ShapeRow, ShapeSums,
    histograms::{HistogramText, Histograms},
    logins::{CollectedTraffic, ConnectionTotals},
    metric_handles::Metrics,
    metric_name::MetricName,
    own::CpuTimes,
    phases::{self, Phases},
    protobuf::{self, NativeHistograms},
    registry::OTHER,
    rows::merge_rows,
    shape_series::{KEPT_RANK, ShapeSeries},
    slow_ring::{SlowOperation, SlowRing},
    sums::{Sums, code_or_other},
};

/// Average number of buckets in a [`seawall_stats::FineDistribution`], used to estimate its size.
const FINE_BUCKETS: usize = 100;

/// All sums collected since Seawall started, except the sums of shapes: these are in the registry's
/// rows.
pub(super) struct Collected {
    namespaces: Vec<Option<Box<NamespaceSums>>>,
    servers: Vec<Option<Box<ServerSums>>>,
    /// For each server, the times that operations needed to get a connection to the server
    /// (checkouts).
    checkouts: Vec<Option<Box<Distribution>>>,
    phases: Phases,
    /// The metric series of the heaviest shapes: those whose operations took the most time.
    pub(super) series: ShapeSeries,
    /// When [`Registry::turn_over`](super::registry::Registry::turn_over) was last called. This
    /// function reserves rows of the shape table for shapes whose operations take much time.
    turned_over_at: Instant,
    /// Figures of the operations since the last call of [`Exporter::take_second`], separately for
    /// each label (namespace, shape, server or phase).
    second: WeighedSeries,
    /// Figures for all operations together, since the last call of [`Exporter::take_second`].
    /// Awaiting operations (they wait for an event), and operations to which Seawall itself
    /// replied, are not included.
    whole: Figures,
    /// The latest slow operations.
    slow: SlowRing,
    /// The label of each namespace in the history. The labels are kept, so that they are not
    /// created again every second.
    namespace_labels: HashMap<Namespace, Arc<Label>>,
    /// The start of the time that the sums cover.
    pub(super) started_at: SystemTime,
}

impl Collected {
    pub(super) fn new() -> Result<Self, ObserveError> {
        Ok(Self {
            namespaces: Vec::new(),
            servers: Vec::new(),
            checkouts: Vec::new(),
            phases: Phases::default(),
            series: ShapeSeries::new()?,
            turned_over_at: Instant::now(),
            second: BTreeMap::new(),
            whole: Figures::default(),
            slow: SlowRing::default(),
            namespace_labels: HashMap::new(),
            started_at: SystemTime::now(),
        })
    }

    /// Sets each start of a series that is after `now` to `now`. A start is after `now` if the
    /// clock was set back since that start.
    pub(super) fn limit_starts(&mut self, now: SystemTime) {
        self.started_at = self.started_at.min(now);
        self.series.limit_starts(now);
    }

    /// Estimated memory of the sums, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let namespaces = self.namespaces.len() * (size_of::<NamespaceSums>() + FINE_BUCKETS * 10);
        namespaces
            + self.series.bytes()
            + self.servers.len() * (size_of::<ServerSums>() + FINE_BUCKETS * 10)
    }

    /// Adds figures to the current second, which the next call of [`Exporter::take_second`]
    /// returns.
    fn keep(&mut self, label: &Arc<Label>, figures: &Figures, weight: f64) {
        add_weighed(&mut self.second, label, figures, weight);
    }

    /// Adds the distributions of the time in each phase to the current second. `server` is the
    /// server of the operations; with `None`, the distributions are of all operations. The other
    /// figures of these operations, such as their bytes, are added separately under the label of
    /// the server or of all operations.
    fn keep_phases(&mut self, server: Option<&str>, phases: &Phases) {
        for (phase, durations) in phases.iter().filter(|(_, of)| of.count() > 0) {
            let label = Label::Phase {
                server: server.map(Into::into),
                phase,
            };
            let figures = Figures {
                count: durations.count(),
                durations: durations.clone(),
                ..Figures::default()
            };
            self.keep(&Arc::new(label), &figures, f64::INFINITY);
        }
    }
}

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

/// Collects the recorder's counts, and exports them.
pub struct Exporter {
    pub(super) metrics: Arc<Metrics>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) collected: Mutex<Collected>,
    traffic: Mutex<CollectedTraffic>,
    pub(super) cpu: Mutex<CpuTimes>,
    /// True if the figures of each second are kept for [`Exporter::take_second`].
    keeps_seconds: bool,
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
    pub(super) fn new(recorder: Arc<Recorder>, keeps_seconds: bool) -> Result<Self, ObserveError> {
        let exporter = Self {
            metrics: Arc::clone(&recorder.metrics),
            recorder,
            collected: Mutex::new(Collected::new()?),
            traffic: Mutex::default(),
            cpu: Mutex::default(),
            keeps_seconds,
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
        Ok(exporter)
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

    /// Adds the counts of all threads since the last call to the totals. The totals cover the time
    /// since Seawall started. Must be called once a second; the functions that export totals also
    /// call it.
    pub fn collect(&self) {
        drop(self.collect_all());
    }

    pub(super) fn collect_all(&self) -> MutexGuard<'_, Collected> {
        let mut collected = self.collected.lock();
        let mut fresh = self.recorder.take_sums();
        let rows = self.add_to_registry(&mut fresh, &mut collected);
        self.export(&rows.namespaces, &fresh);
        collected.series.choose(&rows.heaviest);
        let counted = rows.shapes.iter().filter(|row| is_exported(&row.sums));
        counted.for_each(|row| collected.series.add(&row.shape, &row.sums));
        self.export_turnover(&rows);
        if self.keeps_seconds {
            self.keep(&rows, &fresh, &mut collected);
        }
        let codes: Vec<_> = fresh.namespaces.iter().map(codes).collect();
        merge_rows(
            &mut collected.namespaces,
            fresh.namespaces,
            NamespaceSums::merge,
        );
        self.export_codes(&rows.namespaces, &codes, &collected.namespaces);
        merge_rows(&mut collected.servers, fresh.servers, ServerSums::merge);
        let checkouts = &mut collected.checkouts;
        merge_rows(checkouts, fresh.checkouts, Distribution::merge);
        phases::merge(&mut collected.phases, &fresh.phases.whole);
        collected.series.run_upkeep();
        let clients = u32::try_from(self.recorder.clients.count()).unwrap_or(u32::MAX);
        self.metrics
            .gauge(MetricName::ClientConnections, vec![])
            .set(f64::from(clients));
        self.metrics.run_upkeep();
        collected
    }

    /// Adds the new sums of each shape to its row in the registry, and returns copies of the data
    /// of these rows. The registry is unlocked before the copies are exported: a thread that sees a
    /// new shape waits while the registry is locked.
    fn add_to_registry(&self, fresh: &mut Sums, collected: &mut Collected) -> FreshRows {
        let now = SystemTime::now();
        let servers = self.recorder.servers.lock().clone();
        let mut registry = self.recorder.registry.lock();
        let slow = self.recorder.slow_notes.take(&registry, &servers);
        collected.slow.extend(slow);
        let added = registry.add(std::mem::take(&mut fresh.shapes), now);
        let shapes = added.into_iter().filter_map(|(serial, sums)| {
            let (shape, label, weight) = registry.row(serial)?;
            Some(FreshShape {
                shape: shape.clone(),
                label: Arc::clone(label),
                weight,
                sums,
            })
        });
        let shapes = shapes.collect();
        let heaviest = registry.heaviest(KEPT_RANK).into_iter();
        let heaviest = heaviest.filter(|row| is_exported(&row.sums));
        let heaviest = heaviest.map(|row| row.shape.clone()).collect();
        let namespaces = registry.namespaces().cloned().collect();
        let folded = std::mem::take(&mut fresh.folded);
        let elapsed = collected.turned_over_at.elapsed();
        if elapsed >= TURN_OVER_EVERY {
            collected.turned_over_at = Instant::now();
            if registry.turn_over(folded, elapsed, now) {
                self.recorder.generation.fetch_add(1, Ordering::Release);
            }
        } else {
            registry.watch(folded);
        }
        FreshRows {
            namespaces,
            shapes,
            heaviest,
            evicted: registry.evicted(),
        }
    }

    /// Adds the collected figures to the current second of the history.
    fn keep(&self, rows: &FreshRows, fresh: &Sums, collected: &mut Collected) {
        for (namespace, sums) in rows.namespaces.iter().zip(&fresh.namespaces) {
            let Some(sums) = sums else { continue };
            let figures = sums.figures();
            let label = collected.namespace_labels.entry(namespace.clone());
            let label = Arc::clone(label.or_insert_with(|| {
                Arc::new(Label::Namespace {
                    command: namespace.command.into(),
                    db: (*namespace.db).into(),
                    collection: (*namespace.collection).into(),
                })
            }));
            collected.keep(&label, &figures, f64::INFINITY);
        }
        // Awaiting operations (they wait for an event) would raise the average latency. Operations
        // to which Seawall itself replied would lower it. So `whole` contains neither of these two
        // kinds of operations.
        if fresh.whole.count > 0 {
            collected.keep(&Arc::new(Label::Whole), &fresh.whole, f64::INFINITY);
        }
        let servers = self.recorder.servers.lock().clone();
        for (address, sums) in servers.iter().zip(&fresh.servers) {
            if let Some(sums) = sums {
                let label = Arc::new(Label::Server((**address).into()));
                collected.keep(&label, &sums.figures, f64::INFINITY);
            }
        }
        collected.keep_phases(None, &fresh.phases.whole);
        for (address, phases) in servers.iter().zip(&fresh.phases.servers) {
            if let Some(phases) = phases {
                collected.keep_phases(Some(address), phases);
            }
        }
        for shape in &rows.shapes {
            collected.keep(&shape.label, &shape.sums.figures, shape.weight);
        }
        collected.whole.merge(&fresh.whole);
    }

    /// Returns the figures since the last call, for the history: the figures of each series, and
    /// the sum over all operations. The sum excludes awaiting operations (they wait for an event),
    /// and operations to which Seawall itself replied. The figures and the sum are empty unless
    /// [`super::ObserverSettings::keeps_seconds`] is set.
    pub fn take_second(&self) -> (WeighedSeries, Figures) {
        let mut collected = self.collect_all();
        let whole = std::mem::take(&mut collected.whole);
        (std::mem::take(&mut collected.second), whole)
    }

    /// Returns the numbers of connections, logins and refusals since the last call.
    pub(crate) fn take_traffic(&self) -> Traffic {
        self.collect_traffic().take()
    }

    /// Returns the numbers of connections and logins since Seawall started.
    pub(crate) fn connection_totals(&self) -> ConnectionTotals {
        self.collect_traffic().totals()
    }

    fn collect_traffic(&self) -> MutexGuard<'_, CollectedTraffic> {
        let mut collected = self.traffic.lock();
        let mut fresh = self.recorder.clients.take_traffic();
        self.recorder.logins.add_to(&mut fresh);
        collected.add(&fresh);
        collected
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

    fn export(&self, namespaces: &[Namespace], fresh: &Sums) {
        for (namespace, sums) in namespaces.iter().zip(&fresh.namespaces) {
            if let Some(sums) = sums {
                self.export_namespace(namespace, sums);
            }
        }
    }

    fn export_namespace(&self, namespace: &Namespace, sums: &NamespaceSums) {
        let labels = || labels_of(namespace);
        let count = |name, more: Option<MetricLabel>, count| {
            let labels = labels().into_iter().chain(more).collect();
            self.metrics.counter(name, labels).increment(count);
        };
        for (outcome, ended) in Outcome::ALL.iter().zip(sums.outcomes) {
            if ended > 0 {
                let label = MetricLabel::new("outcome", outcome.as_str());
                count(MetricName::OperationsTotal, Some(label), ended);
            }
        }
        let always = [
            (MetricName::OperationRequestBytesTotal, sums.request_bytes),
            (MetricName::OperationReplyBytesTotal, sums.reply_bytes),
            (MetricName::OperationDocumentsTotal, sums.documents),
        ];
        always
            .into_iter()
            .for_each(|(name, sum)| count(name, None, sum));
        // Most namespaces never have streamed or retried operations, so these series are created
        // only when there is such an operation.
        let seldom = [
            (MetricName::OperationsStreamedTotal, sums.streamed),
            (MetricName::OperationsRetriedTotal, sums.retries),
        ];
        for (name, sum) in seldom.into_iter().filter(|(_, sum)| *sum > 0) {
            count(name, None, sum);
        }
    }

    /// Exports the errors in `fresh` by code. `sums` are the totals of each namespace: they count
    /// only a limited number of different codes separately, and all further codes together. The
    /// metrics count these further codes under the label value `other`.
    fn export_codes(
        &self,
        namespaces: &[Namespace],
        fresh: &[Vec<CodeCount>],
        sums: &[Option<Box<NamespaceSums>>],
    ) {
        for ((namespace, codes), sums) in namespaces.iter().zip(fresh).zip(sums) {
            let Some(sums) = sums else { continue };
            for ((name, of), code, errors) in codes {
                let code = code_name(code_or_other(of(sums), *code));
                let labels = labels_of(namespace).into_iter();
                let labels = labels.chain([MetricLabel::new("code", code)]).collect();
                self.metrics.counter(*name, labels).increment(*errors);
            }
        }
    }

    /// Exports the number of operations counted in rows that several shapes share (see
    /// [`Level::Coarse`] and [`Level::Rest`]), and the number of evicted rows.
    fn export_turnover(&self, rows: &FreshRows) {
        for level in [Level::Coarse, Level::Rest] {
            let of_level = rows.shapes.iter().filter(|row| row.shape.level == level);
            let figures = of_level.map(|row| &row.sums.figures);
            let folded: u64 = figures.map(|f| f.count + f.more_count).sum();
            if folded > 0 {
                let labels = vec![MetricLabel::new("level", level.as_str())];
                let name = MetricName::FingerprintFoldedTotal;
                self.metrics.counter(name, labels).increment(folded);
            }
        }
        if rows.evicted > 0 {
            let name = MetricName::FingerprintEvictedTotal;
            self.metrics.counter(name, vec![]).increment(rows.evicted);
        }
    }

    /// Renders all metrics as Prometheus text. Collects the threads' sums first.
    pub(crate) fn render(&self) -> String {
        self.render_with(&self.collect_all())
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
        for (namespace, sums) in self.namespaces_of(collected) {
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

    /// The sums of each namespace.
    pub(super) fn namespaces_of<'c>(
        &self,
        collected: &'c Collected,
    ) -> impl Iterator<Item = (Namespace, &'c NamespaceSums)> {
        let registry = self.recorder.registry.lock();
        let namespaces: Vec<_> = registry.namespaces().cloned().collect();
        let rows = namespaces.into_iter().zip(&collected.namespaces);
        rows.filter_map(|(namespace, sums)| Some((namespace, sums.as_deref()?)))
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
        let collected = self.collect_all();
        let text = self.render_with(&collected);
        let mut natives = NativeHistograms::default();
        self.add_histograms(&collected, &mut natives);
        drop(collected);
        protobuf::encode(&text, &natives)
    }

    /// The sums of each namespace since Seawall started.
    pub fn namespaces(&self) -> Vec<(Namespace, NamespaceSums)> {
        let collected = self.collect_all();
        let registry = self.recorder.registry.lock();
        let rows = registry.namespaces().zip(&collected.namespaces);
        rows.filter_map(|(namespace, sums)| Some((namespace.clone(), sums.as_deref()?.clone())))
            .collect()
    }

    /// The sums of each shape since Seawall started.
    pub fn shapes(&self) -> Vec<ShapeRow> {
        self.collect();
        let registry = self.recorder.registry.lock();
        // Empty rows are excluded. The row of a `getMore` shape is empty if each `getMore` was
        // counted with the operation that opened its cursor.
        let rows = registry.rows();
        let rows = rows.filter(|row| row.sums.figures.count + row.sums.figures.more_count > 0);
        rows.cloned().collect()
    }

    /// At most `limit` slow operations, the latest first. `shape` is the id of a shape; if it is
    /// `None`, the operations of all shapes are returned.
    pub(crate) fn slow_operations(&self, shape: Option<&str>, limit: usize) -> Vec<SlowOperation> {
        let collected = self.collect_all();
        let is_wanted = |slow: &&SlowOperation| {
            let ids = [Some(slow.shape), slow.fine_shape];
            let mut ids = ids.into_iter().flatten();
            shape.is_none_or(|shape| ids.any(|id| id.to_string() == shape))
        };
        let wanted = collected.slow.latest().filter(is_wanted);
        wanted.take(limit).cloned().collect()
    }

    /// Returns two values: the threshold of slow operations, and the number of slow operations
    /// since Seawall started that were not added to the list of slow operations. An operation is
    /// not added if too many operations, or too many operations of its user, were slow in that
    /// second.
    pub(crate) fn slow_limits(&self) -> (Duration, u64) {
        let left_out = self.recorder.slow_notes.left_out();
        (self.recorder.slow_threshold(), left_out)
    }

    /// The sums of each server since Seawall started.
    pub fn servers(&self) -> Vec<(Arc<str>, ServerSums)> {
        let collected = self.collect_all();
        let servers = self.recorder.servers.lock().clone();
        let rows = servers.into_iter().zip(&collected.servers);
        rows.filter_map(|(address, sums)| Some((address, sums.as_deref()?.clone())))
            .collect()
    }
}

/// Copies of data in the registry's rows, made while the registry is locked and used afterwards.
struct FreshRows {
    namespaces: Vec<Namespace>,
    shapes: Vec<FreshShape>,
    /// The heaviest shapes (those whose operations took the most time), the heaviest first.
    heaviest: Vec<Shape>,
    /// Number of rows evicted since the last collection.
    evicted: u64,
}

struct FreshShape {
    shape: Shape,
    label: Arc<Label>,
    weight: f64,
    sums: ShapeSums,
}

/// True if a shape with these sums is exported as metrics. It is not exported if all its operations
/// wait for an event (are awaiting). It is also not exported if its row is empty. The row of a
/// `getMore` shape is empty if each `getMore` was counted with the shape that opened its cursor.
fn is_exported(sums: &ShapeSums) -> bool {
    sums.figures.count > 0 || !sums.figures.more_time.is_zero()
}

fn labels_of(namespace: &Namespace) -> Vec<MetricLabel> {
    vec![
        MetricLabel::new("command", namespace.command),
        MetricLabel::new("db", namespace.db.to_string()),
        MetricLabel::new("collection", namespace.collection.to_string()),
    ]
}

/// A metric with the label `code`, and the function that returns its counts by code.
type ByCode = (MetricName, fn(&NamespaceSums) -> &HashMap<i32, u64>);

/// A metric with the label `code`, one code, and the count of that code.
type CodeCount = (ByCode, i32, u64);

const BY_CODE: [ByCode; 3] = [
    (MetricName::OperationErrorsTotal, |sums| &sums.codes),
    (MetricName::WriteErrorsTotal, |sums| &sums.write_error_codes),
    (MetricName::WriteConcernErrorsTotal, |sums| {
        &sums.write_concern_codes
    }),
];

/// All counts by code of one namespace, for each metric with the label `code`.
fn codes(sums: &Option<Box<NamespaceSums>>) -> Vec<CodeCount> {
    let Some(sums) = sums else {
        return Vec::new();
    };
    let of = |by: ByCode| by.1(sums).iter().map(move |(code, n)| (by, *code, *n));
    BY_CODE.into_iter().flat_map(of).collect()
}

/// Minimum time between two runs of [`Registry::turn_over`](super::registry::Registry::turn_over).
/// So scrapes cause no extra runs. The time is below one second, so that each second has a run.
const TURN_OVER_EVERY: Duration = Duration::from_millis(900);

/// The value of the label `code` for an error code: the number, or `other` for codes that are
/// counted together.
pub(crate) fn code_name(code: i32) -> String {
    match code {
        super::sums::OTHER_CODES => OTHER.to_owned(),
        code => code.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::observe::Observer;
    use seawall_command::CommandBytes;

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
        let (_, sums) = observer.exporter.namespaces().remove(0);
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
