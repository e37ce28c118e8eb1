//! A client of the admin API: sends requests over HTTP or HTTPS. Most methods parse the body of the
//! response as JSON. `fetch` and `download` give the bytes of the body. `act`, `delete` and `check`
//! ignore the body.

use std::{error, fmt, io, iter, sync::Arc, time::Duration};

use axum::{
    body::{self, Body, Bytes},
    http::{Method, Request, Response, StatusCode, Uri, header, request, uri::PathAndQuery},
};
use futures_util::StreamExt as _;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto::ring};

use super::read;

/// Time limit for establishing a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for a response. A report on several days can take many seconds, because it merges
/// many distributions.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for the response to a reload. A reload waits up to 30 s for earlier reloads, and then
/// takes up to a minute. A caller that gives up earlier does not know if the reload took effect.
const RELOAD_LIMIT: Duration = Duration::from_secs(120);

/// Maximum size of a response. A report on several days with all its distributions is a few MiB.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Maximum number of characters that an error message quotes from an error response.
const SHOWN_REFUSAL_CHARACTERS: usize = 200;

/// The header with the name of the instance that sends a request to another instance. If an
/// instance receives its own name, it is configured as its own peer, and it refuses the request
/// with the status 421.
pub const INSTANCE_HEADER: &str = "seawall-instance";

/// A client of one proxy's admin address.
#[derive(Clone)]
pub struct AdminClient {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    /// Scheme and authority, such as `http://127.0.0.1:9909`.
    base: String,
    token: Option<String>,
}

impl fmt::Debug for AdminClient {
    /// Prints only the address, because the token is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut client = f.debug_struct("AdminClient");
        client.field("base", &self.base).finish_non_exhaustive()
    }
}

