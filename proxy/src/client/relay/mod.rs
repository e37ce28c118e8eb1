//! Relays: each client connection has its own server connection. Seawall observes the bytes and
//! passes them unchanged, except for the commands below, which it refuses.
//!
//! A client is relayed in three cases:
//!
//! - Its login mechanism can authenticate only a single connection, and the configuration allows
//!   this fallback from pooled mode.
//! - The client was redirected to Seawall without a new connection string.
//! - The operator wants only measurements.
//!
//! ```text
//! client ──► requests: read whole or by their heads, watched, forwarded ──► server
//! client ◄── replies: forwarded and watched as they arrive ◄─────────────── server
//! ```
//!
//! To the server, Seawall is the client, so Seawall refuses some commands or closes the client that
//! sent them:
//!
//! - If the server requires a login, only the commands that [`guard`] allows pass before the login.
//!   Otherwise a remote client could create the first user: a server without users allows this to a
//!   client on its own host, and Seawall may be on this host. To find out if the server requires a
//!   login, Seawall asks the server on the same connection.
//! - MONGODB-X509 never passes, because the server would check Seawall's certificate.
//! - SCRAM does not pass for clients that are relayed because of their mechanism, because Seawall
//!   itself checks SCRAM logins.
//! - A command whose name begins with `$` never passes, because Seawall is not sure how the server
//!   would read it.
//! - A command in an `OP_QUERY` passes only if the name of its database is UTF-8, and if Seawall is
//!   sure which command the server would run.
//! - Seawall cannot guard traffic that the client encrypts for the server. So encrypted traffic
//!   does not pass to a server on Seawall's host, where Seawall may have the rights of a local
//!   client.

mod admission;
mod directions;
mod guard;
mod proxied;
mod replies;
mod target;
mod watch;

use std::{future::pending, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split},
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use super::{LoginDue, Newcomer, Peer, Shared};
use crate::{
    limits::{CloseTurns, Eviction, HandshakePermit},
    observe::ConnectedClient,
};
use seawall_stats::{Departure, Stage};
use seawall_transport::{Message, MessageReader, Sharer, Stream, connection::TlsVersion};
use seawall_wire::{HEADER_BYTES, OpCode};

use self::{
    admission::Admission,
    directions::{LEAVE_LIMIT, Relay},
    guard::Relayed,
    target::{destination, is_on_this_host, relay_server_changed},
};
pub(super) use self::{
    proxied::Proxied,
    target::{Target, connect_with_hello},
};

/// The content type of a TLS record with a part of a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// The content type of a TLS record with an alert. The first TLS record that a server sends has
/// either this type or [`TLS_HANDSHAKE`].
const TLS_ALERT: u8 = 0x15;

/// The first bytes of a TLS record with a handshake: the record type and the major version.
const TLS_RECORD: [u8; 2] = [TLS_HANDSHAKE, 0x03];

/// A relay that has to end soon is closed when it has been idle for this time (see
/// [`Relay::activity`]). The time is longer than a usual pause between two statements of a
/// transaction.
const IDLE_BEFORE_CLOSE: Duration = Duration::from_secs(1);

/// A client that Seawall will relay.
pub(super) struct RelayedClient {
    pub(super) stream: Stream,
    pub(super) reader: MessageReader,
    pub(super) connected: ConnectedClient,
    /// The message to forward first, because Seawall has read it but not replied to it; else
    /// `None`.
    pub(super) first: Option<Message>,
    /// The client's deadline and permit until it logs in; `None` if the client has no deadline.
    pub(super) handshake: Option<LoginDue>,
    pub(super) sharer: Sharer,
    pub(super) eviction: Eviction,
}

