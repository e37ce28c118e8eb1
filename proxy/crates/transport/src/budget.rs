//! The memory budget for the messages of all connections. Bytes are charged to the budget (they
//! count against it) when they arrive. Below, an address means a [`Sharer`], which can also be a
//! user or the Unix socket.
//!
//! A message with charged bytes is a holder. A message is charged for the bytes that have arrived,
//! not for the length in its header, so a large length alone costs nothing. While the messages of
//! one address hold eight times the free memory or more, this address gets no further memory, so
//! that other addresses can get memory. A message that gets no memory waits before its next read.
//! Two rules prevent a deadlock:
//!
//! - One message at a time may also use a reserve beside the budget, so that it can finish. Seawall
//!   selects this message from the waiting messages of the address that holds the least memory: the
//!   message with the fewest bytes left. The selected message keeps the reserve as long as it makes
//!   progress.
//! - A holder may be evicted, which closes its connection. A silent holder is evicted if a message
//!   of an address with less memory waits. A slow holder ([`Progress`]) is evicted if any message
//!   waits. Holders of the address with the most memory are evicted first. Among them, the holder
//!   that has been silent longest is evicted first. A holder that itself waits for memory counts as
//!   neither silent nor slow, because the cause is Seawall and not the client. Sometimes no holder
//!   can be evicted by these rules, and the message with the reserve still has to wait. Then
//!   Seawall evicts the waiting holder that would be the last to get the reserve.
//!
//! Invariant: the charged bytes are at most the sum of budget and reserve, with two exceptions. A
//! message that is larger than this sum gets memory while no other message holds memory. After
//! [`MemoryBudget::set_bytes`] has made the budget smaller, messages keep the memory that they
//! have.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use super::{Sharer, is_within_share, progress::Progress};
use seawall_locks::Mutex;

/// Minimum time between two searches for holders (messages that hold memory) to evict.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

/// A holder whose peer has sent or read no byte for this time counts as silent. A silent holder may
/// be evicted. The reserve is memory beside the budget, for one message at a time. If a silent
/// holder uses the reserve and another message waits, the holder loses the right to use more of the
/// reserve.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Error: Seawall evicted a holder (a message that holds memory), because other messages needed its
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted;

/// The memory budget for the messages of all connections. Clones share the same budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// True if messages wait for memory. It can be read without the lock.
    is_short: AtomicBool,
}

/// Identifies a holder (a message that holds memory) in its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct HolderId(u64);

/// The result of a request for more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    Granted,
    Wait,
    Evicted,
}

#[derive(Debug)]
struct Holder {
    sharer: Sharer,
    bytes: usize,
    /// The part of `bytes` that comes from the reserve: memory beside the budget, which only one
    /// message at a time may use.
    reserve_bytes: usize,
    /// When the peer last sent or read bytes. After each pause by Seawall, this time is moved
    /// forward by the duration of the pause, so pauses do not count as silence.
    progress_at: Instant,
    progress: Progress,
    /// When Seawall stopped reading bytes from the peer or writing bytes to the peer; `None` while
    /// Seawall reads or writes.
    paused_at: Option<Instant>,
    /// Set while the message waits for memory: the start of the wait, and the number of bytes of
    /// the message that have not arrived.
    waits: Option<(Instant, usize)>,
    is_evicted: bool,
    waker: Option<Waker>,
}

impl Holder {
    /// True if the holder may be evicted for a message that waits for memory. `holds_more` is true
    /// if the holder's [`Sharer`] holds more memory than the [`Sharer`] of the waiting message.
    fn may_be_evicted(&self, holds_more: bool, now: Instant) -> bool {
        if !self.progress.is_owing() || self.is_evicted {
            return false;
        }
        let is_silent = now.saturating_duration_since(self.progress_at) >= SILENT_AFTER;
        self.progress.is_slow(now) || is_silent && holds_more
    }
}

