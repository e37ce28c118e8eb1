//! The header: the first 16 bytes of every message.

use std::ops::RangeInclusive;

/// Size of a header, in bytes.
pub const HEADER_BYTES: usize = 16;

/// The type of a message, by its `opCode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpCode {
    /// `OP_REPLY` (1): the reply to `OP_QUERY`.
    Reply,
    /// `OP_QUERY` (2004): most drivers still send their first message in this form.
    Query,
    /// `OP_COMPRESSED` (2012): contains another message in compressed form.
    Compressed,
    /// `OP_MSG` (2013): all other commands and replies.
    Msg,
    /// Any other number: a legacy opcode of old servers, or an unknown opcode.
    Other(i32),
}

impl OpCode {
    /// The opcode's number on the wire.
    pub fn as_i32(self) -> i32 {
        match self {
            Self::Reply => 1,
            Self::Query => 2004,
            Self::Compressed => 2012,
            Self::Msg => 2013,
            Self::Other(code) => code,
        }
    }
}

impl From<i32> for OpCode {
    fn from(code: i32) -> Self {
        match code {
            1 => Self::Reply,
            2004 => Self::Query,
            2012 => Self::Compressed,
            2013 => Self::Msg,
            other => Self::Other(other),
        }
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Size of the message in bytes, including this header.
    pub message_length: usize,
    /// The sender's number for this message. It can have any value, even a negative value.
    pub request_id: i32,
    /// The `request_id` that this message replies to; 0 in a request.
    pub response_to: i32,
    /// The type of the message.
    pub op_code: OpCode,
}

/// The reason why a header is invalid. Like a server, the caller closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// `messageLength` is shorter than a header, or over the maximum.
    #[error("message length of {length} bytes is out of range ({min} to {max})")]
    LengthOutOfRange {
        /// The length that the header declares, in bytes.
        length: i32,
        /// The minimum length, in bytes.
        min: usize,
        /// The maximum length that the caller allows, in bytes.
        max: usize,
    },
}

impl Header {
    /// Parses a header. The message length in the header must not exceed `max_message_bytes`.
    ///
    /// # Errors
    /// [`FrameError::LengthOutOfRange`] if the declared length is below 16 or over the maximum.
    pub fn parse(bytes: &[u8; HEADER_BYTES], max_message_bytes: usize) -> Result<Self, FrameError> {
        let [
            l0,
            l1,
            l2,
            l3,
            q0,
            q1,
            q2,
            q3,
            r0,
            r1,
            r2,
            r3,
            o0,
            o1,
            o2,
            o3,
        ] = *bytes;
        let length = i32::from_le_bytes([l0, l1, l2, l3]);
        let allowed: RangeInclusive<usize> = HEADER_BYTES..=max_message_bytes;
        let message_length = usize::try_from(length)
            .ok()
            .filter(|n| allowed.contains(n))
            .ok_or(FrameError::LengthOutOfRange {
                length,
                min: HEADER_BYTES,
                max: max_message_bytes,
            })?;
        Ok(Self {
            message_length,
            request_id: i32::from_le_bytes([q0, q1, q2, q3]),
            response_to: i32::from_le_bytes([r0, r1, r2, r3]),
            op_code: OpCode::from(i32::from_le_bytes([o0, o1, o2, o3])),
        })
    }

    /// The header in its wire format.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let length = i32::try_from(self.message_length).unwrap_or(i32::MAX);
        let mut bytes = [0; HEADER_BYTES];
        let fields = [
            length,
            self.request_id,
            self.response_to,
            self.op_code.as_i32(),
        ];
        for (target, field) in bytes.chunks_exact_mut(4).zip(fields) {
            target.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_length(length: i32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[12..].copy_from_slice(&2013i32.to_le_bytes());
        bytes
    }

    #[test]
    fn headers_with_a_length_outside_the_limits_are_refused() {
        for length in [15, 0, -1, i32::MIN, 48_000_001, i32::MAX] {
            let error = Header::parse(&with_length(length), 48_000_000).unwrap_err();
            assert_eq!(
                error,
                FrameError::LengthOutOfRange {
                    length,
                    min: 16,
                    max: 48_000_000
                }
            );
        }
        for length in [16, 48_000_000] {
            assert!(
                Header::parse(&with_length(length), 48_000_000).is_ok(),
                "{length}"
            );
        }
        assert!(Header::parse(&with_length(16_385), 16_384).is_err());
    }

    #[test]
    fn a_header_is_equal_after_encoding_and_parsing() {
        for op_code in [1, 2004, 2012, 2013, 9999] {
            let header = Header {
                message_length: 77,
                request_id: -5,
                response_to: i32::MAX,
                op_code: OpCode::from(op_code),
            };
            assert_eq!(Header::parse(&header.to_bytes(), 100), Ok(header));
        }
    }
}
