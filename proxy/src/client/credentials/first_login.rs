//! First logins: Seawall forwards the first login of a user to a server, which checks the client's
//! proof. After that, the user is known: Seawall has its keys and checks later logins itself.
//!
//! Seawall forwards only parsed SCRAM payloads, in commands that it builds itself, on a connection
//! that is in no pool. The connection joins a pool only under three conditions:
//!
//! - The server reports that exactly this user is logged in on it.
//! - The ClientKey from the client's proof matches the user's keys, which Seawall then reads on
//!   this connection.
//! - The server's signature matches these keys, too.

use std::{pin::pin, sync::Arc};

use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use super::{
    CredentialError, Credentials, FIRST_LOGIN_LIMIT, KeyRequest, Known, Obtained, QUESTION_LIMIT,
    UserName, UserSecret,
    conversations::Conversation,
    flights::FirstLoginClaim,
    reading::{ask_own_keys, is_server_failure, shown_error},
    spares::MAX_SPARE,
};
use crate::{limits::Turn, pool::ServerPool};
use seawall_auth::{
    CarriedChallenge, CarriedConversation, ClientConversation, ClientFirst, ClientKey, Identity,
    Login, Mechanism, ScramKeys, mechanism_names,
};
use seawall_command::ReadPreference;
use seawall_transport::{
    Sharer,
    connection::{
        Connection, SecretDocument, ServerAddress, conversation_id, empty_exchange, payload,
        refuses_login, reply_is_ok, sasl_continue, sasl_start,
    },
};

/// A SASL payload, zeroed on drop.
pub(in crate::client) type Secret = Zeroizing<Vec<u8>>;

/// The first login of a user while it is in progress: a server checks the client's proof. After
/// this value is dropped, another login of the user may become the first login.
#[must_use]
pub(in crate::client) struct FirstLogin {
    credentials: Arc<Credentials>,
    lead: FirstLoginClaim,
    deadline: Instant,
    /// The turn for an exchange with a server; `None` while the first login waits for its client.
    exchange: Option<Turn>,
    /// Stores the server connection while the first login waits for its client.
    conversation: Conversation<Connection>,
}

/// A first login after the challenge of the server, which now waits for the client's proof.
#[must_use]
pub(in crate::client) struct Carried {
    first_login: FirstLogin,
    pool: Arc<ServerPool>,
    challenge: CarriedChallenge,
    conversation_id: i32,
    mechanism: Mechanism,
}

impl Credentials {
    /// Begins a first login as soon as two limits allow it: the limit on conversations (first
    /// logins that wait for the client's proof) and the limit on exchanges with servers. Fails if
    /// the limits still do not allow this login at `deadline`. If another login makes the user
    /// known during the wait, returns the user's keys.
    pub(super) async fn begin_first_login(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
        lead: FirstLoginClaim,
        deadline: Instant,
    ) -> Result<Obtained, CredentialError> {
        let KeyRequest {
            user,
            mechanism,
            sharer,
        } = *request;
        let mut begun = pin!(self.begin_exchange(sharer, deadline));
        let (conversation, exchange) = loop {
            let resolved = lead.resolved();
            if let Some(known) = self.concurrent_result(user, mechanism, Instant::now())? {
                return Ok(Obtained::Known(known));
            }
            tokio::select! {
                // The first branch is polled first, so that a login of a known user needs no
                // conversation.
                biased;
                () = resolved => {}
                begun = &mut begun => break begun.ok_or(CredentialError::Unavailable)?,
            }
        };
        Ok(Obtained::FirstLogin(FirstLogin {
            credentials: Arc::clone(self),
            lead,
            deadline: Instant::now() + FIRST_LOGIN_LIMIT,
            exchange: Some(exchange),
            conversation,
        }))
    }