/// The messages that wait for memory, in the order in which they may use the reserve. The reserve
/// is memory beside the budget, for one message at a time. The first message is found without a
/// search of all messages: thousands of messages may wait.
#[derive(Debug, Default)]
struct Waiting {
    /// The waiting messages of each [`Sharer`], ordered by the number of bytes that have not
    /// arrived.
    by_sharer: HashMap<Sharer, BTreeSet<(usize, HolderId)>>,
    /// The sharers with waiting messages, ordered by the number of bytes that they hold.
    sharers: BTreeSet<(usize, Sharer)>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.sharers.is_empty()
    }

    fn insert(&mut self, sharer: Sharer, held: usize, left: usize, id: HolderId) {
        self.by_sharer.entry(sharer).or_default().insert((left, id));
        self.sharers.insert((held, sharer));
    }

    fn remove(&mut self, sharer: Sharer, held: usize, left: usize, id: HolderId) {
        if let Some(own) = self.by_sharer.get_mut(&sharer) {
            own.remove(&(left, id));
            if own.is_empty() {
                self.by_sharer.remove(&sharer);
                self.sharers.remove(&(held, sharer));
            }
        }
    }

    /// Updates the order of the waiting messages. Callers use this when the number of bytes that
    /// `sharer` holds has changed from `before` to `held`.
    fn move_sharer(&mut self, sharer: Sharer, before: usize, held: usize) {
        if self.sharers.remove(&(before, sharer)) {
            self.sharers.insert((held, sharer));
        }
    }

    fn first(&self) -> Option<Rank> {
        let (held, sharer) = self.sharers.first()?;
        let (left, id) = self.by_sharer.get(sharer)?.first()?;
        Some((*held, *left, *id))
    }
}

/// The state of the budget. Callers pass the current time, so that tests can simulate it.
#[derive(Debug)]
struct Inner {
    all: usize,
    /// Size of the reserve: memory beside the budget, which only one message at a time may use.
    reserve: usize,
    /// Number of used bytes, including the used bytes of the reserve.
    used: usize,
    reserve_used: usize,
    next_id: u64,
    holders: HashMap<HolderId, Holder>,
    by_sharer: HashMap<Sharer, usize>,
    waiting: Waiting,
    /// The message that may now use the reserve, so that it can finish; `None` if no message may
    /// use the reserve.
    finisher: Option<HolderId>,
    /// When the last search for holders to evict began; `None` before the first search.
    evicted_at: Option<Instant>,
}

/// Determines the order in which waiting messages may use the reserve. The first part is the number
/// of bytes that all messages of the same [`Sharer`] hold. The second is the number of bytes of the
/// message that have not arrived, and the third is the message's id.
type Rank = (usize, usize, HolderId);

impl Inner {
    fn new(all: usize, reserve: usize) -> Self {
        Self {
            all,
            reserve,
            used: 0,
            reserve_used: 0,
            next_id: 0,
            holders: HashMap::new(),
            by_sharer: HashMap::new(),
            waiting: Waiting::default(),
            finisher: None,
            evicted_at: None,
        }
    }

    fn open(&mut self, sharer: Sharer, now: Instant) -> HolderId {
        let id = HolderId(self.next_id);
        self.next_id += 1;
        let holder = Holder {
            sharer,
            bytes: 0,
            reserve_bytes: 0,
            progress_at: now,
            progress: Progress::default(),
            paused_at: None,
            waits: None,
            is_evicted: false,
            waker: None,
        };
        self.holders.insert(id, holder);
        id
    }

