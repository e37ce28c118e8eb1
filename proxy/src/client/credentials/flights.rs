//! Decides which login of an unknown user becomes the first login (see [`super::first_login`]),
//! while other logins of that user wait: the single-flight pattern.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::{
        Notify,
        futures::{Notified, OwnedNotified},
    },
    time::{Instant, timeout_at},
};

use super::store::UserName;
use seawall_locks::Mutex;
use seawall_transport::Sharer;

/// How long a first login may delay other first logins of the same user from the same address.
/// After that, the next first login of this user from this address replaces the stalled one.
const STALLED_AFTER: Duration = Duration::from_millis(250);

/// Maximum total time that a login waits for first logins from other addresses. The limit is
/// short, so that stalled first logins from one address do not delay the same user's logins from
/// another address.
const OTHERS_LIMIT: Duration = Duration::from_millis(50);

/// The first logins in progress: at most one for each user and address. A first login that stalled
/// and was replaced does not count.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<FlightsState>);

#[derive(Debug, Default)]
struct FlightsState {
    users: HashMap<UserName, UserFlights>,
    next_number: u64,
}

#[derive(Debug, Default)]
struct UserFlights {
    in_progress: HashMap<Sharer, Flight>,
    /// Number of [`FirstLoginClaim`]s, including the `FirstLoginClaim`s of first logins that were
    /// replaced.
    leads: usize,
    /// The addresses with waiting logins.
    waiting: HashMap<Sharer, WaitingLogins>,
    /// Notified when Seawall learns the user's keys (the user becomes known), or that a server does
    /// not know the user (the user becomes unknown).
    resolved: Arc<Notify>,
}

/// The waiting logins of one user from one address.
#[derive(Debug, Default)]
struct WaitingLogins {
    /// Number of waiting logins: each has a [`WaitingLogin`].
    count: usize,
    /// Notifies one login when a first login ends, and all logins when the user becomes known or
    /// unknown. A notified login tries to become the first login. So if thousands of logins wait,
    /// the end of a first login wakes at most one login of each address.
    notify: Arc<Notify>,
}

#[derive(Debug)]
struct Flight {
    number: u64,
    since: Instant,
}

/// The right of one login to be a user's first login. Dropping it lets another login claim this
/// right.
#[derive(Debug)]
#[must_use]
pub(super) struct FirstLoginClaim {
    flights: Arc<Flights>,
    user: UserName,
    sharer: Sharer,
    number: u64,
    resolved: Arc<Notify>,
}

/// The wait of one login while another login is the first login of the same user.
#[derive(Debug)]
pub(super) struct FirstLoginWait {
    notified: OwnedNotified,
    until: Instant,
    waiter: WaitingLogin,
}

/// One login that waits, counted in [`WaitingLogins::count`]. Dropping this value removes the login
/// from the count.
#[derive(Debug)]
struct WaitingLogin {
    flights: Arc<Flights>,
    user: UserName,
    sharer: Sharer,
}

impl FirstLoginWait {
    /// Returns at `deadline` at the latest. Returns earlier if the login should try again to become
    /// the first login:
    ///
    /// - A first login of the user has ended, and it is this login's turn.
    /// - The user has become known or unknown.
    /// - The login has waited for as long as the first logins in progress may delay it.
    ///
    /// If this future is dropped, the turn passes to the next login of the address.
    pub(super) async fn wait(self, deadline: Instant) {
        let Self {
            notified,
            until,
            waiter,
        } = self;
        drop(timeout_at(until.min(deadline), notified).await);
        drop(waiter);
    }
}

impl Flights {
    /// Claims the right to be the first login of a user (see [`super::first_login`]), for a login
    /// that has waited since `began`. If the login must still wait for other first logins of
    /// the user, returns a [`FirstLoginWait`] for them. After this wait, the login may try again.
    pub(super) fn lead(
        self: &Arc<Self>,
        user: &UserName,
        sharer: Sharer,
        began: Instant,
    ) -> Result<FirstLoginClaim, Box<FirstLoginWait>> {
        let now = Instant::now();
        let mut state = self.0.lock();
        if let Some(flights) = state.users.get_mut(user)
            && let Some(until) = flights
                .wait_until(sharer, began)
                .filter(|until| *until > now)
        {
            let waiters = flights.waiting.entry(sharer).or_default();
            waiters.count += 1;
            return Err(Box::new(FirstLoginWait {
                notified: Arc::clone(&waiters.notify).notified_owned(),
                until,
                waiter: WaitingLogin {
                    flights: Arc::clone(self),
                    user: user.clone(),
                    sharer,
                },
            }));
        }
        let number = state.next_number;
        state.next_number += 1;
        let flights = state.users.entry(user.clone()).or_default();
        let flight = Flight { number, since: now };
        flights.in_progress.insert(sharer, flight);
        flights.leads += 1;
        Ok(FirstLoginClaim {
            flights: Arc::clone(self),
            user: user.clone(),
            sharer,
            number,
            resolved: Arc::clone(&flights.resolved),
        })
    }

