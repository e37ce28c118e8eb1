//! A report, or the comparison of two reports, as one self-contained HTML page.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    changes::Document,
    compare::{Comparison, Side},
    page::page,
    text,
};
use crate::figures::moment;
use seawall_api::{Latency, Report, Shape, all_operations, operations_per_second, totals};

/// The data of a page with a report: the report and the figures of its period.
#[derive(Serialize)]
struct ReportPage<'a> {
    /// Bytes of all commands and replies.
    bytes: u64,
    errors: u64,
    /// The start of the period, in seconds since the epoch.
    from: f64,
    /// One line of text for each merged instance.
    instances: Vec<String>,
    /// Number of seconds of the period that have data.
    known_seconds: f64,
    /// The latency quantiles of all operations, in milliseconds.
    latency_ms: Latency,
    /// The total operation time of all shapes, including `getMore`s, in milliseconds.
    load_ms: f64,
    operations: u64,
    operations_per_second: f64,
    report: &'a Report,
    /// Number of operations of all shapes, without `getMore`s.
    shape_operations: u64,
    /// The start of Seawall, in seconds since the epoch. Storms and stalls before this time are not
    /// known.
    started_at: f64,
    /// The end of the period, in seconds since the epoch.
    until: f64,
    warnings: Vec<String>,
}

/// Formats a report as an HTML page.
pub(super) fn report(report: &Report) -> serde_json::Result<String> {
    let all = all_operations(report);
    let (from, until) = text::ends(report);
    let (operations, errors) = totals(report);
    let data = ReportPage {
        bytes: all.request_bytes + all.reply_bytes,
        errors,
        from,
        instances: text::instances(report),
        known_seconds: report.covered_seconds(),
        latency_ms: (&all.durations).into(),
        load_ms: report.load_ms(),
        operations,
        operations_per_second: operations_per_second(report),
        report,
        shape_operations: report.operations(),
        started_at: text::started_at(report),
        until,
        warnings: text::warnings(report),
    };
    page(&format!("Seawall report {} UTC", moment(until)), &data)
}

/// The data of a page with a comparison: the comparison, and the changed shapes of both reports.
#[derive(Serialize)]
struct ComparisonPage<'a> {
    comparison: Document<'a>,
    shapes: ChangedShapes<'a>,
}

/// The shapes with at least one change, as each of the two reports lists them.
#[derive(Serialize)]
struct ChangedShapes<'a> {
    baseline: Vec<&'a Shape>,
    now: Vec<&'a Shape>,
}

/// Formats the comparison of two reports as an HTML page.
pub(super) fn comparison(comparison: &Comparison) -> serde_json::Result<String> {
    let changes = comparison.changes.changes.iter();
    let changed: BTreeSet<_> = changes.map(|change| change.shape.id()).collect();
    fn changed_of<'a>(side: &'a Side, changed: &BTreeSet<&str>) -> Vec<&'a Shape> {
        let shapes = side.report.shapes.iter();
        shapes
            .filter(|shape| changed.contains(shape.id.as_str()))
            .collect()
    }
    let data = ComparisonPage {
        comparison: Document::of(comparison),
        shapes: ChangedShapes {
            baseline: changed_of(&comparison.before, &changed),
            now: changed_of(&comparison.now, &changed),
        },
    };
    page("Seawall comparison", &data)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{
        super::{compare::tests::comparison as compared, page::tests::data, tests::example},
        *,
    };

    /// Adds markup to every string value. An attacker could put the same markup into a name.
    fn poisoned(value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(format!("{text}\"'></script><script>&\u{1b}")),
            Value::Array(items) => items.into_iter().map(poisoned).collect(),
            Value::Object(members) => {
                let members = members.into_iter();
                Value::Object(members.map(|(key, value)| (key, poisoned(value))).collect())
            }
            other => other,
        }
    }

    #[test]
    fn markup_in_names_adds_no_markup_to_the_page() {
        let plain = report(&Report::read(example()).unwrap()).unwrap();
        let html = report(&Report::read(poisoned(example())).unwrap()).unwrap();
        assert_eq!(html.matches('<').count(), plain.matches('<').count());
        assert!(!html.contains('\u{1b}'));
        let shape = data(&html)["report"]["shapes"][0]["shape"].clone();
        assert!(
            shape
                .as_str()
                .unwrap()
                .ends_with("</script><script>&\u{1b}")
        );
    }

    #[test]
    fn html_page_contains_the_whole_report_and_its_operation_count_and_latencies() {
        let of = Report::read(example()).unwrap();
        let data = data(&report(&of).unwrap());
        let embedded = Report::read(data["report"].clone()).unwrap();
        assert_eq!(embedded.operations(), of.operations());
        assert_eq!(data["operations"], of.operations());
        assert_eq!(
            (&data["until"], &data["known_seconds"]),
            (&1_795_283_465.0.into(), &600.0.into())
        );
        let p99 = data["latency_ms"]["p99"].as_f64().unwrap();
        assert!((15.0..40.0).contains(&p99), "{p99}");
        // The script of the page draws the heat map from the distributions of the steps.
        let steps = data["report"]["timeline"]["steps"].as_array().unwrap();
        let buckets = steps
            .iter()
            .flat_map(|step| step["distribution"].as_array().unwrap());
        let sum: u64 = buckets
            .map(|bucket| bucket["count"].as_u64().unwrap())
            .sum();
        assert_eq!(sum, of.operations());
    }

    /// A shape counts its `getMore` commands separately from its operations.
    #[test]
    fn page_counts_get_mores_in_the_total_of_operations_but_not_in_the_operations_of_shapes() {
        let mut of = Report::read(example()).unwrap();
        let listed: u64 = of.shapes.iter().map(|shape| shape.count).sum();
        of.shapes[0].more.count = 600;
        of.timeline.steps[0].count += 600;
        let data = data(&report(&of).unwrap());
        assert_eq!(data["operations"], listed + 600);
        // The page shows a note on operations of unlisted shapes if `shape_operations` exceeds the
        // number of operations of the listed shapes. Here the numbers are equal.
        assert_eq!(data["shape_operations"], listed);
        let rate = data["operations_per_second"].as_f64().unwrap();
        let expected = f64::from(u32::try_from(listed + 600).unwrap()) / 600.0;
        assert!((rate / expected - 1.0).abs() < 1e-9, "{rate} {expected}");
    }

    #[test]
    fn page_of_an_empty_report_shows_zero_operations() {
        let html = report(&Report::default()).unwrap();
        assert_eq!(data(&html)["operations"], 0);
    }

    #[test]
    fn comparison_has_the_changed_shapes_of_both_reports() {
        let data = data(&comparison(&compared()).unwrap());
        let collections = |side: &str| -> Vec<String> {
            let shapes = data["shapes"][side].as_array().unwrap().iter();
            let names = shapes.map(|shape| shape["collection"].as_str().unwrap().to_owned());
            names.collect()
        };
        assert!(collections("baseline").contains(&"carts".to_owned()));
        assert!(collections("now").contains(&"<wishes>".to_owned()));
        assert!(collections("now").contains(&"products".to_owned()));
        assert_eq!(data["comparison"]["baseline"]["file"], "a.json");
    }
}
