//! The wait queue of one user: its operations that wait for a connection or a slot.

use tokio::{sync::oneshot, time::Instant};

use super::{
    CheckOutError,
    demand::{Demand, Need},
    slots::Slot,
};
use crate::limits::TurnQueue;
use seawall_transport::{Sharer, connection::Connection};

/// The result of a wait.
pub(super) type Granted = Result<(Connection, Slot), CheckOutError>;

/// Finds a waiter in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) demand: Demand,
    /// Numbers increase in the order of arrival.
    pub(super) number: u64,
}

/// An operation that waits for a connection or a slot.
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) since: Instant,
    /// When the wait fails with [`super::Overload::TimedOut`].
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Granted>,
}

/// The wait queue of one user: a line for each need.
#[derive(Default)]
pub(super) struct WaitQueue {
    lines: [TurnQueue<Sharer, Waiter>; Need::ALL.len()],
}

impl WaitQueue {
    fn line(&self, need: Need) -> Option<&TurnQueue<Sharer, Waiter>> {
        self.lines.get(need.index())
    }

    fn line_mut(&mut self, need: Need) -> Option<&mut TurnQueue<Sharer, Waiter>> {
        self.lines.get_mut(need.index())
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        let Demand { need, from, .. } = waiter.ticket.demand;
        if let Some(line) = self.line_mut(need) {
            line.push(from, waiter);
        }
    }

    /// Removes and returns the next waiter with this need.
    pub(super) fn pop(&mut self, need: Need) -> Option<Waiter> {
        self.line_mut(need)?.pop()
    }

    /// Removes and returns the next waiter of any need.
    pub(super) fn pop_any(&mut self) -> Option<Waiter> {
        self.lines.iter_mut().find_map(TurnQueue::pop)
    }

    /// The next waiter with this need.
    pub(super) fn peek(&self, need: Need) -> Option<&Waiter> {
        self.line(need)?.peek()
    }

    /// Number of waiters with this need.
    pub(super) fn len_of(&self, need: Need) -> usize {
        self.line(need).map_or(0, TurnQueue::len)
    }

    /// Removes a waiter of another address to make room for a waiter of `from`. Returns `None` if
    /// no address has at least two waiters for a slot more than `from`.
    pub(super) fn make_room(&mut self, from: Sharer) -> Option<Waiter> {
        self.line_mut(Need::Slot)?.make_room(from)
    }

    /// Removes the newest waiter of the address with the most waiters: one for a slot if there is
    /// one.
    pub(super) fn shed(&mut self) -> Option<Waiter> {
        let clients = self.lines.iter_mut().skip(1);
        clients.rev().find_map(TurnQueue::shed)
    }

    /// Arrival time of the oldest waiter; `None` if the queue is empty.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let oldest = self.lines.iter().flat_map(TurnQueue::oldest);
        oldest.map(|waiter| waiter.since).min()
    }

    /// Removes and returns a waiter; `None` if it has been served already.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let Demand { need, from, .. } = ticket.demand;
        let order = |waiter: &Waiter| waiter.ticket.number.cmp(&ticket.number);
        self.line_mut(need)?.remove(from, order)
    }

    /// Removes and returns all waiters whose deadline has passed.
    pub(super) fn remove_expired(&mut self, now: Instant) -> Vec<Waiter> {
        let is_expired = |waiter: &Waiter| waiter.deadline <= now;
        let lines = self.lines.iter_mut();
        lines.flat_map(|line| line.remove_if(is_expired)).collect()
    }

    /// The earliest deadline of all waiters; `None` if the queue is empty.
    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        let all = self.lines.iter().flat_map(TurnQueue::iter);
        all.map(|waiter| waiter.deadline).min()
    }

    pub(super) fn len(&self) -> usize {
        self.lines.iter().map(TurnQueue::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(TurnQueue::is_empty)
    }
}
