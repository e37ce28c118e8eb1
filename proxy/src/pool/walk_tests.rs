//! A random walk: performs random steps on a pool (an `Inner`), and checks the pool's invariants
//! after each step.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;
use tokio::time::Instant;

use super::{
    CheckOutError, Concurrency, Demand, Need, Overload, PoolLimits,
    inner::{Inner, ResultReceiver, Start, Todo},
    queue::Ticket,
    slots_tests::fixed,
    tests::{Held, WAIT, connection, deliver, from, identity, inner, limits, suspect},
};
use crate::observe::CloseReason;
use seawall_auth::Identity;
use seawall_transport::connection::Generation;

/// One step of a random walk.
#[derive(Clone, Debug)]
enum WalkStep {
    CheckOut(usize, u8, Need),
    CheckIn(usize, bool),
    Establish(bool),
    Leave(usize),
    Clear,
    Suspect(usize),
    Recover,
    Maintain,
    Wait(u64),
    Tick,
}

fn need() -> impl Strategy<Value = Need> {
    prop::sample::select(Need::ALL.to_vec())
}

fn step() -> impl Strategy<Value = WalkStep> {
    prop_oneof![
        8 => (0usize..3, 0u8..3, need()).prop_map(|(user, address, need)| WalkStep::CheckOut(user, address, need)),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(n, clean)| WalkStep::CheckIn(n, clean)),
        5 => any::<bool>().prop_map(WalkStep::Establish),
        2 => any::<usize>().prop_map(WalkStep::Leave),
        1 => Just(WalkStep::Clear),
        2 => (0usize..3).prop_map(WalkStep::Suspect),
        2 => Just(WalkStep::Recover),
        1 => Just(WalkStep::Maintain),
        1 => (0u64..90_000).prop_map(WalkStep::Wait),
        2 => Just(WalkStep::Tick),
    ]
}

/// The state of a random walk: the pool, the connections that are checked out, the connections that
/// the pool asked to establish, and the operations that wait for a connection.
struct Walk {
    inner: Inner,
    users: Vec<Arc<Identity>>,
    now: Instant,
    held: Vec<(Arc<Identity>, Held)>,
    pending: Vec<(Arc<Identity>, Generation)>,
    waits: Vec<(Arc<Identity>, Ticket, ResultReceiver)>,
}

impl Walk {
    fn perform(&mut self, todo: Todo) {
        self.pending.extend(todo.establish);
        deliver(todo.hand_over);
        todo.fail
            .into_iter()
            .for_each(|(grant, error)| drop(grant.send(Err(error))));
        let mut i = 0;
        while i < self.waits.len() {
            match self.waits[i].2.try_recv() {
                Ok(grant) => {
                    let (user, _, _) = self.waits.swap_remove(i);
                    self.held.extend(
                        grant
                            .ok()
                            .map(|(connection, slot)| (user, Held { connection, slot })),
                    );
                }
                Err(_) => i += 1,
            }
        }
    }

    fn take(&mut self, step: WalkStep) {
        let now = self.now;
        let todo = match step {
            WalkStep::CheckOut(user, address, need) => {
                let user = Arc::clone(&self.users[user]);
                let demand = Demand {
                    need,
                    ..from(address)
                };
                let (start, todo) = self.inner.check_out(&user, demand, now, now + WAIT);
                match start {
                    Start::Ready(connection, slot) => {
                        self.held.push((user, Held { connection, slot }));
                    }
                    Start::Wait(ticket, receiver) => self.waits.push((user, ticket, receiver)),
                    Start::Refused(_) => {}
                }
                todo
            }
            WalkStep::CheckIn(n, clean) if !self.held.is_empty() => {
                let (user, held) = self.held.swap_remove(n % self.held.len());
                let perished = (!clean).then_some(CloseReason::Broken);
                self.inner.give_back(user.id(), held, perished, now)
            }
            WalkStep::Establish(works) if !self.pending.is_empty() => {
                let (user, generation) = self.pending.remove(0);
                if works {
                    self.inner
                        .established(&user, connection(now, generation), now)
                } else {
                    self.inner.not_established(
                        &user,
                        &CheckOutError::Overload(Overload::TimedOut),
                        now,
                    )
                }
            }
            WalkStep::Leave(n) if !self.waits.is_empty() => {
                let (user, ticket, _) = self.waits.swap_remove(n % self.waits.len());
                self.inner.leave(user.id(), ticket, now);
                Todo::default()
            }
            WalkStep::Suspect(user) => {
                let user = Arc::clone(&self.users[user]);
                suspect(&mut self.inner, &user, now);
                Todo::default()
            }
            WalkStep::Recover => self.inner.recover(now, now),
            WalkStep::Clear => {
                let todo = self.inner.clear(self.inner.generation(), now).unwrap();
                self.inner.ready();
                todo
            }
            WalkStep::Maintain => self.inner.maintain(now, |_| false),
            WalkStep::Tick => self
                .inner
                .tick(now)
                .map_or_else(Todo::default, |tick| tick.1),
            WalkStep::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                Todo::default()
            }
            _ => Todo::default(),
        };
        self.perform(todo);
        self.inner.check_invariants();
    }
}

proptest! {
    #[test]
    fn pool_invariants_hold_after_any_sequence_of_steps(
        concurrency in prop::sample::select(vec![
            Concurrency::Off, Concurrency::Auto, fixed(1), fixed(2),
        ]),
        // The pool reserves one of nine connections, and none of four.
        max_server_connections in prop::sample::select(vec![4, 9]),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _guard = runtime.enter();
        let users = (0..3).map(|n| identity(&format!("u{n}"))).collect();
        let mut walk = Walk {
            inner: inner(PoolLimits { concurrency, max_server_connections, ..limits() }),
            users, now: Instant::now(),
            held: vec![], pending: vec![], waits: vec![],
        };
        steps.into_iter().for_each(|step| walk.take(step));
        // Check in all connections. After that, the pool must count no connection as in use.
        let todo = walk.inner.recover(walk.now, walk.now);
        walk.perform(todo);
        while let Some((user, held)) = walk.held.pop() {
            let todo = walk.inner.give_back(user.id(), held, None, walk.now);
            walk.perform(todo);
        }
        let snapshot = walk.inner.snapshot();
        prop_assert_eq!(snapshot.in_use, 0);
        let slots = snapshot.concurrency;
        prop_assert_eq!((slots.in_progress, slots.reserved, slots.exempt), (0, 0, 0));
    }
}
