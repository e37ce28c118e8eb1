//! Compares two saved reports.

use seawall_api::{Changes, Rates, Report, between, period_of, rates, totals, whole_period};
use seawall_stats::Label;

/// One of the two compared reports.
pub(super) struct Side {
    pub(super) file: String,
    pub(super) report: Report,
    /// The rates of all operations of the report.
    pub(super) whole: Rates,
    pub(super) errors: u64,
}

/// Two reports, and the changes from the earlier report to the later one.
pub(super) struct Comparison {
    pub(super) before: Side,
    pub(super) now: Side,
    /// The changes. Those that add the most operation time per second are first.
    pub(super) changes: Changes,
}

impl Comparison {
    /// Compares two reports. Each is given with the name of its file.
    pub(super) fn new(before: (String, Report), now: (String, Report)) -> Self {
        let periods = (period_of(&before.1), period_of(&now.1));
        let mut changes = between(&periods.0, &periods.1, "before");
        let (before, now) = (Side::new(before), Side::new(now));
        // For a change without a shape, `between` divides the operations of the timeline by the
        // length of the period. But the timeline may be longer than the period. So the rates are
        // replaced by those of the whole timeline.
        let found = changes.changes.iter_mut();
        for change in found.filter(|change| change.shape.id().is_empty()) {
            (change.before, change.now) = (before.whole, now.whole);
            let cost = now.whole.total_time_ms_per_second - before.whole.total_time_ms_per_second;
            change.cost_ms_per_second = cost.max(0.0);
        }
        Self {
            before,
            now,
            changes,
        }
    }

    /// The circumstances that may make the comparison misleading, one sentence for each.
    pub(super) fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::new();
        for (name, side) in [("before", &self.before), ("now", &self.now)] {
            let hidden = side.report.unlisted();
            if hidden > 0 {
                caveats.push(format!(
                    "{name}: {hidden} operations belong to shapes that the report does not list; a shape that \
                     is shown as new or gone may be one of them"
                ));
            }
            if side.report.status.injects_faults {
                caveats.push(format!("{name}: faults were injected on purpose"));
            }
            let instances = side.report.instances.iter();
            let errors = instances.filter_map(|instance| instance.error.as_ref());
            caveats.extend(errors.map(|error| format!("{name}: incomplete figures: {error}")));
        }
        if self.before.report.made_at > self.now.report.made_at {
            caveats.push("the first report is later than the second".to_owned());
        }
        caveats
    }
}

impl Side {
    fn new((file, report): (String, Report)) -> Self {
        let period = whole_period(&report);
        let whole = period.series.get(&Label::Whole);
        let whole = whole.map(|figures| rates(figures, &period));
        Self {
            file,
            whole: whole.unwrap_or_default(),
            errors: totals(&report).1,
            report,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use seawall_api::{Instance, Other, Shape};

    use super::{super::tests::report, *};

    /// The example report, compared with a copy in which one shape is about five times slower, one
    /// shape is gone and one shape is new.
    pub(in crate::report) fn comparison() -> Comparison {
        let factor = (19f64 / 8.0).exp2();
        let mut later = report();
        later.made_at += 3600.0;
        let steps = later.timeline.steps.iter_mut();
        steps.for_each(|step| step.at += 3600.0);
        let slower = shape_of(&mut later, "products");
        for bucket in slower.distribution.as_mut().unwrap() {
            // There are eight buckets for each doubling of the duration. The factor is 2^(19/8),
            // about 5.2, so each duration moves by exactly 19 buckets.
            bucket.gt_seconds *= factor;
            bucket.le_seconds *= factor;
        }
        slower.total_time_ms *= factor;
        let other = shape_of(&mut later, "carts");
        other.id = "1-new".to_owned();
        other.collection = "<wishes>".to_owned();
        compared(report(), later)
    }

    fn shape_of<'a>(report: &'a mut Report, collection: &str) -> &'a mut Shape {
        let mut shapes = report.shapes.iter_mut();
        shapes.find(|s| s.collection == collection).unwrap()
    }

    fn compared(before: Report, now: Report) -> Comparison {
        Comparison::new(("a.json".to_owned(), before), ("b.json".to_owned(), now))
    }

