//! Tests of files of mongod's own traffic recorder: Seawall converts them to captures, and back.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    sync::Arc,
};

use futures_util::TryStreamExt as _;
use mongodb::{
    Client,
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::{ClientOptions, Compressor},
};
use seawall_capture::{
    Reader, Writer,
    record::{Content, End, EndReason, Event, Header, Omitted},
};
use seawall_command::Command;
use seawall_locks::Mutex;
use seawall_replay::{Report, Source};
use seawall_tests::{
    mongod::{Options, ReplicaSet, RunCommand as _, Standalone},
    process::run,
    scratch::Scratch,
};
use seawall_wire::OpMsg;

/// The application name of the workload. Other clients have other names.
const APPLICATION: &str = "workload";
/// The password of a user that is created while mongod records.
const SECRET: &str = "a-recorded-password";

/// A value in every document of the workload.
const VALUE: &str = "a value of a user";

type Counts = BTreeMap<String, u64>;

#[tokio::test]
async fn a_capture_converted_from_a_mongod_recording_has_every_command_that_the_driver_sent() {
    let scratch = Scratch::create().unwrap();
    let (recording, sent) = record(&scratch).await;
    let bytes = fs::read(&recording).unwrap();
    assert!(
        contains(&bytes, SECRET),
        "expected the password in the recording"
    );

    let capture = scratch.join("capture.swc");
    convert(&recording, &capture, &[]).await;
    let records = read(&capture);
    assert_eq!(commands_of(&records, APPLICATION), sent);
    assert!(!format!("{records:?}").contains(SECRET));
    let is_omitted = |record: &Content| matches!(record, Content::Omitted(_));
    assert!(
        records.iter().any(is_omitted),
        "expected createUser to be omitted"
    );
    let replied = records.iter().filter(|r| matches!(r, Content::Reply(_)));
    let commands = records.iter().filter(|r| matches!(r, Content::Command(_)));
    assert_eq!(replied.count(), commands.count());

    for format in ["recorder", "recorder-sessions", "recorder-events"] {
        let back = scratch.join(format);
        convert(&capture, &back, &["--to", format]).await;
        let again = scratch.join(&format!("{format}.swc"));
        convert(&back, &again, &[]).await;
        let again = read(&again);
        // The capture contains no message of an omitted operation (here `createUser`, because of
        // the password). So the exported recording lacks these operations, and lacks each client
        // that sent no other operation. Therefore the test compares only the messages.
        assert_eq!(messages_of(&again), messages_of(&records), "{format}");
        let again = commands_of(&again, APPLICATION);
        assert_eq!(again, sent, "{format}");
    }
}

/// A replay gives the same results for three inputs: a recording, the capture converted from it,
/// and the recording converted from that capture.
#[tokio::test]
async fn replays_are_equal_for_a_recording_its_capture_and_the_exported_recording() {
    let scratch = Scratch::create().unwrap();
    let (recording, _) = record(&scratch).await;
    let capture = scratch.join("capture.swc");
    convert(&recording, &capture, &[]).await;
    let back = scratch.join("back");
    convert(&capture, &back, &[]).await;
    let target = ReplicaSet::start(1, Options::default()).await.unwrap();
    let address = target.primary().await.unwrap().address();
    let mut reports = Vec::new();
    for (name, source) in [
        ("recording", &recording),
        ("capture", &capture),
        ("back", &back),
    ] {
        let client = Client::with_uri_str(format!("mongodb://{address}/"));
        let work = client.await.unwrap().database("work");
        work.drop().await.unwrap();
        let report = scratch.join(&format!("{name}.json"));
        let target = format!("mongodb://{address}/");
        let paths = [source, &report].map(|path| path.to_str().unwrap());
        let output = run(&[
            "load",
            "replay",
            paths[0],
            "--target",
            &target,
            "--max",
            "--strict-order",
            "--with-writes",
            "--digest",
            "--quiet",
            "--output",
            paths[1],
        ])
        .await;
        assert!(output.status.success(), "{output:?}");
        let compared = run(&["report", "compare", paths[0], paths[1]]).await;
        let text = String::from_utf8_lossy(&compared.stdout).into_owned();
        assert!(compared.status.success(), "{compared:?}");
        assert!(text.contains("No shape failed"), "{text}");
        reports.push(Report::read(&fs::read(&report).unwrap()).unwrap());
    }
    let [of_recording, of_capture, of_back] = &reports[..] else {
        panic!("expected three reports")
    };
    assert_eq!(of_recording.capture, of_capture.capture);
    assert_eq!(of_recording.incomplete, None);
    assert!(of_recording.sent > 40, "{of_recording:#?}");
    assert_eq!(results_of(of_recording), results_of(of_capture));
    assert_eq!(results_of(of_recording), results_of(of_back));
    let source = Source::open(&recording).unwrap();
    let server = &source.header().servers[0];
    let target = format!("mongodb://{}/", server.address);
    let path = recording.to_str().unwrap();
    let refused = run(&["load", "replay", path, "--target", &target]).await;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        message.contains("belongs to the captured deployment"),
        "{message}"
    );
}

