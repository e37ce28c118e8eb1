//! Tests of the pool's decisions (`Inner`). The tests pass the time to each call, so they need not
//! wait.

use std::{sync::Arc, time::Duration};

use tokio::{net::UnixStream, time::Instant};

use super::{
    CheckOutError, Overload, PoolLimits,
    demand::{Demand, Need},
    inner::{HandOver, Inner, ResultReceiver, Returned, Start, Suspicion, Todo},
    slots::{Concurrency, Slot, Usage},
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityId};
use seawall_transport::{
    Sharer, Stream,
    connection::{Connection, ConnectionId, Generation},
};

pub(super) const CLIENT: Demand = Demand::slot(Sharer::Local, 1);

/// The demand of an operation that may use the reserve (see [`super::reserve`]).
pub(super) const COMMIT: Demand = Demand {
    need: Need::SlotOrReserve,
    ..CLIENT
};

pub(crate) fn limits() -> PoolLimits {
    PoolLimits {
        max_pool_size: 3,
        min_pool_size: 0,
        max_server_connections: 4,
        max_connecting: 2,
        concurrency: Concurrency::Off,
        connections_per_second: None,
        max_exempt_operations: None,
        max_idle_time: Some(Duration::from_secs(60)),
        max_life_time: Some(Duration::from_secs(600)),
        wait_queue_timeout: Duration::from_secs(10),
        wait_queue_size: 8,
        renewal: None,
    }
}

pub(super) fn inner(limits: PoolLimits) -> Inner {
    let mut inner = Inner::new(limits, |_| false, 1, Instant::now());
    inner.ready();
    inner
}

/// After this time, a wait for a connection fails, unless the test sets another deadline.
pub(super) const WAIT: Duration = Duration::from_secs(10);

pub(super) fn identity(name: &str) -> Arc<Identity> {
    Arc::new(Identity::new(
        name,
        "admin",
        None,
        seawall_auth::Login::Anonymous,
    ))
}

pub(super) fn connection(now: Instant, generation: Generation) -> Box<Connection> {
    let (near, _far) = UnixStream::pair().unwrap();
    let mut connection = Box::new(Connection::new(Stream::Unix(near), now));
    connection.generation = generation;
    connection
}

/// A connection that is checked out, with its slot.
pub(super) struct Held {
    pub(super) connection: Box<Connection>,
    pub(super) slot: Slot,
}

impl Held {
    fn id(&self) -> ConnectionId {
        self.connection.id()
    }
}

impl From<HandOver> for Held {
    fn from(handed: HandOver) -> Self {
        let HandOver {
            connection, slot, ..
        } = handed;
        Self { connection, slot }
    }
}

/// Sends each connection to its waiter. Panics if the waiter has left.
pub(super) fn deliver(handed: Vec<HandOver>) {
    for handed in handed {
        let sent = handed.grant.send(Ok((handed.connection, handed.slot)));
        assert!(
            sent.is_ok(),
            "waiters that left were removed from the queue"
        );
    }
}

impl Inner {
    /// Checks a connection in, after an operation of 1 ms.
    pub(super) fn give_back(
        &mut self,
        id: IdentityId,
        held: Held,
        perished: Option<CloseReason>,
        now: Instant,
    ) -> Todo {
        let usage = Usage {
            server_time: Some(Duration::from_millis(1)),
            ..Usage::default()
        };
        let returned = Returned {
            connection: held.connection,
            slot: Some(held.slot),
            usage,
            perished,
        };
        self.check_in(id, returned, now)
    }
}

pub(super) fn reasons(todo: &Todo) -> Vec<CloseReason> {
    todo.close.iter().map(|(_, reason)| *reason).collect()
}

/// Checks a connection out. Establishes a connection if the pool requires it.
pub(super) fn obtain(inner: &mut Inner, user: &Arc<Identity>, now: Instant) -> Held {
    obtain_for(inner, user, CLIENT, now)
}

