//! Stalls, in JSON.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json,
    extract::{Query, State},
};
use serde_json::{Map, Value, json};

use super::{
    super::{Window, json as shown, work},
    JsonResult, Parameters, ago, named, need_history,
};
use crate::{api, topology::TopologyType};
use seawall_insight::{RecurringStall, Stall};

/// The limits of the pulse if the servers are routers.
const ROUTERS: &str = "routers (mongos) have no checkpoint, cache or ticket counters: stalls of the shards behind them \
                       are reported without a counter";

pub(in crate::admin) async fn stalls(
    State(window): State<Arc<Window>>,
    Query(parameters): Query<Parameters>,
) -> JsonResult {
    need_history(&window.insight)?;
    let since: Option<Duration> = parameters.since()?;
    let value = work(&window, move |window| {
        stalls_value(window, since.map(|since| ago(window.insight.now(), since)))
    });
    Ok(Json(value.await?))
}

/// The stalls since a time; all stored stalls without one.
pub(super) fn stalls_value(window: &Window, since: Option<SystemTime>) -> Value {
    let (episodes, recurring) = window.insight.stalls(since);
    let mut pulse = pulse_value(window);
    if window.topology.snapshot().description.topology_type == TopologyType::Sharded {
        pulse.insert("note".to_owned(), json!(ROUTERS));
    }
    json!({
        "pulse": pulse,
        "episodes": episodes.iter().map(stall).collect::<Vec<_>>(),
        "recurring": recurring.iter().map(recurring_stall).collect::<Vec<_>>(),
    })
}

fn pulse_value(window: &Window) -> Map<String, Value> {
    shown::object(match window.pulse.as_ref().map(|pulse| pulse.cost()) {
        Ok(cost) => json!({
            "state": "on",
            "answered": cost.answered,
            "unanswered": cost.unanswered,
            "refused": cost.refused,
            "mean_ms": shown::millis(cost.total_time / u32::try_from(cost.answered.max(1)).unwrap_or(u32::MAX)),
            "longest_ms": shown::millis(cost.longest),
            "refusals": cost.refusals,
        }),
        Err(reason) => json!({ "state": reason }),
    })
}

fn stall(stall: &Stall) -> Value {
    let episode = &stall.episode;
    let shapes = stall.shapes.iter().map(|waiting| {
        let mut shape = named(&waiting.label);
        if let Some(text) = shape.remove("shape") {
            shape.insert("text".to_owned(), text);
        }
        shape.insert("operations".to_owned(), json!(waiting.operations));
        Value::Object(shape)
    });
    let moved = stall.moved.iter().map(|moved| api::Moved {
        counter: moved.counter.to_owned(),
        during: moved.during,
        otherwise: moved.otherwise,
        score: moved.score,
    });
    json!({
        "server": stall.server,
        "started_at": episode.started_at,
        "seconds": episode.length.as_secs_f64(),
        "operations": episode.operations,
        "waited_ms": shown::millis(episode.waited),
        "phase": episode.phase.as_str(),
        "usual_p99_ms": shown::millis(episode.usual),
        "worst_ms": shown::millis(episode.worst),
        "shapes": shapes.collect::<Vec<_>>(),
        "moved": moved.collect::<Vec<_>>(),
        "unanswered_pulses": stall.unanswered,
    })
}

fn recurring_stall(stall: &RecurringStall) -> api::Recurring {
    let recurrence = &stall.recurrence;
    let counter = stall.counter.as_ref();
    api::Recurring {
        counter: counter.map(|moved| moved.counter.to_owned()),
        current: Some(recurrence.is_current),
        last_at: recurrence.last_at,
        length_seconds: recurrence.length.as_secs_f64(),
        period_seconds: recurrence.period.as_secs_f64(),
        phase: recurrence.phase.as_str().to_owned(),
        server: stall.server.as_deref().map(str::to_owned),
        times: shown::whole(recurrence.times),
        unanswered: stall.is_unanswered,
    }
}
