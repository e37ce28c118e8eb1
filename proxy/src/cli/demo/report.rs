//! The report of the demonstration as lines for a terminal. This module prints nothing itself.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use super::{
    address_of,
    burst::{Burst, CLIENTS},
    deployment::{Deployment, USER},
    traffic::DATABASE,
};
use crate::{
    app::App,
    observe::{ConnectionTotals, ShapeRow, Totals},
};
use seawall_stats::Outcome;

/// The counts of driver and Seawall at one moment.
pub(super) struct Figures {
    /// Commands that the driver sent, by name.
    sent: BTreeMap<String, u64>,
    /// Operations that Seawall counted, by command. Excludes commands to which Seawall itself
    /// replies (`hello`, logins).
    served: BTreeMap<String, u64>,
    shapes: Vec<ShapeRow>,
    connections: ConnectionTotals,
}

impl Figures {
    pub(super) fn take(totals: &Totals, sent: BTreeMap<String, u64>) -> Self {
        let mut served = BTreeMap::<String, u64>::new();
        for (namespace, sums) in totals.namespaces() {
            let outcomes = Outcome::ALL.iter().zip(sums.outcomes);
            let by_servers = outcomes.filter(|(outcome, _)| **outcome != Outcome::Local);
            let count: u64 = by_servers.map(|(_, count)| count).sum();
            if count > 0 {
                *served.entry(namespace.command.to_owned()).or_default() += count;
            }
        }
        let mut shapes = totals.shapes();
        shapes.sort_by_cached_key(|row| Reverse(row.sums.load()));
        Self {
            sent,
            served,
            shapes,
            connections: totals.connection_totals(),
        }
    }

    /// True if Seawall counted as many operations of each command as the driver sent.
    pub(super) fn agree(&self) -> bool {
        self.sent == self.served
    }
}

/// One line with the duration of a burst. `way` says how the clients connected.
pub(super) fn burst_line(way: &str, burst: &Burst) -> String {
    format!(
        "{CLIENTS} short-lived clients {way}: {:.1} s",
        burst.time.as_secs_f64()
    )
}

