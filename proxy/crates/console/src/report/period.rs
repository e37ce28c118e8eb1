//! Converts a report back to a period of the history. The distributions keep their recorded
//! buckets.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::figures::whole as whole_number;
use seawall_api::{Bucket, Phases, Report, Shape, Step};
use seawall_stats::{Distribution, Figures, Label, Level, Period, PhaseTimes};

/// Returns a period with one series for each listed shape, one for all other shapes, and one for
/// all operations.
pub(super) fn period(report: &Report) -> Period {
    let shapes = report.shapes.iter();
    let mut series: BTreeMap<_, _> = shapes
        .map(|shape| (Arc::new(label(shape)), figures_of_shape(shape)))
        .collect();
    let other = report.other;
    if other.count + other.more.count > 0 {
        let figures = Figures {
            count: other.count,
            errors: other.errors,
            durations: durations(&[], other.total_time_ms, 0.0),
            request_bytes: other.request_bytes,
            reply_bytes: other.reply_bytes,
            documents: other.documents,
            more_count: other.more.count,
            more_time: nanos(other.more.total_time_ms * 1e6),
            ..Figures::default()
        };
        series.insert(Arc::new(Label::OtherShapes), figures);
    }
    series.insert(Arc::new(Label::Whole), all(report));
    Period {
        length: length(report.covered_seconds()),
        series,
    }
}

/// Returns a period with one series: all operations of the timeline. Its length is that of the
/// timeline, whose first step may begin before the report's period.
pub(super) fn whole(report: &Report) -> Period {
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
pub(super) fn all(report: &Report) -> Figures {
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
        durations: durations(shape.buckets(), shape.total_time_ms, max_ms),
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
        durations: durations(step.buckets(), step.total_time_ms, step.latency_ms.max),
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

/// The distribution that the buckets in the JSON represent.
fn durations(buckets: &[Bucket], total_ms: f64, max_ms: f64) -> Distribution {
    let numbered = buckets.iter().map(|bucket| (number(bucket), bucket.count));
    Distribution::from_parts(numbered, nanos(total_ms * 1e6), nanos(max_ms * 1e6))
}

/// A bucket's number, found by its upper bound. A bound that lost digits in JSON is still closer to
/// its own bucket's bound than to any other.
fn number(bucket: &Bucket) -> usize {
    let bound = bucket.le_seconds * 0.99;
    let numbers = 0..Distribution::<8>::BUCKETS;
    let mut numbers =
        numbers.skip_while(|number| Distribution::<8>::bounds_seconds(*number).1 < bound);
    numbers.next().unwrap_or(Distribution::<8>::BUCKETS - 1)
}

fn nanos(ns: f64) -> Duration {
    Duration::from_nanos(whole_number(ns.round()))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::report, *};
    use seawall_api::Other;

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
    fn buckets_are_found_by_their_bounds() {
        for bucket in 0..Distribution::<8>::BUCKETS {
            let (gt_seconds, le_seconds) = Distribution::<8>::bounds_seconds(bucket);
            // The bounds have rounding errors, like those of a float with few digits.
            for le_seconds in [le_seconds, le_seconds * 0.9999, le_seconds * 1.0001] {
                let rounded = Bucket {
                    gt_seconds,
                    le_seconds,
                    count: 1,
                };
                assert_eq!(number(&rounded), bucket);
            }
        }
    }

    #[test]
    fn unlisted_shapes_are_one_series() {
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

    #[test]
    fn empty_buckets_give_an_empty_distribution() {
        assert_eq!(durations(&[], 0.0, 0.0).count(), 0);
        assert_eq!(durations(&[], 0.0, 0.0).quantile(0.5), Duration::ZERO);
    }
}
