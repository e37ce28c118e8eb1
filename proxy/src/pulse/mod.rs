//! The pulse: samples `serverStatus` of every server at short intervals, so that a stall can be
//! compared with what the server did at that time.
//!
//! Each server has one task and one connection, which uses the service account. A server never gets
//! two commands at a time: while a reply is missing, a sample without a reply is recorded at every
//! interval, and a late reply is still used. Stalls are not detected here.

mod counters;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bson::{Document, doc};
use mongodb::{
    Client,
    error::ErrorKind,
    options::{ClientOptions, ServerAddress, ServerMonitoringMode},
};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, MissedTickBehavior, interval, timeout_at},
};

use self::counters::Reading;
use seawall_stats::{Counters, ServerSample};

/// Maximum number of samples of one server that wait to be taken: a minute at the shortest
/// interval, at about 400 bytes each.
const MAX_SAMPLES: usize = 600;

/// Time without a reply after which a command is given up and the next one is sent over a new
/// connection.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// How servers are sampled.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Time between two samples of a server.
    pub interval: Duration,
    /// Time without a reply after which a sample without a reply is recorded.
    pub timeout: Duration,
}

/// Results and cost of the sampling, over all servers since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of commands that were answered.
    pub answered: u64,
    /// Number of samples without a reply.
    pub unanswered: u64,
    /// Number of commands that a server refused: the service account lacks the right.
    pub refused: u64,
    /// Total time of the round trips of answered commands.
    pub total_time: Duration,
    /// The longest of these round trips.
    pub longest: Duration,
    /// The servers that refuse now, with their error.
    pub refusals: BTreeMap<String, String>,
}

/// Samples servers until it is dropped.
pub struct Pulse {
    options: ClientOptions,
    settings: Settings,
    runtime: Handle,
    servers: Mutex<HashMap<String, Sampler>>,
    cost: Arc<Mutex<Cost>>,
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Pulse {
    /// Creates a pulse without servers. `options` are those of the deployment, with the service
    /// account; the samplers run on `runtime`.
    pub fn new(options: ClientOptions, settings: Settings, runtime: Handle) -> Self {
        Self {
            options,
            settings,
            runtime,
            servers: Mutex::default(),
            cost: Arc::default(),
        }
    }

    /// Samples these servers and no others; the samples of other servers are dropped.
    pub fn set_servers(&self, addresses: &[String]) {
        let mut servers = self.servers.lock();
        servers.retain(|address, _| addresses.contains(address));
        let mut cost = self.cost.lock();
        cost.refusals
            .retain(|address, _| addresses.contains(address));
        drop(cost);
        for address in addresses {
            if !servers.contains_key(address)
                && let Ok(parsed) = ServerAddress::parse(address)
            {
                servers.insert(address.clone(), self.sampler(address, parsed));
            }
        }
    }

    /// The samples of each server since the last call, by address, the oldest first.
    pub fn take_samples(&self) -> Vec<(Box<str>, Vec<ServerSample>)> {
        let servers = self.servers.lock();
        let taken = servers.iter().map(|(address, sampler)| {
            let samples = std::mem::take(&mut sampler.samples.lock().0);
            (address.as_str().into(), samples.into())
        });
        taken.collect()
    }

    /// Results and cost of the sampling.
    pub fn cost(&self) -> Cost {
        self.cost.lock().clone()
    }

    fn sampler(&self, address: &str, parsed: ServerAddress) -> Sampler {
        let samples = Arc::default();
        let server = Server {
            address: address.to_owned(),
            settings: self.settings,
            samples: Arc::clone(&samples),
            cost: Arc::clone(&self.cost),
        };
        let options = options_for(self.options.clone(), parsed, self.settings.timeout);
        let task = self.runtime.spawn(server.sample(options)).abort_handle();
        Sampler { samples, task }
    }
}

/// One server's samples, and the task that takes them until this is dropped.
struct Sampler {
    samples: Arc<Mutex<Samples>>,
    task: AbortHandle,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of one server's task.
struct Server {
    address: String,
    settings: Settings,
    samples: Arc<Mutex<Samples>>,
    cost: Arc<Mutex<Cost>>,
}

impl Server {
    async fn sample(self, options: ClientOptions) {
        let client = match Client::with_options(options) {
            Ok(client) => client,
            Err(error) => {
                tracing::warn!(server = %self.address, %error, "server cannot be sampled");
                return;
            }
        };
        let admin = client.database("admin");
        let mut ticks = interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut before: Option<(Reading, Instant)> = None;
        let mut command = server_status_command();
        loop {
            ticks.tick().await;
            let sent_at = Instant::now();
            let reply = admin.run_command(command.clone()).into_future();
            match self.wait_for_reply(reply, sent_at).await {
                Some(Ok(status)) => {
                    let now = Instant::now();
                    let reading = Reading::of(&status);
                    let earlier = before.as_ref();
                    let values = reading
                        .values(earlier.map(|(reading, at)| (reading, now.duration_since(*at))));
                    let round_trip = now.duration_since(sent_at);
                    self.record_reply(values, round_trip);
                    before = Some((reading, now));
                    // The next tick may be due already, and a rate over so short a time would be
                    // noise.
                    if round_trip > self.settings.interval / 2 {
                        ticks.reset();
                    }
                }
                Some(Err(error)) => match *error.kind {
                    // Some versions cannot leave out parts of a section.
                    ErrorKind::Command(ref refusal)
                        if refusal.code != UNAUTHORIZED
                            && command.get_document(METRICS).is_ok() =>
                    {
                        command.insert(METRICS, 1);
                    }
                    // The error's message would contain the whole command.
                    ErrorKind::Command(ref refusal) => {
                        self.record_refusal(format!("{} ({})", refusal.code_name, refusal.code));
                    }
                    ErrorKind::Authentication { ref message, .. } => {
                        self.record_refusal(message.clone())
                    }
                    // The server is down, or not reachable, or the connection ended.
                    _ if sent_at.elapsed() < self.settings.timeout => self.record_no_reply(),
                    // A sample without a reply has been recorded already.
                    _ => {}
                },
                None => {}
            }
        }
    }

