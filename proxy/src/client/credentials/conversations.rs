//! Limits the number of first logins (logins that a server checks) that wait for their clients, and
//! divides this number fairly between addresses.
//!
//! A conversation is the part of a first login that ends when the client's proof arrives. It uses a
//! server connection until then, and a hostile client may never send a proof. Therefore the number
//! of conversations is limited. One address may use all conversations. If another address needs a
//! conversation, Seawall ends the oldest conversation of the address with the most conversations.
//! This conversation must be at least half a second old, and its address must have at least two
//! conversations more than the address that needs one. The client of the ended conversation may
//! begin another login.
//!
//! Each conversation holds a permit, its [`Turn`]. When a conversation ends, its permit passes to
//! one waiting login. The addresses with waiting logins get permits one after another. So the end
//! of a conversation wakes only one login, even if thousands wait.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::limits::{Turn, Turns};
use seawall_locks::Mutex;
use seawall_transport::Sharer;

/// Minimum age of a conversation that Seawall ends to make room for another conversation. A
/// conversation is a first login that waits for its client (see the module documentation). Most
/// clients send their proof within this time.
const GRACE: Duration = Duration::from_millis(500);

/// Shortest time between two attempts of a waiting login to end a conversation of another address.
/// More frequent attempts would use too much CPU time, because each attempt examines all
/// conversations, and thousands of logins may wait.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(250);

/// The conversations in progress: first logins that wait for their clients (see the module
/// documentation). Each conversation can store one `T`, which is dropped when the conversation
/// ends.
pub(super) struct Conversations<T> {
    /// Limits the number of conversations in progress: each conversation takes one of these turns.
    turns: Turns,
    open: Mutex<Open<T>>,
}

impl<T> fmt::Debug for Conversations<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversations")
            .field("turns", &self.turns)
            .finish_non_exhaustive()
    }
}

struct Open<T> {
    slots: HashMap<u64, OpenConversation<T>>,
    next: u64,
}

struct OpenConversation<T> {
    sharer: Sharer,
    since: Instant,
    held: Option<T>,
    turn: Turn,
}

/// One conversation. Dropping it ends the conversation.
#[must_use]
pub(super) struct Conversation<T> {
    all: Arc<Conversations<T>>,
    number: u64,
}

impl<T> Conversations<T> {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            turns: Turns::new(max),
            open: Mutex::new(Open {
                slots: HashMap::new(),
                next: 0,
            }),
        })
    }

    /// Changes the maximum number of conversations. If the maximum falls, conversations in progress
    /// continue.
    pub(super) fn set_max(&self, max: usize) {
        self.turns.set_count(max);
    }

    /// Begins a conversation as soon as fewer conversations than the maximum are in progress;
    /// `None` if this does not happen before `deadline`. To make room, the oldest conversation of
    /// another address may be ended. Cancel safe.
    pub(super) async fn begin(
        self: &Arc<Self>,
        sharer: Sharer,
        deadline: Instant,
    ) -> Option<Conversation<T>> {
        let turn = async {
            tokio::select! {
                // The first branch is polled first, so that no conversation is ended while a turn
                // is free.
                biased;
                turn = self.turns.take(sharer) => turn,
                turn = self.turn_of_another(sharer) => turn,
            }
        };
        let turn = timeout_at(deadline, turn).await.ok()?;
        let mut open = self.open.lock();
        let number = open.next;
        open.next += 1;
        let slot = OpenConversation {
            sharer,
            since: Instant::now(),
            held: None,
            turn,
        };
        open.slots.insert(number, slot);
        drop(open);
        let all = Arc::clone(self);
        Some(Conversation { all, number })
    }

    /// Ends a conversation of another address to make room for a conversation of `sharer`, as soon
    /// as [`Self::end_another`] allows this. Returns the turn of the ended conversation.
    async fn turn_of_another(&self, sharer: Sharer) -> Turn {
        loop {
            let now = Instant::now();
            let allowed_at = match self.end_another(sharer, now) {
                Ok(turn) => return turn,
                Err(allowed_at) => allowed_at,
            };
            sleep_until(allowed_at.unwrap_or(now).max(now + ATTEMPT_INTERVAL)).await;
        }
    }

    /// Ends a conversation of another address to make room for a conversation of `sharer`. Returns
    /// the turn of the ended conversation. The error contains the time from which a conversation
    /// may be ended. It contains `None` if no other address has enough conversations (see
    /// [`Open::to_end_for`]).
    fn end_another(&self, sharer: Sharer, now: Instant) -> Result<Turn, Option<Instant>> {
        let mut open = self.open.lock();
        let (number, grace_until) = open.to_end_for(sharer).ok_or(None)?;
        if now < grace_until {
            return Err(Some(grace_until));
        }
        let ended = open.slots.remove(&number);
        drop(open);
        let OpenConversation { held, turn, .. } = ended.ok_or(None)?;
        drop(held);
        Ok(turn)
    }
}