/// Like [`obtain`], for an operation with this demand.
pub(super) fn obtain_for(
    inner: &mut Inner,
    user: &Arc<Identity>,
    demand: Demand,
    now: Instant,
) -> Held {
    let (start, todo) = inner.check_out(user, demand, now, now + WAIT);
    match start {
        Start::Ready(connection, slot) => Held { connection, slot },
        Start::Refused(error) => panic!("refused: {error}"),
        Start::Wait(_, _) => {
            assert_eq!(todo.establish.len(), 1);
            let generation = inner.generation();
            let mut todo = inner.established(user, connection(now, generation), now);
            let handed = todo.hand_over.pop();
            handed.expect("the waiter gets the connection").into()
        }
    }
}

/// Establishes a connection for a user. After this call, the connection is available.
pub(super) fn use_once(inner: &mut Inner, user: &Arc<Identity>, now: Instant) {
    let held = obtain(inner, user, now);
    inner.give_back(user.id(), held, None, now);
}

#[tokio::test(start_paused = true)]
async fn the_connection_that_was_checked_in_last_is_handed_out_first() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let (a, b) = (
        obtain(&mut inner, &user, now),
        obtain(&mut inner, &user, now),
    );
    let (a_id, b_id) = (a.id(), b.id());
    inner.give_back(user.id(), a, None, now);
    inner.give_back(user.id(), b, None, now);
    assert_eq!(obtain(&mut inner, &user, now).id(), b_id);
    assert_eq!(obtain(&mut inner, &user, now).id(), a_id);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_of_arrival() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &user, now)).collect();
    let mut queue = Vec::new();
    for _ in 0..3 {
        let (start, todo) = inner.check_out(&user, CLIENT, now, now + WAIT);
        assert!(
            todo.establish.is_empty(),
            "the user has max_pool_size connections"
        );
        let Start::Wait(ticket, receiver) = start else {
            panic!("the operation has to wait")
        };
        queue.push((ticket, receiver));
    }
    inner.leave(user.id(), queue[1].0, now);
    let mut served = Vec::new();
    for connection in held {
        for handed in inner.give_back(user.id(), connection, None, now).hand_over {
            deliver(vec![handed]);
            let next = (0..3).find(|n| !served.contains(n) && queue[*n].1.try_recv().is_ok());
            served.extend(next);
        }
    }
    assert_eq!(served, [0, 2], "the waiter that left is skipped");
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn max_connecting_limits_how_many_connections_are_established_at_a_time() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let established: usize = (0..3)
        .map(|_| {
            inner
                .check_out(&user, CLIENT, now, now + WAIT)
                .1
                .establish
                .len()
        })
        .sum();
    assert_eq!(established, 2);
    let generation = inner.generation();
    let todo = inner.established(&user, connection(now, generation), now);
    assert_eq!(todo.hand_over.len(), 1);
    inner.check_invariants();
}

/// An *expired* connection is too old. A *stale* connection was established before the pool was
/// cleared.
#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_by_maintenance_and_expired_or_stale_ones_at_check_in() {
    let (user, now) = (identity("u"), Instant::now());
    let later = |seconds| now + Duration::from_secs(seconds);
    let mut inner = inner(limits());
    use_once(&mut inner, &user, now);
    assert_eq!(reasons(&inner.maintain(later(59), |_| false)), []);
    assert_eq!(
        reasons(&inner.maintain(later(60), |_| false)),
        [CloseReason::Idle]
    );
    let c = obtain(&mut inner, &user, now);
    assert_eq!(
        reasons(&inner.give_back(user.id(), c, None, later(600))),
        [CloseReason::Expired]
    );
    let c = obtain(&mut inner, &user, now);
    assert!(inner.clear(inner.generation(), now).is_some());
    inner.ready();
    assert_eq!(
        reasons(&inner.give_back(user.id(), c, None, now)),
        [CloseReason::Stale]
    );
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_closed_and_a_new_one_is_established_for_a_waiter() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &user, now)).collect();
    let (Start::Wait(_, _receiver), _) = inner.check_out(&user, CLIENT, now, now + WAIT) else {
        panic!("the operation waits")
    };
    let first = held.into_iter().next().unwrap();
    let todo = inner.give_back(user.id(), first, Some(CloseReason::Broken), now);
    assert_eq!(reasons(&todo), [CloseReason::Broken]);
    assert_eq!(todo.establish.len(), 1);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_clear_of_the_pool_fails_all_waiters_and_makes_pending_connections_stale() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let (_start, _) = inner.check_out(&user, CLIENT, now, now + WAIT);
    let first = inner.generation();
    let todo = inner.clear(first, now).unwrap();
    assert!(matches!(todo.fail[..], [(_, CheckOutError::Paused)]));
    assert!(inner.clear(first, now).is_none());
    let (start, _) = inner.check_out(&user, CLIENT, now, now + WAIT);
    assert!(matches!(start, Start::Refused(CheckOutError::Paused)));
    // A connection that was pending when the pool was cleared is stale once it is established.
    let todo = inner.established(&user, connection(now, first), now);
    assert_eq!(reasons(&todo), [CloseReason::Stale]);
    inner.check_invariants();
}

