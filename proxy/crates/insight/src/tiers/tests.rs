use super::*;
use seawall_stats::{Distribution, Gauge, Level};

fn shape(number: usize) -> Arc<Label> {
    shape_with_text(number, &format!("{{filter:{{f{number}:?}}}}"))
}

fn shape_with_text(number: usize, text: &str) -> Arc<Label> {
    Arc::new(Label::Shape {
        level: Level::Fine,
        id: format!("{number:016x}").into(),
        command: "find".into(),
        db: "shop".into(),
        collection: "orders".into(),
        text: text.into(),
    })
}

fn namespace(number: usize) -> Arc<Label> {
    Arc::new(Label::Namespace {
        command: "find".into(),
        db: "shop".into(),
        collection: format!("orders{number}").into(),
    })
}

fn figures(count: u64, milliseconds: u64) -> Figures {
    let mut figures = Figures {
        count,
        documents: count * 2,
        ..Figures::default()
    };
    (0..count).for_each(|_| {
        figures
            .durations
            .record(Duration::from_millis(milliseconds))
    });
    figures
}

fn second(of: &[(Arc<Label>, u64, f64)]) -> BTreeMap<Arc<Label>, (Figures, f64)> {
    let pairs = of
        .iter()
        .map(|(label, count, weight)| (Arc::clone(label), (figures(*count, 3), *weight)));
    pairs.collect()
}

const START: u64 = 1_700_000_000 - 1_700_000_000 % 600;

fn filled(seconds: u64) -> History {
    filled_from(START, seconds)
}

fn filled_from(start: u64, seconds: u64) -> History {
    let mut history = History::new(64 << 20, 10);
    for at in 0..seconds {
        let of = [(Arc::new(Label::Whole), 1 + at % 3, f64::INFINITY)];
        history.add(start + at, second(&of), Gauges::default());
        history.take_delta();
    }
    history
}

fn whole(period: &Period) -> u64 {
    period.series.get(&Label::Whole).map_or(0, |f| f.count)
}

/// The history has four *tiers*. Their steps have a length of 1 s, 10 s, 60 s and 600 s.
#[test]
fn operation_counts_are_exact_while_the_latest_steps_have_not_ended() {
    // 3,725 is not a multiple of 10, 60 or 600. So the latest steps of 10 s, of 60 s and of 600 s
    // have not ended yet.
    let history = filled(3_725);
    let sum = |from: u64, to: u64| (from..to).map(|at| 1 + at % 3).sum::<u64>();
    for since in [1, 7, 599, 60, 10] {
        let period = history.period(START + 3_725 - since, START + 3_725);
        assert_eq!(whole(&period), sum(3_725 - since, 3_725), "{since} s");
        assert_eq!(period.length, Duration::from_secs(since));
    }
    let all = history.period(START, START + 3_725);
    assert_eq!(whole(&all), sum(0, 3_725));
    assert_eq!(all.length, Duration::from_secs(3_725));
    // The range begins in the middle of a step of 10 s, so the result begins with this step.
    let hour = history.period(START + 123, START + 3_725);
    assert_eq!(whole(&hour), sum(120, 3_725));
}

/// Two days ago, the history has only steps of 600 s.
#[test]
fn a_period_within_one_step_of_the_history_has_the_figures_of_this_step() {
    let mut history = filled(1_200);
    for second in 0..400 {
        history.add(
            START + 2 * 86_400 + second,
            BTreeMap::new(),
            Gauges::default(),
        );
    }
    let step = history.period(START + 600, START + 1_200);
    for (from, to) in [(660, 960), (601, 602), (600, 1_200)] {
        let period = history.period(START + from, START + to);
        assert_eq!(period, step, "{from} to {to}");
        let begun = history.select_begun(START + from, START + to).period();
        let is_aligned = from == 600;
        assert_eq!(begun.series.is_empty(), !is_aligned, "{from} to {to}");
    }
    assert_eq!(step.length, Duration::from_secs(600));
    assert!(whole(&step) > 0);
    // Steps of 900 s are rounded up to 1,200 s. `START` is in the middle of such a step.
    let long = history.select(START + 310, START + 960, 900).period();
    assert_eq!(long, history.period(START, START + 1_200));
}

