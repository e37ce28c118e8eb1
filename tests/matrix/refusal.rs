//! A driver that is too new for the server. Directly and through Seawall it must refuse with the
//! same error.

use std::process::Stdio;

use seawall_tests::mongod::unique_name;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};

use crate::{
    case::Case,
    language::Language,
    pair::Pair,
    program::{LIMIT, Program, call},
    rust,
};

/// Runs a language's program directly and through Seawall, and compares the first steps.
pub(crate) async fn compare_refusals(language: Language) {
    let program = language.prepare().await;
    let pair = Pair::start(false).await;
    let name = unique_name("refused");
    pair.create_user(&name, None).await;
    let direct = lines(&program, &pair.direct(&name, &Case::PLAIN), &name).await;
    let through = lines(&program, &pair.through(&name, &Case::PLAIN), &name).await;
    assert!(
        direct.iter().any(|line| line.contains("wire version")),
        "{language:?} supports the server: {direct:?}"
    );
    assert_eq!(direct, through, "{language:?}");
}

/// The first steps of a program, without addresses, because Seawall's address differs from those of
/// the set. Later steps may retry for minutes.
async fn lines(program: &Program, uri: &str, database: &str) -> Vec<String> {
    let lines = match program {
        Program::Rust => rust::run_status(uri, database).await,
        Program::Command {
            command,
            environment,
        } => {
            let mut command = call(command, environment, [uri, database, Case::PLAIN.api]);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let mut process = command.kill_on_drop(true).spawn().unwrap();
            let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
            let mut lines = Vec::new();
            while lines.len() < FIRST_STEPS {
                let line = timeout(LIMIT, output.next_line()).await.unwrap();
                lines.push(line.unwrap().expect("the program prints more steps"));
            }
            lines
        }
    };
    lines.iter().map(|line| without_addresses(line)).collect()
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

/// The number of compared steps. They contain reads and writes, but no transactions.
const FIRST_STEPS: usize = 10;
const LOOPBACK: &str = "127.0.0.1:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_removed_anywhere_in_a_line() {
        let line = "127.0.0.1:27017 is not 127.0.0.1:1, says [127.0.0.1:99]";
        let expected = "ADDRESS is not ADDRESS, says [ADDRESS]";
        assert_eq!(without_addresses(line), expected);
    }
}
