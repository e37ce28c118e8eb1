//! A session that waits for an event, and its replacement.

use super::*;

#[test]
fn idle_client_keeps_no_records_of_a_session_that_was_replaced() {
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
