//! The thread that writes the lines, and the file or stream that it writes to.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{
    LeftOutCount, QueueCounts,
    line::{finish, only_left_out},
};

/// Time between two checks that the path of the log file still leads to the open file.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Only the owner and the group may read the file, because lines may contain values of commands,
/// and these values are data of the applications.
const FILE_MODE: u32 = 0o640;

/// An item in the queue of the writing thread.
pub(super) enum Queued {
    /// An unfinished line: [`finish`] adds the number of dropped lines, the closing brace and the
    /// newline.
    Line(Vec<u8>),
    /// A flush: the thread writes all lines queued earlier, reports dropped lines, and then sends
    /// `()` on this channel.
    Flush(SyncSender<()>),
}

/// Writes lines until all senders are dropped and the queue is empty. Each line also reports lines
/// dropped before it. If no line follows within `quiet`, a separate line reports them.
pub(super) fn write_all(
    queue: &Receiver<Queued>,
    destination: LogDestination,
    counts: &QueueCounts,
    quiet: Duration,
) {
    let mut writer = Writer {
        destination,
        left_out: &counts.left_out,
        is_failing: false,
    };
    loop {
        match queue.recv_timeout(quiet) {
            Ok(Queued::Line(line)) => {
                counts.waiting.fetch_sub(1, Ordering::Relaxed);
                writer.write(line);
            }
            Ok(Queued::Flush(done)) => {
                writer.report_left_out();
                // Ignore an error: the caller may have stopped waiting.
                done.try_send(()).ok();
            }
            Err(RecvTimeoutError::Timeout) => writer.report_left_out(),
            Err(RecvTimeoutError::Disconnected) => {
                writer.report_left_out();
                return;
            }
        }
    }
}

struct Writer<'a> {
    destination: LogDestination,
    left_out: &'a LeftOutCount,
    is_failing: bool,
}

impl Writer<'_> {
    fn write(&mut self, mut line: Vec<u8>) {
        let unreported = self.left_out.unreported();
        finish(&mut line, unreported);
        if self.try_write(&line) {
            self.left_out.mark_reported(unreported);
        } else {
            self.left_out.add(1);
        }
    }

    /// Writes a line that reports dropped lines, if some are not reported yet.
    fn report_left_out(&mut self) {
        let unreported = self.left_out.unreported();
        if unreported > 0 && self.try_write(&only_left_out(SystemTime::now(), unreported)) {
            self.left_out.mark_reported(unreported);
        }
    }

    fn try_write(&mut self, line: &[u8]) -> bool {
        let written = self.destination.write(line, Instant::now());
        if let Err(error) = &written
            // Log only the first of several consecutive failures.
            && !self.is_failing
        {
            tracing::warn!(%error, "could not write to the slow log");
        }
        self.is_failing = written.is_err();
        written.is_ok()
    }
}

/// Where lines are written.
pub(super) enum LogDestination {
    /// Standard error, or a test's buffer.
    Stream(Box<dyn Write + Send>),
    /// A log file. If the file was moved away, a new one is created at its path.
    File(LogFile),
}

impl LogDestination {
    /// Opens the file; `None` means standard error.
    pub(super) fn open(file: Option<PathBuf>) -> io::Result<Self> {
        Ok(match file {
            Some(path) => Self::File(LogFile::open(path)?),
            None => Self::Stream(Box::new(io::stderr())),
        })
    }

    /// Writes the whole line with one call, so that other writers do not split it.
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

/// A log file that other programs may move away (log rotation).
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    checked_at: Option<Instant>,
    /// True if the file ends with a part of a line, because a write failed within this line.
    is_torn: bool,
}

