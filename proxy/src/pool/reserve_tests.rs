//! Tests of the reserved connections: which operations may use them.

use tokio::time::Instant;

use super::{
    Limits,
    tests::{
        CLIENT, COMMIT, connection, deliver, identity, inner, limits, obtain, reasons, use_once,
        wait,
    },
};
use crate::observe::CloseReason;

#[tokio::test(start_paused = true)]
async fn a_commit_runs_although_operations_of_its_user_use_all_unreserved_connections() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = inner(Limits {
        max_pool_size: 3,
        ..limits()
    });
    let mut held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &user, now)).collect();
    let (mut waits, todo) = wait(&mut inner, &user, CLIENT, now);
    assert!(todo.establish.is_empty());
    let (_commit, todo) = wait(&mut inner, &user, COMMIT, now);
    assert_eq!(todo.establish.len(), 1);
    let generation = inner.generation();
    let mut todo = inner.established(&user, connection(now, generation), now);
    let commit = todo.hand_over.pop();
    let commit = commit.expect("the commit gets the connection");
    inner.check_invariants();
    // The operation that waits does not get the reserved connection.
    let todo = inner.give_back(user.id(), commit.into(), None, now);
    assert!(todo.hand_over.is_empty());
    inner.check_invariants();
    let todo = inner.give_back(user.id(), held.pop().unwrap(), None, now);
    deliver(todo.hand_over);
    assert!(waits.try_recv().is_ok());
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn a_commit_may_replace_an_available_connection_of_a_user_whose_operations_wait() {
    let now = Instant::now();
    let [busy, waiting, other, writer] = ["busy", "waiting", "other", "writer"].map(identity);
    let mut inner = inner(Limits {
        max_pool_size: 10,
        max_server_connections: 4,
        ..limits()
    });
    use_once(&mut inner, &waiting, now);
    let _held: Vec<_> = (0..3).map(|_| obtain(&mut inner, &busy, now)).collect();
    // The connection of this user is available, but all unreserved connections are in use.
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
