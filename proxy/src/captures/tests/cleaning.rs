//! Tests of the search for expired captures.

use super::*;

#[test]
fn no_further_search_for_expired_captures_begins_while_a_search_hangs() {
    let folder = Folder::new("hung-search");
    let hour = Duration::from_secs(3_600);
    let captures = Arc::new(folder.captures(|settings| settings.retention = Some(hour)));
    let begins_if_due = || {
        *captures.cleaned_at.lock() = None;
        captures.take_cleaning_turn()
    };
    assert!(begins_if_due());
    // At its end, the search measures the captures. So it waits for this lock.
    let measuring = captures.kept.measuring.lock();
    let searching = Arc::clone(&captures);
    let search = thread::spawn(move || searching.clean());
    while captures.starts.try_lock().is_some() {
        thread::yield_now();
    }
    assert!(!begins_if_due());
    drop(measuring);
    search.join().unwrap();
    assert!(begins_if_due());
}

/// The metric `seawall_capture_bytes` is the size of the captures that have ended plus the size of
/// the running capture. So the running capture must not count twice.
#[test]
fn a_capture_that_begins_while_the_captures_are_measured_is_not_counted_as_ended() {
    let folder = Folder::new("measured");
    let captures = folder.captures(|_| {});
    let list = || {
        let capture = captures.start(plan()).unwrap();
        Ok(vec![StoredCapture {
            id: id_of(&capture),
            bytes: 100,
            parts: 1,
            modified_at: SystemTime::now(),
            summary: None,
        }])
    };
    captures.kept.measure(list, &captures.running);
    assert_eq!(captures.kept.bytes.load(Ordering::Relaxed), 0);
}

/// `kept_bytes` becomes the metric `seawall_capture_bytes`.
#[test]
fn captures_that_were_deleted_on_the_disk_are_not_counted_even_without_a_retention() {
    let folder = Folder::new("deleted-by-hand");
    let captures = folder.captures(|settings| settings.retention = None);
    let capture = captures.start(plan()).unwrap();
    captures.stop(&id_of(&capture)).unwrap();
    assert!(captures.figures().kept_bytes > 0);
    fs::remove_dir_all(&folder.0).unwrap();
    captures.clean();
    assert_eq!(captures.figures().kept_bytes, 0);
}

/// `kept_bytes` becomes the metric `seawall_capture_bytes`. The directory cannot be read, for
/// example, while the process has no free descriptor.
#[test]
fn the_size_of_the_captures_on_disk_stays_the_same_while_the_directory_cannot_be_read() {
    let folder = Folder::new("unreadable");
    let captures = folder.captures(|_| {});
    let capture = captures.start(plan()).unwrap();
    captures.stop(&id_of(&capture)).unwrap();
    let measured = captures.figures().kept_bytes;
    assert!(measured > 0);
    let unreadable = || Err(io::ErrorKind::PermissionDenied.into());
    captures.kept.measure(unreadable, &captures.running);
    assert_eq!(captures.figures().kept_bytes, measured);
}
