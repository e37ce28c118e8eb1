//! Endpoints that return the history as JSON: the shapes and namespaces of a period, and timelines.
//! The submodules contain further endpoints, for example for changes, stalls and the report.

mod asked;
mod changes;
mod heatmap;
mod report;
mod sparklines;
mod stalls;

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    extract::{Path, Query, State},
    http::StatusCode,
    response::Response,
};
use serde::Serialize;

use super::{
    AdminState, Refused,
    json::{self, Detail},
    reply,
};
use crate::observe::ShapeRow;
use seawall_api::{Annotation, Sort};
use seawall_insight::{Insight, Selection, Timeline};
use seawall_stats::{Figures, Label, Period, float};

pub(super) use self::asked::InsightParameters;
use self::asked::{DEFAULT_SINCE, Range, SeriesFilter, step_for};
pub(super) use self::{
    changes::changes,
    heatmap::{gauges, heatmap, heatmap_shapes},
    report::{REPORTED_SHAPES, report},
    sparklines::sparklines,
    stalls::stalls,
};

fn need_history(insight: &Insight) -> Result<(), Refused> {
    match insight.is_on() {
        true => Ok(()),
        false => Err((
            StatusCode::NOT_FOUND,
            "the history is off: set history.enabled = true\n".to_owned(),
        )),
    }
}

/// The annotations of a period, the earliest first.
pub(super) fn annotations_of(
    state: &AdminState,
    from: SystemTime,
    to: SystemTime,
) -> Vec<Annotation> {
    let annotations = state.insight.annotations(from, to).into_iter();
    let annotations = annotations.map(|of| Annotation {
        at: json::since_epoch(of.at),
        end: of.end.map(json::since_epoch),
        instance: None,
        kind: of.kind.as_str().to_owned(),
        text: of.text.into(),
    });
    annotations.collect()
}

/// Start of the text of a response with the status 404 if the requested shape or namespace has no
/// operations. Other texts with this status say that a feature is off, for example the history.
pub(super) const NO_SUCH: &str = "no such ";

fn not_found(what: &str) -> Refused {
    (StatusCode::NOT_FOUND, format!("{NO_SUCH}{what}\n"))
}

