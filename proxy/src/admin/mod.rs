//! Serves metrics, health checks and the JSON API over HTTP. Most requests only read snapshots. Two
//! requests have an effect on clients: one starts a drain, the other reloads the configuration.
//! Other requests add annotations, take CPU profiles, begin and end sessions of the dashboard, or
//! start, stop and delete captures.

mod annotations;
mod bounded;
mod captures;
mod dashboard;
mod fleet;
mod guard;
mod insight;
mod json;
mod profile;
mod sessions;
mod sockets;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::IntoFuture as _,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use bson::{RawDocumentBuf, cstr};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::limit::GlobalConcurrencyLimitLayer;

use self::bounded::{BoundedListener, Caller};
pub(crate) use self::{
    bounded::{Admitted, Certificate, Handshake},
    sockets::Sockets,
};
pub use self::{
    dashboard::Live,
    fleet::Fleet,
    guard::{Guard, Role, Token},
    sessions::Sessions,
};
pub use crate::runtime::{Liveness, OccasionalLog};
use crate::{
    captures::Captures,
    observe::{ClientDirectory, Exporter, PROTOBUF, Totals},
    pool,
    pulse::Pulse,
    topology::Topology,
};
use seawall_api::Topic;
use seawall_insight::Insight;
use seawall_stats::{Outcome, float};

/// Maximum number of requests for data, for example for metrics, that are served at the same time.
/// Further requests wait. Actions (for example a reload or a capture) have a separate limit of the
/// same size, but a drain has no limit. The limit is low because a request for metrics takes
/// milliseconds of CPU time.
pub const MAX_REQUESTS: usize = 8;

/// Maximum number of tasks that use the directory of captures at the same time. Further requests
/// for captures wait for at most a second and are then refused; a download that has already begun
/// waits without a limit. The number is lower than [`MAX_REQUESTS`]: if the directory does not
/// respond, these tasks do not end, and other requests must still be served.
pub const MAX_CAPTURE_REQUESTS: usize = 4;

/// Number of rows in a response if the request has no `limit`.
const DEFAULT_LIMIT: usize = 50;

/// Number of slow operations in a response if the request has no `limit`.
const DEFAULT_SLOW: usize = 100;

/// Maximum number of rows in a response. It bounds the memory and the CPU time of a request.
const MAX_LIMIT: usize = 10_000;

/// The parts and the state of Seawall that HTTP requests use.
pub struct AdminState {
    /// The sums of all operations, logins and connections.
    pub totals: Arc<Totals>,
    /// The metrics.
    pub exporter: Arc<Exporter>,
    /// The connected clients.
    pub clients: Arc<ClientDirectory>,
    /// The captures of clients' operations.
    pub captures: Arc<Captures>,
    /// The history, and what Seawall has detected in it: storms of client connections, stalls of
    /// operations, and changes of the load of shapes.
    pub insight: Arc<Insight>,
    /// The pulse, which samples `serverStatus` of each server, or the reason why it is off.
    pub pulse: Result<Arc<Pulse>, &'static str>,
    /// The MongoDB deployment: its servers and the connections to them.
    pub topology: Arc<Topology>,
    /// The deadline of the drain; `None` until a drain starts.
    pub draining: watch::Receiver<Option<Instant>>,
    /// Cancelling this token starts a drain.
    pub drain: CancellationToken,
    /// True if faults are injected for an experiment.
    pub injects_faults: AtomicBool,
    /// The configured mode: `pooled` or `relay`.
    pub mode: &'static str,
    /// Returns the name of the credential source; `auto` until the source is determined.
    pub credentials: Box<dyn Fn() -> &'static str + Send + Sync>,
    /// Returns when each certificate and each revocation list in the TLS files expires.
    pub certificates: Box<dyn Fn() -> Vec<seawall_api::Certificate> + Send + Sync>,
    /// Decides which requests are admitted.
    pub guard: ArcSwap<Guard>,
    /// True if CPU profiles are served.
    pub profiles: AtomicBool,
    /// True if the dashboard is served.
    pub dashboard: AtomicBool,
    /// The browsers that have logged in to the dashboard, with their tokens.
    pub sessions: Sessions,
    /// Limits the log lines about refused actions.
    pub refused_actions: OccasionalLog,
    /// Limits the log lines about refused logins to the dashboard.
    pub refused_logins: OccasionalLog,
    /// The updates that Seawall sends to open dashboards.
    pub live: Live,
    /// The other Seawall instances, which `admin.peers` lists.
    pub fleet: ArcSwap<Fleet>,
    /// The configuration that the API shows: the values in effect, and the values that take effect
    /// at the next start.
    pub configuration: watch::Receiver<Arc<seawall_api::Configuration>>,
    /// The channel for requests to reload the configuration.
    pub reloads: mpsc::Sender<ReloadRequest>,
    /// Limits the number of blocking tasks that run at the same time.
    pub places: Arc<Semaphore>,
    /// Limits the number of tasks that use the directory of captures at the same time.
    pub capture_places: Arc<Semaphore>,
    /// The time at which Seawall started.
    pub started_at: Instant,
    /// Shows whether the threads make progress.
    pub liveness: Liveness,
}

