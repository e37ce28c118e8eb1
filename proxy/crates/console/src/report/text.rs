//! A report as text for a terminal.

use super::SHOWN_SHAPES;
use crate::{
    figures::{
        bytes, clock, count, exact, float, float_usize, millis, moment, namespace, percent,
        printable, seconds, sparks, table, uptime, with_gaps,
    },
    top::panes,
};
use seawall_api::{
    Instance, Report, Shape, TimelineStep, all_operations, operations_per_second, totals,
};

/// Maximum width of a timeline in characters.
const TIMELINE_CHARACTERS: usize = 72;

/// Formats a report as text.
pub(super) fn report(report: &Report) -> String {
    let mut lines = vec!["Seawall report".to_owned(), period(report)];
    lines.extend(about(report));
    lines.push(String::new());
    lines.extend(key_figures(report));
    section(&mut lines, "Timeline", timeline(report));
    section(&mut lines, "Shapes", shapes(report));
    section(&mut lines, "Servers", servers(report));
    let since = since_start(report);
    section(&mut lines, "Stalls", panes::stalls(&report.stalls, &since));
    section(&mut lines, "Storms", panes::storms(&report.storms, &since));
    section(
        &mut lines,
        "Changes",
        panes::changes(&report.changes, &report.changes.against),
    );
    section(&mut lines, "Pools", panes::pools(&report.pools));
    lines.join("\n") + "\n"
}

fn section(lines: &mut Vec<String>, title: &str, body: Vec<String>) {
    lines.push(format!("\n{title}\n"));
    lines.extend(body);
}

/// The start and the end of the report's period, in seconds since the epoch. The period consists of
/// whole steps of the history, so the last step of a past period may end after the requested end
/// (`made_at`).
pub(super) fn ends(report: &Report) -> (f64, f64) {
    let covered = report.covered_seconds();
    let steps = &report.timeline.steps;
    let last_ends = steps.last().map(|step| step.at + step.seconds);
    let to = last_ends.map_or(report.made_at, |end| end.max(report.made_at));
    let first = steps.first().map(|step| step.at);
    (first.unwrap_or(to - covered).min(to - covered), to)
}

/// The start of Seawall in seconds since the epoch. For several instances: the latest start. Storms
/// and stalls before this time are not known.
pub(super) fn started_at(report: &Report) -> f64 {
    let reached = report.instances.iter().filter(|i| !i.version.is_empty());
    let uptimes = reached.map(|instance| instance.uptime_seconds);
    report.made_at - uptimes.fold(report.status.uptime_seconds, f64::min)
}

/// The text after `no storm` and `no stall` in a report. It is empty if Seawall ran during the
/// whole period.
fn since_start(report: &Report) -> String {
    let started_at = started_at(report);
    match ends(report).0 < started_at {
        true => format!(" since Seawall started at {} UTC", moment(started_at)),
        false => String::new(),
    }
}

/// The start, the end and the length of the report's period.
pub(super) fn period(report: &Report) -> String {
    let covered = report.covered_seconds();
    let (from, to) = ends(report);
    // A proxy that started or stopped during the period has data for only a part of the period. The
    // text mentions this if the missing time is longer than two steps and 2 s.
    let step = report.timeline.step_seconds;
    let known = match to - from - covered > 2.0 * step + 2.0 {
        true => format!(", data for {}", seconds(covered)),
        false => String::new(),
    };
    let (from, to, length) = (moment(from), moment(to), seconds(to - from));
    // If both moments are on the same day, the date is shown once.
    let to = match from.split_once(' ').zip(to.split_once(' ')) {
        Some(((day, _), (same, clock))) if day == same => clock.to_owned(),
        _ => to.clone(),
    };
    format!("{from} to {to} UTC ({length}{known})")
}

/// A line about the proxy, a line for each merged instance, and the warnings.
fn about(report: &Report) -> Vec<String> {
    let status = &report.status;
    let mut lines = vec![format!(
        "seawall {}, {}, {}, up {}",
        printable(&status.version),
        printable(&status.mode),
        printable(&status.deployment),
        uptime(status.uptime_seconds),
    )];
    lines.extend(instances(report));
    lines.extend(
        warnings(report)
            .into_iter()
            .map(|warning| format!("! {}", printable(&warning))),
    );
    lines
}

