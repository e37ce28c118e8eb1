//! Server selection: a pure function of the topology description.
//!
//! Source: the Server Selection and Max Staleness specifications,
//! <https://github.com/mongodb/specifications/tree/master/source/server-selection>.

use std::time::Duration;

use super::description::{Probe, ServerDescription, ServerType, TopologyDescription, TopologyType};
use seawall_command::{Mode, ReadPreference};

/// Returns the indexes of the suitable servers within the latency window, in order of address.
pub(super) fn select(
    description: &TopologyDescription,
    preference: &ReadPreference,
    local_threshold: Duration,
) -> Vec<usize> {
    let suitable = match description.topology_type {
        TopologyType::Unknown => Vec::new(),
        TopologyType::Single if preference.mode == Mode::Primary => {
            servers_where(description, may_be_primary)
        }
        TopologyType::Single | TopologyType::Sharded => {
            servers_where(description, ServerDescription::is_usable)
        }
        TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary => {
            by_preference(description, preference)
        }
    };
    within_latency_window(description, suitable, local_threshold)
}

/// Like [`select`], but allocates no memory and handles only the two usual cases:
///
/// - The topology is `Single` or `Sharded` and has exactly one suitable server.
/// - The operation needs the primary of a replica set.
///
/// Returns the index of the suitable server; `None` if the caller must call `select`.
pub(super) fn select_only(
    description: &TopologyDescription,
    preference: &ReadPreference,
) -> Option<usize> {
    let only = |fits: fn(&ServerDescription) -> bool| {
        let servers = description.servers.iter().enumerate();
        let mut suitable = servers.filter(|(_, server)| fits(server));
        let (index, _) = suitable.next()?;
        suitable.next().is_none().then_some(index)
    };
    match (description.topology_type, preference.mode) {
        (TopologyType::Single, Mode::Primary) => only(may_be_primary),
        (TopologyType::Single | TopologyType::Sharded, _) => only(ServerDescription::is_usable),
        (TopologyType::ReplicaSetWithPrimary, Mode::Primary) => only(is_primary),
        _ => None,
    }
}

/// True if the only server of the deployment can serve operations that need a primary. A server
/// that is known to have stepped down would refuse them.
fn may_be_primary(server: &ServerDescription) -> bool {
    server.is_usable() && !server.is_demoted()
}

fn servers_where(
    description: &TopologyDescription,
    fits: impl Fn(&ServerDescription) -> bool,
) -> Vec<usize> {
    let servers = description.servers.iter().enumerate();
    servers
        .filter(|(_, server)| fits(server))
        .map(|(index, _)| index)
        .collect()
}

fn by_preference(description: &TopologyDescription, preference: &ReadPreference) -> Vec<usize> {
    let primary = || servers_where(description, is_primary);
    let secondaries = || servers_where(description, is_secondary);
    let eligible = |candidates| eligible(description, candidates, preference);
    let or_else = |first: Vec<usize>, second: &dyn Fn() -> Vec<usize>| {
        if first.is_empty() { second() } else { first }
    };
    match preference.mode {
        Mode::Primary => primary(),
        Mode::PrimaryPreferred => or_else(primary(), &|| eligible(secondaries())),
        Mode::Secondary => eligible(secondaries()),
        Mode::SecondaryPreferred => or_else(eligible(secondaries()), &primary),
        Mode::Nearest => eligible(servers_where(description, |s| {
            is_primary(s) || is_secondary(s)
        })),
    }
}

fn is_primary(server: &ServerDescription) -> bool {
    server.is_usable() && server.server_type == ServerType::Primary && !server.is_demoted()
}

fn is_secondary(server: &ServerDescription) -> bool {
    server.is_usable() && server.server_type == ServerType::Secondary && !server.is_demoted()
}

