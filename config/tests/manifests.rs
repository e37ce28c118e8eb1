//! Checks that the manifests in `docker/` use only keys that exist, with values that are allowed.

use std::fs;
use std::path::{Path, PathBuf};

use seawall_config::{KEYS, Key, ListenAddress, Overrides, Secret, Settings, Sources, load};

/// A Seawall variable in a manifest. `value` is `None` if the manifest contains no literal value.
#[derive(Debug)]
struct Variable {
    name: String,
    value: Option<String>,
}

#[test]
fn every_variable_in_the_manifests_sets_a_known_key() {
    let known: Vec<String> = KEYS.iter().filter_map(Key::variable).collect();
    let mut count = 0;
    for (path, text) in manifests() {
        for variable in variables(&text) {
            let is_known = known.contains(&variable.name);
            assert!(is_known, "{}: unknown {}", path.display(), variable.name);
            count += 1;
        }
    }
    assert!(count >= 40, "too few variables found: {count}");
}

#[test]
fn every_value_of_a_variable_in_the_manifests_is_allowed() {
    // Some variables name files that exist only in a container. The test replaces each of them by
    // this one file. Its content is a connection string, because `load` checks the content of the
    // deployment's `uri_file`; the content of the other files has no effect on this test.
    let mounted = std::env::temp_dir().join(format!("seawall-manifests-{}", std::process::id()));
    fs::write(&mounted, "mongodb://server/").unwrap();
    let mut count = 0;
    for (path, text) in manifests() {
        let given = variables(&text).into_iter();
        let given = given.filter_map(|variable| Some((variable.name, variable.value?)));
        let environment: Vec<(String, String)> = given
            .map(|(name, value)| match value.starts_with("/etc/seawall/") {
                true => (name, mounted.display().to_string()),
                false => (name, value),
            })
            .collect();
        count += environment.len();
        let names_deployment = environment
            .iter()
            .any(|(name, _)| name.starts_with("SEAWALL_DEPLOYMENT__URI"));
        let deployment = Secret::new("mongodb://server/".to_owned());
        let loaded = load(&Sources {
            environment,
            overrides: Overrides {
                deployment: (!names_deployment).then_some(deployment),
                ..Overrides::default()
            },
            ..Sources::default()
        });
        assert!(
            loaded.is_ok(),
            "{}: {}",
            path.display(),
            loaded.unwrap_err()
        );
    }
    fs::remove_file(&mounted).unwrap();
    assert!(count >= 25, "too few values found: {count}");
}

#[test]
fn every_configuration_in_the_manifests_is_valid() {
    let mut count = 0;
    for (path, text) in manifests() {
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension == "toml");
        let configuration = match is_toml {
            true => Some(text),
            false => config_block(&text),
        };
        let Some(mut configuration) = configuration else {
            continue;
        };
        // A manifest without `uri` gives the connection string in a variable, not in the
        // configuration file.
        if !configuration.contains("uri =") {
            configuration += "\n[deployment]\nuri = \"mongodb://server/\"\n";
        }
        let loaded = Settings::from_toml(&configuration);
        assert!(
            loaded.is_ok(),
            "{}: {}",
            path.display(),
            loaded.unwrap_err()
        );
        count += 1;
    }
    assert!(count >= 4, "too few configurations found: {count}");
}

#[test]
fn environment_variables_override_the_default_configuration_of_the_image() {
    let docker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker");
    // Flags in the default command would override the variables.
    let dockerfile = fs::read_to_string(docker.join("Dockerfile")).unwrap();
    let command = r#"CMD ["serve", "--config", "/etc/seawall/seawall.toml"]"#;
    assert!(dockerfile.lines().any(|line| line == command));

    let listen_addresses = |variables: &[(&str, &str)]| {
        let environment = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        load(&Sources {
            file: Some(docker.join("seawall.toml")),
            environment: environment.collect(),
            ..Sources::default()
        })
        .unwrap()
        .listen
        .addresses
    };
    let deployment = ("SEAWALL_DEPLOYMENT__URI", "mongodb://server/");
    let address = |text: &str| [ListenAddress::Tcp(text.to_owned())];
    assert_eq!(listen_addresses(&[deployment]), address("0.0.0.0:27018"));
    let listen = ("SEAWALL_LISTEN__ADDRESS", "127.0.0.1:27018");
    assert_eq!(
        listen_addresses(&[deployment, listen]),
        address("127.0.0.1:27018")
    );
}

/// All files in `docker/` with their texts, except `seawall.profdata`, which is a binary file.
fn manifests() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker");
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder exists in the repository") {
            let path = entry.expect("the entry exists in the repository").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with("seawall.profdata") => {}
                false => {
                    let text = fs::read_to_string(&path).expect("manifests are text");
                    found.push((path, text));
                }
            }
        }
    }
    found
}

/// Finds the environment variables of Seawall whose names consist of a section and a key. The forms
/// of a variable and its value are `NAME=value`, `NAME: value`, and a line `- name: NAME` before a
/// line `value: value`.
fn variables(text: &str) -> Vec<Variable> {
    // A backslash continues a quoted value in the next line.
    let lines: Vec<String> = joined(text).lines().map(str::to_owned).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        for (start, _) in line.match_indices("SEAWALL_") {
            let (_, rest) = line.split_at(start);
            let is_of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
            let (name, rest) = rest.split_at(end);
            if !name.contains("__") {
                continue;
            }
            let next = lines.get(index + 1).map_or("", |line| line.trim());
            let value = match rest.chars().next() {
                Some('=') => rest
                    .split_whitespace()
                    .next()
                    .and_then(|rest| rest.get(1..)),
                Some(':') => rest.get(1..),
                None if line.trim().starts_with("- name:") => next.strip_prefix("value:"),
                _ => None,
            };
            found.push(Variable {
                name: name.to_owned(),
                value: value.and_then(written),
            });
        }
    }
    found
}

fn joined(text: &str) -> String {
    let mut joined = String::new();
    let mut continues = false;
    for line in text.lines() {
        let line = if continues { line.trim_start() } else { line };
        continues = line.contains("SEAWALL_") && line.ends_with('\\') && line.contains(": \"");
        match continues {
            true => joined += line.trim_end_matches('\\'),
            false => joined += &format!("{line}\n"),
        }
    }
    joined
}

/// Returns the value without quotes, with each Compose variable replaced by its default. `None` if
/// the value is empty, if a Compose variable has no default, or if a template computes the value.
fn written(value: &str) -> Option<String> {
    let value = value.trim().trim_end_matches('.').trim_matches('"');
    let mut parts = value.split("${");
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}')?;
        let (_, default) = variable.split_once(":-")?;
        text = text + default + rest;
    }
    (!text.is_empty() && !text.contains('{')).then_some(text)
}

/// The text below the line `config: |` in the values of a Helm chart.
fn config_block(text: &str) -> Option<String> {
    let (_, block) = text.split_once("\nconfig: |\n")?;
    let lines = block.lines();
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("  "));
    Some(lines.map(|line| format!("{line}\n")).collect())
}
