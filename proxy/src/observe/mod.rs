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
mod names;
mod observation;
mod own;
mod protobuf;
mod registry;
mod servers;
mod shape_series;
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
    command::statements,
    history::Turn,
    shape::{self, Collection, Description, Fingerprint, Input, LearnedNames, NameKey, ShapeId},
};

pub use self::{
    clients::{ClientRow, ConnectedClient},
    collect::{WeighedSeries, code_name},
    metric_name::{MetricKind, MetricName},
    observation::{OUTCOMES, Observation, Origin, Outcome, PHASES, Phase},
    own::Memory,
    protobuf::PROTOBUF,
    registry::{Namespace, OTHER, Shape, ShapeRow},
    servers::{CloseReason, Relayed, ServerMetrics},
    slow_log::{Entry as SlowLogEntry, SlowLog, SlowLogSettings},
    storms::{Crowd, Departure, Names, Stage, Storm},
    sums::{NamespaceIndex, NamespaceSums, Place, ServerIndex, ServerSums, ShapeIndex, ShapeSums},
};
use self::{
    collect::Collected,
    exporter::Exporter,
    names::NameTable,
    registry::Registry,
    storms::{Leaving, Storms, Totals},
    sums::{Record, Sums},
};

/// Servers that are told apart. A deployment has far fewer; one whose members' addresses change all the time does not.
const MAX_SERVERS: usize = 1_000;

/// What is counted, and in how many rows.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether shapes are counted; operations are by namespace in any case.
    pub counts_shapes: bool,
    /// Rows of shapes, but for each namespace's rest.
    pub max_shapes: usize,
    /// What fields' names are told by, if not by themselves.
    pub name_key: Option<NameKey>,
    /// Rows of namespaces.
    pub max_namespaces: usize,
    /// Whether what each second brought is kept for the history, until it is taken.
    pub keeps_seconds: bool,
}

/// Places that a thread remembers; beyond, it begins anew.
const REMEMBERED_PLACES: usize = 16_384;

/// Shards: enough that threads of the data plane do not meet on one.
const SHARDS: usize = 64;

/// The metrics could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("setting up metrics: {0}")]
pub struct ObserveError(#[from] metrics_exporter_prometheus::BuildError);

/// What a command is to statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of a client that has logged in.
    Operation,
    /// Of the handshake, or of a client that is still to log in.
    Handshake,
}

#[derive(Default)]
struct Shard {
    places: HashMap<(ShapeId, bool), Place>,
    /// What the registry and the names were when these were looked up.
    generation: u64,
    /// What has been learned of names, if anything.
    names: Option<Arc<LearnedNames>>,
    /// Look-ups that found their place; when it comes round, the text is checked.
    hits: u16,
    sums: Sums,
}

