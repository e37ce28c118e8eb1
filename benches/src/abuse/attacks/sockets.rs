//! Connections that only take places.

use bson::doc;
use seawall_tests::raw::{RawClient, RawError};

use crate::abuse::arena::{Arena, Ending};

/// Connections opened a second.
const PER_SECOND: u32 = 500;

/// Connections opened with each tick of the pace: timers of a millisecond would be busier than the attack.
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

/// Opens connections at a pace until there are as many as one address may have, and holds them. Those of a quick run
/// are few.
async fn hold(arena: Arena, open: impl AsyncFn(&Arena) -> Result<RawClient, RawError>) {
    arena.begin();
    let mut clients = Vec::new();
    let count = arena.either(4096, 200);
    let mut pace = arena.pace(arena.either(2 * PER_SECOND, PER_SECOND) / AT_A_TIME);
    let mut opened = 0;
    while opened < count && pace.next().await {
        for _ in 0..AT_A_TIME {
            opened += 1;
            arena.attempted();
            match open(&arena).await {
                Ok(client) => clients.push(client),
                Err(_) => arena.ended(Ending::Closed),
            }
        }
    }
    arena.over().await;
    arena.look_at(clients).await;
}
