//! Compares the members of every JSON reply, their order and their types with `replies.txt`,
//! because users' programs depend on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    future::pending,
    panic::AssertUnwindSafe,
    sync::atomic::AtomicU64,
    time::{Duration, UNIX_EPOCH},
};

use axum::{
    body::{self, Body},
    http::Request,
    routing::MethodRouter,
};
use bson::doc;
use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::{
    runtime::{Builder, Handle},
    time::advance,
};
use tower::ServiceExt as _;

use super::*;
use crate::{
    captures::CaptureState,
    observe::{MemoryLog, Observer, outcome_of},
    pool::{ConcurrencySnapshot, PoolSnapshot, UserSnapshot, tests::limits},
    pulse,
    service_account::ServiceAccount,
    topology::{TopologyDescription, TopologyType},
};
use seawall_auth::NonceSource;
use seawall_command::CommandBytes;
use seawall_command::{ReplyFacts, ReplyForm};
use seawall_concurrency::Reason;
use seawall_insight::{Clock, Second};
use seawall_stats::{
    Counters, Departure, Figures, Gauge, Gauges, Label, Leaving, Level, Phase, ServerSample, Stage,
    Traffic, WeighedSeries,
};
use seawall_transport::connection::Connector;

/// The beginning of the history, in seconds since the epoch.
const START: u64 = 1_795_200_000;

/// The length of the history, in seconds. Stalls and slow operations occur in its second half.
const SECONDS: u64 = 1_800;

const SERVER: &str = "127.0.0.1:1";

/// Records a `find` that succeeds, a `find` that fails, and an `insert` with a write error and a
/// write concern error.
fn operations(observer: &Observer) {
    let server = observer.recorder.server(SERVER).index();
    let client = observer.clients.connected("127.0.0.1:9".into(), None);
    client.set_application(Some("shop"));
    client.set_user(Some("admin.u"));
    let failures = doc! {
        "n": 0, "ok": 1, "writeErrors": [{ "code": 11_000 }], "writeConcernError": { "code": 64 },
    };
    let operations = [
        (doc! { "find": "c", "$db": "d" }, doc! { "ok": 1 }),
        (
            doc! { "find": "c", "$db": "d" },
            doc! { "ok": 0, "code": 13 },
        ),
        (doc! { "insert": "c", "$db": "d" }, failures),
    ];
    for (command, reply) in operations {
        let command = command.to_vec().unwrap();
        let input = CommandBytes::of_body(&command);
        let facts = ReplyFacts::of(ReplyForm::Plain, &reply.to_vec().unwrap());
        let now = Instant::now();
        let mut observation = observer.recorder.begin(&input, 10, now);
        observation.enter(Phase::Server, now);
        observation.set_sender(&client, 1, None);
        observation.set_server(server);
        observation.record_reply(&facts, now);
        observation.finish(outcome_of(&facts), now + Duration::from_millis(100));
    }
}

/// The id of the shape of the `find` commands.
fn find_id(totals: &Totals) -> String {
    let rows = totals.shapes();
    let mut finds = rows
        .iter()
        .filter(|row| row.shape.namespace.command == "find");
    finds.next().unwrap().shape.id.to_string()
}

fn figures(count: u64, time: Duration) -> Figures {
    let mut figures = Figures {
        count,
        request_bytes: 100,
        reply_bytes: 1_000,
        documents: 3,
        ..Figures::default()
    };
    (0..count).for_each(|_| figures.durations.record(time));
    figures.phases[Phase::Server] = time * u32::try_from(count).unwrap();
    figures
}

fn shape(id: &str) -> Label {
    Label::Shape {
        level: Level::Fine,
        id: id.into(),
        command: "find".into(),
        db: "d".into(),
        collection: "c".into(),
        text: "{filter:{a:?}}".into(),
    }
}

