//! Serves stalls as JSON. A stall is a period in which operations took far longer than usual.

use std::sync::Arc;

use axum::{
    extract::{Query, State},
    response::Response,
};

use super::{
    super::{AdminState, Refused, json, reply},
    InsightParameters, Range, need_history,
};
use crate::topology::TopologyType;
use seawall_api::millis;
use seawall_insight::{RecurringStall, Stall, WaitingShape};

/// The note in the reply if the servers are routers. No counter then explains a stall.
const ROUTERS: &str = "routers (mongos) have no checkpoint, cache or ticket counters: stalls of the shards behind them \
                       are reported without a counter";

pub(in crate::admin) async fn stalls(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    need_history(&state.insight)?;
    let range = parameters.range_if_any(state.insight.now())?;
    reply(&state, move |state: &AdminState| {
        Ok(stalls_in(state, range))
    })
    .await
}

/// The stalls of a period; all stored stalls if `range` is `None`.
pub(super) fn stalls_in(state: &AdminState, range: Option<Range>) -> seawall_api::Stalls {
    let period = range.map(|range| (range.from, range.to));
    let (episodes, recurring) = state.insight.stalls(period);
    let topology = state.topology.snapshot();
    let has_routers = topology.description.topology_type == TopologyType::Sharded;
    seawall_api::Stalls {
        episodes: episodes.iter().map(episode).collect(),
        pulse: seawall_api::Pulse {
            note: has_routers.then(|| ROUTERS.to_owned()),
            ..pulse(state)
        },
        recurring: recurring.iter().map(recurring_stall).collect(),
    }
}

fn pulse(state: &AdminState) -> seawall_api::Pulse {
    let cost = match state.pulse.as_ref().map(|pulse| pulse.cost()) {
        Ok(cost) => cost,
        Err(reason) => {
            return seawall_api::Pulse {
                state: (*reason).to_owned(),
                ..seawall_api::Pulse::default()
            };
        }
    };
    let replies = u32::try_from(cost.replies.max(1)).unwrap_or(u32::MAX);
    seawall_api::Pulse {
        answered: Some(cost.replies),
        longest_ms: Some(millis(cost.longest)),
        mean_ms: Some(millis(cost.total_time / replies)),
        note: None,
        refusals: Some(cost.refusals),
        refused: Some(cost.refused),
        state: "on".to_owned(),
        unanswered: Some(cost.without_reply),
    }
}

fn episode(stall: &Stall) -> seawall_api::Episode {
    let episode = &stall.episode;
    let moved = stall.moved.iter().map(|moved| seawall_api::Moved {
        counter: moved.counter.to_owned(),
        during: moved.during,
        otherwise: moved.otherwise,
        score: moved.score,
    });
    seawall_api::Episode {
        instance: None,
        moved: moved.collect(),
        operations: episode.operations,
        phase: episode.phase.as_str().to_owned(),
        seconds: episode.length.as_secs_f64(),
        server: stall.server.as_deref().map(str::to_owned),
        shapes: stall.shapes.iter().map(waiting_shape).collect(),
        started_at: episode.started_at,
        unanswered_pulses: json::whole(stall.without_reply),
        usual_p99_ms: millis(episode.usual),
        waited_ms: millis(episode.waited),
        worst_ms: millis(episode.worst),
    }
}

fn waiting_shape(waiting: &WaitingShape) -> seawall_api::WaitingShape {
    let name = json::past_shape_name(&waiting.label);
    seawall_api::WaitingShape {
        collection: name.collection,
        command: name.command,
        db: name.db,
        id: name.id,
        level: name.level,
        operations: waiting.operations,
        text: name.shape,
    }
}

fn recurring_stall(stall: &RecurringStall) -> seawall_api::Recurring {
    let recurrence = &stall.recurrence;
    let counter = stall.counter.as_ref();
    seawall_api::Recurring {
        counter: counter.map(|moved| moved.counter.to_owned()),
        current: Some(recurrence.is_current),
        instance: None,
        last_at: recurrence.last_at,
        length_seconds: recurrence.length.as_secs_f64(),
        period_seconds: recurrence.period.as_secs_f64(),
        phase: recurrence.phase.as_str().to_owned(),
        server: stall.server.as_deref().map(str::to_owned),
        times: json::whole(recurrence.times),
        unanswered: stall.lacks_replies,
    }
}
