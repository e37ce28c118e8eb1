//! Tests `[telemetry]` and the standard variables of OpenTelemetry.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use seawall_config::{
    Compression, Origin, Overrides, Secret, Settings, Sources, load, load_with_values,
};

/// Configuration sources with these environment variables. A name that does not begin with
/// `SEAWALL_` gets the prefix `OTEL_`.
fn sources(variables: &[(&str, &str)]) -> Sources {
    let name = |name: &str| match name.starts_with("SEAWALL_") {
        true => name.to_owned(),
        false => format!("OTEL_{name}"),
    };
    let variables = variables.iter();
    Sources {
        environment: variables
            .map(|(of, value)| (name(of), (*value).to_owned()))
            .collect(),
        overrides: Overrides {
            deployment: Some(Secret::new("mongodb://server/".to_owned())),
            ..Overrides::default()
        },
        ..Sources::default()
    }
}

const ON: (&str, &str) = ("SEAWALL_TELEMETRY__ENABLED", "true");

fn settings(variables: &[(&str, &str)]) -> Settings {
    load(&sources(&[&[ON], variables].concat())).unwrap()
}

fn problems(variables: &[(&str, &str)]) -> String {
    let loaded = load(&sources(&[&[ON], variables].concat()));
    loaded.unwrap_err().to_string()
}

fn headers(settings: &Settings) -> Vec<(&str, &str)> {
    let headers = settings.telemetry.headers.as_ref().unwrap();
    let headers = headers.iter().map(|(name, value)| (name, value.expose()));
    headers.collect()
}

#[test]
fn telemetry_is_off_by_default_and_has_the_defaults_of_the_opentelemetry_specification() {
    let settings = Settings::default_for("mongodb://server/").unwrap();
    let telemetry = settings.telemetry;
    assert!(!telemetry.enabled);
    assert_eq!(telemetry.endpoint, "http://localhost:4318");
    assert_eq!(telemetry.timeout, Duration::from_secs(10));
    assert_eq!(telemetry.interval, Duration::from_secs(60));
    assert_eq!(telemetry.compression, Compression::None);
}

