//! The HTTP addresses for metrics, health checks and the API, and the export of metrics.

use std::time::Duration;

use crate::address::{AdminAddress, PeerAddress};
use crate::declare::{keys, section};
use crate::file::ReadFile;
use crate::kinds::{MAX_DURATION_MS, MIN_EXPORT_INTERVAL_MS, TIMEOUT};
use crate::listeners::{Tls, tls};
use crate::schema::{KeyKind, Section};
use crate::secret::SecretFile;
use crate::telemetry::{Attributes, Headers};
use crate::words::Compression;

section! {
    /// Metrics, health and the API.
    "admin" => Admin;

    /// Address of metrics, health and the API.
    address: AdminAddress = key("admin.address",
        KeyKind::AdminAddress, Restart, default "127.0.0.1:9909");
    // The address is for Prometheus and the kubelet, which connect from other hosts without a
    // token.
    /// Further address that serves only /metrics and the health checks, without a token; `"off"`
    /// for none.
    metrics_address: AdminAddress = key("admin.metrics_address",
        KeyKind::AdminAddress, Restart, default "off");
    /// File with the token that requests must contain; unless the address is loopback or requires
    /// client certificates, this key or `read_token_file` is required. Several files, separated by
    /// commas, give several tokens.
    tokens: Vec<SecretFile> = key("admin.token_file",
        KeyKind::SecretFiles, Live, example "/run/secrets/admin-token");
    /// Files with further tokens, separated by commas. Requests with these tokens may only read:
    /// they cannot reload, drain, profile or annotate. They can list captures, but not start, stop,
    /// download or delete them.
    read_tokens: Vec<SecretFile> = key("admin.read_token_file",
        KeyKind::SecretFiles, Live, example "/run/secrets/monitoring-token");
    /// Host names, separated by commas, under which requests without a token are accepted; IP
    /// addresses and localhost are always accepted.
    allowed_hosts: Vec<String> = key("admin.allowed_hosts",
        KeyKind::Text, Live, example "seawall.internal");
    /// Serve the command `seawall` to clients whose users have the rights for it; with false, the
    /// command is forwarded to a server, which does not know it.
    commands: bool = key("admin.commands",
        KeyKind::Boolean, Live, default true);
    /// Serve the dashboard, a page for browsers, at `/`, and the endpoints `/api/v1/live` and
    /// `/api/v1/session`.
    dashboard: bool = key("admin.dashboard",
        KeyKind::Boolean, Live, default true);
    // Off by default, because profiles show the names of Seawall's functions and cost CPU time.
    /// Serve CPU profiles of Seawall at /api/v1/profile.
    profile: bool = key("admin.profile",
        KeyKind::Boolean, Live, default false);
    /// Admin addresses of the other instances, separated by commas: the dashboard and requests with
    /// `instances=all` show the figures of this instance and of the other instances together.
    peers: Vec<PeerAddress> = key("admin.peers",
        KeyKind::Text, Live, example "seawall-2:9909,https://seawall-3:9909");
    /// File with the token for all peers, or one file for each peer, in the order of `admin.peers`
    /// and separated by commas. A read token of the peer is enough (its `admin.read_token_file`).
    peer_tokens: Vec<SecretFile> = key("admin.peer_token_file",
        KeyKind::SecretFiles, Live, example "/run/secrets/peer-token");
    /// PEM file with the certificate authorities of peers with `https://`. Without it, Seawall
    /// trusts the authorities of the operating system.
    peer_ca_file: Option<ReadFile> = key("admin.peer_ca_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/admin-ca.pem");
    /// PEM file with Seawall's own certificate and its private key, for peers that require
    /// certificates.
    peer_certificate_key_file: Option<ReadFile> = key("admin.peer_certificate_key_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/client.pem");
    {
        /// TLS of `address`; `None` if callers connect without TLS. If this is set, all callers
        /// must use TLS. A reload closes no connection of a caller.
        tls: Option<Tls> = tls;
    }
}

/// The section `[admin.tls]`, which has only some of the keys of `[listen.tls]`. For the admin
/// address, the other keys of `[listen.tls]` have their defaults.
pub(super) fn admin_tls_section() -> Section {
    let about = "With this section, callers of `admin.address` must use TLS; without it, they \
                 connect without TLS. `admin.metrics_address` never uses TLS.";
    let keys = [
        "certificate_file",
        "key_file",
        "client_certificate",
        "client_ca_file",
        "client_crl_file",
    ];
    Tls::SECTION.at("admin.tls", about, |key| keys.contains(&key.name()))
}

section! {
    /// The export of metrics to a collector of OpenTelemetry (OTLP over HTTP).
    "telemetry" => Telemetry;

    // Off by default, because the exported metrics contain the names of databases and collections,
    // and the shapes of commands.
    /// Export metrics. The `OTEL_…` variables have an effect only if this is true.
    enabled: bool = key("telemetry.enabled",
        KeyKind::Boolean, Live, default false);
    /// Base URL of the collector, to which `/v1/metrics` is appended.
    endpoint: String = key("telemetry.endpoint",
        KeyKind::HttpUrl, Live, default "http://localhost:4318");
    /// URL to which metrics are sent, instead of `telemetry.endpoint`; nothing is appended to it.
    metrics_endpoint: Option<String> = key("telemetry.metrics_endpoint",
        KeyKind::HttpUrl, Live, example "http://localhost:9090/api/v1/otlp/v1/metrics");
    /// Headers of each request, as `name=value` with percent-encoded values, separated by commas.
    headers: Option<Headers> = key("telemetry.headers",
        KeyKind::Secret, Live, example "authorization=Bearer%20token");
    /// File with headers as in `headers`, separated by commas or line breaks.
    headers_file: Option<Headers> = key("telemetry.headers_file",
        KeyKind::SecretFile, Live, example "/run/secrets/otlp-headers");
    /// Compression of the requests.
    compression: Compression = key("telemetry.compression",
        Compression::KIND, Live, default "none");
    /// Time between two exports.
    interval: Duration = key("telemetry.interval_ms",
        KeyKind::Integer { min: MIN_EXPORT_INTERVAL_MS, max: MAX_DURATION_MS }, Live,
        default 60000, unit "ms");
    /// How long the collector may take to receive a request and to respond.
    timeout: Duration = key("telemetry.timeout_ms",
        TIMEOUT, Live, default 10000, unit "ms");
    /// PEM file with the certificate authorities of the collector; without it, Seawall trusts the
    /// authorities of the operating system.
    ca_file: Option<ReadFile> = key("telemetry.ca_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/collector-ca.pem");
    /// PEM file with Seawall's own certificate, for collectors that require certificates.
    certificate_file: Option<ReadFile> = key("telemetry.certificate_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/telemetry.pem");
    /// PEM file with the private key of Seawall's certificate for collectors.
    key_file: Option<ReadFile> = key("telemetry.key_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/telemetry-key.pem");
    /// The attribute `service.name`. Without it, Seawall uses the name in
    /// `telemetry.resource_attributes`, or else `seawall`.
    service_name: Option<String> = key("telemetry.service_name",
        KeyKind::Text, Live, example "seawall-orders");
    /// Further attributes of this instance, as `name=value` with percent-encoded values, separated
    /// by commas.
    resource_attributes: Attributes = key("telemetry.resource_attributes",
        KeyKind::Text, Live, example "deployment.environment.name=production");
}
