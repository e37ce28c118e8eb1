//! The client side and the server side of SCRAM, and carried conversations: conversations between a
//! client and a server whose messages Seawall passes on.
//!
//! Input, in this order:
//!
//! - one byte for the mechanism;
//! - one length byte, then that many bytes, which select changes to messages of a correct
//!   conversation;
//! - a payload that may replace a message of the conversation.

use std::sync::OnceLock;

use seawall_auth::{
    CarriedConversation, ClientConversation, ClientFirst, ClientKey, DerivedKeys, MIN_ITERATIONS,
    Mechanism, ScramError, ScramKeys, ServerConversation, derive_from_password,
};

use crate::choices::{Choices, altered};

const USER: &str = "us=er, with signs";
const CLIENT_NONCE: &str = "fyko+d2lbbFgONRv9qkxdawL";
const SERVER_NONCE: &str = "3rfcNHYJY1ZVvWVs7j";

/// Checks that a client without the keys is refused. Checks that a client with the keys is also
/// refused if a byte of its messages was changed.
pub fn scram_server(data: &[u8]) {
    let Case {
        honest,
        mut alterations,
        payload,
    } = Case::of(data);
    for first in [payload, &altered(&honest.client_first, &mut alterations, 3)] {
        let client_first = match parse_client_first(first) {
            Ok(client_first) => client_first,
            Err(error) => {
                check_error(&error);
                continue;
            }
        };
        let is_same = first == honest.client_first;
        for last in [payload, &altered(&honest.client_final, &mut alterations, 3)] {
            let (server, challenge) =
                ServerConversation::start(client_first.clone(), &honest.keys.keys, SERVER_NONCE);
            assert!(!is_same || challenge == honest.server_first);
            match server.verify(last) {
                Ok(verified) => {
                    assert!(is_same && last == honest.client_final);
                    assert_eq!(verified.client_key, honest.keys.client_key);
                    assert_eq!(verified.server_final, honest.server_final);
                }
                Err(error) => {
                    assert!(!is_same || last != honest.client_final, "{error}");
                    check_error(&error);
                }
            }
        }
    }
}

/// Checks that a server without the keys is refused. Checks that a server with the keys is also
/// refused if a byte of its messages was changed.
pub fn scram_client(data: &[u8]) {
    let Case {
        honest,
        mut alterations,
        payload,
    } = Case::of(data);
    let DerivedKeys { client_key, keys } = &honest.keys;
    for first in [payload, &altered(&honest.server_first, &mut alterations, 3)] {
        let (client, opening) = ClientConversation::start(honest.mechanism, USER, CLIENT_NONCE);
        assert_eq!(opening, honest.client_first);
        let (client, proof) = match client.respond(first, client_key, keys) {
            Ok(responded) => responded,
            Err(error) => {
                assert_ne!(first, honest.server_first, "{error}");
                check_error(&error);
                continue;
            }
        };
        let is_same = first == honest.server_first;
        assert_eq!(is_same, proof == honest.client_final);
        // The server verifies the proof against its own first message. So it does not accept a
        // proof that the client computed for another first message.
        assert_eq!(honest.server().verify(&proof).is_ok(), is_same);
        let last = match alterations.bool() {
            true => payload.to_vec(),
            false => altered(&honest.server_final, &mut alterations, 3),
        };
        let is_accepted = client.finish(&last);
        let is_honest = is_same && is_final_with_extensions(&last, &honest.server_final);
        assert_eq!(is_accepted.is_ok(), is_honest, "{is_accepted:?}");
    }
}

/// A carried conversation is a conversation between a client and a server, whose messages Seawall
/// passes on. Checks that Seawall learns the client's key from such a conversation only if none of
/// its messages was changed.
pub fn scram_carried(data: &[u8]) {
    let Case {
        honest,
        mut alterations,
        payload,
    } = Case::of(data);
    let changed = usize::from(alterations.byte() % 4);
    let replaces = alterations.byte().is_multiple_of(4);
    let mut messages = honest.messages();
    let message = messages.get_mut(changed).expect("there are four messages");
    *message = match replaces {
        true => payload.to_vec(),
        false => altered(message, &mut alterations, 3),
    };
    let is_same = messages == honest.messages()
        || changed == 3 && is_final_with_extensions(&messages[3], &honest.server_final);
    match carry(honest.mechanism, &messages, &honest.keys.keys) {
        Ok(client_key) => {
            assert!(is_same);
            assert_eq!(client_key, honest.keys.client_key);
        }
        Err(error) => {
            assert!(!is_same, "{error}");
            check_error(&error);
        }
    }
}

