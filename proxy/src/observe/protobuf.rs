//! Metrics in Prometheus' protobuf format, with native histograms.
//!
//! The metrics are parsed from the text format, so both formats show the same values. If the full
//! distribution of a histogram is known, the buckets of the distribution are added as native
//! buckets.
//!
//! Source: `io/prometheus/client/metrics.proto` of <https://github.com/prometheus/client_model>.

use std::collections::BTreeMap;

use prost::Message;

use super::{histograms::Histograms, metric_name::MetricName};
use seawall_stats::Distribution;

/// The content type of this format, in the `Accept` header of a scraper.
pub(crate) const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) help: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    pub(super) metrics: Vec<Metric>,
}

/// The format's numbers for the kinds of metrics, from the enum `MetricType`.
pub(super) const COUNTER: i32 = 0;
pub(super) const GAUGE: i32 = 1;
const UNTYPED: i32 = 3;
const HISTOGRAM: i32 = 4;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub(super) gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    pub(super) counter: Option<Value>,
    #[prost(message, optional, tag = "5")]
    untyped: Option<Value>,
    #[prost(message, optional, tag = "7")]
    pub(super) histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub(super) struct LabelPair {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) value: Option<String>,
}

/// A gauge, a counter or an untyped value: all three have the same encoding.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Value {
    #[prost(double, optional, tag = "1")]
    pub(super) value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    pub(super) sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    pub(super) sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) buckets: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_spans: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    positive_deltas: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    pub(super) cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    pub(super) upper_bound: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

/// Label names with their values, sorted by name.
type Labels = Vec<(String, String)>;

/// The native buckets of histograms, by metric name and labels.
#[derive(Debug, Default)]
pub(super) struct NativeHistograms(BTreeMap<(String, Labels), Native>);

#[derive(Debug)]
struct Native {
    schema: i32,
    /// The number and the count of each bucket, in ascending order. Bucket number i ends at 2^(i/n)
    /// seconds, where n is the number of buckets per power of two.
    buckets: Vec<(i32, u64)>,
}

impl Histograms for NativeHistograms {
    fn add<const PER_OCTAVE: usize>(
        &mut self,
        metric: MetricName,
        labels: &[(&'static str, &str)],
        distribution: &Distribution<PER_OCTAVE>,
    ) {
        let mut labels: Labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        labels.sort();
        let native = Native {
            schema: Distribution::<PER_OCTAVE>::SCALE,
            buckets: distribution
                .buckets()
                .map(|(bucket, count)| (Distribution::<PER_OCTAVE>::upper_exponent(bucket), count))
                .collect(),
        };
        self.0.insert((metric.as_str().to_owned(), labels), native);
    }
}

impl NativeHistograms {
    fn find(&self, metric: &str, labels: Labels) -> Option<&Native> {
        self.0.get(&(metric.to_owned(), labels))
    }
}

/// Converts metrics from the text format to protobuf. Each metric family is preceded by its encoded
/// length in bytes.
pub(super) fn encode(text: &str, natives: &NativeHistograms) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in families(text, natives) {
        let encoded = family.encode_length_delimited(&mut bytes);
        encoded.expect("a vector grows as needed");
    }
    bytes
}

/// Parses `text`, which is in the text format, into metric families with their series. Adds the
/// native buckets in `natives` to the histograms.
pub(super) fn families(text: &str, natives: &NativeHistograms) -> Vec<MetricFamily> {
    let mut families: Vec<MetricFamily> = Vec::new();
    let mut helps: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            helps.insert(name, help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        {
            families.push(MetricFamily {
                name: Some(name.to_owned()),
                help: helps.get(name).map(|help| (*help).to_owned()),
                kind: Some(match kind {
                    "counter" => COUNTER,
                    "gauge" => GAUGE,
                    "histogram" => HISTOGRAM,
                    _ => UNTYPED,
                }),
                metrics: Vec::new(),
            });
        } else if let (Some(family), Some(sample)) = (families.last_mut(), Sample::parse(line)) {
            family.add(sample);
        }
    }
    for family in families.iter_mut().filter(|f| f.kind == Some(HISTOGRAM)) {
        family.add_natives(natives);
    }
    families
}

/// One line of the text format: a series and its value.
struct Sample<'a> {
    name: &'a str,
    labels: Labels,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (series, value) = line.rsplit_once(' ')?;
        let value = value.parse().ok()?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}')?)),
            None => (series, Vec::new()),
        };
        Some(Self {
            name,
            labels,
            value,
        })
    }
}

