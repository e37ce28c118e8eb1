//! Reads the packets of a file of mongod's traffic recorder.

use std::io::{self, Read};

use bytes::Bytes;
use seawall_wire::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES};

use super::{Layout, MAX_HEAD_BYTES, MAX_PACKET_BYTES, MAX_SESSION, Packet, PacketEvent};
use crate::reader::fill;

/// The reason why a file of mongod's traffic recorder cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// Reading from the source failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is empty, or its first packet has none of the known layouts.
    #[error("not a file of mongod's traffic recorder, or a file with an unknown layout")]
    UnknownLayout,
    /// The file ends within a packet.
    #[error("the file was cut off at byte {at_byte}")]
    Truncated {
        /// Offset of the incomplete packet, in bytes.
        at_byte: u64,
    },
    /// A packet does not fit the layout of the file.
    #[error("damaged packet at byte {at_byte}: {problem}")]
    Damaged {
        /// Offset of the packet, in bytes.
        at_byte: u64,
        /// The reason why the bytes are invalid.
        problem: &'static str,
    },
}

/// Reads the packets of one file. Memory use is limited to one packet.
#[derive(Debug)]
pub struct RecorderReader<R> {
    source: R,
    layout: Layout,
    /// The first packet, until it is returned.
    first: Option<Packet>,
    /// Offset of the next packet in bytes.
    at: u64,
}

impl<R: Read> RecorderReader<R> {
    /// Opens a file and finds its layout.
    ///
    /// # Errors
    /// If the source fails, or if it does not begin with a packet of a known layout.
    pub fn new(mut source: R) -> Result<Self, RecorderError> {
        let Ok(Some(first)) = read_packet(&mut source, 0)? else {
            return Err(RecorderError::UnknownLayout);
        };
        let fitting = Layout::ALL.into_iter().find_map(|layout| {
            let packet = parse(layout, first.clone()).ok()?;
            Some((layout, packet))
        });
        let (layout, packet) = fitting.ok_or(RecorderError::UnknownLayout)?;
        Ok(Self {
            source,
            layout,
            first: Some(packet),
            at: packet_bytes(&first),
        })
    }

    /// The layout of the file.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Reads the next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// If the source fails, or if the file is damaged or was cut off. Packets returned before the
    /// error are valid.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, RecorderError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let damaged = |problem| RecorderError::Damaged {
            at_byte: self.at,
            problem,
        };
        let Some(bytes) = read_packet(&mut self.source, self.at)?.map_err(damaged)? else {
            return Ok(None);
        };
        let length = packet_bytes(&bytes);
        let packet = parse(self.layout, bytes).map_err(damaged)?;
        self.at += length;
        Ok(Some(packet))
    }
}

/// The size of a packet in bytes, with its size field. `bytes` is the packet without this field.
fn packet_bytes(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len() + SIZE_BYTES).unwrap_or(u64::MAX)
}

/// Reads the next packet, and returns its bytes without the size field; `None` at the end of the
/// source. The inner error says why the size of the packet is invalid.
fn read_packet(
    source: &mut impl Read,
    at_byte: u64,
) -> Result<Result<Option<Bytes>, &'static str>, RecorderError> {
    let mut size = [0; SIZE_BYTES];
    match fill(source, &mut size)? {
        0 => return Ok(Ok(None)),
        SIZE_BYTES => {}
        _ => return Err(RecorderError::Truncated { at_byte }),
    }
    let size = usize::try_from(u32::from_le_bytes(size)).unwrap_or(usize::MAX);
    if size > MAX_PACKET_BYTES {
        return Ok(Err("the packet exceeds the size limit"));
    }
    let Some(length) = size.checked_sub(SIZE_BYTES) else {
        return Ok(Err("the declared size of the packet is too small"));
    };
    let mut bytes = Vec::new();
    let limit = u64::try_from(length).unwrap_or(u64::MAX);
    source.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(RecorderError::Truncated { at_byte });
    }
    Ok(Ok(Some(bytes.into())))
}

/// Parses the bytes of a packet without its size field.
fn parse(layout: Layout, packet: Bytes) -> Result<Packet, &'static str> {
    let mut rest = packet;
    let event = match layout {
        Layout::Events => Some(take::<1>(&mut rest)?),
        Layout::Addresses | Layout::Sessions => None,
    };
    let session = u64::from_le_bytes(take(&mut rest)?);
    if session >= MAX_SESSION {
        return Err("the session number is too large");
    }
    let local = take_text(&mut rest)?;
    let remote = match layout {
        Layout::Addresses => take_text(&mut rest)?,
        Layout::Sessions | Layout::Events => String::new(),
    };
    if local.is_empty() {
        return Err("the address of the session is empty");
    }
    let time = u64::from_le_bytes(take(&mut rest)?);
    let at_us = match layout.has_dates() {
        true => time.checked_mul(1000).ok_or("the date is too large")?,
        false => time,
    };
    let order = u64::from_le_bytes(take(&mut rest)?);
    let event = match event {
        None | Some([0]) if !rest.is_empty() => PacketEvent::Message,
        // In the layout `Sessions`, a packet does not say what happened. A packet without a message
        // is the first or the last packet of its session. `Import` finds out which of the two it
        // is.
        None if layout == Layout::Sessions => PacketEvent::SessionBegan,
        Some([1]) if rest.is_empty() => PacketEvent::SessionBegan,
        Some([2]) if rest.is_empty() => PacketEvent::SessionEnded,
        _ => return Err("the event is unknown or does not fit the message"),
    };
    if event == PacketEvent::Message {
        check_message(&rest)?;
    }
    Ok(Packet {
        event,
        session,
        local,
        remote,
        at_us,
        order,
        message: rest,
    })
}

fn check_message(message: &[u8]) -> Result<(), &'static str> {
    let header = message.first_chunk::<HEADER_BYTES>();
    let header = header.and_then(|header| Header::parse(header, MAX_MESSAGE_BYTES).ok());
    match header {
        Some(header) if header.message_length == message.len() => Ok(()),
        _ => Err("the message header is invalid or does not match the packet size"),
    }
}

/// Removes the first `N` bytes from `rest` and returns them.
fn take<const N: usize>(rest: &mut Bytes) -> Result<[u8; N], &'static str> {
    let taken = *rest
        .first_chunk::<N>()
        .ok_or("the fields before the message are incomplete")?;
    *rest = rest.slice(N..);
    Ok(taken)
}

/// Removes a text and the NUL after it from the beginning of `rest`, and returns the text.
fn take_text(rest: &mut Bytes) -> Result<String, &'static str> {
    let mut bytes = rest.iter().take(MAX_HEAD_BYTES);
    let length = bytes.position(|&byte| byte == 0);
    let length = length.ok_or("an address has no NUL at its end or is too long")?;
    let text = String::from_utf8(rest.slice(..length).into());
    *rest = rest.slice(length + 1..);
    text.map_err(|_| "an address is not UTF-8")
}

/// Number of bytes of the field that contains the packet's size.
const SIZE_BYTES: usize = 4;
