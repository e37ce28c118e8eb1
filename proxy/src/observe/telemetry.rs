//! Builds the figures of an export to an OpenTelemetry collector. `/metrics` shows the same
//! figures, from the same sums.
//!
//! A metric for which OpenTelemetry has a convention gets the convention's name, unit and
//! attributes. All other metrics keep their names.
//!
//! Sources: <https://opentelemetry.io/docs/specs/semconv/db/database-metrics/>,
//! <https://opentelemetry.io/docs/specs/semconv/db/mongodb/>.

use std::{collections::BTreeMap, time::SystemTime};

use seawall_stats::{Distribution, FineDistribution, Outcome};
use seawall_telemetry::{Attributes, Batch, Buckets, Instrument, PointKind};

use super::{
    Exporter, FailureKind, MetricName, Namespace, NamespaceSums,
    histograms::Histograms,
    protobuf::{self, COUNTER, GAUGE, Metric, MetricFamily, NativeHistograms},
    registry::OTHER,
    shape_series::exported_text,
    totals::Collected,
};

/// Longest value of `db.query.summary`, in characters.
///
/// Source: <https://opentelemetry.io/docs/specs/semconv/db/database-spans/>, "Generating a summary
/// of the query".
const SUMMARY_CHARACTERS: usize = 255;

/// The value of `error.type` for error replies without a code and for codes that are not counted
/// separately.
///
/// Source: <https://opentelemetry.io/docs/specs/semconv/registry/attributes/error/>.
const OTHER_ERROR: &str = "_OTHER";

const OPERATION_DURATION: Instrument<'static> = Instrument {
    name: "db.client.operation.duration",
    unit: "s",
    description: "Duration of database client operations.",
};

const CONNECTION_COUNT: Instrument<'static> = Instrument {
    name: "db.client.connection.count",
    unit: "{connection}",
    description: "The number of connections that are currently in the state of the attribute.",
};

const PENDING_REQUESTS: Instrument<'static> = Instrument {
    name: "db.client.connection.pending_requests",
    unit: "{request}",
    description: "The number of current pending requests for an open connection.",
};

const WAIT_TIME: Instrument<'static> = Instrument {
    name: "db.client.connection.wait_time",
    unit: "s",
    description: "The time it took to obtain an open connection from the pool.",
};

const SHAPE_DURATION: Instrument<'static> = Instrument {
    name: "seawall.shape.duration",
    unit: "s",
    description: "Durations of the operations of a shape.",
};

const POOL_NAME: &str = "db.client.connection.pool.name";

impl Exporter {
    /// Collects the threads' sums, and returns all figures for an export.
    pub(crate) fn telemetry(&self) -> Batch {
        self.telemetry_at(SystemTime::now())
    }

    fn telemetry_at(&self, now: SystemTime) -> Batch {
        let mut collected = self.totals.collect_all();
        // A collector refuses points whose start is after their time. So after the clock was set
        // back, the series get the time of the next export as their start. Later exports keep this
        // start, because a new start would mean that the sums begin again.
        collected.limit_starts(now);
        let mut batch = Batch::new(collected.started_at, now);
        for (namespace, sums) in self.totals.namespaces_of(&collected) {
            add_operations(&mut batch, &namespace, sums);
        }
        add_shapes(&mut batch, &collected);
        let mut histograms = Distributions(&mut batch);
        self.add_histograms_of_servers_and_phases(&collected, &mut histograms);
        self.add_checkouts(&collected, &mut histograms);
        drop(collected);
        let text = self.render_values();
        for family in protobuf::families(&text, &NativeHistograms::default()) {
            add_family(&mut batch, &family);
        }
        batch
    }

    /// Counts an export, and the data points that the collector refused.
    pub(crate) fn count_telemetry_export(&self, result: &'static str, rejected_points: u64) {
        let name = MetricName::TelemetryExportsTotal;
        self.metrics.count(name, &[("result", result)]);
        if rejected_points > 0 {
            let name = MetricName::TelemetryRejectedPointsTotal;
            self.metrics
                .counter(name, vec![])
                .increment(rejected_points);
        }
    }
}

