//! The load harness: simulates clients that connect and run operations as applications do, and
//! reports the results.
//!
//! The harness works with any MongoDB endpoint, not only with Seawall. In a *storm*, many clients
//! time out and reconnect. A *steady* load keeps its connections. Latency is measured from the time
//! when an operation was due, so it includes time during which the client was busy (this avoids
//! coordinated omission). The harness checks that every reply matches its command. The report also
//! has the CPU time of the harness, and how late its timers were: if the harness is overloaded, its
//! results are wrong.
//!
//! | module | purpose |
//! |---|---|
//! | `target` | the endpoint, the user, and the user's keys, derived once |
//! | `link` | one connection: connect, `hello`, SCRAM, operations |
//! | `client` | one client: its steps, timeouts and reconnects |
//! | `work` | the operations that clients run, and the checks of replies |
//! | `record` | the results per second |
//! | `report` | the final report as text and JSON |
//! | `own` | the CPU time of the harness itself, and how late its timers are |

mod client;
mod link;
mod own;
mod record;
mod report;
mod target;
mod work;

use std::{sync::Arc, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use self::{
    client::{Client, MAX_INTERVAL_S},
    own::Usage,
    record::Record,
};
use seawall_auth::NonceSource;
use seawall_locks::Mutex;

pub use self::{
    link::{Failure, Link},
    report::{Objectives, Report},
    target::{Address, Keyring, Target, TargetError, User},
    work::{Mix, MixError, Work},
};

/// How clients connect, and when they send operations.
#[derive(Clone, Copy, Debug)]
pub enum Behaviour {
    /// Connect, send `hello`, log in, run one operation and close the connection; then connect
    /// again immediately or, after a refusal, 10 ms later.
    Short,
    /// Like [`Behaviour::Short`], but connections start at this average rate per second, even if
    /// earlier connections are still open. At most [`Plan::clients`] connections are open at the
    /// same time.
    ShortAt(f64),
    /// Keep the connection, and run operations one after another.
    Closed,
    /// Keep the connection. This many operations are due per second over all clients, even if
    /// earlier operations have not ended.
    KeptAt(f64),
}

/// The description of a load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The endpoint under load.
    pub target: Target,
    /// Number of simulated clients. With [`Behaviour::ShortAt`], it is the maximum number of
    /// connections that are open at the same time.
    pub clients: usize,
    /// How clients connect, and when they send operations.
    pub behaviour: Behaviour,
    /// How long the load lasts. The preparation before it is not included.
    pub duration: Duration,
    /// The shortest and the longest timeout of one step of a client. Each client has its own
    /// timeout, and the timeouts of all clients are spread evenly over this range.
    pub patience: (Duration, Duration),
    /// The operations that clients run.
    pub work: Work,
}

/// The preparation of the load failed.
#[derive(Debug, thiserror::Error)]
#[error("could not prepare the load: {step} at {address}: {cause}")]
pub struct PrepareError {
    step: &'static str,
    address: String,
    cause: String,
}

/// State shared by all clients.
struct Shared {
    plan: Plan,
    keys: Keyring,
    nonces: NonceSource,
    record: Mutex<Record>,
    ends_at: Instant,
}

impl Shared {
    fn patience(&self, number: usize) -> Duration {
        let (least, most) = self.plan.patience;
        let last = u32::try_from(self.plan.clients.max(2) - 1).unwrap_or(u32::MAX);
        let number = u32::try_from(number).unwrap_or(u32::MAX).min(last);
        least + most.saturating_sub(least) / last * number
    }
}

