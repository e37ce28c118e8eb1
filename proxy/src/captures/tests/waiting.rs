//! Tests of [`Tap`]s that keep operations in memory until an event begins a capture, and of the
//! replacement of these taps.

use super::*;

/// Until an event, such as a storm, begins a capture, Seawall keeps the last operations in memory.
#[test]
fn kept_operations_are_dropped_if_a_capture_starts_or_no_event_can_begin_one() {
    let folder = Folder::new("replaced");
    let captures = folder.captures(|settings| settings.on = vec![EventKind::Storm]);
    let mut client = CapturedClient::default();
    let find = || doc! {"find": "c", "$db": "d"};
    captures.prepare();
    let armed = captures.running.armed().unwrap();
    assert!(operate(&captures, &mut client, find(), None));
    assert!(armed.queue.used_bytes() > 0);
    let capture = captures.start(plan()).unwrap();
    assert_eq!(armed.queue.used_bytes(), 0);
    captures.stop(&id_of(&capture)).unwrap();
    captures.prepare();
    let armed = captures.running.armed().unwrap();
    assert!(operate(&captures, &mut client, find(), None));
    captures.configure(Some(folder.settings()));
    captures.prepare();
    assert_eq!(armed.queue.used_bytes(), 0);
}

/// Until an event, such as a storm, begins a capture, Seawall keeps the last operations in memory.
#[test]
fn the_buffer_of_kept_operations_is_replaced_if_one_of_its_limits_changes() {
    let folder = Folder::new("limits-of-lead");
    let waiting = || CaptureSettings {
        on: vec![EventKind::Storm],
        ..folder.settings()
    };
    let captures = Captures::new(Some(waiting()), Box::new(Vec::new));
    captures.prepare();
    let number = || captures.running.armed().unwrap().number;
    let changes: [fn(&mut CaptureSettings); 4] = [
        |settings| settings.lead = Duration::from_secs(5),
        |settings| settings.lead_bytes = 1 << 10,
        |settings| settings.queue_bytes = 1 << 10,
        |settings| settings.max_bytes_per_second = Some(1),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let before = number();
        let mut settings = waiting();
        change(&mut settings);
        captures.configure(Some(settings));
        captures.prepare();
        let changed = number();
        assert_ne!(changed, before, "change {index}");
        captures.prepare();
        assert_eq!(number(), changed, "change {index}");
    }
}

#[test]
fn an_event_begins_a_capture_after_the_capture_of_an_earlier_event_failed() {
    let folder = Folder::new("failed-begin");
    // The capture directory is a symbolic link to a path that does not exist. So Seawall cannot
    // create the directory, and no capture can begin.
    std::os::unix::fs::symlink(folder.0.with_extension("absent"), &folder.0).unwrap();
    let captures = folder.captures(|settings| settings.on = vec![EventKind::Storm]);
    captures.prepare();
    captures.begin_on(EventKind::Storm, "storm");
    assert!(!captures.figures().is_running);
    fs::remove_file(&folder.0).unwrap();
    captures.prepare();
    captures.begin_on(EventKind::Storm, "another storm");
    let begun = captures.list().unwrap();
    captures.stop(&id_of(&begun[0])).unwrap();
    let (records, _) = folder.read(&begun[0].id);
    assert!(matches!(&records[0], Content::Event(event) if event.text == "another storm"));
}

#[test]
fn kept_operations_are_in_the_next_capture_if_a_capture_cannot_create_its_files() {
    let folder = Folder::new("uncreated");
    std::os::unix::fs::symlink(folder.0.with_extension("absent"), &folder.0).unwrap();
    let captures = folder.captures(|settings| settings.on = vec![EventKind::Storm]);
    let mut client = CapturedClient::default();
    let find = doc! {"find": "c", "$db": "d"};
    captures.prepare();
    assert!(operate(&captures, &mut client, find, None));
    captures.begin_on(EventKind::Storm, "storm");
    captures.prepare();
    let omitted = captures.figures().omitted;
    assert!(omitted.iter().all(|(_, count)| *count == 0), "{omitted:?}");
    fs::remove_file(&folder.0).unwrap();
    captures.begin_on(EventKind::Storm, "another storm");
    let begun = captures.list().unwrap();
    captures.stop(&id_of(&begun[0])).unwrap();
    let (records, _) = folder.read(&begun[0].id);
    let is_command = |record: &Content| matches!(record, Content::Command(_));
    assert!(records.iter().any(is_command), "{records:?}");
}
