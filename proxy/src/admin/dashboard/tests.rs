//! Tests of the dashboard over HTTP: its sessions, its live updates and the headers of its replies.

use std::time::Duration;

use axum::{
    body::{Body, to_bytes},
    extract::ConnectInfo,
    http::Method,
};
use futures_util::StreamExt as _;
use tokio::time::{Instant, advance, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::super::{Guard, Role, Switches, Token, bounded::Caller, router, tests};
use super::*;

const HOST: (&str, &str) = ("host", "seawall.example:9909");
const JSON: (&str, &str) = ("content-type", "application/json");
const SWITCHES: Switches = Switches {
    profiles: false,
    dashboard: true,
    injects_faults: false,
};

fn guard(secrets: &[&str]) -> Guard {
    let tokens = secrets.iter().map(|secret| Token {
        name: "file".to_owned(),
        secret: (*secret).to_owned(),
        role: Role::Read,
    });
    Guard {
        tokens: tokens.map(Arc::new).collect(),
        allowed_hosts: Vec::new(),
        requires_certificate: false,
    }
}

fn guarded() -> Arc<AdminState> {
    let state = tests::state();
    state.configure(SWITCHES, guard(&["secret"]));
    Arc::new(state)
}

async fn send(
    state: &Arc<AdminState>,
    (method, path): (Method, &str),
    headers: &[(&str, &str)],
    body: &'static str,
) -> Response {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).unwrap();
    router(Arc::clone(state)).oneshot(request).await.unwrap()
}

async fn get_with(state: &Arc<AdminState>, path: &str, headers: &[(&str, &str)]) -> Response {
    send(state, (Method::GET, path), headers, "").await
}

