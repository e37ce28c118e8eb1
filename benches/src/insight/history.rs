//! Measures how much memory Seawall needs for eight days of the history of its statistics, with the
//! maximum number of time series.
//!
//! The bench generates figures for every second of the last ten minutes. For the time before these
//! minutes, it generates figures for only one second in ten (in sixty, if there are 2,000
//! namespaces), to save time. The history keeps the figures of that time only in steps of ten
//! seconds or more. The memory of a step does not depend on how many of its seconds have figures.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use seawall_insight::{History, TIERS};
use seawall_stats::{Figures, Gauge, Gauges, Label, Level, Phase};

use tokio::time::Instant;

use super::{Plan, count, float, letters, random::Random, say};
use crate::process::resident_bytes;

/// Default of `history.memory_bytes`.
const BUDGET: usize = 128 * 1024 * 1024;

/// Default of `history.max_series_shapes`.
const SHAPES: usize = 200;

const SERVERS: usize = 6;

/// Length of the last part of the history, in seconds. The bench generates figures for every second
/// of this part, because the history keeps steps of one second for this time. In a quick run, the
/// part is a tenth as long.
const LAST: u64 = 600;

/// Maximum number of operations of a series in a second.
const OPERATIONS: usize = 30;

struct Scene {
    name: &'static str,
    namespaces: usize,
    /// The bench generates figures for one of every `sample_every` seconds, and for each of the
    /// last [`LAST`] seconds.
    sample_every: u64,
}

const SCENES: [Scene; 2] = [
    Scene {
        name: "200 shapes, 100 namespaces",
        namespaces: 100,
        sample_every: 10,
    },
    Scene {
        name: "200 shapes, 2,000 namespaces",
        namespaces: 2_000,
        sample_every: 60,
    },
];

/// Prints a table of the sizes of histories, and asserts that each history stays within its memory
/// limit.
pub fn run(plan: &Plan) {
    say("\n## History\n");
    say(
        "| series | seconds | reported size | resident memory growth | dropped early | time to add a second |",
    );
    say("|---|---|---|---|---|---|");
    for scene in &SCENES {
        let whole = TIERS.last().map_or(0, |(_, kept)| *kept);
        scene.run(plan.either(whole, whole / 80), plan.either(LAST, LAST / 10));
    }
}

impl Scene {
    /// Fills a history of `seconds` seconds. Generates figures for each of the last `last` seconds,
    /// and for one of every `sample_every` seconds before them.
    fn run(&self, seconds: u64, last: u64) {
        let mut random = Random::of(1);
        let labels = self.labels();
        let before = resident_bytes(std::process::id()).expect("/proc is readable");
        let mut history = History::new(BUDGET, SHAPES);
        let (mut spent, mut most, mut added) = (Duration::ZERO, 0, 0_u64);
        for second in 0..seconds {
            if !second.is_multiple_of(self.sample_every) && second + last < seconds {
                continue;
            }
            let series = series(&labels, &mut random);
            let gauges = gauges(&mut random);
            let began = Instant::now();
            history.add(second, series, gauges);
            drop(history.take_delta());
            spent += began.elapsed();
            added += 1;
            most = most.max(history.bytes());
        }
        let after = resident_bytes(std::process::id()).expect("/proc is readable");
        say(&format!(
            "| {} | {seconds} | {:.1} MiB | {:.1} MiB | {} | {:.2} ms |",
            self.name,
            mebibytes(count(most)),
            mebibytes(after.saturating_sub(before)),
            history.dropped_early(),
            spent.as_secs_f64() * 1e3 / float(added),
        ));
        assert!(most <= BUDGET, "{most}");
        assert!(history.bytes() > 0);
    }

    fn labels(&self) -> Vec<Arc<Label>> {
        let shapes = (0..SHAPES).map(|number| Label::Shape {
            level: Level::Fine,
            id: format!("{number:016x}").into(),
            command: "find".into(),
            db: "shop".into(),
            collection: format!("collection_{}", letters(number % 20)).into(),
            text: format!(
                "{{filter:{{field_{}:?,status:{{$in:[?]}}}},sort:{{created:-1}}}}",
                letters(number)
            )
            .into(),
        });
        let namespaces = (0..self.namespaces).map(|number| Label::Namespace {
            command: "find".into(),
            db: "shop".into(),
            collection: format!("collection_{}", letters(number)).into(),
        });
        let servers =
            (0..SERVERS).map(|n| Label::Server(format!("db{n}.example.com:27017").into()));
        let whole = [Label::Whole, Label::OtherShapes].into_iter();
        let of_phases = |server: Option<usize>| {
            Phase::ALL.map(|phase| Label::Phase {
                server: server.map(|n| format!("db{n}.example.com:27017").into()),
                phase,
            })
        };
        let phases = (0..SERVERS).map(Some).chain([None]).flat_map(of_phases);
        let all = shapes.chain(namespaces).chain(servers).chain(whole);
        let all = all.chain(phases);
        all.map(Arc::new).collect()
    }
}

fn gauges(random: &mut Random) -> Gauges {
    let mut gauges = Gauges::default();
    for gauge in Gauge::ALL {
        gauges.record(*gauge, random.unit() * 1e3);
    }
    gauges
}

/// Figures of one second in which every series has some operations. Most operations take about 1
/// ms, some about 100 ms.
fn series(labels: &[Arc<Label>], random: &mut Random) -> BTreeMap<Arc<Label>, (Figures, f64)> {
    let labels = labels.iter();
    let series = labels.map(|label| {
        let mut figures = Figures::default();
        for _ in 0..=random.below(OPERATIONS) {
            let slow = if random.unit() < 0.02 { 100.0 } else { 1.0 };
            let took = Duration::from_secs_f64(1e-3 * slow * (0.2 + random.unit() * 2.0));
            figures.durations.record(took);
            figures.count += 1;
            figures.request_bytes += 200;
            figures.reply_bytes += 400;
            figures.documents += 1;
            figures
                .phases
                .values_mut()
                .for_each(|phase| *phase += took / 6);
        }
        (Arc::clone(label), (figures, random.unit()))
    });
    series.collect()
}

fn mebibytes(bytes: u64) -> f64 {
    float(bytes) / 1024.0 / 1024.0
}
