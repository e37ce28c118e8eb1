//! The client of an OTLP collector: sends one message, and reads a response of limited size.

use std::{
    error, fmt,
    io::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    body::{self, Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header},
};
use flate2::{Compression, write::GzEncoder};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message as _;
use thiserror::Error;
use tokio::time::timeout;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto::ring};

use super::retry_after;

/// Maximum size of the body of a response. A response contains only a number and a short text.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Maximum size of the buffer for the head of a response.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Texts from the collector are cut to this number of characters before they are logged.
const SHOWN_CHARACTERS: usize = 200;

/// An unused connection is closed after this time.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// The URL to which exports are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The base of the URL, to which `/v1/metrics` is appended.
    Base(String),
    /// The whole URL, which is used unchanged.
    Exact(String),
}

/// The client that sends the exports to an OTLP collector.
pub struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    uri: Uri,
    headers: HeaderMap,
    compresses: bool,
    timeout: Duration,
}

impl fmt::Debug for Collector {
    /// Prints only the host of the URL, because the values of the headers are secret, and the query
    /// of the URL may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut collector = f.debug_struct("Collector");
        collector
            .field("host", &self.uri.host())
            .finish_non_exhaustive()
    }
}

/// The reason why a collector cannot be used.
#[derive(Debug, Error)]
pub enum CollectorError {
    /// The URL is not an HTTP or HTTPS URL with a host.
    #[error("the URL of the collector must be an HTTP or HTTPS URL with a host")]
    Url,
    /// The header's name or value has characters that HTTP does not allow.
    #[error("the name or the value of the header {0} for the collector is not valid")]
    Header(String),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
}

/// The result of one request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// The collector accepted the message, but may have refused some of its points.
    Accepted {
        /// Number of points that the collector refused.
        rejected: u64,
        /// The collector's explanation or warning; empty if there is none.
        message: String,
    },
    /// The request failed for a reason that may be temporary, so it may be sent again.
    Retryable {
        /// The cause of the failure.
        reason: String,
        /// The wait that the collector asked for; `None` if it asked for none.
        after: Option<Duration>,
    },
    /// The collector refused the message.
    Refused(String),
    /// The collector did not respond within the timeout.
    TimedOut,
    /// The connection ended before the end of the response, the response is too large, or it is not
    /// valid OTLP.
    Broken(String),
}

impl Collector {
    /// Creates the client, which connects at its first request. Each request has `headers`, and is
    /// compressed with gzip if `compresses` is true. `timeout` limits each request, from the
    /// connection to the end of the response. `tls` is used with HTTPS; if `tls` is `None`, no
    /// certificate is trusted.
    ///
    /// # Errors
    /// If the URL or a header is invalid, or TLS cannot be set up.
    pub fn new<'a>(
        address: &Address,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        compresses: bool,
        timeout: Duration,
        tls: Option<ClientConfig>,
    ) -> Result<Self, CollectorError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(timeout));
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.map_or_else(without_authorities, Ok)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE_LIMIT)
            .build(connector);
        Ok(Self {
            client,
            uri: uri(address)?,
            headers: header_map(headers, compresses)?,
            compresses,
            timeout,
        })
    }

    /// Returns the body of a request: the message, compressed if this collector gets compressed
    /// requests.
    pub(crate) fn body(&self, message: Vec<u8>) -> Bytes {
        if !self.compresses {
            return message.into();
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let written = encoder.write_all(&message);
        let compressed = written.and_then(|()| encoder.finish());
        compressed.expect("a vector accepts all bytes").into()
    }

    /// Sends a body that [`Self::body`] has prepared, and returns the result.
    pub(crate) async fn send(&self, body: Bytes) -> Response {
        match timeout(self.timeout, self.send_without_limit(body)).await {
            Ok(response) => response,
            Err(_) => Response::TimedOut,
        }
    }

    async fn send_without_limit(&self, body: Bytes) -> Response {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let response = match self.client.request(request).await {
            Ok(response) => response,
            // A client should try to connect again (OTLP, "OTLP/HTTP Connection"). After other
            // errors, such as a response that cannot be parsed, a new request would not help.
            Err(error) if error.is_connect() => {
                return Response::Retryable {
                    reason: root_cause(&error),
                    after: None,
                };
            }
            Err(error) => return Response::Broken(root_cause(&error)),
        };
        let (head, body) = response.into_parts();
        let body = body::to_bytes(Body::new(body), MAX_RESPONSE_BYTES).await;
        match (head.status, body) {
            (status, Ok(body)) if status.is_success() => accepted(&body),
            (status, Err(error)) if status.is_success() => Response::Broken(root_cause(&error)),
            (status, body) => refused(status, &head.headers, &body.unwrap_or_default()),
        }
    }
}

