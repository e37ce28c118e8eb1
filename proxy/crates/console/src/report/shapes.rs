//! The HTML tables of shapes and of changes, with a distribution in each row.

use super::{
    SHOWN_SHAPES,
    page::{Cells, escape},
    plot,
};
use crate::{
    figures::{bytes, count, exact, float, millis, namespace, percent, ratio},
    top::panes,
};
use seawall_api::{Bucket, Changes, Phases, Rates, Report, Shape};
use seawall_stats::Phase;

/// The table of the heaviest shapes.
pub(super) fn heaviest(report: &Report) -> String {
    let shapes = report.shapes.get(..SHOWN_SHAPES);
    let shapes = shapes.unwrap_or(&report.shapes);
    if shapes.is_empty() {
        return "<p>No operation in this period.</p>".to_owned();
    }
    let bounds = plot::bounds(shapes.iter().map(Shape::buckets));
    let (total, seconds) = (report.load_ms(), report.covered_seconds());
    let mut cells = Cells::new(&[
        "share of time",
        "operations/s",
        "p50",
        "p99",
        "longest",
        "errors",
        "bytes",
        "<shape",
        "<durations (logarithmic) and phases",
    ]);
    for shape in shapes {
        cells.number(&percent(shape.load_ms(), total));
        cells.number(&count(float(shape.count) / seconds));
        cells.number(&millis(shape.latency_ms.p50));
        cells.number(&millis(shape.latency_ms.p99));
        cells.number(&millis(shape.latency_ms.max));
        cells.number(&errors(shape));
        cells.number(&bytes(float(shape.bytes())));
        let Shape {
            command,
            db,
            collection,
            shape: text,
            ..
        } = shape;
        cells.marked("name", &name(command, db, collection, text));
        let marks = [("p50", shape.latency_ms.p50), ("p99", shape.latency_ms.p99)];
        let histogram = bounds.map(|bounds| plot::distribution(shape.buckets(), bounds, &marks));
        let phases = phase_bar(&shape.phases_ms);
        cells.marked("plot", &(histogram.unwrap_or_default() + &phases));
        cells.end_row();
    }
    let listed = shapes.iter().map(|shape| shape.count);
    let hidden = report.operations().saturating_sub(listed.sum());
    let rest = match hidden {
        0 => String::new(),
        _ => format!(
            "<p class=\"soft\">And {} operations of other shapes.</p>",
            exact(hidden)
        ),
    };
    format!("{}{}{rest}", legend(), cells.table("wide"))
}

fn errors(shape: &Shape) -> String {
    match shape.errors {
        0 => "0".to_owned(),
        errors => format!(
            "{} ({})",
            count(float(errors)),
            percent(float(errors), float(shape.count))
        ),
    }
}

/// The command, namespace and text of a shape as HTML.
fn name(command: &str, db: &str, collection: &str, text: &str) -> String {
    let namespace = escape(&namespace(db, collection));
    let (command, text) = (escape(command), escape(text));
    format!("<b>{command} {namespace}</b><code>{text}</code>")
}

fn legend() -> String {
    let mut legend = String::from("<p class=\"legend\">");
    for (place, phase) in Phase::ALL.into_iter().enumerate() {
        let what = match phase {
            Phase::Permit => "waiting to be admitted",
            Phase::Checkout => "getting a connection",
            Phase::Forward => "sending to the server",
            Phase::Server => "in the server",
            Phase::Receive => "receiving the reply",
            Phase::Send => "sending to the client",
        };
        let phase = phase.as_str();
        legend.push_str(&format!(
            "<span><i class=\"p{place}\"></i>{phase}: {what}</span>"
        ));
    }
    legend + "<span>dashed lines in the durations: p50 and p99</span></p>"
}

fn phase_bar(phases: &Phases) -> String {
    let total = phases.total();
    let mut bar = String::from("<div class=\"bar\">");
    for (place, (phase, ms)) in phases.named().into_iter().enumerate() {
        if ms > 0.0 {
            let (phase, width) = (phase.as_str(), 100.0 * ms / total);
            let (ms, share) = (millis(ms), escape(&percent(ms, total)));
            bar.push_str(&format!("<span class=\"p{place}\" style=\"width:{width:.2}%\" title=\"{phase} {ms} ({share})\"></span>"));
        }
    }
    let named = phases.named();
    let longest = named.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let longest = longest.filter(|(_, ms)| *ms > 0.0);
    let longest = longest.map_or(String::new(), |(phase, ms)| {
        format!("{} {}", phase.as_str(), percent(*ms, total))
    });
    format!("{bar}</div><small>{}</small>", escape(&longest))
}

