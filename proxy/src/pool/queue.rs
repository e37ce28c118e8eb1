//! The wait queue of one user: its operations that wait for a connection or a slot.
//!
//! Each waiter belongs to a group of clients ([`Sharer`]): usually the clients of one address.

use tokio::{sync::oneshot, time::Instant};

use super::{
    CheckOutError,
    demand::{Demand, Need},
    slots::Slot,
};
use crate::limits::TurnQueue;
use seawall_auth::IdentityId;
use seawall_transport::{Sharer, connection::Connection};

/// The result of a wait for a connection and a slot.
pub(super) type Granted = Result<(Box<Connection>, Slot), CheckOutError>;

/// Identifies a waiter in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) demand: Demand,
    /// The number of the waiter. Numbers increase in the order of arrival.
    pub(super) number: u64,
}

/// An operation that waits for a connection or a slot.
pub(super) struct Waiter {
    pub(super) user: IdentityId,
    pub(super) ticket: Ticket,
    pub(super) since: Instant,
    /// When the wait fails with [`super::Overload::TimedOut`].
    pub(super) deadline: Instant,
    pub(super) grant: oneshot::Sender<Granted>,
}

/// The wait queue of one user: a queue for each need.
#[derive(Default)]
pub(super) struct WaitQueue {
    queues: [TurnQueue<Sharer, Waiter>; Need::ALL.len()],
}

impl WaitQueue {
    fn queue(&self, need: Need) -> Option<&TurnQueue<Sharer, Waiter>> {
        self.queues.get(need.index())
    }

    fn queue_mut(&mut self, need: Need) -> Option<&mut TurnQueue<Sharer, Waiter>> {
        self.queues.get_mut(need.index())
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        let Demand { need, from, .. } = waiter.ticket.demand;
        if let Some(queue) = self.queue_mut(need) {
            queue.push(from, waiter);
        }
    }

    /// Removes and returns the next waiter with this need.
    pub(super) fn pop(&mut self, need: Need) -> Option<Waiter> {
        self.queue_mut(need)?.pop()
    }

    /// Removes and returns the next waiter of any need. Waiters for a slot come first, and commands
    /// of Seawall itself come last.
    pub(super) fn pop_any(&mut self) -> Option<Waiter> {
        self.queues.iter_mut().rev().find_map(TurnQueue::pop)
    }

    /// The next waiter with this need.
    pub(super) fn peek(&self, need: Need) -> Option<&Waiter> {
        self.queue(need)?.peek()
    }

    /// Number of waiters with this need.
    pub(super) fn len_of(&self, need: Need) -> usize {
        self.queue(need).map_or(0, TurnQueue::len)
    }

    /// Number of waiters with this need that belong to the group of clients `from`.
    pub(super) fn len_from(&self, from: Sharer, need: Need) -> usize {
        self.queue(need).map_or(0, |queue| queue.len_of(from))
    }

    /// Removes and returns a waiter of another group of clients, to make room for the group `from`.
    /// A waiter may be removed from a queue only if its group has at least two waiters more in this
    /// queue than `from` has in all queues together. Returns `None` if there is no such waiter. A
    /// waiter with [`Need::SlotOrReserve`], such as a commit, is removed only if no waiter with
    /// another need may be removed.
    pub(super) fn make_room(&mut self, from: Sharer) -> Option<Waiter> {
        let own: usize = self.queues.iter().map(|queue| queue.len_of(from)).sum();
        let mut queues = self.queues_to_shed().into_iter();
        queues.find(|queue| queue.longest() > own + 1)?.shed()
    }

    /// Removes and returns a waiter with this need: the newest waiter of the group of clients that
    /// has the most waiters with this need. `None` if there is no such waiter.
    pub(super) fn shed_of(&mut self, need: Need) -> Option<Waiter> {
        self.queue_mut(need)?.shed()
    }

    /// Removes and returns the newest waiter with this need that belongs to the group of clients
    /// `from`. `None` if there is no such waiter.
    pub(super) fn shed_from(&mut self, from: Sharer, need: Need) -> Option<Waiter> {
        self.queue_mut(need)?.shed_from(from)
    }

    /// Removes and returns a waiter: the newest waiter of the group of clients that has the most
    /// waiters with the same need. A waiter with [`Need::SlotOrReserve`] is removed only if all
    /// waiters of clients have this need. `None` if no client's operation waits.
    pub(super) fn shed(&mut self) -> Option<Waiter> {
        self.queues_to_shed().into_iter().find_map(TurnQueue::shed)
    }

