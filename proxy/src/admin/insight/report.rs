//! The report on a period: one document with the figures of several other endpoints.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    response::Response,
};

use super::{
    super::{AdminState, Refused, json, pools_of, reply, status_of, storms_of},
    InsightParameters, Past, Range, annotations_of,
    changes::{reply_on, reply_to_refusal},
    need_history, shapes_of,
    stalls::stalls_in,
    step_for, timeline_of,
};

use seawall_api::Sort;
use seawall_insight::BaselineWindow;
use seawall_stats::{Against, Label, Period, float};

/// Time for which the history keeps steps of one second.
const FINE_STEP_RETENTION: Duration = Duration::from_secs(600);

/// Maximum number of shapes in a report. The member `other` of the report has the sums of all
/// further shapes.
pub(in crate::admin) const REPORTED_SHAPES: usize = 200;

pub(in crate::admin) async fn report(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    need_history(&state.insight)?;
    let range = parameters.range(state.insight.now())?;
    let (against, text) = parameters.against()?;
    let is_full = parameters.has_distributions();
    let report = move |state: &AdminState| Ok(report_on(state, range, (against, text), is_full));
    reply(&state, report).await
}

/// The report on a period, with the changes against an earlier period, `against`. `text` is
/// `against` as written in the request. `is_full` adds the distributions that a merged report
/// needs.
fn report_on(
    state: &AdminState,
    range: Range,
    (against, text): (Against, String),
    is_full: bool,
) -> seawall_api::Report {
    let insight = &state.insight;
    let Range { from, to } = range;
    let length = range.length();
    let past = Past::new(&insight.select(from, to));
    // Stalls last some seconds, so steps of ten seconds would hide them.
    let step = match length <= FINE_STEP_RETENTION {
        true => Duration::from_secs(1),
        false => step_for(length),
    };
    let timeline = insight.timeline(from, to, step, &|label| *label == Label::Whole);
    let changes = match insight.changes(against, BaselineWindow::AtMost(length), to) {
        Ok(changes) => reply_on(&changes, text, is_full),
        Err(refusal) => reply_to_refusal(refusal, text),
    };
    let known = state.totals.shapes();
    let listed = shapes_of(&past, known, Sort::TotalTime, REPORTED_SHAPES, true);
    let seawall_api::Shapes { other, shapes, .. } = listed;
    seawall_api::Report {
        annotations: annotations_of(state, from, to),
        changes,
        instances: Vec::new(),
        made_at: json::since_epoch(to),
        other,
        pools: pools_of(state).pools,
        seawall_report: seawall_api::Report::VERSION,
        servers: servers(&past.period, is_full),
        shapes,
        since_seconds: float(past.period.length.as_secs()),
        stalls: stalls_in(state, Some(range)),
        status: status_of(state),
        storms: storms_in(state, range),
        timeline: timeline_of(&timeline),
    }
}

/// The storms during a period.
fn storms_in(state: &AdminState, range: Range) -> seawall_api::Storms {
    let (from, to) = (json::since_epoch(range.from), json::since_epoch(range.to));
    let mut storms = storms_of(state);
    storms.storms.retain(|storm| {
        storm.started_at < to && storm.ended_at.is_none_or(|ended_at| ended_at >= from)
    });
    storms
}

/// The servers of a period, without `answer_ms` (the time until a server's reply begins). The
/// history keeps the distribution of this time in a separate series: the phase `server` of the
/// server's operations.
fn servers(period: &Period, is_full: bool) -> Vec<seawall_api::Server> {
    let servers = period
        .series
        .iter()
        .filter_map(|(label, figures)| match &**label {
            Label::Server(address) => Some(json::server(address, figures, is_full)),
            _ => None,
        });
    servers.collect()
}
