//! The history in JSON: shapes and namespaces of a period, timelines. The submodules add changes,
//! stalls and the report.

mod asked;
mod changes;
mod report;
mod stalls;

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json,
    extract::{Path, Query, State},
    http::StatusCode,
};
use serde_json::{Map, Value, json};

use super::{Window, bad_request, json as shown, work};
use crate::observe::ShapeRow;
use seawall_insight::{Insight, Selection};
use seawall_stats::{Figures, Label, Period};

use self::asked::{DEFAULT_SINCE, MAX_STEPS, Parameters, SeriesFilter, step_for};
pub(super) use self::{changes::changes, report::report, stalls::stalls};

type JsonResult = Result<Json<Value>, (StatusCode, String)>;

fn need_history(insight: &Insight) -> Result<(), (StatusCode, String)> {
    match insight.is_on() {
        true => Ok(()),
        false => Err((
            StatusCode::NOT_FOUND,
            "the history is off: set history.enabled = true\n".to_owned(),
        )),
    }
}

fn not_found(what: &str) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("no such {what}\n"))
}

fn ago(now: SystemTime, time: Duration) -> SystemTime {
    now.checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(super) async fn shapes(
    State(window): State<Arc<Window>>,
    Query(parameters): Query<Parameters>,
) -> JsonResult {
    let sort = parameters.sort().to_owned();
    let limit = parameters.limit();
    let since = parameters.since()?;
    if since.is_some() {
        need_history(&window.insight)?;
    }
    let value = work(&window, move |window| {
        let known = window.exporter.shapes();
        match since {
            Some(since) => {
                let now = window.insight.now();
                let selection = window.insight.select(ago(now, since), now);
                shapes_of(&Past::new(&selection), known, &sort, limit, false)
            }
            None => rows(known, &sort, limit),
        }
    });
    let wrong =
        || bad_request("sort by total_time, count, errors, bytes, documents or p99".to_owned());
    Ok(Json(value.await?.ok_or_else(wrong)?))
}

/// The shapes since the start, sorted. `None` for an unknown key.
fn rows(mut rows: Vec<ShapeRow>, sort: &str, limit: usize) -> Option<Value> {
    shown::sort(&mut rows, sort, |row| &row.sums.figures)?;
    let mut rest = Figures::default();
    let unlisted = rows.iter().skip(limit);
    unlisted.for_each(|row| rest.merge(&row.sums.figures));
    let shapes: Vec<_> = rows.iter().take(limit).map(shown::shape).collect();
    Some(json!({ "shapes": shapes, "other": shown::figures(&rest) }))
}

/// A period, with the first and last time that each of its series was seen in it.
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

    /// The names of a shape, and when it was first and last seen: the times of its row, or those in
    /// this period if it has no row.
    fn shape(&self, label: &Arc<Label>, row: Option<&ShapeRow>) -> Map<String, Value> {
        let mut shape = named(label);
        if let Some((first, last)) = self.seen.get(label) {
            shape.insert("first_seen".to_owned(), json!(first));
            shape.insert("last_seen".to_owned(), json!(last));
        }
        if let Some(row) = row {
            shape.extend(shown::shape_name(row));
        }
        shape
    }
}

/// The shapes of a period, sorted. `None` for an unknown key.
fn shapes_of(
    past: &Past,
    known: Vec<ShapeRow>,
    sort: &str,
    limit: usize,
    is_full: bool,
) -> Option<Value> {
    let period = &past.period;
    let mut rows: Vec<_> = period
        .series
        .iter()
        .filter(|(label, _)| matches!(***label, Label::Shape { .. }))
        .collect();
    shown::sort(&mut rows, sort, |(_, figures)| figures)?;
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
        let mut shape = past.shape(label, row);
        add_figures(&mut shape, figures, is_full);
        Value::Object(shape)
    });
    let shapes: Vec<_> = shapes.collect();
    Some(json!({
        "since_seconds": period.length.as_secs(),
        "shapes": shapes,
        "other": shown::figures(&rest),
    }))
}

fn id_of(label: &Label) -> Option<&str> {
    match label {
        Label::Shape { id, .. } => Some(id),
        _ => None,
    }
}

/// The names of a series, under the keys of a shape.
fn named(label: &Label) -> Map<String, Value> {
    let pairs: Vec<(&str, &str)> = match label {
        Label::Shape {
            level,
            id,
            command,
            db,
            collection,
            text,
        } => vec![
            ("level", level.as_str()),
            ("id", id),
            ("command", command),
            ("db", db),
            ("collection", collection),
            ("shape", text),
        ],
        Label::Namespace {
            command,
            db,
            collection,
        } => vec![("command", command), ("db", db), ("collection", collection)],
        Label::Server(address) => vec![("address", address)],
        Label::Whole => vec![("shape", "all operations")],
        Label::OtherShapes => vec![("shape", "other")],
    };
    let pairs = pairs.into_iter();
    pairs
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect()
}

fn add_figures(fields: &mut Map<String, Value>, figures: &Figures, is_full: bool) {
    fields.extend(shown::figures(figures));
    if is_full {
        let distribution = shown::distribution(&figures.durations);
        fields.insert("distribution".to_owned(), distribution);
    }
}

pub(super) async fn shape(
    State(window): State<Arc<Window>>,
    Path(id): Path<String>,
    Query(parameters): Query<Parameters>,
) -> JsonResult {
    let since = parameters.since()?;
    if since.is_some() {
        need_history(&window.insight)?;
    }
    let value = work(&window, move |window| {
        let rows = window.exporter.shapes();
        let row = rows.iter().find(|row| row.shape.id.to_string() == id);
        one_shape(&window.insight, &id, row, since)
    });
    let shape = value.await?;
    Ok(Json(shape.ok_or_else(|| not_found("shape"))?))
}

