//! Where an attack happens: connections to Seawall, a pace, and what became of each attempt.

use std::{
    collections::BTreeMap, fmt, net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration,
};

use bson::doc;
use parking_lot::Mutex;
use rustix::process::setpriority_process;
use seawall_tests::raw::{Login, RawClient, RawError, RawReply};
use tokio::{
    runtime::Builder,
    sync::watch,
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval, timeout},
};

use super::{
    Attack,
    testbed::{ATTACKER_ADDRESS, Users, connect_from},
};
use crate::process::thread_cpu_time;

/// Attempts under way at a time; protects this process if Seawall does not answer.
const MAX_UNDER_WAY: usize = 256;

/// How long an attempt may take.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);

/// How long a connection that is held is looked at, at the end.
const GLANCE: Duration = Duration::from_millis(100);

/// Connections that begin at a time while an attack is prepared.
const PREPARED_AT_A_TIME: usize = 16;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// By an error with this code.
    Refused(i32),
    /// The connection was closed.
    Closed,
    /// By a reply without an error.
    Answered,
    /// It did not end: the connection was still open when the attack was over.
    Held,
    /// It did not begin: no connection, or no login of the attacker's own.
    NotBegun,
    /// The attacker got what it must not get.
    Breach(&'static str),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code) => write!(f, "error {code}"),
            Self::Closed => f.write_str("closed"),
            Self::Answered => f.write_str("answered"),
            Self::Held => f.write_str("open at the end"),
            Self::NotBegun => f.write_str("no connection"),
            Self::Breach(what) => write!(f, "BREACH: {what}"),
        }
    }
}

impl From<Result<RawReply, RawError>> for Ending {
    fn from(reply: Result<RawReply, RawError>) -> Self {
        match reply {
            Ok(reply) if reply.is_ok() => Self::Answered,
            Ok(reply) => Self::Refused(reply.code().unwrap_or_default()),
            Err(RawError::TimedOut { .. }) => Self::Held,
            Err(_) => Self::Closed,
        }
    }
}

/// What an attack came to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Attempts that began.
    pub attempts: u32,
    /// How they ended.
    pub endings: BTreeMap<Ending, u32>,
}

/// What an attack needs. Clones are of the same one.
#[derive(Clone, Debug)]
pub struct Arena {
    /// Where Seawall listens.
    pub target: SocketAddr,
    /// Its admin address.
    pub admin: SocketAddr,
    /// The server behind it.
    pub server: SocketAddr,
    /// Whose names and passwords there are.
    pub users: Users,
    /// A small one, for CI.
    pub is_quick: bool,
    tally: Arc<Mutex<Tally>>,
    has_begun: watch::Sender<bool>,
    is_over: watch::Receiver<bool>,
}

impl Arena {
    /// One of two values: of a whole run, and of a quick one.
    pub fn either<T>(&self, whole: T, quick: T) -> T {
        if self.is_quick { quick } else { whole }
    }

    /// Preparations are over: what follows is measured.
    pub fn begin(&self) {
        self.has_begun.send_replace(true);
    }

    /// Waits until the attack has to end.
    pub async fn over(&self) {
        // The other end is dropped after the attack only.
        drop(self.is_over.clone().wait_for(|is_over| *is_over).await);
    }

    /// Paces attempts at this rate per second.
    pub fn pace(&self, per_second: u32) -> Pace {
        let mut ticks = interval(Duration::from_secs(1) / per_second);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Pace {
            ticks,
            is_over: self.is_over.clone(),
        }
    }

    /// Counts an attempt that has begun.
    pub fn attempted(&self) {
        self.tally.lock().attempts += 1;
    }

    /// Counts how an attempt ended.
    pub fn ended(&self, ending: Ending) {
        *self.tally.lock().endings.entry(ending).or_default() += 1;
    }

    /// An attacker's connection.
    ///
    /// # Errors
    /// If there is none.
    pub async fn connect(&self) -> Result<RawClient, RawError> {
        let mut client = connect_from(ATTACKER_ADDRESS, self.target, None).await?;
        client.set_limit(ATTEMPT_LIMIT);
        Ok(client)
    }

    /// An attacker's connection that has logged in with its own user, or the reason why not.
    ///
    /// # Errors
    /// If it could not.
    pub async fn logged_in(&self) -> Result<RawClient, RawError> {
        let mut client = self.connect().await?;
        log_in(&mut client, &self.users.mallory).await?;
        Ok(client)
    }

    /// Begins the attack, and makes attempts at a pace until it is over.
    pub async fn attempts<F, Fut>(&self, per_second: u32, attempt: F)
    where
        F: Fn(Self, u32) -> Fut,
        Fut: Future<Output = Result<Ending, RawError>> + Send + 'static,
    {
        self.begin();
        let mut pace = self.pace(per_second);
        let mut under_way = JoinSet::new();
        let mut number = 0_u32;
        while pace.next().await {
            number = number.wrapping_add(1);
            let (arena, attempt) = (self.clone(), attempt(self.clone(), number));
            arena.attempted();
            under_way.spawn(async move {
                let ended = timeout(ATTEMPT_LIMIT, attempt).await;
                arena.ended(match ended {
                    Err(_) => Ending::Held,
                    Ok(Ok(ending)) => ending,
                    Ok(Err(RawError::Io(_))) => Ending::NotBegun,
                    Ok(Err(error)) => Ending::from(Err(error)),
                });
            });
            while under_way.try_join_next().is_some() {}
            if under_way.len() >= MAX_UNDER_WAY {
                under_way.join_next().await;
            }
        }
        let rest = async { while under_way.join_next().await.is_some() {} };
        // What takes longer is given up with the attack.
        drop(timeout(GLANCE, rest).await);
    }

