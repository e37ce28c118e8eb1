//! `seawall load convert`: converts files of mongod's traffic recorder to captures, and back.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use seawall_capture::{
    WriteError, Writer, is_capture,
    record::{Content, End, EndReason, Header, Redaction},
    recorder::{self, Export, ExportError, Layout, RecorderError, RecorderWriter},
};
use seawall_console::{Exit, complain, print_line, write_new};
use seawall_redact::{Records, Redactor};
use seawall_replay::SourceError;

use super::redaction::{KeyError, Redact};

#[derive(Debug, Args)]
pub(super) struct Convert {
    /// The input: a file of mongod's traffic recorder, a file with all parts of a capture, or a
    /// directory with the parts of a capture.
    from: PathBuf,
    /// The file to write; an existing file is not overwritten.
    #[arg(value_name = "TO")]
    destination: PathBuf,
    /// Format of the file to write; without this option, a recording becomes a capture and a
    /// capture becomes a recording.
    #[arg(long = "to", value_enum)]
    format: Option<ConvertedFormat>,
    #[command(flatten)]
    redact: Redact,
}

/// A format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ConvertedFormat {
    /// A capture of Seawall, in one part.
    Capture,
    /// A recording as MongoDB 6.0 writes it.
    Recorder,
    /// A recording as MongoDB 8.0 writes it; not tested with such a server.
    RecorderSessions,
    /// A recording as servers after 8.0 write it; not tested with such a server.
    RecorderEvents,
}

