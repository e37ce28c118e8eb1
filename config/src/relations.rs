//! Checks the relations between settings. Each setting alone has already been checked.

use crate::address::ListenAddress;
use crate::kinds::MIN_REDACTION_KEY_BYTES;
use crate::listeners::{Listener, Tls};
use crate::problem::{Problem, Problems, shown_text};
use crate::read::shown_path;
use crate::secret::SecretFile;
use crate::settings::{Admin, Capture, Deployment, Pool, Settings, Telemetry};
use crate::words::{
    CaptureRedaction, ClientCertificate, Credentials, Mode, ProxyProtocol, TlsMode,
};

/// Adds a problem for each violated relation. `user_count` includes users with problems.
pub(crate) fn check(settings: &Settings, user_count: usize, problems: &mut Problems) {
    let listeners = settings.listeners();
    no_address_twice(&listeners, problems);
    http_addresses_differ(&listeners, &settings.admin, problems);
    for listener in &*listeners {
        if let Some(tls) = &listener.tls {
            certificates_fit(&format!("{}.tls", listener.path), tls, problems);
        }
        proxies_have_networks(listener, problems);
        proxied_addresses_are_tcp(listener, problems);
    }
    if let Some(tls) = &settings.admin.tls {
        certificates_fit("admin.tls", tls, problems);
    }
    options_of_relays(&settings.deployment, problems);
    users_fit(user_count, settings, problems);
    pool_sizes(&settings.pool, problems);
    token_if_public(&settings.admin, problems);
    tokens_have_one_role(&settings.admin, problems);
    telemetry_fits(&settings.telemetry, problems);
    peers_fit(&settings.admin, problems);
    redaction_has_a_key(&settings.capture, problems);
    events_have_clients(settings, problems);
}

/// Checks that no two addresses at which Seawall accepts clients overlap. Otherwise, the system
/// could not bind both, so the next start would fail.
fn no_address_twice(listeners: &[Listener], problems: &mut Problems) {
    let mut seen: Vec<(String, &ListenAddress)> = Vec::new();
    for listener in listeners {
        for (key, address) in addresses_with_keys(listener) {
            let mut earlier = seen.iter();
            if let Some((other, earlier)) = earlier.find(|(_, of)| of.overlaps(address)) {
                let allowed = match *earlier == address {
                    true => "must not be listed twice".to_owned(),
                    false => format!("must have another port than {other}, {earlier}"),
                };
                let text = shown_text(&address.to_string());
                problems.add(Problem::new(&key, &text, &allowed));
            }
            seen.push((key, address));
        }
    }
}

/// The addresses of a listener, each with the path of its key.
fn addresses_with_keys(listener: &Listener) -> impl Iterator<Item = (String, &ListenAddress)> {
    let Listener {
        addresses, path, ..
    } = listener;
    let key = move |index: usize| match addresses.len() {
        1 => format!("{path}.address"),
        _ => format!("{path}.address[{index}]"),
    };
    let addresses = addresses.iter().enumerate();
    addresses.map(move |(index, address)| (key(index), address))
}

/// Checks that the two HTTP addresses overlap neither with each other nor with an address at which
/// Seawall accepts clients. Otherwise, an HTTP address could never be bound, but Seawall would
/// start without it.
fn http_addresses_differ(listeners: &[Listener], admin: &Admin, problems: &mut Problems) {
    if problems.has("admin.address") || problems.has("listen.address") {
        return;
    }
    let address = admin.address.with_fixed_port();
    let metrics = admin.metrics_address.with_fixed_port();
    let of_clients = |own: &ListenAddress| {
        listeners.iter().find_map(|listener| {
            let mut addresses = listener.addresses.iter();
            let address = addresses.find(|address| address.may_overlap(own))?;
            Some((format!("{}.address", listener.path), address))
        })
    };
    for (key, own, earlier) in [
        ("admin.address", &address, None),
        ("admin.metrics_address", &metrics, address.as_ref()),
    ] {
        let Some(own) = own else {
            continue;
        };
        let earlier = earlier.filter(|earlier| earlier.may_overlap(own));
        let earlier = earlier.map(|earlier| ("admin.address".to_owned(), earlier));
        if let Some((other, address)) = earlier.or_else(|| of_clients(own)) {
            let allowed = match address == own {
                true => format!("must differ from {other}"),
                false => format!("must have another port than {other}, {address}"),
            };
            let text = shown_text(&own.to_string());
            problems.add(Problem::new(key, &text, &allowed));
        }
    }
}

