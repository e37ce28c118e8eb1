//! Real servers: a standalone or a replica set, with a root user. Tests can add users and
//! inject failures.
//!
//! Every server runs with `enableTestCommands`, so that tests can inject failures. A server stops
//! when its guard is dropped, or when the test process ends.
//!
//! A standalone starts in half a second, a set of three members in some seconds. A test that
//! changes only its own databases and users can use [`shared_standalone`] or
//! [`shared_replica_set`]. A test that stops, kills or steps down a server must start its own. A
//! driver's client belongs to the runtime of the test that created it, so a shared server creates a
//! new client for each call.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::options::{ClientOptions, Credential};
use seawall_mongod::{
    ClusterKey, Member, Mongod, ReplicaSetSettings, Tls, create_first_user, find_or_fetch,
    initiate_replica_set,
};
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

pub use crate::administration::{
    Administrator, FailTimes, RunCommand, clear_fail_command, create_user, fail_command,
};
use crate::certificates::{self, Certificates};
use crate::eventually::{TooLate, eventually};
use crate::raw::{Login, Mechanism, RawClient, RawError};

/// The name of the user with all rights. This user exists if authentication is on.
pub const ROOT: &str = "root";
/// The password of the root user.
pub const ROOT_PASSWORD: &str = "only-a-test";

/// The options of a standalone or of a set.
#[derive(Clone, Debug)]
pub struct Options {
    /// True if clients must authenticate. The fixture then creates a root user.
    pub auth: bool,
    /// True if the servers accept only TLS, with newly generated certificates.
    pub tls: bool,
    /// True if the servers also require a certificate from each client. This has no effect without
    /// `tls`. The raw clients of this fixture have no certificate, so they cannot connect.
    pub requires_client_certificates: bool,
    /// True if each server also listens on a Unix domain socket.
    pub unix_socket: bool,
    /// Names and values for `--setParameter`, besides `enableTestCommands`.
    pub parameters: Vec<(String, String)>,
    /// Further arguments for each mongod.
    pub arguments: Vec<String>,
    /// The tags of each member, in the order of the members. If there are more members than items,
    /// the last members have no tags.
    pub tags: Vec<Vec<(String, String)>>,
    /// The priority of each member, in the order of the members. If there are more members than
    /// items, the last members have priority 1.
    pub priorities: Vec<u16>,
    /// Election timing of a set. The default times are shorter than mongod's own defaults.
    pub settings: ReplicaSetSettings,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            auth: false,
            tls: false,
            requires_client_certificates: false,
            unix_socket: false,
            parameters: Vec::new(),
            arguments: Vec::new(),
            tags: Vec::new(),
            priorities: Vec::new(),
            // These times are short enough for failover tests, and long enough for a machine that
            // compiles at the same time.
            settings: ReplicaSetSettings {
                election_timeout: Duration::from_secs(2),
                heartbeat_interval: Duration::from_millis(500),
            },
        }
    }
}

impl Options {
    /// Options with authentication and a root user.
    pub fn with_auth() -> Self {
        Self {
            auth: true,
            ..Self::default()
        }
    }

    fn for_mongod(&self, certificates: Option<&Certificates>) -> seawall_mongod::Options {
        let mut parameters = vec![("enableTestCommands".to_owned(), "1".to_owned())];
        parameters.extend(self.parameters.iter().cloned());
        let requires = self.requires_client_certificates;
        seawall_mongod::Options {
            auth: self.auth,
            tls: certificates.map(|of| Tls {
                client_file: requires.then(|| of.client_file()),
                ..of.tls()
            }),
            unix_socket: self.unix_socket,
            parameters,
            arguments: self.arguments.iter().map(Into::into).collect(),
            // The cache is large enough for several concurrent transactions with the largest
            // documents.
            cache_gb: 0.5,
            ..seawall_mongod::Options::default()
        }
    }

    fn certificates(&self) -> Result<Option<Certificates>, Error> {
        Ok(self.tls.then(Certificates::generate).transpose()?)
    }
}

