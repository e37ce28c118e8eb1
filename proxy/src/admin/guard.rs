//! Access control for the metrics and the API. If tokens are configured, callers must send one. If
//! client certificates are required, callers must have one. Otherwise only callers on this host are
//! admitted. Actions are logged with the caller.
//!
//! Without both the admin address is a loopback address. A browser on this host can still reach
//! this address on behalf of any web page: with a cross-origin request, or with a host name that
//! the page's owner points at 127.0.0.1 (DNS rebinding). Therefore a request without a token is
//! refused if it names an unknown host or comes from another origin. Health checks are not guarded:
//! they reveal nothing, and orchestrators send them by pod IP or service name.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq as _;

use super::{
    Window,
    bounded::{Caller, Certificate},
};

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read metrics and the API.
    Read,
    /// Also reload, drain and profile.
    Act,
}

/// A token that callers may send.
#[derive(Debug)]
pub struct Token {
    /// The path of the token's file. It identifies the caller in the log.
    pub name: String,
    /// The token.
    pub secret: String,
    /// What callers with the token may do.
    pub role: Role,
}

/// The rules that decide if a request is admitted.
#[derive(Debug)]
pub struct Guard {
    /// The accepted tokens; empty if requests need no token.
    pub tokens: Vec<Token>,
    /// Host names, in lower case, that requests without a token may name in addition to IP
    /// addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// True if callers need a certificate. A connection may be older than this rule.
    pub requires_certificate: bool,
}

/// Fetch metadata header (W3C): the relation between the origin of a browser's request and its
/// destination.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Certificate,
    Token,
    Role,
    Host,
    Origin,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let refusal = match self {
            Self::Certificate => (
                StatusCode::FORBIDDEN,
                "a valid client certificate is required: connect again\n",
            ),
            Self::Token => (StatusCode::UNAUTHORIZED, "a bearer token is required\n"),
            Self::Role => (
                StatusCode::FORBIDDEN,
                "this token may only read: use a token of admin.token_file\n",
            ),
            Self::Host => (
                StatusCode::FORBIDDEN,
                "host not allowed: use an IP address or localhost, set admin.allowed_hosts, or use a token\n",
            ),
            Self::Origin => (
                StatusCode::FORBIDDEN,
                "requests from other origins are not allowed without a token\n",
            ),
        };
        refusal.into_response()
    }
}

