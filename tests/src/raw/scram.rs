//! A SCRAM client that follows RFC 5802 and RFC 7677. It does not use the SCRAM code of the proxy.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::{Digest as _, Md5};
use sha1::Sha1;
use sha2::Sha256;

use super::{RawClient, RawError, RawReply};
use seawall_locks::Mutex;

/// A login of a user: credentials, mechanism and first message.
#[derive(Clone, Debug)]
pub struct Login {
    /// The database in which the user is defined.
    pub db: String,
    /// The user's name, unescaped.
    pub user: String,
    /// The password, as the user types it.
    pub password: String,
    /// The SCRAM mechanism with which the client logs in.
    pub mechanism: Mechanism,
    /// The message with which the conversation begins.
    pub start: Start,
    /// True if the client asks the server to skip the last, empty exchange.
    pub skip_empty_exchange: bool,
    /// A cache of salted passwords. Clones of the login share this cache.
    pub keys: KeyCache,
}

impl Login {
    /// A login with SCRAM-SHA-256 that begins with `saslStart` and skips the empty exchange.
    pub fn new(db: &str, user: &str, password: &str) -> Self {
        Self {
            db: db.to_owned(),
            user: user.to_owned(),
            password: password.to_owned(),
            mechanism: Mechanism::ScramSha256,
            start: Start::Command,
            skip_empty_exchange: true,
            keys: KeyCache::default(),
        }
    }

    /// Sets the SCRAM mechanism.
    #[must_use]
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.mechanism = mechanism;
        self
    }

    /// Sets the message with which the conversation begins.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Keeps the empty exchange at the end, as old drivers do.
    #[must_use]
    pub fn with_empty_exchange(mut self) -> Self {
        self.skip_empty_exchange = false;
        self
    }

    /// Uses this cache of salted passwords, so that several logins can share one cache.
    #[must_use]
    pub fn keys(mut self, keys: &KeyCache) -> Self {
        self.keys = keys.clone();
        self
    }
}

/// A SCRAM mechanism that servers support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// `SCRAM-SHA-1`
    ScramSha1,
    /// `SCRAM-SHA-256`
    ScramSha256,
}

impl Mechanism {
    /// Both SCRAM mechanisms, for tests that run once with each mechanism.
    pub const ALL: [Self; 2] = [Self::ScramSha1, Self::ScramSha256];

    /// The mechanism's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::ScramSha1 => "SCRAM-SHA-1",
            Self::ScramSha256 => "SCRAM-SHA-256",
        }
    }

    fn hash(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::ScramSha1 => Sha1::digest(bytes).to_vec(),
            Self::ScramSha256 => Sha256::digest(bytes).to_vec(),
        }
    }

    fn hmac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        match self {
            Self::ScramSha1 => {
                let mac =
                    Hmac::<Sha1>::new_from_slice(key).expect("HMAC accepts keys of any length");
                mac.chain_update(message).finalize().into_bytes().to_vec()
            }
            Self::ScramSha256 => {
                let mac =
                    Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
                mac.chain_update(message).finalize().into_bytes().to_vec()
            }
        }
    }

    fn salted_password(self, login: &Login, salt: &[u8], iterations: u32) -> Vec<u8> {
        match self {
            Self::ScramSha1 => {
                let digest = Md5::digest(format!("{}:mongo:{}", login.user, login.password));
                let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                pbkdf2::pbkdf2_hmac_array::<Sha1, 20>(hex.as_bytes(), salt, iterations).to_vec()
            }
            Self::ScramSha256 => {
                // If SASLprep refuses the password, the client uses the unchanged password, and the
                // server decides if the proof is right.
                let prepared = stringprep::saslprep(&login.password);
                let prepared = prepared.as_deref().unwrap_or(&login.password).as_bytes();
                pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(prepared, salt, iterations).to_vec()
            }
        }
    }
}

/// The message with which a SCRAM conversation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// `saslStart`. The login sends no `hello`, but a test can send one before the login.
    Command,
    /// A `hello` in an OP_MSG that contains the first payload. If the server ignores the payload,
    /// `saslStart` follows.
    SpeculativeHello,
    /// An `isMaster` in an OP_QUERY that contains the first payload. If the server ignores the
    /// payload, `saslStart` follows.
    SpeculativeLegacyHello,
}