/// A request to read the configuration again.
#[derive(Debug)]
pub struct ReloadRequest {
    /// True if the changes are only reported and not applied.
    pub is_dry_run: bool,
    /// Sent when the reload begins. The message is the receiver of a second channel, which carries
    /// the result of the reload.
    taken: oneshot::Sender<oneshot::Receiver<seawall_api::Reload>>,
}

impl ReloadRequest {
    /// Begins the reload, and returns the channel for its result. `None` if the caller has
    /// disconnected or has waited for too long: then the configuration must not change.
    pub(crate) fn take(self) -> Option<oneshot::Sender<seawall_api::Reload>> {
        let (reply, replied) = oneshot::channel();
        self.taken.send(replied).ok().map(|()| reply)
    }
}

/// Settings of the admin address that are on or off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches {
    /// True if CPU profiles are served.
    pub(crate) profiles: bool,
    /// True if the dashboard is served.
    pub(crate) dashboard: bool,
    /// True if faults are injected for an experiment.
    pub(crate) injects_faults: bool,
}

impl AdminState {
    /// Applies changed settings of the admin address.
    pub(crate) fn configure(&self, switches: Switches, guard: Guard) {
        self.guard.store(Arc::new(guard));
        let stored = [
            (&self.profiles, switches.profiles),
            (&self.dashboard, switches.dashboard),
            (&self.injects_faults, switches.injects_faults),
        ];
        for (stored, value) in stored {
            stored.store(value, Ordering::Relaxed);
        }
    }

    fn has_dashboard(&self) -> bool {
        self.dashboard.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for AdminState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminState").finish_non_exhaustive()
    }
}

/// Serves requests until `stop` is cancelled. `handshake` performs the TLS handshake of each
/// connection.
///
/// # Errors
/// If the listener fails permanently.
pub(crate) async fn serve(
    sockets: Sockets,
    handshake: Handshake,
    state: Arc<AdminState>,
    stop: CancellationToken,
) -> io::Result<()> {
    let ticks = dashboard::run(Arc::clone(&state), stop.clone());
    let merged = fleet::run(Arc::clone(&state), stop.clone());
    let service = router(state).into_make_service_with_connect_info::<Caller>();
    let serving = axum::serve(BoundedListener::new(sockets, Some(handshake)), service)
        .with_graceful_shutdown(stop.cancelled_owned())
        .into_future();
    let (served, (), ()) = futures_util::future::join3(serving, ticks, merged).await;
    served
}

