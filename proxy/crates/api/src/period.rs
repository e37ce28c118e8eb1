//! Converts figures of a reply to a [`Period`]: a report, or one of the two periods of a
//! comparison. The history of the statistics also returns its figures as a [`Period`]. So the same
//! code can compare periods of the history and periods of replies. The buckets of the distributions
//! stay the same.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    Other, Report, Shape, Span, SpanFigures, TimelineStep, distribution, figures::from_millis,
};
use seawall_stats::{Figures, Label, Level, Period, float};

/// Converts a part of a reply, such as a shape or a step, to [`Figures`]. This is a macro because
/// the parts have different types; the members that it reads have the same names in all of them.
macro_rules! figures {
    ($of:expr) => {{
        let of = $of;
        let buckets = of.distribution.as_deref().unwrap_or_default();
        Figures {
            count: of.count,
            errors: of.errors,
            durations: distribution(buckets, of.total_time_ms, of.latency_ms.max),
            phases: of.phases_ms.named().map(|(_, ms)| from_millis(ms)).into(),
            request_bytes: of.request_bytes,
            reply_bytes: of.reply_bytes,
            documents: of.documents,
            more_count: of.more.count,
            more_time: from_millis(of.more.total_time_ms),
        }
    }};
}

/// Returns a period with one series for each listed shape, one for all other shapes, and one for
/// all operations.
pub fn period_of(report: &Report) -> Period {
    let mut series = series_of(&report.shapes, &report.other);
    series.insert(Arc::new(Label::Whole), all_operations(report));
    Period {
        length: length(report.covered_seconds()),
        series,
    }
}

/// Returns one of two compared periods, with one series for each shape, one for all other shapes,
/// and one for all operations.
pub(crate) fn period_of_span(span: &Span, figures: &SpanFigures) -> Period {
    let mut series = series_of(&figures.shapes, &figures.other);
    series.insert(Arc::new(Label::Whole), figures!(&figures.all));
    Period {
        length: length(span.seconds),
        series,
    }
}

fn series_of(shapes: &[Shape], other: &Other) -> BTreeMap<Arc<Label>, Figures> {
    let shapes = shapes.iter();
    let mut series: BTreeMap<_, _> = shapes
        .map(|shape| (Arc::new(label(shape)), figures!(shape)))
        .collect();
    if other.count + other.more.count > 0 {
        series.insert(Arc::new(Label::OtherShapes), figures!(other));
    }
    series
}

/// Returns a period with one series: all operations of the timeline. The period is as long as the
/// timeline. The first step of the timeline may begin before the report's period.
pub fn whole_period(report: &Report) -> Period {
    let steps = report.timeline.steps.iter().map(|step| step.seconds);
    Period {
        length: length(steps.sum()),
        series: [(Arc::new(Label::Whole), all_operations(report))].into(),
    }
}

fn length(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// All operations of a report, summed over its timeline.
pub fn all_operations(report: &Report) -> Figures {
    let mut all = Figures::default();
    let steps = report.timeline.steps.iter().map(figures_of_step);
    steps.for_each(|figures| all.merge(&figures));
    all
}

/// The number of all operations of a report, and the number of failed operations. Both numbers
/// include `getMore`s, except `getMore`s that wait for an event. If the report has no timeline,
/// both numbers include only operations of shapes, and the first number includes no `getMore`s.
pub fn totals(report: &Report) -> (u64, u64) {
    let all = all_operations(report);
    match all.count {
        0 => (report.operations(), report.errors()),
        count => (count, all.errors),
    }
}

/// The number of all operations of a report ([`totals`]), divided by the seconds of its timeline.
/// The first step of the timeline may begin before the report's period. If the report has no
/// timeline, the number is divided by the seconds of the report's period.
pub fn operations_per_second(report: &Report) -> f64 {
    let (operations, _) = totals(report);
    let steps = report.timeline.steps.iter().map(|step| step.seconds);
    let in_steps: f64 = steps.sum();
    let seconds = match in_steps > 0.0 {
        true => in_steps,
        false => report.covered_seconds(),
    };
    float(operations) / seconds.max(1.0)
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

/// The figures of a step of a report's timeline. The `getMore`s are not added separately, because
/// the operations of such a step already include them.
fn figures_of_step(step: &TimelineStep) -> Figures {
    Figures {
        more_count: 0,
        more_time: Duration::ZERO,
        ..figures!(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The timeline counts all operations, `getMore`s included. The shapes of a report count only
    /// the operations that have a query shape.
    #[test]
    fn totals_of_a_report_are_the_sums_of_its_timeline_if_it_has_one() {
        let shapes = vec![Shape {
            count: 10,
            errors: 300,
            ..Shape::default()
        }];
        let step = |count, errors| TimelineStep {
            count,
            errors,
            ..TimelineStep::default()
        };
        let mut report = Report {
            shapes,
            ..Report::default()
        };
        assert_eq!(totals(&report), (10, 300));
        report.timeline.steps = vec![step(900, 0), step(110, 300)];
        assert_eq!(totals(&report), (1_010, 300));
    }

    #[test]
    fn rate_of_all_operations_is_computed_from_the_timeline() {
        let step = |count, seconds| TimelineStep {
            count,
            seconds,
            ..TimelineStep::default()
        };
        let mut report = Report {
            since_seconds: 600.0,
            shapes: vec![Shape {
                count: 1_200,
                ..Shape::default()
            }],
            ..Report::default()
        };
        assert_eq!(operations_per_second(&report), 2.0);
        // The first step begins 20 s before the period, so the timeline covers 620 s and
        // 6,200 operations.
        report.timeline.steps = vec![step(200, 20.0), step(6_000, 600.0)];
        assert_eq!(operations_per_second(&report), 10.0);
        assert_eq!(operations_per_second(&Report::default()), 0.0);
    }
}
