//! Tests of the concurrency limit: who gets a slot, and when.

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Concurrency, Demand, Need, PoolLimits,
    inner::{Inner, ResultReceiver, Returned, Start, Todo},
    slots::{LimitReset, ResetCause, Usage},
    tests::{
        CLIENT, Held, WAIT, connection, deliver, from, identity, inner, limits, obtain, reasons,
        wait,
    },
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityStatus};
use seawall_concurrency::Reason;

const MS: Duration = Duration::from_millis(1);

/// A fixed concurrency limit.
pub(super) fn fixed(limit: u32) -> Concurrency {
    Concurrency::Fixed(NonZeroU32::new(limit).unwrap())
}

/// Limits with room for many connections.
fn wide(concurrency: Concurrency) -> PoolLimits {
    PoolLimits {
        max_pool_size: 100,
        max_server_connections: 100,
        max_connecting: 100,
        wait_queue_size: 1_000,
        renewal: None,
        concurrency,
        ..limits()
    }
}

/// A ready pool with this limit and room for many connections.
fn limited(concurrency: Concurrency) -> Inner {
    inner(wide(concurrency))
}

fn demand(need: Need) -> Demand {
    Demand { need, ..CLIENT }
}

/// Checks out a connection that is available or that the pool establishes. `None` if the operation
/// has to wait.
fn take(inner: &mut Inner, user: &Arc<Identity>, need: Need, now: Instant) -> Option<Held> {
    let (start, todo) = inner.check_out(user, demand(need), now, now + WAIT);
    match start {
        Start::Ready(connection, slot) => Some(Held { connection, slot }),
        Start::Refused(error) => panic!("refused: {error}"),
        Start::Wait(..) => {
            let mut handed = establish(inner, &todo, now);
            handed.pop().map(|(_, held)| held)
        }
    }
}

/// Establishes all connections that `todo` requires. Returns the connections that are handed over,
/// with their users.
fn establish(inner: &mut Inner, todo: &Todo, now: Instant) -> Vec<(Arc<Identity>, Held)> {
    let mut handed = Vec::new();
    for (user, generation) in &todo.establish {
        let todo = inner.established(user, connection(now, *generation), now);
        let served = todo.hand_over.into_iter();
        handed.extend(served.map(|handed| (Arc::clone(&handed.identity), handed.into())));
    }
    handed
}

/// Creates a pool in which operations of the first user hold all slots. Each of the other users has
/// `limit` available connections.
fn full(limit: u32, users: &[&Arc<Identity>], now: Instant) -> (Inner, Vec<Held>) {
    let mut inner = limited(fixed(limit));
    for user in users {
        let held: Vec<_> = (0..limit).map(|_| obtain(&mut inner, user, now)).collect();
        for held in held {
            inner.give_back(user.id(), held, None, now);
        }
    }
    let held = (0..limit).map(|_| obtain(&mut inner, users[0], now));
    let held = held.collect();
    (inner, held)
}

/// Ends the operation `first`, and then each other operation as soon as it is served. Returns the
/// names of the users in the order in which their operations are served.
fn serve_all(inner: &mut Inner, first: (&Arc<Identity>, Held), now: Instant) -> Vec<String> {
    let mut order = Vec::new();
    let mut running = VecDeque::from([(Arc::clone(first.0), first.1)]);
    while let Some((user, held)) = running.pop_front() {
        let todo = inner.give_back(user.id(), held, None, now);
        assert!(
            todo.establish.is_empty(),
            "the operation that gets a freed slot needs no login"
        );
        for handed in todo.hand_over {
            let user = Arc::clone(&handed.identity);
            order.push(user.name().to_owned());
            running.push_back((user, handed.into()));
        }
        inner.check_invariants();
    }
    order
}

#[tokio::test(start_paused = true)]
async fn operations_over_the_concurrency_limit_wait_even_if_connections_are_available() {
    let (user, now) = (identity("u"), Instant::now());
    let (mut inner, mut held) = full(2, &[&user], now);
    let more = obtain_many(&mut inner, &user, 2, now);
    let snapshot = inner.snapshot().concurrency;
    assert_eq!((snapshot.in_progress, snapshot.waiting), (2, 2));
    assert_eq!((snapshot.limit, snapshot.mode), (Some(2), "fixed"));
    let todo = inner.give_back(user.id(), held.pop().unwrap(), None, now);
    assert_eq!((todo.hand_over.len(), todo.establish.len()), (1, 0));
    assert_eq!(inner.snapshot().concurrency.in_progress, 2);
    inner.check_invariants();
    drop(more);
}

