//! The slots of one server: they limit how many operations run on the server at a time.
//!
//! A slot is not a connection. A user may keep more connections than it has slots. So a user that
//! gets a slot usually has a connection already and needs no login. The limit is fixed, or found by
//! a [`Controller`], which gets the measurements of the server once in each [`WINDOW`]. An
//! operation that runs much longer than others becomes exempt: it no longer counts towards the
//! limit, and its slot becomes free. The reserve is a few extra slots, which some operations may
//! use while all slots are taken.

use std::{num::NonZeroU32, time::Duration};

use slab::Slab;
use tokio::time::Instant;

use super::{
    PoolLimits,
    demand::{Demand, Need},
    holdings::Holdings,
};
use seawall_auth::IdentityId;
use seawall_concurrency::{
    Controller, Decision, Epoch, Exemption, Kept, Reason, Sample, ServerTimes, ShapeGroups,
};

/// Time between two updates of the concurrency limit.
pub(super) const WINDOW: Duration = Duration::from_millis(100);

/// Number of reserved slots. Some operations may use a reserved slot while all slots are taken, for
/// example a commit: operations that wait for the locks of the transaction may take all slots, and
/// these operations end only after the commit. The number is small, because the operations in
/// reserved slots load the server too.
pub(super) const RESERVE: usize = 8;

/// Minimum time between two searches for long operations that can become exempt from the limit.
/// Each search examines all operations in progress.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_millis(1);

/// A late operation is one whose reply came too late to be useful. An operation whose client has
/// left counts as late only if it took at least this many times the median time of recent
/// operations. Otherwise it shows only that the server replies. If all such operations counted as
/// late, a server would look overloaded whenever many clients leave at the same time.
const LATE_FACTOR: u32 = 4;

/// How Seawall determines the number of slots of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// Seawall measures the server and adjusts the number of slots.
    Auto,
    /// The number of slots is always the configured number.
    Fixed(NonZeroU32),
    /// There is no limit.
    Off,
}

/// The concurrency limit of one server, and the number of this server's operations in each state.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencySnapshot {
    /// How the limit is determined (see [`Concurrency`]): `auto`, `fixed` or `off`.
    pub mode: &'static str,
    /// The current limit, which is the number of slots; `None` if there is no limit.
    pub limit: Option<u32>,
    /// The limit that the controller returns to after the current trial of another limit; `None` if
    /// there is no limit. Equal to `limit` while no trial runs.
    pub settled: Option<u32>,
    /// Number of operations that hold a slot.
    pub in_progress: usize,
    /// Number of operations that use a reserved slot: statements of transactions after the first
    /// statement, and commands that end transactions, sessions, cursors or operations.
    pub reserved: usize,
    /// Number of long operations that no longer count towards the limit.
    pub exempt: usize,
    /// Number of operations that need a slot, and that wait for the slot or for a connection.
    pub waiting: usize,
    /// The reason of the last decision on the limit. `None` if the mode is not `auto`, or if there
    /// was no decision since the start or since the last reset. A reset that changed the limit is
    /// itself a decision.
    pub reason: Option<Reason>,
}

/// The resource that an operation in progress holds, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Slot,
    Reserve,
    /// Nothing: the operation has become exempt.
    Exempt,
    /// Nothing: the pool was cleared while the operation ran.
    Cleared,
}

/// An operation in progress that took a slot or a reserved slot.
#[derive(Clone, Copy, Debug)]
struct RunningOperation {
    hold: Hold,
    user: IdentityId,
    started: Instant,
    shape: Option<u64>,
    /// True if the operation began while the server had almost nothing to do.
    at_low_load: bool,
    /// Number of operations that had completed when this operation began.
    completed_before: u64,
    /// The controller's epoch (the time between two resets) when this operation began. The time of
    /// an operation that began in an earlier epoch is not compared with other times.
    epoch: Epoch,
}

