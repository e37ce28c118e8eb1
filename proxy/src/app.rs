//! The composition root: builds every part from its settings, connects, runs and drains the parts.

mod captures;
mod convert;
mod failovers;
mod gauges;
mod http;
mod insight;
mod limited_thread;
mod listeners;
mod own_commands;
mod peers;
mod reachability;
mod refusals;
mod reload;
mod reload_problems;
mod server_tls;
mod telemetry;
mod tls;

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use bson::oid::ObjectId;
use seawall_config as config;
use seawall_locks::Mutex;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin::{self, AdminState, ReloadRequest},
    client::{self, Arrivals, Credentials, Logins, MessageMemory, Peer, Routing, Shared},
    limits::{Gate, Limits, LoginGates, OperationPermits},
    listener::{Inherited, ServerTlsError},
    observe::{ClientDirectory, Exporter, ObserveError, Observer, Totals},
    pins::Pins,
    runtime::{
        Activity, Lateness, Liveness, OccasionalLog, Planes, ProgressCheck, measure_lateness,
    },
    topology::{DeploymentError, DeploymentOptions, Topology},
};
use seawall_auth::{NonceSource, SeedError};
use seawall_insight::StoreError;
use seawall_transport::{CertificateExpiry, Stream};

pub(crate) use self::{
    convert::descriptor_problem,
    limited_thread::LimitedThread,
    peers::peer_problem,
    reachability::reach_deployment,
    server_tls::{ServerTlsFiles, UnreadDirectory},
    telemetry::telemetry_problems,
    tls::{tls_problems, tls_warnings},
};
use self::{
    http::{Http, ServedEndpoints},
    listeners::RunningListener,
    peers::Peers,
    refusals::RefusalLog,
    reload::ReloadThreads,
    server_tls::RunningServerTls,
    telemetry::RunningTelemetry,
    tls::{ADMIN_TLS, Expiries, RunningTls},
};
pub use self::{peers::PeersError, server_tls::DeploymentTlsError, telemetry::TelemetryError};

/// At the end of a drain, the times at which Seawall closes the remaining clients are spread over
/// this duration.
const CLOSING_SPREAD: Duration = Duration::from_millis(500);

/// Maximum time that HTTP requests may take after the end of a drain. A caller that reads slowly
/// must not prevent the end of the process.
const ADMIN_END_LIMIT: Duration = Duration::from_secs(1);

