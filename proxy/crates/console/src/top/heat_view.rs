//! Draws the heat map: time from left to right, latency from bottom to top. The more operations a
//! cell has, the more of the cell is filled. So the map can be read without colors, and on light
//! and dark terminals.

use ratatui::{
    Frame,
    layout::Rect,
    style::{Color, Style, Stylize},
    text::{Line, Span},
    widgets::Paragraph,
};

use super::{
    heat::{Grid, Period, SHADES, latency_ticks, time_ticks},
    heat_choice::Colours,
    model::Model,
};
use crate::figures::{clock, count, exact, float, float_usize, millis, printable, seconds};
use seawall_api::Annotation;

/// The characters of the shades, from few to many operations. Each character is used for two
/// shades.
const CHARACTERS: [&str; SHADES / 2] = ["░", "▒", "▓", "█"];

/// Colors of about the same medium lightness, so that each of them is readable on light and on dark
/// terminals. The hue helps to tell shades apart, and the characters show the order of the shades.
const MANY_COLOURS: [u8; SHADES] = [37, 38, 39, 33, 63, 99, 135, 171];

/// Width of the latency labels and of the axis next to them, in characters.
const AXIS: usize = 9;

/// The width and height of the smallest area that has room for a heat map, in characters.
const LEAST: (u16, u16) = (24, 6);

/// Maximum number of annotations that are listed below the map. The latest are listed.
const LISTED: usize = 3;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let text = if area.width < LEAST.0 || area.height < LEAST.1 {
        let (width, height) = LEAST;
        Err(format!("the heat map needs {width} × {height} characters"))
    } else {
        lines(model, usize::from(area.width), usize::from(area.height))
    };
    let lines = text.unwrap_or_else(|text| vec![title(model, None), Line::from(text.dim())]);
    frame.render_widget(Paragraph::new(lines), area);
}

/// The division of the pane's lines between the map, the legend and the annotations.
struct Room {
    rows: usize,
    has_legend: bool,
    /// Number of annotations to list.
    listed: usize,
}

impl Room {
    /// Divides a pane of this height. The title, the marks, the axis and its labels always have one
    /// line each.
    fn of(height: usize, annotations: usize) -> Self {
        let listed = match height {
            16.. => annotations.min(LISTED),
            _ => 0,
        };
        let has_legend = height >= 8;
        Self {
            rows: height
                .saturating_sub(4 + usize::from(has_legend) + listed)
                .max(1),
            has_legend,
            listed,
        }
    }
}

/// All lines of the pane, or the reason why there is no map.
fn lines(model: &Model, width: usize, height: usize) -> Result<Vec<Line<'static>>, String> {
    let Some(response) = model.heat_response() else {
        return Err("waiting for the heat map".to_owned());
    };
    let nothing = || "no operation of this selection in this period".to_owned();
    let since = model.choice.since.seconds();
    let period = Period::of(&response.heatmap, since).ok_or_else(nothing)?;
    let shown = |of: &&Annotation| of.end.unwrap_or(of.at) >= period.from && of.at <= period.until;
    let annotations: Vec<&Annotation> = response.annotations.iter().filter(shown).collect();
    let room = Room::of(height, annotations.len());
    let grid = Grid::new(&response.heatmap, period, width - AXIS, room.rows);
    let grid = grid.ok_or_else(nothing)?;
    // A cell gets several characters and lines if all cells still fit the area.
    let wide = ((width - AXIS) / grid.columns).max(1);
    let tall = (room.rows / grid.rows.len()).max(1);
    let mut lines = vec![
        title(model, Some(grid.total)),
        marks(&grid, wide, &annotations),
    ];
    let labels = latency_labels(&grid);
    for (row, label) in grid.rows.iter().zip(labels).rev() {
        for line in 0..tall {
            // If a row has several lines, its label is on the lowest of them.
            let label = label.as_deref().filter(|_| line + 1 == tall);
            lines.push(cells(&grid, &row.counts, wide, label, model.choice.colours));
        }
    }
    lines.extend(time_axis(&grid, wide));
    if room.has_legend {
        lines.push(legend(&grid, model.choice.colours));
    }
    let latest = annotations.iter().rev().take(room.listed);
    lines.extend(latest.map(|of| listed(of)));
    Ok(lines)
}

