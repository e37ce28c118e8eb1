//! Compares two reports: the reports on two replays, or the reports on a replay and on its capture.
//!
//! Four kinds of changes are reported per shape: more operations failed, results differ, operations
//! are slower, operations are faster. Durations are compared with the statistical test that finds
//! changes in a running proxy (`seawall_insight`). This test recognizes a change that all shapes
//! have in common.

use std::{
    collections::{BTreeMap, BTreeSet},
    f64::consts::LN_2,
    sync::Arc,
    time::Duration,
};

use seawall_insight::ranks;
use seawall_stats::{Figures, Label, Level, Period, float, float_usize};
use serde::Serialize;

use crate::{Exclusion, Report, ResultKind, ShapeResult};

/// Codes of errors that depend on which operations happen to run at the same time: WriteConflict,
/// LockTimeout, NoSuchTransaction, SnapshotUnavailable.
const CHANCE_CODES: [i32; 4] = [112, 24, 251, 246];

/// A shape with many operations may have more errors than [`CHANCE_COUNT`]: the count is doubled
/// until it is at least this share of the shape's operations in the later report.
const CHANCE_SHARE: f64 = 0.01;

/// For each of the [`CHANCE_CODES`], a shape may have this many more errors in the later report
/// than in the earlier report. Such a difference is not reported.
const CHANCE_COUNT: u64 = 5;

/// The error code Unauthorized: the account of the replay lacks a right.
const UNAUTHORIZED: i32 = 13;

/// Minimum number of operations of a shape in each report. A shape with fewer operations is not
/// checked against the maximum slowdown.
const MIN_OPERATIONS: u64 = 30;

/// Minimum difference between the median durations of a shape in the two reports. If the difference
/// is smaller, the shape never exceeds the maximum slowdown, even if the ratio of the medians is
/// large.
const MIN_DIFFERENCE: Duration = Duration::from_micros(100);

/// Accepted probability that any of the shapes is reported as too slow only by chance.
const ALPHA: f64 = 0.001;

/// The kinds of changes, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// More operations failed.
    Failed,
    /// The results differ.
    Different,
    /// Operations take longer.
    Slower,
    /// Operations take less time.
    Faster,
}

/// The id, the names and the text of a shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Names {
    /// The id of the shape; empty if the change affects all shapes together.
    pub id: String,
    /// The command's name.
    pub command: String,
    /// The database.
    pub db: String,
    /// The collection.
    pub collection: String,
    /// The shape as readable text.
    pub text: String,
}

/// One change of a shape, or of all shapes together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The kind of the change, such as slower or faster.
    pub kind: ChangeKind,
    /// The shape: its id, its names and its text.
    pub shape: Names,
    /// One text for each value that changed, such as `errors: 0 → 3`. The texts contain no values
    /// from commands.
    pub facts: Vec<String>,
    /// The median duration in the later report, divided by the median duration in the earlier
    /// report. If the change affects all shapes together, this is the median of the shapes' ratios.
    /// `None` for `Failed` and `Different`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The sort key within the kind, the largest first: for `Failed`, the number of additional
    /// errors; for `Different`, the total time of the shape in the later report, in milliseconds;
    /// for `Slower` and `Faster`, the difference of the total times, in milliseconds.
    pub cost: f64,
}

/// A shape that exceeds the maximum slowdown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Missed {
    /// The shape: its id, its names and its text.
    pub shape: Names,
    /// The median duration in the later report, divided by the median duration in the earlier
    /// report.
    pub ratio: f64,
}

/// The comparison of two reports.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The version of the JSON format of comparisons.
    pub seawall_replay_comparison: u32,
    /// The changes, sorted by [`Change::kind`] and then by [`Change::cost`]. Within a kind, a
    /// change that affects all shapes together comes last.
    pub changes: Vec<Change>,
    /// Reasons why the comparison may be incomplete or may mislead the reader.
    pub caveats: Vec<String>,
    /// The shapes that exceed the maximum slowdown, if a maximum was set.
    pub missed: Vec<Missed>,
    /// The earlier report.
    pub before: Report,
    /// The later report.
    pub now: Report,
}

