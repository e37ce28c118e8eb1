//! The totals: the sums of all operations, logins and connections since Seawall started. Once a
//! second and before every scrape, the counts of all threads are collected and added to these sums.
//! The API reads the totals, the history takes the figures of each second, and the counters of the
//! metrics grow by the collected counts.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, atomic::Ordering},
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
    logins::{CollectedTraffic, ConnectionTotals},
    metric_handles::Metrics,
    metric_name::MetricName,
    phases::{self, Phases},
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
    pub(super) servers: Vec<Option<Box<ServerSums>>>,
    /// For each server, the times that operations needed to get a connection to the server
    /// (checkouts).
    pub(super) checkouts: Vec<Option<Box<Distribution>>>,
    pub(super) phases: Phases,
    /// The metric series of the heaviest shapes: those whose operations took the most time.
    pub(super) series: ShapeSeries,
    /// When [`Registry::turn_over`](super::registry::Registry::turn_over) was last called. This
    /// function reserves rows of the shape table for shapes whose operations take much time.
    turned_over_at: Instant,
    /// Figures of the operations since the last call of [`Totals::take_second`], separately for
    /// each label (namespace, shape, server or phase).
    second: WeighedSeries,
    /// Figures for all operations together, since the last call of [`Totals::take_second`].
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
    fn new() -> Result<Self, ObserveError> {
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
    fn bytes(&self) -> usize {
        let namespaces = self.namespaces.len() * (size_of::<NamespaceSums>() + FINE_BUCKETS * 10);
        namespaces
            + self.series.bytes()
            + self.servers.len() * (size_of::<ServerSums>() + FINE_BUCKETS * 10)
    }

    /// Adds figures to the current second, which the next call of [`Totals::take_second`]
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

/// The sums of all operations, logins and connections since Seawall started, and the latest slow
/// operations.
pub struct Totals {
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
    collected: Mutex<Collected>,
    traffic: Mutex<CollectedTraffic>,
    /// True if the figures of each second are kept for [`Totals::take_second`].
    keeps_seconds: bool,
}

impl fmt::Debug for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Totals").finish_non_exhaustive()
    }
}

impl Totals {
    pub(super) fn new(recorder: Arc<Recorder>, keeps_seconds: bool) -> Result<Self, ObserveError> {
        Ok(Self {
            metrics: Arc::clone(&recorder.metrics),
            recorder,
            collected: Mutex::new(Collected::new()?),
            traffic: Mutex::default(),
            keeps_seconds,
        })
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

    /// The sums of each namespace since Seawall started.
    pub fn namespaces(&self) -> Vec<(Namespace, NamespaceSums)> {
        let collected = self.collect_all();
        let rows = self.namespaces_of(&collected);
        rows.map(|(namespace, sums)| (namespace, sums.clone()))
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

    /// Estimated memory of the tables of statistics in bytes: their rows and sums, the counted
    /// field names, and the cached look-ups.
    pub(super) fn table_bytes(&self) -> usize {
        let collected = self.collected.lock();
        let recorder = &self.recorder;
        let rows = recorder.registry.lock().bytes();
        rows + collected.bytes() + recorder.names.bytes() + recorder.cache_bytes()
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
