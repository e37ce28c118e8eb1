//! Parts of captures (a part is one file): arbitrary bytes, and parts that [`Writer`] wrote.
//!
//! Input, in this order:
//!
//! - one byte that selects what the last item is;
//! - one length byte, then that many bytes, which select changes to a part that the target wrote;
//! - a part, the encoded records of a part, or bytes that select records.

use prost::Message as _;
use seawall_capture::{
    MAX_BLOCK_BYTES, Reader, Writer,
    record::{
        ClientBegan, ClientEnded, Command, Content, End, Event, Facts, Header, Omitted, Record,
        Reply,
    },
};
use seawall_wire::checksum;

use crate::choices::{Choices, altered};

/// Maximum number of records of a generated part.
const MAX_RECORDS: usize = 40;

/// Checks that reading never panics. Also checks that the records of a part (one file of a capture)
/// are equal after they were written and read again. Then changes bytes of a written part. From
/// this part, the reader may return fewer records, but it must return the first records unchanged
/// and in order.
pub fn capture(data: &[u8]) {
    let mut choices = Choices::new(data);
    let kind = choices.byte();
    let mut alterations = Choices::new(choices.short());
    match kind % 3 {
        0 => check_part(choices.rest()),
        1 => check_part(&framed(choices.rest())),
        _ => check_written(choices, &mut alterations),
    }
}

/// A part (one file of a capture) as it was read: its header, and its records up to the end or the
/// first error.
#[derive(Debug)]
struct Part {
    header: Header,
    records: Vec<Content>,
    has_ended: bool,
}

fn read(bytes: &[u8]) -> Option<Part> {
    let mut reader = Reader::new(bytes).ok()?;
    let mut part = Part {
        header: reader.header().clone(),
        records: Vec::new(),
        has_ended: false,
    };
    while let Ok(next) = reader.next_record() {
        let Some(record) = next else {
            part.has_ended = true;
            assert!(matches!(reader.next_record(), Ok(None)));
            break;
        };
        part.records.push(record);
    }
    let records: usize = part.records.iter().map(bytes_of).map(|b| b.len()).sum();
    let blocks = bytes.len() / 12;
    assert!(records <= blocks * MAX_BLOCK_BYTES, "{records} bytes");
    Some(part)
}

/// Checks a part that consists of arbitrary bytes.
fn check_part(bytes: &[u8]) {
    let Some(part) = read(bytes) else { return };
    let mut records = part.records.clone();
    let end = match (part.has_ended, records.pop()) {
        (true, Some(Content::End(end))) => end,
        (true, last) => panic!("the last record of a part must be an end: {last:?}"),
        (false, last) => {
            records.extend(last);
            End::default()
        }
    };
    let written = written(part.header.clone(), &records, end);
    let again = read(&written).expect("the header can be read");
    assert!(again.has_ended);
    assert_eq!(again.header.encode_to_vec(), part.header.encode_to_vec());
    let kept = again.records.split_last().map_or(&[][..], |(_, kept)| kept);
    assert_equal(kept, &records);
}

/// Checks a part with records that the bytes of the input select.
fn check_written(mut choices: Choices<'_>, alterations: &mut Choices<'_>) {
    let header = Header {
        capture: choices.short().to_vec().into(),
        part: choices.byte().into(),
        ..Header::default()
    };
    let count = choices.index(MAX_RECORDS);
    let mut records: Vec<_> = (0..count).map(|_| content(&mut choices)).collect();
    let end = End {
        operations: choices.byte().into(),
        ..End::default()
    };
    let bytes = written(header, &records, end.clone());
    records.push(Content::End(end));
    let part = read(&bytes).expect("the writer wrote a header");
    assert!(part.has_ended);
    assert_equal(&part.records, &records);
    let changed = altered(&bytes, alterations, 4);
    if let Some(part) = read(&changed) {
        let expected = records.get(..part.records.len());
        assert_equal(&part.records, expected.unwrap_or_default());
    }
}

fn written(header: Header, records: &[Content], end: End) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header).expect("a header fits a block");
    for record in records {
        let record = Record::from(record.clone());
        writer.push(&record).expect("a record fits a block");
    }
    writer.finish(end).expect("a vector takes all bytes")
}

/// Returns a record with fields that the choices select.
fn content(choices: &mut Choices<'_>) -> Content {
    let (kind, number) = (choices.byte(), u64::from(choices.byte()) << 7);
    let mut text = || String::from_utf8_lossy(choices.short()).into_owned();
    match kind % 6 {
        0 => Content::ClientBegan(ClientBegan {
            client: number,
            application: text(),
            driver: text(),
            user: text(),
            ..ClientBegan::default()
        }),
        1 => Content::ClientEnded(ClientEnded {
            client: number,
            at_us: number,
        }),
        2 => Content::Command(Command {
            operation: number,
            message: choices.short().to_vec().into(),
            ..Command::default()
        }),
        3 => Content::Reply(Reply {
            operation: number,
            outcome: kind.into(),
            facts: choices.bool().then(Facts::default),
            message: choices.short().to_vec().into(),
            ..Reply::default()
        }),
        4 => Content::Omitted(Omitted {
            operations: number,
            reason: kind.into(),
            ..Omitted::default()
        }),
        _ => Content::Event(Event {
            kind: text(),
            text: text(),
            ..Event::default()
        }),
    }
}

/// Returns a part with one block that contains these records, with the right lengths and checksum.
fn framed(records: &[u8]) -> Vec<u8> {
    let compressed = zstd::bulk::compress(records, 1).expect("there is enough memory");
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("an input is small");
    let mut part = b"SWCAPT\r\n\x01\0\0\0".to_vec();
    part.extend(length(&compressed).to_le_bytes());
    part.extend(length(records).to_le_bytes());
    part.extend(checksum([compressed.as_slice()]).to_le_bytes());
    part.extend(compressed);
    part
}

/// Compares encoded records, because NaN does not equal itself.
fn assert_equal(one: &[Content], other: &[Content]) {
    assert_eq!(one.len(), other.len(), "{one:?} {other:?}");
    for (one, other) in one.iter().zip(other) {
        assert_eq!(bytes_of(one), bytes_of(other), "{one:?} {other:?}");
    }
}

fn bytes_of(content: &Content) -> Vec<u8> {
    Record::from(content.clone()).encode_to_vec()
}
