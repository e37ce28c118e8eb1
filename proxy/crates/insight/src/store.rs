//! The history file: an embedded database that survives a crash at any moment.
//!
//! The file has the same frames (packed steps of the history) as the memory. New frames are written
//! every ten seconds, so a crash loses the frames since the last write. If the file is damaged, or
//! has a version that this Seawall cannot read, it is renamed, and a new file is created.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    panic,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition,
    backends::FileBackend,
};

use super::{
    annotations::Annotation,
    packed::{Damaged, put, take},
    tiers::{Delta, Frame},
};
use seawall_stats::{Label, Level, Phase};

/// The name of the file in the configured directory.
const FILE: &str = "history.redb";

/// Only the owner may read and write the file, because shapes reveal the applications' queries.
const FILE_MODE: u32 = 0o600;

/// The version of the file's contents. Version 1 had no gauges, no annotations, and no
/// [`Label::Phase`]; a file of version 1 is read and converted. [`Label::Phase`] needed a new
/// version: a Seawall that knows only version 1 would remove each frame with this label.
const VERSION: u64 = 2;

/// The versions that can be read.
const READABLE: [u64; 2] = [1, VERSION];

/// The version of the file's contents.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The labels of series. The key is the number that identifies the label in frames.
const LABELS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("labels");
/// The frames without their gauges. The key is the tier and the start of a frame.
const FRAMES: TableDefinition<'_, (u8, u64), &[u8]> = TableDefinition::new("frames");
/// The packed gauges of the frames that have gauges, with the same keys as the frames.
const GAUGES: TableDefinition<'_, (u8, u64), &[u8]> = TableDefinition::new("gauges");
/// The annotations. The key is the number of an annotation.
const ANNOTATIONS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("annotations");

/// The history file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// Access to the directory or the file failed.
    #[error("{path}: {source}")]
    Io {
        /// The path of the directory or file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The database returned an error.
    #[error(transparent)]
    Database(#[from] Box<redb::Error>),
}

impl StoreError {
    /// True if the content of the file caused the error, not the disk or a missing permission.
    fn is_caused_by_content(&self) -> bool {
        let Self::Database(error) = self else {
            return false;
        };
        match &**error {
            redb::Error::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            ),
            redb::Error::Corrupted(_)
            | redb::Error::UpgradeRequired(_)
            | redb::Error::RepairAborted
            | redb::Error::TableDoesNotExist(_)
            | redb::Error::TableTypeMismatch { .. } => true,
            _ => false,
        }
    }
}

fn database(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Database(Box::new(error.into()))
}

/// The contents of the file when [`Store::open`] opened it.
#[derive(Debug, Default)]
pub(super) struct StoredHistory {
    /// The labels with their numbers.
    pub(super) labels: Vec<(u32, Label)>,
    /// All frames. A frame contains the packed figures of one step of the history.
    pub(super) frames: Vec<Frame>,
    /// The annotations. Each has a number, which is its key in the file.
    pub(super) annotations: Vec<(u64, Annotation)>,
    /// The new path of the old file, if that file could not be read.
    pub(super) put_aside: Option<PathBuf>,
}

/// The open history file. After a write error it is closed, because the database then refuses all
/// further writes. The next write opens the file again.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    database: Option<Database>,
}

/// Size of the database's page cache in bytes. It is small, because Seawall reads the whole file
/// only when it opens the file.
const CACHE_BYTES: usize = 4 << 20;

