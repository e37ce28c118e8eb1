//! Monitoring by the official driver. Its events update Seawall's topology description.

mod account;
mod rejection;
mod seeds;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use mongodb::{
    Client, ServerInfo, ServerType as DriverServerType, TopologyType as DriverTopologyType,
    error::ErrorKind,
    event::{
        EventHandler,
        sdam::{SdamEvent, TopologyDescription},
    },
    options::{
        ClientOptions, Compressor, ServerAddress as DriverAddress, ServerMonitoringMode, Tls,
        TlsOptions,
    },
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

pub use self::rejection::DeploymentError;
use self::{
    account::service_account_in,
    seeds::{KnownDeployment, Seeds},
};
use super::{
    Member, Topology,
    description::{ServerDescription, ServerType, TopologyType},
    driver_tls::DriverTls,
    probe,
};
use crate::{pool::ServerPool, runtime::OccasionalLog};
use seawall_locks::Mutex;
use seawall_transport::connection::{Account, Password, ServerAddress};

/// The port of a server whose address contains no port.
const DEFAULT_PORT: u16 = 27017;

/// Time limit for resolving the DNS name of a connection string while the start, a reload or
/// `seawall check` waits for the result.
const DNS_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for resolving the DNS name in the background. If a name server is down, the reply of
/// the next one may take longer than [`DNS_LIMIT`].
const BACKGROUND_DNS_LIMIT: Duration = Duration::from_secs(60);

/// Pause between two attempts to resolve the DNS name of a connection string.
const RESOLVE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Pause between two attempts to create the driver's client that monitors the deployment.
const MONITOR_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A new monitoring client of the driver, for example after a change of the TLS settings, replaces
/// the earlier client when it has found all servers. After this time, one server is enough.
const REPLACEMENT_LIMIT: Duration = Duration::from_secs(30);

/// The reason why the DNS name of a `mongodb+srv` string is not resolved.
#[derive(Clone, Debug, thiserror::Error)]
enum ResolveError {
    /// DNS replied with an error, or with records that cannot be used.
    #[error("{0}")]
    Dns(Box<ErrorKind>),
    /// The time limit has passed.
    #[error("DNS did not reply in time")]
    TimedOut,
    /// The string cannot be used with the options in DNS.
    #[error(transparent)]
    Unusable(#[from] DeploymentError),
}

/// All options of a connection string, or the reason why its DNS name is not resolved.
type Resolved = Result<Box<ClientOptions>, ResolveError>;

/// A parsed connection string. `Debug` does not print it, because it may contain the service
/// account's password.
#[derive(Clone)]
pub struct DeploymentOptions {
    uri: Zeroizing<String>,
    heartbeat_frequency: Duration,
    /// All options; an error until the DNS name of a `mongodb+srv` string has been resolved.
    options: Resolved,
    /// All options if the DNS name has been resolved; otherwise only the options that the
    /// connection string itself contains.
    written: Box<ClientOptions>,
}

impl fmt::Debug for DeploymentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeploymentOptions")
    }
}

/// Options that matter only for the DNS query. The driver rejects them in a `mongodb` string.
const DNS_OPTIONS: [&str; 2] = ["srvMaxHosts", "srvServiceName"];

/// A connection string without its [`DNS_OPTIONS`].
fn without_dns_options(uri: &str) -> String {
    let (start, options) = uri.split_once('?').unwrap_or((uri, ""));
    let is_kept = |option: &&str| {
        let (name, _) = option.split_once('=').unwrap_or((*option, ""));
        !DNS_OPTIONS.iter().any(|of| of.eq_ignore_ascii_case(name))
    };
    let kept: Vec<&str> = options.split('&').filter(is_kept).collect();
    format!("{start}?{}", kept.join("&"))
}

/// A connection string that needs no DNS query. A `mongodb+srv` string becomes a `mongodb` string
/// with the same options.
fn without_dns(uri: &str) -> String {
    without_dns_options(&uri.replacen("mongodb+srv://", "mongodb://", 1))
}

/// Parses the options in a `mongodb+srv` string itself, without DNS. TLS is on by default.
async fn options_without_dns(uri: &str) -> Result<ClientOptions, DeploymentError> {
    let mut options = match ClientOptions::parse(without_dns(uri)).await {
        Ok(options) => options,
        Err(error) => return Err(DeploymentError::of_rejected(uri, error).await),
    };
    options
        .tls
        .get_or_insert(Tls::Enabled(TlsOptions::default()));
    Ok(options)
}