    /// Waits for the reply, however late. Until then, records a sample without a reply at every
    /// interval. `None` if the command is given up.
    async fn wait_for_reply<F>(&self, mut reply: F, sent_at: Instant) -> Option<F::Output>
    where
        F: Future + Unpin,
    {
        let give_up_at = sent_at + GIVE_UP_AFTER.max(self.settings.timeout);
        let mut due = sent_at + self.settings.timeout;
        loop {
            if let Ok(reply) = timeout_at(due, &mut reply).await {
                return Some(reply);
            }
            self.record_no_reply();
            if due >= give_up_at {
                return None;
            }
            due += self.settings.interval;
        }
    }

    fn record_reply(&self, values: Counters, round_trip: Duration) {
        self.samples.lock().add(SystemTime::now(), true, values);
        let mut cost = self.cost.lock();
        cost.answered += 1;
        cost.total_time += round_trip;
        cost.longest = cost.longest.max(round_trip);
        cost.refusals.remove(&self.address);
    }

    fn record_no_reply(&self) {
        self.samples
            .lock()
            .add(SystemTime::now(), false, Counters::default());
        self.cost.lock().unanswered += 1;
    }

    /// Records a refusal. The server replied, so this is no stall.
    fn record_refusal(&self, refusal: String) {
        self.samples
            .lock()
            .add(SystemTime::now(), true, Counters::default());
        let mut cost = self.cost.lock();
        cost.refused += 1;
        let is_known = cost.refusals.get(&self.address) == Some(&refusal);
        if !is_known {
            tracing::warn!(server = %self.address, %refusal, "server refuses to be sampled");
            cost.refusals.insert(self.address.clone(), refusal);
        }
    }
}

/// The samples of one server that were not taken yet, the oldest first.
#[derive(Default)]
struct Samples(VecDeque<ServerSample>);

impl Samples {
    fn add(&mut self, at: SystemTime, answered: bool, counters: Counters) {
        if self.0.len() >= MAX_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(ServerSample {
            at,
            answered,
            counters,
        });
    }
}

/// The deployment's options, changed for a client of one server.
fn options_for(
    mut options: ClientOptions,
    server: ServerAddress,
    timeout: Duration,
) -> ClientOptions {
    options.hosts = vec![server];
    options.direct_connection = Some(true);
    options.app_name = Some("seawall-pulse".to_owned());
    options.max_pool_size = Some(1);
    options.min_pool_size = Some(0);
    options.max_connecting = Some(1);
    // Without streaming there is one monitoring connection per server, not two.
    options.server_monitoring_mode = Some(ServerMonitoringMode::Poll);
    // Short, so that a server that is down is tried again at the next interval.
    options.server_selection_timeout = Some(timeout / 2);
    // Replies are 27 KB each: compression would cost the server more than it saves.
    options.compressors = None;
    options.sdam_event_handler = None;
    options.cmap_event_handler = None;
    options.command_event_handler = None;
    options
}

/// `serverStatus` without the sections that are not read. With mongod 6.0.5 it returns 27 KB in
/// 0.36 ms; a whole reply is 62 KB in 0.83 ms. A server ignores names that it does not know.
fn server_status_command() -> Document {
    let mut command = doc! { "serverStatus": 1 };
    for section in UNREAD_SECTIONS {
        command.insert(*section, 0);
    }
    let unread: Document = UNREAD_METRICS
        .iter()
        .map(|name| ((*name).to_owned(), false.into()))
        .collect();
    command.insert(METRICS, unread);
    command
}

/// The section that is read only in part.
const METRICS: &str = "metrics";

/// The server's error code for a user without the right.
const UNAUTHORIZED: i32 = 13;

/// Sections that servers from 4.4 to 8.0 return by default and that are not read.
const UNREAD_SECTIONS: &[&str] = &[
    "activeIndexBuilds",
    "asserts",
    "batchedDeletes",
    "bucketCatalog",
    "catalogStats",
    "changeStreamPreImages",
    "collectionCatalog",
    "defaultRWConcern",
    "electionMetrics",
    "featureCompatibilityVersion",
    "flowControl",
    "freeMonitoring",
    "hedgingMetrics",
    "indexBuilds",
    "indexBulkBuilder",
    "indexStats",
    "latchAnalysis",
    "locks",
    "logicalSessionRecordCache",
    "mem",
    "mirroredReads",
    "opLatencies",
    "opReadConcernCounters",
    "opWriteConcernCounters",
    "opcountersRepl",
    "oplogTruncation",
    "planCache",
    "profiler",
    "queryAnalyzers",
    "querySettings",
    "queryStats",
    "readConcernCounters",
    "readPreferenceCounters",
    "repl",
    "scramCache",
    "security",
    "sharding",
    "shardingStatistics",
    "spillWiredTiger",
    "storageEngine",
    "tcmalloc",
    "tenantMigrations",
    "timeseriesCatalog",
    "trafficRecording",
    "transactions",
    "transportSecurity",
    "twoPhaseCommitCoordinator",
    "watchdog",
];

/// Parts of the section `metrics` that are not read; `document` is read.
const UNREAD_METRICS: &[&str] = &[
    "aggStageCounters",
    "apiVersions",
    "changeStreams",
    "commands",
    "cursor",
    "dotsAndDollarsFields",
    "getLastError",
    "mongos",
    "network",
    "operation",
    "operatorCounters",
    "query",
    "queryExecutor",
    "queryStats",
    "record",
    "repl",
    "storage",
    "ttl",
];

#[cfg(test)]
mod tests;