    /// Records that Seawall has learned the user's keys, or that a server does not know the user.
    /// Wakes all waiting logins of this user. Also wakes the logins that have a [`FirstLoginClaim`]
    /// but have not begun their first login. None of these logins needs a first login any more.
    pub(super) fn resolve(&self, user: &UserName) {
        let state = self.0.lock();
        let Some(flights) = state.users.get(user) else {
            return;
        };
        let resolved = Arc::clone(&flights.resolved);
        let waiting = flights.waiting.values();
        let waiting: Vec<_> = waiting.map(|waiters| Arc::clone(&waiters.notify)).collect();
        drop(state);
        resolved.notify_waiters();
        waiting.iter().for_each(|notify| notify.notify_waiters());
    }
}

impl FlightsState {
    /// Removes the user if it has no first logins and no waiting logins.
    fn remove_unused(&mut self, user: &UserName) {
        let flights = self.users.get(user);
        if flights.is_some_and(|flights| flights.leads == 0 && flights.waiting.is_empty()) {
            self.users.remove(user);
        }
    }
}

impl UserFlights {
    /// Returns the [`WaitingLogins::notify`] of each address that has waiting logins but no first
    /// login in progress. If an address has a first login in progress, its waiting logins continue
    /// when this first login ends.
    fn notifies_without_flight(&self) -> Vec<Arc<Notify>> {
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|(sharer, _)| !self.in_progress.contains_key(*sharer));
        let notifies = waiting.map(|(_, waiters)| Arc::clone(&waiters.notify));
        notifies.collect()
    }

    /// The time until which a login of `sharer` waits for the first logins in progress; `None` if
    /// no first login is in progress. The login has waited since `began`.
    fn wait_until(&self, sharer: Sharer, began: Instant) -> Option<Instant> {
        let until = |(from, flight): (&Sharer, &Flight)| {
            let stalled_at = flight.since + STALLED_AFTER;
            match *from == sharer {
                true => stalled_at,
                false => stalled_at.min(began + OTHERS_LIMIT),
            }
        };
        self.in_progress.iter().map(until).max()
    }
}

impl FirstLoginClaim {
    /// The user of this first login.
    pub(super) fn user(&self) -> &UserName {
        &self.user
    }

    /// The address of the client of this first login.
    pub(super) fn sharer(&self) -> Sharer {
        self.sharer
    }

    /// Resolves at the first of these events after this call: Seawall learns the user's keys (the
    /// user becomes known), or that a server does not know the user (the user becomes unknown).
    pub(super) fn resolved(&self) -> Notified<'_> {
        self.resolved.notified()
    }
}

impl Drop for FirstLoginClaim {
    fn drop(&mut self) {
        let mut state = self.flights.0.lock();
        let Some(flights) = state.users.get_mut(&self.user) else {
            return;
        };
        flights.leads -= 1;
        let own = flights.in_progress.get(&self.sharer);
        // A newer first login of the same address may have replaced this first login after it had
        // stalled. Then no login waits for this first login.
        let waiting = if own.is_some_and(|flight| flight.number == self.number) {
            flights.in_progress.remove(&self.sharer);
            flights.notifies_without_flight()
        } else {
            Vec::new()
        };
        state.remove_unused(&self.user);
        drop(state);
        waiting.iter().for_each(|notify| notify.notify_one());
    }
}

impl Drop for WaitingLogin {
    fn drop(&mut self) {
        let mut state = self.flights.0.lock();
        let Some(flights) = state.users.get_mut(&self.user) else {
            return;
        };
        if let Some(waiters) = flights.waiting.get_mut(&self.sharer) {
            waiters.count -= 1;
            if waiters.count == 0 {
                flights.waiting.remove(&self.sharer);
            }
        }
        state.remove_unused(&self.user);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn};

    use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
    use tokio::{
        task::coop::unconstrained,
        time::{advance, timeout},
    };

    use super::*;

    fn user() -> UserName {
        UserName {
            source: "admin".into(),
            name: "app".into(),
        }
    }

    fn from(address: u8) -> Sharer {
        Sharer::at(Some([192, 0, 2, address].into()))
    }

