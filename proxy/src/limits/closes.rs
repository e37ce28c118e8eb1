//! Turns to close client connections. If many connections must be closed, for example after a
//! failover, Seawall closes them one after another. So the clients do not all reconnect at the same
//! time.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout};

use super::turns::Turns;
use seawall_locks::Mutex;
use seawall_transport::Sharer;

/// Minimum time between two closes for the same reason. So the closes for one reason usually cause
/// at most a hundred reconnects a second, which do not overload a deployment. Clients that have
/// waited for too long ([`MAX_WAIT_FOR_REPLY`]) are closed without regard to this time.
const CLOSE_INTERVAL: Duration = Duration::from_millis(10);

/// A client that waits for a reply is closed after this time at the latest, even if its turn has
/// not come. Each client has its own limit, between half of this time and this time. With one limit
/// for all clients, those that wait for their turn would all be closed at the same time.
const MAX_WAIT_FOR_REPLY: Duration = Duration::from_secs(30);

/// Number of different limits for the wait. After this many clients, the limits repeat.
const WAIT_STEPS: u32 = 1_500;

/// The turns to close client connections, a separate sequence for each reason. Closes for one
/// reason do not delay closes for another reason.
#[derive(Debug)]
pub(crate) struct Closes {
    /// Turns to close clients because a server refused the keys of their user. Such a client waits
    /// for a reply, so its wait for a turn is bounded ([`MAX_WAIT_FOR_REPLY`]). A client that is
    /// closed for another reason is served until its turn.
    pub(crate) refused_keys: CloseTurns,
    /// Turns to close clients because a new configuration refuses their certificate.
    pub(crate) refused_certificates: CloseTurns,
    /// Turns to close relayed clients because they must leave their server.
    pub(crate) changed_servers: CloseTurns,
    /// Turns to close relayed clients whose server connection has an earlier TLS configuration.
    pub(crate) outdated_relays: CloseTurns,
    /// Turns to close relayed clients because they are idle while Seawall drains.
    pub(crate) drain: CloseTurns,
}

impl Default for Closes {
    fn default() -> Self {
        Self {
            refused_keys: CloseTurns::new(Some(MAX_WAIT_FOR_REPLY)),
            refused_certificates: CloseTurns::new(None),
            changed_servers: CloseTurns::new(None),
            outdated_relays: CloseTurns::new(None),
            drain: CloseTurns::new(None),
        }
    }
}

/// The turns to close client connections for one reason: at most one in each [`CLOSE_INTERVAL`].
/// Waiting sharers (addresses or users) are served round-robin.
#[derive(Debug)]
pub(crate) struct CloseTurns {
    /// Lets only one caller at a time wait for `next`.
    turns: Turns,
    /// The earliest time of the next close; `None` before the first close.
    next: Mutex<Option<Instant>>,
    /// Maximum time for which a client waits for its turn; `None` for no maximum.
    max_wait: Option<Duration>,
    /// Number of waits so far. It selects the limit of the next wait.
    waits: AtomicU32,
}

impl CloseTurns {
    fn new(max_wait: Option<Duration>) -> Self {
        Self {
            turns: Turns::new(1),
            next: Mutex::new(None),
            max_wait,
            waits: AtomicU32::new(0),
        }
    }

    /// Waits for the turn to close a client. Returns true if the caller must close the client now,
    /// and false if `is_due` is false when the turn comes. If there is a maximum wait, each client
    /// has its own limit, from half of the maximum to the maximum. When this limit is reached,
    /// returns true without a turn. Cancel safe: a caller that is dropped, or whose client is not
    /// closed, delays no further close.
    pub(crate) async fn take(&self, sharer: Sharer, is_due: impl Fn() -> bool) -> bool {
        // The future is boxed, so that the future of each connection stays small.
        let in_turn = Box::pin(self.take_in_turn(sharer, is_due));
        match self.max_wait {
            Some(max) => {
                let step = self.waits.fetch_add(1, Ordering::Relaxed) % WAIT_STEPS;
                let limit = max / 2 + max / 2 * step / WAIT_STEPS;
                timeout(limit, in_turn).await.unwrap_or(true)
            }
            None => in_turn.await,
        }
    }