    /// Begins a conversation (a first login that waits for the client's proof), and takes a turn
    /// for an exchange with a server. `None` if the limits still do not allow this at `deadline`.
    async fn begin_exchange(
        &self,
        sharer: Sharer,
        deadline: Instant,
    ) -> Option<(Conversation<Connection>, Turn)> {
        let conversation = self.conversations.begin(sharer, deadline).await?;
        let exchange = timeout_at(deadline, self.exchanges.take(sharer)).await;
        Some((conversation, exchange.ok()?))
    }

    /// Returns an unauthenticated connection to the primary, or to a router or standalone. Uses a
    /// connection that was kept for reuse (a spare connection) if there is one. Otherwise
    /// establishes a new connection.
    async fn unauthenticated(
        &self,
        deadline: Instant,
    ) -> Result<(Arc<ServerPool>, Connection), CredentialError> {
        let unavailable = |_| CredentialError::Unavailable;
        let preference = ReadPreference::PRIMARY;
        let pool = self
            .topology
            .select(&preference, deadline)
            .await
            .map_err(unavailable)?;
        if let Some(connection) = self.take_spare(&pool) {
            return Ok((pool, connection));
        }
        let connecting = self.topology.connector().connect(pool.address());
        match timeout_at(deadline, connecting).await {
            Ok(Ok(connection)) => Ok((pool, connection)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "could not connect to a server before a login");
                Err(CredentialError::Unavailable)
            }
            Err(_) => Err(CredentialError::Unavailable),
        }
    }

    /// Takes an unauthenticated connection to the server of `pool` that was kept for reuse; `None`
    /// if there is none.
    fn take_spare(&self, pool: &ServerPool) -> Option<Connection> {
        let is_current = self.current_connections();
        let mut spares = self.spares.lock();
        let outdated = spares.remove_outdated(is_current, Instant::now());
        let spare = spares.take(pool.address());
        drop(spares);
        drop(outdated);
        spare
    }

    /// Keeps an unauthenticated connection for reuse. Closes the connection instead if its server
    /// has left the deployment or if the TLS configuration has changed.
    pub(super) fn keep_spare(&self, pool: &ServerPool, connection: Connection) {
        let is_current = self.current_connections();
        if !is_current(pool.address(), &connection) {
            return;
        }
        let now = Instant::now();
        let mut spares = self.spares.lock();
        let outdated = spares.remove_outdated(is_current, now);
        let replaced = spares.keep(pool.address().clone(), connection, now);
        drop(spares);
        drop((replaced, outdated));
    }

    /// Called once a second. Closes the connections kept for reuse that are outdated (see
    /// [`super::spares::Spares::remove_outdated`]). Asks servers to confirm keys that no server has
    /// confirmed for a long time (see [`Self::confirm_old_keys`]).
    pub(crate) fn maintain(self: &Arc<Self>) {
        self.confirm_old_keys(Instant::now());
        let is_current = self.current_connections();
        let mut spares = self.spares.lock();
        let outdated = spares.remove_outdated(is_current, Instant::now());
        drop(spares);
        drop(outdated);
    }

    /// Returns a function that is true for a connection if its server is in the deployment and the
    /// connection uses the current TLS configuration.
    fn current_connections(&self) -> impl Fn(&ServerAddress, &Connection) -> bool + use<> {
        let snapshot = self.topology.snapshot();
        let tls_version = self.topology.connector().tls_version();
        move |address, connection| {
            let mut pools = snapshot.pools.iter();
            connection.tls_version == tls_version && pools.any(|pool| pool.address() == address)
        }
    }

    /// Handles an error reply to a step of a first login. Returns the reason why the login fails.
    /// If the server refused the login, keeps the connection for reuse. Any other error says
    /// nothing about the user, and the connection is closed.
    fn failed_step(
        &self,
        pool: &ServerPool,
        connection: Connection,
        code: i32,
        reason: &str,
    ) -> CredentialError {
        if refuses_login(code) {
            self.keep_spare(pool, connection);
            return CredentialError::Refused;
        }
        tracing::debug!(code, %reason, "server did not run a step of a first login");
        CredentialError::Unavailable
    }

    /// Counts a first login that a server has accepted and Seawall has refused. Logs at most one a
    /// minute.
    fn log_refused_first_login(&self, user: &UserName, reason: &'static str) {
        if let Some(logins) = self.refused_first_logins.count(Instant::now()) {
            tracing::warn!(user = %user.name, source = %user.source, reason, logins, "first login refused");
        }
    }

    /// Asks a server which SASL mechanisms a user can use, unless they are cached. `sharer` is the
    /// address or user of the client that needs the mechanisms.
    pub(super) async fn ask_mechanisms(
        &self,
        user: &UserName,
        sharer: Sharer,
    ) -> Result<Vec<String>, CredentialError> {
        let cached = || self.store.lock().mechanisms(user, Instant::now());
        if let Some(mechanisms) = cached() {
            return Ok(mechanisms);
        }
        let _question = self.questions.take(sharer).await;
        // Another client of the user may have asked during the wait.
        if let Some(mechanisms) = cached() {
            return Ok(mechanisms);
        }
        self.query_mechanisms(user).await
    }

    /// Sends the query of [`Self::ask_mechanisms`], even if the mechanisms are cached. The caller
    /// holds one of the turns for such queries.
    pub(super) async fn query_mechanisms(
        &self,
        user: &UserName,
    ) -> Result<Vec<String>, CredentialError> {
        let deadline = Instant::now() + QUESTION_LIMIT;
        let command = mechanisms_command(user);
        // The server may have closed a connection that was kept for reuse. Each attempt uses the
        // next kept connection, and the last attempt uses a new connection.
        for _ in 0..=MAX_SPARE {
            let (pool, mut connection) = self.unauthenticated(deadline).await?;
            let Ok(reply) = connection.run(&command).await else {
                continue;
            };
            // A server replies with an error, for example, while it is shutting down. Such a reply
            // says nothing about the user.
            if let Err((code, reason)) = reply_is_ok(&reply) {
                tracing::debug!(code, %reason, "server did not list a user's mechanisms");
                return Err(CredentialError::Unavailable);
            }
            self.keep_spare(&pool, connection);
            return Ok(listed_mechanisms(&reply));
        }
        Err(CredentialError::Unavailable)
    }

    /// Asks a server, on a connection of the user, which mechanisms it offers to the user. The user
    /// has logged in with `used`, and has the keys in `read`. Sends no query if the user has keys
    /// for no other mechanism.
    async fn ask_offered(
        &self,
        connection: &mut Connection,
        user: &UserName,
        read: &seawall_auth::Credentials,
        used: Mechanism,
    ) -> Result<(), CredentialError> {
        let is_other = |other: &Mechanism| *other != used && read.keys(*other).is_some();
        if !Mechanism::ALL.iter().any(is_other) {
            return Ok(());
        }
        let reply = ask(connection, &mechanisms_command(user)).await?;
        // An error says nothing about the mechanisms.
        if reply_is_ok(&reply).is_ok() {
            self.record_offered(user, read, &listed_mechanisms(&reply), Some(used));
        }
        Ok(())
    }

    /// Returns the keys of a configured user. If the configuration has keys for the user, returns
    /// these keys. If the configuration has a password, logs in at a server with the password, and
    /// returns the keys that the server has for the user.
    pub(super) async fn obtain_configured(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
    ) -> Result<Obtained, CredentialError> {
        let KeyRequest {
            user, mechanism, ..
        } = *request;
        let password = match self.configured(user).ok_or(CredentialError::Refused)? {
            UserSecret::Password(password) => password,
            UserSecret::Keys { sha1, sha256 } => {
                let keys = match mechanism {
                    Mechanism::ScramSha1 => sha1,
                    Mechanism::ScramSha256 => sha256,
                };
                let keys = keys.ok_or(CredentialError::Refused)?;
                return Ok(Obtained::Configured(keys));
            }
        };
        let first_login = match self.first_login(request).await? {
            Obtained::FirstLogin(first_login) => first_login,
            known @ (Obtained::Known(_) | Obtained::Configured(_)) => return Ok(known),
        };
        let logging_in = first_login.read_with_password(mechanism, password);
        self.run_to_end(logging_in).await.map(Obtained::Known)
    }

    /// Logs in at a server with configured keys. Then reads the user's keys and restrictions there,
    /// because the configuration contains no restrictions. `client_key` comes from a client's
    /// verified proof.
    pub(in crate::client) async fn log_in_with_keys(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
        client_key: ClientKey,
        keys: ScramKeys,
    ) -> Result<Known, CredentialError> {
        let KeyRequest {
            user, mechanism, ..
        } = *request;
        let first_login = match self.first_login(request).await? {
            Obtained::FirstLogin(first_login) => first_login,
            // Another login has made this user known during the wait.
            Obtained::Known(known) if known.credentials.keys(mechanism) == Some(&keys) => {
                return self.prove(user, &known, mechanism, client_key);
            }
            Obtained::Known(_) | Obtained::Configured(_) => return Err(CredentialError::Refused),
        };
        let limit = first_login.deadline;
        let reading = first_login.read_with_keys(client_key, keys);
        let reading = async move {
            let read = timeout_at(limit, reading).await;
            read.unwrap_or(Err(CredentialError::Unavailable))
        };
        self.run_to_end(reading).await
    }
}

