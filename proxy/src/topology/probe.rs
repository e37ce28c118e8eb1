//! Looking at one server ourselves, over a connection of its own on which nobody authenticates.

use std::{
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{Topology, description::Probe};
use crate::connection::{Connection, EstablishError, ServerAddress, reply_is_ok};

/// Pause between looks at a server that is suspected.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Least pause between two looks, however many failures are reported.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// New connections in a row on which a server has said nothing, before it counts as hung.
const SILENCES: u32 = 2;

/// Weight of the newest round trip in the average (server selection specification).
const NEWEST_WEIGHT: f64 = 0.2;

/// Looks at a server once a heartbeat, at once when told to, and often while it is suspected.
pub(super) async fn keep_probing(
    topology: Weak<Topology>,
    address: ServerAddress,
    look: Arc<Notify>,
) {
    let (mut connection, mut silences) = (None, 0);
    loop {
        let Some(strong) = topology.upgrade() else {
            return;
        };
        let seen = probe(&strong, &address, &mut connection).await;
        silences = match seen {
            Look::Silent => silences + 1,
            Look::Answered(_) | Look::Failed => 0,
        };
        let pause = strong.take_probe(&address, seen, silences >= SILENCES);
        drop(strong);
        // Told or not, the next look is the same; the time-out is the usual way out.
        drop(timeout(pause, look.notified()).await);
        tokio::time::sleep(LEAST_PAUSE).await;
    }
}

/// What came of looking at a server.
enum Look {
    Answered(Answer),
    /// It could not be reached, or said that it is not well.
    Failed,
    /// It said nothing in time: its machine is up, or was a moment ago.
    Silent,
}

struct Answer {
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
        // Perhaps only this connection is lost: the next look will tell, over a new one.
        Ok(None) | Err(_) => Look::Failed,
    }
}

async fn ask(topology: &Topology, open: &mut Connection) -> Option<Answer> {
    let began = Instant::now();
    let hello = open
        .run(&rawdoc! { "hello": 1, "$db": "admin" })
        .await
        .ok()?;
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
        hello,
        round_trip,
        build_info,
    })
}

impl Topology {
    /// Takes in what a probe found; the pause until the next.
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
        self.update(address, |member| {
            member.server.probe.take(&answer);
            if member.server.is_suspect {
                member.server.is_suspect = false;
                tracing::info!(server = %address, "server well again");
            }
            if answer.hello.get_bool("isWritablePrimary").unwrap_or(false) {
                member.server.is_demoted = false;
            }
            if member.server.kind.holds_data() {
                member.pool.ready();
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
