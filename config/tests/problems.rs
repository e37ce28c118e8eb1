//! Tests every kind of configuration problem. Seawall reports all problems at once, and no problem
//! shows a secret.

use std::fs;
use std::path::PathBuf;

use seawall_config::{KEYS, KeyKind, Overrides, Problems, Secret, Settings, Sources, load};

#[test]
fn each_mistake_is_reported_on_one_line_with_its_key_its_value_and_the_allowed_values() {
    for (mistake, line) in MISTAKES {
        let text = format!("deployment.uri = \"mongodb://server/\"\n{mistake}\n");
        let problems = Settings::from_toml(&text).unwrap_err();
        assert_eq!(&problems.to_string(), line);
    }
}

#[test]
fn an_unknown_section_is_reported() {
    let text = format!("{DEPLOYMENT}[mirror]\nshare = 0.1\n");
    let problems = Settings::from_toml(&text).unwrap_err();
    let mut lines = problems.iter().map(ToString::to_string);
    assert!(
        lines.any(|line| line.contains("unknown section")),
        "{problems}"
    );
}

#[test]
fn exactly_one_connection_string_is_required() {
    assert_eq!(
        lines(""),
        [
            "deployment.uri: must be given as deployment.uri, deployment.uri_file \
          or SEAWALL_DEPLOYMENT__URI"
        ]
    );
    assert_eq!(
        lines("deployment.uri = \"mongodb://server/\"\ndeployment.uri_file = \"/run/uri\""),
        ["deployment.uri_file = \"/run/uri\": must not be given together with deployment.uri"]
    );
    for uri in [
        "server:27017",
        "mongodb:/server",
        "mongodb://",
        "MongoDB://s",
    ] {
        assert_eq!(
            lines(&format!("deployment.uri = {uri:?}")),
            ["deployment.uri = (hidden): \
              must be a string that begins with mongodb:// or mongodb+srv://"]
        );
    }
}

#[test]
fn peers_need_different_addresses_and_no_token_file_or_one_common_file_or_one_file_per_peer() {
    let admin = |text: &str| lines(&format!("{DEPLOYMENT}[admin]\n{text}"));
    assert!(admin("peers = \"a:1, https://b:1\"").is_empty());
    for (text, expected) in [
        ("peers = \"a:1,http://a:1/\"", "must not be listed twice"),
        ("peers = \"a\"", "must be host:port or a URL"),
        (
            "peers = \"https://user:word@a:1\"",
            "must be host:port or a URL",
        ),
        ("peer_token_file = \"Cargo.toml\"", "of the 0 addresses"),
        (
            "peers = \"a:1,b:1,c:1\"\npeer_token_file = \"Cargo.toml,Cargo.toml\"",
            "one file for all addresses of admin.peers, or one for each of the 3 addresses",
        ),
        (
            "peers = \"a:1\"\npeer_ca_file = \"Cargo.toml\"",
            "must be absent unless an address of admin.peers begins with https://",
        ),
    ] {
        let lines = admin(text);
        assert!(
            lines.len() == 1 && lines[0].contains(expected),
            "{text}: {lines:?}"
        );
        assert!(!lines[0].contains("word"), "{lines:?}");
    }
}

#[test]
fn problems_caused_by_another_problem_are_not_reported() {
    assert_eq!(keys("deployment.uri = 7"), ["deployment.uri"]);
    assert_eq!(keys("deployment.uri_file = 7"), ["deployment.uri_file"]);
    assert_eq!(keys("deployment = 7"), ["deployment"]);
    let users = |text: &str| keys(&format!("{DEPLOYMENT}[auth]\n{text}"));
    assert_eq!(users("credentials = \"users\"\nusers = 7"), ["auth.users"]);
    assert_eq!(
        users("[[auth.users]]\nname = 7\npassword = 7"),
        ["auth.users[0].name", "auth.users[0].password"]
    );
    assert_eq!(
        keys(&format!(
            "{DEPLOYMENT}[admin]\naddress = \"a:1\"\ntoken_file = 7"
        )),
        ["admin.token_file"]
    );
    assert_eq!(
        keys(&format!(
            "{DEPLOYMENT}[pool]\nmin_pool_size = 200\nmax_pool_size = 0"
        )),
        ["pool.max_pool_size"]
    );
}

