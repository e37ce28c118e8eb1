//! The heat map of durations over time (`/api/v1/heatmap`), and the query shapes of the operations
//! in an area of the map (`/api/v1/heatmap/shapes`).

use serde::{Deserialize, Serialize};

use super::as_integer;

/// The number of operations for each step of time and each bucket of durations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Heatmap {
    /// The buckets of durations that have operations, ascending. Durations in a bucket are over the
    /// first bound and up to the second bound.
    pub bounds_seconds: Vec<(f64, f64)>,
    /// The steps with data, ascending.
    pub columns: Vec<HeatmapColumn>,
    /// The length of each step.
    #[serde(serialize_with = "as_integer")]
    pub step_seconds: f64,
}

/// One step of a heat map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatmapColumn {
    /// The step's start, in seconds since the epoch.
    #[serde(serialize_with = "as_integer")]
    pub at: f64,
    /// For each bucket with operations in this step: its index in [`Heatmap::bounds_seconds`], and
    /// the number of operations.
    pub counts: Vec<(u64, u64)>,
    /// Number of seconds in the step that have data.
    #[serde(serialize_with = "as_integer")]
    pub seconds: f64,
}

/// The query shapes (commands without their values) that have operations in an area of a heat map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatmapShapes {
    /// True if the request selects one server, but this reply covers the operations on all servers:
    /// the history keeps the figures of each shape and of each server, but not the figures of each
    /// shape on each server.
    pub all_servers: bool,
    /// Number of operations in the area.
    pub count: u64,
    /// Number of operations in the area that belong to no listed shape: operations of unlisted
    /// shapes, `getMore`s, and operations without a shape.
    pub other: u64,
    /// The shapes with the most operations in the area, in descending order.
    pub shapes: Vec<HeatmapShape>,
}

/// A query shape that has operations in an area of a heat map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatmapShape {
    /// The collection; empty if there is none.
    pub collection: String,
    /// The command's name.
    pub command: String,
    /// Number of the shape's operations in the area.
    pub count: u64,
    /// The database.
    pub db: String,
    /// The shape's id: 16 hexadecimal digits.
    pub id: String,
    /// The shape's text, without values.
    pub shape: String,
    /// The shape's share (0 to 1) of all operations in the area.
    pub share: f64,
}
