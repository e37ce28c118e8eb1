//! A client of the admin API: asks, and gives the answer as JSON. Plain HTTP; what it asks changes nothing.

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

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How long an answer may take; a report over days merges many distributions.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The largest answer that is read: a report of days with all its distributions is a few MiB.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The longest part of a refusal that is shown.
const SHOWN_REFUSAL_CHARACTERS: usize = 200;

/// Where a running proxy is asked.
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
    /// A file with the admin address's token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Asks one proxy.
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

    /// Where it asks.
    pub(super) fn address(&self) -> &str {
        &self.base
    }

    /// Asks for a path with its query, as `/api/v1/status`.
    pub(super) async fn ask(&self, path: &str) -> Result<Value, Error> {
        match timeout(ANSWER_LIMIT, self.exchange(path)).await {
            Ok(answer) => answer,
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
            reason: root_of(&error),
        })?;
        let status = response.status();
        let answer = body::to_bytes(Body::new(response.into_body()), MAX_ANSWER_BYTES).await;
        let answer = answer.map_err(|error| Error::Broken(root_of(&error)))?;
        match status {
            StatusCode::OK => serde_json::from_slice(&answer).map_err(Error::NotJson),
            StatusCode::UNAUTHORIZED => Err(Error::Unauthorized),
            _ => {
                let said = String::from_utf8_lossy(&answer);
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

/// A URL's scheme and authority; `host:port` alone is taken for one of plain HTTP.
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

/// A part of an address with whatever would end it spelled out.
pub(super) fn in_address(segment: &str) -> String {
    let spelled = segment.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    spelled.collect()
}

/// The innermost reason: `connection refused` says more than `client error`.
fn root_of(error: &dyn error::Error) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root.to_string()
}

#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("--admin {url}: a URL such as http://127.0.0.1:9909, without a path")]
    Url { url: String },
    #[error("--token-file {}: {source}", file.display())]
    TokenFile { file: PathBuf, source: io::Error },
    /// A token that no header can hold.
    #[error("the request cannot be made: {0}")]
    Request(axum::http::Error),
    #[error("no seawall answers at {address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("{address} takes too long to answer")]
    TimedOut { address: String },
    #[error("the answer broke off: {0}")]
    Broken(String),
    #[error("the admin address wants its token: give it with --token-file")]
    Unauthorized,
    #[error("{path}: {status} {said}")]
    Refused {
        path: String,
        status: u16,
        said: String,
    },
    #[error("the answer is not JSON: {0}")]
    NotJson(serde_json::Error),
}

impl Error {
    /// What the shell is told.
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

    /// Answers one request, and gives what was asked.
    async fn asked(answer: &'static str) -> (Result<Value, Error>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        let mut client = AdminClient::new(&endpoint(&address.to_string())).unwrap();
        client.token = Some("secret".to_owned());
        let answer = client.ask("/api/v1/shapes?since=1m").await;
        (answer, server.await.unwrap())
    }

    #[test]
    fn what_would_end_a_part_of_an_address_is_spelled_out() {
        assert_eq!(in_address("a/b?c"), "a%2Fb%3Fc");
        assert_eq!(in_address("10:00+01:00"), "10%3A00%2B01%3A00");
    }

    #[tokio::test]
    async fn answer_is_json_and_the_token_goes_along() {
        let (answer, request) =
            asked("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\": 1}\n").await;
        assert_eq!(answer.unwrap(), serde_json::json!({ "a": 1 }));
        assert!(request.starts_with("GET /api/v1/shapes?since=1m HTTP/1.1\r\n"));
        assert!(request.contains("authorization: Bearer secret\r\n"));
    }

    #[tokio::test]
    async fn refusals_say_what_is_wrong_and_how_to_leave() {
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
                "broke off",
                Exit::Unavailable,
            ),
        ];
        for (answer, message, exit) in cases {
            let error = asked(answer).await.0.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.exit(), exit);
        }
    }

    #[tokio::test]
    async fn nobody_there_is_unavailable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = AdminClient::new(&endpoint(&format!("http://{address}/"))).unwrap();
        let error = client.ask("/api/v1/status").await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no seawall answers at http://127.0.0.1:")
        );
        assert_eq!(error.exit(), Exit::Unavailable);
    }

    #[test]
    fn only_plain_addresses_are_taken() {
        assert_eq!(base("127.0.0.1:9909").unwrap(), "http://127.0.0.1:9909");
        assert_eq!(base("http://[::1]:9909/").unwrap(), "http://[::1]:9909");
        for url in ["https://a:1", "http://a/api", "ftp://a", "http://", "a b"] {
            assert_eq!(base(url).unwrap_err().exit(), Exit::Usage, "{url}");
        }
    }

    #[test]
    fn missing_token_file_is_named() {
        let endpoint = Endpoint {
            token_file: Some("/nowhere/token".into()),
            ..endpoint("http://127.0.0.1:1")
        };
        let error = AdminClient::new(&endpoint).unwrap_err();
        assert!(error.to_string().contains("/nowhere/token"));
        assert_eq!(error.exit(), Exit::Usage);
    }
}
