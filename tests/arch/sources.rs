//! The source files of the repository, and their texts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// For each crate under `proxy/crates`, by its name: the folder of its sources.
pub(crate) fn crates() -> BTreeMap<String, PathBuf> {
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

pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    files(folder, &["rs"], found);
}

/// Adds the files in `folder` with one of the extensions to `found`. Skips hidden folders and
/// folders that tools create.
pub(crate) fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
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
pub(crate) fn extension(file: &Path) -> &str {
    let extension = file.extension().and_then(|extension| extension.to_str());
    extension.unwrap_or_default()
}

pub(crate) fn folders(folder: &Path, found: &mut Vec<PathBuf>) {
    found.push(folder.to_owned());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            folders(&path, found);
        }
    }
}

/// All Rust sources of the repository.
pub(crate) fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["config", "proxy", "tests", "benches"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(
        files.len() > 100,
        "expected more than 100 files, got {}",
        files.len()
    );
    files
}

/// The text of a source file without its comments.
pub(crate) fn without_comments(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of a source before its inline unit tests.
pub(crate) fn without_unit_tests(source: &str) -> &str {
    let mut attributes = source.match_indices("#[cfg(test)]\n");
    let inline = attributes.find(|(at, attribute)| {
        let rest = &source[at + attribute.len()..];
        let item = rest.lines().next().unwrap_or_default();
        item.ends_with('{') && item.split_whitespace().any(|word| word == "mod")
    });
    inline.map_or(source, |(at, _)| &source[..at])
}

/// All words of Rust code that can be identifiers.
pub(crate) fn identifiers(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).collect()
}
