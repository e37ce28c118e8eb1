//! Selects the server of a relay and connects to it.

use std::{io, net::SocketAddr, sync::Arc};

use bson::RawDocument;
use tokio::time::Instant;

use super::proxied::Proxied;
use crate::{
    client::{Shared, hello::Compressors},
    observe::RelayedConnection,
    topology::SelectError,
};
use seawall_transport::{
    Sharer, Stream,
    connection::{EstablishError, ServerAddress, TlsVersion},
};

/// Metric label of all servers outside the known deployment. These servers share one label, because
/// their number is not bounded.
const ELSEWHERE: &str = "original_destination";

/// The server connection of a relay.
pub(in crate::client) struct Target {
    pub(super) server: Stream,
    /// The version of Seawall's TLS configuration for this connection. `None` if the client itself
    /// begins TLS with the server.
    pub(super) tls_version: Option<TlsVersion>,
    pub(super) counted: RelayedConnection,
    /// The server's address in the deployment. `None` if the server is the client's original
    /// destination. Such a relay keeps its server, even if another server becomes the primary.
    pub(super) address: Option<ServerAddress>,
    /// True if the server requires a login. Seawall asks on this connection, because the reply can
    /// depend on the connection. If the client begins TLS with the server, Seawall does not ask,
    /// and the value is true.
    pub(super) requires_authentication: bool,
}

/// The reason why a client cannot be relayed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error("the original destination is Seawall itself")]
    Loop,
}

/// The reason why a pooled client cannot become a relayed client.
#[derive(Debug, thiserror::Error)]
pub(in crate::client) enum FallbackError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error("the server lacks a compressor that Seawall and the client have negotiated")]
    Compression,
}

