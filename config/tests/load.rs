//! Tests of `load` and `Settings::from_toml`, which load a configuration: the precedence of
//! sources, defaults, values and secrets.

use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use seawall_config::{
    AdminAddress, Concurrency, Credentials, ListenAddress, Loaded, LogFormat, LogLevel, Mode,
    Overrides, Problems, Secret, Settings, Sources, UserCredential, configuration_hash, load,
    load_with_values,
};

#[test]
fn only_the_connection_string_is_required() {
    let settings = Settings::from_toml("[deployment]\nuri = \"mongodb://server/\"").unwrap();
    assert_eq!(settings.deployment.uri.expose(), "mongodb://server/");
    assert_eq!(settings.deployment.mode, Mode::Pooled);
    assert_eq!(
        settings.listen.addresses,
        [ListenAddress::Tcp("127.0.0.1:27018".to_owned())]
    );
    assert_eq!(settings.listen.tls, None);
    assert_eq!(settings.auth.credentials, Credentials::Auto);
    assert_eq!(settings.pool.max_pool_size.get(), 100);
    assert_eq!(
        settings.pool.wait_queue_timeout,
        Duration::from_millis(10_000)
    );
    assert_eq!(
        settings.admin.address,
        AdminAddress::Tcp("127.0.0.1:9909".to_owned())
    );
    assert_eq!(settings.admin.tokens, []);
    assert_eq!(settings.log.level, LogLevel::Info);
    assert_eq!(settings.log.format, LogFormat::Text);
}

#[test]
fn the_listen_section_describes_the_only_listener_if_listeners_is_absent() {
    let toml = "deployment.uri = \"mongodb://server/\"\n\
                listen.backlog = 7\nlisten.max_client_connections = 5\n";
    let settings = Settings::from_toml(toml).unwrap();
    let listeners = settings.listeners();
    assert_eq!(listeners.len(), 1);
    assert_eq!(listeners[0].path, "listen");
    assert_eq!(listeners[0].backlog.get(), 7);
    assert_eq!(listeners[0].addresses, settings.listen.addresses);
    // `listen.max_client_connections` limits the clients of all listeners together. It is not the
    // limit of the single listener.
    assert_eq!(listeners[0].max_client_connections, None);
}

/// `earlier/full.toml` is the `examples/full.toml` of an earlier version of Seawall. It sets every
/// key that the earlier version had.
#[test]
fn a_full_file_of_an_earlier_version_loads_with_its_values() {
    let settings = Settings::from_toml(include_str!("earlier/full.toml")).unwrap();
    assert_eq!(
        settings.deployment.uri.expose(),
        "mongodb://127.0.0.1:27017/"
    );
    assert_eq!(settings.pool.max_pool_size.get(), 100);
    assert_eq!(
        settings.pool.max_life_time,
        Some(Duration::from_secs(1_800))
    );
    assert_eq!(settings.auth.max_stale, Duration::from_secs(300));
    assert_eq!(
        settings.limits.client_write_idle_timeout,
        Duration::from_secs(30)
    );
    assert_eq!(settings.shutdown.drain, Duration::from_secs(10));
}

#[test]
fn precedence_is_command_line_then_environment_then_file_then_default() {
    let scratch = Scratch::new("precedence");
    let file = scratch.file(
        "seawall.toml",
        "[deployment]\nuri = \"mongodb://file/\"\n\
         [admin]\naddress = \"127.0.0.1:1\"\n\
         [pool]\nmax_pool_size = 1\nmax_connecting = 1\n",
    );
    let mut sources = Sources {
        file: Some(file),
        ..Sources::default()
    };
    let of_file = load(&sources).unwrap();
    assert_eq!(of_file.deployment.uri.expose(), "mongodb://file/");
    assert_eq!(of_file.admin.address.to_string(), "127.0.0.1:1");
    assert_eq!(of_file.pool.max_pool_size.get(), 1);

    sources.environment = environment(&[
        ("SEAWALL_DEPLOYMENT__URI", "mongodb://environment/"),
        ("SEAWALL_ADMIN__ADDRESS", "127.0.0.1:2"),
        ("SEAWALL_POOL__MAX_POOL_SIZE", "2"),
        ("SEAWALL_LISTEN__ADDRESS", "127.0.0.1:3, unix:/run/s.sock"),
        ("SEAWALL_DEPLOYMENT__NAME_APPLICATIONS", "false"),
        ("PATH", "/bin"),
    ]);
    let of_environment = load(&sources).unwrap();
    assert_eq!(
        of_environment.deployment.uri.expose(),
        "mongodb://environment/"
    );
    assert_eq!(of_environment.admin.address.to_string(), "127.0.0.1:2");
    assert_eq!(of_environment.pool.max_pool_size.get(), 2);
    assert_eq!(of_environment.pool.max_connecting.get(), 1);
    assert_eq!(of_environment.listen.addresses.len(), 2);
    assert!(!of_environment.deployment.name_applications);

    sources.overrides = Overrides {
        listen: vec!["127.0.0.1:4".to_owned()],
        deployment: Some(Secret::new("mongodb://flag/".to_owned())),
        admin: Some("off".to_owned()),
    };
    let of_flags = load(&sources).unwrap();
    assert_eq!(of_flags.deployment.uri.expose(), "mongodb://flag/");
    assert_eq!(of_flags.admin.address, AdminAddress::Off);
    assert_eq!(
        of_flags.listen.addresses,
        [ListenAddress::Tcp("127.0.0.1:4".to_owned())]
    );
    assert_eq!(of_flags.pool.max_pool_size.get(), 2);
    assert_eq!(of_flags.pool.wait_queue_size.get(), 20_000);
}

