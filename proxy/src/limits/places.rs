//! Places for connections, shared by address.
//!
//! One address may have all places. If none is free and another address wants one, a connection of
//! the address with the most places is closed, provided that this address then still has at least
//! as many as the other. So the clients of one address never keep another address out, and an
//! address that is alone loses nothing. Among handshakes and monitors the oldest connection is
//! closed, among all clients a silent one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use seawall_transport::Sharer;

/// Signals a connection's task to end, so that another connection gets its place.
#[derive(Clone, Debug, Default)]
pub struct Eviction(Arc<EvictionState>);

#[derive(Debug, Default)]
struct EvictionState {
    notify: Notify,
    /// Incremented when a message begins to be served and when it has been served: odd while one is
    /// being served.
    activity: AtomicU64,
    is_exempt: AtomicBool,
}

impl Eviction {
    /// Waits until the connection must be closed. Cancel safe.
    pub async fn wait(&self) {
        self.0.notify.notified().await;
    }

    /// Records that a message begins to be served, or has been served.
    pub fn mark_activity(&self) {
        self.0.activity.fetch_add(1, Relaxed);
    }

    /// Sets whether the connection is exempt. An exempt connection is never closed for silence.
    pub fn set_exempt(&self, is_exempt: bool) {
        self.0.is_exempt.store(is_exempt, Relaxed);
    }

    fn activity(&self) -> u64 {
        self.0.activity.load(Relaxed)
    }

    fn is_silent_since(&self, activity: u64) -> bool {
        let now = self.activity();
        now == activity && now.is_multiple_of(2) && !self.0.is_exempt.load(Relaxed)
    }

    fn evict(&self) {
        self.0.notify.notify_one();
    }
}

/// The most connections that one search for a silent connection examines.
const MAX_EXAMINED: usize = 16;

/// A connection that has a place.
#[derive(Debug)]
struct Connected {
    eviction: Eviction,
    heard_at: Instant,
    /// [`Eviction::activity`] when the place was taken or last examined.
    activity: u64,
}

/// A bounded number of places.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    len: usize,
    next: u64,
    /// Connections by sharer, and by the order in which they took or renewed their places.
    by_sharer: HashMap<Sharer, BTreeMap<u64, Connected>>,
    /// The number of places of each sharer, in ascending order.
    counts: BTreeSet<(usize, Sharer)>,
    /// Where the next search for a silent connection begins.
    hand: (Sharer, u64),
}

/// One taken place.
#[derive(Debug)]
#[must_use]
pub(super) struct Place {
    places: Arc<Places>,
    sharer: Sharer,
    number: u64,
}

impl Places {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Mutex::default(),
        })
    }

    /// Takes a place. If none is free, the oldest connection of the address with the most places is
    /// closed for it.
    pub(super) fn take(self: &Arc<Self>, sharer: Sharer, eviction: &Eviction) -> Option<Place> {
        self.take_if(sharer, eviction, |_| true)
    }

    /// Like [`Self::take`], but a connection is closed only if `may_go` is true for the time when
    /// it was last heard.
    pub(super) fn take_if(
        self: &Arc<Self>,
        sharer: Sharer,
        eviction: &Eviction,
        may_go: impl Fn(Instant) -> bool,
    ) -> Option<Place> {
        self.take_or(sharer, eviction, |taken| {
            taken.remove_oldest(sharer, may_go)
        })
    }

    /// Takes a place. If none is free, a connection of the sharer with the most places is closed
    /// for it, provided that it has been silent since it was last examined.
    pub(super) fn take_from_silent(
        self: &Arc<Self>,
        sharer: Sharer,
        eviction: &Eviction,
    ) -> Option<Place> {
        self.take_or(sharer, eviction, |taken| taken.remove_silent(sharer))
    }

    /// Takes a free place, or the one that `make_room` frees.
    fn take_or(
        self: &Arc<Self>,
        sharer: Sharer,
        eviction: &Eviction,
        make_room: impl FnOnce(&mut Taken) -> Option<Eviction>,
    ) -> Option<Place> {
        let mut taken = self.taken.lock();
        if taken.len >= self.max {
            make_room(&mut taken)?.evict();
        }
        let number = taken.insert(sharer, eviction.clone());
        drop(taken);
        let places = Arc::clone(self);
        Some(Place {
            places,
            sharer,
            number,
        })
    }
}

