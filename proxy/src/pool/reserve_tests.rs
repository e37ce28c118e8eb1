//! Tests of the reserved connections: which operations may use them.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    CheckOutError, Demand, Need, Overload, PoolLimits,
    inner::{Inner, Start, Todo},
    tests::{
        CLIENT, COMMIT, WAIT, connection, deliver, from, identity, inner, limits, obtain,
        obtain_for, reasons, use_once, wait,
    },
};
use crate::observe::CloseReason;
use seawall_auth::Identity;

/// The demand of an operation that waits for data.
const AWAITING: Demand = Demand {
    need: Need::LanePermit,
    ..CLIENT
};

/// A pool for a server with at most eight connections. The limit of each user is higher, so the
/// limit of the server is reached first.
fn inner_with_eight_connections() -> Inner {
    inner(PoolLimits {
        max_pool_size: 10,
        max_server_connections: 8,
        ..limits()
    })
}

/// Asserts that a connection was closed so that `user` can get one, and that a waiter of this user
/// gets the new connection.
fn assert_gave_way(inner: &mut Inner, todo: &Todo, user: &Arc<Identity>, now: Instant) {
    assert_eq!(reasons(todo), [CloseReason::GaveWay]);
    let users: Vec<_> = todo.establish.iter().map(|(user, _)| user.id()).collect();
    assert_eq!(users, [user.id()]);
    let generation = inner.generation();
    let todo = inner.established(user, connection(now, generation), now);
    assert_eq!(todo.hand_over.len(), 1);
    inner.check_invariants();
}

/// The commit uses a reserved connection, because other operations may wait for the locks of its
/// transaction.
#[tokio::test(start_paused = true)]
async fn a_commit_gets_a_connection_above_max_pool_size() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = inner(PoolLimits {
        max_pool_size: 2,
        ..limits()
    });
    let mut held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let (mut first, todo) = wait(&mut inner, &user, CLIENT, now);
    assert!(todo.establish.is_empty());
    let commit = obtain_for(&mut inner, &user, COMMIT, now);
    inner.check_invariants();
    // The third connection is above `max_pool_size`. The pool keeps it for later operations that
    // may use the reserve, and other operations do not get it.
    let (mut second, todo) = wait(&mut inner, &user, CLIENT, now);
    assert!(todo.establish.is_empty());
    let todo = inner.give_back(user.id(), commit, None, now);
    assert_eq!((todo.hand_over.len(), todo.close.len()), (0, 0));
    inner.check_invariants();
    let (start, todo) = inner.check_out(&user, COMMIT, now, now + WAIT);
    assert!(matches!(start, Start::Ready(..)) && todo.establish.is_empty());
    let todo = inner.give_back(user.id(), held.pop().unwrap(), None, now);
    deliver(todo.hand_over);
    assert!(first.try_recv().is_ok() && second.try_recv().is_err());
    inner.check_invariants();
}