fn title(model: &Model, total: Option<u64>) -> Line<'static> {
    let total = total.map(|total| format!("{} operations  ", exact(total)));
    vec![
        total.unwrap_or_default().bold(),
        Span::raw(format!("latency of {}", model.heat_title())),
    ]
    .into()
}

/// A line with a mark above each column in which an annotated event began. An event that began
/// before the first column has its mark above the first column.
fn marks(grid: &Grid, wide: usize, annotations: &[&Annotation]) -> Line<'static> {
    let mut line = vec![' '; grid.columns * wide];
    for of in annotations {
        if let Some(place) = line.get_mut(character(grid, wide, of.at)) {
            *place = '▼';
        }
    }
    let line: String = line.into_iter().collect();
    vec![Span::raw(" ".repeat(AXIS)), line.yellow()].into()
}

/// Returns the position of a moment, in characters from the axis. A moment before the first column
/// has the position 0.
fn character(grid: &Grid, wide: usize, at: f64) -> usize {
    let wide = float_usize(wide);
    let place = (at - grid.from) / grid.cell_seconds * wide;
    usize::try_from(crate::figures::whole(place)).unwrap_or(usize::MAX)
}

/// The latency labels of the rows, at most one for each row.
fn latency_labels(grid: &Grid) -> Vec<Option<String>> {
    let low = grid.rows.first().map_or(1e-6, |row| row.low);
    let high = grid.rows.last().map_or(1.0, |row| row.high);
    let ticks = latency_ticks(low, high);
    let rows = grid.rows.iter().map(|row| {
        let mut ticks = ticks
            .iter()
            .filter(|tick| **tick > row.low && **tick <= row.high);
        ticks.next().map(|tick| millis(tick * 1e3))
    });
    rows.collect()
}

/// One line of a row: its label, the axis and its cells.
fn cells(
    grid: &Grid,
    counts: &[u64],
    wide: usize,
    label: Option<&str>,
    colours: Colours,
) -> Line<'static> {
    let axis = if label.is_some() { '┤' } else { '│' };
    let label = label.unwrap_or_default();
    let mut spans = vec![Span::raw(format!(
        "{label:>width$} {axis}",
        width = AXIS - 2
    ))];
    for cells in counts.chunk_by(|a, b| shade(grid, *a) == shade(grid, *b)) {
        let characters = cells.len() * wide;
        spans.push(match cells.first().and_then(|count| shade(grid, *count)) {
            None => Span::raw(" ".repeat(characters)),
            Some(shade) => shaded(shade, characters, colours),
        });
    }
    spans.into()
}

/// The shade of a cell; `None` if it has no operations.
fn shade(grid: &Grid, count: u64) -> Option<usize> {
    (count > 0).then(|| grid.shade(count))
}

fn shaded(shade: usize, characters: usize, colours: Colours) -> Span<'static> {
    let character = CHARACTERS.get(shade / 2).copied().unwrap_or("█");
    let colour = match colours {
        Colours::None => Color::Reset,
        Colours::Sixteen if shade < SHADES / 2 => Color::Cyan,
        Colours::Sixteen => Color::Magenta,
        Colours::Many => Color::Indexed(MANY_COLOURS.get(shade).copied().unwrap_or_default()),
    };
    Span::styled(character.repeat(characters), Style::new().fg(colour))
}

/// The axis of time with its labels below.
fn time_axis(grid: &Grid, wide: usize) -> [Line<'static>; 2] {
    /// Width of the longest label and of the space to the next label.
    const LABEL: usize = 11;
    let width = grid.columns * wide;
    let mut axis = vec!['─'; width];
    let mut labels = String::new();
    let most = (width / LABEL).max(1);
    for (at, label) in time_ticks(grid.from, grid.until(), most) {
        let place = character(grid, wide, at);
        // The first character of a label is below the tick of its moment. A label that does not fit
        // at the right end is not drawn.
        let is_inside = place + label.len() <= width + 2;
        if is_inside && (labels.is_empty() || place > labels.len()) {
            if let Some(tick) = axis.get_mut(place) {
                *tick = '┬';
            }
            labels.push_str(&" ".repeat(place.saturating_sub(labels.len())));
            labels.push_str(&label);
        }
    }
    let axis: String = axis.into_iter().collect();
    let before = " ".repeat(AXIS - 1);
    [
        Line::from(format!("{before}└{axis}")),
        Line::from(format!("{:>width$} {labels}", "UTC", width = AXIS - 1)),
    ]
}

