//! Clients, proxies and servers, and the events between them. Times are in µs.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use seawall_concurrency::{Decision, Epoch, Kept};

use super::{
    limiter::{End, GROW_US, Limiter, Running},
    server::{Contention, Ordered, Server},
};

/// A small generator of pseudo-random numbers.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn fraction(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.fraction()).ln()
    }
}

/// A kind of operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationKind {
    /// The share of operations of this kind among all operations of a user.
    pub(crate) share: f64,
    /// Mean CPU time of an operation, in µs, if the number of runnable operations is the best for
    /// the server. With another number, operations need more CPU time. The times are distributed
    /// uniformly from 0.5 to 1.5 times the mean.
    pub(crate) cpu_us: f64,
    /// Mean time, in µs, in which the operation waits on the server without using CPU: for a disk,
    /// a lock or replication.
    pub(crate) delay_us: f64,
    /// True if the operation waits in the queue of a slow shard, which runs `SHARD_SLOTS`
    /// operations at a time.
    pub(crate) is_slow_shard: bool,
    /// The number of the operation's shape. Normally, the operations with one shape have similar
    /// server times.
    pub(crate) shape: u64,
}

/// Number of operations that the slow shard runs at a time.
const SHARD_SLOTS: usize = 8;

/// A change of the conditions during a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Cores(f64),
    Stall(bool),
    /// All proxies reset their limits. After a clear of their pools, they keep nothing. After an
    /// election, they keep the server times without load.
    Reset(Kept),
    Contention(Contention),
    /// Share of operations that read from a disk. Such an operation takes 5 ms more.
    Misses(f64),
    /// Number of logins in progress at a time. Each login needs 5 ms of CPU time.
    Logins(u32),
    /// Open loop: arrivals per second.
    Rate(f64),
    /// Closed loop: number of clients.
    Clients(u32),
    /// Index of the mix of operations that clients send from now on.
    Mix(usize),
}

/// Mean CPU time of a login, and time of a read from the disk.
const LOGIN_US: f64 = 5_000.0;
const MISS_US: f64 = 5_000.0;

const NO_CLIENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Operation {
    number: u64,
    client: u32,
    proxy: u32,
    user: usize,
    server: u32,
    kind: Option<KindIndex>,
    arrived: f64,
    started: f64,
    at_low_load: bool,
    is_exempt: bool,
    is_running: bool,
    /// The epoch of the controller when the operation began.
    epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct KindIndex(usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(u32),
    OpenArrival(u32),
    AtServer(u32),
    DelayOver(u32),
    ShardDone(u32),
    Reply(u32),
    Grow(u32, u32),
    Tick(u32),
    Exempt,
    Changed(u32),
}

/// The load: the mixes of operations, the users, the clients' timeout and the network's delay.
pub(crate) struct Workload {
    pub(crate) mixes: Vec<Vec<OperationKind>>,
    pub(crate) users: usize,
    pub(crate) timeout_us: f64,
    pub(crate) clients_leave: bool,
    pub(crate) network_us: f64,
}

/// The values that the simulation records.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// True to record the latencies, in µs, of the operations that end between `from` and `to`.
    pub(crate) wants_latencies: bool,
    pub(crate) latencies: Vec<f32>,
    /// Operations completed in time, by tenth of a second.
    pub(crate) completed: Vec<u64>,
    /// Operations completed in time, by user, between `from` and `to`.
    pub(crate) by_user: Vec<u64>,
    /// Number of operations that waited longer than the clients' timeout, so their client gave up.
    pub(crate) given_up: u64,
}

pub(crate) struct World {
    pub(crate) now: f64,
    load: Workload,
    mix: usize,
    rate: f64,
    clients: u32,
    /// Closed loop: true for each client that has an operation.
    is_active: Vec<bool>,
    /// Open loop: the number of changes of the rate so far.
    rate_epoch: u32,
    proxies: usize,
    servers: Vec<Server>,
    /// The limiters, ordered by proxy and then by server.
    pub(crate) limiters: Vec<Limiter>,
    operations: Vec<Operation>,
    free: Vec<u32>,
    numbers: u64,
    events: BinaryHeap<Reverse<(Ordered, Event)>>,
    shard_queue: VecDeque<u32>,
    shard_running: usize,
    misses: f64,
    logins: u32,
    running_logins: u32,
    pub(crate) changes: Vec<(f64, Change)>,
    dice: Dice,
    pub(crate) record: Record,
    pub(crate) decisions: Vec<(f64, usize, Decision)>,
}

