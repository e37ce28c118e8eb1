//! Merges the figures that the dashboard draws: heat maps, gauges, sparklines, live updates.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Durations, Merge, add, add_limit, merge_by, merge_known, step_length, within_step};
use crate::{
    GaugeStep, GaugeTimeline, GaugeValues, Heatmap, HeatmapColumn, HeatmapShapes, Latency,
    Sparklines, Tick, TickSecond, figures::bucket_number,
};
use seawall_stats::{Distribution, float, float_usize};

/// The start of the step that contains the time `at`. Steps have a length of `seconds`.
fn start_of_step(at: f64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => (at / seconds).floor() * seconds,
        false => at,
    }
}

impl Merge for Heatmap {
    /// Adds the counts of the same bucket in the same step. If the history of an instance has too
    /// little memory for short steps, the steps of this instance are longer than requested. If the
    /// steps of the two instances have different lengths, the shorter steps are combined into steps
    /// of the greater length.
    fn merge(&mut self, other: Self) {
        let columns = self.columns.iter().chain(&other.columns);
        let longest = columns.map(|column| column.seconds).fold(0.0, f64::max);
        let requested = self.step_seconds.max(other.step_seconds);
        let length = step_length(requested, longest);
        self.step_seconds = length;
        // Each key is the start time of a step as `f64::to_bits`, because an `f64` cannot be a key.
        // Floats that are not negative have the same order as their bits, so the columns stay in
        // order of time.
        let mut merged: BTreeMap<u64, (f64, BTreeMap<usize, u64>)> = BTreeMap::new();
        for heatmap in [&*self, &other] {
            let mut own: BTreeMap<u64, f64> = BTreeMap::new();
            for column in &heatmap.columns {
                let at = start_of_step(column.at, length).max(0.0).to_bits();
                let seconds = own.entry(at).or_default();
                *seconds = within_step(*seconds + column.seconds, length);
                let (_, counts) = merged.entry(at).or_default();
                for (number, count) in heatmap.numbered(column) {
                    *counts.entry(number).or_default() += count;
                }
            }
            for (at, seconds) in own {
                let (longest, _) = merged.entry(at).or_default();
                *longest = longest.max(seconds);
            }
        }
        let numbers = merged.values().flat_map(|(_, counts)| counts.keys());
        let numbers: BTreeSet<usize> = numbers.copied().collect();
        let indexes: BTreeMap<usize, u64> = numbers.iter().copied().zip(0..).collect();
        let columns = merged.into_iter().map(|(at, (seconds, counts))| {
            let counts = counts.into_iter();
            let counts = counts.filter_map(|(of, count)| Some((*indexes.get(&of)?, count)));
            HeatmapColumn {
                at: f64::from_bits(at),
                counts: counts.collect(),
                seconds,
            }
        });
        self.columns = columns.collect();
        let bounds = numbers.into_iter().map(Distribution::<8>::bounds_seconds);
        self.bounds_seconds = bounds.collect();
    }
}

impl Heatmap {
    /// The counts of a column, each with the index of its bucket in a [`Distribution`].
    fn numbered<'a>(
        &'a self,
        column: &'a HeatmapColumn,
    ) -> impl Iterator<Item = (usize, u64)> + 'a {
        column.counts.iter().filter_map(|(index, count)| {
            let index = usize::try_from(*index).ok()?;
            let (_, le_seconds) = self.bounds_seconds.get(index)?;
            Some((bucket_number(*le_seconds), *count))
        })
    }
}

impl Merge for HeatmapShapes {
    fn merge(&mut self, other: Self) {
        self.all_servers |= other.all_servers;
        add!(self, other: count);
        let id = |shape: &crate::HeatmapShape| shape.id.clone();
        merge_by(&mut self.shapes, other.shapes, id, |sum, shape| {
            sum.count += shape.count;
        });
        self.shapes.sort_by_key(|shape| Reverse(shape.count));
        self.update();
    }
}

impl HeatmapShapes {
    /// Keeps the `limit` shapes with the most operations. The operations of the other shapes are
    /// counted in `other`.
    pub fn keep(&mut self, limit: usize) {
        self.shapes.truncate(limit);
        self.update();
    }

