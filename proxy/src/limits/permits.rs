//! Permits for connections. Addresses share them fairly. If many users share an address, each of
//! these users counts like an address ([`Sharer`]).
//!
//! One address may have all permits, except those for monitors. If none is free and another address
//! needs one, a connection of the address with the most permits is closed. This happens only if the
//! address with the most permits has at least two permits more than the other address. Among
//! handshakes and among connections to the admin address, the oldest connection is closed. Among
//! clients, a silent connection is closed. So a single address may use all permits, but usually it
//! cannot lock out another address. It can lock out another address in two cases: all its clients
//! send messages again and again, or the maximum is one permit.
//!
//! For monitors, another rule applies, because a monitor that has sent a `hello` in the last ten
//! minutes is never closed for another address. Each address gets at most its share
//! ([`is_within_share`]) of the permits. So one address cannot lock out the monitors of other
//! addresses. If a newcomer's address cannot get a further permit, Seawall can close another
//! monitor and give its permit to the newcomer. It selects the address with the most monitors, and
//! among its monitors the one with the earliest last `hello`. It closes this monitor only if the
//! `hello` was at least ten minutes ago, and if that address has at least two monitors more than
//! the newcomer's address.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use seawall_locks::Mutex;
use seawall_transport::{Sharer, is_within_share};

/// A signal that tells the task of a connection to end.
#[derive(Clone, Debug, Default)]
pub struct Eviction(Arc<EvictionState>);

/// The reason why a connection's task must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionReason {
    /// The connection's permit is given to another connection.
    GaveWay,
    /// Seawall drains: it closes a share of the connections, or all of them. A connection whose
    /// message is being served is closed after this message, unless [`EvictablePermits::cut`] was
    /// called: then it is closed at once. A relay counts as serving only while it forwards a
    /// message of its client.
    Closing,
}

#[derive(Debug, Default)]
struct EvictionState {
    /// The task that polls for the eviction.
    task: AtomicWaker,
    gave_way: AtomicBool,
    is_closing: AtomicBool,
    /// True if `is_closing` applies even while a message is served.
    is_cut: AtomicBool,
    /// A counter that Seawall increments before and after it serves a message. So the counter is
    /// odd while a message is served.
    activity: AtomicU64,
    is_exempt: AtomicBool,
}

impl Eviction {
    /// Ready when the connection must be closed. Only one task may poll. A client's task polls each
    /// time it runs, so a poll must be cheap.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<EvictionReason> {
        self.0.task.register(cx.waker());
        if self.0.gave_way.load(Acquire) {
            Poll::Ready(EvictionReason::GaveWay)
        } else if self.is_closing() && (!self.is_serving() || self.0.is_cut.load(Acquire)) {
            Poll::Ready(EvictionReason::Closing)
        } else {
            Poll::Pending
        }
    }

    /// True if the connection must be closed because Seawall drains. It is closed as soon as no
    /// message is served, or at once after [`EvictablePermits::cut`].
    pub(crate) fn is_closing(&self) -> bool {
        self.0.is_closing.load(Acquire)
    }

    /// True while a message is served.
    fn is_serving(&self) -> bool {
        !self.activity().is_multiple_of(2)
    }

    /// Records that Seawall begins to serve a message, or has served it.
    pub(crate) fn mark_activity(&self) {
        self.0.activity.fetch_add(1, Relaxed);
    }

    /// While `is_exempt` is true, the connection does not count as silent, even if it sends
    /// nothing.
    pub(crate) fn set_exempt(&self, is_exempt: bool) {
        self.0.is_exempt.store(is_exempt, Relaxed);
    }

    fn activity(&self) -> u64 {
        self.0.activity.load(Relaxed)
    }

    /// True if the connection has been silent since [`Self::activity`] returned the count
    /// `activity`.
    fn is_silent_since(&self, activity: u64) -> bool {
        let now = self.activity();
        now == activity && !self.is_serving() && !self.0.is_exempt.load(Relaxed)
    }

    fn evict(&self, reason: EvictionReason) {
        let flag = match reason {
            EvictionReason::GaveWay => &self.0.gave_way,
            EvictionReason::Closing => &self.0.is_closing,
        };
        flag.store(true, Release);
        self.0.task.wake();
    }
}

/// Maximum number of connections that one search for a silent connection examines. During the
/// search, all permits are locked.
const MAX_EXAMINED: usize = 16;