/// The slot or reserved slot that a checkout holds besides its connection. The caller must return
/// this value with [`Slots::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct Slot {
    need: Need,
    /// The key of the operation in `Slots::running`; `None` if the checkout needs no slot.
    key: Option<usize>,
}

/// The facts about an ended operation that [`Slots::release`] counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// The time from the checkout of the connection to the end of the last reply; `None` if the
    /// server did not reply completely.
    pub(super) server_time: Option<Duration>,
    /// The time from the last byte of the command to the last byte of the reply. `None` if this
    /// time says nothing about the speed of the server.
    pub(super) latency: Option<Duration>,
    /// True if the reply came too late to be useful, because the client had left.
    pub(super) is_late: bool,
    /// True if the operation exceeded its time limit.
    pub(super) has_expired: bool,
    /// True if the client's speed determined how long the operation took, because the command or
    /// the reply was streamed.
    pub(super) is_streamed: bool,
}

/// The result of an update of the concurrency limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// The controller's decision; `None` if the limit is fixed.
    pub(super) decision: Option<Decision>,
    /// True if the decision changed the settled limit. The settled limit applies while the
    /// controller does not try another limit.
    pub(super) is_change: bool,
}

/// The reason for a reset of the concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetCause {
    /// The pool was cleared.
    Clear,
    /// The server changed its type, for example from secondary to primary.
    ServerType,
    /// [`PoolLimits::concurrency`] changed.
    Mode,
    /// [`PoolLimits::max_server_connections`], without its reserve, fell below the concurrency
    /// limit.
    Ceiling,
}

impl ResetCause {
    /// The knowledge that the reset keeps. An election does not change how long operations take
    /// while the server has almost nothing to do.
    fn kept(self) -> Kept {
        match self {
            Self::ServerType => Kept::UnloadedTimes,
            Self::Clear | Self::Mode | Self::Ceiling => Kept::Nothing,
        }
    }

    /// The value of the field `cause` in logs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::ServerType => "server_type",
            Self::Mode => "mode",
            Self::Ceiling => "ceiling",
        }
    }
}

/// A reset that changed the settled limit. The settled limit applies while no trial of another
/// limit runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitReset {
    pub(super) cause: ResetCause,
    /// The settled limit before the reset; `None` if there was no limit.
    pub(super) previous: Option<u32>,
    /// The limit after the reset.
    pub(super) limit: u32,
}

/// The measurements since the last update of the concurrency limit.
#[derive(Clone, Debug)]
struct SlotWindow {
    sample: Sample,
    epoch: Epoch,
    began_at: Instant,
    touched_at: Instant,
    /// The total time for which operations held slots, in seconds.
    held: f64,
    /// The time during which at least one operation that needs a slot was waiting.
    time_with_waiting: Duration,
}

impl SlotWindow {
    fn new(epoch: Epoch, now: Instant) -> Self {
        Self {
            sample: Sample::default(),
            epoch,
            began_at: now,
            touched_at: now,
            held: 0.0,
            time_with_waiting: Duration::ZERO,
        }
    }
}

/// The slots of one server.
pub(super) struct Slots {
    mode: Concurrency,
    /// The unused controller while the limit is off. It is kept, because operations in progress
    /// belong to its epochs, and a new controller would count epochs from 0 again.
    parked: Option<Controller>,
    seed: u64,
    /// Finds the limit, and decides when operations may become exempt. `None` without a limit.
    controller: Option<Controller>,
    last_reason: Option<Reason>,
    limit: u32,
    /// The limit while no trial of another limit runs.
    settled: u32,
    holdings: Holdings,
    running: Slab<RunningOperation>,
    in_progress: u32,
    reserved: u32,
    exempt: u32,
    /// Maximum number of exempt operations; `None` if it equals the current limit.
    max_exempt: Option<NonZeroU32>,
    /// Number of operations that wait and need a slot.
    waiting: usize,
    /// Number of operations that have completed.
    completed: u64,
    times: ServerTimes,
    groups: ShapeGroups,
    exemption: Option<Exemption>,
    /// The earliest time of the next search for long operations that can become exempt.
    search_at: Instant,
    /// The latest of three times: when an operation that held a slot last completed, when an
    /// operation last became exempt, and when measurements last began again.
    unchanged_since: Instant,
    window: SlotWindow,
    created_at: Instant,
    is_asleep: bool,
}

