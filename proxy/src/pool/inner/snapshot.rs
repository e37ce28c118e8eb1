//! Views of a pool for other modules: its connections, its waits, and the invariants that tests
//! check.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    super::{PoolSnapshot, UserSnapshot, user::User},
    Inner, PoolState,
};
use seawall_auth::Identity;

/// The longest current waits for a connection or a slot.
#[derive(Debug, Default)]
pub struct Waits {
    /// The longest wait of each user that has `max_pool_size` connections, or its full share of the
    /// slots while no slot is free. The waiting operations of such a user wait for other operations
    /// of the same user.
    pub for_own: Vec<(Arc<Identity>, Duration)>,
    /// The longest wait of all other users' operations. These operations wait for the server, or
    /// until connections of other users are closed.
    pub for_others: Duration,
}

impl Inner {
    /// Number of operations that use a connection, or that wait for a connection or a slot.
    pub(in super::super) fn load(&self) -> usize {
        self.waiting + self.in_use
    }

    pub(in super::super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    pub(in super::super) fn max_server_connections(&self) -> usize {
        self.limits.max_server_connections
    }

    /// Returns the longest current waits for a connection or a slot.
    pub(in super::super) fn waits(&self, now: Instant) -> Waits {
        let mut waits = Waits::default();
        if self.waiting == 0 {
            return waits;
        }
        let is_full = self.slots.free() == 0;
        for user in self.users.values() {
            let Some(oldest) = user.waiters.oldest() else {
                continue;
            };
            let wait = now.saturating_duration_since(oldest);
            let id = user.identity.id();
            let has_share = is_full && self.slots.held_by(id) >= self.slots.share_of(id);
            if has_share || user.total() >= self.limits.max_pool_size {
                waits.for_own.push((Arc::clone(&user.identity), wait));
            } else {
                waits.for_others = waits.for_others.max(wait);
            }
        }
        waits
    }

    pub(in super::super) fn snapshot(&self) -> PoolSnapshot {
        let users: Vec<_> = self.users.values().map(UserSnapshot::of).collect();
        PoolSnapshot {
            state: match self.state {
                PoolState::Paused => "paused",
                PoolState::Ready => "ready",
                PoolState::Suspect { .. } => "suspect",
                PoolState::Closed => "closed",
            },
            pending: users.iter().map(|u| u.pending).sum(),
            available: users.iter().map(|u| u.available).sum(),
            in_use: self.in_use,
            wait_queue: self.waiting,
            concurrency: self.slots.snapshot(),
            users,
        }
    }

    /// Checks the invariants that hold between calls.
    #[cfg(test)]
    pub(in super::super) fn check_invariants(&self) {
        use super::super::demand::Need;

        let total: usize = self.users.values().map(User::total).sum();
        assert_eq!(total, self.total, "total counts all connections");
        assert!(
            total <= self.limits.max_server_connections,
            "total is at most max_server_connections"
        );
        let waiting: usize = self.users.values().map(|u| u.waiters.len()).sum();
        let in_use: usize = self.users.values().map(|u| u.in_use).sum();
        assert_eq!(in_use, self.in_use, "in_use counts all connections in use");
        let urgent: usize = self.users.values().map(|u| u.urgent).sum();
        assert_eq!(urgent, self.urgent, "urgent counts all urgent operations");
        let pending: usize = self.users.values().map(|u| u.pending).sum();
        assert_eq!(pending, self.pending, "pending is the sum of all users");
        assert_eq!(waiting, self.waiting, "waiting counts all waiters");
        let limited = |user: &User| {
            user.waiters.len_of(Need::Slot) + user.waiters.len_of(Need::SlotOrReserve)
        };
        self.slots
            .check_invariants(self.users.values().map(limited).sum());
        let mut turns: Vec<_> = self.turns.iter().collect();
        turns.sort_unstable();
        turns.dedup();
        assert_eq!(
            turns.len(),
            self.turns.len(),
            "turns contains each user at most once"
        );
        for (id, user) in &self.users {
            assert_eq!(user.has_turn, turns.binary_search(&id).is_ok());
            assert!(
                user.has_turn || user.waiters.is_empty(),
                "turns contains every user with waiters"
            );
            assert!(
                user.total() <= self.limits.max_with_reserve(),
                "a user has at most max_pool_size connections and the reserve"
            );
            assert!(
                user.pending <= self.limits.max_connecting,
                "a user has at most max_connecting pending connections"
            );
            assert!(
                user.ordinary() <= self.limits.max_pool_size,
                "operations that may not use the reserve have at most max_pool_size connections"
            );
            let is_ready = |need| user.is_ready(need, &self.limits) && self.server_allows(need);
            let has_slot = self.slots.free() > 0;
            let waits_needlessly = is_ready(Need::Nothing)
                || is_ready(Need::LanePermit)
                || (self.slots.has_reserve() && is_ready(Need::SlotOrReserve))
                || (has_slot && is_ready(Need::SlotOrReserve))
                || (has_slot && is_ready(Need::Slot));
            assert!(
                self.state != PoolState::Ready || !waits_needlessly,
                "no operation waits while its user has a connection available and a slot is free"
            );
            for need in [Need::SlotOrReserve, Need::Slot] {
                let is_listed = user.is_listed[need.index()];
                assert_eq!(is_listed, self.ready[need.index()].contains(id));
                assert!(
                    self.state != PoolState::Ready
                        || is_listed
                        || !user.is_ready(need, &self.limits),
                    "all users with waiters and available connections are listed"
                );
            }
        }
    }
}

impl UserSnapshot {
    fn of(user: &User) -> Self {
        Self {
            name: user.identity.name().to_owned(),
            source: user.identity.source().to_owned(),
            pending: user.pending,
            available: user.available.len(),
            in_use: user.in_use,
            wait_queue: user.waiters.len(),
        }
    }
}