/// A connection that has a permit.
#[derive(Debug)]
struct PermitHolder {
    eviction: Eviction,
    heard_at: Instant,
    /// Value of [`Eviction::activity`] when the permit was issued, or when the connection was last
    /// examined.
    activity: u64,
}

/// A bounded number of permits for connections.
#[derive(Debug)]
pub(crate) struct EvictablePermits {
    max: AtomicUsize,
    table: Mutex<PermitTable>,
}

#[derive(Debug, Default)]
struct PermitTable {
    len: usize,
    next: u64,
    /// Connections by sharer, and by the order in which they got or renewed their permits.
    by_sharer: HashMap<Sharer, BTreeMap<u64, PermitHolder>>,
    /// The sharers in ascending order of their number of permits. A sharer is an address or a user.
    counts: BTreeSet<(usize, Sharer)>,
    /// The share of the connections that must be closed, in percent.
    closing_percent: u64,
    /// The start of the next search for a silent connection: a sharer and a number. The search
    /// begins at the first connection of this sharer that has this number or a higher number.
    next_examined: (Sharer, u64),
}

/// The permit of one connection. Dropping it frees the permit.
#[derive(Debug)]
#[must_use]
pub(crate) struct EvictablePermit {
    permits: Arc<EvictablePermits>,
    sharer: Sharer,
    number: u64,
}

impl EvictablePermits {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicUsize::new(max),
            table: Mutex::default(),
        })
    }

    /// Changes the number of permits. If it falls, connections keep the permits that they have.
    pub(super) fn set_max(&self, max: usize) {
        self.max.store(max, Relaxed);
    }

    /// Returns a permit. If none is free, closes the oldest connection of the sharer with the most
    /// permits. `None` if no other sharer has at least two more permits than `sharer`.
    pub(crate) fn admit_evicting_oldest(
        self: &Arc<Self>,
        sharer: Sharer,
        eviction: &Eviction,
    ) -> Option<EvictablePermit> {
        self.admit_or(sharer, eviction, is_any_free, |table| {
            table.remove_oldest(sharer, |_| true)
        })
    }

    /// Returns a permit, if `sharer` (an address or a user) does not hold too large a share of the
    /// permits. Otherwise closes the oldest connection of the sharer with the most permits, if
    /// `may_evict` is true for the time of this connection's last activity. `None` if neither is
    /// possible.
    pub(super) fn admit_within_share(
        self: &Arc<Self>,
        sharer: Sharer,
        eviction: &Eviction,
        may_evict: impl Fn(Instant) -> bool,
    ) -> Option<EvictablePermit> {
        self.admit_or(sharer, eviction, is_within_share, |table| {
            table.remove_oldest(sharer, may_evict)
        })
    }

    /// Returns a permit. If none is free, examines connections of the sharer with the most permits.
    /// Closes the first connection that has been silent since its last examination. `None` if no
    /// silent connection was found.
    pub(super) fn admit_evicting_silent(
        self: &Arc<Self>,
        sharer: Sharer,
        eviction: &Eviction,
    ) -> Option<EvictablePermit> {
        self.admit_or(sharer, eviction, is_any_free, |table| {
            table.remove_silent(sharer)
        })
    }

    /// True if [`Self::admit_evicting_silent`] would return a permit now. Closes no connection.
    pub(super) fn can_admit_evicting_silent(&self, sharer: Sharer) -> bool {
        let mut table = self.table.lock();
        let free = self.max.load(Relaxed).saturating_sub(table.len);
        is_any_free(table.held_by(sharer), free) || table.find_silent(sharer).is_some()
    }

    /// Closes this percentage of the connections, and the same percentage of the connections that
    /// get a permit later. Connections that an earlier call closed count too: a call with 20 after
    /// a call with 10 closes only another 10 percent.
    pub(super) fn close(&self, percent: u64) {
        let mut table = self.table.lock();
        table.closing_percent = percent;
        for (number, connected) in table.by_sharer.values().flatten() {
            if table.must_close(*number) {
                connected.eviction.evict(EvictionReason::Closing);
            }
        }
    }

    /// Closes this percentage of the connections, including connections whose message is served.
    /// Selects the same connections as [`Self::close`] with the same percentage.
    pub(super) fn cut(&self, percent: u64) {
        let table = self.table.lock();
        for (number, connected) in table.by_sharer.values().flatten() {
            if number % 100 < percent {
                connected.eviction.0.is_cut.store(true, Release);
                connected.eviction.evict(EvictionReason::Closing);
            }
        }
    }

    /// Returns a free permit if `has_room` returns true. Otherwise returns the permit that
    /// `make_room` frees, or `None` if it frees no permit. `has_room` gets the number of the
    /// sharer's permits and the number of free permits.
    fn admit_or(
        self: &Arc<Self>,
        sharer: Sharer,
        eviction: &Eviction,
        has_room: impl FnOnce(usize, usize) -> bool,
        make_room: impl FnOnce(&mut PermitTable) -> Option<Eviction>,
    ) -> Option<EvictablePermit> {
        let mut table = self.table.lock();
        let free = self.max.load(Relaxed).saturating_sub(table.len);
        if !has_room(table.held_by(sharer), free) {
            make_room(&mut table)?.evict(EvictionReason::GaveWay);
        }
        let number = table.insert(sharer, eviction.clone());
        drop(table);
        let permits = Arc::clone(self);
        Some(EvictablePermit {
            permits,
            sharer,
            number,
        })
    }
}

