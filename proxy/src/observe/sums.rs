//! Sums for operations: their counts and times, by namespace, by shape and by server. A value has
//! the sums of one thread, or of several threads together.

use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::RandomState;

use seawall_command::CodeCounts;
use seawall_shape::ShapeId;
use seawall_stats::{
    Distribution, Figures, FineDistribution, Measured, OUTCOMES, Outcome, PhaseTimes,
};

use super::{
    applications::ApplicationCounts,
    phases::PhaseSums,
    rows::{merge_rows, row},
};

/// Some shapes have no row of their own in the shape table. A thread counts the total time of each
/// such shape separately, for at most this number of shapes between two collections of the sums.
/// The times of further shapes are not counted separately.
const FOLDED_SHAPES: usize = 1_024;

/// Maximum number of error codes that each metric of a namespace counts separately. Further codes
/// are counted together as [`OTHER_CODES`], so that the number of metric series is bounded.
const ERROR_CODES: usize = 32;

/// Maximum number of error codes counted separately per shape. Further codes are counted together
/// as [`OTHER_CODES`].
const SHAPE_ERROR_CODES: usize = 16;

/// Maximum number of kinds of failures ([`FailureKind`]) counted separately per namespace. Failures
/// of further kinds are counted by their outcome only.
const FAILURES: usize = 16;

/// The error code under which all codes beyond a limit are counted together.
pub(super) const OTHER_CODES: i32 = 0;

/// The index of a row in the namespace table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceIndex(pub(super) usize);

/// The index of a server's row in the statistics of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerIndex(pub(super) usize);

/// The index of a row in the shape table. The serial number of a row is never reused, because
/// running operations and cursors may still refer to a row that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShapeIndex {
    pub(super) namespace: NamespaceIndex,
    pub(super) serial: u32,
    /// The coarse shape of the row. A coarse shape is a group of similar shapes (see
    /// [`super::registry`]). If the row was evicted, the row of the coarse shape counts the
    /// operations.
    pub(super) coarse: ShapeId,
}

/// The rows that count an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowIndexes {
    pub(super) namespace: NamespaceIndex,
    /// The row that counts the operation's shape; `None` if no shape row counts the operation.
    pub(super) shape: Option<ShapeIndex>,
    /// The id of the operation's shape.
    pub(super) id: ShapeId,
    /// The coarse shape (see [`super::registry`]), if the operation's shape has no row of its own;
    /// else `None`.
    pub(super) folded: Option<ShapeId>,
}

/// The total time of a shape without a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folded {
    pub(super) coarse: ShapeId,
    pub(super) time: Duration,
}

/// The result of one operation. It is added to the sums of a thread when the operation ends.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) rows: RowIndexes,
    /// For a `getMore`: the row that counts the operation that opened the cursor. `None` for other
    /// commands, and if Seawall does not know which operation opened the cursor.
    pub(super) origin: Option<ShapeIndex>,
    /// For a `getMore`: the id of the shape of the operation that opened the cursor. The row
    /// `origin` may count other shapes too.
    pub(super) origin_id: Option<ShapeId>,
    /// For a `getMore`, if the shape `origin_id` has no row of its own: the id of this shape, and
    /// the id of its coarse shape (see [`super::registry`]).
    pub(super) origin_folded: Option<(ShapeId, ShapeId)>,
    /// The server to which the operation was sent last. `None` if it was sent to no server. Also
    /// `None` for a `killCursors` whose cursors are on several servers: its time is the sum of the
    /// times at these servers, but an operation counts for at most one server.
    pub(super) server: Option<ServerIndex>,
    pub(super) outcome: Outcome,
    /// The code of the error reply; `None` if there is no error reply, or if it has no code.
    pub(super) code: Option<i32>,
    pub(super) write_errors: u64,
    /// The codes of the write errors in the reply, and the number of errors with each code.
    /// [`CodeCounts`] limits the number of codes.
    pub(super) write_error_codes: CodeCounts,
    /// The code of the write concern error, if there was one.
    pub(super) write_concern_code: Option<i32>,
    pub(super) phases: PhaseTimes,
    pub(super) request_bytes: u64,
    pub(super) reply_bytes: u64,
    pub(super) documents: u64,
    pub(super) statements: u64,
    pub(super) is_streamed: bool,
    /// True if the first byte of the server's reply has arrived.
    pub(super) has_reply: bool,
    /// True if the operation is awaiting: its client asked the server to wait for an event.
    pub(super) is_awaiting: bool,
    /// True if the client had sent the same write, commit or abort before.
    pub(super) is_retry: bool,
    /// How long the operation's cursor had been open when the operation exhausted it; `None` if the
    /// operation did not exhaust a cursor.
    pub(super) cursor_time: Option<Duration>,
}

