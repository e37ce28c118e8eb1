//! Decides what a replay does with each captured command: send it, or skip it for a reason.
//!
//! A report on the operations of a capture, made without a replay, uses the same planner. So this
//! report and the report on a replay count the same operations and can be compared. The planner
//! gets the commands in the order of the capture, and remembers only sessions and cursors.

use std::time::Duration;

use seawall_command::{Class, Command, CommandBytes, MaxTime, ReplyForm, Target, table::Syntax};
use seawall_shape::{ShapeId, fingerprint};
use seawall_wire::{
    Elements, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MORE_TO_COME, OpCode, OpMsg, Sequence,
};

use crate::{
    Recent,
    digest::{Exclusion, exclusion},
};

/// The planner remembers at most twice this number of sessions, and at most twice this number of
/// cursors (see [`Recent`]).
const MAX_REMEMBERED: usize = 50_000;

/// Maximum number of cursors that the planner reads from one `killCursors`.
const MAX_KILLED: usize = 1_000;

/// The commands that a user wants to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// True if the user chose writes too (`--with-writes`), and not only reads.
    pub with_writes: bool,
    /// The shapes whose commands are sent; all if empty. The `getMore`s and `killCursors` for the
    /// cursors of these commands, and the ends of their transactions, are sent too.
    pub only: Vec<ShapeId>,
}

/// The reason why a command is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SkipReason {
    /// The command writes, and the user did not choose to send writes.
    Write,
    /// The command is not about data: it is about users, servers, sessions or the deployment.
    Admin,
    /// The command may contain secrets.
    Secret,
    /// The command is part of a connection's handshake or login.
    Handshake,
    /// The user chose other shapes.
    NotChosen,
    /// The command is a retry: the driver had already sent this write, or this end of a
    /// transaction.
    Retry,
    /// The command's transaction began before the capture, or the first command of this transaction
    /// was skipped.
    TransactionUnknown,
    /// The command's cursor was opened before the capture, or by a command that was skipped.
    CursorUnknown,
    /// The command's cursor is not open in the replay: it ended earlier than in the capture, or the
    /// target did not open it.
    CursorEnded,
    /// The message is not a valid command.
    Invalid,
}

impl SkipReason {
    /// The name of the reason in a report (`Report::skipped`).
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Admin => "admin",
            Self::Secret => "secret",
            Self::Handshake => "handshake",
            Self::NotChosen => "not_chosen",
            Self::Retry => "retry",
            Self::TransactionUnknown => "transaction_unknown",
            Self::CursorUnknown => "cursor_unknown",
            Self::CursorEnded => "cursor_ended",
            Self::Invalid => "invalid",
        }
    }
}

/// The operation that opened a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The shape of the operation.
    pub shape: ShapeId,
    /// True if the cursor waits for data: a change stream or a tailable cursor.
    pub is_awaiting: bool,
    /// The reason why the operation's results are not compared with the results of another report;
    /// `None` if they are compared.
    pub exclusion: Option<Exclusion>,
}

/// How a command uses cursors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CursorUse {
    /// The command may open a cursor.
    Open,
    /// A `getMore`: the captured id of its cursor.
    More(i64),
    /// A `killCursors`: the captured ids of its cursors. Ids that the planner does not know are
    /// omitted.
    Kill(Vec<i64>),
}

/// The properties of a command that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// The shape of the command: equal for commands that differ only in their values.
    pub shape: ShapeId,
    /// For a `getMore`: the earlier command that opened the cursor. For all other commands: the
    /// command itself, which may open a cursor.
    pub origin: Origin,
    /// The captured id of the session; `None` if the command has no session.
    pub session: Option<[u8; 16]>,
    /// The cursors that the command uses.
    pub cursors: CursorUse,
    /// True if the captured client requested no reply (`moreToCome`).
    pub is_unacknowledged: bool,
    /// The fields of the reply that contain the results.
    pub reply_form: ReplyForm,
    /// The command's `maxTimeMS`; zero if it has none. For a `getMore` on an awaiting cursor, it is
    /// the time for which the server waits for events.
    pub max_time: Duration,
}

