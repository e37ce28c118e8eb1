//! Serves the commands of the handshake and of the login, to which Seawall itself replies.

use std::{net::IpAddr, pin::pin, sync::Arc};

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};
use tokio::time::Instant;

use super::{
    Client, CredentialMode, End, LoginDue, Shared,
    credentials::UserName,
    hello::{Greeting, Hello, check_api_version, client_element, quiesce, unknown_deployment},
    login::{LoginContext, LoginEnd, SaslConversation, claimed_user},
    own_reply::{ReplyTo, requires_authentication},
};
use crate::captures::CapturedClient;
use seawall_auth::{Identity, IdentityStatus};
use seawall_command::{
    COMMAND_NOT_FOUND, Command, EXHAUST_HELLO_WITHOUT_MAX_AWAIT_TIME, ErrorReply,
    GET_LAST_ERROR_NOT_SUPPORTED, Handshake, INVALID_BSON, MECHANISM_UNAVAILABLE,
    NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT, PROTOCOL_ERROR, table::ReplyBeforeLogin,
};
use seawall_stats::Stage;
use seawall_transport::{LARGE_MESSAGE_BYTES, Sharer};
use seawall_wire::Elements;

impl Client {
    /// Serves a command of the handshake or the login.
    pub(super) async fn serve_handshake(
        &mut self,
        handshake: Handshake,
        command: &Command<'_>,
        reply_to: ReplyTo,
        now: Instant,
    ) -> Result<(), End> {
        let Ok(body) = RawDocument::from_bytes(command.body) else {
            return self
                .refuse(reply_to, &ErrorReply::new(INVALID_BSON, "invalid BSON"))
                .await;
        };
        let reply = match handshake {
            Handshake::Hello | Handshake::LegacyHello if is_exhaust_misused(body, reply_to) => {
                let message = "A hello with exhaustAllowed must include 'maxAwaitTimeMS'";
                Err(ErrorReply::new(
                    EXHAUST_HELLO_WITHOUT_MAX_AWAIT_TIME,
                    message,
                ))
            }
            Handshake::Hello | Handshake::LegacyHello => {
                let step = self.hello(body, handshake == Handshake::LegacyHello).await;
                self.unless_left(step)?
            }
            Handshake::SaslStart => {
                self.connected.set_stage(Stage::LoggingIn);
                let step = self.sasl_start(body, command.db).await;
                self.unless_left(step)?
            }
            Handshake::SaslContinue => {
                let step = self.sasl_continue(body, command.db).await;
                self.unless_left(step)?
            }
            Handshake::Authenticate => {
                let name = body.get_str("mechanism").unwrap_or("MONGODB-X509");
                let message =
                    format!("Received authentication for mechanism {name} which is not enabled");
                Err(ErrorReply::new(MECHANISM_UNAVAILABLE, message))
            }
            Handshake::Logout if self.identity.is_none() => {
                Err(requires_authentication(command.name_str()))
            }
            Handshake::Logout => Ok(self.logout(command.db)),
            Handshake::Getnonce => Ok(self.getnonce()),
            Handshake::WhatsMyUri => Ok(rawdoc! { "you": &*self.peer.text, "ok": 1.0 }),
        };
        let reply = reply.unwrap_or_else(|error| error.to_document());
        self.reply_locally(command, reply_to, &reply, now).await
    }

    /// The identity with which a command runs; `None` if Seawall replies to the command without an
    /// identity. This is so in three cases:
    ///
    /// - The client must log in.
    /// - The command needs no login and is not long, and the client has lost its login
    ///   ([`has_lost_login`]).
    /// - The command is `getLastError`, and a server still supports it. The server would report the
    ///   last operation of its connection, which may be another client's operation.
    pub(super) fn operator(&mut self, command: &Command<'_>) -> Option<Arc<Identity>> {
        let identity = self.current_identity()?;
        let is_local = match command.spec.reply_before_login {
            ReplyBeforeLogin::Refusal => false,
            ReplyBeforeLogin::Ping
            | ReplyBeforeLogin::BuildInfo
            | ReplyBeforeLogin::ConnectionStatus => {
                // Seawall searches the whole command, so the command must not be long.
                command.body.len() <= LARGE_MESSAGE_BYTES && has_lost_login(&identity, self.peer.ip)
            }
            ReplyBeforeLogin::GetLastError => {
                let snapshot = self.shared.routing.topology.snapshot();
                snapshot.description.knows_get_last_error()
            }
        };
        (!is_local).then_some(identity)
    }

