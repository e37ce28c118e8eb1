//! Tests of logins against a scripted server with users, without client connections.

mod first_logins;
mod readings;
mod refusals;
mod users;

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{runtime::Handle, time::Instant};
use zeroize::Zeroizing;

use self::users::{SOURCE, UserServer};
use super::{
    Carried, ConfiguredUser, CredentialError, CredentialMode, CredentialSettings, Credentials,
    FirstLogin, KeyReading, KeyRequest, Known, Obtained, Secret, UserName, UserSecret,
};
use crate::{
    limits::Turns,
    observe::Recorder,
    pool::{PoolLimits, ServerPool, tests::limits},
    topology::Topology,
};
use seawall_auth::{ClientConversation, ClientFirst, Mechanism, NonceSource};
use seawall_transport::{
    Sharer,
    connection::{Connector, ServerAddress},
};

/// A limit that is longer than any step of these tests. No test waits until it expires.
const LIMIT: Duration = Duration::from_secs(10);

const SHA_256: Mechanism = Mechanism::ScramSha256;

/// A scripted server with a user `u` whose password is `secret`, and the [`Credentials`] with which
/// Seawall checks logins of users of this server.
struct LoginScene {
    server: UserServer,
    pool: Arc<ServerPool>,
    credentials: Arc<Credentials>,
    nonces: Arc<NonceSource>,
}

/// The client's side of a SCRAM conversation.
struct ScramClient(ClientConversation);

impl LoginScene {
    async fn with(mode: CredentialMode, users: Vec<ConfiguredUser>) -> Self {
        Self::behind(mode, users, Topology::of_standalone).await
    }

    /// Starts the server, and calls `topology` with the server's address to create the topology
    /// that contains the server.
    async fn behind(
        mode: CredentialMode,
        users: Vec<ConfiguredUser>,
        topology: impl FnOnce(ServerAddress, PoolLimits, Connector, Arc<Recorder>) -> Arc<Topology>,
    ) -> Self {
        let server = UserServer::start().await;
        server.set_password("u", "secret");
        let nonces = Arc::new(NonceSource::new().unwrap());
        let connector = Connector::new(None, Vec::new(), LIMIT, Arc::clone(&nonces));
        let recorder = Recorder::without_shapes();
        let address = server.server.address().clone();
        let topology = topology(address, limits(), connector, recorder);
        let pool = Arc::clone(&topology.snapshot().pools[0]);
        let (settings, runtime) = (settings(mode, users), Handle::current());
        let credentials = Credentials::start(settings, topology, Arc::clone(&nonces), runtime);
        Self {
            server,
            pool,
            credentials,
            nonces,
        }
    }

    async fn new() -> Self {
        Self::with(CredentialMode::Own, Vec::new()).await
    }

    async fn obtain(&self, user: &UserName) -> Result<Obtained, CredentialError> {
        self.credentials.obtain(&key_request(user, SHA_256)).await
    }

    /// Returns a user's mechanisms to a client on this machine.
    async fn mechanisms(&self, user: &UserName) -> Result<Vec<String>, CredentialError> {
        self.credentials.mechanisms(user, Sharer::Local).await
    }

