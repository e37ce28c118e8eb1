//! One memory budget for the messages of all connections, charged as bytes arrive.
//!
//! A message is charged for the bytes that have arrived, never for the bytes that its header
//! announces: announcing costs nothing. An address may hold at most eight times the free memory, so
//! one address alone leaves room for others. A holder that finds no room waits before it reads
//! more. Two rules prevent a deadlock:
//!
//! - One message at a time may finish from a reserve beside the budget. Among the waiting messages
//!   it is one of the address that holds least; of this address, the one with the fewest bytes
//!   left. It keeps its turn as long as it makes progress.
//! - A holder that makes no progress is evicted (its connection is closed) if a message of an
//!   address that holds less is waiting. A holder that is slow ([`Progress`]) is evicted for any
//!   waiting message. Holders of the address that holds most go first, the longest silent before
//!   the others. A holder that waits for the budget itself is neither silent nor slow: Seawall is
//!   not ready, not the client. Only if no holder is slow and the message that uses the reserve
//!   finds no room there, the waiting holder with the most bytes left is evicted.
//!
//! Invariant: the charged bytes are at most the budget plus the reserve, or one message that is
//! larger than both.

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

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{Sharer, is_within_share, progress::Progress};

/// Minimum time between two searches for holders to evict.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

/// Time without a new byte after which a holder gives way to an address that holds less, and loses
/// its turn at the reserve.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// A holder was evicted, because it was slow and others needed its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted;

/// One memory budget for the messages of all connections.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// True if holders wait; read without the lock.
    is_short: AtomicBool,
}

/// A holder's number.
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
    /// The part of `bytes` that comes from the reserve.
    reserve_bytes: usize,
    /// When the last bytes arrived.
    progress_at: Instant,
    progress: Progress,
    /// Start of the time in which Seawall is not ready for the peer, if it is not.
    paused_at: Option<Instant>,
    /// While it waits for memory: the start of the wait, and the bytes missing from its message.
    waits: Option<(Instant, usize)>,
    is_evicted: bool,
    waker: Option<Waker>,
}

impl Holder {
    /// True if it must give way to a waiting message; `holds_more` if its address holds more than
    /// the waiting message's address.
    fn gives_way(&self, holds_more: bool, now: Instant) -> bool {
        if !self.progress.is_owing() || self.is_evicted {
            return false;
        }
        let is_silent = now.saturating_duration_since(self.progress_at) >= SILENT_AFTER;
        self.progress.is_slow(now) || is_silent && holds_more
    }
}

/// The holders that wait for memory, in order. Thousands may wait, so the first is found without a
/// search.
#[derive(Debug, Default)]
struct Waiting {
    /// The waiting holders of each sharer; first the one with the fewest bytes left.
    by_sharer: HashMap<Sharer, BTreeSet<(usize, HolderId)>>,
    /// The sharers with waiting holders; first the one that holds least.
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

    /// Moves a sharer that holds more or less than before.
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

/// Plain data: no I/O, no clock.
#[derive(Debug)]
struct Inner {
    all: usize,
    reserve: usize,
    /// Bytes used of the budget and the reserve together.
    used: usize,
    reserve_used: usize,
    next_id: u64,
    holders: HashMap<HolderId, Holder>,
    by_sharer: HashMap<Sharer, usize>,
    waiting: Waiting,
    /// The holder whose message finishes from the reserve.
    finisher: Option<HolderId>,
    /// Time of the last search for holders to evict.
    evicted_at: Option<Instant>,
}

/// The order in which messages may finish from the reserve.
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