    /// Replies to a command for which [`Self::operator`] returns `None`. The reply is an error if a
    /// server would require a login, for `getLastError`, and for `buildInfo` while Seawall does not
    /// know the deployment yet. Also replies to a `buildInfo` that arrives as an `OP_QUERY`.
    pub(super) async fn serve_unauthenticated(
        &mut self,
        command: &Command<'_>,
        reply_to: ReplyTo,
        now: Instant,
    ) -> Result<(), End> {
        let reply = match command.spec.reply_before_login {
            ReplyBeforeLogin::Ping => rawdoc! { "ok": 1.0 },
            ReplyBeforeLogin::BuildInfo => self.build_info(),
            ReplyBeforeLogin::ConnectionStatus => connection_status(command),
            ReplyBeforeLogin::GetLastError => ErrorReply::new(
                GET_LAST_ERROR_NOT_SUPPORTED,
                "getLastError command is not supported",
            )
            .to_document(),
            ReplyBeforeLogin::Refusal => requires_authentication(command.name_str()).to_document(),
        };
        self.reply_locally(command, reply_to, &reply, now).await
    }

    fn build_info(&self) -> RawDocumentBuf {
        let snapshot = self.shared.routing.topology.snapshot();
        let description = &snapshot.description;
        let known = description.build_info().cloned();
        known.unwrap_or_else(|| unknown_deployment(description))
    }

    /// Records the client's metadata, compressors and capabilities from its hello.
    fn note_greeting(&mut self, hello: &Hello) {
        self.has_greeted = true;
        self.announces_backpressure |= hello.announces_backpressure;
        if let Some(metadata) = &hello.metadata {
            let name = metadata
                .get_document("application")
                .and_then(|a| a.get_str("name"));
            self.connected.set_application(name.ok());
            if let Ok(driver) = metadata.get_document("driver") {
                let part = |field| driver.get_str(field).unwrap_or_default();
                self.connected.set_driver(part("name"), part("version"));
            }
            let settings = self.shared.settings();
            let snapshot = self.shared.routing.topology.snapshot();
            let max_bytes = snapshot.description.max_client_bytes();
            self.client_element =
                client_element(metadata, &settings.host, &self.peer.text, max_bytes);
        }
        if let Some(offered) = hello.compressors {
            self.compressors = offered.among(&self.allowed_compressors);
        }
    }

    /// Exempts a monitor connection of a driver from the duty to log in. If Seawall closed a
    /// monitor connection, the driver would mark Seawall as unavailable and close all its
    /// connections to Seawall.
    ///
    /// # Errors
    /// No permit is left for a further monitor of the client's address. But if clients with
    /// mechanisms other than SCRAM are relayed, a client that has a deadline for its login keeps
    /// this deadline and gets no error.
    fn note_monitor(&mut self) -> Result<(), ErrorReply> {
        if self.identity.is_some() {
            return Ok(());
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.record_hello();
            // If the monitor had begun a login, this hello removes the deadline for the login.
            self.handshake = None;
            return Ok(());
        }
        let limits = &self.shared.limits;
        let monitor = limits.admit_monitor(self.sharer, &self.eviction, Instant::now());
        self.monitor = monitor.map(Box::new);
        if self.monitor.is_none() {
            // The hello may come from a client that will log in by a mechanism other than SCRAM.
            // Such a client is not refused: it keeps its deadline for the login.
            if self.shared.settings().relays_other_mechanisms && self.handshake.is_some() {
                return Ok(());
            }
            self.shared
                .recorder
                .count_refused_client("monitor_connections");
            let code = NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT;
            return Err(ErrorReply::new(code, "monitor connection limit reached"));
        }
        self.eviction.set_exempt(true);
        self.handshake = None;
        Ok(())
    }

