//! Tests of probes of a scripted server.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bson::{RawDocument, RawDocumentBuf, Timestamp, rawdoc};

use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, advance, pause, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Probe, ProbeOutcome, ProbeReply, keep_probing, probe};
use crate::{
    pool::{Checkout, Demand, ServerPool},
    runtime::OccasionalLog,
    scripted::{Response, ScriptedServer},
    topology::{
        ServerType, Snapshot, Topology,
        tests::{LIMIT, member, topology_at, topology_of},
    },
};
use seawall_auth::{Identity, Login};
use seawall_command::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
use seawall_locks::Mutex;
use seawall_transport::{
    Sharer,
    connection::{Authorities, Interrupt, ServerAddress, ServerTls, TlsSettings, Verification},
};

/// A server that replies to `buildInfo` with the current value of `version`.
async fn server_of(version: Arc<Mutex<&'static str>>) -> ScriptedServer {
    let new_script = move || {
        let version = Arc::clone(&version);
        move |command: &RawDocument| {
            let is_build_info = command.get("buildInfo").unwrap().is_some();
            Response::Reply(match is_build_info {
                true => rawdoc! { "version": *version.lock(), "ok": 1 },
                false => rawdoc! { "maxWireVersion": 17, "ok": 1 },
            })
        }
    };
    ScriptedServer::start(new_script).await
}

fn replied(outcome: ProbeOutcome) -> ProbeReply {
    match outcome {
        ProbeOutcome::Replied(reply) => reply,
        ProbeOutcome::Failed | ProbeOutcome::Silent | ProbeOutcome::Local => {
            panic!("the server replies")
        }
    }
}

/// A reply to a probe, with the reply to its `hello`, which was sent at `asked_at`.
fn reply_with(hello: RawDocumentBuf, asked_at: Instant) -> ProbeReply {
    ProbeReply {
        asked_at,
        lacks_hello: false,
        hello,
        round_trip: Duration::ZERO,
        build_info: None,
    }
}

/// Begins an operation at a server. Returns the operation's checkout, and the signal that ends its
/// wait for a reply.
async fn begin_operation(pool: &Arc<ServerPool>) -> (Checkout, Arc<Interrupt>) {
    let user = Arc::new(Identity::new("u", "admin", None, Login::Anonymous));
    let (demand, deadline) = (Demand::slot(Sharer::Local, 1), Instant::now() + LIMIT);
    let mut checkout = pool.check_out(&user, demand, deadline).await.unwrap();
    let interrupt = Arc::clone(&checkout.begin().interrupt);
    (checkout, interrupt)
}

/// Like [`keep_probing`], for the server of `pool`.
async fn probe_repeatedly(
    topology: &Arc<Topology>,
    pool: &Arc<ServerPool>,
    wake: &Arc<Notify>,
    removed: &CancellationToken,
) {
    let address = pool.address().clone();
    let (topology, pool) = (Arc::downgrade(topology), Arc::downgrade(pool));
    keep_probing(topology, pool, address, Arc::clone(wake), removed.clone()).await;
}

/// The version that the probe read with `buildInfo`; `None` if the probe did not send `buildInfo`.
fn version_in(reply: &ProbeReply) -> Option<&str> {
    let build_info = reply.build_info.as_ref()?;
    Some(build_info.get_str("version").unwrap())
}

#[tokio::test]
async fn a_probe_over_a_new_connection_reads_the_version_of_an_upgraded_server() {
    let version = Arc::new(Mutex::new("A"));
    let server = server_of(Arc::clone(&version)).await;
    let address = server.address();
    let topology = topology_at(address);
    let (mut connection, failures) = (None, OccasionalLog::default());
    let first = replied(probe(&topology, address, &mut connection, &failures).await);
    assert_eq!(version_in(&first), Some("A"));
    let mut snapshot = Snapshot::clone(&topology.snapshot());
    snapshot.description.servers[0].probe.apply(&first, false);
    topology.published.replace(snapshot);
    let again = replied(probe(&topology, address, &mut connection, &failures).await);
    assert_eq!(version_in(&again), None);
    *version.lock() = "B";
    server.close_all().await;
    let closed = probe(&topology, address, &mut connection, &failures).await;
    assert!(matches!(closed, ProbeOutcome::Failed));
    let upgraded = replied(probe(&topology, address, &mut connection, &failures).await);
    assert_eq!(version_in(&upgraded), Some("B"));
}

