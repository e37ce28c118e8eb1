//! Checks the dependencies in docs/ARCHITECTURE.md: a module uses only modules that its row of the
//! table allows, and only modules of a lower level.

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

/// Maximum width of a comment in characters, including the indentation.
const COMMENT_WIDTH: usize = 100;

/// The extensions of files in which comments begin with `#`.
const HASH_COMMENTS: [&str; 4] = ["py", "toml", "yaml", "yml"];

/// The extensions of files in which comments begin with `//` or `/*`.
const SLASH_COMMENTS: [&str; 9] = ["c", "go", "h", "java", "js", "mjs", "php", "rs", "ts"];

/// The level of the command line. Modules of this level may use every module.
const TOP: u32 = 10;

/// What the table in docs/ARCHITECTURE.md says about one module.
struct Row {
    level: u32,
    may_use: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
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

/// The rows of the table "Who may know whom", by module.
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

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    files(folder, &["rs"], found);
}

/// Adds the files in `folder` with one of the extensions to `found`. Skips hidden folders and
/// folders that tools create.
fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_ours = !name.starts_with('.') && name != "target" && name != "node_modules";
        if path.is_dir() && is_ours {
            files(&path, extensions, found);
        } else if extensions.contains(&extension(&path)) {
            found.push(path);
        }
    }
}

/// The extension of a file; empty if there is none.
fn extension(file: &Path) -> &str {
    let extension = file.extension().and_then(|extension| extension.to_str());
    extension.unwrap_or_default()
}