impl FirstLogin {
    /// Logs in at a server with a configured password and reads the user's keys there.
    async fn read_with_password(
        self,
        mechanism: Mechanism,
        password: Zeroizing<String>,
    ) -> Result<Known, CredentialError> {
        let nonce = self.credentials.nonces.nonce();
        let (conversation, client_first) =
            ClientConversation::start(mechanism, &self.lead.user().name, &nonce);
        let parsed = ClientFirst::parse(&client_first).map_err(|_| CredentialError::Refused)?;
        let started = self.start(mechanism, parsed, &client_first);
        let (carried, server_first) = started.await?;
        // PBKDF2 takes milliseconds, so it must not run on a thread that serves operations.
        let derived = tokio::task::spawn_blocking(move || {
            let response = conversation.respond_with_password(&server_first, &password);
            response.ok().map(|(_, proof, _)| Secret::new(proof))
        });
        let client_final = derived.await.ok().flatten();
        let client_final = client_final.ok_or(CredentialError::Refused)?;
        let (known, _) = carried.finish(&client_final).await?;
        Ok(known)
    }

    /// Logs in with configured keys at the primary, at a router or at a standalone. Then reads the
    /// user's keys on the same connection.
    async fn read_with_keys(
        self,
        client_key: ClientKey,
        keys: ScramKeys,
    ) -> Result<Known, CredentialError> {
        let (credentials, user) = (&self.credentials, self.lead.user());
        let topology = &credentials.topology;
        let preference = ReadPreference::PRIMARY;
        let pool = topology.select(&preference, self.deadline);
        let pool = pool.await.map_err(|_| CredentialError::Unavailable)?;
        let (name, source) = (&user.name, &user.source);
        let login = Login::Keys {
            client_key: client_key.clone(),
            keys: keys.clone(),
        };
        // This identity is used only for the login at the server. The identity for clients needs
        // the user id, so it is created after the keys have been read.
        let identity = Identity::new(name, source, None, login);
        let established = pool.establish_outside(&identity).await;
        let mut connection = established.map_err(|error| match error {
            error if error.refuses_keys() => CredentialError::Refused,
            error => {
                tracing::debug!(%error, "could not establish a server connection with configured keys");
                CredentialError::Unavailable
            }
        })?;
        let asked_at = Instant::now();
        let read = ask_own_keys(&mut connection, user, &credentials.topology).await;
        let read = read.map_err(|error| {
            credentials.log_failed_reading(user, error.as_ref());
            CredentialError::Unavailable
        })?;
        let asking = credentials.ask_offered(&mut connection, user, &read, keys.mechanism());
        asking.await?;
        let known = credentials.learn(user, read, (client_key, keys), asked_at)?;
        pool.adopt(&known.identity, connection);
        Ok(known)
    }