/// The history has four *tiers*. Their steps have a length of 1 s, 10 s, 60 s and 600 s.
#[test]
fn operation_counts_are_complete_if_the_history_starts_in_the_middle_of_a_step() {
    let start = START + 453;
    for uptime in [20, 45, 160, 300, 700, 1_300, 4_000] {
        let history = filled_from(start, uptime);
        let sum: u64 = (0..uptime).map(|at| 1 + at % 3).sum();
        // The range is longer than the history, so the length of the result is that of the history.
        let period = history.period(start - 300, start + uptime);
        assert_eq!(whole(&period), sum, "up for {uptime} s");
        assert_eq!(period.length, Duration::from_secs(uptime));
        let timeline = history.select(start - 300, start + uptime, 60);
        let timeline = timeline.timeline(60, &Label::Whole);
        let steps: u64 = timeline.iter().map(|(_, p)| p.length.as_secs()).sum();
        assert_eq!(steps, uptime);
    }
}

#[test]
fn seconds_can_be_added_after_the_clock_was_set_back() {
    let mut history = filled(1_000);
    history.rewind(START + 400);
    let before: u64 = (0..400).map(|at| 1 + at % 3).sum();
    assert_eq!(whole(&history.period(START, START + 2_000)), before);
    for at in 400..700 {
        let of = [(Arc::new(Label::Whole), 1, f64::INFINITY)];
        history.add(START + at, second(&of), Gauges::default());
    }
    let period = history.period(START, START + 700);
    assert_eq!(whole(&period), before + 300);
    assert_eq!(period.length, Duration::from_secs(700));
}

#[test]
fn a_wrong_time_that_is_soon_corrected_erases_no_steps() {
    const YEAR: u64 = 365 * 86_400;
    let add = |history: &mut History, at: u64| {
        let of = [(Arc::new(Label::Whole), 1, f64::INFINITY)];
        history.add(at, second(&of), Gauges::default());
    };
    let mut history = filled(1_000);
    let before = history.period(START, START + 1_000);
    assert_eq!(before.length, Duration::from_secs(1_000));
    for at in 1_000..1_000 + UNSURE_SECONDS {
        add(&mut history, START + YEAR + at);
    }
    assert_eq!(history.period(START, START + 1_000), before);
    history.rewind(START + 1_200);
    add(&mut history, START + 1_200);
    let all = history.period(START, START + 2 * YEAR);
    assert_eq!(all.length, Duration::from_secs(1_001));
    // If the new time lasts, the history takes it as correct.
    for at in 1_300..1_300 + UNSURE_SECONDS {
        add(&mut history, START + YEAR + at);
    }
    assert_eq!(history.period(START, START + 1_000), before);
    add(&mut history, START + YEAR + 1_300 + UNSURE_SECONDS);
    let expired = history.period(START, START + 1_000);
    assert_eq!(expired.length, Duration::ZERO);
}

#[test]
fn a_restart_within_five_minutes_of_a_wrong_time_erases_no_steps() {
    const WRONG: u64 = START + 365 * 86_400;
    let add = |history: &mut History, at: u64| {
        let of = [(Arc::new(Label::Whole), 1, f64::INFINITY)];
        history.add(at, second(&of), Gauges::default());
        history.take_delta()
    };
    let mut history = History::new(64 << 20, 10);
    let mut stored = Delta::default();
    for at in (START..START + 1_000).chain(WRONG..WRONG + 100) {
        stored.merge(add(&mut history, at));
    }
    let named = stored.named.iter();
    let labels = named.map(|(number, label)| (*number, (**label).clone()));
    let frames = stored.added.iter().map(|frame| (**frame).clone());
    let mut again = History::new(64 << 20, 10);
    again.restore(labels.collect(), frames.collect(), WRONG + 100);
    let known = |history: &History| history.period(START, START + 1_000).length.as_secs();
    assert_eq!(known(&again), 1_000);
    for at in WRONG + 100..WRONG + UNSURE_SECONDS {
        add(&mut again, at);
    }
    assert_eq!(known(&again), 1_000);
    // If the new time lasts, the history takes it as correct.
    add(&mut again, WRONG + UNSURE_SECONDS);
    assert_eq!(known(&again), 0);
}

