//! Tests of operations: unacknowledged writes, pipelined commands, the largest messages, cursors,
//! and the name of the application.

use super::*;

#[tokio::test]
async fn unacknowledged_write_is_visible_to_the_next_read_of_its_client() {
    let rig = Rig::shared().await;
    let db = unique_name("unacknowledged");
    let mut through = rig.through().await;
    // Other clients keep several server connections in use. So the read may use a different server
    // connection than the write.
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut other = rig.through().await;
        let db = db.clone();
        others.push(tokio::spawn(async move {
            loop {
                let find = doc! {"find": "other", "filter": {"$where": "true"}};
                other.expect_ok(&db, find).await;
            }
        }));
    }
    for id in 0..300 {
        let insert =
            doc! {"insert": "c", "documents": [{"_id": id}], "writeConcern": {"w": 0}, "$db": &db};
        let insert = OpMsg::new(insert).flags(MORE_TO_COME);
        let find = OpMsg::new(doc! {"find": "c", "filter": {"_id": id}, "$db": &db});
        through.send(&insert).await.unwrap();
        let reply = through.exchange(&find).await.unwrap();
        let cursor = reply.body.get_document("cursor").unwrap();
        assert_eq!(cursor.get_array("firstBatch").unwrap().len(), 1, "{id}");
    }
    others.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn unacknowledged_write_completes_although_its_client_disconnects_at_once() {
    let rig = Rig::shared().await;
    let db = unique_name("leaving");
    // This Seawall is new, so its pool is empty, and the first writes wait for a connection.
    let seawall = Seawall::start(&rig.set.uri()).await;
    for id in 0..100 {
        let insert =
            doc! {"insert": "c", "documents": [{"_id": id}], "writeConcern": {"w": 0}, "$db": &db};
        let insert = OpMsg::new(insert).flags(MORE_TO_COME);
        connect(&seawall).await.send(&insert).await.unwrap();
    }
    let are_there = async || {
        let mut direct = rig.direct().await;
        let count = direct.command(&db, doc! {"count": "c"}).await.unwrap();
        match count.body.get_i32("n").unwrap() {
            100 => Ok(()),
            count => Err(format!("{count} of 100 writes")),
        }
    };
    eventually(LIMIT, are_there).await.unwrap();
    let gone = seawall.metric("seawall_clients_gone_total", &[]).await;
    assert!(gone < 1.0, "expected no skipped write, got {gone}");
}

#[tokio::test]
async fn message_with_the_flag_more_to_come_gets_no_reply() {
    let rig = Rig::shared().await;
    let db = unique_name("silent");
    let mut through = rig.through().await;
    let insert = doc! {"insert": "c", "documents": [{"_id": 1, "pad": "x".repeat(500_000)}]};
    through.expect_ok(&db, insert).await;
    let commands = [
        doc! {"ping": 1},
        doc! {"hello": 1},
        doc! {"nonsense": 1},
        doc! {"insert": "c", "documents": [{"_id": 1}]},
        doc! {"find": "c", "filter": {"$bad": 1}},
        // The reply to this find is so large that Seawall does not hold all of it in memory.
        doc! {"find": "c"},
    ];
    for mut command in commands {
        command.insert("$db", &db);
        let message = op_msg(vec![body(command.clone())])
            .flags(MORE_TO_COME)
            .to_bytes();
        let direct = reaction(&mut rig.direct().await, &message).await;
        assert_eq!(
            direct,
            ObservedReaction {
                replies: vec![],
                is_usable: true
            },
            "{command}: the server"
        );
        assert_eq!(reaction(&mut through, &message).await, direct, "{command}");
    }
}

#[tokio::test]
async fn replies_to_pipelined_commands_arrive_in_the_order_of_the_commands() {
    let rig = Rig::shared().await;
    let db = unique_name("pipelined");
    let mut through = rig.through().await;
    let mut bytes = Vec::new();
    for id in 1..=100 {
        let command = match id % 3 {
            0 => doc! {"isMaster": 1},
            1 => doc! {"insert": "c", "documents": [{"_id": id}]},
            _ => doc! {"find": "c", "filter": {"_id": id - 1}},
        };
        let mut command = command;
        command.insert("$db", &db);
        let message = OpMsg {
            request_id: id,
            ..OpMsg::new(command)
        };
        bytes.extend(message.to_bytes());
    }
    through.send_bytes(&bytes).await.unwrap();
    for id in 1..=100 {
        let reply = through.read_reply().await.unwrap();
        assert_eq!(reply.header.response_to, id);
        assert!(reply.is_ok(), "{}", reply.body);
        if id % 3 == 2 {
            let batch = reply
                .body
                .get_document("cursor")
                .unwrap()
                .get_array("firstBatch")
                .unwrap();
            assert_eq!(batch.len(), 1, "{id}");
        }
    }
}

