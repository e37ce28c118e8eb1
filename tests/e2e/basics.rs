//! Tests of basic use: operations of the official driver, many short connections, and
//! `getLastError`.

#![expect(clippy::unwrap_used, reason = "test helpers may panic, as tests do")]

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use seawall_api::Shapes;
use seawall_tests::{
    mongod::{
        NewUser, Options, ROOT, ROOT_PASSWORD, ServerVersion, Standalone, create_user,
        server_version, shared_replica_set, unique_name,
    },
    raw::{KeyCache, Login, Mechanism, Outcome, RawClient, RawReply, Verdict},
    seawall::Seawall,
};
use tokio::task::JoinSet;

use crate::scene;

/// The first server version that replies to `getLastError` with an error.
const NO_GET_LAST_ERROR: ServerVersion = ServerVersion(5, 1, 0);

#[tokio::test]
async fn get_last_error_is_always_refused_and_is_forwarded_only_to_servers_that_refuse_it_too() {
    let (seawall, recorder) = scene::recorded("").await;
    let user = scene::writer().await;
    let mut client = scene::logged_in(&seawall, &user.login()).await;
    let mut direct = scene::server().await.raw_client().await.unwrap();
    direct.login(&user.login()).await.unwrap();
    for name in ["getLastError", "getlasterror"] {
        let command = || doc! {name: 1, "w": "majority"};
        let reply = client.command(&user.name, command()).await.unwrap();
        assert_eq!(reply.code(), Some(5_739_000), "{reply:?}");
        if server_version().await.unwrap() >= NO_GET_LAST_ERROR {
            let expected = direct.command(&user.name, command()).await.unwrap();
            let text = |reply: &RawReply| reply.body.get_str("errmsg").unwrap().to_owned();
            assert_eq!(expected.code(), reply.code());
            assert_eq!(text(&expected), text(&reply));
        }
        let is_forwarded = !scene::commands_named(&recorder, name).is_empty();
        assert_eq!(
            is_forwarded,
            server_version().await.unwrap() >= NO_GET_LAST_ERROR
        );
    }
}

#[tokio::test]
async fn operations_and_cursors_and_transactions_work_through_the_proxy() {
    let set = shared_replica_set().await.unwrap();
    let (db, user) = (unique_name("db"), unique_name("user"));
    let new = NewUser::new("admin", &user, "secret").role("readWriteAnyDatabase", "admin");
    create_user(&set.administrator().await.unwrap(), &new)
        .await
        .unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let client = seawall.client(&user, "secret", "admin").await;
    if server_version().await.unwrap() < OLDEST_OF_THE_DRIVER {
        // The driver creates this error, because it does not support the server. `tests/matrix`
        // compares the error text with the text that the driver gives on a direct connection.
        let refused = client.list_database_names().await.unwrap_err();
        assert!(refused.to_string().contains("wire version"), "{refused}");
        return;
    }
    let collection = client.database(&db).collection::<Document>("things");
    let documents = (0..500).map(|n| doc! {"_id": n, "text": "x".repeat(1000)});
    collection.insert_many(documents).await.unwrap();
    let found: Vec<_> = collection
        .find(doc! {})
        .batch_size(50)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(found.len(), 500);
    collection
        .update_one(doc! {"_id": 3}, doc! {"$set": {"seen": true}})
        .await
        .unwrap();
    collection.delete_one(doc! {"_id": 4}).await.unwrap();
    let count = collection
        .count_documents(doc! {"_id": {"$lt": 10}})
        .await
        .unwrap();
    assert_eq!(count, 9);
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    collection
        .insert_one(doc! {"_id": 1000})
        .session(&mut session)
        .await
        .unwrap();
    collection
        .insert_one(doc! {"_id": 1001})
        .session(&mut session)
        .await
        .unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(collection.estimated_document_count().await.unwrap(), 501);

    let shapes: Shapes = seawall.api("/api/v1/shapes?limit=1000").await;
    let find = shapes.shapes.iter().find(|shape| shape.command == "find");
    let find = find.unwrap_or_else(|| panic!("{shapes:?}"));
    assert_eq!((find.count, find.more.count), (1, 10), "{find:?}");
}

#[tokio::test]
async fn a_thousand_short_connections_need_one_server_login_per_pooled_connection() {
    const CONNECTIONS: usize = 1000;
    const AT_A_TIME: usize = 20;
    const MAX_POOL_SIZE: usize = 10;
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWriteAnyDatabase", "admin");
    let administrator = server.administrator().await.unwrap();
    create_user(&administrator, &user).await.unwrap();
    let mut root = server.raw_client().await.unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(root.login(&login).await.unwrap().is_authenticated());
    let toml = format!("[pool]\nmax_pool_size = {MAX_POOL_SIZE}\n");
    let seawall = Seawall::start_configured(&server.uri(), &toml).await;
    let before = scram_conversations(&mut root).await;

    let login = user
        .login()
        .mechanism(Mechanism::ScramSha256)
        .keys(&KeyCache::default());
    let address = seawall.address().parse().unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..AT_A_TIME {
        let login = login.clone();
        clients.spawn(async move {
            for n in 0..CONNECTIONS / AT_A_TIME {
                let mut client = RawClient::connect(address).await.unwrap();
                assert!(client.greet(doc! {}).await.unwrap().is_ok());
                let Outcome { verdict, replies } = client.login(&login).await.unwrap();
                assert_eq!(verdict, Verdict::Authenticated, "login {n}: {replies:?}");
                client.expect_ok("test", doc! {"find": "c"}).await;
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }

    let logins = seawall
        .metric("seawall_client_authentications_total", &["result=\"ok\""])
        .await;
    assert_eq!(whole(logins), CONNECTIONS);
    let created = seawall
        .metric("seawall_server_connections_created_total", &[])
        .await;
    let created = whole(created);
    assert!(
        (1..=MAX_POOL_SIZE).contains(&created),
        "expected 1 to {MAX_POOL_SIZE} new server connections, got {created}"
    );
    // The first login of a user uses a server connection that then joins the pool. So the first
    // login causes no additional login at the server, and each pooled connection has exactly one
    // login.
    let authentications = seawall
        .metric("seawall_server_authentications_total", &[])
        .await;
    assert_eq!(whole(authentications), created);
    if let (Some(before), Some(after)) = (before, scram_conversations(&mut root).await) {
        assert_eq!((after - before).to_string(), created.to_string());
    }
}

/// The oldest server version that the Rust driver supports.
const OLDEST_OF_THE_DRIVER: ServerVersion = ServerVersion(4, 4, 0);

/// Number of SCRAM-SHA-256 conversations that the server counted. `None` for servers before 4.4,
/// because they do not count the conversations.
async fn scram_conversations(root: &mut RawClient) -> Option<i64> {
    if server_version().await.unwrap() < ServerVersion(4, 4, 0) {
        return None;
    }
    let status = root
        .command("admin", doc! {"serverStatus": 1})
        .await
        .unwrap();
    let mechanisms = status
        .body
        .get_document("security")
        .unwrap()
        .get_document("authentication")
        .unwrap();
    let scram = mechanisms
        .get_document("mechanisms")
        .unwrap()
        .get_document("SCRAM-SHA-256")
        .unwrap();
    let counted = scram.get_document("authenticate").unwrap();
    Some(counted.get_i64("received").unwrap())
}

fn whole(metric: f64) -> usize {
    metric
        .to_string()
        .parse()
        .unwrap_or_else(|_| panic!("{metric} is not a count"))
}
