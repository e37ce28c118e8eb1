//! The live updates of all instances together: computed once a second for all pages, and only while
//! a page shows them.

use std::sync::Arc;

use super::{Answer, OWN, Reply, endpoints::endpoint, path_of};
use crate::admin::dashboard::{event, interval, tick};
use crate::admin::{Window, work};
use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

/// The path at which a peer returns its current numbers.
const TICK: &str = "/api/v1/tick";

/// Computes the merged updates until `stop` is cancelled. Then all streams end.
pub(in crate::admin) async fn run(window: Arc<Window>, stop: CancellationToken) {
    let mut interval = interval();
    let updates = window.live.merged();
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        if updates.receiver_count() == 0 {
            continue;
        }
        let Some(event) = stop.run_until_cancelled(merged(&window)).await else {
            break;
        };
        if let Some(event) = event {
            updates.send_replace(Some(event));
        }
    }
    updates.send_replace(None);
}

/// The latest update of all instances as an event. `None` if it cannot be computed.
async fn merged(window: &Arc<Window>) -> Option<Bytes> {
    let fleet = window.fleet.load_full();
    let endpoint = endpoint(TICK, Vec::new())?;
    let own = work(window, |window| serde_json::to_vec(&tick(window, true))).await;
    let own = own.ok()?.ok()?;
    let own = Reply {
        bytes: own,
        _memory: None,
    };
    let mut answers: Vec<Answer> = vec![(OWN.to_owned(), Ok(own))];
    answers.extend(fleet.ask(&path_of(TICK, &endpoint.parameters)).await);
    let merged = fleet.merge(window, endpoint, answers).await.ok()??;
    event(&merged)
}
