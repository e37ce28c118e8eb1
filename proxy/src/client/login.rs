//! A client's login: the SASL conversation, from its first payload to a proven identity.

use std::{net::IpAddr, sync::Arc};

use bson::{Binary, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, spec::BinarySubtype};
use tokio::time::{Instant, sleep_until};

use super::credentials::{
    Asked, Carried, CredentialError, Credentials, Known, Obtained, Secret, UserName,
};
use crate::{
    auth::{ClientFirst, Identity, Mechanism, NonceSource, ScramKeys, ServerConversation},
    command::{AUTHENTICATION_FAILED, ErrorReply, MECHANISM_UNAVAILABLE, PROTOCOL_ERROR},
    limits::Limits,
    observe::Observer,
    wire::Sharer,
};

/// A conversation in progress.
pub(super) struct Login {
    mechanism: Mechanism,
    user: UserName,
    began: Instant,
    step: Step,
    skips_empty_exchange: bool,
    /// Payloads go back in the BSON type they came in.
    is_text: bool,
}

/// Where the keys come from that a proof is verified with.
enum KeysFrom {
    /// A server.
    Server(Known),
    /// The configuration.
    Configuration(ScramKeys),
}

enum Step {
    /// The proof is verified here.
    Verify(Box<(KeysFrom, ServerConversation)>),
    /// The proof is carried to a server.
    Carry(Box<Carried>),
    /// Proven; an empty exchange is still to come.
    Empty(Arc<Identity>),
}

/// What a login needs of its surroundings.
pub(super) struct Surroundings<'a> {
    pub(super) credentials: &'a Arc<Credentials>,
    pub(super) observer: &'a Observer,
    pub(super) nonces: &'a NonceSource,
    pub(super) limits: &'a Limits,
    pub(super) peer: Option<IpAddr>,
}

/// A step's reply, and the identity if the login is complete.
pub(super) struct Stepped {
    pub(super) reply: RawDocumentBuf,
    pub(super) identity: Option<Arc<Identity>>,
}

/// The conversation's number, as a server gives it.
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

/// The user that a `saslStart` claims to be, if it can be read.
pub(super) fn claimed_user(start: &RawDocument, source: &str) -> Option<UserName> {
    SaslStart::parse(start, source).ok().map(|start| start.user)
}

impl Login {
    /// `saslStart`: takes the place of any conversation before it.
    pub(super) async fn start(
        around: &Surroundings<'_>,
        command: &RawDocument,
        source: &str,
    ) -> Result<(Self, RawDocumentBuf), ErrorReply> {
        let began = Instant::now();
        let start = SaslStart::parse(command, source)?;
        let mechanism = start.mechanism;
        let UserName { name, source: db } = &start.user;
        let turn = around
            .limits
            .login_turn(Sharer::at(around.peer), (name, db), began);
        if let Some(turn) = turn {
            around.observer.login_delayed();
            sleep_until(turn).await;
        }
        let result = Self::obtain(around, start, began).await;
        result.map_err(|error| {
            around.count(mechanism, error.into(), began);
            reply_to(error)
        })
    }

    async fn obtain(
        around: &Surroundings<'_>,
        start: SaslStart,
        began: Instant,
    ) -> Result<(Self, RawDocumentBuf), CredentialError> {
        let asked = around.asked(&start.user, start.mechanism);
        match around.credentials.obtain(&asked).await? {
            Obtained::Known(known) => Self::verify(around, start, KeysFrom::Server(known), began),
            Obtained::Configured(keys) => {
                Self::verify(around, start, KeysFrom::Configuration(keys), began)
            }
            Obtained::Introduce(introduction) => {
                let SaslStart {
                    mechanism,
                    client_first,
                    payload,
                    user,
                    ..
                } = start;
                let carried = introduction.start(mechanism, client_first, &payload).await;
                if matches!(carried, Err(CredentialError::Refused)) {
                    around.credentials.remember_unknown(&user, mechanism);
                }
                let (carried, server_first) = carried?;
                let login = Self {
                    mechanism,
                    user,
                    began,
                    step: Step::Carry(Box::new(carried)),
                    skips_empty_exchange: start.skips_empty_exchange,
                    is_text: start.is_text,
                };
                let reply = login.reply(&server_first, false);
                Ok((login, reply))
            }
        }
    }

