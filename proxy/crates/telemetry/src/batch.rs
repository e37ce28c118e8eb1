//! Collects the data points of one export, and encodes them as one OTLP message.
//!
//! Counters and histograms are cumulative: each point has the sum since the start of its series, so
//! the next export also contains the counts of a lost export. A distribution divides each range
//! from one power of two to the next into n buckets, whose bounds are powers of 2^(1/n). The number
//! n is a power of two (8 or 32). So these are exactly the buckets of an OTLP exponential
//! histogram, and their counts are copied unchanged.
//!
//! Source: <https://opentelemetry.io/docs/specs/otel/metrics/data-model/>.

use std::{
    collections::HashMap,
    time::{SystemTime, UNIX_EPOCH},
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge,
        Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
        exponential_histogram_data_point, metric, number_data_point,
    },
    resource::v1::Resource,
};
use prost::Message as _;

use seawall_stats::{Distribution, float};

#[expect(
    clippy::as_conversions,
    reason = "the cast gives the number of the variant"
)]
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// Names and values that identify a series within its metric. Each name occurs once.
pub type Attributes = Vec<(String, String)>;

/// The kind of a metric whose points are single numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointKind {
    /// A sum that only rises.
    Counter,
    /// A sum that rises and falls. The values of different series may be added together.
    UpDownCounter,
    /// A value that rises and falls. A sum of the values of its series would have no meaning.
    Gauge,
}

/// The name, the unit and the help text of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instrument<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// The unit in the notation of UCUM (Unified Code for Units of Measure), such as `s`, `By` or
    /// `{connection}`; empty if there is none.
    pub unit: &'a str,
    /// The metric's help text.
    pub description: &'a str,
}

/// A histogram with explicit bounds, as metrics libraries represent it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Number of values.
    pub count: u64,
    /// Sum of the values.
    pub sum: f64,
    /// Inclusive upper bounds, ascending, without infinity.
    pub bounds: Vec<f64>,
    /// Number of values in each bucket. There is one bucket more than there are bounds.
    pub counts: Vec<u64>,
}

/// The data points of one export.
#[derive(Debug)]
pub struct Batch {
    started_ns: u64,
    now_ns: u64,
    metrics: Vec<Metric>,
    /// The index of each metric in `metrics`, by the metric's name.
    positions: HashMap<String, usize>,
}

impl Batch {
    /// Creates an empty batch for points with the time `now`. A series starts at `started_at`,
    /// unless the caller adds it with another start.
    pub fn new(started_at: SystemTime, now: SystemTime) -> Self {
        Self {
            started_ns: nanoseconds(started_at),
            now_ns: nanoseconds(now),
            metrics: Vec::new(),
            positions: HashMap::new(),
        }
    }

    /// Adds one point to a metric whose points are single numbers. `value` is the current value of
    /// the series that has these attributes. The value of a counter or of an up-down counter must
    /// be a whole number below 2^53.
    pub fn add_number(
        &mut self,
        of: Instrument<'_>,
        kind: PointKind,
        attributes: Attributes,
        value: f64,
    ) {
        let point = NumberDataPoint {
            attributes: key_values(attributes),
            start_time_unix_nano: match kind {
                PointKind::Counter | PointKind::UpDownCounter => self.started_ns,
                PointKind::Gauge => 0,
            },
            time_unix_nano: self.now_ns,
            value: Some(match kind {
                PointKind::Counter | PointKind::UpDownCounter => {
                    number_data_point::Value::AsInt(whole(value))
                }
                PointKind::Gauge => number_data_point::Value::AsDouble(value),
            }),
            ..NumberDataPoint::default()
        };
        let sum = |is_monotonic| {
            metric::Data::Sum(Sum {
                data_points: Vec::new(),
                aggregation_temporality: CUMULATIVE,
                is_monotonic,
            })
        };
        let metric = self.metric(of, || match kind {
            PointKind::Counter => sum(true),
            PointKind::UpDownCounter => sum(false),
            PointKind::Gauge => metric::Data::Gauge(Gauge::default()),
        });
        match &mut metric.data {
            Some(metric::Data::Sum(sum)) => sum.data_points.push(point),
            Some(metric::Data::Gauge(gauge)) => gauge.data_points.push(point),
            _ => debug_assert!(false, "a metric was added with two kinds"),
        }
    }

    /// Adds a histogram with explicit bounds.
    pub fn add_buckets(&mut self, of: Instrument<'_>, attributes: Attributes, buckets: Buckets) {
        let point = HistogramDataPoint {
            attributes: key_values(attributes),
            start_time_unix_nano: self.started_ns,
            time_unix_nano: self.now_ns,
            count: buckets.count,
            sum: Some(buckets.sum),
            bucket_counts: buckets.counts,
            explicit_bounds: buckets.bounds,
            ..HistogramDataPoint::default()
        };
        let metric = self.metric(of, || {
            metric::Data::Histogram(Histogram {
                data_points: Vec::new(),
                aggregation_temporality: CUMULATIVE,
            })
        });
        match &mut metric.data {
            Some(metric::Data::Histogram(histogram)) => histogram.data_points.push(point),
            _ => debug_assert!(false, "a metric was added with two kinds"),
        }
    }