/// A correct SCRAM conversation: its four messages, and the keys of the user.
struct Honest {
    mechanism: Mechanism,
    keys: DerivedKeys,
    client_first: Vec<u8>,
    server_first: Vec<u8>,
    client_final: Vec<u8>,
    server_final: Vec<u8>,
}

impl Honest {
    fn of(mechanism: Mechanism) -> &'static Self {
        // PBKDF2 takes milliseconds, so it runs only once for each mechanism.
        static SHA1: OnceLock<Honest> = OnceLock::new();
        static SHA256: OnceLock<Honest> = OnceLock::new();
        let honest = match mechanism {
            Mechanism::ScramSha1 => &SHA1,
            Mechanism::ScramSha256 => &SHA256,
        };
        honest.get_or_init(|| Self::talk(mechanism).expect("a correct conversation succeeds"))
    }

    fn talk(mechanism: Mechanism) -> Result<Self, ScramError> {
        let keys = derive_from_password(mechanism, USER, "pencil", b"some salt", MIN_ITERATIONS)?;
        let (client, client_first) = ClientConversation::start(mechanism, USER, CLIENT_NONCE);
        let (server, server_first) =
            ServerConversation::start(ClientFirst::parse(&client_first)?, &keys.keys, SERVER_NONCE);
        let (client, client_final) = client.respond(&server_first, &keys.client_key, &keys.keys)?;
        let server_final = server.verify(&client_final)?.server_final;
        client.finish(&server_final)?;
        Ok(Self {
            mechanism,
            keys,
            client_first,
            server_first,
            client_final,
            server_final,
        })
    }

    /// Returns a server that has sent its first message.
    fn server(&self) -> ServerConversation {
        let client_first = ClientFirst::parse(&self.client_first).expect("the message is correct");
        ServerConversation::start(client_first, &self.keys.keys, SERVER_NONCE).0
    }

    fn messages(&self) -> [Vec<u8>; 4] {
        [
            self.client_first.clone(),
            self.server_first.clone(),
            self.client_final.clone(),
            self.server_final.clone(),
        ]
    }
}

/// A decoded input: a correct conversation, the bytes that select changes to its messages, and a
/// payload that may replace one of its messages.
struct Case<'a> {
    honest: &'static Honest,
    alterations: Choices<'a>,
    payload: &'a [u8],
}

impl<'a> Case<'a> {
    fn of(data: &'a [u8]) -> Self {
        let mut choices = Choices::new(data);
        let mechanism = match choices.bool() {
            true => Mechanism::ScramSha1,
            false => Mechanism::ScramSha256,
        };
        assert_eq!(Mechanism::parse(mechanism.name()), Some(mechanism));
        Self {
            honest: Honest::of(mechanism),
            alterations: Choices::new(choices.short()),
            payload: choices.rest(),
        }
    }
}

fn parse_client_first(payload: &[u8]) -> Result<ClientFirst, ScramError> {
    let parsed = ClientFirst::parse(payload)?;
    assert!(!parsed.user().is_empty() && !parsed.user().contains('\0'));
    assert!(
        parsed
            .nonce()
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b',')
    );
    assert!(payload.ends_with(parsed.bare()));
    Ok(parsed)
}

/// True if the payload is the server's last message, followed at most by extensions.
fn is_final_with_extensions(payload: &[u8], server_final: &[u8]) -> bool {
    let rest = payload.strip_prefix(server_final);
    let is_text = std::str::from_utf8(payload).is_ok();
    is_text && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b',')))
}

fn carry(
    mechanism: Mechanism,
    messages: &[Vec<u8>; 4],
    keys: &ScramKeys,
) -> Result<ClientKey, ScramError> {
    let [client_first, server_first, client_final, server_final] = messages;
    CarriedConversation::new(mechanism, parse_client_first(client_first)?)
        .server_first(server_first)?
        .client_final(client_final)?
        .server_final(server_final)?
        .prove(keys)
}

/// Checks that the text of an error does not contain the password, and that [`ScramError::fault`]
/// does not panic.
fn check_error(error: &ScramError) {
    let shown = error.to_string();
    assert!(!shown.is_empty() && !shown.contains("pencil"));
    error.fault();
}
