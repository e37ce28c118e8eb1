//! Checks how exact Seawall's figures are. The load has far more query shapes than Seawall's shape
//! table has rows. The bench compares every reported figure with the figure that it computes from
//! the slow log, which has a line for each operation. Counts must be equal; for a latency quantile,
//! a small relative error is allowed.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use seawall_api::{Latency, Namespaces, Servers, Shapes};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, Standalone},
    scratch::Scratch,
    seawall::sum_of,
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    DATABASE, Plan, count, float, letters,
    link::{Link, LinkTarget, message},
    logged::{Logged, LoggedDurations},
    random::{Random, Zipf},
    seawall::Seawall,
    table::{Table, Worst},
};
use crate::output::say;

const COLLECTIONS: u32 = 5;

const COMMANDS: [&str; 4] = ["find", "count", "aggregate", "update"];

/// Number of fields that operations filter by. Each operation filters by one field, so each command
/// has this number of query shapes in each collection.
const FIELDS: u32 = 25;

const SHAPES: u32 = 500;

const _: () = assert!(SHAPES == COLLECTIONS * 4 * FIELDS);

/// The value of `shapes.max_shapes`: the maximum number of rows in Seawall's shape table.
const MAX_SHAPES: u32 = 100;

/// Number of shapes that must have their own row in the shape table: those with the largest total
/// times.
const HEAVIEST: usize = 50;

const CONNECTIONS: u64 = 64;

/// Number of documents in a collection. It is small, so that an operation without an index is fast.
const DOCUMENTS: u32 = 100;

/// The largest relative error of a latency quantile of a shape. The histogram of a shape has eight
/// buckets per octave (a factor of two), and the error is at most half a bucket: 2^(1/16) - 1.
const SHAPE_ERROR: f64 = 0.0443;

/// The largest relative error of a latency quantile of a namespace or a server. The histograms of
/// namespaces and servers have 32 buckets per octave (a factor of two), and the error is at most
/// half a bucket: 2^(1/64) - 1.
const NAMESPACE_ERROR: f64 = 0.011;

/// Reads one quantile from the latency that Seawall reports.
type Quantile = fn(&Latency) -> f64;

/// The quantiles that Seawall reports: name, per-mille value, and the function that reads the
/// quantile.
const QUANTILES: [(&str, usize, Quantile); 4] = [
    ("p50", 500, |latency| latency.p50),
    ("p90", 900, |latency| latency.p90),
    ("p99", 990, |latency| latency.p99),
    ("p999", 999, |latency| latency.p999),
];

/// Runs a million operations of 500 query shapes through a Seawall process, and checks the figures
/// that Seawall reports. The shape table of this process has at most 100 rows. A quick run has
/// 40,000 operations.
pub async fn run(plan: &Plan) {
    let operations = plan.either(1_000_000, 40_000);
    let server = Standalone::start(Options::default()).await;
    let server = server.expect("a mongod starts");
    fill(&server).await;
    let scratch = Scratch::create().expect("the directory can be created");
    let log = scratch.join("slow.jsonl");
    let toml = format!(
        "auth.credentials = \"none\"\n[shapes]\nmax_shapes = {MAX_SHAPES}\n[slow_log]\nfile = {log:?}\n\
         threshold_ms = 0\nsample_percent = 100\nmax_lines_per_second = 0\n"
    );
    let seawall = Seawall::start(plan, &server.uri(), &toml).await;
    let began = Instant::now();
    let sent = load(&seawall, operations).await;
    let took = began.elapsed();
    say(&format!(
        "\n## Exactness: {operations} operations of {SHAPES} shapes, {MAX_SHAPES} rows, {CONNECTIONS} connections, in {:.0} s\n",
        took.as_secs_f64()
    ));
    let reported = Reported::fetch(&seawall, operations).await;
    let logged = Logged::read(&log, operations).await;
    report(&sent, &reported, &logged, &log, plan);
}

async fn fill(server: &Standalone) {
    let client = server.client().expect("the server accepts connections");
    for number in 0..COLLECTIONS {
        let collection = client
            .database(DATABASE)
            .collection::<Document>(&collection(number));
        let documents = (0..DOCUMENTS).map(|n| {
            let mut document = doc! { "_id": n, "seen": 0, "text": "x".repeat(100) };
            document.insert(field(n), 1);
            document
        });
        let inserted = collection.insert_many(documents).await;
        inserted.expect("documents can be inserted");
    }
}

