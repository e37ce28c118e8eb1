//! The query parameters of requests for the history, for example a period, a step or a series.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use super::{super::bad_request, ago, id_of};
use crate::admin::{DEFAULT_LIMIT, MAX_LIMIT, Refused};
use seawall_api::{Sort, UnknownSort};
use seawall_insight::Insight;
use seawall_stats::{Against, Label, Phase, TimeError, parse_time};

/// Length of the period, which ends now, if a request has neither `since` nor `from`.
pub(super) const DEFAULT_SINCE: Duration = Duration::from_secs(600);

/// Maximum number of steps in a response. It is enough for ten minutes in steps of one second, or
/// for a week in steps of ten minutes.
pub(super) const MAX_STEPS: u64 = 1_200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::admin) struct InsightParameters {
    since: Option<String>,
    from: Option<f64>,
    until: Option<f64>,
    step: Option<String>,
    shape: Option<String>,
    server: Option<String>,
    namespace: Option<String>,
    phase: Option<String>,
    gt_seconds: Option<f64>,
    le_seconds: Option<f64>,
    db: Option<String>,
    collection: Option<String>,
    command: Option<String>,
    sort: Option<String>,
    limit: Option<usize>,
    against: Option<String>,
    window: Option<String>,
    distributions: Option<bool>,
}

impl InsightParameters {
    fn since(&self) -> Result<Option<Duration>, Refused> {
        time(self.since.as_deref())
    }

    /// The requested period: either the time from `from` until `until` (default: now), or the time
    /// of length `since` that ends now. `None` if the request has none of these parameters.
    pub(super) fn range_if_any(&self, now: SystemTime) -> Result<Option<Range>, Refused> {
        let (since, from, until) = (self.since()?, self.from, self.until);
        let range = match (since, from, until) {
            (None, None, None) => return Ok(None),
            (Some(since), None, None) => Range {
                from: ago(now, since),
                to: now,
            },
            (None, Some(from), until) => Range {
                from: moment(from)?,
                to: until.map_or(Ok(now), moment)?.min(now),
            },
            _ => {
                return Err(bad_request(
                    "give either since, or from and until".to_owned(),
                ));
            }
        };
        match range.from < range.to {
            true => Ok(Some(range)),
            false => Err(bad_request(
                "from must be before until and before now".to_owned(),
            )),
        }
    }

    /// Like [`Self::range_if_any`], but returns the last [`DEFAULT_SINCE`] if the request has no
    /// period.
    pub(super) fn range(&self, now: SystemTime) -> Result<Range, Refused> {
        Ok(self.range_if_any(now)?.unwrap_or(Range {
            from: ago(now, DEFAULT_SINCE),
            to: now,
        }))
    }

    /// The start and the end of [`Self::range`].
    pub(in crate::admin) fn period(
        &self,
        now: SystemTime,
    ) -> Result<(SystemTime, SystemTime), Refused> {
        let range = self.range(now)?;
        Ok((range.from, range.to))
    }

    /// The requested length of a step, or the default for this period. Refuses the request if the
    /// period would have more than [`MAX_STEPS`] steps.
    pub(super) fn step_of(&self, range: Range) -> Result<Duration, Refused> {
        let step = time(self.step.as_deref())?.unwrap_or(step_for(range.length()));
        match range.length().as_secs() / step.as_secs() > MAX_STEPS {
            true => Err(bad_request(format!(
                "at most {MAX_STEPS} steps; choose a longer step"
            ))),
            false => Ok(step),
        }
    }

    /// The requested bounds for the durations of operations, in seconds: the lower bound is
    /// exclusive, the upper bound is inclusive.
    pub(super) fn durations(&self) -> Result<(f64, f64), Refused> {
        let gt = self.gt_seconds.unwrap_or(0.0);
        let le = self.le_seconds.unwrap_or(f64::INFINITY);
        match gt < le {
            true => Ok((gt, le)),
            false => Err(bad_request(
                "gt_seconds must be less than le_seconds".to_owned(),
            )),
        }
    }

    pub(super) fn window(&self) -> Result<Option<Duration>, Refused> {
        time(self.window.as_deref())
    }

    /// The earlier period with which Seawall compares the current period (`against`): its parsed
    /// form, and the text in the request.
    pub(super) fn against(&self) -> Result<(Against, String), Refused> {
        let text = self.against.as_deref().unwrap_or("yesterday");
        let against = text.parse().map_err(wrong)?;
        Ok((against, text.to_owned()))
    }

    pub(super) fn sort(&self) -> Result<Sort, Refused> {
        let sort = self.sort.as_deref().map(str::parse);
        let sort = sort
            .transpose()
            .map_err(|error: UnknownSort| bad_request(error.to_string()))?;
        Ok(sort.unwrap_or_default())
    }