/// Serves only metrics and health checks until `stop` is cancelled.
///
/// # Errors
/// If the listener fails permanently.
pub(crate) async fn serve_metrics(
    sockets: Sockets,
    state: Arc<AdminState>,
    stop: CancellationToken,
) -> io::Result<()> {
    axum::serve(BoundedListener::new(sockets, None), metrics_router(state))
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

/// The routes of the address for metrics. They are open to all callers. The metrics contain names,
/// for example of databases, collections, fields and servers, and the subjects of certificates, but
/// no values of documents or commands.
pub(crate) fn metrics_router(state: Arc<AdminState>) -> Router {
    let metrics = Router::new()
        .route("/metrics", get(metrics))
        .layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS));
    let other = async || {
        let serves = "this address serves only /metrics, /health/live and /health/ready\n";
        (StatusCode::NOT_FOUND, serves)
    };
    let routes = health_routes().merge(metrics).fallback(other);
    routes.with_state(state)
}

fn health_routes() -> Router<Arc<AdminState>> {
    Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
}

/// The routes of the admin address. Health checks are open to all callers; the guard protects all
/// other routes.
pub fn router(state: Arc<AdminState>) -> Router {
    let protected = Router::new()
        .route("/metrics", get(metrics))
        .route("/api/v1/status", get(status))
        .route("/api/v1/shapes", get(insight::shapes))
        .route("/api/v1/shapes/{id}", get(insight::shape))
        .route("/api/v1/namespaces", get(insight::namespaces))
        .route("/api/v1/servers", get(servers))
        .route("/api/v1/timeline", get(insight::timeline))
        .route("/api/v1/heatmap", get(insight::heatmap))
        .route("/api/v1/heatmap/shapes", get(insight::heatmap_shapes))
        .route("/api/v1/gauges", get(insight::gauges))
        .route("/api/v1/sparklines", get(insight::sparklines))
        .route("/api/v1/changes", get(insight::changes))
        .route("/api/v1/stalls", get(insight::stalls))
        .route("/api/v1/report", get(insight::report))
        .route("/api/v1/annotations", get(annotations::list))
        .route("/api/v1/captures", get(captures::list))
        .route("/api/v1/slow", get(slow))
        .route("/api/v1/pools", get(pools))
        .route("/api/v1/topology", get(topology))
        .route("/api/v1/clients", get(clients))
        .route("/api/v1/storms", get(storms))
        .route("/api/v1/config", get(configuration))
        .route("/api/v1/tick", get(dashboard::latest))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&state),
            guard::check,
        ));
    let actions = Router::new()
        .route("/api/v1/profile", get(profile::profile))
        .route("/api/v1/annotations", post(annotations::add))
        .route("/api/v1/captures", post(captures::start))
        .route("/api/v1/captures/{id}", delete(captures::delete))
        .route("/api/v1/captures/{id}/stop", post(captures::stop))
        .route("/api/v1/captures/{id}/content", get(captures::content))
        .route("/api/v1/reload", post(reload))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&state),
            guard::check_action,
        ));
    // The concurrency limits do not apply to this route, so a drain never waits for other requests.
    let drain = Router::new()
        .route("/api/v1/drain", post(drain))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&state),
            guard::check_action,
        ));
    // Actions have a separate limit, because a profile or a reload takes seconds. Requests that
    // only read must not wait for them.
    let actions = actions.layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS));
    let dashboard = dashboard::routes(&state);
    let reading = protected.merge(dashboard.others);
    let reading = reading.layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS));
    let guarded = reading
        .merge(dashboard.sessions)
        .merge(actions)
        .merge(drain);
    // A request to this layer may wait for replies of other instances. The layer is outside of the
    // concurrency limits, so that such a request does not delay other requests.
    let all = middleware::from_fn_with_state(Arc::clone(&state), fleet::respond);
    let guarded = guarded.layer(all);
    health_routes().merge(guarded).with_state(state)
}

/// The liveness check. It fails if the threads have made no progress for ten seconds, because only
/// a restart of the process repairs blocked threads.
async fn live(State(state): State<Arc<AdminState>>) -> (StatusCode, &'static str) {
    match state.liveness.check(Instant::now()) {
        true => (StatusCode::OK, "alive\n"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the threads of Seawall make no progress\n",
        ),
    }
}

async fn ready(State(state): State<Arc<AdminState>>) -> (StatusCode, String) {
    let is_draining = state.draining.borrow().is_some();
    match obstacle(is_draining, &state.topology, (state.credentials)()) {
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        None => (StatusCode::OK, "ready\n".to_owned()),
    }
}

