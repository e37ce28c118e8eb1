//! Gates limit the rate of logins while operations wait for connections, and the rate of new
//! clients while the machine is overloaded.
//!
//! If many clients log in at the same time, their operations wait in the same queues as the
//! operations of all other clients. At each tick (every 20 ms), a gate compares the longest wait of
//! operations for connections with a *target* (20 ms). A longer wait *misses* the target. After an
//! interval (100 ms) of misses, the gate limits the rate of logins. Each further miss reduces the
//! rate by a factor. A tick without a miss raises the rate by a factor, until the gate is open.
//! No login is refused: each login waits for its turn. Addresses are served round-robin, and so are
//! the users of each address ([`super::fair`]).
//!
//! If operations wait because their user already has `max_pool_size` connections, or its full share
//! of the slots (a slot lets one operation run on the server), only the logins of that user are
//! slowed down. All other waits slow down the logins of all users, through a common gate
//! ([`LoginGates`]).
//!
//! While the data plane (the threads that serve clients) runs its tasks late, the machine lacks CPU
//! time. New clients then wait in the same way, before Seawall reads their first byte. So Seawall
//! has more CPU time for the clients that it already serves. A client that disconnects during the
//! wait has caused almost no work.
//!
//! The target, and the rule that it must be missed for a whole interval, follow CoDel: K. Nichols
//! and V. Jacobson, "Controlling Queue Delay", ACM Queue 10(5), 2012. Serving the newest waiter
//! first under overload is known as adaptive LIFO.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    fair::{Origin, Waiters},
    recent::{NameHash, NameHasher},
};
use crate::runtime::TICK;
use seawall_locks::Mutex;
use seawall_transport::Sharer;

/// The target of gates for logins: if operations wait longer than this for a connection, logins are
/// slowed down.
const OPERATIONS_TARGET: Duration = Duration::from_millis(20);

/// The target of the gate for new clients: if the tasks of the data plane run later than this, new
/// clients are slowed down.
const LATENESS_TARGET: Duration = Duration::from_millis(50);

/// A gate begins to limit the rate when waits have exceeded its target for this time without
/// interruption.
const INTERVAL: Duration = Duration::from_millis(100);

/// The limit on logins per second never falls below this value, so clients can log in even if a
/// deployment is always busy.
const MIN_LOGINS_PER_SECOND: f64 = 50.0;

/// The limit on new clients per second never falls below this value. The value is higher than
/// [`MIN_LOGINS_PER_SECOND`]: Seawall has far less work with a new client than with a login and the
/// operations that follow the login.
const MIN_ARRIVALS_PER_SECOND: f64 = 500.0;

/// A gate opens fully when its rate per second reaches this value.
const OPEN_RATE: f64 = 20_000.0;

/// At each tick, the rate is multiplied by `SLOWER` if the wait exceeds the target, else by
/// `FASTER`.
const SLOWER: f64 = 0.9;
const FASTER: f64 = 1.15;

/// If a gate has more waiters than this, each tick removes the waiters whose client has
/// disconnected. Otherwise they would use memory until their turn.
const PURGE_BEYOND: usize = 8_192;

/// A gate at which logins or new clients wait.
#[derive(Debug)]
pub struct Gate {
    target: Duration,
    min_rate: f64,
    state: Mutex<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    /// Limit on logins or clients per second; `None` while the gate is open.
    rate: Option<f64>,
    /// Number of logins or clients that may pass now without waiting.
    tokens: f64,
    /// All waiters, including waiters whose client has disconnected.
    waiting: Waiters<oneshot::Sender<()>>,
    /// Number of logins or clients that have passed since the last tick.
    passed: u32,
    /// Moving average of the number of logins or clients that pass per second.
    average_rate: f64,
    /// How long the waits have exceeded the target without interruption, as reported by the ticks.
    missed_for: Duration,
}

impl Gate {
    /// Creates a gate for logins. It is open until operations wait too long for connections.
    pub(crate) fn of_logins() -> Self {
        Self {
            target: OPERATIONS_TARGET,
            min_rate: MIN_LOGINS_PER_SECOND,
            state: Mutex::default(),
        }
    }

    /// Creates a gate for new clients. It is open until the threads that serve clients are
    /// overloaded. These threads then run their tasks too late.
    pub(crate) fn of_arrivals() -> Self {
        Self {
            target: LATENESS_TARGET,
            min_rate: MIN_ARRIVALS_PER_SECOND,
            state: Mutex::default(),
        }
    }