    async fn hello(
        &mut self,
        body: &RawDocument,
        is_legacy: bool,
    ) -> Result<RawDocumentBuf, LoginEnd> {
        let shared = Arc::clone(&self.shared);
        let snapshot = shared.routing.topology.snapshot();
        let description = &snapshot.description;
        // The fields of a refused `hello` are ignored, because the client repeats them in the
        // legacy command.
        if !is_legacy && description.lacks_hello {
            return Err(ErrorReply::new(COMMAND_NOT_FOUND, "no such command: 'hello'").into());
        }
        if description.knows_stable_api() {
            check_api_version(body, is_legacy)?;
        }
        let hello = Hello::parse(body, is_legacy, !self.has_greeted)?;
        self.note_greeting(&hello);
        if hello.is_from_monitor() || self.monitor.is_some() {
            self.note_monitor()?;
        }
        let draining = *self.shared.draining.borrow();
        if let Some(until) = draining {
            return Ok(quiesce(until.saturating_duration_since(Instant::now())));
        }
        // Until the credential mode is decided, Seawall does not know if clients must log in, even
        // if it has already seen a server.
        let is_undecided = shared.logins.credentials.mode() == CredentialMode::Undecided;
        if !description.was_seen || is_undecided {
            return Ok(unknown_deployment(description));
        }
        let mechanisms = match &hello.sasl_supported_mechs {
            Some(user) => Some(self.mechanisms(user).await?),
            None => None,
        };
        // While logins have to wait, Seawall ignores `speculativeAuthenticate`, because the reply
        // to a hello must not wait. The client then sends a `saslStart`.
        let speculative = hello
            .speculative
            .as_ref()
            .filter(|start| {
                if self.shared.logins.gates.try_pass_as_anyone() {
                    return true;
                }
                let source = start.get_str("db").unwrap_or_default();
                let user = claimed_user(start, source);
                let user = user.as_ref().map(|user| (&*user.name, &*user.source));
                self.shared.logins.gates.try_pass(user)
            })
            .and_then(|c| self.speculate(c));
        self.connected.record_hello_reply(hello.is_from_monitor());
        let greeting = Greeting {
            description,
            connection_id: self.connected.id(),
            compressors: self.compressors,
            service_id: shared.service_id,
            mechanisms,
            speculative,
            is_open: shared.logins.credentials.mode() == CredentialMode::None,
        };
        Ok(greeting.reply(&hello))
    }

    /// Returns the mechanisms of `user` (`db.user`). If the mechanisms are not cached, asks a
    /// server. Fails if the client leaves, or if no server replies and no mechanisms are
    /// remembered.
    async fn mechanisms(&mut self, user: &str) -> Result<Vec<String>, LoginEnd> {
        let Some((source, name)) = user.split_once('.') else {
            return Ok(Vec::new());
        };
        let Some(user) = UserName::new(name, source) else {
            return Ok(Vec::new());
        };
        let shared = Arc::clone(&self.shared);
        let asking = pin!(shared.logins.credentials.mechanisms(&user, self.sharer));
        let asked = self.end().unless_gone(asking).await.ok_or(LoginEnd::Gone)?;
        asked.map_err(|_| {
            // Seawall refuses the hello. After a reply without `saslSupportedMechs`, a driver would
            // use SCRAM-SHA-1, and its login might fail with an error that the driver does not
            // retry.
            let message = "no server available to list the user's mechanisms";
            ErrorReply::new(seawall_command::SHUTDOWN_IN_PROGRESS, message).into()
        })
    }

    fn login_context<'a>(&'a mut self, shared: &'a Shared) -> LoginContext<'a> {
        LoginContext {
            credentials: &shared.logins.credentials,
            recorder: &shared.recorder,
            nonces: &shared.logins.nonces,
            limits: &shared.limits,
            peer: self.peer.ip,
            client: self.end(),
        }
    }

    /// Returns the reply to a hello or to a step of a login. Ends the connection if the client left
    /// during the step.
    fn unless_left(
        &self,
        step: Result<RawDocumentBuf, LoginEnd>,
    ) -> Result<Result<RawDocumentBuf, ErrorReply>, End> {
        match step {
            Ok(reply) => Ok(Ok(reply)),
            Err(LoginEnd::Refused(error)) => Ok(Err(error)),
            Err(LoginEnd::Gone) => {
                self.connected.record_left_unserved();
                Err(End::Gone)
            }
        }
    }

