//! The table of commands: everything that Seawall knows about a command from its name.
//!
//! Each command is one row of [`COMMANDS`], with its aliases. Other modules find the row and read
//! its properties; they keep no lists of commands. Unknown names have the row [`UNKNOWN`].
//!
//! This module does not parse commands. It compares names as servers do: upper and lower case
//! differ.

mod lookup;
mod rows;
mod spec;

#[cfg(test)]
mod tests;

pub use self::{
    lookup::{find, position},
    rows::{COMMANDS, UNKNOWN},
    spec::{
        Class, CommandSpec, FirstField, Handshake, ReplyBeforeLogin, ReplyForm, Statements,
        Streaming, Syntax,
    },
};