/// All figures of one shape. With `since`: of that period, plus the figures since the start that
/// only its row has. Without: since the start. `None` if neither the period nor a row has the
/// shape.
fn one_shape(
    insight: &Insight,
    id: &str,
    row: Option<&ShapeRow>,
    since: Option<Duration>,
) -> Option<Value> {
    let now = insight.now();
    let from = ago(now, since.unwrap_or(DEFAULT_SINCE));
    let past = Past::new(&insight.select(from, now));
    let period = &past.period;
    let in_period = period.series.iter().find(|(of, _)| id_of(of) == Some(id));
    let mut shape = match (in_period, row) {
        (Some((label, _)), _) => past.shape(label, row),
        (None, Some(row)) => shown::shape_name(row),
        (None, None) => return None,
    };
    match row.filter(|_| since.is_none()) {
        Some(row) => {
            shape.extend(shown::shape_figures(row));
            let distribution = shown::distribution(&row.sums.figures.durations);
            shape.insert("distribution".to_owned(), distribution);
        }
        None => {
            let none = Figures::default();
            let figures = in_period.map_or(&none, |(_, figures)| figures);
            add_figures(&mut shape, figures, true);
            let known = json!(period.length.as_secs());
            shape.insert("since_seconds".to_owned(), known);
            if let Some(row) = row {
                let all = Value::Object(shown::shape_figures(row));
                shape.insert("since_start".to_owned(), all);
            }
        }
    }
    if let Some((label, _)) = in_period {
        let step = step_for(since.unwrap_or(DEFAULT_SINCE));
        let timeline = insight.timeline(from, now, step, &|of| of == &**label);
        shape.insert("timeline".to_owned(), steps(&timeline, false));
    }
    Some(Value::Object(shape))
}

pub(super) async fn namespaces(
    State(window): State<Arc<Window>>,
    Query(parameters): Query<Parameters>,
) -> JsonResult {
    let (since, limit) = (parameters.since()?, parameters.limit());
    if since.is_some() {
        need_history(&window.insight)?;
    }
    let value = work(&window, move |window| match since {
        Some(since) => {
            let now = window.insight.now();
            namespaces_of(&window.insight.period(ago(now, since), now), limit)
        }
        None => {
            let mut rows = window.exporter.namespaces();
            rows.sort_by_cached_key(|(_, sums)| Reverse(sums.durations.sum() - sums.awaited_time));
            rows.truncate(limit);
            json!({ "namespaces": rows.iter().map(shown::namespace).collect::<Vec<_>>() })
        }
    });
    Ok(Json(value.await?))
}

/// The namespaces of a period, sorted by total time in descending order.
fn namespaces_of(period: &Period, limit: usize) -> Value {
    let mut rows: Vec<_> = period
        .series
        .iter()
        .filter(|(label, _)| matches!(***label, Label::Namespace { .. }))
        .collect();
    rows.sort_by_cached_key(|(_, figures)| Reverse(figures.durations.sum()));
    let namespaces = rows.into_iter().take(limit).map(|(label, figures)| {
        let mut namespace = named(label);
        namespace.extend(shown::operations(figures));
        Value::Object(namespace)
    });
    json!({
        "since_seconds": period.length.as_secs(),
        "namespaces": namespaces.collect::<Vec<_>>(),
    })
}

pub(super) async fn timeline(
    State(window): State<Arc<Window>>,
    Query(parameters): Query<Parameters>,
) -> JsonResult {
    need_history(&window.insight)?;
    let since = parameters.since()?.unwrap_or(DEFAULT_SINCE);
    let step = parameters.step()?.unwrap_or(step_for(since));
    if since.as_secs() / step.as_secs() > MAX_STEPS {
        return Err(bad_request(format!(
            "at most {MAX_STEPS} steps; choose a longer step"
        )));
    }
    let filter = parameters.series()?;
    let value = work(&window, move |window| {
        timeline_of(&window.insight, &filter, since, step).ok_or(filter.kind())
    });
    value.await?.map(Json).map_err(not_found)
}

/// `None` if a series that must exist is not in the period.
fn timeline_of(
    insight: &Insight,
    filter: &SeriesFilter,
    since: Duration,
    step: Duration,
) -> Option<Value> {
    let now = insight.now();
    let from = ago(now, since);
    if filter.must_exist() {
        let seen = insight.select(from, now).seen();
        seen.keys().find(|label| filter.matches(label))?;
    }
    let timeline = insight.timeline(from, now, step, &|label| filter.matches(label));
    Some(json!({ "step_seconds": step.as_secs(), "steps": steps(&timeline, true) }))
}

/// The steps of a timeline, with the selected series of each step merged.
fn steps(timeline: &[(u64, Period)], is_full: bool) -> Value {
    let steps = timeline.iter().map(|(start, period)| {
        let mut figures = Figures::default();
        period.series.values().for_each(|of| figures.merge(of));
        let mut step = Map::new();
        step.insert("at".to_owned(), json!(start));
        step.insert("seconds".to_owned(), json!(period.length.as_secs()));
        add_figures(&mut step, &figures, is_full);
        let durations = &figures.durations;
        let flat = [
            ("p50_ms", durations.quantile(0.5)),
            ("p99_ms", durations.quantile(0.99)),
            ("max_ms", durations.max()),
        ];
        let flat = flat.map(|(name, time)| (name.to_owned(), json!(shown::millis(time))));
        step.extend(flat);
        Value::Object(step)
    });
    Value::Array(steps.collect())
}
