//! Decides which waiter gets a connection and a slot.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

use super::{super::demand::Need, HandOver, Inner, PoolState, Todo};
use crate::observe::CloseReason;
use seawall_auth::IdentityId;

/// While all slots are taken, `Slots::may_exceed` still allows some users to run an operation. A
/// search for such users examines at most this number of users for each need, because the pool is
/// locked during the search.
const MAX_USERS_TRIED: usize = 8;

/// The needs whose waiters are in the lists of `Inner::ready`.
const LIMITED: [Need; 2] = [Need::SlotOrReserve, Need::Slot];

impl Inner {
    /// Returns true if an operation that has just arrived may begin, provided that a connection is
    /// available. To make room, this call may make long operations exempt: they no longer count
    /// towards the concurrency limit, and their slots become free. Waiters get these slots before
    /// the new operation.
    pub(super) fn admit(
        &mut self,
        id: IdentityId,
        need: Need,
        now: Instant,
        todo: &mut Todo,
    ) -> bool {
        if self.state != PoolState::Ready {
            return false;
        }
        let free = self.slots.free();
        if self.slots.make_room(need, now) && self.slots.free() == free {
            return self.server_allows(need);
        }
        if self.slots.free() > free && self.slots.has_waiting() {
            self.fill_slots(now, todo);
            self.use_room(id, todo);
        }
        let user = self.users.get(&id);
        let has_older = user.is_some_and(|user| user.is_ready(need, &self.limits));
        let may_run = self.slots.make_room(need, now) || (!has_older && self.slots.may_exceed(id));
        may_run && self.server_allows(need)
    }

    /// True if an operation with this need may use one more connection to the server. The user's
    /// own limit, `max_pool_size`, is not checked here.
    pub(super) fn server_allows(&self, need: Need) -> bool {
        need != Need::Slot || self.ordinary() < self.limits.max_for_slots()
    }

    /// Number of connections that ordinary operations of all users use. Ordinary operations are all
    /// operations that are not urgent (see the module `reserve`).
    pub(super) fn ordinary(&self) -> usize {
        self.in_use - self.urgent
    }

    /// Hands available connections to waiters. Each waiter gets a connection of its own user. The
    /// order is:
    ///
    /// - Waiters of user `id` that need no slot, as far as [`Self::next_without_slot`] allows.
    /// - Waiters for a slot ([`Self::fill_slots`]). They may belong to any user.
    /// - The other waiters of user `id` that have a permit of the lane.
    pub(super) fn hand_over(&mut self, id: IdentityId, now: Instant, todo: &mut Todo) {
        if self.state != PoolState::Ready || self.waiting == 0 {
            return;
        }
        while let Some(need) = self.next_without_slot(id) {
            self.serve(id, need, now, todo);
        }
        self.list(id);
        self.fill_slots(now, todo);
        // After `fill_slots`, this call serves no more waiters for slots. So waiters with a permit
        // of the lane get the connections that are still available.
        let need = Need::LanePermit;
        while let Some(user) = self.users.get(&id)
            && user.is_ready(need, &self.limits)
        {
            self.serve(id, need, now, todo);
        }
    }

    /// Returns the need of the user's next waiter that needs no slot; `None` if no such waiter can
    /// get a connection now. A command of Seawall itself comes first. An operation that waits for
    /// data and has its permit ([`Need::LanePermit`]) comes next, unless a waiter for a slot is
    /// older.
    fn next_without_slot(&self, id: IdentityId) -> Option<Need> {
        let user = self.users.get(&id)?;
        if user.is_ready(Need::Nothing, &self.limits) {
            return Some(Need::Nothing);
        }
        if !user.is_ready(Need::LanePermit, &self.limits) {
            return None;
        }
        let order = |need| {
            let waiter = user.waiters.peek(need);
            waiter.map(|waiter| (waiter.since, waiter.ticket.number))
        };
        let oldest = LIMITED.into_iter().filter_map(order).min();
        let is_first = oldest.is_none_or(|oldest| order(Need::LanePermit) < Some(oldest));
        is_first.then_some(Need::LanePermit)
    }

    /// Adds a user to lists in `ready`, which has a list for each need. A list gets the user if a
    /// waiter of the user has the list's need, and may use an available connection of the user.
    pub(super) fn list(&mut self, id: IdentityId) {
        let Some(user) = self.users.get_mut(&id) else {
            return;
        };
        for need in LIMITED {
            let index = need.index();
            if user.is_ready(need, &self.limits)
                && let Some(is_listed) = user.is_listed.get_mut(index)
                && !std::mem::replace(is_listed, true)
                && let Some(list) = self.ready.get_mut(index)
            {
                list.push_back(id);
            }
        }
    }