/// The result of an authentication.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the authentication ended.
    pub verdict: Verdict,
    /// All replies in order, including the reply to a `hello`.
    pub replies: Vec<RawReply>,
}

impl Outcome {
    /// True if the connection is authenticated.
    pub fn is_authenticated(&self) -> bool {
        self.verdict == Verdict::Authenticated
    }

    /// The error code of the last reply, if it is an error.
    pub fn code(&self) -> Option<i32> {
        self.replies.last().and_then(RawReply::code)
    }
}

/// How an authentication ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The client and the server have proved that they know the password.
    Authenticated,
    /// The server refused: the last reply is an error.
    Refused,
    /// The server violated the protocol, or could not prove that it knows the password.
    Implausible(&'static str),
}

/// A cache of salted passwords. Deriving a salted password takes thousands of hash rounds, which
/// would be most of a test's time.
#[derive(Clone, Default)]
pub struct KeyCache {
    salted_passwords: Arc<Mutex<HashMap<KeySource, Vec<u8>>>>,
}

impl KeyCache {
    fn salted_password(&self, login: &Login, salt: &[u8], iterations: u32) -> Vec<u8> {
        let source = KeySource {
            mechanism: login.mechanism,
            user: login.user.clone(),
            password: login.password.clone(),
            salt: salt.to_vec(),
            iterations,
        };
        if let Some(known) = self.salted_passwords.lock().get(&source) {
            return known.clone();
        }
        let salted_password = login.mechanism.salted_password(login, salt, iterations);
        let mut cache = self.salted_passwords.lock();
        if cache.len() >= MAX_KEYS {
            cache.clear();
        }
        cache.insert(source, salted_password.clone());
        salted_password
    }
}

impl std::fmt::Debug for KeyCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyCache").finish_non_exhaustive()
    }
}

#[derive(PartialEq, Eq, Hash)]
struct KeySource {
    mechanism: Mechanism,
    user: String,
    password: String,
    salt: Vec<u8>,
    iterations: u32,
}

/// Runs the whole conversation and keeps all replies.
pub(super) async fn run(client: &mut RawClient, login: &Login) -> Result<Outcome, RawError> {
    let mut replies = Vec::new();
    let verdict = converse(client, login, &mut replies).await?;
    Ok(Outcome { verdict, replies })
}

async fn converse(
    client: &mut RawClient,
    login: &Login,
    replies: &mut Vec<RawReply>,
) -> Result<Verdict, RawError> {
    match challenged(client, login, replies).await? {
        Ok(begun) => prove(client, &begun, replies).await,
        Err(verdict) => Ok(verdict),
    }
}

/// A login whose proof has not been sent yet.
#[derive(Debug)]
pub struct Begun {
    login: Login,
    id: Bson,
    answer: Answer,
}

impl Begun {
    /// The command that contains the proof, to be sent on the user's database.
    #[must_use]
    pub fn last_command(&self) -> Document {
        let mut command = sasl_continue(&self.id, &self.answer.payload);
        command.insert("$db", &self.login.db);
        command
    }

    /// Changes the payload that contains the proof.
    #[must_use]
    pub fn altered(mut self, change: impl FnOnce(&str) -> String) -> Self {
        self.answer.payload = change(&self.answer.payload);
        self
    }
}

/// Begins a login, and stops after the server's challenge.
pub(super) async fn begin_login(client: &mut RawClient, login: &Login) -> Result<Begun, RawError> {
    let begun = challenged(client, login, &mut Vec::new()).await?;
    begun.map_err(|_| RawError::Malformed)
}

/// Completes a login that [`begin_login`] has begun.
pub(super) async fn finish_login(
    client: &mut RawClient,
    begun: &Begun,
) -> Result<Outcome, RawError> {
    let mut replies = Vec::new();
    let verdict = prove(client, begun, &mut replies).await?;
    Ok(Outcome { verdict, replies })
}

async fn challenged(
    client: &mut RawClient,
    login: &Login,
    replies: &mut Vec<RawReply>,
) -> Result<Result<Begun, Verdict>, RawError> {
    let first = ClientFirst::new(&login.user);
    let Some(challenge) = begin(client, login, &first, replies).await? else {
        return Ok(Err(Verdict::Refused));
    };
    let id = challenge
        .get("conversationId")
        .cloned()
        .unwrap_or(Bson::Null);
    let answer = match payload(&challenge).map(|payload| Answer::new(login, &first, &payload)) {
        Some(Ok(answer)) => answer,
        Some(Err(reason)) => return Ok(Err(Verdict::Implausible(reason))),
        None => return Ok(Err(Verdict::Implausible("no payload in the challenge"))),
    };
    let login = login.clone();
    Ok(Ok(Begun { login, id, answer }))
}

