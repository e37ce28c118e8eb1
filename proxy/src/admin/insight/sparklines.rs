//! The load of each shape over time, for the sparklines in the dashboard's table of shapes.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Query, State},
    response::Response,
};

use super::{
    super::{AdminState, Refused, reply},
    Parameters, Range, id_of, need_history, step_for,
};
use seawall_api::millis;
use seawall_insight::{Insight, Timeline};
use seawall_stats::{Label, float};

pub(in crate::admin) async fn sparklines(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Result<Response, Refused> {
    need_history(&state.insight)?;
    let range = parameters.range(state.insight.now())?;
    reply(&state, move |state: &AdminState| {
        Ok(sparklines_of(&state.insight, range))
    })
    .await
}

fn sparklines_of(insight: &Insight, range: Range) -> seawall_api::Sparklines {
    // A sparkline is narrower than a timeline, so its steps are about twice as long.
    let step = step_for(range.length() * 2);
    let is_shape = |label: &Label| matches!(label, Label::Shape { .. });
    let Timeline { step, steps } = insight.timeline(range.from, range.to, step, &is_shape);
    let ends = steps.first().zip(steps.last());
    let (from, until) = ends.map_or((0, 0), |((from, _), (until, _))| (*from, *until));
    let position = |at: u64| usize::try_from((at - from) / step.as_secs()).unwrap_or(0);
    let mut shapes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (at, period) in &steps {
        for (label, figures) in &period.series {
            let Some(id) = id_of(label) else { continue };
            let loads = shapes.entry(id.to_owned());
            let loads = loads.or_insert_with(|| vec![0.0; position(until) + 1]);
            if let Some(load) = loads.get_mut(position(*at)) {
                *load += millis(figures.load());
            }
        }
    }
    seawall_api::Sparklines {
        from: float(from),
        shapes,
        step_seconds: float(step.as_secs()),
    }
}
