//! A client's login: the SASL conversation, from the first payload to the verified identity.

use std::{
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
};

use bson::{Binary, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, spec::BinarySubtype};
use tokio::time::{Instant, sleep_until};

use super::{
    client_end::ClientEnd,
    credentials::{
        Carried, CredentialError, Credentials, KeyRequest, Known, Obtained, Secret, UserName,
    },
    refusal_time::refusal_time,
};
use crate::{limits::Limits, observe::Recorder};
use seawall_auth::{ClientFirst, Identity, Mechanism, NonceSource, ScramKeys, ServerConversation};
use seawall_command::{
    AUTHENTICATION_FAILED, ErrorReply, MECHANISM_UNAVAILABLE, NO_SUCH_KEY, PROTOCOL_ERROR,
    SECOND_USER_OF_ANOTHER_DATABASE, SECOND_USER_OF_SAME_DATABASE, TYPE_MISMATCH,
};
use seawall_transport::Sharer;

/// A SASL conversation in progress.
pub(super) struct SaslConversation {
    mechanism: Mechanism,
    user: UserName,
    began: Instant,
    step: LoginStep,
    /// True if the client skips the empty exchange at the end of the login (`skipEmptyExchange`).
    skips_empty_exchange: bool,
    /// True if the client's payloads are base64 text. The payloads in replies have the same type.
    is_text: bool,
}

/// The keys that verify a proof, by their source.
enum KeySource {
    /// The keys were read from a server.
    Server(Known),
    /// The keys are from the configuration.
    Configuration(ScramKeys),
}

impl KeySource {
    /// Releases this login's claim on cached keys: the right to check a proof with these keys
    /// without reading them again from a server. Only one login of a user at a time has this right.
    /// So if the user's password has changed, only one login fails because of the old keys.
    fn without_claim(self) -> Self {
        match self {
            Self::Server(known) => Self::Server(known.without_claim()),
            Self::Configuration(keys) => Self::Configuration(keys),
        }
    }
}

enum LoginStep {
    /// Seawall verifies the proof.
    Verify(Box<(KeySource, ServerConversation)>),
    /// A server verifies the proof, which Seawall sends to it.
    Carry(Box<Carried>),
    /// The proof is verified; the client still has to send an empty exchange.
    Empty(Arc<Identity>),
}

/// The parts of Seawall that a login uses.
pub(super) struct LoginContext<'a> {
    pub(super) credentials: &'a Arc<Credentials>,
    pub(super) recorder: &'a Recorder,
    pub(super) nonces: &'a NonceSource,
    pub(super) limits: &'a Limits,
    pub(super) peer: Option<IpAddr>,
    /// The client, which may disconnect during its login.
    pub(super) client: ClientEnd<'a>,
}

/// The way in which a login ends without an identity.
pub(super) enum LoginEnd {
    /// Seawall refuses the login with this error reply.
    Refused(ErrorReply),
    /// The client disconnected during its login.
    Gone,
}

impl From<ErrorReply> for LoginEnd {
    fn from(error: ErrorReply) -> Self {
        Self::Refused(error)
    }
}

/// The reason why a login fails.
enum LoginError {
    /// The proof or the user was refused, or no server was available.
    Credentials(CredentialError),
    /// The client disconnected. `is_ok` is true if its proof was right, false if its login was
    /// refused, and `None` if neither was known yet.
    Gone { is_ok: Option<bool> },
}

impl From<CredentialError> for LoginError {
    fn from(error: CredentialError) -> Self {
        Self::Credentials(error)
    }
}

/// The reply to a `saslContinue`, and the identity if the login is complete.
pub(super) struct StepOutcome {
    pub(super) reply: RawDocumentBuf,
    pub(super) identity: Option<Arc<Identity>>,
}

/// `conversationId` of all logins. Servers also use this value in all logins.
const CONVERSATION_ID: i32 = 1;

/// The parsed parts of a `saslStart`.
struct SaslStart {
    mechanism: Mechanism,
    client_first: ClientFirst,
    payload: Secret,
    user: UserName,
    skips_empty_exchange: bool,
    is_text: bool,
}

impl SaslStart {
    fn parse(command: &RawDocument, source: &str) -> Result<Self, ErrorReply> {
        let name = command.get_str("mechanism").unwrap_or_default();
        let mechanism = Mechanism::parse(name).ok_or_else(|| {
            let message =
                format!("Received authentication for mechanism {name} which is not enabled");
            ErrorReply::new(MECHANISM_UNAVAILABLE, message)
        })?;
        let (payload, is_text) = payload(command)?;
        let client_first = ClientFirst::parse(&payload).map_err(|_| failed())?;
        let options = command.get_document("options");
        let skips_empty_exchange =
            options.is_ok_and(|o| o.get_bool("skipEmptyExchange").unwrap_or(false));
        let user = UserName::new(client_first.user(), source).ok_or_else(failed)?;
        Ok(Self {
            mechanism,
            client_first,
            payload,
            user,
            skips_empty_exchange,
            is_text,
        })
    }
}