impl Comparison {
    /// Compares two reports. `max_slowdown` is the maximum slowdown of a shape's median duration:
    /// 0.2 means that the median may become 20 % longer. If it is `None`, there is no maximum.
    pub fn new(before: Report, now: Report, max_slowdown: Option<f64>) -> Self {
        let pairs = pairs(&before, &now);
        let compares_results = [&before, &now].iter().all(|report| is_whole(report));
        let mut changes: Vec<Change> = pairs
            .iter()
            .flat_map(|pair| pair.changes(&before, &now, compares_results))
            .chain(durations(&before, &now))
            .collect();
        changes.sort_by(|a, b| {
            // Among changes of one kind, the change of all shapes together comes last, because a
            // single changed shape is more likely the cause.
            let is_whole = |change: &Change| change.shape.id.is_empty();
            (a.kind.cmp(&b.kind))
                .then(is_whole(a).cmp(&is_whole(b)))
                .then(b.cost.total_cmp(&a.cost))
                .then_with(|| a.shape.cmp(&b.shape))
        });
        let missed = max_slowdown.map_or_else(Vec::new, |share| missed(&pairs, share));
        Self {
            seawall_replay_comparison: 1,
            caveats: caveats(&before, &now, &pairs),
            changes,
            missed,
            before,
            now,
        }
    }

    /// The results of the shape with this id in the earlier and in the later report; `None` for a
    /// report without this shape.
    pub fn results(&self, id: &str) -> [Option<&ShapeResult>; 2] {
        [&self.before, &self.now].map(|report| report.shapes.iter().find(|shape| shape.id == id))
    }
}

/// The results of one shape in the two reports; `None` for a report without this shape.
struct Pair<'a> {
    before: Option<&'a ShapeResult>,
    now: Option<&'a ShapeResult>,
}

fn pairs<'a>(before: &'a Report, now: &'a Report) -> Vec<Pair<'a>> {
    let mut by_id: BTreeMap<&str, Pair<'a>> = BTreeMap::new();
    let empty = || Pair {
        before: None,
        now: None,
    };
    for shape in &before.shapes {
        by_id.entry(&shape.id).or_insert_with(empty).before = Some(shape);
    }
    for shape in &now.shapes {
        by_id.entry(&shape.id).or_insert_with(empty).now = Some(shape);
    }
    by_id.into_values().collect()
}

/// True if the report has the results of the whole capture.
fn is_whole(report: &Report) -> bool {
    report.stopped.is_none() && report.incomplete.is_none() && report.kind != ResultKind::DryRun
}

fn names(shape: &ShapeResult) -> Names {
    Names {
        id: shape.id.clone(),
        command: shape.command.clone(),
        db: shape.db.clone(),
        collection: shape.collection.clone(),
        text: shape.text.clone(),
    }
}

impl Pair<'_> {
    fn changes(&self, before: &Report, now: &Report, compares_results: bool) -> Vec<Change> {
        let empty = ShapeResult::default();
        let (a, b) = (self.before.unwrap_or(&empty), self.now.unwrap_or(&empty));
        let Some(shape) = self.now.or(self.before) else {
            return Vec::new();
        };
        // New errors cannot be recognized if the earlier report lacks errors, because the earlier
        // replay was stopped, read less of the capture than the later replay, or was a dry run.
        let lacks_errors = before.stopped.is_some()
            || (before.incomplete.is_some() && now.incomplete.is_none())
            || before.kind == ResultKind::DryRun;
        let (facts, cost) = match lacks_errors {
            true => (Vec::new(), 0.0),
            false => failures(a, b, before.kind),
        };
        if cost > 0.0 {
            return vec![Change {
                kind: ChangeKind::Failed,
                shape: names(shape),
                facts,
                ratio: None,
                cost,
            }];
        }
        let facts = match compares_results {
            true => differences(a, b, before, now),
            false => Vec::new(),
        };
        if facts.is_empty() {
            return Vec::new();
        }
        vec![Change {
            kind: ChangeKind::Different,
            shape: names(shape),
            facts,
            ratio: None,
            cost: float(b.latency.sum_us) / 1e3,
        }]
    }
}