/// Waits at most `limit` until the driver has parsed a connection string and resolved its DNS name.
///
/// # Errors
/// If the driver rejects the string itself.
async fn resolve(
    parsing: impl IntoFuture<Output = mongodb::error::Result<ClientOptions>>,
    limit: Duration,
) -> mongodb::error::Result<Resolved> {
    match timeout(limit, parsing).await {
        Ok(Ok(options)) => Ok(Ok(Box::new(options))),
        Ok(Err(error)) if matches!(*error.kind, ErrorKind::DnsResolve { .. }) => {
            Ok(Err(ResolveError::Dns(error.kind)))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(Err(ResolveError::TimedOut)),
    }
}

impl DeploymentOptions {
    /// Parses a connection string. A `mongodb+srv` string requires a DNS query. If the query fails
    /// or takes longer than five seconds, the result has only the options in the string itself.
    /// `watch` then repeats the query later.
    ///
    /// # Errors
    /// [`DeploymentError`] if the string itself is invalid.
    pub async fn parse(uri: &str, heartbeat_frequency: Duration) -> Result<Self, DeploymentError> {
        Self::parse_within(DNS_LIMIT, uri, heartbeat_frequency).await
    }

    /// Like [`Self::parse`], with this time limit for the DNS query.
    async fn parse_within(
        limit: Duration,
        uri: &str,
        heartbeat_frequency: Duration,
    ) -> Result<Self, DeploymentError> {
        let options = match resolve(ClientOptions::parse(uri), limit).await {
            Ok(options) => options,
            Err(error) => return Err(DeploymentError::of_rejected(uri, error).await),
        };
        let written = match &options {
            Ok(options) => options.clone(),
            Err(_) => Box::new(options_without_dns(uri).await?),
        };
        if written.load_balanced == Some(true) {
            return Err(DeploymentError::Unsupported("loadBalanced=true"));
        }
        service_account_in(&written)?;
        Ok(Self {
            uri: Zeroizing::new(uri.to_owned()),
            heartbeat_frequency,
            options,
            written,
        })
    }

    /// The service account; `None` if the connection string has no user.
    pub(crate) fn service_account(&self) -> Option<Account> {
        service_account_in(&self.written).ok().flatten()
    }

    /// True if a server gets the password of the service account itself.
    pub(crate) fn sends_password(&self) -> bool {
        let account = self.service_account();
        account.is_some_and(|account| account.sends_password())
    }

    /// The hosts of the deployment, from the connection string, or from DNS if the string begins
    /// with `mongodb+srv`. `None` if that DNS query has failed.
    pub(crate) fn hosts(&self) -> Option<Vec<ServerAddress>> {
        let hosts = self.options.as_ref().ok()?.hosts.iter();
        Some(hosts.filter_map(own_address).collect())
    }

    /// Sets the TLS options that the official driver uses.
    pub(crate) fn set_driver_tls(&mut self, tls: &DriverTls) {
        tls.apply(&mut self.written);
        if let Ok(options) = &mut self.options {
            tls.apply(options);
        }
    }

    /// The password of the service account, if the connection string contains one.
    pub(crate) fn password(&self) -> Option<Password> {
        let credential = self.written.credential.as_ref();
        credential.and_then(|credential| credential.password.clone().map(Password::new))
    }

    /// The name of the replica set in the connection string; `None` if the string has none.
    pub(crate) fn set_name(&self) -> Option<&str> {
        self.written.repl_set_name.as_deref()
    }

    /// True if the connection string has `directConnection=true`.
    pub(super) fn is_direct(&self) -> bool {
        self.written.direct_connection == Some(true)
    }

    /// True if the connection string contains a user. This user is the service account.
    pub(crate) fn has_credentials(&self) -> bool {
        self.written.credential.is_some()
    }

    /// The names of the compressors for messages to servers, in order of preference.
    pub fn compressors(&self) -> Vec<&'static str> {
        let wanted = self.written.compressors.as_deref();
        let names = wanted.unwrap_or_default().iter().filter_map(|compressor| {
            Some(match compressor {
                Compressor::Snappy => "snappy",
                Compressor::Zlib { .. } => "zlib",
                Compressor::Zstd { .. } => "zstd",
                // Compressors that Seawall does not know are skipped.
                _ => return None,
            })
        });
        names.collect()
    }

    /// The TLS options; `None` if TLS is off.
    pub fn tls(&self) -> Option<DriverTls> {
        match self.written.tls.clone()? {
            Tls::Enabled(tls) => Some(tls.into()),
            Tls::Disabled => None,
        }
    }
}

