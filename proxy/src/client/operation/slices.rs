//! Operations that wait for data: `getMore` on change streams and tailable cursors.
//!
//! Seawall splits a wait into slices, each with its own `maxTimeMS`. Between two slices, other
//! operations can use the connection. The client sees one wait, which ends with the first documents
//! or after the requested time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::context::{AttemptEnd, Operation};
use crate::pool::{LanePermit, ServerPool};
use seawall_command::Class;
use seawall_stats::Outcome;

/// How long a server waits for data if the client sets no `maxTimeMS`.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// A wait for data at the server that has the operation's cursor.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pool: Arc<ServerPool>,
    until: Instant,
}

/// One slice of a wait: when it began, and how long the server may wait for data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    began: Instant,
    length: Duration,
}

impl Slice {
    /// The `maxTimeMS` of the slice: how long the server waits for data.
    pub(super) fn milliseconds(self) -> u64 {
        u64::try_from(self.length.as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

impl Wait {
    /// The next slice, no longer than `longest`.
    fn slice(&self, longest: Duration, now: Instant) -> Slice {
        Slice {
            began: now,
            length: longest.min(self.until.saturating_duration_since(now)),
        }
    }
}

impl Operation<'_> {
    /// The operation's wait for data; `None` if the operation does not wait for data.
    pub(super) fn wait(&self, began: Instant) -> Option<Wait> {
        if self.command.class != Class::GetMore {
            return None;
        }
        let pin = self.shared.routing.pins.cursor(self.cursor_id()?, began)?;
        let wanted = self.max_time().unwrap_or(DEFAULT_WAIT);
        pin.is_awaiting.then(|| Wait {
            pool: pin.server,
            until: began + wanted,
        })
    }

    /// Waits for a [`LanePermit`]. The number of permits limits how many connections to the server
    /// are used by operations that wait for data. Returns the next slice and the permit. Cancel
    /// safe.
    pub(super) async fn next_slice(&self, wait: &Wait) -> (Slice, LanePermit) {
        let from = (self.identity.id().as_u64(), self.sharer);
        let permit = wait.pool.lane().enter(from).await;
        (wait.slice(permit.slice, Instant::now()), permit)
    }

    /// True if Seawall sends another slice after `slice`, whose result is `ended`. This is so if
    /// `slice` brought no data and did not end early. In addition, the wait must have time left,
    /// the cursor must be open, and Seawall must not be draining.
    pub(super) fn should_continue(&self, wait: &Wait, slice: Slice, ended: &AttemptEnd) -> bool {
        let is_empty = matches!(ended, AttemptEnd::Reply(_, Outcome::Ok, 0));
        let now = Instant::now();
        // If the server replied in less than half of the slice's time, the wait ends. Without this
        // rule, Seawall could send slices in a busy loop.
        let has_waited = now.saturating_duration_since(slice.began) * 2 >= slice.length;
        let is_draining = self.shared.draining.borrow().is_some();
        let cursor = self.cursor_id();
        let is_open =
            || cursor.is_some_and(|id| self.shared.routing.pins.cursor(id, now).is_some());
        is_empty && has_waited && !is_draining && now < wait.until && is_open()
    }
}
