//! The victims. Two users run small and large finds at constant rates over persistent connections.
//! These users and others also log in repeatedly.
//!
//! The victims have their own thread, so that the attackers' work in this process does not slow
//! them. Latency is measured from the time at which an operation was due. The operation starts
//! later if the previous operation has not ended at that time.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use bson::{Document, doc};
use seawall_locks::Mutex;
use seawall_tests::raw::{Login, OpMsg, RawClient, RawError, Start};
use tokio::{
    runtime::Builder,
    sync::watch,
    task::JoinSet,
    time::{Instant, interval_at, timeout},
};

use super::testbed::{ALICE, BOB, BOB_ADDRESS, DOCUMENTS, LARGE_BYTES, Users, connect_from};

/// Number of persistent connections of each user for small finds.
const CONNECTIONS: u32 = 4;

/// Time between two small finds of one connection. All connections together run 400 finds per
/// second.
const FIND_EVERY: Duration = Duration::from_millis(20);

/// Time between two large finds of one user. Both users together run 10 per second.
const LARGE_EVERY: Duration = Duration::from_millis(200);

/// Time between two logins.
const LOGIN_EVERY: Duration = Duration::from_millis(50);

/// Every tenth login is the login of a newcomer ([`Users::newcomers`]), whom Seawall does not know
/// yet. In a long run, there comes a time when all newcomers have logged in. Then they log in again
/// in the same order, although Seawall knows them. The users of the other logins are [`ALICE`] and
/// [`BOB`].
const FIRST_LOGIN_EVERY: u32 = 10;

/// Time limit of a login or of another operation.
const LIMIT: Duration = Duration::from_secs(10);

/// The durations of one kind of operation.
#[derive(Clone, Debug, Default)]
pub struct Durations(Vec<Duration>);

impl Durations {
    /// Returns the number of durations.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The duration in milliseconds that `percent` percent of the durations do not exceed; NaN if
    /// there are no durations.
    pub fn percentile_ms(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        let found = sorted.get(rank - 1);
        found.map_or(f64::NAN, |duration| duration.as_secs_f64() * 1e3)
    }
}

/// Measurements of the victims in one phase: before the attack, or during it.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Latencies of small finds.
    pub finds: Durations,
    /// Latencies of finds with a large command and a large reply.
    pub large: Durations,
    /// Times from connecting to the end of the login, for users that Seawall knows.
    pub logins: Durations,
    /// Times from connecting to the end of the login, for newcomers ([`Users::newcomers`]).
    pub first_logins: Durations,
    /// For each failed operation, the reason why it failed.
    pub failed: Vec<String>,
    /// For each login that failed, the reason why it failed.
    pub refused: Vec<String>,
}

/// The thread of the victims, which runs until [`Self::stop`] is called.
#[derive(Debug)]
pub struct Victims {
    phase: Arc<Mutex<Phase>>,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Victims {
    /// Starts the thread of the victims.
    ///
    /// # Panics
    /// If the thread cannot be started.
    pub fn start(target: SocketAddr, users: Users) -> Self {
        let phase = Arc::new(Mutex::new(Phase::default()));
        let (stop, stopped) = watch::channel(false);
        let work = VictimWork {
            target,
            phase: Arc::clone(&phase),
            stopped,
        };
        let thread = std::thread::Builder::new()
            .name("victims".to_owned())
            .spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build();
                runtime
                    .expect("the runtime starts")
                    .block_on(work.run(users));
            });
        Self {
            phase,
            stop,
            thread: thread.expect("the thread starts"),
        }
    }

    /// Ends a phase. Returns the measurements since the end of the previous phase.
    pub fn take(&self) -> Phase {
        std::mem::take(&mut *self.phase.lock())
    }

    /// Stops the victims, and waits until their running operations have ended. Returns the
    /// measurements since the end of the previous phase.
    ///
    /// # Panics
    /// If a victim's task panicked.
    pub async fn stop(self) -> Phase {
        self.stop.send_replace(true);
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        joined
            .expect("joining does not panic")
            .expect("no victim panicked");
        std::mem::take(&mut *self.phase.lock())
    }
}

#[derive(Clone)]
struct VictimWork {
    target: SocketAddr,
    phase: Arc<Mutex<Phase>>,
    stopped: watch::Receiver<bool>,
}

/// A find in a victim's own database, and the list to which its latency is added.
struct Find {
    message: OpMsg,
    durations: fn(&mut Phase) -> &mut Durations,
}

