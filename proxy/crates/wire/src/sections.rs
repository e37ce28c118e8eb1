//! Parses the sections of a streamed message, which is forwarded before its end has arrived.
//!
//! A message that is read whole is checked before its first byte is forwarded. For a streamed
//! message, only the head is checked before forwarding begins. The remaining bytes are checked
//! while they are forwarded. So an invalid message never reaches a server completely. If a server
//! closes its connection because of an invalid message, the server does not count as failed.

use super::op_msg::{MAX_SEQUENCES, MessageError};

/// Length in bytes of a sequence's size field, which precedes the identifier.
const SIZE_BYTES: usize = 4;

/// Maximum length of a sequence's identifier, in bytes. Servers know only a few short identifiers.
const MAX_IDENTIFIER_BYTES: usize = 256;

/// Counts documents that follow one another without gaps. The input may be split at any byte.
#[derive(Debug, Default)]
pub struct DocumentWalk {
    /// The next document's size field. Only its first `size_bytes` bytes have arrived.
    size: [u8; SIZE_BYTES],
    size_bytes: usize,
    /// Number of bytes of the current document that have not arrived.
    inside: usize,
    count: u64,
    /// True after an invalid size field. The documents after that field are not counted.
    is_lost: bool,
}

impl DocumentWalk {
    /// Counts the documents in the next bytes.
    pub fn feed(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let (Some((&first, behind)), false) = (rest.split_first(), self.is_lost) {
            if self.inside > 0 {
                let passed = self.inside.min(rest.len());
                self.inside -= passed;
                rest = rest.get(passed..).unwrap_or_default();
                continue;
            }
            if let Some(byte) = self.size.get_mut(self.size_bytes) {
                *byte = first;
            }
            self.size_bytes += 1;
            rest = behind;
            if self.size_bytes == SIZE_BYTES {
                self.begin();
            }
        }
    }

    fn begin(&mut self) {
        let size = usize::try_from(i32::from_le_bytes(self.size)).unwrap_or(0);
        self.size_bytes = 0;
        self.is_lost = size <= SIZE_BYTES;
        if !self.is_lost {
            self.inside = size - SIZE_BYTES;
            self.count += 1;
        }
    }

    /// Number of documents whose size field has arrived and is valid.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Parses the sections after the body of an `OP_MSG`. The input may be split at any byte.
#[derive(Debug)]
pub struct SectionWalk {
    /// Number of bytes of the message that have not arrived.
    left: usize,
    /// Number of bytes of the current sequence's documents that have not arrived.
    inside: usize,
    /// The beginning of a section whose identifier has not arrived completely. Empty while the
    /// documents of a section arrive.
    head: Vec<u8>,
    identifiers: Vec<Vec<u8>>,
    /// The identifier of the sequence whose documents are counted; `None` if none are counted.
    counted: Option<&'static str>,
    documents: DocumentWalk,
}

impl SectionWalk {
    /// Creates a parser that begins after the body. `left` is the number of bytes between the body
    /// and the end of the message. `counted` is the identifier of the sequence whose documents the
    /// parser counts; with `None`, it counts no documents.
    pub fn new(left: usize, counted: Option<&'static str>) -> Self {
        Self {
            left,
            inside: 0,
            head: Vec::new(),
            identifiers: Vec::new(),
            counted,
            documents: DocumentWalk::default(),
        }
    }

    /// Parses the next bytes of the message. The caller must not pass more bytes than the rest of
    /// the message has.
    ///
    /// # Errors
    /// Usually the same error that [`super::OpMsg::parse`] returns for the whole message.
    /// [`MessageError::SequenceSize`] if an identifier is longer than 256 bytes, or if the piece is
    /// longer than the rest of the message.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), MessageError> {
        if piece.len() > self.left {
            return Err(MessageError::SequenceSize);
        }
        let mut rest = piece;
        while let Some((&first, behind)) = rest.split_first() {
            if self.inside > 0 {
                let (passed, behind) = rest.split_at(self.inside.min(rest.len()));
                self.inside -= passed.len();
                self.left -= passed.len();
                if self.is_counted() {
                    self.documents.feed(passed);
                }
                rest = behind;
                continue;
            }
            self.head.push(first);
            self.left -= 1;
            rest = behind;
            self.parse_head()?;
        }
        let is_cut = self.left == 0 && !self.head.is_empty();
        if is_cut {
            return Err(MessageError::SequenceSize);
        }
        Ok(())
    }

    fn is_counted(&self) -> bool {
        let current = self.identifiers.last();
        current.is_some_and(|name| self.counted.map(str::as_bytes) == Some(name))
    }

    /// Number of documents in the counted sequence. A document counts as soon as its size field has
    /// arrived and is valid.
    pub fn documents(&self) -> u64 {
        self.documents.count()
    }

