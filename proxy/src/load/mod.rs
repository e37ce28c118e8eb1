//! The load harness: clients that come and go as applications' do, and what they met with.
//!
//! Works on any MongoDB endpoint and knows nothing of the proxy. A *storm* is many clients that lose patience and come
//! again; a *steady* load keeps its connections. Latency counts from the moment an operation was due, so that what waited
//! for the load itself is not left out (coordinated omission), and every answer is checked to be the one that was asked
//! for. How late the generator itself was, and what it cost, stands beside its figures: without them they prove nothing.
//!
//! | module | is |
//! |---|---|
//! | `target` | the endpoint, the user, and the user's keys, derived once |
//! | `link` | one connection: connect, hello, SCRAM, operations |
//! | `client` | one client's life |
//! | `work` | what the clients ask |
//! | `record` | what happened, by the second |
//! | `report` | the same for people and for programs |
//! | `own` | what the generator cost, and how late it was |

mod client;
mod link;
mod own;
mod record;
mod report;
mod target;
mod work;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use self::{
    client::{Client, Until},
    own::Usage,
    record::Record,
    target::Keyring,
};
use crate::auth::NonceSource;

pub use self::{
    report::{Objectives, Report},
    target::{Target, TargetError},
    work::{Mix, MixError, Work},
};

/// What the clients of a load do.
#[derive(Clone, Copy, Debug)]
pub enum Behaviour {
    /// Connect, hello, log in, one operation, close; and again at once.
    Short,
    /// The same, beginning at a rate a second whatever becomes of those before; at most as many at a time as there are
    /// clients.
    ShortAt(f64),
    /// Keep the connection; operations one after another.
    Closed,
    /// Keep the connection; operations at a rate a second over all clients, due whether the one before has ended or not.
    KeptAt(f64),
}

/// A load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to.
    pub target: Target,
    /// How many clients.
    pub clients: usize,
    /// What they do.
    pub behaviour: Behaviour,
    /// How long.
    pub duration: Duration,
    /// The patience of the least and the most patient client with each step; the others' are spread between.
    pub patience: (Duration, Duration),
    /// What they ask.
    pub work: Work,
}

/// A load that could not be begun.
#[derive(Debug, thiserror::Error)]
#[error("{step} at {address}: {cause}")]
pub struct PrepareError {
    step: &'static str,
    address: String,
    cause: String,
}

/// Everything that the clients share.
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

/// Carries a load out, telling each second's progress.
///
/// # Errors
/// If the target cannot be logged in to or prepared; what happens later is part of the report.
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
    let mut clients = start(&shared);
    for second in 0.. {
        let end_of_it = began + Duration::from_secs(second + 1);
        if end_of_it > ends_at {
            break;
        }
        sleep_until(end_of_it).await;
        let line = shared.record.lock().line(second);
        progress(&line);
    }
    sleep_until(ends_at).await;
    // Who still waits for something has been counted up to here; nobody is waited for.
    clients.abort_all();
    while clients.join_next().await.is_some() {}
    watch.abort();
    let record = shared.record.lock().clone();
    Ok(Report::new(&shared.plan, &record, usage.since()))
}

fn start(shared: &Arc<Shared>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let count = shared.plan.clients;
    match shared.plan.behaviour {
        Behaviour::ShortAt(rate) => {
            clients.spawn(arrivals(Arc::clone(shared), rate));
        }
        behaviour => {
            for number in 0..count {
                let client = Client::new(Arc::clone(shared), number);
                clients.spawn(async move {
                    match behaviour {
                        Behaviour::KeptAt(rate) => client.keep_at(rate).await,
                        Behaviour::Closed => client.keep_closed().await,
                        Behaviour::Short | Behaviour::ShortAt(_) => {
                            client.come_and_go(Until::End).await
                        }
                    }
                });
            }
        }
    }
    clients
}

/// Clients that arrive as such do that know nothing of each other: exponentially distributed pauses.
async fn arrivals(shared: Arc<Shared>, rate: f64) {
    let places = Arc::new(Semaphore::new(shared.plan.clients));
    let mut random = StdRng::seed_from_u64(work::SEED);
    let mut arriving = JoinSet::new();
    let mut due = Instant::now();
    for number in 0.. {
        let pause = -(1.0 - random.random::<f64>()).ln() / rate;
        due += Duration::from_secs_f64(pause.min(60.0));
        sleep_until(due).await;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            shared.record.lock().missed(due);
            continue;
        };
        let client = Client::new(Arc::clone(&shared), number % shared.plan.clients);
        arriving.spawn(async move {
            client.come_and_go(Until::FirstCycle).await;
            drop(place);
        });
        while arriving.try_join_next().is_some() {}
    }
}

fn nonces(plan: &Plan) -> Result<NonceSource, PrepareError> {
    NonceSource::new().map_err(|error| PrepareError {
        step: "seeding random numbers",
        address: plan.target.address(0).to_string(),
        cause: error.to_string(),
    })
}

/// One login, so that the keys are known, and documents to be found.
async fn prepare(plan: &Plan, keys: &Keyring, nonces: &NonceSource) -> Result<(), PrepareError> {
    let mut last = None;
    // A target that has just been started may need a moment.
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
