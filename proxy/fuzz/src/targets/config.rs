//! Configuration: the text of a file, or environment variables.
//!
//! Input, in this order:
//!
//! - one byte that selects a file or the environment;
//! - the text of the file, or lines of `NAME=value`.

use std::collections::HashSet;

use seawall_config::{
    AdminAddress, ClientCertificate, ListenAddress, Problems, Settings, Sources, Tls, load,
};

use crate::choices::Choices;

/// Maximum length of the text. Longer texts take more time, and find no further errors.
const MAX_TEXT_BYTES: usize = 16 * 1024;

/// Minimum value of `message_memory_bytes` in accepted settings. With less memory for messages,
/// Seawall could not hold one large message and its reply.
const LEAST_MESSAGE_MEMORY_BYTES: usize = 128 << 20;

/// Checks that accepted settings obey the rules in `check_settings`, such as unique
/// addresses. If the text is refused, checks that each reported problem is one line.
pub fn config(data: &[u8]) {
    let mut choices = Choices::new(data);
    let is_environment = choices.bool();
    let text = choices.rest();
    let text = String::from_utf8_lossy(text.get(..MAX_TEXT_BYTES).unwrap_or(text));
    let settings = || match is_environment {
        true => load(&of_environment(&text)),
        false => Settings::from_toml(&text),
    };
    let loaded = settings();
    assert_eq!(settings(), loaded, "the same text gives the same settings");
    match loaded {
        Ok(settings) => check_settings(&settings),
        Err(problems) => check_problems(&problems),
    }
}

fn of_environment(text: &str) -> Sources {
    let variables = text.lines().filter_map(|line| line.split_once('='));
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Sources {
        environment: variables.collect(),
        ..Sources::default()
    }
}

fn check_problems(problems: &Problems) {
    assert!(!problems.is_empty(), "a refused text has a problem");
    assert_eq!(problems.iter().count(), problems.len());
    for problem in problems.iter() {
        let line = problem.to_string();
        assert!(!line.contains(['\n', '\r']), "{line:?} is one line");
        assert!(!problem.key.is_empty() && !problem.allowed.is_empty());
    }
}

fn check_settings(settings: &Settings) {
    let listeners = settings.listeners();
    assert!(!listeners.is_empty());
    let mut addresses = HashSet::new();
    for listener in &*listeners {
        assert!(!listener.addresses.is_empty());
        for address in &listener.addresses {
            assert!(addresses.insert(address), "addresses are unique");
            let parsed: Result<ListenAddress, _> = address.to_string().parse();
            assert_eq!(parsed.as_ref(), Ok(address));
        }
        let compressors: HashSet<_> = listener.compressors.iter().map(|c| c.name()).collect();
        assert_eq!(
            compressors.len(),
            listener.compressors.len(),
            "compressors are unique"
        );
    }

    let uri = settings.deployment.uri.expose();
    assert!(uri.starts_with("mongodb://") || uri.starts_with("mongodb+srv://"));
    let debug = format!("{:?}", settings.deployment);
    assert!(!debug.contains(uri), "the connection string is hidden");

    let admin = &settings.admin;
    let has_token = !admin.tokens.is_empty() || !admin.read_tokens.is_empty();
    let requires = |tls: &Tls| tls.client_certificate == ClientCertificate::Required;
    let requires_certificate = admin.tls.as_ref().is_some_and(requires);
    assert!(admin.address.is_private() || has_token || requires_certificate);
    if let AdminAddress::Tcp(address) = &admin.address {
        assert!(address.contains(':'));
    }
    assert!(
        admin
            .allowed_hosts
            .iter()
            .all(|host| *host == host.to_ascii_lowercase())
    );

    let pool = &settings.pool;
    assert!(pool.min_pool_size <= pool.max_pool_size.get());
    assert!(settings.limits.message_memory_bytes >= LEAST_MESSAGE_MEMORY_BYTES);
}