#[tokio::test]
async fn probes_of_a_failed_server_and_probes_after_a_tls_reload_use_new_connections() {
    let server = server_of(Arc::new(Mutex::new("A"))).await;
    let address = server.address();
    let topology = topology_at(address);
    let (mut connection, failures) = (None, OccasionalLog::default());
    replied(probe(&topology, address, &mut connection, &failures).await);
    replied(probe(&topology, address, &mut connection, &failures).await);
    assert_eq!(server.accepted(), 1);
    let mut failed = Snapshot::clone(&topology.snapshot());
    failed.description.servers[0].failed_since = Some(Instant::now());
    topology.published.replace(failed);
    replied(probe(&topology, address, &mut connection, &failures).await);
    assert_eq!(server.accepted(), 2);
    topology.recover_all();
    replied(probe(&topology, address, &mut connection, &failures).await);
    assert_eq!(server.accepted(), 2);
    // The server does not speak TLS. A probe that times out is silent only on a new connection.
    let tls = ServerTls::new(&TlsSettings {
        authorities: Authorities::Mozilla,
        identity: None,
        revocation_lists: Vec::new(),
        verification: Verification::Full,
    });
    topology.connector().set_tls(Arc::new(tls.unwrap()));
    topology.connector().set_limit(Duration::ZERO);
    let outcome = probe(&topology, address, &mut connection, &failures).await;
    assert!(matches!(outcome, ProbeOutcome::Silent));
}

#[tokio::test]
async fn operations_fail_if_their_server_hangs_after_it_has_left_the_deployment() {
    let is_hung = Arc::new(AtomicBool::new(false));
    let hangs = Arc::clone(&is_hung);
    let new_script = move || {
        let hangs = Arc::clone(&hangs);
        move |_: &RawDocument| {
            let reply = rawdoc! { "maxWireVersion": 17, "ok": 1 };
            match hangs.load(Ordering::Relaxed) {
                true => Response::ReplyAfter(Arc::default(), reply),
                false => Response::Reply(reply),
            }
        }
    };
    let server = ScriptedServer::start(new_script).await;
    let topology = topology_at(server.address());
    let pool = Arc::clone(&topology.snapshot().pools[0]);
    let (checkout, interrupt) = begin_operation(&pool).await;
    pool.close();
    is_hung.store(true, Ordering::Relaxed);
    pause();
    let (wake, removed) = (Arc::default(), CancellationToken::new());
    removed.cancel();
    let probing = || probe_repeatedly(&topology, &pool, &wake, &removed);
    tokio::select! {
        () = probing() => panic!("an operation uses the pool"),
        () = poll_fn(|cx| interrupt.poll_raised(cx)) => {}
    }
    drop(checkout);
    probing().await;
}

/// A firewall may drop the packets of new connections, while earlier connections still work.
#[tokio::test]
async fn operations_at_a_removed_server_continue_if_the_server_gets_no_new_connections() {
    let (is_reachable, probes) = (Arc::new(AtomicBool::new(true)), Arc::new(Semaphore::new(0)));
    let (serves, probed) = (Arc::clone(&is_reachable), Arc::clone(&probes));
    let new_script = move || {
        let (is_served, probed) = (serves.load(Ordering::Relaxed), Arc::clone(&probed));
        move |command: &RawDocument| {
            let reply = rawdoc! { "maxWireVersion": 17, "ok": 1 };
            if !is_served {
                return Response::ReplyAfter(Arc::default(), reply);
            }
            // Each probe ends with this command.
            if command.get("buildInfo").unwrap().is_some() {
                probed.add_permits(1);
            }
            Response::Reply(reply)
        }
    };
    let server = ScriptedServer::start(new_script).await;
    let topology = topology_at(server.address());
    let pool = Arc::clone(&topology.snapshot().pools[0]);
    let (_checkout, interrupt) = begin_operation(&pool).await;
    let (wake, removed) = (Arc::default(), CancellationToken::new());
    let mut probing = pin!(probe_repeatedly(&topology, &pool, &wake, &removed));
    for _ in ["before the removal", "after the removal"] {
        tokio::select! {
            () = &mut probing => panic!("an operation uses the pool"),
            permit = timeout(LIMIT, probes.acquire()) => permit.unwrap().unwrap().forget(),
        }
        is_reachable.store(false, Ordering::Relaxed);
        pool.close();
        removed.cancel();
        wake.notify_one();
    }
    assert!(poll_fn(|cx| Poll::Ready(interrupt.poll_raised(cx).is_pending())).await);
}

