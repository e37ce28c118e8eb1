//! Reports on replays, and their comparisons, as text.

use seawall_replay::{Change, ChangeKind, Comparison, Names, Report, ResultKind, ShapeResult};

use crate::figures::{bytes, counted, exact, float, millis, namespace, printable, table};

/// Maximum number of shapes (commands without their values) in a summary. The JSON format contains
/// all shapes.
const SHOWN_SHAPES: usize = 50;

/// Formats the results of a replay or of a dry run as text.
pub fn summary(report: &Report) -> String {
    let mut lines = vec![headline(report)];
    if !report.skipped.is_empty() {
        let skipped = report.skipped.iter();
        let skipped: Vec<_> = skipped
            .map(|(reason, count)| format!("{} {}", exact(*count), reason.replace('_', " ")))
            .collect();
        lines.push(format!("skipped: {}", skipped.join(", ")));
    }
    if report.omitted > 0 {
        let omitted = counted(report.omitted, "operation");
        lines.push(format!("! the capture lacks {omitted}"));
    }
    if report.kind == ResultKind::Replay {
        lines.extend(progress(report));
    }
    lines.push(String::new());
    let shapes = report.shapes.iter().take(SHOWN_SHAPES);
    let rows: Vec<_> = shapes.map(row).collect();
    let headings = [
        "<command",
        "<namespace",
        "<shape",
        "count",
        "errors",
        "documents",
        "bytes",
        "p50",
        "p99",
    ];
    lines.extend(table(&headings, &rows));
    if let Some(more) = report.shapes.len().checked_sub(SHOWN_SHAPES + 1) {
        lines.push(format!("… and {} more shapes", more + 1));
    }
    lines.join("\n") + "\n"
}

fn headline(report: &Report) -> String {
    let verb = match report.kind {
        ResultKind::Replay => "sent",
        ResultKind::Capture => "captured",
        ResultKind::DryRun => "would send",
    };
    let target = match report.target.as_str() {
        "" => String::new(),
        target => format!(" to {}", printable(target)),
    };
    format!(
        "capture {}: {verb} {} commands{target} in {:.1} s",
        printable(&report.capture),
        exact(report.sent),
        report.seconds,
    )
}

/// The lines that only the summary of a replay has, not the summary of a dry run or of a capture.
fn progress(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if report.settings.pace != "max" {
        lines.push(format!(
            "lag: p50 {}, p99 {}, max {}; intervals differ by p50 {}, p99 {}",
            millis(report.lag.p50_ms),
            millis(report.lag.p99_ms),
            millis(float(report.lag.max_us) / 1e3),
            millis(report.interval_error.p50_ms),
            millis(report.interval_error.p99_ms),
        ));
    }
    lines.push(format!(
        "errors that the capture does not have: {}",
        exact(report.unexpected_errors)
    ));
    if report.not_sent > 0 {
        lines.push(format!("! not sent: {} commands", exact(report.not_sent)));
    }
    if report.shared_connections > 0 {
        lines.push(format!(
            "! {} clients shared a connection with others; use more --connections",
            exact(report.shared_connections)
        ));
    }
    lines
}

fn row(shape: &ShapeResult) -> Vec<String> {
    let documents = match shape.is_awaiting {
        true => format!("{} events", exact(shape.events)),
        false => exact(shape.documents),
    };
    vec![
        printable(&shape.command),
        printable(&namespace(&shape.db, &shape.collection)),
        printable(&shape.text),
        exact(shape.count),
        exact(shape.error_count()),
        documents,
        bytes(float(shape.request_bytes + shape.reply_bytes)),
        millis(shape.latency.p50_ms),
        millis(shape.latency.p99_ms),
    ]
}

/// The name of a shape in one line: the command, the namespace, and the text of the shape (the
/// command without its values).
pub(super) fn name(names: &Names) -> String {
    let parts = [
        names.command.clone(),
        namespace(&names.db, &names.collection),
        names.text.clone(),
    ];
    let parts: Vec<_> = parts.iter().filter(|part| !part.is_empty()).collect();
    let parts: Vec<_> = parts.into_iter().map(|part| printable(part)).collect();
    parts.join(" ")
}

/// The heading above the changes of one kind.
pub(super) fn title(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Failed => "Failed",
        ChangeKind::Different => "Different",
        ChangeKind::Slower => "Slower",
        ChangeKind::Faster => "Faster",
    }
}

/// The facts of a change in one line. If operations became slower or faster, the first fact is
/// [`Change::ratio`], such as `×1.52`.
pub(super) fn facts(change: &Change) -> String {
    let ratio = change.ratio.map(|ratio| format!("×{ratio:.2}"));
    let facts = ratio.into_iter().chain(change.facts.iter().cloned());
    facts.collect::<Vec<_>>().join(", ")
}

/// Formats a comparison of two replays, or of a capture and a replay, as text.
pub(crate) fn comparison(comparison: &Comparison) -> String {
    let mut lines = vec!["Seawall comparison of replays".to_owned()];
    for (name, report) in [("before", &comparison.before), ("now", &comparison.now)] {
        lines.push(format!("{name:<6}  {}", headline(report)));
    }
    let caveats = comparison.caveats.iter();
    lines.extend(caveats.map(|caveat| format!("! {}", printable(caveat))));
    if comparison.changes.is_empty() {
        lines.push(
            "\nNo shape failed, returned other results, or became slower or faster.".to_owned(),
        );
    }
    let mut shown = None;
    for change in &comparison.changes {
        if shown != Some(change.kind) {
            lines.push(format!("\n{}\n", title(change.kind)));
            shown = Some(change.kind);
        }
        lines.push(format!("  {}: {}", name(&change.shape), facts(change)));
    }
    lines.join("\n") + "\n"
}
