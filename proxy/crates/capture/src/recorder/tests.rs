#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests end with a panic"
)]

use bson::{Document, doc};
use bytes::Bytes;
use proptest::prelude::*;
use seawall_wire::{
    Compressor, HEADER_BYTES, Header as MessageHeader, MORE_TO_COME, OpCode, deflate,
    encode_op_msg_like, encode_op_reply, encode_request,
};

use super::*;
use crate::record::{Content, Facts, Header, Outcome, Reply, ReplyDetail};

const BEGAN_AT_US: u64 = 1_700_000_000_000_000;

fn bytes(document: &Document) -> Vec<u8> {
    document.to_vec().unwrap()
}

fn request(id: i32, command: &Document) -> Bytes {
    encode_request(id, &bytes(command)).into()
}

fn reply(id: i32, response_to: i32, reply: &Document) -> Bytes {
    encode_op_msg_like(0, id, response_to, &bytes(reply)).into()
}

fn with_flags(message: &[u8], flags: u32) -> Bytes {
    let mut message = message.to_vec();
    message[16..20].copy_from_slice(&flags.to_le_bytes());
    message.into()
}

fn op_query(id: i32, command: &Document) -> Bytes {
    let content = [
        b"\0\0\0\0admin.$cmd\0\0\0\0\0\xff\xff\xff\xff",
        &*bytes(command),
    ]
    .concat();
    let header = MessageHeader {
        message_length: HEADER_BYTES + content.len(),
        request_id: id,
        response_to: 0,
        op_code: OpCode::Query,
    };
    [&header.to_bytes()[..], &content].concat().into()
}

fn packet(session: u64, order: u64, message: Bytes) -> Packet {
    Packet {
        event: PacketEvent::Message,
        session,
        local: "127.0.0.1:27017".to_owned(),
        remote: "127.0.0.1:51807".to_owned(),
        at_us: BEGAN_AT_US + order * 1000,
        order,
        message,
    }
}

fn session_event(event: PacketEvent, session: u64, order: u64) -> Packet {
    Packet {
        event,
        ..packet(session, order, Bytes::new())
    }
}

/// Changes a packet of the layout `Addresses` to the packet that a reader returns if the same event
/// was written in `layout`.
fn in_layout(layout: Layout, mut packet: Packet) -> Packet {
    if !layout.has_dates() {
        packet.at_us -= BEGAN_AT_US;
        packet.local = format!(
            "{{ remote: \"{}\", local: \"{}\" }}",
            packet.remote, packet.local
        );
        packet.remote.clear();
    }
    packet
}

fn file(layout: Layout, packets: &[Packet]) -> Vec<u8> {
    let mut writer = RecorderWriter::new(Vec::new(), layout);
    for packet in packets {
        writer.push(packet).unwrap();
    }
    writer.finish().unwrap()
}

fn read(file: &[u8]) -> Result<(Layout, Vec<Packet>, Option<RecorderError>), RecorderError> {
    let mut reader = RecorderReader::new(file)?;
    let mut packets = Vec::new();
    loop {
        match reader.next_packet() {
            Ok(Some(packet)) => packets.push(packet),
            Ok(None) => return Ok((reader.layout(), packets, None)),
            Err(error) => return Ok((reader.layout(), packets, Some(error))),
        }
    }
}

/// Imports messages, each with the number of its session. The messages were recorded one
/// millisecond after another.
fn import(messages: impl IntoIterator<Item = (u64, Bytes)>) -> (Vec<Content>, ImportCounts) {
    let first = packet(1, 0, Bytes::new());
    let mut import = Import::new(Layout::Addresses, &first);
    let mut records = Vec::new();
    for (order, (session, message)) in (0..).zip(messages) {
        records.extend(import.convert(packet(session, order, message)));
    }
    (records, import.counts())
}

fn hello() -> Document {
    doc! { "hello": 1, "$db": "admin", "client": {
    "application": { "name": "shop" }, "driver": { "name": "PyMongo", "version": "4.20" } } }
}

fn find(number: i32) -> Document {
    doc! { "find": "c", "filter": { "a": number }, "$db": "d" }
}

fn batch(cursor: i64) -> Document {
    doc! { "cursor": { "firstBatch": [{ "a": 1 }, {}], "id": cursor, "ns": "d.c" }, "ok": 1.0 }
}