/// The history has four *tiers*. Their steps have a length of 1 s, 10 s, 60 s and 600 s.
#[test]
fn no_step_is_counted_twice_after_a_frame_of_the_history_file_was_lost() {
    let mut history = filled(75);
    for tier in &mut history.tiers {
        tier.open = None;
    }
    let lost = history.tiers[1].frames.pop_back().unwrap();
    assert_eq!(lost.start, START + 60);
    history.reopen();
    for at in 75..120 {
        let of = [(Arc::new(Label::Whole), 1 + at % 3, f64::INFINITY)];
        history.add(START + at, second(&of), Gauges::default());
    }
    history.close_steps(START + 120);
    let frames: Vec<_> = history.frames(2, START + 60, START + 120).collect();
    assert_eq!(frames.len(), 1);
    let sum: u64 = (60..120).map(|at| 1 + at % 3).sum();
    let minute = history.select(START + 60, START + 120, 60);
    assert_eq!(whole(&minute.period()), sum);
    assert_eq!(frames[0].seconds, 60);
}

#[test]
fn no_step_is_counted_twice_if_only_a_longer_step_still_includes_its_seconds() {
    let mut history = filled(130);
    for tier in &mut history.tiers {
        tier.open = None;
    }
    history.tiers[1].frames.clear();
    history.reopen();
    for at in 130..181 {
        let of = [(Arc::new(Label::Whole), 1 + at % 3, f64::INFINITY)];
        history.add(START + at, second(&of), Gauges::default());
    }
    let minutes = history.tiers[2].frames.iter();
    let starts: Vec<_> = minutes.map(|frame| frame.start - START).collect();
    assert_eq!(starts, [0, 60, 120]);
    let sum: u64 = (120..180).map(|at| 1 + at % 3).sum();
    let minute = history.select(START + 120, START + 180, 60);
    assert_eq!(whole(&minute.period()), sum);
}

/// The history has four *tiers*. Their steps have a length of 1 s, 10 s, 60 s and 600 s.
#[test]
fn a_step_that_a_restart_interrupts_counts_all_operations_even_at_the_memory_limit() {
    let mut history = filled(1_750);
    // The limit leaves room for two frames of 600 s and for the last ten frames of 1 s. It also
    // leaves room for nine frames of 60 s, which the third step of 600 s includes.
    let begins = [1_740, 1_740, 1_200, 0];
    let needed = history.tiers.iter().zip(begins).flat_map(|(tier, from)| {
        let frames = tier.frames.iter();
        frames.filter(move |frame| frame.start >= START + from)
    });
    let needed: usize = needed.map(|frame| frame.bytes()).sum();
    let frames = history.labels.bytes() + needed;
    history.max_bytes = frames + history.open_bytes().min(frames);
    history.keep_within_bytes();
    assert!(history.frame_bytes() <= frames);
    let labels = history.labels.iter();
    let labels = labels.map(|(number, label)| (number, label.clone()));
    let frames = history.tiers.iter().flat_map(|tier| &tier.frames);
    let frames = frames.map(|frame| (**frame).clone()).collect();
    let mut again = History::new(64 << 20, 10);
    let skipped = again.restore(labels.collect(), frames, START + 1_750);
    assert_eq!(skipped, Skipped::default());
    for at in 1_750..1_801 {
        let of = [(Arc::new(Label::Whole), 1 + at % 3, f64::INFINITY)];
        again.add(START + at, second(&of), Gauges::default());
    }
    let step = again.select(START + 1_200, START + 1_800, 600).period();
    assert_eq!(step.length, Duration::from_secs(600));
    let sum: u64 = (1_200..1_800).map(|at| 1 + at % 3).sum();
    assert_eq!(whole(&step), sum);
}

#[test]
fn a_timeline_has_one_entry_for_each_step_of_the_requested_length() {
    // In the cases (600, 5) and (3_600, 30), the history has already dropped the beginning of the
    // first step, because its retention has ended.
    let length = 3_738;
    let history = filled(length);
    let to = START + length;
    for (since, step) in [
        (60, 1),
        (60, 5),
        (600, 5),
        (600, 10),
        (3_600, 30),
        (3_600, 60),
        (3_725, 600),
    ] {
        let first = (to - since) - (to - since) % step;
        let selection = history.select(to - since, to, step);
        assert_eq!(selection.step(step), step, "{since} s");
        let timeline = selection.timeline(step, &Label::Whole);
        let starts: Vec<_> = timeline.iter().map(|(start, _)| *start).collect();
        let expected: Vec<_> = (first..to)
            .step_by(usize::try_from(step).unwrap())
            .collect();
        assert_eq!(starts, expected, "{since} s in steps of {step} s");
        let lengths = timeline.iter().map(|(_, period)| period.length.as_secs());
        assert!(lengths.clone().all(|length| length <= step));
        let known: u64 = lengths.sum();
        assert!((since..since + step).contains(&known), "{since} {known}");
        let count: u64 = timeline.iter().map(|(_, period)| whole(period)).sum();
        let from = length - known;
        assert_eq!(count, (from..length).map(|at| 1 + at % 3).sum::<u64>());
    }
}

