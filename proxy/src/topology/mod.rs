//! The deployment: its servers, their descriptions, and server selection for operations.
//!
//! The official driver's monitoring (its SDAM events) reports the servers and their types. Seawall
//! also probes each server over a separate connection. The probes measure the round-trip time, and
//! read the time of the server's last write. They also notice that a failed server has recovered.
//! The driver would notice this only at its next heartbeat. The results are published as snapshots,
//! which operations read without waiting.
//!
//! This module calls the pool, for example to clear the pool of a failed server. The pool never
//! calls this module: it returns its failures as values.

mod cluster_time;
mod description;
mod driver_tls;
#[cfg(test)]
mod fixtures;
mod ignored_primary;
mod monitor;
mod probe;
mod published;
mod relay;
mod selection;

use std::{
    collections::HashMap,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    observe::Recorder,
    pool::{Checkout, PoolLimits, Renewal, ServerPool, Suspicion},
    service_account::ServiceAccount,
};
use seawall_command::{
    INTERRUPTED_AT_SHUTDOWN, INTERRUPTED_DUE_TO_REPL_STATE_CHANGE, NOT_PRIMARY_OR_SECONDARY,
    ReadPreference, SHUTDOWN_IN_PROGRESS,
};
use seawall_locks::Mutex;
use seawall_transport::connection::{Connector, Generation, ServerAddress, ServerTls, TlsVersion};

pub use self::{
    cluster_time::ClusterTime,
    description::{Probe, ServerDescription, ServerType, TopologyDescription, TopologyType},
    driver_tls::DriverTls,
    monitor::{DeploymentError, DeploymentOptions},
};
use self::{ignored_primary::IgnoredPrimary, published::Published};

/// Settings of the whole deployment.
#[derive(Clone, Debug)]
pub struct TopologySettings {
    /// Width of the latency window. The round-trip time of a selected server exceeds the shortest
    /// round-trip time of the suitable servers by at most this time.
    pub local_threshold: Duration,
    /// Time between two heartbeats of a server.
    pub heartbeat_frequency: Duration,
    /// Limits of each server's pool.
    pub pool: PoolLimits,
    /// True if relays end soon after a change of the TLS configuration for servers.
    pub closes_outdated_relays: bool,
}

/// If a connection of a pool ends during an operation, the pool waits for the reply to a probe. If
/// no reply arrives in this time, the server counts as failed at the next call of
/// [`Topology::maintain_pools`].
const SUSPICION_LIMIT: Duration = Duration::from_secs(1);

/// Error: no suitable server was found before the deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no suitable server")]
pub struct SelectError;

/// The deployment at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The descriptions of the deployment and of its servers.
    pub description: TopologyDescription,
    /// The pools of the servers, in the order of `description.servers`.
    pub pools: Vec<Arc<ServerPool>>,
}

struct Member {
    server: ServerDescription,
    pool: Arc<ServerPool>,
    /// Makes the task that probes the server send a probe now, before the next heartbeat.
    wake_prober: Arc<Notify>,
    /// Cancelled when the server leaves the deployment.
    removed: CancellationToken,
}

#[derive(Default)]
struct TopologyState {
    topology_type: TopologyType,
    set_name: Option<String>,
    members: HashMap<ServerAddress, Member>,
    was_seen: bool,
    is_standalone: bool,
    lacks_hello: bool,
    lacks_hello_ok: bool,
    max_wire_version: i32,
    cluster_time: Option<ClusterTime>,
}

impl TopologyState {
    /// Derives the facts about the whole deployment from its servers. While no server has a known
    /// wire version, `max_wire_version` keeps its last value. While no server has a known type,
    /// `is_standalone` keeps its last value.
    fn remember_servers(&mut self) {
        let servers = || self.members.values().map(|member| &member.server);
        let versions = servers().map(|server| server.probe.max_wire_version);
        let lowest = versions.filter(|version| *version > 0).min();
        let types = || servers().map(|server| server.server_type);
        let is_seen = types().any(|server_type| server_type != ServerType::Unknown);
        let is_standalone = types().any(|server_type| server_type == ServerType::Standalone);
        self.lacks_hello = servers().any(|server| server.probe.lacks_hello);
        self.lacks_hello_ok = servers().any(|server| server.probe.lacks_hello_ok);
        self.max_wire_version = lowest.unwrap_or(self.max_wire_version);
        if is_seen {
            self.was_seen = true;
            self.is_standalone = is_standalone;
        }
    }
}

