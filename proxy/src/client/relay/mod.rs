//! One server connection a client connection: all bytes pass unchanged and are only watched.
//!
//! For what cannot be terminated: mechanisms whose proofs hold for one connection (as a fallback of pooled mode,
//! where the configuration allows it), interception without a new connection string, and measuring only.
//!
//! ```text
//! client ──► requests: read whole or by their heads, watched, forwarded ──► server
//! client ◄── replies: forwarded as they come, watched as they pass ◄─────── server
//! ```
//!
//! Two things never pass, since the server behind sees Seawall in the client's place: `createUser` and
//! `createRole` before a login (a server without users grants them to loopback), and MONGODB-X509 (the certificate
//! that the server sees is Seawall's).

mod replies;
mod session;
mod target;
mod watch;

use std::{future::pending, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncWriteExt as _, copy_bidirectional},
    time::{Instant, sleep_until},
};

use super::{Peer, Shared};
use crate::{
    limits::HandshakePermit,
    observe::ConnectedClient,
    wire::{HEADER_BYTES, Message, MessageReader, OpCode, Stream},
};

pub(super) use self::target::{Target, greeted};
use self::{
    session::Session,
    target::{destination, leaving},
};

/// How a TLS handshake begins: the record's type and its major version.
const TLS_RECORD: [u8; 2] = [0x16, 0x03];

/// A client on its way into a relay.
pub(super) struct Relayed {
    pub(super) stream: Stream,
    pub(super) reader: MessageReader,
    pub(super) connected: ConnectedClient,
    /// What it said last, and was not answered.
    pub(super) first: Option<Message>,
    /// Until when it has to have logged in, if it has to.
    pub(super) handshake: Option<(HandshakePermit, Instant)>,
}

/// Serves a client by a relay from its first byte on. `original` is where it connected to, if that was not here.
pub async fn serve_relayed(
    shared: Arc<Shared>,
    mut stream: Stream,
    peer: Peer,
    original: Option<SocketAddr>,
) {
    let connected = shared.observer.client_connected(&peer.text);
    let mut reader = MessageReader::default();
    // One that says nothing costs no server connection.
    let Ok(head) = reader.peek_header(&mut stream).await else {
        return;
    };
    let is_encrypted = is_encrypted(&head);
    if is_encrypted {
        let passes = shared.settings.relays_encrypted;
        let reason = if passes {
            "relay_encrypted"
        } else {
            "relay_encrypted_refused"
        };
        shared.observer.unobserved(reason);
        if !passes {
            return;
        }
    }
    let deadline = Instant::now() + shared.settings.server_selection_timeout;
    let target = match destination(&shared, original, deadline, is_encrypted).await {
        Ok(target) => target,
        Err(error) => {
            tracing::debug!(%error, peer = %peer.text, "client not relayed");
            shared.observer.unobserved("relay_no_server");
            return;
        }
    };
    if is_encrypted {
        return pass_unseen(&shared, stream, &reader, target).await;
    }
    let relayed = Relayed {
        stream,
        reader,
        connected,
        first: None,
        handshake: None,
    };
    relay(&shared, relayed, target).await;
}

/// Whether these are the first bytes of a TLS handshake, and of no message.
fn is_encrypted(head: &[u8; HEADER_BYTES]) -> bool {
    let op_code = head.last_chunk::<4>().map(|b| i32::from_le_bytes(*b));
    let is_message = op_code.is_some_and(|code| {
        matches!(
            OpCode::from(code),
            OpCode::Msg | OpCode::Query | OpCode::Compressed
        )
    });
    head.starts_with(&TLS_RECORD) && !is_message
}

/// For a client that speaks TLS with the server itself.
async fn pass_unseen(
    shared: &Shared,
    mut client: Stream,
    reader: &MessageReader,
    mut target: Target,
) {
    let passed = async {
        target.server.write_all(reader.buffered()).await?;
        copy_bidirectional(&mut client, &mut target.server).await
    };
    tokio::select! {
        // Whichever side ended it, there is nobody to tell.
        _ = passed => {}
        () = leaving(shared, target.address.as_ref()) => {}
    }
}

/// Relays until either side ends, or the server is no longer the one that relays go to.
pub(super) async fn relay(shared: &Arc<Shared>, relayed: Relayed, target: Target) {
    let Target {
        server,
        address,
        counted: _counted,
    } = target;
    let Relayed {
        stream,
        reader,
        connected,
        first,
        handshake,
    } = relayed;
    let session = Session::new(shared, &connected);
    let outstays = async {
        if let Some((permit, deadline)) = handshake {
            sleep_until(deadline).await;
            drop(permit);
            if !session.is_authenticated() {
                return;
            }
        }
        pending().await
    };
    tokio::select! {
        () = session.run(stream, reader, first, server) => {}
        () = leaving(shared, address.as_ref()) => shared.observer.unobserved("relay_server_changed"),
        () = outstays => shared.observer.unobserved("authentication_timeout"),
    }
}
