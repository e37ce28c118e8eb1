//! Names of types and functions.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::sources::{all_sources, without_unit_tests};

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
fn types_that_a_source_declares_are_found() {
    let source = "pub struct A(u8);\npub(in crate::x) enum B<T> {\nstruct C;\ntype D = E;\nlet f = \"struct G\";\n";
    assert_eq!(declared_types(source), ["A", "B", "C", "D"]);
}

/// A type with one of these words as its whole name says little. If there were several such types,
/// a reader could not tell them apart.
#[test]
fn no_two_types_have_the_same_general_name_such_as_state() {
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

/// The crate of a source file: its folder `src`, or the folder of a test or bench. A test or bench
/// may also be a single file.
fn crate_of(file: &Path) -> &Path {
    if let Some(sources) = file.ancestors().find(|folder| folder.ends_with("src")) {
        return sources;
    }
    let folder = file.parent().unwrap();
    let is_single = folder.ends_with("tests") || folder.ends_with("benches");
    if is_single { file } else { folder }
}

/// A reader who sees the name of a type in a crate must know which type it is. The exceptions are
/// conventional names of which a module has only one.
#[test]
fn no_two_types_of_a_crate_have_the_same_name() {
    const CONVENTIONAL: [&str; 3] = ["Arguments", "Error", "Options"];
    let mut found: BTreeMap<(PathBuf, String), Vec<PathBuf>> = BTreeMap::new();
    for file in all_sources() {
        let text = fs::read_to_string(&file).unwrap();
        // Associated types and types in functions are indented.
        let lines = text.lines().filter(|line| !line.starts_with(' '));
        let top_level = lines.collect::<Vec<_>>().join("\n");
        for name in declared_types(&top_level) {
            if !CONVENTIONAL.contains(&name) {
                let key = (crate_of(&file).to_owned(), name.to_owned());
                found.entry(key).or_default().push(file.clone());
            }
        }
    }
    found.retain(|_, files| files.len() > 1);
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
fn functions_that_are_named_as_questions_but_borrow_self_mutably_are_found() {
    // The next test also searches this file, so this text has `MUT` instead of `&mut self`.
    let source = "fn is_a(&self) -> bool;\nfn b(MUT) {}\nfn must_c(\n    MUT,\n) {}\nfn can_d(MUT) -> bool;\nfn may_e() {}\n";
    let source = source.replace("MUT", "&mut self");
    assert_eq!(questions_with_side_effects(&source), ["must_c", "can_d"]);
}

/// A function whose name begins like a question, such as `is_` or `may_`, must have no side effect,
/// so it must not need `&mut self`. The only exception is [`Stream::has_ended`], which reads from a
/// connection. If it reads a byte, it returns true, and the connection is not used again.
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
