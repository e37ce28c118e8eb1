//! Samples `serverStatus` of every server at short intervals. The samples show what a server did
//! during a stall.
//!
//! Each server has one task and one connection, which uses the service account. A task never sends
//! a second command while it waits for the reply to the first. While a reply is late, the task
//! records a sample with the mark "no reply" at every interval. After ten seconds (or after
//! [`PulseSettings::timeout`], if that is longer), the task abandons the command. This module does
//! not detect stalls.

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
use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, MissedTickBehavior, interval, timeout_at},
};

use self::counters::Reading;
use seawall_locks::Mutex;
use seawall_stats::{Counters, ServerSample};

/// Maximum number of samples kept per server until [`Pulse::take_samples`] removes them: one minute
/// at the shortest interval. A sample is about 400 bytes.
const MAX_SAMPLES: usize = 600;

/// After this time without a reply (or after [`PulseSettings::timeout`], if that is longer), a
/// command is abandoned and the next command uses a new connection.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// How servers are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PulseSettings {
    /// Time between two samples of a server.
    pub interval: Duration,
    /// Maximum wait for a reply before the first sample without a reply is recorded.
    pub timeout: Duration,
}

/// Results and cost of the sampling: totals over all servers since Seawall started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of commands that got a reply with counters.
    pub answered: u64,
    /// Number of samples without a reply.
    pub unanswered: u64,
    /// Number of commands that a server refused, for example because the service account lacks a
    /// privilege.
    pub refused: u64,
    /// Sum of the round-trip times of the commands that got a reply with counters.
    pub total_time: Duration,
    /// The longest round-trip time of a command that got a reply with counters.
    pub longest: Duration,
    /// The error of each server whose last reply was a refusal, by server address.
    pub refusals: BTreeMap<String, String>,
}

/// Samples the servers of a deployment. Dropping the value stops the sampling.
pub struct Pulse {
    options: Mutex<ClientOptions>,
    settings: Mutex<PulseSettings>,
    runtime: Handle,
    servers: Mutex<HashMap<String, Sampler>>,
    cost: Arc<Mutex<Cost>>,
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse")
            .field("settings", &*self.settings.lock())
            .finish_non_exhaustive()
    }
}

impl Pulse {
    /// Creates a `Pulse` that samples no server yet. `options` are the client options for the
    /// deployment, with the credentials of the service account. The sampling tasks run on
    /// `runtime`.
    pub fn new(options: ClientOptions, settings: PulseSettings, runtime: Handle) -> Self {
        Self {
            options: Mutex::new(options),
            settings: Mutex::new(settings),
            runtime,
            servers: Mutex::default(),
            cost: Arc::default(),
        }
    }

    /// Replaces the client options and stops the sampling of all servers. The next call of
    /// [`Self::set_servers`] starts it again with the new options.
    pub(crate) fn set_options(&self, options: ClientOptions) {
        *self.options.lock() = options;
        self.servers.lock().clear();
    }

    /// Replaces the interval and the timeout. If one of them changes, the sampling of all servers
    /// stops, and the next call of [`Self::set_servers`] starts it again with the new values.
    pub(crate) fn configure(&self, settings: PulseSettings) {
        // `set_servers` locks `servers` first and then `settings`. To avoid a deadlock, this
        // function unlocks `settings` before it locks `servers`.
        let earlier = std::mem::replace(&mut *self.settings.lock(), settings);
        if earlier != settings {
            self.servers.lock().clear();
        }
    }

