//! Finds changes between two periods: shapes that are new or gone, slower or faster, more or less
//! frequent, or heavier.
//!
//! Two minutes of the same load are never equal. A machine may become a third slower for all shapes
//! together, and the 99th percentile of a small sample can double by chance. So the change of each
//! shape is compared with the changes of the *other* shapes. A change is reported only if it is
//! statistically significant (corrected for the number of shapes), large, and relevant in absolute
//! terms. A change that all shapes have in common is reported once, with the label
//! [`Label::Whole`]. Two kinds of changes are reported without a test of significance: such common
//! changes, and new shapes with a high cost.
//!
//! Durations are compared by a rank test (see `ranks`), which assumes no distribution and is not
//! misled by a single stall. The reported ratio compares the medians, not the means. One operation
//! of 3 s among a hundred operations of 1 ms would make the mean thirty times as long. A shape is
//! therefore not reported if only its slowest operations became slower.

use std::{
    collections::{BTreeMap, BTreeSet},
    f64::consts::LN_2,
    sync::Arc,
    time::Duration,
};

use groups::Groups;
use ratios::{Ratios, Sorted, Spreads};
use renamed::Renames;
use seawall_stats::{Figures, Label, Level, Period, float, float_usize};

pub use ranks::{Ranks, ranks};

mod groups;
mod ranks;
mod ratios;
mod renamed;
#[cfg(test)]
mod tests;

/// One change of a shape, or of all shapes together.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The shape that changed, or [`Label::Whole`] for a change of all shapes together.
    pub label: Arc<Label>,
    /// Counts and times of the operations that `label` selects in the earlier period; empty for a
    /// new shape.
    pub before: Figures,
    /// Counts and times of the operations that `label` selects in the later period; empty for a
    /// shape that is gone.
    pub now: Figures,
    /// The later value divided by the earlier value. The kind selects the value: median duration,
    /// operations per second, bytes per operation or documents per operation. The ratio is always
    /// finite: a total of zero operations, bytes or documents is replaced by one. For
    /// [`Label::Whole`], the ratio is the median of the shapes' ratios.
    pub ratio: f64,
    /// Share of pairs (an earlier and a later operation) in which the later operation takes longer.
    /// A pair with equal durations counts half. 0.5 if nothing changed or nothing can be compared.
    /// For [`Label::Whole`], the median of the shapes' effects.
    pub effect: f64,
    /// Increase of the operation time per second from the earlier to the later period; zero if the
    /// time decreased.
    pub cost_per_second: Duration,
}

/// The ways in which a shape can change.
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
    /// The shape has more operations per second.
    MoreFrequent,
    /// The shape has fewer operations per second.
    LessFrequent,
    /// The commands have more bytes per operation.
    HeavierRequests,
    /// The replies have more bytes per operation.
    HeavierReplies,
    /// Each operation returns, writes or counts more documents on average.
    MoreDocuments,
}