    /// Requests `more` bytes for a message. `left` is the number of bytes of the message that have
    /// not arrived, including `more`.
    fn grow(&mut self, id: HolderId, more: usize, left: usize, now: Instant) -> Grant {
        let Some(holder) = self.holders.get_mut(&id) else {
            return Grant::Evicted;
        };
        if holder.is_evicted {
            return Grant::Evicted;
        }
        let owed = holder.progress.is_owing();
        holder.progress.pause(now);
        let (sharer, is_alone) = (holder.sharer, self.used == holder.bytes);
        if let Some((since, left)) = holder.waits.take() {
            // The wait for memory does not count as silence of the peer, unless Seawall also waited
            // for bytes of the peer during this time.
            if !owed {
                holder.progress_at += now.saturating_duration_since(since);
            }
            self.waiting.remove(sharer, self.held_by(sharer), left, id);
        }
        let fits = self.fits(sharer, more);
        if fits || is_alone {
            self.charge(id, more, 0);
            if fits {
                self.wake_first();
            }
            return Grant::Granted;
        }
        if self.claim_reserve(id, more, left, now) {
            let room = self.reserve.saturating_sub(self.reserve_used);
            self.charge(id, more, more.min(room));
            return Grant::Granted;
        }
        if let Some(holder) = self.holders.get_mut(&id) {
            holder.waits = Some((now, left));
            self.waiting.insert(sharer, self.held_by(sharer), left, id);
        }
        self.evict_for(id, left, now);
        Grant::Wait
    }

    /// Number of free bytes outside the reserve.
    fn free(&self) -> usize {
        self.all.saturating_sub(self.used - self.reserve_used)
    }

    /// True if `more` bytes are free outside the reserve, and the sharer may get more memory
    /// ([`is_within_share`]). Zero bytes always fit.
    fn fits(&self, sharer: Sharer, more: usize) -> bool {
        let free = self.free();
        more == 0 || more <= free && is_within_share(self.held_by(sharer), free)
    }

    /// Passes the reserve to the next message if the message that may use it has ended or stalled.
    /// Returns true if the message `id` may now use the reserve, and `more` bytes are free in the
    /// budget and the reserve together.
    fn claim_reserve(&mut self, id: HolderId, more: usize, left: usize, now: Instant) -> bool {
        let has_stalled = |h: &Holder| now.saturating_duration_since(h.progress_at) >= SILENT_AFTER;
        let finisher = self
            .finisher
            .and_then(|finisher| self.holders.get(&finisher));
        if self.finisher != Some(id) && finisher.is_none_or(has_stalled) {
            let own = self.holders.get(&id).map(|h| self.rank(id, h, left));
            self.finisher = own
                .into_iter()
                .chain(self.waiting.first())
                .min()
                .map(|r| r.2);
            if self.finisher != Some(id) {
                self.wake(self.finisher);
            }
        }
        let room = self.all.saturating_add(self.reserve);
        self.finisher == Some(id) && self.used.saturating_add(more) <= room
    }

    fn rank(&self, id: HolderId, holder: &Holder, left: usize) -> Rank {
        (self.held_by(holder.sharer), left, id)
    }

    fn held_by(&self, sharer: Sharer) -> usize {
        self.by_sharer.get(&sharer).copied().unwrap_or_default()
    }

    /// Charges `bytes` bytes to a holder, including `from_reserve` bytes that come from the
    /// reserve.
    fn charge(&mut self, id: HolderId, bytes: usize, from_reserve: usize) {
        if let Some(holder) = self.holders.get_mut(&id) {
            holder.bytes += bytes;
            holder.reserve_bytes += from_reserve;
            self.used += bytes;
            self.reserve_used += from_reserve;
            let sharer = holder.sharer;
            let held = self.by_sharer.entry(sharer).or_default();
            let before = *held;
            *held += bytes;
            self.waiting.move_sharer(sharer, before, *held);
        }
    }

    fn release(&mut self, id: HolderId, bytes: usize) {
        let Some(holder) = self.holders.get_mut(&id) else {
            return;
        };
        let bytes = bytes.min(holder.bytes);
        let to_reserve = bytes.min(holder.reserve_bytes);
        holder.bytes -= bytes;
        holder.reserve_bytes -= to_reserve;
        self.used -= bytes;
        self.reserve_used -= to_reserve;
        let sharer = holder.sharer;
        if let Some(held) = self.by_sharer.get_mut(&sharer) {
            let before = *held;
            *held -= bytes;
            self.waiting.move_sharer(sharer, before, *held);
            if *held == 0 {
                self.by_sharer.remove(&sharer);
            }
        }
    }

