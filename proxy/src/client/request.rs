//! A request as it is sent to a server: the client's bytes with these edits.
//!
//! - `moreToCome` and `exhaustAllowed` are cleared, so that each request has one reply.
//! - `$client` is added, if the command and the message have room for it.
//! - If the operation has a time limit and has waited in Seawall, `maxTimeMS` is set to the rest of
//!   this limit. Seawall splits a wait for data into slices. In the request for one slice,
//!   `maxTimeMS` is set to the length of the slice.
//! - `$readPreference` is added, if Seawall is directly connected to a member of a replica set and
//!   the command has none, except to writes and to commands in transactions.
//! - `responseTo` is set to 0.
//! - If the request has a checksum, the checksum is recomputed.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::limits::Heavy;
use seawall_command::{Command, MaxTime};
use seawall_transport::{
    LARGE_MESSAGE_BYTES, Message, Stream, connection::Connection, with_scratch,
};
use seawall_wire::{
    Compressor, EXHAUST_ALLOWED, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MORE_TO_COME, OpMsg,
    checksum, deflate, kind,
};

/// Number of pieces of an edited request, without its checksum. Some of the pieces may be empty.
const MAX_PIECES: usize = 11;

/// A request of at most this length is copied into the scratch buffer, unless its command carries
/// credentials. Writing one buffer costs the kernel less time than writing several pieces.
const COPIED_BYTES: usize = 4 * 1024;

/// Size of an element `maxTimeMS` of type int32: type, name, value.
const MAX_TIME_ELEMENT_BYTES: usize = 1 + 10 + 4;

/// The element `$readPreference: { mode: "primaryPreferred" }`.
const PRIMARY_PREFERRED_ELEMENT: &[u8] =
    b"\x03$readPreference\0\x20\0\0\0\x02mode\0\x11\0\0\0primaryPreferred\0\0";

/// The edits of a request that depend on its client and its server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edits<'m> {
    /// The element `$client`. It is added if the command has no `$client`, and the command and the
    /// message have room for it.
    pub(super) client: Option<&'m [u8]>,
    /// The new value of `maxTimeMS`. If the command has no `maxTimeMS`, the element is added. If
    /// this is `None`, `maxTimeMS` does not change.
    pub(super) max_time_ms: Option<u64>,
    /// True if the read preference `primaryPreferred` is added.
    pub(super) adds_read_preference: bool,
}

impl<'m> Edits<'m> {
    /// Returns the elements `$readPreference` and `$client` to add; each is empty if it is not
    /// added.
    ///
    /// An element is omitted if the command or the whole message would exceed its maximum size with
    /// it. After a message that is too long, a server closes the connection, which would look like
    /// a failure of the server.
    fn elements(&self, command: &Command<'m>, message: &Message) -> (&'static [u8], &'m [u8]) {
        let max_time_bytes = self.max_time_ms.map_or(0, |_| MAX_TIME_ELEMENT_BYTES);
        let has_room_for = |added: usize| {
            let message_bytes = message.header.message_length + max_time_bytes + added;
            command.has_room_for(added) && message_bytes <= MAX_MESSAGE_BYTES
        };
        let read_preference = match self.adds_read_preference {
            true if has_room_for(PRIMARY_PREFERRED_ELEMENT.len()) => PRIMARY_PREFERRED_ELEMENT,
            _ => &[],
        };
        let client = self.client.filter(|_| !command.has_client);
        let client = client.filter(|client| has_room_for(read_preference.len() + client.len()));
        (read_preference, client.unwrap_or_default())
    }
}

/// A request as it is sent to a server: pieces of the client's message, borrowed, and the edits
/// between them.
pub(super) struct Outgoing<'m> {
    /// The header and the flags.
    head: [u8; HEADER_BYTES + 4],
    body_length: [u8; 4],
    /// The new value of the client's `maxTimeMS`. Only its first `layout.max_time_bytes` bytes are
    /// used.
    max_time: [u8; 8],
    /// An element `maxTimeMS` to add, if the command has none and needs one.
    added_max_time: Option<[u8; MAX_TIME_ELEMENT_BYTES]>,
    checksum: Option<[u8; 4]>,
    /// False for streamed requests, because their ends have not arrived yet. Also false for
    /// commands that carry credentials, because the compression specification forbids the
    /// compression of these commands.
    may_be_compressed: bool,
    /// False for commands that carry credentials, so that no copy of them stays in the scratch
    /// buffer.
    may_be_copied: bool,
    /// True if `$client` was omitted, because the command or the whole message would have exceeded
    /// its maximum size.
    omits_client: bool,
    layout: Layout<'m>,
}

/// Compresses a message. If the compression fails, or if the compressed message would be too long
/// for the protocol, returns the message uncompressed, which the protocol always allows.
pub(super) async fn pack(plain: Vec<u8>, compressor: Compressor, heavy: Heavy<'_>) -> Vec<u8> {
    let plain_bytes = plain.len();
    let pack = move || match deflate(&plain, compressor) {
        Ok(packed) if packed.len() <= MAX_MESSAGE_BYTES => packed,
        Ok(_) => plain,
        Err(error) => {
            tracing::debug!(%error, "could not compress a message");
            plain
        }
    };
    heavy.run(plain_bytes, pack).await
}