/// Runs a load. Calls `progress` with one line of text per second.
///
/// # Errors
/// If the harness cannot connect to the target, log in or insert the documents, or if the operating
/// system returns no random numbers. Failures after this preparation are part of the report.
pub async fn run(plan: Plan, progress: impl Fn(&str)) -> Result<Report, PrepareError> {
    let (keys, nonces) = (Keyring::default(), nonces(&plan)?);
    prepare(&plan, &keys, &nonces).await?;
    let began = Instant::now();
    let usage = Usage::now();
    let ends_at = began + plan.duration;
    let shared = Arc::new(Shared {
        keys,
        nonces,
        record: Mutex::new(Record::new(began)),
        ends_at,
        plan,
    });
    let watch = tokio::spawn(own::watch_lateness(Arc::clone(&shared)));
    let arrived = Arrived::default();
    let mut clients = start(&shared, &arrived);
    for second in 0.. {
        let end_of_second = began + Duration::from_secs(second + 1);
        if end_of_second > ends_at {
            break;
        }
        sleep_until(end_of_second).await;
        let line = shared.record.lock().line(second);
        progress(&line);
    }
    sleep_until(ends_at).await;
    // Steps that are still running at the end are aborted and not counted. Only the time that
    // operations have waited for their reply is recorded, if it is long.
    clients.abort_all();
    while clients.join_next().await.is_some() {}
    // No task starts further clients now. A client that is aborted here records its operation, if
    // the operation has waited long.
    let mut arrived = std::mem::take(&mut *arrived.lock());
    arrived.shutdown().await;
    watch.abort();
    let record = shared.record.lock().clone();
    Ok(Report::new(&shared.plan, &record, usage.since()))
}

/// The clients that [`arrivals`] has started.
type Arrived = Arc<Mutex<JoinSet<()>>>;

fn start(shared: &Arc<Shared>, arrived: &Arrived) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let count = shared.plan.clients;
    match shared.plan.behaviour {
        Behaviour::ShortAt(rate) => {
            clients.spawn(arrivals(Arc::clone(shared), rate, Arc::clone(arrived)));
        }
        behaviour => {
            for number in 0..count {
                let client = Client::new(Arc::clone(shared), number);
                clients.spawn(async move {
                    match behaviour {
                        Behaviour::KeptAt(rate) => client.run_at_rate(rate).await,
                        Behaviour::Closed => client.run_closed_loop().await,
                        Behaviour::Short | Behaviour::ShortAt(_) => {
                            client.run_short_connections().await
                        }
                    }
                });
            }
        }
    }
    clients
}

/// Starts clients at random times, as a Poisson process: the pauses between them have an
/// exponential distribution.
async fn arrivals(shared: Arc<Shared>, rate: f64, arrived: Arrived) {
    let permits = Arc::new(Semaphore::new(shared.plan.clients));
    let mut random = StdRng::seed_from_u64(work::SEED);
    let mut due = Instant::now();
    for number in 0.. {
        let pause = -(1.0 - random.random::<f64>()).ln() / rate;
        due += Duration::from_secs_f64(pause.min(MAX_INTERVAL_S));
        sleep_until(due).await;
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            shared.record.lock().count_missed(due);
            continue;
        };
        let client = Client::new(Arc::clone(&shared), number % shared.plan.clients);
        arrived.lock().spawn(async move {
            client.run_arrival(due, rate).await;
            drop(permit);
        });
        while arrived.lock().try_join_next().is_some() {}
    }
}

fn nonces(plan: &Plan) -> Result<NonceSource, PrepareError> {
    NonceSource::new().map_err(|error| PrepareError {
        step: "seeding random numbers",
        address: plan.target.address(0).to_string(),
        cause: error.to_string(),
    })
}

/// Logs in once, so that later logins need no key derivation, and inserts the documents. Retries
/// failed attempts.
async fn prepare(plan: &Plan, keys: &Keyring, nonces: &NonceSource) -> Result<(), PrepareError> {
    let mut last = None;
    // A target that has just started may not accept connections yet.
    for _ in 0..PREPARE_ATTEMPTS {
        match client::prepare(plan, keys, nonces).await {
            Ok(()) => return Ok(()),
            Err((step, failure)) => last = Some((step, failure.to_string())),
        }
        sleep(PREPARE_PAUSE).await;
    }
    let (step, cause) = last.unwrap_or_default();
    let address = plan.target.address(0).to_string();
    Err(PrepareError {
        step,
        address,
        cause,
    })
}

const PREPARE_ATTEMPTS: usize = 20;

const PREPARE_PAUSE: Duration = Duration::from_millis(250);