impl<T> Open<T> {
    /// Chooses the conversation to end so that `next` can begin a conversation: the oldest
    /// conversation of the address with the most conversations. Returns the number of this
    /// conversation and the time from which it may be ended. `None` if no address has at least two
    /// conversations more than `next`.
    fn to_end_for(&self, next: Sharer) -> Option<(u64, Instant)> {
        let mut counts: HashMap<Sharer, usize> = HashMap::new();
        for slot in self.slots.values() {
            *counts.entry(slot.sharer).or_default() += 1;
        }
        let own = counts.get(&next).copied().unwrap_or_default();
        let ranked = self.slots.iter().filter_map(|(number, slot)| {
            let count = counts.get(&slot.sharer).copied()?;
            let is_greedier = slot.sharer != next && count > own + 1;
            is_greedier.then_some((count, u64::MAX - number, *number, slot.since))
        });
        let (_, _, number, since) = ranked.max()?;
        Some((number, since + GRACE))
    }
}

impl<T> Conversation<T> {
    /// Stores `held` in the conversation. Returns false, and drops `held`, if the conversation was
    /// ended to make room for another conversation.
    pub(super) fn store(&self, held: T) -> bool {
        let mut open = self.all.open.lock();
        match open.slots.get_mut(&self.number) {
            Some(slot) => {
                slot.held = Some(held);
                true
            }
            None => false,
        }
    }

    /// Ends the conversation and returns its stored value. Returns `None` if it stores no value, or
    /// if it was ended earlier to make room for another conversation.
    pub(super) fn take(&self) -> Option<T> {
        let slot = self.all.open.lock().slots.remove(&self.number);
        slot.and_then(|slot| slot.held)
    }
}

impl<T> Drop for Conversation<T> {
    fn drop(&mut self) {
        let ended = self.all.open.lock().slots.remove(&self.number);
        // The conversation is dropped without the lock, because the drop may close a connection and
        // wake a waiting login.
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn};

    use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
    use tokio::task::coop::unconstrained;

    use super::*;

