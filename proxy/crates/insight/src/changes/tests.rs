use super::*;
use crate::random::Random;

const SEEDS: u64 = 40;

#[derive(Clone, Copy)]
struct SyntheticLoad {
    number: u64,
    per_second: f64,
    median_ms: f64,
    sigma: f64,
    reply_bytes: u64,
    documents: u64,
}

impl SyntheticLoad {
    fn figures(&self, random: &mut Random, seconds: f64, drift: f64) -> Figures {
        let expected = self.per_second * seconds;
        // Operations come in bursts: the standard deviation of their number is twice that of
        // independent operations.
        let count = (expected + 2.0 * expected.sqrt() * random.normal()).max(0.0);
        let tail = random.between(1.0, 5.0);
        let mut figures = Figures::default();
        for _ in 0..u64::try_from(whole_number(count)).unwrap() {
            let is_tail = random.unit() < 0.05;
            let ms = self.median_ms * drift * (self.sigma * random.normal()).exp();
            let ms = if is_tail { ms * tail } else { ms };
            figures
                .durations
                .record(Duration::from_secs_f64(ms / 1_000.0));
            figures.count += 1;
            figures.request_bytes += 200;
            figures.reply_bytes += self.reply_bytes / 2 + whole(random, self.reply_bytes);
            figures.documents += self.documents;
        }
        figures
    }
}

fn whole(random: &mut Random, most: u64) -> u64 {
    u64::try_from(whole_number(random.unit() * float(most))).unwrap()
}

fn label(number: u64) -> Arc<Label> {
    Arc::new(Label::Shape {
        level: Level::Fine,
        id: format!("{number:016x}").into(),
        command: "find".into(),
        db: "shop".into(),
        collection: "orders".into(),
        text: format!("{{a{number}: ?}}").into(),
    })
}

/// Thirty shapes. The rate of the most frequent shape is 30 times that of the rarest shape, and the
/// longest median duration is 74 times the shortest.
fn thirty() -> Vec<SyntheticLoad> {
    (0..30_u32)
        .map(|number| SyntheticLoad {
            number: u64::from(number),
            per_second: 40.0 / f64::from(number + 1),
            median_ms: 0.3 * 1.16_f64.powi(i32::try_from(number * 7 % 30).unwrap()),
            sigma: 0.2 + f64::from(number % 5) * 0.2,
            reply_bytes: 400,
            documents: 1,
        })
        .collect()
}

fn period(random: &mut Random, loads: &[SyntheticLoad], seconds: f64) -> Period {
    // In each period, the machine is up to 30 % slower or faster than usual.
    let drift = random.between(0.7, 1.3);
    let mut period = Period {
        length: Duration::from_secs_f64(seconds),
        ..Period::default()
    };
    let mut all = Figures::default();
    for load in loads {
        let figures = load.figures(random, seconds, drift);
        if figures.count > 0 {
            all.merge(&figures);
            period.series.insert(label(load.number), figures);
        }
    }
    period.series.insert(Arc::new(Label::Whole), all);
    period
}

/// The changes that are found between thirty shapes and the same shapes modified by `change`.
fn found(seed: u64, change: impl Fn(&mut Vec<SyntheticLoad>)) -> Vec<Change> {
    let mut random = Random::of(seed);
    let before = period(&mut random, &thirty(), 60.0);
    let mut loads = thirty();
    change(&mut loads);
    let now = period(&mut random, &loads, 60.0);
    compare(&before, &now)
}

fn kinds(changes: &[Change]) -> Vec<(Arc<Label>, ChangeKind)> {
    let kinds = changes.iter().map(|c| (Arc::clone(&c.label), c.kind));
    kinds.collect()
}

pub(super) fn alike(count: u64, ms: f64) -> Figures {
    let mut figures = Figures {
        count,
        ..Figures::default()
    };
    (0..count).for_each(|_| figures.durations.record(Duration::from_secs_f64(ms / 1e3)));
    figures
}

/// One minute of operations. `shapes` has the number of operations and their duration in
/// milliseconds for each shape. The shapes are numbered from 0.
fn minute(shapes: &[(u64, f64)]) -> Period {
    let series = (0..).zip(shapes).filter(|(_, (count, _))| *count > 0);
    Period {
        length: Duration::from_mins(1),
        series: series
            .map(|(number, (count, ms))| (label(number), alike(*count, *ms)))
            .collect(),
    }
}

