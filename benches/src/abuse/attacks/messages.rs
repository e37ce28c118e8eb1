//! Attacks with messages and replies. Some attackers send messages that are large or have false
//! headers (for example, with a wrong size). Others send their messages slowly, or read the replies
//! slowly.

use std::time::Duration;

use bson::{Document, doc};
use seawall_tests::raw::{Header, OpMsg, RawClient, RawError, RawReply, message::OP_MSG};
use seawall_wire::{CompressedHead, Compressor, deflate};
use tokio::time::timeout;

use crate::abuse::{
    arena::{Arena, Ending, own_find},
    testbed::MALLORY,
};

/// The largest message that servers accept (`maxMessageSizeBytes`).
const MAX_MESSAGE_BYTES: usize = 48_000_000;
const OP_COMPRESSED: i32 = 2012;
const SNAPPY: u8 = 1;

/// Time limit for the reply to a message of the largest size.
const LARGEST_LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn compressed_before_login(arena: Arena) {
    let ping = OpMsg::new(doc! {"ping": 1, "$db": "admin"}).to_bytes();
    let pings = Compressor::ALL
        .map(|compressor| deflate(&ping, compressor).expect("a small message can be compressed"));
    let attempt = |arena: Arena, number: u32| {
        let kind = usize::try_from(number).unwrap_or_default() % pings.len();
        let ping = pings.get(kind).cloned().unwrap_or_default();
        async move {
            let mut client = arena.connect().await?;
            client.send_bytes(&ping).await?;
            Ok(
                match Ending::from(client.read_message().await.and_then(reply_of)) {
                    Ending::Replied => {
                        Ending::Breach("a compressed message was served before a login")
                    }
                    other => other,
                },
            )
        }
    };
    arena.attempts(200, attempt).await;
}

/// Parses a reply, which may be compressed.
fn reply_of(message: Vec<u8>) -> Result<RawReply, RawError> {
    let message = match CompressedHead::parse(&message, MAX_MESSAGE_BYTES) {
        Ok(head) => head.inflate(&message).map_err(|_| RawError::Malformed)?,
        Err(_) => message,
    };
    RawReply::parse(message).ok_or(RawError::Malformed)
}

/// An insert of the largest size, into a database on which the attacker has no rights. The server
/// reads the whole message and writes nothing.
fn largest_insert() -> Vec<u8> {
    let insert = |pad: usize| {
        let document = |bytes: usize| doc! {"pad": "x".repeat(bytes)};
        let documents = vec![document(15 << 20), document(15 << 20), document(pad)];
        let message = OpMsg::new(doc! {"insert": "c", "$db": "forbidden"});
        message.sequence("documents", documents).to_bytes()
    };
    let message = insert(MAX_MESSAGE_BYTES - insert(0).len());
    assert_eq!(message.len(), MAX_MESSAGE_BYTES);
    message
}