/// A client chooses these names before it has logged in.
#[test]
fn long_names_of_applications_and_drivers_are_cut() {
    let name = "\u{20ac}".repeat(10_000);
    let hello = doc! { "hello": 1, "$db": "admin", "client": {
    "application": { "name": &name }, "driver": { "name": &name, "version": &name } } };
    let (records, _) = import([(1, request(1, &hello)), (1, request(2, &find(1)))]);
    let Content::ClientBegan(client) = &records[0] else {
        panic!("{records:?}");
    };
    for name in [&client.application, &client.driver] {
        assert!((500..=512).contains(&name.len()), "{}", name.len());
    }
}

/// mongod's traffic recorder writes packets. Their layout depends on the version of mongod, and the
/// reader detects it from the first packet.
#[test]
fn reader_detects_the_packet_layout_of_a_recorder_file_and_returns_the_written_packets() {
    for layout in Layout::ALL {
        let mut packets = vec![
            packet(3, 1, request(7, &find(1))),
            packet(3, 2, reply(1, 7, &batch(0))),
            packet(200, 3, request(8, &find(2))),
        ];
        if layout != Layout::Addresses {
            packets.insert(0, session_event(PacketEvent::SessionBegan, 3, 0));
        }
        if layout == Layout::Events {
            packets.push(session_event(PacketEvent::SessionEnded, 3, 4));
        }
        let packets: Vec<_> = packets.into_iter().map(|p| in_layout(layout, p)).collect();
        for packets in [&packets[..], &packets[1..]] {
            let (found, read, error) = read(&file(layout, packets)).unwrap();
            assert_eq!((found, &read[..]), (layout, packets));
            assert!(error.is_none());
        }
    }
}

#[test]
fn a_recorder_file_that_is_cut_off_within_a_packet_gives_the_error_truncated() {
    let packets = [
        packet(3, 1, request(7, &find(1))),
        packet(3, 2, reply(1, 7, &batch(0))),
    ];
    let file = file(Layout::Addresses, &packets);
    let first = u32::from_le_bytes(*file.first_chunk().unwrap());
    let first = usize::try_from(first).unwrap();
    for length in (1..file.len()).filter(|length| *length != first) {
        match read(&file[..length]) {
            Ok((_, read, error)) => {
                assert_eq!(read, packets[..1]);
                assert!(matches!(error, Some(RecorderError::Truncated { .. })));
            }
            Err(error) => assert!(matches!(error, RecorderError::Truncated { at_byte: 0 })),
        }
    }
}

#[test]
fn a_file_that_is_not_from_mongods_traffic_recorder_is_refused() {
    for other in [
        &b""[..],
        b"SWCAPT\r\n\x01\0\0\0",
        b"\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff and more",
        b"\x00\0\0\0 and more",
    ] {
        let is_refused = matches!(
            read(other),
            Err(RecorderError::UnknownLayout | RecorderError::Truncated { .. })
        );
        assert!(is_refused, "{other:?}");
    }
}

#[test]
fn a_damaged_packet_is_an_error_with_its_offset() {
    let good = file(Layout::Addresses, &[packet(3, 1, request(7, &find(1)))]);
    let huge = u32::MAX.to_le_bytes();
    let mut wrong_length = good.clone();
    let message = wrong_length.len() - request(7, &find(1)).len();
    wrong_length[message] ^= 1;
    for bad in [&huge[..], &[3, 0, 0, 0], &wrong_length] {
        let (_, packets, error) = read(&[&good[..], bad].concat()).unwrap();
        assert_eq!(packets.len(), 1);
        let at = u64::try_from(good.len()).unwrap();
        assert!(
            matches!(error, Some(RecorderError::Damaged { at_byte, .. }) if at_byte == at),
            "{error:?}"
        );
    }
}

#[test]
fn a_message_of_48_mb_is_read() {
    let largest = seawall_wire::MAX_MESSAGE_BYTES;
    let header = MessageHeader {
        message_length: largest,
        request_id: 1,
        response_to: 0,
        op_code: OpCode::Msg,
    };
    let mut message = header.to_bytes().to_vec();
    message.resize(largest, 0);
    let packets = [packet(3, 1, message.into())];
    let (_, read, _) = read(&file(Layout::Addresses, &packets)).unwrap();
    assert!(read == packets);
}

