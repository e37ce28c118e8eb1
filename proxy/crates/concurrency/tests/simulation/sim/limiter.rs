//! The part of a proxy that keeps the operations of one server within the limit.

use std::{collections::VecDeque, time::Duration};

use seawall_concurrency::{Controller, Decision, Exemption, Sample, ServerTimes};

/// Time to establish one connection, in µs. A limiter establishes one connection at a time.
pub(crate) const GROW_US: f64 = 5_000.0;

/// An operation in progress, with the values that the limiter needs.
pub(crate) struct Running {
    pub(crate) operation: u32,
    pub(crate) number: u64,
    pub(crate) started: f64,
    pub(crate) completed_before: u64,
}

pub(crate) struct Limiter {
    pub(crate) limit: u32,
    controller: Option<Controller>,
    /// Waiting operations by user.
    queues: Vec<VecDeque<u32>>,
    next_user: usize,
    pub(crate) waiting: u64,
    pub(crate) in_progress: u32,
    pub(crate) exempt: u32,
    pub(crate) connections: u32,
    pub(crate) is_growing: bool,
    pub(crate) completed: u64,
    running: VecDeque<Running>,
    long: Vec<Running>,
    times: ServerTimes,
    exemption: Option<Exemption>,
    /// The last time at which an operation completed or became exempt (the limit no longer counts
    /// it).
    unchanged_since: f64,
    sample: Sample,
    integral: f64,
    waiting_us: f64,
    touched_at: f64,
    ticked_at: f64,
}

impl Limiter {
    pub(crate) fn new(limit: u32, controller: Option<Controller>, users: usize, now: f64) -> Self {
        Self {
            limit: controller.as_ref().map_or(limit, Controller::limit),
            controller,
            queues: vec![VecDeque::new(); users],
            next_user: 0,
            waiting: 0,
            in_progress: 0,
            exempt: 0,
            connections: 0,
            is_growing: false,
            completed: 0,
            running: VecDeque::new(),
            long: Vec::new(),
            times: ServerTimes::default(),
            exemption: None,
            unchanged_since: now,
            sample: Sample::default(),
            integral: 0.0,
            waiting_us: 0.0,
            touched_at: now,
            ticked_at: now,
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

    /// Takes the next waiting operation. Users are served in rotation.
    pub(crate) fn dequeue(&mut self, now: f64) -> Option<u32> {
        self.touch(now);
        for _ in 0..self.queues.len() {
            let user = self.next_user;
            self.next_user = (user + 1) % self.queues.len();
            if let Some(operation) = self.queues[user].pop_front() {
                self.waiting -= 1;
                return Some(operation);
            }
        }
        None
    }

    pub(crate) fn has_slot(&self) -> bool {
        self.in_progress < self.limit
    }

    pub(crate) fn has_connection(&self) -> bool {
        self.in_progress + self.exempt < self.connections
    }

    /// Begins an operation. Returns true if the operation begins at low load (see
    /// [`Sample::LOW_LOAD`]).
    pub(crate) fn begin(&mut self, running: Running, wait_us: f64) -> bool {
        self.touch(running.started);
        self.in_progress += 1;
        self.sample.wait_time += us(wait_us);
        self.running.push_back(running);
        u64::from(self.in_progress + self.exempt) <= Sample::LOW_LOAD
    }

    pub(crate) fn end(&mut self, end: &End, now: f64) {
        self.touch(now);
        match end.is_exempt {
            true => self.exempt -= 1,
            false => self.in_progress -= 1,
        }
        self.completed += 1;
        self.unchanged_since = now;
        if end.is_late {
            self.sample.late += 1;
            return;
        }
        let time = us(end.server_us);
        self.times.record(time);
        self.sample.record(end.group, time, end.at_low_load);
    }

    /// Returns the long operations that become exempt now: the limit no longer counts them.
    /// `is_running` returns true if an operation is still in progress.
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
        self.long.retain(|running| {
            let since = completed - running.completed_before;
            let is_running = is_running(running);
            let unchanged_for = us(now - unchanged_since);
            if is_running && rule.applies(us(now - running.started), exempt, since, unchanged_for) {
                exempt += 1;
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
        // With a fixed limit, a new controller decides if long operations may become exempt. So the
        // policies differ only in their limits.
        let controller = match &mut self.controller {
            Some(controller) => controller,
            None => &mut Controller::new(self.limit, 0),
        };
        sample.epoch = controller.epoch();
        let mut decision = controller.update(&sample, us(now));
        if self.controller.is_none() {
            decision.settled = self.limit;
            decision.limit = self.limit;
        }
        self.limit = decision.limit;
        self.exemption = Some(Exemption::new(
            &self.times,
            decision.may_exempt,
            decision.limit,
            decision.limit,
        ));
        self.controller.is_some().then_some(decision)
    }
}

/// An operation that ended.
pub(crate) struct End {
    pub(crate) group: usize,
    pub(crate) server_us: f64,
    pub(crate) at_low_load: bool,
    pub(crate) is_exempt: bool,
    pub(crate) is_late: bool,
}

fn us(us: f64) -> Duration {
    Duration::from_secs_f64(us.max(0.0) / 1e6)
}