/// The text of a source file without its comments.
fn without_comments(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The crates of the proxy that a source uses, without the prefix `seawall_`: `wire` for
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

/// The modules that a source names in `crate::name…` or `crate::{name…, name…}`.
fn uses(source: &str) -> BTreeSet<String> {
    let code = without_comments(source);
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
    // A name that begins with a capital letter is a type in the root of the crate.
    used.retain(|name| name.chars().next().is_some_and(char::is_lowercase));
    used
}

#[test]
fn used_modules_are_found_in_all_forms_of_a_path() {
    let source = "use crate::{a::{b, c}, d,\n    e::F,\n}; // crate::no\nfn f() { crate::g::h() } type T = crate::U;";
    let found: Vec<_> = uses(source).into_iter().collect();
    assert_eq!(found, ["a", "d", "e", "g"]);
}

/// For each crate under `proxy/crates`, by its name: the folder of its sources.
fn crates() -> BTreeMap<String, PathBuf> {
    let folder = root().join("proxy/crates");
    let folders = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let named = folders.map(|folder| {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        (name, folder.join("src"))
    });
    named.collect()
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
fn crates_and_modules_use_only_what_their_table_row_allows() {
    let table = table();
    let by_row = sources_by_row();
    let crates = crates();
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
                used.extend(uses(&source));
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
fn crates_that_a_source_names_are_found() {
    let source = "use seawall_wire::{A, B}; // seawall_no\nfn f() { seawall_shape::g() }\nuse seawall_config::C;";
    let found: Vec<_> = used_crates(source).into_iter().collect();
    assert_eq!(found, ["shape", "wire"]);
}

#[test]
fn the_table_allows_only_uses_of_modules_of_lower_levels() {
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

/// All words of Rust code that can be identifiers.
fn identifiers(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).collect()
}

/// The functions and constants that a source declares `pub`. Unit tests are ignored.
fn public_functions_and_constants(source: &str) -> Vec<&str> {
    let inline_tests = source
        .match_indices("#[cfg(test)]\nmod ")
        .find(|(at, text)| {
            let rest = &source[at + text.len()..];
            rest.lines().next().is_some_and(|line| line.ends_with('{'))
        });
    let end = inline_tests.map_or(source.len(), |(at, _)| at);
    let declarations = source[..end]
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("pub "));
    let named = declarations.filter_map(|declaration| {
        let mut words = declaration.split_whitespace().peekable();
        let mut is_item = false;
        while words
            .next_if(|word| ["const", "static", "async", "fn"].contains(word))
            .is_some()
        {
            is_item = true;
        }
        let name = words.next()?;
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
        is_item.then(|| &name[..end.unwrap_or(name.len())])
    });
    named.collect()
}

/// The sources of each package: the proxy, its crates, the configuration, and the packages that use
/// them.
fn packages() -> BTreeMap<String, Vec<PathBuf>> {
    let mut folders: BTreeMap<String, PathBuf> = crates();
    for (name, folder) in [
        ("seawall", "proxy/src"),
        ("config", "config/src"),
        ("tests of config", "config/tests"),
        ("tests", "tests"),
        ("benches", "benches"),
        ("fuzz", "proxy/fuzz"),
    ] {
        folders.insert(name.to_owned(), root().join(folder));
    }
    let found = folders.into_iter().map(|(name, folder)| {
        let mut files = Vec::new();
        sources(&folder, &mut files);
        (name, files)
    });
    found.collect()
}

/// The compiler reports unused items only if they are not `pub`, so this test finds unused `pub`
/// items. The test ignores types, because a type may be `pub` only because a signature contains it.
#[test]
fn public_functions_and_constants_are_used_by_another_package() {
    let read = |file: &PathBuf| fs::read_to_string(file).unwrap();
    let texts: BTreeMap<String, Vec<String>> = packages()
        .into_iter()
        .map(|(name, files)| (name, files.iter().map(read).collect()))
        .collect();
    let codes: BTreeMap<&String, String> = texts
        .iter()
        .map(|(name, texts)| {
            (
                name,
                texts.iter().map(|text| without_comments(text)).collect(),
            )
        })
        .collect();
    let main = read(&root().join("proxy/src/main.rs"));
    // `main.rs` is a separate crate, so an item of the library that only `main.rs` uses must be
    // `pub`. Such an item counts as used.
    let in_main = identifiers(&main);
    let named: BTreeMap<_, _> = codes
        .iter()
        .map(|(name, code)| (*name, identifiers(code)))
        .collect();
    let (mut unused, mut total) = (BTreeSet::new(), 0);
    for (package, texts) in &texts {
        if ["tests of config", "tests", "benches", "fuzz"].contains(&package.as_str()) {
            continue;
        }
        let others = named.iter().filter(|(name, _)| **name != package);
        let others: Vec<_> = others.map(|(_, names)| names).collect();
        for name in texts
            .iter()
            .flat_map(|text| public_functions_and_constants(text))
        {
            total += 1;
            if !in_main.contains(name) && !others.iter().any(|names| names.contains(name)) {
                unused.insert(format!("{package}: {name}"));
            }
        }
    }
    assert!(total > 300, "too few items found: {total}");
    assert!(
        unused.is_empty(),
        "not used by another package: {unused:#?}"
    );
}

/// Without this check, the mutation tests would silently skip a folder that was renamed.
#[test]
fn folders_in_the_configuration_of_the_mutation_tests_exist() {
    let text = fs::read_to_string(root().join(".cargo/mutants.toml")).unwrap();
    let globs = text.split("examine_globs = [").nth(1).unwrap();
    let globs = globs.split(']').next().unwrap();
    let folders: Vec<_> = globs.split('"').skip(1).step_by(2).collect();
    assert!(folders.len() > 5, "{folders:?}");
    for folder in folders {
        let folder = folder.strip_suffix("/**").unwrap();
        assert!(root().join(folder).is_dir(), "no folder {folder}");
    }
}

#[test]
fn public_functions_and_constants_are_found() {
    let source = "#[cfg(test)]\nmod x;\npub fn a() {}\n    pub const fn b(&self)\npub(crate) fn c()\npub const D: u8 = 1;\npub struct E;\n    pub async fn f<T>()\n#[cfg(test)]\nmod tests {\npub fn g() {}\n";
    assert_eq!(public_functions_and_constants(source), ["a", "b", "D", "f"]);
}

/// All Rust sources of the repository.
fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["config", "proxy", "tests", "benches"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 100, "too few files found: {}", files.len());
    files
}

#[test]
fn no_source_file_exceeds_the_maximum_length() {
    for file in all_sources() {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LONGEST_FILE, "{}: {lines} lines", file.display());
    }
}

