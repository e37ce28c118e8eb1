//! Tests of captures that cannot start.

use std::sync::mpsc::Sender;

use super::*;

impl CaptureSettings {
    /// Settings for tests, with which no event begins a capture.
    pub(crate) fn for_tests(directory: PathBuf) -> Self {
        Self {
            directory,
            max_bytes: 1 << 30,
            max_part_bytes: 1 << 20,
            max_bytes_per_second: None,
            queue_bytes: 64 << 20,
            retention: None,
            max_duration: Duration::from_secs(60),
            on: Vec::new(),
            lead: Duration::from_secs(10),
            lead_bytes: 1 << 20,
            redaction: Redaction::None,
            redaction_key: None,
        }
    }
}

impl Captures {
    /// Returns captures whose starts hang until the returned sender is dropped.
    pub(crate) fn with_hanging_starts(settings: CaptureSettings) -> (Arc<Self>, Sender<()>) {
        let (gate, wait) = channel::<()>();
        let wait = Mutex::new(wait);
        let servers = move || {
            wait.lock().recv().ok();
            Vec::new()
        };
        let captures = Self::new(Some(settings), Box::new(servers));
        (Arc::new(captures), gate)
    }
}

#[test]
fn a_capture_whose_thread_cannot_be_started_leaves_no_directory() {
    let folder = Folder::new("no-thread");
    let captures = folder.captures(|_| ());
    let settings = folder.settings();
    let now = Instant::now();
    let queue = Queue::new(limits_of(&settings), now);
    let all = Selection::default();
    let tap = captures.tap(&mut 0, all, ReplyDetail::Facts, queue, now);
    let beginning = Beginning {
        offset_us: 0,
        began_at: SystemTime::now(),
        until: now + settings.max_duration,
        trigger: "operator",
        redacting: Redacting::choose(&settings, None).unwrap(),
    };
    let written = Arc::new(Written::new(tap, beginning));
    create(&settings, &written).unwrap();
    let room = room(&settings).unwrap();
    let begun = captures.write_on(&written, &settings, room, |_| {
        Err(io::Error::other("no thread"))
    });
    assert!(matches!(begun, Err(CaptureError::Io(_))), "{begun:?}");
    assert!(!captures.figures().is_running);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn two_processes_do_not_capture_into_one_directory_at_the_same_time() {
    let folder = Folder::new("shared");
    let [captures, other] = [(), ()].map(|()| folder.captures(|_| ()));
    let capture = captures.start(plan()).unwrap();
    let refused = other.start(plan());
    assert!(matches!(refused, Err(CaptureError::InUse)), "{refused:?}");
    captures.stop(&id_of(&capture)).unwrap();
    other.start(plan()).unwrap();
}
