use std::sync::Arc;

use bson::rawdoc;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::*;
use crate::limits::{LimitNumbers, Limits, OperationPermits, Turns};
use seawall_command::ReplyForm;
use seawall_locks::Mutex;
use seawall_transport::{
    MemoryBudget, MessageReader, Sharer,
    connection::{Interrupt, Interrupts},
};
use seawall_wire::encode_op_msg_like;

/// The two ends of a connected stream: Seawall's end, and the end of its peer.
fn pair() -> (Stream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    (Stream::Unix(near), far)
}

/// A reply of at least `length` bytes, and at most a few bytes more.
fn reply(length: usize) -> Vec<u8> {
    let text = "x".repeat(length);
    encode_op_msg_like(0, 1, 7, rawdoc! { "ok": 1, "text": text }.as_bytes())
}

/// Forwards a reply of `length` bytes. Reads the head of the reply first, as `relay_reply` does.
async fn forward(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    length: usize,
    budget: &MemoryBudget,
    limits: &Limits,
) -> Result<Forwarded, RelayError> {
    let interrupt = Interrupt::default();
    forward_unless_hung(client, server, length, budget, limits, &interrupt).await
}

/// Like [`forward`]. `interrupt` is raised if the server counts as hung.
async fn forward_unless_hung(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    length: usize,
    budget: &MemoryBudget,
    limits: &Limits,
    interrupt: &Interrupt,
) -> Result<Forwarded, RelayError> {
    let awaited = Awaited {
        request_id: 7,
        form: ReplyForm::Plain,
        must_compress: false,
        budget,
        limits,
        sharer: Sharer::Local,
        interrupt,
        is_wanted: &|| false,
        recording: None,
    };
    let mut first = vec![0; REPLY_HEAD_BYTES];
    server.read_exact(&mut first).await.unwrap();
    forward_large(client, server, first, length, awaited).await
}

fn end<'c>(stream: &'c mut Stream, reader: &'c mut MessageReader) -> ClientEnd<'c> {
    ClientEnd {
        stream,
        reader,
        write_idle: Duration::from_secs(10),
        is_awaiting: true,
        ends_if_gone: true,
        gave_up: false,
    }
}

fn limits() -> Limits {
    Limits::new(LimitNumbers::of_each(1), OperationPermits::new(1))
}

/// Forwards a reply of 1 MiB to a client that reads fast. Returns three values. The first is the
/// number of bytes that the client has before Seawall sends the backlog. The others are all bytes
/// that the client reads, and all bytes that the server sends.
async fn forward_to_reader(budget: &MemoryBudget) -> (usize, Vec<u8>, Vec<u8>) {
    let sent = reply(1 << 20);
    let (mut server, mut far_server) = pair();
    let (mut client, mut far_client) = pair();
    let (mut reader, limits) = (MessageReader::default(), limits());
    let mut end = end(&mut client, &mut reader);
    let bytes = sent.clone();
    let writing = tokio::spawn(async move { far_server.write_all(&bytes).await.unwrap() });
    let length = sent.len();
    let reading = tokio::spawn(async move {
        let mut read = vec![0; length];
        far_client.read_exact(&mut read).await.unwrap();
        read
    });
    let forwarded = forward(&mut end, &mut server, length, budget, &limits).await;
    let forwarded = forwarded.unwrap();
    let unsent = forwarded.backlog.bytes - forwarded.backlog.written;
    let turn = limits.forwarding().stepwise(Sharer::Local);
    forwarded.backlog.send(&mut end, turn).await.unwrap();
    writing.await.unwrap();
    (length - unsent, reading.await.unwrap(), sent)
}

