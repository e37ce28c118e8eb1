//! `killCursors` with cursors on several servers: each server gets a command with its own cursors
//! (a part), and the client gets one merged reply.

use std::{collections::HashMap, pin::pin, sync::Arc};

use bson::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, cstr, raw::CStr};
use tokio::time::{Instant, timeout};

use super::{
    context::{AttemptEnd, MAX_INSPECTED_CURSORS, Operation, cursor_ids},
    exchange::unless_interrupted,
};
use crate::{
    client::{abandoned::DRAIN_LIMIT, client_end::ClientEnd, reply::HeldReply},
    observe::Observation,
    pool::{CheckOutError, Checkout, ServerPool},
    topology::Topology,
};
use seawall_command::{Class, ReplyFacts, ReplyForm, conceal_state_change};
use seawall_stats::{Outcome, Phase};
use seawall_transport::connection::ControlError;

const NOT_FOUND: &CStr = cstr!("cursorsNotFound");

const ALIVE: &CStr = cstr!("cursorsAlive");

/// The lists of cursors in the reply. Each cursor is in exactly one list.
const LISTS: [&CStr; 4] = [
    cstr!("cursorsKilled"),
    NOT_FOUND,
    ALIVE,
    cstr!("cursorsUnknown"),
];

/// The parts of a `killCursors`: each server, with the cursors that its command names.
pub(super) type KillCursorsParts = Vec<(Arc<ServerPool>, Vec<i64>)>;

impl Operation<'_> {
    /// Splits the cursors of a `killCursors` by server. Cursors whose server is unknown (they have
    /// no pin, see [`crate::pins`]) are added to one of the parts. Returns `None` if the pins name
    /// fewer than two servers, if there are more than [`MAX_INSPECTED_CURSORS`] cursors, and for
    /// all other commands.
    pub(super) fn parts(&self, now: Instant) -> Option<KillCursorsParts> {
        if self.command.class != Class::KillCursors {
            return None;
        }
        let pins = &self.shared.routing.pins;
        let server = |cursor| pins.cursor(cursor, now).map(|pin| pin.server);
        by_server(cursor_ids(self.command).map(|cursor| (cursor, server(cursor))))
    }

    /// Sends the parts to their servers, one after another, and merges the replies. If a server
    /// replies with an error, the client gets this error, and the later parts are not sent. The
    /// same applies to the error of the operation's own time limit, which all parts share.
    pub(super) async fn kill_in_parts(
        &self,
        parts: KillCursorsParts,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
    ) -> AttemptEnd {
        let mut merged: Option<RawDocumentBuf> = None;
        // The outcome if no connection can be checked out.
        let mut outcome = Outcome::Refused;
        let deadline = Instant::now() + self.shared.settings().server_selection_timeout;
        let deadline = self.within_time_limit(observation, deadline);
        for (pool, cursors) in parts {
            observation.enter(Phase::Checkout, Instant::now());
            let demand = self.demand(observation, false);
            let checkout = pin!(pool.check_out(self.identity, demand, deadline));
            let Some(checkout) = end.unless_gone(checkout).await else {
                return AttemptEnd::Gone;
            };
            if let Some(ended) = self.end_at_time_limit(observation) {
                return ended;
            }
            let reply = match checkout {
                Err(error) => Err(list_without_server(&error)),
                Ok(checkout) => {
                    if outcome == Outcome::Refused {
                        outcome = Outcome::ServerFailed;
                    }
                    observation.enter(Phase::Server, Instant::now());
                    let checked_out_at = checkout.checked_out_at();
                    let left_ms = self.remaining_time(observation.began(), checked_out_at);
                    let part = part_of(self.command.body, &cursors, left_ms);
                    let topology = Arc::clone(&self.shared.routing.topology);
                    let mut asking = Box::pin(kill(checkout, part, topology));
                    match end.unless_gone(asking.as_mut()).await {
                        None => {
                            drain(Arc::clone(&pool), asking);
                            return AttemptEnd::Gone;
                        }
                        // Without a reply, it is unknown if the server has run the command. So the
                        // cursors are listed as alive.
                        Some(replied) => replied.ok_or(ALIVE),
                    }
                }
            };
            let (reply, checkout) = match reply {
                Ok(replied) => replied,
                Err(list) => {
                    merged = Some(merge(merged, &all_in(list, &cursors)));
                    continue;
                }
            };
            if reply.get_f64("ok").is_ok_and(|ok| ok == 0.0) {
                return self.pass_error(checkout, reply, observation);
            }
            drop(checkout);
            let user = self.identity.id().as_u64();
            for cursor in cursors {
                self.shared.routing.pins.unpin_cursor(cursor, user);
            }
            merged = Some(merge(merged, &reply));
            outcome = Outcome::Ok;
        }
        self.reply_with(&merged.unwrap_or_default(), outcome)
    }

    /// The reply to a `killCursors` that has reached no server. Drivers ignore errors of this
    /// command. So the reply has no error, and lists the cursors as alive or as not found.
    pub(super) fn none_killed(&self, observation: &Observation<'_>) -> AttemptEnd {
        let pools = &self.shared.routing.topology.snapshot().pools;
        let has_left = |server: &Arc<ServerPool>| !pools.iter().any(|of| Arc::ptr_eq(of, server));
        let list = match self.pinned_server(observation) {
            Some(server) if has_left(&server) => NOT_FOUND,
            Some(_) | None => ALIVE,
        };
        let cursors: Vec<i64> = self.cursor_ids().collect();
        self.reply_with(&all_in(list, &cursors), Outcome::Refused)
    }

    /// Ends the operation with a server's error. Reports a state-change error (such as
    /// `NotWritablePrimary`) to the topology. If the setting `repeats` is true, replaces this error
    /// by error 6 (`HostUnreachable`) for the client.
    fn pass_error(
        &self,
        mut checkout: Checkout,
        reply: RawDocumentBuf,
        observation: &mut Observation<'_>,
    ) -> AttemptEnd {
        let facts = ReplyFacts::of(ReplyForm::Plain, reply.as_bytes());
        self.note_error(&mut checkout, &facts, reply.as_bytes());
        if let Some(code) = facts.state_change {
            let topology = &self.shared.routing.topology;
            topology.report_state_change(checkout.pool(), checkout.generation(), code);
        }
        drop(checkout);
        let shown = match self.shared.settings().repeats {
            true => concealed(reply),
            false => reply,
        };
        let facts = ReplyFacts::of(ReplyForm::Plain, shown.as_bytes());
        observation.record_reply(&facts, Instant::now());
        self.reply_with(&shown, Outcome::Error)
    }

    fn reply_with(&self, reply: &RawDocument, outcome: Outcome) -> AttemptEnd {
        let bytes = self.reply_to.encode(0, reply);
        AttemptEnd::Reply(HeldReply { bytes, share: None }, outcome, 0)
    }
}

