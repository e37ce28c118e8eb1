//! The environment of an attack: connections to Seawall, the rate of attempts, and the counts of
//! how attempts ended.

use std::{collections::BTreeMap, fmt, net::SocketAddr, thread::JoinHandle, time::Duration};

use bson::doc;
use rustix::process::setpriority_process;
use seawall_tests::raw::{Login, RawClient, RawError, RawReply};
use tokio::{
    runtime::Builder,
    sync::watch,
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    Attack,
    testbed::{ATTACKER_ADDRESS, Users, connect_from},
};
use crate::process::thread_cpu_time;

/// Maximum number of attempts at the same time. It limits the memory of this process if Seawall
/// does not reply.
const MAX_UNDER_WAY: usize = 256;

/// Time limit of one attempt.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);

/// Time that [`Arena::count_open`] waits for bytes on each connection that is open at the end of an
/// attack. At the end of an attack, [`Arena::attempts`] also gives the attempts that still run at
/// least this time to end.
const FINAL_CHECK_TIME: Duration = Duration::from_millis(100);

/// Maximum time that an attack continues after its planned end if no attempt has ended as expected
/// yet. On a busy machine, it can happen that no attempt ends within the time of a quick run.
const FIRST_ENDING_LIMIT: Duration = Duration::from_secs(30);

/// Number of connections established at the same time during the preparation of an attack.
const MAX_PREPARING: usize = 16;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// The attempt ended with an error that has this code.
    Refused(i32),
    /// The connection was closed, or the attacker got an invalid reply.
    Closed,
    /// The attempt ended with a reply that is not an error.
    Replied,
    /// The attempt did not end within its time limit, or its connection was still open at the end
    /// of the attack.
    Held,
    /// The attempt did not begin, for example because the attacker could not connect.
    NotBegun,
    /// The attacker got something that Seawall must deny.
    Breach(&'static str),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code) => write!(f, "error {code}"),
            Self::Closed => f.write_str("closed"),
            Self::Replied => f.write_str("replied"),
            Self::Held => f.write_str("open at the end"),
            Self::NotBegun => f.write_str("no connection"),
            Self::Breach(what) => write!(f, "BREACH: {what}"),
        }
    }
}

impl From<Result<RawReply, RawError>> for Ending {
    fn from(reply: Result<RawReply, RawError>) -> Self {
        match reply {
            Ok(reply) if reply.is_ok() => Self::Replied,
            Ok(reply) => Self::Refused(reply.code().unwrap_or_default()),
            Err(RawError::TimedOut { .. }) => Self::Held,
            Err(_) => Self::Closed,
        }
    }
}

/// The number of attempts, and how they ended.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of attempts that began.
    pub attempts: u32,
    /// Number of attempts, by how they ended.
    pub endings: BTreeMap<Ending, u32>,
}

impl Tally {
    /// True if an attempt ended in one of these ways.
    pub fn has_one_of(&self, endings: &[Ending]) -> bool {
        endings
            .iter()
            .any(|ending| self.endings.contains_key(ending))
    }
}

/// The environment of one attack. All clones count their attempts in the same tally.
#[derive(Clone, Debug)]
pub struct Arena {
    /// The address that the attack connects to: Seawall's or, with `--direct`, the server's.
    pub target: SocketAddr,
    /// The address of Seawall's admin API.
    pub admin: SocketAddr,
    /// The address of the server behind Seawall.
    pub server: SocketAddr,
    /// The users, with their names and passwords.
    pub users: Users,
    /// True if this is a short run, for CI.
    pub is_quick: bool,
    expected: &'static [Ending],
    tally: watch::Sender<Tally>,
    has_begun: watch::Sender<bool>,
    is_over: watch::Receiver<bool>,
}

impl Arena {
    /// Returns `whole` in a full run and `quick` in a quick run.
    pub fn either<T>(&self, whole: T, quick: T) -> T {
        if self.is_quick { quick } else { whole }
    }

    /// Ends the preparations of the attack and begins the measurement. Each attack must call this
    /// function once.
    pub fn begin(&self) {
        self.has_begun.send_replace(true);
    }

    /// Waits for the end of the attack.
    pub async fn wait_for_end(&self) {
        // The sender is dropped only after the attack, so the wait cannot fail.
        drop(self.is_over.clone().wait_for(|is_over| *is_over).await);
    }

    /// Waits until one attempt has ended as expected, but at most 30 seconds.
    pub async fn wait_for_first_ending(&self) {
        let mut tally = self.tally.subscribe();
        let is_expected = |tally: &Tally| tally.has_one_of(self.expected);
        // If no attempt ended as expected within the time limit, the report shows the expected and
        // the actual endings.
        drop(timeout(FIRST_ENDING_LIMIT, tally.wait_for(is_expected)).await);
    }

    /// Returns a pace of this many ticks per second.
    pub fn pace(&self, per_second: u32) -> Pace {
        let mut ticks = interval(Duration::from_secs(1) / per_second);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Pace {
            ticks,
            has_ticked: false,
            is_over: self.is_over.clone(),
        }
    }

    /// Counts an attempt that has begun.
    pub fn count_attempt(&self) {
        self.tally.send_modify(|tally| tally.attempts += 1);
    }

    /// Counts how an attempt ended.
    pub fn count_ending(&self, ending: Ending) {
        self.tally
            .send_modify(|tally| *tally.endings.entry(ending).or_default() += 1);
    }

    /// Connects to the target from the attackers' address.
    ///
    /// # Errors
    /// If the connection cannot be established.
    pub async fn connect(&self) -> Result<RawClient, RawError> {
        let mut client = connect_from(ATTACKER_ADDRESS, self.target, None).await?;
        client.set_limit(ATTEMPT_LIMIT);
        Ok(client)
    }

