//! Checks that the documents list every metric, warning and error, and that the commands in the
//! documents are valid. Also checks that the sources and tests exist that `docs/transparency.md`
//! and `docs/security.md` name.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
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
            "docs/metrics.md has no row for {}",
            name.as_str()
        );
    }
}

/// Each metric must be in a Grafana panel or a Prometheus rule. The script
/// `docker/prometheus/check` also queries each panel, but the script runs rarely.
#[test]
fn every_metric_is_in_a_panel_or_a_rule() {
    let docker = root().join("docker");
    let dashboards = fs::read_dir(docker.join("grafana/dashboards")).unwrap();
    let dashboards = dashboards.map(|entry| entry.unwrap().path());
    let rules = ["rules.yml", "alerts.yml"].map(|name| docker.join("prometheus").join(name));
    let texts = dashboards
        .chain(rules)
        .map(|path| fs::read_to_string(path).unwrap());
    let texts: Vec<_> = texts.collect();
    let named: Vec<_> = texts
        .iter()
        .flat_map(|text| metrics_in_rules(text))
        .collect();
    for metric in MetricName::ALL {
        let is_used = named.iter().any(|name| is_series_of(name, metric.as_str()));
        assert!(is_used, "{} is in no panel and no rule", metric.as_str());
    }
}

/// `tests/metrics.txt` has the name, kind and labels of each metric of an earlier Seawall version.
/// These must not change, because users' dashboards depend on them.
#[test]
fn metrics_keep_their_names_kinds_and_labels() {
    let text = document("metrics.md");
    let earlier = fs::read_to_string(root().join("tests/metrics.txt")).unwrap();
    let mut metrics = 0;
    for line in earlier.lines() {
        let mut words = line.split(' ');
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let metric = MetricName::ALL.iter().find(|m| m.as_str() == name);
        let metric = metric.unwrap_or_else(|| panic!("the metric {name} no longer exists"));
        assert_eq!(
            format!("{:?}", metric.kind()).to_lowercase(),
            kind,
            "{name}"
        );
        let labels: Vec<_> = words.flat_map(|labels| labels.split(',')).collect();
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let row = format!("| `{name}` | {} |", labels.join(", ")).replace("|  |", "| |");
        assert!(
            text.contains(&row),
            "docs/metrics.md has no row that begins with {row}"
        );
        metrics += 1;
    }
    assert!(metrics >= 49, "expected at least 49 metrics, got {metrics}");
}

#[test]
fn every_warning_and_error_is_documented() {
    let text = document("operations.md");
    let mut files = Vec::new();
    sources(&root().join("proxy/src"), &mut files);
    sources(&root().join("proxy/crates"), &mut files);
    let mut phrases = 0;
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        for level in ["warn", "error"] {
            for event in source.split(&format!("tracing::{level}!(")).skip(1) {
                // The constant phrase of the event is the last string literal of the call.
                let call = event.split(");").next().unwrap();
                let phrase = call.rsplit('"').nth(1).unwrap();
                assert!(
                    text.contains(&format!("| {phrase} | {level} |")),
                    "docs/operations.md has no row for the {level} {phrase:?}"
                );
                phrases += 1;
            }
        }
    }
    assert!(
        phrases >= 10,
        "expected at least 10 warnings and errors, got {phrases}"
    );
}

/// The text of the section with the heading `## name` in the page `text`.
fn section<'a>(text: &'a str, name: &str) -> &'a str {
    let start = format!("{name}\n");
    let found = text.split("\n## ").find(|part| part.starts_with(&start));
    found.unwrap_or_else(|| panic!("no section {name}"))
}

/// The metrics in the expressions of Prometheus rules or of a dashboard. Recorded series (`a:b:c`)
/// are not metrics of Seawall, so they are excluded.
fn metrics_in_rules(rules: &str) -> Vec<&str> {
    let is_name = |line: &&str| line.contains("- name:") || line.contains("- record:");
    let mut found = Vec::new();
    for line in rules.lines().filter(|line| !is_name(line)) {
        for (start, _) in line.match_indices("seawall_") {
            let name = &line[start..];
            let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let (name, rest) = name.split_at(end.unwrap_or(name.len()));
            let is_recorded = line[..start].ends_with(':') || rest.starts_with(':');
            if !is_recorded {
                found.push(name);
            }
        }
    }
    found
}

