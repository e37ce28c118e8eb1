//! Finds changes between two periods: new and vanished shapes, slower and faster ones, more
//! frequent ones, heavier ones.
//!
//! Two minutes of the same load are never equal: machines drift by a third, for all shapes
//! together, and the tail of a small sample can double by chance. So each shape is compared with
//! the change of the *other* shapes. A change is reported only if it is significant (tested, and
//! corrected for the number of shapes), large, and relevant in absolute terms. A change of all
//! shapes together is reported once, for the whole.
//!
//! Durations are compared by a rank test (see `ranks`): it assumes no form of distribution, and a
//! single stall does not influence it. The ratio is that of the medians for the same reason: one
//! operation of 3 s among a hundred of 1 ms makes their mean thirty times as long. So a shape is
//! not reported as slower if only its tail got slower.

use std::{collections::BTreeSet, f64::consts::LN_2, sync::Arc, time::Duration};

use ranks::ranks;
use renamed::covers;
use seawall_stats::{Figures, Label, Level, Period, float};

mod ranks;
mod renamed;
#[cfg(test)]
mod tests;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// What changed.
    pub kind: ChangeKind,
    /// The shape, or the whole.
    pub label: Arc<Label>,
    /// Sums of the earlier period; empty for a new shape.
    pub before: Figures,
    /// Sums of the later period; empty for a vanished shape.
    pub now: Figures,
    /// Later value divided by earlier value. The value depends on the kind: median duration,
    /// operations per second, bytes per operation or documents per operation. Always finite: a
    /// count of zero is replaced by one. For the whole: the ratio of the median shape.
    pub ratio: f64,
    /// The share of pairs (one earlier and one later operation) in which the later operation took
    /// longer; ties count half. 0.5 if nothing changed or nothing can be compared. For the whole:
    /// the effect of the median shape.
    pub effect: f64,
    /// Additional operation time per second; zero if the time decreased.
    pub cost_per_second: Duration,
}

/// Kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// The shape did not occur in the earlier period.
    New,
    /// The shape does not occur in the later period.
    Gone,
    /// Operations take longer.
    Slower,
    /// Operations take less time.
    Faster,
    /// More operations per second.
    MoreFrequent,
    /// Fewer operations per second.
    LessFrequent,
    /// More bytes per command.
    HeavierRequests,
    /// More bytes per reply.
    HeavierReplies,
    /// More documents per operation.
    MoreDocuments,
}

impl ChangeKind {
    /// The name in the API's JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Gone => "gone",
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::MoreFrequent => "more_frequent",
            Self::LessFrequent => "less_frequent",
            Self::HeavierRequests => "heavier_requests",
            Self::HeavierReplies => "heavier_replies",
            Self::MoreDocuments => "more_documents",
        }
    }
}

/// Minimum number of operations in each period for a comparison.
const MIN_OPERATIONS: u64 = 30;

/// Minimum number of operations in each period for a shape that counts in the spread of the ratios.
const STEADY_OPERATIONS: u64 = 100;

/// Minimum number of other shapes for a known drift.
const MIN_OTHERS: usize = 3;

/// Minimum slowdown relative to the other shapes.
const MIN_RATIO: f64 = 1.5;

/// Minimum slowdown if the drift is unknown, and minimum drift of the whole. A period a third
/// slower after one a third faster gives a ratio of 1.9.
const MIN_DRIFT: f64 = 2.5;

/// Minimum distance from the other shapes' ratios, in standard deviations of these ratios.
const SPREADS: f64 = 3.5;

/// A larger slowdown relative to the other shapes is reported whatever their spread.
const ENOUGH_RATIO: f64 = 3.0;

/// Minimum effect.
const MIN_EFFECT: f64 = 0.7;

/// Minimum difference of the medians.
const MIN_DIFFERENCE: Duration = Duration::from_micros(100);

/// Probability of a false alarm per comparison of all shapes, for each kind of change.
const ALPHA: f64 = 0.001;

/// Minimum ratio of rates relative to the other shapes.
const MIN_RATE_RATIO: f64 = 3.0;

/// Variance of a count divided by its mean. Independent operations have 1; bursts make it larger.
const OVERDISPERSION: f64 = 5.0;

/// Minimum number of operations for a new shape that is reported because of its cost.
const MIN_COSTLY: u64 = 3;

/// Minimum cost of such a shape per second …
const MIN_COST_PER_SECOND: Duration = Duration::from_millis(10);