/// Describes the errors that became more frequent. Also returns the number of additional errors.
fn failures(a: &ShapeResult, b: &ShapeResult, kind_before: ResultKind) -> (Vec<String>, f64) {
    let (mut facts, mut cost) = (Vec::new(), 0.0);
    let codes: BTreeSet<i32> = b.errors.keys().copied().collect();
    for code in codes {
        let (x, y) = (count(&a.errors, code), count(&b.errors, code));
        if y > x + allowed(code, b.count) {
            let rights = match code {
                UNAUTHORIZED => " (the account of the replay lacks a right)",
                _ => "",
            };
            facts.push(format!("error {code}: {x} → {y}{rights}"));
            cost += float(y - x);
        }
    }
    // A capture may record only the code of the first failed write of each reply. So the sums over
    // all codes are compared, and not the counts of each code.
    let sum = |shape: &ShapeResult| -> u64 {
        let codes = shape.write_errors.iter();
        let counted = codes.filter(|(code, _)| !CHANCE_CODES.contains(code));
        counted.map(|(_, count)| count).sum()
    };
    let (x, y) = (sum(a), sum(b));
    if y > x {
        facts.push(format!("failed writes: {x} → {y}"));
        cost += float(y - x);
    }
    // Operations without a reply in a capture show nothing about the target, so they are not
    // subtracted from those of the replay.
    let x = match kind_before {
        ResultKind::Replay => a.failures,
        ResultKind::Capture | ResultKind::DryRun => 0,
    };
    if b.failures > x {
        facts.push(format!("operations without a reply: {x} → {}", b.failures));
        cost += float(b.failures - x);
    }
    (facts, cost)
}

fn count(codes: &BTreeMap<i32, u64>, code: i32) -> u64 {
    codes.get(&code).copied().unwrap_or(0)
}

/// Number of additional errors with this code that are ignored, for a shape with this number of
/// operations.
fn allowed(code: i32, operations: u64) -> u64 {
    if !CHANCE_CODES.contains(&code) {
        return 0;
    }
    let mut allowed = CHANCE_COUNT;
    while float(allowed) < CHANCE_SHARE * float(operations) {
        allowed *= 2;
    }
    allowed
}

/// Describes the results that differ.
fn differences(a: &ShapeResult, b: &ShapeResult, before: &Report, now: &Report) -> Vec<String> {
    let mut facts = Vec::new();
    let mut compare = |name: &str, x: u64, y: u64| {
        if x != y {
            facts.push(format!("{name}: {x} → {y}"));
        }
    };
    // A capture lacks the results of operations that got no reply. If a shape has such operations,
    // only its number of operations is compared.
    let lost = match before.kind {
        ResultKind::Replay => 0,
        ResultKind::Capture | ResultKind::DryRun => a.failures,
    };
    compare("operations", a.count, b.count);
    let excluded = a.excluded.or(b.excluded);
    if excluded.is_some() || lost > 0 {
        return facts;
    }
    let errors = |shape: &ShapeResult| -> u64 {
        let codes = shape.errors.iter().chain(&shape.write_errors);
        let counted = codes.filter(|(code, _)| !CHANCE_CODES.contains(code));
        counted.map(|(_, count)| count).sum()
    };
    compare("errors", errors(a), errors(b));
    compare("documents", a.documents, b.documents);
    compare("events", a.events, b.events);
    if let (Some(x), Some(y)) = (&a.digest, &b.digest)
        && x != y
        && before.settings.digest
        && now.settings.digest
    {
        facts.push("the returned documents differ".to_owned());
    }
    facts
}

