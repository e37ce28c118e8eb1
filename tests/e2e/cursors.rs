//! Tests of how Seawall remembers the server of each cursor, and of `killCursors` while the server
//! of a cursor does not run.

use std::time::Duration;

use mongodb::bson::doc;
use seawall_api::Pools;
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, Standalone},
    raw::RawClient,
    seawall::Seawall,
};

const LIMIT: Duration = Duration::from_secs(60);

/// With these settings, Seawall can remember the server of only one cursor. The server selection
/// timeout is longer than [`LIMIT`], so a command that waits for a server until this timeout fails
/// the test.
const SETTINGS: &str = "deployment.server_selection_timeout_ms = 600000\nlimits.max_cursors = 1\n";

struct CursorScene {
    server: Standalone,
    seawall: Seawall,
    client: RawClient,
    /// The id of a cursor that `client` has opened.
    cursor: i64,
}

impl CursorScene {
    async fn start() -> Self {
        let server = Standalone::start(Options::default()).await.unwrap();
        let seawall = Seawall::start_configured(&server.uri(), SETTINGS).await;
        let address = seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        client.set_limit(LIMIT);
        let documents: Vec<_> = (0..5).map(|id| doc! {"_id": id}).collect();
        let insert = doc! {"insert": "things", "documents": documents};
        assert!(client.command("test", insert).await.unwrap().is_ok());
        let cursor = open_cursor(&mut client).await;
        let scene = Self {
            server,
            seawall,
            client,
            cursor,
        };
        assert_eq!(scene.not_remembered().await, 0.0);
        scene
    }

    /// Number of cursors whose server Seawall could not remember.
    async fn not_remembered(&self) -> f64 {
        let name = "seawall_unobserved_total";
        let labels = ["reason=\"cursor_pins_full\""];
        self.seawall.metric(name, &labels).await
    }
}

async fn open_cursor(client: &mut RawClient) -> i64 {
    let find = doc! {"find": "things", "batchSize": 2};
    let found = client.command("test", find).await.unwrap();
    found.cursor_id().unwrap()
}

/// Drivers wait for the reply to `killCursors` before they report the error of a `getMore`. So a
/// late reply would delay this error.
#[tokio::test]
async fn kill_cursors_does_not_wait_long_for_a_server_that_has_failed() {
    let mut scene = CursorScene::start().await;
    scene.server.mongod().kill().await.unwrap();
    let is_paused = || async {
        let pools: Pools = scene.seawall.api("/api/v1/pools").await;
        pools.pools.iter().all(|pool| pool.state == "paused")
    };
    eventually(LIMIT, is_paused).await.unwrap();
    let kill = doc! {"killCursors": "things", "cursors": [scene.cursor]};
    let reply = scene.client.command("test", kill).await.unwrap();
    assert!(reply.is_ok(), "{reply:?}");
    let alive = reply.body.get_array("cursorsAlive").unwrap();
    assert_eq!(*alive, [scene.cursor.into()]);
}

#[tokio::test]
async fn a_cursor_that_a_server_did_not_find_no_longer_counts_towards_max_cursors() {
    let mut scene = CursorScene::start().await;
    let mut direct = scene.server.raw_client().await.unwrap();
    let kill = doc! {"killCursors": "things", "cursors": [scene.cursor]};
    assert!(direct.command("test", kill).await.unwrap().is_ok());
    let more = doc! {"getMore": scene.cursor, "collection": "things"};
    let reply = scene.client.command("test", more).await.unwrap();
    assert_eq!(reply.code(), Some(43), "{reply:?}");
    open_cursor(&mut scene.client).await;
    assert_eq!(scene.not_remembered().await, 0.0);
    open_cursor(&mut scene.client).await;
    assert_eq!(scene.not_remembered().await, 1.0);
}
