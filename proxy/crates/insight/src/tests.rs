use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use seawall_stats::{Against, Figures, Gauges, Level};

/// Saturday, 21 November 2026, 17:50:27 UTC.
const NOW: u64 = 1_795_283_427;

const HOUR: u64 = 3_600;

const DAY: u64 = 24 * HOUR;

/// A clock whose time the test sets.
#[derive(Clone)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn at(seconds: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seconds)))
    }

    fn clock(&self) -> Clock {
        let clock = self.clone();
        Clock::new(move || UNIX_EPOCH + Duration::from_secs(clock.0.load(Ordering::Relaxed)))
    }
}

fn insight(clock: &TestClock) -> Insight {
    insight_in(None, clock)
}

/// Opens the history in a directory; `None` for a history that is only in memory.
fn insight_in(directory: Option<&Path>, clock: &TestClock) -> Insight {
    let settings = InsightSettings {
        is_on: true,
        directory,
        max_bytes: 64 << 20,
        max_shapes: 200,
    };
    Insight::open(settings, clock.clock()).unwrap()
}

fn shape(name: &str) -> Arc<Label> {
    Arc::new(Label::Shape {
        level: Level::Fine,
        id: name.into(),
        command: "find".into(),
        db: "shop".into(),
        collection: "orders".into(),
        text: format!("{{filter:{{{name}:?}}}}").into(),
    })
}

/// Shapes whose operations take about 1 ms. The last two shapes became five times slower, at
/// different times.
const SHAPES: [&str; 8] = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "slow_since_6h",
    "slow_since_3d",
];

fn milliseconds(name: &str, at: u64) -> u64 {
    let slow_since = match name {
        "slow_since_6h" => NOW - 6 * HOUR,
        "slow_since_3d" => NOW - 3 * DAY,
        _ => u64::MAX,
    };
    if at >= slow_since { 5 } else { 1 }
}

fn second(at: u64) -> BTreeMap<Arc<Label>, (Figures, f64)> {
    let mut whole = Figures::default();
    let mut series = BTreeMap::new();
    for name in SHAPES {
        let mut figures = Figures::default();
        for n in 0..2 {
            let spread = 100 * ((at + n) % 3);
            let time =
                Duration::from_millis(milliseconds(name, at)) + Duration::from_micros(spread);
            figures.durations.record(time);
            figures.count += 1;
        }
        whole.merge(&figures);
        series.insert(shape(name), (figures, 1.0));
    }
    series.insert(Arc::new(Label::Whole), (whole, f64::INFINITY));
    series
}

/// The history after `days` days. It has every second around the compared times, and one second per
/// minute at other times.
fn after(days: u64) -> Insight {
    let clock = TestClock::at(NOW - days * DAY);
    let insight = insight(&clock);
    let compared = [7 * DAY, DAY, 6 * HOUR, 2 * HOUR, 0];
    let is_compared = |at: u64| {
        let ago = NOW - at;
        compared.iter().any(|past| ago.abs_diff(*past) < HOUR / 2)
    };
    let mut history = insight.history.lock();
    for at in NOW - days * DAY..NOW {
        if is_compared(at) || at.is_multiple_of(60) {
            history.add(at, second(at), Gauges::default());
            drop(history.take_delta());
        }
    }
    drop(history);
    clock.0.store(NOW, Ordering::Relaxed);
    insight
}

fn slower(changes: &Changes) -> Vec<&str> {
    assert_eq!(changes.incomparable, None);
    let slower = changes.changes.iter().map(|change| {
        assert_eq!(change.kind, ChangeKind::Slower);
        match &*change.label {
            Label::Shape { id, .. } => &**id,
            other => panic!("{other:?}"),
        }
    });
    slower.collect()
}

/// A *baseline* is the earlier period with which the current period is compared: yesterday, last
/// week, two hours ago, or the period before a given time.
#[test]
fn shapes_that_became_slower_are_found_with_each_kind_of_baseline() {
    let insight = after(8);
    let window = BaselineWindow::AtMost(Duration::from_secs(600));
    let changes = |against: &str| {
        let end = insight.now();
        insight
            .changes(against.parse().unwrap(), window, end)
            .unwrap()
    };
    let yesterday = changes("yesterday");
    assert_eq!(slower(&yesterday), ["slow_since_6h"]);
    assert_eq!((yesterday.now.from, yesterday.now.to), (NOW - 600, NOW));
    assert_eq!(yesterday.now.period.length, Duration::from_secs(600));
    // The history keeps only steps of ten minutes for yesterday and last week.
    assert_eq!(yesterday.before.to, (NOW - DAY) - (NOW - DAY) % 600);
    assert_eq!(yesterday.before.period.length, Duration::from_secs(1_200));
    let last_week = changes("last_week");
    let mut both = slower(&last_week);
    both.sort_unstable();
    assert_eq!(both, ["slow_since_3d", "slow_since_6h"]);
    assert_eq!(last_week.before.to, (NOW - 7 * DAY) - (NOW - 7 * DAY) % 600);
    assert_eq!(last_week.before.period.length, Duration::from_secs(1_200));
    assert!(slower(&changes("2h")).is_empty());
    let before_it = (NOW - 6 * HOUR).to_string();
    assert_eq!(slower(&changes(&before_it)), ["slow_since_6h"]);
    assert_eq!(slower(&changes("2026-11-20T17:50:27Z")), ["slow_since_6h"]);
    // One day is the longest period that can be compared with last week, because the history is
    // kept for eight days.
    let day = BaselineWindow::Exactly(Duration::from_secs(DAY));
    let widest = insight
        .changes(Against::LastWeek, day, insight.now())
        .unwrap();
    assert_eq!(widest.before.to - widest.before.from, DAY);
    assert_eq!(widest.incomparable, None);
}