    /// Records that the peer has sent or read `bytes` bytes of a holder's message.
    fn record_bytes(&mut self, id: HolderId, bytes: usize, now: Instant) {
        if let Some(holder) = self.holders.get_mut(&id) {
            holder.progress_at = now;
            holder.paused_at = None;
            holder.progress.record_bytes(bytes, now);
        }
    }

    fn record_progress(&mut self, id: HolderId, moved: usize, waker: Option<&Waker>, now: Instant) {
        if moved > 0 {
            self.record_bytes(id, moved, now);
        }
        if let (Some(waker), Some(holder)) = (waker, self.holders.get_mut(&id)) {
            if let Some(since) = holder.paused_at.take() {
                holder.progress_at += now.saturating_duration_since(since);
            }
            holder.progress.mark_owing(now);
            holder.waker = Some(waker.clone());
        }
    }

    /// Evicts holders for a message that waits for `wanted` bytes. Does nothing if the previous
    /// search for holders was less than [`EVICTION_INTERVAL`] ago.
    fn evict_for(&mut self, waiter: HolderId, wanted: usize, now: Instant) {
        let is_soon = |at: Instant| now.saturating_duration_since(at) < EVICTION_INTERVAL;
        if self.evicted_at.is_some_and(is_soon) {
            return;
        }
        self.evicted_at = Some(now);
        let mut victims = self.slow_holders(waiter, now);
        if victims.is_empty() && self.finisher == Some(waiter) {
            // `waiter` may use the reserve, but too few bytes are free. So the waiting message that
            // would be the last to get the reserve is evicted.
            victims.extend(self.last_in_order(waiter));
        }
        // Holders that were evicted earlier will release their memory soon, so their memory counts
        // as freed.
        let closed = self.holders.values().filter(|holder| holder.is_evicted);
        let mut freed: usize = closed.map(|holder| holder.bytes).sum();
        for id in victims {
            if freed >= wanted {
                return;
            }
            if let Some(holder) = self.holders.get_mut(&id) {
                freed += holder.bytes;
                holder.is_evicted = true;
            }
            self.wake(Some(id));
        }
    }

    /// Returns the holders that may be evicted for `waiter`. Holders of the [`Sharer`] with the
    /// most memory come first. Among them, the holder that has been silent longest comes first.
    fn slow_holders(&self, waiter: HolderId, now: Instant) -> Vec<HolderId> {
        let waiter = self.holders.get(&waiter);
        let sharer = waiter.map(|holder| holder.sharer).unwrap_or_default();
        let own = self.held_by(sharer);
        let mut slow: Vec<_> = (self.holders.iter())
            .filter(|(_, holder)| {
                let held = self.held_by(holder.sharer);
                let holds_more = holder.sharer != sharer && held > own;
                holder.bytes > 0 && holder.may_be_evicted(holds_more, now)
            })
            .map(|(id, holder)| {
                (
                    self.held_by(holder.sharer),
                    Reverse(holder.progress_at),
                    *id,
                )
            })
            .collect();
        slow.sort_unstable();
        slow.into_iter().rev().map(|(_, _, id)| id).collect()
    }

    /// Returns the waiting message, other than `except`, that would be the last to use the reserve.
    fn last_in_order(&self, except: HolderId) -> Option<HolderId> {
        let waiting = self.holders.iter().filter_map(|(id, holder)| {
            let (_, left) = holder
                .waits
                .filter(|_| *id != except && !holder.is_evicted)?;
            Some(self.rank(*id, holder, left))
        });
        waiting.max().map(|(_, _, id)| id)
    }

    fn close(&mut self, id: HolderId) {
        self.release(id, usize::MAX);
        if let Some(Holder {
            waits: Some((_, left)),
            sharer,
            ..
        }) = self.holders.remove(&id)
        {
            self.waiting.remove(sharer, self.held_by(sharer), left, id);
        }
        if self.finisher == Some(id) {
            self.finisher = None;
        }
        self.wake_first();
    }