impl Store {
    /// Opens the file in `directory` and reads it. Creates missing directories and a missing file.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn open(directory: &Path) -> Result<(Self, StoredHistory), StoreError> {
        let failed = |source| StoreError::Io {
            path: directory.to_owned(),
            source,
        };
        fs::create_dir_all(directory).map_err(failed)?;
        let path = directory.join(FILE);
        // `open_database` checks the file and reports damage as an error. If the database library
        // still panics, the file is damaged in a way that this check does not find.
        match panic::catch_unwind(|| Self::open_file(&path)) {
            Ok(Ok(Some(opened))) => Ok(opened),
            Ok(Err(error)) if !error.is_caused_by_content() => Err(error),
            Ok(Ok(None) | Err(_)) | Err(_) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                let now = since.unwrap_or_default().as_secs();
                let aside = directory.join(format!("{FILE}.{now}"));
                fs::rename(&path, &aside).map_err(failed)?;
                let store = Self::create(&path)?;
                let found = StoredHistory {
                    put_aside: Some(aside),
                    ..StoredHistory::default()
                };
                Ok((store, found))
            }
        }
    }

    fn create(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Io {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(FILE_MODE).open(path).map_err(failed)?;
        let backend = FileBackend::new(file).map_err(database)?;
        let builder = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(backend);
        let created = builder.map_err(database)?;
        set_version(&created)?;
        Ok(Self {
            path: path.to_owned(),
            database: Some(created),
        })
    }

    /// Opens the file, and checks the checksums of all its pages. Without this check, the database
    /// library trusts each file that was closed properly: at a damaged page, it may panic or return
    /// wrong bytes.
    fn open_database(path: &Path) -> Result<Database, StoreError> {
        // Earlier versions created the file with read permission for all users, so the permissions
        // are set each time.
        fs::set_permissions(path, Permissions::from_mode(FILE_MODE)).map_err(|source| {
            StoreError::Io {
                path: path.to_owned(),
                source,
            }
        })?;
        let opened = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true)
            .open(path);
        opened.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path.to_owned()),
            other => database(other),
        })
    }

    /// Opens the file and reads it; `None` if the file has a version that cannot be read.
    fn open_file(path: &Path) -> Result<Option<(Self, StoredHistory)>, StoreError> {
        if !path.exists() {
            return Ok(Some((Self::create(path)?, StoredHistory::default())));
        }
        let opened = Self::open_database(path)?;
        let version = version(&opened)?;
        if !version.is_some_and(|version| READABLE.contains(&version)) {
            return Ok(None);
        }
        if version != Some(VERSION) {
            set_version(&opened)?;
        }
        let found = read_all(&opened)?;
        let store = Self {
            path: path.to_owned(),
            database: Some(opened),
        };
        Ok(Some((store, found)))
    }

    /// Copies the file to a file beside it, whose name ends with `suffix`, and returns its path.
    ///
    /// # Errors
    /// If the copy fails, for example because the disk is full, or if the file cannot be opened
    /// again.
    pub(super) fn copy(&mut self, suffix: u64) -> Result<PathBuf, StoreError> {
        drop(self.database.take());
        let copy = self.path.with_file_name(format!("{FILE}.{suffix}"));
        let copied = copy_durably(&self.path, &copy);
        self.database = Some(Self::open_database(&self.path)?);
        match copied {
            Ok(()) => Ok(copy),
            Err(source) => Err(StoreError::Io { path: copy, source }),
        }
    }

    /// Writes all changes of the history that `delta` contains, in one transaction.
    ///
    /// # Errors
    /// If the database fails, for example because the disk is full.
    pub(super) fn write(&mut self, delta: &Delta) -> Result<(), StoreError> {
        let opened = match self.database.take() {
            Some(opened) => opened,
            None => Self::open_database(&self.path)?,
        };
        write_to(&opened, delta)?;
        self.database = Some(opened);
        Ok(())
    }
}