impl Planned {
    /// True for a `getMore` on an awaiting cursor ([`Origin::is_awaiting`]).
    pub(crate) fn is_await(&self) -> bool {
        self.origin.is_awaiting && matches!(self.cursors, CursorUse::More(_))
    }
}

/// The decision about one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The replay sends the command.
    Send(Planned),
    /// The replay skips the command.
    Skip(SkipReason),
}

/// The transaction numbers (`txnNumber`) that the planner remembers for one session.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    last_write: Option<i64>,
    last_end: Option<i64>,
    /// The number of the last transaction; `None` if the session had no transaction, or if the
    /// first command of the last transaction was skipped.
    transaction: Option<i64>,
}

/// Decides which commands are sent. It must get the commands in the order of their records.
#[derive(Debug)]
pub(crate) struct Planner {
    choice: Choice,
    is_redacted: bool,
    sessions: Recent<[u8; 16], Session>,
    /// The cursors that were opened, in the capture, by commands that the replay sends. The key is
    /// the cursor's id in the capture.
    cursors: Recent<i64, Origin>,
}

impl Planner {
    /// Creates a planner. `is_redacted` is true if the values in the capture are pseudonyms.
    pub(crate) fn new(choice: Choice, is_redacted: bool) -> Self {
        Self {
            choice,
            is_redacted,
            sessions: Recent::new(MAX_REMEMBERED),
            cursors: Recent::new(MAX_REMEMBERED),
        }
    }

    /// Decides if the next captured message is sent.
    pub(crate) fn decide(&mut self, message: &[u8]) -> Decision {
        let Some(parsed) = op_msg(message) else {
            return Decision::Skip(SkipReason::Invalid);
        };
        let Ok(command) = Command::inspect(parsed.body) else {
            return Decision::Skip(SkipReason::Invalid);
        };
        match self.plan(&command, &parsed) {
            Ok(planned) => Decision::Send(planned),
            Err(reason) => Decision::Skip(reason),
        }
    }

    /// Remembers a cursor. The captured deployment returned it for a command that the replay sends.
    /// An id of 0 means that there is no cursor.
    pub(crate) fn note_cursor(&mut self, captured_id: i64, origin: Origin) {
        if captured_id != 0 {
            self.cursors.insert(captured_id, origin);
        }
    }

    fn plan(&mut self, command: &Command<'_>, parsed: &OpMsg<'_>) -> Result<Planned, SkipReason> {
        check_kind(command)?;
        let sequences: Vec<Sequence<'_>> = parsed.sequences().collect();
        let shape = fingerprint(&CommandBytes {
            body: command.body,
            sequences: &sequences,
        });
        let shape = shape.shape;
        let chosen = self.check_choice(command, shape);
        self.check_session(command, chosen)?;
        let own = Origin {
            shape,
            is_awaiting: command.opens_awaiting_cursor(),
            exclusion: exclusion(
                command.spec.syntax,
                command.spec.statements.field().is_some(),
                command.body,
                &sequences,
                self.is_redacted,
            ),
        };
        let (cursors, origin) = match command.class {
            Class::GetMore => self.more(command)?,
            Class::KillCursors => (self.kill(command)?, own),
            _ => (CursorUse::Open, own),
        };
        Ok(Planned {
            shape,
            origin,
            session: command.lsid,
            cursors,
            is_unacknowledged: parsed.flags & MORE_TO_COME != 0,
            reply_form: command.spec.reply_form,
            max_time: command.max_time.map_or(Duration::ZERO, duration),
        })
    }

