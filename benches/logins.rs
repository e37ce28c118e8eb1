//! Measures how long refused logins take: `cargo bench --bench logins`.
//!
//! From the duration of a refused login, a client must not learn more about users than a server
//! itself reveals. The clients of the bench log in directly at a mongod and through Seawall. The
//! logins are refused for different reasons. The bench prints how much their times differ.
//!
//! - `--quick`: a short run for CI. Every run asserts that all logins are refused. No run asserts
//!   how long they take.
//! - `--tries N`: the number of logins for each reason and target.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use seawall_benches::{
    options::option,
    output::say,
    process::{Process, free_port, serve},
    run::Run,
};
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, Options, ReplicaSet, create_user},
    process::binary,
    raw::{Login, Mechanism, RawClient},
};
use tokio::{
    runtime::Builder,
    task::{JoinSet, yield_now},
    time::Instant,
};

/// Number of clients that log in through Seawall at the same time. Seawall delays the refusal of
/// a login by 50 ms. So the clients mostly wait, and they hardly disturb each other.
const CLIENTS: usize = 16;

/// Number of clients that log in at the server at the same time. With more clients, the times would
/// include the wait in the server's queue.
const DIRECT_CLIENTS: usize = 1;

/// The code `AuthenticationFailed`.
const REFUSED: i32 = 18;

const START_LIMIT: Duration = Duration::from_secs(30);

/// The reason why a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    UnknownUser,
    NewUnknownUser,
    WrongPassword,
    WrongPasswordOfNewcomer,
    WrongMechanism,
}

impl Reason {
    const ALL: [Self; 5] = [
        Self::UnknownUser,
        Self::NewUnknownUser,
        Self::WrongPassword,
        Self::WrongPasswordOfNewcomer,
        Self::WrongMechanism,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::UnknownUser => "unknown user, the same name each time",
            Self::NewUnknownUser => "unknown user, a new name each time",
            Self::WrongPassword => "wrong password",
            Self::WrongPasswordOfNewcomer => "wrong password, the user has never logged in",
            Self::WrongMechanism => "mechanism for which the user has no keys",
        }
    }
}

/// The logins of a run. Clones of a login share derived keys, so that PBKDF2 is not measured.
struct Logins {
    unknown: Login,
    wrong: Login,
    newcomer: Login,
    mechanism: Login,
}

impl Logins {
    /// Creates two users. The user `known` logs in at each of `targets`, so that Seawall knows the
    /// keys of this user.
    async fn prepare(set: &ReplicaSet, targets: &[LoginTarget]) -> Self {
        let root = set.client().await.expect("the set accepts connections");
        for name in ["known", "newcomer"] {
            let user = NewUser::new("admin", name, "right").mechanisms(&[Mechanism::ScramSha256]);
            let created = create_user(&root, &user).await;
            created.expect("the user can be created");
        }
        for target in targets {
            let right = Login::new("admin", "known", "right");
            let log_in = || async {
                let mut client = RawClient::connect(target.address).await.ok()?;
                let outcome = client.login(&right).await.ok()?;
                outcome.is_authenticated().then_some(())
            };
            let is_in = || async { log_in().await.is_some() };
            let is_in = eventually(START_LIMIT, is_in).await;
            is_in.expect("each target accepts logins");
        }
        Self {
            unknown: Login::new("admin", "nobody", "wrong"),
            wrong: Login::new("admin", "known", "wrong"),
            newcomer: Login::new("admin", "newcomer", "wrong"),
            mechanism: Login::new("admin", "known", "right").mechanism(Mechanism::ScramSha1),
        }
    }

    /// The login that is refused for this reason. `name` is a user name that has not been used
    /// before.
    fn of(&self, reason: Reason, name: String) -> Login {
        match reason {
            Reason::UnknownUser => self.unknown.clone(),
            Reason::NewUnknownUser => Login {
                user: name,
                ..self.unknown.clone()
            },
            Reason::WrongPassword => self.wrong.clone(),
            Reason::WrongPasswordOfNewcomer => self.newcomer.clone(),
            Reason::WrongMechanism => self.mechanism.clone(),
        }
    }
}

/// An endpoint at which clients log in.
struct LoginTarget {
    name: &'static str,
    address: SocketAddr,
    clients: usize,
    _process: Option<Process>,
}

impl LoginTarget {
    fn seawall(set: &ReplicaSet) -> Self {
        let port = free_port().expect("a port is free");
        let mut command = serve(binary());
        command
            .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", "off"])
            .args(["--deployment", &set.uri()])
            // All measured logins fail, so no client is ever logged in. With the default time limit
            // for a login, Seawall would close the clients' connections.
            .env("SEAWALL_AUTH__AUTHENTICATION_TIMEOUT_MS", "3600000");
        Self {
            name: "Seawall",
            address: ([127, 0, 0, 1], port).into(),
            clients: CLIENTS,
            _process: Some(Process::start(&mut command).expect("Seawall starts")),
        }
    }
}

/// The times of refusals, sorted, for each of [`Reason::ALL`].
type RefusalTimes = [Vec<Duration>; Reason::ALL.len()];

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let tries = option("--tries").map(|tries| tries.parse().expect("--tries takes a number"));
    let tries = tries.unwrap_or(if is_quick { 32 } else { 10_000 });
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("the runtime starts").block_on(run(tries));
}

