//! Merges the replies of several instances. Counts and total times are added. Quantiles cannot be
//! merged, so they are computed from the merged distributions. The requests for the replies
//! therefore need `distributions=true`.

mod deployment;
mod insight;
mod instances;
mod lists;
mod pictures;
mod shapes;

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    hash::Hash,
};

pub use self::{
    instances::{add_reply, with_address, with_distributions},
    lists::Listed,
};
use super::{Bucket, Latency, More, Phases, buckets, distribution};

/// A reply that can be merged with the replies of other instances to the same request.
pub trait Merge {
    /// Sets the instance's address in the entries that a merge does not combine with entries of
    /// other instances. For example, a merged reply lists each storm with the address of its
    /// instance.
    fn set_instance(&mut self, _address: &str) {}

    /// True if the reply has all distributions that a merge needs. Versions of Seawall that do not
    /// know `distributions=true` omit the distributions.
    fn is_mergeable(&self) -> bool {
        true
    }

    /// Merges the reply of another instance into this reply.
    fn merge(&mut self, other: Self);
}

/// The text of a member whose value is not the same on all instances.
const MIXED: &str = "mixed";

/// Adds the named members of `other` to the same members of `self`.
macro_rules! add {
    ($this:ident, $other:ident: $($member:ident),+ $(,)?) => {
        $( $this.$member += $other.$member; )+
    };
}
use add;

/// Merges a text that two instances report: if their texts differ, the result is [`MIXED`]. An
/// empty text means that the instance reports no text; the result is then the text of the other
/// instance.
fn merge_text(text: &mut String, other: String) {
    if text.is_empty() {
        *text = other;
    } else if !other.is_empty() && *text != other {
        MIXED.clone_into(text);
    }
}

/// Combines an optional member with the same member of another instance. `both` combines the two
/// values. If only one instance has a value, this value is the result.
fn combine<T>(member: &mut Option<T>, other: Option<T>, both: impl FnOnce(T, T) -> T) {
    *member = match (member.take(), other) {
        (Some(member), Some(other)) => Some(both(member, other)),
        (member, other) => member.or(other),
    };
}

/// Adds `more` to `sum`. If one of the two numbers is absent, the sum is the other number.
fn add_known<T: std::ops::Add<Output = T>>(sum: &mut Option<T>, more: Option<T>) {
    combine(sum, more, std::ops::Add::add);
}

/// Merges `other` into `member`. If only one of the two values is present, this value is the
/// result.
fn merge_known<T: Merge>(member: &mut Option<T>, other: Option<T>) {
    merge_with(member, other, Merge::merge);
}

/// Like [`merge_known`], with the function `merge` for two values.
fn merge_with<T>(member: &mut Option<T>, other: Option<T>, merge: impl FnOnce(&mut T, T)) {
    combine(member, other, |mut member, other| {
        merge(&mut member, other);
        member
    });
}

/// Adds the limit `more` to `sum`. `None` means unlimited, so the sum is `None` if one of the two
/// limits is `None`.
fn add_limit(sum: &mut Option<u64>, more: Option<u64>) {
    *sum = sum.zip(more).map(|(sum, more)| sum + more);
}

/// Merges each element of `others` into the element of `list` with the same key. Appends the
/// elements of `others` whose keys are not in `list`.
fn merge_by<T, K: Eq + Hash>(
    list: &mut Vec<T>,
    others: Vec<T>,
    key: impl Fn(&T) -> K,
    merge: impl Fn(&mut T, T),
) {
    let mut indexes: HashMap<K, usize> = HashMap::new();
    for element in std::mem::take(list).into_iter().chain(others) {
        match indexes.entry(key(&element)) {
            Entry::Vacant(entry) => {
                entry.insert(list.len());
                list.push(element);
            }
            Entry::Occupied(entry) => {
                if let Some(first) = list.get_mut(*entry.get()) {
                    merge(first, element);
                }
            }
        }
    }
}

/// Adds the counts of `others` to the counts with the same names in `counts`.
fn add_counts(counts: &mut BTreeMap<String, u64>, others: BTreeMap<String, u64>) {
    for (name, count) in others {
        *counts.entry(name).or_default() += count;
    }
}

/// The members of a reply that describe durations.
struct Durations<'a> {
    latency_ms: &'a mut Latency,
    distribution: &'a mut Option<Vec<Bucket>>,
    total_ms: f64,
}