/// The table of operations, with one row for each fingerprint: command, namespace and shape (the
/// command without its values). The row with the longest total time comes first.
pub(super) fn shapes(figures: &Figures) -> Vec<String> {
    let mut lines = vec![
        "\nOperations by fingerprint, heaviest first (times in ms)\n".to_owned(),
        format!(
            "{:<17} {:<14} {:>6} {:>7} {:>7} {:>7} {:>8}  shape",
            "command", "namespace", "count", "getMore", "p50", "p99", "total"
        ),
    ];
    lines.extend(figures.shapes.iter().map(|ShapeRow { shape, sums, .. }| {
        let namespace = match &*shape.namespace.collection {
            "" => shape.namespace.db.to_string(),
            collection => format!("{}.{collection}", shape.namespace.db),
        };
        format!(
            "{:<17} {:<14} {:>6} {:>7} {:>7.2} {:>7.2} {:>8.1}  {}",
            shape.namespace.command,
            namespace,
            sums.figures.count,
            sums.figures.more_count,
            millis(sums.figures.durations.quantile(0.5)),
            millis(sums.figures.durations.quantile(0.99)),
            millis(sums.load()),
            shortened(&shape.text),
        )
    }));
    lines
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHAPE_CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

/// Two tables with numbers of connections and logins. The first table shows the counts of Seawall:
/// connections and logins of clients at Seawall, and of Seawall at the server. The second table
/// shows the counts of the mongod during each burst: without Seawall, and through Seawall.
pub(super) fn connections(figures: &Figures, straight: &Burst, through: &Burst) -> Vec<String> {
    let row = |what: &str, left: &str, right: &str| format!("{what:<36} {left:>16} {right:>16}");
    let of_seawall =
        |what: &str, left: u64, right: u64| row(what, &left.to_string(), &right.to_string());
    let shown = |count: Option<i64>| match count {
        Some(count) => count.to_string(),
        None => "not counted".to_owned(),
    };
    let of_mongod = |what: &str, left, right| row(what, &shown(left), &shown(right));
    let counted = &figures.connections;
    vec![
        "\nConnections and authentications, counted by Seawall\n".to_owned(),
        row("", "from clients", "to the server"),
        of_seawall(
            "connections",
            counted.client_connections,
            counted.server_connections,
        ),
        of_seawall(
            "authentications",
            counted.client_authentications,
            counted.server_authentications,
        ),
        format!("\nThe burst of {CLIENTS} clients, counted by the mongod\n"),
        row("", "direct", "through Seawall"),
        of_mongod(
            "connections opened",
            straight.server.connections,
            through.server.connections,
        ),
        of_mongod(
            "authentications",
            straight.server.authentications,
            through.server.authentications,
        ),
        "\n(Each client of this driver opens one or two more connections to monitor the servers.)"
            .to_owned(),
    ]
}

/// Compares the counts of driver and Seawall, one line per command.
pub(super) fn comparison(figures: &Figures) -> Vec<String> {
    let mut lines = vec![
        "\nDo the counts agree? Commands that the driver sent, operations that Seawall counted\n"
            .to_owned(),
    ];
    let mut names: Vec<_> = figures.sent.keys().chain(figures.served.keys()).collect();
    names.sort_unstable();
    names.dedup();
    lines.extend(names.into_iter().map(|name| {
        let of = |counts: &BTreeMap<String, u64>| counts.get(name).copied().unwrap_or(0);
        let (sent, served) = (of(&figures.sent), of(&figures.served));
        let verdict = if sent == served { "" } else { "  DIFFERENT" };
        format!("{name}: driver {sent}, Seawall {served}{verdict}")
    }));
    lines.push(if figures.agree() {
        "The counts agree.".to_owned()
    } else {
        "The counts do not agree.".to_owned()
    });
    lines
}

/// Returns lines that list the addresses of Seawall to open while the demonstration runs, and the
/// password.
pub(super) fn where_to_look(app: &App, deployment: &Deployment) -> Vec<String> {
    let admin = app.admin_address().unwrap_or("off");
    vec![
        "\nStill running, with light traffic. Where to look next:\n".to_owned(),
        format!("  dashboard   http://{admin}/"),
        format!("  terminal    seawall top --admin http://{admin}"),
        format!("  metrics     http://{admin}/metrics"),
        format!("  shapes      http://{admin}/api/v1/shapes"),
        format!("  pools       http://{admin}/api/v1/pools"),
        format!(
            "  as a client mongodb://{USER}@{}/{DATABASE}?authSource=admin",
            address_of(app)
        ),
        format!("  password    {}", deployment.password()),
        "\nCtrl-C ends the demonstration, stops its mongod and removes the data.".to_owned(),
    ]
}

/// Maximum length of a printed shape in characters. A line then has about 140 characters.
const SHAPE_CHARACTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::{super::deployment::ServerCounts, *};

    fn counts(rows: &[(&str, u64)]) -> BTreeMap<String, u64> {
        let rows = rows
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        rows.collect()
    }

    fn figures(sent: &[(&str, u64)], served: &[(&str, u64)]) -> Figures {
        Figures {
            sent: counts(sent),
            served: counts(served),
            shapes: Vec::new(),
            connections: ConnectionTotals::default(),
        }
    }

    #[test]
    fn equal_counts_of_driver_and_seawall_are_reported_as_agreeing() {
        let figures = figures(&[("find", 201)], &[("find", 201)]);
        assert!(figures.agree());
        let lines = comparison(&figures);
        let expected = ["find: driver 201, Seawall 201", "The counts agree."];
        assert_eq!(lines[1..], expected);
    }

    #[test]
    fn a_command_that_only_seawall_counted_is_reported_as_different() {
        let figures = figures(&[("find", 2)], &[("find", 2), ("insert", 1)]);
        assert!(!figures.agree());
        let lines = comparison(&figures);
        assert_eq!(lines[2], "insert: driver 0, Seawall 1  DIFFERENT");
    }

    #[test]
    fn a_count_that_the_mongod_does_not_report_is_not_shown_as_zero() {
        let burst = Burst {
            time: Duration::ZERO,
            server: ServerCounts {
                connections: Some(7),
                authentications: None,
            },
        };
        let lines = connections(&figures(&[], &[]), &burst, &burst);
        let of_burst = lines.iter().skip_while(|line| !line.contains("The burst"));
        let ends: Vec<_> = of_burst.skip(2).map(|line| line.trim_end()).collect();
        assert!(ends[0].ends_with(" 7"), "{ends:?}");
        assert!(ends[1].ends_with(" not counted"), "{ends:?}");
    }

    #[test]
    fn a_long_query_shape_is_shortened_after_a_whole_character() {
        let text = "ü".repeat(SHAPE_CHARACTERS + 1);
        let cut = shortened(&text);
        assert_eq!(cut.chars().count(), SHAPE_CHARACTERS + 1);
        assert!(cut.ends_with('…'));
        assert_eq!(shortened("find _id"), "find _id");
    }
}
