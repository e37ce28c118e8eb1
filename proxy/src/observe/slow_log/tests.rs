use std::{
    io::{self, Write},
    sync::{Arc, mpsc},
    time::UNIX_EPOCH,
};

use bson::RawDocument;
use serde_json::{Value, json};

use super::*;
use seawall_command::table::COMMANDS;
use seawall_locks::Mutex;
use seawall_wire::Sequence;

const SHAPE: u64 = 0x0123_4567_89ab_cdef;

/// Maximum time that a test waits for an expected event.
const LIMIT: Duration = Duration::from_secs(20);

pub(in crate::observe) fn settings() -> SlowLogSettings {
    SlowLogSettings {
        threshold: Duration::from_millis(100),
        shape_thresholds: Vec::new(),
        sample_percent: 100.0,
        file: None,
        max_lines_per_second: None,
        redact: true,
        max_command_bytes: 4_096,
    }
}

fn entry() -> SlowLogEntry<'static> {
    SlowLogEntry {
        at: UNIX_EPOCH + Duration::from_micros(1_795_284_044_756_001),
        shape: SHAPE,
        level: Some("fine"),
        fine_shape: None,
        command: "find",
        opened_by: None,
        db: "shop",
        collection: "orders",
        text: "{filter: {a: ?}}",
        outcome: "ok",
        error_code: None,
        total: Duration::from_nanos(120_000_021),
        phases: [1, 2, 3, 120_000_000, 5, 10]
            .map(Duration::from_nanos)
            .into(),
        request_bytes: 100,
        reply_bytes: 2_000,
        documents: 7,
        server: Some("a:27017"),
        client: 42,
        user: Some("admin.app"),
        application: None,
        values: None,
        is_streamed: false,
    }
}

fn write(log: &SlowLog, entry: &SlowLogEntry<'_>) {
    if let Some(permit) = log.admit(1, entry.at) {
        permit.write(entry);
    }
}

/// A terminal reads U+009B as the beginning of an escape sequence, like ESC and `[`.
#[test]
fn control_characters_in_names_are_escaped() {
    let collection = "a\u{9b}2J\u{7f}\u{1b}[2J\n";
    let entry = SlowLogEntry {
        collection,
        ..entry()
    };
    let mut bytes = line::line(&entry, None).unwrap();
    line::finish(&mut bytes, 0);
    let text = String::from_utf8(bytes).unwrap();
    let text = text.strip_suffix('\n').unwrap();
    assert!(!text.contains(char::is_control), "{text:?}");
    let read: Value = serde_json::from_str(text).unwrap();
    assert_eq!(read["collection"], collection);
}

/// A buffer for the written bytes, shared with the test.
#[derive(Clone, Default)]
pub(in crate::observe) struct WrittenLines(Arc<Mutex<Vec<u8>>>);

