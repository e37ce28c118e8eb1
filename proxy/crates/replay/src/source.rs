//! Reads the parts of a capture in their order.
//!
//! A source is one of these: a directory with one file per part, one file with one or more parts, a
//! file of mongod's traffic recorder, standard input. All files are read once, from front to back.
//! A source needs memory for only one block of a capture, or one packet of a recording, at a time.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use seawall_capture::{
    ReadError, Reader, is_capture,
    record::{Content, End, EndReason, Header},
    recorder::{RecorderError, Recording},
};

/// The extension of the files in a capture's directory.
const EXTENSION: &str = "swc";

/// Maximum number of parts in a directory.
const MAX_PARTS: usize = 100_000;

/// The reason why a capture cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file or a directory cannot be opened or listed.
    #[error("{path}: {error}")]
    Io {
        /// The path of the file or directory.
        path: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A part cannot be read.
    #[error("{name}: {error}")]
    Part {
        /// The file, or `standard input`.
        name: String,
        /// The error of the reader of captures.
        error: ReadError,
    },
    /// A recording of mongod cannot be read.
    #[error("{name}: {error}")]
    Recording {
        /// The file, or `standard input`.
        name: String,
        /// The error of the reader of recordings.
        error: RecorderError,
    },
    /// The file is neither a capture nor a recording of mongod.
    #[error("{0} is neither a capture nor a recording of mongod")]
    UnknownFormat(String),
    /// The directory has no parts, or the file is empty.
    #[error("{0} contains no capture")]
    Empty(String),
    /// The directory has more parts than the maximum number. Other files in it do not count.
    #[error("{directory} has more than {MAX_PARTS} parts of captures")]
    TooManyFiles {
        /// The path of the directory.
        directory: String,
    },
    /// The part with this number is missing.
    #[error("part {0} of the capture is missing")]
    PartMissing(u32),
    /// A part that was already read occurs again, for example because the directory also contains a
    /// copy of the part.
    #[error("{name} repeats part {part} of the capture")]
    PartRepeated {
        /// The file, or `standard input`.
        name: String,
        /// The number of the part.
        part: u32,
    },
    /// The file or stream with this name contains a part of another capture.
    #[error("{0} belongs to another capture")]
    OtherCapture(String),
}

/// The bytes of a file or of standard input, with a buffer.
type BufferedInput = BufReader<Box<dyn Read + Send>>;

/// The part or recording that is being read.
enum Input {
    Part(Box<Reader<BufferedInput>>),
    Recording(Box<Recording<BufferedInput>>),
}