    /// Begins a login by `speculativeAuthenticate` with cached keys of the user. `None` if no
    /// cached keys can be used at once.
    fn speculate(&mut self, command: &RawDocument) -> Option<RawDocumentBuf> {
        let shared = Arc::clone(&self.shared);
        let (login, reply) = SaslConversation::speculate(&self.login_context(&shared), command)?;
        self.login = Some(Box::new(login));
        self.end_exemption_for_login();
        Some(SaslConversation::speculative_reply(&reply))
    }

    /// Waits until the login gates, which limit the rate of logins under overload, let this login
    /// pass. The gates delay logins, but never refuse one.
    ///
    /// # Errors
    /// The client left during the wait.
    pub(super) async fn pass_login_gates(&mut self, start: &Command<'_>) -> Result<(), End> {
        // The new login replaces an unfinished one. Otherwise an unfinished first login would count
        // towards the limit of first logins while this login waits. If the client becomes a relayed
        // client, the unfinished first login would count until this client leaves.
        self.login = None;
        let shared = Arc::clone(&self.shared);
        if shared.logins.gates.try_pass_as_anyone() {
            return Ok(());
        }
        let body = RawDocument::from_bytes(start.body).ok();
        let user = body.and_then(|body| claimed_user(body, start.db));
        let user = user.as_ref().map(|user| (&*user.name, &*user.source));
        if shared.logins.gates.try_pass(user) {
            return Ok(());
        }
        shared.recorder.count_delayed_login();
        self.connected.set_stage(Stage::LoggingIn);
        let began = Instant::now();
        let pass = pin!(shared.logins.gates.pass(user, self.sharer));
        let passed = self.end().unless_gone(pass).await;
        match passed {
            Some(()) => {
                self.extend_login_deadline(began);
                Ok(())
            }
            None => {
                self.connected.record_left_unserved();
                Err(End::Gone)
            }
        }
    }

    async fn sasl_start(
        &mut self,
        body: &RawDocument,
        source: &str,
    ) -> Result<RawDocumentBuf, LoginEnd> {
        self.end_exemption_for_login();
        let shared = Arc::clone(&self.shared);
        let mut context = self.login_context(&shared);
        let (login, reply) = SaslConversation::start(&mut context, body, source).await?;
        self.login = Some(Box::new(login));
        Ok(reply)
    }

    async fn sasl_continue(
        &mut self,
        body: &RawDocument,
        source: &str,
    ) -> Result<RawDocumentBuf, LoginEnd> {
        let Some(login) = self.login.take() else {
            let error = ErrorReply::new(PROTOCOL_ERROR, "No SASL session state found");
            return Err(error.into());
        };
        self.connected.set_stage(Stage::LoggingIn);
        // The anonymous identity and a user that was dropped do not count as a first user. So the
        // client may still log in as any user.
        let is_first_user =
            |i: &Arc<Identity>| !i.is_anonymous() && i.status() != IdentityStatus::Gone;
        let current = self.identity.clone().filter(is_first_user);
        let shared = Arc::clone(&self.shared);
        let mut context = self.login_context(&shared);
        let proceeding = login.proceed(&mut context, body, source, current.as_ref());
        let (login, outcome) = proceeding.await?;
        self.login = login.map(Box::new);
        if let Some(identity) = outcome.identity {
            self.connected
                .set_user(Some(&format!("{}.{}", identity.source(), identity.name())));
            self.share_by_user(&identity);
            if current.is_none() {
                // A capture may be limited to some users. So after a logout and a login as another
                // user, the connection counts as another client.
                self.captured = CapturedClient::default();
            }
            self.identity = Some(identity);
            self.handshake = None;
            self.leave_monitors();
            self.connected.set_stage(Stage::Ready);
        }
        Ok(outcome.reply)
    }

    fn logout(&mut self, db: &str) -> RawDocumentBuf {
        let is_own = self
            .identity
            .as_ref()
            .is_some_and(|i| !i.is_anonymous() && i.source() == db);
        if is_own {
            self.identity = None;
            self.connected.set_user(None);
            self.require_login();
        }
        rawdoc! { "ok": 1.0 }
    }

