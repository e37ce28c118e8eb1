//! A driver with default options connects to a standalone server through Seawall.

use futures_util::TryStreamExt;
use mongodb::{
    Client,
    bson::{Document, doc},
    options::{ClientOptions, Credential},
};
use seawall_tests::{
    mongod::{ROOT, ROOT_PASSWORD, server_version, shared_standalone, unique_name},
    seawall::Seawall,
};

use crate::language::Language;

#[tokio::test]
async fn rust_driver_works_with_a_standalone_and_default_options() {
    let server = shared_standalone().await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let mut options = ClientOptions::parse(seawall.uri()).await.unwrap();
    let credential = Credential::builder().username(ROOT.to_owned());
    let password = ROOT_PASSWORD.to_owned();
    options.credential = Some(credential.password(password).build());
    let client = Client::with_options(options).unwrap();
    let things = client
        .database(&unique_name("db"))
        .collection::<Document>("things");
    if server_version().await.unwrap() < Language::Rust.oldest_server() {
        let refused = things.insert_one(doc! {}).await.unwrap_err();
        assert!(refused.to_string().contains("wire version"), "{refused}");
        return;
    }
    // A standalone refuses a write with a transaction number, so the driver must send no
    // transaction number.
    things
        .insert_many((0..300).map(|n| doc! {"_id": n}))
        .await
        .unwrap();
    things
        .update_one(doc! {"_id": 1}, doc! {"$set": {"a": 1}})
        .await
        .unwrap();
    let found: Vec<_> = things
        .find(doc! {})
        .batch_size(50)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(found.len(), 300);
}
