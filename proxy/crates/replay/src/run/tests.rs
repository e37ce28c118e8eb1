//! Tests of replays without a reachable target.

use bson::doc;
use seawall_capture::record::{Command, Content};
use seawall_wire::encode_request;

use super::*;

#[tokio::test]
async fn an_operation_fails_if_the_task_of_its_connection_has_ended() {
    let target = Target::parse("mongodb://127.0.0.1:1/").await.unwrap();
    let replay = Replay {
        target: target.clone(),
        choice: Choice::default(),
        pace: Pace::Max,
        strict_order: false,
        connections: 1,
        reply_limit: SECOND,
        digest: false,
        max_error_share: 1.0,
        writes_to_unidentified: false,
    };
    let endpoint = Endpoint::new(target).unwrap();
    let rewriter = Rewriter {
        sessions: endpoint.session_key(),
        has_retryable_writes: true,
    };
    let mut preparer = Preparer::new(Planner::new(Choice::default(), false), rewriter);
    let (done, _ended) = mpsc::channel(1);
    let header = Header::default();
    let mut conductor = Conductor::new(replay, endpoint, rewriter, &header, done);
    let find = doc! {"find": "c", "$db": "d"}.to_vec().unwrap();
    let command = Command {
        client: 1,
        operation: 1,
        at_us: 0,
        message: encode_request(1, &find).into(),
    };
    let record = preparer.prepare(Content::Command(command)).unwrap();
    conductor.accept(Read {
        record,
        permit: None,
    });
    conductor.tasks.abort_all();
    while conductor.tasks.join_next().await.is_some() {}
    let operation = conductor.schedule.next(Duration::ZERO).unwrap();
    conductor.dispatch(operation);
    assert_eq!((conductor.ended, conductor.in_flight), (1, 0));
    assert!(conductor.schedule.is_empty());
    let report = conductor.report(&header, String::new());
    assert_eq!((report.sent, report.unexpected_errors), (1, 1));
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    assert_eq!((report.shapes[0].count, report.shapes[0].failures), (1, 1));
}
