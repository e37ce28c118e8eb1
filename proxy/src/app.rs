//! The composition root: builds every part from its settings, connects, runs and drains the parts.

mod insight;

use std::{
    fmt, io,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use bson::oid::ObjectId;
use seawall_config as config;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    time::{Instant, interval, sleep, sleep_until},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use zeroize::Zeroizing;

use crate::{
    admin::{self, Window},
    client::{
        self, Arrivals, CredentialMode, CredentialSettings, Credentials, Fault, FaultEnd, Logins,
        MessageMemory, Peer, Routing, Shared, UserSecret,
    },
    limits::{Gate, Limits, LoginGates, OperationPermits},
    listener::{self, Acceptor, Address, Listener, ServerTlsError, server_config},
    observe::{ClientDirectory, Exporter, ObserveError, Observer},
    pins::{PinLimits, Pins},
    pool,
    runtime::{Activity, Lateness, Planes, measure_lateness, raise_descriptor_limit},
    topology::{self, DeploymentError, DeploymentOptions, Topology},
};
use seawall_auth::{Key, Mechanism, NonceSource, ScramKeys, SeedError};
use seawall_insight::StoreError;
use seawall_transport::{
    Stream,
    connection::{Connector, TlsError, client_config},
};
use seawall_wire::Compressor;

/// The closing of the remaining clients at the end of a drain is spread over this time.
const CLOSING_SPREAD: Duration = Duration::from_millis(500);

/// Interval at which pools and pins are maintained and statistics are collected.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why Seawall could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The deployment's connection string cannot be used.
    #[error("deployment.uri: {0}")]
    Deployment(#[from] DeploymentError),
    /// TLS to servers cannot be set up.
    #[error("TLS to servers: {0}")]
    ServerTls(#[from] TlsError),
    /// TLS to clients cannot be set up.
    #[error("listen.tls: {0}")]
    ClientTls(#[from] ServerTlsError),
    /// A configured user's credentials cannot be used.
    #[error("auth.users: {0}")]
    User(String),
    /// The mode `lookup` needs a service account, but `deployment.uri` has no user.
    #[error("auth.credentials: lookup needs a user in deployment.uri")]
    NoServiceAccount,
    /// The address is in use, or cannot be bound.
    #[error("listening on {address}: {source}")]
    Bind {
        /// The configured address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// No random numbers are available.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The metrics cannot be set up.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The history's file cannot be used.
    #[error("history.directory: {0}")]
    History(#[from] StoreError),
    /// The slow log's file cannot be opened.
    #[error("slow_log.file: {0}")]
    SlowLog(io::Error),
    /// A runtime's threads cannot be started.
    #[error("starting threads: {0}")]
    Threads(io::Error),
}

impl StartError {
    /// True if the error is in the configuration, and not in the environment.
    pub(crate) fn blames_configuration(&self) -> bool {
        match self {
            Self::Deployment(_)
            | Self::ServerTls(_)
            | Self::ClientTls(_)
            | Self::User(_)
            | Self::NoServiceAccount => true,
            Self::Bind { .. }
            | Self::Seed(_)
            | Self::Observe(_)
            | Self::History(_)
            | Self::SlowLog(_)
            | Self::Threads(_) => false,
        }
    }
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Number of clients that Seawall had to close at the end of the drain.
    pub closed_clients: usize,
}

/// A running Seawall. The drop stops it without a drain.
pub struct App {
    client_addresses: Vec<String>,
    admin_address: Option<String>,
    shared: Arc<Shared>,
    feed: Arc<insight::Feed>,
    draining: watch::Sender<Option<Instant>>,
    drain_time: Duration,
    drain_requested: CancellationToken,
    stop_accepting: CancellationToken,
    stop: CancellationToken,
    tracker: TaskTracker,
    planes: Planes,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("clients", &self.client_addresses)
            .finish_non_exhaustive()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stop_accepting.cancel();
        self.stop.cancel();
        self.shared.routing.topology.close();
    }
}

impl App {
    /// Number of tasks that serve clients.
    pub fn client_tasks(&self) -> usize {
        self.tracker.len()
    }

    /// Starts all parts. Does not wait for the deployment, because it may be unavailable.
    ///
    /// # Errors
    /// See [`StartError`]. In this case all parts have been stopped.
    pub async fn start(settings: config::Settings) -> Result<Self, StartError> {
        let operations = OperationPermits::new(settings.limits.max_in_flight_operations.get());
        let in_flight = operations.clone();
        let planes = Planes::start(settings.runtime.worker_threads, move || {
            in_flight.in_flight()
        });
        let planes = planes.map_err(StartError::Threads)?;
        let Wired {
            shared,
            feed,
            draining,
        } = wire(&settings, &planes, operations).await?;
        let mut app = Self {
            client_addresses: Vec::new(),
            admin_address: None,
            shared,
            feed,
            draining,
            drain_time: settings.shutdown.drain,
            drain_requested: CancellationToken::new(),
            stop_accepting: CancellationToken::new(),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
            planes,
        };
        app.listen(&settings).await?;
        Ok(app)
    }

    async fn listen(&mut self, settings: &config::Settings) -> Result<(), StartError> {
        let data_plane = self.planes.data.handle().clone();
        let tls = match &settings.listen.tls {
            Some(tls) => {
                let config = server_config(&tls.certificate_file, &tls.key_file)?;
                Some(TlsAcceptor::from(Arc::new(config)))
            }
            None => None,
        };
        let mut listeners = Vec::new();
        for address in &settings.listen.addresses {
            let name = address.to_string();
            let address = match address {
                config::ListenAddress::Tcp(text) => Address::Tcp(text.clone()),
                config::ListenAddress::Unix(path) => Address::Unix(path.clone()),
            };
            let backlog = settings.listen.backlog.get();
            let bound = data_plane.spawn(async move { Listener::bind(&address, backlog).await });
            let bound = bound
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error)));
            let failed = |source| StartError::Bind {
                address: name,
                source,
            };
            listeners.extend(bound.map_err(failed)?);
        }
        self.serve_admin(settings).await?;
        for listener in listeners {
            self.client_addresses.push(listener.local_address());
            let acceptor = Acceptor {
                shared: Arc::clone(&self.shared),
                tls: tls.clone(),
                stop: self.stop_accepting.clone(),
                tracker: self.tracker.clone(),
            };
            data_plane.spawn(listener::accept(listener, acceptor));
        }
        self.planes.control.spawn(
            self.stop
                .clone()
                .run_until_cancelled_owned(tick_gates(Arc::clone(&self.shared))),
        );
        let (feed, topology) = (
            Arc::clone(&self.feed),
            Arc::clone(&self.shared.routing.topology),
        );
        let pushes = insight::push_seconds(feed, topology);
        self.planes
            .control
            .spawn(self.stop.clone().run_until_cancelled_owned(pushes));
        let exporter = &self.feed.exporter;
        let late = watch_data_plane(Arc::clone(&self.shared), Arc::clone(exporter));
        data_plane.spawn(self.stop.clone().run_until_cancelled_owned(late));
        let late = watch_control_plane(Arc::clone(&self.shared), Arc::clone(exporter));
        self.planes
            .control
            .spawn(self.stop.clone().run_until_cancelled_owned(late));
        let maintenance = maintain(Arc::clone(&self.shared), Arc::clone(&self.feed));
        let maintenance = self.stop.clone().run_until_cancelled_owned(maintenance);
        self.planes.control.spawn(maintenance);
        Ok(())
    }

    async fn serve_admin(&mut self, settings: &config::Settings) -> Result<(), StartError> {
        let config::AdminAddress::Tcp(address) = &settings.admin.address else {
            return Ok(());
        };
        let wanted = address.clone();
        let bound = self
            .planes
            .control
            .spawn(async move { TcpListener::bind(wanted).await });
        let bound = bound
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let failed = |source| StartError::Bind {
            address: address.clone(),
            source,
        };
        let listener = bound.map_err(failed)?;
        self.admin_address = listener
            .local_addr()
            .ok()
            .map(|address| address.to_string());
        let credentials = Arc::clone(&self.shared.logins.credentials);
        let window = Arc::new(Window {
            exporter: Arc::clone(&self.feed.exporter),
            clients: Arc::clone(&self.shared.clients),
            topology: Arc::clone(&self.shared.routing.topology),
            insight: Arc::clone(&self.feed.insight),
            pulse: self.feed.pulse.clone(),
            draining: self.draining.subscribe(),
            drain: self.drain_requested.clone(),
            injects_faults: settings.fault.is_some(),
            mode: match settings.deployment.mode {
                config::Mode::Pooled => "pooled",
                config::Mode::Relay => "relay",
            },
            credentials: Box::new(move || credentials.mode().as_str()),
            guard: admin::Guard {
                token: (settings.admin.token.as_ref()).map(|token| token.expose().to_owned()),
                allowed_hosts: settings.admin.allowed_hosts.clone(),
            },
            profiles: settings.admin.profile,
            places: Arc::new(Semaphore::new(admin::MAX_REQUESTS)),
            started_at: SystemTime::now(),
        });
        let stop = self.stop.clone();
        self.planes.control.spawn(async move {
            if let Err(error) = admin::serve(listener, window, stop).await {
                tracing::error!(%error, "admin address no longer served");
            }
        });
        Ok(())
    }

    /// The addresses to which clients connect.
    pub fn client_addresses(&self) -> &[String] {
        &self.client_addresses
    }

    /// The address of the metrics and the API; `None` if they are off.
    pub fn admin_address(&self) -> Option<&str> {
        self.admin_address.as_deref()
    }

    /// Serves a client over the caller's stream, without TLS, until the client leaves. `None` if
    /// the client is refused.
    ///
    /// Dropping the future closes the client.
    pub fn serve(&self, stream: Stream, peer: Peer) -> Option<impl Future<Output = ()> + use<>> {
        let newcomer = listener::newcomer(&self.shared, &peer)?;
        let shared = Arc::clone(&self.shared);
        Some(client::serve(shared, stream, peer, newcomer, None))
    }

    /// Number of operations in flight.
    pub fn operations_in_flight(&self) -> usize {
        self.shared.limits.operations().in_flight()
    }

    /// The statistics.
    pub fn exporter(&self) -> &Exporter {
        &self.feed.exporter
    }

    /// The connected clients.
    pub fn clients(&self) -> &ClientDirectory {
        &self.shared.clients
    }

    /// The deployment.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.shared.routing.topology
    }

    /// Resolves when the API gets a request for a drain.
    pub(crate) async fn drain_requested(&self) {
        self.drain_requested.cancelled().await;
    }

    /// Drains Seawall. `hello` returns error 91, so that drivers use another proxy. Operations are
    /// served until no client is left, the drain time is over or `hasten` resolves. Then the
    /// remaining clients are closed, spread over half a second.
    pub async fn drain(&self, hasten: impl Future<Output = ()>) -> Drained {
        let until = Instant::now() + self.drain_time;
        self.draining.send_replace(Some(until));
        self.tracker.close();
        let mut all_left = false;
        tokio::select! {
            () = self.tracker.wait() => all_left = true,
            () = sleep_until(until) => {}
            () = hasten => {}
        }
        self.stop_accepting.cancel();
        let closed_clients = if all_left { 0 } else { self.tracker.len() };
        for percent in (0..=100).step_by(5).filter(|_| closed_clients > 0) {
            self.shared.limits.close_clients(percent);
            sleep(CLOSING_SPREAD / 20).await;
        }
        self.shared.limits.close_clients(100);
        self.tracker.wait().await;
        self.shared.routing.topology.close();
        self.feed.close();
        self.shared.recorder.flush_slow_log();
        Drained { closed_clients }
    }
}