/// The reason why Seawall cannot serve operations now; `None` if it can serve them. `credentials`
/// is the name of the credential source.
pub(crate) fn obstacle(
    is_draining: bool,
    topology: &Topology,
    credentials: &str,
) -> Option<&'static str> {
    if is_draining {
        Some("draining")
    } else if !topology.snapshot().description.is_available() {
        Some("no server of the deployment is available")
    } else if credentials == "auto" {
        Some("Seawall does not know yet if clients must log in")
    } else {
        None
    }
}

async fn metrics(State(state): State<Arc<AdminState>>, headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let wants_protobuf = accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/vnd.google.protobuf"));
    match work(&state, move |state| exposition(state, wants_protobuf)).await {
        Ok(exposition) => exposition,
        Err(failed) => failed.into_response(),
    }
}

/// Updates the gauges of the pools, of the drain and of the readiness. Called for each scrape, and
/// once a second for the export to a collector. `credentials` is the name of the credential source.
pub(crate) fn update_gauges(
    exporter: &Exporter,
    topology: &Topology,
    is_draining: bool,
    credentials: &str,
) {
    // Taking a snapshot updates the pool's gauges. The snapshot itself is not needed.
    for pool in &topology.snapshot().pools {
        drop(pool.snapshot());
    }
    exporter.set_draining(is_draining);
    exporter.set_ready(obstacle(is_draining, topology, credentials).is_none());
}

fn exposition(state: &AdminState, is_protobuf: bool) -> Response {
    let is_draining = state.draining.borrow().is_some();
    let credentials = (state.credentials)();
    update_gauges(&state.exporter, &state.topology, is_draining, credentials);
    if is_protobuf {
        let content_type = [(header::CONTENT_TYPE, PROTOBUF)];
        return (content_type, state.exporter.render_protobuf()).into_response();
    }
    let content_type = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (content_type, state.exporter.render()).into_response()
}

async fn status(State(state): State<Arc<AdminState>>) -> Result<Response, Refused> {
    reply(&state, |state| Ok(status_of(state))).await
}

fn status_of(state: &AdminState) -> seawall_api::Status {
    let snapshot = state.topology.snapshot();
    let pools: Vec<_> = snapshot.pools.iter().map(|pool| pool.snapshot()).collect();
    let sum = |part: fn(&pool::PoolSnapshot) -> usize| json::whole(pools.iter().map(part).sum());
    let namespaces = state.totals.namespaces();
    let outcomes = namespaces.iter().map(|(_, sums)| sums.outcomes);
    let local = outcomes.clone();
    let local = local.filter_map(|counts| counts.get(Outcome::Local.index()).copied());
    let uptime = state.started_at.elapsed();
    let is_draining = state.draining.borrow().is_some();
    let credentials = (state.credentials)();
    seawall_api::Status {
        certificates: (state.certificates)(),
        clients: json::whole(state.clients.count()),
        credentials: credentials.to_owned(),
        deployment: snapshot.description.topology_type.as_str().to_owned(),
        draining: is_draining,
        history: seawall_api::HistoryStatus {
            bytes: json::whole(state.insight.size().bytes),
            on: Some(state.insight.is_on()),
        },
        injects_faults: state.injects_faults.load(Ordering::Relaxed),
        local_operations: local.sum(),
        mode: state.mode.to_owned(),
        not_ready: obstacle(is_draining, &state.topology, credentials).map(str::to_owned),
        operations: outcomes.flatten().sum(),
        server_connections: seawall_api::Connections {
            available: sum(|p| p.available),
            in_use: sum(|p| p.in_use),
            pending: sum(|p| p.pending),
        },
        uptime_seconds: float(uptime.as_secs()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        wait_queue: sum(|p| p.wait_queue),
    }
}

/// Runs a task of some milliseconds on a thread where blocking is allowed. At most [`MAX_REQUESTS`]
/// tasks run at the same time, including tasks whose callers have disconnected.
async fn work<T: Send + 'static>(
    state: &Arc<AdminState>,
    task: impl FnOnce(&AdminState) -> T + Send + 'static,
) -> Result<T, Refused> {
    let place = Arc::clone(&state.places).acquire_owned().await;
    let place = place.map_err(|error| internal_error(&error))?;
    work_in(place, state, task).await
}

