//! Test clients in four languages that write documents with their driver. Each client records which
//! of its writes were acknowledged.

use std::{collections::BTreeSet, process::Stdio};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use seawall_tests::{
    eventually::eventually,
    failover::{LIMIT, Written, write},
    mongod::ReplicaSet,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use crate::{
    language::Language,
    program::{Program, call},
};

const LANGUAGES: [Language; 4] = [
    Language::Python,
    Language::Node,
    Language::Go,
    Language::Rust,
];

/// A running test client. Several of its threads or tasks write documents at the same time.
pub(crate) enum Writing {
    Process {
        /// The writing program. Dropping this value kills the program.
        _process: Box<Child>,
        stdin: ChildStdin,
        lines: Lines<BufReader<ChildStdout>>,
    },
    Here {
        stop: watch::Sender<bool>,
        writing: JoinHandle<(Written, Client)>,
        /// `None` while the client still writes. After the client has stopped writing, it is kept
        /// here, because dropping it would close its connections before the test has counted them.
        client: Option<Client>,
    },
}

impl Writing {
    fn begin(program: Program, language: Language, uri: &str, database: &str) -> Self {
        let name = format!("{language:?}");
        let Program::Command {
            command,
            environment,
        } = program
        else {
            let (stop, over) = watch::channel(false);
            let (uri, database) = (uri.to_owned(), database.to_owned());
            let writing = async move {
                let client = Client::with_uri_str(&uri).await.unwrap();
                let written = write(&client, &database, &name, over).await;
                (written, client)
            };
            return Self::Here {
                stop,
                writing: tokio::spawn(writing),
                client: None,
            };
        };
        let mut command = call(&command, &environment, [uri, database, &name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self::Process {
            stdin: process.stdin.take().unwrap(),
            _process: Box::new(process),
            lines,
        }
    }

    /// Stops the threads or tasks that write documents, and returns their results. The client stays
    /// connected.
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

/// Starts one test client per language, with the connection string that `uri` returns for the
/// language. All clients write documents to the collection `things`.
pub(crate) async fn begin_all(
    uri: impl Fn(Language) -> String,
    database: &str,
) -> Vec<(Language, Writing)> {
    let mut writing = Vec::new();
    for language in LANGUAGES {
        let program = language.prepare_writers().await;
        let uri = uri(language);
        writing.push((language, Writing::begin(program, language, &uri, database)));
    }
    writing
}

/// Waits until the client of each language has inserted more than 20 documents.
pub(crate) async fn all_write(set: &ReplicaSet, database: &str) {
    let direct = set.client().await.unwrap();
    for language in LANGUAGES {
        let things = direct.database(database).collection::<Document>("things");
        let of_it = doc! {"_id": {"$regex": format!("^{language:?} ")}};
        let writes = async || things.count_documents(of_it.clone()).await.unwrap() > 20;
        eventually(LIMIT, writes).await.unwrap();
    }
}

/// Makes all clients stop writing, checks that none of them has seen an error, and returns the ids
/// of the acknowledged documents. The clients stay connected.
pub(crate) async fn end_all(writing: &mut [(Language, Writing)]) -> BTreeSet<String> {
    let mut acknowledged = BTreeSet::new();
    for (language, client) in writing {
        let written = client.end().await;
        let failed = written.failed;
        assert!(failed.is_empty(), "{language:?}: {failed:?}");
        let count = written.acknowledged.len();
        report(&format!(
            "{language:?}: {count} documents inserted, changed and read back"
        ));
        acknowledged.extend(written.acknowledged);
    }
    acknowledged
}

/// Prints the numbers that `docs/faults.md` quotes. Visible with `--nocapture`.
#[expect(clippy::print_stdout, reason = "the test's own report")]
pub(crate) fn report(line: &str) {
    println!("{line}");
}
