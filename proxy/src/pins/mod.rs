//! Pins: the server of each cursor and each transaction.
//!
//! A pin names a server, not a connection. All clients share the tables of pins, because drivers
//! send a `getMore` on any free connection. The tables are bounded, and one user cannot fill a
//! table. Unused pins expire. With suitable limits, servers end an unused cursor or transaction
//! before its pin expires.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    limits::{Share, Shares},
    observe::CursorOrigin,
};
use seawall_locks::Mutex;

/// Number of shards of a table. With 16 shards, threads rarely wait for each other.
const SHARDS: usize = 16;

/// Maximum number of sessions whose last write is remembered. It bounds memory.
const REMEMBERED_WRITES: usize = 65_536;

/// How long a session's last write is remembered. For a commit or abort, this time begins again at
/// its end. A retry arrives within this time: drivers send it at once, or as soon as they have
/// selected a server, which takes at most 30 s by default.
const RETRIED_WITHIN: Duration = Duration::from_secs(60);

/// The server of a cursor, and the facts about the cursor that its `getMore`s need.
#[derive(Clone, Debug)]
pub struct CursorPin<S> {
    /// The server that holds the cursor.
    pub server: S,
    /// The operation that opened the cursor; `None` if the shape of this operation is not counted.
    pub origin: Option<CursorOrigin>,
    /// True for change streams and tailable cursors: their `getMore`s wait for data.
    pub is_awaiting: bool,
    /// True for change streams: a driver can reopen a change stream without losing events.
    pub is_resumable: bool,
}

/// Identifies a session. Two users can have sessions with the same `lsid`, so the key contains the
/// user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// The number that identifies the user in Seawall.
    pub user: u64,
    /// The `lsid` in the user's commands.
    pub lsid: [u8; 16],
}

/// Limits on the number of pins, and on the time for which unused pins are kept. This time must not
/// be shorter than the time after which servers end unused cursors and transactions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinLimits {
    /// Maximum number of cursors.
    pub max_cursors: usize,
    /// Maximum number of transactions.
    pub max_transactions: usize,
    /// Time after which an unused cursor's pin expires.
    pub cursor_idle: Duration,
    /// Time after which an unused transaction's pin expires.
    pub transaction_idle: Duration,
}

/// Records the server of each cursor and of each transaction, and the last write of each session.
#[derive(Debug)]
pub struct Pins<S> {
    cursors: PinTable<i64, CursorPin<S>>,
    /// For each session: the `txnNumber` of its last transaction, and the server of this
    /// transaction.
    transactions: PinTable<SessionKey, (i64, S)>,
    /// For each session: the `txnNumber` of its last write, commit or abort.
    writes: PinTable<SessionKey, i64>,
}

/// A use of a cursor, by a `getMore` in progress. When this value is dropped, the time until the
/// pin expires begins again.
pub(crate) struct CursorUse<'p, S: Clone> {
    pins: &'p Pins<S>,
    id: i64,
}

impl<S: Clone> Drop for CursorUse<'_, S> {
    fn drop(&mut self) {
        self.pins.cursors.end_use(&self.id, Instant::now());
    }
}

impl<S: Clone> Pins<S> {
    /// Creates empty tables with these limits.
    pub(crate) fn new(limits: PinLimits) -> Self {
        Self {
            cursors: PinTable::new(limits.max_cursors, limits.cursor_idle),
            transactions: PinTable::new(limits.max_transactions, limits.transaction_idle),
            writes: PinTable::new(REMEMBERED_WRITES, RETRIED_WITHIN),
        }
    }

    /// Applies changed limits. If a limit falls, existing pins are kept until they are removed or
    /// expire.
    pub(crate) fn set_limits(&self, limits: PinLimits) {
        self.cursors.set(limits.max_cursors, limits.cursor_idle);
        self.transactions
            .set(limits.max_transactions, limits.transaction_idle);
    }

    /// Pins a user's cursor to its server. Returns false if the table or the user's share of it is
    /// full.
    pub(crate) fn pin_cursor(&self, id: i64, user: u64, pin: CursorPin<S>, now: Instant) -> bool {
        self.cursors.insert(id, user, pin, now)
    }

    /// Returns a cursor's pin. The call counts as a use of the pin, so the time until the pin
    /// expires begins again.
    pub fn cursor(&self, id: i64, now: Instant) -> Option<CursorPin<S>> {
        self.cursors.find(&id, now)
    }

