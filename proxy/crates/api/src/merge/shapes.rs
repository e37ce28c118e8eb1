//! Merges shapes, namespaces, servers and timelines.

use std::cmp::Reverse;

use super::{
    Durations, Merge, add, add_counts, add_known, add_more, add_phases, combine, durations,
    merge_by, merge_known, merge_with, step_length, within_step,
};
use crate::{
    Bucket, CodeCount, Cursors, Moment, Named, Namespace, Namespaces, Other, Report, Server, Shape,
    Shapes, SinceStart, Sort, Timeline, TimelineStep,
};

/// True if there is a distribution, or if no duration was recorded.
fn is_complete(count: u64, distribution: Option<&Vec<Bucket>>) -> bool {
    count == 0 || distribution.is_some()
}

/// Merges the members that `Shape`, `Server` and the other types with figures of operations have in
/// common.
macro_rules! merge_figures {
    ($this:ident, $other:ident) => {
        durations!($this).merge(durations!($other));
        add!($this, $other: count, documents, errors, reply_bytes, request_bytes, total_time_ms);
        add_phases(&mut $this.phases_ms, &$other.phases_ms);
    };
}

/// Like `merge_figures`, for types that also have the figures of the `getMore`s on the operations'
/// cursors.
macro_rules! merge_load {
    ($this:ident, $other:ident) => {
        merge_figures!($this, $other);
        add!($this, $other: load_ms);
        add_more(&mut $this.more, $other.more);
    };
}

impl Merge for Shapes {
    fn is_mergeable(&self) -> bool {
        self.other.is_mergeable() && self.shapes.iter().all(Merge::is_mergeable)
    }

    fn merge(&mut self, other: Self) {
        self.other.merge(other.other);
        merge_shapes(&mut self.shapes, other.shapes);
        combine(&mut self.since_seconds, other.since_seconds, f64::max);
    }
}

impl Shape {
    /// Removes the distributions of the steps, of the cursors and of the figures since the start of
    /// Seawall. A reply about one shape contains them only if the request has `distributions=true`.
    pub fn drop_inner_distributions(&mut self) {
        for step in self.timeline.iter_mut().flatten() {
            step.distribution = None;
        }
        if let Some(cursors) = &mut self.cursors {
            cursors.distribution = None;
        }
        if let Some(since_start) = &mut self.since_start {
            since_start.distribution = None;
            since_start.cursors.distribution = None;
        }
    }
}

impl Shapes {
    /// Sorts the shapes by `sort` in descending order, and keeps the first `limit` shapes. The
    /// figures of the other shapes are added to `other`.
    pub fn keep(&mut self, sort: Sort, limit: usize) {
        let shapes = &mut self.shapes;
        shapes.sort_by(|a, b| sort.figure(b).total_cmp(&sort.figure(a)));
        let unlisted = self.shapes.split_off(limit.min(self.shapes.len()));
        let other = &mut self.other;
        for mut shape in unlisted {
            merge_load!(other, shape);
        }
    }

    /// Removes the distributions, which only a merge needs.
    pub fn drop_distributions(&mut self) {
        self.other.distribution = None;
        for shape in &mut self.shapes {
            shape.distribution = None;
            if let Some(cursors) = &mut shape.cursors {
                cursors.distribution = None;
            }
        }
    }
}

impl Report {
    /// Keeps the `limit` shapes with the greatest server load. The figures of the other shapes are
    /// added to `other`.
    pub fn keep(&mut self, limit: usize) {
        let mut shapes = Shapes {
            other: std::mem::take(&mut self.other),
            shapes: std::mem::take(&mut self.shapes),
            since_seconds: None,
        };
        shapes.keep(Sort::TotalTime, limit);
        (self.other, self.shapes) = (shapes.other, shapes.shapes);
    }
}

/// Merges lists of shapes by the shapes' ids.
pub(super) fn merge_shapes(shapes: &mut Vec<Shape>, others: Vec<Shape>) {
    merge_by(shapes, others, |shape| shape.id.clone(), Merge::merge);
}

/// Adds the counts of the applications. The largest count is first, but the count for all
/// applications that are not counted separately (`other`) is always last.
fn add_named(all: &mut Vec<Named>, others: Vec<Named>) {
    let name = |of: &Named| of.name.clone();
    merge_by(all, others, name, |sum, of| sum.count += of.count);
    all.sort_by_key(|of| (of.name == "other", Reverse(of.count)));
}

