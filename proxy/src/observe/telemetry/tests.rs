//! Decodes exports, and compares them with the recorded operations and with `/metrics`.

use std::time::Duration;

use bson::{Document, doc};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{KeyValue, any_value},
    metrics::v1::{ExponentialHistogramDataPoint, metric, number_data_point},
};
use prost::Message as _;
use tokio::time::Instant;

use super::*;
use crate::observe::{Observer, ObserverSettings, outcome_of};
use seawall_command::{CommandBytes, ReplyFacts, ReplyForm};

fn observer() -> Observer {
    Observer::with_shapes()
}

/// Records an operation that takes `ms` milliseconds.
fn record(observer: &Observer, command: &Document, outcome: Result<&Document, Outcome>, ms: u64) {
    let body = command.to_vec().unwrap();
    let input = CommandBytes::of_body(&body);
    let began = Instant::now();
    let ended = began + Duration::from_millis(ms);
    let mut observation = observer.recorder.begin(&input, 0, began);
    observation.set_server(observer.recorder.server("a:1").index());
    let outcome = outcome.map(|reply| {
        let facts = ReplyFacts::of(ReplyForm::Plain, &reply.to_vec().unwrap());
        observation.record_reply(&facts, ended);
        outcome_of(&facts)
    });
    observation.finish(outcome.unwrap_or_else(|failure| failure), ended);
}

fn metrics(observer: &Observer) -> Vec<(String, metric::Data)> {
    decoded(observer.exporter.telemetry())
}

fn decoded(batch: Batch) -> Vec<(String, metric::Data)> {
    let bytes = batch.encode(&[]);
    let request = ExportMetricsServiceRequest::decode(&*bytes).unwrap();
    let metrics = request.resource_metrics[0].scope_metrics[0].metrics.iter();
    let metrics = metrics.map(|metric| (metric.name.clone(), metric.data.clone().unwrap()));
    metrics.collect()
}

fn histogram(observer: &Observer, name: &str) -> Vec<ExponentialHistogramDataPoint> {
    let mut metrics = metrics(observer).into_iter();
    match metrics.find(|(other, _)| other == name) {
        Some((_, metric::Data::ExponentialHistogram(histogram))) => histogram.data_points,
        other => panic!("{name}: {other:?}"),
    }
}