fn obtain_many(
    inner: &mut Inner,
    user: &Arc<Identity>,
    count: usize,
    now: Instant,
) -> Vec<ResultReceiver> {
    (0..count)
        .map(|_| wait(inner, user, CLIENT, now).0)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn operations_over_the_concurrency_limit_cause_no_new_connections() {
    let (user, now) = (identity("u"), Instant::now());
    let mut inner = limited(fixed(3));
    let established: usize = (0..50)
        .map(|_| wait(&mut inner, &user, CLIENT, now).1.establish.len())
        .sum();
    assert_eq!(established, 3);
}

/// A *slot* lets one operation run on the server.
#[tokio::test(start_paused = true)]
async fn freed_slots_go_to_users_in_turn_and_their_operations_use_existing_connections() {
    let [a, b, c] = ["a", "b", "c"].map(identity);
    let now = Instant::now();
    let (mut inner, mut held) = full(1, &[&a, &b, &c], now);
    let _crowd = obtain_many(&mut inner, &a, 6, now);
    let _others = [&b, &c].map(|user| obtain_many(&mut inner, user, 2, now));
    let first = held.pop().unwrap();
    let order = serve_all(&mut inner, (&a, first), now).concat();
    assert_eq!(order, "bcabcaaaaa");
}

#[tokio::test(start_paused = true)]
async fn a_user_without_a_slot_may_exceed_the_limit_while_another_user_holds_all_slots() {
    let [a, b] = ["a", "b"].map(identity);
    let now = Instant::now();
    let (mut inner, held) = full(4, &[&a], now);
    let _crowd = obtain_many(&mut inner, &a, 10, now);
    let (_waits, todo) = wait(&mut inner, &b, CLIENT, now);
    assert_eq!(todo.establish.len(), 1);
    let handed = establish(&mut inner, &todo, now);
    assert_eq!(
        handed.len(),
        1,
        "the user has less than its share of the slots"
    );
    inner.check_invariants();
    drop(held);
}

/// Other operations may wait for a commit. So eight slots are reserved for commits and similar
/// commands.
#[tokio::test(start_paused = true)]
async fn commits_use_reserved_slots_while_all_other_slots_are_taken() {
    let (user, now) = (identity("u"), Instant::now());
    let (mut inner, _held) = full(2, &[&user], now);
    let _crowd = obtain_many(&mut inner, &user, 5, now);
    let mut commits = Vec::new();
    for _ in 0..8 {
        commits.push(take(&mut inner, &user, Need::SlotOrReserve, now).unwrap());
        inner.check_invariants();
    }
    let (ninth, todo) = wait(&mut inner, &user, demand(Need::SlotOrReserve), now);
    assert!(todo.hand_over.is_empty());
    assert_eq!(inner.snapshot().concurrency.reserved, 8);
    let todo = inner.give_back(user.id(), commits.pop().unwrap(), None, now);
    assert_eq!(todo.hand_over.len(), 1);
    deliver(todo.hand_over);
    let mut ninth = ninth;
    assert!(ninth.try_recv().is_ok(), "the commit is served first");
}

#[tokio::test(start_paused = true)]
async fn change_streams_and_seawall_s_own_commands_run_at_the_concurrency_limit() {
    let (user, now) = (identity("u"), Instant::now());
    let (mut inner, _held) = full(1, &[&user], now);
    let _crowd = obtain_many(&mut inner, &user, 5, now);
    for need in [Need::LanePermit, Need::Nothing] {
        let held = take(&mut inner, &user, need, now).unwrap();
        inner.check_invariants();
        inner.give_back(user.id(), held, None, now);
    }
    let snapshot = inner.snapshot().concurrency;
    assert_eq!((snapshot.in_progress, snapshot.waiting), (1, 5));
}

/// Runs one operation after another, each of 1 ms, for `ms` milliseconds.
fn run_short(inner: &mut Inner, user: &Arc<Identity>, now: &mut Instant, ms: u32) {
    for n in 1..=ms {
        let held = take(inner, user, Need::Slot, *now).expect("a slot is free");
        *now += MS;
        inner.give_back(user.id(), held, None, *now);
        if n.is_multiple_of(100) {
            inner.tick(*now);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_operation_no_longer_counts_towards_the_concurrency_limit() {
    let [long, short] = ["long", "short"].map(identity);
    let mut now = Instant::now();
    let mut inner = limited(fixed(2));
    run_short(&mut inner, &short, &mut now, 300);
    let slow = take(&mut inner, &long, Need::Slot, now).unwrap();
    run_short(&mut inner, &short, &mut now, 100);
    let also_slow = take(&mut inner, &long, Need::Slot, now).unwrap();
    // Both slots are taken. The first operation has become long, so a third operation can run.
    let third = take(&mut inner, &short, Need::Slot, now).expect("a slot is free");
    let snapshot = inner.snapshot().concurrency;
    assert_eq!((snapshot.in_progress, snapshot.exempt), (2, 1));
    inner.check_invariants();
    inner.give_back(long.id(), slow, None, now);
    assert_eq!(inner.snapshot().concurrency.exempt, 0);
    inner.give_back(long.id(), also_slow, None, now);
    inner.give_back(short.id(), third, None, now);
    assert_eq!(inner.snapshot().concurrency.in_progress, 0);
    inner.check_invariants();
}

/// A long operation becomes *exempt*: it no longer counts towards the concurrency limit.
#[tokio::test(start_paused = true)]
async fn max_exempt_operations_limits_how_many_long_operations_become_exempt() {
    let [long, short] = ["long", "short"].map(identity);
    for (max_exempt_operations, exempt) in [(None, 2), (NonZeroU32::new(1), 1)] {
        let mut now = Instant::now();
        let mut inner = inner(PoolLimits {
            max_pool_size: 100,
            max_server_connections: 100,
            max_exempt_operations,
            concurrency: fixed(2),
            ..limits()
        });
        run_short(&mut inner, &short, &mut now, 300);
        let mut slow = Vec::new();
        for _ in 0..2 {
            slow.extend(take(&mut inner, &long, Need::Slot, now));
            run_short(&mut inner, &short, &mut now, 100);
        }
        // Both operations in `slow` are long. Three operations fit into two slots only if one long
        // operation has become exempt, and four operations fit only if both have.
        slow.extend((0..2).filter_map(|_| take(&mut inner, &short, Need::Slot, now)));
        let snapshot = inner.snapshot().concurrency;
        assert_eq!((snapshot.exempt, slow.len()), (exempt, exempt + 2));
        inner.check_invariants();
    }
}

/// An *exempt* operation no longer counts towards the concurrency limit.
#[tokio::test(start_paused = true)]
async fn one_operation_per_250_ms_becomes_exempt_while_no_operation_completes() {
    let user = identity("u");
    let mut now = Instant::now();
    let mut inner = limited(fixed(8));
    run_short(&mut inner, &user, &mut now, 300);
    let _stalled: Vec<_> = (0..8)
        .map(|_| take(&mut inner, &user, Need::Slot, now).unwrap())
        .collect();
    let _waits = obtain_many(&mut inner, &user, 100, now);
    let mut exempt = Vec::new();
    for _ in 0..10 {
        now += 100 * MS;
        let (_, todo) = inner.tick(now).unwrap();
        drop(establish(&mut inner, &todo, now));
        exempt.push(inner.snapshot().concurrency.exempt);
        inner.check_invariants();
    }
    // At most one operation becomes exempt every 250 ms. The updates run every 100 ms.
    assert_eq!(exempt, [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]);
}

/// An *exempt* operation no longer counts towards the concurrency limit. Later statements of a
/// transaction may use the reserve while all slots are taken.
#[tokio::test(start_paused = true)]
async fn operations_become_exempt_while_only_reserved_or_exempt_operations_complete() {
    let user = identity("u");
    let mut now = Instant::now();
    let mut inner = limited(fixed(8));
    run_short(&mut inner, &user, &mut now, 300);
    let mut blocked: Vec<_> = (0..8)
        .map(|_| take(&mut inner, &user, Need::Slot, now).unwrap())
        .collect();
    let _waits = obtain_many(&mut inner, &user, 100, now);
    for _ in 0..10 {
        let statement = take(&mut inner, &user, Need::SlotOrReserve, now).unwrap();
        assert_eq!(inner.snapshot().concurrency.reserved, 1);
        now += 100 * MS;
        inner.give_back(user.id(), statement, None, now);
        inner.tick(now);
        inner.check_invariants();
    }
    // One operation becomes exempt every 250 ms. A statement ends every 100 ms.
    assert_eq!(inner.snapshot().concurrency.exempt, 3);
    for exempt in blocked.drain(..3) {
        now += 100 * MS;
        inner.give_back(user.id(), exempt, None, now);
        inner.tick(now);
    }
    // The three exempt operations have ended, and another operation has become exempt.
    assert_eq!(inner.snapshot().concurrency.exempt, 1);
}

/// An *exempt* operation no longer counts towards the concurrency limit, so its slot becomes free.
#[tokio::test(start_paused = true)]
async fn operations_that_hold_slots_become_exempt_before_operations_in_the_reserve() {
    let user = identity("u");
    let mut now = Instant::now();
    let mut inner = limited(fixed(1));
    run_short(&mut inner, &user, &mut now, 300);
    let needs = [Need::Slot, Need::SlotOrReserve, Need::SlotOrReserve];
    let [first, _statement, last] = needs.map(|need| take(&mut inner, &user, need, now).unwrap());
    for unused in [first, last] {
        let returned = Returned::unused(unused.connection, unused.slot);
        inner.check_in(user.id(), returned, now);
    }
    let _long = take(&mut inner, &user, Need::Slot, now).unwrap();
    let _waits = wait(&mut inner, &user, CLIENT, now);
    let mut handed = 0;
    for _ in 0..3 {
        now += 100 * MS;
        handed += inner.tick(now).unwrap().1.hand_over.len();
    }
    let snapshot = inner.snapshot().concurrency;
    assert_eq!((handed, snapshot.reserved, snapshot.exempt), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_new_server_type_or_a_clear_of_the_pool_resets_the_concurrency_limit() {
    let user = identity("u");
    let mut now = Instant::now();
    let mut inner = limited(Concurrency::Auto);
    assert_eq!(inner.snapshot().concurrency.limit, Some(32));
    run_short(&mut inner, &user, &mut now, 100);
    assert!(inner.snapshot().concurrency.reason.is_some());
    inner.reset_limit(now);
    assert!(inner.snapshot().concurrency.reason.is_none());
    run_short(&mut inner, &user, &mut now, 100);
    assert!(inner.clear(inner.generation(), now).is_some());
    let snapshot = inner.snapshot().concurrency;
    assert_eq!((snapshot.limit, snapshot.reason), (Some(32), None));
    inner.check_invariants();
}

/// An eighth of the connections is reserved for commits and similar commands.
#[tokio::test(start_paused = true)]
async fn the_concurrency_limit_is_at_most_the_number_of_connections_that_are_not_reserved() {
    for (max_server_connections, limit) in [(4, 4), (8, 7), (16, 14), (32, 28), (100, 32)] {
        let inner = inner(PoolLimits {
            max_server_connections,
            ..wide(Concurrency::Auto)
        });
        assert_eq!(inner.snapshot().concurrency.limit, Some(limit));
    }
}

/// A pool whose concurrency limit has fallen from 32 to 16, because all replies came too late.
fn lowered(user: &Arc<Identity>, now: &mut Instant) -> Inner {
    let mut inner = limited(Concurrency::Auto);
    for n in 1..=40 {
        let held = take(&mut inner, user, Need::Slot, *now).unwrap();
        *now += 20 * MS;
        let usage = Usage {
            server_time: Some(20 * MS),
            is_late: true,
            ..Usage::default()
        };
        let returned = Returned {
            usage,
            ..Returned::unused(held.connection, held.slot)
        };
        inner.check_in(user.id(), returned, *now);
        if n % 5 == 0 {
            inner.tick(*now);
        }
    }
    assert_eq!(inner.snapshot().concurrency.limit, Some(16));
    inner
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_concurrency_mode_resets_the_limit_to_its_initial_value() {
    let user = identity("u");
    for other in [fixed(8), Concurrency::Off] {
        let mut now = Instant::now();
        let mut inner = lowered(&user, &mut now);
        let mut limit_with = |concurrency| {
            inner.set_limits(wide(concurrency), now);
            inner.snapshot().concurrency.limit
        };
        assert_eq!(limit_with(Concurrency::Auto), Some(16), "the same mode");
        assert_ne!(limit_with(other), Some(16));
        assert_eq!(limit_with(Concurrency::Auto), Some(32));
        let snapshot = inner.snapshot().concurrency;
        assert_eq!(snapshot.settled, Some(32));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_that_changes_the_concurrency_limit_is_reported_with_its_cause() {
    type Change = fn(&mut Inner, Instant) -> Todo;
    let user = identity("u");
    let cases: [(ResetCause, u32, Change); 3] = [
        (ResetCause::Clear, 32, |inner, now| {
            inner.clear(inner.generation(), now).unwrap()
        }),
        (ResetCause::ServerType, 32, Inner::reset_limit),
        (ResetCause::Ceiling, 7, |inner, now| {
            let mut limits = wide(Concurrency::Auto);
            limits.max_server_connections = 8;
            inner.set_limits(limits, now)
        }),
    ];
    for (cause, limit, change) in cases {
        let mut now = Instant::now();
        let mut inner = lowered(&user, &mut now);
        let reset = change(&mut inner, now).limit_reset;
        let expected = LimitReset {
            cause,
            previous: Some(16),
            limit,
        };
        assert_eq!(reset, Some(expected));
        let snapshot = inner.snapshot().concurrency;
        assert_eq!(snapshot.settled, Some(limit));
        assert_eq!(snapshot.reason, Some(Reason::Reset));
        // The second reset changes nothing.
        assert_eq!(inner.reset_limit(now).limit_reset, None);
        assert_eq!(inner.snapshot().concurrency.reason, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_concurrency_mode_is_reported_as_a_reset_only_if_it_is_auto() {
    let now = Instant::now();
    let mut inner = limited(Concurrency::Auto);
    let mut reset_with = |concurrency| inner.set_limits(wide(concurrency), now).limit_reset;
    let to_auto = |previous| {
        Some(LimitReset {
            cause: ResetCause::Mode,
            previous,
            limit: 32,
        })
    };
    assert_eq!(reset_with(fixed(8)), None);
    assert_eq!(reset_with(Concurrency::Auto), to_auto(Some(8)));
    assert_eq!(reset_with(Concurrency::Off), None);
    assert_eq!(reset_with(Concurrency::Auto), to_auto(None));
    assert_eq!(reset_with(Concurrency::Auto), None);
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_limit_is_updated_only_while_there_are_operations() {
    let user = identity("u");
    let mut now = Instant::now();
    let mut inner = limited(Concurrency::Auto);
    let (start, todo) = inner.check_out(&user, CLIENT, now, now + WAIT);
    assert!(todo.must_wake_ticks);
    let held = establish(&mut inner, &todo, now).pop().unwrap().1;
    drop(start);
    now += 100 * MS;
    assert!(inner.tick(now).is_some());
    inner.give_back(user.id(), held, None, now);
    assert!(inner.tick(now + 100 * MS).is_some());
    assert!(inner.tick(now + 200 * MS).is_none());
    let (start, todo) = inner.check_out(&user, from(1), now + 30_000 * MS, now + WAIT);
    assert!(matches!(start, Start::Ready(..)) && todo.must_wake_ticks);
}

/// A *slot* lets one operation run on the server. All users have equal shares of the slots.
#[tokio::test(start_paused = true)]
async fn if_a_user_has_its_full_share_of_slots_the_user_itself_counts_as_the_cause_of_its_wait() {
    let [greedy, other] = ["greedy", "other"].map(identity);
    let now = Instant::now();
    let (mut inner, _held) = full(4, &[&greedy], now);
    let _crowd = obtain_many(&mut inner, &greedy, 6, now);
    let waits = inner.waits(now + 50 * MS);
    let own: Vec<_> = waits.for_own.iter().map(|(user, _)| user.name()).collect();
    assert_eq!((own, waits.for_others), (vec!["greedy"], Duration::ZERO));
    let _other = obtain_many(&mut inner, &other, 1, now);
    let waits = inner.waits(now + 50 * MS);
    assert_eq!((waits.for_own.len(), waits.for_others), (1, 50 * MS));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ended_while_its_user_waited_for_a_slot_is_not_handed_over() {
    let now = Instant::now();
    let [a, b] = ["a", "b"].map(identity);
    let limits = PoolLimits {
        concurrency: fixed(1),
        ..limits()
    };
    let mut inner = Inner::new(limits, |_| true, 1, now);
    inner.ready();
    let waiting = obtain(&mut inner, &b, now);
    inner.give_back(b.id(), waiting, None, now);
    let held = obtain(&mut inner, &a, now);
    let (_waits, todo) = wait(&mut inner, &b, CLIENT, now);
    assert!(todo.establish.is_empty());
    let todo = inner.give_back(a.id(), held, None, now + MS);
    assert!(todo.hand_over.is_empty());
    assert_eq!((todo.close.len(), todo.establish.len()), (1, 1));
    inner.check_invariants();
}

/// A *slot* lets one operation run on the server. All users have equal shares of the slots. A user
/// below its share may run operations even if more operations then run than there are slots.
#[tokio::test(start_paused = true)]
async fn a_user_below_its_equal_share_may_run_operations_while_all_slots_are_taken() {
    let [greedy, other] = ["greedy", "other"].map(identity);
    let now = Instant::now();
    let (mut inner, mut held) = full(4, &[&greedy, &other], now);
    let _crowd = obtain_many(&mut inner, &greedy, 6, now);
    // The other user may immediately use its share: half of the slots.
    let first = take(&mut inner, &other, Need::Slot, now).unwrap();
    let _second = take(&mut inner, &other, Need::Slot, now).unwrap();
    let _third = wait(&mut inner, &other, CLIENT, now);
    assert_eq!(inner.snapshot().concurrency.in_progress, 6);
    inner.check_invariants();
    let todo = inner.give_back(other.id(), first, None, now);
    let users: Vec<_> = todo.hand_over.iter().map(|h| h.identity.name()).collect();
    assert_eq!(users, ["other"]);
    // The greedy user gets no slot until fewer operations run than the limit allows.
    for _ in 0..2 {
        let todo = inner.give_back(greedy.id(), held.pop().unwrap(), None, now);
        assert!(todo.hand_over.is_empty());
    }
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn forty_users_with_one_operation_each_do_not_exceed_the_concurrency_limit() {
    let users: Vec<_> = (0..40).map(|n| identity(&format!("u{n}"))).collect();
    let now = Instant::now();
    let users: Vec<_> = users.iter().collect();
    let mut inner = limited(fixed(4));
    for user in &users {
        let held = obtain(&mut inner, user, now);
        inner.give_back(user.id(), held, None, now);
    }
    for user in &users {
        drop(inner.check_out(user, CLIENT, now, now + WAIT));
        inner.check_invariants();
    }
    let snapshot = inner.snapshot().concurrency;
    assert_eq!((snapshot.in_progress, snapshot.waiting), (4, 36));
}

#[tokio::test(start_paused = true)]
async fn waiting_commits_of_one_user_leave_freed_slots_to_operations_of_other_users() {
    let [hostile, other] = ["hostile", "other"].map(identity);
    let now = Instant::now();
    let (mut inner, mut held) = full(1, &[&hostile, &other], now);
    // Operations that may unblock others fill the reserve, and six more such operations wait.
    let _reserve: Vec<_> = (0..8)
        .map(|_| take(&mut inner, &hostile, Need::SlotOrReserve, now))
        .collect();
    let urgent = demand(Need::SlotOrReserve);
    let _urgent: Vec<_> = (0..6)
        .map(|_| wait(&mut inner, &hostile, urgent, now).0)
        .collect();
    let _others = obtain_many(&mut inner, &other, 3, now);
    let first = held.pop().unwrap();
    let order = serve_all(&mut inner, (&hostile, first), now);
    let others = order.iter().take(6).filter(|name| *name == "other");
    assert!(others.count() >= 2, "{order:?}");
}

/// A long operation no longer counts towards the concurrency limit, so its slot becomes free.
#[tokio::test(start_paused = true)]
async fn waiters_get_slots_of_long_operations_when_a_new_operation_arrives() {
    let [long, short] = ["long", "short"].map(identity);
    let mut now = Instant::now();
    let mut inner = limited(fixed(4));
    run_short(&mut inner, &short, &mut now, 300);
    let _slow: Vec<_> = (0..3)
        .map(|_| take(&mut inner, &long, Need::Slot, now).unwrap())
        .collect();
    run_short(&mut inner, &short, &mut now, 9);
    let _fourth = take(&mut inner, &long, Need::Slot, now).unwrap();
    let (mut waiting, todo) = wait(&mut inner, &long, CLIENT, now);
    drop(establish(&mut inner, &todo, now));
    assert!(waiting.try_recv().is_err(), "no operation is long yet");
    now += 10 * MS;
    let (_, todo) = inner.check_out(&short, CLIENT, now, now + WAIT);
    let handed: Vec<_> = todo.hand_over.into_iter().collect();
    assert_eq!(
        handed.len() + todo.establish.len(),
        1,
        "the waiter is served"
    );
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn operations_of_disconnected_clients_do_not_lower_the_concurrency_limit() {
    let user = identity("u");
    let mut now = Instant::now();
    let mut inner = limited(Concurrency::Auto);
    run_short(&mut inner, &user, &mut now, 300);
    for n in 1..=3_000 {
        let held = take(&mut inner, &user, Need::Slot, now).unwrap();
        now += MS;
        let usage = Usage {
            server_time: Some(MS),
            is_late: true,
            ..Usage::default()
        };
        let returned = Returned {
            usage,
            ..Returned::unused(held.connection, held.slot)
        };
        inner.check_in(user.id(), returned, now);
        if n % 100 == 0 {
            inner.tick(now);
        }
    }
    assert_eq!(inner.snapshot().concurrency.settled, Some(32));
}

/// An operation *expires* if it exceeds its time limit.
#[tokio::test(start_paused = true)]
async fn expired_operations_lower_the_concurrency_limit_only_if_they_took_the_median_or_longer() {
    let user = identity("u");
    // The median is 1 ms. An operation that waited for a slot has only a part of its time left.
    for (time, settled) in [(2 * MS, 16), (MS / 2, 32)] {
        let mut now = Instant::now();
        let mut inner = limited(Concurrency::Auto);
        run_short(&mut inner, &user, &mut now, 300);
        for n in 1..=400 {
            let held = take(&mut inner, &user, Need::Slot, now).unwrap();
            now += time;
            let mut returned = Returned::unused(held.connection, held.slot);
            returned.usage.server_time = Some(time);
            returned.usage.has_expired = true;
            inner.check_in(user.id(), returned, now);
            if n % 50 == 0 {
                inner.tick(now);
            }
        }
        assert_eq!(inner.snapshot().concurrency.settled, Some(settled));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_a_user_that_waits_for_a_slot_is_not_closed_for_another_user() {
    let users = ["a", "b", "c", "d", "e"].map(identity);
    let [a, b, c, d, e] = &users;
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        concurrency: fixed(1),
        ..limits()
    });
    for user in [a, b, c, d] {
        let held = obtain(&mut inner, user, now);
        inner.give_back(user.id(), held, None, now);
    }
    let held = obtain(&mut inner, a, now);
    let _waits = [b, c, d].map(|user| wait(&mut inner, user, CLIENT, now));
    // `e` gets no connection: `max_server_connections` is reached, and the users of the available
    // connections wait for a slot.
    let (_last, todo) = wait(&mut inner, e, CLIENT, now);
    assert_eq!((todo.close.len(), todo.establish.len()), (0, 0));
    let todo = inner.give_back(a.id(), held, None, now);
    assert_eq!((todo.hand_over.len(), todo.close.len()), (1, 1));
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn operations_from_before_a_clear_do_not_count_as_in_progress() {
    let user = identity("u");
    let now = Instant::now();
    let (mut inner, mut held) = full(4, &[&user], now);
    assert!(inner.clear(inner.generation(), now).is_some());
    inner.ready();
    inner.check_invariants();
    assert_eq!(inner.snapshot().concurrency.in_progress, 0);
    let new = take(&mut inner, &user, Need::Slot, now).unwrap();
    inner.give_back(user.id(), held.pop().unwrap(), None, now);
    assert_eq!(inner.snapshot().concurrency.in_progress, 1);
    inner.give_back(user.id(), new, None, now);
    inner.check_invariants();
}

/// A server has *stalled* if none of its operations completes for some time.
#[tokio::test(start_paused = true)]
async fn a_long_operation_after_an_idle_time_does_not_count_as_a_stall_of_the_server() {
    let user = identity("u");
    let mut now = Instant::now();
    let mut inner = limited(Concurrency::Auto);
    run_short(&mut inner, &user, &mut now, 300);
    while inner.tick(now).is_some() {
        now += 100 * MS;
    }
    now += 10_000 * MS;
    let _long = take(&mut inner, &user, Need::Slot, now).unwrap();
    now += 100 * MS;
    assert!(inner.tick(now).is_some());
    let reason = inner.snapshot().concurrency.reason.unwrap();
    assert_eq!(reason.as_str(), "nothing_waits");
}

#[tokio::test(start_paused = true)]
async fn a_commit_gets_the_only_connection_before_a_later_change_stream_operation() {
    let user = identity("u");
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        max_pool_size: 1,
        max_connecting: 1,
        concurrency: fixed(4),
        ..limits()
    });
    let held = obtain(&mut inner, &user, now);
    let (_commit, _) = wait(&mut inner, &user, demand(Need::SlotOrReserve), now);
    let (_stream, _) = wait(&mut inner, &user, demand(Need::LanePermit), now);
    inner.give_back(user.id(), held, None, now);
    let snapshot = inner.snapshot();
    assert_eq!((snapshot.wait_queue, snapshot.concurrency.waiting), (1, 0));
    inner.check_invariants();
}

/// A *slot* lets one operation run on the server. A change stream needs no slot.
#[tokio::test(start_paused = true)]
async fn change_streams_do_not_count_towards_a_user_s_share_of_the_slots() {
    let [busy, other] = ["busy", "other"].map(identity);
    let now = Instant::now();
    let (mut inner, _held) = full(2, &[&busy, &other], now);
    let _crowd = obtain_many(&mut inner, &busy, 4, now);
    let _stream = take(&mut inner, &other, Need::LanePermit, now).unwrap();
    // The other user has no slot, so it may exceed the limit.
    assert!(take(&mut inner, &other, Need::Slot, now).is_some());
    inner.check_invariants();
}

#[tokio::test(start_paused = true)]
async fn at_the_concurrency_limit_a_busy_user_loses_an_idle_connection_to_another_user() {
    let [busy, other] = ["busy", "other"].map(identity);
    let now = Instant::now();
    let mut inner = inner(PoolLimits {
        max_pool_size: 4,
        concurrency: fixed(2),
        ..limits()
    });
    let held: Vec<_> = (0..2).map(|_| obtain(&mut inner, &busy, now)).collect();
    let streams = (0..2).map(|_| take(&mut inner, &busy, Need::LanePermit, now).unwrap());
    for stream in streams.collect::<Vec<_>>() {
        inner.give_back(busy.id(), stream, None, now);
    }
    let _crowd = obtain_many(&mut inner, &busy, 4, now);
    let (_waits, todo) = wait(&mut inner, &other, CLIENT, now);
    assert_eq!((todo.close.len(), todo.establish.len()), (1, 1));
    assert_eq!(establish(&mut inner, &todo, now).len(), 1);
    inner.check_invariants();
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_user_that_no_longer_exists_gets_no_connection_when_a_slot_becomes_free() {
    let now = Instant::now();
    let [first, removed] = ["first", "removed"].map(identity);
    let (mut inner, mut held) = full(1, &[&first, &removed], now);
    let (start, _) = inner.check_out(&removed, demand(Need::Slot), now, now + WAIT);
    assert!(matches!(start, Start::Wait(..)));
    removed.end(IdentityStatus::Gone);
    let todo = inner.give_back(first.id(), held.pop().unwrap(), None, now);
    assert!(todo.hand_over.is_empty());
    assert_eq!(reasons(&todo), [CloseReason::Unauthorized]);
}
