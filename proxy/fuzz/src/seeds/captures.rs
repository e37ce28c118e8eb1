//! Seeds of the targets that read captured traffic.

use bson::doc;
use prost::Message as _;
use seawall_capture::{
    Writer,
    record::{ClientBegan, Command, Content, End, Event, Facts, Header, Record, Reply},
    recorder::{Layout, Packet, PacketEvent, RecorderWriter},
};
use seawall_wire::{encode_op_msg_like, encode_request};

use super::{Seed, seed};
use crate::documents;

/// Returns seeds for the target `capture`: whole parts (a part is one file of a capture), encoded
/// records that the target puts into a part, and bytes that select records.
pub(super) fn parts() -> Vec<Seed> {
    let of = |name: &str, kind: u8, bytes: &[u8]| {
        let alterations = [4, 2, 60, 0, 3, 9];
        let length = u8::try_from(alterations.len()).unwrap_or_default();
        seed(name, [&[kind, length][..], &alterations, bytes].concat())
    };
    let header = Header {
        capture: vec![7; 16].into(),
        began_at_us: 1_700_000_000_000_000,
        program: "seawall".to_owned(),
        ..Header::default()
    };
    let mut plain = Vec::new();
    let mut writer = Writer::new(Vec::new(), header.clone()).expect("a header fits a block");
    let records = records().into_iter().map(Record::from);
    for record in [Record::from(Content::Header(header))]
        .into_iter()
        .chain(records)
    {
        if !matches!(record.content, Some(Content::Header(_))) {
            writer.push(&record).expect("a record fits a block");
        }
        plain.extend(record.encode_length_delimited_to_vec());
    }
    let whole = writer.finish(End::default()).expect("a vector takes bytes");
    let ended = Record::from(Content::End(End::default())).encode_length_delimited_to_vec();
    let choices: Vec<u8> = (0..200_u8).map(|n| n.wrapping_mul(29) % 61).collect();
    vec![
        of("whole", 0, &whole),
        of("cut", 0, whole.get(..whole.len() - 9).unwrap_or_default()),
        of("records", 1, &[&plain[..], &ended].concat()),
        of("records_without_end", 1, &plain),
        of("choices", 2, &choices),
        of(
            "other_choices",
            2,
            choices.get(31..).expect("there are 200 choices"),
        ),
    ]
}

fn records() -> Vec<Content> {
    vec![
        Content::ClientBegan(ClientBegan {
            client: 1,
            application: "shop".to_owned(),
            ..ClientBegan::default()
        }),
        Content::Command(Command {
            client: 1,
            operation: 1,
            at_us: 5,
            message: encode_request(1, b"\x05\0\0\0\0").into(),
        }),
        Content::Reply(Reply {
            operation: 1,
            at_us: 9,
            duration_us: 4,
            facts: Some(Facts::default()),
            ..Reply::default()
        }),
        Content::Event(Event {
            kind: "storm".to_owned(),
            ..Event::default()
        }),
    ]
}

/// Returns seeds for the target `recorder_file`: one file for each layout that files of mongod's
/// traffic recorder can have, and bytes that select messages.
pub(super) fn recordings() -> Vec<Seed> {
    let files = Layout::ALL.iter().map(|layout| {
        let file = recording(*layout);
        seed(
            &format!("{layout:?}").to_lowercase(),
            [&[0], &file[..]].concat(),
        )
    });
    let choices: Vec<u8> = (0..250_u8).map(|n| n.wrapping_mul(41)).collect();
    let choices = (0..3_u8).map(|n| {
        let start = usize::from(n) * 17;
        let choices = choices.get(start..).unwrap_or_default();
        seed(&format!("choices_{n}"), [&[128 + n], choices].concat())
    });
    files.chain(choices).collect()
}

fn recording(layout: Layout) -> Vec<u8> {
    let hello = doc! { "hello": 1, "client": { "driver": { "name": "n" } }, "$db": "admin" };
    let request = |id, document| encode_request(id, &documents::encode(&document));
    let reply = |to, document| encode_op_msg_like(0, 9, to, &documents::encode(&document));
    let messages = [
        request(1, hello),
        reply(1, doc! { "ok": 1.0 }),
        request(2, doc! { "find": "c", "$db": "d" }),
        reply(
            2,
            doc! { "cursor": { "id": 0_i64, "firstBatch": [] }, "ok": 1.0 },
        ),
        request(3, doc! { "usersInfo": 1, "$db": "d" }),
    ];
    let mut writer = RecorderWriter::new(Vec::new(), layout);
    for (order, message) in (0..).zip(messages) {
        let packet = Packet {
            event: PacketEvent::Message,
            session: 3,
            local: "h:1".to_owned(),
            remote: "c:2".to_owned(),
            at_us: 1_700_000_000_000_000,
            order,
            message: message.into(),
        };
        writer.push(&packet).expect("a vector takes all packets");
    }
    writer.finish().expect("a vector takes all bytes")
}
