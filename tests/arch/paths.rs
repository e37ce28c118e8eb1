//! The paths in Rust sources.

use std::path::Path;

use crate::sources::{without_comments, without_unit_tests};

/// The words of a path: `a` and `b` for `a::b as c`.
pub(crate) fn words(path: &str) -> Vec<String> {
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
pub(crate) fn used_paths(source: &str) -> Vec<Vec<String>> {
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
/// tests are ignored. The result excludes braces and the names in them: `super::a` for
/// `super::a::{B, C}`.
pub(crate) fn paths_to_siblings(source: &str) -> Vec<Vec<String>> {
    let code = without_comments(without_unit_tests(source));
    let paths = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    paths
        .filter(|path| path.starts_with("crate::") || path.starts_with("super::"))
        .map(words)
        .collect()
}

/// Converts a path in `module` to the path from the root of the crate. `None` if the path begins
/// with neither `crate` nor `super`, or if it leads above the root.
pub(crate) fn from_root(module: &[String], path: &[String]) -> Option<Vec<String>> {
    if path.first()? == "crate" {
        return Some(path[1..].to_vec());
    }
    let ups = path.iter().take_while(|word| *word == "super").count();
    let ancestor = &module[..module.len().checked_sub(ups)?];
    (ups > 0).then(|| [ancestor, &path[ups..]].concat())
}

/// The path of the module in a file or folder, from the root of the crate. `src` is the folder of
/// the crate's sources.
pub(crate) fn module_of(src: &Path, file: &Path) -> Vec<String> {
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