async fn run(tries: usize) {
    let facts = Run::begin(1, Duration::ZERO);
    say(&format!(
        "## Times of refused logins\n\n{}, commit {}, {}; {tries} logins for each reason\n",
        facts.date, facts.commit, facts.machine
    ));
    let set = ReplicaSet::start(1, Options::with_auth()).await;
    let set = set.expect("a mongod starts");
    let primary = set.primary().await.expect("the set has a primary");
    let direct = LoginTarget {
        name: "mongod",
        address: primary.address(),
        clients: DIRECT_CLIENTS,
        _process: None,
    };
    let targets = [direct, LoginTarget::seawall(&set)];
    let logins = Arc::new(Logins::prepare(&set, &targets).await);
    let mut measured = Vec::new();
    for target in &targets {
        measured.push((target.name, measure(target, &logins, tries).await));
    }
    say("| target | reason | median, µs | p10 | p90 | p99 |");
    say("|---|---|---|---|---|---|");
    for (target, times) in &measured {
        for (reason, times) in Reason::ALL.iter().zip(times) {
            let [median, p10, p90, p99] = [50, 10, 90, 99].map(|percent| at(times, percent));
            let name = reason.name();
            say(&format!(
                "| {target} | {name} | {median} | {p10} | {p90} | {p99} |"
            ));
        }
    }
    say(
        "\n| target | largest difference of two medians, µs | largest distance of two distributions |",
    );
    say("|---|---|---|");
    for (target, times) in &measured {
        let (medians, distance) = (difference_of_medians(times), largest_distance(times));
        say(&format!("| {target} | {medians} | {distance:.2} |"));
    }
    say(
        "\nThe distance is the Kolmogorov-Smirnov statistic. A client that knows both distributions \
         and measures one login guesses the reason correctly with a probability of at most \
         (1 + distance) / 2.",
    );
}

/// Measures `tries` refused logins for each reason. The reasons alternate.
async fn measure(target: &LoginTarget, logins: &Arc<Logins>, tries: usize) -> RefusalTimes {
    let mut clients = JoinSet::new();
    for number in 0..target.clients {
        let (address, logins) = (target.address, Arc::clone(logins));
        let tries = tries / target.clients;
        clients.spawn(async move { log_in_repeatedly(address, &logins, tries, number).await });
    }
    let mut all = RefusalTimes::default();
    while let Some(times) = clients.join_next().await {
        let times = times.expect("a client does not panic");
        for (all, times) in all.iter_mut().zip(times) {
            all.extend(times);
        }
    }
    for times in &mut all {
        assert_eq!(times.len(), tries / target.clients * target.clients);
        times.sort();
    }
    all
}

async fn log_in_repeatedly(
    address: SocketAddr,
    logins: &Logins,
    tries: usize,
    client_number: usize,
) -> RefusalTimes {
    let mut client = RawClient::connect(address)
        .await
        .expect("the target accepts connections");
    let greeted = client.greet(bson::doc! {}).await;
    assert!(greeted.is_ok_and(|reply| reply.is_ok()), "the hello failed");
    let mut times = RefusalTimes::default();
    for number in 0..tries {
        let mut order: Vec<_> = Reason::ALL.into_iter().zip(&mut times).collect();
        // The order of the reasons changes, so that no reason always follows the same other reason.
        order.rotate_left(number % Reason::ALL.len());
        if number % 2 == 1 {
            order.reverse();
        }
        for (reason, times) in order {
            let login = logins.of(reason, format!("nobody-{client_number}-{number}"));
            leave_step(number * 617 + client_number * 131).await;
            let began = Instant::now();
            let outcome = client.login(&login).await;
            times.push(began.elapsed());
            let outcome = outcome.expect("the target replies");
            assert_eq!(outcome.code(), Some(REFUSED), "{reason:?}");
        }
    }
    times
}

/// Waits for up to a millisecond, depending on `number`. Seawall's timer has a resolution of one
/// millisecond, so refusals arrive just after a tick of this timer. Without the wait, the next
/// logins of all clients would also always begin just after a tick.
async fn leave_step(number: usize) {
    let micros = u64::try_from(number % 1000).unwrap_or(0);
    let until = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < until {
        yield_now().await;
    }
}

/// A percentile of sorted times, in microseconds.
fn at(times: &[Duration], percent: usize) -> u128 {
    let index = times.len().saturating_sub(1) * percent / 100;
    times.get(index).map_or(0, Duration::as_micros)
}

fn difference_of_medians(times: &RefusalTimes) -> u128 {
    let medians = times.each_ref().map(|times| at(times, 50));
    let [most, least] = [medians.iter().max(), medians.iter().min()];
    most.unwrap_or(&0) - least.unwrap_or(&0)
}

/// The largest [`distance`] between the times of two reasons.
fn largest_distance(times: &RefusalTimes) -> f64 {
    let pairs = times
        .iter()
        .flat_map(|one| times.iter().map(move |other| (one, other)));
    pairs
        .map(|(one, other)| distance(one, other))
        .fold(0.0, f64::max)
}

/// The largest difference between the cumulative distributions of two sorted lists of times.
fn distance(one: &[Duration], other: &[Duration]) -> f64 {
    let share = |times: &[Duration], limit: &Duration| {
        let count = times.partition_point(|time| time <= limit);
        ratio(count, times.len())
    };
    let differences = one
        .iter()
        .map(|limit| (share(one, limit) - share(other, limit)).abs());
    differences.fold(0.0, f64::max)
}

fn ratio(part: usize, whole: usize) -> f64 {
    let number = |count| u32::try_from(count).map_or(f64::NAN, f64::from);
    number(part) / number(whole)
}
