//! Merges replies of several instances: reconnect storms, stalls, changes between two periods, and
//! reports.

use super::{
    Merge, add, add_known, combine, deployment::merge_pools, merge_by, merge_known, merge_text,
    merge_with, shapes::merge_shapes,
};
use crate::{Changes, Pulse, Report, Server, Span, SpanFigures, Stalls, Storms};

impl Merge for Storms {
    fn set_instance(&mut self, address: &str) {
        for storm in &mut self.storms {
            storm.instance = Some(address.to_owned());
        }
    }

    /// Lists the storms of both instances, because each instance detects only storms of its own
    /// clients.
    fn merge(&mut self, other: Self) {
        self.active |= other.active;
        self.learning |= other.learning;
        self.storms.extend(other.storms);
        self.storms
            .sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
    }
}

impl Merge for Stalls {
    fn set_instance(&mut self, address: &str) {
        for episode in &mut self.episodes {
            episode.instance = Some(address.to_owned());
        }
        for recurring in &mut self.recurring {
            recurring.instance = Some(address.to_owned());
        }
    }

    /// Lists the stalls of both instances, because each instance detects only stalls of its own
    /// operations.
    fn merge(&mut self, other: Self) {
        self.episodes.extend(other.episodes);
        self.episodes
            .sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
        self.recurring.extend(other.recurring);
        self.pulse.merge(other.pulse);
    }
}

impl Merge for Pulse {
    fn merge(&mut self, other: Self) {
        self.mean_ms = mean_ms(self, &other);
        combine(&mut self.longest_ms, other.longest_ms, f64::max);
        add_known(&mut self.answered, other.answered);
        add_known(&mut self.refused, other.refused);
        add_known(&mut self.unanswered, other.unanswered);
        merge_with(&mut self.refusals, other.refusals, |all, others| {
            all.extend(others);
        });
        self.note = self.note.take().or(other.note);
        merge_text(&mut self.state, other.state);
    }
}

/// The mean time until a server replies to a sample, over the samples of both instances. A sample
/// is a regular read of `serverStatus`. Samples without a reply do not count.
fn mean_ms(a: &Pulse, b: &Pulse) -> Option<f64> {
    let sum = |of: &Pulse| Some((of.mean_ms?, seawall_stats::float(of.answered?)));
    match (sum(a), sum(b)) {
        (Some((a_ms, a)), Some((b_ms, b))) => Some((a_ms * a + b_ms * b) / (a + b).max(1.0)),
        _ => a.mean_ms.or(b.mean_ms),
    }
}

impl Merge for Changes {
    fn is_mergeable(&self) -> bool {
        let spans = [self.baseline.as_ref(), self.now.as_ref()];
        let mut spans = spans.into_iter().flatten();
        spans.all(|span| span.figures.as_ref().is_some_and(Merge::is_mergeable))
    }

    /// Merges the figures of the two compared periods. Omits the figures of an instance that could
    /// not compare its periods. Empties the list of changes, because the caller computes it again
    /// from the merged figures.
    fn merge(&mut self, other: Self) {
        if other.comparable == Some(true) {
            if self.comparable == Some(true) {
                merge_known(&mut self.baseline, other.baseline);
                merge_known(&mut self.now, other.now);
            } else {
                *self = other;
            }
        }
        self.changes.clear();
    }
}

impl Merge for Span {
    fn merge(&mut self, other: Self) {
        add!(self, other: count);
        self.from = self.from.min(other.from);
        self.to = self.to.max(other.to);
        self.seconds = self.seconds.max(other.seconds);
        merge_known(&mut self.figures, other.figures);
    }
}

impl Merge for SpanFigures {
    fn is_mergeable(&self) -> bool {
        let mut sums = [&self.all, &self.other].into_iter();
        sums.all(Merge::is_mergeable) && self.shapes.iter().all(Merge::is_mergeable)
    }

    fn merge(&mut self, other: Self) {
        self.all.merge(other.all);
        self.other.merge(other.other);
        merge_shapes(&mut self.shapes, other.shapes);
    }
}

impl Merge for Report {
    fn set_instance(&mut self, address: &str) {
        for annotation in &mut self.annotations {
            annotation.instance = Some(address.to_owned());
        }
        self.storms.set_instance(address);
        self.stalls.set_instance(address);
        self.status.set_instance(address);
    }

    fn is_mergeable(&self) -> bool {
        self.changes.is_mergeable()
            && self.other.is_mergeable()
            && self.servers.iter().all(Merge::is_mergeable)
            && self.shapes.iter().all(Merge::is_mergeable)
            && self.timeline.is_mergeable()
    }

    fn merge(&mut self, other: Self) {
        self.annotations.extend(other.annotations);
        self.annotations.sort_by(|a, b| a.at.total_cmp(&b.at));
        self.changes.merge(other.changes);
        self.made_at = self.made_at.max(other.made_at);
        self.other.merge(other.other);
        merge_pools(&mut self.pools, other.pools);
        let server = |server: &Server| server.address.clone();
        merge_by(&mut self.servers, other.servers, server, Merge::merge);
        merge_shapes(&mut self.shapes, other.shapes);
        self.shapes
            .sort_by(|a, b| b.load_ms().total_cmp(&a.load_ms()));
        self.since_seconds = self.since_seconds.max(other.since_seconds);
        self.stalls.merge(other.stalls);
        self.status.merge(other.status);
        self.storms.merge(other.storms);
        self.timeline.merge(other.timeline);
    }
}