async fn prove(
    client: &mut RawClient,
    begun: &Begun,
    replies: &mut Vec<RawReply>,
) -> Result<Verdict, RawError> {
    let Begun { login, id, answer } = begun;
    let proven = continue_conversation(client, login, id, &answer.payload, replies).await?;
    let Some(proven) = proven else {
        return Ok(Verdict::Refused);
    };
    if payload(&proven).as_deref() != Some(&answer.expected) {
        return Ok(Verdict::Implausible("the server's signature is wrong"));
    }
    if proven.get_bool("done").unwrap_or_default() {
        return Ok(Verdict::Authenticated);
    }
    match continue_conversation(client, login, id, "", replies).await? {
        None => Ok(Verdict::Refused),
        Some(end) if end.get_bool("done").unwrap_or_default() => Ok(Verdict::Authenticated),
        Some(_) => Ok(Verdict::Implausible("the conversation does not end")),
    }
}

/// Sends the first message. Returns the server's challenge; `None` if the server refused.
async fn begin(
    client: &mut RawClient,
    login: &Login,
    first: &ClientFirst,
    replies: &mut Vec<RawReply>,
) -> Result<Option<Document>, RawError> {
    let sasl_start = doc! {
        "saslStart": 1,
        "mechanism": login.mechanism.name(),
        "payload": binary(&format!("n,,{}", first.bare)),
        "autoAuthorize": 1,
        "options": { "skipEmptyExchange": login.skip_empty_exchange },
    };
    let mut speculative = sasl_start.clone();
    speculative.insert("db", &login.db);
    let fields = doc! {
        "saslSupportedMechs": format!("{}.{}", login.db, login.user),
        "speculativeAuthenticate": speculative,
    };
    let hello = match login.start {
        Start::Command => None,
        Start::SpeculativeHello => Some(hello_with_supported_name(client, fields).await?),
        Start::SpeculativeLegacyHello => Some(client.legacy_hello(fields).await?),
    };
    if let Some(hello) = hello {
        let (is_ok, body) = (hello.is_ok(), hello.body.clone());
        replies.push(hello);
        if !is_ok {
            return Ok(None);
        }
        if let Ok(challenge) = body.get_document("speculativeAuthenticate") {
            return Ok(Some(challenge.clone()));
        }
    }
    let reply = client.command(&login.db, sasl_start).await?;
    Ok(kept(reply, replies))
}

/// Sends `hello`. If the server does not know this name, sends `isMaster`.
async fn hello_with_supported_name(
    client: &mut RawClient,
    fields: Document,
) -> Result<RawReply, RawError> {
    let reply = client.hello(fields.clone()).await?;
    match reply.code() {
        Some(COMMAND_NOT_FOUND) => client.greet(fields).await,
        _ => Ok(reply),
    }
}

/// Sends a `saslContinue`. Returns the reply; `None` if the reply is an error.
async fn continue_conversation(
    client: &mut RawClient,
    login: &Login,
    conversation_id: &Bson,
    payload: &str,
    replies: &mut Vec<RawReply>,
) -> Result<Option<Document>, RawError> {
    let command = sasl_continue(conversation_id, payload);
    let reply = client.command(&login.db, command).await?;
    Ok(kept(reply, replies))
}

fn sasl_continue(conversation_id: &Bson, payload: &str) -> Document {
    doc! {
        "saslContinue": 1,
        "conversationId": conversation_id,
        "payload": binary(payload),
    }
}

fn kept(reply: RawReply, replies: &mut Vec<RawReply>) -> Option<Document> {
    let body = reply.is_ok().then(|| reply.body.clone());
    replies.push(reply);
    body
}

/// The client's first message, without its GS2 header `n,,` (RFC 5802).
struct ClientFirst {
    nonce: String,
    bare: String,
}

