//! What is counted: every operation, login and connection, once and exactly.
//!
//! The path pays for one look-up and a few additions in a table of its own thread; a collector in the control
//! plane takes the tables away once a second, and before every scrape, and adds them to what `/metrics` and
//! the API show. Nothing here waits for a server or a client, and nothing is dropped.
//!
//! Invariants: the sums by (command, database, collection) are exact whatever the tables' limits; an
//! operation's phases add up to its total.

mod clients;
mod exporter;
mod metric_name;
mod observation;
mod servers;
mod storms;
mod tables;

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use metrics::Label;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    history::Turn,
    shape::{self, Input, ShapeId},
};

pub use self::{
    clients::{ClientRow, ConnectedClient},
    metric_name::{MetricKind, MetricName},
    observation::{OUTCOMES, Observation, Outcome, PHASES, Phase},
    servers::{CloseReason, Relayed, ServerMetrics},
    storms::{Crowd, Departure, Names, Stage, Storm},
    tables::{
        Namespace, NamespaceIndex, NamespaceSums, OTHER, Place, Shape, ShapeIndex, ShapeSums,
    },
};
use self::{
    exporter::{Exporter, add_to_histogram},
    storms::{Leaving, Storms, Totals},
    tables::{Record, Registry, Sums},
};

/// Shapes shown in `/metrics`; the rest are summed up as `other`.
pub const EXPORTED_SHAPES: usize = 200;

/// Longest shape text in `/metrics`, in bytes.
const EXPORTED_TEXT_BYTES: usize = 256;

/// Shards: enough that threads of the data plane do not meet on one.
const SHARDS: usize = 16;