impl World {
    pub(crate) fn new(
        servers: Vec<Server>,
        limiters: Vec<Limiter>,
        load: Workload,
        changes: Vec<(f64, Change)>,
        seed: u64,
        record: Record,
    ) -> Self {
        let mut world = Self {
            now: 0.0,
            proxies: limiters.len() / servers.len(),
            mix: 0,
            rate: 0.0,
            clients: 0,
            is_active: Vec::new(),
            rate_epoch: 0,
            servers,
            limiters,
            operations: Vec::new(),
            free: Vec::new(),
            numbers: 0,
            events: BinaryHeap::new(),
            shard_queue: VecDeque::new(),
            shard_running: 0,
            misses: 0.0,
            logins: 0,
            running_logins: 0,
            changes,
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            record,
            decisions: Vec::new(),
            load,
        };
        world.record.by_user = vec![0; world.load.users];
        for index in 0..world.limiters.len() {
            // The windows of different proxies end at different moments.
            let offset = world.dice.fraction() * 1e5;
            world.at(1e5 + offset, Event::Tick(index as u32));
        }
        for (index, (time, _)) in world.changes.clone().into_iter().enumerate() {
            world.at(time, Event::Changed(index as u32));
        }
        world.at(1e4, Event::Exempt);
        world
    }

    fn at(&mut self, time: f64, event: Event) {
        self.events.push(Reverse((Ordered(time), event)));
    }

