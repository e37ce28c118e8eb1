//! A burst of short connections: each client connects, logs in, runs one operation and disconnects.
//!
//! A deployment sees such a burst when an application restarts, or when an application opens a new
//! client for each request that the application serves. The driver caches the salted password, so
//! the clients do not compute PBKDF2 again: a burst measures the cost of connections and logins.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
    options::ClientOptions,
};
use tokio::{task::JoinSet, time::Instant};

use super::{
    DemoError,
    deployment::{Deployment, ServerCounts},
    traffic::{DATABASE, ORDERS},
};

/// The number of clients in a burst.
pub(super) const CLIENTS: u32 = AT_A_TIME * CLIENTS_EACH;

const AT_A_TIME: u32 = 50;
const CLIENTS_EACH: u32 = 20;

/// The result of a burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) time: Duration,
    /// The increase of each counter of the mongod during the burst.
    pub(super) server: ServerCounts,
}

/// Runs a burst and reads the mongod's counters before and after it.
pub(super) async fn measure(
    deployment: &Deployment,
    options: &ClientOptions,
) -> Result<Burst, DemoError> {
    let before = deployment.counts().await?;
    let began = Instant::now();
    // If a client fails, this function returns and drops the set, which aborts the other tasks.
    let mut tasks = JoinSet::new();
    for _ in 0..AT_A_TIME {
        tasks.spawn(run_short_lived_clients(options.clone()));
    }
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    let time = began.elapsed();
    let after = deployment.counts().await?;
    Ok(Burst {
        time,
        server: after.since(before),
    })
}

async fn run_short_lived_clients(options: ClientOptions) -> Result<(), DemoError> {
    for number in 0..CLIENTS_EACH {
        let client = Client::with_options(options.clone())?;
        let orders = client.database(DATABASE).collection::<Document>(ORDERS);
        orders.find_one(doc! { "_id": number }).await?;
        client.shutdown().await;
    }
    Ok(())
}
