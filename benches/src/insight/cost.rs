//! Measures the CPU time that Seawall's statistics cost. In each round, two Seawall processes in
//! front of one mongod get the same load, one after the other: one with all statistics, and one
//! without statistics by query shape and without the history (time series of the statistics).
//!
//! The rounds are short, and ratios are computed within a round, because the speed of a shared
//! machine changes over time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bson::{Document, doc, rawdoc};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ROOT, ROOT_PASSWORD, Standalone},
    raw::Login,
    seawall::sum_of,
};
use tokio::{task::JoinSet, time::sleep};

use super::{
    DATABASE, Machine, Plan, float, letters,
    link::{Link, LinkTarget, message},
    seawall::Seawall,
};
use crate::{output::say, process::cpu_split, spread::Spread};

const CONNECTIONS: usize = 64;

/// Number of different projections. A find by `_id` has a different shape with each projection.
const SHAPES: usize = 30;

/// Pause after a round. During the pause, Seawall adds the operations of the round's last second to
/// its statistics. The CPU time of this work is part of the round's CPU time.
const SETTLE: Duration = Duration::from_millis(1_200);

/// One of the compared Seawalls, with its connections and results.
pub(super) struct Rival {
    pub(super) name: &'static str,
    pub(super) seawall: Seawall,
    links: Vec<Link>,
    pub(super) operations: u64,
    pub(super) rounds: Vec<Round>,
}

/// The result of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    operations: f64,
    /// User CPU time per operation, in microseconds.
    user_us: f64,
    system_us: f64,
}

impl Round {
    pub(super) fn cpu_us(&self) -> f64 {
        self.user_us + self.system_us
    }
}

/// Compares the CPU times of two Seawall processes. One process has all statistics. The other has
/// neither statistics by query shape nor the history (time series of the statistics).
pub async fn run(plan: &Plan) {
    let rounds = plan.either(30, 1);
    let time = plan.either(Duration::from_secs(2), Duration::from_secs(1));
    let server = server().await;
    let off = "[shapes]\nenabled = false\n[history]\nenabled = false\n";
    let mut on = Rival::start(plan, &server, "on", "").await;
    let mut off = Rival::start(plan, &server, "off", off).await;
    let messages = messages();
    // The first round is not counted: it establishes connections and fills caches.
    for rival in [&mut on, &mut off] {
        rival.run(&messages, time).await;
        rival.rounds.clear();
    }
    let machine = Machine::now();
    for number in 0..rounds {
        let order = match number % 2 {
            0 => [&mut on, &mut off],
            _ => [&mut off, &mut on],
        };
        for rival in order {
            rival.run(&messages, time).await;
        }
    }
    report(&on, &off, time);
    Machine::say_since(machine);
    for rival in [&on, &off] {
        rival.check().await;
    }
}

/// Starts a server, and inserts small documents.
pub(super) async fn server() -> Standalone {
    let server = Standalone::start(Options::with_auth()).await;
    let server = server.expect("a mongod starts");
    let client = server.client().expect("the server accepts connections");
    let documents = (0..1_000).map(|n| doc! { "_id": n, "text": "x".repeat(100) });
    let collection = client.database(DATABASE).collection::<Document>("small");
    let inserted = collection.insert_many(documents).await;
    inserted.expect("documents can be inserted");
    server
}

/// The messages of the load: one find for each shape.
pub(super) fn messages() -> Arc<Vec<Vec<u8>>> {
    Arc::new((0..SHAPES).map(find).collect())
}

fn find(shape: usize) -> Vec<u8> {
    let id = i32::try_from(shape).unwrap_or(0);
    let mut projection = doc! { "text": 1 };
    projection.insert(format!("p{}", letters(shape)), 1);
    let projection =
        bson::RawDocumentBuf::try_from(&projection).expect("the projection can be encoded");
    message(&rawdoc! {
        "find": "small", "filter": { "_id": id }, "projection": projection, "limit": 1,
        "singleBatch": true, "$db": DATABASE,
    })
}

impl Rival {
    pub(super) async fn start(
        plan: &Plan,
        server: &Standalone,
        name: &'static str,
        toml: &str,
    ) -> Self {
        let seawall = Seawall::start(plan, &server.root_uri(), toml).await;
        let target = LinkTarget {
            address: seawall.address(),
            login: Some(Login::new("admin", ROOT, ROOT_PASSWORD)),
        };
        let links = Link::connect_all(&target, CONNECTIONS).await;
        Self {
            name,
            seawall,
            links,
            operations: 0,
            rounds: Vec::new(),
        }
    }

