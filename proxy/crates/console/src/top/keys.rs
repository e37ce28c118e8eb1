//! The effect of keys on the model.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    choice::Tab,
    heat_choice::HeatChoice,
    histogram::{Move, Scale},
    model::Model,
    panes,
};
use seawall_api::Sort;

/// Number of rows by which PgUp and PgDn move.
const PAGE: usize = 10;

/// Number of characters by which ← and → scroll.
const SIDEWAYS: u16 = 20;

/// The keys and their effects, as the help shows them.
pub(super) const HELP: [(&str, &str); 16] = [
    (
        "1 2 3 4 5 6",
        "shapes, storms, stalls, changes, servers, heat map",
    ),
    ("h", "show the heat map of the selected shape"),
    (
        "v ↑ ↓ p 0",
        "heat map: next dimension; other name; next phase; reset",
    ),
    (
        "t c p b e d",
        "sort by load, count, p99, bytes, errors, documents",
    ),
    (
        "+ -",
        "choose a longer or shorter period: 10s 1m 10m 1h all",
    ),
    (
        "/",
        "filter by part of command, namespace, text or id; Esc clears it",
    ),
    (
        "↑ ↓ PgUp PgDn Home End",
        "move the cursor or scroll (also k j g G)",
    ),
    ("← →", "scroll sideways"),
    (
        "Enter",
        "show the selected shape in detail; Enter or Esc goes back",
    ),
    ("l", "switch the histogram: linear or logarithmic"),
    ("[ ]", "move the lower end of the linear range down, up"),
    ("{ }", "move the upper end of the linear range down, up"),
    ("0", "reset the linear range"),
    ("a", "compare with an hour ago, yesterday, last week"),
    ("Space", "pause, resume"),
    ("q  Ctrl-C", "quit"),
];

/// The result of a key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The view must be drawn again.
    Shown,
    /// Requests must be sent immediately: the new choice needs other figures, or the user pressed
    /// Ctrl-L.
    Ask,
    /// The user pressed `q`.
    Quit,
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// Applies the effect of a key to the model.
pub(super) fn press(model: &mut Model, key: KeyEvent) -> Outcome {
    if key.kind == KeyEventKind::Release {
        return Outcome::Shown;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Outcome::Interrupted,
            KeyCode::Char('l') => Outcome::Ask,
            _ => Outcome::Shown,
        };
    }
    let before = model.wanted();
    if model.choice.is_typing {
        type_filter(model, key.code);
    } else if model.choice.is_help {
        // Any key closes the help. The key `q` also quits the program.
        model.choice.is_help = false;
        if key.code == KeyCode::Char('q') {
            return Outcome::Quit;
        }
    } else if key.code == KeyCode::Char('q') {
        return Outcome::Quit;
    } else if !(model.choice.tab == Tab::HeatMap && choose_heat(model, key.code)) {
        choose(model, key.code);
    }
    match model.wanted() == before {
        true => Outcome::Shown,
        false => Outcome::Ask,
    }
}

fn type_filter(model: &mut Model, code: KeyCode) {
    let choice = &mut model.choice;
    match code {
        KeyCode::Enter => choice.is_typing = false,
        KeyCode::Esc => {
            choice.is_typing = false;
            choice.filter.clear();
        }
        KeyCode::Backspace => drop(choice.filter.pop()),
        KeyCode::Char(character) => choice.filter.push(character),
        _ => {}
    }
}

/// Handles the keys that have another meaning in the heat map. Returns false for all other keys.
fn choose_heat(model: &mut Model, code: KeyCode) -> bool {
    match code {
        KeyCode::Char('v') => model.next_dimension(),
        KeyCode::Char('p') => model.choice.heat.next_phase(),
        KeyCode::Char('0') | KeyCode::Esc => model.choice.heat = HeatChoice::default(),
        _ => return false,
    }
    true
}