#[test]
fn steps_are_longer_than_requested_if_the_history_has_only_longer_frames() {
    let history = filled(3_738);
    // Both periods begin more than an hour ago, so their oldest frames are frames of 60 s. The
    // first period ends within the last hour, for which there are also frames of 10 s. The second
    // period ends within the last ten minutes, for which there are also frames of 1 s.
    for to in [START + 600, START + 3_738] {
        let selection = history.select(START, to, 5);
        assert_eq!(selection.step(5), 60);
        let timeline = selection.timeline(60, &Label::Whole);
        let starts = timeline.iter().map(|(start, _)| *start);
        assert!(starts.eq((START..to).step_by(60)));
        let count: u64 = timeline.iter().map(|(_, period)| whole(period)).sum();
        assert_eq!(
            count,
            (START..to).map(|at| 1 + (at - START) % 3).sum::<u64>()
        );
    }
    let selection = history.select(START + 3_000, START + 3_738, 15);
    assert_eq!(selection.step(15), 20);
}

#[test]
fn percentiles_of_a_ten_minute_step_are_computed_from_all_operations() {
    let mut history = History::new(64 << 20, 10);
    for at in 0..700 {
        let slow = if at == 300 { 900 } else { 1 };
        let label = Arc::new(Label::Whole);
        let of = BTreeMap::from([(label, (figures(10, slow), f64::INFINITY))]);
        history.add(START + at, of, Gauges::default());
    }
    let selection = history.select(START, START + 600, 600);
    let frame = selection.timeline(600, &Label::Whole);
    let durations = &frame[0].1.series[&Label::Whole].durations;
    let millis = |q| durations.quantile(q).as_secs_f64() * 1e3;
    assert!((0.95..1.05).contains(&millis(0.99)), "{}", millis(0.99));
    assert!((860.0..940.0).contains(&millis(0.9999)));
}

/// The last number of each shape is its weight: the time of its operations. The history keeps the
/// series of two shapes.
#[test]
fn shapes_with_the_greatest_weights_have_their_own_series_and_all_others_share_one() {
    let mut history = History::new(64 << 20, 2);
    let of = [
        (shape(1), 5, 1.0),
        (shape(2), 1, 9.0),
        (shape(3), 2, 4.0),
        (shape(4), 3, 0.5),
    ];
    history.add(START, second(&of), Gauges::default());
    let period = history.period(START, START + 1);
    let counts: Vec<_> = period
        .series
        .iter()
        .map(|(label, f)| ((**label).clone(), f.count))
        .collect();
    let expected = [
        ((*shape(2)).clone(), 1),
        ((*shape(3)).clone(), 2),
        (Label::OtherShapes, 8),
    ];
    assert_eq!(counts, expected);
}

/// The first tier keeps steps of 1 s for 10 minutes. The others keep longer steps for longer times.
#[test]
fn a_tier_drops_its_steps_at_the_end_of_their_retention() {
    let history = filled(700);
    let oldest = |tier: usize| history.tiers[tier].frames.front().map(|f| f.start - START);
    assert_eq!(oldest(0), Some(99));
    assert_eq!(oldest(1), Some(0));
    assert_eq!(oldest(3), Some(0));
}

#[test]
fn the_history_drops_old_steps_before_their_retention_ends_to_stay_within_its_memory_limit() {
    let mut history = History::new(200_000, 200);
    for at in 0..600 {
        let of: Vec<_> = (0..100).map(|n| (shape(n), at % 7 + 1, 1.0)).collect();
        history.add(START + at, second(&of), Gauges::default());
        assert!(history.bytes() <= 200_000, "{}", history.bytes());
    }
    assert!(history.dropped_early() > 0);
}

