//! Operation statistics: counts every operation, login and connection exactly once.
//!
//! An operation costs its thread one look-up and a few additions in the thread's own table. A
//! collector in the control plane takes the tables once a second and before every scrape, and adds
//! them to the totals that `/metrics` and the API show. Recording never waits for a server or a
//! client, and no operation is dropped.
//!
//! An *awaiting* operation waits for an event, as its client wishes: a `getMore` on a change stream
//! or on a tailable cursor. Its time is kept apart, since it says nothing about load.
//!
//! Invariants: the sums by (command, database, collection) are exact, whatever the limits of the
//! tables; the phases of an operation add up to its total.

mod clients;
mod collect;
mod exporter;
mod logins;
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
    shape::{self, Collection, Description, Fingerprint, Input, LearnedNames, NameKey, ShapeId},
    stats::{Leaving, Outcome, Phase, Stage, Traffic},
};

pub use self::{
    clients::{ClientRow, ConnectedClient},
    collect::code_name,
    metric_name::{MetricKind, MetricName},
    observation::{Observation, Origin, outcome_of},
    own::Memory,
    protobuf::PROTOBUF,
    registry::{Namespace, OTHER, Shape, ShapeRow},
    servers::{CloseReason, Relayed, ServerMetrics},
    slow_log::{Entry as SlowLogEntry, SlowLog, SlowLogSettings},
    sums::{
        NamespaceIndex, NamespaceSums, ServerIndex, ServerSums, ShapeIndex, ShapeSums, TablePlace,
    },
};
use self::{
    collect::Collected,
    exporter::Exporter,
    logins::Logins,
    names::NameTable,
    registry::Registry,
    sums::{Record, Sums},
};

/// Maximum number of server rows. A deployment has far fewer servers; the limit protects against a
/// deployment whose members' addresses keep changing.
const MAX_SERVERS: usize = 1_000;

/// What to count, and how many rows to keep.
#[derive(Clone, Debug)]
pub struct Settings {
    /// True if shapes are counted. Namespaces are always counted.
    pub counts_shapes: bool,
    /// Maximum number of shape rows; the `other` row of each namespace comes on top.
    pub max_shapes: usize,
    /// Key for hashing the field names in shapes; `None` shows the names.
    pub name_key: Option<NameKey>,
    /// Maximum number of namespace rows; the `other` row of each command comes on top.
    pub max_namespaces: usize,
    /// True if the figures of each second are kept until the history takes them.
    pub keeps_seconds: bool,
}

/// Maximum number of places that a shard caches; a full cache is cleared.
const MAX_CACHED_PLACES: usize = 16_384;

/// Number of shards: enough that threads of the data plane rarely share one.
const SHARDS: usize = 64;

/// The metrics could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("setting up metrics: {0}")]
pub struct ObserveError(#[from] metrics_exporter_prometheus::BuildError);

/// How statistics treat a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandKind {
    /// A command of a client that has logged in.
    Operation,
    /// A command of the handshake, or of a client that has not logged in yet.
    Handshake,
}

#[derive(Default)]
struct Shard {
    places: HashMap<(ShapeId, bool), TablePlace>,
    /// The observer's generation when `places` were looked up.
    generation: u64,
    /// Learned names, if any.
    names: Option<Arc<LearnedNames>>,
    /// Number of cache hits; each time it wraps to 0, the shape's text is checked.
    hits: u16,
    sums: Sums,
}

