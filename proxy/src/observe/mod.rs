//! What is counted: every operation, login and connection, once and exactly.
//!
//! The path pays for one look-up and a few additions in a table of its own thread; a collector in the control
//! plane takes the tables away once a second, and before every scrape, and adds them to what `/metrics` and
//! the API show. Nothing here waits for a server or a client, and nothing is dropped.
//!
//! Invariants: the sums by (command, database, collection) are exact whatever the tables' limits; an
//! operation's phases add up to its total.

mod clients;
mod collect;
mod exporter;
mod metric_name;
mod observation;
mod own;
mod protobuf;
mod registry;
mod servers;
mod sketch;
mod slow;
mod slow_log;
mod storms;
mod sums;

use std::{
    cell::Cell,
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering},
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
    collect::{WeighedSeries, code_name},
    metric_name::{MetricKind, MetricName},
    observation::{OUTCOMES, Observation, Origin, Outcome, PHASES, Phase},
    own::Memory,
    protobuf::PROTOBUF,
    registry::{Level, Namespace, OTHER, Shape, ShapeRow},
    servers::{CloseReason, Relayed, ServerMetrics},
    slow_log::{Entry as SlowLogEntry, SlowLog, SlowLogSettings},
    storms::{Crowd, Departure, Names, Stage, Storm},
    sums::{NamespaceIndex, NamespaceSums, Place, ServerIndex, ServerSums, ShapeIndex, ShapeSums},
};
use self::{
    collect::Collected,
    exporter::Exporter,
    registry::Registry,
    storms::{Leaving, Storms, Totals},
    sums::{Record, Sums},
};

/// Servers that are told apart. A deployment has far fewer; one whose members' addresses change all the time does not.
const MAX_SERVERS: usize = 1_000;

/// What is counted, and in how many rows.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether shapes are counted; operations are by namespace in any case.
    pub counts_shapes: bool,
    /// Rows of single shapes.
    pub max_shapes: usize,
    /// Rows of namespaces.
    pub max_namespaces: usize,
    /// Whether what each second brought is kept for the history, until it is taken.
    pub keeps_seconds: bool,
}

/// Places that a thread remembers; beyond, it begins anew.
const REMEMBERED_PLACES: usize = 65_536;

/// Shards: enough that threads of the data plane do not meet on one.
const SHARDS: usize = 16;

/// The metrics could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("setting up metrics: {0}")]
pub struct ObserveError(#[from] metrics_exporter_prometheus::BuildError);

#[derive(Default)]
struct Shard {
    places: HashMap<(ShapeId, bool), Place>,
    /// What the registry was when these were looked up.
    generation: u64,
    /// Look-ups that found their place; when it comes round, the text is checked.
    hits: u16,
    sums: Sums,
}

/// The place where everything is counted. One a process, or one a test.
pub struct Observer {
    exporter: Arc<Exporter>,
    shards: Vec<Mutex<Shard>>,
    registry: Mutex<Registry>,
    /// Changes when rows are taken away.
    generation: AtomicU64,
    collected: Mutex<Collected>,
    servers: Mutex<Vec<Arc<str>>>,
    settings: Settings,
    slow_log: Option<SlowLog>,
    cpu: Mutex<own::CpuTimes>,
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
    /// Counts as told, and logs what is slow.
    ///
    /// # Errors
    /// [`ObserveError`] if the exporter refuses its own buckets.
    pub fn new(settings: Settings, slow_log: Option<SlowLog>) -> Result<Self, ObserveError> {
        Ok(Self {
            exporter: Arc::new(Exporter::new(None)?),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            registry: Mutex::new(Registry::new(settings.max_shapes, settings.max_namespaces)),
            generation: AtomicU64::new(0),
            collected: Mutex::new(Collected::new()?),
            servers: Mutex::default(),
            settings,
            slow_log,
            cpu: Mutex::default(),
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
            self.place(input, self.settings.counts_shapes),
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
        let generation = self.generation.load(Ordering::Acquire);
        {
            let mut shard = self.shard().lock();
            if shard.generation != generation || shard.places.len() >= REMEMBERED_PLACES {
                shard.places.clear();
                shard.generation = generation;
            }
            if let Some(place) = shard.places.get(&key) {
                let place = *place;
                shard.hits = shard.hits.wrapping_add(1);
                let is_checked = shard.hits == 0 && counts_shapes;
                drop(shard);
                if is_checked {
                    self.check_text(place, input);
                }
                return place;
            }
        }
        let now = SystemTime::now();
        let describe = || shape::describe(input);
        let mut registry = self.registry.lock();
        let place = registry.place(&fingerprint, counts_shapes, now, describe);
        drop(registry);
        let mut shard = self.shard().lock();
        // Looked up before rows were taken away, it may be wrong for good.
        let is_current = self.generation.load(Ordering::Acquire) == generation;
        if is_current && shard.generation == generation {
            shard.places.insert(key, place);
        }
        place
    }

    /// Two shapes of one hash would count in one row. That is next to impossible, and the check guards as well the two
    /// walks over a command, which make the hash and the text.
    fn check_text(&self, place: Place, input: &Input<'_>) {
        let Some(index) = place.shape.filter(|_| place.folded.is_none()) else {
            return;
        };
        let text = shape::describe(input).shape;
        let registry = self.registry.lock();
        let is_wrong = registry
            .row(index.serial)
            .is_some_and(|(shape, _, _)| *shape.text != *text);
        drop(registry);
        if is_wrong {
            self.count(MetricName::FingerprintMismatchTotal, &[]);
        }
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

    /// A new client waits for its turn.
    pub fn arrival_delayed(&self) {
        self.count(MetricName::ArrivalsDelayedTotal, &[]);
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
            self.server_index(address),
        )
    }

    /// The server's row; servers beyond the bound share the last one.
    fn server_index(&self, address: &str) -> ServerIndex {
        let mut servers = self.servers.lock();
        let known = servers.iter().position(|known| **known == *address);
        let index = known.unwrap_or_else(|| {
            match servers.len() {
                len if len + 1 < MAX_SERVERS => servers.push(address.into()),
                len if len < MAX_SERVERS => servers.push(OTHER.into()),
                _ => {}
            }
            servers.len() - 1
        });
        ServerIndex(index)
    }
}
