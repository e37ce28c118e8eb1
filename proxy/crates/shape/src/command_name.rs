//! The known commands: their hashed names, and which of their fields are part of a shape (the
//! clauses).

use super::bson::Field;
use super::clause::{self, Table};
use super::form::Word;
use seawall_command::table::{self, COMMANDS, CommandSpec, FirstField, Syntax};

/// The properties of a command that decide how its fingerprint is built.
#[derive(Copy, Clone, Debug)]
pub(super) struct KnownCommand {
    /// The canonical name of the command, with its hash.
    pub(super) name: Word,
    pub(super) syntax: Syntax,
    /// The kind of value that the first field may have.
    pub(super) first_field: FirstField,
}

impl KnownCommand {
    const fn of(spec: &CommandSpec) -> Self {
        let name = match spec.is_counted {
            true => spec.name,
            false => table::UNKNOWN.name,
        };
        Self {
            name: Word::new(name),
            syntax: spec.syntax,
            first_field: spec.first_field,
        }
    }

    /// The command's top-level fields that are part of its shape (the clauses).
    pub(super) fn clauses(&self) -> &'static Table {
        match self.syntax {
            Syntax::Find => &clause::FIND,
            Syntax::Aggregate => &clause::AGGREGATE,
            Syntax::Count => &clause::COUNT,
            Syntax::Distinct => &clause::DISTINCT,
            Syntax::MapReduce => &clause::MAP_REDUCE,
            Syntax::Update => &clause::UPDATE,
            Syntax::Delete => &clause::DELETE,
            Syntax::FindAndModify => &clause::FIND_AND_MODIFY,
            Syntax::CreateIndexes => &clause::CREATE_INDEXES,
            Syntax::GetMore
            | Syntax::BulkWrite
            | Syntax::Explain
            | Syntax::OnCollection
            | Syntax::Plain => &clause::NONE,
        }
    }
}

/// The command that the first field names; [`UNKNOWN`] if there is no such command.
#[inline]
pub(super) fn find(first: &Field<'_>) -> &'static KnownCommand {
    let position = table::position(first.name, first.head);
    position
        .and_then(|position| KNOWN.get(position))
        .unwrap_or(&UNKNOWN)
}

/// The entry for all unknown names.
pub(super) static UNKNOWN: KnownCommand = KnownCommand::of(&table::UNKNOWN);

/// The rows of [`COMMANDS`], with their names hashed at compile time.
static KNOWN: [KnownCommand; COMMANDS.len()] = known_commands();

#[expect(
    clippy::indexing_slicing,
    reason = "const code cannot call get; an index out of bounds fails the build"
)]
const fn known_commands() -> [KnownCommand; COMMANDS.len()] {
    let mut known = [KnownCommand::of(&table::UNKNOWN); COMMANDS.len()];
    let mut position = 0;
    while position < COMMANDS.len() {
        known[position] = KnownCommand::of(&COMMANDS[position]);
        position += 1;
    }
    known
}