#[test]
fn random_noise_is_not_reported_as_a_change() {
    for seed in 0..SEEDS {
        let changes = found(seed, |_| {});
        assert_eq!(changes, [], "seed {seed}");
    }
}

#[test]
fn only_the_shape_with_a_dropped_index_is_reported_among_thirty_shapes() {
    for seed in 0..SEEDS {
        let dropped = usize::try_from(seed % 12).unwrap();
        let changes = found(seed, |loads| {
            loads[dropped].median_ms *= 5.0;
        });
        let expected = [(label(seed % 12), ChangeKind::Slower)];
        assert_eq!(kinds(&changes), expected, "seed {seed}");
        let Change { ratio, effect, .. } = changes[0];
        assert!((2.0..13.0).contains(&ratio), "{ratio}");
        assert!((0.75..=1.0).contains(&effect), "{effect}");
        assert!(changes[0].cost_per_second > Duration::ZERO);
    }
}

#[test]
fn slowdown_from_1_ms_to_5_ms_is_found_after_120_operations() {
    for seed in 0..SEEDS {
        let mut random = Random::of(seed);
        let mut loads = thirty();
        let rare = loads.last_mut().unwrap();
        (rare.per_second, rare.median_ms, rare.sigma) = (2.0, 1.0, 0.7);
        let before = period(&mut random, &loads, 60.0);
        loads.last_mut().unwrap().median_ms = 5.0;
        let changes = compare(&before, &period(&mut random, &loads, 60.0));
        assert_eq!(kinds(&changes), [(label(29), ChangeKind::Slower)]);
    }
}

#[test]
fn a_shape_with_a_much_shorter_median_time_is_reported_as_faster() {
    for seed in 0..SEEDS {
        let changes = found(seed, |loads| loads[4].median_ms /= 8.0);
        assert_eq!(kinds(&changes), [(label(4), ChangeKind::Faster)], "{seed}");
        assert!(changes[0].effect < 0.3 && changes[0].ratio < 0.5);
        assert_eq!(changes[0].cost_per_second, Duration::ZERO);
    }
}

#[test]
fn a_change_common_to_all_shapes_is_reported_once() {
    let whole = |kind| vec![(Arc::new(Label::Whole), kind)];
    for seed in 0..SEEDS {
        let twice = found(seed, |loads| {
            loads.iter_mut().for_each(|load| load.per_second *= 2.0);
        });
        assert_eq!(twice, [], "seed {seed}");
        let often = found(seed, |loads| {
            loads.iter_mut().for_each(|load| load.per_second *= 5.0);
        });
        assert_eq!(kinds(&often), whole(ChangeKind::MoreFrequent));
        let slow = found(seed, |loads| {
            loads.iter_mut().for_each(|load| load.median_ms *= 8.0);
        });
        assert_eq!(kinds(&slow), whole(ChangeKind::Slower));
    }
}

#[test]
fn shape_that_changed_more_than_all_others_is_listed_before_the_common_change() {
    let changes = found(3, |loads| {
        loads.iter_mut().for_each(|load| load.median_ms *= 6.0);
        loads[7].median_ms *= 6.0;
    });
    let expected = [
        (label(7), ChangeKind::Slower),
        (Arc::new(Label::Whole), ChangeKind::Slower),
    ];
    assert_eq!(kinds(&changes), expected);
}

#[test]
fn new_and_gone_shapes_of_a_deploy_are_found() {
    for seed in 0..SEEDS {
        let changes = found(seed, |loads| {
            let mut new = loads.remove(2);
            (new.number, new.median_ms) = (77, 9.0);
            loads.push(new);
        });
        let expected = [(label(77), ChangeKind::New), (label(2), ChangeKind::Gone)];
        assert_eq!(kinds(&changes), expected, "seed {seed}");
        assert_eq!((changes[0].before.count, changes[1].now.count), (0, 0));
        assert!(changes.iter().all(|c| c.ratio.is_finite()));
    }
}

#[test]
fn shapes_that_become_more_or_less_frequent_are_found() {
    for seed in 0..SEEDS {
        let changes = found(seed, |loads| {
            loads[3].per_second *= 6.0;
            loads[0].per_second /= 6.0;
        });
        let mut kinds = kinds(&changes);
        kinds.sort();
        let expected = [
            (label(0), ChangeKind::LessFrequent),
            (label(3), ChangeKind::MoreFrequent),
        ];
        assert_eq!(kinds, expected, "seed {seed}");
    }
}

