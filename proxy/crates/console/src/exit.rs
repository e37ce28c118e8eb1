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
    /// A run of `seawall load` or a comparison of replays missed an objective, or a replay stopped
    /// early.
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

/// Prints a line about the progress of a command on standard output. The results of a command are
/// printed with [`print()`] and [`print_line`].
pub fn say(line: &str) {
    // Ignore an error, because the command can continue without this line.
    drop(writeln!(io::stdout().lock(), "{line}"));
}

/// Prints the result of a command on standard output. Returns the exit status: if the result cannot
/// be written, for example because the disk is full, an error message is printed and the status is
/// [`Exit::Unavailable`].
#[must_use]
pub fn print(result: &str) -> Exit {
    let mut output = io::stdout().lock();
    let written = output.write_all(result.as_bytes());
    match written.and_then(|()| output.flush()) {
        // Ignore a closed pipe, because its reader needs no more output.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => complain(
            &format!("cannot write to standard output: {error}"),
            Exit::Unavailable,
        ),
        _ => Exit::Success,
    }
}

/// Like [`print()`], and adds a line break.
#[must_use]
pub fn print_line(result: &str) -> Exit {
    print(&format!("{result}\n"))
}
