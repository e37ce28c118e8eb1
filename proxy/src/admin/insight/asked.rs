//! The query parameters: a period, a step, a series.

use std::time::Duration;

use axum::http::StatusCode;
use serde::Deserialize;

use super::{super::bad_request, id_of};
use crate::admin::{DEFAULT_LIMIT, MAX_LIMIT};
use seawall_stats::{Against, Label, TimeError, parse_time};

type Refused = (StatusCode, String);

/// The order of shapes if the request has no `sort`.
pub(super) const DEFAULT_SORT: &str = "total_time";

/// Length of the period of a request without `since`.
pub(super) const DEFAULT_SINCE: Duration = Duration::from_secs(600);

/// Maximum number of steps in a response. It is enough for ten minutes in steps of one second, or
/// for a week in steps of ten minutes.
pub(super) const MAX_STEPS: u64 = 1_200;

#[derive(Deserialize)]
pub(in crate::admin) struct Parameters {
    since: Option<String>,
    step: Option<String>,
    shape: Option<String>,
    server: Option<String>,
    db: Option<String>,
    collection: Option<String>,
    command: Option<String>,
    sort: Option<String>,
    limit: Option<usize>,
    against: Option<String>,
    window: Option<String>,
    distributions: Option<bool>,
}

impl Parameters {
    pub(super) fn since(&self) -> Result<Option<Duration>, Refused> {
        time(self.since.as_deref())
    }

    pub(super) fn step(&self) -> Result<Option<Duration>, Refused> {
        time(self.step.as_deref())
    }

    pub(super) fn window(&self) -> Result<Option<Duration>, Refused> {
        time(self.window.as_deref())
    }

    /// The baseline, as a value and as the text of the request.
    pub(super) fn against(&self) -> Result<(Against, String), Refused> {
        let text = self.against.as_deref().unwrap_or("yesterday");
        let against = text.parse().map_err(wrong)?;
        Ok((against, text.to_owned()))
    }

    pub(super) fn sort(&self) -> &str {
        self.sort.as_deref().unwrap_or(DEFAULT_SORT)
    }

    /// True if the reply must contain all distributions.
    pub(super) fn has_distributions(&self) -> bool {
        self.distributions.unwrap_or_default()
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT)
    }

    pub(super) fn series(self) -> Result<SeriesFilter, Refused> {
        let namespace = NamespaceFilter {
            db: self.db,
            collection: self.collection,
            command: self.command,
        };
        let names_one = namespace != NamespaceFilter::default();
        match (self.shape, self.server, names_one) {
            (None, None, false) => Ok(SeriesFilter::Whole),
            (Some(id), None, false) => Ok(SeriesFilter::Shape(id)),
            (None, Some(address), false) => Ok(SeriesFilter::Server(address)),
            (None, None, true) => Ok(SeriesFilter::Namespaces(namespace)),
            _ => Err(bad_request(
                "give only one filter: shape, or server, or any of db, collection and command"
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

/// Selects the series of a timeline.
pub(super) enum SeriesFilter {
    /// All operations of the deployment.
    Whole,
    /// The shape with this id.
    Shape(String),
    /// The server with this address.
    Server(String),
    Namespaces(NamespaceFilter),
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
            ) => {
                let is_wanted = |wanted: &Option<String>, name: &str| {
                    wanted.as_deref().is_none_or(|wanted| wanted == name)
                };
                is_wanted(&wanted.db, db)
                    && is_wanted(&wanted.collection, collection)
                    && is_wanted(&wanted.command, command)
            }
            _ => false,
        }
    }

    /// True if a missing series is an error. A missing shape or namespace is an error, because its
    /// name is probably misspelled. A deployment or a server without operations is not an error.
    pub(super) fn must_exist(&self) -> bool {
        matches!(self, Self::Shape(_) | Self::Namespaces(_))
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Whole => "series",
            Self::Shape(_) => "shape",
            Self::Server(_) => "server",
            Self::Namespaces(_) => "namespace",
        }
    }
}

/// Returns a step length that the history keeps. It divides the period into about 120 steps.
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

    #[test]
    fn default_timeline_step_is_a_step_length_of_the_history() {
        let steps = |seconds: u64| step_for(Duration::from_secs(seconds)).as_secs();
        assert_eq!(
            [60, 120, 600, 3_600, 7_200, 86_400, 604_800].map(steps),
            [1, 1, 10, 60, 60, 600, 600]
        );
    }
}