    /// Passes the gate if no wait is needed. Returns true if the caller has passed.
    pub(crate) fn try_pass(&self) -> bool {
        self.try_pass_with(|| true)
    }

    /// Passes this gate if no wait is needed and `next` returns true. If `next` returns false, the
    /// caller uses no token of this gate.
    fn try_pass_with(&self, next: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        let has_passed = state.may_pass() && next();
        if has_passed {
            state.pass();
        }
        has_passed
    }

    /// Waits until the caller may pass, then passes the gate. Cancel safe: a dropped waiter uses no
    /// token.
    pub async fn pass(&self, from: Origin) {
        let waiting = {
            // The check and the entry into the queue share one lock. Otherwise a tick between them
            // could open and remove the gate of a user, and no later tick would admit the waiter.
            let mut state = self.state.lock();
            if state.may_pass() {
                state.pass();
                return;
            }
            let (sender, turn) = oneshot::channel();
            state.waiting.push(from, sender);
            GateWaiter { gate: self, turn }
        };
        waiting.until_admitted().await;
    }

    /// Gives back a token that a caller used to pass this gate.
    fn give_back(&self) {
        let mut state = self.state.lock();
        if let Some(rate) = state.rate {
            state.tokens = (state.tokens + 1.0).min(most_tokens(rate));
        }
    }

    /// True if the gate is open and has no waiters.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.rate.is_none() && state.waiting.is_empty()
    }

    /// Compares `wait` with the target, adjusts the rate, and admits waiters at this rate. At a
    /// gate for logins, `wait` is how long operations wait. At a gate for new clients, it is how
    /// late the tasks of the data plane run. Called every 20 ms while operations run or clients
    /// arrive; `elapsed` is the time since the last call.
    pub fn tick(&self, wait: Duration, elapsed: Duration) {
        let mut state = self.state.lock();
        state.adjust(wait > self.target, elapsed, self.min_rate);
        let Some(rate) = state.rate else {
            while state.release() {}
            return;
        };
        // The elapsed time is limited, so that a late tick does not admit a burst.
        let seconds = elapsed.min(TICK * 2).as_secs_f64();
        state.tokens = (state.tokens + rate * seconds).min(most_tokens(rate));
        while state.tokens >= 1.0 && state.release() {}
        state.purge();
    }
}

/// A waiter at a gate. A tick admits the waiter and uses a token for it. If the waiter is dropped
/// before its future has noticed the admission, this token is given back.
struct GateWaiter<'a> {
    gate: &'a Gate,
    turn: oneshot::Receiver<()>,
}

impl GateWaiter<'_> {
    /// Waits until a tick admits the waiter.
    async fn until_admitted(mut self) {
        // The wait cannot fail, because the gate keeps the sender and lives longer than its
        // waiters.
        drop((&mut self.turn).await);
    }
}

impl Drop for GateWaiter<'_> {
    fn drop(&mut self) {
        // After the close, no tick can admit the waiter.
        self.turn.close();
        if self.turn.try_recv().is_ok() {
            self.gate.give_back();
        }
    }
}

/// Maximum number of unused tokens of a gate with this rate: the number of tokens that the gate
/// issues in 100 ms, plus one.
fn most_tokens(rate: f64) -> f64 {
    rate.mul_add(0.1, 1.0)
}

/// A used token of a user's gate, or `None` if there is no token to give back. Dropping this value
/// gives the token back.
struct UsedToken(Option<Arc<Gate>>);

impl UsedToken {
    /// Ends this value without giving the token back. Called when the login has passed all gates.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for UsedToken {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.give_back();
        }
    }
}

impl GateState {
    fn may_pass(&self) -> bool {
        self.rate.is_none() || (self.waiting.is_empty() && self.tokens >= 1.0)
    }

    fn pass(&mut self) {
        self.passed += 1;
        self.tokens = (self.tokens - 1.0).max(0.0);
    }