/// The user that a `saslStart` names; `None` if the command cannot be parsed.
pub(super) fn claimed_user(start: &RawDocument, source: &str) -> Option<UserName> {
    SaslStart::parse(start, source).ok().map(|start| start.user)
}

impl SaslConversation {
    /// Handles `saslStart`, which replaces any earlier conversation.
    pub(super) async fn start(
        context: &mut LoginContext<'_>,
        command: &RawDocument,
        source: &str,
    ) -> Result<(Self, RawDocumentBuf), LoginEnd> {
        let began = Instant::now();
        match Self::challenge(context, command, source, began).await {
            Ok(started) => Ok(started),
            Err(end) => Err(context.hold_back(end, began, began).await),
        }
    }

    /// Returns the login and the challenge for the client.
    async fn challenge(
        context: &mut LoginContext<'_>,
        command: &RawDocument,
        source: &str,
        began: Instant,
    ) -> Result<(Self, RawDocumentBuf), LoginEnd> {
        let start = SaslStart::parse(command, source)?;
        let (mechanism, user) = (start.mechanism, start.user.clone());
        match Self::obtain(context, start, began).await {
            Ok(started) => Ok(started),
            Err(error) => {
                let error = match error {
                    LoginError::Credentials(error) => context.delay_refused(&user, error).await,
                    gone @ LoginError::Gone { .. } => gone,
                };
                Err(context.fail(mechanism, error, began))
            }
        }
    }

    /// Determines whether Seawall or a server checks the proof. Returns the login and the challenge
    /// for the client.
    async fn obtain(
        context: &mut LoginContext<'_>,
        start: SaslStart,
        began: Instant,
    ) -> Result<(Self, RawDocumentBuf), LoginError> {
        let credentials = context.credentials;
        let obtained = {
            let request = context.key_request(&start.user, start.mechanism);
            let obtaining = pin!(credentials.obtain(&request));
            context.unless_gone(obtaining).await?
        };
        match obtained {
            Obtained::Known(known) => {
                let verified = Self::verify(context, start, KeySource::Server(known), began);
                verified.map_err(LoginError::Credentials)
            }
            Obtained::Configured(keys) => {
                let verified = Self::verify(context, start, KeySource::Configuration(keys), began);
                verified.map_err(LoginError::Credentials)
            }
            Obtained::FirstLogin(first_login) => {
                let SaslStart {
                    mechanism,
                    client_first,
                    payload,
                    user,
                    ..
                } = start;
                let (carried, server_first) = {
                    let starting = first_login.start(mechanism, client_first, &payload);
                    context.unless_gone(Box::pin(starting).as_mut()).await?
                };
                let login = Self {
                    mechanism,
                    user,
                    began,
                    step: LoginStep::Carry(Box::new(carried)),
                    skips_empty_exchange: start.skips_empty_exchange,
                    is_text: start.is_text,
                };
                let reply = login.reply(&server_first, false);
                Ok((login, reply))
            }
        }
    }

    /// Handles `speculativeAuthenticate` in a hello. Uses only cached keys
    /// ([`Credentials::fresh`]), because the reply to a hello must not wait until a server has
    /// returned the keys. `None` if no cached keys can be used at once, if Seawall does not offer
    /// the mechanism ([`Credentials::may_offer`]), or if the login would be refused.
    pub(super) fn speculate(
        context: &LoginContext<'_>,
        command: &RawDocument,
    ) -> Option<(Self, RawDocumentBuf)> {
        let began = Instant::now();
        let source = command.get_str("db").ok()?;
        let start = SaslStart::parse(command, source).ok()?;
        // The reply to the hello may also have the list `saslSupportedMechs`, from which the driver
        // chooses a mechanism. So a login begins here only if this list has its mechanism.
        if !context.credentials.may_offer(&start.user, start.mechanism) {
            return None;
        }
        let known = context.credentials.fresh(&start.user, began)?;
        Self::verify(context, start, KeySource::Server(known), began).ok()
    }

