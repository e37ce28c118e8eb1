//! The facts of a reply: a few values that a capture always records, even if it does not record the
//! whole reply. They are needed to compare the results in a capture with the results of a replay of
//! this capture.

use seawall_command::ReplyFacts;

use crate::record::Facts;

impl From<&ReplyFacts> for Facts {
    fn from(facts: &ReplyFacts) -> Self {
        let first_code = facts.write_error_codes.iter().next();
        Self {
            ok: facts.ok == Some(true),
            code: facts.error_code().unwrap_or_default(),
            cursor_id: facts.cursor_id.unwrap_or_default(),
            documents: facts.documents(),
            write_errors: facts.write_errors,
            write_error_code: first_code.map_or(0, |(code, _)| code),
            write_concern_code: facts.write_concern_code.unwrap_or_default(),
        }
    }
}
