use axum::{Router, body::Body, http::Request as HttpRequest, routing::get};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower::ServiceExt as _;

use super::{endpoints::endpoint, *};
use crate::admin::{router, tests::state};

fn instance_replies(replies: &[(&str, Result<Value, &str>)]) -> Vec<InstanceReply> {
    let named = replies.iter().map(|(address, reply)| {
        let reply = reply.as_ref().map(|value| {
            let reply = UnparsedReply {
                bytes: value.to_string().into_bytes(),
                _memory: None,
            };
            Some(reply)
        });
        let reply = reply.map_err(|error| (*error).to_owned());
        ((*address).to_owned(), reply)
    });
    named.collect()
}

fn merged(path: &str, query: &[(&str, &str)], replies: &[(&str, Result<Value, &str>)]) -> Value {
    let pairs = query.iter();
    let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let endpoint = endpoint(path, pairs.collect()).unwrap();
    let merged = (endpoint.merge)(instance_replies(replies), &endpoint.asked).unwrap();
    merged.map_or(Value::Null, |merged| {
        serde_json::from_slice(&merged).unwrap()
    })
}

/// A merge needs distributions, because percentiles cannot be merged. For some lists, a merge also
/// needs more rows than the caller asked for.
#[test]
fn requests_to_other_instances_have_the_parameters_that_a_merge_needs() {
    let path = |topic: &str, query: &[(&str, &str)]| {
        let pairs = query.iter();
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let path = format!("/api/v1/{topic}");
        let endpoint = endpoint(&path, pairs.collect())?;
        Some(path_of(&path, &endpoint.parameters))
    };
    for (topic, query, expected) in [
        (
            "shapes",
            &[("since", "1h"), ("limit", "8")][..],
            Some("/api/v1/shapes?since=1h&limit=1000&distributions=true"),
        ),
        (
            "slow",
            &[("limit", "5"), ("shape", "a/b&c")],
            Some("/api/v1/slow?shape=a%2Fb%26c&limit=5"),
        ),
        (
            "shapes/0123abcd",
            &[],
            Some("/api/v1/shapes/0123abcd?distributions=true"),
        ),
        (
            "namespaces",
            &[],
            Some("/api/v1/namespaces?limit=1000&distributions=true"),
        ),
        (
            "report",
            &[("since", "1h"), ("against", "2h")],
            Some("/api/v1/report?since=1h&against=2h&distributions=true"),
        ),
        ("shapes/..%2Fdrain", &[], None),
        ("shapes/", &[], None),
        ("profile", &[], None),
        ("live", &[], None),
    ] {
        assert_eq!(path(topic, query).as_deref(), expected, "{topic}");
    }
}

#[test]
fn failed_instances_are_reported_and_the_figures_of_all_others_are_summed() {
    let replies = [
        (OWN, Ok(json!({ "clients": 3, "version": "1.0.0" }))),
        ("http://b:1", Err("timed out")),
        (
            "http://c:1",
            Ok(json!({ "clients": 4, "version": "1.0.1" })),
        ),
        ("http://d:1", Ok(json!([1]))),
        ("http://e:1", Ok(json!({ "clients": -1 }))),
    ];
    let reply = merged("/api/v1/status", &[], &replies);
    assert_eq!(
        (&reply["clients"], &reply["version"]),
        (&json!(7), &json!("1.0.0, 1.0.1"))
    );
    let instances = reply["instances"].as_array().unwrap();
    let errors: Vec<_> = instances
        .iter()
        .map(|of| of.get("error").is_some())
        .collect();
    assert_eq!(errors, [false, true, false, true, true]);
    let none = [(OWN, Err("no such shape")), ("http://b:1", Err("dead"))];
    assert_eq!(merged("/api/v1/shapes/00", &[], &none), Value::Null);
}

#[test]
fn an_instance_without_operations_of_the_requested_shape_is_not_an_error() {
    let endpoint = endpoint("/api/v1/shapes/00", Vec::new()).unwrap();
    let bucket = json!({ "count": 3, "gt_seconds": 0.001, "le_seconds": 0.00109 });
    let shape = json!({ "id": "00", "count": 3, "distribution": [bucket] });
    let mut replies = instance_replies(&[("http://b:1", Ok(shape)), ("http://c:1", Err("dead"))]);
    replies.insert(0, (OWN.to_owned(), Ok(None)));
    let merged = (endpoint.merge)(replies, &endpoint.asked).unwrap().unwrap();
    let reply: Value = serde_json::from_slice(&merged).unwrap();
    assert_eq!(reply["count"], json!(3));
    let instances = reply["instances"].as_array().unwrap();
    let errors: Vec<_> = instances.iter().map(|of| of.get("error")).collect();
    assert_eq!(errors, [None, None, Some(&json!("dead"))]);
    let none = vec![(OWN.to_owned(), Ok(None))];
    let merged = (endpoint.merge)(none, &endpoint.asked).unwrap();
    assert_eq!(merged, None);
}

