//! Runs a replay: takes the records in the order of the capture, starts commands when the schedule
//! allows it, and collects the results.
//!
//! One task makes all decisions. Each connection has its own task, which has at most one command at
//! a time. The first task is spawned too, because `block_on` would run it outside of the workers.
//! So with one worker, all tasks share its thread, and no command wakes another thread.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    io,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use foldhash::fast::RandomState;
use seawall_capture::record::{Header, Redaction};
use seawall_load::{Failure, Target};
use seawall_stats::{Distribution, float};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};

use crate::{
    Choice, CursorUse, Lane, OperationId, Pace, Planned, Planner, Recent, ReplaySettings, Report,
    Rewriter, Schedule, SkipReason, Source,
    connection::{self, Done, Job},
    endpoint::{Description, Endpoint, EndpointError},
    prepare::{CapturedEnd, Prepared, Preparer, ToRewrite, ToSend, error_code},
    records::{Item, Last, Read, Shares, read_ahead},
    results::{Ended, Results, RowId},
    rewrite::set_request_id,
    slots::Slots,
    streams::Streams,
    timing::Sent,
};

/// To keep the schedule small, a command is added to it at most about this long before it is due.
const HORIZON: Duration = Duration::from_secs(1);

/// Time from the start of a replay until its first record is due. Connections are established in
/// this time.
const LEAD: Duration = Duration::from_millis(200);

/// Maximum number of operations that ended in the replay, but whose captured reply was not read
/// yet. If there are more, the oldest one is forgotten.
const MAX_UNMATCHED: usize = 65_536;

/// The map `cursors` remembers at most twice this number of cursors (see [`Recent`]).
const MAX_CURSORS: usize = 50_000;

/// Minimum number of ended operations before the share of errors can stop the replay.
const MIN_FOR_ERROR_SHARE: u64 = 100;

/// The [`Conductor`] takes at most about this many items (ended operations, or records) from a
/// channel. Then it starts the commands that are due, before it takes more items.
const BATCH: usize = 256;

/// The settings of a replay: the commands, the target, the pace and the limits.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The deployment that gets the commands, and the user as whom the replay logs in.
    pub target: Target,
    /// The commands to send.
    pub choice: Choice,
    /// The pace: how fast commands are sent.
    pub pace: Pace,
    /// True if a command waits for all operations that had ended in the capture before the command
    /// began.
    pub strict_order: bool,
    /// Maximum number of connections.
    pub connections: usize,
    /// Time limit of a reply. The `maxTimeMS` of a command is added to this limit. An operation
    /// without a reply within the sum has failed.
    pub reply_limit: Duration,
    /// True if the results have digests of the returned documents.
    pub digest: bool,
    /// The replay stops if the share of operations that fail unexpectedly exceeds this limit (a
    /// number from 0 to 1). The share is checked as soon as 100 operations have ended.
    pub max_error_share: f64,
    /// True if writes may be sent to a server without a process id. Such a server, for example a
    /// proxy, may belong to the captured deployment.
    pub writes_to_unidentified: bool,
}

/// Runs a replay. Calls `progress` with one line of text per second. When the future `stop` returns
/// a reason, the replay ends, and the report has the results until then.
///
/// # Errors
/// If the target cannot be used. Later failures are part of the report.
pub async fn run(
    replay: Replay,
    source: Source,
    progress: impl Fn(&str) + Send + 'static,
    stop: impl Future<Output = &'static str> + Send + 'static,
) -> Result<Report, EndpointError> {
    let endpoint = Endpoint::new(replay.target.clone())?;
    let header = source.header();
    // The header of a converted recording may name no servers. Then there is no captured server to
    // compare with the target, so the target's process id is not needed.
    let must_identify =
        replay.choice.with_writes && !replay.writes_to_unidentified && !header.servers.is_empty();
    let description = endpoint.describe(header, must_identify).await?;
    // If the caller drops this future, the set is dropped too, which ends the task.
    let mut task = JoinSet::new();
    task.spawn(conduct(
        replay,
        endpoint,
        description,
        source,
        progress,
        stop,
    ));
    match task.join_next().await {
        Some(Ok(report)) => Ok(report),
        Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        None => unreachable!("the set has one task"),
    }
}