/// Relays a client from its first byte on. `original` is the address to which the client connected
/// before the kernel redirected it to Seawall; `None` if the client was not redirected.
pub(super) async fn serve_relayed(
    shared: Arc<Shared>,
    mut stream: Stream,
    peer: Peer,
    newcomer: Newcomer,
    original: Option<SocketAddr>,
) {
    let mut connected = shared.clients.connected(Arc::clone(&peer.text), peer.ip);
    let Newcomer {
        client: _client,
        handshake,
        eviction,
        // The list of compressors is not needed, because the client and the server agree on
        // compressors without Seawall.
        compressors: _,
    } = newcomer;
    let sharer = Sharer::at(peer.ip);
    let mut reader = MessageReader::new(sharer);
    let login_deadline = Instant::now() + shared.settings().authentication_timeout;
    // Seawall connects to the server only after the client's first bytes, so that a client that
    // sends nothing costs no server connection.
    let head = match timeout_at(login_deadline, reader.peek_header(&mut stream)).await {
        Ok(Ok(head)) => head,
        Ok(Err(_)) => return,
        Err(_) => return close(&shared, &mut connected, "authentication_timeout"),
    };
    let is_encrypted = is_encrypted(&head);
    if is_encrypted {
        let passes = shared.settings().relays_encrypted;
        let reason = if passes {
            "relay_encrypted"
        } else {
            "relay_encrypted_refused"
        };
        shared.recorder.count_unobserved(reason);
        if !passes {
            return connected.set_departure(Departure::Closed);
        }
    }
    let deadline = Instant::now() + shared.settings().server_selection_timeout;
    let proxied = Proxied::of(&shared.settings(), &peer, &stream);
    let proxied = proxied.as_ref();
    let target = match destination(&shared, original, proxied, deadline, is_encrypted).await {
        Ok(target) => target,
        Err(error) => {
            tracing::debug!(%error, peer = %peer.text, "could not connect to a server for a relayed client");
            return close(&shared, &mut connected, "relay_no_server");
        }
    };
    if is_encrypted && is_on_this_host(&target.server) {
        return close(&shared, &mut connected, "relay_encrypted_same_host");
    }
    if is_encrypted {
        let until_tls = UntilTls {
            deadline: login_deadline,
            permit: handshake,
            eviction,
            connected,
        };
        return pass_encrypted(&shared, stream, reader, target, until_tls).await;
    }
    let relayed = RelayedClient {
        stream,
        reader,
        connected,
        first: None,
        handshake: Some(LoginDue {
            permit: Some(handshake),
            deadline: login_deadline,
        }),
        sharer,
        eviction,
    };
    relay(&shared, relayed, target).await;
}

/// True if these are the first bytes of a TLS handshake and not of a message.
fn is_encrypted(head: &[u8; HEADER_BYTES]) -> bool {
    let op_code = head.last_chunk::<4>().map(|b| i32::from_le_bytes(*b));
    let is_message = op_code.is_some_and(|code| {
        matches!(
            OpCode::from(code),
            OpCode::Msg | OpCode::Query | OpCode::Compressed
        )
    });
    // Minor version 0 is SSL 3.0, which is no longer in use. A short message could be mistaken for
    // a record of this version.
    let has_version = head.get(2).is_some_and(|minor| (1..=4).contains(minor));
    head.starts_with(&TLS_RECORD) && has_version && !is_message
}

/// The limits that a client has until it logs in. If a client uses TLS with the server, Seawall
/// cannot see the login, because the client's bytes are encrypted. So for such a client, these
/// limits end when the server has sent its first reply in TLS.
struct UntilTls {
    deadline: Instant,
    permit: HandshakePermit,
    eviction: Eviction,
    connected: ConnectedClient,
}