impl ClientFirst {
    fn new(user: &str) -> Self {
        let nonce = STANDARD.encode(rand::random::<[u8; 24]>());
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Self {
            bare: format!("n={user},r={nonce}"),
            nonce,
        }
    }
}

/// The payload with the client's proof, and the payload that the server must send in reply.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    payload: String,
    expected: String,
}

impl Answer {
    fn new(login: &Login, first: &ClientFirst, challenge: &str) -> Result<Self, &'static str> {
        let field = |name: &str| {
            challenge
                .split(',')
                .find_map(|field| field.strip_prefix(name))
        };
        let nonce = field("r=").ok_or("no nonce in the challenge")?;
        if !nonce.starts_with(&first.nonce) || nonce.len() == first.nonce.len() {
            return Err("the server's nonce does not begin with the client's");
        }
        let salt = field("s=").and_then(|salt| STANDARD.decode(salt).ok());
        let salt = salt.ok_or("no salt in the challenge")?;
        let iterations = field("i=").and_then(|iterations| iterations.parse().ok());
        let iterations = iterations.ok_or("no iterations in the challenge")?;
        // Drivers have the same minimum. With fewer iterations, a false server could more easily
        // guess the password, because it can compare each guess with the client's proof.
        if iterations < MIN_ITERATIONS {
            return Err("too few iterations in the challenge");
        }

        let mechanism = login.mechanism;
        let salted_password = login.keys.salted_password(login, &salt, iterations);
        let client_key = mechanism.hmac(&salted_password, b"Client Key");
        let server_key = mechanism.hmac(&salted_password, b"Server Key");
        let without_proof = format!("c=biws,r={nonce}");
        let auth_message = format!("{},{challenge},{without_proof}", first.bare);
        let signature = mechanism.hmac(&mechanism.hash(&client_key), auth_message.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(&signature)
            .map(|(a, b)| a ^ b)
            .collect();
        let expected = mechanism.hmac(&server_key, auth_message.as_bytes());
        Ok(Self {
            payload: format!("{without_proof},p={}", STANDARD.encode(proof)),
            expected: format!("v={}", STANDARD.encode(expected)),
        })
    }
}

fn binary(text: &str) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.as_bytes().to_vec(),
    }
}

fn payload(body: &Document) -> Option<String> {
    let bytes = body.get_binary_generic("payload").ok()?;
    String::from_utf8(bytes.clone()).ok()
}

const COMMAND_NOT_FOUND: i32 = 59;
const MIN_ITERATIONS: u32 = 4096;
/// Maximum number of cached salted passwords. It is far above the usual number of users in a test.
/// It limits memory if a test logs in with many different user names or passwords.
const MAX_KEYS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677. SASLprep does not change the password of this example.
    #[test]
    fn the_final_messages_of_client_and_server_match_the_example_of_the_rfc() {
        let login = Login::new("admin", "user", "pencil");
        let first = ClientFirst {
            nonce: "rOprNGfwEbeRWgbNEkqO".to_owned(),
            bare: "n=user,r=rOprNGfwEbeRWgbNEkqO".to_owned(),
        };
        let challenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                         s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let expected = Answer {
            payload: "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                      p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
                .to_owned(),
            expected: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=".to_owned(),
        };
        assert_eq!(Answer::new(&login, &first, challenge), Ok(expected));
    }

    #[test]
    fn each_invalid_challenge_is_refused_with_a_reason() {
        let login = Login::new("admin", "user", "pencil");
        let first = ClientFirst::new("a=b,c");
        assert!(first.bare.starts_with("n=a=3Db=2Cc,r="));
        let nonce = &first.nonce;
        for (challenge, reason) in [
            ("s=AAAA,i=4096".to_owned(), "no nonce in the challenge"),
            (
                "r=other,s=AAAA,i=4096".to_owned(),
                "the server's nonce does not begin with the client's",
            ),
            (
                format!("r={nonce},s=AAAA,i=4096"),
                "the server's nonce does not begin with the client's",
            ),
            (format!("r={nonce}x,i=4096"), "no salt in the challenge"),
            (
                format!("r={nonce}x,s=AAAA"),
                "no iterations in the challenge",
            ),
            (
                format!("r={nonce}x,s=AAAA,i=4095"),
                "too few iterations in the challenge",
            ),
        ] {
            assert_eq!(Answer::new(&login, &first, &challenge), Err(reason));
        }
    }
}