/// The place where everything is counted. One a process, or one a test.
pub struct Observer {
    exporter: Arc<Exporter>,
    shards: Vec<Mutex<Shard>>,
    registry: Mutex<Registry>,
    /// Changes when rows are taken away, and when names are learned.
    generation: AtomicU64,
    names: NameTable,
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
            names: NameTable::default(),
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
        let place = self.place(input, Kind::Operation);
        let mut observation = Observation::begin(self, place, request_bytes, now);
        observation.has_statements(statements(input));
        observation
    }

    /// Begins to observe a command of the handshake that a server will answer: it has no shape.
    pub fn begin_unshaped(
        &self,
        input: &Input<'_>,
        request_bytes: usize,
        now: Instant,
    ) -> Observation<'_> {
        Observation::begin(self, self.place(input, Kind::Handshake), request_bytes, now)
    }

    /// Counts a command that Seawall answered itself; `error_code` if that was an error.
    pub fn local(
        &self,
        input: &Input<'_>,
        request_bytes: usize,
        reply_bytes: usize,
        error_code: Option<i32>,
        began: Instant,
    ) {
        let place = self.place(input, Kind::Handshake);
        let mut observation = Observation::begin(self, place, request_bytes, began);
        observation.add_reply(reply_bytes, 0);
        if let Some(code) = error_code {
            observation.fails_with(code);
        }
        observation.finish(Outcome::Local, Instant::now());
    }

    fn place(&self, input: &Input<'_>, kind: Kind) -> Place {
        let counts_shapes = kind == Kind::Operation && self.settings.counts_shapes;
        let generation = self.generation.load(Ordering::Acquire);
        let mut shard = self.shard().lock();
        if shard.generation != generation || shard.places.len() >= REMEMBERED_PLACES {
            shard.places.clear();
            shard.generation = generation;
            shard.names = self.names.learned();
        }
        let fingerprint = match kind {
            Kind::Operation => fingerprint(input, shard.names.as_deref()),
            Kind::Handshake => without_names(&shape::fingerprint(input)),
        };
        let key = (fingerprint.shape, counts_shapes);
        if let Some(place) = shard.places.get(&key) {
            let place = *place;
            shard.hits = shard.hits.wrapping_add(1);
            if shard.hits == 0 && counts_shapes {
                let names = shard.names.clone();
                drop(shard);
                self.check_text(place, input, names.as_deref());
            }
            return place;
        }
        let names = shard.names.clone();
        drop(shard);
        if counts_shapes && self.learns_from(input) {
            return self.place(input, kind);
        }
        let now = SystemTime::now();
        let describe = || self.describe(input, names.as_deref());
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

    /// Whether the names of a command are one too many below some prefix, so that it has another shape now.
    fn learns_from(&self, input: &Input<'_>) -> bool {
        let learned = self.names.meet(input);
        if learned > 0 {
            self.exporter
                .counter(MetricName::FingerprintNamesLearnedTotal, vec![])
                .increment(learned);
            self.generation.fetch_add(1, Ordering::Release);
        }
        learned > 0
    }

    fn describe(&self, input: &Input<'_>, names: Option<&LearnedNames>) -> Description {
        let none = LearnedNames::default();
        let names = names.unwrap_or(&none);
        names.describe(input, self.settings.name_key.as_ref())
    }

    /// Two shapes of one hash would count in one row. That is next to impossible, and the check guards as well the two
    /// walks over a command, which make the hash and the text.
    fn check_text(&self, place: Place, input: &Input<'_>, names: Option<&LearnedNames>) {
        let Some(index) = place.shape.filter(|_| place.folded.is_none()) else {
            return;
        };
        let text = self.describe(input, names).shape;
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

fn fingerprint<'a>(input: &Input<'a>, names: Option<&LearnedNames>) -> Fingerprint<'a> {
    match names {
        None => shape::fingerprint(input),
        Some(names) => names.fingerprint(input),
    }
}

/// What is counted of a command of the handshake. Anybody may connect and name databases and collections that there are
/// none of: rows are not given to them.
fn without_names<'a>(fingerprint: &Fingerprint<'a>) -> Fingerprint<'a> {
    let db = match fingerprint.db {
        b"admin" => "admin",
        _ => OTHER,
    };
    Fingerprint {
        shape: ShapeId::of_rest(fingerprint.op, db, ""),
        db: db.as_bytes(),
        collection: Collection::NONE,
        ..*fingerprint
    }
}

#[cfg(test)]
impl Observer {
    /// For tests in which shapes do not matter.
    pub fn without_shapes() -> Self {
        let settings = Settings {
            counts_shapes: false,
            max_shapes: 1,
            name_key: None,
            max_namespaces: 1,
            keeps_seconds: false,
        };
        Self::new(settings, None).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn strangers_take_no_rows_of_the_table() {
        let settings = Settings {
            counts_shapes: true,
            max_shapes: 100,
            name_key: None,
            max_namespaces: 10,
            keeps_seconds: false,
        };
        let observer = Observer::new(settings, None).unwrap();
        let now = Instant::now();
        for number in 0..1_000 {
            let body =
                doc! {"find": format!("c{number}"), "filter": {}, "$db": format!("d{number}")};
            let body = body.to_vec().unwrap();
            let input = Input {
                body: &body,
                sequences: &[],
            };
            observer.local(&input, 100, 100, None, now);
        }
        let body = doc! {"find": "orders", "filter": {"a": 1}, "$db": "shop"}
            .to_vec()
            .unwrap();
        let input = Input {
            body: &body,
            sequences: &[],
        };
        observer.begin(&input, 100, now).finish(Outcome::Ok, now);
        let rows = observer.namespaces();
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, sums)| {
                (
                    &*name.db,
                    &*name.collection,
                    sums.outcomes.iter().sum::<u64>(),
                )
            })
            .collect();
        assert_eq!(rows, [(OTHER, "", 1_000), ("shop", "orders", 1)]);
    }
}
