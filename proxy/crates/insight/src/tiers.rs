//! The history in four resolutions, called tiers: steps of 1 s for 10 minutes, 10 s for an hour, 1
//! minute for a day, and 10 minutes for eight days.
//!
//! A long step is the sum of the short steps that it covers. So its percentiles are computed from
//! all operations, and are never means of percentiles. Steps that have ended are packed into few
//! bytes. One limit bounds the bytes of all tiers together: if it is reached, the oldest step of
//! the tier with the most bytes is dropped. If a longer step in progress includes that step, a step
//! of another tier is dropped instead, because after a restart the longer step is rebuilt from its
//! short steps. Texts of shapes have a limit of their own, so that a client that always sends new
//! shapes cannot remove the history of all other clients. This module reads no clock: the caller
//! passes all times, in seconds since the epoch.

mod fitting;
mod names;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use self::{
    fitting::{ShapeLimits, fitting, limit_shapes},
    names::LabelStore,
};
use super::{annotations::Annotation, packed};
use seawall_stats::{Figures, Gauges, Label, Period};

/// Length of each tier's steps, and the time for which the tier keeps them, both in seconds. The
/// current period can be compared with a period that ended a week ago. That period began more than
/// a week ago, so the last tier keeps eight days.
pub const TIERS: [(u64, u64); 4] = [(1, 600), (10, 3_600), (60, 86_400), (600, 8 * 86_400)];

/// The figures of each second are added to the history. After a pause of at most this length, the
/// missed seconds are added as seconds without operations. After a longer pause (the machine slept,
/// for example, or the clock was set forward), the missed seconds stay unknown.
pub(super) const MAX_GAP_SECONDS: u64 = 60;

/// After missed seconds that stay unknown, no step expires for this time. So if the clock was wrong
/// and is soon set back, the history is not erased, unless the memory limit is reached.
const UNSURE_SECONDS: u64 = 300;

/// A step of more than a second keeps the figures of at most `LONG_STEP_FACTOR` × `max_shapes`
/// shapes, because different shapes may be heavy in different seconds.
const LONG_STEP_FACTOR: usize = 4;

/// One step of more than a second may use 1/32 of the memory limit for the labels of its shapes.
/// While the step is in progress, the labels may use twice as much. So the labels of the three
/// steps in progress use at most 6/32, which is less than all labels may use ([`LABEL_SHARE`]).
const STEP_LABEL_SHARE: usize = 32;

/// All labels together may use a quarter of the memory limit. At this limit, the history forgets
/// the labels of the shapes that occur in the fewest steps.
const LABEL_SHARE: usize = 4;

/// One step of a tier, packed into few bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Index of the tier in [`TIERS`].
    pub tier: usize,
    /// Start of the step, in seconds since the epoch.
    pub start: u64,
    /// Number of seconds of the step that have data. It is less than the step's length if a part of
    /// the step has no data, for example because Seawall started during the step.
    pub(super) seconds: u64,
    /// For each packed series, in the order of the series, the number that identifies its label. A
    /// number without a label belongs to a shape whose label was forgotten. Its figures count as
    /// [`Label::OtherShapes`].
    pub(super) labels: Box<[u32]>,
    pub(super) packed: Box<[u8]>,
    /// The packed gauges; empty if none was measured.
    pub(super) gauges: Box<[u8]>,
}

impl Frame {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.labels.len() * 4 + self.packed.len() + self.gauges.len()
    }
}

/// Changes of the history since the last [`History::take_delta`], to be written to the file.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// New frames.
    pub added: Vec<Arc<Frame>>,
    /// Removed frames, by tier and start.
    pub dropped: Vec<(usize, u64)>,
    /// New labels with their numbers.
    pub named: Vec<(u32, Arc<Label>)>,
    /// Numbers of removed labels.
    pub unnamed: Vec<u32>,
    /// New and changed annotations by number; `None` for a removed annotation.
    pub annotations: BTreeMap<u64, Option<Annotation>>,
}

impl Delta {
    /// Appends the changes of a later delta. If `self` adds a frame or a label and `later` removes
    /// it, the result neither adds nor removes it.
    pub(super) fn merge(&mut self, later: Self) {
        for key in later.dropped {
            self.drop_frame(key);
        }
        self.added.extend(later.added);
        for number in later.unnamed {
            let before = self.named.len();
            self.named.retain(|(named, _)| *named != number);
            if self.named.len() == before {
                self.unnamed.push(number);
            }
        }
        self.named.extend(later.named);
        self.annotations.extend(later.annotations);
    }

