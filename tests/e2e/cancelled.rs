//! Cancellation: a test drops the future that serves a client. In the first run, it drops the
//! future after one poll, in the second run after two polls, and so on. After each drop, all
//! permits and connections must be released, and no other client may get a reply that was meant for
//! the client of the dropped future.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use bson::{Document, doc};
use seawall::client::Peer;
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, shared_replica_set},
    raw::{RawClient, RawError},
    seawall::Seawall,
};
use seawall_transport::Stream;
use tokio::{net::UnixStream, sync::Mutex};

use crate::scene::{logged_in, seawall, seawall_at, writer};

const LIMIT: Duration = Duration::from_secs(20);

/// Maximum number of polls that any script needs.
const MAX_POLLS: usize = 400;

/// Limits that are lower than a test's number of clients, so a test fails if a permit is not
/// released.
const LOW_LIMITS: &str = "listen.max_client_connections = 8
limits.unauthenticated_connections = 8
limits.max_in_flight_operations = 8
";

/// Polls a future at most `times` times. True if the future completed.
async fn poll_times(mut future: Pin<&mut impl Future<Output = ()>>, times: usize) -> bool {
    let mut left = times;
    poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Runs a script as a client until a run completes. In the first run, drops the future that serves
/// the client after one poll, in the second run after two polls, and so on. Calls `check` after
/// each run. Returns the number of runs that did not complete.
async fn cancel_everywhere(
    seawall: &Seawall,
    script: impl AsyncFn(RawClient) -> Result<(), RawError>,
    check: impl AsyncFn(usize),
) -> usize {
    for polls in 1..MAX_POLLS {
        let (near, far) = UnixStream::pair().unwrap();
        let peer = Peer {
            ip: None,
            text: "cancelled".into(),
        };
        let served = seawall.app.serve(Stream::Unix(near), peer);
        let mut served = Box::pin(served.expect("all permits are released"));
        let serving = async {
            poll_times(served.as_mut(), polls).await;
            drop(served);
        };
        let (ran, ()) = tokio::join!(script(RawClient::new(far)), serving);
        check(polls).await;
        if ran.is_ok() {
            return polls - 1;
        }
    }
    panic!("the script did not end in {MAX_POLLS} polls");
}

/// Waits until Seawall has no client, no connection in use and no queued operation.
async fn wait_until_nothing_is_held(seawall: &Seawall) {
    let is_free = async || {
        let snapshot = seawall.app.topology().snapshot();
        let is_idle = snapshot.pools.iter().all(|pool| {
            let pool = pool.snapshot();
            pool.in_use == 0 && pool.wait_queue == 0
        });
        is_idle && seawall.app.operations_in_flight() == 0
    };
    eventually(LIMIT, is_free)
        .await
        .expect("all permits and connections are released");
}

/// Checks that another client of the same user still gets its own replies.
async fn assert_own_replies(witness: &mut RawClient, user: &NewUser, n: usize) {
    let id = i64::try_from(n).unwrap();
    let insert = doc! { "insert": "witness", "documents": [{ "_id": id }] };
    let reply = witness.command(&user.name, insert).await.unwrap();
    assert!(reply.is_ok(), "{reply:?}");
    let find = doc! { "find": "witness", "filter": { "_id": id } };
    let reply = witness.command(&user.name, find).await.unwrap();
    let cursor = reply.body.get_document("cursor").unwrap();
    let batch = cursor.get_array("firstBatch").unwrap();
    assert_eq!(batch, &[doc! { "_id": id }.into()]);
}

/// Runs [`cancel_everywhere`]. After each drop, checks that all permits and connections are
/// released, and that another client gets its own replies.
async fn cancel_beside_witness(
    seawall: &Seawall,
    user: &NewUser,
    script: impl AsyncFn(RawClient) -> Result<(), RawError>,
) -> usize {
    let witness = Mutex::new(logged_in(seawall, &user.login()).await);
    let check = async |n| {
        assert_own_replies(&mut *witness.lock().await, user, n).await;
        wait_until_nothing_is_held(seawall).await;
    };
    cancel_everywhere(seawall, script, check).await
}

async fn run(client: &mut RawClient, db: &str, commands: &[Document]) -> Result<(), RawError> {
    for command in commands {
        client.command(db, command.clone()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_cancelled_login_or_operation_releases_all_permits_and_connections() {
    let seawall = seawall(LOW_LIMITS).await;
    let user = writer().await;
    let script = async |mut client: RawClient| {
        client.hello(doc! {}).await?;
        let outcome = client.login(&user.login()).await?;
        assert!(outcome.is_authenticated());
        let commands = [
            doc! { "insert": "c", "documents": [{ "a": 1 }] },
            doc! { "find": "c", "filter": { "a": 1 }, "batchSize": 1 },
            doc! { "update": "c", "updates": [{ "q": {}, "u": { "$inc": { "b": 1 } } }] },
        ];
        run(&mut client, &user.name, &commands).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 8,
        "expected more drops than permits, got {cancelled}"
    );
}

#[tokio::test]
async fn a_cancelled_large_message_releases_all_permits_and_connections() {
    let seawall = seawall(LOW_LIMITS).await;
    let user = writer().await;
    let text = "x".repeat(1_500_000);
    let script = async |mut client: RawClient| {
        client.login(&user.login()).await?;
        let commands = [
            doc! { "insert": "large", "documents": [{ "text": &text }] },
            doc! { "find": "large", "batchSize": 1 },
        ];
        run(&mut client, &user.name, &commands).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 8,
        "expected more drops than permits, got {cancelled}"
    );
}

#[tokio::test]
async fn a_cancelled_wait_for_a_connection_releases_all_permits_and_connections() {
    let toml = format!("{LOW_LIMITS}pool.max_pool_size = 1\n");
    let seawall = seawall(&toml).await;
    let user = writer().await;
    let mut holder = logged_in(&seawall, &user.login()).await;
    let insert = doc! { "insert": "c", "documents": [{ "a": 1 }] };
    run(&mut holder, &user.name, &[insert]).await.unwrap();
    let slow = doc! { "find": "c", "filter": { "$where": "sleep(50) || true" }, "limit": 1 };
    let holder = Mutex::new(&mut holder);
    let script = async |mut client: RawClient| {
        client.login(&user.login()).await?;
        let mut holder = holder.lock().await;
        let held = holder.command(&user.name, slow.clone());
        let waits = client.command(&user.name, doc! { "find": "c" });
        let (held, waited) = tokio::join!(held, waits);
        assert!(held.unwrap().is_ok());
        waited.map(drop)
    };
    let cancelled = cancel_everywhere(&seawall, script, async |_| {
        wait_until_nothing_is_held(&seawall).await
    });
    assert!(cancelled.await > 2);
}

#[tokio::test]
async fn a_cancelled_server_selection_releases_all_permits_and_connections() {
    let set = shared_replica_set().await.unwrap();
    let toml = format!("{LOW_LIMITS}deployment.server_selection_timeout_ms = 200\n");
    let seawall = seawall_at(&set.uri(), &toml).await;
    let script = async |mut client: RawClient| {
        let preference = doc! { "mode": "secondary", "tags": [{ "rack": "none" }] };
        let find = doc! { "find": "c", "$readPreference": preference };
        for _ in 0..9 {
            let reply = client.command("db", find.clone()).await?;
            assert!(!reply.is_ok(), "expected no suitable server: {reply:?}");
        }
        Ok(())
    };
    let cancelled = cancel_everywhere(&seawall, script, async |_| {
        wait_until_nothing_is_held(&seawall).await
    });
    assert!(cancelled.await > 8);
}

#[tokio::test]
async fn a_cancelled_first_login_releases_all_permits_and_connections() {
    let toml =
        format!("{LOW_LIMITS}limits.introductions = 2\nlimits.introduction_conversations = 2\n");
    let seawall = seawall(&toml).await;
    let user = writer().await;
    let script = async |mut client: RawClient| {
        let newcomer = writer().await;
        client.hello(doc! {}).await?;
        let outcome = client.login(&newcomer.login()).await?;
        assert!(outcome.is_authenticated());
        run(&mut client, &newcomer.name, &[doc! { "find": "c" }]).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 4,
        "expected more drops than introductions, got {cancelled}"
    );
}

#[tokio::test]
async fn a_cancelled_relay_releases_all_permits_and_connections() {
    let seawall = seawall(&format!("{LOW_LIMITS}deployment.mode = \"relay\"\n")).await;
    let user = writer().await;
    let text = "x".repeat(1_500_000);
    let script = async |mut client: RawClient| {
        client.hello(doc! {}).await?;
        let outcome = client.login(&user.login()).await?;
        assert!(outcome.is_authenticated());
        let commands = [
            doc! { "insert": "large", "documents": [{ "text": &text }] },
            doc! { "find": "large", "batchSize": 1 },
        ];
        run(&mut client, &user.name, &commands).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 8,
        "expected more drops than permits, got {cancelled}"
    );
}
