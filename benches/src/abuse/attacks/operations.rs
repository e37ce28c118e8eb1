//! Attacks with long operations of one user, and with clients that disconnect before they get their
//! reply. For comparison, the module also contains two runs without an attack.

use bson::doc;
use seawall_tests::raw::OpMsg;
use tokio::task::{JoinSet, yield_now};

use crate::abuse::{
    arena::{Arena, Ending, own_find},
    testbed::MALLORY,
};

pub(super) async fn nothing(arena: Arena) {
    arena.begin();
    arena.count_attempt();
    arena.wait_for_end().await;
}

/// Uses the CPU all the time and sends nothing to Seawall. Every attacker uses CPU time on the
/// victims' machine. The results show how much this alone delays the victims.
pub(super) async fn busy_neighbour(arena: Arena) {
    arena.begin();
    arena.count_attempt();
    let end = arena.wait_for_end();
    tokio::pin!(end);
    let mut sum = 0_u64;
    loop {
        tokio::select! {
            biased;
            () = &mut end => return,
            () = yield_now() => {}
        }
        for n in 0..100_000_u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n));
        }
    }
}

/// Number of clients. It exceeds the number of server connections that one user may have.
const CLIENTS: u32 = 150;

/// JavaScript conditions for `$where` that only sleep: for 1 s in a full run, for 0.2 s in a quick
/// run.
const QUERIES: [&str; 2] = ["sleep(1000) || true", "sleep(200) || true"];

pub(super) async fn slow_queries(arena: Arena) {
    // A server needs CPU time for the first JavaScript of each connection. With many clients on a
    // slow machine, few connections would get a reply within a quick run. So a quick run has only
    // four clients.
    let clients = arena.many_logged_in(arena.either(CLIENTS, 4), None).await;
    let [whole, quick] = QUERIES;
    let query = arena.either(whole, quick);
    arena.begin();
    let mut queries = JoinSet::new();
    for mut client in clients {
        let arena = arena.clone();
        let filter = doc! {"_id": 1, "$where": query};
        let find = OpMsg::new(doc! {"find": "small", "filter": filter, "$db": MALLORY});
        queries.spawn(async move {
            loop {
                arena.count_attempt();
                let reply = client.exchange(&find).await;
                let is_closed = reply.is_err();
                arena.count_ending(Ending::from(reply));
                if is_closed {
                    return;
                }
            }
        });
    }
    arena.wait_for_end().await;
    arena.wait_for_first_ending().await;
}

/// Runs clients that send a find and disconnect before they get the reply. After each such client,
/// another client runs a count. This client must get the reply to its count, not to the find.
pub(super) async fn departures(arena: Arena) {
    let attempt = |arena: Arena, number: u32| async move {
        let mut leaving = arena.logged_in().await?;
        let mut find = own_find();
        find.insert("$db", MALLORY);
        leaving.send(&OpMsg::new(find)).await?;
        drop(leaving);
        let mut staying = arena.logged_in().await?;
        let count = doc! {"count": "small", "query": {"_id": {"$ne": i64::from(number)}}};
        let reply = staying.command(MALLORY, count).await;
        Ok(match &reply {
            Ok(reply) if reply.is_ok() && !reply.body.contains_key("n") => {
                Ending::Breach("a client got the reply to another client's find")
            }
            _ => Ending::from(reply),
        })
    };
    arena.attempts(100, attempt).await;
}