/// Returns the candidates whose staleness is at most `max_staleness` and that match the tag set. If
/// the preference has several tag sets, they are tried in order. The first tag set that matches at
/// least one candidate applies, and the later ones are ignored.
fn eligible(
    description: &TopologyDescription,
    mut candidates: Vec<usize>,
    preference: &ReadPreference,
) -> Vec<usize> {
    if let Some(limit) = preference.max_staleness {
        candidates.retain(|index| staleness_ms(description, *index) <= millis(limit));
    }
    if preference.tag_sets.is_empty() {
        return candidates;
    }
    let fits = |index: &usize, tags: &[(String, String)]| {
        let server = description.servers.get(*index);
        server.is_some_and(|server| tags.iter().all(|tag| server.tags.contains(tag)))
    };
    let matching = preference.tag_sets.iter().map(|tags| {
        candidates
            .iter()
            .copied()
            .filter(|index| fits(index, tags))
            .collect::<Vec<_>>()
    });
    matching
        .into_iter()
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// Estimates the staleness of a secondary in milliseconds, by the formula of the specification. If
/// the staleness is unknown, it counts as higher than any limit, because a member that has not been
/// probed yet may be hours behind.
fn staleness_ms(description: &TopologyDescription, index: usize) -> i64 {
    let Some(server) = description.servers.get(index) else {
        return i64::MAX;
    };
    if server.server_type == ServerType::Primary {
        return 0;
    }
    let primary = description.servers.iter().find(|s| is_primary(s));
    let behind = match primary {
        Some(primary) => behind_primary_ms(&server.probe, &primary.probe),
        None => {
            let secondaries = description
                .servers
                .iter()
                .filter(|s| s.server_type == ServerType::Secondary);
            let newest = secondaries.filter_map(|s| s.probe.last_write_ms).max();
            newest
                .zip(server.probe.last_write_ms)
                .map(|(newest, mine)| newest - mine)
        }
    };
    behind.map_or(i64::MAX, |behind| {
        behind.saturating_add(millis(description.heartbeat_frequency))
    })
}

/// Returns how many milliseconds a secondary is behind the primary: the difference of their last
/// writes, corrected by the time between the two probes. `None` if one of these times is unknown.
fn behind_primary_ms(secondary: &Probe, primary: &Probe) -> Option<i64> {
    let writes = primary
        .last_write_ms?
        .saturating_sub(secondary.last_write_ms?);
    let (own, other) = (secondary.last_update?, primary.last_update?);
    let own_is_later_by = own.saturating_duration_since(other);
    let other_is_later_by = other.saturating_duration_since(own);
    let between_probes = millis(own_is_later_by) - millis(other_is_later_by);
    Some(writes.saturating_add(between_probes))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn within_latency_window(
    description: &TopologyDescription,
    mut suitable: Vec<usize>,
    local_threshold: Duration,
) -> Vec<usize> {
    if suitable.len() < 2 {
        return suitable;
    }
    let round_trip = |index: usize| description.servers.get(index)?.probe.round_trip;
    let nearest = suitable.iter().filter_map(|index| round_trip(*index)).min();
    if let Some(nearest) = nearest {
        let limit = nearest + local_threshold;
        suitable.retain(|index| round_trip(*index).is_some_and(|time| time <= limit));
    }
    suitable
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const NO_LIMIT: Duration = Duration::from_secs(1000);

    fn server(
        n: u16,
        server_type: ServerType,
        round_trip_ms: u64,
        tags: &[(&str, &str)],
    ) -> ServerDescription {
        ServerDescription {
            address: format!("h:{n}").parse().unwrap(),
            server_type,
            tags: tags
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
            probe: Probe {
                round_trip: Some(Duration::from_millis(round_trip_ms)),
                last_write_ms: Some(1_000_000),
                last_update: Some(Instant::now()),
                ..Probe::default()
            },
            connect_failure: None,
            failed_since: None,
            demoted_since: None,
        }
    }

    fn replica_set() -> TopologyDescription {
        TopologyDescription {
            topology_type: TopologyType::ReplicaSetWithPrimary,
            set_name: Some("rs".into()),
            servers: vec![
                server(0, ServerType::Primary, 5, &[("dc", "a")]),
                server(
                    1,
                    ServerType::Secondary,
                    10,
                    &[("dc", "a"), ("use", "report")],
                ),
                server(2, ServerType::Secondary, 50, &[("dc", "b")]),
                server(3, ServerType::Arbiter, 1, &[]),
            ],
            heartbeat_frequency: Duration::from_secs(10),
            was_seen: true,
            ..TopologyDescription::default()
        }
    }

    fn preference(mode: Mode, tag_sets: &[&[(&str, &str)]]) -> ReadPreference {
        let tag = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let tag_sets = tag_sets
            .iter()
            .map(|set| set.iter().map(tag).collect())
            .collect();
        ReadPreference {
            mode,
            tag_sets,
            max_staleness: None,
        }
    }

    #[test]
    fn each_read_preference_mode_selects_the_members_that_it_allows() {
        let set = replica_set();
        let chosen = |mode| select(&set, &preference(mode, &[]), NO_LIMIT);
        assert_eq!(chosen(Mode::Primary), [0]);
        assert_eq!(chosen(Mode::PrimaryPreferred), [0]);
        assert_eq!(chosen(Mode::Secondary), [1, 2]);
        assert_eq!(chosen(Mode::SecondaryPreferred), [1, 2]);
        assert_eq!(chosen(Mode::Nearest), [0, 1, 2]);
    }

    #[test]
    fn a_secondary_that_is_marked_as_demoted_is_not_selected() {
        let mut set = replica_set();
        let chosen = |set: &_, mode| select(set, &preference(mode, &[]), NO_LIMIT);
        assert_eq!(chosen(&set, Mode::Secondary), [1, 2]);
        set.servers[1].demoted_since = Some(Instant::now());
        assert_eq!(chosen(&set, Mode::Secondary), [2]);
        assert_eq!(chosen(&set, Mode::Nearest), [0, 2]);
    }

    #[test]
    fn primary_preferred_and_secondary_preferred_select_other_members_if_necessary() {
        let mut set = replica_set();
        set.servers[0].demoted_since = Some(Instant::now());
        let chosen = |mode| select(&set, &preference(mode, &[]), NO_LIMIT);
        assert!(chosen(Mode::Primary).is_empty());
        assert_eq!(chosen(Mode::PrimaryPreferred), [1, 2]);
        let mut alone = replica_set();
        alone.servers.truncate(1);
        let fallback = preference(Mode::SecondaryPreferred, &[&[("dc", "nowhere")]]);
        assert_eq!(select(&alone, &fallback, NO_LIMIT), [0]);
    }

    #[test]
    fn the_first_tag_set_that_matches_a_member_determines_the_selected_members() {
        let set = replica_set();
        let chosen =
            |mode, tags: &[&[(&str, &str)]]| select(&set, &preference(mode, tags), NO_LIMIT);
        assert_eq!(chosen(Mode::Secondary, &[&[("dc", "b")]]), [2]);
        assert_eq!(
            chosen(Mode::Secondary, &[&[("dc", "x")], &[("use", "report")]]),
            [1]
        );
        assert_eq!(chosen(Mode::Nearest, &[&[("dc", "a")]]), [0, 1]);
        assert!(chosen(Mode::Secondary, &[&[("dc", "x")]]).is_empty());
        assert_eq!(chosen(Mode::Secondary, &[&[("dc", "x")], &[]]), [1, 2]);
    }

    #[test]
    fn a_secondary_staler_than_the_maximum_is_not_selected() {
        let mut set = replica_set();
        set.servers[1].probe.last_write_ms = Some(1_000_000 - 85_000);
        let limited = ReadPreference {
            max_staleness: Some(Duration::from_secs(90)),
            ..preference(Mode::Secondary, &[])
        };
        assert_eq!(
            select(&set, &limited, NO_LIMIT),
            [2],
            "the lag of 85 s plus the heartbeat interval of 10 s exceeds 90 s"
        );
        set.servers[0].server_type = ServerType::Unknown;
        set.topology_type = TopologyType::ReplicaSetNoPrimary;
        assert_eq!(
            select(&set, &limited, NO_LIMIT),
            [2],
            "without a primary, the lag is relative to the secondary with the newest write"
        );
    }

    /// The servers are probed one after another, and the primary may write between two probes.
    #[test]
    fn the_time_between_the_probes_of_two_servers_counts_towards_the_staleness() {
        let mut set = replica_set();
        let limited = ReadPreference {
            max_staleness: Some(Duration::from_secs(90)),
            ..preference(Mode::Secondary, &[])
        };
        let primary_probed = set.servers[0].probe.last_update.unwrap();
        let later = primary_probed + Duration::from_secs(85);
        set.servers[1].probe.last_update = Some(later);
        assert_eq!(select(&set, &limited, NO_LIMIT), [2]);
        // The secondary has replicated the writes of these 85 seconds.
        set.servers[1].probe.last_write_ms = Some(1_000_000 + 85_000);
        assert_eq!(select(&set, &limited, NO_LIMIT), [1, 2]);
        // The last probe of the primary was also 85 seconds later than the probe of server 2, and
        // the primary has written in this time.
        set.servers[0].probe.last_update = Some(later);
        set.servers[0].probe.last_write_ms = Some(1_000_000 + 85_000);
        assert_eq!(select(&set, &limited, NO_LIMIT), [1, 2]);
    }

    #[test]
    fn a_secondary_of_unknown_staleness_is_not_selected_if_the_staleness_is_limited() {
        let mut set = replica_set();
        set.servers[1].probe.last_write_ms = None;
        let limited = ReadPreference {
            max_staleness: Some(Duration::from_secs(90)),
            ..preference(Mode::Secondary, &[])
        };
        assert_eq!(select(&set, &limited, NO_LIMIT), [2]);
        set.servers[0].probe.last_write_ms = None;
        assert!(select(&set, &limited, NO_LIMIT).is_empty());
        let any = preference(Mode::Secondary, &[]);
        assert_eq!(select(&set, &any, NO_LIMIT), [1, 2]);
    }

    #[test]
    fn only_servers_within_the_latency_window_are_selected() {
        let set = replica_set();
        let nearest = preference(Mode::Nearest, &[]);
        assert_eq!(select(&set, &nearest, Duration::from_millis(15)), [0, 1]);
        assert_eq!(select(&set, &nearest, Duration::ZERO), [0]);
    }

    /// `select_only` is a fast form of `select` for the usual cases.
    #[test]
    fn if_select_only_returns_a_server_select_returns_only_this_server() {
        let modes = [
            Mode::Primary,
            Mode::PrimaryPreferred,
            Mode::Secondary,
            Mode::SecondaryPreferred,
            Mode::Nearest,
        ];
        let types = [
            (TopologyType::Unknown, ServerType::Unknown),
            (TopologyType::Single, ServerType::Standalone),
            (TopologyType::Sharded, ServerType::Router),
            (TopologyType::ReplicaSetNoPrimary, ServerType::Secondary),
            (TopologyType::ReplicaSetWithPrimary, ServerType::Primary),
        ];
        let mut decided = 0;
        for (topology_type, server_type) in types {
            for (servers, suspects) in [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 2)] {
                let mut set = replica_set();
                set.topology_type = topology_type;
                set.servers = (0..servers)
                    .map(|n| server(n, server_type, 5, &[]))
                    .collect();
                for suspect in set.servers.iter_mut().take(suspects) {
                    suspect.failed_since = Some(Instant::now());
                }
                for mode in modes {
                    let preference = preference(mode, &[]);
                    if let Some(only) = select_only(&set, &preference) {
                        assert_eq!(select(&set, &preference, NO_LIMIT), [only]);
                        decided += 1;
                    }
                }
            }
        }
        // `select_only` can return a server for eleven pairs of topology type and mode: `Single`
        // and `Sharded` with each of the five modes, and `ReplicaSetWithPrimary` with `Primary`.
        // For each pair, three of the six lists of servers have exactly one usable server.
        assert_eq!(decided, 3 * (2 * 5 + 1));
    }

    #[test]
    fn servers_that_failed_since_their_last_successful_probe_are_not_selected() {
        let mut set = replica_set();
        set.servers[0].failed_since = Some(Instant::now());
        assert!(select(&set, &ReadPreference::PRIMARY, NO_LIMIT).is_empty());
        set.topology_type = TopologyType::Sharded;
        set.servers
            .iter_mut()
            .for_each(|s| s.server_type = ServerType::Router);
        assert_eq!(select(&set, &ReadPreference::PRIMARY, NO_LIMIT), [1, 2, 3]);
    }
}
