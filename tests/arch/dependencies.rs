//! A module or crate uses only the modules and crates that its row of the table in
//! docs/ARCHITECTURE.md allows. A row below the top level allows only modules and crates of lower
//! levels.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use crate::{
    paths::{from_root, module_of, paths_to_siblings, used_paths},
    sources::{crates, root, sources, without_comments},
};

/// The level of the command line. Modules of this level may use every module.
const TOP: u32 = 10;

/// The row of one module or crate in the table of docs/ARCHITECTURE.md.
struct Row {
    level: u32,
    may_use: BTreeSet<String>,
}

/// The names in a cell of the table: the words in backticks or, if the cell has no backticks, the
/// words between commas.
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

/// The rows of the table "Who may know whom", by the name of the module or crate.
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
        // Text in brackets or after a semicolon is an explanation, and is removed.
        let cell = row[3].split([';', '(']).next().unwrap();
        let rest = row[3].split_once(')').map_or("", |(_, rest)| rest);
        let cell = format!("{cell}{}", rest.split(';').next().unwrap());
        let may_use = match cell.as_str().trim() {
            "nothing of ours" => BTreeSet::new(),
            // "all" means all modules of lower levels and, in a row of the top level, all modules.
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

/// The crates of the proxy that the source text uses, without the prefix `seawall_`: `wire` for
/// `seawall_wire::OpMsg`.
fn used_crates(source: &str) -> BTreeSet<String> {
    let code = without_comments(source);
    let paths = code.split("seawall_").skip(1);
    let names = paths.filter_map(|path| {
        let end = path.find(|c: char| !c.is_ascii_lowercase())?;
        let (name, rest) = path.split_at(end);
        // Names of metrics also begin with `seawall_`, but no `::` follows.
        rest.starts_with("::").then(|| name.to_owned())
    });
    // `config` is a crate outside of `proxy/crates`, so the table has no row for it.
    names.filter(|name| name != "config").collect()
}

/// The first module of each path that `source` uses, counted from the crate's root: `a` for
/// `crate::a::b`. `module` is the path of the module of `source`. Unit tests are ignored.
fn uses(module: &[String], source: &str) -> BTreeSet<String> {
    let paths = [used_paths(source), paths_to_siblings(source)].concat();
    let in_root = paths.iter().filter_map(|path| from_root(module, path));
    let names = in_root.filter_map(|path| path.into_iter().next());
    // A name that begins with a capital letter is a type in the root of the crate.
    names
        .filter(|name| name.starts_with(char::is_lowercase))
        .collect()
}

#[test]
fn modules_that_a_source_uses_are_found_in_nested_use_statements_and_in_other_code() {
    let source = "use crate::{a::{b, c}, d,\n    e::F,\n}; // crate::no\nuse super::super::i::J;\nuse super::k;\nfn f() { crate::g::h(); super::super::l::m() } type T = crate::U;";
    let module = ["x", "y"].map(str::to_owned);
    let found: Vec<_> = uses(&module, source).into_iter().collect();
    assert_eq!(found, ["a", "d", "e", "g", "i", "l", "x"]);
}

/// The source files for each row of the table: the proxy's files by module, and the files of its
/// crates by crate.
fn sources_by_row() -> BTreeMap<String, Vec<PathBuf>> {
    let mut by_row: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let folder = root().join("proxy/src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    for file in files {
        let first = file.strip_prefix(&folder).unwrap().iter().next().unwrap();
        let module = first.to_str().unwrap().trim_end_matches(".rs").to_owned();
        by_row.entry(module).or_default().push(file);
    }
    by_row.remove("lib");
    for (name, folder) in crates() {
        let files = by_row.entry(name).or_default();
        assert!(files.is_empty(), "no module may have the name of a crate");
        sources(&folder, files);
    }
    by_row
}

#[test]
fn crates_and_modules_use_only_what_docs_architecture_md_allows() {
    let table = table();
    let by_row = sources_by_row();
    let crates = crates();
    let src = root().join("proxy/src");
    let mut wrong = Vec::new();
    for (name, files) in &by_row {
        let Some(row) = table.get(name) else {
            wrong.push(format!("{name} has no row"));
            continue;
        };
        // Files of unit tests are skipped. They may use more modules than their row allows, to
        // construct values that the tested module only receives.
        let files = files.iter().filter(|file| {
            let mut parts = file.iter();
            !parts.any(|part| part == "tests" || part == "tests.rs")
        });
        for file in files {
            let source = fs::read_to_string(file).unwrap();
            let mut used = used_crates(&source);
            if !crates.contains_key(name) {
                used.extend(uses(&module_of(&src, file), &source));
            }
            for used in used {
                if used != *name && !row.may_use.contains(&used) {
                    wrong.push(format!("{} uses {used}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let rows: BTreeSet<_> = table.keys().collect();
    assert_eq!(
        rows,
        by_row.keys().collect(),
        "rows without a crate or module"
    );
}

#[test]
fn crates_that_a_source_file_uses_are_found() {
    let source = "use seawall_wire::{A, B}; // seawall_no\nfn f() { seawall_shape::g() }\nuse seawall_config::C;";
    let found: Vec<_> = used_crates(source).into_iter().collect();
    assert_eq!(found, ["shape", "wire"]);
}

#[test]
fn docs_architecture_md_allows_modules_below_the_top_level_to_use_only_lower_levels() {
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
