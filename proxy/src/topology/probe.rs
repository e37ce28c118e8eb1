//! Seawall's probes of one server. The probes use a separate connection without authentication.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bson::{RawDocument, RawDocumentBuf, doc, oid::ObjectId, rawdoc};
use mongodb::options::SelectionCriteria;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    ClusterTime, Topology,
    description::{Probe, ServerType, TopologyType},
};
use crate::{pool::ServerPool, runtime::OccasionalLog};
use seawall_transport::connection::{Connection, EstablishError, ServerAddress, reply_is_ok};

/// Time between probes of a failed server. So a server that has recovered is found soon.
const FAILED_PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Minimum time between the starts of two probes. This minimum limits the number of probes when
/// many failures are reported.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(10);

/// A server counts as hung if this number of probes in a row are silent (see
/// [`ProbeOutcome::Silent`]).
const SILENCES_OF_HUNG_SERVER: u32 = 2;

/// Weight of the newest round-trip time in the average (Server Selection specification).
const NEWEST_WEIGHT: f64 = 0.2;

/// Probes a server again and again. The next probe begins when `wake` is notified, or after a
/// pause: the heartbeat frequency after a successful probe, [`FAILED_PROBE_INTERVAL`] after any
/// other probe. If the server hangs, the operations that wait for its replies fail.
///
/// `removed` is cancelled when the server has left the deployment. The probes then continue while
/// operations still use `pool`, because these operations must also fail if the server hangs.
/// Returns when no more probes are needed, or when the topology is dropped.
pub(super) async fn keep_probing(
    topology: Weak<Topology>,
    pool: Weak<ServerPool>,
    address: ServerAddress,
    wake: Arc<Notify>,
    removed: CancellationToken,
) {
    let (mut connection, mut silences) = (None, 0);
    let failures = OccasionalLog::default();
    let is_in_use = || {
        pool.upgrade()
            .is_some_and(|pool| pool.snapshot().in_use > 0)
    };
    loop {
        let began = Instant::now();
        let Some(strong) = topology.upgrade() else {
            return;
        };
        if removed.is_cancelled() && !is_in_use() {
            return;
        }
        let outcome = probe(&strong, &address, &mut connection, &failures).await;
        silences = match outcome {
            ProbeOutcome::Silent => silences + 1,
            ProbeOutcome::Replied(_) | ProbeOutcome::Failed => 0,
            ProbeOutcome::Local => silences,
        };
        let is_hung = silences >= SILENCES_OF_HUNG_SERVER;
        let (pause, unaware) = match removed.is_cancelled() {
            true => (strong.apply_to_removed(&pool, &outcome, is_hung), None),
            false => {
                let pause = strong.apply_probe(&address, outcome, is_hung);
                (pause, strong.driver_unaware_of(&address))
            }
        };
        drop(strong);
        // Both a notification and the timeout start the next probe, so the result of the wait is
        // ignored.
        drop(timeout(pause, notified(&wake, unaware)).await);
        sleep_until(began + MIN_PROBE_INTERVAL).await;
    }
}

/// Waits until `wake` is notified. `unaware` is the driver's client if the driver has not noticed
/// the current state of the server. This function then makes the driver check its servers. When the
/// driver notices the state, it sends an event, which notifies `wake`.
async fn notified(wake: &Notify, unaware: Option<mongodb::Client>) {
    let Some(driver) = unaware else {
        return wake.notified().await;
    };
    tokio::select! {
        () = wake.notified() => {}
        () = check_servers(driver) => wake.notified().await,
    }
}

/// Makes the driver check its servers now and every half second, until the future is dropped or the
/// driver's server selection times out. Without these checks, the driver would notice the recovery
/// of a server only at its next heartbeat. A driver that polls would also notice a demotion only
/// then. The driver checks its servers while an operation waits in server selection. So this
/// function runs an operation for which no server is suitable. No command is ever sent.
async fn check_servers(driver: mongodb::Client) {
    let none = SelectionCriteria::Predicate(Arc::new(|_| false));
    let ping = doc! { "ping": 1 };
    let admin = driver.database("admin");
    let waiting = admin.run_command(ping).selection_criteria(none);
    // The error is a timeout of the driver's server selection.
    if let Err(error) = waiting.await {
        tracing::debug!(%error, "the driver that monitors the deployment has not noticed the new state of a server");
    }
}

/// The result of a probe.
enum ProbeOutcome {
    Replied(ProbeReply),
    /// The attempt to connect failed before its time limit, the connection ended, or the server
    /// replied with an error. Or no reply arrived in time on a connection that an earlier probe had
    /// used.
    Failed,
    /// No connection could be established in time, or no reply arrived on a new connection in time.
    Silent,
    /// Seawall's own host could not open a connection, so nothing is known about the server.
    Local,
}

struct ProbeReply {
    asked_at: Instant,
    lacks_hello: bool,
    hello: RawDocumentBuf,
    round_trip: Duration,
    build_info: Option<RawDocumentBuf>,
}