impl Slots {
    /// Creates the slots of a server. `seed` differs for each proxy and server, so that different
    /// controllers try other limits at different times.
    pub(super) fn new(limits: &PoolLimits, seed: u64, now: Instant) -> Self {
        let mode = limits.concurrency;
        let mut slots = Self {
            mode,
            parked: None,
            seed,
            last_reason: None,
            limit: u32::MAX,
            settled: u32::MAX,
            holdings: Holdings::default(),
            running: Slab::new(),
            in_progress: 0,
            reserved: 0,
            exempt: 0,
            max_exempt: limits.max_exempt_operations,
            waiting: 0,
            completed: 0,
            times: ServerTimes::default(),
            groups: ShapeGroups::default(),
            exemption: None,
            search_at: now,
            unchanged_since: now,
            window: SlotWindow::new(Epoch::default(), now),
            created_at: now,
            is_asleep: true,
            controller: match mode {
                Concurrency::Auto | Concurrency::Fixed(_) => {
                    Some(Controller::new(ceiling(limits), seed))
                }
                Concurrency::Off => None,
            },
        };
        slots.set_limit();
        slots.settled = slots.limit;
        slots
    }

    /// Applies changed limits. A changed [`PoolLimits::concurrency`] resets the concurrency limit
    /// and makes the slots forget all measurements of the server. A lower
    /// [`PoolLimits::max_server_connections`] can reset the limit too. Operations in progress keep
    /// their slots. Returns the reset if it changed the result of [`Self::settled_limit`] and the
    /// mode is `auto`.
    pub(super) fn configure(&mut self, limits: &PoolLimits, now: Instant) -> Option<LimitReset> {
        let previous = self.settled_limit();
        self.max_exempt = limits.max_exempt_operations;
        let ceiling = ceiling(limits);
        let age = now.saturating_duration_since(self.created_at);
        for controller in self.controller.iter_mut().chain(&mut self.parked) {
            controller.set_ceiling(ceiling, age);
        }
        if self.mode == limits.concurrency {
            self.touch(now);
            self.set_limit();
            self.set_settled();
            return self.record_reset(ResetCause::Ceiling, previous);
        }
        self.mode = limits.concurrency;
        match self.mode {
            Concurrency::Off => self.parked = self.controller.take(),
            Concurrency::Auto | Concurrency::Fixed(_) => {
                let parked = self.parked.take();
                let new = || Controller::new(ceiling, self.seed);
                let controller = self.controller.take().or(parked);
                self.controller = Some(controller.unwrap_or_else(new));
            }
        }
        self.is_asleep = true;
        self.forget_measurements(Kept::Nothing, now);
        self.set_limit();
        self.set_settled();
        self.record_reset(ResetCause::Mode, previous)
    }

    /// The limit that applies when no trial of another limit runs; `None` if there is no limit.
    fn settled_limit(&self) -> Option<u32> {
        (self.mode != Concurrency::Off).then_some(self.settled)
    }

    fn set_settled(&mut self) {
        self.settled = match (self.mode, &self.controller) {
            (Concurrency::Auto, Some(controller)) => controller.settled(),
            _ => self.limit,
        };
    }

    fn set_limit(&mut self) {
        self.limit = match (self.mode, &self.controller) {
            (Concurrency::Fixed(limit), _) => limit.get(),
            (Concurrency::Auto, Some(controller)) => controller.limit(),
            (Concurrency::Auto, None) | (Concurrency::Off, _) => u32::MAX,
        };
    }

    /// True if the limit can change or operations can become exempt, so that [`Self::tick`] must be
    /// called.
    pub(super) fn needs_ticks(&self) -> bool {
        self.controller.is_some()
    }