    /// Connects to the target from the attackers' address and logs in as the attackers' own user.
    ///
    /// # Errors
    /// If the connection or the login fails.
    pub async fn logged_in(&self) -> Result<RawClient, RawError> {
        let mut client = self.connect().await?;
        log_in(&mut client, &self.users.mallory).await?;
        Ok(client)
    }

    /// Begins the attack, and starts `per_second` attempts per second until the attack is over.
    /// `attempt` gets the number of the attempt; the first attempt has the number 1.
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
            arena.count_attempt();
            under_way.spawn(async move {
                let ended = timeout(ATTEMPT_LIMIT, attempt).await;
                arena.count_ending(match ended {
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
        let enough = async {
            tokio::join!(self.wait_for_first_ending(), sleep(FINAL_CHECK_TIME));
        };
        // Waits until all attempts have ended, or until one attempt has ended as expected and
        // `FINAL_CHECK_TIME` has passed. Then drops the attempts that still run.
        tokio::select! {
            () = rest => {}
            () = enough => {}
        }
    }

    /// Opens `count` connections, and logs in on each as the attackers' own user. Returns only the
    /// connections on which the login succeeded.
    pub async fn many_logged_in(
        &self,
        count: u32,
        receive_buffer_bytes: Option<u32>,
    ) -> Vec<RawClient> {
        let mut clients = Vec::new();
        let mut logging_in = JoinSet::new();
        for _ in 0..count {
            if logging_in.len() >= MAX_PREPARING {
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

    /// Adds each connection to the tally. A connection on which bytes of a reply have arrived
    /// counts as [`Ending::Replied`]. Without such bytes, an open connection counts as
    /// [`Ending::Held`], and a closed one as [`Ending::Closed`].
    pub async fn count_open(&self, clients: Vec<RawClient>) {
        let mut checks = JoinSet::new();
        for mut client in clients {
            client.set_limit(FINAL_CHECK_TIME);
            checks.spawn(async move {
                let first = client.read_bytes(1).await;
                (client, first)
            });
        }
        while let Some(Ok((_, first))) = checks.join_next().await {
            self.count_ending(match first {
                Ok(_) => Ending::Replied,
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

/// Ticks at a fixed rate until the attack is over, and at least once.
#[derive(Debug)]
pub struct Pace {
    ticks: Interval,
    has_ticked: bool,
    is_over: watch::Receiver<bool>,
}

impl Pace {
    /// Waits for the next tick. Returns `false` when the attack is over. The first call always
    /// returns `true`, so that each attack makes at least one attempt.
    pub async fn next(&mut self) -> bool {
        if !self.has_ticked {
            self.has_ticked = true;
            self.ticks.tick().await;
            return true;
        }
        tokio::select! {
            biased;
            _ = self.is_over.wait_for(|is_over| *is_over) => false,
            _ = self.ticks.tick() => true,
        }
    }
}

/// An attack that runs on its own thread.
#[derive(Debug)]
pub struct UnderWay {
    has_begun: watch::Receiver<bool>,
    over: watch::Sender<bool>,
    tally: watch::Sender<Tally>,
    thread: JoinHandle<Duration>,
}

impl UnderWay {
    /// Starts an attack on its own thread. In a full run the thread has the lowest priority. Real
    /// attackers have their own machines, so this thread must not take CPU time from the victims.
    pub fn start(
        attack: &Attack,
        [target, admin, server]: [SocketAddr; 3],
        users: &Users,
        is_quick: bool,
    ) -> Self {
        let (has_begun, begun) = watch::channel(false);
        let (over, is_over) = watch::channel(false);
        let (tally, _) = watch::channel(Tally::default());
        let arena = Arena {
            target,
            admin,
            server,
            users: users.clone(),
            is_quick,
            expected: attack.expected,
            tally: tally.clone(),
            has_begun,
            is_over,
        };
        let run = attack.run;
        let thread = std::thread::Builder::new()
            .name("attackers".to_owned())
            .spawn(move || {
                if !is_quick {
                    // On Linux, this call sets the priority of the thread only. If the call fails,
                    // the attack takes more CPU time from the victims.
                    setpriority_process(None, LOWEST_PRIORITY).unwrap_or_default();
                }
                let runtime = Builder::new_current_thread().enable_all().build();
                runtime.expect("the runtime starts").block_on(run(arena));
                thread_cpu_time().unwrap_or_default()
            });
        Self {
            has_begun: begun,
            over,
            tally,
            thread: thread.expect("the thread starts"),
        }
    }

    /// Waits until the attack has called [`Arena::begin`].
    ///
    /// # Panics
    /// If the attack ends before the call, or the preparations take more than a minute.
    pub async fn wait_until_begun(&mut self) {
        let begun = self.has_begun.wait_for(|has_begun| *has_begun);
        let begun = timeout(Duration::from_secs(60), begun).await;
        begun
            .expect("the attack begins in time")
            .expect("the attack has not ended");
    }

    /// Ends the attack. Returns its tally and the CPU time of its thread.
    ///
    /// # Panics
    /// If the attack panicked.
    pub async fn end(self) -> (Tally, Duration) {
        self.over.send_replace(true);
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        let cpu = joined
            .expect("joining does not panic")
            .expect("no attack panicked");
        let tally = self.tally.borrow().clone();
        (tally, cpu)
    }
}

/// The `nice` value of the attackers' thread.
const LOWEST_PRIORITY: i32 = 19;

/// A find by `_id` that the attackers' own user may run. The caller adds the database (`$db`).
pub fn own_find() -> bson::Document {
    doc! {"find": "small", "filter": {"_id": 1}}
}