/// The reply of a primary to a probe, whose `hello` was sent at `asked_at`.
fn reply_of_primary(asked_at: Instant) -> ProbeOutcome {
    let hello = rawdoc! { "isWritablePrimary": true, "ok": 1 };
    ProbeOutcome::Replied(reply_with(hello, asked_at))
}

#[tokio::test(start_paused = true)]
async fn a_reply_to_a_hello_that_was_sent_before_a_demotion_does_not_end_the_demotion() {
    let (topology, pool) = topology_of(ServerType::Primary);
    let is_demoted = || topology.snapshot().description.servers[0].is_demoted();
    let (before, code) = (Instant::now(), INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
    advance(Duration::from_millis(1)).await;
    topology.report_state_change(&pool, pool.generation(), code);
    topology.apply_probe(pool.address(), reply_of_primary(before), false);
    assert!(is_demoted());
    topology.apply_probe(pool.address(), reply_of_primary(Instant::now()), false);
    assert!(!is_demoted());
}

#[tokio::test(start_paused = true)]
async fn a_failed_server_is_not_used_after_a_reply_to_a_hello_that_was_sent_before_the_failure() {
    let (topology, pool) = topology_of(ServerType::Primary);
    let before = Instant::now();
    advance(Duration::from_millis(1)).await;
    topology.report_failure(&pool, pool.generation());
    for (asked_at, is_failed) in [(before, true), (Instant::now(), false)] {
        topology.apply_probe(pool.address(), reply_of_primary(asked_at), false);
        assert_eq!(topology.is_failed(pool.address()), is_failed);
        assert_eq!(pool.is_paused(), is_failed);
    }
}

/// The host of a former member of the deployment may now belong to another cluster.
#[tokio::test]
async fn the_cluster_time_of_a_server_that_may_belong_to_another_cluster_is_ignored() {
    let address: ServerAddress = "127.0.0.1:1".parse().unwrap();
    let topology = topology_at(&address);
    let pool = Arc::clone(&topology.snapshot().pools[0]);
    let own = Some("own");
    for (own_name, server_type, set_name, is_accepted) in [
        (own, ServerType::Unknown, own, false),
        (own, ServerType::Secondary, Some("other"), false),
        (own, ServerType::Secondary, None, false),
        (own, ServerType::Secondary, own, true),
        // The topology has no replica set name if it consists of routers or of a single server.
        (None, ServerType::Unknown, None, false),
        (None, ServerType::Router, None, true),
        (None, ServerType::Primary, Some("any"), true),
    ] {
        let server = member(server_type, &pool);
        let mut state = topology.state.lock();
        state.set_name = own_name.map(str::to_owned);
        state.cluster_time = None;
        state.members.insert(address.clone(), server);
        drop(state);
        let at = Timestamp {
            time: 5,
            increment: 1,
        };
        let time = rawdoc! { "clusterTime": at, "signature": { "keyId": 7_i64 } };
        let hello = match set_name {
            Some(name) => rawdoc! { "setName": name, "ok": 1, "$clusterTime": time },
            None => rawdoc! { "ok": 1, "$clusterTime": time },
        };
        let outcome = ProbeOutcome::Replied(reply_with(hello, Instant::now()));
        topology.apply_probe(&address, outcome, false);
        let seen = topology.snapshot().description.cluster_time.is_some();
        assert_eq!(
            seen, is_accepted,
            "{own_name:?} {server_type:?} {set_name:?}"
        );
    }
}

#[test]
fn a_new_average_of_round_trip_times_starts_after_a_failure_of_the_server() {
    let reply = |milliseconds| ProbeReply {
        asked_at: Instant::now(),
        lacks_hello: false,
        hello: rawdoc! { "ok": 1 },
        round_trip: Duration::from_millis(milliseconds),
        build_info: None,
    };
    let mut probe = Probe::default();
    probe.apply(&reply(5_000), false);
    probe.apply(&reply(0), false);
    assert_eq!(probe.round_trip, Some(Duration::from_secs(4)));
    probe.apply(&reply(1), true);
    assert_eq!(probe.round_trip, Some(Duration::from_millis(1)));
}
