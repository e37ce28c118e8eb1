//! The compared targets: a mongod, HAProxy in front of it, and Seawall in front of it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

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

use crate::{
    load::{DATABASE, HUGE, LARGE, SMALL},
    process::{Process, free_port, haproxy, serve},
};

/// The user as which the load logs in.
const USER: &str = "load";
const PASSWORD: &str = "only-a-bench";

/// A target of the load.
#[derive(Debug)]
pub struct Target {
    /// The target's name in the table.
    pub name: String,
    /// The address that the load connects to.
    pub address: ServerAddress,
    /// The process of the proxy; `None` for direct connections.
    pub process: Option<Process>,
}

/// A Seawall to compare: a binary and its settings.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The name in the table.
    pub name: String,
    /// The binary `seawall`.
    pub binary: PathBuf,
    /// Environment variables, such as `SEAWALL_POOL__MAX_POOL_SIZE`.
    pub environment: Vec<(String, String)>,
}

impl Instance {
    /// The binary of this build with the default configuration.
    pub fn own() -> Self {
        Self {
            name: "Seawall".to_owned(),
            binary: binary().to_owned(),
            environment: Vec::new(),
        }
    }

    /// Parses `NAME=BINARY` or `NAME=BINARY,VARIABLE=VALUE,…`, without `SEAWALL_` before the
    /// variables. An empty `BINARY` means the binary of this build. `None` if the text has another
    /// form.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',').map(|part| part.split_once('='));
        let (name, path) = parts.next()??;
        let path = match path {
            "" => binary(),
            path => Path::new(path),
        };
        let variable = |(name, value): (&str, &str)| (format!("SEAWALL_{name}"), value.to_owned());
        Some(Self {
            name: name.to_owned(),
            binary: path.to_owned(),
            environment: parts
                .map(|part| part.map(variable))
                .collect::<Option<_>>()?,
        })
    }
}

/// The deployment and all targets of a comparison.
#[derive(Debug)]
pub struct Setup {
    /// A replica set of one member, with authentication.
    pub set: ReplicaSet,
    /// The compared targets: direct, HAProxy if it is installed, and each Seawall.
    pub targets: Vec<Target>,
    identity: Identity,
    connector: Connector,
    _scratch: Scratch,
}

impl Setup {
    /// Starts the deployment and the targets: direct, HAProxy if it is installed, and each Seawall
    /// of `instances`.
    pub async fn start(instances: &[Instance]) -> Self {
        let options = Options::with_auth();
        let set = ReplicaSet::start(1, options)
            .await
            .expect("a mongod starts");
        let client = set.client().await.expect("the server accepts connections");
        let user = NewUser::new("admin", USER, PASSWORD).role("readWriteAnyDatabase", "admin");
        create_user(&client, &user)
            .await
            .expect("the user can be created");
        for collection in [SMALL, LARGE, HUGE] {
            let text = "x".repeat(collection.bytes);
            let documents = (0..collection.documents).map(|n| doc! {"_id": n, "text": &text});
            let collection = client
                .database(DATABASE)
                .collection::<Document>(collection.name);
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
            name: "direct".to_owned(),
            address: server.parse().expect("the address is valid"),
            process: None,
        }];
        targets.extend(behind_haproxy(&scratch, &server));
        targets.extend(instances.iter().map(|i| behind_seawall(&server, i)));
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

    /// The process id of the server.
    ///
    /// # Panics
    /// If the server does not run.
    pub async fn server_process(&self) -> u32 {
        let server = self.set.primary().await.expect("the set has a primary");
        let pid = server.pid().expect("the server runs").as_raw_nonzero();
        pid.get().unsigned_abs()
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
        name: "HAProxy".to_owned(),
        address,
        process: Some(process),
    })
}

fn behind_seawall(server: &str, instance: &Instance) -> Target {
    let port = free_port().expect("a port is free");
    let mut command = serve(&instance.binary);
    command
        .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", "off"])
        .args(["--deployment", &format!("mongodb://{server}/")])
        .envs(instance.environment.iter().cloned());
    let process = Process::start(&mut command).expect("Seawall starts");
    let address = format!("127.0.0.1:{port}")
        .parse()
        .expect("the address is valid");
    Target {
        name: instance.name.clone(),
        address,
        process: Some(process),
    }
}
