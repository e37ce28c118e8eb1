//! The part of a proxy that keeps the operations of one server within the limit.
//!
//! The limiter follows the rules of a real proxy (`proxy/src/pool/slots.rs`). It omits these parts
//! of a real proxy, because they do not matter for the compared results:
//!
//! - The reserve of slots and connections. Only commands such as commits use it, and no scenario
//!   has such commands.
//! - Operations without a slot: operations that wait for data, and commands of Seawall itself. To
//!   the controller, they look like load of other clients, which some scenarios have.
//! - The connections of each user. Here all users share the connections, and there is one maximum
//!   for all of them. The controller does not know users.
//! - `max_connecting`. Here one connection is established every 5 ms, because the default of
//!   `connections_per_second` is 200.
//! - Streamed replies. The controller does not use their times.
//!
//! One other difference matters for clients that have a timeout: the wait and the server time of an
//! operation each have the full timeout. If the timeout passes during the wait, the operation stays
//! in the queue until it would begin, and is then dropped. With one timeout for the sum of wait and
//! server time, each operation would begin just before its timeout in a lasting overload. So almost
//! every reply would be late at every limit.

use std::{collections::VecDeque, time::Duration};

use seawall_concurrency::{
    Controller, Decision, Epoch, Exemption, Kept, Sample, ServerTimes, ShapeGroups,
};

/// An operation whose client has left counts as late only if it took at least this many times the
/// median server time.
const LATE_FACTOR: u32 = 4;

/// Time to establish one connection, in µs. A limiter establishes one connection at a time.
pub(crate) const GROW_US: f64 = 5_000.0;

/// An operation in progress, with the values that the limiter needs.
pub(crate) struct Running {
    pub(crate) operation: u32,
    pub(crate) number: u64,
    pub(crate) user: usize,
    pub(crate) started: f64,
    pub(crate) completed_before: u64,
}

pub(crate) struct Limiter {
    /// The limit in effect.
    pub(crate) limit: u32,
    /// The limit, if it is fixed. The controller then only decides if long operations may become
    /// exempt.
    fixed: Option<u32>,
    controller: Controller,
    /// Waiting operations by user.
    queues: Vec<VecDeque<u32>>,
    /// Number of operations in progress by user, without exempt operations.
    held: Vec<u32>,
    next_user: usize,
    pub(crate) waiting: u64,
    in_progress: u32,
    exempt: u32,
    pub(crate) connections: u32,
    max_connections: u32,
    pub(crate) is_growing: bool,
    pub(crate) completed: u64,
    running: VecDeque<Running>,
    long: Vec<Running>,
    times: ServerTimes,
    groups: ShapeGroups,
    exemption: Option<Exemption>,
    /// The last time at which an operation completed that was not exempt, or at which an operation
    /// became exempt (the limit no longer counts it).
    unchanged_since: f64,
    sample: Sample,
    integral: f64,
    waiting_us: f64,
    touched_at: f64,
    ticked_at: f64,
}

impl Limiter {
    /// Creates a limiter that begins at the time 0. `fixed` is the limit; if it is `None`,
    /// `controller` finds the limit.
    pub(crate) fn new(
        fixed: Option<u32>,
        controller: Controller,
        users: usize,
        max_connections: u32,
    ) -> Self {
        Self {
            limit: fixed.unwrap_or(controller.limit()),
            fixed,
            controller,
            queues: vec![VecDeque::new(); users],
            held: vec![0; users],
            next_user: 0,
            waiting: 0,
            in_progress: 0,
            exempt: 0,
            connections: 0,
            max_connections,
            is_growing: false,
            completed: 0,
            running: VecDeque::new(),
            long: Vec::new(),
            times: ServerTimes::default(),
            groups: ShapeGroups::default(),
            exemption: None,
            unchanged_since: 0.0,
            sample: Sample::default(),
            integral: 0.0,
            waiting_us: 0.0,
            touched_at: 0.0,
            ticked_at: 0.0,
        }
    }

