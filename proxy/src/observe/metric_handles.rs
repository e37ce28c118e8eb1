//! Creates handles on metrics. A handle can be kept, so that later updates of the metric need no
//! look-up.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{
    BuildError, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use metrics_util::MetricKindMask;

use super::metric_name::{MetricKind, MetricName};
use seawall_stats::{OCTAVES, octave_bound_seconds};

/// The first octave (range of times between two powers of two) that classic histograms export. All
/// times under 15 µs are in the bucket of this octave.
pub(super) const FIRST_EXPORTED_OCTAVE: usize = 4;
/// The last octave that classic histograms export. It ends at 64 s.
pub(super) const LAST_EXPORTED_OCTAVE: usize = 26;
const _: () = assert!(LAST_EXPORTED_OCTAVE < OCTAVES);

const METADATA: Metadata<'static> = Metadata::new("seawall", Level::INFO, Some("seawall"));

/// A recorder of metrics. It is not installed process-wide, so two instances of Seawall in one
/// process (in tests) have separate metrics.
pub(super) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Metrics {
    /// Creates a recorder that knows every metric's help text. Series that were not updated for
    /// `life` are no longer rendered; with `None`, all series are rendered.
    pub(super) fn new(life: Option<Duration>) -> Result<Self, BuildError> {
        let bounds: Vec<f64> = (FIRST_EXPORTED_OCTAVE..=LAST_EXPORTED_OCTAVE)
            .map(octave_bound_seconds)
            .collect();
        let recorder = PrometheusBuilder::new()
            .set_buckets(&bounds)?
            .idle_timeout(MetricKindMask::ALL, life)
            .build_recorder();
        for name in MetricName::ALL {
            let (key, help) = (KeyName::from_const_str(name.as_str()), name.help().into());
            match name.kind() {
                MetricKind::Counter => recorder.describe_counter(key, None, help),
                MetricKind::Gauge => recorder.describe_gauge(key, None, help),
                MetricKind::Histogram => recorder.describe_histogram(key, None, help),
            }
        }
        let handle = recorder.handle();
        Ok(Self { recorder, handle })
    }

    pub(super) fn counter(&self, name: MetricName, labels: Vec<Label>) -> Counter {
        debug_assert_eq!(name.kind(), MetricKind::Counter);
        self.recorder
            .register_counter(&key(name, labels), &METADATA)
    }

    pub(super) fn gauge(&self, name: MetricName, labels: Vec<Label>) -> Gauge {
        debug_assert_eq!(name.kind(), MetricKind::Gauge);
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    pub(super) fn histogram(&self, name: MetricName, labels: Vec<Label>) -> Histogram {
        debug_assert_eq!(name.kind(), MetricKind::Histogram);
        self.recorder
            .register_histogram(&key(name, labels), &METADATA)
    }

    /// Adds one to a counter. Used for counters that change so rarely that no handle is kept for
    /// them.
    pub(super) fn count(&self, name: MetricName, labels: &[(&'static str, &'static str)]) {
        let labels = labels.iter();
        let labels = labels.map(|(key, value)| Label::new(*key, *value));
        self.counter(name, labels.collect()).increment(1);
    }

    /// Moves recorded samples of histograms into buckets. Must be called regularly: otherwise
    /// samples use more and more memory until the next scrape.
    pub(super) fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }

    pub(super) fn render(&self) -> String {
        self.handle.render()
    }
}

/// The key of a series whose labels are exported with exactly these values.
pub(super) fn key(name: MetricName, labels: Vec<Label>) -> Key {
    let labels: Vec<_> = labels.into_iter().map(doubled).collect();
    Key::from_parts(KeyName::from_const_str(name.as_str()), labels)
}

/// Doubles each backslash in the value of a label. The library treats two backslashes as one
/// backslash that is already escaped, so it would render `\` and `\\` alike. The library escapes
/// quotes and line feeds correctly unless there is a single backslash before them.
fn doubled(label: Label) -> Label {
    if !label.value().contains('\\') {
        return label;
    }
    let (name, value) = label.into_parts();
    Label::new(name, value.replace('\\', r"\\"))
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use tokio::time::Instant;

    use super::*;
    use crate::observe::{
        Observer,
        protobuf::{self, Metric, NativeHistograms},
    };
    use seawall_command::CommandBytes;
    use seawall_stats::Outcome;

    fn label<'a>(metric: &'a Metric, name: &str) -> &'a str {
        let mut labels = metric.labels.iter();
        let label = labels.find(|label| label.name.as_deref() == Some(name));
        label.unwrap().value.as_deref().unwrap()
    }

    #[test]
    fn label_values_with_backslashes_and_quotes_are_exported_exactly() {
        let observer = Observer::with_shapes();
        let mut collections = ["a\\b", "a\\\\b", "a\\", "a\\\"b", "a\\\nb", "a\"\nb"];
        for collection in collections {
            let find = doc! { "find": collection, "filter": { "x\"y\\z": 1 }, "$db": "shop" };
            let body = find.to_vec().unwrap();
            let input = CommandBytes::of_body(&body);
            let began = Instant::now();
            let operation = observer.recorder.begin(&input, 0, began);
            operation.finish(Outcome::Ok, began + Duration::from_millis(1));
        }
        let text = observer.exporter.render();
        for collection in [
            r"a\\b",
            r"a\\\\b",
            r"a\\",
            r#"a\\\"b"#,
            r"a\\\nb",
            r#"a\"\nb"#,
        ] {
            let labels = format!(r#"command="find",db="shop",collection="{collection}""#);
            let line = format!("seawall_operations_total{{{labels},outcome=\"ok\"}} 1\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
        collections.sort_unstable();
        let families = protobuf::families(&text, &NativeHistograms::default());
        for name in [
            MetricName::OperationsTotal,
            MetricName::OperationDurationSeconds,
            MetricName::ShapeInfo,
        ] {
            let mut families = families.iter();
            let family = families.find(|family| family.name.as_deref() == Some(name.as_str()));
            let metrics = &family.unwrap().metrics;
            let mut exported: Vec<_> = metrics.iter().map(|m| label(m, "collection")).collect();
            exported.sort_unstable();
            assert_eq!(exported, collections, "{}", name.as_str());
            if name == MetricName::ShapeInfo {
                for metric in metrics {
                    assert_eq!(label(metric, "text"), r#"{filter:{"x\"y\\z":?}}"#);
                }
            }
        }
    }
}
