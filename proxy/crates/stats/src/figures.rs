//! Figures of a series: counts, times and sizes, summed over the operations of a period.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Distribution, Label, PhaseTimes};

/// Sums over the operations of one series (see [`Label`]). There is no mean and no percentile, so
/// that the figures of two periods can be added. In the series of a shape, a `getMore` counts for
/// the shape whose operation opened its cursor: in `errors`, in the sizes, in `documents`, and in
/// the fields for `getMore`s, but not in `count`, `durations` and `phases`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations that ended.
    pub count: u64,
    /// Operations that failed: see [`Outcome::is_failure`](super::Outcome::is_failure).
    pub errors: u64,
    /// The sum, the count and the histogram of the operations' durations.
    pub durations: Distribution,
    /// The operations' total time in each phase.
    pub phases: PhaseTimes,
    /// Total size of the commands in bytes.
    pub request_bytes: u64,
    /// Total size of the replies in bytes.
    pub reply_bytes: u64,
    /// Documents that the operations returned, wrote or counted.
    pub documents: u64,
    /// Number of `getMore`s on cursors that the operations opened.
    pub more_count: u64,
    /// Time of the `getMore`s in `more_count`. A `getMore` on a change stream or on a tailable
    /// cursor with `awaitData` adds no time: it waits for an event, not for the server.
    pub more_time: Duration,
}

impl Figures {
    /// Adds the figures of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.errors += other.errors;
        self.durations.merge(&other.durations);
        self.phases.merge(&other.phases);
        self.request_bytes += other.request_bytes;
        self.reply_bytes += other.reply_bytes;
        self.documents += other.documents;
        self.more_count += other.more_count;
        self.more_time += other.more_time;
    }

    /// The server load: the time of the operations and of the `getMore`s on their cursors.
    pub fn load(&self) -> Duration {
        self.durations.sum() + self.more_time
    }
}

/// The sums of all series over a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// The time that the figures cover. It is shorter than the period if figures are missing for a
    /// part of the period.
    pub length: Duration,
    /// The series with at least one operation or `getMore`, by label.
    pub series: BTreeMap<Arc<Label>, Figures>,
}

impl Period {
    /// Adds the figures of `other`. The caller adjusts `length`, because the two periods may be
    /// consecutive or simultaneous.
    pub fn merge(&mut self, other: &Self) {
        for (label, figures) in &other.series {
            match self.series.get_mut(label) {
                Some(mine) => mine.merge(figures),
                None => {
                    self.series.insert(Arc::clone(label), figures.clone());
                }
            }
        }
    }
}

/// The figures and the weight of each series. The weight is the cost of the series: the time of its
/// operations in seconds, where recent time counts more than old time. A series that must always
/// stay in the history has infinite weight.
pub type WeighedSeries = BTreeMap<Arc<Label>, (Figures, f64)>;

/// Adds figures to a series, and replaces its weight.
pub fn add_weighed(series: &mut WeighedSeries, label: &Arc<Label>, figures: &Figures, weight: f64) {
    match series.get_mut(label) {
        Some((sums, its_weight)) => {
            sums.merge(figures);
            *its_weight = weight;
        }
        None => {
            series.insert(Arc::clone(label), (figures.clone(), weight));
        }
    }
}
