//! Changes between two periods, in JSON.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
};
use serde_json::{Value, json};

use super::{
    super::{Window, bad_request, json as shown, work},
    JsonResult, Parameters, named, need_history,
};
use crate::api;
use seawall_insight::{Change, Changes, Compared, SpanError, whole};
use seawall_stats::{Figures, Period, float};

/// Maximum length of each of the two periods if the request has no `window`.
const DEFAULT_WINDOW: Duration = Duration::from_secs(600);

pub(in crate::admin) async fn changes(
    State(window): State<Arc<Window>>,
    Query(parameters): Query<Parameters>,
) -> JsonResult {
    need_history(&window.insight)?;
    let length = match parameters.window()? {
        Some(length) => seawall_insight::Window::Exactly(length),
        None => seawall_insight::Window::AtMost(DEFAULT_WINDOW),
    };
    let (against, text) = parameters.against()?;
    let changes = work(&window, move |window| {
        window.insight.changes(against, length)
    });
    let changes = changes.await?;
    let changes = changes.map_err(|error| bad_request(error.to_string()))?;
    Ok(Json(changes_value(&changes, &text)))
}

/// The two periods of a comparison and the changes between them.
pub(super) fn changes_value(changes: &Changes, against: &str) -> Value {
    let period = |of: &Compared| api::Span {
        count: whole(&of.period).count,
        from: float(of.from),
        seconds: float(of.period.length.as_secs()),
        to: float(of.to),
    };
    let (before, now) = (&changes.before, &changes.now);
    let all = changes.changes.iter();
    let all = all.map(|c| change(c, &before.period, &now.period));
    json!({
        "against": against,
        "comparable": changes.incomparable.is_none(),
        "reason": changes.incomparable.map(|reason| reason.to_string()),
        "baseline": period(before),
        "now": period(now),
        "changes": all.collect::<Vec<_>>(),
    })
}

/// The value if the two periods cannot be chosen.
pub(super) fn refusal_value(refusal: SpanError, against: &str) -> Value {
    json!({
        "against": against, "comparable": false, "reason": refusal.to_string(), "changes": [],
    })
}

fn change(change: &Change, before: &Period, now: &Period) -> Value {
    let mut shape = named(&change.label);
    if let Some(text) = shape.remove("shape") {
        shape.insert("text".to_owned(), text);
    }
    json!({
        "kind": change.kind.as_str(),
        "shape": shape,
        "before": rates(&change.before, before),
        "now": rates(&change.now, now),
        "ratio": change.ratio,
        "effect": change.effect,
        "cost_ms_per_second": shown::millis(change.cost_per_second),
    })
}

fn rates(figures: &Figures, period: &Period) -> api::Rates {
    let seconds = period.length.as_secs_f64().max(1.0);
    let operations = float(figures.count).max(1.0);
    api::Rates {
        bytes_per_operation: float(figures.request_bytes + figures.reply_bytes) / operations,
        count: figures.count,
        documents_per_operation: float(figures.documents) / operations,
        p50_ms: shown::millis(figures.durations.quantile(0.5)),
        p99_ms: shown::millis(figures.durations.quantile(0.99)),
        per_second: float(figures.count) / seconds,
        total_time_ms_per_second: shown::millis(figures.durations.sum()) / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_insight::{Incomparable, Side};

    #[test]
    fn missing_baseline_is_reported_and_differs_from_no_change() {
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
        let value = changes_value(&changes, "yesterday");
        assert_eq!(value["comparable"], false);
        assert_eq!(value["reason"], "no data for the baseline");
        let baseline = json!({ "from": 1_000, "to": 1_600, "seconds": 0, "count": 0 });
        assert_eq!(value["baseline"], baseline);
        assert_eq!(value["now"]["to"], 2_600);
        changes.incomparable = None;
        let value = changes_value(&changes, "yesterday");
        assert_eq!(
            (&value["comparable"], &value["reason"]),
            (&json!(true), &Value::Null)
        );
    }
}
