//! The observation of one operation: a guard that counts the operation, whether it succeeds, fails
//! or is cancelled.

use metrics::Label;
use tokio::time::Instant;

use seawall_command::CommandBytes;
use seawall_command::{CodeCounts, ReplyFacts, statements};
use seawall_shape::ShapeId;
use seawall_stats::{Outcome, Phase, PhaseTimes};

use super::{
    ConnectedClient, MetricName, Recorder,
    clients::is_closing,
    recorder::CommandKind,
    registry::OTHER,
    slow::Sender,
    sums::{OTHER_CODES, Record, RowIndexes, ServerIndex, ShapeIndex},
};

/// The operation that opened a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorOrigin {
    shape: ShapeIndex,
    id: ShapeId,
    folded: Option<(ShapeId, ShapeId)>,
    opened_at: Instant,
}

/// Counts one operation when it is dropped. Without a call of [`Observation::finish`], the
/// operation was cancelled and counts as [`Outcome::ClientGone`].
#[derive(Debug)]
#[must_use]
pub struct Observation<'a> {
    recorder: &'a Recorder,
    record: Record,
    phase: Phase,
    since: Instant,
    began: Instant,
    cursor_opened_at: Option<Instant>,
    sender: Sender<'a>,
    /// True if Seawall closes the client connection.
    is_closed: bool,
}

impl<'a> Observation<'a> {
    fn begin(recorder: &'a Recorder, rows: RowIndexes, request_bytes: usize, now: Instant) -> Self {
        let record = Record {
            rows,
            origin: None,
            origin_id: None,
            origin_folded: None,
            server: None,
            outcome: Outcome::ClientGone,
            code: None,
            write_errors: 0,
            write_error_codes: CodeCounts::default(),
            write_concern_code: None,
            phases: PhaseTimes::default(),
            request_bytes: u64::try_from(request_bytes).unwrap_or(u64::MAX),
            reply_bytes: 0,
            documents: 0,
            statements: 0,
            is_streamed: false,
            has_reply: false,
            is_awaiting: false,
            is_retry: false,
            cursor_time: None,
        };
        Self {
            recorder,
            record,
            phase: Phase::Permit,
            since: now,
            began: now,
            cursor_opened_at: None,
            sender: Sender::default(),
            is_closed: false,
        }
    }

    /// Begins the observation of the next reply to a command that has several replies.
    pub(crate) fn begin_next_reply(&self, now: Instant) -> Self {
        let mut again = Self::begin(self.recorder, self.record.rows, 0, now);
        again.record.origin = self.record.origin;
        again.record.origin_id = self.record.origin_id;
        again.record.origin_folded = self.record.origin_folded;
        again.record.server = self.record.server;
        again.record.is_awaiting = self.record.is_awaiting;
        again.cursor_opened_at = self.cursor_opened_at;
        again.sender = self.sender;
        again
    }

    /// Ends the current phase and begins `phase`. Phases do not overlap and have no gaps, so their
    /// sum is the total time.
    pub fn enter(&mut self, phase: Phase, now: Instant) {
        self.record.phases[self.phase] += now.saturating_duration_since(self.since);
        self.record.has_reply |= phase == Phase::Receive;
        self.phase = phase;
        self.since = now;
    }

    /// When the operation began: at the last byte of its command, or at the first byte if the
    /// command is streamed.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When the current phase began.
    pub(crate) fn phase_began(&self) -> Instant {
        self.since
    }

    /// Marks the command as streamed: Seawall forwards it while it arrives. The time of the
    /// operation then starts at the first byte of the command instead of the last byte.
    pub(crate) fn mark_streamed(&mut self) {
        self.record.is_streamed = true;
    }

    /// Sets the number of statements that Seawall has read so far from the command of a write.
    /// While a command is streamed, the number rises; a lower number is ignored.
    pub(crate) fn set_statements(&mut self, statements: u64) {
        self.record.statements = self.record.statements.max(statements);
    }