    fn adjust(&mut self, is_missed: bool, elapsed: Duration, min_rate: f64) {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let rate = f64::from(std::mem::take(&mut self.passed)) / seconds;
        self.average_rate += (rate - self.average_rate) * 0.1;
        self.missed_for = match is_missed {
            // A very late tick does not prove that waits exceeded the target all the time since the
            // last tick.
            true => self.missed_for + elapsed.min(TICK * 2),
            false => Duration::ZERO,
        };
        self.rate = match (self.rate, is_missed) {
            (None, true) if self.missed_for >= INTERVAL => Some(self.average_rate.max(min_rate)),
            (None, _) => None,
            (Some(rate), true) => Some((rate * SLOWER).max(min_rate)),
            (Some(rate), false) => Some(rate * FASTER).filter(|rate| *rate < OPEN_RATE),
        };
    }

    /// Admits the next waiter whose client is still connected. Returns false if there is no such
    /// waiter.
    fn release(&mut self) -> bool {
        while let Some(turn) = self.waiting.pop_present(|turn| !turn.is_closed()) {
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

/// The gates for logins. One gate is for all users. A user whose operations wait for other
/// operations of the same user also has a gate of its own.
#[derive(Debug)]
pub struct LoginGates {
    all: Gate,
    /// The gates of single users. A gate is removed when it is open and has no waiters.
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
    /// Passes the gate for all users if no wait is needed there and no single user has a gate of
    /// its own. Returns true if the login has passed. In this case, the caller does not need to
    /// find the user's name.
    pub(crate) fn try_pass_as_anyone(&self) -> bool {
        self.users.lock().is_empty() && self.all.try_pass()
    }

    /// Passes all gates if no wait is needed. Returns true if the login has passed. `user` is the
    /// name of the login's user, and the authentication database of this user; `None` if Seawall
    /// cannot find the user in the command.
    pub(crate) fn try_pass(&self, user: Option<(&str, &str)>) -> bool {
        match user.and_then(|user| self.gate_of(user).1) {
            Some(own) => own.try_pass_with(|| self.all.try_pass()),
            None => self.all.try_pass(),
        }
    }

    /// Waits until the login may pass each gate: first the gate of its user, then the common gate.
    /// Cancel safe: a login that is dropped at the common gate gives the token of its user's gate
    /// back.
    pub async fn pass(&self, user: Option<(&str, &str)>, sharer: Sharer) {
        let (user, own) = match user.map(|user| self.gate_of(user)) {
            Some((user, own)) => (Some(user), own),
            None => (None, None),
        };
        let from = Origin { sharer, user };
        if let Some(own) = &own {
            own.pass(from).await;
        }
        let token = UsedToken(own);
        self.all.pass(from).await;
        token.keep();
    }

    /// Adjusts all gates to how long operations wait for connections. `by_user` has the waits of
    /// operations that wait for other operations of the same user. The longest wait of a user
    /// adjusts the user's gate. `wait` is the longest of all other waits, and adjusts the common
    /// gate. Called every 20 ms while operations run or clients arrive; `elapsed` is the time since
    /// the last call.
    pub fn tick<'u>(
        &self,
        wait: Duration,
        by_user: impl Iterator<Item = ((&'u str, &'u str), Duration)>,
        elapsed: Duration,
    ) {
        self.all.tick(wait, elapsed);
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
            gate.tick(wait.unwrap_or_default(), elapsed);
            wait.is_some() || !gate.is_idle()
        });
    }