impl AdminClient {
    /// Creates a client, which connects at its first request. `url` is `http://host:port`,
    /// `https://host:port` or `host:port`. `token` is the token that the admin address requires, if
    /// any. `tls` is used with HTTPS; if `tls` is `None`, no certificate is trusted.
    ///
    /// # Errors
    /// If the URL is invalid or has a path, or TLS cannot be set up.
    pub fn new(
        url: &str,
        token: Option<String>,
        tls: Option<ClientConfig>,
    ) -> Result<Self, ClientError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.map_or_else(without_authorities, Ok)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            base: base(url)?,
            token,
        })
    }

    /// The base URL of the proxy.
    pub fn address(&self) -> &str {
        &self.base
    }

    /// Sends a GET request, and parses the reply. `path` includes the query, as in
    /// `/api/v1/shapes?since=1m`.
    ///
    /// # Errors
    /// If there is no reply, the request is refused, or the reply cannot be parsed as `T`.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let reply = self.ask_for_json(path).await?;
        read(reply).map_err(ClientError::NotJson)
    }

    /// Sends a POST request without a body, and parses the reply. Waits up to 120 s for the reply,
    /// because a reload may take long.
    ///
    /// # Errors
    /// If there is no reply, the request is refused, or the reply cannot be parsed as `T`.
    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let exchange = self.exchange_body(Request::builder(), Method::POST, path, Body::empty());
        let reply = self.within(RELOAD_LIMIT, exchange).await?;
        read(json(&reply)?).map_err(ClientError::NotJson)
    }

    /// Sends a POST request without a body. Ignores the body of the response.
    ///
    /// # Errors
    /// If there is no response, or the request is refused.
    pub async fn act(&self, path: &str) -> Result<(), ClientError> {
        self.exchange(Method::POST, path).await.map(drop)
    }

    /// Sends a POST request with a JSON body, and parses the reply.
    ///
    /// # Errors
    /// If there is no reply, the request is refused, or the reply cannot be parsed as `T`.
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<T, ClientError> {
        let request = serde_json::to_vec(request).map_err(ClientError::NotJson)?;
        let head = Request::builder().header(header::CONTENT_TYPE, "application/json");
        let body = Body::from(request);
        let exchange = self.exchange_body(head, Method::POST, path, body);
        let reply = self.within(RESPONSE_LIMIT, exchange).await?;
        read(json(&reply)?).map_err(ClientError::NotJson)
    }

    /// Sends a DELETE request.
    ///
    /// # Errors
    /// If there is no response, or the request is refused.
    pub async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.exchange(Method::DELETE, path).await.map(drop)
    }

    /// Sends a GET request without limits of size and time, and passes the bytes of the reply to
    /// `write` as they arrive. If `write` returns false, the download ends.
    ///
    /// # Errors
    /// If there is no reply, the request is refused, or the reply ends early.
    pub async fn download(
        &self,
        path: &str,
        write: &mut (dyn FnMut(&[u8]) -> bool + Send),
    ) -> Result<(), ClientError> {
        let response = self
            .send(Request::builder(), Method::GET, path, Body::empty())
            .await?;
        let status = response.status();
        if status != StatusCode::OK {
            let body = body::to_bytes(response.into_body(), MAX_RESPONSE_BYTES).await;
            let body = body.map_err(|error| ClientError::Broken(root_cause(&error)))?;
            // `accepted` returns the error for the status 401. It accepts the statuses 201, 202 and
            // 422, but the body of such a response is not a download. So these statuses are errors
            // here.
            accepted(path, status, &body)?;
            return Err(refused(path, status, &body));
        }
        let mut parts = response.into_body().into_data_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| ClientError::Broken(root_cause(&error)))?;
            if !write(&part) {
                break;
            }
        }
        Ok(())
    }

    /// Checks the health: `path` is `/health/live` or `/health/ready`.
    ///
    /// # Errors
    /// If there is no response, or if the proxy replies that it is not live or not ready.
    pub async fn check(&self, path: &str) -> Result<(), ClientError> {
        self.exchange(Method::GET, path).await.map(drop)
    }

    /// Sends a GET request, and returns the reply as JSON, including members that this version of
    /// Seawall does not know.
    ///
    /// # Errors
    /// If there is no reply, the request is refused, or the reply is not JSON.
    pub async fn ask_for_json(&self, path: &str) -> Result<Value, ClientError> {
        json(&self.exchange(Method::GET, path).await?)
    }

    /// Sends a GET request without a time limit, and returns the bytes of the reply. `name` is sent
    /// in the header [`INSTANCE_HEADER`]. Before a part of the body is kept, `reserve` is called
    /// with the part's size. If `reserve` returns false, the result is [`ClientError::TooLarge`].
    ///
    /// # Errors
    /// If there is no reply, the request is refused, or the reply is too large.
    pub async fn fetch(
        &self,
        path: &str,
        name: &str,
        reserve: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Vec<u8>, ClientError> {
        let named = Request::builder().header(INSTANCE_HEADER, name);
        let response = self.send(named, Method::GET, path, Body::empty()).await?;
        let status = response.status();
        let mut parts = response.into_body().into_data_stream();
        let mut body = Vec::new();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| ClientError::Broken(root_cause(&error)))?;
            if !reserve(part.len()) {
                return Err(ClientError::TooLarge);
            }
            body.extend_from_slice(&part);
        }
        accepted(path, status, &body)?;
        Ok(body)
    }

    /// Sends a request without a body, and returns the body of a successful response.
    async fn exchange(&self, method: Method, path: &str) -> Result<Bytes, ClientError> {
        let exchange = self.exchange_body(Request::builder(), method, path, Body::empty());
        self.within(RESPONSE_LIMIT, exchange).await
    }

    async fn within(
        &self,
        limit: Duration,
        exchange: impl Future<Output = Result<Bytes, ClientError>>,
    ) -> Result<Bytes, ClientError> {
        match timeout(limit, exchange).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::TimedOut {
                address: self.base.clone(),
            }),
        }
    }

    async fn exchange_body(
        &self,
        head: request::Builder,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Bytes, ClientError> {
        let response = self.send(head, method, path, body).await?;
        let status = response.status();
        let body = body::to_bytes(response.into_body(), MAX_RESPONSE_BYTES).await;
        let body = body.map_err(|error| ClientError::Broken(root_cause(&error)))?;
        accepted(path, status, &body)?;
        Ok(body)
    }

    /// Sends a request, and returns the response as soon as its head has arrived. The caller reads
    /// the body.
    async fn send(
        &self,
        request: request::Builder,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Body>, ClientError> {
        let mut request = request.method(method).uri(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(body).map_err(ClientError::Request)?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| ClientError::Unreachable {
            address: self.base.clone(),
            is_refused: is_refused(&error),
            reason: root_cause(&error),
        })?;
        Ok(response.map(Body::new))
    }
}

/// Returns an error unless the status of a response is 200, 201, 202 or 422.
fn accepted(path: &str, status: StatusCode, body: &[u8]) -> Result<(), ClientError> {
    match status {
        // If Seawall refuses a reload, the response has the status 422 and a normal reply in its
        // body. This reply contains the problems of the configuration.
        StatusCode::OK
        | StatusCode::CREATED
        | StatusCode::ACCEPTED
        | StatusCode::UNPROCESSABLE_ENTITY => Ok(()),
        StatusCode::UNAUTHORIZED => Err(ClientError::Unauthorized),
        _ => Err(refused(path, status, body)),
    }
}

fn refused(path: &str, status: StatusCode, body: &[u8]) -> ClientError {
    let said = String::from_utf8_lossy(body);
    let said = said.trim().chars().take(SHOWN_REFUSAL_CHARACTERS);
    ClientError::Refused {
        path: path.to_owned(),
        status: status.as_u16(),
        said: said.collect(),
    }
}

fn json(body: &Bytes) -> Result<Value, ClientError> {
    serde_json::from_slice(body).map_err(ClientError::NotJson)
}

/// A TLS configuration that trusts no certificate.
fn without_authorities() -> Result<ClientConfig, ClientError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ClientError::Tls)?;
    let builder = builder.with_root_certificates(RootCertStore::empty());
    Ok(builder.with_no_client_auth())
}