    /// The part of `speculativeAuthenticate` in a hello, which never waits: only with fresh keys at hand.
    pub(super) fn speculate(
        around: &Surroundings<'_>,
        command: &RawDocument,
    ) -> Option<(Self, RawDocumentBuf)> {
        let began = Instant::now();
        let source = command.get_str("db").ok()?;
        let start = SaslStart::parse(command, source).ok()?;
        let known = around.credentials.fresh(&start.user, began)?;
        let UserName { name, source: db } = &start.user;
        let may_begin = around
            .limits
            .admits_login(Sharer::at(around.peer), (name, db), began);
        if !may_begin {
            return None;
        }
        Self::verify(around, start, KeysFrom::Server(known), began).ok()
    }

    fn verify(
        around: &Surroundings<'_>,
        start: SaslStart,
        from: KeysFrom,
        began: Instant,
    ) -> Result<(Self, RawDocumentBuf), CredentialError> {
        let keys = match &from {
            KeysFrom::Server(known) if !Credentials::permits(known, around.peer) => None,
            KeysFrom::Server(known) => known.credentials.keys(start.mechanism),
            KeysFrom::Configuration(keys) => Some(keys),
        };
        let keys = keys.ok_or(CredentialError::Refused)?;
        let nonce = around.nonces.nonce();
        let (conversation, server_first) =
            ServerConversation::start(start.client_first, keys, &nonce);
        let login = Self {
            mechanism: start.mechanism,
            user: start.user,
            began,
            step: Step::Verify(Box::new((from, conversation))),
            skips_empty_exchange: start.skips_empty_exchange,
            is_text: start.is_text,
        };
        let reply = login.reply(&server_first, false);
        Ok((login, reply))
    }

    /// When a carried login has to have gone on.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.step {
            Step::Carry(carried) => Some(carried.deadline()),
            Step::Verify(_) | Step::Empty(_) => None,
        }
    }

    /// `saslContinue`. An error ends the conversation; the login goes on only if it comes back.
    pub(super) async fn proceed(
        mut self,
        around: &Surroundings<'_>,
        command: &RawDocument,
        source: &str,
        current: Option<&Arc<Identity>>,
    ) -> Result<(Option<Self>, Stepped), ErrorReply> {
        check_conversation(command)?;
        let (payload, _) = payload(command)?;
        if source != self.user.source {
            return Err(failed());
        }
        let (mechanism, began) = (self.mechanism, self.began);
        let (identity, server_final) = match self.step {
            Step::Empty(identity) => {
                let reply = sasl_reply(b"", true, self.is_text);
                return Ok((
                    None,
                    Stepped {
                        reply,
                        identity: Some(identity),
                    },
                ));
            }
            Step::Verify(step) => Self::verified(around, &self.user, *step, &payload).await,
            Step::Carry(carried) => Self::carried(around, *carried, &payload).await,
        }
        .map_err(|error| {
            around.count(mechanism, error.into(), began);
            reply_to(error)
        })?;
        if let Some(current) = current {
            refuse_second_user(current, &identity)?;
        }
        around.count(mechanism, "ok", began);
        let is_done = self.skips_empty_exchange;
        let reply = sasl_reply(&server_final, is_done, self.is_text);
        if is_done {
            return Ok((
                None,
                Stepped {
                    reply,
                    identity: Some(identity),
                },
            ));
        }
        self.step = Step::Empty(identity);
        Ok((
            Some(self),
            Stepped {
                reply,
                identity: None,
            },
        ))
    }

    async fn verified(
        around: &Surroundings<'_>,
        user: &UserName,
        (from, conversation): (KeysFrom, ServerConversation),
        payload: &[u8],
    ) -> Result<(Arc<Identity>, Secret), CredentialError> {
        let credentials = around.credentials;
        let mechanism = conversation.mechanism();
        let Ok(verified) = conversation.verify(payload) else {
            if let KeysFrom::Server(known) = &from {
                credentials.proof_failed(user, &known.identity);
            }
            return Err(CredentialError::Refused);
        };
        let client_key = verified.client_key;
        let known = match from {
            KeysFrom::Server(checked) => {
                credentials.prove(user, &checked, mechanism, client_key)?
            }
            KeysFrom::Configuration(keys) => {
                let asked = around.asked(user, mechanism);
                credentials
                    .log_in_with_keys(&asked, client_key, keys)
                    .await?
            }
        };
        let identity = permitted(around, known)?;
        Ok((identity, Secret::new(verified.server_final)))
    }

    async fn carried(
        around: &Surroundings<'_>,
        carried: Carried,
        payload: &[u8],
    ) -> Result<(Arc<Identity>, Secret), CredentialError> {
        let (known, server_final) = carried.finish(payload).await?;
        Ok((permitted(around, known)?, server_final))
    }

    fn reply(&self, payload: &[u8], is_done: bool) -> RawDocumentBuf {
        sasl_reply(payload, is_done, self.is_text)
    }

    /// The same reply as it stands inside a hello, without `ok`.
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