/// A clear of the pool begins a new *generation* of connections.
#[tokio::test(start_paused = true)]
async fn a_pool_is_cleared_at_most_once_for_failures_in_one_generation() {
    let (mut inner, now) = (inner(limits()), Instant::now());
    let first = inner.generation();
    assert!(inner.clear(first, now).is_some());
    assert!(
        inner.clear(inner.generation(), now).is_none(),
        "the pool is already paused"
    );
    inner.ready();
    assert!(
        inner.clear(first, now).is_none(),
        "the failure is of an earlier generation"
    );
    assert!(inner.clear(inner.generation(), now).is_some());
}

pub(super) fn suspect(inner: &mut Inner, user: &Arc<Identity>, now: Instant) -> Suspicion {
    inner.suspect(inner.generation(), user.id(), now, |_| false)
}

#[tokio::test(start_paused = true)]
async fn checkouts_wait_after_a_connection_ended_until_a_probe_gets_a_reply() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let mut held = held.into_iter();
    assert_eq!(suspect(&mut inner, &user, now), Suspicion::Probe);
    let (Start::Wait(_, mut first), todo) = inner.check_out(&user, CLIENT, now, now + WAIT) else {
        panic!("the operation has to wait")
    };
    assert!(todo.establish.is_empty());
    let todo = inner.give_back(user.id(), held.next().unwrap(), None, now);
    assert!(todo.hand_over.is_empty() && todo.close.is_empty());
    inner.check_invariants();
    // A probe that was sent before the pool became suspect does not make the pool ready.
    let todo = inner.recover(now.checked_sub(Duration::from_millis(1)).unwrap(), now);
    assert!(todo.hand_over.is_empty());
    let todo = inner.recover(now, now);
    deliver(todo.hand_over);
    assert!(first.try_recv().is_ok());
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_server_counts_as_failed_if_connections_of_two_users_or_an_unused_connection_ended() {
    let (one, other, now) = (identity("one"), identity("other"), Instant::now());
    let mut inner = inner(limits());
    assert_eq!(suspect(&mut inner, &one, now), Suspicion::Probe);
    // If all ended connections belong to one user, the user's operations may be the cause. So the
    // server does not count as failed yet.
    assert_eq!(suspect(&mut inner, &one, now), Suspicion::Probe);
    assert_eq!(suspect(&mut inner, &other, now), Suspicion::Failed);
    let c = obtain_after_recovery(&mut inner, &one, now);
    inner.give_back(one.id(), c, None, now);
    let suspicion = inner.suspect(inner.generation(), one.id(), now, |_| true);
    assert_eq!(
        suspicion,
        Suspicion::Failed,
        "an available connection ended, too"
    );
}

fn obtain_after_recovery(inner: &mut Inner, user: &Arc<Identity>, now: Instant) -> Held {
    inner.recover(now, now);
    obtain(inner, user, now)
}

#[tokio::test(start_paused = true)]
async fn ended_connections_pause_checkouts_at_most_ten_times_a_second() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let mut pauses = 0;
    for ms in 0..1000 {
        let now = now + Duration::from_millis(ms);
        assert_eq!(suspect(&mut inner, &user, now), Suspicion::Probe);
        pauses += u32::from(inner.suspected_for(now).is_some());
        inner.recover(now, now);
    }
    assert_eq!(pauses, 10);
}

