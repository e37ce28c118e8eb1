//! Tests of exports to faulty collectors. Each collector is a listening socket of this process.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::collector::Address;

const LONG: Duration = Duration::from_secs(600);

/// A collector with a list of responses. Each request gets the next response in the list; after the
/// end of the list, each request gets the last response.
struct Fake {
    address: String,
    requests: Arc<AtomicUsize>,
}

impl Fake {
    async fn start(responses: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                while read_request(&mut stream).await.is_some() {
                    let number = count.fetch_add(1, Ordering::SeqCst);
                    let response = &responses[number.min(responses.len() - 1)];
                    // The write fails if the client has closed the connection after a part of the
                    // response.
                    if stream.write_all(response).await.is_err() {
                        break;
                    }
                }
            }
        });
        Self { address, requests }
    }

    fn collector(&self, timeout: Duration) -> Collector {
        let address = Address::Base(self.address.clone());
        Collector::new(&address, [("x", "y")], true, timeout, None).unwrap()
    }

    async fn export(&self) -> Exported {
        let until = Instant::now() + LONG;
        self.collector(LONG)
            .export(b"message".to_vec(), until)
            .await
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Reads a request with its body. `None` if the client has closed the connection.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.split("content-length: ").nth(1).unwrap();
    let length = length.split('\r').next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}

fn response(head: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend(body);
    bytes
}

fn ok() -> Vec<u8> {
    response("200 OK", b"")
}

fn busy(after: Option<u64>) -> Response {
    Response::Retryable {
        reason: "busy".to_owned(),
        after: after.map(Duration::from_secs),
    }
}

/// Runs an export that gets these responses one after another, and then `busy(None)` for each
/// further request. Returns the result and the times of the requests. Callers pause the clock, so
/// waits take no real time.
async fn scripted(responses: Vec<Response>, limit: u64) -> (Exported, Vec<Duration>) {
    let began = Instant::now();
    let mut times = Vec::new();
    let mut responses = responses.into_iter();
    let send = || {
        times.push(began.elapsed());
        std::future::ready(responses.next().unwrap_or_else(|| busy(None)))
    };
    let exported = with_retries(send, began + Duration::from_secs(limit)).await;
    (exported, times)
}

fn accepted() -> Response {
    Response::Accepted {
        rejected: 0,
        message: String::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_temporary_failure_is_retried_after_the_wait_that_the_collector_requests() {
    let (exported, times) = scripted(vec![busy(Some(7)), accepted()], 60).await;
    assert_eq!(exported.outcome, Outcome::Ok);
    let [Duration::ZERO, second] = *times else {
        panic!("{times:?}")
    };
    assert!(second >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn an_export_ends_immediately_if_the_requested_wait_lasts_until_the_next_export() {
    let began = Instant::now();
    let (exported, times) = scripted(vec![busy(Some(7))], 6).await;
    assert_eq!(exported.outcome, Outcome::Overtaken);
    assert_eq!(exported.reason, "busy");
    assert_eq!(exported.not_before, Some(began + Duration::from_secs(7)));
    assert_eq!((times.len(), began.elapsed()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn waits_between_requests_double_from_1_s_to_at_most_30_s() {
    let (exported, times) = scripted(Vec::new(), 600).await;
    assert_eq!(
        (exported.outcome, exported.not_before),
        (Outcome::Overtaken, None)
    );
    let waits = times.windows(2).map(|pair| pair[1] - pair[0]);
    let expected = [1, 2, 4, 8, 16, 30, 30, 30].map(Duration::from_secs);
    for (wait, longest) in waits.zip(expected) {
        // A wait may be up to a millisecond too long, because the timers of Tokio count
        // milliseconds.
        let range = longest / 2..=longest + Duration::from_millis(1);
        assert!(range.contains(&wait), "{wait:?} {longest:?}");
    }
    assert!((20..=45).contains(&times.len()), "{times:?}");
}

#[tokio::test]
async fn refusals_and_successes_are_not_retried() {
    let partial = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 3,
            error_message: "too old".to_owned(),
        }),
    };
    for (body, outcome, reason, rejected) in [
        (ok(), Outcome::Ok, "", 0),
        (
            response("200 OK", &partial.encode_to_vec()),
            Outcome::Partial,
            "too old",
            3,
        ),
        (
            response("400 No", b"what?"),
            Outcome::Refused,
            "400 Bad Request: what?",
            0,
        ),
        (
            response("302 Found\r\nlocation: http://127.0.0.1:1/", b""),
            Outcome::Refused,
            "302 Found",
            0,
        ),
    ] {
        let fake = Fake::start(vec![body]).await;
        let exported = fake.export().await;
        let expected = Exported {
            outcome,
            reason: reason.to_owned(),
            rejected,
            not_before: None,
        };
        assert_eq!(exported, expected);
        assert_eq!(fake.requests(), 1);
    }
}

#[tokio::test]
async fn responses_that_are_too_large_or_not_otlp_are_errors() {
    let head = format!("200 OK\r\nx: {}", "y".repeat(1 << 20));
    for bytes in [
        response("200 OK", &vec![0; 1 << 20]),
        response(&head, b""),
        response("200 OK", b"\xff\xff\xff"),
        b"nonsense\r\n\r\n".to_vec(),
    ] {
        let fake = Fake::start(vec![bytes]).await;
        let exported = fake.export().await;
        assert_eq!(exported.outcome, Outcome::Failed, "{exported:?}");
    }
}

#[tokio::test]
async fn an_export_to_a_hanging_collector_ends_after_one_timeout() {
    let fake = Fake::start(vec![Vec::new()]).await;
    let collector = fake.collector(Duration::from_millis(50));
    let until = Instant::now() + LONG;
    let exported = collector.export(Vec::new(), until).await;
    assert_eq!(exported.outcome, Outcome::TimedOut);
    assert_eq!(fake.requests(), 1);
}

/// `Overtaken` means that the next export is due before this export could repeat its request.
#[tokio::test]
async fn an_export_to_an_unreachable_collector_ends_when_the_next_export_is_due() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::Base(format!("http://{}", listener.local_addr().unwrap()));
    drop(listener);
    let collector = Collector::new(&address, [], false, LONG, None).unwrap();
    let exported = collector.export(Vec::new(), Instant::now()).await;
    assert_eq!(exported.outcome, Outcome::Overtaken);
    assert!(exported.reason.contains("refused"), "{}", exported.reason);
}

#[test]
fn jitter_shortens_a_wait_by_a_random_part_of_at_most_half() {
    let waits: Vec<_> = (0..100).map(|_| jittered(FIRST_WAIT)).collect();
    let is_bounded = |wait: &Duration| (FIRST_WAIT / 2..=FIRST_WAIT).contains(wait);
    assert!(waits.iter().all(is_bounded));
    assert!(waits.iter().any(|wait| *wait != waits[0]));
}

#[tokio::test]
async fn the_wait_that_a_busy_collector_requests_is_read_from_its_response() {
    let busy = response("503 Busy\r\nretry-after: 7", b"later");
    let fake = Fake::start(vec![busy]).await;
    let now = Instant::now();
    let exported = fake.collector(LONG).export(Vec::new(), now).await;
    assert_eq!(exported.outcome, Outcome::Overtaken);
    assert_eq!(exported.reason, "503 Service Unavailable: later");
    let not_before = exported.not_before.unwrap();
    assert!(not_before >= now + Duration::from_secs(7));
}
