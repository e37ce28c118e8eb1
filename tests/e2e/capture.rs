//! Captures of the traffic between the official driver and a mongod with access control.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use bson::{Document, doc};
use futures_util::TryStreamExt as _;
use mongodb::{
    Client,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use prost::Message as _;
use seawall_api::{Capture, Captures};
use seawall_capture::{
    Reader,
    record::{
        ClientBegan, Command, Content, EndReason, Header, OmissionReason, Outcome, Record, Reply,
        ReplyDetail,
    },
};
use seawall_locks::Mutex;
use seawall_tests::{
    mongod::{NewUser, ROOT, ROOT_PASSWORD, create_user, shared_replica_set, unique_name},
    process::{self, Process},
    raw::Login,
    scratch::Scratch,
    seawall::Seawall,
};
use seawall_wire::OpMsg;

use super::scene;

/// Starts Seawall with a directory for captures in `scratch`. `keys` are additional keys of the
/// section `[capture]`.
pub(super) async fn capturing(scratch: &Scratch, keys: &str) -> Seawall {
    scene::seawall(&section(scratch, keys)).await
}

pub(super) fn section(scratch: &Scratch, keys: &str) -> String {
    let directory = scratch.join("captures");
    format!("[capture]\ndirectory = {directory:?}\n{keys}\n")
}

/// Requests a capture of 60 s. `members` is text that is added to the JSON object of the request.
/// Returns the HTTP status and the body of the response.
pub(super) async fn try_start(seawall: &Seawall, members: &str) -> (u16, String) {
    let json = format!(r#"{{ "duration_ms": 60000{members} }}"#);
    seawall.post("/api/v1/captures", &json).await
}

/// The contents of a capture: the headers of its files, and its records.
pub(super) struct Read {
    /// The header of each file of the capture (`part-00000.swc`, `part-00001.swc` and so on).
    pub(super) headers: Vec<Header>,
    pub(super) records: Vec<Content>,
}

impl Read {
    /// Reads all parts of a capture from its directory.
    pub(super) fn from(scratch: &Scratch, id: &str) -> Self {
        let folder = scratch.join("captures").join(id);
        let mut bytes = Vec::new();
        for part in 0.. {
            match fs::read(folder.join(format!("part-{part:05}.swc"))) {
                Ok(part) => bytes.extend(part),
                Err(_) => break,
            }
        }
        Self::from_bytes(&bytes)
    }

    /// Reads all parts from bytes that contain one part after another.
    pub(super) fn from_bytes(mut bytes: &[u8]) -> Self {
        let mut read = Self {
            headers: Vec::new(),
            records: Vec::new(),
        };
        while !bytes.is_empty() {
            let mut reader = Reader::new(&mut bytes).unwrap();
            let part = reader.header().part;
            assert_eq!(usize::try_from(part).unwrap(), read.headers.len());
            read.headers.push(reader.header().clone());
            while let Some(record) = reader.next_record().unwrap() {
                read.records.push(record);
            }
        }
        read
    }

    fn clients(&self) -> Vec<&ClientBegan> {
        let began = self.records.iter().filter_map(|record| match record {
            Content::ClientBegan(client) => Some(client),
            _ => None,
        });
        began.collect()
    }

    pub(super) fn commands(&self) -> Vec<&Command> {
        let commands = self.records.iter().filter_map(|record| match record {
            Content::Command(command) => Some(command),
            _ => None,
        });
        commands.collect()
    }

    fn reply_of(&self, command: &Command) -> &Reply {
        let mut replies = self.records.iter().filter_map(|record| match record {
            Content::Reply(reply) if reply.operation == command.operation => Some(reply),
            _ => None,
        });
        replies
            .next()
            .expect("each captured command has a record of its reply")
    }

    fn omitted(&self, reason: OmissionReason) -> u64 {
        let omitted = self.records.iter().filter_map(|record| match record {
            Content::Omitted(omitted) if omitted.reason == i32::from(reason) => {
                Some(omitted.operations)
            }
            _ => None,
        });
        omitted.sum()
    }

    pub(super) fn end(&self) -> EndReason {
        match self.records.last() {
            Some(Content::End(end)) => EndReason::try_from(end.reason).unwrap(),
            last => panic!("{last:?}"),
        }
    }

    /// True if any record contains the text.
    pub(super) fn contains(&self, text: &str) -> bool {
        assert!(!text.is_empty());
        self.records.iter().any(|content| {
            let bytes = Record::from(content.clone()).encode_to_vec();
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        })
    }
}

/// The body of a message.
fn body(message: &[u8]) -> Document {
    let parsed = OpMsg::parse(message).unwrap();
    Document::from_reader(parsed.body).unwrap()
}

fn request_id(message: &[u8]) -> i32 {
    i32::from_le_bytes(message[4..8].try_into().unwrap())
}

/// The events that the driver reports about its commands.
#[derive(Debug, Default)]
struct Events {
    /// For each connection of the driver, the request ids and the names of its commands, in order.
    started: BTreeMap<u32, Vec<(i32, String)>>,
    /// Replies by request id.
    replies: BTreeMap<i32, Document>,
}

/// A client of the driver, and the events of its commands. `options` are appended to the options of
/// its connection string.
async fn observed(
    seawall: &Seawall,
    user: &NewUser,
    options: &str,
) -> (Client, Arc<Mutex<Events>>) {
    let events = Arc::<Mutex<Events>>::default();
    let seen = Arc::clone(&events);
    let uri = format!(
        "mongodb://{}:{}@{}/?authSource={}&appName=workload{options}",
        user.name,
        user.password,
        seawall.address(),
        user.db
    );
    let mut options = ClientOptions::parse(uri).await.unwrap();
    options.command_event_handler = Some(EventHandler::callback(move |event| match event {
        CommandEvent::Started(event) => {
            let mut events = seen.lock();
            let started = events.started.entry(event.connection.id).or_default();
            started.push((event.request_id, event.command_name));
        }
        CommandEvent::Succeeded(event) => {
            seen.lock().replies.insert(event.request_id, event.reply);
        }
        _ => {}
    }));
    (Client::with_options(options).unwrap(), events)
}

/// Runs inserts, finds, updates and aggregations in four concurrent tasks, so that the driver uses
/// several connections.
async fn work(client: &Client, db: &str) {
    let tasks = (0..4).map(|task| async move {
        let collection = client
            .database(db)
            .collection::<Document>(&format!("c{task}"));
        for round in 0..10 {
            let documents = (0..20).map(|number| doc! { "round": round, "number": number });
            collection.insert_many(documents).await.unwrap();
            let found = collection.find(doc! { "round": round }).batch_size(7);
            let found: Vec<_> = found.await.unwrap().try_collect().await.unwrap();
            assert_eq!(found.len(), 20);
            let set = doc! { "$set": { "done": true } };
            let filter = doc! { "round": round, "number": { "$lt": 5 } };
            collection.update_many(filter, set).await.unwrap();
            let pipeline = [doc! { "$group": { "_id": "$done", "count": { "$sum": 1 } } }];
            let groups = collection.aggregate(pipeline).await.unwrap();
            let groups: Vec<_> = groups.try_collect().await.unwrap();
            assert_eq!(groups.len(), 2);
        }
        let duplicate = doc! { "_id": 1 };
        collection.insert_one(&duplicate).await.unwrap();
        collection.insert_one(&duplicate).await.unwrap_err();
    });
    futures_util::future::join_all(tasks).await;
}

#[tokio::test]
async fn a_capture_has_each_clients_commands_in_the_order_of_sending_and_their_replies() {
    for compression in ["", "&compressors=zstd"] {
        let scratch = Scratch::create().unwrap();
        let seawall = capturing(&scratch, "").await;
        let user = scene::writer().await;
        let id = seawall.start_capture(r#", "replies": "whole""#).await;
        let (client, events) = observed(&seawall, &user, compression).await;
        work(&client, &user.name).await;
        let ended = seawall.stop_capture(&id).await;
        let read = Read::from(&scratch, &id);
        let events = events.lock();

        let all: usize = events.started.values().map(Vec::len).sum();
        assert_eq!(read.commands().len(), all);
        assert_eq!(ended.operations, u64::try_from(all).unwrap());
        assert_eq!(
            (ended.end.as_deref(), ended.omitted.len()),
            (Some("stopped"), 0)
        );
        assert_eq!(read.end(), EndReason::Stopped);
        let mut captured: BTreeMap<u64, Vec<(i32, String)>> = BTreeMap::new();
        for command in read.commands() {
            let document = body(&command.message);
            let name = document.keys().next().unwrap().clone();
            let request_id = request_id(&command.message);
            let of_client = captured.entry(command.client).or_default();
            of_client.push((request_id, name));
            let reply = read.reply_of(command);
            assert_eq!(reply.outcome, i32::from(Outcome::Replied));
            assert!(reply.at_us >= command.at_us && reply.duration_us > 0);
            if let Some(expected) = events.replies.get(&request_id) {
                assert_eq!(&body(&reply.message), expected);
                assert_eq!(reply.bytes, u64::try_from(reply.message.len()).unwrap());
            }
            let facts = reply.facts.as_ref().unwrap();
            assert!(facts.ok);
        }
        let failed = read.commands().into_iter().filter(|command| {
            let facts = read.reply_of(command).facts.as_ref().unwrap();
            (facts.write_errors, facts.write_error_code) == (1, 11000)
        });
        assert_eq!(failed.count(), 4);
        let sorted = |lists: Vec<Vec<(i32, String)>>| {
            let mut lists = lists;
            lists.sort();
            lists
        };
        let sent: Vec<_> = events.started.values().cloned().collect();
        let captured: Vec<_> = captured.into_values().collect();
        assert_eq!(sorted(captured), sorted(sent));
        for client in read.clients() {
            assert_eq!(client.application, "workload");
            assert_eq!(client.user, format!("admin.{}", user.name));
            assert!(
                client.driver.starts_with("mongo-rust-driver "),
                "{client:?}"
            );
            assert!(!client.was_active);
        }
    }
}

#[tokio::test]
async fn passwords_and_scram_keys_are_never_written_to_a_capture() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let id = seawall.start_capture(r#", "replies": "whole""#).await;
    let name = unique_name("admin");
    let admin = NewUser::new("admin", &name, "hunter2-own").role("root", "admin");
    create_user(&scene::root().await, &admin).await.unwrap();
    let client = seawall.client(&name, "hunter2-own", "admin").await;
    let database = client.database("admin");
    let other = unique_name("other");
    let create = doc! { "createUser": &other, "pwd": "hunter2-new", "roles": [] };
    database.run_command(create).await.unwrap();
    let update = doc! { "updateUser": &other, "pwd": "hunter2-changed" };
    database.run_command(update).await.unwrap();
    // The server refuses this misspelled command. The command contains a password, so captures
    // must omit it.
    let wrong = doc! { "createuser": &other, "pwd": "hunter2-misspelled", "roles": [] };
    database.run_command(wrong).await.unwrap_err();
    let info = doc! { "usersInfo": &other, "showCredentials": true };
    let info = database.run_command(info).await.unwrap();
    let keys = info.get_array("users").unwrap()[0].as_document().unwrap();
    let keys = keys.get_document("credentials").unwrap().clone();
    let users = database.collection::<Document>("system.users");
    let found = users.find(doc! {}).batch_size(2).await.unwrap();
    let found: Vec<_> = found.try_collect().await.unwrap();
    assert!(found.len() >= 2);
    let orders = client.database(&other).collection::<Document>("orders");
    orders.insert_one(doc! { "visible": "yes" }).await.unwrap();
    let (_, outcome) = scene::log_in(&seawall, &Login::new("admin", &other, "hunter2-wrong")).await;
    assert!(!outcome.is_authenticated());
    seawall.stop_capture(&id).await;

    let read = Read::from(&scratch, &id);
    assert!(
        read.contains("visible"),
        "expected the inserted document in the capture"
    );
    assert!(!read.contains("hunter2"));
    for mechanism in ["SCRAM-SHA-1", "SCRAM-SHA-256"] {
        assert!(!read.contains(mechanism));
        let keys = keys.get_document(mechanism).unwrap();
        for key in ["salt", "storedKey", "serverKey"] {
            assert!(
                !read.contains(keys.get_str(key).unwrap()),
                "{mechanism} {key}"
            );
        }
    }
    for name in ["saslStart", "saslContinue", "speculativeAuthenticate"] {
        assert!(!read.contains(name), "{name}");
    }
    // At least five operations are counted as omitted: three commands on users, the misspelled
    // command, and the `find` on `system.users`.
    assert!(read.omitted(OmissionReason::Secret) >= 5);
}

#[tokio::test]
async fn only_operations_of_clients_that_match_the_selection_are_captured() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let (one, two) = (scene::writer().await, scene::writer().await);
    let insert = async |user: &NewUser, collection: &str| {
        let client = seawall.client(&user.name, &user.password, "admin").await;
        let collection = client.database(&user.name).collection(collection);
        collection.insert_one(doc! {}).await.unwrap();
        collection.find_one(doc! {}).await.unwrap();
    };
    for (members, expected) in [
        (format!(r#", "users": ["admin.{}"]"#, one.name), 4),
        (format!(r#", "namespaces": ["{}"]"#, two.name), 4),
        (format!(r#", "namespaces": ["{}.a"]"#, two.name), 2),
        (r#", "applications": ["other"]"#.to_owned(), 0),
        (r#", "sample": 0.000001"#.to_owned(), 0),
        (String::new(), 8),
    ] {
        let id = seawall.start_capture(&members).await;
        for user in [&one, &two] {
            for collection in ["a", "b"] {
                insert(user, collection).await;
            }
        }
        seawall.stop_capture(&id).await;
        let read = Read::from(&scratch, &id);
        let named = |command: &&Command| {
            let name = body(&command.message).keys().next().cloned().unwrap();
            ["insert", "find"].contains(&&*name)
        };
        let count = read.commands().into_iter().filter(named).count();
        assert_eq!(count, expected, "{members}");
    }
}

#[tokio::test]
async fn a_capture_of_one_user_omits_operations_after_its_client_has_logged_in_as_another_user() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let (one, two) = (scene::writer().await, scene::writer().await);
    let members = format!(r#", "users": ["admin.{}"]"#, one.name);
    let id = seawall.start_capture(&members).await;
    let mut client = scene::logged_in(&seawall, &one.login()).await;
    scene::find(&mut client, &one.name).await;
    client.expect_ok("admin", doc! { "logout": 1 }).await;
    let outcome = client.login(&two.login()).await.unwrap();
    assert!(outcome.is_authenticated(), "{outcome:?}");
    scene::find(&mut client, &two.name).await;
    let ended = seawall.stop_capture(&id).await;
    assert_eq!((ended.clients, ended.operations), (1, 1));
}

#[tokio::test]
async fn captures_are_off_without_a_directory() {
    let seawall = scene::seawall("").await;
    let (status, said) = try_start(&seawall, "").await;
    assert_eq!(status, 403, "{said}");
    assert!(said.contains("capture.directory"), "{said}");
    let captures: Captures = seawall.api("/api/v1/captures").await;
    assert!(captures.captures.is_empty());
}

#[tokio::test]
async fn relay_mode_refuses_captures_and_gives_the_reason() {
    let scratch = Scratch::create().unwrap();
    let toml = format!("deployment.mode = \"relay\"\n{}", section(&scratch, ""));
    let seawall = scene::seawall(&toml).await;
    let why = "relayed clients are not captured: captures need deployment.mode \"pooled\"";
    let (status, said) = try_start(&seawall, "").await;
    assert_eq!((status, said.trim_end()), (403, why));
    let captures: Captures = seawall.api("/api/v1/captures").await;
    assert_eq!(captures.unavailable.as_deref(), Some(why));
    let admin = format!("http://{}", seawall.app.admin_address().unwrap());
    for (arguments, is_success) in [
        (&["capture", "--wait"][..], false),
        (&["capture", "list"], true),
    ] {
        let output = process::run(&[arguments, &["--admin", &admin]].concat()).await;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(output.status.success(), is_success, "{said}");
        assert!(said.contains(why), "{said}");
    }
    assert!(!scratch.join("captures").exists());
}

#[tokio::test]
async fn the_token_in_read_token_file_can_list_captures_but_not_start_stop_read_or_delete_them() {
    let scratch = Scratch::create().unwrap();
    let act = scratch.write("act", "act-token").unwrap();
    let read = scratch.write("read", "read-token").unwrap();
    let keys = format!("admin.token_file = {act:?}\nadmin.read_token_file = {read:?}\n");
    let server = scene::server().await;
    let options = seawall_tests::seawall::Options {
        toml: keys + &section(&scratch, ""),
        ..Default::default()
    };
    let seawall = Seawall::launch(&server.uri(), options).await.unwrap();
    let new = r#"{ "duration_ms": 60000 }"#;
    let token = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let captures = "/api/v1/captures";
    let with_body = |name: &str| {
        let length = new.len();
        let headers = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        format!("{}{headers}Connection: close\r\n\r\n{new}", token(name))
    };
    let (status, _) = seawall
        .request("POST", captures, &with_body("read-token"))
        .await;
    assert_eq!(status, 403);
    let (status, body) = seawall
        .request("POST", captures, &with_body("act-token"))
        .await;
    assert_eq!(status, 201, "{body}");
    let capture: Capture = serde_json::from_str(&body).unwrap();
    let of = |action: &str| format!("{captures}/{}{action}", capture.id);
    for (method, path) in [
        ("POST", of("/stop")),
        ("GET", of("/content")),
        ("DELETE", of("")),
    ] {
        let (status, _) = seawall.request(method, &path, &token("read-token")).await;
        assert_eq!(status, 403, "{method} {path}");
        let (status, _) = seawall.request(method, &path, "").await;
        assert_eq!(status, 401, "{method} {path}");
    }
    let (status, list) = seawall.request("GET", captures, &token("read-token")).await;
    assert_eq!(status, 200);
    assert!(list.contains(&capture.id));
    for (method, path, expected) in [
        ("DELETE", of(""), 409),
        ("POST", of("/stop"), 200),
        ("POST", of("/stop"), 404),
        ("DELETE", of(""), 200),
        ("DELETE", of(""), 404),
        ("GET", of("/content"), 404),
        ("DELETE", format!("{captures}/..%2F..%2Fetc"), 404),
    ] {
        let (status, said) = seawall.request(method, &path, &token("act-token")).await;
        assert_eq!(status, expected, "{method} {path}: {said}");
    }
}

#[tokio::test]
async fn metrics_count_captured_and_omitted_operations() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let user = scene::writer().await;
    let id = seawall.start_capture("").await;
    let mut client = scene::logged_in(&seawall, &user.login()).await;
    for _ in 0..5 {
        scene::find(&mut client, &user.name).await;
    }
    client
        .command(&user.name, doc! { "unknown": 1 })
        .await
        .unwrap();
    let is_counted = || async {
        seawall.metric("seawall_capture_running", &[]).await == 1.0
            && seawall
                .metric("seawall_capture_operations_total", &[])
                .await
                == 5.0
            && seawall
                .metric("seawall_capture_omitted_total", &[r#"reason="secret""#])
                .await
                == 1.0
    };
    seawall_tests::eventually::eventually(Duration::from_secs(20), is_counted)
        .await
        .unwrap();
    let ended = seawall.stop_capture(&id).await;
    assert_eq!((ended.clients, ended.operations), (1, 5));
    let is_idle = || async {
        seawall.metric("seawall_capture_running", &[]).await == 0.0
            && seawall.metric("seawall_capture_bytes", &[]).await > 0.0
    };
    seawall_tests::eventually::eventually(Duration::from_secs(20), is_idle)
        .await
        .unwrap();
}

#[tokio::test]
async fn large_commands_are_captured_whole_and_large_replies_only_on_request() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let user = scene::writer().await;
    for (replies, is_whole) in [("facts", false), ("whole", true)] {
        let id = seawall
            .start_capture(&format!(r#", "replies": "{replies}""#))
            .await;
        let (client, events) = observed(&seawall, &user, "").await;
        let collection = client
            .database(&user.name)
            .collection::<Document>(&unique_name("large"));
        let documents = (0..6).map(|number| doc! { "_id": number, "text": "x".repeat(1 << 20) });
        collection.insert_many(documents).await.unwrap();
        let found = collection.find(doc! {}).await.unwrap();
        let found: Vec<_> = found.try_collect().await.unwrap();
        assert_eq!(found.len(), 6);
        let ended = seawall.stop_capture(&id).await;
        assert!(ended.omitted.is_empty(), "{ended:?}");
        let read = Read::from(&scratch, &id);
        let commands = read.commands();
        let named = |name: &str| {
            let mut commands = commands.iter();
            let found = commands.find(|command| body(&command.message).contains_key(name));
            *found.unwrap()
        };
        let insert = named("insert");
        assert!(insert.message.len() > 6 << 20);
        assert_eq!(read.reply_of(insert).facts.as_ref().unwrap().documents, 6);
        let find = named("find");
        let reply = read.reply_of(find);
        assert!(reply.bytes > 6 << 20);
        assert_eq!(reply.facts.as_ref().unwrap().documents, 6);
        if is_whole {
            let expected = events.lock().replies[&request_id(&find.message)].clone();
            assert_eq!(body(&reply.message), expected);
        } else {
            assert!(reply.message.is_empty());
        }
    }
}

#[tokio::test]
async fn transactions_and_change_streams_are_captured() {
    let scratch = Scratch::create().unwrap();
    let set = shared_replica_set().await.unwrap();
    let seawall = scene::seawall_at(&set.uri(), &section(&scratch, "")).await;
    let id = seawall.start_capture(r#", "replies": "whole""#).await;
    let client = seawall.client(ROOT, ROOT_PASSWORD, "admin").await;
    let database = client.database(&unique_name("captured"));
    database.create_collection("c").await.unwrap();
    let collection = database.collection::<Document>("c");
    let mut changes = collection.watch().await.unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    for number in 0..2 {
        let insert = collection.insert_one(doc! { "_id": number });
        insert.session(&mut session).await.unwrap();
    }
    session.commit_transaction().await.unwrap();
    for number in 0..2 {
        let change = changes.try_next().await.unwrap().unwrap();
        assert_eq!(change.full_document, Some(doc! { "_id": number }));
    }
    seawall.stop_capture(&id).await;

    let read = Read::from(&scratch, &id);
    let in_transaction = read.commands().into_iter().filter_map(|command| {
        let command = body(&command.message);
        command
            .contains_key("autocommit")
            .then(|| command.keys().next().unwrap().clone())
    });
    let names: Vec<_> = in_transaction.collect();
    assert_eq!(names, ["insert", "insert", "commitTransaction"]);
    let seen = read.commands().into_iter().filter(|command| {
        let is_read =
            ["aggregate", "getMore"].contains(&&**body(&command.message).keys().next().unwrap());
        is_read && read.reply_of(command).facts.as_ref().unwrap().documents > 0
    });
    assert!(seen.count() >= 1);
}

/// Starts Seawall as a process with a directory for captures in `scratch`.
async fn process(scratch: &Scratch) -> Process {
    process_with(scratch, "").await
}

/// Like `process`, with these additional keys of the section `[capture]`.
pub(super) async fn process_with(scratch: &Scratch, keys: &str) -> Process {
    process_at(&scene::server().await.uri(), scratch, keys).await
}

/// Like [`process_with`], in front of the deployment at `uri`.
pub(super) async fn process_at(uri: &str, scratch: &Scratch, keys: &str) -> Process {
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\ndeployment.uri = {uri:?}\n{}",
        section(scratch, keys)
    );
    Process::serve(&scratch.write("seawall.toml", toml).unwrap()).await
}

pub(super) async fn insert_through(process: &Process, user: &NewUser, document: Document) {
    let uri = format!(
        "mongodb://{}:{}@{}/?authSource=admin",
        user.name,
        user.password,
        process.address()
    );
    let client = Client::with_uri_str(uri).await.unwrap();
    let collection = client.database(&user.name).collection("c");
    collection.insert_one(document).await.unwrap();
}

#[tokio::test]
async fn the_command_line_can_start_copy_list_and_delete_captures() {
    let scratch = Scratch::create().unwrap();
    let process = process(&scratch).await;
    let user = scene::writer().await;
    let admin = format!("http://{}", process.admin());
    let run = async |arguments: &[&str]| {
        let all = [&["capture"], arguments, &["--admin", &admin]].concat();
        process::run(&all).await
    };
    let copied = async { run(&["--duration", "1h", "--replies", "whole", "--output", "-"]).await };
    let worked = async {
        let is_running = || async { !fs_entries(&scratch.join("captures")).is_empty() };
        seawall_tests::eventually::eventually(Duration::from_secs(20), is_running)
            .await
            .unwrap();
        insert_through(&process, &user, doc! { "a": 1 }).await;
        let listed = run(&["list", "--json"]).await;
        let captures: Captures = serde_json::from_slice(&listed.stdout).unwrap();
        let stopped = run(&["stop", &captures.captures[0].id]).await;
        assert!(stopped.status.success(), "{stopped:?}");
    };
    let (copied, ()) = tokio::join!(copied, worked);
    assert!(copied.status.success(), "{copied:?}");
    let read = Read::from_bytes(&copied.stdout);
    assert_eq!(read.end(), EndReason::Stopped);
    let inserts = read
        .commands()
        .into_iter()
        .filter(|c| body(&c.message).contains_key("insert"));
    assert_eq!(inserts.count(), 1);
    assert!(String::from_utf8_lossy(&copied.stderr).contains("ended (stopped)"));
    let waited = run(&["--duration", "10ms", "--wait"]).await;
    assert!(waited.status.success(), "{waited:?}");
    assert!(String::from_utf8_lossy(&waited.stdout).contains("ended (duration)"));

    let started = run(&["start", "--duration", "1h"]).await;
    let id = String::from_utf8(started.stdout).unwrap().trim().to_owned();
    let listed = run(&["list"]).await;
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = listed.lines().find(|line| line.contains(&id)).unwrap();
    assert!(line.contains("running"), "{listed}");
    assert!(!run(&["delete", &id]).await.status.success());
    let stopped = run(&["stop", &id]).await;
    assert!(String::from_utf8_lossy(&stopped.stdout).contains("ended (stopped)"));
    assert!(run(&["delete", &id]).await.status.success());
    let second = run(&["--duration", "1h", "--output", "/dev/null/file"]).await;
    assert_eq!(second.status.code(), Some(69));
    let listed = run(&["list", "--json"]).await;
    let captures: Captures = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(captures.captures.len(), 2);
    assert!(process.said("capture started").is_some());
    assert!(process.said("admin action").is_some());
}

pub(super) fn fs_entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[tokio::test]
async fn if_seawall_shuts_down_during_a_capture_the_files_of_the_capture_are_complete() {
    let scratch = Scratch::create().unwrap();
    let mut process = process(&scratch).await;
    let user = scene::writer().await;
    let admin = format!("http://{}", process.admin());
    let started = process::run(&["capture", "start", "--duration", "1h", "--admin", &admin]).await;
    let id = String::from_utf8(started.stdout).unwrap().trim().to_owned();
    insert_through(&process, &user, doc! { "a": 1 }).await;
    process.signal(rustix::process::Signal::TERM);
    assert!(process.ended().await.success());
    let read = Read::from(&scratch, &id);
    assert_eq!((read.headers.len(), read.end()), (1, EndReason::Shutdown));
    let inserts = read
        .commands()
        .into_iter()
        .filter(|c| body(&c.message).contains_key("insert"));
    assert_eq!(inserts.count(), 1);
}

/// The field `reply_detail` of the header says if the capture contains whole replies.
#[tokio::test]
async fn the_file_header_of_a_capture_describes_its_settings_and_servers() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let id = seawall
        .start_capture(r#", "replies": "whole", "sample": 0.5, "users": ["a.b"]"#)
        .await;
    seawall.stop_capture(&id).await;
    let header = &Read::from(&scratch, &id).headers[0];
    assert_eq!(header.reply_detail, i32::from(ReplyDetail::Whole));
    assert!(header.program.starts_with("seawall "));
    let address = scene::server().await.address().to_string();
    assert_eq!(header.servers[0].address, address);
    assert_eq!(header.servers[0].process_id.len(), 12);
    let selection = header.selection.as_ref().unwrap();
    assert_eq!((selection.sample, &*selection.users[0]), (0.5, "a.b"));
    assert_eq!(header.capture, id.as_bytes());
}