#[tokio::test(start_paused = true)]
async fn an_ended_connection_can_pause_checkouts_100_ms_after_the_last_pause_began() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    assert_eq!(suspect(&mut inner, &user, now), Suspicion::Probe);
    inner.recover(now, now);
    for (ms, pauses) in [(99, false), (100, true)] {
        let later = now + Duration::from_millis(ms);
        assert_eq!(suspect(&mut inner, &user, later), Suspicion::Probe);
        assert_eq!(inner.suspected_for(later).is_some(), pauses);
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_of_an_earlier_generation_is_ignored() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let before = inner.generation();
    assert_eq!(suspect(&mut inner, &user, now), Suspicion::Probe);
    assert!(inner.clear(before, now).is_some(), "the probe failed");
    let suspicion = inner.suspect(before, user.id(), now, |_| true);
    assert_eq!(suspicion, Suspicion::Outdated);
    assert_eq!(suspect(&mut inner, &user, now), Suspicion::Outdated);
}

#[tokio::test(start_paused = true)]
async fn at_the_connection_limit_an_idle_connection_is_closed_for_another_user() {
    let now = Instant::now();
    let mut inner = inner(limits());
    let users: Vec<_> = (0..5).map(|n| identity(&format!("u{n}"))).collect();
    for user in &users[..4] {
        use_once(&mut inner, user, now);
    }
    let (_start, todo) = inner.check_out(&users[4], CLIENT, now, now + WAIT);
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    assert_eq!(todo.establish.len(), 1);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_a_busy_user_is_closed_for_another_user_that_has_waited_for_100_ms() {
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        max_pool_size: 4,
        ..limits()
    });
    let (busy, other) = (identity("busy"), identity("other"));
    let mut held: Vec<_> = (0..4).map(|_| obtain(&mut inner, &busy, now)).collect();
    let (_other_waits, todo) = inner.check_out(&other, CLIENT, now, now + WAIT);
    assert!(todo.establish.is_empty());
    let waits: Vec<_> = (0..3)
        .map(|_| inner.check_out(&busy, CLIENT, now, now + WAIT).0)
        .collect();
    let todo = inner.give_back(busy.id(), held.pop().unwrap(), None, now);
    assert_eq!(
        todo.hand_over.len(),
        1,
        "the busy user's own waiter comes first"
    );
    let later = now + Duration::from_millis(100);
    let todo = inner.give_back(busy.id(), held.pop().unwrap(), None, later);
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    assert_eq!(todo.establish[0].0.id(), other.id());
    inner.check_invariants();
    drop(waits);
}

