//! A driver whose version is too new for the server. It must refuse the server with the same error
//! directly and through Seawall.

use std::process::Stdio;

use seawall_tests::mongod::unique_name;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::Child,
    time::timeout,
};

use crate::{
    case::Case,
    language::Language,
    pair::{SharedPair, Target},
    program::{LIMIT, Program, call},
    rust,
};

/// Runs a language's test program directly and through Seawall, and compares the first steps.
pub(crate) async fn compare_refusals(language: Language) {
    let program = language.prepare().await;
    let pair = SharedPair::start_shared(false).await;
    let name = unique_name("refused");
    pair.create_user(&name, None).await;
    let (direct, through) = tokio::join!(
        lines(&program, pair.uri(&name, &CASE, Target::Servers), &name),
        lines(&program, pair.uri(&name, &CASE, Target::Seawall), &name),
    );
    assert!(
        direct.iter().any(|line| line.contains("wire version")),
        "expected the driver of {language:?} to refuse the server: {direct:?}"
    );
    assert_eq!(direct, through, "{language:?}");
}

/// The server selection timeout is short, because some drivers report the refusal only after this
/// timeout.
const CASE: Case = Case {
    parameters: "&serverSelectionTimeoutMS=10000",
    ..Case::PLAIN
};

/// Runs a program and returns the output of its first steps, without addresses, because Seawall and
/// the set have different addresses. Later steps are not read, because the driver may retry them
/// for minutes.
async fn lines(program: &Program, uri: String, database: &str) -> Vec<String> {
    let lines = match program {
        Program::Rust => rust::run_status(&uri, database).await,
        Program::Command {
            command,
            environment,
        } => {
            let mut command = call(command, environment, [&uri, database, CASE.api]);
            command.stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let process = command.kill_on_drop(true).spawn().unwrap();
            timeout(LIMIT, first_lines(process)).await.unwrap()
        }
    };
    lines.iter().map(|line| without_addresses(line)).collect()
}

/// The first [`FIRST_STEPS`] lines of a program's output. If the program ends with fewer lines, its
/// standard error and exit status follow.
async fn first_lines(mut process: Child) -> Vec<String> {
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut stderr = process.stderr.take().unwrap();
    // Standard error is read at the same time, so that a full pipe never blocks the program.
    let errors = tokio::spawn(async move {
        let mut errors = String::new();
        stderr.read_to_string(&mut errors).await.map(|_| errors)
    });
    let mut lines = Vec::new();
    while lines.len() < FIRST_STEPS {
        let Some(line) = output.next_line().await.unwrap() else {
            lines.push(errors.await.unwrap().unwrap());
            lines.push(process.wait().await.unwrap().to_string());
            break;
        };
        lines.push(line);
    }
    lines
}

fn without_addresses(line: &str) -> String {
    let mut parts = line.split(LOOPBACK);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("ADDRESS");
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    text
}

/// The number of steps that are compared. They contain reads and writes, but no transactions.
const FIRST_STEPS: usize = 10;
const LOOPBACK: &str = "127.0.0.1:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_replaced_anywhere_in_a_line() {
        let line = "127.0.0.1:27017 is not 127.0.0.1:1, says [127.0.0.1:99]";
        let expected = "ADDRESS is not ADDRESS, says [ADDRESS]";
        assert_eq!(without_addresses(line), expected);
    }
}