/// A *frame* is a step of the history that has ended, packed into few bytes. An *open* step has not
/// ended.
#[test]
fn a_part_of_the_memory_is_reserved_for_frames_even_if_open_steps_exceed_the_limit() {
    const MAX_BYTES: usize = 80_000;
    let mut history = History::new(MAX_BYTES, 200);
    for at in 0..600 {
        let of: Vec<_> = (0..100).map(|n| (namespace(n), at % 7 + 1, 1.0)).collect();
        history.add(START + at, second(&of), Gauges::default());
    }
    let (open, frames) = (history.open_bytes(), history.frame_bytes());
    assert!(open > MAX_BYTES, "{open}");
    assert!(frames > MAX_BYTES / 4, "{frames}");
}

#[test]
fn memory_of_the_history_includes_the_steps_that_have_not_ended() {
    let mut history = History::new(64 << 20, 100);
    let of: Vec<_> = (0..100).map(|n| (shape(n), 1, 1.0)).collect();
    let open = |history: &History| history.bytes() - history.frame_bytes();
    let series = 100 * size_of::<Figures>();
    history.add(START, second(&of), Gauges::default());
    assert!((series..2 * series).contains(&open(&history)));
    history.add(START + 10, second(&of), Gauges::default());
    // The first step of 10 s has ended, and its sums are in the open step of a minute. So two steps
    // are open: the second step of 10 s, and the step of a minute.
    assert!((2 * series..3 * series).contains(&open(&history)));
}

#[test]
fn the_time_of_a_frame_that_cannot_be_unpacked_counts_as_time_without_data() {
    let mut history = filled(20);
    Arc::make_mut(&mut history.tiers[0].frames[7]).packed = vec![1, 2, 3].into();
    let period = history.period(START, START + 20);
    assert_eq!(period.length, Duration::from_secs(19));
    let count: u64 = (0..20).filter(|at| *at != 7).map(|at| 1 + at % 3).sum();
    assert_eq!(whole(&period), count);
}

#[test]
fn all_operations_are_counted_even_if_their_series_are_too_large_for_one_frame() {
    // Each series has a count in each bucket of its durations. All series together are too large
    // for one frame.
    let buckets = (0..Distribution::<8>::BUCKETS).map(|bucket| (bucket, 1 << 50));
    let time = Duration::from_secs(1);
    let durations = Distribution::from_parts(buckets, time, time);
    let figures = |count| Figures {
        count,
        durations: durations.clone(),
        ..Figures::default()
    };
    let shapes = (0..8_000).map(|number| (shape(number), (figures(1), 1.0)));
    let mut second: BTreeMap<_, _> = shapes.collect();
    second.insert(Arc::new(Label::Whole), (figures(8_000), f64::INFINITY));
    let mut history = History::new(1 << 30, 8_000);
    history.add(START, second, Gauges::default());
    let period = history.period(START, START + 1);
    assert_eq!((period.length, whole(&period)), (time, 8_000));
    let counts = period.series.values().map(|figures| figures.count);
    assert_eq!(counts.sum::<u64>(), 2 * 8_000);
    assert!(period.series.contains_key(&Label::OtherShapes));
}

/// A *frame* is a step of the history that has ended, packed into few bytes.
#[test]
fn a_frame_that_would_be_too_large_omits_the_series_with_the_least_server_load() {
    let namespace = Label::Namespace {
        command: "find".into(),
        db: "shop".into(),
        collection: "orders".into(),
    };
    let series = BTreeMap::from([
        (Arc::new(Label::Whole), figures(6, 3)),
        (Arc::new(namespace), figures(1, 1)),
        (shape(1), figures(1, 2)),
        (shape(2), figures(2, 2)),
        (shape(3), figures(3, 900)),
    ]);
    let each = packed::unpacked_bytes(&figures(1, 1));
    assert_eq!(*fitting(&series, 5 * each), series);
    let fitted = fitting(&series, 4 * each);
    let counts = fitted
        .iter()
        .map(|(label, figures)| ((**label).clone(), figures.count));
    let expected = [
        (Label::Whole, 6),
        ((*shape(2)).clone(), 2),
        ((*shape(3)).clone(), 3),
        (Label::OtherShapes, 1),
    ];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
}

