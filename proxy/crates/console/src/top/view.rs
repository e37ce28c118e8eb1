//! Draws the model on the terminal: header, panes, keys.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span},
    widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Wrap},
};

use super::{choice::Tab, detail, heat_view, keys::HELP, model::Model, panes, rows};
use crate::figures::{count, printable, uptime};

/// Number of rows in the header: one each for the proxy, its figures, the alerts and the names of
/// the panes.
const HEAD_ROWS: u16 = 4;

/// Number of refreshes without a reply after which the header says that the figures are old. There
/// is one refresh per second.
const MAX_TICKS_WITHOUT_REPLY: u64 = 3;

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let areas = Layout::vertical([
        Constraint::Length(HEAD_ROWS),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, pane, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(header(model)), head);
    if let Some(lines) = panes::lines(model) {
        draw_lines(frame, pane, model, lines);
    } else if model.choice.tab == Tab::HeatMap {
        heat_view::draw(frame, pane, model);
    } else if model.choice.is_open {
        detail::draw(frame, pane, model);
    } else {
        draw_shapes(frame, pane, model);
    }
    frame.render_widget(footer(model), foot);
    if model.choice.is_help {
        draw_help(frame);
    }
}

/// The lines of the header.
fn header(model: &Model) -> Vec<Line<'static>> {
    let address = printable(&model.address);
    let Some(status) = &model.status else {
        let waiting = format!("seawall  {address}  waiting for the first response");
        return vec![
            Line::from(waiting),
            Line::default(),
            alerts(model),
            tabs(model),
        ];
    };
    let first = format!(
        "seawall {}  {address}  {}  {}  up {}",
        printable(&status.version),
        printable(&status.mode),
        printable(&status.deployment),
        uptime(status.uptime_seconds),
    );
    let rate = model.operations_per_second;
    let rate = rate.map_or("–".to_owned(), count);
    let servers = status.server_connections;
    let figures = [
        (count_of(status.clients), " clients   "),
        (rate, " operations/s   "),
        (count_of(servers.total()), " server connections ("),
        (count_of(servers.in_use), " in use, "),
        (count_of(servers.available), " available, "),
        (count_of(servers.pending), " pending)   wait queue "),
        (count_of(status.wait_queue), ""),
    ];
    let figures = figures
        .into_iter()
        .flat_map(|(figure, what)| [figure.bold(), what.into()]);
    vec![
        Line::from(first),
        figures.collect::<Vec<Span<'_>>>().into(),
        alerts(model),
        tabs(model),
    ]
}

fn count_of(number: u64) -> String {
    count(crate::figures::float(number))
}

/// The line of alerts, errors first.
fn alerts(model: &Model) -> Line<'static> {
    let loud = |text: String| {
        let style = Style::new().fg(Color::White).bg(Color::Red);
        Span::styled(format!(" {text} "), style.add_modifier(Modifier::BOLD))
    };
    let mut spans = Vec::new();
    if let Some(failure) = &model.failure {
        spans.push(loud(printable(&failure.message)));
    }
    if model.ticks_without_reply >= MAX_TICKS_WITHOUT_REPLY {
        spans.push(loud(format!(
            "no reply for {} s",
            model.ticks_without_reply
        )));
    }
    for (is_loud, text) in alert_texts(model) {
        spans.push(match is_loud {
            true => loud(text),
            false => text.yellow(),
        });
    }
    if spans.is_empty() {
        spans.push("no alerts".dim());
    }
    let separate = |span| [span, Span::raw("  ")];
    spans
        .into_iter()
        .flat_map(separate)
        .collect::<Vec<_>>()
        .into()
}

