//! The heat map of durations, the shapes in an area of the heat map, and the gauges over time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    extract::{Query, State},
    response::Response,
};

use super::{
    asked::{InsightParameters, Range, SeriesFilter},
    need_history, reply_with_steps,
};
use crate::admin::{AdminState, Refused, json, reply};
use seawall_insight::{Insight, Timeline};
use seawall_stats::{Distribution, Gauges, Label, Period, float};

pub(in crate::admin) async fn heatmap(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    reply_with_steps(
        &state,
        parameters,
        InsightParameters::series_or_phase,
        heatmap_of,
    )
    .await
}

fn heatmap_of(timeline: &Timeline<(u64, Period)>) -> seawall_api::Heatmap {
    let columns: Vec<_> = timeline
        .steps
        .iter()
        .map(|(at, period)| (*at, period.length.as_secs(), counts(period)))
        .collect();
    let buckets = columns.iter().flat_map(|(_, _, counts)| counts.keys());
    let buckets: BTreeSet<usize> = buckets.copied().collect();
    let indexes: BTreeMap<usize, u64> = buckets.iter().copied().zip(0..).collect();
    let columns = columns.into_iter().map(|(at, seconds, counts)| {
        let counts = counts.into_iter();
        let indexed = counts.filter_map(|(bucket, count)| Some((*indexes.get(&bucket)?, count)));
        seawall_api::HeatmapColumn {
            at: float(at),
            counts: indexed.collect(),
            seconds: float(seconds),
        }
    });
    seawall_api::Heatmap {
        bounds_seconds: buckets.into_iter().map(bounds).collect(),
        columns: columns.collect(),
        step_seconds: float(timeline.step.as_secs()),
    }
}

/// The number of operations in each bucket of durations. Adds up all series of the period.
fn counts(period: &Period) -> BTreeMap<usize, u64> {
    let mut counts = BTreeMap::new();
    let series = period.series.values();
    for (bucket, count) in series.flat_map(|figures| figures.durations.buckets()) {
        *counts.entry(bucket).or_default() += count;
    }
    counts
}

fn bounds(bucket: usize) -> (f64, f64) {
    Distribution::<8>::bounds_seconds(bucket)
}

pub(in crate::admin) async fn heatmap_shapes(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    need_history(&state.insight)?;
    let area = Area {
        range: parameters.range(state.insight.now())?,
        durations: parameters.durations()?,
    };
    let limit = parameters.limit_or(DEFAULT_SHAPES);
    let filter = parameters.series()?;
    let shapes = move |state: &AdminState| Ok(shapes_in(&state.insight, &filter, &area, limit));
    reply(&state, shapes).await
}

/// Number of listed shapes if the request has no `limit`.
const DEFAULT_SHAPES: usize = 20;

/// A rectangle of a heat map: a time range and a range of durations.
struct Area {
    range: Range,
    /// Bounds of the durations in seconds: the lower is exclusive, the upper inclusive.
    durations: (f64, f64),
}

impl Area {
    /// Number of durations in the area. A bucket is in the area if its middle is in the area,
    /// because the bounds in a request may be rounded.
    fn count(&self, durations: &Distribution) -> u64 {
        let (gt, le) = self.durations;
        let is_within = |bucket: usize| {
            let (lower, upper) = bounds(bucket);
            let middle = f64::midpoint(lower, upper);
            middle > gt && middle <= le
        };
        let within = durations.buckets().filter(|(bucket, _)| is_within(*bucket));
        within.map(|(_, count)| count).sum()
    }
}

fn shapes_in(
    insight: &Insight,
    filter: &SeriesFilter,
    area: &Area,
    limit: usize,
) -> seawall_api::HeatmapShapes {
    let all_servers = matches!(filter, SeriesFilter::Server(_));
    let filter = if all_servers {
        &SeriesFilter::Whole
    } else {
        filter
    };
    let is_wanted = |label: &Label| filter.matches(label) || filter.includes_shape(label);
    let selection = insight.select(area.range.from, area.range.to);
    let period = selection.period_of(&is_wanted);
    let series = || {
        let series = period.series.iter();
        series.map(|(label, figures)| (&**label, area.count(&figures.durations)))
    };
    let selected = series().filter(|(label, _)| filter.matches(label));
    let count: u64 = selected.map(|(_, count)| count).sum();
    let shapes = series().filter(|(label, count)| filter.includes_shape(label) && *count > 0);
    let mut shapes: Vec<_> = shapes.collect();
    shapes.sort_by_key(|(_, count)| Reverse(*count));
    shapes.truncate(limit);
    let listed: u64 = shapes.iter().map(|(_, count)| count).sum();
    let described = shapes.into_iter().map(|(label, of_shape)| {
        let name = json::past_shape_name(label);
        seawall_api::HeatmapShape {
            collection: name.collection,
            command: name.command,
            count: of_shape,
            db: name.db,
            id: name.id,
            shape: name.shape,
            share: float(of_shape) / float(count.max(of_shape)),
        }
    });
    seawall_api::HeatmapShapes {
        all_servers,
        count,
        other: count.saturating_sub(listed),
        shapes: described.collect(),
    }
}

pub(in crate::admin) async fn gauges(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Response, Refused> {
    need_history(&state.insight)?;
    let range = parameters.range(state.insight.now())?;
    let step = parameters.step_of(range)?;
    let gauges = move |state: &AdminState| {
        let timeline = state.insight.gauges(range.from, range.to, step);
        let steps = timeline
            .steps
            .iter()
            .map(|(at, seconds, gauges)| seawall_api::GaugeStep {
                at: float(*at),
                gauges: values(gauges),
                seconds: float(*seconds),
            });
        Ok(seawall_api::GaugeTimeline {
            step_seconds: float(timeline.step.as_secs()),
            steps: steps.collect(),
        })
    };
    reply(&state, gauges).await
}

fn values(gauges: &Gauges) -> BTreeMap<String, seawall_api::GaugeValues> {
    let values = gauges.iter().map(|(gauge, span)| {
        let values = seawall_api::GaugeValues {
            max: span.max,
            mean: span.mean(),
            min: span.min,
        };
        (gauge.as_str().to_owned(), values)
    });
    values.collect()
}
