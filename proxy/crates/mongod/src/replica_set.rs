//! Initiates a replica set of started members, and creates the first user.

use std::net::SocketAddr;
use std::time::Duration;

use bson::{Document, doc};
use tokio::time::{Instant, sleep, timeout};

use super::error::Error;
use super::process::{Mongod, POLL_INTERVAL};

/// One member of a set that is to be initiated.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The process, started with the name of the set in its options.
    pub mongod: &'a Mongod,
    /// The member's election priority: 0 means that it never becomes primary, and the highest is
    /// preferred.
    pub priority: u16,
    /// Names and values that a read preference can ask for.
    pub tags: Vec<(String, String)>,
    /// True if clients do not see the member; such a member needs priority 0.
    pub is_hidden: bool,
}

impl<'a> Member<'a> {
    /// An ordinary member.
    pub fn new(mongod: &'a Mongod) -> Self {
        Self {
            mongod,
            priority: 1,
            tags: Vec::new(),
            is_hidden: false,
        }
    }
}

/// How fast a set notices that a member is gone.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long members wait for a primary before they elect another.
    pub election_timeout: Duration,
    /// Time between two heartbeats of a member.
    pub heartbeat_interval: Duration,
}

impl Default for Settings {
    /// mongod's defaults.
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(2),
        }
    }
}

/// Initiates a replica set of `members`. Waits until a member with the highest priority is primary,
/// all others are secondaries, and the replies of each have a `$clusterTime`.
///
/// Any member may win the first election, whatever its priority. A member with a higher priority
/// takes over about one election timeout later, which would interrupt operations that had begun.
///
/// No credentials are needed: a set without users accepts commands over loopback. Returns the
/// address of the primary.
pub async fn initiate_replica_set(
    members: &[Member<'_>],
    settings: Settings,
) -> Result<SocketAddr, Error> {
    let first = members.first().ok_or(Error::NotAMember)?;
    let set = first
        .mongod
        .options()
        .replica_set
        .as_deref()
        .ok_or(Error::NotAMember)?;
    let command = doc! { "replSetInitiate": configuration(set, members, settings) };
    first.mongod.run_command("admin", command).await?;

    let highest = members.iter().map(|member| member.priority).max();
    let deadline = Instant::now() + COMPLETE_LIMIT;
    loop {
        let states = states(members).await;
        let is_complete = states.iter().all(|(_, state)| *state != MemberState::Other);
        let primary = members
            .iter()
            .zip(&states)
            .find_map(|(member, (address, state))| {
                let stays = *state == MemberState::Primary && Some(member.priority) == highest;
                stays.then_some(*address)
            });
        if let Some(address) = primary.filter(|_| is_complete) {
            return Ok(address);
        }
        if Instant::now() >= deadline {
            return Err(Error::SetIncomplete {
                set: set.to_owned(),
                limit: COMPLETE_LIMIT,
                state: format!("{states:?}"),
            });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Creates the first user, with the role `root`. From then on, loopback has no special rights.
///
/// `mongod` is a standalone or the primary of its set; a majority has the user when this returns.
pub async fn create_first_user(mongod: &Mongod, name: &str, password: &str) -> Result<(), Error> {
    let command = doc! {
        "createUser": name,
        "pwd": password,
        "roles": ["root"],
        "writeConcern": { "w": "majority" },
    };
    mongod.run_command("admin", command).await.map(drop)
}

fn configuration(set: &str, members: &[Member<'_>], settings: Settings) -> Document {
    let members = (0_i32..).zip(members).map(|(id, member)| {
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
    /// Starting, copying data, electing, or not replying.
    Other,
}

async fn states(members: &[Member<'_>]) -> Vec<(SocketAddr, MemberState)> {
    let mut states = Vec::with_capacity(members.len());
    for Member { mongod, .. } in members {
        // The legacy name of `hello`, which every version knows.
        let hello = mongod.run_command("admin", doc! { "isMaster": 1 });
        let state = match timeout(HELLO_LIMIT, hello).await {
            // Until the set has made its keys, replies lack `$clusterTime`: two clients with the
            // same command could get different replies.
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

/// An initial sync without data takes seconds, and longer on a busy machine.
const COMPLETE_LIMIT: Duration = Duration::from_secs(90);
const HELLO_LIMIT: Duration = Duration::from_secs(5);
