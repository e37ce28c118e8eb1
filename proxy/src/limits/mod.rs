//! Limits on clients, handshakes and operations. Each permit is a guard: dropping it releases the
//! permit. At a limit, work waits or is refused.

mod closes;
mod fair;
mod gate;
mod heavy;
mod idle_time;
mod low_priority;
mod operations;
mod permits;
mod rates;
mod recent;
mod shares;
mod turns;

use std::{hash::Hash, net::IpAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use seawall_transport::Sharer;

pub(crate) use self::closes::CloseTurns;
use self::{closes::Closes, rates::Rates};
pub use self::{
    fair::Origin,
    gate::{Gate, LoginGates},
    operations::OperationPermits,
    permits::Eviction,
    recent::NameHash,
    shares::{Share, Shares},
    turns::{Turn, TurnKey},
};
pub(crate) use self::{
    fair::TurnQueue,
    heavy::{Heavy, HeavyWork},
    low_priority::HandshakeStep,
    operations::{CountedWait, OperationPermit, Operator},
    permits::{EvictablePermit, EvictablePermits, EvictionReason},
    recent::{NameHasher, RecentMap, Retired},
    turns::{StepwiseTurn, Turns},
};

/// The limits that all clients share.
#[derive(Debug)]
pub struct Limits {
    clients: Arc<EvictablePermits>,
    handshakes: Arc<EvictablePermits>,
    monitors: Arc<EvictablePermits>,
    relays: Arc<Shares<Sharer>>,
    operations: OperationPermits,
    forwarding: Turns,
    heavy: HeavyWork,
    arrivals: ArcSwapOption<Rates<Sharer>>,
    logins: ArcSwapOption<Rates<NameHash>>,
    names: NameHasher,
    closes: Closes,
}

/// The maximum numbers in [`Limits`]. They can change while clients are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitNumbers {
    /// Maximum number of clients.
    pub clients: usize,
    /// Maximum number of clients that have not logged in.
    pub handshakes: usize,
    /// Maximum number of monitoring connections of drivers.
    pub monitors: usize,
    /// Maximum number of clients in pooled mode that get a server connection of their own (are
    /// relayed) because of their authentication mechanism.
    pub relays: usize,
    /// Maximum number of operations in flight.
    pub operations: usize,
    /// Maximum number of connections per second from one address; `None` for no limit.
    pub arrivals_per_address: Option<u32>,
    /// Maximum number of logins per second with the same address, user and result; `None` for no
    /// limit.
    pub logins_per_user: Option<u32>,
}

/// Sets the number of events per second that each key may have; `None` for no limit. If this number
/// does not change, the events that were counted so far stay counted.
fn set_rate<K: Copy + Eq + Hash>(rates: &ArcSwapOption<Rates<K>>, per_second: Option<u32>) {
    let is_same = rates.load().as_ref().map(|rates| rates.per_second()) == per_second;
    if !is_same {
        rates.store(per_second.map(|rate| Arc::new(Rates::new(rate))));
    }
}

/// The permit of one connected client.
#[derive(Debug)]
#[must_use]
pub struct ClientPermit {
    of_all: EvictablePermit,
    /// The permit of the client's listener, if the listener has its own limit. The box saves
    /// memory, because most listeners have no limit.
    of_listener: Option<Box<EvictablePermit>>,
}

impl ClientPermit {
    /// Counts the permit for another sharer (address or user) from now on.
    pub(crate) fn move_to(&mut self, sharer: Sharer) {
        self.of_all.move_to(sharer);
        if let Some(permit) = &mut self.of_listener {
            permit.move_to(sharer);
        }
    }
}

/// The permits of the clients of one listener.
#[derive(Clone, Debug)]
pub struct ListenerPermits(Arc<EvictablePermits>);

impl ListenerPermits {
    /// Creates permits for at most `max` clients; `None` for any number.
    pub(crate) fn new(max: Option<NonZeroUsize>) -> Self {
        let permits = Self(EvictablePermits::new(0));
        permits.set_max(max);
        permits
    }

