//! Which server relays go to: one for all of them, since a relayed client's cursors and transactions are not looked after.

use super::description::{Description, Kind, Server, ServerKind};
use crate::connection::ServerAddress;

/// Indexes of the servers that relays may go to.
pub(super) fn candidates(description: &Description) -> Vec<usize> {
    let fits = |server: &Server| match description.kind {
        Kind::Unknown | Kind::ReplicaSetNoPrimary => false,
        Kind::Single | Kind::Sharded => server.is_usable(),
        Kind::ReplicaSetWithPrimary => {
            server.is_usable() && server.kind == ServerKind::Primary && !server.is_demoted
        }
    };
    let servers = description.servers.iter().enumerate();
    servers
        .filter(|(_, server)| fits(server))
        .map(|(index, _)| index)
        .collect()
}

/// The place of the one that was chosen, as long as it is there; else of the first.
pub(super) fn stay_or_choose(
    chosen: Option<&ServerAddress>,
    candidates: &[&ServerAddress],
) -> Option<usize> {
    let stay = chosen.and_then(|chosen| candidates.iter().position(|address| *address == chosen));
    stay.or_else(|| (!candidates.is_empty()).then_some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_stays_as_long_as_it_can() {
        let [a, b]: [ServerAddress; 2] = ["a:1", "b:2"].map(|text| text.parse().unwrap());
        assert_eq!(stay_or_choose(None, &[]), None);
        assert_eq!(stay_or_choose(Some(&a), &[]), None);
        assert_eq!(stay_or_choose(None, &[&a, &b]), Some(0));
        assert_eq!(stay_or_choose(Some(&b), &[&a, &b]), Some(1));
        assert_eq!(stay_or_choose(Some(&b), &[&a]), Some(0));
    }
}