impl Durations<'_> {
    /// Merges the distributions, and computes the quantiles from the merged distribution. The
    /// maximum is the longer of the two maxima.
    fn merge(self, other: Self) {
        let whole = |of: &Self| {
            let buckets = of.distribution.as_deref().unwrap_or_default();
            distribution(buckets, of.total_ms, of.latency_ms.max)
        };
        let mut merged = whole(&self);
        merged.merge(&whole(&other));
        *self.latency_ms = Latency {
            max: self.latency_ms.max.max(other.latency_ms.max),
            ..(&merged).into()
        };
        *self.distribution = Some(buckets(&merged));
    }
}

/// Borrows the [`Durations`] of a value. Its type must have the members `latency_ms`,
/// `distribution` and `total_time_ms`.
macro_rules! durations {
    ($of:ident) => {
        Durations {
            latency_ms: &mut $of.latency_ms,
            distribution: &mut $of.distribution,
            total_ms: $of.total_time_ms,
        }
    };
}
use durations;

fn add_phases(sums: &mut Phases, other: &Phases) {
    add!(sums, other: checkout, forward, permit, receive, send, server);
}

fn add_more(sums: &mut More, other: More) {
    add!(sums, other: count, total_time_ms);
    add_known(&mut sums.awaited_time_ms, other.awaited_time_ms);
    add_known(&mut sums.documents, other.documents);
}

/// Lengths, in seconds, of the time steps for which Seawall keeps and shows figures.
const STEP_LENGTHS: [f64; 10] = [
    1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0,
];

/// The length of the steps of a merged timeline, in seconds. `requested` is the requested length,
/// or 0 if it is not known. `longest` is the greatest number of seconds with data in any step. A
/// step may lack data for some of its seconds. So if `longest` exceeds `requested`, the length is
/// the shortest of [`STEP_LENGTHS`] that is at least `longest`, or `longest` if there is none.
fn step_length(requested: f64, longest: f64) -> f64 {
    if longest <= requested {
        return requested;
    }
    let mut lengths = STEP_LENGTHS.into_iter();
    lengths.find(|length| *length >= longest).unwrap_or(longest)
}