    /// Begins a conversation in which Seawall checks the proof.
    fn verify(
        context: &LoginContext<'_>,
        start: SaslStart,
        from: KeySource,
        began: Instant,
    ) -> Result<(Self, RawDocumentBuf), CredentialError> {
        let keys = match &from {
            KeySource::Server(known) if !Credentials::permits(known, context.peer) => None,
            KeySource::Server(known) => known.credentials.keys(start.mechanism),
            KeySource::Configuration(keys) => Some(keys),
        };
        let keys = keys.ok_or(CredentialError::Refused)?;
        let nonce = context.nonces.nonce();
        let (conversation, server_first) =
            ServerConversation::start(start.client_first, keys, &nonce);
        let login = Self {
            mechanism: start.mechanism,
            user: start.user,
            began,
            step: LoginStep::Verify(Box::new((from, conversation))),
            skips_empty_exchange: start.skips_empty_exchange,
            is_text: start.is_text,
        };
        let reply = login.reply(&server_first, false);
        Ok((login, reply))
    }

    /// Deadline for the client's proof if a server verifies the proof, else `None`.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.step {
            LoginStep::Carry(carried) => Some(carried.deadline()),
            LoginStep::Verify(_) | LoginStep::Empty(_) => None,
        }
    }

    /// Handles `saslContinue`. Returns the login if the client must send another `saslContinue`. An
    /// error ends the conversation.
    pub(super) async fn proceed(
        self,
        context: &mut LoginContext<'_>,
        command: &RawDocument,
        source: &str,
        current: Option<&Arc<Identity>>,
    ) -> Result<(Option<Self>, StepOutcome), LoginEnd> {
        let (began, arrived) = (self.began, Instant::now());
        match self.check(context, command, source, current).await {
            Ok(checked) => Ok(checked),
            Err(end) => Err(context.hold_back(end, began, arrived).await),
        }
    }

    async fn check(
        mut self,
        context: &mut LoginContext<'_>,
        command: &RawDocument,
        source: &str,
        current: Option<&Arc<Identity>>,
    ) -> Result<(Option<Self>, StepOutcome), LoginEnd> {
        check_conversation(command)?;
        let (payload, _) = payload(command)?;
        if source != self.user.source {
            return Err(failed().into());
        }
        let (mechanism, began) = (self.mechanism, self.began);
        let verified = match self.step {
            LoginStep::Empty(identity) => {
                let reply = sasl_reply(b"", true, self.is_text);
                return Ok((
                    None,
                    StepOutcome {
                        reply,
                        identity: Some(identity),
                    },
                ));
            }
            LoginStep::Verify(step) => {
                Self::verified(context, &self.user, began, *step, &payload).await
            }
            LoginStep::Carry(carried) => {
                Self::carried(context, &self.user, *carried, &payload).await
            }
        };
        let (identity, server_final) = match verified {
            Ok(verified) => verified,
            Err(error) => return Err(context.fail(mechanism, error, began)),
        };
        if let Some(current) = current {
            refuse_second_user(current, &identity)?;
        }
        context.count(mechanism, "ok", began);
        let is_done = self.skips_empty_exchange;
        let reply = sasl_reply(&server_final, is_done, self.is_text);
        if is_done {
            return Ok((
                None,
                StepOutcome {
                    reply,
                    identity: Some(identity),
                },
            ));
        }
        self.step = LoginStep::Empty(identity);
        Ok((
            Some(self),
            StepOutcome {
                reply,
                identity: None,
            },
        ))
    }

    /// Checks the client's proof. `began` is when the login began. Returns the identity and the
    /// last payload for the client.
    async fn verified(
        context: &mut LoginContext<'_>,
        user: &UserName,
        began: Instant,
        (from, conversation): (KeySource, ServerConversation),
        payload: &[u8],
    ) -> Result<(Arc<Identity>, Secret), LoginError> {
        let credentials = context.credentials;
        let mechanism = conversation.mechanism();
        let Ok(verified) = conversation.verify(payload) else {
            if let KeySource::Server(known) = &from {
                credentials.record_failed_proof(user, &known.identity);
            }
            return Err(context.delay_refused(user, CredentialError::Refused).await);
        };
        // The delay must not block other logins, so the claim on the cached keys is released first.
        // This is safe, because after the delay `prove` compares the keys with the latest keys.
        let from = from.without_claim();
        context.delay(user, true).await?;
        let client_key = verified.client_key;
        let known = match from {
            KeySource::Server(checked) => {
                let freshening = pin!(credentials.freshen_for_proof(user, &checked, began));
                let freshened = context.client.unless_gone(freshening).await;
                freshened.ok_or(LoginError::Gone { is_ok: Some(true) })?;
                credentials.prove(user, &checked, mechanism, client_key)?
            }
            KeySource::Configuration(keys) => {
                let request = context.key_request(user, mechanism);
                let logging_in = credentials.log_in_with_keys(&request, client_key, keys);
                let mut logging_in = Box::pin(logging_in);
                let known = context.client.unless_gone(logging_in.as_mut()).await;
                known.ok_or(LoginError::Gone { is_ok: Some(true) })??
            }
        };
        let identity = permitted(context, known)?;
        Ok((identity, Secret::new(verified.server_final)))
    }

    /// Sends the client's proof to a server, which verifies it. Returns the identity and the last
    /// payload for the client. After a successful login, Seawall knows the user's keys and checks
    /// the user's next logins itself. So the login continues even if the client disconnects.
    /// Otherwise Seawall might never learn the keys of a user whose clients all have short
    /// timeouts.
    async fn carried(
        context: &mut LoginContext<'_>,
        user: &UserName,
        carried: Carried,
        payload: &[u8],
    ) -> Result<(Arc<Identity>, Secret), LoginError> {
        let (known, server_final) = match Box::pin(carried.finish(payload)).await {
            Ok(finished) => finished,
            Err(error) => return Err(context.delay_refused(user, error).await),
        };
        context.delay(user, true).await?;
        Ok((permitted(context, known)?, server_final))
    }

    fn reply(&self, payload: &[u8], is_done: bool) -> RawDocumentBuf {
        sasl_reply(payload, is_done, self.is_text)
    }

    /// Converts the reply to a `saslStart` for use inside the reply to a hello: removes `ok`.
    pub(super) fn speculative_reply(reply: &RawDocument) -> RawDocumentBuf {
        let mut inside = RawDocumentBuf::new();
        for (name, value) in reply
            .iter()
            .filter_map(Result::ok)
            .filter(|(n, _)| n.as_str() != "ok")
        {
            inside.append(name, RawBson::from(value));
        }
        inside
    }
}

