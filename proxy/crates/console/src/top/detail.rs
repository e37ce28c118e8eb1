//! The detail view of one shape: figures, distribution, phases, timeline.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Stylize,
    text::Line,
    widgets::{Block, Borders, Paragraph, Wrap},
};

use super::{
    histogram::{Histogram, Scale, linear, logarithmic},
    model::Model,
};
use crate::figures::{
    bar, bytes, clock, count, exact, float, millis, namespace, percent, printable, seconds, sparks,
    with_gaps,
};
use seawall_api::{Latency, Phases, Shape, TimelineStep};

/// Maximum width of a line of the histogram without its bar, in characters.
const BESIDE_BAR: usize = 39;

/// Maximum number of rows for the text of a shape.
const TEXT_ROWS: u16 = 4;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let Some(shape) = model.opened().or(model.selected()) else {
        let nothing = Paragraph::new(model.why_no_row().dim());
        return frame.render_widget(nothing, area);
    };
    let areas = Layout::vertical([
        Constraint::Length(TEXT_ROWS + 2),
        Constraint::Length(6),
        Constraint::Min(4),
    ]);
    let [head, history, below] = areas.areas(area);
    let text = printable(&shape.shape);
    let mut lines = vec![Line::from(title(shape)).bold(), Line::from(text)];
    lines.insert(1, Line::from(figures(shape)));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), head);
    draw_timeline(
        frame,
        history,
        shape.timeline.as_deref().unwrap_or_default(),
    );
    let areas = Layout::horizontal([Constraint::Min(40), Constraint::Length(44)]);
    let [left, right] = areas.areas(below);
    let block = Block::new().borders(Borders::TOP).title(caption(model));
    let room = block.inner(left);
    let bins = usize::from(room.height.saturating_sub(1)).max(1);
    let histogram = match model.choice.scale {
        Scale::Logarithmic => logarithmic(shape.buckets(), bins),
        Scale::Linear(_) => linear(shape.buckets(), model.range(), bins),
    };
    let lines = bars(
        &histogram,
        usize::from(room.width).saturating_sub(BESIDE_BAR),
    );
    let lines: Vec<_> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).block(block), left);
    let block = Block::new().borders(Borders::TOP).title(" phases ");
    let lines: Vec<_> = phases(&shape.phases_ms, 16)
        .into_iter()
        .map(Line::from)
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), right);
}

fn title(shape: &Shape) -> String {
    let namespace = namespace(&shape.db, &shape.collection);
    let (command, id) = (printable(&shape.command), printable(&shape.id));
    format!("{command} {namespace}  {id}")
}

fn figures(shape: &Shape) -> String {
    let Latency {
        p50,
        p90,
        p99,
        p999,
        max,
    } = shape.latency_ms;
    let [p50, p90, p99, p999, max] = [p50, p90, p99, p999, max].map(millis);
    let more = match shape.more.count {
        0 => String::new(),
        many => {
            let (many, time) = (exact(many), millis(shape.more.total_time_ms));
            format!(" and {time} in {many} getMores")
        }
    };
    format!(
        "{} operations, {} errors, {} in total{more}; p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, longest {max}; \
         commands {}, replies {}, {} documents",
        exact(shape.count),
        exact(shape.errors),
        millis(shape.total_time_ms),
        bytes(float(shape.request_bytes)),
        bytes(float(shape.reply_bytes)),
        count(float(shape.documents)),
    )
}

/// The caption of the histogram.
fn caption(model: &Model) -> String {
    match model.choice.scale {
        Scale::Logarithmic => " distribution, logarithmic ".to_owned(),
        Scale::Linear(_) => {
            let range = model.range();
            let (low, high) = (seconds(range.low), seconds(range.high));
            // The bins of a linear histogram can be narrower than the recorded buckets. So the
            // caption names the width of the buckets, which is the real precision.
            format!(" distribution, linear, {low} to {high} (recorded in steps of 9 %) ")
        }
    }
}

/// One line per bin: bounds, bar, count, share.
fn bars(histogram: &Histogram, width: usize) -> Vec<String> {
    let (most, total) = (histogram.most(), histogram.total());
    if total <= 0.0 {
        return vec!["no distribution yet".to_owned()];
    }
    let lines = histogram.bins.iter().map(|bin| {
        let share = if most > 0.0 { bin.count / most } else { 0.0 };
        let bar = bar(share, width);
        format!(
            "{:>8} –{:>8} {bar:<width$} {:>7} {:>8}",
            bound(bin.low),
            bound(bin.high),
            many(bin.count),
            percent(bin.count, total),
        )
    });
    let mut lines: Vec<_> = lines.collect();
    if histogram.below + histogram.above > 0.0 {
        let (below, above) = (many(histogram.below), many(histogram.above));
        lines.push(format!(
            "outside this range: {below} shorter, {above} longer"
        ));
    }
    lines
}

fn many(number: f64) -> String {
    count(number.round())
}