/// The scheme and authority of a URL. `host:port` without a scheme means plain HTTP.
fn base(url: &str) -> Result<String, ClientError> {
    let wrong = || ClientError::Url {
        url: url.to_owned(),
    };
    let full = match url.contains("://") {
        true => url.to_owned(),
        false => format!("http://{url}"),
    };
    let uri: Uri = full.parse().map_err(|_| wrong())?;
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    match (uri.scheme_str(), uri.authority()) {
        (Some(scheme @ ("http" | "https")), Some(authority)) if path == "/" => {
            Ok(format!("{scheme}://{authority}"))
        }
        _ => Err(wrong()),
    }
}

/// Percent-encodes one path segment or one query value of a URL.
pub fn percent_encode(segment: &str) -> String {
    let encoded = segment.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
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

/// True if the host refused the connection, so no process listens at the address.
fn is_refused(error: &(dyn error::Error + 'static)) -> bool {
    let mut causes = iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
    })
}

/// The reason why a client could not be created, or why a request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The URL is invalid, or has a path.
    #[error("{url}: expected a URL without a path, such as http://127.0.0.1:9909")]
    Url {
        /// The URL.
        url: String,
    },
    /// The token contains characters that a header must not contain, or the path contains
    /// characters that a URL must not contain.
    #[error("the token or the path has characters that an HTTP request must not contain: {0}")]
    Request(axum::http::Error),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
    /// No connection could be established, or the connection ended before the response.
    #[error("cannot reach Seawall at {address}: {reason}")]
    Unreachable {
        /// The base URL of the proxy.
        address: String,
        /// True if the host refused the connection, so no process listens at the address.
        is_refused: bool,
        /// The innermost cause of the failure, such as `connection refused`.
        reason: String,
    },
    /// The response did not arrive in time.
    #[error("timed out waiting for a response from {address}")]
    TimedOut {
        /// The base URL of the proxy.
        address: String,
    },
    /// The connection ended before the end of the response, or the response is larger than
    /// `MAX_RESPONSE_BYTES`.
    #[error("could not read the whole response: {0}")]
    Broken(String),
    /// The token is missing or wrong.
    #[error("the admin address requires a valid token")]
    Unauthorized,
    /// The response is larger than the caller accepts.
    #[error("the response is too large")]
    TooLarge,
    /// The HTTP status is not 200, 201, 202, 401 or 422; for a download, it is not 200 or 401.
    #[error("{path}: {status} {said}")]
    Refused {
        /// The requested path.
        path: String,
        /// The HTTP status.
        status: u16,
        /// The beginning of the response's body.
        said: String,
    },
    /// The response is not JSON, or a member has an unexpected type.
    #[error("the response is not JSON, or not in the expected format: {0}")]
    NotJson(serde_json::Error),
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        task::JoinHandle,
        time::{advance, pause, resume},
    };

    use super::*;

    /// Reads a request without a body.
    async fn read_request(stream: &mut TcpStream) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(request).unwrap()
    }

    /// Starts a server that sends `response` to one request. Returns a client, and the request as
    /// the server received it.
    async fn served(response: &'static str) -> (AdminClient, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await;
            stream.write_all(response.as_bytes()).await.unwrap();
            request
        });
        let token = Some("secret".to_owned());
        let client = AdminClient::new(&address.to_string(), token, None).unwrap();
        (client, server)
    }

    /// Sends one request to a server that sends `response`. Returns the result, and the request as
    /// the server received it.
    async fn exchanged(response: &'static str) -> (Result<Value, ClientError>, String) {
        let (client, server) = served(response).await;
        let result = client.ask_for_json("/api/v1/shapes?since=1m").await;
        (result, server.await.unwrap())
    }

    #[test]
    fn reserved_characters_of_a_url_are_percent_encoded() {
        assert_eq!(percent_encode("a/b?c"), "a%2Fb%3Fc");
        assert_eq!(percent_encode("10:00+01:00"), "10%3A00%2B01%3A00");
    }

    #[tokio::test]
    async fn token_is_sent_and_the_response_is_parsed_as_json() {
        let (result, request) =
            exchanged("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\": 1}\n").await;
        assert_eq!(result.unwrap(), serde_json::json!({ "a": 1 }));
        assert!(request.starts_with("GET /api/v1/shapes?since=1m HTTP/1.1\r\n"));
        assert!(request.contains("authorization: Bearer secret\r\n"));
    }

    #[tokio::test]
    async fn each_error_response_gives_its_own_error_message() {
        let cases = [
            (
                "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
                "requires a valid token",
            ),
            (
                "HTTP/1.1 400 Bad\r\ncontent-length: 4\r\n\r\nno!\n",
                "400 no!",
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "not JSON"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",
                "could not read the whole response",
            ),
        ];
        for (response, message) in cases {
            let error = exchanged(response).await.0.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[tokio::test]
    async fn a_download_with_another_status_than_200_fails() {
        for response in [
            "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nhi",
            "HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nhi",
            "HTTP/1.1 422 Unprocessable\r\ncontent-length: 2\r\n\r\nhi",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nhi",
        ] {
            let (client, _server) = served(response).await;
            let mut bytes = 0;
            let mut write = |part: &[u8]| {
                bytes += part.len();
                true
            };
            let result = client.download("/api/v1/captures/a/0", &mut write).await;
            let error = result.unwrap_err();
            assert!(matches!(error, ClientError::Refused { .. }), "{error}");
            assert_eq!(bytes, 0, "{response}");
        }
    }

    #[tokio::test]
    async fn the_reply_to_a_reload_may_take_longer_than_other_replies() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = AdminClient::new(&address, None, None).unwrap();
        let reload = tokio::spawn(async move { client.post::<Value>("/api/v1/reload").await });
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        pause();
        advance(RESPONSE_LIMIT + Duration::from_secs(5)).await;
        resume();
        let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(response).await.unwrap();
        assert_eq!(reload.await.unwrap().unwrap(), serde_json::json!({}));
    }

    #[tokio::test]
    async fn error_for_a_refused_connection_contains_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = AdminClient::new(&format!("http://{address}/"), None, None).unwrap();
        let error = client.ask_for_json("/api/v1/status").await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot reach Seawall at http://127.0.0.1:")
        );
        let refused = matches!(error, ClientError::Unreachable { is_refused, .. } if is_refused);
        assert!(refused, "{error}");
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_the_response_is_not_a_refused_connection() {
        let error = exchanged("").await.0.unwrap_err();
        let refused = matches!(error, ClientError::Unreachable { is_refused, .. } if is_refused);
        assert!(!refused, "{error}");
        let unreachable = matches!(error, ClientError::Unreachable { .. });
        assert!(unreachable, "{error}");
    }

    #[test]
    fn only_http_and_https_urls_without_a_path_are_accepted() {
        assert_eq!(base("127.0.0.1:9909").unwrap(), "http://127.0.0.1:9909");
        assert_eq!(base("http://[::1]:9909/").unwrap(), "http://[::1]:9909");
        assert_eq!(base("https://a:1").unwrap(), "https://a:1");
        for url in ["https://a:1/x", "http://a/api", "ftp://a", "http://", "a b"] {
            assert!(matches!(base(url), Err(ClientError::Url { .. })), "{url}");
        }
    }
}
