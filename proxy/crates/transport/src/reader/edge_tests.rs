//! Tests of the reader with messages at the limits between small, large and streamed messages, and
//! with a budget that is short of memory.

use std::{iter, pin::pin};

use tokio::{
    io::{AsyncWriteExt, DuplexStream, duplex},
    time::advance,
};

use super::*;
use seawall_wire::{COMPRESSED_HEAD_BYTES, Compressor, MAX_MESSAGE_BYTES, deflate, encode_request};

/// Number of bytes before the body in a message of [`encode_request`]: header, flags, section kind.
const BEFORE_BODY: usize = HEADER_BYTES + 4 + 1;

fn budget() -> MemoryBudget {
    MemoryBudget::of_bytes(64 << 20)
}

/// A request of `bytes` bytes, including the header.
fn request_of(bytes: usize) -> Vec<u8> {
    let message = encode_request(1, &vec![7; bytes - BEFORE_BODY]);
    assert_eq!(message.len(), bytes);
    message
}

/// Bytes that no compressor can shrink.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    iter::repeat_with(next).take(bytes).collect()
}

/// Builds a TLS record with this content.
fn record(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    [&[22, 3, 1][..], &length.to_be_bytes(), content].concat()
}

async fn next_message(
    reader: &mut MessageReader,
    near: &mut DuplexStream,
    budget: &MemoryBudget,
) -> Message {
    let next = reader.next(near, MAX_MESSAGE_BYTES, budget).await;
    next.unwrap().unwrap()
}

/// Polls once for the next message.
async fn poll_next(
    reader: &mut MessageReader,
    near: &mut DuplexStream,
    budget: &MemoryBudget,
) -> Poll<Result<Option<Message>, ReadError>> {
    let mut next = pin!(reader.next(near, MAX_MESSAGE_BYTES, budget));
    poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await
}

/// Polls [`MemoryShare::poll_grow`] once.
async fn poll_grow(
    share: &mut MemoryShare,
    bytes: usize,
    left: usize,
) -> Poll<Result<(), Evicted>> {
    poll_fn(|cx| Poll::Ready(share.poll_grow(cx, bytes, left))).await
}

#[tokio::test]
async fn a_complete_message_counts_towards_the_memory_budget_only_if_it_is_large() {
    let over = LARGE_MESSAGE_BYTES + 1;
    for (bytes, charged) in [(LARGE_MESSAGE_BYTES, 0), (over, over)] {
        let budget = budget();
        let (mut near, mut far) = duplex(1 << 20);
        let mut reader = MessageReader::default();
        let sent = request_of(bytes);
        let (first, rest) = sent.split_at(1_000);
        far.write_all(first).await.unwrap();
        let polled = poll_next(&mut reader, &mut near, &budget).await;
        assert!(polled.is_pending());
        far.write_all(rest).await.unwrap();
        let message = next_message(&mut reader, &mut near, &budget).await;
        assert_eq!(message.bytes, sent);
        assert_eq!(budget.used_bytes(), charged, "{bytes}");
        drop(message);
        assert_eq!(budget.used_bytes(), 0);
    }
}

#[tokio::test]
async fn next_returns_a_part_of_a_message_over_1_mib_but_a_smaller_message_as_a_whole() {
    let over = STREAMED_MESSAGE_BYTES + 1;
    for (bytes, is_head) in [(100, false), (STREAMED_MESSAGE_BYTES, false), (over, true)] {
        let (mut near, mut far) = duplex(1 << 16);
        let sent = request_of(bytes);
        tokio::spawn(async move { far.write_all(&sent).await });
        let mut reader = MessageReader::default();
        let message = next_message(&mut reader, &mut near, &budget()).await;
        assert_eq!(message.is_head(), is_head, "{bytes}");
        assert_eq!(message.bytes.len() < bytes, is_head, "{bytes}");
    }
}