    /// Marks a cursor as in use until the returned value is dropped. Its pin does not expire in
    /// this time, because servers do not end a cursor in use. `None` if the cursor has no pin.
    pub(crate) fn begin_use(&self, id: i64, now: Instant) -> Option<CursorUse<'_, S>> {
        self.cursors
            .begin_use(&id, now)
            .then_some(CursorUse { pins: self, id })
    }

    /// Removes the pin of a user's cursor that is exhausted or killed. Does nothing if the cursor
    /// belongs to another user. Otherwise a user could remove another user's pin with a command
    /// that names a wrong collection: a router can then reply that the cursor does not exist.
    pub(crate) fn unpin_cursor(&self, id: i64, user: u64) {
        self.cursors
            .remove_if(&id, |pinned| pinned.share.holder() == user);
    }

    /// Pins a session's transaction to its server, and replaces the pin of the session's previous
    /// transaction. Returns false if the table or the user's share of it is full.
    pub(crate) fn pin_transaction(
        &self,
        key: SessionKey,
        number: i64,
        server: S,
        now: Instant,
    ) -> bool {
        self.transactions
            .insert(key, key.user, (number, server), now)
    }

    /// Removes the pin of a transaction whose server cannot be used. Does nothing if the session's
    /// pin belongs to another transaction.
    pub(crate) fn unpin_transaction(&self, key: SessionKey, number: i64) {
        self.transactions
            .remove_if(&key, |pinned| pinned.value.0 == number);
    }

    /// Returns the server of a transaction. The call counts as a use of the transaction's pin, so
    /// the time until the pin expires begins again.
    pub fn transaction(&self, key: SessionKey, number: i64, now: Instant) -> Option<S> {
        let (pinned, server) = self.transactions.find(&key, now)?;
        (pinned == number).then_some(server)
    }

    /// Records a write, commit or abort with its `txnNumber`. Returns true for a retry: the
    /// session's last write, commit or abort had the same number. Returns `None` if the table or
    /// the user's share of it is full.
    pub(crate) fn record_write(&self, key: SessionKey, number: i64, now: Instant) -> Option<bool> {
        let seen = self.writes.find(&key, now) == Some(number);
        (seen || self.writes.insert(key, key.user, number, now)).then_some(seen)
    }

    /// Called when a commit or abort has just ended. Restarts the time for which this command is
    /// remembered, even if the time was already over. Does nothing if the session has begun another
    /// write, commit or abort.
    pub(crate) fn renew_write(&self, key: SessionKey, number: i64, now: Instant) {
        let last = self.writes.find(&key, now);
        if last.is_none_or(|last| last == number) {
            self.writes.insert(key, key.user, number, now);
        }
    }

    /// Removes expired pins. Called once a second.
    pub(crate) fn maintain(&self, now: Instant) {
        self.cursors.expire(now);
        self.transactions.expire(now);
        self.writes.expire(now);
    }

    /// Returns the number of pinned cursors and the number of pinned transactions.
    pub fn counts(&self) -> (usize, usize) {
        (self.cursors.len(), self.transactions.len())
    }
}

#[derive(Debug)]
struct PinTable<K, V> {
    shards: Vec<Mutex<HashMap<K, Pinned<V>>>>,
    shares: Arc<Shares<u64>>,
    /// Time after which an unused entry expires, in milliseconds.
    idle_ms: AtomicU64,
}

#[derive(Debug)]
struct Pinned<V> {
    value: V,
    used_at: Instant,
    /// Number of operations that use the entry now.
    uses: u32,
    /// One unit of the table's size, which the user of this entry holds.
    share: Share<u64>,
}

impl<V> Pinned<V> {
    fn has_expired(&self, idle: Duration, now: Instant) -> bool {
        self.uses == 0 && now.saturating_duration_since(self.used_at) >= idle
    }
}

