//! Tests of the command `seawall capture`: a user interrupts the command, or Seawall refuses the
//! capture.

use std::{fs, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use seawall_api::Captures;
use seawall_capture::record::EndReason;
use seawall_tests::{
    eventually::eventually,
    process::{binary, run},
    recorder::Recorder,
    scratch::Scratch,
    seawall::Seawall,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{
    capture::{Read, capturing},
    scene,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A running `seawall capture --output FILE`. The recorder forwards the bytes between this command
/// and Seawall.
struct Copying {
    child: Child,
    recorder: Recorder,
    /// The id of the capture.
    id: String,
}

impl Copying {
    /// Starts the command. Returns when the capture runs. If `holds_replies` is true, the replies
    /// of Seawall do not reach the command yet.
    async fn start(seawall: &Seawall, file: &Path, holds_replies: bool) -> Self {
        let admin = seawall.app.admin_address().unwrap().parse().unwrap();
        let recorder = Recorder::start(admin).await.unwrap();
        recorder.hold_replies(holds_replies);
        let url = format!("http://{}", recorder.address());
        let mut command = Command::new(binary());
        command.args(["capture", "--duration", "1h", "--admin", &url, "--output"]);
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.kill_on_drop(true).spawn().unwrap();
        let running = async || {
            let captures: Captures = seawall.api("/api/v1/captures").await;
            let mut captures = captures.captures.into_iter();
            captures.find(|capture| capture.running)
        };
        let capture = eventually(LIMIT, running).await.unwrap();
        Self {
            child,
            recorder,
            id: capture.id,
        }
    }

    /// Starts the command. Returns when the first bytes of the capture are in the file.
    async fn start_and_copy(seawall: &Seawall, file: &Path) -> Self {
        let copying = Self::start(seawall, file, false).await;
        let user = scene::writer().await;
        let mut client = scene::logged_in(seawall, &user.login()).await;
        scene::find(&mut client, &user.name).await;
        let has_begun = async || fs::metadata(file).is_ok_and(|file| file.len() > 0);
        eventually(LIMIT, has_begun).await.unwrap();
        copying
    }

    fn interrupt(&self) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    }

    /// Interrupts the command. Returns when the command has sent its request to stop the capture.
    async fn interrupt_and_wait(&self) {
        self.interrupt();
        let is_sent = async || {
            let connections = self.recorder.connections();
            let mut sent = connections
                .iter()
                .map(|connection| String::from_utf8_lossy(&connection.from_client));
            sent.any(|text| text.contains("/stop"))
        };
        eventually(LIMIT, is_sent).await.unwrap();
    }

    /// Repeats the interrupt until the command has ended, because interrupts that arrive at the
    /// same time count as one. Returns the exit status of the command.
    async fn interrupt_until_ended(&mut self) -> Option<i32> {
        let ended = async {
            loop {
                self.interrupt();
                let ended = timeout(Duration::from_millis(50), self.child.wait()).await;
                if let Ok(status) = ended {
                    return status.unwrap().code();
                }
            }
        };
        timeout(LIMIT, ended).await.unwrap()
    }

    /// Waits until the command has ended, and returns its exit status.
    async fn ended(&mut self) -> Option<i32> {
        let ended = timeout(LIMIT, self.child.wait()).await;
        ended.unwrap().unwrap().code()
    }

    /// Sends the held replies. Checks that the command then succeeds, and that its output file ends
    /// with the record of a stopped capture.
    async fn release_and_check(&mut self, file: &Path) {
        self.recorder.hold_replies(false);
        assert_eq!(self.ended().await, Some(0));
        let copied = Read::from_bytes(&fs::read(file).unwrap());
        assert_eq!(copied.end(), EndReason::Stopped);
    }
}

#[tokio::test]
async fn if_the_start_of_a_capture_is_refused_no_output_file_remains() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    // Another capture runs, so Seawall refuses the start.
    seawall.start_capture("").await;
    let file = scratch.join("copy.swc");
    let admin = seawall.app.admin_address().unwrap();
    let arguments = ["capture", "--admin", admin, "--output"];
    let refused = run(&[&arguments[..], &[file.to_str().unwrap()]].concat()).await;
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    assert!(!file.exists());
}

#[tokio::test]
async fn ctrl_c_during_the_start_of_a_capture_stops_the_capture() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let file = scratch.join("copy.swc");
    let mut copying = Copying::start(&seawall, &file, true).await;
    copying.interrupt();
    copying.release_and_check(&file).await;
}

#[tokio::test]
async fn after_a_second_ctrl_c_during_the_start_of_a_capture_no_output_file_remains() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let file = scratch.join("copy.swc");
    let mut copying = Copying::start(&seawall, &file, true).await;
    assert_eq!(copying.interrupt_until_ended().await, Some(130));
    assert!(!file.exists());
}

#[tokio::test]
async fn after_ctrl_c_a_capture_that_has_already_ended_is_copied_to_its_end() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let file = scratch.join("copy.swc");
    let mut copying = Copying::start_and_copy(&seawall, &file).await;
    // The capture ends, but its last bytes reach the command only after Ctrl-C.
    copying.recorder.hold_replies(true);
    seawall.stop_capture(&copying.id).await;
    copying.interrupt_and_wait().await;
    copying.release_and_check(&file).await;
}

#[tokio::test]
async fn a_second_ctrl_c_ends_the_copy_of_a_capture() {
    let scratch = Scratch::create().unwrap();
    let seawall = capturing(&scratch, "").await;
    let mut copying = Copying::start_and_copy(&seawall, &scratch.join("copy.swc")).await;
    copying.recorder.hold_replies(true);
    copying.interrupt_and_wait().await;
    copying.interrupt();
    assert_eq!(copying.ended().await, Some(130));
}
