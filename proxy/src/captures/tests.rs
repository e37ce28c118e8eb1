//! Tests of captures, from the start of a capture to its files, without a server.

mod cleaning;
mod reloading;
mod starting;
mod waiting;

use std::{
    env, fs,
    io::Write,
    path::PathBuf,
    process,
    sync::mpsc::{Receiver, channel},
    thread,
};

use bson::doc;
use seawall_capture::{
    Reader,
    record::{Content, EndReason, OmissionReason, Outcome, ReplyDetail},
};

use super::*;
use seawall_command::{Command, CommandBytes, ReplyFacts, ReplyForm};
use seawall_wire::encode_request;

/// A temporary directory of the test. Dropping this value deletes the directory.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("seawall-captures-{name}-{}", process::id())))
    }

    fn settings(&self) -> CaptureSettings {
        CaptureSettings::for_tests(self.0.clone())
    }

    fn captures(&self, change: impl FnOnce(&mut CaptureSettings)) -> Captures {
        let mut settings = self.settings();
        change(&mut settings);
        Captures::new(Some(settings), Box::new(Vec::new))
    }

    /// All records of a capture, and the number of its parts (files).
    fn read(&self, id: &str) -> (Vec<Content>, u32) {
        let directory = Directory::new(self.0.clone());
        let id = CaptureId::parse(id).unwrap();
        let (mut records, mut part) = (Vec::new(), 0);
        while let Ok(file) = File::open(directory.part(&id, part)) {
            let mut reader = Reader::new(file).unwrap();
            assert_eq!(reader.header().part, part);
            while let Some(record) = reader.next_record().unwrap() {
                records.push(record);
            }
            part += 1;
        }
        (records, part)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn plan() -> CapturePlan {
    CapturePlan {
        selection: Selection::default(),
        replies: ReplyDetail::Facts,
        redaction: None,
        duration: Duration::from_secs(60),
        trigger: "operator",
    }
}

/// Records a command of a client. If `reply` is set, also records the reply. Returns false if the
/// command is not recorded.
fn operate(
    captures: &Captures,
    client: &mut CapturedClient,
    command: bson::Document,
    reply: Option<bson::Document>,
) -> bool {
    let body = command.to_vec().unwrap();
    let input = CommandBytes::of_body(&body);
    let command = Command::inspect(&body).unwrap();
    let message = encode_request(1, &body);
    let arrived = Arrived {
        message: &message,
        is_whole: true,
        command: &command,
        input: &input,
        at: Instant::now(),
    };
    let describe = || {
        let user = "admin.app".to_owned();
        let described = Described {
            user,
            ..Described::default()
        };
        (7, described)
    };
    let Some(recording) = captures.record(client, &arrived, describe) else {
        return false;
    };
    if let Some(reply) = reply {
        let bytes = reply.to_vec().unwrap();
        let facts = ReplyFacts::of(ReplyForm::Plain, &bytes);
        let ended = OperationEnd {
            outcome: Outcome::Replied,
            facts: Some(&facts),
            bytes: bytes.len(),
            message: ReplyMessage::Held(&encode_request(1, &bytes)),
        };
        recording.end(ended, Instant::now());
    }
    true
}

fn id_of(capture: &CaptureState) -> CaptureId {
    CaptureId::parse(&capture.id).unwrap()
}

/// The kind of a record, and the values that the tests compare.
fn kind(record: &Content) -> String {
    match record {
        Content::ClientBegan(client) => {
            assert_eq!(client.user, "admin.app");
            format!("began {}", client.was_active)
        }
        Content::Command(command) => format!("command {}", command.operation),
        Content::Reply(reply) => format!("reply {} {}", reply.operation, reply.outcome),
        Content::Omitted(omitted) => format!("omitted {}", omitted.reason),
        Content::ClientEnded(ended) => format!("ended {}", ended.client),
        Content::End(end) => {
            let (clients, operations) = (end.clients, end.operations);
            format!("end {clients} {operations} {} {}", end.omitted, end.reason)
        }
        Content::Header(_) | Content::Event(_) => panic!("{record:?}"),
    }
}

#[test]
fn a_capture_contains_the_operations_of_its_clients_in_order() {
    let folder = Folder::new("order");
    let captures = folder.captures(|_| {});
    let (mut early, mut late) = (CapturedClient::default(), CapturedClient::default());
    let find = || doc! {"find": "c", "$db": "d"};
    assert!(!operate(&captures, &mut early, find(), None));
    assert!(!captures.needs_whole_message(&early));
    let capture = captures.start(plan()).unwrap();
    assert!(captures.needs_whole_message(&early));
    let reply = doc! {"cursor": {"id": 5_i64, "ns": "d.c", "firstBatch": [{}]}, "ok": 1};
    assert!(operate(&captures, &mut early, find(), Some(reply)));
    assert!(operate(&captures, &mut late, find(), None));
    let create = doc! {"createUser": "u", "pwd": "p", "roles": [], "$db": "d"};
    assert!(!operate(&captures, &mut late, create, None));
    drop(late);
    let running = captures.list().unwrap();
    assert!(
        running[0].is_running && running[0].operations == 2,
        "{running:?}"
    );
    assert!(matches!(
        captures.start(plan()),
        Err(CaptureError::Running(_))
    ));
    assert!(captures.delete(&id_of(&capture)).is_err());
    captures.stop(&id_of(&capture)).unwrap();
    assert!(!operate(&captures, &mut early, find(), None));

    let (records, parts) = folder.read(&capture.id);
    assert_eq!(parts, 1);
    let kinds: Vec<_> = records.iter().map(kind).collect();
    let gone = format!("reply 2 {}", i32::from(Outcome::ClientGone));
    let end = format!("end 2 2 1 {}", i32::from(EndReason::Stopped));
    let expected = [
        "began true",
        "command 1",
        "reply 1 0",
        "began false",
        "command 2",
        &gone,
        "omitted 0",
        "ended 2",
        &end,
    ];
    assert_eq!(kinds, expected);
    let Content::Reply(reply) = &records[2] else {
        panic!("{records:?}");
    };
    let facts = reply.facts.as_ref().unwrap();
    assert_eq!((facts.ok, facts.cursor_id, facts.documents), (true, 5, 1));
    assert!(reply.message.is_empty() && reply.bytes > 0);

    let ended = captures.list().unwrap();
    assert_eq!(ended[0].end.as_deref(), Some("stopped"));
    assert_eq!((ended[0].clients, ended[0].operations), (2, 2));
    captures.delete(&id_of(&capture)).unwrap();
    assert!(captures.list().unwrap().is_empty());
    assert!(matches!(
        captures.delete(&id_of(&capture)),
        Err(CaptureError::Unknown)
    ));
    assert!(matches!(
        captures.stop(&id_of(&capture)),
        Err(CaptureError::NotRunning)
    ));
}

#[test]
fn a_client_is_captured_from_its_first_operation_on_a_selected_namespace() {
    let folder = Folder::new("namespace");
    let captures = folder.captures(|_| {});
    let selection = Selection {
        namespaces: vec!["shop.orders".to_owned()],
        ..Selection::default()
    };
    let capture = captures
        .start(CapturePlan {
            selection,
            ..plan()
        })
        .unwrap();
    let mut client = CapturedClient::default();
    let on = |collection: &str| doc! {"find": collection, "$db": "shop"};
    assert!(!operate(&captures, &mut client, on("other"), None));
    assert!(captures.needs_whole_message(&client));
    assert!(operate(&captures, &mut client, on("orders"), None));
    assert!(operate(&captures, &mut client, on("other"), None));
    captures.stop(&id_of(&capture)).unwrap();
    assert_eq!(captures.list().unwrap()[0].operations, 2);

    let selection = Selection {
        users: vec!["admin.other".to_owned()],
        ..Selection::default()
    };
    captures
        .start(CapturePlan {
            selection,
            ..plan()
        })
        .unwrap();
    assert!(!operate(&captures, &mut client, on("orders"), None));
    assert!(!captures.needs_whole_message(&client));
}

#[test]
fn a_capture_continues_in_new_files_until_it_reaches_its_disk_limit() {
    let folder = Folder::new("limits");
    let captures = folder.captures(|settings| {
        settings.max_bytes = 2_500_000;
        settings.max_part_bytes = 1_000_000;
    });
    let capture = captures.start(plan()).unwrap();
    let tap = captures.running.written.load_full().unwrap();
    let mut client = CapturedClient::default();
    // Random bytes cannot be compressed, so few operations fill a part.
    let noise: Vec<u8> = (0..60_000).map(|_| rand::random()).collect();
    let noise = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: noise,
    };
    let insert = doc! {"insert": "c", "documents": [{"noise": noise}], "$db": "d"};
    for _ in 0..1_000 {
        if !operate(&captures, &mut client, insert.clone(), Some(doc! {"ok": 1})) {
            break;
        }
        thread::yield_now();
    }
    assert!(tap.wait_for_end(STOP_LIMIT));
    let ended = captures.list().unwrap();
    assert_eq!(ended[0].end.as_deref(), Some("disk_limit"));
    let (records, parts) = folder.read(&capture.id);
    assert!(parts >= 3, "{parts}");
    let reasons = records.iter().filter_map(|record| match record {
        Content::End(end) => Some(end.reason),
        _ => None,
    });
    let reasons: Vec<_> = reasons.collect();
    assert_eq!(reasons.len(), usize::try_from(parts).unwrap());
    assert_eq!(reasons.last(), Some(&i32::from(EndReason::DiskLimit)));
    assert!(
        reasons[..reasons.len() - 1]
            .iter()
            .all(|reason| *reason == i32::from(EndReason::NextPart))
    );
    assert!(matches!(
        captures.start(plan()),
        Err(CaptureError::Full { .. })
    ));
}