    /// Checks whether the user's choice includes the command. Does not consider the command's
    /// transaction.
    fn check_choice(&self, command: &Command<'_>, shape: ShapeId) -> Result<(), SkipReason> {
        let follows = matches!(command.class, Class::GetMore | Class::KillCursors)
            || command.class.ends_transaction();
        if follows {
            return Ok(());
        }
        if writes(command) && !self.choice.with_writes {
            return Err(SkipReason::Write);
        }
        match self.choice.only.is_empty() || self.choice.only.contains(&shape) {
            true => Ok(()),
            false => Err(SkipReason::NotChosen),
        }
    }

    /// Compares the command with earlier commands of its session, and remembers its transaction
    /// number. Skips a retried write, the retried end of a transaction, and all commands of a
    /// transaction whose first command was not sent. `chosen` is the result of
    /// [`Self::check_choice`] for this command.
    fn check_session(
        &mut self,
        command: &Command<'_>,
        chosen: Result<(), SkipReason>,
    ) -> Result<(), SkipReason> {
        let (Some(lsid), Some(number)) = (command.lsid, command.txn_number) else {
            return chosen;
        };
        let mut session = self.sessions.find(lsid).copied().unwrap_or_default();
        let checked = session.check(command, number, chosen);
        self.sessions.insert(lsid, session);
        checked
    }

    fn more(&mut self, command: &Command<'_>) -> Result<(CursorUse, Origin), SkipReason> {
        let Target::Number(id) = command.target else {
            return Err(SkipReason::Invalid);
        };
        match self.cursors.find(id) {
            Some(origin) => Ok((CursorUse::More(id), *origin)),
            None => Err(SkipReason::CursorUnknown),
        }
    }

    fn kill(&mut self, command: &Command<'_>) -> Result<CursorUse, SkipReason> {
        let named = Elements::of(command.cursors.unwrap_or_default());
        let ids = named
            .map_while(Result::ok)
            .filter_map(|element| element.value.as_i64());
        let mut ids: Vec<i64> = ids.take(MAX_KILLED).collect();
        ids.retain(|id| self.cursors.remove(id).is_some());
        // A report without a replay (`survey`) keeps up to a million planned commands in memory, so
        // unused capacity would add up.
        ids.shrink_to_fit();
        match ids.is_empty() {
            true => Err(SkipReason::CursorUnknown),
            false => Ok(CursorUse::Kill(ids)),
        }
    }
}

impl Session {
    fn check(
        &mut self,
        command: &Command<'_>,
        number: i64,
        chosen: Result<(), SkipReason>,
    ) -> Result<(), SkipReason> {
        if command.class.ends_transaction() {
            if self.last_end == Some(number) {
                return Err(SkipReason::Retry);
            }
            self.last_end = Some(number);
            return self.check_transaction(number);
        }
        if command.in_transaction && command.starts_transaction {
            self.transaction = chosen.is_ok().then_some(number);
            return chosen;
        }
        if command.in_transaction {
            return chosen.and(self.check_transaction(number));
        }
        if command.numbered().is_some() {
            if self.last_write == Some(number) {
                return Err(SkipReason::Retry);
            }
            self.last_write = Some(number);
        }
        chosen
    }

    fn check_transaction(&self, number: i64) -> Result<(), SkipReason> {
        match self.transaction == Some(number) {
            true => Ok(()),
            false => Err(SkipReason::TransactionUnknown),
        }
    }
}

/// Parses a message if it is a complete `OP_MSG`.
pub(crate) fn op_msg(message: &[u8]) -> Option<OpMsg<'_>> {
    let head = message.first_chunk::<HEADER_BYTES>()?;
    let header = Header::parse(head, MAX_MESSAGE_BYTES).ok()?;
    let is_complete = header.message_length == message.len() && header.op_code == OpCode::Msg;
    is_complete.then(|| OpMsg::parse(message).ok()).flatten()
}

/// The id of a captured session: the 16 bytes of the UUID in `lsid`.
pub(crate) type CapturedSession = [u8; 16];

