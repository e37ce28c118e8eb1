//! Logins at a pace that operations can bear, and new clients at one that the machine can.
//!
//! A storm's clients log in to ask for something, and their operations wait in the same queues as all others. So while
//! operations wait for connections longer than a target, logins are let through at a rate that is lowered until they do
//! not, and raised again as soon as they do not (multiplicatively, both ways). No login is refused: it waits for its turn,
//! by address and user ([`super::fair`]).
//!
//! Operations that wait because their own user has as many connections as one may have hold up the logins of that user
//! only; others have a gate in common ([`LoginGates`]).
//!
//! New clients wait likewise, before their first byte is read, while the data plane is late: then a machine has no time for
//! all of them, and what it has belongs to those that are being served. Clients that have left by their turn cost next to
//! nothing.
//!
//! The target and the interval for which it has to be missed follow CoDel: K. Nichols and V. Jacobson, "Controlling Queue
//! Delay", ACM Queue 10(5), 2012; newest first under overload is adaptive LIFO.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    fair::{Origin, Waiters},
    recent::{NameHash, NameHasher},
};
use crate::wire::Sharer;

/// How long operations may wait for a connection before logins are held back.
const OPERATIONS_TARGET: Duration = Duration::from_millis(20);

/// How late the data plane may be before new clients are.
const LATENESS_TARGET: Duration = Duration::from_millis(50);

/// How long they have to wait longer before they are.
const INTERVAL: Duration = Duration::from_millis(100);

/// Logins a second that are let through whatever happens: a deployment that is always busy must not lock anybody out.
const LEAST_LOGINS: f64 = 50.0;

/// The same of new clients, of which each costs far less than a login and what it asks then.
const LEAST_ARRIVALS: f64 = 500.0;

/// Beyond it there is nothing left to hold back.
const OPEN_RATE: f64 = 20_000.0;

/// What the rate is multiplied by at each look.
const SLOWER: f64 = 0.9;
const FASTER: f64 = 1.15;

/// Waiters beyond which those that have left are removed at each look.
const PURGE_BEYOND: usize = 8_192;

/// Between two looks at how long operations wait.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where logins, or new clients, wait.
#[derive(Debug)]
pub struct Gate {
    target: Duration,
    least_rate: f64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Logins a second, while operations wait too long; else there is no limit.
    rate: Option<f64>,
    /// Logins that may pass at once.
    tokens: f64,
    /// Those that have left among them.
    waiting: Waiters<oneshot::Sender<()>>,
    /// Let through since the last look, and lately in a second.
    passed: u32,
    lately: f64,
    /// How long operations have been waiting for longer than the target.
    missed_for: Duration,
}

impl Gate {
    /// For logins, open until operations wait for connections.
    pub fn of_logins() -> Self {
        Self {
            target: OPERATIONS_TARGET,
            least_rate: LEAST_LOGINS,
            state: Mutex::default(),
        }
    }

    /// For new clients, open until the data plane is late.
    pub fn of_arrivals() -> Self {
        Self {
            target: LATENESS_TARGET,
            least_rate: LEAST_ARRIVALS,
            state: Mutex::default(),
        }
    }

    /// Whether one may pass without waiting; it has then.
    pub fn try_pass(&self) -> bool {
        let mut state = self.state.lock();
        let may_pass = state.rate.is_none() || (state.waiting.is_empty() && state.tokens >= 1.0);
        if may_pass {
            state.pass();
        }
        may_pass
    }

    /// Waits for a turn. Cancel safe: who leaves has no turn.
    pub async fn pass(&self, from: Origin) {
        if self.try_pass() {
            return;
        }
        let (turn, waiting) = oneshot::channel();
        self.state.lock().waiting.push(from, turn);
        // The gate lives as long as whoever waits at it.
        drop(waiting.await);
    }

    /// Whether it is open and no one waits at it.
    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.rate.is_none() && state.waiting.is_empty()
    }

    /// Takes in what the target is for, and lets through whose turn it is. To be called each [`LOOK_EVERY`], `elapsed`
    /// after the last time.
    pub fn look(&self, wait: Duration, elapsed: Duration) {
        let mut state = self.state.lock();
        state.adjust(wait > self.target, elapsed, self.least_rate);
        let Some(rate) = state.rate else {
            while state.release() {}
            return;
        };
        // A look that was late lets nobody through in bulk.
        let seconds = elapsed.min(LOOK_EVERY * 2).as_secs_f64();
        state.tokens = (state.tokens + rate * seconds).min(rate.mul_add(0.1, 1.0));
        while state.tokens >= 1.0 && state.release() {}
        state.purge();
    }
}

impl State {
    fn pass(&mut self) {
        self.passed += 1;
        self.tokens = (self.tokens - 1.0).max(0.0);
    }

