//! The results of a replay per shape, and the report made from them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use foldhash::fast::RandomState;
use seawall_capture::record::Facts;
use seawall_command::{CommandBytes, ReplyFacts};
use seawall_shape::{Description, ShapeId, describe};
use seawall_stats::Distribution;
use seawall_wire::Sequence;
use serde::{Deserialize, Serialize};

use crate::{Planned, digest::Exclusion, plan::op_msg, timing::Timing};

/// Maximum number of shapes with results of their own (a [`Row`]). All other shapes share one row.
const MAX_SHAPES: usize = 5_000;

/// Maximum number of error codes per shape. Errors with further codes are counted under the code 0.
const MAX_CODES: usize = 64;

/// The version of the JSON format of reports.
const VERSION: u32 = 1;

/// The report on a replay, or on the operations of a capture. It is the input of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the JSON format of reports.
    pub seawall_replay: u32,
    /// The origin of the results.
    pub kind: ResultKind,
    /// The id of the capture; in hexadecimal if the id is not text.
    pub capture: String,
    /// The time at which the capture began, in seconds since 1970.
    pub captured_at_s: u64,
    /// The target's address and server version, as one text; empty without a replay.
    pub target: String,
    /// The settings of the replay; without a replay, the settings of this report.
    pub settings: ReplaySettings,
    /// The time from the due time of the first record to the last reply, in seconds. Without a
    /// replay, the time from the first captured command to the last captured command or reply.
    pub seconds: f64,
    /// Number of commands sent; without a replay, the number that a replay would send.
    pub sent: u64,
    /// Number of commands that still waited to be sent when the replay was stopped.
    pub not_sent: u64,
    /// Number of commands skipped, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Number of operations that are missing in the capture.
    pub omitted: u64,
    /// Number of captured clients whose commands were sent on a connection that other clients
    /// already used. With more than a million clients at a time, a client may be counted several
    /// times.
    pub shared_connections: u64,
    /// Number of operations that got no reply, or that got an error code that they had not got in
    /// the capture.
    pub unexpected_errors: u64,
    /// The lag of each command: the time from its due time until it was sent. Empty if the pace is
    /// `max`.
    pub lag: Durations,
    /// For each two consecutive commands on a connection: the difference between the time from one
    /// send to the next, and the time from one due time to the next.
    #[serde(default)]
    pub interval_error: Durations,
    /// The reason why the replay was stopped before its end; `None` if it reached its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// The reason why the capture could not be read to its end; `None` if it was read to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// The results per shape. The shape whose operations have the largest total duration is the
    /// first.
    pub shapes: Vec<ShapeResult>,
}

/// The origin of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultKind {
    /// A replay against a target.
    #[default]
    Replay,
    /// The replies that a capture contains. They are summarized like the replies of a replay.
    Capture,
    /// A dry run: nothing was sent.
    DryRun,
}

/// The settings of a replay, or of a report on a capture without a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplaySettings {
    /// The pace, such as `speed 1`.
    pub pace: String,
    /// True if writes were chosen too (`--with-writes`), and not only reads.
    pub with_writes: bool,
    /// The ids of the chosen shapes; empty if all shapes were chosen.
    pub only: Vec<String>,
    /// True if each command waited for all operations that had ended before it in the capture.
    pub strict_order: bool,
    /// True if the results have digests of the returned documents.
    pub digest: bool,
    /// True if the values in the capture are pseudonyms.
    pub redacted: bool,
}