/// Before Seawall sends the last piece, it records facts of the reply, such as its cursor.
#[tokio::test]
async fn the_last_piece_of_a_large_reply_is_held_back_until_the_backlog_is_sent() {
    let budget = MemoryBudget::of_bytes(64 << 20);
    let (before, read, sent) = forward_to_reader(&budget).await;
    assert!(
        before < sent.len(),
        "the client had the whole reply before the backlog was sent"
    );
    assert!(
        read == sent,
        "the client did not read the bytes that the server sent"
    );
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn a_large_reply_is_forwarded_even_if_the_memory_budget_has_no_room_for_a_large_piece() {
    let budget = MemoryBudget::of_bytes(2 * PIECE_BYTES);
    let (_, read, sent) = forward_to_reader(&budget).await;
    assert!(
        read == sent,
        "the client did not read the bytes that the server sent"
    );
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn unread_reply_bytes_of_a_client_count_towards_the_memory_budget() {
    let sent = reply(4 << 20);
    let (mut server, mut far_server) = pair();
    let (mut client, mut far_client) = pair();
    let (mut reader, limits) = (MessageReader::default(), limits());
    let mut end = end(&mut client, &mut reader);
    let budget = MemoryBudget::of_bytes(64 << 20);
    let (length, bytes) = (sent.len(), sent.clone());
    let writing = tokio::spawn(async move { far_server.write_all(&bytes).await.unwrap() });
    let mut forwarding = Box::pin(forward(&mut end, &mut server, length, &budget, &limits));
    for _ in 0..100 {
        assert!(futures_util::poll!(forwarding.as_mut()).is_pending());
        yield_now().await;
    }
    let used = budget.used_bytes();
    let range = PIECE_BYTES..=SMALL_BACKLOG_BYTES + LARGE_PIECE_BYTES;
    assert!(range.contains(&used), "{used} bytes are charged");
    let reading = tokio::spawn(async move {
        let mut read = vec![0; length];
        far_client.read_exact(&mut read).await.unwrap();
        read
    });
    let forwarded = forwarding.await.unwrap();
    let turn = limits.forwarding().stepwise(Sharer::Local);
    forwarded.backlog.send(&mut end, turn).await.unwrap();
    writing.await.unwrap();
    assert!(reading.await.unwrap() == sent);
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn forwarding_fails_if_the_server_sends_bytes_after_the_end_of_a_large_reply() {
    let mut sent = reply(2 * PIECE_BYTES);
    let length = sent.len();
    sent.push(0);
    let (mut server, mut far_server) = pair();
    let (mut client, _far_client) = pair();
    let (mut reader, limits) = (MessageReader::default(), limits());
    let mut end = end(&mut client, &mut reader);
    let budget = MemoryBudget::of_bytes(64 << 20);
    let writing = tokio::spawn(async move { far_server.write_all(&sent).await });
    let forwarded = forward(&mut end, &mut server, length, &budget, &limits).await;
    assert!(matches!(forwarded, Err(RelayError::Foreign(_))));
    assert_eq!(budget.used_bytes(), 0);
    writing.await.unwrap().unwrap();
}

/// Forwards a reply. The server sends only its first 4,096 bytes. When forwarding waits for more
/// bytes, calls `raise`. Checks that forwarding then fails.
async fn forward_from_stalled_server(interrupt: &Interrupt, raise: impl FnOnce()) {
    let sent = reply(2 * PIECE_BYTES);
    let (mut server, mut far_server) = pair();
    let (mut client, _far_client) = pair();
    let (mut reader, limits) = (MessageReader::default(), limits());
    let mut end = end(&mut client, &mut reader);
    let budget = MemoryBudget::of_bytes(64 << 20);
    far_server.write_all(&sent[..4096]).await.unwrap();
    let mut forwarding = Box::pin(forward_unless_hung(
        &mut end,
        &mut server,
        sent.len(),
        &budget,
        &limits,
        interrupt,
    ));
    for _ in 0..100 {
        assert!(futures_util::poll!(forwarding.as_mut()).is_pending());
        yield_now().await;
    }
    raise();
    let forwarded = forwarding.await;
    assert!(matches!(forwarded, Err(RelayError::MidReply(_))));
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn forwarding_fails_if_the_server_hangs_within_a_large_reply() {
    let (interrupts, interrupt) = <(Interrupts, Arc<Interrupt>)>::default();
    interrupts.add(&interrupt);
    forward_from_stalled_server(&interrupt, || interrupts.raise()).await;
}

#[tokio::test(start_paused = true)]
async fn forwarding_fails_if_a_large_reply_takes_the_server_longer_than_an_hour() {
    let began = Instant::now();
    forward_from_stalled_server(&Interrupt::default(), || {}).await;
    assert!(began.elapsed() >= MESSAGE_LIMIT);
}

#[tokio::test]
async fn a_task_forwards_256_kib_before_another_task_runs() {
    const STEP_BYTES: usize = TURN_BYTES / 4;
    let turns = Turns::new(1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..3)
        .map(|task| {
            let (turns, order) = (turns.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                let mut turns = ForwardingTurns::new(turns.stepwise(Sharer::Local));
                for _ in 0..8 {
                    poll_fn(|cx| turns.poll_turn(cx)).await;
                    assert!(turns.poll(|| Poll::Ready(())).is_ready());
                    order.lock().push(task);
                    turns.count_moved(STEP_BYTES).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let expected = [0, 1, 2, 0, 1, 2].map(|task| [task; 4]);
    assert_eq!(*order.lock(), expected.as_flattened());
}

#[test]
fn a_piece_of_a_reply_counts_as_memory_until_all_its_bytes_are_written() {
    let mut backlog = Backlog::of(vec![1; 100], None);
    backlog.push(vec![2; 50]);
    backlog.push(Vec::new());
    backlog.advance(99);
    assert_eq!((backlog.bytes, backlog.pieces.len()), (150, 2));
    backlog.advance(1);
    assert_eq!((backlog.bytes, backlog.pieces.len()), (50, 1));
    backlog.advance(50);
    assert!(backlog.is_empty());
    assert_eq!(backlog.bytes, 0);
}
