//! Plots as inline SVG. A drawing stretches with its page and contains no text. Labels are HTML
//! next to the drawing, so that they stay readable on a phone. Every inserted value is a number or
//! escaped text.

use super::{
    page::escape,
    scale::{Axis, Scale, time_ticks},
};
use crate::figures::{float, millis, percent, seconds};
use seawall_api::Bucket;

/// Height of a drawing in its own units. Its width is 1000.
const HEIGHT: f64 = 100.0;

/// A line over time: one value per step, `None` for a gap.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    /// The style class.
    pub(super) class: &'static str,
    pub(super) values: Vec<Option<f64>>,
}

/// A highlighted part of the timeline.
pub(super) struct Band {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) class: &'static str,
    pub(super) title: String,
}

/// The steps of a timeline and its highlighted parts.
pub(super) struct Time {
    pub(super) from: f64,
    pub(super) to: f64,
    /// The middle of each step, in seconds since the epoch.
    pub(super) steps: Vec<f64>,
    pub(super) bands: Vec<Band>,
}

/// Draws lines over time, with labels.
pub(super) fn over_time(
    title: &str,
    unit: &str,
    time: &Time,
    axis: Axis,
    lines: &[Series<'_>],
) -> String {
    let values = || {
        lines
            .iter()
            .flat_map(|line| line.values.iter().flatten().copied())
    };
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().fold(f64::NEG_INFINITY, f64::max);
    let scale = Scale::new(axis, least, most);
    let mut keys = String::new();
    if lines.len() > 1 {
        for line in lines {
            add(
                &mut keys,
                format_args!(
                    "<span class=\"key {}\">{}</span>",
                    line.class,
                    escape(line.name)
                ),
            );
        }
    }
    let mut drawing = String::new();
    for band in &time.bands {
        drawing.push_str(&band.drawn(time));
    }
    let mut y_labels = String::new();
    for (at, label) in &scale.ticks {
        let height = scale.height(*at);
        let y = HEIGHT * (1.0 - height);
        add(
            &mut drawing,
            format_args!("<path class=\"grid\" d=\"M0 {y:.1}H1000\"/>"),
        );
        add(
            &mut y_labels,
            format_args!(
                "<span style=\"bottom:{:.1}%\">{}</span>",
                height * 100.0,
                escape(label)
            ),
        );
    }
    for line in lines {
        drawing.push_str(&line.drawn(time, &scale, axis == Axis::Linear));
    }
    let mut x_labels = String::new();
    for (at, label) in time_ticks(time.from, time.to) {
        let left = time.position(at) * 100.0;
        add(
            &mut x_labels,
            format_args!("<span style=\"left:{left:.2}%\">{label}</span>"),
        );
    }
    let (title, unit) = (escape(title), escape(unit));
    format!(
        "<figure><figcaption>{title} <span>{unit}</span>{keys}</figcaption><div class=\"frame\">\
         <div class=\"y\">{y_labels}</div><div class=\"canvas\"><svg viewBox=\"0 0 1000 100\" \
         preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}, {unit}\">{drawing}</svg></div>\
         <div class=\"x\">{x_labels}</div></div></figure>\n"
    )
}

fn add(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.push_str(&part.to_string());
}

impl Time {
    /// The horizontal position of a moment, from 0 to 1.
    fn position(&self, at: f64) -> f64 {
        ((at - self.from) / (self.to - self.from).max(1e-9)).clamp(0.0, 1.0)
    }
}

impl Band {
    fn drawn(&self, time: &Time) -> String {
        let (from, to) = (time.position(self.from) * 1e3, time.position(self.to) * 1e3);
        // A minimum width keeps short bands visible.
        let width = (to - from).max(2.0);
        format!(
            "<rect class=\"{}\" x=\"{from:.1}\" y=\"0\" width=\"{width:.1}\" height=\"100\"><title>{}</title></rect>",
            self.class,
            escape(&self.title)
        )
    }
}

impl Series<'_> {
    fn drawn(&self, time: &Time, scale: &Scale, is_filled: bool) -> String {
        let (mut path, mut area) = (String::new(), String::new());
        let mut run: Vec<(f64, f64)> = Vec::new();
        let points = self.values.iter().zip(&time.steps).map(|(value, at)| {
            value.map(|value| {
                (
                    time.position(*at) * 1e3,
                    HEIGHT * (1.0 - scale.height(value)),
                )
            })
        });
        // A gap or the end of the line ends a run of points.
        for point in points.chain([None]) {
            match point {
                Some(point) => run.push(point),
                None => add_run(&mut path, &mut area, &std::mem::take(&mut run)),
            }
        }
        let class = self.class;
        let filled = match is_filled && !area.is_empty() {
            true => format!("<path class=\"area {class}\" d=\"{area}\"/>"),
            false => String::new(),
        };
        format!("{filled}<path class=\"line {class}\" d=\"{path}\"/>")
    }
}

