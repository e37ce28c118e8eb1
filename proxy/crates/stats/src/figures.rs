//! Sums of the operations of a series over a period.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Distribution, Label, PhaseTimes};

/// Sums of one series. All fields can be added up, so no mean and no percentile is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations that ended.
    pub count: u64,
    /// Operations that failed, whether the client, the server or Seawall was at fault.
    pub errors: u64,
    /// Their durations.
    pub durations: Distribution,
    /// Their time in each phase.
    pub phases: PhaseTimes,
    /// Bytes of their requests.
    pub request_bytes: u64,
    /// Bytes of their replies.
    pub reply_bytes: u64,
    /// Documents that they returned, wrote or counted.
    pub documents: u64,
    /// `getMore`s on cursors that they opened.
    pub more_count: u64,
    /// Time of these `getMore`s. A `getMore` that waited for an event (an awaiting cursor) adds no
    /// time.
    pub more_time: Duration,
}

impl Figures {
    /// Adds the sums of `other`.
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

    /// Time that these operations cost the servers: their own and that of their cursors.
    pub fn load(&self) -> Duration {
        self.durations.sum() + self.more_time
    }
}

/// The sums of all series over a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// The known length of the period.
    pub length: Duration,
    /// The series with at least one operation.
    pub series: BTreeMap<Arc<Label>, Figures>,
}

impl Period {
    /// Adds the figures of `other`. The caller adjusts `length`: the two periods may be consecutive
    /// or simultaneous.
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

/// Figures and weight of each series. The weight is the seconds that the series cost, older ones
/// counting less. A series that the history must not choose among others has infinite weight.
pub type WeighedSeries = BTreeMap<Arc<Label>, (Figures, f64)>;

/// Adds figures to a series, and sets its weight.
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