/// The shapes that became slower or faster.
fn durations(before: &Report, now: &Report) -> Vec<Change> {
    let found = seawall_insight::compare(&period(before), &period(now));
    let changes = found.into_iter().filter_map(|change| {
        let kind = match change.kind {
            seawall_insight::ChangeKind::Slower => ChangeKind::Slower,
            seawall_insight::ChangeKind::Faster => ChangeKind::Faster,
            seawall_insight::ChangeKind::New
            | seawall_insight::ChangeKind::Gone
            | seawall_insight::ChangeKind::MoreFrequent
            | seawall_insight::ChangeKind::LessFrequent
            | seawall_insight::ChangeKind::HeavierRequests
            | seawall_insight::ChangeKind::HeavierReplies
            | seawall_insight::ChangeKind::MoreDocuments => return None,
        };
        let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
        let median = |figures: &Figures| milliseconds(figures.durations.quantile(0.5));
        let sum = |figures: &Figures| milliseconds(figures.durations.sum());
        Some(Change {
            kind,
            shape: names_of(&change.label),
            facts: vec![format!(
                "median: {:.3} ms → {:.3} ms",
                median(&change.before),
                median(&change.now)
            )],
            ratio: Some(change.ratio),
            cost: (sum(&change.now) - sum(&change.before)).abs(),
        })
    });
    changes.collect()
}

fn names_of(label: &Label) -> Names {
    match label {
        Label::Shape {
            id,
            command,
            db,
            collection,
            text,
            ..
        } => {
            let [id, command, db, collection, text] =
                [id, command, db, collection, text].map(|name| name.to_string());
            Names {
                id,
                command,
                db,
                collection,
                text,
            }
        }
        _ => Names {
            text: "(all operations)".to_owned(),
            ..Names::default()
        },
    }
}

/// The durations of a report in the form that the comparison in `seawall_insight` needs. Awaiting
/// cursors are excluded, because their operations wait for events.
fn period(report: &Report) -> Period {
    let mut period = Period {
        length: Duration::from_secs_f64(report.seconds.clamp(1.0, 1e9)),
        ..Period::default()
    };
    let mut whole = Figures::default();
    for shape in report.shapes.iter().filter(|shape| !shape.is_awaiting) {
        let label = Label::Shape {
            level: Level::Fine,
            id: shape.id.as_str().into(),
            command: shape.command.as_str().into(),
            db: shape.db.as_str().into(),
            collection: shape.collection.as_str().into(),
            text: shape.text.as_str().into(),
        };
        let figures = Figures {
            count: shape.count,
            durations: shape.latency.distribution(),
            ..Figures::default()
        };
        whole.merge(&figures);
        period.series.insert(Arc::new(label), figures);
    }
    period.series.insert(Arc::new(Label::Whole), whole);
    period
}

/// The shapes whose median duration increased by more than `share` (0.2 is 20 %), if the increase
/// is statistically significant.
fn missed(pairs: &[Pair<'_>], share: f64) -> Vec<Missed> {
    let shapes = float_usize(pairs.len());
    let min_z = (2.0 * (shapes / ALPHA).ln()).sqrt();
    // The accepted slowdown as a number of buckets. Distributions have eight buckets per factor of
    // two.
    let shift = whole((8.0 * (1.0 + share).ln() / LN_2).floor());
    let mut missed: Vec<Missed> = pairs
        .iter()
        .filter_map(|pair| {
            let (a, b) = (pair.before?, pair.now?);
            let (x, y) = (a.latency.distribution(), b.latency.distribution());
            let is_relevant = !b.is_awaiting && x.count().min(y.count()) >= MIN_OPERATIONS;
            let (before, now) = (x.quantile(0.5), y.quantile(0.5));
            let ratio = now.as_secs_f64() / before.as_secs_f64().max(1e-9);
            let is_slower = ratio > 1.0 + share && now.saturating_sub(before) >= MIN_DIFFERENCE;
            let is_significant = || ranks(&x, &y, shift).z >= min_z;
            (is_relevant && is_slower && is_significant()).then(|| Missed {
                shape: names(b),
                ratio,
            })
        })
        .collect();
    missed.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    missed
}

#[expect(
    clippy::as_conversions,
    reason = "the conversion saturates, and the number is at most a few hundred"
)]
fn whole(number: f64) -> i64 {
    number as i64
}