    /// Computes the shares of the listed shapes and the number of the other operations again.
    fn update(&mut self) {
        let listed: u64 = self.shapes.iter().map(|shape| shape.count).sum();
        self.other = self.count.saturating_sub(listed);
        for shape in &mut self.shapes {
            shape.share = float(shape.count) / float(self.count.max(shape.count).max(1));
        }
    }
}

impl Merge for GaugeTimeline {
    /// Merges the gauges of steps that begin at the same time. If the steps of the two instances
    /// have different lengths, the shorter steps are combined into steps of the greater length.
    fn merge(&mut self, other: Self) {
        let steps = self.steps.iter().chain(&other.steps);
        let longest = steps.map(|step| step.seconds).fold(0.0, f64::max);
        let requested = self.step_seconds.max(other.step_seconds);
        let length = step_length(requested, longest);
        let mut steps = combined(std::mem::take(&mut self.steps), length);
        let others = combined(other.steps, length);
        merge_by(
            &mut steps,
            others,
            |step| step.at.to_bits(),
            |sum, step| {
                sum.seconds = sum.seconds.max(step.seconds);
                for (name, values) in step.gauges {
                    let known = sum.gauges.remove(&name);
                    let values = known.map_or(values, |known| added(&name, known, values));
                    sum.gauges.insert(name, values);
                }
            },
        );
        steps.sort_by(|a, b| a.at.total_cmp(&b.at));
        self.steps = steps;
        self.step_seconds = length;
    }
}

/// Merges the values that one gauge has on two instances: the result is the longer delay if the
/// gauge is a delay, and otherwise the sum. The two instances may have had their lowest values at
/// different moments, so the sum of the lowest values is only a lower bound. Likewise, the sum of
/// the highest values is only an upper bound.
fn added(name: &str, one: GaugeValues, other: GaugeValues) -> GaugeValues {
    let both: fn(f64, f64) -> f64 = match name.ends_with("_delay_seconds") {
        true => f64::max,
        false => |one, other| one + other,
    };
    GaugeValues {
        max: both(one.max, other.max),
        mean: both(one.mean, other.mean),
        min: both(one.min, other.min),
    }
}

/// A step, with the number of seconds for which each gauge has data. The numbers can differ,
/// because some gauges have no value in some of the combined steps.
type Weighted = (GaugeStep, BTreeMap<String, f64>);

/// Combines consecutive steps of one instance into steps that begin at multiples of `seconds`.
fn combined(steps: Vec<GaugeStep>, seconds: f64) -> Vec<GaugeStep> {
    let weighted = steps.into_iter().map(|step| {
        let names = step.gauges.keys();
        let weights = names.map(|name| (name.clone(), step.seconds)).collect();
        (step, weights)
    });
    let weighted: Vec<Weighted> = weighted.collect();
    let mut combined: Vec<Weighted> = Vec::new();
    let key = |(step, _): &Weighted| start_of_step(step.at, seconds).to_bits();
    let add = |(sum, weights): &mut Weighted, (step, _): Weighted| {
        for (name, values) in step.gauges {
            let weight = weights.entry(name.clone()).or_default();
            let whole = *weight + step.seconds;
            let both = |known: &mut GaugeValues| {
                let total = known.mean * *weight + values.mean * step.seconds;
                *known = GaugeValues {
                    max: known.max.max(values.max),
                    mean: total / whole.max(1.0),
                    min: known.min.min(values.min),
                };
            };
            sum.gauges.entry(name).and_modify(both).or_insert(values);
            *weight = whole;
        }
        sum.seconds = within_step(sum.seconds + step.seconds, seconds);
    };
    merge_by(&mut combined, weighted, key, add);
    let steps = combined.into_iter().map(|(step, _)| GaugeStep {
        at: start_of_step(step.at, seconds),
        ..step
    });
    steps.collect()
}

/// Maximum number of steps of merged sparklines. The period of a request has fewer steps. But if
/// the clock of an instance is wrong, its steps may begin years before or after the steps of the
/// other instances. Without the limit, the merged sparklines would then have millions of steps.
const MAX_STEPS: usize = 10_000;

/// If the sparklines of two instances begin at least this number of steps apart, the clock of one
/// instance is wrong. The number is half of [`MAX_STEPS`], so that merged sparklines have room for
/// the steps of both instances if their clocks are right.
const FAR_STEPS: usize = MAX_STEPS / 2;