#[test]
fn a_capture_ends_after_its_duration_or_earlier_if_the_process_ends() {
    let folder = Folder::new("duration");
    let captures = folder.captures(|_| {});
    let refused = captures.start(CapturePlan {
        duration: Duration::from_secs(61),
        ..plan()
    });
    assert!(matches!(refused, Err(CaptureError::Duration(_))));
    captures
        .start(CapturePlan {
            duration: Duration::from_millis(1),
            ..plan()
        })
        .unwrap();
    if let Some(tap) = captures.running.written.load_full() {
        assert!(tap.wait_for_end(STOP_LIMIT));
    }
    let ended = captures.list().unwrap();
    assert_eq!(ended[0].end.as_deref(), Some("duration"));
    let last = captures.start(plan()).unwrap();
    captures.close();
    let ended = captures.list().unwrap();
    let ended = ended.iter().find(|capture| capture.id == last.id).unwrap();
    assert_eq!(ended.end.as_deref(), Some("shutdown"));
}

#[test]
fn every_action_is_refused_while_captures_are_off() {
    let captures = Captures::new(None, Box::new(Vec::new));
    let id = CaptureId::new(SystemTime::now(), 1);
    assert!(matches!(captures.start(plan()), Err(CaptureError::Off)));
    assert!(matches!(captures.list(), Err(CaptureError::Off)));
    assert!(matches!(captures.delete(&id), Err(CaptureError::Off)));
    assert!(matches!(captures.parts(&id), Err(CaptureError::Off)));
    assert!(!captures.take_cleaning_turn());
}