/// Connects to the client's original destination. If there is none, connects to the server that all
/// relays without an original destination share. `proxied` is set if Seawall sends the client's
/// address to the server, in a PROXY header. `is_bare` is true if Seawall must not begin TLS with
/// the server, because the client itself does so.
pub(super) async fn destination(
    shared: &Arc<Shared>,
    original: Option<SocketAddr>,
    proxied: Option<&Proxied>,
    deadline: Instant,
    is_bare: bool,
) -> Result<Target, TargetError> {
    let connector = shared.routing.topology.connector();
    let header = proxied.map(Proxied::header);
    let connect = async |address: &ServerAddress| {
        let address = &address_for(proxied, address);
        match is_bare {
            // Seawall does not ask if the server requires a login, because Seawall could not refuse
            // commands in encrypted traffic anyway.
            true => connector
                .connect_without_tls(address, header)
                .await
                .map(|server| (server, None, true)),
            false => {
                let connected = connector.connect_without_hello(address, header).await;
                connected.map(|(of, requires)| (of.stream, Some(of.tls_version), requires))
            }
        }
    };
    let Some(original) = original else {
        let pool = shared.routing.topology.select_for_relay(deadline).await?;
        let (server, tls_version, requires_authentication) = connect(pool.address()).await?;
        return Ok(Target {
            server,
            tls_version,
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
    let (server, tls_version, requires_authentication) = connect(&address).await?;
    if connects_to_itself(&server) {
        return Err(TargetError::Loop);
    }
    let snapshot = shared.routing.topology.snapshot();
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
        tls_version,
        requires_authentication,
        counted: shared.recorder.server(&label).relayed(),
        address: None,
    })
}

/// True for a connection without TLS if its server runs on Seawall's host, or if Seawall cannot
/// find out where it runs. A server on this host treats Seawall as a local client, and may give it
/// more rights than other clients. For example, it may let Seawall create the first user.
pub(super) fn is_on_this_host(server: &Stream) -> bool {
    match server {
        Stream::Unix(_) => true,
        Stream::Tls { .. } => false,
        Stream::Tcp(stream) => match stream.peer_addr() {
            Ok(peer) => may_be_of_this_host(peer),
            Err(_) => true,
        },
    }
}

/// False only if Seawall's host certainly does not have this address.
fn may_be_of_this_host(mut address: SocketAddr) -> bool {
    // `set_ip` keeps the scope id of a link-local address. The kernel needs it to find the address.
    address.set_ip(address.ip().to_canonical());
    address.set_port(0);
    // A socket can be bound only to an address of its host. Any other failure, for example because
    // no file descriptor is left, says nothing about the address.
    let is_foreign = |error: io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
    address.ip().is_loopback() || !std::net::UdpSocket::bind(address).is_err_and(is_foreign)
}

/// True if both ends of the connection have the same address, so the socket is connected to itself.
/// Also true if Seawall cannot find out these addresses.
fn connects_to_itself(server: &Stream) -> bool {
    let ends = |stream: &tokio::net::TcpStream| -> io::Result<bool> {
        Ok(stream.local_addr()? == stream.peer_addr()?)
    };
    match server {
        Stream::Tcp(stream) => ends(stream).unwrap_or(true),
        Stream::Unix(_) | Stream::Tls { .. } => false,
    }
}

/// Resolves when this relay must leave the server at `address`: another server is now the primary
/// or the selected router, and it is the turn of this relay to be closed. Never resolves if
/// `address` is `None`.
pub(super) async fn relay_server_changed(
    shared: &Shared,
    sharer: Sharer,
    address: Option<&ServerAddress>,
) {
    let Some(address) = address else {
        return std::future::pending().await;
    };
    let topology = &shared.routing.topology;
    let mut published = topology.subscribe();
    // During an election the new server is unknown, so relays keep their server.
    let has_changed = || {
        let now = topology.relay_server();
        now.is_some_and(|pool| pool.address() != address)
    };
    loop {
        // The relays that have to leave this server are closed one after another, so that their
        // clients do not all reconnect at the same time. While this relay waits for its turn, its
        // server may become the primary again.
        let turns = &shared.limits.closes().changed_servers;
        if has_changed() && turns.take(sharer, has_changed).await {
            return;
        }
        if published.changed().await.is_err() {
            return;
        }
    }
}

/// The address to which a relay connects. With `proxied`, it has the port on which the server
/// expects a PROXY header.
fn address_for(proxied: Option<&Proxied>, server: &ServerAddress) -> ServerAddress {
    proxied.map_or_else(|| server.clone(), |proxied| proxied.port_of(server))
}

/// Connects to a server and sends it a `hello` with the client's metadata, for a client that has
/// already sent its hello to Seawall. `proxied` is set if Seawall sends the client's address to the
/// server, in a PROXY header.
pub(in crate::client) async fn connect_with_hello(
    shared: &Arc<Shared>,
    proxied: Option<&Proxied>,
    metadata: Option<&RawDocument>,
    compressors: Compressors,
) -> Result<Target, FallbackError> {
    let deadline = Instant::now() + shared.settings().server_selection_timeout;
    let pool = shared.routing.topology.select_for_relay(deadline).await?;
    let offered: Vec<_> = compressors.iter().collect();
    let connector = shared.routing.topology.connector();
    let address = address_for(proxied, pool.address());
    let (mut connection, greeting) = connector
        .connect_as(
            &address,
            proxied.map(Proxied::header),
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
        .may_require_authentication(&address, &mut connection)
        .await?;
    Ok(Target {
        requires_authentication,
        tls_version: Some(connection.tls_version),
        server: connection.stream,
        counted: shared
            .recorder
            .server(&pool.address().to_string())
            .relayed(),
        address: Some(pool.address().clone()),
    })
}

/// The names of the compressors in a server's reply to a hello.
fn accepted(greeting: &RawDocument) -> Vec<String> {
    let names = greeting.get_array("compression").into_iter().flatten();
    names
        .filter_map(|name| Some(name.ok()?.as_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No host has the addresses 192.0.2.1 and 2001:db8::1, which are for documentation. The
    /// interface with the number 1 is the loopback interface.
    #[test]
    fn an_address_is_foreign_only_if_this_host_certainly_does_not_have_it() {
        for (address, expected) in [
            ("127.0.0.1:27017", true),
            ("[::1]:27017", true),
            ("[::ffff:127.0.0.1]:27017", true),
            ("192.0.2.1:27017", false),
            ("[::ffff:192.0.2.1]:27017", false),
            ("[2001:db8::1]:27017", false),
            ("[fe80::1%1]:27017", false),
            // Without its scope id, a link-local address cannot be checked.
            ("[fe80::1]:27017", true),
        ] {
            let may_be = may_be_of_this_host(address.parse().unwrap());
            assert_eq!(may_be, expected, "{address}");
        }
    }
}