impl Record {
    /// The kind of the failure, for an operation that failed. The kind has a code only if a server
    /// sent the failure in its reply.
    fn failure(&self) -> FailureKind {
        let code = match self.outcome {
            Outcome::Error => self.code,
            Outcome::WriteError => {
                let mut codes = self.write_error_codes.iter();
                let first = codes.next().map(|(code, _)| code);
                first.or(self.write_concern_code)
            }
            Outcome::Ok
            | Outcome::Refused
            | Outcome::ServerFailed
            | Outcome::ClientGone
            | Outcome::Local => None,
        };
        FailureKind {
            outcome: self.outcome,
            code,
        }
    }
}

/// Sums of one namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceSums {
    /// Number of operations by outcome.
    pub outcomes: [u64; OUTCOMES],
    /// The durations of all operations except awaiting operations.
    pub durations: FineDistribution,
    /// The durations of the awaiting operations. They are not included in `durations`. Otherwise
    /// the time without awaiting operations would be a difference of two sums. Sums of durations
    /// saturate, so this difference could fall.
    pub awaited: FineDistribution,
    /// Total time of all operations in each phase, including awaiting operations.
    pub phases: PhaseTimes,
    /// Total size of the commands in bytes.
    pub request_bytes: u64,
    /// Total size of the replies in bytes.
    pub reply_bytes: u64,
    /// Number of documents that the operations returned, wrote or counted.
    pub documents: u64,
    /// Number of streamed operations: Seawall forwarded the command while it arrived, and timed the
    /// operation from the command's first byte.
    pub streamed: u64,
    /// Number of error replies by code. Errors within a reply with `ok: 1` are not counted here,
    /// but in `write_errors` and `write_concern_codes`.
    pub codes: HashMap<i32, u64>,
    /// Number of writes whose errors were in a reply with `ok: 1`, for example in the reply to a
    /// batch.
    pub write_errors: u64,
    /// `write_errors` by code.
    pub write_error_codes: HashMap<i32, u64>,
    /// Write concern errors by code.
    pub write_concern_codes: HashMap<i32, u64>,
    /// Number of writes, commits and aborts that the client had sent before with the same session
    /// and `txnNumber`.
    pub retries: u64,
    /// The durations of the operations that failed, by the kind of the failure. `durations` and
    /// `awaited` include these operations too.
    pub failures: Vec<(FailureKind, FineDistribution)>,
}

/// A kind of failures: failures with the same outcome and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureKind {
    /// How the operations ended.
    pub outcome: Outcome,
    /// The code of the server's reply; `None` if the failure has no code, or if the code is not
    /// counted separately.
    pub code: Option<i32>,
}

/// Sums of one shape.
#[derive(Clone, Debug, Default)]
pub struct ShapeSums {
    /// The sums of the shape's operations and of the `getMore`s of their cursors.
    pub figures: Figures,
    /// Number of operations and `getMore`s by outcome.
    pub outcomes: [u64; OUTCOMES],
    /// Number of streamed operations: Seawall forwarded the command while it arrived.
    pub streamed: u64,
    /// Number of statements in the shape's writes. Each document to insert, each update and each
    /// delete is a statement.
    pub statements: u64,
    /// Total time of those `getMore`s that wait for an event (that are awaiting).
    pub awaited_time: Duration,
    /// Number of documents that all `getMore`s returned.
    pub more_documents: u64,
    /// How long the shape's cursors had been open when they were exhausted.
    pub cursors: Distribution,
    /// The operations and `getMore`s by application.
    pub applications: ApplicationCounts,
    /// The operations and `getMore`s with an error, by code. An operation with several codes counts
    /// for each of them.
    pub codes: HashMap<i32, u64>,
}