/// Adds the operations of a namespace: one series for each kind of failure, and one for all other
/// operations, including operations to which Seawall itself replied.
fn add_operations(batch: &mut Batch, namespace: &Namespace, sums: &NamespaceSums) {
    let mut others = sums.all_durations();
    // Failures whose attributes are equal are added up, because each point of a metric must have
    // different attributes.
    let mut failed = BTreeMap::<Attributes, FineDistribution>::new();
    for (failure, durations) in &sums.failures {
        others = others.without(durations);
        failed
            .entry(of_failure(*failure))
            .or_default()
            .merge(durations);
    }
    for (of_failure, durations) in failed {
        let mut attributes = attributes(namespace);
        attributes.extend(of_failure);
        batch.add_distribution(OPERATION_DURATION, attributes, &durations, None);
    }
    if others.count() > 0 {
        batch.add_distribution(OPERATION_DURATION, attributes(namespace), &others, None);
    }
}

fn attributes(namespace: &Namespace) -> Attributes {
    let Namespace {
        command,
        db,
        collection,
    } = namespace;
    let mut attributes = vec![
        pair("db.system.name", "mongodb"),
        pair("db.operation.name", *command),
        pair("db.query.summary", summary(command, collection)),
    ];
    for (name, value) in [("db.namespace", db), ("db.collection.name", collection)] {
        if !value.is_empty() {
            attributes.push(pair(name, &**value));
        }
    }
    attributes
}

fn pair(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

/// The value of `db.query.summary`: the command and its collection. By the convention, a summary
/// may contain nothing else.
fn summary(command: &str, collection: &str) -> String {
    let summary = format!("{command} {collection}");
    summary
        .trim_end()
        .chars()
        .take(SUMMARY_CHARACTERS)
        .collect()
}

/// The attributes of a failure: its type, and the code of the server's reply. In the convention for
/// MongoDB, the code is also the type. If Seawall refused the operation, the server failed or the
/// client left, the type is the name of the outcome in `/metrics`. All other failures without a
/// code have the type [`OTHER_ERROR`].
fn of_failure(failure: FailureKind) -> Attributes {
    let type_of_error = match (failure.code, failure.outcome) {
        (Some(code), _) => code.to_string(),
        (None, outcome @ (Outcome::Refused | Outcome::ServerFailed | Outcome::ClientGone)) => {
            outcome.as_str().to_owned()
        }
        (None, _) => OTHER_ERROR.to_owned(),
    };
    let code = failure.code.map(|code| code.to_string());
    let code = code.map(|code| pair("db.response.status_code", code));
    let error = pair("error.type", type_of_error);
    code.into_iter().chain([error]).collect()
}

/// Adds one series for each of the heaviest shapes, and one series for all other shapes. The
/// operations of the heaviest shapes took the most time in total.
fn add_shapes(batch: &mut Batch, collected: &Collected) {
    for (shape, durations, since) in collected.series.iter() {
        let attributes = match shape {
            Some(shape) => {
                let mut attributes = attributes(&shape.namespace);
                attributes.push(pair("seawall.shape", shape.id.to_string()));
                attributes.push(pair("db.query.text", exported_text(shape)));
                attributes
            }
            None => vec![
                pair("db.system.name", "mongodb"),
                pair("seawall.shape", OTHER),
            ],
        };
        batch.add_distribution(SHAPE_DURATION, attributes, durations, Some(since));
    }
}

/// Adds distributions to a batch as exponential histograms.
struct Distributions<'b>(&'b mut Batch);

