//! Tests of reloads that change the directory of captures, or turn captures off.

use super::*;

impl CaptureParts {
    /// The parts of a capture that does not exist.
    pub(crate) fn of_no_capture(id: CaptureId) -> Self {
        Directory::new(PathBuf::from("/nowhere")).parts(id)
    }
}

#[test]
fn the_running_capture_is_listed_and_read_after_a_reload_has_changed_the_directory() {
    let (folder, other) = (Folder::new("reloaded"), Folder::new("reloaded-other"));
    for is_off in [false, true] {
        let captures = folder.captures(|_| ());
        let id = id_of(&captures.start(plan()).unwrap());
        captures.configure((!is_off).then(|| other.settings()));
        let running = captures.list().unwrap();
        assert_eq!(running.len(), 1);
        assert!(running[0].is_running && id_of(&running[0]) == id);
        let parts = captures.parts(&id).unwrap();
        captures.stop(&id).unwrap();
        assert!(parts.path(0).unwrap().is_some());
        let ended = captures.list().unwrap();
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].end.as_deref(), Some("stopped"));
        captures.delete(&id).unwrap();
        match is_off {
            true => assert!(matches!(captures.list(), Err(CaptureError::Off))),
            false => assert!(captures.list().unwrap().is_empty()),
        }
        assert!(parts.path(0).is_err());
    }
}