/// Passes the bytes of a client that itself begins TLS with the server. Until the server has
/// replied in TLS, only the client's first record passes. A server without TLS would take this
/// record for the beginning of a longer message and run nothing.
async fn pass_encrypted(
    shared: &Shared,
    mut client: Stream,
    mut reader: MessageReader,
    target: Target,
    until_tls: UntilTls,
) {
    let Target {
        mut server,
        address,
        counted: _counted,
        ..
    } = target;
    let begun = async {
        let forwarded = reader.forward_record(&mut client, &mut server).await;
        // The client has left if its bytes end within the record.
        let is_of_server = |error: io::Error| error.kind() != io::ErrorKind::UnexpectedEof;
        forwarded.map_err(|error| is_of_server(error).then_some(Departure::Closed))?;
        server.read_u8().await.map_err(|_| Some(Departure::Closed))
    };
    let UntilTls {
        deadline,
        permit,
        eviction,
        mut connected,
    } = until_tls;
    let record_type = match timeout_at(deadline, begun).await {
        Ok(Ok(record_type)) => record_type,
        Ok(Err(departure)) => {
            if let Some(departure) = departure {
                connected.set_departure(departure);
            }
            return;
        }
        Err(_) => return close(shared, &mut connected, "authentication_timeout"),
    };
    if !matches!(record_type, TLS_HANDSHAKE | TLS_ALERT) {
        return close(shared, &mut connected, "relay_not_encrypted");
    }
    drop(permit);
    eviction.set_exempt(true);
    // Seawall cannot read the encrypted bytes. So when the client leaves, it counts as logged in
    // and not waiting for a reply.
    connected.set_stage(Stage::Ready);
    let sharer = reader.sharer();
    let passed = async move {
        client.write_all(&[record_type]).await?;
        server.write_all(reader.buffered()).await?;
        pass_both_ways(client, server).await
    };
    tokio::select! {
        // The result is ignored, because both connections are closed below.
        _ = passed => {}
        () = relay_server_changed(shared, sharer, address.as_ref()) => {
            connected.set_departure(Departure::Closed);
        }
    }
}

/// Passes bytes in both directions until both directions have ended. When one direction has ended,
/// the other one has to end within [`LEAVE_LIMIT`]: a server that hangs, or a client that keeps its
/// connection open, would otherwise hold the relay without limit.
async fn pass_both_ways<C, S>(client: C, server: S) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let has_ended = Notify::new();
    let requests = pass_to_end(&mut from_client, &mut to_server, &has_ended);
    let replies = pass_to_end(&mut from_server, &mut to_client, &has_ended);
    let leave = async {
        has_ended.notified().await;
        sleep(LEAVE_LIMIT).await;
    };
    tokio::select! {
        passed = async { tokio::try_join!(requests, replies) } => passed.map(drop),
        () = leave => Ok(()),
    }
}

/// Passes all bytes of one direction, notifies `has_ended`, and passes the end of the stream.
async fn pass_to_end(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    has_ended: &Notify,
) -> io::Result<()> {
    copy(from, to).await?;
    has_ended.notify_one();
    to.shutdown().await
}

/// Records that Seawall closes a client, and counts the reason.
fn close(shared: &Shared, connected: &mut ConnectedClient, reason: &'static str) {
    connected.set_departure(Departure::Closed);
    shared.recorder.count_unobserved(reason);
}

/// Relays until the client or the server ends its connection, or until [`Relay::run`] ends the
/// relay, for example because of a malformed message. Seawall also ends the relay in these cases:
///
/// - The client's login is overdue.
/// - Seawall drains and the client is idle.
/// - Another server is now the primary or the selected router, so the relay must leave its server.
/// - The server connection uses previous TLS files, the client is idle, and the configuration says
///   that such relays end.
pub(super) async fn relay(shared: &Arc<Shared>, relayed: RelayedClient, target: Target) {
    let Target {
        server,
        tls_version,
        address,
        counted,
        requires_authentication,
    } = target;
    let RelayedClient {
        stream,
        reader,
        mut connected,
        first,
        handshake,
        sharer,
        eviction,
    } = relayed;
    let admission = Admission::new(
        shared,
        sharer,
        eviction,
        handshake,
        requires_authentication,
        match first {
            Some(_) => Relayed::OtherMechanisms,
            None => Relayed::All,
        },
    );
    let relay = Relay::new(shared, &connected, counted.index(), admission);
    let login_overdue = relay.login_overdue();
    let how = tokio::select! {
        how = relay.run(stream, reader, first, server) => how,
        () = relay_server_changed(shared, sharer, address.as_ref()) => {
            relay.abandon();
            shared.recorder.count_unobserved("relay_server_changed");
            Some(Departure::Closed)
        }
        () = login_overdue => {
            shared.recorder.count_unobserved("authentication_timeout");
            Some(Departure::Closed)
        }
        () = idle_in_drain(shared, sharer, &relay) => Some(Departure::Closed),
        () = idle_and_outdated(shared, sharer, &relay, tls_version) => {
            shared.recorder.count_unobserved("relay_tls_changed");
            Some(Departure::Closed)
        }
    };
    let stage = relay.stage();
    match how {
        // Seawall closes the connection. A request in progress must not count as ended by its
        // client.
        Some(Departure::Closed) => crate::observe::close(relay),
        Some(Departure::Clean | Departure::GaveUp | Departure::Reset) | None => drop(relay),
    }
    connected.set_stage(stage);
    if let Some(how) = how {
        connected.set_departure(how);
    }
}