/// The metrics could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("setting up metrics: {0}")]
pub struct ObserveError(#[from] metrics_exporter_prometheus::BuildError);

#[derive(Default)]
struct Shard {
    places: HashMap<(ShapeId, bool), Place>,
    sums: Sums,
}

/// All that has been collected.
#[derive(Default)]
struct Collected {
    sums: Sums,
    exported_shapes: HashSet<ShapeId>,
}

/// The place where everything is counted. One a process, or one a test.
pub struct Observer {
    exporter: Arc<Exporter>,
    shards: Vec<Mutex<Shard>>,
    registry: Mutex<Registry>,
    collected: Mutex<Collected>,
    counts_shapes: bool,
    clients: Mutex<HashMap<i32, ClientRow>>,
    next_client: AtomicI32,
    storms: Mutex<Storms>,
    totals: Arc<Totals>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Observer {
    /// With so many rows at most; without shapes, operations are still counted by namespace.
    ///
    /// # Errors
    /// [`ObserveError`] if the exporter refuses its own buckets.
    pub fn new(
        counts_shapes: bool,
        max_shapes: usize,
        max_namespaces: usize,
    ) -> Result<Self, ObserveError> {
        Ok(Self {
            exporter: Arc::new(Exporter::new()?),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            registry: Mutex::new(Registry::new(max_shapes, max_namespaces)),
            collected: Mutex::default(),
            counts_shapes,
            clients: Mutex::default(),
            next_client: AtomicI32::new(1),
            storms: Mutex::default(),
            totals: Arc::default(),
        })
    }

    /// Begins to observe an operation that a server will answer. `now` is when its last byte was read.
    pub fn begin(&self, input: &Input<'_>, request_bytes: usize, now: Instant) -> Observation<'_> {
        Observation::begin(
            self,
            self.place(input, self.counts_shapes),
            request_bytes,
            now,
        )
    }

    /// Begins to observe a command of the handshake that a server will answer: it has no shape.
    pub fn begin_unshaped(
        &self,
        input: &Input<'_>,
        request_bytes: usize,
        now: Instant,
    ) -> Observation<'_> {
        Observation::begin(self, self.place(input, false), request_bytes, now)
    }

    /// Counts a command that Seawall answered itself.
    pub fn local(
        &self,
        input: &Input<'_>,
        request_bytes: usize,
        reply_bytes: usize,
        began: Instant,
    ) {
        let place = self.place(input, false);
        let mut observation = Observation::begin(self, place, request_bytes, began);
        observation.add_reply(reply_bytes, 0);
        observation.finish(Outcome::Local, Instant::now());
    }

    fn place(&self, input: &Input<'_>, counts_shapes: bool) -> Place {
        let fingerprint = shape::fingerprint(input);
        let key = (fingerprint.shape, counts_shapes);
        if let Some(place) = self.shard().lock().places.get(&key) {
            return *place;
        }
        // The text is made outside the shard's lock; two threads may both make it, and get the same row.
        let description = shape::describe(input);
        let mut registry = self.registry.lock();
        let now = SystemTime::now();
        let place = registry.place(fingerprint.shape, &description, counts_shapes, now);
        let is_folded = registry.folded > 0;
        drop(registry);
        if !is_folded {
            self.shard().lock().places.insert(key, place);
        }
        place
    }

    fn record(&self, record: &Record) {
        self.shard().lock().sums.add(record);
    }

    fn shard(&self) -> &Mutex<Shard> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        let mine = MINE.get() % self.shards.len();
        self.shards
            .get(mine)
            .expect("the remainder is under the length")
    }

    /// A client was accepted.
    pub fn client_connected(self: &Arc<Self>, peer: &str, ip: Option<IpAddr>) -> ConnectedClient {
        let id = self.next_client.fetch_add(1, Ordering::Relaxed);
        let row = ClientRow {
            id,
            peer: peer.to_owned(),
            connected_at: SystemTime::now(),
            user: None,
            application: None,
            driver: None,
        };
        self.storms.lock().arrived();
        self.clients.lock().insert(id, row);
        self.exporter
            .counter(MetricName::ClientConnectionsTotal, vec![])
            .increment(1);
        ConnectedClient {
            observer: Arc::clone(self),
            id,
            ip,
            since: Instant::now(),
            stage: Stage::default(),
            how: None,
        }
    }

    fn client_left(&self, leaving: &Leaving<'_>) {
        let labels = [
            ("stage", leaving.stage.as_str()),
            ("how", leaving.how.as_str()),
        ];
        self.count(MetricName::ClientDeparturesTotal, &labels);
        self.storms.lock().left(leaving);
    }

    /// Looks once a second whether a storm began or ended, and says so.
    pub fn watch_storms(&self) {
        let turn = self.storms.lock().tick(&self.totals);
        let Some((turn, storm)) = turn else {
            return;
        };
        let is_active = turn == Turn::Began;
        self.exporter
            .gauge(MetricName::StormActive, vec![])
            .set(f64::from(u8::from(is_active)));
        let crowd = &storm.crowd;
        let first = |names: &Names| names.ranked().first().map(|(name, _)| (*name).to_owned());
        let (network, application) = (first(&crowd.networks), first(&crowd.applications));
        if is_active {
            self.count(MetricName::StormsTotal, &[]);
            tracing::warn!(
                arrivals = crowd.arrivals,
                peak = storm.peak_arrivals,
                usual = storm.usual,
                network,
                application,
                "storm began"
            );
        } else {
            tracing::warn!(
                arrivals = crowd.arrivals,
                peak = storm.peak_arrivals,
                connections_absorbed = storm.connections_absorbed(),
                authentications_absorbed = storm.authentications_absorbed(),
                network,
                application,
                "storm ended"
            );
        }
    }

    /// Whether too little has been seen since the start to tell a storm.
    pub fn learns_what_is_usual(&self) -> bool {
        self.storms.lock().is_learning()
    }

    /// The storm that there is, if any, and those before it, the latest first.
    pub fn storms(&self) -> Vec<Storm> {
        self.storms.lock().list()
    }

    /// Clients connected now.
    pub fn client_connections(&self) -> usize {
        self.clients.lock().len()
    }

    /// The clients connected now, at most so many of them, in order of arrival.
    pub fn clients(&self, limit: usize) -> Vec<ClientRow> {
        let mut rows: Vec<_> = self.clients.lock().values().cloned().collect();
        rows.sort_by_key(|row| row.id);
        rows.truncate(limit);
        rows
    }

    /// A client was turned away before it was served.
    pub fn client_refused(&self, reason: &'static str) {
        self.count(
            MetricName::ClientConnectionsRefusedTotal,
            &[("reason", reason)],
        );
    }

    /// A client's login ended; `time` is from its `saslStart`.
    pub fn client_authenticated(
        &self,
        mechanism: &'static str,
        result: &'static str,
        time: Duration,
    ) {
        let labels = [("mechanism", mechanism), ("result", result)];
        self.count(MetricName::ClientAuthenticationsTotal, &labels);
        self.totals
            .client_authentications
            .fetch_add(1, Ordering::Relaxed);
        let labels = labels
            .iter()
            .map(|(key, value)| Label::new(*key, *value))
            .collect();
        let histogram = self
            .exporter
            .histogram(MetricName::ClientAuthenticationSeconds, labels);
        histogram.record(time.as_secs_f64());
    }

    /// An operation was refused by Seawall.
    pub fn shed(&self, reason: &'static str) {
        self.count(MetricName::OperationsShedTotal, &[("reason", reason)]);
    }

    /// A login waits for its turn among its user's.
    pub fn login_delayed(&self) {
        self.count(MetricName::LoginsDelayedTotal, &[]);
    }

    /// A failure was made.
    pub fn fault_injected(&self, kind: &'static str) {
        self.count(MetricName::FaultsInjectedTotal, &[("kind", kind)]);
    }

    /// Something was not understood, or left out of statistics.
    pub fn unobserved(&self, reason: &'static str) {
        self.count(MetricName::UnobservedTotal, &[("reason", reason)]);
    }

    /// A client had left before its handshake was gone on with; `stage` is how far it had come.
    pub fn client_not_served(&self, stage: &'static str) {
        self.count(MetricName::ClientsGoneTotal, &[("stage", stage)]);
    }

    fn client_gone(&self, phase: Phase) {
        self.count(MetricName::ClientsGoneTotal, &[("stage", phase.as_str())]);
    }

    fn count(&self, name: MetricName, labels: &[(&'static str, &'static str)]) {
        let labels = labels
            .iter()
            .map(|(key, value)| Label::new(*key, *value))
            .collect();
        self.exporter.counter(name, labels).increment(1);
    }

    /// Handles on a server's metrics.
    pub fn server(&self, address: &str) -> ServerMetrics {
        ServerMetrics::new(
            Arc::clone(&self.exporter),
            Arc::clone(&self.totals),
            address,
        )
    }

    /// Takes the threads' figures into the totals. Called once a second and before they are shown.
    pub fn collect(&self) {
        let mut collected = self.collected.lock();
        let mut fresh = Sums::default();
        for shard in &self.shards {
            let taken = std::mem::take(&mut shard.lock().sums);
            fresh.merge(taken);
        }
        self.export(&fresh);
        self.export_shapes(&fresh, &mut collected.exported_shapes);
        collected.sums.merge(fresh);
        drop(collected);
        let clients = u32::try_from(self.client_connections()).unwrap_or(u32::MAX);
        self.exporter
            .gauge(MetricName::ClientConnections, vec![])
            .set(f64::from(clients));
        self.exporter.run_upkeep();
    }

    fn export(&self, fresh: &Sums) {
        let namespaces = self.registry.lock().namespaces().to_vec();
        for (namespace, sums) in namespaces.iter().zip(&fresh.namespaces) {
            if let Some(sums) = sums {
                self.export_namespace(namespace, sums);
            }
        }
        for (phase, distribution) in Phase::ALL.iter().zip(&fresh.phases) {
            let labels = vec![Label::new("phase", phase.as_str())];
            let histogram = self
                .exporter
                .histogram(MetricName::OperationPhaseSeconds, labels);
            add_to_histogram(&histogram, distribution);
        }
    }

    fn export_namespace(&self, namespace: &Namespace, sums: &NamespaceSums) {
        let labels = || {
            vec![
                Label::new("command", namespace.command),
                Label::new("db", namespace.db.to_string()),
                Label::new("collection", namespace.collection.to_string()),
            ]
        };
        for (outcome, count) in Outcome::ALL.iter().zip(sums.outcomes) {
            if count > 0 {
                let mut labels = labels();
                labels.push(Label::new("outcome", outcome.as_str()));
                self.exporter
                    .counter(MetricName::OperationsTotal, labels)
                    .increment(count);
            }
        }
        let counters = [
            (MetricName::OperationRequestBytesTotal, sums.request_bytes),
            (MetricName::OperationReplyBytesTotal, sums.reply_bytes),
            (MetricName::OperationDocumentsTotal, sums.documents),
        ];
        // Most namespaces never have one, and need no series.
        let streamed = (MetricName::OperationsStreamedTotal, sums.streamed);
        let streamed = Some(streamed).filter(|(_, count)| *count > 0);
        for (name, count) in counters.into_iter().chain(streamed) {
            self.exporter.counter(name, labels()).increment(count);
        }
        let durations = self
            .exporter
            .histogram(MetricName::OperationDurationSeconds, labels());
        add_to_histogram(&durations, &sums.durations);
    }

    /// The first shapes to come are exported by name; a series, once begun, goes on. Which shapes are the
    /// heaviest is for the API to say: series that come and go would make their counters lie.
    fn export_shapes(&self, fresh: &Sums, exported: &mut HashSet<ShapeId>) {
        let shapes = self.registry.lock().shapes().to_vec();
        for ((shape, _), sums) in shapes.iter().zip(&fresh.shapes) {
            let Some(sums) = sums else { continue };
            if exported.len() < EXPORTED_SHAPES && exported.insert(shape.id) {
                self.export_shape_info(shape);
            }
            let name = match exported.contains(&shape.id) {
                true => shape.id.to_string(),
                false => OTHER.to_owned(),
            };
            let label = || vec![Label::new("shape", name.clone())];
            let counter = self
                .exporter
                .counter(MetricName::ShapeOperationsTotal, label());
            counter.increment(sums.count);
            let histogram = self
                .exporter
                .histogram(MetricName::ShapeDurationSeconds, label());
            add_to_histogram(&histogram, &sums.durations);
        }
    }

    fn export_shape_info(&self, shape: &Shape) {
        let end = shape
            .text
            .floor_char_boundary(EXPORTED_TEXT_BYTES.min(shape.text.len()));
        let labels = vec![
            Label::new("shape", shape.id.to_string()),
            Label::new("command", shape.namespace.command),
            Label::new("db", shape.namespace.db.to_string()),
            Label::new("collection", shape.namespace.collection.to_string()),
            Label::new("text", shape.text.get(..end).unwrap_or_default().to_owned()),
        ];
        self.exporter.gauge(MetricName::ShapeInfo, labels).set(1.0);
    }

    /// All metrics as Prometheus text, everything counted so far included.
    pub fn render(&self) -> String {
        self.collect();
        self.exporter.render()
    }

    /// The sums by namespace so far.
    pub fn namespaces(&self) -> Vec<(Namespace, NamespaceSums)> {
        self.collect();
        let collected = self.collected.lock();
        let namespaces = self.registry.lock().namespaces().to_vec();
        let sums = collected.sums.namespaces.iter();
        let rows = namespaces.into_iter().zip(sums);
        rows.filter_map(|(n, sums)| Some((n, sums.as_deref()?.clone())))
            .collect()
    }

    /// The sums by shape so far, with the time each was first seen.
    pub fn shapes(&self) -> Vec<(Shape, SystemTime, ShapeSums)> {
        self.collect();
        let collected = self.collected.lock();
        let shapes = self.registry.lock().shapes().to_vec();
        let rows = shapes.into_iter().zip(&collected.sums.shapes);
        rows.filter_map(|((shape, seen), sums)| Some((shape, seen, sums.as_deref()?.clone())))
            .collect()
    }
}
