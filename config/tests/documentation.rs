//! `docs/configuration.md`, `examples/` and the schema agree.

use std::fs;
use std::path::{Path, PathBuf};

use seawall_config::{KEYS, Key, Kind, Overrides, Secret, Settings, Sources, load};

#[test]
fn documentation_has_exactly_the_keys_of_the_schema() {
    let text = fs::read_to_string(folder().join("../docs/configuration.md")).unwrap();
    let documented: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let expected: Vec<String> = KEYS.iter().map(row).collect();
    for (documented, expected) in documented.iter().zip(&expected) {
        assert_eq!(documented, expected);
    }
    assert_eq!(documented.len(), expected.len());
}

#[test]
fn defaults_in_the_schema_equal_the_settings_defaults() {
    let is_of_slow_log = |key: &&Key| key.path.starts_with(SLOW_LOG);
    assert_eq!(
        Settings::from_toml(&defaults_of(|key| !is_of_slow_log(&key))).unwrap(),
        Settings::default_for("mongodb://server/").unwrap(),
    );
}

#[test]
fn slow_log_defaults_in_the_schema_equal_the_settings_defaults() {
    let of_section = Settings::from_toml(&format!("{DEPLOYMENT}[slow_log]\n")).unwrap();
    assert!(of_section.slow_log.is_some());
    assert_eq!(
        Settings::from_toml(&defaults_of(|_| true)).unwrap(),
        of_section
    );
}

/// A file with the default of every key that `is_wanted` accepts.
fn defaults_of(is_wanted: impl Fn(&Key) -> bool) -> String {
    let mut text = DEPLOYMENT.to_owned();
    let keys = KEYS.iter().filter(|key| !key.path.contains("[]"));
    for key in keys.filter(|key| is_wanted(key)) {
        if let Some(default) = key.default {
            let is_bare = matches!(
                key.kind,
                Kind::Integer { .. } | Kind::Percent | Kind::Boolean
            );
            let value = if is_bare {
                default.to_owned()
            } else {
                format!("{default:?}")
            };
            text += &format!("{} = {value}\n", key.path);
        }
    }
    text
}

#[test]
fn every_number_accepts_its_minimum_and_maximum() {
    let numbers = |pick: fn(i64, i64) -> i64| {
        let mut text = DEPLOYMENT.to_owned();
        for key in KEYS.iter().filter(|key| !key.path.contains("[]")) {
            if let Kind::Integer { min, max } = key.kind {
                text += &format!("{} = {}\n", key.path, pick(min, max));
            }
        }
        Settings::from_toml(&text).unwrap()
    };
    let smallest = numbers(|min, _| min);
    assert_eq!(smallest.pool.max_idle_time, None);
    assert_eq!(smallest.pool.max_life_time, None);
    assert_eq!(smallest.runtime.worker_threads, None);
    assert_eq!(smallest.pool.max_pool_size.get(), 1);
    let largest = numbers(|_, max| max);
    assert_eq!(largest.pool.max_pool_size.get(), 1_000_000);
    assert_eq!(smallest.pulse.interval.as_millis(), 100);
    assert_eq!(largest.pulse.interval.as_millis(), 60_000);
    assert_eq!(smallest.slow_log.unwrap().max_lines_per_second, None);
}

#[test]
fn every_example_loads() {
    let mut names: Vec<String> = fs::read_dir(folder().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "full.toml",
            "minimal.toml",
            "replica-set.toml",
            "sharded.toml",
            "sidecar.toml"
        ]
    );
    for name in names {
        let settings = load(&Sources {
            file: Some(folder().join("examples").join(&name)),
            ..Sources::default()
        });
        assert!(settings.is_ok(), "{name}: {}", settings.unwrap_err());
    }
}

#[test]
fn minimal_and_full_examples_are_all_defaults() {
    for name in ["minimal.toml", "full.toml"] {
        let settings = load(&Sources {
            file: Some(folder().join("examples").join(name)),
            overrides: Overrides {
                deployment: Some(Secret::new("mongodb://server/".to_owned())),
                ..Overrides::default()
            },
            ..Sources::default()
        });
        let defaults = Settings::default_for("mongodb://server/").unwrap();
        assert_eq!(settings.unwrap(), defaults, "{name}");
    }
}

#[test]
fn full_example_has_every_key_with_its_default() {
    let text = fs::read_to_string(folder().join("examples/full.toml")).unwrap();
    let named = keys_named(&text);
    let paths: Vec<&str> = KEYS.iter().map(|key| key.path).collect();
    let named_paths: Vec<&str> = named.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(named_paths, paths);
    for (key, (path, value)) in KEYS.iter().zip(&named) {
        if let Some(default) = key.default {
            assert_eq!(value.trim_matches('"'), default, "{path}");
        }
    }
}

/// The keys of a file with their values, including commented-out keys. Prose comments begin with
/// two `#`.
fn keys_named(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("##")) {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if line.starts_with('[') {
            let is_list = line.starts_with("[[");
            section = line.trim_matches(['[', ']']).to_owned();
            section = section.replace("auth.users", "auth.users[]");
            assert_eq!(is_list, section.ends_with("[]"), "{line}");
        } else if let Some((name, value)) = line.split_once(" = ") {
            keys.push((format!("{section}.{name}"), value.to_owned()));
        }
    }
    keys
}

fn row(key: &Key) -> String {
    let default = key
        .default
        .map_or_else(|| "–".to_owned(), |default| format!("`{default}`"));
    let unit = if key.unit.is_empty() { "–" } else { key.unit };
    format!(
        "| `{}` | {default} | {unit} | {} | {} | {} |",
        key.path, key.kind, key.change, key.meaning
    )
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The section that is off if it is absent.
const SLOW_LOG: &str = "slow_log.";

const DEPLOYMENT: &str = "deployment.uri = \"mongodb://server/\"\n";