#[test]
fn a_shape_is_not_reported_as_missing_if_a_peer_has_sent_no_valid_reply() {
    let endpoint = endpoint("/api/v1/shapes/00", Vec::new()).unwrap();
    for (reply, why) in [
        (Err("timed out"), "timed out"),
        (Ok(json!([1])), "the reply"),
    ] {
        let mut replies = instance_replies(&[("http://b:1", reply)]);
        replies.insert(0, (OWN.to_owned(), Ok(None)));
        let (status, text) = (endpoint.merge)(replies, &endpoint.asked).unwrap_err();
        assert_eq!(status, StatusCode::BAD_GATEWAY);
        assert!(text.starts_with(&format!("http://b:1: {why}")), "{text}");
    }
}

#[test]
fn heat_maps_with_different_buckets_and_steps_are_merged() {
    let bounds = |number| seawall_stats::Distribution::<8>::bounds_seconds(number);
    let map = |numbers: [usize; 2], columns: Value| json!({ "bounds_seconds": numbers.map(bounds), "columns": columns, "step_seconds": 1 });
    let fine = map(
        [100, 101],
        json!([
            { "at": 20, "seconds": 1, "counts": [[0, 1], [1, 2]] },
            { "at": 21, "seconds": 1, "counts": [[1, 4]] },
        ]),
    );
    let coarse = map(
        [101, 102],
        json!([{ "at": 20, "seconds": 10, "counts": [[0, 8], [1, 16], [9, 99]] }]),
    );
    let replies = [(OWN, Ok(fine)), ("http://b:1", Ok(coarse))];
    let reply = merged("/api/v1/heatmap", &[], &replies);
    assert_eq!(reply["step_seconds"], json!(10));
    let [column] = &reply["columns"].as_array().unwrap()[..] else {
        panic!("{reply}")
    };
    assert_eq!(column["counts"], json!([[0, 1], [1, 14], [2, 16]]));
    assert_eq!(column["seconds"], json!(10));
}

#[test]
fn merged_gauges_have_the_sum_of_clients_and_the_longest_delay() {
    let gauges = |clients: f64, delay: f64| {
        let value = |of: f64| json!({ "max": of, "mean": of, "min": of });
        let gauges = json!({ "client_connections": value(clients), "data_plane_delay_seconds": value(delay) });
        json!({ "step_seconds": 1, "steps": [{ "at": 5, "seconds": 1, "gauges": gauges }] })
    };
    let replies = [
        (OWN, Ok(gauges(3.0, 0.5))),
        ("http://b:1", Ok(gauges(4.0, 0.25))),
    ];
    let reply = merged("/api/v1/gauges", &[], &replies);
    let of = &reply["steps"][0]["gauges"];
    assert_eq!(of["client_connections"]["mean"], json!(7.0));
    assert_eq!(of["data_plane_delay_seconds"]["max"], json!(0.5));
}

#[test]
fn sparklines_that_begin_at_different_times_are_aligned_and_summed() {
    let lines =
        |from: u64, shapes: Value| json!({ "from": from, "step_seconds": 10, "shapes": shapes });
    let replies = [
        (OWN, Ok(lines(110, json!({ "a": [1.0, 2.0] })))),
        (
            "http://b:1",
            Ok(lines(100, json!({ "a": [4.0, 8.0], "b": [16.0, 0.0] }))),
        ),
    ];
    let reply = merged("/api/v1/sparklines", &[], &replies);
    assert_eq!(reply["from"], json!(100));
    assert_eq!(reply["shapes"]["a"], json!([4.0, 9.0, 2.0]));
    assert_eq!(reply["shapes"]["b"], json!([16.0, 0.0, 0.0]));
    let far = [
        (OWN, Ok(lines(0, json!({ "a": [1.0] })))),
        (
            "http://b:1",
            Ok(lines(9_000_000_000_000_000, json!({ "a": [1.0] }))),
        ),
    ];
    let reply = merged("/api/v1/sparklines", &[], &far);
    assert_eq!(
        reply["shapes"]["a"],
        json!([1.0]),
        "an instance with a wrong clock adds no steps"
    );
}

#[test]
fn operations_of_shapes_beyond_the_limit_are_counted_in_the_member_named_other() {
    let shape = |id: &str, count: u64| {
        let bucket = json!({ "count": count, "gt_seconds": 0.001, "le_seconds": 0.00109 });
        json!({ "id": id, "count": count, "distribution": [bucket], "total_time_ms": count })
    };
    let list = |shapes: Value| json!({ "shapes": shapes, "other": { "count": 0 } });
    let replies = [
        (OWN, Ok(list(json!([shape("a", 5), shape("b", 4)])))),
        (
            "http://b:1",
            Ok(list(json!([shape("b", 4), shape("c", 1)]))),
        ),
    ];
    let query = [("limit", "1"), ("sort", "count")];
    let reply = merged("/api/v1/shapes", &query, &replies);
    let shapes = reply["shapes"].as_array().unwrap();
    assert_eq!((shapes.len(), &shapes[0]["id"]), (1, &json!("b")));
    assert_eq!(
        (&shapes[0]["count"], &reply["other"]["count"]),
        (&json!(8), &json!(6))
    );
    assert_eq!(shapes[0].get("distribution"), None);
    assert_eq!(reply["other"].get("distribution"), None);
}