/// The results of one shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShapeResult {
    /// The id of the shape. If there are too many shapes, the results of all further shapes are
    /// added up under the id `other`.
    pub id: String,
    /// The command's name.
    pub command: String,
    /// The database.
    pub db: String,
    /// The collection.
    pub collection: String,
    /// The shape as readable text.
    pub text: String,
    /// Number of operations that were sent; without a replay, the number that a replay would send.
    /// A `getMore` on an awaiting cursor does not count.
    pub count: u64,
    /// Number of replies that were errors, by code.
    pub errors: BTreeMap<i32, u64>,
    /// Number of failed writes and of write concern errors, by code. Replies with such errors
    /// usually have `ok: 1`.
    pub write_errors: BTreeMap<i32, u64>,
    /// Number of operations without a reply from a server. In a replay, the connection failed, the
    /// time limit was reached, or the reply was invalid. In a capture, also: Seawall refused the
    /// operation, the client disconnected, or the capture ended first.
    pub failures: u64,
    /// Number of documents that the operations returned, wrote or counted.
    pub documents: u64,
    /// Number of documents that `getMore`s on awaiting cursors returned: events of change streams,
    /// and documents of tailable cursors.
    pub events: u64,
    /// True if the operations open awaiting cursors: change streams or tailable cursors.
    pub is_awaiting: bool,
    /// Total size of the commands, in bytes.
    pub request_bytes: u64,
    /// Total size of the replies, in bytes.
    pub reply_bytes: u64,
    /// The digest of the returned documents, in hexadecimal. `None` if no digest was requested, if
    /// the results are not compared, if the documents are events, or if a reply had no digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The reason why results of this shape are not compared; `None` if they are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<Exclusion>,
    /// The durations of the operations.
    pub latency: Durations,
}

/// A distribution of durations in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Durations {
    /// Indexes and counts of the buckets that are not empty: bucket i ends at 2^((i - 167) / 8)
    /// seconds.
    pub buckets: Vec<(usize, u64)>,
    /// The sum of the durations, in microseconds.
    pub sum_us: u64,
    /// The longest duration in microseconds.
    pub max_us: u64,
    /// The median in milliseconds, for people who read the JSON. Seawall does not use it.
    pub p50_ms: f64,
    /// The 99th percentile in milliseconds, for people who read the JSON. Seawall does not use it.
    pub p99_ms: f64,
}

impl From<&Distribution> for Durations {
    fn from(distribution: &Distribution) -> Self {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let milliseconds = |q| distribution.quantile(q).as_secs_f64() * 1e3;
        Self {
            buckets: distribution.buckets().collect(),
            sum_us: micros(distribution.sum()),
            max_us: micros(distribution.max()),
            p50_ms: milliseconds(0.5),
            p99_ms: milliseconds(0.99),
        }
    }
}

impl Durations {
    /// Converts the durations from the JSON form to a distribution.
    pub fn distribution(&self) -> Distribution {
        Distribution::from_parts(
            self.buckets.iter().copied(),
            Duration::from_micros(self.sum_us),
            Duration::from_micros(self.max_us),
        )
    }
}

/// The reason why a document cannot be read as a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The document is not a [`Report`].
    #[error("not a report on a replay: {0}")]
    NotAReport(#[from] serde_json::Error),
    /// Another version of Seawall wrote the report.
    #[error("version {0} of the report is not known; this program reads version {VERSION}")]
    UnknownVersion(u32),
}

impl Report {
    /// Parses a report in JSON.
    ///
    /// # Errors
    /// If the JSON is not a report of a known version.
    pub fn read(json: &[u8]) -> Result<Self, ReportError> {
        #[derive(Deserialize)]
        struct Version {
            seawall_replay: u32,
        }
        let Version { seawall_replay } = serde_json::from_slice(json)?;
        match seawall_replay {
            VERSION => Ok(serde_json::from_slice(json)?),
            other => Err(ReportError::UnknownVersion(other)),
        }
    }

    /// True if a JSON document has the field `seawall_replay`, which contains the version of a
    /// [`Report`]. The version may be one that this program cannot read.
    pub fn is_declared_by(json: &serde_json::Value) -> bool {
        json.get("seawall_replay").is_some()
    }
}

impl ShapeResult {
    /// Number of errors: replies that were errors, failed writes, write concern errors, and
    /// operations without a reply.
    pub fn error_count(&self) -> u64 {
        let codes = self.errors.values().chain(self.write_errors.values());
        codes.sum::<u64>() + self.failures
    }
}

/// Identifies a [`Row`]: the results of one shape. If there are too many shapes, all further shapes
/// share one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowId(usize);

/// The values of a reply that are added to the results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub is_ok: bool,
    /// The error code of a reply with `ok: 0`; 0 if the reply has no error code.
    pub code: i32,
    pub documents: u64,
    /// The codes of failed writes and of the write concern error, each with its number of errors.
    /// Errors whose code is not known have the code 0.
    pub write_errors: Vec<(i32, u64)>,
}

