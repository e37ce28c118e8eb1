//! The dependency test of docs/ARCHITECTURE.md: modules use only what their table rows allow, and
//! all arrows point down.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this crate contains only tests and their helpers"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const LONGEST_FILE: usize = 800;

/// In characters, with the indentation.
const COMMENT_WIDTH: usize = 100;

/// The level of the command line, which may use every module.
const TOP: u32 = 10;

/// A module's row of the table.
struct Row {
    level: u32,
    may_use: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The words between backticks or, if there are none, between commas.
fn names(cell: &str) -> Vec<String> {
    let quoted: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
    let words = if quoted.is_empty() {
        cell.split(',').collect()
    } else {
        quoted
    };
    words
        .into_iter()
        .map(|word| word.trim().to_owned())
        .collect()
}

/// The table "Who may know whom", by module.
fn table() -> BTreeMap<String, Row> {
    let text = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let section = text.split("## Who may know whom").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let levels: BTreeMap<_, u32> = rows
        .iter()
        .flat_map(|row| {
            names(row[1])
                .into_iter()
                .map(|name| (name, row[0].parse().unwrap()))
        })
        .collect();
    let mut table = BTreeMap::new();
    for row in rows {
        // Text in brackets or after a semicolon is an explanation.
        let cell = row[3].split([';', '(']).next().unwrap();
        let rest = row[3].split_once(')').map_or("", |(_, rest)| rest);
        let cell = format!("{cell}{}", rest.split(';').next().unwrap());
        let may_use = match cell.as_str().trim() {
            "nothing of ours" => BTreeSet::new(),
            // All modules below its own level. Modules of the top level may also use each other.
            all if all.starts_with("all") => {
                let own: u32 = row[0].parse().unwrap();
                let below = levels
                    .iter()
                    .filter(|(_, level)| **level < own || own == TOP);
                below.map(|(name, _)| name.clone()).collect()
            }
            listed => names(listed).into_iter().collect(),
        };
        for module in names(row[1]) {
            let row = Row {
                level: row[0].parse().unwrap(),
                may_use: may_use.clone(),
            };
            table.insert(module, row);
        }
    }
    table
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// The modules of its crate that a source names: `crate::name…` and `crate::{name…, name…}`.
fn uses(source: &str) -> BTreeSet<String> {
    let code = source
        .lines()
        .map(|line| line.split("//").next().unwrap())
        .collect::<Vec<_>>()
        .join("\n");
    let mut used = BTreeSet::new();
    for place in code.split("crate::").skip(1) {
        let word = |text: &str| -> String {
            let text = text.trim_start().chars();
            text.take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        };
        let Some(group) = place.strip_prefix('{') else {
            used.insert(word(place));
            continue;
        };
        used.insert(word(group));
        let mut depth = 0;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    used.insert(word(&group[at + 1..]));
                }
                _ => {}
            }
        }
    }
    // A name with a capital is a type of the crate's root.
    used.retain(|name| name.chars().next().is_some_and(char::is_lowercase));
    used
}

#[test]
fn uses_are_found_in_every_form() {
    let source = "use crate::{a::{b, c}, d,\n    e::F,\n}; // crate::no\nfn f() { crate::g::h() } type T = crate::U;";
    let found: Vec<_> = uses(source).into_iter().collect();
    assert_eq!(found, ["a", "d", "e", "g"]);
}

#[test]
fn modules_use_what_their_rows_allow() {
    let table = table();
    let folder = root().join("proxy/src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in files {
        let inside = file.strip_prefix(&folder).unwrap();
        let first = inside.components().next().unwrap().as_os_str();
        let module = first.to_str().unwrap().trim_end_matches(".rs").to_owned();
        // Unit tests may construct what their module only receives.
        let is_test = inside
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        if module == "lib" || is_test {
            continue;
        }
        let Some(row) = table.get(&module) else {
            wrong.push(format!("{module} has no row"));
            continue;
        };
        for used in uses(&fs::read_to_string(&file).unwrap()) {
            if used != module && !row.may_use.contains(&used) {
                wrong.push(format!("{} uses {used}", inside.display()));
            }
        }
        seen.insert(module);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let rows: BTreeSet<_> = table.keys().cloned().collect();
    assert_eq!(rows, seen, "rows without a module");
}

#[test]
fn all_arrows_point_down() {
    let table = table();
    for (module, row) in &table {
        for used in row.may_use.iter().filter(|used| *used != module) {
            let of = &table[used];
            assert!(
                of.level < row.level || row.level == TOP,
                "{module} may use {used}"
            );
        }
    }
}

/// All Rust sources of the repository.
fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["config", "proxy", "tests", "benches"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 100, "{}", files.len());
    files
}

#[test]
fn no_file_is_too_long() {
    for file in all_sources() {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LONGEST_FILE, "{}: {lines} lines", file.display());
    }
}

/// rustfmt wraps code, but not comments. A line that holds a single long word cannot be wrapped.
#[test]
fn comments_are_wrapped() {
    let mut wide = Vec::new();
    for file in all_sources() {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            let has_spaces = comment.split_whitespace().count() > 2;
            let is_wide = line.chars().count() > COMMENT_WIDTH;
            if comment.starts_with("//") && has_spaces && is_wide {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "over {COMMENT_WIDTH} columns: {wide:#?}");
}