/// Adds the counts of the error codes. The largest count is first.
fn add_codes(all: &mut Vec<CodeCount>, others: Vec<CodeCount>) {
    let code = |of: &CodeCount| of.code.clone();
    merge_by(all, others, code, |sum, of| sum.count += of.count);
    all.sort_by_key(|of| Reverse(of.count));
}

fn earlier(moment: Moment, other: Moment) -> Moment {
    match other.seconds() < moment.seconds() {
        true => other,
        false => moment,
    }
}

fn later(moment: Moment, other: Moment) -> Moment {
    match other.seconds() > moment.seconds() {
        true => other,
        false => moment,
    }
}

impl Merge for Shape {
    fn is_mergeable(&self) -> bool {
        let since_start = self.since_start.as_deref();
        is_complete(self.count, self.distribution.as_ref())
            && self.cursors.iter().all(Merge::is_mergeable)
            && since_start.is_none_or(Merge::is_mergeable)
            && self.timeline.iter().flatten().all(Merge::is_mergeable)
    }

    /// Adds the figures of both instances. If the request has no period, an instance that keeps no
    /// figures since its start reports the figures of the last 10 min. They cannot be added to
    /// figures since the start, so only their timeline is added.
    fn merge(&mut self, mut other: Self) {
        if self.since_seconds.is_some() && other.since_seconds.is_none() {
            std::mem::swap(self, &mut other);
        }
        merge_with(&mut self.timeline, other.timeline, |steps, others| {
            merge_steps(steps, others, 0.0);
        });
        if self.since_seconds.is_some() != other.since_seconds.is_some() {
            return;
        }
        merge_load!(self, other);
        merge_known(&mut self.cursors, other.cursors);
        merge_with(&mut self.outcomes, other.outcomes, add_counts);
        merge_with(&mut self.applications, other.applications, add_named);
        merge_with(&mut self.errors_by_code, other.errors_by_code, add_codes);
        merge_known(&mut self.since_start, other.since_start);
        add_known(&mut self.statements, other.statements);
        add_known(&mut self.streamed, other.streamed);
        combine(&mut self.first_seen, other.first_seen, earlier);
        combine(&mut self.last_seen, other.last_seen, later);
        combine(&mut self.since_seconds, other.since_seconds, f64::max);
    }
}

impl<T: Merge> Merge for Box<T> {
    fn merge(&mut self, other: Self) {
        (**self).merge(*other);
    }
}

impl Merge for SinceStart {
    fn is_mergeable(&self) -> bool {
        is_complete(self.count, self.distribution.as_ref()) && self.cursors.is_mergeable()
    }

    fn merge(&mut self, mut other: Self) {
        merge_load!(self, other);
        add!(self, other: statements, streamed);
        add_counts(&mut self.outcomes, other.outcomes);
        self.cursors.merge(other.cursors);
    }
}

impl Merge for Cursors {
    fn is_mergeable(&self) -> bool {
        is_complete(self.exhausted, self.distribution.as_ref())
    }

    fn merge(&mut self, mut other: Self) {
        fn durations(cursors: &mut Cursors) -> Durations<'_> {
            Durations {
                latency_ms: &mut cursors.open_ms,
                distribution: &mut cursors.distribution,
                // The reply contains no sum of these durations. The sum has no effect on the
                // quantiles and on the maximum, so it is set to 0.
                total_ms: 0.0,
            }
        }
        durations(self).merge(durations(&mut other));
        add!(self, other: exhausted);
    }
}

impl Merge for Other {
    fn is_mergeable(&self) -> bool {
        is_complete(self.count, self.distribution.as_ref())
    }

    fn merge(&mut self, mut other: Self) {
        merge_load!(self, other);
    }
}

impl Merge for Namespaces {
    fn is_mergeable(&self) -> bool {
        self.namespaces.iter().all(Merge::is_mergeable)
    }

    fn merge(&mut self, other: Self) {
        let key = |of: &Namespace| (of.command.clone(), of.db.clone(), of.collection.clone());
        merge_by(&mut self.namespaces, other.namespaces, key, Merge::merge);
        combine(&mut self.since_seconds, other.since_seconds, f64::max);
    }
}

impl Namespaces {
    /// Sorts the namespaces by total time in descending order, and keeps the first `limit`
    /// namespaces. In the figures since Seawall started, the time of operations that waited for an
    /// event does not count. The figures of a period do not have this time separately, so there it
    /// counts.
    pub fn keep(&mut self, limit: usize) {
        let weight = |of: &Namespace| of.total_time_ms - of.awaited_time_ms.unwrap_or_default();
        self.namespaces
            .sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        self.namespaces.truncate(limit);
    }

