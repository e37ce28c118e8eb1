//! Selects the server for relays. A relay forwards the bytes of one client, unchanged, to a server
//! connection that serves only this client. All relays share one server, except the relays of
//! clients that the kernel redirected to Seawall: these use the client's original destination. A
//! client may open a cursor or a transaction on one connection and continue it on another one. Both
//! connections must then lead to the same server. When a client connects, Seawall does not know
//! which cursors and transactions the client will continue, so it cannot select a server for them.

use super::description::{ServerDescription, ServerType, TopologyDescription, TopologyType};
use seawall_transport::connection::ServerAddress;

/// Returns the indexes of the servers that relays may use.
pub(super) fn candidates(description: &TopologyDescription) -> Vec<usize> {
    let fits = |server: &ServerDescription| match description.topology_type {
        TopologyType::Unknown | TopologyType::ReplicaSetNoPrimary => false,
        TopologyType::Single | TopologyType::Sharded => server.is_usable(),
        TopologyType::ReplicaSetWithPrimary => {
            server.is_usable() && server.server_type == ServerType::Primary && !server.is_demoted()
        }
    };
    let servers = description.servers.iter().enumerate();
    servers
        .filter(|(_, server)| fits(server))
        .map(|(index, _)| index)
        .collect()
}

/// Returns the index in `candidates` of the server that relays should use. `chosen` is the server
/// that the relays have used so far. If it is still a candidate, the relays keep it. Otherwise they
/// use the first candidate. `None` if there are no candidates.
pub(super) fn keep_or_choose(
    chosen: Option<&ServerAddress>,
    candidates: &[&ServerAddress],
) -> Option<usize> {
    let kept = chosen.and_then(|chosen| candidates.iter().position(|address| *address == chosen));
    kept.or_else(|| (!candidates.is_empty()).then_some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relay forwards the bytes of one client to a server connection of its own. Without an
    /// original destination, all relays share one server.
    #[test]
    fn relays_keep_their_server_while_it_is_a_candidate() {
        let [a, b]: [ServerAddress; 2] = ["a:1", "b:2"].map(|text| text.parse().unwrap());
        assert_eq!(keep_or_choose(None, &[]), None);
        assert_eq!(keep_or_choose(Some(&a), &[]), None);
        assert_eq!(keep_or_choose(None, &[&a, &b]), Some(0));
        assert_eq!(keep_or_choose(Some(&b), &[&a, &b]), Some(1));
        assert_eq!(keep_or_choose(Some(&b), &[&a]), Some(0));
    }
}