impl ChangeKind {
    /// The name in the JSON of the API.
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

/// Minimum number of operations that a shape must have in each period to be compared. The median of
/// fewer durations can change much by chance. A change of the operations per second needs this
/// number in only one of the periods.
const MIN_OPERATIONS: u64 = 30;

/// Minimum number of operations that a shape must have in each period to be used in [`Spreads`]:
/// the standard deviation of the shapes' ratios (later divided by earlier median duration).
const STEADY_OPERATIONS: u64 = 100;

/// Minimum ratio of a shape's slowdown to the drift (the change that all shapes have in common). A
/// shape with a smaller ratio is not reported.
const MIN_RATIO: f64 = 1.5;

/// Minimum drift (the change that all shapes have in common) that is reported as a change of all
/// shapes. If the drift is unknown, this is also the minimum slowdown of a shape that is reported.
/// A machine that is 30 % faster in one period and 30 % slower in the other causes a ratio of 1.9,
/// which must not be reported.
const MIN_DRIFT: f64 = 2.5;

/// A shape is reported as slower or faster only if its ratio differs enough from the drift: by this
/// many standard deviations of the other shapes' ratios. The ratio is the later divided by the
/// earlier median duration. The drift is the change that all shapes have in common.
/// [`ENOUGH_RATIO`] is an exception.
const SPREADS: f64 = 3.5;

/// A slowdown that exceeds the drift by this factor is reported even if the other shapes' ratios
/// vary much.
const ENOUGH_RATIO: f64 = 3.0;

/// Minimum effect (see [`Change::effect`]) of a shape that is reported as slower. The effect of a
/// shape that is reported as faster is at most one minus this number.
const MIN_EFFECT: f64 = 0.7;

/// Minimum difference of the median durations in a change to slower or faster. In a change of one
/// shape (not of all shapes together), the earlier median is first multiplied by the drift.
const MIN_DIFFERENCE: Duration = Duration::from_micros(100);

/// For each kind of change: the accepted probability that chance alone makes a comparison report
/// this change for at least one shape.
const ALPHA: f64 = 0.001;

/// A shape is reported as more or less frequent only if its operations per second changed by at
/// least this factor. Before the comparison, the change is divided by the drift (the change that
/// all shapes have in common).
const MIN_RATE_RATIO: f64 = 3.0;

/// Assumed ratio of the variance of an operation count to its mean. The ratio is 1 if operations
/// are independent, and larger if they come in bursts.
const OVERDISPERSION: f64 = 5.0;

/// Minimum number of operations of a new shape that is reported because of its cost (operation time
/// per second).
const MIN_COSTLY: u64 = 3;

/// A new shape is reported because of its cost only if its operations take at least this much time
/// per second on average.
const MIN_COST_PER_SECOND: Duration = Duration::from_millis(10);

/// Minimum share of a new shape in the cost of all operations, if the shape is reported because of
/// its cost.
const COSTLY_SHARE: f64 = 0.1;

/// A shape is reported as new or gone only if the period without this shape has at least this
/// length. A rare shape may have no operation in a shorter period by chance.
const MIN_LENGTH: Duration = Duration::from_secs(30);

/// A change of the bytes or documents per operation is reported only if the later value is at least
/// this many times the earlier value.
const MIN_WEIGHT_RATIO: f64 = 2.0;

/// Assumed standard deviation of bytes and documents per operation, divided by the mean. It cannot
/// be measured, because the history keeps only sums.
const WEIGHT_DEVIATION: f64 = 2.0;

/// Minimum increase of the bytes per operation in a reported change.
const MIN_BYTES: f64 = 512.0;

/// Minimum increase of the documents per operation in a reported change.
const MIN_DOCUMENTS: f64 = 1.0;

/// The changes from `before` to `now`. First come the changes that increase the operation time per
/// second, the greatest increase first. Then come the others, the greatest decrease first. Changes
/// of all shapes together come last: if a single shape changed more than all others, this shape is
/// more likely the cause of a problem. Empty if a period has no operations.
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

/// The figures of one series (of a shape, or of all operations) in both periods.
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

    /// Natural logarithm of the slowdown: the later divided by the earlier median duration. `None`
    /// if one of the medians is zero, or if one of the periods has fewer than [`MIN_OPERATIONS`]
    /// operations.
    fn slowdown(&self) -> Option<f64> {
        let (before, now) = (median(self.before), median(self.now));
        (self.has(MIN_OPERATIONS) && before > 0.0 && now > 0.0).then(|| (now / before).ln())
    }
}

struct Comparison<'a> {
    before: &'a Period,
    now: &'a Period,
    nothing: &'a Figures,
    pairs: Vec<Pair<'a>>,
    groups_before: Groups<'a>,
    groups_now: Groups<'a>,
    renames: Renames<'a>,
    /// Logarithms of the ratios of median durations, for shapes with at least [`MIN_OPERATIONS`]
    /// operations in each period.
    slowdowns: Ratios,
    /// Standard deviations of the logarithms of the ratios of median durations, for shapes with at
    /// least [`STEADY_OPERATIONS`] operations in each period.
    spreads: Spreads,
    /// Logarithms of the ratios of operations per second, for shapes with at least
    /// [`MIN_OPERATIONS`] operations in each period.
    rates: Ratios,
}