#[test]
fn equal_listen_addresses_from_different_sources_have_equal_values() {
    let scratch = Scratch::new("values");
    let value = |toml: &str, variables: &[(&str, &str)], listen: &[&str]| {
        let loaded = load_with_values(&Sources {
            file: Some(scratch.file("seawall.toml", &format!("{DEPLOYMENT}{toml}"))),
            environment: environment(variables),
            overrides: Overrides {
                listen: listen.iter().map(|address| (*address).to_owned()).collect(),
                ..Overrides::default()
            },
        });
        let mut values = loaded.unwrap().values.into_iter();
        let value = values.find(|value| value.path == "listen.address");
        value.unwrap().value
    };
    let one = value("[listen]\naddress = \"0.0.0.0:1\"\n", &[], &[]);
    let two = value("", &[], &["0.0.0.0:1", "[::]:1"]);
    assert_ne!(one, two);
    for (addresses, expected) in [(vec!["0.0.0.0:1"], one), (vec!["0.0.0.0:1", "[::]:1"], two)] {
        let joined = addresses.join(", ");
        let variable = ("SEAWALL_LISTEN__ADDRESS", joined.as_str());
        let list = format!("[listen]\naddress = {addresses:?}\n");
        let of_flag = value("", &[], &addresses);
        let of_variable = value("", &[variable], &[]);
        let of_list = value(&list, &[], &[]);
        for value in [of_flag, of_variable, of_list] {
            assert_eq!(value, expected, "{addresses:?}");
        }
    }
}

#[test]
fn addresses_and_resource_attributes_do_not_change_the_configuration_hash() {
    let hash = |toml: &str| {
        let loaded = Loaded::from_toml(&format!("{toml}\n{DEPLOYMENT}"));
        configuration_hash(&loaded.unwrap().values)
    };
    for (one, other) in [
        (
            "listen.address = \"a:1\"",
            "listen.address = [\"b:1\", \"c:1\"]",
        ),
        ("admin.address = \"127.0.0.1:1\"", "admin.address = \"off\""),
        (
            "admin.metrics_address = \"a:1\"",
            "admin.metrics_address = \"b:1\"",
        ),
        (
            "telemetry.resource_attributes = \"host.name=a\"",
            "telemetry.resource_attributes = \"host.name=b\"",
        ),
        (
            "[[listeners]]\naddress = \"a:1\"",
            "[[listeners]]\naddress = \"b:1\"",
        ),
    ] {
        assert_eq!(hash(one), hash(other), "{one}");
    }
    assert_ne!(hash("listen.backlog = 1"), hash("listen.backlog = 2"));
    let listener = "[[listeners]]\naddress = \"a:1\"\n";
    assert_ne!(hash(listener), hash(&format!("{listener}backlog = 2")));
}

#[test]
fn the_source_of_higher_precedence_decides_whether_uri_or_uri_file_is_used() {
    let scratch = Scratch::new("either_form");
    let uri = scratch.file("uri", "mongodb://secret-file/\n");
    let with_file = scratch.file("a.toml", &format!("deployment.uri_file = {uri:?}\n"));
    let with_uri = scratch.file("b.toml", "deployment.uri = \"mongodb://file/\"\n");
    let uri_of = |file, variable: &str, value: &str| {
        let settings = load(&Sources {
            file: Some(file),
            environment: environment(&[(variable, value)]),
            ..Sources::default()
        });
        settings.unwrap().deployment.uri.expose().to_owned()
    };
    assert_eq!(
        uri_of(
            with_file,
            "SEAWALL_DEPLOYMENT__URI",
            "mongodb://environment/"
        ),
        "mongodb://environment/"
    );
    assert_eq!(
        uri_of(
            with_uri,
            "SEAWALL_DEPLOYMENT__URI_FILE",
            uri.to_str().unwrap()
        ),
        "mongodb://secret-file/"
    );
}