    /// Marks the operation as awaiting: its client asked the server to wait for an event, so the
    /// time of the operation does not show load.
    pub(crate) fn mark_awaiting(&mut self) {
        self.record.is_awaiting = true;
    }

    /// Marks the operation as a retry: its client has sent the same write, commit or abort before.
    pub(crate) fn mark_retry(&mut self) {
        self.record.is_retry = true;
    }

    /// True if the client has sent the same write, commit or abort before.
    pub(crate) fn is_retry(&self) -> bool {
        self.record.is_retry
    }

    /// Counts one repetition: the server that ran the operation failed or refused it, and Seawall
    /// sends the operation again. Removes the error code of the failed reply. Moves the time of the
    /// failed attempt to [`Phase::Checkout`], because the next server did not cause this time.
    pub(crate) fn mark_repeated(&mut self, now: Instant) {
        self.enter(Phase::Checkout, now);
        for phase in [Phase::Forward, Phase::Server, Phase::Receive, Phase::Send] {
            let failed = std::mem::take(&mut self.record.phases[phase]);
            self.record.phases[Phase::Checkout] += failed;
        }
        // The client never sees the failed reply, so the reply and its code do not count.
        self.record.has_reply = false;
        self.record.code = None;
        let servers = self.recorder.servers.lock();
        let server = self.record.server.and_then(|server| servers.get(server.0));
        let server = server.map_or_else(|| OTHER.to_owned(), ToString::to_string);
        drop(servers);
        let labels = vec![Label::new("server", server)];
        let name = MetricName::OperationsRepeatedTotal;
        self.recorder.metrics.counter(name, labels).increment(1);
    }

    /// For a `getMore`: sets the operation that opened its cursor. The sums of shapes count the
    /// `getMore` under the shape of that operation.
    pub(crate) fn attribute_to(&mut self, origin: CursorOrigin) {
        self.record.origin = Some(origin.shape);
        self.record.origin_id = Some(origin.id);
        self.record.origin_folded = origin.folded;
        self.cursor_opened_at = Some(origin.opened_at);
    }

    /// The id of the operation's shape. For a `getMore`, the id of the shape of the operation that
    /// opened its cursor, if known.
    pub(crate) fn shape(&self) -> ShapeId {
        self.record.origin_id.unwrap_or(self.record.rows.id)
    }

    /// The origin of the cursor that this operation opened; `None` if the operation is counted
    /// without a shape. Callers pass the origin to `attribute_to` for each `getMore` on the cursor.
    pub fn origin(&self) -> Option<CursorOrigin> {
        let rows = &self.record.rows;
        let own = rows.folded.map(|coarse| (rows.id, coarse));
        Some(CursorOrigin {
            shape: self.record.origin.or(rows.shape)?,
            id: self.record.origin_id.unwrap_or(rows.id),
            folded: match self.record.origin {
                Some(_) => self.record.origin_folded,
                None => own,
            },
            opened_at: self.began,
        })
    }

    /// Sets the client that sent the operation. The operation is counted for the application of
    /// `client`. `user` identifies the client's user: each user gets a limited share of the slow
    /// log's lines. `command` is the command whose values are written to the slow log; `None`
    /// writes a line without values.
    pub(crate) fn set_sender(
        &mut self,
        client: &'a ConnectedClient,
        user: u64,
        command: Option<CommandBytes<'a>>,
    ) {
        self.sender = Sender {
            client: Some(client),
            user,
            command,
        };
    }

    /// Sets the server that runs the operation now. A call replaces the server of an earlier
    /// attempt that failed.
    pub fn set_server(&mut self, server: ServerIndex) {
        self.record.server = Some(server);
        self.record.has_reply = false;
    }

