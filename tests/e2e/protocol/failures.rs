//! Operations that fail: the server returns an error or closes the connection, a limit of Seawall
//! is reached, or Seawall injects a fault. The tests check which operations Seawall repeats, and
//! which errors clients get.

use super::*;
use seawall_api::{Pools, Status};

fn session() -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    doc! {"id": Binary { subtype: BinarySubtype::Uuid, bytes }}
}

fn retryable(mut command: Document) -> Document {
    command.insert("lsid", session());
    command.insert("txnNumber", 1i64);
    command
}

/// Code 6 is `HostUnreachable`. Clients get this error instead of the server's error.
#[tokio::test]
async fn retryable_operations_are_repeated_after_a_not_primary_error_and_others_get_code_6() {
    let rig = Rig::start("").await;
    let mut direct = rig.direct().await;
    let mut through = rig.through().await;
    let fail = |command: &str| {
        doc! {"failCommands": [command], "errorCode": 10107, "errorLabels": ["SomeLabel"]}
    };
    rig.fail(2, fail("insert")).await;
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    let own = direct.command("test", insert(1)).await.unwrap();
    assert_eq!(own.code(), Some(10107), "{}", own.body);
    let has_version = own.body.contains_key("topologyVersion");
    let is_old = is_before(ServerVersion(4, 4, 0)).await;
    assert_eq!(has_version, !is_old, "{}", own.body);
    // Servers before 4.4 do not add custom labels.
    let labels = if is_old { vec![] } else { vec!["SomeLabel"] };
    assert_eq!(own.error_labels(), labels);
    let concealed = through.command("test", insert(1)).await.unwrap();
    assert_eq!(
        (concealed.code(), concealed.error_labels()),
        (Some(6), labels)
    );
    assert_eq!(
        concealed.body.get_str("codeName").ok(),
        Some("HostUnreachable")
    );
    assert!(
        !concealed.body.contains_key("topologyVersion"),
        "{}",
        concealed.body
    );
    let text = concealed.body.get_str("errmsg").unwrap();
    for word in ["not master", "not primary", "node is recovering"] {
        assert!(!text.contains(word), "{text}");
    }
    through.expect_ok("test", insert(1)).await;

    for command in [doc! {"find": "c"}, retryable(insert(2))] {
        let name = command.keys().next().unwrap().clone();
        rig.fail(1, fail(&name)).await;
        let reply = through.command("test", command).await.unwrap();
        assert!(reply.is_ok(), "{name}: {}", reply.body);
    }
    let count = direct.command("test", doc! {"count": "c"}).await.unwrap();
    assert_eq!(count.body.get_i32("n").ok(), Some(2));

    let write_concern =
        doc! {"failCommands": ["insert"], "writeConcernError": {"code": 91, "errmsg": "going"}};
    rig.fail(1, write_concern).await;
    let reply = through.command("test", insert(3)).await.unwrap();
    let error = reply.body.get_document("writeConcernError").unwrap();
    assert_eq!(
        (reply.is_ok(), error.get_i32("code").ok()),
        (true, Some(6)),
        "{}",
        reply.body
    );
}

#[tokio::test]
async fn a_shutdown_error_is_found_in_a_reply_over_64_kib_and_clears_the_pool_of_the_server() {
    let rig = Rig::start("").await;
    let mut through = rig.through().await;
    let documents: Vec<_> = (0..200)
        .map(|n| doc! {"_id": format!("{n}{}", "x".repeat(500))})
        .collect();
    let insert = doc! {"insert": "c", "documents": documents, "ordered": false};
    through.expect_ok("test", insert.clone()).await;
    let write_concern =
        doc! {"failCommands": ["insert"], "writeConcernError": {"code": 91, "errmsg": "going"}};
    rig.fail(1, write_concern).await;
    // All documents exist already, so the reply has an error for each of them.
    let reply = through.command("test", insert).await.unwrap();
    assert!(reply.body.contains_key("writeConcernError"));
    let errors = reply.body.get_array("writeErrors").unwrap();
    assert_eq!(errors.len(), 200);
    assert!(reply.header.message_length > 64 * 1024);
    let closed = "seawall_server_connections_closed_total";
    let is_cleared = async || rig.seawall.metric(closed, &["reason=\"stale\""]).await > 0.0;
    eventually(LIMIT, is_cleared).await.unwrap();
}