fn ago(now: SystemTime, time: Duration) -> SystemTime {
    now.checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(super) async fn shapes(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    let sort = parameters.sort()?;
    let limit = parameters.limit();
    let is_full = parameters.has_distributions();
    let range = parameters.range_if_any(state.insight.now())?;
    if range.is_some() {
        need_history(&state.insight)?;
    }
    let shapes = move |state: &AdminState| {
        let known = state.totals.shapes();
        Ok(match range {
            Some(range) => {
                let selection = state.insight.select(range.from, range.to);
                shapes_of(&Past::new(&selection), known, sort, limit, is_full)
            }
            None => rows(known, sort, limit, is_full),
        })
    };
    reply(&state, shapes).await
}

/// The shapes with the largest total time since the start of Seawall.
pub(super) fn heaviest_shapes(state: &AdminState, limit: usize) -> seawall_api::Shapes {
    rows(state.totals.shapes(), Sort::TotalTime, limit, false)
}

/// All stored stalls.
pub(super) fn all_stalls(state: &AdminState) -> seawall_api::Stalls {
    stalls::stalls_in(state, None)
}

/// The shapes with their figures since the start of Seawall, sorted by `sort`.
fn rows(mut rows: Vec<ShapeRow>, sort: Sort, limit: usize, is_full: bool) -> seawall_api::Shapes {
    json::sort(&mut rows, sort, |row| &row.sums.figures);
    let mut rest = Figures::default();
    let unlisted = rows.iter().skip(limit);
    unlisted.for_each(|row| rest.merge(&row.sums.figures));
    let listed = rows.iter().take(limit);
    let detail = match is_full {
        true => Detail::AllDistributions,
        false => Detail::Quantiles,
    };
    let shapes = listed.map(|row| json::shape_row(json::shape_name(row), &row.sums, detail));
    seawall_api::Shapes {
        other: json::other(&rest, is_full),
        shapes: shapes.collect(),
        since_seconds: None,
    }
}

/// A period, and for each of its series the first and last time at which the series was seen.
struct Past {
    period: Period,
    seen: HashMap<Arc<Label>, (u64, u64)>,
}

impl Past {
    fn new(selection: &Selection) -> Self {
        Self {
            period: selection.period(),
            seen: selection.seen(),
        }
    }

    /// The id, namespace and text of a shape, and when the shape was first and last seen. `row` has
    /// the figures of the shape since the start of Seawall. Without a `row`, returns when the shape
    /// was first and last seen in this period.
    fn shape_name(&self, label: &Arc<Label>, row: Option<&ShapeRow>) -> seawall_api::Shape {
        if let Some(row) = row {
            return json::shape_name(row);
        }
        let seen = self.seen.get(label);
        seawall_api::Shape {
            first_seen: seen.map(|(first, _)| seawall_api::Moment::Whole(*first)),
            last_seen: seen.map(|(_, last)| seawall_api::Moment::Whole(*last)),
            ..json::past_shape_name(label)
        }
    }
}

/// The shapes of a period, sorted by `sort`.
fn shapes_of(
    past: &Past,
    known: Vec<ShapeRow>,
    sort: Sort,
    limit: usize,
    is_full: bool,
) -> seawall_api::Shapes {
    let period = &past.period;
    let mut rows: Vec<_> = period
        .series
        .iter()
        .filter(|(label, _)| matches!(***label, Label::Shape { .. }))
        .collect();
    json::sort(&mut rows, sort, |(_, figures)| figures);
    let mut rest = period
        .series
        .get(&Label::OtherShapes)
        .cloned()
        .unwrap_or_default();
    rows.iter()
        .skip(limit)
        .for_each(|(_, figures)| rest.merge(figures));
    let known = known.into_iter();
    let known: HashMap<_, _> = known.map(|row| (row.shape.id.to_string(), row)).collect();
    let shapes = rows.iter().take(limit).map(|(label, figures)| {
        let row = id_of(label).and_then(|id| known.get(id));
        json::shape(past.shape_name(label, row), figures, is_full)
    });
    seawall_api::Shapes {
        other: json::other(&rest, is_full),
        shapes: shapes.collect(),
        since_seconds: Some(float(period.length.as_secs())),
    }
}

fn id_of(label: &Label) -> Option<&str> {
    match label {
        Label::Shape { id, .. } => Some(id),
        _ => None,
    }
}

pub(super) async fn shape(
    State(state): State<Arc<AdminState>>,
    Path(id): Path<String>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    let range = parameters.range_if_any(state.insight.now())?;
    let detail = match parameters.has_distributions() {
        true => Detail::AllDistributions,
        false => Detail::Shapes,
    };
    if range.is_some() {
        need_history(&state.insight)?;
    }
    let shape = move |state: &AdminState| {
        let rows = state.totals.shapes();
        let row = rows.iter().find(|row| row.shape.id.to_string() == id);
        one_shape(&state.insight, &id, row, range, detail).ok_or_else(|| not_found("shape"))
    };
    reply(&state, shape).await
}

/// All figures of one shape. `row` has the figures since the start of Seawall; `row` is `None` if
/// Seawall does not keep such figures for this shape. With a `range`, returns the figures of that
/// period, and the figures of `row` in the member `since_start`. Without a `range`, returns the
/// figures of `row`, or the figures of the last [`DEFAULT_SINCE`] if there is no `row`. Returns
/// `None` if there is no `row`, and the shape is not in the period.
fn one_shape(
    insight: &Insight,
    id: &str,
    row: Option<&ShapeRow>,
    range: Option<Range>,
    detail: Detail,
) -> Option<seawall_api::Shape> {
    let now = insight.now();
    let covered = range.unwrap_or(Range {
        from: ago(now, DEFAULT_SINCE),
        to: now,
    });
    let past = Past::new(&insight.select(covered.from, covered.to));
    let period = &past.period;
    // The history of an earlier version may have another text for the same id.
    let is_wanted = |of: &Label| id_of(of) == Some(id);
    let in_period = period.series.iter().filter(|(of, _)| is_wanted(of));
    let in_period: Vec<_> = in_period.collect();
    let name = match (in_period.first(), row) {
        (Some((label, _)), _) => past.shape_name(label, row),
        (None, Some(row)) => json::shape_name(row),
        (None, None) => return None,
    };
    let shape = match row.filter(|_| range.is_none()) {
        Some(row) => json::shape_row(name, &row.sums, detail),
        None => {
            let mut figures = Figures::default();
            in_period.iter().for_each(|(_, of)| figures.merge(of));
            seawall_api::Shape {
                since_seconds: Some(float(period.length.as_secs())),
                since_start: row.map(|row| Box::new(json::since_start(&row.sums, detail))),
                ..json::shape(name, &figures, true)
            }
        }
    };
    let timeline = (!in_period.is_empty()).then(|| {
        let step = step_for(covered.length());
        let timeline = insight.timeline(covered.from, covered.to, step, &is_wanted);
        steps(&timeline.steps, detail == Detail::AllDistributions)
    });
    Some(seawall_api::Shape {
        applications: row.map(|row| json::applications(&row.sums)),
        errors_by_code: row.map(|row| json::errors_by_code(&row.sums)),
        timeline,
        ..shape
    })
}

pub(super) async fn namespaces(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    let range = parameters.range_if_any(state.insight.now())?;
    let limit = parameters.limit();
    let is_full = parameters.has_distributions();
    if range.is_some() {
        need_history(&state.insight)?;
    }
    let namespaces = move |state: &AdminState| match range {
        Some(range) => {
            let period = state.insight.period(range.from, range.to);
            Ok(namespaces_of(&period, limit, is_full))
        }
        None => {
            let mut rows = state.totals.namespaces();
            rows.sort_by_cached_key(|(_, sums)| Reverse(sums.durations.sum()));
            let rows = rows.iter().take(limit);
            Ok(seawall_api::Namespaces {
                namespaces: rows.map(|row| json::namespace(row, is_full)).collect(),
                since_seconds: None,
            })
        }
    };
    reply(&state, namespaces).await
}

/// The namespaces of a period, sorted by total time in descending order. The total time includes
/// operations that waited for an event, because the history does not keep their times separately.
fn namespaces_of(period: &Period, limit: usize, is_full: bool) -> seawall_api::Namespaces {
    let mut rows: Vec<_> = period
        .series
        .iter()
        .filter(|(label, _)| matches!(***label, Label::Namespace { .. }))
        .collect();
    rows.sort_by_cached_key(|(_, figures)| Reverse(figures.durations.sum()));
    let rows = rows.into_iter().take(limit);
    let namespaces =
        rows.filter_map(|(label, figures)| json::past_namespace(label, figures, is_full));
    seawall_api::Namespaces {
        namespaces: namespaces.collect(),
        since_seconds: Some(float(period.length.as_secs())),
    }
}

pub(super) async fn timeline(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    reply_with_steps(&state, parameters, InsightParameters::series, timeline_of).await
}

/// Replies with the timeline of the series that `filter` selects, converted by `convert`. Refuses
/// the request if the selected shape or namespace is not in the period.
async fn reply_with_steps<T: Serialize + 'static>(
    state: &Arc<AdminState>,
    parameters: InsightParameters,
    filter: fn(InsightParameters) -> Result<SeriesFilter, Refused>,
    convert: fn(&Timeline<(u64, Period)>) -> T,
) -> Result<Response, Refused> {
    need_history(&state.insight)?;
    let range = parameters.range(state.insight.now())?;
    let step = parameters.step_of(range)?;
    let filter = filter(parameters)?;
    let converted = move |state: &AdminState| {
        if !filter.finds_series(&state.insight, range) {
            return Err(not_found(filter.kind()));
        }
        let is_wanted = |label: &Label| filter.matches(label);
        let timeline = state
            .insight
            .timeline(range.from, range.to, step, &is_wanted);
        Ok(convert(&timeline))
    };
    reply(state, converted).await
}

fn timeline_of(timeline: &Timeline<(u64, Period)>) -> seawall_api::Timeline {
    seawall_api::Timeline {
        step_seconds: float(timeline.step.as_secs()),
        steps: steps(&timeline.steps, true),
    }
}

/// The steps of a timeline. The selected series of each step are merged.
fn steps(timeline: &[(u64, Period)], is_full: bool) -> Vec<seawall_api::TimelineStep> {
    let steps = timeline.iter().map(|(start, period)| {
        let mut figures = Figures::default();
        period.series.values().for_each(|of| figures.merge(of));
        json::step(*start, period.length.as_secs(), &figures, is_full)
    });
    steps.collect()
}
