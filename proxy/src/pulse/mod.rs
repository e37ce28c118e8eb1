//! The pulse: `serverStatus` of every server, at short intervals, so that a stall can be laid beside what the
//! server did meanwhile.
//!
//! One task and one connection a server, through the service account. Never two questions to one server at a
//! time: while one goes unanswered, "no answer" is noted at every interval, and its late answer still counts.
//! What stalls is not decided here.

mod counters;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
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

use self::counters::{Reading, Values};
use crate::history::Sample;

/// How long samples are kept.
const KEPT: Duration = Duration::from_secs(20 * 60);

/// Samples that are kept of one server: 20 minutes at the shortest interval, some 400 bytes each. At one second
/// 20 minutes take half a MiB.
const MAX_SAMPLES: usize = 12_000;

/// Time without an answer after which a question is given up, and the next one asked over a new connection.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// How servers are sampled.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Time between two samples of a server.
    pub interval: Duration,
    /// How long an answer may take before it is noted that there was none.
    pub timeout: Duration,
}

/// What the sampling itself came to, over all servers since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Questions that were answered.
    pub answered: u64,
    /// Times it was noted that there was no answer.
    pub unanswered: u64,
    /// Questions that a server refused: the service account lacks the right to ask.
    pub refused: u64,
    /// Round trips of the answered ones, together.
    pub total_time: Duration,
    /// The longest of them.
    pub longest: Duration,
    /// The servers that refuse now, with what they say.
    pub refusals: BTreeMap<String, String>,
}

/// Samples servers as long as it lives.
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
    /// Nothing is sampled before the servers are set. `options` are the deployment's, with the service
    /// account; `runtime` carries the samplers.
    pub fn new(options: ClientOptions, settings: Settings, runtime: Handle) -> Self {
        Self {
            options,
            settings,
            runtime,
            servers: Mutex::default(),
            cost: Arc::default(),
        }
    }

    /// Samples these servers and no others; the samples of the others are forgotten.
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

    /// What was seen of a server since then, the oldest first.
    pub fn samples(&self, server: &str, since: SystemTime) -> Vec<Sample> {
        let samples = self
            .servers
            .lock()
            .get(server)
            .map(|sampler| Arc::clone(&sampler.samples));
        samples
            .map(|samples| samples.lock().since(since))
            .unwrap_or_default()
    }

    /// What the sampling itself came to.
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

