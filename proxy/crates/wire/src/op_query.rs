//! `OP_QUERY`: the legacy form in which most drivers still send their first `hello`.

use super::{bson::document_at, header::HEADER_BYTES};

/// A parsed `OP_QUERY`. It borrows the message's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpQuery<'a> {
    /// The full namespace, `db.collection`, without its NUL.
    pub namespace: &'a [u8],
    /// The query, or the command if the collection is `$cmd`.
    pub query: &'a [u8],
}

impl<'a> OpQuery<'a> {
    /// Parses a whole message, including its header. Returns `None` if the message is malformed. A
    /// server closes the connection after a malformed `OP_QUERY`.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let rest = message.get(HEADER_BYTES + 4..)?;
        let nul = rest.iter().position(|&b| b == 0)?;
        let (namespace, rest) = rest.split_at_checked(nul)?;
        let query = document_at(rest.get(1 + 8..)?).ok()?;
        Some(Self { namespace, query })
    }

    /// The database of a command; `None` for a query of a collection.
    pub fn command_database(&self) -> Option<&'a [u8]> {
        self.namespace.strip_suffix(b".$cmd")
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn database_and_document_of_an_op_query_command_are_parsed() {
        let query = doc! {"isMaster": 1}.to_vec().unwrap();
        let message = [
            &[0u8; 20][..],
            b"admin.$cmd\0",
            &[0; 4],
            &(-1i32).to_le_bytes(),
            &query,
        ]
        .concat();
        let parsed = OpQuery::parse(&message).unwrap();
        assert_eq!(parsed.command_database(), Some(&b"admin"[..]));
        assert_eq!(parsed.query, query);
        for cut in 0..message.len() {
            assert_eq!(OpQuery::parse(&message[..cut]), None);
        }
    }
}
