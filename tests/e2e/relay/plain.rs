//! A server that accepts logins with the mechanism PLAIN.

use std::net::SocketAddr;

use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};
use seawall_tests::raw::{Header, Login, OpMsg, RawClient, RawReply, message::OP_QUERY};
use seawall_wire::{OpQuery, encode_op_reply};
use tokio::{net::TcpListener, task::JoinHandle};

/// A forwarder in front of a server. It accepts logins with the mechanism PLAIN, which community
/// servers do not have. For each such login, the forwarder itself logs in at the server with SCRAM.
pub(super) struct Plain {
    pub(super) address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Plain {
    pub(super) async fn start(server: SocketAddr, login: Login) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (login, server) = (login.clone(), RawClient::connect(server).await.unwrap());
                tokio::spawn(Self::serve(RawClient::new(client), server, login));
            }
        });
        Self { address, accepting }
    }

    async fn serve(mut client: RawClient, mut server: RawClient, login: Login) {
        while let Ok(message) = client.read_message().await {
            if let Some(start) = PlainLoginStart::parse(&message) {
                let outcome = server.login(&login).await.unwrap();
                let payload = start.command.get_binary_generic("payload").unwrap();
                let is_right = payload == b"\0app\0secret" && outcome.is_authenticated();
                client.send_bytes(&start.reply(is_right)).await.unwrap();
                continue;
            }
            if server.send_bytes(&message).await.is_err() {
                return;
            }
            loop {
                let Ok(reply) = server.read_message().await else {
                    return;
                };
                let more = RawReply::parse(reply.clone()).is_some_and(|r| r.has_more_to_come());
                if client.send_bytes(&reply).await.is_err() {
                    return;
                }
                if !more {
                    break;
                }
            }
        }
    }
}

/// The start of a login with PLAIN.
struct PlainLoginStart {
    command: Document,
    request_id: i32,
    /// True if the command was sent in an OP_QUERY.
    is_legacy: bool,
}

impl PlainLoginStart {
    /// Parses a message; `None` if it does not begin a login with PLAIN.
    fn parse(message: &[u8]) -> Option<Self> {
        let header = Header::parse(message)?;
        let is_legacy = header.op_code == OP_QUERY;
        let command = match is_legacy {
            true => Document::from_reader(OpQuery::parse(message)?.query).ok()?,
            false => RawReply::parse(message.to_vec())?.body,
        };
        let mechanism = command.get_str("mechanism");
        let is_plain = mechanism.is_ok_and(|name| name == "PLAIN");
        is_plain.then_some(Self {
            command,
            request_id: header.request_id,
            is_legacy,
        })
    }

    /// The reply to this start of a login: an OP_REPLY if the start is an OP_QUERY, otherwise an
    /// OP_MSG.
    fn reply(&self, is_right: bool) -> Vec<u8> {
        let body = match is_right {
            true => doc! {"conversationId": 1, "done": true, "payload": binary(b""), "ok": 1.0},
            false => doc! {"ok": 0.0, "code": 18, "errmsg": "Authentication failed."},
        };
        if self.is_legacy {
            return encode_op_reply(0, 1, self.request_id, &body.to_vec().unwrap());
        }
        let reply = OpMsg {
            request_id: 1,
            response_to: self.request_id,
            ..OpMsg::new(body)
        };
        reply.to_bytes()
    }
}

pub(super) fn binary(bytes: &[u8]) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    }
}

/// A command that begins a login of the user `app` with PLAIN.
pub(super) fn plain(password: &[u8]) -> Document {
    let payload = [b"\0app\0".as_slice(), password].concat();
    doc! {"saslStart": 1, "mechanism": "PLAIN", "payload": binary(&payload)}
}
