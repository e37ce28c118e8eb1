//! From started members to a replica set with a primary, and from there to the first user.

use std::net::SocketAddr;
use std::time::Duration;

use bson::{Document, doc};
use tokio::time::{Instant, sleep, timeout};

use super::control::run_command;
use super::error::Error;
use super::process::{Mongod, POLL_INTERVAL};

/// One member of a set that is to be initiated.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Started with the name of the set in its options.
    pub mongod: &'a Mongod,
    /// How much it is wished as a primary: 0 never, otherwise the higher the sooner.
    pub priority: u16,
    /// Names and values that a read preference can ask for.
    pub tags: Vec<(String, String)>,
    /// Whether it keeps data that no client sees; such a member needs priority 0.
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
    /// How often members ask each other.
    pub heartbeat_interval: Duration,
}

impl Default for Settings {
    /// mongod's own.
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(2),
        }
    }
}

/// Makes a replica set of `members` and waits until the most wished of them is primary (any of several
/// that are wished the same), all others are secondaries, and each signs the times that it gives to
/// clients.
///
/// Any member may win the first election, whatever its priority; a more wished one takes over about an
/// election timeout later, and would end what had begun.
///
/// No credentials are needed: a set that has no user yet obeys loopback. Returns the address of the
/// primary.
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
    run_command(first.mongod, "admin", command).await?;

    let highest = members.iter().map(|member| member.priority).max();
    let deadline = Instant::now() + COMPLETE_LIMIT;
    loop {
        let states = states(members).await;
        let is_complete = states.iter().all(|(_, state)| *state != State::Other);
        let primary = members
            .iter()
            .zip(&states)
            .find_map(|(member, (address, state))| {
                let stays = *state == State::Primary && Some(member.priority) == highest;
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

/// Makes the first user, with the role `root`, which ends what loopback may do without one.
///
/// `mongod` is a standalone or the primary of its set; a majority has the user when this returns.
pub async fn create_first_user(mongod: &Mongod, name: &str, password: &str) -> Result<(), Error> {
    let command = doc! {
        "createUser": name,
        "pwd": password,
        "roles": ["root"],
        "writeConcern": { "w": "majority" },
    };
    run_command(mongod, "admin", command).await.map(drop)
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
enum State {
    Primary,
    Secondary,
    /// Starting, copying data, electing, or not answering.
    Other,
}

async fn states(members: &[Member<'_>]) -> Vec<(SocketAddr, State)> {
    let mut states = Vec::with_capacity(members.len());
    for Member { mongod, .. } in members {
        // By its old name, which every version knows.
        let hello = run_command(mongod, "admin", doc! { "isMaster": 1 });
        let state = match timeout(HELLO_LIMIT, hello).await {
            // Until the set has made its keys, replies lack the time: two clients that ask the
            // same could see two things.
            Ok(Ok(reply)) if !reply.contains_key("$clusterTime") => State::Other,
            Ok(Ok(reply)) if has(&reply, "ismaster") => State::Primary,
            Ok(Ok(reply)) if has(&reply, "secondary") => State::Secondary,
            Ok(Ok(_) | Err(_)) | Err(_) => State::Other,
        };
        states.push((mongod.address(), state));
    }
    states
}

fn has(hello: &Document, name: &str) -> bool {
    matches!(hello.get_bool(name), Ok(true))
}

/// An initial sync of nothing takes seconds; a busy machine needs its patience.
const COMPLETE_LIMIT: Duration = Duration::from_secs(90);
const HELLO_LIMIT: Duration = Duration::from_secs(5);