#[test]
fn an_earlier_period_without_data_is_reported_as_unknown() {
    let insight = after(1);
    let window = BaselineWindow::AtMost(Duration::from_secs(600));
    let missing = insight
        .changes(Against::LastWeek, window, insight.now())
        .unwrap();
    let nothing = Some(Incomparable::Unknown(Side::Baseline));
    assert_eq!((missing.incomparable, missing.changes.len()), (nothing, 0));
}

#[test]
fn periods_without_enough_data_or_without_operations_are_not_compared() {
    let period = |seconds, count| Period {
        length: Duration::from_secs(seconds),
        series: [(
            Arc::new(Label::Whole),
            Figures {
                count,
                ..Figures::default()
            },
        )]
        .into(),
    };
    let cases = [
        (period(600, 9), period(600, 9), None),
        (
            period(0, 0),
            period(600, 9),
            Some(Incomparable::Unknown(Side::Baseline)),
        ),
        (
            period(600, 0),
            period(600, 9),
            Some(Incomparable::Idle(Side::Baseline)),
        ),
        (
            period(600, 9),
            period(600, 0),
            Some(Incomparable::Idle(Side::Now)),
        ),
        (
            period(600, 9),
            period(29, 9),
            Some(Incomparable::TooLittle {
                side: Side::Now,
                known_seconds: 29,
            }),
        ),
    ];
    for (before, now, expected) in cases {
        assert_eq!(incomparable(&before, &now, 600), expected);
    }
    // In a short window, data for half of the time is enough.
    assert_eq!(incomparable(&period(9, 9), &period(9, 9), 10), None);
}

#[test]
fn history_uses_the_given_clock() {
    let clock = TestClock::at(NOW);
    let insight = insight(&clock);
    for at in 0..5 {
        clock.0.store(NOW + at, Ordering::Relaxed);
        insight.add(Second::default(), insight.now());
    }
    let all = insight.period(UNIX_EPOCH, insight.now());
    assert_eq!(all.length, Duration::from_secs(5));
    let selection = insight.select(UNIX_EPOCH, insight.now() - Duration::from_secs(2));
    assert_eq!(selection.period().length, Duration::from_secs(3));
}

#[test]
fn if_the_clock_shows_a_second_again_the_new_figures_are_added_to_the_next_second() {
    let clock = TestClock::at(NOW);
    let insight = insight(&clock);
    let measured = |at| Second {
        series: second(at),
        ..Second::default()
    };
    for at in [0, 1, 1, 0, 2] {
        clock.0.store(NOW + at, Ordering::Relaxed);
        insight.add(measured(NOW), insight.now());
    }
    let all = insight.period(UNIX_EPOCH, insight.now());
    let each = whole(&insight.period(UNIX_EPOCH, insight.now() - Duration::from_secs(2))).count;
    assert_eq!((each, whole(&all).count), (16, 5 * 16));
    assert_eq!(all.length, Duration::from_secs(3));
}

#[test]
fn after_the_clock_was_set_back_each_second_has_only_its_own_figures() {
    for set_back in [3, 30, 60] {
        let clock = TestClock::at(NOW);
        let insight = insight(&clock);
        for at in (1..=100).chain(101 - set_back..=120) {
            clock.0.store(NOW + at, Ordering::Relaxed);
            let measured = Second {
                series: second(NOW),
                ..Second::default()
            };
            insight.add(measured, insight.now());
        }
        let step = Duration::from_secs(1);
        let is_whole = |label: &Label| *label == Label::Whole;
        let timeline = insight.timeline(UNIX_EPOCH, insight.now(), step, &is_whole);
        let counts = timeline.steps.iter();
        let counts: Vec<_> = counts.map(|(_, period)| whole(period).count).collect();
        assert_eq!(counts, [16; 120], "set back by {set_back} s");
    }
}