impl VictimWork {
    async fn run(self, users: Users) {
        let mut tasks = JoinSet::new();
        let pairs = [
            (users.alice.clone(), Ipv4Addr::LOCALHOST),
            (users.bob.clone(), BOB_ADDRESS),
        ];
        let began = Instant::now();
        for (login, source) in &pairs {
            for n in 0..CONNECTIONS {
                let offset = FIND_EVERY * n / CONNECTIONS;
                let find = Find::small(&login.user, i32::try_from(n).unwrap_or_default());
                let login = login.clone();
                tasks.spawn(self.clone().keep_finding(
                    login,
                    *source,
                    find,
                    (began + offset, FIND_EVERY),
                ));
            }
            let find = Find::large(&login.user);
            tasks.spawn(self.clone().keep_finding(
                login.clone(),
                *source,
                find,
                (began, LARGE_EVERY),
            ));
        }
        tasks.spawn(self.keep_logging_in(pairs, users.newcomers));
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no victim panics");
        }
    }

    /// Runs the same find at a constant rate over one persistent connection, and connects again if
    /// the connection is closed.
    async fn keep_finding(
        mut self,
        login: Login,
        source: Ipv4Addr,
        find: Find,
        (began, every): (Instant, Duration),
    ) {
        let mut client = None;
        let mut ticks = interval_at(began, every);
        let mut last_ended = began;
        while let Some(due) = self.next(&mut ticks).await {
            let since = if last_ended > due {
                due
            } else {
                Instant::now()
            };
            let ended = self.find_once(&mut client, &login, source, &find).await;
            last_ended = Instant::now();
            let mut phase = self.phase.lock();
            match ended {
                Ok(()) => (find.durations)(&mut phase).0.push(last_ended - since),
                Err(reason) => {
                    phase.failed.push(reason);
                    client = None;
                }
            }
        }
    }

    async fn find_once(
        &self,
        client: &mut Option<RawClient>,
        login: &Login,
        source: Ipv4Addr,
        find: &Find,
    ) -> Result<(), String> {
        let client = match client {
            Some(client) => client,
            None => client.insert(self.log_in(login, source).await?),
        };
        exchange(client, &find.message).await
    }

    /// Starts a client every [`LOGIN_EVERY`]. The client logs in, runs one find and disconnects.
    async fn keep_logging_in(mut self, pairs: [(Login, Ipv4Addr); 2], newcomers: Vec<Login>) {
        let mut under_way = JoinSet::new();
        let mut ticks = interval_at(Instant::now(), LOGIN_EVERY);
        let mut number = 0_u32;
        let mut newcomers = newcomers.into_iter().cycle();
        while self.next(&mut ticks).await.is_some() {
            number = number.wrapping_add(1);
            let [alice, bob] = &pairs;
            let (login, source) = if number.is_multiple_of(2) { alice } else { bob };
            let is_first = number.is_multiple_of(FIRST_LOGIN_EVERY);
            let newcomer = is_first.then(|| newcomers.next()).flatten();
            let durations: fn(&mut Phase) -> &mut Durations = match newcomer {
                Some(_) => |phase| &mut phase.first_logins,
                None => |phase| &mut phase.logins,
            };
            let login = newcomer.unwrap_or_else(|| login.clone());
            under_way.spawn(self.clone().log_in_once(login, *source, durations));
            while under_way.try_join_next().is_some() {}
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn log_in_once(
        self,
        login: Login,
        source: Ipv4Addr,
        durations: fn(&mut Phase) -> &mut Durations,
    ) {
        let began = Instant::now();
        let client = self.log_in(&login, source).await;
        let took = began.elapsed();
        match client {
            Err(reason) => self.phase.lock().refused.push(reason),
            Ok(mut client) => {
                durations(&mut self.phase.lock()).0.push(took);
                let db = if login.user == BOB { BOB } else { ALICE };
                let find = Find::small(db, 1);
                if let Err(reason) = exchange(&mut client, &find.message).await {
                    self.phase.lock().failed.push(reason);
                }
            }
        }
    }

    /// Connects and logs in as drivers do: the `hello` has the first message of the login.
    async fn log_in(&self, login: &Login, source: Ipv4Addr) -> Result<RawClient, String> {
        let logged_in = async {
            let mut client = connect_from(source, self.target, None).await?;
            client.set_limit(LIMIT);
            let login = login.clone().start(Start::SpeculativeHello);
            let outcome = client.login(&login).await?;
            Ok::<_, RawError>((client, outcome))
        };
        match timeout(LIMIT, logged_in).await {
            Ok(Ok((client, outcome))) if outcome.is_authenticated() => Ok(client),
            Ok(Ok((_, outcome))) => Err(format!(
                "login of {}: refused with code {:?}",
                login.user,
                outcome.code()
            )),
            Ok(Err(error)) => Err(format!("login of {}: {error}", login.user)),
            Err(_) => Err(format!(
                "login of {}: not finished within {LIMIT:?}",
                login.user
            )),
        }
    }

    /// Waits for the next tick. Returns the time at which the tick was due, or `None` when the
    /// victims must stop.
    async fn next(&mut self, ticks: &mut tokio::time::Interval) -> Option<Instant> {
        tokio::select! {
            biased;
            _ = self.stopped.wait_for(|is_over| *is_over) => None,
            due = ticks.tick() => Some(due),
        }
    }
}

impl Find {
    fn small(db: &str, id: i32) -> Self {
        let id = id.rem_euclid(DOCUMENTS);
        Self {
            message: find("small", db, doc! {"_id": id}),
            durations: |phase| &mut phase.finds,
        }
    }

    fn large(db: &str) -> Self {
        let other = "y".repeat(LARGE_BYTES);
        Self {
            message: find("large", db, doc! {"_id": 0, "pad": {"$ne": other}}),
            durations: |phase| &mut phase.large,
        }
    }
}

fn find(collection: &str, db: &str, filter: Document) -> OpMsg {
    let command =
        doc! {"find": collection, "filter": filter, "limit": 1, "singleBatch": true, "$db": db};
    OpMsg::new(command)
}

/// Runs an operation that must return exactly one document.
async fn exchange(client: &mut RawClient, message: &OpMsg) -> Result<(), String> {
    let reply = timeout(LIMIT, client.exchange(message)).await;
    let reply = reply.map_err(|_| format!("find: no reply within {LIMIT:?}"))?;
    let reply = reply.map_err(|error| format!("find: {error}"))?;
    let cursor = reply.body.get_document("cursor").ok();
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    match batch.map(Vec::len) {
        Some(1) => Ok(()),
        Some(found) => Err(format!("find: {found} documents, not 1")),
        None => Err(format!("find: error {:?}", reply.code())),
    }
}