    fn drop_frame(&mut self, key: (usize, u64)) {
        let before = self.added.len();
        self.added.retain(|frame| (frame.tier, frame.start) != key);
        if self.added.len() == before {
            self.dropped.push(key);
        }
    }
}

/// One of the four resolutions of the history.
#[derive(Debug, Default)]
struct Tier {
    /// The steps that have ended, the earliest first.
    frames: VecDeque<Arc<Frame>>,
    /// Memory of `frames` in bytes.
    bytes: usize,
    /// The step that has not ended yet: its start, and its figures and gauges until now.
    open: Option<(u64, Sums)>,
}

/// The figures and the gauges of a step.
#[derive(Debug, Default)]
struct Sums {
    period: Period,
    gauges: Gauges,
}

impl Sums {
    /// Estimated memory of the series in bytes.
    fn bytes(&self) -> usize {
        let series = self.period.series.values();
        let heap: usize = series.map(|figures| figures.durations.heap_bytes()).sum();
        heap + self.period.series.len() * size_of::<(Arc<Label>, Figures)>()
    }
}

/// The history in memory.
#[derive(Debug)]
pub struct History {
    max_bytes: usize,
    max_shapes: usize,
    tiers: [Tier; 4],
    labels: LabelStore,
    dropped_early: u64,
    /// No step expires before this time (see [`UNSURE_SECONDS`]).
    expires_from: u64,
    delta: Delta,
}

impl History {
    /// Creates an empty history. `max_bytes` limits its memory. `max_shapes` limits the number of
    /// shapes that have their own figures in each second; all other shapes are counted together. In
    /// a longer step, at most four times as many shapes have their own figures.
    pub fn new(max_bytes: usize, max_shapes: usize) -> Self {
        Self {
            max_bytes,
            max_shapes,
            tiers: Default::default(),
            labels: LabelStore::new(),
            dropped_early: 0,
            expires_from: 0,
            delta: Delta::default(),
        }
    }

    /// Adds the second that began at `start`. The shapes with the greatest weights (see
    /// [`WeighedSeries`](seawall_stats::WeighedSeries)) keep their own series; all other shapes are
    /// summed in [`Label::OtherShapes`].
    pub fn add(
        &mut self,
        start: u64,
        second: BTreeMap<Arc<Label>, (Figures, f64)>,
        gauges: Gauges,
    ) {
        let period = Period {
            length: Duration::from_secs(1),
            series: self.choose(second),
        };
        self.check_gap(start);
        self.close_step(0, start, Sums { period, gauges });
        self.close_steps(start);
        self.expire(start);
        self.limit_labels();
        self.keep_within_bytes();
    }

    /// Delays the expiry of steps if many seconds are missing before `now`.
    fn check_gap(&mut self, now: u64) {
        if now.saturating_sub(self.covered_to(0)) > MAX_GAP_SECONDS {
            self.expires_from = now + UNSURE_SECONDS;
        }
    }

    /// Delays the expiry of steps after a restart at `now`, if many seconds are missing between two
    /// seconds in the file, or before `now`.
    fn check_gaps(&mut self, now: u64) {
        let [Tier { frames, .. }, ..] = &self.tiers;
        let neighbours = frames.iter().zip(frames.iter().skip(1));
        let ends_of_gaps = neighbours
            .map(|(frame, next)| (frame.start + 1, next.start))
            .filter(|(from, to)| to.saturating_sub(*from) > MAX_GAP_SECONDS)
            .map(|(_, to)| to);
        if let Some(last) = ends_of_gaps.max() {
            self.expires_from = last + UNSURE_SECONDS;
        }
        self.check_gap(now);
    }

    /// Closes the steps that have ended at `now`. Usually a step is closed when data of the next
    /// step is added. If there is no such data, for example because Seawall was not running, the
    /// step is closed here.
    fn close_steps(&mut self, now: u64) {
        for (tier, (length, _)) in TIERS.iter().enumerate() {
            let Some(place) = self.tiers.get_mut(tier) else {
                continue;
            };
            let over = place.open.take_if(|(open, _)| *open + length <= now);
            if let Some((start, sums)) = over {
                self.close_step(tier, start, sums);
            }
        }
    }