#[test]
fn shapes_with_larger_replies_and_more_documents_are_found() {
    let changes = found(5, |loads| {
        (loads[1].reply_bytes, loads[1].documents) = (4_000, 10);
    });
    let kinds = kinds(&changes);
    let expected = [ChangeKind::HeavierReplies, ChangeKind::MoreDocuments];
    assert_eq!(kinds, expected.map(|kind| (label(1), kind)));
    assert!((8.0..12.0).contains(&changes[0].ratio), "{changes:?}");
}

#[test]
fn changes_below_the_thresholds_are_not_reported() {
    let steady = [(500, 1.0), (500, 1.0), (500, 1.0), (500, 1.0)];
    let with = |more: (u64, f64)| minute(&[&steady[..], &[more]].concat());
    // Each case is one more shape: the number and the median duration (in ms) of its operations,
    // first in the earlier period, then in the later one. The later number is limited below,
    // because a great increase of the number would be reported.
    let cases = [
        // Few operations in the earlier period.
        ((29, 1.0), (500, 9.0)),
        // A small ratio of the durations.
        ((500, 1.0), (500, 1.4)),
        // A small difference of the durations.
        ((500, 0.02), (500, 0.1)),
        // A number of operations that may have grown by chance.
        ((10, 1.0), (35, 1.0)),
        // A new shape with few operations.
        ((0, 1.0), (29, 9.0)),
    ];
    for (before, now) in cases {
        let now = (now.0.min(before.0.max(40) * 2), now.1);
        assert_eq!(compare(&with(before), &with(now)), [], "{before:?} {now:?}");
    }
}

/// If there are no other shapes to compare with, a small slowdown may be a slower machine.
#[test]
fn a_slowdown_of_the_only_shape_is_reported_only_if_it_is_large() {
    let (slow, slower) = (minute(&[(500, 1.9)]), minute(&[(500, 5.0)]));
    let before = minute(&[(500, 1.0)]);
    assert_eq!(compare(&before, &slow), []);
    let changes = compare(&before, &slower);
    assert_eq!(kinds(&changes), [(label(0), ChangeKind::Slower)]);
}

#[test]
fn empty_periods_have_no_changes() {
    let some = minute(&[(500, 1.0)]);
    let timeless = Period {
        length: Duration::ZERO,
        ..some.clone()
    };
    for empty in [Period::default(), minute(&[]), timeless] {
        assert_eq!(compare(&empty, &some), []);
        assert_eq!(compare(&some, &empty), []);
    }
}

/// *Other shapes* is one row that counts all shapes that have no row of their own in the shape
/// table.
#[test]
fn a_shape_that_may_have_been_counted_as_one_of_the_other_shapes_is_not_reported_as_new() {
    let mut before = minute(&[(500, 1.0)]);
    let now = minute(&[(500, 1.0), (300, 1.0)]);
    let new = [(label(1), ChangeKind::New)];
    assert_eq!(kinds(&compare(&before, &now)), new);
    let others = |count| alike(count, 1.0);
    let other_shapes = Arc::new(Label::OtherShapes);
    before.series.insert(Arc::clone(&other_shapes), others(200));
    assert_eq!(compare(&before, &now), []);
    assert_eq!(compare(&now, &before), []);
    before.series.insert(other_shapes, others(20));
    assert_eq!(kinds(&compare(&before, &now)), new);
}

#[test]
fn if_the_earlier_period_is_shorter_than_30_seconds_no_shape_is_reported_as_new() {
    let mut before = minute(&[(500, 1.0)]);
    before.length = Duration::from_secs(10);
    assert_eq!(compare(&before, &minute(&[(3_000, 1.0), (3_000, 1.0)])), []);
}

/// The cost of a change is the increase of the operation time per second.
#[test]
fn changes_are_sorted_by_cost_and_improvements_are_last() {
    let before = minute(&[(100, 9.0), (100, 1.0), (100, 1.0), (100, 1.0), (100, 1.0)]);
    let now = minute(&[(100, 1.0), (100, 4.0), (100, 8.0), (100, 1.0), (100, 1.0)]);
    let labels: Vec<_> = (compare(&before, &now).into_iter())
        .map(|change| change.label)
        .collect();
    assert_eq!(labels, [label(2), label(1), label(0)]);
}