#[test]
fn users_must_be_unique_and_allowed_by_the_credentials_setting() {
    let user = |name: &str| format!("[[auth.users]]\nname = {name:?}\npassword = \"p\"\n");
    let auth = |credentials: &str, users: &str| {
        lines(&format!(
            "{DEPLOYMENT}[auth]\ncredentials = {credentials:?}\n{users}"
        ))
    };
    assert_eq!(
        auth("users", ""),
        ["auth.users: must have at least one user when auth.credentials is \"users\""]
    );
    for credentials in ["self", "lookup", "none"] {
        assert_eq!(
            auth(credentials, &user("app")),
            ["auth.users: must be absent unless auth.credentials is \"users\" or \"auto\""]
        );
    }
    for credentials in ["users", "auto"] {
        assert!(auth(credentials, &user("app")).is_empty());
    }
    let twice = format!("{}{}source = \"admin\"\n", user("app"), user("app"));
    assert_eq!(
        auth("users", &twice),
        ["auth.users[1].name = \"app\": \
          must be unique within its source; auth.users[0] has the same name"]
    );
    let elsewhere = format!("{}{}source = \"shop\"\n", user("app"), user("app"));
    assert!(auth("users", &elsewhere).is_empty());
    let too_many = format!("{}{}[limits]\nmax_users = 1\n", user("a"), user("b"));
    assert_eq!(
        auth("users", &too_many),
        ["auth.users = (2 users): must be at most limits.max_users, 1"]
    );
}

#[test]
fn a_user_has_a_name_and_exactly_one_credential() {
    let user = |text: &str| keys(&format!("{DEPLOYMENT}[[auth.users]]\n{text}"));
    assert_eq!(user("password = \"p\""), ["auth.users[0].name"]);
    assert_eq!(user("name = \"a\""), ["auth.users[0]"]);
    assert_eq!(
        user("name = \"a\"\npassword = \"p\"\npassword_file = \"f\""),
        ["auth.users[0]"]
    );
    assert_eq!(
        user("name = \"a\"\npassword = \"p\"\n[auth.users.scram_sha_1]"),
        ["auth.users[0]"]
    );
    assert_eq!(
        user("name = \"\"\npassword = \"p\""),
        ["auth.users[0].name"]
    );
    assert_eq!(
        user("name = \"a\"\npassword = \"\""),
        ["auth.users[0].password"]
    );
}

#[test]
fn scram_keys_must_be_complete_and_of_the_right_length() {
    let scram = |text: &str| {
        lines(&format!(
            "{DEPLOYMENT}[[auth.users]]\nname = \"a\"\n[auth.users.scram_sha_256]\n{text}"
        ))
    };
    assert_eq!(
        scram("salt = \"AQID\"\niterations = 4095\nstored_key = \"AQID\"\n"),
        [
            "auth.users[0].scram_sha_256.iterations = 4095: \
             must be an integer from 4096 to 10000000",
            "auth.users[0].scram_sha_256.stored_key = (hidden): \
             must be base64 of 32 bytes, but has 3 bytes",
            "auth.users[0].scram_sha_256.server_key: must be given",
        ]
    );
    assert_eq!(
        scram("salt = \"hunter 2\"\n")[0],
        "auth.users[0].scram_sha_256.salt = (hidden): must be base64 of 1 to 64 bytes: \
         not base64: invalid character at index 6"
    );
}

#[test]
fn tls_needs_a_readable_certificate_file_and_a_readable_key_file() {
    assert_eq!(
        lines(&format!("{DEPLOYMENT}[listen.tls]")),
        [
            "listen.tls.certificate_file: must be given",
            "listen.tls.key_file: must be given",
        ]
    );
    let this_file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let problems = lines(&format!(
        "{DEPLOYMENT}[listen.tls]\ncertificate_file = {this_file:?}\nkey_file = \"/no/key.pem\""
    ));
    let [problem] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    let start = "listen.tls.key_file = \"/no/key.pem\": must be a readable file: ";
    assert!(problem.starts_with(start), "{problem}");
}

