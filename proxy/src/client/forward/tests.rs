use std::time::Duration;

use bson::rawdoc;
use tokio::{io::AsyncWriteExt as _, net::UnixStream};

use super::*;
use crate::{
    client::reply::drain_reply,
    limits::{LimitNumbers, Limits, OperationPermits},
    observe::Recorder,
};
use seawall_command::CommandBytes;
use seawall_transport::{MemoryBudget, MessageReader, Sharer, connection::Interrupt};
use seawall_wire::{HEADER_BYTES, MORE_TO_COME, encode_op_msg_like};

const REQUEST_ID: i32 = 7;

/// The two ends of a connected stream: Seawall's end, and the end of its peer.
fn pair() -> (Stream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    (Stream::Unix(near), far)
}

fn reply(request_id: i32) -> Vec<u8> {
    encode_op_msg_like(0, 1, request_id, rawdoc! { "ok": 1 }.as_bytes())
}

/// The side that closes its connection in the middle of a reply.
#[derive(Clone, Copy)]
enum Closer {
    Client,
    Server,
}

/// Forwards a reply that is cut off: the server sends `sent`, and then `closer` closes its
/// connection.
async fn relay_cut(
    server: &mut Stream,
    far: &mut UnixStream,
    sent: &[u8],
    closer: Closer,
) -> RelayError {
    let (mut client, far_client) = pair();
    let body = rawdoc! { "find": "c", "$db": "d" };
    let input = CommandBytes::of_body(body.as_bytes());
    let recorder = Recorder::without_shapes();
    let mut observation = recorder.begin(&input, 1, Instant::now());
    let mut reader = MessageReader::default();
    let mut end = ClientEnd {
        stream: &mut client,
        reader: &mut reader,
        write_idle: Duration::from_secs(1),
        is_awaiting: true,
        ends_if_gone: true,
        gave_up: false,
    };
    let budget = MemoryBudget::of_bytes(1 << 20);
    let limits = Limits::new(LimitNumbers::of_each(1), OperationPermits::new(1));
    let interrupt = Interrupt::default();
    let awaited = Awaited {
        request_id: REQUEST_ID,
        form: ReplyForm::Plain,
        must_compress: false,
        budget: &budget,
        limits: &limits,
        sharer: Sharer::Local,
        interrupt: &interrupt,
        is_wanted: &|| false,
        recording: None,
    };
    let mut relayed = std::pin::pin!(relay_reply(
        &mut end,
        server,
        None,
        awaited,
        &mut observation
    ));
    far.write_all(sent).await.unwrap();
    // These polls read the sent bytes before the connection is closed.
    for _ in 0..10 {
        assert!(futures_util::poll!(relayed.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    match closer {
        Closer::Client => drop(far_client),
        Closer::Server => far.shutdown().await.unwrap(),
    }
    relayed.await.err().expect("a connection is closed")
}

/// An operation that failed with [`RelayError::Server`] is repeated or gets an error reply. After
/// other errors, the client is closed.
#[tokio::test]
async fn an_operation_can_be_repeated_if_the_server_connection_ends_during_a_held_reply() {
    let whole = reply(REQUEST_ID);
    for split in 0..whole.len() {
        let (mut server, mut far) = pair();
        let sent = &whole[..split];
        let error = relay_cut(&mut server, &mut far, sent, Closer::Server).await;
        assert!(matches!(error, RelayError::Server(_)), "{split}: {error}");
    }
}

/// To drain a reply is to read and discard its rest, so that the connection can be used again.
#[tokio::test]
async fn an_abandoned_reply_is_drained_unless_only_a_part_of_its_head_was_read() {
    let (first, second) = (reply(REQUEST_ID), reply(REQUEST_ID + 1));
    for split in 0..first.len() {
        let (mut server, mut far) = pair();
        let (sent, rest) = first.split_at(split);
        let error = relay_cut(&mut server, &mut far, sent, Closer::Client).await;
        let RelayError::ClientGone { unread } = error else {
            panic!("{split}: {error}");
        };
        far.write_all(rest).await.unwrap();
        let drained = drain_reply(&mut server, REQUEST_ID, unread, 1 << 20).await;
        let is_in_head = (1..REPLY_HEAD_BYTES).contains(&split);
        assert_eq!(unread == Unread::InHead, is_in_head, "{split}");
        assert_eq!(drained.is_err(), is_in_head, "{split}");
        if drained.is_ok() {
            // After the drain, the next reply on the connection can be read from its start.
            far.write_all(&second).await.unwrap();
            let next = drain_reply(&mut server, REQUEST_ID + 1, Unread::Whole, 1 << 20).await;
            assert!(next.is_ok(), "{split}");
        }
    }
}

/// A second reply would reach the client that uses the connection next.
#[tokio::test]
async fn a_connection_is_not_used_again_if_an_abandoned_reply_announces_another_reply() {
    let mut whole = reply(REQUEST_ID);
    whole[HEADER_BYTES..][..4].copy_from_slice(&MORE_TO_COME.to_le_bytes());
    for split in 0..REPLY_HEAD_BYTES {
        let (mut server, mut far) = pair();
        let (sent, rest) = whole.split_at(split);
        let error = relay_cut(&mut server, &mut far, sent, Closer::Client).await;
        let RelayError::ClientGone { unread } = error else {
            panic!("{split}: {error}");
        };
        far.write_all(rest).await.unwrap();
        let drained = drain_reply(&mut server, REQUEST_ID, unread, 1 << 20).await;
        assert!(drained.is_err(), "{split}");
    }
}