/// Splits cursors by the pool of their server. A server that has left the deployment and rejoined
/// it has two pools: a closed one, and a new one at the same address. Cursors without a server are
/// added to one of the parts. Returns `None` if there are fewer than two pools, or more than
/// [`MAX_INSPECTED_CURSORS`] cursors.
fn by_server(
    cursors: impl Iterator<Item = (i64, Option<Arc<ServerPool>>)>,
) -> Option<KillCursorsParts> {
    let mut parts: HashMap<_, (Arc<ServerPool>, Vec<i64>)> = HashMap::new();
    // A cursor without a pin (the record of its server) has usually ended, so any server can report
    // that the cursor does not exist.
    let mut unknown = Vec::new();
    for (count, (cursor, server)) in cursors.enumerate() {
        if count == MAX_INSPECTED_CURSORS {
            return None;
        }
        match server {
            None => unknown.push(cursor),
            Some(server) => {
                let pool = Arc::as_ptr(&server);
                let part = parts.entry(pool).or_insert((server, Vec::new()));
                part.1.push(cursor);
            }
        }
    }
    let mut parts: KillCursorsParts = parts.into_values().collect();
    parts.first_mut()?.1.extend(unknown);
    (parts.len() > 1).then_some(parts)
}

/// The command for one server: the client's command with the cursors of this server only. `left_ms`
/// is the new value of `maxTimeMS`; with `None`, `maxTimeMS` does not change. Returns `None` if the
/// client's command is malformed.
fn part_of(command: &[u8], cursors: &[i64], left_ms: Option<u64>) -> Option<RawDocumentBuf> {
    let command = RawDocument::from_bytes(command).ok()?;
    let mut part = RawDocumentBuf::new();
    for element in command.iter() {
        let (name, value) = element.ok()?;
        match (name.as_str(), left_ms) {
            ("cursors", _) => {
                let mut ids = RawArrayBuf::new();
                cursors.iter().for_each(|id| ids.push(*id));
                part.append(name, ids);
            }
            ("maxTimeMS", Some(left_ms)) => {
                part.append(name, i32::try_from(left_ms).unwrap_or(i32::MAX));
            }
            (_, _) => part.append(name, RawBson::from(value)),
        }
    }
    Some(part)
}