    /// Begins the first login of a user, which a server checks. Panics if the login gets an error,
    /// or if Seawall would check the login itself.
    async fn first_login(&self, name: &str) -> FirstLogin {
        match self.obtain(&user(name)).await {
            Ok(Obtained::FirstLogin(first_login)) => first_login,
            Ok(Obtained::Known(_)) => panic!("{name} is known"),
            Ok(Obtained::Configured(_)) => panic!("{name} is configured"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins a first login, up to the server's challenge.
    async fn start(&self, name: &str) -> Result<(ScramClient, Carried, Secret), CredentialError> {
        let first_login = self.first_login(name).await;
        self.start_first_login(name, first_login).await
    }

    /// Sends the first payload of a first login. Returns the client, the login, and the server's
    /// challenge for the client.
    async fn start_first_login(
        &self,
        name: &str,
        first_login: FirstLogin,
    ) -> Result<(ScramClient, Carried, Secret), CredentialError> {
        let nonce = self.nonces.nonce();
        let (conversation, payload) = ClientConversation::start(SHA_256, name, &nonce);
        let client_first = ClientFirst::parse(&payload).unwrap();
        let started = first_login.start(SHA_256, client_first, &payload).await?;
        let (carried, server_first) = started;
        Ok((ScramClient(conversation), carried, server_first))
    }

    /// Runs a whole first login. At its end, the client checks the server's signature.
    async fn log_in(&self, name: &str, password: &str) -> Result<Known, CredentialError> {
        let (ScramClient(conversation), carried, server_first) = self.start(name).await?;
        let response = conversation.respond_with_password(&server_first, password);
        let (proof_sent, client_final, _) = response.unwrap();
        let (known, server_final) = carried.finish(&client_final).await?;
        proof_sent.finish(&server_final).unwrap();
        Ok(known)
    }

    /// Returns a user if its keys are cached. Does not read the keys from the server.
    fn known(&self, name: &str) -> Option<Known> {
        let mut store = self.credentials.store.lock();
        store.known(&user(name), Instant::now())
    }

    /// Changes the password of `u` to `changed`. The server also closes all connections, so Seawall
    /// must log in again as `u`, and the server refuses the cached keys.
    async fn change_password_and_close_connections(&self) {
        self.server.server.close_all().await;
        self.pool.maintain();
        self.server.set_password("u", "changed");
    }

    /// Starts to read the user's keys again, unless a reading is already in progress. Waits until
    /// the reading has ended.
    async fn read_again(&self, known: &Known) {
        let (user, identity) = (UserName::of(&known.identity), &known.identity);
        let mut done = self.credentials.read_again(&user, identity);
        done.wait_for(|done| *done).await.unwrap();
    }
}

fn settings(mode: CredentialMode, users: Vec<ConfiguredUser>) -> CredentialSettings {
    CredentialSettings {
        mode,
        users,
        max_stale: Duration::from_secs(300),
        max_users: 8,
        first_logins: 2,
        conversations: 4,
    }
}

fn configured(secret: UserSecret) -> Vec<ConfiguredUser> {
    vec![configured_user("u", SOURCE, secret)]
}

fn configured_user(name: &str, source: &str, secret: UserSecret) -> ConfiguredUser {
    ConfiguredUser {
        name: name.to_owned(),
        source: source.to_owned(),
        secret,
    }
}

fn password(password: &str) -> UserSecret {
    UserSecret::Password(Zeroizing::new(password.to_owned()))
}

fn user(name: &str) -> UserName {
    UserName::new(name, SOURCE).unwrap()
}

/// A request for a user's keys by a client on this machine.
fn key_request(user: &UserName, mechanism: Mechanism) -> KeyRequest<'_> {
    KeyRequest {
        user,
        mechanism,
        sharer: Sharer::Local,
    }
}

/// A request for a user's keys by a client at the address `192.0.2.<last>`.
fn key_request_from(last: u8, user: &UserName) -> KeyRequest<'_> {
    KeyRequest {
        sharer: address(last),
        ..key_request(user, SHA_256)
    }
}

/// The clients at the address `192.0.2.<last>`.
fn address(last: u8) -> Sharer {
    Sharer::at(Some([192, 0, 2, last].into()))
}

/// Takes both turns of `turns`, so that all futures of `crowd` and then `other` wait for a turn.
/// Then releases both turns. Returns the output of `other` if `other` got a turn and completed at
/// once, else `None`. Drops `crowd` at the end.
fn served_after_crowd<T>(
    turns: &Turns,
    crowd: impl Iterator<Item = impl Future>,
    other: impl Future<Output = T>,
) -> Option<T> {
    let held = [0, 1].map(|_| turns.take(Sharer::Local).now_or_never());
    assert_eq!((turns.taken(), turns.free()), (2, 0));
    let mut crowd: Vec<_> = crowd.map(Box::pin).collect();
    for waiting in &mut crowd {
        assert!(waiting.as_mut().now_or_never().is_none());
    }
    let mut other = pin!(other);
    assert!(other.as_mut().now_or_never().is_none());
    assert_eq!(turns.waiting(), crowd.len() + 1);
    drop(held);
    other.now_or_never()
}

fn refused<T>(result: Result<T, CredentialError>) -> bool {
    matches!(result, Err(CredentialError::Refused))
}