/// mongod's traffic recorder gives each client connection a number. In this test, it is the first
/// value of each pair.
#[test]
fn import_finds_the_command_of_a_reply_by_connection_number_and_response_to_field() {
    let (records, counts) = import([
        (1, request(1, &hello())),
        (1, reply(50, 1, &doc! { "ok": 1.0 })),
        (2, request(1, &find(2))),
        (1, request(9, &find(1))),
        (2, reply(51, 1, &batch(77))),
        (1, reply(52, 9, &doc! { "ok": 0.0, "code": 59 })),
    ]);
    let [began, first, began_too, second, one, other] = &records[..] else {
        panic!("{records:?}");
    };
    let Content::ClientBegan(began) = began else {
        panic!("{began:?}");
    };
    assert!(began.was_active, "no hello: the client was active before");
    let Content::ClientBegan(began) = began_too else {
        panic!("{began_too:?}");
    };
    let names = (began.application.as_str(), began.driver.as_str());
    assert_eq!(names, ("shop", "PyMongo 4.20"));
    assert!(!began.was_active);
    let (Content::Command(first), Content::Command(second)) = (first, second) else {
        panic!("{first:?} {second:?}");
    };
    assert_eq!((first.client, first.operation, first.at_us), (1, 1, 2000));
    assert_eq!((second.client, second.operation), (2, 2));
    assert_eq!(first.message, request(1, &find(2)));
    let (Content::Reply(one), Content::Reply(other)) = (one, other) else {
        panic!("{one:?} {other:?}");
    };
    assert_eq!((one.operation, one.duration_us), (1, 2000));
    assert_eq!(one.message, reply(51, 1, &batch(77)));
    let facts = one.facts.clone().unwrap();
    assert_eq!((facts.cursor_id, facts.documents), (77, 2));
    let expected = Facts {
        code: 59,
        ..Facts::default()
    };
    assert_eq!(
        (other.operation, other.facts.as_ref()),
        (2, Some(&expected))
    );
    assert_eq!((counts.operations, counts.handshakes), (2, 1));
}

#[test]
fn secrets_are_never_imported() {
    let secret = "correct horse";
    let mut legacy_hello = hello();
    legacy_hello.remove("$db");
    let (records, counts) = import([
        (1, op_query(1, &legacy_hello)),
        (
            1,
            encode_op_reply(8, 2, 1, &bytes(&doc! { "ok": 1, "x": secret })).into(),
        ),
        (
            1,
            request(
                3,
                &doc! { "saslStart": 1, "payload": secret, "$db": "admin" },
            ),
        ),
        (1, reply(4, 3, &doc! { "payload": secret, "ok": 1.0 })),
        (
            1,
            request(
                5,
                &doc! { "createUser": "u", "pwd": secret, "$db": "admin" },
            ),
        ),
        (1, reply(6, 5, &doc! { "ok": 1.0, "x": secret })),
        (1, request(7, &doc! { "usersInfo": 1, "$db": "admin" })),
        (1, reply(8, 7, &doc! { "users": [secret], "ok": 1.0 })),
        (
            1,
            request(9, &doc! { "createUsr": "u", "pwd": secret, "$db": "admin" }),
        ),
        (1, reply(10, 9, &doc! { "ok": 0.0, "errmsg": secret })),
        (1, request(11, &find(1))),
    ]);
    let omitted = records.iter().filter(|r| matches!(r, Content::Omitted(_)));
    assert_eq!(omitted.count(), 3);
    assert_eq!((counts.secret, counts.handshakes), (3, 2));
    assert_eq!((counts.operations, counts.unmatched_replies), (1, 0));
    assert!(!format!("{records:?}").contains(secret));
    let Content::ClientBegan(began) = &records[0] else {
        panic!("{records:?}");
    };
    assert_eq!(began.application, "shop", "a hello in OP_QUERY is read too");
}

#[test]
fn compressed_messages_are_inflated() {
    for compressor in Compressor::ALL {
        let compressed = |message: &Bytes| Bytes::from(deflate(message, compressor).unwrap());
        let (command, reply) = (request(5, &find(1)), reply(6, 5, &batch(0)));
        let (records, _) = import([(1, compressed(&command)), (1, compressed(&reply))]);
        let [_, Content::Command(one), Content::Reply(other)] = &records[..] else {
            panic!("{records:?}");
        };
        assert_eq!((&one.message, &other.message), (&command, &reply));
    }
}