/// The parts that `wire` builds.
struct Wired {
    shared: Arc<Shared>,
    feed: Arc<insight::Feed>,
    draining: watch::Sender<Option<Instant>>,
}

/// Builds the parts that clients share, and starts to monitor the deployment.
async fn wire(
    settings: &config::Settings,
    planes: &Planes,
    operations: OperationPermits,
) -> Result<Wired, StartError> {
    let Observer {
        recorder,
        clients,
        exporter,
    } = insight::observer(settings)?;
    let nonces = Arc::new(NonceSource::new()?);
    let deployment = DeploymentOptions::parse(
        settings.deployment.uri.expose(),
        settings.deployment.heartbeat_frequency,
    );
    let deployment = deployment.await?;
    let control = planes.control.handle().clone();
    let feed = insight::Feed::open(settings, &deployment, exporter, control)?;
    let credential_settings = credential_settings(&settings.auth, &settings.limits, &deployment)?;
    let connector = connector(settings, &deployment, &nonces)?;
    let topology = Topology::start(
        deployment,
        topology_settings(settings),
        connector,
        Arc::clone(&recorder),
        planes.data.handle().clone(),
        planes.control.handle().clone(),
    );
    let credentials = Credentials::start(
        credential_settings,
        Arc::clone(&topology),
        Arc::clone(&nonces),
        planes.data.handle().clone(),
    );
    let (draining, draining_seen) = watch::channel(None);
    let limits = &settings.limits;
    let shared = Arc::new(Shared {
        settings: client_settings(settings),
        service_id: ObjectId::new(),
        recorder,
        clients,
        limits: client_limits(settings, planes.workers, operations),
        arrivals: Arrivals {
            gate: Gate::of_arrivals(),
            lateness: Lateness::new(Instant::now()),
            activity: Activity::default(),
        },
        logins: Logins {
            credentials,
            gates: LoginGates::default(),
            nonces,
        },
        routing: Routing {
            topology,
            pins: Pins::new(pin_limits(limits)),
            relay_pins: Pins::new(pin_limits(limits)),
            fault: settings.fault.as_ref().map(fault),
        },
        memory: MessageMemory::of_bytes(limits.message_memory_bytes),
        draining: draining_seen,
    });
    Ok(Wired {
        shared,
        feed,
        draining,
    })
}

