use std::{
    io::{self, Write},
    sync::{Arc, mpsc},
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

const SHAPE: u64 = 0x0123_4567_89ab_cdef;

fn settings() -> SlowLogSettings {
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

fn entry() -> Entry<'static> {
    Entry {
        at: UNIX_EPOCH + Duration::from_micros(1_795_284_044_756_001),
        shape: SHAPE,
        command: "find",
        db: "shop",
        collection: "orders",
        text: "{filter: {a: ?}}",
        outcome: "ok",
        error_code: None,
        total: Duration::from_nanos(120_000_021),
        phases: [1, 2, 3, 120_000_000, 5, 10].map(Duration::from_nanos),
        request_bytes: 100,
        reply_bytes: 2_000,
        documents: 7,
        server: Some("a:27017"),
        client: 42,
        user: Some("admin.app"),
        application: None,
        command_json: None,
    }
}

/// What was written, to be read by the test.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn lines(&self) -> Vec<Value> {
        let bytes = self.0.lock();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Lets `use_log` log, and returns the lines when all are written.
fn written(settings: SlowLogSettings, use_log: impl FnOnce(&SlowLog)) -> Vec<Value> {
    let written = Written::default();
    let destination = Destination::Stream(Box::new(written.clone()));
    let log = SlowLog::start_with(settings, destination).unwrap();
    use_log(&log);
    drop(log);
    written.lines()
}

#[test]
fn a_line_says_all_but_the_values() {
    let lines = written(settings(), |log| {
        log.write(&Entry {
            command_json: Some(r#"{"find":"orders","filter":{"a":"hunter2"}}"#.to_owned()),
            ..entry()
        });
    });
    let expected = json!({
        "at": "2026-11-21T18:00:44.756001Z",
        "shape": "0123456789abcdef",
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
    assert_eq!(lines, [expected]);
}

#[test]
fn values_are_shown_when_asked_for_and_cut() {
    let open = || SlowLogSettings {
        redact: false,
        max_command_bytes: 40,
        ..settings()
    };
    let command = bson::rawdoc! { "find": "c", "filter": { "a": 1 } };
    let long = bson::rawdoc! { "find": "c", "filter": { "a": "x".repeat(100) } };
    let lines = written(open(), |log| {
        for command in [&command, &long] {
            let command_json = log.values("find", command);
            log.write(&Entry {
                error_code: Some(50),
                command_json,
                ..entry()
            });
        }
    });
    assert_eq!(lines[0]["code"], 50);
    assert_eq!(lines[0]["values"], r#"{"find":"c","filter":{"a":1}}"#);
    assert_eq!(lines[0].get("values_cut"), None);
    assert_eq!(lines[1]["values"].as_str().unwrap().len(), 40);
    assert_eq!(lines[1]["values_cut"], true);
    written(settings(), |log| {
        assert_eq!(log.values("find", &command), None)
    });
}

#[test]
fn commands_that_carry_secrets_are_redacted_all_the_same() {
    let open = SlowLogSettings {
        redact: false,
        ..settings()
    };
    let command = bson::rawdoc! { "createUser": "app", "pwd": "hunter2" };
    let lines = written(open, |log| {
        assert_eq!(log.values("createUser", &command), None);
        log.write(&Entry {
            command: "createuser",
            command_json: Some("hunter2".to_owned()),
            ..entry()
        });
    });
    assert_eq!(lines[0].get("values"), None);
}

#[test]
fn operations_are_wanted_from_their_threshold_on() {
    let thresholds = vec![
        (9, Duration::from_millis(500)),
        (SHAPE, Duration::from_millis(5)),
    ];
    let choice = |threshold_ms| {
        Choice::new(&SlowLogSettings {
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
        let choice = choice(threshold_ms);
        assert_eq!(
            choice.takes(shape, total),
            is_wanted,
            "{threshold_ms} {shape} {total:?}"
        );
    }
}

#[test]
fn a_share_of_the_slow_operations_is_wanted_whatever_their_order() {
    for (percent, least, most) in [
        (0.0, 0, 0),
        (0.5, 400, 600),
        (50.0, 49_000, 51_000),
        (100.0, 100_000, 100_000),
    ] {
        let choice = Choice::new(&SlowLogSettings {
            sample_percent: percent,
            ..settings()
        });
        let mut taken = [0; 2];
        for turn in 0..200_000 {
            let slow = choice.takes(1, Duration::from_secs(1));
            taken[turn % 2] += u32::from(slow);
        }
        for taken in taken {
            assert!((least..=most).contains(&taken), "{percent} %: {taken}");
        }
    }
}

#[test]
fn fast_operations_are_no_turn_of_the_sample() {
    let choice = Choice::new(&SlowLogSettings {
        sample_percent: 50.0,
        ..settings()
    });
    assert!(!choice.takes(1, Duration::ZERO));
    assert_eq!(choice.turn.load(Ordering::Relaxed), 0);
}

#[test]
fn lines_over_the_rate_are_left_out_and_the_next_one_says_how_many() {
    let limited = SlowLogSettings {
        max_lines_per_second: NonZeroU32::new(2),
        ..settings()
    };
    let lines = written(limited, |log| {
        let at = |seconds, documents| Entry {
            at: UNIX_EPOCH + Duration::from_secs(seconds),
            documents,
            ..entry()
        };
        for turn in 0..5 {
            log.write(&at(10, turn));
        }
        assert_eq!(log.left_out(), 3);
        log.write(&at(11, 5));
        log.write(&at(11, 6));
        log.write(&at(11, 7));
        // A clock that was set back must not close the log until it has caught up.
        log.write(&at(9, 8));
        assert_eq!(log.left_out(), 4);
    });
    let documents: Vec<&Value> = lines.iter().map(|line| &line["documents"]).collect();
    assert_eq!(documents, [0, 1, 5, 6, 8]);
    let told: u64 = lines
        .iter()
        .filter_map(|line| line.get("left_out")?.as_u64())
        .sum();
    assert_eq!(told, 4);
}

#[test]
fn lines_that_find_the_queue_full_are_left_out_and_told() {
    /// Writes nothing before it is let go.
    struct Held(mpsc::Receiver<()>, Written);
    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Nothing is ever sent: it goes on, for good, when the sender is gone.
            assert!(self.0.recv().is_err());
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (let_go, held) = mpsc::channel();
    let out = Written::default();
    let destination = Destination::Stream(Box::new(Held(held, out.clone())));
    let log = SlowLog::start_with(settings(), destination).unwrap();
    for _ in 0..QUEUED_LINES + 100 {
        log.write(&entry());
    }
    // The thread may hold one line more than the queue.
    let left_out = log.left_out();
    assert!((99..=100).contains(&left_out), "{left_out}");
    drop(let_go);
    drop(log);
    let lines = out.lines();
    assert_eq!(
        lines.len() + usize::try_from(left_out).unwrap(),
        QUEUED_LINES + 100
    );
    let told: u64 = lines
        .iter()
        .filter_map(|line| line.get("left_out")?.as_u64())
        .sum();
    assert_eq!(told, left_out);
}

#[test]
fn lines_that_cannot_be_written_are_left_out_and_told_by_the_next() {
    /// Fails the first time.
    struct Failing(bool, Written);
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
    let out = Written::default();
    let destination = Destination::Stream(Box::new(Failing(true, out.clone())));
    let log = SlowLog::start_with(settings(), destination).unwrap();
    log.write(&entry());
    log.write(&entry());
    log.write(&entry());
    drop(log);
    let lines = out.lines();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["left_out"], 1);
    assert_eq!(lines[1].get("left_out"), None);
}

#[test]
fn one_file_takes_the_lines_of_several_starts() {
    let name = format!("seawall-slow-log-{}.jsonl", std::process::id());
    let path = std::env::temp_dir().join(name);
    for _ in 0..2 {
        let log = SlowLog::start(SlowLogSettings {
            file: Some(path.clone()),
            ..settings()
        });
        log.unwrap().write(&entry());
    }
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(text.lines().count(), 2);
}