/// The parts of the client's message between the edits.
struct Layout<'m> {
    /// The bytes between the flags and the body.
    before_body: &'m [u8],
    /// The body after its length, up to the value of `maxTimeMS` or to the closing NUL.
    body_front: &'m [u8],
    /// Size in bytes of the value of `maxTimeMS` that is replaced; 0 if none is replaced.
    max_time_bytes: usize,
    /// The body between the replaced value and the closing NUL.
    body_back: &'m [u8],
    /// The element `$client` to add; empty if none is added.
    client: &'m [u8],
    /// The element `$readPreference` to add; empty if none is added.
    read_preference: &'static [u8],
    /// The sections after the body, without the checksum.
    after_body: &'m [u8],
}

impl<'m> Outgoing<'m> {
    /// Prepares a request.
    pub(super) fn new(
        message: &'m Message,
        parsed: &OpMsg<'m>,
        command: &Command<'m>,
        edits: Edits<'m>,
    ) -> Self {
        let max_time_ms = edits.max_time_ms;
        let (read_preference, client) = edits.elements(command, message);
        let omits_client = edits.client.is_some() && !command.has_client && client.is_empty();
        let body_end = parsed.body_offset + parsed.body.len();
        let bytes = message.bytes.as_slice();
        let end = bytes.len() - if parsed.has_checksum() { 4 } else { 0 };
        let part = |from: usize, to: usize| bytes.get(from..to).unwrap_or_default();
        let inside = |from: usize, to: usize| parsed.body.get(from..to).unwrap_or_default();
        let last = parsed.body.len() - 1;
        let (split, max_time, max_time_bytes) = match (command.max_time, max_time_ms) {
            (Some(old), Some(left)) => max_time_bytes(old, left),
            (_, None) | (None, Some(_)) => (last, [0; 8], 0),
        };
        let added_max_time = match (command.max_time, max_time_ms) {
            (None, Some(left)) => Some(max_time_element(left)),
            (_, None) | (Some(_), Some(_)) => None,
        };
        let added = client.len()
            + read_preference.len()
            + added_max_time.map_or(0, |element| element.len());
        let layout = Layout {
            before_body: part(HEADER_BYTES + 4, parsed.body_offset),
            body_front: inside(4, split),
            max_time_bytes,
            body_back: inside(split + max_time_bytes, last),
            client,
            read_preference,
            after_body: part(body_end, end),
        };
        let header = Header {
            message_length: message.header.message_length + added,
            // If `responseTo` is not 0, a mongod mistakes the first request on a connection for a
            // TLS handshake.
            response_to: 0,
            ..message.header
        };
        let flags = parsed.flags & !(MORE_TO_COME | EXHAUST_ALLOWED);
        let mut head = [0; HEADER_BYTES + 4];
        let (front, back) = head.split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&header.to_bytes());
        back.copy_from_slice(&flags.to_le_bytes());
        let body_length = i32::try_from(parsed.body.len() + added).unwrap_or(i32::MAX);
        let body_length = body_length.to_le_bytes();
        let mut outgoing = Self {
            head,
            body_length,
            max_time,
            added_max_time,
            checksum: None,
            // A streamed request cannot be compressed, because its end has not arrived yet.
            may_be_compressed: !message.is_head() && command.spec.may_be_compressed,
            may_be_copied: command.spec.may_be_compressed,
            omits_client,
            layout,
        };
        if parsed.has_checksum() {
            let sum = checksum(outgoing.pieces());
            outgoing.checksum = Some(sum.to_le_bytes());
        }
        outgoing
    }

    fn pieces(&self) -> [&[u8]; MAX_PIECES] {
        let Layout {
            before_body,
            body_front,
            max_time_bytes,
            body_back,
            client,
            read_preference,
            after_body,
        } = self.layout;
        [
            &self.head,
            before_body,
            &self.body_length,
            body_front,
            self.max_time.get(..max_time_bytes).unwrap_or_default(),
            body_back,
            client,
            read_preference,
            self.added_max_time.as_ref().map_or(&[][..], |e| &e[..]),
            // The body's closing NUL comes after the added elements.
            NUL,
            after_body,
        ]
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.pieces().concat();
        bytes.extend(self.checksum.iter().flatten());
        bytes
    }

    /// True if `$client` was omitted, because the command or the whole message would have exceeded
    /// its maximum size.
    pub(super) fn omits_client(&self) -> bool {
        self.omits_client
    }

    /// The size of the uncompressed request, in bytes.
    pub(super) fn len(&self) -> usize {
        let checksum_bytes = self.checksum.map_or(0, |c| c.len());
        self.pieces().iter().map(|piece| piece.len()).sum::<usize>() + checksum_bytes
    }

    /// The memory in bytes for the copies that a compression of this request needs. 0 if the
    /// request is small, or if this connection does not compress it.
    pub(super) fn copied_bytes(&self, connection: &Connection) -> usize {
        let is_compressed = connection.compressor.is_some() && self.may_be_compressed;
        match is_compressed && self.len() > LARGE_MESSAGE_BYTES {
            true => 2 * self.len(),
            false => 0,
        }
    }

    /// Makes [`Self::write`] send the request uncompressed.
    pub(super) fn forbid_compression(&mut self) {
        self.may_be_compressed = false;
    }

    /// Writes the whole request, compressed if the connection allows it.
    pub(super) async fn write(
        &self,
        connection: &mut Connection,
        heavy: Heavy<'_>,
    ) -> io::Result<()> {
        let compressor = connection.compressor.filter(|_| self.may_be_compressed);
        let stream = &mut connection.stream;
        // The futures of rare cases are boxed, so that the future of an operation stays small.
        if let Some(compressor) = compressor {
            return Box::pin(self.write_compressed(stream, compressor, heavy)).await;
        }
        let length = self.len();
        let written = match length > COPIED_BYTES || !self.may_be_copied {
            true => 0,
            false => poll_fn(|cx| self.poll_write_copy(cx, stream)).await?,
        };
        if written < length {
            Box::pin(self.write_pieces(stream, written, length)).await?;
        }
        if stream.is_encrypted() {
            poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await?;
        }
        Ok(())
    }

    async fn write_compressed(
        &self,
        stream: &mut Stream,
        compressor: Compressor,
        heavy: Heavy<'_>,
    ) -> io::Result<()> {
        let plain = heavy.walk(self.len(), || self.to_bytes()).await;
        let packed = pack(plain, compressor, heavy).await;
        stream.write_all(&packed).await?;
        stream.flush().await
    }

    /// Copies the request into the thread's scratch buffer and writes it. Ready with the number of
    /// bytes written.
    fn poll_write_copy(
        &self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
    ) -> Poll<io::Result<usize>> {
        with_scratch(|scratch| {
            let mut length = 0;
            let checksum = self.checksum.as_ref().map_or(&[][..], |c| &c[..]);
            for piece in self.pieces().iter().copied().chain([checksum]) {
                // Most requests have only some of the pieces.
                if piece.is_empty() {
                    continue;
                }
                let end = length + piece.len();
                let Some(target) = scratch.get_mut(length..end) else {
                    return Poll::Ready(Err(io::ErrorKind::StorageFull.into()));
                };
                target.copy_from_slice(piece);
                length = end;
            }
            Pin::new(stream).poll_write(cx, scratch.get(..length).unwrap_or_default())
        })
    }

    /// Writes the rest of the request from the pieces, without copying them. The request has
    /// `length` bytes; the first `written` bytes have already been written.
    async fn write_pieces(
        &self,
        stream: &mut Stream,
        mut written: usize,
        length: usize,
    ) -> io::Result<()> {
        while written < length {
            let step = poll_fn(|cx| self.poll_write(cx, stream, written)).await?;
            if step == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += step;
        }
        Ok(())
    }

    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        skip: usize,
    ) -> Poll<io::Result<usize>> {
        let mut skip = skip;
        let mut slices = [IoSlice::new(&[]); MAX_PIECES + 1];
        let mut count = 0;
        let checksum = self.checksum.as_ref().map_or(&[][..], |c| &c[..]);
        for piece in self.pieces().into_iter().chain([checksum]) {
            let rest = piece.get(skip.min(piece.len())..).unwrap_or_default();
            skip -= piece.len() - rest.len();
            if let (false, Some(slice)) = (rest.is_empty(), slices.get_mut(count)) {
                *slice = IoSlice::new(rest);
                count += 1;
            }
        }
        let slices = slices.get(..count).unwrap_or_default();
        Pin::new(stream).poll_write_vectored(cx, slices)
    }
}

