//! Turns: permits to run long work. Long work runs only while it has a turn. The number of turns is
//! limited, so that only a few long tasks at a time can delay short operations.

use std::{
    fmt,
    hash::Hash,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use super::fair::{Keyed, NewestFirst, OldestFirst, UserRoundRobin, WaiterQueue};
use seawall_locks::Mutex;
use seawall_transport::Sharer;

/// A new waiter removes the waiters that have left only if at least this number of waiters is
/// queued. A waiter leaves when its future is dropped.
const CLEAN_AT: usize = 64;

/// A key by which waiting work is grouped: a sharer (an address or a user), or a sharer and the
/// number of its user.
pub trait TurnKey: Copy + Eq + Hash + Send + 'static {}

impl<K: Copy + Eq + Hash + Send + 'static> TurnKey for K {}

/// A bounded number of turns: permits to run long work. Waiting work is grouped by a key, by
/// default by the sharer (an address or a user). The sharers are served round-robin. If the key
/// also has the number of a user, the users are served round-robin, and so are the sharers of each
/// user.
#[derive(Clone, Debug)]
pub(crate) struct Turns<K: TurnKey = Sharer>(Arc<Mutex<TurnsState<K>>>);

struct TurnsState<K: TurnKey> {
    count: usize,
    /// Number of turns that are taken. It may exceed `count` after `count` was reduced.
    taken: usize,
    /// When the queue has this number of waiters, waiters that have left are removed.
    clean_at: usize,
    /// The waiting work. While turns are free, the queue contains only waiters that have left.
    waiters: Box<TurnWaiters<K>>,
}

impl<K: TurnKey> fmt::Debug for TurnsState<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnsState")
            .field("count", &self.count)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

/// The waiting work, in the order in which it gets turns.
type TurnWaiters<K> = dyn WaiterQueue<Key = K, Waiter = oneshot::Sender<Turn<K>>> + Send;

/// One turn. Dropping it gives the turn back, so that the next waiter can get it.
#[derive(Debug)]
#[must_use]
pub struct Turn<K: TurnKey = Sharer>(Turns<K>);

impl Turns {
    /// Allows `count` turns at a time. The waiters of a sharer are served in order of arrival.
    pub(crate) fn new(count: usize) -> Self {
        Self::with_queue(count, Box::new(Keyed::<Sharer, OldestFirst<_>>::default()))
    }

    /// Allows `count` turns at a time. The oldest waiter of a sharer gets the first of every four
    /// turns of the sharer. The newest waiter gets each of the other three turns.
    pub(crate) fn newest_first(count: usize) -> Self {
        Self::with_queue(count, Box::new(Keyed::<Sharer, NewestFirst<_>>::default()))
    }
}

impl Turns<(u64, Sharer)> {
    /// Allows `count` turns at a time. The users are served round-robin, and so are the sharers of
    /// each user. The number in a key identifies the user.
    pub(crate) fn by_user(count: usize) -> Self {
        Self::with_queue(count, Box::new(UserRoundRobin::default()))
    }
}

impl<K: TurnKey> Turns<K> {
    fn with_queue(count: usize, waiters: Box<TurnWaiters<K>>) -> Self {
        Self(Arc::new(Mutex::new(TurnsState {
            count,
            taken: 0,
            clean_at: CLEAN_AT,
            waiters,
        })))
    }

    /// Waits for a turn. Cancel safe: a dropped waiter gets no turn.
    pub(crate) async fn take(&self, key: K) -> Turn<K> {
        loop {
            let given = match self.take_or_wait(key) {
                Ok(turn) => return turn,
                Err(given) => given,
            };
            // Receiving fails only if the waiter was dropped from the queue. Then this work waits
            // again.
            if let Ok(turn) = given.await {
                return turn;
            }
        }
    }

    /// Returns a turn for work that consists of many short steps and can wait between two steps.
    pub(crate) fn stepwise(&self, key: K) -> StepwiseTurn<'_, K> {
        StepwiseTurn {
            turns: self,
            key,
            held: HeldTurn::Nothing,
        }
    }

    /// Changes the number of turns. Turns that are taken continue. A waiter gets a turn only while
    /// fewer turns than the new number are taken.
    pub(crate) fn set_count(&self, count: usize) {
        self.0.lock().count = count;
        while let Some((waiter, turn)) = self.next_served() {
            // If the waiter has just left, the send fails and drops the turn.
            drop(waiter.send(turn));
        }
    }

    /// Number of free turns.
    pub(crate) fn free(&self) -> usize {
        let state = self.0.lock();
        state.count.saturating_sub(state.taken)
    }

    /// Number of turns that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.0.lock().taken
    }

    /// Number of waiters, including waiters that have left and were not removed yet.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().waiters.len()
    }

    fn take_or_wait(&self, key: K) -> Result<Turn<K>, oneshot::Receiver<Turn<K>>> {
        let mut state = self.0.lock();
        if state.taken < state.count {
            return Ok(self.take_free(&mut state));
        }
        if state.waiters.len() >= state.clean_at {
            // Waiters that have left are removed. The next removal follows when the number of
            // waiters has doubled.
            state.waiters.retain(&|waiter| !waiter.is_closed());
            state.clean_at = CLEAN_AT.max(2 * state.waiters.len());
        }
        let (turn, given) = oneshot::channel();
        state.waiters.push(key, turn);
        Err(given)
    }

    fn take_free(&self, state: &mut TurnsState<K>) -> Turn<K> {
        state.taken += 1;
        Turn(self.clone())
    }

    /// Takes a free turn for the next waiter, and skips waiters that have left. `None` if no turn
    /// is free or no waiter remains.
    fn next_served(&self) -> Option<(oneshot::Sender<Turn<K>>, Turn<K>)> {
        let mut state = self.0.lock();
        if state.taken >= state.count {
            return None;
        }
        let waiter = state.waiters.pop_present(&|waiter| !waiter.is_closed())?;
        let turn = self.take_free(&mut state);
        Some((waiter, turn))
    }
}

