//! Compares two periods with the algorithm of the crate `seawall_insight`. The result has the
//! format of the reply of `/api/v1/changes`.

use crate::{Change, Changes, Rates, SeriesName, millis, period::period_of_span};
use seawall_insight::{compare, incomparable};
use seawall_stats::{Figures, Label, Period, float};

/// Returns the changes from the period `before` to the period `now`, in the order of
/// [`Changes::changes`]. There are no changes if the periods are not comparable. `against` is the
/// text that describes `before` in the request; the result contains this text.
pub fn between(before: &Period, now: &Period, against: &str) -> Changes {
    let incomparable = incomparable(before, now, now.length.as_secs());
    let changes = match incomparable {
        None => compare(before, now),
        Some(_) => Vec::new(),
    };
    let changes = changes.iter().map(|change| Change {
        kind: change.kind.as_str().to_owned(),
        shape: named(&change.label),
        before: rates(&change.before, before),
        now: rates(&change.now, now),
        ratio: Some(change.ratio).filter(|ratio| ratio.is_finite()),
        effect: change.effect,
        cost_ms_per_second: millis(change.cost_per_second),
    });
    Changes {
        against: against.to_owned(),
        comparable: Some(incomparable.is_none()),
        reason: incomparable.map(|reason| reason.to_string()),
        changes: changes.collect(),
        ..Changes::default()
    }
}

/// Compares the two periods of a reply that was merged from several instances, and writes the
/// result into the reply. Removes the figures of the periods, because only this comparison needs
/// them.
pub fn compare_merged(changes: &mut Changes) {
    let spans = (changes.baseline.as_mut(), changes.now.as_mut());
    let (Some(before), Some(now)) = spans else {
        return;
    };
    let figures = (before.figures.take(), now.figures.take());
    let (Some(before_figures), Some(now_figures)) = figures else {
        return;
    };
    if changes.comparable == Some(true) {
        let before = period_of_span(before, &before_figures);
        let now = period_of_span(now, &now_figures);
        let merged = between(&before, &now, &changes.against);
        changes.comparable = merged.comparable;
        changes.reason = merged.reason;
        changes.changes = merged.changes;
    }
}

/// Converts the label of a series to the name of the series. `address` and `level` are always
/// absent; the address of a server is in `text`. Other members that do not apply to the series are
/// empty texts. So all series have the same members in JSON.
fn named(label: &Label) -> SeriesName {
    let name = |id: &str, command: &str, db: &str, collection: &str, text: &str| {
        let [id, command, db, collection, text] =
            [id, command, db, collection, text].map(|name| Some(name.to_owned()));
        SeriesName {
            address: None,
            collection,
            command,
            db,
            id,
            level: None,
            text,
        }
    };
    match label {
        Label::Shape {
            id,
            command,
            db,
            collection,
            text,
            ..
        } => name(id, command, db, collection, text),
        Label::Namespace {
            command,
            db,
            collection,
        } => name("", command, db, collection, "(all shapes)"),
        Label::Whole => name("", "", "", "", "(all operations)"),
        Label::OtherShapes => name("", "", "", "", "(other shapes)"),
        Label::Server(address) => name("", "", "", "", address),
        Label::Phase { phase, .. } => name("", "", "", "", phase.as_str()),
    }
}