/// The clock of a machine may be wrong until it is synchronized.
#[test]
fn a_start_with_a_clock_that_is_behind_copies_the_history_file() {
    let directory = format!("seawall-insight-behind-{}", std::process::id());
    let directory = std::env::temp_dir().join(directory);
    let clock = TestClock::at(NOW);
    let open = || insight_in(Some(&directory), &clock);
    let files = || std::fs::read_dir(&directory).unwrap().count();
    let has_first_second = |insight: &Insight| insight.history.lock().has_second(NOW);
    let history = open();
    let first = Second {
        series: second(NOW),
        ..Second::default()
    };
    history.add(first, UNIX_EPOCH + Duration::from_secs(NOW + 1));
    history.close();
    drop(history);
    // The clock is right, or behind by one minute, or by an hour.
    for (behind, copies) in [(0, 0), (60, 0), (3_600, 1)] {
        clock.0.store(NOW - behind, Ordering::Relaxed);
        drop(open());
        assert_eq!(files(), 1 + copies, "{behind}");
    }
    // Seawall removes the steps in the future.
    open().close();
    clock.0.store(NOW, Ordering::Relaxed);
    assert!(!has_first_second(&open()));
    let copy = directory.join(format!("history.redb.{NOW}"));
    std::fs::rename(copy, directory.join("history.redb")).unwrap();
    assert!(has_first_second(&open()));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_restart_within_one_second_does_not_lose_the_figures_of_that_second() {
    let directory = format!("seawall-insight-restart-{}", std::process::id());
    let directory = std::env::temp_dir().join(directory);
    let clock = TestClock::at(NOW);
    let open = || insight_in(Some(&directory), &clock);
    let measured = || Second {
        series: second(NOW),
        ..Second::default()
    };
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(NOW + seconds);
    let all = |insight: &Insight| {
        let period = insight.period(UNIX_EPOCH, at(10));
        (whole(&period).count, period.length.as_secs())
    };
    // Before Seawall closes the history, it adds the second that has not ended: here `NOW`.
    let insight = open();
    insight.add(measured(), at(0));
    insight.add(measured(), at(1));
    insight.close();
    let insight = open();
    assert_eq!(all(&insight), (2 * 16, 2));
    // After the restart, further figures of the second `NOW` are added to the next second.
    insight.add(measured(), at(1));
    assert_eq!(all(&insight), (2 * 16, 2));
    insight.add(measured(), at(2));
    assert_eq!(all(&insight), (4 * 16, 3));
    insight.close();
    clock.0.store(NOW + 1, Ordering::Relaxed);
    assert_eq!(all(&open()), (4 * 16, 3));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn annotation_of_an_ended_storm_has_its_end_and_its_peak() {
    let clock = TestClock::at(NOW);
    let insight = insight(&clock);
    let began = UNIX_EPOCH + Duration::from_secs(NOW);
    let storm = |peak_arrivals, ended_at| Storm {
        started_at: began,
        ended_at,
        peak_arrivals,
        usual: 0.1,
        traffic: seawall_stats::Traffic::default(),
    };
    insight.annotate_storm(StormChange::Began, &storm(50, None));
    let annotation = || {
        let all = insight.annotations(began, began + Duration::from_secs(HOUR));
        let [annotation] = &all[..] else {
            panic!("{all:?}");
        };
        annotation.clone()
    };
    let text = annotation().text;
    assert!(text.contains("up to 50 "), "{text}");
    let end = began + Duration::from_secs(20);
    insight.annotate_storm(StormChange::Ended, &storm(90, Some(end)));
    let Annotation {
        text, end: ended, ..
    } = annotation();
    assert!(text.contains("up to 90 "), "{text}");
    assert_eq!(ended, Some(end));
}

#[test]
fn changes_are_annotated_unless_the_last_comparison_still_runs() {
    let slow_since = NOW - 6 * HOUR;
    let (start, end) = (slow_since - 600, slow_since + 600);
    let clock = TestClock::at(start);
    let insight = insight(&clock);
    let mut history = insight.history.lock();
    for at in start..end {
        history.add(at, second(at), Gauges::default());
    }
    drop(history);
    clock.0.store(end, Ordering::Relaxed);
    let annotated = || {
        insight.annotate_changes();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        insight.annotations(at(start), at(end)).len()
    };
    let running = insight.comparing.lock();
    assert_eq!(annotated(), 0);
    drop(running);
    assert_eq!(annotated(), 1);
}

/// After a failed write, each attempt to write reads the whole file.
#[test]
fn writes_of_the_history_file_are_attempted_less_often_after_failures_in_a_row() {
    let mut writes = Writes::default();
    let error = StoreError::InUse("history.redb".into());
    let mut attempts = Vec::new();
    for due_write in 0..28 {
        if writes.attempts_due_write() {
            attempts.push(due_write);
            writes.fail(&error);
        }
    }
    assert_eq!(attempts, [0, 1, 3, 6, 10, 15, 21, 27]);
    writes.succeed();
    writes.fail(&error);
    assert!(writes.attempts_due_write());
}