#[tokio::test]
async fn errors_reach_clients_unchanged_if_deployment_repeat_is_false() {
    let rig = Rig::start("deployment.repeat = false").await;
    let mut direct = rig.direct().await;
    let mut through = rig.through().await;
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    direct.expect_ok("test", insert(0)).await;
    let comparable = |mut reply: RawReply| {
        for field in ["$clusterTime", "operationTime", "opTime"] {
            reply.body.remove(field);
        }
        reply.body
    };
    let failing = [
        doc! {"errorCode": 10107, "errorLabels": ["SomeLabel"]},
        doc! {"errorCode": 189},
        doc! {"writeConcernError": {"code": 91, "errmsg": "going"}},
    ];
    for (id, failure) in (1..).zip(failing) {
        let mut data = doc! {"failCommands": ["insert", "find"]};
        data.extend(failure.clone());
        for command in [
            retryable(insert(id)),
            doc! {"find": "c", "filter": {"_id": 0}},
        ] {
            rig.fail(2, data.clone()).await;
            let expected = comparable(direct.command("test", command.clone()).await.unwrap());
            let mut command = command;
            if command.contains_key("txnNumber") {
                command = retryable(insert(id + 100));
            }
            let seen = comparable(through.command("test", command).await.unwrap());
            assert_eq!(seen, expected, "{failure}");
            rig.fail(0, data.clone()).await;
        }
    }
    let close = doc! {"failCommands": ["find"], "closeConnection": true};
    for mut client in [direct, through] {
        rig.fail(1, close.clone()).await;
        let error = client.command("test", doc! {"find": "c"}).await;
        assert!(matches!(error, Err(RawError::Closed)), "{error:?}");
    }
    let mut through = rig.through().await;
    through.expect_ok("test", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn a_server_connection_that_closes_during_an_operation_closes_no_client_connection() {
    let rig = Rig::start("").await;
    let mut through = rig.through().await;
    let close = |command: &str| doc! {"failCommands": [command], "closeConnection": true};
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    through.expect_ok("test", insert(0)).await;

    for command in [doc! {"find": "c"}, retryable(insert(1))] {
        let name = command.keys().next().unwrap().clone();
        rig.fail(1, close(&name)).await;
        let reply = through.command("test", command).await.unwrap();
        assert!(reply.is_ok(), "{name}: {}", reply.body);
    }
    rig.fail(1, close("insert")).await;
    let reply = through.command("test", insert(2)).await.unwrap();
    assert_eq!(
        (reply.code(), reply.error_labels()),
        (Some(6), vec![]),
        "{}",
        reply.body
    );

    // Seawall repeats an operation only once. If the second attempt fails too, the client gets code
    // 6. In the reply to a retryable write, the label `RetryableWriteError` allows another retry.
    for (command, labels) in [
        (doc! {"find": "c"}, vec![]),
        (retryable(insert(3)), vec!["RetryableWriteError"]),
    ] {
        let name = command.keys().next().unwrap().clone();
        rig.fail(2, close(&name)).await;
        let reply = through.command("test", command.clone()).await.unwrap();
        assert_eq!(
            (reply.code(), reply.error_labels()),
            (Some(6), labels),
            "{name}: {}",
            reply.body
        );
        let reply = through.command("test", command).await.unwrap();
        assert!(reply.is_ok(), "{name}: {}", reply.body);
    }
    let in_transaction = |mut command: Document| {
        command.insert("txnNumber", 1i64);
        command.insert("autocommit", false);
        command
    };
    let lsid = session();
    let mut first = in_transaction(insert(4));
    first.extend(doc! {"lsid": &lsid, "startTransaction": true});
    through.expect_ok("test", first).await;
    for (mut command, db, label) in [
        (
            in_transaction(doc! {"find": "c"}),
            "test",
            "TransientTransactionError",
        ),
        (
            in_transaction(doc! {"commitTransaction": 1}),
            "admin",
            "RetryableWriteError",
        ),
    ] {
        command.insert("lsid", &lsid);
        let name = command.keys().next().unwrap().clone();
        rig.fail(1, close(&name)).await;
        let reply = through.command(db, command).await.unwrap();
        assert_eq!(
            (reply.code(), reply.error_labels()),
            (Some(6), vec![label]),
            "{name}: {}",
            reply.body
        );
    }
    let count = through
        .command("test", doc! {"find": "c", "sort": {"_id": 1}})
        .await
        .unwrap();
    let batch = count
        .body
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap();
    let ids: Vec<_> = batch
        .iter()
        .map(|d| d.as_document().unwrap().get_i32("_id").unwrap())
        .collect();
    assert_eq!(ids, [0, 1, 3]);
}

#[tokio::test]
async fn retryable_write_whose_reply_is_lost_is_applied_once() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let member = &set.members()[0];
    let recorder = Recorder::start(member.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = Seawall::start(&uri).await;
    let mut through = connect(&seawall).await;
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    for (id, command) in [(1, retryable(insert(1))), (2, insert(2))] {
        through.expect_ok("test", doc! {"ping": 1}).await;
        recorder.hold_replies(true);
        let mut command = command;
        command.insert("$db", "test");
        through.send(&OpMsg::new(command)).await.unwrap();
        let is_applied = async || {
            let mut direct = set.raw_client(member).await.unwrap();
            let count = doc! {"count": "c", "query": {"_id": id}};
            let count = direct.command("test", count).await.unwrap();
            count.body.get_i32("n").unwrap() == 1
        };
        eventually(LIMIT, is_applied).await.unwrap();
        // The recorder cuts its connections before it stops holding replies, so it never forwards
        // the held replies.
        recorder.cut_all(Cut::Reset);
        recorder.hold_replies(false);
        let reply = through.read_reply().await.unwrap();
        if id == 1 {
            // The server replied to the repeated write from its history of retryable writes.
            assert_eq!(reply.body.get_i32("n").ok(), Some(1), "{}", reply.body);
            let reports_retry = reply.body.contains_key("retriedStmtIds");
            let is_old = is_before(NO_LEGACY_OPCODES).await;
            assert_eq!(reports_retry, !is_old, "{}", reply.body);
        } else {
            // Seawall does not know if the write was applied, so the reply must not allow a retry.
            assert_eq!(
                (reply.code(), reply.error_labels()),
                (Some(6), vec![]),
                "{}",
                reply.body
            );
        }
    }
}

#[tokio::test]
async fn operation_without_a_free_server_connection_waits_and_then_gets_an_error() {
    const WAIT: Duration = Duration::from_secs(3);
    let rig = Rig::start("[pool]\nmax_pool_size = 1\nwait_queue_timeout_ms = 3000\n").await;
    let mut holder = rig.through().await;
    let insert = doc! {"insert": "c", "documents": [{"_id": 1}]};
    holder.expect_ok("test", insert).await;
    let slow = doc! {"find": "c", "filter": {"$where": "sleep(15000) || true"}, "$db": "test"};
    let request_id = holder.send(&OpMsg::new(slow)).await.unwrap();
    let is_held = async || {
        let pools: Pools = rig.seawall.api("/api/v1/pools").await;
        pools.pools[0].in_use == 1
    };
    eventually(LIMIT, is_held).await.unwrap();

    let mut plain = rig.through().await;
    let began = Instant::now();
    let hurried = plain
        .command("test", doc! {"find": "c", "maxTimeMS": 100})
        .await
        .unwrap();
    assert_eq!(
        (hurried.code(), hurried.error_labels()),
        (Some(50), vec![]),
        "{}",
        hurried.body
    );
    assert!(began.elapsed() >= Duration::from_millis(100));

    let began = Instant::now();
    let held = plain.command("test", doc! {"find": "c"}).await.unwrap();
    assert_eq!(
        (held.code(), held.error_labels()),
        (Some(202), vec![]),
        "{}",
        held.body
    );
    assert!(began.elapsed() >= WAIT, "{:?}", began.elapsed());

    let mut aware = rig.through().await;
    assert!(
        aware
            .greet(doc! {"backpressure": "2"})
            .await
            .unwrap()
            .is_ok()
    );
    let began = Instant::now();
    let shed = aware.command("test", doc! {"find": "c"}).await.unwrap();
    let labels = vec![
        "SystemOverloadedError",
        "RetryableError",
        "NoWritesPerformed",
    ];
    assert_eq!(
        (shed.code(), shed.error_labels()),
        (Some(462), labels),
        "{}",
        shed.body
    );
    assert!(began.elapsed() >= WAIT, "{:?}", began.elapsed());

    let reply = holder.read_reply().await.unwrap();
    assert!(reply.is_ok() && reply.header.response_to == request_id);
    for client in [&mut plain, &mut aware] {
        client.expect_ok("test", doc! {"find": "c"}).await;
    }
    let shed = rig
        .seawall
        .metric("seawall_operations_shed_total", &["wait_queue_timeout"])
        .await;
    assert_eq!(shed.to_string(), "2");
}

/// A client whose read lasts a minute. The test drops the client before the read ends.
async fn slow_reader(rig: &Rig) -> RawClient {
    let mut reader = rig.through().await;
    let insert = doc! {"insert": "c", "documents": [{"_id": 1}]};
    reader.expect_ok("test", insert).await;
    let slow = doc! {"find": "c", "filter": {"$where": "sleep(60000) || true"}, "$db": "test"};
    reader.send(&OpMsg::new(slow)).await.unwrap();
    reader
}

#[tokio::test]
async fn an_operation_over_the_limit_of_operations_in_flight_waits_and_then_gets_an_error() {
    let toml = "limits.max_in_flight_operations = 1\npool.wait_queue_timeout_ms = 500\n";
    let rig = Rig::start(toml).await;
    let holder = slow_reader(&rig).await;
    let is_held = async || {
        let pools: Pools = rig.seawall.api("/api/v1/pools").await;
        pools.pools[0].in_use == 1
    };
    eventually(LIMIT, is_held).await.unwrap();
    let mut other = rig.through().await;
    for (find, reason, code) in [
        (doc! {"find": "c", "maxTimeMS": 200}, "max_time_ms", 50),
        (doc! {"find": "c"}, "wait_queue_timeout", 202),
    ] {
        let refused = other.command("test", find).await.unwrap();
        assert_eq!(refused.code(), Some(code), "{}", refused.body);
        let name = "seawall_operations_shed_total";
        let shed = rig.seawall.metric(name, &[reason]).await;
        assert_eq!(shed.to_string(), "1", "{reason}");
    }
    drop(holder);
    let is_served = async || {
        let mut client = rig.through().await;
        let reply = client.command("test", doc! {"find": "c"}).await.unwrap();
        reply.is_ok()
    };
    eventually(LIMIT, is_served).await.unwrap();
}

/// The error of an operation that finds the wait queue full is delayed. The operation returns its
/// permit before the delay, so the next operation finds the queue full too. Otherwise, the next
/// operation would wait for a permit.
#[tokio::test]
async fn an_operation_that_got_no_connection_holds_no_permit_while_its_error_is_delayed() {
    let toml = "limits.max_in_flight_operations = 3\npool.max_pool_size = 1\n\
                pool.wait_queue_size = 1\npool.wait_queue_timeout_ms = 2000\n";
    let rig = Rig::start(toml).await;
    let _holder = slow_reader(&rig).await;
    let uses = async |in_use, wait_queue| {
        let pools: Pools = rig.seawall.api("/api/v1/pools").await;
        let pool = &pools.pools[0];
        (pool.in_use, pool.wait_queue) == (in_use, wait_queue)
    };
    eventually(LIMIT, async || uses(1, 0).await).await.unwrap();
    let find = || doc! {"find": "c", "$db": "test"};
    let mut waiting = rig.through().await;
    waiting.send(&OpMsg::new(find())).await.unwrap();
    eventually(LIMIT, async || uses(1, 1).await).await.unwrap();
    let mut refused = [rig.through().await, rig.through().await];
    for client in &mut refused {
        client.send(&OpMsg::new(find())).await.unwrap();
    }
    for client in &mut refused {
        let reply = client.read_reply().await.unwrap();
        assert_eq!(reply.code(), Some(202), "{}", reply.body);
    }
    let name = "seawall_operations_shed_total";
    let full = rig.seawall.metric(name, &["queue_full"]).await;
    assert_eq!(full.to_string(), "2");
}

#[tokio::test]
async fn a_read_gets_the_error_of_mongos_if_no_member_suits_its_read_preference() {
    let rig = Rig::start("deployment.server_selection_timeout_ms = 300").await;
    let mut client = rig.through().await;
    let find = doc! {"find": "c", "$readPreference": {"mode": "secondary"}};
    let refused = client.command("test", find).await.unwrap();
    assert_eq!(refused.code(), Some(133), "{refused:?}");
    let message = refused.body.get_str("errmsg").unwrap();
    assert!(
        message.contains("{ mode: \"secondary\" } for set rs"),
        "{message}"
    );
    client.expect_ok("test", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn injected_faults_affect_only_matching_operations_and_are_reported() {
    let rig = Rig::start("fault = {command = \"find\", namespace = \"test.c\", share_percent = 50, error_code = 189}").await;
    let mut through = rig.through().await;
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(
            through
                .command("test", doc! {"find": "c"})
                .await
                .unwrap()
                .code(),
        );
    }
    assert_eq!(codes, [Some(189), None, Some(189), None]);
    through.expect_ok("test", doc! {"find": "other"}).await;
    through.expect_ok("test", doc! {"count": "c"}).await;
    let injected = ["kind=\"error\""];
    assert_eq!(
        rig.seawall
            .metric("seawall_faults_injected_total", &injected)
            .await,
        2.0
    );
    let status: Status = rig.seawall.api("/api/v1/status").await;
    assert!(status.injects_faults);

    let rig = Rig::start("fault = {command = \"insert\", close = true}").await;
    let mut through = rig.through().await;
    through.expect_ok("test", doc! {"find": "c"}).await;
    let insert = doc! {"insert": "c", "documents": [{"_id": 1}]};
    assert!(through.command("test", insert).await.is_err());

    let rig = Rig::start("fault = {delay_ms = 300}").await;
    let mut through = rig.through().await;
    let began = Instant::now();
    through.expect_ok("test", doc! {"find": "c"}).await;
    assert!(began.elapsed() >= Duration::from_millis(300));
}

/// The injected delay makes the operation wait in Seawall. After a wait, Seawall reduces a valid
/// `maxTimeMS`, but does not change one that servers refuse.
#[tokio::test]
async fn an_operation_with_a_too_large_max_time_ms_gets_the_error_of_a_server_after_a_wait() {
    let rig = Rig::start("fault = {delay_ms = 20}").await;
    let mut codes = Vec::new();
    for mut client in [rig.direct().await, rig.through().await] {
        let find = doc! {"find": "c", "maxTimeMS": 1_i64 << 40};
        let reply = client.command("test", find).await.unwrap();
        codes.push(reply.code());
    }
    assert!(codes[0].is_some(), "{codes:?}");
    assert_eq!(codes[0], codes[1]);
}

#[tokio::test]
async fn injected_faults_also_affect_get_mores_on_tailable_cursors_with_await_data() {
    let rig = Rig::start("fault = {command = \"getMore\", error_code = 189}").await;
    let mut through = rig.through().await;
    for command in [
        doc! {"create": "log", "capped": true, "size": 1 << 20},
        doc! {"insert": "log", "documents": [{"_id": 1}]},
    ] {
        through.expect_ok("test", command).await;
    }
    let find = doc! {"find": "log", "tailable": true, "awaitData": true};
    let opened = through.command("test", find).await.unwrap();
    let cursor = opened.cursor_id().filter(|id| *id != 0).unwrap();
    let more = doc! {"getMore": cursor, "collection": "log", "maxTimeMS": 100};
    let reply = through.command("test", more).await.unwrap();
    assert_eq!(reply.code(), Some(189), "{}", reply.body);
}
