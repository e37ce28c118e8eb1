//! Several instances: a request with `instances=all` gets the merged figures of this instance and
//! of its peers.
//!
//! Seawall builds its own reply first. For this, the request must pass the guard. So a caller
//! without access cannot make Seawall send requests to peers. Then Seawall sends the request to all
//! peers at the same time, with the query that a merge needs. All of this runs on the control plane
//! (the threads that serve no clients), and everything has a limit: the time and the size of a
//! peer's reply, the requests in flight per peer, the memory for all replies, and the number of
//! merges. A peer that did not reply gets no request for some seconds. Otherwise it would delay
//! every further request.

mod endpoints;
mod live;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    body,
    extract::{Query, Request, State},
    http::{Method, StatusCode, Uri, header, uri::PathAndQuery},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::future::join_all;
use seawall_api::{AdminClient, ClientError, INSTANCE_HEADER, percent_encode};
use seawall_locks::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use self::endpoints::{Endpoint, endpoint};
pub(super) use self::live::run;
use super::{AdminState, Refused, insight::NO_SUCH, work};

/// Time limit for a peer's reply. It includes the wait while [`MAX_IN_FLIGHT`] other requests are
/// in flight.
const PEER_LIMIT: Duration = Duration::from_secs(3);

/// Time for which a peer gets no requests after one of these failures: the peer has refused the
/// token, or has sent no complete reply of at most [`MAX_REPLY_BYTES`] in time. No pause follows
/// after other failures: another HTTP error status, a reply that is not valid JSON, a reply for
/// which no memory is free, or a request that ran out of time because it waited for other requests.
const PAUSE: Duration = Duration::from_secs(10);

/// Maximum number of requests in flight to one peer.
const MAX_IN_FLIGHT: usize = 4;

/// Maximum size of the reply of one instance.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// Maximum number of JSON objects in the reply of one instance. A parsed object takes up to a
/// kilobyte of memory, and replies are parsed one at a time.
const MAX_REPLY_OBJECTS: usize = 250_000;

/// Maximum memory for the replies of peers until these replies have been merged, in bytes.
const MAX_MEMORY_BYTES: usize = 64 << 20;

/// Maximum number of requests with `instances=all` that are served at the same time. Further
/// requests wait.
const MAX_MERGED: usize = 8;

/// Number of shapes or namespaces that Seawall requests from each instance, whatever limit the
/// original request has. The number is large, because a shape with much load in all instances
/// together may have little load in each of them. An instance may have more shapes. Its reply about
/// shapes then has the sums of the figures of these further shapes in the member `other`.
const ROWS_OF_INSTANCE: usize = 1_000;

/// The error text if no memory is free for a peer's reply (see [`MAX_MEMORY_BYTES`]).
const NO_MEMORY: &str = "the memory for the replies of peers was used up by other requests";

/// The error text if a request to a peer ran out of time, because [`MAX_IN_FLIGHT`] other requests
/// were in flight.
const NO_TIME: &str = "the time for the reply was used up by the wait for other requests";

/// The name of this instance in merged replies, which list peers by their addresses.
const OWN: &str = "this instance";

/// The other Seawall instances, which `admin.peers` lists.
pub struct Fleet {
    peers: Vec<PeerInstance>,
    /// The random name that this instance sends in its requests to peers. If a request with this
    /// name arrives, this instance has sent the request to itself.
    name: String,
    memory: Arc<Semaphore>,
    requests: Semaphore,
    merges: Semaphore,
}

/// Another Seawall instance.
struct PeerInstance {
    client: AdminClient,
    places: Semaphore,
    state: Mutex<PeerState>,
}

#[derive(Default)]
struct PeerState {
    /// True if the peer turned out to be this instance.
    is_own: bool,
    /// The last error that caused a [`PAUSE`], and the time at which the pause ends. `None` if the
    /// last request caused no pause.
    pause: Option<(Instant, String)>,
}

/// The reply of an instance, not parsed yet.
struct UnparsedReply {
    bytes: Vec<u8>,
    /// Permits for the memory of a peer's reply, one for each byte (see [`MAX_MEMORY_BYTES`]).
    /// `None` for this instance's own reply, and for an empty reply.
    _memory: Option<OwnedSemaphorePermit>,
}

/// The reason why a peer's reply could not be read.
enum FetchError {
    Client(ClientError),
    /// No memory is free for this reply. Replies that wait to be merged hold all of
    /// [`MAX_MEMORY_BYTES`].
    NoMemory,
}

/// An instance's address, and its reply or the reason why its figures are missing. The reply is
/// `None` if the instance has no operations of the requested shape or namespace.
type InstanceReply = (String, Result<Option<UnparsedReply>, String>);

