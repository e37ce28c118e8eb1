//! Converts the file's values to settings: fills in defaults, reads secrets from files, checks
//! relations.
//!
//! The conversion continues after a problem. A problem that follows from an earlier one is not
//! reported: a connection string of the wrong type is not also missing.

use std::fs;
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

use crate::address::{AdminAddress, ListenAddress};
use crate::check::{is_connection_string, shape_id};
use crate::problem::{Problem, Problems, shown_text};
use crate::secret::Secret;
use crate::settings::{
    Admin, Auth, Compressor, Credentials, Deployment, Fault, History, Limits, Listen, Log, Mode,
    Pool, Pulse, Runtime, ScramKeys, Settings, Shapes, Shutdown, SlowLog, Tls, User,
    UserCredential, UserKeys,
};
use crate::{MAX_SECRET_BYTES, base64, defaults, file, read_bounded};

/// Converts to settings. `None` if there is no connection string. The result is valid only if there
/// are no problems.
pub(crate) fn settings(written: file::File, problems: &mut Problems) -> Option<Settings> {
    let listen = listen(written.listen, problems);
    let deployment = deployment(written.deployment, problems);
    let limits = limits(&written.limits, problems);
    let auth = auth(written.auth, limits.max_users, problems);
    let pool = pool(&written.pool, problems);
    let admin = admin(written.admin, problems);
    Some(Settings {
        listen,
        deployment: deployment?,
        auth,
        pool,
        limits,
        shapes: shapes(written.shapes, problems),
        history: history(written.history),
        pulse: Pulse {
            enabled: written.pulse.enabled.unwrap_or(defaults::PULSE_ENABLED),
            interval: duration(written.pulse.interval_ms, defaults::PULSE_INTERVAL),
            timeout: duration(written.pulse.timeout_ms, defaults::PULSE_TIMEOUT),
        },
        slow_log: written.slow_log.map(slow_log),
        fault: fault(written.fault),
        shutdown: Shutdown {
            drain: duration(written.shutdown.drain_ms, defaults::DRAIN),
        },
        runtime: Runtime {
            worker_threads: NonZeroUsize::new(
                written
                    .runtime
                    .worker_threads
                    .unwrap_or(defaults::WORKER_THREADS),
            ),
            core_dumps: (written.runtime.core_dumps).unwrap_or(defaults::CORE_DUMPS),
        },
        admin,
        log: Log {
            level: written.log.level.unwrap_or(defaults::LOG_LEVEL),
            format: written.log.format.unwrap_or(defaults::LOG_FORMAT),
        },
    })
}

fn listen(written: file::Listen, problems: &mut Problems) -> Listen {
    let addresses = match written.address {
        Some(file::OneOrMore::One(address)) => vec![address],
        Some(file::OneOrMore::More(addresses)) => addresses,
        None => vec![
            defaults::LISTEN_ADDRESS
                .parse()
                .expect("the default is an address"),
        ],
    };
    no_address_twice(&addresses, problems);
    Listen {
        addresses,
        max_client_connections: written
            .max_client_connections
            .unwrap_or(defaults::MAX_CLIENT_CONNECTIONS),
        backlog: written.backlog.unwrap_or(defaults::BACKLOG),
        compressors: compressors(
            written
                .compressors
                .as_deref()
                .unwrap_or(defaults::COMPRESSORS),
            problems,
        ),
        tls: written.tls.and_then(|written| tls(written, problems)),
    }
}

fn compressors(written: &str, problems: &mut Problems) -> Vec<Compressor> {
    let mut compressors = Vec::new();
    let names = written.split(',').filter(|_| written != "disabled");
    for name in names {
        let mut all = Compressor::ALL.into_iter();
        match all.find(|compressor| compressor.name() == name.trim()) {
            Some(compressor) if !compressors.contains(&compressor) => compressors.push(compressor),
            _ => {
                problems.add(Problem::new(
                    "listen.compressors",
                    &shown_text(written),
                    "must be \"disabled\", or some of snappy, zstd and zlib, each once, joined by commas",
                ));
                break;
            }
        }
    }
    compressors
}

fn no_address_twice(addresses: &[ListenAddress], problems: &mut Problems) {
    for (index, address) in addresses.iter().enumerate() {
        let mut earlier = addresses.iter().take(index);
        if earlier.any(|other| other == address) {
            problems.add(Problem::new(
                &format!("listen.address[{index}]"),
                &shown_text(&address.to_string()),
                "must not be listed twice",
            ));
        }
    }
}