impl Write for WrittenLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WrittenLines {
    pub(in crate::observe) fn lines(&self) -> Vec<Value> {
        let bytes = self.0.lock();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// A writer that reports its first write and then blocks until its [`WriterBlock`] is dropped.
pub(in crate::observe) struct BlockingWriter {
    reached: mpsc::Sender<()>,
    release: mpsc::Receiver<()>,
    out: WrittenLines,
}

/// Unblocks a [`BlockingWriter`] when dropped.
pub(in crate::observe) struct WriterBlock {
    reached: mpsc::Receiver<()>,
    _release: mpsc::Sender<()>,
}

impl BlockingWriter {
    pub(in crate::observe) fn new(out: &WrittenLines) -> (Self, WriterBlock) {
        let (reached, is_reached) = mpsc::channel();
        let (release, is_released) = mpsc::channel();
        let held = Self {
            reached,
            release: is_released,
            out: out.clone(),
        };
        let block = WriterBlock {
            reached: is_reached,
            _release: release,
        };
        (held, block)
    }
}

impl WriterBlock {
    pub(in crate::observe) fn wait_until_it_writes(&self) {
        self.reached.recv_timeout(LIMIT).unwrap();
    }
}

impl Write for BlockingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The error is ignored: `send` fails if the `WriterBlock` is already dropped, and then no
        // test waits for this message.
        self.reached.send(()).ok();
        // Nothing is sent on this channel. `recv` fails when the `WriterBlock` is dropped.
        assert!(self.release.recv().is_err());
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A log that writes to `out`. Dropped lines are reported by the next line, by a flush or by the
/// drop of the log. After an hour without another line, the log would also report them in a
/// separate line, but no test runs for so long.
pub(in crate::observe) fn start(
    settings: SlowLogSettings,
    out: impl Write + Send + 'static,
) -> SlowLog {
    let destination = LogDestination::Stream(Box::new(out));
    SlowLog::start_with(&settings, destination, Duration::from_secs(3_600)).unwrap()
}

/// Total number of dropped lines that `lines` report.
fn left_out_in(lines: &[Value]) -> u64 {
    let left_out = lines.iter().filter_map(|line| line.get("left_out"));
    left_out.filter_map(Value::as_u64).sum()
}

/// Runs `use_log`, waits until all lines are written, and returns them.
fn written(settings: SlowLogSettings, use_log: impl FnOnce(&SlowLog)) -> Vec<Value> {
    let written = WrittenLines::default();
    let log = start(settings, written.clone());
    use_log(&log);
    drop(log);
    written.lines()
}

fn input(body: &RawDocument) -> CommandBytes<'_> {
    CommandBytes::of_body(body.as_bytes())
}

#[test]
fn a_redacted_slow_log_line_has_every_field_except_values() {
    let command = bson::rawdoc! { "find": "orders", "filter": { "a": "hunter2" } };
    let lines = written(settings(), |log| {
        let entry = SlowLogEntry {
            values: Some(input(&command)),
            is_streamed: true,
            ..entry()
        };
        write(log, &entry);
        let entry = SlowLogEntry {
            level: Some("coarse"),
            fine_shape: Some(1),
            opened_by: Some("aggregate"),
            ..entry
        };
        write(log, &entry);
    });
    let mut expected = json!({
        "at": "2026-11-21T18:00:44.756001Z",
        "shape": "0123456789abcdef",
        "level": "fine",
        "command": "find",
        "db": "shop",
        "collection": "orders",
        "text": "{filter: {a: ?}}",
        "outcome": "ok",
        "total_ms": 120.000021,
        "phases_ms": {
            "permit": 0.000001, "checkout": 0.000002, "forward": 0.000003,
            "server": 120.0, "receive": 0.000005, "send": 0.00001,
        },
        "request_bytes": 100,
        "reply_bytes": 2000,
        "documents": 7,
        "server": "a:27017",
        "client": 42,
        "user": "admin.app",
    });
    assert_eq!(lines[0], expected);
    expected["level"] = "coarse".into();
    expected["fine_shape"] = "0000000000000001".into();
    expected["opened_by"] = "aggregate".into();
    assert_eq!(lines[1], expected);
}

fn open() -> SlowLogSettings {
    SlowLogSettings {
        redact: false,
        ..settings()
    }
}

#[test]
fn values_are_written_and_cut_at_the_limit_if_redaction_is_off() {
    let cut = SlowLogSettings {
        max_command_bytes: 40,
        ..open()
    };
    let command = bson::rawdoc! { "insert": "c" };
    let documents = |text: &str| bson::rawdoc! { "a": text };
    let [short, long] = [documents("x"), documents(&"x".repeat(100))];
    let lines = written(cut, |log| {
        for (document, is_streamed) in [(&short, false), (&long, false), (&short, true)] {
            let sequences = [Sequence {
                identifier: b"documents",
                documents: document.as_bytes(),
            }];
            let values = CommandBytes {
                body: command.as_bytes(),
                sequences: &sequences,
            };
            let entry = SlowLogEntry {
                error_code: Some(50),
                values: Some(values),
                is_streamed,
                ..entry()
            };
            write(log, &entry);
        }
    });
    assert_eq!(lines[0]["code"], 50);
    let whole = r#"{"insert":"c","documents":[{"a":"x"}]}"#;
    assert_eq!(lines[0]["values"], whole);
    assert_eq!(lines[0].get("values_cut"), None);
    assert_eq!(lines[1]["values"].as_str().unwrap().len(), 40);
    assert_eq!(lines[1]["values_cut"], true);
    // A streamed command counts as cut, because `values` has only its first part.
    assert_eq!(lines[2]["values"], whole);
    assert_eq!(lines[2]["values_cut"], true);
}

#[test]
fn values_of_commands_with_secrets_and_of_unknown_commands_are_never_written() {
    let explain = |command: bson::RawDocumentBuf| bson::rawdoc! { "explain": command };
    let with = |name: &str| {
        let command = bson::doc! { name: "hunter2" };
        bson::RawDocumentBuf::try_from(&command).unwrap()
    };
    let secret = COMMANDS.iter().filter(|command| command.is_secret);
    let mut commands: Vec<_> = secret.map(|command| with(command.name)).collect();
    let unknown = [
        "createuser",
        "copydbsaslStart",
        "<unknown>",
        "",
        "$query",
        "whatever",
    ];
    commands.extend(unknown.map(with));
    commands.extend([
        bson::rawdoc! { "createUser": "app", "pwd": "hunter2" },
        bson::rawdoc! { "updateUser": "app", "pwd": "hunter2" },
        bson::rawdoc! { "saslStart": 1, "mechanism": "PLAIN", "payload": "hunter2" },
        bson::rawdoc! { "saslContinue": 1, "conversationId": 1, "payload": "hunter2" },
        bson::rawdoc! { "authenticate": 1, "user": "app", "key": "hunter2" },
        bson::rawdoc! { "hello": 1, "speculativeAuthenticate": { "payload": "hunter2" } },
        bson::rawdoc! { "ismaster": 1, "speculativeAuthenticate": { "payload": "hunter2" } },
        bson::rawdoc! { "setParameter": 1, "ldapQueryPassword": "hunter2" },
        bson::rawdoc! { "$db": "admin", "createUser": "app", "pwd": "hunter2" },
        bson::rawdoc! {},
    ]);
    let explained: Vec<_> = commands.iter().cloned().map(explain).collect();
    commands.extend(explained);
    commands.push(explain(explain(bson::rawdoc! { "find": "hunter2" })));
    commands.push(bson::rawdoc! { "explain": "hunter2" });
    let shown = explain(bson::rawdoc! { "find": "shown" });
    commands.push(shown);
    let lines = written(open(), |log| {
        for command in &commands {
            let values = Some(input(command));
            write(log, &SlowLogEntry { values, ..entry() });
        }
    });
    assert_eq!(lines.len(), commands.len());
    let shown: Vec<_> = lines.iter().filter_map(|line| line.get("values")).collect();
    assert_eq!(shown, [r#"{"explain":{"find":"shown"}}"#]);
}

#[test]
fn commands_on_credentials_in_the_admin_database_are_logged_without_values() {
    let user = || bson::rawdoc! { "_id": "shop.app", "credentials": "hunter2" };
    let update = || bson::rawdoc! { "q": {}, "u": { "$set": { "credentials": "hunter2" } } };
    let of = |db: &str| {
        let bulk = bson::rawdoc! {
            "bulkWrite": 1, "ops": [{ "insert": 0, "document": user() }],
            "nsInfo": [{ "ns": format!("{db}.system.users") }], "$db": "admin",
        };
        let find = bson::rawdoc! { "find": "system.users", "filter": user() };
        let copy = bson::rawdoc! { "$merge": { "into": { "db": db, "coll": "tempusers" } } };
        let made = bson::rawdoc! { "$documents": [user()] };
        let kind = bson::rawdoc! { "$match": { "kind": "admin" } };
        [
            bson::rawdoc! { "aggregate": "copies", "pipeline": [copy], "$db": "shop" },
            bson::rawdoc! { "aggregate": 1, "pipeline": [made], "$db": db },
            bson::rawdoc! { "aggregate": "orders", "pipeline": [kind], "$db": db },
            bson::rawdoc! { "insert": "system.users", "documents": [user()], "$db": db },
            bson::rawdoc! { "insert": "tempusers", "documents": [user()], "$db": db },
            bson::rawdoc! { "update": "system.users", "updates": [update()], "$db": db },
            bson::rawdoc! { "explain": find, "$db": db },
            bulk,
        ]
    };
    let commands: Vec<_> = of("admin").into_iter().chain(of("shop")).collect();
    let lines = written(open(), |log| {
        for command in &commands {
            let values = Some(input(command));
            write(log, &SlowLogEntry { values, ..entry() });
        }
    });
    let shown = lines.iter().map(|line| line.get("values").is_some());
    let expected = [[false; 8], [true; 8]].concat();
    assert_eq!(shown.collect::<Vec<_>>(), expected);
}

#[test]
fn operations_that_reach_their_threshold_are_logged() {
    let thresholds = vec![
        (9, Duration::from_millis(500)),
        (SHAPE, Duration::from_millis(5)),
    ];
    let filter = |threshold_ms| {
        Filter::new(&SlowLogSettings {
            threshold: Duration::from_millis(threshold_ms),
            shape_thresholds: thresholds.clone(),
            ..settings()
        })
    };
    let ms = Duration::from_millis;
    for (threshold_ms, shape, total, is_wanted) in [
        (100, 1, ms(100), true),
        (100, 1, ms(100) - Duration::from_nanos(1), false),
        (100, SHAPE, ms(5), true),
        (100, SHAPE, ms(4), false),
        (100, 9, ms(499), false),
        (100, 9, ms(500), true),
        (0, 1, Duration::ZERO, true),
        (0, SHAPE, ms(4), false),
    ] {
        let filter = filter(threshold_ms);
        assert_eq!(
            total >= filter.threshold_of(shape) && filter.samples(),
            is_wanted,
            "{threshold_ms} {shape} {total:?}"
        );
    }
}

#[test]
fn two_alternating_kinds_of_slow_operations_are_sampled_equally() {
    for (percent, least, most) in [
        (0.0, 0, 0),
        (0.5, 400, 600),
        (50.0, 49_000, 51_000),
        (100.0, 100_000, 100_000),
    ] {
        let filter = Filter::new(&SlowLogSettings {
            sample_percent: percent,
            ..settings()
        });
        let mut taken = [0; 2];
        for number in 0..200_000 {
            let slow = filter.samples();
            taken[number % 2] += u32::from(slow);
        }
        for taken in taken {
            assert!((least..=most).contains(&taken), "{percent} %: {taken}");
        }
    }
}

#[test]
fn operations_below_the_threshold_do_not_affect_the_sample() {
    let filter = Filter::new(&SlowLogSettings {
        sample_percent: 50.0,
        ..settings()
    });
    assert!(filter.threshold_of(1) > Duration::ZERO);
    assert_eq!(filter.numbered.load(Ordering::Relaxed), 0);
}

#[test]
fn lines_over_the_limit_per_second_are_dropped_and_counted_in_the_next_line() {
    let limited = SlowLogSettings {
        max_lines_per_second: NonZeroU32::new(2),
        ..settings()
    };
    let lines = written(limited, |log| {
        let at = |seconds, documents| SlowLogEntry {
            at: UNIX_EPOCH + Duration::from_secs(seconds),
            documents,
            ..entry()
        };
        for number in 0..5 {
            write(log, &at(10, number));
        }
        assert_eq!(log.left_out(), 3);
        write(log, &at(11, 5));
        write(log, &at(11, 6));
        write(log, &at(11, 7));
        // After the clock was set back, the log must not stay blocked until the old time is reached
        // again.
        write(log, &at(9, 8));
        assert_eq!(log.left_out(), 4);
    });
    let documents: Vec<&Value> = lines.iter().map(|line| &line["documents"]).collect();
    assert_eq!(documents, [0, 1, 5, 6, 8]);
    assert_eq!(left_out_in(&lines), 4);
}

#[test]
fn lines_are_dropped_before_they_are_built_if_the_queue_is_full() {
    let out = WrittenLines::default();
    let (held, block) = BlockingWriter::new(&out);
    let log = start(settings(), held);
    // Variables are dropped in reverse order. `block` is declared again, so that it is dropped
    // before the log if an assertion fails: the drop of the log waits until the writer is
    // unblocked.
    let block = block;
    write(&log, &entry());
    block.wait_until_it_writes();
    for _ in 0..QUEUED_LINES {
        write(&log, &entry());
    }
    assert_eq!(log.left_out(), 0);
    for _ in 0..100 {
        assert!(log.admit(1, entry().at).is_none());
    }
    assert_eq!(log.left_out(), 100);
    drop(block);
    drop(log);
    let lines = out.lines();
    assert_eq!(lines.len(), QUEUED_LINES + 1);
    assert_eq!(left_out_in(&lines), 100);
}

/// A permit reserves an entry in the queue of the slow log for one line.
#[test]
fn dropping_an_unused_line_permit_frees_its_queue_entry_and_counts_a_dropped_line() {
    let lines = written(settings(), |log| {
        for _ in 0..QUEUED_LINES * 2 {
            drop(log.admit(1, entry().at).unwrap());
        }
    });
    assert_eq!(
        left_out_in(&lines),
        2 * u64::try_from(QUEUED_LINES).unwrap()
    );
}

/// A writer that sends each line to the test.
struct Sent(mpsc::Sender<Value>);

impl Write for Sent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(serde_json::from_slice(bytes)?).unwrap();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn one_line_a_second() -> SlowLogSettings {
    SlowLogSettings {
        max_lines_per_second: NonZeroU32::new(1),
        ..settings()
    }
}

#[test]
fn dropped_lines_are_reported_even_if_no_other_line_follows() {
    let (sender, lines) = mpsc::channel();
    let destination = LogDestination::Stream(Box::new(Sent(sender)));
    let quiet = Duration::from_millis(1);
    let log = SlowLog::start_with(&one_line_a_second(), destination, quiet).unwrap();
    write(&log, &entry());
    let first = lines.recv_timeout(LIMIT).unwrap();
    assert_eq!(first["documents"], 7);
    for _ in 0..4 {
        write(&log, &entry());
    }
    // A report may be written while lines are still being dropped, so there may be several reports.
    let mut left_out = 0;
    while left_out < 4 {
        let line: Value = lines.recv_timeout(LIMIT).unwrap();
        assert!(line["at"].is_string());
        assert_eq!(line.as_object().unwrap().len(), 2, "{line}");
        left_out += left_out_in(&[line]);
    }
    assert_eq!(left_out, 4);
    drop(log);
    // Each dropped line is reported once.
    assert_eq!(lines.try_iter().count(), 0);
}

#[test]
fn flushing_the_log_or_closing_it_reports_dropped_lines() {
    let out = WrittenLines::default();
    let log = start(one_line_a_second(), out.clone());
    for _ in 0..5 {
        write(&log, &entry());
    }
    log.flush();
    assert_eq!(left_out_in(&out.lines()), 4);
    write(&log, &entry());
    drop(log);
    let lines = out.lines();
    assert_eq!(left_out_in(&lines), 5);
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.get("shape").is_some())
            .count(),
        1
    );
}

#[test]
fn lines_that_cannot_be_written_are_counted_in_the_next_line() {
    /// A writer whose first write fails.
    struct Failing(bool, WrittenLines);
    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::take(&mut self.0) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let out = WrittenLines::default();
    let log = start(settings(), Failing(true, out.clone()));
    write(&log, &entry());
    write(&log, &entry());
    write(&log, &entry());
    drop(log);
    let lines = out.lines();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["left_out"], 1);
    assert_eq!(lines[1].get("left_out"), None);
}

#[test]
fn a_log_that_is_started_again_appends_to_its_file() {
    let name = format!("seawall-slow-log-{}.jsonl", std::process::id());
    let path = std::env::temp_dir().join(name);
    for _ in 0..2 {
        let log = SlowLog::start(SlowLogSettings {
            file: Some(path.clone()),
            ..settings()
        });
        write(&log.unwrap(), &entry());
    }
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(text.lines().count(), 2);
}
