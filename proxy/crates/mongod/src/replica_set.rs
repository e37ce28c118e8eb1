//! Initiates a replica set, and creates its first user.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use bson::{Document, doc};
use tokio::time::{Instant, sleep, timeout};

use super::error::Error;
use super::process::{Mongod, POLL_INTERVAL};

/// The configuration of one member of a new replica set.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The mongod. Its options must have the name of the set.
    pub mongod: &'a Mongod,
    /// The election priority. 0 means that the member never becomes primary; the member with the
    /// highest priority is preferred.
    pub priority: u16,
    /// Tags that a read preference can select, as names and values.
    pub tags: Vec<(String, String)>,
    /// True if the member is hidden from clients. A hidden member needs priority 0.
    pub is_hidden: bool,
}

impl<'a> Member<'a> {
    /// A visible member with priority 1 and without tags.
    pub fn new(mongod: &'a Mongod) -> Self {
        Self {
            mongod,
            priority: 1,
            tags: Vec::new(),
            is_hidden: false,
        }
    }
}

/// The time settings of a replica set, which decide how fast it notices a failed member.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaSetSettings {
    /// How long members wait without a primary before they elect a new one.
    pub election_timeout: Duration,
    /// Interval of the heartbeats between members.
    pub heartbeat_interval: Duration,
}

impl Default for ReplicaSetSettings {
    /// mongod's defaults.
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(2),
        }
    }
}