#[test]
fn labels_are_kept_in_the_history_and_in_its_file_while_frames_use_them() {
    let mut history = History::new(64 << 20, 50);
    let mut kept = HashMap::new();
    for at in 0..2_000 {
        let number = usize::try_from(at / 10).unwrap();
        history.add(
            START + at,
            second(&[(shape(number), 1, 1.0)]),
            Gauges::default(),
        );
        let delta = history.take_delta();
        kept.extend(delta.named);
        delta.unnamed.iter().for_each(|n| {
            kept.remove(n);
        });
    }
    // `kept` has the labels that the history file would have.
    assert_eq!(kept.len(), history.labels.iter().count());
    // All 200 labels are kept, because frames of 10 s still use them.
    assert_eq!(history.labels.iter().count(), 200);
}

/// A *frame* is a step of the history that has ended, packed into few bytes.
#[test]
fn a_history_restored_without_its_damaged_frames_continues_with_new_seconds() {
    let mut history = History::new(64 << 20, 10);
    let (mut labels, mut frames) = (HashMap::new(), BTreeMap::new());
    let mut follow = |history: &mut History| {
        let delta = history.take_delta();
        labels.extend(delta.named);
        let added = delta.added.iter();
        frames.extend(added.map(|f| ((f.tier, f.start), (**f).clone())));
        delta.dropped.iter().for_each(|key| {
            frames.remove(key);
        });
        (labels.clone(), frames.clone())
    };
    let mut stored = (HashMap::new(), BTreeMap::new());
    for at in 0..1_234 {
        history.add(START + at, second(&[(shape(1), 1, 1.0)]), Gauges::default());
        stored = follow(&mut history);
    }
    let (labels, frames) = stored;
    let mut again = History::new(64 << 20, 10);
    let labels = labels.into_iter().map(|(n, l)| (n, (*l).clone())).collect();
    let frames: Vec<_> = frames.into_values().collect();
    let mut damaged = frames[0].clone();
    damaged.start -= 1;
    damaged.packed = vec![1, 2, 3].into();
    let all = frames.iter().cloned().chain([damaged]).collect();
    let skipped = again.restore(labels, all, START + 1_234);
    assert_eq!((skipped.damaged, skipped.future), (1, 0));
    for at in 1_234..1_300 {
        history.add(START + at, second(&[(shape(1), 1, 1.0)]), Gauges::default());
        again.add(START + at, second(&[(shape(1), 1, 1.0)]), Gauges::default());
    }
    let period = |history: &History| history.period(START, START + 1_300);
    assert_eq!(period(&again), period(&history));
    assert_eq!(period(&again).series[&shape(1)].count, 1_300);
}

#[test]
fn a_restored_history_omits_frames_that_end_after_the_current_second() {
    let mut history = History::new(64 << 20, 10);
    let mut stored = Delta::default();
    for at in 0..25 {
        history.add(START + at, second(&[(shape(1), 1, 1.0)]), Gauges::default());
        stored.merge(history.take_delta());
    }
    let labels = stored
        .named
        .iter()
        .map(|(n, label)| (*n, (**label).clone()));
    let labels: Vec<_> = labels.collect();
    let frames: Vec<_> = stored.added.iter().map(|frame| (**frame).clone()).collect();
    // The file has frames of 25 seconds and of two steps of 10 s. In the last case, the frames of
    // five seconds and of the second step of 10 s end in the future.
    for (now, future, seconds) in [(25, 0, 25), (24, 0, 25), (23, 1, 24), (19, 6, 20)] {
        let mut again = History::new(64 << 20, 10);
        let skipped = again.restore(labels.clone(), frames.clone(), START + now);
        assert_eq!((skipped.damaged, skipped.future), (0, future), "{now}");
        assert_eq!(again.has_second(START + now), now < 25);
        let period = again.period(START, START + 100);
        assert_eq!(period.length, Duration::from_secs(seconds), "{now}");
        assert_eq!(period.series[&shape(1)].count, seconds);
    }
}

/// A *gauge* is a measured value, such as the number of client connections.
#[test]
fn long_steps_have_the_minimum_maximum_and_mean_of_a_gauge_over_all_seconds() {
    let mut history = History::new(64 << 20, 10);
    for at in 0..700 {
        let mut gauges = Gauges::default();
        let clients = if at == 300 { 900 } else { at % 2 };
        gauges.record(Gauge::ClientConnections, seawall_stats::float(clients));
        history.add(START + at, BTreeMap::new(), gauges);
    }
    let select = |step| {
        history
            .select(START, START + 600, step)
            .gauge_timeline(step)
    };
    for step in [10, 60, 600] {
        let steps = select(step);
        assert_eq!(steps.len(), usize::try_from(600 / step).unwrap());
        let mut all = Gauges::default();
        steps.iter().for_each(|(_, _, gauges)| all.merge(gauges));
        let (_, span) = all.iter().next().unwrap();
        assert_eq!((span.count, span.min, span.max), (600, 0.0, 900.0));
        assert_eq!(span.sum, 1_200.0);
        assert_eq!(
            steps.iter().map(|(_, seconds, _)| seconds).sum::<u64>(),
            600
        );
    }
}