#[tokio::test]
async fn a_recording_is_replayed_over_tls_with_a_user_and_a_client_certificate() {
    let scratch = Scratch::create().unwrap();
    let (recording, _) = record(&scratch).await;
    let path = recording.to_str().unwrap();
    let options = Options {
        tls: true,
        ..Options::with_auth()
    };
    let target = Standalone::start(options).await.unwrap();
    let replay = async |uri: &str| {
        let arguments = [
            "load",
            "replay",
            path,
            "--max",
            "--with-writes",
            "--target",
            uri,
        ];
        let output = run(&arguments).await;
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let client_file = target.certificates().unwrap().client_file();
    let uri = format!(
        "{}&tlsCertificateKeyFile={}",
        target.root_uri(),
        client_file.display()
    );
    let (code, text) = replay(&uri).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("errors that the capture does not have: 0"),
        "{text}"
    );
    // Without `tlsCAFile`, only the authorities of the operating system are trusted. They did not
    // sign the server's certificate.
    let (uri, _) = uri.split_once("&tlsCAFile").unwrap();
    let (code, text) = replay(uri).await;
    assert_eq!(code, Some(69), "{text}");
    assert!(text.contains("UnknownIssuer"), "{text}");
    let missing = format!("{uri}&tlsCertificateKeyFile=/nowhere/client.pem");
    let (code, text) = replay(&missing).await;
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("/nowhere/client.pem"), "{text}");
}

/// For the id of each shape: the number of its commands, errors and documents, and the digest of
/// its results.
fn results_of(report: &Report) -> BTreeMap<String, (u64, u64, u64, Option<String>)> {
    let shapes = report.shapes.iter().map(|shape| {
        let digest = shape.digest.clone();
        let results = (shape.count, shape.error_count(), shape.documents, digest);
        (shape.id.clone(), results)
    });
    shapes.collect()
}

#[tokio::test]
async fn conversion_with_redaction_keeps_all_commands_but_removes_their_values() {
    let scratch = Scratch::create().unwrap();
    let (recording, sent) = record(&scratch).await;
    let capture = scratch.join("capture.swc");
    convert(&recording, &capture, &[]).await;
    assert!(contains(format!("{:?}", read(&capture)).as_bytes(), VALUE));
    for (name, option) in [("equality", "--redact"), ("ordered", "--redact=ordered")] {
        let redacted = scratch.join(name);
        convert(&recording, &redacted, &[option]).await;
        let records = read(&redacted);
        assert_eq!(commands_of(&records, APPLICATION), sent, "{name}");
        assert!(
            !contains(format!("{records:?}").as_bytes(), VALUE),
            "{name}"
        );
        let again = scratch.join(&format!("{name}-again"));
        let paths = [&redacted, &again].map(|path| path.to_str().unwrap());
        let to = ["--to", "capture", option];
        let output = run(&[&["load", "convert"], &paths[..], &to].concat()).await;
        assert_eq!(output.status.code(), Some(64), "{output:?}");
    }
}