#[test]
fn proxy_networks_are_required_with_proxy_protocol_accept_and_refused_without_it() {
    assert_eq!(
        lines(&format!(
            "{DEPLOYMENT}[listen]\nproxy_protocol = \"accept\""
        )),
        ["listen.proxy_networks: must be given if listen.proxy_protocol is \"accept\""]
    );
    assert_eq!(
        lines(&format!(
            "{DEPLOYMENT}[listen]\nproxy_networks = \"10.0.0.0/8\""
        )),
        ["listen.proxy_networks: must be absent unless listen.proxy_protocol is \"accept\""]
    );
}

#[test]
fn listen_tls_needs_a_key_per_certificate_and_client_certificates_need_a_ca_file() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let file = file.display();
    let problems = |toml: &str| {
        let toml = toml.replace("FILE", &file.to_string());
        lines(&format!("{DEPLOYMENT}[listen.tls]\n{toml}"))
    };
    let pair = "certificate_file = \"FILE\"\nkey_file = \"FILE\"\n";
    assert_eq!(
        problems("certificate_file = \"FILE, FILE\"\nkey_file = \"FILE\"\n"),
        [
            "listen.tls.key_file = (1 files): must list as many files as \
             listen.tls.certificate_file, which lists 2"
        ]
    );
    assert_eq!(
        problems("certificate_file = \" , \"\nkey_file = \"FILE\"\n"),
        ["listen.tls.certificate_file = \" , \": must name at least one file"]
    );
    assert_eq!(
        problems(&format!("{pair}client_certificate = \"optional\"\n")),
        [
            "listen.tls.client_ca_file: must be given unless listen.tls.client_certificate is \
             \"none\""
        ]
    );
    let required = "client_certificate = \"required\"\nclient_ca_file = \"FILE\"\n";
    assert_eq!(
        problems(&format!("{pair}{required}mode = \"prefer\"\n")),
        ["listen.tls.mode = \"prefer\": must be \"require\" if \
             listen.tls.client_certificate is \"required\""]
    );
    assert_eq!(
        problems(&format!(
            "{pair}client_ca_file = \"FILE\"\nclient_crl_file = \"FILE\"\n"
        )),
        [
            "listen.tls.client_ca_file: must be absent if listen.tls.client_certificate is \
             \"none\"",
            "listen.tls.client_crl_file: must be absent if listen.tls.client_certificate is \
             \"none\"",
        ]
    );
}

#[test]
fn all_problems_of_several_listeners_are_reported_each_with_the_path_of_its_key() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let listeners = format!(
        "{DEPLOYMENT}\
         [[listeners]]\nname = \"a\"\naddress = \"a:1\"\nproxy_protocol = \"accept\"\n\
         [[listeners]]\nname = \"a\"\naddress = [\"b:1\", \"a:1\"]\n\
         [listeners.tls]\ncertificate_file = {file:?}\nkey_file = {file:?}\n\
         client_certificate = \"required\"\n\
         [[listeners]]\nbacklogs = 1\nbacklog = 0\n\
         [listeners.tls]\nkey_file = \"/no/key.pem\"\n"
    );
    let problems = lines(&listeners);
    for (problem, expected) in problems.iter().zip([
        "listeners[2].backlog = 0: must be an integer from 1 to 65535",
        "listeners[2].backlogs = (an integer): unknown key; did you mean backlog? [listeners[2]] \
         has name, address, max_client_connections, backlog, proxy_protocol, proxy_networks, \
         compressors, tls",
        "listeners[2].address: must be given",
        "listeners[2].tls.certificate_file: must be given",
        "listeners[2].tls.key_file = \"/no/key.pem\": must be a readable file: ",
        "listeners[1].name = \"a\": must be unique; listeners[0] has the same name",
        "listeners[1].address[1] = \"a:1\": must not be listed twice",
        "listeners[0].proxy_networks: must be given if listeners[0].proxy_protocol is \"accept\"",
        "listeners[1].tls.client_ca_file: must be given unless listeners[1].tls.client_certificate \
         is \"none\"",
    ]) {
        assert!(problem.starts_with(expected), "{problems:#?}");
    }
    assert_eq!(problems.len(), 9, "{problems:#?}");
}

