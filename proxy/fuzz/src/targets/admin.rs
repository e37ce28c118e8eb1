//! The target `admin`: passes HTTP requests to the router of the admin address, which calls the
//! handlers of Seawall's routes.
//!
//! Input, in this order:
//!
//! - one byte that selects whether a token is required;
//! - a request as text: `METHOD TARGET` on the first line, one header per line, an empty line, the
//!   body.

use std::{
    mem::ManuallyDrop,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    http::{Request, StatusCode, header},
};
use seawall::{
    admin::{
        AdminState, Guard, Live, Liveness, MAX_CAPTURE_REQUESTS, MAX_REQUESTS, OccasionalLog, Role,
        Sessions, Token, router,
    },
    captures::Captures,
    observe::{self, Observer, Recorder, outcome_of},
    pool,
    topology::{self, DeploymentOptions, Topology},
};
use seawall_auth::NonceSource;
use seawall_command::CommandBytes;
use seawall_command::{ReplyFacts, ReplyForm};
use seawall_insight::{Clock, Insight, Second};
use seawall_transport::connection::Connector;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::{Semaphore, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::{choices::Choices, documents};

/// The token that protected requests must send if a token is required.
const TOKEN: &str = "token";

/// A host name that requests without a token may use.
const ALLOWED_HOST: &str = "seawall.internal";

/// Maximum size of a response. A response about `OPERATIONS` operations is far smaller.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Number of operations that are recorded before the first request. Responses contain their
/// statistics.
const OPERATIONS: u8 = 40;

/// Checks that no request causes an internal error, that a JSON body is an object or empty, and
/// that no forbidden request succeeds. If a token is required, a request without the token is
/// forbidden. Otherwise, a request from another site or to an unknown host is forbidden. Health
/// checks are never forbidden.
pub fn admin(data: &[u8]) {
    let mut choices = Choices::new(data);
    let needs_token = choices.bool();
    let Some(request) = parse_request(choices.rest()) else {
        return;
    };
    FIXTURE.with(|fixture| fixture.check(request, needs_token));
}

fn parse_request(text: &[u8]) -> Option<Request<Body>> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let (method, target) = std::str::from_utf8(lines.next()?).ok()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target);
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        request = request.header(name, value.get(1..)?.trim_ascii());
    }
    let body: Vec<_> = lines.collect();
    request.body(Body::from(body.join(&b'\n'))).ok()
}

thread_local! {
    // The fixture is never dropped, because at the end of a thread the thread-local state of its
    // runtime may already be gone.
    static FIXTURE: ManuallyDrop<Fixture> = ManuallyDrop::new(Fixture::new());
}

/// Two routers: one requires a token, the other does not. Their responses contain the statistics of
/// some recorded operations. The deployment in the responses has no running server.
struct Fixture {
    runtime: Runtime,
    with_token: Router,
    without_token: Router,
}

/// The properties of a request that decide access.
struct Access {
    is_health: bool,
    has_token: bool,
    is_evil: bool,
    is_other_site: bool,
}

impl Access {
    fn of(request: &Request<Body>) -> Self {
        let text = |name: &str| request.headers().get(name)?.to_str().ok();
        // The header `host` is a name, optionally with a user before it and a port after it.
        let host = text("host").map(|host| host.rsplit('@').next().unwrap_or_default());
        let host = host.map(|host| host.split(':').next().unwrap_or_default());
        Self {
            is_health: request.uri().path().starts_with("/health/"),
            has_token: text("authorization") == Some("Bearer token"),
            is_evil: host.is_some_and(|host| host.contains("evil")),
            is_other_site: text("sec-fetch-site") == Some("cross-site"),
        }
    }

    fn must_be_refused(&self, needs_token: bool) -> bool {
        let is_refused = match needs_token {
            true => !self.has_token,
            false => self.is_other_site || self.is_evil,
        };
        !self.is_health && is_refused
    }
}

impl Fixture {
    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime of one thread can be built");
        let parts = runtime.block_on(Parts::new());
        let state = |token: Option<&str>| {
            let token = token.map(str::to_owned);
            router(Arc::new(parts.state(token, runtime.handle())))
        };
        Self {
            with_token: state(Some(TOKEN)),
            without_token: state(None),
            runtime,
        }
    }

    fn check(&self, request: Request<Body>, needs_token: bool) {
        let access = Access::of(&request);
        let line = format!("{} {}", request.method(), request.uri());
        let router = match needs_token {
            true => self.with_token.clone(),
            false => self.without_token.clone(),
        };
        let (status, content_type, body) = self.runtime.block_on(async {
            let response = router
                .oneshot(request)
                .await
                .expect("the router does not fail");
            let (head, body) = response.into_parts();
            let body = to_bytes(body, MAX_RESPONSE_BYTES).await;
            let content_type = head.headers.get(header::CONTENT_TYPE).cloned();
            (
                head.status,
                content_type,
                body.expect("the response is bounded"),
            )
        });
        let is_unready = status == StatusCode::SERVICE_UNAVAILABLE && access.is_health;
        assert!(!status.is_server_error() || is_unready, "{line}: {status}");
        assert!(
            !status.is_success() || !access.must_be_refused(needs_token),
            "{line}"
        );
        if content_type.is_some_and(|kind| kind == "application/json") {
            check_json(&body, &line);
        }
    }
}