    /// Drops all steps that end after `now`, so that new seconds can be added after the clock was
    /// set back to `now`.
    pub(crate) fn rewind(&mut self, now: u64) {
        self.expires_from = self.expires_from.min(now);
        for (tier, (length, _)) in TIERS.iter().enumerate() {
            while let Some(place) = self.tiers.get_mut(tier) {
                place.open = None;
                let last = place.frames.back();
                if last.is_none_or(|frame| frame.start + length <= now) {
                    break;
                }
                if let Some(frame) = place.frames.pop_back() {
                    self.forget(&frame);
                }
            }
        }
        self.reopen();
    }

    fn choose(
        &self,
        second: BTreeMap<Arc<Label>, (Figures, f64)>,
    ) -> BTreeMap<Arc<Label>, Figures> {
        let is_shape = |label: &Label| matches!(label, Label::Shape { .. });
        let mut weights: Vec<_> = second
            .iter()
            .filter(|(label, _)| is_shape(label))
            .map(|(_, (_, weight))| *weight)
            .collect();
        weights.sort_by(|a, b| b.total_cmp(a));
        // `least` is the smallest weight that is kept. All shapes with this weight are kept, so
        // there may be slightly more than `max_shapes`.
        let least = weights.get(self.max_shapes.saturating_sub(1)).copied();
        let mut series = BTreeMap::<Arc<Label>, Figures>::new();
        for (label, (figures, weight)) in second {
            let is_light = is_shape(&label) && least.is_some_and(|least| weight < least);
            let label = if is_light {
                Arc::new(Label::OtherShapes)
            } else {
                label
            };
            match series.get_mut(&label) {
                Some(all) => all.merge(&figures),
                None => {
                    series.insert(label, figures);
                }
            }
        }
        series
    }

    /// Closes a step: packs it as a frame, and adds its figures and gauges to the longer step of
    /// the next tier.
    fn close_step(&mut self, tier: usize, start: u64, mut sums: Sums) {
        if tier > 0 {
            limit_shapes(&mut sums.period.series, self.limits_of_long_step());
        }
        let frame = Arc::new(self.frame(tier, start, &sums));
        self.delta.added.push(Arc::clone(&frame));
        let Some(place) = self.tiers.get_mut(tier) else {
            return;
        };
        place.bytes += frame.bytes();
        place.frames.push_back(frame);
        self.roll_up(tier + 1, start, &sums);
    }

    fn limits_of_long_step(&self) -> ShapeLimits {
        ShapeLimits {
            count: self.max_shapes.saturating_mul(LONG_STEP_FACTOR),
            label_bytes: self.max_bytes / STEP_LABEL_SHARE,
        }
    }

    fn roll_up(&mut self, tier: usize, start: u64, sums: &Sums) {
        let limits = self.limits_of_long_step();
        let (Some((length, _)), Some(place)) = (TIERS.get(tier), self.tiers.get_mut(tier)) else {
            return;
        };
        let begins = start - start % length;
        let over = place.open.take_if(|(open, _)| *open != begins);
        let (_, open) = place.open.get_or_insert_with(|| (begins, Sums::default()));
        open.period.merge(&sums.period);
        open.period.length += sums.period.length;
        open.gauges.merge(&sums.gauges);
        // Shapes are removed only if the limits are far exceeded, because a shape that is light now
        // can become heavy later in the step. This still bounds the memory of the step in progress.
        if limits.are_far_exceeded(&open.period.series) {
            limit_shapes(&mut open.period.series, limits);
        }
        if let Some((start, sums)) = over {
            self.close_step(tier, start, sums);
        }
    }

    fn frame(&mut self, tier: usize, start: u64, Sums { period, gauges }: &Sums) -> Frame {
        let series = fitting(&period.series, packed::MAX_UNPACKED_BYTES);
        let mut labels = Vec::with_capacity(series.len());
        for label in series.keys() {
            let (number, is_new) = self.labels.use_label(label);
            if is_new {
                self.delta.named.push((number, Arc::clone(label)));
            }
            labels.push(number);
        }
        let numbered = labels.iter().copied().zip(series.values());
        Frame {
            tier,
            start,
            seconds: period.length.as_secs(),
            packed: packed::pack(numbered).into(),
            labels: labels.into(),
            gauges: packed::pack_gauges(gauges).into(),
        }
    }

