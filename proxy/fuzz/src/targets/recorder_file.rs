//! Files of mongod's traffic recorder: reads arbitrary bytes as such a file, and converts the
//! packets to records of a capture and back.
//!
//! Input, in this order:
//!
//! - one byte: if it is below 128, the rest is a file. Otherwise, the rest selects messages, and
//!   the byte selects the layout of the file that the target writes with these messages;
//! - the rest: a file, or bytes that select messages.

use bson::{Document, doc};
use bytes::Bytes;
use prost::Message as _;
use seawall_capture::{
    record::{Content, Record, ReplyDetail},
    recorder::{Export, Import, Layout, Packet, PacketEvent, RecorderReader, RecorderWriter},
};
use seawall_wire::{Compressor, MORE_TO_COME, OpMsg, deflate, encode_op_msg_like, encode_request};

use crate::{choices::Choices, documents};

/// Maximum number of packets that are made from an input.
const MAX_PACKETS: usize = 40;

/// Checks that reading a file never panics, and that writing the packets that were read gives the
/// same bytes. Converts packets to records, and checks the order of the records. Checks that the
/// records are equal after a conversion to a file and back. Skips this last check if the conversion
/// to records has omitted messages, for example because they may contain a secret.
pub fn recorder_file(data: &[u8]) {
    let mut choices = Choices::new(data);
    let kind = choices.byte();
    let layouts = Layout::ALL.len();
    let layout = Layout::ALL.get(usize::from(kind) % layouts);
    let layout = *layout.expect("the index is below the length");
    if kind < 128 {
        check_file(choices.rest());
    } else {
        let packets = packets(layout, &mut choices);
        let file = write(layout, &packets);
        check_file(&file);
        convert(layout, packets);
    }
}

/// Reads arbitrary bytes as a file, up to the end or the first error. Checks the packets that were
/// read.
fn check_file(file: &[u8]) {
    let Some((layout, packets)) = read(file) else {
        return;
    };
    let again = write(layout, &packets);
    assert!(file.starts_with(&again), "{layout:?} {packets:?}");
    convert(layout, packets);
}

fn read(file: &[u8]) -> Option<(Layout, Vec<Packet>)> {
    let mut reader = RecorderReader::new(file).ok()?;
    let packets = std::iter::from_fn(|| reader.next_packet().ok().flatten());
    let packets: Vec<_> = packets.collect();
    assert!(
        !packets.is_empty(),
        "the reader has parsed the first packet to find the layout"
    );
    Some((reader.layout(), packets))
}

fn write(layout: Layout, packets: &[Packet]) -> Vec<u8> {
    let mut writer = RecorderWriter::new(Vec::new(), layout);
    for packet in packets {
        writer.push(packet).expect("a vector takes all packets");
    }
    writer.finish().expect("a vector takes all bytes")
}

fn convert(layout: Layout, packets: Vec<Packet>) {
    let Some(first) = packets.first().cloned() else {
        return;
    };
    let mut import = Import::new(layout, &first);
    let header = import.header(Bytes::new(), String::new(), &first);
    assert_eq!(header.reply_detail(), ReplyDetail::Whole);
    let records = packets.into_iter().flat_map(|p| import.convert(p));
    let records: Vec<_> = records.collect();
    check_records(&records);

    let mut export = Export::new(layout, &header).expect("the replies are whole");
    let packets = records.iter().flat_map(|r| export.convert(r.clone()));
    let packets: Vec<_> = packets.collect();
    let omitted = records.iter().filter(|r| matches!(r, Content::Omitted(_)));
    if packets.is_empty() || omitted.count() > 0 {
        return;
    }
    let (_, again) = read(&write(layout, &packets)).expect("a written file can be read");
    let mut first = packets.first().cloned().expect("there is a packet");
    first.at_us = header.began_at_us;
    let mut import = Import::new(layout, &first);
    let again: Vec<_> = again.into_iter().flat_map(|p| import.convert(p)).collect();
    assert_eq!(
        encoded(&again),
        encoded(&after_round_trip(layout, &records))
    );
}