fn client_limits(
    settings: &config::Settings,
    workers: usize,
    operations: OperationPermits,
) -> Limits {
    let limits = &settings.limits;
    Limits::new(
        max_clients(settings),
        limits.unauthenticated_connections.get(),
        limits.monitor_connections.get(),
        limits.relayed_connections.get(),
        operations,
    )
    .with_workers(workers)
    .with_rates(
        limits.connections_per_second_per_address,
        limits.logins_per_second_per_user,
    )
}

fn connector(
    settings: &config::Settings,
    deployment: &DeploymentOptions,
    nonces: &Arc<NonceSource>,
) -> Result<Connector, StartError> {
    let tls = match deployment.tls() {
        Some((ca, identity, trusts_anyone)) => {
            if trusts_anyone {
                tracing::warn!("certificates of servers are not verified");
            }
            let tls = client_config(ca.as_deref(), identity.as_deref(), trusts_anyone)?;
            Some(Arc::new(tls))
        }
        None => None,
    };
    Ok(Connector::new(
        tls,
        named(&deployment.compressors()),
        settings.deployment.connect_timeout,
        Arc::clone(nonces),
    ))
}

/// Converts the configured fault. Logs a warning, so that the fault is not left in the
/// configuration by mistake.
fn fault(fault: &config::Fault) -> Fault {
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
        ?delay,
        error_code,
        close,
        "faults are injected"
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

fn pin_limits(limits: &config::Limits) -> PinLimits {
    PinLimits {
        max_cursors: limits.max_cursors.get(),
        max_transactions: limits.max_transactions.get(),
        cursor_idle: limits.cursor_idle,
        transaction_idle: limits.transaction_idle,
    }
}

/// Adjusts the gates: for logins to the waits of operations, and for new clients to the lateness of
/// the data plane.
async fn tick_gates(shared: Arc<Shared>) {
    let (gates, arrivals) = (&shared.logins.gates, &shared.arrivals);
    let mut ticks = arrivals.activity.ticks();
    loop {
        let is_active = has_operations(&shared) || !gates.are_idle() || !arrivals.gate.is_idle();
        let tick = ticks.next(is_active, |due| due).await;
        let snapshot = shared.routing.topology.snapshot();
        let pools = snapshot.pools.iter();
        let waits: Vec<_> = pools.map(|pool| pool.waits(tick.now)).collect();
        let wait = waits.iter().map(|waits| waits.for_others).max();
        let own = waits.iter().flat_map(|waits| &waits.for_own);
        let own = own.map(|(user, wait)| ((user.name(), user.source()), *wait));
        gates.tick(wait.unwrap_or_default(), own, tick.elapsed);
        let late = arrivals.lateness.now(tick.now);
        arrivals.gate.tick(late, tick.elapsed);
    }
}

fn has_operations(shared: &Shared) -> bool {
    shared.limits.operations().in_flight() > 0
}

/// Measures the lateness of the data plane, for the gate of new clients and for the metrics.
async fn watch_data_plane(shared: Arc<Shared>, exporter: Arc<Exporter>) {
    let record = |late| exporter.event_loop_late("data", late);
    watch_lateness(&shared, &shared.arrivals.lateness, record).await;
}

/// Measures the lateness of the control plane, for the metrics.
async fn watch_control_plane(shared: Arc<Shared>, exporter: Arc<Exporter>) {
    let record = |late| exporter.event_loop_late("control", late);
    watch_lateness(&shared, &Lateness::new(Instant::now()), record).await;
}

async fn watch_lateness(shared: &Shared, lateness: &Lateness, record: impl Fn(Duration)) {
    // A relayed operation has no permit.
    let is_relaying = || shared.settings.is_relay && shared.clients.count() > 0;
    let is_active = || has_operations(shared) || is_relaying();
    measure_lateness(&shared.arrivals.activity, lateness, is_active, record).await;
}

async fn maintain(shared: Arc<Shared>, feed: Arc<insight::Feed>) {
    let mut ticks = interval(MAINTENANCE_INTERVAL);
    loop {
        ticks.tick().await;
        shared.routing.topology.maintain_pools();
        shared.routing.pins.maintain(Instant::now());
        shared.routing.relay_pins.maintain(Instant::now());
        feed.exporter.collect();
        insight::update_process_metrics(&shared, &feed);
    }
}

/// Number of descriptors that are reserved for listeners, logs and monitors. Clients and
/// `pool.max_server_connections` need further descriptors.
const OTHER_DESCRIPTORS: u64 = 200;

/// Returns the maximum number of clients: the configured number, or fewer if the limit of
/// descriptors is too low. Logs the result.
fn max_clients(settings: &config::Settings) -> usize {
    let wanted = settings.listen.max_client_connections.get();
    let servers = settings.pool.max_server_connections.get();
    let Some(allowed) = raise_descriptor_limit() else {
        return wanted;
    };
    let others = OTHER_DESCRIPTORS + u64::try_from(servers).unwrap_or(u64::MAX);
    let each = match settings.deployment.mode {
        config::Mode::Pooled => 1,
        // A relayed client needs a second descriptor, for its server connection.
        config::Mode::Relay => 2,
    };
    let room = allowed.saturating_sub(others) / each;
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if room < wanted {
        tracing::warn!(
            descriptors = allowed,
            wanted,
            allowed_clients = room,
            "fewer clients than configured: descriptor limit"
        );
    } else {
        tracing::info!(
            descriptors = allowed,
            clients = wanted,
            servers,
            "descriptor limit suffices"
        );
    }
    room.min(wanted)
}

fn topology_settings(settings: &config::Settings) -> topology::Settings {
    let pool = &settings.pool;
    topology::Settings {
        local_threshold: settings.deployment.local_threshold,
        heartbeat_frequency: settings.deployment.heartbeat_frequency,
        pool: pool::Limits {
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
        },
    }
}

fn client_settings(settings: &config::Settings) -> client::Settings {
    let first = settings.listen.addresses.first();
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    client::Settings {
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
        shared_addresses: settings.limits.shared_addresses.clone(),
        relays_other_mechanisms: settings.auth.other_mechanisms == config::OtherMechanisms::Relay,
        compressors: named(
            &settings
                .listen
                .compressors
                .iter()
                .map(|c| c.name())
                .collect::<Vec<_>>(),
        ),
        host: first.map_or(host.clone(), |address| format!("{host} {address}")),
    }
}

fn named(compressors: &[&str]) -> Vec<Compressor> {
    let named = compressors.iter().copied().filter_map(Compressor::parse);
    named.collect()
}

fn credential_settings(
    auth: &config::Auth,
    limits: &config::Limits,
    deployment: &DeploymentOptions,
) -> Result<CredentialSettings, StartError> {
    let mode = match auth.credentials {
        config::Credentials::Auto if deployment.has_credentials() => CredentialMode::Lookup,
        config::Credentials::Auto if !auth.users.is_empty() => CredentialMode::Users,
        config::Credentials::Auto => CredentialMode::Undecided,
        config::Credentials::Own => CredentialMode::Own,
        config::Credentials::Lookup if !deployment.has_credentials() => {
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
        introductions: limits.introductions.get(),
        conversations: limits.introduction_conversations.get(),
    })
}

fn user(user: &config::User) -> Result<(String, String, UserSecret), StartError> {
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
    Ok((user.name.clone(), user.source.clone(), secret))
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