/// For a commit, the pool may establish a connection above `max_pool_size`, and then keeps it.
#[tokio::test(start_paused = true)]
async fn a_reload_of_unchanged_limits_keeps_an_available_connection_above_max_pool_size() {
    let (user, now) = (identity("u"), Instant::now());
    let small = PoolLimits {
        max_pool_size: 2,
        ..limits()
    };
    let mut inner = inner(small.clone());
    let _held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let commit = obtain_for(&mut inner, &user, COMMIT, now);
    inner.give_back(user.id(), commit, None, now);
    let todo = inner.set_limits(small, now);
    assert_eq!(reasons(&todo), []);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn seawall_s_own_command_may_use_a_connection_above_max_pool_size() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = inner(PoolLimits {
        max_pool_size: 2,
        ..limits()
    });
    let _held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let (_wait, todo) = wait(&mut inner, &user, Demand::OWN, now);
    assert!(todo.establish.is_empty());
    assert!(inner.maintain(now, |_| false).establish.is_empty());
    let later = now + Duration::from_secs(1);
    assert_eq!(inner.maintain(later, |_| false).establish.len(), 1);
    inner.check_invariants();
    let generation = inner.generation();
    let mut todo = inner.established(&user, connection(later, generation), later);
    let own = todo
        .hand_over
        .pop()
        .expect("the command gets the connection");
    let todo = inner.give_back(user.id(), own.into(), None, later);
    assert_eq!((todo.hand_over.len(), todo.close.len()), (0, 0));
    // The third connection is now available. It is above `max_pool_size`.
    let (_wait, todo) = wait(&mut inner, &user, CLIENT, later);
    assert!(todo.establish.is_empty());
    let (start, todo) = inner.check_out(&user, Demand::OWN, later, later + WAIT);
    assert!(matches!(start, Start::Ready(..)) && todo.establish.is_empty());
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_that_its_user_cannot_use_may_be_closed_for_a_commit() {
    let now = Instant::now();
    let [busy, waiting, other, writer] = ["busy", "waiting", "other", "writer"].map(identity);
    let mut inner = inner_with_eight_connections();
    use_once(&mut inner, &waiting, now);
    let _held: Vec<_> = (0..7).map(|_| obtain(&mut inner, &busy, now)).collect();
    // A connection of the user `waiting` is available. But `busy` uses all connections that are not
    // reserved, so only an operation that may use the reserve can use this connection.
    let _waits = wait(&mut inner, &waiting, CLIENT, now);
    inner.check_invariants();
    let (_others, todo) = wait(&mut inner, &other, CLIENT, now);
    assert_eq!((todo.close.len(), todo.establish.len()), (0, 0));
    let (_commit, todo) = wait(&mut inner, &writer, COMMIT, now);
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    assert_eq!(todo.establish[0].0.id(), writer.id());
    let generation = inner.generation();
    let todo = inner.established(&writer, connection(now, generation), now);
    assert_eq!(todo.hand_over.len(), 1);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn an_open_transaction_keeps_its_connection_at_max_server_connections() {
    let now = Instant::now();
    let [busy, crowd, writer, other] = ["busy", "crowd", "writer", "other"].map(identity);
    let mut inner = inner(PoolLimits {
        max_pool_size: 10,
        max_server_connections: 16,
        ..limits()
    });
    let _busy: Vec<_> = (0..10).map(|_| obtain(&mut inner, &busy, now)).collect();
    let _crowd: Vec<_> = (0..4).map(|_| obtain(&mut inner, &crowd, now)).collect();
    for _ in 0..3 {
        let (_waits, todo) = wait(&mut inner, &crowd, CLIENT, now);
        assert!(
            todo.establish.is_empty(),
            "the user `crowd` cannot use the two reserved connections"
        );
    }
    let _other = obtain_for(&mut inner, &other, COMMIT, now);
    let mut statement = obtain_for(&mut inner, &writer, COMMIT, now);
    for seconds in 0..3 {
        let later = now + Duration::from_secs(seconds);
        let todo = inner.give_back(writer.id(), statement, None, later);
        assert!(todo.hand_over.is_empty());
        assert_eq!((todo.close.len(), todo.establish.len()), (0, 0));
        inner.check_invariants();
        statement = obtain_for(&mut inner, &writer, COMMIT, later);
    }
}

/// The last few of `max_server_connections` are the reserve. Urgent operations, such as commits,
/// may use it. Ordinary operations ([`Need::Slot`]) must not.
#[tokio::test(start_paused = true)]
async fn a_busy_user_loses_a_connection_to_another_user_if_only_the_reserve_is_free() {
    let now = Instant::now();
    let [busy, other] = ["busy", "other"].map(identity);
    let mut inner = inner_with_eight_connections();
    let mut held: Vec<_> = (0..7).map(|_| obtain(&mut inner, &busy, now)).collect();
    let _busy_waits = wait(&mut inner, &busy, CLIENT, now);
    let (_other_waits, todo) = wait(&mut inner, &other, CLIENT, now);
    assert!(todo.establish.is_empty());
    let later = now + Duration::from_millis(100);
    let todo = inner.give_back(busy.id(), held.pop().unwrap(), None, later);
    assert_gave_way(&mut inner, &todo, &other, later);
}

#[tokio::test(start_paused = true)]
async fn after_a_wait_of_a_change_stream_its_connection_is_closed_for_a_waiting_commit() {
    let now = Instant::now();
    let [writer, other, listener] = ["writer", "other", "listener"].map(identity);
    let mut inner = inner_with_eight_connections();
    let _blocked: Vec<_> = (0..6).map(|_| obtain(&mut inner, &writer, now)).collect();
    let _other = obtain(&mut inner, &other, now);
    let awaiting = obtain_for(&mut inner, &listener, AWAITING, now);
    let _next = wait(&mut inner, &listener, AWAITING, now);
    let (_commit, todo) = wait(&mut inner, &writer, COMMIT, now);
    assert_eq!((todo.close.len(), todo.establish.len()), (0, 0));
    let later = now + Duration::from_millis(100);
    let todo = inner.give_back(listener.id(), awaiting, None, later);
    assert_gave_way(&mut inner, &todo, &writer, later);
}

/// Seawall may close the connection of a change stream to make room for a waiting commit. But it
/// does so only after the commit has waited for 100 ms.
#[tokio::test(start_paused = true)]
async fn a_change_stream_keeps_its_connection_if_the_waiting_commit_has_just_arrived() {
    let now = Instant::now();
    let [writer, other, listener] = ["writer", "other", "listener"].map(identity);
    let mut inner = inner_with_eight_connections();
    let _blocked: Vec<_> = (0..6).map(|_| obtain(&mut inner, &writer, now)).collect();
    let _other = obtain(&mut inner, &other, now);
    let awaiting = obtain_for(&mut inner, &listener, AWAITING, now);
    let _next = [0, 1].map(|_| wait(&mut inner, &listener, AWAITING, now).0);
    let _ordinary = wait(&mut inner, &writer, CLIENT, now);
    let later = now + Duration::from_millis(100);
    let _commit = wait(&mut inner, &writer, COMMIT, later);
    let mut todo = inner.give_back(listener.id(), awaiting, None, later);
    assert_eq!(reasons(&todo), []);
    let next = todo.hand_over.pop().expect("the next operation begins");
    inner.check_invariants();
    let latest = later + Duration::from_millis(100);
    let todo = inner.give_back(listener.id(), next.into(), None, latest);
    assert_eq!(reasons(&todo), [CloseReason::GaveWay]);
    let users: Vec<_> = todo.establish.iter().map(|(user, _)| user.id()).collect();
    assert_eq!(users, [writer.id()]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn in_a_full_queue_a_new_commit_removes_the_newest_ordinary_operation_of_its_user() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = inner(PoolLimits {
        max_pool_size: 2,
        wait_queue_size: 2,
        ..limits()
    });
    let _held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let mut waits = [0, 1].map(|_| wait(&mut inner, &user, CLIENT, now).0);
    let (_commit, mut todo) = wait(&mut inner, &user, COMMIT, now);
    assert_eq!(todo.establish.len(), 1);
    let (grant, error) = todo.fail.pop().expect("one operation is refused");
    assert!(matches!(
        error,
        CheckOutError::Overload(Overload::QueueFull)
    ));
    drop(grant.send(Err(error)));
    let refused = waits.each_mut().map(|wait| wait.try_recv().is_ok());
    assert_eq!(refused, [false, true]);
    inner.check_invariants();
}

/// In a full queue, the first eight commits of an address may remove waiters of other addresses.
#[tokio::test(start_paused = true)]
async fn the_ninth_waiting_commit_of_an_address_removes_no_waiter_of_another_address() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = inner(PoolLimits {
        max_pool_size: 2,
        wait_queue_size: 9,
        ..limits()
    });
    let _held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let (mut other, _) = wait(&mut inner, &user, from(2), now);
    let commit = Demand {
        need: Need::SlotOrReserve,
        ..from(1)
    };
    let _commits: Vec<_> = (0..8)
        .map(|_| wait(&mut inner, &user, commit, now))
        .collect();
    let (start, todo) = inner.check_out(&user, commit, now, now + WAIT);
    assert!(matches!(
        start,
        Start::Refused(CheckOutError::Overload(Overload::QueueFull))
    ));
    assert!(todo.fail.is_empty() && other.try_recv().is_err());
    inner.check_invariants();
}

/// In a full queue, a waiting operation is removed to make room for a commit.
#[tokio::test(start_paused = true)]
async fn the_ninth_waiting_commit_of_an_address_replaces_an_operation_of_this_address() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = inner(PoolLimits {
        max_pool_size: 2,
        wait_queue_size: 9,
        ..limits()
    });
    let _held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let (mut ordinary, _) = wait(&mut inner, &user, CLIENT, now);
    let _commits: Vec<_> = (0..8)
        .map(|_| wait(&mut inner, &user, COMMIT, now))
        .collect();
    let (_ninth, mut todo) = wait(&mut inner, &user, COMMIT, now);
    let (grant, error) = todo.fail.pop().expect("one operation is refused");
    assert!(matches!(
        error,
        CheckOutError::Overload(Overload::QueueFull)
    ));
    drop(grant.send(Err(error)));
    assert!(ordinary.try_recv().is_ok() && todo.fail.is_empty());
    inner.check_invariants();
}
