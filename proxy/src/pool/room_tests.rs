//! Tests of how users share a server that is at its connection limit, and how they share a full
//! wait queue.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    CheckOutError, Overload, PoolLimits,
    inner::{Inner, Start, Suspicion},
    slots_tests::fixed,
    tests::{
        CLIENT, WAIT, connection, identity, inner, limits, obtain, reasons, suspect, use_once, wait,
    },
};
use seawall_auth::Identity;
use seawall_transport::connection::Generation;

/// Creates a pool at the connection limit of its server. Each number in `waiting` adds a user with
/// this number of waiting operations.
fn crowded<const N: usize>(waiting: [usize; N], now: Instant) -> (Inner, [Arc<Identity>; N]) {
    let mut inner = inner(PoolLimits {
        max_pool_size: 4,
        ..limits()
    });
    let busy = identity("busy");
    (0..4).for_each(|_| drop(obtain(&mut inner, &busy, now)));
    // Maintenance removes the busy user, which has no waiters, from `Inner::turns`.
    inner.maintain(now, |_| false);
    let users = waiting.map(|count| {
        let user = identity("waits");
        (0..count).for_each(|_| drop(wait(&mut inner, &user, CLIENT, now)));
        user
    });
    (inner, users)
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_a_user_that_already_has_its_equal_share_of_the_queue() {
    let now = Instant::now();
    let (mut inner, [_greedy, has_share, has_less, _]) = crowded([4, 2, 1, 1], now);
    let (start, _) = inner.check_out(&has_share, CLIENT, now, now + WAIT);
    assert!(matches!(
        start,
        Start::Refused(CheckOutError::Overload(Overload::QueueFull))
    ));
    let (_grant, todo) = wait(&mut inner, &has_less, CLIENT, now);
    assert!(matches!(
        todo.fail[..],
        [(_, CheckOutError::Overload(Overload::QueueFull))]
    ));
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_a_user_if_no_other_user_has_two_more_waiters() {
    let now = Instant::now();
    let (mut inner, [_, _, user]) = crowded([3, 3, 2], now);
    let (start, _) = inner.check_out(&user, CLIENT, now, now + WAIT);
    assert!(matches!(
        start,
        Start::Refused(CheckOutError::Overload(Overload::QueueFull))
    ));
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_busy_user_loses_a_connection_only_to_a_user_with_at_least_two_fewer_connections() {
    let now = Instant::now();
    let [own, other] = ["own", "other"].map(identity);
    for (count, is_closed) in [(2, false), (3, true)] {
        let mut inner = inner(PoolLimits {
            max_server_connections: count + 1,
            ..limits()
        });
        let mut held: Vec<_> = (0..count).map(|_| obtain(&mut inner, &own, now)).collect();
        let _others = obtain(&mut inner, &other, now);
        let _waits = [&own, &other].map(|user| wait(&mut inner, user, CLIENT, now).0);
        let later = now + Duration::from_secs(1);
        let todo = inner.give_back(own.id(), held.pop().unwrap(), None, later);
        assert_eq!(!todo.close.is_empty(), is_closed, "{count} connections");
        inner.check_invariants();
    }
}

#[tokio::test(start_paused = true)]
async fn below_the_connection_limit_no_connection_is_closed_for_another_user() {
    let (mut inner, now) = (inner(limits()), Instant::now());
    let users = ["one", "other"].map(identity);
    let held = obtain(&mut inner, &users[0], now);
    assert_eq!(suspect(&mut inner, &users[0], now), Suspicion::Probe);
    let _waits = wait(&mut inner, &users[1], CLIENT, now).0;
    let todo = inner.give_back(users[0].id(), held, None, now);
    assert_eq!(reasons(&todo), []);
    assert_eq!(inner.recover(now, now).establish.len(), 1);
    inner.check_invariants();
}

/// At the connection limit, a user can get a connection if the pool closes an available connection
/// of another user. The search for such a connection examines all users, and locks the pool.
#[tokio::test(start_paused = true)]
async fn a_pass_over_all_users_searches_once_for_a_connection_to_close_if_many_users_wait() {
    let now = Instant::now();
    let of_pool = PoolLimits {
        concurrency: fixed(1),
        wait_queue_size: 100,
        ..limits()
    };
    let mut inner = inner(of_pool.clone());
    let [busy, others @ ..] = ["busy", "a", "b", "c"].map(identity);
    for user in &others {
        use_once(&mut inner, user, now);
    }
    // This operation has the only slot. So the operations of the other users wait, although these
    // users have available connections.
    let _held = obtain(&mut inner, &busy, now);
    let crowd: Vec<_> = (0..50).map(|n| identity(&format!("u{n}"))).collect();
    let users = others.iter().chain(&crowd);
    let _waits: Vec<_> = users
        .map(|user| wait(&mut inner, user, CLIENT, now).0)
        .collect();
    let before = inner.room_searches;
    assert!(inner.maintain(now, |_| false).establish.is_empty());
    assert_eq!(inner.room_searches - before, 1);
    assert_eq!(suspect(&mut inner, &busy, now), Suspicion::Probe);
    assert!(inner.recover(now, now).establish.is_empty());
    assert_eq!(inner.room_searches - before, 2);
    // A reload sets all limits, also those that have not changed.
    assert!(inner.set_limits(of_pool, now).establish.is_empty());
    assert_eq!(inner.room_searches - before, 3);
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn lowering_a_connection_limit_closes_the_connections_that_were_unused_for_longest() {
    let now = Instant::now();
    let before = PoolLimits {
        max_pool_size: 10,
        max_server_connections: 20,
        ..limits()
    };
    let for_user = PoolLimits {
        max_pool_size: 1,
        ..before
    };
    let for_all = PoolLimits {
        max_server_connections: 2,
        ..before
    };
    for after in [for_user, for_all] {
        let mut inner = inner(before.clone());
        let users = ["one", "other"].map(identity);
        let held = [0, 1, 0, 1].map(|n| (&users[n], obtain(&mut inner, &users[n], now)));
        let mut ids = Vec::new();
        for (second, (user, held)) in (1..).zip(held) {
            ids.push(held.connection.id());
            let later = now + Duration::from_secs(second);
            inner.give_back(user.id(), held, None, later);
        }
        let todo = inner.set_limits(after, now + Duration::from_secs(5));
        let mut closed: Vec<_> = todo.close.iter().map(|(c, _)| c.id()).collect();
        closed.sort_unstable();
        // The two connections that have been unused for the longest time are closed. They were
        // established first, so they have the lowest ids.
        assert_eq!(closed, ids[..2]);
        inner.check_invariants();
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_or_full_pool_adopts_no_connection() {
    let (user, now) = (identity("u"), Instant::now());
    let is_adopted = |inner: &mut Inner| {
        let todo = inner.adopt(&user, connection(now, Generation::default()), now);
        inner.check_invariants();
        todo.close.is_empty()
    };
    assert!(
        !is_adopted(&mut Inner::new(limits(), |_| false, 1, now)),
        "a paused pool adopts no connection"
    );
    let mut empty = inner(limits());
    let adopted = [0; 4].map(|_| is_adopted(&mut empty));
    assert_eq!(
        adopted,
        [true, true, true, false],
        "no connection is adopted over max_pool_size"
    );
    let mut full = inner(PoolLimits {
        max_server_connections: 2,
        ..limits()
    });
    let other = identity("other");
    let _held = [0; 2].map(|_| obtain(&mut full, &other, now));
    assert!(
        !is_adopted(&mut full),
        "no connection is adopted over max_server_connections"
    );
}