/// A capture that is being read.
pub struct Source {
    /// The files that are still to be read.
    files: VecDeque<PathBuf>,
    /// The path of the file that is being read, or `standard input`.
    name: String,
    input: Option<Input>,
    /// The stream from which the next part is read. While a part is being read, `input` has the
    /// stream, and this field is `None`.
    stream: Option<BufferedInput>,
    header: Header,
    next_part: u32,
    /// The `End` record of the last part that was read to its end.
    end: Option<End>,
    total_bytes: Option<u64>,
    read_bytes: Arc<AtomicU64>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Source")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Opens a directory or a file; `-` is standard input. A recording of mongod is converted while
    /// it is read.
    ///
    /// # Errors
    /// If `path` cannot be opened, contains no parts, or does not begin with the first part.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        if path.as_os_str() == "-" {
            return Self::from_stream("standard input", Box::new(io::stdin()));
        }
        let metadata = fs::metadata(path).map_err(|error| io_error(path, error))?;
        let files = match metadata.is_dir() {
            true => parts(path)?,
            false => VecDeque::from([path.to_owned()]),
        };
        let sizes = files.iter().map(fs::metadata);
        let total_bytes = sizes.map(|size| size.map_or(0, |m| m.len())).sum();
        Self::start(Self {
            files,
            total_bytes: Some(total_bytes),
            ..Self::empty(path.display().to_string())
        })
    }

    /// Creates a source that reads consecutive parts, or a recording of mongod, from a stream.
    /// Errors contain `name`.
    ///
    /// # Errors
    /// If the stream begins neither with the first part of a capture nor with a recording.
    pub(crate) fn from_stream(
        name: &str,
        stream: Box<dyn Read + Send>,
    ) -> Result<Self, SourceError> {
        Self::start(Self {
            stream: Some(BufReader::new(stream)),
            ..Self::empty(name.to_owned())
        })
    }

    fn empty(name: String) -> Self {
        Self {
            files: VecDeque::new(),
            name,
            input: None,
            stream: None,
            header: Header::default(),
            next_part: 0,
            end: None,
            total_bytes: None,
            read_bytes: Arc::default(),
        }
    }

    fn start(mut source: Self) -> Result<Self, SourceError> {
        match source.open_part()? {
            true => Ok(source),
            false => Err(SourceError::Empty(source.name)),
        }
    }

    /// The header of the first part.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The `End` record of the last part that was read to its end.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// A counter of the bytes read from the files, and the total size of the files. The size is
    /// `None` for a stream.
    pub(crate) fn position(&self) -> (Arc<AtomicU64>, Option<u64>) {
        (Arc::clone(&self.read_bytes), self.total_bytes)
    }

    /// Reads the next record of any part; `None` after the last part. Headers and `End` records are
    /// not returned.
    ///
    /// # Errors
    /// See [`SourceError`]. Records returned before the error are valid.
    pub fn next_record(&mut self) -> Result<Option<Content>, SourceError> {
        loop {
            match self.input.take() {
                None => return Ok(None),
                Some(Input::Recording(mut recording)) => {
                    let record = recording.next_record();
                    let record = record.map_err(|error| self.recording_error(error))?;
                    match record {
                        Some(_) => self.input = Some(Input::Recording(recording)),
                        None => self.end = Some(recording.end()),
                    }
                    return Ok(record);
                }
                Some(Input::Part(mut reader)) => {
                    let record = reader.next_record();
                    match record.map_err(|error| self.part_error(error))? {
                        Some(Content::End(end)) => {
                            self.end = Some(end);
                            self.stream = Some(reader.into_source());
                            if !self.open_part()? {
                                return self.check_end().map(|()| None);
                            }
                        }
                        record => {
                            self.input = Some(Input::Part(reader));
                            return Ok(record);
                        }
                    }
                }
            }
        }
    }

    /// Opens the next part; false if there is none.
    fn open_part(&mut self) -> Result<bool, SourceError> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => match self.open_file()? {
                Some(stream) => stream,
                None => return Ok(false),
            },
        };
        let rest = stream.fill_buf();
        let rest = rest.map_err(|error| self.part_error(error.into()))?;
        if rest.is_empty() {
            return match self.files.is_empty() {
                true => Ok(false),
                false => self.open_part(),
            };
        }
        if self.next_part == 0 && !is_capture(rest) {
            return self.open_recording(stream).map(|()| true);
        }
        let reader = Reader::new(stream).map_err(|error| self.part_error(error))?;
        self.check_header(reader.header())?;
        self.input = Some(Input::Part(Box::new(reader)));
        Ok(true)
    }

    fn open_recording(&mut self, stream: BufferedInput) -> Result<(), SourceError> {
        let recording = Recording::new(stream).map_err(|error| match error {
            RecorderError::UnknownLayout => SourceError::UnknownFormat(self.name.clone()),
            error => self.recording_error(error),
        })?;
        self.header = recording.header().clone();
        self.input = Some(Input::Recording(Box::new(recording)));
        Ok(())
    }

    fn open_file(&mut self) -> Result<Option<BufferedInput>, SourceError> {
        let Some(path) = self.files.pop_front() else {
            return Ok(None);
        };
        self.name = path.display().to_string();
        let file = File::open(&path).map_err(|error| io_error(&path, error))?;
        let counted = Counted {
            inner: file,
            read_bytes: Arc::clone(&self.read_bytes),
        };
        Ok(Some(BufReader::new(Box::new(counted))))
    }

    fn check_header(&mut self, header: &Header) -> Result<(), SourceError> {
        if self.next_part > 0 && header.capture != self.header.capture {
            return Err(SourceError::OtherCapture(self.name.clone()));
        }
        if header.part < self.next_part {
            return Err(SourceError::PartRepeated {
                name: self.name.clone(),
                part: header.part,
            });
        }
        if header.part != self.next_part {
            return Err(SourceError::PartMissing(self.next_part));
        }
        if self.next_part == 0 {
            self.header = header.clone();
        }
        self.next_part += 1;
        Ok(())
    }

    /// Checks that no part is missing at the end.
    fn check_end(&self) -> Result<(), SourceError> {
        match &self.end {
            Some(end) if end.reason() == EndReason::NextPart => {
                Err(SourceError::PartMissing(self.next_part))
            }
            _ => Ok(()),
        }
    }

    fn recording_error(&self, error: RecorderError) -> SourceError {
        SourceError::Recording {
            name: self.name.clone(),
            error,
        }
    }

    fn part_error(&self, error: ReadError) -> SourceError {
        SourceError::Part {
            name: self.name.clone(),
            error,
        }
    }
}