#[test]
fn concurrency_limits_are_summed_and_percentiles_come_from_all_operations() {
    let tick = |bucket: usize, count: u64, limit: Value| {
        let (gt, le) = seawall_stats::Distribution::<8>::bounds_seconds(bucket);
        let bucket = json!({ "count": count, "gt_seconds": gt, "le_seconds": le });
        json!({
            "clients": 1, "concurrency_limit": limit,
            "second": { "count": count, "distribution": [bucket], "max_ms": le * 1e3 },
        })
    };
    let replies = [
        (OWN, Ok(tick(100, 98, json!(8)))),
        ("http://b:1", Ok(tick(140, 2, json!(16)))),
    ];
    let reply = merged("/api/v1/tick", &[], &replies);
    assert_eq!(
        (&reply["clients"], &reply["concurrency_limit"]),
        (&json!(2), &json!(24))
    );
    let second = &reply["second"];
    assert_eq!(second["count"], json!(100));
    let of = |name: &str| second[name].as_f64().unwrap();
    assert!(of("p99_ms") > 10.0 * of("p50_ms"), "{second}");
    assert_eq!(second.get("distribution"), None);
}

#[tokio::test]
async fn an_instance_refuses_a_request_that_it_has_sent_to_itself() {
    let state = Arc::new(state());
    let name = state.fleet.load().name.clone();
    let request = HttpRequest::get("/api/v1/status").header("host", "localhost");
    let request = request.header(INSTANCE_HEADER, name).body(Body::empty());
    let response = router(state).oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
}

/// Large replies to other requests can use all of the memory for replies.
#[tokio::test]
async fn a_peer_is_not_paused_if_no_memory_is_free_for_its_reply() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let peer = Router::new().route("/api/v1/status", get(|| async { "{}" }));
    tokio::spawn(async move { axum::serve(listener, peer).await });
    let fleet = Fleet::new(vec![AdminClient::new(&url, None, None).unwrap()]);
    let all = u32::try_from(MAX_MEMORY_BYTES).unwrap();
    let used_up = Arc::clone(&fleet.memory).try_acquire_many_owned(all);
    let error = async || {
        let (_, reply) = fleet.ask("/api/v1/status").await.remove(0);
        reply.err()
    };
    assert_eq!(error().await.as_deref(), Some(NO_MEMORY));
    drop(used_up);
    assert_eq!(error().await, None);
}

/// A request that waits for the end of other requests has less time for its own reply.
#[tokio::test(start_paused = true)]
async fn a_peer_is_not_paused_after_a_request_that_waited_too_long_for_other_requests() {
    let client = AdminClient::new("http://127.0.0.1:1", None, None).unwrap();
    let fleet = Fleet::new(vec![client]);
    let peer = &fleet.peers[0];
    let all = u32::try_from(MAX_IN_FLIGHT).unwrap();
    let in_flight = peer.places.try_acquire_many(all).unwrap();
    let late = fleet.ask_one(peer, "/api/v1/status").await;
    assert_eq!(late.err().as_deref(), Some(NO_TIME));
    drop(in_flight);
    assert!(peer.state.lock().pause.is_none());
}

#[tokio::test]
async fn a_merged_reply_without_peers_has_the_same_members_as_an_unmerged_reply() {
    let state = Arc::new(state());
    let reply = async |path: &str| -> Value {
        let request = HttpRequest::get(path).header("host", "localhost");
        let request = request.body(Body::empty()).unwrap();
        let response = router(Arc::clone(&state)).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let body = body::to_bytes(response.into_body(), MAX_REPLY_BYTES).await;
        serde_json::from_slice(&body.unwrap()).unwrap()
    };
    for topic in [
        "status",
        "shapes",
        "namespaces",
        "namespaces?since=1h",
        "report",
        "timeline",
        "heatmap",
        "heatmap/shapes",
        "gauges",
        "sparklines",
        "slow",
        "storms",
        "stalls",
        "changes",
        "annotations",
        "clients",
        "pools",
        "servers",
        "topology",
        "config",
        "tick",
    ] {
        let path = format!("/api/v1/{topic}");
        let plain = reply(&path).await;
        let separator = if path.contains('?') { '&' } else { '?' };
        let merged = reply(&format!("{path}{separator}instances=all")).await;
        let members = |of: &Value| -> Vec<String> {
            let members = of.as_object().unwrap().keys();
            members
                .filter(|name| *name != "instances")
                .cloned()
                .collect()
        };
        assert_eq!(members(&plain), members(&merged), "{topic}");
        let instances = merged["instances"].as_array().unwrap();
        let addresses: Vec<_> = instances.iter().map(|of| &of["address"]).collect();
        assert_eq!(addresses, [OWN], "{topic}");
    }
}