#[tokio::test(start_paused = true)]
async fn maintenance_removes_a_user_without_connections() {
    let (mut inner, now) = (inner(limits()), Instant::now());
    let users = ["gone", "here"].map(identity);
    let [gone, here] = [0, 1].map(|n| obtain(&mut inner, &users[n], now));
    inner.give_back(users[0].id(), gone, Some(CloseReason::Broken), now);
    inner.give_back(users[1].id(), here, None, now);
    inner.maintain(now, |_| false);
    let left = inner.snapshot().users;
    let left: Vec<_> = left.iter().map(|user| user.name.as_str()).collect();
    assert_eq!(left, ["here"]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn available_connections_of_a_user_that_no_longer_exists_are_closed() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let connection = obtain(&mut inner, &user, now);
    inner.give_back(user.id(), connection, None, now);
    let todo = inner.forget(user.id());
    assert_eq!(reasons(&todo), [CloseReason::Unauthorized]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_failed_connection_attempt_fails_one_waiter_and_a_refused_login_fails_all_waiters() {
    use seawall_transport::connection::EstablishError;
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let waits: Vec<_> = (0..3)
        .map(|_| inner.check_out(&user, CLIENT, now, now + WAIT).0)
        .collect();
    let generation = inner.generation();
    let address = "h:1".parse().unwrap();
    let timed_out = EstablishError::TimedOut {
        address,
        limit: Duration::from_secs(1),
    };
    let error = |error| CheckOutError::Establish {
        error: Arc::new(error),
        generation,
        login_version: 0,
    };
    let todo = inner.not_established(&user, &error(timed_out), now);
    assert_eq!((todo.fail.len(), todo.establish.len()), (1, 1));
    let todo = inner.not_established(&user, &error(EstablishError::NoLogin), now);
    assert_eq!(todo.fail.len(), 2);
    inner.check_invariants();
    drop(waits);
}

#[tokio::test(start_paused = true)]
async fn waits_because_of_a_user_s_own_connection_limit_are_reported_for_this_user_only() {
    let now = Instant::now();
    let (busy, other) = (identity("busy"), identity("other"));
    let mut inner = inner(limits());
    let _held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &busy, now)).collect();
    let _own = inner.check_out(&busy, CLIENT, now, now + WAIT);
    let _others = [0, 1].map(|_| inner.check_out(&other, CLIENT, now, now + WAIT).0);
    let later = now + Duration::from_secs(1);
    let _late = inner.check_out(&other, CLIENT, later, later + WAIT);
    let waits = inner.waits(later);
    assert_eq!(waits.for_others, Duration::from_secs(1));
    let own: Vec<_> = waits
        .for_own
        .iter()
        .map(|(user, wait)| (user.name(), *wait))
        .collect();
    assert_eq!(own, [("busy", Duration::from_secs(1))]);
}

#[tokio::test(start_paused = true)]
async fn a_checkout_is_refused_if_the_wait_queue_is_full() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let waits: Vec<_> = (0..8)
        .map(|_| inner.check_out(&user, CLIENT, now, now + WAIT).0)
        .collect();
    let (start, _) = inner.check_out(&user, CLIENT, now, now + WAIT);
    assert!(matches!(
        start,
        Start::Refused(CheckOutError::Overload(Overload::QueueFull))
    ));
    drop(waits);
}

pub(super) fn from(address: u8) -> Demand {
    Demand::slot(Sharer::at(Some([192, 0, 2, address].into())), 1)
}

/// Begins a checkout that cannot be served at once. Panics if the operation does not have to wait.
pub(super) fn wait(
    inner: &mut Inner,
    user: &Arc<Identity>,
    demand: Demand,
    now: Instant,
) -> (ResultReceiver, Todo) {
    let (Start::Wait(_, grant), todo) = inner.check_out(user, demand, now, now + WAIT) else {
        panic!("the operation has to wait")
    };
    (grant, todo)
}