    /// Gives free slots and free reserved slots to the users in `ready`, round-robin. Then serves
    /// the users that are allowed to run an operation although all slots are taken (see
    /// `Slots::may_exceed`).
    pub(super) fn fill_slots(&mut self, now: Instant, todo: &mut Todo) {
        while let Some(need) = self.next_need(now) {
            self.serve_ready(need, 0, now, todo);
        }
        for need in LIMITED {
            let list = self.ready.get(need.index());
            let tries = list.map_or(0, VecDeque::len).min(MAX_USERS_TRIED);
            for _ in 0..tries {
                if !self.slots.is_unequal() {
                    return;
                }
                if !self.server_allows(need) {
                    break;
                }
                let list = self.ready.get(need.index());
                let list = list.filter(|list| !list.is_empty());
                let Some(list) = list else { break };
                // Each search continues where the last search ended, so that repeated searches
                // examine all users.
                self.examined %= list.len();
                let id = list.get(self.examined);
                match id.is_some_and(|id| self.slots.may_exceed(*id)) {
                    true => self.serve_ready(need, self.examined, now, todo),
                    false => self.examined += 1,
                }
            }
        }
    }

    /// The need of the next waiter that can get a slot or a reserved slot. While waiters of both
    /// needs wait for slots, the two needs are served alternately.
    fn next_need(&mut self, now: Instant) -> Option<Need> {
        let [urgent, other] = LIMITED.map(|need| {
            let list = self.ready.get(need.index());
            self.server_allows(need) && list.is_some_and(|list| !list.is_empty())
        });
        if !urgent && !other {
            return None;
        }
        if self.slots.make_room(Need::Slot, now) {
            self.was_urgent = urgent && !(other && self.was_urgent);
            return Some(match self.was_urgent {
                true => Need::SlotOrReserve,
                false => Need::Slot,
            });
        }
        let has_room = urgent && self.slots.make_room(Need::SlotOrReserve, now);
        has_room.then_some(Need::SlotOrReserve)
    }

    /// Removes the user at this position from the list in `ready` for a need, and serves this user.
    /// Adds the user to the list again if another of its waiters can be served.
    fn serve_ready(&mut self, need: Need, position: usize, now: Instant, todo: &mut Todo) {
        let index = need.index();
        let list = self.ready.get_mut(index);
        let Some(id) = list.and_then(|list| list.remove(position)) else {
            return;
        };
        if let Some(user) = self.users.get_mut(&id)
            && let Some(is_listed) = user.is_listed.get_mut(index)
        {
            *is_listed = false;
        }
        self.serve(id, need, now, todo);
        self.list(id);
    }

    /// Hands an available connection of a user to the user's next waiter with this need. If a
    /// connection must not be handed out any more, closes it and tries the next one. After such a
    /// close, establishes new connections if they are needed and there is room.
    fn serve(&mut self, id: IdentityId, need: Need, now: Instant, todo: &mut Todo) {
        let Some(user) = self.users.get_mut(&id) else {
            return;
        };
        let closed_before = todo.close.len();
        let unauthorized = user.is_gone().then_some(CloseReason::Unauthorized);
        while user.is_ready(need, &self.limits)
            && let Some(mut connection) = user.available.pop()
        {
            let perished = self.limits.perished(&connection, self.generation, now);
            let mut reason = unauthorized.or(perished);
            if connection.last_used_at != now && (self.has_ended)(&mut connection) {
                reason = Some(CloseReason::Ended);
            }
            if let Some(reason) = reason {
                self.total -= 1;
                todo.close.push((connection, reason));
                continue;
            }
            let Some(waiter) = user.waiters.pop(need) else {
                user.available.push(connection);
                return;
            };
            user.in_use += 1;
            self.in_use += 1;
            if need.may_use_reserve() {
                user.urgent += 1;
                self.urgent += 1;
            }
            self.waiting -= 1;
            let waited = now.saturating_duration_since(waiter.since);
            let demand = &waiter.ticket.demand;
            let slot = self.slots.take(id, demand, Some(waited), now);
            todo.hand_over.push(HandOver {
                identity: Arc::clone(&user.identity),
                grant: waiter.grant,
                connection,
                slot,
            });
            break;
        }
        if todo.close.len() > closed_before {
            self.use_room(id, todo);
        }
    }
}
