//! The exit status of a command, and its messages.

use std::{
    io::{self, Write},
    process::ExitCode,
};

/// The exit status of the process. Numbers from 64 to 78 have the meaning that `sysexits.h`
/// defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Success,
    /// A usage or configuration error.
    Usage,
    /// Something required is unavailable: the deployment, an address, a file.
    Unavailable,
    /// An internal error.
    Internal,
    /// A run of `seawall load` or a comparison of replays missed an objective.
    Missed,
    /// Interrupted by a signal.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Success => 0,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::Internal => 70,
            Exit::Missed => 1,
            Exit::Interrupted => 130,
        })
    }
}

/// Prints a message on standard error and returns `exit`.
pub fn complain(message: &str, exit: Exit) -> Exit {
    // Ignore an error: if standard error is closed, the message cannot be shown anywhere.
    drop(writeln!(io::stderr().lock(), "seawall: {message}"));
    exit
}

/// Prints a line on standard output.
pub fn say(line: &str) {
    // Ignore an error: a reader that closed the pipe needs no more output.
    drop(writeln!(io::stdout().lock(), "{line}"));
}