fn collection(number: u32) -> String {
    format!("part_{}", letters_of(number))
}

fn field(number: u32) -> String {
    format!("field_{}", letters_of(number))
}

fn letters_of(number: u32) -> String {
    letters(usize::try_from(number).unwrap_or(usize::MAX))
}

/// One shape of the load.
struct Shape {
    command: &'static str,
    message: Vec<u8>,
}

impl Shape {
    /// The shape with this rank by frequency; rank 0 is the most frequent shape. Shapes of
    /// neighboring ranks have different namespaces.
    fn of(rank: u32) -> Self {
        let collection = collection(rank % COLLECTIONS);
        let which = usize::try_from(rank / COLLECTIONS).unwrap_or(0) % COMMANDS.len();
        let command = COMMANDS.get(which).copied().unwrap_or_default();
        let field = field(rank / (SHAPES / FIELDS));
        let mut filter = RawDocumentBuf::new();
        filter.append(
            bson::raw::CString::try_from(field).expect("the name has no NUL"),
            1,
        );
        let collection = collection.as_str();
        let body = match command {
            "find" => rawdoc! { "find": collection, "filter": filter, "$db": DATABASE },
            "count" => rawdoc! { "count": collection, "query": filter, "$db": DATABASE },
            "aggregate" => rawdoc! {
                "aggregate": collection, "pipeline": [{ "$match": filter }], "cursor": {}, "$db": DATABASE,
            },
            _ => rawdoc! {
                "update": collection, "updates": [{ "q": filter, "u": { "$inc": { "seen": 1 } } }], "$db": DATABASE,
            },
        };
        Self {
            command,
            message: message(&body),
        }
    }
}

/// Counts of the operations that got a reply.
struct Sent {
    /// Number of operations by shape.
    shapes: Vec<u64>,
    commands: HashMap<&'static str, u64>,
}

async fn load(seawall: &Seawall, operations: u64) -> Sent {
    let target = LinkTarget {
        address: seawall.address(),
        login: None,
    };
    let shapes: Arc<Vec<_>> = Arc::new((0..SHAPES).map(Shape::of).collect());
    let zipf = Arc::new(Zipf::new(SHAPES));
    let mut tasks = JoinSet::new();
    for number in 0..CONNECTIONS {
        let link = Link::connect(&target).await;
        let share = (operations + number) / CONNECTIONS;
        let (shapes, zipf) = (Arc::clone(&shapes), Arc::clone(&zipf));
        tasks.spawn(one(link, shapes, zipf, Random::of(number), share));
    }
    let mut sent = vec![0; shapes.len()];
    while let Some(of_one) = tasks.join_next().await {
        let of_one = of_one.expect("every operation got a reply");
        sent.iter_mut()
            .zip(of_one)
            .for_each(|(sent, more)| *sent += more);
    }
    let mut commands = HashMap::new();
    for (shape, sent) in shapes.iter().zip(&sent) {
        *commands.entry(shape.command).or_default() += sent;
    }
    Sent {
        shapes: sent,
        commands,
    }
}

async fn one(
    mut link: Link,
    shapes: Arc<Vec<Shape>>,
    zipf: Arc<Zipf>,
    mut random: Random,
    operations: u64,
) -> Vec<u64> {
    let mut sent = vec![0; shapes.len()];
    for _ in 0..operations {
        let drawn = zipf.draw(&mut random);
        let pair = shapes.get(drawn).zip(sent.get_mut(drawn));
        let (shape, sent) = pair.expect("every rank has a shape");
        link.run(&shape.message).await;
        *sent += 1;
    }
    sent
}

/// The figures that Seawall reports after the load.
struct Reported {
    metrics: String,
    shapes: Shapes,
    namespaces: Namespaces,
    servers: Servers,
}

