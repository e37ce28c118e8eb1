//! What is refused or held: bounds on clients, handshakes and operations, each a permit that ends by itself.

mod descriptors;
mod gate;
mod lateness;
mod parking;
mod rates;

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::Instant,
};

use self::rates::Rates;
pub use self::{
    descriptors::raise_descriptor_limit,
    gate::{Gate, LOOK_EVERY},
    lateness::{BEAT, Lateness},
    parking::gather_wake_ups,
};

/// Time between two clients that Seawall closes of its own accord: a hundred reconnects a second can be borne.
const CLOSE_INTERVAL: Duration = Duration::from_millis(10);

/// Bounds shared by all clients.
#[derive(Debug)]
pub struct Limits {
    clients: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    relays: Arc<Semaphore>,
    operations: OperationPlaces,
    arrivals: Option<Rates<IpAddr>>,
    logins: Option<Rates<(String, String)>>,
    next_close: Mutex<Option<Instant>>,
}

/// The places of operations under way.
#[derive(Clone, Debug)]
pub struct OperationPlaces {
    free: Arc<Semaphore>,
    all: usize,
}

impl OperationPlaces {
    /// So many at a time.
    pub fn new(max_operations: usize) -> Self {
        let all = max_operations.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(all)),
            all,
        }
    }

    /// Operations that have a place now.
    pub fn in_flight(&self) -> usize {
        self.all - self.free.available_permits()
    }
}

/// One connected client's place.
#[derive(Debug)]
#[must_use]
pub struct ClientPermit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// A client's place among those that have not logged in yet.
#[derive(Debug)]
#[must_use]
pub struct HandshakePermit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// A pooled client's place among those that are relayed for their mechanisms' sake.
#[derive(Debug)]
#[must_use]
pub struct RelayPermit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// One operation's place.
#[derive(Debug)]
#[must_use]
pub struct Permit<'a>(#[expect(dead_code, reason = "held for its drop")] SemaphorePermit<'a>);

impl Limits {
    /// So many at a time.
    pub fn new(
        max_clients: usize,
        max_handshakes: usize,
        max_relays: usize,
        operations: OperationPlaces,
    ) -> Self {
        let semaphore = |n: usize| Semaphore::new(n.min(Semaphore::MAX_PERMITS));
        Self {
            clients: Arc::new(semaphore(max_clients)),
            handshakes: Arc::new(semaphore(max_handshakes)),
            relays: Arc::new(semaphore(max_relays)),
            operations,
            arrivals: None,
            logins: None,
            next_close: Mutex::new(None),
        }
    }

    /// With rates: connections a second from each address, and logins a second of each user; `None` is no limit.
    #[must_use]
    pub fn with_rates(self, per_address: Option<u32>, per_user: Option<u32>) -> Self {
        Self {
            arrivals: per_address.map(Rates::new),
            logins: per_user.map(Rates::new),
            ..self
        }
    }

    /// Whether one more client may come from this address now. Of IPv6, what a host has for itself counts as one.
    pub fn admits_arrival(&self, ip: IpAddr, now: Instant) -> bool {
        let network = match ip {
            IpAddr::V4(_) => ip,
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        };
        let rates = self.arrivals.as_ref();
        rates.is_none_or(|rates| rates.admit(&network, now))
    }

    /// Whether one more login of a user may begin now without waiting.
    pub fn admits_login(&self, name: &str, source: &str, now: Instant) -> bool {
        let rates = self.logins.as_ref();
        rates.is_none_or(|rates| rates.admit(&(name.to_owned(), source.to_owned()), now))
    }

    /// When a login of a user may begin, if it has to wait for its turn: it is delayed, never refused.
    pub fn login_turn(&self, name: &str, source: &str, now: Instant) -> Option<Instant> {
        let turn = self
            .logins
            .as_ref()?
            .turn(&(name.to_owned(), source.to_owned()), now);
        (turn > now).then_some(turn)
    }

    /// A place for one more client, if there is one.
    pub fn admit_client(&self) -> Option<ClientPermit> {
        Arc::clone(&self.clients)
            .try_acquire_owned()
            .ok()
            .map(ClientPermit)
    }

    /// A place for one more client that has not logged in, if there is one.
    pub fn admit_handshake(&self) -> Option<HandshakePermit> {
        Arc::clone(&self.handshakes)
            .try_acquire_owned()
            .ok()
            .map(HandshakePermit)
    }

    /// A place for one more pooled client that is relayed, if there is one.
    pub fn admit_relay(&self) -> Option<RelayPermit> {
        let permit = Arc::clone(&self.relays).try_acquire_owned();
        permit.ok().map(RelayPermit)
    }

    /// A place for an operation at once, if there is one.
    pub fn try_admit(&self) -> Option<Permit<'_>> {
        self.operations.free.try_acquire().ok().map(Permit)
    }

    /// A place for an operation, in order of arrival.
    pub async fn admit(&self) -> Permit<'_> {
        Permit(
            self.operations
                .free
                .acquire()
                .await
                .expect("the semaphore is never closed"),
        )
    }

    /// When the caller may close a client: turns are spread out, so that closes make no storm.
    pub fn closing_turn(&self, now: Instant) -> Instant {
        let mut next = self.next_close.lock();
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn + CLOSE_INTERVAL);
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn places_come_free_when_their_permits_end() {
        let limits = Limits::new(1, 1, 1, OperationPlaces::new(1));
        let client = limits.admit_client().unwrap();
        assert!(limits.admit_client().is_none());
        drop(client);
        assert!(limits.admit_client().is_some());
        let operation = limits.try_admit().unwrap();
        assert!(limits.try_admit().is_none());
        assert_eq!(limits.operations.in_flight(), 1);
        drop(operation);
        assert_eq!(limits.operations.in_flight(), 0);
        let _operation = limits.admit().await;
    }

    #[tokio::test(start_paused = true)]
    async fn closes_are_spread_out() {
        let limits = Limits::new(1, 1, 1, OperationPlaces::new(1));
        let now = Instant::now();
        let turns: Vec<_> = (0..3).map(|_| limits.closing_turn(now) - now).collect();
        assert_eq!(turns, [Duration::ZERO, CLOSE_INTERVAL, CLOSE_INTERVAL * 2]);
    }
}
