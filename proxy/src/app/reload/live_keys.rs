//! Checks that a reload hands the value of every live key (a key whose change needs no restart) to
//! a running part. The tests in `tests/e2e` check what the parts do with these values.

use seawall_config::{KEYS, Key, KeyKind};

use super::*;

/// The keys of configured users have paths that begin with this text. The test in this file changes
/// one key at a time, so it skips these keys: a reload compares users as a whole, and not key by
/// key. The end-to-end test `a_reload_can_add_change_and_remove_configured_users` covers users.
const USERS: &str = "auth.users[]";

/// The keys of listeners have paths that begin with this text.
const LISTENERS: &str = "listeners[].";

/// Two files that exist, as values of the keys that name files. The configuration reads the files,
/// and does not parse their contents.
const FILES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs"),
];

#[test]
fn a_reload_passes_each_key_that_needs_no_restart_to_the_running_code() {
    let is_live = |key: &&Key| key.change == Change::Live && !key.path.starts_with(USERS);
    let mut keys = 0;
    for key in KEYS.iter().filter(is_live) {
        let [before, after] = [0, 1].map(|variant| settings(key, variant));
        assert_ne!(handed_over(&before), handed_over(&after), "{}", key.path);
        keys += 1;
    }
    assert!(keys >= 70, "too few live keys found: {keys}");
}

/// All values that a reload hands to running parts, as text.
fn handed_over(settings: &config::Settings) -> String {
    let state = (
        convert::guard(&settings.admin),
        settings.admin.profile,
        settings.admin.dashboard,
        settings.fault.is_some(),
    );
    let credentials = convert::credential_settings(&settings.auth, &settings.limits, false);
    // A reload applies each of these sections as a whole, not key by key, so the text contains the
    // whole sections.
    let sections = (
        &settings.fault,
        settings.listeners(),
        &settings.admin.tls,
        peers::settings(&settings.admin),
        &settings.deployment.tls,
        &settings.slow_log,
        &settings.capture,
        &settings.shapes,
        &settings.telemetry,
    );
    // A reload hands these values to no part. Seawall reads them from the running settings when it
    // needs them.
    let read_later = (&settings.log, &settings.reload, &settings.shutdown);
    format!(
        "{:?}",
        (
            LiveSettings::of(settings),
            state,
            credentials.unwrap(),
            sections,
            read_later
        )
    )
}

/// Settings in which `key` has one of two allowed values: value number `variant` (0 or 1).
fn settings(key: &Key, variant: usize) -> config::Settings {
    let (section, name) = key.path.rsplit_once('.').unwrap_or_default();
    let needed = match section {
        "fault" if key.path != "fault.delay_ms" => "fault.delay_ms = 7\n".to_owned(),
        // A certificate needs its key, and a key needs its certificate.
        "telemetry" if name == "certificate_file" => of_telemetry("key_file"),
        "telemetry" if name == "key_file" => of_telemetry("certificate_file"),
        "slow_log" if key.path != "slow_log.redact" => "slow_log.redact = true\n".to_owned(),
        "admin" if name.starts_with("peer_") => "admin.peers = \"https://a:1\"\n".to_owned(),
        _ if section.ends_with(".tls") && section != "deployment.tls" => tls(section, name),
        _ => String::new(),
    };
    let value = value(key, variant);
    let keys = format!("{needed}{} = {value}\n", key.path);
    let keys = match key.path.starts_with(LISTENERS) {
        true => format!(
            "[[listeners]]\naddress = \"a:1\"\n{}",
            keys.replace(LISTENERS, "")
        ),
        false => keys,
    };
    let toml = format!("deployment.uri = \"mongodb://server/\"\n{keys}");
    let loaded = Loaded::from_toml(&toml);
    loaded
        .unwrap_or_else(|problems| panic!("{toml}{problems}"))
        .settings
}

fn of_telemetry(name: &str) -> String {
    format!("telemetry.{name} = {:?}\n", FILES[0])
}

/// The key `name` of the TLS section `section` is valid only together with some other keys of this
/// section. Returns those other keys, with values, as TOML.
fn tls(section: &str, name: &str) -> String {
    let certificates = ["client_certificate", "client_ca_file", "client_crl_file"];
    let needs_authority = certificates.contains(&name);
    let mut keys = vec!["certificate_file", "key_file"];
    if needs_authority {
        keys.push("client_ca_file");
    }
    let mut text: String = keys
        .into_iter()
        .filter(|key| *key != name)
        .map(|key| format!("{section}.{key} = {:?}\n", FILES[0]))
        .collect();
    if needs_authority && name != "client_certificate" {
        text += &format!("{section}.client_certificate = \"optional\"\n");
    }
    text
}

/// Value number `variant` (0 or 1) of two allowed values of a key, as TOML.
fn value(key: &Key, variant: usize) -> String {
    let numbers = |min: i64, max: i64| {
        // Use few clients, because the limit of descriptors may reduce a larger number.
        let first = match key.path {
            "listen.max_client_connections" => 10,
            _ => key
                .default
                .and_then(|default| default.parse().ok())
                .unwrap_or(min),
        };
        let second = if first < max { first + 1 } else { first - 1 };
        [first, second][variant].to_string()
    };
    match key.kind {
        KeyKind::Integer { min, max } | KeyKind::IntegerOr { min, max, .. } => numbers(min, max),
        KeyKind::Percent => ["100", "50.5"][variant].to_owned(),
        KeyKind::Boolean => ["true", "false"][variant].to_owned(),
        KeyKind::Choice { accepted } => {
            // The value `none` conflicts with the other keys that `tls` adds.
            let may_be_none = !key.path.ends_with(".client_certificate");
            let words = accepted.iter();
            let words: Vec<_> = words
                .filter(|word| may_be_none || **word != "none")
                .collect();
            format!("{:?}", words[variant])
        }
        KeyKind::ShapeThresholds { .. } => {
            ["{ 0123456789abcdef = 5 }", "{ 0123456789abcdef = 6 }"][variant].to_owned()
        }
        KeyKind::Text => match key.path {
            "telemetry.resource_attributes" => ["\"a=1\"", "\"a=2\""][variant].to_owned(),
            "limits.shared_addresses" => format!("{:?}", ["10.0.0.0/8", "192.0.2.7"][variant]),
            "capture.on" => format!("{:?}", ["storm", "stall,change"][variant]),
            "admin.peers" => format!("{:?}", ["one:1", "two:2"][variant]),
            _ => format!("{:?}", ["one", "two"][variant]),
        },
        KeyKind::HttpUrl => ["\"http://a\"", "\"http://b\""][variant].to_owned(),
        // Both variants name the same file, with different contents.
        KeyKind::SecretFile if key.path == "telemetry.headers_file" => {
            let name = format!("seawall-live-keys-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, ["a=1\n", "b=1\n"][variant]).unwrap();
            format!("{path:?}")
        }
        KeyKind::Path
        | KeyKind::ReadableFile
        | KeyKind::ReadableFiles
        | KeyKind::SecretFile
        | KeyKind::SecretFiles => format!("{:?}", FILES[variant]),
        KeyKind::Secret => ["\"a=1\"", "\"b=1\""][variant].to_owned(),
        KeyKind::Directory
        | KeyKind::ConnectionString
        | KeyKind::Base64 { .. }
        | KeyKind::Addresses
        | KeyKind::AdminAddress => panic!("{}: add values for live keys of this kind", key.path),
    }
}