fn add_run(path: &mut String, area: &mut String, run: &[(f64, f64)]) {
    let [(first, y), more @ ..] = run else { return };
    add(path, format_args!("M{first:.1} {y:.2}"));
    // A line of length 0 is drawn as a dot.
    add(path, format_args!("h0"));
    add(area, format_args!("M{first:.1} 100V{y:.2}"));
    for (x, y) in more {
        add(path, format_args!("L{x:.1} {y:.2}"));
        add(area, format_args!("L{x:.1} {y:.2}"));
    }
    let last = run.last().map_or(*first, |(x, _)| *x);
    add(area, format_args!("L{last:.1} 100Z"));
}

/// The lowest and the highest bound of several distributions, in seconds. `None` if all are empty.
pub(super) fn bounds<'a>(
    distributions: impl Iterator<Item = &'a [Bucket]> + Clone,
) -> Option<(f64, f64)> {
    let buckets = || {
        distributions
            .clone()
            .flatten()
            .filter(|bucket| bucket.count > 0)
    };
    let low = buckets()
        .map(|b| b.gt_seconds)
        .fold(f64::INFINITY, f64::min);
    let high = buckets().map(|b| b.le_seconds).fold(0.0, f64::max);
    (low < high).then_some((low.max(1e-7), high))
}

/// Draws a distribution over a logarithmic axis, with one bar per bucket. `marks` are named
/// durations in milliseconds; each is drawn as a vertical line.
pub(super) fn distribution(
    buckets: &[Bucket],
    bounds: (f64, f64),
    marks: &[(&str, f64)],
) -> String {
    let octaves = (bounds.1 / bounds.0).log2().max(1e-9);
    let position = |seconds: f64| (seconds.max(bounds.0) / bounds.0).log2() / octaves * 1e3;
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    let total: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let mut drawing = String::new();
    for bucket in buckets.iter().filter(|bucket| bucket.count > 0) {
        let (from, to) = (position(bucket.gt_seconds), position(bucket.le_seconds));
        // Every bucket with operations is visible.
        let height = (float(bucket.count) / float(most) * HEIGHT).max(2.5);
        add(
            &mut drawing,
            format_args!(
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{} to {}: {} ({})</title></rect>",
                HEIGHT - height,
                (to - from).max(1.0),
                seconds(bucket.gt_seconds),
                seconds(bucket.le_seconds),
                bucket.count,
                escape(&percent(float(bucket.count), float(total))),
            ),
        );
    }
    for (name, ms) in marks.iter().filter(|(_, ms)| *ms > 0.0) {
        add(
            &mut drawing,
            format_args!(
                "<path class=\"mark\" d=\"M{:.1} 0V100\"><title>{} {}</title></path>",
                position(ms / 1e3).min(1e3),
                escape(name),
                millis(*ms),
            ),
        );
    }
    let (low, high) = (seconds(bounds.0), seconds(bounds.1));
    format!(
        "<div class=\"small\"><svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"distribution of durations\">{drawing}</svg></div>\
         <div class=\"ends\"><span>{low}</span><span>{high}</span></div>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> Time {
        Time {
            from: 0.0,
            to: 40.0,
            steps: vec![5.0, 15.0, 25.0, 35.0],
            bands: Vec::new(),
        }
    }

    #[test]
    fn gaps_break_a_line_and_single_points_are_dots() {
        let line = Series {
            name: "a",
            class: "one",
            values: vec![Some(0.0), Some(6.0), None, Some(3.0)],
        };
        let scale = Scale::new(Axis::Linear, 0.0, 6.0);
        let drawn = line.drawn(&time(), &scale, false);
        assert_eq!(drawn.matches('M').count(), 2, "{drawn}");
        assert!(
            drawn.contains("M125.0 100.00h0L375.0 0.00M875.0 50.00h0"),
            "{drawn}"
        );
    }

    #[test]
    fn small_buckets_are_visible_and_names_are_escaped() {
        let buckets =
            [(1.0, 2.0, 1_000_000), (2.0, 4.0, 1), (4.0, 8.0, 0)].map(|(gt, le, count)| Bucket {
                gt_seconds: gt,
                le_seconds: le,
                count,
            });
        let bounds = bounds([buckets.as_slice()].into_iter()).unwrap();
        assert_eq!(bounds, (1.0, 4.0));
        let svg = distribution(&buckets, bounds, &[("p50", 1_500.0)]);
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains("height=\"2.5\"") && svg.contains("class=\"mark\""));
        let line = Series {
            name: "<b>",
            class: "one",
            values: vec![None; 4],
        };
        let other = Series {
            name: "c",
            class: "two",
            values: vec![Some(1.0); 4],
        };
        let mut time = time();
        time.bands.push(Band {
            from: 5.0,
            to: 5.0,
            class: "stall",
            title: "\"><script>".to_owned(),
        });
        let plot = over_time("a&b", "<i>", &time, Axis::Logarithmic, &[line, other]);
        assert!(!plot.contains("<b>") && !plot.contains("<script>") && !plot.contains("<i>"));
        assert!(plot.contains("a&amp;b") && plot.contains("width=\"2.0\""));
    }
}