#[test]
fn address_and_tls_of_the_listen_section_are_refused_if_listeners_are_configured() {
    let listeners = "[[listeners]]\naddress = \"a:1\"\n";
    let of_all = format!("{DEPLOYMENT}[listen]\nmax_client_connections = 5\n{listeners}");
    assert_eq!(Settings::from_toml(&of_all).unwrap().listeners().len(), 1);
    let only = "[listen]\naddress = \"b:1\"\ntls.mode = \"prefer\"\n";
    let problems = lines(&format!("{DEPLOYMENT}{only}{listeners}"));
    let absent = "must be absent, because there are [[listeners]]; set it for each of them";
    for key in ["listen.address", "listen.tls"] {
        assert!(
            problems.contains(&format!("{key}: {absent}")),
            "{problems:#?}"
        );
    }
    let with_variable = |value: &str| {
        let path = std::env::temp_dir().join(format!("seawall-listeners-{}", std::process::id()));
        fs::write(&path, format!("{DEPLOYMENT}{listeners}")).unwrap();
        let loaded = load(&Sources {
            file: Some(path.clone()),
            environment: vec![("SEAWALL_LISTEN__ADDRESS".to_owned(), value.to_owned())],
            ..Sources::default()
        });
        fs::remove_file(&path).unwrap();
        loaded
    };
    assert!(with_variable("b:1").is_err());
    assert!(with_variable("").is_ok());
    let many: String = (0..33)
        .map(|port| format!("[[listeners]]\naddress = \"a:{port}\"\n"))
        .collect();
    assert_eq!(
        lines(&format!("{DEPLOYMENT}{many}")),
        ["listeners = (33 listeners): must be at most 32 listeners"]
    );
}

#[test]
fn admin_tls_has_the_same_rules_for_client_certificates_as_listen_tls() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let tls = |more: &str| {
        format!(
            "{DEPLOYMENT}[admin]\naddress = \"0.0.0.0:1\"\n\
             [admin.tls]\ncertificate_file = {file:?}\nkey_file = {file:?}\n{more}"
        )
    };
    let authority = format!("client_ca_file = {file:?}\n");
    let required = "client_certificate = \"required\"\n";
    assert_eq!(
        lines(&tls(required)),
        ["admin.tls.client_ca_file: must be given unless admin.tls.client_certificate is \"none\""]
    );
    // The admin token can be absent only if clients must send certificates. Here certificates are
    // optional, so the token is required.
    let optional = lines(&tls(&format!(
        "client_certificate = \"optional\"\n{authority}"
    )));
    assert_eq!(optional.len(), 1, "{optional:?}");
    assert!(optional[0].starts_with("admin.token_file: must be given"));
    let settings = Settings::from_toml(&tls(&format!("{required}{authority}")));
    assert!(settings.unwrap().admin.tls.is_some());
    let listen_only = lines(&tls(&format!("{required}{authority}mode = \"prefer\"\n")));
    assert!(listen_only[0].starts_with("admin.tls.mode = (a string): unknown key"));
}

