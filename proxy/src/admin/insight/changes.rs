//! `/api/v1/changes`: compares two periods, and returns as JSON how the load of each shape changed.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    response::Response,
};

use super::{
    super::{AdminState, Refused, bad_request, json, reply},
    InsightParameters, need_history,
};
use seawall_api::millis;
use seawall_insight::{Change, Changes, Compared, SpanError, whole};
use seawall_stats::{Figures, Label, Period, float};

/// Maximum length of each of the two periods if the request has no `window`.
const DEFAULT_WINDOW: Duration = Duration::from_secs(600);

pub(in crate::admin) async fn changes(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    need_history(&state.insight)?;
    let length = match parameters.window()? {
        Some(length) => seawall_insight::BaselineWindow::Exactly(length),
        None => seawall_insight::BaselineWindow::AtMost(DEFAULT_WINDOW),
    };
    let (against, text) = parameters.against()?;
    let is_full = parameters.has_distributions();
    let changes = move |state: &AdminState| {
        let changes = state.insight.changes(against, length, state.insight.now());
        let changes = changes.map_err(|error| bad_request(error.to_string()))?;
        Ok(reply_on(&changes, text, is_full))
    };
    reply(&state, changes).await
}

/// The reply with the two periods of a comparison, and the changes between them. `is_full` adds the
/// compared figures of both periods.
pub(super) fn reply_on(changes: &Changes, against: String, is_full: bool) -> seawall_api::Changes {
    let span = |of: &Compared| seawall_api::Span {
        count: whole(&of.period).count,
        figures: is_full.then(|| span_figures(&of.period)),
        from: float(of.from),
        seconds: float(of.period.length.as_secs()),
        to: float(of.to),
    };
    let (before, now) = (&changes.before, &changes.now);
    let all = changes.changes.iter();
    let all = all.map(|c| change(c, &before.period, &now.period));
    seawall_api::Changes {
        against,
        baseline: Some(span(before)),
        changes: all.collect(),
        comparable: Some(changes.incomparable.is_none()),
        now: Some(span(now)),
        reason: changes.incomparable.map(|reason| reason.to_string()),
    }
}

fn span_figures(period: &Period) -> seawall_api::SpanFigures {
    let sums = |label: &Label| {
        let figures = period.series.get(label).cloned().unwrap_or_default();
        json::other(&figures, true)
    };
    let shapes = period.series.iter();
    let shapes = shapes.filter(|(label, _)| matches!(***label, Label::Shape { .. }));
    let shapes =
        shapes.map(|(label, figures)| json::shape(json::past_shape_name(label), figures, true));
    seawall_api::SpanFigures {
        all: sums(&Label::Whole),
        other: sums(&Label::OtherShapes),
        shapes: shapes.collect(),
    }
}

/// The reply if the two periods cannot be determined.
pub(super) fn reply_to_refusal(refusal: SpanError, against: String) -> seawall_api::Changes {
    seawall_api::Changes {
        against,
        baseline: None,
        changes: Vec::new(),
        comparable: Some(false),
        now: None,
        reason: Some(refusal.to_string()),
    }
}

fn change(change: &Change, before: &Period, now: &Period) -> seawall_api::Change {
    seawall_api::Change {
        before: rates(&change.before, before),
        cost_ms_per_second: millis(change.cost_per_second),
        effect: change.effect,
        kind: change.kind.as_str().to_owned(),
        now: rates(&change.now, now),
        ratio: Some(change.ratio).filter(|ratio| ratio.is_finite()),
        shape: (&*change.label).into(),
    }
}

fn rates(figures: &Figures, period: &Period) -> seawall_api::Rates {
    let seconds = period.length.as_secs_f64().max(1.0);
    let operations = float(figures.count).max(1.0);
    seawall_api::Rates {
        bytes_per_operation: float(figures.request_bytes + figures.reply_bytes) / operations,
        count: figures.count,
        documents_per_operation: float(figures.documents) / operations,
        p50_ms: millis(figures.durations.quantile(0.5)),
        p99_ms: millis(figures.durations.quantile(0.99)),
        per_second: float(figures.count) / seconds,
        total_time_ms_per_second: millis(figures.durations.sum()) / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_insight::{Incomparable, Side};

    #[test]
    fn changes_are_not_comparable_without_data_for_the_earlier_period() {
        let compared = |from, to| Compared {
            from,
            to,
            period: Period::default(),
        };
        let mut changes = Changes {
            before: compared(1_000, 1_600),
            now: compared(2_000, 2_600),
            changes: Vec::new(),
            incomparable: Some(Incomparable::Unknown(Side::Baseline)),
        };
        let reply = reply_on(&changes, "yesterday".to_owned(), false);
        assert_eq!(reply.incomparable(), Some("no data for the baseline"));
        assert_eq!(
            reply.baseline.map(|span| (span.from, span.to)),
            Some((1_000.0, 1_600.0))
        );
        assert_eq!(
            reply.now.map(|span| (span.from, span.to)),
            Some((2_000.0, 2_600.0))
        );
        changes.incomparable = None;
        let reply = reply_on(&changes, "yesterday".to_owned(), false);
        assert_eq!((reply.comparable, reply.reason), (Some(true), None));
    }
}