    #[test]
    fn report_compared_with_itself_has_no_changes() {
        let comparison = compared(report(), report());
        assert!(comparison.changes.changes.is_empty());
        assert!(comparison.caveats().is_empty());
        assert_eq!(
            comparison.before.whole.count,
            comparison.before.report.operations()
        );
    }

    #[test]
    fn slower_shapes_new_shapes_and_gone_shapes_are_named() {
        let comparison = comparison();
        let changes = &comparison.changes.changes;
        let of = |kind: &str| changes.iter().find(|change| change.kind == kind).unwrap();
        let slower = of("slower");
        assert_eq!(slower.shape.collection(), "products");
        let times = slower.now.p50_ms / slower.before.p50_ms;
        assert!((times - 5.19).abs() < 0.01, "{times}");
        assert_eq!(of("new").shape.collection(), "<wishes>");
        assert_eq!(of("new").before.count, 0);
        assert_eq!(of("gone").shape.collection(), "carts");
    }

    #[test]
    fn a_change_without_a_shape_has_the_rates_of_the_whole_timelines() {
        let mut busier = report();
        busier.shapes.iter_mut().for_each(|shape| shape.count *= 4);
        // Make the first step begin 20 s before the period. The timeline is then longer than the
        // period, so the rate over the timeline differs from the rate over the period.
        busier.timeline.steps[0].seconds += 20.0;
        let comparison = compared(report(), busier);
        let mut changes = comparison.changes.changes.iter();
        let change = changes.find(|change| change.shape.id().is_empty()).unwrap();
        assert_eq!(change.kind, "more_frequent");
        assert_eq!(change.before, comparison.before.whole);
        assert_eq!(change.now, comparison.now.whole);
    }

    #[test]
    fn baseline_without_operations_is_not_comparable() {
        let mut idle = report();
        idle.shapes.clear();
        idle.timeline.steps.clear();
        let comparison = compared(idle, report());
        let reason = comparison.changes.incomparable();
        assert_eq!(reason, Some("no operation ended in the baseline"));
    }

    #[test]
    fn caveats_mention_unlisted_shapes_and_a_first_report_that_is_later_than_the_second() {
        let mut cut = report();
        cut.other.count = 5;
        let comparison = compared(report(), cut);
        let caveats = comparison.caveats();
        assert_eq!(caveats.len(), 1, "{caveats:?}");
        assert!(caveats[0].starts_with("now: 5 operations belong to shapes"));
        let mut earlier = report();
        earlier.made_at = 1.0;
        let comparison = compared(report(), earlier);
        assert!(comparison.caveats()[0].contains("later than the second"));
    }

    #[test]
    fn caveats_mention_instances_whose_figures_are_missing() {
        let mut partial = report();
        partial.instances = vec![Instance {
            error: Some("http://b:1: no reply".to_owned()),
            ..Instance::default()
        }];
        let comparison = compared(report(), partial);
        let expected = "now: incomplete figures: http://b:1: no reply";
        assert_eq!(comparison.caveats(), [expected]);
    }

    #[test]
    fn count_sum_maximum_and_quantiles_of_each_shape_are_restored_from_json() {
        let report = report();
        let period = period_of(&report);
        assert_eq!(period.length, Duration::from_secs(600));
        assert_eq!(period.series.len(), report.shapes.len() + 1);
        for shape in &report.shapes {
            let mut series = period.series.iter();
            let is_it =
                |label: &Label| matches!(label, Label::Shape { id, .. } if **id == *shape.id);
            let figures = series.find(|(label, _)| is_it(label)).unwrap().1;
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
    fn operations_of_shapes_that_a_report_does_not_list_are_counted_under_other_shapes() {
        let mut cut = report();
        cut.other = Other {
            count: 7,
            errors: 1,
            total_time_ms: 12.5,
            ..Other::default()
        };
        let period = period_of(&cut);
        let other = &period.series[&Label::OtherShapes];
        assert_eq!((other.count, other.errors), (7, 1));
        assert_eq!(other.durations.sum(), Duration::from_micros(12_500));
    }
}