/// Probes a server over `connection`, or over a new connection. If the server counts as failed, the
/// connection is always new, because the pool will also need new connections: a server or a network
/// may refuse them while earlier connections still work. `failures` limits the log lines about new
/// connections that fail.
async fn probe(
    topology: &Topology,
    address: &ServerAddress,
    connection: &mut Option<Connection>,
    failures: &OccasionalLog,
) -> ProbeOutcome {
    let used = connection.take().filter(|used| {
        let has_current_tls = used.tls_version == topology.connector.tls_version();
        has_current_tls && !topology.is_failed(address)
    });
    let (mut open, is_new) = match used {
        Some(used) => (used, false),
        None => match topology.connector.connect(address).await {
            Ok(new) => (new, true),
            Err(error) => {
                if let Some(attempts) = failures.count(Instant::now()) {
                    tracing::warn!(server = %address, %error, attempts, "could not connect to a server");
                }
                topology.note_connect_failure(address, error.summary());
                return match error {
                    EstablishError::TimedOut { .. } => ProbeOutcome::Silent,
                    error if error.is_local() => ProbeOutcome::Local,
                    _ => ProbeOutcome::Failed,
                };
            }
        },
    };
    let needs_build_info = {
        let snapshot = topology.snapshot();
        snapshot.description.needs_build_info(address, is_new)
    };
    let probing = run_probe(&mut open, needs_build_info);
    match timeout(topology.connector.limit(), probing).await {
        Ok(Some(reply)) => {
            *connection = Some(open);
            match reply_is_ok(&reply.hello) {
                Ok(()) => ProbeOutcome::Replied(reply),
                Err(_) => ProbeOutcome::Failed,
            }
        }
        Err(_) if is_new => ProbeOutcome::Silent,
        // The server may still work if only this connection is broken. So the next probe uses a new
        // connection.
        Ok(None) | Err(_) => ProbeOutcome::Failed,
    }
}

async fn run_probe(open: &mut Connection, needs_build_info: bool) -> Option<ProbeReply> {
    let began = Instant::now();
    let hello = open.hello().await.ok()?;
    let round_trip = began.elapsed();
    let build_info = if needs_build_info {
        let command = rawdoc! { "buildInfo": 1, "$db": "admin" };
        let reply = open.run(&command).await.ok()?;
        reply_is_ok(&reply).is_ok().then_some(reply)
    } else {
        None
    };
    Some(ProbeReply {
        asked_at: began,
        lacks_hello: open.lacks_hello,
        hello,
        round_trip,
        build_info,
    })
}

impl Topology {
    /// Returns the driver's client if the driver has not noticed the current state of the server,
    /// else `None`.
    fn driver_unaware_of(&self, address: &ServerAddress) -> Option<mongodb::Client> {
        let state = self.state.lock();
        let is_unnoticed = state.members.get(address)?.server.is_unnoticed();
        drop(state);
        let client = is_unnoticed.then(|| self.monitoring_client.lock().clone());
        client.flatten()
    }

    /// True if the server counts as failed.
    fn is_failed(&self, address: &ServerAddress) -> bool {
        let snapshot = self.snapshot();
        let mut servers = snapshot.description.servers.iter();
        servers.any(|server| server.address == *address && server.failed_since.is_some())
    }

    /// Applies the outcome of a probe to the server's description and to its pool. If `is_hung` is
    /// true, the operations that wait for replies of this server fail. Returns the pause before the
    /// next probe.
    fn apply_probe(
        self: &Arc<Self>,
        address: &ServerAddress,
        outcome: ProbeOutcome,
        is_hung: bool,
    ) -> Duration {
        if matches!(outcome, ProbeOutcome::Local) {
            let now = Instant::now();
            self.update(address, |member| member.server.note_local_failure(now));
            return FAILED_PROBE_INTERVAL;
        }
        let ProbeOutcome::Replied(reply) = outcome else {
            let pool = self
                .state
                .lock()
                .members
                .get(address)
                .map(|member| Arc::clone(&member.pool));
            if let Some(pool) = pool {
                self.report_failure(&pool, pool.generation());
                if is_hung {
                    pool.give_up();
                }
            }
            self.update(address, |member| member.server.suspect(Instant::now()));
            return FAILED_PROBE_INTERVAL;
        };
        self.note_ignored_primary(address, &reply.hello);
        self.note_cluster_time(address, &reply.hello);
        self.update(address, |member| {
            // The server may have replied before the failure or the demotion.
            let is_current = |since: Instant| since <= reply.asked_at;
            let failed_since = &mut member.server.failed_since;
            let has_recovered = failed_since.take_if(|since| is_current(*since)).is_some();
            member.server.connect_failure = None;
            member.server.probe.apply(&reply, has_recovered);
            if has_recovered {
                tracing::info!(server = %address, "server recovered");
            }
            let says = |name| reply.hello.get_bool(name).unwrap_or(false);
            let has_its_type = match member.server.server_type {
                ServerType::Secondary => says("secondary"),
                _ => says("isWritablePrimary") || says("ismaster"),
            };
            if has_its_type && member.server.demoted_since.is_none_or(is_current) {
                member.server.demoted_since = None;
            }
            if member.server.is_usable() {
                member.pool.recover(reply.asked_at);
            }
        });
        self.settings.load().heartbeat_frequency
    }

