//! The files of a module do not use each other in cycles.
//!
//! Test modules are ignored. A module's root file (`a.rs` or `a/mod.rs`) is not compared with the
//! files in the module's folder: a root file may use its children, and they may use the root.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::{
    paths::{from_root, module_of, paths_to_siblings, used_paths},
    sources::{crates, folders, root, sources},
};

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
    // For each name that the root imports or re-exports: the sibling from which the name comes.
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
        if module.iter().any(|name| is_for_tests(name)) {
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
            if let Some(used) = used.filter(|used| *used != from && !is_for_tests(used)) {
                uses.entry(from.clone()).or_default().insert(used.clone());
            }
        }
    }
    uses
}

/// True if the module with this name contains only tests.
fn is_for_tests(name: &str) -> bool {
    name == "tests" || name.ends_with("_tests")
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
    assert!(total > 200, "expected more than 200 uses, got {total}");
    assert!(circles.is_empty(), "cyclic uses of files: {circles:#?}");
}
