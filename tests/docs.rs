//! The documents are complete: metrics, warnings and errors, and the tests of behaviour that
//! clients can notice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use seawall::observe::MetricName;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_metric_is_documented() {
    let text = document("metrics.md");
    for name in MetricName::ALL {
        assert!(
            text.contains(&format!("| `{}` |", name.as_str())),
            "{}",
            name.as_str()
        );
    }
}

#[test]
fn every_warning_and_error_is_documented() {
    let text = document("operations.md");
    let mut files = Vec::new();
    sources(&root().join("proxy/src"), &mut files);
    let mut phrases = 0;
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        for level in ["warn", "error"] {
            for event in source.split(&format!("tracing::{level}!(")).skip(1) {
                // The constant phrase of the event is the last literal of the call.
                let call = event.split(");").next().unwrap();
                let phrase = call.rsplit('"').nth(1).unwrap();
                assert!(
                    text.contains(&format!("| {phrase} | {level} |")),
                    "{phrase} ({level})"
                );
                phrases += 1;
            }
        }
    }
    assert!(phrases >= 10, "too few events found: {phrases}");
}

#[test]
fn every_test_named_in_transparency_exists() {
    let text = document("transparency.md");
    let mut named = 0;
    for quoted in text.split('`').skip(1).step_by(2) {
        let Some((file, test)) = quoted.split_once(".rs: ") else {
            continue;
        };
        let path = root().join("tests/e2e").join(format!("{file}.rs"));
        let source = fs::read_to_string(&path).unwrap_or_else(|_| panic!("{}", path.display()));
        assert!(source.contains(&format!("fn {test}(")), "{quoted}");
        named += 1;
    }
    assert!(named >= 10, "too few tests found: {named}");
}