/// A mongod that is not a member of a set.
#[derive(Debug)]
#[must_use = "dropping it kills the mongod"]
pub struct Standalone {
    mongod: Mongod,
    certificates: Option<Certificates>,
}

impl Standalone {
    /// Starts a mongod, and creates its root user if authentication is on.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let certificates = options.certificates()?;
        let settings = options.for_mongod(certificates.as_ref());
        let mongod = Mongod::start(mongod_path().await?, settings).await?;
        if options.auth {
            create_first_user(&mongod, ROOT, ROOT_PASSWORD).await?;
        }
        Ok(Self {
            mongod,
            certificates,
        })
    }

    /// The mongod, for example to suspend and resume it.
    pub fn mongod(&self) -> &Mongod {
        &self.mongod
    }

    /// The mongod, mutable, to restart it.
    pub fn mongod_mut(&mut self) -> &mut Mongod {
        &mut self.mongod
    }

    /// The address on which the mongod listens.
    pub fn address(&self) -> SocketAddr {
        self.mongod.address()
    }

    /// The certificates; `None` without TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// A connection string without credentials.
    pub fn uri(&self) -> String {
        let parameters = tls_parameters(self.certificates());
        uri(None, &[self.address()], &parameters)
    }

    /// A connection string with the root user's credentials, if that user exists.
    pub fn root_uri(&self) -> String {
        let root = self.mongod.options().auth.then_some((ROOT, ROOT_PASSWORD));
        let parameters = tls_parameters(self.certificates());
        uri(root, &[self.address()], &parameters)
    }

    /// A new client, logged in as the root user if authentication is on.
    pub fn client(&self) -> Result<Client, Error> {
        Ok(self.mongod.direct_client(root_credential(&self.mongod))?)
    }

    /// A connection that uses no driver. It is logged in as the root user if authentication is on.
    pub async fn administrator(&self) -> Result<Administrator, Error> {
        administrator(&self.mongod, self.certificates()).await
    }

    /// A new connection on which no `hello` has been sent yet.
    pub async fn raw_client(&self) -> Result<RawClient, Error> {
        raw_client(&self.mongod, self.certificates()).await
    }
}

/// A replica set whose members all run on this host.
#[derive(Debug)]
#[must_use = "dropping it kills its members"]
pub struct ReplicaSet {
    members: Vec<Mongod>,
    certificates: Option<Certificates>,
}

impl ReplicaSet {
    /// The name of every set.
    pub const NAME: &str = "rs";

    /// Starts `member_count` members. Returns when one is primary and all others are secondaries.
    /// With authentication, a majority then also knows the root user.
    pub async fn start(member_count: usize, options: Options) -> Result<Self, Error> {
        let certificates = options.certificates()?;
        let mut settings = options.for_mongod(certificates.as_ref());
        settings.replica_set = Some(Self::NAME.to_owned());
        settings.cluster_key = options.auth.then(ClusterKey::generate).transpose()?;
        let path = mongod_path().await?;
        let mut starting = JoinSet::new();
        for _ in 0..member_count {
            let settings = settings.clone();
            starting.spawn(async move { Mongod::start(path, settings).await });
        }
        let mut members = Vec::with_capacity(member_count);
        while let Some(started) = starting.join_next().await {
            members.push(started.expect("starting a mongod neither panics nor is aborted")?);
        }
        let set = Self {
            members,
            certificates,
        };
        let primary = initiate_replica_set(&set.described(&options), options.settings).await?;
        if let (true, Some(primary)) = (options.auth, set.member_at(primary)) {
            create_first_user(primary, ROOT, ROOT_PASSWORD).await?;
        }
        Ok(set)
    }

    /// All members, in the order of [`Options::tags`] and [`Options::priorities`].
    pub fn members(&self) -> &[Mongod] {
        &self.members
    }

    /// All members, mutable, to restart them.
    pub fn members_mut(&mut self) -> &mut [Mongod] {
        &mut self.members
    }