fn traffic(clients: u64) -> Traffic {
    let mut traffic = Traffic {
        arrivals: clients,
        client_authentications: clients,
        ..Traffic::default()
    };
    let leaving = Leaving {
        age: Duration::from_millis(100),
        ip: Some([10, 1, 2, 3].into()),
        application: Some("shop"),
        driver: Some("nodejs 6.8"),
        user: Some("admin.u"),
        stage: Stage::LoggingIn,
        how: Departure::GaveUp,
    };
    (0..clients).for_each(|_| traffic.add_departure(&leaving));
    traffic
}

fn gauges(at: u64) -> Gauges {
    let mut gauges = Gauges::default();
    gauges.record(Gauge::ClientConnections, float(at));
    gauges
}

/// The figures of the second that begins `at` seconds after the start of the history. `known` is
/// the id of the shape that also has figures since the start of Seawall.
fn second(at: u64, known: &str) -> Second {
    let is_late = at >= SECONDS / 2;
    let is_stall = is_late && at.is_multiple_of(60);
    let time = Duration::from_millis(if is_stall { 2_000 } else { 2 });
    let usual = Duration::from_millis(if is_late { 12 } else { 2 });
    let namespace = Label::Namespace {
        command: "find".into(),
        db: "d".into(),
        collection: "c".into(),
    };
    let labels = [
        Label::Whole,
        Label::OtherShapes,
        namespace,
        Label::Server(SERVER.into()),
        shape(known),
    ];
    let series = labels.map(|label| (Arc::new(label), (figures(20, time), 1.0)));
    let mut series = WeighedSeries::from(series);
    series.insert(Arc::new(shape("without_a_row")), (figures(20, usual), 1.0));
    let storms = [100..110, SECONDS - 5..SECONDS];
    let clients = if storms.iter().any(|storm| storm.contains(&at)) {
        100
    } else {
        0
    };
    let counter = if is_stall { 100.0 } else { 10.0 };
    let sample = ServerSample {
        at: UNIX_EPOCH + Duration::from_secs(START + at),
        has_reply: at % 240 != 61,
        counters: Counters::new(&["checkpoint"], [counter].into()),
    };
    Second {
        series,
        whole: figures(20, time),
        gauges: gauges(at),
        traffic: traffic(clients),
        samples: vec![(SERVER.into(), vec![sample])],
    }
}

fn configuration() -> seawall_api::Configuration {
    let value = seawall_api::ConfigurationValue {
        in_effect: Some("7".to_owned()),
        instance: None,
        pending: Some("9".to_owned()),
        ..Default::default()
    };
    seawall_api::Configuration {
        values: vec![value],
        ..Default::default()
    }
}

fn reload() -> seawall_api::Reload {
    seawall_api::Reload {
        changes: vec![seawall_api::ConfigurationChange::default()],
        problems: vec![String::new()],
        ..Default::default()
    }
}

/// A capture that has ended.
fn capture() -> CaptureState {
    CaptureState {
        ended_at_us: Some(1),
        end: Some("stopped".to_owned()),
        omitted: [("secret".to_owned(), 1)].into(),
        redaction: Some("none".to_owned()),
        ..CaptureState::default()
    }
}

