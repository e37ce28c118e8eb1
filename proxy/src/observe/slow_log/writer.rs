//! The thread that writes the lines, and what it writes to.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{
    Accounts, LeftOut,
    line::{finish, only_left_out},
};

/// Time between two looks whether the file is still where it was.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Readable for the log's owner and group: with values it holds the applications' data.
const FILE_MODE: u32 = 0o640;

/// What the thread is given.
pub(super) enum Queued {
    /// A line without its end.
    Line(Vec<u8>),
    /// Nothing more may come: tell what was left out, and say when that is done.
    Flush(SyncSender<()>),
}

/// Writes lines until nobody can send one any more and all that were sent are written. What was left out is told by the
/// next line, or by one of its own when none has come for as long as `quiet`.
pub(super) fn write_all(
    queue: &Receiver<Queued>,
    destination: Destination,
    accounts: &Accounts,
    quiet: Duration,
) {
    let mut writer = Writer {
        destination,
        left_out: &accounts.left_out,
        is_failing: false,
    };
    loop {
        match queue.recv_timeout(quiet) {
            Ok(Queued::Line(line)) => {
                accounts.waiting.fetch_sub(1, Ordering::Relaxed);
                writer.write(line);
            }
            Ok(Queued::Flush(done)) => {
                writer.tell();
                // Who asked may have waited long enough.
                done.try_send(()).ok();
            }
            Err(RecvTimeoutError::Timeout) => writer.tell(),
            Err(RecvTimeoutError::Disconnected) => {
                writer.tell();
                return;
            }
        }
    }
}

struct Writer<'a> {
    destination: Destination,
    left_out: &'a LeftOut,
    is_failing: bool,
}

impl Writer<'_> {
    fn write(&mut self, mut line: Vec<u8>) {
        let untold = self.left_out.untold();
        finish(&mut line, untold);
        if self.try_write(&line) {
            self.left_out.tell(untold);
        } else {
            self.left_out.add(1);
        }
    }

    /// Tells what was left out since the last line, if anything was.
    fn tell(&mut self) {
        let untold = self.left_out.untold();
        if untold > 0 && self.try_write(&only_left_out(SystemTime::now(), untold)) {
            self.left_out.tell(untold);
        }
    }

    fn try_write(&mut self, line: &[u8]) -> bool {
        let written = self.destination.write(line, Instant::now());
        if let Err(error) = &written
            // Once, and not for every line while it lasts.
            && !self.is_failing
        {
            tracing::warn!(%error, "slow log not written");
        }
        self.is_failing = written.is_err();
        written.is_ok()
    }
}

/// Where lines go.
pub(super) enum Destination {
    /// Standard error, or what a test reads.
    Stream(Box<dyn Write + Send>),
    /// A file, opened again when it was moved away.
    File(LogFile),
}

impl Destination {
    /// Opens the file, if there is one.
    pub(super) fn open(file: Option<PathBuf>) -> io::Result<Self> {
        Ok(match file {
            Some(path) => Self::File(LogFile::open(path)?),
            None => Self::Stream(Box::new(io::stderr())),
        })
    }

    /// A whole line in one piece, so that lines of others to the same place do not come between.
    fn write(&mut self, line: &[u8], now: Instant) -> io::Result<()> {
        match self {
            Self::Stream(stream) => {
                stream.write_all(line)?;
                stream.flush()
            }
            Self::File(file) => file.write(line, now),
        }
    }
}

/// A file that may be rotated.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    looked_at: Option<Instant>,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = append_to(&path)?;
        Ok(Self {
            path,
            file,
            looked_at: None,
        })
    }

    fn write(&mut self, line: &[u8], now: Instant) -> io::Result<()> {
        let is_due =
            |looked_at: Instant| now.saturating_duration_since(looked_at) >= LOOK_AGAIN_AFTER;
        if self.looked_at.is_none_or(is_due) {
            self.looked_at = Some(now);
            if !self.is_in_place()? {
                self.file = append_to(&self.path)?;
            }
        }
        // A file has no buffer of its own: what is written is flushed.
        self.file.write_all(line)
    }

    /// Whether the path still leads to the file that is open.
    fn is_in_place(&self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        Ok(match fs::metadata(&self.path) {
            Ok(named) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
            Err(_) => false,
        })
    }
}

fn append_to(path: &PathBuf) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(FILE_MODE).open(path)
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn a_file_that_was_moved_away_is_made_anew_after_a_second() {
        let folder = env::temp_dir().join(format!("seawall-slow-log-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, moved) = (folder.join("slow.jsonl"), folder.join("slow.jsonl.1"));
        fs::write(&path, "earlier\n").unwrap();
        let mut file = LogFile::open(path.clone()).unwrap();
        let start = Instant::now();
        file.write(b"1\n", start).unwrap();
        fs::rename(&path, &moved).unwrap();
        file.write(b"2\n", start + LOOK_AGAIN_AFTER / 2).unwrap();
        assert!(!path.exists());
        file.write(b"3\n", start + LOOK_AGAIN_AFTER).unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "earlier\n1\n2\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "3\n");
        // Another file in its place is taken up like none.
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, "").unwrap();
        file.write(b"4\n", start + 2 * LOOK_AGAIN_AFTER).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_at_the_start() {
        assert!(Destination::open(Some(PathBuf::from("/no/slow.jsonl"))).is_err());
        assert!(Destination::open(None).is_ok());
    }
}