/// Sends one server its part. Returns the reply, and the checkout, whose connection can be used
/// again. `None` if `part` is `None` (the client's command is malformed), if the exchange failed,
/// or if the server hangs. The topology gets a report about the connection or the server.
async fn kill(
    mut checkout: Checkout,
    part: Option<RawDocumentBuf>,
    topology: Arc<Topology>,
) -> Option<(RawDocumentBuf, Checkout)> {
    let part = part?;
    let reply = {
        let connection = checkout.begin();
        let interrupt = Arc::clone(&connection.interrupt);
        interrupt.reset();
        unless_interrupted(pin!(connection.run(&part)), &interrupt).await
    };
    match reply {
        Some(Ok(reply)) => {
            checkout.finish();
            Some((reply, checkout))
        }
        Some(Err(ControlError::Io(error))) => {
            topology.report_io_error(&checkout, &error);
            None
        }
        Some(Err(_)) => None,
        None => {
            topology.report_failure(checkout.pool(), checkout.generation());
            None
        }
    }
}

/// Runs an exchange ([`kill`]) to its end in the background after its client has left, so that its
/// connection returns to `pool`. After [`DRAIN_LIMIT`], drops the exchange, which closes the
/// connection.
fn drain<E>(pool: Arc<ServerPool>, exchange: E)
where
    E: Future<Output = Option<(RawDocumentBuf, Checkout)>> + Send + 'static,
{
    tokio::spawn(async move {
        let reply = timeout(DRAIN_LIMIT, exchange).await;
        let is_kept = reply.is_ok_and(|reply| reply.is_some());
        pool.metrics().count_abandoned_reply(is_kept);
    });
}

/// Chooses the list (in the reply) for the cursors of a server to which Seawall got no connection.
/// If the server has left the deployment, its cursors are listed as not found. Otherwise they are
/// listed as alive: servers do this too with cursors that they could not kill.
fn list_without_server(error: &CheckOutError) -> &'static CStr {
    match error {
        CheckOutError::Closed => NOT_FOUND,
        CheckOutError::Overload(_) | CheckOutError::Paused | CheckOutError::Establish { .. } => {
            ALIVE
        }
    }
}

/// Replaces a state-change error (such as `NotWritablePrimary`) in a reply by error 6
/// (`HostUnreachable`). Returns other replies unchanged.
fn concealed(reply: RawDocumentBuf) -> RawDocumentBuf {
    let concealed = conceal_state_change(reply.as_bytes());
    let concealed = concealed.and_then(|bytes| RawDocumentBuf::from_bytes(bytes).ok());
    concealed.unwrap_or(reply)
}

/// A successful reply with all cursors in one list. The other lists are empty, because servers
/// always return all lists.
fn all_in(list: &CStr, cursors: &[i64]) -> RawDocumentBuf {
    let mut reply = RawDocumentBuf::new();
    for name in LISTS {
        let mut ids = RawArrayBuf::new();
        if name == list {
            cursors.iter().for_each(|id| ids.push(*id));
        }
        reply.append(name, ids);
    }
    reply.append(cstr!("ok"), 1.0);
    reply
}

