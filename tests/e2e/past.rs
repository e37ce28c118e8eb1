//! Tests of reports about past operations: time ranges, timelines, the slow log, error codes and
//! retries. The tests read the reports over HTTP and with subcommands of `seawall`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bson::{Document, doc};
use rustix::process::Signal;
use seawall_api::{
    Annotations, Changes, GaugeTimeline, Heatmap, HeatmapShapes, Namespace, Namespaces, Other,
    Report, Server, Servers, Shape, Shapes, SlowOperations, Stalls, Status, Timeline, TimelineStep,
};
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, create_user, shared_standalone, unique_name},
    process::{Process, run},
    raw::{Login, OpMsg, RawClient},
    scratch::Scratch,
    seawall::{self as proxy, Seawall},
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

/// An instance of Seawall, and a user with rights on one database. The database has the same name
/// as the user.
struct ReportScene {
    user: NewUser,
    seawall: Seawall,
}

impl ReportScene {
    async fn start(toml: &str) -> Self {
        let server = shared_standalone().await.unwrap();
        let name = unique_name("past");
        let user = NewUser::new("admin", &name, "secret").role("readWrite", &name);
        create_user(&server.client().unwrap(), &user).await.unwrap();
        let seawall = Self::seawall(&server.uri(), toml).await;
        Self { user, seawall }
    }

    async fn seawall(uri: &str, toml: &str) -> Seawall {
        let options = proxy::Options {
            toml: toml.to_owned(),
            ..proxy::Options::default()
        };
        Seawall::start_with(uri, options).await
    }

    async fn client(&self) -> RawClient {
        let address = self.seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        let login = Login::new("admin", &self.user.name, "secret");
        client.login(&login).await.unwrap();
        client
    }

    async fn finds(&self, count: usize) {
        let mut client = self.client().await;
        for value in 0..count {
            let value = format!("secret-value-{value}");
            let command = doc! { "find": "things", "filter": { "name": value } };
            let reply = client.command(&self.user.name, command).await.unwrap();
            assert_eq!(reply.body.get_f64("ok").unwrap(), 1.0);
        }
        client.wait_until_counted().await.unwrap();
    }

    /// The shapes of this test's own database.
    async fn shapes(&self, query: &str) -> Vec<Shape> {
        let path = format!("/api/v1/shapes{query}");
        let mut reply: Shapes = self.seawall.api(&path).await;
        reply.shapes.retain(|shape| shape.db == self.user.name);
        reply.shapes
    }

    /// The number of operations in the shapes of this test's own database.
    async fn counted(&self, query: &str) -> u64 {
        let shapes = self.shapes(query).await;
        shapes.iter().map(|shape| shape.count).sum()
    }

    /// The namespaces of this test's own database.
    async fn namespaces(&self, query: &str) -> Vec<Namespace> {
        let path = format!("/api/v1/namespaces{query}");
        let mut reply: Namespaces = self.seawall.api(&path).await;
        reply.namespaces.retain(|row| row.db == self.user.name);
        reply.namespaces
    }
}

fn operations(steps: &[TimelineStep]) -> u64 {
    steps.iter().map(|step| step.count).sum()
}

#[tokio::test]
async fn shapes_timelines_and_reports_of_a_time_range_have_the_same_counts() {
    let scene = ReportScene::start("").await;
    scene.finds(120).await;
    // The API reports the operations of a second only after that second has ended.
    let is_reported = async || scene.counted("?since=10m").await == 120;
    eventually(LIMIT, is_reported).await.unwrap();
    let rows = scene.shapes("?since=10m").await;
    let [row] = &*rows else { panic!("{rows:?}") };
    assert_eq!(row.shape, "{filter:{name:?}}");
    let id = &row.id;
    let path = format!("/api/v1/timeline?since=1m&step=1s&shape={id}");
    let timeline: Timeline = scene.seawall.api(&path).await;
    assert_eq!(operations(&timeline.steps), 120);
    let path = format!("/api/v1/shapes/{id}?since=1m");
    let in_full: Shape = scene.seawall.api(&path).await;
    let buckets = in_full.buckets().iter().map(|bucket| bucket.count);
    assert_eq!(buckets.sum::<u64>(), 120);
    assert_eq!(operations(in_full.timeline.as_deref().unwrap()), 120);
    // The history does not contain some counts, such as `streamed`. Seawall keeps them only in
    // memory, for the time since its start. So the API returns them in `since_start`.
    assert_eq!(in_full.since_start.as_ref().unwrap().streamed, 0);
    assert_eq!(in_full.streamed, None);
    let report: Report = scene.seawall.api("/api/v1/report?since=1m").await;
    let own = report.shapes.iter().find(|shape| shape.id == *id).unwrap();
    assert_eq!(own.count, 120);
    for query in ["", "?since=1m"] {
        let namespaces = scene.namespaces(query).await;
        let counts = namespaces.iter().map(|row| row.count);
        assert_eq!(counts.sum::<u64>(), 120, "{query}");
    }
    for wrong in [
        "since=10",
        "since=8d",
        "since=1m&step=1x",
        "since=7d&step=1s",
    ] {
        let (status, _) = scene
            .seawall
            .get(&format!("/api/v1/timeline?{wrong}"))
            .await;
        assert_eq!(status, 400, "{wrong}");
    }
}

