//! Pins: which server holds a cursor or a transaction.
//!
//! A pin names a server, not a connection. All clients share the tables, since drivers send a
//! `getMore` on any free connection. The tables are bounded, a user gets only a share of them, and
//! pins expire with the servers' own timeouts.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    limits::{Share, Shares},
    observe::Origin,
};

/// Number of shards of a table: enough that threads rarely wait for each other.
const SHARDS: usize = 16;

/// Maximum number of sessions whose last write is remembered.
const REMEMBERED_WRITES: usize = 65_536;

/// Time for which a session's last write is remembered: drivers retry a write at once, or as soon
/// as they have selected a server.
const RETRIED_WITHIN: Duration = Duration::from_secs(60);

/// A cursor's pin.
#[derive(Clone, Debug)]
pub struct CursorPin<S> {
    /// The server that holds the cursor.
    pub server: S,
    /// The operation that opened it.
    pub origin: Option<Origin>,
    /// True if a `getMore` waits for data: the cursor is a change stream's, or tailable.
    pub is_awaiting: bool,
    /// True if its driver can resume it where it was: the cursor is a change stream's.
    pub is_resumable: bool,
}

/// A session of a user. Sessions of two users with the same id are different sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// The user's number, chosen by the caller.
    pub user: u64,
    /// The session's id.
    pub lsid: [u8; 16],
}

/// Limits on the number of pins, and on the time that unused pins are kept: as long as servers keep
/// the cursor or transaction.
#[derive(Clone, Copy, Debug)]
pub struct PinLimits {
    /// Maximum number of cursors.
    pub max_cursors: usize,
    /// Maximum number of transactions.
    pub max_transactions: usize,
    /// Time after which an unused cursor's pin expires.
    pub cursor_idle: Duration,
    /// Time after which an unused transaction's pin expires.
    pub transaction_idle: Duration,
}

/// Pins of all clients' cursors and transactions.
#[derive(Debug)]
pub struct Pins<S> {
    cursors: Table<i64, CursorPin<S>>,
    transactions: Table<SessionKey, (i64, S)>,
    writes: Table<SessionKey, i64>,
}

impl<S: Clone> Pins<S> {
    /// Creates empty tables with these limits.
    pub fn new(limits: PinLimits) -> Self {
        Self {
            cursors: Table::new(limits.max_cursors, limits.cursor_idle),
            transactions: Table::new(limits.max_transactions, limits.transaction_idle),
            writes: Table::new(REMEMBERED_WRITES, RETRIED_WITHIN),
        }
    }

    /// Pins a user's cursor to its server. False if the table, or the user's share of it, is full.
    pub fn pin_cursor(&self, id: i64, user: u64, pin: CursorPin<S>, now: Instant) -> bool {
        self.cursors.insert(id, user, pin, now)
    }

    /// The pin of a cursor; the look-up keeps it alive.
    pub fn cursor(&self, id: i64, now: Instant) -> Option<CursorPin<S>> {
        self.cursors.find(&id, now)
    }

    /// Removes the pin of a cursor that is exhausted or killed.
    pub fn unpin_cursor(&self, id: i64) {
        self.cursors.remove(&id);
    }

    /// Pins a session's transaction to its server; a session has one at a time. False if the table,
    /// or the user's share of it, is full.
    pub fn pin_transaction(&self, key: SessionKey, number: i64, server: S, now: Instant) -> bool {
        self.transactions
            .insert(key, key.user, (number, server), now)
    }

    /// The server of a transaction; the look-up keeps the pin alive.
    pub fn transaction(&self, key: SessionKey, number: i64, now: Instant) -> Option<S> {
        let (pinned, server) = self.transactions.find(&key, now)?;
        (pinned == number).then_some(server)
    }

    /// Records a session's numbered write, or end of a transaction. `Some(true)` if it is a retry:
    /// the session's last number is the same. `None` if the table, or the user's share of it, is
    /// full.
    pub fn record_write(&self, key: SessionKey, number: i64, now: Instant) -> Option<bool> {
        let seen = self.writes.find(&key, now) == Some(number);
        (seen || self.writes.insert(key, key.user, number, now)).then_some(seen)
    }

