//! What changed between two periods: new and vanished shapes, slower and faster, more frequent, heavier.
//!
//! Two minutes of the same load are never alike: machines drift by a third, for all shapes together, and the tail of a
//! small sample doubles for nothing. So a shape is held against what the *others* did meanwhile, and it counts only what
//! is at once certain (tested, and corrected for the number of shapes), large, and of some size in itself. What all
//! shapes did together is said once, of the whole.
//!
//! Durations are compared by a rank test (see `ranks`): it asks for no form of distribution, and a single stall does
//! not sway it. The ratio is that of the medians for the same reason: one operation of 3 s among a hundred of 1 ms
//! makes their mean thirty times as long. So a shape of which only a tail got slower is not called slower.

use std::{collections::BTreeSet, f64::consts::LN_2, sync::Arc, time::Duration};

use super::{Figures, Label, Level, Period};
use ranks::ranks;
use renamed::covers;

mod ranks;
mod renamed;
#[cfg(test)]
mod tests;

/// One thing that changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// What.
    pub kind: ChangeKind,
    /// Of a shape, or of the whole.
    pub label: Arc<Label>,
    /// What it came to before; nothing, if it is new.
    pub before: Figures,
    /// What it comes to now; nothing, if it is gone.
    pub now: Figures,
    /// Now over before, of what the kind is about: median duration, operations a second, bytes or documents an
    /// operation; always finite: where there was none, as if there had been one. Of the whole: of the median shape.
    pub ratio: f64,
    /// The share of pairs, one of before and one of now, of which that of now took longer (ties count half): 0.5 if
    /// nothing changed, or if there is nothing to compare. Of the whole: of the median shape.
    pub effect: f64,
    /// Additional time of operations a second; zero if there is less of it.
    pub cost_per_second: Duration,
}

/// What can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// Not seen before.
    New,
    /// Not seen any more.
    Gone,
    /// Takes longer.
    Slower,
    /// Takes less long.
    Faster,
    /// More operations a second.
    MoreFrequent,
    /// Fewer operations a second.
    LessFrequent,
    /// More bytes a command.
    HeavierRequests,
    /// More bytes a reply.
    HeavierReplies,
    /// More documents an operation.
    MoreDocuments,
}

impl ChangeKind {
    /// The name in the API.
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

/// Operations on each side without which nothing is compared.
const LEAST_OPERATIONS: u64 = 30;

/// Operations on each side of a shape that helps to tell how unlike the shapes moved.
const STEADY_OPERATIONS: u64 = 100;

/// Other shapes without which nothing is known of a common drift.
const LEAST_OTHERS: usize = 3;

/// How much slower than the others a shape must have become.
const LEAST_RATIO: f64 = 1.5;

/// The same where the drift is not known, and of the drift itself: a third up after a third down is 1.9.
const LEAST_DRIFT: f64 = 2.5;

/// Times the spread of the other shapes' ratios (in standard deviations) that a shape must stand out.
const SPREADS: f64 = 3.5;

/// What is this much slower than the others stands out of any spread.
const ENOUGH_RATIO: f64 = 3.0;

/// The least effect.
const LEAST_EFFECT: f64 = 0.7;

/// The least difference of medians.
const LEAST_DIFFERENCE: Duration = Duration::from_micros(100);

/// The chance of a false alarm of one comparison of all shapes, for each kind of change.
const ALPHA: f64 = 0.001;

/// How much more frequent than the others a shape must have become.
const LEAST_RATE_RATIO: f64 = 3.0;

/// Variance of a count over its mean: operations come in bursts, so more than the 1 of independent ones.
const OVERDISPERSION: f64 = 5.0;

/// Operations of a new shape that are told for what they cost.
const LEAST_COSTLY: u64 = 3;

/// What they must cost, of each second …
const LEAST_COST_PER_SECOND: Duration = Duration::from_millis(10);

/// … and of what all operations cost.
const COSTLY_SHARE: f64 = 0.1;

/// A period in which a shape is missed.
const LEAST_LENGTH: Duration = Duration::from_secs(30);

/// How much heavier an operation must have become.
const LEAST_WEIGHT_RATIO: f64 = 2.0;

/// Supposed standard deviation over mean of an operation's bytes and documents, of which only sums are known.
const WEIGHT_DEVIATION: f64 = 2.0;

/// The least difference in bytes an operation.
const LEAST_BYTES: f64 = 512.0;

/// The least difference in documents an operation.
const LEAST_DOCUMENTS: f64 = 1.0;

/// What changed from `before` to `now`, the costliest first; the whole comes last: if a shape stands out, it is the
/// likelier cause. Nothing if either is empty.
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
        (self.has(LEAST_OPERATIONS) && before > 0.0 && now > 0.0).then(|| (now / before).ln())
    }
}

