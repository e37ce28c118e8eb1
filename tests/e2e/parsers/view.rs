//! Runs Seawall's parser on a message.

use std::collections::BTreeSet;

use seawall_command::{Command, InspectError};
use seawall_wire::{OpCode, OpMsg, OpQuery};

/// The aliases of commands, each with the name under which a server counts it.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("availablequeryoptions", "availableQueryOptions"),
    ("buildinfo", "buildInfo"),
    ("collstats", "collStats"),
    ("connpoolsync", "connPoolSync"),
    ("datasize", "dataSize"),
    ("dbhash", "dbHash"),
    ("dbstats", "dbStats"),
    ("deleteIndexes", "dropIndexes"),
    ("findandmodify", "findAndModify"),
    ("flushrouterconfig", "flushRouterConfig"),
    ("getlasterror", "getLastError"),
    ("ismaster", "isMaster"),
    ("mapreduce", "mapReduce"),
    ("reseterror", "resetError"),
];

/// The name under which a server counts unknown commands.
pub(super) const UNKNOWN: &str = "<UNKNOWN>";

/// The result of Seawall's parser for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// A command of this name on this database.
    Command { name: Vec<u8>, database: String },
    /// The message is not forwarded: Seawall replies with an error, or closes the client's
    /// connection.
    Refused(&'static str),
}

impl View {
    pub(super) fn of(message: &[u8]) -> Self {
        let op_code = message.get(12..16).and_then(|bytes| bytes.try_into().ok());
        match op_code.map(i32::from_le_bytes).map(OpCode::from) {
            Some(OpCode::Msg) => Self::of_msg(message),
            Some(OpCode::Query) => Self::of_query(message),
            other => panic!("expected an OP_MSG or OP_QUERY, got {other:?}"),
        }
    }

    fn of_msg(message: &[u8]) -> Self {
        let parsed = match OpMsg::parse(message) {
            Ok(parsed) => parsed,
            Err(error) => return Self::Refused(error.reason()),
        };
        // Before Seawall forwards a large message, it parses only the first part. It must find the
        // same body there.
        if let Ok(head) = OpMsg::parse_head(message) {
            assert_eq!(head.body, parsed.body, "{}", message.escape_ascii());
        }
        Self::inspected(Command::inspect(parsed.body))
    }

    fn of_query(message: &[u8]) -> Self {
        let Some(query) = OpQuery::parse(message) else {
            return Self::Refused("op_query");
        };
        let Some(database) = query.command_database() else {
            return Self::Refused("legacy_read");
        };
        let Ok(database) = std::str::from_utf8(database) else {
            return Self::Refused("database_not_utf8");
        };
        let command = Command::inspect_legacy(query.query, database);
        // In pooled mode, Seawall replies to every OP_QUERY itself, and replies with an error to a
        // command whose name is `query` or begins with `$`. A relay closes the connection.
        match command {
            Ok(Command { name: b"query", .. }) => Self::Refused("query_of_other_type"),
            Ok(Command { name, .. }) if name.starts_with(b"$") => Self::Refused("dollar_name"),
            command => Self::inspected(command),
        }
    }

    fn inspected(command: Result<Command<'_>, InspectError>) -> Self {
        match command {
            Ok(command) => Self::Command {
                name: command.name.to_vec(),
                database: command.db.to_owned(),
            },
            Err(error) => Self::Refused(match error {
                InspectError::Bson(_) => "bson",
                InspectError::EmptyCommand => "empty_command",
                InspectError::NoDatabase => "no_database",
                InspectError::DatabaseNotString => "database_not_string",
                InspectError::InvalidDatabase => "invalid_database",
                InspectError::DuplicateDatabase => "duplicate_database",
            }),
        }
    }
}

/// The names of a server's commands.
#[derive(Clone, Debug)]
pub(super) struct Vocabulary {
    commands: BTreeSet<String>,
}

impl Vocabulary {
    /// `commands` are the names in a server's reply to `listCommands`.
    pub(super) fn new(commands: impl IntoIterator<Item = String>) -> Self {
        let commands = commands.into_iter().collect();
        Self { commands }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.commands.iter().map(String::as_str)
    }

    /// The name under which a server counts the command that a client calls `name`.
    pub(super) fn counted_as(&self, name: &[u8]) -> &str {
        let Ok(name) = std::str::from_utf8(name) else {
            return UNKNOWN;
        };
        let mut aliases = ALIASES.iter();
        let alias = aliases.find(|(alias, _)| *alias == name);
        let name = alias.map_or(name, |(_, command)| command);
        self.commands.get(name).map_or(UNKNOWN, String::as_str)
    }
}
