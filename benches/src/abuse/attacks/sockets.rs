//! Attacks that open connections and do not log in. They open as many connections as Seawall allows
//! for clients that have not logged in.

use bson::doc;
use seawall_tests::raw::{RawClient, RawError};

use crate::abuse::arena::{Arena, Ending};

/// Number of connections opened per second in a quick run. A full run opens twice as many.
const PER_SECOND: u32 = 500;

/// Number of connections opened per tick. With one connection per tick, a full run would need a
/// tick every millisecond. These ticks would take more CPU time than the attack.
const AT_A_TIME: u32 = 5;

pub(super) async fn silent(arena: Arena) {
    hold(arena, async |arena| arena.connect().await).await;
}

pub(super) async fn greeted(arena: Arena) {
    let open = async |arena: &Arena| {
        let mut client = arena.connect().await?;
        client.hello(doc! {}).await?;
        Ok::<_, RawError>(client)
    };
    hold(arena, open).await;
}

/// Opens 4,096 connections, the default of `limits.unauthenticated_connections`, and keeps them
/// open. A quick run opens 200.
async fn hold(arena: Arena, open: impl AsyncFn(&Arena) -> Result<RawClient, RawError>) {
    arena.begin();
    let mut clients = Vec::new();
    let count = arena.either(4096, 200);
    let mut pace = arena.pace(arena.either(2 * PER_SECOND, PER_SECOND) / AT_A_TIME);
    let mut opened = 0;
    while opened < count && pace.next().await {
        for _ in 0..AT_A_TIME {
            opened += 1;
            arena.count_attempt();
            match open(&arena).await {
                Ok(client) => clients.push(client),
                Err(_) => arena.count_ending(Ending::Closed),
            }
        }
    }
    arena.wait_for_end().await;
    arena.count_open(clients).await;
}