/// One line for each merged instance; nothing for a report on one instance.
pub(super) fn instances(report: &Report) -> Vec<String> {
    let reached = report.instances.iter().filter(|i| !i.version.is_empty());
    let line = |instance: &Instance| {
        format!(
            "instance {}: seawall {}, up {}, {} operations since its start",
            printable(&instance.address),
            printable(&instance.version),
            uptime(instance.uptime_seconds),
            count(float(instance.operations)),
        )
    };
    reached.map(line).collect()
}

/// The warnings: one text for each condition that makes the figures unusual or incomplete.
pub(super) fn warnings(report: &Report) -> Vec<String> {
    let status = &report.status;
    let warnings = [
        (
            status.injects_faults,
            "faults are injected: operations are delayed or fail on purpose",
        ),
        (status.draining, "the proxy is draining"),
        (report.storms.active, "a connection storm is in progress"),
    ];
    let warnings = warnings.into_iter().filter(|(is_so, _)| *is_so);
    let warnings = warnings.map(|(_, warning)| warning.to_owned());
    let errors = report.instances.iter().filter_map(|i| i.error.as_ref());
    let errors = errors.map(|error| format!("incomplete figures: {error}"));
    let incomparable = report.instances.iter().filter_map(|instance| {
        let reason = instance.incomparable.as_ref()?;
        Some(format!(
            "changes do not include {}: {reason}",
            instance.address
        ))
    });
    warnings.chain(errors).chain(incomparable).collect()
}

/// The summary of the period: name, figure, explanation.
pub(super) fn summary(report: &Report) -> Vec<(&'static str, String, String)> {
    let all = all_operations(report);
    let (operations, errors) = totals(report);
    let quantile = |q| millis(all.durations.quantile(q).as_secs_f64() * 1e3);
    let rate = operations_per_second(report);
    let servers = report.status.server_connections;
    let volume = all.request_bytes + all.reply_bytes;
    vec![
        (
            "operations",
            exact(operations),
            format!("{} per second", count(rate)),
        ),
        (
            "errors",
            exact(errors),
            percent(float(errors), float(operations)),
        ),
        ("p50", quantile(0.5), "half were faster".to_owned()),
        ("p99", quantile(0.99), "one in 100 was slower".to_owned()),
        (
            "longest",
            millis(all.durations.max().as_secs_f64() * 1e3),
            String::new(),
        ),
        (
            "bytes",
            bytes(float(volume)),
            "commands and replies".to_owned(),
        ),
        (
            "clients",
            exact(report.status.clients),
            "connections at the end".to_owned(),
        ),
        (
            "server connections",
            exact(servers.total()),
            format!("{} in use at the end", servers.in_use),
        ),
        (
            "wait queue",
            exact(report.status.wait_queue),
            "at the end".to_owned(),
        ),
    ]
}

fn key_figures(report: &Report) -> Vec<String> {
    let rows = summary(report).into_iter();
    let rows: Vec<_> = rows
        .map(|(name, figure, more)| vec![name.to_owned(), figure, more])
        .collect();
    // The first line that `table` returns contains the headings. This line is skipped, because
    // these rows need no headings.
    table(&["<", "", "<"], &rows).into_iter().skip(1).collect()
}