/// The files in a directory that contain parts, sorted by the numbers of the parts.
fn parts(directory: &Path) -> Result<VecDeque<PathBuf>, SourceError> {
    let at_directory = |error| io_error(directory, error);
    let mut numbered = Vec::new();
    for entry in fs::read_dir(directory).map_err(at_directory)? {
        let path = entry.map_err(at_directory)?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != EXTENSION)
        {
            continue;
        }
        let file = File::open(&path).map_err(|error| io_error(&path, error))?;
        // An empty file is skipped: the program that wrote the capture may have ended just after it
        // created the file.
        if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            continue;
        }
        let reader = match Reader::new(BufReader::new(file)) {
            Ok(reader) => reader,
            // The program may also have ended before it wrote the header.
            Err(ReadError::Truncated { .. }) => continue,
            Err(error) => {
                return Err(SourceError::Part {
                    name: path.display().to_string(),
                    error,
                });
            }
        };
        numbered.push((reader.header().part, path));
        if numbered.len() > MAX_PARTS {
            return Err(SourceError::TooManyFiles {
                directory: directory.display().to_string(),
            });
        }
    }
    numbered.sort();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

fn io_error(path: &Path, error: io::Error) -> SourceError {
    SourceError::Io {
        path: path.display().to_string(),
        error,
    }
}

/// A file whose bytes are counted as they are read.
struct Counted {
    inner: File,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let bytes = u64::try_from(count).unwrap_or(u64::MAX);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use bytes::Bytes;
    use seawall_capture::{
        Writer,
        record::Event,
        recorder::{Layout, Packet, PacketEvent, RecorderWriter},
    };
    use seawall_wire::{encode_op_msg_like, encode_request};

    use super::*;

    fn header(capture: &'static [u8], part: u32) -> Header {
        Header {
            capture: Bytes::from_static(capture),
            part,
            ..Header::default()
        }
    }

    /// A part with one event, whose time is the number of the part.
    fn part(capture: &'static [u8], number: u32, reason: EndReason) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), header(capture, number)).unwrap();
        let event = Event {
            at_us: u64::from(number),
            ..Event::default()
        };
        writer.push(&Content::Event(event).into()).unwrap();
        let mut end = End::default();
        end.set_reason(reason);
        writer.finish(end).unwrap()
    }

    fn three() -> [Vec<u8>; 3] {
        [
            part(b"a", 0, EndReason::NextPart),
            part(b"a", 1, EndReason::NextPart),
            part(b"a", 2, EndReason::Stopped),
        ]
    }

    fn times(source: Result<Source, SourceError>) -> (Vec<u64>, Option<String>) {
        let mut times = Vec::new();
        let mut source = match source {
            Ok(source) => source,
            Err(error) => return (times, Some(error.to_string())),
        };
        loop {
            match source.next_record() {
                Ok(Some(Content::Event(event))) => times.push(event.at_us),
                Ok(Some(other)) => panic!("{other:?}"),
                Ok(None) => return (times, None),
                Err(error) => return (times, Some(error.to_string())),
            }
        }
    }

    fn streamed(bytes: Vec<u8>) -> (Vec<u64>, Option<String>) {
        times(Source::from_stream(
            "test",
            Box::new(io::Cursor::new(bytes)),
        ))
    }