/// A server sends the replies of an exhaust cursor without further `getMore`s from the client. Some
/// recordings contain a `getMore` for each reply, others only the first one.
#[test]
fn import_adds_the_missing_get_mores_of_an_exhaust_cursor() {
    let more = request(5, &doc! { "getMore": 7_i64, "collection": "c", "$db": "d" });
    let part = |id, to| with_flags(&reply(id, to, &batch(7)), MORE_TO_COME);
    let own = |id: i32| {
        let mut message = more.to_vec();
        message[4..8].copy_from_slice(&id.to_le_bytes());
        message[8..12].copy_from_slice(&5_i32.to_le_bytes());
        Bytes::from(message)
    };
    let recorded = import([
        (1, more.clone()),
        (1, part(20, 5)),
        (1, own(20)),
        (1, part(21, 20)),
        (1, own(21)),
        (1, reply(22, 21, &batch(0))),
    ]);
    let missing = import([
        (1, more.clone()),
        (1, part(20, 5)),
        (1, part(21, 20)),
        (1, reply(22, 21, &batch(0))),
    ]);
    for (records, counts) in [recorded, missing] {
        assert_eq!((counts.operations, counts.unmatched_replies), (3, 0));
        let replied: Vec<_> = records
            .iter()
            .filter_map(|record| match record {
                Content::Reply(reply) => Some(reply.operation),
                _ => None,
            })
            .collect();
        assert_eq!(replied, [1, 2, 3]);
    }
}

#[test]
fn messages_that_cannot_be_imported_are_counted_by_reason() {
    let insert = doc! { "insert": "c", "documents": [{}], "$db": "d" };
    let damaged = request(9, &doc! { "find": "c" });
    let (records, counts) = import([
        (1, reply(1, 99, &doc! { "ok": 1.0 })),
        (1, with_flags(&request(2, &insert), MORE_TO_COME)),
        (1, damaged),
        (1, op_query(3, &doc! { "buildInfo": 1 })),
    ]);
    let [_, Content::Command(_), Content::Reply(unacknowledged)] = &records[..] else {
        panic!("{records:?}");
    };
    assert_eq!(unacknowledged.outcome(), Outcome::Unacknowledged);
    let expected = ImportCounts {
        operations: 1,
        legacy: 1,
        damaged: 1,
        unmatched_replies: 1,
        ..ImportCounts::default()
    };
    assert_eq!(counts, expected);
}

#[test]
fn header_of_an_imported_capture_contains_the_server_address() {
    for layout in Layout::ALL {
        let first = in_layout(layout, packet(1, 0, request(1, &find(1))));
        let header = Import::new(layout, &first).header(Bytes::new(), String::new(), &first);
        let servers: Vec<_> = header.servers.iter().map(|s| s.address.as_str()).collect();
        assert_eq!(servers, ["127.0.0.1:27017"]);
        assert_eq!(header.reply_detail(), ReplyDetail::Whole);
    }
}

/// A capture may contain only some values of each reply, such as the number of documents.
#[test]
fn a_capture_that_lacks_the_reply_messages_cannot_be_exported_to_a_recorder_file() {
    let error = Export::new(Layout::Addresses, &Header::default()).unwrap_err();
    assert_eq!(error, ExportError::NoReplies);
}

#[test]
fn export_counts_the_operations_that_still_ran_when_the_capture_ended() {
    let mut header = Header::default();
    header.set_reply_detail(ReplyDetail::Whole);
    let mut export = Export::new(Layout::Addresses, &header).unwrap();
    let (records, _) = import([
        (1, request(1, &find(1))),
        (1, reply(50, 1, &batch(0))),
        (1, request(2, &find(2))),
    ]);
    for record in records {
        export.convert(record);
    }
    let counts = export.counts();
    assert_eq!((counts.operations, counts.without_reply), (2, 1));
}

/// Seawall sends an unacknowledged write as a write with a reply, so a capture has the reply.
#[test]
fn the_reply_to_an_unacknowledged_write_is_not_exported() {
    let mut header = Header::default();
    header.set_reply_detail(ReplyDetail::Whole);
    let mut export = Export::new(Layout::Addresses, &header).unwrap();
    let insert = doc! { "insert": "c", "documents": [{}], "$db": "d" };
    let insert = with_flags(&request(2, &insert), MORE_TO_COME);
    let (records, _) = import([(1, insert.clone())]);
    let mut packets = Vec::new();
    for record in records {
        packets.extend(export.convert(match record {
            Content::Reply(unacknowledged) => Content::Reply(Reply {
                message: reply(3, 2, &doc! { "ok": 1.0 }),
                ..unacknowledged
            }),
            other => other,
        }));
    }
    let messages: Vec<_> = packets.iter().map(|packet| &packet.message).collect();
    assert_eq!(messages, [&insert]);
    assert_eq!(export.counts().without_reply, 0);
}