/// Resolves when Seawall drains, the relay has been idle for [`IDLE_BEFORE_CLOSE`], and it is the
/// turn of this relay to be closed. A relayed client learns of a drain only if its connection is
/// closed: its `hello` goes to the server. Clients that connect during the drain are not closed
/// early, because they may have no other endpoint and would connect again and again.
async fn idle_in_drain(shared: &Shared, sharer: Sharer, relay: &Relay<'_>) {
    let mut draining = shared.draining.clone();
    let began_before = draining.borrow_and_update().is_none();
    // An error means that Seawall ends.
    let drains = draining.wait_for(Option::is_some).await.is_ok();
    if !began_before || !drains {
        return pending().await;
    }
    let turns = &shared.limits.closes().drain;
    while !take_turn_if_idle(turns, sharer, relay, || true).await {}
}

/// Resolves when relays with the TLS version `version` have to end, the relay has been idle for
/// [`IDLE_BEFORE_CLOSE`], and it is the turn of this relay to be closed.
async fn idle_and_outdated(
    shared: &Shared,
    sharer: Sharer,
    relay: &Relay<'_>,
    version: Option<TlsVersion>,
) {
    let Some(version) = version else {
        return pending().await;
    };
    let mut oldest = shared.routing.topology.oldest_relay_tls();
    let turns = &shared.limits.closes().outdated_relays;
    loop {
        // An error means that Seawall ends.
        if oldest.wait_for(|oldest| version < *oldest).await.is_err() {
            return pending().await;
        }
        // A reload may change the setting while the relay waits.
        let is_outdated = || version < *oldest.borrow();
        if take_turn_if_idle(turns, sharer, relay, is_outdated).await {
            return;
        }
    }
}

/// Returns true if the relay is idle for [`IDLE_BEFORE_CLOSE`] from now on and until its turn to be
/// closed, and if `is_due` is then true. The turns spread the closes over time, so that the
/// reconnects do not become a storm.
async fn take_turn_if_idle(
    turns: &CloseTurns,
    sharer: Sharer,
    relay: &Relay<'_>,
    is_due: impl Fn() -> bool,
) -> bool {
    let before = relay.activity();
    sleep(IDLE_BEFORE_CLOSE).await;
    let has_to_end = || before.is_some() && relay.activity() == before && is_due();
    has_to_end() && turns.take(sharer, has_to_end).await
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_encrypted_relay_ends_soon_after_one_side_has_ended_its_connection() {
        for client_leaves in [true, false] {
            let (mut client, near_client) = duplex(64);
            let (mut server, near_server) = duplex(64);
            let leaving = match client_leaves {
                true => &mut client,
                false => &mut server,
            };
            leaving.write_all(b"last").await.unwrap();
            leaving.shutdown().await.unwrap();
            let began = Instant::now();
            pass_both_ways(near_client, near_server).await.unwrap();
            assert!((LEAVE_LIMIT..LEAVE_LIMIT * 2).contains(&began.elapsed()));
            // The other side got the last bytes and the end of the stream.
            let other = match client_leaves {
                true => &mut server,
                false => &mut client,
            };
            let mut got = Vec::new();
            other.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"last");
        }
    }
}