async fn conduct(
    replay: Replay,
    endpoint: Arc<Endpoint>,
    description: Description,
    source: Source,
    progress: impl Fn(&str),
    stop: impl Future<Output = &'static str>,
) -> Report {
    let header = source.header().clone();
    let rewriter = Rewriter {
        sessions: endpoint.session_key(),
        has_retryable_writes: description.has_retryable_writes,
    };
    let position = source.position();
    let planner = Planner::new(replay.choice.clone(), is_redacted(&header));
    let mut records = read_ahead(source, Preparer::new(planner, rewriter));
    let (done_sender, mut done) = mpsc::channel(BATCH);
    let mut conductor = Conductor::new(replay, endpoint, rewriter, &header, done_sender);
    let mut read = Vec::with_capacity(BATCH);
    let mut stop = pin!(stop);
    let mut ticks = interval_at(Instant::now() + SECOND, SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while conductor.stopped.is_none() {
        conductor.accept_all();
        conductor.dispatch_all();
        if conductor.has_ended() {
            break;
        }
        let wants_more =
            conductor.read.is_empty() && conductor.wants_more(conductor.now() + HORIZON);
        let next_due = conductor.next_due();
        tokio::select! {
            Some(ended) = done.recv() => {
                conductor.end(ended);
                for _ in 0..BATCH {
                    let Ok(ended) = done.try_recv() else { break };
                    conductor.end(ended);
                }
            }
            count = records.recv_many(&mut read, BATCH), if wants_more => {
                conductor.read.extend(read.drain(..));
                if count == 0 {
                    // The channel ended without its last item, because the reading thread panicked.
                    conductor.stopped = Some("internal error while reading the capture".to_owned());
                }
            }
            () = sleep_until(next_due.unwrap_or_else(Instant::now)), if next_due.is_some() => {}
            _ = ticks.tick() => {
                let read_bytes = position.0.load(Ordering::Relaxed);
                progress(&conductor.line(read_bytes, position.1));
            }
            reason = &mut stop => conductor.stopped = Some(reason.to_owned()),
        }
    }
    if conductor.stopped.is_none() {
        tokio::select! {
            () = conductor.catch_up() => {}
            reason = &mut stop => conductor.stopped = Some(reason.to_owned()),
        }
    }
    conductor.report(&header, description.name)
}

const SECOND: Duration = Duration::from_secs(1);

/// A report with the properties of a capture, but without results.
pub(crate) fn captured(header: &Header) -> Report {
    let id = &header.capture;
    // The id of a capture by Seawall is text. The id of a converted file of mongod's traffic
    // recorder is binary, so it is printed as hex.
    let capture = match str::from_utf8(id) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => text.to_owned(),
        _ => id.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    Report {
        capture,
        captured_at_s: header.began_at_us / 1_000_000,
        ..Report::default()
    }
}

/// True if the values in the capture are pseudonyms.
pub(crate) fn is_redacted(header: &Header) -> bool {
    header.redaction() != Redaction::None
}

/// An operation of the replay, until it has ended both in the replay and in the capture.
struct Operation {
    planned: Planned,
    row: RowId,
    slot: usize,
    due: Duration,
    /// The message, until it is sent.
    message: Option<ToRewrite>,
    permit: Option<OwnedSemaphorePermit>,
    in_capture: Option<CapturedEnd>,
    in_replay: Option<ReplayedEnd>,
}

/// The end of an operation in the replay.
#[derive(Clone, Copy)]
struct ReplayedEnd {
    /// The same values as in [`CapturedEnd::code`]; `None` if the operation failed without a reply.
    code: Option<i32>,
    cursor_id: i64,
    documents: u64,
}

struct Connection {
    jobs: mpsc::Sender<Job>,
    /// The last command that was sent on the connection; `None` if no command was sent yet.
    last: Option<Sent>,
}

/// Makes all decisions of a replay.
struct Conductor {
    replay: Replay,
    endpoint: Arc<Endpoint>,
    rewriter: Rewriter,
    digest_until_s: Option<u64>,
    is_redacted: bool,
    began: Instant,
    /// The time of the first record, in microseconds since the capture began; `None` before this
    /// record.
    first_us: Option<u64>,
    /// The records that were read ahead and are not processed yet (see [`Self::accept`]).
    read: VecDeque<Item>,
    shares: Shares,
    schedule: Schedule,
    results: Results,
    slots: Slots,
    connections: HashMap<usize, Connection, RandomState>,
    tasks: JoinSet<()>,
    done: mpsc::Sender<Done>,
    operations: HashMap<OperationId, Operation, RandomState>,
    /// The operations that ended in the replay and whose captured end has not been read yet, the
    /// oldest first.
    unmatched: VecDeque<OperationId>,
    /// The target's id of each cursor; 0 if the cursor ended. The key is the captured id.
    cursors: Recent<i64, i64>,
    streams: Streams,
    next_request_id: i32,
    in_flight: u64,
    ended: u64,
    unexpected_errors: u64,
    last: Option<Last>,
    last_reply: Instant,
    stopped: Option<String>,
    /// The number of all commands that had been sent when the previous progress line was made, and
    /// the lag of these commands. The next line shows the difference.
    shown: (u64, Distribution),
}

impl Conductor {
    fn new(
        replay: Replay,
        endpoint: Arc<Endpoint>,
        rewriter: Rewriter,
        header: &Header,
        done: mpsc::Sender<Done>,
    ) -> Self {
        let now = Instant::now();
        let is_redacted = is_redacted(header);
        Self {
            schedule: Schedule::new(replay.strict_order),
            slots: Slots::new(replay.connections),
            digest_until_s: replay.digest.then_some(header.began_at_us / 1_000_000),
            is_redacted,
            began: now + LEAD,
            first_us: None,
            read: VecDeque::with_capacity(BATCH),
            shares: Shares::default(),
            results: Results::default(),
            connections: HashMap::default(),
            tasks: JoinSet::new(),
            operations: HashMap::default(),
            unmatched: VecDeque::new(),
            cursors: Recent::new(MAX_CURSORS),
            streams: Streams::default(),
            next_request_id: 1,
            in_flight: 0,
            ended: 0,
            unexpected_errors: 0,
            last: None,
            last_reply: now + LEAD,
            stopped: None,
            shown: (0, Distribution::default()),
            replay,
            endpoint,
            rewriter,
            done,
        }
    }

    /// True if all records were read and all operations have ended.
    fn has_ended(&self) -> bool {
        self.last.is_some() && self.schedule.is_empty()
    }

    /// True if the next record may be processed: the capture has not ended, and all operations in
    /// the schedule are due at `horizon` or earlier.
    fn wants_more(&self, horizon: Duration) -> bool {
        self.last.is_none() && self.schedule.last_due().is_none_or(|due| due <= horizon)
    }

    /// Time since the first record was due; zero before that.
    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.began)
    }

    fn next_due(&self) -> Option<Instant> {
        let due = self.schedule.next_due()?;
        // The time is limited to a year, because the sum could otherwise overflow.
        Some(self.began + due.min(Duration::from_hours(24 * 365)))
    }

    /// Processes the records in `read`, until an operation is due later than [`HORIZON`] from now.
    fn accept_all(&mut self) {
        let horizon = self.now() + HORIZON;
        while self.wants_more(horizon)
            && let Some(item) = self.read.pop_front()
        {
            match item {
                Item::Record(read) => self.accept(read),
                Item::Last(last) => self.last = Some(last),
            }
        }
    }

    fn accept(&mut self, read: Read) {
        match read.record {
            // A client gets a slot and a connection only at its first command, because many clients
            // send no command.
            Prepared::ClientBegan { at_us } => {
                self.note_time(at_us);
            }
            Prepared::ClientEnded { client } => {
                if let Some(slot) = self.slots.leave(client) {
                    self.connections.remove(&slot);
                }
            }
            Prepared::Command(command) => self.accept_command(*command, read.permit),
            Prepared::Skipped { at_us, reason } => {
                self.note_time(at_us);
                self.results.skip(reason.as_str());
            }
            Prepared::CapturedEnd(captured) => self.accept_end(captured),
            Prepared::Omitted(operations) => self.results.omitted += operations,
        }
    }

    /// Stores `at_us` as the time of the first record, unless a record came before. Returns the
    /// time from the first record to this one.
    fn note_time(&mut self, at_us: u64) -> Duration {
        let first_us = *self.first_us.get_or_insert(at_us);
        Duration::from_micros(at_us.saturating_sub(first_us))
    }

    fn accept_command(&mut self, command: ToSend, permit: Option<OwnedSemaphorePermit>) {
        let ToSend {
            operation,
            planned,
            message,
            ..
        } = command;
        let offset = self.note_time(command.at_us);
        let slot = self.slots.of(command.client);
        self.slots.begin(slot);
        self.connect(slot);
        let due = self.replay.pace.due(offset, operation.0);
        let mut lanes = vec![Lane::Connection(u64::try_from(slot).unwrap_or(u64::MAX))];
        lanes.extend(planned.session.map(Lane::Session));
        match &planned.cursors {
            CursorUse::Open => {}
            CursorUse::More(id) => lanes.push(Lane::Cursor(*id)),
            CursorUse::Kill(ids) => lanes.extend(ids.iter().map(|id| Lane::Cursor(*id))),
        }
        self.schedule.push(operation, due, lanes);
        let row = self.results.row(&planned, command.description);
        if let (true, CursorUse::More(id), ToRewrite::Cursors(message)) =
            (planned.is_await(), &planned.cursors, &message)
        {
            self.streams.ask(*id, row, message, planned.max_time);
        }
        let entry = Operation {
            planned,
            row,
            slot,
            due,
            message: Some(message),
            permit,
            in_capture: None,
            in_replay: None,
        };
        self.operations.insert(operation, entry);
    }

    fn accept_end(&mut self, captured: CapturedEnd) {
        let operation = captured.operation;
        let Some(entry) = self.operations.get_mut(&operation) else {
            return;
        };
        self.schedule.note_captured_end(operation);
        entry.in_capture = Some(captured);
        if let (true, CursorUse::More(id)) = (entry.planned.is_await(), &entry.planned.cursors) {
            self.streams.add_captured(*id, captured.documents);
        }
        if captured.cursor_id != 0 {
            let lane = Lane::Cursor(captured.cursor_id);
            self.schedule.extend(operation, lane);
        }
        self.match_ends(operation);
    }

    /// Starts a connection for the slot, unless the slot already has a connection.
    fn connect(&mut self, slot: usize) {
        if self.connections.contains_key(&slot) {
            return;
        }
        let (jobs, receiver) = mpsc::channel(1);
        let endpoint = Arc::clone(&self.endpoint);
        let running = connection::run(endpoint, receiver, self.done.clone());
        self.tasks.spawn(running);
        self.connections
            .insert(slot, Connection { jobs, last: None });
        while self.tasks.try_join_next().is_some() {}
    }

    fn dispatch_all(&mut self) {
        let now = self.now();
        if Instant::now() < self.began {
            return;
        }
        while let Some(operation) = self.schedule.next(now) {
            self.dispatch(operation);
        }
    }

    fn dispatch(&mut self, operation: OperationId) {
        let Some(entry) = self.operations.get_mut(&operation) else {
            return;
        };
        let Some(message) = entry.message.take() else {
            return;
        };
        let planned = &entry.planned;
        let cursors = &mut self.cursors;
        let mut find = |id| cursors.find(id).copied().filter(|id| *id != 0);
        let is_usable = match &planned.cursors {
            CursorUse::Open => true,
            CursorUse::More(id) => find(*id).is_some(),
            CursorUse::Kill(ids) => ids.iter().any(|id| find(*id).is_some()),
        };
        if !is_usable {
            return self.drop_operation(operation, SkipReason::CursorEnded);
        }
        let (request_id, limit) = (self.next_request_id, self.replay.reply_limit);
        let mut catch_up = Vec::new();
        if let CursorUse::Kill(ids) = &planned.cursors {
            let missing = ids.iter().filter_map(|id| self.streams.missing(*id));
            let rewriter = &self.rewriter;
            catch_up = missing
                .filter_map(|missing| missing.request(rewriter, request_id, limit, &mut find))
                .collect();
        }
        let rewritten = match message {
            ToRewrite::Done(mut message) => {
                set_request_id(&mut message, request_id);
                Ok(message)
            }
            ToRewrite::Cursors(message) => {
                self.rewriter
                    .rewrite(&message, request_id, &planned.cursors, find)
            }
        };
        let Ok(rewritten) = rewritten else {
            return self.drop_operation(operation, SkipReason::Invalid);
        };
        let job = Job {
            operation,
            message: rewritten,
            request_id,
            wants_reply: !planned.is_unacknowledged,
            reply_form: planned.reply_form,
            reply_limit: limit.saturating_add(planned.max_time),
            digest_until_s: self
                .digest_until_s
                .filter(|_| planned.origin.exclusion.is_none()),
            catch_up,
        };
        self.next_request_id = self.next_request_id.checked_add(1).unwrap_or(1);
        self.results.sent += 1;
        self.in_flight += 1;
        let (slot, request_bytes) = (entry.slot, job.message.len());
        // A connection runs its operations one after another ([`Lane`]), so this channel is empty.
        let connection = self.connections.get(&slot);
        if connection.is_none_or(|connection| connection.jobs.try_send(job).is_err()) {
            self.fail_to_send(operation, slot, request_bytes);
        }
    }

    /// Ends an operation that could not be sent, because the task of its connection has ended.
    /// Starts a new connection for later operations.
    fn fail_to_send(&mut self, operation: OperationId, slot: usize, request_bytes: usize) {
        self.connections.remove(&slot);
        self.connect(slot);
        let ended = io::Error::new(
            io::ErrorKind::BrokenPipe,
            "the task of the connection has ended",
        );
        self.end(Done {
            operation,
            sent_at: Instant::now(),
            duration: Duration::ZERO,
            request_bytes,
            result: Err(ended.into()),
            caught_up: Vec::new(),
        });
    }

    /// Ends an operation that is not sent.
    fn drop_operation(&mut self, operation: OperationId, reason: SkipReason) {
        self.results.skip(reason.as_str());
        self.schedule.end(operation);
        if let Some(entry) = self.operations.remove(&operation) {
            if let Some(permit) = entry.permit {
                self.shares.add(permit);
            }
            self.leave(entry.slot);
        }
    }

    fn leave(&mut self, slot: usize) {
        if self.slots.end(slot) {
            self.connections.remove(&slot);
        }
    }

    fn end(&mut self, done: Done) {
        self.in_flight -= 1;
        self.ended += 1;
        self.last_reply = Instant::now();
        let Some(entry) = self.operations.get_mut(&done.operation) else {
            return;
        };
        if let Some(permit) = entry.permit.take() {
            self.shares.add(permit);
        }
        if self.replay.pace != Pace::Max {
            let sent = Sent {
                due: self.began + entry.due.min(Duration::from_hours(24 * 365)),
                at: done.sent_at,
            };
            let connection = self.connections.get_mut(&entry.slot);
            let before = connection.and_then(|connection| connection.last.replace(sent));
            self.results.timing.add(before, sent);
        }
        let replayed = record(&mut self.results, entry, &done);
        entry.in_replay = Some(replayed);
        let slot = entry.slot;
        if let CursorUse::More(id) = entry.planned.cursors {
            self.cursors.insert(id, replayed.cursor_id);
            if entry.planned.is_await() {
                self.streams.add_replayed(id, replayed.documents);
            }
        }
        for (cursor, events) in &done.caught_up {
            if let Some(row) = self.streams.add_replayed(*cursor, *events) {
                self.results.add_events(row, *events);
            }
        }
        self.schedule.end(done.operation);
        self.leave(slot);
        self.unmatched.push_back(done.operation);
        self.match_ends(done.operation);
        while self.unmatched.len() > MAX_UNMATCHED {
            if let Some(oldest) = self.unmatched.pop_front() {
                self.forget(oldest);
            }
        }
        if let Err(Failure::Wrong(problem)) = &done.result {
            self.stopped = Some(format!("the target sent a wrong reply: {problem}"));
        }
        self.check_errors();
    }

    /// Calls [`Self::forget`] if the operation has ended both in the replay and in the capture.
    fn match_ends(&mut self, operation: OperationId) {
        let Some(entry) = self.operations.get(&operation) else {
            return;
        };
        if entry.in_capture.is_none() || entry.in_replay.is_none() {
            return;
        }
        self.forget(operation);
        // Usually, the operation is the newest or the oldest one in `unmatched`. Otherwise, it is
        // removed when it becomes the oldest one.
        if self.unmatched.back() == Some(&operation) {
            self.unmatched.pop_back();
        }
        while let Some(oldest) = self.unmatched.front()
            && !self.operations.contains_key(oldest)
        {
            self.unmatched.pop_front();
        }
    }

    /// Removes an operation. Counts its error if the error is unexpected, and remembers its cursor.
    fn forget(&mut self, operation: OperationId) {
        let Some(entry) = self.operations.remove(&operation) else {
            return;
        };
        let Some(replayed) = entry.in_replay else {
            return;
        };
        let expected = entry.in_capture.map_or(0, |captured| captured.code);
        let is_unexpected = match replayed.code {
            Some(code) => code != 0 && code != expected,
            None => true,
        };
        self.unexpected_errors += u64::from(is_unexpected);
        if let Some(captured) = entry.in_capture
            && captured.cursor_id != 0
        {
            self.cursors.insert(captured.cursor_id, replayed.cursor_id);
        }
    }

    /// Fetches missing events: in the capture, the clients received them, but the replay has not
    /// received them yet. Skips cursors that are not open on the target any more.
    async fn catch_up(&mut self) {
        let missing = self.streams.all_missing();
        if missing.is_empty() {
            return;
        }
        // If the connection fails, the events stay missing, and the comparison reports them as a
        // difference.
        let Ok(mut link) = self.endpoint.connect().await else {
            return;
        };
        for missing in missing {
            let cursors = &mut self.cursors;
            let find = |id| cursors.find(id).copied().filter(|id| *id != 0);
            let request_id = self.next_request_id;
            self.next_request_id = request_id.checked_add(1).unwrap_or(1);
            let limit = self.replay.reply_limit;
            let Some(events) = missing.request(&self.rewriter, request_id, limit, find) else {
                continue;
            };
            let fetched = connection::catch_up(&self.endpoint, &mut link, &events, request_id);
            let Ok(fetched) = fetched.await else {
                return;
            };
            if let Some(row) = self.streams.add_replayed(events.cursor, fetched) {
                self.results.add_events(row, fetched);
            }
        }
    }

    fn check_errors(&mut self) {
        let limit = self.replay.max_error_share;
        let share = float(self.unexpected_errors) / float(self.ended.max(1));
        if self.ended >= MIN_FOR_ERROR_SHARE && share > limit && self.stopped.is_none() {
            self.stopped = Some(format!(
                "{} of {} operations failed unexpectedly",
                self.unexpected_errors, self.ended
            ));
        }
    }

    /// One line about the progress.
    fn line(&mut self, read_bytes: u64, total_bytes: Option<u64>) -> String {
        let (sent_before, lag_before) = &self.shown;
        let rate = self.results.sent - sent_before;
        let lag = self.results.timing.lag.without(lag_before);
        let lag_ms = lag.quantile(0.99).as_secs_f64() * 1e3;
        let elapsed = self.now();
        let remaining = total_bytes.map_or_else(String::new, |total| {
            let share = float(read_bytes) / float(total.max(1));
            let rest = elapsed.as_secs_f64() * (1.0 - share) / share.max(1e-9);
            format!(", about {rest:.0} s left")
        });
        let line = format!(
            "{} s: {rate} commands/s, {} sent, {} waiting, lag p99 {lag_ms:.1} ms, {} unexpected errors{remaining}",
            elapsed.as_secs(),
            self.results.sent,
            self.schedule.len(),
            self.unexpected_errors,
        );
        self.shown = (self.results.sent, self.results.timing.lag.clone());
        line
    }

    fn report(mut self, header: &Header, target: String) -> Report {
        let open: Vec<_> = self.operations.keys().copied().collect();
        let not_sent = waiting_only(self.schedule.len(), self.in_flight);
        for operation in open {
            self.forget(operation);
        }
        // Dropping the senders of jobs ends the connections.
        self.connections.clear();
        let error = self.last.and_then(|last| last.error);
        let choice = &self.replay.choice;
        let settings = ReplaySettings {
            pace: match self.replay.pace {
                Pace::Speed(factor) => format!("speed {factor}"),
                Pace::Rate(rate) => format!("rate {rate}"),
                Pace::Max => "max".to_owned(),
            },
            with_writes: choice.with_writes,
            only: choice.only.iter().map(ToString::to_string).collect(),
            strict_order: self.replay.strict_order,
            digest: self.replay.digest,
            redacted: self.is_redacted,
        };
        let seconds = self.last_reply.saturating_duration_since(self.began);
        self.results.finish(Report {
            target,
            settings,
            seconds: seconds.as_secs_f64(),
            not_sent,
            shared_connections: self.slots.shared,
            unexpected_errors: self.unexpected_errors,
            stopped: self.stopped,
            incomplete: error.map(|error| error.to_string()),
            ..captured(header)
        })
    }
}