    /// Opens this many connections as the attacker's own user. Returns fewer if some are refused.
    pub async fn many_logged_in(
        &self,
        count: u32,
        receive_buffer_bytes: Option<u32>,
    ) -> Vec<RawClient> {
        let mut clients = Vec::new();
        let mut logging_in = JoinSet::new();
        for _ in 0..count {
            if logging_in.len() >= PREPARED_AT_A_TIME {
                clients.extend(logging_in.join_next().await.and_then(Result::ok).flatten());
            }
            let arena = self.clone();
            logging_in.spawn(async move {
                let client = connect_from(ATTACKER_ADDRESS, arena.target, receive_buffer_bytes);
                let mut client = client.await.ok()?;
                log_in(&mut client, &arena.users.mallory).await.ok()?;
                Some(client)
            });
        }
        while let Some(client) = logging_in.join_next().await {
            clients.extend(client.ok().flatten());
        }
        clients
    }

    /// Counts which of the connections are still open.
    pub async fn look_at(&self, clients: Vec<RawClient>) {
        let mut looks = JoinSet::new();
        for mut client in clients {
            client.set_limit(GLANCE);
            looks.spawn(async move {
                let first = client.read_bytes(1).await;
                (client, first)
            });
        }
        while let Some(Ok((_, first))) = looks.join_next().await {
            self.ended(match first {
                Ok(_) => Ending::Answered,
                Err(RawError::TimedOut { .. }) => Ending::Held,
                Err(_) => Ending::Closed,
            });
        }
    }
}

async fn log_in(client: &mut RawClient, login: &Login) -> Result<(), RawError> {
    let outcome = client.login(login).await?;
    match outcome.is_authenticated() {
        true => Ok(()),
        false => Err(RawError::Malformed),
    }
}

/// Ticks at a pace until the attack is over.
#[derive(Debug)]
pub struct Pace {
    ticks: Interval,
    is_over: watch::Receiver<bool>,
}

impl Pace {
    /// Waits for the next tick; `false` when the attack is over.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.is_over.wait_for(|is_over| *is_over) => false,
            _ = self.ticks.tick() => true,
        }
    }
}

/// An attack under way, on a thread of its own.
#[derive(Debug)]
pub struct UnderWay {
    has_begun: watch::Receiver<bool>,
    over: watch::Sender<bool>,
    tally: Arc<Mutex<Tally>>,
    thread: JoinHandle<Duration>,
}

impl UnderWay {
    /// Starts an attack. Its thread has the lowest priority: attackers have machines of their own, and what they
    /// compute must not be taken from the victims.
    ///
    /// # Panics
    /// If there is no thread for it.
    pub fn start(
        attack: &Attack,
        [target, admin, server]: [SocketAddr; 3],
        users: &Users,
        is_quick: bool,
    ) -> Self {
        let (has_begun, begun) = watch::channel(false);
        let (over, is_over) = watch::channel(false);
        let tally = Arc::new(Mutex::new(Tally::default()));
        let arena = Arena {
            target,
            admin,
            server,
            users: users.clone(),
            is_quick,
            tally: Arc::clone(&tally),
            has_begun,
            is_over,
        };
        let run = attack.run;
        let thread = std::thread::Builder::new()
            .name("attackers".to_owned())
            .spawn(move || {
                // On Linux the priority of a thread; refused, the attack is only dearer.
                setpriority_process(None, LOWEST_PRIORITY).unwrap_or_default();
                let runtime = Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(run(arena));
                thread_cpu_time().unwrap_or_default()
            });
        Self {
            has_begun: begun,
            over,
            tally,
            thread: thread.expect("a thread starts"),
        }
    }

    /// Waits until its preparations are over.
    ///
    /// # Panics
    /// If it ended before, or they take more than a minute.
    pub async fn has_begun(&mut self) {
        let begun = self.has_begun.wait_for(|has_begun| *has_begun);
        let begun = timeout(Duration::from_secs(60), begun).await;
        begun
            .expect("preparations end")
            .expect("the attack goes on");
    }

    /// Ends it: what it came to, and the CPU time of its thread.
    ///
    /// # Panics
    /// If it panicked.
    pub async fn end(self) -> (Tally, Duration) {
        self.over.send_replace(true);
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        let cpu = joined
            .expect("joining does not panic")
            .expect("no attack panicked");
        let tally = std::mem::take(&mut *self.tally.lock());
        (tally, cpu)
    }
}

/// The `nice` value of attackers.
const LOWEST_PRIORITY: i32 = 19;

/// A find in the attacker's own database.
pub fn own_find() -> bson::Document {
    doc! {"find": "small", "filter": {"_id": 1}}
}