/// The state of Seawall after half an hour, with storms, stalls and changes.
pub(super) fn state() -> AdminState {
    let observer = Observer::with_shapes();
    operations(&observer);
    let known = find_id(&observer.totals);
    let now = Arc::new(AtomicU64::new(START));
    let read = Arc::clone(&now);
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let clock = Clock::new(move || at(read.load(Ordering::Relaxed)));
    let settings = seawall_insight::InsightSettings {
        is_on: true,
        directory: None,
        max_bytes: 64 << 20,
        max_shapes: 200,
    };
    let insight = Insight::open(settings, clock).unwrap();
    for second_at in 0..SECONDS {
        now.store(START + second_at + 1, Ordering::Relaxed);
        insight.add(second(second_at, &known), insight.now());
    }
    let nonces = Arc::new(NonceSource::new().unwrap());
    let connector = Connector::new(None, Vec::new(), Duration::from_secs(10), nonces);
    let recorder = Arc::clone(&observer.recorder);
    let address = SERVER.parse().unwrap();
    let account = Arc::new(ServiceAccount::new(connector.clone()));
    let pulse = pulse::PulseSettings {
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
    };
    let runtime = Handle::current();
    AdminState {
        totals: observer.totals,
        exporter: observer.exporter,
        clients: observer.clients,
        captures: Arc::new(Captures::new(None, Box::new(Vec::new))),
        insight: Arc::new(insight),
        pulse: Ok(Arc::new(Pulse::new(account, pulse, runtime))),
        topology: Topology::of_standalone(address, limits(), connector, recorder),
        draining: watch::channel(None).1,
        drain: CancellationToken::new(),
        injects_faults: AtomicBool::new(false),
        mode: "pooled",
        credentials: Box::new(|| "self"),
        certificates: Box::new(|| vec![certificate()]),
        guard: ArcSwap::from_pointee(open_guard()),
        profiles: AtomicBool::new(false),
        dashboard: AtomicBool::new(true),
        sessions: Sessions::default(),
        refused_actions: OccasionalLog::default(),
        refused_logins: OccasionalLog::default(),
        live: Live::default(),
        fleet: ArcSwap::from_pointee(Fleet::default()),
        configuration: watch::channel(Arc::new(configuration())).1,
        reloads: mpsc::channel(1).0,
        places: Arc::new(Semaphore::new(MAX_REQUESTS)),
        capture_places: Arc::new(Semaphore::new(MAX_CAPTURE_REQUESTS)),
        started_at: Instant::now(),
        liveness: Liveness::of(Handle::current(), Handle::current()),
    }
}

fn certificate() -> seawall_api::Certificate {
    seawall_api::Certificate {
        file: "/etc/seawall/certificate.pem".to_owned(),
        kind: "certificate".to_owned(),
        not_after: 1_800_000_000,
        serial: "1f".to_owned(),
        subject: "CN=seawall".to_owned(),
    }
}

/// A guard that requires neither a token nor a certificate.
fn open_guard() -> Guard {
    Guard {
        requires_certificate: false,
        tokens: Vec::new(),
        allowed_hosts: Vec::new(),
    }
}

/// A guard with a token of [`Role::Read`].
fn guard_with_token() -> Guard {
    let token = Token {
        name: "file".to_owned(),
        secret: "secret".to_owned(),
        role: Role::Read,
    };
    Guard {
        tokens: vec![Arc::new(token)],
        ..open_guard()
    }
}

#[tokio::test(start_paused = true)]
async fn refused_actions_are_counted_and_logged_once_a_minute() {
    let state = Arc::new(state());
    state.guard.store(Arc::new(guard_with_token()));
    for (secret, status) in [("secret", 403), ("wrong", 401), ("secret", 403)] {
        let request = Request::post("/api/v1/reload")
            .header(header::AUTHORIZATION, format!("Bearer {secret}"))
            .body(Body::empty())
            .unwrap();
        let response = router(Arc::clone(&state)).oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
    }
    // The first refusal was logged, and the next two were not. A minute later, the log line of a
    // further refusal reports three: these two and the further refusal.
    advance(Duration::from_secs(60)).await;
    assert_eq!(state.refused_actions.count(Instant::now()), Some(3));
}

/// The lines of the log about actions.
fn actions(log: &MemoryLog) -> Vec<String> {
    log.lines_with("admin action")
}

