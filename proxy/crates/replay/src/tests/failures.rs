//! Tests of replays in which operations fail, and of replays that stop before their end.

use super::*;
use crate::{ChangeKind, Comparison};
use seawall_capture::record::Outcome;

#[tokio::test]
async fn a_replay_stops_if_the_share_of_failed_operations_exceeds_its_limit() {
    let stub = Stub::start(Conduct::FailAfter(150)).await;
    let mut capture = Capture::new();
    for _ in 0..1000 {
        capture.operation(1, doc! {"find": "c"}, 2);
    }
    let mut plan = plan(&stub).await;
    plan.max_error_share = 0.05;
    let report = replay(plan, capture.finish()).await;
    let stopped = report.stopped.unwrap();
    assert!(
        stopped.ends_with("operations failed unexpectedly"),
        "{stopped}"
    );
    let failures: u64 = report.shapes.iter().map(|shape| shape.failures).sum();
    assert_eq!(failures, report.unexpected_errors);
    assert_eq!(report.sent, 150 + failures);
    assert!(report.not_sent > 0);
}

#[tokio::test]
async fn errors_that_are_also_in_the_capture_do_not_stop_the_replay() {
    let stub = Stub::start(Conduct::Serve).await;
    let capture_of = |code| {
        let mut capture = Capture::new();
        for _ in 0..200 {
            let count = capture.command(1, doc! {"count": "c"});
            capture.reply(count, failed(code));
        }
        capture.finish()
    };
    let mut plan = plan(&stub).await;
    plan.max_error_share = 0.05;
    let expected = replay(plan.clone(), capture_of(96)).await;
    assert_eq!((expected.sent, expected.stopped), (200, None));
    let other = replay(plan.clone(), capture_of(50)).await;
    assert!(other.stopped.is_some() && other.sent < 200, "{other:?}");
    // A comparison reports no change if an operation has the same error code in the capture and in
    // the replay. If the error codes differ, the operation is reported as failed.
    plan.max_error_share = 1.0;
    for (code, changes) in [(96, vec![]), (50, vec![ChangeKind::Failed])] {
        let replayed = replay(plan.clone(), capture_of(code)).await;
        let captured = captured_results(source(capture_of(code)), &plan.choice, false);
        let comparison = Comparison::new(captured, replayed, None);
        let results = comparison.changes.iter().map(|change| change.kind);
        let results = results.filter(|kind| *kind <= ChangeKind::Different);
        assert_eq!(results.collect::<Vec<_>>(), changes, "{code}");
    }
}

#[tokio::test]
async fn a_replay_that_is_stopped_reports_its_results() {
    let stub = Stub::start(Conduct::HoldFinds).await;
    let mut capture = Capture::new();
    for client in 1..=3 {
        capture.operation(client, doc! {"find": "c"}, 2);
        capture.operation(client, doc! {"find": "c"}, 2);
    }
    let received = Arc::clone(&stub.received);
    let stop = async move {
        while received.lock().commands.len() < 3 {
            tokio::task::yield_now().await;
        }
        "interrupted"
    };
    let report = run(plan(&stub).await, source(capture.finish()), |_| {}, stop);
    let report = report.await.unwrap();
    assert_eq!(report.stopped.as_deref(), Some("interrupted"));
    assert_eq!((report.sent, report.not_sent), (3, 3));
}

/// A capture of a client that opens a change stream and sends two `getMore`s. The second `getMore`
/// has this outcome.
fn watched(outcome: Outcome) -> Vec<u8> {
    let mut capture = Capture::new();
    let watch = doc! {"aggregate": "c", "pipeline": [{"$changeStream": {}}]};
    let opened = capture.command(1, watch);
    capture.reply(opened, ok(0, 77));
    let more = doc! {"getMore": 77_i64, "collection": "c"};
    let first = capture.command(1, more.clone());
    capture.reply(first, ok(1, 77));
    let operation = capture.command(1, more);
    capture.push(Content::Reply(Reply {
        operation,
        at_us: capture.at_us,
        outcome: outcome.into(),
        facts: (outcome == Outcome::Replied).then(|| ok(0, 77)),
        ..Reply::default()
    }));
    capture.finish()
}

