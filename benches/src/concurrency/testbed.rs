//! A mongod with documents, a delaying relay in front of it, and Seawall processes.

use std::time::Duration;

use bson::doc;
use seawall_tests::{
    mongod::{FailTimes, Options, Standalone, clear_fail_command, fail_command},
    process::binary,
};
use seawall_transport::connection::{Connection, ServerAddress};

use super::{delay::DelayingRelay, plan::Situation};
use crate::{
    insight::{Plan, seawall::Seawall},
    load::{DATABASE, SLOW, SMALL},
    process::cpu_split,
    setup::{Clients, process_id},
};

/// The delay of commands between Seawall and the server in [`Situation::Delay`].
const DELAY: Duration = Duration::from_millis(5);

/// How long the server blocks a slow operation in [`Situation::Slow`], in milliseconds.
const SLOW_MS: i32 = 200;

/// Seawall's settings, except for `pool.concurrency`, the concurrency limit that the bench varies.
///
/// - The pool must allow at least as many operations as the largest fixed limit. It allows 500
///   connections to a server. So at most 500 operations are in progress if `pool.concurrency` is
///   `off`.
/// - The pool must establish connections quickly, so that all connections are open when the warm-up
///   ends.
/// - With a low limit and 4,000 clients, an operation waits longer than ten seconds, the default of
///   `pool.wait_queue_timeout_ms`. So the time limit must be longer.
const SETTINGS: &str = "\
pool.max_pool_size = 500
pool.max_server_connections = 500
pool.max_connecting = 16
pool.connections_per_second = 0
pool.wait_queue_timeout_ms = 60000
";

/// A running server. [`ConcurrencyTestbed::seawall`] starts a Seawall process in front of the
/// server.
#[derive(Debug)]
pub struct ConcurrencyTestbed {
    server: Standalone,
    root: mongodb::Client,
    clients: Clients,
    relay: DelayingRelay,
    plan: Plan,
}

impl ConcurrencyTestbed {
    /// Starts the server and the relay, and creates the clients' user and documents in the server.
    ///
    /// # Panics
    /// If the server does not start or refuses a command.
    pub async fn start(is_quick: bool) -> Self {
        let server = Standalone::start(Options::with_auth()).await;
        let server = server.expect("a mongod starts");
        let root = server.client().expect("the server accepts connections");
        let clients = Clients::prepare(&root, &[SMALL, SLOW]).await;
        let relay = DelayingRelay::start(server.address(), DELAY).expect("the relay starts");
        Self {
            server,
            root,
            clients,
            relay,
            plan: Plan {
                binary: binary().to_owned(),
                is_quick,
            },
        }
    }

    /// Prepares the server for a situation.
    ///
    /// # Panics
    /// If the server refuses the command.
    pub async fn prepare(&self, situation: Situation) {
        let changed = match situation {
            // An operation that the fail point `failCommand` blocks uses no CPU time at the server,
            // and other operations do not wait for it.
            Situation::Slow => {
                let data = doc! {
                    "failCommands": ["find"], "namespace": format!("{DATABASE}.{}", SLOW.name),
                    "blockConnection": true, "blockTimeMS": SLOW_MS,
                };
                fail_command(&self.root, FailTimes::Always, data).await
            }
            Situation::Plain | Situation::Delay | Situation::Change => {
                clear_fail_command(&self.root).await
            }
        };
        changed.expect("failCommand is accepted");
    }

    /// Starts Seawall with a value of `pool.concurrency`, and waits until clients can log in.
    ///
    /// # Panics
    /// If Seawall does not become ready.
    pub async fn seawall(&self, situation: Situation, limit: &str) -> Seawall {
        let uri = match situation {
            Situation::Delay => format!("mongodb://{}/", self.relay.address()),
            Situation::Plain | Situation::Slow | Situation::Change => self.server.uri(),
        };
        let concurrency = match limit.parse::<u32>() {
            Ok(number) => number.to_string(),
            Err(_) => format!("{limit:?}"),
        };
        let toml = format!("pool.concurrency = {concurrency}\n{SETTINGS}");
        let seawall = Seawall::start(&self.plan, &uri, &toml).await;
        seawall.wait_for_credential_source().await;
        seawall
    }

    /// Establishes client connections to Seawall.
    ///
    /// # Panics
    /// If Seawall refuses a connection.
    pub async fn connect(&self, seawall: &Seawall, count: usize) -> Vec<Connection> {
        let address = seawall.address().to_string();
        let address: ServerAddress = address.parse().expect("the address is valid");
        self.clients.connect_all(&address, count).await
    }

    /// The CPU time of the server since its start.
    ///
    /// # Panics
    /// If the server does not run.
    pub fn server_cpu(&self) -> Duration {
        let (user, system) = cpu_split(process_id(self.server.mongod()));
        user + system
    }
}