impl Reported {
    async fn fetch(seawall: &Seawall, operations: u64) -> Self {
        // Seawall counts the last operations shortly after their clients have the replies.
        let is_counted = || async {
            let metrics = seawall.metrics().await;
            let counted: f64 = COMMANDS.iter().map(|name| counted(&metrics, name)).sum();
            counted >= float(operations)
        };
        let all = eventually(Duration::from_secs(5), is_counted).await;
        if let Err(late) = all {
            say(&format!("some operations are not counted: {late}\n"));
        }
        Self {
            metrics: seawall.metrics().await,
            shapes: seawall.api("/api/v1/shapes?limit=10000").await,
            namespaces: seawall.api("/api/v1/namespaces").await,
            servers: seawall.api("/api/v1/servers").await,
        }
    }
}

fn counted(metrics: &str, command: &str) -> f64 {
    let label = format!("command=\"{command}\"");
    sum_of(metrics, "seawall_operations_total", &[&label])
}

fn report(sent: &Sent, reported: &Reported, logged: &Logged, log: &Path, plan: &Plan) {
    let mut table = Table::new();
    let all: u64 = sent.shapes.iter().sum();
    for command in COMMANDS {
        let sent = sent.commands.get(command).copied().unwrap_or(0);
        let what = format!("operations `{command}` in `seawall_operations_total`");
        table.same(&what, sent, counted(&reported.metrics, command), sent);
    }
    table.same("lines of the slow log", all, float(logged.lines), all);
    table.same(
        "lines missing in the slow log",
        all,
        float(logged.dropped),
        0,
    );
    table.same("operations that failed", all, float(logged.not_ok), 0);
    let unequal = float(logged.unequal_totals);
    table.same(
        "operations whose total is not the sum of their phases",
        all,
        unequal,
        0,
    );
    let (mut of_sent, mut of_log) = (sent.shapes.clone(), counts(logged));
    of_sent.retain(|operations| *operations > 0);
    of_sent.sort_unstable();
    of_log.sort_unstable();
    let pairs = of_sent.iter().zip(&of_log);
    let unequal = pairs.filter(|(sent, logged)| sent != logged).count();
    let unequal = unequal + of_sent.len().abs_diff(of_log.len());
    let shapes = count(of_sent.len());
    table.same(
        "shapes with a wrong count, by id",
        shapes,
        float(count(unequal)),
        0,
    );
    compare_shapes(&mut table, reported, logged, all, plan);
    compare_namespaces(&mut table, reported, logged);
    compare_servers(&mut table, reported, logged);
    let bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    say(&format!(
        "\nRows: {}. Operations without a row of their own: {:.0}; evicted rows: {:.0}. Slow log: {} MiB.",
        levels(reported),
        sum_of(&reported.metrics, "seawall_fingerprint_folded_total", &[]),
        sum_of(&reported.metrics, "seawall_fingerprint_evicted_total", &[]),
        bytes >> 20,
    ));
    table.check();
}

fn counts(logged: &Logged) -> Vec<u64> {
    logged.shapes.values().map(LoggedDurations::count).collect()
}

fn levels(reported: &Reported) -> String {
    let levels = ["fine", "coarse", "rest"].map(|level| {
        let shapes = reported.shapes.shapes.iter();
        let of_it = shapes.filter(|row| row.level == level);
        let operations: u64 = of_it.clone().map(|row| row.count).sum();
        format!("{} {level} with {operations} operations", of_it.count())
    });
    levels.join(", ")
}

