//! Query shapes that differ between two periods in their latency, their frequency, or their number
//! of bytes or documents per operation (`/api/v1/changes`).

use serde::{Deserialize, Serialize};

use super::{
    as_integer,
    shapes::{Other, Shape},
};
use seawall_stats::Label;

/// Two periods, the baseline and the current period after it, and the changes between them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// The baseline as given in the request, for example `yesterday` or `2h`.
    pub against: String,
    /// The baseline. Absent if the two periods cannot be determined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Span>,
    /// The changes. The first change is the one that increased the operation time per second the
    /// most ([`Change::cost_ms_per_second`]). If all shapes changed in the same way, one change of
    /// all operations together reports this. Changes of all operations together come last.
    pub changes: Vec<Change>,
    /// True if the two periods were compared. `None` if the proxy has a version that does not
    /// report this member.
    pub comparable: Option<bool>,
    /// The current period. Absent if the two periods cannot be determined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Span>,
    /// The reason why the two periods were not compared. `None` if they were compared.
    pub reason: Option<String>,
}

impl Changes {
    /// The reason why the periods were not compared. `None` if they were compared, or if the proxy
    /// does not report `comparable`.
    pub fn incomparable(&self) -> Option<&str> {
        let reason = self.reason.as_deref().unwrap_or_default();
        (self.comparable == Some(false)).then_some(reason)
    }
}

/// One of the two periods that are compared.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Span {
    /// Number of operations that ended in the period.
    pub count: u64,
    /// The figures that are compared, with the distributions of the operations' durations. Present
    /// if the request has `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<SpanFigures>,
    /// The start, in seconds since the epoch; 0 if not reported.
    #[serde(serialize_with = "as_integer")]
    pub from: f64,
    /// Number of seconds in the span that have data.
    #[serde(serialize_with = "as_integer")]
    pub seconds: f64,
    /// The end, in seconds since the epoch; 0 if not reported.
    #[serde(serialize_with = "as_integer")]
    pub to: f64,
}

/// The figures of one of the two periods that are compared.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SpanFigures {
    /// The figures of all operations together. Here, unlike in `other`, a `getMore` counts as an
    /// operation, and `more` is 0.
    pub all: Other,
    /// The figures of all shapes that are not in `shapes`, together. The history does not keep
    /// separate figures for them.
    pub other: Other,
    /// The shapes for which the history keeps separate figures.
    pub shapes: Vec<Shape>,
}

/// A change of one series (see [`SeriesName`]) from the baseline to the current period.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// The figures of the series in the baseline. All are 0 if `kind` is `new`.
    pub before: Rates,
    /// Increase of the operation time per second from the baseline to the current period, in
    /// milliseconds; 0 if the time decreased.
    pub cost_ms_per_second: f64,
    /// The share (0 to 1) of pairs in which the later operation took longer; 0.5 means no
    /// difference. Each operation of the baseline is paired with each operation of the current
    /// period.
    pub effect: f64,
    /// The kind of change: `new`, `gone`, `slower`, `faster`, `more_frequent`, `less_frequent`,
    /// `heavier_requests`, `heavier_replies` or `more_documents`.
    pub kind: String,
    /// The figures of the series in the current period. All are 0 if `kind` is `gone`.
    pub now: Rates,
    /// The changed figure of the current period, divided by the same figure of the baseline. `None`
    /// if the divisor is 0.
    pub ratio: Option<f64>,
    /// The series that changed.
    pub shape: SeriesName,
}

impl Change {
    /// Returns [`Change::effect`]. `None` if the series has operations in only one of the two
    /// periods, or if [`Change::ratio`] is `None`.
    pub fn share_of_pairs(&self) -> Option<f64> {
        self.times().map(|_| self.effect)
    }

    /// Returns [`Change::ratio`]. `None` if this ratio is `None`. Also `None` if the series has
    /// operations in only one of the two periods, because the ratio would then compare a figure
    /// with nothing.
    pub fn times(&self) -> Option<f64> {
        let is_on_both_sides = self.before.per_second > 0.0 && self.now.per_second > 0.0;
        self.ratio.filter(|_| is_on_both_sides)
    }
}

/// The figures of a series in one of the two periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Bytes of requests and replies per operation.
    pub bytes_per_operation: f64,
    /// Number of operations that ended in the period.
    pub count: u64,
    /// Documents returned, written or counted per operation.
    pub documents_per_operation: f64,
    /// The median duration.
    pub p50_ms: f64,
    /// The 99th percentile of the durations.
    pub p99_ms: f64,
    /// Operations per second.
    pub per_second: f64,
    /// The total time of the operations, in milliseconds per second of the period.
    pub total_time_ms_per_second: f64,
}

/// The name of a series. A series has the figures of a shape, a namespace, a server, a phase of
/// operations (such as `checkout`) or all operations together. One further series has the sum of
/// all shapes that have no series of their own. Members that do not apply to the series are absent
/// or empty.
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
    /// `fine` if the series counts one shape, `coarse` if it counts several similar shapes
    /// together. `rest` if it counts the remaining shapes of a namespace together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The text of the shape, without values. If the series is a phase, this is the name of the
    /// phase. If the series is all operations together, or the sum of all shapes that have no
    /// series of their own, this is a fixed text.
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

    /// The id of the shape; empty if the series is not the series of a shape.
    pub fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// The text of the shape. For a series that is not the series of a shape, the text that names
    /// the series; empty if it has none.
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
            Label::Phase { server, phase } => Self {
                address: server.as_deref().and_then(some),
                text: some(phase.as_str()),
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