/// Sums of one server.
#[derive(Clone, Debug, Default)]
pub struct ServerSums {
    /// The sums of the operations on the server, except operations that wait for an event (awaiting
    /// operations).
    pub figures: Figures,
    /// The time from the last byte of each command to the first byte of its reply.
    pub durations: FineDistribution,
}

/// The sums of one thread, or of several threads together.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) namespaces: Vec<Option<Box<NamespaceSums>>>,
    pub(super) shapes: HashMap<ShapeIndex, ShapeSums, RandomState>,
    pub(super) servers: Vec<Option<Box<ServerSums>>>,
    pub(super) phases: PhaseSums,
    /// The sums of all operations, except awaiting operations and operations to which Seawall
    /// itself replied.
    pub(super) whole: Figures,
    /// Total time of each shape without a row.
    pub(super) folded: HashMap<ShapeId, Folded>,
    /// The times that operations waited for connections (the times of checkouts), by server.
    pub(super) checkouts: Vec<Option<Box<Distribution>>>,
}

/// The total time of an operation. `measured` contains the same time and its histogram bucket, so
/// that the bucket is computed only once for several distributions.
#[derive(Clone, Copy)]
struct Total {
    time: Duration,
    measured: Measured,
}

impl Sums {
    pub(super) fn add(&mut self, record: &Record, application: Option<&Arc<str>>) {
        let time = record.phases.total();
        let measured = time.into();
        let total = Total { time, measured };
        row(&mut self.namespaces, record.rows.namespace.0).add(record, total);
        if record.outcome == Outcome::Local {
            return;
        }
        if !record.is_awaiting {
            match record.server {
                Some(server) => row(&mut self.servers, server.0).add(record, total),
                None => add_figures(&mut self.whole, record, total),
            }
        }
        let row = record.origin.or(record.rows.shape);
        let Some(row) = row else { return };
        let sums = self.shapes.entry(row).or_default();
        sums.applications.add(application);
        sums.add_codes(record);
        // An awaiting operation counts as a `getMore`, even if its cursor's origin is unknown.
        match record.origin.is_some() || record.is_awaiting {
            true => sums.add_more(record, total),
            false => sums.add(record, total),
        }
        if !record.is_awaiting {
            self.note_folded(record, time);
        }
    }

    fn note_folded(&mut self, record: &Record, total: Duration) {
        let own = record.rows.folded.map(|coarse| (record.rows.id, coarse));
        let folded = match record.origin {
            Some(_) => record.origin_folded,
            None => own,
        };
        let Some((id, coarse)) = folded else { return };
        let is_full = self.folded.len() >= FOLDED_SHAPES;
        if !is_full || self.folded.contains_key(&id) {
            let time = Duration::ZERO;
            self.folded
                .entry(id)
                .or_insert(Folded { coarse, time })
                .time += total;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        merge_rows(&mut self.namespaces, other.namespaces, NamespaceSums::merge);
        merge_rows(&mut self.servers, other.servers, ServerSums::merge);
        for (index, sums) in other.shapes {
            self.shapes.entry(index).or_default().merge(&sums);
        }
        merge_rows(&mut self.checkouts, other.checkouts, Distribution::merge);
        self.phases.merge(other.phases);
        self.whole.merge(&other.whole);
        for (id, Folded { coarse, time }) in other.folded {
            let none = Folded {
                coarse,
                time: Duration::ZERO,
            };
            self.folded.entry(id).or_insert(none).time += time;
        }
    }
}

fn add_figures(figures: &mut Figures, record: &Record, total: Total) {
    figures.count += 1;
    figures.errors += u64::from(record.outcome.is_failure());
    figures.durations.record(total.measured);
    figures.phases.merge(&record.phases);
    figures.request_bytes += record.request_bytes;
    figures.reply_bytes += record.reply_bytes;
    figures.documents += record.documents;
}

impl NamespaceSums {
    fn add(&mut self, record: &Record, total: Total) {
        if let Some(count) = self.outcomes.get_mut(record.outcome.index()) {
            *count += 1;
        }
        let durations = match record.is_awaiting {
            true => &mut self.awaited,
            false => &mut self.durations,
        };
        durations.record(total.measured);
        self.phases.merge(&record.phases);
        self.request_bytes += record.request_bytes;
        self.reply_bytes += record.reply_bytes;
        self.documents += record.documents;
        self.streamed += u64::from(record.is_streamed);
        self.write_errors += record.write_errors;
        self.retries += u64::from(record.is_retry);
        if record.outcome.is_failure() {
            let mut failed = FineDistribution::default();
            failed.record(total.measured);
            self.add_failures(record.failure(), &failed);
        }
        if let Some(code) = record.code {
            add_code(&mut self.codes, code, 1, ERROR_CODES);
        }
        if record.write_errors > 0 {
            self.add_write_errors(record);
        }
        if let Some(code) = record.write_concern_code {
            add_code(&mut self.write_concern_codes, code, 1, ERROR_CODES);
        }
    }

