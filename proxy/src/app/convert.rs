//! Converts the configuration to the settings of each part of Seawall.

use std::sync::{Arc, atomic::AtomicU64};

use seawall_config as config;
use zeroize::Zeroizing;

use super::StartError;
use crate::{
    admin, client,
    client::{ConfiguredUser, CredentialMode, CredentialSettings, Fault, FaultEnd, UserSecret},
    limits::LimitNumbers,
    listener::MAX_WAITING,
    pins::PinLimits,
    pool,
    runtime::raise_descriptor_limit,
    topology::{self, DeploymentOptions},
};
use seawall_auth::{Key, Mechanism, NonceSource, ScramKeys};
use seawall_transport::connection::{Connector, ServerTls};
use seawall_wire::Compressor;

/// The guard that decides which requests the admin address admits.
pub(super) fn guard(admin: &config::Admin) -> admin::Guard {
    let tokens = |files: &[config::SecretFile], role| {
        let tokens = files.iter().map(move |file| admin::Token {
            name: file.path.display().to_string(),
            secret: file.secret.expose().to_owned(),
            role,
        });
        tokens.collect::<Vec<_>>()
    };
    let mut all = tokens(&admin.tokens, admin::Role::Act);
    all.extend(tokens(&admin.read_tokens, admin::Role::Read));
    admin::Guard {
        tokens: all.into_iter().map(Arc::new).collect(),
        allowed_hosts: admin.allowed_hosts.clone(),
        requires_certificate: admin
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client_certificate == config::ClientCertificate::Required),
    }
}

/// The limits that all clients share.
pub(super) fn limit_numbers(settings: &config::Settings) -> LimitNumbers {
    let limits = &settings.limits;
    LimitNumbers {
        clients: max_clients(settings),
        handshakes: limits.unauthenticated_connections.get(),
        monitors: limits.monitor_connections.get(),
        relays: limits.relayed_connections.get(),
        operations: limits.max_in_flight_operations.get(),
        arrivals_per_address: limits.connections_per_second_per_address,
        logins_per_user: limits.logins_per_second_per_user,
    }
}

pub(super) fn connector(
    settings: &config::Settings,
    deployment: &DeploymentOptions,
    tls: Option<Arc<ServerTls>>,
    nonces: &Arc<NonceSource>,
) -> Connector {
    Connector::new(
        tls,
        named(&deployment.compressors()),
        settings.deployment.connect_timeout,
        Arc::clone(nonces),
    )
}

/// Converts the configured fault. Logs a warning, so that the fault is not left in the
/// configuration by mistake.
pub(super) fn fault(fault: &config::Fault) -> Fault {
    let config::Fault {
        command,
        namespace,
        share_percent,
        delay,
        error_code,
        close,
    } = fault;
    tracing::warn!(
        command,
        namespace,
        share_percent,
        delay_ms = delay.as_millis(),
        error_code,
        close,
        "fault injection is enabled"
    );
    Fault {
        command: command.clone(),
        namespace: namespace.clone(),
        share_percent: *share_percent,
        delay: *delay,
        end: match (close, error_code) {
            (true, _) => FaultEnd::Close,
            (false, Some(code)) => FaultEnd::Error(*code),
            (false, None) => FaultEnd::Continue,
        },
        matched: AtomicU64::new(0),
    }
}

pub(super) fn pin_limits(limits: &config::Limits) -> PinLimits {
    PinLimits {
        max_cursors: limits.max_cursors.get(),
        max_transactions: limits.max_transactions.get(),
        cursor_idle: limits.cursor_idle,
        transaction_idle: limits.transaction_idle,
    }
}

/// Number of file descriptors that are reserved for all uses that [`room_for_clients`] does not
/// count. It counts clients, connections to one server (`pool.max_server_connections`), and
/// connections that wait for a header of the PROXY protocol. The reserved descriptors are for at
/// most 144 sockets of two HTTP addresses, 128 requests to other instances and 34 listeners. With
/// the default limits and one server, they are also for at most 100 server connections outside of
/// the pools. Files, DNS and the runtimes use about 40 descriptors.
const OTHER_DESCRIPTORS: u64 = 450;

