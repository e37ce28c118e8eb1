//! Drivers of four languages write while the primary is killed repeatedly. No acknowledged write
//! may be lost, and no application may see an error.

use std::{collections::BTreeSet, process::Stdio};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use seawall_tests::{
    eventually::eventually,
    failover::{LIMIT, Written, assert_stored, fail_over, kills, write},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    case::Case,
    language::Language,
    pair::{Pair, Target},
    program::{Program, call},
};

const NAME: &str = "failover";
const LANGUAGES: [Language; 4] = [
    Language::Python,
    Language::Node,
    Language::Go,
    Language::Rust,
];

/// A client with running writers.
enum Writing {
    Process {
        /// Dropping it kills the program.
        _process: Box<Child>,
        stdin: ChildStdin,
        lines: Lines<BufReader<ChildStdout>>,
    },
    Here {
        stop: watch::Sender<bool>,
        writing: JoinHandle<(Written, Client)>,
        /// Keeps the connections open until the test has counted them.
        client: Option<Client>,
    },
}

impl Writing {
    fn begin(program: Program, language: Language, uri: &str) -> Self {
        let name = format!("{language:?}");
        let Program::Command {
            command,
            environment,
        } = program
        else {
            let (stop, over) = watch::channel(false);
            let uri = uri.to_owned();
            let writing = async move {
                let client = Client::with_uri_str(&uri).await.unwrap();
                let written = write(&client, NAME, &name, over).await;
                (written, client)
            };
            return Self::Here {
                stop,
                writing: tokio::spawn(writing),
                client: None,
            };
        };
        let mut command = call(&command, &environment, [uri, NAME, &name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self::Process {
            stdin: process.stdin.take().unwrap(),
            _process: Box::new(process),
            lines,
        }
    }

    /// Stops the writers. The client stays connected.
    async fn end(&mut self) -> Written {
        match self {
            Self::Process { stdin, lines, .. } => {
                stdin.write_all(b"end\n").await.unwrap();
                let line = timeout(LIMIT, lines.next_line()).await.unwrap();
                let line = line.unwrap().expect("the program prints what it wrote");
                serde_json::from_str(&line).unwrap()
            }
            Self::Here {
                stop,
                writing,
                client,
            } => {
                stop.send_replace(true);
                let (written, its) = timeout(LIMIT, writing).await.unwrap().unwrap();
                *client = Some(its);
                written
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs Go: cargo test --test matrix -- --include-ignored"]
async fn four_drivers_survive_killed_primaries_without_errors_or_lost_writes() {
    let mut pair = Pair::start(false).await;
    pair.create_user(NAME, None).await;
    let uri = format!(
        "{}&w=majority",
        pair.uri(NAME, &Case::PLAIN, Target::Seawall)
    );
    let mut writing = Vec::new();
    for language in LANGUAGES {
        let program = language.prepare_writers().await;
        writing.push((language, Writing::begin(program, language, &uri)));
    }
    let direct = pair.set.client().await.unwrap();
    for language in LANGUAGES {
        let things = direct.database(NAME).collection::<Document>("things");
        let of_it = doc! {"_id": {"$regex": format!("^{language:?} ")}};
        let writes = async || things.count_documents(of_it.clone()).await.unwrap() > 20;
        eventually(LIMIT, writes).await.unwrap();
    }
    let began = Instant::now();
    let Pair { set, seawall } = &mut pair;
    let inserts = async || {
        let command = ["command=\"insert\"", "outcome=\"ok\""];
        seawall.metric("seawall_operations_total", &command).await
    };
    for _ in 0..kills() {
        fail_over(set, &inserts).await;
    }
    let mut acknowledged = BTreeSet::new();
    for (language, client) in &mut writing {
        let written = client.end().await;
        let failed = written.failed;
        assert!(failed.is_empty(), "{language:?}: {failed:?}");
        report(&format!("{language:?}"), written.acknowledged.len());
        acknowledged.extend(written.acknowledged);
    }
    let took = began.elapsed().as_secs();
    report(
        &format!("{} kills in {took} s, all", kills()),
        acknowledged.len(),
    );
    assert_stored(set, NAME, &acknowledged).await;
    seawall.assert_all_connected().await;
}

/// Prints the numbers that `docs/faults.md` quotes. Visible with `--nocapture`.
#[expect(clippy::print_stdout, reason = "the test's own report")]
fn report(of: &str, writes: usize) {
    println!("{of}: {writes} documents inserted, changed and read back");
}