    fn wake(&mut self, id: Option<HolderId>) {
        let holder = id.and_then(|id| self.holders.get_mut(&id));
        let waker = holder.and_then(|holder| holder.waker.take());
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task of the first waiting message after memory was released. This task takes the
    /// memory that it needs. If memory is left, it wakes the task of the next waiting message.
    fn wake_first(&mut self) {
        let first = self.waiting.first().map(|(_, _, id)| id);
        self.wake(first);
    }
}

fn reserve_of(bytes: usize) -> usize {
    seawall_wire::MAX_MESSAGE_BYTES.min(bytes / 2)
}

impl MemoryBudget {
    /// Creates a budget with a reserve. `bytes` is the size of both together. The reserve has the
    /// size of the largest message, but at most half of `bytes`.
    pub fn of_bytes(bytes: usize) -> Self {
        let reserve = reserve_of(bytes);
        Self {
            shared: Arc::new(Shared {
                inner: Mutex::new(Inner::new(bytes - reserve, reserve)),
                is_short: AtomicBool::new(false),
            }),
        }
    }

    /// Changes the size of the budget and the reserve; `bytes` is the size of both together.
    /// Messages keep the memory that they have.
    pub fn set_bytes(&self, bytes: usize) {
        let reserve = reserve_of(bytes);
        let mut inner = self.shared.inner.lock();
        (inner.all, inner.reserve) = (bytes - reserve, reserve);
        inner.wake_first();
    }

    /// Returns an empty share. Bytes that the share gets later are charged to `sharer`.
    pub fn open(&self, sharer: Sharer) -> MemoryShare {
        let id = self.shared.inner.lock().open(sharer, Instant::now());
        MemoryShare {
            budget: self.clone(),
            id,
            bytes: 0,
        }
    }

    /// Waits for a share of `bytes` bytes for a server's message to a client. The bytes are charged
    /// to `sharer`, the group to which the client belongs.
    pub async fn reserve(&self, sharer: Sharer, bytes: usize) -> MemoryShare {
        let mut share = self.open(sharer);
        // An evicted share cannot grow any more. The loop replaces it by a new share, because
        // Seawall must read the server's message.
        while share.grow(bytes, bytes).await.is_err() {
            share = self.open(sharer);
        }
        share
    }

    /// Returns a share of `bytes` bytes, if they are free now and `sharer` may get more memory.
    pub fn try_reserve(&self, sharer: Sharer, bytes: usize) -> Option<MemoryShare> {
        let mut share = self.open(sharer);
        share.grow_if_free(bytes).then_some(share)
    }

    /// Number of bytes in use, including the used bytes of the reserve.
    pub fn used_bytes(&self) -> usize {
        self.shared.inner.lock().used
    }

    /// True if messages wait for memory.
    pub fn is_short(&self) -> bool {
        self.shared.is_short.load(Ordering::Relaxed)
    }

    /// True if the messages of this [`Sharer`] hold at least as much memory as the messages of any
    /// other [`Sharer`].
    pub fn holds_most(&self, sharer: Sharer) -> bool {
        let inner = self.shared.inner.lock();
        let own = inner.held_by(sharer);
        inner.by_sharer.values().all(|held| *held <= own)
    }

    fn note_shortage(&self, inner: &Inner) {
        let is_short = !inner.waiting.is_empty();
        self.shared.is_short.store(is_short, Ordering::Relaxed);
    }
}

/// The bytes of a memory budget that one message holds. Dropping the share releases its bytes.
#[derive(Debug)]
#[must_use]
pub struct MemoryShare {
    budget: MemoryBudget,
    id: HolderId,
    bytes: usize,
}

impl MemoryShare {
    /// Grows to `bytes` bytes in total, for a message that still lacks `left` bytes. Ready when the
    /// share has grown or was evicted. Otherwise the task is woken when a retry may succeed. The
    /// task must also retry after `RETRY_AFTER`.
    ///
    /// # Errors
    /// [`Evicted`] if the share was evicted because other messages needed its memory.
    pub fn poll_grow(
        &mut self,
        cx: &mut Context<'_>,
        bytes: usize,
        left: usize,
    ) -> Poll<Result<(), Evicted>> {
        let more = bytes.saturating_sub(self.bytes);
        let mut inner = self.budget.shared.inner.lock();
        let grant = inner.grow(self.id, more, left, Instant::now());
        if grant == Grant::Wait
            && let Some(holder) = inner.holders.get_mut(&self.id)
        {
            holder.waker = Some(cx.waker().clone());
        }
        self.budget.note_shortage(&inner);
        drop(inner);
        match grant {
            Grant::Granted => {
                self.bytes += more;
                Poll::Ready(Ok(()))
            }
            Grant::Evicted => Poll::Ready(Err(Evicted)),
            Grant::Wait => Poll::Pending,
        }
    }