/// The alerts other than errors. The flag is true for an alert that is highlighted.
pub(super) fn alert_texts(model: &Model) -> Vec<(bool, String)> {
    let mut texts = Vec::new();
    if let Some(status) = &model.status {
        match &status.not_ready {
            Some(reason) => texts.push((true, format!("NOT READY: {}", printable(reason)))),
            None if status.draining => texts.push((true, "draining".to_owned())),
            None => {}
        }
        if status.injects_faults {
            let text = "INJECTS FAULTS: operations are delayed or fail on purpose";
            texts.push((true, text.to_owned()));
        }
    }
    if model.storms.active {
        let storms = &model.storms.storms;
        let current = storms.iter().find(|storm| storm.ended_at.is_none());
        let storm = current.or_else(|| storms.first());
        let peak = storm.map_or(0.0, |storm| storm.peak_arrivals_per_second);
        texts.push((true, format!("STORM: up to {} connects/s", count(peak))));
    }
    let mut recurring = model.stalls.recurring.iter();
    if let Some(recurring) = recurring.find(|of| of.is_current()) {
        texts.push((false, format!("stalls {}", panes::recurrence(recurring))));
    }
    if model.stalls.pulse.state.starts_with("off") {
        let state = printable(&model.stalls.pulse.state);
        texts.push((false, format!("pulse {state}")));
    }
    texts
}

fn tabs(model: &Model) -> Line<'static> {
    let count_in = |tab| match tab {
        Tab::Storms => model.storms.storms.len(),
        Tab::Stalls => model.stalls.episodes.len(),
        Tab::Changes => model.changes.changes.len(),
        Tab::Shapes | Tab::Servers | Tab::HeatMap => 0,
    };
    let mut spans = Vec::new();
    for (place, (tab, name)) in Tab::ALL.into_iter().enumerate() {
        let many = match count_in(tab) {
            0 => String::new(),
            many => format!(" ({many})"),
        };
        let text = format!(" {} {name}{many} ", place + 1);
        spans.push(match tab == model.choice.tab {
            true => text.reversed(),
            false => text.into(),
        });
    }
    let choice = &model.choice;
    let about = match choice.tab {
        Tab::Shapes => format!("   {}, by {}", model.period(), choice.sort.as_str()),
        Tab::HeatMap => format!("   {}", model.period()),
        // The figures of these panes do not depend on the chosen period.
        Tab::Storms | Tab::Stalls | Tab::Changes | Tab::Servers => String::new(),
    };
    spans.push(about.cyan());
    if !choice.filter.is_empty() {
        spans.push(format!(", filter: {}", printable(&choice.filter)).magenta());
    }
    if choice.is_paused {
        spans.push("  PAUSED".yellow().bold());
    }
    spans.into()
}

fn draw_shapes(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let shapes = model.rows();
    if shapes.is_empty() {
        let text = model.why_no_row();
        return frame.render_widget(Paragraph::new(text.dim()), area);
    }
    let headings = rows::HEADINGS.map(|(heading, sort)| {
        let style = match sort == Some(model.choice.sort) {
            true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            false => Style::new().add_modifier(Modifier::BOLD),
        };
        aligned(heading.trim_start_matches('<'), heading).style(style)
    });
    let cells = rows::shapes(model);
    let lines = cells.iter().map(|row| {
        let cells = row.iter().zip(rows::HEADINGS);
        Row::new(cells.map(|(cell, (heading, _))| aligned(cell, heading)))
    });
    let table = Table::new(lines, rows::WIDTHS.map(constraint))
        .header(Row::new(headings))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(model.cursor(&shapes));
    frame.render_stateful_widget(table, area, &mut state);
}

/// Aligns a cell to the left if its heading begins with `<`, otherwise to the right.
fn aligned(text: &str, heading: &str) -> Cell<'static> {
    let line = Line::from(text.to_owned());
    Cell::from(match heading.starts_with('<') {
        true => line,
        false => line.right_aligned(),
    })
}

/// The width of a column. A column with width 0 takes the remaining width.
fn constraint(width: u16) -> Constraint {
    match width {
        0 => Constraint::Min(10),
        width => Constraint::Length(width),
    }
}

fn draw_lines(frame: &mut Frame<'_>, area: Rect, model: &Model, lines: Vec<String>) {
    let most = u16::try_from(lines.len().saturating_sub(1)).unwrap_or(u16::MAX);
    let lines: Vec<_> = lines.into_iter().map(Line::from).collect();
    let scrolled = model.choice.scrolled.min(most);
    frame.render_widget(
        Paragraph::new(lines).scroll((scrolled, model.choice.sideways)),
        area,
    );
}