/// Initiates a replica set of `members`. Waits until a member with the highest priority is primary,
/// all others are secondaries, and the replies of all members have a `$clusterTime`.
///
/// The set begins with one member, which becomes primary immediately. The other members are added
/// afterwards. If the first configuration contained all members, the first election would take an
/// election timeout, and any member could win it.
///
/// Needs no credentials, because a set without users accepts commands over loopback. Returns the
/// address of the primary.
pub async fn initiate_replica_set(
    members: &[Member<'_>],
    settings: ReplicaSetSettings,
) -> Result<SocketAddr, Error> {
    let indexed = members.iter().enumerate().rev();
    // If several members have the highest priority, `max_by_key` returns the last one of them in
    // `indexed`. `indexed` is in reverse order, so this is the first one of them in `members`.
    let preferred = indexed.max_by_key(|(_, member)| member.priority);
    let (index, first) = preferred.ok_or(Error::NotAMember)?;
    let set = first
        .mongod
        .options()
        .replica_set
        .as_deref()
        .ok_or(Error::NotAMember)?;
    let deadline = Instant::now() + COMPLETE_LIMIT;
    let alone = configuration(set, members, index..=index, settings);
    let initiate = doc! { "replSetInitiate": alone };
    first.mongod.run_command("admin", initiate).await?;
    if members.len() > 1 {
        wait_until_writable(first.mongod, deadline).await?;
        let all = configuration(set, members, 0..=members.len() - 1, settings);
        let reconfigure = doc! { "replSetReconfig": all, "force": true };
        first.mongod.run_command("admin", reconfigure).await?;
    }

    let highest = members.iter().map(|member| member.priority).max();
    loop {
        let states = states(members).await;
        let is_complete = states.iter().all(|(_, state)| *state != MemberState::Other);
        let primary = members
            .iter()
            .zip(&states)
            .find_map(|(member, (address, state))| {
                let is_final = *state == MemberState::Primary && Some(member.priority) == highest;
                is_final.then_some(*address)
            });
        if let Some(address) = primary.filter(|_| is_complete) {
            return Ok(address);
        }
        if Instant::now() >= deadline {
            return Err(Error::SetIncomplete {
                set: set.to_owned(),
                limit: COMPLETE_LIMIT,
                state: shown_states(&states),
            });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Creates the first user, with the role `root`. If mongod runs with `auth`, clients on loopback
/// must authenticate as soon as this user exists.
///
/// `mongod` must be a standalone server or the primary of its set. In a set, this function returns
/// when a majority of the members has the user.
pub async fn create_first_user(mongod: &Mongod, name: &str, password: &str) -> Result<(), Error> {
    let command = doc! {
        "createUser": name,
        "pwd": password,
        "roles": ["root"],
        "writeConcern": { "w": "majority" },
    };
    mongod.run_command("admin", command).await.map(drop)
}

/// Waits until the only member of a set is primary.
async fn wait_until_writable(mongod: &Mongod, deadline: Instant) -> Result<(), Error> {
    loop {
        let reply = mongod.run_command("admin", doc! { "isMaster": 1 }).await?;
        if has(&reply, "ismaster") {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::SetIncomplete {
                set: mongod.options().replica_set.clone().unwrap_or_default(),
                limit: COMPLETE_LIMIT,
                state: reply.to_string(),
            });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The configuration of a set that contains only the members at these `indexes`.
fn configuration(
    set: &str,
    members: &[Member<'_>],
    indexes: RangeInclusive<usize>,
    settings: ReplicaSetSettings,
) -> Document {
    let members = (0_i32..).zip(members).enumerate();
    let members = members.filter(|(index, _)| indexes.contains(index));
    let members = members.map(|(_, (id, member))| {
        let tags = member
            .tags
            .iter()
            .map(|(name, value)| (name.clone(), value.into()));
        doc! {
            "_id": id,
            "host": member.mongod.address().to_string(),
            "priority": i32::from(member.priority),
            "tags": tags.collect::<Document>(),
            "hidden": member.is_hidden,
        }
    });
    doc! {
        "_id": set,
        "version": 1,
        "members": members.collect::<Vec<_>>(),
        "settings": {
            "electionTimeoutMillis": milliseconds(settings.election_timeout),
            "heartbeatIntervalMillis": milliseconds(settings.heartbeat_interval),
        },
    }
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    Primary,
    Secondary,
    /// Any other state. For example, the member is starting, is copying data, or does not reply.
    Other,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
            Self::Other => "not ready",
        })
    }
}

fn shown_states(states: &[(SocketAddr, MemberState)]) -> String {
    let states = states.iter();
    let shown = states.map(|(address, state)| format!("{address} is {state}"));
    shown.collect::<Vec<_>>().join(", ")
}

async fn states(members: &[Member<'_>]) -> Vec<(SocketAddr, MemberState)> {
    let mut states = Vec::with_capacity(members.len());
    for Member { mongod, .. } in members {
        // Servers of all versions know `isMaster`, the old name of `hello`.
        let hello = mongod.run_command("admin", doc! { "isMaster": 1 });
        let state = match timeout(HELLO_LIMIT, hello).await {
            // Until the set has keys for cluster times, its replies have no `$clusterTime`. Such a
            // set does not count as complete, because its replies change when the keys exist.
            Ok(Ok(reply)) if !reply.contains_key("$clusterTime") => MemberState::Other,
            Ok(Ok(reply)) if has(&reply, "ismaster") => MemberState::Primary,
            Ok(Ok(reply)) if has(&reply, "secondary") => MemberState::Secondary,
            Ok(Ok(_) | Err(_)) | Err(_) => MemberState::Other,
        };
        states.push((mongod.address(), state));
    }
    states
}

fn has(hello: &Document, name: &str) -> bool {
    matches!(hello.get_bool(name), Ok(true))
}

/// Time limit until a new set has a primary and all its other members are secondaries. An initial
/// sync without data takes a few seconds, and more time on a busy machine.
const COMPLETE_LIMIT: Duration = Duration::from_secs(90);
const HELLO_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_shown_with_the_addresses_of_the_members() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let states = [
            (address(1), MemberState::Primary),
            (address(2), MemberState::Other),
        ];
        assert_eq!(
            shown_states(&states),
            "127.0.0.1:1 is primary, 127.0.0.1:2 is not ready"
        );
    }
}