    /// True if the reply must contain the distributions of durations, and not only quantiles.
    pub(super) fn has_distributions(&self) -> bool {
        self.distributions.unwrap_or_default()
    }

    pub(super) fn limit(&self) -> usize {
        self.limit_or(DEFAULT_LIMIT)
    }

    pub(super) fn limit_or(&self, default: usize) -> usize {
        self.limit.unwrap_or(default).min(MAX_LIMIT)
    }

    /// Selects what a heat map shows: the durations of the operations that the request names. If
    /// the request names a phase (a part of an operation's time), the heat map shows the times that
    /// operations spent in this phase.
    pub(super) fn series_or_phase(mut self) -> Result<SeriesFilter, Refused> {
        let Some(name) = self.phase.take() else {
            return self.series();
        };
        let names = Phase::ALL.map(Phase::as_str).join(", ");
        let phase = Phase::named(&name).ok_or_else(|| {
            bad_request(format!("{name:?} is not a phase: expected one of {names}"))
        })?;
        match self.series()? {
            SeriesFilter::Whole => Ok(SeriesFilter::Phase {
                server: None,
                phase,
            }),
            SeriesFilter::Server(address) => Ok(SeriesFilter::Phase {
                server: Some(address),
                phase,
            }),
            _ => Err(bad_request(
                "phase can be combined only with server".to_owned(),
            )),
        }
    }

    pub(super) fn series(self) -> Result<SeriesFilter, Refused> {
        if self.phase.is_some() {
            return Err(bad_request(
                "only /api/v1/heatmap supports phase".to_owned(),
            ));
        }
        let is_named_twice = self.db.is_some() || self.collection.is_some();
        let (db, collection) = match self.namespace.as_deref() {
            Some(_) if is_named_twice => {
                let wrong = "give either namespace, or db and collection";
                return Err(bad_request(wrong.to_owned()));
            }
            Some(namespace) => match namespace.split_once('.') {
                Some((db, collection)) => (Some(db.to_owned()), Some(collection.to_owned())),
                None => (Some(namespace.to_owned()), None),
            },
            None => (self.db, self.collection),
        };
        let namespace = NamespaceFilter {
            db,
            collection,
            command: self.command,
        };
        let names_one = namespace != NamespaceFilter::default();
        match (self.shape, self.server, names_one) {
            (None, None, false) => Ok(SeriesFilter::Whole),
            (Some(id), None, false) => Ok(SeriesFilter::Shape(id)),
            (None, Some(address), false) => Ok(SeriesFilter::Server(address)),
            (None, None, true) => Ok(SeriesFilter::Namespaces(namespace)),
            _ => Err(bad_request(
                "give only one filter: shape, or server, or a namespace (namespace, or db and collection) with or without a command"
                    .to_owned(),
            )),
        }
    }
}

fn wrong(error: TimeError) -> Refused {
    bad_request(error.to_string())
}

fn time(text: Option<&str>) -> Result<Option<Duration>, Refused> {
    text.map(parse_time).transpose().map_err(wrong)
}

fn moment(seconds: f64) -> Result<SystemTime, Refused> {
    let since = Duration::try_from_secs_f64(seconds).ok();
    let moment = since.and_then(|since| UNIX_EPOCH.checked_add(since));
    moment.ok_or_else(|| {
        bad_request(format!(
            "{seconds} is not a time in seconds since the epoch"
        ))
    })
}

/// A period that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: SystemTime,
    pub(super) to: SystemTime,
}

impl Range {
    pub(super) fn length(self) -> Duration {
        self.to.duration_since(self.from).unwrap_or_default()
    }
}

/// Selects the series of a timeline or a heat map.
pub(super) enum SeriesFilter {
    /// All operations of the deployment.
    Whole,
    /// The shape with this id.
    Shape(String),
    /// The server with this address.
    Server(String),
    Namespaces(NamespaceFilter),
    /// The time that operations spent in one phase. `server` is `None` for the operations on all
    /// servers.
    Phase {
        server: Option<String>,
        phase: Phase,
    },
}

/// Selects namespaces. A field that is `None` matches every name.
#[derive(Default, PartialEq, Eq)]
pub(super) struct NamespaceFilter {
    db: Option<String>,
    collection: Option<String>,
    command: Option<String>,
}

impl SeriesFilter {
    pub(super) fn matches(&self, label: &Label) -> bool {
        match (self, label) {
            (Self::Whole, Label::Whole) => true,
            (Self::Shape(id), _) => id_of(label) == Some(id),
            (Self::Server(address), Label::Server(of)) => **of == **address,
            (
                Self::Namespaces(wanted),
                Label::Namespace {
                    command,
                    db,
                    collection,
                },
            ) => wanted.includes(command, db, collection),
            (
                Self::Phase { server, phase },
                Label::Phase {
                    server: of,
                    phase: other,
                },
            ) => phase == other && server.as_deref() == of.as_deref(),
            _ => false,
        }
    }