/// The history of a client with one shape, beside a client that sends `new` new shapes with long
/// texts in each second.
fn history_beside_new_shapes(mut history: History, new: usize, seconds: u64) -> History {
    let text = "x".repeat(4_000);
    for at in 0..seconds {
        let first = usize::try_from(at).unwrap() * new + 1;
        let new = (first..first + new).map(|number| (shape_with_text(number, &text), 1, 2.0));
        let of: Vec<_> = new.chain([(shape(0), 3, 2.0)]).collect();
        history.add(START + at, second(&of), Gauges::default());
    }
    history
}

#[test]
fn a_client_that_always_sends_new_shapes_does_not_remove_the_history_of_other_clients() {
    // In the second case, the client sends as many new shapes as one second may have, and the
    // memory is small.
    for (max_bytes, max_shapes, new, seconds) in
        [(64 << 20, 30, 20, 3_000), (8 << 20, 200, 199, 200)]
    {
        let history = History::new(max_bytes, max_shapes);
        let history = history_beside_new_shapes(history, new, seconds);
        assert_eq!(history.dropped_early(), 0);
        assert!(history.labels.bytes() <= max_bytes / 4);
        let period = history.period(START, START + seconds);
        let count = |label: &Label| period.series.get(label).map_or(0, |figures| figures.count);
        assert_eq!(count(&shape(0)), 3 * seconds);
        let all = period.series.values().map(|figures| figures.count);
        let new = u64::try_from(new).unwrap();
        assert_eq!(all.sum::<u64>(), (new + 3) * seconds);
        assert!(count(&Label::OtherShapes) > new * seconds / 2);
        let seen = history.select(START, START + seconds, 1).seen();
        let first = (START + seconds).saturating_sub(600).max(START);
        assert!(seen[&Label::OtherShapes].0 <= first + 1, "{seen:?}");
    }
}

#[test]
fn the_number_of_a_forgotten_label_is_not_used_again_after_a_restart() {
    let history = History::new(64 << 20, 30);
    let mut history = history_beside_new_shapes(history, 20, 100);
    let delta = history.take_delta();
    let last = delta.named.iter().map(|(number, _)| *number).max();
    // Only one label is in the file: all other labels count as forgotten.
    let frames = delta.added.iter().map(|frame| (**frame).clone());
    let mut restored = History::new(4 << 20, 30);
    restored.restore(
        vec![(0, (*shape(0)).clone())],
        frames.collect(),
        START + 100,
    );
    restored.add(
        START + 100,
        second(&[(shape(7), 1, 1.0)]),
        Gauges::default(),
    );
    let named = restored.take_delta().named;
    assert!(!named.is_empty());
    assert!(
        named.iter().all(|(number, _)| Some(*number) > last),
        "{named:?}"
    );
}

#[test]
fn a_long_step_keeps_the_shapes_with_the_greatest_load() {
    let mut history = History::new(64 << 20, 10);
    for at in 0..600 {
        let number = usize::try_from(at % 200).unwrap();
        // The shape 199 is the heaviest.
        let of = [(shape(number), at % 200 + 1, 1.0)];
        history.add(START + at, second(&of), Gauges::default());
        let open = history.tiers.iter().filter_map(|tier| tier.open.as_ref());
        let most = open.map(|(_, sums)| sums.period.series.len()).max();
        assert!(most.is_none_or(|most| most <= 81), "{most:?}");
    }
    history.add(START + 600, BTreeMap::new(), Gauges::default());
    let period = history.select(START, START + 600, 600).period();
    assert_eq!(period.series.len(), 41);
    assert_eq!(period.series.get(&shape(199)).map(|f| f.count), Some(600));
    let all = period.series.values().map(|figures| figures.count);
    assert_eq!(all.sum::<u64>(), 3 * (1..=200).sum::<u64>());
}