    /// Adds a distribution of durations, in seconds. `started_at` is the start of the series;
    /// `None` if the series began at the time that was passed to [`Self::new`].
    pub fn add_distribution<const PER_OCTAVE: usize>(
        &mut self,
        of: Instrument<'_>,
        attributes: Attributes,
        distribution: &Distribution<PER_OCTAVE>,
        started_at: Option<SystemTime>,
    ) {
        let point = ExponentialHistogramDataPoint {
            attributes: key_values(attributes),
            start_time_unix_nano: started_at.map_or(self.started_ns, nanoseconds),
            time_unix_nano: self.now_ns,
            count: distribution.count(),
            sum: Some(distribution.sum().as_secs_f64()),
            scale: Distribution::<PER_OCTAVE>::SCALE,
            positive: buckets(distribution),
            ..ExponentialHistogramDataPoint::default()
        };
        let metric = self.metric(of, || {
            metric::Data::ExponentialHistogram(ExponentialHistogram {
                data_points: Vec::new(),
                aggregation_temporality: CUMULATIVE,
            })
        });
        match &mut metric.data {
            Some(metric::Data::ExponentialHistogram(histogram)) => {
                histogram.data_points.push(point);
            }
            _ => debug_assert!(false, "a metric was added with two kinds"),
        }
    }

    /// Encodes the message of the export. `resource` is a list of attributes that identify this
    /// instance of Seawall.
    pub fn encode(self, resource: &[(String, String)]) -> Vec<u8> {
        let resource = Resource {
            attributes: key_values(resource.iter().cloned()),
            ..Resource::default()
        };
        let scope = InstrumentationScope {
            name: "seawall".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(resource),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope),
                    metrics: self.metrics,
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }],
        };
        request.encode_to_vec()
    }

    /// The metric with this name. A metric that does not exist yet is created with `data`.
    fn metric(&mut self, of: Instrument<'_>, data: impl FnOnce() -> metric::Data) -> &mut Metric {
        let next = self.metrics.len();
        let position = match self.positions.get(of.name) {
            Some(position) => *position,
            None => {
                self.positions.insert(of.name.to_owned(), next);
                self.metrics.push(Metric {
                    name: of.name.to_owned(),
                    description: of.description.to_owned(),
                    unit: of.unit.to_owned(),
                    metadata: Vec::new(),
                    data: Some(data()),
                });
                next
            }
        };
        let metric = self.metrics.get_mut(position);
        metric.expect("`positions` has only indexes of `metrics`")
    }
}

/// Converts the buckets of a distribution to the buckets of an OTLP exponential histogram. The OTLP
/// bucket with the number `index` has the bounds (base^index, base^(index + 1)], where base is
/// 2^(1/`PER_OCTAVE`). The OTLP message has a count for each bucket, from the first bucket that is
/// not empty to the last bucket that is not empty. Returns `None` if all buckets are empty.
///
/// The lowest bucket of a distribution also counts all shorter durations, and its highest bucket
/// all longer durations. So the two OTLP buckets that result from them may also count durations
/// outside their bounds.
fn buckets<const PER_OCTAVE: usize>(
    distribution: &Distribution<PER_OCTAVE>,
) -> Option<exponential_histogram_data_point::Buckets> {
    let (first, _) = distribution.buckets().next()?;
    let mut bucket_counts = Vec::new();
    for (bucket, count) in distribution.buckets() {
        bucket_counts.resize(bucket - first, 0);
        bucket_counts.push(count);
    }
    Some(exponential_histogram_data_point::Buckets {
        offset: Distribution::<PER_OCTAVE>::upper_exponent(first) - 1,
        bucket_counts,
    })
}

