//! The compared targets: a mongod, HAProxy in front of it, and Seawall in front of it.

use std::{sync::Arc, time::Duration};

use bson::{Document, RawDocumentBuf, doc};
use seawall_auth::{
    Identity, Login, Mechanism, NonceSource, derive_from_password, parse_users_info,
    users_info_command,
};
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, Options, ReplicaSet, create_user},
    process::binary,
    scratch::Scratch,
};
use seawall_transport::connection::{Connection, Connector, ServerAddress};

use crate::process::{Process, free_port, haproxy, serve};

/// The user as which the load logs in.
const USER: &str = "load";
const PASSWORD: &str = "only-a-bench";

/// Number of documents in each collection.
pub const DOCUMENTS: i32 = 1000;

/// A target of the load.
#[derive(Debug)]
pub struct Target {
    /// The target's name in the table.
    pub name: &'static str,
    /// The address that the load connects to.
    pub address: ServerAddress,
    /// The process of the proxy; `None` for direct connections.
    pub process: Option<Process>,
}

/// The deployment and all targets of a comparison.
#[derive(Debug)]
pub struct Setup {
    /// A replica set of one member, with authentication.
    pub set: ReplicaSet,
    /// The compared targets. The first is direct, the last is Seawall.
    pub targets: Vec<Target>,
    identity: Identity,
    connector: Connector,
    _scratch: Scratch,
}

impl Setup {
    /// Starts the deployment and the targets. `pool_size` is Seawall's `max_pool_size`.
    pub async fn start(pool_size: usize) -> Self {
        let options = Options::with_auth();
        let set = ReplicaSet::start(1, options)
            .await
            .expect("a mongod starts");
        let client = set.client().await.expect("the server accepts connections");
        let user = NewUser::new("admin", USER, PASSWORD).role("readWriteAnyDatabase", "admin");
        create_user(&client, &user)
            .await
            .expect("the user can be created");
        for (collection, bytes) in [("small", 100), ("large", 16 * 1024)] {
            let documents = (0..DOCUMENTS).map(|n| doc! {"_id": n, "text": "x".repeat(bytes)});
            let collection = client.database("bench").collection::<Document>(collection);
            collection
                .insert_many(documents)
                .await
                .expect("documents can be inserted");
        }
        let identity = identity(&client).await;
        let nonces = Arc::new(NonceSource::new().expect("the system has random bytes"));
        let scratch = Scratch::create().expect("the directory can be created");
        let server = set
            .primary()
            .await
            .expect("the set has a primary")
            .address()
            .to_string();
        let mut targets = vec![Target {
            name: "direct",
            address: server.parse().expect("the address is valid"),
            process: None,
        }];
        targets.extend(behind_haproxy(&scratch, &server));
        targets.push(behind_seawall(&server, pool_size));
        let setup = Self {
            set,
            targets,
            identity,
            connector: Connector::new(None, Vec::new(), Duration::from_secs(30), nonces),
            _scratch: scratch,
        };
        for target in &setup.targets {
            let connect = || async { setup.connect(&target.address).await };
            eventually(Duration::from_secs(20), connect)
                .await
                .expect("every target accepts logins");
        }
        setup
    }

    /// Connects and logs in with keys that were derived once, so that PBKDF2 is not measured.
    ///
    /// # Errors
    /// If the target refuses the connection or the login.
    pub async fn connect(
        &self,
        address: &ServerAddress,
    ) -> Result<Connection, seawall_transport::connection::EstablishError> {
        self.connector.establish(address, &self.identity).await
    }
}

async fn identity(root: &mongodb::Client) -> Identity {
    let command = users_info_command(USER, "admin");
    let command = Document::try_from(command).expect("the command can be decoded");
    let reply = root
        .database("admin")
        .run_command(command)
        .await
        .expect("usersInfo succeeds");
    let reply = RawDocumentBuf::try_from(&reply).expect("the reply can be encoded");
    let read = parse_users_info(&reply, USER, "admin").expect("the user has credentials");
    let keys = read
        .keys(Mechanism::ScramSha256)
        .expect("the user has SCRAM-SHA-256 keys");
    let (salt, iterations) = (keys.salt(), keys.iterations());
    let derived = derive_from_password(Mechanism::ScramSha256, USER, PASSWORD, salt, iterations);
    let derived = derived.expect("keys can be derived");
    let login = Login::Keys {
        client_key: derived.client_key,
        keys: derived.keys,
    };
    Identity::new(USER, "admin", None, login)
}

fn behind_haproxy(scratch: &Scratch, server: &str) -> Option<Target> {
    let port = free_port().expect("a port is free");
    let process = haproxy(scratch.path(), server, port).expect("HAProxy starts")?;
    let address = format!("127.0.0.1:{port}")
        .parse()
        .expect("the address is valid");
    Some(Target {
        name: "HAProxy",
        address,
        process: Some(process),
    })
}

fn behind_seawall(server: &str, pool_size: usize) -> Target {
    let port = free_port().expect("a port is free");
    let mut command = serve(binary());
    command
        .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", "off"])
        .args(["--deployment", &format!("mongodb://{server}/")])
        .env("SEAWALL_POOL__MAX_POOL_SIZE", pool_size.to_string());
    let process = Process::start(&mut command).expect("Seawall starts");
    let address = format!("127.0.0.1:{port}")
        .parse()
        .expect("the address is valid");
    Target {
        name: "Seawall",
        address,
        process: Some(process),
    }
}
