//! The documents tell of everything that there is: metrics, and log messages of note.

#![allow(clippy::unwrap_used, reason = "a test tells by panicking")]

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
                // The phrase is the last literal of the call.
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
    assert!(phrases >= 10, "the search for events finds them: {phrases}");
}