impl LoginContext<'_> {
    fn key_request<'a>(&self, user: &'a UserName, mechanism: Mechanism) -> KeyRequest<'a> {
        KeyRequest {
            user,
            mechanism,
            sharer: Sharer::at(self.peer),
        }
    }

    /// Delays a login if the client's address sends more logins of this user with the same result
    /// (success or failure) than `limits.logins_per_second_per_user` allows. `is_ok` is true if the
    /// proof is right, and false if the login is refused. Fails if the client disconnects.
    async fn delay(&mut self, user: &UserName, is_ok: bool) -> Result<(), LoginError> {
        let from = Sharer::at(self.peer);
        let name = (user.name.as_str(), user.source.as_str());
        let turn = self.limits.login_turn(from, name, is_ok, Instant::now());
        let Some(turn) = turn else { return Ok(()) };
        self.recorder.count_delayed_login();
        let delayed = self.client.unless_gone(pin!(sleep_until(turn))).await;
        delayed.ok_or(LoginError::Gone { is_ok: Some(is_ok) })
    }

    /// Runs `step`: work for a login that Seawall does before the client's proof is checked. Fails
    /// if the client disconnects.
    async fn unless_gone<T>(
        &mut self,
        step: Pin<&mut impl Future<Output = Result<T, CredentialError>>>,
    ) -> Result<T, LoginError> {
        let done = self.client.unless_gone(step).await;
        Ok(done.ok_or(LoginError::Gone { is_ok: None })??)
    }

    /// Delays a login that failed with `error`, if the login was refused. Returns the reason of the
    /// failure: `error`, or that the client disconnected during the delay.
    async fn delay_refused(&mut self, user: &UserName, error: CredentialError) -> LoginError {
        match error {
            CredentialError::Refused => self.delay(user, false).await.err(),
            CredentialError::Unavailable => None,
        }
        .unwrap_or(LoginError::Credentials(error))
    }

    /// Delays the reply to a refused login that began at `began`. So the time of the reply does not
    /// show why the login was refused. `arrived` is the time at which the refused message arrived.
    /// Replies with other errors are not delayed, because their codes show the reason anyway.
    async fn hold_back(&mut self, end: LoginEnd, began: Instant, arrived: Instant) -> LoginEnd {
        let is_refusal =
            matches!(&end, LoginEnd::Refused(error) if error.code == AUTHENTICATION_FAILED);
        if !is_refusal {
            return end;
        }
        let at = refusal_time(began, arrived, Instant::now());
        let held_back = self.client.unless_gone(pin!(sleep_until(at))).await;
        held_back.map_or(LoginEnd::Gone, |()| end)
    }

    /// Counts a login that ends without an identity. If the client has disconnected, the result is
    /// `ok` if its proof was right, and `refused` if its login was refused. If the client
    /// disconnected before either was known, the login is not counted.
    fn fail(&self, mechanism: Mechanism, error: LoginError, began: Instant) -> LoginEnd {
        match error {
            LoginError::Credentials(error) => {
                self.count(mechanism, error.into(), began);
                LoginEnd::Refused(reply_to(error))
            }
            LoginError::Gone { is_ok } => {
                let result = is_ok.map(|is_ok| match is_ok {
                    true => "ok",
                    false => CredentialError::Refused.into(),
                });
                if let Some(result) = result {
                    self.count(mechanism, result, began);
                }
                LoginEnd::Gone
            }
        }
    }

    fn count(&self, mechanism: Mechanism, result: &'static str, began: Instant) {
        self.recorder
            .count_client_login(mechanism.name(), result, began.elapsed());
    }
}