    /// True if all gates are open and have no waiters.
    pub(crate) fn are_idle(&self) -> bool {
        self.all.is_idle() && self.users.lock().is_empty()
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

    fn tick(gate: &Gate, wait: Duration, times: u32) {
        for _ in 0..times {
            gate.tick(wait, TICK);
        }
    }

    /// True if the gate is open: 10,000 callers in a row pass without a wait. With any limited
    /// rate, fewer callers would pass.
    fn is_open(gate: &Gate) -> bool {
        (0..10_000).all(|_| gate.try_pass())
    }

    /// Lets `count` callers arrive, wait and leave.
    fn arrive_and_leave(gate: &Gate, count: usize) {
        for _ in 0..count {
            assert!(gate.pass(Origin::default()).now_or_never().is_none());
        }
    }

    /// Starts `count` waiters. Returns the list in which they record the order of passing.
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

    /// A gate is closed while operations wait too long for connections: it then limits the rate of
    /// logins.
    #[tokio::test(start_paused = true)]
    async fn a_login_gate_stays_open_while_operations_get_their_connections_fast() {
        let gate = Gate::of_logins();
        for _ in 0..10_000 {
            assert!(gate.try_pass());
        }
        // Ticks that report long waits for less than 100 ms have no effect.
        tick(&gate, BUSY, 4);
        assert!(gate.try_pass());
    }

    /// A gate is closed while operations wait too long for connections: it then limits the rate of
    /// logins.
    #[test]
    fn a_login_gate_closes_after_100_ms_in_which_operations_always_waited_too_long() {
        let gate = Gate::of_logins();
        tick(&gate, BUSY, 4);
        assert!(is_open(&gate));
        // After a tick without a wait, the 100 ms start again.
        tick(&gate, Duration::ZERO, 1);
        tick(&gate, BUSY, 4);
        assert!(is_open(&gate));
        tick(&gate, BUSY, 1);
        assert!(!is_open(&gate));
    }

    /// A gate is closed while operations wait too long for connections: it then limits the rate of
    /// logins.
    #[test]
    fn a_login_gate_closes_only_if_operations_wait_longer_than_20_ms() {
        let gate = Gate::of_logins();
        tick(&gate, OPERATIONS_TARGET, 50);
        assert!(is_open(&gate));
        tick(&gate, OPERATIONS_TARGET + Duration::from_millis(1), 50);
        assert!(!is_open(&gate));
    }

    /// A gate is closed while operations wait too long for connections: it then limits the rate of
    /// logins.
    #[test]
    fn the_first_limit_of_a_closed_login_gate_is_the_recent_average_rate() {
        let gate = Gate::of_logins();
        for wait in [Duration::ZERO, BUSY] {
            for _ in 0..5 {
                assert!((0..20).all(|_| gate.try_pass()));
                gate.tick(wait, TICK);
            }
        }
        // Each tick moves the average rate by a tenth towards 1,000 a second. After ten ticks it is
        // 651 a second, which is 13 for each tick.
        assert_eq!((0..100).take_while(|_| gate.try_pass()).count(), 13);
    }

    /// A gate is closed while operations wait too long for connections: it then limits the rate of
    /// logins.
    #[test]
    fn a_closed_login_gate_opens_gradually_when_operations_no_longer_wait() {
        let gate = Gate::of_logins();
        tick(&gate, BUSY, 5);
        tick(&gate, Duration::ZERO, 1);
        assert!(!is_open(&gate));
        // The rate grows by 15 % at each tick, from 50 a second: after 42 ticks it is 17,700, and
        // after 43 ticks it exceeds 20,000.
        tick(&gate, Duration::ZERO, 41);
        assert!(!is_open(&gate));
        tick(&gate, Duration::ZERO, 1);
        assert!(is_open(&gate));
    }

    /// Logins wait at a closed gate. A waiting login is dropped when its client disconnects.
    #[test]
    fn a_tick_removes_dropped_logins_if_more_than_8192_logins_wait_at_a_gate() {
        let gate = Gate::of_logins();
        tick(&gate, BUSY, 5);
        while gate.try_pass() {}
        let mut stays = [(); 2].map(|()| Box::pin(gate.pass(Origin::default())));
        for stay in &mut stays {
            assert!(stay.as_mut().now_or_never().is_none());
        }
        // No time has passed, so the tick admits no waiter.
        let waiting_after_a_tick = || {
            gate.tick(BUSY, Duration::ZERO);
            gate.state.lock().waiting.len()
        };
        arrive_and_leave(&gate, PURGE_BEYOND - 2);
        assert_eq!(waiting_after_a_tick(), PURGE_BEYOND);
        arrive_and_leave(&gate, 1);
        assert_eq!(waiting_after_a_tick(), 2);
        for stay in &mut stays {
            assert!(stay.as_mut().now_or_never().is_none());
        }
        tick(&gate, Duration::ZERO, 60);
        for stay in stays {
            assert!(stay.now_or_never().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_admits_the_oldest_login_at_every_fourth_turn_and_otherwise_the_newest() {
        let gate = Arc::new(Gate::of_logins());
        tick(&gate, BUSY, 6);
        while gate.try_pass() {}
        let order = waiters(&gate, 10).await;
        tick(&gate, BUSY, 50);
        settle().await;
        assert_eq!(*order.lock(), [0, 9, 8, 7, 1, 6, 5, 4, 2, 3]);
    }

    /// A waiting login is dropped when its client disconnects.
    #[test]
    fn a_gate_admits_the_oldest_login_first_even_if_older_logins_have_left() {
        let gate = Gate::of_logins();
        tick(&gate, BUSY, 6);
        while gate.try_pass() {}
        arrive_and_leave(&gate, 3);
        let mut waiting = [(); 2].map(|()| Box::pin(gate.pass(Origin::default())));
        for login in &mut waiting {
            assert!(login.as_mut().now_or_never().is_none());
        }
        while gate.state.lock().waiting.len() > 1 {
            tick(&gate, BUSY, 1);
        }
        let [oldest, newest] = waiting;
        assert!(oldest.now_or_never().is_some());
        assert!(newest.now_or_never().is_none());
    }

    /// Each token lets one login pass a closed gate.
    #[tokio::test(start_paused = true)]
    async fn a_login_that_is_dropped_while_it_waits_at_a_gate_uses_no_token_of_the_gate() {
        let gate = Arc::new(Gate::of_logins());
        tick(&gate, BUSY, 6);
        while gate.try_pass() {}
        let mut gone = Vec::new();
        for _ in 0..1000 {
            let waiting = Box::pin(gate.pass(Origin::default()));
            gone.push(tokio::time::timeout(Duration::ZERO, waiting).await.is_err());
        }
        assert!(gone.iter().all(|gone| *gone));
        let order = waiters(&gate, 1).await;
        tick(&gate, BUSY, 3);
        settle().await;
        assert_eq!(order.lock().len(), 1);
        assert_eq!(gate.state.lock().waiting.len(), 0);
    }

    /// Each token lets one login pass a closed gate.
    #[test]
    fn a_login_that_is_dropped_after_a_tick_has_admitted_it_gives_its_token_back() {
        let gate = Gate::of_logins();
        tick(&gate, BUSY, 6);
        while gate.try_pass() {}
        let mut waiting = Box::pin(gate.pass(Origin::default()));
        assert!(waiting.as_mut().now_or_never().is_none());
        while !gate.state.lock().waiting.is_empty() {
            tick(&gate, BUSY, 1);
        }
        assert!(!gate.try_pass(), "the waiter has the token");
        drop(waiting);
        assert!(gate.try_pass());
        // A waiter that has passed keeps its token.
        let mut waiting = Box::pin(gate.pass(Origin::default()));
        assert!(waiting.as_mut().now_or_never().is_none());
        while !gate.state.lock().waiting.is_empty() {
            tick(&gate, BUSY, 1);
        }
        assert!(waiting.now_or_never().is_some());
        assert!(!gate.try_pass());
    }

    /// A gate is closed while operations wait too long for connections: it then limits the rate of
    /// logins.
    #[tokio::test(start_paused = true)]
    async fn logins_pass_at_the_minimum_rate_as_long_as_operations_wait_too_long() {
        let gate = Gate::of_logins();
        tick(&gate, BUSY, 500);
        let mut passed = 0;
        for _ in 0..50 {
            gate.tick(BUSY, TICK);
            while gate.try_pass() {
                passed += 1;
            }
        }
        // The 50 ticks take one second. The minimum rate lets 50 callers pass in this time, and
        // each token that was left before lets one more caller pass.
        assert!((48..=60).contains(&passed), "{passed}");
        // The gate then opens fully in less than a second.
        tick(&gate, Duration::ZERO, 45);
        assert!((0..10_000).all(|_| gate.try_pass()));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_logins_of_a_user_whose_operations_wait_are_delayed() {
        let gates = LoginGates::default();
        let (busy, other) = (("busy", "admin"), ("other", "admin"));
        for _ in 0..10 {
            gates.tick(Duration::ZERO, [(busy, BUSY)].into_iter(), TICK);
        }
        while gates.try_pass(Some(busy)) {}
        assert!((0..1_000).all(|_| gates.try_pass(Some(other)) && gates.try_pass(None)));
        assert!(!gates.try_pass_as_anyone());
        // When the user's operations no longer wait, the user's gate opens gradually and is
        // removed.
        gates.tick(Duration::ZERO, std::iter::empty(), TICK);
        assert!(!(0..1_000).all(|_| gates.try_pass(Some(busy))));
        for _ in 0..60 {
            gates.tick(Duration::ZERO, std::iter::empty(), TICK);
        }
        assert!((0..1_000).all(|_| gates.try_pass(Some(busy)) && gates.try_pass_as_anyone()));
        assert!(gates.users.lock().is_empty());
    }

    /// If a user has a gate of its own, a login of this user must pass two gates: this gate and the
    /// common gate of all users.
    #[test]
    fn a_login_that_cannot_pass_the_gate_of_all_users_uses_no_token_of_the_gate_of_its_user() {
        let gates = LoginGates::default();
        let busy = ("busy", "admin");
        for _ in 0..10 {
            gates.tick(BUSY, [(busy, BUSY)].into_iter(), TICK);
        }
        while gates.all.try_pass() {}
        let turns = || gates.gate_of(busy).1.unwrap().state.lock().tokens;
        let before = turns();
        assert!(before >= 1.0, "{before}");
        assert!(!gates.try_pass(Some(busy)));
        assert_eq!(turns().to_bits(), before.to_bits());
    }

    /// If a user has a gate of its own, a login of this user must pass two gates: this gate and the
    /// common gate of all users.
    #[test]
    fn a_login_dropped_at_the_common_gate_returns_the_token_of_the_gate_of_its_user() {
        let gates = LoginGates::default();
        let busy = ("busy", "admin");
        for _ in 0..10 {
            gates.tick(BUSY, [(busy, BUSY)].into_iter(), TICK);
        }
        while gates.all.try_pass() {}
        let tokens = || gates.gate_of(busy).1.unwrap().state.lock().tokens;
        let before = tokens();
        assert!(before >= 1.0, "{before}");
        let mut login = Box::pin(gates.pass(Some(busy), Sharer::Local));
        assert!(login.as_mut().now_or_never().is_none());
        assert!(tokens() < before - 0.5);
        drop(login);
        assert!((tokens() - before).abs() < 1e-6, "{} of {before}", tokens());
    }

    #[tokio::test(start_paused = true)]
    async fn many_logins_from_one_address_do_not_block_logins_from_another_address() {
        let gates = Arc::new(LoginGates::default());
        let tick = |times| {
            for _ in 0..times {
                gates.tick(BUSY, std::iter::empty(), TICK);
            }
        };
        tick(20);
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
        assert!(passed.lock().is_empty(), "all logins wait");
        // At the minimum rate, one login passes at each tick.
        tick(3);
        settle().await;
        assert!(passed.lock().contains(&2), "{:?}", passed.lock());
    }

    /// An event at a gate.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Arrives,
        /// A waiter leaves: the waiter at this index, modulo the number of waiters.
        Leaves(usize),
        /// A tick that reports a wait that exceeds the target of the gate.
        Missed,
        /// A tick that reports no wait.
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
        /// No waiter passes twice, and no waiter passes after it has left. After 60 ticks that
        /// report no wait, each waiter that has not left has passed. Before these ticks, each tick
        /// admits at most as many waiters as the rate of the gate allows.
        #[test]
        fn each_waiter_that_does_not_leave_passes_a_gate_exactly_once(events in events()) {
            let gate = Gate::of_logins();
            let mut waiting: Vec<_> = Vec::new();
            let (mut passed, mut arrived, mut left, mut ticks) = (0, 0, 0, 0);
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
                    Event::Leaves(index) if !waiting.is_empty() => {
                        drop(waiting.remove(index % waiting.len()));
                        left += 1;
                    }
                    Event::Leaves(_) => {}
                    Event::Missed | Event::Met => {
                        let is_missed = matches!(event, Event::Missed);
                        gate.tick(
                            if is_missed { BUSY } else { Duration::ZERO },
                            TICK,
                        );
                        ticks += 1;
                        let released = turns(&mut waiting);
                        passed += released;
                        let limit = gate.state.lock().rate;
                        if let Some(rate) = limit {
                            // Each waiter that passes uses a token. A tick has at most
                            // `rate * 0.1 + 1` tokens; the rest of the bound is tolerance.
                            let most = rate.mul_add(0.1, 1.0) + rate * 0.04;
                            let released = u32::try_from(released).unwrap();
                            prop_assert!(f64::from(released) <= most + 1.0, "{released} at {rate}");
                        }
                    }
                }
            }
            tick(&gate, Duration::ZERO, 60);
            passed += turns(&mut waiting);
            prop_assert_eq!(waiting.len(), 0, "after {} ticks", ticks);
            prop_assert_eq!(passed + left, arrived);
            prop_assert!(gate.try_pass());
        }
    }
}
