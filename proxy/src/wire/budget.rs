//! Memory for messages of all connections together, charged as their bytes arrive.
//!
//! A message is charged for bytes that have arrived, never for bytes that its header announces, so that announcing costs
//! nothing. An address may hold at most eight times what is free, so that one address alone leaves room for others. A
//! holder that finds no room waits before it reads more, and two rules keep the budget moving:
//!
//! - One message at a time may finish from a reserve beside the budget: one of the address that holds least among those
//!   that wait, and of that address the one with the least left. It keeps its turn as long as it makes progress.
//! - A holder that makes no progress is closed when a message waits whose address holds less, or, whoever waits, when it
//!   is slow ([`Progress`]). The slowest holder of the address that holds most is closed first. A holder that waits for
//!   the budget itself is never closed: then Seawall is not ready, and not the client.
//!
//! Invariant: what is charged is at most the budget and the reserve, or one message that is larger than both.

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

/// Least time between two searches for holders that have to give way.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

/// A holder without a new byte for so long gives way to an address that holds less, and its turn at the reserve ends.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// A holder was closed, because it was slow and others needed its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted;

/// Memory for messages of all connections together.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// Whether holders wait; read without the lock.
    is_short: AtomicBool,
}

/// A holder's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct HolderId(u64);

/// What a request for more memory comes to.
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
    /// When bytes came last.
    progress_at: Instant,
    progress: Progress,
    /// Since when Seawall has not been ready for its peer, if it is not.
    paused_at: Option<Instant>,
    /// While it waits for memory: since when, and the bytes until its message is complete.
    waits: Option<(Instant, usize)>,
    is_evicted: bool,
    waker: Option<Waker>,
}

impl Holder {
    /// Whether it has to give way to a message that waits; `holds_more` if that is of an address that holds less.
    fn gives_way(&self, holds_more: bool, now: Instant) -> bool {
        if !self.progress.is_owing() || self.is_evicted {
            return false;
        }
        let is_silent = now.saturating_duration_since(self.progress_at) >= SILENT_AFTER;
        self.progress.is_slow(now) || is_silent && holds_more
    }
}

/// The holders that wait for memory, in order. Thousands may wait, so that none is searched for.
#[derive(Debug, Default)]
struct Waiting {
    /// Those of each sharer: the one with the least left to come is first.
    by_sharer: HashMap<Sharer, BTreeSet<(usize, HolderId)>>,
    /// Sharers with waiting holders: the one that holds least is first.
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

    /// A sharer holds more or less than before.
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
    /// Of both together.
    used: usize,
    reserve_used: usize,
    next_id: u64,
    holders: HashMap<HolderId, Holder>,
    by_sharer: HashMap<Sharer, usize>,
    waiting: Waiting,
    /// Whose message finishes from the reserve.
    finisher: Option<HolderId>,
    /// When it was last searched for holders that have to give way.
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

    /// Wants `more` bytes for a message of which `left` are still to come, these included.
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
            // Time that it waits for memory is none that its sender takes. A client that has bytes to take is not excused.
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

    /// Bytes outside the reserve that nothing holds.
    fn free(&self) -> usize {
        self.all.saturating_sub(self.used - self.reserve_used)
    }

    /// True if `more` bytes are free, and within the share of this sharer.
    fn fits(&self, sharer: Sharer, more: usize) -> bool {
        let free = self.free();
        more == 0 || more <= free && is_within_share(self.held_by(sharer), free)
    }

    /// Whether a message is the one that finishes from the reserve, and has room there.
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

    /// Charges a holder; `from_reserve` of the bytes come from the reserve.
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

    /// Bytes came for a holder.
    fn progress(&mut self, id: HolderId, bytes: usize, now: Instant) {
        if let Some(holder) = self.holders.get_mut(&id) {
            holder.progress_at = now;
            holder.paused_at = None;
            holder.progress.moved(bytes, now);
        }
    }

    fn note(&mut self, id: HolderId, moved: usize, waker: Option<&Waker>, now: Instant) {
        if moved > 0 {
            self.progress(id, moved, now);
        }
        if let (Some(waker), Some(holder)) = (waker, self.holders.get_mut(&id)) {
            if let Some(since) = holder.paused_at.take() {
                holder.progress_at += now.saturating_duration_since(since);
            }
            holder.progress.owes(now);
            holder.waker = Some(waker.clone());
        }
    }