fn bound(bound: f64) -> String {
    seconds(bound).replace(" min", "min")
}

/// One line per phase: name, bar, share, time.
fn phases(phases: &Phases, width: usize) -> Vec<String> {
    let total = phases.total();
    let lines = phases.named().into_iter().map(|(phase, ms)| {
        let name = phase.as_str();
        let share = if total > 0.0 { ms / total } else { 0.0 };
        let bar = bar(share, width);
        format!(
            " {name:<8} {bar:<width$} {:>7} {:>8}",
            percent(ms, total),
            millis(ms)
        )
    });
    lines.collect()
}

/// Draws the number of operations and the 99th percentile of each step. A step without data is
/// empty. If the steps do not fit the width, only the last ones are drawn.
fn draw_timeline(frame: &mut Frame<'_>, area: Rect, timeline: &[TimelineStep]) {
    let block = Block::new().borders(Borders::TOP).title(" timeline ");
    let room = usize::from(block.inner(area).width);
    let starts = timeline.iter().zip(timeline.iter().skip(1));
    let lengths = starts.map(|(step, next)| next.at - step.at);
    let step_seconds = lengths.reduce(f64::min).unwrap_or_default();
    let placed = with_gaps(timeline, step_seconds);
    let shown = placed.get(placed.len().saturating_sub(room)..);
    let shown = shown.unwrap_or_default();
    let mut present = shown.iter().flatten();
    let Some(first) = present.next() else {
        let nothing = Paragraph::new("no timeline yet".dim()).block(block);
        return frame.render_widget(nothing, area);
    };
    let last = present.next_back().unwrap_or(first);
    let figure = |of: fn(&TimelineStep) -> f64| {
        let figures = shown.iter().map(|step| step.map_or(0.0, of));
        figures.collect::<Vec<_>>()
    };
    let counts = figure(|step| float(step.count));
    let slow = figure(|step| step.p99_ms);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let steps = match step_seconds > 0.0 {
        true => format!(", {} per character", seconds(step_seconds)),
        false => String::new(),
    };
    let lines = vec![
        Line::from(format!("operations, max {}{steps}", count(most(&counts)))),
        Line::from(sparks(&counts)).cyan(),
        Line::from(format!("p99, max {}", millis(most(&slow)))),
        Line::from(sparks(&slow)).yellow(),
        Line::from(format!("{} to {} UTC", clock(first.at), clock(last.at))).dim(),
    ];
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::top::{
        model::{Responses, tests::model},
        view::tests::shown,
    };

    fn opened() -> Model {
        let mut model = model();
        model.choice.is_open = true;
        let mut shape = model.selected().unwrap().clone();
        let steps = (0..30u32).map(|second| TimelineStep {
            at: f64::from(second),
            count: u64::from(second),
            p99_ms: f64::from(second % 5),
            ..TimelineStep::default()
        });
        shape.timeline = Some(steps.collect());
        let responses = Responses {
            shape: Some(shape),
            ..Responses::default()
        };
        model.take(responses);
        model
    }

    #[test]
    fn the_opened_shape_is_shown_with_its_distribution_phases_and_timeline() {
        let model = opened();
        let text = shown(&model, 130, 40).join("\n");
        for part in [
            "find shop.orders",
            "distribution, logarithmic",
            "checkout",
            "max 29",
            "p99.9",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("00:00:00 to 00:00:29 UTC"));
    }

    #[test]
    fn detail_of_a_shape_shows_the_number_and_the_time_of_its_get_mores() {
        let mut shape = model().selected().unwrap().clone();
        assert!(!figures(&shape).contains("getMores"));
        (shape.more.count, shape.more.total_time_ms) = (12, 340.0);
        assert!(figures(&shape).contains(" in total and 340 ms in 12 getMores;"));
    }

    #[test]
    fn linear_histogram_shows_its_range_and_the_counts_outside_the_range() {
        let mut model = opened();
        model.choice.scale = Scale::Linear(None);
        let text = shown(&model, 130, 40).join("\n");
        assert!(text.contains("distribution, linear, 0 to "), "{text}");
        assert!(text.contains("outside this range: 0 shorter, "), "{text}");
    }

    #[test]
    fn detail_of_a_shape_that_is_no_longer_selected_is_not_shown() {
        let mut model = opened();
        assert!(model.opened().is_some());
        model.select(|row, _| row + 1);
        assert!(model.opened().is_none());
        assert!(
            shown(&model, 130, 40)
                .join("\n")
                .contains("no timeline yet")
        );
    }

    #[test]
    fn each_phase_has_a_line_and_a_bar_shows_its_share() {
        let model = model();
        let lines = phases(&model.selected().unwrap().phases_ms, 10);
        assert_eq!(lines.len(), 6);
        let server = lines.iter().find(|line| line.contains("server")).unwrap();
        assert!(
            server.contains("██████████") || server.contains("█████████"),
            "{server}"
        );
    }
}