/// True if a series of this name belongs to the metric. A histogram has several series.
fn is_series_of(name: &str, metric: &str) -> bool {
    let suffix = name.strip_prefix(metric);
    suffix.is_some_and(|suffix| ["", "_bucket", "_count", "_sum"].contains(&suffix))
}

#[test]
fn every_prometheus_rule_uses_existing_metrics() {
    let is_known = |name: &str| {
        let mut metrics = MetricName::ALL.iter().map(|metric| metric.as_str());
        metrics.any(|metric| is_series_of(name, metric))
    };
    for file in ["rules.yml", "alerts.yml"] {
        let path = root().join("docker/prometheus").join(file);
        let rules = fs::read_to_string(path).unwrap();
        let names = metrics_in_rules(&rules);
        assert!(
            names.len() >= 10,
            "{file}: expected at least 10 metrics, got {names:?}"
        );
        let unknown: Vec<_> = names.iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{file}: unknown metrics {unknown:?}");
    }
}

#[test]
fn every_alert_is_listed_and_has_a_runbook() {
    let (metrics, operations) = (document("metrics.md"), document("operations.md"));
    let list = section(&metrics, "Alerts to start with");
    let headings = operations
        .lines()
        .filter_map(|line| line.strip_prefix("### "));
    let anchors: Vec<_> = headings
        .map(|heading| heading.to_lowercase().replace(':', "").replace(' ', "-"))
        .collect();
    let rules = fs::read_to_string(root().join("docker/prometheus/alerts.yml")).unwrap();
    let mut count = 0;
    for rule in rules.split("- alert: ").skip(1) {
        let (alert, rest) = rule.split_once('\n').unwrap();
        assert!(
            list.contains(&format!("| `{alert}` |")),
            "docs/metrics.md does not list {alert}"
        );
        let (_, anchor) = rest.split_once("runbook_url: docs/operations.md#").unwrap();
        let anchor = anchor.lines().next().unwrap();
        assert!(
            anchors.iter().any(|known| known == anchor),
            "{alert}: docs/operations.md has no heading for #{anchor}"
        );
        count += 1;
    }
    assert_eq!(list.matches("| `Seawall").count(), count);
    assert!(count >= 15, "expected at least 15 alerts, got {count}");
}

/// The text of a source file. `name` is the file's name in the documents: a path relative to
/// `tests/e2e`, `proxy/src` or the repository's root, or a path that begins with the name of a
/// crate (`wire/header.rs`).
fn source(name: &str) -> String {
    let folders = ["tests/e2e", "proxy/src", "."];
    let mut paths = folders
        .map(|folder| root().join(folder).join(name))
        .to_vec();
    if let Some((crate_name, file)) = name.split_once('/') {
        let folder = root().join("proxy/crates").join(crate_name);
        paths.push(folder.join("src").join(file));
    }
    let path = paths.into_iter().find(|path| path.exists());
    fs::read_to_string(path.unwrap_or_else(|| panic!("no source {name}"))).unwrap()
}

#[test]
fn every_source_and_test_named_in_transparency_md_and_security_md_exists() {
    for (page, least) in [("transparency.md", 40), ("security.md", 12)] {
        let text = document(page);
        let mut tests = 0;
        for quoted in text.split('`').skip(1).step_by(2) {
            if let Some((file, test)) = quoted.split_once(".rs: ") {
                let source = source(&format!("{file}.rs"));
                assert!(
                    source.contains(&format!("fn {test}(")),
                    "{page}: no test {quoted}"
                );
                tests += 1;
            } else if quoted.ends_with(".rs") {
                source(quoted);
            }
        }
        assert!(
            tests >= least,
            "expected at least {least} tests in {page}, got {tests}"
        );
    }
}

