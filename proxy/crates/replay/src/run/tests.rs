//! Tests of replays without a reachable target.

use std::{future::pending, io::Cursor};

use bson::doc;
use seawall_capture::{
    Writer,
    record::{Command, Content, End},
};
use seawall_wire::encode_request;
use tokio::time::timeout;

use super::*;

fn replay(target: Target) -> Replay {
    Replay {
        target,
        choice: Choice::default(),
        pace: Pace::Max,
        strict_order: false,
        connections: 1,
        reply_limit: SECOND,
        digest: false,
        max_error_share: 1.0,
        writes_to_unidentified: false,
    }
}

/// A stream that panics after its last byte.
struct Panicking(Cursor<Vec<u8>>);

impl io::Read for Panicking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        assert!(count > 0, "the stream has no further byte");
        Ok(count)
    }
}

#[tokio::test]
async fn a_replay_stops_if_the_thread_that_reads_the_capture_panics() {
    let capture = Writer::new(Vec::new(), Header::default()).unwrap();
    let capture = capture.finish(End::default()).unwrap();
    let stream = Box::new(Panicking(Cursor::new(capture)));
    let source = Source::from_stream("test", stream).unwrap();
    let target = Target::parse("mongodb://127.0.0.1:1/").await.unwrap();
    let endpoint = Endpoint::new(target.clone()).unwrap();
    let description = Description {
        name: String::new(),
        has_retryable_writes: true,
    };
    let replay = replay(target);
    let conducting = conduct(replay, endpoint, description, source, |_| {}, pending());
    let report = timeout(60 * SECOND, Box::pin(conducting)).await.unwrap();
    assert_eq!(
        report.stopped.as_deref(),
        Some("internal error while reading the capture")
    );
}

#[tokio::test]
async fn an_operation_fails_if_the_task_of_its_connection_has_ended() {
    let target = Target::parse("mongodb://127.0.0.1:1/").await.unwrap();
    let replay = replay(target.clone());
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