    pub(crate) fn load(&self) -> u64 {
        self.waiting + u64::from(self.in_progress + self.exempt)
    }

    /// Updates the sums for the sample: adds the time that has passed since the last call. Must be
    /// called before the number of operations that run or wait changes.
    fn touch(&mut self, now: f64) {
        let passed = now - self.touched_at;
        self.integral += f64::from(self.in_progress) * passed;
        if self.waiting > 0 {
            self.waiting_us += passed;
        }
        self.touched_at = now;
    }

    pub(crate) fn enqueue(&mut self, operation: u32, user: usize, now: f64) {
        self.touch(now);
        self.queues[user].push_back(operation);
        self.waiting += 1;
    }

    /// The user whose next operation may begin; `None` if no waiting operation may begin. Free
    /// slots go to the users round-robin.
    pub(crate) fn next_user(&self) -> Option<usize> {
        let users = self.queues.len();
        let mut waiting = (0..users)
            .map(|index| (self.next_user + index) % users)
            .filter(|user| !self.queues[*user].is_empty());
        match self.in_progress < self.limit {
            true => waiting.next(),
            false => waiting.find(|user| self.may_exceed(*user)),
        }
    }

    /// True if a user may run an operation although all slots are taken: the user has less than its
    /// share of the slots, and another user has more than this share. If the user has no slot, it
    /// is enough that another user has more than one. False if the operations in progress have
    /// reached twice the limit.
    fn may_exceed(&self, user: usize) -> bool {
        let users = self.held.iter().zip(&self.queues);
        let users = users.filter(|(held, queue)| **held > 0 || !queue.is_empty());
        let share = self.limit.div_ceil(users.count().max(1) as u32);
        let held = self.held[user];
        let fair = if held == 0 { 1 } else { share };
        let most = self.held.iter().copied().max().unwrap_or(0);
        held < share && most > fair && self.in_progress < 2 * self.limit
    }

    /// Takes the next waiting operation of a user.
    pub(crate) fn dequeue(&mut self, user: usize, now: f64) -> Option<u32> {
        self.touch(now);
        self.next_user = (user + 1) % self.queues.len();
        let operation = self.queues[user].pop_front()?;
        self.waiting -= 1;
        Some(operation)
    }

    pub(crate) fn has_connection(&self) -> bool {
        self.in_progress + self.exempt < self.connections
    }

    /// True if another connection may be established now.
    pub(crate) fn may_grow(&self) -> bool {
        !self.is_growing && self.connections < self.max_connections
    }

    /// Forgets the measurements of the server, except what `kept` names. The operations in progress
    /// keep their slots.
    pub(crate) fn reset(&mut self, kept: Kept, now: f64) {
        self.touch(now);
        self.controller.reset(kept);
        self.controller.resume(us(now));
        self.limit = self.fixed.unwrap_or(self.controller.limit());
        self.times = ServerTimes::default();
        if kept == Kept::Nothing {
            self.groups = ShapeGroups::default();
        }
        self.exemption = None;
        self.unchanged_since = now;
        self.sample = Sample::default();
        self.integral = 0.0;
        self.waiting_us = 0.0;
        self.ticked_at = now;
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.controller.epoch()
    }

    /// Begins an operation. Returns true if the operation begins at low load (see
    /// [`Sample::LOW_LOAD`]).
    pub(crate) fn begin(&mut self, running: Running, wait_us: f64) -> bool {
        self.touch(running.started);
        self.in_progress += 1;
        self.held[running.user] += 1;
        self.sample.wait_time += us(wait_us);
        self.running.push_back(running);
        u64::from(self.in_progress + self.exempt) <= Sample::LOW_LOAD
    }