    /// If no slot is free, makes long operations exempt to free one. Returns true if an operation
    /// with this need can run now.
    pub(super) fn make_room(&mut self, need: Need, now: Instant) -> bool {
        let is_full = need.is_limited() && self.in_progress >= self.limit;
        if is_full {
            self.exempt_long(now);
        }
        self.free_hold(need).is_some() || !need.is_limited()
    }

    fn free_hold(&self, need: Need) -> Option<Hold> {
        let has_slot = self.in_progress < self.limit;
        match need {
            Need::Nothing | Need::LanePermit => None,
            Need::Slot | Need::SlotOrReserve if has_slot => Some(Hold::Slot),
            Need::SlotOrReserve if self.has_reserve() => Some(Hold::Reserve),
            Need::Slot | Need::SlotOrReserve => None,
        }
    }

    /// True if a reserved slot is free.
    pub(super) fn has_reserve(&self) -> bool {
        count_of(self.reserved) < RESERVE
    }

    /// Number of free slots.
    pub(super) fn free(&self) -> usize {
        count_of(self.limit.saturating_sub(self.in_progress))
    }

    /// Number of slots that a user holds.
    pub(super) fn held_by(&self, user: IdentityId) -> usize {
        self.holdings.slots_of(user)
    }

    /// A user's share of the slots, rounded up. All users that hold slots or wait for them have
    /// equal shares.
    pub(super) fn share_of(&self, user: IdentityId) -> usize {
        count_of(self.limit).div_ceil(self.holdings.users_with(user))
    }

    /// True if some user may be allowed to exceed the limit. If this function returns false,
    /// [`Self::may_exceed`] returns false for all users.
    pub(super) fn is_unequal(&self) -> bool {
        self.holdings.most() > 1 && !self.is_doubled()
    }

    fn is_doubled(&self) -> bool {
        self.in_progress >= self.limit.saturating_mul(2)
    }

    /// True if a user may run an operation although all slots are taken. This is allowed in two
    /// cases:
    ///
    /// - The user has fewer slots than its share, and another user has more slots than this share.
    /// - The user has no slot, and another user has several.
    ///
    /// Without this rule, long operations of one user could block all other users. The limit is
    /// exceeded until operations of the other users end. When operations hold twice as many slots
    /// as the limit allows, no further one may exceed it.
    pub(super) fn may_exceed(&self, user: IdentityId) -> bool {
        let (share, held) = (self.share_of(user), self.held_by(user));
        let fair = if held == 0 { 1 } else { share };
        held < share && self.holdings.most() > fair && !self.is_doubled()
    }

    /// Begins an operation. The caller has called [`Self::make_room`]; if there was no room, the
    /// operation exceeds the limit. `waited` is how long the operation waited; `None` if it did not
    /// wait.
    pub(super) fn take(
        &mut self,
        user: IdentityId,
        demand: &Demand,
        waited: Option<Duration>,
        now: Instant,
    ) -> Slot {
        self.touch(now);
        if waited.is_some() {
            self.end_wait(user, demand.need, now);
        }
        let need = demand.need;
        if !need.is_limited() {
            return Slot { need, key: None };
        }
        self.window.sample.wait_time += waited.unwrap_or_default();
        let hold = self.free_hold(need).unwrap_or(Hold::Slot);
        self.add_hold(hold, user);
        let in_progress = u64::from(self.in_progress + self.reserved + self.exempt);
        let key = self.running.insert(RunningOperation {
            hold,
            user,
            started: now,
            shape: demand.shape,
            at_low_load: in_progress <= Sample::LOW_LOAD,
            completed_before: self.completed,
            epoch: self.window.epoch,
        });
        Slot {
            need,
            key: Some(key),
        }
    }

    fn count_mut(&mut self, hold: Hold) -> Option<&mut u32> {
        match hold {
            Hold::Slot => Some(&mut self.in_progress),
            Hold::Reserve => Some(&mut self.reserved),
            Hold::Exempt => Some(&mut self.exempt),
            Hold::Cleared => None,
        }
    }