fn choose(model: &mut Model, code: KeyCode) {
    let choice = &mut model.choice;
    match code {
        KeyCode::Char('?') | KeyCode::F(1) => choice.is_help = true,
        KeyCode::Char(' ') => choice.is_paused = !choice.is_paused,
        KeyCode::Char('/') => {
            switch_to(model, Tab::Shapes);
            model.choice.is_open = false;
            model.choice.is_typing = true;
        }
        KeyCode::Char('+' | '=') => choice.since = choice.since.longer(),
        KeyCode::Char('-') => choice.since = choice.since.shorter(),
        KeyCode::Char('a') => choice.against = choice.against.next(),
        KeyCode::Char('t') => choice.sort = Sort::TotalTime,
        KeyCode::Char('c') => choice.sort = Sort::Count,
        KeyCode::Char('p') => choice.sort = Sort::P99,
        KeyCode::Char('b') => choice.sort = Sort::Bytes,
        KeyCode::Char('e') => choice.sort = Sort::Errors,
        KeyCode::Char('d') => choice.sort = Sort::Documents,
        KeyCode::Char('1') => switch_to(model, Tab::Shapes),
        KeyCode::Char('2') => switch_to(model, Tab::Storms),
        KeyCode::Char('3') => switch_to(model, Tab::Stalls),
        KeyCode::Char('4') => switch_to(model, Tab::Changes),
        KeyCode::Char('5') => switch_to(model, Tab::Servers),
        KeyCode::Char('6') => switch_to(model, Tab::HeatMap),
        KeyCode::Char('h') if choice.tab == Tab::Shapes => {
            if let Some(id) = model.selected().map(|shape| shape.id.clone()) {
                model.choice.heat = HeatChoice::of_shape(&id);
                switch_to(model, Tab::HeatMap);
            }
        }
        KeyCode::Enter if choice.tab == Tab::Shapes => choice.is_open = !choice.is_open,
        KeyCode::Esc if choice.is_open => choice.is_open = false,
        KeyCode::Esc => choice.filter.clear(),
        KeyCode::Char('l') => {
            choice.scale = match choice.scale {
                Scale::Logarithmic => Scale::Linear(None),
                Scale::Linear(_) => Scale::Logarithmic,
            }
        }
        KeyCode::Char('0') => choice.scale = Scale::Linear(None),
        KeyCode::Char('[') => model.move_range(Move::LowDown),
        KeyCode::Char(']') => model.move_range(Move::LowUp),
        KeyCode::Char('{') => model.move_range(Move::HighDown),
        KeyCode::Char('}') => model.move_range(Move::HighUp),
        KeyCode::Up | KeyCode::Char('k') => step(model, |row, _| row.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => step(model, |row, _| row.saturating_add(1)),
        KeyCode::PageUp => step(model, |row, _| row.saturating_sub(PAGE)),
        KeyCode::PageDown => step(model, |row, _| row.saturating_add(PAGE)),
        KeyCode::Left => choice.sideways = choice.sideways.saturating_sub(SIDEWAYS),
        KeyCode::Right => choice.sideways = choice.sideways.saturating_add(SIDEWAYS),
        KeyCode::Home | KeyCode::Char('g') => step(model, |_, _| 0),
        KeyCode::End | KeyCode::Char('G') => step(model, |_, last| last),
        _ => {}
    }
}

fn switch_to(model: &mut Model, tab: Tab) {
    let is_there = model.choice.tab == tab;
    model.choice.tab = tab;
    (model.choice.scrolled, model.choice.sideways) = (0, 0);
    // If the user presses the key of the pane that is already shown, the detail view closes.
    model.choice.is_open &= !is_there;
}

/// Moves the cursor in the shapes pane, and the selection of the heat map; scrolls the other panes.
fn step(model: &mut Model, row: impl FnOnce(usize, usize) -> usize) {
    if model.choice.tab == Tab::Shapes {
        return model.select(row);
    }
    if model.choice.tab == Tab::HeatMap {
        return model.select_heat(row);
    }
    let lines = panes::lines(model).unwrap_or_default();
    let last = lines.len().saturating_sub(1);
    // The pane may have fewer lines than at the last key press.
    let current = usize::from(model.choice.scrolled).min(last);
    let scrolled = row(current, last).min(last);
    model.choice.scrolled = u16::try_from(scrolled).unwrap_or(u16::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::{choice::Since, histogram::Range, model::tests::model};

    fn typed(model: &mut Model, keys: &str) -> Outcome {
        let mut outcome = Outcome::Shown;
        for key in keys.chars() {
            outcome = press(model, KeyCode::Char(key).into());
        }
        outcome
    }

    #[test]
    fn keys_that_change_which_figures_are_shown_send_a_request_immediately() {
        let mut model = model();
        for keys in [
            "c", "+", "4", "a", "5", "1", "6", "p", "v", "0", "1", "h", "1",
        ] {
            assert_eq!(typed(&mut model, keys), Outcome::Ask, "{keys}");
        }
        assert_eq!(
            (model.choice.sort, model.choice.since),
            (Sort::Count, Since::TenMinutes)
        );
        assert_eq!(press(&mut model, KeyCode::Enter.into()), Outcome::Ask);
        assert_eq!(typed(&mut model, "l"), Outcome::Shown);
    }

    #[test]
    fn plus_and_minus_keys_stop_at_the_longest_and_the_shortest_period() {
        let mut model = model();
        typed(&mut model, "+++++++");
        assert_eq!(model.choice.since, Since::All);
        typed(&mut model, "-------");
        assert_eq!(model.choice.since, Since::TenSeconds);
    }

    #[test]
    fn keys_are_text_while_the_filter_is_typed() {
        let mut model = model();
        assert_ne!(typed(&mut model, "/q1 ?"), Outcome::Quit);
        assert_eq!(model.choice.filter, "q1 ?");
        press(&mut model, KeyCode::Backspace.into());
        press(&mut model, KeyCode::Enter.into());
        assert_eq!(
            (model.choice.filter.as_str(), model.choice.is_typing),
            ("q1 ", false)
        );
        press(&mut model, KeyCode::Esc.into());
        assert_eq!(model.choice.filter, "");
        assert!(!model.choice.is_paused);
    }

    #[test]
    fn ctrl_c_interrupts_in_every_state_and_q_also_quits_from_the_help() {
        for keys in ["", "/", "?", "5"] {
            let mut model = model();
            typed(&mut model, keys);
            let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            assert_eq!(press(&mut model, key), Outcome::Interrupted);
        }
        for keys in ["q", "?q", "3q"] {
            assert_eq!(typed(&mut model(), keys), Outcome::Quit);
        }
        let mut model = model();
        typed(&mut model, "?x");
        assert!(!model.choice.is_help);
    }

    #[test]
    fn keys_narrow_widen_and_reset_the_range_of_a_linear_axis() {
        let mut model = model();
        press(&mut model, KeyCode::Enter.into());
        let first = model.range();
        typed(&mut model, "]{");
        let narrow = model.range();
        assert!(narrow.low > first.low && narrow.high < first.high);
        typed(&mut model, "[}");
        assert!(model.range().low < narrow.low && model.range().high > narrow.high);
        typed(&mut model, "0");
        assert_eq!(model.range(), Range { ..first });
        assert_eq!(model.choice.scale, Scale::Linear(None));
        typed(&mut model, "l");
        assert_eq!(model.choice.scale, Scale::Logarithmic);
    }

    #[test]
    fn arrows_move_the_cursor_of_the_shapes_pane_and_scroll_the_other_panes() {
        let mut model = model();
        for (code, row) in [
            (KeyCode::Down, 1),
            (KeyCode::Down, 2),
            (KeyCode::Up, 1),
            (KeyCode::Home, 0),
        ] {
            press(&mut model, code.into());
            assert_eq!(model.cursor(&model.rows()), row);
        }
        typed(&mut model, "3jjj");
        assert_eq!(model.choice.scrolled, 3);
        for (code, sideways) in [
            (KeyCode::Right, 20),
            (KeyCode::Right, 40),
            (KeyCode::Left, 20),
        ] {
            press(&mut model, code.into());
            assert_eq!(model.choice.sideways, sideways);
        }
        typed(&mut model, "2");
        assert_eq!((model.choice.scrolled, model.choice.sideways), (0, 0));
    }

    #[test]
    fn the_up_key_scrolls_by_one_line_from_the_last_line_of_a_pane() {
        let mut model = model();
        typed(&mut model, "3");
        let last = panes::lines(&model).unwrap().len() - 1;
        assert!(last > 2, "{last}");
        press(&mut model, KeyCode::End.into());
        press(&mut model, KeyCode::Down.into());
        press(&mut model, KeyCode::Up.into());
        assert_eq!(usize::from(model.choice.scrolled), last - 1);
        // Without stalls, the pane has only two lines.
        model.stalls = seawall_api::Stalls::default();
        press(&mut model, KeyCode::Up.into());
        assert_eq!(model.choice.scrolled, 0);
    }
}