#[test]
fn the_docs_name_a_test_for_the_limit_of_each_shared_resource() {
    let text = document("security.md");
    let section = text
        .split("\n## ")
        .find(|s| s.starts_with("Shared resources"));
    let rows = section
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| "));
    let mut resources = 0;
    for row in rows.skip(1) {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        assert!(tests.contains(".rs: "), "no test in the row {row}");
        resources += 1;
    }
    assert!(
        resources >= 20,
        "expected at least 20 rows, got {resources}"
    );
}

/// The arguments of each command `seawall` in a page, also if the page writes it as
/// `cargo run --release -- …`. A command is in backticks, or on a line of its own.
fn commands(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines();
    let quoted = lines
        .clone()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let mut commands = Vec::new();
    for line in lines.chain(quoted) {
        let called = line.strip_prefix("seawall ");
        let built = || line.strip_prefix("cargo run --release -- ");
        let Some(arguments) = called.or_else(built) else {
            continue;
        };
        let words = arguments.split_whitespace();
        let words = words.take_while(|word| !["#", ">"].contains(word));
        commands.push(words.map(|word| word.trim_matches('"')).collect());
    }
    commands
}

/// The README and the pages in `docs/`.
fn pages() -> Vec<PathBuf> {
    let folder = fs::read_dir(root().join("docs")).unwrap();
    let pages = folder.map(|entry| entry.unwrap().path());
    let pages = pages.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.chain([root().join("README.md")]).collect()
}

/// The test adds `--help` to each command. With `--help`, a command fails if it contains an unknown
/// subcommand or option. Otherwise it only prints its help. The tests in `e2e/commands.rs` run the
/// commands without `--help`.
#[test]
fn every_command_in_the_docs_is_valid() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for arguments in commands(&text) {
            let mut command = Command::new(env!("CARGO_BIN_EXE_seawall"));
            let output = command.args(&arguments).arg("--help").output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{}: {arguments:?}: {error}",
                page.display()
            );
            count += 1;
        }
    }
    assert!(count >= 30, "expected at least 30 commands, got {count}");
}

/// The names of the tests in a target of `tests/`, with their modules.
fn test_names(target: &str) -> Vec<String> {
    let folder = root().join("tests").join(target);
    let mut files = Vec::new();
    match folder.join("main.rs").exists() {
        true => sources(&folder, &mut files),
        false => files.push(folder.with_extension("rs")),
    }
    let mut names = Vec::new();
    for file in files {
        let path = file.strip_prefix(&folder).unwrap_or(Path::new(""));
        let path = path.with_extension("");
        let modules: Vec<_> = path.iter().filter_map(|module| module.to_str()).collect();
        let text = fs::read_to_string(&file).unwrap();
        let tests = text.split("#[test]");
        let tests = tests.flat_map(|part| part.split("#[tokio::test"));
        for test in tests.skip(1) {
            let rest = test.split_once("fn ").map(|(_, rest)| rest);
            let name = rest.and_then(|rest| rest.split('(').next());
            names.extend(name.map(|name| format!("{}::{name}", modules.join("::"))));
        }
    }
    names
}

/// If no name of a test contains the filter, `cargo test` runs no test and still succeeds. So only
/// this test notices a wrong filter in the docs.
#[test]
fn every_test_filter_in_the_docs_is_part_of_the_name_of_a_test() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for line in text.lines() {
            let Some((_, command)) = line.split_once("cargo test --test ") else {
                continue;
            };
            let command = command.split(['`', '#']).next().unwrap();
            let Some((target, arguments)) = command.split_once(" -- ") else {
                continue;
            };
            let names = test_names(target);
            let words = arguments.split_whitespace();
            for filter in words.filter(|word| !word.starts_with("--")) {
                let is_named = names.iter().any(|name| name.contains(filter));
                assert!(
                    is_named,
                    "{}: no test of {target} is named {filter}",
                    page.display()
                );
                count += 1;
            }
        }
    }
    assert!(count >= 5, "expected at least 5 filters, got {count}");
}