    fn parse_head(&mut self) -> Result<(), MessageError> {
        let Some((&kind, sequence)) = self.head.split_first() else {
            return Ok(());
        };
        match kind {
            1 => {}
            0 => return Err(MessageError::TwoBodies),
            2 => return Err(MessageError::SecurityToken),
            other => return Err(MessageError::UnknownSection(other)),
        }
        let Some((size, identifier)) = sequence.split_first_chunk::<SIZE_BYTES>() else {
            return Ok(());
        };
        let Some((&0, identifier)) = identifier.split_last() else {
            if identifier.len() > MAX_IDENTIFIER_BYTES {
                return Err(MessageError::SequenceSize);
            }
            return Ok(());
        };
        let size = usize::try_from(i32::from_le_bytes(*size)).ok();
        let inside = size.and_then(|size| size.checked_sub(sequence.len()));
        self.inside = inside
            .filter(|inside| *inside <= self.left)
            .ok_or(MessageError::SequenceSize)?;
        let identifier = identifier.to_vec();
        if self.identifiers.contains(&identifier) {
            return Err(MessageError::DuplicateSequence);
        }
        if self.identifiers.len() == MAX_SEQUENCES {
            return Err(MessageError::TooManySequences);
        }
        self.identifiers.push(identifier);
        self.head.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(identifier: &str, documents: usize) -> Vec<u8> {
        let size = i32::try_from(SIZE_BYTES + identifier.len() + 1 + documents).unwrap();
        let head = [&[1][..], &size.to_le_bytes(), identifier.as_bytes(), &[0]].concat();
        [head, vec![7; documents]].concat()
    }

    fn walk(sections: &[u8], piece: usize) -> Result<(), MessageError> {
        let mut walk = SectionWalk::new(sections.len(), None);
        sections.chunks(piece).try_for_each(|part| walk.feed(part))
    }

    #[test]
    fn sections_are_parsed_for_any_split_of_the_bytes() {
        let good = [sequence("documents", 1000), sequence("b", 0)].concat();
        let cases = [
            (good.clone(), Ok(())),
            (sequence("a", 3), Ok(())),
            (sequence(&"x".repeat(MAX_IDENTIFIER_BYTES), 3), Ok(())),
            (
                sequence(&"x".repeat(MAX_IDENTIFIER_BYTES + 1), 3),
                Err(MessageError::SequenceSize),
            ),
            (
                [sequence("a", 3), sequence("a", 3)].concat(),
                Err(MessageError::DuplicateSequence),
            ),
            (
                [good.clone(), sequence("c", 0)].concat(),
                Err(MessageError::TooManySequences),
            ),
            (
                [sequence("a", 3), vec![0, 5]].concat(),
                Err(MessageError::TwoBodies),
            ),
            (
                [sequence("a", 3), vec![2]].concat(),
                Err(MessageError::SecurityToken),
            ),
            (
                [sequence("a", 3), vec![9]].concat(),
                Err(MessageError::UnknownSection(9)),
            ),
            (
                good[..good.len() - 1].to_vec(),
                Err(MessageError::SequenceSize),
            ),
            (
                [good, vec![1, 9, 0]].concat(),
                Err(MessageError::SequenceSize),
            ),
            (
                vec![1, 2, 0, 0, 0, b'a', 0],
                Err(MessageError::SequenceSize),
            ),
            (
                [&[1; 5][..], &[b'x'; 300]].concat(),
                Err(MessageError::SequenceSize),
            ),
        ];
        for (sections, expected) in cases {
            for piece in [1, 2, 7, 100, 5000] {
                assert_eq!(walk(&sections, piece), expected, "{piece}");
            }
        }
    }

    #[test]
    fn bytes_after_the_end_of_the_message_are_refused() {
        let sections = sequence("a", 3);
        let mut walk = SectionWalk::new(sections.len(), None);
        assert_eq!(walk.feed(&sections), Ok(()));
        assert_eq!(walk.feed(&[]), Ok(()));
        assert_eq!(walk.feed(&sections), Err(MessageError::SequenceSize));
    }

    #[test]
    fn documents_of_the_section_with_the_given_identifier_are_counted_for_any_split_of_the_bytes() {
        let documents = |count: u8| {
            let sizes = (0..count).map(|n| 5 + usize::from(n));
            let document = |size: usize| {
                let head = i32::try_from(size).unwrap().to_le_bytes();
                [&head[..], &vec![0; size - SIZE_BYTES]].concat()
            };
            sizes.flat_map(document).collect::<Vec<u8>>()
        };
        let section = |identifier, documents: &[u8]| {
            let mut section = sequence(identifier, documents.len());
            let head = section.len() - documents.len();
            section.truncate(head);
            [section, documents.to_vec()].concat()
        };
        let broken = [documents(3), vec![4, 0, 0, 0], documents(9)].concat();
        let cases = [
            (section("updates", &documents(40)), 40),
            (section("updates", &[]), 0),
            (section("updates", &broken), 3),
            (
                [
                    section("a", &documents(9)),
                    section("updates", &documents(2)),
                ]
                .concat(),
                2,
            ),
        ];
        for (sections, expected) in cases {
            for piece in [1, 3, 5, 64, 5000] {
                let mut walk = SectionWalk::new(sections.len(), Some("updates"));
                let mut pieces = sections.chunks(piece);
                pieces.try_for_each(|part| walk.feed(part)).unwrap();
                assert_eq!(walk.documents(), expected, "{piece}");
            }
        }
    }
}