/// The current view of the deployment, updated by the monitoring.
pub struct Topology {
    settings: ArcSwap<TopologySettings>,
    state: Mutex<TopologyState>,
    published: Published<Snapshot>,
    connector: Connector,
    recorder: Arc<Recorder>,
    data_plane: Handle,
    control_plane: Handle,
    stop: CancellationToken,
    /// A counter that determines which two suitable servers the next selection compares.
    rotation: AtomicUsize,
    /// The official driver's client that monitors the deployment.
    monitoring_client: Mutex<Option<mongodb::Client>>,
    /// The service account; `None` if the connection string has no user.
    service_account: Option<Arc<ServiceAccount>>,
    /// The TLS options of the official driver. Each new value makes the driver connect again, even
    /// if it equals the earlier value: the contents of the files may have changed, or the driver
    /// ignores the primary.
    driver_tls: watch::Sender<DriverTls>,
    ignored_primary: Mutex<IgnoredPrimary>,
    /// True if the connection string has `directConnection=true`.
    is_direct: bool,
    /// The server that was last chosen for the relays that share one server (see [`relay`]); `None`
    /// if none has been chosen yet.
    relay_choice: Mutex<Option<ServerAddress>>,
    /// Relays whose server connection has an earlier TLS version end soon.
    oldest_relay_tls: watch::Sender<TlsVersion>,
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology").finish_non_exhaustive()
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Topology {
    /// Starts to monitor a deployment. Returns at once and does not wait for a server, because the
    /// deployment may not be available.
    pub fn start(
        options: DeploymentOptions,
        settings: TopologySettings,
        connector: Connector,
        recorder: Arc<Recorder>,
        data_plane: Handle,
        control_plane: Handle,
    ) -> Arc<Self> {
        let service_account = ServiceAccount::new(connector.clone());
        let mut topology =
            Self::unwatched(settings, connector, recorder, data_plane, control_plane);
        topology.service_account = options.has_credentials().then(|| Arc::new(service_account));
        topology.is_direct = options.is_direct();
        let topology = Arc::new(topology);
        let stop = topology.stop.clone();
        (topology.driver_tls).send_replace(options.tls().unwrap_or_default());
        let tls = topology.driver_tls.subscribe();
        let watching = monitor::watch(Arc::downgrade(&topology), options, tls);
        let control_plane = &topology.control_plane;
        control_plane.spawn(stop.run_until_cancelled_owned(watching));
        topology
    }

    /// Creates a topology without monitoring and without servers.
    fn unwatched(
        settings: TopologySettings,
        connector: Connector,
        recorder: Arc<Recorder>,
        data_plane: Handle,
        control_plane: Handle,
    ) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            state: Mutex::default(),
            published: Published::default(),
            connector,
            recorder,
            data_plane,
            control_plane,
            stop: CancellationToken::new(),
            rotation: AtomicUsize::new(0),
            monitoring_client: Mutex::new(None),
            service_account: None,
            driver_tls: watch::Sender::new(DriverTls::default()),
            ignored_primary: Mutex::default(),
            is_direct: false,
            relay_choice: Mutex::new(None),
            oldest_relay_tls: watch::Sender::default(),
        }
    }

    /// Applies new settings. The heartbeat frequency does not change. `connect_timeout` is the new
    /// time limit for establishing a connection. If `tls` is set, all connections of pools are
    /// replaced soon, and the official driver connects again. Must not be called by two threads at
    /// a time, because the calls could give different limits to different pools.
    pub(crate) fn configure(
        &self,
        mut settings: TopologySettings,
        connect_timeout: Duration,
        tls: Option<(Arc<ServerTls>, DriverTls)>,
    ) {
        self.connector.set_limit(connect_timeout);
        settings.heartbeat_frequency = self.settings.load().heartbeat_frequency;
        settings.pool.renewal = match tls {
            Some((tls, driver_tls)) => {
                self.driver_tls.send_replace(driver_tls);
                let version = self.connector.set_tls(tls);
                if let Some(account) = &self.service_account {
                    account.close_outdated();
                }
                let began = Instant::now();
                Some(Renewal { version, began })
            }
            None => self.settings.load().pool.renewal,
        };
        self.oldest_relay_tls
            .send_replace(match settings.closes_outdated_relays {
                true => self.connector.tls_version(),
                false => TlsVersion::default(),
            });
        // The lock ensures that no pool is created with the earlier limits after the pools were
        // listed.
        let state = self.state.lock();
        let pool = settings.pool.clone();
        self.settings.store(Arc::new(settings));
        let members = state.members.values();
        let pools: Vec<_> = members.map(|member| Arc::clone(&member.pool)).collect();
        drop(state);
        pools.iter().for_each(|server| server.set_limits(&pool));
    }

    /// Returns a receiver of the earliest TLS version whose relays need not end.
    pub(crate) fn oldest_relay_tls(&self) -> watch::Receiver<TlsVersion> {
        self.oldest_relay_tls.subscribe()
    }

    /// The latest snapshot of the deployment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.published.current())
    }

    /// True if the deployment is a direct connection to a member of a replica set.
    pub(crate) fn is_direct_to_member(&self) -> bool {
        self.is_direct && self.published.current().description.is_one_member()
    }

    /// Returns a receiver of the current snapshot and all later snapshots.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.published.subscribe()
    }

    /// The service account; `None` if the deployment's connection string has no user.
    pub(crate) fn service_account(&self) -> Option<&Arc<ServiceAccount>> {
        self.service_account.as_ref()
    }

    /// The connector of the pools. It can also establish connections that belong to no pool.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Selects a suitable server and returns its pool. If no server is suitable, waits for one
    /// until `deadline`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`SelectError`] if no suitable server was found before the deadline.
    pub async fn select(
        &self,
        preference: &ReadPreference,
        deadline: Instant,
    ) -> Result<Arc<ServerPool>, SelectError> {
        if let Some(pool) = self.select_now(preference) {
            return Ok(pool);
        }
        let mut published = self.published.subscribe();
        loop {
            if let Some(pool) = self.choose(&published.borrow_and_update(), preference) {
                return Ok(pool);
            }
            match timeout_at(deadline, published.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(SelectError),
            }
        }
    }

    /// Selects a suitable server, if there is one now, and returns its pool.
    pub(crate) fn select_now(&self, preference: &ReadPreference) -> Option<Arc<ServerPool>> {
        self.choose(&self.published.current(), preference)
    }

    fn choose(&self, snapshot: &Snapshot, preference: &ReadPreference) -> Option<Arc<ServerPool>> {
        if let Some(only) = selection::select_only(&snapshot.description, preference) {
            return snapshot.pools.get(only).cloned();
        }
        let window = self.settings.load().local_threshold;
        let suitable = selection::select(&snapshot.description, preference, window);
        let pool = |index: &usize| snapshot.pools.get(*index);
        match suitable.as_slice() {
            [] => None,
            [only] => pool(only).cloned(),
            several => {
                // As in the Server Selection specification, the less busy of two suitable servers
                // is selected. A rotation determines the two servers, because it costs less per
                // operation than random numbers.
                let rotation = self.rotation.fetch_add(1, Ordering::Relaxed);
                let first = several.get(rotation % several.len()).and_then(pool)?;
                let second = several.get((rotation + 1) % several.len()).and_then(pool)?;
                let now = Instant::now();
                let (one, other) = (first.cost(now), second.cost(now));
                let is_second = match snapshot.description.topology_type {
                    // All mongos do the same work, so long operations mean that a mongos is slow.
                    TopologyType::Sharded => one.exceeds(other),
                    // The members of a replica set do different work, so the durations of their
                    // operations do not show which member is slow.
                    _ => one.is_busier(other),
                };
                let chosen = if is_second { second } else { first };
                Some(Arc::clone(chosen))
            }
        }
    }

    /// Handles a failure of a server, which occurred during an operation or when Seawall tried to
    /// connect to the server. Clears the server's pool and excludes the server from selection until
    /// a probe succeeds. Does nothing if the failure belongs to an earlier `generation` of the pool
    /// than the current one, or if the pool is already paused or closed.
    pub(crate) fn report_failure(&self, pool: &Arc<ServerPool>, generation: Generation) {
        if !pool.clear(generation) {
            return;
        }
        tracing::warn!(server = %pool.address(), "pool cleared");
        self.update_server_of(pool, |member| {
            member.server.suspect(Instant::now());
            member.wake_prober.notify_one();
            true
        });
    }

    /// Handles an I/O error of a connection during an operation.
    pub(crate) fn report_io_error(&self, checkout: &Checkout, error: &io::Error) {
        match error.kind() {
            // The server counts as hung, or its kernel no longer replies. A request cannot cause
            // this, so the server has failed.
            io::ErrorKind::TimedOut => self.report_failure(checkout.pool(), checkout.generation()),
            _ => self.report_connection_ended(checkout),
        }
    }

    /// Handles the end of a connection during an operation. The cause of the end may be the server
    /// or the client's command. So the pool usually hands out no connection until a probe gets a
    /// reply. The pool is cleared only if the server has failed.
    pub(crate) fn report_connection_ended(&self, checkout: &Checkout) {
        let (pool, generation) = (checkout.pool(), checkout.generation());
        match pool.suspect(generation, checkout.identity()) {
            Suspicion::Outdated => {}
            Suspicion::Probe => {
                if let Some(member) = self.state.lock().members.get(pool.address()) {
                    member.wake_prober.notify_one();
                }
            }
            Suspicion::Failed => self.report_failure(pool, generation),
        }
    }

    /// Handles a state-change error (`code`) in a server's reply. `generation` is the generation
    /// that the pool had when it created the connection of the reply.
    ///
    /// - If the code says that the server is shutting down, the server counts as failed.
    /// - Otherwise, a server that is not a secondary counts as demoted, for example a primary.
    /// - A secondary counts as demoted only if the code says that the server is leaving or has left
    ///   the state `SECONDARY`. Clients can cause the other codes, for example with a write on a
    ///   secondary.
    pub(crate) fn report_state_change(
        &self,
        pool: &Arc<ServerPool>,
        generation: Generation,
        code: i32,
    ) {
        let is_shutting_down = matches!(code, SHUTDOWN_IN_PROGRESS | INTERRUPTED_AT_SHUTDOWN);
        if is_shutting_down {
            self.report_failure(pool, generation);
            return;
        }
        self.update_server_of(pool, |member| {
            if member.server.is_demoted() {
                // The first error has woken the prober.
                return false;
            }
            member.wake_prober.notify_one();
            let is_secondary = member.server.server_type == ServerType::Secondary;
            let is_recovering = matches!(
                code,
                INTERRUPTED_DUE_TO_REPL_STATE_CHANGE | NOT_PRIMARY_OR_SECONDARY
            );
            let is_demotion = !is_secondary || is_recovering;
            member.server.demoted_since = is_demotion.then(Instant::now);
            is_demotion
        });
    }

    /// True if this server may refuse a user's keys although they are valid.
    pub(crate) fn may_lag(&self, address: &ServerAddress) -> bool {
        self.snapshot().description.may_lag(address)
    }

    /// True if the server at this address is a router.
    pub(crate) fn is_router(&self, address: &ServerAddress) -> bool {
        self.snapshot().description.is_router(address)
    }

    /// Selects the nearest usable router that is not one of `refusing`, the routers that have
    /// refused a user's SCRAM keys. `None` if there is no such router, or if the topology type is
    /// not [`TopologyType::Sharded`].
    pub(crate) fn router_except(&self, refusing: &[ServerAddress]) -> Option<Arc<ServerPool>> {
        let snapshot = self.snapshot();
        let index = snapshot.description.router_except(refusing)?;
        snapshot.pools.get(index).cloned()
    }

    /// True if at least one router is usable or may become usable soon. The routers in `refusing`,
    /// which have refused a user's SCRAM keys, do not count.
    pub(crate) fn expects_router_except(&self, refusing: &[ServerAddress]) -> bool {
        let snapshot = self.snapshot();
        let description = &snapshot.description;
        description.expects_router_except(refusing, Instant::now())
    }

    /// Like [`Self::router_except`], but if no router can be selected now and one may become usable
    /// soon, waits for it until `deadline`. `None` if no router may become usable soon.
    ///
    /// # Errors
    /// [`SelectError`] if the wait reached the deadline.
    pub(crate) async fn select_router_except(
        &self,
        refusing: &[ServerAddress],
        deadline: Instant,
    ) -> Result<Option<Arc<ServerPool>>, SelectError> {
        let mut published = self.published.subscribe();
        loop {
            published.mark_unchanged();
            let other = self.router_except(refusing);
            if other.is_some() || !self.expects_router_except(refusing) {
                return Ok(other);
            }
            match timeout_at(deadline, published.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(SelectError),
            }
        }
    }

    /// The server that relays share (see [`relay`]): the primary, one mongos, or the only server of
    /// the deployment. `None` if no such server is usable.
    pub(crate) fn relay_server(&self) -> Option<Arc<ServerPool>> {
        let snapshot = self.snapshot();
        let candidates = relay::candidates(&snapshot.description);
        let addresses = candidates
            .iter()
            .filter_map(|index| snapshot.description.servers.get(*index));
        let addresses: Vec<_> = addresses.map(|server| &server.address).collect();
        let mut chosen = self.relay_choice.lock();
        let position = relay::keep_or_choose(chosen.as_ref(), &addresses)?;
        *chosen = addresses.get(position).map(|address| (*address).clone());
        let index = candidates.get(position)?;
        snapshot.pools.get(*index).cloned()
    }

    /// Like [`Self::relay_server`], but if no server is usable, waits for one until `deadline`.
    ///
    /// # Errors
    /// [`SelectError`] if no server became usable before the deadline.
    pub(crate) async fn select_for_relay(
        &self,
        deadline: Instant,
    ) -> Result<Arc<ServerPool>, SelectError> {
        let mut published = self.published.subscribe();
        loop {
            published.mark_unchanged();
            if let Some(pool) = self.relay_server() {
                return Ok(pool);
            }
            match timeout_at(deadline, published.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(SelectError),
            }
        }
    }

    fn update(&self, address: &ServerAddress, change: impl FnOnce(&mut Member)) {
        let mut state = self.state.lock();
        if let Some(member) = state.members.get_mut(address) {
            change(member);
            self.publish(&mut state);
        }
    }

    /// Changes the server of `pool`. Does nothing if the server has left the deployment, even if a
    /// server with the same address has joined since then: the new server has another pool.
    /// `change` returns true if it has changed the server description. Only then is a snapshot
    /// published, because each snapshot wakes all operations that wait in server selection.
    fn update_server_of(&self, pool: &Arc<ServerPool>, change: impl FnOnce(&mut Member) -> bool) {
        let mut state = self.state.lock();
        let member = state.members.get_mut(pool.address());
        let member = member.filter(|member| Arc::ptr_eq(&member.pool, pool));
        if member.is_some_and(change) {
            self.publish(&mut state);
        }
    }

    fn publish(&self, state: &mut TopologyState) {
        state.remember_servers();
        let mut members: Vec<_> = state.members.values().collect();
        members.sort_by(|a, b| a.server.address.cmp(&b.server.address));
        let description = TopologyDescription {
            topology_type: state.topology_type,
            set_name: state.set_name.clone(),
            servers: members.iter().map(|member| member.server.clone()).collect(),
            heartbeat_frequency: self.settings.load().heartbeat_frequency,
            was_seen: state.was_seen,
            is_standalone: state.is_standalone,
            lacks_hello: state.lacks_hello,
            lacks_hello_ok: state.lacks_hello_ok,
            cluster_time: state.cluster_time.clone(),
            max_wire_version: state.max_wire_version,
        };
        let pools = members
            .iter()
            .map(|member| Arc::clone(&member.pool))
            .collect();
        self.published.replace(Snapshot { description, pools });
    }

    /// Maintains all pools (see [`ServerPool::maintain`]), and closes outdated connections of the
    /// service account. Reports a server as failed if its pool has waited at least
    /// [`SUSPICION_LIMIT`] for the reply to a probe. Called once a second.
    pub(crate) fn maintain_pools(&self) {
        let now = Instant::now();
        for pool in &self.snapshot().pools {
            let suspected_for = pool.suspected_for(now).unwrap_or_default();
            if suspected_for >= SUSPICION_LIMIT {
                self.report_failure(pool, pool.generation());
            }
            pool.maintain();
        }
        if let Some(account) = &self.service_account {
            account.close_outdated();
        }
    }

    /// Stops monitoring and closes all pools.
    pub fn close(&self) {
        self.stop.cancel();
        self.snapshot().pools.iter().for_each(|pool| pool.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tests::limits;
    use seawall_auth::NonceSource;

    /// The time limit for each new connection and each probe. It is longer than any step of the
    /// tests, so it never expires.
    pub(super) const LIMIT: Duration = Duration::from_secs(10);

    /// The code `NotWritablePrimary`.
    const NOT_WRITABLE_PRIMARY: i32 = 10_107;

    /// A topology whose only server is a standalone at this address. Nothing monitors the server.
    pub(super) fn topology_at(address: &ServerAddress) -> Arc<Topology> {
        let nonces = Arc::new(NonceSource::new().unwrap());
        let connector = Connector::new(None, Vec::new(), LIMIT, nonces);
        let recorder = Recorder::without_shapes();
        Topology::of_standalone(address.clone(), limits(), connector, recorder)
    }

    /// A member of the deployment whose server has this type.
    pub(super) fn member(server_type: ServerType, pool: &Arc<ServerPool>) -> Member {
        Member {
            server: ServerDescription {
                server_type,
                ..ServerDescription::unknown(pool.address().clone())
            },
            pool: Arc::clone(pool),
            wake_prober: Arc::default(),
            removed: CancellationToken::new(),
        }
    }

    /// A topology whose only server has this type, and the pool of this server. Nothing monitors
    /// the server.
    pub(super) fn topology_of(server_type: ServerType) -> (Arc<Topology>, Arc<ServerPool>) {
        let topology = topology_at(&"127.0.0.1:1".parse().unwrap());
        let pool = Arc::clone(&topology.snapshot().pools[0]);
        let (address, server) = (pool.address().clone(), member(server_type, &pool));
        topology.state.lock().members.insert(address, server);
        (topology, pool)
    }

    /// If a server leaves the deployment and joins it again, it gets a new pool. An operation at
    /// the former pool may still run, and may end with an error.
    #[tokio::test]
    async fn an_error_at_the_former_pool_of_a_server_that_joined_again_does_not_demote_it() {
        let address: ServerAddress = "127.0.0.1:1".parse().unwrap();
        let topology = topology_at(&address);
        let [former, current] =
            [&topology, &topology_at(&address)].map(|of| Arc::clone(&of.snapshot().pools[0]));
        let joined = member(ServerType::Primary, &current);
        topology.state.lock().members.insert(address, joined);
        for (pool, is_demoted) in [(former, false), (current, true)] {
            let code = INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
            topology.report_state_change(&pool, pool.generation(), code);
            let servers = &topology.snapshot().description.servers;
            assert_eq!(servers[0].is_demoted(), is_demoted);
        }
    }

    /// When a primary steps down, all operations at it fail at almost the same time, and then wait
    /// until a snapshot shows another primary.
    #[tokio::test]
    async fn only_the_first_error_of_a_demoted_primary_wakes_operations_in_server_selection() {
        let (topology, pool) = topology_of(ServerType::Primary);
        let mut published = topology.subscribe();
        let code = INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
        for is_first in [true, false, false] {
            topology.report_state_change(&pool, pool.generation(), code);
            assert_eq!(published.has_changed().unwrap(), is_first);
            published.mark_unchanged();
            assert!(topology.snapshot().description.servers[0].is_demoted());
        }
    }

    /// A client can cause this error, for example with a write on a secondary.
    #[tokio::test]
    async fn an_error_of_a_secondary_that_stays_usable_wakes_no_operation_in_server_selection() {
        let (topology, pool) = topology_of(ServerType::Secondary);
        let published = topology.subscribe();
        topology.report_state_change(&pool, pool.generation(), NOT_WRITABLE_PRIMARY);
        assert!(!published.has_changed().unwrap());
    }

    /// A clear of the pool begins a new *generation* of connections.
    #[tokio::test]
    async fn a_shutdown_error_on_a_connection_of_an_earlier_generation_does_not_clear_the_pool() {
        let topology = topology_at(&"127.0.0.1:1".parse().unwrap());
        let pool = Arc::clone(&topology.snapshot().pools[0]);
        let first = pool.generation();
        topology.report_state_change(&pool, first, SHUTDOWN_IN_PROGRESS);
        let second = pool.generation();
        assert_ne!(second, first);
        pool.ready();
        topology.report_state_change(&pool, first, SHUTDOWN_IN_PROGRESS);
        assert_eq!(pool.generation(), second);
        topology.report_state_change(&pool, second, INTERRUPTED_AT_SHUTDOWN);
        assert_ne!(pool.generation(), second);
    }
}