impl From<&ReplyFacts> for Tally {
    fn from(facts: &ReplyFacts) -> Self {
        let mut write_errors: Vec<_> = facts.write_error_codes.iter().collect();
        // The facts can have more errors than codes: for example, a `bulkWrite` also counts errors
        // that are only in a later batch of its cursor.
        let with_code: u64 = write_errors.iter().map(|(_, count)| count).sum();
        if let Some(without_code @ 1..) = facts.write_errors.checked_sub(with_code) {
            write_errors.push((0, without_code));
        }
        if facts.write_concern_error {
            write_errors.push((facts.write_concern_code.unwrap_or(0), 1));
        }
        Self {
            is_ok: facts.ok == Some(true),
            code: facts.code.unwrap_or(0),
            documents: facts.documents(),
            write_errors,
        }
    }
}

impl From<&Facts> for Tally {
    fn from(facts: &Facts) -> Self {
        let mut write_errors = Vec::new();
        if facts.write_errors > 0 {
            write_errors.push((facts.write_error_code, facts.write_errors));
        }
        if facts.write_concern_code != 0 {
            write_errors.push((facts.write_concern_code, 1));
        }
        Self {
            is_ok: facts.ok,
            code: facts.code,
            documents: facts.documents,
            write_errors,
        }
    }
}

/// One operation that ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// The values of the reply; `None` if the command wanted no reply.
    pub tally: Option<Tally>,
    /// The time from sending the command to the end of its reply.
    pub duration: Duration,
    pub request_bytes: usize,
    pub reply_bytes: usize,
    /// The digest of the reply's documents; 0 if no digest was requested.
    pub digest: u64,
}

#[derive(Clone, Debug, Default)]
struct Row {
    result: ShapeResult,
    durations: Distribution,
    digest: u64,
    /// True if some replies had no digest.
    lacks_digest: bool,
}

/// Collects the results of a replay, in one row for each shape.
#[derive(Debug, Default)]
pub(crate) struct Results {
    rows: Vec<Row>,
    by_shape: HashMap<ShapeId, RowId, RandomState>,
    pub skipped: BTreeMap<String, u64>,
    pub timing: Timing,
    pub sent: u64,
    pub omitted: u64,
}

impl Results {
    /// The row of results in which an operation is counted: the row of its shape or, for a
    /// `getMore` on an awaiting cursor, the row of the operation that opened the cursor.
    /// `description` is set only for the first operation of a shape; see [`Descriptions`].
    pub(crate) fn row(
        &mut self,
        planned: &Planned,
        description: Option<Box<ShapeResult>>,
    ) -> RowId {
        if let Some(description) = description
            && self.rows.len() < MAX_SHAPES
        {
            self.by_shape.insert(planned.shape, RowId(self.rows.len()));
            self.rows.push(Row {
                // Events have no digest, because they contain resume tokens, which differ between
                // deployments.
                lacks_digest: description.is_awaiting,
                result: *description,
                ..Row::default()
            });
        }
        let row = match planned.is_await() {
            true => self.row_of(planned.origin.shape),
            false => self.row_of(planned.shape),
        };
        if let Some(exclusion) = planned.origin.exclusion {
            self.exclude(row, exclusion);
        }
        row
    }

    /// The row with the results of a shape. If the shape has no row of its own, it is the row that
    /// all further shapes share.
    pub(crate) fn row_of(&self, shape: ShapeId) -> RowId {
        self.by_shape
            .get(&shape)
            .copied()
            .unwrap_or(RowId(MAX_SHAPES))
    }

    fn at(&mut self, row: RowId) -> Option<&mut Row> {
        if row.0 == MAX_SHAPES && self.rows.len() == MAX_SHAPES {
            let result = ShapeResult {
                id: "other".to_owned(),
                text: "(other shapes)".to_owned(),
                excluded: Some(Exclusion::NoDocuments),
                ..ShapeResult::default()
            };
            self.rows.push(Row {
                result,
                ..Row::default()
            });
        }
        self.rows.get_mut(row.0)
    }

    /// Excludes the results of a row from comparisons.
    fn exclude(&mut self, row: RowId, exclusion: Exclusion) {
        if let Some(row) = self.at(row) {
            row.result.excluded.get_or_insert(exclusion);
        }
    }