    /// Adds an operation of `user` to the count for its [`Hold`].
    fn add_hold(&mut self, hold: Hold, user: IdentityId) {
        if let Some(count) = self.count_mut(hold) {
            *count += 1;
        }
        if hold == Hold::Slot {
            self.holdings.add_slot(user);
        }
    }

    /// Removes an operation of `user` from the count for its [`Hold`].
    fn remove_hold(&mut self, hold: Hold, user: IdentityId) {
        if let Some(count) = self.count_mut(hold) {
            *count -= 1;
        }
        if hold == Hold::Slot {
            self.holdings.remove_slot(user);
        }
    }

    /// Replaces the [`Hold`] of an operation in progress, and updates the counts.
    fn change_hold(&mut self, key: usize, hold: Hold) {
        if let Some(running) = self.running.get_mut(key) {
            let (before, user) = (std::mem::replace(&mut running.hold, hold), running.user);
            self.remove_hold(before, user);
            self.add_hold(hold, user);
        }
    }

    /// Ends an operation: frees its slot or reserved slot, and counts its result for the
    /// controller. Returns the need of the operation.
    pub(super) fn release(&mut self, slot: Slot, usage: Usage, now: Instant) -> Need {
        let Slot { need, key } = slot;
        let Some(running) = key.and_then(|key| self.running.try_remove(key)) else {
            return need;
        };
        self.touch(now);
        self.remove_hold(running.hold, running.user);
        if self.controller.is_some()
            && let Some(server_time) = usage.server_time
        {
            self.count_result(&running, server_time, usage, now);
        }
        need
    }

    /// Counts the result of an operation that took `server_time`.
    fn count_result(
        &mut self,
        running: &RunningOperation,
        server_time: Duration,
        usage: Usage,
        now: Instant,
    ) {
        self.completed += 1;
        // Only operations that hold slots count here: the other ones complete even while long
        // operations hold all slots.
        if running.hold == Hold::Slot {
            self.unchanged_since = now;
        }
        // An operation that has waited for a slot may exceed its time limit soon after it begins.
        // If it was not slow, its reply says nothing about the server's load. So it counts neither
        // as late nor as completed.
        let factor = if usage.has_expired { 1 } else { LATE_FACTOR };
        let is_slow =
            |times: &ServerTimes| server_time >= times.median().unwrap_or_default() * factor;
        let is_useless = usage.is_late || usage.has_expired;
        let is_late = is_useless && is_slow(&self.times);
        let sample = &mut self.window.sample;
        let is_comparable = !usage.is_streamed && running.epoch == self.window.epoch;
        let is_completed = is_comparable && !is_useless;
        if is_comparable && is_late {
            sample.late += 1;
        } else if let Some(shape) = running.shape.filter(|_| is_completed) {
            self.times.record(server_time);
            let group = self.groups.record(shape, server_time);
            sample.record(group, server_time, running.at_low_load);
        } else {
            sample.uncompared += 1;
        }
    }

    /// Records that an operation with this need begins to wait.
    pub(super) fn begin_wait(&mut self, user: IdentityId, need: Need, now: Instant) {
        if need.is_limited() {
            self.touch(now);
            self.waiting += 1;
            self.holdings.add_waiter(user);
        }
    }

    /// Records that an operation with this need ended its wait.
    pub(super) fn end_wait(&mut self, user: IdentityId, need: Need, now: Instant) {
        if need.is_limited() {
            self.touch(now);
            self.waiting -= 1;
            self.holdings.remove_waiter(user);
        }
    }

    /// True if operations that need a slot are waiting.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Updates the sums in [`SlotWindow`]: adds the time that has passed since the last update.
    fn touch(&mut self, now: Instant) {
        let window = &mut self.window;
        let passed = now.saturating_duration_since(window.touched_at);
        window.held += f64::from(self.in_progress) * passed.as_secs_f64();
        if self.waiting > 0 {
            window.time_with_waiting += passed;
        }
        window.touched_at = window.touched_at.max(now);
    }