/// The sum of all counts of a heat map.
fn in_heat_map(heatmap: &Heatmap) -> u64 {
    let counts = heatmap.columns.iter().flat_map(|column| &column.counts);
    counts.map(|(_, count)| count).sum()
}

#[tokio::test]
async fn a_heat_map_of_the_last_minute_has_all_its_operations_and_the_gauges_have_values() {
    let scene = ReportScene::start("").await;
    scene.finds(120).await;
    let is_reported = async || scene.counted("?since=10m").await == 120;
    eventually(LIMIT, is_reported).await.unwrap();
    let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // The requested minute has ended, so all requests cover the same operations.
    let until = until.as_secs();
    let period = format!("from={}&until={until}&step=1s", until - 60);
    let heatmap = async |selection: String| -> Heatmap {
        let path = format!("/api/v1/heatmap?{period}{selection}");
        scene.seawall.api(&path).await
    };
    let own = format!("&namespace={}.things", scene.user.name);
    assert_eq!(in_heat_map(&heatmap(own.clone()).await), 120);
    let path = format!("/api/v1/timeline?{period}");
    let timeline: Timeline = scene.seawall.api(&path).await;
    let all = operations(&timeline.steps);
    let servers: Servers = scene.seawall.api("/api/v1/servers").await;
    let server = &servers.servers[0].address;
    for phase in ["permit", "checkout", "forward", "server", "receive", "send"] {
        let of_all = heatmap(format!("&phase={phase}")).await;
        let of_server = heatmap(format!("&phase={phase}&server={server}")).await;
        assert_eq!(in_heat_map(&of_all), all, "{phase}");
        assert_eq!(in_heat_map(&of_server), all, "{phase}");
    }
    let path = format!("/api/v1/heatmap/shapes?{period}{own}");
    let shapes: HeatmapShapes = scene.seawall.api(&path).await;
    assert_eq!((shapes.count, shapes.other), (120, 0));
    assert_eq!(shapes.shapes[0].shape, "{filter:{name:?}}");
    let has_gauges = async || {
        let gauges: GaugeTimeline = scene.seawall.api("/api/v1/gauges?since=1m").await;
        let highest = |name: &str| {
            let steps = gauges.steps.iter();
            let values = steps.filter_map(|step| step.gauges.get(name));
            values.map(|values| values.max).fold(0.0, f64::max)
        };
        let positive = [
            "logins_here",
            "logins_at_servers",
            "cpu_cores",
            "resident_memory_bytes",
            "open_descriptors",
        ];
        let missing = positive.iter().find(|name| highest(name) <= 0.0);
        missing.map_or(Ok(()), |name| Err(format!("no {name}: {gauges:?}")))
    };
    eventually(LIMIT, has_gauges).await.unwrap();
    for wrong in ["phase=nap", "phase=send&command=find", "from=9&since=1m"] {
        let (status, _) = scene.seawall.get(&format!("/api/v1/heatmap?{wrong}")).await;
        assert_eq!(status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn slow_operations_are_listed_with_their_client_but_without_the_values_in_their_filter() {
    let scene =
        ReportScene::start("slow_log.threshold_ms = 0\nslow_log.file = \"/dev/null\"\n").await;
    let address = scene.seawall.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    let metadata = doc! {
        "application": { "name": "shop" }, "driver": { "name": "raw", "version": "1" }, "os": { "type": "any" },
    };
    client.hello(doc! { "client": metadata }).await.unwrap();
    let login = Login::new("admin", &scene.user.name, "secret");
    client.login(&login).await.unwrap();
    for filter in [doc! { "name": "secret-value" }, doc! { "$nonsense": 1 }] {
        let find = doc! { "find": "things", "filter": filter };
        client.command(&scene.user.name, find).await.unwrap();
    }
    client.wait_until_counted().await.unwrap();
    let listed = async || -> SlowOperations {
        let mut slow: SlowOperations = scene.seawall.api("/api/v1/slow").await;
        slow.operations.retain(|of| of.db == scene.user.name);
        slow
    };
    eventually(LIMIT, async || listed().await.operations.len() == 2)
        .await
        .unwrap();
    let slow = listed().await;
    let [wrong, found] = &*slow.operations else {
        panic!("{slow:?}")
    };
    assert_eq!((slow.threshold_ms, found.error_code), (0.0, None));
    assert_eq!(found.application.as_deref(), Some("shop"));
    assert_eq!(found.user, Some(format!("admin.{}", scene.user.name)));
    assert_eq!(found.shape, "{filter:{name:?}}");
    assert!((found.phases_ms.total() - found.duration_ms).abs() < 1e-6);
    assert_eq!((wrong.error_code, &*wrong.outcome), (Some(2), "error"));
    let (_, text) = scene.seawall.get("/api/v1/slow").await;
    assert!(!text.contains("secret-value"), "{text}");
    let path = format!("/api/v1/slow?shape={}", wrong.shape_id);
    let of_shape: SlowOperations = scene.seawall.api(&path).await;
    assert_eq!(of_shape.operations.len(), 1);
    let path = format!("/api/v1/shapes/{}", wrong.shape_id);
    let shape: Shape = scene.seawall.api(&path).await;
    let applications = shape.applications.unwrap();
    let applications = applications.iter().map(|of| (&*of.name, of.count));
    assert_eq!(applications.collect::<Vec<_>>(), [("shop", 1)]);
    let codes = shape.errors_by_code.unwrap();
    let codes = codes.iter().map(|of| (&*of.code, of.count));
    assert_eq!(codes.collect::<Vec<_>>(), [("2", 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_of_deploys_and_reloads_are_kept_after_a_restart() {
    let scratch = Scratch::create().unwrap();
    let directory = scratch.path().join("kept");
    let toml = format!("history.directory = {directory:?}\n");
    let mut scene = ReportScene::start(&toml).await;
    let path = "/api/v1/annotations";
    let (status, _) = scene.seawall.post(path, r#"{"text": "shop v1.2"}"#).await;
    assert_eq!(status, 201);
    for wrong in [r#"{"text": ""}"#, r#"{"text": "x", "kind": "storm"}"#] {
        let (status, _) = scene.seawall.post(path, wrong).await;
        assert_eq!(status, 400, "{wrong}");
    }
    let more = format!("{toml}pool.max_pool_size = 50\n");
    scene.seawall.reload(&more).await.unwrap();
    scene.seawall.app.drain(std::future::ready(())).await;
    let server = shared_standalone().await.unwrap();
    drop(scene.seawall);
    scene.seawall = ReportScene::seawall(&server.uri(), &toml).await;
    let kept: Annotations = scene.seawall.api("/api/v1/annotations?since=10m").await;
    let kept: Vec<_> = kept
        .annotations
        .iter()
        .map(|of| (&*of.kind, &*of.text))
        .collect();
    let expected = [("deploy", "shop v1.2"), ("reload", "pool.max_pool_size")];
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn a_timeline_can_be_requested_for_one_namespace() {
    let scene = ReportScene::start("").await;
    scene.finds(30).await;
    let mut client = scene.client().await;
    let db = &scene.user.name;
    client
        .command(db, doc! { "insert": "things", "documents": [{ "a": 1 }] })
        .await
        .unwrap();
    let reported = async |of: &str| {
        let path = format!("/api/v1/timeline?since=10m&step=1s&db={db}{of}");
        let (status, body) = scene.seawall.get(&path).await;
        let timeline = serde_json::from_str::<Timeline>(&body).ok();
        let counted = timeline.map(|timeline| operations(&timeline.steps));
        (status, counted)
    };
    let all = async || reported("").await == (200, Some(31));
    eventually(LIMIT, all).await.unwrap();
    assert_eq!(reported("&collection=things").await, (200, Some(31)));
    assert_eq!(
        reported("&collection=things&command=insert").await,
        (200, Some(1))
    );
    assert_eq!(reported("&collection=nothing").await.0, 404);
    assert_eq!(reported("&server=a:1").await.0, 400);
}

#[tokio::test]
async fn query_shapes_beyond_the_requested_limit_are_summed_in_the_field_other() {
    let scene = ReportScene::start("").await;
    scene.finds(9).await;
    for since in ["", "&since=10m"] {
        let path = format!("/api/v1/shapes?limit=0{since}");
        let is_reported = async || {
            let reply: Value = scene.seawall.api(&path).await;
            let other = reply["other"].clone();
            let count = other["count"].as_u64().ok_or("no count")?;
            (count >= 9).then_some(other).ok_or("not counted yet")
        };
        let other = eventually(LIMIT, is_reported).await.unwrap();
        let fields = [
            "errors",
            "total_time_ms",
            "load_ms",
            "more",
            "request_bytes",
            "reply_bytes",
            "documents",
        ];
        for field in fields {
            assert!(other.get(field).is_some(), "{field}: {other}");
        }
        let other: Other = serde_json::from_value(other).unwrap();
        assert!(other.request_bytes > 0, "{other:?}");
    }
}

#[tokio::test]
async fn the_api_has_a_time_to_first_byte_for_each_server_and_the_same_latencies_as_the_report() {
    let scene = ReportScene::start("").await;
    scene.finds(50).await;
    let both = async || {
        let all: Servers = scene.seawall.api("/api/v1/servers").await;
        let report: Report = scene.seawall.api("/api/v1/report?since=10m").await;
        let [server] = <[Server; 1]>::try_from(all.servers).ok()?;
        let [in_report] = <[Server; 1]>::try_from(report.servers).ok()?;
        let is_reported = server.count >= 50 && server.count == in_report.count;
        is_reported.then_some((server, in_report))
    };
    let both = async || both().await.ok_or("not reported yet");
    let (server, in_report) = eventually(LIMIT, both).await.unwrap();
    assert_eq!(server.latency_ms, in_report.latency_ms);
    let reply_began_ms = server.answer_ms.unwrap();
    assert!(reply_began_ms.max <= server.latency_ms.max, "{server:?}");
}

#[tokio::test]
async fn a_comparison_with_yesterday_reports_that_there_is_no_data_for_yesterday() {
    let scene = ReportScene::start("").await;
    scene.finds(40).await;
    let changes: Changes = scene.seawall.api("/api/v1/changes?against=yesterday").await;
    assert_eq!(changes.incomparable(), Some("no data for the baseline"));
    let (baseline, now) = (changes.baseline.unwrap(), changes.now.unwrap());
    assert_eq!(now.to - now.from, 600.0);
    let ago = now.to - baseline.to;
    assert!(
        (86_400.0..87_000.0).contains(&ago),
        "the baseline ends {ago} s before the end of the present range"
    );
    assert_eq!(baseline.seconds, 0.0);
    for wrong in [
        "against=1h&window=2h",
        "against=tomorrow",
        "against=2999-01-01T00:00:00Z",
        "against=10",
    ] {
        let (status, why) = scene.seawall.get(&format!("/api/v1/changes?{wrong}")).await;
        assert_eq!(status, 400, "{wrong}: {why}");
    }
    let path = "/api/v1/report?since=10m&against=last_week";
    let report: Report = scene.seawall.api(path).await;
    assert_eq!(report.changes.against, "last_week");
    assert_eq!(report.changes.comparable, Some(false));
    let stalls: Stalls = scene.seawall.api("/api/v1/stalls?since=10m").await;
    assert!(stalls.episodes.is_empty(), "{stalls:?}");
    assert_eq!(scene.seawall.get("/api/v1/stalls?since=1").await.0, 400);
}

#[tokio::test]
async fn requests_for_past_data_return_404_if_the_history_is_disabled() {
    let scene = ReportScene::start("history.enabled = false").await;
    scene.finds(5).await;
    let past = [
        "timeline",
        "changes",
        "stalls",
        "report",
        "shapes?since=1m",
        "namespaces?since=1m",
    ];
    for path in past {
        let (status, _) = scene.seawall.get(&format!("/api/v1/{path}")).await;
        assert_eq!(status, 404, "{path}");
    }
    assert_eq!(scene.counted("").await, 5);
    let status: Status = scene.seawall.api("/api/v1/status").await;
    assert_eq!(status.history.on, Some(false));
}

/// Seawall keeps the counts of past operations in `history.directory`.
#[tokio::test]
async fn reports_include_the_operations_before_a_restart() {
    let scratch = Scratch::create().unwrap();
    let directory = scratch.path().join("kept");
    let toml = format!("history.directory = {directory:?}");
    let mut scene = ReportScene::start(&toml).await;
    scene.finds(30).await;
    let reported = async |scene: &ReportScene| scene.counted("?since=10m").await;
    eventually(LIMIT, async || reported(&scene).await == 30)
        .await
        .unwrap();
    scene.seawall.app.drain(std::future::ready(())).await;
    let server = shared_standalone().await.unwrap();
    drop(scene.seawall);
    scene.seawall = ReportScene::seawall(&server.uri(), &toml).await;
    assert_eq!(reported(&scene).await, 30);
    // After the restart, Seawall has no shapes in memory. So the times at which the shape was first
    // and last seen come from the history on disk.
    for row in scene.shapes("?since=10m").await {
        let [first, last] = [row.first_seen, row.last_seen].map(|seen| seen.unwrap().seconds());
        assert!(first < last, "{row:?}");
    }
    assert_eq!(scene.counted("").await, 0);
    scene.finds(12).await;
    eventually(LIMIT, async || reported(&scene).await == 42)
        .await
        .unwrap();
}

#[tokio::test]
async fn error_codes_failed_writes_and_retries_are_counted() {
    let scene = ReportScene::start("").await;
    let mut client = scene.client().await;
    let db = &scene.user.name;
    let mut send = async |command: Document| client.command(db, command).await.unwrap();
    let lsid = doc! { "id": bson::Uuid::new() };
    let insert = |id: i32, number: i64| {
        doc! {
            "insert": "things", "documents": [{ "_id": id }, { "_id": id }], "ordered": false,
            "lsid": lsid.clone(), "txnNumber": number,
        }
    };
    // A standalone server refuses writes with a transaction number (code 20). Seawall still
    // recognizes that the second write repeats the first one.
    for number in [1, 1, 2] {
        send(insert(1, number)).await;
    }
    send(doc! { "insert": "things", "documents": [{ "_id": 1 }, { "_id": 1 }], "ordered": false })
        .await;
    send(doc! { "find": "things", "filter": { "$nonsense": 1 } }).await;
    client.wait_until_counted().await.unwrap();
    let metric = async |name: &str, label: &str| {
        let db = format!("db=\"{db}\"");
        scene.seawall.metric(name, &[&db, label]).await
    };
    assert_eq!(
        metric("seawall_operation_errors_total", "code=\"20\"").await,
        3.0
    );
    assert_eq!(
        metric("seawall_operation_errors_total", "code=\"2\"").await,
        1.0
    );
    assert_eq!(
        metric("seawall_write_errors_total", "command=\"insert\"").await,
        1.0
    );
    assert_eq!(
        metric("seawall_operations_retried_total", "command=\"insert\"").await,
        1.0
    );
    let rows = scene.namespaces("").await;
    let insert = rows.iter().find(|row| row.command == "insert").unwrap();
    assert_eq!(insert.error_codes.as_ref().unwrap()["20"], 3);
    assert_eq!((insert.write_errors, insert.retries), (Some(1), Some(1)));
}

#[tokio::test]
async fn slow_log_threshold_0_logs_all_operations_and_redact_false_adds_their_values() {
    let scratch = Scratch::create().unwrap();
    for redact in [true, false] {
        let file = scratch.path().join(format!("slow-{redact}.json"));
        let toml = format!(
            "[slow_log]\nthreshold_ms = 0\nmax_lines_per_second = 0\nredact = {redact}\nfile = {file:?}"
        );
        let scene = ReportScene::start(&toml).await;
        scene.finds(20).await;
        let own = || {
            let mut lines = lines_of(&file);
            lines.retain(|line| line["db"] == *scene.user.name);
            lines
        };
        eventually(LIMIT, async || own().len() == 20).await.unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        for line in &own() {
            assert_eq!(line["command"], "find");
            assert_eq!(line["text"], "{filter:{name:?}}");
            assert_eq!(line["outcome"], "ok");
            assert_eq!(line["user"], format!("admin.{}", scene.user.name));
            let phases = line["phases_ms"].as_object().unwrap().values();
            let phases: f64 = phases.map(|phase| phase.as_f64().unwrap()).sum();
            let total = line["total_ms"].as_f64().unwrap();
            assert!((phases - total).abs() < 1e-5, "{line}");
        }
        assert_eq!(text.contains("secret-value-7"), !redact);
    }
}

fn lines_of(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// With `redact = false`, the slow log has the values of commands, but not of commands that may
/// contain passwords.
#[tokio::test]
async fn slow_log_shows_document_sequences_but_no_values_of_user_management_or_unknown_commands() {
    let scratch = Scratch::create().unwrap();
    let file = scratch.path().join("slow.json");
    let toml = format!(
        "[slow_log]\nthreshold_ms = 0\nmax_lines_per_second = 0\nredact = false\nfile = {file:?}"
    );
    let scene = ReportScene::start(&toml).await;
    let db = &scene.user.name;
    let mut client = scene.client().await;
    let insert = doc! { "insert": "things", "ordered": true, "$db": db };
    let documents = (0..3)
        .map(|n| doc! { "_id": n, "name": "in-a-sequence" })
        .collect();
    let insert = OpMsg::new(insert).sequence("documents", documents);
    client.exchange(&insert).await.unwrap();
    for secret in ["createUser", "updateUser", "copydbsaslstart", "whatever"] {
        let command = doc! { secret: "app", "pwd": "hunter2", "roles": [] };
        client.command(db, command).await.unwrap();
    }
    let own = || {
        let mut lines = lines_of(&file);
        lines.retain(|line| line["db"] == **db);
        lines
    };
    eventually(LIMIT, async || own().len() == 5).await.unwrap();
    let lines = own();
    let values = lines[0]["values"].as_str().unwrap();
    let written: Value = serde_json::from_str(values).unwrap();
    assert_eq!(written["insert"], "things");
    assert_eq!(written["documents"].as_array().unwrap().len(), 3);
    assert_eq!(written["documents"][2]["name"], "in-a-sequence");
    for line in &lines[1..] {
        assert_eq!(line.get("values"), None, "{line}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("hunter2"));
}

/// The slow log omits operations over `max_lines_per_second`, and later writes how many it omitted.
#[tokio::test]
async fn the_slow_log_has_the_count_of_all_operations_over_its_line_limit_when_the_process_ends() {
    let server = shared_standalone().await.unwrap();
    let name = unique_name("past");
    let user = NewUser::new("admin", &name, "secret").role("readWrite", &name);
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let file = scratch.path().join("slow.json");
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\nadmin.address = \"127.0.0.1:0\"\n\
         [slow_log]\nthreshold_ms = 0\nmax_lines_per_second = 1\nfile = {file:?}\n",
        server.uri()
    );
    let toml = scratch.write("seawall.toml", toml).unwrap();
    let mut process = Process::serve(&toml).await;
    let mut client = RawClient::connect(process.address().parse().unwrap())
        .await
        .unwrap();
    let login = Login::new("admin", &name, "secret");
    client.login(&login).await.unwrap();
    for n in 0..50 {
        let find = doc! { "find": "things", "filter": { "a": n } };
        client.command(&name, find).await.unwrap();
    }
    drop(client);
    process.signal(Signal::TERM);
    assert!(process.ended().await.success());
    let lines = lines_of(&file);
    let logged = lines.iter().filter(|line| line.get("shape").is_some());
    let left_out = lines.iter().filter_map(|line| line["left_out"].as_u64());
    let (logged, left_out) = (
        u64::try_from(logged.count()).unwrap(),
        left_out.sum::<u64>(),
    );
    assert!(left_out > 0);
    assert_eq!(logged + left_out, 50);
}

#[tokio::test]
async fn the_subcommands_top_and_report_show_the_operations_of_a_running_proxy() {
    let scene = ReportScene::start("").await;
    scene.finds(40).await;
    let is_reported = async || scene.counted("?since=1m").await == 40;
    eventually(LIMIT, is_reported).await.unwrap();
    let admin = format!("http://{}", scene.seawall.app.admin_address().unwrap());
    let scratch = Scratch::create().unwrap();
    let said = async |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--admin", &admin]);
        let output = run(&all).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let top = said(&["top", "--once"]).await;
    assert!(top.contains("{filter:{name:?}}"), "{top}");
    let text = said(&["report", "--since", "1m", "--against", "2h"]).await;
    assert!(text.contains("{filter:{name:?}}"), "{text}");
    assert!(
        text.contains("now compared with 2h")
            && text.contains("not compared: no data for the baseline"),
        "{text}"
    );
    let html = said(&["report", "--since", "1m", "--format", "html"]).await;
    assert!(html.contains("{filter:{name:?}}") && html.trim_end().ends_with("</html>"));
    let json = said(&["report", "--since", "1m", "--format", "json"]).await;
    let file = scratch.path().join("a.json");
    std::fs::write(&file, &json).unwrap();
    let file = file.to_str().unwrap();
    let output = run(&["report", "compare", file, file]).await;
    assert!(output.status.success(), "{output:?}");
    // No Seawall listens on this address, so `seawall top` fails.
    let output = run(&["top", "--once", "--admin", "http://127.0.0.1:1"]).await;
    assert_eq!(output.status.code(), Some(69));
}

#[tokio::test]
async fn a_query_shape_reports_how_many_cursors_were_exhausted_and_how_long_they_were_open() {
    let scene = ReportScene::start("").await;
    let mut client = scene.client().await;
    let db = &scene.user.name;
    let documents: Vec<_> = (0..25).map(|n| doc! { "_id": n }).collect();
    client
        .command(db, doc! { "insert": "many", "documents": documents })
        .await
        .unwrap();
    let reply = client
        .command(db, doc! { "find": "many", "batchSize": 10 })
        .await
        .unwrap();
    let id = reply
        .body
        .get_document("cursor")
        .unwrap()
        .get_i64("id")
        .unwrap();
    for _ in 0..2 {
        let more = doc! { "getMore": id, "collection": "many", "batchSize": 10 };
        client.command(db, more).await.unwrap();
        // These commands take time between the `getMore`s, so the cursor is open for longer than
        // the `getMore`s take.
        for _ in 0..20 {
            client.wait_until_counted().await.unwrap();
        }
    }
    client.wait_until_counted().await.unwrap();
    let rows = scene.shapes("").await;
    let find = rows.iter().find(|row| row.command == "find").unwrap();
    assert_eq!(find.count, 1);
    assert_eq!((find.more.count, find.more.documents), (2, Some(15)));
    let cursors = find.cursors.as_ref().unwrap();
    assert_eq!(cursors.exhausted, 1);
    let (open, more) = (cursors.open_ms.max, find.more.total_time_ms);
    assert!(open > more, "{open} ms open, {more} ms in getMores");
    assert!(!rows.iter().any(|row| row.command == "getMore"));
    // The load of the shape includes the time of its `getMore`s. The reply for one shape has the
    // same figures as the list of shapes.
    assert!(
        (find.total_time_ms + more - find.load_ms).abs() < 1e-9,
        "{find:?}"
    );
    let path = format!("/api/v1/shapes/{}", find.id);
    assert_eq!(scene.seawall.api::<Shape>(&path).await.more, find.more);
    let in_period = async || {
        let shape: Shape = scene.seawall.api(&format!("{path}?since=10m")).await;
        (shape.more.count == 2)
            .then_some(shape)
            .ok_or("not reported yet")
    };
    let in_period = eventually(LIMIT, in_period).await.unwrap();
    assert!(in_period.cursors.is_none(), "{in_period:?}");
    let since_start = in_period.since_start.unwrap();
    assert_eq!(since_start.cursors.exhausted, 1);
    assert_eq!(since_start.more.documents, Some(15));
}