fn metadata() -> Document {
    doc! {"client": {"driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}}}
}

pub(super) async fn largest(arena: Arena) {
    let insert = largest_insert();
    let client = async || {
        let mut client = arena.connect().await?;
        client.set_limit(LARGEST_LIMIT);
        client.hello(metadata()).await?;
        client.login(&arena.users.mallory).await?;
        Ok::<_, RawError>(client)
    };
    let mut connected = client().await.ok();
    arena.begin();
    let mut pace = arena.pace(2);
    while pace.next().await {
        arena.count_attempt();
        let mut client = match connected.take() {
            Some(client) => client,
            None => match client().await {
                Ok(client) => client,
                Err(_) => {
                    arena.count_ending(Ending::NotBegun);
                    continue;
                }
            },
        };
        let ending = match client.send_bytes(&insert).await {
            Ok(()) => Ending::from(client.read_reply().await),
            Err(_) => Ending::Closed,
        };
        arena.count_ending(ending);
        connected = (ending != Ending::Closed).then_some(client);
    }
}

/// Small compressed messages. After decompression, each message is much larger, or its size differs
/// from the size that its header declares.
fn compression_bombs() -> Vec<Vec<u8>> {
    let header = Header {
        message_length: i32::try_from(MAX_MESSAGE_BYTES).unwrap_or(i32::MAX),
        request_id: 1,
        response_to: 0,
        op_code: OP_MSG,
    };
    // After its header, this message has only zeros, because zeros compress best. The message is
    // not valid.
    let mut zeros = header.to_bytes().to_vec();
    zeros.resize(MAX_MESSAGE_BYTES, 0);
    let insert = largest_insert();
    let compress = |message: &[u8], compressor| {
        deflate(message, compressor).expect("the message can be compressed")
    };
    let declaring = |mut message: Vec<u8>, bytes: i32| {
        let size = message
            .get_mut(20..24)
            .expect("the message declares its inflated size");
        size.copy_from_slice(&bytes.to_le_bytes());
        message
    };
    let zlib = compress(&zeros, Compressor::Zlib);
    let nested = compress(&zlib, Compressor::Snappy);
    vec![
        declaring(zlib.clone(), 100),
        declaring(zlib.clone(), i32::MAX),
        zlib,
        compress(&zeros, Compressor::Zstd),
        nested,
        compress(&insert, Compressor::Zlib),
    ]
}

pub(super) async fn bombs(arena: Arena) {
    let bombs = compression_bombs();
    let attempt = |arena: Arena, number: u32| {
        let kind = usize::try_from(number).unwrap_or_default() % bombs.len();
        let bomb = bombs.get(kind).cloned().unwrap_or_default();
        async move {
            let mut client = arena.logged_in().await?;
            client.send_bytes(&bomb).await?;
            Ok(Ending::from(client.read_message().await.and_then(reply_of)))
        }
    };
    arena.attempts(4, attempt).await;
}

/// The first `sent` bytes of a message whose header announces a length of `bytes`.
fn announcing(bytes: usize, op_code: i32, sent: usize) -> Vec<u8> {
    let header = Header {
        message_length: i32::try_from(bytes).unwrap_or(i32::MAX),
        request_id: 1,
        response_to: 0,
        op_code,
    };
    let mut message = header.to_bytes().to_vec();
    if op_code == OP_COMPRESSED {
        // The header of a compressed message also has the opcode and size of the original message,
        // and the number of the compressor.
        message.extend(OP_MSG.to_le_bytes());
        message.extend(i32::try_from(bytes - 100).unwrap_or(i32::MAX).to_le_bytes());
        message.push(SNAPPY);
    }
    message.resize(sent, 0);
    message
}

/// Time limit of a write to one client's connection. A stalled write must not delay the writes of
/// other clients.
const WRITE_LIMIT: Duration = Duration::from_millis(20);

/// Sends bytes in rounds. In each round, each client sends once. In the first round, it sends the
/// bytes that `first` returns for the client's number. In each later round, it sends the bytes
/// `more`; if `more` is empty, there are no later rounds. At the end, counts the connections by
/// their state (see [`Arena::count_open`]).
async fn send_slowly(
    arena: &Arena,
    mut clients: Vec<RawClient>,
    first: impl Fn(usize) -> Vec<u8>,
    more: &[u8],
) {
    arena.begin();
    let count = u32::try_from(clients.len()).unwrap_or(u32::MAX);
    // In each tick, ten clients send. So with `count / 20` ticks per second, each client sends once
    // every two seconds.
    let mut pace = arena.pace((count / 20).max(1));
    let mut round = 0;
    'attack: loop {
        for (number, ten) in clients.chunks_mut(10).enumerate() {
            if (more.is_empty() && round > 0) || !pace.next().await {
                break 'attack;
            }
            for (offset, client) in ten.iter_mut().enumerate() {
                if round == 0 {
                    arena.count_attempt();
                    client.set_limit(WRITE_LIMIT);
                    drop(client.send_bytes(&first(number * 10 + offset)).await);
                } else {
                    drop(client.send_bytes(more).await);
                }
            }
        }
        if clients.is_empty() {
            break;
        }
        round += 1;
    }
    arena.wait_for_end().await;
    arena.count_open(clients).await;
}

pub(super) async fn slow_senders(arena: Arena) {
    let clients = arena.many_logged_in(arena.either(5_000, 200), None).await;
    let first = |number: usize| {
        let op_code = if number.is_multiple_of(2) {
            OP_COMPRESSED
        } else {
            OP_MSG
        };
        // In the first round, two of every fifty clients send many bytes at once.
        let sent = if number % 50 < 2 { 900_000 } else { 1_000 };
        announcing(MAX_MESSAGE_BYTES, op_code, sent)
    };
    send_slowly(&arena, clients, first, &[0; 1_000]).await;
}

pub(super) async fn partial(arena: Arena) {
    let clients = arena.many_logged_in(arena.either(5_000, 200), None).await;
    let message = announcing(64 << 10, OP_MSG, 60_000);
    send_slowly(&arena, clients, |_| message.clone(), &[]).await;
}

/// Receive buffer of the slow readers. It is much smaller than a reply, so Seawall cannot send the
/// whole reply at once.
const SMALL_BUFFER_BYTES: u32 = 4096;

/// A find of one of the large documents.
fn large_find(id: i32) -> Vec<u8> {
    let mut find = own_find();
    find.insert("find", "large");
    find.insert("filter", doc! {"_id": id});
    find.insert("$db", MALLORY);
    OpMsg::new(find).to_bytes()
}

pub(super) async fn slow_readers(arena: Arena) {
    let clients = arena
        .many_logged_in(arena.either(100, 20), Some(SMALL_BUFFER_BYTES))
        .await;
    read_slowly(&arena, clients, &large_find(2)).await;
}

pub(super) async fn slow_compressed_readers(arena: Arena) {
    let count = arena.either(100, 20);
    let mut clients = arena.many_logged_in(count, Some(SMALL_BUFFER_BYTES)).await;
    let mut hello = metadata();
    hello.insert("compression", vec!["snappy", "zstd", "zlib"]);
    for client in &mut clients {
        drop(client.hello(hello.clone()).await);
    }
    // Replies to compressed commands are compressed.
    let find =
        deflate(&large_find(2), Compressor::Snappy).expect("a small message can be compressed");
    read_slowly(&arena, clients, &find).await;
}

pub(super) async fn many_slow_readers(arena: Arena) {
    let count = arena.either(5_000, 200);
    let clients = arena.many_logged_in(count, Some(SMALL_BUFFER_BYTES)).await;
    read_slowly(&arena, clients, &large_find(1)).await;
}

/// Requests a large reply on each connection. In each round, half of the connections read up to 64
/// bytes; the others read nothing.
async fn read_slowly(arena: &Arena, mut clients: Vec<RawClient>, find: &[u8]) {
    arena.begin();
    let per_second = u32::try_from(clients.len() / 10).unwrap_or_default().max(1);
    let mut pace = arena.pace(per_second);
    let mut round = 0;
    'attack: loop {
        for ten in clients.chunks_mut(10) {
            if !pace.next().await {
                break 'attack;
            }
            for (number, client) in ten.iter_mut().enumerate() {
                if round == 0 {
                    arena.count_attempt();
                    client.set_limit(WRITE_LIMIT);
                    drop(client.send_bytes(find).await);
                } else if number.is_multiple_of(2) {
                    let read = client.read_bytes(64);
                    drop(timeout(Duration::from_millis(1), read).await);
                }
            }
        }
        if clients.is_empty() {
            break;
        }
        round += 1;
    }
    arena.wait_for_end().await;
    arena.count_open(clients).await;
}