#[tokio::test]
async fn the_reader_yields_to_other_tasks_between_the_chunks_of_a_large_message() {
    let budget = budget();
    let (mut near, mut far) = duplex(1 << 20);
    let sent = request_of(1 << 19);
    far.write_all(&sent).await.unwrap();
    let mut reader = MessageReader::default();
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(
        polled.is_pending(),
        "the reader yields although all bytes are available"
    );
    let first_chunk = SCRATCH_BYTES + CHUNK_BYTES;
    assert_eq!(reader.buffered().len(), first_chunk);
    assert_eq!(budget.used_bytes(), first_chunk);
    let message = next_message(&mut reader, &mut near, &budget).await;
    assert_eq!(message.bytes, sent);
}

/// A message with a length between 64 KiB and 1 MiB gets a buffer of its full length immediately.
/// If a message is over 1 MiB, the reader first reads only a part of it.
#[tokio::test]
async fn the_buffer_is_not_allocated_at_full_length_for_messages_up_to_64_kib_or_over_1_mib() {
    for bytes in [LARGE_MESSAGE_BYTES, 3 << 20] {
        let (mut near, mut far) = duplex(1 << 16);
        far.write_all(&request_of(bytes)[..1_000]).await.unwrap();
        let mut reader = MessageReader::default();
        let polled = poll_next(&mut reader, &mut near, &budget()).await;
        assert!(polled.is_pending());
        let capacity = reader.buffer.capacity();
        assert!(capacity <= 2_000, "{bytes} {capacity}");
    }
}

#[tokio::test]
async fn bytes_that_arrive_after_set_sharer_are_charged_to_the_new_user() {
    let budget = budget();
    let (mut near, mut far) = duplex(1 << 16);
    let mut reader = MessageReader::new(Sharer::User(1));
    assert_eq!(reader.sharer(), Sharer::User(1));
    reader.set_sharer(Sharer::User(2));
    assert_eq!(reader.sharer(), Sharer::User(2));
    far.write_all(&request_of(20_000)[..5_000]).await.unwrap();
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(polled.is_pending());
    assert_eq!(budget.used_bytes(), 5_000);
    assert!(budget.holds_most(Sharer::User(2)));
    assert!(!budget.holds_most(Sharer::User(1)));
}

#[tokio::test]
async fn a_large_inflated_message_counts_towards_the_memory_budget() {
    let over = LARGE_MESSAGE_BYTES + 1;
    let noisy = encode_request(1, &noise(100_000));
    let compressed_noise = deflate(&noisy, Compressor::Zstd).unwrap().len();
    assert!(compressed_noise > LARGE_MESSAGE_BYTES);
    let noise_charged = compressed_noise + noisy.len();
    for (sent, charged) in [
        (request_of(LARGE_MESSAGE_BYTES), 0),
        (request_of(over), over),
        (noisy, noise_charged),
    ] {
        let budget = budget();
        let (mut near, mut far) = duplex(1 << 20);
        let compressed = deflate(&sent, Compressor::Zstd).unwrap();
        far.write_all(&compressed).await.unwrap();
        let mut reader = MessageReader::default();
        let message = next_message(&mut reader, &mut near, &budget).await;
        let inflating = message
            .reserve_inflated(MAX_MESSAGE_BYTES, &budget, Sharer::Local)
            .await
            .unwrap();
        assert_eq!(inflating.work_bytes(), sent.len().max(compressed.len()));
        assert_eq!(budget.used_bytes(), charged);
        let inside = inflating.inflate().unwrap();
        assert_eq!(inside.bytes, sent);
        drop(inside);
        assert_eq!(budget.used_bytes(), 0);
    }
}

/// A request of 45 bytes, compressed with zstd. Before its content, the frame has `blocks` blocks
/// without content.
fn with_empty_blocks(blocks: usize) -> Vec<u8> {
    let request = request_of(45);
    let compressed = deflate(&request, Compressor::Zstd).unwrap();
    // RFC 8878, section 3.1.1: the magic number, a frame header with a window of 1 KiB and without
    // content size, and blocks of the type "raw". Each block begins with its size and type.
    let content = &request[HEADER_BYTES..];
    let last_block = u32::try_from(content.len() << 3 | 1).unwrap().to_le_bytes();
    let mut message = compressed[..COMPRESSED_HEAD_BYTES].to_vec();
    message.extend([0x28, 0xb5, 0x2f, 0xfd, 0, 0]);
    message.extend(iter::repeat_n(0, 3 * blocks));
    message.extend(&last_block[..3]);
    message.extend(content);
    let length = i32::try_from(message.len()).unwrap();
    message[..4].copy_from_slice(&length.to_le_bytes());
    message
}