impl Default for Fleet {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.addresses()).finish()
    }
}

impl Fleet {
    /// Creates the fleet. `clients` has one HTTP client for each peer.
    pub(crate) fn new(clients: Vec<AdminClient>) -> Self {
        let peers = clients.into_iter().map(|client| PeerInstance {
            client,
            places: Semaphore::new(MAX_IN_FLIGHT),
            state: Mutex::default(),
        });
        Self {
            peers: peers.collect(),
            name: format!("{:032x}", rand::random::<u128>()),
            memory: Arc::new(Semaphore::new(MAX_MEMORY_BYTES)),
            requests: Semaphore::new(MAX_MERGED),
            merges: Semaphore::new(1),
        }
    }

    /// The addresses of the peers, without this instance's own address.
    pub(super) fn addresses(&self) -> Vec<String> {
        let others = self.peers.iter().filter(|peer| !peer.state.lock().is_own);
        others
            .map(|peer| peer.client.address().to_owned())
            .collect()
    }

    /// Sends a request for a path, with its query, to all peers. Omits the reply of a peer that
    /// turned out to be this instance.
    async fn ask(&self, path: &str) -> Vec<InstanceReply> {
        let replies = join_all(self.peers.iter().map(|peer| self.ask_one(peer, path))).await;
        let replies = replies.into_iter().zip(&self.peers);
        let others = replies.filter(|(_, peer)| !peer.state.lock().is_own);
        let named = others.map(|(reply, peer)| (peer.client.address().to_owned(), reply));
        named.collect()
    }

    async fn ask_one(
        &self,
        peer: &PeerInstance,
        path: &str,
    ) -> Result<Option<UnparsedReply>, String> {
        if let Some((until, error)) = &peer.state.lock().pause
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let mut has_waited = false;
        let reply = timeout(PEER_LIMIT, async {
            let mut place = peer.places.try_acquire().ok();
            if place.is_none() {
                has_waited = true;
                place = peer.places.acquire().await.ok();
            }
            let reply = self.fetch(peer, path).await;
            drop(place);
            reply
        });
        let reply = reply.await;
        let reply = match reply {
            Ok(reply) => reply,
            // This request waited for other requests, so the peer had less than [`PEER_LIMIT`] to
            // reply. So this causes no pause. If the peer does not reply at all, the requests that
            // did not wait cause a pause.
            Err(_) if has_waited => return Err(NO_TIME.to_owned()),
            Err(_) => {
                let address = peer.client.address().to_owned();
                Err(FetchError::Client(ClientError::TimedOut { address }))
            }
        };
        let mut state = peer.state.lock();
        state.pause = None;
        if reply.is_ok() {
            // This instance refuses requests that it has sent to itself, with the HTTP status 421.
            // The peer has accepted this request, so the peer is another instance. If an earlier
            // request got the status 421, an HTTP proxy has sent this status.
            state.is_own = false;
        }
        let error = match reply {
            Ok(reply) => return Ok(Some(reply)),
            // The peer is not the cause, so this causes no pause.
            Err(FetchError::NoMemory) => return Err(NO_MEMORY.to_owned()),
            Err(FetchError::Client(error)) => error,
        };
        let text = match &error {
            ClientError::Unauthorized => {
                "the peer does not accept the token of admin.peer_token_file".to_owned()
            }
            error => error.to_string(),
        };
        match error {
            ClientError::Refused { status: 421, .. } => state.is_own = true,
            ClientError::Refused {
                status: 404, said, ..
            } if said.starts_with(NO_SUCH) => return Ok(None),
            // The peer replied, and refused only this request. So Seawall continues to send
            // requests to the peer.
            ClientError::Refused { .. } => {}
            _ => state.pause = Some((Instant::now() + PAUSE, text.clone())),
        }
        Err(text)
    }

    async fn fetch(&self, peer: &PeerInstance, path: &str) -> Result<UnparsedReply, FetchError> {
        let mut memory: Option<OwnedSemaphorePermit> = None;
        let mut is_short_of_memory = false;
        let mut size = 0;
        let mut reserve = |bytes: usize| {
            size += bytes;
            if size > MAX_REPLY_BYTES {
                return false;
            }
            let wanted = u32::try_from(bytes).unwrap_or(u32::MAX);
            let more = Arc::clone(&self.memory).try_acquire_many_owned(wanted);
            is_short_of_memory = more.is_err();
            let Ok(more) = more else { return false };
            match &mut memory {
                Some(memory) => memory.merge(more),
                None => memory = Some(more),
            }
            true
        };
        let fetched = peer.client.fetch(path, &self.name, &mut reserve).await;
        match fetched {
            Ok(bytes) => Ok(UnparsedReply {
                bytes,
                _memory: memory,
            }),
            Err(_) if is_short_of_memory => Err(FetchError::NoMemory),
            Err(error) => Err(FetchError::Client(error)),
        }
    }