fn tls(written: file::Tls, problems: &mut Problems) -> Option<Tls> {
    let certificate = required(
        "listen.tls.certificate_file",
        written.certificate_file,
        problems,
    );
    let key = required("listen.tls.key_file", written.key_file, problems);
    let certificate =
        certificate.and_then(|path| readable("listen.tls.certificate_file", path, problems));
    let key = key.and_then(|path| readable("listen.tls.key_file", path, problems));
    Some(Tls {
        certificate_file: certificate?,
        key_file: key?,
    })
}

fn deployment(written: file::Deployment, problems: &mut Problems) -> Option<Deployment> {
    let uri = connection_string(written.uri, written.uri_file, problems);
    let mode = written.mode.unwrap_or(defaults::MODE);
    let mut of_relays = |name: &str, written: Option<bool>, default| {
        if (written, mode) == (Some(true), Mode::Pooled) {
            problems.add(Problem::new(
                &format!("deployment.{name}"),
                "true",
                r#"must be false unless deployment.mode is "relay""#,
            ));
        }
        written.unwrap_or(default)
    };
    let original_destination = of_relays(
        "original_destination",
        written.original_destination,
        defaults::ORIGINAL_DESTINATION,
    );
    let relay_encrypted = of_relays(
        "relay_encrypted",
        written.relay_encrypted,
        defaults::RELAY_ENCRYPTED,
    );
    Some(Deployment {
        uri: uri?,
        mode,
        original_destination,
        relay_encrypted,
        server_selection_timeout: duration(
            written.server_selection_timeout_ms,
            defaults::SERVER_SELECTION_TIMEOUT,
        ),
        name_applications: written
            .name_applications
            .unwrap_or(defaults::NAME_APPLICATIONS),
        repeat: written.repeat.unwrap_or(defaults::REPEAT),
        local_threshold: duration(written.local_threshold_ms, defaults::LOCAL_THRESHOLD),
        heartbeat_frequency: duration(
            written.heartbeat_frequency_ms,
            defaults::HEARTBEAT_FREQUENCY,
        ),
        connect_timeout: duration(written.connect_timeout_ms, defaults::CONNECT_TIMEOUT),
    })
}

fn connection_string(
    uri: Option<Secret>,
    uri_file: Option<PathBuf>,
    problems: &mut Problems,
) -> Option<Secret> {
    match (uri, uri_file) {
        (Some(uri), None) => Some(uri),
        (None, Some(path)) => {
            let uri = secret_from("deployment.uri_file", &path, problems)?;
            if is_connection_string(uri.expose()) {
                return Some(uri);
            }
            problems.add(Problem::new(
                "deployment.uri_file",
                &shown_path(&path),
                "must hold a string that begins with mongodb:// or mongodb+srv://",
            ));
            None
        }
        (Some(_), Some(path)) => {
            problems.add(Problem::new(
                "deployment.uri_file",
                &shown_path(&path),
                "must not be given together with deployment.uri",
            ));
            None
        }
        (None, None) => {
            let is_reported = problems.has("deployment")
                || problems.has("deployment.uri")
                || problems.has("deployment.uri_file");
            if !is_reported {
                problems.add(Problem::without_value(
                    "deployment.uri",
                    "must be given as deployment.uri, deployment.uri_file or SEAWALL_DEPLOYMENT__URI",
                ));
            }
            None
        }
    }
}

fn auth(written: file::Auth, max_users: NonZeroUsize, problems: &mut Problems) -> Auth {
    let credentials = written.credentials.unwrap_or(defaults::CREDENTIALS);
    users_fit_credentials(written.users.len(), credentials, problems);
    if written.users.len() > max_users.get() {
        problems.add(Problem::new(
            "auth.users",
            &format!("({} users)", written.users.len()),
            &format!("must be at most limits.max_users, {max_users}"),
        ));
    }
    no_user_twice(&written.users, problems);
    let users = written.users.into_iter().enumerate();
    Auth {
        credentials,
        max_stale: duration(written.max_stale_ms, defaults::MAX_STALE),
        authentication_timeout: duration(
            written.authentication_timeout_ms,
            defaults::AUTHENTICATION_TIMEOUT,
        ),
        other_mechanisms: written
            .other_mechanisms
            .unwrap_or(defaults::OTHER_MECHANISMS),
        users: users
            .filter_map(|(index, written)| user(index, written, problems))
            .collect(),
    }
}

