//! Clients without a login: the commands that servers run for them, and checks that Seawall
//! forwards no other command.

use std::collections::BTreeSet;

use seawall_tests::{
    mongod::{ROOT, ROOT_PASSWORD, Standalone},
    raw::{Header, Login},
    recorder::Recorder,
    seawall::Seawall,
};

use super::{
    ALIASES, Counters, FIRST_ID, Sender, Vocabulary, cases,
    draft::Draft,
    exchange::{FENCE_ID, Reaction},
    start_server,
    view::UNKNOWN,
    vocabulary,
};

/// The commands that a server runs before a login. The names are those in the server's counters.
/// Each row says if Seawall in relay mode forwards the command.
const RUN_BEFORE_LOGIN: &[(&str, Relay)] = &[
    (
        "_isSelf",
        Relay::Refuses("only members of a set send this command"),
    ),
    (
        "authenticate",
        Relay::Refuses("an X.509 login would use Seawall's certificate"),
    ),
    ("buildInfo", Relay::Forwards),
    ("configureFailPoint", Relay::Refuses(FOR_TESTS)),
    ("connectionStatus", Relay::Forwards),
    ("echo", Relay::Refuses(FOR_TESTS)),
    (
        "getLastError",
        Relay::Refuses("servers since 5.1 always reply with an error"),
    ),
    ("getnonce", Relay::Forwards),
    ("hello", Relay::Forwards),
    ("isMaster", Relay::Forwards),
    (
        "listCommands",
        Relay::Refuses("no driver sends this command"),
    ),
    ("pinHistoryReplicated", Relay::Refuses(FOR_TESTS)),
    ("ping", Relay::Forwards),
    ("refreshLogicalSessionCacheNow", Relay::Refuses(FOR_TESTS)),
    (
        "resetError",
        Relay::Refuses("no supported driver sends this command, which MongoDB 5.0 does not have"),
    ),
    ("saslContinue", Relay::Forwards),
    ("saslStart", Relay::Forwards),
    ("testDeprecation", Relay::Refuses(FOR_TESTS)),
    ("waitForFailPoint", Relay::Refuses(FOR_TESTS)),
    ("waitForOngoingChunkSplits", Relay::Refuses(FOR_TESTS)),
    ("whatsmyuri", Relay::Forwards),
];

/// The reason why Seawall in relay mode refuses a command that only test servers have.
const FOR_TESTS: &str = "only test servers have this command";

/// The commands that Seawall in relay mode forwards before a login. The names are those that
/// clients send.
const FORWARDED_BY_RELAY: &[&str] = &[
    "buildInfo",
    "buildinfo",
    "connectionStatus",
    "getnonce",
    "hello",
    "isMaster",
    "ismaster",
    // The server under test refuses this command before a login. Older servers run it.
    "logout",
    "ping",
    "saslContinue",
    "saslStart",
    "whatsmyuri",
];

/// The commands that Seawall itself sends to a server while no client is logged in. The names are
/// those in the server's counters. Servers before 5.0 count the hello of Seawall as `isMaster`.
const SENT_BY_SEAWALL: &[&str] = &[
    "buildInfo",
    "hello",
    "isMaster",
    "ping",
    "saslContinue",
    "saslStart",
    "serverStatus",
];

/// The reaction of Seawall in relay mode to a command before a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    Forwards,
    /// Seawall refuses the command. The text gives the reason.
    Refuses(&'static str),
}

/// The error codes with which a server refuses a command without running it.
const REFUSALS: [i64; 3] = [
    UNAUTHORIZED,
    COMMAND_NOT_FOUND,
    UNSUPPORTED_OP_QUERY_COMMAND,
];
const UNAUTHORIZED: i64 = 13;
const COMMAND_NOT_FOUND: i64 = 59;
const UNSUPPORTED_OP_QUERY_COMMAND: i64 = 352;

/// Starts Seawall in front of a server, with a recorder between Seawall and the server.
pub(super) async fn recorded(server: &Standalone, mode: &str) -> (Seawall, Recorder) {
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let toml = format!("deployment.mode = {mode:?}\nauth.authentication_timeout_ms = 600_000");
    (Seawall::start_configured(&uri, &toml).await, recorder)
}

/// The request ids of messages that the test sent and that reached the server.
pub(super) fn forwarded(recorder: &Recorder) -> BTreeSet<i32> {
    let connections = recorder.connections();
    assert!(
        connections
            .iter()
            .all(|connection| !connection.is_truncated)
    );
    let messages = connections.iter().flat_map(|c| c.messages_from_client());
    let ids = messages.map(request_id);
    ids.filter(|id| (FIRST_ID..FENCE_ID).contains(id)).collect()
}

pub(super) fn request_id(message: &[u8]) -> i32 {
    Header::parse(message).unwrap().request_id
}

fn root() -> Login {
    Login::new("admin", ROOT, ROOT_PASSWORD)
}

/// The commands whose counters have changed since the test last read the server's counters. Unlike
/// [`Counters::changed`], this function also returns `connectionStatus`, which [`Sender::send`]
/// adds after each message.
async fn changed(counters: &mut Counters) -> BTreeSet<String> {
    let without_fence = Reaction {
        is_closed: true,
        ..Reaction::default()
    };
    counters.changed(&without_fence).await.into_iter().collect()
}

