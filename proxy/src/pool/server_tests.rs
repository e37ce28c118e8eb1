//! Tests of a pool against a scripted server that replies `{ok: 1}` to every command.

use std::{
    collections::HashSet,
    future::{pending, poll_fn},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use bson::{RawDocument, rawdoc};
use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::{
    runtime::Handle,
    time::{Instant, advance, pause, timeout},
};

use super::{
    CheckOutError, Concurrency, Cost, PoolLimits, ServerPool, Suspicion, chance,
    slots::WINDOW,
    tests::{CLIENT, identity, limits},
};
use crate::{
    observe::{CloseReason, MemoryLog, Observer, Recorder},
    pool::Checkout,
    scripted::{Response, ScriptedServer},
};
use seawall_auth::{Identity, NonceSource};
use seawall_transport::{
    Sharer,
    connection::{ConnectionId, Connector},
};

/// A time limit that is longer than any step of these tests. No test waits until it expires.
const LIMIT: Duration = Duration::from_secs(10);

/// A server, and a pool of connections to it.
struct Scene {
    pool: Arc<ServerPool>,
    connector: Connector,
    user: Arc<Identity>,
    server: ScriptedServer,
}

fn reply_ok(_command: &RawDocument) -> Response {
    Response::Reply(rawdoc! { "ok": 1, "maxWireVersion": 17 })
}

impl Scene {
    /// Starts a server, and creates a paused pool.
    async fn paused(limits: PoolLimits) -> Self {
        let server = ScriptedServer::start(|| reply_ok).await;
        let nonces = Arc::new(NonceSource::new().unwrap());
        let connector = Connector::new(None, Vec::new(), LIMIT, nonces);
        let metrics = Recorder::without_shapes().server("test");
        let (address, runtime) = (server.address().clone(), Handle::current());
        Self {
            pool: ServerPool::new(address, limits, connector.clone(), metrics, runtime),
            connector,
            user: identity("u"),
            server,
        }
    }

    async fn ready(limits: PoolLimits) -> Self {
        let scene = Self::paused(limits).await;
        scene.pool.ready();
        scene
    }

    /// Like [`Scene::ready`], but `observer` records the metrics of the pool.
    async fn observed(observer: &Observer) -> Self {
        let mut scene = Self::paused(limits()).await;
        let (address, runtime) = (scene.server.address().clone(), Handle::current());
        let metrics = observer.recorder.server("test");
        scene.pool = ServerPool::new(address, limits(), scene.connector.clone(), metrics, runtime);
        scene.pool.ready();
        scene
    }

    async fn with_one_connection() -> Self {
        Self::ready(PoolLimits {
            max_pool_size: 1,
            ..limits()
        })
        .await
    }

    async fn check_out(&self) -> Result<Checkout, CheckOutError> {
        let deadline = Instant::now() + LIMIT;
        let checkout = self.pool.check_out(&self.user, CLIENT, deadline);
        checkout.await
    }

    /// Checks a connection out and in again.
    async fn use_once(&self) -> ConnectionId {
        let mut checkout = self.check_out().await.unwrap();
        let id = checkout.begin().id();
        checkout.finish();
        id
    }

    fn available(&self) -> usize {
        self.pool.snapshot().available
    }
}

#[tokio::test]
async fn a_connection_that_was_checked_in_is_checked_out_again() {
    let scene = Scene::ready(limits()).await;
    let first = scene.use_once().await;
    assert_eq!(scene.use_once().await, first);
    assert_eq!(scene.server.accepted(), 1);
}

/// The gauges of the pool, with their values.
fn gauges(observer: &Observer) -> Vec<String> {
    const NAMES: [&str; 5] = [
        "seawall_server_connections{",
        "seawall_wait_queue_length{",
        "seawall_awaiting_operations{",
        "seawall_concurrency_limit{",
        "seawall_concurrency_operations{",
    ];
    let text = observer.exporter.render();
    let is_gauge = |line: &&str| NAMES.iter().any(|name| line.starts_with(name));
    let lines = text.lines().filter(is_gauge).map(str::to_owned);
    lines.collect()
}

#[track_caller]
fn assert_gauge(observer: &Observer, line: &str) {
    let gauges = gauges(observer);
    assert!(gauges.iter().any(|gauge| gauge == line), "{gauges:?}");
}

const IN_USE: &str = r#"seawall_server_connections{server="test",state="in_use"} 1"#;

#[tokio::test]
async fn gauges_of_a_removed_server_become_zero() {
    let observer = Observer::without_shapes();
    let scene = Scene::observed(&observer).await;
    let held = scene.check_out().await.unwrap();
    drop(scene.pool.snapshot());
    assert_gauge(&observer, IN_USE);
    scene.pool.close();
    drop(held);
    drop(scene);
    let gauges = gauges(&observer);
    assert_eq!(gauges.iter().find(|line| !line.ends_with(" 0")), None);
}

/// A pool can exist longer than its server, for example because a cursor of the server keeps it.
#[tokio::test]
async fn gauges_of_a_removed_server_become_zero_although_its_pool_is_kept() {
    let observer = Observer::without_shapes();
    let scene = Scene::observed(&observer).await;
    scene.pool.set_limits(&PoolLimits {
        concurrency: Concurrency::Fixed(NonZeroU32::new(8).unwrap()),
        ..limits()
    });
    let permit = scene.pool.lane().enter((1, Sharer::Local)).await;
    let mut held = scene.check_out().await.unwrap();
    held.keep_permit(permit);
    let mut waiting = Box::pin(scene.check_out());
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(scene.pool.snapshot());
    for line in [
        IN_USE,
        r#"seawall_server_connections{server="test",state="pending"} 1"#,
        r#"seawall_awaiting_operations{server="test",state="running"} 1"#,
        r#"seawall_concurrency_operations{server="test",state="in_progress"} 1"#,
        r#"seawall_concurrency_limit{server="test"} 8"#,
    ] {
        assert_gauge(&observer, line);
    }
    scene.pool.close();
    assert_gauge(&observer, IN_USE);
    drop(held);
    let become_zero = async {
        while gauges(&observer).iter().any(|line| !line.ends_with(" 0")) {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, become_zero).await.unwrap();
}

#[tokio::test]
async fn a_discarded_connection_is_closed_even_if_its_command_got_the_complete_reply() {
    let scene = Scene::ready(limits()).await;
    let mut checkout = scene.check_out().await.unwrap();
    checkout.begin();
    checkout.finish();
    checkout.discard(CloseReason::Broken);
    drop(checkout);
    assert_eq!(scene.available(), 0);
}

#[tokio::test]
async fn a_paused_pool_refuses_checkouts_until_it_is_ready() {
    let scene = Scene::paused(limits()).await;
    assert_eq!(scene.pool.snapshot().state, "paused");
    assert!(matches!(
        scene.check_out().await,
        Err(CheckOutError::Paused)
    ));
    scene.pool.ready();
    scene.use_once().await;
}

/// A clear of the pool begins a new *generation* of connections.
#[tokio::test]
async fn a_pool_is_not_cleared_twice_for_failures_in_the_same_generation() {
    let scene = Scene::ready(limits()).await;
    scene.use_once().await;
    let generation = scene.pool.generation();
    assert!(scene.pool.clear(generation));
    assert_eq!(scene.pool.generation(), generation.next());
    assert!(!scene.pool.clear(generation));
    assert_eq!(scene.pool.generation(), generation.next());
    assert_eq!(scene.available(), 0);
    scene.pool.ready();
    let mut checkout = scene.check_out().await.unwrap();
    assert_eq!(checkout.begin().generation, generation.next());
}

#[tokio::test]
async fn two_clears_of_a_pool_for_the_same_failure_are_counted_as_one() {
    let observer = Observer::without_shapes();
    let scene = Scene::observed(&observer).await;
    let generation = scene.pool.generation();
    assert!(scene.pool.clear(generation));
    assert!(!scene.pool.clear(generation));
    let text = observer.exporter.render();
    let line = "seawall_pool_clears_total{server=\"test\"} 1\n";
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn a_cleared_pool_gives_up_connection_attempts_that_wait_for_their_start_times() {
    // At one connection per second, the last of the 3,000 connections below can begin only after 50
    // minutes.
    let scene = Scene::ready(PoolLimits {
        connections_per_second: NonZeroU32::new(1),
        max_pool_size: 3_600,
        max_connecting: 3_600,
        max_server_connections: 3_600,
        wait_queue_size: 3_600,
        ..limits()
    })
    .await;
    let mut waits: Vec<_> = (0..3_000).map(|_| Box::pin(scene.check_out())).collect();
    for wait in &mut waits {
        assert!(wait.as_mut().now_or_never().is_none());
    }
    assert_eq!(scene.pool.snapshot().pending, 3_000);
    // Some connections are established at once. The others wait for their start times.
    let is_first_there = async || scene.available() + scene.pool.snapshot().in_use > 0;
    while !is_first_there().await {
        tokio::task::yield_now().await;
    }
    assert!(scene.pool.clear(scene.pool.generation()));
    let are_given_up = async {
        while scene.pool.snapshot().pending > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, are_given_up).await.unwrap();
    scene.pool.ready();
    // A new connection does not wait for the start times of the connections that were given up.
    scene.use_once().await;
}

/// All connections to a server share `pool.connections_per_second`.
#[tokio::test]
async fn connections_for_min_pool_size_do_not_delay_an_operation_of_another_user() {
    let scene = Scene::ready(PoolLimits {
        min_pool_size: 2,
        max_server_connections: 200,
        connections_per_second: NonZeroU32::new(10),
        ..limits()
    })
    .await;
    for n in 0..50 {
        let connection = scene.connector.connect(scene.pool.address()).await.unwrap();
        scene.pool.adopt(&identity(&format!("u{n}")), connection);
    }
    let before = scene.server.accepted();
    assert!(scene.pool.clear(scene.pool.generation()));
    scene.pool.ready();
    scene.pool.maintain();
    scene.use_once().await;
    // The users lack 100 connections for `min_pool_size`. The operation did not wait until half of
    // them were established.
    let established = scene.server.accepted() - before;
    assert!(established < 50, "{established}");
}

#[tokio::test]
async fn a_server_is_suspected_until_it_replies_to_a_later_probe() {
    let scene = Scene::ready(limits()).await;
    drop((scene.use_once().await, scene.check_out().await));
    let probed_before = Instant::now();
    let generation = scene.pool.generation();
    assert_eq!(scene.pool.suspected_for(Instant::now()), None);
    let suspicion = scene.pool.suspect(generation, &scene.user);
    assert_eq!(suspicion, Suspicion::Probe);
    let later = Instant::now() + LIMIT;
    assert!(scene.pool.suspected_for(later) >= Some(LIMIT));
    scene.pool.recover(probed_before);
    assert!(scene.pool.suspected_for(later).is_some());
    scene.pool.recover(Instant::now());
    assert_eq!(scene.pool.suspected_for(later), None);
    scene.use_once().await;
}

#[tokio::test]
async fn a_checkout_keeps_its_permit_to_wait_for_data_until_its_check_in() {
    let scene = Scene::ready(limits()).await;
    let permit = scene.pool.lane().enter((1, Sharer::Local)).await;
    let mut checkout = scene.check_out().await.unwrap();
    checkout.keep_permit(permit);
    assert_eq!(scene.pool.lane().counts(), (1, 0));
    drop(checkout);
    assert_eq!(scene.pool.lane().counts(), (0, 0));
}

/// The user still has its connection, so it does not get the permit a second time.
#[tokio::test]
async fn another_user_gets_the_permit_if_a_server_takes_much_longer_than_a_slice() {
    let scene = Scene::ready(limits()).await;
    let lane = scene.pool.lane();
    let mut checkout = scene.check_out().await.unwrap();
    checkout.keep_permit(lane.enter((1, Sharer::Local)).await);
    checkout.begin();
    pause();
    let began = Instant::now();
    let (_, _, permit) = checkout.exchange();
    let mut permit = permit.unwrap();
    let mut endless = Box::pin(permit.hold_during(pending::<()>()));
    tokio::select! {
        () = &mut endless => unreachable!("the server never replies"),
        permit = lane.enter((2, Sharer::Local)) => drop(permit),
    }
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    assert!(lane.enter((1, Sharer::Local)).now_or_never().is_none());
    assert_eq!(lane.counts(), (1, 0));
    drop(endless);
    drop(checkout);
    assert!(lane.enter((1, Sharer::Local)).now_or_never().is_some());
}

#[tokio::test]
async fn a_closed_pool_refuses_checkouts_and_keeps_no_connection() {
    let scene = Scene::ready(limits()).await;
    scene.use_once().await;
    scene.pool.close();
    assert_eq!(scene.available(), 0);
    assert!(matches!(
        scene.check_out().await,
        Err(CheckOutError::Closed)
    ));
}

#[tokio::test]
async fn forget_closes_only_the_available_connections_of_the_given_user() {
    let scene = Scene::ready(limits()).await;
    scene.use_once().await;
    scene.pool.forget(identity("other").id());
    assert_eq!(scene.available(), 1);
    scene.pool.forget(scene.user.id());
    assert_eq!(scene.available(), 0);
}

#[tokio::test]
async fn ended_connections_are_neither_kept_nor_handed_out() {
    let scene = Scene::ready(limits()).await;
    let first = scene.use_once().await;
    scene.server.close_all().await;
    let second = scene.use_once().await;
    assert_ne!(first, second);
    scene.server.close_all().await;
    assert_eq!(scene.available(), 1);
    scene.pool.maintain();
    assert_eq!(scene.available(), 0);
}

#[tokio::test]
async fn operations_that_wait_are_counted_until_they_are_served_or_leave() {
    let scene = Scene::with_one_connection().await;
    let held = scene.check_out().await.unwrap();
    assert!(!scene.pool.has_waiting());
    let mut leaver = Box::pin(scene.check_out());
    assert!(leaver.as_mut().now_or_never().is_none());
    assert!(scene.pool.has_waiting());
    let waits = scene.pool.waits(Instant::now() + LIMIT);
    let [(user, waited)] = waits.for_own.as_slice() else {
        panic!("{waits:?}");
    };
    assert!(
        user.id() == scene.user.id() && *waited >= LIMIT / 2,
        "{waits:?}"
    );
    drop(leaver);
    assert!(!scene.pool.has_waiting());
    let mut waiter = Box::pin(scene.check_out());
    assert!(waiter.as_mut().now_or_never().is_none());
    drop(held);
    let served = timeout(LIMIT, waiter).await.unwrap();
    assert!(served.is_ok() && !scene.pool.has_waiting());
}

#[tokio::test]
async fn a_connection_handed_to_a_cancelled_waiter_becomes_available() {
    let scene = Scene::with_one_connection().await;
    let held = scene.check_out().await.unwrap();
    let mut leaver = Box::pin(scene.check_out());
    assert!(leaver.as_mut().now_or_never().is_none());
    // The drop hands the connection to the waiter, but the waiter is not polled again.
    drop(held);
    assert_eq!(scene.available(), 0);
    drop(leaver);
    assert_eq!(scene.available(), 1);
}

#[tokio::test]
async fn a_connection_established_outside_the_pool_can_be_adopted_and_checked_out() {
    let scene = Scene::ready(limits()).await;
    let connection = scene.connector.connect(scene.pool.address()).await.unwrap();
    let id = connection.id();
    scene.pool.adopt(&scene.user, connection);
    assert_eq!(scene.available(), 1);
    assert_eq!(scene.use_once().await, id);
}

#[tokio::test]
async fn operations_on_a_hung_server_are_interrupted_when_seawall_gives_up_the_server() {
    let scene = Scene::ready(limits()).await;
    let mut checkout = scene.check_out().await.unwrap();
    let interrupt = Arc::clone(&checkout.begin().interrupt);
    let mut given_up = poll_fn(|cx| interrupt.poll_raised(cx));
    assert!((&mut given_up).now_or_never().is_none());
    scene.pool.give_up();
    assert!(given_up.now_or_never().is_some());
}

#[tokio::test]
async fn the_cost_of_an_operation_grows_with_latency_and_load() {
    let scene = Scene::ready(limits()).await;
    let now = Instant::now();
    let before = scene.pool.cost(now);
    let mut checkout = scene.check_out().await.unwrap();
    checkout.set_latency(LIMIT);
    drop(checkout);
    let slow = scene.pool.cost(now);
    assert!(slow.exceeds(before) && !before.exceeds(slow));
    assert!(!slow.is_busier(before));
    let _held = scene.check_out().await.unwrap();
    assert!(scene.pool.cost(now).is_busier(slow));
}

#[test]
fn server_selection_compares_only_the_loads_if_latencies_differ_at_most_twofold() {
    let cost = |load, latency_seconds| Cost {
        load,
        latency_seconds,
    };
    // Latencies that differ by a factor of at most two count as equal, so the load decides.
    assert!(cost(2, 0.01).exceeds(cost(1, 0.02)));
    assert!(!cost(1, 0.02).exceeds(cost(2, 0.01)));
    assert!(!cost(1, 0.02).exceeds(cost(1, 0.01)));
    assert!(!cost(1, 0.01).exceeds(cost(1, 0.02)));
    // If the latencies differ more, the product of latency and load decides.
    assert!(cost(1, 0.021).exceeds(cost(2, 0.01)));
    assert!(!cost(2, 0.01).exceeds(cost(1, 0.021)));
    assert!(cost(6, 0.01).exceeds(cost(2, 0.023)));
    assert!(!cost(2, 0.023).exceeds(cost(6, 0.01)));
    let even = [cost(2, 0.01), cost(0, 0.03)];
    assert!(!even[0].exceeds(even[1]) && !even[1].exceeds(even[0]));
}

#[test]
fn random_numbers_differ_and_are_from_0_to_1() {
    let chances: Vec<_> = (0..100).map(|_| chance()).collect();
    assert!(chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
    let tenths = chances.iter().map(|chance| (chance * 10.0).to_bits());
    assert!(tenths.collect::<HashSet<_>>().len() > 50);
    assert!(chances.iter().any(|chance| *chance < 0.5));
    assert!(chances.iter().any(|chance| *chance > 0.5));
}

#[tokio::test]
async fn connections_over_a_lowered_max_pool_size_and_its_reserve_are_closed_when_not_in_use() {
    let scene = Scene::ready(PoolLimits {
        max_pool_size: 4,
        ..limits()
    })
    .await;
    let mut checkouts = Vec::new();
    for _ in 0..4 {
        checkouts.push(scene.check_out().await.unwrap());
    }
    let finish = |mut checkout: Checkout| {
        checkout.begin();
        checkout.finish();
    };
    finish(checkouts.pop().unwrap());
    assert_eq!(scene.available(), 1);
    scene.pool.set_limits(&PoolLimits {
        max_pool_size: 1,
        ..limits()
    });
    assert_eq!(scene.available(), 0);
    // One connection above `max_pool_size` is kept for operations that other operations may wait
    // for.
    for available in [0, 1, 2] {
        finish(checkouts.pop().unwrap());
        assert_eq!(scene.available(), available);
    }
}

#[tokio::test]
async fn a_waiter_is_served_when_max_pool_size_rises() {
    let scene = Scene::with_one_connection().await;
    let first = scene.check_out().await.unwrap();
    let mut waiting = Box::pin(scene.check_out());
    assert!((&mut waiting).now_or_never().is_none());
    scene.pool.set_limits(&limits());
    assert!(waiting.await.is_ok());
    drop(first);
}

#[tokio::test]
async fn only_resets_that_change_the_value_of_the_concurrency_limit_are_counted() {
    let observer = Observer::without_shapes();
    let scene = Scene::observed(&observer).await;
    let auto = PoolLimits {
        concurrency: Concurrency::Auto,
        ..limits()
    };
    scene.pool.set_limits(&auto);
    // The limit still has its initial value, so the two resets below do not change it.
    scene.pool.reset_limit();
    assert!(scene.pool.clear(scene.pool.generation()));
    let text = observer.exporter.render();
    let line = r#"seawall_concurrency_limit_changes_total{server="test",reason="reset"} 1"#;
    assert!(text.lines().any(|found| found == line), "{text}");
}

/// Lets the tasks of the pool run before and after it moves the paused clock by this time.
async fn pass_time(time: Duration) {
    let run_tasks = async || {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    run_tasks().await;
    advance(time).await;
    run_tasks().await;
}

/// Two operations run one after another on one connection, each for half a window. Another
/// operation always waits. In the window, one operation completes, and one operation begins after a
/// wait of half a window.
#[tokio::test]
async fn a_decision_on_the_concurrency_limit_is_logged_at_debug_with_the_measurements() {
    let log = MemoryLog::default();
    let _collecting = log.collect();
    let scene = Scene::ready(PoolLimits {
        max_pool_size: 1,
        concurrency: Concurrency::Auto,
        ..limits()
    })
    .await;
    let connection = scene.connector.connect(scene.pool.address()).await.unwrap();
    scene.pool.adopt(&scene.user, connection);
    pause();
    let first = scene.check_out().now_or_never().unwrap().unwrap();
    let mut second = Box::pin(scene.check_out());
    assert!(second.as_mut().now_or_never().is_none());
    pass_time(WINDOW / 2).await;
    let mut third = Box::pin(scene.check_out());
    assert!(third.as_mut().now_or_never().is_none());
    complete(first);
    let second = second.now_or_never().unwrap().unwrap();
    // Timers may fire a millisecond late.
    let rest = WINDOW / 2 + Duration::from_millis(1);
    pass_time(rest).await;
    let decisions = log.lines_with("decision on the concurrency limit");
    let [decision] = decisions.as_slice() else {
        panic!("expected one decision: {decisions:?}");
    };
    let decision: Value = serde_json::from_str(decision).unwrap();
    assert_eq!(decision["level"], "DEBUG");
    let fields = &decision["fields"];
    let reason = scene.pool.snapshot().concurrency.reason;
    let reason = reason.unwrap().to_string();
    assert_eq!(fields["server"], scene.pool.address().to_string());
    assert_eq!(fields["reason"], reason);
    assert_eq!(fields["load"], "server_bound");
    for (name, expected) in [
        ("limit", 4),
        ("previous", 4),
        ("settled", 4),
        ("waiting", 1),
        ("exempt", 0),
    ] {
        assert_eq!(fields[name], expected, "{name}: {fields}");
    }
    let half = (WINDOW / 2).as_secs_f64();
    let window = half + rest.as_secs_f64();
    for (name, expected) in [
        ("completed_per_second", 1.0 / window),
        ("mean_wait_seconds", half),
        ("mean_server_time_seconds", half),
        ("mean_in_progress", 1.0),
        ("gain", 0.0),
        ("noise", 0.0),
    ] {
        let value = fields[name].as_f64().unwrap_or(f64::NAN);
        assert!((value - expected).abs() < 1e-6, "{name}: {fields}");
    }
    assert!(fields["crowding"].is_f64(), "{fields}");
    drop(second);
}

/// Ends the exchange of an operation, and checks its connection in.
fn complete(mut checkout: Checkout) {
    checkout.begin();
    checkout.finish();
}

#[tokio::test]
async fn a_waiter_is_served_when_the_concurrency_limit_is_switched_off() {
    let fixed = PoolLimits {
        concurrency: Concurrency::Fixed(NonZeroU32::MIN),
        ..limits()
    };
    let scene = Scene::ready(fixed).await;
    let deadline = Instant::now() + LIMIT;
    let check_out = || scene.pool.check_out(&scene.user, CLIENT, deadline);
    let first = check_out().await.unwrap();
    let mut waiting = Box::pin(check_out());
    assert!((&mut waiting).now_or_never().is_none());
    scene.pool.set_limits(&PoolLimits {
        concurrency: Concurrency::Off,
        ..limits()
    });
    assert!(waiting.await.is_ok());
    drop(first);
}