/// Monitors the deployment until the future is dropped. Each new value of `tls` replaces the
/// monitoring client: the contents of the TLS files may have changed, or the client ignores the
/// primary.
pub(super) async fn watch(
    topology: Weak<Topology>,
    deployment: DeploymentOptions,
    mut tls: watch::Receiver<DriverTls>,
) {
    let heartbeat_frequency = deployment.heartbeat_frequency;
    let from_dns = deployment.uri.starts_with("mongodb+srv://");
    let resolved = resolved(deployment).await;
    if let Some(topology) = topology.upgrade()
        && let Some(service_account) = &topology.service_account
        && let Ok(Some(account)) = service_account_in(&resolved)
    {
        service_account.set_account(account);
    }
    let mut options = driver_options(resolved, heartbeat_frequency);
    let seeds = Seeds {
        hosts: options.hosts.clone(),
        from_dns,
        set_name: options.repl_set_name.clone(),
    };
    let source = Arc::new(DescriptionSource {
        topology,
        events: Mutex::default(),
        changed: Notify::new(),
    });
    // A client of the driver stops monitoring when it is dropped. So the current client is kept
    // here.
    let mut current: Option<Client> = None;
    let failures = OccasionalLog::default();
    for number in 0_u64.. {
        tls.borrow_and_update().apply(&mut options);
        if options.direct_connection != Some(true) {
            seeds.begin_with(source.found(), &mut options);
        }
        let next_change = match Client::with_options(with_events(&options, &source, number)) {
            Ok(new) => {
                if current.is_some() && !source.wait_until_replaceable(&tls).await {
                    continue;
                }
                source.select(number, &new);
                current = Some(new);
                tls.changed().await
            }
            Err(error) => {
                if let Some(attempts) = failures.count(Instant::now()) {
                    tracing::error!(%error, attempts, "could not start to monitor the deployment");
                }
                // The driver reads the TLS files itself. If a file was not readable, the next
                // attempt may succeed.
                let changed = timeout(MONITOR_AGAIN_AFTER, tls.changed()).await;
                changed.unwrap_or(Ok(()))
            }
        };
        if next_change.is_err() {
            return;
        }
    }
    drop(current);
}

/// The options of the driver's client, which only monitors the deployment. It has no credential:
/// otherwise, if the login of the service account failed, the driver would consider the server
/// unavailable, and Seawall would clear the pools of all users.
fn driver_options(mut options: ClientOptions, heartbeat_frequency: Duration) -> ClientOptions {
    options.credential = None;
    options.app_name = Some("seawall".to_owned());
    options.heartbeat_freq = Some(heartbeat_frequency);
    // By default, the driver polls in an environment that looks like a serverless function. A
    // driver that polls would notice an election only at its next heartbeat.
    options
        .server_monitoring_mode
        .get_or_insert(ServerMonitoringMode::Stream);
    // The client runs no operations, except the checks of servers that the prober starts.
    options.max_pool_size = Some(4);
    options.min_pool_size = Some(0);
    options
}

/// `options` with a handler that passes the driver's events to `source`. `number` identifies the
/// client in [`DescriptionSource`].
fn with_events(
    options: &ClientOptions,
    source: &Arc<DescriptionSource>,
    number: u64,
) -> ClientOptions {
    let mut options = options.clone();
    let events = Arc::clone(source);
    options.sdam_event_handler = Some(EventHandler::callback(move |event| {
        if let SdamEvent::TopologyDescriptionChanged(event) = event {
            events.receive(number, event.new_description);
        }
    }));
    options
}

/// Converts an address for the driver.
fn driver_address(address: &ServerAddress) -> DriverAddress {
    match address {
        ServerAddress::Tcp { host, port } => DriverAddress::Tcp {
            host: host.clone(),
            port: Some(*port),
        },
        ServerAddress::Unix(path) => DriverAddress::Unix { path: path.clone() },
    }
}

