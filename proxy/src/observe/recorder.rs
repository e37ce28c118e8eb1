//! The recorder: counts operations, logins, refusals and server connections for the data path.
//!
//! For each operation, the thread that serves it does one look-up and a few additions in its shard,
//! a table that few other threads use.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use metrics::Label;

use super::{
    ClientDirectory, ObserverSettings, RowIndexes, ServerIndex, ServerMetrics, SlowLog,
    logins::{LoginCounts, RefusalTarget, RefusedCounts},
    metric_handles::Metrics,
    metric_name::MetricName,
    names::{CommandUser, NameTable},
    registry::{OTHER, Registry},
    shards::Shards,
    slow_ring::SlowNotes,
    sums::{Record, Sums},
};
use seawall_command::CommandBytes;
use seawall_locks::Mutex;
use seawall_shape::{Collection, Description, Fingerprint, LearnedNames, NameKey, ShapeId};

/// Maximum number of server rows, and of values of the label `server`. No deployment has this many
/// servers: the limit protects memory if the addresses of members keep changing.
const MAX_SERVERS: usize = 1_000;

/// If a command has more bytes than this, the text of its shape is written before the registry's
/// lock is taken.
const LARGE_COMMAND_BYTES: usize = 64 << 10;

/// Maximum number of entries in the cache of each shard. An entry is the result of a look-up: the
/// rows that count a command. A shard is the data of a few threads. A full cache is cleared.
const MAX_CACHED_ROWS: usize = 16_384;

/// Counts operations, logins, refusals and server connections. The data path calls it.
pub struct Recorder {
    pub(super) metrics: Arc<Metrics>,
    /// The directory that counts the connected clients.
    pub(super) clients: Arc<ClientDirectory>,
    pub(super) registry: Mutex<Registry>,
    /// A number that rises when rows are evicted or reserved, when field names are learned (see
    /// [`LearnedNames`]), and when the settings of shapes change. A shard whose cached look-ups are
    /// from an earlier generation discards them.
    pub(super) generation: AtomicU64,
    pub(super) names: NameTable,
    pub(super) servers: Mutex<Vec<Arc<str>>>,
    pub(super) slow_log: ArcSwapOption<SlowLog>,
    pub(super) slow_notes: SlowNotes,
    /// Number of lines dropped by earlier slow logs, which the current `slow_log` has replaced.
    pub(super) left_out_before: AtomicU64,
    pub(super) logins: Arc<LoginCounts>,
    shards: Arc<Shards>,
    counts_shapes: AtomicBool,
    name_key: Option<NameKey>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// The kind of a command, which decides which row counts the command. The database and collection
/// names in a handshake command never get a row, except the database `admin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind<'a> {
    /// A command of this user that a server runs, except a command of the handshake.
    Operation(CommandUser<'a>),
    /// A command of the handshake, or a command to which Seawall itself replies, for example
    /// because the client has not logged in yet.
    Handshake,
}

impl Recorder {
    pub(super) fn new(
        settings: ObserverSettings,
        slow_log: Option<SlowLog>,
        metrics: Arc<Metrics>,
        clients: Arc<ClientDirectory>,
    ) -> Self {
        Self {
            metrics,
            clients,
            registry: Mutex::new(Registry::new(settings.max_shapes, settings.max_namespaces)),
            generation: AtomicU64::new(0),
            names: NameTable::default(),
            servers: Mutex::default(),
            slow_log: ArcSwapOption::from_pointee(slow_log),
            slow_notes: SlowNotes::default(),
            left_out_before: AtomicU64::new(0),
            logins: Arc::default(),
            shards: Arc::default(),
            counts_shapes: AtomicBool::new(settings.counts_shapes),
            name_key: settings.name_key,
        }
    }

