//! Rehearsals through a running Seawall: its captures are replayed on other servers and compared.

use mongodb::{
    Client,
    bson::{Document, doc},
};
use seawall_redact::{Mode, Redactor};
use seawall_tests::{process, scratch::Scratch};

use super::{
    capture::section,
    replay::{Prepared, assert_verdicts, reads},
    scene,
};

const KEY: &str = "a key with more than sixteen bytes";

#[tokio::test]
async fn a_redacted_capture_on_redacted_data_gives_the_same_verdicts() {
    let (source, target) = tokio::join!(Prepared::start(), Prepared::empty());
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let [from, to] = [&source, &target].map(|server| format!("mongodb://{}/", server.address));
    let keys = format!("redact = \"ordered\"\nredact_key_file = {key:?}");
    let seawall = scene::seawall_at(&source.set.uri(), &section(&scratch, &keys)).await;
    let id = seawall.start_capture("").await;
    let uri = format!("mongodb://{}/", seawall.address());
    reads(Client::with_uri_str(uri).await.unwrap()).await;
    let capture = seawall.stop_capture(&id).await;
    assert!(capture.omitted.is_empty(), "{capture:?}");

    let key = key.to_str().unwrap();
    let copy = [
        "load",
        "copy",
        "--from",
        &from,
        "--to",
        &to,
        "--redact-key",
        key,
    ];
    let copied = process::run(&[&copy[..], &["--namespace", "shop"]].concat()).await;
    assert!(copied.status.success(), "{copied:?}");
    let redactor = Redactor::new(KEY.as_bytes(), Mode::Ordered);
    let changed = doc! { "_id": 63 }.to_vec().unwrap();
    let changed = redactor.document(&changed).unwrap();
    let changed = Document::from_reader(changed.as_slice()).unwrap();
    assert_ne!(changed, doc! { "_id": 63 });
    assert_verdicts(&target, &scratch.join("captures").join(&id), changed).await;
}