fn attribute<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let mut named = attributes.iter().filter(|of| of.key == name);
    let value = named.next()?.value.as_ref()?.value.as_ref()?;
    assert!(named.next().is_none(), "{name} occurs twice");
    match value {
        any_value::Value::StringValue(text) => Some(text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_operation_is_counted_in_one_metric_series_with_opentelemetry_attributes() {
    let observer = observer();
    let find = doc! {"find": "orders", "filter": {"a": 1}, "$db": "shop"};
    let ok = doc! {"ok": 1};
    let duplicate = doc! {"ok": 0, "code": 11000};
    for ms in [1, 2, 3] {
        record(&observer, &find, Ok(&ok), ms);
    }
    record(&observer, &find, Ok(&duplicate), 40);
    record(&observer, &find, Err(Outcome::Refused), 50);
    let ping = doc! {"ping": 1, "$db": "admin"};
    record(&observer, &ping, Ok(&ok), 1);
    let mut rows: Vec<_> = histogram(&observer, "db.client.operation.duration")
        .into_iter()
        .map(|point| {
            let of = |name| attribute(&point.attributes, name).map(str::to_owned);
            assert_eq!(of("db.system.name").unwrap(), "mongodb");
            let buckets = point.positive.as_ref().unwrap();
            assert_eq!(buckets.bucket_counts.iter().sum::<u64>(), point.count);
            let names = [
                "db.operation.name",
                "db.namespace",
                "db.collection.name",
                "db.query.summary",
                "db.response.status_code",
                "error.type",
            ];
            let values = names.map(|name| of(name).unwrap_or_default()).join(" ");
            let ms = (point.sum.unwrap() * 1e3).round();
            (values, point.count, ms)
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("find shop orders find orders  ", 3, 6.0),
        ("find shop orders find orders  refused", 1, 50.0),
        ("find shop orders find orders 11000 11000", 1, 40.0),
        ("ping admin  ping  ", 1, 1.0),
    ];
    let expected = expected.map(|(values, count, ms)| (values.to_owned(), count, ms));
    assert_eq!(rows, expected);
}

#[test]
fn failures_with_the_same_code_are_in_one_series() {
    let observer = observer();
    let insert = doc! {"insert": "orders", "$db": "shop"};
    let failed = doc! {"ok": 0, "code": 6};
    let unsafe_write = doc! {"ok": 1, "writeConcernError": {"code": 6}};
    record(&observer, &insert, Ok(&failed), 10);
    record(&observer, &insert, Ok(&unsafe_write), 20);
    let points = histogram(&observer, "db.client.operation.duration");
    let [point] = &*points else {
        panic!("{points:?}");
    };
    assert_eq!(attribute(&point.attributes, "error.type"), Some("6"));
    assert_eq!(point.count, 2);
}

#[test]
fn an_exported_shape_series_has_its_shape_text_and_its_start_time() {
    let observer = observer();
    let find = doc! {"find": "orders", "filter": {"a": 1}, "$db": "shop"};
    record(&observer, &find, Ok(&doc! {"ok": 1}), 5);
    let points = histogram(&observer, "seawall.shape.duration");
    let [point] = &*points else {
        panic!("{points:?}")
    };
    let of = |name| attribute(&point.attributes, name).unwrap();
    assert!(of("db.query.text").contains("filter"), "{point:?}");
    assert_eq!(of("db.query.summary"), "find orders");
    assert_eq!(of("seawall.shape").len(), 16);
    assert_eq!((point.count, point.scale), (1, 3));
    assert!(point.start_time_unix_nano > 0);
    assert!(point.start_time_unix_nano <= point.time_unix_nano);
}

#[test]
fn failures_beyond_16_kinds_are_counted_in_one_series() {
    let observer = observer();
    let find = doc! {"find": "orders", "$db": "shop"};
    for code in 1..=40 {
        record(&observer, &find, Ok(&doc! {"ok": 0, "code": code}), 1);
    }
    let points = histogram(&observer, "db.client.operation.duration");
    assert_eq!(points.len(), 17);
    assert_eq!(points.iter().map(|point| point.count).sum::<u64>(), 40);
    let other = points.iter().find(|point| {
        attribute(&point.attributes, "error.type") == Some("_OTHER")
            && attribute(&point.attributes, "db.response.status_code").is_none()
    });
    assert_eq!(other.unwrap().count, 24);
}

#[test]
fn exported_metrics_have_the_same_values_as_the_prometheus_endpoint() {
    let observer = observer();
    let server = observer.recorder.server("a:1");
    server.count_created_connection();
    observer.exporter.count_telemetry_export("partial", 7);
    observer
        .exporter
        .record_event_loop_delay("data", Duration::from_millis(3));
    observer.exporter.set_ready(true);
    let find = doc! {"find": "orders", "$db": "shop"};
    record(&observer, &find, Ok(&doc! {"ok": 1}), 5);
    let metrics = metrics(&observer);
    let data = |name: &str| {
        let mut named = metrics.iter().filter(|(other, _)| other == name);
        let (_, data) = named.next().unwrap_or_else(|| panic!("{name} is missing"));
        assert!(named.next().is_none());
        data.clone()
    };
    let sum = |name: &str| match data(name) {
        metric::Data::Sum(sum) => {
            let values = sum.data_points.into_iter().map(|point| match point.value {
                Some(number_data_point::Value::AsInt(value)) => value,
                other => panic!("{other:?}"),
            });
            (values.sum::<i64>(), sum.is_monotonic)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(sum("seawall_server_connections_created_total"), (1, true));
    assert_eq!(sum("seawall_telemetry_rejected_points_total"), (7, true));
    assert_eq!(sum("seawall_operations_total"), (1, true));
    assert_eq!(sum("db.client.connection.pending_requests"), (0, false));
    let metric::Data::Sum(connections) = data("db.client.connection.count") else {
        panic!("expected a sum")
    };
    let mut states: Vec<_> = connections
        .data_points
        .iter()
        .map(|point| {
            let pool = attribute(&point.attributes, "db.client.connection.pool.name");
            assert_eq!(pool, Some("a:1"));
            attribute(&point.attributes, "db.client.connection.state").unwrap()
        })
        .collect();
    states.sort_unstable();
    assert_eq!(states, ["idle", "pending", "used"]);
    let metric::Data::Histogram(late) = data("seawall_event_loop_delay_seconds") else {
        panic!("expected a histogram")
    };
    let late = &late.data_points[0];
    assert_eq!((late.count, late.sum), (1, Some(0.003)));
    assert_eq!(late.bucket_counts.len(), late.explicit_bounds.len() + 1);
    assert_eq!(late.bucket_counts.iter().sum::<u64>(), 1);
    let metric::Data::Gauge(ready) = data("seawall_ready") else {
        panic!("expected a gauge")
    };
    let value = ready.data_points[0].value;
    assert_eq!(value, Some(number_data_point::Value::AsDouble(1.0)));
    for replaced in [
        "seawall_operation_duration_seconds",
        "seawall_server_connections",
        "seawall_wait_queue_length",
        "seawall_shape_info",
    ] {
        assert!(
            metrics.iter().all(|(name, _)| name != replaced),
            "{replaced}"
        );
    }
}

/// Seawall exports separate series only for the 200 shapes whose operations took the most time.
/// With these shapes and 2,000 namespaces, an export is smaller than 4 MiB. This is the largest
/// message that OpenTelemetry collectors accept by default.
#[test]
fn an_export_of_2000_namespaces_is_below_the_size_limit_of_opentelemetry_collectors() {
    let settings = ObserverSettings {
        counts_shapes: true,
        max_shapes: 1_000,
        name_key: None,
        max_namespaces: 2_000,
        keeps_seconds: false,
    };
    let observer = Observer::new(settings, None).unwrap();
    for number in 0..3_000_u64 {
        let find = doc! {"find": format!("c{number}"), "$db": "shop"};
        let fields = doc! {"find": "c0", "filter": {format!("f{number}"): 1}, "$db": "shop"};
        for (find, ms) in [(&find, number % 50), (&fields, 3)] {
            record(&observer, find, Ok(&doc! {"ok": 1}), ms);
        }
    }
    let operations = histogram(&observer, "db.client.operation.duration");
    assert_eq!(operations.len(), 2_001);
    assert_eq!(operations.iter().map(|of| of.count).sum::<u64>(), 6_000);
    let shapes = histogram(&observer, "seawall.shape.duration");
    assert!(shapes.len() <= 201, "{}", shapes.len());
    let bytes = observer.exporter.telemetry().encode(&[]).len();
    assert!(bytes < 4 << 20, "{bytes}");
}

#[test]
fn series_start_at_the_first_export_after_the_clock_was_set_back() {
    let observer = observer();
    let find = doc! {"find": "orders", "$db": "shop"};
    record(&observer, &find, Ok(&doc! {"ok": 1}), 1);
    // The start times and the times of all points that have a start time.
    let times = |now: SystemTime| -> Vec<(u64, u64)> {
        let metrics = decoded(observer.exporter.telemetry_at(now)).into_iter();
        let times = metrics.flat_map(|(_, data)| -> Vec<_> {
            match data {
                metric::Data::Sum(sum) => (sum.data_points.iter())
                    .map(|point| (point.start_time_unix_nano, point.time_unix_nano))
                    .collect(),
                metric::Data::ExponentialHistogram(histogram) => (histogram.data_points.iter())
                    .map(|point| (point.start_time_unix_nano, point.time_unix_nano))
                    .collect(),
                _ => Vec::new(),
            }
        });
        times.collect()
    };
    let now = SystemTime::now();
    assert!(times(now).len() > 2);
    let set_back = now - Duration::from_secs(3_600);
    let later = set_back + Duration::from_secs(60);
    let nanoseconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        u64::try_from(since.as_nanos()).unwrap()
    };
    for now in [set_back, later] {
        let expected = (nanoseconds(set_back), nanoseconds(now));
        let times = times(now);
        assert!(times.iter().all(|of| *of == expected), "{times:?}");
    }
}