/// One server's samples, and the task that takes them as long as this lives.
struct Sampler {
    samples: Arc<Mutex<Samples>>,
    task: AbortHandle,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of one server.
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
        let mut question = question();
        loop {
            ticks.tick().await;
            let asked_at = Instant::now();
            let asked = admin.run_command(question.clone()).into_future();
            match self.answer(asked, asked_at).await {
                Some(Ok(status)) => {
                    let now = Instant::now();
                    let reading = Reading::of(&status);
                    let earlier = before.as_ref();
                    let values = reading
                        .values(earlier.map(|(reading, at)| (reading, now.duration_since(*at))));
                    let round_trip = now.duration_since(asked_at);
                    self.answered(values, round_trip);
                    before = Some((reading, now));
                    // The next tick may be due already, and rates over a moment would be noise.
                    if round_trip > self.settings.interval / 2 {
                        ticks.reset();
                    }
                }
                Some(Err(error)) => match *error.kind {
                    // A version may not know how to leave out parts of a section.
                    ErrorKind::Command(ref refusal)
                        if refusal.code != UNAUTHORIZED
                            && question.get_document(METRICS).is_ok() =>
                    {
                        question.insert(METRICS, 1);
                    }
                    // Its message would hold the whole question.
                    ErrorKind::Command(ref refusal) => {
                        self.refused(format!("{} ({})", refusal.code_name, refusal.code));
                    }
                    ErrorKind::Authentication { ref message, .. } => self.refused(message.clone()),
                    // The server is down, or not reachable, or the connection ended.
                    _ if asked_at.elapsed() < self.settings.timeout => self.unanswered(),
                    // That has been noted.
                    _ => {}
                },
                None => {}
            }
        }
    }

    /// The answer, however late; meanwhile it is noted that there is none. `None` when it is given up.
    async fn answer<F>(&self, mut asked: F, asked_at: Instant) -> Option<F::Output>
    where
        F: Future + Unpin,
    {
        let give_up_at = asked_at + GIVE_UP_AFTER.max(self.settings.timeout);
        let mut due = asked_at + self.settings.timeout;
        loop {
            if let Ok(answer) = timeout_at(due, &mut asked).await {
                return Some(answer);
            }
            self.unanswered();
            if due >= give_up_at {
                return None;
            }
            due += self.settings.interval;
        }
    }

    fn answered(&self, values: Values, round_trip: Duration) {
        self.samples.lock().add(SystemTime::now(), true, values);
        let mut cost = self.cost.lock();
        cost.answered += 1;
        cost.total_time += round_trip;
        cost.longest = cost.longest.max(round_trip);
        cost.refusals.remove(&self.address);
    }

    fn unanswered(&self) {
        self.samples
            .lock()
            .add(SystemTime::now(), false, Values::default());
        self.cost.lock().unanswered += 1;
    }

    /// It said something, though not what was asked for: it does not stall.
    fn refused(&self, refusal: String) {
        self.samples
            .lock()
            .add(SystemTime::now(), true, Values::default());
        let mut cost = self.cost.lock();
        cost.refused += 1;
        let is_told = cost.refusals.get(&self.address) == Some(&refusal);
        if !is_told {
            tracing::warn!(server = %self.address, %refusal, "server refuses to be sampled");
            cost.refusals.insert(self.address.clone(), refusal);
        }
    }
}

/// The last samples of one server, the oldest first.
#[derive(Default)]
struct Samples(VecDeque<Kept>);

/// A sample, as small as it can be.
struct Kept {
    at: SystemTime,
    answered: bool,
    values: Values,
}

impl Samples {
    fn add(&mut self, at: SystemTime, answered: bool, values: Values) {
        let is_old = |kept: &Kept| at.duration_since(kept.at).is_ok_and(|age| age > KEPT);
        while self.0.len() >= MAX_SAMPLES || self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
        self.0.push_back(Kept {
            at,
            answered,
            values,
        });
    }

    fn since(&self, since: SystemTime) -> Vec<Sample> {
        let wanted = self.0.iter().filter(|kept| kept.at >= since);
        wanted
            .map(|kept| Sample {
                at: kept
                    .at
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_secs_f64(),
                answered: kept.answered,
                values: kept.values.named(),
            })
            .collect()
    }
}

/// The deployment's options, made those of a client of one server.
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
    // Without streaming there is one monitoring connection a server, not two.
    options.server_monitoring_mode = Some(ServerMonitoringMode::Poll);
    // Told in time, so that a server that is down is asked again at the next interval.
    options.server_selection_timeout = Some(timeout / 2);
    // Figures in 27 KB a second: what compression would save costs the server more.
    options.compressors = None;
    options.sdam_event_handler = None;
    options.cmap_event_handler = None;
    options.command_event_handler = None;
    options
}

/// `serverStatus` without what nobody reads here: of mongod 6.0.5 27 KB in 0.36 ms, where all of it is 62 KB in
/// 0.83 ms. A server passes over the names that it does not know.
fn question() -> Document {
    let mut question = doc! { "serverStatus": 1 };
    for section in UNREAD_SECTIONS {
        question.insert(*section, 0);
    }
    let unread: Document = UNREAD_METRICS
        .iter()
        .map(|name| ((*name).to_owned(), false.into()))
        .collect();
    question.insert(METRICS, unread);
    question
}

/// The section of which a part is read.
const METRICS: &str = "metrics";

/// The server's code for a user who may not ask.
const UNAUTHORIZED: i32 = 13;

/// Sections that servers from 4.4 to 8.0 have by default and nobody reads here.
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

/// Parts of the section `metrics`, likewise; `document` stays.
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