/// Messages with each command and alias of a server. Each name is sent by OP_MSG and by OP_QUERY,
/// unchanged and in changed spellings. Each message comes with the name that it contains.
fn every_command(vocabulary: &Vocabulary) -> Vec<(String, Vec<u8>)> {
    let mut names = BTreeSet::new();
    for name in vocabulary
        .names()
        .chain(ALIASES.iter().map(|(alias, _)| *alias))
    {
        let (first, rest) = name.split_at(1);
        names.extend([
            name.to_owned(),
            name.to_lowercase(),
            name.to_uppercase(),
            format!("{}{rest}", first.to_uppercase()),
            format!("{name} "),
        ]);
    }
    let mut commands = Vec::new();
    for name in names {
        for draft in [Draft::msg(&name), Draft::query(&name)] {
            let id = FIRST_ID + i32::try_from(commands.len()).unwrap();
            commands.push((name.clone(), draft.to_bytes(id)));
        }
    }
    commands
}

/// `run_before_login` is the constant [`RUN_BEFORE_LOGIN`], a list of commands.
#[tokio::test]
async fn the_constant_run_before_login_lists_all_commands_that_a_server_runs_before_a_login() {
    let server = start_server(true).await;
    let vocabulary = vocabulary(&server).await;
    let mut counters = Counters::of(server.address(), Some(&root())).await;
    let mut sender = Sender::to(server.address());
    let mut run = BTreeSet::new();
    for (name, message) in every_command(&vocabulary) {
        let reaction = sender.send(&message).await;
        let counted = counters.changed(&reaction).await;
        let command = vocabulary.counted_as(name.as_bytes());
        let is_counted = counted.iter().any(|counted| counted == command);
        assert!(counted.is_empty() || is_counted, "{name}: {counted:?}");
        assert!(!reaction.is_closed, "{name}");
        if reaction.code() == Some(UNAUTHORIZED) {
            assert_ne!(command, UNKNOWN, "{name}: an alias that is not listed");
        }
        let is_refused = reaction.code().is_some_and(|code| REFUSALS.contains(&code));
        if !is_refused {
            run.insert(command.to_owned());
        } else if is_counted {
            assert_eq!(
                command, UNKNOWN,
                "{name}: the server refused the command, but counted it"
            );
        }
    }
    // No version of the server has all commands of `RUN_BEFORE_LOGIN`. The commands that this
    // server does not have are skipped.
    let has = |name: &&str| vocabulary.names().any(|known| known == *name);
    let known = RUN_BEFORE_LOGIN.iter().map(|(name, _)| *name).filter(has);
    let known: BTreeSet<_> = known.map(str::to_owned).collect();
    assert_eq!(run, known);
    for (name, relay) in RUN_BEFORE_LOGIN {
        let is_listed = FORWARDED_BY_RELAY.contains(name);
        assert_eq!(*relay == Relay::Forwards, is_listed, "{name}: {relay:?}");
    }
}

/// `forwarded_by_relay` is the constant [`FORWARDED_BY_RELAY`], a list of commands.
#[tokio::test]
async fn before_a_login_relay_mode_forwards_exactly_the_commands_in_forwarded_by_relay() {
    let server = start_server(true).await;
    let commands = every_command(&vocabulary(&server).await);
    let (seawall, recorder) = recorded(&server, "relay").await;
    let mut sender = Sender::to(seawall.address().parse().unwrap());
    for (_, message) in &commands {
        sender.send(message).await;
    }
    let forwarded = forwarded(&recorder);
    for (name, message) in &commands {
        let is_listed = FORWARDED_BY_RELAY.contains(&name.as_str());
        let was_forwarded = forwarded.contains(&request_id(message));
        assert_eq!(
            was_forwarded,
            is_listed,
            "{name}: {}",
            message.escape_ascii()
        );
    }
}

/// `forwarded_by_relay` is the constant [`FORWARDED_BY_RELAY`], a list of commands.
#[tokio::test]
async fn before_a_login_in_relay_mode_a_server_runs_only_commands_in_forwarded_by_relay() {
    let (vocabulary, cases) = cases().await;
    let server = start_server(true).await;
    let (seawall, recorder) = recorded(&server, "relay").await;
    let mut counters = Counters::of(server.address(), Some(&root())).await;
    let mut sender = Sender::to(seawall.address().parse().unwrap());
    for case in cases {
        sender.send(&case.message).await;
    }
    let forwarded = forwarded(&recorder);
    let listed: BTreeSet<_> = FORWARDED_BY_RELAY
        .iter()
        .map(|name| vocabulary.counted_as(name.as_bytes()).to_owned())
        .collect();
    let mut run = BTreeSet::new();
    for case in cases {
        if forwarded.contains(&request_id(&case.message)) {
            let is_listed = case.ran.iter().all(|name| listed.contains(name));
            assert!(is_listed, "{:?}: {}", case.ran, case.message.escape_ascii());
            run.extend(case.ran.iter().cloned());
        }
    }
    assert_eq!(run, listed, "a listed command was not forwarded");
    let others: Vec<_> = changed(&mut counters)
        .await
        .difference(&listed)
        .cloned()
        .collect();
    assert_eq!(others, Vec::<String>::new());
}

#[tokio::test]
async fn before_a_login_no_message_reaches_a_server_in_pooled_mode() {
    let (_, cases) = cases().await;
    let server = start_server(true).await;
    let commands = every_command(&vocabulary(&server).await);
    let (seawall, recorder) = recorded(&server, "pooled").await;
    let mut counters = Counters::of(server.address(), Some(&root())).await;
    let mut sender = Sender::to(seawall.address().parse().unwrap());
    let commands = commands.iter().map(|(_, message)| message);
    for message in commands.chain(cases.iter().map(|case| &case.message)) {
        sender.send(message).await;
    }
    assert_eq!(forwarded(&recorder), BTreeSet::new());
    let mut others = changed(&mut counters).await;
    others.retain(|name| !SENT_BY_SEAWALL.contains(&name.as_str()));
    assert_eq!(others, BTreeSet::new());
}