/// Parses the text between the braces, `name="value",…`. Values may contain `\\`, `\"` and `\n`.
fn parse_labels(mut text: &str) -> Labels {
    let mut labels = Vec::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let mut end = rest.len();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match characters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, other)) => value.push(other),
                    None => {}
                },
                other => value.push(other),
            }
        }
        labels.push((name.trim_start_matches(',').to_owned(), value));
        text = rest.get(end..).unwrap_or_default();
    }
    labels.sort();
    labels
}

impl MetricFamily {
    fn add(&mut self, sample: Sample<'_>) {
        let value = Some(Value {
            value: Some(sample.value),
        });
        if self.kind == Some(HISTOGRAM) {
            self.add_to_histogram(sample);
            return;
        }
        let mut metric = Metric {
            labels: pairs(&sample.labels),
            ..Metric::default()
        };
        match self.kind {
            Some(COUNTER) => metric.counter = value,
            Some(GAUGE) => metric.gauge = value,
            _ => metric.untyped = value,
        }
        self.metrics.push(metric);
    }

    /// Adds a line of a histogram. The lines `_bucket`, `_sum` and `_count` of one series must
    /// follow one another, because each line is added to the last series.
    fn add_to_histogram(&mut self, mut sample: Sample<'_>) {
        let bound = sample.labels.iter().position(|(name, _)| name == "le");
        let bound = bound.map(|at| sample.labels.remove(at).1);
        let labels = pairs(&sample.labels);
        if self.metrics.last().is_none_or(|last| last.labels != labels) {
            self.metrics.push(Metric {
                labels,
                histogram: Some(Histogram::default()),
                ..Metric::default()
            });
        }
        let last = self.metrics.last_mut();
        let Some(histogram) = last.and_then(|metric| metric.histogram.as_mut()) else {
            return;
        };
        let name = self.name.as_deref().unwrap_or_default();
        match (sample.name.strip_prefix(name), bound) {
            (Some("_bucket"), Some(bound)) => histogram.buckets.push(Bucket {
                cumulative_count: Some(whole(sample.value)),
                upper_bound: bound.replace("+Inf", "inf").parse().ok(),
            }),
            (Some("_sum"), _) => histogram.sample_sum = Some(sample.value),
            (Some("_count"), _) => histogram.sample_count = Some(whole(sample.value)),
            _ => {}
        }
    }

    fn add_natives(&mut self, natives: &NativeHistograms) {
        let name = self.name.clone().unwrap_or_default();
        for metric in &mut self.metrics {
            let labels = metric.labels.iter().map(|pair| {
                let text = |part: &Option<String>| part.clone().unwrap_or_default();
                (text(&pair.name), text(&pair.value))
            });
            let native = natives.find(&name, labels.collect());
            // Add no native buckets if their total count differs from the classic count: a scraper
            // refuses a histogram whose classic and native counts differ.
            if let (Some(native), Some(histogram)) = (native, &mut metric.histogram)
                && histogram.sample_count == Some(native.count())
            {
                native.add_to(histogram);
            }
        }
    }
}

impl Native {
    fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Adds the buckets to a histogram. Consecutive buckets form a span. Each count is encoded as
    /// the difference from the count of the bucket before it.
    fn add_to(&self, histogram: &mut Histogram) {
        histogram.schema = Some(self.schema);
        histogram.zero_threshold = Some(0.0);
        histogram.zero_count = Some(0);
        let (mut expected, mut last) = (0, 0_i64);
        for (number, count) in &self.buckets {
            match histogram.positive_spans.last_mut() {
                Some(span) if *number == expected => {
                    span.length = span.length.map(|length| length + 1);
                }
                Some(_) | None => histogram.positive_spans.push(BucketSpan {
                    offset: Some(number - expected),
                    length: Some(1),
                }),
            }
            expected = number + 1;
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            histogram.positive_deltas.push(count - last);
            last = count;
        }
        if self.buckets.is_empty() {
            // In this format, one span without buckets marks a native histogram without values.
            // Without this span, a scraper would take the histogram for a classic one. It would
            // then not see the first values as an increase from 0.
            histogram.positive_spans.push(BucketSpan {
                offset: Some(0),
                length: Some(0),
            });
        }
    }
}

