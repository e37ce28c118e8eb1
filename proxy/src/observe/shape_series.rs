//! Metric series of the heaviest shapes, and one series for all other shapes.
//!
//! Each operation is added to one series only, so rates can be summed. When a shape is no longer
//! among the heaviest, its series stops and is removed after ten minutes.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, SystemTime},
};

use metrics::Label;
use tokio::time::Instant;

use seawall_shape::ShapeId;
use seawall_stats::Distribution;

use super::{
    ObserveError, Shape, ShapeSums, histograms::Histograms, metric_handles::Metrics,
    metric_name::MetricName, registry::OTHER,
};

/// Maximum number of shapes with their own series. All other shapes share the series `other`.
const EXPORTED_SHAPES: usize = 200;

/// A shape loses its series when its rank by weight exceeds this number. The number is larger than
/// `EXPORTED_SHAPES`, so that series do not often stop and start again.
pub(super) const KEPT_RANK: usize = 250;

/// A series is removed after this time without an update.
const SERIES_LIFE: Duration = Duration::from_secs(600);

/// Maximum length of a shape's exported text, in bytes.
const EXPORTED_TEXT_BYTES: usize = 256;

/// The metric series of shapes.
pub(super) struct ShapeSeries {
    metrics: Metrics,
    exported: HashSet<ShapeId>,
    /// The distribution of all durations in a series, by the value of its label `shape`.
    durations: HashMap<String, Kept>,
}

struct Kept {
    durations: Distribution,
    /// The shape of the series; `None` for the series of all other shapes.
    shape: Option<Shape>,
    /// The start of the time that the durations cover.
    since: SystemTime,
    added_at: Instant,
}

impl ShapeSeries {
    pub(super) fn new() -> Result<Self, ObserveError> {
        Ok(Self {
            metrics: Metrics::new(Some(SERIES_LIFE))?,
            exported: HashSet::new(),
            durations: HashMap::new(),
        })
    }

    /// Chooses the shapes that have their own series. `heaviest` is in descending order of weight.
    pub(super) fn choose(&mut self, heaviest: &[ShapeId]) {
        let kept: HashSet<_> = heaviest.iter().copied().collect();
        self.exported.retain(|id| kept.contains(id));
        for id in heaviest.iter().take(EXPORTED_SHAPES) {
            if self.exported.len() < EXPORTED_SHAPES {
                self.exported.insert(*id);
            }
        }
    }

    /// Adds new sums of a shape to its series.
    pub(super) fn add(&mut self, shape: &Shape, sums: &ShapeSums) {
        let is_exported = self.exported.contains(&shape.id);
        let name = match is_exported {
            true => {
                self.describe(shape);
                shape.id.to_string()
            }
            false => OTHER.to_owned(),
        };
        let labels = vec![Label::new("shape", name.clone())];
        self.metrics
            .counter(MetricName::ShapeOperationsTotal, labels)
            .increment(sums.figures.count);
        let now = Instant::now();
        let kept = self.durations.entry(name).or_insert_with(|| Kept {
            durations: Distribution::default(),
            shape: is_exported.then(|| shape.clone()),
            since: SystemTime::now(),
            added_at: now,
        });
        kept.durations.merge(&sums.figures.durations);
        kept.added_at = now;
    }

    fn describe(&self, shape: &Shape) {
        let labels = vec![
            Label::new("shape", shape.id.to_string()),
            Label::new("command", shape.namespace.command),
            Label::new("db", shape.namespace.db.to_string()),
            Label::new("collection", shape.namespace.collection.to_string()),
            Label::new("text", exported_text(shape).to_owned()),
        ];
        self.metrics.gauge(MetricName::ShapeInfo, labels).set(1.0);
    }

    /// Moves samples into buckets and removes old series. Must be called once a second.
    pub(super) fn run_upkeep(&mut self) {
        self.metrics.run_upkeep();
        let life = SERIES_LIFE;
        if self
            .durations
            .values()
            .any(|kept| kept.added_at.elapsed() >= life)
        {
            self.durations
                .retain(|_, kept| kept.added_at.elapsed() < life);
            // Render now, because the metrics library removes old series only while it renders, and
            // there may be no scraper.
            drop(self.metrics.render());
        }
    }

    /// Renders all metrics of shapes, except the histograms.
    pub(super) fn render(&self) -> String {
        self.metrics.render()
    }

    /// Adds the distributions of durations to `histograms`.
    pub(super) fn add_histograms(&self, histograms: &mut impl Histograms) {
        let name = MetricName::ShapeDurationSeconds;
        for (shape, kept) in &self.durations {
            histograms.add(name, &[("shape", shape)], &kept.durations);
        }
    }

    /// Each series with its shape (`None` for all other shapes), its durations, and the start of
    /// the time that the durations cover.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<&Shape>, &Distribution, SystemTime)> {
        let kept = self.durations.values();
        kept.map(|kept| (kept.shape.as_ref(), &kept.durations, kept.since))
    }

    /// Estimated memory of the series, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.durations.len() * (size_of::<Kept>() + BYTES_OF_SERIES)
    }
}

/// The beginning of a shape's text that metrics show.
pub(super) fn exported_text(shape: &Shape) -> &str {
    let end = EXPORTED_TEXT_BYTES.min(shape.text.len());
    let end = shape.text.floor_char_boundary(end);
    shape.text.get(..end).unwrap_or_default()
}

/// Estimated bytes of one series: its labels, and two copies of the text of its values and buckets.
const BYTES_OF_SERIES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{
        Namespace,
        histograms::HistogramText,
        protobuf::{self, NativeHistograms},
    };
    use seawall_stats::Level;

    fn shape(number: u8) -> Shape {
        Shape {
            id: ShapeId::of_other_row("find", "d", &number.to_string()),
            namespace: Namespace {
                command: "find",
                db: "d".into(),
                collection: "c".into(),
            },
            text: format!("{{filter:{{f{number}:?}}}}").into(),
            level: Level::Fine,
        }
    }

    fn sums(count: u64) -> ShapeSums {
        let mut sums = ShapeSums::default();
        sums.figures.count = count;
        (0..count).for_each(|n| sums.figures.durations.record(Duration::from_micros(n * 37)));
        sums
    }

    #[tokio::test(start_paused = true)]
    async fn series_without_updates_is_removed() {
        let mut series = ShapeSeries::new().unwrap();
        let (heavy, light) = (shape(1), shape(2));
        series.choose(&[heavy.id]);
        series.add(&heavy, &sums(100));
        series.add(&light, &sums(10));
        let mut natives = NativeHistograms::default();
        series.add_histograms(&mut natives);
        let mut text = series.render();
        series.add_histograms(&mut HistogramText::new(&mut text));
        assert!(text.contains("seawall_shape_operations_total{shape=\"other\"} 10"));
        let with = protobuf::encode(&text, &natives).len();
        assert!(with > protobuf::encode(&text, &NativeHistograms::default()).len());
        let before = series.bytes();
        tokio::time::advance(SERIES_LIFE / 2).await;
        series.add(&light, &sums(1));
        series.run_upkeep();
        assert_eq!(series.bytes(), before);
        tokio::time::advance(SERIES_LIFE / 2).await;
        series.run_upkeep();
        assert_eq!(series.bytes(), before / 2);
    }
}