    /// The member that listens on this address.
    pub fn member_at(&self, address: SocketAddr) -> Option<&Mongod> {
        self.members
            .iter()
            .find(|member| member.address() == address)
    }

    /// The member that listens on this address, mutable, to restart it.
    pub fn member_at_mut(&mut self, address: SocketAddr) -> Option<&mut Mongod> {
        self.members
            .iter_mut()
            .find(|member| member.address() == address)
    }

    /// The certificates; `None` without TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The member that says it is primary. Waits for the end of an election, up to a limit.
    pub async fn primary(&self) -> Result<&Mongod, Error> {
        let attempt = || self.member_that_says("ismaster");
        Ok(eventually(ELECTION_LIMIT, attempt).await?)
    }

    /// The members that say they are secondaries at this moment.
    pub async fn secondaries(&self) -> Vec<&Mongod> {
        let mut secondaries = Vec::new();
        for member in &self.members {
            if self.says(member, "secondary").await {
                secondaries.push(member);
            }
        }
        secondaries
    }

    /// A connection string of the whole set, without credentials.
    pub fn uri(&self) -> String {
        uri(None, &self.addresses(), &self.parameters())
    }

    /// A connection string with the root user's credentials, if that user exists.
    pub fn root_uri(&self) -> String {
        let has_auth = self.members.iter().any(|member| member.options().auth);
        let root = has_auth.then_some((ROOT, ROOT_PASSWORD));
        uri(root, &self.addresses(), &self.parameters())
    }

    /// A new client that follows the primary, logged in as the root user if authentication is on.
    pub async fn client(&self) -> Result<Client, Error> {
        let mut options = ClientOptions::parse(self.root_uri()).await?;
        options.app_name = Some("seawall-tests".to_owned());
        Ok(Client::with_options(options)?)
    }

    /// A new client that connects only to this member. It logs in as the root user if
    /// authentication is on.
    pub fn direct_client(&self, member: &Mongod) -> Result<Client, Error> {
        Ok(member.direct_client(root_credential(member))?)
    }

    /// A connection to the primary that uses no driver. It is logged in as the root user if
    /// authentication is on.
    pub async fn administrator(&self) -> Result<Administrator, Error> {
        self.administrator_of(self.primary().await?).await
    }

    /// A connection to this member that uses no driver. It is logged in as the root user if
    /// authentication is on.
    pub async fn administrator_of(&self, member: &Mongod) -> Result<Administrator, Error> {
        administrator(member, self.certificates()).await
    }

    /// A new connection to a member, on which no `hello` has been sent yet.
    pub async fn raw_client(&self, member: &Mongod) -> Result<RawClient, Error> {
        raw_client(member, self.certificates()).await
    }

    /// Makes the primary step down and returns the new primary.
    pub async fn step_down(&self) -> Result<&Mongod, Error> {
        let before = self.primary().await?;
        let administrator = self.administrator_of(before).await?;
        let command = doc! { "replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 10 };
        administrator.run("admin", command).await?;
        let attempt = || async {
            let now = self.member_that_says("ismaster").await?;
            (now.address() != before.address()).then_some(now)
        };
        Ok(eventually(ELECTION_LIMIT, attempt).await?)
    }

    async fn member_that_says(&self, name: &str) -> Option<&Mongod> {
        for member in &self.members {
            if self.says(member, name).await {
                return Some(member);
            }
        }
        None
    }

    /// True if this field is true in the member's reply to `hello`. Uses the legacy name of
    /// `hello`, which all versions know.
    async fn says(&self, member: &Mongod, name: &str) -> bool {
        let hello = async {
            let mut client = self.raw_client(member).await.ok()?;
            client.set_limit(HELLO_LIMIT);
            client.command("admin", doc! { "isMaster": 1 }).await.ok()
        };
        let hello = hello.await;
        hello.is_some_and(|hello| matches!(hello.body.get_bool(name), Ok(true)))
    }

    fn described(&self, options: &Options) -> Vec<Member<'_>> {
        let describe = |(index, mongod)| Member {
            priority: options.priorities.get(index).copied().unwrap_or(1),
            tags: options.tags.get(index).cloned().unwrap_or_default(),
            ..Member::new(mongod)
        };
        self.members.iter().enumerate().map(describe).collect()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(Mongod::address).collect()
    }