fn key_values(attributes: impl IntoIterator<Item = (String, String)>) -> Vec<KeyValue> {
    let pairs = attributes.into_iter().map(|(key, value)| KeyValue {
        key,
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value)),
        }),
        ..KeyValue::default()
    });
    pairs.collect()
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(
    clippy::as_conversions,
    reason = "counts are whole numbers; the conversion saturates"
)]
fn whole(value: f64) -> i64 {
    debug_assert!(value < float(1 << 53));
    value as i64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seawall_stats::FineDistribution;

    use super::*;

    const OF: Instrument<'static> = Instrument {
        name: "a",
        unit: "s",
        description: "A.",
    };

    fn batch() -> Batch {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        Batch::new(at(5), at(9))
    }

    fn decoded(batch: Batch) -> Vec<Metric> {
        let bytes = batch.encode(&[("service.name".to_owned(), "s".to_owned())]);
        let request = ExportMetricsServiceRequest::decode(&*bytes).unwrap();
        let [resource] = &*request.resource_metrics else {
            panic!("{request:?}")
        };
        let attributes = &resource.resource.as_ref().unwrap().attributes;
        assert_eq!(attributes[0].key, "service.name");
        assert_eq!(resource.scope_metrics.len(), 1);
        resource.scope_metrics[0].metrics.clone()
    }

    #[test]
    fn otlp_exports_counters_as_sums_with_a_start_time_and_gauges_as_gauges() {
        let mut batch = batch();
        for (name, kind) in [
            ("counter", PointKind::Counter),
            ("up_down", PointKind::UpDownCounter),
            ("gauge", PointKind::Gauge),
        ] {
            let of = Instrument { name, ..OF };
            batch.add_number(of, kind, vec![("k".to_owned(), "1".to_owned())], 3.0);
            batch.add_number(of, kind, vec![("k".to_owned(), "2".to_owned())], 4.0);
        }
        let metrics = decoded(batch);
        let [counter, up_down, gauge] = &*metrics else {
            panic!("{metrics:?}")
        };
        for (metric, is_monotonic) in [(counter, true), (up_down, false)] {
            let Some(metric::Data::Sum(sum)) = &metric.data else {
                panic!("{metric:?}")
            };
            assert_eq!(sum.is_monotonic, is_monotonic);
            assert_eq!(
                sum.aggregation_temporality(),
                AggregationTemporality::Cumulative
            );
            assert_eq!(sum.data_points.len(), 2);
            let point = &sum.data_points[1];
            assert_eq!(point.start_time_unix_nano, 5_000_000_000);
            assert_eq!(point.time_unix_nano, 9_000_000_000);
            assert_eq!(point.value, Some(number_data_point::Value::AsInt(4)));
        }
        let Some(metric::Data::Gauge(gauge)) = &gauge.data else {
            panic!("{gauge:?}")
        };
        let value = gauge.data_points[0].value;
        assert_eq!(value, Some(number_data_point::Value::AsDouble(3.0)));
        assert_eq!((&*counter.unit, &*counter.description), ("s", "A."));
    }

    /// Some recorded durations are exactly at a bound or just above a bound, so the test fails if
    /// buckets are shifted by one.
    #[test]
    fn an_exported_histogram_has_the_bucket_bounds_and_counts_of_its_distribution() {
        fn check<const N: usize>() {
            let mut distribution = Distribution::<N>::default();
            let durations = [
                1,
                500,
                500,
                1_001,
                1_000_000_001,
                250_000_000,
                2_500_000_000,
            ];
            for ns in durations {
                distribution.record(Duration::from_nanos(ns));
            }
            let mut batch = batch();
            let started_at = UNIX_EPOCH + Duration::from_secs(7);
            batch.add_distribution(OF, Vec::new(), &distribution, Some(started_at));
            let metrics = decoded(batch);
            let Some(metric::Data::ExponentialHistogram(histogram)) = &metrics[0].data else {
                panic!("{metrics:?}")
            };
            let point = &histogram.data_points[0];
            assert_eq!(point.start_time_unix_nano, 7_000_000_000);
            assert_eq!(point.count, 7);
            assert_eq!(point.sum, Some(distribution.sum().as_secs_f64()));
            assert_eq!(point.zero_count, 0);
            let base = (-f64::from(point.scale)).exp2().exp2();
            let positive = point.positive.as_ref().unwrap();
            assert_eq!(positive.bucket_counts.iter().sum::<u64>(), 7);
            assert_eq!(
                positive.bucket_counts.first().map(|count| *count > 0),
                Some(true)
            );
            let mut expected = distribution.buckets();
            for (index, count) in (positive.offset..).zip(&positive.bucket_counts) {
                if *count == 0 {
                    continue;
                }
                let (bucket, in_bucket) = expected.next().unwrap();
                assert_eq!(*count, in_bucket);
                let (_, upper) = Distribution::<N>::bounds_seconds(bucket);
                let exported = base.powi(index + 1);
                assert!((upper / exported - 1.0).abs() < 1e-12, "{upper} {exported}");
            }
            assert_eq!(expected.next(), None);
        }
        check::<8>();
        check::<32>();
    }

    #[test]
    fn an_empty_distribution_has_no_buckets() {
        let mut batch = batch();
        let none = FineDistribution::default();
        batch.add_distribution(OF, Vec::new(), &none, None);
        let metrics = decoded(batch);
        let Some(metric::Data::ExponentialHistogram(histogram)) = &metrics[0].data else {
            panic!("{metrics:?}")
        };
        assert_eq!(histogram.data_points[0].positive, None);
        assert_eq!(histogram.data_points[0].scale, 5);
    }
}