    pub(crate) fn end(&mut self, end: &End, now: f64) {
        self.touch(now);
        match end.is_exempt {
            true => self.exempt -= 1,
            false => {
                self.in_progress -= 1;
                self.held[end.user] -= 1;
                self.unchanged_since = now;
            }
        }
        self.completed += 1;
        let time = us(end.server_us);
        if end.epoch != self.epoch() {
            self.sample.uncompared += 1;
        } else if end.is_late && self.is_slow(end, time) {
            self.sample.late += 1;
        } else if end.is_late {
            self.sample.uncompared += 1;
        } else {
            self.times.record(time);
            let group = self.groups.record(end.shape, time);
            self.sample.record(group, time, end.at_low_load);
        }
    }

    /// True if a late operation took so long that its time says something about the server. If the
    /// client has left, the reason may be an earlier wait. So the operation then counts only if it
    /// took at least [`LATE_FACTOR`] times the median.
    fn is_slow(&self, end: &End, time: Duration) -> bool {
        let factor = if end.has_left { LATE_FACTOR } else { 1 };
        time >= self.times.median().unwrap_or_default() * factor
    }

    /// Returns the long operations that become exempt now: the limit no longer counts them. There
    /// are none while a slot is free or no operation waits. `is_running` returns true if an
    /// operation is still in progress.
    pub(crate) fn exempt_long(
        &mut self,
        now: f64,
        is_running: impl Fn(&Running) -> bool,
    ) -> Vec<u32> {
        let mut leaving = Vec::new();
        let Some(rule) = self.exemption else {
            return leaving;
        };
        self.touch(now);
        let is_full = self.waiting > 0 && self.in_progress >= self.limit;
        let is_long = |running: &Running| us(now - running.started) >= rule.threshold;
        let long = self
            .running
            .iter()
            .take_while(|running| is_long(running))
            .count();
        self.long.extend(self.running.drain(..long));
        let mut exempt = self.exempt;
        let mut unchanged_since = self.unchanged_since;
        let completed = self.completed;
        let held = &mut self.held;
        self.long.retain(|running| {
            let since = completed - running.completed_before;
            let is_running = is_running(running);
            let unchanged_for = us(now - unchanged_since);
            let time = us(now - running.started);
            if is_running && is_full && rule.applies(time, exempt, since, unchanged_for) {
                exempt += 1;
                held[running.user] -= 1;
                unchanged_since = now;
                leaving.push(running.operation);
                return false;
            }
            is_running
        });
        self.unchanged_since = unchanged_since;
        self.in_progress -= exempt - self.exempt;
        self.exempt = exempt;
        leaving
    }

    /// Ends the window: passes the sample to the controller and returns the decision; `None` with a
    /// fixed limit.
    pub(crate) fn tick(&mut self, now: f64) -> Option<Decision> {
        self.touch(now);
        let window = now - self.ticked_at;
        self.ticked_at = now;
        let mut sample = std::mem::take(&mut self.sample);
        sample.window = us(window);
        sample.time_with_waiting = us(std::mem::take(&mut self.waiting_us));
        sample.mean_in_progress = std::mem::take(&mut self.integral) / window.max(1.0);
        sample.waiting = self.waiting;
        sample.in_progress = u64::from(self.in_progress);
        sample.exempt = u64::from(self.exempt);
        sample.epoch = self.epoch();
        let decision = self.controller.update(&sample, us(now));
        self.limit = self.fixed.unwrap_or(decision.limit);
        let exemption = Exemption::new(&self.times, decision.may_exempt, self.limit, self.limit);
        self.exemption = Some(exemption);
        self.fixed.is_none().then_some(decision)
    }
}

/// An operation that ended.
pub(crate) struct End {
    pub(crate) user: usize,
    pub(crate) shape: u64,
    /// The epoch in which the operation began.
    pub(crate) epoch: Epoch,
    pub(crate) server_us: f64,
    pub(crate) at_low_load: bool,
    pub(crate) is_exempt: bool,
    /// True if the operation exceeded its time limit, or its client has left.
    pub(crate) is_late: bool,
    /// True if the client has left.
    pub(crate) has_left: bool,
}

fn us(us: f64) -> Duration {
    Duration::from_secs_f64(us.max(0.0) / 1e6)
}