#[tokio::test]
async fn the_largest_documents_and_messages_are_forwarded_unchanged() {
    let rig = Rig::shared().await;
    let db = unique_name("large");
    let mut through = rig.through().await;
    let mut direct = rig.direct().await;
    let metadata = doc! {"application": {"name": "large"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    through.greet(doc! {"client": metadata}).await.unwrap();
    let overhead = doc! {"_id": 1, "pad": ""}.to_vec().unwrap().len();
    let largest = doc! {"_id": 1, "pad": "x".repeat((16 << 20) - overhead)};
    let insert = doc! {"insert": "largest", "documents": [largest.clone()]};
    let reply = through.command(&db, insert).await.unwrap();
    assert_eq!(reply.body.get_i32("n").ok(), Some(1), "{}", reply.body);
    let find = doc! {"find": "largest"};
    let reply = through.command(&db, find).await.unwrap();
    let found = reply
        .body
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap();
    assert!(found == &vec![Bson::Document(largest)]);

    let documents = (0..40)
        .map(|n| doc! {"_id": n, "pad": "y".repeat(1_000_000)})
        .collect();
    let insert = OpMsg::new(doc! {"insert": "many", "$db": &db}).sequence("documents", documents);
    let reply = through.exchange(&insert).await.unwrap();
    assert_eq!(reply.body.get_i32("n").ok(), Some(40), "{}", reply.body);
    let find = || doc! {"find": "many", "batchSize": 12, "singleBatch": true};
    let through_cursor = through
        .command(&db, find())
        .await
        .unwrap()
        .body
        .get_document("cursor")
        .cloned();
    let direct_cursor = direct
        .command(&db, find())
        .await
        .unwrap()
        .body
        .get_document("cursor")
        .cloned();
    assert!(through_cursor.unwrap() == direct_cursor.unwrap());

    let too_large = doc! {"insert": "c", "documents": [{"a": "x".repeat(16_793_600)}]};
    for client in [&mut direct, &mut through] {
        let reply = client.command(&db, too_large.clone()).await.unwrap();
        assert_eq!(reply.code(), Some(10334), "{}", reply.body);
        client.expect_ok(&db, doc! {"ping": 1}).await;
    }
}

#[tokio::test]
async fn clients_are_served_over_a_unix_socket() {
    let set = &Rig::shared().await.set;
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("seawall.sock");
    let options = seawall::Options {
        listen: Some(format!("unix:{}", path.display())),
        ..seawall::Options::default()
    };
    let _seawall = Seawall::start_with(&set.uri(), options).await;
    let mut client = RawClient::connect_unix(&path).await.unwrap();
    assert!(client.greet(doc! {}).await.unwrap().is_ok());
    client.expect_ok("test", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn servers_receive_the_name_of_the_application() {
    let rig = Rig::shared().await;
    let db = unique_name("named");
    let mut direct = rig.direct().await;
    direct.expect_ok(&db, doc! {"profile": 2}).await;
    let mut through = rig.through().await;
    let metadata = doc! {"application": {"name": "billing"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    assert!(
        through
            .greet(doc! {"client": metadata})
            .await
            .unwrap()
            .is_ok()
    );
    through.expect_ok(&db, doc! {"find": "c"}).await;
    let mut nameless = rig.through().await;
    nameless.expect_ok(&db, doc! {"count": "c"}).await;
    let application = async |direct: &mut RawClient, command: &str| {
        let find = doc! {"find": "system.profile", "filter": {format!("command.{command}"): "c"}};
        let reply = direct.command(&db, find).await.unwrap();
        let entries = reply
            .body
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        let [Bson::Document(entry)] = entries.as_slice() else {
            panic!("{command}: {entries:?}")
        };
        entry.get_str("appName").ok().map(str::to_owned)
    };
    assert_eq!(
        application(&mut direct, "find").await.as_deref(),
        Some("billing")
    );
    assert_ne!(
        application(&mut direct, "count").await.as_deref(),
        Some("billing")
    );
    direct.expect_ok(&db, doc! {"profile": 0}).await;
}

#[tokio::test]
async fn current_op_shows_the_name_of_the_application_and_the_version_of_seawall() {
    let rig = Rig::shared().await;
    let db = unique_name("running");
    let mut direct = rig.direct().await;
    let mut through = rig.through().await;
    let metadata = doc! {"application": {"name": "billing"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    assert!(
        through
            .greet(doc! {"client": metadata})
            .await
            .unwrap()
            .is_ok()
    );
    let slow = doc! {"insert": "slow", "documents": [{"_id": 1}]};
    direct.expect_ok(&db, slow).await;
    // The find runs until `killOp` ends it.
    let find = doc! {"find": "slow", "filter": {"$where": "sleep(30000) || true"}, "$db": &db};
    through.send(&OpMsg::new(find)).await.unwrap();
    let attempt = async || {
        let mut direct = rig.direct().await;
        let pipeline = vec![
            doc! {"$currentOp": {}},
            doc! {"$match": {"ns": format!("{db}.slow")}},
        ];
        let command = doc! {"aggregate": 1, "pipeline": pipeline, "cursor": {}};
        let reply = direct.command("admin", command).await.unwrap();
        let seen = reply
            .body
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .clone();
        let operation = seen.first()?.as_document()?.clone();
        Some((
            operation.get_str("appName").ok()?.to_owned(),
            operation.get_document("clientMetadata").ok()?.clone(),
            operation.get("opid")?.clone(),
        ))
    };
    let (name, metadata, id) = eventually(LIMIT, attempt).await.unwrap();
    assert_eq!(name, "billing");
    assert!(
        metadata
            .get_document("mongos")
            .unwrap()
            .get_str("version")
            .unwrap()
            .contains("seawall")
    );
    let kill = doc! {"killOp": 1, "op": id};
    direct.expect_ok("admin", kill).await;
    assert!(!through.read_reply().await.unwrap().is_ok());
}

#[tokio::test]
async fn a_cursor_can_be_read_and_killed_on_another_client_connection() {
    let rig = Rig::shared().await;
    let db = unique_name("cursors");
    let mut first = rig.through().await;
    let mut second = rig.through().await;
    let documents: Vec<_> = (0..30).map(|n| doc! {"_id": n}).collect();
    let insert = doc! {"insert": "c", "documents": documents};
    first.expect_ok(&db, insert).await;
    let find = doc! {"find": "c", "batchSize": 10};
    let id = first
        .command(&db, find.clone())
        .await
        .unwrap()
        .cursor_id()
        .unwrap();
    let more = |id: i64| doc! {"getMore": id, "collection": "c", "batchSize": 10};
    for client in [&mut second, &mut first] {
        let reply = client.command(&db, more(id)).await.unwrap();
        let batch = reply
            .body
            .get_document("cursor")
            .unwrap()
            .get_array("nextBatch")
            .unwrap();
        assert_eq!(batch.len(), 10);
    }
    let id = first.command(&db, find).await.unwrap().cursor_id().unwrap();
    let kill = doc! {"killCursors": "c", "cursors": [id]};
    let killed = second.command(&db, kill).await.unwrap();
    assert_eq!(
        killed.body.get_array("cursorsKilled").unwrap(),
        &vec![Bson::Int64(id)]
    );
    assert_eq!(first.command(&db, more(id)).await.unwrap().code(), Some(43));
    // The flag `exhaustAllowed` permits several replies to one `getMore`, but Seawall returns only
    // one. A driver then sends another `getMore`.
    let find = doc! {"find": "c", "batchSize": 0};
    let id = first.command(&db, find).await.unwrap().cursor_id().unwrap();
    let mut more = more(id);
    more.insert("$db", &db);
    let exhaust = OpMsg::new(more).flags(EXHAUST_ALLOWED);
    let reply = first.exchange(&exhaust).await.unwrap();
    assert!(reply.is_ok() && !reply.has_more_to_come() && reply.cursor_id() == Some(id));
    first.expect_ok(&db, doc! {"ping": 1}).await;
}

#[tokio::test]
async fn snapshot_reads_see_one_point_in_time_on_any_connection() {
    let rig = Rig::shared().await;
    let db = unique_name("snapshot");
    let mut writer = rig.through().await;
    let insert =
        doc! {"insert": "c", "documents": [{"_id": 1, "v": 1}], "writeConcern": {"w": "majority"}};
    writer.expect_ok(&db, insert).await;
    let lsid = doc! {"id": Uuid::new()};
    let value = |reply: &RawReply| {
        let cursor = reply.body.get_document("cursor").unwrap();
        let batch = cursor.get_array("firstBatch").unwrap();
        batch[0].as_document().unwrap().get_i32("v").unwrap()
    };
    let find = doc! {"find": "c", "readConcern": {"level": "snapshot"}, "lsid": &lsid};
    let first = rig
        .through()
        .await
        .command(&db, find.clone())
        .await
        .unwrap();
    if is_before(STABLE_API).await {
        let direct = rig.direct().await.command(&db, find).await.unwrap();
        assert_eq!(first.code(), direct.code(), "{}", first.body);
        assert!(!first.is_ok(), "{}", first.body);
        return;
    }
    assert_eq!(value(&first), 1, "{}", first.body);
    let moment = first.body.get_document("cursor").unwrap();
    let moment = moment.get_timestamp("atClusterTime").unwrap();
    let update = doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"v": 2}}}], "writeConcern": {"w": "majority"}};
    writer.expect_ok(&db, update).await;
    let concern = doc! {"level": "snapshot", "atClusterTime": moment};
    let again = doc! {"find": "c", "readConcern": concern, "lsid": &lsid};
    let again = rig.through().await.command(&db, again).await.unwrap();
    assert_eq!(value(&again), 1, "{}", again.body);
    let ended = doc! {"endSessions": [lsid]};
    writer.expect_ok("admin", ended).await;
    let now = writer.command(&db, doc! {"find": "c"}).await.unwrap();
    assert_eq!(value(&now), 2);
}
