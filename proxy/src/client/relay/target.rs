//! The server of a relay: how it is chosen and connected.

use std::{io, net::SocketAddr, sync::Arc};

use bson::RawDocument;
use tokio::time::{Instant, sleep_until};

use crate::{
    client::{Shared, hello::Compressors},
    observe::Relayed,
    topology::SelectError,
};
use seawall_transport::{
    Stream,
    connection::{EstablishError, ServerAddress},
};

/// Label of servers that are not known to belong to the deployment: their number is not bounded.
const ELSEWHERE: &str = "original_destination";

/// A connected server.
pub(in crate::client) struct Target {
    pub(super) server: Stream,
    pub(super) counted: Relayed,
    /// Which of the deployment's servers it is. `None` for the client's original destination, where
    /// the relay stays.
    pub(super) address: Option<ServerAddress>,
    /// True if the server requires a login; it was asked on this very connection.
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

/// Why the automatic fallback is not possible.
#[derive(Debug, thiserror::Error)]
pub(in crate::client) enum FallbackError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error("the server does not support the compressors agreed with the client")]
    Compression,
}

/// Connects to the original destination or, without one, to the server that relays use. `is_bare`
/// is true for a client that speaks TLS with the server itself.
pub(super) async fn destination(
    shared: &Arc<Shared>,
    original: Option<SocketAddr>,
    deadline: Instant,
    is_bare: bool,
) -> Result<Target, TargetError> {
    let connector = shared.topology.connector();
    let connect = async |address: &ServerAddress| match is_bare {
        // The server is not asked: traffic that the client encrypts cannot be guarded.
        true => connector
            .connect_without_tls(address)
            .await
            .map(|server| (server, true)),
        false => connector.connect_without_hello(address).await,
    };
    let Some(original) = original else {
        let pool = shared.topology.select_for_relay(deadline).await?;
        let (server, requires_authentication) = connect(pool.address()).await?;
        return Ok(Target {
            server,
            requires_authentication,
            counted: shared
                .recorder
                .server(&pool.address().to_string())
                .relayed(),
            address: Some(pool.address().clone()),
        });
    };
    let address = ServerAddress::Tcp {
        host: original.ip().to_canonical().to_string(),
        port: original.port(),
    };
    let (server, requires_authentication) = connect(&address).await?;
    if connects_to_itself(&server) {
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
        counted: shared.recorder.server(&label).relayed(),
        address: None,
    })
}

/// True if a server runs on the same host. It treats Seawall as a local client and may grant it
/// what only local clients may do.
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

/// True for a connection of Seawall to itself, which has the same address at both ends.
fn connects_to_itself(server: &Stream) -> bool {
    let ends = |stream: &tokio::net::TcpStream| -> io::Result<bool> {
        Ok(stream.local_addr()? == stream.peer_addr()?)
    };
    match server {
        Stream::Tcp(stream) => ends(stream).unwrap_or(true),
        Stream::Unix(_) | Stream::Tls(_) => false,
    }
}

/// Resolves when relays have to move from this server to another.
pub(super) async fn relay_server_changed(shared: &Shared, address: Option<&ServerAddress>) {
    let Some(address) = address else {
        return std::future::pending().await;
    };
    let mut published = shared.topology.subscribe();
    loop {
        let now = shared.topology.relay_server();
        // During an election there is no other server to move to.
        if now.is_some_and(|pool| pool.address() != address) {
            // All relays move at once. They are closed one after another, so that they cause no
            // storm.
            let turn = shared.limits.closing_turn(Instant::now());
            return sleep_until(turn).await;
        }
        if published.changed().await.is_err() {
            return;
        }
    }
}

/// Connects to a server and sends it a `hello` with the client's metadata, for a client that has
/// already sent its hello to Seawall.
pub(in crate::client) async fn connect_with_hello(
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
        .server_requires_authentication(pool.address(), &mut connection)
        .await?;
    Ok(Target {
        requires_authentication,
        server: connection.stream,
        counted: shared
            .recorder
            .server(&pool.address().to_string())
            .relayed(),
        address: Some(pool.address().clone()),
    })
}

fn accepted(greeting: &RawDocument) -> Vec<String> {
    let names = greeting.get_array("compression").into_iter().flatten();
    names
        .filter_map(|name| Some(name.ok()?.as_str()?.to_owned()))
        .collect()
}