fn accepted(body: &Bytes) -> Response {
    // An empty body decodes to a response with the default values: the collector refused no points.
    match ExportMetricsServiceResponse::decode(body.clone()) {
        Ok(response) => {
            let partial = response.partial_success.unwrap_or_default();
            Response::Accepted {
                rejected: u64::try_from(partial.rejected_data_points).unwrap_or(0),
                message: shown(&partial.error_message),
            }
        }
        Err(error) => Response::Broken(error.to_string()),
    }
}

/// The result for a response whose status is an error. Source: OTLP, "Retryable Response Codes" and
/// "OTLP/HTTP Throttling".
fn refused(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Response {
    let is_retryable = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    let said = shown(&String::from_utf8_lossy(body));
    let reason = match said.is_empty() {
        true => status.to_string(),
        false => format!("{status}: {said}"),
    };
    if !is_retryable {
        return Response::Refused(reason);
    }
    let after = headers.get(header::RETRY_AFTER);
    let after = after.and_then(|value| value.to_str().ok());
    Response::Retryable {
        reason,
        after: after.and_then(|value| retry_after::parse(value, SystemTime::now())),
    }
}

/// The beginning of a text from the collector, on one line: each control character is replaced by a
/// space.
fn shown(text: &str) -> String {
    let characters = text.trim().chars().take(SHOWN_CHARACTERS);
    characters
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn uri(address: &Address) -> Result<Uri, CollectorError> {
    let text = match address {
        Address::Base(base) => format!("{}/v1/metrics", base.trim_end_matches('/')),
        Address::Exact(url) => url.clone(),
    };
    let uri: Uri = text.parse().map_err(|_| CollectorError::Url)?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(uri),
        _ => Err(CollectorError::Url),
    }
}

fn header_map<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    compresses: bool,
) -> Result<HeaderMap, CollectorError> {
    let mut map = HeaderMap::new();
    map.insert(
        header::USER_AGENT,
        HeaderValue::from_static(concat!("seawall/", env!("CARGO_PKG_VERSION"))),
    );
    for (name, value) in headers {
        let wrong = || CollectorError::Header(name.to_owned());
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        map.insert(key, value);
    }
    let protobuf = HeaderValue::from_static("application/x-protobuf");
    map.insert(header::CONTENT_TYPE, protobuf);
    if compresses {
        map.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(map)
}

/// A TLS configuration that trusts no certificate.
fn without_authorities() -> Result<ClientConfig, CollectorError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(CollectorError::Tls)?;
    let builder = builder.with_root_certificates(RootCertStore::empty());
    Ok(builder.with_no_client_auth())
}

/// The innermost source of an error, because it is the most useful text: for example, `connection
/// refused` instead of `client error`.
fn root_cause(error: &dyn error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_path_is_added_only_to_a_base_url() {
        let base = |url: &str| uri(&Address::Base(url.to_owned())).map(|uri| uri.to_string());
        assert_eq!(base("http://a:1").unwrap(), "http://a:1/v1/metrics");
        assert_eq!(base("https://a/b/").unwrap(), "https://a/b/v1/metrics");
        let exact = uri(&Address::Exact("http://a/other?x=1".to_owned())).unwrap();
        assert_eq!(exact.to_string(), "http://a/other?x=1");
        for wrong in ["ftp://a", "http://", "http://a b", "/v1"] {
            assert!(matches!(base(wrong), Err(CollectorError::Url)), "{wrong}");
        }
    }

    #[test]
    fn only_the_statuses_429_502_503_and_504_are_retryable() {
        for status in 300..600 {
            let status = StatusCode::from_u16(status).unwrap();
            let response = refused(status, &HeaderMap::new(), b"");
            let is_retryable = [429, 502, 503, 504].contains(&status.as_u16());
            match response {
                Response::Retryable { after: None, .. } => assert!(is_retryable, "{status}"),
                _ => assert_eq!(response, Response::Refused(status.to_string())),
            }
        }
    }

    #[test]
    fn a_long_message_from_the_collector_is_cut_and_put_on_one_line() {
        let body = "x\r\ny".repeat(1_000);
        let Response::Refused(reason) =
            refused(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes())
        else {
            panic!("the status 400 is treated as retryable")
        };
        assert!(reason.starts_with("400 Bad Request: x  y"));
        assert!(reason.len() < 250 && !reason.contains('\n'));
    }

    #[test]
    fn debug_output_and_errors_do_not_show_the_values_of_headers_for_the_collector() {
        let address = Address::Base("http://a:1".to_owned());
        let collector = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().copied();
            Collector::new(&address, headers, true, Duration::from_secs(1), None)
        };
        let debug = format!("{:?}", collector(&[("x", "hunter2")]).unwrap());
        assert!(!debug.contains("hunter2"));
        let error = collector(&[("x", "hunter2\n")]).unwrap_err().to_string();
        let expected = "the name or the value of the header x for the collector is not valid";
        assert_eq!(error, expected);
    }
}