impl Surroundings<'_> {
    fn asked<'a>(&self, user: &'a UserName, mechanism: Mechanism) -> Asked<'a> {
        Asked {
            user,
            mechanism,
            sharer: Sharer::at(self.peer),
        }
    }

    fn count(&self, mechanism: Mechanism, result: &'static str, began: Instant) {
        self.observer
            .client_authenticated(mechanism.name(), result, began.elapsed());
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

/// A user's identity, if the client may come from where it does. A server sees Seawall's address, so that the user's
/// restrictions are enforced here.
fn permitted(around: &Surroundings<'_>, known: Known) -> Result<Arc<Identity>, CredentialError> {
    match Credentials::permits(&known, around.peer) {
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

/// A payload is binary, or text in base64.
fn payload(command: &RawDocument) -> Result<(Secret, bool), ErrorReply> {
    match command.get("payload") {
        Ok(Some(RawBsonRef::Binary(binary))) => Ok((Secret::new(binary.bytes.to_vec()), false)),
        Ok(Some(RawBsonRef::String(text))) => {
            use base64::Engine as _;
            let bytes = base64::engine::general_purpose::STANDARD.decode(text);
            let bytes = bytes.map_err(|_| failed())?;
            Ok((Secret::new(bytes), true))
        }
        Ok(None) => Err(ErrorReply::new(4, "Missing expected field \"payload\"")),
        _ => Err(ErrorReply::new(14, "Wrong type for field: 'payload'")),
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
            14,
            "Wrong type for field: 'conversationId', expected int",
        )),
    }
}

/// A connection has one user at a time.
fn refuse_second_user(current: &Identity, new: &Identity) -> Result<(), ErrorReply> {
    if (current.name(), current.source()) == (new.name(), new.source()) {
        return Ok(());
    }
    if current.source() == new.source() {
        let message = "Client has attempted to authenticate as multiple users on the same database";
        return Err(ErrorReply::new(5_626_702, message));
    }
    let message = "Each client connection may only be authenticated once";
    Err(ErrorReply::new(5_626_701, message))
}

fn failed() -> ErrorReply {
    ErrorReply::new(AUTHENTICATION_FAILED, "Authentication failed.")
}

/// A server that could not be asked is no wrong password: drivers must not take it for one.
fn reply_to(error: CredentialError) -> ErrorReply {
    match error {
        CredentialError::Refused => failed(),
        CredentialError::Unavailable => ErrorReply::new(
            crate::command::HOST_UNREACHABLE,
            "no server could be asked for the user's credentials",
        ),
    }
}