fn compare_shapes(table: &mut Table, reported: &Reported, logged: &Logged, all: u64, plan: &Plan) {
    let rows = &reported.shapes.shapes;
    let operations: u64 = rows.iter().map(|row| row.count).sum();
    table.same("operations in all shape rows", all, float(operations), all);
    let mut time = Worst::default();
    let reported_ms: f64 = rows.iter().map(|row| row.total_time_ms).sum();
    let true_ms: f64 = logged.shapes.values().map(LoggedDurations::sum_ms).sum();
    // The two sums may differ slightly, because the floats are added in different orders.
    time.add(reported_ms, true_ms);
    table.within("total time in all shape rows", time, 1e-9);
    let fine: HashMap<&str, _> = rows
        .iter()
        .filter(|row| row.level == "fine")
        .map(|row| (&*row.id, row))
        .collect();
    let mut heaviest: Vec<_> = logged.shapes.iter().collect();
    heaviest.sort_by(|(_, a), (_, b)| b.sum_ms().total_cmp(&a.sum_ms()));
    heaviest.truncate(HEAVIEST);
    let without = heaviest
        .iter()
        .filter(|(id, _)| !fine.contains_key(id.as_str()));
    let without = float(count(without.count()));
    // In each second, at most one shape of each coarse row (a row that counts several shapes) can
    // get a row of its own. This row replaces the row of a shape with a smaller total time. A quick
    // run is too short for all replacements. So it prints the number of heaviest shapes without a
    // row, but does not check that this number is 0.
    match plan.is_quick {
        true => say(&format!(
            "| heaviest shapes without a row | {HEAVIEST} | {without} | – |"
        )),
        false => table.same("heaviest shapes without a row", count(HEAVIEST), without, 0),
    }
    // The shapes that have had their own row since their first operation. The sums in these rows
    // must be exact.
    let whole = fine.iter().filter_map(|(id, row)| {
        let raw = logged.shapes.get(*id)?;
        (row.count == raw.count()).then_some((*row, raw))
    });
    let whole: Vec<_> = whole.collect();
    let latencies = whole.iter().map(|(row, raw)| (row.latency_ms, *raw));
    let latencies: Vec<_> = latencies.collect();
    compare(table, "shape", &latencies, SHAPE_ERROR);
    let mut sums = Worst::default();
    for (row, raw) in &whole {
        sums.add(row.total_time_ms, raw.sum_ms());
    }
    table.exact("total times of shapes", sums);
}

fn compare_namespaces(table: &mut Table, reported: &Reported, logged: &Logged) {
    let rows = reported.namespaces.namespaces.iter();
    let of_ours = rows.filter(|row| row.db == DATABASE);
    let pairs = of_ours.filter_map(|row| {
        let key = (row.command.clone(), row.collection.clone());
        Some((row.count, row.latency_ms, logged.namespaces.get(&key)?))
    });
    let pairs: Vec<_> = pairs.collect();
    let expected = count(logged.namespaces.len());
    let found = float(count(pairs.len()));
    table.same("namespaces", expected, found, expected);
    compare_rows(table, "namespace", &pairs);
}

/// Compares the counts and times that Seawall reports for each server with the slow log. A time
/// begins at the last byte of the command and ends at the first byte of the reply. Seawall collects
/// the times in histograms with 32 buckets per octave (a factor of two).
fn compare_servers(table: &mut Table, reported: &Reported, logged: &Logged) {
    let rows = reported.servers.servers.iter();
    let pairs = rows.filter_map(|row| {
        let raw = logged.servers.get(&row.address)?;
        Some((row.count, row.answer_ms?, raw))
    });
    let pairs: Vec<_> = pairs.collect();
    let expected = count(logged.servers.len());
    table.same("servers", expected, float(count(pairs.len())), expected);
    compare_rows(table, "server", &pairs);
}

/// Compares the counts and latencies that Seawall reports for namespaces or servers with the slow
/// log. Seawall's histograms for namespaces and servers have 32 buckets per octave (a factor of
/// two).
fn compare_rows(table: &mut Table, of: &str, rows: &[(u64, Latency, &LoggedDurations)]) {
    let unequal = rows.iter().filter(|(count, _, raw)| *count != raw.count());
    let unequal = float(count(unequal.count()));
    table.same(
        &format!("{of} rows with a wrong count"),
        count(rows.len()),
        unequal,
        0,
    );
    let latencies = rows.iter().map(|(_, latency, raw)| (*latency, *raw));
    let latencies: Vec<_> = latencies.collect();
    compare(table, of, &latencies, NAMESPACE_ERROR);
}

/// Compares the reported latency quantiles and maximum of each row with the durations from the slow
/// log. The relative error of a quantile must be at most `allowed`.
fn compare(table: &mut Table, of: &str, rows: &[(Latency, &LoggedDurations)], allowed: f64) {
    for (name, per_mille, quantile) in QUANTILES {
        let mut worst = Worst::default();
        for (latency, raw) in rows {
            worst.add(quantile(latency), raw.quantile_ms(per_mille));
        }
        table.within(&format!("{name} by {of}"), worst, allowed);
    }
    let mut longest = Worst::default();
    for (latency, raw) in rows {
        longest.add(latency.max, raw.max_ms());
    }
    table.exact(&format!("max by {of}"), longest);
}