    /// Sends the client's first payload to a server. Returns the server's challenge for the client.
    /// If the server refuses the payload, remembers that the user is unknown for this mechanism.
    pub(in crate::client) async fn start(
        mut self,
        mechanism: Mechanism,
        client_first: ClientFirst,
        client_first_payload: &[u8],
    ) -> Result<(Carried, Secret), CredentialError> {
        let source = (cstr!("$db"), &*self.lead.user().source);
        let command = sasl_start(mechanism.name(), source, client_first_payload);
        for _ in 0..=MAX_SPARE {
            let (pool, mut connection) = self.credentials.unauthenticated(self.deadline).await?;
            let asked = timeout_at(self.deadline, connection.run(&command)).await;
            let Ok(reply) = asked.map_err(|_| CredentialError::Unavailable)? else {
                continue;
            };
            let reply = SecretDocument::from(reply);
            if let Err((code, reason)) = reply_is_ok(&reply) {
                // Servers refuse a `saslStart` for unknown users and for users without the
                // mechanism.
                pool.metrics().count_login(mechanism.name(), false);
                let credentials = &self.credentials;
                let error = credentials.failed_step(&pool, connection, code, &reason);
                if error == CredentialError::Refused {
                    // `self.lead` is dropped only after this call. Its drop lets the next login of
                    // this user continue, which then finds the user unknown and sends no request to
                    // a server.
                    credentials.remember_unknown(self.lead.user(), mechanism);
                }
                return Err(error);
            }
            let server_first = payload(&reply);
            let conversation = CarriedConversation::new(mechanism, client_first);
            let challenge = conversation
                .server_first(&server_first)
                .map_err(|_| CredentialError::Unavailable)?;
            // The client may be slow to send its proof. Other first logins must not wait for this
            // client, so the turn for the exchange is released.
            self.exchange = None;
            if !self.conversation.store(connection) {
                return Err(CredentialError::Unavailable);
            }
            let carried = Carried {
                first_login: self,
                pool,
                challenge,
                conversation_id: conversation_id(&reply),
                mechanism,
            };
            return Ok((carried, server_first));
        }
        Err(CredentialError::Unavailable)
    }
}

