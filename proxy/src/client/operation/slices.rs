//! Operations that wait for data: `getMore` on change streams and tailable cursors.
//!
//! Seawall splits a wait into slices, each with its own `maxTimeMS`. Between two slices, other
//! operations can use the connection. The client sees one wait, which ends with the first documents
//! or after the requested time.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};

use super::{
    context::{AttemptEnd, Operation},
    routing::CheckOutFailure,
};
use crate::{
    observe::Observation,
    pool::{Checkout, LanePermit, Overload, ServerPool},
};
use seawall_command::Class;
use seawall_stats::{Outcome, Phase};

/// How long a server waits for data if the client sets no `maxTimeMS`. Servers have the same
/// default.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// How long a slice that has a permit waits for a connection. The slice then gives the permit back,
/// so that other operations can use the permit.
const PATIENCE: Duration = Duration::from_millis(100);

/// A wait for data at the server that has the operation's cursor.
#[derive(Clone, Debug)]
pub(super) struct DataWait {
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

impl DataWait {
    /// The next slice, no longer than `longest`.
    fn slice(&self, longest: Duration, now: Instant) -> Slice {
        Slice {
            began: now,
            length: longest.min(self.until.saturating_duration_since(now)),
        }
    }
}

impl Operation<'_> {
    /// The operation's wait for data; `None` if the operation does not wait for data. A `getMore`
    /// whose `maxTimeMS` is invalid does not wait: the server refuses it. A `getMore` whose
    /// `maxTimeMS` is 0 does not wait either, if the servers reply to it at once.
    pub(super) fn wait(&self, began: Instant) -> Option<DataWait> {
        if self.command.class != Class::GetMore || self.command.has_invalid_max_time {
            return None;
        }
        if self.has_zero_max_time() {
            let snapshot = self.shared.routing.topology.snapshot();
            if snapshot.description.knows_zero_await() {
                return None;
            }
        }
        let pin = self.shared.routing.pins.cursor(self.cursor_id()?, began)?;
        let wanted = self.max_time().unwrap_or(DEFAULT_WAIT);
        pin.is_awaiting.then(|| DataWait {
            pool: pin.server,
            until: began + wanted,
        })
    }

    /// Waits for the next slice and its connection. If this is not the first slice of the wait
    /// (`is_further`), fails at the end of the wait. Cancel safe.
    ///
    /// # Errors
    /// See [`CheckOutFailure`].
    pub(super) async fn next_slice(
        &self,
        wait: &DataWait,
        is_further: bool,
        observation: &mut Observation<'_>,
    ) -> Result<(Slice, Checkout), CheckOutFailure> {
        let beginning = self.begin_slice(wait, observation);
        match is_further {
            true => timeout_at(wait.until, beginning)
                .await
                .unwrap_or(Err(CheckOutFailure::Overload(Overload::TimedOut))),
            false => beginning.await,
        }
    }

    /// Waits for a [`LanePermit`] and then for a connection. The number of permits limits how many
    /// connections to the server are used by operations that wait for data. Returns the next slice
    /// and the connection, which keeps the permit. Cancel safe.
    ///
    /// While the operation waits for a connection or for the server, it gives the permit back after
    /// [`PATIENCE`]. Otherwise operations that cannot get a connection, for example because their
    /// user uses all of its connections, could hold all permits.
    ///
    /// # Errors
    /// See [`CheckOutFailure`].
    async fn begin_slice(
        &self,
        wait: &DataWait,
        observation: &mut Observation<'_>,
    ) -> Result<(Slice, Checkout), CheckOutFailure> {
        let (mut began, mut paused_since) = (None, None);
        loop {
            observation.enter(Phase::Permit, Instant::now());
            let permit = self.lane_permit(wait, observation, &mut paused_since);
            let permit = permit.await?;
            let now = Instant::now();
            observation.enter(Phase::Checkout, now);
            let began = *began.get_or_insert(now);
            let checking_out = self.check_out(observation, began, true);
            if let Ok(checked_out) = timeout(PATIENCE, checking_out).await {
                let mut checkout = checked_out?;
                let slice = wait.slice(permit.slice, Instant::now());
                checkout.keep_permit(permit);
                return Ok((slice, checkout));
            }
        }
    }

    /// Waits until the server's pool is not paused, and then for a permit of the server's lane.
    /// Fails if the pool is still paused when server selection would fail. `paused_since` is when
    /// this operation first found the pool paused.
    async fn lane_permit(
        &self,
        wait: &DataWait,
        observation: &Observation<'_>,
        paused_since: &mut Option<Instant>,
    ) -> Result<LanePermit, CheckOutFailure> {
        let from = (self.identity.id().as_u64(), self.sharer);
        loop {
            if wait.pool.is_paused() {
                let since = *paused_since.get_or_insert_with(Instant::now);
                let deadline = self.selection_deadline(observation, since);
                let opened = timeout_at(deadline, wait.pool.until_open()).await;
                opened.map_err(|_| CheckOutFailure::NoServer)?;
            }
            tokio::select! {
                permit = wait.pool.lane().enter(from) => return Ok(permit),
                () = wait.pool.until_paused() => {}
            }
        }
    }

    /// True if Seawall sends another slice after `slice`, which ended with `ended`. All of these
    /// must be true: `slice` brought no data and did not end early, the wait has time left, the
    /// cursor is open, and Seawall is not draining.
    pub(super) fn should_continue(
        &self,
        wait: &DataWait,
        slice: Slice,
        ended: &AttemptEnd,
    ) -> bool {
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