#[tokio::test]
async fn load_convert_keeps_part_of_a_truncated_recording_and_refuses_unsuitable_files() {
    let scratch = Scratch::create().unwrap();
    let (recording, _) = record(&scratch).await;
    let mut bytes = fs::read(&recording).unwrap();
    bytes.truncate(bytes.len() - 20);
    let cut = scratch.write("cut", &bytes).unwrap();
    let capture = scratch.join("capture.swc");
    let paths = [&cut, &capture].map(|path| path.to_str().unwrap());
    let output = run(&["load", "convert", paths[0], paths[1]]).await;
    assert_eq!(output.status.code(), Some(69));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("was cut off at byte"), "{message}");
    assert!(!commands_of(&read(&capture), APPLICATION).is_empty());

    let output = run(&["load", "convert", paths[0], paths[1]]).await;
    assert_eq!(
        output.status.code(),
        Some(69),
        "expected an error, because the output file exists"
    );
    let other = scratch
        .write("other", "neither a recording nor a capture")
        .unwrap();
    let target = scratch.join("target");
    let paths = [&other, &target].map(|path| path.to_str().unwrap());
    let output = run(&["load", "convert", paths[0], paths[1]]).await;
    assert_eq!(output.status.code(), Some(64));
    assert!(!target.exists());
}

/// The bytes of one part of a capture. The part contains one event and three omitted operations.
/// Its end record states `reason` as the reason why the part ended.
fn part(number: u32, reason: EndReason) -> Vec<u8> {
    let header = Header {
        part: number,
        ..Header::default()
    };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    writer
        .push(&Content::Event(Event::default()).into())
        .unwrap();
    let omitted = Omitted {
        operations: 3,
        ..Omitted::default()
    };
    writer.push(&Content::Omitted(omitted).into()).unwrap();
    let mut end = End::default();
    end.set_reason(reason);
    writer.finish(end).unwrap()
}

#[tokio::test]
async fn a_file_with_all_parts_of_a_capture_is_converted_and_a_missing_part_is_reported() {
    let scratch = Scratch::create().unwrap();
    let parts = [part(0, EndReason::NextPart), part(1, EndReason::Stopped)];
    let joined = scratch.write("joined.swc", parts.concat()).unwrap();
    let converted = scratch.join("converted.swc");
    convert(&joined, &converted, &["--to", "capture"]).await;
    let events = |path: &Path| {
        let records = read(path).into_iter();
        let events = records.filter(|record| matches!(record, Content::Event(_)));
        events.count()
    };
    assert_eq!(events(&converted), 2);
    let [first, _] = parts;
    let first = scratch.write("first.swc", first).unwrap();
    let converted = scratch.join("converted-first.swc");
    let paths = [&first, &converted].map(|path| path.to_str().unwrap());
    let output = run(&["load", "convert", paths[0], paths[1], "--to", "capture"]).await;
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("part 1 of the capture is missing"),
        "{message}"
    );
    assert_eq!(events(&converted), 1);
    // The converted capture ends with an `End` record, although part 1 is missing.
    let mut source = Source::open(&converted).unwrap();
    while source.next_record().unwrap().is_some() {}
    let end = source.end().unwrap();
    assert_eq!((end.reason(), end.omitted), (EndReason::Stopped, 3));
}