/// Runs a task on a thread where blocking is allowed. `place` is free again when the task has
/// ended, even if the caller has disconnected earlier.
async fn work_in<T: Send + 'static>(
    place: OwnedSemaphorePermit,
    state: &Arc<AdminState>,
    task: impl FnOnce(&AdminState) -> T + Send + 'static,
) -> Result<T, Refused> {
    let state = Arc::clone(state);
    let result = tokio::task::spawn_blocking(move || {
        let result = task(&state);
        drop(place);
        result
    });
    result.await.map_err(|error| internal_error(&error))
}

fn internal_error(error: &impl fmt::Display) -> Refused {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
}

/// Computes a reply and serializes it to JSON. Both run on a thread where blocking is allowed,
/// because a reply may have thousands of rows.
async fn reply<T: Serialize>(
    state: &Arc<AdminState>,
    task: impl FnOnce(&AdminState) -> Result<T, Refused> + Send + 'static,
) -> Result<Response, Refused> {
    let write = move |state: &AdminState| task(state).map(|reply| Json(reply).into_response());
    work(state, write).await?
}

/// The status and the text of an error response.
type Refused = (StatusCode, String);

/// The response to an invalid request.
fn bad_request(why: String) -> Refused {
    (StatusCode::BAD_REQUEST, why + "\n")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    limit: Option<usize>,
}

impl Listing {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT)
    }
}

async fn pools(State(state): State<Arc<AdminState>>) -> Json<seawall_api::Pools> {
    Json(pools_of(&state))
}

fn pools_of(state: &AdminState) -> seawall_api::Pools {
    let snapshot = state.topology.snapshot();
    let pools = snapshot.pools.iter();
    let pools = pools.map(|pool| json::pool(pool.address(), &pool.snapshot()));
    seawall_api::Pools {
        pools: pools.collect(),
    }
}

async fn servers(State(state): State<Arc<AdminState>>) -> Json<seawall_api::Servers> {
    let rows = state.totals.servers();
    Json(seawall_api::Servers {
        servers: rows.iter().map(json::server_row).collect(),
    })
}

async fn topology(State(state): State<Arc<AdminState>>) -> Json<seawall_api::Topology> {
    Json(json::topology(&state.topology.snapshot().description))
}

async fn clients(
    State(state): State<Arc<AdminState>>,
    Query(listing): Query<Listing>,
) -> Json<seawall_api::Clients> {
    Json(clients_of(&state, listing.limit()))
}