    /// Records why a probe could not connect to this server. [`Self::apply_probe`] publishes it.
    fn note_connect_failure(&self, address: &ServerAddress, failure: &'static str) {
        if let Some(member) = self.state.lock().members.get_mut(address) {
            member.server.connect_failure = Some(failure);
        }
    }

    /// Applies the outcome of a probe of a server that has left the deployment. If `is_hung` is
    /// true, the operations that wait for replies of this server fail. Returns the pause before the
    /// next probe.
    fn apply_to_removed(
        &self,
        pool: &Weak<ServerPool>,
        outcome: &ProbeOutcome,
        is_hung: bool,
    ) -> Duration {
        if is_hung && let Some(pool) = pool.upgrade() {
            pool.give_up();
        }
        match outcome {
            ProbeOutcome::Replied(_) => self.settings.load().heartbeat_frequency,
            ProbeOutcome::Failed | ProbeOutcome::Silent | ProbeOutcome::Local => {
                FAILED_PROBE_INTERVAL
            }
        }
    }
}

impl Topology {
    /// Remembers the cluster time in a server's reply to `hello`. Ignores the time if the driver
    /// has not found that the server belongs to the deployment, or if the server belongs to another
    /// replica set. The host of a former member may now be part of another cluster. The servers of
    /// this deployment would refuse each command with a cluster time of the other cluster.
    ///
    /// Source: <https://jira.mongodb.org/browse/DRIVERS-2798>.
    fn note_cluster_time(&self, address: &ServerAddress, hello: &RawDocument) {
        let mut state = self.state.lock();
        let member = state.members.get(address);
        let is_member = member.is_some_and(|member| member.server.server_type.holds_data());
        let set_name = hello.get_str("setName").ok();
        let is_of_set = (state.set_name.as_deref()).is_none_or(|own| set_name == Some(own));
        if is_member && is_of_set {
            ClusterTime::advance(&mut state.cluster_time, ClusterTime::of(hello));
        }
    }

    /// Restarts the monitoring if the driver ignores the primary that replied with `hello`.
    fn note_ignored_primary(&self, address: &ServerAddress, hello: &RawDocument) {
        let state = self.state.lock();
        let has_no_primary = state.topology_type == TopologyType::ReplicaSetNoPrimary;
        drop(state);
        let mut ignored = self.ignored_primary.lock();
        if !has_no_primary {
            ignored.clear();
            return;
        }
        let says = |name| hello.get_bool(name).unwrap_or(false);
        let is_primary =
            hello.get_str("setName").is_ok() && (says("isWritablePrimary") || says("ismaster"));
        if ignored.see(address, is_primary, Instant::now()) {
            drop(ignored);
            tracing::warn!(server = %address, "official driver ignores the primary; monitoring begins again");
            self.driver_tls.send_modify(|_| {});
        }
    }
}

impl Probe {
    /// Applies a reply. If the server has recovered (`has_recovered`), starts a new average of the
    /// round-trip times, because the times before the failure may have been long.
    ///
    /// Source: "Server Monitoring" specification, which resets the average after an error.
    fn apply(&mut self, reply: &ProbeReply, has_recovered: bool) {
        let average = self.round_trip.filter(|_| !has_recovered);
        self.round_trip = Some(match average {
            Some(average) => {
                average.mul_f64(1.0 - NEWEST_WEIGHT) + reply.round_trip.mul_f64(NEWEST_WEIGHT)
            }
            None => reply.round_trip,
        });
        self.last_update = Some(reply.asked_at + reply.round_trip);
        self.last_write_ms = last_write(&reply.hello);
        self.lacks_hello = reply.lacks_hello;
        self.lacks_hello_ok = !reply.hello.get_bool("helloOk").unwrap_or(false);
        self.max_wire_version = reply.hello.get_i32("maxWireVersion").unwrap_or(0);
        self.session_timeout_minutes = reply.hello.get_i32("logicalSessionTimeoutMinutes").ok();
        self.process_id = process_id(&reply.hello);
        if reply.build_info.is_some() {
            self.build_info.clone_from(&reply.build_info);
        }
    }
}

fn process_id(hello: &RawDocument) -> Option<ObjectId> {
    let version = hello.get_document("topologyVersion").ok()?;
    version.get_object_id("processId").ok()
}

fn last_write(hello: &RawDocument) -> Option<i64> {
    let last_write = hello.get_document("lastWrite").ok()?;
    last_write
        .get_datetime("lastWriteDate")
        .ok()
        .map(bson::DateTime::timestamp_millis)
}

#[cfg(test)]
mod tests;