/// The legend. For each character, it shows the counts of the cells that have this character:
/// `░ 1–3  ▒ 4–15  ▓ 16–63  █ 64–255 operations in a cell of 5 s`.
fn legend(grid: &Grid, colours: Colours) -> Line<'static> {
    let lowest = grid.lowest_counts();
    let mut spans = vec![Span::raw(" ".repeat(AXIS))];
    for (place, of) in CHARACTERS.iter().enumerate() {
        let shades = [2 * place, 2 * place + 1];
        let own = lowest.iter().filter(|(shade, _)| shades.contains(shade));
        let Some((_, from)) = own.clone().next() else {
            continue;
        };
        let mut higher = lowest.iter().filter(|(shade, _)| *shade > shades[1]);
        let to = higher.next().map_or(grid.most, |(_, count)| count - 1);
        spans.extend(match colours {
            Colours::None => vec![Span::raw(*of)],
            _ => own.map(|(shade, _)| shaded(*shade, 1, colours)).collect(),
        });
        let [from, to] = [*from, to].map(|number| count(float(number)));
        spans.push(match from == to {
            true => Span::raw(format!(" {from}  ")),
            false => Span::raw(format!(" {from}–{to}  ")),
        });
    }
    let cell = seconds(grid.cell_seconds);
    spans.push(Span::raw(format!("operations in a cell of {cell}")));
    spans.into()
}