impl<'a> Comparison<'a> {
    fn of(before: &'a Period, now: &'a Period, nothing: &'a Figures) -> Self {
        let labels: BTreeSet<_> = before.series.keys().chain(now.series.keys()).collect();
        // A group row ([`Level::Coarse`] or [`Level::Rest`]) counts several shapes. It is not
        // compared, because its operations change whenever one of its shapes gets or loses its own
        // row.
        let is_shape = |label: &&Arc<Label>| {
            matches!(
                ***label,
                Label::Shape {
                    level: Level::Fine,
                    ..
                }
            )
        };
        let mut comparison = Self {
            before,
            now,
            nothing,
            pairs: Vec::new(),
            groups_before: Groups::of(before),
            groups_now: Groups::of(now),
            renames: Renames::of(before, now),
            slowdowns: Ratios::default(),
            spreads: Spreads::of(&Ratios::default()),
            rates: Ratios::default(),
        };
        let labels = labels.into_iter().filter(is_shape);
        comparison.pairs = labels.map(|label| comparison.pair(label)).collect();
        comparison.compute_ratios();
        comparison
    }

    fn compute_ratios(&mut self) {
        let (mut slowdowns, mut steady, mut rates) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (number, pair) in self.pairs.iter().enumerate() {
            if let Some(slowdown) = pair.slowdown() {
                slowdowns.insert(number, slowdown);
                if pair.has(STEADY_OPERATIONS) {
                    steady.insert(number, slowdown);
                }
            }
            if pair.before.count.min(pair.now.count) >= MIN_OPERATIONS {
                rates.insert(number, self.rate(pair));
            }
        }
        self.slowdowns = Ratios::of(slowdowns);
        self.spreads = Spreads::of(&Ratios::of(steady));
        self.rates = Ratios::of(rates);
    }

