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

/// The modules in the root of a crate that a source of this crate names. `module` is the path of
/// the source's module. Unit tests are ignored.
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
fn in_docs_architecture_md_a_module_may_use_only_modules_of_lower_levels() {
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

/// The text of a source before its inline unit tests.
fn without_unit_tests(source: &str) -> &str {
    let mut attributes = source.match_indices("#[cfg(test)]\n");
    let inline = attributes.find(|(at, attribute)| {
        let rest = &source[at + attribute.len()..];
        let item = rest.lines().next().unwrap_or_default();
        item.ends_with('{') && item.split_whitespace().any(|word| word == "mod")
    });
    inline.map_or(source, |(at, _)| &source[..at])
}

/// The functions and constants that a source declares `pub`. Unit tests are ignored.
fn public_functions_and_constants(source: &str) -> Vec<&str> {
    let declarations = without_unit_tests(source)
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
fn public_functions_and_constants_of_a_source_file_are_found() {
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

/// The paths after `use` in a source. Unit tests are ignored.
fn used_paths(source: &str) -> Vec<Vec<String>> {
    let code = without_comments(without_unit_tests(source));
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let mut statement = statement.rsplitn(2, "use ");
        let tree = statement.next().unwrap();
        if statement.next().is_some() {
            expand(&[], tree, &mut paths);
        }
    }
    paths
}

/// All paths in a source that begin with `crate` or `super`, also in expressions and macros. Unit
/// tests are ignored. Braces and the names in them are left out: `super::a` for `super::a::{B, C}`.
fn paths_to_siblings(source: &str) -> Vec<Vec<String>> {
    let code = without_comments(without_unit_tests(source));
    let paths = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    paths
        .filter(|path| path.starts_with("crate::") || path.starts_with("super::"))
        .map(words)
        .collect()
}

/// Converts a path in `module` to the path from the root of the crate. `None` if the path begins
/// with neither `crate` nor `super`.
fn from_root(module: &[String], path: &[String]) -> Option<Vec<String>> {
    if path.first()? == "crate" {
        return Some(path[1..].to_vec());
    }
    let ups = path.iter().take_while(|word| *word == "super").count();
    let ancestor = &module[..module.len().checked_sub(ups)?];
    (ups > 0).then(|| [ancestor, &path[ups..]].concat())
}

/// The path of the module in a file or folder, from the root of the crate. `src` is the folder of
/// the crate's sources.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(src).unwrap().with_extension("");
    let names = inside.iter().map(|name| name.to_str().unwrap().to_owned());
    let mut module: Vec<String> = names.collect();
    if module
        .last()
        .is_some_and(|name| name == "mod" || name == "lib")
    {
        module.pop();
    }
    module
}

/// The files and folders of one folder, each with the siblings that it uses. `src` is the folder of
/// the crate's sources.
fn uses_of_siblings(src: &Path, folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let parent = module_of(src, folder);
    let mut files = Vec::new();
    sources(folder, &mut files);
    let mut modules: BTreeMap<Vec<String>, String> = files
        .iter()
        .map(|file| (module_of(src, file), fs::read_to_string(file).unwrap()))
        .collect();
    // The source of the folder's own module is in the folder, or beside it.
    let root = modules
        .remove(&parent)
        .or_else(|| fs::read_to_string(folder.with_extension("rs")).ok());
    let siblings: BTreeSet<String> = modules
        .keys()
        .filter_map(|module| module.get(parent.len()).cloned())
        .collect();
    // Maps each name that the root imports or re-exports from a sibling to this sibling.
    let mut definers = BTreeMap::new();
    for path in used_paths(&root.unwrap_or_default()) {
        let path: Vec<_> = path.iter().filter(|word| *word != "self").collect();
        if let [sibling, .., name] = path.as_slice()
            && siblings.contains(*sibling)
        {
            definers.insert((*name).clone(), (*sibling).clone());
        }
    }
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, source) in &modules {
        let from = &module[parent.len()];
        if module.iter().any(|name| name.contains("test")) {
            continue;
        }
        for path in [used_paths(source), paths_to_siblings(source)].concat() {
            let Some(path) = from_root(module, &path) else {
                continue;
            };
            let Some([name, ..]) = path.strip_prefix(parent.as_slice()) else {
                continue;
            };
            let used = siblings.get(name).or_else(|| definers.get(name));
            if let Some(used) = used.filter(|used| *used != from && !used.contains("test")) {
                uses.entry(from.clone()).or_default().insert(used.clone());
            }
        }
    }
    uses
}

/// True if a chain of uses leads from `from` to `to`.
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
    let own = ["proxy/src", "config/src"].map(|src| root().join(src));
    let (mut circles, mut total) = (Vec::new(), 0);
    for src in own.into_iter().chain(crates().into_values()) {
        let mut found = Vec::new();
        folders(&src, &mut found);
        for folder in found {
            let uses = uses_of_siblings(&src, &folder);
            total += uses.len();
            for name in uses.keys().filter(|name| reaches(&uses, name, name)) {
                circles.push(folder.join(name));
            }
        }
    }
    assert!(total > 200, "too few uses found: {total}");
    assert!(circles.is_empty(), "cyclic uses of files: {circles:#?}");
}