    /// Removes the distributions, which only a merge needs.
    pub fn drop_distributions(&mut self) {
        for namespace in &mut self.namespaces {
            namespace.distribution = None;
        }
    }
}

impl Merge for Namespace {
    fn is_mergeable(&self) -> bool {
        is_complete(self.count, self.distribution.as_ref())
    }

    fn merge(&mut self, mut other: Self) {
        durations!(self).merge(durations!(other));
        add!(self, other: count, documents, reply_bytes, request_bytes, total_time_ms);
        add_phases(&mut self.phases_ms, &other.phases_ms);
        add_known(&mut self.awaited_time_ms, other.awaited_time_ms);
        for (sum, more) in [
            (&mut self.errors, other.errors),
            (&mut self.retries, other.retries),
            (&mut self.streamed, other.streamed),
            (&mut self.write_errors, other.write_errors),
        ] {
            add_known(sum, more);
        }
        for (sums, more) in [
            (&mut self.error_codes, other.error_codes),
            (&mut self.outcomes, other.outcomes),
            (
                &mut self.write_concern_error_codes,
                other.write_concern_error_codes,
            ),
            (&mut self.write_error_codes, other.write_error_codes),
        ] {
            merge_with(sums, more, add_counts);
        }
    }
}

impl Merge for Server {
    /// True if all durations of the server have a distribution. Each row of `/api/v1/servers` has
    /// `answer_ms`, which has only quantiles, so these rows are not mergeable. A row of a report
    /// has no `answer_ms`, so it is mergeable if it has a distribution or counts no operations.
    fn is_mergeable(&self) -> bool {
        is_complete(self.count, self.distribution.as_ref()) && self.answer_ms.is_none()
    }

    fn merge(&mut self, mut other: Self) {
        merge_figures!(self, other);
    }
}

impl Merge for Timeline {
    fn is_mergeable(&self) -> bool {
        self.steps.iter().all(Merge::is_mergeable)
    }

    /// Merges the steps that begin at the same time. If the history of an instance has too little
    /// memory for short steps, the steps of this instance are longer than requested. If the steps
    /// of the two instances have different lengths, the shorter steps are combined into steps of
    /// the greater length.
    fn merge(&mut self, other: Self) {
        let requested = self.step_seconds.max(other.step_seconds);
        self.step_seconds = merge_steps(&mut self.steps, other.steps, requested);
    }
}

/// Merges the steps of two instances. `requested` is the requested length of the steps in seconds,
/// or 0 if it is not known. Returns the length of the merged steps.
fn merge_steps(steps: &mut Vec<TimelineStep>, others: Vec<TimelineStep>, requested: f64) -> f64 {
    let lengths = steps.iter().chain(&others).map(|step| step.seconds);
    let length = step_length(requested, lengths.fold(0.0, f64::max));
    *steps = combined(std::mem::take(steps), length);
    let others = combined(others, length);
    merge_by(steps, others, |step| step.at.to_bits(), Merge::merge);
    steps.sort_by(|a, b| a.at.total_cmp(&b.at));
    length
}

/// Combines consecutive steps of one instance into steps that begin at multiples of `seconds`.
fn combined(steps: Vec<TimelineStep>, seconds: f64) -> Vec<TimelineStep> {
    let start = |step: &TimelineStep| match seconds > 0.0 {
        true => (step.at / seconds).floor() * seconds,
        false => step.at,
    };
    let mut combined = Vec::new();
    let key = |step: &TimelineStep| start(step).to_bits();
    merge_by(&mut combined, steps, key, |sum, step| {
        let added = sum.seconds + step.seconds;
        sum.merge(step);
        sum.seconds = within_step(added, seconds);
    });
    for step in &mut combined {
        step.at = start(step);
    }
    combined
}

impl Merge for TimelineStep {
    fn is_mergeable(&self) -> bool {
        is_complete(self.count, self.distribution.as_ref())
    }

    fn merge(&mut self, mut other: Self) {
        merge_load!(self, other);
        let latency = self.latency_ms;
        (self.max_ms, self.p50_ms, self.p99_ms) = (latency.max, latency.p50, latency.p99);
        self.seconds = self.seconds.max(other.seconds);
    }
}
