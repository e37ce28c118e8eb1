//! The compared targets: a mongod, and in front of it HAProxy, Seawall and a bare relay (a process
//! that only copies bytes).

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
use seawall_mongod::Mongod;
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, Options, ReplicaSet, create_user},
    process::binary,
    scratch::Scratch,
};
use seawall_transport::connection::{
    Authorities, Connection, Connector, EstablishError, ServerAddress, ServerTls, TlsSettings,
    Verification,
};
use tokio::task::JoinSet;

use crate::{
    load::{Collection, DATABASE, HUGE, LARGE, SMALL},
    options::option,
    process::{Process, free_port, haproxy, serve},
    relay,
};

/// The name of the target HAProxy.
pub const HAPROXY: &str = "HAProxy";

/// The name of the target that is a bare relay (a process that only copies bytes).
pub const RELAY: &str = "relay";

/// The user that the clients of the load log in as.
const USER: &str = "load";
const PASSWORD: &str = "only-a-bench";

/// Time limit for establishing a connection and for its login.
const LOGIN_LIMIT: Duration = Duration::from_secs(30);

/// A server or a proxy on which a load runs operations.
#[derive(Debug)]
pub struct Target {
    /// The target's name in the table of results.
    pub name: String,
    /// The address that the load connects to.
    pub address: ServerAddress,
    /// The process of the proxy; `None` if the load connects directly to the server.
    pub process: Option<Process>,
}

/// A Seawall to compare: a binary and its settings.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The name in the table of results.
    pub name: String,
    /// The path of the binary `seawall`.
    pub binary: PathBuf,
    /// Environment variables that set keys of Seawall's configuration, such as
    /// `SEAWALL_POOL__MAX_POOL_SIZE`.
    pub environment: Vec<(String, String)>,
}

impl Instance {
    /// The binary that the option `--binary` names, or the binary of this build, with the default
    /// configuration.
    pub fn measured() -> Self {
        let own = || binary().to_owned();
        Self {
            name: "Seawall".to_owned(),
            binary: option("--binary").map_or_else(own, PathBuf::from),
            environment: Vec::new(),
        }
    }

    /// Parses `NAME=BINARY` or `NAME=BINARY,VARIABLE=VALUE,…`. Each `VARIABLE` is given without its
    /// prefix `SEAWALL_`. An empty `BINARY` means the binary of this build. `None` if the text has
    /// another form.
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

    /// Starts this Seawall in front of `server`.
    ///
    /// # Panics
    /// If Seawall cannot be started.
    pub fn start(&self, server: &str) -> Target {
        let port = free_port().expect("a port is free");
        let mut command = serve(&self.binary);
        command
            .args(["--listen", &format!("127.0.0.1:{port}"), "--admin", "off"])
            .args(["--deployment", &format!("mongodb://{server}/")])
            .envs(self.environment.iter().cloned());
        let process = Process::start(&mut command).expect("Seawall starts");
        let address = format!("127.0.0.1:{port}")
            .parse()
            .expect("the address is valid");
        Target {
            name: self.name.clone(),
            address,
            process: Some(process),
        }
    }
}

/// The deployment and all targets of a comparison.
#[derive(Debug)]
pub struct Setup {
    /// A replica set of one member, with authentication.
    pub set: ReplicaSet,
    /// The compared targets: direct connections to the server, the bare relay if it was added,
    /// HAProxy if it is installed, and each Seawall.
    pub targets: Vec<Target>,
    /// The clients of the load.
    pub clients: Clients,
    _scratch: Scratch,
}

impl Setup {
    /// Starts the deployment and the targets: direct connections to the server, HAProxy if it is
    /// installed, and each Seawall of `instances`.
    pub async fn start(instances: &[Instance]) -> Self {
        let options = Options::with_auth();
        let set = ReplicaSet::start(1, options)
            .await
            .expect("a mongod starts");
        let root = set.client().await.expect("the server accepts connections");
        let clients = Clients::prepare(&root, &[SMALL, LARGE, HUGE]).await;
        let scratch = Scratch::create().expect("the directory can be created");
        let server = server(&set).await;
        let mut targets = vec![Target {
            name: "direct".to_owned(),
            address: server.parse().expect("the address is valid"),
            process: None,
        }];
        targets.extend(behind_haproxy(&scratch, &server));
        targets.extend(instances.iter().map(|i| i.start(&server)));
        let setup = Self {
            set,
            targets,
            clients,
            _scratch: scratch,
        };
        for target in &setup.targets {
            setup.clients.wait_for_login(&target.address).await;
        }
        setup
    }

    /// Starts a bare relay (a process that only copies bytes). Inserts it into the list of targets
    /// as the second target, after the direct connections. The calling program must begin with
    /// [`relay::run_if_requested`].
    ///
    /// # Panics
    /// If the relay does not start or does not accept logins.
    pub async fn add_relay(&mut self) {
        let server = server(&self.set).await;
        let (process, address) = relay::start(&server).expect("the relay starts");
        let target = Target {
            name: RELAY.to_owned(),
            address: address.parse().expect("the address is valid"),
            process: Some(process),
        };
        self.clients.wait_for_login(&target.address).await;
        // Ratios are relative to the first target, so direct connections stay first.
        self.targets.insert(1, target);
    }

    /// The process id of the replica set's primary.
    ///
    /// # Panics
    /// If the set has no primary.
    pub async fn server_process(&self) -> u32 {
        process_id(self.set.primary().await.expect("the set has a primary"))
    }