    /// Forgets labels of shapes if the labels use too much memory. Keeps the labels of the steps in
    /// progress: their texts stay in memory anyway.
    fn limit_labels(&mut self) {
        let max_bytes = self.max_bytes / LABEL_SHARE;
        if self.labels.bytes() <= max_bytes {
            return;
        }
        let open = self.tiers.iter().filter_map(|tier| tier.open.as_ref());
        let open = open.flat_map(|(_, sums)| sums.period.series.keys());
        let open: HashSet<&Label> = open.map(|label| &**label).collect();
        let forgotten = self.labels.forget_rare(max_bytes, &open);
        self.delta.unnamed.extend(forgotten);
    }

    fn expire(&mut self, now: u64) {
        if now < self.expires_from {
            return;
        }
        for (tier, (length, kept)) in TIERS.iter().enumerate() {
            while self.tiers.get(tier).is_some_and(|tier| {
                let first = tier.frames.front();
                first.is_some_and(|frame| frame.start + length + kept <= now)
            }) {
                self.drop_oldest(tier);
            }
        }
    }

    fn keep_within_bytes(&mut self) {
        // Steps that have not ended cannot be dropped. They count as at most half of `max_bytes`,
        // so that frames always have the other half.
        let open = self.open_bytes().min(self.max_bytes / 2);
        while self.frame_bytes() + open > self.max_bytes
            && let Some(tier) = self.tier_to_drop_from()
        {
            self.drop_oldest(tier);
            self.dropped_early += 1;
        }
    }

    /// The tier whose oldest frame is dropped next. This is the tier with the most bytes, unless a
    /// step in progress includes the oldest frame of this tier. In that case, another tier is
    /// chosen, if there is one whose oldest frame is not included in a step in progress. `None` if
    /// there are no frames.
    fn tier_to_drop_from(&self) -> Option<usize> {
        let bytes = |tier: &usize| self.tiers.get(*tier).map_or(0, |tier| tier.bytes);
        let filled = || (0..TIERS.len()).filter(move |tier| bytes(tier) > 0);
        let largest = filled().max_by_key(bytes)?;
        let is_free = |tier: &usize| *tier + 1 == TIERS.len() || self.is_rolled_up(*tier);
        if is_free(&largest) {
            return Some(largest);
        }
        // The last tier is chosen only if the oldest frame of every other tier is included in a
        // step in progress.
        let rolled_up = filled().filter(|tier| self.is_rolled_up(*tier));
        let free = rolled_up.max_by_key(bytes);
        free.or_else(|| filled().find(is_free)).or(Some(largest))
    }

    /// True if the oldest frame of a tier is included in the frame of a longer step.
    fn is_rolled_up(&self, tier: usize) -> bool {
        let length = TIERS.get(tier).map_or(0, |(length, _)| *length);
        let first = self.tiers.get(tier).and_then(|tier| tier.frames.front());
        first.is_some_and(|frame| frame.start + length <= self.included_to(tier + 1))
    }

    fn drop_oldest(&mut self, tier: usize) {
        let place = self.tiers.get_mut(tier);
        if let Some(frame) = place.and_then(|place| place.frames.pop_front()) {
            self.forget(&frame);
        }
    }

    /// Updates the memory size and the use counts of labels after a frame was removed from its
    /// tier.
    fn forget(&mut self, frame: &Frame) {
        if let Some(place) = self.tiers.get_mut(frame.tier) {
            place.bytes -= frame.bytes();
        }
        self.delta.drop_frame((frame.tier, frame.start));
        for number in &frame.labels {
            if self.labels.release(*number) {
                self.delta.unnamed.push(*number);
            }
        }
    }

    /// Returns the changes since the last call.
    pub fn take_delta(&mut self) -> Delta {
        std::mem::take(&mut self.delta)
    }