fn footer(model: &Model) -> Line<'static> {
    let choice = &model.choice;
    if choice.is_typing {
        let typed = format!(
            "filter: {}█  (Enter: keep, Esc: clear)",
            printable(&choice.filter)
        );
        return typed.into();
    }
    let keys = match (choice.tab, choice.is_open) {
        (Tab::Shapes, true) => {
            "Enter back  l linear/log  [ ] { } range  ↑↓ other shape  ? help  q quit"
        }
        (Tab::Shapes, false) => {
            "t c p b e d sort  +- period  / filter  Enter detail  h heat map  ? help  q quit"
        }
        (Tab::Changes, _) => "a next baseline  ↑↓←→ scroll  ? help  q quit",
        (Tab::HeatMap, _) => {
            "v dimension  ↑↓ name  p phase  0 all  +- period  1-6 panes  ? help  q quit"
        }
        _ => "↑↓←→ scroll  1-6 panes  space pause  ? help  q quit",
    };
    keys.dim().into()
}

fn draw_help(frame: &mut Frame<'_>) {
    let width = HELP.iter().map(|(keys, _)| keys.chars().count()).max();
    let width = width.unwrap_or(0);
    let lines = HELP
        .iter()
        .map(|(keys, what)| Line::from(vec![format!(" {keys:<width$}  ").bold(), (*what).into()]));
    let lines: Vec<_> = lines.collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let area = frame.area();
    let area = Rect {
        x: area.width.saturating_sub(92) / 2,
        y: area.height.saturating_sub(height) / 2,
        width: area.width.min(92),
        height: area.height.min(height),
    };
    let block = Block::bordered().title(" keys (press any key to close) ");
    frame.render_widget(Clear, area);
    let help = Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .block(block);
    frame.render_widget(help, area);
}