#[tokio::test(start_paused = true)]
async fn client_addresses_of_one_user_get_connections_in_turn() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &user, now)).collect();
    let mut waits: Vec<_> = [1, 1, 1, 2]
        .map(|address| wait(&mut inner, &user, from(address), now).0)
        .into();
    for connection in held.into_iter().take(2) {
        let todo = inner.give_back(user.id(), connection, None, now);
        deliver(todo.hand_over);
    }
    let served: Vec<_> = waits.iter_mut().map(|w| w.try_recv().is_ok()).collect();
    assert_eq!(served, [true, false, false, true]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_removes_a_waiter_to_make_room_for_another_address_or_user() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let _held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &user, now)).collect();
    let _waits: Vec<_> = (0..8)
        .map(|_| wait(&mut inner, &user, from(1), now).0)
        .collect();
    let (start, _) = inner.check_out(&user, from(1), now, now + WAIT);
    assert!(matches!(
        start,
        Start::Refused(CheckOutError::Overload(Overload::QueueFull))
    ));
    let (_other_address, todo) = wait(&mut inner, &user, from(2), now);
    assert!(matches!(
        todo.fail[..],
        [(_, CheckOutError::Overload(Overload::QueueFull))]
    ));
    let (_other_user, todo) = wait(&mut inner, &identity("other"), from(1), now);
    assert!(matches!(
        todo.fail[..],
        [(_, CheckOutError::Overload(Overload::QueueFull))]
    ));
    assert_eq!(inner.snapshot().wait_queue, 8);
    let (_own, todo) = wait(&mut inner, &user, Demand::OWN, now);
    assert!(
        todo.fail.is_empty(),
        "a checkout of Seawall itself removes no waiter"
    );
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn at_the_connection_limit_users_get_connections_in_turn() {
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        max_pool_size: 4,
        ..limits()
    });
    let [busy, greedy, other] = ["busy", "greedy", "other"].map(identity);
    let held: Vec<_> = (0..4).map(|_| obtain(&mut inner, &busy, now)).collect();
    let mut waits: Vec<_> = (0..4)
        .map(|_| wait(&mut inner, &greedy, from(1), now).0)
        .collect();
    waits.push(wait(&mut inner, &other, from(2), now).0);
    let mut users = Vec::new();
    for connection in held.into_iter().take(2) {
        let todo = inner.give_back(busy.id(), connection, None, now);
        users.extend(todo.establish.iter().map(|(user, _)| user.id()));
    }
    assert_eq!(users, [greedy.id(), other.id()]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn at_the_connection_limit_users_with_equal_numbers_of_connections_keep_them() {
    let (mut inner, now) = (inner(limits()), Instant::now());
    let users = ["one", "other"].map(identity);
    let held: Vec<_> = [0, 0, 1, 1]
        .map(|n| (Arc::clone(&users[n]), obtain(&mut inner, &users[n], now)))
        .into();
    let waits: Vec<_> = [0, 1, 0, 1]
        .map(|n| wait(&mut inner, &users[n], CLIENT, now).0)
        .into();
    let later = now + Duration::from_secs(1);
    for (user, connection) in held {
        let todo = inner.give_back(user.id(), connection, None, later);
        assert_eq!((todo.hand_over.len(), reasons(&todo).len()), (1, 0));
    }
    inner.check_invariants();
    drop(waits);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_not_closed_for_another_user_until_it_is_100_ms_old() {
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        max_server_connections: 1,
        ..limits()
    });
    let [first, second] = ["first", "second"].map(identity);
    let held = obtain(&mut inner, &first, now);
    let _waits = [0, 1, 2].map(|_| wait(&mut inner, &second, CLIENT, now).0);
    let _first_waits = wait(&mut inner, &first, CLIENT, now).0;
    let later = now + Duration::from_millis(100);
    let todo = inner.give_back(first.id(), held, None, later);
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    let generation = inner.generation();
    let todo = inner.established(&second, connection(later, generation), later);
    let mut handed = todo.hand_over.into_iter();
    let connection = handed.next().unwrap().into();
    // The user `first` has waited for 100 ms. But this connection has just been established, so it
    // is not closed for `first`.
    let todo = inner.give_back(second.id(), connection, None, later);
    assert_eq!((todo.hand_over.len(), reasons(&todo).len()), (1, 0));
    let connection = todo.hand_over.into_iter().next().unwrap().into();
    let last = later + Duration::from_millis(100);
    let todo = inner.give_back(second.id(), connection, None, last);
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_a_slow_login_serves_its_user_for_100_ms() {
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        max_server_connections: 1,
        ..limits()
    });
    let [first, second] = ["first", "second"].map(identity);
    let held = obtain(&mut inner, &first, now);
    let _waits = [0, 1, 2].map(|_| wait(&mut inner, &second, CLIENT, now).0);
    let _first_waits = wait(&mut inner, &first, CLIENT, now).0;
    let begin = now + Duration::from_millis(100);
    let todo = inner.give_back(first.id(), held, None, begin);
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    // The login of `second` takes 150 ms. A connection can be closed for `first` after 100 ms.
    let end = begin + Duration::from_millis(150);
    let new = connection(begin, inner.generation());
    let todo = inner.established(&second, new, end);
    assert!(reasons(&todo).is_empty());
    let served = todo.hand_over.into_iter().next().unwrap().into();
    let todo = inner.give_back(second.id(), served, None, end + Duration::from_millis(99));
    assert_eq!((todo.hand_over.len(), reasons(&todo).len()), (1, 0));
    let served = todo.hand_over.into_iter().next().unwrap().into();
    let todo = inner.give_back(second.id(), served, None, end + Duration::from_millis(100));
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_pool_keeps_and_restores_min_pool_size_connections_of_an_idle_user() {
    let (user, now) = (identity("u"), Instant::now());
    let later = |seconds| now + Duration::from_secs(seconds);
    let mut inner = inner(PoolLimits {
        min_pool_size: 2,
        ..limits()
    });
    let held = [0, 1, 2].map(|_| obtain(&mut inner, &user, now));
    for held in held {
        inner.give_back(user.id(), held, None, now);
    }
    // Two of the three idle connections are kept.
    for (seconds, closed) in [(60, &[CloseReason::Idle][..]), (61, &[])] {
        let todo = inner.maintain(later(seconds), |_| false);
        assert_eq!(reasons(&todo), closed);
        assert!(todo.establish.is_empty());
    }
    let _held = obtain(&mut inner, &user, later(62));
    let todo = inner.maintain(later(600), |_| false);
    assert_eq!(reasons(&todo), [CloseReason::Expired]);
    assert_eq!(todo.establish.len(), 1);
    inner.check_invariants();
}