    /// Adds the durations of failed operations of one kind. If [`FAILURES`] kinds are already
    /// counted separately, the operations of a further kind are counted by their outcome only: as a
    /// kind whose code is `None`.
    fn add_failures(&mut self, failure: FailureKind, durations: &FineDistribution) {
        let find = |of: FailureKind| self.failures.iter().position(|(other, _)| *other == of);
        let without_code = FailureKind {
            code: None,
            ..failure
        };
        let is_full = self.failures.len() >= FAILURES;
        let position = find(failure).or_else(|| find(without_code).filter(|_| is_full));
        let mine = position.and_then(|at| self.failures.get_mut(at));
        match mine {
            Some((_, mine)) => mine.merge(durations),
            None => {
                let failure = if is_full { without_code } else { failure };
                self.failures.push((failure, durations.clone()));
            }
        }
    }

    fn add_write_errors(&mut self, record: &Record) {
        let mut left = record.write_errors;
        for (code, count) in record.write_error_codes.iter() {
            let count = count.min(left);
            add_code(&mut self.write_error_codes, code, count, ERROR_CODES);
            left -= count;
        }
        if left > 0 {
            add_code(&mut self.write_error_codes, OTHER_CODES, left, ERROR_CODES);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let pairs = self.outcomes.iter_mut().zip(other.outcomes);
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        self.durations.merge(&other.durations);
        self.awaited.merge(&other.awaited);
        self.phases.merge(&other.phases);
        self.request_bytes += other.request_bytes;
        self.reply_bytes += other.reply_bytes;
        self.documents += other.documents;
        self.streamed += other.streamed;
        self.write_errors += other.write_errors;
        self.retries += other.retries;
        for (failure, durations) in &other.failures {
            self.add_failures(*failure, durations);
        }
        add_codes(&mut self.codes, &other.codes, ERROR_CODES);
        add_codes(
            &mut self.write_error_codes,
            &other.write_error_codes,
            ERROR_CODES,
        );
        add_codes(
            &mut self.write_concern_codes,
            &other.write_concern_codes,
            ERROR_CODES,
        );
    }

    /// The durations of all operations, including awaiting operations.
    pub(crate) fn all_durations(&self) -> FineDistribution {
        let mut durations = self.durations.clone();
        durations.merge(&self.awaited);
        durations
    }

    /// Converts the sums to the figures that the history keeps for a namespace. The durations
    /// include those of awaiting operations. So `durations` and `count` have the same number of
    /// operations, and the phases add up to the total time.
    pub fn figures(&self) -> Figures {
        let failed = Outcome::ALL.iter().zip(self.outcomes);
        let failed = failed.filter(|(outcome, _)| outcome.is_failure());
        Figures {
            count: self.outcomes.iter().sum(),
            errors: failed.map(|(_, count)| count).sum(),
            durations: self.all_durations().coarse(),
            phases: self.phases,
            request_bytes: self.request_bytes,
            reply_bytes: self.reply_bytes,
            documents: self.documents,
            ..Figures::default()
        }
    }
}

/// Adds `count` to the count of `code`. Codes beyond the first `max` codes are counted as
/// `OTHER_CODES`.
fn add_code(codes: &mut HashMap<i32, u64>, code: i32, count: u64, max: usize) {
    // `OTHER_CODES` does not count towards the limit.
    let distinct = codes.len() - usize::from(codes.contains_key(&OTHER_CODES));
    let is_known = codes.contains_key(&code) || distinct < max;
    let code = if is_known { code } else { OTHER_CODES };
    *codes.entry(code).or_default() += count;
}

/// The code under which `code` was counted: `code` itself, or `OTHER_CODES`.
pub(super) fn code_or_other(codes: &HashMap<i32, u64>, code: i32) -> i32 {
    match codes.contains_key(&code) {
        true => code,
        false => OTHER_CODES,
    }
}

fn add_codes(codes: &mut HashMap<i32, u64>, others: &HashMap<i32, u64>, max: usize) {
    for (code, count) in others {
        add_code(codes, *code, *count, max);
    }
}

impl ShapeSums {
    fn add_codes(&mut self, record: &Record) {
        let of_writes = || record.write_error_codes.iter().map(|(code, _)| code);
        let of_reply = record.code.into_iter().chain(record.write_concern_code);
        // The operation counts once for a code, even if its writes failed with this code too.
        let of_reply = of_reply.filter(|code| of_writes().all(|of| of != *code));
        for code in of_reply.chain(of_writes()) {
            add_code(&mut self.codes, code, 1, SHAPE_ERROR_CODES);
        }
    }

