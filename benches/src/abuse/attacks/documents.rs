//! Attacks with documents that two parsers may read differently, or that a parser may be unable to
//! read.

use bson::{Bson, RawDocument, RawDocumentBuf, cstr, doc, rawdoc};
use seawall_tests::raw::{RawClient, RawError, RawReply};
use seawall_wire::encode_request;

use crate::abuse::{
    arena::{Arena, Ending},
    testbed::{ALICE, MALLORY},
};

/// The code with which servers refuse a document with too many levels.
pub(super) const OVERFLOW: i32 = 15;
/// The code with which servers refuse a command that has a field twice.
pub(super) const DUPLICATE_FIELD: i32 = 40_413;
/// The code with which servers refuse an invalid database or collection name.
pub(super) const INVALID_NAMESPACE: i32 = 73;

/// Depths of documents. Servers accept the first depth and refuse the other two.
const LEVELS: [usize; 3] = [150, 1_000, 100_000];

pub(super) async fn deep(arena: Arena) {
    arena.attempts(50, send_nested).await;
}

async fn send_nested(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let levels = usize::try_from(number).unwrap_or_default() % LEVELS.len();
    let levels = LEVELS.get(levels).copied().unwrap_or_default();
    let filter = nested(levels);
    let command = match number % 2 {
        0 => rawdoc! {"find": "small", "filter": filter, "$db": MALLORY},
        _ => rawdoc! {"insert": "deep", "documents": [filter], "$db": MALLORY},
    };
    let mut client = arena.logged_in().await?;
    Ok(Ending::from(send(&mut client, &command).await))
}

/// The document `{a: {a: {… {}}}}`, built without recursion.
fn nested(levels: usize) -> RawDocumentBuf {
    const INNERMOST_BYTES: usize = 5;
    /// The size of one level: a type byte, a name of one letter with its NUL, a length, and a
    /// terminator.
    const LEVEL_BYTES: usize = 1 + 2 + 4 + 1;
    let length = |level: usize| {
        let bytes = INNERMOST_BYTES + level * LEVEL_BYTES;
        i32::try_from(bytes)
            .expect("the length is under 2 GiB")
            .to_le_bytes()
    };
    let mut bytes = Vec::new();
    for level in (1..=levels).rev() {
        bytes.extend(length(level));
        bytes.extend(b"\x03a\0");
    }
    bytes.extend(length(0));
    bytes.resize(bytes.len() + 1 + levels, 0);
    RawDocumentBuf::from_bytes(bytes).expect("the document has the right length")
}

pub(super) async fn duplicate_keys(arena: Arena) {
    arena.attempts(200, send_duplicate).await;
}

/// Sends a command in which `$db`, `find`, `lsid` or `filter` occurs twice. If `$db` occurs twice,
/// its values are the attacker's database and a victim's database, in alternating order. If another
/// field occurs twice, `$db` is the victim's database.
async fn send_duplicate(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let (first, second) = match number % 2 {
        0 => (MALLORY, ALICE),
        _ => (ALICE, MALLORY),
    };
    let mut command = rawdoc! {"find": "small"};
    match number / 2 % 4 {
        0 => {
            command.append(cstr!("$db"), first);
            command.append(cstr!("$db"), second);
        }
        1 => {
            command.append(cstr!("find"), "large");
            command.append(cstr!("$db"), ALICE);
        }
        2 => {
            command.append(cstr!("lsid"), rawdoc! {"id": 1});
            command.append(cstr!("lsid"), rawdoc! {"id": 2});
            command.append(cstr!("$db"), ALICE);
        }
        _ => {
            command.append(cstr!("filter"), rawdoc! {"_id": 1, "_id": 2});
            command.append(cstr!("filter"), rawdoc! {"_id": 3});
            command.append(cstr!("$db"), ALICE);
        }
    }
    let mut client = arena.logged_in().await?;
    Ok(check_namespace(send(&mut client, &command).await))
}

pub(super) async fn embedded_nuls(arena: Arena) {
    arena.attempts(200, send_nul).await;
}

/// Sends a user, database or collection name with a NUL byte. A parser that uses C strings would
/// read a shorter name.
async fn send_nul(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let name = format!("{ALICE}\0.{MALLORY}");
    if number.is_multiple_of(4) {
        let mut client = arena.connect().await?;
        let hello = doc! {"saslSupportedMechs": format!("admin.{name}")};
        client.hello(hello).await?;
        let payload = format!("n,,n={name},r=0123456789abcdefghij").into_bytes();
        let payload = bson::Binary {
            subtype: bson::spec::BinarySubtype::Generic,
            bytes: payload,
        };
        let start = doc! {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload};
        return Ok(Ending::from(client.command("admin", start).await));
    }
    let command = match number % 4 {
        1 => rawdoc! {"find": "small", "$db": name},
        2 => rawdoc! {"find": format!("small\0{MALLORY}"), "$db": MALLORY},
        _ => rawdoc! {"insert": format!("small\0{MALLORY}"), "documents": [{}], "$db": ALICE},
    };
    let mut client = arena.logged_in().await?;
    Ok(check_namespace(send(&mut client, &command).await))
}

async fn send(client: &mut RawClient, command: &RawDocument) -> Result<RawReply, RawError> {
    client
        .send_bytes(&encode_request(1, command.as_bytes()))
        .await?;
    client.read_reply().await
}

/// Reports a breach if the reply is from a victim's database.
fn check_namespace(reply: Result<RawReply, RawError>) -> Ending {
    let namespace = reply.as_ref().ok().and_then(|reply| {
        let cursor = reply.body.get("cursor").and_then(Bson::as_document)?;
        cursor.get_str("ns").ok()
    });
    match namespace.is_some_and(|ns| ns.starts_with(ALICE)) {
        true => Ending::Breach("a victim's documents were read"),
        false => Ending::from(reply),
    }
}
