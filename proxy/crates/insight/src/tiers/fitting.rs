//! Limits the series of one step.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::super::packed;
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

/// Keeps the series of the `max` shapes with the greatest server load. The figures of all other
/// shapes are added to [`Label::OtherShapes`].
pub(super) fn limit_shapes(series: &mut BTreeMap<Arc<Label>, Figures>, max: usize) {
    let shapes = series.iter();
    let shapes = shapes.filter(|(label, _)| matches!(***label, Label::Shape { .. }));
    let mut loads: Vec<_> = shapes
        .map(|(label, figures)| (figures.load(), Arc::clone(label)))
        .collect();
    if loads.len() <= max {
        return;
    }
    loads.sort_by_key(|(load, _)| Reverse(*load));
    let mut other = series.remove(&Label::OtherShapes).unwrap_or_default();
    for (_, label) in loads.drain(max..) {
        if let Some(figures) = series.remove(&label) {
            other.merge(&figures);
        }
    }
    series.insert(Arc::new(Label::OtherShapes), other);
}