/// True if a line of a file with this extension is a comment that can be wrapped. A comment of a
/// single word and a comment with a JSDoc tag cannot be wrapped.
fn is_comment(extension: &str, line: &str) -> bool {
    let marks: &[&str] = match HASH_COMMENTS.contains(&extension) {
        true => &["#"],
        false => &["//", "/*", "* "],
    };
    let comment = line.trim_start();
    marks.iter().any(|mark| comment.starts_with(mark))
        && comment.split_whitespace().count() > 2
        && !comment.contains("* @")
}

#[test]
fn comments_that_can_be_wrapped_are_recognized() {
    for (extension, line, expected) in [
        ("rs", "    // two words", true),
        ("rs", "//! one", false),
        ("rs", "let a = 1; // two words", false),
        ("js", " * two words", true),
        ("js", "/** @type {number} the size */", false),
        ("py", "# two words", true),
        ("c", "#define SIZE 1", false),
    ] {
        assert_eq!(is_comment(extension, line), expected, "{line}");
    }
}

/// Formatters wrap code, but not comments, so this test checks the comments.
#[test]
fn no_comment_line_exceeds_the_maximum_width() {
    let extensions = [HASH_COMMENTS.as_slice(), &SLASH_COMMENTS].concat();
    let (mut found, mut wide) = (Vec::new(), Vec::new());
    for folder in ["config", "proxy", "tests", "benches", "docker"] {
        files(&root().join(folder), &extensions, &mut found);
    }
    assert!(found.len() > 500, "too few files found: {}", found.len());
    for file in found {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let is_wide = line.chars().count() > COMMENT_WIDTH;
            if is_wide && is_comment(extension(&file), line) {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "over {COMMENT_WIDTH} columns: {wide:#?}");
}

/// The words of a path: `a` and `b` for `a::b as c`.
fn words(path: &str) -> Vec<String> {
    let path = path.split(" as ").next().unwrap();
    let words = path.split("::").map(str::trim);
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Adds the paths of a `use` tree to `paths`: `a::b` and `a::c` for `a::{b, c}`.
fn expand(prefix: &[String], tree: &str, paths: &mut Vec<Vec<String>>) {
    let Some((head, group)) = tree.split_once('{') else {
        paths.push([prefix, &words(tree)].concat());
        return;
    };
    let prefix = [prefix, &words(head)].concat();
    // Text that only looks like a `use` tree may have no closing bracket.
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[start..at].trim().is_empty() {
                    expand(&prefix, &group[start..at], paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths after `use` in a source, and the other paths that begin with `crate` or `super`. Unit
/// tests are ignored.
fn used_paths(source: &str) -> Vec<Vec<String>> {
    let lines = without_unit_tests(source).lines();
    let lines = lines.map(|line| line.split("//").next().unwrap());
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let other = match statement.rsplit_once("use ") {
            Some((before, tree)) => {
                expand(&[], tree, &mut paths);
                before
            }
            None => statement,
        };
        let words = other.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let inline =
            words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
        paths.extend(inline.map(|path| path.split("::").map(str::to_owned).collect()));
    }
    paths
}

/// The part of a source before its inline module of unit tests; the whole source if there is none.
/// A declaration `mod tests;` is not an inline module.
fn without_unit_tests(source: &str) -> &str {
    let marker = "#[cfg(test)]\nmod ";
    let mut starts = source.match_indices(marker).map(|(start, _)| start);
    let has_body = |start: &usize| {
        let line = source[start + marker.len()..].lines().next();
        line.is_some_and(|line| line.ends_with('{'))
    };
    starts
        .find(has_body)
        .map_or(source, |start| &source[..start])
}

/// For each file and folder in `folder`: the siblings that it uses. Siblings are in one folder.
fn uses_of_siblings(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let is_crate = folder.join("lib.rs").exists() && folder.ends_with("src");
    // A path that begins with `crate::` also names a sibling, if the folder is the root of a crate.
    // In `proxy/src`, such paths are ignored, because another test compares them with the table.
    let counts_roots = is_crate && !folder.ends_with("proxy/src");
    let root = folder.join(if is_crate { "lib.rs" } else { "mod.rs" });
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut files = Vec::new();
    sources(folder, &mut files);
    let name_of = |file: &Path| {
        let inside = file.strip_prefix(folder).unwrap();
        let first = inside.iter().next().unwrap().to_str().unwrap();
        first.trim_end_matches(".rs").to_owned()
    };
    let siblings: BTreeSet<_> = files.iter().map(|file| name_of(file)).collect();
    // Maps each name that the folder's root file imports or re-exports from a sibling to this
    // sibling.
    let mut definers = BTreeMap::new();
    for path in used_paths(&fs::read_to_string(&root).unwrap_or_default()) {
        if let [first, sibling, .., name] = path.as_slice()
            && first == "self"
            && siblings.contains(sibling)
        {
            definers.insert(name.clone(), sibling.clone());
        }
    }
    for file in files.iter().filter(|file| **file != root) {
        let inside: Vec<_> = file.strip_prefix(folder).unwrap().iter().collect();
        let is_test = inside
            .iter()
            .any(|part| part.to_str().unwrap().contains("test"));
        let is_own_root = inside.last().is_some_and(|name| *name == "mod.rs");
        let depth = inside.len() - usize::from(is_own_root);
        let from = name_of(file);
        for path in used_paths(&fs::read_to_string(file).unwrap()) {
            let mut ups = path.iter().take_while(|word| *word == "super").count();
            let is_from_root = counts_roots && path.first().is_some_and(|word| word == "crate");
            if is_test || (ups != depth && !is_from_root) {
                continue;
            }
            ups = ups.max(usize::from(is_from_root));
            let Some(name) = path.get(ups) else {
                continue;
            };
            let used = siblings.get(name).or_else(|| definers.get(name));
            if let Some(used) = used.filter(|used| **used != from && *used != "tests") {
                uses.entry(from.clone()).or_default().insert(used.clone());
            }
        }
    }
    uses
}

/// True if `from` uses `to`, directly or through other files.
fn reaches(uses: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut left = vec![from];
    while let Some(name) = left.pop() {
        for next in uses.get(name).into_iter().flatten() {
            if next == to {
                return true;
            }
            if seen.insert(next) {
                left.push(next);
            }
        }
    }
    false
}

fn folders(folder: &Path, found: &mut Vec<PathBuf>) {
    found.push(folder.to_owned());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            folders(&path, found);
        }
    }
}

#[test]
fn files_of_a_module_use_each_other_without_cycles() {
    let mut found = Vec::new();
    for crate_folder in ["proxy/src", "config/src"] {
        folders(&root().join(crate_folder), &mut found);
    }
    for folder in crates().values() {
        folders(folder, &mut found);
    }
    let (mut circles, mut total) = (Vec::new(), 0);
    for folder in found {
        let uses = uses_of_siblings(&folder);
        total += uses.len();
        for name in uses.keys().filter(|name| reaches(&uses, name, name)) {
            circles.push(folder.join(name));
        }
    }
    assert!(total > 100, "too few uses found: {total}");
    assert!(circles.is_empty(), "cyclic uses of files: {circles:#?}");
}

#[test]
fn use_trees_and_other_paths_are_expanded_into_single_paths() {
    let source = "#[cfg(test)]\nmod i;\npub use self::a::{b::{C, D as E}, F};\nuse super::super::g; // use x::y;\n\
         let h = $crate::j::k(1);\n#[cfg(test)]\nmod tests {\nuse l::m;\n}";
    let paths: Vec<_> = used_paths(source)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    let expected = [
        "self::a::b::C",
        "self::a::b::D",
        "self::a::F",
        "super::super::g",
        "crate::j::k",
    ];
    assert_eq!(paths, expected);
}
