//! A slice: consecutive windows at one limit. The sums over these windows give one measured value
//! for a trial.

use std::time::Duration;

use crate::{
    like::{Like, Work},
    sample::Sample,
    trial::Metric,
};

/// Minimum [`Work::effective_count`] of a slice. A count of this size has a standard deviation of
/// 14 %.
const MIN_COUNT: f64 = 50.0;

/// A slice is complete at the latest when its length is its minimum length plus this time, even if
/// few operations completed.
const MAX_LENGTH: Duration = Duration::from_secs(1);

/// Operations count as waiting all the time if at least one operation waits during this share of
/// the time.
const ALL_THE_TIME: f64 = 0.9;

/// The sums over consecutive windows at one limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    length: Duration,
    work: Work,
    total_time: Duration,
    time_with_waiting: Duration,
    wait_time: Duration,
}

impl Slice {
    pub(crate) fn add(&mut self, sample: &Sample, like: &Like) {
        self.length += sample.window;
        self.work.add(like.work(sample));
        self.total_time += sample.wait_time + sample.server_time();
        self.wait_time += sample.wait_time;
        self.time_with_waiting += sample.time_with_waiting;
    }

    pub(crate) fn is_complete(&self, least: Duration) -> bool {
        let is_long = self.length >= least;
        (is_long && self.work.effective_count() >= MIN_COUNT) || self.length >= least + MAX_LENGTH
    }

    /// True if operations waited all the time, so the server bounds the number of completed
    /// operations.
    pub(crate) fn is_server_bound(&self) -> bool {
        self.time_with_waiting >= self.length.mul_f64(ALL_THE_TIME)
    }

    /// True if operations spend more than half of their time waiting to begin. Shorter waits are
    /// not worth a trial, because a trial that fails makes operations wait.
    pub(crate) fn has_long_waits(&self) -> bool {
        self.wait_time > self.total_time / 2
    }

    /// The value of this slice in a trial, as a natural logarithm. For [`Metric::Throughput`], it
    /// is the work divided by the length of the slice. For [`Metric::Latency`], it is the work
    /// divided by the sum of the operations' wait and server times. A higher value is better.
    /// `None` if no operation completed.
    pub(crate) fn value(&self, metric: Metric) -> Option<f64> {
        let work = self.work.amount;
        let per = match metric {
            Metric::Throughput => self.length.as_secs_f64(),
            Metric::Latency => self.total_time.as_secs_f64(),
        };
        (work > 0.0 && per > 0.0).then(|| (work / per).ln())
    }

    /// The smallest standard deviation to assume for the value of this slice. The fewer operations
    /// completed, the larger this minimum is.
    pub(crate) fn least_noise(&self) -> f64 {
        // The factor 0.3 is for operations in a closed loop, which complete at regular times. For
        // operations that complete at random times, it would be 1.
        0.3 / self.work.effective_count().max(1.0).sqrt()
    }
}
