//! Formats numbers and names as text for people. Most numbers have three digits and a unit.

use seawall_api::TimelineStep;
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

pub(super) use seawall_stats::{float, float_usize};

/// Formats a time given in milliseconds: `870 µs`, `1.25 ms`, `3.4 s`, `12 min`, `2.5 h`.
pub(super) fn millis(ms: f64) -> String {
    let seconds = ms / 1e3;
    match ms.abs() {
        _ if !ms.is_finite() => "–".to_owned(),
        0.0 => "0".to_owned(),
        size if size < 0.9995 => format!("{} µs", three_digits(ms * 1e3)),
        size if size < 999.5 => format!("{} ms", three_digits(ms)),
        size if size < 119_500.0 => format!("{} s", three_digits(seconds)),
        size if size < 7_170_000.0 => format!("{} min", three_digits(seconds / 60.0)),
        _ => format!("{} h", three_digits(seconds / 3600.0)),
    }
}

/// Formats a time given in seconds.
pub(super) fn seconds(seconds: f64) -> String {
    millis(seconds * 1e3)
}

/// Formats an uptime given in seconds: `42 s`, `2 h 05 min`, `3 d 04 h`.
pub(super) fn uptime(seconds: f64) -> String {
    let seconds = whole(seconds.max(0.0));
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {:02} s", seconds % 60),
        (0, _, _) => format!("{hours} h {:02} min", minutes % 60),
        _ => format!("{days} d {:02} h", hours % 24),
    }
}

/// Formats a number of bytes: `812 B`, `1.5 KiB`, `40 MiB`.
pub(super) fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    scaled(bytes, 1024.0, &UNITS, " ")
}

/// Formats a count or a rate: `812`, `12.3k`, `4.5M`.
pub(super) fn count(count: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    scaled(count, 1000.0, &UNITS, "")
}

/// A number with the noun that it counts, in singular or plural.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", exact(count))
}