    fn parameters(&self) -> Vec<String> {
        let mut parameters = vec![format!("replicaSet={}", Self::NAME)];
        parameters.extend(tls_parameters(self.certificates()));
        parameters
    }
}

/// A standalone with authentication, shared by all tests of this process.
pub async fn shared_standalone() -> Result<&'static Standalone, Error> {
    static SHARED: OnceCell<Standalone> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| Standalone::start(Options::with_auth()))
        .await
}

/// A set of three members with authentication, shared by all tests of this process.
pub async fn shared_replica_set() -> Result<&'static ReplicaSet, Error> {
    static SHARED: OnceCell<ReplicaSet> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| ReplicaSet::start(3, Options::with_auth()))
        .await
}

/// A name that no other test uses, for a database or a user on a shared server.
pub fn unique_name(prefix: &str) -> String {
    format!("{prefix}-{:016x}", rand::random::<u64>())
}

/// The description of a user that a test creates.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// The database in which the user is defined.
    pub db: String,
    /// The user's name in that database.
    pub name: String,
    /// The password in plain text.
    pub password: String,
    /// The mechanisms for which the server stores SCRAM keys of the user. The default is both SCRAM
    /// mechanisms.
    pub mechanisms: Vec<Mechanism>,
    /// The roles, in the form of `createUser`. The default is none.
    pub roles: Vec<Bson>,
    /// The authentication restrictions, in the form of `createUser`. The default is none.
    pub restrictions: Vec<Document>,
}

impl NewUser {
    /// A user without roles.
    pub fn new(db: &str, name: &str, password: &str) -> Self {
        Self {
            db: db.to_owned(),
            name: name.to_owned(),
            password: password.to_owned(),
            mechanisms: Mechanism::ALL.to_vec(),
            roles: Vec::new(),
            restrictions: Vec::new(),
        }
    }

    /// Adds a role on a database.
    #[must_use]
    pub fn role(mut self, role: &str, db: &str) -> Self {
        self.roles.push(doc! { "role": role, "db": db }.into());
        self
    }

    /// Limits the user to these mechanisms.
    #[must_use]
    pub fn mechanisms(mut self, mechanisms: &[Mechanism]) -> Self {
        self.mechanisms = mechanisms.to_vec();
        self
    }

    /// Adds an authentication restriction, such as `{ clientSource: ["10.0.0.0/8"] }`.
    #[must_use]
    pub fn restriction(mut self, restriction: Document) -> Self {
        self.restrictions.push(restriction);
        self
    }

    /// A login of this user with its first mechanism.
    pub fn login(&self) -> Login {
        let mechanism = self
            .mechanisms
            .first()
            .copied()
            .unwrap_or(Mechanism::ScramSha256);
        Login::new(&self.db, &self.name, &self.password).mechanism(mechanism)
    }
}

/// A server version (major, minor, patch), which can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(pub u32, pub u32, pub u32);

/// The version of the mongod at [`mongod_path`].
pub async fn server_version() -> Result<ServerVersion, Error> {
    static VERSION: OnceCell<ServerVersion> = OnceCell::const_new();
    let ask = || async {
        let mut mongod = Command::new(mongod_path().await?);
        let output = mongod.arg("--version").output().await;
        let output = output.map_err(Error::NoVersion)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        parse_version(&text).ok_or_else(|| Error::NoVersion(io::Error::other(text)))
    };
    Ok(*VERSION.get_or_try_init(ask).await?)
}