/// A destination whose writes fail, because its disk is full.
struct FullDisk;

impl writer::PartStore for FullDisk {
    type Part = Self;

    fn create(&mut self, _: u32) -> io::Result<Self> {
        Ok(Self)
    }
}

impl Write for FullDisk {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A destination with a bug.
struct Faulty;

impl writer::PartStore for Faulty {
    type Part = Vec<u8>;

    fn create(&mut self, _: u32) -> io::Result<Vec<u8>> {
        panic!("a bug");
    }
}

#[test]
fn a_panic_of_the_writer_ends_the_capture() {
    let capture = written(1 << 20);
    assert!(command(&capture));
    let reason = writer::write_all(&capture, Faulty, LIMITS, Vec::new());
    assert_eq!(reason, EndReason::WriteFailed);
    assert!(!command(&capture));
}

/// A destination whose writes wait until the test drops the sender of `gate`.
struct SlowDisk {
    gate: Receiver<()>,
    written: Arc<Mutex<Vec<u8>>>,
}

/// A part (file) of a capture on a slow disk.
struct SlowPart(SlowDisk);

impl writer::PartStore for Option<SlowDisk> {
    type Part = SlowPart;

    fn create(&mut self, _: u32) -> io::Result<SlowPart> {
        self.take().map(SlowPart).ok_or(io::ErrorKind::Other.into())
    }
}

impl Write for SlowPart {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.gate.recv().ok();
        self.0.written.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A capture without a thread: the test calls `writer::write_all` itself. The queue holds at most
/// `queue_bytes`.
fn written(queue_bytes: usize) -> Written {
    let settings = Folder::new("unused").settings();
    redacted(queue_bytes, Redacting::choose(&settings, None).unwrap())
}

fn redacted(queue_bytes: usize, redacting: Redacting) -> Written {
    let now = Instant::now();
    let limits = QueueLimits {
        max_bytes: queue_bytes,
        max_bytes_per_second: None,
    };
    let tap = Tap {
        number: 1,
        selection: Selection::default(),
        replies: ReplyDetail::Facts,
        seed: 1,
        began: now,
        queue: Queue::new(limits, now),
        totals: Arc::default(),
    };
    let beginning = Beginning {
        offset_us: 0,
        began_at: SystemTime::now(),
        until: now + Duration::from_secs(60),
        trigger: "operator",
        redacting,
    };
    Written::new(Arc::new(tap), beginning)
}

/// Adds a command of 100 bytes to the queue. Returns false if the queue omits the command.
fn command(capture: &Written) -> bool {
    let Tap { queue, totals, .. } = &*capture.tap;
    let operation = queue.command(1, 0, &[0; 100], Instant::now(), totals);
    operation.is_some()
}

const LIMITS: FileLimits = FileLimits {
    max_part_bytes: 1 << 20,
    max_bytes: 1 << 30,
    quiet: writer::QUIET,
};

#[test]
fn a_capture_whose_time_is_over_records_nothing_while_its_writer_is_busy() {
    let capture = written(1 << 20);
    capture.end_if_over(capture.until);
    assert!(!command(&capture));
}

#[test]
fn a_full_disk_ends_the_capture_while_operations_continue() {
    let capture = written(1 << 20);
    assert!(command(&capture));
    assert!(command(&capture));
    let reason = writer::write_all(&capture, FullDisk, LIMITS, Vec::new());
    assert_eq!(reason, EndReason::WriteFailed);
    assert!(!command(&capture));
    let Tap { queue, totals, .. } = &*capture.tap;
    let counts = queue.counts();
    assert_eq!((counts.operations, counts.omitted), (0, [0, 2, 0, 0, 0]));
    assert_eq!(totals.operations.load(Ordering::Relaxed), 0);
    assert_eq!(queue.used_bytes(), 0);
}

#[test]
fn a_capture_exceeds_its_limit_of_bytes_by_less_than_one_block_of_compressed_records() {
    const MAX_BYTES: u64 = 1 << 20;
    let capture = written(1 << 30);
    let Tap { queue, totals, .. } = &*capture.tap;
    // Random bytes cannot be compressed, so three commands exceed the limit of bytes.
    let noise: Vec<u8> = (0..500_000).map(|_| rand::random()).collect();
    for _ in 0..200 {
        let now = Instant::now();
        assert!(queue.command(1, 0, &noise, now, totals).is_some());
    }
    queue.omit_command(1, OmissionReason::Secret, 10, 0, totals);
    let limits = FileLimits {
        max_bytes: MAX_BYTES,
        max_part_bytes: 1 << 30,
        ..LIMITS
    };
    let part = InMemory::default();
    let reason = writer::write_all(&capture, part.clone(), limits, Vec::new());
    assert_eq!(reason, EndReason::DiskLimit);
    let bytes = part.0.lock();
    let length = u64::try_from(bytes.len()).unwrap();
    assert!(
        (MAX_BYTES..MAX_BYTES + 501_000).contains(&length),
        "{length}"
    );
    assert_eq!(counted(&bytes), (3, 198));
    assert_eq!(queue.counts().omitted, [1, 197, 0, 0, 0]);
    assert_eq!(queue.used_bytes(), 0);
}

/// The numbers of commands and of omitted operations in a file. Checks that the last record has the
/// same numbers.
fn counted(bytes: &[u8]) -> (u64, u64) {
    let mut reader = Reader::new(bytes).unwrap();
    let (mut commands, mut omitted) = (0, 0);
    while let Some(record) = reader.next_record().unwrap() {
        match record {
            Content::Command(_) => commands += 1,
            Content::Omitted(gap) => omitted += gap.operations,
            Content::End(end) => {
                assert_eq!((end.operations, end.omitted), (commands, omitted));
            }
            other => panic!("{other:?}"),
        }
    }
    (commands, omitted)
}

#[test]
fn a_slow_disk_delays_no_operation_and_the_file_counts_missing_records() {
    let capture = Arc::new(written(10_000));
    let (gate, wait) = channel();
    let bytes = Arc::<Mutex<Vec<u8>>>::default();
    let disk = SlowDisk {
        gate: wait,
        written: Arc::clone(&bytes),
    };
    let writing = Arc::clone(&capture);
    let writer = thread::spawn(move || writer::write_all(&writing, Some(disk), LIMITS, Vec::new()));
    let recorded = (0..1_000).filter(|_| command(&capture)).count();
    assert!(recorded < 100, "{recorded}");
    drop(gate);
    capture.tap.queue.end(EndReason::Stopped);
    assert_eq!(writer.join().unwrap(), EndReason::Stopped);
    let bytes = bytes.lock();
    let recorded = u64::try_from(recorded).unwrap();
    assert_eq!(counted(&bytes), (recorded, 1_000 - recorded));
}

/// A part in memory.
#[derive(Clone, Default)]
struct InMemory(Arc<Mutex<Vec<u8>>>);

impl writer::PartStore for InMemory {
    type Part = Self;

