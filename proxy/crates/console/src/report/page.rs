//! An HTML page that needs no other file. It contains the modules and styles of the dashboard, and
//! the data that they show.
//!
//! Only the frame of the page is markup. The data and the modules are JSON in script elements,
//! which browsers do not run. `report.js` shows all texts of the data as text nodes, so a text
//! cannot add markup.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use seawall_page::{File, REPORT_MODULES, REPORT_SCRIPT, REPORT_STYLES};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Returns the HTML of a whole page.
///
/// # Errors
/// If the data cannot be written as JSON.
pub(super) fn page(title: &str, data: &impl Serialize) -> serde_json::Result<String> {
    let styles: String = REPORT_STYLES.iter().map(|file| file.content).collect();
    let modules: Vec<_> = REPORT_MODULES.iter().map(named).collect();
    let (modules, data) = (embedded(&modules)?, embedded(data)?);
    let script = REPORT_SCRIPT.content;
    let policy = format!(
        "default-src 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
         script-src '{}' blob:; style-src '{}'",
        hash(script),
        hash(&styles),
    );
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>{styles}</style>\n</head>\n<body class=\"report\">\n\
         <noscript>This report needs JavaScript. <code>seawall report</code> writes the same figures as text.</noscript>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script type=\"application/json\" id=\"modules\">{modules}</script>\n\
         <script type=\"module\">{script}</script>\n</body>\n</html>\n",
        title = title.replace('&', "&amp;").replace('<', "&lt;"),
    ))
}

fn named(file: &File) -> [&'static str; 2] {
    [file.name, file.content]
}

/// A value as JSON that is safe inside a script element. Only `<` must be escaped there, because
/// it could end the element or begin a comment. Other characters that are unsafe elsewhere in a
/// page or in a script are escaped as a precaution.
fn embedded(value: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(value)?;
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // An escape is valid here, because these characters occur in JSON only in strings.
                text.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => text.push(other),
        }
    }
    Ok(text)
}

/// The hash of this text in the form that a Content Security Policy uses to allow the text.
fn hash(text: &str) -> String {
    format!(
        "sha256-{}",
        STANDARD.encode(Sha256::digest(text.as_bytes()))
    )
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The data that a page contains.
    pub(in crate::report) fn data(html: &str) -> Value {
        let (_, rest) = html.split_once("id=\"data\">").unwrap();
        serde_json::from_str(rest.split("</script>").next().unwrap()).unwrap()
    }

    #[test]
    fn hostile_text_stays_in_its_script_element() {
        let hostile = json!({
            "a": "</script><script>alert(1)</script>",
            "<!--<script>": "\u{2028}\u{2029}&lt;\u{1b}\"'\\",
            "]]>": "</SCRIPT ",
        });
        let html = page("a<b>&c", &hostile).unwrap();
        let plain = page("", &json!({})).unwrap();
        assert_eq!(html.matches('<').count(), plain.matches('<').count());
        assert_eq!(data(&html), hostile);
        assert!(html.contains("<title>a&lt;b>&amp;c</title>"));
        assert!(!html.contains(['\u{2028}', '\u{2029}', '\u{1b}']));
    }

    #[test]
    fn page_loads_nothing_and_runs_only_its_script() {
        let html = page("t", &json!({})).unwrap();
        let frame = html
            .split("<script type=\"application/json\"")
            .next()
            .unwrap();
        for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!frame.contains(outside), "{outside}");
        }
        let (_, script) = html.split_once("<script type=\"module\">").unwrap();
        let script = script.split("</script>").next().unwrap();
        assert!(html.contains(&format!("script-src '{}' blob:;", hash(script))));
        let (_, style) = html.split_once("<style>").unwrap();
        let style = style.split("</style>").next().unwrap();
        assert!(html.contains(&format!("style-src '{}'\"", hash(style))));
        assert!(!html.contains("unsafe-"));
    }

    #[test]
    fn the_page_contains_the_modules_of_the_dashboard() {
        let html = page("t", &json!({})).unwrap();
        let (_, modules) = html.split_once("id=\"modules\">").unwrap();
        let modules = modules.split("</script>").next().unwrap();
        let modules: Vec<[String; 2]> = serde_json::from_str(modules).unwrap();
        let expected = REPORT_MODULES.map(|file| [file.name, file.content].map(str::to_owned));
        assert_eq!(modules, expected);
        assert!(modules.iter().any(|[name, _]| name == "heatmap.js"));
    }
}
