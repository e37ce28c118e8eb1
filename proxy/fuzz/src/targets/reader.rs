//! Reads a stream of messages from a client or a server. The stream arrives in pieces of any size.
//!
//! Input, in this order:
//!
//! - one byte for the sizes of the pieces;
//! - one byte that selects two things: whether a large message precedes the stream, and what the
//!   target does after the reader has returned only the head (first bytes) of a message;
//! - one byte for the largest allowed message;
//! - the stream.

use std::{
    io,
    mem::ManuallyDrop,
    pin::Pin,
    task::{Context, Poll},
};

use seawall_transport::{
    LARGE_MESSAGE_BYTES, MemoryBudget, Message, MessageReader, ReadError, RestOfMessage,
    STREAMED_MESSAGE_BYTES,
};
use seawall_wire::{HEADER_BYTES, MAX_MESSAGE_BYTES, encode_request};
use tokio::{
    io::{AsyncRead, ReadBuf},
    runtime::{Builder, Runtime},
};

use crate::choices::{Choices, Pieces};

/// Limits of message sizes. Seawall has a small limit before a login, and a large limit after it.
const LIMITS: [usize; 4] = [16, 16 * 1024, LARGE_MESSAGE_BYTES, MAX_MESSAGE_BYTES];

/// The memory budget. It is enough for everything that one reader holds.
const BUDGET_BYTES: usize = 8 << 20;

/// After this many small pieces, the rest of the stream arrives in large pieces, to limit the time
/// of an execution.
const MOST_PIECES: usize = 4_096;

thread_local! {
    // The runtime is never dropped, because at the end of a thread the thread-local state that it
    // needs may already be gone.
    static RUNTIME: ManuallyDrop<Runtime> = ManuallyDrop::new(
        Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime of one thread can be built"),
    );
}

/// Checks that every split of the bytes into pieces gives the same messages and the same end, and
/// that no byte is lost or repeated.
pub fn reader(data: &[u8]) {
    let mut choices = Choices::new(data);
    let pieces = Pieces::new(choices.byte());
    let kind = choices.byte();
    let limit = *LIMITS
        .get(usize::from(choices.byte()) % LIMITS.len())
        .expect("the index is below the length");
    let stream = with_large_message(choices.rest(), kind);
    let treatment = Treatment::of(kind);
    let whole = Input {
        bytes: &stream,
        pieces: None,
        is_pending: false,
    };
    let split = Input {
        pieces: Some((pieces, MOST_PIECES)),
        ..whole
    };
    let (of_whole, of_split) = RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let of_whole = read_all(whole, limit, treatment).await;
            (of_whole, read_all(split, limit, treatment).await)
        })
    });
    assert_eq!(of_whole, of_split);
    if treatment != Treatment::Skip {
        let read = of_whole.messages.concat();
        assert!(stream.starts_with(&read));
        assert!(of_whole.end != "end" || read.len() == stream.len());
    }
}

/// The next step of the target after it has read the head (the first part) of a message: it reads
/// the whole message, reads the rest in pieces, or skips the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    Complete,
    ReadPieces,
    Skip,
}

impl Treatment {
    fn of(kind: u8) -> Self {
        match kind % 3 {
            0 => Self::Complete,
            1 => Self::ReadPieces,
            _ => Self::Skip,
        }
    }
}

/// An input can select that its stream begins with a large message. The target adds the message for
/// only one of 16 such inputs, because reading a large message takes a thousand times as long as
/// reading a small message.
pub(crate) const LARGE_SHARE: u8 = 16;

/// Puts a large message in front of some inputs, because small inputs cannot contain a large
/// message. The size of the large message is near one of the limits at which the reader changes its
/// behavior.
fn with_large_message(bytes: &[u8], kind: u8) -> Vec<u8> {
    let sum = bytes.iter().fold(kind, |sum, byte| sum.wrapping_add(*byte));
    let size = match kind {
        _ if !sum.is_multiple_of(LARGE_SHARE) => return bytes.to_vec(),
        0xf0..=0xf7 => LARGE_MESSAGE_BYTES,
        0xf8..=0xfb => STREAMED_MESSAGE_BYTES,
        _ => return bytes.to_vec(),
    };
    let size = size - HEADER_BYTES - 5 + usize::from(kind % 2);
    let mut stream = encode_request(1, &vec![kind; size]);
    stream.extend_from_slice(bytes);
    stream
}

/// The result of reading a stream.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    messages: Vec<Vec<u8>>,
    end: String,
}

async fn read_all(mut input: Input<'_>, limit: usize, treatment: Treatment) -> Outcome {
    let budget = MemoryBudget::of_bytes(BUDGET_BYTES);
    let mut reader = MessageReader::default();
    let mut messages = Vec::new();
    let end = loop {
        let message = match reader.next(&mut input, limit, &budget).await {
            Ok(Some(message)) => message,
            Ok(None) => break "end".to_owned(),
            Err(error) => break error.to_string(),
        };
        assert!(message.header.message_length <= limit);
        match finish(message, &mut reader, &mut input, &budget, treatment).await {
            Ok(bytes) => messages.push(bytes),
            Err(error) => break error.to_string(),
        }
    };
    drop(reader);
    assert_eq!(
        budget.used_bytes(),
        0,
        "all memory is returned to the budget"
    );
    Outcome { messages, end }
}

async fn finish(
    message: Message,
    reader: &mut MessageReader,
    input: &mut Input<'_>,
    budget: &MemoryBudget,
    treatment: Treatment,
) -> Result<Vec<u8>, ReadError> {
    if !message.is_head() {
        assert_eq!(message.bytes.len(), message.header.message_length);
        return Ok(message.bytes.clone());
    }
    match treatment {
        Treatment::Complete => {
            let whole = reader.complete(message, input, budget).await?;
            assert_eq!(whole.bytes.len(), whole.header.message_length);
            Ok(whole.bytes.clone())
        }
        Treatment::ReadPieces => {
            let mut bytes = message.bytes.clone();
            let mut rest = RestOfMessage::of(&message, &|| true);
            let mut piece = Vec::new();
            loop {
                rest.next_piece(reader, input, &mut piece).await?;
                if piece.is_empty() {
                    assert_eq!(bytes.len(), message.header.message_length);
                    return Ok(bytes);
                }
                bytes.extend_from_slice(&piece);
            }
        }
        // Only the headers are compared, because the length of a head depends on the sizes of the
        // pieces.
        Treatment::Skip => Ok(message.header.to_bytes().to_vec()),
    }
}

/// A stream that gives its bytes in pieces, and sometimes is not ready.
#[derive(Clone, Copy, Debug)]
struct Input<'a> {
    bytes: &'a [u8],
    /// The sizes of the pieces, and the number of pieces that are left. With `None`, each read gets
    /// as many bytes as it has room for.
    pieces: Option<(Pieces, usize)>,
    is_pending: bool,
}

impl AsyncRead for Input<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let input = self.get_mut();
        let mut size = room.remaining().min(input.bytes.len());
        if let Some((pieces, left)) = &mut input.pieces
            && *left > 0
        {
            let wanted = pieces.next_size();
            input.is_pending = !input.is_pending && wanted.is_multiple_of(4);
            if input.is_pending {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            *left -= 1;
            size = size.min(wanted);
        }
        let (piece, rest) = input.bytes.split_at(size);
        room.put_slice(piece);
        input.bytes = rest;
        Poll::Ready(Ok(()))
    }
}