    /// Makes those operations exempt that run much longer than other operations.
    fn exempt_long(&mut self, now: Instant) {
        let Some(rule) = self.exemption.filter(|_| now >= self.search_at) else {
            return;
        };
        self.touch(now);
        let mut oldest = now;
        let counted = |hold| matches!(hold, Hold::Slot | Hold::Reserve);
        let running = self.running.iter().filter(|(_, r)| counted(r.hold));
        let mut running: Vec<_> = running.map(|(key, running)| (key, *running)).collect();
        // While no operation completes, one search makes only the first long operation exempt. An
        // operation in the reserve would free no slot, so the search begins with the operations
        // that hold slots.
        running.sort_by_key(|(_, running)| running.hold != Hold::Slot);
        for (key, running) in running {
            let time = now.saturating_duration_since(running.started);
            let since = self.completed - running.completed_before;
            let unchanged_for = now.saturating_duration_since(self.unchanged_since);
            if rule.applies(time, self.exempt, since, unchanged_for) {
                self.change_hold(key, Hold::Exempt);
                self.unchanged_since = now;
            } else {
                oldest = oldest.min(running.started);
            }
        }
        self.search_at = (oldest + rule.threshold).max(now + MIN_SEARCH_INTERVAL);
    }

    /// Updates the limit. Called every [`WINDOW`] while [`Self::is_idle`] is false. Returns `None`
    /// if there is no limit.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Update> {
        self.touch(now);
        let since_creation = now.saturating_duration_since(self.created_at);
        let controller = self.controller.as_mut()?;
        let next = SlotWindow::new(controller.epoch(), now);
        let window = std::mem::replace(&mut self.window, next);
        let length = now.saturating_duration_since(window.began_at);
        let sample = Sample {
            epoch: window.epoch,
            window: length,
            time_with_waiting: window.time_with_waiting,
            waiting: u64::try_from(self.waiting).unwrap_or(u64::MAX),
            mean_in_progress: window.held / length.as_secs_f64().max(1e-6),
            in_progress: u64::from(self.in_progress),
            exempt: u64::from(self.exempt),
            ..window.sample
        };
        let decision = controller.update(&sample, since_creation);
        self.set_limit();
        let bound = self.max_exempt.map_or(self.limit, NonZeroU32::get);
        let may_exempt = decision.may_exempt;
        let rule = Exemption::new(&self.times, may_exempt, self.limit, bound);
        self.exemption = Some(rule);
        self.search_at = now;
        if self.waiting > 0 && self.in_progress >= self.limit {
            self.exempt_long(now);
        }
        if self.mode != Concurrency::Auto {
            return Some(Update {
                decision: None,
                is_change: false,
            });
        }
        self.last_reason = Some(decision.reason);
        let before = std::mem::replace(&mut self.settled, decision.settled);
        Some(Update {
            decision: Some(decision),
            is_change: decision.settled != before,
        })
    }

    /// True if no operation that needs a slot runs or waits, and no result of an operation was
    /// counted since the last update.
    pub(super) fn is_idle(&self) -> bool {
        let sample = &self.window.sample;
        let has_recent = sample.completed() + sample.late + sample.uncompared > 0;
        self.running.is_empty() && self.waiting == 0 && !has_recent
    }

    /// Records that no update follows until [`Self::wake`] returns true.
    pub(super) fn sleep(&mut self) {
        self.is_asleep = true;
    }

    /// Begins new measurements if the updates had stopped. Returns true if the caller must start
    /// the regular calls of [`Self::tick`] again.
    pub(super) fn wake(&mut self, now: Instant) -> bool {
        if !self.is_asleep || !self.needs_ticks() {
            return false;
        }
        self.is_asleep = false;
        self.unchanged_since = now;
        let epoch = self.window.epoch;
        self.window = SlotWindow::new(epoch, now);
        if let Some(controller) = &mut self.controller {
            controller.resume(now.saturating_duration_since(self.created_at));
        }
        true
    }

    /// Takes the slots from all operations in progress. The server has failed, so these operations
    /// may never end.
    pub(super) fn clear(&mut self, now: Instant) {
        self.touch(now);
        let keys: Vec<_> = self.running.iter().map(|(key, _)| key).collect();
        keys.into_iter()
            .for_each(|key| self.change_hold(key, Hold::Cleared));
    }

    /// Forgets all measurements of the server, which resets the limit. Returns the reset if it
    /// changed the result of [`Self::settled_limit`].
    pub(super) fn reset(&mut self, cause: ResetCause, now: Instant) -> Option<LimitReset> {
        let previous = self.settled_limit();
        self.forget_measurements(cause.kept(), now);
        self.record_reset(cause, previous)
    }

    fn forget_measurements(&mut self, kept: Kept, now: Instant) {
        self.touch(now);
        let Some(controller) = &mut self.controller else {
            return;
        };
        controller.reset(kept);
        controller.resume(now.saturating_duration_since(self.created_at));
        self.window = SlotWindow::new(controller.epoch(), now);
        self.times = ServerTimes::default();
        if kept == Kept::Nothing {
            self.groups = ShapeGroups::default();
        }
        self.exemption = None;
        self.unchanged_since = now;
        self.last_reason = None;
        self.set_limit();
        self.settled = self.limit;
    }

    /// If a reset changed the limit, records the reset as the last decision on the limit, and
    /// returns it. `previous` is the result of [`Self::settled_limit`] before the reset. Returns
    /// `None` if the mode is not `auto`: a fixed limit comes from the configuration, not from a
    /// decision.
    fn record_reset(&mut self, cause: ResetCause, previous: Option<u32>) -> Option<LimitReset> {
        let limit = self.settled;
        if self.mode != Concurrency::Auto || previous == Some(limit) {
            return None;
        }
        self.last_reason = Some(Reason::Reset);
        Some(LimitReset {
            cause,
            previous,
            limit,
        })
    }

    pub(super) fn snapshot(&self) -> ConcurrencySnapshot {
        let is_auto = self.mode == Concurrency::Auto;
        let limit = (self.mode != Concurrency::Off).then_some(self.limit);
        ConcurrencySnapshot {
            mode: match self.mode {
                Concurrency::Auto => "auto",
                Concurrency::Fixed(_) => "fixed",
                Concurrency::Off => "off",
            },
            limit,
            settled: self.settled_limit(),
            in_progress: count_of(self.in_progress),
            reserved: count_of(self.reserved),
            exempt: count_of(self.exempt),
            waiting: self.waiting,
            reason: self.last_reason.filter(|_| is_auto),
        }
    }

    /// Checks the counts against the operations in progress.
    #[cfg(test)]
    pub(super) fn check_invariants(&self, waiting: usize) {
        let count = |hold| {
            let holding = self.running.iter().filter(|(_, r)| r.hold == hold);
            u32::try_from(holding.count()).unwrap()
        };
        let counts = [Hold::Slot, Hold::Reserve, Hold::Exempt].map(count);
        assert_eq!(counts, [self.in_progress, self.reserved, self.exempt]);
        let most = self.holdings.most();
        assert!(most <= usize::try_from(self.in_progress).unwrap());
        assert_eq!(most == 0, self.in_progress == 0);
        assert!(count_of(self.reserved) <= RESERVE, "the reserve is bounded");
        assert_eq!(waiting, self.waiting, "all waiters for a slot are counted");
    }
}

/// The highest limit. With a higher limit, the last slots could be filled only with reserved
/// connections. But the controller compares only limits whose slots are almost all in use.
fn ceiling(limits: &PoolLimits) -> u32 {
    u32::try_from(limits.max_for_slots()).unwrap_or(u32::MAX)
}

fn count_of(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