/// The reason why a conversion ended early.
#[derive(Debug, thiserror::Error)]
enum ConvertError {
    #[error("{path}: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Capture(#[from] SourceError),
    #[error("{0}: {1}")]
    Recorder(PathBuf, RecorderError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the capture is redacted already")]
    RedactedAlready,
    #[error("cannot write the converted file: {0}")]
    Write(#[from] WriteError),
}

impl From<io::Error> for ConvertError {
    fn from(error: io::Error) -> Self {
        Self::Write(error.into())
    }
}

/// The result of a conversion: a summary with the counts, and the error that prevented reading the
/// rest of the input (`None` if the whole input was read).
struct Converted {
    summary: String,
    cut_off: Option<ConvertError>,
}

pub(super) fn run(arguments: &Convert) -> Exit {
    match convert(arguments) {
        Ok(converted) => {
            let printed = print_line(&converted.summary);
            converted.cut_off.map_or(printed, |error| {
                let message = format!("{error}; everything before this error was converted");
                complain(&message, Exit::Unavailable)
            })
        }
        Err(
            error @ (ConvertError::Write(_)
            | ConvertError::Open { .. }
            | ConvertError::Capture(SourceError::Io { .. })),
        ) => complain(&error.to_string(), Exit::Unavailable),
        Err(error) => complain(&error.to_string(), Exit::Usage),
    }
}

fn convert(arguments: &Convert) -> Result<Converted, ConvertError> {
    let from = &arguments.from;
    let is_capture = from.is_dir() || has_magic(from)?;
    let layout = match arguments.format {
        None if is_capture => Some(Layout::Addresses),
        None | Some(ConvertedFormat::Capture) => None,
        Some(ConvertedFormat::Recorder) => Some(Layout::Addresses),
        Some(ConvertedFormat::RecorderSessions) => Some(Layout::Sessions),
        Some(ConvertedFormat::RecorderEvents) => Some(Layout::Events),
    };
    let redactor = arguments.redact.redactor()?;
    let mut source: Box<dyn RecordSource> = match is_capture {
        true => Box::new(seawall_replay::Source::open(from)?),
        false => Box::new(RecordingFile::open(from)?),
    };
    if let Some(redactor) = redactor {
        source = Box::new(Redacted::new(source, redactor)?);
    }
    write(&arguments.destination, source.as_mut(), layout)
}

/// Writes the converted file: a recording with this layout, or a capture if `layout` is `None`.
fn write(
    destination: &Path,
    source: &mut dyn RecordSource,
    layout: Option<Layout>,
) -> Result<Converted, ConvertError> {
    write_new(destination, |file| match layout {
        None => to_capture(source, BufWriter::new(file)),
        Some(layout) => to_recording(source, layout, BufWriter::new(file)),
    })
}

/// The records of a capture, or of a recording (a file of mongod's traffic recorder) that is
/// converted while it is read.
trait RecordSource {
    fn header(&self) -> &Header;
    /// The next record; `None` at the end.
    fn next_record(&mut self) -> Result<Option<Content>, ConvertError>;
    /// The record that ends the capture.
    fn end(&self) -> End;
    /// The counts of the records or packets that were not converted, as text.
    fn not_converted(&self) -> String;
}

fn to_capture(
    source: &mut dyn RecordSource,
    destination: BufWriter<&File>,
) -> Result<Converted, ConvertError> {
    let mut writer = Writer::new(destination, source.header().clone())?;
    let (mut operations, mut clients, mut omitted) = (0, 0, 0_u64);
    let cut_off = each_record(source, |record| {
        operations += u64::from(matches!(record, Content::Command(_)));
        clients += u64::from(matches!(record, Content::ClientBegan(_)));
        if let Content::Omitted(missing) = &record {
            // A record with 0 operations reports omitted messages of replies, but not their number.
            // So it counts as one.
            omitted = omitted.saturating_add(missing.operations.max(1));
        }
        Ok(writer.push(&record.into())?)
    })?;
    let mut end = source.end();
    if cut_off.is_some() {
        // The input is cut off, so the counts at its end are missing. Use the counts of the records
        // that were converted.
        end = End {
            operations,
            clients,
            omitted,
            ..end
        };
        end.set_reason(EndReason::Stopped);
    }
    let (operations, clients) = (end.operations, end.clients);
    let mut summary = format!("operations: {operations}, clients: {clients}");
    summary.push_str(&source.not_converted());
    writer.finish(end)?.flush()?;
    Ok(Converted { summary, cut_off })
}

fn to_recording(
    source: &mut dyn RecordSource,
    layout: Layout,
    destination: BufWriter<&File>,
) -> Result<Converted, ConvertError> {
    let mut export = Export::new(layout, source.header())?;
    let mut writer = RecorderWriter::new(destination, layout);
    let cut_off = each_record(source, |record| {
        let mut packets = export.convert(record).into_iter();
        Ok(packets.try_for_each(|packet| writer.push(&packet))?)
    })?;
    writer.finish()?.flush()?;
    let counts = export.counts();
    let summary = format!(
        "{} operations, {} without their reply, {} omitted by the capture{}",
        counts.operations,
        counts.without_reply,
        counts.omitted,
        source.not_converted()
    );
    Ok(Converted { summary, cut_off })
}

/// Passes each record to `take`. Returns the error that prevented reading the rest of the input;
/// `None` if the input was read to its end.
fn each_record(
    source: &mut dyn RecordSource,
    mut take: impl FnMut(Content) -> Result<(), ConvertError>,
) -> Result<Option<ConvertError>, ConvertError> {
    loop {
        match source.next_record() {
            Ok(Some(record)) => take(record)?,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        }
    }
}

/// A source whose values are replaced by pseudonyms.
struct Redacted {
    source: Box<dyn RecordSource>,
    header: Header,
    records: Records,
    /// The redacted records that `next_record` has not returned yet.
    redacted: VecDeque<Content>,
}

impl Redacted {
    fn new(source: Box<dyn RecordSource>, redactor: Redactor) -> Result<Self, ConvertError> {
        let mut header = source.header().clone();
        if header.redaction() != Redaction::None {
            return Err(ConvertError::RedactedAlready);
        }
        let records = Records::new(redactor);
        records.mark(&mut header);
        Ok(Self {
            source,
            header,
            records,
            redacted: VecDeque::new(),
        })
    }
}

impl RecordSource for Redacted {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_record(&mut self) -> Result<Option<Content>, ConvertError> {
        while self.redacted.is_empty() {
            let Some(record) = self.source.next_record()? else {
                return Ok(None);
            };
            self.redacted.extend(self.records.redact(record));
        }
        Ok(self.redacted.pop_front())
    }

    fn end(&self) -> End {
        self.records.end(self.source.end())
    }

    fn not_converted(&self) -> String {
        self.source.not_converted()
    }
}

/// A file of mongod's traffic recorder.
struct RecordingFile {
    path: PathBuf,
    records: recorder::Recording<BufReader<File>>,
}

impl RecordingFile {
    fn open(path: &Path) -> Result<Self, ConvertError> {
        let records = recorder::Recording::new(BufReader::new(open(path)?));
        Ok(Self {
            records: records.map_err(|error| ConvertError::Recorder(path.to_owned(), error))?,
            path: path.to_owned(),
        })
    }
}

impl RecordSource for RecordingFile {
    fn header(&self) -> &Header {
        self.records.header()
    }

    fn next_record(&mut self) -> Result<Option<Content>, ConvertError> {
        let record = self.records.next_record();
        record.map_err(|error| ConvertError::Recorder(self.path.clone(), error))
    }

    fn end(&self) -> End {
        self.records.end()
    }

    fn not_converted(&self) -> String {
        let counts = self.records.counts();
        format!(
            "; not converted: {} secret commands, {} handshakes, {} messages of old opcodes, \
             {} damaged messages, {} replies without a command",
            counts.secret,
            counts.handshakes,
            counts.legacy,
            counts.damaged,
            counts.unmatched_replies
        )
    }
}

impl RecordSource for seawall_replay::Source {
    fn header(&self) -> &Header {
        self.header()
    }

    fn next_record(&mut self) -> Result<Option<Content>, ConvertError> {
        Ok(self.next_record()?)
    }

    fn end(&self) -> End {
        self.end().cloned().unwrap_or_default()
    }

    fn not_converted(&self) -> String {
        String::new()
    }
}

/// True if a file begins with the bytes with which every capture file begins.
fn has_magic(path: &Path) -> Result<bool, ConvertError> {
    let mut start = Vec::new();
    let read = open(path)?.take(8).read_to_end(&mut start);
    read.map_err(|source| ConvertError::Open {
        path: path.to_owned(),
        source,
    })?;
    Ok(is_capture(&start))
}

fn open(path: &Path) -> Result<File, ConvertError> {
    File::open(path).map_err(|source| ConvertError::Open {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    /// A source without records. When it is read, it checks that no file has the name of the
    /// converted file yet.
    struct UnreadSource {
        header: Header,
        destination: PathBuf,
    }

    impl RecordSource for UnreadSource {
        fn header(&self) -> &Header {
            &self.header
        }

        fn next_record(&mut self) -> Result<Option<Content>, ConvertError> {
            assert!(!self.destination.exists());
            Ok(None)
        }

        fn end(&self) -> End {
            End::default()
        }

        fn not_converted(&self) -> String {
            String::new()
        }
    }

    /// A process that is killed during a conversion leaves no file with this name.
    #[test]
    fn a_converted_file_gets_its_name_when_it_is_complete() {
        let name = format!("seawall-convert-{}", process::id());
        let destination = env::temp_dir().join(name);
        let mut source = UnreadSource {
            header: Header::default(),
            destination: destination.clone(),
        };
        write(&destination, &mut source, None).unwrap();
        let converted = fs::read(&destination).unwrap();
        fs::remove_file(&destination).unwrap();
        assert!(is_capture(&converted));
    }
}