/// Formats a count with all its digits: `1 234 567`, with narrow no-break spaces.
pub(super) fn exact(count: u64) -> String {
    let digits = count.to_string();
    let length = digits.len();
    let mut text = String::with_capacity(length + length);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (length - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a share of a whole: `12.5 %`.
pub(super) fn percent(part: f64, whole: f64) -> String {
    if whole <= 0.0 || part == 0.0 {
        return "0 %".to_owned();
    }
    match 100.0 * part / whole {
        share if share < 0.01 => "<0.01 %".to_owned(),
        share => format!("{} %", three_digits(share)),
    }
}

/// Formats a factor: `×4.9`.
pub(super) fn ratio(ratio: f64) -> String {
    if ratio.is_finite() {
        format!("×{}", three_digits(ratio))
    } else {
        "–".to_owned()
    }
}

/// Formats a moment given in seconds since the epoch: `2026-11-21 17:51:05`, in UTC.
pub(super) fn moment(at: f64) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    utc(at, format)
}

/// Formats the time of day of a moment: `17:51:05`, in UTC.
pub(super) fn clock(at: f64) -> String {
    utc(at, format_description!("[hour]:[minute]:[second]"))
}

/// Formats a moment given in seconds since the epoch, in UTC. A moment outside the calendar becomes
/// a dash.
fn utc(at: f64, format: &[BorrowedFormatItem<'_>]) -> String {
    let seconds = i64::try_from(whole(at.max(0.0))).unwrap_or(i64::MAX);
    let at = OffsetDateTime::from_unix_timestamp(seconds).ok();
    let text = at.and_then(|at| at.format(format).ok());
    text.unwrap_or_else(|| "–".to_owned())
}

/// Makes a name safe to show. Escapes control characters, which a terminal would execute, and
/// invisible characters, which could deceive a reader.
pub(super) fn printable(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_control() || is_invisible(character) {
            text.extend(character.escape_unicode());
        } else {
            text.push(character);
        }
    }
    text
}

/// `db.collection`, or only the database if there is no collection.
pub(super) fn namespace(db: &str, collection: &str) -> String {
    match collection {
        "" => printable(db),
        collection => format!("{}.{}", printable(db), printable(collection)),
    }
}

/// Formats a table whose columns are as wide as their longest cell. `<` before a heading aligns its
/// column to the left.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let names = headings
        .iter()
        .map(|heading| heading.trim_start_matches('<'));
    let first: Vec<String> = names.map(str::to_owned).collect();
    let widths: Vec<usize> = (0..headings.len())
        .map(|column| {
            let cells = std::iter::once(&first).chain(rows);
            let cells = cells.filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(headings).zip(&widths);
        let cells = cells.map(|((cell, heading), width)| match heading.starts_with('<') {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    std::iter::once(&first).chain(rows).map(line).collect()
}

/// Maximum number of steps for which [`with_gaps`] adds gaps. A week has about 10,000 steps of one
/// minute, so it is below this maximum. Without this limit, two steps that are years apart would
/// need much memory.
const MAX_PLACES: usize = 20_000;

/// The steps of a timeline in order. If Seawall has no data for a step between two other steps,
/// this step is `None`. `step_seconds` is the length of a step.
pub(super) fn with_gaps(steps: &[TimelineStep], step_seconds: f64) -> Vec<Option<&TimelineStep>> {
    let mut placed = Vec::new();
    let mut at = steps.first().map_or(0.0, |first| first.at);
    for step in steps {
        // Half a step is the tolerance for the rounding of the numbers.
        while step_seconds > 0.0 && at + step_seconds / 2.0 < step.at && placed.len() < MAX_PLACES {
            placed.push(None);
            at += step_seconds;
        }
        placed.push(Some(step));
        at = step.at + step_seconds;
    }
    placed
}

/// Draws a sparkline: one block per value. The highest value gets a block of full height.
pub(super) fn sparks(values: &[f64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(0.0, f64::max);
    let block = |value: &f64| match *value > 0.0 {
        true => {
            let eighth = usize::try_from(whole(value / most * 7.999)).unwrap_or(0);
            BLOCKS.get(eighth).copied().unwrap_or('█')
        }
        false => ' ',
    };
    values.iter().map(block).collect()
}

/// Draws a bar of blocks. For a share of 1, the bar has `characters` characters. Its length is
/// precise to an eighth of a character.
pub(super) fn bar(share: f64, characters: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let width = float_usize(characters) * 8.0;
    let eighths = usize::try_from(whole((share.clamp(0.0, 1.0) * width).round())).unwrap_or(0);
    // Show at least an eighth for every share above 0.
    let eighths = eighths.max(usize::from(share > 0.0));
    let part = PARTS.get(eighths % 8).copied().unwrap_or_default();
    format!("{}{part}", "█".repeat(eighths / 8))
}

/// A number without its fraction. A negative number becomes 0, and a number that is too large
/// becomes the maximum.
#[expect(clippy::as_conversions, reason = "the cast saturates")]
pub(super) fn whole(number: f64) -> u64 {
    number as u64
}

/// True for characters that are invisible or change the direction of text.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

fn scaled(number: f64, base: f64, units: &[&str], space: &str) -> String {
    if !number.is_finite() {
        return "–".to_owned();
    }
    let mut rest = number;
    let mut left = units;
    // A number that is rounded to `base` or more gets the next unit.
    while let [_, more @ ..] = left
        && !more.is_empty()
        && rest.abs() >= base - 0.5
    {
        rest /= base;
        left = more;
    }
    let unit = left.first().copied().unwrap_or_default();
    format!("{}{space}{unit}", three_digits(rest))
}

/// Formats a number with at most three digits, or with all digits before the decimal point if these
/// are more. Omits trailing zeros after the decimal point.
fn three_digits(number: f64) -> String {
    let text = match number.abs() {
        size if size < 9.995 => format!("{number:.2}"),
        size if size < 99.95 => format!("{number:.1}"),
        _ => return format!("{number:.0}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_gaps_returns_none_for_each_missing_step_between_two_steps() {
        let step = |at: f64| TimelineStep {
            at,
            ..TimelineStep::default()
        };
        let steps = [0.0, 10.0, 40.0].map(step);
        let placed = with_gaps(&steps, 10.0);
        let starts: Vec<_> = placed.iter().map(|step| step.map(|step| step.at)).collect();
        assert_eq!(starts, [Some(0.0), Some(10.0), None, None, Some(40.0)]);
        assert_eq!(with_gaps(&steps, 0.0).len(), 3);
        assert!(with_gaps(&[], 10.0).is_empty());
        let far = [0.0, 1e12].map(step);
        assert_eq!(with_gaps(&far, 1.0).len(), MAX_PLACES + 1);
    }

    #[test]
    fn durations_have_at_most_three_digits_and_a_suitable_unit() {
        let cases = [
            (0.0, "0"),
            (0.0004, "0.4 µs"),
            (0.87, "870 µs"),
            (0.99951, "1 ms"),
            (1.254, "1.25 ms"),
            (12.34, "12.3 ms"),
            (999.6, "1 s"),
            (3_400.0, "3.4 s"),
            (600_000.0, "10 min"),
            (9_000_000.0, "2.5 h"),
            (f64::NAN, "–"),
        ];
        for (ms, text) in cases {
            assert_eq!(millis(ms), text, "{ms}");
        }
        assert_eq!(seconds(0.5), "500 ms");
    }

    #[test]
    fn counts_and_bytes_have_a_suitable_unit_and_exact_counts_have_all_digits() {
        assert_eq!(count(812.0), "812");
        assert_eq!(count(999.6), "1k");
        assert_eq!(count(12_340.0), "12.3k");
        assert_eq!(count(4_500_000.0), "4.5M");
        assert_eq!(count(0.25), "0.25");
        assert_eq!(bytes(812.0), "812 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(41_943_040.0), "40 MiB");
        assert_eq!(bytes(f64::INFINITY), "–");
        assert_eq!(exact(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(exact(12), "12");
    }

    #[test]
    fn small_shares_are_not_shown_as_zero() {
        assert_eq!(percent(1.0, 8.0), "12.5 %");
        assert_eq!(percent(0.0, 8.0), "0 %");
        assert_eq!(percent(1.0, 0.0), "0 %");
        assert_eq!(percent(1.0, 1e9), "<0.01 %");
        assert_eq!(ratio(4.9), "×4.9");
        assert_eq!(ratio(f64::INFINITY), "–");
    }

    #[test]
    fn moments_are_printed_in_utc_and_uptimes_in_at_most_two_units() {
        assert_eq!(moment(0.0), "1970-01-01 00:00:00");
        assert_eq!(moment(951_782_399.9), "2000-02-28 23:59:59");
        assert_eq!(moment(951_782_400.0), "2000-02-29 00:00:00");
        assert_eq!(moment(1_795_283_465.0), "2026-11-21 17:51:05");
        assert_eq!(clock(1_795_283_465.2), "17:51:05");
        assert_eq!(uptime(42.9), "42 s");
        assert_eq!(uptime(7_500.0), "2 h 05 min");
        assert_eq!(uptime(273_600.0), "3 d 04 h");
    }

    #[test]
    fn control_characters_and_invisible_characters_in_names_are_escaped() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(printable("Größe"), "Größe");
        assert_eq!(namespace("shop", "orders"), "shop.orders");
        assert_eq!(namespace("admin", ""), "admin");
    }

    #[test]
    fn table_columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["1".to_owned(), "a b".to_owned()],
            vec!["22".to_owned(), "c".to_owned()],
        ];
        assert_eq!(
            table(&["n", "<name"], &rows),
            [" n  name", " 1  a b", "22  c"]
        );
    }

    #[test]
    fn bars_and_sparklines_show_every_value_above_zero_and_draw_the_maximum_at_full_size() {
        assert_eq!(bar(0.5, 4), "██");
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(0.0001, 4), "▏");
        assert_eq!(bar(0.0, 4), "");
        assert_eq!(sparks(&[0.0, 0.1, 5.0, 10.0]), " ▁▄█");
        assert_eq!(sparks(&[0.0, 0.0]), "  ");
    }
}