impl Merge for Sparklines {
    /// Adds the loads of steps that begin at the same time. If the steps of the two instances have
    /// different lengths, the shorter steps are combined into steps of the greater length. If
    /// `other` begins at least `FAR_STEPS` steps before or after `self`, `other` is ignored.
    fn merge(&mut self, other: Self) {
        if self.shapes.is_empty() {
            *self = other;
            return;
        }
        let step_seconds = self.step_seconds.max(other.step_seconds).max(1.0);
        let distance = (other.from - self.from).abs() / step_seconds;
        if other.shapes.is_empty() || whole_steps(distance) >= FAR_STEPS {
            return;
        }
        let from = start_of_step(self.from.min(other.from), step_seconds);
        let mut shapes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for lines in [std::mem::take(self), other] {
            let indexes = lines.indexes(from, step_seconds);
            for (id, loads) in lines.shapes {
                let sums = shapes.entry(id).or_default();
                for (at, load) in indexes.iter().copied().zip(loads) {
                    if sums.len() <= at {
                        sums.resize(at + 1, 0.0);
                    }
                    if let Some(sum) = sums.get_mut(at) {
                        *sum += load;
                    }
                }
            }
        }
        let longest = shapes.values().map(Vec::len).max().unwrap_or_default();
        shapes.values_mut().for_each(|of| of.resize(longest, 0.0));
        *self = Self {
            from,
            shapes,
            step_seconds,
        };
    }
}

impl Sparklines {
    /// For each step of these sparklines, the index of the longer step in which it begins. The
    /// longer steps have a length of `seconds`, and the first longer step begins at `from`. Steps
    /// whose index would be [`MAX_STEPS`] or higher are omitted.
    fn indexes(&self, from: f64, seconds: f64) -> Vec<usize> {
        let steps = self.shapes.values().map(Vec::len).max().unwrap_or_default();
        let first = start_of_step(self.from, seconds);
        let mut index = whole_steps((first - from) / seconds);
        let (mut at, mut end) = (self.from, first + seconds);
        let mut indexes = Vec::new();
        while indexes.len() < steps && index < MAX_STEPS {
            indexes.push(index);
            at += self.step_seconds.max(1.0);
            if at >= end {
                index += 1;
                end += seconds;
            }
        }
        indexes
    }
}

/// Rounds a number of steps up to a whole number, at most [`MAX_STEPS`].
fn whole_steps(steps: f64) -> usize {
    (0..MAX_STEPS)
        .find(|whole| float_usize(*whole) >= steps)
        .unwrap_or(MAX_STEPS)
}

impl Merge for Tick {
    fn is_mergeable(&self) -> bool {
        let is_complete = |second: &TickSecond| second.count == 0 || second.distribution.is_some();
        self.second.as_ref().is_none_or(is_complete)
    }

    /// Merges the figures of each instance's latest second, even if these seconds have different
    /// times: the instances' clocks may differ. [`Tick::at`] stays the time of the first instance.
    /// The latest of the times would jump back if an instance whose clock is ahead did not reply.
    fn merge(&mut self, other: Self) {
        add!(self, other: clients, in_progress, wait_queue, waiting);
        add_limit(&mut self.concurrency_limit, other.concurrency_limit);
        self.draining |= other.draining;
        self.history |= other.history;
        self.storm |= other.storm;
        self.server_connections.merge(other.server_connections);
        self.uptime_seconds = self.uptime_seconds.max(other.uptime_seconds);
        merge_known(&mut self.second, other.second);
    }
}

impl Merge for TickSecond {
    fn merge(&mut self, mut other: Self) {
        add!(self, other: count, errors);
        self.at = self.at.max(other.at);
        let latency = |second: &Self| Latency {
            max: second.max_ms.unwrap_or_default(),
            ..Latency::default()
        };
        let (mut own, mut others) = (latency(self), latency(&other));
        // The reply contains no sum of the durations. The sum has no effect on the quantiles and on
        // the maximum, so it is set to 0.
        let durations = Durations {
            latency_ms: &mut own,
            distribution: &mut self.distribution,
            total_ms: 0.0,
        };
        durations.merge(Durations {
            latency_ms: &mut others,
            distribution: &mut other.distribution,
            total_ms: 0.0,
        });
        (self.p50_ms, self.p99_ms) = (own.p50, own.p99);
        self.max_ms = Some(own.max);
    }
}
