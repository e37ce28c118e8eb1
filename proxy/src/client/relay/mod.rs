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
//! The server sees Seawall in the client's place, so that some commands must not pass. Where the server wants clients to
//! log in, which is asked on the same connection, only the commands of [`guard`]'s list pass before a login: a server
//! without users would let a client from its own host make one. MONGODB-X509 never passes, since the certificate that the
//! server sees is Seawall's; nor does a legacy query whose first name begins with `$`, which a server reads otherwise
//! than it looks, or one to a database whose name is not UTF-8. What a client encrypts itself cannot be guarded, and
//! does not pass to a server on the same host.

mod guard;
mod replies;
mod session;
mod target;
mod watch;

use std::{future::pending, io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    time::{Instant, sleep_until, timeout},
};

use super::{LoginDue, Peer, Shared};
use crate::{
    observe::ConnectedClient,
    wire::{HEADER_BYTES, Message, MessageReader, OpCode, Sharer, Stream},
};

pub(super) use self::target::{Target, greeted};
use self::{
    session::Session,
    target::{destination, is_on_this_host, leaving},
};

/// Types of TLS records that a server answers a handshake with.
const TLS_HANDSHAKE: u8 = 0x16;
const TLS_ALERT: u8 = 0x15;

/// How a TLS handshake begins: the record's type and its major version.
const TLS_RECORD: [u8; 2] = [TLS_HANDSHAKE, 0x03];

/// A client on its way into a relay.
pub(super) struct Relayed {
    pub(super) stream: Stream,
    pub(super) reader: MessageReader,
    pub(super) connected: ConnectedClient,
    /// What it said last, and was not answered.
    pub(super) first: Option<Message>,
    /// Until when it has to have logged in, if it has to.
    pub(super) handshake: Option<LoginDue>,
}

/// Serves a client by a relay from its first byte on. `original` is where it connected to, if that was not here.
pub async fn serve_relayed(
    shared: Arc<Shared>,
    mut stream: Stream,
    peer: Peer,
    original: Option<SocketAddr>,
) {
    let connected = shared.observer.client_connected(&peer.text, peer.ip);
    let mut reader = MessageReader::new(Sharer::at(peer.ip));
    // One that says nothing costs no server connection.
    let limit = shared.settings.authentication_timeout;
    let head = match timeout(limit, reader.peek_header(&mut stream)).await {
        Ok(Ok(head)) => head,
        Ok(Err(_)) => return,
        Err(_) => return shared.observer.unobserved("authentication_timeout"),
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
    if is_encrypted && is_on_this_host(&target.server) {
        return shared.observer.unobserved("relay_encrypted_same_host");
    }
    if is_encrypted {
        return pass_unseen(&shared, stream, reader, target).await;
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
    // SSL 3.0 is spoken by nobody, and its records could be taken for short messages.
    let has_version = head.get(2).is_some_and(|minor| (1..=4).contains(minor));
    head.starts_with(&TLS_RECORD) && has_version && !is_message
}

/// For a client that speaks TLS with the server itself. Of its bytes only the first record passes before the server has
/// answered in TLS too: to a server that takes it for the beginning of a message, it is that of a longer one.
async fn pass_unseen(
    shared: &Shared,
    mut client: Stream,
    mut reader: MessageReader,
    target: Target,
) {
    let Target {
        mut server,
        address,
        counted: _counted,
        ..
    } = target;
    let limit = shared.settings.authentication_timeout;
    let passed = async {
        let first = reader.take_record(&mut client).await?;
        server.write_all(&first).await?;
        let answer = timeout(limit, server.read_u8()).await??;
        if !matches!(answer, TLS_HANDSHAKE | TLS_ALERT) {
            shared.observer.unobserved("relay_not_encrypted");
            return Ok(());
        }
        client.write_all(&[answer]).await?;
        server.write_all(reader.buffered()).await?;
        copy_bidirectional(&mut client, &mut server).await?;
        io::Result::Ok(())
    };
    tokio::select! {
        // Whichever side ended it, there is nobody to tell.
        _ = passed => {}
        () = leaving(shared, address.as_ref()) => {}
    }
}

/// Relays until either side ends, or the server is no longer the one that relays go to.
pub(super) async fn relay(shared: &Arc<Shared>, relayed: Relayed, target: Target) {
    let Target {
        server,
        address,
        counted,
        requires_authentication,
    } = target;
    let Relayed {
        stream,
        reader,
        connected,
        first,
        handshake,
    } = relayed;
    let session = Session::new(shared, &connected, counted.index(), requires_authentication);
    let outstays = async {
        if let Some(due) = handshake {
            sleep_until(due.deadline).await;
            drop(due.permit);
            if !session.is_authenticated() {
                return;
            }
        }
        pending().await
    };
    tokio::select! {
        () = session.run(stream, reader, first, server) => {}
        () = leaving(shared, address.as_ref()) => {
            session.abandon();
            shared.observer.unobserved("relay_server_changed");
        }
        () = outstays => shared.observer.unobserved("authentication_timeout"),
    }
}
