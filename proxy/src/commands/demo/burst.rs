//! Many short connections: each client connects, logs in, asks one thing and leaves.
//!
//! What a deployment sees when an application restarts, or when it opens a client for each of its own
//! requests. The driver remembers the salted password, so the cost is not PBKDF2 but connections and logins.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
    options::ClientOptions,
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    Failure,
    deployment::{Deployment, ServerCounts},
    traffic::{DATABASE, ORDERS},
};

/// Clients in a burst.
pub(super) const CLIENTS: u32 = AT_A_TIME * CLIENTS_EACH;

const AT_A_TIME: u32 = 50;
const CLIENTS_EACH: u32 = 20;

/// What a burst came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) time: Duration,
    /// What the mongod counted meanwhile.
    pub(super) server: ServerCounts,
}

/// Runs a burst and asks the mongod, before and after, what it has counted.
pub(super) async fn measure(
    deployment: &Deployment,
    options: &ClientOptions,
) -> Result<Burst, Failure> {
    let before = deployment.counts().await?;
    let began = Instant::now();
    // Its tasks are aborted when it is dropped.
    let mut tasks = JoinSet::new();
    for _ in 0..AT_A_TIME {
        tasks.spawn(come_and_go(options.clone()));
    }
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    let time = began.elapsed();
    let after = deployment.counts().await?;
    Ok(Burst {
        time,
        server: ServerCounts {
            connections: after.connections - before.connections,
            authentications: after.authentications - before.authentications,
        },
    })
}

async fn come_and_go(options: ClientOptions) -> Result<(), Failure> {
    for number in 0..CLIENTS_EACH {
        let client = Client::with_options(options.clone())?;
        let orders = client.database(DATABASE).collection::<Document>(ORDERS);
        orders.find_one(doc! { "_id": number }).await?;
        client.shutdown().await;
    }
    Ok(())
}