    fn adjust(&mut self, is_missed: bool, elapsed: Duration, least_rate: f64) {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let rate = f64::from(std::mem::take(&mut self.passed)) / seconds;
        self.lately += (rate - self.lately) * 0.1;
        self.missed_for = match is_missed {
            true => self.missed_for + elapsed,
            false => Duration::ZERO,
        };
        self.rate = match (self.rate, is_missed) {
            (None, true) if self.missed_for >= INTERVAL => Some(self.lately.max(least_rate)),
            (None, _) => None,
            (Some(rate), true) => Some((rate * SLOWER).max(least_rate)),
            (Some(rate), false) => Some(rate * FASTER).filter(|rate| *rate < OPEN_RATE),
        };
    }

    /// Lets one through that is still there, if there is one.
    fn release(&mut self) -> bool {
        while let Some(turn) = self.waiting.pop() {
            if turn.send(()).is_ok() {
                self.pass();
                return true;
            }
        }
        false
    }

    fn purge(&mut self) {
        if self.waiting.len() > PURGE_BEYOND {
            self.waiting.retain(|turn| !turn.is_closed());
        }
    }
}

/// Where logins wait: at a gate for all, and at one of their own where their user's operations wait for its own connections.
#[derive(Debug)]
pub struct LoginGates {
    all: Gate,
    /// Those of users whose operations wait, or did until lately.
    users: Mutex<HashMap<NameHash, Arc<Gate>>>,
    names: NameHasher,
}

impl Default for LoginGates {
    fn default() -> Self {
        Self {
            all: Gate::of_logins(),
            users: Mutex::default(),
            names: NameHasher::default(),
        }
    }
}

impl LoginGates {
    /// Whether a login of a user (name and source) may pass all gates without waiting; it has then.
    pub fn try_pass(&self, user: Option<(&str, &str)>) -> bool {
        let own = user.and_then(|user| self.gate_of(user).1);
        own.is_none_or(|own| own.try_pass()) && self.all.try_pass()
    }

    /// Waits for a turn at each gate. Cancel safe: a login that is given up has no turn.
    pub async fn pass(&self, user: Option<(&str, &str)>, sharer: Sharer) {
        let (user, own) = match user.map(|user| self.gate_of(user)) {
            Some((user, own)) => (Some(user), own),
            None => (None, None),
        };
        let from = Origin { sharer, user };
        if let Some(own) = own {
            own.pass(from).await;
        }
        self.all.pass(from).await;
    }

