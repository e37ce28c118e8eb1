//! Metric series of the heaviest shapes, and one series for all other shapes.
//!
//! The heaviest shapes are those whose operations took the most time. Each operation is added to
//! one series only, so rates can be summed. A shape keeps its series while it is among the
//! heaviest, even without operations. Afterwards its series is no longer updated, and is removed
//! after ten minutes.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, SystemTime},
};

use metrics::Label;
use tokio::time::Instant;

use seawall_shape::ShapeId;
use seawall_stats::Distribution;

use super::{
    ObserveError, Shape, ShapeSums,
    histograms::{Histograms, write_seconds},
    metric_handles::Metrics,
    metric_name::MetricName,
    registry::OTHER,
};

/// A shape gets its own series when its rank by weight is at most this number. All other shapes
/// share the series `other`. So a scrape stays small.
const EXPORTED_SHAPES: usize = 200;

/// A shape's own series is no longer updated when the shape's rank by weight exceeds this number.
/// The number is larger than `EXPORTED_SHAPES`, so that series do not often stop and start again.
/// It is also the maximum number of shapes whose own series are updated at the same time.
pub(super) const KEPT_RANK: usize = 250;

/// A series is removed after this time without an update.
const SERIES_LIFE: Duration = Duration::from_secs(600);

/// The series of an exported shape is updated after this time without operations, so that it is not
/// removed.
const REFRESH_AFTER: Duration = Duration::from_secs(60);

/// Maximum length of a shape's exported text, in bytes. It bounds the size of a scrape.
const EXPORTED_TEXT_BYTES: usize = 256;

/// The metric series of shapes.
pub(super) struct ShapeSeries {
    metrics: Metrics,
    exported: HashSet<ShapeId>,
    /// The data of each series, by the value of the series' label `shape`.
    durations: HashMap<String, KeptSeries>,
}

struct KeptSeries {
    durations: Distribution,
    /// Total time of the `getMore`s on cursors that operations of the shape opened, except
    /// `getMore`s that wait for an event (are awaiting).
    more_time: Duration,
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

    /// Chooses the shapes that have their own series, and creates a series for each newly chosen
    /// shape. `heaviest` has at most [`KEPT_RANK`] shapes, in descending order of weight.
    pub(super) fn choose(&mut self, heaviest: &[Shape]) {
        let kept: HashSet<_> = heaviest.iter().map(|shape| shape.id).collect();
        self.exported.retain(|id| kept.contains(id));
        for shape in heaviest.iter().take(EXPORTED_SHAPES) {
            if self.exported.insert(shape.id) {
                self.add(shape, &ShapeSums::default());
            }
        }
        self.refresh();
    }

    /// Updates the series of exported shapes that had no operation for some time.
    fn refresh(&mut self) {
        let idle = self.durations.values();
        let idle = idle.filter(|kept| kept.added_at.elapsed() >= REFRESH_AFTER);
        let idle = idle.filter_map(|kept| kept.shape.as_ref());
        let idle = idle.filter(|shape| self.exported.contains(&shape.id));
        let idle: Vec<_> = idle.cloned().collect();
        for shape in idle {
            self.add(&shape, &ShapeSums::default());
        }
    }

    /// Adds new sums of a shape to the shape's own series, or to the series of all other shapes.
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
        let kept = self.durations.entry(name).or_insert_with(|| KeptSeries {
            durations: Distribution::default(),
            more_time: Duration::ZERO,
            shape: is_exported.then(|| shape.clone()),
            since: SystemTime::now(),
            added_at: now,
        });
        kept.durations.merge(&sums.figures.durations);
        kept.more_time += sums.figures.more_time;
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

    /// Moves samples into buckets and removes old series. Must be called once a second, because
    /// samples use memory until they are moved.
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
        let mut text = self.metrics.render();
        let series = self.durations.iter();
        let series = series.map(|(shape, kept)| ("shape", &**shape, kept.more_time));
        write_seconds(&mut text, MetricName::ShapeGetmoreSecondsTotal, series);
        text
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

    /// Sets each start of a series that is after `now` to `now`.
    pub(super) fn limit_starts(&mut self, now: SystemTime) {
        for kept in self.durations.values_mut() {
            kept.since = kept.since.min(now);
        }
    }

    /// Estimated memory of the series, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.durations.len() * (size_of::<KeptSeries>() + BYTES_OF_SERIES)
    }
}

/// The beginning of a shape's text, which metrics show instead of the whole text.
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

    /// `heavy` has its own metric series. `light` is counted in the series of all other shapes.
    #[tokio::test(start_paused = true)]
    async fn a_metric_series_of_shapes_is_removed_ten_minutes_after_its_last_update() {
        let mut series = ShapeSeries::new().unwrap();
        let (heavy, light) = (shape(1), shape(2));
        series.choose(std::slice::from_ref(&heavy));
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

    /// Only the shapes that took the most time are chosen. `former` is no longer chosen.
    #[tokio::test(start_paused = true)]
    async fn a_shape_chosen_for_export_has_a_metric_series_even_without_operations() {
        let mut series = ShapeSeries::new().unwrap();
        let (idle, former) = (shape(1), shape(2));
        series.choose(&[idle.clone(), former]);
        for _ in 0..4 {
            tokio::time::advance(SERIES_LIFE / 2).await;
            series.choose(std::slice::from_ref(&idle));
            series.run_upkeep();
        }
        let line = format!(
            "seawall_shape_operations_total{{shape=\"{}\"}} 0\n",
            idle.id
        );
        let text = series.render();
        assert!(text.contains(&line), "{text}");
        let kept: Vec<_> = series.durations.into_keys().collect();
        assert_eq!(kept, [idle.id.to_string()]);
    }

    /// After a deploy, new shapes can be heavier than all others, although the others still run.
    #[tokio::test(start_paused = true)]
    async fn a_new_heaviest_shape_gets_a_series_while_all_former_ones_keep_theirs() {
        let mut series = ShapeSeries::new().unwrap();
        let former: Vec<_> = (0..200).map(shape).collect();
        assert_eq!(former.len(), EXPORTED_SHAPES);
        series.choose(&former);
        let new = shape(200);
        let heaviest: Vec<_> = [new.clone()].into_iter().chain(former.clone()).collect();
        series.choose(&heaviest);
        series.add(&new, &sums(7));
        former.iter().for_each(|shape| series.add(shape, &sums(1)));
        let text = series.render();
        let line = |id: ShapeId, count: u64| {
            format!("seawall_shape_operations_total{{shape=\"{id}\"}} {count}\n")
        };
        assert!(text.contains(&line(new.id, 7)), "{text}");
        let kept = former.iter().all(|of| text.contains(&line(of.id, 1)));
        assert!(kept, "{text}");
    }

    /// `heavy` has its own metric series. `light` is counted in the series of all other shapes.
    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_getmore_counts_for_the_shape_that_opened_its_cursor() {
        let mut series = ShapeSeries::new().unwrap();
        let (heavy, light) = (shape(1), shape(2));
        series.choose(std::slice::from_ref(&heavy));
        let mut mores = ShapeSums::default();
        mores.figures.more_time = Duration::from_millis(1_250);
        for shape in [&heavy, &heavy, &light] {
            series.add(shape, &mores);
        }
        let text = series.render();
        let name = "seawall_shape_getmore_seconds_total";
        assert!(text.contains(&format!("# TYPE {name} counter\n")), "{text}");
        for line in [
            format!("{name}{{shape=\"{}\"}} 2.5\n", heavy.id),
            format!("{name}{{shape=\"other\"}} 1.25\n"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}
