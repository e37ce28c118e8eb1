//! Malformed messages, and valid messages with a checksum or with sections in various orders.

use super::*;

fn with_op_code(op_code: i32) -> Vec<u8> {
    framed(16 + 32, op_code, &[0; 32])
}

/// A `ping` message in which byte `at` of the BSON document is replaced by `value`.
fn damaged_ping(at: usize, value: u8) -> Vec<u8> {
    let mut message = op_msg(vec![body(ping())]).to_bytes();
    message[16 + 4 + 1 + at] = value;
    message
}

fn duplicate_db() -> Vec<u8> {
    let mut message =
        op_msg(vec![body(doc! {"ping": 1, "$db": "admin", "$dc": "admin"})]).to_bytes();
    let at = message
        .windows(3)
        .position(|window| window == b"$dc")
        .unwrap();
    message[at + 2] = b'b';
    message
}

fn sequence_of_size(size: i32) -> Vec<u8> {
    let bytes = [&[1], size.to_le_bytes().as_slice(), b"documents\0"].concat();
    op_msg(vec![body(ping()), Section::Bytes(bytes)]).to_bytes()
}

fn malformed() -> Vec<(&'static str, Vec<u8>, Expected)> {
    use Expected::{Closes, Ignores, Replies};
    let message = |sections| op_msg(sections).to_bytes();
    let on_db = |db: Bson| message(vec![body(doc! {"ping": 1, "$db": db})]);
    let mut bad_checksum = op_msg(vec![body(ping())]).checksum().to_bytes();
    *bad_checksum.last_mut().unwrap() ^= 1;
    let three = ["a", "b", "c"].map(sequence);
    let insert = doc! {"insert": "c", "documents": [{"a": 1}], "$db": "malformed"};
    vec![
        ("length 15", framed(15, OP_MSG, &[0; 32]), Closes),
        ("length 0", framed(0, OP_MSG, &[0; 32]), Closes),
        ("length -1", framed(-1, OP_MSG, &[0; 32]), Closes),
        (
            "length 48,000,001",
            framed(48_000_001, OP_MSG, &[0; 32]),
            Closes,
        ),
        ("length 2^31-1", framed(i32::MAX, OP_MSG, &[0; 32]), Closes),
        ("bad checksum", bad_checksum, Closes),
        (
            "required flag",
            op_msg(vec![body(ping())]).flags(1 << 2).to_bytes(),
            Closes,
        ),
        (
            "last required flag",
            op_msg(vec![body(ping())]).flags(1 << 15).to_bytes(),
            Closes,
        ),
        (
            "three sequences",
            message([vec![body(ping())], three.into()].concat()),
            Closes,
        ),
        ("empty message", framed(16, OP_MSG, &[]), Closes),
        ("opcode 9999", with_op_code(9999), Closes),
        ("OP_COMMAND", with_op_code(2010), Closes),
        ("OP_REPLY", with_op_code(OP_REPLY), Closes),
        ("OP_UPDATE", with_op_code(2001), Closes),
        ("OP_INSERT", with_op_code(2002), Closes),
        ("OP_DELETE", with_op_code(2006), Closes),
        ("OP_KILL_CURSORS", with_op_code(2007), Closes),
        ("opcode 0", with_op_code(0), Ignores),
        (
            "two bodies",
            message(vec![body(ping()), body(ping())]),
            Replies(40430),
        ),
        (
            "only a sequence",
            message(vec![sequence("a")]),
            Replies(40587),
        ),
        (
            "section kind 2",
            message(vec![body(ping()), Section::Bytes(vec![2])]),
            Replies(13),
        ),
        (
            "section kind 9",
            message(vec![body(ping()), Section::Bytes(vec![9])]),
            Replies(40432),
        ),
        (
            "no $db",
            message(vec![body(doc! {"ping": 1})]),
            Replies(40571),
        ),
        ("$db a number", on_db(Bson::Int32(1)), Replies(13111)),
        ("$db empty", on_db("".into()), Replies(73)),
        ("$db with a blank", on_db("a b".into()), Replies(73)),
        ("$db twice", duplicate_db(), Replies(40413)),
        (
            "field in a sequence and in the body",
            message(vec![body(insert), sequence("documents")]),
            Replies(40433),
        ),
        (
            "same sequence twice",
            message(vec![body(ping()), sequence("a"), sequence("a")]),
            Replies(40431),
        ),
        ("BSON too long", damaged_ping(1, 1), Replies(22)),
        ("BSON type", damaged_ping(4, 0x55), Replies(22)),
        ("sequence past the end", sequence_of_size(1000), Replies(15)),
        ("sequence of size 4", sequence_of_size(4), Replies(15)),
        (
            "unknown command",
            message(vec![body(doc! {"x": 1, "$db": "admin"})]),
            Replies(59),
        ),
    ]
}