impl Carried {
    /// Deadline for the client's proof.
    pub(in crate::client) fn deadline(&self) -> Instant {
        self.first_login.deadline
    }

    /// Sends the client's proof to the server. On success, Seawall knows the user's keys, and the
    /// result contains the server's signature for the client. The server connection of this login
    /// joins the pool if the pool has room, and is closed otherwise.
    pub(in crate::client) async fn finish(
        self,
        client_final: &[u8],
    ) -> Result<(Known, Secret), CredentialError> {
        let limit = self.first_login.deadline;
        let finished = timeout_at(limit, self.finish_in_time(client_final)).await;
        finished.unwrap_or(Err(CredentialError::Unavailable))
    }

    async fn finish_in_time(self, client_final: &[u8]) -> Result<(Known, Secret), CredentialError> {
        let Self {
            first_login,
            pool,
            challenge,
            conversation_id,
            mechanism,
        } = self;
        let proof = challenge
            .client_final(client_final)
            .map_err(|_| CredentialError::Refused)?;
        let user = first_login.lead.user();
        let credentials = Arc::clone(&first_login.credentials);
        let _exchange = credentials.exchanges.take(first_login.lead.sharer()).await;
        // The conversation may have been ended to make room for another one.
        let connection = first_login.conversation.take();
        let mut connection = connection.ok_or(CredentialError::Unavailable)?;
        let command = sasl_continue(conversation_id, &user.source, client_final);
        let reply = ask(&mut connection, &command).await?;
        let result = reply_is_ok(&reply);
        let metrics = pool.metrics();
        metrics.count_login(mechanism.name(), result.is_ok());
        if let Err((code, reason)) = result {
            return Err(credentials.failed_step(&pool, connection, code, &reason));
        }
        let server_final = payload(&reply);
        let refused = |reason: &'static str| {
            credentials.log_refused_first_login(user, reason);
            CredentialError::Refused
        };
        let outcome = proof
            .server_final(&server_final)
            .map_err(|_| refused("the server's last SASL payload is invalid"))?;
        if let Some(empty) = empty_exchange(&reply, &user.source) {
            ask(&mut connection, &empty).await?;
        }
        if !is_exactly(&mut connection, user).await? {
            return Err(refused(
                "the server does not report exactly this user for the connection",
            ));
        }
        let asked_at = Instant::now();
        let read = ask_own_keys(&mut connection, user, &credentials.topology)
            .await
            .map_err(|error| {
                if let Some(attempts) = credentials.failed_readings.count(Instant::now()) {
                    tracing::warn!(
                        error = %shown_error(error.as_ref()),
                        attempts,
                        "user could not read its own keys at its first login"
                    );
                }
                match is_server_failure(error.as_ref()) {
                    true => CredentialError::Unavailable,
                    false => refused("could not read the user's keys or restrictions"),
                }
            })?;
        let keys = read
            .keys(mechanism)
            .cloned()
            .ok_or_else(|| refused("the user has no keys for the mechanism"))?;
        let client_key = outcome
            .prove(&keys)
            .map_err(|_| refused("keys do not match the proof"))?;
        let asking = credentials.ask_offered(&mut connection, user, &read, mechanism);
        asking.await?;
        let known = credentials.learn(user, read, (client_key, keys), asked_at)?;
        pool.adopt(&known.identity, connection);
        Ok((known, server_final))
    }
}