/// Returns the maximum number of clients: the configured number, or fewer if the limit of file
/// descriptors is too low.
pub(super) fn clients_in_effect(settings: &config::Settings) -> usize {
    let wanted = settings.listen.max_client_connections.get();
    room_for_clients(settings).map_or(wanted, |room| room.clients.min(wanted))
}

/// The problem of a configuration whose other connections may need all file descriptors. Seawall
/// would run with it, but refuse all clients.
pub(crate) fn descriptor_problem(settings: &config::Settings) -> Option<String> {
    let room = room_for_clients(settings)?;
    let servers = settings.pool.max_server_connections;
    // If the limit is lower than the reserved number, a lower value does not help.
    let or_lower = match room.allowed > room.reserved {
        true => ", or lower the value",
        false => "",
    };
    (room.clients == 0).then(|| {
        format!(
            "pool.max_server_connections: {servers} leaves no file descriptors for clients: the \
             limit of this process is {}, and {} are reserved for other uses; raise the \
             limit{or_lower}",
            room.allowed, room.reserved
        )
    })
}

/// The file descriptors of the process.
struct Descriptors {
    /// The limit of descriptors.
    allowed: u64,
    /// Number of descriptors that are neither for clients nor for pooled server connections.
    reserved: u64,
    /// Maximum number of clients that the limit allows.
    clients: usize,
}

/// Returns how the descriptors are shared. `None` if there is no limit. Assumes that there is only
/// one server, and that no client is relayed because of `auth.other_mechanisms`.
fn room_for_clients(settings: &config::Settings) -> Option<Descriptors> {
    let allowed = raise_descriptor_limit()?;
    let accepts =
        |listener: &config::Listener| listener.proxy_protocol == config::ProxyProtocol::Accept;
    let waiting = match settings.listeners().iter().any(accepts) {
        true => u64::try_from(MAX_WAITING).unwrap_or(u64::MAX),
        false => 0,
    };
    let reserved = OTHER_DESCRIPTORS.saturating_add(waiting);
    let servers = u64::try_from(settings.pool.max_server_connections.get()).unwrap_or(u64::MAX);
    let each = match settings.deployment.mode {
        config::Mode::Pooled => 1,
        // A relayed client needs a second descriptor, for its server connection.
        config::Mode::Relay => 2,
    };
    let room = allowed.saturating_sub(reserved.saturating_add(servers)) / each;
    Some(Descriptors {
        allowed,
        reserved,
        clients: usize::try_from(room).unwrap_or(usize::MAX),
    })
}

/// Returns the same number as [`clients_in_effect`]. Also logs whether the limit of descriptors is
/// high enough for the configured number of clients. If there is no limit, logs nothing.
fn max_clients(settings: &config::Settings) -> usize {
    let wanted = settings.listen.max_client_connections.get();
    let Some(Descriptors {
        allowed, clients, ..
    }) = room_for_clients(settings)
    else {
        return wanted;
    };
    if clients < wanted {
        tracing::warn!(
            descriptors = allowed,
            wanted,
            allowed_clients = clients,
            "descriptor limit is too low for the configured number of clients"
        );
    } else {
        tracing::info!(
            descriptors = allowed,
            clients = wanted,
            servers = settings.pool.max_server_connections.get(),
            "descriptor limit is sufficient"
        );
    }
    clients.min(wanted)
}

pub(super) fn topology_settings(settings: &config::Settings) -> topology::TopologySettings {
    let pool = &settings.pool;
    topology::TopologySettings {
        local_threshold: settings.deployment.local_threshold,
        heartbeat_frequency: settings.deployment.heartbeat_frequency,
        pool: pool::PoolLimits {
            max_pool_size: pool.max_pool_size.get(),
            min_pool_size: pool.min_pool_size,
            max_server_connections: pool.max_server_connections.get(),
            connections_per_second: pool.connections_per_second,
            max_connecting: pool.max_connecting.get(),
            concurrency: match pool.concurrency {
                config::Concurrency::Auto => pool::Concurrency::Auto,
                config::Concurrency::Fixed(limit) => pool::Concurrency::Fixed(limit),
                config::Concurrency::Off => pool::Concurrency::Off,
            },
            max_exempt_operations: pool.max_exempt_operations,
            max_idle_time: pool.max_idle_time,
            max_life_time: pool.max_life_time,
            wait_queue_timeout: pool.wait_queue_timeout,
            wait_queue_size: pool.wait_queue_size.get(),
            // The topology sets `renewal` when a reload changes TLS to servers.
            renewal: None,
        },
        closes_outdated_relays: settings.deployment.relay_close_outdated,
    }
}