    pub(super) async fn run(&mut self, messages: &Arc<Vec<Vec<u8>>>, time: Duration) {
        let before = cpu_split(self.seawall.process_id());
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for (number, link) in self.links.drain(..).enumerate() {
            tasks.spawn(one(link, number, Arc::clone(messages), Arc::clone(&stop)));
        }
        sleep(time).await;
        stop.store(true, Ordering::Relaxed);
        let mut operations = 0;
        while let Some(done) = tasks.join_next().await {
            let (link, completed) = done.expect("every operation got a reply");
            self.links.push(link);
            operations += completed;
        }
        sleep(SETTLE).await;
        let after = cpu_split(self.seawall.process_id());
        let each = |after: Duration, before: Duration| {
            after.saturating_sub(before).as_secs_f64() * 1e6 / float(operations)
        };
        self.operations += operations;
        self.rounds.push(Round {
            operations: float(operations),
            user_us: each(after.0, before.0),
            system_us: each(after.1, before.1),
        });
    }

    /// Returns the mean CPU time per operation over all rounds, in microseconds.
    fn cpu_us(&self) -> f64 {
        let rounds = self.rounds.iter();
        let spent: f64 = rounds.map(|round| round.cpu_us() * round.operations).sum();
        spent
            / self
                .rounds
                .iter()
                .map(|round| round.operations)
                .sum::<f64>()
    }

    /// Asserts that Seawall has counted every operation.
    async fn check(&self) {
        let is_counted = || async {
            let metrics = self.seawall.metrics().await;
            let label = ["command=\"find\""];
            let counted = sum_of(&metrics, "seawall_operations_total", &label);
            match (counted - float(self.operations)).abs() < 0.5 {
                true => Ok(()),
                false => Err(format!("{counted} of {}", self.operations)),
            }
        };
        let all = eventually(Duration::from_secs(5), is_counted).await;
        all.expect("operations are counted");
    }

    pub(super) fn row(&self) -> String {
        let of = |part: fn(&Round) -> f64| Spread::of(self.rounds.iter().map(part));
        let operations = of(|round| round.operations);
        let (all, user, system) = (
            of(Round::cpu_us),
            of(|round| round.user_us),
            of(|round| round.system_us),
        );
        format!(
            "| {} | {:.0} | {:.2} ({:.2} to {:.2}) | {:.2} | {:.2} |",
            self.name,
            operations.median,
            all.median,
            all.least,
            all.most,
            user.median,
            system.median
        )
    }
}

async fn one(
    mut link: Link,
    number: usize,
    messages: Arc<Vec<Vec<u8>>>,
    stop: Arc<AtomicBool>,
) -> (Link, u64) {
    let mut completed = 0;
    for message in messages.iter().cycle().skip(number % SHAPES) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        link.run(message).await;
        completed += 1;
    }
    (link, completed)
}

fn report(on: &Rival, off: &Rival, time: Duration) {
    say(&format!(
        "\n## Cost: finds by `_id` of {SHAPES} shapes over {CONNECTIONS} connections, {} rounds of {} s each, alternating\n",
        on.rounds.len(),
        time.as_secs()
    ));
    say("| statistics | operations per round | CPU per operation, µs | user | system |");
    say("|---|---|---|---|---|");
    say(&on.row());
    say(&off.row());
    let ratios = |part: fn(&Round) -> f64| {
        let pairs = on.rounds.iter().zip(&off.rounds);
        Spread::of(pairs.map(|(on, off)| part(on) / part(off)))
    };
    for (what, spread) in [
        ("all CPU", ratios(Round::cpu_us)),
        ("user", ratios(|round| round.user_us)),
        ("system", ratios(|round| round.system_us)),
    ] {
        say(&format!(
            "\nRatio of statistics on to statistics off, {what}: median {:.3} of {} rounds ({:.3} to {:.3}).",
            spread.median, spread.count, spread.least, spread.most
        ));
    }
    say(&format!(
        "\nRatio of statistics on to statistics off, CPU per operation over all rounds: {:.3}.",
        on.cpu_us() / off.cpu_us()
    ));
}