impl LogFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = append_to(&path)?;
        let is_torn = is_torn(&path, &file);
        Ok(Self {
            path,
            file,
            checked_at: None,
            is_torn,
        })
    }

    fn write(&mut self, line: &[u8], now: Instant) -> io::Result<()> {
        let is_due =
            |checked_at: Instant| now.saturating_duration_since(checked_at) >= FILE_CHECK_INTERVAL;
        if self.checked_at.is_none_or(is_due) {
            self.checked_at = Some(now);
            if !self.is_in_place()? {
                self.file = append_to(&self.path)?;
                self.is_torn = is_torn(&self.path, &self.file);
            }
        }
        if self.is_torn {
            self.append(b"\n")?;
        }
        self.append(line)
    }

    /// Appends bytes to the file. `File` has no buffer, so no flush is needed.
    fn append(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// True if the path still leads to the open file.
    fn is_in_place(&self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        Ok(match fs::metadata(&self.path) {
            Ok(named) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
            Err(_) => false,
        })
    }
}

/// True if a file ends with a part of a line, for example because the disk became full before
/// Seawall was restarted. False if the end of the file cannot be read.
fn is_torn(path: &Path, file: &File) -> bool {
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file);
    let Some(last) = metadata.and_then(|of| of.len().checked_sub(1)) else {
        return false;
    };
    let mut byte = [0];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut byte, last));
    read.is_ok() && byte != *b"\n"
}

fn append_to(path: &PathBuf) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(FILE_MODE).open(path)
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        io::Read as _,
        os::{fd::OwnedFd, unix::net::UnixStream},
        process,
    };

    use super::*;

    #[test]
    fn a_log_file_that_was_moved_away_is_created_again_after_one_second() {
        let folder = env::temp_dir().join(format!("seawall-slow-log-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, moved) = (folder.join("slow.jsonl"), folder.join("slow.jsonl.1"));
        fs::write(&path, "earlier\n").unwrap();
        let mut file = LogFile::open(path.clone()).unwrap();
        let start = Instant::now();
        file.write(b"1\n", start).unwrap();
        fs::rename(&path, &moved).unwrap();
        file.write(b"2\n", start + FILE_CHECK_INTERVAL / 2).unwrap();
        assert!(!path.exists());
        file.write(b"3\n", start + FILE_CHECK_INTERVAL).unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "earlier\n1\n2\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "3\n");
        // If another process has created a file at the path, lines are appended to that file.
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, "").unwrap();
        file.write(b"4\n", start + 2 * FILE_CHECK_INTERVAL).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n");
        fs::remove_dir_all(&folder).unwrap();
    }

    /// The buffer of a socket accepts a part of a long line, like a disk that becomes full.
    #[test]
    fn the_line_after_a_partly_written_line_begins_on_a_new_line() {
        let (written, mut reader) = UnixStream::pair().unwrap();
        written.set_nonblocking(true).unwrap();
        reader.set_nonblocking(true).unwrap();
        let now = Instant::now();
        let mut file = LogFile {
            path: PathBuf::new(),
            file: File::from(OwnedFd::from(written)),
            checked_at: Some(now),
            is_torn: false,
        };
        let long = vec![b'1'; 16 << 20];
        file.write(&long, now).unwrap_err();
        let mut bytes = Vec::new();
        let error = reader.read_to_end(&mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!((1..long.len()).contains(&bytes.len()));
        bytes.clear();
        file.write(b"2\n", now).unwrap();
        file.write(b"3\n", now).unwrap();
        drop(file);
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"\n2\n3\n");
    }

    /// For example, the disk was full, and has space again after a restart of Seawall.
    #[test]
    fn the_first_line_after_a_restart_begins_on_a_new_line() {
        let folder = env::temp_dir().join(format!("seawall-torn-log-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("slow.jsonl");
        for (earlier, expected) in [("1\n2", "1\n2\n3\n"), ("1\n2\n", "1\n2\n3\n"), ("", "3\n")] {
            fs::write(&path, earlier).unwrap();
            let mut file = LogFile::open(path.clone()).unwrap();
            file.write(b"3\n", Instant::now()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn opening_a_log_file_in_a_folder_that_does_not_exist_is_an_error() {
        assert!(LogDestination::open(Some(PathBuf::from("/no/slow.jsonl"))).is_err());
        assert!(LogDestination::open(None).is_ok());
    }
}