#[test]
fn one_line_break_at_the_end_of_a_secret_file_is_ignored() {
    let scratch = Scratch::new("secrets");
    let text = format!(
        "[deployment]\nuri_file = {:?}\n\
         [auth]\ncredentials = \"users\"\n\
         [[auth.users]]\nname = \"app\"\npassword_file = {:?}\n\
         [admin]\naddress = \"0.0.0.0:9909\"\ntoken_file = {:?}\n",
        scratch.file("uri", "mongodb+srv://cluster/\n"),
        scratch.file("password", "two\nlines \r\n"),
        scratch.file("token", "token"),
    );
    let settings = Settings::from_toml(&text).unwrap();
    assert_eq!(settings.deployment.uri.expose(), "mongodb+srv://cluster/");
    assert_eq!(settings.admin.tokens[0].secret.expose(), "token");
    assert_eq!(settings.auth.users[0].source, "admin");
    assert_eq!(
        settings.auth.users[0].credential,
        UserCredential::Password(Secret::new("two\nlines ".to_owned()))
    );
}

#[test]
fn scram_keys_are_decoded_from_base64() {
    let settings = Settings::from_toml(&format!(
        "{DEPLOYMENT}[[auth.users]]\nname = \"app\"\nsource = \"shop\"\n\
         [auth.users.scram_sha_1]\nsalt = \"AQID\"\niterations = 10000\n\
         stored_key = \"{KEY_20}\"\nserver_key = \"{KEY_20}\"\n\
         [auth.users.scram_sha_256]\nsalt = \"AQID\"\niterations = 15000\n\
         stored_key = \"{KEY_32}\"\nserver_key = \"{KEY_32}\"\n",
    ))
    .unwrap();
    let UserCredential::Keys(keys) = &settings.auth.users[0].credential else {
        panic!("expected a credential with keys");
    };
    let sha_1 = keys.scram_sha_1.as_ref().unwrap();
    assert_eq!(sha_1.salt, [1, 2, 3]);
    assert_eq!(sha_1.iterations.get(), 10_000);
    assert_eq!(sha_1.stored_key.expose(), &[0; 20]);
    assert_eq!(
        keys.scram_sha_256
            .as_ref()
            .unwrap()
            .server_key
            .expose()
            .len(),
        32
    );
}

#[test]
fn networks_of_ipv4_mapped_ipv6_addresses_become_ipv4_networks() {
    for (text, expected) in [
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:0:0/95", "::ffff:0.0.0.0/95"),
        ("2001:db8::/100", "2001:db8::/100"),
        ("192.0.2.7", "192.0.2.7/32"),
    ] {
        let toml = format!("{DEPLOYMENT}[limits]\nshared_addresses = \"{text}\"");
        let networks = Settings::from_toml(&toml).unwrap().limits.shared_addresses;
        let networks: Vec<_> = networks.iter().map(ToString::to_string).collect();
        assert_eq!(networks, [expected]);
    }
}

#[test]
fn zero_means_no_limit_for_idle_time_and_life_time() {
    let settings = Settings::from_toml(&format!(
        "{DEPLOYMENT}[pool]\nmax_idle_time_ms = 0\nmax_life_time_ms = 0\n\
         [runtime]\nworker_threads = 3\n[shutdown]\ndrain_ms = 0\n",
    ))
    .unwrap();
    assert_eq!(settings.pool.max_idle_time, None);
    assert_eq!(settings.pool.max_life_time, None);
    assert_eq!(settings.runtime.worker_threads.unwrap().get(), 3);
    assert_eq!(settings.shutdown.drain, Duration::ZERO);
}

#[test]
fn concurrency_is_a_word_or_a_number_in_a_file_and_in_a_variable() {
    let default = Settings::from_toml(DEPLOYMENT).unwrap();
    assert_eq!(default.pool.concurrency, Concurrency::Auto);
    let scratch = Scratch::new("concurrency");
    for (in_file, in_variable, expected) in [
        ("\"auto\"", "auto", Concurrency::Auto),
        ("\"off\"", "off", Concurrency::Off),
        ("32", "32", Concurrency::Fixed(NonZeroU32::new(32).unwrap())),
    ] {
        let text = format!("{DEPLOYMENT}[pool]\nconcurrency = {in_file}\n");
        let of_file = Settings::from_toml(&text).unwrap();
        assert_eq!(of_file.pool.concurrency, expected, "{in_file}");

        let text = format!("{DEPLOYMENT}[pool]\nconcurrency = 7\n");
        let of_variable = load(&Sources {
            file: Some(scratch.file("seawall.toml", &text)),
            environment: environment(&[("SEAWALL_POOL__CONCURRENCY", in_variable)]),
            ..Sources::default()
        });
        let of_variable = of_variable.unwrap();
        assert_eq!(of_variable.pool.concurrency, expected, "{in_variable}");
    }
}