/// Copies a file. The copy gets its name only when it is complete and on the disk. If the copy
/// fails, its part is removed.
fn copy_durably(from: &Path, to: &Path) -> io::Result<()> {
    let partial = to.with_added_extension("partial");
    let copied = fs::copy(from, &partial)
        .and_then(|_| File::open(&partial)?.sync_all())
        .and_then(|()| fs::rename(&partial, to));
    if copied.is_err() {
        // The copy may have failed before it created the file.
        drop(fs::remove_file(&partial));
    }
    copied?;
    to.parent()
        .map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Writes the version, and creates the tables that are missing.
fn set_version(opened: &Database) -> Result<(), StoreError> {
    let transaction = opened.begin_write().map_err(database)?;
    {
        let mut meta = transaction.open_table(META).map_err(database)?;
        meta.insert("version", VERSION).map_err(database)?;
        transaction.open_table(LABELS).map_err(database)?;
        transaction.open_table(FRAMES).map_err(database)?;
        transaction.open_table(GAUGES).map_err(database)?;
        transaction.open_table(ANNOTATIONS).map_err(database)?;
    }
    transaction.commit().map_err(database)
}

fn version(opened: &Database) -> Result<Option<u64>, StoreError> {
    let transaction = opened.begin_read().map_err(database)?;
    let meta = transaction.open_table(META).map_err(database)?;
    let version = meta.get("version").map_err(database)?;
    Ok(version.map(|version| version.value()))
}

fn read_all(opened: &Database) -> Result<StoredHistory, StoreError> {
    let mut found = StoredHistory::default();
    let transaction = opened.begin_read().map_err(database)?;
    let table = transaction.open_table(LABELS).map_err(database)?;
    for entry in table.iter().map_err(database)? {
        let (number, bytes) = entry.map_err(database)?;
        if let Some(label) = read_label(bytes.value()) {
            found.labels.push((number.value(), label));
        }
    }
    let table = transaction.open_table(FRAMES).map_err(database)?;
    let gauges = transaction.open_table(GAUGES).map_err(database)?;
    for entry in table.iter().map_err(database)? {
        let (key, bytes) = entry.map_err(database)?;
        let gauges = gauges.get(key.value()).map_err(database)?;
        let gauges = gauges.map_or_else(Box::default, |bytes| bytes.value().into());
        if let Ok(frame) = read_frame(key.value(), bytes.value(), gauges) {
            found.frames.push(frame);
        }
    }
    let table = transaction.open_table(ANNOTATIONS).map_err(database)?;
    for entry in table.iter().map_err(database)? {
        let (number, bytes) = entry.map_err(database)?;
        if let Some(annotation) = Annotation::read(bytes.value()) {
            found.annotations.push((number.value(), annotation));
        }
    }
    Ok(found)
}

fn write_to(opened: &Database, delta: &Delta) -> Result<(), StoreError> {
    let transaction = opened.begin_write().map_err(database)?;
    {
        let mut labels = transaction.open_table(LABELS).map_err(database)?;
        for (number, label) in &delta.named {
            let bytes = label_bytes(label);
            labels.insert(number, &*bytes).map_err(database)?;
        }
        for number in &delta.unnamed {
            labels.remove(number).map_err(database)?;
        }
        let mut frames = transaction.open_table(FRAMES).map_err(database)?;
        let mut gauges = transaction.open_table(GAUGES).map_err(database)?;
        // Remove dropped frames before adding new frames, because a step may be in both lists after
        // the clock was set back.
        for (tier, start) in &delta.dropped {
            let key = frame_key(*tier, *start);
            frames.remove(key).map_err(database)?;
            gauges.remove(key).map_err(database)?;
        }
        for frame in &delta.added {
            let (key, bytes) = (frame_key(frame.tier, frame.start), frame_bytes(frame));
            frames.insert(key, &*bytes).map_err(database)?;
            if !frame.gauges.is_empty() {
                gauges.insert(key, &*frame.gauges).map_err(database)?;
            }
        }
        let mut annotations = transaction.open_table(ANNOTATIONS).map_err(database)?;
        for (number, annotation) in &delta.annotations {
            match annotation {
                Some(annotation) => {
                    let bytes = annotation.bytes();
                    annotations.insert(number, &*bytes).map_err(database)?;
                }
                None => drop(annotations.remove(number).map_err(database)?),
            }
        }
    }
    transaction.commit().map_err(database)
}

fn frame_key(tier: usize, start: u64) -> (u8, u64) {
    (u8::try_from(tier).unwrap_or(u8::MAX), start)
}

fn frame_bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, frame.seconds);
    put(&mut bytes, u64::try_from(frame.labels.len()).unwrap_or(0));
    frame
        .labels
        .iter()
        .for_each(|number| put(&mut bytes, u64::from(*number)));
    bytes.extend_from_slice(&frame.packed);
    bytes
}