/// The table of changes with the figures of both periods, and with distributions if there are any.
pub(super) fn changes<'a>(
    changes: &Changes,
    distributions: impl Fn(&str) -> Option<[&'a [Bucket]; 2]>,
) -> String {
    let periods = panes::periods(changes)
        .map(|periods| format!("<p class=\"soft\">{}</p>", escape(&periods)));
    let periods = periods.unwrap_or_default();
    if let Some(reason) = changes.incomparable() {
        let reason = escape(reason);
        return format!("{periods}<p class=\"warning\">Not compared: {reason}.</p>");
    }
    let changes = &changes.changes;
    if changes.is_empty() {
        return format!("{periods}<p>Nothing changed beyond noise.</p>");
    }
    let mut cells = Cells::new(&[
        "<change",
        "cost",
        "ratio",
        "effect",
        "<shape",
        "operations/s",
        "p50",
        "p99",
        "bytes/operation",
        "<before (grey) and now",
    ]);
    for change in changes {
        let pair = |figure: fn(&Rates) -> String| {
            let (before, now) = (figure(&change.before), figure(&change.now));
            format!(
                "<span class=\"soft\">{} →</span><br>{}",
                escape(&before),
                escape(&now)
            )
        };
        cells.text(&change.kind.replace('_', " "));
        cells.number(&format!("{:+.1} ms/s", change.cost_ms_per_second));
        cells.number(&change.times().map_or("–".to_owned(), ratio));
        let effect = change.share_of_pairs();
        cells.number(&effect.map_or("–".to_owned(), |share| percent(share, 1.0)));
        let series = &change.shape;
        let name = name(
            series.command(),
            series.db(),
            series.collection(),
            series.text(),
        );
        cells.marked("name", &name);
        cells.marked("n", &pair(|rates| count(rates.per_second)));
        cells.marked("n", &pair(|rates| timed(rates.p50_ms)));
        cells.marked("n", &pair(|rates| timed(rates.p99_ms)));
        cells.marked("n", &pair(|rates| bytes(rates.bytes_per_operation)));
        cells.marked("plot", &both(distributions(series.id())));
        cells.end_row();
    }
    let effect = "<p class=\"soft\">Cost: additional operation time per second. Effect: of all pairs of one \
                  operation before and one now, the share in which the one now took longer; 50 % means no difference.</p>";
    format!("{periods}{effect}{}", cells.table("wide"))
}

/// A duration; a dash if there was no operation.
fn timed(ms: f64) -> String {
    match ms > 0.0 {
        true => millis(ms),
        false => "–".to_owned(),
    }
}

/// Two distributions, one above the other, with the same axis.
fn both(distributions: Option<[&[Bucket]; 2]>) -> String {
    let Some(sides) = distributions else {
        return String::new();
    };
    let Some(bounds) = plot::bounds(sides.into_iter()) else {
        return String::new();
    };
    let [before, now] = sides.map(|side| plot::distribution(side, bounds, &[]));
    before.replace("<rect ", "<rect class=\"before\" ") + &now
}

#[cfg(test)]
mod tests {
    use super::{super::tests::example, *};

    #[test]
    fn each_shape_has_a_row_a_distribution_and_a_bar() {
        let report = Report::read(example()).unwrap();
        let html = heaviest(&report);
        let shapes = report.shapes.len();
        assert_eq!(html.matches("<tr>").count(), shapes + 1);
        assert_eq!(html.matches("distribution of durations").count(), shapes);
        assert_eq!(html.matches("class=\"bar\"").count(), shapes);
        assert!(html.contains("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;"));
        assert!(!html.contains("other shapes"));
    }

    #[test]
    fn widths_of_a_phase_bar_add_up_to_100_percent() {
        let report = Report::read(example()).unwrap();
        let bar = phase_bar(&report.shapes[0].phases_ms);
        let widths = bar.split("width:").skip(1);
        let widths = widths.map(|rest| rest.split('%').next().unwrap().parse::<f64>().unwrap());
        assert!((widths.sum::<f64>() - 100.0).abs() < 0.05, "{bar}");
        assert!(!phase_bar(&Phases::default()).contains("NaN"));
    }

    #[test]
    fn missing_baseline_is_shown_as_not_compared() {
        let missing = Changes {
            comparable: Some(false),
            reason: Some("no data for <it>".to_owned()),
            ..Changes::default()
        };
        let html = changes(&missing, |_| None);
        assert!(html.contains("Not compared: no data for &lt;it&gt;."));
        assert!(!html.contains("Nothing changed"));
    }

    #[test]
    fn plot_is_omitted_without_distributions() {
        let report = Report::read(example()).unwrap();
        let html = changes(&report.changes, |_| None);
        assert!(html.contains("slower") && html.contains("heavier replies"));
        assert!(!html.contains("<svg"));
        let (shape, none) = (&report.shapes[0], [].as_slice());
        let html = changes(&report.changes, |_| Some([none, shape.buckets()]));
        assert!(html.contains("<svg"));
    }
}