/// Limits the number of seconds with data in a long step to the length of this step. `seconds` is
/// the sum over the short steps that begin in the long step. The last short step may end after the
/// long step, so the sum can exceed the length.
fn within_step(seconds: f64, length: f64) -> f64 {
    seconds.min(length)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Annotation, Certificate, CodeCount, GaugeStep, GaugeTimeline, GaugeValues, Heatmap,
        HeatmapColumn, Named, Namespace, Namespaces, Pool, Pools, Report, Shape, Shapes,
        Sparklines, Status, Storm, Storms, Tick, Timeline, TimelineStep,
    };
    use seawall_stats::Distribution;

    /// A shape with these durations in milliseconds.
    fn shape(id: &str, durations: &[u64]) -> Shape {
        let mut all = Distribution::default();
        for ms in durations {
            all.record(Duration::from_millis(*ms));
        }
        Shape {
            id: id.to_owned(),
            count: all.count(),
            latency_ms: (&all).into(),
            distribution: Some(buckets(&all)),
            total_time_ms: all.sum().as_secs_f64() * 1e3,
            ..Shape::default()
        }
    }

    fn shapes(shapes: Vec<Shape>) -> Shapes {
        Shapes {
            shapes,
            ..Shapes::default()
        }
    }

    #[test]
    fn merged_quantiles_are_computed_from_the_durations_of_all_instances() {
        let fast: Vec<u64> = (1..=90).collect();
        let slow: Vec<u64> = (1_000..1_010).collect();
        let mut merged = shapes(vec![shape("a", &fast), shape("b", &[5])]);
        merged.merge(shapes(vec![shape("a", &slow)]));
        let expected = shape("a", &[fast, slow].concat());
        let [a, b] = &merged.shapes[..] else {
            panic!("{merged:?}")
        };
        assert_eq!((a.count, b.count), (100, 1));
        assert_eq!(a.distribution, expected.distribution);
        assert_eq!(a.latency_ms, expected.latency_ms);
        assert!((a.total_time_ms - expected.total_time_ms).abs() < 1e-6);
    }

    /// An instance may keep no figures of the shape since its start. If the request has no period,
    /// such an instance reports the figures of the last ten minutes.
    #[test]
    fn figures_of_the_last_ten_minutes_are_not_added_to_figures_since_the_start() {
        let since_start = || shape("a", &[1, 2]);
        let recent = || Shape {
            since_seconds: Some(600.0),
            ..shape("a", &[3, 4, 5])
        };
        for (mut merged, other) in [(since_start(), recent()), (recent(), since_start())] {
            merged.merge(other);
            assert_eq!((merged.count, merged.since_seconds), (2, None));
        }
    }

    #[test]
    fn merged_applications_and_errors_of_a_shape_are_sorted_by_their_counts() {
        let of = |applications: &[(&str, u64)], codes: &[(&str, u64)]| {
            let named = applications.iter().map(|(name, count)| Named {
                count: *count,
                name: (*name).to_owned(),
            });
            let codes = codes.iter().map(|(code, count)| CodeCount {
                code: (*code).to_owned(),
                count: *count,
            });
            Shape {
                applications: Some(named.collect()),
                errors_by_code: Some(codes.collect()),
                ..shape("a", &[1])
            }
        };
        let mut merged = of(&[("shop", 5), ("other", 90)], &[("50", 3), ("13", 2)]);
        merged.merge(of(&[("jobs", 70), ("", 6)], &[("91", 9), ("13", 4)]));
        let applications = merged.applications.unwrap();
        let applications = applications.iter().map(|of| (&*of.name, of.count));
        let expected = [("jobs", 70), ("", 6), ("shop", 5), ("other", 90)];
        assert_eq!(applications.collect::<Vec<_>>(), expected);
        let codes = merged.errors_by_code.unwrap();
        let codes = codes.iter().map(|of| (&*of.code, of.count));
        assert_eq!(codes.collect::<Vec<_>>(), [("91", 9), ("13", 6), ("50", 3)]);
    }

    /// The figures of one namespace since the start of Seawall, with these durations in
    /// milliseconds.
    fn namespace(collection: &str, durations: &[u64], code: &str) -> Namespace {
        let Shape {
            count,
            latency_ms,
            distribution,
            total_time_ms,
            ..
        } = shape("", durations);
        Namespace {
            awaited_time_ms: Some(1.0),
            collection: collection.to_owned(),
            command: "find".to_owned(),
            count,
            error_codes: Some(BTreeMap::from([(code.to_owned(), 2)])),
            latency_ms,
            distribution,
            retries: Some(3),
            total_time_ms,
            ..Namespace::default()
        }
    }

    #[test]
    fn namespaces_are_merged_by_command_and_collection_and_sorted_by_total_time() {
        let of = |namespaces: Vec<Namespace>| Namespaces {
            namespaces,
            since_seconds: Some(60.0),
        };
        let mut merged = of(vec![
            namespace("a", &[40], "13"),
            namespace("b", &[10, 20], "13"),
        ]);
        let aggregate = Namespace {
            command: "aggregate".to_owned(),
            ..namespace("b", &[1], "13")
        };
        merged.merge(of(vec![namespace("b", &[30], "50"), aggregate]));
        merged.keep(2);
        let [b, a] = &merged.namespaces[..] else {
            panic!("{merged:?}")
        };
        let expected = shape("", &[10, 20, 30]);
        assert_eq!((&*b.collection, &*a.collection), ("b", "a"));
        assert_eq!((b.count, b.latency_ms), (3, expected.latency_ms));
        assert_eq!(b.distribution, expected.distribution);
        assert_eq!((b.retries, b.awaited_time_ms), (Some(6), Some(2.0)));
        let codes = BTreeMap::from([("13".to_owned(), 2), ("50".to_owned(), 2)]);
        assert_eq!(b.error_codes, Some(codes));
        // Neither of the replies has the member `errors`, so the merged reply does not have it
        // either.
        assert_eq!((b.errors, merged.since_seconds), (None, Some(60.0)));
        merged.drop_distributions();
        assert!(!merged.is_mergeable());
    }

    /// The server load of a query shape is the time of its operations and of their `getMore`s.
    #[test]
    fn report_lists_the_shapes_with_the_greatest_server_load_and_adds_the_others_to_other() {
        let mut report = Report {
            shapes: vec![shape("a", &[1, 1]), shape("b", &[50])],
            ..Report::default()
        };
        for shape in &mut report.shapes {
            shape.load_ms = shape.total_time_ms;
        }
        report.keep(1);
        let ids: Vec<_> = report.shapes.iter().map(|shape| &*shape.id).collect();
        assert_eq!((ids, report.other.count), (vec!["b"], 2));
    }

    #[test]
    fn each_annotation_of_a_merged_report_contains_the_instance_that_reported_it() {
        let mut merged = None;
        for (address, at) in [("http://b:1", 20.0), ("http://a:1", 10.0)] {
            let annotation = Annotation {
                at,
                ..Annotation::default()
            };
            let report = Report {
                annotations: vec![annotation],
                ..Report::default()
            };
            add_reply(&mut merged, address, report).unwrap();
        }
        let annotations = merged.unwrap().annotations;
        let instances = annotations.iter().map(|of| of.instance.as_deref());
        let expected = [Some("http://a:1"), Some("http://b:1")];
        assert_eq!(instances.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn reply_is_mergeable_only_if_every_shape_with_operations_has_a_distribution() {
        let with = shape("a", &[1]);
        let without = Shape {
            distribution: None,
            ..with.clone()
        };
        let idle = Shape::default();
        assert!(shapes(vec![with, idle]).is_mergeable());
        assert!(!shapes(vec![without]).is_mergeable());
    }

    #[test]
    fn connections_to_a_server_are_summed_over_all_instances() {
        let pool = |server: &str, in_use, limit, state: &str| Pool {
            server: server.to_owned(),
            in_use,
            state: state.to_owned(),
            concurrency: crate::Concurrency {
                limit,
                ..crate::Concurrency::default()
            },
            ..Pool::default()
        };
        let mut pools = Pools {
            pools: vec![
                pool("a:1", 3, Some(8), "ready"),
                pool("b:1", 1, Some(4), "ready"),
            ],
        };
        pools.merge(Pools {
            pools: vec![
                pool("b:1", 2, None, "paused"),
                pool("a:1", 5, Some(16), "ready"),
            ],
        });
        let rows = pools.pools.iter();
        let rows: Vec<_> = rows
            .map(|p| (&*p.server, p.in_use, p.concurrency.limit, &*p.state))
            .collect();
        assert_eq!(
            rows,
            [("a:1", 8, Some(24), "ready"), ("b:1", 3, None, "mixed")]
        );
    }

    #[test]
    fn merged_reconnect_storms_have_the_address_of_their_instance_and_are_sorted_latest_first() {
        let storms = |started: &[f64]| Storms {
            storms: started
                .iter()
                .map(|started_at| Storm {
                    started_at: *started_at,
                    ..Storm::default()
                })
                .collect(),
            active: started.contains(&9.0),
            ..Storms::default()
        };
        let mut merged = storms(&[7.0, 1.0]);
        merged.set_instance("http://a:1");
        let mut other = storms(&[9.0, 3.0]);
        other.set_instance("http://b:1");
        merged.merge(other);
        assert!(merged.active);
        let order: Vec<_> = merged.storms.iter().map(|storm| storm.started_at).collect();
        assert_eq!(order, [9.0, 7.0, 3.0, 1.0]);
        let instances = merged.storms.iter().filter_map(|s| s.instance.as_deref());
        assert!(instances.eq(["http://b:1", "http://a:1", "http://b:1", "http://a:1"]));
    }

    #[test]
    fn timeline_steps_that_begin_at_the_same_time_are_merged() {
        let report = |at: &[f64]| Report {
            timeline: Timeline {
                step_seconds: 1.0,
                steps: at
                    .iter()
                    .map(|at| {
                        let shape = shape("", &[4]);
                        TimelineStep {
                            at: *at,
                            seconds: 1.0,
                            count: 1,
                            latency_ms: shape.latency_ms,
                            distribution: shape.distribution,
                            total_time_ms: 4.0,
                            ..TimelineStep::default()
                        }
                    })
                    .collect(),
            },
            status: Status {
                operations: 10,
                uptime_seconds: at[0],
                version: "1.0.0".to_owned(),
                ..Status::default()
            },
            ..Report::default()
        };
        let mut merged = report(&[5.0, 6.0]);
        merged.merge(report(&[4.0, 6.0]));
        let steps = merged.timeline.steps.iter();
        let steps: Vec<_> = steps.map(|s| (s.at, s.count, s.seconds)).collect();
        assert_eq!(steps, [(4.0, 1, 1.0), (5.0, 1, 1.0), (6.0, 2, 1.0)]);
        let status = &merged.status;
        assert_eq!((status.operations, status.uptime_seconds), (20, 5.0));
        assert_eq!(status.version, "1.0.0");
    }

    #[test]
    fn steps_of_different_lengths_are_combined_into_steps_of_the_longest_length() {
        let timeline = |steps: &[(f64, f64, u64)]| Timeline {
            step_seconds: 1.0,
            steps: steps
                .iter()
                .map(|(at, seconds, count)| TimelineStep {
                    at: *at,
                    seconds: *seconds,
                    count: *count,
                    distribution: Some(Vec::new()),
                    ..TimelineStep::default()
                })
                .collect(),
        };
        let seconds: Vec<_> = (20..32).map(|at| (f64::from(at), 1.0, 100)).collect();
        let mut merged = timeline(&seconds);
        merged.merge(timeline(&[(20.0, 10.0, 1_000)]));
        assert_eq!(merged.step_seconds, 10.0);
        let steps = merged.steps.iter();
        let steps: Vec<_> = steps.map(|s| (s.at, s.seconds, s.count)).collect();
        assert_eq!(steps, [(20.0, 10.0, 2_000), (30.0, 2.0, 200)]);
    }

    /// The loads of one shape, in steps of `step_seconds` seconds from `from` on.
    fn sparklines(from: f64, step_seconds: f64, loads: &[f64]) -> Sparklines {
        Sparklines {
            from,
            shapes: [("a".to_owned(), loads.to_vec())].into(),
            step_seconds,
        }
    }

    #[test]
    fn sparklines_with_steps_of_different_lengths_are_combined_into_the_longer_steps() {
        let short = sparklines(
            1_010.0,
            10.0,
            &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
        );
        let long = sparklines(960.0, 60.0, &[1_000.0, 2_000.0]);
        for (mut merged, other) in [(short.clone(), long.clone()), (long, short)] {
            merged.merge(other);
            assert_eq!((merged.from, merged.step_seconds), (960.0, 60.0));
            // The first short step begins in the first long step, and the last in the third.
            assert_eq!(merged.shapes["a"], [1_001.0, 2_126.0, 128.0]);
        }
    }

    #[test]
    fn an_instance_whose_clock_is_years_behind_does_not_remove_the_sparklines_of_others() {
        let own = sparklines(1_795_200_000.0, 10.0, &[1.0, 2.0]);
        let mut merged = own.clone();
        merged.merge(sparklines(0.0, 10.0, &[4.0]));
        assert_eq!((merged.from, merged.shapes), (own.from, own.shapes));
    }

    #[test]
    fn a_merged_step_that_has_not_ended_on_any_instance_keeps_its_start() {
        let step = |seconds: f64| TimelineStep {
            at: 1_200.0,
            seconds,
            distribution: Some(Vec::new()),
            ..TimelineStep::default()
        };
        let timeline = |seconds: f64| Timeline {
            step_seconds: 600.0,
            steps: vec![step(seconds)],
        };
        let mut merged = timeline(431.0);
        merged.merge(timeline(300.0));
        let steps = merged.steps.iter().map(|step| (step.at, step.seconds));
        assert_eq!(steps.collect::<Vec<_>>(), [(1_200.0, 431.0)]);
        assert_eq!(merged.step_seconds, 600.0);

        let heatmap = |seconds: f64| Heatmap {
            step_seconds: 600.0,
            columns: vec![HeatmapColumn {
                at: 1_200.0,
                seconds,
                ..HeatmapColumn::default()
            }],
            ..Heatmap::default()
        };
        let mut merged = heatmap(431.0);
        merged.merge(heatmap(300.0));
        assert_eq!(
            (merged.columns[0].at, merged.step_seconds),
            (1_200.0, 600.0)
        );

        let gauges = |seconds: f64| GaugeTimeline {
            step_seconds: 600.0,
            steps: vec![GaugeStep {
                at: 1_200.0,
                seconds,
                ..GaugeStep::default()
            }],
        };
        let mut merged = gauges(431.0);
        merged.merge(gauges(300.0));
        assert_eq!((merged.steps[0].at, merged.step_seconds), (1_200.0, 600.0));
    }

    #[test]
    fn mean_of_a_gauge_includes_only_the_steps_that_have_the_gauge() {
        let step = |at: u32, mean: Option<f64>| {
            let values = mean.map(|mean| GaugeValues {
                mean,
                ..GaugeValues::default()
            });
            let named = values.map(|values| ("concurrency_limit".to_owned(), values));
            GaugeStep {
                at: f64::from(at),
                gauges: named.into_iter().collect(),
                seconds: 1.0,
            }
        };
        let mut merged = GaugeTimeline {
            step_seconds: 1.0,
            steps: vec![step(0, None), step(1, Some(10.0)), step(2, Some(40.0))],
        };
        merged.merge(GaugeTimeline {
            step_seconds: 10.0,
            ..GaugeTimeline::default()
        });
        assert_eq!((merged.steps.len(), merged.steps[0].seconds), (1, 3.0));
        assert_eq!(merged.steps[0].gauges["concurrency_limit"].mean, 25.0);
    }

    #[test]
    fn merging_timelines_with_equal_steps_keeps_the_step_length() {
        let timeline = || Timeline {
            step_seconds: 0.0,
            steps: (0..100)
                .map(|step| TimelineStep {
                    at: f64::from(step) * 3.0,
                    seconds: 3.0,
                    count: 1,
                    distribution: Some(Vec::new()),
                    ..TimelineStep::default()
                })
                .collect(),
        };
        let mut merged = timeline();
        for _ in 0..2 {
            merged.merge(timeline());
        }
        assert_eq!((merged.steps.len(), merged.step_seconds), (100, 3.0));
        // Some steps of 3 s begin in one step of 10 s and end in the next step.
        merged.merge(Timeline {
            step_seconds: 10.0,
            ..Timeline::default()
        });
        assert_eq!(merged.step_seconds, 10.0);
        assert!(merged.steps.iter().all(|step| step.seconds <= 10.0));
    }

    /// The requested length is 0 if it is not known. An example is the timeline of a shape: it does
    /// not contain the length of its steps.
    #[test]
    fn the_length_of_steps_is_the_requested_length_or_the_next_longer_usual_length() {
        for (requested, longest, expected) in [
            (600.0, 431.0, 600.0),
            (60.0, 431.0, 600.0),
            (0.0, 431.0, 600.0),
            (0.0, 700.0, 3_600.0),
            (300.0, 300.0, 300.0),
            (0.0, 1.0, 1.0),
            (0.0, 3.0, 3.0),
            (0.0, 100_000.0, 100_000.0),
        ] {
            assert_eq!(step_length(requested, longest), expected, "{longest}");
        }
    }

    #[test]
    fn a_merged_live_update_has_the_time_of_the_first_instance() {
        let tick = |at, clients| Tick {
            at,
            clients,
            ..Tick::default()
        };
        let mut merged = tick(100.0, 3);
        merged.merge(tick(160.0, 4));
        assert_eq!((merged.at, merged.clients), (100.0, 7));
    }

    #[test]
    fn certificates_of_one_file_that_differ_between_instances_are_listed_separately() {
        let status = |serial: &str, not_after: i64| Status {
            certificates: vec![Certificate {
                file: "tls.pem".to_owned(),
                kind: "certificate".to_owned(),
                not_after,
                serial: serial.to_owned(),
                subject: "CN=seawall".to_owned(),
            }],
            ..Status::default()
        };
        let mut merged = status("1", 100);
        merged.merge(status("2", 200));
        merged.merge(status("1", 100));
        merged.merge(status("1", 300));
        let certificates = merged.certificates.iter();
        let ends: Vec<_> = certificates.map(|of| (&*of.serial, of.not_after)).collect();
        assert_eq!(ends, [("1", 100), ("2", 200), ("1", 300)]);
    }

    #[test]
    fn a_merged_status_names_each_instance_that_is_not_ready() {
        let status = |address: &str, reason: Option<&str>| {
            let mut status = Status {
                not_ready: reason.map(str::to_owned),
                ..Status::default()
            };
            status.set_instance(address);
            status
        };
        let mut merged = status("http://a:1", Some("draining"));
        merged.merge(status("http://b:1", None));
        merged.merge(status("http://c:1", Some("no server")));
        let expected = "http://a:1: draining; http://c:1: no server";
        assert_eq!(merged.not_ready.as_deref(), Some(expected));
    }

    #[test]
    fn text_that_differs_between_instances_becomes_the_word_mixed() {
        let mut text = String::new();
        merge_text(&mut text, "pooled".to_owned());
        merge_text(&mut text, "pooled".to_owned());
        assert_eq!(text, "pooled");
        merge_text(&mut text, String::new());
        assert_eq!(text, "pooled");
        merge_text(&mut text, "relay".to_owned());
        assert_eq!(text, MIXED);
    }
}