    /// Sets the servers to sample. Sampling of any other server stops, and its samples are dropped.
    pub(crate) fn set_servers(&self, addresses: &[String]) {
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

    /// Removes and returns the samples of each server. Each element of the result contains the
    /// address of a server and its samples, sorted from the oldest to the newest.
    pub(crate) fn take_samples(&self) -> Vec<(Box<str>, Vec<ServerSample>)> {
        let servers = self.servers.lock();
        let taken = servers.iter().map(|(address, sampler)| {
            let samples = std::mem::take(&mut sampler.samples.lock().0);
            (address.as_str().into(), samples.into())
        });
        taken.collect()
    }

    /// Results and cost of the sampling since Seawall started.
    pub fn cost(&self) -> Cost {
        self.cost.lock().clone()
    }

    fn sampler(&self, address: &str, parsed: ServerAddress) -> Sampler {
        let samples = Arc::default();
        let settings = *self.settings.lock();
        let server = Server {
            address: address.to_owned(),
            settings,
            samples: Arc::clone(&samples),
            cost: Arc::clone(&self.cost),
        };
        let options = options_for(self.options.lock().clone(), parsed, settings.timeout);
        let task = self.runtime.spawn(server.sample(options)).abort_handle();
        Sampler { samples, task }
    }
}

/// The samples of one server. Dropping the value stops the sampling task.
struct Sampler {
    samples: Arc<Mutex<Samples>>,
    task: AbortHandle,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State of the sampling task of one server.
struct Server {
    address: String,
    settings: PulseSettings,
    samples: Arc<Mutex<Samples>>,
    cost: Arc<Mutex<Cost>>,
}

impl Server {
    async fn sample(self, options: ClientOptions) {
        let client = match Client::with_options(options) {
            Ok(client) => client,
            Err(error) => {
                tracing::warn!(server = %self.address, %error, "could not create a client to read serverStatus");
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
                    // After a slow reply, the next tick may be due at once. Wait a whole interval
                    // instead, because a rate over a very short time is not meaningful.
                    if round_trip > self.settings.interval / 2 {
                        ticks.reset();
                    }
                }
                Some(Err(error)) => match *error.kind {
                    // Some server versions cannot exclude parts of a section and refuse the
                    // command. From the next command on, ask for the whole section `metrics`.
                    ErrorKind::Command(ref refusal)
                        if refusal.code != UNAUTHORIZED
                            && !SHUTDOWN_CODES.contains(&refusal.code)
                            && command.get_document(METRICS).is_ok() =>
                    {
                        command.insert(METRICS, 1);
                    }
                    // Record only the name and code of the error, because its message contains the
                    // command.
                    ErrorKind::Command(ref refusal) => {
                        self.record_refusal(format!("{} ({})", refusal.code_name, refusal.code));
                    }
                    ErrorKind::Authentication { ref message, .. } => {
                        self.record_refusal(message.clone())
                    }
                    // The server is down or not reachable, or the connection ended.
                    _ if sent_at.elapsed() < self.settings.timeout => self.record_no_reply(),
                    // `wait_for_reply` has already recorded a sample without a reply.
                    _ => {}
                },
                None => {}
            }
        }
    }

    /// Waits for the reply. If the reply has not arrived after the timeout, records a sample
    /// without a reply, and another such sample after each further interval. Returns `None` if no
    /// reply arrives within [`GIVE_UP_AFTER`] or within the timeout, whichever is longer.
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

    /// Records a refusal. The server replied, so a refusal does not count as a stall.
    fn record_refusal(&self, refusal: String) {
        self.samples
            .lock()
            .add(SystemTime::now(), true, Counters::default());
        let mut cost = self.cost.lock();
        cost.refused += 1;
        let is_known = cost.refusals.get(&self.address) == Some(&refusal);
        if !is_known {
            tracing::warn!(server = %self.address, %refusal, "server refused serverStatus");
            cost.refusals.insert(self.address.clone(), refusal);
        }
    }
}

/// The samples of one server that [`Pulse::take_samples`] has not returned yet, the oldest first.
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

/// The options of a client that connects to one server only, derived from the deployment's options.
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
    // Without the streaming protocol, the driver's monitoring uses one connection per server, not
    // two.
    options.server_monitoring_mode = Some(ServerMonitoringMode::Poll);
    // The timeout is short, so that Seawall tries an unavailable server again at the next interval.
    options.server_selection_timeout = Some(timeout / 2);
    // A typical reply has 27 KB. Compressing it would cost the server more CPU time than the saved
    // bandwidth is worth.
    options.compressors = None;
    options.sdam_event_handler = None;
    options.cmap_event_handler = None;
    options.command_event_handler = None;
    options
}

/// `serverStatus` without the sections that Seawall does not use. mongod 6.0.5 returns 27 KB in
/// 0.36 ms, instead of 62 KB in 0.83 ms. A server ignores unknown section names.
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

/// The section `metrics`. Seawall uses only a part of this section and excludes [`UNREAD_METRICS`].
const METRICS: &str = "metrics";

/// Error codes of a server that shuts down or changes its role: `ShutdownInProgress`,
/// `InterruptedAtShutdown` and `InterruptedDueToReplStateChange`.
const SHUTDOWN_CODES: [i32; 3] = [91, 11_600, 11_602];

/// The server's error code `Unauthorized`: the user lacks a privilege.
const UNAUTHORIZED: i32 = 13;

/// Sections of `serverStatus` that servers from 4.4 to 8.0 return by default, and that Seawall does
/// not use.
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

/// Parts of the section `metrics` that Seawall does not use. Seawall uses only the part `document`.
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
