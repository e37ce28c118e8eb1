//! The wait queue of one user: its operations that wait for a connection.

use std::collections::VecDeque;

use tokio::{sync::oneshot, time::Instant};

use super::CheckOutError;
use crate::limits::TurnQueue;
use seawall_transport::{Sharer, connection::Connection};

/// A waiter's number. Numbers increase in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(pub(super) u64);

/// An operation that waits for a connection.
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) since: Instant,
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
    first: VecDeque<Waiter>,
    clients: TurnQueue<Sharer, Waiter>,
}

impl WaitQueue {
    pub(super) fn push(&mut self, asker: Asker, waiter: Waiter) {
        match asker {
            Asker::Client(from) => self.clients.push(from, waiter),
            Asker::Seawall => self.first.push_back(waiter),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Waiter> {
        self.first.pop_front().or_else(|| self.clients.pop())
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
        let next = self.first.front().or_else(|| self.clients.peek());
        next.map(|waiter| waiter.since)
    }

    /// Arrival time of the oldest waiter; `None` if the queue is empty.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let all = self.first.front().into_iter().chain(self.clients.oldest());
        all.map(|waiter| waiter.since).min()
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.first.retain(|waiter| waiter.ticket != ticket);
        self.clients.retain(|waiter| waiter.ticket != ticket);
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.clients.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