pub(super) fn client_settings(settings: &config::Settings) -> client::ClientSettings {
    let listeners = settings.listeners();
    let mut addresses = listeners.iter().flat_map(|of| &of.addresses);
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    client::ClientSettings {
        pre_auth_message_bytes: settings.limits.pre_auth_message_bytes,
        authentication_timeout: settings.auth.authentication_timeout,
        server_selection_timeout: settings.deployment.server_selection_timeout,
        wait_queue_timeout: settings.pool.wait_queue_timeout,
        client_write_idle_timeout: settings.limits.client_write_idle_timeout,
        name_applications: settings.deployment.name_applications,
        repeats: settings.deployment.repeat,
        is_relay: settings.deployment.mode == config::Mode::Relay,
        original_destination: settings.deployment.original_destination,
        relays_encrypted: settings.deployment.relay_encrypted,
        relay_proxy_port: settings.deployment.relay_proxy_port,
        shared_addresses: settings.limits.shared_addresses.clone(),
        serves_own_commands: settings.admin.commands,
        relays_other_mechanisms: settings.auth.other_mechanisms == config::OtherMechanisms::Relay,
        host: match addresses.next() {
            Some(address) => format!("{host} {address}"),
            None => host,
        },
    }
}

pub(super) fn named(compressors: &[&str]) -> Vec<Compressor> {
    let named = compressors.iter().copied().filter_map(Compressor::parse);
    named.collect()
}

pub(super) fn credential_settings(
    auth: &config::Auth,
    limits: &config::Limits,
    has_service_account: bool,
) -> Result<CredentialSettings, StartError> {
    let mode = match auth.credentials {
        config::Credentials::Auto if has_service_account => CredentialMode::Lookup,
        config::Credentials::Auto if !auth.users.is_empty() => CredentialMode::Users,
        config::Credentials::Auto => CredentialMode::Undecided,
        config::Credentials::Own => CredentialMode::Own,
        config::Credentials::Lookup if !has_service_account => {
            return Err(StartError::NoServiceAccount);
        }
        config::Credentials::Lookup => CredentialMode::Lookup,
        config::Credentials::Users => CredentialMode::Users,
        config::Credentials::None => CredentialMode::None,
    };
    let users = auth.users.iter().map(user).collect::<Result<_, _>>()?;
    Ok(CredentialSettings {
        mode,
        users,
        max_stale: auth.max_stale,
        max_users: limits.max_users.get(),
        first_logins: limits.introductions.get(),
        conversations: limits.introduction_conversations.get(),
    })
}

fn user(user: &config::User) -> Result<ConfiguredUser, StartError> {
    let secret = match &user.credential {
        config::UserCredential::Password(password) => {
            UserSecret::Password(Zeroizing::new(password.expose().to_owned()))
        }
        config::UserCredential::Keys(keys) => UserSecret::Keys {
            sha1: keys
                .scram_sha_1
                .as_ref()
                .map(|k| scram_keys(Mechanism::ScramSha1, k))
                .transpose()?,
            sha256: keys
                .scram_sha_256
                .as_ref()
                .map(|k| scram_keys(Mechanism::ScramSha256, k))
                .transpose()?,
        },
    };
    Ok(ConfiguredUser {
        name: user.name.clone(),
        source: user.source.clone(),
        secret,
    })
}

fn scram_keys<const N: usize>(
    mechanism: Mechanism,
    keys: &config::ScramKeys<N>,
) -> Result<ScramKeys, StartError> {
    let key = |bytes: &config::SecretBytes<N>| {
        Key::new(mechanism, bytes.expose())
            .ok_or_else(|| StartError::User(format!("a {mechanism} key has the wrong length")))
    };
    let (stored_key, server_key) = (key(&keys.stored_key)?, key(&keys.server_key)?);
    ScramKeys::new(
        keys.salt.clone(),
        keys.iterations.get(),
        stored_key,
        server_key,
    )
    .map_err(|error| StartError::User(error.to_string()))
}
