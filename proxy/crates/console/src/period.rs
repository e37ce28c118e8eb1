//! Converts a report, or one of two compared periods, back to a period of the history. The
//! distributions keep their recorded buckets.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::figures::whole as whole_number;
use seawall_api::{Other, Phases, Report, Shape, Span, SpanFigures, Step, distribution};
use seawall_stats::{Figures, Label, Level, Period, PhaseTimes};

/// Returns a period with one series for each listed shape, one for all other shapes, and one for
/// all operations.
pub(crate) fn period(report: &Report) -> Period {
    let mut series = series_of(&report.shapes, &report.other);
    series.insert(Arc::new(Label::Whole), all(report));
    Period {
        length: length(report.covered_seconds()),
        series,
    }
}

/// Returns one of two compared periods, with one series for each shape, one for all other shapes,
/// and one for all operations.
pub(crate) fn period_of_span(span: &Span, figures: &SpanFigures) -> Period {
    let mut series = series_of(&figures.shapes, &figures.other);
    series.insert(Arc::new(Label::Whole), figures_of_sums(&figures.all));
    Period {
        length: length(span.seconds),
        series,
    }
}

fn series_of(shapes: &[Shape], other: &Other) -> BTreeMap<Arc<Label>, Figures> {
    let shapes = shapes.iter();
    let mut series: BTreeMap<_, _> = shapes
        .map(|shape| (Arc::new(label(shape)), figures_of_shape(shape)))
        .collect();
    if other.count + other.more.count > 0 {
        series.insert(Arc::new(Label::OtherShapes), figures_of_sums(other));
    }
    series
}

fn figures_of_sums(sums: &Other) -> Figures {
    let buckets = sums.distribution.as_deref().unwrap_or_default();
    Figures {
        count: sums.count,
        errors: sums.errors,
        durations: distribution(buckets, sums.total_time_ms, sums.latency_ms.max),
        phases: phases(&sums.phases_ms),
        request_bytes: sums.request_bytes,
        reply_bytes: sums.reply_bytes,
        documents: sums.documents,
        more_count: sums.more.count,
        more_time: nanos(sums.more.total_time_ms * 1e6),
    }
}

/// Returns a period with one series: all operations of the timeline. Its length is that of the
/// timeline, whose first step may begin before the report's period.
pub(crate) fn whole(report: &Report) -> Period {
    let steps = report.timeline.steps.iter().map(|step| step.seconds);
    Period {
        length: length(steps.sum()),
        series: [(Arc::new(Label::Whole), all(report))].into(),
    }
}

fn length(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// All operations of a report, summed over its timeline.
pub(crate) fn all(report: &Report) -> Figures {
    let mut all = Figures::default();
    let steps = report.timeline.steps.iter().map(figures_of_step);
    steps.for_each(|figures| all.merge(&figures));
    all
}

fn label(shape: &Shape) -> Label {
    let mut levels = Level::ALL.into_iter();
    Label::Shape {
        level: levels
            .find(|level| level.as_str() == shape.level)
            .unwrap_or(Level::Fine),
        id: shape.id.as_str().into(),
        command: shape.command.as_str().into(),
        db: shape.db.as_str().into(),
        collection: shape.collection.as_str().into(),
        text: shape.shape.as_str().into(),
    }
}

fn figures_of_shape(shape: &Shape) -> Figures {
    let max_ms = shape.latency_ms.max;
    Figures {
        count: shape.count,
        errors: shape.errors,
        durations: distribution(shape.buckets(), shape.total_time_ms, max_ms),
        phases: phases(&shape.phases_ms),
        request_bytes: shape.request_bytes,
        reply_bytes: shape.reply_bytes,
        documents: shape.documents,
        more_count: shape.more.count,
        more_time: nanos(shape.more.total_time_ms * 1e6),
    }
}

fn figures_of_step(step: &Step) -> Figures {
    Figures {
        count: step.count,
        errors: step.errors,
        durations: distribution(step.buckets(), step.total_time_ms, step.latency_ms.max),
        phases: phases(&step.phases_ms),
        request_bytes: step.request_bytes,
        reply_bytes: step.reply_bytes,
        documents: step.documents,
        ..Figures::default()
    }
}

fn phases(phases: &Phases) -> PhaseTimes {
    phases.named().map(|(_, ms)| nanos(ms * 1e6)).into()
}

fn nanos(ns: f64) -> Duration {
    Duration::from_nanos(whole_number(ns.round()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn counts_sums_and_maximum_are_restored_from_json() {
        let report = report();
        let period = period(&report);
        assert_eq!(period.length, Duration::from_secs(600));
        assert_eq!(period.series.len(), report.shapes.len() + 1);
        for shape in &report.shapes {
            let figures = &period.series[&label(shape)];
            assert_eq!(figures.durations.count(), shape.count);
            let sum = figures.durations.sum().as_secs_f64() * 1e3;
            assert!(
                (sum / shape.total_time_ms - 1.0).abs() < 0.002,
                "{sum} {shape:?}"
            );
            for (q, ms) in [(0.5, shape.latency_ms.p50), (0.99, shape.latency_ms.p99)] {
                let rebuilt = figures.durations.quantile(q).as_secs_f64() * 1e3;
                assert!((rebuilt / ms - 1.0).abs() < 0.001, "{rebuilt} {ms}");
            }
            let max = figures.durations.max().as_secs_f64() * 1e3;
            assert!((max / shape.latency_ms.max - 1.0).abs() < 0.001);
        }
        assert_eq!(
            period.series[&Label::Whole].durations.count(),
            report.operations()
        );
    }

    #[test]
    fn operations_of_unlisted_shapes_form_one_series() {
        let mut cut = report();
        cut.other = Other {
            count: 7,
            errors: 1,
            total_time_ms: 12.5,
            ..Other::default()
        };
        let period = period(&cut);
        let other = &period.series[&Label::OtherShapes];
        assert_eq!((other.count, other.errors), (7, 1));
        assert_eq!(other.durations.sum(), Duration::from_micros(12_500));
    }
}