/// The cookie of a new session, as a browser sends it.
async fn log_in(state: &Arc<AdminState>) -> String {
    let begin = (Method::POST, "/api/v1/session");
    let response = send(state, begin, &[HOST, JSON], r#"{"token":"secret"}"#).await;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_session_cookie_of_the_dashboard_has_the_attribute_secure_only_over_tls() {
    let state = guarded();
    for is_encrypted in [false, true] {
        let caller = Caller {
            address: "192.0.2.1:4000".parse().unwrap(),
            is_encrypted,
            certificate: None,
        };
        let request = Request::post("/api/v1/session")
            .header(HOST.0, HOST.1)
            .header(JSON.0, JSON.1)
            .extension(ConnectInfo(caller))
            .body(Body::from(r#"{"token":"secret"}"#))
            .unwrap();
        let response = router(Arc::clone(&state)).oneshot(request).await.unwrap();
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        assert_eq!(cookie.contains("; Secure"), is_encrypted, "{cookie}");
    }
}

/// A browser sends the cookies of all ports of a host to each of these ports.
#[tokio::test]
async fn a_login_to_another_seawall_on_the_same_host_keeps_the_session() {
    let (state, other) = (guarded(), guarded());
    let other_host = ("host", "seawall.example:9910");
    let begin = (Method::POST, "/api/v1/session");
    let response = send(&other, begin, &[other_host, JSON], r#"{"token":"secret"}"#).await;
    let cookies = [
        log_in(&state).await,
        response.headers()[header::SET_COOKIE]
            .to_str()
            .unwrap()
            .to_owned(),
    ];
    let cookies = cookies.map(|cookie| cookie.split(';').next().unwrap().to_owned());
    let names = cookies.each_ref().map(|cookie| cookie.split('=').next());
    assert_ne!(names[0], names[1]);
    let cookies = cookies.join("; ");
    for (state, host) in [(&state, HOST), (&other, other_host)] {
        let named = [host, ("cookie", cookies.as_str())];
        let response = get_with(state, "/api/v1/status", &named).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_session_ends_when_its_token_is_no_longer_valid() {
    let state = guarded();
    let cookie = log_in(&state).await;
    let named = [HOST, ("cookie", cookie.as_str())];
    let status = async |headers: &[(&str, &str)]| {
        let response = get_with(&state, "/api/v1/status", headers).await;
        response.status()
    };
    assert_eq!(status(&named).await, StatusCode::OK);
    let body = get_with(&state, "/api/v1/session", &named).await;
    let body = to_bytes(body.into_body(), 1_000).await.unwrap();
    assert_eq!(&*body, br#"{"role":"read","token_required":true}"#);
    let foreign = ("origin", "http://seawall.example:8080");
    assert_eq!(
        status(&[named[0], named[1], foreign]).await,
        StatusCode::FORBIDDEN
    );
    // The token only has the right to read, so a session of this token may only read too.
    let drain = send(&state, (Method::POST, "/api/v1/drain"), &named, "").await;
    assert_eq!(drain.status(), StatusCode::FORBIDDEN);
    // A reload with the same token keeps the session.
    state.configure(SWITCHES, guard(&["other", "secret"]));
    assert_eq!(status(&named).await, StatusCode::OK);
    state.configure(SWITCHES, guard(&["other"]));
    assert_eq!(status(&named).await, StatusCode::UNAUTHORIZED);
    state.configure(SWITCHES, guard(&["secret"]));
    let end = (Method::DELETE, "/api/v1/session");
    let ended = send(&state, end, &named, "").await;
    assert_eq!(ended.status(), StatusCode::NO_CONTENT);
    assert_eq!(status(&named).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_dashboard_login_needs_a_valid_token_and_a_json_request_from_the_same_origin() {
    let state = guarded();
    let begin = (Method::POST, "/api/v1/session");
    let wrong = send(&state, begin.clone(), &[HOST, JSON], r#"{"token":"x"}"#).await;
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    let valid = r#"{"token":"secret"}"#;
    let foreign = [HOST, JSON, ("sec-fetch-site", "same-site")];
    let refused = send(&state, begin.clone(), &foreign, valid).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    // An HTML form of another page can send `text/plain`, but not JSON. So only JSON is accepted.
    let form = [HOST, ("content-type", "text/plain")];
    let refused = send(&state, begin, &form, valid).await;
    assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test(start_paused = true)]
async fn dashboard_logins_that_are_refused_for_any_reason_are_counted_and_logged_once_a_minute() {
    let state = guarded();
    let requiring = Guard {
        requires_certificate: true,
        ..guard(&["secret"])
    };
    let (wrong, valid) = (r#"{"token":"x"}"#, r#"{"token":"secret"}"#);
    for (new, site, body, status) in [
        (None, "same-origin", wrong, 401),
        (None, "same-site", valid, 403),
        (Some(requiring), "same-origin", valid, 403),
    ] {
        if let Some(new) = new {
            state.configure(SWITCHES, new);
        }
        let begin = (Method::POST, "/api/v1/session");
        let headers = [HOST, JSON, ("sec-fetch-site", site)];
        let refused = send(&state, begin, &headers, body).await;
        assert_eq!(refused.status().as_u16(), status);
    }
    // A request for the caller's rights is no login.
    let asked = get_with(&state, "/api/v1/session", &[HOST]).await;
    assert_eq!(asked.status(), StatusCode::FORBIDDEN);
    // The first refusal was logged, and the next two were not. A minute later, the log line of a
    // further refusal reports three: these two and the further refusal.
    advance(Duration::from_secs(60)).await;
    assert_eq!(state.refused_logins.count(Instant::now()), Some(3));
}

#[tokio::test]
async fn dashboard_files_need_no_token_and_have_a_strict_content_security_policy() {
    let state = guarded();
    for path in ["/", "/assets/app.js"] {
        let response = get_with(&state, path, &[HOST]).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str();
        let policy = policy.unwrap();
        assert!(policy.contains("default-src 'none'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(
            response.headers()[header::X_CONTENT_TYPE_OPTIONS],
            "nosniff"
        );
        assert_eq!(response.headers()[header::REFERRER_POLICY], "no-referrer");
    }
    let state = Arc::new(tests::state());
    let foreign = get_with(&state, "/", &[("host", "evil.example")]).await;
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn no_path_of_the_dashboard_is_served_if_the_dashboard_is_off() {
    let state = guarded();
    let cookie = log_in(&state).await;
    let off = Switches {
        dashboard: false,
        ..SWITCHES
    };
    state.configure(off, guard(&["secret"]));
    let token = ("authorization", "Bearer secret");
    for path in ["/", "/assets/app.js", "/api/v1/session", "/api/v1/live"] {
        let response = get_with(&state, path, &[HOST, token]).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let named = [HOST, ("cookie", cookie.as_str())];
    let status = get_with(&state, "/api/v1/status", &named).await;
    assert_eq!(status.status(), StatusCode::UNAUTHORIZED);
}

/// The next update of a stream; `None` after the end of the stream.
async fn next(
    stream: &mut (impl futures_util::Stream<Item = Result<axum::body::Bytes, axum::Error>> + Unpin),
) -> Option<String> {
    let event = timeout(Duration::from_secs(10), stream.next()).await;
    let event = event.expect("the stream sends an update or ends")?;
    Some(String::from_utf8(event.unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn streams_of_live_updates_are_limited_in_number_and_end_at_logout_and_shutdown() {
    let state = guarded();
    let cookie = log_in(&state).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(Arc::clone(&state), stop.clone()));
    let named = [HOST, ("cookie", cookie.as_str())];
    let token = [HOST, ("authorization", "Bearer secret")];
    let open = async |headers: &[(&str, &str)]| get_with(&state, "/api/v1/live", headers).await;
    let by_session = open(&named).await;
    assert_eq!(
        by_session.headers()[header::CONTENT_TYPE],
        "text/event-stream"
    );
    let mut by_session = by_session.into_body().into_data_stream();
    let mut others = Vec::new();
    for _ in 1..live::MAX_STREAMS {
        others.push(open(&token).await.into_body().into_data_stream());
    }
    assert_eq!(open(&token).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let event = next(&mut by_session).await.unwrap();
    let tick = event.strip_prefix("event: tick\ndata: ").unwrap();
    let tick: seawall_api::Tick = serde_json::from_str(tick.trim_end()).unwrap();
    assert_eq!(tick.second.map(|second| second.count), Some(20));
    assert!(tick.history && tick.storm);
    state.configure(SWITCHES, guard(&["secret", "other"]));
    assert!(next(&mut by_session).await.is_some());
    let end = (Method::DELETE, "/api/v1/session");
    send(&state, end, &named, "").await;
    assert_eq!(next(&mut by_session).await, None);
    drop(by_session);
    // The end of a stream makes room for another stream.
    assert_eq!(open(&token).await.status(), StatusCode::OK);
    stop.cancel();
    running.await.unwrap();
    let mut other = others.pop().unwrap();
    while next(&mut other).await.is_some() {}
}