const NUL: &[u8] = &[0];

/// Builds an element `maxTimeMS` of type int32.
fn max_time_element(milliseconds: u64) -> [u8; MAX_TIME_ELEMENT_BYTES] {
    let mut element = *b"\x10maxTimeMS\0....";
    let milliseconds = i32::try_from(milliseconds).unwrap_or(i32::MAX);
    let (_, value) = element.split_at_mut(MAX_TIME_ELEMENT_BYTES - 4);
    value.copy_from_slice(&milliseconds.to_le_bytes());
    element
}

/// Encodes a new value for `maxTimeMS` in the BSON type of the client's value. Returns the value's
/// offset in the body, the bytes, and their number.
fn max_time_bytes(old: MaxTime, left_ms: u64) -> (usize, [u8; 8], usize) {
    let mut bytes = [0; 8];
    let left = u32::try_from(left_ms)
        .unwrap_or(u32::MAX)
        .min(i32::MAX.unsigned_abs());
    let length = match old.bson_type {
        kind::INT32 => {
            let (front, _) = bytes.split_at_mut(4);
            front.copy_from_slice(&left.to_le_bytes());
            4
        }
        kind::DOUBLE => {
            bytes = f64::from(left).to_le_bytes();
            8
        }
        _ => {
            bytes = u64::from(left).to_le_bytes();
            8
        }
    };
    (old.offset, bytes, length)
}

#[cfg(test)]
mod tests;
