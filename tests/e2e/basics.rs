//! The main job: operations of the official driver through Seawall, nothing configured but the address.

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use seawall_tests::{
    mongod::{NewUser, create_user, shared_replica_set, unique_name},
    raw::{Login, Outcome, RawClient, Verdict},
    seawall::Seawall,
};

#[tokio::test]
async fn crud_cursors_and_transactions_work_through_the_proxy() {
    let set = shared_replica_set().await.unwrap();
    let (db, user) = (unique_name("db"), unique_name("user"));
    let new = NewUser::new("admin", &user, "secret").role("readWriteAnyDatabase", "admin");
    create_user(&set.client().await.unwrap(), &new)
        .await
        .unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let client = seawall.client(&user, "secret", "admin").await;
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

    let shapes = seawall.api("/api/v1/shapes?limit=1000").await;
    let text = shapes.to_string();
    let find = shapes["shapes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["command"] == "find");
    let find = find.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        (find["count"].as_u64(), find["more"]["count"].as_u64()),
        (Some(1), Some(10)),
        "{find}"
    );
}

#[tokio::test]
async fn short_connections_open_no_more_server_connections_and_no_login_reaches_a_server() {
    let set = shared_replica_set().await.unwrap();
    let user = unique_name("user");
    let new = NewUser::new("admin", &user, "secret").role("readWriteAnyDatabase", "admin");
    create_user(&set.client().await.unwrap(), &new)
        .await
        .unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    for n in 0..100 {
        let mut client = RawClient::connect(seawall.address().parse().unwrap())
            .await
            .unwrap();
        let login = Login::new("admin", &user, "secret");
        let Outcome { verdict, replies } = client.login(&login).await.unwrap();
        assert!(
            matches!(verdict, Verdict::Authenticated),
            "login {n}: {verdict:?} {replies:?}"
        );
        let found = client.command("test", doc! {"find": "c"}).await.unwrap();
        assert!(found.is_ok(), "{found:?}");
    }
    let created = seawall
        .metric("seawall_server_connections_created_total", &[])
        .await;
    let logins = seawall
        .metric("seawall_server_authentications_total", &[])
        .await;
    assert!(created <= 2.0, "{created}");
    assert!(logins <= created, "{logins} {created}");
}