impl From<CredentialError> for &'static str {
    fn from(error: CredentialError) -> Self {
        match error {
            CredentialError::Refused => "refused",
            CredentialError::Unavailable => "unavailable",
        }
    }
}

/// Returns a user's identity if the user's `authenticationRestrictions` allow the client's address.
/// Seawall has to enforce them, because a server sees only Seawall's address.
fn permitted(context: &LoginContext<'_>, known: Known) -> Result<Arc<Identity>, CredentialError> {
    match Credentials::permits(&known, context.peer) {
        true => Ok(known.identity),
        false => Err(CredentialError::Refused),
    }
}

fn sasl_reply(payload: &[u8], is_done: bool, is_text: bool) -> RawDocumentBuf {
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("conversationId"), CONVERSATION_ID);
    reply.append(cstr!("done"), is_done);
    if is_text {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(payload);
        reply.append(cstr!("payload"), text);
    } else {
        let binary = Binary {
            subtype: BinarySubtype::Generic,
            bytes: payload.to_vec(),
        };
        reply.append(cstr!("payload"), binary);
    }
    reply.append(cstr!("ok"), 1.0);
    reply
}

/// Returns the payload of a SASL command. The `bool` is true if the client sent the payload as
/// base64 text, and false if it sent binary.
fn payload(command: &RawDocument) -> Result<(Secret, bool), ErrorReply> {
    match command.get("payload") {
        Ok(Some(RawBsonRef::Binary(binary))) => Ok((Secret::new(binary.bytes.to_vec()), false)),
        Ok(Some(RawBsonRef::String(text))) => {
            use base64::Engine as _;
            let bytes = base64::engine::general_purpose::STANDARD.decode(text);
            let bytes = bytes.map_err(|_| failed())?;
            Ok((Secret::new(bytes), true))
        }
        Ok(None) => Err(ErrorReply::new(
            NO_SUCH_KEY,
            "Missing expected field \"payload\"",
        )),
        _ => Err(ErrorReply::new(
            TYPE_MISMATCH,
            "Wrong type for field: 'payload'",
        )),
    }
}

fn check_conversation(command: &RawDocument) -> Result<(), ErrorReply> {
    match command.get("conversationId") {
        Ok(Some(RawBsonRef::Int32(CONVERSATION_ID))) => Ok(()),
        Ok(Some(RawBsonRef::Int32(_))) => Err(ErrorReply::new(
            PROTOCOL_ERROR,
            "sasl: Mismatched conversation id",
        )),
        _ => Err(ErrorReply::new(
            TYPE_MISMATCH,
            "Wrong type for field: 'conversationId', expected int",
        )),
    }
}

/// Refuses a login as a second user, because a client connection has one user at a time.
fn refuse_second_user(current: &Identity, new: &Identity) -> Result<(), ErrorReply> {
    if (current.name(), current.source()) == (new.name(), new.source()) {
        return Ok(());
    }
    if current.source() == new.source() {
        let message = "Client has attempted to authenticate as multiple users on the same database";
        return Err(ErrorReply::new(SECOND_USER_OF_SAME_DATABASE, message));
    }
    let message = "Each client connection may only be authenticated once";
    Err(ErrorReply::new(SECOND_USER_OF_ANOTHER_DATABASE, message))
}

fn failed() -> ErrorReply {
    ErrorReply::new(AUTHENTICATION_FAILED, "Authentication failed.")
}

/// The error reply for a failed login. An unavailable server has a different code than a wrong
/// password, so that drivers can distinguish them.
fn reply_to(error: CredentialError) -> ErrorReply {
    match error {
        CredentialError::Refused => failed(),
        CredentialError::Unavailable => ErrorReply::new(
            seawall_command::HOST_UNREACHABLE,
            "no server available to read the user's credentials",
        ),
    }
}