/// Otherwise, the decompression of a small inner message could block a thread that serves clients.
#[tokio::test]
async fn work_to_inflate_a_small_message_is_the_size_of_its_large_compressed_form() {
    let compressed = with_empty_blocks(1 << 16);
    let budget = budget();
    let (mut near, mut far) = duplex(1 << 20);
    far.write_all(&compressed).await.unwrap();
    let mut reader = MessageReader::default();
    let message = next_message(&mut reader, &mut near, &budget).await;
    let inflating = message
        .reserve_inflated(MAX_MESSAGE_BYTES, &budget, Sharer::Local)
        .await
        .unwrap();
    assert_eq!(inflating.work_bytes(), compressed.len());
    assert_eq!(inflating.inflate().unwrap().bytes, request_of(45));
}

#[tokio::test]
async fn inspection_of_a_compressed_message_reserves_memory_for_a_copy_and_for_the_inner_message() {
    let noisy = encode_request(1, &noise(100_000));
    let noisy = (deflate(&noisy, Compressor::Zstd).unwrap(), noisy.len());
    for (compressed, inner_bytes) in [noisy, (with_empty_blocks(1 << 16), 45)] {
        let budget = budget();
        let (mut near, mut far) = duplex(1 << 20);
        far.write_all(&compressed).await.unwrap();
        let mut reader = MessageReader::default();
        let message = next_message(&mut reader, &mut near, &budget).await;
        let before = budget.used_bytes();
        let inspecting = message.reserve_for_inspection(MAX_MESSAGE_BYTES, &budget, Sharer::Local);
        let inspecting = inspecting.await.unwrap();
        assert_eq!(budget.used_bytes() - before, compressed.len() + inner_bytes);
        drop(inspecting);
        assert_eq!(budget.used_bytes(), before);
    }
}

#[tokio::test]
async fn a_message_is_read_if_the_free_memory_is_exactly_its_length() {
    let budget = MemoryBudget::of_bytes(1 << 20);
    let sent = request_of(20_000);
    let mut other = budget.open(Sharer::User(2));
    other.grow((1 << 20) - sent.len(), 1).await.unwrap();
    let (mut near, mut far) = duplex(1 << 16);
    let mut reader = MessageReader::default();
    far.write_all(&sent[..5_000]).await.unwrap();
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(polled.is_pending());
    far.write_all(&sent[5_000..]).await.unwrap();
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(matches!(polled, Poll::Ready(Ok(Some(_)))), "{polled:?}");
}

