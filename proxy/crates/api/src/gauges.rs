//! The gauges of Seawall itself over time: `/api/v1/gauges`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::as_integer;

/// The values of the gauges in each step of a period.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GaugeTimeline {
    /// The duration of each step, in seconds.
    #[serde(serialize_with = "as_integer")]
    pub step_seconds: f64,
    /// The steps with data, ascending.
    pub steps: Vec<GaugeStep>,
}

/// The values of the gauges in one step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GaugeStep {
    /// The step's start, in seconds since the epoch.
    #[serde(serialize_with = "as_integer")]
    pub at: f64,
    /// The values of each measured gauge, by the gauge's name.
    pub gauges: BTreeMap<String, GaugeValues>,
    /// Number of seconds in the step that have data.
    #[serde(serialize_with = "as_integer")]
    pub seconds: f64,
}

/// The values of a gauge in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GaugeValues {
    /// The highest value.
    pub max: f64,
    /// The mean of all values.
    pub mean: f64,
    /// The lowest value.
    pub min: f64,
}
