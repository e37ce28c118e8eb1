//! Draws each trace as an SVG picture: the concurrency limit in the upper panel, the throughput in
//! the lower panel.

use std::{io, path::Path};

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::{
        BLUE, Cartesian2d, ChartBuilder, ChartContext, Color, DrawingArea, DrawingAreaErrorKind,
        IntoDrawingArea, LineSeries, PathElement, RGBColor, SVGBackend, SeriesLabelPosition, WHITE,
    },
};

use super::trace::{Sample, Trace};

/// Width and height of a picture in pixels.
const SIZE: (u32, u32) = (900, 520);

/// Height of the upper panel in pixels. The lower panel gets the rest of the picture.
const UPPER_HEIGHT: u32 = 250;

/// A generic font family, which every viewer of SVG pictures supports.
const FONT: &str = "sans-serif";

/// The color of the legend's border, and of the vertical lines that mark changes of the conditions.
const GREY: RGBColor = RGBColor(150, 150, 150);

/// The color of the line that shows the limit in effect at each moment.
const ORANGE: RGBColor = RGBColor(240, 150, 40);

/// The reason why a picture could not be drawn.
pub type DrawError = DrawingAreaErrorKind<io::Error>;

type Area<'p> = DrawingArea<SVGBackend<'p>, Shift>;
type Chart<'a, 'p> = ChartContext<'a, SVGBackend<'p>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws a trace into the file `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(trace: &Trace, path: &Path) -> Result<(), DrawError> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (upper, lower) = root
        .titled(&trace.title, (FONT, 22))?
        .split_vertically(UPPER_HEIGHT);
    draw_limits(trace, &upper)?;
    draw_throughput(trace, &lower)?;
    root.present()
}

/// The file name of a picture: the words of `title` in lower case, joined with `-`, and `.svg`.
pub fn file_name(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    format!("{}.svg", words.join("-"))
}

fn draw_limits(trace: &Trace, area: &Area<'_>) -> Result<(), DrawError> {
    let highest = |sample: &Sample| sample.limit.max(sample.settled);
    let mut chart = panel(trace, area, "limit", highest)?;
    let effective = trace.samples.iter().map(|s| (s.at_seconds, s.limit));
    chart
        .draw_series(LineSeries::new(effective, ORANGE))?
        .label("in effect")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], ORANGE));
    let settled = trace.samples.iter().map(|s| (s.at_seconds, s.settled));
    chart
        .draw_series(LineSeries::new(settled, BLUE.stroke_width(2)))?
        .label("without trials")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], BLUE.stroke_width(2)));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(GREY)
        .label_font((FONT, 14))
        .draw()
}

fn draw_throughput(trace: &Trace, area: &Area<'_>) -> Result<(), DrawError> {
    let mut chart = panel(trace, area, "operations per second", |s| s.throughput)?;
    let points = trace.samples.iter().map(|s| (s.at_seconds, s.throughput));
    chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?;
    Ok(())
}

/// Draws the axes of a panel, and a vertical line for each change of the trace's conditions, such
/// as the number of clients. `value` returns the highest value that the panel shows for a sample.
fn panel<'a, 'p>(
    trace: &Trace,
    area: &'a Area<'p>,
    name: &str,
    value: impl Fn(&Sample) -> f64,
) -> Result<Chart<'a, 'p>, DrawError> {
    let most = trace.samples.iter().map(value).fold(1.0, f64::max) * 1.1;
    let end = trace.samples.last().map_or(1.0, |last| last.at_seconds);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_labels(6)
        .x_desc("seconds")
        .y_desc(name)
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .label_style((FONT, 14))
        .draw()?;
    for at in trace.changes.iter().filter(|at| **at < end) {
        let line = [(*at, 0.0), (*at, most)];
        chart.draw_series(LineSeries::new(line, GREY))?;
    }
    Ok(chart)
}

fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

#[cfg(test)]
mod tests {
    use seawall_tests::scratch::Scratch;

    use super::*;

    #[test]
    fn a_picture_has_a_title_and_axes() {
        let sample = |at_seconds: f64| Sample {
            at_seconds,
            limit: 32.0,
            settled: 24.0,
            throughput: 1_000.0 * at_seconds,
        };
        let trace = Trace {
            title: "2 cores, 64 clients".to_owned(),
            changes: vec![1.0],
            samples: [0.5, 1.0, 1.5].map(sample).to_vec(),
        };
        let scratch = Scratch::create().unwrap();
        let path = scratch.join(&file_name(&trace.title));
        assert!(path.ends_with("2-cores-64-clients.svg"));
        draw(&trace, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for part in [
            &*trace.title,
            "operations per second",
            "without trials",
            "polyline",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }
}