/// A reader may hold 4 KiB (`FREE_BYTES`) that do not count toward the memory budget.
#[tokio::test(start_paused = true)]
async fn a_reader_reads_at_most_4_kib_of_a_new_message_while_other_messages_wait_for_memory() {
    let budget = MemoryBudget::of_bytes(1 << 20);
    let mut full = budget.open(Sharer::User(2));
    full.grow(1 << 20, 1).await.unwrap();
    let mut waiting = budget.open(Sharer::User(3));
    assert!(poll_grow(&mut waiting, 100, 100).await.is_pending());
    assert!(budget.is_short());
    let (mut near, mut far) = duplex(1 << 16);
    far.write_all(&request_of(20_000)).await.unwrap();
    let mut reader = MessageReader::default();
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(polled.is_pending());
    assert_eq!(reader.buffered().len(), FREE_BYTES);
    assert_eq!(budget.used_bytes(), 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_memory_does_not_time_out() {
    let budget = MemoryBudget::of_bytes(1 << 20);
    let mut full = budget.open(Sharer::User(2));
    full.grow(1 << 20, 1).await.unwrap();
    let (mut near, mut far) = duplex(1 << 16);
    let mut reader = MessageReader::default();
    let sent = request_of(20_000);
    far.write_all(&sent[..5_000]).await.unwrap();
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(polled.is_pending());
    far.write_all(&sent[5_000..]).await.unwrap();
    let mut next = pin!(reader.next(&mut near, MAX_MESSAGE_BYTES, &budget));
    for second in 0..2 * PARTIAL_MESSAGE_IDLE.as_secs() {
        let polled = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "{second} {polled:?}");
        advance(Duration::from_secs(1)).await;
    }
    drop(full);
    assert_eq!(next.await.unwrap().unwrap().bytes, sent);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_stalls_after_several_reads_times_out() {
    let budget = budget();
    let (mut near, mut far) = duplex(1 << 16);
    let mut reader = MessageReader::default();
    for part in request_of(20_000)[..300].chunks(100) {
        far.write_all(part).await.unwrap();
        let polled = poll_next(&mut reader, &mut near, &budget).await;
        assert!(polled.is_pending());
    }
    let began = Instant::now();
    let error = reader
        .next(&mut near, MAX_MESSAGE_BYTES, &budget)
        .await
        .unwrap_err();
    assert!(matches!(error, ReadError::Stalled), "{error}");
    assert_eq!(began.elapsed().as_secs(), PARTIAL_MESSAGE_IDLE.as_secs());
}

/// A message is *silent* if no byte of it has arrived for one second. It may then be evicted, which
/// frees its memory.
#[tokio::test(start_paused = true)]
async fn a_poll_that_reads_no_bytes_does_not_protect_a_silent_message_from_eviction() {
    let budget = MemoryBudget::of_bytes(1 << 20);
    let (mut near, mut far) = duplex(1 << 20);
    let held = 20_000;
    far.write_all(&request_of(100_000)[..held]).await.unwrap();
    let mut reader = MessageReader::new(Sharer::User(1));
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(polled.is_pending());
    advance(MemoryShare::RETRY_AFTER).await;
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(polled.is_pending());
    let mut full = budget.open(Sharer::User(2));
    full.grow((1 << 20) - held, 1).await.unwrap();
    let mut other = budget.open(Sharer::User(3));
    assert!(poll_grow(&mut other, 100, 100).await.is_pending());
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    let is_evicted = matches!(polled, Poll::Ready(Err(ReadError::Evicted)));
    assert!(is_evicted, "{polled:?}");
}

#[tokio::test(start_paused = true)]
async fn the_waiting_message_that_needs_the_least_memory_gets_memory_first() {
    let left = STREAM_SHARE_BYTES - HEAD_BYTES;
    for (left_of_rival, head_is_first) in [(left - 1, false), (left + 1, true)] {
        let budget = MemoryBudget::of_bytes(2 << 20);
        let mut full = budget.open(Sharer::User(2));
        full.grow(1 << 20, 1).await.unwrap();
        let mut finishing = budget.open(Sharer::User(2));
        finishing.grow(1, 1).await.unwrap();
        let (mut near, mut far) = duplex(1 << 20);
        let sent = request_of(2 << 20);
        far.write_all(&sent[..HEAD_BYTES]).await.unwrap();
        let mut reader = MessageReader::new(Sharer::User(1));
        let polled = poll_next(&mut reader, &mut near, &budget).await;
        assert!(polled.is_pending());
        let mut rival = budget.open(Sharer::User(1));
        let grown = poll_grow(&mut rival, 100, left_of_rival).await;
        assert!(grown.is_pending());
        drop(finishing);
        let grown = poll_grow(&mut rival, 100, left_of_rival).await;
        assert_eq!(grown.is_pending(), head_is_first);
        let polled = poll_next(&mut reader, &mut near, &budget).await;
        assert_eq!(polled.is_ready(), head_is_first);
    }
}

#[tokio::test]
async fn the_message_after_peek_header_contains_the_peeked_header() {
    let (mut near, mut far) = duplex(7);
    let sent = request_of(30);
    let bytes = sent.clone();
    tokio::spawn(async move { far.write_all(&bytes).await });
    let mut reader = MessageReader::default();
    let seen = reader.peek_header(&mut near).await.unwrap();
    assert_eq!(seen[..], sent[..HEADER_BYTES]);
    let message = next_message(&mut reader, &mut near, &budget()).await;
    assert_eq!(message.bytes, sent);
    let error = reader.peek_header(&mut near).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn no_bytes_of_a_message_stay_in_the_scratch_buffer() {
    let (mut near, mut far) = duplex(1 << 16);
    with_scratch(|scratch| scratch.fill(9));
    far.write_all(&request_of(1_000)).await.unwrap();
    next_message(&mut MessageReader::default(), &mut near, &budget()).await;
    with_scratch(|scratch| assert!(!scratch.contains(&7)));
}

#[tokio::test]
async fn peek_header_reads_at_most_the_4_kib_that_do_not_count_toward_the_memory_budget() {
    let (mut near, mut far) = duplex(1 << 16);
    far.write_all(&request_of(60_000)).await.unwrap();
    let mut reader = MessageReader::default();
    reader.peek_header(&mut near).await.unwrap();
    assert_eq!(reader.buffered().len(), FREE_BYTES);
}

#[tokio::test]
async fn a_tls_record_is_forwarded_whole_and_later_bytes_are_kept() {
    let sent = record(&[5; 258]);
    let nothing: &[u8] = &[];
    for behind in [nothing, &[9; 20]] {
        let (mut near, mut far) = duplex(1 << 16);
        let mut reader = MessageReader::default();
        far.write_all(&sent[..100]).await.unwrap();
        reader.peek_header(&mut near).await.unwrap();
        assert_eq!(reader.buffered(), &sent[..100]);
        far.write_all(&sent[100..]).await.unwrap();
        far.write_all(behind).await.unwrap();
        drop(far);
        let mut forwarded = Vec::new();
        let done = reader.forward_record(&mut near, &mut forwarded).await;
        done.unwrap();
        assert_eq!(forwarded, sent);
        assert_eq!(reader.buffered(), behind);
    }
}

#[tokio::test]
async fn the_arrived_part_of_a_tls_record_is_forwarded_immediately() {
    let (mut near, mut far) = duplex(1 << 16);
    let mut reader = MessageReader::default();
    let sent = &record(&[5; 60_000])[..50_000];
    far.write_all(sent).await.unwrap();
    reader.peek_header(&mut near).await.unwrap();
    let mut forwarded = Vec::new();
    {
        let mut forwarding = pin!(reader.forward_record(&mut near, &mut forwarded));
        let polled = poll_fn(|cx| Poll::Ready(forwarding.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
    }
    assert_eq!(forwarded, sent);
    assert!(reader.buffered().is_empty());
}

#[tokio::test]
async fn forward_record_fails_without_a_peeked_header_and_if_the_tls_record_ends_early() {
    let (mut near, mut far) = duplex(1 << 16);
    let mut reader = MessageReader::default();
    let mut forwarded = Vec::new();
    let unpeeked = reader.forward_record(&mut near, &mut forwarded).await;
    assert_eq!(unpeeked.unwrap_err().kind(), io::ErrorKind::InvalidData);
    far.write_all(&record(&[5; 258])[..100]).await.unwrap();
    reader.peek_header(&mut near).await.unwrap();
    drop(far);
    let cut = reader.forward_record(&mut near, &mut forwarded).await;
    assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

/// Returns a reader, and both ends of a stream with three messages of 100, 20,000 and 3,000 bytes.
/// All of them have been sent before the first message is read.
async fn with_messages_sent_ahead() -> (MessageReader, DuplexStream, DuplexStream) {
    let (near, mut far) = duplex(1 << 16);
    let sent = [100, 20_000, 3_000].map(request_of).concat();
    far.write_all(&sent).await.unwrap();
    (MessageReader::new(Sharer::User(1)), near, far)
}

#[tokio::test]
async fn bytes_after_the_current_message_count_towards_the_budget() {
    let budget = budget();
    let (mut reader, mut near, _far) = with_messages_sent_ahead().await;
    for (bytes, charged) in [(100, 23_000), (20_000, 0), (3_000, 0)] {
        let message = next_message(&mut reader, &mut near, &budget).await;
        assert_eq!(message.bytes, request_of(bytes));
        assert_eq!(budget.used_bytes(), charged, "{bytes}");
        assert_eq!(reader.share.is_some(), charged > 0, "{bytes}");
    }
    let (mut reader, mut near, _far) = with_messages_sent_ahead().await;
    next_message(&mut reader, &mut near, &budget).await;
    drop(reader);
    assert_eq!(
        budget.used_bytes(),
        0,
        "the dropped reader releases its memory"
    );
}

/// The reader already holds the bytes of the requests that follow the message, so it must charge
/// these bytes to the budget.
#[tokio::test]
async fn a_message_is_returned_only_when_the_budget_has_memory_for_the_requests_after_it() {
    let budget = MemoryBudget::of_bytes(1 << 20);
    let mut full = budget.open(Sharer::User(2));
    full.grow(1 << 20, 1).await.unwrap();
    let (mut reader, mut near, _far) = with_messages_sent_ahead().await;
    let polled = poll_next(&mut reader, &mut near, &budget).await;
    assert!(polled.is_pending(), "{polled:?}");
    assert!(budget.is_short());
    drop(full);
    let message = next_message(&mut reader, &mut near, &budget).await;
    assert_eq!(message.bytes, request_of(100));
    assert_eq!(budget.used_bytes(), 23_000);
    assert!(!budget.is_short());
}

#[tokio::test]
async fn poll_gone_reads_bytes_of_later_requests_only_up_to_a_limit() {
    let (mut near, mut far) = duplex(1 << 16);
    let mut reader = MessageReader::default();
    for (bytes, kept) in [(1_000, 1_000), (9_000, READ_AHEAD_BYTES)] {
        far.write_all(&vec![7; bytes]).await.unwrap();
        let gone = poll_fn(|cx| Poll::Ready(reader.poll_gone(cx, &mut near))).await;
        assert!(gone.is_pending());
        assert_eq!(reader.buffered().len(), kept);
    }
}

/// The result of [`MessageReader::poll_small`] with a budget of 64 MiB.
async fn read_small(reader: &mut MessageReader, stream: &mut &[u8]) -> Polled {
    let budget = budget();
    let polled = poll_fn(|cx| reader.poll_small(cx, stream, MAX_MESSAGE_BYTES, &budget));
    polled.await.unwrap()
}

#[tokio::test]
async fn poll_small_returns_each_message_that_has_arrived_whole() {
    let sent = [request_of(30), request_of(1000), request_of(BEFORE_BODY)];
    let bytes = sent.concat();
    let (mut reader, mut stream) = (MessageReader::default(), &bytes[..]);
    for message in &sent {
        match read_small(&mut reader, &mut stream).await {
            Polled::Message(read) => assert_eq!(&read.bytes, message),
            other => panic!("{other:?}"),
        }
    }
    let end = read_small(&mut reader, &mut stream).await;
    assert!(matches!(end, Polled::End), "{end:?}");
}

#[tokio::test]
async fn a_message_that_poll_small_cannot_return_is_returned_by_next() {
    // The cases are: a part of a header, a part of a message, a large message, and a message whose
    // head is returned first.
    let cases = [
        (request_of(30), 15),
        (request_of(30), 20),
        (request_of(LARGE_MESSAGE_BYTES + 1), usize::MAX),
        (request_of(STREAMED_MESSAGE_BYTES + 1), usize::MAX),
    ];
    for (message, arrived) in cases {
        let (mut stream, missing) = message.split_at(arrived.min(message.len()));
        let mut reader = MessageReader::default();
        let polled = read_small(&mut reader, &mut stream).await;
        assert!(matches!(polled, Polled::Unfinished), "{polled:?}");
        let rest = [stream, missing].concat();
        let read = reader
            .next(&mut &rest[..], MAX_MESSAGE_BYTES, &budget())
            .await
            .unwrap()
            .unwrap();
        assert!(message.starts_with(&read.bytes));
        if read.is_head() {
            // `poll_small` reads no message, because the reader must first skip the rest of this
            // message.
            let polled = read_small(&mut reader, &mut &rest[..]).await;
            assert!(matches!(polled, Polled::Unfinished), "{polled:?}");
        } else {
            assert_eq!(read.bytes, message);
        }
    }
}
