//! Decides when a pool is paused, ready, suspect or closed, and which connections and waiters end
//! when this state changes.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{
    super::{CheckOutError, slots::ResetCause},
    Inner, Todo,
};
use crate::observe::CloseReason;
use seawall_auth::IdentityId;
use seawall_transport::connection::{Connection, Generation};

/// After the pool has become suspect, it does not become suspect again for this time. A suspect
/// pool hands out no connections. So without this minimum, a client whose commands repeatedly make
/// the server close the connection could block all clients.
const MIN_TIME_BETWEEN_PAUSES: Duration = Duration::from_millis(100);

/// The pool's states in the CMAP specification, and `Suspect`, which is between ready and paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolState {
    Paused,
    Ready,
    /// A connection ended during an operation, and it is not known yet if the server has failed.
    /// The pool hands out no connection in this state, and begins to establish none.
    Suspect {
        since: Instant,
        user: IdentityId,
    },
    Closed,
}

/// The conclusion about a server whose connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// No conclusion, because the connection belongs to an earlier generation of the pool, or
    /// because the pool is paused or closed.
    Outdated,
    /// The server may have failed. The caller has to send a probe.
    Probe,
    /// The server has failed.
    Failed,
}

impl Inner {
    /// Clears the pool: pauses it, closes its available connections and fails its waiters. Returns
    /// `None` and does nothing if `generation` is not the current one, or if the pool is already
    /// paused or closed.
    pub(in super::super) fn clear(&mut self, generation: Generation, now: Instant) -> Option<Todo> {
        let is_open = matches!(self.state, PoolState::Ready | PoolState::Suspect { .. });
        if generation != self.generation || !is_open {
            return None;
        }
        self.generation = generation.next();
        self.state = PoolState::Paused;
        let mut todo = self.empty(CloseReason::Stale, &CheckOutError::Paused, now);
        self.slots.clear(now);
        todo.limit_reset = self.slots.reset(ResetCause::Clear, now);
        Some(todo)
    }

    pub(in super::super) fn ready(&mut self) {
        if self.state == PoolState::Paused {
            self.state = PoolState::Ready;
        }
    }

    /// Records that a connection of `generation` ended during an operation of `user`.
    ///
    /// - The server counts as failed ([`Suspicion::Failed`]) if an available connection has ended
    ///   too, or if another user has made the pool suspect. The caller must then clear the pool.
    ///   This function does not change the pool's state.
    /// - Otherwise, a ready pool becomes suspect: it hands out no connection until the server
    ///   replies to a probe. But the pool stays ready if it last became suspect less than
    ///   [`MIN_TIME_BETWEEN_PAUSES`] ago.
    pub(in super::super) fn suspect(
        &mut self,
        generation: Generation,
        user: IdentityId,
        now: Instant,
        has_ended: impl Fn(&mut Connection) -> bool,
    ) -> Suspicion {
        if generation != self.generation {
            return Suspicion::Outdated;
        }
        let mut available = self.users.values_mut().flat_map(|u| &mut u.available);
        let another_ended = available.any(|connection| has_ended(connection));
        match self.state {
            PoolState::Paused | PoolState::Closed => Suspicion::Outdated,
            PoolState::Suspect { user: other, .. } if other != user => Suspicion::Failed,
            PoolState::Ready | PoolState::Suspect { .. } if another_ended => Suspicion::Failed,
            PoolState::Suspect { .. } => Suspicion::Probe,
            PoolState::Ready => {
                let is_soon = self.last_suspected.is_some_and(|last| {
                    now.saturating_duration_since(last) < MIN_TIME_BETWEEN_PAUSES
                });
                if !is_soon {
                    self.state = PoolState::Suspect { since: now, user };
                    self.last_suspected = Some(now);
                }
                Suspicion::Probe
            }
        }
    }

    /// Records that the server replied to a probe that was sent at `asked_at`. The pool then
    /// becomes ready, unless it is closed or became suspect after `asked_at`.
    pub(in super::super) fn recover(&mut self, asked_at: Instant, now: Instant) -> Todo {
        let mut todo = Todo::default();
        let was_suspect = match self.state {
            PoolState::Paused => false,
            PoolState::Suspect { since, .. } if since <= asked_at => true,
            PoolState::Suspect { .. } | PoolState::Ready | PoolState::Closed => return todo,
        };
        self.state = PoolState::Ready;
        if !was_suspect {
            return todo;
        }
        self.serve_all_users(now, &mut todo);
        todo
    }

    /// True if the pool is paused.
    pub(in super::super) fn is_paused(&self) -> bool {
        self.state == PoolState::Paused
    }

    /// Returns how long the pool has been suspect; `None` if it is not suspect.
    pub(in super::super) fn suspected_for(&self, now: Instant) -> Option<Duration> {
        match self.state {
            PoolState::Suspect { since, .. } => Some(now.saturating_duration_since(since)),
            PoolState::Paused | PoolState::Ready | PoolState::Closed => None,
        }
    }

    pub(in super::super) fn close(&mut self, now: Instant) -> Todo {
        self.state = PoolState::Closed;
        self.empty(CloseReason::PoolClosed, &CheckOutError::Closed, now)
    }

    fn empty(&mut self, reason: CloseReason, error: &CheckOutError, now: Instant) -> Todo {
        let mut todo = Todo::default();
        let mut waiters = Vec::new();
        for user in self.users.values_mut() {
            self.total -= user.available.len();
            todo.close
                .extend(user.available.drain(..).map(|c| (c, reason)));
            user.has_turn = false;
            user.is_listed = Default::default();
            waiters.extend(std::iter::from_fn(|| user.waiters.pop_any()));
        }
        self.fail(waiters, error, now, &mut todo);
        self.turns.clear();
        self.short.clear();
        self.ready.iter_mut().for_each(VecDeque::clear);
        todo
    }
}