/// The expected reaction of a server before version 5.1 to the malformed message `name`. `expected`
/// is the reaction of newer servers. Servers before 5.1 still accept legacy opcodes, and they do
/// not know security tokens (section kind 2).
fn expected_before_5_1(name: &str, expected: Expected) -> Expected {
    match name {
        "OP_UPDATE" | "OP_INSERT" | "OP_DELETE" | "OP_KILL_CURSORS" => Expected::Ignores,
        "section kind 2" => Expected::Replies(40432),
        _ => expected,
    }
}

#[tokio::test]
async fn seawall_reacts_to_malformed_messages_as_a_server_does() {
    let rig = Rig::shared().await;
    let is_old = is_before(NO_LEGACY_OPCODES).await;
    for (name, message, expected) in malformed() {
        let of_server = match is_old {
            true => expected_before_5_1(name, expected),
            false => expected,
        };
        let mut direct = reaction(&mut rig.direct().await, &message).await;
        assert!(of_server.fits(&direct), "{name}: the server: {direct:?}");
        let through = reaction(&mut rig.through().await, &message).await;
        if of_server != expected {
            // With servers of any version, Seawall reacts as MongoDB 6.0 does.
            assert!(expected.fits(&through), "{name}: {through:?}");
            continue;
        }
        for reply in &mut direct.replies {
            // Only later patch releases of the server have a name for code 40413. Seawall does not
            // use this name, so the test replaces it.
            let named = reply.code_name.as_deref() == Some("IDLDuplicateField");
            reply.code_name = match named {
                true => Some("Location40413".to_owned()),
                false => reply.code_name.take(),
            };
        }
        assert_eq!(through, direct, "{name}");
    }
}

#[tokio::test]
async fn reply_has_a_checksum_if_and_only_if_its_command_has_one() {
    let rig = Rig::shared().await;
    let db = unique_name("checksum");
    let mut through = rig.through().await;
    let metadata = doc! {"application": {"name": "sum"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    through.greet(doc! {"client": metadata}).await.unwrap();
    let insert = doc! {"insert": "c", "documents": [{"_id": 1, "pad": "x".repeat(300_000)}]};
    assert!(through.command(&db, insert).await.unwrap().is_ok());
    let commands = [
        doc! {"ping": 1},
        doc! {"hello": 1},
        doc! {"nonsense": 1},
        doc! {"find": "c", "filter": {"_id": 2}, "maxTimeMS": 10_000},
        doc! {"find": "c"},
    ];
    for mut command in commands {
        command.insert("$db", &db);
        let plain = OpMsg::new(command.clone());
        for (message, expected) in [(plain.clone(), None), (plain.checksum(), Some(true))] {
            // A server adds a checksum to the reply of a command with a checksum, except over TLS.
            // This connection has no TLS, so the test can compare with the server.
            let direct = rig.direct().await.exchange(&message).await.unwrap();
            let reply = through.exchange(&message).await.unwrap();
            assert_eq!(direct.checksum_fits(), expected, "{command}: the server");
            assert_eq!(reply.checksum_fits(), expected, "{command}");
            assert_eq!(reply.code(), direct.code(), "{command}");
        }
    }
}

#[tokio::test]
async fn a_body_and_up_to_two_document_sequences_are_accepted_in_any_order() {
    let rig = Rig::shared().await;
    let db = unique_name("sections");
    let mut through = rig.through().await;
    let documents = |ids: [i32; 2]| Section::Sequence {
        identifier: "documents".to_owned(),
        documents: ids.iter().map(|id| doc! {"_id": id}).collect(),
    };
    let insert = || body(doc! {"insert": "c", "$db": &db});
    let in_body = body(doc! {"insert": "c", "documents": [{"_id": 5}, {"_id": 6}], "$db": &db});
    for sections in [
        vec![insert(), documents([1, 2])],
        vec![documents([3, 4]), insert()],
        vec![in_body],
    ] {
        let reply = through.exchange(&op_msg(sections)).await.unwrap();
        assert_eq!(reply.body.get_i32("n").ok(), Some(2), "{}", reply.body);
    }
    let updates = Section::Sequence {
        identifier: "updates".to_owned(),
        documents: vec![doc! {"q": {}, "u": {"$set": {"seen": true}}, "multi": true}],
    };
    let update = op_msg(vec![updates, body(doc! {"update": "c", "$db": &db})]);
    let reply = through.exchange(&update).await.unwrap();
    assert_eq!(
        reply.body.get_i32("nModified").ok(),
        Some(6),
        "{}",
        reply.body
    );
    for sections in [
        vec![sequence("a"), sequence("b"), body(ping())],
        vec![sequence("a"), body(ping()), sequence("b")],
    ] {
        let message = op_msg(sections).to_bytes();
        let direct = reaction(&mut rig.direct().await, &message).await;
        assert_eq!(direct.replies.len(), 1);
        assert_eq!(reaction(&mut through, &message).await, direct);
    }
}