fn check_json(body: &Bytes, line: &str) {
    if !body.is_empty() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(body);
        assert!(parsed.is_ok_and(|value| value.is_object()), "{line}");
    }
}

/// The parts of Seawall that the admin routes read.
struct Parts {
    observer: Observer,
    insight: Arc<Insight>,
    topology: Arc<Topology>,
    draining: watch::Sender<Option<Instant>>,
}

impl Parts {
    async fn new() -> Self {
        let observer = Observer::new(
            observe::ObserverSettings {
                counts_shapes: true,
                max_shapes: 100,
                name_key: None,
                max_namespaces: 100,
                keeps_seconds: true,
            },
            None,
        );
        let observer = observer.expect("the settings are valid");
        let now = SystemTime::now();
        let settings = seawall_insight::InsightSettings {
            is_on: true,
            directory: None,
            max_bytes: 1 << 20,
            max_shapes: 50,
        };
        let clock = Clock::new(move || now);
        let insight = Insight::open(settings, clock);
        let insight = Arc::new(insight.expect("there is no file to open"));
        fill(&observer, &insight, now);
        Self {
            topology: topology(&observer.recorder).await,
            observer,
            insight,
            draining: watch::Sender::new(None),
        }
    }

    fn state(&self, token: Option<String>, runtime: &Handle) -> AdminState {
        AdminState {
            totals: Arc::clone(&self.observer.totals),
            exporter: Arc::clone(&self.observer.exporter),
            clients: Arc::clone(&self.observer.clients),
            // Captures are off, so each request for a capture is refused.
            captures: Arc::new(Captures::new(None, Box::new(Vec::new))),
            insight: Arc::clone(&self.insight),
            pulse: Err("it is off"),
            topology: Arc::clone(&self.topology),
            draining: self.draining.subscribe(),
            drain: CancellationToken::new(),
            injects_faults: false.into(),
            mode: "pooled",
            credentials: Box::new(|| "none"),
            certificates: Box::new(Vec::new),
            guard: Arc::new(Guard {
                requires_certificate: false,
                tokens: (token.into_iter())
                    .map(|secret| Token {
                        name: "token".to_owned(),
                        secret,
                        role: Role::Act,
                    })
                    .map(Arc::new)
                    .collect(),
                allowed_hosts: vec![ALLOWED_HOST.to_owned()],
            })
            .into(),
            // Profiles are off, because a profile takes seconds.
            profiles: false.into(),
            // The dashboard is off, because its stream of updates never ends.
            dashboard: false.into(),
            sessions: Sessions::default(),
            refused_actions: OccasionalLog::default(),
            refused_logins: OccasionalLog::default(),
            live: Live::default(),
            fleet: Default::default(),
            configuration: watch::Sender::new(Arc::default()).subscribe(),
            // Nothing receives the requests for a reload, so each request gets the status 503.
            reloads: mpsc::channel(1).0,
            places: Arc::new(Semaphore::new(MAX_REQUESTS)),
            capture_places: Arc::new(Semaphore::new(MAX_CAPTURE_REQUESTS)),
            started_at: Instant::now(),
            liveness: Liveness::of(runtime.clone(), runtime.clone()),
        }
    }
}

/// Records [`OPERATIONS`] operations, with times in the last few minutes before `now`.
fn fill(observer: &Observer, insight: &Insight, now: SystemTime) {
    let reply = documents::encode(&bson::doc! { "n": 1, "ok": 1.0 });
    for second in 0..OPERATIONS {
        let choices: Vec<u8> = (second..second.saturating_add(30)).collect();
        let body = documents::encode(&documents::command(&choices, 1, false));
        let input = CommandBytes::of_body(&body);
        let began = Instant::now();
        let mut observation = observer.recorder.begin(&input, body.len(), began);
        let facts = ReplyFacts::of(ReplyForm::Plain, &reply);
        observation.record_reply(&facts, began);
        let ended = began + Duration::from_millis(second.into());
        observation.finish(outcome_of(&facts), ended);
        let ago = Duration::from_secs(u64::from(OPERATIONS - second) * 7);
        let (series, whole) = observer.totals.take_second();
        let measured = Second {
            series,
            whole,
            ..Second::default()
        };
        insight.add(measured, now - ago);
    }
}

/// Returns a deployment whose servers are never probed.
async fn topology(recorder: &Arc<Recorder>) -> Arc<Topology> {
    let second = Duration::from_secs(1);
    let options = DeploymentOptions::parse("mongodb://127.0.0.1:1", second).await;
    let options = options.expect("the connection string is valid");
    let settings = topology::TopologySettings {
        local_threshold: second,
        heartbeat_frequency: second,
        pool: pool::PoolLimits {
            max_pool_size: 1,
            min_pool_size: 0,
            max_server_connections: 1,
            max_connecting: 1,
            concurrency: pool::Concurrency::Off,
            connections_per_second: None,
            max_exempt_operations: None,
            max_idle_time: None,
            max_life_time: None,
            wait_queue_timeout: second,
            wait_queue_size: 1,
            renewal: None,
        },
        closes_outdated_relays: false,
    };
    let nonces = NonceSource::new().expect("the system has random bytes");
    let connector = Connector::new(None, Vec::new(), second, Arc::new(nonces));
    let handle = Handle::current();
    let recorder = Arc::clone(recorder);
    let topology = Topology::start(
        options,
        settings,
        connector,
        recorder,
        handle.clone(),
        handle,
    );
    topology.close();
    topology
}