    /// Records a server's reply. If Seawall edited the reply, `reply` describes the edited reply.
    pub fn record_reply(&mut self, reply: &ReplyFacts, now: Instant) {
        self.record.has_reply = true;
        self.record.code = reply.error_code();
        self.record.write_errors = reply.write_errors;
        self.record.write_error_codes = reply.write_error_codes;
        let has_failed = reply.write_concern_error && reply.ok != Some(false);
        self.record.write_concern_code =
            has_failed.then(|| reply.write_concern_code.unwrap_or(OTHER_CODES));
        if reply.cursor_id == Some(0) {
            self.record.cursor_time = self
                .cursor_opened_at
                .map(|opened| now.saturating_duration_since(opened));
        }
    }

    /// Sets the error code of a reply that Seawall created itself.
    pub(crate) fn set_error_code(&mut self, code: i32) {
        self.record.code = Some(code);
    }

    /// Adds the bytes of the reply to the client, and the documents of the server's reply. The
    /// bytes are 0 if the client wants no reply; the documents count even then.
    pub(crate) fn add_reply(&mut self, bytes: usize, documents: u64) {
        self.record.reply_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        self.record.documents += documents;
    }

    /// Ends the observation with an outcome, and counts the operation.
    pub fn finish(mut self, outcome: Outcome, now: Instant) {
        self.record.outcome = outcome;
        self.enter(self.phase, now);
    }

    /// Like [`Self::finish`], for an operation after which Seawall closes the client connection. So
    /// the client does not count as a client that has left.
    pub(crate) fn finish_closed(mut self, outcome: Outcome, now: Instant) {
        self.is_closed = true;
        self.finish(outcome, now);
    }
}

impl Recorder {
    /// Begins the observation of an operation that a server will run and whose user is not known.
    /// `now` is when the last byte of its command was read.
    pub fn begin(
        &self,
        input: &CommandBytes<'_>,
        request_bytes: usize,
        now: Instant,
    ) -> Observation<'_> {
        self.begin_for(("", ""), input, request_bytes, now)
    }

    /// Begins the observation of an operation that a server will run. `user` is the name of the
    /// client's user, and the authentication database of this user. Both are empty for a client
    /// that need not log in. `now` is when the last byte of the operation's command was read.
    pub(crate) fn begin_for(
        &self,
        user: (&str, &str),
        input: &CommandBytes<'_>,
        request_bytes: usize,
        now: Instant,
    ) -> Observation<'_> {
        let rows = self.rows_of(input, CommandKind::Operation(user));
        let mut observation = Observation::begin(self, rows, request_bytes, now);
        observation.set_statements(statements(input));
        observation
    }

    /// Begins the observation of a handshake command that a server will run. The command is counted
    /// without a shape.
    pub(crate) fn begin_unshaped(
        &self,
        input: &CommandBytes<'_>,
        request_bytes: usize,
        now: Instant,
    ) -> Observation<'_> {
        Observation::begin(
            self,
            self.rows_of(input, CommandKind::Handshake),
            request_bytes,
            now,
        )
    }

    /// Counts a command to which Seawall itself replied. `error_code` is the code in an error
    /// reply; `None` if the command succeeded.
    pub fn local(
        &self,
        input: &CommandBytes<'_>,
        request_bytes: usize,
        reply_bytes: usize,
        error_code: Option<i32>,
        began: Instant,
    ) {
        let rows = self.rows_of(input, CommandKind::Handshake);
        let mut observation = Observation::begin(self, rows, request_bytes, began);
        observation.add_reply(reply_bytes, 0);
        if let Some(code) = error_code {
            observation.set_error_code(code);
        }
        observation.finish(Outcome::Local, Instant::now());
    }
}

/// The outcome of an operation, from its server's reply.
pub fn outcome_of(reply: &ReplyFacts) -> Outcome {
    match reply.ok {
        Some(true) if reply.write_errors > 0 || reply.write_concern_error => Outcome::WriteError,
        Some(true) | None => Outcome::Ok,
        Some(false) => Outcome::Error,
    }
}