/// … and its minimum share of the cost of all operations.
const COSTLY_SHARE: f64 = 0.1;

/// Minimum length of a period in which a missing shape counts as missing.
const MIN_LENGTH: Duration = Duration::from_secs(30);

/// Minimum ratio of bytes or documents per operation.
const MIN_WEIGHT_RATIO: f64 = 2.0;

/// Assumed standard deviation divided by the mean, for bytes and documents per operation. Only
/// their sums are known.
const WEIGHT_DEVIATION: f64 = 2.0;

/// Minimum difference in bytes per operation.
const MIN_BYTES: f64 = 512.0;

/// Minimum difference in documents per operation.
const MIN_DOCUMENTS: f64 = 1.0;

/// Returns the changes from `before` to `now`, the costliest first. Changes of the whole come last:
/// a single shape that stands out is the likelier cause. Empty if one of the periods has no
/// operations.
pub fn compare(before: &Period, now: &Period) -> Vec<Change> {
    let is_empty =
        |period: &Period| period.length.is_zero() || period.series.values().all(|f| f.count == 0);
    if is_empty(before) || is_empty(now) {
        return Vec::new();
    }
    let nothing = Figures::default();
    let comparison = Comparison::of(before, now, &nothing);
    let mut changes: Vec<(f64, Change)> = (0..)
        .zip(&comparison.pairs)
        .flat_map(|(number, pair)| comparison.shape(number, pair))
        .chain(comparison.whole())
        .collect();
    changes.sort_by(|(a_cost, a), (b_cost, b)| {
        let is_whole = |change: &Change| *change.label == Label::Whole;
        (is_whole(a).cmp(&is_whole(b)))
            .then((*b_cost > 0.0).cmp(&(*a_cost > 0.0)))
            .then(b_cost.abs().total_cmp(&a_cost.abs()))
            .then_with(|| (&a.label, a.kind).cmp(&(&b.label, b.kind)))
    });
    changes.into_iter().map(|(_, change)| change).collect()
}

/// One series in both periods.
#[derive(Clone, Copy)]
struct Pair<'a> {
    label: &'a Arc<Label>,
    before: &'a Figures,
    now: &'a Figures,
}

impl Pair<'_> {
    fn has(&self, operations: u64) -> bool {
        self.before.durations.count() >= operations && self.now.durations.count() >= operations
    }

    /// Natural logarithm of the ratio of medians.
    fn slowdown(&self) -> Option<f64> {
        let (before, now) = (median(self.before), median(self.now));
        (self.has(MIN_OPERATIONS) && before > 0.0 && now > 0.0).then(|| (now / before).ln())
    }
}

/// Logarithms of ratios, each with the index of its shape.
type Ratios = Vec<(usize, f64)>;

struct Comparison<'a> {
    before: &'a Period,
    now: &'a Period,
    nothing: &'a Figures,
    pairs: Vec<Pair<'a>>,
    /// Ratios of medians, for shapes with enough operations.
    slowdowns: Ratios,
    /// Ratios of medians, for shapes with many operations.
    steady_slowdowns: Ratios,
    /// Ratios of operations per second, for shapes with enough operations.
    rates: Ratios,
}

impl<'a> Comparison<'a> {
    fn of(before: &'a Period, now: &'a Period, nothing: &'a Figures) -> Self {
        let labels: BTreeSet<_> = before.series.keys().chain(now.series.keys()).collect();
        let mut comparison = Self {
            before,
            now,
            nothing,
            pairs: Vec::new(),
            slowdowns: Vec::new(),
            steady_slowdowns: Vec::new(),
            rates: Vec::new(),
        };
        // The content of a group row changes whenever a shape gets or loses a row of its own. So
        // group rows are not compared.
        let is_shape = |label: &&Arc<Label>| {
            matches!(
                ***label,
                Label::Shape {
                    level: Level::Fine,
                    ..
                }
            )
        };
        for (number, label) in labels.into_iter().filter(is_shape).enumerate() {
            let pair = comparison.pair(label);
            if let Some(slowdown) = pair.slowdown() {
                comparison.slowdowns.push((number, slowdown));
                if pair.has(STEADY_OPERATIONS) {
                    comparison.steady_slowdowns.push((number, slowdown));
                }
            }
            if pair.before.count.min(pair.now.count) >= MIN_OPERATIONS {
                comparison.rates.push((number, comparison.rate(&pair)));
            }
            comparison.pairs.push(pair);
        }
        comparison
    }