/// Converts an address from the driver. `None` for a kind of address that Seawall does not know.
fn own_address(address: &DriverAddress) -> Option<ServerAddress> {
    match address {
        DriverAddress::Tcp { host, port } => Some(ServerAddress::Tcp {
            host: host.to_ascii_lowercase(),
            port: port.unwrap_or(DEFAULT_PORT),
        }),
        DriverAddress::Unix { path } => Some(ServerAddress::Unix(path.clone())),
        other => {
            tracing::warn!(server = %other, "a server is not used, because its address is of an unknown kind");
            None
        }
    }
}

/// Waits until the DNS name of the connection string has been resolved, and returns all options.
async fn resolved(mut deployment: DeploymentOptions) -> ClientOptions {
    let failures = OccasionalLog::default();
    loop {
        let error = match deployment.options {
            Ok(options) => return *options,
            Err(error) => error,
        };
        if let Some(attempts) = failures.count(Instant::now()) {
            tracing::warn!(%error, attempts, "could not resolve the deployment's connection string");
        }
        sleep(RESOLVE_AGAIN_AFTER).await;
        let again = DeploymentOptions::parse_within(
            BACKGROUND_DNS_LIMIT,
            &deployment.uri,
            deployment.heartbeat_frequency,
        );
        let again = again.await.map_err(ResolveError::from);
        deployment.options = again.and_then(|parsed| parsed.options);
    }
}

/// Applies the topology descriptions from one client of the driver at a time. A new client begins
/// without servers, and its first descriptions would clear or close the pools of all servers. So
/// the earlier client stays in use until [`Self::wait_until_replaceable`] allows the replacement.
struct DescriptionSource {
    topology: Weak<Topology>,
    events: Mutex<Events>,
    /// Notified when a new client of the driver has a new description. The descriptions of that
    /// client are not applied yet.
    changed: Notify,
}

#[derive(Default)]
struct Events {
    /// The number of the client whose descriptions are applied.
    selected: u64,
    /// The number and the latest description of the new client, whose descriptions are not applied
    /// yet.
    next: Option<(u64, TopologyDescription)>,
}

impl DescriptionSource {
    fn receive(&self, number: u64, description: TopologyDescription) {
        let mut events = self.events.lock();
        if number == events.selected {
            if let Some(topology) = self.topology.upgrade() {
                topology.apply(&description);
            }
            return;
        }
        // Late events of a client that was given up are ignored.
        let newest = events.next.as_ref().map_or(events.selected, |(of, _)| *of);
        if number > events.selected && number >= newest {
            events.next = Some((number, description));
            self.changed.notify_one();
        }
    }

    /// The facts about the deployment that the clients of the driver have found until now.
    fn found(&self) -> KnownDeployment {
        let Some(topology) = self.topology.upgrade() else {
            return KnownDeployment::default();
        };
        let state = topology.state.lock();
        KnownDeployment {
            topology_type: state.topology_type,
            set_name: state.set_name.clone(),
            servers: state.members.keys().map(driver_address).collect(),
        }
    }

    /// Waits until the new client has found all servers that the earlier client has found. After
    /// each [`REPLACEMENT_LIMIT`], it is enough if the new client has found any server: a client
    /// without servers would close all pools. If it has found none then, and `tls` has changed,
    /// returns false: another client then replaces the new one.
    async fn wait_until_replaceable(&self, tls: &watch::Receiver<DriverTls>) -> bool {
        loop {
            if timeout(REPLACEMENT_LIMIT, self.catch_up()).await.is_ok() {
                return true;
            }
            tracing::warn!("the new monitoring client has not reached all servers");
            if self.has_found_a_server() {
                return true;
            }
            if tls.has_changed().unwrap_or(true) {
                self.events.lock().next = None;
                return false;
            }
        }
    }

    /// True if the new client has found at least one server.
    fn has_found_a_server(&self) -> bool {
        let events = self.events.lock();
        let next = events.next.iter();
        let servers = next.flat_map(|(_, next)| next.servers().into_values());
        let mut types = servers.map(|server| server.server_type());
        types.any(|server_type| server_type != DriverServerType::Unknown)
    }

    /// Waits until the new client has found all servers that the earlier client has found.
    async fn catch_up(&self) {
        while !self.has_caught_up() {
            self.changed.notified().await;
        }
    }

