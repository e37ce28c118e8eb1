//! Checks that a server runs only the command that Seawall recognizes in a message.
//!
//! Three decisions of Seawall depend on a command's name: whether Seawall itself replies, whether a
//! client may send the command before a login, and how the operation is served. These decisions
//! would be wrong if the server found a different command in the message. So the tests send a real
//! server thousands of messages that no driver would send. The server's counters
//! (`serverStatus().metrics.commands`) show which command the server ran.
//!
//! The messages are made by changing one part of a command, several parts, or single bytes
//! (`corpus.rs`, `twists.rs`).

mod corpus;
mod draft;
mod exchange;
mod message;
mod strangers;
mod twists;
mod view;

use std::collections::BTreeSet;

use bson::doc;
use seawall_command::table::find;
use seawall_tests::{
    mongod::{Options, Standalone},
    raw::RawClient,
};
use tokio::sync::OnceCell;

use self::{
    corpus::FIRST_ID,
    exchange::{Counters, Sender},
    strangers::request_id,
    twists::{SPECULATIVE, X509},
    view::{ALIASES, UNKNOWN, View, Vocabulary},
};

/// The reasons for which Seawall refuses messages that a server accepts, each with a description of
/// these messages.
const STRICTER: &[(&str, &str)] = &[
    (
        "database_not_utf8",
        "an OP_QUERY to a database whose name is not UTF-8",
    ),
    (
        "dollar_name",
        "an OP_QUERY that begins with `$queryOptions`, which a server ignores, or with a `$query` that is an array",
    ),
    (
        "invalid_database",
        "a database name with `$` or not in UTF-8: MongoDB forbids it, but a server accepts it",
    ),
    (
        "query_of_other_type",
        "an OP_QUERY with a `query` that is an array",
    ),
];

/// A message, and the reaction of a server.
struct ParserCase {
    message: Vec<u8>,
    /// The commands that ran, according to the server's counters.
    ran: Vec<String>,
    /// The database in the reply's namespace; `None` if the reply has no namespace.
    database: Option<String>,
}

/// Starts a server for one test only, so that its counters count no commands of other tests.
async fn start_server(auth: bool) -> Standalone {
    let refresh = ("disableLogicalSessionCacheRefresh", "true");
    let options = Options {
        auth,
        parameters: vec![(refresh.0.to_owned(), refresh.1.to_owned())],
        ..Options::default()
    };
    Standalone::start(options).await.unwrap()
}

/// The commands of a server. They are read without a driver, because current drivers refuse MongoDB
/// 4.2.
async fn vocabulary(server: &Standalone) -> Vocabulary {
    let mut client = RawClient::connect(server.address()).await.unwrap();
    let listed = client.command("admin", doc! { "listCommands": 1 }).await;
    let listed = listed.unwrap().body;
    let commands = listed.get_document("commands").unwrap();
    Vocabulary::new(commands.keys().cloned())
}

/// All messages of [`corpus`], each with the commands that a server without access control ran when
/// it got the message. Also returns the names of all commands of this server.
async fn cases() -> &'static (Vocabulary, Vec<ParserCase>) {
    static CASES: OnceCell<(Vocabulary, Vec<ParserCase>)> = OnceCell::const_new();
    let run = || async {
        let server = start_server(false).await;
        let mut counters = Counters::of(server.address(), None).await;
        let mut sender = Sender::to(server.address());
        let mut cases = Vec::new();
        for message in corpus::messages() {
            let reaction = sender.send(&message).await;
            cases.push(ParserCase {
                ran: counters.changed(&reaction).await,
                database: reaction.database().map(str::to_owned),
                message,
            });
        }
        (vocabulary(&server).await, cases)
    };
    CASES.get_or_init(run).await
}