    /// Notes that a reply that belongs to `row` had no digest. So the results in this row get no
    /// digest.
    pub(crate) fn note_missing_digest(&mut self, row: RowId) {
        if let Some(row) = self.at(row) {
            row.lacks_digest = true;
        }
    }

    /// Counts a command that is skipped for this reason.
    pub(crate) fn skip(&mut self, reason: &'static str) {
        match self.skipped.get_mut(reason) {
            Some(count) => *count += 1,
            None => drop(self.skipped.insert(reason.to_owned(), 1)),
        }
    }

    /// In a dry run, counts a command that would be sent.
    pub(crate) fn count(&mut self, row: RowId, request_bytes: usize) {
        if let Some(row) = self.at(row) {
            row.result.count += 1;
            row.result.request_bytes += wide(request_bytes);
        }
    }

    /// Counts an operation that ended with a reply, or that needed no reply.
    pub(crate) fn end(&mut self, row: RowId, ended: &Ended) {
        let Some(row) = self.at(row) else {
            return;
        };
        let result = &mut row.result;
        result.count += 1;
        result.request_bytes += wide(ended.request_bytes);
        result.reply_bytes += wide(ended.reply_bytes);
        row.digest = row.digest.wrapping_add(ended.digest);
        row.durations.record(ended.duration);
        let Some(tally) = &ended.tally else {
            return;
        };
        result.documents += tally.documents;
        if !tally.is_ok {
            count_code(&mut result.errors, tally.code, 1);
        }
        for (code, count) in &tally.write_errors {
            count_code(&mut result.write_errors, *code, *count);
        }
    }

    /// If the cursor of a `getMore` is awaiting (a change stream or a tailable cursor), adds the
    /// reply to a row: the row of the operation that opened the cursor. The `getMore` itself is not
    /// counted as an operation, and its duration is not added: the number of `getMore`s and their
    /// durations depend on when the events happen.
    pub(crate) fn end_await(&mut self, row: RowId, ended: &Ended) {
        let Some(row) = self.at(row) else {
            return;
        };
        row.result.reply_bytes += wide(ended.reply_bytes);
        row.digest = row.digest.wrapping_add(ended.digest);
        let Some(tally) = &ended.tally else {
            return;
        };
        row.result.events += tally.documents;
        if !tally.is_ok {
            count_code(&mut row.result.errors, tally.code, 1);
        }
    }

    /// Counts events that the replay fetched with additional `getMore`s. The capture does not
    /// contain these `getMore`s.
    pub(crate) fn add_events(&mut self, row: RowId, events: u64) {
        if let Some(row) = self.at(row) {
            row.result.events += events;
        }
    }

    /// Counts an operation without a reply: its connection failed, or its time limit was reached.
    pub(crate) fn fail(&mut self, row: RowId, request_bytes: usize) {
        if let Some(row) = self.at(row) {
            row.result.count += 1;
            row.result.failures += 1;
            row.result.request_bytes += wide(request_bytes);
        }
    }

    /// Counts a failed `getMore` on an awaiting cursor, in the row of the operation that opened the
    /// cursor. The `getMore` does not count as an operation: see [`Self::end_await`].
    pub(crate) fn fail_await(&mut self, row: RowId) {
        if let Some(row) = self.at(row) {
            row.result.failures += 1;
        }
    }

    /// Adds the results to `report`. The caller has already set the other fields of `report`: for
    /// example, the settings of the replay and the id of the capture.
    pub(crate) fn finish(self, report: Report) -> Report {
        let has_digest = report.settings.digest;
        let shapes = self.rows.into_iter().map(|row| ShapeResult {
            digest: (has_digest && !row.lacks_digest && row.result.excluded.is_none())
                .then(|| format!("{:016x}", row.digest)),
            latency: (&row.durations).into(),
            ..row.result
        });
        let mut shapes: Vec<_> = shapes
            .filter(|shape| shape.count > 0 || shape.events > 0)
            .collect();
        shapes.sort_by(|a, b| {
            let key = |shape: &ShapeResult| (shape.latency.sum_us, shape.count);
            key(b).cmp(&key(a)).then_with(|| a.id.cmp(&b.id))
        });
        Report {
            seawall_replay: VERSION,
            sent: self.sent,
            skipped: self.skipped,
            omitted: self.omitted,
            lag: (&self.timing.lag).into(),
            interval_error: (&self.timing.interval_error).into(),
            shapes,
            ..report
        }
    }
}