    fn sharer(last: u8) -> Sharer {
        Sharer::at(Some([192, 0, 2, last].into()))
    }

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    async fn begun(
        conversations: &Arc<Conversations<&'static str>>,
        last: u8,
        held: &'static str,
    ) -> Conversation<&'static str> {
        let conversation = conversations.begin(sharer(last), deadline()).await;
        let conversation = conversation.expect("the conversation begins before the deadline");
        assert!(conversation.store(held));
        conversation
    }

    /// A *conversation* is a first login (a login that a server checks) that waits for the proof of
    /// its client.
    #[tokio::test(start_paused = true)]
    async fn a_new_address_ends_the_oldest_conversation_of_the_address_that_has_the_most() {
        let conversations = Conversations::new(4);
        let mut held = Vec::new();
        for (last, name) in [(2, "a"), (1, "b"), (1, "c"), (3, "d")] {
            held.push(begun(&conversations, last, name).await);
        }
        let began = Instant::now();
        let newest = begun(&conversations, 4, "e").await;
        assert_eq!(began.elapsed(), GRACE, "a new conversation is not ended");
        let kept: Vec<_> = held.iter().map(Conversation::take).collect();
        assert_eq!(kept, [Some("a"), None, Some("c"), Some("d")]);
        assert_eq!(newest.take(), Some("e"));
    }

    /// A *conversation* is a first login (a login that a server checks) that waits for the proof of
    /// its client.
    #[tokio::test(start_paused = true)]
    async fn a_login_waits_while_its_address_has_all_conversations() {
        let conversations = Conversations::new(2);
        let first = begun(&conversations, 1, "a").await;
        let second = begun(&conversations, 1, "b").await;
        let began = Instant::now();
        assert!(conversations.begin(sharer(1), deadline()).await.is_none());
        assert_eq!(began.elapsed(), Duration::from_secs(5));
        let waiting = conversations.begin(sharer(1), deadline());
        let (third, first) = tokio::join!(waiting, async move { first.take() });
        assert_eq!((third.is_some(), first), (true, Some("a")));
        assert_eq!(second.take(), Some("b"));
    }

    /// A *conversation* is a first login (a login that a server checks) that waits for the proof of
    /// its client.
    #[tokio::test(start_paused = true)]
    async fn the_login_of_an_address_waits_if_another_address_has_only_one_more_conversation() {
        let conversations = Conversations::new(3);
        let mut held = Vec::new();
        for (last, name) in [(1, "a"), (1, "b"), (2, "c")] {
            held.push(begun(&conversations, last, name).await);
        }
        assert!(conversations.begin(sharer(2), deadline()).await.is_none());
        let third = begun(&conversations, 3, "d").await;
        assert_eq!((held[0].take(), third.take()), (None, Some("d")));
    }

    /// A *conversation* is a first login (a login that a server checks) that waits for the proof of
    /// its client.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_conversation_wakes_only_one_waiting_login() {
        const LOGINS: usize = 100;
        let conversations = Conversations::<()>::new(1);
        let begin = || conversations.begin(sharer(1), deadline());
        let mut held = begin().await;
        let polls = &Cell::new(0);
        let waiting = (0..LOGINS).map(|_| {
            let mut waiting = Box::pin(unconstrained(begin()));
            poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                waiting.as_mut().poll(cx)
            })
        });
        let mut waiting: FuturesUnordered<_> = waiting.collect();
        assert!(waiting.next().now_or_never().is_none());
        assert_eq!(polls.get(), LOGINS);
        for served in 1..LOGINS {
            drop(held);
            held = waiting.next().await.flatten();
            assert!(held.is_some());
            // `next` polls every login that was woken. So the number of polls shows that the end of
            // the conversation woke only the login that has begun its conversation.
            assert!(waiting.next().now_or_never().is_none());
            assert_eq!(polls.get(), LOGINS + served);
        }
    }

    /// A *conversation* is a first login (a login that a server checks) that waits for the proof of
    /// its client.
    #[tokio::test(start_paused = true)]
    async fn a_cancelled_login_passes_its_turn_to_the_next_login() {
        let conversations = Conversations::new(1);
        let held = begun(&conversations, 1, "a").await;
        let [mut first, mut second] =
            [0, 1].map(|_| Box::pin(conversations.begin(sharer(1), deadline())));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        // The turn was given to the first login, which is dropped before it is polled again.
        drop(first);
        assert!(second.now_or_never().flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_a_conversation_drops_its_stored_value() {
        let conversations = Conversations::new(1);
        let held = Arc::new(());
        let conversation = conversations
            .begin(Sharer::Local, deadline())
            .await
            .unwrap();
        assert!(conversation.store(Arc::clone(&held)));
        drop(conversation);
        assert_eq!(Arc::strong_count(&held), 1);
        assert_eq!(conversations.open.lock().slots.len(), 0);
    }
}