/// Middleware that refuses requests that the guard does not admit.
pub(super) async fn check(
    State(window): State<Arc<Window>>,
    request: Request,
    next: Next,
) -> Response {
    let guard = window.guard.load_full();
    let caller = caller_of(&request);
    let certificate = caller.as_ref().and_then(|of| of.certificate.as_deref());
    match guard.admit(request.uri(), request.headers(), certificate) {
        Ok(_) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Like [`check`], for actions: they need [`Role::Act`], and are written to the log.
pub(super) async fn check_action(
    State(window): State<Arc<Window>>,
    request: Request,
    next: Next,
) -> Response {
    let guard = window.guard.load_full();
    let from = caller_of(&request);
    let certificate = from.as_ref().and_then(|of| of.certificate.as_deref());
    let admitted = guard.admit(request.uri(), request.headers(), certificate);
    let caller = match admitted {
        Ok(Some(token)) => token.name.as_str(),
        Ok(None) => "no token",
        Err(_) => "refused",
    };
    let allowed = match admitted {
        Ok(Some(token)) if token.role == Role::Read => Err(Refusal::Role),
        other => other.map(drop),
    };
    let peer = from.as_ref().map(|from| from.address);
    let subject = certificate.map(|of| of.subject.as_str());
    let action = format!("{} {}", request.method(), request.uri());
    let response = match allowed {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    let status = response.status().as_u16();
    tracing::info!(
        action,
        caller,
        ?peer,
        certificate = subject,
        status,
        "admin action"
    );
    response
}

/// The other end of a request's connection; `None` only in tests without a connection.
fn caller_of(request: &Request) -> Option<Caller> {
    let caller = request.extensions().get::<ConnectInfo<Caller>>();
    caller.map(|ConnectInfo(caller)| caller.clone())
}

impl Guard {
    /// Admits a request. Returns the token that it sent; `None` if no token is required.
    /// `certificate` is that of the connection.
    fn admit(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        certificate: Option<&Certificate>,
    ) -> Result<Option<&Token>, Refusal> {
        let has_valid = certificate.map(|certificate| (certificate.is_valid)());
        if !has_valid.unwrap_or(!self.requires_certificate) {
            return Err(Refusal::Certificate);
        }
        if !self.tokens.is_empty() {
            return self.token(headers).map(Some).ok_or(Refusal::Token);
        }
        let hosts = headers.get_all(header::HOST).iter().map(authority);
        let hosts = hosts.chain(uri.authority().cloned().map(Some));
        let hosts: Vec<_> = hosts.collect();
        let is_allowed =
            |host: &Option<Authority>| host.as_ref().is_some_and(|host| self.allows(host.host()));
        // With TLS, a browser notices a foreign host name that leads to this address.
        if certificate.is_none() && !hosts.iter().all(is_allowed) {
            return Err(Refusal::Host);
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let is_own = |origin: &HeaderValue| {
            let origin = origin_authority(origin);
            origin.is_some() && hosts.contains(&origin)
        };
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        if !origins.all(is_own) || sites.any(|site| site == "cross-site") {
            return Err(Refusal::Origin);
        }
        Ok(None)
    }

    /// The token that a request sent; `None` if it sent none or an unknown one. All tokens are
    /// compared, so the time does not depend on the position of the right one.
    fn token(&self, headers: &HeaderMap) -> Option<&Token> {
        let sent = headers.get(header::AUTHORIZATION);
        let sent = sent.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))?;
        let is_sent = |token: &&Token| token.secret.as_bytes().ct_eq(sent.as_bytes()).into();
        let sent: Vec<&Token> = self.tokens.iter().filter(is_sent).collect();
        sent.first().copied()
    }

    fn allows(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = host.to_ascii_lowercase();
        host == "localhost" || host.parse::<IpAddr>().is_ok() || self.allowed_hosts.contains(&host)
    }
}

fn authority(value: &HeaderValue) -> Option<Authority> {
    value.to_str().ok()?.to_ascii_lowercase().parse().ok()
}

/// The host and port of an origin. `None` if the text is `null` or not an origin.
fn origin_authority(origin: &HeaderValue) -> Option<Authority> {
    let origin = origin.to_str().ok()?.to_ascii_lowercase();
    let (_, authority) = origin.split_once("://")?;
    authority.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(guard: &Guard, request: &[(&str, &str)]) -> Result<(), Refusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in request {
            let name: header::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let admitted = guard.admit(&"/api/v1/status".parse().unwrap(), &headers, None);
        admitted.map(drop)
    }

    fn without_token() -> Guard {
        Guard {
            tokens: Vec::new(),
            allowed_hosts: vec!["seawall.internal".to_owned()],
            requires_certificate: false,
        }
    }

    #[test]
    fn required_certificates_must_be_valid_at_each_request() {
        let guard = Guard {
            requires_certificate: true,
            ..without_token()
        };
        let admit = |guard: &Guard, host: &str, certificate: Option<&Certificate>| {
            let mut headers = HeaderMap::new();
            headers.append(header::HOST, host.parse().unwrap());
            let admitted = guard.admit(&"/metrics".parse().unwrap(), &headers, certificate);
            admitted.map(drop)
        };
        let certificate = |is_valid: bool| Certificate {
            subject: "CN=app".to_owned(),
            is_valid: Box::new(move || is_valid),
        };
        let (valid, revoked) = (certificate(true), certificate(false));
        assert_eq!(admit(&guard, "localhost", None), Err(Refusal::Certificate));
        let refused = admit(&guard, "localhost", Some(&revoked));
        assert_eq!(refused, Err(Refusal::Certificate));
        // A certificate is valid for one host name, so any name is accepted.
        assert_eq!(admit(&guard, "seawall.example", Some(&valid)), Ok(()));
        // An optional certificate must be valid, too.
        let refused = admit(&without_token(), "localhost", Some(&revoked));
        assert_eq!(refused, Err(Refusal::Certificate));
        let with_token = Guard {
            tokens: vec![Token {
                name: "file".to_owned(),
                secret: "secret".to_owned(),
                role: Role::Act,
            }],
            ..guard
        };
        let refused = admit(&with_token, "localhost", Some(&valid));
        assert_eq!(refused, Err(Refusal::Token));
    }

    #[test]
    fn without_a_token_only_known_hosts_are_admitted() {
        let guard = without_token();
        assert_eq!(admit(&guard, &[]), Ok(()));
        for host in [
            "127.0.0.1:9909",
            "127.0.0.1",
            "10.1.2.3:9909",
            "[::1]:9909",
            "localhost:1234",
            "LocalHost",
            "seawall.internal:9909",
            "Seawall.Internal",
        ] {
            assert_eq!(admit(&guard, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9909",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "not.seawall.internal",
            "",
            "a b",
        ] {
            let refused = admit(&guard, &[("host", host)]);
            assert_eq!(refused, Err(Refusal::Host), "{host}");
        }
        let both = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(admit(&guard, &both), Err(Refusal::Host));
    }

    #[test]
    fn without_a_token_other_origins_are_refused() {
        let guard = without_token();
        let host = ("host", "localhost:9909");
        for header in [
            ("origin", "http://localhost:9909"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(admit(&guard, &[host, header]), Ok(()), "{header:?}");
        }
        for header in [
            ("origin", "https://evil.example"),
            ("origin", "http://localhost:3000"),
            ("origin", "http://127.0.0.1:9909"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
        ] {
            let refused = admit(&guard, &[host, header]);
            assert_eq!(refused, Err(Refusal::Origin), "{header:?}");
        }
    }

    #[test]
    fn valid_token_is_sufficient_and_an_invalid_one_is_refused() {
        let guard = Guard {
            tokens: [("other", Role::Act), ("secret", Role::Read)]
                .map(|(secret, role)| Token {
                    name: secret.to_owned(),
                    secret: secret.to_owned(),
                    role,
                })
                .into(),
            ..without_token()
        };
        let foreign = [
            ("host", "seawall.default.svc:9909"),
            ("origin", "https://grafana.example"),
            ("authorization", "Bearer secret"),
        ];
        assert_eq!(admit(&guard, &foreign), Ok(()));
        for authorization in ["Bearer secre", "Bearer ", "secret", "Basic secret"] {
            let request = [("host", "localhost"), ("authorization", authorization)];
            assert_eq!(admit(&guard, &request), Err(Refusal::Token));
        }
        assert_eq!(admit(&guard, &[("host", "localhost")]), Err(Refusal::Token));
    }
}