/// The import keeps data of each command until it reads the reply. In this test, there is no reply.
#[test]
fn import_of_a_recording_without_replies_keeps_at_most_100_000_commands_in_memory() {
    let sessions = (0..200_000).map(|session| (session, request(1, &find(1))));
    let (records, counts) = import(sessions);
    assert_eq!(counts.operations, 200_000);
    drop(records);
    let first = packet(1, 0, Bytes::new());
    let mut import = Import::new(Layout::Addresses, &first);
    for id in 0..200_000 {
        import.convert(packet(1, 1, request(id, &find(1))));
    }
    assert!(import.remembered() <= 100_000, "{}", import.remembered());
}

/// In the capture, each recorded connection is one client. The import remembers at most 50,000
/// connections at a time.
#[test]
fn import_ends_the_connection_with_the_lowest_number_when_connection_50_001_begins() {
    let sessions = (1..=50_001).map(|session| (session, request(1, &find(1))));
    let (records, _) = import(sessions);
    let is_end = |record: &Content| matches!(record, Content::ClientEnded(_));
    assert_eq!(records.iter().filter(|record| is_end(record)).count(), 1);
    let [
        ..,
        Content::ClientEnded(ended),
        Content::ClientBegan(began),
        Content::Command(_),
    ] = &records[..]
    else {
        panic!("{:?}", records.last());
    };
    assert_eq!((ended.client, began.client), (1, 50_001));
    assert_eq!(ended.at_us, began.at_us);
}

/// The end of a session that began before the recording must not count as a new session.
#[test]
fn end_of_an_unknown_session_ends_no_other_session_while_50_000_sessions_are_open() {
    let first = in_layout(Layout::Sessions, packet(2, 0, Bytes::new()));
    let mut import = Import::new(Layout::Sessions, &first);
    for session in 2..=50_001 {
        let packet = packet(session, 1, request(1, &find(1)));
        import.convert(in_layout(Layout::Sessions, packet));
    }
    let ended = session_event(PacketEvent::SessionBegan, 1, 2);
    assert!(import.convert(ended).is_empty());
}

/// Generates scripts. Each entry of a script describes one command, with or without a reply. The
/// entry has the number of the command's session, and the kind of the command (see [`messages`]).
fn scripts() -> impl Strategy<Value = Vec<(u64, u8)>> {
    proptest::collection::vec((1_u64..5, 0_u8..4), 1..40)
}

fn messages(script: &[(u64, u8)]) -> Vec<(u64, Bytes)> {
    let insert = doc! { "insert": "c", "documents": [{}], "$db": "d" };
    let mut id = 1;
    let mut messages = Vec::new();
    for (session, kind) in script {
        id += 2;
        match kind {
            0 => messages.push((*session, request(id, &hello()))),
            1 => messages.push((*session, with_flags(&request(id, &insert), MORE_TO_COME))),
            2 => messages.push((*session, request(id, &find(id)))),
            _ => {
                messages.push((*session, request(id, &find(id))));
                messages.push((*session, reply(id + 1, id, &batch(i64::from(id)))));
            }
        }
    }
    messages
}

proptest! {
    #[test]
    fn an_exported_capture_is_imported_unchanged(script in scripts()) {
        let (records, _) = import(messages(&script));
        let header = Header {
            began_at_us: BEGAN_AT_US,
            reply_detail: ReplyDetail::Whole.into(),
            ..Header::default()
        };
        for layout in Layout::ALL {
            let mut export = Export::new(layout, &header).unwrap();
            let packets: Vec<_> = records.iter().flat_map(|r| export.convert(r.clone())).collect();
            if packets.is_empty() {
                continue;
            }
            let (found, packets, error) = read(&file(layout, &packets)).unwrap();
            prop_assert_eq!(found, layout);
            prop_assert!(error.is_none());
            let mut first = packets[0].clone();
            first.at_us = if layout.has_dates() { BEGAN_AT_US } else { 0 };
            let mut import = Import::new(layout, &first);
            let again: Vec<_> = packets.into_iter().flat_map(|p| import.convert(p)).collect();
            prop_assert_eq!(&again, &records);
        }
    }
}
