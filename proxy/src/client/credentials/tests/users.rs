//! A scripted server with users: it verifies SCRAM logins and lets each user read its own keys.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bson::{
    Binary, Document, RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc,
    spec::BinarySubtype::{Generic, Uuid},
};
use tokio::sync::Notify;

use crate::scripted::{Response, ScriptedServer};
use seawall_auth::{
    ClientFirst, DerivedKeys, Mechanism, ScramKeys, ServerConversation, derive_from_password,
};
use seawall_locks::Mutex;

/// The database in which all users of these tests are defined.
pub(super) const SOURCE: &str = "admin";

/// The keys that a server stores for a password, and the ClientKey of this password.
pub(super) fn keys_of(mechanism: Mechanism, name: &str, password: &str) -> DerivedKeys {
    let salt = format!("{password:-<16}");
    derive_from_password(mechanism, name, password, salt.as_bytes(), 4096).unwrap()
}

/// The SCRAM-SHA-256 keys that a server stores for a password. Users of the scripted server have no
/// other mechanism.
pub(super) fn stored_keys(name: &str, password: &str) -> ScramKeys {
    keys_of(Mechanism::ScramSha256, name, password).keys
}

/// The users and the behaviour of the server. A test may change them at any time.
pub(super) struct Behaviour {
    pub(super) users: HashMap<String, ScramKeys>,
    pub(super) requires_login: bool,
    /// For each command, the reply that the server sends instead of its usual reply.
    pub(super) instead: HashMap<&'static str, RawDocumentBuf>,
    /// Names of commands. When such a command arrives, the server closes the connection and removes
    /// the entry.
    pub(super) closes_at: Vec<&'static str>,
    /// For each command, the notification for which the server waits before it replies.
    pub(super) held: HashMap<&'static str, Arc<Notify>>,
    /// True if the server requires an empty exchange at the end of a login, as servers before 4.4
    /// do.
    pub(super) requires_empty_exchange: bool,
    /// Number of times that each command arrived.
    pub(super) counts: HashMap<String, usize>,
}

pub(super) struct UserServer {
    pub(super) server: ScriptedServer,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl UserServer {
    pub(super) async fn start() -> Self {
        let behaviour = Arc::new(Mutex::new(Behaviour {
            users: HashMap::new(),
            requires_login: true,
            instead: HashMap::new(),
            closes_at: Vec::new(),
            held: HashMap::new(),
            requires_empty_exchange: false,
            counts: HashMap::new(),
        }));
        let shared = Arc::clone(&behaviour);
        let server = ScriptedServer::start(move || {
            let (behaviour, mut state) = (Arc::clone(&shared), ConnectionState::default());
            move |command: &RawDocument| state.respond(&mut behaviour.lock(), command)
        });
        Self {
            server: server.await,
            behaviour,
        }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock());
    }

    pub(super) fn set_password(&self, name: &str, password: &str) {
        self.change(|behaviour| {
            let keys = stored_keys(name, password);
            behaviour.users.insert(name.to_owned(), keys);
        });
    }

    /// Makes the server send `reply` to every `command` from now on.
    pub(super) fn reply_instead(&self, command: &'static str, reply: RawDocumentBuf) {
        self.change(|behaviour| {
            behaviour.instead.insert(command, reply);
        });
    }

    /// Makes the server reply to `command` as usual again.
    pub(super) fn reply_as_usual(&self, command: &str) {
        self.change(|behaviour| {
            behaviour.instead.remove(command);
        });
    }

    /// Makes the server wait for the returned notification before each reply to `command`.
    pub(super) fn hold(&self, command: &'static str) -> Arc<Notify> {
        let release = Arc::new(Notify::new());
        let held = Arc::clone(&release);
        self.change(|behaviour| {
            behaviour.held.insert(command, held);
        });
        release
    }

    /// Makes the server close the connection on which the next `command` arrives.
    pub(super) fn close_at(&self, command: &'static str) {
        self.change(|behaviour| behaviour.closes_at.push(command));
    }

    pub(super) fn count(&self, command: &str) -> usize {
        let behaviour = self.behaviour.lock();
        behaviour.counts.get(command).copied().unwrap_or_default()
    }
}

/// The state of one connection.
#[derive(Default)]
struct ConnectionState {
    name: String,
    conversation: Option<ServerConversation>,
    is_authenticated: bool,
}

impl ConnectionState {
    fn respond(&mut self, behaviour: &mut Behaviour, command: &RawDocument) -> Response {
        let name = command.iter().next().unwrap().unwrap().0.as_str();
        *behaviour.counts.entry(name.to_owned()).or_default() += 1;
        if let Some(at) = behaviour.closes_at.iter().position(|at| *at == name) {
            behaviour.closes_at.remove(at);
            return Response::Close;
        }
        if let Some(reply) = behaviour.instead.get(name) {
            return Response::Reply(reply.clone());
        }
        let reply = match name {
            "isMaster" => self.greet(behaviour, command),
            "saslStart" => self.start(behaviour, command),
            "saslContinue" => self.proceed(behaviour, command),
            "getParameter" if behaviour.requires_login && !self.is_authenticated => error(13),
            "connectionStatus" => rawdoc! {
                "authInfo": { "authenticatedUsers": [{ "user": self.name.as_str(), "db": SOURCE }] },
                "ok": 1,
            },
            "usersInfo" if self.is_authenticated => self.users_info(behaviour),
            "usersInfo" => error(13),
            _ => rawdoc! { "ok": 1 },
        };
        match behaviour.held.get(name) {
            Some(release) => Response::ReplyAfter(Arc::clone(release), reply),
            None => Response::Reply(reply),
        }
    }

