//! The awaiting cursors of a replay: cursors on which a `getMore` waits for events, such as the
//! cursors of change streams. Counts for each cursor how many events the clients received in the
//! capture, and how many events the replay has received.

use std::time::Duration;

use bytes::Bytes;

use crate::{CursorUse, Recent, Rewriter, connection::CatchUp, results::RowId};

/// The map in [`Streams`] remembers at most twice this number of awaiting cursors (see [`Recent`]).
const MAX_STREAMS: usize = 10_000;

/// Maximum length in bytes of a `getMore` that is kept. A usual `getMore` has a few hundred bytes.
const MAX_MESSAGE_BYTES: usize = 4_096;

#[derive(Debug)]
struct Stream {
    row: RowId,
    captured: u64,
    replayed: u64,
    /// The last captured `getMore`.
    message: Bytes,
    /// The `maxTimeMS` of this `getMore`: how long the server waits for events.
    max_time: Duration,
}

/// The missing events of one cursor: in the capture, a client received them, but the replay has not
/// received them.
#[derive(Debug)]
pub(crate) struct Missing {
    /// The captured id of the cursor.
    pub cursor: i64,
    /// The last captured `getMore` on the cursor.
    pub message: Bytes,
    /// The `maxTimeMS` of this `getMore`: how long the server waits for events.
    pub max_time: Duration,
    /// Number of missing events.
    pub count: u64,
}

impl Missing {
    /// Builds the `getMore` that fetches the missing events; `None` if the target's cursor has
    /// ended, or if the captured `getMore` is not valid. The time limit of the reply is the sum of
    /// `reply_limit` and `max_time`.
    pub(crate) fn request(
        &self,
        rewriter: &Rewriter,
        request_id: i32,
        reply_limit: Duration,
        mut find_cursor: impl FnMut(i64) -> Option<i64>,
    ) -> Option<CatchUp> {
        find_cursor(self.cursor)?;
        let cursors = CursorUse::More(self.cursor);
        let message = rewriter.rewrite(&self.message, request_id, &cursors, find_cursor);
        Some(CatchUp {
            cursor: self.cursor,
            message: message.ok()?,
            missing: self.count,
            reply_limit: reply_limit.saturating_add(self.max_time),
        })
    }
}

/// The cursors that wait for events, by their ids in the capture.
#[derive(Debug)]
pub(crate) struct Streams(Recent<i64, Stream>);

impl Default for Streams {
    fn default() -> Self {
        Self(Recent::new(MAX_STREAMS))
    }
}

impl Streams {
    /// Notes a captured `getMore`. The server waits at most `max_time` for events. `row` is the
    /// result row that counts the events: the row of the operation that opened the cursor. Ignores
    /// a command that is longer than [`MAX_MESSAGE_BYTES`].
    pub(crate) fn ask(&mut self, cursor: i64, row: RowId, message: &Bytes, max_time: Duration) {
        if message.len() > MAX_MESSAGE_BYTES {
            return;
        }
        match self.0.find(cursor) {
            Some(stream) => {
                stream.message = message.clone();
                stream.max_time = max_time;
            }
            None => self.0.insert(
                cursor,
                Stream {
                    row,
                    captured: 0,
                    replayed: 0,
                    message: message.clone(),
                    max_time,
                },
            ),
        }
    }

    /// Adds events that a captured client received.
    pub(crate) fn add_captured(&mut self, cursor: i64, events: u64) {
        if let Some(stream) = self.0.find(cursor) {
            stream.captured = stream.captured.saturating_add(events);
        }
    }

    /// Adds events that the replay received. Returns the result row that counts them; `None` if the
    /// cursor is unknown.
    pub(crate) fn add_replayed(&mut self, cursor: i64, events: u64) -> Option<RowId> {
        let stream = self.0.find(cursor)?;
        stream.replayed = stream.replayed.saturating_add(events);
        Some(stream.row)
    }

    /// The missing events of one cursor; `None` if the replay has received all of them, or if the
    /// cursor is unknown.
    pub(crate) fn missing(&mut self, cursor: i64) -> Option<Missing> {
        let stream = self.0.find(cursor)?;
        let count = stream.captured.saturating_sub(stream.replayed);
        (count > 0).then(|| Missing {
            cursor,
            message: stream.message.clone(),
            max_time: stream.max_time,
            count,
        })
    }

    /// The missing events of all cursors: one item for each cursor with missing events.
    pub(crate) fn all_missing(&mut self) -> Vec<Missing> {
        let cursors: Vec<i64> = self.0.keys().copied().collect();
        let missing = cursors
            .into_iter()
            .filter_map(|cursor| self.missing(cursor));
        missing.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Results;

    /// The cursors of change streams return events. Here, the captured client received five events
    /// on cursor 7, and the replay received three.
    #[test]
    fn events_that_only_the_captured_client_received_are_counted_as_missing() {
        let row = Results::default().row_of(seawall_shape::ShapeId::of_other_row("a", "b", "c"));
        let mut streams = Streams::default();
        let second = Duration::from_secs(1);
        streams.ask(7, row, &Bytes::from_static(b"first"), Duration::ZERO);
        streams.ask(7, row, &Bytes::from_static(b"last"), second);
        streams.add_captured(7, 5);
        streams.add_captured(8, 5);
        assert_eq!(streams.add_replayed(7, 3), Some(row));
        assert_eq!(streams.add_replayed(8, 3), None);
        let missing = streams.all_missing();
        let [missing] = &missing[..] else {
            panic!("{missing:?}")
        };
        assert_eq!((missing.cursor, missing.count), (7, 2));
        assert_eq!(
            (&*missing.message, missing.max_time),
            (&b"last"[..], second)
        );
        streams.add_replayed(7, 2);
        assert!(streams.missing(7).is_none());
    }

    #[test]
    fn a_long_get_more_is_not_kept() {
        let row = Results::default().row_of(seawall_shape::ShapeId::of_other_row("a", "b", "c"));
        let mut streams = Streams::default();
        for (cursor, length, is_kept) in [(7, MAX_MESSAGE_BYTES, true), (8, 1 << 20, false)] {
            let message = Bytes::from(vec![0; length]);
            streams.ask(cursor, row, &message, Duration::ZERO);
            streams.add_captured(cursor, 1);
            assert_eq!(streams.missing(cursor).is_some(), is_kept, "{length}");
        }
    }
}