#[test]
fn opentelemetry_variables_set_keys_if_the_export_is_on() {
    let settings = settings(&[
        ("EXPORTER_OTLP_ENDPOINT", "https://collector:4318/base/"),
        (
            "EXPORTER_OTLP_HEADERS",
            "Authorization=Bearer%20x, tenant = a",
        ),
        ("EXPORTER_OTLP_TIMEOUT", "1500"),
        ("EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("METRIC_EXPORT_INTERVAL", "5000"),
        ("SERVICE_NAME", "orders"),
        ("RESOURCE_ATTRIBUTES", "service.name=other,team=a%2Cb"),
        ("SDK_DISABLED", "1"),
        ("TRACES_EXPORTER", "jaeger"),
    ]);
    let telemetry = &settings.telemetry;
    assert!(telemetry.enabled);
    assert_eq!(telemetry.endpoint, "https://collector:4318/base/");
    assert_eq!(
        headers(&settings),
        [("authorization", "Bearer x"), ("tenant", "a")]
    );
    assert_eq!(telemetry.timeout, Duration::from_millis(1_500));
    assert_eq!(telemetry.compression, Compression::Gzip);
    assert_eq!(telemetry.interval, Duration::from_secs(5));
    assert_eq!(telemetry.service_name.as_deref(), Some("orders"));
    let attributes: Vec<_> = telemetry.resource_attributes.iter().collect();
    assert_eq!(attributes, [("service.name", "other"), ("team", "a,b")]);
}

#[test]
fn an_opentelemetry_variable_for_metrics_overrides_the_variable_for_all_signals() {
    let settings = settings(&[
        ("EXPORTER_OTLP_ENDPOINT", "http://all:1"),
        ("EXPORTER_OTLP_METRICS_ENDPOINT", "http://metrics:2/v9"),
        ("EXPORTER_OTLP_HEADERS", "a=1"),
        ("EXPORTER_OTLP_METRICS_HEADERS", "b=2"),
        ("EXPORTER_OTLP_TIMEOUT", "1"),
        ("EXPORTER_OTLP_METRICS_TIMEOUT", "2"),
        ("EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("EXPORTER_OTLP_METRICS_COMPRESSION", "none"),
        ("EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
        ("SERVICE_NAME", ""),
    ]);
    let telemetry = &settings.telemetry;
    let endpoint = telemetry.metrics_endpoint.as_deref();
    assert_eq!(endpoint, Some("http://metrics:2/v9"));
    assert_eq!(headers(&settings), [("b", "2")]);
    assert_eq!(telemetry.timeout, Duration::from_millis(2));
    assert_eq!(telemetry.compression, Compression::None);
    assert_eq!(telemetry.service_name, None);
}

#[test]
fn seawall_keys_override_opentelemetry_variables() {
    let sources = sources(&[
        ON,
        ("SEAWALL_TELEMETRY__ENDPOINT", "http://own:1"),
        ("SEAWALL_TELEMETRY__TIMEOUT_MS", "7"),
        ("EXPORTER_OTLP_METRICS_ENDPOINT", "http://standard:2/x"),
        ("EXPORTER_OTLP_TIMEOUT", "8"),
        ("METRIC_EXPORT_INTERVAL", "900"),
    ]);
    let loaded = load_with_values(&sources).unwrap();
    let telemetry = &loaded.settings.telemetry;
    assert_eq!(telemetry.endpoint, "http://own:1");
    assert_eq!(telemetry.metrics_endpoint, None);
    assert_eq!(telemetry.timeout, Duration::from_millis(7));
    assert_eq!(telemetry.interval, Duration::from_millis(900));
    let origin = |path: &str| {
        loaded
            .values
            .iter()
            .find(|of| of.path == path)
            .unwrap()
            .origin
    };
    assert_eq!(origin("telemetry.interval_ms"), Origin::Environment);
    assert_eq!(origin("telemetry.compression"), Origin::Default);
}

#[test]
fn a_wrong_opentelemetry_protocol_is_no_problem_if_seawall_has_its_own_endpoint() {
    let of_others = [
        ("EXPORTER_OTLP_ENDPOINT", "http://collector:4317"),
        ("EXPORTER_OTLP_PROTOCOL", "grpc"),
    ];
    for key in ["ENDPOINT", "METRICS_ENDPOINT"] {
        let own = format!("SEAWALL_TELEMETRY__{key}");
        let settings = settings(&[&[(own.as_str(), "http://own:1")], &of_others[..]].concat());
        let telemetry = settings.telemetry;
        let used = telemetry.metrics_endpoint.unwrap_or(telemetry.endpoint);
        assert_eq!(used, "http://own:1");
    }
    assert!(problems(&of_others).contains("OTEL_EXPORTER_OTLP_PROTOCOL"));
}

#[test]
fn opentelemetry_variables_can_name_the_tls_files() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let settings = settings(&[
        ("EXPORTER_OTLP_METRICS_CERTIFICATE", file),
        ("EXPORTER_OTLP_CLIENT_CERTIFICATE", file),
        ("EXPORTER_OTLP_CLIENT_KEY", file),
    ]);
    let telemetry = settings.telemetry;
    for read in [
        telemetry.ca_file,
        telemetry.certificate_file,
        telemetry.key_file,
    ] {
        assert_eq!(read.unwrap().path().to_str(), Some(file));
    }
    let alone = problems(&[("EXPORTER_OTLP_CLIENT_KEY", file)]);
    assert!(
        alone.starts_with("telemetry.certificate_file: must be given"),
        "{alone}"
    );
}

#[test]
fn opentelemetry_variables_have_no_effect_if_the_export_is_off() {
    let wrong = [
        ("EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("EXPORTER_OTLP_ENDPOINT", "collector:4317"),
    ];
    let settings = load(&sources(&wrong)).unwrap();
    assert!(!settings.telemetry.enabled);
    assert_eq!(settings.telemetry.endpoint, "http://localhost:4318");
    let disabled = [&[ON, ("SDK_DISABLED", "TRUE")], &wrong[..]].concat();
    assert!(!load(&sources(&disabled)).unwrap().telemetry.enabled);
}

#[test]
fn wrong_opentelemetry_values_are_reported_with_their_variable_and_without_secrets() {
    for (variable, value, expected) in [
        (
            "EXPORTER_OTLP_PROTOCOL",
            "grpc",
            "OTEL_EXPORTER_OTLP_PROTOCOL = \"grpc\": must be \"http/protobuf\", the only protocol \
             that Seawall's export supports",
        ),
        (
            "EXPORTER_OTLP_ENDPOINT",
            "collector:4318",
            "OTEL_EXPORTER_OTLP_ENDPOINT = \"collector:4318\": must be a URL that begins with \
             http:// or https://, without a user",
        ),
        (
            "EXPORTER_OTLP_TIMEOUT",
            "10s",
            "OTEL_EXPORTER_OTLP_TIMEOUT = \"10s\": must be an integer from 1 to 604800000",
        ),
        (
            "EXPORTER_OTLP_COMPRESSION",
            "zstd",
            "OTEL_EXPORTER_OTLP_COMPRESSION = \"zstd\": must be \"none\" or \"gzip\"",
        ),
    ] {
        assert_eq!(problems(&[(variable, value)]), expected);
    }
    for value in [
        "hunter2",
        "a b=hunter2",
        "content-length=hunter2",
        "a=%0Ahunter2",
    ] {
        let problem = problems(&[("EXPORTER_OTLP_HEADERS", value)]);
        assert!(
            problem.starts_with("telemetry.headers: must be headers"),
            "{problem}"
        );
        assert!(!problem.contains("hunter2"), "{problem}");
    }
    let user = problems(&[("EXPORTER_OTLP_ENDPOINT", "http://a:hunter2@host/")]);
    assert!(!user.contains("hunter2"), "{user}");
    let debug = format!("{:?}", settings(&[("EXPORTER_OTLP_HEADERS", "a=hunter2")]));
    assert!(!debug.contains("hunter2"));
}
