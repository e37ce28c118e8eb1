//! A client of the admin API: sends GET requests over plain HTTP and returns the JSON of the
//! response.

use std::{error, io, path::PathBuf, time::Duration};

use axum::{
    body::{self, Body},
    http::{Request, StatusCode, Uri, header, uri::PathAndQuery},
};
use clap::Args;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

use super::Exit;

/// Time limit for establishing a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for a response. A report on days merges many distributions.
const RESPONSE_LIMIT: Duration = Duration::from_secs(30);

/// Maximum size of a response. A report on days with all its distributions is a few MiB.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Maximum length of the part of an error response that is shown.
const SHOWN_REFUSAL_CHARACTERS: usize = 200;

/// The admin address of a running proxy, and its token.
#[derive(Clone, Debug, Args)]
pub(super) struct Endpoint {
    /// The admin address of a running proxy.
    #[arg(
        long = "admin",
        value_name = "URL",
        env = "SEAWALL_ADMIN_URL",
        default_value = "http://127.0.0.1:9909"
    )]
    url: String,
    /// The file that contains the token of the admin address.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// A client of one proxy's admin address.
#[derive(Clone, Debug)]
pub(super) struct AdminClient {
    client: Client<HttpConnector, Body>,
    /// Scheme and authority, such as `http://127.0.0.1:9909`.
    base: String,
    token: Option<String>,
}

impl AdminClient {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self, Error> {
        let token = endpoint.token_file.as_ref().map(|file| {
            let text = std::fs::read_to_string(file);
            text.map_err(|source| Error::TokenFile {
                file: file.clone(),
                source,
            })
        });
        let token = token.transpose()?.map(|text| text.trim().to_owned());
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            base: base(&endpoint.url)?,
            token,
        })
    }

    /// The base URL of the proxy.
    pub(super) fn address(&self) -> &str {
        &self.base
    }

    /// Requests a path with its query, such as `/api/v1/shapes?since=1m`.
    pub(super) async fn ask(&self, path: &str) -> Result<Value, Error> {
        match timeout(RESPONSE_LIMIT, self.exchange(path)).await {
            Ok(result) => result,
            Err(_) => Err(Error::TimedOut {
                address: self.base.clone(),
            }),
        }
    }

    async fn exchange(&self, path: &str) -> Result<Value, Error> {
        let mut request = Request::get(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).map_err(Error::Request)?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| Error::Unreachable {
            address: self.base.clone(),
            reason: root_cause(&error),
        })?;
        let status = response.status();
        let body = body::to_bytes(Body::new(response.into_body()), MAX_RESPONSE_BYTES).await;
        let body = body.map_err(|error| Error::Broken(root_cause(&error)))?;
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(Error::NotJson),
            StatusCode::UNAUTHORIZED => Err(Error::Unauthorized),
            _ => {
                let said = String::from_utf8_lossy(&body);
                let said = said.trim().chars().take(SHOWN_REFUSAL_CHARACTERS);
                Err(Error::Refused {
                    path: path.to_owned(),
                    status: status.as_u16(),
                    said: said.collect(),
                })
            }
        }
    }
}

/// The scheme and authority of a URL. `host:port` without a scheme means plain HTTP.
fn base(url: &str) -> Result<String, Error> {
    let wrong = || Error::Url {
        url: url.to_owned(),
    };
    let full = match url.contains("://") {
        true => url.to_owned(),
        false => format!("http://{url}"),
    };
    let uri: Uri = full.parse().map_err(|_| wrong())?;
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) if path == "/" => Ok(format!("http://{authority}")),
        _ => Err(wrong()),
    }
}

/// Percent-encodes one segment or query value of a URL.
pub(super) fn percent_encode(segment: &str) -> String {
    let encoded = segment.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// The innermost source of an error: `connection refused` is more useful than `client error`.
fn root_cause(error: &dyn error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("--admin {url}: expected a URL without a path, such as http://127.0.0.1:9909")]
    Url { url: String },
    #[error("--token-file {}: {source}", file.display())]
    TokenFile { file: PathBuf, source: io::Error },
    /// The token contains characters that are not allowed in a header.
    #[error("invalid request: {0}")]
    Request(axum::http::Error),
    #[error("cannot reach Seawall at {address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("timed out waiting for a response from {address}")]
    TimedOut { address: String },
    #[error("incomplete response: {0}")]
    Broken(String),
    #[error("the admin address requires a token: use --token-file")]
    Unauthorized,
    #[error("{path}: {status} {said}")]
    Refused {
        path: String,
        status: u16,
        said: String,
    },
    #[error("the response is not JSON: {0}")]
    NotJson(serde_json::Error),
}

impl Error {
    /// The exit status for this error.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Url { .. } | Self::TokenFile { .. } | Self::Request(_) | Self::Unauthorized => {
                Exit::Usage
            }
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Broken(_)
            | Self::Refused { .. }
            | Self::NotJson(_) => Exit::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn endpoint(url: &str) -> Endpoint {
        Endpoint {
            url: url.to_owned(),
            token_file: None,
        }
    }

    /// Sends one request to a server that sends this response. Returns the result and the request.
    async fn exchanged(response: &'static str) -> (Result<Value, Error>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(response.as_bytes()).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        let mut client = AdminClient::new(&endpoint(&address.to_string())).unwrap();
        client.token = Some("secret".to_owned());
        let result = client.ask("/api/v1/shapes?since=1m").await;
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
    async fn error_responses_have_a_message_and_an_exit_code() {
        let cases = [
            (
                "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
                "--token-file",
                Exit::Usage,
            ),
            (
                "HTTP/1.1 400 Bad\r\ncontent-length: 4\r\n\r\nno!\n",
                "400 no!",
                Exit::Unavailable,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
                "not JSON",
                Exit::Unavailable,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",
                "incomplete",
                Exit::Unavailable,
            ),
        ];
        for (response, message, exit) in cases {
            let error = exchanged(response).await.0.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.exit(), exit);
        }
    }

    #[tokio::test]
    async fn refused_connection_exits_as_unavailable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = AdminClient::new(&endpoint(&format!("http://{address}/"))).unwrap();
        let error = client.ask("/api/v1/status").await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot reach Seawall at http://127.0.0.1:")
        );
        assert_eq!(error.exit(), Exit::Unavailable);
    }

    #[test]
    fn only_http_urls_without_a_path_are_accepted() {
        assert_eq!(base("127.0.0.1:9909").unwrap(), "http://127.0.0.1:9909");
        assert_eq!(base("http://[::1]:9909/").unwrap(), "http://[::1]:9909");
        for url in ["https://a:1", "http://a/api", "ftp://a", "http://", "a b"] {
            assert_eq!(base(url).unwrap_err().exit(), Exit::Usage, "{url}");
        }
    }

    #[test]
    fn error_names_the_missing_token_file() {
        let endpoint = Endpoint {
            token_file: Some("/nowhere/token".into()),
            ..endpoint("http://127.0.0.1:1")
        };
        let error = AdminClient::new(&endpoint).unwrap_err();
        assert!(error.to_string().contains("/nowhere/token"));
        assert_eq!(error.exit(), Exit::Usage);
    }
}