    /// Loads labels and frames from the file. Skips frames that end in the future or are damaged.
    /// The next delta removes the skipped frames from the file.
    pub(crate) fn restore(
        &mut self,
        labels: Vec<(u32, Label)>,
        frames: Vec<Frame>,
        now: u64,
    ) -> Skipped {
        for (number, label) in labels {
            self.labels.restore(number, label);
        }
        let mut skipped = Skipped::default();
        let mut frames = frames;
        frames.sort_by_key(|frame| (frame.tier, frame.start));
        for frame in frames {
            let key = (frame.tier, frame.start);
            if !is_intact(&frame) {
                skipped.damaged += 1;
                self.delta.drop_frame(key);
            } else if is_future(&frame, now) {
                skipped.future += 1;
                self.delta.drop_frame(key);
            } else if let Some(tier) = self.tiers.get_mut(frame.tier) {
                for number in &frame.labels {
                    self.labels.restore_use(*number);
                }
                tier.bytes += frame.bytes();
                tier.frames.push_back(Arc::new(frame));
            }
        }
        self.delta.unnamed.extend(self.labels.remove_unused());
        self.reopen();
        self.check_gaps(now);
        self.close_steps(now);
        self.expire(now);
        self.limit_labels();
        self.keep_within_bytes();
        skipped
    }

    /// For each tier, rebuilds the step that has not ended yet, from the frames of the tier with
    /// the next shorter steps. Begins with the tier of the longest steps. If a rebuilt step has
    /// ended, it is also added to the tier with the next longer steps. That tier does not count the
    /// step twice: it was rebuilt before, when this step was not a frame yet.
    fn reopen(&mut self) {
        for tier in (1..TIERS.len()).rev() {
            let from = self.included_to(tier);
            let mut finer = Selection::default();
            for frame in self.frames(tier - 1, from, u64::MAX) {
                finer.take(frame, &self.labels);
            }
            for (frame, period) in finer.unpacked(&|_| true) {
                let gauges = packed::unpack_gauges(&frame.gauges).unwrap_or_default();
                self.roll_up(tier, frame.start, &Sums { period, gauges });
            }
        }
    }

    /// True if the history has the second that begins at `at`, or a later one.
    pub(crate) fn has_second(&self, at: u64) -> bool {
        self.covered_to(0) > at
    }

    /// End of the last frame of a tier.
    fn covered_to(&self, tier: usize) -> u64 {
        let length = TIERS.get(tier).map_or(0, |(length, _)| *length);
        let last = self.tiers.get(tier).and_then(|tier| tier.frames.back());
        last.map_or(0, |frame| frame.start + length)
    }

    /// End of the last frame of this tier or of a tier with longer steps. The longer frames may
    /// include frames that this tier has dropped.
    fn included_to(&self, tier: usize) -> u64 {
        let ends = (tier..TIERS.len()).map(|tier| self.covered_to(tier));
        ends.max().unwrap_or(0)
    }

    /// The frames of a tier that begin in `from..to`.
    fn frames(&self, tier: usize, from: u64, to: u64) -> impl Iterator<Item = &Arc<Frame>> {
        let frames = self.tiers.get(tier).into_iter().flat_map(|t| &t.frames);
        frames.filter(move |frame| frame.start >= from && frame.start < to)
    }

    /// Start of the first second for which a tier has data.
    fn known_from(&self, tier: usize) -> Option<u64> {
        let (length, _) = TIERS.get(tier)?;
        let first = self.tiers.get(tier)?.frames.front()?;
        Some(first.start + length - first.seconds.min(*length))
    }

    /// Selects the frames of a period, without unpacking them. The period is divided into steps of
    /// `step` seconds, rounded up to whole frames of the chosen tier. The period
    /// begins with the step that contains `from`. The last frame may end after `to`, because a
    /// frame cannot be divided.
    ///
    /// The chosen tier is the tier with the longest frames of at most `step` seconds. If its data
    /// begins after `from`, a tier with longer frames is chosen, whose data begins earlier. For the
    /// time after the last frame of the chosen tier, frames are selected from the tiers with
    /// shorter frames.
    pub fn select(&self, from: u64, to: u64, step: u64) -> Selection {
        let chosen = self.tier_for(from, step);
        let length = TIERS.get(chosen).map_or(1, |(length, _)| *length);
        let step = step.max(1).next_multiple_of(length);
        self.frames_from(chosen, from - from % step, to)
    }

    /// Like [`Self::select`] with the shortest steps, but omits a frame that begins before `from`.
    /// So two adjacent periods never use the same frame.
    pub(crate) fn select_begun(&self, from: u64, to: u64) -> Selection {
        self.frames_from(self.tier_for(from, 1), from, to)
    }

