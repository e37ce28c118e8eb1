//! The report on a period: one document with the figures of all other endpoints.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
};
use serde_json::{Map, Value, json};

use super::{
    super::{Window, json as shown, pools_of, status_of, storms_of, work},
    DEFAULT_SINCE, JsonResult, Parameters, Past, ago,
    changes::{changes_value, refusal_value},
    named, need_history, shapes_of,
    stalls::stalls_value,
    step_for, steps,
};
use crate::api;
use seawall_insight::Against;
use seawall_stats::{Label, Period};

/// How long the history keeps steps of one second.
const FINE_STEP_RETENTION: Duration = Duration::from_secs(600);

/// Maximum number of shapes in a report. Covers every shape in the history with its default
/// settings.
const REPORTED_SHAPES: usize = 200;

pub(in crate::admin) async fn report(
    State(window): State<Arc<Window>>,
    Query(parameters): Query<Parameters>,
) -> JsonResult {
    need_history(&window.insight)?;
    let since = parameters.since()?.unwrap_or(DEFAULT_SINCE);
    let (against, text) = parameters.against()?;
    let status = json!(status_of(&window));
    let api::Pools { pools } = pools_of(&window);
    let storms = json!(storms_of(&window));
    let value = work(&window, move |window| {
        history_part(window, since, against, &text)
    });
    let mut report = value.await?;
    report.insert("status".to_owned(), status);
    report.insert("storms".to_owned(), storms);
    report.insert("pools".to_owned(), json!(pools));
    Ok(Json(Value::Object(report)))
}

/// The part of a report that comes from the history.
fn history_part(
    window: &Window,
    since: Duration,
    against: Against,
    text: &str,
) -> Map<String, Value> {
    let insight = &window.insight;
    let now = insight.now();
    let from = ago(now, since);
    let past = Past::new(&insight.select(from, now));
    // Stalls last seconds: steps of ten seconds would hide them.
    let step = match since <= FINE_STEP_RETENTION {
        true => Duration::from_secs(1),
        false => step_for(since),
    };
    let timeline = insight.timeline(from, now, step, &|label| *label == Label::Whole);
    let changes = match insight.changes(against, seawall_insight::Window::AtMost(since)) {
        Ok(changes) => changes_value(&changes, text),
        Err(refusal) => refusal_value(refusal, text),
    };
    let mut report = shown::object(json!({
        "seawall_report": 1,
        "made_at": shown::since_epoch(now),
        "timeline": { "step_seconds": step.as_secs(), "steps": steps(&timeline, true) },
        "servers": servers(&past.period),
        "stalls": stalls_value(window, Some(from)),
        "changes": changes,
    }));
    let known = window.exporter.shapes();
    let shapes = shapes_of(&past, known, "total_time", REPORTED_SHAPES, true);
    report.extend(shapes.map(shown::object).unwrap_or_default());
    report
}

/// The servers of a period, without `answer_ms`: the history keeps no distribution of the time
/// until a server's reply begins. It keeps the phases.
fn servers(period: &Period) -> Vec<Value> {
    let servers = period.series.iter().filter_map(|(label, figures)| {
        let Label::Server(_) = &**label else {
            return None;
        };
        let mut server = named(label);
        server.extend(shown::operations(figures));
        Some(Value::Object(server))
    });
    servers.collect()
}