/// Most messages are commands in which parts or bytes were changed. No driver would send them.
#[tokio::test]
async fn a_server_runs_the_command_that_seawall_finds_in_the_same_message() {
    let (vocabulary, cases) = cases().await;
    let mut differences = Vec::new();
    let mut refused = BTreeSet::new();
    let mut agreed = 0;
    for case in cases.iter().filter(|case| !case.ran.is_empty()) {
        match View::of(&case.message) {
            // The server ran nothing, because it did not know the command. Seawall is allowed to
            // refuse this message.
            View::Refused(_) if case.ran == [UNKNOWN] => {}
            View::Refused(reason) => {
                refused.insert(reason);
            }
            View::Command { name, database } => {
                let is_same = case.ran == [vocabulary.counted_as(&name)];
                let ran_in = case.database.as_ref();
                if is_same && ran_in.is_none_or(|ran_in| *ran_in == database) {
                    agreed += 1;
                } else {
                    let name = name.escape_ascii();
                    let message = case.message.escape_ascii();
                    differences.push(format!(
                        "the server ran {:?} in {ran_in:?}, Seawall found {name} in {database}: {message}",
                        case.ran
                    ));
                }
            }
        }
    }
    let count = cases.len();
    assert!(
        differences.is_empty(),
        "Seawall and the server differ in some of {count} messages:\n{}",
        differences.join("\n")
    );
    let explained: BTreeSet<_> = STRICTER.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(refused, explained);
    assert!(
        agreed > 3000,
        "expected over 3000 messages in which Seawall found the command that ran, got {agreed} of {count}"
    );
}

/// Commands that the test of pooled mode ignores. Seawall, [`Sender`] and [`Counters`] also send
/// these commands to the server. So the server's counters do not show if a test message ran them.
const COUNTED_OTHERWISE: &[&str] = &[
    "buildInfo",
    "connectionStatus",
    "getParameter",
    "hello",
    "isMaster",
    "ping",
    "serverStatus",
];

/// Most messages are commands in which parts or bytes were changed. No driver would send them.
#[tokio::test]
async fn a_message_that_pooled_mode_forwards_runs_the_same_command_as_without_seawall() {
    let (_, cases) = cases().await;
    let server = start_server(false).await;
    let (seawall, recorder) = strangers::recorded(&server, "pooled").await;
    let mut counters = Counters::of(server.address(), None).await;
    let mut sender = Sender::to(seawall.address().parse().unwrap());
    for case in cases {
        let reaction = sender.send(&case.message).await;
        let mut ran = counters.changed(&reaction).await;
        let mut expected = case.ran.clone();
        for names in [&mut ran, &mut expected] {
            names.retain(|name| !COUNTED_OTHERWISE.contains(&name.as_str()));
        }
        let message = case.message.escape_ascii();
        assert!(
            ran.is_empty() || ran == expected,
            "the server ran {ran:?}, expected {expected:?}: {message}"
        );
    }
    let count = strangers::forwarded(&recorder).len();
    assert!(
        count > 2000,
        "expected more than 2000 forwarded messages, got {count} of {}",
        cases.len()
    );
}

/// Most messages are commands in which parts or bytes were changed. No driver would send them.
#[tokio::test]
async fn a_message_that_relay_mode_forwards_runs_the_command_that_seawall_finds_in_it() {
    let (vocabulary, cases) = cases().await;
    let server = start_server(false).await;
    let (seawall, recorder) = strangers::recorded(&server, "relay").await;
    let mut sender = Sender::to(seawall.address().parse().unwrap());
    for case in cases {
        sender.send(&case.message).await;
    }
    let forwarded = strangers::forwarded(&recorder);
    let run = cases.iter().filter(|case| !case.ran.is_empty());
    let mut count = 0;
    for case in run.filter(|case| forwarded.contains(&request_id(&case.message))) {
        let message = case.message.escape_ascii();
        let View::Command { name, .. } = View::of(&case.message) else {
            panic!(
                "the server ran {:?}, although Seawall cannot parse the message: {message}",
                case.ran
            );
        };
        assert_eq!(case.ran, [vocabulary.counted_as(&name)], "{message}");
        assert!(!is_x509_login(case), "{message}");
        count += 1;
    }
    assert!(
        count > 3000,
        "expected more than 3000 forwarded messages, got {count} of {}",
        cases.len()
    );
}

/// True if the command is a login with MONGODB-X509. On a connection from Seawall, the server sees
/// Seawall's certificate, so the client would log in as Seawall.
fn is_x509_login(case: &ParserCase) -> bool {
    let contains = |part| contains(&case.message, part);
    match case.ran[0].as_str() {
        "authenticate" => true,
        "hello" | "isMaster" => contains(SPECULATIVE) && contains(X509),
        _ => false,
    }
}

fn contains(bytes: &[u8], part: &str) -> bool {
    let mut windows = bytes.windows(part.len());
    windows.any(|window| window == part.as_bytes())
}

#[test]
fn seawall_classifies_each_alias_like_its_command() {
    for (alias, command) in ALIASES {
        let classes = [alias, command].map(|name| find(name.as_bytes()).class);
        assert_eq!(classes[0], classes[1], "{alias}");
    }
}