/// A file of mongod's traffic recorder needs the replies, and this capture has none.
#[tokio::test]
async fn a_conversion_that_fails_leaves_no_file() {
    let scratch = Scratch::create().unwrap();
    let capture = scratch.write("capture.swc", part(0, EndReason::Stopped));
    let paths = [capture.unwrap(), scratch.join("recording")];
    let [from, to] = paths.each_ref().map(|path| path.to_str().unwrap());
    let output = run(&["load", "convert", from, to]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
}

/// Runs a workload while mongod records. Returns the path of the recording, and how many commands
/// of each name the driver sent.
async fn record(scratch: &Scratch) -> (std::path::PathBuf, Counts) {
    let directory = scratch.path().to_str().unwrap().to_owned();
    let options = Options {
        parameters: vec![("trafficRecordingDirectory".to_owned(), directory)],
        ..Options::with_auth()
    };
    let server = Standalone::start(options).await.unwrap();
    let administrator = server.client().unwrap();
    let start = doc! {
        "startRecordingTraffic": 1, "filename": "recording",
        "bufferSize": 1_048_576_i64, "maxFileSize": 16_777_216_i64,
    };
    administrator.run("admin", start).await.unwrap();
    let create = doc! { "createUser": "new", "pwd": SECRET, "roles": [] };
    administrator.run("admin", create).await.unwrap();
    let (client, sent) = work(&server.root_uri()).await;
    let stop = doc! { "stopRecordingTraffic": 1 };
    administrator.run("admin", stop).await.unwrap();
    // A driver sends `endSessions` when its client is dropped. So the client is dropped only after
    // the recording has stopped.
    drop(client);
    (scratch.join("recording"), sent)
}

/// Runs operations of a driver. Returns the driver's client, and how many commands of each name the
/// driver sent.
async fn work(uri: &str) -> (Client, Counts) {
    let counts = Arc::new(Mutex::new(Counts::new()));
    let counted = Arc::clone(&counts);
    let mut options = ClientOptions::parse(uri).await.unwrap();
    options.app_name = Some(APPLICATION.to_owned());
    options.compressors = Some(vec![Compressor::Zlib { level: None }]);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event {
            *counted.lock().entry(started.command_name).or_default() += 1;
        }
    }));
    let client = Client::with_options(options).unwrap();
    let things = client.database("work").collection::<Document>("things");
    let documents = (0..200).map(|number| doc! { "_id": number, "a": number % 7, "text": VALUE });
    things.insert_many(documents).await.unwrap();
    for number in 0..20 {
        let change = doc! { "$inc": { "a": 1 } };
        things
            .update_one(doc! { "_id": number }, change)
            .await
            .unwrap();
        things.find_one(doc! { "_id": number }).await.unwrap();
    }
    let found = things.find(doc! {}).batch_size(30).await.unwrap();
    assert_eq!(found.try_collect::<Vec<_>>().await.unwrap().len(), 200);
    let pipeline = [doc! { "$group": { "_id": "$a", "n": { "$sum": 1 } } }];
    let groups = things.aggregate(pipeline).await.unwrap();
    groups.try_collect::<Vec<_>>().await.unwrap();
    things.delete_many(doc! { "a": 3 }).await.unwrap();
    things.distinct("a", doc! {}).await.unwrap();
    let counts = counts.lock().clone();
    assert!(counts.values().sum::<u64>() > 40, "{counts:?}");
    (client, counts)
}

async fn convert(from: &Path, to: &Path, options: &[&str]) {
    let paths = [from, to].map(|path| path.to_str().unwrap());
    let arguments = [&["load", "convert"], &paths[..], options].concat();
    let output = run(&arguments).await;
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

fn read(capture: &Path) -> Vec<Content> {
    let mut reader = Reader::new(File::open(capture).unwrap()).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push(record);
    }
    records
}

/// How many commands of each name the application sent.
fn commands_of(records: &[Content], application: &str) -> Counts {
    let mut clients = Vec::new();
    let mut counts = Counts::new();
    for record in records {
        match record {
            Content::ClientBegan(began) if began.application == application => {
                clients.push(began.client);
            }
            Content::Command(command) if clients.contains(&command.client) => {
                let message = OpMsg::parse(&command.message).unwrap();
                let command = Command::inspect(message.body).unwrap();
                *counts.entry(command.name_str().to_owned()).or_default() += 1;
            }
            _ => {}
        }
    }
    counts
}

/// The bytes of commands and replies, each with the microseconds since the first command. Excludes
/// the ids of clients and operations, because a conversion may change them.
fn messages_of(records: &[Content]) -> Vec<(u64, &[u8])> {
    let messages = records.iter().filter_map(|record| match record {
        Content::Command(command) => Some((command.at_us, &*command.message)),
        Content::Reply(reply) => Some((reply.at_us, &*reply.message)),
        _ => None,
    });
    let messages: Vec<_> = messages.collect();
    let began = messages.first().map_or(0, |(at_us, _)| *at_us);
    let later = messages.into_iter();
    later.map(|(at_us, bytes)| (at_us - began, bytes)).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}