fn read_frame(
    (tier, start): (u8, u64),
    mut bytes: &[u8],
    gauges: Box<[u8]>,
) -> Result<Frame, Damaged> {
    let seconds = take(&mut bytes)?;
    let count = take(&mut bytes)?;
    let mut labels = Vec::new();
    for _ in 0..count {
        labels.push(u32::try_from(take(&mut bytes)?).map_err(|_| Damaged)?);
    }
    Ok(Frame {
        tier: usize::from(tier),
        start,
        seconds,
        labels: labels.into(),
        packed: bytes.into(),
        gauges,
    })
}

fn label_bytes(label: &Arc<Label>) -> Vec<u8> {
    let texts: Vec<&str> = match &**label {
        Label::Whole => vec!["whole"],
        Label::OtherShapes => vec!["other shapes"],
        Label::Server(address) => vec!["server", address],
        Label::Phase {
            server: None,
            phase,
        } => vec!["phase", phase.as_str()],
        Label::Phase {
            server: Some(address),
            phase,
        } => vec!["server phase", phase.as_str(), address],
        Label::Namespace {
            command,
            db,
            collection,
        } => vec!["namespace", command, db, collection],
        Label::Shape {
            level,
            id,
            command,
            db,
            collection,
            text,
        } => vec![level_name(*level), id, command, db, collection, text],
    };
    let mut bytes = Vec::new();
    for text in texts {
        put(&mut bytes, u64::try_from(text.len()).unwrap_or(0));
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// The first of the texts that the file stores for a [`Label::Shape`]. It is "shape" for a single
/// shape. Earlier versions, which knew only single shapes, wrote the same text. For a group row (a
/// row that counts several shapes together), it is the name of the level.
fn level_name(level: Level) -> &'static str {
    match level {
        Level::Fine => "shape",
        Level::Coarse | Level::Rest => level.as_str(),
    }
}

fn level_of(name: &str) -> Option<Level> {
    let mut levels = Level::ALL.into_iter();
    levels.find(|level| level_name(*level) == name)
}

fn read_label(mut bytes: &[u8]) -> Option<Label> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let length = usize::try_from(take(&mut bytes).ok()?).ok()?;
        let (text, rest) = bytes.split_at_checked(length)?;
        texts.push(std::str::from_utf8(text).ok()?);
        bytes = rest;
    }
    Some(match *texts {
        ["whole"] => Label::Whole,
        ["other shapes"] => Label::OtherShapes,
        ["server", address] => Label::Server(address.into()),
        ["phase", phase] => Label::Phase {
            server: None,
            phase: Phase::named(phase)?,
        },
        ["server phase", phase, address] => Label::Phase {
            server: Some(address.into()),
            phase: Phase::named(phase)?,
        },
        ["namespace", command, db, collection] => Label::Namespace {
            command: command.into(),
            db: db.into(),
            collection: collection.into(),
        },
        [level, id, command, db, collection, text] => Label::Shape {
            level: level_of(level)?,
            id: id.into(),
            command: command.into(),
            db: db.into(),
            collection: collection.into(),
            text: text.into(),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{super::*, *};
    use seawall_stats::{Figures, Gauge, Gauges};

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("seawall-history-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    fn labels() -> Vec<Arc<Label>> {
        let shape = |level| Label::Shape {
            level,
            id: "00".into(),
            command: "find".into(),
            db: "shop".into(),
            collection: String::new().into(),
            text: "{filter:{\u{fc}:?}}".into(),
        };
        let namespace = Label::Namespace {
            command: "find".into(),
            db: "shop".into(),
            collection: "orders".into(),
        };
        let server = Label::Server("db1:27017".into());
        let shapes = Level::ALL.map(|level| Arc::new(shape(level)));
        let phase = Label::Phase {
            server: None,
            phase: Phase::Send,
        };
        let of_server = Label::Phase {
            server: Some("db1:27017".into()),
            phase: Phase::Checkout,
        };
        let others = [Label::Whole, server, namespace, phase, of_server].map(Arc::new);
        others.into_iter().chain(shapes).collect()
    }

    fn second() -> BTreeMap<Arc<Label>, (Figures, f64)> {
        let figures = Figures {
            count: 3,
            ..Figures::default()
        };
        let labels = labels().into_iter();
        labels
            .map(|label| (label, (figures.clone(), 1.0)))
            .collect()
    }

    #[test]
    fn a_failed_copy_of_the_history_file_leaves_no_file_and_the_store_stays_usable() {
        let directory = Directory::new("copy");
        let (mut store, _) = Store::open(&directory.0).unwrap();
        let copy = store.copy(7).unwrap();
        assert!(copy.metadata().unwrap().len() > 0);
        // A file cannot replace a directory.
        fs::create_dir(directory.0.join(format!("{FILE}.8"))).unwrap();
        assert!(store.copy(8).is_err());
        let files = fs::read_dir(&directory.0).unwrap().flatten();
        let mut names: Vec<_> = files.map(|file| file.file_name()).collect();
        names.sort();
        assert_eq!(names, ["history.redb", "history.redb.7", "history.redb.8"]);
        store.write(&Delta::default()).unwrap();
    }

    #[test]
    fn a_history_is_the_same_after_a_restart() {
        let directory = Directory::new("restart");
        let (mut store, found) = Store::open(&directory.0).unwrap();
        assert!(found.frames.is_empty() && found.put_aside.is_none());
        let mut history = History::new(1 << 20, 10);
        for at in 6_000..7_250 {
            let mut gauges = Gauges::default();
            gauges.record(Gauge::ClientConnections, seawall_stats::float(at));
            history.add(at, second(), gauges);
            let mut delta = history.take_delta();
            if at == 7_000 {
                delta.annotations.insert(3, Some(deploy()));
                delta.annotations.insert(4, Some(deploy()));
            }
            if at == 7_001 {
                delta.annotations.insert(4, None);
            }
            store.write(&delta).unwrap();
        }
        drop(store);
        let (_store, found) = Store::open(&directory.0).unwrap();
        assert_eq!(found.annotations, [(3, deploy())]);
        let mut again = History::new(1 << 20, 10);
        let skipped = again.restore(found.labels, found.frames, 7_250);
        assert_eq!(skipped, tiers::Skipped::default());
        let gauges = |history: &History| history.select(0, 7_250, 60).gauge_timeline(60);
        assert_eq!(gauges(&again), gauges(&history));
        assert_eq!(gauges(&again).len(), 21);
        assert_eq!(again.period(0, 7_250), history.period(0, 7_250));
        assert_eq!(again.period(0, 7_250).series.len(), 8);
    }

    fn deploy() -> Annotation {
        Annotation {
            at: UNIX_EPOCH + Duration::from_millis(7_000_500),
            end: None,
            kind: AnnotationKind::Deploy,
            text: "v1.2 \u{fc}".into(),
        }
    }

    /// An earlier version of Seawall wrote the file while it served 4,003 operations on one
    /// collection.
    #[test]
    fn a_file_of_an_earlier_version_is_read() {
        let packed = include_bytes!("../tests/earlier/history.redb.zst");
        let directory = Directory::new("earlier");
        fs::create_dir_all(&directory.0).unwrap();
        let file = zstd::bulk::decompress(packed, 1 << 20).unwrap();
        fs::write(directory.0.join(FILE), file).unwrap();
        let (store, found) = Store::open(&directory.0).unwrap();
        assert_eq!(found.put_aside, None);
        let opened = store.database.as_ref().unwrap();
        assert_eq!(version(opened).unwrap(), Some(VERSION));
        let end = found.frames.iter().map(|frame| frame.start).max().unwrap() + 60;
        let mut history = History::new(64 << 20, 200);
        history.restore(found.labels, found.frames, end);
        let period = history.period(0, end);
        let of_load = period
            .series
            .iter()
            .filter_map(|(label, figures)| match &**label {
                Label::Shape {
                    command,
                    collection,
                    ..
                } if &**collection == "things" => {
                    Some((&**command, figures.count, figures.documents))
                }
                _ => None,
            });
        let expected = [
            ("update", 396, 396),
            ("find", 3_209, 3_208),
            ("insert", 396, 396),
            // Before the load, two updates inserted the 1,000 documents.
            ("update", 2, 1_000),
        ];
        assert_eq!(of_load.collect::<Vec<_>>(), expected);
    }

    /// Seawall either renames the damaged file and starts with an empty history, or reads the
    /// correct figures.
    #[test]
    fn a_damaged_page_of_the_history_file_never_leads_to_wrong_figures() {
        let directory = Directory::new("damaged");
        let path = directory.0.join(FILE);
        let (mut store, _) = Store::open(&directory.0).unwrap();
        let mut history = History::new(1 << 20, 10);
        for at in 6_000..6_150 {
            history.add(at, second(), Gauges::default());
        }
        store.write(&history.take_delta()).unwrap();
        drop(store);
        let file = fs::read(&path).unwrap();
        let figures = history.period(0, 6_150);
        let mut put_aside = 0;
        for (page, bytes) in file.chunks(4_096).enumerate() {
            // A page of zeros is not in use, so damage to it would have no effect.
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            // Offset 2 is in the number of the page's entries, and offset 2,000 is in an entry.
            for offset in [2, 2_000] {
                let mut damaged = file.clone();
                damaged[page * 4_096 + offset] ^= 0xff;
                fs::write(&path, damaged).unwrap();
                let (_store, found) = Store::open(&directory.0).unwrap();
                if found.put_aside.is_some() {
                    put_aside += 1;
                    continue;
                }
                let mut again = History::new(1 << 20, 10);
                again.restore(found.labels, found.frames, 6_150);
                assert_eq!(again.period(0, 6_150), figures, "{page} {offset}");
            }
        }
        assert!(put_aside > 1, "{put_aside}");
    }

    #[test]
    fn only_the_owner_can_access_the_history_file() {
        let directory = Directory::new("mode");
        let mode = || {
            let metadata = fs::metadata(directory.0.join(FILE)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        drop(Store::open(&directory.0).unwrap());
        assert_eq!(mode(), FILE_MODE);
        let readable = Permissions::from_mode(0o644);
        fs::set_permissions(directory.0.join(FILE), readable).unwrap();
        drop(Store::open(&directory.0).unwrap());
        assert_eq!(mode(), FILE_MODE);
    }

    #[test]
    fn a_file_in_use_cannot_be_opened_twice() {
        let directory = Directory::new("owner");
        let _store = Store::open(&directory.0).unwrap();
        let second = Store::open(&directory.0).unwrap_err();
        assert!(matches!(second, StoreError::InUse(_)), "{second}");
    }

    #[test]
    fn unreadable_file_is_renamed_and_a_new_file_is_created() {
        let directory = Directory::new("aside");
        fs::create_dir_all(&directory.0).unwrap();
        fs::write(directory.0.join(FILE), b"no database at all").unwrap();
        let (store, found) = Store::open(&directory.0).unwrap();
        assert_eq!(
            fs::read(found.put_aside.unwrap()).unwrap(),
            b"no database at all"
        );
        // A file of a later version is renamed too.
        let transaction = store.database.as_ref().unwrap().begin_write().unwrap();
        transaction
            .open_table(META)
            .unwrap()
            .insert("version", VERSION + 1)
            .unwrap();
        transaction.commit().unwrap();
        drop(store);
        let (_store, found) = Store::open(&directory.0).unwrap();
        assert!(found.put_aside.is_some());
    }
}