fn pairs(labels: &Labels) -> Vec<LabelPair> {
    let pair = |(name, value): &(String, String)| LabelPair {
        name: Some(name.clone()),
        value: Some(value.clone()),
    };
    labels.iter().map(pair).collect()
}

#[expect(
    clippy::as_conversions,
    reason = "counts are parsed from text as floats, and are whole numbers"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TEXT: &str = "\
# HELP seawall_a_total Help of \"a\".
# TYPE seawall_a_total counter
seawall_a_total{db=\"x\\\"y\\\\z\",collection=\"c,d=\\\"\"} 3

# TYPE seawall_b gauge
seawall_b -1.5

# TYPE seawall_operation_phase_seconds histogram
seawall_operation_phase_seconds_bucket{phase=\"server\",le=\"0.5\"} 1
seawall_operation_phase_seconds_bucket{phase=\"server\",le=\"+Inf\"} 4
seawall_operation_phase_seconds_sum{phase=\"server\"} 4.25
seawall_operation_phase_seconds_count{phase=\"server\"} 4
seawall_operation_phase_seconds_bucket{phase=\"send\",le=\"+Inf\"} 0
seawall_operation_phase_seconds_sum{phase=\"send\"} 0
seawall_operation_phase_seconds_count{phase=\"send\"} 0
";

    fn natives() -> NativeHistograms {
        let mut distribution = Distribution::<8>::default();
        // The bucket that ends at 1 s has number 0. The durations 1.05 s and 3 s are in the buckets
        // 1 and 13.
        for millis in [1_000, 1_000, 1_050, 3_000] {
            distribution.record(Duration::from_millis(millis));
        }
        let mut natives = NativeHistograms::default();
        natives.add(
            MetricName::OperationPhaseSeconds,
            &[("phase", "server")],
            &distribution,
        );
        natives
    }

    #[test]
    fn text_and_protobuf_formats_show_the_same_values() {
        let bytes = encode(TEXT, &natives());
        let mut rest = &*bytes;
        let mut families = Vec::new();
        while !rest.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
        }
        let [a, b, c] = &*families else {
            panic!("{families:?}")
        };
        assert_eq!(a.help.as_deref(), Some("Help of \"a\"."));
        let labels: Vec<_> = a.metrics[0]
            .labels
            .iter()
            .map(|pair| {
                (
                    pair.name.as_deref().unwrap(),
                    pair.value.as_deref().unwrap(),
                )
            })
            .collect();
        assert_eq!(labels, [("collection", "c,d=\""), ("db", "x\"y\\z")]);
        assert_eq!(a.metrics[0].counter.unwrap().value, Some(3.0));
        assert_eq!(b.metrics[0].gauge.unwrap().value, Some(-1.5));
        let server = c.metrics[0].histogram.as_ref().unwrap();
        assert_eq!(
            (server.sample_count, server.sample_sum),
            (Some(4), Some(4.25))
        );
        assert_eq!(server.buckets[1].upper_bound, Some(f64::INFINITY));
        assert_eq!(c.metrics.len(), 2);
        assert_eq!(c.metrics[1].histogram.as_ref().unwrap().schema, None);
    }

    #[test]
    fn the_numbers_of_native_buckets_follow_the_prometheus_format() {
        let families = families(TEXT, &natives());
        let server = families[2].metrics[0].histogram.as_ref().unwrap();
        assert_eq!(server.schema, Some(3));
        // 3 s is in (2^(12/8), 2^(13/8)].
        let spans: Vec<_> = server
            .positive_spans
            .iter()
            .map(|span| (span.offset.unwrap(), span.length.unwrap()))
            .collect();
        assert_eq!(spans, [(0, 2), (11, 1)]);
        assert_eq!(server.positive_deltas, [2, -1, 0]);
    }

    #[test]
    fn a_native_histogram_without_values_has_one_span_without_buckets() {
        let mut natives = NativeHistograms::default();
        natives.add(
            MetricName::OperationPhaseSeconds,
            &[("phase", "send")],
            &Distribution::<8>::default(),
        );
        let families = families(TEXT, &natives);
        let send = families[2].metrics[1].histogram.as_ref().unwrap();
        let spans = send.positive_spans.iter();
        let spans: Vec<_> = spans.map(|span| (span.offset, span.length)).collect();
        assert_eq!((send.schema, spans), (Some(3), vec![(Some(0), Some(0))]));
        assert!(send.positive_deltas.is_empty());
    }
}