    /// Connects to `address` and logs in. See [`Clients::connect`].
    ///
    /// # Errors
    ///
    /// If the target refuses the connection or the login.
    pub async fn connect(&self, address: &ServerAddress) -> Result<Connection, EstablishError> {
        self.clients.connect(address).await
    }
}

/// Returns the address of the set's primary.
///
/// # Panics
/// If the set has no primary.
pub async fn server(set: &ReplicaSet) -> String {
    let primary = set.primary().await.expect("the set has a primary");
    primary.address().to_string()
}

/// Returns the process id of a mongod.
///
/// # Panics
/// If the mongod does not run.
pub fn process_id(mongod: &Mongod) -> u32 {
    let pid = mongod.pid().expect("the server runs").as_raw_nonzero();
    pid.get().unsigned_abs()
}

/// The clients of a load. Their SCRAM keys are derived from the password only once, so the
/// measured times do not include PBKDF2.
#[derive(Debug)]
pub struct Clients {
    identity: Arc<Identity>,
    connector: Connector,
}

impl Clients {
    /// Creates the user that the clients log in as, and the documents of the collections. `root` is
    /// logged in at the server as its administrator.
    ///
    /// # Panics
    /// If the server refuses a command.
    pub async fn prepare(root: &mongodb::Client, collections: &[Collection]) -> Self {
        let user = NewUser::new("admin", USER, PASSWORD).role("readWriteAnyDatabase", "admin");
        create_user(root, &user)
            .await
            .expect("the user can be created");
        for collection in collections {
            let text = "x".repeat(collection.bytes);
            let documents = (0..collection.documents).map(|n| doc! {"_id": n, "text": &text});
            let collection = root
                .database(DATABASE)
                .collection::<Document>(collection.name);
            collection
                .insert_many(documents)
                .await
                .expect("documents can be inserted");
        }
        let nonces = Arc::new(NonceSource::new().expect("the system has random bytes"));
        Self {
            identity: Arc::new(identity(root).await),
            connector: Connector::new(None, Vec::new(), LOGIN_LIMIT, nonces),
        }
    }

    /// Returns the same clients with TLS. They accept every certificate.
    ///
    /// # Panics
    /// If TLS cannot be set up.
    pub fn with_tls(&self) -> Self {
        let tls = ServerTls::new(&TlsSettings {
            authorities: Authorities::Mozilla,
            identity: None,
            revocation_lists: Vec::new(),
            verification: Verification::Off,
        });
        self.with(tls.expect("TLS can be set up"))
    }

    /// Returns the same clients with this TLS configuration.
    ///
    /// # Panics
    /// If the system has no random bytes.
    pub fn with(&self, tls: ServerTls) -> Self {
        let nonces = Arc::new(NonceSource::new().expect("the system has random bytes"));
        Self {
            identity: Arc::clone(&self.identity),
            connector: Connector::new(Some(Arc::new(tls)), Vec::new(), LOGIN_LIMIT, nonces),
        }
    }

    /// Connects to `address` and logs in.
    ///
    /// # Errors
    /// If the target refuses the connection or the login.
    pub async fn connect(&self, address: &ServerAddress) -> Result<Connection, EstablishError> {
        self.connector.establish(address, &self.identity).await
    }

    /// Waits until a target that has just started accepts logins.
    ///
    /// # Panics
    /// If the target accepts no login within 20 seconds.
    pub async fn wait_for_login(&self, address: &ServerAddress) {
        let connect = || async { self.connect(address).await };
        eventually(Duration::from_secs(20), connect)
            .await
            .expect("every target accepts logins");
    }

    /// Establishes `count` connections, one after another.
    ///
    /// # Panics
    /// If the target refuses a connection or a login.
    pub async fn connect_all(&self, address: &ServerAddress, count: usize) -> Vec<Connection> {
        let mut open = Vec::with_capacity(count);
        for _ in 0..count {
            let connection = self.connect(address).await;
            open.push(connection.expect("the target accepts connections"));
        }
        open
    }

    /// Establishes `count` connections, all at the same time.
    ///
    /// # Panics
    /// If the target refuses a connection or a login.
    pub async fn connect_at_once(&self, address: &ServerAddress, count: usize) -> Vec<Connection> {
        let mut connecting = JoinSet::new();
        for _ in 0..count {
            let (connector, identity) = (self.connector.clone(), Arc::clone(&self.identity));
            let address = address.clone();
            connecting.spawn(async move { connector.establish(&address, &identity).await });
        }
        let mut open = Vec::with_capacity(count);
        while let Some(ended) = connecting.join_next().await {
            let connection = ended.expect("no attempt panics");
            open.push(connection.expect("the target accepts connections"));
        }
        open
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

/// The connection string with which an official driver connects to `address` and logs in as the
/// user of the load.
pub fn connection_string(address: &ServerAddress) -> String {
    format!("mongodb://{USER}:{PASSWORD}@{address}/?authSource=admin&directConnection=true")
}

fn behind_haproxy(scratch: &Scratch, server: &str) -> Option<Target> {
    let port = free_port().expect("a port is free");
    let process = haproxy(scratch.path(), server, port).expect("HAProxy starts")?;
    let address = format!("127.0.0.1:{port}")
        .parse()
        .expect("the address is valid");
    Some(Target {
        name: HAPROXY.to_owned(),
        address,
        process: Some(process),
    })
}