    fn create(&mut self, _: u32) -> io::Result<Self> {
        Ok(self.clone())
    }
}

impl Write for InMemory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_writer_adds_an_event_named_quiet_after_a_time_without_records() {
    let capture = written(1 << 20);
    capture.tap.queue.end(EndReason::Stopped);
    let limits = FileLimits {
        quiet: Duration::ZERO,
        ..LIMITS
    };
    let part = InMemory::default();
    writer::write_all(&capture, part.clone(), limits, Vec::new());
    let bytes = part.0.lock();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let Some(Content::Event(event)) = reader.next_record().unwrap() else {
        panic!("expected an event");
    };
    assert_eq!(event.kind, "quiet");
    assert!(matches!(
        reader.next_record().unwrap(),
        Some(Content::End(_))
    ));
}

#[test]
fn operations_continue_after_the_capture_directory_is_removed() {
    let folder = Folder::new("removed");
    let captures = folder.captures(|_| {});
    let capture = captures.start(plan()).unwrap();
    fs::remove_dir_all(&folder.0).unwrap();
    let mut client = CapturedClient::default();
    let find = || doc! {"find": "c", "$db": "d"};
    operate(&captures, &mut client, find(), Some(doc! {"ok": 1}));
    // If the writer failed before this call, the capture has already ended and is unknown.
    match captures.stop(&id_of(&capture)) {
        Ok(()) | Err(CaptureError::Unknown) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(captures.list().unwrap().is_empty());
    captures.start(plan()).unwrap();
}

#[test]
fn a_capture_begun_by_an_event_contains_the_operations_before_the_event() {
    let folder = Folder::new("event");
    let captures = folder.captures(|settings| settings.on = vec![EventKind::Storm]);
    let find = || doc! {"find": "c", "$db": "d"};
    let mut client = CapturedClient::default();
    captures.begin_on(EventKind::Storm, "too early");
    captures.prepare();
    assert!(operate(
        &captures,
        &mut client,
        find(),
        Some(doc! {"ok": 1})
    ));
    assert!(
        !captures.needs_whole_message(&client),
        "while a tap waits for an event, large messages are not read whole"
    );
    assert!(!captures.figures().is_running && captures.list().unwrap().is_empty());
    captures.begin_on(EventKind::Change, "not in the settings");
    assert!(captures.list().unwrap().is_empty());
    captures.begin_on(EventKind::Storm, "up to 9 client connections in a second");
    captures.begin_on(EventKind::Storm, "one capture runs at a time");
    captures.prepare();
    assert!(operate(
        &captures,
        &mut client,
        find(),
        Some(doc! {"ok": 1})
    ));
    let running = captures.list().unwrap();
    assert_eq!((running.len(), &*running[0].trigger), (1, "storm"));
    assert!(captures.figures().is_running);
    captures.stop(&id_of(&running[0])).unwrap();
    let (records, _) = folder.read(&running[0].id);
    let Content::Event(event) = &records[0] else {
        panic!("{records:?}");
    };
    assert_eq!(event.text, "up to 9 client connections in a second");
    let rest: Vec<_> = records[1..].iter().map(kind).collect();
    let end = format!("end 1 2 0 {}", i32::from(EndReason::Stopped));
    let expected = [
        "began false",
        "command 1",
        "reply 1 0",
        "command 2",
        "reply 2 0",
        &end,
    ];
    assert_eq!(rest, expected);
    let ended = captures.list().unwrap();
    assert_eq!((&*ended[0].trigger, ended[0].operations), ("storm", 2));
    // The next event begins the next capture.
    captures.prepare();
    captures.begin_on(EventKind::Storm, "another storm");
    assert_eq!(captures.list().unwrap().len(), 2);
}

#[test]
fn an_operator_can_start_a_capture_while_seawall_waits_for_an_event() {
    let folder = Folder::new("precedence");
    let captures = folder.captures(|settings| settings.on = vec![EventKind::Stall]);
    captures.prepare();
    let capture = captures.start(plan()).unwrap();
    captures.begin_on(EventKind::Stall, "");
    captures.stop(&id_of(&capture)).unwrap();
    assert_eq!(captures.list().unwrap().len(), 1);
    captures.prepare();
    assert!(captures.running.armed().is_some());
    captures.configure(Some(folder.settings()));
    captures.prepare();
    assert!(captures.running.armed().is_none());
}

#[test]
fn redacted_captures_contain_pseudonyms_instead_of_values() {
    let folder = Folder::new("redaction");
    let captures = folder.captures(|settings| {
        settings.on = vec![EventKind::Storm];
        settings.redaction = Redaction::Ordered;
        settings.redaction_key = Some(RedactionKey::new(b"a key of some bytes"));
    });
    let mut client = CapturedClient::default();
    let mut insert = |captures: &Captures| {
        let insert = doc! {"insert": "c", "documents": [{"name": "alice"}], "$db": "d"};
        let failed = doc! {"ok": 0, "code": 11_000, "keyValue": {"name": "alice"}};
        operate(captures, &mut client, insert, Some(failed))
    };
    captures.prepare();
    assert!(insert(&captures));
    captures.begin_on(EventKind::Storm, "storm");
    assert!(insert(&captures));
    let begun = captures.list().unwrap();
    captures.stop(&id_of(&begun[0])).unwrap();
    let equality = CapturePlan {
        replies: ReplyDetail::Whole,
        redaction: Some(Redaction::Equality),
        ..plan()
    };
    let started = captures.start(equality).unwrap();
    assert!(insert(&captures));
    captures.stop(&id_of(&started)).unwrap();
    for (id, mode, commands) in [
        (&begun[0].id, Redaction::Ordered, 2),
        (&started.id, Redaction::Equality, 1),
    ] {
        let directory = Directory::new(folder.0.clone());
        let part = directory.part(&CaptureId::parse(id).unwrap(), 0);
        let header = Reader::new(File::open(part).unwrap()).unwrap();
        assert_eq!(header.header().redaction(), mode);
        let (records, _) = folder.read(id);
        let written = format!("{records:?}");
        let count = |text: &str| written.matches(text).count();
        // Redaction does not replace the names of fields, such as `insert`.
        assert_eq!((count("alice"), count("insert\\0")), (0, commands));
        let state = captures.list().unwrap();
        let state = state.iter().find(|capture| capture.id == *id).unwrap();
        assert_eq!(state.redaction.as_deref(), Some(redaction_name(mode)));
        assert!(state.omitted.is_empty(), "{state:?}");
    }
}

/// The redaction modes, from weak to strong, are `none`, `ordered` and `equality`. Only `ordered`
/// needs a key.
#[test]
fn a_capture_with_too_weak_redaction_or_without_a_needed_key_is_refused() {
    use Redaction::{Equality, None as Plain, Ordered};
    let folder = Folder::new("weaker");
    let starts = |configured, has_key: bool, wanted| {
        let captures = folder.captures(|settings| {
            settings.redaction = configured;
            settings.redaction_key = has_key.then(|| RedactionKey::new(b"key"));
        });
        let plan = CapturePlan {
            redaction: wanted,
            ..plan()
        };
        captures
            .start(plan)
            .map(|started| started.redaction.unwrap())
    };
    for (configured, wanted) in [(Equality, Ordered), (Equality, Plain), (Ordered, Plain)] {
        let refused = starts(configured, true, Some(wanted));
        assert!(
            matches!(refused, Err(CaptureError::WeakerRedaction { .. })),
            "{refused:?}"
        );
    }
    let refused = starts(Plain, false, Some(Ordered));
    assert!(
        matches!(refused, Err(CaptureError::NoRedactionKey)),
        "{refused:?}"
    );
    for (configured, wanted, has_key, expected) in [
        (Plain, None, false, "none"),
        (Plain, Some(Equality), false, "equality"),
        (Plain, Some(Ordered), true, "ordered"),
        (Ordered, None, true, "ordered"),
        (Ordered, Some(Equality), true, "equality"),
        (Equality, None, false, "equality"),
    ] {
        assert_eq!(starts(configured, has_key, wanted).unwrap(), expected);
    }
    let key = RedactionKey::new(b"hunter2");
    assert_eq!(format!("{key:?}"), "RedactionKey(hidden)");
}

#[test]
fn a_command_that_cannot_be_redacted_is_counted_and_not_written() {
    let settings = CaptureSettings {
        redaction: Redaction::Equality,
        ..Folder::new("unused").settings()
    };
    let capture = redacted(1 << 20, Redacting::choose(&settings, None).unwrap());
    // The command consists of zeros, which is not a valid message.
    assert!(command(&capture));
    let Tap { queue, totals, .. } = &*capture.tap;
    queue.end(EndReason::Stopped);
    let part = InMemory::default();
    writer::write_all(&capture, part.clone(), LIMITS, Vec::new());
    let bytes = part.0.lock();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let Some(Content::Omitted(omitted)) = reader.next_record().unwrap() else {
        panic!("expected an omission");
    };
    assert_eq!(omitted.reason(), OmissionReason::NotRedactable);
    let Some(Content::End(end)) = reader.next_record().unwrap() else {
        panic!("expected the end of the capture");
    };
    assert_eq!((end.operations, end.omitted), (0, 1));
    assert_eq!(queue.counts().omitted, [0, 0, 0, 0, 1]);
    assert_eq!(totals.omitted[4].load(Ordering::Relaxed), 1);
    assert_eq!(totals.operations.load(Ordering::Relaxed), 0);
}