/// True if a permit is free.
fn is_any_free(_held: usize, free: usize) -> bool {
    free > 0
}

impl PermitTable {
    /// Number of permits of a sharer.
    fn held_by(&self, sharer: Sharer) -> usize {
        self.by_sharer.get(&sharer).map_or(0, BTreeMap::len)
    }

    /// Frees the permit of a silent connection of the sharer with the most permits, to make room
    /// for `newcomer`. Returns the [`Eviction`] of this connection. `None` if no silent connection
    /// was found.
    fn remove_silent(&mut self, newcomer: Sharer) -> Option<Eviction> {
        let (sharer, number) = self.find_silent(newcomer)?;
        self.remove(sharer, number)
    }

    /// Finds a silent connection of the sharer with the most permits, to make room for `newcomer`.
    /// Examines at most [`MAX_EXAMINED`] connections. The next search begins at the found
    /// connection. If no silent connection is found, the result is `None`, and the next search
    /// begins after the last examined connection.
    fn find_silent(&mut self, newcomer: Sharer) -> Option<(Sharer, u64)> {
        let sharer = self.sharer_to_evict(newcomer)?;
        for _ in 0..MAX_EXAMINED {
            let own = self.by_sharer.get_mut(&sharer)?;
            let next = match self.next_examined {
                (examined, number) if examined == sharer => own.range_mut(number..).next(),
                _ => None,
            };
            let (&number, connected) = match next {
                Some(next) => next,
                None => own.iter_mut().next()?,
            };
            if connected.eviction.is_silent_since(connected.activity) {
                self.next_examined = (sharer, number);
                return Some((sharer, number));
            }
            connected.activity = connected.eviction.activity();
            self.next_examined = (sharer, number + 1);
        }
        None
    }

    /// True if the connection with this number belongs to the percentage of connections that must
    /// be closed (`closing_percent`).
    fn must_close(&self, number: u64) -> bool {
        number % 100 < self.closing_percent
    }

    fn insert(&mut self, sharer: Sharer, eviction: Eviction) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.must_close(number) {
            eviction.evict(EvictionReason::Closing);
        }
        let own = self.by_sharer.entry(sharer).or_default();
        self.counts.remove(&(own.len(), sharer));
        let connected = PermitHolder {
            activity: eviction.activity(),
            heard_at: Instant::now(),
            eviction,
        };
        own.insert(number, connected);
        self.counts.insert((own.len(), sharer));
        self.len += 1;
        number
    }

    fn remove(&mut self, sharer: Sharer, number: u64) -> Option<Eviction> {
        let own = self.by_sharer.get_mut(&sharer)?;
        let PermitHolder { eviction, .. } = own.remove(&number)?;
        let left = own.len();
        self.counts.remove(&(left + 1, sharer));
        match left {
            0 => drop(self.by_sharer.remove(&sharer)),
            _ => drop(self.counts.insert((left, sharer))),
        }
        self.len -= 1;
        Some(eviction)
    }

    /// Frees the permit of the oldest connection of the sharer with the most permits, to make room
    /// for `newcomer`. Returns the [`Eviction`] of this connection. `None` if
    /// [`Self::sharer_to_evict`] finds no sharer, or `may_evict` returns false.
    fn remove_oldest(
        &mut self,
        newcomer: Sharer,
        may_evict: impl Fn(Instant) -> bool,
    ) -> Option<Eviction> {
        let greediest = self.sharer_to_evict(newcomer)?;
        let (&number, oldest) = self.by_sharer.get(&greediest)?.first_key_value()?;
        match may_evict(oldest.heard_at) {
            true => self.remove(greediest, number),
            false => None,
        }
    }

    /// Returns the sharer (address or user) with the most permits, if this sharer has at least two
    /// more permits than `newcomer`.
    fn sharer_to_evict(&self, newcomer: Sharer) -> Option<Sharer> {
        let (most, greediest) = *self.counts.last()?;
        let own = self.held_by(newcomer);
        (greediest != newcomer && most > own + 1).then_some(greediest)
    }
}

