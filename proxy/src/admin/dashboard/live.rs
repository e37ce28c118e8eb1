//! `/api/v1/live`: sends the most important numbers every second, as server-sent events. All
//! streams share one computation of the numbers. While there are no streams, nothing is computed.
//! With `instances=all` the numbers cover all instances ([`super::super::fleet`]). `/api/v1/tick`
//! returns the numbers in a single reply.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Query, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::Deserialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::super::{AdminState, Refused, guard::Presented, json, reply, work};
use seawall_stats::{Figures, Label, float};

/// Maximum number of streams of live updates. Each open dashboard page has one stream.
pub(super) const MAX_STREAMS: usize = 32;

/// Time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);

/// The streams of live updates.
#[derive(Debug)]
pub struct Live {
    /// The latest update of this instance, as the bytes of a server-sent event. `None` before the
    /// first update, and after [`run`] has ended.
    updates: watch::Sender<Option<Bytes>>,
    /// The latest update of all instances together, also as the bytes of a server-sent event.
    /// `None` before the first such update, and after `fleet::live::run` has ended.
    merged: watch::Sender<Option<Bytes>>,
    places: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            updates: watch::channel(None).0,
            merged: watch::channel(None).0,
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }
}

impl Live {
    /// The channel of the updates of all instances together.
    pub(in crate::admin) fn merged(&self) -> &watch::Sender<Option<Bytes>> {
        &self.merged
    }
}

/// A timer that fires when an update is due. It skips updates that it has missed.
pub(in crate::admin) fn interval() -> Interval {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

/// Computes the live updates of this instance until `stop` is cancelled. Then all streams of these
/// updates end.
pub(in crate::admin) async fn run(state: Arc<AdminState>, stop: CancellationToken) {
    let mut interval = interval();
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        if state.live.updates.receiver_count() == 0 {
            continue;
        }
        let event = work(&state, |state| {
            let tick = serde_json::to_vec(&tick(state, false)).ok()?;
            event(&tick)
        })
        .await;
        if let Ok(Some(event)) = event {
            state.live.updates.send_replace(Some(event));
        }
    }
    state.live.updates.send_replace(None);
}

#[derive(Deserialize)]
pub(in crate::admin) struct TickOptions {
    #[serde(default)]
    distributions: bool,
}

/// Serves one update. Other instances request it when they merge the updates of all instances.
pub(in crate::admin) async fn latest(
    State(state): State<Arc<AdminState>>,
    Query(options): Query<TickOptions>,
) -> Result<Response, Refused> {
    let tick = move |state: &AdminState| Ok(tick(state, options.distributions));
    reply(&state, tick).await
}

/// The current numbers of this instance, with the figures of the latest second. `is_full` adds the
/// distribution and the maximum of the durations of that second's operations.
pub(in crate::admin) fn tick(state: &AdminState, is_full: bool) -> seawall_api::Tick {
    let now = state.insight.now();
    let second = latest_second(state, is_full);
    let status = state.topology.snapshot();
    let pools: Vec<_> = status.pools.iter().map(|pool| pool.snapshot()).collect();
    let sum =
        |part: fn(&crate::pool::PoolSnapshot) -> usize| json::whole(pools.iter().map(part).sum());
    let limits = pools.iter().map(|pool| pool.concurrency.limit);
    let limit = limits.map(|limit| limit.map(u64::from)).sum();
    seawall_api::Tick {
        at: json::since_epoch(now),
        clients: json::whole(state.clients.count()),
        concurrency_limit: limit,
        draining: state.draining.borrow().is_some(),
        history: state.insight.is_on(),
        in_progress: sum(|pool| pool.concurrency.in_progress),
        second,
        server_connections: seawall_api::Connections {
            available: sum(|pool| pool.available),
            in_use: sum(|pool| pool.in_use),
            pending: sum(|pool| pool.pending),
        },
        storm: state
            .insight
            .storms()
            .first()
            .is_some_and(|storm| storm.ended_at.is_none()),
        uptime_seconds: float(state.started_at.elapsed().as_secs()),
        wait_queue: sum(|pool| pool.wait_queue),
        waiting: sum(|pool| pool.concurrency.waiting),
    }
}

/// The figures of the latest second in the history; `None` if the history has no data for the last
/// three seconds.
fn latest_second(state: &AdminState, is_full: bool) -> Option<seawall_api::TickSecond> {
    let now = state.insight.now();
    let from = now.checked_sub(3 * INTERVAL)?;
    let is_whole = |label: &Label| *label == Label::Whole;
    let timeline = state.insight.timeline(from, now, INTERVAL, &is_whole);
    let (at, period) = timeline.steps.last()?;
    let mut figures = Figures::default();
    period.series.values().for_each(|of| figures.merge(of));
    Some(seawall_api::TickSecond {
        at: float(*at),
        count: figures.count,
        distribution: is_full.then(|| seawall_api::buckets(&figures.durations)),
        errors: figures.errors,
        max_ms: is_full.then(|| seawall_api::millis(figures.durations.max())),
        p50_ms: seawall_api::millis(figures.durations.quantile(0.5)),
        p99_ms: seawall_api::millis(figures.durations.quantile(0.99)),
    })
}

/// Encodes an update, which is JSON, as a server-sent event. `None` if the update is not UTF-8.
pub(in crate::admin) fn event(tick: &[u8]) -> Option<Bytes> {
    let tick = str::from_utf8(tick).ok()?;
    Some(format!("event: tick\ndata: {tick}\n\n").into())
}

/// One stream of live updates. Dropping this value makes room for another stream.
struct Subscription {
    updates: watch::Receiver<Option<Bytes>>,
    state: Arc<AdminState>,
    /// The request that opened the stream. Before each update, Seawall checks again if this request
    /// is admitted.
    request: Parts,
    _place: OwnedSemaphorePermit,
}

impl Subscription {
    /// The next update. `None` if the updates have ended, the dashboard was switched off, or the
    /// caller is no longer admitted.
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        self.updates.changed().await.ok()?;
        let event = self.updates.borrow_and_update().clone()?;
        let presented = Presented::of_parts(&self.request);
        let is_admitted = self.state.has_dashboard() && self.state.admit(&presented).is_ok();
        is_admitted.then_some((Ok(event), self))
    }
}

#[derive(Deserialize)]
pub(super) struct StreamOptions {
    /// `all` selects the updates of all instances. `None` selects the updates of this instance. The
    /// middleware `fleet::respond` refuses other values.
    instances: Option<String>,
}

pub(super) async fn stream(
    State(state): State<Arc<AdminState>>,
    Query(options): Query<StreamOptions>,
    request: Parts,
) -> Response {
    let Ok(place) = Arc::clone(&state.live.places).try_acquire_owned() else {
        let why = format!("all {MAX_STREAMS} live streams are in use: close other dashboards\n");
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let subscription = Subscription {
        updates: match options.instances {
            Some(_) => state.live.merged.subscribe(),
            None => state.live.updates.subscribe(),
        },
        state,
        request,
        _place: place,
    };
    let events = stream::unfold(subscription, Subscription::next);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Body::from_stream(events)).into_response()
}
