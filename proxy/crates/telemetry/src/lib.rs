//! The export of metrics by OTLP, the protocol of OpenTelemetry, over HTTP.
//!
//! A [`Batch`] holds the points of one export and encodes them as a message. A [`Collector`] sends
//! messages: one at a time, and with limits for the time, the retries and the size of a response.
//! The crate measures nothing: the caller adds the figures to the batch and decides when to export.
//!
//! Sources: <https://opentelemetry.io/docs/specs/otlp/>,
//! <https://opentelemetry.io/docs/specs/otel/metrics/data-model/>.

mod batch;
mod collector;
mod export;
mod retry_after;

pub use self::{
    batch::{Attributes, Batch, Buckets, Instrument, PointKind},
    collector::{Address, Collector, CollectorError},
    export::{Exported, Outcome},
};