#[test]
fn use_trees_are_expanded_into_single_paths() {
    let source =
        "pub use self::a::{b::{C, D as E}, F};\nuse super::super::g; // use x::y;\nlet h = 1;";
    let paths: Vec<_> = used_paths(source)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    let expected = [
        "self::a::b::C",
        "self::a::b::D",
        "self::a::F",
        "super::super::g",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn crate_and_super_paths_are_found_also_outside_of_use_statements() {
    let source = "#[cfg(test)]\nmod live;\nuse super::a::{B, C};\nfn f() { $crate::d::g(super::super::e::H, x::y) } // crate::no\n#[cfg(test)]\npub(super) mod tests {\nuse super::i;\n";
    let join =
        |paths: Vec<Vec<String>>| -> Vec<_> { paths.iter().map(|path| path.join("::")).collect() };
    let expected = ["super::a", "crate::d::g", "super::super::e::H"];
    assert_eq!(join(paths_to_siblings(source)), expected);
    assert_eq!(join(used_paths(source)), ["super::a::B", "super::a::C"]);
}

#[test]
fn module_paths_are_converted_to_paths_from_the_crate_root() {
    let module = ["a", "b"].map(str::to_owned);
    for (path, expected) in [
        ("crate::c::D", Some("c::D")),
        ("super::c::D", Some("a::c::D")),
        ("super::super::c", Some("c")),
        ("super::super::super::c", None),
        ("std::fmt", None),
    ] {
        let found = from_root(&module, &words(path)).map(|path| path.join("::"));
        assert_eq!(found.as_deref(), expected, "{path}");
    }
}

/// The names of types that `source` declares. Unit tests are ignored.
fn declared_types(source: &str) -> Vec<&str> {
    let lines = without_unit_tests(source).lines();
    let words = lines.map(|line| {
        let line = line.trim_start();
        let item = line.strip_prefix("pub").unwrap_or(line);
        let item = match item.split_once(')') {
            Some((visibility, rest)) if visibility.starts_with('(') => rest,
            _ => item,
        };
        let item = item.trim_start();
        item.split(|c: char| !c.is_alphanumeric() && c != '_')
    });
    let named = words.filter_map(|mut words| {
        let keyword = words.next()?;
        let name = words.next().filter(|name| !name.is_empty())?;
        ["struct", "enum", "trait", "type"]
            .contains(&keyword)
            .then_some(name)
    });
    named.collect()
}

#[test]
fn declared_types_are_found() {
    let source = "pub struct A(u8);\npub(in crate::x) enum B<T> {\nstruct C;\ntype D = E;\nlet f = \"struct G\";\n";
    assert_eq!(declared_types(source), ["A", "B", "C", "D"]);
}

/// A type with one of these words as its whole name says little. If there were several such types,
/// a reader could not tell them apart.
#[test]
fn no_two_types_have_the_same_general_word_as_their_name() {
    const GENERAL: [&str; 8] = [
        "Kind", "Place", "Session", "Settings", "State", "Step", "Turn", "Window",
    ];
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in all_sources() {
        let text = fs::read_to_string(&file).unwrap();
        let general = declared_types(&text).into_iter();
        for name in general.filter(|name| GENERAL.contains(name)) {
            let place = file.display().to_string();
            found.entry(name.to_owned()).or_default().push(place);
        }
    }
    found.retain(|_, places| places.len() > 1);
    assert!(found.is_empty(), "types with the same name: {found:#?}");
}

/// The functions that borrow `self` mutably although their name begins like a question.
fn questions_with_side_effects(source: &str) -> Vec<&str> {
    const QUESTIONS: [&str; 6] = ["is_", "has_", "may_", "must_", "can_", "needs_"];
    let functions = source.match_indices("fn ").filter_map(|(at, keyword)| {
        // The signature of a trait's function may end with a semicolon.
        let signature = source[at + keyword.len()..].split(['{', ';']).next()?;
        let name = signature.split('(').next()?;
        let is_question = QUESTIONS.iter().any(|begin| name.starts_with(begin));
        (is_question && signature.contains("&mut self")).then_some(name)
    });
    functions.collect()
}

#[test]
fn the_search_finds_functions_that_are_named_as_questions_but_borrow_self_mutably() {
    // The other test of these functions also reads this file, so `MUT` stands for the borrow.
    let source = "fn is_a(&self) -> bool;\nfn b(MUT) {}\nfn must_c(\n    MUT,\n) {}\nfn can_d(MUT) -> bool;\nfn may_e() {}\n";
    let source = source.replace("MUT", "&mut self");
    assert_eq!(questions_with_side_effects(&source), ["must_c", "can_d"]);
}

/// A function whose name begins like a question, such as `is_` or `may_`, only answers it, so it
/// must not need `&mut self`. The only exception is [`Stream::has_ended`]: it needs `&mut self` to
/// poll a socket, but the poll changes nothing that callers see.
///
/// [`Stream::has_ended`]: seawall_transport::Stream::has_ended
#[test]
fn functions_named_as_questions_do_not_borrow_self_mutably() {
    let mut found = Vec::new();
    for file in all_sources() {
        let text = fs::read_to_string(&file).unwrap();
        let functions = questions_with_side_effects(&text).into_iter();
        found.extend(functions.map(str::to_owned));
    }
    assert_eq!(found, ["has_ended"]);
}