#[cfg(test)]
pub(super) mod tests {
    use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};

    use super::*;
    use crate::{
        admin_client::InstanceFailure,
        top::{
            choice::Choice,
            model::{Responses, tests::model},
        },
    };

    /// The cells of a terminal of this size that shows the model.
    pub(in crate::top) fn buffer(model: &Model, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().buffer().clone()
    }

    /// The content of a terminal of this size that shows the model, one string per line.
    pub(in crate::top) fn shown(model: &Model, width: u16, height: u16) -> Vec<String> {
        let buffer = buffer(model, width, height);
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn header_describes_the_proxy_and_the_first_table_row_is_the_shape_with_the_most_time() {
        let lines = shown(&model(), 160, 20);
        assert!(
            lines[0].starts_with("seawall 0.1.0  http://127.0.0.1:9909  pooled"),
            "{}",
            lines[0]
        );
        assert!(lines[0].ends_with("up 2 h 01 min"));
        let figures = "1.31k clients   – operations/s   42 server connections (13 in use";
        assert!(lines[1].starts_with(figures), "{}", lines[1]);
        assert!(
            lines[2].contains("stalls every 60 s for 3 s"),
            "{}",
            lines[2]
        );
        assert!(lines[3].contains("1 shapes") && lines[3].contains("3 stalls (4)"));
        let headings = [
            "share", "count/s", "p50", "p99", "longest", "errors", "bytes", "docs", "command",
        ];
        headings
            .iter()
            .for_each(|heading| assert!(lines[4].contains(heading), "{}", lines[4]));
        assert!(
            lines[5].contains("find") && lines[5].contains("shop.orders"),
            "{}",
            lines[5]
        );
        assert!(lines[19].contains("? help"));
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        let text = shown(&model(), 200, 20).join("\n");
        assert!(text.contains("queue.jo\\u{1b}[31mbs"));
        assert!(!text.contains(['\u{1b}', '\u{202e}']));
    }

    #[test]
    fn alert_line_shows_a_drain_a_reconnect_storm_an_error_and_that_faults_are_injected() {
        let mut model = model();
        let status = model.status.as_mut().unwrap();
        (status.injects_faults, status.draining) = (true, true);
        model.storms.active = true;
        let message = "cannot reach Seawall".to_owned();
        model.failure = Some(InstanceFailure::of_reply(message));
        let line = shown(&model, 200, 10)[2].clone();
        for text in [
            "cannot reach Seawall",
            "INJECTS FAULTS",
            "draining",
            "STORM: up to 3.12k",
        ] {
            assert!(line.contains(text), "{line}");
        }
    }

    #[test]
    fn alert_line_shows_why_the_proxy_is_not_ready() {
        let mut model = model();
        assert!(!shown(&model, 200, 10)[2].contains("NOT READY"));
        model.status.as_mut().unwrap().not_ready = Some("no server".to_owned());
        let line = shown(&model, 200, 10)[2].clone();
        assert!(line.contains("NOT READY: no server"), "{line}");
    }

    #[test]
    fn alert_line_says_that_the_figures_are_old_until_a_reply_arrives() {
        let mut model = model();
        model.ticks_without_reply = MAX_TICKS_WITHOUT_REPLY - 1;
        assert!(!shown(&model, 200, 10)[2].contains("no reply for"));
        model.ticks_without_reply = MAX_TICKS_WITHOUT_REPLY;
        let line = shown(&model, 200, 10)[2].clone();
        assert!(line.contains("no reply for 3 s"), "{line}");
        model.take(Responses::default());
        assert!(!shown(&model, 200, 10)[2].contains("no reply for"));
    }

    #[test]
    fn stall_that_no_longer_recurs_is_not_an_alert() {
        let mut model = model();
        model.stalls.recurring[0].current = Some(false);
        assert!(!shown(&model, 160, 20)[2].contains("stalls every"));
    }

    #[test]
    fn header_names_the_period_only_if_the_figures_of_the_pane_depend_on_it() {
        let mut model = model();
        for (tab, has_period, has_sort) in [
            (Tab::Shapes, true, true),
            (Tab::HeatMap, true, false),
            (Tab::Storms, false, false),
            (Tab::Stalls, false, false),
            (Tab::Changes, false, false),
            (Tab::Servers, false, false),
        ] {
            model.choice.tab = tab;
            let line = shown(&model, 160, 20)[3].clone();
            assert_eq!(line.contains("last 1m"), has_period, "{line}");
            assert_eq!(line.contains(", by "), has_sort, "{line}");
        }
    }

    #[test]
    fn every_pane_shows_its_content() {
        let cases = [
            (Tab::Storms, "92.1k"),
            (Tab::Stalls, "wiredTiger.checkpoint.bytes"),
            (Tab::Changes, "slower"),
            (Tab::Servers, "db1.example.net:27017"),
        ];
        let mut model = model();
        for (tab, text) in cases {
            model.choice.tab = tab;
            let shown = shown(&model, 160, 40).join("\n");
            assert!(shown.contains(text), "{tab:?}: {shown}");
        }
    }

    #[test]
    fn view_explains_that_the_status_is_missing_or_that_no_shape_matches_the_filter() {
        let empty = Model::new("http://a:1", Choice::default());
        let lines = shown(&empty, 80, 10);
        assert!(lines[0].contains("waiting for the first response"));
        assert!(lines[4].contains("no operation"));
        let mut model = model();
        model.choice.filter = "nothing of it".to_owned();
        model.choice.is_typing = true;
        let lines = shown(&model, 120, 10);
        assert!(lines[4].contains("no shape matches the filter"));
        assert!(lines[9].starts_with("filter: nothing of it█"));
        model.shapes.other.count = 5;
        assert!(shown(&model, 120, 10)[4].contains("further shapes are not listed"));
    }

    #[test]
    fn view_can_be_drawn_in_tiny_and_in_large_terminals() {
        let mut model = model();
        for is_open in [false, true] {
            (model.choice.is_open, model.choice.is_help) = (is_open, is_open);
            for (width, height) in [(1, 1), (3, 5), (20, 8), (40, 12), (400, 100)] {
                assert_eq!(shown(&model, width, height).len(), usize::from(height));
            }
        }
        model.choice.is_help = true;
        assert!(shown(&model, 100, 30).join("\n").contains("q  Ctrl-C"));
    }
}
