//! The deployment: which servers there are, how they fare, and which one an operation may go to.
//!
//! Membership comes from the official driver's monitoring (its SDAM events). Beside it stand probes of our own,
//! one connection a server: they measure the round trip, read how far a secondary lags, and find a server well
//! again that an operation failed with, which the driver would look at only at its next heartbeat. Everything is
//! published as a snapshot that the data path reads without waiting.
//!
//! Knowledge goes down (a failed server's pool is cleared here), facts come back as values: the pool never
//! knows this module.

mod cluster_time;
mod description;
mod monitor;
mod probe;
mod relay;
mod selection;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    command::ReadPreference,
    connection::{Connector, Generation, ServerAddress},
    observe::Observer,
    pool::{Checkout, Limits, ServerPool, Suspicion},
};

pub use self::{
    cluster_time::ClusterTime,
    description::{Description, Kind, Probe, Server, ServerKind},
    monitor::{DeploymentError, DeploymentOptions},
};

/// What holds for the whole deployment.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much farther than the nearest a server may be.
    pub local_threshold: Duration,
    /// How often each server is looked at.
    pub heartbeat_frequency: Duration,
    /// Limits of each server's pool.
    pub pool: Limits,
}

/// Longest time that a pool stays paused without an answer to its probe; then the server counts as failed.
const SUSPICION_LIMIT: Duration = Duration::from_secs(1);

/// No suitable server before the deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no suitable server")]
pub struct SelectError;

/// The deployment at a moment, with the pools of its servers in the same order.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// What is known.
    pub description: Description,
    /// The servers' pools.
    pub pools: Vec<Arc<ServerPool>>,
}

struct Member {
    server: Server,
    pool: Arc<ServerPool>,
    /// Wakes its prober before the next heartbeat.
    look: Arc<Notify>,
    stop: CancellationToken,
}

#[derive(Default)]
struct State {
    kind: Kind,
    set_name: Option<String>,
    members: HashMap<ServerAddress, Member>,
    was_seen: bool,
    is_standalone: bool,
    lacks_hello: bool,
    lacks_hello_ok: bool,
    max_wire_version: i32,
    cluster_time: Option<ClusterTime>,
}

impl State {
    /// Takes in what is known of the servers now; where nothing is, what was known stays.
    fn remember_servers(&mut self) {
        let servers = || self.members.values().map(|member| &member.server);
        let versions = servers().map(|server| server.probe.max_wire_version);
        let lowest = versions.filter(|version| *version > 0).min();
        let kinds = || servers().map(|server| server.kind);
        let is_seen = kinds().any(|kind| kind != ServerKind::Unknown);
        let is_standalone = kinds().any(|kind| kind == ServerKind::Standalone);
        self.lacks_hello = servers().any(|server| server.probe.lacks_hello);
        self.lacks_hello_ok = servers().any(|server| server.probe.lacks_hello_ok);
        self.max_wire_version = lowest.unwrap_or(self.max_wire_version);
        if is_seen {
            self.was_seen = true;
            self.is_standalone = is_standalone;
        }
    }
}

/// The live view of the deployment.
pub struct Topology {
    settings: Settings,
    state: Mutex<State>,
    published: watch::Sender<Arc<Snapshot>>,
    connector: Connector,
    observer: Arc<Observer>,
    data_plane: Handle,
    control_plane: Handle,
    stop: CancellationToken,
    /// Where the next choice among several begins.
    turn: AtomicUsize,
    control_client: Mutex<Option<mongodb::Client>>,
    /// Which server relays go to.
    relay_choice: Mutex<Option<ServerAddress>>,
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
    /// Begins to watch a deployment. Does not wait for it: it may be down.
    pub fn start(
        options: DeploymentOptions,
        settings: Settings,
        connector: Connector,
        observer: Arc<Observer>,
        data_plane: Handle,
        control_plane: Handle,
    ) -> Arc<Self> {
        let topology = Arc::new(Self::unwatched(
            settings,
            connector,
            observer,
            data_plane,
            control_plane,
        ));
        let stop = topology.stop.clone();
        let watching = monitor::watch(Arc::downgrade(&topology), options);
        let control_plane = &topology.control_plane;
        control_plane.spawn(stop.run_until_cancelled_owned(watching));
        topology
    }

    /// Of no server, until a snapshot is published.
    fn unwatched(
        settings: Settings,
        connector: Connector,
        observer: Arc<Observer>,
        data_plane: Handle,
        control_plane: Handle,
    ) -> Self {
        Self {
            settings,
            state: Mutex::default(),
            published: watch::Sender::new(Arc::default()),
            connector,
            observer,
            data_plane,
            control_plane,
            stop: CancellationToken::new(),
            turn: AtomicUsize::new(0),
            control_client: Mutex::new(None),
            relay_choice: Mutex::new(None),
        }
    }

    /// Of one standalone server, which is not watched: for tests.
    #[cfg(test)]
    pub(crate) fn of_standalone(
        address: ServerAddress,
        limits: Limits,
        connector: Connector,
        observer: Arc<Observer>,
    ) -> Arc<Self> {
        let runtime = Handle::current();
        let metrics = observer.server(&address.to_string());
        let pool = ServerPool::new(
            address.clone(),
            limits.clone(),
            connector.clone(),
            metrics,
            runtime.clone(),
        );
        pool.ready();
        let server = Server {
            kind: ServerKind::Standalone,
            ..Server::unknown(address)
        };
        let description = Description {
            kind: Kind::Single,
            servers: vec![server],
            ..Description::default()
        };
        let snapshot = Snapshot {
            description,
            pools: vec![pool],
        };
        let settings = Settings {
            local_threshold: Duration::ZERO,
            heartbeat_frequency: Duration::from_secs(10),
            pool: limits,
        };
        let topology = Self::unwatched(settings, connector, observer, runtime.clone(), runtime);
        topology.published.send_replace(Arc::new(snapshot));
        Arc::new(topology)
    }