/// Maximum time that the last write of the history may take at the end of a drain. A disk that
/// hangs must not prevent the end of the process.
const HISTORY_CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Interval at which the pools, the stored credentials and the [`Pins`] (the server of each cursor
/// and transaction) are maintained, and statistics are collected.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of waiting requests for a reload. They are handled one after another.
const MAX_RELOAD_REQUESTS: usize = 8;

/// The reason why Seawall could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The deployment's connection string cannot be used.
    #[error("deployment.uri: {0}")]
    Deployment(#[from] DeploymentError),
    /// TLS to servers cannot be set up.
    #[error(transparent)]
    ServerTls(#[from] DeploymentTlsError),
    /// TLS to clients cannot be set up.
    #[error("{section}: {source}")]
    ClientTls {
        /// The path of the settings, for example `listen.tls`.
        section: String,
        /// The cause.
        source: ServerTlsError,
    },
    /// Metrics cannot be exported.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The service manager passed a socket whose name is not the name of any listener, and there
    /// are several listeners.
    #[error("listeners: no listener has the name of the service manager's socket {name:?}")]
    SocketName {
        /// The name of the socket.
        name: String,
    },
    /// The service manager passed a unix socket for a listener whose connections must begin with a
    /// header of the PROXY protocol.
    #[error(
        "{section}.proxy_protocol: must be \"off\" for the service manager's unix socket; give the \
         socket an entry in [[listeners]] of its own"
    )]
    ProxiedUnixSocket {
        /// The section of the listener.
        section: String,
    },
    /// The HTTP clients for the other Seawall instances (`admin.peers`) cannot be set up.
    #[error(transparent)]
    Peers(#[from] PeersError),
    /// A configured user's credentials cannot be used.
    #[error("auth.users: {0}")]
    User(String),
    /// The mode `lookup` needs a service account, but `deployment.uri` has no user.
    #[error("auth.credentials: \"lookup\" needs a user in deployment.uri")]
    NoServiceAccount,
    /// The address is in use, or cannot be bound.
    #[error("cannot listen on {address}: {source}")]
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
    #[error("slow_log.file: {}: {error}", file.display())]
    SlowLog {
        /// The path of the file.
        file: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A runtime's threads cannot be started.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
}

impl StartError {
    /// True if a wrong value in the configuration causes the error. False if the cause is elsewhere
    /// in the system, for example an address that is in use.
    pub(crate) fn blames_configuration(&self) -> bool {
        match self {
            Self::Deployment(_)
            | Self::ServerTls(_)
            | Self::ClientTls { .. }
            | Self::Telemetry(_)
            | Self::SocketName { .. }
            | Self::ProxiedUnixSocket { .. }
            | Self::Peers(_)
            | Self::User(_)
            | Self::NoServiceAccount => true,
            Self::Bind { .. }
            | Self::Seed(_)
            | Self::Observe(_)
            | Self::History(_)
            | Self::SlowLog { .. }
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

/// A running Seawall. Dropping this value stops it without a drain.
pub struct App {
    client_addresses: Vec<String>,
    admin_addresses: Vec<String>,
    metrics_addresses: Vec<String>,
    shared: Arc<Shared>,
    feed: Arc<insight::Feed>,
    draining: watch::Sender<Option<Instant>>,
    /// The configuration in effect.
    running: Mutex<Box<config::Loaded>>,
    /// Opens files during a reload. The lock makes reloads run one after another.
    reloading: tokio::sync::Mutex<ReloadThreads>,
    has_service_account: bool,
    /// True if clients connect to sockets that the service manager has bound.
    uses_inherited_sockets: bool,
    /// The log filter that replaces `log.level`; not set if `log.level` is in effect.
    log_filter: OnceLock<String>,
    /// The listeners, at least one, in the order of the configuration.
    listeners: Vec<RunningListener>,
    /// TLS of the admin address.
    admin_tls: RunningTls,
    server_tls: RunningServerTls,
    /// The expiry of each TLS file for connections to the other Seawall instances.
    peer_expiries: watch::Sender<Vec<CertificateExpiry>>,
    telemetry: RunningTelemetry,
    /// The state that HTTP requests read; `None` during the start.
    state: Option<Arc<AdminState>>,
    /// The configuration that the API shows: the values in effect, and the values that take effect
    /// at the next start.
    configuration: watch::Sender<Arc<seawall_api::Configuration>>,
    reloads: mpsc::Sender<ReloadRequest>,
    reload_requests: tokio::sync::Mutex<mpsc::Receiver<ReloadRequest>>,
    drain_requested: CancellationToken,
    stop_accepting: CancellationToken,
    stop: CancellationToken,
    tracker: TaskTracker,
    refusals: Arc<Mutex<RefusalLog>>,
    /// The tasks that serve HTTP.
    admin_tasks: TaskTracker,
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
    /// Returns a check that the threads make progress. A watchdog uses it.
    pub(crate) fn progress_check(&self) -> ProgressCheck {
        let planes = &self.planes;
        ProgressCheck::of(
            planes.data.handle().clone(),
            planes.control.handle().clone(),
        )
    }

    /// Number of tasks that serve clients.
    pub fn client_tasks(&self) -> usize {
        self.tracker.len()
    }

    /// Starts all parts. Does not wait for the deployment, because it may be unavailable.
    ///
    /// # Errors
    /// See [`StartError`]. After an error, no part of Seawall runs.
    pub async fn start(loaded: config::Loaded) -> Result<Self, StartError> {
        let section = &loaded.settings.deployment;
        let parsed = DeploymentOptions::parse(section.uri.expose(), section.heartbeat_frequency);
        let deployment = parsed.await?;
        Self::start_on(loaded, deployment, Vec::new()).await
    }

    /// Like [`Self::start`], but the caller has parsed the connection string (`deployment`). A
    /// listener with `inherited` sockets uses these sockets and does not bind its addresses.
    ///
    /// # Errors
    /// See [`StartError`].
    pub(crate) async fn start_on(
        loaded: config::Loaded,
        deployment: DeploymentOptions,
        inherited: Vec<Inherited>,
    ) -> Result<Self, StartError> {
        let settings = loaded.settings.clone();
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
            has_service_account,
            server_tls,
        } = wire(&settings, deployment, &planes, operations)?;
        let listeners = listeners::start(&settings)?;
        let admin_tls = RunningTls::start(ADMIN_TLS.to_owned(), settings.admin.tls.as_ref())?;
        let telemetry = RunningTelemetry::new(&settings.telemetry)?;
        let Peers { fleet, expiries } = peers::peers(&settings.admin)?;
        let (reloads, reload_requests) = mpsc::channel(MAX_RELOAD_REQUESTS);
        let mut app = Self {
            client_addresses: Vec::new(),
            admin_addresses: Vec::new(),
            metrics_addresses: Vec::new(),
            shared,
            feed,
            draining,
            configuration: watch::Sender::new(Arc::new(reload::described(&loaded.values, &[]))),
            running: Mutex::new(Box::new(loaded)),
            reloading: tokio::sync::Mutex::default(),
            has_service_account,
            uses_inherited_sockets: !inherited.is_empty(),
            log_filter: OnceLock::new(),
            listeners,
            admin_tls,
            server_tls,
            peer_expiries: watch::Sender::new(expiries),
            telemetry,
            state: None,
            reloads,
            reload_requests: tokio::sync::Mutex::new(reload_requests),
            drain_requested: CancellationToken::new(),
            stop_accepting: CancellationToken::new(),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
            refusals: Arc::default(),
            admin_tasks: TaskTracker::new(),
            planes,
        };
        app.listen(&settings, inherited, fleet).await?;
        app.describe_configuration();
        Ok(app)
    }

    /// Exports the configuration's hash and the expiry of each certificate as metrics.
    ///
    /// # Errors
    /// The metrics cannot be set up.
    fn export_info(&self, config_hash: &str) -> Result<(), ObserveError> {
        let series = tls::series(self.expiries().all());
        self.feed.exporter.set_info(config_hash, series)
    }

    /// The expiry times of the certificates, authorities and revocation lists in all TLS files.
    /// After a later reload, the returned value gives the times of the new contents.
    fn expiries(&self) -> Expiries {
        let listeners = self.listeners.iter().map(|of| &of.tls);
        let all = listeners.chain([&self.admin_tls]);
        Expiries {
            clients: all.map(RunningTls::subscribe).collect(),
            outgoing: vec![
                self.server_tls.expiries.subscribe(),
                self.peer_expiries.subscribe(),
                self.telemetry.expiries.subscribe(),
            ],
        }
    }

    async fn listen(
        &mut self,
        settings: &config::Settings,
        inherited: Vec<Inherited>,
        fleet: admin::Fleet,
    ) -> Result<(), StartError> {
        let data_plane = self.planes.data.handle().clone();
        tls::log_loaded(&self.expiries().all());
        let hash = config::configuration_hash(&self.running.lock().values);
        self.export_info(&hash)?;
        let bound = listeners::bind(&settings.listeners(), inherited, &data_plane).await?;
        self.serve_admin(settings, fleet).await?;
        self.accept_clients(bound, &data_plane);
        self.planes.control.spawn(
            self.stop
                .clone()
                .run_until_cancelled_owned(tick_gates(Arc::clone(&self.shared))),
        );
        self.feed.read_gauges_of(Arc::clone(&self.shared));
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
        let expiries = tls::watch_expiries(self.expiries());
        let expiries = self.stop.clone().run_until_cancelled_owned(expiries);
        self.planes.control.spawn(expiries);
        let refusals = Arc::clone(&self.refusals);
        let maintenance = maintain(Arc::clone(&self.shared), Arc::clone(&self.feed), refusals);
        let maintenance = self.stop.clone().run_until_cancelled_owned(maintenance);
        self.planes.control.spawn(maintenance);
        let exports = self.telemetry.run(Arc::clone(exporter));
        let exports = self.stop.clone().run_until_cancelled_owned(exports);
        self.planes.control.spawn(exports);
        Ok(())
    }

    async fn serve_admin(
        &mut self,
        settings: &config::Settings,
        fleet: admin::Fleet,
    ) -> Result<(), StartError> {
        let state = Arc::new(self.state(settings, fleet));
        self.state = Some(Arc::clone(&state));
        let reporter = own_commands::reporter(Arc::clone(&state));
        self.shared
            .reporter
            .set(reporter)
            .expect("the reporter is set once, here");
        let http = Http {
            state,
            handshake: http::handshakes(self.admin_tls.subscribe(), Arc::clone(&self.shared)),
            stop: self.stop.clone(),
            tasks: &self.admin_tasks,
            runtime: self.planes.control.handle(),
        };
        let admin = &settings.admin;
        self.admin_addresses = http.serve(&admin.address, ServedEndpoints::All).await?;
        self.metrics_addresses = http
            .serve(&admin.metrics_address, ServedEndpoints::Metrics)
            .await?;
        Ok(())
    }

    /// The state that HTTP requests read.
    fn state(&self, settings: &config::Settings, fleet: admin::Fleet) -> AdminState {
        let credentials = Arc::clone(&self.shared.logins.credentials);
        let expiries = self.expiries();
        let Planes { data, control, .. } = &self.planes;
        let (data, control) = (data.handle().clone(), control.handle().clone());
        AdminState {
            totals: Arc::clone(&self.feed.totals),
            exporter: Arc::clone(&self.feed.exporter),
            clients: Arc::clone(&self.shared.clients),
            captures: Arc::clone(&self.shared.captures),
            topology: Arc::clone(&self.shared.routing.topology),
            insight: Arc::clone(&self.feed.insight),
            pulse: self.feed.pulse.clone(),
            draining: self.draining.subscribe(),
            drain: self.drain_requested.clone(),
            injects_faults: AtomicBool::new(settings.fault.is_some()),
            mode: match settings.deployment.mode {
                config::Mode::Pooled => "pooled",
                config::Mode::Relay => "relay",
            },
            credentials: Box::new(move || credentials.mode().as_str()),
            certificates: Box::new(move || tls::for_api(&expiries)),
            guard: ArcSwap::from_pointee(convert::guard(&settings.admin)),
            profiles: AtomicBool::new(settings.admin.profile),
            dashboard: AtomicBool::new(settings.admin.dashboard),
            sessions: admin::Sessions::default(),
            refused_actions: OccasionalLog::default(),
            refused_logins: OccasionalLog::default(),
            live: admin::Live::default(),
            fleet: ArcSwap::from_pointee(fleet),
            configuration: self.configuration.subscribe(),
            reloads: self.reloads.clone(),
            places: Arc::new(Semaphore::new(admin::MAX_REQUESTS)),
            capture_places: Arc::new(Semaphore::new(admin::MAX_CAPTURE_REQUESTS)),
            started_at: Instant::now(),
            liveness: Liveness::of(data, control),
        }
    }

    /// The addresses to which clients connect.
    pub fn client_addresses(&self) -> &[String] {
        &self.client_addresses
    }

    /// The first address of the metrics and the API; `None` if they are off, or if no address could
    /// be bound at the start.
    pub fn admin_address(&self) -> Option<&str> {
        self.admin_addresses.first().map(String::as_str)
    }

    /// The addresses of the metrics and the API that were bound at the start: several if the host
    /// name in the configuration has several addresses.
    pub(crate) fn admin_addresses(&self) -> &[String] {
        &self.admin_addresses
    }

    /// The first address that serves only metrics and health checks; `None` if this is off, or if
    /// no address could be bound at the start.
    pub fn metrics_address(&self) -> Option<&str> {
        self.metrics_addresses.first().map(String::as_str)
    }

    /// Like [`Self::admin_addresses`], for the address that serves only metrics and health checks.
    pub(crate) fn metrics_addresses(&self) -> &[String] {
        &self.metrics_addresses
    }

    /// Serves a client over `stream`, without TLS, until the client disconnects. The client counts
    /// as a client of the first listener. Returns `None` if Seawall refuses the client.
    ///
    /// Dropping the future closes the client.
    pub fn serve(&self, stream: Stream, peer: Peer) -> Option<impl Future<Output = ()> + use<>> {
        let first = self.listeners.first()?;
        let newcomer = first.newcomer(&self.shared, &peer)?;
        let shared = Arc::clone(&self.shared);
        Some(client::serve(shared, stream, peer, newcomer, None))
    }

    /// Number of operations in flight.
    pub fn operations_in_flight(&self) -> usize {
        self.shared.limits.operations().in_flight()
    }

    /// The sums of all operations, logins and connections.
    pub fn totals(&self) -> &Totals {
        &self.feed.totals
    }

    /// The connected clients.
    pub fn clients(&self) -> &ClientDirectory {
        &self.shared.clients
    }

    /// The MongoDB deployment: its servers and the connections to them.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.shared.routing.topology
    }

    /// Resolves when the API gets a request for a drain.
    pub(crate) async fn drain_requested(&self) {
        self.drain_requested.cancelled().await;
    }

    /// Drains Seawall. The reply to `hello` is error 91, so that drivers use another proxy.
    /// Operations are served until no client is left, the drain time is over or `hasten` resolves.
    /// Then Seawall asks the remaining clients to close, spread over half a second: a client with a
    /// running operation closes after its reply. Spread over the next half second, Seawall cuts
    /// the clients whose operations still run.
    pub async fn drain(&self, hasten: impl Future<Output = ()>) -> Drained {
        let until = Instant::now() + self.running.lock().settings.shutdown.drain;
        self.draining.send_replace(Some(until));
        self.tracker.close();
        self.end_reloads().await;
        let mut all_left = false;
        tokio::select! {
            () = self.tracker.wait() => all_left = true,
            () = sleep_until(until) => {}
            () = hasten => {}
        }
        self.stop_accepting.cancel();
        let closed_clients = if all_left { 0 } else { self.tracker.len() };
        let limits = &self.shared.limits;
        self.spread(|percent| limits.close_clients(percent)).await;
        self.spread(|percent| limits.cut_clients(percent)).await;
        self.tracker.wait().await;
        let fresh = self.shared.recorder.take_refusals();
        self.refusals.lock().end(&fresh, Instant::now());
        self.shared.routing.topology.close();
        self.close_history().await;
        self.telemetry.close(&self.feed.exporter).await;
        self.shared.recorder.flush_slow_log();
        captures::close(&self.shared).await;
        // Give the tasks that serve HTTP some time to end: one of them may still have to send the
        // reply to the request that started the drain.
        self.stop.cancel();
        self.admin_tasks.close();
        drop(timeout(ADMIN_END_LIMIT, self.admin_tasks.wait()).await);
        Drained { closed_clients }
    }

    /// Calls `close` with rising percentages of clients, up to 100, within [`CLOSING_SPREAD`]. Ends
    /// earlier if no client is left.
    async fn spread(&self, close: impl Fn(u64)) {
        for percent in (0..=100).step_by(5) {
            if self.tracker.is_empty() {
                break;
            }
            close(percent);
            sleep(CLOSING_SPREAD / 20).await;
        }
        close(100);
    }

    /// Writes and closes the history. Waits at most [`HISTORY_CLOSE_LIMIT`], because a disk that
    /// hangs must not prevent the end of the process.
    async fn close_history(&self) {
        let feed = Arc::clone(&self.feed);
        let closing = spawn_blocking(move || feed.close());
        if timeout(HISTORY_CLOSE_LIMIT, closing).await.is_err() {
            tracing::warn!(
                "closing the history took longer than 2 s; its last seconds may be lost"
            );
        }
    }
}

/// The parts that `wire` builds.
struct Wired {
    shared: Arc<Shared>,
    feed: Arc<insight::Feed>,
    draining: watch::Sender<Option<Instant>>,
    has_service_account: bool,
    server_tls: RunningServerTls,
}

/// Builds the parts that clients share, and starts to monitor the deployment.
fn wire(
    settings: &config::Settings,
    deployment: DeploymentOptions,
    planes: &Planes,
    operations: OperationPermits,
) -> Result<Wired, StartError> {
    let Observer {
        recorder,
        clients,
        totals,
        exporter,
    } = insight::observer(settings)?;
    let nonces = Arc::new(NonceSource::new()?);
    let (server_tls, deployment, tls) = RunningServerTls::start(deployment, &settings.deployment)?;
    let has_service_account = deployment.has_credentials();
    let credential_settings =
        convert::credential_settings(&settings.auth, &settings.limits, has_service_account)?;
    let connector = convert::connector(settings, &deployment, tls, &nonces);
    let topology = Topology::start(
        deployment,
        convert::topology_settings(settings),
        connector,
        Arc::clone(&recorder),
        planes.data.handle().clone(),
        planes.control.handle().clone(),
    );
    let control = planes.control.handle().clone();
    let account = topology.service_account();
    let feed = insight::Feed::open(settings, account, totals, exporter, control)?;
    let credentials = Credentials::start(
        credential_settings,
        Arc::clone(&topology),
        Arc::clone(&nonces),
        planes.data.handle().clone(),
    );
    let (draining, draining_seen) = watch::channel(None);
    let limits = &settings.limits;
    let shared = Arc::new(Shared {
        current_settings: ArcSwap::from_pointee(convert::client_settings(settings)),
        service_id: ObjectId::new(),
        recorder,
        clients,
        captures: captures::open(settings, &topology),
        limits: Limits::new(convert::limit_numbers(settings), operations)
            .with_workers(planes.workers),
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
        routing: routing(settings, topology),
        memory: MessageMemory::of_bytes(limits.message_memory_bytes),
        reporter: OnceLock::new(),
        draining: draining_seen,
    });
    Ok(Wired {
        shared,
        feed,
        draining,
        has_service_account,
        server_tls,
    })
}

fn routing(settings: &config::Settings, topology: Arc<Topology>) -> Routing {
    let limits = convert::pin_limits(&settings.limits);
    Routing {
        topology,
        pins: Pins::new(limits),
        relay_pins: Pins::new(limits),
        fault: ArcSwapOption::from_pointee(settings.fault.as_ref().map(convert::fault)),
        foreign_cursors: OccasionalLog::default(),
        foreign_transactions: OccasionalLog::default(),
        failed_logins: OccasionalLog::default(),
        local_failures: OccasionalLog::default(),
        unforwarded_replies: OccasionalLog::default(),
    }
}

/// Adjusts, at each tick of a timer, the rates at which the gates (see [`Gate`]) admit logins and
/// new clients. The rate of logins depends on how long operations wait in the pools. The rate of
/// new clients depends on how late the tasks of the data plane (the threads that serve clients)
/// run.
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

/// Measures how late the tasks of the data plane (the threads that serve clients) run. The metrics,
/// and the gate that delays new clients, use the measurements.
async fn watch_data_plane(shared: Arc<Shared>, exporter: Arc<Exporter>) {
    let record = |late| exporter.record_event_loop_delay("data", late);
    watch_lateness(&shared, &shared.arrivals.lateness, record).await;
}

/// Measures how late the tasks of the control plane (the threads that serve no clients) run, for
/// the metrics.
async fn watch_control_plane(shared: Arc<Shared>, exporter: Arc<Exporter>) {
    let record = |late| exporter.record_event_loop_delay("control", late);
    watch_lateness(&shared, &Lateness::new(Instant::now()), record).await;
}

async fn watch_lateness(shared: &Shared, lateness: &Lateness, record: impl Fn(Duration)) {
    // `has_operations` counts only operations that hold a permit. The operations of relayed clients
    // need no permit.
    let is_relaying = || shared.settings().is_relay && shared.clients.count() > 0;
    let is_active = || has_operations(shared) || is_relaying();
    measure_lateness(&shared.arrivals.activity, lateness, is_active, record).await;
}

async fn maintain(shared: Arc<Shared>, feed: Arc<insight::Feed>, refusals: Arc<Mutex<RefusalLog>>) {
    let mut ticks = interval(MAINTENANCE_INTERVAL);
    // Skip the ticks that were missed while the process was suspended, because one tick does the
    // work of all of them.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        shared.routing.topology.maintain_pools();
        shared.logins.credentials.maintain();
        shared.routing.pins.maintain(Instant::now());
        shared.routing.relay_pins.maintain(Instant::now());
        let is_draining = shared.draining.borrow().is_some();
        let credentials = shared.logins.credentials.mode().as_str();
        let topology = &shared.routing.topology;
        admin::update_gauges(&feed.exporter, topology, is_draining, credentials);
        feed.totals.collect();
        insight::update_process_metrics(&shared, &feed);
        captures::maintain(&shared, &feed.exporter);
        let fresh = shared.recorder.take_refusals();
        refusals.lock().add(&fresh, Instant::now());
    }
}
