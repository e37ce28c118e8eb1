//! A period as one document: all that the others tell of it.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
};
use serde_json::{Map, Value, json};

use super::{
    super::{Window, json as shown, pools_value, status_value, storms_value, work},
    Answer, Asked, DEFAULT_SINCE, Past, ago,
    changes::{changes_value, refusal_value},
    named, need_history, shapes_of,
    stalls::stalls_value,
    step_for, steps,
};
use crate::{
    history::{Label, Period},
    sight::{self, Against},
};

/// How long seconds are kept.
const FINE: Duration = Duration::from_secs(600);

/// Shapes in a report: all that the history has series of, unless it is told to keep more of them.
const REPORTED_SHAPES: usize = 200;

pub(in crate::admin) async fn report(
    State(window): State<Arc<Window>>,
    Query(asked): Query<Asked>,
) -> Answer {
    need_history(&window.sight)?;
    let since = asked.since()?.unwrap_or(DEFAULT_SINCE);
    let (against, text) = asked.against()?;
    let status = status_value(&window);
    let pools = pools_value(&window);
    let storms = storms_value(&window);
    let value = work(&window, move |window| told(window, since, against, &text));
    let mut report = value.await?;
    report.insert("status".to_owned(), status);
    report.insert("storms".to_owned(), storms);
    report.extend(shown::object(pools));
    Ok(Json(Value::Object(report)))
}

/// What the history knows of a period.
fn told(window: &Window, since: Duration, against: Against, text: &str) -> Map<String, Value> {
    let sight = &window.sight;
    let now = sight.now();
    let from = ago(now, since);
    let past = Past::new(&sight.select(from, now));
    // Stalls last seconds: in steps of ten they would be smeared.
    let step = match since <= FINE {
        true => Duration::from_secs(1),
        false => step_for(since),
    };
    let timeline = sight.timeline(from, now, step, &|label| *label == Label::Whole);
    let changes = match sight.changes(against, sight::Window::AtMost(since)) {
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
    let known = window.observer.shapes();
    let shapes = shapes_of(&past, known, "total_time", REPORTED_SHAPES, true);
    report.extend(shapes.map(shown::object).unwrap_or_default());
    report
}

/// The history does not keep how long servers took to answer, but it keeps their phases.
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