    /// Removes expired pins. Called once a second.
    pub fn maintain(&self, now: Instant) {
        self.cursors.expire(now);
        self.transactions.expire(now);
        self.writes.expire(now);
    }

    /// Number of pinned cursors and of pinned transactions.
    pub fn counts(&self) -> (usize, usize) {
        (self.cursors.len(), self.transactions.len())
    }
}

#[derive(Debug)]
struct Table<K, V> {
    shards: Vec<Mutex<HashMap<K, Pinned<V>>>>,
    shares: Arc<Shares<u64>>,
    idle: Duration,
}

#[derive(Debug)]
struct Pinned<V> {
    value: V,
    used_at: Instant,
    _share: Share<u64>,
}

impl<K: Hash + Eq, V: Clone> Table<K, V> {
    fn new(max: usize, idle: Duration) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            shards,
            shares: Shares::new(max),
            idle,
        }
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
                    _share: share,
                });
            }
        }
        true
    }

    fn find(&self, key: &K, now: Instant) -> Option<V> {
        let mut shard = self.shard(key).lock();
        let pinned = shard.get_mut(key)?;
        if now.saturating_duration_since(pinned.used_at) >= self.idle {
            return None;
        }
        pinned.used_at = now;
        Some(pinned.value.clone())
    }

    fn remove(&self, key: &K) {
        self.shard(key).lock().remove(key);
    }

    fn expire(&self, now: Instant) {
        for shard in &self.shards {
            shard
                .lock()
                .retain(|_, pinned| now.saturating_duration_since(pinned.used_at) < self.idle);
        }
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
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
    async fn a_pin_lives_while_it_is_used_and_expires_if_unused() {
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

    #[tokio::test(start_paused = true)]
    async fn maintenance_keeps_used_pins_only() {
        let pins = pins(100, 100);
        let now = Instant::now();
        for id in [7, 8, 9] {
            assert!(pins.pin_cursor(id, 1, pin(1), now));
        }
        assert_eq!(pins.counts(), (3, 0));
        pins.unpin_cursor(8);
        assert!(pins.cursor(8, now).is_none());
        let later = now + CURSOR_IDLE - Duration::from_secs(1);
        assert!(pins.cursor(7, later).is_some());
        pins.maintain(now + CURSOR_IDLE);
        assert_eq!(pins.counts(), (1, 0), "only the one that was used");
        assert!(pins.cursor(7, now + CURSOR_IDLE).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_table_takes_no_more_and_one_user_never_fills_it() {
        let pins = pins(90, 1);
        let now = Instant::now();
        let taken = (0..1000)
            .filter(|id| pins.pin_cursor(*id, 1, pin(0), now))
            .count();
        assert_eq!(taken, 80);
        assert!(pins.pin_cursor(1000, 2, pin(0), now));
        assert!(pins.pin_cursor(0, 1, pin(0), now), "pinned already");
        pins.unpin_cursor(0);
        pins.maintain(now + CURSOR_IDLE);
        assert!((0..80).all(|id| pins.pin_cursor(id, 1, pin(0), now)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_with_the_number_of_the_last_one_is_a_retry() {
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
    async fn a_session_has_one_transaction_and_users_do_not_share_it() {
        let pins = pins(1, 100);
        let (now, lsid) = (Instant::now(), [1; 16]);
        let key = |user| SessionKey { user, lsid };
        assert!(pins.pin_transaction(key(1), 4, 10, now));
        assert_eq!(pins.transaction(key(1), 4, now), Some(10));
        assert_eq!(pins.transaction(key(1), 5, now), None);
        assert_eq!(pins.transaction(key(2), 4, now), None);
        assert!(pins.pin_transaction(key(1), 5, 11, now));
        assert_eq!(pins.transaction(key(1), 4, now), None);
    }
}