fn clients_of(state: &AdminState, limit: usize) -> seawall_api::Clients {
    let rows = state.clients.list(limit).into_iter();
    seawall_api::Clients {
        clients: rows.map(json::client).collect(),
        count: json::whole(state.clients.count()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowListing {
    shape: Option<String>,
    limit: Option<usize>,
}

async fn slow(
    State(state): State<Arc<AdminState>>,
    Query(listing): Query<SlowListing>,
) -> Result<Response, Refused> {
    let limit = listing.limit.unwrap_or(DEFAULT_SLOW);
    let slow = move |state: &AdminState| {
        let operations = state
            .totals
            .slow_operations(listing.shape.as_deref(), limit);
        let (threshold, left_out) = state.totals.slow_limits();
        Ok(seawall_api::SlowOperations {
            left_out,
            operations: operations.iter().map(json::slow).collect(),
            threshold_ms: seawall_api::millis(threshold),
        })
    };
    reply(&state, slow).await
}

async fn storms(State(state): State<Arc<AdminState>>) -> Json<seawall_api::Storms> {
    Json(storms_of(&state))
}

fn storms_of(state: &AdminState) -> seawall_api::Storms {
    let storms = state.insight.storms();
    seawall_api::Storms {
        active: storms.first().is_some_and(|storm| storm.ended_at.is_none()),
        learning: state.insight.is_learning_churn(),
        storms: storms.iter().map(json::storm).collect(),
    }
}

/// The query of an action without parameters, which refuses every parameter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

async fn drain(
    State(state): State<Arc<AdminState>>,
    Query(NoParameters {}): Query<NoParameters>,
) -> StatusCode {
    state.drain.cancel();
    StatusCode::ACCEPTED
}

async fn configuration(State(state): State<Arc<AdminState>>) -> Json<seawall_api::Configuration> {
    Json(seawall_api::Configuration::clone(
        &state.configuration.borrow(),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadOptions {
    #[serde(default)]
    dry_run: bool,
}

/// Reads the configuration again. The status is 422 if the new configuration has problems, and 503
/// if Seawall is not able to reload, for example during a drain.
async fn reload(
    State(state): State<Arc<AdminState>>,
    Query(options): Query<ReloadOptions>,
) -> Response {
    match request_reload(&state, options.dry_run).await {
        Some(result) if result.problems.is_empty() => Json(result).into_response(),
        Some(result) => (StatusCode::UNPROCESSABLE_ENTITY, Json(result)).into_response(),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{CANNOT_RELOAD}\n"),
        )
            .into_response(),
    }
}

/// The error text if no reload is possible now.
pub(crate) const CANNOT_RELOAD: &str = "Seawall is draining, or earlier reloads have not ended";

/// Maximum time that a request for a reload waits for earlier reloads. One reload takes up to a
/// minute if file systems, DNS and servers do not respond.
const RELOAD_WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Requests a reload and returns its result. With `is_dry_run`, the changes are only reported.
/// `None` if no reload is possible now, or if a drain begins before the reload has ended.
pub(crate) async fn request_reload(
    state: &AdminState,
    is_dry_run: bool,
) -> Option<seawall_api::Reload> {
    let (taken, mut is_taken) = oneshot::channel();
    let is_draining = state.draining.borrow().is_some();
    if is_draining
        || state
            .reloads
            .try_send(ReloadRequest { is_dry_run, taken })
            .is_err()
    {
        return None;
    }
    let replied = match timeout(RELOAD_WAIT_LIMIT, &mut is_taken).await {
        Ok(replied) => replied.ok()?,
        Err(_) => {
            is_taken.close();
            is_taken.try_recv().ok()?
        }
    };
    // There is no time limit here: a reload limits its own steps, and a caller must not be refused
    // while its reload may still take effect. A drain aborts the reload, which ends this wait.
    replied.await.ok()
}

/// The reply of the command `seawall` about a topic, with at most `limit` rows. `None` if the topic
/// is an action (a reload).
///
/// # Errors
/// The reason why there is no reply, as a text for the client.
pub(crate) async fn describe(
    state: &Arc<AdminState>,
    topic: Topic,
    limit: usize,
) -> Result<Option<RawDocumentBuf>, String> {
    let describe = move |state: &AdminState| {
        let described = match topic {
            Topic::Status => to_bson(&status_of(state)),
            Topic::Pools => to_bson(&pools_of(state)),
            Topic::Clients => to_bson(&clients_of(state, limit)),
            Topic::Shapes => to_bson(&insight::heaviest_shapes(state, limit)),
            Topic::Storms => to_bson(&storms_of(state)),
            Topic::Stalls => to_bson(&insight::all_stalls(state)),
            Topic::Config => to_bson(&**state.configuration.borrow()),
            Topic::Reload => return Ok(None),
        };
        described.map(Some)
    };
    let described = work(state, describe).await;
    described.unwrap_or_else(|(_, reason)| Err(reason))
}

/// Converts a reply of the HTTP API to the BSON reply of the command `seawall`.
pub(crate) fn to_bson(reply: &impl Serialize) -> Result<RawDocumentBuf, String> {
    let document = bson::serialize_to_raw_document_buf(reply);
    let mut document = document.map_err(|error| format!("cannot encode the reply: {error}"))?;
    document.append(cstr!("ok"), 1.0);
    Ok(document)
}
