//! Checks that the tables in `docs/configuration.md` and the file `examples/full.toml` equal the
//! texts that the declarations of the keys generate. Also checks that all examples load.

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use seawall_config::{
    Concurrency, KEYS, Key, KeyKind, Overrides, SECTIONS, Secret, Section, Settings, Sources, load,
};

#[test]
fn tables_in_configuration_md_equal_the_tables_generated_from_the_keys() {
    let path = folder().join("../docs/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let mut updated = String::new();
    let mut written = Vec::new();
    let mut is_in_table = false;
    for line in text.lines() {
        is_in_table &= !line.is_empty();
        if !is_in_table {
            updated += &format!("{line}\n");
        }
        let marked = line.strip_prefix("<!-- keys of ");
        if let Some(section) = marked.and_then(|rest| rest.strip_suffix(" -->")) {
            is_in_table = true;
            let keys = keys_of(section);
            updated += &table(&keys);
            written.extend(keys.iter().map(|key| key.path));
        }
    }
    let paths: Vec<&str> = KEYS.iter().map(|key| key.path).collect();
    assert_eq!(
        written, paths,
        "each section needs a line `<!-- keys of … -->`, in the order of KEYS"
    );
    expect_up_to_date(&path, &text, &updated);
}

#[test]
fn full_toml_equals_the_example_generated_from_the_keys() {
    let path = folder().join("examples/full.toml");
    let text = fs::read_to_string(&path).unwrap();
    expect_up_to_date(&path, &text, &full_example());
}

fn expect_up_to_date(path: &Path, text: &str, updated: &str) {
    if std::env::var_os("SEAWALL_BLESS").is_some() {
        fs::write(path, updated).expect("the repository is writable");
        return;
    }
    for (line, updated) in text.lines().zip(updated.lines()) {
        assert_eq!(line, updated, "{}: {UPDATE}", path.display());
    }
    assert!(text == updated, "{}: {UPDATE}", path.display());
}

/// The keys of `section` and of the sections below it. One table in `docs/configuration.md`
/// describes these keys.
fn keys_of(section: &str) -> Vec<&'static Key> {
    let is_of = |key: &&Key| key.path.split('.').next() == Some(section);
    KEYS.iter().filter(is_of).collect()
}

fn table(keys: &[&Key]) -> String {
    let mut text = "| key | default | unit | allowed | live or restart | meaning |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    for key in keys {
        let default = key.default.map(|default| format!("`{default}`"));
        let default = default.as_deref().unwrap_or("–");
        let unit = if key.unit.is_empty() { "–" } else { key.unit };
        text += &format!(
            "| `{}` | {default} | {unit} | {} | {} | {} |\n",
            key.path, key.kind, key.change, key.meaning
        );
    }
    text
}

fn full_example() -> String {
    let mut text = comment(
        "Every key with its default. Explanations begin with `##`. Keys without a default are \
         commented out with `#`. docs/configuration.md lists the unit and the bounds of each key, \
         and when a change takes effect.",
    );
    let mut earlier = "";
    for section in SECTIONS.iter() {
        if section.path != earlier {
            text += &format!("\n{}{}\n", comment(section.about), header(section));
            earlier = section.path;
        }
        section.keys.iter().for_each(|key| {
            text += &comment(&explanation(key));
            text += &format!("{}\n", line(section, key));
        });
    }
    text
}

fn header(section: &Section) -> String {
    let path = section.path.replace("[]", "");
    let header = match section.path.ends_with("[]") {
        true => format!("[[{path}]]"),
        false => format!("[{path}]"),
    };
    commented_out(section.is_optional, &header)
}

fn explanation(key: &Key) -> String {
    match key.kind {
        KeyKind::Choice { .. }
        | KeyKind::IntegerOr { .. }
        | KeyKind::Addresses
        | KeyKind::AdminAddress => {
            format!("{} Allowed: {}.", key.meaning, key.kind)
        }
        _ => key.meaning.to_owned(),
    }
}

fn line(section: &Section, key: &Key) -> String {
    // The connection string is the only required value.
    let is_given = key.default.is_some() || key.kind == KeyKind::ConnectionString;
    let value = key
        .default
        .or(key.example)
        .expect("a key has a default or an example");
    let line = format!("{} = {}", key.name(), toml(key.kind, value));
    commented_out(section.is_optional || !is_given, &line)
}

fn toml(kind: KeyKind, text: &str) -> String {
    match kind {
        KeyKind::Integer { .. }
        | KeyKind::Percent
        | KeyKind::Boolean
        | KeyKind::ShapeThresholds { .. } => text.to_owned(),
        _ => format!("{text:?}"),
    }
}

fn commented_out(is_out: bool, line: &str) -> String {
    let mark = if is_out { "# " } else { "" };
    format!("{mark}{line}")
}