/// Checks that the networks of load balancers are given if and only if `proxy_protocol` is
/// `accept`. Without the networks, any client could claim any address.
fn proxies_have_networks(listener: &Listener, problems: &mut Problems) {
    let is_accepted = listener.proxy_protocol == ProxyProtocol::Accept;
    let path = &listener.path;
    let key = format!("{path}.proxy_networks");
    if problems.has(&key) {
        return;
    }
    let rule = match (is_accepted, listener.proxy_networks.is_empty()) {
        (true, true) => "given if",
        (false, false) => "absent unless",
        _ => return,
    };
    let allowed = format!(r#"must be {rule} {path}.proxy_protocol is "accept""#);
    problems.add(Problem::without_value(&key, &allowed));
}

/// Checks that a listener whose connections must begin with a header of the PROXY protocol has no
/// unix socket. Load balancers connect over TCP, and the networks in `proxy_networks` do not apply
/// to a unix socket.
fn proxied_addresses_are_tcp(listener: &Listener, problems: &mut Problems) {
    if listener.proxy_protocol != ProxyProtocol::Accept {
        return;
    }
    let allowed = format!(
        "must be a TCP address if {}.proxy_protocol is \"accept\"; give the unix socket an entry \
         in [[listeners]] of its own",
        listener.path
    );
    for (key, address) in addresses_with_keys(listener) {
        if matches!(address, ListenAddress::Unix(_)) {
            let text = shown_text(&address.to_string());
            problems.add(Problem::new(&key, &text, &allowed));
        }
    }
}

/// Checks that there are as many private keys as certificates, and that `client_certificate` fits
/// the other settings of the section.
fn certificates_fit(section: &str, tls: &Tls, problems: &mut Problems) {
    let (certificates, keys) = (tls.certificate_files.len(), tls.key_files.len());
    let has_problem = ["certificate_file", "key_file"]
        .iter()
        .any(|key| problems.has(&format!("{section}.{key}")));
    if certificates != keys && !has_problem {
        problems.add(Problem::new(
            &format!("{section}.key_file"),
            &format!("({keys} files)"),
            &format!(
                "must list as many files as {section}.certificate_file, which lists {certificates}"
            ),
        ));
    }
    let is_requested = tls.client_certificate != ClientCertificate::None;
    if is_requested && tls.client_ca_files.is_none() {
        let allowed = format!("must be given unless {section}.client_certificate is \"none\"");
        let key = format!("{section}.client_ca_file");
        problems.add(Problem::without_value(&key, &allowed));
    }
    if tls.client_certificate == ClientCertificate::Required && tls.mode == TlsMode::Prefer {
        problems.add(Problem::new(
            &format!("{section}.mode"),
            "\"prefer\"",
            &format!("must be \"require\" if {section}.client_certificate is \"required\""),
        ));
    }
    for (key, files) in [
        ("client_ca_file", &tls.client_ca_files),
        ("client_crl_file", &tls.client_crl_files),
    ] {
        if !is_requested && files.is_some() {
            let allowed = format!("must be absent if {section}.client_certificate is \"none\"");
            problems.add(Problem::without_value(
                &format!("{section}.{key}"),
                &allowed,
            ));
        }
    }
}

fn options_of_relays(deployment: &Deployment, problems: &mut Problems) {
    for (key, is_set) in [
        (
            "deployment.original_destination",
            deployment.original_destination,
        ),
        ("deployment.relay_encrypted", deployment.relay_encrypted),
    ] {
        if is_set && deployment.mode == Mode::Pooled {
            let allowed = r#"must be false unless deployment.mode is "relay""#;
            problems.add(Problem::new(key, "true", allowed));
        }
    }
}

fn users_fit(user_count: usize, settings: &Settings, problems: &mut Problems) {
    match (user_count, settings.auth.credentials) {
        (0, Credentials::Users) if !problems.has("auth.users") => {
            problems.add(Problem::without_value(
                "auth.users",
                r#"must have at least one user when auth.credentials is "users""#,
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
    let max_users = settings.limits.max_users;
    if user_count > max_users.get() {
        problems.add(Problem::new(
            "auth.users",
            &format!("({user_count} users)"),
            &format!("must be at most limits.max_users, {max_users}"),
        ));
    }
}

fn pool_sizes(pool: &Pool, problems: &mut Problems) {
    let (min, max) = (pool.min_pool_size, pool.max_pool_size);
    if min > max.get() && !problems.has("pool.max_pool_size") {
        problems.add(Problem::new(
            "pool.min_pool_size",
            &min.to_string(),
            &format!("must be at most pool.max_pool_size, {max}"),
        ));
    }
}

fn token_if_public(admin: &Admin, problems: &mut Problems) {
    let keys = ["admin.token_file", "admin.read_token_file"];
    let is_given = !admin.tokens.is_empty()
        || !admin.read_tokens.is_empty()
        || keys.iter().any(|key| problems.has(key));
    let tls = admin.tls.as_ref();
    let requires = |tls: &Tls| tls.client_certificate == ClientCertificate::Required;
    if !is_given && !tls.is_some_and(requires) && !admin.address.is_private() {
        let address = &admin.address;
        problems.add(Problem::without_value(
            "admin.token_file",
            &format!(
                "must be given unless admin.tls.client_certificate is \"required\", because \
                 admin.address is not loopback: {address}"
            ),
        ));
    }
}

/// Checks that no token is in the files of both keys. Otherwise, a caller with a token that is
/// meant only for reading could also act.
fn tokens_have_one_role(admin: &Admin, problems: &mut Problems) {
    let is_also_for_actions = |read: &SecretFile| {
        let mut tokens = admin.tokens.iter();
        tokens.any(|token| token.secret.expose() == read.secret.expose())
    };
    if let Some(file) = admin
        .read_tokens
        .iter()
        .find(|file| is_also_for_actions(file))
    {
        problems.add(Problem::new(
            "admin.read_token_file",
            &shown_path(&file.path),
            "must not contain a token that is also in admin.token_file",
        ));
    }
}

/// If files with tokens for the peers are given, checks that there is one file for all peers or one
/// file for each peer. Peers are the other Seawall instances in `admin.peers`. Also checks that TLS
/// files for peers are given only if a peer uses TLS.
fn peers_fit(admin: &Admin, problems: &mut Problems) {
    if problems.has("admin.peers") {
        return;
    }
    let (tokens, peers) = (admin.peer_tokens.len(), admin.peers.len());
    let key = "admin.peer_token_file";
    if tokens > 0 && !problems.has(key) && (peers == 0 || (tokens > 1 && tokens != peers)) {
        problems.add(Problem::new(
            key,
            &format!("({tokens} files)"),
            &format!("must be one file for all addresses of admin.peers, or one for each of the {peers} addresses"),
        ));
    }
    let files = [
        ("admin.peer_ca_file", &admin.peer_ca_file),
        (
            "admin.peer_certificate_key_file",
            &admin.peer_certificate_key_file,
        ),
    ];
    for (key, file) in files {
        if file.is_some() && !admin.peers.iter().any(|peer| peer.uses_tls()) {
            problems.add(Problem::without_value(
                key,
                "must be absent unless an address of admin.peers begins with https://",
            ));
        }
    }
}

fn telemetry_fits(telemetry: &Telemetry, problems: &mut Problems) {
    if telemetry.headers.is_some() && telemetry.headers_file.is_some() {
        let allowed = "must be absent if telemetry.headers is given";
        problems.add(Problem::without_value("telemetry.headers_file", allowed));
    }
    let files = [
        ("telemetry.certificate_file", &telemetry.certificate_file),
        ("telemetry.key_file", &telemetry.key_file),
    ];
    let is_any_given = files.iter().any(|(_, file)| file.is_some());
    for (key, file) in files {
        if file.is_none() && is_any_given && !problems.has(key) {
            let allowed = "must be given, because telemetry.certificate_file and \
                           telemetry.key_file have an effect only together";
            problems.add(Problem::without_value(key, allowed));
        }
    }
}

/// Checks that `capture.redact_key_file` is given if `capture.redact` is `ordered`, and that the
/// secret in this file is long enough. From the secret, Seawall computes the pseudonyms that
/// replace the applications' data in captures.
///
/// Without the file, Seawall uses a random secret for each capture. This does not suffice for
/// `ordered`: `seawall load copy` writes a copy of the data with the same pseudonyms, so it needs
/// the same secret.
fn redaction_has_a_key(capture: &Capture, problems: &mut Problems) {
    let key = "capture.redact_key_file";
    match &capture.redaction_key {
        None if capture.redaction == CaptureRedaction::Ordered && !problems.has(key) => {
            let allowed = r#"must be given if capture.redact is "ordered""#;
            problems.add(Problem::without_value(key, allowed));
        }
        Some(file) if file.secret.expose().len() < MIN_REDACTION_KEY_BYTES => {
            let allowed = format!("must have at least {MIN_REDACTION_KEY_BYTES} bytes");
            problems.add(Problem::new(key, &shown_path(&file.path), &allowed));
        }
        None | Some(_) => {}
    }
}

/// Checks that `capture.on` is empty in relay mode. The key lists the events that begin a capture
/// of client traffic, such as a reconnect storm. In relay mode, Seawall cannot capture client
/// traffic.
fn events_have_clients(settings: &Settings, problems: &mut Problems) {
    if settings.deployment.mode == Mode::Relay && !settings.capture.on.is_empty() {
        let allowed = r#"must be absent if deployment.mode is "relay""#;
        problems.add(Problem::without_value("capture.on", allowed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Settings {
        Settings::default_for("mongodb://server/").unwrap()
    }

    /// The problems of a configuration with these keys in a section; `None` if there is none.
    fn problem_in(section: &str, keys: &str) -> Option<String> {
        let toml = format!("deployment.uri = \"mongodb://server/\"\n[{section}]\n{keys}");
        let problems = Settings::from_toml(&toml).err();
        problems.map(|problems| problems.to_string())
    }

    #[test]
    fn defaults_of_related_settings_do_not_contradict_each_other() {
        let Settings {
            deployment,
            pool,
            limits,
            shapes,
            history,
            pulse,
            ..
        } = defaults();
        assert!(pool.max_pool_size <= pool.max_server_connections);
        assert!(pool.max_connecting <= pool.max_pool_size);
        assert!(pool.max_idle_time.unwrap() < pool.max_life_time.unwrap());
        assert!(shapes.max_namespaces <= shapes.max_shapes);
        assert!(history.max_series_shapes <= shapes.max_shapes);
        assert!(pulse.timeout <= pulse.interval);
        assert_eq!(limits.relayed_connections, pool.max_server_connections);
        // An operation must wait for a server longer than the time limit of a connection attempt,
        // and longer than the time between two checks of a server.
        assert!(deployment.connect_timeout < deployment.server_selection_timeout);
        assert!(deployment.heartbeat_frequency < deployment.server_selection_timeout);
        assert!(pool.wait_queue_timeout <= deployment.server_selection_timeout);
    }

    #[test]
    fn default_limits_let_every_client_have_one_operation_in_flight_or_waiting_for_a_connection() {
        let Settings {
            listen,
            pool,
            limits,
            ..
        } = defaults();
        assert!(listen.max_client_connections <= limits.max_in_flight_operations);
        assert!(listen.max_client_connections <= pool.wait_queue_size);
        // Clients that have not logged in cannot use up all connections or all message memory.
        let unauthenticated = limits.unauthenticated_connections.get();
        let not_logged_in = unauthenticated + limits.monitor_connections.get();
        assert!(not_logged_in <= listen.max_client_connections.get());
        let bytes = limits.pre_auth_message_bytes * unauthenticated;
        assert!(bytes < limits.message_memory_bytes);
    }

    #[test]
    fn an_unreadable_file_hides_no_problems_of_later_sections_and_of_related_settings() {
        let problems = Settings::from_toml(
            "deployment.uri = \"mongodb://server/\"\n\
             [listen.tls]\ncertificate_file = \"/no/a.pem\"\n\
             key_file = \"/no/a.key, /no/b.key\"\n\
             client_certificate = \"required\"\n\
             [pool]\nmin_pool_size = 500\n\
             [admin]\naddress = \"10.0.0.1:9909\"\ntoken_file = \"/no/token\"\n\
             peers = \"a:1,b:1,c:1\"\npeer_token_file = \"/no/one, Cargo.toml\"\n\
             [telemetry]\nca_file = \"/no/ca.pem\"\nresource_attributes = \"team\"\n",
        );
        let problems = problems.unwrap_err();
        let keys: Vec<_> = problems.iter().map(|problem| &*problem.key).collect();
        assert_eq!(
            keys,
            [
                "listen.tls.certificate_file",
                "listen.tls.key_file",
                "listen.tls.key_file",
                "admin.token_file",
                "admin.peer_token_file",
                "telemetry.ca_file",
                "telemetry.resource_attributes",
                "listen.tls.client_ca_file",
                "pool.min_pool_size",
            ]
        );
    }

    #[test]
    fn http_addresses_must_differ_from_each_other_and_from_the_addresses_of_clients() {
        let problems = |toml: &str| {
            let toml = format!("deployment.uri = \"mongodb://server/\"\n{toml}");
            let problems = Settings::from_toml(&toml).err();
            problems.map_or_else(String::new, |problems| problems.to_string())
        };
        for (toml, expected) in [
            (
                "admin.metrics_address = \"127.0.0.1:9909\"\n",
                "admin.metrics_address = \"127.0.0.1:9909\": must differ from admin.address",
            ),
            (
                "listen.address = [\"a:1\", \"127.0.0.1:9909\"]\n",
                "admin.address = \"127.0.0.1:9909\": must differ from listen.address",
            ),
            (
                "admin.metrics_address = \"b:1\"\n[[listeners]]\naddress = \"a:1\"\n\
                 [[listeners]]\naddress = \"b:1\"\n",
                "admin.metrics_address = \"b:1\": must differ from listeners[1].address",
            ),
            (
                "admin.metrics_address = \"0.0.0.0:9909\"\n",
                "admin.metrics_address = \"0.0.0.0:9909\": \
                 must have another port than admin.address, 127.0.0.1:9909",
            ),
            (
                "listen.address = \"[::]:1\"\nadmin.address = \"[::1]:1\"\n",
                "admin.address = \"[::1]:1\": must have another port than listen.address, [::]:1",
            ),
            (
                "listen.address = \"[::]:9909\"\n",
                "admin.address = \"127.0.0.1:9909\": \
                 must have another port than listen.address, [::]:9909",
            ),
            (
                "admin.metrics_address = \"[::]:9909\"\n",
                "admin.metrics_address = \"[::]:9909\": \
                 must have another port than admin.address, 127.0.0.1:9909",
            ),
        ] {
            assert_eq!(problems(toml), expected);
        }
        let chosen_by_the_system = "listen.address = \"127.0.0.1:0\"\n\
             admin.address = \"127.0.0.1:0\"\nadmin.metrics_address = \"127.0.0.1:0\"\n";
        assert_eq!(problems(chosen_by_the_system), "");
        // An invalid admin address is replaced by its default, which equals the metrics address
        // here. This must not be reported as a second problem.
        let wrong = "admin.address = \"9909\"\nadmin.metrics_address = \"127.0.0.1:9909\"\n";
        assert_eq!(problems(wrong).lines().count(), 1);
    }

    #[test]
    fn a_listener_that_requires_proxy_headers_may_have_no_unix_socket() {
        let accept = "proxy_protocol = \"accept\"\nproxy_networks = \"10.0.0.0/8\"\n";
        let both = "address = [\"a:1\", \"unix:/s\"]\n";
        let allowed = |path: &str| {
            format!(
                "must be a TCP address if {path}.proxy_protocol is \"accept\"; give the unix \
                 socket an entry in [[listeners]] of its own"
            )
        };
        let problem = format!("listen.address[1] = \"unix:/s\": {}", allowed("listen"));
        let found = problem_in("listen", &format!("{accept}{both}"));
        assert_eq!(found, Some(problem));
        let unix = "[[listeners]]\naddress = \"unix:/s\"\n";
        let tcp = format!("[[listeners]]\naddress = \"a:1\"\n{accept}");
        let start = "deployment.uri = \"mongodb://server/\"\n";
        assert!(Settings::from_toml(&format!("{start}{unix}{tcp}")).is_ok());
        let problems = Settings::from_toml(&format!("{start}{tcp}{unix}{accept}")).unwrap_err();
        let problem = format!(
            "listeners[1].address = \"unix:/s\": {}",
            allowed("listeners[1]")
        );
        assert_eq!(problems.to_string(), problem);
    }

    /// A capture with `redact = "ordered"` replaces values by pseudonyms that depend on a secret
    /// key.
    #[test]
    fn capture_with_redact_ordered_needs_a_redact_key_file_of_at_least_16_bytes() {
        let capture = |keys: &str| problem_in("capture", keys);
        let key = "redact_key_file = \"Cargo.toml\"\n";
        let ordered = "redact = \"ordered\"\n";
        for allowed in ["redact = \"equality\"", key, &[key, ordered].concat()] {
            assert_eq!(capture(allowed), None);
        }
        let problem = "capture.redact_key_file: must be given if capture.redact is \"ordered\"";
        assert_eq!(capture(ordered).as_deref(), Some(problem));
        let path = std::env::temp_dir().join(format!("seawall-config-key-{}", std::process::id()));
        std::fs::write(&path, "fifteen letters\r\n").unwrap();
        let problem = capture(&format!("redact_key_file = {path:?}"));
        std::fs::remove_file(&path).unwrap();
        let expected = format!("capture.redact_key_file = {path:?}: must have at least 16 bytes");
        assert_eq!(problem, Some(expected));
    }

    #[test]
    fn a_token_in_the_files_of_both_roles_is_refused() {
        let admin = |keys: &str| problem_in("admin", keys);
        let tokens =
            |read: &str| format!("token_file = \"Cargo.toml\"\nread_token_file = \"{read}\"");
        assert_eq!(admin(&tokens("src/lib.rs")), None);
        let problem = "admin.read_token_file = \"./Cargo.toml\": \
                       must not contain a token that is also in admin.token_file";
        let refused = admin(&tokens("src/lib.rs,./Cargo.toml"));
        assert_eq!(refused.as_deref(), Some(problem));
    }

    /// `capture.on` lists the events at which Seawall begins to record traffic, for example a storm
    /// of reconnecting clients.
    #[test]
    fn the_key_capture_on_is_refused_in_relay_mode() {
        let start = "deployment.uri = \"mongodb://server/\"\ncapture.on = \"storm\"\n";
        assert!(Settings::from_toml(start).is_ok());
        let relay = format!("{start}deployment.mode = \"relay\"\n");
        let problems = Settings::from_toml(&relay).unwrap_err();
        let problem = "capture.on: must be absent if deployment.mode is \"relay\"";
        assert_eq!(problems.to_string(), problem);
    }
}