impl Taken {
    /// Frees a place for `newcomer`: that of a silent connection of the sharer with the most
    /// places. Active connections get a second chance: they are examined again after all others of
    /// that sharer.
    fn remove_silent(&mut self, newcomer: Sharer) -> Option<Eviction> {
        let sharer = self.greedier_than(newcomer)?;
        for _ in 0..MAX_EXAMINED {
            let own = self.by_sharer.get_mut(&sharer)?;
            let next = match self.hand {
                (examined, number) if examined == sharer => own.range_mut(number..).next(),
                _ => None,
            };
            let (&number, connected) = match next {
                Some(next) => next,
                None => own.iter_mut().next()?,
            };
            self.hand = (sharer, number + 1);
            if connected.eviction.is_silent_since(connected.activity) {
                return self.remove(sharer, number);
            }
            connected.activity = connected.eviction.activity();
        }
        None
    }

    fn insert(&mut self, sharer: Sharer, eviction: Eviction) -> u64 {
        let number = self.next;
        self.next += 1;
        let own = self.by_sharer.entry(sharer).or_default();
        self.counts.remove(&(own.len(), sharer));
        let connected = Connected {
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
        let Connected { eviction, .. } = own.remove(&number)?;
        let left = own.len();
        self.counts.remove(&(left + 1, sharer));
        match left {
            0 => drop(self.by_sharer.remove(&sharer)),
            _ => drop(self.counts.insert((left, sharer))),
        }
        self.len -= 1;
        Some(eviction)
    }

    /// Frees a place for `newcomer`: that of the oldest connection of the sharer with the most
    /// places, if `may_go` allows it.
    fn remove_oldest(
        &mut self,
        newcomer: Sharer,
        may_go: impl Fn(Instant) -> bool,
    ) -> Option<Eviction> {
        let greediest = self.greedier_than(newcomer)?;
        let (&number, oldest) = self.by_sharer.get(&greediest)?.first_key_value()?;
        match may_go(oldest.heard_at) {
            true => self.remove(greediest, number),
            false => None,
        }
    }

    /// The sharer with the most places, if it still has at least as many as `sharer` after giving
    /// it one.
    fn greedier_than(&self, sharer: Sharer) -> Option<Sharer> {
        let (most, greediest) = *self.counts.last()?;
        let own = self.by_sharer.get(&sharer).map_or(0, BTreeMap::len);
        (greediest != sharer && most > own + 1).then_some(greediest)
    }
}

impl Place {
    /// Records that the connection was heard. Of its sharer's connections it is now the last to be
    /// closed.
    pub(super) fn renew(&mut self) {
        self.move_to(self.sharer);
    }