/// Sends an action to this handler and drops the request while the handler waits. Returns the log
/// line of the action.
fn log_of_interrupted_action(handler: MethodRouter) -> String {
    let state = Arc::new(state());
    state.guard.store(Arc::new(open_guard()));
    let router: Router = Router::new()
        .route("/", handler)
        .route_layer(middleware::from_fn_with_state(state, guard::check_action));
    let log = MemoryLog::default();
    let _collecting = log.collect();
    let request = Request::post("/").header(header::HOST, "localhost");
    let request = router.oneshot(request.body(Body::empty()).unwrap());
    let ended = AssertUnwindSafe(request).catch_unwind().now_or_never();
    assert!(
        ended.is_none_or(|result| result.is_err()),
        "the handler has returned"
    );
    let actions = actions(&log);
    assert_eq!(actions.len(), 1, "{actions:?}");
    actions[0].clone()
}

#[tokio::test]
async fn an_action_whose_caller_disconnects_is_logged_once() {
    // The HTTP server drops the future of a request whose caller disconnects.
    let action = log_of_interrupted_action(post(pending::<StatusCode>));
    assert!(action.contains("the connection ended"), "{action}");
}

#[tokio::test]
async fn an_action_whose_handler_panics_is_logged_once() {
    async fn fail() -> StatusCode {
        panic!("expected in this test")
    }
    let action = log_of_interrupted_action(post(fail));
    assert!(action.contains("the handler panicked"), "{action}");
}

#[tokio::test]
async fn a_logout_is_logged_only_if_the_session_exists() {
    let state = Arc::new(state());
    state.guard.store(Arc::new(guard_with_token()));
    let id = state.sessions.begin("secret", Instant::now()).unwrap();
    let log = MemoryLog::default();
    let _collecting = log.collect();
    // The second request names a session that has ended.
    for _ in 0..2 {
        let request = Request::delete("/api/v1/session")
            .header(header::HOST, "localhost")
            .header(header::COOKIE, format!("{}={id}", sessions::COOKIE))
            .body(Body::empty())
            .unwrap();
        let response = router(Arc::clone(&state)).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
    }
    let actions = actions(&log);
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert!(actions[0].contains("logout"), "{actions:?}");
}

/// A state whose requests for a reload arrive at the returned receiver.
fn state_with_reloads() -> (AdminState, mpsc::Receiver<ReloadRequest>) {
    let (reloads, requests) = mpsc::channel(1);
    let state = AdminState { reloads, ..state() };
    (state, requests)
}

