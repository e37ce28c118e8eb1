use std::collections::BTreeSet;

use seawall_wire::head_of;

use super::*;

/// The names and aliases of all commands for which `has_property` returns true.
fn names(has_property: impl Fn(&CommandSpec) -> bool) -> BTreeSet<&'static str> {
    let rows = COMMANDS.iter().filter(|command| has_property(command));
    rows.flat_map(names_of).collect()
}

fn names_of(command: &'static CommandSpec) -> impl Iterator<Item = &'static str> {
    let aliases = command.aliases.iter().copied();
    [command.name].into_iter().chain(aliases)
}

#[test]
fn each_command_name_and_alias_is_unique_and_finds_its_table_row() {
    let mut seen = BTreeSet::new();
    for command in COMMANDS {
        for name in names_of(command) {
            assert!(seen.insert(name), "{name} occurs twice");
            assert!(std::ptr::eq(find(name.as_bytes()), command), "{name}");
        }
    }
    assert_eq!(find(b"findandmodify").name, "findAndModify");
    assert_eq!(find(b"deleteIndexes").name, "dropIndexes");
}

#[test]
fn names_that_differ_from_a_command_name_in_case_or_length_are_unknown() {
    let long = "x".repeat(1000);
    for name in ["", "Find", "findx", "fin", "find\0", "<unknown>", &long] {
        assert!(std::ptr::eq(find(name.as_bytes()), &UNKNOWN), "{name}");
        assert_eq!(position(name.as_bytes(), head_of(name.as_bytes())), None);
    }
    // Both names have the same first eight bytes.
    let sessions = ["killAllSessions", "killAllSessionsByPattern"];
    for name in sessions {
        assert_eq!(find(name.as_bytes()).name, name);
    }
    assert_eq!(find(b"killAllSessionsBy").name, UNKNOWN.name);
}

#[test]
fn head_of_a_command_name_is_its_first_eight_bytes() {
    for length in 0..20 {
        let name: Vec<u8> = (0..length).map(|byte| 0x81 + byte).collect();
        let mut first = [0; 8];
        for (to, from) in first.iter_mut().zip(&name) {
            *to = *from;
        }
        assert_eq!(head_of(&name), u64::from_le_bytes(first), "{length}");
    }
}

/// A relay is a server connection that serves only one client.
#[test]
fn a_relay_forwards_only_the_handshake_and_harmless_commands_such_as_ping_before_a_login() {
    let expected = [
        "buildInfo",
        "buildinfo",
        "connectionStatus",
        "getnonce",
        "hello",
        "isMaster",
        "ismaster",
        "logout",
        "ping",
        "saslContinue",
        "saslStart",
        "whatsmyuri",
    ];
    let passing = names(|command| command.passes_relay_before_login);
    assert_eq!(passing, BTreeSet::from(expected));
    assert!(!UNKNOWN.passes_relay_before_login);
}

/// The table says `Refusal` also for handshake commands such as `hello`. Their class decides their
/// replies.
#[test]
fn only_the_listed_commands_get_a_reply_other_than_a_refusal_before_a_login() {
    let expected = [
        "buildInfo",
        "buildinfo",
        "connectionStatus",
        "getLastError",
        "getlasterror",
        "ping",
    ];
    let replied = names(|command| command.reply_before_login != ReplyBeforeLogin::Refusal);
    assert_eq!(replied, BTreeSet::from(expected));
    assert_eq!(UNKNOWN.reply_before_login, ReplyBeforeLogin::Refusal);
}

/// If Seawall pools connections, it replies to handshake commands itself.
#[test]
fn only_the_listed_commands_are_handshake_commands() {
    let expected = [
        "authenticate",
        "getnonce",
        "hello",
        "isMaster",
        "ismaster",
        "logout",
        "saslContinue",
        "saslStart",
        "whatsmyuri",
    ];
    let handshakes = names(|command| matches!(command.class, Class::Handshake(_)));
    assert_eq!(handshakes, BTreeSet::from(expected));
}

#[test]
fn only_saslstart_and_authenticate_begin_a_login() {
    let beginning = names(|command| command.class.begins_login());
    assert_eq!(beginning, BTreeSet::from(["authenticate", "saslStart"]));
    assert!(!UNKNOWN.class.begins_login());
}

#[test]
fn only_committransaction_and_aborttransaction_end_a_transaction() {
    let of_class = |class: Class| names(|command| command.class == class);
    let commits = of_class(Class::CommitTransaction);
    assert_eq!(commits, BTreeSet::from(["commitTransaction"]));
    let aborts = of_class(Class::AbortTransaction);
    assert_eq!(aborts, BTreeSet::from(["abortTransaction"]));
    let ending = names(|command| command.class.ends_transaction());
    assert_eq!(ending, &commits | &aborts);
}

/// The expected commands are those in the list of the compression specification, with their
/// aliases.
#[test]
fn commands_with_credentials_are_never_compressed() {
    let expected = [
        "authenticate",
        "copydb",
        "copydbSaslStart",
        "copydbgetnonce",
        "copydbsaslstart",
        "createUser",
        "getnonce",
        "hello",
        "isMaster",
        "ismaster",
        "saslContinue",
        "saslStart",
        "updateUser",
    ];
    let plain = names(|command| !command.may_be_compressed);
    assert_eq!(plain, BTreeSet::from(expected));
}

/// The slow log and captures never contain the values of a secret command.
#[test]
fn only_commands_with_credentials_unknown_commands_and_three_others_are_secret() {
    let mut expected = names(|command| !command.may_be_compressed);
    expected.extend(["currentOp", "setParameter", "usersInfo"]);
    assert_eq!(names(|command| command.is_secret), expected);
    assert!(UNKNOWN.is_secret);
}

#[test]
fn only_the_listed_commands_are_reads() {
    let expected = [
        "buildInfo",
        "buildinfo",
        "collStats",
        "collstats",
        "connectionStatus",
        "count",
        "dbStats",
        "dbstats",
        "distinct",
        "find",
        "listCollections",
        "listDatabases",
        "listIndexes",
        "ping",
    ];
    let reads = names(|command| command.class == Class::Read);
    assert_eq!(reads, BTreeSet::from(expected));
    assert_eq!(UNKNOWN.class, Class::Other);
}

#[test]
fn only_the_listed_commands_end_other_work() {
    let expected = [
        "abortTransaction",
        "commitTransaction",
        "endSessions",
        "fsyncUnlock",
        "killAllSessions",
        "killAllSessionsByPattern",
        "killCursors",
        "killOp",
        "killSessions",
    ];
    let ending = names(|command| command.ends_work);
    assert_eq!(ending, BTreeSet::from(expected));
    assert!(!UNKNOWN.ends_work);
}

#[test]
fn only_the_listed_commands_run_on_any_member_without_a_read_preference() {
    let expected = [
        "buildInfo",
        "buildinfo",
        "connectionStatus",
        "endSessions",
        "ping",
        "refreshSessions",
        "startSession",
    ];
    let anywhere = names(|command| command.runs_on_any_member);
    assert_eq!(anywhere, BTreeSet::from(expected));
    assert!(!UNKNOWN.runs_on_any_member);
}

/// Statements are the writes that a command contains. Seawall can forward a streamed command before
/// all of its bytes have arrived.
#[test]
fn only_write_commands_have_statements_and_only_commands_with_statements_are_streamed() {
    for command in COMMANDS {
        let has_statements = command.statements != Statements::None;
        assert!(!has_statements || command.class == Class::Write);
        // Seawall counts the statements of a streamed command while they arrive.
        let is_streamed = command.streaming != Streaming::Never;
        assert!(!is_streamed || command.statements.field().is_some());
    }
}

/// A replay must never send a command that changes users, servers or the deployment.
#[test]
fn only_the_listed_commands_are_replayed() {
    let expected = [
        "abortTransaction",
        "aggregate",
        "buildInfo",
        "buildinfo",
        "bulkWrite",
        "cloneCollectionAsCapped",
        "collMod",
        "collStats",
        "collstats",
        "commitTransaction",
        "connectionStatus",
        "convertToCapped",
        "count",
        "create",
        "createIndexes",
        "dbStats",
        "dbstats",
        "delete",
        "deleteIndexes",
        "distinct",
        "drop",
        "dropDatabase",
        "dropIndexes",
        "explain",
        "find",
        "findAndModify",
        "findandmodify",
        "getMore",
        "insert",
        "killCursors",
        "listCollections",
        "listDatabases",
        "listIndexes",
        "mapReduce",
        "mapreduce",
        "ping",
        "renameCollection",
        "update",
    ];
    let replayed = names(|command| command.is_replayed);
    assert_eq!(replayed, BTreeSet::from(expected));
    assert!(!UNKNOWN.is_replayed);
}
