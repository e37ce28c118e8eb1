//! Where a relay goes.

use std::{io, net::SocketAddr, sync::Arc};

use bson::{RawDocument, RawDocumentBuf};
use tokio::time::{Instant, sleep_until};

use crate::{
    client::{Shared, hello::Compressors},
    connection::{EstablishError, ServerAddress},
    observe::Relayed,
    topology::SelectError,
    wire::Stream,
};

/// The label of servers that are none of the deployment's, as far as is known: their number is not bounded.
const ELSEWHERE: &str = "original_destination";

/// A connected server.
pub(in crate::client) struct Target {
    pub(super) server: Stream,
    pub(super) counted: Relayed,
    /// Which of the deployment's servers it is; `None` for where the client wanted to go, which is where it stays.
    pub(super) address: Option<ServerAddress>,
    /// Whether the server wants clients to log in, asked on this very connection.
    pub(super) requires_authentication: bool,
}

/// Why a client could not be relayed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error("the original destination is Seawall itself")]
    Loop,
}

/// Why the automatic fallback is not to be had.
#[derive(Debug, thiserror::Error)]
pub(in crate::client) enum FallbackError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error("the server does not take the compression that was agreed with the client")]
    Compression,
}

/// The original destination, or the server that relays go to; `is_bare` for a client that speaks TLS with it itself.
pub(super) async fn destination(
    shared: &Arc<Shared>,
    original: Option<SocketAddr>,
    deadline: Instant,
    is_bare: bool,
) -> Result<Target, TargetError> {
    let connector = shared.topology.connector();
    let dial = async |address: &ServerAddress| match is_bare {
        // What the client encrypts cannot be guarded in any case.
        true => connector
            .dial_bare(address)
            .await
            .map(|server| (server, true)),
        false => connector.dial_and_ask(address).await,
    };
    let Some(original) = original else {
        let pool = shared.topology.select_for_relay(deadline).await?;
        let (server, requires_authentication) = dial(pool.address()).await?;
        return Ok(Target {
            server,
            requires_authentication,
            counted: shared
                .observer
                .server(&pool.address().to_string())
                .relayed(),
            address: Some(pool.address().clone()),
        });
    };
    let address = ServerAddress::Tcp {
        host: original.ip().to_canonical().to_string(),
        port: original.port(),
    };
    let (server, requires_authentication) = dial(&address).await?;
    if leads_here(&server) {
        return Err(TargetError::Loop);
    }
    let snapshot = shared.topology.snapshot();
    let is_known = snapshot
        .description
        .servers
        .iter()
        .any(|s| s.address == address);
    let label = if is_known {
        address.to_string()
    } else {
        ELSEWHERE.to_owned()
    };
    Ok(Target {
        server,
        requires_authentication,
        counted: shared.observer.server(&label).relayed(),
        address: None,
    })
}

/// Whether a server runs on the same host: then it takes Seawall for a local client, and may grant it what only local
/// clients may do.
pub(super) fn is_on_this_host(server: &Stream) -> bool {
    match server {
        Stream::Unix(_) => true,
        Stream::Tls(_) => false,
        Stream::Tcp(stream) => match stream.peer_addr() {
            // Only an address of this host can be bound.
            Ok(peer) => {
                peer.ip().to_canonical().is_loopback()
                    || std::net::UdpSocket::bind((peer.ip(), 0)).is_ok()
            }
            Err(_) => true,
        },
    }
}

/// A connection to oneself has the same address at both ends.
fn leads_here(server: &Stream) -> bool {
    let ends = |stream: &tokio::net::TcpStream| -> io::Result<bool> {
        Ok(stream.local_addr()? == stream.peer_addr()?)
    };
    match server {
        Stream::Tcp(stream) => ends(stream).unwrap_or(true),
        Stream::Unix(_) | Stream::Tls(_) => false,
    }
}

/// Resolves when relays go elsewhere than to this server.
pub(super) async fn leaving(shared: &Shared, address: Option<&ServerAddress>) {
    let Some(address) = address else {
        return std::future::pending().await;
    };
    let mut published = shared.topology.subscribe();
    loop {
        let now = shared.topology.relay_server();
        // In the middle of an election there is nowhere else to go.
        if now.is_some_and(|pool| pool.address() != address) {
            // All of them leave: spread out, so that they make no storm.
            let turn = shared.limits.closing_turn(Instant::now());
            return sleep_until(turn).await;
        }
        if published.changed().await.is_err() {
            return;
        }
    }
}

/// A server that was told by `hello` who the client is, for a client that has said so already.
pub(in crate::client) async fn greeted(
    shared: &Arc<Shared>,
    metadata: Option<&RawDocument>,
    compressors: Compressors,
) -> Result<Target, FallbackError> {
    let deadline = Instant::now() + shared.settings.server_selection_timeout;
    let pool = shared.topology.select_for_relay(deadline).await?;
    let offered: Vec<_> = compressors.iter().collect();
    let connector = shared.topology.connector();
    let (mut connection, greeting) = connector
        .connect_as(
            pool.address(),
            metadata.map(RawDocument::to_owned),
            &offered,
        )
        .await?;
    let accepted = accepted(&greeting);
    if !offered
        .iter()
        .all(|c| accepted.iter().any(|name| name == c.name()))
    {
        return Err(FallbackError::Compression);
    }
    let requires_authentication = connector
        .ask_for_authentication(pool.address(), &mut connection)
        .await?;
    Ok(Target {
        requires_authentication,
        server: connection.stream,
        counted: shared
            .observer
            .server(&pool.address().to_string())
            .relayed(),
        address: Some(pool.address().clone()),
    })
}

fn accepted(greeting: &RawDocumentBuf) -> Vec<String> {
    let names = greeting.get_array("compression").into_iter().flatten();
    names
        .filter_map(|name| Some(name.ok()?.as_str()?.to_owned()))
        .collect()
}