/// The text as a TOML comment with the prefix `##`, in lines of at most 100 columns.
fn comment(text: &str) -> String {
    let mut lines = vec!["##".to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if line.chars().count() + 1 + word.chars().count() > 100 {
            lines.push(format!("## {word}"));
        } else {
            *line += &format!(" {word}");
        }
    }
    format!("{}\n", lines.join("\n"))
}

/// The slow log is on if its section exists, even if the section contains only default values. By
/// default, the section does not exist.
#[test]
fn a_file_with_all_defaults_except_those_of_the_slow_log_gives_the_default_settings() {
    let is_of_slow_log = |key: &&Key| key.path.starts_with(SLOW_LOG);
    assert_eq!(
        Settings::from_toml(&defaults_of(|key| !is_of_slow_log(&key))).unwrap(),
        Settings::default_for("mongodb://server/").unwrap(),
    );
}

/// The slow log is on if its section exists, even if the section is empty.
#[test]
fn a_file_with_all_defaults_and_a_file_with_an_empty_slow_log_section_give_equal_settings() {
    let of_section = Settings::from_toml(&format!("{DEPLOYMENT}[slow_log]\n")).unwrap();
    assert!(of_section.slow_log.is_some());
    assert_eq!(
        Settings::from_toml(&defaults_of(|_| true)).unwrap(),
        of_section
    );
}

/// The text of a configuration file that sets keys to their defaults. It contains every key that
/// has a default and that `is_wanted` accepts. It does not contain the keys of `[listen.tls]` and
/// `[admin.tls]`, or the keys of lists of tables.
fn defaults_of(is_wanted: impl Fn(&Key) -> bool) -> String {
    let mut text = DEPLOYMENT.to_owned();
    // A section `tls` with at least one key must also have a certificate and its private key.
    let tls = ["listen.tls.", "admin.tls."];
    let is_tls = |key: &&Key| tls.iter().any(|section| key.path.starts_with(section));
    let is_optional = |key: &&Key| key.path.contains("[]") || is_tls(key);
    let keys = KEYS.iter().filter(|key| !is_optional(key));
    for key in keys.filter(|key| is_wanted(key)) {
        if let Some(default) = key.default {
            text += &format!("{} = {}\n", key.path, toml(key.kind, default));
        }
    }
    text
}

#[test]
fn every_numeric_key_accepts_its_minimum_and_its_maximum() {
    let numbers = |pick: fn(i64, i64) -> i64| {
        // Some keys may be set only in relay mode.
        let mut text = DEPLOYMENT.to_owned() + "deployment.mode = \"relay\"\n";
        for key in KEYS.iter().filter(|key| !key.path.contains("[]")) {
            if let KeyKind::Integer { min, max } | KeyKind::IntegerOr { min, max, .. } = key.kind {
                text += &format!("{} = {}\n", key.path, pick(min, max));
            }
        }
        Settings::from_toml(&text).unwrap()
    };
    let fixed = |number| Concurrency::Fixed(NonZeroU32::new(number).unwrap());
    let smallest = numbers(|min, _| min);
    assert_eq!(smallest.pool.max_idle_time, None);
    assert_eq!(smallest.pool.max_life_time, None);
    assert_eq!(smallest.runtime.worker_threads, None);
    assert_eq!(smallest.pool.max_pool_size.get(), 1);
    assert_eq!(smallest.pool.concurrency, fixed(1));
    let largest = numbers(|_, max| max);
    assert_eq!(largest.pool.max_pool_size.get(), 1_000_000);
    assert_eq!(largest.pool.concurrency, fixed(1_000_000));
    assert_eq!(smallest.pulse.interval.as_millis(), 100);
    assert_eq!(largest.pulse.interval.as_millis(), 60_000);
    assert_eq!(smallest.slow_log.unwrap().max_lines_per_second, None);
}

#[test]
fn every_example_file_loads() {
    let mut names: Vec<String> = fs::read_dir(folder().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "full.toml",
            "listeners.toml",
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
fn minimal_and_full_examples_equal_the_default_settings() {
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
fn full_example_with_all_keys_uncommented_has_only_expected_problems() {
    let text: String = full_example()
        .lines()
        .filter(|line| !line.starts_with("##"))
        .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line)))
        .collect();
    let problems = Settings::from_toml(&text).unwrap_err();
    // These problems are expected: the files do not exist, the SCRAM keys are not base64, and some
    // keys exclude each other.
    for problem in &problems {
        let is_expected = problem.key.ends_with("_file")
            || problem.key.ends_with("_key")
            || problem.key.ends_with("salt")
            || problem.key.starts_with("auth.users")
            || problem.key.starts_with("listen.")
            || problem.key.ends_with("proxy_networks");
        assert!(is_expected, "{problem}");
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The prefix of the slow log's keys. Without its section, the slow log is off.
const SLOW_LOG: &str = "slow_log.";

const UPDATE: &str =
    "run `SEAWALL_BLESS=1 cargo test -p seawall-config --test documentation` to update it";

const DEPLOYMENT: &str = "deployment.uri = \"mongodb://server/\"\n";