impl<K: Hash + Eq, V: Clone> PinTable<K, V> {
    fn new(max: usize, idle: Duration) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            shards,
            shares: Shares::new(max),
            idle_ms: AtomicU64::new(milliseconds(idle)),
        }
    }

    fn set(&self, max: usize, idle: Duration) {
        self.shares.set_max(max);
        self.idle_ms.store(milliseconds(idle), Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms.load(Ordering::Relaxed))
    }

    fn shard(&self, key: &K) -> &Mutex<HashMap<K, Pinned<V>>> {
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let index = usize::try_from(hash % 16).unwrap_or(0);
        self.shards
            .get(index)
            .expect("there are 16 shards, and the remainder is less than 16")
    }

    fn insert(&self, key: K, user: u64, value: V, now: Instant) -> bool {
        match self.shard(&key).lock().entry(key) {
            Entry::Occupied(mut pinned) => {
                let pinned = pinned.get_mut();
                (pinned.value, pinned.used_at) = (value, now);
            }
            Entry::Vacant(vacant) => {
                let Some(share) = self.shares.take(user) else {
                    return false;
                };
                vacant.insert(Pinned {
                    value,
                    used_at: now,
                    uses: 0,
                    share,
                });
            }
        }
        true
    }

    fn find(&self, key: &K, now: Instant) -> Option<V> {
        let mut shard = self.shard(key).lock();
        let pinned = shard.get_mut(key)?;
        if pinned.has_expired(self.idle(), now) {
            return None;
        }
        pinned.used_at = now;
        Some(pinned.value.clone())
    }

    /// Returns false if there is no pin.
    fn begin_use(&self, key: &K, now: Instant) -> bool {
        let idle = self.idle();
        let mut shard = self.shard(key).lock();
        let pinned = shard.get_mut(key).filter(|of| !of.has_expired(idle, now));
        let is_found = pinned.is_some();
        if let Some(pinned) = pinned {
            pinned.uses += 1;
        }
        is_found
    }

    fn end_use(&self, key: &K, now: Instant) {
        if let Some(pinned) = self.shard(key).lock().get_mut(key) {
            pinned.uses = pinned.uses.saturating_sub(1);
            pinned.used_at = now;
        }
    }

    fn remove_if(&self, key: &K, should_remove: impl FnOnce(&Pinned<V>) -> bool) {
        let mut shard = self.shard(key).lock();
        if shard.get(key).is_some_and(should_remove) {
            shard.remove(key);
        }
    }

    fn expire(&self, now: Instant) {
        let idle = self.idle();
        for shard in &self.shards {
            shard
                .lock()
                .retain(|_, pinned| !pinned.has_expired(idle, now));
        }
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const _: () = assert!(SHARDS == 16, "`shard` takes the remainder by 16");

#[cfg(test)]
mod tests {
    use super::*;

    const CURSOR_IDLE: Duration = Duration::from_secs(600);

    fn pins(max_cursors: usize, max_transactions: usize) -> Pins<u32> {
        Pins::new(PinLimits {
            max_cursors,
            max_transactions,
            cursor_idle: CURSOR_IDLE,
            transaction_idle: Duration::from_secs(120),
        })
    }

    fn pin(server: u32) -> CursorPin<u32> {
        CursorPin {
            server,
            origin: None,
            is_awaiting: false,
            is_resumable: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pin_of_a_cursor_expires_when_it_was_unused_for_the_idle_time() {
        let pins = pins(100, 100);
        let now = Instant::now();
        assert!(pins.pin_cursor(7, 1, pin(1), now));
        let later = now + CURSOR_IDLE - Duration::from_secs(1);
        assert_eq!(pins.cursor(7, later).unwrap().server, 1);
        let later = later + CURSOR_IDLE - Duration::from_secs(1);
        assert!(pins.cursor(7, later).is_some());
        assert!(pins.cursor(7, later + CURSOR_IDLE).is_none());
        pins.maintain(later + CURSOR_IDLE);
        assert_eq!(pins.counts(), (0, 0));
    }

    /// A cursor's *pin* records which server holds the cursor.
    #[tokio::test(start_paused = true)]
    async fn the_pin_of_a_cursor_in_use_does_not_expire() {
        let pins = pins(100, 100);
        assert!(pins.pin_cursor(7, 1, pin(1), Instant::now()));
        let uses = [(); 2].map(|()| pins.begin_use(7, Instant::now()).unwrap());
        let idle = CURSOR_IDLE + Duration::from_secs(1);
        tokio::time::advance(idle).await;
        pins.maintain(Instant::now());
        for held in uses {
            assert_eq!(pins.counts(), (1, 0));
            drop(held);
        }
        assert!(pins.cursor(7, Instant::now()).is_some());
        tokio::time::advance(idle).await;
        pins.maintain(Instant::now());
        assert_eq!(pins.counts(), (0, 0));
        assert!(pins.begin_use(7, Instant::now()).is_none());
    }

    /// A cursor's *pin* records which server holds the cursor.
    #[tokio::test(start_paused = true)]
    async fn maintenance_removes_only_pins_that_were_unused_for_the_idle_time() {
        let pins = pins(100, 100);
        let now = Instant::now();
        for id in [7, 8, 9] {
            assert!(pins.pin_cursor(id, 1, pin(1), now));
        }
        assert_eq!(pins.counts(), (3, 0));
        pins.unpin_cursor(8, 1);
        assert!(pins.cursor(8, now).is_none());
        let later = now + CURSOR_IDLE - Duration::from_secs(1);
        assert!(pins.cursor(7, later).is_some());
        pins.maintain(now + CURSOR_IDLE);
        assert_eq!(pins.counts(), (1, 0), "only the used pin is kept");
        assert!(pins.cursor(7, now + CURSOR_IDLE).is_some());
    }

    /// A cursor's *pin* records which server holds the cursor.
    #[tokio::test(start_paused = true)]
    async fn one_user_cannot_fill_the_table_of_cursor_pins() {
        let pins = pins(90, 1);
        let now = Instant::now();
        let taken = (0..1000)
            .filter(|id| pins.pin_cursor(*id, 1, pin(0), now))
            .count();
        assert_eq!(taken, 80);
        assert!(pins.pin_cursor(1000, 2, pin(0), now));
        assert!(
            pins.pin_cursor(0, 1, pin(0), now),
            "the cursor was already pinned"
        );
        pins.unpin_cursor(0, 1);
        pins.maintain(now + CURSOR_IDLE);
        assert!((0..80).all(|id| pins.pin_cursor(id, 1, pin(0), now)));
    }

    /// A cursor's *pin* records which server holds the cursor.
    #[tokio::test(start_paused = true)]
    async fn a_user_cannot_remove_the_pin_of_another_user_s_cursor() {
        let pins = pins(100, 100);
        let now = Instant::now();
        assert!(pins.pin_cursor(7, 1, pin(1), now));
        pins.unpin_cursor(7, 2);
        assert!(pins.cursor(7, now).is_some());
        pins.unpin_cursor(7, 1);
        assert!(pins.cursor(7, now).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_with_the_txn_number_of_the_last_write_of_its_session_is_a_retry() {
        let pins = pins(9, 9);
        let (now, lsid) = (Instant::now(), [1; 16]);
        let key = |user| SessionKey { user, lsid };
        let seen = [(1, 4), (1, 4), (1, 5), (2, 5), (1, 5)]
            .map(|(user, number)| pins.record_write(key(user), number, now).unwrap());
        assert_eq!(seen, [false, true, false, false, true]);
        let later = now + RETRIED_WITHIN;
        assert_eq!(pins.record_write(key(2), 5, later), Some(false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_is_a_retry_if_the_first_commit_took_a_long_time_and_has_just_ended() {
        let pins = pins(9, 9);
        let user = 1;
        let lsid = [1; 16];
        let (began, key) = (Instant::now(), SessionKey { user, lsid });
        assert_eq!(pins.record_write(key, 4, began), Some(false));
        let ended = began + RETRIED_WITHIN * 2;
        pins.maintain(ended);
        pins.renew_write(key, 4, ended);
        let retried = ended + RETRIED_WITHIN / 2;
        assert_eq!(pins.record_write(key, 4, retried), Some(true));
        assert_eq!(pins.record_write(key, 5, retried), Some(false));
        pins.renew_write(key, 4, retried);
        assert_eq!(pins.record_write(key, 5, retried), Some(true));
    }

    /// A transaction's *pin* records which server runs the transaction.
    #[tokio::test(start_paused = true)]
    async fn a_transaction_s_pin_is_only_for_its_user_and_is_replaced_by_the_next_transaction() {
        let pins = pins(1, 100);
        let (now, lsid) = (Instant::now(), [1; 16]);
        let key = |user| SessionKey { user, lsid };
        assert!(pins.pin_transaction(key(1), 4, 10, now));
        assert_eq!(pins.transaction(key(1), 4, now), Some(10));
        assert_eq!(pins.transaction(key(1), 5, now), None);
        assert_eq!(pins.transaction(key(2), 4, now), None);
        assert!(pins.pin_transaction(key(1), 5, 11, now));
        assert_eq!(pins.transaction(key(1), 4, now), None);
        pins.unpin_transaction(key(1), 4);
        assert_eq!(pins.transaction(key(1), 5, now), Some(11));
        pins.unpin_transaction(key(1), 5);
        assert_eq!(pins.transaction(key(1), 5, now), None);
    }
}