#[test]
fn slow_log_is_off_unless_its_section_or_one_of_its_variables_is_given() {
    let off = Settings::from_toml(DEPLOYMENT).unwrap();
    assert_eq!(off.slow_log, None);
    let on = load(&Sources {
        environment: environment(&[
            ("SEAWALL_DEPLOYMENT__URI", "mongodb://s/"),
            ("SEAWALL_SLOW_LOG__SAMPLE_PERCENT", "12.5"),
            (
                "SEAWALL_SLOW_LOG__SHAPE_THRESHOLDS_MS",
                "fedcba9876543210=20, 0123456789abcdef = 5",
            ),
        ]),
        ..Sources::default()
    });
    let slow_log = on.unwrap().slow_log.unwrap();
    assert_eq!(slow_log.threshold, Duration::from_millis(100));
    assert_eq!(slow_log.sample_percent, 12.5);
    assert!(slow_log.redact);
    assert_eq!(
        slow_log.shape_thresholds,
        [
            (0x0123_4567_89ab_cdef, Duration::from_millis(5)),
            (0xfedc_ba98_7654_3210, Duration::from_millis(20)),
        ]
    );
}

/// The file has thresholds for two query shapes, which are identified by hexadecimal ids. The
/// environment variable has a threshold for only one of them.
#[test]
fn a_variable_with_the_threshold_of_one_query_shape_does_not_change_thresholds_of_other_shapes() {
    let scratch = Scratch::new("thresholds");
    let file = scratch.file(
        "seawall.toml",
        &format!(
            "{DEPLOYMENT}[slow_log]\nsample_percent = 50\nmax_lines_per_second = 0\n\
             [slow_log.shape_thresholds_ms]\n0123456789abcdef = 5\n\"fedcba9876543210\" = 6\n"
        ),
    );
    let slow_log = |threshold: &str| {
        let name = "SEAWALL_SLOW_LOG__SHAPE_THRESHOLDS_MS";
        load(&Sources {
            file: Some(file.clone()),
            environment: environment(&[(name, threshold)]),
            ..Sources::default()
        })
    };
    let settings = slow_log("0123456789abcdef=0").unwrap().slow_log.unwrap();
    assert_eq!(settings.sample_percent, 50.0);
    assert_eq!(settings.max_lines_per_second, None);
    assert_eq!(
        settings.shape_thresholds,
        [
            (0x0123_4567_89ab_cdef, Duration::ZERO),
            (0xfedc_ba98_7654_3210, Duration::from_millis(6)),
        ]
    );
    for wrong in ["", "0123456789abcdef", "0123456789abcdef=x"] {
        let problems = slow_log(wrong).unwrap_err();
        assert_eq!(keys(&problems), ["slow_log.shape_thresholds_ms"], "{wrong}");
    }
}

#[test]
fn variables_with_the_prefix_seawall_are_refused_unless_they_are_keys_or_reserved_names() {
    let sources = |name: &str| Sources {
        environment: environment(&[(name, "x"), ("SEAWALL_DEPLOYMENT__URI", "mongodb://s/")]),
        ..Sources::default()
    };
    for name in [
        "SEAWALL_MONGOD",
        "SEAWALL_LOG",
        "SEAWALL_SERVICE_HOST",
        "SEAWALL_PORT_27018_TCP",
        "SEAWALLS",
        "HOME",
    ] {
        assert!(load(&sources(name)).is_ok(), "{name}");
    }
    for name in [
        "SEAWALL_",
        "SEAWALL_POOL_MAX_POOL_SIZE",
        "SEAWALL_pool__max_pool_size",
        "SEAWALL_AUTH__USERS",
        "SEAWALL_LOGS",
    ] {
        let problems = load(&sources(name)).unwrap_err();
        assert_eq!(keys(&problems), [name]);
    }
}

fn environment(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn keys(problems: &Problems) -> Vec<&str> {
    problems
        .iter()
        .map(|problem| problem.key.as_str())
        .collect()
}

/// A temporary folder of one test. It is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = format!("seawall-config-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).expect("only this test writes to the temporary folder");
        Self(folder)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("only this test writes to the temporary folder");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the removal fails, the system removes the folder later.
        drop(fs::remove_dir_all(&self.0));
    }
}

const DEPLOYMENT: &str = "[deployment]\nuri = \"mongodb://server/\"\n";

const KEY_20: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAA=";

const KEY_32: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