#[test]
fn change_kinds_have_the_names_used_in_the_api() {
    let names = [
        (ChangeKind::New, "new"),
        (ChangeKind::Gone, "gone"),
        (ChangeKind::Slower, "slower"),
        (ChangeKind::Faster, "faster"),
        (ChangeKind::MoreFrequent, "more_frequent"),
        (ChangeKind::LessFrequent, "less_frequent"),
        (ChangeKind::HeavierRequests, "heavier_requests"),
        (ChangeKind::HeavierReplies, "heavier_replies"),
        (ChangeKind::MoreDocuments, "more_documents"),
    ];
    for (kind, name) in names {
        assert_eq!(kind.as_str(), name);
    }
}

fn update(text: &str) -> Arc<Label> {
    Arc::new(Label::Shape {
        level: Level::Fine,
        id: text.into(),
        command: "update".into(),
        db: "d".into(),
        collection: "games".into(),
        text: text.into(),
    })
}

/// One minute of operations of four shapes and of the update with this text.
fn minute_with(text: &str) -> Period {
    let mut period = minute(&[(500, 1.0), (500, 1.0), (500, 1.0), (500, 1.0)]);
    period.series.insert(update(text), alike(500, 1.0));
    period
}

/// Like [`minute_with`] of [`BOB`], but its names were learned in the middle of the period.
fn half_learned() -> Period {
    let mut period = minute_with(BOB);
    for text in [BOB, LEARNED] {
        period.series.insert(update(text), alike(250, 1.0));
    }
    period
}

const BOB: &str = "{updates:[{update:{$set:{scores.bob:?}}}]}";

/// The text of [`BOB`] after Seawall has learned that the names below `scores` are data.
const LEARNED: &str = "{updates:[{update:{$set:{scores.*:?}}}]}";

const OTHER: &str = "{updates:[{update:{$set:{points.*:?}}}]}";

/// Seawall replaces field names that are data, such as the user name in `scores.bob`, by `*`.
#[test]
fn a_shape_whose_field_names_are_replaced_by_a_star_is_neither_new_nor_gone() {
    let (before, learned) = (minute_with(BOB), minute_with(LEARNED));
    assert_eq!(compare(&before, &learned), []);
    assert_eq!(compare(&before, &before), []);
    assert_eq!(compare(&before, &minute_with(OTHER)).len(), 2);
    // The names were learned in the middle of the earlier period.
    assert_eq!(compare(&half_learned(), &learned), []);
    // The names were learned in the middle of the later period.
    assert_eq!(compare(&before, &half_learned()), []);
    // All shapes have fewer operations in the later period.
    let mut calmer = learned;
    calmer.length *= 2;
    assert_eq!(compare(&half_learned(), &calmer), []);
}

/// Another version of Seawall may have written another text. The namespace becomes `other` if too
/// many other namespaces have rows after a restart.
#[test]
fn a_shape_with_another_text_or_namespace_but_the_same_id_is_neither_new_nor_gone() {
    let with = |collection: &str, text: &str| {
        let mut period = minute(&[(500, 1.0), (500, 1.0), (500, 1.0), (500, 1.0)]);
        let label = Label::Shape {
            level: Level::Fine,
            id: "the same".into(),
            command: "find".into(),
            db: "shop".into(),
            collection: collection.into(),
            text: text.into(),
        };
        period.series.insert(Arc::new(label), alike(500, 1.0));
        period
    };
    let before = with("orders", "{filter:{a:?}}");
    for now in [with("orders", "{a:?}"), with("other", "{filter:{a:?}}")] {
        assert_eq!(compare(&before, &now), []);
        assert_eq!(compare(&now, &before), []);
    }
}

/// A year in a field name is replaced by `*` immediately. Other names must be learned first.
#[test]
fn a_shape_with_a_new_field_is_new_if_the_shape_with_a_star_occurs_in_both_periods() {
    let before = minute_with(LEARNED);
    let mut now = before.clone();
    now.series.insert(update(BOB), alike(500, 1.0));
    let new = [(update(BOB), ChangeKind::New)];
    assert_eq!(kinds(&compare(&before, &now)), new);
    let gone = [(update(BOB), ChangeKind::Gone)];
    assert_eq!(kinds(&compare(&now, &before)), gone);
}