    fn greet(&mut self, behaviour: &Behaviour, command: &RawDocument) -> RawDocumentBuf {
        let mut reply = rawdoc! { "ok": 1, "maxWireVersion": 17 };
        if let Ok(start) = command.get_document("speculativeAuthenticate") {
            reply.append(
                cstr!("speculativeAuthenticate"),
                self.start(behaviour, start),
            );
        }
        if let Ok(user) = command.get_str("saslSupportedMechs") {
            let name = user.strip_prefix("admin.").unwrap();
            if behaviour.users.contains_key(name) {
                let mut names = RawArrayBuf::new();
                names.push("SCRAM-SHA-256");
                // Seawall must ignore elements of this list that are not names of mechanisms, and
                // names that are listed twice.
                names.push(7);
                names.push("unknown");
                names.push("SCRAM-SHA-256");
                reply.append(cstr!("saslSupportedMechs"), names);
            }
        }
        reply
    }

    fn start(&mut self, behaviour: &Behaviour, command: &RawDocument) -> RawDocumentBuf {
        let client_first = ClientFirst::parse(payload(command)).unwrap();
        self.name = client_first.user().to_owned();
        let keys = behaviour.users.get(&self.name);
        let knows_mechanism = matches!(command.get_str("mechanism"), Ok("SCRAM-SHA-256"));
        let Some(keys) = keys.filter(|_| knows_mechanism) else {
            return error(18);
        };
        let (conversation, payload) =
            ServerConversation::start(client_first, keys, "a+nonce+of+the+server");
        self.conversation = Some(conversation);
        sasl_reply(payload, false)
    }

    fn proceed(&mut self, behaviour: &Behaviour, command: &RawDocument) -> RawDocumentBuf {
        assert_eq!(command.get_i32("conversationId").unwrap(), 7);
        assert_eq!(command.get_str("$db").unwrap(), SOURCE);
        let Some(conversation) = self.conversation.take() else {
            assert!(payload(command).is_empty() && behaviour.requires_empty_exchange);
            self.is_authenticated = true;
            return sasl_reply(Vec::new(), true);
        };
        let Ok(verified) = conversation.verify(payload(command)) else {
            return error(18);
        };
        let is_done = !behaviour.requires_empty_exchange;
        self.is_authenticated = is_done;
        sasl_reply(verified.server_final, is_done)
    }

    fn users_info(&self, behaviour: &Behaviour) -> RawDocumentBuf {
        let Some(keys) = behaviour.users.get(&self.name) else {
            return error(13);
        };
        users_info(&self.name, keys, [])
    }
}

/// A reply to `usersInfo` that contains one user. `client_sources` are the address ranges from
/// which this user may log in; empty if all addresses are allowed.
pub(super) fn users_info(
    name: &str,
    keys: &ScramKeys,
    client_sources: impl IntoIterator<Item = &'static str>,
) -> RawDocumentBuf {
    let restrictions = client_sources.into_iter();
    let restrictions: RawArrayBuf = restrictions
        .map(|range| rawdoc! { "clientSource": [range] })
        .collect();
    let user_id = Binary {
        subtype: Uuid,
        bytes: vec![1; 16],
    };
    let credentials = rawdoc! { "SCRAM-SHA-256": shown_keys(keys) };
    rawdoc! {
        "users": [{
            "userId": user_id,
            "user": name,
            "db": SOURCE,
            "mechanisms": ["SCRAM-SHA-256"],
            "credentials": credentials,
            "authenticationRestrictions": restrictions,
            "inheritedAuthenticationRestrictions": [],
        }],
        "ok": 1,
    }
}

/// The keys for one mechanism in a reply to `usersInfo`.
fn shown_keys(keys: &ScramKeys) -> RawDocumentBuf {
    rawdoc! {
        "iterationCount": i32::try_from(keys.iterations()).unwrap(),
        "salt": STANDARD.encode(keys.salt()),
        "storedKey": STANDARD.encode(keys.stored_key().as_bytes()),
        "serverKey": STANDARD.encode(keys.server_key().as_bytes()),
    }
}

/// A reply to `usersInfo` that contains one user with keys for both mechanisms.
pub(super) fn users_info_of_both(
    name: &str,
    sha_1: &ScramKeys,
    sha_256: &ScramKeys,
) -> RawDocumentBuf {
    let document = |raw: RawDocumentBuf| Document::from_reader(raw.as_bytes()).unwrap();
    let mut reply = document(users_info(name, sha_256, []));
    let users = reply.get_array_mut("users").unwrap();
    let user = users[0].as_document_mut().unwrap();
    user.insert("mechanisms", vec!["SCRAM-SHA-1", "SCRAM-SHA-256"]);
    let credentials = user.get_document_mut("credentials").unwrap();
    credentials.insert("SCRAM-SHA-1", document(shown_keys(sha_1)));
    RawDocumentBuf::try_from(&reply).unwrap()
}

/// A `usersInfo` reply for a user that does not exist.
pub(super) fn no_user() -> RawDocumentBuf {
    rawdoc! { "users": [], "ok": 1 }
}

pub(super) fn error(code: i32) -> RawDocumentBuf {
    rawdoc! { "ok": 0, "code": code, "errmsg": "refused" }
}

fn sasl_reply(bytes: Vec<u8>, is_done: bool) -> RawDocumentBuf {
    let payload = Binary {
        subtype: Generic,
        bytes,
    };
    rawdoc! { "conversationId": 7, "done": is_done, "payload": payload, "ok": 1 }
}

fn payload(command: &RawDocument) -> &[u8] {
    command.get_binary("payload").unwrap().bytes
}