impl<K: TurnKey> Drop for Turn<K> {
    fn drop(&mut self) {
        self.0.0.lock().taken -= 1;
        if let Some((waiter, turn)) = self.0.next_served() {
            // If the waiter has just left, the send fails and drops the turn, which serves the next
            // waiter.
            drop(waiter.send(turn));
        }
    }
}

#[derive(Debug)]
enum HeldTurn<K: TurnKey> {
    Nothing,
    Waiting(oneshot::Receiver<Turn<K>>),
    Turn(#[expect(dead_code, reason = "dropped, never read")] Turn<K>),
}

/// A turn for work that consists of many short steps. The work waits for a turn before a step,
/// keeps the turn for the next steps, and releases it when the work cannot continue.
#[derive(Debug)]
pub(crate) struct StepwiseTurn<'a, K: TurnKey = Sharer> {
    turns: &'a Turns<K>,
    key: K,
    held: HeldTurn<K>,
}

impl<K: TurnKey> StepwiseTurn<'_, K> {
    /// Ready when the work has a turn.
    pub(crate) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.held = match &mut self.held {
                HeldTurn::Turn(_) => return Poll::Ready(()),
                HeldTurn::Nothing => match self.turns.take_or_wait(self.key) {
                    Ok(turn) => HeldTurn::Turn(turn),
                    Err(given) => HeldTurn::Waiting(given),
                },
                HeldTurn::Waiting(given) => match ready!(std::pin::Pin::new(given).poll(cx)) {
                    Ok(turn) => HeldTurn::Turn(turn),
                    Err(_) => HeldTurn::Nothing,
                },
            };
        }
    }

    /// Releases the turn, or stops waiting for one.
    pub(crate) fn release(&mut self) {
        self.held = HeldTurn::Nothing;
    }

    /// True while the work waits for a turn.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.held, HeldTurn::Waiting(_))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;

    use super::*;

    fn from(address: u8) -> Sharer {
        Sharer::at(Some([192, 0, 2, address].into()))
    }

    fn take_now(turns: &Turns, sharer: Sharer) -> Option<Turn> {
        turns.take(sharer).now_or_never()
    }

    #[test]
    fn the_number_of_turns_can_change_while_turns_are_taken() {
        let turns = Turns::new(2);
        let [first, second] = [1, 2].map(|address| take_now(&turns, from(address)).unwrap());
        turns.set_count(1);
        drop(first);
        assert!(take_now(&turns, from(3)).is_none());
        let mut waiting = Box::pin(turns.take(from(3)));
        assert!(waiting.as_mut().now_or_never().is_none());
        turns.set_count(2);
        let third = waiting.now_or_never();
        assert!(third.is_some());
        assert_eq!((turns.taken(), turns.free()), (2, 0));
        drop((second, third));
        assert_eq!((turns.taken(), turns.free()), (0, 2));
    }

    /// Waiters that have left are skipped.
    #[test]
    fn newest_first_gives_every_fourth_turn_to_the_oldest_waiter() {
        let turns = Turns::newest_first(1);
        let held = take_now(&turns, from(1)).unwrap();
        let mut waiters: Vec<_> = (0..4).map(|_| Box::pin(turns.take(from(1)))).collect();
        for waiter in &mut waiters {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        drop(waiters.pop());
        // The waiter at index 3 has left. The oldest waiter gets one of every four turns, beginning
        // with the first turn.
        drop(held);
        let mut served = Vec::new();
        while served.len() < 3 {
            for (index, waiter) in waiters.iter_mut().enumerate() {
                if !served.contains(&index) && waiter.as_mut().now_or_never().is_some() {
                    served.push(index);
                }
            }
        }
        assert_eq!(served, [0, 2, 1]);
    }

    #[test]
    fn waiting_addresses_get_turns_alternately() {
        let turns = Turns::new(1);
        let held = take_now(&turns, from(1)).unwrap();
        let mut greedy = [0, 1].map(|_| Box::pin(turns.take(from(1))));
        for waiter in &mut greedy {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        let mut other = Box::pin(turns.take(from(2)));
        assert!(other.as_mut().now_or_never().is_none());
        drop(held);
        let [first, second] = greedy;
        let first = first.now_or_never().unwrap();
        let mut second = second;
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.as_mut().now_or_never().is_none());
        let other = other.now_or_never().unwrap();
        drop(other);
        assert!(second.now_or_never().is_some());
    }

    #[test]
    fn a_waiter_that_has_left_uses_no_turn_of_its_address() {
        let turns = Turns::new(1);
        let held = take_now(&turns, from(1)).unwrap();
        let [mut leaves, mut stays] = [0, 1].map(|_| Box::pin(turns.take(from(1))));
        let mut other = Box::pin(turns.take(from(2)));
        for waiter in [&mut leaves, &mut stays, &mut other] {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        drop(leaves);
        drop(held);
        assert!(other.as_mut().now_or_never().is_none());
        assert!(stays.now_or_never().is_some());
    }

    #[test]
    fn a_user_with_many_addresses_gets_as_many_turns_as_a_user_with_one_address() {
        let turns = Turns::by_user(1);
        let mut held = turns.take((0, Sharer::Local)).now_or_never();
        let many = (1..=100).map(|address| (1, from(address)));
        let one = (0..100).map(|_| (2, from(101)));
        let mut waiters: Vec<_> = many
            .chain(one)
            .map(|key| (key.0, Box::pin(turns.take(key))))
            .collect();
        for (_, waiter) in &mut waiters {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        let mut served = Vec::new();
        for _ in 0..8 {
            drop(held.take());
            let next = waiters
                .iter_mut()
                .enumerate()
                .find_map(|(index, (_, waiter))| {
                    let turn = waiter.as_mut().now_or_never()?;
                    Some((index, turn))
                });
            let (index, turn) = next.unwrap();
            held = Some(turn);
            served.push(waiters.remove(index).0);
        }
        assert_eq!(served, [1, 2, 1, 2, 1, 2, 1, 2]);
    }

    #[test]
    fn waiters_that_left_get_no_turn_and_are_removed() {
        let turns = Turns::new(2);
        let held = [0, 1].map(|_| take_now(&turns, from(1)).unwrap());
        for _ in 0..100_000 {
            assert!(take_now(&turns, from(1)).is_none());
        }
        assert!(turns.0.lock().waiters.len() <= CLEAN_AT);
        drop(held);
        let _both = [0, 1].map(|_| take_now(&turns, from(2)).unwrap());
        assert!(take_now(&turns, from(2)).is_none());
    }

    #[test]
    fn a_task_with_many_steps_keeps_its_turn_until_the_task_releases_it() {
        let turns = Turns::new(1);
        let mut first = turns.stepwise(from(1));
        let mut second = turns.stepwise(from(1));
        let poll =
            |turn: &mut StepwiseTurn<'_>| poll_fn(|cx| turn.poll_take(cx)).now_or_never().is_some();
        assert!(!first.is_waiting(), "the first task was not polled yet");
        assert!(poll(&mut first) && poll(&mut first));
        assert!(!first.is_waiting(), "the first task has a turn");
        assert!(!poll(&mut second) && second.is_waiting());
        first.release();
        assert!(!first.is_waiting(), "the first task has released its turn");
        assert!(!poll(&mut first), "the second task is next");
        assert!(poll(&mut second));
        drop(second);
        assert!(poll(&mut first));
    }
}