    /// The two queues from which a waiter may be removed to make room. Callers try the first queue
    /// first.
    ///
    /// - The first is the queue for [`Need::LanePermit`] or the queue for [`Need::Slot`]. Seawall
    ///   takes the queue in which a single group of clients has the most waiters.
    /// - The second is the queue for [`Need::SlotOrReserve`]. Other operations may wait for the
    ///   operations in this queue.
    ///
    /// The queue of Seawall's own commands is not included, because these commands come from no
    /// client.
    fn queues_to_shed(&mut self) -> [&mut TurnQueue<Sharer, Waiter>; 2] {
        let [_own, lane, urgent, slot] = &mut self.queues;
        let ordinary = match lane.longest() > slot.longest() {
            true => lane,
            false => slot,
        };
        [ordinary, urgent]
    }

    /// Arrival time of the oldest waiter; `None` if the queue is empty.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.oldest_of(|_| true)
    }

    /// Arrival time of the oldest waiter whose need is included; `None` if there is no such waiter.
    pub(super) fn oldest_of(&self, is_included: impl Fn(Need) -> bool) -> Option<Instant> {
        let needs = Need::ALL.into_iter().filter(|need| is_included(*need));
        let queues = needs.filter_map(|need| self.queue(need));
        let oldest = queues.flat_map(TurnQueue::oldest);
        oldest.map(|waiter| waiter.since).min()
    }

    /// Removes and returns a waiter; `None` if the waiter is no longer in the queue.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let Demand { need, from, .. } = ticket.demand;
        let order = |waiter: &Waiter| waiter.ticket.number.cmp(&ticket.number);
        self.queue_mut(need)?.remove(from, order)
    }

    /// Removes and returns all waiters whose deadline has passed.
    pub(super) fn remove_expired(&mut self, now: Instant) -> Vec<Waiter> {
        let is_expired = |waiter: &Waiter| waiter.deadline <= now;
        let queues = self.queues.iter_mut();
        queues
            .flat_map(|queue| queue.remove_if(is_expired))
            .collect()
    }

    /// The earliest deadline of all waiters; `None` if the queue is empty.
    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        let all = self.queues.iter().flat_map(TurnQueue::iter);
        all.map(|waiter| waiter.deadline).min()
    }

    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(TurnQueue::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(TurnQueue::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &mut WaitQueue, address: u8, need: Need, number: u64) {
        let from = Sharer::at(Some([192, 0, 2, address].into()));
        let demand = Demand {
            need,
            from,
            shape: None,
            waits_since: None,
        };
        let now = Instant::now();
        queue.push(Waiter {
            user: super::super::tests::identity("u").id(),
            ticket: Ticket { demand, number },
            since: now,
            deadline: now,
            grant: oneshot::channel().0,
        });
    }

    fn address(number: u8) -> Sharer {
        Sharer::at(Some([192, 0, 2, number].into()))
    }

    /// The function `make_room` makes room in a full queue for a waiter of another client address.
    #[tokio::test(start_paused = true)]
    async fn make_room_removes_the_newest_waiter_of_the_client_address_with_the_most_waiters() {
        let mut queue = WaitQueue::default();
        (0..4).for_each(|n| push(&mut queue, 1, Need::Slot, n));
        assert!(
            queue.make_room(address(1)).is_none(),
            "an address does not remove its own waiters"
        );
        for expected in [Some(3), Some(2), None] {
            let removed = queue.make_room(address(2));
            assert_eq!(removed.map(|waiter| waiter.ticket.number), expected);
            push(&mut queue, 2, Need::Slot, 9);
        }
        assert_eq!(queue.len(), 5);
    }

    /// Other operations may wait for a commit (`Need::SlotOrReserve`), so commits are removed last.
    #[tokio::test(start_paused = true)]
    async fn make_room_removes_commits_only_if_it_can_remove_no_other_waiter() {
        let mut queue = WaitQueue::default();
        (0..9).for_each(|n| push(&mut queue, 1, Need::SlotOrReserve, n));
        (9..12).for_each(|n| push(&mut queue, 2, Need::Slot, n));
        push(&mut queue, 3, Need::LanePermit, 12);
        assert!(
            queue.make_room(address(1)).is_none(),
            "address 1 has the most waiters of all needs together"
        );
        let removed = queue.make_room(address(4)).unwrap();
        assert_eq!(removed.ticket.number, 11);
        let removed = std::iter::from_fn(|| queue.shed()).take(4);
        let numbers: Vec<_> = removed.map(|waiter| waiter.ticket.number).collect();
        assert_eq!(numbers, [10, 9, 12, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn make_room_removes_a_commit_of_an_address_that_fills_the_queue_with_commits() {
        let mut queue = WaitQueue::default();
        (0..9).for_each(|n| push(&mut queue, 1, Need::SlotOrReserve, n));
        push(&mut queue, 2, Need::Slot, 9);
        let removed = queue.make_room(address(3)).unwrap();
        assert_eq!(removed.ticket.number, 8);
        assert!(
            queue.make_room(address(1)).is_none(),
            "an address does not remove its own waiters"
        );
    }
}