    fn has_caught_up(&self) -> bool {
        let Some(topology) = self.topology.upgrade() else {
            return true;
        };
        let events = self.events.lock();
        let Some((_, next)) = &events.next else {
            return false;
        };
        let servers = next.servers();
        let found = servers.iter().filter_map(|(address, server)| {
            let is_known = server.server_type() != DriverServerType::Unknown;
            is_known.then(|| own_address(address)).flatten()
        });
        let found: Vec<ServerAddress> = found.collect();
        let state = topology.state.lock();
        let mut members = state.members.values().map(|member| &member.server);
        members.all(|server| {
            server.server_type == ServerType::Unknown || found.contains(&server.address)
        })
    }

    /// Applies the descriptions of the client with this number from now on.
    fn select(&self, number: u64, client: &Client) {
        let Some(topology) = self.topology.upgrade() else {
            return;
        };
        *topology.monitoring_client.lock() = Some(client.clone());
        let mut events = self.events.lock();
        events.selected = number;
        if let Some((_, description)) = events.next.take() {
            topology.apply(&description);
        }
    }
}

impl Topology {
    /// Applies a topology description from the official driver.
    pub(super) fn apply(self: &Arc<Self>, new: &TopologyDescription) {
        let mut state = self.state.lock();
        state.topology_type = match new.topology_type() {
            DriverTopologyType::Single => TopologyType::Single,
            DriverTopologyType::ReplicaSetNoPrimary => TopologyType::ReplicaSetNoPrimary,
            DriverTopologyType::ReplicaSetWithPrimary => TopologyType::ReplicaSetWithPrimary,
            DriverTopologyType::Sharded => TopologyType::Sharded,
            _ => TopologyType::Unknown,
        };
        state.set_name = new.set_name().cloned();
        let servers = new.servers();
        let named: HashMap<ServerAddress, _> = servers
            .into_iter()
            .filter_map(|(address, server)| Some((own_address(address)?, server)))
            .collect();
        let removed = state
            .members
            .extract_if(|address, _| !named.contains_key(address));
        let removed: Vec<_> = removed.map(|(_, member)| member).collect();
        for (address, server) in named {
            let member = state
                .members
                .entry(address.clone())
                .or_insert_with(|| self.member(address));
            member.apply(&server);
        }
        self.publish(&mut state);
        // The pools are closed after the new snapshot is published. An operation that fails because
        // its pool is closed then selects another server.
        for member in removed {
            member.pool.close();
            member.removed.cancel();
            member.wake_prober.notify_one();
        }
    }

    fn member(self: &Arc<Self>, address: ServerAddress) -> Member {
        let pool = ServerPool::new(
            address.clone(),
            self.settings.load().pool.clone(),
            self.connector.clone(),
            self.recorder.server(&address.to_string()),
            self.data_plane.clone(),
        );
        let (wake_prober, removed) = (Arc::new(Notify::new()), CancellationToken::new());
        let probing = probe::keep_probing(
            Arc::downgrade(self),
            Arc::downgrade(&pool),
            address.clone(),
            Arc::clone(&wake_prober),
            removed.clone(),
        );
        let stop = self.stop.clone();
        self.control_plane
            .spawn(stop.run_until_cancelled_owned(probing));
        let server = ServerDescription::unknown(address);
        Member {
            server,
            pool,
            wake_prober,
            removed,
        }
    }
}

