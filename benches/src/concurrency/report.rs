//! Prints the results of the bench `concurrency` as Markdown tables, and writes them to a JSON
//! file.

use std::{fs, io, path::Path};

use serde::Serialize;

use super::{
    cells::Figures,
    plan::{AUTO, Situation},
};
use crate::{output::say, run::Run, spread::Spread};

/// The directory of saved results.
pub const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results");

/// The results of one cell (one limit with one number of clients). Each figure has its minimum,
/// median and maximum over the cell's rounds.
#[derive(Clone, Debug, Serialize)]
struct CellRow {
    situation: &'static str,
    /// The number of clients. In the situation `change`, also the number of the phase.
    clients: String,
    limit: String,
    throughput: Spread,
    p50_ms: Spread,
    p99_ms: Spread,
    seawall_user_us: Spread,
    server_us: Spread,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The conditions of the run. [`Run::rounds`] and [`Run::seconds`] apply to each cell (one
    /// limit with one number of clients).
    run: Run,
    cells: Vec<CellRow>,
}

impl Report {
    /// A report without results.
    pub fn new(run: Run) -> Self {
        let cells = Vec::new();
        Self { run, cells }
    }

    /// Prints the header of a situation's table.
    pub fn say_head(situation: Situation) {
        say(&format!("\n## {}\n", situation.title()));
        say(
            "| clients | limit | operations/s (least to most) | p50 | p99 | Seawall user CPU per operation | server CPU per operation |",
        );
        say("|---|---|---|---|---|---|---|");
    }

    /// Adds the results of one cell (one limit with one number of clients), and prints a table row
    /// with the medians of its rounds.
    pub fn add(&mut self, situation: Situation, clients: &str, limit: &str, rounds: &[Figures]) {
        let of = |figure: fn(&Figures) -> f64| Spread::of(rounds.iter().map(figure));
        let row = CellRow {
            situation: situation.name(),
            clients: clients.to_owned(),
            limit: limit.to_owned(),
            throughput: of(|figures| figures.throughput),
            p50_ms: of(|figures| figures.p50_ms),
            p99_ms: of(|figures| figures.p99_ms),
            seawall_user_us: of(|figures| figures.seawall_user_us),
            server_us: of(|figures| figures.server_us),
        };
        say(&format!(
            "| {clients} | {limit} | {:.0} ({:.0} to {:.0}) | {:.2} ms | {:.2} ms | {:.1} µs | {:.1} µs |",
            row.throughput.median,
            row.throughput.least,
            row.throughput.most,
            row.p50_ms.median,
            row.p99_ms.median,
            row.seawall_user_us.median,
            row.server_us.median,
        ));
        self.cells.push(row);
    }

    /// Prints the median throughput of `auto` and of `off`, each divided by the median throughput
    /// of the best fixed limit.
    pub fn say_ratios(&self) {
        say("\n## Throughput relative to the best fixed limit\n");
        say("| situation | clients | best fixed limit | operations/s | `auto` | `off` |");
        say("|---|---|---|---|---|---|");
        let is_same =
            |a: &CellRow, b: &CellRow| (a.situation, &a.clients) == (b.situation, &b.clients);
        for cells in self.cells.chunk_by(is_same) {
            let fixed = cells.iter().filter(|row| row.limit.parse::<u32>().is_ok());
            let median = |row: &CellRow| row.throughput.median;
            let Some(best) = fixed.max_by(|a, b| median(a).total_cmp(&median(b))) else {
                continue;
            };
            let ratio = |limit: &str| {
                let row = cells.iter().find(|row| row.limit == limit);
                row.map_or_else(
                    || "–".to_owned(),
                    |row| format!("{:.2}", median(row) / median(best)),
                )
            };
            say(&format!(
                "| {} | {} | {} | {:.0} | {} | {} |",
                best.situation,
                best.clients,
                best.limit,
                median(best),
                ratio(AUTO),
                ratio("off"),
            ));
        }
    }

    /// Writes the results as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
    }
}
