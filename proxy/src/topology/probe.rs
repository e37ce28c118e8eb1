//! Probes of one server, over a connection of their own that is not authenticated.

use std::{
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bson::{RawDocument, RawDocumentBuf, doc, rawdoc};
use mongodb::options::SelectionCriteria;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::{
    ClusterTime, Topology,
    description::{Probe, ServerKind},
};
use crate::connection::{Connection, EstablishError, ServerAddress, reply_is_ok};

/// Time between probes of a server that has failed.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Least time from one probe to the next, however many failures are reported.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// New connections in a row on which a server sent no byte before it counts as hung.
const SILENCES: u32 = 2;

/// Weight of the newest round trip in the average (server selection specification).
const NEWEST_WEIGHT: f64 = 0.2;

/// Probes a server at each heartbeat, at once when notified, and often while it has failed.
pub(super) async fn keep_probing(
    topology: Weak<Topology>,
    address: ServerAddress,
    look: Arc<Notify>,
) {
    let (mut connection, mut silences) = (None, 0);
    loop {
        let began = Instant::now();
        let Some(strong) = topology.upgrade() else {
            return;
        };
        let seen = probe(&strong, &address, &mut connection).await;
        silences = match seen {
            Look::Silent => silences + 1,
            Look::Answered(_) | Look::Failed => 0,
        };
        let pause = strong.take_probe(&address, seen, silences >= SILENCES);
        let unaware = strong.unaware_driver(&address);
        drop(strong);
        // Notified or not, the next probe is the same; the time-out is the usual way out.
        drop(timeout(pause, notified(&look, unaware)).await);
        sleep_until(began + LEAST_PAUSE).await;
    }
}

/// Returns when the prober is notified: by the driver too, once it has seen the server that it is unaware of.
async fn notified(look: &Notify, unaware: Option<mongodb::Client>) {
    let Some(driver) = unaware else {
        return look.notified().await;
    };
    tokio::select! {
        () = look.notified() => {}
        () = check_servers(driver) => look.notified().await,
    }
}

/// Has the driver check its servers now, and again every half second, until dropped. Otherwise it would check a server that
/// came back only at the next heartbeat. The driver does so while an operation waits for a server. This one waits for a
/// server that is never found, so that no command is sent.
async fn check_servers(driver: mongodb::Client) {
    let none = SelectionCriteria::Predicate(Arc::new(|_| false));
    let ping = doc! { "ping": 1 };
    let admin = driver.database("admin");
    let waiting = admin.run_command(ping).selection_criteria(none);
    // It ends when the driver's selection times out.
    if let Err(error) = waiting.await {
        tracing::debug!(%error, "the driver has not seen a server that replies");
    }
}

/// The result of a probe.
enum Look {
    Answered(Answer),
    /// The server could not be reached, or replied with an error.
    Failed,
    /// No reply in time, although its machine is up, or was a moment ago.
    Silent,
}

struct Answer {
    asked_at: Instant,
    lacks_hello: bool,
    hello: RawDocumentBuf,
    round_trip: Duration,
    build_info: Option<RawDocumentBuf>,
}

async fn probe(
    topology: &Topology,
    address: &ServerAddress,
    connection: &mut Option<Connection>,
) -> Look {
    let (mut open, is_new) = match connection.take() {
        Some(used) => (used, false),
        None => match topology.connector.connect(address).await {
            Ok(new) => (new, true),
            Err(EstablishError::TimedOut { .. }) => return Look::Silent,
            Err(_) => return Look::Failed,
        },
    };
    match timeout(topology.connector.limit(), ask(topology, &mut open)).await {
        Ok(Some(answer)) => {
            *connection = Some(open);
            match reply_is_ok(&answer.hello) {
                Ok(()) => Look::Answered(answer),
                Err(_) => Look::Failed,
            }
        }
        Err(_) if is_new => Look::Silent,
        // Perhaps only this connection is lost: the next probe uses a new one.
        Ok(None) | Err(_) => Look::Failed,
    }
}

async fn ask(topology: &Topology, open: &mut Connection) -> Option<Answer> {
    let began = Instant::now();
    let hello = open.hello().await.ok()?;
    let round_trip = began.elapsed();
    let is_new = topology.snapshot().description.build_info().is_none();
    let build_info = if is_new {
        let command = rawdoc! { "buildInfo": 1, "$db": "admin" };
        let reply = open.run(&command).await.ok()?;
        reply_is_ok(&reply).is_ok().then_some(reply)
    } else {
        None
    };
    Some(Answer {
        asked_at: began,
        lacks_hello: open.lacks_hello,
        hello,
        round_trip,
        build_info,
    })
}

impl Topology {
    /// The driver's client, if a server replies to probes that the driver takes for unavailable.
    fn unaware_driver(&self, address: &ServerAddress) -> Option<mongodb::Client> {
        let state = self.state.lock();
        let server = &state.members.get(address)?.server;
        let is_unaware = server.kind == ServerKind::Unknown && !server.is_suspect;
        drop(state);
        is_unaware.then(|| self.control_client()).flatten()
    }

    /// Applies the result of a probe; returns the pause until the next.
    fn take_probe(
        self: &Arc<Self>,
        address: &ServerAddress,
        look: Look,
        is_hung: bool,
    ) -> Duration {
        let Look::Answered(answer) = look else {
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
            self.update(address, |member| member.server.is_suspect = true);
            return LOOK_AGAIN_AFTER;
        };
        let seen = ClusterTime::of(&answer.hello);
        ClusterTime::advance(&mut self.state.lock().cluster_time, seen);
        self.update(address, |member| {
            member.server.probe.take(&answer);
            if member.server.is_suspect {
                member.server.is_suspect = false;
                tracing::info!(server = %address, "server recovered");
            }
            let is_writable = |name| answer.hello.get_bool(name).unwrap_or(false);
            if is_writable("isWritablePrimary") || is_writable("ismaster") {
                member.server.is_demoted = false;
            }
            if member.server.kind.holds_data() {
                member.pool.recover(answer.asked_at);
            }
        });
        self.settings.heartbeat_frequency
    }
}

impl Probe {
    fn take(&mut self, answer: &Answer) {
        self.round_trip = Some(match self.round_trip {
            Some(average) => {
                average.mul_f64(1.0 - NEWEST_WEIGHT) + answer.round_trip.mul_f64(NEWEST_WEIGHT)
            }
            None => answer.round_trip,
        });
        self.last_update_ms = now_ms();
        self.last_write_ms = last_write(&answer.hello);
        self.lacks_hello = answer.lacks_hello;
        self.lacks_hello_ok = !answer.hello.get_bool("helloOk").unwrap_or(false);
        self.max_wire_version = answer.hello.get_i32("maxWireVersion").unwrap_or(0);
        self.session_timeout_minutes = answer.hello.get_i32("logicalSessionTimeoutMinutes").ok();
        if answer.build_info.is_some() {
            self.build_info.clone_from(&answer.build_info);
        }
    }
}

fn last_write(hello: &RawDocument) -> Option<i64> {
    let last_write = hello.get_document("lastWrite").ok()?;
    last_write
        .get_datetime("lastWriteDate")
        .ok()
        .map(bson::DateTime::timestamp_millis)
}

fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
