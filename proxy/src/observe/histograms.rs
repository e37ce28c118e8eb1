//! Histograms that are rendered from distributions.
//!
//! The histograms of the library `metrics-exporter-prometheus` keep each sample until the next call
//! of `run_upkeep` counts it in a bucket. This costs CPU time for each operation. A distribution
//! counts each duration in a bucket immediately, so it keeps no samples.

use std::{collections::BTreeMap, time::Duration};

use metrics::Label;
use metrics_exporter_prometheus::{
    LabelSet,
    formatting::{write_help_line, write_metric_line, write_type_line},
};

use super::{
    metric_handles::{FIRST_EXPORTED_OCTAVE, LAST_EXPORTED_OCTAVE, key},
    metric_name::MetricName,
};
use seawall_stats::{Distribution, octave_bound_seconds};

/// A format in which distributions are exported as histograms.
pub(super) trait Histograms {
    /// Adds one series of `metric`. All series of one metric must be added one after another,
    /// because an export has one group of lines for each metric.
    fn add<const PER_OCTAVE: usize>(
        &mut self,
        metric: MetricName,
        labels: &[(&'static str, &str)],
        distribution: &Distribution<PER_OCTAVE>,
    );
}

/// Classic histograms in Prometheus' text format.
pub(super) struct HistogramText<'t> {
    text: &'t mut String,
    metric: Option<MetricName>,
}

impl<'t> HistogramText<'t> {
    pub(super) fn new(text: &'t mut String) -> Self {
        Self { text, metric: None }
    }

    fn begin(&mut self, metric: MetricName) {
        if self.metric.replace(metric) != Some(metric) {
            let name = metric.as_str();
            write_help_line(self.text, name, None, None, metric.help());
            write_type_line(self.text, name, None, None, "histogram");
        }
    }
}

impl Histograms for HistogramText<'_> {
    fn add<const PER_OCTAVE: usize>(
        &mut self,
        metric: MetricName,
        labels: &[(&'static str, &str)],
        distribution: &Distribution<PER_OCTAVE>,
    ) {
        self.begin(metric);
        let name = metric.as_str();
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| Label::new(*name, (*value).to_owned()));
        let key = key(metric, labels.collect());
        let labels = LabelSet::from_key_and_global(&key, &Default::default());
        let counts: BTreeMap<_, _> = distribution
            .octaves()
            .map(|(octave, count, _)| (octave, count))
            .collect();
        let mut bucket = |bound: &str, count: u64| {
            let bound = Some(("le", bound));
            write_metric_line(self.text, name, Some("bucket"), &labels, bound, count, None);
        };
        for octave in FIRST_EXPORTED_OCTAVE..=LAST_EXPORTED_OCTAVE {
            let count = counts.range(..=octave).map(|(_, count)| count).sum();
            bucket(&octave_bound_seconds(octave).to_string(), count);
        }
        let count = distribution.count();
        bucket("+Inf", count);
        let none: Option<(&str, &str)> = None;
        let sum = distribution.sum().as_secs_f64();
        write_metric_line(self.text, name, Some("sum"), &labels, none, sum, None);
        write_metric_line(self.text, name, Some("count"), &labels, none, count, None);
    }
}

/// Writes a counter of seconds in Prometheus' text format. A counter of the library
/// `metrics-exporter-prometheus` cannot be used: it holds only whole numbers. Each item of `series`
/// is the name of a label, the value of the label, and the time to write.
pub(super) fn write_seconds<'s>(
    text: &mut String,
    metric: MetricName,
    series: impl Iterator<Item = (&'static str, &'s str, Duration)>,
) {
    let name = metric.as_str();
    let mut series = series.peekable();
    if series.peek().is_some() {
        write_help_line(text, name, None, None, metric.help());
        write_type_line(text, name, None, None, "counter");
    }
    for (label, value, time) in series {
        let key = key(metric, vec![Label::new(label, value.to_owned())]);
        let labels = LabelSet::from_key_and_global(&key, &Default::default());
        let none: Option<(&str, &str)> = None;
        let seconds = time.as_secs_f64();
        write_metric_line(text, name, None, &labels, none, seconds, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_are_cumulative_and_their_bounds_are_powers_of_two() {
        let mut distribution = Distribution::<8>::default();
        for time in [
            Duration::ZERO,
            Duration::from_millis(3),
            Duration::from_millis(5),
            Duration::from_secs(100),
        ] {
            distribution.record(time);
        }
        let mut text = String::new();
        let mut histograms = HistogramText::new(&mut text);
        for server in ["a", "b\"c"] {
            let labels = [("server", server)];
            histograms.add(MetricName::CheckoutSeconds, &labels, &distribution);
        }
        let lines: Vec<_> = text.lines().collect();
        let (headers, series) = lines.split_at(2);
        assert_eq!(headers[1], "# TYPE seawall_checkout_seconds histogram");
        assert!(series.iter().all(|line| !line.starts_with('#')));
        for line in [
            r#"seawall_checkout_seconds_bucket{server="a",le="0.0000152587890625"} 1"#,
            r#"seawall_checkout_seconds_bucket{server="a",le="0.00390625"} 2"#,
            r#"seawall_checkout_seconds_bucket{server="a",le="0.0078125"} 3"#,
            r#"seawall_checkout_seconds_bucket{server="a",le="64"} 3"#,
            r#"seawall_checkout_seconds_bucket{server="a",le="+Inf"} 4"#,
            r#"seawall_checkout_seconds_sum{server="a"} 100.008"#,
            r#"seawall_checkout_seconds_count{server="b\"c"} 4"#,
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
    }
}