fn users_fit_credentials(user_count: usize, credentials: Credentials, problems: &mut Problems) {
    match (user_count, credentials) {
        (0, Credentials::Users) if !problems.has("auth.users") => {
            problems.add(Problem::without_value(
                "auth.users",
                r#"must hold at least one user when auth.credentials is "users""#,
            ));
        }
        (0, _) | (_, Credentials::Auto | Credentials::Users) => {}
        (_, Credentials::Own | Credentials::Lookup | Credentials::None) => {
            problems.add(Problem::without_value(
                "auth.users",
                r#"must be absent unless auth.credentials is "users" or "auto""#,
            ));
        }
    }
}

fn no_user_twice(users: &[file::User], problems: &mut Problems) {
    let mut seen = std::collections::HashMap::new();
    for (index, user) in users.iter().enumerate() {
        let Some(name) = user.name.as_deref() else {
            continue;
        };
        let source = user.source.as_deref().unwrap_or(defaults::USER_SOURCE);
        let first = *seen.entry((name, source)).or_insert(index);
        if first != index {
            problems.add(Problem::new(
                &format!("auth.users[{index}].name"),
                &shown_text(name),
                &format!("must be unique within its source; auth.users[{first}] has the same name"),
            ));
        }
    }
}

fn user(index: usize, written: file::User, problems: &mut Problems) -> Option<User> {
    let place = format!("auth.users[{index}]");
    let name = required(&format!("{place}.name"), written.name, problems);
    let forms = [
        ("password", written.password.is_some()),
        ("password_file", written.password_file.is_some()),
        (
            "SCRAM keys",
            written.scram_sha_1.is_some() || written.scram_sha_256.is_some(),
        ),
    ];
    let given: Vec<&str> = forms
        .into_iter()
        .filter_map(|(form, is_given)| is_given.then_some(form))
        .collect();
    if given.len() > 1 {
        problems.add(Problem::new(
            &place,
            &format!("({})", given.join(" and ")),
            ONE_CREDENTIAL,
        ));
        return None;
    }
    let credential = if let Some(password) = written.password {
        Some(UserCredential::Password(password))
    } else if let Some(path) = written.password_file {
        let password = secret_from(&format!("{place}.password_file"), &path, problems);
        password.map(UserCredential::Password)
    } else if given.is_empty() {
        credential_missing(&place, problems);
        None
    } else {
        Some(UserCredential::Keys(UserKeys {
            scram_sha_1: keys(&place, "scram_sha_1", written.scram_sha_1, problems),
            scram_sha_256: keys(&place, "scram_sha_256", written.scram_sha_256, problems),
        }))
    };
    Some(User {
        name: name?,
        source: written
            .source
            .unwrap_or_else(|| defaults::USER_SOURCE.to_owned()),
        credential: credential?,
    })
}

fn credential_missing(place: &str, problems: &mut Problems) {
    let forms = ["password", "password_file", "scram_sha_1", "scram_sha_256"];
    let is_reported = forms
        .iter()
        .any(|form| problems.has(&format!("{place}.{form}")));
    if !is_reported {
        problems.add(Problem::without_value(place, ONE_CREDENTIAL));
    }
}

/// The keys of one mechanism. `None` if there are none or some have problems.
fn keys<const N: usize>(
    user: &str,
    mechanism: &str,
    written: Option<file::ScramKeys<N>>,
    problems: &mut Problems,
) -> Option<ScramKeys<N>> {
    let written = written?;
    let place = |name: &str| format!("{user}.{mechanism}.{name}");
    let salt = required(&place("salt"), written.salt, problems);
    let iterations = required(&place("iterations"), written.iterations, problems);
    let stored_key = required(&place("stored_key"), written.stored_key, problems);
    let server_key = required(&place("server_key"), written.server_key, problems);
    Some(ScramKeys {
        salt: base64::decode(&salt?).ok()?,
        iterations: iterations?,
        stored_key: stored_key?,
        server_key: server_key?,
    })
}

fn pool(written: &file::Pool, problems: &mut Problems) -> Pool {
    let max_pool_size = written.max_pool_size.unwrap_or(defaults::MAX_POOL_SIZE);
    let min_pool_size = written.min_pool_size.unwrap_or(defaults::MIN_POOL_SIZE);
    if min_pool_size > max_pool_size.get() && !problems.has("pool.max_pool_size") {
        problems.add(Problem::new(
            "pool.min_pool_size",
            &min_pool_size.to_string(),
            &format!("must be at most pool.max_pool_size, {max_pool_size}"),
        ));
    }
    Pool {
        max_pool_size,
        max_server_connections: written
            .max_server_connections
            .unwrap_or(defaults::MAX_SERVER_CONNECTIONS),
        min_pool_size,
        connections_per_second: NonZeroU32::new(
            written
                .connections_per_second
                .unwrap_or(defaults::CONNECTIONS_PER_SECOND),
        ),
        max_connecting: written.max_connecting.unwrap_or(defaults::MAX_CONNECTING),
        max_idle_time: unless_0(duration(written.max_idle_time_ms, defaults::MAX_IDLE_TIME)),
        max_life_time: unless_0(duration(written.max_life_time_ms, defaults::MAX_LIFE_TIME)),
        wait_queue_timeout: duration(written.wait_queue_timeout_ms, defaults::WAIT_QUEUE_TIMEOUT),
        wait_queue_size: written.wait_queue_size.unwrap_or(defaults::WAIT_QUEUE_SIZE),
    }
}

