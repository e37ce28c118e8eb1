//! Converts the standard environment variables of OpenTelemetry to values of keys in `[telemetry]`.
//!
//! The variables override only the defaults. The file and the `SEAWALL_…` variables have
//! precedence, because users write them for Seawall. The variables of OpenTelemetry are often the
//! same for all programs of a machine. They have an effect only if `telemetry.enabled` is true. So
//! a variable for other programs does not start an export, and does not prevent Seawall's start. As
//! in the specification, an empty variable counts as absent, and a variable for metrics
//! (`…_METRICS_…`) overrides the variable for all signals.
//!
//! Only `OTEL_SDK_DISABLED=true` overrides a key that is set: it sets `telemetry.enabled` to false.
//! The only purpose of this variable is to end all exports of a machine.
//!
//! Source: <https://opentelemetry.io/docs/specs/otel/protocol/exporter/> and
//! <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>.

use toml::{Table, Value};

use crate::check::{fits, must_be};
use crate::keys;
use crate::problem::{HIDDEN, Problem, Problems, shown};
use crate::schema::Key;

/// A group of related keys in `[telemetry]`, each with the OpenTelemetry variable that sets the
/// key. The name of the variable is empty if no variable sets the key. If the file, a `SEAWALL_`
/// variable or the command line sets a key of the group, no variable of the group has an effect.
/// Otherwise only the first variable that is set has an effect.
type Group = &'static [(&'static str, &'static str)];

const GROUPS: [Group; 10] = [
    &[
        ("metrics_endpoint", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"),
        ("endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
    &[
        ("headers", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"),
        ("headers", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("headers_file", ""),
    ],
    &[
        ("compression", "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION"),
        ("compression", "OTEL_EXPORTER_OTLP_COMPRESSION"),
    ],
    &[("interval_ms", "OTEL_METRIC_EXPORT_INTERVAL")],
    &[
        ("timeout_ms", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"),
        ("timeout_ms", "OTEL_EXPORTER_OTLP_TIMEOUT"),
    ],
    &[
        ("ca_file", "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE"),
        ("ca_file", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
    ],
    &[
        (
            "certificate_file",
            "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE",
        ),
        ("certificate_file", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
    ],
    &[
        ("key_file", "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY"),
        ("key_file", "OTEL_EXPORTER_OTLP_CLIENT_KEY"),
    ],
    &[("service_name", "OTEL_SERVICE_NAME")],
    &[("resource_attributes", "OTEL_RESOURCE_ATTRIBUTES")],
];

const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];

/// The keys of `[telemetry]` for the address of the collector.
const ENDPOINTS: [&str; 2] = ["endpoint", "metrics_endpoint"];

/// The only protocol that Seawall's export of metrics supports.
const PROTOCOL: &str = "http/protobuf";

const DISABLED: &str = "OTEL_SDK_DISABLED";

const SECTION: &str = "telemetry";

/// Converts the variables of OpenTelemetry in `environment` to a table with the section
/// `[telemetry]`. `merged` contains the values of the file, the `SEAWALL_…` variables and the
/// command line.
///
/// If `merged` does not set `enabled = true`, the variables have no effect, so the table is empty.
/// If `OTEL_SDK_DISABLED` is true, the section contains only `enabled = false`. Otherwise it
/// contains only keys that `merged` does not set. Adds each wrong value to `problems`.
pub(crate) fn table(
    environment: &[(String, String)],
    merged: &Table,
    problems: &mut Problems,
) -> Table {
    let section = merged.get(SECTION).and_then(Value::as_table);
    let is_given = |name: &str| section.is_some_and(|section| section.contains_key(name));
    let is_enabled = section.and_then(|section| section.get("enabled")?.as_bool());
    if is_enabled != Some(true) {
        return Table::new();
    }
    let variable = |name: &str| {
        let mut variables = environment.iter().filter(|(_, value)| !value.is_empty());
        variables.find_map(|(other, value)| (other == name).then_some(value.as_str()))
    };
    let mut values = Table::new();
    // By the specification, only the word "true" (in upper or lower case) counts as true.
    if variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        values.insert("enabled".to_owned(), Value::Boolean(false));
    } else {
        let mut protocols = PROTOCOLS.into_iter();
        let protocol = protocols.find_map(|name| Some((name, variable(name)?)));
        // The protocol belongs to the endpoint in the variables. If Seawall has an endpoint of its
        // own, this protocol is for other programs, so any protocol is allowed.
        let has_own_endpoint = ENDPOINTS.iter().any(|key| is_given(key));
        let is_wrong = |value: &str| value != PROTOCOL && !has_own_endpoint;
        if let Some((name, value)) = protocol.filter(|(_, value)| is_wrong(value)) {
            let allowed =
                format!("must be {PROTOCOL:?}, the only protocol that Seawall's export supports");
            problems.add(Problem::new(name, &shown(&value.into()), &allowed));
        }
        for group in GROUPS {
            if group.iter().any(|(key, _)| is_given(key)) {
                continue;
            }
            let found = group
                .iter()
                .find_map(|(key, name)| Some((*key, *name, variable(name)?)));
            if let Some((key, name, text)) = found {
                values.extend(value(key, name, text, problems).map(|of| (key.to_owned(), of)));
            }
        }
    }
    let mut table = Table::new();
    table.insert(SECTION.to_owned(), Value::Table(values));
    table
}

/// Parses the text of a variable as the value of a key. `None` if the value is wrong; the problem
/// is then reported.
fn value(key: &str, variable: &str, text: &str, problems: &mut Problems) -> Option<Value> {
    let key: &Key = keys::key(&format!("{SECTION}.{key}"))?;
    let value = key.kind.parse(text);
    if fits(key.kind, &value) {
        return Some(value);
    }
    let given = match key.kind.is_secret() {
        true => HIDDEN.to_owned(),
        false => shown(&value),
    };
    problems.add(Problem::new(variable, &given, &must_be(key)));
    None
}