    fn lead(
        flights: &Arc<Flights>,
        address: u8,
        began: Instant,
    ) -> Result<FirstLoginClaim, Box<FirstLoginWait>> {
        flights.lead(&user(), from(address), began)
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    /// Other logins of this user wait until the first login ends, but only for a limited time.
    #[tokio::test(start_paused = true)]
    async fn logins_from_the_address_of_a_stalled_first_login_wait_longer_than_other_logins() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let _stalled = lead(&flights, 1, began).unwrap();
        let own = lead(&flights, 1, began).err().unwrap();
        let other = lead(&flights, 2, began).err().unwrap();
        assert_eq!(own.until, began + STALLED_AFTER);
        assert_eq!(other.until, began + OTHERS_LIMIT);
        other.wait(began + STALLED_AFTER).await;
        let _other = lead(&flights, 2, began).unwrap();
        advance(STALLED_AFTER).await;
        let _own = lead(&flights, 1, began).unwrap();
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    /// Other logins of this user wait until the first login ends, but only for a limited time.
    #[tokio::test(start_paused = true)]
    async fn many_stalled_first_logins_delay_a_login_no_longer_than_one_of_them_does() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let mut stalled = Vec::new();
        for address in 1..=100 {
            // These logins have waited for `OTHERS_LIMIT`, so their first logins begin at once.
            let waited = Instant::now() - OTHERS_LIMIT;
            stalled.push(lead(&flights, address, waited).unwrap());
            advance(OTHERS_LIMIT / 100).await;
        }
        assert!(lead(&flights, 200, began).is_ok());
        assert!(lead(&flights, 201, Instant::now()).is_err());
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    #[tokio::test(start_paused = true)]
    async fn waiting_logins_of_a_user_try_again_when_the_first_login_of_the_user_ends() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let first = lead(&flights, 1, began).unwrap();
        let waits = [1, 2].map(|address| lead(&flights, address, began).err().unwrap());
        drop(first);
        for wait in waits {
            timeout(Duration::from_millis(1), wait.wait(began + STALLED_AFTER))
                .await
                .unwrap();
        }
        assert!(flights.0.lock().users.is_empty());
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_first_login_wakes_only_one_login_of_its_address() {
        const LOGINS: usize = 100;
        let flights = &Arc::<Flights>::default();
        let began = Instant::now();
        let begin_first_login = || async move {
            loop {
                match lead(flights, 1, began) {
                    Ok(lead) => return lead,
                    Err(wait) => wait.wait(began + STALLED_AFTER).await,
                }
            }
        };
        let mut held = begin_first_login().await;
        let polls = &Cell::new(0);
        let waiting = (0..LOGINS).map(|_| {
            let mut waiting = Box::pin(unconstrained(begin_first_login()));
            poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                waiting.as_mut().poll(cx)
            })
        });
        let mut waiting: FuturesUnordered<_> = waiting.collect();
        assert!(waiting.next().now_or_never().is_none());
        assert_eq!(polls.get(), LOGINS);
        for ended in 1..LOGINS {
            drop(held);
            held = waiting.next().await.unwrap();
            // `next` polls every login that was woken. So the number of polls shows that the end of
            // the first login woke only the login that is now the first login.
            assert!(waiting.next().now_or_never().is_none());
            assert_eq!(polls.get(), LOGINS + ended);
        }
        drop((held, waiting));
        assert!(flights.0.lock().users.is_empty());
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    /// Two addresses may each have a first login of the same user in progress.
    #[tokio::test(start_paused = true)]
    async fn a_login_is_not_woken_while_a_first_login_from_its_own_address_is_in_progress() {
        let flights = Arc::<Flights>::default();
        // These logins have waited for `OTHERS_LIMIT`, so their first logins begin at once.
        let began = Instant::now() - OTHERS_LIMIT;
        let [first, second] = [1, 2].map(|address| lead(&flights, address, began).unwrap());
        let wait = lead(&flights, 2, began).err().unwrap();
        let mut waiting = Box::pin(wait.wait(began + STALLED_AFTER));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(second);
        assert!(waiting.now_or_never().is_some());
        assert!(flights.0.lock().users.is_empty());
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    #[tokio::test(start_paused = true)]
    async fn the_next_login_is_woken_if_a_woken_login_is_cancelled() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let first = lead(&flights, 1, began).unwrap();
        let [mut cancelled, mut next] = [0, 1].map(|_| {
            let wait = lead(&flights, 1, began).err().unwrap();
            Box::pin(wait.wait(began + STALLED_AFTER))
        });
        assert!(cancelled.as_mut().now_or_never().is_none());
        assert!(next.as_mut().now_or_never().is_none());
        drop(first);
        // The end of `first` notified this login, which is dropped before it is polled again.
        drop(cancelled);
        assert!(next.now_or_never().is_some());
        assert!(flights.0.lock().users.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn all_waiting_logins_of_a_user_continue_when_seawall_learns_the_keys_of_the_user() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let _first_login = lead(&flights, 1, began).unwrap();
        let waits = [1, 1, 2].map(|address| lead(&flights, address, began).err().unwrap());
        flights.resolve(&user());
        for wait in waits {
            assert!(wait.wait(began + STALLED_AFTER).now_or_never().is_some());
        }
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_stalled_first_login_does_not_end_its_replacement() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let stalled = lead(&flights, 1, began).unwrap();
        advance(STALLED_AFTER).await;
        let successor = lead(&flights, 1, began).unwrap();
        drop(stalled);
        assert!(lead(&flights, 1, began).is_err());
        drop(successor);
        assert!(lead(&flights, 1, began).is_ok());
    }

    /// If Seawall does not have the keys of a user, it forwards the user's first login to a server.
    /// After the login has stalled, another login replaces it as the first login.
    #[tokio::test(start_paused = true)]
    async fn a_stalled_first_login_is_notified_when_seawall_learns_the_keys_of_its_user() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let stalled = lead(&flights, 1, began).unwrap();
        advance(STALLED_AFTER).await;
        drop(lead(&flights, 1, began).unwrap());
        let resolved = stalled.resolved();
        flights.resolve(&user());
        assert!(resolved.now_or_never().is_some());
        drop(stalled);
        assert!(flights.0.lock().users.is_empty());
    }
}