    /// True if the label names a shape whose operations are selected.
    pub(super) fn includes_shape(&self, label: &Label) -> bool {
        let Label::Shape {
            id,
            command,
            db,
            collection,
            ..
        } = label
        else {
            return false;
        };
        match self {
            Self::Whole => true,
            Self::Shape(wanted) => **wanted == **id,
            Self::Namespaces(wanted) => wanted.includes(command, db, collection),
            Self::Server(_) | Self::Phase { .. } => false,
        }
    }

    /// False if the selected shape or namespace is not in the period.
    pub(super) fn finds_series(&self, insight: &Insight, range: Range) -> bool {
        if !self.must_exist() {
            return true;
        }
        let seen = insight.select(range.from, range.to).seen();
        seen.keys().any(|label| self.matches(label))
    }

    /// True if a missing series is an error. A missing shape or namespace is an error, because its
    /// name is probably misspelled. A deployment or a server without operations is not an error.
    fn must_exist(&self) -> bool {
        matches!(self, Self::Shape(_) | Self::Namespaces(_))
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Whole => "series",
            Self::Shape(_) => "shape",
            Self::Server(_) => "server",
            Self::Namespaces(_) => "namespace",
            Self::Phase { .. } => "phase",
        }
    }
}

impl NamespaceFilter {
    fn includes(&self, command: &str, db: &str, collection: &str) -> bool {
        let is_wanted = |wanted: &Option<String>, name: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == name)
        };
        is_wanted(&self.db, db)
            && is_wanted(&self.collection, collection)
            && is_wanted(&self.command, command)
    }
}

/// The default length of a step for a period of this length: 1 to 5 s, 10 s, 1 min or 10 min. So a
/// period of a day or less has at most 600 steps.
pub(super) fn step_for(since: Duration) -> Duration {
    let seconds = match since.as_secs() / 120 {
        0..=4 => since.as_secs().div_ceil(120).max(1),
        5..=29 => 10,
        30..=299 => 60,
        _ => 600,
    };
    Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(query: &str) -> InsightParameters {
        let uri = format!("/?{query}").parse().unwrap();
        axum::extract::Query::try_from_uri(&uri).unwrap().0
    }

    #[test]
    fn a_period_is_given_by_the_parameter_since_or_by_the_parameters_from_and_until() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let range = |query: &str| {
            let range = parameters(query).range(at(10_000)).ok();
            range.map(|range| (range.from, range.to))
        };
        for (query, expected) in [
            ("", Some((at(9_400), at(10_000)))),
            ("since=1m", Some((at(9_940), at(10_000)))),
            ("from=9000", Some((at(9_000), at(10_000)))),
            ("from=9000&until=9500", Some((at(9_000), at(9_500)))),
            ("from=9000&until=99999", Some((at(9_000), at(10_000)))),
            ("from=9000&since=1m", None),
            ("until=9000", None),
            ("from=9000&until=9000", None),
            ("from=10001", None),
            ("from=-1", None),
            ("from=1e300", None),
            ("from=NaN", None),
        ] {
            assert_eq!(range(query), expected, "{query}");
        }
    }

    #[test]
    fn a_request_with_filters_that_cannot_be_combined_or_are_unknown_is_refused() {
        let kind = |query: &str| {
            let filter = parameters(query).series_or_phase();
            filter.map_or("refused", |filter| filter.kind())
        };
        for (query, expected) in [
            ("", "series"),
            ("namespace=shop.orders", "namespace"),
            ("command=find", "namespace"),
            ("server=a:1&phase=send", "phase"),
            ("phase=checkout", "phase"),
            ("phase=nap", "refused"),
            ("phase=send&shape=00", "refused"),
            ("phase=send&command=find", "refused"),
            ("server=a:1&shape=00", "refused"),
            ("namespace=shop.orders&db=shop", "refused"),
        ] {
            assert_eq!(kind(query), expected, "{query}");
        }
        let SeriesFilter::Namespaces(filter) = parameters("namespace=a.b.c")
            .series()
            .unwrap_or(SeriesFilter::Whole)
        else {
            panic!("expected a namespace");
        };
        assert_eq!(
            (filter.db.as_deref(), filter.collection.as_deref()),
            (Some("a"), Some("b.c"))
        );
    }

    #[test]
    fn the_default_step_grows_with_the_length_of_the_period() {
        let steps = |seconds: u64| step_for(Duration::from_secs(seconds)).as_secs();
        assert_eq!(
            [60, 120, 600, 3_600, 7_200, 86_400, 604_800].map(steps),
            [1, 1, 10, 60, 60, 600, 600]
        );
    }
}