    /// Called when the client begins a login. If the client has no deadline for its login yet (for
    /// example, because it is a monitor), sets a deadline.
    fn end_exemption_for_login(&mut self) {
        if self.handshake.is_none() && self.identity.is_none() {
            self.require_login();
        }
    }

    /// Requires the client to log in before a new deadline. The client keeps its connection even if
    /// no permit is left for clients that have not logged in. Without this permit, a monitor keeps
    /// its permit for monitors until it has logged in. So a monitor that begins a login always
    /// counts towards one of the two limits.
    pub(super) fn require_login(&mut self) {
        let deadline = Instant::now() + self.shared.settings().authentication_timeout;
        self.share_as(Sharer::at(self.peer.ip));
        let limits = &self.shared.limits;
        let permit = limits.admit_handshake(self.sharer, &self.eviction);
        if permit.is_some() {
            self.leave_monitors();
        }
        self.handshake = Some(Box::new(LoginDue { permit, deadline }));
    }

    fn leave_monitors(&mut self) {
        self.monitor = None;
        self.eviction.set_exempt(false);
    }

    /// Called after a login. Many clients share an address in `shared_addresses`. A client with
    /// such an address counts, from now on, towards the limits of its user, and no longer towards
    /// the limits of its address.
    fn share_by_user(&mut self, identity: &Identity) {
        let Some(ip) = self.peer.ip.map(|ip| ip.to_canonical()) else {
            return;
        };
        let settings = self.shared.settings();
        let mut shared = settings.shared_addresses.iter();
        if shared.any(|network| network.contains(&ip)) {
            self.share_as(Sharer::User(identity.id().as_u64()));
        }
    }

    fn share_as(&mut self, sharer: Sharer) {
        if sharer != self.sharer {
            self.sharer = sharer;
            self.client_permit.move_to(sharer);
            self.reader.set_sharer(sharer);
        }
    }

    fn getnonce(&self) -> RawDocumentBuf {
        let mut bytes = [0; 8];
        self.shared.logins.nonces.fill(&mut bytes);
        let nonce = format!("{:016x}", u64::from_le_bytes(bytes));
        rawdoc! { "nonce": nonce, "ok": 1.0 }
    }
}

/// True if a hello has `exhaustAllowed` but no `maxAwaitTimeMS`. Servers refuse this.
fn is_exhaust_misused(hello: &RawDocument, reply_to: ReplyTo) -> bool {
    reply_to.allows_exhaust() && !matches!(hello.get("maxAwaitTimeMS"), Ok(Some(_)))
}

/// The reply to a `connectionStatus` of a client without a user.
fn connection_status(command: &Command<'_>) -> RawDocumentBuf {
    let mut info = rawdoc! { "authenticatedUsers": [], "authenticatedUserRoles": [] };
    let shows_privileges = Elements::find(command.body, "showPrivileges");
    if shows_privileges.is_some_and(|element| element.value.is_truthy()) {
        info.append(cstr!("authenticatedUserPrivileges"), RawArrayBuf::new());
    }
    rawdoc! { "authInfo": info, "ok": 1.0 }
}

/// True if a client that had logged in as the user of `identity` has lost this login: the user was
/// dropped, or the user's `authenticationRestrictions` no longer permit the client's address
/// (`peer`). A server then runs only commands that need no login.
fn has_lost_login(identity: &Identity, peer: Option<IpAddr>) -> bool {
    match identity.status() {
        IdentityStatus::Good => !identity.permits(peer),
        IdentityStatus::Gone => true,
        // Seawall closes the connection of this client, so that the client logs in again.
        IdentityStatus::Refused => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that a function returns.
    fn future_size<'a, F>(
        _: impl FnOnce(&'a mut Client, Handshake, &'a Command<'a>, ReplyTo, Instant) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// Each client that logs in needs memory for this future, and thousands of clients may log in
    /// at the same time.
    #[test]
    fn the_future_of_a_handshake_command_has_at_most_3_kib() {
        let bytes = future_size(Client::serve_handshake);
        assert!(bytes <= 3 * 1024, "{bytes}");
    }
}