    /// Grows to `bytes` bytes in total, if they are free now, the [`Sharer`] may get more memory,
    /// and no message waits for memory. Returns false if the share has not grown.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        !self.budget.is_short() && self.grow_if_free(bytes)
    }

    /// Grows to `bytes` bytes in total, if they are free now and the [`Sharer`] may get more
    /// memory, even while messages wait for memory.
    fn grow_if_free(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let mut inner = self.budget.shared.inner.lock();
        let holder = inner.holders.get(&self.id);
        let Some(holder) = holder.filter(|holder| !holder.is_evicted) else {
            return false;
        };
        let fits = inner.fits(holder.sharer, more);
        if fits {
            inner.charge(self.id, more, 0);
            self.bytes += more;
        }
        fits
    }

    /// Time after which a waiting share must request memory again even if nothing has woken its
    /// task. Other holders may have become silent, and only a request for memory evicts them.
    pub(crate) const RETRY_AFTER: Duration = SILENT_AFTER;

    /// Waits until the share has grown to `bytes` bytes in total. `left` bytes of the message have
    /// not arrived. Cancel safe.
    ///
    /// # Errors
    /// [`Evicted`] if the share was evicted because other messages needed its memory.
    pub async fn grow(&mut self, bytes: usize, left: usize) -> Result<(), Evicted> {
        loop {
            let grown = poll_fn(|cx| self.poll_grow(cx, bytes, left));
            if let Ok(grown) = timeout(Self::RETRY_AFTER, grown).await {
                return grown;
            }
        }
    }

    /// Shrinks to `bytes` bytes. For `moved` and `waker` see [`Self::record_progress`].
    pub fn settle(&mut self, bytes: usize, moved: usize, waker: Option<&Waker>) {
        let mut inner = self.budget.shared.inner.lock();
        inner.release(self.id, self.bytes.saturating_sub(bytes));
        inner.record_progress(self.id, moved, waker, Instant::now());
        let has_given = self.bytes > bytes;
        self.bytes = self.bytes.min(bytes);
        if has_given && inner.free() > 0 {
            inner.wake_first();
        }
    }

    /// Records that Seawall reads no bytes from the peer and writes no bytes to the peer until the
    /// next call of [`Self::record_progress`].
    pub fn pause(&self) {
        let now = Instant::now();
        let mut inner = self.budget.shared.inner.lock();
        if let Some(holder) = inner.holders.get_mut(&self.id) {
            holder.progress.pause(now);
            holder.paused_at.get_or_insert(now);
        }
    }

    /// Records that the peer has sent or read `moved` bytes since the last call. A caller that now
    /// waits for the peer passes a waker, which is woken if the share is evicted.
    pub fn record_progress(&self, moved: usize, waker: Option<&Waker>) {
        let mut inner = self.budget.shared.inner.lock();
        inner.record_progress(self.id, moved, waker, Instant::now());
    }

    /// True if the share was evicted because other messages needed its memory.
    pub fn is_evicted(&self) -> bool {
        let inner = self.budget.shared.inner.lock();
        inner
            .holders
            .get(&self.id)
            .is_none_or(|holder| holder.is_evicted)
    }

    /// Number of bytes of this share.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let mut inner = self.budget.shared.inner.lock();
        inner.close(self.id);
        self.budget.note_shortage(&inner);
    }
}

#[cfg(test)]
mod tests;
