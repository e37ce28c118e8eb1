//! The parts of an HTML page. Names may contain anything, so every text goes through [`escape`].

use crate::figures::printable;

/// Returns the HTML of a whole page. `body` must already be HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n{body}\
         <footer>All times are UTC. Percentiles are within 4.4 % of the measured value (nearest rank); counts and \
         sums are exact.</footer>\n</body>\n</html>\n",
        escape(title),
        include_str!("style.css"),
    )
}

pub(super) fn section(body: &mut String, title: &str, content: &str) {
    body.push_str(&format!(
        "<section>\n<h2>{}</h2>\n{content}\n</section>\n",
        escape(title)
    ));
}

pub(super) fn warnings<S: AsRef<str>>(warnings: &[S]) -> String {
    let warnings = warnings.iter().map(|warning| escape(warning.as_ref()));
    warnings
        .map(|warning| format!("<p class=\"warning\">{warning}</p>\n"))
        .collect()
}

pub(super) fn key_figures(figures: &[(&str, String, String)]) -> String {
    let mut list = String::from("<dl class=\"figures\">\n");
    for (name, figure, more) in figures {
        let (name, figure, more) = (escape(name), escape(figure), escape(more));
        list.push_str(&format!(
            "<div><dt>{name}</dt><dd>{figure}<small>{more}</small></dd></div>\n"
        ));
    }
    list + "</dl>\n"
}

/// Escapes a text, so that it is safe in an element and in a quoted attribute. Control characters
/// and characters that change the direction of text are escaped too.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in printable(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A table that is filled one cell at a time.
pub(super) struct Cells<'a> {
    headings: &'a [&'a str],
    rows: String,
    row: String,
    column: usize,
}

impl<'a> Cells<'a> {
    /// Creates an empty table. `<` before a heading aligns its column to the left.
    pub(super) fn new(headings: &'a [&'a str]) -> Self {
        Self {
            headings,
            rows: String::new(),
            row: String::new(),
            column: 0,
        }
    }

    /// Adds a cell with a number.
    pub(super) fn number(&mut self, text: &str) {
        self.marked("n", &escape(text));
    }

    /// Adds a cell with text.
    pub(super) fn text(&mut self, text: &str) {
        self.marked("", &escape(text));
    }

    /// Adds a cell with HTML and a style class.
    pub(super) fn marked(&mut self, class: &str, html: &str) {
        let heading = self.headings.get(self.column).copied().unwrap_or_default();
        let label = escape(heading.trim_start_matches('<'));
        self.column += 1;
        self.row.push_str(&format!(
            "<td class=\"{class}\" data-label=\"{label}\">{html}</td>"
        ));
    }

    /// Ends the current row.
    pub(super) fn end_row(&mut self) {
        self.rows
            .push_str(&format!("<tr>{}</tr>\n", std::mem::take(&mut self.row)));
        self.column = 0;
    }

    /// Returns the HTML of the finished table, with a style class.
    pub(super) fn table(self, class: &str) -> String {
        let headings = self
            .headings
            .iter()
            .map(|heading| match heading.strip_prefix('<') {
                Some(name) => format!("<th>{}</th>", escape(name)),
                None => format!("<th class=\"n\">{}</th>", escape(heading)),
            });
        format!(
            "<div class=\"scroll\"><table class=\"{class}\">\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
            headings.collect::<String>(),
            self.rows
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_cannot_open_a_tag_or_close_an_attribute() {
        assert_eq!(
            escape("<a href='x' b=\"&\">"),
            "&lt;a href=&#39;x&#39; b=&quot;&amp;&quot;&gt;"
        );
        assert_eq!(escape("a\u{202e}b\u{0}"), "a\\u{202e}b\\u{0}");
    }

    #[test]
    fn cells_carry_the_heading_of_their_column() {
        let mut cells = Cells::new(&["<a&b", "n"]);
        for _ in 0..2 {
            cells.text("<x>");
            cells.number("1");
            cells.end_row();
        }
        let html = cells.table("wide");
        let row = "<td class=\"\" data-label=\"a&amp;b\">&lt;x&gt;</td><td class=\"n\" data-label=\"n\">1</td>";
        assert_eq!(html.matches(row).count(), 2, "{html}");
    }
}