/// Checks that clients and operations have the numbers 1, 2, 3 and so on in the order of their
/// records. Checks that all other records refer to a client or an operation whose record came
/// before, and that each command is a valid `OP_MSG`.
fn check_records(records: &[Content]) {
    let (mut clients, mut operations) = (0, 0);
    for record in records {
        match record {
            Content::ClientBegan(began) => {
                clients += 1;
                assert_eq!(began.client, clients);
            }
            Content::Command(command) => {
                operations += 1;
                assert_eq!(command.operation, operations);
                assert!((1..=clients).contains(&command.client));
                assert!(OpMsg::parse(&command.message).is_ok());
            }
            Content::Reply(reply) => assert!((1..=operations).contains(&reply.operation)),
            Content::ClientEnded(ended) => assert!((1..=clients).contains(&ended.client)),
            Content::Omitted(omitted) => assert!((1..=clients).contains(&omitted.client)),
            Content::Header(_) | Content::Event(_) | Content::End(_) => panic!("{record:?}"),
        }
    }
}

/// The records that remain after a conversion to this layout and back. A file in a layout with
/// dates does not say when a client ended, so the conversion loses the `ClientEnded` records.
fn after_round_trip(layout: Layout, records: &[Content]) -> Vec<Content> {
    let records = records.iter().cloned();
    records
        .filter(|r| !layout.has_dates() || !matches!(r, Content::ClientEnded(_)))
        .collect()
}

fn encoded(records: &[Content]) -> Vec<Vec<u8>> {
    let records = records.iter().cloned().map(Record::from);
    records.map(|record| record.encode_to_vec()).collect()
}

/// Returns packets with messages that the choices select.
fn packets(layout: Layout, choices: &mut Choices<'_>) -> Vec<Packet> {
    let count = choices.index(MAX_PACKETS);
    let packets = (0_u64..).take(count).map(|order| {
        let message = message(choices);
        Packet {
            event: PacketEvent::Message,
            session: u64::from(choices.byte() % 4),
            local: "h:1".to_owned(),
            remote: match layout.has_dates() {
                true => "c:2".to_owned(),
                false => String::new(),
            },
            at_us: order * 1000,
            order,
            message: message.into(),
        }
    });
    packets.collect()
}

/// Returns a message. Its request ID and `responseTo` are below 8, so that a reply often belongs to
/// an earlier command.
fn message(choices: &mut Choices<'_>) -> Vec<u8> {
    let (kind, id) = (choices.byte(), i32::from(choices.byte() % 8));
    let response_to = i32::from(choices.byte() % 8);
    let body = body(kind, choices);
    let body = documents::encode(&body);
    let mut message = match kind & 1 {
        0 => encode_request(id, &body),
        _ => encode_op_msg_like(0, id, response_to, &body),
    };
    if kind & 0x40 != 0
        && let Some(flags) = message.get_mut(16..20)
    {
        flags.copy_from_slice(&MORE_TO_COME.to_le_bytes());
    }
    match kind & 0x80 {
        0 => message,
        _ => deflate(&message, Compressor::Snappy).expect("there is enough memory"),
    }
}

fn body(kind: u8, choices: &mut Choices<'_>) -> Document {
    match kind >> 1 & 7 {
        0 => {
            let name = String::from_utf8_lossy(choices.short()).into_owned();
            let client = doc! { "application": { "name": name } };
            doc! { "hello": 1, "client": client, "$db": "admin" }
        }
        1 => doc! { "createUser": "u", "$db": "d" },
        2 => doc! { "getMore": 1_i64, "collection": "c", "$db": "d" },
        3 => doc! { "insert": "c", "documents": [{}], "$db": "d" },
        4 => doc! { "ok": 1.0, "n": 2 },
        5 => doc! { "cursor": { "id": 1_i64, "nextBatch": [{}] }, "ok": 1.0 },
        _ => documents::command(choices.short(), 0, false),
    }
}
