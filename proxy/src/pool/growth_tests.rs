//! Tests of the minimum number of connections of a user, and of connections that could not be
//! established.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    CheckOutError, Demand, PoolLimits,
    inner::Inner,
    tests::{CLIENT, connection, identity, inner, limits, obtain, reasons, use_once, wait},
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityStatus, Login};
use seawall_transport::connection::EstablishError;

fn with_minimum(min_pool_size: usize) -> PoolLimits {
    PoolLimits {
        min_pool_size,
        ..limits()
    }
}

fn refused(inner: &Inner) -> CheckOutError {
    CheckOutError::Establish {
        error: Arc::new(EstablishError::NoLogin),
        generation: inner.generation(),
        login_version: 0,
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_login_pauses_connections_for_min_pool_size_for_30_seconds() {
    let (mut inner, user, now) = (inner(with_minimum(3)), identity("u"), Instant::now());
    use_once(&mut inner, &user, now);
    assert_eq!(inner.maintain(now, |_| false).establish.len(), 2);
    for _ in 0..2 {
        let error = refused(&inner);
        let todo = inner.not_established(&user, &error, now);
        assert!(todo.establish.is_empty());
    }
    let early = now + Duration::from_secs(29);
    assert!(inner.maintain(early, |_| false).establish.is_empty());
    // Connections for waiters are established during the pause.
    let held = obtain(&mut inner, &user, early);
    let (_wait, todo) = wait(&mut inner, &user, CLIENT, early);
    assert_eq!(todo.establish.len(), 1);
    let error = refused(&inner);
    drop(inner.not_established(&user, &error, early));
    inner.give_back(user.id(), held, None, early);
    let late = early + Duration::from_secs(30);
    assert_eq!(inner.maintain(late, |_| false).establish.len(), 2);
    inner.check_invariants();
}

/// The pool adopts a connection, for example, after the user has logged in with its new password.
#[tokio::test(start_paused = true)]
async fn after_a_refused_login_a_user_with_an_adopted_connection_gets_its_min_pool_size() {
    let (mut inner, user, now) = (inner(with_minimum(1)), identity("u"), Instant::now());
    let (_wait, todo) = wait(&mut inner, &user, CLIENT, now);
    assert_eq!(todo.establish.len(), 1);
    let error = refused(&inner);
    drop(inner.not_established(&user, &error, now));
    drop(inner.adopt(&user, connection(now, inner.generation()), now));
    inner.clear(inner.generation(), now).unwrap();
    inner.ready();
    assert_eq!(inner.maintain(now, |_| false).establish.len(), 1);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_user_that_no_longer_exists_gets_no_connections_for_min_pool_size() {
    let (mut inner, user, now) = (inner(with_minimum(3)), identity("u"), Instant::now());
    use_once(&mut inner, &user, now);
    user.end(IdentityStatus::Gone);
    assert!(inner.forget(user.id()).establish.is_empty());
    assert!(inner.maintain(now, |_| false).establish.is_empty());
    inner.check_invariants();
}

/// After a change of a user's password, Seawall knows no login of this user until a client logs in
/// with the new password. The open connections of the user stay logged in.
#[tokio::test(start_paused = true)]
async fn a_command_of_seawall_itself_waits_for_a_connection_in_use_if_no_login_is_known() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let held = obtain(&mut inner, &user, now);
    user.learn(Login::Unknown);
    let (_wait, todo) = wait(&mut inner, &user, Demand::OWN, now);
    assert!(todo.establish.is_empty());
    // After the user's only connection has ended, the command waits for a new connection.
    let todo = inner.give_back(user.id(), held, Some(CloseReason::Broken), now);
    assert_eq!(todo.establish.len(), 1);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn maintenance_closes_connections_that_no_client_can_use_any_more() {
    for status in [IdentityStatus::Gone, IdentityStatus::Refused] {
        let (mut inner, user, now) = (inner(with_minimum(1)), identity("u"), Instant::now());
        use_once(&mut inner, &user, now);
        user.end(status);
        let todo = inner.maintain(now, |_| false);
        assert_eq!(reasons(&todo), [CloseReason::Unauthorized], "{status:?}");
        assert!(todo.establish.is_empty(), "{status:?}");
        inner.check_invariants();
    }
}

#[tokio::test(start_paused = true)]
async fn connections_of_a_user_whose_keys_were_refused_stay_open_while_its_operations_wait() {
    let (mut inner, user, now) = (inner(with_minimum(1)), identity("u"), Instant::now());
    let held = obtain(&mut inner, &user, now);
    let (_wait, _) = wait(&mut inner, &user, CLIENT, now);
    user.end(IdentityStatus::Refused);
    assert_eq!(reasons(&inner.forget(user.id())), []);
    let mut todo = inner.give_back(user.id(), held, None, now);
    let last = todo.hand_over.pop().unwrap();
    let todo = inner.give_back(user.id(), last.into(), None, now);
    assert_eq!(reasons(&todo), [CloseReason::Unauthorized]);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn establishing_min_pool_size_connections_closes_no_connection_of_another_user() {
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        max_server_connections: 4,
        ..with_minimum(3)
    });
    let users = ["one", "two"].map(identity);
    for user in &users {
        use_once(&mut inner, user, now);
    }
    // Each of the two users has one connection, and lacks two for its minimum of three. But
    // `max_server_connections` is 4, so the pool may establish only two.
    let todo = inner.maintain(now, |_| false);
    assert_eq!((todo.establish.len(), todo.close.len()), (2, 0));
    for (user, generation) in todo.establish {
        drop(inner.established(&user, connection(now, generation), now));
    }
    let todo = inner.maintain(now, |_| false);
    assert_eq!((todo.establish.len(), todo.close.len()), (0, 0));
    inner.check_invariants();
}

/// Creates a pool that was cleared. Each of the `count` users lacks all connections of its minimum.
fn cleared(min_pool_size: usize, count: usize, now: Instant) -> (Inner, Vec<Arc<Identity>>) {
    let mut inner = inner(PoolLimits {
        max_server_connections: 100,
        ..with_minimum(min_pool_size)
    });
    let users: Vec<_> = (0..count).map(|n| identity(&format!("u{n}"))).collect();
    for user in &users {
        use_once(&mut inner, user, now);
    }
    inner.clear(inner.generation(), now).unwrap();
    inner.ready();
    (inner, users)
}

/// A *pending* connection is being established.
#[tokio::test(start_paused = true)]
async fn at_most_eight_connections_for_min_pool_size_are_pending_at_a_time() {
    let now = Instant::now();
    let (mut inner, _users) = cleared(2, 20, now);
    let mut pending = VecDeque::from(inner.maintain(now, |_| false).establish);
    for established in 0..40_usize {
        assert_eq!(pending.len(), (40 - established).min(8));
        let (user, generation) = pending.pop_front().unwrap();
        let todo = inner.established(&user, connection(now, generation), now);
        pending.extend(todo.establish);
        inner.check_invariants();
    }
    let users = inner.snapshot().users;
    assert_eq!(users.len(), 20);
    assert!(users.iter().all(|user| user.available == 2), "{users:?}");
}

#[tokio::test(start_paused = true)]
async fn connections_for_the_min_pool_size_of_a_user_are_limited_by_max_connecting() {
    let now = Instant::now();
    let (mut inner, users) = cleared(3, 1, now);
    let todo = inner.maintain(now, |_| false);
    assert_eq!(todo.establish.len(), 2);
    let [(_, generation), _] = todo.establish[..] else {
        panic!("expected two pending connections");
    };
    let todo = inner.established(&users[0], connection(now, generation), now);
    assert_eq!(todo.establish.len(), 1);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_failed_connection_for_min_pool_size_is_followed_by_one_for_another_user() {
    let now = Instant::now();
    let (mut inner, _users) = cleared(2, 20, now);
    let todo = inner.maintain(now, |_| false);
    let (failed, _) = &todo.establish[0];
    let error = refused(&inner);
    let next = inner.not_established(failed, &error, now).establish;
    assert_eq!(next.len(), 1);
    assert_ne!(next[0].0.id(), failed.id());
    inner.check_invariants();
}

/// A clear of the pool makes Seawall give up the connections that are being established.
#[tokio::test(start_paused = true)]
async fn connections_for_min_pool_size_replace_those_that_a_clear_gave_up() {
    let now = Instant::now();
    let (mut inner, _users) = cleared(2, 20, now);
    let given_up = inner.maintain(now, |_| false).establish;
    inner.clear(inner.generation(), now).unwrap();
    inner.ready();
    assert!(inner.maintain(now, |_| false).establish.is_empty());
    for (user, _) in &given_up {
        assert_eq!(inner.gave_up(user, now).establish.len(), 1);
        inner.check_invariants();
    }
    assert_eq!(inner.snapshot().pending, 8);
}

#[tokio::test(start_paused = true)]
async fn a_closed_pool_establishes_no_connections_for_min_pool_size() {
    let now = Instant::now();
    let (mut inner, _users) = cleared(2, 20, now);
    let given_up = inner.maintain(now, |_| false).establish;
    drop(inner.close(now));
    for (user, _) in &given_up {
        assert!(inner.gave_up(user, now).establish.is_empty());
    }
    assert!(inner.maintain(now, |_| false).establish.is_empty());
    assert_eq!(inner.snapshot().pending, 0);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_failed_connection_attempt_that_began_before_the_pool_was_cleared_fails_no_waiter() {
    let (mut inner, user, now) = (inner(limits()), identity("u"), Instant::now());
    let (_first, todo) = wait(&mut inner, &user, CLIENT, now);
    let [(_, generation)] = &*todo.establish else {
        panic!("expected that the pool begins to establish one connection");
    };
    let outdated = CheckOutError::Establish {
        error: Arc::new(EstablishError::TimedOut {
            address: "h:1".parse().unwrap(),
            limit: Duration::from_secs(1),
        }),
        generation: *generation,
        login_version: 0,
    };
    inner.clear(*generation, now).unwrap();
    inner.ready();
    let (_second, _) = wait(&mut inner, &user, CLIENT, now);
    let todo = inner.not_established(&user, &outdated, now);
    assert!(todo.fail.is_empty());
    inner.check_invariants();
}