fn parse_version(text: &str) -> Option<ServerVersion> {
    let (_, version) = text.split_once("db version v")?;
    let version = version.split(['-', '\n']).next()?;
    let mut numbers = version.split('.').map(|number| number.trim().parse().ok());
    let mut next = || numbers.next().flatten();
    Some(ServerVersion(next()?, next()?, next()?))
}

/// The path of the mongod of this machine, which is found or downloaded once per process.
pub async fn mongod_path() -> Result<&'static PathBuf, Error> {
    static PATH: OnceCell<PathBuf> = OnceCell::const_new();
    let find = || async {
        find_or_fetch(|progress| tracing::debug!(?progress, "finding mongod for the tests")).await
    };
    Ok(PATH.get_or_try_init(find).await?)
}

/// The reason why a fixture cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mongod could not be found, started or configured.
    #[error("could not find, start or configure a mongod")]
    Mongod(#[from] seawall_mongod::Error),
    /// A command of a driver's client failed.
    #[error("a command of a driver's client failed")]
    Command(#[from] mongodb::error::Error),
    /// A server refused a command or a login that was sent over a raw connection, without a driver.
    /// The value is the server's reply.
    #[error("the server refused a command or a login: {0}")]
    Refused(Document),
    /// Certificates could not be generated, used or written to files.
    #[error("could not generate, use or write certificates")]
    Certificates(#[from] certificates::Error),
    /// A raw connection, without a driver, failed.
    #[error("a raw connection failed")]
    Raw(#[from] RawError),
    /// The version of mongod could not be read.
    #[error("could not read the version of mongod")]
    NoVersion(#[source] io::Error),
    /// A replica set did not reach the expected state in time.
    #[error("the replica set did not reach the expected state in time")]
    TooLate(#[from] TooLate),
}

async fn administrator(
    mongod: &Mongod,
    certificates: Option<&Certificates>,
) -> Result<Administrator, Error> {
    let mut client = raw_client(mongod, certificates).await?;
    if mongod.options().auth {
        let login = Login::new("admin", ROOT, ROOT_PASSWORD);
        let outcome = client.login(&login).await?;
        if !outcome.is_authenticated() {
            let reply = outcome.replies.into_iter().next_back();
            return Err(Error::Refused(
                reply.map(|reply| reply.body).unwrap_or_default(),
            ));
        }
    }
    Ok(Administrator::new(client))
}

async fn raw_client(
    mongod: &Mongod,
    certificates: Option<&Certificates>,
) -> Result<RawClient, Error> {
    let address = mongod.address();
    Ok(match certificates {
        None => RawClient::connect(address).await?,
        Some(certificates) => {
            let config = certificates.client_config()?;
            RawClient::connect_tls(address, &address.ip().to_string(), config).await?
        }
    })
}

fn root_credential(mongod: &Mongod) -> Option<Credential> {
    mongod.options().auth.then(|| {
        let credential = Credential::builder().username(ROOT.to_owned());
        credential.password(ROOT_PASSWORD.to_owned()).build()
    })
}

fn tls_parameters(certificates: Option<&Certificates>) -> Vec<String> {
    certificates.map_or_else(Vec::new, |certificates| {
        let ca_file = certificates.ca_file();
        vec![
            "tls=true".to_owned(),
            format!("tlsCAFile={}", ca_file.display()),
        ]
    })
}

fn uri(
    credentials: Option<(&str, &str)>,
    addresses: &[SocketAddr],
    parameters: &[String],
) -> String {
    let mut uri = "mongodb://".to_owned();
    if let Some((name, password)) = credentials {
        write!(uri, "{name}:{password}@").expect("writing to a String succeeds");
    }
    let hosts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    uri.push_str(&hosts.join(","));
    uri.push('/');
    if !parameters.is_empty() {
        uri.push('?');
        uri.push_str(&parameters.join("&"));
    }
    uri
}

/// Time limit for an election. It is many times the usual duration, because the machine may compile
/// at the same time.
const ELECTION_LIMIT: Duration = Duration::from_secs(30);
const HELLO_LIMIT: Duration = Duration::from_secs(2);