/// A restart forgets which field names are data, until Seawall has learned them again.
#[test]
fn a_shape_whose_star_is_a_name_again_after_a_restart_is_neither_new_nor_gone() {
    let (learned, restarted) = (minute_with(LEARNED), minute_with(BOB));
    assert_eq!(compare(&learned, &restarted), []);
    assert_eq!(compare(&minute_with(OTHER), &restarted).len(), 2);
    // The names were learned again in the later period.
    let mut both = half_learned();
    assert_eq!(compare(&learned, &both), []);
    // The names were learned in the middle of the earlier period, before the restart.
    assert_eq!(compare(&both, &minute_with(BOB)), []);
    // A field that is not below the learned prefix makes a new shape.
    let new = update("{updates:[{update:{$set:{name:?}}}]}");
    both.series.insert(Arc::clone(&new), alike(500, 1.0));
    let expected = [(new, ChangeKind::New)];
    assert_eq!(kinds(&compare(&learned, &both)), expected);
}

/// A group row of the shape table counts several shapes of a namespace together.
#[test]
fn shape_that_moves_from_a_group_row_to_its_own_row_is_not_reported_as_new() {
    let folded = |level: Level, db: &str, collection: &str| {
        Arc::new(Label::Shape {
            level,
            id: level.as_str().into(),
            command: "find".into(),
            db: db.into(),
            collection: collection.into(),
            text: "other".into(),
        })
    };
    let with = |label: Arc<Label>| {
        let mut period = minute(&[(500, 1.0), (500, 1.0), (500, 1.0), (500, 1.0)]);
        period.series.insert(label, alike(400, 1.0));
        period
    };
    let own = with(label(9));
    for level in [Level::Coarse, Level::Rest] {
        let among_others = with(folded(level, "shop", "orders"));
        assert_eq!(compare(&among_others, &own), []);
        assert_eq!(compare(&own, &among_others), []);
        // A group row is not a shape, so it is never new or slower.
        let none = minute(&[(500, 1.0), (500, 1.0), (500, 1.0), (500, 1.0)]);
        assert_eq!(compare(&none, &among_others), []);
        // The namespace of the shape had no row in the earlier period.
        let without_namespace = with(folded(level, "other", "other"));
        assert_eq!(compare(&without_namespace, &own), []);
        let elsewhere = with(folded(level, "shop", "users"));
        let new = [(label(9), ChangeKind::New)];
        assert_eq!(kinds(&compare(&elsewhere, &own)), new);
    }
}

#[test]
fn a_new_shape_with_few_operations_is_reported_if_costly() {
    let with_whole = |shapes: &[(u64, f64)]| {
        let mut period = minute(shapes);
        let mut all = Figures::default();
        period
            .series
            .values()
            .for_each(|figures| all.merge(figures));
        period.series.insert(Arc::new(Label::Whole), all);
        period
    };
    let usual = [(500, 1.0), (500, 1.0), (500, 1.0), (500, 1.0)];
    let before = with_whole(&usual);
    let now = |count, ms| with_whole(&[&usual[..], &[(count, ms)]].concat());
    let scans = compare(&before, &now(4, 20_000.0));
    assert_eq!(kinds(&scans), [(label(4), ChangeKind::New)]);
    assert_eq!(compare(&before, &now(2, 20_000.0)), []);
    assert_eq!(compare(&before, &now(4, 20.0)), []);
    let mut short = before;
    short.length = Duration::from_secs(40);
    assert_eq!(compare(&short, &now(4, 20_000.0)), []);
}

/// The cost of a change is the increase of the operation time per second.
#[test]
fn the_cost_of_a_slower_shape_includes_the_time_of_its_get_mores() {
    let with_more = |seconds| {
        let mut period = minute(&[(500, 1.0), (500, 1.0), (500, 1.0), (500, 1.0)]);
        let mut heavy = alike(500, if seconds > 0 { 9.0 } else { 1.0 });
        heavy.more_time = Duration::from_secs(seconds);
        period.series.insert(label(9), heavy);
        period
    };
    let changes = compare(&with_more(0), &with_more(60));
    assert_eq!(kinds(&changes), [(label(9), ChangeKind::Slower)]);
    assert!(changes[0].cost_per_second > Duration::from_secs(1));
}