    async fn take_in_turn(&self, sharer: Sharer, is_due: impl Fn() -> bool) -> bool {
        let _turn = self.turns.take(sharer).await;
        if !is_due() {
            return false;
        }
        let next = *self.next.lock();
        if let Some(next) = next {
            sleep_until(next).await;
        }
        let is_due = is_due();
        if is_due {
            *self.next.lock() = Some(Instant::now() + CLOSE_INTERVAL);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures_util::{
        future::{Either, join_all, select},
        poll,
    };

    use super::*;

    fn from(address: u8) -> Sharer {
        Sharer::at(Some([192, 0, 2, address].into()))
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_seawall_closes_for_one_reason_are_closed_one_after_another() {
        let closes = Closes::default();
        let began = Instant::now();
        let together = (0..3).map(|_| closes.changed_servers.take(from(1), || true));
        assert_eq!(join_all(together).await, [true; 3]);
        let expected = CLOSE_INTERVAL * 2..CLOSE_INTERVAL * 3;
        assert!(expected.contains(&began.elapsed()));
        // Closes for another reason do not wait.
        let mut other = Box::pin(closes.refused_keys.take(from(1), || true));
        assert!(poll!(&mut other).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn many_closes_of_one_address_do_not_delay_the_close_of_another_address() {
        let turns = Closes::default().changed_servers;
        let began = Instant::now();
        let crowd = (0..1_000).map(|_| turns.take(from(1), || true));
        let mut crowd = Box::pin(join_all(crowd));
        assert!(poll!(&mut crowd).is_pending());
        let other = Box::pin(turns.take(from(2), || true));
        let first = select(crowd, other).await;
        assert!(matches!(first, Either::Right((true, _))));
        let elapsed = began.elapsed();
        assert!(elapsed < CLOSE_INTERVAL * 4, "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_leave_before_their_close_do_not_delay_the_next_close() {
        let turns = Closes::default().refused_keys;
        let began = Instant::now();
        let take = || Box::pin(turns.take(from(1), || true));
        assert!(take().await);
        let mut leaving: Vec<_> = (0..100).map(|_| take()).collect();
        for client in &mut leaving {
            assert!(poll!(client).is_pending());
        }
        drop(leaving);
        assert!(take().await);
        let expected = CLOSE_INTERVAL..CLOSE_INTERVAL * 2;
        assert!(expected.contains(&began.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn clients_whose_keys_were_refused_are_closed_one_after_another_within_30_s() {
        let turns = Closes::default().refused_keys;
        let began = Instant::now();
        // If each close waited for its turn, all closes would take 100 s.
        let closes = (0..10_000).map(async |_| {
            assert!(turns.take(from(1), || true).await);
            began.elapsed().as_secs()
        });
        let mut per_second = BTreeMap::<_, u32>::new();
        for second in join_all(closes).await {
            *per_second.entry(second).or_default() += 1;
        }
        assert!(
            per_second.keys().all(|second| *second < 30),
            "{per_second:?}"
        );
        let most = per_second.values().max();
        assert!(most.is_some_and(|most| *most <= 800), "{per_second:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_are_no_longer_idle_in_a_drain_are_not_closed_and_delay_no_close() {
        let turns = Closes::default().drain;
        let began = Instant::now();
        let clients = [true, false, false, true];
        let closes = clients.map(|is_idle| turns.take(from(1), move || is_idle));
        assert_eq!(join_all(closes).await, clients);
        let expected = CLOSE_INTERVAL..CLOSE_INTERVAL * 2;
        assert!(expected.contains(&began.elapsed()));
    }
}
