//! What is refused or held: bounds on clients, handshakes and operations, each a permit that ends by itself.

mod descriptors;
mod fair;
mod gate;
mod lateness;
mod parking;
mod places;
mod rates;
mod recent;

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

pub use self::{
    descriptors::raise_descriptor_limit,
    fair::Origin,
    gate::{Gate, LOOK_EVERY, LoginGates},
    lateness::{BEAT, Lateness},
    parking::gather_wake_ups,
    places::Eviction,
    recent::{NameHash, NameHasher, RecentMap, Retired},
};
use self::{
    places::{Place, Places},
    rates::Rates,
};

/// Time between two clients that Seawall closes of its own accord: a hundred reconnects a second can be borne.
const CLOSE_INTERVAL: Duration = Duration::from_millis(10);

/// Bounds shared by all clients.
#[derive(Debug)]
pub struct Limits {
    clients: Arc<Semaphore>,
    handshakes: Arc<Places>,
    monitors: Arc<Places>,
    relays: Arc<Semaphore>,
    operations: OperationPlaces,
    arrivals: Option<Rates<IpAddr>>,
    logins: Option<Rates<NameHash>>,
    names: NameHasher,
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
pub struct HandshakePermit(#[expect(dead_code, reason = "held for its drop")] Place);

/// A client's place among drivers' monitors, which never log in.
#[derive(Debug)]
#[must_use]
pub struct MonitorPermit(Place);

impl MonitorPermit {
    /// It has said hello again.
    pub fn heard(&mut self) {
        self.0.heard();
    }
}

/// How long a monitor is left alone after its last hello: closing one makes its driver give up all its connections.
const MONITOR_LEFT_ALONE: Duration = Duration::from_secs(10 * 60);

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
        max_monitors: usize,
        max_relays: usize,
        operations: OperationPlaces,
    ) -> Self {
        let semaphore = |n: usize| Semaphore::new(n.min(Semaphore::MAX_PERMITS));
        Self {
            clients: Arc::new(semaphore(max_clients)),
            handshakes: Places::new(max_handshakes),
            monitors: Places::new(max_monitors),
            relays: Arc::new(semaphore(max_relays)),
            operations,
            arrivals: None,
            logins: None,
            names: NameHasher::default(),
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

    /// Whether one more client may come from this address now.
    pub fn admits_arrival(&self, ip: IpAddr, now: Instant) -> bool {
        let rates = self.arrivals.as_ref();
        rates.is_none_or(|rates| rates.admit(network_of(ip), now))
    }

    /// Whether one more login of a user may begin now without waiting. Counted by address and user: a name that others
    /// claim must not delay its owner.
    pub fn admits_login(&self, from: Option<IpAddr>, user: (&str, &str), now: Instant) -> bool {
        let rates = self.logins.as_ref();
        rates.is_none_or(|rates| rates.admit(self.login_key(from, user), now))
    }

    /// When a login of a user may begin, if it has to wait for its turn: it is delayed, never refused.
    pub fn login_turn(
        &self,
        from: Option<IpAddr>,
        user: (&str, &str),
        now: Instant,
    ) -> Option<Instant> {
        let rates = self.logins.as_ref()?;
        let turn = rates.turn(self.login_key(from, user), now);
        (turn > now).then_some(turn)
    }

    fn login_key(&self, from: Option<IpAddr>, user: (&str, &str)) -> NameHash {
        self.names.hash((from.map(network_of), user))
    }

    /// A place for one more client, if there is one.
    pub fn admit_client(&self) -> Option<ClientPermit> {
        Arc::clone(&self.clients)
            .try_acquire_owned()
            .ok()
            .map(ClientPermit)
    }

    /// A place for one more client that has not logged in, if need be that of a greedier address.
    pub fn admit_handshake(
        &self,
        from: Option<IpAddr>,
        eviction: &Eviction,
    ) -> Option<HandshakePermit> {
        let place = self.handshakes.take(from.map(network_of), eviction);
        place.map(HandshakePermit)
    }

    /// A place for one more monitor, if need be that of one of a greedier address that has been silent for long.
    pub fn admit_monitor(
        &self,
        from: Option<IpAddr>,
        eviction: &Eviction,
        now: Instant,
    ) -> Option<MonitorPermit> {
        let may_go =
            |heard_at: Instant| now.saturating_duration_since(heard_at) >= MONITOR_LEFT_ALONE;
        let place = self
            .monitors
            .take_if(from.map(network_of), eviction, may_go);
        place.map(MonitorPermit)
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

/// What counts as one address: of IPv6 a /64, which one host may have for itself.
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn places_come_free_when_their_permits_end() {
        let limits = Limits::new(1, 1, 1, 1, OperationPlaces::new(1));
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
    async fn claiming_a_name_delays_no_other_address() {
        let limits = Limits::new(1, 1, 1, 1, OperationPlaces::new(1)).with_rates(None, Some(2));
        let [stranger, owner] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().ok());
        let (user, now) = (("app", "admin"), Instant::now());
        let delayed = (0..100).filter_map(|_| limits.login_turn(stranger, user, now));
        assert_eq!(delayed.count(), 98);
        assert_eq!(limits.login_turn(owner, user, now), None);
        assert!(limits.admits_login(owner, user, now));
        assert_eq!(limits.login_turn(stranger, ("other", "admin"), now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_monitor_is_left_alone_for_ten_minutes_after_its_hello() {
        let limits = Limits::new(9, 9, 2, 9, OperationPlaces::new(9));
        let [crowd, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().ok());
        let eviction = Eviction::default();
        let began = Instant::now();
        let mut first = limits.admit_monitor(crowd, &eviction, began).unwrap();
        let _second = limits.admit_monitor(crowd, &eviction, began).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        first.heard();
        let admit = |seconds| {
            let now = began + Duration::from_secs(seconds);
            limits.admit_monitor(other, &eviction, now)
        };
        assert!(admit(599).is_none());
        assert!(
            admit(600).is_some(),
            "the second has been silent for ten minutes"
        );
    }

    #[test]
    fn an_ipv6_host_has_one_network_and_mapped_addresses_are_ipv4() {
        let network = |ip: &str| network_of(ip.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3::4"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
    }

    #[tokio::test(start_paused = true)]
    async fn closes_are_spread_out() {
        let limits = Limits::new(1, 1, 1, 1, OperationPlaces::new(1));
        let now = Instant::now();
        let turns: Vec<_> = (0..3).map(|_| limits.closing_turn(now) - now).collect();
        assert_eq!(turns, [Duration::ZERO, CLOSE_INTERVAL, CLOSE_INTERVAL * 2]);
    }
}