    /// The tier that [`Self::select`] chooses.
    fn tier_for(&self, from: u64, step: u64) -> usize {
        let step = step.max(1);
        let fitting = TIERS.iter().rposition(|(length, _)| *length <= step);
        let fitting = fitting.unwrap_or(0);
        let tiers = fitting..TIERS.len();
        let oldest = tiers.clone().filter_map(|tier| self.known_from(tier)).min();
        // The first step may begin before `from`. A tier reaches back far enough if it has data
        // from `from` on, even if it has dropped the beginning of the first step.
        let begins = oldest.map_or(from, |oldest| oldest.max(from));
        let reaches = |tier: &usize| self.known_from(*tier).is_some_and(|known| known <= begins);
        let mut tiers = tiers;
        tiers.find(reaches).unwrap_or(fitting)
    }

    /// The frames of a tier that begin in `from..to`, and for the time after them the frames of the
    /// tiers with shorter frames.
    fn frames_from(&self, chosen: usize, from: u64, to: u64) -> Selection {
        let mut selection = Selection::default();
        let mut from = from;
        for tier in (0..=chosen).rev() {
            for frame in self.frames(tier, from, to) {
                selection.take(frame, &self.labels);
            }
            from = from.max(self.covered_to(tier));
        }
        selection
    }

    /// The figures of all series in `from..to`. [`Period::length`] is the time for which there is
    /// data.
    pub fn period(&self, from: u64, to: u64) -> Period {
        self.select(from, to, 1).period()
    }

    /// Estimated memory of the history, in bytes.
    pub fn bytes(&self) -> usize {
        self.frame_bytes() + self.open_bytes()
    }

    /// Memory of all frames and labels.
    fn frame_bytes(&self) -> usize {
        self.labels.bytes() + self.tiers.iter().map(|tier| tier.bytes).sum::<usize>()
    }

    /// Memory of the steps that have not ended, which are not packed.
    fn open_bytes(&self) -> usize {
        let open = self.tiers.iter().filter_map(|tier| tier.open.as_ref());
        open.map(|(_, sums)| sums.bytes()).sum()
    }

    /// Number of frames dropped before the end of their retention, because the memory limit was
    /// reached.
    pub fn dropped_early(&self) -> u64 {
        self.dropped_early
    }
}

/// True if a frame ends after `now`. False for the frame of the current second: Seawall adds this
/// second to the history before it exits, so after a quick restart the frame is valid.
fn is_future(frame: &Frame, now: u64) -> bool {
    let length = TIERS.get(frame.tier).map_or(1, |(length, _)| *length);
    let is_running = length == 1 && frame.start == now;
    !is_running && frame.start.saturating_add(length) > now
}

/// True if all parts of a frame from the file can be read.
fn is_intact(frame: &Frame) -> bool {
    frame.tier < TIERS.len()
        && packed::unpack(&frame.packed)
            .is_ok_and(|series| series.iter().map(|(n, _)| n).eq(frame.labels.iter()))
        && packed::unpack_gauges(&frame.gauges).is_ok()
}

/// Numbers of frames of a file that were not loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// Frames that cannot be read.
    pub(crate) damaged: usize,
    /// Frames that end in the future.
    pub(crate) future: usize,
}

/// The history of a period in steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline<S> {
    /// Length of the steps. It is longer than requested if the requested length is not a multiple
    /// of the length of the period's longest frame.
    pub step: Duration,
    /// The steps that have data, the earliest first.
    pub steps: Vec<S>,
}

/// Selected frames (packed steps of the history). Unpacking them needs no lock on the history.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    frames: Vec<Arc<Frame>>,
    labels: HashMap<u32, Arc<Label>>,
}

impl Selection {
    fn take(&mut self, frame: &Arc<Frame>, labels: &LabelStore) {
        for number in &frame.labels {
            self.labels
                .entry(*number)
                .or_insert_with(|| labels.get(*number));
        }
        self.frames.push(Arc::clone(frame));
    }

    /// The length of steps in seconds: `requested`, rounded up to a multiple of the length of the
    /// longest frame, because a frame cannot be divided.
    pub(crate) fn step(&self, requested: u64) -> u64 {
        let tiers = self.frames.iter().filter_map(|frame| TIERS.get(frame.tier));
        let longest = tiers.map(|(length, _)| *length).max();
        requested.max(1).next_multiple_of(longest.unwrap_or(1))
    }

