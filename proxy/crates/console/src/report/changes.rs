//! A comparison of two reports as text and JSON.

use serde::Serialize;

use super::{
    compare::{Comparison, Side},
    pretty,
    text::period,
};
use crate::{
    figures::{bytes, count, exact, float, millis, percent, printable, ratio, table},
    top::panes,
};
use seawall_api::{Change, Rates, totals};

/// Formats the comparison of two reports as text.
pub(super) fn text(comparison: &Comparison) -> String {
    let mut lines = vec!["Seawall comparison".to_owned()];
    for (name, side) in sides(comparison) {
        let file = printable(&side.file);
        lines.push(format!("{name:<6}  {}  {file}", period(&side.report)));
    }
    let caveats = comparison.caveats();
    let caveats = caveats.iter();
    lines.extend(caveats.map(|caveat| format!("! {}", printable(caveat))));
    lines.push(String::new());
    let rows: Vec<_> = overall(comparison).into_iter().map(Vec::from).collect();
    lines.extend(table(&["<all operations", "before", "now", "ratio"], &rows));
    lines.push("\nChanges\n".to_owned());
    lines.extend(
        panes::changes(&comparison.changes, "before")
            .into_iter()
            .skip(1),
    );
    lines.join("\n") + "\n"
}

fn sides(comparison: &Comparison) -> [(&'static str, &Side); 2] {
    [("before", &comparison.before), ("now", &comparison.now)]
}

/// The rows that compare the totals of both reports. Each row has a name, the figure before, the
/// figure now, and their ratio.
fn overall(comparison: &Comparison) -> Vec<[String; 4]> {
    let (before, now) = (&comparison.before, &comparison.now);
    let row = |name: &str, figure: fn(f64) -> String, of: fn(&Rates) -> f64| {
        let (a, b) = (of(&before.whole), of(&now.whole));
        let times = if a > 0.0 {
            ratio(b / a)
        } else {
            "–".to_owned()
        };
        [name.to_owned(), figure(a), figure(b), times]
    };
    let errors = |side: &Side| {
        let share = percent(float(side.errors), float(totals(&side.report).0));
        format!("{} ({share})", exact(side.errors))
    };
    vec![
        row("count/s", count, |rates| rates.per_second),
        row("p50", millis, |rates| rates.p50_ms),
        row("p99", millis, |rates| rates.p99_ms),
        row("load per second", millis, |rates| {
            rates.total_time_ms_per_second
        }),
        row("bytes/operation", bytes, |rates| rates.bytes_per_operation),
        row("documents/operation", count, |rates| {
            rates.documents_per_operation
        }),
        [
            "errors".to_owned(),
            errors(before),
            errors(now),
            String::new(),
        ],
    ]
}

/// The JSON document of a comparison: the changes in the format of the API, and a summary of both
/// reports.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    baseline: ReportFile<'a>,
    caveats: Vec<String>,
    changes: &'a [Change],
    comparable: bool,
    now: ReportFile<'a>,
    reason: Option<&'a str>,
    /// The version of the JSON format of comparisons.
    seawall_comparison: u64,
}

/// The summary of one of the two compared reports.
#[derive(Serialize)]
struct ReportFile<'a> {
    errors: u64,
    file: &'a str,
    made_at: f64,
    /// The rates over all operations of the report.
    operations: Rates,
    /// Length of the report's period, in seconds.
    since_seconds: f64,
}

impl<'a> ReportFile<'a> {
    fn of(side: &'a Side) -> Self {
        Self {
            errors: side.errors,
            file: &side.file,
            made_at: side.report.made_at,
            operations: side.whole,
            since_seconds: side.report.covered_seconds(),
        }
    }
}

impl<'a> Document<'a> {
    pub(super) fn of(comparison: &'a Comparison) -> Self {
        let reason = comparison.changes.incomparable();
        Self {
            baseline: ReportFile::of(&comparison.before),
            caveats: comparison.caveats(),
            changes: &comparison.changes.changes,
            comparable: reason.is_none(),
            now: ReportFile::of(&comparison.now),
            reason,
            seawall_comparison: 1,
        }
    }
}

/// Formats the comparison of two reports as JSON.
pub(super) fn json(comparison: &Comparison) -> serde_json::Result<String> {
    pretty(&Document::of(comparison))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::compare::tests::comparison, *};

    #[test]
    fn text_comparison_of_two_reports_shows_both_periods_and_the_changed_shapes() {
        let text = text(&comparison());
        assert!(
            text.contains("before  2026-11-21 17:41:05 to 17:51:05 UTC (10 min)  a.json"),
            "{text}"
        );
        assert!(text.contains("now     2026-11-21 18:41:05 to 18:51:05 UTC (10 min)  b.json"));
        let row = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(row("slower").contains("shop.products"));
        assert!(row("slower").contains("×5.19"), "{}", row("slower"));
        assert!(row("new").contains("shop.<wishes>"));
        assert!(row("gone").contains("shop.carts"));
        assert!(row("count/s").ends_with("×1"));
    }

    fn strings(json: &str) -> Vec<&str> {
        json.split('"').skip(1).step_by(2).collect()
    }

    #[test]
    fn json_of_a_comparison_has_the_format_of_the_api() {
        let text = json(&comparison()).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["baseline"]["file"], "a.json");
        assert_eq!(json["now"]["since_seconds"].to_string(), "600.0");
        let changes = json["changes"].as_array().unwrap();
        let new = changes
            .iter()
            .find(|change| change["kind"] == "new")
            .unwrap();
        assert!(new["ratio"].is_number());
        let read: Change = seawall_api::read(new.clone()).unwrap();
        assert_eq!(read.shape.collection(), "<wishes>");
        assert_eq!(read.now.count, new["now"]["count"].as_u64().unwrap());
        // `serde_json` sorts the members of each object that it parses. If `text` has the same
        // strings in the same order as `sorted`, the members in `text` were already sorted. Numbers
        // are not compared, because parsing may change their last digit.
        let sorted = json.to_string();
        assert_eq!(strings(&text), strings(&sorted));
    }
}