/// The query for the mechanisms that a server offers to a user.
fn mechanisms_command(user: &UserName) -> RawDocumentBuf {
    rawdoc! {
        "isMaster": 1,
        "saslSupportedMechs": format!("{}.{}", user.source, user.name),
        "$db": "admin",
    }
}

/// The mechanisms in a reply to [`mechanisms_command`]; empty if the reply has no list.
fn listed_mechanisms(reply: &RawDocument) -> Vec<String> {
    let listed = reply.get_array("saslSupportedMechs");
    listed.map(mechanism_names).unwrap_or_default()
}

async fn ask(
    connection: &mut Connection,
    command: &RawDocument,
) -> Result<SecretDocument, CredentialError> {
    let reply = connection.run(command).await;
    reply
        .map(SecretDocument::from)
        .map_err(|_| CredentialError::Unavailable)
}

/// True if the server reports that this user, and no other, is logged in on the connection.
async fn is_exactly(connection: &mut Connection, user: &UserName) -> Result<bool, CredentialError> {
    let command = rawdoc! { "connectionStatus": 1, "$db": "admin" };
    let reply = ask(connection, &command).await?;
    // Every user may run this command, so an error says nothing about the user.
    reply_is_ok(&reply).map_err(|_| CredentialError::Unavailable)?;
    let users = reply
        .get_document("authInfo")
        .and_then(|a| a.get_array("authenticatedUsers"));
    let Ok(users) = users else { return Ok(false) };
    let named: Vec<_> = users.into_iter().filter_map(Result::ok).collect();
    Ok(match named.as_slice() {
        [only] => only.as_document().is_some_and(|only| {
            only.get_str("user").is_ok_and(|name| name == user.name)
                && only.get_str("db").is_ok_and(|source| source == user.source)
        }),
        _ => false,
    })
}