    /// The deployment as it is known now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.published.borrow())
    }

    /// A receiver of all later snapshots, the present one included.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.published.subscribe()
    }

    /// The driver's client, for control commands as the service account; `None` until the deployment's
    /// connection string has been resolved.
    pub fn control_client(&self) -> Option<mongodb::Client> {
        self.control_client.lock().clone()
    }

    /// What makes connections, for those that belong to no pool.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// A suitable server's pool, waiting for one until `deadline`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// [`SelectError`] at the deadline.
    pub async fn select(
        &self,
        preference: &ReadPreference,
        deadline: Instant,
    ) -> Result<Arc<ServerPool>, SelectError> {
        if let Some(pool) = self.choose(&self.published.borrow(), preference) {
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

    fn choose(&self, snapshot: &Snapshot, preference: &ReadPreference) -> Option<Arc<ServerPool>> {
        let window = self.settings.local_threshold;
        let suitable = selection::select(&snapshot.description, preference, window);
        let pool = |index: &usize| snapshot.pools.get(*index);
        match suitable.as_slice() {
            [] => None,
            [only] => pool(only).cloned(),
            several => {
                // Two in turn, and of them the less busy one: the specification's power of two choices, with
                // a turn in place of chance, so that no random number is drawn an operation.
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                let first = several.get(turn % several.len()).and_then(pool)?;
                let second = several.get((turn + 1) % several.len()).and_then(pool)?;
                let now = Instant::now();
                let (one, other) = (first.cost(now), second.cost(now));
                let is_second = match snapshot.description.kind {
                    // Every router does the same work, so that a slow one is slow by itself.
                    Kind::Sharded => one.exceeds(other),
                    // Members do different work: their operations' times say little of them.
                    _ => one.is_busier(other),
                };
                let chosen = if is_second { second } else { first };
                Some(Arc::clone(chosen))
            }
        }
    }

    /// An operation, or the making of a connection, failed with a server: its pool is cleared, and it is not
    /// selected until a probe finds it well.
    pub fn report_failure(&self, pool: &Arc<ServerPool>, generation: Generation) {
        if !pool.clear(generation) {
            return;
        }
        tracing::warn!(server = %pool.address(), "pool cleared");
        self.update(pool.address(), |member| {
            member.server.is_suspect = true;
            member.look.notify_one();
        });
    }

    /// A connection made in `generation` ended under an operation. One end may have many causes, the client's own
    /// request among them: the pool pauses until a probe has answered, and is cleared only if the server failed.
    pub fn report_connection_ended(&self, checkout: &Checkout, generation: Generation) {
        let pool = checkout.pool();
        match pool.suspect(generation, checkout.identity()) {
            Suspicion::Outdated => {}
            Suspicion::Probe => {
                if let Some(member) = self.state.lock().members.get(pool.address()) {
                    member.look.notify_one();
                }
            }
            Suspicion::Failed => self.report_failure(pool, generation),
        }
    }

    /// A server answered with a state-change code.
    pub fn report_state_change(&self, pool: &Arc<ServerPool>, code: i32) {
        let is_shutting_down = matches!(code, 91 | 11600);
        if is_shutting_down {
            self.report_failure(pool, pool.generation());
            return;
        }
        self.update(pool.address(), |member| {
            member.server.is_demoted = true;
            member.look.notify_one();
        });
    }

    /// The server that relays go to now: the primary, or one router, the same for all.
    pub fn relay_server(&self) -> Option<Arc<ServerPool>> {
        let snapshot = self.snapshot();
        let candidates = relay::candidates(&snapshot.description);
        let addresses = candidates
            .iter()
            .filter_map(|index| snapshot.description.servers.get(*index));
        let addresses: Vec<_> = addresses.map(|server| &server.address).collect();
        let mut chosen = self.relay_choice.lock();
        let place = relay::stay_or_choose(chosen.as_ref(), &addresses)?;
        *chosen = addresses.get(place).map(|address| (*address).clone());
        let index = candidates.get(place)?;
        snapshot.pools.get(*index).cloned()
    }

    /// The same, waited for until `deadline`.
    ///
    /// # Errors
    /// [`SelectError`] at the deadline.
    pub async fn select_for_relay(
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

    fn publish(&self, state: &mut State) {
        state.remember_servers();
        let mut members: Vec<_> = state.members.values().collect();
        members.sort_by(|a, b| a.server.address.cmp(&b.server.address));
        let description = Description {
            kind: state.kind,
            set_name: state.set_name.clone(),
            servers: members.iter().map(|member| member.server.clone()).collect(),
            heartbeat_frequency: self.settings.heartbeat_frequency,
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
        self.published
            .send_replace(Arc::new(Snapshot { description, pools }));
    }

    /// Once a second: pools close what is too old and fill up to their minimum, and a server that was suspected for too
    /// long counts as failed.
    pub fn maintain_pools(&self) {
        let now = Instant::now();
        for pool in &self.snapshot().pools {
            let suspected_for = pool.suspected_for(now).unwrap_or_default();
            if suspected_for >= SUSPICION_LIMIT {
                self.report_failure(pool, pool.generation());
            }
            pool.maintain();
        }
    }

    /// Ends all pools.
    pub fn close(&self) {
        self.stop.cancel();
        self.snapshot().pools.iter().for_each(|pool| pool.close());
    }
}