    /// Each frame, with the figures of the series that `is_wanted` accepts. A frame that cannot be
    /// unpacked is omitted: it is a time without data, not a time without operations.
    fn unpacked(
        &self,
        is_wanted: &dyn Fn(&Label) -> bool,
    ) -> impl Iterator<Item = (&Frame, Period)> {
        let wanted = self.labels.iter().filter(|(_, label)| is_wanted(label));
        let wanted: HashSet<u32> = wanted.map(|(number, _)| *number).collect();
        self.frames.iter().filter_map(move |frame| {
            let unpacked = packed::unpack_if(&frame.packed, |number| wanted.contains(&number));
            let mut series = BTreeMap::<Arc<Label>, Figures>::new();
            for (number, figures) in unpacked.ok()? {
                let Some(label) = self.labels.get(&number) else {
                    continue;
                };
                match series.get_mut(label) {
                    Some(all) => all.merge(&figures),
                    None => drop(series.insert(Arc::clone(label), figures)),
                }
            }
            let length = Duration::from_secs(frame.seconds);
            Some((&**frame, Period { length, series }))
        })
    }

    /// The gauges in steps of `step` seconds. Each item has the start of the step, the number of
    /// its seconds that have data, and the gauges. Steps without data are omitted.
    pub(crate) fn gauge_timeline(&self, step: u64) -> Vec<(u64, u64, Gauges)> {
        let step = step.max(1);
        let mut timeline: BTreeMap<u64, (u64, Gauges)> = BTreeMap::new();
        for frame in &self.frames {
            let Ok(gauges) = packed::unpack_gauges(&frame.gauges) else {
                continue;
            };
            let place = timeline.entry(frame.start - frame.start % step);
            let (seconds, all) = place.or_default();
            *seconds += frame.seconds;
            all.merge(&gauges);
        }
        let steps = timeline.into_iter();
        steps
            .map(|(start, (seconds, all))| (start, seconds, all))
            .collect()
    }

    /// The figures of all series. [`Period::length`] is the time for which there is data.
    pub fn period(&self) -> Period {
        self.period_of(&|_| true)
    }

    /// The figures of the series that `is_wanted` accepts. [`Period::length`] is the time for which
    /// there is data.
    pub fn period_of(&self, is_wanted: &dyn Fn(&Label) -> bool) -> Period {
        let mut whole = Period::default();
        for (_, period) in self.unpacked(is_wanted) {
            whole.merge(&period);
            whole.length += period.length;
        }
        whole
    }

    /// The figures of one series in steps of `step` seconds. Each item has the start and the
    /// figures of one step. [`Period::length`] is the part of the step for which there is data.
    /// Steps without data are omitted.
    pub fn timeline(&self, step: u64, label: &Label) -> Vec<(u64, Period)> {
        self.timeline_of(step, &|of| of == label)
    }

    /// The figures of all series that `is_wanted` accepts, in the form that [`Selection::timeline`]
    /// describes.
    pub(crate) fn timeline_of(
        &self,
        step: u64,
        is_wanted: &dyn Fn(&Label) -> bool,
    ) -> Vec<(u64, Period)> {
        let step = step.max(1);
        let mut timeline: BTreeMap<u64, Period> = BTreeMap::new();
        for (frame, period) in self.unpacked(is_wanted) {
            let start = frame.start - frame.start % step;
            let place = timeline.entry(start).or_default();
            place.merge(&period);
            place.length += period.length;
        }
        timeline.into_iter().collect()
    }

    /// Each series with the start of its first step and the end of its last step. Does not unpack
    /// the frames.
    pub fn seen(&self) -> HashMap<Arc<Label>, (u64, u64)> {
        let mut by_number: HashMap<u32, (u64, u64)> = HashMap::new();
        for frame in &self.frames {
            let end = frame.start + TIERS.get(frame.tier).map_or(1, |(length, _)| *length);
            for number in &frame.labels {
                let times = by_number.entry(*number).or_insert((frame.start, end));
                *times = (times.0.min(frame.start), times.1.max(end));
            }
        }
        let mut seen: HashMap<Arc<Label>, (u64, u64)> = HashMap::new();
        for (number, (first, last)) in by_number {
            let Some(label) = self.labels.get(&number) else {
                continue;
            };
            let times = seen.entry(Arc::clone(label)).or_insert((first, last));
            *times = (times.0.min(first), times.1.max(last));
        }
        seen
    }
}

#[cfg(test)]
mod tests;
