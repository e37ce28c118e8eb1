//! Runs the test program of one programming language and reads its output.

use std::{ffi::OsString, path::Path, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::rust;

/// The way to run the test program of a language.
#[derive(Debug)]
pub(crate) enum Program {
    /// An external program: the command and its first arguments.
    Command {
        command: Vec<OsString>,
        environment: Vec<(&'static str, OsString)>,
    },
    /// The Rust driver's program, in this process.
    Rust,
}

impl Program {
    /// An external program that needs no additional environment variables.
    pub(crate) fn command<const N: usize>(command: [&Path; N]) -> Self {
        Self::Command {
            command: command.map(|part| part.as_os_str().to_owned()).to_vec(),
            environment: Vec::new(),
        }
    }

    /// Adds these arguments to the command. The program gets them before the arguments of
    /// [`Program::run`].
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        if let Self::Command { command, .. } = &mut self {
            command.extend(arguments.iter().map(Into::into));
        }
        self
    }

    /// Runs the program and returns all of its steps. In their outcomes, `DATABASE` replaces the
    /// database's name.
    pub(crate) async fn run(&self, uri: &str, database: &str, api: &str) -> Vec<Step> {
        let lines = match self {
            // The future is boxed, because it is larger than the lint `large_futures` allows.
            Self::Rust => Box::pin(rust::run(uri, database, api)).await,
            Self::Command {
                command,
                environment,
            } => {
                let mut command = call(command, environment, [uri, database, api]);
                let lines = output(&mut command).await;
                lines.lines().map(str::to_owned).collect()
            }
        };
        // Each run has its own database. The outcomes must not differ because of its name.
        let lines = lines.iter().map(|line| line.replace(database, "DATABASE"));
        lines.map(|line| Step::parse(&line)).collect()
    }
}

/// Builds the command of a program, with the three arguments that every program takes: the
/// connection string, the database, and the API (or the client's name, for a program that writes
/// during failures).
pub(crate) fn call(
    command: &[OsString],
    environment: &[(&'static str, OsString)],
    arguments: [&str; 3],
) -> Command {
    let (program, first) = command.split_first().unwrap();
    let mut command = Command::new(program);
    command.args(first).args(arguments);
    command.envs(environment.iter().cloned());
    command
}

/// One step of a program, parsed from one line of the program's output.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// `{"value": …}` or `{"error": …}`.
    pub(crate) outcome: Value,
}

impl Step {
    fn parse(line: &str) -> Self {
        let mut outcome: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let name = outcome
            .as_object_mut()
            .and_then(|fields| fields.remove("step"));
        let Some(Value::String(name)) = name else {
            panic!("a line without the name of its step: {line}");
        };
        Self { name, outcome }
    }
}

/// Runs a command and returns its output. Panics if the command fails or exceeds the time limit.
pub(crate) async fn output(command: &mut Command) -> String {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(LIMIT, running).await;
    let output = output.unwrap_or_else(|_| panic!("{command:?} exceeded the time limit"));
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{command:?}: {}: {err}\n{out}",
        output.status
    );
    out.into_owned()
}

/// Time limit of a command: enough for an installation over a slow connection, or a program on a
/// busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);