    fn pair(&self, label: &'a Arc<Label>) -> Pair<'a> {
        Pair {
            label,
            before: self.before.series.get(label).unwrap_or(self.nothing),
            now: self.now.series.get(label).unwrap_or(self.nothing),
        }
    }

    /// Natural logarithm of the ratio of rates; infinite if one is zero.
    fn rate(&self, pair: &Pair<'_>) -> f64 {
        let rate =
            |figures: &Figures, period: &Period| float(figures.count) / period.length.as_secs_f64();
        (rate(pair.now, self.now) / rate(pair.before, self.before)).ln()
    }

    fn shape(&self, number: usize, pair: &Pair<'_>) -> Vec<(f64, Change)> {
        let found = [self.latency(number, pair), self.frequency(number, pair)];
        let found = found.into_iter().chain(self.weights(pair)).flatten();
        let effect = ranks(&pair.before.durations, &pair.now.durations, 0).effect;
        found
            .map(|(kind, ratio)| self.change(pair, kind, ratio, effect))
            .collect()
    }

    fn change(&self, pair: &Pair<'_>, kind: ChangeKind, ratio: f64, effect: f64) -> (f64, Change) {
        let cost = load_per_second(pair.now, self.now) - load_per_second(pair.before, self.before);
        let change = Change {
            kind,
            label: Arc::clone(pair.label),
            before: pair.before.clone(),
            now: pair.now.clone(),
            ratio,
            effect,
            cost_per_second: Duration::try_from_secs_f64(cost).unwrap_or_default(),
        };
        (cost, change)
    }

    fn latency(&self, number: usize, pair: &Pair<'_>) -> Option<(ChangeKind, f64)> {
        let slowdown = pair.slowdown()?;
        let common = drift(&self.slowdowns, number);
        let allowed = allowed(common, slowdown);
        let least = match common {
            Some(_) => (SPREADS * spread(&self.steady_slowdowns, number))
                .clamp(MIN_RATIO.ln(), ENOUGH_RATIO.ln()),
            None => MIN_DRIFT.ln(),
        };
        let difference = (median(pair.now) - median(pair.before) * allowed.exp()).abs();
        if (slowdown - allowed).abs() < least || difference < MIN_DIFFERENCE.as_secs_f64() {
            return None;
        }
        // Multiplying durations by a factor shifts their buckets.
        let shift = whole_number((allowed * 8.0 / LN_2).round());
        let ranks = ranks(&pair.before.durations, &pair.now.durations, shift);
        let kind = if slowdown > 0.0 && ranks.effect >= MIN_EFFECT {
            ChangeKind::Slower
        } else if slowdown < 0.0 && ranks.effect <= 1.0 - MIN_EFFECT {
            ChangeKind::Faster
        } else {
            return None;
        };
        self.is_significant(ranks.z).then(|| (kind, slowdown.exp()))
    }

    /// Compares counts by their square roots, whose variance hardly depends on the counts.
    fn frequency(&self, number: usize, pair: &Pair<'_>) -> Option<(ChangeKind, f64)> {
        let ratio = self.rate(pair);
        if ratio.is_nan() {
            return None;
        }
        let allowed = allowed(drift(&self.rates, number), ratio);
        let lengths = self.now.length.as_secs_f64() / self.before.length.as_secs_f64();
        let expected = lengths * allowed.exp();
        let (before, now) = (pair.before.count, pair.now.count);
        let deviation = (OVERDISPERSION * (1.0 + expected)).sqrt() / 2.0;
        let z = (float(now).sqrt() - (float(before) * expected).sqrt()) / deviation;
        let is_relevant = before.max(now) >= MIN_OPERATIONS
            && (ratio - allowed).abs() >= MIN_RATE_RATIO.ln()
            && self.is_significant(z);
        if !(is_relevant || self.is_costly_and_new(pair)) || self.may_hide(pair, ratio > 0.0) {
            return None;
        }
        if self.is_renamed(pair) {
            return None;
        }
        let kind = match (before, now) {
            (0, _) if self.before.length >= MIN_LENGTH => ChangeKind::New,
            (_, 0) if self.now.length >= MIN_LENGTH => ChangeKind::Gone,
            (0, _) | (_, 0) => return None,
            _ if ratio > 0.0 => ChangeKind::MoreFrequent,
            _ => ChangeKind::LessFrequent,
        };
        let ratio = float(now.max(1)) / float(before.max(1)) / lengths;
        Some((kind, ratio))
    }

    /// True if a new shape is reported because of its cost, although it has few operations.
    fn is_costly_and_new(&self, pair: &Pair<'_>) -> bool {
        let Some(all) = self.now.series.get(&Label::Whole) else {
            return false;
        };
        let cost = load_per_second(pair.now, self.now);
        pair.before.count == 0
            && pair.now.count >= MIN_COSTLY
            && self.before.length >= self.now.length
            && cost >= MIN_COST_PER_SECOND.as_secs_f64()
            && cost >= COSTLY_SHARE * load_per_second(all, self.now)
    }

    /// True if the missing operations of one period may be part of its [`Label::OtherShapes`] or of
    /// the namespace's group rows. Only the heaviest shapes have rows and series; a shape that gets
    /// its own row is not new.
    fn may_hide(&self, pair: &Pair<'_>, is_more: bool) -> bool {
        let ((less, lesser), (more, greater)) = match is_more {
            true => ((pair.before, self.before), (pair.now, self.now)),
            false => ((pair.now, self.now), (pair.before, self.before)),
        };
        let mut other = Figures::default();
        let others = lesser.series.iter();
        others
            .filter(|(label, _)| may_stand_for(label, pair.label))
            .for_each(|(_, figures)| other.merge(figures));
        if other.count == 0 {
            return false;
        }
        let scale = MIN_RATE_RATIO * greater.length.as_secs_f64() / lesser.length.as_secs_f64();
        let time = |figures: &Figures| figures.load().as_secs_f64();
        float(less.count + other.count) * scale > float(more.count)
            && (time(less) + time(&other)) * scale > time(more)
    }

    /// True if a shape that seems new or vanished only has another text. Seawall learns that names
    /// below a prefix are data; from then on, the shapes that differed in these names are one
    /// shape.
    fn is_renamed(&self, pair: &Pair<'_>) -> bool {
        let is_new = |pair: &Pair<'_>| pair.before.count == 0;
        let is_gone = |pair: &Pair<'_>| pair.now.count == 0;
        let mut others = self.pairs.iter();
        if is_new(pair) {
            others.any(|other| is_gone(other) && covers(pair.label, other.label))
        } else {
            is_gone(pair) && others.any(|other| is_new(other) && covers(other.label, pair.label))
        }
    }

    fn weights(&self, pair: &Pair<'_>) -> [Option<(ChangeKind, f64)>; 3] {
        let heavier = |kind, of: fn(&Figures) -> u64, floor| {
            let (before, now) = (of(pair.before), of(pair.now));
            self.weight(pair, before, now, floor)
                .map(|ratio| (kind, ratio))
        };
        [
            heavier(ChangeKind::HeavierRequests, |f| f.request_bytes, MIN_BYTES),
            heavier(ChangeKind::HeavierReplies, |f| f.reply_bytes, MIN_BYTES),
            heavier(ChangeKind::MoreDocuments, |f| f.documents, MIN_DOCUMENTS),
        ]
    }

    /// The ratio of two sums per operation, if the later one is larger by a relevant amount.
    fn weight(&self, pair: &Pair<'_>, before: u64, now: u64, floor: f64) -> Option<f64> {
        if pair.before.count.min(pair.now.count) < MIN_OPERATIONS {
            return None;
        }
        let (n_before, n_now) = (float(pair.before.count), float(pair.now.count));
        let (mean_before, mean_now) = (float(before) / n_before, float(now) / n_now);
        let variance = mean_before.powi(2) / n_before + mean_now.powi(2) / n_now;
        let difference = mean_now - mean_before;
        let is_relevant = difference >= floor && mean_now >= MIN_WEIGHT_RATIO * mean_before;
        let is_significant =
            || self.is_significant(difference / (WEIGHT_DEVIATION * variance.sqrt()));
        (is_relevant && is_significant()).then(|| mean_now * n_before / float(before.max(1)))
    }

    /// Changes of all shapes together, measured by the median shape: the whole's own figures also
    /// change with the mix of shapes.
    fn whole(&self) -> Vec<(f64, Change)> {
        let Some((label, _)) = self.now.series.get_key_value(&Label::Whole) else {
            return Vec::new();
        };
        let pair = self.pair(label);
        let of = |number: &usize| self.pairs.get(*number);
        let effects = (self.slowdowns.iter().filter_map(|(number, _)| of(number)))
            .map(|pair| ranks(&pair.before.durations, &pair.now.durations, 0).effect);
        let effect = middle(effects.collect()).unwrap_or(0.5);
        // With so few shapes, each was compared without the others, so the whole is not reported.
        let common = |ratios: &Ratios| match ratios.len() > MIN_OTHERS {
            true => drift(ratios, usize::MAX).unwrap_or(0.0),
            false => 0.0,
        };
        let (slowdown, rate) = (common(&self.slowdowns), common(&self.rates));
        let difference = (median(pair.now) - median(pair.before)).abs();
        let is_slower = slowdown.abs() >= MIN_DRIFT.ln()
            && difference >= MIN_DIFFERENCE.as_secs_f64()
            && (effect - 0.5).abs() >= MIN_EFFECT - 0.5;
        let slower = is_slower.then(|| match slowdown > 0.0 {
            true => (ChangeKind::Slower, slowdown.exp()),
            false => (ChangeKind::Faster, slowdown.exp()),
        });
        let frequent = (rate.abs() >= MIN_RATE_RATIO.ln()).then(|| match rate > 0.0 {
            true => (ChangeKind::MoreFrequent, rate.exp()),
            false => (ChangeKind::LessFrequent, rate.exp()),
        });
        [slower, frequent]
            .into_iter()
            .flatten()
            .map(|(kind, ratio)| self.change(&pair, kind, ratio, effect))
            .collect()
    }

    /// True if a standard normal deviate is significant among all shapes. The tail of the normal
    /// distribution is bounded by exp(-z²/2)/2. With Bonferroni's correction the probabilities are
    /// so small that this bound is close.
    fn is_significant(&self, z: f64) -> bool {
        let comparisons = float(u64::try_from(self.pairs.len()).unwrap_or(u64::MAX));
        z * z >= 2.0 * (comparisons / ALPHA).ln()
    }
}

/// Time that operations cost the servers per second of the period, in seconds.
fn load_per_second(figures: &Figures, period: &Period) -> f64 {
    figures.load().as_secs_f64() / period.length.as_secs_f64()
}

/// True if the series `others` may include operations of `shape`.
fn may_stand_for(others: &Label, shape: &Label) -> bool {
    let namespace = |label: &Label| match label {
        Label::Shape {
            command,
            db,
            collection,
            ..
        } => Some((command.clone(), db.clone(), collection.clone())),
        _ => None,
    };
    match others {
        Label::OtherShapes => true,
        Label::Shape { level, .. } => {
            *level != Level::Fine && namespace(others) == namespace(shape)
        }
        _ => false,
    }
}

/// The part of the common drift that is subtracted from a shape's change. Drift in the opposite
/// direction is ignored, because it would make the change look larger.
fn allowed(drift: Option<f64>, change: f64) -> f64 {
    let drift = drift.unwrap_or(0.0);
    if change > 0.0 {
        drift.max(0.0)
    } else {
        drift.min(0.0)
    }
}

/// The median of the ratios of all shapes but one.
fn drift(ratios: &Ratios, but: usize) -> Option<f64> {
    let others = others(ratios, but);
    if others.len() < MIN_OTHERS {
        return None;
    }
    middle(others)
}

/// The spread of the other shapes' ratios: their standard deviation, estimated from the median
/// absolute deviation.
fn spread(ratios: &Ratios, but: usize) -> f64 {
    let Some(drift) = drift(ratios, but) else {
        return 0.0;
    };
    let deviations = others(ratios, but).into_iter().map(|r| (r - drift).abs());
    middle(deviations.collect()).unwrap_or(0.0) * 1.4826
}

fn others(ratios: &Ratios, but: usize) -> Vec<f64> {
    let others = ratios.iter().filter(|(number, _)| *number != but);
    others.map(|(_, ratio)| *ratio).collect()
}

/// The median. For an even number of values, the mean of the two middle ones.
fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    let lower = values.len().checked_sub(1)? / 2;
    Some((values.get(lower)? + values.get(upper)?) / 2.0)
}

fn median(figures: &Figures) -> f64 {
    figures.durations.quantile(0.5).as_secs_f64()
}

#[expect(
    clippy::as_conversions,
    reason = "saturates, and is a few hundred at the most"
)]
fn whole_number(number: f64) -> i64 {
    number as i64
}
