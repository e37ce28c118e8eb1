//! Limits the series of one step.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::{super::packed, names::label_bytes};
use seawall_stats::{Figures, Label};

/// The series that the frame of a step gets: all series of the step, if their
/// [`packed::unpacked_bytes`] are at most `max_bytes` together. Otherwise, series of shapes and
/// namespaces are removed until the rest is small enough, the series with the smallest server load
/// first. The figures of removed shapes are added to [`Label::OtherShapes`]; the figures of removed
/// namespaces are not kept.
pub(super) fn fitting(
    series: &BTreeMap<Arc<Label>, Figures>,
    max_bytes: usize,
) -> Cow<'_, BTreeMap<Arc<Label>, Figures>> {
    let bytes = |series: &BTreeMap<Arc<Label>, Figures>| -> usize {
        series.values().map(packed::unpacked_bytes).sum()
    };
    if bytes(series) <= max_bytes {
        return Cow::Borrowed(series);
    }
    let is_removable =
        |label: &Label| matches!(label, Label::Shape { .. } | Label::Namespace { .. });
    let removable = series.iter().filter(|(label, _)| is_removable(label));
    let mut lightest: Vec<_> = removable.collect();
    lightest.sort_by_key(|(_, figures)| figures.load());
    let mut kept = series.clone();
    let mut other = kept.remove(&Label::OtherShapes).unwrap_or_default();
    let mut kept_bytes = bytes(&kept);
    for (label, figures) in lightest {
        if kept_bytes + packed::unpacked_bytes(&other) <= max_bytes {
            break;
        }
        kept.remove(label);
        kept_bytes -= packed::unpacked_bytes(figures);
        if matches!(**label, Label::Shape { .. }) {
            other.merge(figures);
        }
    }
    if other != Figures::default() {
        kept.insert(Arc::new(Label::OtherShapes), other);
    }
    Cow::Owned(kept)
}

/// The limits of the shapes in one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShapeLimits {
    pub(super) count: usize,
    pub(super) label_bytes: usize,
}

impl ShapeLimits {
    /// True if the shapes of a step exceed one of the limits by more than a factor of two.
    pub(super) fn are_far_exceeded(self, series: &BTreeMap<Arc<Label>, Figures>) -> bool {
        let shapes = series.keys().filter(|label| is_shape(label));
        let add = |(count, bytes), label: &Arc<Label>| (count + 1, bytes + label_bytes(label));
        let (count, bytes) = shapes.fold((0_usize, 0_usize), add);
        count > self.count.saturating_mul(2) || bytes > self.label_bytes * 2
    }
}

fn is_shape(label: &Label) -> bool {
    matches!(label, Label::Shape { .. })
}

/// Keeps the series of the shapes with the greatest server load, as many as the limits allow. The
/// figures of all other shapes are added to [`Label::OtherShapes`].
pub(super) fn limit_shapes(series: &mut BTreeMap<Arc<Label>, Figures>, limits: ShapeLimits) {
    let shapes = series.iter().filter(|(label, _)| is_shape(label));
    let mut loads: Vec<_> = shapes
        .map(|(label, figures)| (figures.load(), Arc::clone(label)))
        .collect();
    loads.sort_by_key(|(load, _)| Reverse(*load));
    let mut bytes = 0;
    let heaviest = loads.iter().take(limits.count);
    let kept = heaviest.take_while(|(_, label)| {
        bytes += label_bytes(label);
        bytes <= limits.label_bytes
    });
    let kept = kept.count();
    if kept == loads.len() {
        return;
    }
    let mut other = series.remove(&Label::OtherShapes).unwrap_or_default();
    for (_, label) in loads.drain(kept..) {
        if let Some(figures) = series.remove(&label) {
            other.merge(&figures);
        }
    }
    series.insert(Arc::new(Label::OtherShapes), other);
}
