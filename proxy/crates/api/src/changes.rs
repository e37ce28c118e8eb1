//! Changes between two periods: `/api/v1/changes`.

use serde::{Deserialize, Serialize};

use super::as_integer;
use seawall_stats::Label;

/// Two periods and the changes between them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// The baseline as it was requested.
    pub against: String,
    /// The baseline. Absent if the two periods cannot be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Span>,
    /// The changes, by cost to the servers in descending order.
    pub changes: Vec<Change>,
    /// True if the two periods were compared. `None` if the proxy does not report it.
    pub comparable: Option<bool>,
    /// The current period. Absent if the two periods cannot be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Span>,
    /// The reason why the periods are not comparable.
    pub reason: Option<String>,
}

impl Changes {
    /// The reason why the periods were not compared. `None` if they were.
    pub fn incomparable(&self) -> Option<&str> {
        let reason = self.reason.as_deref().unwrap_or_default();
        (self.comparable == Some(false)).then_some(reason)
    }
}

/// One of the two periods that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Span {
    /// Operations that ended.
    pub count: u64,
    /// In seconds since the epoch; 0 if not reported.
    #[serde(serialize_with = "as_integer")]
    pub from: f64,
    /// The seconds of the span for which there is data.
    #[serde(serialize_with = "as_integer")]
    pub seconds: f64,
    /// In seconds since the epoch; 0 if not reported.
    #[serde(serialize_with = "as_integer")]
    pub to: f64,
}

/// One change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// The figures of the baseline. All are 0 for a new shape.
    pub before: Rates,
    /// Additional operation time per second, in milliseconds.
    pub cost_ms_per_second: f64,
    /// Of all pairs of one operation before and one now: the share in which the one now took
    /// longer. 0.5 means no difference.
    pub effect: f64,
    /// `new`, `gone`, `slower`, `faster`, `more_frequent`, `less_frequent`, `heavier_requests`,
    /// `heavier_replies` or `more_documents`.
    pub kind: String,
    /// The figures of the current period. All are 0 for a shape that is gone.
    pub now: Rates,
    /// The changed figure of the current period, divided by that of the baseline. `None` if the
    /// divisor is 0.
    pub ratio: Option<f64>,
    /// What changed.
    pub shape: SeriesName,
}

impl Change {
    /// The effect as a share of pairs of operations, one from each period. `None` for a shape that
    /// exists in only one period.
    pub fn share_of_pairs(&self) -> Option<f64> {
        self.times().map(|_| self.effect)
    }

    /// The factor of the change. `None` for a shape that exists in only one period.
    pub fn times(&self) -> Option<f64> {
        let is_on_both_sides = self.before.per_second > 0.0 && self.now.per_second > 0.0;
        self.ratio.filter(|_| is_on_both_sides)
    }
}

/// The figures of one side of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Bytes of requests and replies per operation.
    pub bytes_per_operation: f64,
    /// Operations that ended.
    pub count: u64,
    /// Documents returned, written or counted per operation.
    pub documents_per_operation: f64,
    /// The median of durations.
    pub p50_ms: f64,
    /// The 99th percentile of durations.
    pub p99_ms: f64,
    /// Operations per second.
    pub per_second: f64,
    /// The time of operations per second.
    pub total_time_ms_per_second: f64,
}

/// The name of a series: a shape, all operations, the other shapes, a namespace or a server. The
/// members that the series does not have are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeriesName {
    /// The address of a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The collection; empty if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collection: Option<String>,
    /// The command's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub db: Option<String>,
    /// The id of a shape, 16 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The level of a shape: `fine` for one shape, `coarse` or `rest` for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The text of a shape, without values; or a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl SeriesName {
    /// The collection; empty if there is none.
    pub fn collection(&self) -> &str {
        self.collection.as_deref().unwrap_or_default()
    }

    /// The command's name; empty if there is none.
    pub fn command(&self) -> &str {
        self.command.as_deref().unwrap_or_default()
    }

    /// The database; empty if there is none.
    pub fn db(&self) -> &str {
        self.db.as_deref().unwrap_or_default()
    }

    /// The id of a shape; empty for another series.
    pub fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// The text of a shape, or a name; empty if there is none.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}

impl From<&Label> for SeriesName {
    fn from(label: &Label) -> Self {
        let some = |text: &str| Some(text.to_owned());
        let none = Self::default();
        match label {
            Label::Shape {
                level,
                id,
                command,
                db,
                collection,
                text,
            } => Self {
                address: None,
                collection: some(collection),
                command: some(command),
                db: some(db),
                id: some(id),
                level: some(level.as_str()),
                text: some(text),
            },
            Label::Namespace {
                command,
                db,
                collection,
            } => Self {
                collection: some(collection),
                command: some(command),
                db: some(db),
                ..none
            },
            Label::Server(address) => Self {
                address: some(address),
                ..none
            },
            Label::Whole => Self {
                text: some("all operations"),
                ..none
            },
            Label::OtherShapes => Self {
                text: some("other"),
                ..none
            },
        }
    }
}
