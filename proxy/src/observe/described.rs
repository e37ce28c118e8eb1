//! Describes an operation that has ended. The texts come from the statistics rows (see the module
//! `registry`) in which the operation is counted.

use std::sync::Arc;

use seawall_shape::ShapeId;

use super::{
    Namespace,
    registry::Registry,
    sums::{NamespaceIndex, Record},
};

/// The value of `level` in the slow log line of an operation whose statistics row no longer exists.
/// A row may be removed while the operation runs, for example to make room for another shape.
const EVICTED: &str = "evicted";

/// The description of an operation for the slow log, taken from the statistics rows in which the
/// operation is counted.
pub(super) struct LoggedOperation {
    pub(super) namespace: Namespace,
    /// For a `getMore`: the command that opened its cursor. `None` for other commands, and if the
    /// cursor is unknown.
    pub(super) opened_by: Option<&'static str>,
    /// The shape that `text` describes.
    pub(super) shape: ShapeId,
    /// The id of the operation's own shape. `None` if it equals `shape`: several shapes can share
    /// one row of the statistics, and `shape` then belongs to this row.
    pub(super) fine: Option<ShapeId>,
    /// The kind of the statistics row in which the operation is counted. A `fine` row counts one
    /// shape. A `coarse` row counts shapes that differ only in parts that select no documents, such
    /// as a projection. A `rest` row counts all shapes of a namespace that no other row counts. The
    /// value is [`EVICTED`] if the row no longer exists, and `None` if the operation is counted
    /// without a shape.
    pub(super) level: Option<&'static str>,
    pub(super) text: Arc<str>,
}

impl LoggedOperation {
    pub(super) fn of(record: &Record, registry: &Registry) -> Option<Self> {
        let namespace = |index: NamespaceIndex| registry.namespaces().nth(index.0);
        let own = shape_of(record);
        let index = record.origin.or(record.rows.shape);
        let row = index.and_then(|index| registry.row(index.serial));
        let row = row.map(|(shape, _, _)| shape);
        let shape = row.map_or(own, |row| row.id);
        let opened_by = record.origin.and_then(|origin| namespace(origin.namespace));
        Some(Self {
            namespace: namespace(record.rows.namespace)?.clone(),
            opened_by: opened_by.map(|namespace| namespace.command),
            shape,
            fine: (own != shape).then_some(own),
            level: match row {
                Some(row) => Some(row.level.as_str()),
                None => index.map(|_| EVICTED),
            },
            text: row.map(|row| Arc::clone(&row.text)).unwrap_or_default(),
        })
    }
}

/// The shape of an operation. For a `getMore`, the shape of the command that opened its cursor, if
/// known.
pub(super) fn shape_of(record: &Record) -> ShapeId {
    record.origin_id.unwrap_or(record.rows.id)
}
