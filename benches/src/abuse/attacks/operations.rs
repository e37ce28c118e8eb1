//! Operations of a user that take long; and what is no attack, for comparison.

use bson::doc;
use seawall_tests::raw::OpMsg;
use tokio::task::{JoinSet, yield_now};

use crate::abuse::{
    arena::{Arena, Ending},
    testbed::MALLORY,
};

pub(super) async fn nothing(arena: Arena) {
    arena.begin();
    arena.attempted();
    arena.over().await;
}

/// What the attackers' own CPU time costs the victims, without a byte to Seawall.
pub(super) async fn busy_neighbour(arena: Arena) {
    arena.begin();
    arena.attempted();
    let over = arena.over();
    tokio::pin!(over);
    let mut sum = 0_u64;
    loop {
        tokio::select! {
            biased;
            () = &mut over => return,
            () = yield_now() => {}
        }
        for n in 0..100_000_u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n));
        }
    }
}

/// More clients than one user has server connections.
const CLIENTS: u32 = 150;

/// The server's work for each query is to wait, for one second or less.
const QUERIES: [&str; 2] = ["sleep(1000) || true", "sleep(200) || true"];

pub(super) async fn slow_queries(arena: Arena) {
    let clients = arena.many_logged_in(arena.either(CLIENTS, 20), None).await;
    let [whole, quick] = QUERIES;
    let query = arena.either(whole, quick);
    arena.begin();
    let mut asking = JoinSet::new();
    for mut client in clients {
        let arena = arena.clone();
        let filter = doc! {"_id": 1, "$where": query};
        let find = OpMsg::new(doc! {"find": "small", "filter": filter, "$db": MALLORY});
        asking.spawn(async move {
            loop {
                arena.attempted();
                let reply = client.exchange(&find).await;
                let is_closed = reply.is_err();
                arena.ended(Ending::from(reply));
                if is_closed {
                    return;
                }
            }
        });
    }
    arena.over().await;
}