/// The reasons for excluded results that add a caveat to the comparison. The text is the end of the
/// caveat, after the words "their commands".
const EXCLUSIONS: [(Exclusion, &str); 3] = [
    (Exclusion::Volatile, "use the time or random numbers"),
    (
        Exclusion::StringRange,
        "compare strings by order or pattern",
    ),
    (
        Exclusion::EarlierTime,
        "read the data of an earlier time, or resume a change stream",
    ),
];

fn caveats(before: &Report, now: &Report, pairs: &[Pair<'_>]) -> Vec<String> {
    let mut caveats = Vec::new();
    for (name, report) in [("before", before), ("now", now)] {
        if let Some(reason) = &report.stopped {
            caveats.push(format!(
                "{name}: the replay was stopped: {reason}; results are not compared"
            ));
        }
        if let Some(reason) = &report.incomplete {
            caveats.push(format!(
                "{name}: the capture was not read to its end: {reason}; results are not compared"
            ));
        }
        if report.kind == ResultKind::DryRun {
            caveats.push(format!(
                "{name}: nothing was sent; results are not compared"
            ));
        }
        if report.omitted > 0 {
            let omitted = report.omitted;
            caveats.push(format!(
                "{name}: operations that the capture lacks: {omitted}"
            ));
        }
        if report.settings.redacted {
            caveats.push(format!("{name}: the values in the capture are pseudonyms"));
        }
        let is_unordered = report.kind == ResultKind::Replay && report.settings.with_writes;
        if is_unordered && !report.settings.strict_order {
            caveats.push(format!(
                "{name}: writes were replayed without --strict-order, so results may differ by chance"
            ));
        }
    }
    if before.capture != now.capture {
        caveats.push("the two reports are about different captures".to_owned());
    }
    if before.kind == now.kind && before.settings.pace != now.settings.pace {
        let (a, b) = (&before.settings.pace, &now.settings.pace);
        caveats.push(format!("the paces differ: {a} and {b}"));
    }
    if before.kind != now.kind {
        caveats.push(
            "durations were measured in different places: during the capture, and in the replay"
                .to_owned(),
        );
    }
    if before.settings.with_writes != now.settings.with_writes
        || before.settings.only != now.settings.only
    {
        caveats.push(
            "the two reports are about different commands (--with-writes, --only)".to_owned(),
        );
    }
    caveats.extend(missing_digests(pairs));
    for (exclusion, text) in EXCLUSIONS {
        let excluded = pairs.iter().filter(|pair| {
            let sides = [pair.before, pair.now].into_iter().flatten();
            sides
                .into_iter()
                .any(|shape| shape.excluded == Some(exclusion))
        });
        let count = excluded.count();
        if count > 0 {
            caveats.push(format!(
                "results of {count} shapes are not compared: their commands {text}"
            ));
        }
    }
    caveats
}

/// A caveat about the shapes for which only one of the reports has a digest, for example because
/// the capture has no whole replies.
fn missing_digests(pairs: &[Pair<'_>]) -> Option<String> {
    let missing = pairs.iter().filter(|pair| match (pair.before, pair.now) {
        (Some(a), Some(b)) => {
            let is_compared = a.excluded.or(b.excluded).is_none();
            is_compared && a.digest.is_some() != b.digest.is_some()
        }
        _ => false,
    });
    match missing.count() {
        0 => None,
        count => Some(format!(
            "the returned documents of {count} shapes are not compared: one report has no digest"
        )),
    }
}

#[cfg(test)]
mod tests {
    use seawall_stats::Distribution;

    use super::*;
    use crate::ReplaySettings;

    fn latency(count: u64, ms: f64) -> crate::Durations {
        let mut distribution = Distribution::default();
        for number in 0..count {
            let spread = 0.8 + 0.4 * float(number) / float(count);
            distribution.record(Duration::from_secs_f64(ms * spread / 1e3));
        }
        (&distribution).into()
    }

    fn shape(number: u64) -> ShapeResult {
        ShapeResult {
            id: format!("{number:016x}"),
            command: "find".to_owned(),
            db: "d".to_owned(),
            collection: format!("c{number}"),
            text: "{a: ?}".to_owned(),
            count: 200,
            documents: 400,
            digest: Some("00ff".to_owned()),
            latency: latency(200, 1.0 + float(number)),
            ..ShapeResult::default()
        }
    }

    /// A report on six shapes.
    fn report() -> Report {
        Report {
            seawall_replay: 1,
            capture: "ab".to_owned(),
            seconds: 60.0,
            settings: ReplaySettings {
                digest: true,
                strict_order: true,
                ..ReplaySettings::default()
            },
            shapes: (0..6).map(shape).collect(),
            ..Report::default()
        }
    }

    fn changed(change: impl FnOnce(&mut ShapeResult)) -> Report {
        let mut report = report();
        change(&mut report.shapes[2]);
        report
    }

    /// The kinds and collections of the changes.
    fn found(before: Report, now: Report) -> Vec<(ChangeKind, String)> {
        let changes = Comparison::new(before, now, None).changes;
        let named = changes
            .into_iter()
            .map(|change| (change.kind, change.shape.collection));
        named.collect()
    }

    #[test]
    fn equal_reports_have_no_changes_and_no_caveats() {
        let comparison = Comparison::new(report(), report(), Some(0.0));
        assert!(comparison.changes.is_empty());
        assert!(comparison.caveats.is_empty() && comparison.missed.is_empty());
    }

    #[test]
    fn each_kind_of_change_is_reported() {
        use ChangeKind::{Different, Failed, Faster, Slower};
        type Edit = fn(&mut ShapeResult);
        let cases: [(Edit, ChangeKind); 9] = [
            (|shape| shape.errors.extend([(96, 1)]), Failed),
            (|shape| shape.write_errors.extend([(11000, 1)]), Failed),
            (|shape| shape.failures = 1, Failed),
            (|shape| shape.documents -= 1, Different),
            (|shape| shape.count -= 1, Different),
            (|shape| shape.events += 1, Different),
            (|shape| shape.digest = Some("00fe".to_owned()), Different),
            (|shape| shape.latency = latency(200, 15.0), Slower),
            (|shape| shape.latency = latency(200, 0.3), Faster),
        ];
        for (edit, kind) in cases {
            let expected = vec![(kind, "c2".to_owned())];
            assert_eq!(found(report(), changed(edit)), expected);
        }
    }

    #[test]
    fn fewer_errors_are_a_difference_and_not_a_failure() {
        let before = changed(|shape| shape.errors.extend([(96, 5)]));
        let expected = vec![(ChangeKind::Different, "c2".to_owned())];
        assert_eq!(found(before, report()), expected);
    }

    #[test]
    fn a_shape_that_is_missing_in_one_report_is_reported_as_different() {
        let mut less = report();
        less.shapes.remove(3);
        for (before, now) in [(report(), less.clone()), (less, report())] {
            let expected = vec![(ChangeKind::Different, "c3".to_owned())];
            assert_eq!(found(before, now), expected);
        }
    }

    #[test]
    fn a_few_additional_write_conflicts_are_ignored_and_many_are_failures() {
        for (count, expected) in [(5, 0), (100, 1)] {
            let now = changed(|shape| shape.errors.extend([(112, count)]));
            assert_eq!(found(report(), now).len(), expected, "{count}");
        }
    }

    #[test]
    fn additional_unauthorized_errors_are_explained_as_missing_rights() {
        let now = changed(|shape| shape.errors.extend([(UNAUTHORIZED, 3)]));
        let changes = Comparison::new(report(), now, None).changes;
        assert!(
            changes[0].facts[0].ends_with("lacks a right)"),
            "{changes:?}"
        );
    }

    /// The cost of a failure is the number of additional errors. The cost of a slower shape is the
    /// additional time.
    #[test]
    fn changes_are_sorted_by_kind_and_then_by_cost() {
        let mut now = report();
        now.shapes[0].errors.insert(96, 1);
        now.shapes[1].errors.insert(96, 9);
        now.shapes[2].documents = 0;
        now.shapes[3].latency = latency(200, 40.0);
        let changes = found(report(), now);
        let order: Vec<_> = changes.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(order, ["c1", "c0", "c2", "c3"]);
    }

    #[test]
    fn excluded_results_are_not_compared_and_lead_to_a_caveat() {
        let now = changed(|shape| {
            shape.excluded = Some(Exclusion::Volatile);
            shape.documents = 7;
            shape.digest = None;
        });
        let comparison = Comparison::new(report(), now, None);
        assert!(comparison.changes.is_empty());
        let expected =
            "results of 1 shapes are not compared: their commands use the time or random numbers";
        assert_eq!(comparison.caveats, [expected]);
    }

    #[test]
    fn a_digest_that_only_one_report_has_is_a_caveat() {
        let comparison = Comparison::new(report(), changed(|shape| shape.digest = None), None);
        assert!(comparison.changes.is_empty());
        let expected =
            "the returned documents of 1 shapes are not compared: one report has no digest";
        assert_eq!(comparison.caveats, [expected]);
    }

    #[test]
    fn results_of_a_replay_that_was_stopped_are_not_compared() {
        let mut now = changed(|shape| shape.count = 5);
        now.stopped = Some("interrupted".to_owned());
        let comparison = Comparison::new(report(), now, None);
        assert!(comparison.changes.is_empty());
        assert!(comparison.caveats[0].starts_with("now: the replay was stopped: interrupted"));
    }

    #[test]
    fn errors_are_not_compared_if_the_earlier_replay_sent_only_a_part_of_the_capture() {
        let stopped = Report {
            stopped: Some("interrupted".to_owned()),
            ..report()
        };
        let cut_off = Report {
            incomplete: Some("cut off".to_owned()),
            ..report()
        };
        for before in [stopped, cut_off] {
            let now = changed(|shape| shape.errors.extend([(96, 3)]));
            assert!(found(before, now).is_empty());
        }
    }

    #[test]
    fn results_are_not_compared_with_a_dry_run() {
        let mut before = changed(|shape| shape.documents = 0);
        before.kind = ResultKind::DryRun;
        let now = changed(|shape| shape.errors.extend([(96, 3)]));
        let comparison = Comparison::new(before, now, None);
        assert!(comparison.changes.is_empty());
        assert!(comparison.caveats[0].starts_with("before: nothing was sent"));
    }

    #[test]
    fn shapes_that_exceed_the_maximum_slowdown_are_reported() {
        let slower = |factor| changed(|shape| shape.latency = latency(200, 3.0 * factor));
        let missed = |factor, share| {
            let missed = Comparison::new(report(), slower(factor), Some(share)).missed;
            let named = missed.into_iter().map(|missed| missed.shape.collection);
            named.collect::<Vec<_>>()
        };
        assert!(missed(1.1, 0.2).is_empty());
        assert_eq!(missed(1.6, 0.2), ["c2"]);
        assert!(missed(1.6, 0.9).is_empty());
        assert_eq!(missed(3.0, 0.9), ["c2"]);
    }

    /// Awaiting cursors are change streams and tailable cursors: they wait for events.
    #[test]
    fn awaiting_cursors_are_compared_by_event_count_and_not_by_duration() {
        let watch = |events, ms| {
            changed(|shape| {
                shape.is_awaiting = true;
                shape.events = events;
                shape.latency = latency(200, ms);
            })
        };
        assert!(found(watch(5, 1.0), watch(5, 900.0)).is_empty());
        assert_eq!(found(watch(5, 1.0), watch(6, 1.0)).len(), 1);
    }

    #[test]
    fn results_of_a_shape_are_not_compared_if_the_capture_lacks_replies_to_some_operations() {
        let mut before = changed(|shape| {
            shape.failures = 3;
            shape.documents -= 6;
            shape.digest = None;
        });
        before.kind = ResultKind::Capture;
        assert!(found(before, report()).is_empty());
    }
}
