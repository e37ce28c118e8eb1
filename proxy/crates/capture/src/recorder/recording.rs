//! Reads a file of mongod's traffic recorder as the records of a capture.

use std::{collections::VecDeque, io::Read};

use bytes::Bytes;

use super::{Import, ImportCounts, Packet, RecorderError, RecorderReader};
use crate::record::{Content, End, Header};

/// The name of the program in the header of a converted recording.
const PROGRAM: &str = concat!("seawall ", env!("CARGO_PKG_VERSION"), ", from a recording");

/// Converts a file of mongod's traffic recorder to the records of a capture while reading it.
/// The converter keeps in memory only one packet, and the sessions and commands that [`Import`]
/// remembers. The numbers of these sessions and commands are limited.
#[derive(Debug)]
pub struct Recording<R> {
    reader: RecorderReader<R>,
    import: Import,
    header: Header,
    /// The records that were not returned yet.
    records: VecDeque<Content>,
}

impl<R: Read> Recording<R> {
    /// Opens a recording and finds its layout.
    ///
    /// # Errors
    /// If the source fails, or if it does not begin with a packet of a known layout.
    pub fn new(source: R) -> Result<Self, RecorderError> {
        let mut reader = RecorderReader::new(source)?;
        let first = reader.next_packet()?.ok_or(RecorderError::UnknownLayout)?;
        let mut import = Import::new(reader.layout(), &first);
        let header = import.header(id(&first), PROGRAM.to_owned(), &first);
        let records = import.convert(first).into();
        Ok(Self {
            reader,
            import,
            header,
            records,
        })
    }

    /// The header of the capture. The same recording always has the same header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next record; `None` at the end of the file. This function does not return the `End`
    /// record; [`Self::end`] does.
    ///
    /// # Errors
    /// If the source fails, or if the file is damaged or was cut off. Records returned before the
    /// error are valid.
    pub fn next_record(&mut self) -> Result<Option<Content>, RecorderError> {
        loop {
            if let Some(record) = self.records.pop_front() {
                return Ok(Some(record));
            }
            let Some(packet) = self.reader.next_packet()? else {
                return Ok(None);
            };
            self.records = self.import.convert(packet).into();
        }
    }

    /// The `End` record, with the totals so far.
    pub fn end(&self) -> End {
        self.import.end()
    }

    /// The counts of all packets converted so far.
    pub fn counts(&self) -> ImportCounts {
        self.import.counts()
    }
}

/// The id of the capture: the time of the first packet, and checksums of its addresses and its
/// message.
fn id(first: &Packet) -> Bytes {
    let text = crc32c::crc32c(first.local.as_bytes());
    let text = crc32c::crc32c_append(text, first.remote.as_bytes());
    let message = crc32c::crc32c(&first.message);
    let id = [
        &first.at_us.to_le_bytes()[..],
        &text.to_le_bytes(),
        &message.to_le_bytes(),
    ];
    Bytes::from(id.concat())
}