    /// Requests `more` bytes for a message. `left` bytes of the message are still to arrive, `more`
    /// included.
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
            // A wait for memory is not the sender's silence. A peer that owed bytes during the wait
            // gets no credit.
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
        if self.may_use_reserve(id, more, left, now) {
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

    /// Free bytes outside the reserve.
    fn free(&self) -> usize {
        self.all.saturating_sub(self.used - self.reserve_used)
    }

    /// True if `more` bytes are free, and the sharer is within its share.
    fn fits(&self, sharer: Sharer, more: usize) -> bool {
        let free = self.free();
        more == 0 || more <= free && is_within_share(self.held_by(sharer), free)
    }

    /// True if this message is the one that finishes from the reserve, and has room there.
    fn may_use_reserve(&mut self, id: HolderId, more: usize, left: usize, now: Instant) -> bool {
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

    /// Charges a holder; `from_reserve` of these bytes come from the reserve.
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

    /// Records bytes that moved for a holder.
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

    /// Evicts holders for one that waits for `wanted` bytes.
    fn evict_for(&mut self, waiter: HolderId, wanted: usize, now: Instant) {
        let is_soon = |at: Instant| now.saturating_duration_since(at) < EVICTION_INTERVAL;
        if self.evicted_at.is_some_and(is_soon) {
            return;
        }
        self.evicted_at = Some(now);
        let mut victims = self.slow_holders(waiter, now);
        if victims.is_empty() && self.finisher == Some(waiter) {
            // All holders wait, and none can finish: the one with the most bytes left must start
            // over.
            victims.extend(self.last_waiting(waiter));
        }
        // Holders evicted before may not have released their memory yet.
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

    /// Holders that must give way to `waiter`: first those of the address that holds most, the
    /// longest silent before the others.
    fn slow_holders(&self, waiter: HolderId, now: Instant) -> Vec<HolderId> {
        let waiter = self.holders.get(&waiter);
        let sharer = waiter.map(|holder| holder.sharer).unwrap_or_default();
        let own = self.held_by(sharer);
        let mut slow: Vec<_> = (self.holders.iter())
            .filter(|(_, holder)| {
                let held = self.held_by(holder.sharer);
                let holds_more = holder.sharer != sharer && held > own;
                holder.bytes > 0 && holder.gives_way(holds_more, now)
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

    fn last_waiting(&self, except: HolderId) -> Option<HolderId> {
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

    /// Wakes the first waiting holder because memory was released. It wakes the next one if room is
    /// left.
    fn wake_first(&mut self) {
        let first = self.waiting.first().map(|(_, _, id)| id);
        self.wake(first);
    }
}

impl MemoryBudget {
    /// A budget of `bytes` bytes. The reserve is part of it: the size of the largest message, but
    /// at most half of the budget.
    pub fn of_bytes(bytes: usize) -> Self {
        let reserve = seawall_wire::MAX_MESSAGE_BYTES.min(bytes / 2);
        Self {
            shared: Arc::new(Shared {
                inner: Mutex::new(Inner::new(bytes - reserve, reserve)),
                is_short: AtomicBool::new(false),
            }),
        }
    }

    /// An empty share for a connection of this sharer.
    pub fn open(&self, sharer: Sharer) -> MemoryShare {
        let id = self.shared.inner.lock().open(sharer, Instant::now());
        MemoryShare {
            budget: self.clone(),
            id,
            bytes: 0,
        }
    }

    /// Waits for a share of `bytes` bytes for a server's message to this sharer.
    pub async fn reserve(&self, sharer: Sharer, bytes: usize) -> MemoryShare {
        let mut share = self.open(sharer);
        // An evicted share waits again: the message must be read in any case.
        while share.grow(bytes, bytes).await.is_err() {
            share = self.open(sharer);
        }
        share
    }

    /// A share of `bytes` bytes, if there is room for it now.
    pub fn try_reserve(&self, sharer: Sharer, bytes: usize) -> Option<MemoryShare> {
        let mut share = self.open(sharer);
        let mut inner = self.shared.inner.lock();
        let fits = inner.fits(sharer, bytes);
        if fits {
            inner.charge(share.id, bytes, 0);
            share.bytes = bytes;
        }
        drop(inner);
        fits.then_some(share)
    }

    /// Bytes in use, the reserve included.
    pub fn used_bytes(&self) -> usize {
        self.shared.inner.lock().used
    }

    /// True if messages wait for memory.
    pub fn is_short(&self) -> bool {
        self.shared.is_short.load(Ordering::Relaxed)
    }

    /// True if no sharer holds more than this one.
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

/// A share of a memory budget, released when dropped.
#[derive(Debug)]
#[must_use]
pub struct MemoryShare {
    budget: MemoryBudget,
    id: HolderId,
    bytes: usize,
}

impl MemoryShare {
    /// Grows to `bytes` bytes in total, for a message with `left` bytes still to arrive. Ready when
    /// the share has grown or was evicted. Otherwise the task is woken when a retry may succeed; it
    /// must also retry after [`MemoryShare::RETRY_AFTER`], because other holders may have stalled.
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

    /// Time after which a waiting share asks again without being woken: others may have stalled.
    pub const RETRY_AFTER: Duration = SILENT_AFTER;

    /// Grows to `bytes` bytes in total; waits for room. Cancel safe.
    ///
    /// # Errors
    /// [`Evicted`] if the share was evicted for others.
    pub async fn grow(&mut self, bytes: usize, left: usize) -> Result<(), Evicted> {
        loop {
            let grown = poll_fn(|cx| self.poll_grow(cx, bytes, left));
            if let Ok(grown) = timeout(Self::RETRY_AFTER, grown).await {
                return grown;
            }
        }
    }

    /// Releases all but `bytes` bytes; for `moved` and `waker` see [`Self::record_progress`].
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

    /// Seawall is not ready for the peer until the next call of [`Self::record_progress`].
    pub fn pause(&self) {
        let now = Instant::now();
        let mut inner = self.budget.shared.inner.lock();
        if let Some(holder) = inner.holders.get_mut(&self.id) {
            holder.progress.pause(now);
            holder.paused_at.get_or_insert(now);
        }
    }

    /// The peer moved `moved` bytes since the last call. With a waker, the peer owes the next
    /// bytes, and the waker is woken if the share is evicted.
    pub fn record_progress(&self, moved: usize, waker: Option<&Waker>) {
        let mut inner = self.budget.shared.inner.lock();
        inner.record_progress(self.id, moved, waker, Instant::now());
    }

    /// True if the share was evicted for others.
    pub fn is_evicted(&self) -> bool {
        let inner = self.budget.shared.inner.lock();
        inner
            .holders
            .get(&self.id)
            .is_none_or(|holder| holder.is_evicted)
    }

    /// Bytes of this share.
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