/// An expired connection is too old.
#[tokio::test(start_paused = true)]
async fn expired_connections_of_an_idle_user_are_replaced_up_to_the_minimum_pool_size() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = inner(PoolLimits {
        min_pool_size: 1,
        ..limits()
    });
    use_once(&mut inner, &user, now);
    let todo = inner.maintain(now + Duration::from_secs(600), |_| false);
    assert_eq!(reasons(&todo), [CloseReason::Expired]);
    assert_eq!(todo.establish.len(), 1);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_command_of_seawall_itself_gets_a_connection_before_waiting_clients() {
    let now = Instant::now();
    let (mut inner, user) = (inner(limits()), identity("u"));
    let connections: Vec<_> = (0..3).map(|_| obtain(&mut inner, &user, now)).collect();
    let (Start::Wait(_, mut waits), _) = inner.check_out(&user, CLIENT, now, now + WAIT) else {
        panic!("the pool is full");
    };
    let (Start::Wait(_, mut first), _) = inner.check_out(&user, Demand::OWN, now, now + WAIT)
    else {
        panic!("the pool is full");
    };
    for (connection, is_first) in connections.into_iter().zip([true, false]) {
        let todo = inner.give_back(user.id(), connection, None, now);
        deliver(todo.hand_over);
        let handed = (first.try_recv().is_ok(), waits.try_recv().is_ok());
        assert_eq!(handed, (is_first, !is_first));
    }
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_connection_leaves_the_queue_when_its_operation_is_cancelled() {
    let now = Instant::now();
    let (mut inner, user) = (inner(limits()), identity("u"));
    let _held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &user, now)).collect();
    let [client, own] = [CLIENT, Demand::OWN].map(|demand| {
        let (Start::Wait(ticket, _), _) = inner.check_out(&user, demand, now, now + WAIT) else {
            panic!("the pool is full");
        };
        ticket
    });
    inner.leave(user.id(), client, now);
    assert_eq!(inner.snapshot().wait_queue, 1);
    inner.leave(user.id(), own, now);
    assert_eq!(inner.snapshot().wait_queue, 0);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn waiters_fail_at_their_deadlines() {
    let now = Instant::now();
    let (mut inner, user) = (inner(limits()), identity("u"));
    let _held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &user, now)).collect();
    let mut receivers = Vec::new();
    for (seconds, is_first) in [(3, true), (1, true), (2, false)] {
        let deadline = now + Duration::from_secs(seconds);
        let (Start::Wait(_, receiver), todo) = inner.check_out(&user, CLIENT, now, deadline) else {
            panic!("the pool is full");
        };
        assert_eq!(todo.must_wake_expiry, is_first);
        receivers.push(receiver);
    }
    let after = |seconds| now + Duration::from_secs(seconds);
    for (second, next, expired) in [(0, Some(after(1)), 0), (2, Some(after(3)), 2), (3, None, 1)] {
        let (deadline, todo) = inner.expire(after(second));
        assert_eq!((deadline, todo.fail.len()), (next, expired));
        inner.check_invariants();
    }
}
