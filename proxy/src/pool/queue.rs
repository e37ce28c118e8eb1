//! The wait queue of one user: its operations that wait for a connection.

use tokio::{sync::oneshot, time::Instant};

use super::CheckOutError;
use crate::limits::TurnQueue;
use seawall_transport::{Sharer, connection::Connection};

/// Finds a waiter in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) asker: Asker,
    /// Numbers increase in the order of arrival.
    pub(super) number: u64,
}

/// An operation that waits for a connection.
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) since: Instant,
    /// When the wait fails with [`super::Overload::TimedOut`].
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Result<Connection, CheckOutError>>,
}

/// The requester of a connection. It determines the order in which waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A client. The addresses of a user's clients are served in turn.
    Client(Sharer),
    /// Seawall itself, which is served before all clients. It has at most one request for each user
    /// at a time.
    Seawall,
}

/// The wait queue of one user.
#[derive(Default)]
pub(super) struct WaitQueue {
    first: TurnQueue<(), Waiter>,
    clients: TurnQueue<Sharer, Waiter>,
}

impl WaitQueue {
    pub(super) fn push(&mut self, waiter: Waiter) {
        match waiter.ticket.asker {
            Asker::Client(from) => self.clients.push(from, waiter),
            Asker::Seawall => self.first.push((), waiter),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Waiter> {
        self.first.pop().or_else(|| self.clients.pop())
    }

    /// Removes a waiter of another address to make room for a waiter of `from`. Returns `None` if
    /// no address has at least two waiters more than `from`.
    pub(super) fn make_room(&mut self, from: Sharer) -> Option<Waiter> {
        self.clients.make_room(from)
    }

    /// Removes the newest waiter of the address with the most waiters.
    pub(super) fn shed(&mut self) -> Option<Waiter> {
        self.clients.shed()
    }

    /// Arrival time of the waiter that is served next; `None` if the queue is empty.
    pub(super) fn next_since(&self) -> Option<Instant> {
        let next = self.first.peek().or_else(|| self.clients.peek());
        next.map(|waiter| waiter.since)
    }

    /// Arrival time of the oldest waiter; `None` if the queue is empty.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let all = self.first.oldest().chain(self.clients.oldest());
        all.map(|waiter| waiter.since).min()
    }

    /// Removes and returns a waiter; `None` if it has been served already.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let order = |waiter: &Waiter| waiter.ticket.number.cmp(&ticket.number);
        match ticket.asker {
            Asker::Client(from) => self.clients.remove(from, order),
            Asker::Seawall => self.first.remove((), order),
        }
    }

    /// Removes and returns all waiters whose deadline has passed.
    pub(super) fn remove_expired(&mut self, now: Instant) -> Vec<Waiter> {
        let is_expired = |waiter: &Waiter| waiter.deadline <= now;
        let mut expired = self.first.remove_if(is_expired);
        expired.extend(self.clients.remove_if(is_expired));
        expired
    }

    /// The earliest deadline of all waiters; `None` if the queue is empty.
    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        let all = self.first.iter().chain(self.clients.iter());
        all.map(|waiter| waiter.deadline).min()
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.clients.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