    fn add_outcome(&mut self, outcome: Outcome) {
        if let Some(count) = self.outcomes.get_mut(outcome.index()) {
            *count += 1;
        }
    }

    fn add(&mut self, record: &Record, total: Total) {
        self.add_outcome(record.outcome);
        add_figures(&mut self.figures, record, total);
        self.streamed += u64::from(record.is_streamed);
        self.statements += record.statements;
    }

    /// Adds a `getMore` to these sums: the sums of the shape whose operation opened the cursor or,
    /// if that operation is unknown, of the shape of the `getMore` itself. The time of the
    /// `getMore` is not added to the durations of the shape's operations, but to `more_time`. If
    /// the `getMore` is awaiting, its time is added to `awaited_time` instead.
    fn add_more(&mut self, record: &Record, total: Total) {
        self.add_outcome(record.outcome);
        self.figures.more_count += 1;
        self.figures.errors += u64::from(record.outcome.is_failure());
        self.figures.request_bytes += record.request_bytes;
        self.figures.reply_bytes += record.reply_bytes;
        self.figures.documents += record.documents;
        self.more_documents += record.documents;
        match record.is_awaiting {
            true => self.awaited_time += total.time,
            false => self.figures.more_time += total.time,
        }
        if let Some(time) = record.cursor_time {
            self.cursors.record(time);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.figures.merge(&other.figures);
        let pairs = self.outcomes.iter_mut().zip(other.outcomes);
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        self.streamed += other.streamed;
        self.statements += other.statements;
        self.awaited_time += other.awaited_time;
        self.more_documents += other.more_documents;
        self.cursors.merge(&other.cursors);
        self.applications.merge(&other.applications);
        add_codes(&mut self.codes, &other.codes, SHAPE_ERROR_CODES);
    }

    /// The load of the shape on the servers: the total time of its operations and of the `getMore`s
    /// of their cursors. Awaiting operations are not included.
    pub fn load(&self) -> Duration {
        self.figures.load()
    }
}

impl ServerSums {
    fn add(&mut self, record: &Record, total: Total) {
        add_figures(&mut self.figures, record, total);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.figures.merge(&other.figures);
        self.durations.merge(&other.durations);
    }
}