    /// Takes in how long operations wait for connections: the longest wait of all but those for their own user's
    /// connections, and those by user. To be called each [`LOOK_EVERY`], `elapsed` after the last time.
    pub fn look<'u>(
        &self,
        wait: Duration,
        by_user: impl Iterator<Item = ((&'u str, &'u str), Duration)>,
        elapsed: Duration,
    ) {
        self.all.look(wait, elapsed);
        let mut users = self.users.lock();
        let mut waits: HashMap<NameHash, Duration> = HashMap::new();
        for (user, wait) in by_user {
            let longest = waits.entry(self.names.hash(user)).or_default();
            *longest = wait.max(*longest);
        }
        for user in waits.keys() {
            users
                .entry(*user)
                .or_insert_with(|| Arc::new(Gate::of_logins()));
        }
        users.retain(|user, gate| {
            let wait = waits.get(user).copied();
            gate.look(wait.unwrap_or_default(), elapsed);
            wait.is_some() || !gate.is_idle()
        });
    }

    fn gate_of(&self, user: (&str, &str)) -> (NameHash, Option<Arc<Gate>>) {
        let user = self.names.hash(user);
        (user, self.users.lock().get(&user).cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    const BUSY: Duration = Duration::from_millis(50);

    fn look(gate: &Gate, wait: Duration, times: u32) {
        for _ in 0..times {
            gate.look(wait, LOOK_EVERY);
        }
    }

    /// Whether more pass at once than a gate with any rate lets through.
    fn is_open(gate: &Gate) -> bool {
        (0..10_000).all(|_| gate.try_pass())
    }

    /// `count` callers come, wait and leave.
    fn come_and_leave(gate: &Gate, count: usize) {
        for _ in 0..count {
            assert!(gate.pass(Origin::default()).now_or_never().is_none());
        }
    }

    /// `count` callers that wait, and the order in which they are let through.
    async fn waiters(gate: &Arc<Gate>, count: usize) -> Arc<Mutex<Vec<usize>>> {
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..count {
            let (gate, order) = (Arc::clone(gate), Arc::clone(&order));
            tokio::spawn(async move {
                gate.pass(Origin::default()).await;
                order.lock().push(number);
            });
            tokio::task::yield_now().await;
        }
        order
    }

    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_while_operations_do_not() {
        let gate = Gate::of_logins();
        for _ in 0..10_000 {
            assert!(gate.try_pass());
        }
        // A moment's wait is none.
        look(&gate, BUSY, 4);
        assert!(gate.try_pass());
    }

    #[test]
    fn a_gate_closes_once_waits_have_been_too_long_for_a_tenth_of_a_second() {
        let gate = Gate::of_logins();
        look(&gate, BUSY, 4);
        assert!(is_open(&gate));
        // A look without a wait restarts the time.
        look(&gate, Duration::ZERO, 1);
        look(&gate, BUSY, 4);
        assert!(is_open(&gate));
        look(&gate, BUSY, 1);
        assert!(!is_open(&gate));
    }

    #[test]
    fn a_wait_as_long_as_the_target_is_not_too_long() {
        let gate = Gate::of_logins();
        look(&gate, OPERATIONS_TARGET, 50);
        assert!(is_open(&gate));
        look(&gate, OPERATIONS_TARGET + Duration::from_millis(1), 50);
        assert!(!is_open(&gate));
    }

    #[test]
    fn a_gate_closes_at_the_average_rate_of_the_last_looks() {
        let gate = Gate::of_logins();
        for wait in [Duration::ZERO, BUSY] {
            for _ in 0..5 {
                assert!((0..20).all(|_| gate.try_pass()));
                gate.look(wait, LOOK_EVERY);
            }
        }
        // Each look moves the average by a tenth towards 1,000 a second: to 651 after ten, which is 13 for each look.
        assert_eq!((0..100).take_while(|_| gate.try_pass()).count(), 13);
    }

    #[test]
    fn a_gate_opens_step_by_step() {
        let gate = Gate::of_logins();
        look(&gate, BUSY, 5);
        look(&gate, Duration::ZERO, 1);
        assert!(!is_open(&gate));
        // By 15 % at each look, from 50 a second: 42 looks make 17,700, and one more is beyond 20,000.
        look(&gate, Duration::ZERO, 41);
        assert!(!is_open(&gate));
        look(&gate, Duration::ZERO, 1);
        assert!(is_open(&gate));
    }

    #[test]
    fn beyond_a_bound_who_has_left_is_removed_and_who_stays_is_not() {
        let gate = Gate::of_logins();
        look(&gate, BUSY, 5);
        while gate.try_pass() {}
        let mut stays = [(); 2].map(|()| Box::pin(gate.pass(Origin::default())));
        for stay in &mut stays {
            assert!(stay.as_mut().now_or_never().is_none());
        }
        // No time has passed, so that the look lets none through.
        let waiting_after_a_look = || {
            gate.look(BUSY, Duration::ZERO);
            gate.state.lock().waiting.len()
        };
        come_and_leave(&gate, PURGE_BEYOND - 2);
        assert_eq!(waiting_after_a_look(), PURGE_BEYOND);
        come_and_leave(&gate, 1);
        assert_eq!(waiting_after_a_look(), 2);
        for stay in &mut stays {
            assert!(stay.as_mut().now_or_never().is_none());
        }
        look(&gate, Duration::ZERO, 60);
        for stay in stays {
            assert!(stay.now_or_never().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_goes_first_and_now_and_then_the_oldest() {
        let gate = Arc::new(Gate::of_logins());
        look(&gate, BUSY, 6);
        while gate.try_pass() {}
        let order = waiters(&gate, 10).await;
        look(&gate, BUSY, 50);
        settle().await;
        assert_eq!(*order.lock(), [0, 9, 8, 7, 1, 6, 5, 4, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_left_takes_no_turn() {
        let gate = Arc::new(Gate::of_logins());
        look(&gate, BUSY, 6);
        while gate.try_pass() {}
        let mut gone = Vec::new();
        for _ in 0..1000 {
            let waiting = Box::pin(gate.pass(Origin::default()));
            gone.push(tokio::time::timeout(Duration::ZERO, waiting).await.is_err());
        }
        assert!(gone.iter().all(|gone| *gone));
        let order = waiters(&gate, 1).await;
        look(&gate, BUSY, 3);
        settle().await;
        assert_eq!(order.lock().len(), 1);
        assert_eq!(gate.state.lock().waiting.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_rate_holds_however_long_it_lasts_and_ends_with_it() {
        let gate = Gate::of_logins();
        look(&gate, BUSY, 500);
        let mut passed = 0;
        for _ in 0..50 {
            gate.look(BUSY, LOOK_EVERY);
            while gate.try_pass() {
                passed += 1;
            }
        }
        // 50 a second, for one second, and what had been saved up.
        assert!((48..=60).contains(&passed), "{passed}");
        // From there to no limit at all in under a second.
        look(&gate, Duration::ZERO, 45);
        assert!((0..10_000).all(|_| gate.try_pass()));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_a_users_own_connections_hold_up_its_own_logins_only() {
        let gates = LoginGates::default();
        let (busy, other) = (("busy", "admin"), ("other", "admin"));
        for _ in 0..10 {
            gates.look(Duration::ZERO, [(busy, BUSY)].into_iter(), LOOK_EVERY);
        }
        while gates.try_pass(Some(busy)) {}
        assert!((0..1_000).all(|_| gates.try_pass(Some(other)) && gates.try_pass(None)));
        // Once they do not wait any more, the gate opens step by step, and goes.
        gates.look(Duration::ZERO, std::iter::empty(), LOOK_EVERY);
        assert!(!(0..1_000).all(|_| gates.try_pass(Some(busy))));
        for _ in 0..60 {
            gates.look(Duration::ZERO, std::iter::empty(), LOOK_EVERY);
        }
        assert!((0..1_000).all(|_| gates.try_pass(Some(busy))));
        assert!(gates.users.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_of_one_address_does_not_keep_another_from_its_turn() {
        let gates = Arc::new(LoginGates::default());
        let look = |times| {
            for _ in 0..times {
                gates.look(BUSY, std::iter::empty(), LOOK_EVERY);
            }
        };
        look(20);
        while gates.try_pass(None) {}
        let passed = Arc::new(Mutex::new(Vec::new()));
        for (address, count) in [(1, 200), (2, 1), (1, 200)] {
            for _ in 0..count {
                let (gates, passed) = (Arc::clone(&gates), Arc::clone(&passed));
                tokio::spawn(async move {
                    let sharer = Sharer::at(Some([192, 0, 2, address].into()));
                    gates.pass(Some(("app", "admin")), sharer).await;
                    passed.lock().push(address);
                });
                tokio::task::yield_now().await;
            }
        }
        settle().await;
        assert!(passed.lock().is_empty(), "all wait");
        // At the least rate, one at each look.
        look(3);
        settle().await;
        assert!(passed.lock().contains(&2), "{:?}", passed.lock());
    }

    /// What may happen at a gate.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Arrives,
        /// One of those that wait gives up, by its place among them.
        Leaves(usize),
        /// A look: the target is missed, or met.
        Missed,
        Met,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => Just(Event::Arrives),
            1 => (0_usize..50).prop_map(Event::Leaves),
            3 => Just(Event::Missed),
            1 => Just(Event::Met),
        ];
        prop::collection::vec(event, 1..400)
    }

    proptest! {
        /// Nobody is let through twice, or in spite of having left; who stays is let through once the target is met for
        /// a second, and until then no more than the rates allow.
        #[test]
        fn everybody_who_stays_has_one_turn_and_nobody_else_has(events in events()) {
            let gate = Gate::of_logins();
            let mut waiting: Vec<_> = Vec::new();
            let (mut passed, mut arrived, mut left, mut looks) = (0, 0, 0, 0);
            let turns = |waiting: &mut Vec<oneshot::Receiver<()>>| {
                let before = waiting.len();
                waiting.retain_mut(|turn| turn.try_recv().is_err());
                before - waiting.len()
            };
            for event in events {
                match event {
                    Event::Arrives if gate.try_pass() => (arrived, passed) = (arrived + 1, passed + 1),
                    Event::Arrives => {
                        let (turn, receiver) = oneshot::channel();
                        gate.state.lock().waiting.push(Origin::default(), turn);
                        waiting.push(receiver);
                        arrived += 1;
                    }
                    Event::Leaves(place) if !waiting.is_empty() => {
                        drop(waiting.remove(place % waiting.len()));
                        left += 1;
                    }
                    Event::Leaves(_) => {}
                    Event::Missed | Event::Met => {
                        let is_missed = matches!(event, Event::Missed);
                        gate.look(if is_missed { BUSY } else { Duration::ZERO }, LOOK_EVERY);
                        looks += 1;
                        let released = turns(&mut waiting);
                        passed += released;
                        let limit = gate.state.lock().rate;
                        if let Some(rate) = limit {
                            // What had been saved up, and what a look adds.
                            let most = rate.mul_add(0.1, 1.0) + rate * 0.04;
                            let released = u32::try_from(released).unwrap();
                            prop_assert!(f64::from(released) <= most + 1.0, "{released} at {rate}");
                        }
                    }
                }
            }
            look(&gate, Duration::ZERO, 60);
            passed += turns(&mut waiting);
            prop_assert_eq!(waiting.len(), 0, "after {} looks", looks);
            prop_assert_eq!(passed + left, arrived);
            prop_assert!(gate.try_pass());
        }
    }
}