    /// Applies changed settings of shapes. `name_key` does not change.
    pub(crate) fn set_shapes(&self, counts_shapes: bool, max_shapes: usize, max_namespaces: usize) {
        self.counts_shapes.store(counts_shapes, Ordering::Relaxed);
        let now = SystemTime::now();
        self.registry
            .lock()
            .set_max(max_shapes, max_namespaces, now);
        // A new generation makes shards discard the rows that they have cached.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Finds the rows that count a command.
    pub(super) fn rows_of(&self, input: &CommandBytes<'_>, kind: CommandKind<'_>) -> RowIndexes {
        let counts_shapes =
            kind != CommandKind::Handshake && self.counts_shapes.load(Ordering::Relaxed);
        let generation = self.generation.load(Ordering::Acquire);
        let mut shard = self.shards.mine();
        if shard.generation != generation || shard.rows.len() >= MAX_CACHED_ROWS {
            shard.rows.clear();
            shard.generation = generation;
            shard.names = self.names.learned();
        }
        let fingerprint = match kind {
            CommandKind::Operation(_) => fingerprint(input, shard.names.as_deref()),
            CommandKind::Handshake => without_names(&seawall_shape::fingerprint(input)),
        };
        let key = (fingerprint.shape, counts_shapes);
        if let Some(rows) = shard.rows.get(&key) {
            let rows = *rows;
            shard.hits = shard.hits.wrapping_add(1);
            if shard.hits == 0 && counts_shapes {
                let names = shard.names.clone();
                drop(shard);
                self.check_text(rows, input, names.as_deref());
            }
            return rows;
        }
        let names = shard.names.clone();
        drop(shard);
        if counts_shapes
            && let CommandKind::Operation(user) = kind
            && self.learn_names(user, input)
        {
            return self.rows_of(input, kind);
        }
        let now = SystemTime::now();
        let describe = || self.describe(input, names.as_deref());
        // The text of a large command's shape is written before the lock is taken, because other
        // threads would wait for the lock during this work.
        let is_large = counts_shapes && input.bytes() > LARGE_COMMAND_BYTES;
        let written = is_large.then(describe);
        let describe = || written.clone().unwrap_or_else(describe);
        let mut registry = self.registry.lock();
        let rows = registry.rows_of(&fingerprint, counts_shapes, now, describe);
        drop(registry);
        let mut shard = self.shards.mine();
        // If the generation has changed since the look-up, for example because rows were evicted,
        // the result may be wrong, so it is not cached.
        let is_current = self.generation.load(Ordering::Acquire) == generation;
        if is_current && shard.generation == generation {
            shard.rows.insert(key, rows);
        }
        rows
    }

    /// Counts the field names in a user's command. True if there are now too many names below a
    /// field path: from now on, these names count as data, so the command has another shape.
    fn learn_names(&self, user: CommandUser<'_>, input: &CommandBytes<'_>) -> bool {
        let learned = self.names.add_names(user, input);
        if learned > 0 {
            self.metrics
                .counter(MetricName::FingerprintNamesLearnedTotal, vec![])
                .increment(learned);
            self.generation.fetch_add(1, Ordering::Release);
        }
        learned > 0
    }

    fn describe(&self, input: &CommandBytes<'_>, names: Option<&LearnedNames>) -> Description {
        let none = LearnedNames::default();
        let names = names.unwrap_or(&none);
        names.describe(input, self.name_key.as_ref())
    }

    /// Checks that the row has the text of the command's shape. A different text has one of two
    /// causes. Either two shapes have the same hash, which is nearly impossible. Or the code that
    /// computes the hash disagrees with the code that writes the text.
    fn check_text(&self, rows: RowIndexes, input: &CommandBytes<'_>, names: Option<&LearnedNames>) {
        let Some(index) = rows.shape.filter(|_| rows.folded.is_none()) else {
            return;
        };
        let text = self.describe(input, names).shape;
        let registry = self.registry.lock();
        let is_wrong = registry
            .row(index.serial)
            .is_some_and(|(shape, _, _)| *shape.text != *text);
        drop(registry);
        if is_wrong {
            self.metrics
                .count(MetricName::FingerprintMismatchTotal, &[]);
        }
    }

    /// Counts an operation. `application` is the name of the client's application; `None` if the
    /// client sent no name.
    pub(super) fn record(&self, record: &Record, application: Option<&Arc<str>>) {
        self.shards.mine().tally.add(record, application);
    }

    /// Removes and returns the sums of all threads.
    pub(super) fn take_sums(&self) -> Sums {
        let mut fresh = Sums::default();
        for shard in self.shards.all() {
            let taken = shard.lock().tally.take();
            fresh.merge(taken);
        }
        fresh
    }

    /// Memory of the look-ups that all shards have cached, in bytes.
    pub(super) fn cache_bytes(&self) -> usize {
        let capacities = self.shards.all().map(|shard| shard.lock().rows.capacity());
        capacities.sum::<usize>() * size_of::<((ShapeId, bool), RowIndexes)>()
    }

    /// Counts a client whose connection Seawall refused.
    pub(crate) fn count_refused_client(&self, reason: &'static str) {
        self.metrics.count(
            MetricName::ClientConnectionsRefusedTotal,
            &[("reason", reason)],
        );
        self.logins.refuse(RefusalTarget::Client, reason);
    }

    /// Counts the end of a client's login. `time` is the time since its `saslStart`.
    pub(crate) fn count_client_login(
        &self,
        mechanism: &'static str,
        result: &'static str,
        time: Duration,
    ) {
        let labels = [("mechanism", mechanism), ("result", result)];
        self.metrics
            .count(MetricName::ClientAuthenticationsTotal, &labels);
        self.logins.of_clients.fetch_add(1, Ordering::Relaxed);
        let labels = labels
            .iter()
            .map(|(key, value)| Label::new(*key, *value))
            .collect();
        let histogram = self
            .metrics
            .histogram(MetricName::ClientAuthenticationSeconds, labels);
        histogram.record(time.as_secs_f64());
    }

    /// Counts the end of a relayed client's login. A server runs this login, so the login is also a
    /// login at a server. The metrics of servers count only the logins of Seawall.
    pub(crate) fn count_relayed_client_login(
        &self,
        mechanism: &'static str,
        result: &'static str,
        time: Duration,
    ) {
        self.count_client_login(mechanism, result, time);
        self.logins.at_servers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an operation that Seawall refused.
    pub(crate) fn count_shed_operation(&self, reason: &'static str) {
        self.metrics
            .count(MetricName::OperationsShedTotal, &[("reason", reason)]);
        self.logins.refuse(RefusalTarget::Operation, reason);
    }

    /// Returns the numbers of refused clients and operations since the last call, by reason.
    pub(crate) fn take_refusals(&self) -> RefusedCounts {
        self.logins.take_refusals()
    }

    /// Counts a client login that has to wait because of a limit of logins or a login gate. A login
    /// gate limits the rate of logins under overload.
    pub(crate) fn count_delayed_login(&self) {
        self.metrics.count(MetricName::LoginsDelayedTotal, &[]);
    }

    /// Counts a new client that waits before its first byte is read, because the threads that serve
    /// clients are overloaded.
    pub(crate) fn count_delayed_arrival(&self) {
        self.metrics.count(MetricName::ArrivalsDelayedTotal, &[]);
    }

    /// Counts a reload of the configuration.
    pub(crate) fn count_reload(&self, is_ok: bool) {
        let result = if is_ok { "ok" } else { "failed" };
        self.metrics
            .count(MetricName::ReloadsTotal, &[("result", result)]);
        let gauge = self.metrics.gauge(MetricName::LastReloadSuccessful, vec![]);
        gauge.set(f64::from(u8::from(is_ok)));
    }

    /// Counts an injected fault.
    pub(crate) fn count_fault(&self, kind: &'static str) {
        self.metrics
            .count(MetricName::FaultsInjectedTotal, &[("kind", kind)]);
    }

    /// Counts an operation on a cursor or transaction that this instance does not know. `kind` is
    /// `cursor` or `transaction`.
    pub(crate) fn count_foreign_operation(&self, kind: &'static str) {
        self.metrics
            .count(MetricName::ForeignOperationsTotal, &[("kind", kind)]);
    }

    /// Counts an event that Seawall did not understand or cannot include in statistics.
    pub(crate) fn count_unobserved(&self, reason: &'static str) {
        self.metrics
            .count(MetricName::UnobservedTotal, &[("reason", reason)]);
    }

    /// Counts a client that disconnected while Seawall served it. `stage` is the stage of its
    /// handshake, or the phase of its operation.
    pub(crate) fn count_gone_client(&self, stage: &'static str) {
        self.metrics
            .count(MetricName::ClientsGoneTotal, &[("stage", stage)]);
    }

    /// Registers handles on the metrics of a server.
    pub fn server(&self, address: &str) -> ServerMetrics {
        let (index, name) = self.server_row(address);
        ServerMetrics::new(
            Arc::clone(&self.metrics),
            Arc::clone(&self.logins),
            Arc::clone(&self.shards),
            &name,
            index,
        )
    }

    /// The row of a server: its index and its name, which is the address. If there are more servers
    /// than rows, the servers without a row of their own share the last of the `MAX_SERVERS` rows,
    /// whose name is [`OTHER`].
    fn server_row(&self, address: &str) -> (ServerIndex, Arc<str>) {
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
        let name = servers
            .get(index)
            .map_or_else(|| address.into(), Arc::clone);
        (ServerIndex(index), name)
    }
}

fn fingerprint<'a>(input: &CommandBytes<'a>, names: Option<&LearnedNames>) -> Fingerprint<'a> {
    match names {
        None => seawall_shape::fingerprint(input),
        Some(names) => names.fingerprint(input),
    }
}

/// The fingerprint for a handshake command. It has no collection name, and its database name is
/// `admin` or `other`. Unauthenticated clients can send any names of databases and collections, so
/// other names get no rows.
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
impl Recorder {
    /// A recorder that does not count shapes, for tests.
    pub(crate) fn without_shapes() -> Arc<Self> {
        super::Observer::without_shapes().recorder
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use tokio::time::Instant;

    use super::*;
    use crate::observe::Observer;
    use seawall_stats::Outcome;

    #[test]
    fn servers_beyond_the_limit_share_one_row_with_only_metrics_that_can_be_summed() {
        let observer = Observer::without_shapes();
        let servers = (0..=MAX_SERVERS).map(|number| {
            let server = observer.recorder.server(&format!("s{number}:1"));
            server.show(1, 2, 3, 4);
            server.show_concurrency(Some(5), 1, 2, 3, 4);
            server.relayed()
        });
        let servers: Vec<_> = servers.collect();
        let text = observer.exporter.render();
        let values = |metric: &str, server: &str| {
            let start = format!("{metric}{{server=\"{server}\"");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
            let values = lines.filter_map(|line| line.split(' ').next_back());
            values.collect::<Vec<_>>()
        };
        let last_named = format!("s{}:1", MAX_SERVERS - 2);
        let created = "seawall_server_connections_created_total";
        assert_eq!(values(created, &last_named), ["1"]);
        assert_eq!(values(created, OTHER), ["2"]);
        assert_eq!(values("seawall_relayed_connections", OTHER), ["2"]);
        for gauge in ["seawall_wait_queue_length", "seawall_concurrency_limit"] {
            assert_eq!(values(gauge, &last_named).len(), 1, "{gauge}");
            assert_eq!(values(gauge, OTHER), [""; 0], "{gauge}");
        }
        assert_eq!(values("seawall_server_connections", OTHER), [""; 0]);
        for number in [MAX_SERVERS - 1, MAX_SERVERS] {
            assert!(!text.contains(&format!("\"s{number}:1\"")), "{number}");
        }
        let [.., one, other] = &*servers else {
            panic!("{servers:?}");
        };
        assert_eq!(one.index(), other.index());
    }

    #[test]
    fn the_login_of_a_relayed_client_is_also_a_login_at_a_server() {
        let observer = Observer::without_shapes();
        let recorder = &observer.recorder;
        recorder.count_client_login("SCRAM-SHA-256", "ok", Duration::ZERO);
        recorder.count_relayed_client_login("PLAIN", "ok", Duration::ZERO);
        recorder.count_relayed_client_login("PLAIN", "refused", Duration::ZERO);
        let traffic = observer.totals.take_traffic();
        assert_eq!(traffic.client_authentications, 3);
        assert_eq!(traffic.server_authentications, 2);
        let text = observer.exporter.render();
        assert!(!text.contains("seawall_server_authentications_total{"));
    }

    #[test]
    fn commands_before_a_login_are_counted_together_and_not_by_collection() {
        let settings = ObserverSettings {
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
            let input = CommandBytes::of_body(&body);
            observer.recorder.local(&input, 100, 100, None, now);
        }
        let body = doc! {"find": "orders", "filter": {"a": 1}, "$db": "shop"}
            .to_vec()
            .unwrap();
        let input = CommandBytes::of_body(&body);
        observer
            .recorder
            .begin(&input, 100, now)
            .finish(Outcome::Ok, now);
        let rows = observer.totals.namespaces();
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

    #[test]
    fn commands_before_a_login_take_no_row_from_the_namespace_of_an_operation() {
        let observer = Observer::without_shapes();
        let now = Instant::now();
        for command in ["hello", "ping", "find"] {
            for db in ["admin", "shop"] {
                let body = doc! {command: "c", "$db": db}.to_vec().unwrap();
                let input = CommandBytes::of_body(&body);
                observer.recorder.local(&input, 100, 100, None, now);
            }
        }
        let body = doc! {"find": "orders", "$db": "shop"}.to_vec().unwrap();
        let input = CommandBytes::of_body(&body);
        let observation = observer.recorder.begin(&input, 100, now);
        observation.finish(Outcome::Ok, now);
        let rows = observer.totals.namespaces();
        assert_eq!(rows.len(), 7);
        let (last, _) = rows.last().unwrap();
        assert_eq!((&*last.db, &*last.collection), ("shop", "orders"));
    }
}