#[test]
fn secret_files_must_be_readable_small_and_not_empty() {
    let folder = std::env::temp_dir().join(format!("seawall-config-files-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, contents: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, contents).unwrap();
        path
    };
    let cases = [
        (folder.join("absent"), "must be a readable file: "),
        (folder.clone(), "must be a readable file: "),
        (file("binary", &[0xff]), "must be a readable file: "),
        (
            file("large", &[b'x'; 64 * 1024 + 1]),
            "must be a readable file: larger than 65536 bytes",
        ),
        (file("empty", b"\r\n"), "must not be an empty file"),
        (
            file("not-a-uri", b"hunter2"),
            "must contain a string that begins with mongodb:// or mongodb+srv://",
        ),
    ];
    for (path, reason) in &cases {
        let problems = lines(&format!("deployment.uri_file = {path:?}"));
        let [problem] = problems.as_slice() else {
            panic!("{problems:?}");
        };
        let start = format!("deployment.uri_file = {path:?}: {reason}");
        assert!(problem.starts_with(&start), "{problem}");
    }
    let just_fits = format!("mongodb://{}", "x".repeat(64 * 1024 - 10));
    let path = file("just-fits", just_fits.as_bytes());
    assert!(lines(&format!("deployment.uri_file = {path:?}")).is_empty());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn all_problems_of_all_sources_are_reported_at_once() {
    let folder = std::env::temp_dir().join(format!("seawall-config-all-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("seawall.toml");
    let text = "[pol]\nmax = 1\n\
                [pool]\nmax_pool_size = \"many\"\nmin_pol_size = 1\nmin_pool_size = 500\n\
                [admin]\naddress = \"10.0.0.1:9909\"\n\
                [[auth.users]]\nname = \"a\"\npasword = \"hunter2\"\n\
                [[auth.users]]\npassword = \"p\"\n";
    fs::write(&file, text).unwrap();
    let problems = load(&Sources {
        file: Some(file),
        environment: vec![
            ("SEAWALL_POOL__MAX_CONNECTING".to_owned(), "two".to_owned()),
            ("SEAWALL_POOL_SIZE".to_owned(), "3".to_owned()),
        ],
        overrides: Overrides {
            listen: vec!["localhost".to_owned()],
            ..Overrides::default()
        },
    })
    .unwrap_err();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(
        keys_of(&problems),
        [
            "auth.users[0].pasword",
            "pol",
            "pool.max_pool_size",
            "pool.min_pol_size",
            "SEAWALL_POOL_SIZE",
            "pool.max_connecting",
            "listen.address[0]",
            "deployment.uri",
            "auth.users[0]",
            "auth.users[1].name",
            "admin.token_file",
        ]
    );
    assert_eq!(problems.to_string().lines().count(), problems.len());
    assert!(!problems.to_string().contains("hunter2"));
}

#[test]
fn a_problem_names_the_variable_or_the_command_line_that_gave_the_value() {
    let problems = load(&Sources {
        environment: vec![("SEAWALL_POOL__MAX_POOL_SIZE".to_owned(), "many".to_owned())],
        overrides: Overrides {
            admin: Some("on".to_owned()),
            deployment: Some(Secret::new("app:hunter2@server".to_owned())),
            ..Overrides::default()
        },
        ..Sources::default()
    })
    .unwrap_err()
    .to_string();
    assert!(problems.contains("pool.max_pool_size = \"many\" from SEAWALL_POOL__MAX_POOL_SIZE: "));
    assert!(problems.contains("admin.address = \"on\" from the command line: "));
    assert!(problems.contains("deployment.uri = (hidden) from the command line: "));
    assert!(!problems.contains("hunter2"));
}

#[test]
fn a_wrong_value_in_a_variable_is_reported_with_all_allowed_words_and_numbers() {
    for value in ["0", "-1", "1000001", "1.5", "on", "AUTO", ""] {
        let problems = load(&Sources {
            environment: vec![
                (
                    "SEAWALL_DEPLOYMENT__URI".to_owned(),
                    "mongodb://s/".to_owned(),
                ),
                ("SEAWALL_POOL__CONCURRENCY".to_owned(), value.to_owned()),
            ],
            ..Sources::default()
        })
        .unwrap_err();
        let shown = match value.parse::<i64>() {
            Ok(_) => value.to_owned(),
            Err(_) => format!("{value:?}"),
        };
        assert_eq!(
            problems.to_string(),
            format!(
                "pool.concurrency = {shown} from SEAWALL_POOL__CONCURRENCY: \
                 must be \"auto\", \"off\", or an integer from 1 to 1000000"
            )
        );
    }
}

#[test]
fn an_unreadable_file_does_not_hide_problems_of_the_environment() {
    let sources = |file: PathBuf| Sources {
        file: Some(file),
        environment: vec![("SEAWALL_X".to_owned(), String::new())],
        ..Sources::default()
    };
    let problems = load(&sources(PathBuf::from("/no/seawall.toml"))).unwrap_err();
    assert_eq!(keys_of(&problems), ["/no/seawall.toml", "SEAWALL_X"]);

    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let problems = load(&sources(source.clone())).unwrap_err();
    let position = format!("{}, line 1, column 5", source.display());
    assert_eq!(keys_of(&problems), [position.as_str(), "SEAWALL_X"]);
}

#[test]
fn syntax_errors_do_not_show_the_text_of_the_line() {
    for text in [
        "[deployment]\nuri = hunter2",
        "[deployment]\nuri = \"hunter2",
        "[deployment]\nuri = \"\\hunter2\"",
        "[deployment]\nuri \"hunter2\"",
        "[deployment]\nuri = \"a\"\nuri = \"hunter2\"",
        "[deployment]\nuri = \"a\" hunter2",
        "[deployment]\nuri = 2hunter2",
        "[deployment]\nuri = { hunter2 }",
    ] {
        let problems = Settings::from_toml(text).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(!problems.to_string().contains("hunter2"), "{problems}");
        assert!(
            problems.to_string().starts_with("configuration, line "),
            "{problems}"
        );
        assert_eq!(problems.to_string().lines().count(), 1);
    }
}

#[test]
fn no_problem_and_no_debug_output_shows_a_secret() {
    // For each key with a secret value, this loop tries values of a wrong type. If the value must
    // have a format, the loop also tries a string in a wrong format.
    for key in KEYS.iter().filter(|key| key.kind.is_secret()) {
        let table = key.path.replace("auth.users[].", "");
        let section = if table == key.path {
            ""
        } else {
            "[[auth.users]]\n"
        };
        for value in ["1234567", "[\"hunter2\"]", "{ a = \"hunter2\" }"] {
            let problems =
                Settings::from_toml(&format!("{section}{table} = {value}\n")).unwrap_err();
            assert!(!problems.to_string().contains("hunter2"), "{problems}");
            assert!(!problems.to_string().contains("1234567"), "{problems}");
            assert!(!format!("{problems:?}").contains("hunter2"), "{problems}");
        }
        if key.kind != KeyKind::Secret {
            let text = format!("{section}{table} = \"hunter2!\"\n");
            let problems = Settings::from_toml(&text).unwrap_err();
            assert!(!problems.to_string().contains("hunter2"), "{problems}");
        }
    }
    for misplaced in [
        "deployment = \"mongodb://app:hunter2@server/\"",
        "deployment.url = \"mongodb://app:hunter2@server/\"",
        "deployment.uri_file = \"mongodb://app:hunter2@server/\"",
        "listen.address = \"mongodb://app:hunter2@server/\"",
        "auth.users = [\"hunter2\"]",
        "auth.users = \"hunter2\"",
    ] {
        let problems = Settings::from_toml(misplaced).unwrap_err();
        assert!(!problems.to_string().contains("hunter2"), "{problems}");
    }
    let settings = Settings::from_toml(
        "[deployment]\nuri = \"mongodb://app:hunter2@server/\"\n\
         [[auth.users]]\nname = \"a\"\npassword = \"hunter2\"\n",
    );
    let printed = format!("{:?}", settings.unwrap());
    assert!(!printed.contains("hunter2"), "{printed}");
}

/// The problems of a configuration with this text, as printed; empty if there are none.
fn lines(text: &str) -> Vec<String> {
    match Settings::from_toml(text) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn keys(text: &str) -> Vec<String> {
    let problems = Settings::from_toml(text).expect_err("the text has problems");
    keys_of(&problems).into_iter().map(str::to_owned).collect()
}

fn keys_of(problems: &Problems) -> Vec<&str> {
    problems
        .iter()
        .map(|problem| problem.key.as_str())
        .collect()
}

const DEPLOYMENT: &str = "[deployment]\nuri = \"mongodb://server/\"\n";

/// Wrong lines of a configuration, each with the problem that is printed for the line.
const MISTAKES: &[(&str, &str)] = &[
    (
        "pool.max_pool_size = 0",
        "pool.max_pool_size = 0: must be an integer from 1 to 1000000",
    ),
    (
        "pool.max_pool_size = -1",
        "pool.max_pool_size = -1: must be an integer from 1 to 1000000",
    ),
    (
        "pool.max_pool_size = \"100\"",
        "pool.max_pool_size = \"100\": must be an integer from 1 to 1000000",
    ),
    (
        "pool.max_pool_size = 1.5",
        "pool.max_pool_size = 1.5: must be an integer from 1 to 1000000",
    ),
    (
        "pool.concurrency = 0",
        "pool.concurrency = 0: must be \"auto\", \"off\", or an integer from 1 to 1000000",
    ),
    (
        "pool.concurrency = -1",
        "pool.concurrency = -1: must be \"auto\", \"off\", or an integer from 1 to 1000000",
    ),
    (
        "pool.concurrency = 1000001",
        "pool.concurrency = 1000001: must be \"auto\", \"off\", or an integer from 1 to 1000000",
    ),
    (
        "pool.concurrency = 1.5",
        "pool.concurrency = 1.5: must be \"auto\", \"off\", or an integer from 1 to 1000000",
    ),
    (
        "pool.concurrency = \"on\"",
        "pool.concurrency = \"on\": must be \"auto\", \"off\", or an integer from 1 to 1000000",
    ),
    (
        "pool.concurrency = \"32\"",
        "pool.concurrency = \"32\": must be \"auto\", \"off\", or an integer from 1 to 1000000",
    ),
    (
        "pool.concurrency = true",
        "pool.concurrency = true: must be \"auto\", \"off\", or an integer from 1 to 1000000",
    ),
    (
        "pool.wait_queue_timeout_ms = 0",
        "pool.wait_queue_timeout_ms = 0: must be an integer from 1 to 604800000",
    ),
    (
        "pool.min_pool_size = 101",
        "pool.min_pool_size = 101: must be at most pool.max_pool_size, 100",
    ),
    (
        "deployment.heartbeat_frequency_ms = 499",
        "deployment.heartbeat_frequency_ms = 499: must be an integer from 500 to 604800000",
    ),
    (
        "deployment.original_destination = true",
        "deployment.original_destination = true: must be false unless deployment.mode is \"relay\"",
    ),
    (
        "deployment.mode = \"direct\"",
        "deployment.mode = \"direct\": must be \"pooled\" or \"relay\"",
    ),
    (
        "limits.message_memory_bytes = 134217727",
        "limits.message_memory_bytes = 134217727: \
         must be an integer from 134217728 to 1099511627776",
    ),
    (
        "shapes.enabled = \"yes\"",
        "shapes.enabled = \"yes\": must be true or false",
    ),
    (
        "history.memory_bytes = 1048575",
        "history.memory_bytes = 1048575: must be an integer from 1048576 to 1099511627776",
    ),
    (
        "history.directory = \"\"",
        "history.directory = \"\": must be the path of a directory",
    ),
    (
        "pulse.interval_ms = 99",
        "pulse.interval_ms = 99: must be an integer from 100 to 60000",
    ),
    (
        "slow_log.sample_percent = 100.5",
        "slow_log.sample_percent = 100.5: must be a number from 0 to 100",
    ),
    (
        "slow_log.sample_percent = nan",
        "slow_log.sample_percent = NaN: must be a number from 0 to 100",
    ),
    (
        "slow_log.sample_percent = -1",
        "slow_log.sample_percent = -1: must be a number from 0 to 100",
    ),
    (
        "slow_log.max_command_bytes = 65537",
        "slow_log.max_command_bytes = 65537: must be an integer from 1 to 65536",
    ),
    (
        "slow_log.shape_thresholds_ms = 5",
        "slow_log.shape_thresholds_ms = 5: must be a table of shape ids (16 hex digits, lower case) \
         and integers from 0 to 604800000",
    ),
    (
        "slow_log.shape_thresholds_ms = { 0123456789abcdef = 5, 0123456789ABCDEF = 6 }",
        "slow_log.shape_thresholds_ms.0123456789ABCDEF = 6: must be a table of shape ids \
         (16 hex digits, lower case) and integers from 0 to 604800000",
    ),
    (
        "slow_log.shape_thresholds_ms.0123456789abcdef = -1",
        "slow_log.shape_thresholds_ms.0123456789abcdef = -1: must be a table of shape ids \
         (16 hex digits, lower case) and integers from 0 to 604800000",
    ),
    (
        "log.level = \"all\"",
        "log.level = \"all\": must be \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
    ),
    (
        "admin.address = \"on\"",
        "admin.address = \"on\": must be \"host:port\", \"[address]:port\" or \"off\": \
         the port is missing",
    ),
    (
        "admin.address = \"0.0.0.0:9909\"",
        "admin.token_file: must be given unless admin.tls.client_certificate is \"required\", \
         because admin.address is not loopback: \
         0.0.0.0:9909",
    ),
    (
        "admin.token_file = \"\"",
        "admin.token_file = \"\": must be the path of a file, or several paths separated by commas",
    ),
    (
        "listen.address = \":27018\"",
        "listen.address = \":27018\": must be \"host:port\", \"[address]:port\", \
         \"unix:/path\", or a list of them: the host is missing; \
         use 0.0.0.0 or [::] for all interfaces",
    ),
    (
        "listen.address = []",
        "listen.address = []: must be \"host:port\", \"[address]:port\", \"unix:/path\", \
         or a list of them",
    ),
    (
        "listen.address = [\"a:1\", 7]",
        "listen.address[1] = 7: must be \"host:port\", \"[address]:port\", \"unix:/path\", \
         or a list of them",
    ),
    (
        "listen.address = [\"a:1\", \"b:2\", \"a:1\"]",
        "listen.address[2] = \"a:1\": must not be listed twice",
    ),
    (
        "listen.address = [\"0.0.0.0:1\", \"unix:/a\", \"10.0.0.1:1\"]",
        "listen.address[2] = \"10.0.0.1:1\": must have another port than listen.address[0], \
         0.0.0.0:1",
    ),
    (
        "pool = 3",
        "pool = (an integer): must be a table, written as [pool]",
    ),
    (
        "admin.adress = \"off\"",
        "admin.adress = (a string): unknown key; did you mean address? \
         [admin] has address, metrics_address, token_file, read_token_file, allowed_hosts, commands, dashboard, profile, peers, peer_token_file, peer_ca_file, peer_certificate_key_file, tls",
    ),
    (
        "admin.max_pool_size = 3",
        "admin.max_pool_size = (an integer): unknown key; did you mean pool.max_pool_size? \
         [admin] has address, metrics_address, token_file, read_token_file, allowed_hosts, commands, dashboard, profile, peers, peer_token_file, peer_ca_file, peer_certificate_key_file, tls",
    ),
    (
        "admins.address = \"off\"",
        "admins = (a table): unknown section; did you mean admin? the sections are listen, listeners, \
         deployment, auth, pool, limits, shapes, history, pulse, slow_log, capture, fault, shutdown, runtime, \
         admin, telemetry, log, reload",
    ),
    (
        "shutdown.\"drain\\nms\" = 1",
        "shutdown.\"drain\\nms\" = (an integer): unknown key; [shutdown] has drain_ms",
    ),
    (
        "\"shutdown.drain_ms\" = 1",
        "\"shutdown.drain_ms\" = (an integer): unknown section; the sections are listen, listeners, deployment, \
         auth, pool, limits, shapes, history, pulse, slow_log, capture, fault, shutdown, runtime, admin, telemetry, log, reload",
    ),
];