impl EvictablePermit {
    /// Records activity of the connection. If a connection of its sharer must be closed to make
    /// room, the connection whose last activity was earliest is closed.
    pub(super) fn renew(&mut self) {
        self.move_to(self.sharer);
    }

    /// Closes the oldest connection of the sharer with the most permits. False if no sharer has at
    /// least two more permits than the sharer of this permit.
    pub(crate) fn evict_other(&self) -> bool {
        let mut table = self.permits.table.lock();
        let oldest = table.remove_oldest(self.sharer, |_| true);
        drop(table);
        oldest
            .inspect(|of| of.evict(EvictionReason::GaveWay))
            .is_some()
    }

    /// Counts the permit for `sharer` (an address or a user) from now on.
    pub(super) fn move_to(&mut self, sharer: Sharer) {
        let mut table = self.permits.table.lock();
        if let Some(eviction) = table.remove(self.sharer, self.number) {
            self.number = table.insert(sharer, eviction);
            self.sharer = sharer;
        }
    }
}

impl Drop for EvictablePermit {
    fn drop(&mut self) {
        self.permits.table.lock().remove(self.sharer, self.number);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use std::task::Waker;

    use super::*;

    pub(in super::super) fn is_evicted(eviction: &Eviction) -> bool {
        let cx = Context::from_waker(Waker::noop());
        eviction.poll(&cx) == Poll::Ready(EvictionReason::GaveWay)
    }

    fn sharer(last: u8) -> Sharer {
        Sharer::at(Some([192, 0, 2, last].into()))
    }

    struct AdmittedClient {
        eviction: Eviction,
        permit: Option<EvictablePermit>,
    }

    impl AdmittedClient {
        fn is_evicted(&self) -> bool {
            is_evicted(&self.eviction)
        }
    }

    fn client(permits: &Arc<EvictablePermits>, last: u8) -> AdmittedClient {
        let eviction = Eviction::default();
        let permit = permits.admit_evicting_oldest(sharer(last), &eviction);
        AdmittedClient { eviction, permit }
    }

    fn check(permits: &EvictablePermits) {
        let table = permits.table.lock();
        let counts = table.by_sharer.iter().map(|(n, own)| (own.len(), *n));
        assert_eq!(counts.collect::<BTreeSet<_>>(), table.counts);
        let len: usize = table.by_sharer.values().map(BTreeMap::len).sum();
        assert_eq!(len, table.len);
        assert!(len <= permits.max.load(Relaxed));
        assert!(
            table.by_sharer.values().all(|own| !own.is_empty()),
            "sharers without permits are removed"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_may_get_all_connection_permits() {
        let permits = EvictablePermits::new(3);
        let clients: Vec<_> = (0..4).map(|_| client(&permits, 1)).collect();
        let have: Vec<_> = clients
            .iter()
            .map(|client| client.permit.is_some())
            .collect();
        assert_eq!(have, [true, true, true, false]);
        assert!(!clients.iter().any(AdmittedClient::is_evicted));
        check(&permits);
        drop(clients);
        assert_eq!(permits.table.lock().len, 0);
        check(&permits);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_of_the_address_with_the_most_permits_is_evicted() {
        let permits = EvictablePermits::new(4);
        let crowd: Vec<_> = (0..3).map(|_| client(&permits, 1)).collect();
        let _single = client(&permits, 2);
        let newcomer = client(&permits, 3);
        assert!(newcomer.permit.is_some());
        let evicted: Vec<_> = crowd.iter().map(AdmittedClient::is_evicted).collect();
        assert_eq!(evicted, [true, false, false]);
        // A second permit for address 3 would leave address 1 with fewer permits than address 3.
        assert!(client(&permits, 3).permit.is_none());
        check(&permits);
        // The drop of an evicted connection's permit must not free it a second time.
        drop(crowd);
        check(&permits);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_renewed_permit_is_evicted_last() {
        let permits = EvictablePermits::new(2);
        let mut first = client(&permits, 1);
        let second = client(&permits, 1);
        first.permit.as_mut().unwrap().renew();
        let newcomer = client(&permits, 2);
        assert!(newcomer.permit.is_some());
        assert_eq!((first.is_evicted(), second.is_evicted()), (false, true));
        check(&permits);
    }

    /// Two kinds of connections are not evicted: connections that wait for a reply, and connections
    /// that `set_exempt(true)` protects.
    #[tokio::test(start_paused = true)]
    async fn only_connections_that_sent_nothing_lately_are_evicted_for_a_new_client() {
        let permits = EvictablePermits::new(3);
        let crowd: Vec<_> = (0..3).map(|_| client(&permits, 1)).collect();
        let [active, silent, busy] = &crowd[..] else {
            panic!("the crowd has three clients")
        };
        active.eviction.mark_activity();
        active.eviction.mark_activity();
        busy.eviction.mark_activity();
        let newcomer = Eviction::default();
        let _permit = permits.admit_evicting_silent(sharer(2), &newcomer).unwrap();
        assert!(silent.is_evicted() && !active.is_evicted() && !busy.is_evicted());
        check(&permits);
        // `active` has been silent since the last search, but is exempt for now. `busy` still waits
        // for its reply. So no connection can be evicted.
        active.eviction.set_exempt(true);
        assert!(
            permits
                .admit_evicting_silent(sharer(3), &newcomer)
                .is_none()
        );
        active.eviction.set_exempt(false);
        let _permit = permits.admit_evicting_silent(sharer(3), &newcomer).unwrap();
        assert!(active.is_evicted() && !busy.is_evicted());
        assert!(
            permits
                .admit_evicting_silent(sharer(4), &newcomer)
                .is_none()
        );
        check(&permits);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_several_silent_connections_of_an_address_is_evicted() {
        let permits = EvictablePermits::new(4);
        let oldest = client(&permits, 2);
        let crowd: Vec<_> = (0..3).map(|_| client(&permits, 1)).collect();
        let newcomer = Eviction::default();
        let _third = permits.admit_evicting_silent(sharer(3), &newcomer).unwrap();
        assert!(crowd[0].is_evicted() && !oldest.is_evicted());
        drop(crowd);
        let later = [client(&permits, 2), client(&permits, 2)];
        let _fourth = permits.admit_evicting_silent(sharer(4), &newcomer).unwrap();
        assert!(oldest.is_evicted() && !later.iter().any(AdmittedClient::is_evicted));
        check(&permits);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_that_was_moved_to_a_user_counts_for_that_user() {
        let permits = EvictablePermits::new(2);
        let mut first = client(&permits, 1);
        let _second = client(&permits, 1);
        first.permit.as_mut().unwrap().move_to(Sharer::User(7));
        check(&permits);
        assert!(
            client(&permits, 2).permit.is_none(),
            "each sharer has one permit"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn close_closes_the_given_percentage_of_connections() {
        let permits = EvictablePermits::new(300);
        let mut clients: Vec<_> = (0..200).map(|_| client(&permits, 1)).collect();
        let is_closing = |client: &AdmittedClient| {
            let cx = Context::from_waker(Waker::noop());
            client.eviction.poll(&cx) == Poll::Ready(EvictionReason::Closing)
        };
        for (percent, closing) in [(0, 0), (25, 50), (50, 100)] {
            permits.close(percent);
            assert_eq!(clients.iter().filter(|c| is_closing(c)).count(), closing);
        }
        clients.push(client(&permits, 1));
        assert!(
            is_closing(&clients[200]),
            "a later connection is closed too"
        );
        permits.close(100);
        assert!(clients.iter().all(is_closing));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_evicted_only_if_may_evict_returns_true() {
        let permits = EvictablePermits::new(1);
        let first = client(&permits, 1);
        let lately = Instant::now();
        let may_evict = |heard_at: Instant| heard_at < lately;
        let eviction = Eviction::default();
        assert!(
            permits
                .admit_within_share(sharer(2), &eviction, may_evict)
                .is_none()
        );
        let later = lately + Duration::from_secs(1);
        let may_evict = |heard_at: Instant| heard_at < later;
        assert!(
            permits
                .admit_within_share(sharer(2), &eviction, may_evict)
                .is_none(),
            "the sharer has only one permit"
        );
        let permits = EvictablePermits::new(2);
        let _crowd = [client(&permits, 1), client(&permits, 1)];
        assert!(
            permits
                .admit_within_share(sharer(2), &eviction, may_evict)
                .is_some()
        );
        drop(first);
    }
}