fn listed(of: &Annotation) -> Line<'static> {
    let mark = format!("{:>width$} ", "▼", width = AXIS - 1);
    let text = format!(
        "{}  {}: {}",
        clock(of.at),
        printable(&of.kind),
        printable(&of.text)
    );
    vec![mark.yellow(), Span::raw(text)].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::{
        choice::{Since, Tab},
        heat::tests::heatmap,
        model::{HeatResponse, Responses, tests::model},
        view::tests::{buffer, shown},
    };

    /// A model that shows the heat map from the tests of [`Grid`]. Two annotations are in the
    /// period of the heat map, and one is before it.
    fn opened(colours: Colours) -> Model {
        let mut model = model();
        model.choice.tab = Tab::HeatMap;
        model.choice.since = Since::TenMinutes;
        model.choice.colours = colours;
        let annotation = |at, kind: &str, text: &str| Annotation {
            at,
            end: None,
            instance: None,
            kind: kind.to_owned(),
            text: text.to_owned(),
        };
        let response = HeatResponse {
            path: model.wanted().heatmap.unwrap(),
            heatmap: heatmap(),
            annotations: vec![
                annotation(1_060.0, "deploy", "shop v2\u{1b}[2J"),
                annotation(1_300.0, "failover", "db2 is primary"),
                annotation(10.0, "reload", "long ago"),
            ],
        };
        model.take(Responses {
            heatmap: Some(response),
            ..Responses::default()
        });
        model
    }

    /// The characters of the map's rows, without labels, from the longest latency to the shortest.
    fn map(lines: &[String]) -> Vec<String> {
        let rows = lines.iter().filter(|line| line.contains(['│', '┤']));
        rows.map(|line| line.chars().skip(AXIS).collect()).collect()
    }

    #[test]
    fn cells_show_the_counts_as_characters() {
        // The terminal has room for all 120 steps and 89 buckets, so each cell is one step and one
        // bucket.
        let lines = shown(&opened(Colours::None), 129, 110);
        let map = map(&lines);
        assert_eq!(map.len(), 89);
        let slow: Vec<_> = map[0].char_indices().filter(|(_, c)| *c == '░').collect();
        assert_eq!(
            slow.iter().map(|(at, _)| *at).take(1).collect::<Vec<_>>(),
            [0]
        );
        assert_eq!(map[0].chars().filter(|c| *c == '░').count(), 10);
        assert_eq!(map[0].chars().position(|c| c == ' '), Some(1));
        assert!(map[1..87].iter().all(|row| row.trim().is_empty()));
        assert_eq!(map[87], "█".repeat(120));
        assert_eq!(map[88], "█".repeat(120));
        assert!(lines.iter().any(|line| line.starts_with("12\u{202f}010 operations  latency of all operations")));
        let legend = lines
            .iter()
            .find(|line| line.contains("in a cell of"))
            .unwrap();
        assert_eq!(
            legend.trim(),
            "░ 1–2  ▒ 3–7  ▓ 8–21  █ 22–60  operations in a cell of 5 s"
        );
    }

    #[test]
    fn axes_have_round_times_and_latencies() {
        let lines = shown(&opened(Colours::None), 129, 40);
        let labels: Vec<_> = lines
            .iter()
            .filter_map(|line| {
                line.split_once('┤')
                    .map(|(label, _)| label.trim().to_owned())
            })
            .collect();
        assert_eq!(labels, ["1 s", "100 ms", "10 ms", "1 ms"]);
        let times = lines
            .iter()
            .find(|line| line.trim_start().starts_with("UTC"))
            .unwrap();
        let axis = &lines[lines.iter().position(|line| line == times).unwrap() - 1];
        // The map begins 1000 s after midnight, at 00:16:40. A character covers 5 s, so 00:17
        // is four characters later.
        assert!(
            times.contains("00:17") && times.contains("00:26"),
            "{times}"
        );
        let place = times.find("00:17").unwrap();
        assert_eq!(place, AXIS + 4);
        assert_eq!(axis.chars().nth(place), Some('┬'));
    }

    #[test]
    fn annotations_are_marked_above_their_column_and_listed() {
        let lines = shown(&opened(Colours::None), 129, 40);
        let marks = lines.iter().find(|line| line.contains('▼')).unwrap();
        let places = marks.chars().enumerate().filter(|(_, c)| *c == '▼');
        let places: Vec<_> = places.map(|(place, _)| place).collect();
        assert_eq!(places, [AXIS + 12, AXIS + 60]);
        let text = lines.join("\n");
        assert!(
            text.contains("▼ 00:21:40  failover: db2 is primary"),
            "{text}"
        );
        assert!(text.contains("deploy: shop v2\\u{1b}[2J") && !text.contains("long ago"));
    }

    #[test]
    fn heat_map_cells_use_only_colors_that_the_terminal_supports() {
        let colours = |colours| {
            let buffer = buffer(&opened(colours), 129, 110);
            let cells = buffer.content().iter();
            let cells = cells.filter(|cell| CHARACTERS.contains(&cell.symbol()));
            let mut colours: Vec<_> = cells.map(|cell| cell.fg).collect();
            colours.sort_by_key(|colour| format!("{colour:?}"));
            colours.dedup();
            colours
        };
        assert_eq!(colours(Colours::None), [Color::Reset]);
        assert_eq!(colours(Colours::Sixteen), [Color::Cyan, Color::Magenta]);
        assert!(colours(Colours::Many).len() >= 3);
        // The characters are the same with and without colors.
        let map_of = |colours| map(&shown(&opened(colours), 129, 60));
        assert_eq!(map_of(Colours::None), map_of(Colours::Many));
    }

    #[test]
    fn cells_cover_more_time_in_a_narrow_terminal_and_a_tiny_terminal_shows_the_required_size() {
        for (width, height) in [(80, 24), (40, 14), (24, 11), (200, 60)] {
            let lines = shown(&opened(Colours::None), width, height);
            let text = lines.join("\n");
            assert!(text.contains("12\u{202f}010 operations"), "{text}");
            let map = map(&lines);
            assert!(!map.is_empty(), "{text}");
            let wide = map.iter().map(|row| row.chars().count() + AXIS);
            assert!(wide.max().unwrap() <= usize::from(width), "{text}");
            assert!(text.contains('█') && text.contains('└'), "{text}");
        }
        let text = shown(&opened(Colours::None), 80, 24).join("\n");
        assert!(text.contains("in a cell of 10 s"), "{text}");
        let text = shown(&opened(Colours::None), 40, 9).join("\n");
        assert!(
            text.contains("the heat map needs 24 × 6 characters"),
            "{text}"
        );
    }

    #[test]
    fn a_heat_map_of_an_earlier_selection_is_not_shown_after_the_selection_has_changed() {
        let mut model = opened(Colours::None);
        model.choice.heat.next_phase();
        let text = shown(&model, 100, 30).join("\n");
        assert!(text.contains("waiting for the heat map"), "{text}");
        model = opened(Colours::None);
        let empty = HeatResponse {
            path: model.wanted().heatmap.unwrap(),
            ..HeatResponse::default()
        };
        model.take(Responses {
            heatmap: Some(empty),
            ..Responses::default()
        });
        let text = shown(&model, 100, 30).join("\n");
        assert!(text.contains("no operation of this selection"), "{text}");
    }
}