/// The shapes that already have a description. A shape is described once, from the message of its
/// first operation.
#[derive(Debug, Default)]
pub(crate) struct Descriptions(HashSet<ShapeId, RandomState>);

impl Descriptions {
    /// The description of the shape of an operation. `None` if the operation is a `getMore` on an
    /// awaiting cursor, if the shape is not new, or if [`MAX_SHAPES`] shapes have a description.
    pub(crate) fn of_new(&mut self, planned: &Planned, message: &[u8]) -> Option<Box<ShapeResult>> {
        if planned.is_await() || self.0.contains(&planned.shape) || self.0.len() >= MAX_SHAPES {
            return None;
        }
        self.0.insert(planned.shape);
        let is_awaiting = planned.origin.is_awaiting;
        Some(Box::new(described(planned.shape, message, is_awaiting)))
    }
}

fn described(shape: ShapeId, message: &[u8], is_awaiting: bool) -> ShapeResult {
    let parsed = op_msg(message);
    let sequences: Vec<Sequence<'_>> = parsed
        .iter()
        .flat_map(|parsed| parsed.sequences())
        .collect();
    let Description {
        op,
        db,
        collection,
        shape: text,
        ..
    } = describe(&CommandBytes {
        body: parsed.as_ref().map_or(&[], |parsed| parsed.body),
        sequences: &sequences,
    });
    ShapeResult {
        id: shape.to_string(),
        command: op.to_owned(),
        db,
        collection,
        text,
        is_awaiting,
        ..ShapeResult::default()
    }
}