/// Converts the figures of a series in `period` to [`Rates`]. The operations and their total time
/// are divided by the seconds of the period. The bytes and the documents are divided by the number
/// of operations.
pub fn rates(figures: &Figures, period: &Period) -> Rates {
    let seconds = period.length.as_secs_f64().max(1e-9);
    let operations = float(figures.count.max(1));
    let quantile_ms = |q| millis(figures.durations.quantile(q));
    Rates {
        count: figures.count,
        per_second: float(figures.count) / seconds,
        p50_ms: quantile_ms(0.5),
        p99_ms: quantile_ms(0.99),
        total_time_ms_per_second: millis(figures.durations.sum()) / seconds,
        bytes_per_operation: float(figures.request_bytes + figures.reply_bytes) / operations,
        documents_per_operation: float(figures.documents) / operations,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Merge, Other, Shape, Span, SpanFigures, buckets};
    use seawall_stats::Distribution;
    use std::time::Duration;

    use super::*;

    /// The reply of an instance that handled 2,000 finds in 100 s in each period. A find takes
    /// `before_ms` in the baseline and `now_ms` in the current period.
    fn reply(before_ms: u64, now_ms: u64) -> Changes {
        let span = |from: f64, ms: u64| {
            let mut durations = Distribution::default();
            (0..2_000).for_each(|_| durations.record(Duration::from_millis(ms)));
            let all = Other {
                count: 2_000,
                distribution: Some(buckets(&durations)),
                latency_ms: (&durations).into(),
                total_time_ms: millis(durations.sum()),
                ..Other::default()
            };
            let shape = Shape {
                id: "0123456789abcdef".to_owned(),
                command: "find".to_owned(),
                level: "fine".to_owned(),
                count: all.count,
                distribution: all.distribution.clone(),
                latency_ms: all.latency_ms,
                total_time_ms: all.total_time_ms,
                ..Shape::default()
            };
            Some(Span {
                count: all.count,
                from,
                seconds: 100.0,
                to: from + 100.0,
                figures: Some(SpanFigures {
                    all,
                    other: Other::default(),
                    shapes: vec![shape],
                }),
            })
        };
        Changes {
            against: "1h".to_owned(),
            comparable: Some(true),
            baseline: span(1_000.0, before_ms),
            now: span(4_600.0, now_ms),
            ..Changes::default()
        }
    }

    /// Each instance of Seawall reports its statistics of two periods. The statistics of all
    /// instances are first merged, and then compared.
    #[test]
    fn slower_operations_are_found_in_the_merged_statistics_of_all_instances() {
        let mut merged = reply(10, 40);
        assert!(merged.is_mergeable());
        merged.merge(reply(10, 80));
        compare_merged(&mut merged);
        let [change] = &merged.changes[..] else {
            panic!("{merged:?}")
        };
        assert_eq!((change.kind.as_str(), change.now.count), ("slower", 4_000));
        assert_eq!(change.now.per_second, 40.0);
        let times = [change.before.p50_ms, change.now.p50_ms, change.now.p99_ms];
        for (ms, expected) in times.into_iter().zip([10.0, 40.0, 80.0]) {
            assert!((ms / expected - 1.0_f64).abs() < 0.05, "{times:?}");
        }
        let now = merged.now.unwrap();
        assert_eq!((now.count, now.seconds), (4_000, 100.0));
        assert!(now.figures.is_none());
    }

    #[test]
    fn merged_periods_that_are_not_comparable_have_no_changes() {
        let mut merged = reply(10, 40);
        let baseline = merged.baseline.as_mut().unwrap();
        baseline.seconds = 20.0;
        compare_merged(&mut merged);
        assert_eq!(
            merged.incomparable(),
            Some("only 20 s of the baseline have data")
        );
        assert!(merged.changes.is_empty(), "{merged:?}");
    }

    /// The comparison is between an earlier period (the baseline) and the current period.
    #[test]
    fn instance_without_data_of_the_earlier_period_is_excluded_from_the_comparison() {
        let incomparable = Changes {
            comparable: Some(false),
            reason: Some("no data for the baseline".to_owned()),
            ..Changes::default()
        };
        for swap in [false, true] {
            let (mut merged, other) = match swap {
                false => (reply(10, 10), incomparable.clone()),
                true => (incomparable.clone(), reply(10, 10)),
            };
            merged.merge(other);
            compare_merged(&mut merged);
            assert_eq!((merged.comparable, merged.changes.len()), (Some(true), 0));
            assert_eq!(merged.now.unwrap().count, 2_000);
        }
        let mut merged = incomparable.clone();
        merged.merge(incomparable);
        compare_merged(&mut merged);
        assert_eq!(merged.incomparable(), Some("no data for the baseline"));
    }
}