fn limits(written: &file::Limits, problems: &mut Problems) -> Limits {
    Limits {
        pre_auth_message_bytes: written
            .pre_auth_message_bytes
            .unwrap_or(defaults::PRE_AUTH_MESSAGE_BYTES),
        message_memory_bytes: written
            .message_memory_bytes
            .unwrap_or(defaults::MESSAGE_MEMORY_BYTES),
        relayed_connections: written
            .relayed_connections
            .unwrap_or(defaults::RELAYED_CONNECTIONS),
        client_write_idle_timeout: duration(
            written.client_write_idle_timeout_ms,
            defaults::CLIENT_WRITE_IDLE_TIMEOUT,
        ),
        max_cursors: written.max_cursors.unwrap_or(defaults::MAX_CURSORS),
        max_transactions: written
            .max_transactions
            .unwrap_or(defaults::MAX_TRANSACTIONS),
        cursor_idle: duration(written.cursor_idle_ms, defaults::CURSOR_IDLE),
        transaction_idle: duration(written.transaction_idle_ms, defaults::TRANSACTION_IDLE),
        max_users: written.max_users.unwrap_or(defaults::MAX_USERS),
        introductions: written.introductions.unwrap_or(defaults::INTRODUCTIONS),
        introduction_conversations: written
            .introduction_conversations
            .unwrap_or(defaults::INTRODUCTION_CONVERSATIONS),
        unauthenticated_connections: written
            .unauthenticated_connections
            .unwrap_or(defaults::UNAUTHENTICATED_CONNECTIONS),
        monitor_connections: written
            .monitor_connections
            .unwrap_or(defaults::MONITOR_CONNECTIONS),
        max_in_flight_operations: written
            .max_in_flight_operations
            .unwrap_or(defaults::MAX_IN_FLIGHT_OPERATIONS),
        connections_per_second_per_address: written
            .connections_per_second_per_address
            .filter(|rate| *rate > 0),
        logins_per_second_per_user: written.logins_per_second_per_user.filter(|rate| *rate > 0),
        shared_addresses: networks(
            written.shared_addresses.as_deref().unwrap_or_default(),
            problems,
        ),
    }
}

fn admin(written: file::Admin, problems: &mut Problems) -> Admin {
    let address: AdminAddress = written.address.unwrap_or_else(|| {
        defaults::ADMIN_ADDRESS
            .parse()
            .expect("the default is an address")
    });
    let is_given = written.token_file.is_some() || problems.has("admin.token_file");
    if !is_given && !address.is_private() {
        problems.add(Problem::without_value(
            "admin.token_file",
            &format!("must be given, because admin.address is not loopback: {address}"),
        ));
    }
    let token = written
        .token_file
        .and_then(|path| secret_from("admin.token_file", &path, problems));
    let allowed_hosts = written.allowed_hosts.as_deref().unwrap_or_default();
    Admin {
        address,
        token,
        allowed_hosts: host_names(allowed_hosts, problems),
        profile: written.profile.unwrap_or(defaults::ADMIN_PROFILE),
    }
}

fn networks(joined: &str, problems: &mut Problems) -> Vec<IpNet> {
    let texts = joined.split(',').map(str::trim);
    let mut networks = Vec::new();
    for text in texts.filter(|text| !text.is_empty()) {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        match text.parse::<IpNet>().ok().or(address.ok()) {
            Some(network) => networks.push(network),
            None => problems.add(Problem::new(
                "limits.shared_addresses",
                &shown_text(text),
                "must be IP addresses or ranges such as 10.0.0.0/8, joined by commas",
            )),
        }
    }
    networks
}

fn host_names(joined: &str, problems: &mut Problems) -> Vec<String> {
    let names = joined.split(',').map(str::trim);
    let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
    for name in &names {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !name.chars().all(is_part) {
            problems.add(Problem::new(
                "admin.allowed_hosts",
                &shown_text(name),
                "must be host names without ports, joined by commas",
            ));
        }
    }
    names.iter().map(|name| name.to_ascii_lowercase()).collect()
}

