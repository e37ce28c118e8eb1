//! Measures Seawall's limit for the number of operations that run at the same time on a real server
//! (`pool.concurrency`): `cargo bench --bench concurrency`.
//!
//! The load is small finds in a closed loop through Seawall. The bench compares fixed limits, no
//! limit, and `auto`, with which a controller in Seawall sets the limit. Fixed limits of at least
//! the number of clients have the same effect as no limit, so only the lowest of them is measured.
//! Parts; `--only NAME` runs one of them:
//!
//! - `simulation`: simulates the controller and draws the results. Needs no server.
//! - `plain`: small finds.
//! - `delay`: a relay between Seawall and the server delays commands by 5 ms.
//! - `slow`: a tenth of the finds takes 200 ms at the server.
//! - `change`: 64 clients, then 1,000, then 64 again.
//!
//! The load generator, Seawall and the server share the machine. The limits are measured one after
//! another, and the bench prints the medians of the rounds. For each part except `simulation`, it
//! also records the limit and the throughput of `auto` over time, and draws both in
//! `benches/results/pictures`. A full run takes about 95 minutes and writes its results to
//! `benches/results/concurrency.json`. A run with `--only` or an option below does not write that
//! file.
//!
//! `--limits auto,8` and `--connections 64,1000` set the compared limits and the numbers of
//! clients. `--rounds N` sets how many times each limit is measured with each number of clients,
//! and `--seconds N` sets the length of a measurement. `--quick` is a short run for CI. It checks
//! only that all operations succeed, and writes its pictures to a temporary directory.

use std::{fs, path::Path};

use seawall::runtime::raise_descriptor_limit;
use seawall_benches::{
    concurrency::{
        cells::{measure, measure_change},
        pictures::{draw, file_name},
        plan::{ConcurrencyPlan, SIMULATION, Situation},
        report::{RESULTS, Report},
        simulated::traces,
        testbed::ConcurrencyTestbed,
        trace::record,
    },
    insight::Machine,
    output::say,
    run::Run,
};
use seawall_tests::scratch::Scratch;
use tokio::runtime::Builder;

fn main() {
    let plan = ConcurrencyPlan::from_options();
    let scratch = Scratch::create().expect("the directory can be created");
    let results = Path::new(RESULTS);
    let pictures = match plan.is_quick {
        true => scratch.path().to_owned(),
        false => results.join("pictures"),
    };
    fs::create_dir_all(&pictures).expect("the directory can be created");
    if plan.wants(SIMULATION) {
        for (name, trace) in traces(plan.is_quick) {
            let path = pictures.join(file_name(&format!("simulation {name}")));
            draw(&trace, &path).expect("the picture can be written");
            say(&format!("drawn: {}", path.display()));
        }
    }
    let wanted = |situation: &Situation| plan.wants(situation.name());
    let situations: Vec<_> = Situation::ALL.into_iter().filter(wanted).collect();
    if situations.is_empty() {
        return;
    }
    raise_descriptor_limit();
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("the runtime starts");
    let report = runtime.block_on(run(&plan, &situations, &pictures));
    if !plan.is_partial {
        let written = report.write(&results.join("concurrency.json"));
        written.expect("the results can be written");
    }
}

async fn run(plan: &ConcurrencyPlan, situations: &[Situation], pictures: &Path) -> Report {
    let mut report = Report::new(Run::begin(plan.rounds, plan.times.cell));
    let testbed = ConcurrencyTestbed::start(plan.is_quick).await;
    let machine = Machine::now();
    for situation in situations {
        testbed.prepare(*situation).await;
        Report::say_head(*situation);
        match situation {
            Situation::Change => compare_changes(&testbed, plan, &mut report).await,
            Situation::Plain | Situation::Delay | Situation::Slow => {
                compare(&testbed, *situation, plan, &mut report).await;
            }
        }
        let trace = record(&testbed, *situation, plan).await;
        assert!(!trace.samples.is_empty(), "no sample was taken");
        let path = pictures.join(file_name(situation.name()));
        draw(&trace, &path).expect("the picture can be written");
        say(&format!("\ndrawn: {}", path.display()));
    }
    report.say_ratios();
    say("");
    Machine::say_since(machine);
    report
}

/// Compares the concurrency limits of the plan. For each number of clients, measures each limit in
/// [`ConcurrencyPlan::limits_for`] of this number.
async fn compare(
    testbed: &ConcurrencyTestbed,
    situation: Situation,
    plan: &ConcurrencyPlan,
    report: &mut Report,
) {
    for clients in &plan.connections {
        let limits = plan.limits_for(*clients);
        let mut rounds = vec![Vec::new(); limits.len()];
        for _ in 0..plan.rounds {
            for (limit, figures) in limits.iter().zip(&mut rounds) {
                let cell = measure(testbed, situation, limit, *clients, &plan.times);
                figures.push(cell.await);
            }
        }
        for (limit, figures) in limits.iter().zip(&rounds) {
            report.add(situation, &clients.to_string(), limit, figures);
        }
    }
}

/// Compares the concurrency limits of the plan under a load whose number of clients changes. Each
/// phase of the load, with its number of clients, has its own results.
async fn compare_changes(
    testbed: &ConcurrencyTestbed,
    plan: &ConcurrencyPlan,
    report: &mut Report,
) {
    let most = plan.phases.iter().copied().max().unwrap_or(0);
    let limits = plan.limits_for(most);
    // `phases[phase][limit]` has the figures of all rounds.
    let mut phases = plan.phases.map(|_| vec![Vec::new(); limits.len()]);
    for _ in 0..plan.rounds {
        for (index, limit) in limits.iter().enumerate() {
            let seawall = testbed.seawall(Situation::Change, limit).await;
            let measured = measure_change(testbed, &seawall, plan).await;
            for (phase, figures) in phases.iter_mut().zip(measured) {
                phase
                    .get_mut(index)
                    .expect("each limit has rounds")
                    .push(figures);
            }
        }
    }
    for ((number, clients), measured) in (1..).zip(plan.phases).zip(&phases) {
        for (limit, figures) in limits.iter().zip(measured) {
            let clients = format!("{clients}, phase {number}");
            report.add(Situation::Change, &clients, limit, figures);
        }
    }
}
