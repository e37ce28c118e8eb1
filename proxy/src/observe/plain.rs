//! The sums of plain operations of one thread since the last collection.
//!
//! An operation is plain if it was sent to a server, succeeded, and has no rare property. For
//! example, a retry is not plain. A `getMore` that is counted with the command that opened its
//! cursor is not plain either. Most operations are plain. All plain operations with the same shape
//! and server add to the same few numbers. When the sums are collected, these numbers are added to
//! the sums of the namespace, the shape and the server. So an operation costs one look-up and one
//! set of additions instead of three.

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;

use seawall_stats::{DenseDistribution, Figures, Outcome, PhaseTimes};

use super::{
    applications::ApplicationCounts,
    rows::row,
    sums::{NamespaceIndex, Record, ServerIndex, ShapeIndex, Sums},
};

/// Maximum number of entries of a [`PlainTally`]: one entry for each combination of namespace,
/// shape and server. Each entry takes about 9 KiB. Operations that would need a further entry are
/// added directly to the sums of the namespace, the shape and the server.
const PAIRS: usize = 32;

/// The namespace, the shape and the server of a plain operation (see the [module](self)).
type Key = (NamespaceIndex, ShapeIndex, ServerIndex);

/// The sums of the plain operations of one thread. An operation is plain if it was sent to a
/// server, succeeded, and has no rare property.
#[derive(Debug, Default)]
pub(super) struct PlainTally(HashMap<Key, Box<PlainSums>, RandomState>);

#[derive(Debug, Default)]
struct PlainSums {
    count: u64,
    durations: DenseDistribution<32>,
    phases: PhaseTimes,
    request_bytes: u64,
    reply_bytes: u64,
    documents: u64,
    statements: u64,
    applications: ApplicationCounts,
}

impl PlainTally {
    /// Adds an operation of an application. Returns false, and adds nothing, in two cases: the
    /// operation is not plain (see the [module](self)), or it needs a new entry and the table
    /// already has [`PAIRS`] entries.
    pub(super) fn add(&mut self, record: &Record, application: Option<&Arc<str>>) -> bool {
        let Some(key) = key_of(record) else {
            return false;
        };
        if let Some(sums) = self.0.get_mut(&key) {
            sums.add(record, application);
            return true;
        }
        let has_room = self.0.len() < PAIRS;
        if has_room {
            self.0.entry(key).or_default().add(record, application);
        }
        has_room
    }

    /// Removes everything that was added, and adds it to `sums`.
    pub(super) fn move_to(&mut self, sums: &mut Sums) {
        // Remove entries that had no operation since the last collection, so that other entries can
        // be added.
        self.0.retain(|_, plain| plain.count > 0);
        for ((namespace, shape, server), plain) in &mut self.0 {
            plain.move_to(*namespace, *shape, *server, sums);
        }
    }
}

/// The key of a plain operation; `None` if the operation is not plain.
fn key_of(record: &Record) -> Option<Key> {
    let is_plain = record.outcome == Outcome::Ok
        && !record.is_awaiting
        && !record.is_streamed
        && !record.is_retry
        && record.origin.is_none()
        && record.rows.folded.is_none()
        && record.code.is_none()
        && record.write_errors == 0
        && record.write_concern_code.is_none()
        && record.cursor_time.is_none();
    let (shape, server) = record.rows.shape.zip(record.server)?;
    is_plain.then_some((record.rows.namespace, shape, server))
}

impl PlainSums {
    fn add(&mut self, record: &Record, application: Option<&Arc<str>>) {
        self.count += 1;
        self.durations.record(record.phases.total());
        self.phases.merge(&record.phases);
        self.request_bytes += record.request_bytes;
        self.reply_bytes += record.reply_bytes;
        self.documents += record.documents;
        self.statements += record.statements;
        self.applications.add(application);
    }

    fn move_to(
        &mut self,
        namespace: NamespaceIndex,
        shape: ShapeIndex,
        server: ServerIndex,
        sums: &mut Sums,
    ) {
        let durations = self.durations.take();
        let figures = Figures {
            count: std::mem::take(&mut self.count),
            durations: durations.coarse(),
            phases: std::mem::take(&mut self.phases),
            request_bytes: std::mem::take(&mut self.request_bytes),
            reply_bytes: std::mem::take(&mut self.reply_bytes),
            documents: std::mem::take(&mut self.documents),
            ..Figures::default()
        };
        let of_namespace = row(&mut sums.namespaces, namespace.0);
        if let Some(count) = of_namespace.outcomes.get_mut(Outcome::Ok.index()) {
            *count += figures.count;
        }
        of_namespace.durations.merge(&durations);
        of_namespace.phases.merge(&figures.phases);
        of_namespace.request_bytes += figures.request_bytes;
        of_namespace.reply_bytes += figures.reply_bytes;
        of_namespace.documents += figures.documents;
        let of_server = row(&mut sums.servers, server.0);
        of_server.figures.merge(&figures);
        let of_shape = sums.shapes.entry(shape).or_default();
        if let Some(count) = of_shape.outcomes.get_mut(Outcome::Ok.index()) {
            *count += figures.count;
        }
        of_shape.figures.merge(&figures);
        of_shape.statements += std::mem::take(&mut self.statements);
        of_shape
            .applications
            .merge(&std::mem::take(&mut self.applications));
    }
}