impl Histograms for Distributions<'_> {
    fn add<const PER_OCTAVE: usize>(
        &mut self,
        metric: MetricName,
        labels: &[(&'static str, &str)],
        distribution: &Distribution<PER_OCTAVE>,
    ) {
        let (of, is_checkout) = match metric {
            MetricName::CheckoutSeconds => (WAIT_TIME, true),
            other => (instrument(other.as_str(), other.help()), false),
        };
        let attributes = labels.iter().map(|(name, value)| match *name {
            "server" if is_checkout => pair(POOL_NAME, *value),
            name => pair(name, *value),
        });
        self.0
            .add_distribution(of, attributes.collect(), distribution, None);
    }
}

/// Describes a metric that keeps its name, because OpenTelemetry has no convention for it.
fn instrument<'a>(name: &'a str, description: &'a str) -> Instrument<'a> {
    let base = name.strip_suffix("_total").unwrap_or(name);
    let unit = match base {
        _ if base.ends_with("_seconds") => "s",
        _ if base.ends_with("_bytes") => "By",
        _ => "",
    };
    Instrument {
        name,
        unit,
        description,
    }
}

fn add_family(batch: &mut Batch, family: &MetricFamily) {
    let name = family.name.as_deref().unwrap_or_default();
    let help = family.help.as_deref().unwrap_or_default();
    let name = MetricName::ALL.iter().find(|of| of.as_str() == name);
    let Some(name) = name else { return };
    for metric in &family.metrics {
        let value = match family.kind {
            Some(COUNTER) => metric.counter,
            Some(GAUGE) => metric.gauge,
            _ => None,
        };
        let value = value.and_then(|value| value.value).unwrap_or_default();
        let labels = labels(metric);
        match (name, family.kind) {
            (MetricName::ServerConnections, _) => {
                let labels = labels.into_iter().map(of_pool).collect();
                batch.add_number(CONNECTION_COUNT, PointKind::UpDownCounter, labels, value);
            }
            (MetricName::WaitQueueLength, _) => {
                let labels = labels.into_iter().map(of_pool).collect();
                batch.add_number(PENDING_REQUESTS, PointKind::UpDownCounter, labels, value);
            }
            (name, Some(COUNTER)) => {
                batch.add_number(
                    instrument(name.as_str(), help),
                    PointKind::Counter,
                    labels,
                    value,
                );
            }
            (name, Some(GAUGE)) => {
                batch.add_number(
                    instrument(name.as_str(), help),
                    PointKind::Gauge,
                    labels,
                    value,
                );
            }
            (name, _) => {
                let buckets = buckets(metric);
                batch.add_buckets(instrument(name.as_str(), help), labels, buckets);
            }
        }
    }
}

fn labels(metric: &Metric) -> Attributes {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let pairs = metric.labels.iter();
    pairs
        .map(|pair| (text(&pair.name), text(&pair.value)))
        .collect()
}

/// Converts a label of a metric about a server's connections to the attribute that the
/// OpenTelemetry convention defines.
fn of_pool((name, value): (String, String)) -> (String, String) {
    let value = match (&*name, &*value) {
        ("state", "available") => "idle".to_owned(),
        ("state", "in_use") => "used".to_owned(),
        _ => value,
    };
    match &*name {
        "server" => pair(POOL_NAME, value),
        "state" => pair("db.client.connection.state", value),
        _ => (name, value),
    }
}

/// Converts the buckets of a classic histogram: from cumulative counts to one count per bucket.
fn buckets(metric: &Metric) -> Buckets {
    let Some(histogram) = &metric.histogram else {
        return Buckets::default();
    };
    let count = histogram.sample_count.unwrap_or_default();
    let bounded = histogram.buckets.iter().filter_map(|bucket| {
        let bound = bucket.upper_bound.filter(|bound| bound.is_finite())?;
        Some((bound, bucket.cumulative_count.unwrap_or_default()))
    });
    let (bounds, cumulative): (Vec<_>, Vec<_>) = bounded.unzip();
    let below = [0].into_iter().chain(cumulative.iter().copied());
    let upper = cumulative.iter().copied().chain([count]);
    Buckets {
        count,
        sum: histogram.sample_sum.unwrap_or_default(),
        counts: upper
            .zip(below)
            .map(|(all, below)| all.saturating_sub(below))
            .collect(),
        bounds,
    }
}

#[cfg(test)]
mod tests;