fn timeline(report: &Report) -> Vec<String> {
    let steps = &report.timeline.steps;
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return vec!["no step was recorded".to_owned()];
    };
    let step_seconds = report.timeline.step_seconds.max(1e-3);
    let placed = with_gaps(steps, step_seconds);
    let width = placed.len().div_ceil(TIMELINE_CHARACTERS);
    let column = |figure: fn(&[&TimelineStep]) -> f64| {
        let chunks = placed.chunks(width);
        let figures = chunks.map(|of| figure(&of.iter().copied().flatten().collect::<Vec<_>>()));
        figures.collect::<Vec<_>>()
    };
    // Each character of a timeline shows `width` steps. The three timelines show the average rate
    // of these steps, the highest of their 99th percentiles, and the sum of their errors.
    let rate = column(|steps| {
        let count: u64 = steps.iter().map(|step| step.count).sum();
        float(count) / steps.iter().map(|step| step.seconds).sum::<f64>().max(1e-3)
    });
    let slow = column(|steps| steps.iter().map(|s| s.latency_ms.p99).fold(0.0, f64::max));
    let errors = column(|steps| steps.iter().map(|step| float(step.errors)).sum());
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let long = seconds(step_seconds * float_usize(width));
    vec![
        format!("count/s  {}  max {}", sparks(&rate), count(most(&rate))),
        format!("p99      {}  max {}", sparks(&slow), millis(most(&slow))),
        format!("errors   {}  max {}", sparks(&errors), count(most(&errors))),
        format!(
            "{} to {} UTC, {long} per character",
            clock(first.at),
            clock(last.at + step_seconds)
        ),
    ]
}

fn shapes(report: &Report) -> Vec<String> {
    let (total, seconds) = (report.load_ms(), report.covered_seconds());
    let row = |shape: &Shape| {
        vec![
            percent(shape.load_ms(), total),
            count(float(shape.count) / seconds),
            millis(shape.latency_ms.p50),
            millis(shape.latency_ms.p99),
            millis(shape.latency_ms.max),
            count(float(shape.errors)),
            bytes(float(shape.bytes())),
            slowest_phase(shape),
            printable(&shape.command),
            namespace(&shape.db, &shape.collection),
            printable(&shape.shape),
        ]
    };
    let shown = report.shapes.iter().take(SHOWN_SHAPES);
    let rows: Vec<_> = shown.clone().map(row).collect();
    let headings = [
        "share",
        "count/s",
        "p50",
        "p99",
        "longest",
        "errors",
        "bytes",
        "<longest phase",
        "<command",
        "<namespace",
        "<shape",
    ];
    let mut lines = table(&headings, &rows);
    let listed = shown.map(|shape| shape.count);
    let hidden = report.operations().saturating_sub(listed.sum());
    if hidden > 0 {
        lines.push(format!("and {} operations of other shapes", exact(hidden)));
    }
    lines
}

fn slowest_phase(shape: &Shape) -> String {
    let phases = shape.phases_ms.named();
    let longest = phases.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let total = shape.phases_ms.total();
    longest.map_or(String::new(), |(phase, ms)| {
        format!("{} {}", phase.as_str(), percent(*ms, total))
    })
}

