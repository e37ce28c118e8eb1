//! Base64 of SCRAM keys: only the standard alphabet, with padding (RFC 4648, section 4).

/// The text is not base64, or not of the required length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Base64Error {
    /// A character outside the alphabet. It is not shown, because it may be part of a secret.
    #[error("not base64: invalid character at index {index}")]
    NotInAlphabet {
        /// Index of the character, from 0.
        index: usize,
    },
    /// The text is incomplete, or its padding or last bits are wrong.
    #[error("not base64: incomplete or wrongly padded")]
    BadEnd,
    /// The decoded length is wrong.
    #[error("base64 of {found} bytes instead of {wanted}")]
    WrongLength {
        /// Number of decoded bytes.
        found: usize,
        /// Required number of bytes.
        wanted: usize,
    },
}

/// Decodes `text`. Each byte string has exactly one accepted text.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, Base64Error> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let mut bytes = Vec::with_capacity(digits.len());
    let mut bits: u16 = 0;
    let mut bit_count = 0;
    for (index, character) in digits.bytes().enumerate() {
        let digit = digit(character).ok_or(Base64Error::NotInAlphabet { index })?;
        // Fewer than 8 bits remain from earlier digits, so 6 more always fit.
        bits = bits << 6 | u16::from(digit);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            let [_, byte] = (bits >> bit_count).to_be_bytes();
            bytes.push(byte);
            bits &= (1 << bit_count) - 1;
        }
    }
    let wanted_padding = match bit_count {
        0 => 0,
        2 => 1,
        4 => 2,
        _ => return Err(Base64Error::BadEnd),
    };
    // Unused bits must be 0; otherwise two texts would encode the same bytes.
    if padding != wanted_padding || bits != 0 {
        return Err(Base64Error::BadEnd);
    }
    Ok(bytes)
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character - b'A'),
        b'a'..=b'z' => Some(character - b'a' + 26),
        b'0'..=b'9' => Some(character - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648_decode() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).unwrap(), bytes.as_bytes(), "{text}");
        }
        assert_eq!(decode("+/+/").unwrap(), [0xfb, 0xff, 0xbf]);
    }

    #[test]
    fn invalid_base64_is_refused() {
        for (text, error) in [
            ("Zg", Base64Error::BadEnd),
            ("Zg=", Base64Error::BadEnd),
            ("Zg===", Base64Error::BadEnd),
            ("Z", Base64Error::BadEnd),
            ("Zm9v=", Base64Error::BadEnd),
            ("====", Base64Error::BadEnd),
            ("Zh==", Base64Error::BadEnd),
            ("Zm9-", Base64Error::NotInAlphabet { index: 3 }),
            ("Zg==Zg==", Base64Error::NotInAlphabet { index: 2 }),
            ("Zm 9v", Base64Error::NotInAlphabet { index: 2 }),
        ] {
            assert_eq!(decode(text).unwrap_err(), error, "{text}");
        }
    }
}
