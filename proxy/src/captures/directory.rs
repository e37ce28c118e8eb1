//! The directory of captures: names, sizes, retention and deletion.
//!
//! ```text
//! <capture.directory>/20261125T160336Z-5f0c2a91/part-00000.swc   the first part
//!                                              /part-00001.swc   …
//!                                              /summary.json     the description and the counts
//! ```
//!
//! Only the owner may read captures, because they contain data of the applications. Directories
//! whose names are not ids of captures are never changed.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, format_description::FormatItem, macros::format_description};

use super::selection::Selection;

/// Permissions of directories: only the owner has access.
const DIRECTORY_MODE: u32 = 0o700;

/// Permissions of files: only the owner may read and write.
const FILE_MODE: u32 = 0o600;

/// Format of the time in an id. The time is in UTC.
const ID_TIME: &[FormatItem<'_>] =
    format_description!("[year][month][day]T[hour][minute][second]Z");

/// Length of the time in an id.
const ID_TIME_LENGTH: usize = 16;

/// Length of an id: the time, a hyphen, eight hexadecimal digits.
const ID_LENGTH: usize = ID_TIME_LENGTH + 1 + 8;

/// The name of the file with the summary.
const SUMMARY: &str = "summary.json";

/// Number of bytes by which the first summary is padded, because the final summary is longer.
const SUMMARY_ROOM: usize = 1024;

/// Identifies a capture: the time of its start, and random digits. The id is also the name of the
/// capture's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureId(String);

impl CaptureId {
    pub(super) fn new(at: SystemTime, random: u32) -> Self {
        let time = OffsetDateTime::from(at).format(ID_TIME).unwrap_or_default();
        Self(format!("{time}-{random:08x}"))
    }

    /// Parses an id; `None` if the text is not an id. An id has no path separator, so it cannot
    /// lead to another directory.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let has_form = text.len() == ID_LENGTH
            && text.bytes().enumerate().all(|(index, byte)| match index {
                8 => byte == b'T',
                15 => byte == b'Z',
                ID_TIME_LENGTH => byte == b'-',
                0..ID_TIME_LENGTH => byte.is_ascii_digit(),
                _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            });
        has_form.then(|| Self(text.to_owned()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Description of a capture. The counts are 0 while the capture runs, and stay 0 if the process
/// ends before the capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Summary {
    /// When the capture began, in microseconds since 1970.
    pub(super) began_at_us: u64,
    /// When the capture ended, in microseconds since 1970; 0 while it runs.
    pub(super) ended_at_us: u64,
    /// The reason for the end of the capture; empty while the capture runs, or if the process ended
    /// first.
    pub(super) end: String,
    /// The reason for the start of the capture.
    pub(super) trigger: String,
    /// Number of captured clients.
    pub(super) clients: u64,
    /// Number of recorded operations.
    pub(super) operations: u64,
    /// For each reason, the number of omitted operations plus the number of omitted reply messages.
    /// A reply can be recorded without its message.
    pub(super) omitted: BTreeMap<String, u64>,
    /// True if replies are recorded whole; false if only facts about them are recorded.
    pub(super) whole_replies: bool,
    /// The mode of redaction (the replacement of values). `None` if an earlier version of Seawall
    /// wrote the summary: that version had no redaction and recorded all values unchanged.
    pub(super) redaction: Option<String>,
    /// The captured clients are this share of the clients that match `namespaces`, `users` and
    /// `applications`. The share is above 0 and at most 1.
    pub(super) sample: f64,
    /// The selected namespaces.
    pub(super) namespaces: Vec<String>,
    /// The selected users.
    pub(super) users: Vec<String>,
    /// The selected applications.
    pub(super) applications: Vec<String>,
}

impl Summary {
    pub(super) fn with_selection(self, selection: &Selection) -> Self {
        Self {
            sample: selection.sample,
            namespaces: selection.namespaces.clone(),
            users: selection.users.clone(),
            applications: selection.applications.clone(),
            ..self
        }
    }
}

/// A capture in the directory of captures.
#[derive(Clone, Debug)]
pub(super) struct StoredCapture {
    pub(super) id: CaptureId,
    /// Size of all parts together, in bytes.
    pub(super) bytes: u64,
    /// Number of parts.
    pub(super) parts: u64,
    /// The latest modification time of the capture's directory and its parts.
    pub(super) modified_at: SystemTime,
    /// The summary of the capture; `None` if it cannot be read.
    pub(super) summary: Option<Summary>,
}

/// The result of the deletion of expired captures.
#[derive(Debug, Default)]
pub(super) struct Expired {
    pub(super) deleted: Vec<CaptureId>,
    /// The first capture that could not be deleted, with the error; `None` if all were deleted.
    pub(super) failed: Option<(CaptureId, io::Error)>,
}

/// The directory of captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    path: PathBuf,
}

/// The parts of one capture. This value names the directory in which the capture is. So the parts
/// can still be found after a reload has changed the directory of captures.
#[derive(Debug)]
pub(crate) struct CaptureParts {
    directory: Directory,
    id: CaptureId,
}

impl CaptureParts {
    /// The path of a part; `None` if the capture has no such part. If the capture runs, the part
    /// may grow, and further parts may follow.
    ///
    /// # Errors
    /// If the capture does not exist.
    pub(crate) fn path(&self, part: u32) -> io::Result<Option<PathBuf>> {
        if !self.directory.contains(&self.id) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = self.directory.part(&self.id, part);
        Ok(path.exists().then_some(path))
    }
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Creates the directory of a new capture.
    pub(super) fn create(&self, id: &CaptureId) -> io::Result<()> {
        self.create_itself()?;
        DirBuilder::new().mode(DIRECTORY_MODE).create(self.of(id))
    }

    fn create_itself(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.mode(DIRECTORY_MODE).recursive(true);
        builder.create(&self.path)
    }

    /// Locks this directory of captures, so that only one process captures into it. Creates the
    /// directory if it does not exist. `None` if a capture of another process has locked it. The
    /// lock ends when the returned file is dropped.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        self.create_itself()?;
        let directory = File::open(&self.path)?;
        match directory.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            // If the file system has no locks, the capture runs without a lock.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(directory)),
        }
    }

    /// Creates the file of a part of a capture. Fails if the file exists.
    pub(super) fn create_part(&self, id: &CaptureId, part: u32) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        options.open(self.part(id, part))
    }

    /// The path of a part.
    pub(super) fn part(&self, id: &CaptureId, part: u32) -> PathBuf {
        self.of(id).join(format!("part-{part:05}.swc"))
    }

    /// Writes the first summary of a capture and pads the file, so that the final summary can be
    /// written even on a full disk. Fails if the capture already has a summary.
    pub(super) fn begin_summary(&self, id: &CaptureId, summary: &Summary) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(summary).map_err(io::Error::other)?;
        text.resize(text.len() + SUMMARY_ROOM, b' ');
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        let mut file = options.open(self.of(id).join(SUMMARY))?;
        file.write_all(&text)
    }

    /// Replaces the summary of a capture that has ended.
    pub(super) fn end_summary(&self, id: &CaptureId, summary: &Summary) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(summary).map_err(io::Error::other)?;
        // Do not truncate the file, because that would release the reserved space.
        let mut file = OpenOptions::new()
            .write(true)
            .open(self.of(id).join(SUMMARY))?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        text.resize(text.len().max(length), b' ');
        file.write_all(&text)
    }

    /// The captures, the latest first. Directories whose names are not ids of captures are ignored.
    pub(super) fn list(&self) -> io::Result<Vec<StoredCapture>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut kept = Vec::new();
        for entry in entries {
            let id = entry?.file_name().to_str().and_then(CaptureId::parse);
            // Skip a capture that is deleted while the directory is read.
            kept.extend(id.and_then(|id| self.kept(id).ok()));
        }
        kept.sort_by(|a, b| b.id.cmp(&a.id));
        Ok(kept)
    }

    /// The size of all captures together, in bytes.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        Ok(self.list()?.iter().map(|kept| kept.bytes).sum())
    }

    /// True if the capture exists.
    pub(super) fn contains(&self, id: &CaptureId) -> bool {
        self.of(id).is_dir()
    }

    pub(super) fn delete(&self, id: &CaptureId) -> io::Result<()> {
        fs::remove_dir_all(self.of(id))
    }

    /// Deletes expired captures: all captures that were last written before `now` minus
    /// `retention`, except the capture that is running. Calls `delete` for each of them. Fails only
    /// if the captures cannot be listed.
    pub(super) fn delete_expired(
        &self,
        retention: Duration,
        now: SystemTime,
        running: Option<&CaptureId>,
        delete: impl Fn(&CaptureId) -> io::Result<()>,
    ) -> io::Result<Expired> {
        let is_expired = |kept: &StoredCapture| {
            let age = now.duration_since(kept.modified_at).unwrap_or_default();
            age > retention && Some(&kept.id) != running
        };
        let mut expired = Expired::default();
        for kept in self.list()?.into_iter().filter(is_expired) {
            match delete(&kept.id) {
                Ok(()) => expired.deleted.push(kept.id),
                Err(error) => drop(expired.failed.get_or_insert((kept.id, error))),
            }
        }
        Ok(expired)
    }

    /// The parts of a capture.
    pub(super) fn parts(&self, id: CaptureId) -> CaptureParts {
        let directory = self.clone();
        CaptureParts { directory, id }
    }

    /// The capture `id`.
    pub(super) fn kept(&self, id: CaptureId) -> io::Result<StoredCapture> {
        let mut kept = StoredCapture {
            bytes: 0,
            parts: 0,
            modified_at: fs::metadata(self.of(&id))?.modified()?,
            summary: None,
            id,
        };
        let folder = self.of(&kept.id);
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if Path::new(&entry.file_name()).extension() == Some("swc".as_ref()) {
                let metadata = entry.metadata()?;
                kept.bytes += metadata.len();
                kept.parts += 1;
                kept.modified_at = kept.modified_at.max(metadata.modified()?);
            }
        }
        let summary = fs::read(folder.join(SUMMARY)).ok();
        kept.summary = summary.and_then(|text| serde_json::from_slice(&text).ok());
        Ok(kept)
    }

    fn of(&self, id: &CaptureId) -> PathBuf {
        self.path.join(id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::fs::PermissionsExt as _, process, time::UNIX_EPOCH};

    use super::*;

    /// The path of a temporary directory of this process, which is deleted at the end of the test.
    struct TemporaryDirectory(PathBuf);

    impl TemporaryDirectory {
        fn new(name: &str) -> Self {
            Self(env::temp_dir().join(format!("seawall-capture-{name}-{}", process::id())))
        }
    }

    impl Drop for TemporaryDirectory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    fn id(random: u32) -> CaptureId {
        let at = UNIX_EPOCH + Duration::from_secs(1_795_620_216);
        CaptureId::new(at, random)
    }

    #[test]
    fn a_capture_id_is_a_time_and_eight_hexadecimal_digits() {
        let id = id(0x5f0c_2a91);
        assert_eq!(id.as_str(), "20261125T152336Z-5f0c2a91");
        assert_eq!(CaptureId::parse(id.as_str()), Some(id));
        for text in [
            "",
            "..",
            "20261125T152336Z-5f0c2a9",
            "20261125T152336Z-5f0c2a911",
            "20261125T152336Z-5f0c2a9G",
            "20261125T152336Z/../../ab",
            "2026112aT152336Z-5f0c2a91",
        ] {
            assert_eq!(CaptureId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_owner_may_read_captures() {
        let folder = TemporaryDirectory::new("modes");
        let directory = Directory::new(folder.0.join("captures"));
        directory.create(&id(1)).unwrap();
        drop(directory.create_part(&id(1), 0).unwrap());
        directory
            .begin_summary(&id(1), &Summary::default())
            .unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory.path), DIRECTORY_MODE);
        assert_eq!(mode(&directory.of(&id(1))), DIRECTORY_MODE);
        assert_eq!(mode(&directory.part(&id(1), 0)), FILE_MODE);
        assert_eq!(mode(&directory.of(&id(1)).join(SUMMARY)), FILE_MODE);
        assert!(directory.create_part(&id(1), 0).is_err());
    }

    #[test]
    fn the_summary_file_reserves_space_for_its_final_content() {
        let folder = TemporaryDirectory::new("summary");
        let directory = Directory::new(folder.0.clone());
        directory.create(&id(1)).unwrap();
        let begun = Summary {
            trigger: "operator".to_owned(),
            ..Summary::default()
        };
        directory.begin_summary(&id(1), &begun).unwrap();
        let length = || {
            fs::metadata(directory.of(&id(1)).join(SUMMARY))
                .unwrap()
                .len()
        };
        let room = length();
        let reasons = [
            "secret",
            "queue_full",
            "rate_limit",
            "too_large",
            "not_redactable",
        ];
        let ended = Summary {
            ended_at_us: u64::MAX,
            end: "write_failed".to_owned(),
            clients: u64::MAX,
            operations: u64::MAX,
            omitted: reasons.map(|name| (name.to_owned(), u64::MAX)).into(),
            ..begun.clone()
        };
        for summary in [begun, ended] {
            directory.end_summary(&id(1), &summary).unwrap();
            assert_eq!(length(), room);
            assert_eq!(directory.list().unwrap()[0].summary, Some(summary));
        }
        assert!(directory.end_summary(&id(2), &Summary::default()).is_err());
    }

    #[test]
    fn only_expired_captures_that_have_ended_are_deleted() {
        let folder = TemporaryDirectory::new("retention");
        let directory = Directory::new(folder.0.clone());
        for number in 1..=3 {
            directory.create(&id(number)).unwrap();
            let mut file = directory.create_part(&id(number), 0).unwrap();
            io::Write::write_all(&mut file, &[0; 10]).unwrap();
        }
        fs::create_dir(folder.0.join("other")).unwrap();
        let now = SystemTime::now();
        let (hour, running) = (Duration::from_secs(3_600), id(2));
        let delete = |id: &CaptureId| directory.delete(id);
        let expired = directory.delete_expired(hour, now, Some(&running), delete);
        assert!(expired.unwrap().deleted.is_empty());
        assert_eq!(directory.bytes().unwrap(), 30);
        let later = now + 2 * hour;
        let expired = directory.delete_expired(hour, later, Some(&running), delete);
        assert_eq!(expired.unwrap().deleted, [id(3), id(1)]);
        let left: Vec<_> = directory.list().unwrap();
        assert_eq!((left.len(), &left[0].id, left[0].parts), (1, &running, 1));
        assert!(folder.0.join("other").exists());
    }

    #[test]
    fn expired_captures_are_deleted_even_if_another_capture_cannot_be_deleted() {
        let folder = TemporaryDirectory::new("undeletable");
        let directory = Directory::new(folder.0.clone());
        for number in 1..=3 {
            directory.create(&id(number)).unwrap();
        }
        let delete = |of: &CaptureId| match of == &id(1) {
            true => directory.delete(of),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let later = SystemTime::now() + Duration::from_secs(3_600);
        let expired = directory.delete_expired(Duration::ZERO, later, None, delete);
        let expired = expired.unwrap();
        assert_eq!(expired.deleted, [id(1)]);
        let (failed, error) = expired.failed.unwrap();
        assert_eq!(
            (failed, error.kind()),
            (id(3), io::ErrorKind::PermissionDenied)
        );
    }

    #[test]
    fn an_absent_directory_has_no_captures() {
        let folder = TemporaryDirectory::new("absent");
        let absent = Directory::new(folder.0.clone());
        assert!(absent.list().unwrap().is_empty());
        let impossible = Directory::new(PathBuf::from("/dev/null/captures"));
        assert!(impossible.create(&id(1)).is_err());
    }
}
