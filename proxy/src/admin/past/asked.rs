//! What is asked for: a period, a step, a series.

use std::time::Duration;

use axum::http::StatusCode;
use serde::Deserialize;

use super::{super::refused, id_of};
use crate::{
    admin::{DEFAULT_LIMIT, MAX_LIMIT},
    history::Label,
    sight::{Against, TimeError, parse_time},
};

type Refused = (StatusCode, String);

/// Of a request that does not say.
pub(super) const DEFAULT_SINCE: Duration = Duration::from_secs(600);

/// Steps in an answer at most: ten minutes of seconds, or a week of ten minutes.
pub(super) const MAX_STEPS: u64 = 1_200;

#[derive(Deserialize)]
pub(in crate::admin) struct Asked {
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
}

impl Asked {
    pub(super) fn since(&self) -> Result<Option<Duration>, Refused> {
        time(self.since.as_deref())
    }

    pub(super) fn step(&self) -> Result<Option<Duration>, Refused> {
        time(self.step.as_deref())
    }

    pub(super) fn window(&self) -> Result<Option<Duration>, Refused> {
        time(self.window.as_deref())
    }

    /// The baseline, and its text as it was given.
    pub(super) fn against(&self) -> Result<(Against, String), Refused> {
        let text = self.against.as_deref().unwrap_or("yesterday");
        let against = text.parse().map_err(wrong)?;
        Ok((against, text.to_owned()))
    }

    pub(super) fn sort(&self) -> &str {
        self.sort.as_deref().unwrap_or("total_time")
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT)
    }

    pub(super) fn of(self) -> Result<Of, Refused> {
        let namespace = NamespacesOf {
            db: self.db,
            collection: self.collection,
            command: self.command,
        };
        let names_one = namespace != NamespacesOf::default();
        match (self.shape, self.server, names_one) {
            (None, None, false) => Ok(Of::Whole),
            (Some(id), None, false) => Ok(Of::Shape(id)),
            (None, Some(address), false) => Ok(Of::Server(address)),
            (None, None, true) => Ok(Of::Namespaces(namespace)),
            _ => Err(refused(
                "either a shape, or a server, or a db, collection and command".to_owned(),
            )),
        }
    }
}

fn wrong(error: TimeError) -> Refused {
    refused(error.to_string())
}

fn time(text: Option<&str>) -> Result<Option<Duration>, Refused> {
    text.map(parse_time).transpose().map_err(wrong)
}

/// Which series a timeline is of.
pub(super) enum Of {
    Whole,
    Shape(String),
    Server(String),
    Namespaces(NamespacesOf),
}

/// What is not said may be anything.
#[derive(Default, PartialEq, Eq)]
pub(super) struct NamespacesOf {
    db: Option<String>,
    collection: Option<String>,
    command: Option<String>,
}

impl Of {
    pub(super) fn is(&self, label: &Label) -> bool {
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
                let is = |wanted: &Option<String>, name: &str| {
                    wanted.as_deref().is_none_or(|wanted| wanted == name)
                };
                is(&wanted.db, db)
                    && is(&wanted.collection, collection)
                    && is(&wanted.command, command)
            }
            _ => false,
        }
    }

    /// What is not there is a mistake of the name; a deployment without operations is none.
    pub(super) fn must_be_there(&self) -> bool {
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

/// Some 120 steps, of a length that is kept.
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
    fn timelines_have_some_hundred_steps_of_a_kept_length() {
        let steps = |seconds: u64| step_for(Duration::from_secs(seconds)).as_secs();
        assert_eq!(
            [60, 120, 600, 3_600, 7_200, 86_400, 604_800].map(steps),
            [1, 1, 10, 60, 60, 600, 600]
        );
    }
}