/// A logarithm of a ratio, by the number of the shape.
type Ratios = Vec<(usize, f64)>;

struct Comparison<'a> {
    before: &'a Period,
    now: &'a Period,
    nothing: &'a Figures,
    pairs: Vec<Pair<'a>>,
    /// Of medians, where there are enough operations.
    slowdowns: Ratios,
    /// The same where there are many.
    steady_slowdowns: Ratios,
    /// Of operations a second, where there are enough operations.
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
        // What stands for several shapes is other shapes whenever one of them gets a row of its own, or loses it.
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
            if pair.before.count.min(pair.now.count) >= LEAST_OPERATIONS {
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
                .clamp(LEAST_RATIO.ln(), ENOUGH_RATIO.ln()),
            None => LEAST_DRIFT.ln(),
        };
        let difference = (median(pair.now) - median(pair.before) * allowed.exp()).abs();
        if (slowdown - allowed).abs() < least || difference < LEAST_DIFFERENCE.as_secs_f64() {
            return None;
        }
        // To multiply durations is to shift their buckets.
        let shift = whole_number((allowed * 8.0 / LN_2).round());
        let ranks = ranks(&pair.before.durations, &pair.now.durations, shift);
        let kind = if slowdown > 0.0 && ranks.effect >= LEAST_EFFECT {
            ChangeKind::Slower
        } else if slowdown < 0.0 && ranks.effect <= 1.0 - LEAST_EFFECT {
            ChangeKind::Faster
        } else {
            return None;
        };
        self.is_significant(ranks.z).then(|| (kind, slowdown.exp()))
    }

    /// Counts are compared by their square roots, whose variance hardly depends on them.
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
        let is_relevant = before.max(now) >= LEAST_OPERATIONS
            && (ratio - allowed).abs() >= LEAST_RATE_RATIO.ln()
            && self.is_significant(z);
        if !(is_relevant || self.is_costly_and_new(pair)) || self.may_hide(pair, ratio > 0.0) {
            return None;
        }
        if self.is_renamed(pair) {
            return None;
        }
        let kind = match (before, now) {
            (0, _) if self.before.length >= LEAST_LENGTH => ChangeKind::New,
            (_, 0) if self.now.length >= LEAST_LENGTH => ChangeKind::Gone,
            (0, _) | (_, 0) => return None,
            _ if ratio > 0.0 => ChangeKind::MoreFrequent,
            _ => ChangeKind::LessFrequent,
        };
        let ratio = float(now.max(1)) / float(before.max(1)) / lengths;
        Some((kind, ratio))
    }

    /// A few operations that take the servers this much time count whatever their number.
    fn is_costly_and_new(&self, pair: &Pair<'_>) -> bool {
        let Some(all) = self.now.series.get(&Label::Whole) else {
            return false;
        };
        let cost = load_per_second(pair.now, self.now);
        pair.before.count == 0
            && pair.now.count >= LEAST_COSTLY
            && self.before.length >= self.now.length
            && cost >= LEAST_COST_PER_SECOND.as_secs_f64()
            && cost >= COSTLY_SHARE * load_per_second(all, self.now)
    }

    /// Whether the operations that one period lacks may be among its [`Label::OtherShapes`], or in the rows that stand for
    /// several shapes of the namespace: only the heaviest have rows and series, and one that comes to have one is not new.
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
        let scale = LEAST_RATE_RATIO * greater.length.as_secs_f64() / lesser.length.as_secs_f64();
        let time = |figures: &Figures| figures.load().as_secs_f64();
        float(less.count + other.count) * scale > float(more.count)
            && (time(less) + time(&other)) * scale > time(more)
    }

    /// Whether a shape that is new or gone is only told by another text: what names below a prefix are data is learned,
    /// and from then on the shapes that differed by them are one.
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
            heavier(
                ChangeKind::HeavierRequests,
                |f| f.request_bytes,
                LEAST_BYTES,
            ),
            heavier(ChangeKind::HeavierReplies, |f| f.reply_bytes, LEAST_BYTES),
            heavier(ChangeKind::MoreDocuments, |f| f.documents, LEAST_DOCUMENTS),
        ]
    }

    /// The ratio of two sums an operation, if the second is relevantly greater.
    fn weight(&self, pair: &Pair<'_>, before: u64, now: u64, floor: f64) -> Option<f64> {
        if pair.before.count.min(pair.now.count) < LEAST_OPERATIONS {
            return None;
        }
        let (n_before, n_now) = (float(pair.before.count), float(pair.now.count));
        let (mean_before, mean_now) = (float(before) / n_before, float(now) / n_now);
        let variance = mean_before.powi(2) / n_before + mean_now.powi(2) / n_now;
        let difference = mean_now - mean_before;
        let is_relevant = difference >= floor && mean_now >= LEAST_WEIGHT_RATIO * mean_before;
        let is_significant =
            || self.is_significant(difference / (WEIGHT_DEVIATION * variance.sqrt()));
        (is_relevant && is_significant()).then(|| mean_now * n_before / float(before.max(1)))
    }

    /// What all shapes did together. It is told by the median shape: the whole's own figures also change with the mix.
    fn whole(&self) -> Vec<(f64, Change)> {
        let Some((label, _)) = self.now.series.get_key_value(&Label::Whole) else {
            return Vec::new();
        };
        let pair = self.pair(label);
        let of = |number: &usize| self.pairs.get(*number);
        let effects = (self.slowdowns.iter().filter_map(|(number, _)| of(number)))
            .map(|pair| ranks(&pair.before.durations, &pair.now.durations, 0).effect);
        let effect = middle(effects.collect()).unwrap_or(0.5);
        // Of so few that each is compared without the others, nothing is said of the whole.
        let common = |ratios: &Ratios| match ratios.len() > LEAST_OTHERS {
            true => drift(ratios, usize::MAX).unwrap_or(0.0),
            false => 0.0,
        };
        let (slowdown, rate) = (common(&self.slowdowns), common(&self.rates));
        let difference = (median(pair.now) - median(pair.before)).abs();
        let is_slower = slowdown.abs() >= LEAST_DRIFT.ln()
            && difference >= LEAST_DIFFERENCE.as_secs_f64()
            && (effect - 0.5).abs() >= LEAST_EFFECT - 0.5;
        let slower = is_slower.then(|| match slowdown > 0.0 {
            true => (ChangeKind::Slower, slowdown.exp()),
            false => (ChangeKind::Faster, slowdown.exp()),
        });
        let frequent = (rate.abs() >= LEAST_RATE_RATIO.ln()).then(|| match rate > 0.0 {
            true => (ChangeKind::MoreFrequent, rate.exp()),
            false => (ChangeKind::LessFrequent, rate.exp()),
        });
        [slower, frequent]
            .into_iter()
            .flatten()
            .map(|(kind, ratio)| self.change(&pair, kind, ratio, effect))
            .collect()
    }

    /// Whether a standard normal deviate is out of the ordinary among all shapes. A tail of the normal distribution
    /// is bounded by exp(-z²/2)/2 (Bonferroni's correction makes it so much rarer that the bound is close).
    fn is_significant(&self, z: f64) -> bool {
        let comparisons = float(u64::try_from(self.pairs.len()).unwrap_or(u64::MAX));
        z * z >= 2.0 * (comparisons / ALPHA).ln()
    }
}

/// What operations cost the servers in each second of a period, in seconds.
fn load_per_second(figures: &Figures, period: &Period) -> f64 {
    figures.load().as_secs_f64() / period.length.as_secs_f64()
}

/// Whether operations of a shape without a row may be among those of another series.
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

/// The part of the common drift that is held in favour of a shape: none of what would make its change look larger.
fn allowed(drift: Option<f64>, change: f64) -> f64 {
    let drift = drift.unwrap_or(0.0);
    if change > 0.0 {
        drift.max(0.0)
    } else {
        drift.min(0.0)
    }
}

/// The median of the other shapes' ratios.
fn drift(ratios: &Ratios, but: usize) -> Option<f64> {
    let others = others(ratios, but);
    if others.len() < LEAST_OTHERS {
        return None;
    }
    middle(others)
}

/// How unlike the other shapes moved: the standard deviation, told by the median absolute deviation.
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

/// The median; the mean of the two in the middle.
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
    reason = "counts within 2^53, or a rounding that no threshold feels"
)]
fn float(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::as_conversions,
    reason = "saturates, and is a few hundred at the most"
)]
fn whole_number(number: f64) -> i64 {
    number as i64
}