    /// Changes the maximum; `None` for any number. If the maximum falls, all connected clients stay
    /// connected.
    pub(crate) fn set_max(&self, max: Option<NonZeroUsize>) {
        self.0.set_max(max.map_or(usize::MAX, NonZeroUsize::get));
    }
}

/// The limit that refuses a new client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientLimit {
    /// The limit of the listener.
    Listener,
    /// The limit of all clients.
    All,
    /// The limit of clients that have not logged in.
    Unauthenticated,
}

/// The permit of one client that has not logged in yet.
#[derive(Debug)]
#[must_use]
pub struct HandshakePermit(#[expect(dead_code, reason = "dropped, never read")] EvictablePermit);

/// The permit of one driver's monitoring connection, which never logs in.
#[derive(Debug)]
#[must_use]
pub(crate) struct MonitorPermit(EvictablePermit);

impl MonitorPermit {
    /// Records that the monitor has sent another `hello`.
    pub(crate) fn record_hello(&mut self) {
        self.0.renew();
    }
}

/// A monitor keeps its permit for at least this time after its last `hello`. A driver closes all
/// its connections to a server when its monitoring connection is closed.
const MONITOR_GRACE_TIME: Duration = Duration::from_secs(10 * 60);

/// The permit of one client in pooled mode that gets a server connection of its own (is relayed)
/// because of its authentication mechanism.
#[derive(Debug)]
#[must_use]
pub(crate) struct RelayPermit(#[expect(dead_code, reason = "dropped, never read")] Share<Sharer>);

impl LimitNumbers {
    /// Numbers for tests: the same number for all permits, and no rate limits.
    #[cfg(test)]
    pub(crate) fn of_each(number: usize) -> Self {
        Self {
            clients: number,
            handshakes: number,
            monitors: number,
            relays: number,
            operations: number,
            arrivals_per_address: None,
            logins_per_user: None,
        }
    }
}

impl Limits {
    /// Creates limits with these numbers. `operations` limits the operations in flight.
    pub(crate) fn new(numbers: LimitNumbers, operations: OperationPermits) -> Self {
        let limits = Self {
            clients: EvictablePermits::new(numbers.clients),
            handshakes: EvictablePermits::new(numbers.handshakes),
            monitors: EvictablePermits::new(numbers.monitors),
            relays: Shares::new(numbers.relays),
            operations,
            forwarding: Turns::new(1),
            heavy: HeavyWork::new(1),
            arrivals: ArcSwapOption::empty(),
            logins: ArcSwapOption::empty(),
            names: NameHasher::default(),
            closes: Closes::default(),
        };
        limits.set(numbers);
        limits
    }

    /// Applies changed limits. If a limit falls, clients and operations keep the permits that they
    /// have.
    pub(crate) fn set(&self, numbers: LimitNumbers) {
        self.clients.set_max(numbers.clients);
        self.handshakes.set_max(numbers.handshakes);
        self.monitors.set_max(numbers.monitors);
        self.relays.set_max(numbers.relays);
        self.operations.set_max(numbers.operations);
        set_rate(&self.arrivals, numbers.arrivals_per_address);
        set_rate(&self.logins, numbers.logins_per_user);
    }

    /// Adapts the limits to the number of threads that serve clients. The default is one thread.
    #[must_use]
    pub(crate) fn with_workers(self, workers: usize) -> Self {
        Self {
            forwarding: Turns::new(workers),
            heavy: HeavyWork::new(workers),
            ..self
        }
    }

    /// Returns true if another client may connect from this address now. In this case, counts the
    /// client.
    pub(crate) fn admits_arrival(&self, ip: IpAddr, now: Instant) -> bool {
        let rates = self.arrivals.load();
        let rates = rates.as_ref();
        rates.is_none_or(|rates| rates.admit(Sharer::at(Some(ip)), now))
    }

    /// Counts a login whose result is known. `is_ok` is true if the login succeeded. Returns the
    /// time at which the client may get the result; `None` if it may get the result now. Logins are
    /// delayed, but not refused.
    ///
    /// Logins are counted by address, user and result. Otherwise a client that claims the name of
    /// another user could delay that user.
    pub(crate) fn login_turn(
        &self,
        from: Sharer,
        user: (&str, &str),
        is_ok: bool,
        now: Instant,
    ) -> Option<Instant> {
        let rates = self.logins.load();
        let rates = rates.as_ref()?;
        let turn = rates.turn(self.names.hash((from, user, is_ok)), now);
        (turn > now).then_some(turn)
    }

    /// Returns the permits for a new client of a listener. If a limit is reached, tries to close
    /// another client to make room.
    ///
    /// # Errors
    /// The limit that is reached, if no client can be closed to make room.
    pub(crate) fn admit_newcomer(
        &self,
        listener: Option<&ListenerPermits>,
        from: Sharer,
        eviction: &Eviction,
    ) -> Result<(ClientPermit, HandshakePermit), ClientLimit> {
        // The limits of clients are checked before any client is closed. So Seawall closes no
        // client for a newcomer that it then refuses because of one of these limits. There is one
        // exception: another newcomer may take the permit between the check and the admission.
        let can_admit = |permits: &EvictablePermits| permits.can_admit_evicting_silent(from);
        if listener.is_some_and(|listener| !can_admit(&listener.0)) {
            return Err(ClientLimit::Listener);
        }
        if !can_admit(&self.clients) {
            return Err(ClientLimit::All);
        }
        // The handshake permit comes before the client permits, because Seawall makes room for a
        // handshake only by closing a client that has not logged in. So no client that has logged
        // in is closed for a newcomer that the limit of handshakes refuses.
        let handshake = self.admit_handshake(from, eviction);
        let handshake = handshake.ok_or(ClientLimit::Unauthenticated)?;
        let client = self.admit_client(listener, from, eviction)?;
        Ok((client, handshake))
    }

    /// Returns a permit for a new client of a listener, within the limits of the listener and of
    /// all clients. At a limit, makes room: examines clients of the sharer (address or user) with
    /// the most clients, and closes one that has sent nothing since it was last examined.
    ///
    /// # Errors
    /// The limit that is reached, if no client could be closed.
    fn admit_client(
        &self,
        listener: Option<&ListenerPermits>,
        from: Sharer,
        eviction: &Eviction,
    ) -> Result<ClientPermit, ClientLimit> {
        let admit = |permits: &Arc<EvictablePermits>, limit| {
            let permit = permits.admit_evicting_silent(from, eviction);
            permit.ok_or(limit)
        };
        let of_listener = listener.map(|of| admit(&of.0, ClientLimit::Listener));
        Ok(ClientPermit {
            of_listener: of_listener.transpose()?.map(Box::new),
            of_all: admit(&self.clients, ClientLimit::All)?,
        })
    }

    /// Closes this percentage of the clients, and the same percentage of the clients that connect
    /// later. Clients that an earlier call closed count too: a call with 20 after a call with 10
    /// closes only another 10 percent. A pooled client whose operation runs is closed after its
    /// reply.
    pub(crate) fn close_clients(&self, percent: u64) {
        self.clients.close(percent);
    }

    /// Closes this percentage of the clients, including clients whose operations run. Selects the
    /// same clients as [`Self::close_clients`] with the same percentage.
    pub(crate) fn cut_clients(&self, percent: u64) {
        self.clients.cut(percent);
    }

    /// Returns a permit for a client that has not logged in. At the limit, finds the address with
    /// the most clients that have not logged in, and closes the oldest of these clients. `None` if
    /// no client can be closed.
    pub(crate) fn admit_handshake(
        &self,
        from: Sharer,
        eviction: &Eviction,
    ) -> Option<HandshakePermit> {
        let permit = self.handshakes.admit_evicting_oldest(from, eviction);
        permit.map(HandshakePermit)
    }

    /// Returns a permit for a driver's monitor, if its address does not use too large a share of
    /// the permits. Otherwise finds the address with the most monitors. Among the monitors of this
    /// address, closes the one with the earliest last `hello`, if this `hello` was at least ten
    /// minutes ago. `None` if no monitor can be closed.
    pub(crate) fn admit_monitor(
        &self,
        from: Sharer,
        eviction: &Eviction,
        now: Instant,
    ) -> Option<MonitorPermit> {
        let may_evict =
            |heard_at: Instant| now.saturating_duration_since(heard_at) >= MONITOR_GRACE_TIME;
        let permit = self.monitors.admit_within_share(from, eviction, may_evict);
        permit.map(MonitorPermit)
    }

    /// Returns a permit for a relayed client in pooled mode (a client with a server connection of
    /// its own). `None` if the client's address or user would use too large a share of these
    /// permits.
    pub(crate) fn admit_relay(&self, from: Sharer) -> Option<RelayPermit> {
        self.relays.take(from).map(RelayPermit)
    }

    /// The permits for operations in flight.
    pub fn operations(&self) -> &OperationPermits {
        &self.operations
    }

    /// Limits how many large replies are forwarded at the same time: as many as there are threads
    /// that serve clients. Further replies wait for their turn.
    pub(crate) fn forwarding(&self) -> &Turns {
        &self.forwarding
    }

    /// Returns a runner for the heavy work of a sharer: an address or a user. The other clients of
    /// a thread do not wait for the work that this runner runs.
    pub(crate) fn heavy(&self, sharer: Sharer) -> Heavy<'_> {
        self.heavy.of(sharer)
    }

    /// The turns to close client connections.
    pub(crate) fn closes(&self) -> &Closes {
        &self.closes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt as _;

    use super::{permits::tests::is_evicted, *};

    #[tokio::test(start_paused = true)]
    async fn failed_logins_with_the_name_of_a_user_do_not_delay_that_user() {
        let limits = Limits::new(
            LimitNumbers {
                logins_per_user: Some(2),
                ..LimitNumbers::of_each(1)
            },
            OperationPermits::new(1),
        );
        let [shared, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| Sharer::at(ip.parse().ok()));
        let (user, now) = (("app", "admin"), Instant::now());
        let turn = |from, user, is_ok| limits.login_turn(from, user, is_ok, now);
        let failed = (0..100).filter_map(|_| turn(shared, user, false));
        assert_eq!(failed.count(), 98);
        assert_eq!(turn(shared, user, true), None);
        assert_eq!(turn(other, user, false), None);
        assert_eq!(turn(shared, ("other", "admin"), false), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_monitoring_connection_keeps_its_permit_for_ten_minutes_after_its_last_hello() {
        let limits = Limits::new(
            LimitNumbers {
                monitors: 2,
                ..LimitNumbers::of_each(9)
            },
            OperationPermits::new(9),
        );
        let [crowd, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| Sharer::at(ip.parse().ok()));
        let [of_first, of_second] = [(); 2].map(|()| Eviction::default());
        let began = Instant::now();
        let mut first = limits.admit_monitor(crowd, &of_first, began).unwrap();
        let _second = limits.admit_monitor(crowd, &of_second, began).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        first.record_hello();
        let admit = |seconds| {
            let now = began + Duration::from_secs(seconds);
            limits.admit_monitor(other, &Eviction::default(), now)
        };
        assert!(admit(599).is_none());
        assert!(
            admit(600).is_some(),
            "the second monitor has been silent for ten minutes"
        );
        assert!(is_evicted(&of_second) && !is_evicted(&of_first));
    }

    #[tokio::test(start_paused = true)]
    async fn monitors_of_one_address_leave_permits_for_monitors_of_other_addresses() {
        let limits = Limits::new(LimitNumbers::of_each(10), OperationPermits::new(9));
        let [hostile, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| Sharer::at(ip.parse().ok()));
        let admit = |from| limits.admit_monitor(from, &Eviction::default(), Instant::now());
        let mut monitors: Vec<_> = (0..20).filter_map(|_| admit(hostile)).collect();
        assert_eq!(monitors.len(), 9);
        tokio::time::advance(MONITOR_GRACE_TIME / 2).await;
        monitors.iter_mut().for_each(MonitorPermit::record_hello);
        tokio::time::advance(MONITOR_GRACE_TIME / 2).await;
        assert!(admit(hostile).is_none());
        assert!(admit(other).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_its_rate_limit_is_refused_and_a_login_over_its_rate_limit_waits() {
        let unlimited = Limits::new(LimitNumbers::of_each(1), OperationPermits::new(1));
        let limited = Limits::new(
            LimitNumbers {
                arrivals_per_address: Some(2),
                logins_per_user: Some(2),
                ..LimitNumbers::of_each(1)
            },
            OperationPermits::new(1),
        );
        let (ip, now) = ("192.0.2.1".parse().unwrap(), Instant::now());
        let sharer = Sharer::at(Some(ip));
        let arrivals = |limits: &Limits| (0..9).filter(|_| limits.admits_arrival(ip, now)).count();
        assert_eq!((arrivals(&unlimited), arrivals(&limited)), (9, 2));
        let user = ("app", "admin");
        let logins = |limits: &Limits| {
            (0..9)
                .filter(|_| limits.login_turn(sharer, user, true, now).is_none())
                .count()
        };
        assert_eq!((logins(&unlimited), logins(&limited)), (9, 2));
    }

    /// A forwarding turn allows the forwarding of one large reply. Heavy jobs process all bytes of
    /// a large message, for example to compress it.
    #[tokio::test]
    async fn four_workers_allow_four_forwarding_turns_and_two_heavy_jobs_at_a_time() {
        let limits =
            Limits::new(LimitNumbers::of_each(1), OperationPermits::new(1)).with_workers(4);
        let take = || limits.forwarding().take(Sharer::Local).now_or_never();
        let turns: Vec<_> = (0..9).map_while(|_| take()).collect();
        assert_eq!(turns.len(), 4);
        // Each of the two runs waits until the other run has begun, so both succeed only if they
        // run at the same time.
        let [(begun, other_begun), (other, this)] = [(); 2].map(|()| mpsc::channel());
        let run = |begun: mpsc::Sender<()>, other: mpsc::Receiver<()>| {
            limits.heavy(Sharer::Local).run(usize::MAX, move || {
                begun.send(()).unwrap();
                other.recv_timeout(Duration::from_secs(10)).is_ok()
            })
        };
        let both = tokio::join!(run(begun, this), run(other, other_begun));
        assert_eq!(both, (true, true));
    }

    /// A relay passes the bytes of one client to a server connection that serves only this client.
    #[test]
    fn clients_handshakes_and_relays_have_separate_limits() {
        let limits = Limits::new(
            LimitNumbers {
                handshakes: 1,
                monitors: 1,
                operations: 1,
                ..LimitNumbers::of_each(2)
            },
            OperationPermits::new(1),
        );
        let [balancer, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| Sharer::at(ip.parse().ok()));
        let eviction = Eviction::default();
        let admit = |from| limits.admit_client(None, from, &eviction);
        let mut first = admit(balancer).unwrap();
        let mut second = admit(balancer).unwrap();
        // Two users behind a load balancer have one permit each. Neither is evicted for a third
        // sharer.
        first.move_to(Sharer::User(1));
        second.move_to(Sharer::User(2));
        assert_eq!(admit(other).unwrap_err(), ClientLimit::All);
        assert!(!is_evicted(&eviction));
        drop(second);
        assert!(admit(other).is_ok());
        let handshake = limits.admit_handshake(other, &eviction);
        assert!(handshake.is_some() && limits.admit_handshake(other, &eviction).is_none());
        let relay = limits.admit_relay(other);
        assert!(relay.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn no_logged_in_client_is_closed_at_the_limit_of_unauthenticated_clients() {
        let limits = Limits::new(
            LimitNumbers {
                handshakes: 3,
                ..LimitNumbers::of_each(10)
            },
            OperationPermits::new(1),
        );
        let [crowd, hostile] = ["192.0.2.1", "192.0.2.2"].map(|ip| Sharer::at(ip.parse().ok()));
        let idle: Vec<_> = (0..7).map(|_| Eviction::default()).collect();
        let logged_in = idle.iter().map(|eviction| {
            let (client, handshake) = limits.admit_newcomer(None, crowd, eviction).unwrap();
            drop(handshake);
            client
        });
        let _logged_in: Vec<_> = logged_in.collect();
        let admit = || limits.admit_newcomer(None, hostile, &Eviction::default());
        let _silent: Vec<_> = (0..3).map(|_| admit().unwrap()).collect();
        assert_eq!(admit().unwrap_err(), ClientLimit::Unauthenticated);
        assert!(!idle.iter().any(is_evicted));
    }

    /// At the limit of unauthenticated clients, Seawall usually closes the oldest of them to make
    /// room for a new client. In this test, the limit of all clients is reached too, and refuses
    /// the new client.
    #[tokio::test(start_paused = true)]
    async fn no_silent_client_is_closed_if_the_limit_of_all_clients_refuses_a_new_client() {
        let limits = Limits::new(
            LimitNumbers {
                handshakes: 2,
                ..LimitNumbers::of_each(5)
            },
            OperationPermits::new(1),
        );
        let small = ListenerPermits::new(NonZeroUsize::new(2));
        let [silent, active, other] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|ip| Sharer::at(ip.parse().ok()));
        let evictions = [(); 5].map(|()| Eviction::default());
        let [of_silent @ .., _, _, _] = &evictions;
        let [_, _, of_active @ ..] = &evictions;
        let admit = |listener, from, eviction| {
            let admitted = limits.admit_newcomer(listener, from, eviction);
            admitted.unwrap()
        };
        let _active = of_active.each_ref().map(|eviction| {
            eviction.mark_activity();
            admit(None, active, eviction).0
        });
        // The silent clients have not logged in.
        let _silent = of_silent
            .each_ref()
            .map(|eviction| admit(Some(&small), silent, eviction));
        let refused = limits.admit_newcomer(Some(&small), other, &Eviction::default());
        assert_eq!(refused.unwrap_err(), ClientLimit::All);
        assert!(!evictions.iter().any(is_evicted));
    }

    #[test]
    fn a_listener_at_its_client_limit_refuses_clients_but_other_listeners_do_not() {
        let limits = Limits::new(LimitNumbers::of_each(3), OperationPermits::new(1));
        let [small, large] = [NonZeroUsize::new(1), None].map(ListenerPermits::new);
        let [crowd, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| Sharer::at(ip.parse().ok()));
        let of_first = Eviction::default();
        let admit = |listener, from| limits.admit_client(Some(listener), from, &of_first);
        let first = admit(&small, crowd).unwrap();
        assert_eq!(admit(&small, crowd).unwrap_err(), ClientLimit::Listener);
        assert_eq!(admit(&small, other).unwrap_err(), ClientLimit::Listener);
        let _others = [admit(&large, crowd).unwrap(), admit(&large, other).unwrap()];
        // The limit of all clients still applies.
        assert_eq!(admit(&large, other).unwrap_err(), ClientLimit::All);
        assert!(!is_evicted(&of_first));
        drop(first);
        drop(admit(&small, other).unwrap());
        small.set_max(NonZeroUsize::new(2));
        let second = admit(&small, other).unwrap();
        drop(second);
    }
}