impl Member {
    fn apply(&mut self, new: &ServerInfo<'_>) {
        let before = self.server.server_type;
        self.server.server_type = match new.server_type() {
            DriverServerType::Standalone => ServerType::Standalone,
            DriverServerType::Mongos => ServerType::Router,
            DriverServerType::RsPrimary => ServerType::Primary,
            DriverServerType::RsSecondary => ServerType::Secondary,
            DriverServerType::RsArbiter => ServerType::Arbiter,
            DriverServerType::RsOther | DriverServerType::RsGhost => ServerType::Other,
            _ => ServerType::Unknown,
        };
        self.server.tags = new
            .tags()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        if let Some(version) = new.max_wire_version() {
            self.server.probe.max_wire_version = version;
        }
        if self.server.server_type == ServerType::Unknown {
            self.server.probe.round_trip = None;
        } else if self.server.probe.round_trip.is_none() {
            self.server.probe.round_trip = new.average_round_trip_time();
        }
        if self.server.server_type != before {
            self.pool.reset_limit();
            tracing::info!(
                server = %self.server.address,
                from = before.as_str(),
                to = self.server.server_type.as_str(),
                "server type changed"
            );
            self.server.demoted_since = None;
            self.wake_prober.notify_one();
        }
        if self.server.server_type == ServerType::Unknown {
            self.pool.clear(self.pool.generation());
        } else if !self.server.is_suspect() {
            self.pool.ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_dns_query_without_a_reply_ends_after_the_time_limit() {
        let resolved = resolve(pending(), DNS_LIMIT).await.unwrap();
        assert!(matches!(resolved, Err(ResolveError::TimedOut)));
    }

    /// `srvMaxHosts` and `srvServiceName` matter only for the DNS query.
    #[tokio::test]
    async fn options_for_dns_do_not_prevent_a_start_while_dns_is_unavailable() {
        for options in ["srvMaxHosts=2&appName=a", "appName=a&srvservicename=b"] {
            let uri = format!("mongodb+srv://h.example/?{options}");
            let parsed = options_without_dns(&uri).await.unwrap();
            assert_eq!(parsed.app_name.as_deref(), Some("a"), "{options}");
        }
        assert!(options_without_dns("mongodb+srv://h.example").await.is_ok());
    }

    #[tokio::test]
    async fn debug_output_hides_the_connection_string() {
        let uri = "mongodb://account:secret@h:1/";
        let options = DeploymentOptions::parse(uri, Duration::from_secs(10)).await;
        let text = format!("{:?}", options.unwrap());
        assert!(
            !text.contains("secret") && !text.contains("account"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn all_kinds_of_hosts_in_a_connection_string_are_used() {
        let uri = "mongodb://[::1]:27018,[fd00::5],DB1,db2:1,10.0.0.1,%2Ftmp%2Fmongodb-1.sock/";
        let options = DeploymentOptions::parse(uri, Duration::from_secs(10)).await;
        let hosts = options.unwrap().hosts().unwrap();
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let expected = [
            "[::1]:27018",
            "[fd00::5]:27017",
            "db1:27017",
            "db2:1",
            "10.0.0.1:27017",
            "/tmp/mongodb-1.sock",
        ];
        assert_eq!(hosts, expected);
    }

    #[tokio::test]
    async fn the_driver_streams_heartbeats_unless_the_connection_string_says_otherwise() {
        for (query, mode) in [
            ("", ServerMonitoringMode::Stream),
            ("?serverMonitoringMode=auto", ServerMonitoringMode::Auto),
            ("?serverMonitoringMode=poll", ServerMonitoringMode::Poll),
        ] {
            let parsed = ClientOptions::parse(format!("mongodb://h:1/{query}")).await;
            let options = driver_options(parsed.unwrap(), Duration::from_secs(10));
            assert_eq!(options.server_monitoring_mode, Some(mode), "{query}");
        }
    }

    #[tokio::test]
    async fn errors_about_tls_options_that_the_driver_rejects_contain_a_hint_and_no_password() {
        for (option, instead) in [
            ("tlsCRLFile=crl.pem", "use deployment.tls.crl_file"),
            (
                "tlsAllowInvalidHostnames=true",
                "use deployment.tls.allow_invalid_hostnames",
            ),
            ("tlscrlfile=crl.pem", "use deployment.tls.crl_file"),
        ] {
            for scheme in ["mongodb", "mongodb+srv"] {
                let uri = format!("{scheme}://account:secret@h.example/?tls=true&{option}");
                let parsed = DeploymentOptions::parse(&uri, Duration::from_secs(10)).await;
                let text = parsed.unwrap_err().to_string();
                assert!(text.contains(instead), "{uri}: {text}");
                assert!(!text.contains("secret"), "{uri}: {text}");
            }
        }
    }

    #[tokio::test]
    async fn messages_about_a_wrong_connection_string_hide_the_password() {
        for uri in [
            "mongodb://account:sec?ret@h:1/",
            "mongodb://account:secret",
            "mongodb://account:secret/?x=1",
            "mongodb+srv://account:sec?ret@h.example/",
        ] {
            let parsed = DeploymentOptions::parse(uri, Duration::from_secs(10)).await;
            let text = parsed.unwrap_err().to_string();
            assert!(!text.contains("sec") && !text.contains("account"), "{text}");
        }
    }
}
