//! The report on a period: `/api/v1/report`, and the files that `seawall report` writes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    annotations::Annotation,
    as_integer,
    changes::Changes,
    covered,
    deployment::{Pool, Status},
    read,
    shapes::{Other, Shape, load_ms},
    stalls::Stalls,
    storms::Storms,
    tables::Server,
    timeline::Timeline,
};

/// A report on a period.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The events of the period that explain a change in the figures, the earliest first.
    pub annotations: Vec<Annotation>,
    /// The query shapes that differ from an earlier period (the baseline) in their latency, their
    /// frequency, or their number of bytes or documents per operation.
    pub changes: Changes,
    /// The instances whose figures the report contains. Empty in a report on one instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<Instance>,
    /// The end of the period, in seconds since the epoch.
    pub made_at: f64,
    /// The figures of all shapes that are not listed, together.
    pub other: Other,
    /// The connection pool of each server when the report was requested.
    pub pools: Vec<Pool>,
    /// The version of the format: [`Report::VERSION`].
    pub seawall_report: u64,
    /// The figures of each server.
    pub servers: Vec<Server>,
    /// The shapes, in descending order of their server load ([`Shape::load_ms`]).
    pub shapes: Vec<Shape>,
    /// Number of seconds in the period that have data.
    #[serde(serialize_with = "as_integer")]
    pub since_seconds: f64,
    /// The stalls of the period.
    pub stalls: Stalls,
    /// The state of the proxy when the report was requested.
    pub status: Status,
    /// The reconnect storms of the period.
    pub storms: Storms,
    /// The figures of all operations in each step of the period.
    pub timeline: Timeline,
}

/// One of the instances whose figures a merged report should contain. If the figures of the
/// instance are missing, `error` contains the reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// The admin address.
    pub address: String,
    /// The reason why the merged figures do not include this instance. Absent if they include it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The reason why [`Report::changes`], the comparison of two periods, does not include this
    /// instance, although it includes other instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomparable: Option<String>,
    /// The number of operations since the instance started.
    pub operations: u64,
    /// The time since Seawall started.
    #[serde(serialize_with = "as_integer")]
    pub uptime_seconds: f64,
    /// The version of Seawall.
    pub version: String,
}

impl Report {
    /// The version of the report format.
    pub const VERSION: u64 = 1;

    /// Parses a report. The members `shapes` and `pools` are either arrays, or whole replies of the
    /// endpoints `/api/v1/shapes` and `/api/v1/pools`.
    ///
    /// # Errors
    /// If the document is not a report of this version.
    pub fn read(value: Value) -> Result<Self, ReportError> {
        match value.get("seawall_report").and_then(Value::as_u64) {
            Some(Self::VERSION) => Ok(read(unwrapped(value))?),
            Some(version) => Err(ReportError::Version { version }),
            None => Err(ReportError::NotAReport),
        }
    }

    /// Number of seconds in the period that have data. If the report lacks this number, the result
    /// is the uptime in seconds, but at least 1.
    pub fn covered_seconds(&self) -> f64 {
        covered(self.since_seconds, self.status.uptime_seconds)
    }

    /// The server load of all shapes, listed or not: the time of their operations and `getMore`s,
    /// in milliseconds.
    pub fn load_ms(&self) -> f64 {
        load_ms(&self.shapes, &self.other)
    }

    /// The number of operations of all shapes, listed or not. `getMore`s are not included.
    pub fn operations(&self) -> u64 {
        self.shapes.iter().map(|s| s.count).sum::<u64>() + self.other.count
    }

    /// The number of operations of shapes that are not listed.
    pub fn unlisted(&self) -> u64 {
        self.other.count
    }

    /// The number of errors of all shapes, listed or not. Errors of `getMore`s are included.
    pub fn errors(&self) -> u64 {
        self.shapes.iter().map(|s| s.errors).sum::<u64>() + self.other.errors
    }
}

/// If the member `shapes` or `pools` is a whole reply, replaces it by the members of that reply.
/// Members that the report already has keep their values.
fn unwrapped(report: Value) -> Value {
    let Value::Object(mut members) = report else {
        return report;
    };
    for list in ["shapes", "pools"] {
        match members.remove(list) {
            Some(Value::Object(reply)) => add_missing(&mut members, reply),
            Some(value) => drop(members.insert(list.to_owned(), value)),
            None => {}
        }
    }
    Value::Object(members)
}

fn add_missing(members: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        members.entry(name).or_insert(value);
    }
}

/// The reason why a document cannot be parsed as a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The document has no report version, so it is not a report.
    #[error("not a Seawall report")]
    NotAReport,
    /// The report has an unknown version: another version of Seawall wrote it.
    #[error("unknown report version {version}; expected {expected}", expected = Report::VERSION)]
    Version {
        /// The version of the document.
        version: u64,
    },
    /// A field of the JSON document has an unexpected type.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Report, ReportError> {
        Report::read(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn documents_that_are_not_valid_reports_of_this_version_are_refused() {
        let error = parsed(r#"{ "shapes": [] }"#).unwrap_err();
        assert_eq!(error.to_string(), "not a Seawall report");
        let error = parsed(r#"{ "seawall_report": 2 }"#).unwrap_err();
        assert_eq!(error.to_string(), "unknown report version 2; expected 1");
        let error = parsed(r#"{ "seawall_report": 1, "pools": 5 }"#).unwrap_err();
        assert!(matches!(error, ReportError::Json(_)), "{error}");
    }

    #[test]
    fn lists_in_a_report_are_read_from_arrays_or_from_whole_api_replies() {
        let bare = r#"{ "seawall_report": 1, "shapes": [{ "count": 3 }], "pools": [{}, {}] }"#;
        let report = parsed(bare).unwrap();
        assert_eq!((report.operations(), report.pools.len()), (3, 2));
        let wrapped = r#"{
            "seawall_report": 1,
            "shapes": { "shapes": [{ "count": 3 }], "other": { "count": 4 }, "since_seconds": 60 },
            "pools": { "pools": [{}] }
        }"#;
        let report = parsed(wrapped).unwrap();
        assert_eq!((report.operations(), report.pools.len()), (7, 1));
        assert_eq!(report.covered_seconds(), 60.0);
    }
}