/// Number of operations that were not sent: `waiting` operations have not ended, and `in_flight` of
/// them were sent.
fn waiting_only(waiting: usize, in_flight: u64) -> u64 {
    u64::try_from(waiting)
        .unwrap_or(u64::MAX)
        .saturating_sub(in_flight)
}

/// Counts an operation that ended in the replay. Returns the error code, the cursor id and the
/// number of documents of its reply.
fn record(results: &mut Results, entry: &Operation, done: &Done) -> ReplayedEnd {
    let Ok(received) = &done.result else {
        match entry.planned.is_await() {
            true => results.fail_await(entry.row),
            false => results.fail(entry.row, done.request_bytes),
        }
        return ReplayedEnd {
            code: None,
            cursor_id: 0,
            documents: 0,
        };
    };
    let facts = received.map(|received| received.facts);
    let ended = Ended {
        tally: facts.as_ref().map(Into::into),
        duration: done.duration,
        request_bytes: done.request_bytes,
        reply_bytes: received.map_or(0, |received| received.bytes),
        digest: received.map_or(0, |received| received.digest),
    };
    match entry.planned.is_await() {
        true => results.end_await(entry.row, &ended),
        false => results.end(entry.row, &ended),
    }
    ReplayedEnd {
        code: Some(facts.as_ref().map_or(0, |facts| error_code(&facts.into()))),
        cursor_id: facts.and_then(|facts| facts.cursor_id).unwrap_or(0),
        documents: facts.map_or(0, |facts| facts.documents()),
    }
}

#[cfg(test)]
mod tests;