fn servers(report: &Report) -> Vec<String> {
    let rows: Vec<_> = report
        .servers
        .iter()
        .map(|server| {
            vec![
                printable(&server.address),
                exact(server.count),
                exact(server.errors),
                millis(server.latency_ms.p50),
                millis(server.latency_ms.p99),
                millis(server.latency_ms.max),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => vec!["no server replied".to_owned()],
        false => table(
            &["<server", "operations", "errors", "p50", "p99", "longest"],
            &rows,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::report as example, *};
    use seawall_api::{Changes, More, Other, Stalls, Storms};

    #[test]
    fn text_has_every_section_and_no_control_characters() {
        let text = report(&example());
        let first: Vec<_> = text.lines().take(3).collect();
        assert_eq!(first[1], "2026-11-21 17:41:05 to 17:51:05 UTC (10 min)");
        assert_eq!(
            first[2],
            "seawall 0.1.0, pooled, ReplicaSetWithPrimary, up 2 h 01 min"
        );
        let sections = [
            "\nTimeline\n",
            "\nShapes\n",
            "\nServers\n",
            "\nStalls\n",
            "\nStorms\n",
            "\nChanges\n",
            "\nPools\n",
        ];
        let mut rest = text.as_str();
        for section in sections {
            rest = rest
                .split_once(section)
                .unwrap_or_else(|| panic!("{section}: {text}"))
                .1;
        }
        assert!(text.contains("recurs every 60 s for 3 s on db1.example.net:27017"));
        assert!(text.contains("longest phase"));
        assert!(!text.contains(['\u{1b}', '\u{202e}']));
    }

    #[test]
    fn report_states_how_much_of_the_period_has_data() {
        let mut young = example();
        young.since_seconds = 90.0;
        assert_eq!(
            period(&young),
            "2026-11-21 17:41:05 to 17:51:05 UTC (10 min, data for 90 s)"
        );
        young.timeline.steps.clear();
        assert_eq!(period(&young), "2026-11-21 17:49:35 to 17:51:05 UTC (90 s)");
        assert!(report(&young).contains("no step"));
    }

    /// Two days ago, the history has only steps of 600 s. The requested period is from 610 s to
    /// 1,810 s.
    #[test]
    fn a_report_on_a_past_period_states_the_period_of_its_whole_steps() {
        let mut past = example();
        (past.made_at, past.since_seconds) = (1_810.0, 1_800.0);
        past.timeline.step_seconds = 600.0;
        past.timeline.steps = [600.0, 1_200.0, 1_800.0]
            .map(|at| TimelineStep {
                at,
                seconds: 600.0,
                ..Default::default()
            })
            .into();
        assert_eq!(ends(&past), (600.0, 2_400.0));
        assert_eq!(
            period(&past),
            "1970-01-01 00:10:00 to 00:40:00 UTC (30 min)"
        );
    }

    /// The history is kept across restarts, but storms and stalls are not.
    #[test]
    fn report_says_no_stall_since_the_start_if_its_period_began_before_the_start() {
        let mut quiet = example();
        quiet.stalls = Stalls::default();
        quiet.storms = Storms::default();
        let text = report(&quiet);
        assert!(text.contains("\nno stall\n") && text.contains("\nno storm\n"));
        quiet.status.uptime_seconds = 90.0;
        let started = "since Seawall started at 2026-11-21 17:49:35 UTC\n";
        let text = report(&quiet);
        assert!(text.contains(&format!("no stall {started}")), "{text}");
        assert!(text.contains(&format!("no storm {started}")), "{text}");
        let instance = |uptime_seconds| Instance {
            version: "0.1.0".to_owned(),
            uptime_seconds,
            ..Instance::default()
        };
        quiet.instances = vec![instance(90.0), instance(30.0), Instance::default()];
        let text = report(&quiet);
        assert!(text.contains("no stall since Seawall started at 2026-11-21 17:50:35 UTC"));
    }

    #[test]
    fn warnings_precede_the_figures() {
        let mut warned = example();
        warned.status.injects_faults = true;
        warned.storms.active = true;
        let text = report(&warned);
        let place = |part: &str| text.find(part).unwrap();
        assert!(place("! faults are injected") < place("operations"));
        assert!(text.contains("! a connection storm"));
    }

    #[test]
    fn missing_baseline_is_reported() {
        let mut missing = example();
        missing.changes = Changes {
            against: "yesterday".to_owned(),
            comparable: Some(false),
            reason: Some("no data for the baseline".to_owned()),
            ..Changes::default()
        };
        let text = report(&missing);
        assert!(text.contains("not compared: no data for the baseline"));
        assert!(!text.contains("nothing changed"));
    }

    #[test]
    fn time_share_of_a_shape_includes_its_get_mores_and_hidden_shapes_are_shown_as_one_count() {
        let mut many = example();
        let shape = many.shapes[0].clone();
        many.shapes = vec![shape.clone(); SHOWN_SHAPES + 3];
        many.shapes[0].more = More {
            count: 1,
            total_time_ms: 1e9,
            ..More::default()
        };
        let text = report(&many);
        let rows = text.lines().filter(|line| line.contains("shop.orders"));
        assert!(rows.clone().count() >= SHOWN_SHAPES);
        assert!(
            rows.clone().any(|row| row.trim_start().starts_with("97.")),
            "{text}"
        );
        let hidden = exact(3 * shape.count);
        assert!(text.contains(&format!("and {hidden} operations of other shapes")));
    }

    #[test]
    fn operations_of_unlisted_shapes_are_counted() {
        let mut cut = example();
        cut.other = Other {
            count: 1234,
            ..Other::default()
        };
        let text = report(&cut);
        assert!(text.contains("and 1\u{202f}234 operations of other shapes"));
    }
}
