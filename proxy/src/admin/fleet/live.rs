//! The live updates of the dashboard with the figures of all instances together. They are computed
//! once a second for all open dashboards, and only while a dashboard shows these figures.

use std::sync::Arc;

use super::{InstanceReply, OWN, UnparsedReply, endpoints::endpoint, path_of};
use crate::admin::dashboard::{event, interval, tick};
use crate::admin::{AdminState, work};
use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

/// The path at which a peer returns its current numbers.
const TICK: &str = "/api/v1/tick";

/// Computes the merged updates until `stop` is cancelled. Then all streams of merged updates end.
pub(in crate::admin) async fn run(state: Arc<AdminState>, stop: CancellationToken) {
    let mut interval = interval();
    let updates = state.live.merged();
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        if updates.receiver_count() == 0 {
            continue;
        }
        let Some(event) = stop.run_until_cancelled(merged(&state)).await else {
            break;
        };
        if let Some(event) = event {
            updates.send_replace(Some(event));
        }
    }
    updates.send_replace(None);
}

/// The latest update of all instances as an event. `None` if it cannot be computed.
async fn merged(state: &Arc<AdminState>) -> Option<Bytes> {
    let fleet = state.fleet.load_full();
    let endpoint = endpoint(TICK, Vec::new())?;
    let own = work(state, |state| serde_json::to_vec(&tick(state, true))).await;
    let own = own.ok()?.ok()?;
    let own = UnparsedReply {
        bytes: own,
        _memory: None,
    };
    let mut replies: Vec<InstanceReply> = vec![(OWN.to_owned(), Ok(Some(own)))];
    replies.extend(fleet.ask(&path_of(TICK, &endpoint.parameters)).await);
    let merged = fleet.merge(state, endpoint, replies).await.ok()??;
    event(&merged)
}