    /// Closes holders that have to give way to one that waits for `wanted` bytes.
    fn evict_for(&mut self, waiter: HolderId, wanted: usize, now: Instant) {
        let is_soon = |at: Instant| now.saturating_duration_since(at) < EVICTION_INTERVAL;
        if self.evicted_at.is_some_and(is_soon) {
            return;
        }
        self.evicted_at = Some(now);
        let mut victims = self.slow_holders(waiter, now);
        if victims.is_empty() && self.finisher == Some(waiter) {
            // All wait, and none can finish: the one with most left starts over.
            victims.extend(self.last_waiting(waiter));
        }
        // What was closed before may not have given its memory back yet.
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

    /// Holders that have to give way to one that waits: the greediest address's first, and of these the most silent.
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

    /// Room came free: wakes the first of those that wait, which wakes the next if there is room left.
    fn wake_first(&mut self) {
        let first = self.waiting.first().map(|(_, _, id)| id);
        self.wake(first);
    }
}

impl MemoryBudget {
    /// A budget of so many bytes, of which as much is the reserve as the largest message takes, but half of it at most.
    pub fn of_bytes(bytes: usize) -> Self {
        let reserve = super::MAX_MESSAGE_BYTES.min(bytes / 2);
        Self {
            shared: Arc::new(Shared {
                inner: Mutex::new(Inner::new(bytes - reserve, reserve)),
                is_short: AtomicBool::new(false),
            }),
        }
    }

    /// A share without a byte yet, of a connection from this address.
    pub fn open(&self, sharer: Sharer) -> MemoryShare {
        let id = self.shared.inner.lock().open(sharer, Instant::now());
        MemoryShare {
            budget: self.clone(),
            id,
            bytes: 0,
        }
    }

    /// A share of so many bytes that a server's message for this address takes, waited for.
    pub async fn reserve(&self, sharer: Sharer, bytes: usize) -> MemoryShare {
        let mut share = self.open(sharer);
        // One that had to start over waits again: the message has to be read in any case.
        while share.grow(bytes, bytes).await.is_err() {
            share = self.open(sharer);
        }
        share
    }

    /// The same, if there is room for it now.
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

    /// Bytes of it that are in use.
    pub fn used_bytes(&self) -> usize {
        self.shared.inner.lock().used
    }

    /// Whether messages wait for memory.
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

/// A share of a memory budget, given back when dropped.
#[derive(Debug)]
#[must_use]
pub struct MemoryShare {
    budget: MemoryBudget,
    id: HolderId,
    bytes: usize,
}

impl MemoryShare {
    /// Grows to so many bytes in all, of a message of which `left` bytes are still to come. Ready when it has, or when the
    /// share was closed; else the task is woken when it is worth asking again, and has to ask again after
    /// [`MemoryShare::ASK_AGAIN_AFTER`] in any case.
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

    /// How long a share waits before it asks again by itself: others may have stalled meanwhile.
    pub const ASK_AGAIN_AFTER: Duration = SILENT_AFTER;

    /// Grows to so many bytes in all, waiting for room. Cancel safe.
    ///
    /// # Errors
    /// [`Evicted`] if it was closed for the sake of others.
    pub async fn grow(&mut self, bytes: usize, left: usize) -> Result<(), Evicted> {
        loop {
            let grown = poll_fn(|cx| self.poll_grow(cx, bytes, left));
            if let Ok(grown) = timeout(Self::ASK_AGAIN_AFTER, grown).await {
                return grown;
            }
        }
    }

    /// Gives back what is more than `bytes`; for the rest see [`Self::note`].
    pub fn settle(&mut self, bytes: usize, moved: usize, waker: Option<&Waker>) {
        let mut inner = self.budget.shared.inner.lock();
        inner.release(self.id, self.bytes.saturating_sub(bytes));
        inner.note(self.id, moved, waker, Instant::now());
        let has_given = self.bytes > bytes;
        self.bytes = self.bytes.min(bytes);
        if has_given && inner.free() > 0 {
            inner.wake_first();
        }
    }

    /// Seawall is not ready for the peer until the next [`Self::note`].
    pub fn pause(&self) {
        let now = Instant::now();
        let mut inner = self.budget.shared.inner.lock();
        if let Some(holder) = inner.holders.get_mut(&self.id) {
            holder.progress.pause(now);
            holder.paused_at.get_or_insert(now);
        }
    }

    /// The peer moved `moved` bytes since it was asked last. With a waker it owes the next ones, and the waker is woken if
    /// the share is closed.
    pub fn note(&self, moved: usize, waker: Option<&Waker>) {
        let mut inner = self.budget.shared.inner.lock();
        inner.note(self.id, moved, waker, Instant::now());
    }

    /// Whether it was closed for the sake of others.
    pub fn is_evicted(&self) -> bool {
        let inner = self.budget.shared.inner.lock();
        inner
            .holders
            .get(&self.id)
            .is_none_or(|holder| holder.is_evicted)
    }

    /// Bytes of it.
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