    fn pair(&self, label: &'a Arc<Label>) -> Pair<'a> {
        Pair {
            label,
            before: self.before.series.get(label).unwrap_or(self.nothing),
            now: self.now.series.get(label).unwrap_or(self.nothing),
        }
    }

    /// Natural logarithm of the ratio of the operations per second (later divided by earlier);
    /// infinite if one of the two rates is zero, NaN if both are zero.
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
        let common = self.slowdowns.drift_without(number);
        let allowed = allowed(common, slowdown);
        let least = match common {
            Some(_) => {
                (SPREADS * self.spreads.without(number)).clamp(MIN_RATIO.ln(), ENOUGH_RATIO.ln())
            }
            None => MIN_DRIFT.ln(),
        };
        let difference = (median(pair.now) - median(pair.before) * allowed.exp()).abs();
        if (slowdown - allowed).abs() < least || difference < MIN_DIFFERENCE.as_secs_f64() {
            return None;
        }
        // Before the rank test, the earlier durations are multiplied by the allowed drift. The
        // buckets are logarithmic, with 8 buckets per doubling, so this is a shift of the buckets.
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

    /// Compares the operation counts by their square roots, whose variance is nearly independent of
    /// the counts.
    fn frequency(&self, number: usize, pair: &Pair<'_>) -> Option<(ChangeKind, f64)> {
        let ratio = self.rate(pair);
        if ratio.is_nan() {
            return None;
        }
        let allowed = allowed(self.rates.drift_without(number), ratio);
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
        if self.is_renamed(number, pair) {
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

    /// True if a new shape with few operations is reported because of its cost.
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

    /// True if the shape may only seem to have become more or less frequent. Only the shapes with
    /// the greatest server load have their own rows and series. Operations of other shapes are
    /// counted in [`Label::OtherShapes`] or in a group row (a row that counts several shapes of a
    /// namespace together). Some operations of this shape may be counted there in the period in
    /// which the shape seems less frequent. For example, a shape that just got its own row must not
    /// be reported as new. `is_more` is true if the shape seems more frequent in the later period.
    fn may_hide(&self, pair: &Pair<'_>, is_more: bool) -> bool {
        let (before, now) = ((pair.before, self.before), (pair.now, self.now));
        let ((less, lesser), (more, greater), groups) = match is_more {
            true => (before, now, &self.groups_before),
            false => (now, before, &self.groups_now),
        };
        let other = groups.may_include(pair.label);
        if other.count == 0 {
            return false;
        }
        let scale = MIN_RATE_RATIO * greater.length.as_secs_f64() / lesser.length.as_secs_f64();
        let time = |figures: &Figures| figures.load().as_secs_f64();
        float(less.count + other.count) * scale > float(more.count)
            && (time(less) + other.time.as_secs_f64()) * scale > time(more)
    }

    /// True if a shape seems new or gone, but only its text changed. When Seawall learns that some
    /// field names are data, such as the user names in `points.bob` and `points.alice`, it replaces
    /// them by `*`. The shapes that differed only in these names then become one shape with a new
    /// text. A restart forgets the learned names. The one shape then becomes several shapes again,
    /// until the names have been learned again.
    fn is_renamed(&self, number: usize, pair: &Pair<'_>) -> bool {
        let load = self.rates.drift_without(number).unwrap_or(0.0).exp();
        // The shape with the other text may occur in both periods, because learning the names takes
        // some time. So only the counts of this shape are checked here.
        match (pair.before.count, pair.now.count) {
            (0, _) => self.renames.occurred_before(pair.label, load),
            (_, 0) => self.renames.occurs_now(pair.label, load),
            _ => false,
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

    /// The bytes or documents per operation in the later period, divided by those in the earlier
    /// period. `before` and `now` are the bytes or documents of all operations in the two periods.
    /// `None` in each of these cases: a period has fewer than [`MIN_OPERATIONS`] operations; the
    /// increase is less than `floor`; the ratio is less than [`MIN_WEIGHT_RATIO`]; the increase may
    /// be due to chance.
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

    /// Changes of all shapes together, measured by the median of the shapes' ratios. The ratio of
    /// all operations together is not used, because it also changes when the mix of shapes changes.
    fn whole(&self) -> Vec<(f64, Change)> {
        let Some((label, _)) = self.now.series.get_key_value(&Label::Whole) else {
            return Vec::new();
        };
        let pair = self.pair(label);
        let shapes = self.slowdowns.shapes();
        let effects = (shapes.filter_map(|number| self.pairs.get(number)))
            .map(|pair| ranks(&pair.before.durations, &pair.now.durations, 0).effect);
        let effect = Sorted::of(effects).median().unwrap_or(0.5);
        let slowdown = self.slowdowns.drift().unwrap_or(0.0);
        let rate = self.rates.drift().unwrap_or(0.0);
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

    /// True if `z` is too far from zero to be due to chance. Without a real change, `z` has a
    /// standard normal distribution. The accepted probability ([`ALPHA`]) is divided by the number
    /// of shapes (Bonferroni's correction). The probability that `z` is at least this far from
    /// zero, in either direction, is at most exp(-z²/2). This function compares this upper bound
    /// with the accepted probability. The bound is several times the exact probability, so the test
    /// is stricter than necessary.
    fn is_significant(&self, z: f64) -> bool {
        let comparisons = float_usize(self.pairs.len());
        z * z >= 2.0 * (comparisons / ALPHA).ln()
    }
}

/// Average server load in the period: seconds of operation time per second.
fn load_per_second(figures: &Figures, period: &Period) -> f64 {
    figures.load().as_secs_f64() / period.length.as_secs_f64()
}

/// The amount of drift that is subtracted from a shape's change. A drift in the opposite direction
/// is ignored, because its subtraction would make the change look larger.
fn allowed(drift: Option<f64>, change: f64) -> f64 {
    let drift = drift.unwrap_or(0.0);
    if change > 0.0 {
        drift.max(0.0)
    } else {
        drift.min(0.0)
    }
}

fn median(figures: &Figures) -> f64 {
    figures.durations.quantile(0.5).as_secs_f64()
}

#[expect(
    clippy::as_conversions,
    reason = "the conversion saturates, and the number is at most a few hundred"
)]
fn whole_number(number: f64) -> i64 {
    number as i64
}
