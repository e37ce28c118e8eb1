//! The load of each shape over time, for the sparklines in the dashboard's table of shapes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    response::Response,
};

use super::{
    super::{AdminState, Refused, reply},
    InsightParameters, Range,
    asked::MAX_STEPS,
    id_of, need_history, step_for,
};
use seawall_api::millis;
use seawall_insight::{Insight, Timeline};
use seawall_stats::{Label, Period, float};

pub(in crate::admin) async fn sparklines(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
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
    lines_of(step, &steps)
}

/// The lines of all shapes. Each item of `steps` has the start of a step and its figures. If the
/// clock was wrong, steps can begin years apart. So the lines have at most [`MAX_STEPS`] points,
/// and earlier steps are omitted.
fn lines_of(step: Duration, steps: &[(u64, Period)]) -> seawall_api::Sparklines {
    let step = step.as_secs().max(1);
    let ends = steps.first().zip(steps.last());
    let (first, last) = ends.map_or((0, 0), |((first, _), (last, _))| (*first, *last));
    let from = first.max(last.saturating_sub((MAX_STEPS - 1) * step));
    let position = |at: u64| usize::try_from((at - from) / step).unwrap_or(0);
    let mut shapes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (at, period) in steps.iter().filter(|(at, _)| *at >= from) {
        for (label, figures) in &period.series {
            let Some(id) = id_of(label) else { continue };
            let loads = shapes.entry(id.to_owned());
            let loads = loads.or_insert_with(|| vec![0.0; position(last) + 1]);
            if let Some(load) = loads.get_mut(position(*at)) {
                *load += millis(figures.load());
            }
        }
    }
    seawall_api::Sparklines {
        from: float(from),
        shapes,
        step_seconds: float(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_stats::{Figures, Level};

    /// The figures of a step in which the shape `id` has a load of 5 ms.
    fn step_with(id: &str) -> Period {
        let label = Label::Shape {
            level: Level::Fine,
            id: id.into(),
            command: "find".into(),
            db: "shop".into(),
            collection: "orders".into(),
            text: "{}".into(),
        };
        let figures = Figures {
            more_time: Duration::from_millis(5),
            ..Figures::default()
        };
        Period {
            series: [(Arc::new(label), figures)].into(),
            ..Period::default()
        }
    }

    #[test]
    fn steps_long_before_the_latest_step_are_omitted_so_that_lines_stay_short() {
        const STEP: u64 = 600;
        let last = 3_000_000 * STEP;
        let from = last - (MAX_STEPS - 1) * STEP;
        let steps = [
            (STEP, step_with("earliest")),
            (from - STEP, step_with("shape")),
            (from, step_with("shape")),
            (last, step_with("shape")),
        ];
        let lines = lines_of(Duration::from_secs(STEP), &steps);
        assert_eq!((lines.from, lines.step_seconds), (float(from), 600.0));
        assert_eq!(lines.shapes.len(), 1);
        let loads = &lines.shapes["shape"];
        assert_eq!(loads.len(), 1_200);
        assert_eq!((loads[0], loads[1_199]), (5.0, 5.0));
        assert_eq!(loads.iter().sum::<f64>(), 10.0);
    }
}