fn count_code(codes: &mut BTreeMap<i32, u64>, code: i32, count: u64) {
    let code = match codes.len() >= MAX_CODES && !codes.contains_key(&code) {
        true => 0,
        false => code,
    };
    *codes.entry(code).or_default() += count;
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use seawall_command::ReplyForm;
    use seawall_wire::encode_request;

    use super::*;
    use crate::{Choice, Decision, Planner};

    /// The row of `results` in which this command is counted. `descriptions` has the shapes that
    /// are already in `results`.
    fn row_of(
        (results, descriptions): (&mut Results, &mut Descriptions),
        command: &Document,
    ) -> RowId {
        let message = encode_request(1, &command.to_vec().unwrap());
        let planned = match Planner::new(Choice::default(), false).decide(&message) {
            Decision::Send(planned) => planned,
            Decision::Skip(reason) => panic!("{reason:?}"),
        };
        let description = descriptions.of_new(&planned, &message);
        results.row(&planned, description)
    }

    /// The row of `results` in which this command is counted. `results` has no other shape.
    fn only_row(results: &mut Results, command: &Document) -> RowId {
        row_of((results, &mut Descriptions::default()), command)
    }

    fn ended(reply: &Document) -> Ended {
        let reply = reply.to_vec().unwrap();
        Ended {
            tally: Some((&ReplyFacts::of(ReplyForm::Plain, &reply)).into()),
            duration: Duration::from_millis(2),
            request_bytes: 100,
            reply_bytes: reply.len(),
            digest: 5,
        }
    }

    /// Also checks that the report does not change if it is written as JSON and read again.
    #[test]
    fn a_report_contains_the_counts_the_errors_and_the_digest_of_each_shape() {
        let mut results = Results::default();
        let find = doc! {"find": "c", "filter": {"a": 1}, "$db": "d"};
        let row = only_row(&mut results, &find);
        let batch = doc! {"cursor": {"firstBatch": [{}, {}], "id": 0_i64}, "ok": 1.0};
        results.end(row, &ended(&batch));
        results.end(row, &ended(&doc! {"ok": 0.0, "code": 96}));
        results.end(
            row,
            &ended(&doc! {"ok": 1.0, "n": 3, "writeErrors": [{"code": 11000}]}),
        );
        results.fail(row, 100);
        results.skip("write");
        results.skip("write");
        let report = results.finish(Report {
            settings: ReplaySettings {
                digest: true,
                ..ReplaySettings::default()
            },
            ..Report::default()
        });
        let [shape] = &report.shapes[..] else {
            panic!("{report:?}")
        };
        assert_eq!(
            (&*shape.command, &*shape.db, &*shape.collection),
            ("find", "d", "c")
        );
        assert_eq!((shape.count, shape.documents, shape.failures), (4, 5, 1));
        assert_eq!(shape.errors, BTreeMap::from([(96, 1)]));
        assert_eq!(shape.write_errors, BTreeMap::from([(11000, 1)]));
        assert_eq!(shape.error_count(), 3);
        assert_eq!(shape.digest.as_deref(), Some("000000000000000f"));
        assert_eq!(report.skipped["write"], 2);
        let json = serde_json::to_vec(&report).unwrap();
        let again = Report::read(&json).unwrap();
        assert_eq!(again, report);
        let durations = again.shapes[0].latency.distribution();
        assert_eq!(durations.count(), 3);
        assert_eq!(durations.sum(), Duration::from_millis(6));
    }

    #[test]
    fn events_of_a_change_stream_are_counted_in_the_results_of_the_command_that_opened_it() {
        let mut results = Results::default();
        let command = doc! {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "$db": "d"};
        let row = only_row(&mut results, &command);
        results.end(
            row,
            &ended(&doc! {"cursor": {"firstBatch": [], "id": 5_i64}, "ok": 1.0}),
        );
        let events = doc! {"cursor": {"nextBatch": [{}, {}], "id": 5_i64}, "ok": 1.0};
        results.end_await(row, &ended(&events));
        results.end_await(row, &ended(&events));
        let report = results.finish(Report::default());
        let shape = &report.shapes[0];
        assert_eq!((shape.count, shape.documents, shape.events), (1, 0, 4));
        assert!(shape.is_awaiting && shape.digest.is_none());
    }

    #[test]
    fn number_of_failed_writes_is_the_same_in_a_reply_and_in_its_captured_facts() {
        let batch = vec![
            doc! {"ok": 0.0, "code": 11000},
            doc! {"ok": 0.0, "code": 121},
        ];
        let cursor = doc! {"id": 5_i64, "firstBatch": batch, "ns": "admin.$cmd.bulkWrite"};
        let reply = doc! {"cursor": cursor, "nErrors": 5, "ok": 1.0};
        let facts = ReplyFacts::of(ReplyForm::BulkWrite, &reply.to_vec().unwrap());
        let replied = Tally::from(&facts).write_errors;
        assert_eq!(replied, [(11000, 1), (121, 1), (0, 3)]);
        let captured = Tally::from(&Facts::from(&facts)).write_errors;
        assert_eq!(captured, [(11000, 5)]);
    }

    #[test]
    fn the_numbers_of_shapes_and_error_codes_are_limited() {
        let (mut results, mut descriptions) = (Results::default(), Descriptions::default());
        for number in 0..MAX_SHAPES + 10 {
            // A name of digits counts as data and becomes `*` in a shape. So this name has letters
            // in place of the digits.
            let digits = number.to_string().into_bytes().into_iter();
            let field: String = digits.map(|digit| char::from(digit + 49)).collect();

            let find = doc! {"find": "c", "filter": {field: 1}, "$db": "d"};
            let row = row_of((&mut results, &mut descriptions), &find);
            results.end(row, &ended(&doc! {"ok": 1.0}));
        }
        let find = doc! {"find": "c", "$db": "d"};
        let row = row_of((&mut results, &mut descriptions), &find);
        for code in 0..100 {
            results.end(row, &ended(&doc! {"ok": 0.0, "code": code}));
        }
        let report = results.finish(Report::default());
        assert_eq!(report.shapes.len(), MAX_SHAPES + 1);
        let other = report
            .shapes
            .iter()
            .find(|shape| shape.id == "other")
            .unwrap();
        assert_eq!(other.count, 110);
        assert_eq!(other.errors.len(), MAX_CODES);
        assert_eq!(other.error_count(), 100);
    }

    #[test]
    fn a_document_that_is_not_a_report_of_a_known_version_is_refused() {
        let error = Report::read(br#"{"seawall_replay": 2}"#).unwrap_err();
        assert!(matches!(error, ReportError::UnknownVersion(2)));
        assert!(Report::read(br#"{"seawall_report": 1}"#).is_err());
        assert!(Report::read(b"nothing").is_err());
    }
}