/// Merges the lists of both replies. All other fields come from the later reply, which has the
/// later cluster time.
fn merge(earlier: Option<RawDocumentBuf>, later: &RawDocument) -> RawDocumentBuf {
    let mut merged = RawDocumentBuf::new();
    for name in LISTS {
        let mut ids = RawArrayBuf::new();
        let replies = earlier.iter().map(|earlier| &**earlier).chain([later]);
        for reply in replies {
            for id in reply.get_array(name).into_iter().flatten().flatten() {
                ids.push(RawBson::from(id));
            }
        }
        merged.append(name, ids);
    }
    for element in later.iter().filter_map(Result::ok) {
        let (name, value) = element;
        if !LISTS.contains(&name) {
            merged.append(name, RawBson::from(value));
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use bson::rawdoc;

    use super::*;
    use crate::{
        observe::Recorder,
        pool::{Overload, tests::limits},
    };
    use seawall_auth::NonceSource;
    use seawall_transport::connection::{Connector, EstablishError, Generation};

    fn new_pool() -> Arc<ServerPool> {
        let nonces = Arc::new(NonceSource::new().unwrap());
        let connector = Connector::new(None, Vec::new(), Duration::from_secs(10), nonces);
        let address = "127.0.0.1:1".parse().unwrap();
        let recorder = Recorder::without_shapes();
        let topology = Topology::of_standalone(address, limits(), connector, recorder);
        Arc::clone(&topology.snapshot().pools[0])
    }

    /// A server that has left the deployment and rejoined it has a closed pool and a new one.
    #[tokio::test]
    async fn cursors_of_a_server_that_rejoined_are_split_by_its_former_and_its_new_pool() {
        let (former, current) = (new_pool(), new_pool());
        let cursors = [(1, Arc::clone(&former)), (2, Arc::clone(&current))];
        let parts = by_server(cursors.into_iter().map(|(id, pool)| (id, Some(pool)))).unwrap();
        for (pool, id) in [(&former, 1_i64), (&current, 2)] {
            let mut of_pool = parts.iter().filter(|part| Arc::ptr_eq(&part.0, pool));
            assert_eq!(of_pool.next().unwrap().1, [id]);
        }
    }

    #[tokio::test]
    async fn only_the_first_cursors_of_a_very_long_kill_cursors_are_inspected() {
        let pools = [new_pool(), new_pool()];
        let inspected = &Cell::new(0);
        let cursors = |count: usize| {
            let servers = pools.iter().cycle().take(count);
            servers.map(move |server| {
                inspected.set(inspected.get() + 1);
                (7_i64, Some(Arc::clone(server)))
            })
        };
        assert!(by_server(cursors(MAX_INSPECTED_CURSORS)).is_some());
        assert_eq!(inspected.take(), MAX_INSPECTED_CURSORS);
        assert!(by_server(cursors(2 * MAX_INSPECTED_CURSORS)).is_none());
        assert_eq!(inspected.take(), MAX_INSPECTED_CURSORS + 1);
    }

    /// State-change errors, such as `NotWritablePrimary`, report that a server changed its state.
    #[test]
    fn state_change_errors_are_replaced_by_error_6_and_other_replies_are_kept() {
        let failed = rawdoc! { "ok": 0.0, "errmsg": "not primary", "code": 10_107 };
        assert_eq!(concealed(failed).get_i32("code").ok(), Some(6));
        let other = rawdoc! { "ok": 0.0, "errmsg": "unauthorized", "code": 13 };
        assert_eq!(concealed(other.clone()), other);
    }

    #[test]
    fn the_command_for_one_server_has_the_cursors_of_this_server_and_the_rest_of_the_time_limit() {
        let with = |cursors: &[i64], max_time_ms: i32| {
            let cursors: RawArrayBuf = cursors.iter().copied().collect();
            rawdoc! { "killCursors": "c", "cursors": cursors, "maxTimeMS": max_time_ms, "$db": "d" }
        };
        let command = with(&[1, 2], 90);
        for (left_ms, max_time_ms) in [(None, 90), (Some(7), 7)] {
            let part = part_of(command.as_bytes(), &[2], left_ms);
            assert_eq!(part, Some(with(&[2], max_time_ms)));
        }
    }

    #[test]
    fn a_reply_of_seawall_to_kill_cursors_has_all_lists_of_a_server_reply() {
        let reply = all_in(ALIVE, &[1, 2]);
        let counts = LISTS.map(|list| reply.get_array(list).unwrap().into_iter().count());
        assert_eq!(counts, [0, 0, 2, 0]);
    }

    /// If the server has left the deployment, its cursors are listed as not found.
    #[test]
    fn kill_cursors_lists_cursors_as_alive_if_their_server_could_not_be_reached() {
        for alive in [
            CheckOutError::Overload(Overload::QueueFull),
            CheckOutError::Overload(Overload::TimedOut),
            CheckOutError::Paused,
            CheckOutError::Establish {
                error: Arc::new(EstablishError::NoLogin),
                generation: Generation::default(),
                login_version: 0,
            },
        ] {
            assert_eq!(list_without_server(&alive), ALIVE);
        }
        assert_eq!(list_without_server(&CheckOutError::Closed), NOT_FOUND);
        let reply = merge(Some(all_in(NOT_FOUND, &[1])), &all_in(ALIVE, &[2, 3]));
        let ids = |list: &CStr| reply.get_array(list).unwrap().into_iter().count();
        assert_eq!((ids(NOT_FOUND), ids(ALIVE)), (1, 2));
    }
}
