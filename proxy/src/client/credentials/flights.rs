//! Decides which login introduces a user to the servers (see [`super::introduction`]), while other
//! first logins of that user wait: the single-flight pattern.

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

/// How long an introduction may delay other introductions of the same user from the same address.
/// After that, the next introduction of this user from this address replaces the stalled
/// introduction.
const STALLED_AFTER: Duration = Duration::from_millis(250);

/// Maximum total time that a login waits for introductions from other addresses. The limit is
/// short, so that stalled introductions from one address do not delay the same user's logins from
/// another address.
const OTHERS_LIMIT: Duration = Duration::from_millis(50);

/// The introductions in progress, at most one for each user and address.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    users: HashMap<UserName, UserFlights>,
    next_number: u64,
}

#[derive(Debug, Default)]
struct UserFlights {
    in_progress: HashMap<Sharer, Flight>,
    /// Number of [`Lead`]s, including those of introductions that were replaced.
    leads: usize,
    /// Notified when an introduction ends.
    ended: Arc<Notify>,
    /// Notified when the user becomes known or unknown.
    resolved: Arc<Notify>,
}

#[derive(Debug)]
struct Flight {
    number: u64,
    since: Instant,
}

/// The right of one login to introduce a user. Dropping it lets another login claim this right.
#[derive(Debug)]
#[must_use]
pub(super) struct Lead {
    flights: Arc<Flights>,
    user: UserName,
    sharer: Sharer,
    number: u64,
    resolved: Arc<Notify>,
}

/// A login's wait for an introduction by another login.
#[derive(Debug)]
pub(super) struct Wait {
    ended: OwnedNotified,
    until: Instant,
}

impl Wait {
    /// Returns when an introduction of the user has ended, when the login has waited long enough,
    /// or at `deadline`.
    pub(super) async fn wait(self, deadline: Instant) {
        drop(timeout_at(self.until.min(deadline), self.ended).await);
    }
}

impl Flights {
    /// Claims the right to introduce a user to the servers (see [`super::introduction`]), for a
    /// login that has waited since `began`. If the login must still wait for other introductions of
    /// the user, returns a [`Wait`] for them. After this wait, the login may try again.
    pub(super) fn lead(
        self: &Arc<Self>,
        user: &UserName,
        sharer: Sharer,
        began: Instant,
    ) -> Result<Lead, Wait> {
        let now = Instant::now();
        let mut state = self.0.lock();
        if let Some(flights) = state.users.get(user)
            && let Some(until) = flights
                .wait_until(sharer, began)
                .filter(|until| *until > now)
        {
            let ended = Arc::clone(&flights.ended).notified_owned();
            return Err(Wait { ended, until });
        }
        let number = state.next_number;
        state.next_number += 1;
        let flights = state.users.entry(user.clone()).or_default();
        let flight = Flight { number, since: now };
        flights.in_progress.insert(sharer, flight);
        flights.leads += 1;
        Ok(Lead {
            flights: Arc::clone(self),
            user: user.clone(),
            sharer,
            number,
            resolved: Arc::clone(&flights.resolved),
        })
    }

    /// Records that a user has become known or unknown, so that introductions of this user that
    /// still wait need not begin.
    pub(super) fn resolve(&self, user: &UserName) {
        let state = self.0.lock();
        let resolved = state.users.get(user);
        let resolved = resolved.map(|flights| Arc::clone(&flights.resolved));
        drop(state);
        if let Some(resolved) = resolved {
            resolved.notify_waiters();
        }
    }
}

impl UserFlights {
    /// The time until which a login of `sharer` waits for the introductions in progress; `None` if
    /// there are none. The login has waited since `began`.
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

impl Lead {
    /// The user to introduce.
    pub(super) fn user(&self) -> &UserName {
        &self.user
    }

    /// Ready when the user becomes known or unknown after this call.
    pub(super) fn resolved(&self) -> Notified<'_> {
        self.resolved.notified()
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let mut state = self.flights.0.lock();
        let Some(flights) = state.users.get_mut(&self.user) else {
            return;
        };
        let own = flights.in_progress.get(&self.sharer);
        // A newer introduction of the same address may have replaced this introduction after it had
        // stalled.
        if own.is_some_and(|flight| flight.number == self.number) {
            flights.in_progress.remove(&self.sharer);
        }
        let ended = Arc::clone(&flights.ended);
        flights.leads -= 1;
        if flights.leads == 0 {
            state.users.remove(&self.user);
        }
        drop(state);
        ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::time::{advance, timeout};

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

    fn lead(flights: &Arc<Flights>, address: u8, began: Instant) -> Result<Lead, Wait> {
        flights.lead(&user(), from(address), began)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_introduction_delays_its_own_address_longer_than_other_addresses() {
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

    #[tokio::test(start_paused = true)]
    async fn many_stalled_introductions_delay_a_login_no_longer_than_one_stalled_introduction() {
        let flights = Arc::<Flights>::default();
        let began = Instant::now();
        let mut stalled = Vec::new();
        for address in 1..=100 {
            // These logins have waited for `OTHERS_LIMIT`, so their introductions begin at once.
            let waited = Instant::now() - OTHERS_LIMIT;
            stalled.push(lead(&flights, address, waited).unwrap());
            advance(OTHERS_LIMIT / 100).await;
        }
        assert!(lead(&flights, 200, began).is_ok());
        assert!(lead(&flights, 201, Instant::now()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn logins_that_wait_for_an_introduction_try_again_when_it_ends() {
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

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_replaced_introduction_does_not_end_its_replacement() {
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

    #[tokio::test(start_paused = true)]
    async fn a_replaced_introduction_is_notified_when_its_user_becomes_known() {
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
