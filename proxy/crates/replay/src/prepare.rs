//! Prepares the records of a capture for a replay: plans the commands, and rewrites them.
//!
//! This work does not depend on the target's replies, so a separate thread does it ahead of time.
//! Commands on cursors (`getMore` and `killCursors`) are exceptions: they contain captured cursor
//! ids, which the replay replaces by the ids that the target returned. So these commands are
//! rewritten later, when they are sent.

use bytes::Bytes;
use seawall_capture::record::{Command, Content, Facts, Reply};

use crate::{
    CursorUse, Decision, OperationId, Planned, Planner, Recent, Rewriter, SkipReason,
    plan::Origin,
    results::{Descriptions, ShapeResult},
};

/// The map `open` remembers at most twice this number of commands whose reply has not been read
/// from the capture yet (see [`Recent`]).
const MAX_OPEN: usize = 65_536;

/// A record that is ready for the replay.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// Seawall began to capture a client, which had connected at this moment or earlier.
    ClientBegan { at_us: u64 },
    /// A captured client disconnected.
    ClientEnded { client: u64 },
    /// A command to send.
    Command(Box<ToSend>),
    /// A command that is not sent.
    Skipped { at_us: u64, reason: SkipReason },
    /// An operation ended in the capture.
    CapturedEnd(CapturedEnd),
    /// The capture lacks this number of operations at this point.
    Omitted(u64),
}

/// A command to send.
#[derive(Debug)]
pub(crate) struct ToSend {
    pub operation: OperationId,
    pub client: u64,
    pub at_us: u64,
    pub planned: Planned,
    pub message: ToRewrite,
    /// The description of the shape; set only for the first command with that shape.
    pub description: Option<Box<ShapeResult>>,
}

/// A message that waits to be sent.
#[derive(Debug)]
pub(crate) enum ToRewrite {
    /// The rewritten message. Only its request id is missing.
    Done(Vec<u8>),
    /// The captured message. It contains ids of cursors, which are replaced when the message is
    /// sent.
    Cursors(Bytes),
}

/// The value in place of the code if an error reply has no code. A server sends no negative codes.
pub(crate) const ERROR_WITHOUT_CODE: i32 = -1;

/// The error code of a reply: that of the command, else that of the first failed write, else that
/// of the write concern error. 0 if there is no error; [`ERROR_WITHOUT_CODE`] if the error has no
/// code.
pub(crate) fn error_code(facts: &Facts) -> i32 {
    let code = match facts {
        Facts {
            ok: false, code, ..
        } => *code,
        Facts {
            write_errors: 1..,
            write_error_code,
            ..
        } => *write_error_code,
        _ if facts.write_concern_code == 0 => return 0,
        _ => facts.write_concern_code,
    };
    match code {
        0 => ERROR_WITHOUT_CODE,
        code => code,
    }
}

/// The end of an operation in the capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapturedEnd {
    pub operation: OperationId,
    /// The [`error_code`] of the reply; 0 if there is no reply.
    pub code: i32,
    /// The captured id of the cursor that the operation left open; 0 if there is none.
    pub cursor_id: i64,
    pub documents: u64,
}

/// Prepares records. The caller passes them in the order of the capture.
#[derive(Debug)]
pub(crate) struct Preparer {
    planner: Planner,
    rewriter: Rewriter,
    descriptions: Descriptions,
    /// The operations that the replay sends. An operation is removed when its reply has been read
    /// from the capture. The key is the operation's number in the capture.
    open: Recent<u64, (OperationId, Origin)>,
    next_operation: u64,
}

impl Preparer {
    pub(crate) fn new(planner: Planner, rewriter: Rewriter) -> Self {
        Self {
            planner,
            rewriter,
            descriptions: Descriptions::default(),
            open: Recent::new(MAX_OPEN),
            next_operation: 0,
        }
    }

    /// Prepares the next record; `None` if the replay does not need it.
    pub(crate) fn prepare(&mut self, content: Content) -> Option<Prepared> {
        match content {
            Content::ClientBegan(client) => Some(Prepared::ClientBegan {
                at_us: client.at_us,
            }),
            Content::ClientEnded(client) => Some(Prepared::ClientEnded {
                client: client.client,
            }),
            Content::Command(command) => Some(self.command(command)),
            Content::Reply(reply) => self.reply(&reply),
            Content::Omitted(omitted) => Some(Prepared::Omitted(omitted.operations)),
            Content::Header(_) | Content::Event(_) | Content::End(_) => None,
        }
    }

    fn command(&mut self, command: Command) -> Prepared {
        let at_us = command.at_us;
        match self.plan(command) {
            Ok(to_send) => Prepared::Command(Box::new(to_send)),
            Err(reason) => Prepared::Skipped { at_us, reason },
        }
    }

    fn plan(&mut self, command: Command) -> Result<ToSend, SkipReason> {
        let planned = match self.planner.decide(&command.message) {
            Decision::Send(planned) => planned,
            Decision::Skip(reason) => return Err(reason),
        };
        let message = match planned.cursors {
            // The message is a slice of a block of the capture. Without the copy, the slice would
            // keep the whole block in memory.
            CursorUse::More(_) | CursorUse::Kill(_) => {
                ToRewrite::Cursors(Bytes::copy_from_slice(&command.message))
            }
            CursorUse::Open => {
                let cursors = &planned.cursors;
                let rewritten = self
                    .rewriter
                    .rewrite(&command.message, 0, cursors, |_| None);
                ToRewrite::Done(rewritten.map_err(|_| SkipReason::Invalid)?)
            }
        };
        let description = self.descriptions.of_new(&planned, &command.message);
        let operation = OperationId(self.next_operation);
        self.next_operation += 1;
        self.open
            .insert(command.operation, (operation, planned.origin));
        Ok(ToSend {
            operation,
            client: command.client,
            at_us: command.at_us,
            planned,
            message,
            description,
        })
    }

    fn reply(&mut self, reply: &Reply) -> Option<Prepared> {
        let (operation, origin) = self.open.remove(&reply.operation)?;
        let facts = reply.facts.as_ref();
        let cursor_id = facts.map_or(0, |facts| facts.cursor_id);
        self.planner.note_cursor(cursor_id, origin);
        Some(Prepared::CapturedEnd(CapturedEnd {
            operation,
            code: facts.map_or(0, error_code),
            cursor_id,
            documents: facts.map_or(0, |facts| facts.documents),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_code_of_a_reply_is_that_of_the_command_or_of_its_failed_writes() {
        let ok = Facts {
            ok: true,
            ..Facts::default()
        };
        let failed = Facts::default();
        let failed_write = |code| Facts {
            write_errors: 2,
            write_error_code: code,
            ..ok.clone()
        };
        for (facts, code) in [
            (ok.clone(), 0),
            (failed.clone(), ERROR_WITHOUT_CODE),
            (Facts { code: 13, ..failed }, 13),
            (failed_write(11_000), 11_000),
            (failed_write(0), ERROR_WITHOUT_CODE),
            (
                Facts {
                    write_concern_code: 64,
                    ..ok.clone()
                },
                64,
            ),
        ] {
            assert_eq!(error_code(&facts), code, "{facts:?}");
        }
    }
}