    /// Merges the replies of several instances. One merge runs at a time.
    async fn merge(
        &self,
        state: &Arc<AdminState>,
        endpoint: Endpoint,
        replies: Vec<InstanceReply>,
    ) -> Result<Option<Vec<u8>>, Refused> {
        let _turn = self.merges.acquire().await;
        work(state, move |_| (endpoint.merge)(replies, &endpoint.asked)).await?
    }
}

/// The query parameters of a request, as pairs of a name and a value.
type QueryParameters = Vec<(String, String)>;

/// Middleware that replies to requests with `instances=all`, and refuses requests that this
/// instance has sent to itself. All other requests without `instances` pass unchanged. Requests for
/// `/api/v1/live` pass too, because that endpoint itself handles `instances=all`.
pub(super) async fn respond(
    State(state): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    let fleet = state.fleet.load_full();
    let sender = request.headers().get(INSTANCE_HEADER);
    if sender.is_some_and(|name| name.as_bytes() == fleet.name.as_bytes()) {
        let why = "this instance is its own peer\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    let has_name = |query: &str| query.contains("instances");
    // Check the path first, because the URL of the dashboard's page may have `instances` too.
    let is_api = request.uri().path().starts_with("/api/");
    if !is_api || !request.uri().query().is_some_and(has_name) {
        return next.run(request).await;
    }
    let parameters = Query::<QueryParameters>::try_from_uri(request.uri());
    let Ok(Query(parameters)) = parameters else {
        return refused("the query is invalid");
    };
    let (instances, parameters): (QueryParameters, QueryParameters) = parameters
        .into_iter()
        .partition(|(name, _)| name == "instances");
    match instances.as_slice() {
        [] => return next.run(request).await,
        [(_, all)] if all == "all" => {}
        _ => return refused("instances must be all"),
    }
    if request.method() != Method::GET {
        return refused("an action applies to one instance: send the request to each of them");
    }
    if request.uri().path() == "/api/v1/live" {
        return next.run(request).await;
    }
    match endpoint(request.uri().path(), parameters) {
        Some(endpoint) => respond_for_all(&state, &fleet, endpoint, request, next).await,
        None => refused("this path does not support instances=all: ask each instance separately"),
    }
}

fn refused(why: &str) -> Response {
    (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response()
}

async fn respond_for_all(
    state: &Arc<AdminState>,
    fleet: &Fleet,
    endpoint: Endpoint,
    mut request: Request,
    next: Next,
) -> Response {
    let _place = fleet.requests.acquire().await;
    let path = path_of(request.uri().path(), &endpoint.parameters);
    let Some(uri) = with_path(request.uri(), &path) else {
        return refused("the query is invalid");
    };
    *request.uri_mut() = uri;
    let (head, body) = next.run(request).await.into_parts();
    let body = match body::to_bytes(body, MAX_REPLY_BYTES).await {
        Ok(body) => body,
        Err(error) => return failed(&error.to_string()),
    };
    let own = match head.status {
        StatusCode::OK => Ok(Some(UnparsedReply {
            bytes: body.to_vec(),
            _memory: None,
        })),
        // A peer may have the figures in two cases: this instance does not have the requested shape
        // or namespace (first line), or its history is off (second line).
        StatusCode::NOT_FOUND if body.starts_with(NO_SUCH.as_bytes()) => Ok(None),
        StatusCode::NOT_FOUND => Err(String::from_utf8_lossy(&body).trim().to_owned()),
        _ => return (head, body).into_response(),
    };
    let mut replies = vec![(OWN.to_owned(), own)];
    replies.extend(fleet.ask(&path).await);
    match fleet.merge(state, endpoint, replies).await {
        Ok(Some(merged)) => ([(header::CONTENT_TYPE, "application/json")], merged).into_response(),
        // No instance has figures that can be merged, so the caller gets this instance's response.
        Ok(None) => (head, body).into_response(),
        Err(refused) => refused.into_response(),
    }
}

fn failed(why: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response()
}

/// The path with these parameters as its query.
fn path_of(path: &str, parameters: &[(String, String)]) -> String {
    let pairs = parameters.iter();
    let pairs = pairs.map(|(name, value)| {
        let (name, value) = (percent_encode(name), percent_encode(value));
        format!("{name}={value}")
    });
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

/// The URI with another path and query; `None` if `path` is invalid.
fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}