fn shapes(written: file::Shapes, problems: &mut Problems) -> Shapes {
    let name_key = written
        .name_key_file
        .and_then(|path| secret_from("shapes.name_key_file", &path, problems));
    Shapes {
        enabled: written.enabled.unwrap_or(defaults::SHAPES_ENABLED),
        max_shapes: written.max_shapes.unwrap_or(defaults::MAX_SHAPES),
        max_namespaces: written.max_namespaces.unwrap_or(defaults::MAX_NAMESPACES),
        name_key,
    }
}

fn history(written: file::History) -> History {
    History {
        enabled: written.enabled.unwrap_or(defaults::HISTORY_ENABLED),
        directory: written.directory,
        memory_bytes: written
            .memory_bytes
            .unwrap_or(defaults::HISTORY_MEMORY_BYTES),
        max_series_shapes: written
            .max_series_shapes
            .unwrap_or(defaults::MAX_SERIES_SHAPES),
    }
}

fn slow_log(written: file::SlowLog) -> SlowLog {
    let thresholds = written.shape_thresholds_ms.into_iter();
    SlowLog {
        threshold: duration(written.threshold_ms, defaults::SLOW_LOG_THRESHOLD),
        // Ids have one length and one case, so their text order is their numeric order.
        shape_thresholds: thresholds
            .filter_map(|(id, ms)| Some((shape_id(&id)?, Duration::from_millis(ms))))
            .collect(),
        sample_percent: written
            .sample_percent
            .unwrap_or(defaults::SLOW_LOG_SAMPLE_PERCENT),
        file: written.file,
        max_lines_per_second: NonZeroU32::new(
            written
                .max_lines_per_second
                .unwrap_or(defaults::SLOW_LOG_MAX_LINES_PER_SECOND),
        ),
        redact: written.redact.unwrap_or(defaults::SLOW_LOG_REDACT),
        max_command_bytes: written
            .max_command_bytes
            .unwrap_or(defaults::SLOW_LOG_MAX_COMMAND_BYTES),
    }
}

/// `None` if no fault would be injected.
fn fault(written: file::Fault) -> Option<Fault> {
    let fault = Fault {
        command: written.command,
        namespace: written.namespace,
        share_percent: written
            .share_percent
            .unwrap_or(defaults::FAULT_SHARE_PERCENT),
        delay: duration(written.delay_ms, Duration::ZERO),
        error_code: written.error_code.filter(|code| *code != 0),
        close: written.close.unwrap_or(false),
    };
    let does_something = !fault.delay.is_zero() || fault.error_code.is_some() || fault.close;
    (does_something && fault.share_percent > 0).then_some(fault)
}

fn duration(written_ms: Option<u64>, default: Duration) -> Duration {
    written_ms.map_or(default, Duration::from_millis)
}

fn unless_0(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

fn required<T>(key: &str, value: Option<T>, problems: &mut Problems) -> Option<T> {
    if value.is_none() && !problems.has(key) {
        problems.add(Problem::without_value(key, "must be given"));
    }
    value
}

/// Returns the path if the file can be opened. An error at a later start would be less clear.
fn readable(key: &str, path: PathBuf, problems: &mut Problems) -> Option<PathBuf> {
    match fs::File::open(&path) {
        Ok(_) => Some(path),
        Err(error) => {
            problems.add(unreadable(key, &path, &error));
            None
        }
    }
}

/// The content of the file without the line break at its end, which editors and `echo` add.
fn secret_from(key: &str, path: &Path, problems: &mut Problems) -> Option<Secret> {
    let text = match read_bounded(path, MAX_SECRET_BYTES) {
        Ok(text) => text,
        Err(error) => {
            problems.add(unreadable(key, path, &error));
            return None;
        }
    };
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let secret = line.strip_suffix('\r').unwrap_or(line);
    if secret.is_empty() {
        let allowed = "must not be an empty file";
        problems.add(Problem::new(key, &shown_path(path), allowed));
        return None;
    }
    Some(Secret::new(secret.to_owned()))
}

fn unreadable(key: &str, path: &Path, error: &std::io::Error) -> Problem {
    let allowed = format!("must be a readable file: {error}");
    Problem::new(key, &shown_path(path), &allowed)
}

fn shown_path(path: &Path) -> String {
    shown_text(&path.display().to_string())
}

const ONE_CREDENTIAL: &str =
    "must have exactly one of password, password_file and SCRAM keys (scram_sha_1, scram_sha_256)";
