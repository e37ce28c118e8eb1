#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests end with a panic"
)]

use bytes::Bytes;
use proptest::prelude::*;

use crate::{
    ReadError, Reader, WriteError, Writer,
    block::{BLOCK_BYTES, MAX_BLOCK_BYTES},
    record::{Command, Content, End, Event, Header, Reply, Selection, Server},
};

fn header() -> Header {
    Header {
        capture: Bytes::from_static(b"0123456789abcdef"),
        began_at_us: 1_700_000_000_000_000,
        program: "seawall 0.1.0".to_owned(),
        ..Header::default()
    }
}

fn command(operation: u64, bytes: usize) -> Content {
    Content::Command(Command {
        client: 1,
        operation,
        at_us: operation * 10,
        message: vec![7; bytes].into(),
    })
}

fn part(contents: &[Content]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header()).unwrap();
    for content in contents {
        writer.push(&content.clone().into()).unwrap();
    }
    writer.finish(End::default()).unwrap()
}

/// Reads a part up to its end or its first error.
fn read(part: &[u8]) -> (Vec<Content>, Option<ReadError>) {
    let mut contents = Vec::new();
    let mut reader = match Reader::new(part) {
        Ok(reader) => reader,
        Err(error) => return (contents, Some(error)),
    };
    loop {
        match reader.next_record() {
            Ok(Some(content)) => contents.push(content),
            Ok(None) => return (contents, None),
            Err(error) => return (contents, Some(error)),
        }
    }
}

#[test]
fn reader_returns_the_records_that_were_written() {
    let contents = vec![
        command(1, 100),
        Content::Reply(Reply {
            operation: 1,
            duration_us: 450,
            ..Reply::default()
        }),
        Content::Event(Event {
            kind: "storm".to_owned(),
            ..Event::default()
        }),
        command(2, 2 * BLOCK_BYTES),
        command(3, 0),
    ];
    let part = part(&contents);
    assert_eq!(Reader::new(part.as_slice()).unwrap().header(), &header());
    let (mut read, error) = read(&part);
    assert!(error.is_none());
    assert_eq!(read.pop(), Some(Content::End(End::default())));
    assert_eq!(read, contents);
}

#[test]
fn a_message_of_48_mb_fits_into_a_block() {
    let largest = command(1, seawall_wire::MAX_MESSAGE_BYTES);
    let (read, error) = read(&part(std::slice::from_ref(&largest)));
    assert!(error.is_none());
    assert!(read.first() == Some(&largest));
}

#[test]
fn a_record_over_the_size_limit_is_refused_and_not_written() {
    let mut writer = Writer::new(Vec::new(), header()).unwrap();
    let error = writer
        .push(&command(1, MAX_BLOCK_BYTES).into())
        .unwrap_err();
    assert!(matches!(error, WriteError::RecordTooLarge { .. }));
    let part = writer.finish(End::default()).unwrap();
    assert_eq!(read(&part).0, [Content::End(End::default())]);
}

/// A small file can contain a header with millions of empty entries, which would need gigabytes of
/// memory.
#[test]
fn a_header_over_1_mib_or_with_over_10_000_servers_and_names_is_refused() {
    let with_servers = |count| Header {
        servers: vec![Server::default(); count],
        ..header()
    };
    let with_names = |count| Header {
        servers: vec![Server::default(); 5_000],
        selection: Some(Selection {
            users: vec![String::new(); count],
            ..Selection::default()
        }),
        ..header()
    };
    for (header, expected) in [
        (with_servers(10_000), None),
        (with_servers(10_001), Some("more than 10,000 servers")),
        (with_names(5_000), None),
        (with_names(5_001), Some("more than 10,000 servers")),
        (with_servers(600_000), Some("larger than 1 MiB")),
    ] {
        let first = Writer::new(Vec::new(), header.clone()).unwrap();
        let (_, error) = read(&first.finish(End::default()).unwrap());
        let (_, of_second) = read(&part(&[Content::Header(header)]));
        let of_second = of_second.unwrap().to_string();
        match expected {
            None => assert!(error.is_none()),
            Some(expected) => {
                let error = error.unwrap().to_string();
                assert!(error.contains(expected), "{error}");
                assert!(of_second.contains(expected), "{of_second}");
            }
        }
    }
}

#[test]
fn a_capture_file_that_is_cut_off_at_any_byte_gives_an_error() {
    let part = part(&[command(1, 300), command(2, 300)]);
    for length in 0..part.len() {
        let (contents, error) = read(&part[..length]);
        assert!(
            error.is_some(),
            "no error after {length} of {} bytes",
            part.len()
        );
        assert!(
            !contents
                .iter()
                .any(|content| matches!(content, Content::End(_)))
        );
    }
}

#[test]
fn records_after_the_end_record_are_refused() {
    let end = Content::End(End::default());
    let (contents, error) = read(&part(&[command(1, 10), end, command(2, 10)]));
    assert_eq!(contents, [command(1, 10)]);
    assert!(matches!(error, Some(ReadError::Damaged { .. })));
}

/// A capture consists of several files, called *parts*.
#[test]
fn several_capture_files_in_one_stream_are_read_one_after_another() {
    let joined = [part(&[command(1, 10)]), part(&[command(2, 10)])].concat();
    let mut source = joined.as_slice();
    for operation in [1, 2] {
        let mut reader = Reader::new(source).unwrap();
        assert_eq!(reader.next_record().unwrap(), Some(command(operation, 10)));
        while reader.next_record().unwrap().is_some() {}
        source = reader.into_source();
    }
    assert!(source.is_empty());
}

#[test]
fn an_unknown_format_version_is_refused() {
    let mut part = part(&[]);
    part[8] = 2;
    let (_, error) = read(&part);
    assert!(matches!(error, Some(ReadError::UnknownVersion(2))));
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let (_, error) = read(b"PK\x03\x04 and more bytes than a head");
    assert!(matches!(error, Some(ReadError::NotACapture)));
}

#[test]
fn a_block_that_declares_too_many_bytes_is_refused_before_allocation() {
    let mut part = part(&[]);
    part[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let (_, error) = read(&part);
    assert!(matches!(
        error,
        Some(ReadError::Damaged { at_byte: 12, .. })
    ));
}

proptest! {
    /// A changed bit never leads to wrong records, only to an error.
    #[test]
    fn a_changed_bit_is_detected(position in 0_usize..10_000, bit in 0_u8..8) {
        let whole = part(&[command(1, 3000), command(2, 40)]);
        let (expected, _) = read(&whole);
        let mut changed = whole;
        let position = position % changed.len();
        changed[position] ^= 1 << bit;
        let (contents, error) = read(&changed);
        prop_assert!(error.is_some());
        prop_assert!(expected.starts_with(&contents));
    }
}