fn check_kind(command: &Command<'_>) -> Result<(), SkipReason> {
    let spec = command.spec;
    if matches!(command.class, Class::Handshake(_)) {
        Err(SkipReason::Handshake)
    } else if spec.is_secret {
        Err(SkipReason::Secret)
    } else if !spec.is_replayed {
        Err(SkipReason::Admin)
    } else {
        Ok(())
    }
}

/// A `maxTimeMS` as a duration. A negative value, which the server refuses, becomes zero.
fn duration(max_time: MaxTime) -> Duration {
    Duration::from_millis(u64::try_from(max_time.milliseconds).unwrap_or(0))
}

/// True if the command writes. A `mapReduce` may write its result, so it counts as a write.
fn writes(command: &Command<'_>) -> bool {
    command.writes() || command.spec.syntax == Syntax::MapReduce
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Document, doc, spec::BinarySubtype};
    use seawall_wire::encode_request;

    use super::*;

    fn message(command: Document) -> Vec<u8> {
        let mut body = command;
        if !body.contains_key("$db") {
            body.insert("$db", "d");
        }
        encode_request(7, &body.to_vec().unwrap())
    }

    fn lsid(byte: u8) -> Document {
        let bytes = vec![byte; 16];
        let subtype = BinarySubtype::Uuid;
        doc! {"id": Binary { subtype, bytes }}
    }

    /// A planner for a user who chose to send writes and all shapes.
    fn planner() -> Planner {
        let choice = Choice {
            with_writes: true,
            only: Vec::new(),
        };
        Planner::new(choice, false)
    }

    fn skipped(planner: &mut Planner, command: Document) -> Option<SkipReason> {
        match planner.decide(&message(command)) {
            Decision::Send(_) => None,
            Decision::Skip(reason) => Some(reason),
        }
    }

    fn planned(planner: &mut Planner, command: Document) -> Planned {
        match planner.decide(&message(command)) {
            Decision::Send(planned) => planned,
            Decision::Skip(reason) => panic!("{reason:?}"),
        }
    }

    #[test]
    fn each_kind_of_command_is_sent_or_is_skipped_for_the_expected_reason() {
        use SkipReason::{Admin, CursorUnknown, Handshake, Invalid, Secret, Write};
        let out = doc! {"aggregate": "c", "pipeline": [{"$match": {}}, {"$out": "x"}]};
        let merge = doc! {"aggregate": "c", "pipeline": [{"$merge": {"into": "x"}}]};
        let cases = [
            (doc! {"find": "c"}, None, None),
            (doc! {"aggregate": "c", "pipeline": []}, None, None),
            (doc! {"ping": 1}, None, None),
            (doc! {"listIndexes": "c"}, None, None),
            (doc! {"explain": {"delete": "c"}}, None, None),
            (doc! {"insert": "c", "documents": []}, Some(Write), None),
            (doc! {"findAndModify": "c"}, Some(Write), None),
            (doc! {"createIndexes": "c"}, Some(Write), None),
            (doc! {"mapReduce": "c"}, Some(Write), None),
            (out, Some(Write), None),
            (merge, Some(Write), None),
            (doc! {"createUser": "u"}, Some(Secret), Some(Secret)),
            (doc! {"unheardOf": 1}, Some(Secret), Some(Secret)),
            (doc! {"dropUser": "u"}, Some(Admin), Some(Admin)),
            (doc! {"usersInfo": 1}, Some(Secret), Some(Secret)),
            (doc! {"shutdown": 1}, Some(Admin), Some(Admin)),
            (doc! {"endSessions": []}, Some(Admin), Some(Admin)),
            (doc! {"replSetStepDown": 1}, Some(Admin), Some(Admin)),
            (doc! {"hello": 1}, Some(Handshake), Some(Handshake)),
            (doc! {"saslStart": 1}, Some(Handshake), Some(Handshake)),
            (
                doc! {"getMore": 5_i64},
                Some(CursorUnknown),
                Some(CursorUnknown),
            ),
            (doc! {"getMore": "x"}, Some(Invalid), Some(Invalid)),
            (
                doc! {"killCursors": "c"},
                Some(CursorUnknown),
                Some(CursorUnknown),
            ),
            (doc! {"find": "c", "$db": 1}, Some(Invalid), Some(Invalid)),
        ];
        for (command, read_only, with_writes) in cases {
            let mut reads = Planner::new(Choice::default(), false);
            assert_eq!(skipped(&mut reads, command.clone()), read_only, "{command}");
            let all = skipped(&mut planner(), command.clone());
            assert_eq!(all, with_writes, "{command}");
        }
    }

    #[test]
    fn messages_that_are_not_op_msg_are_skipped_as_invalid() {
        let whole = message(doc! {"find": "c"});
        for cut in 0..whole.len() {
            let decision = planner().decide(whole.get(..cut).unwrap());
            assert_eq!(decision, Decision::Skip(SkipReason::Invalid), "{cut}");
        }
        let mut query = whole;
        query[12..16].copy_from_slice(&2004_i32.to_le_bytes());
        assert_eq!(
            planner().decide(&query),
            Decision::Skip(SkipReason::Invalid)
        );
    }

    #[test]
    fn a_write_that_the_driver_retried_is_replayed_once() {
        let mut planner = planner();
        let insert =
            |session, number: i64| doc! {"insert": "c", "lsid": lsid(session), "txnNumber": number};
        assert_eq!(skipped(&mut planner, insert(1, 4)), None);
        assert_eq!(skipped(&mut planner, insert(1, 4)), Some(SkipReason::Retry));
        assert_eq!(skipped(&mut planner, insert(2, 4)), None);
        assert_eq!(skipped(&mut planner, insert(1, 5)), None);
        // Without `txnNumber`, equal commands are different operations.
        let plain = doc! {"insert": "c", "lsid": lsid(1)};
        assert_eq!(skipped(&mut planner, plain.clone()), None);
        assert_eq!(skipped(&mut planner, plain), None);
    }

    /// A command in the transaction `number` of session 1.
    fn in_transaction(mut command: Document, number: i64) -> Document {
        command.extend(doc! {"lsid": lsid(1), "txnNumber": number, "autocommit": false});
        command
    }

    #[test]
    fn a_transaction_is_sent_only_if_its_first_command_is_sent() {
        let begin =
            |name: &str, number| in_transaction(doc! {name: "c", "startTransaction": true}, number);
        let find = |number| in_transaction(doc! {"find": "c"}, number);
        let commit = |number| in_transaction(doc! {"commitTransaction": 1, "$db": "admin"}, number);
        let mut all = planner();
        assert_eq!(skipped(&mut all, begin("insert", 1)), None);
        assert_eq!(skipped(&mut all, find(1)), None);
        assert_eq!(skipped(&mut all, find(1)), None);
        assert_eq!(skipped(&mut all, commit(1)), None);
        assert_eq!(skipped(&mut all, commit(1)), Some(SkipReason::Retry));
        // Transaction 2 began before the capture, so the planner has not seen its first command.
        let unknown = Some(SkipReason::TransactionUnknown);
        assert_eq!(skipped(&mut all, find(2)), unknown);
        assert_eq!(skipped(&mut all, commit(2)), unknown);
        let mut reads = Planner::new(Choice::default(), false);
        assert_eq!(skipped(&mut reads, begin("find", 3)), None);
        let insert = in_transaction(doc! {"insert": "c"}, 3);
        assert_eq!(skipped(&mut reads, insert), Some(SkipReason::Write));
        assert_eq!(skipped(&mut reads, find(3)), None);
        assert_eq!(skipped(&mut reads, commit(3)), None);
        assert_eq!(
            skipped(&mut reads, begin("insert", 4)),
            Some(SkipReason::Write)
        );
        assert_eq!(skipped(&mut reads, find(4)), unknown);
        assert_eq!(skipped(&mut reads, commit(4)), unknown);
    }

    #[test]
    fn get_more_and_kill_cursors_are_sent_only_for_cursors_that_a_sent_command_opened() {
        let mut planner = planner();
        let find = planned(&mut planner, doc! {"find": "c", "filter": {"a": 1}});
        assert_eq!(find.cursors, CursorUse::Open);
        planner.note_cursor(0, find.origin);
        planner.note_cursor(77, find.origin);
        let more = planned(&mut planner, doc! {"getMore": 77_i64, "collection": "c"});
        assert_eq!(more.cursors, CursorUse::More(77));
        assert_eq!(more.origin, find.origin);
        let kill = doc! {"killCursors": "c", "cursors": [5_i64, 77_i64]};
        let killed = planned(&mut planner, kill.clone());
        assert_eq!(killed.cursors, CursorUse::Kill(vec![77]));
        assert_eq!(skipped(&mut planner, kill), Some(SkipReason::CursorUnknown));
        planner.note_cursor(78, find.origin);
        let many: Vec<i64> = (78..1_000).collect();
        let killed = planned(&mut planner, doc! {"killCursors": "c", "cursors": many});
        let CursorUse::Kill(ids) = killed.cursors else {
            panic!("not the use of a killCursors")
        };
        assert!(ids.len() == 1 && ids.capacity() < 10);
        let zero = doc! {"getMore": 0_i64, "collection": "c"};
        assert_eq!(skipped(&mut planner, zero), Some(SkipReason::CursorUnknown));
    }

    #[test]
    fn change_streams_and_tailable_cursors_are_marked_as_cursors_that_wait_for_events() {
        let cases = [
            (
                doc! {"aggregate": "c", "pipeline": [{"$changeStream": {}}]},
                true,
            ),
            (
                doc! {"find": "c", "tailable": true, "awaitData": true},
                true,
            ),
            (doc! {"find": "c"}, false),
        ];
        for (command, expected) in cases {
            let planned = planned(&mut planner(), command);
            assert_eq!(planned.origin.is_awaiting, expected);
        }
    }

    #[test]
    fn time_limit_of_a_command_is_its_max_time_ms() {
        for (command, milliseconds) in [
            (doc! {"find": "c", "maxTimeMS": 1_500}, 1_500),
            (doc! {"find": "c", "maxTimeMS": -1_i64}, 0),
            (doc! {"find": "c"}, 0),
        ] {
            let planned = planned(&mut planner(), command);
            assert_eq!(planned.max_time, Duration::from_millis(milliseconds));
        }
    }

    #[test]
    fn commands_of_chosen_shapes_and_their_get_mores_are_sent_and_other_commands_are_skipped() {
        let chosen = planned(&mut planner(), doc! {"find": "c", "filter": {"a": 1}});
        let choice = Choice {
            with_writes: true,
            only: vec![chosen.shape],
        };
        let mut planner = Planner::new(choice, false);
        let again = planned(&mut planner, doc! {"find": "c", "filter": {"a": 2}});
        planner.note_cursor(77, again.origin);
        assert_eq!(skipped(&mut planner, doc! {"getMore": 77_i64}), None);
        let other = doc! {"find": "c", "filter": {"b": 1}};
        assert_eq!(skipped(&mut planner, other), Some(SkipReason::NotChosen));
    }

    #[test]
    fn a_write_with_the_flag_more_to_come_is_planned_as_unacknowledged() {
        let mut bytes = message(doc! {"insert": "c", "writeConcern": {"w": 0}});
        bytes[16..20].copy_from_slice(&MORE_TO_COME.to_le_bytes());
        let Decision::Send(planned) = planner().decide(&bytes) else {
            panic!("skipped")
        };
        assert!(planned.is_unacknowledged);
    }
}