    /// Runs the simulation until the time `end`.
    pub(crate) fn run(&mut self, end: f64) {
        loop {
            let next = self.events.peek().map_or(f64::INFINITY, |e| e.0.0.0);
            let ends = self.servers.iter().map(Server::next_end).enumerate();
            let (server, ending) = ends
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .expect("there is at least one server");
            if next.min(ending) > end {
                self.now = end;
                return;
            }
            if ending <= next {
                self.now = ending;
                let operation = self.servers[server].end(ending);
                self.cpu_done(operation);
            } else if let Some(Reverse((time, event))) = self.events.pop() {
                self.now = time.0;
                self.handle(event);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(client) => self.arrive(client),
            Event::OpenArrival(epoch) => self.open_arrival(epoch),
            Event::AtServer(operation) => self.at_server(operation),
            Event::DelayOver(operation) => self.server_done(operation),
            Event::ShardDone(operation) => self.shard_done(operation),
            Event::Reply(operation) => self.reply(operation),
            Event::Grow(limiter, _) => {
                let limiter = limiter as usize;
                self.limiters[limiter].is_growing = false;
                self.limiters[limiter].connections += 1;
                self.dispatch(limiter);
            }
            Event::Tick(limiter) => {
                let index = limiter as usize;
                if let Some(decision) = self.limiters[index].tick(self.now) {
                    self.decisions.push((self.now, index, decision));
                }
                self.dispatch(index);
                self.at(self.now + 1e5, Event::Tick(limiter));
            }
            Event::Exempt => self.exempt(),
            Event::Changed(index) => self.change(self.changes[index as usize].1),
        }
    }

    fn change(&mut self, change: Change) {
        let now = self.now;
        match change {
            Change::Cores(cores) => self
                .servers
                .iter_mut()
                .for_each(|s| s.set_cores(cores, now)),
            Change::Stall(is) => self.servers.iter_mut().for_each(|s| s.set_stalled(is, now)),
            Change::Reset(kept) => self.limiters.iter_mut().for_each(|l| l.reset(kept, now)),
            Change::Contention(contention) => {
                let servers = self.servers.iter_mut();
                servers.for_each(|server| server.set_contention(contention, now));
            }
            Change::Misses(share) => self.misses = share,
            Change::Mix(mix) => self.mix = mix,
            Change::Logins(logins) => {
                self.logins = logins;
                while self.running_logins < self.logins {
                    self.running_logins += 1;
                    self.login();
                }
            }
            Change::Rate(rate) => {
                self.rate = rate;
                self.rate_epoch += 1;
                let next = self.dice.exponential() * 1e6 / self.rate;
                self.at(now + next, Event::OpenArrival(self.rate_epoch));
            }
            Change::Clients(clients) => {
                self.clients = clients;
                let known = self.is_active.len().max(clients as usize);
                self.is_active.resize(known, false);
                for client in 0..clients {
                    if !std::mem::replace(&mut self.is_active[client as usize], true) {
                        let delay = self.dice.fraction() * 1e4;
                        self.at(now + delay, Event::Arrive(client));
                    }
                }
            }
        }
    }

    fn open_arrival(&mut self, epoch: u32) {
        // An arrival that was scheduled at an earlier rate is ignored.
        if epoch == self.rate_epoch {
            let next = self.dice.exponential() * 1e6 / self.rate;
            self.at(self.now + next, Event::OpenArrival(epoch));
            self.submit(NO_CLIENT);
        }
    }

    fn arrive(&mut self, client: u32) {
        if client < self.clients {
            self.submit(client);
        } else {
            self.is_active[client as usize] = false;
        }
    }

    fn new_operation(&mut self, operation: Operation) -> u32 {
        self.numbers += 1;
        let operation = Operation {
            number: self.numbers,
            ..operation
        };
        match self.free.pop() {
            Some(index) => {
                self.operations[index as usize] = operation;
                index
            }
            None => {
                self.operations.push(operation);
                self.operations.len() as u32 - 1
            }
        }
    }

    fn submit(&mut self, client: u32) {
        let number = match client {
            NO_CLIENT => (self.dice.fraction() * 1e9) as u32,
            client => client,
        };
        let proxy = number as usize % self.proxies;
        let user = number as usize / self.proxies % self.load.users;
        // If the scenario has two users and two mixes, each user has a mix of its own.
        let mix = (self.mix + user) % self.load.mixes.len();
        let mut fraction = self.dice.fraction();
        let kinds = &self.load.mixes[mix];
        let kind = kinds.iter().position(|kind| {
            fraction -= kind.share;
            fraction < 0.0
        });
        let servers = self.servers.len();
        let of_proxy = proxy * servers..(proxy + 1) * servers;
        let limiter = of_proxy
            .min_by_key(|index| self.limiters[*index].load())
            .expect("there is at least one server");
        let operation = self.new_operation(Operation {
            client,
            proxy: proxy as u32,
            user,
            server: (limiter % servers) as u32,
            kind: Some(KindIndex(mix, kind.unwrap_or(kinds.len() - 1))),
            arrived: self.now,
            ..Operation::default()
        });
        self.limiters[limiter].enqueue(operation, user, self.now);
        self.dispatch(limiter);
    }

    /// Begins operations that wait, as far as the limit and the connections allow. An operation
    /// whose client has given up does not begin.
    fn dispatch(&mut self, index: usize) {
        loop {
            let limiter = &mut self.limiters[index];
            let Some(user) = limiter.next_user() else {
                return;
            };
            if !limiter.has_connection() {
                if limiter.may_grow() {
                    limiter.is_growing = true;
                    self.at(self.now + GROW_US, Event::Grow(index as u32, 0));
                }
                return;
            }
            let Some(waiting) = limiter.dequeue(user, self.now) else {
                return;
            };
            let operation = &mut self.operations[waiting as usize];
            let wait = self.now - operation.arrived;
            if wait >= self.load.timeout_us {
                let client = operation.client;
                self.record.given_up += 1;
                self.free.push(waiting);
                if client != NO_CLIENT {
                    self.at(self.now, Event::Arrive(client));
                }
                continue;
            }
            operation.started = self.now;
            operation.is_running = true;
            operation.epoch = limiter.epoch();
            let running = Running {
                operation: waiting,
                number: operation.number,
                user,
                started: self.now,
                completed_before: limiter.completed,
            };
            operation.at_low_load = limiter.begin(running, wait);
            self.at(
                self.now + self.load.network_us / 2.0,
                Event::AtServer(waiting),
            );
        }
    }

    fn kind(&self, operation: &Operation) -> OperationKind {
        let KindIndex(mix, kind) = operation.kind.expect("`kind` is not called for a login");
        self.load.mixes[mix][kind]
    }

    fn at_server(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        let cpu = self.kind(&operation).cpu_us * (0.5 + self.dice.fraction());
        self.servers[operation.server as usize].begin(index, cpu, self.now);
    }

    fn cpu_done(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        if operation.kind.is_none() {
            self.free.push(index);
            if self.running_logins > self.logins {
                self.running_logins -= 1;
            } else {
                self.login();
            }
            return;
        }
        let kind = self.kind(&operation);
        if kind.is_slow_shard {
            self.shard_queue.push_back(index);
            self.run_shard();
            return;
        }
        let is_miss = self.misses > 0.0 && self.dice.fraction() < self.misses;
        let delay = kind.delay_us * (0.9 + 0.2 * self.dice.fraction())
            + if is_miss { MISS_US } else { 0.0 };
        if delay > 0.0 {
            self.at(self.now + delay, Event::DelayOver(index));
        } else {
            self.server_done(index);
        }
    }

    fn login(&mut self) {
        let index = self.new_operation(Operation {
            client: NO_CLIENT,
            ..Operation::default()
        });
        let cpu = LOGIN_US * (0.5 + self.dice.fraction());
        self.servers[0].begin(index, cpu, self.now);
    }

    fn run_shard(&mut self) {
        while self.shard_running < SHARD_SLOTS
            && let Some(index) = self.shard_queue.pop_front()
        {
            self.shard_running += 1;
            let delay = self.kind(&self.operations[index as usize]).delay_us;
            let delay = delay * (0.5 + self.dice.fraction());
            self.at(self.now + delay, Event::ShardDone(index));
        }
    }

    fn shard_done(&mut self, index: u32) {
        self.shard_running -= 1;
        self.run_shard();
        self.server_done(index);
    }

    fn server_done(&mut self, index: u32) {
        self.at(self.now + self.load.network_us / 2.0, Event::Reply(index));
    }

    fn reply(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        self.operations[index as usize].is_running = false;
        self.free.push(index);
        let latency = self.now - operation.arrived;
        let is_late = self.now - operation.started >= self.load.timeout_us;
        let limiter = operation.proxy as usize * self.servers.len() + operation.server as usize;
        let end = End {
            user: operation.user,
            epoch: operation.epoch,
            shape: self.kind(&operation).shape,
            server_us: self.now - operation.started,
            at_low_load: operation.at_low_load,
            is_exempt: operation.is_exempt,
            is_late,
            has_left: is_late && self.load.clients_leave,
        };
        self.limiters[limiter].end(&end, self.now);
        if !is_late {
            self.count(&operation, latency);
        }
        if operation.client != NO_CLIENT {
            self.arrive(operation.client);
        }
        self.dispatch(limiter);
    }

    fn count(&mut self, operation: &Operation, latency: f64) {
        let record = &mut self.record;
        let tenth = (self.now / 1e5) as usize;
        if record.completed.len() <= tenth {
            record.completed.resize(tenth + 1, 0);
        }
        record.completed[tenth] += 1;
        if self.now >= record.from && self.now < record.to {
            record.by_user[operation.user] += 1;
            if record.wants_latencies {
                record.latencies.push(latency as f32);
            }
        }
    }

    /// Exempts long operations from the limit. The simulation calls this function every 10 ms.
    fn exempt(&mut self) {
        for index in 0..self.limiters.len() {
            let operations = &self.operations;
            let leaving = self.limiters[index].exempt_long(self.now, |running| {
                let operation = &operations[running.operation as usize];
                operation.number == running.number && operation.is_running
            });
            for operation in leaving {
                self.operations[operation as usize].is_exempt = true;
            }
            self.dispatch(index);
        }
        self.at(self.now + 1e4, Event::Exempt);
    }
}