    /// Counts the place for this sharer from now on.
    pub(super) fn move_to(&mut self, sharer: Sharer) {
        let mut taken = self.places.taken.lock();
        if let Some(eviction) = taken.remove(self.sharer, self.number) {
            self.number = taken.insert(sharer, eviction);
            self.sharer = sharer;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().remove(self.sharer, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    fn sharer(last: u8) -> Sharer {
        Sharer::at(Some([192, 0, 2, last].into()))
    }

    struct Client {
        eviction: Eviction,
        place: Option<Place>,
    }

    impl Client {
        fn is_evicted(&self) -> bool {
            self.eviction.wait().now_or_never().is_some()
        }
    }

    fn client(places: &Arc<Places>, last: u8) -> Client {
        let eviction = Eviction::default();
        let place = places.take(sharer(last), &eviction);
        Client { eviction, place }
    }

    fn check(places: &Places) {
        let taken = places.taken.lock();
        let counts = taken.by_sharer.iter().map(|(n, own)| (own.len(), *n));
        assert_eq!(counts.collect::<BTreeSet<_>>(), taken.counts);
        let len: usize = taken.by_sharer.values().map(BTreeMap::len).sum();
        assert_eq!(len, taken.len);
        assert!(len <= places.max);
        assert!(
            taken.by_sharer.values().all(|own| !own.is_empty()),
            "sharers without places are removed"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_may_have_all_places_and_is_refused_more() {
        let places = Places::new(3);
        let clients: Vec<_> = (0..4).map(|_| client(&places, 1)).collect();
        let have: Vec<_> = clients
            .iter()
            .map(|client| client.place.is_some())
            .collect();
        assert_eq!(have, [true, true, true, false]);
        assert!(!clients.iter().any(Client::is_evicted));
        check(&places);
        drop(clients);
        assert_eq!(places.taken.lock().len, 0);
        check(&places);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_the_greediest_address_gives_way() {
        let places = Places::new(4);
        let crowd: Vec<_> = (0..3).map(|_| client(&places, 1)).collect();
        let _single = client(&places, 2);
        let newcomer = client(&places, 3);
        assert!(newcomer.place.is_some());
        let evicted: Vec<_> = crowd.iter().map(Client::is_evicted).collect();
        assert_eq!(evicted, [true, false, false]);
        // With a second place it would have more than the other address has left.
        assert!(client(&places, 3).place.is_none());
        check(&places);
        // Dropping the place of an evicted connection must not free it again.
        drop(crowd);
        check(&places);
    }

    #[tokio::test(start_paused = true)]
    async fn recently_heard_connection_is_closed_last() {
        let places = Places::new(2);
        let mut first = client(&places, 1);
        let second = client(&places, 1);
        first.place.as_mut().unwrap().renew();
        let newcomer = client(&places, 2);
        assert!(newcomer.place.is_some());
        assert_eq!((first.is_evicted(), second.is_evicted()), (false, true));
        check(&places);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_gives_way_and_an_active_one_does_not() {
        let places = Places::new(3);
        let crowd: Vec<_> = (0..3).map(|_| client(&places, 1)).collect();
        let [active, silent, busy] = &crowd[..] else {
            panic!("three clients")
        };
        active.eviction.mark_activity();
        active.eviction.mark_activity();
        busy.eviction.mark_activity();
        let newcomer = Eviction::default();
        let _place = places.take_from_silent(sharer(2), &newcomer).unwrap();
        assert!(silent.is_evicted() && !active.is_evicted() && !busy.is_evicted());
        check(&places);
        // The connection that was active before has been silent since. The other one still waits
        // for its reply.
        active.eviction.set_exempt(true);
        assert!(places.take_from_silent(sharer(3), &newcomer).is_none());
        active.eviction.set_exempt(false);
        let _place = places.take_from_silent(sharer(3), &newcomer).unwrap();
        assert!(active.is_evicted() && !busy.is_evicted());
        assert!(places.take_from_silent(sharer(4), &newcomer).is_none());
        check(&places);
    }

    #[tokio::test(start_paused = true)]
    async fn search_of_another_sharer_begins_with_its_oldest_connection() {
        let places = Places::new(4);
        let oldest = client(&places, 2);
        let crowd: Vec<_> = (0..3).map(|_| client(&places, 1)).collect();
        let newcomer = Eviction::default();
        let _third = places.take_from_silent(sharer(3), &newcomer).unwrap();
        assert!(crowd[0].is_evicted() && !oldest.is_evicted());
        drop(crowd);
        let later = [client(&places, 2), client(&places, 2)];
        let _fourth = places.take_from_silent(sharer(4), &newcomer).unwrap();
        assert!(oldest.is_evicted() && !later.iter().any(Client::is_evicted));
        check(&places);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_counts_for_the_sharer_that_it_was_moved_to() {
        let places = Places::new(2);
        let mut first = client(&places, 1);
        let _second = client(&places, 1);
        first.place.as_mut().unwrap().move_to(Sharer::User(7));
        check(&places);
        assert!(client(&places, 2).place.is_none(), "each has one");
    }

    #[tokio::test(start_paused = true)]
    async fn place_is_kept_while_may_go_is_false() {
        let places = Places::new(1);
        let first = client(&places, 1);
        let lately = Instant::now();
        let may_go = |heard_at: Instant| heard_at < lately;
        let eviction = Eviction::default();
        assert!(places.take_if(sharer(2), &eviction, may_go).is_none());
        let later = lately + Duration::from_secs(1);
        let may_go = |heard_at: Instant| heard_at < later;
        assert!(
            places.take_if(sharer(2), &eviction, may_go).is_none(),
            "it has only one"
        );
        let places = Places::new(2);
        let _crowd = [client(&places, 1), client(&places, 1)];
        assert!(places.take_if(sharer(2), &eviction, may_go).is_some());
        drop(first);
    }
}