    /// A directory that is removed at the end of the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("seawall-replay-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn parts_in_a_directory_are_read_in_the_order_of_their_numbers() {
        let scratch = Scratch::new("order");
        for (name, part) in ["c.swc", "a.swc", "b.swc"].iter().zip(three()) {
            fs::write(scratch.0.join(name), part).unwrap();
        }
        fs::write(scratch.0.join("notes.txt"), "other").unwrap();
        assert_eq!(times(Source::open(&scratch.0)), (vec![0, 1, 2], None));
        let mut source = Source::open(&scratch.0).unwrap();
        while source.next_record().unwrap().is_some() {}
        let (read, total) = source.position();
        assert_eq!(Some(read.load(Ordering::Relaxed)), total);
        assert_eq!(source.end().unwrap().reason(), EndReason::Stopped);
    }

    #[test]
    fn consecutive_parts_are_read_from_a_file_and_from_a_stream() {
        let scratch = Scratch::new("stream");
        let file = scratch.0.join("all");
        fs::write(&file, three().concat()).unwrap();
        assert_eq!(times(Source::open(&file)), (vec![0, 1, 2], None));
        assert_eq!(streamed(three().concat()), (vec![0, 1, 2], None));
    }

    #[test]
    fn a_missing_part_is_reported_after_the_records_before_it() {
        let [first, second, third] = three();
        let missing = |number| Some(format!("part {number} of the capture is missing"));
        assert_eq!(
            streamed([&first[..], &third].concat()),
            (vec![0], missing(1))
        );
        assert_eq!(
            streamed([&first[..], &second].concat()),
            (vec![0, 1], missing(2))
        );
        assert_eq!(streamed(second), (vec![], missing(0)));
    }

    #[test]
    fn a_part_that_occurs_twice_is_not_reported_as_a_missing_part() {
        let [first, second, third] = three();
        let error = "test repeats part 0 of the capture".to_owned();
        assert_eq!(
            streamed([&first[..], &second, &first].concat()),
            (vec![0, 1], Some(error))
        );
        let scratch = Scratch::new("twice");
        let files = [
            ("0.swc", &first),
            ("1.swc", &second),
            ("2.swc", &third),
            ("copy.swc", &second),
        ];
        for (name, part) in files {
            fs::write(scratch.0.join(name), part).unwrap();
        }
        let copy = scratch.0.join("copy.swc").display().to_string();
        let error = format!("{copy} repeats part 1 of the capture");
        assert_eq!(times(Source::open(&scratch.0)), (vec![0, 1], Some(error)));
    }

    /// Seawall may end between the first bytes of a part and its header.
    #[test]
    fn a_part_without_a_header_does_not_hide_the_parts_before_it() {
        let scratch = Scratch::new("header");
        let [first, second, _] = three();
        fs::write(scratch.0.join("0.swc"), first).unwrap();
        for bytes in [0, 8, 12, 20] {
            fs::write(scratch.0.join("1.swc"), &second[..bytes]).unwrap();
            let missing = "part 1 of the capture is missing".to_owned();
            assert_eq!(times(Source::open(&scratch.0)), (vec![0], Some(missing)));
        }
    }

    #[test]
    fn a_part_of_another_capture_is_refused() {
        let [first, ..] = three();
        let other = part(b"b", 1, EndReason::Stopped);
        let (read, error) = streamed([first, other].concat());
        assert_eq!(read, [0]);
        assert_eq!(error.unwrap(), "test belongs to another capture");
    }

    #[test]
    fn a_stream_that_was_cut_off_at_any_length_ends_with_an_error() {
        let all = three().concat();
        for length in 0..all.len() {
            let (read, error) = streamed(all.get(..length).unwrap().to_vec());
            assert!(error.is_some(), "{length}");
            assert!([0, 1, 2].starts_with(&read), "{read:?}");
        }
    }

    /// A recording of two commands and their replies.
    fn recording() -> Vec<u8> {
        let mut writer = RecorderWriter::new(Vec::new(), Layout::Addresses);
        let ping = encode_request(7, &doc! {"ping": 1, "$db": "d"}.to_vec().unwrap());
        let pong = encode_op_msg_like(0, 8, 7, &doc! {"ok": 1.0}.to_vec().unwrap());
        for (order, message) in [&ping, &pong, &ping, &pong].into_iter().enumerate() {
            let order = u64::try_from(order).unwrap();
            let packet = Packet {
                event: PacketEvent::Message,
                session: 1,
                local: "127.0.0.1:27017".to_owned(),
                remote: "127.0.0.1:50000".to_owned(),
                at_us: 1_700_000_000_000_000 + 1000 * order,
                order,
                message: message.clone().into(),
            };
            writer.push(&packet).unwrap();
        }
        writer.finish().unwrap()
    }

    /// The number of commands, the number of replies, and the error at which the source ended.
    fn counts(bytes: Vec<u8>) -> (usize, usize, Option<String>) {
        let (mut commands, mut replies) = (0, 0);
        let mut source = Source::from_stream("test", Box::new(io::Cursor::new(bytes))).unwrap();
        loop {
            match source.next_record() {
                Ok(Some(Content::Command(_))) => commands += 1,
                Ok(Some(Content::Reply(_))) => replies += 1,
                Ok(Some(_)) => {}
                Ok(None) => {
                    assert_eq!(source.end().unwrap().operations, 2);
                    return (commands, replies, None);
                }
                Err(error) => return (commands, replies, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn a_traffic_recording_of_mongod_is_converted_to_a_capture_while_it_is_read() {
        assert_eq!(counts(recording()), (2, 2, None));
        let open = || Source::from_stream("test", Box::new(io::Cursor::new(recording()))).unwrap();
        assert_eq!(open().header(), open().header());
        assert_eq!(open().header().servers[0].address, "127.0.0.1:27017");
        let mut cut = recording();
        cut.pop();
        let (commands, replies, error) = counts(cut);
        assert_eq!((commands, replies), (2, 1));
        assert!(
            error
                .unwrap()
                .starts_with("test: the file was cut off at byte")
        );
    }

    #[test]
    fn files_that_are_not_captures_are_refused() {
        assert_eq!(streamed(Vec::new()).1.unwrap(), "test contains no capture");
        let other = streamed(b"PK\x03\x04 and more bytes".to_vec());
        assert_eq!(
            other.1.unwrap(),
            "test is neither a capture nor a recording of mongod"
        );
        let scratch = Scratch::new("none");
        assert!(
            times(Source::open(&scratch.0))
                .1
                .unwrap()
                .ends_with("contains no capture")
        );
        assert!(Source::open(&scratch.0.join("nowhere")).is_err());
    }
}
