//! Places for connections, shared by address.
//!
//! One address may have all places. If none is left and another address wants one, the oldest connection of the address that
//! has most is closed, as long as that address has no fewer than the other then. So a crowd of one address never keeps
//! another out, and an address that is alone loses nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Tells a connection's task to end, for the sake of others.
#[derive(Clone, Debug, Default)]
pub struct Eviction(Arc<Notify>);

impl Eviction {
    /// Ready when the connection has to be closed. Cancel safe.
    pub async fn wait(&self) {
        self.0.notified().await;
    }

    fn evict(&self) {
        self.0.notify_one();
    }
}

/// A bounded number of places.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

type Network = Option<IpAddr>;

#[derive(Debug, Default)]
struct Taken {
    len: usize,
    next: u64,
    /// By address, and by age or by when they were heard last.
    by_network: HashMap<Network, BTreeMap<u64, (Eviction, Instant)>>,
    /// How many places each address has.
    counts: BTreeSet<(usize, Network)>,
}

/// One taken place.
#[derive(Debug)]
#[must_use]
pub(super) struct Place {
    places: Arc<Places>,
    network: Network,
    number: u64,
}

impl Places {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Mutex::default(),
        })
    }

    /// A place, if need be that of another address.
    pub(super) fn take(self: &Arc<Self>, network: Network, eviction: &Eviction) -> Option<Place> {
        self.take_if(network, eviction, |_| true)
    }

    /// The same; another one's place is only taken if `may_go` says so of when it was heard last.
    pub(super) fn take_if(
        self: &Arc<Self>,
        network: Network,
        eviction: &Eviction,
        may_go: impl Fn(Instant) -> bool,
    ) -> Option<Place> {
        let mut taken = self.taken.lock();
        if taken.len >= self.max {
            let (greediest, number, evicted) = taken.gives_way_to(network, may_go)?;
            taken.remove(greediest, number);
            evicted.evict();
        }
        let number = taken.insert(network, eviction.clone());
        drop(taken);
        let places = Arc::clone(self);
        Some(Place {
            places,
            network,
            number,
        })
    }
}

impl Taken {
    fn insert(&mut self, network: Network, eviction: Eviction) -> u64 {
        let number = self.next;
        self.next += 1;
        let own = self.by_network.entry(network).or_default();
        self.counts.remove(&(own.len(), network));
        own.insert(number, (eviction, Instant::now()));
        self.counts.insert((own.len(), network));
        self.len += 1;
        number
    }

    fn remove(&mut self, network: Network, number: u64) -> Option<Eviction> {
        let own = self.by_network.get_mut(&network)?;
        let (eviction, _) = own.remove(&number)?;
        let left = own.len();
        self.counts.remove(&(left + 1, network));
        match left {
            0 => drop(self.by_network.remove(&network)),
            _ => drop(self.counts.insert((left, network))),
        }
        self.len -= 1;
        Some(eviction)
    }

    fn gives_way_to(
        &self,
        network: Network,
        may_go: impl Fn(Instant) -> bool,
    ) -> Option<(Network, u64, Eviction)> {
        let (most, greediest) = *self.counts.last()?;
        let own = self.by_network.get(&network).map_or(0, BTreeMap::len);
        // Otherwise the newcomer would have more than is left to the other.
        if greediest == network || most <= own + 1 {
            return None;
        }
        let (number, (eviction, heard_at)) = self.by_network.get(&greediest)?.first_key_value()?;
        may_go(*heard_at).then(|| (greediest, *number, eviction.clone()))
    }
}

impl Place {
    /// Its connection was heard: of its address it is the last now that gives way.
    pub(super) fn heard(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(eviction) = taken.remove(self.network, self.number) {
            self.number = taken.insert(self.network, eviction);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().remove(self.network, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;

    use super::*;

    fn network(last: u8) -> Network {
        Some(IpAddr::from([192, 0, 2, last]))
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
        let place = places.take(network(last), &eviction);
        Client { eviction, place }
    }

    fn check(places: &Places) {
        let taken = places.taken.lock();
        let counts = taken.by_network.iter().map(|(n, own)| (own.len(), *n));
        assert_eq!(counts.collect::<BTreeSet<_>>(), taken.counts);
        let len: usize = taken.by_network.values().map(BTreeMap::len).sum();
        assert_eq!(len, taken.len);
        assert!(len <= places.max);
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
        // A second one would be more than is left to the other.
        assert!(client(&places, 3).place.is_none());
        check(&places);
        // One that was evicted leaves no second time.
        drop(crowd);
        check(&places);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_heard_lately_is_the_last_to_give_way() {
        let places = Places::new(2);
        let mut first = client(&places, 1);
        let second = client(&places, 1);
        first.place.as_mut().unwrap().heard();
        let newcomer = client(&places, 2);
        assert!(newcomer.place.is_some());
        assert_eq!((first.is_evicted(), second.is_evicted()), (false, true));
        check(&places);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_left_alone_as_long_as_it_has_to_be() {
        let places = Places::new(1);
        let first = client(&places, 1);
        let lately = Instant::now();
        let may_go = |heard_at: Instant| heard_at < lately;
        let eviction = Eviction::default();
        assert!(places.take_if(network(2), &eviction, may_go).is_none());
        let later = lately + Duration::from_secs(1);
        let may_go = |heard_at: Instant| heard_at < later;
        assert!(
            places.take_if(network(2), &eviction, may_go).is_none(),
            "it has but one"
        );
        let places = Places::new(2);
        let _crowd = [client(&places, 1), client(&places, 1)];
        assert!(places.take_if(network(2), &eviction, may_go).is_some());
        drop(first);
    }
}