/// Owns all statistics. There is one instance per process, or per test.
pub struct Observer {
    exporter: Arc<Exporter>,
    shards: Vec<Mutex<Shard>>,
    registry: Mutex<Registry>,
    /// Changes when rows are evicted and when names are learned.
    generation: AtomicU64,
    names: NameTable,
    collected: Mutex<Collected>,
    servers: Mutex<Vec<Arc<str>>>,
    settings: Settings,
    slow_log: Option<SlowLog>,
    cpu: Mutex<own::CpuTimes>,
    clients: Mutex<HashMap<i32, ClientRow>>,
    next_client: AtomicI32,
    traffic: Mutex<Traffic>,
    logins: Arc<Logins>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Observer {
    /// Creates an observer that writes slow operations to `slow_log`, if there is one.
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
            traffic: Mutex::default(),
            logins: Arc::default(),
        })
    }

    /// Starts to observe an operation that a server will answer. `now` is when the last byte of its
    /// command was read.
    pub fn begin(&self, input: &Input<'_>, request_bytes: usize, now: Instant) -> Observation<'_> {
        let place = self.place(input, CommandKind::Operation);
        let mut observation = Observation::begin(self, place, request_bytes, now);
        observation.set_statements(statements(input));
        observation
    }

    /// Starts to observe a handshake command that a server will answer; it has no shape.
    pub fn begin_unshaped(
        &self,
        input: &Input<'_>,
        request_bytes: usize,
        now: Instant,
    ) -> Observation<'_> {
        Observation::begin(
            self,
            self.place(input, CommandKind::Handshake),
            request_bytes,
            now,
        )
    }

    /// Counts a command that Seawall answered itself; `error_code` is set if the reply is an error.
    pub fn local(
        &self,
        input: &Input<'_>,
        request_bytes: usize,
        reply_bytes: usize,
        error_code: Option<i32>,
        began: Instant,
    ) {
        let place = self.place(input, CommandKind::Handshake);
        let mut observation = Observation::begin(self, place, request_bytes, began);
        observation.add_reply(reply_bytes, 0);
        if let Some(code) = error_code {
            observation.set_error_code(code);
        }
        observation.finish(Outcome::Local, Instant::now());
    }

    fn place(&self, input: &Input<'_>, kind: CommandKind) -> TablePlace {
        let counts_shapes = kind == CommandKind::Operation && self.settings.counts_shapes;
        let generation = self.generation.load(Ordering::Acquire);
        let mut shard = self.shard().lock();
        if shard.generation != generation || shard.places.len() >= MAX_CACHED_PLACES {
            shard.places.clear();
            shard.generation = generation;
            shard.names = self.names.learned();
        }
        let fingerprint = match kind {
            CommandKind::Operation => fingerprint(input, shard.names.as_deref()),
            CommandKind::Handshake => without_names(&shape::fingerprint(input)),
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
        if counts_shapes && self.learn_names(input) {
            return self.place(input, kind);
        }
        let now = SystemTime::now();
        let describe = || self.describe(input, names.as_deref());
        let mut registry = self.registry.lock();
        let place = registry.place(&fingerprint, counts_shapes, now, describe);
        drop(registry);
        let mut shard = self.shard().lock();
        // If rows were evicted since the look-up, the place may be wrong, so it is not cached.
        let is_current = self.generation.load(Ordering::Acquire) == generation;
        if is_current && shard.generation == generation {
            shard.places.insert(key, place);
        }
        place
    }

    /// Learns names from a command. True if a prefix now has too many names, which changes the
    /// command's shape.
    fn learn_names(&self, input: &Input<'_>) -> bool {
        let learned = self.names.add_names(input);
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

    /// Checks that the row's text is that of the command. A mismatch means that two shapes have the
    /// same hash, which is nearly impossible, or that the two walks over a command disagree: one
    /// makes the hash, the other the text.
    fn check_text(&self, place: TablePlace, input: &Input<'_>, names: Option<&LearnedNames>) {
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
            .expect("the remainder is less than the number of shards")
    }

    /// Counts and lists an accepted client.
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
        self.traffic.lock().arrivals += 1;
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
        self.traffic.lock().add_departure(leaving);
    }

    /// Connections and logins since the last call.
    pub fn take_traffic(&self) -> Traffic {
        let mut traffic = std::mem::take(&mut *self.traffic.lock());
        self.logins.add_to(&mut traffic);
        traffic
    }

    /// Counts the beginning of a storm.
    pub fn storm_began(&self) {
        self.count(MetricName::StormsTotal, &[]);
        self.set_storm_active(true);
    }

    /// Records the end of a storm.
    pub fn storm_ended(&self) {
        self.set_storm_active(false);
    }

    fn set_storm_active(&self, is_active: bool) {
        let gauge = self.exporter.gauge(MetricName::StormActive, vec![]);
        gauge.set(f64::from(u8::from(is_active)));
    }

    /// Clients connected now.
    pub fn client_connections(&self) -> usize {
        self.clients.lock().len()
    }

    /// The clients connected now in order of arrival, at most `limit`.
    pub fn clients(&self, limit: usize) -> Vec<ClientRow> {
        let mut rows: Vec<_> = self.clients.lock().values().cloned().collect();
        rows.sort_by_key(|row| row.id);
        rows.truncate(limit);
        rows
    }

    /// Counts a client that was refused before it was served.
    pub fn client_refused(&self, reason: &'static str) {
        self.count(
            MetricName::ClientConnectionsRefusedTotal,
            &[("reason", reason)],
        );
    }

    /// Counts the end of a client's login; `time` starts at its `saslStart`.
    pub fn client_authenticated(
        &self,
        mechanism: &'static str,
        result: &'static str,
        time: Duration,
    ) {
        let labels = [("mechanism", mechanism), ("result", result)];
        self.count(MetricName::ClientAuthenticationsTotal, &labels);
        self.logins.of_clients.fetch_add(1, Ordering::Relaxed);
        let labels = labels
            .iter()
            .map(|(key, value)| Label::new(*key, *value))
            .collect();
        let histogram = self
            .exporter
            .histogram(MetricName::ClientAuthenticationSeconds, labels);
        histogram.record(time.as_secs_f64());
    }

    /// Counts an operation that Seawall refused.
    pub fn shed(&self, reason: &'static str) {
        self.count(MetricName::OperationsShedTotal, &[("reason", reason)]);
    }

    /// Counts a login that has to wait for its turn.
    pub fn login_delayed(&self) {
        self.count(MetricName::LoginsDelayedTotal, &[]);
    }

    /// Counts a new client that has to wait for its turn.
    pub fn arrival_delayed(&self) {
        self.count(MetricName::ArrivalsDelayedTotal, &[]);
    }

    /// Counts an injected fault.
    pub fn fault_injected(&self, kind: &'static str) {
        self.count(MetricName::FaultsInjectedTotal, &[("kind", kind)]);
    }

    /// Counts something that was not understood or not included in statistics.
    pub fn unobserved(&self, reason: &'static str) {
        self.count(MetricName::UnobservedTotal, &[("reason", reason)]);
    }

    /// Counts a client that left before its handshake continued; `stage` is how far it had come.
    pub fn client_left_unserved(&self, stage: &'static str) {
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

    /// Registers handles on a server's metrics.
    pub fn server(&self, address: &str) -> ServerMetrics {
        ServerMetrics::new(
            Arc::clone(&self.exporter),
            Arc::clone(&self.logins),
            address,
            self.server_index(address),
        )
    }

    /// The server's row; servers beyond `MAX_SERVERS` share the last row.
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

/// The fingerprint that counts a handshake command. Anyone may connect and send names of databases
/// and collections that do not exist, so these names get no rows.
fn without_names<'a>(fingerprint: &Fingerprint<'a>) -> Fingerprint<'a> {
    let db = match fingerprint.db {
        b"admin" => "admin",
        _ => OTHER,
    };
    Fingerprint {
        shape: ShapeId::of_other_row(fingerprint.op, db, ""),
        db: db.as_bytes(),
        collection: Collection::NONE,
        ..*fingerprint
    }
}

#[cfg(test)]
impl Observer {
    /// An observer for tests in which shapes do not matter.
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
    fn unauthenticated_names_get_no_rows() {
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
