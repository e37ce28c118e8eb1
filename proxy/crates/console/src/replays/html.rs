//! A comparison of replays as one HTML page. The page lists each shape (a command without its
//! values) that failed, returned other results, or became slower or faster. For each of these
//! shapes, two overlapping histograms show the distribution of the operations' durations in the two
//! reports. The page needs no script and loads nothing.

use seawall_replay::{Comparison, ShapeResult};
use seawall_stats::{Distribution, float, float_usize};

use super::text::{facts, name, title};
use crate::figures::{millis, printable};

/// Width and height of a plot, in pixels.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 90.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;\
padding:0 1rem;color:#1c2733;background:#fff}h2{margin-top:2rem}code{font-size:13px;\
overflow-wrap:anywhere}.note{color:#8a4b00}figure{margin:.5rem 0 1.5rem}svg{max-width:100%}\
.before{fill:#8796a5;fill-opacity:.55}.now{fill:#d1495b;fill-opacity:.55}figcaption{color:#55626f;\
font-size:13px}@media(prefers-color-scheme:dark){body{color:#dde5ec;background:#12181e}\
.note{color:#e6a85c}figcaption{color:#9fb0bf}}";

/// Returns the HTML page of a comparison.
pub(crate) fn comparison(comparison: &Comparison) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Seawall comparison of replays</title><style>{STYLE}</style></head><body>\n\
         <h1>Seawall comparison of replays</h1>\n"
    );
    for (side, report) in [("before", &comparison.before), ("now", &comparison.now)] {
        let target = match report.target.as_str() {
            "" => "the capture",
            target => target,
        };
        add(
            &mut page,
            &format!(
                "<p><b>{side}</b>: {}, {} commands in {:.1} s</p>\n",
                escaped(target),
                report.sent,
                report.seconds
            ),
        );
    }
    for caveat in &comparison.caveats {
        add(
            &mut page,
            &format!("<p class=\"note\">{}</p>\n", escaped(caveat)),
        );
    }
    if comparison.changes.is_empty() {
        add(
            &mut page,
            "<p>No shape failed, returned other results, or became slower or faster.</p>\n",
        );
    }
    let mut shown = None;
    for change in &comparison.changes {
        if shown != Some(change.kind) {
            add(&mut page, &format!("<h2>{}</h2>\n", title(change.kind)));
            shown = Some(change.kind);
        }
        add(
            &mut page,
            &format!(
                "<p><code>{}</code><br>{}</p>\n",
                escaped(&name(&change.shape)),
                escaped(&facts(change))
            ),
        );
        add(&mut page, &plot(comparison.results(&change.shape.id)));
    }
    page + "</body></html>\n"
}

/// Draws the histograms of a shape's durations in the two reports; their bars overlap. A shape is a
/// command without its values. The height of a bar is proportional to the bucket's share of the
/// shape's operations.
fn plot(results: [Option<&ShapeResult>; 2]) -> String {
    let sides = results.map(|shape| {
        shape.map_or_else(Distribution::default, |shape| shape.latency.distribution())
    });
    let buckets = || sides.iter().flat_map(Distribution::buckets);
    let (Some(first), Some(last)) = (
        buckets().map(|(bucket, _)| bucket).min(),
        buckets().map(|(bucket, _)| bucket).max(),
    ) else {
        return String::new();
    };
    let width = WIDTH / float_usize(last - first + 1);
    let share = |count: u64, of: &Distribution| float(count) / float(of.count().max(1));
    let highest = sides
        .iter()
        .flat_map(|side| side.buckets().map(|(_, count)| share(count, side)))
        .fold(1e-9, f64::max);
    let mut bars = String::new();
    for (class, side) in ["before", "now"].iter().zip(&sides) {
        for (bucket, count) in side.buckets() {
            let height = HEIGHT * share(count, side) / highest;
            let (x, y) = (width * float_usize(bucket - first), HEIGHT - height);
            let bar = format!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
            );
            add(&mut bars, &bar);
        }
    }
    let bound = |bucket: usize| Distribution::<8>::bounds_seconds(bucket);
    format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
         aria-label=\"distributions of durations\">{bars}</svg><figcaption>durations from {} to {}, \
         logarithmic; grey: before, red: now</figcaption></figure>\n",
        millis(bound(first).0 * 1e3),
        millis(bound(last).1 * 1e3),
    )
}

fn add(page: &mut String, text: &str) {
    page.push_str(text);
}

/// Escapes a text for HTML, because the text may come from clients.
fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for character in printable(text).chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seawall_replay::Report;

    use super::*;

    fn report(ms: u64, documents: u64) -> Report {
        let mut distribution = Distribution::<8>::default();
        for _ in 0..100 {
            distribution.record(Duration::from_millis(ms));
        }
        let shape = ShapeResult {
            id: "00ff".to_owned(),
            command: "find".to_owned(),
            db: "d".to_owned(),
            collection: "<script>".to_owned(),
            text: "{a: ?}".to_owned(),
            count: 100,
            documents,
            latency: (&distribution).into(),
            ..ShapeResult::default()
        };
        Report {
            seconds: 10.0,
            sent: 100,
            shapes: vec![shape],
            ..Report::default()
        }
    }

    #[test]
    fn html_comparison_of_two_replays_lists_changed_shapes_and_escapes_collection_names() {
        let changes = Comparison::new(report(10, 5), report(40, 6), None);
        let page = comparison(&changes);
        for text in [
            "<h2>Different</h2>",
            "<h2>Slower</h2>",
            "documents: 5 → 6",
            "&lt;script&gt;",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(page.contains("class=\"before\"") && page.contains("class=\"now\""));
        assert!(!page.contains("<script"));
        let text = crate::replays::text(&changes);
        assert!(
            text.contains("find d.<script> {a: ?}: documents: 5 → 6"),
            "{text}"
        );
        assert!(text.contains("Slower"), "{text}");
    }

    #[test]
    fn comparison_of_equal_replays_says_that_no_shape_failed_or_changed() {
        let same = Comparison::new(report(10, 5), report(10, 5), None);
        assert!(comparison(&same).contains("No shape failed"));
        assert!(crate::replays::text(&same).contains("No shape failed"));
    }

    #[test]
    fn text_summary_of_a_replay_lists_shapes_and_skipped_commands() {
        let mut report = report(10, 5);
        report.skipped.insert("cursor_ended".to_owned(), 3);
        let text = crate::replays::summary(&report);
        assert!(
            text.contains("3 cursor ended") && text.contains("d.<script>"),
            "{text}"
        );
    }
}