/// Number of operations and number of failures of the report's only shape.
fn counts(report: &Report) -> (u64, u64) {
    let [shape] = &report.shapes[..] else {
        panic!("{report:?}");
    };
    (shape.count, shape.failures)
}

/// The only operation is the `aggregate` that opened the change stream. In the loop, the second
/// `getMore` fails in the capture, but not in the replay.
#[tokio::test]
async fn failed_get_more_on_a_change_stream_adds_a_failure_but_no_operation_to_the_results() {
    let stub = Stub::start(Conduct::Serve).await;
    for outcome in [Outcome::Refused, Outcome::ServerFailed, Outcome::ClientGone] {
        let plan = plan(&stub).await;
        let captured = captured_results(source(watched(outcome)), &plan.choice, false);
        assert_eq!(counts(&captured), (1, 1));
        let replayed = replay(plan, watched(outcome)).await;
        assert_eq!(counts(&replayed), (1, 0));
        let comparison = Comparison::new(captured, replayed, None);
        let changes = comparison.changes;
        assert!(changes.is_empty(), "{outcome:?} {changes:?}");
    }
    // This stub replies only to the `aggregate` and to the first `getMore`, so the second `getMore`
    // fails.
    let stub = Stub::start(Conduct::FailAfter(2)).await;
    let replayed = replay(plan(&stub).await, watched(Outcome::Replied)).await;
    assert_eq!(counts(&replayed), (1, 1));
}

#[tokio::test]
async fn operations_that_ran_at_the_end_of_the_capture_are_not_reported_as_different() {
    let stub = Stub::start(Conduct::Serve).await;
    let capture = || {
        let mut capture = Capture::new();
        capture.operation(1, doc! {"find": "c"}, 2);
        capture.command(2, doc! {"find": "c"});
        capture.finish()
    };
    let plan = plan(&stub).await;
    let captured = captured_results(source(capture()), &plan.choice, false);
    assert_eq!(counts(&captured), (2, 1));
    let replayed = replay(plan, capture()).await;
    assert_eq!(counts(&replayed), (2, 0));
    let changes = Comparison::new(captured, replayed, None).changes;
    assert!(changes.is_empty(), "{changes:?}");
}

#[tokio::test]
async fn operations_without_a_reply_fail_at_their_time_limit() {
    let stub = Stub::start(Conduct::HangAfter(0)).await;
    let mut capture = Capture::new();
    for client in 1..=3 {
        capture.operation(client, doc! {"find": "c"}, 2);
    }
    let plan = Replay {
        reply_limit: Duration::from_millis(10),
        ..plan(&stub).await
    };
    let capture = capture.finish();
    let captured = captured_results(source(capture.clone()), &plan.choice, false);
    let report = replay(plan, capture).await;
    assert_eq!(counts(&report), (3, 3));
    assert_eq!((report.sent, report.unexpected_errors), (3, 3));
    assert_eq!((&report.stopped, report.not_sent), (&None, 0));
    let changes = Comparison::new(captured, report, None).changes;
    assert_eq!(changes[0].facts, ["operations without a reply: 0 → 3"]);
}

#[tokio::test]
async fn a_replay_can_be_stopped_while_it_waits_for_missing_events() {
    // The captured client received three events. The stub sends only one event: it replies to the
    // first two commands, and then to none.
    let stub = Stub::start(Conduct::HangAfter(2)).await;
    let mut capture = Capture::new();
    let watch = doc! {"aggregate": "c", "pipeline": [{"$changeStream": {}}]};
    let opened = capture.command(1, watch);
    capture.reply(opened, ok(0, 77));
    let more = capture.command(1, doc! {"getMore": 77_i64, "collection": "c"});
    capture.reply(more, ok(3, 77));
    let received = Arc::clone(&stub.received);
    let stop = async move {
        while received.lock().commands.len() < 3 {
            tokio::task::yield_now().await;
        }
        "interrupted"
    };
    let report = run(plan(&stub).await, source(capture.finish()), |_| {}, stop);
    let report = report.await.unwrap();
    assert_eq!(report.stopped.as_deref(), Some("interrupted"));
    assert_eq!((report.sent, report.not_sent), (2, 0));
}