impl Drop for Observation<'_> {
    fn drop(&mut self) {
        if self.record.outcome == Outcome::ClientGone {
            self.enter(self.phase, Instant::now());
            // If Seawall closes the connection, the client has not left.
            if !is_closing() && !self.is_closed {
                self.recorder.count_gone_client(self.phase.as_str());
            }
        }
        let application = self.sender.client.and_then(ConnectedClient::application);
        self.recorder.record(&self.record, application);
        self.recorder.log_if_slow(&self.record, self.sender);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, time::Duration};

    use bson::doc;

    use super::*;
    use crate::observe::{NamespaceSums, Observer};
    use seawall_command::CommandBytes;
    use seawall_command::ReplyForm;

    fn observer() -> Observer {
        Observer::with_shapes()
    }

    fn sums_of(observer: &Observer, replies: &[bson::Document]) -> NamespaceSums {
        let command = doc! {"insert": "c", "$db": "d"}.to_vec().unwrap();
        let input = CommandBytes::of_body(&command);
        for reply in replies {
            let facts = ReplyFacts::of(ReplyForm::Plain, &reply.to_vec().unwrap());
            let mut observation = observer.recorder.begin(&input, 0, Instant::now());
            observation.record_reply(&facts, Instant::now());
            observation.finish(outcome_of(&facts), Instant::now());
        }
        let rows = observer.totals.namespaces();
        let [(_, sums)] = &*rows else {
            panic!("{rows:?}");
        };
        sums.clone()
    }

    #[test]
    fn an_operation_that_seawall_ends_is_not_counted_as_a_client_that_left() {
        let command = doc! {"find": "c", "$db": "d"}.to_vec().unwrap();
        let input = CommandBytes::of_body(&command);
        for is_closed_by_seawall in [false, true] {
            let observer = observer();
            let observation = observer.recorder.begin(&input, 0, Instant::now());
            match is_closed_by_seawall {
                true => crate::observe::close(observation),
                false => drop(observation),
            }
            let text = observer.exporter.render();
            let is_counted = text.contains("seawall_clients_gone_total{");
            assert_eq!(is_counted, !is_closed_by_seawall, "{text}");
        }
    }

    #[test]
    fn a_reply_with_ok_0_does_not_count_as_a_write_concern_error() {
        let error = doc! {"code": 64};
        let replies = [
            doc! {"ok": 1, "writeConcernError": &error},
            doc! {"ok": 0, "code": 251, "writeConcernError": &error},
        ];
        let sums = sums_of(&observer(), &replies);
        assert_eq!(sums.write_concern_codes.values().sum::<u64>(), 1);
        assert_eq!(sums.codes[&251], 1);
    }

    #[test]
    fn the_time_of_a_failed_attempt_does_not_count_for_the_server_that_replies() {
        let observer = observer();
        let command = doc! {"find": "c", "$db": "d"}.to_vec().unwrap();
        let input = CommandBytes::of_body(&command);
        let began = Instant::now();
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        let mut observation = observer.recorder.begin(&input, 0, began);
        observation.set_server(observer.recorder.server("failed:1").index());
        observation.enter(Phase::Forward, at(1));
        observation.enter(Phase::Server, at(2));
        observation.mark_repeated(at(20_000));
        observation.set_server(observer.recorder.server("good:1").index());
        observation.enter(Phase::Forward, at(20_001));
        observation.enter(Phase::Server, at(20_003));
        observation.enter(Phase::Receive, at(20_007));
        observation.enter(Phase::Send, at(20_008));
        let phases = observation.record.phases;
        assert_eq!(phases[Phase::Server], Duration::from_millis(4));
        assert_eq!(phases[Phase::Forward], Duration::from_millis(2));
        assert_eq!(phases.total(), Duration::from_millis(20_008));
        observation.finish(Outcome::Ok, at(20_008));
        let text = observer.exporter.render();
        let seconds = r#"seawall_server_operation_seconds_sum{server="good:1"} 0.004"#;
        assert!(text.contains(seconds), "{text}");
    }

    #[test]
    fn write_errors_without_a_code_or_beyond_the_code_limit_count_as_other() {
        let failed = |codes: &mut dyn Iterator<Item = i32>| {
            let errors: Vec<_> = codes.map(|code| doc! {"code": code}).collect();
            doc! {"n": 0, "writeErrors": errors, "ok": 1}
        };
        let replies = [
            failed(&mut [11000, 121, 11000].into_iter()),
            // These are more codes than `CodeCounts` distinguishes in one reply.
            failed(&mut (1..=20)),
            doc! {"n": 0, "writeErrors": [{"index": 0}], "ok": 1},
        ];
        let sums = sums_of(&observer(), &replies);
        assert_eq!((sums.write_errors, sums.write_error_codes[&11000]), (24, 2));
        assert_eq!(sums.write_error_codes[&OTHER_CODES], 13);
        assert_eq!(sums.write_error_codes.values().sum::<u64>(), 24);
    }

    #[test]
    fn a_partly_failed_bulk_write_has_the_outcome_write_error() {
        let outcome = |errors: i32| {
            let cursor = doc! {"id": 0i64, "firstBatch": [], "ns": "admin.$cmd.bulkWrite"};
            let reply = doc! {"cursor": cursor, "nErrors": errors, "nInserted": 2, "ok": 1.0};
            let facts = ReplyFacts::of(ReplyForm::BulkWrite, &reply.to_vec().unwrap());
            outcome_of(&facts)
        };
        assert_eq!([outcome(0), outcome(1)], [Outcome::Ok, Outcome::WriteError]);
    }

    #[test]
    fn each_metric_of_a_namespace_counts_at_most_32_different_error_codes() {
        let replies: Vec<_> = (1..=40)
            .flat_map(|code| {
                [
                    doc! {"ok": 0, "code": code},
                    doc! {"ok": 1, "writeErrors": [{"code": code}], "writeConcernError": {"code": code}},
                ]
            })
            .collect();
        let sums = sums_of(&observer(), &replies);
        let NamespaceSums {
            codes,
            write_error_codes,
            write_concern_codes,
            ..
        } = sums;
        for codes in [codes, write_error_codes, write_concern_codes] {
            assert_eq!((codes[&32], codes[&OTHER_CODES]), (1, 8));
            assert_eq!(codes.len(), 33);
        }
    }

    #[test]
    fn an_operation_counts_once_for_a_code_of_both_its_writes_and_its_write_concern() {
        let observer = observer();
        let reply = doc! {
            "ok": 1,
            "writeErrors": [{"code": 91}, {"code": 64}],
            "writeConcernError": {"code": 91},
        };
        sums_of(&observer, &[reply]);
        let shapes = observer.totals.shapes();
        let [row] = &*shapes else {
            panic!("{shapes:?}");
        };
        assert_eq!(row.sums.codes, HashMap::from([(91, 1), (64, 1)]));
    }

    #[test]
    fn the_error_code_of_a_reply_is_not_counted_if_seawall_repeats_the_operation() {
        let observer = observer();
        let command = doc! {"find": "c", "$db": "d"}.to_vec().unwrap();
        let input = CommandBytes::of_body(&command);
        let refusal = doc! {"ok": 0, "code": 10107}.to_vec().unwrap();
        let refusal = ReplyFacts::of(ReplyForm::Plain, &refusal);
        let mut observation = observer.recorder.begin(&input, 0, Instant::now());
        observation.set_server(observer.recorder.server("a:1").index());
        observation.record_reply(&refusal, Instant::now());
        observation.mark_repeated(Instant::now());
        drop(observation);
        let rows = observer.totals.namespaces();
        let [(_, sums)] = &*rows else {
            panic!("{rows:?}");
        };
        assert!(sums.codes.is_empty());
        let text = observer.exporter.render();
        let repeated = r#"seawall_operations_repeated_total{server="a:1"} 1"#;
        assert!(text.contains(repeated), "{text}");
    }
}