#[tokio::test(start_paused = true)]
async fn a_reload_request_that_waited_too_long_is_refused_and_never_starts_a_reload() {
    let (state, mut requests) = state_with_reloads();
    assert!(request_reload(&state, false).await.is_none());
    let request = requests.recv().await.unwrap();
    assert!(request.take().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_has_begun_is_awaited_without_a_time_limit() {
    let (state, mut requests) = state_with_reloads();
    let reload = async {
        let reply = requests.recv().await.unwrap().take().unwrap();
        advance(RELOAD_WAIT_LIMIT * 2).await;
        reply.send(seawall_api::Reload::default()).unwrap();
    };
    let (replied, ()) = tokio::join!(request_reload(&state, false), reload);
    assert!(replied.is_some());
}

/// The members of each JSON object in a reply (their names and types), by the path of the object.
/// All elements of a list have the same path.
type Members = BTreeMap<String, BTreeSet<String>>;

fn describe(path: &str, value: &Value, members: &mut Members) {
    match value {
        Value::Array(items) => {
            let path = format!("{path}[]");
            items.iter().for_each(|item| describe(&path, item, members));
        }
        Value::Object(of) => {
            let typed = of
                .iter()
                .map(|(name, value)| format!("{name} {}", kind(value)));
            members.entry(path.to_owned()).or_default().extend(typed);
            for (name, value) in of {
                describe(&format!("{path}.{name}"), value, members);
            }
        }
        _ => {}
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Describes a reply with one line for each object.
fn described(name: &str, text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap();
    // Parsing sorts the members of an object. So the reply was sorted if both texts have the same
    // strings in the same order. Numbers are not compared, because their last digit may differ.
    let sorted = value.to_string();
    let strings = |text: &str| -> Vec<String> {
        let strings = text.split('"').skip(1).step_by(2);
        strings.map(str::to_owned).collect()
    };
    assert_eq!(strings(text), strings(&sorted), "{name}");
    let mut members = Members::new();
    describe("", &value, &mut members);
    let mut lines = format!("{name}\n");
    for (path, members) in members {
        let members: Vec<_> = members.into_iter().collect();
        writeln!(lines, "  {path}{{{}}}", members.join(", ")).unwrap();
    }
    lines
}

async fn get_described(state: &Arc<AdminState>, path: &str) -> String {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router(Arc::clone(state)).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let content_type = &response.headers()[header::CONTENT_TYPE];
    assert_eq!(content_type, "application/json", "{path}");
    let body = body::to_bytes(response.into_body(), usize::MAX).await;
    described(path, str::from_utf8(&body.unwrap()).unwrap())
}

/// Describes a part of a reply without an HTTP request.
fn part_described(name: &str, part: impl Serialize) -> String {
    described(name, &serde_json::to_string(&part).unwrap())
}

fn pool() -> PoolSnapshot {
    let user = UserSnapshot {
        name: "u".to_owned(),
        source: "admin".to_owned(),
        pending: 1,
        available: 2,
        in_use: 3,
        wait_queue: 4,
    };
    let concurrency = ConcurrencySnapshot {
        mode: "auto",
        limit: Some(9),
        settled: Some(8),
        in_progress: 3,
        reserved: 1,
        exempt: 1,
        waiting: 4,
        reason: Some(Reason::Trying),
    };
    PoolSnapshot {
        state: "ready",
        pending: 1,
        available: 2,
        in_use: 3,
        wait_queue: 4,
        users: vec![user],
        concurrency,
    }
}

/// The description of a replica set whose server was probed.
fn replica_set(state: &AdminState) -> TopologyDescription {
    let mut description = state.topology.snapshot().description.clone();
    description.topology_type = TopologyType::ReplicaSetWithPrimary;
    description.set_name = Some("rs".to_owned());
    let server = &mut description.servers[0];
    server.tags = vec![("dc".to_owned(), "east".to_owned())];
    server.probe.round_trip = Some(Duration::from_millis(1));
    description
}

#[tokio::test]
async fn json_replies_have_exactly_the_members_in_replies_txt() {
    let state = state();
    let clients = Arc::clone(&state.clients);
    let client = clients.connected("127.0.0.1:2".into(), None);
    let other = clients.connected("127.0.0.1:3".into(), None);
    other.set_application(Some("shop"));
    other.set_user(Some("admin.u"));
    let id = find_id(&state.totals);
    let address = SERVER.parse().unwrap();
    let mut replies = part_described("part: pool", json::pool(&address, &pool()));
    let topology = json::topology(&replica_set(&state));
    replies += &part_described("part: topology", topology);
    replies += &part_described("part: reload", reload());
    replies += &part_described("part: capture", captures::shown(capture()));
    let state = Arc::new(state);
    for path in [
        "status",
        "shapes",
        "shapes?since=1h&limit=1",
        "shapes/ID",
        "shapes/ID?since=1h",
        "shapes/without_a_row",
        "namespaces",
        "namespaces?since=1h",
        "servers",
        "timeline?since=1m",
        "heatmap?since=10m",
        "heatmap/shapes?since=10m&gt_seconds=0.001&le_seconds=0.1",
        "gauges?since=1m",
        "sparklines?since=1m",
        "session",
        "changes?against=20m&window=5m",
        "changes?against=yesterday",
        "stalls",
        "report?since=10m&against=20m",
        "report?since=10m&against=4102444800",
        "shapes?distributions=true",
        "shapes/ID?since=1m&distributions=true",
        "changes?against=20m&window=5m&distributions=true",
        "report?since=10m&against=20m&distributions=true",
        "annotations?since=1h",
        "captures",
        "slow",
        "pools",
        "topology",
        "clients",
        "storms",
        "config",
    ] {
        let path = path.replace("ID", &id);
        replies += &get_described(&state, &format!("/api/v1/{path}")).await;
    }
    drop((client, other));
    let mut state = Arc::into_inner(state).unwrap();
    state.pulse = Err("off: no service account");
    replies += &get_described(&Arc::new(state), "/api/v1/stalls?since=1s").await;
    let replies = replies.replace(&id, "ID");
    let expected = include_str!("replies.txt");
    assert!(replies == expected, "the replies are now:\n{replies}");
}

async fn get<T: serde::de::DeserializeOwned>(state: &Arc<AdminState>, path: &str) -> T {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router(Arc::clone(state)).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let body = body::to_bytes(response.into_body(), usize::MAX).await;
    serde_json::from_slice(&body.unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_liveness_check_fails_if_the_threads_make_no_progress_for_ten_seconds() {
    // No thread runs the tasks of this runtime.
    let stuck = Builder::new_current_thread().build().unwrap();
    let state = Arc::new(AdminState {
        liveness: Liveness::of(stuck.handle().clone(), stuck.handle().clone()),
        ..state()
    });
    let mut found = Vec::new();
    for _ in 0..3 {
        let request = Request::get("/health/live").body(Body::empty()).unwrap();
        let response = metrics_router(Arc::clone(&state)).oneshot(request).await;
        found.push(response.unwrap().status());
        advance(Duration::from_secs(5)).await;
    }
    assert_eq!(
        found,
        [
            StatusCode::OK,
            StatusCode::OK,
            StatusCode::SERVICE_UNAVAILABLE
        ]
    );
    stuck.shutdown_background();
}

#[tokio::test]
async fn the_status_has_the_reason_why_the_readiness_check_fails() {
    let state = Arc::new(AdminState {
        credentials: Box::new(|| "auto"),
        ..state()
    });
    let status: seawall_api::Status = get(&state, "/api/v1/status").await;
    let request = Request::get("/health/ready").body(Body::empty()).unwrap();
    let response = router(state).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let body = body::to_bytes(response.into_body(), usize::MAX).await;
    assert_eq!(body.unwrap(), format!("{}\n", status.not_ready.unwrap()));
}

#[tokio::test]
async fn the_figures_of_a_shape_include_all_series_with_the_id_of_the_shape() {
    let now = UNIX_EPOCH + Duration::from_secs(START + 2);
    let settings = seawall_insight::InsightSettings {
        is_on: true,
        directory: None,
        max_bytes: 64 << 20,
        max_shapes: 200,
    };
    let insight = Insight::open(settings, Clock::new(move || now)).unwrap();
    let series = ["{filter:{a:?}}", "{filter:{a:1}}"].map(|changed| {
        let mut label = shape("renamed");
        if let Label::Shape { text, .. } = &mut label {
            *text = changed.into();
        }
        let figures = figures(20, Duration::from_millis(2));
        (Arc::new(label), (figures, 1.0))
    });
    let second = Second {
        series: series.into(),
        ..Second::default()
    };
    insight.add(second, now);
    let state = Arc::new(AdminState {
        insight: Arc::new(insight),
        ..state()
    });
    let shape: seawall_api::Shape = get(&state, "/api/v1/shapes/renamed?since=1m").await;
    let steps = shape.timeline.unwrap();
    assert_eq!((shape.count, steps[0].count), (40, 40));
}

#[tokio::test]
async fn the_column_sums_of_a_heat_map_equal_the_counts_of_the_timeline() {
    let state = Arc::new(state());
    for selection in [
        String::new(),
        format!("&server={SERVER}"),
        "&namespace=d.c".to_owned(),
        "&command=find".to_owned(),
        "&shape=without_a_row".to_owned(),
    ] {
        for step in [10, 60, 600] {
            let period = format!("from={START}&until={}&step={step}s", START + SECONDS);
            let path = format!("/api/v1/heatmap?{period}{selection}");
            let heatmap: seawall_api::Heatmap = get(&state, &path).await;
            let path = format!("/api/v1/timeline?{period}{selection}");
            let timeline: seawall_api::Timeline = get(&state, &path).await;
            let columns = heatmap.columns.iter().map(|column| {
                let counts = column.counts.iter().map(|(_, count)| count);
                (column.at, column.seconds, counts.sum::<u64>())
            });
            let steps = timeline.steps.iter();
            let steps = steps.map(|step| (step.at, step.seconds, step.count));
            assert!(columns.eq(steps), "{path}");
            let counts = timeline.steps.iter().map(|step| step.count);
            assert_eq!(counts.sum::<u64>(), 20 * SECONDS, "{path}");
        }
    }
}

#[tokio::test]
async fn an_area_of_a_heat_map_lists_only_shapes_with_operations_in_the_area() {
    let state = Arc::new(state());
    // In the second half, only operations of the shape `without_a_row` take 12 ms. All other
    // operations take 2 ms, or 2 s in one second of each minute.
    let area = format!(
        "from={}&until={}&gt_seconds=0.01&le_seconds=0.02",
        START + 900,
        START + SECONDS
    );
    let path = format!("/api/v1/heatmap/shapes?{area}");
    let all: seawall_api::HeatmapShapes = get(&state, &path).await;
    let shapes = all.shapes.iter().map(|shape| (&*shape.id, shape.count));
    assert_eq!(shapes.collect::<Vec<_>>(), [("without_a_row", 20 * 900)]);
    // The function `second` puts no duration of this area into the series of all operations.
    assert_eq!((all.count, all.other), (0, 0));
    let path = format!("/api/v1/heatmap/shapes?{area}&shape=without_a_row");
    let one: seawall_api::HeatmapShapes = get(&state, &path).await;
    assert_eq!(
        (one.count, one.other, one.all_servers),
        (20 * 900, 0, false)
    );
    assert_eq!(one.shapes[0].share, 1.0);
    let path = format!("/api/v1/heatmap/shapes?since=10m&server={SERVER}&limit=1");
    let of_server: seawall_api::HeatmapShapes = get(&state, &path).await;
    assert!(of_server.all_servers);
    assert_eq!((of_server.count, of_server.shapes.len()), (20 * 600, 1));
}

#[tokio::test]
async fn stalls_and_reports_of_a_past_period_have_only_the_figures_of_that_period() {
    let state = Arc::new(state());
    let all: seawall_api::Stalls = get(&state, "/api/v1/stalls").await;
    // The latest stall comes first. There is a stall in each minute of the second half.
    let first = all.episodes.last().unwrap().started_at;
    let until = first + 30.0;
    let path = format!("/api/v1/stalls?from={}&until={until}", first - 30.0);
    let past: seawall_api::Stalls = get(&state, &path).await;
    assert!(past.episodes.len() < all.episodes.len());
    let starts = past.episodes.iter().map(|of| of.started_at);
    assert_eq!(starts.collect::<Vec<_>>(), [first]);
    let path = format!("/api/v1/stalls?from={START}&until={}", START + 600);
    let before: seawall_api::Stalls = get(&state, &path).await;
    assert_eq!((before.episodes.len(), before.recurring.len()), (0, 0));

    let path = format!("/api/v1/report?from={START}&until={}", START + 600);
    let report: seawall_api::Report = get(&state, &path).await;
    assert_eq!(
        (report.made_at, report.since_seconds),
        (float(START + 600), 600.0)
    );
    let counts = report.timeline.steps.iter().map(|step| step.count);
    assert_eq!(counts.sum::<u64>(), 20 * 600);
    assert_eq!(report.stalls.episodes.len(), 0);
    for wrong in ["from=9&since=1m", "sinse=1m"] {
        let request = Request::get(format!("/api/v1/report?{wrong}"));
        let request = request.body(Body::empty()).unwrap();
        let response = router(Arc::clone(&state)).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{wrong}");
    }
}
