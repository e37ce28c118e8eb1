//! Access control for the metrics and the API. If tokens are configured, callers must send one. If
//! client certificates are required, callers must have one. If neither is required, only callers on
//! this host are admitted. Actions are logged with the caller.
//!
//! If neither tokens nor client certificates are required, the admin address is a loopback address.
//! A browser on this host can still send requests to this address for any web page: the page makes
//! a cross-origin request, or uses a host name that its owner points at 127.0.0.1 (DNS rebinding).
//! Therefore a request without a token is refused if it names an unknown host or comes from another
//! origin. Health checks are not guarded: they reveal only whether Seawall works and, if not, the
//! reason. Orchestrators send them by pod IP or service name.
//!
//! A browser sends the cookie of its session instead of a token. The browser also sends this cookie
//! with requests from pages on other ports of the same host. Therefore a request with a cookie must
//! come from a page of the admin address itself.

use std::{fmt, net::IpAddr, sync::Arc};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{
        Extensions, HeaderMap, HeaderValue, StatusCode, Uri, header, request::Parts, uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use super::{
    AdminState,
    bounded::{Caller, Certificate},
};
use crate::runtime::Action;

/// The rights of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read metrics and the API.
    Read,
    /// Read metrics and the API, and also perform actions: reload, drain, profile, annotate, and
    /// start, stop, download and delete captures.
    Act,
}

/// A token that callers may send.
pub struct Token {
    /// The path of the token's file. It identifies the caller in the log.
    pub name: String,
    /// The text that a caller sends after `Bearer` to present the token.
    pub secret: String,
    /// The rights of callers with the token.
    pub role: Role,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not reach a log.
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// The rules that decide if a request is admitted.
#[derive(Debug)]
pub struct Guard {
    /// The accepted tokens; empty if requests need no token.
    pub tokens: Vec<Arc<Token>>,
    /// Host names, in lower case, to which requests without a token may be sent (`Host` header), in
    /// addition to IP addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// True if callers need a certificate. The certificate is checked at each request and not only
    /// at the handshake, because a reload may set this field while a connection is open.
    pub requires_certificate: bool,
}

/// Fetch metadata header (W3C): the relation between the origin of a browser's request and its
/// destination.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessRefusal {
    Certificate,
    Token,
    Role,
    Host,
    Origin,
}

impl IntoResponse for AccessRefusal {
    fn into_response(self) -> Response {
        let refusal = match self {
            Self::Certificate => (
                StatusCode::FORBIDDEN,
                "a valid client certificate is required: connect again\n",
            ),
            Self::Token => (StatusCode::UNAUTHORIZED, "a valid token is required\n"),
            Self::Role => (
                StatusCode::FORBIDDEN,
                "this token may only read: use a token of admin.token_file\n",
            ),
            Self::Host => (
                StatusCode::FORBIDDEN,
                "host not allowed: use an IP address or localhost, set admin.allowed_hosts, or set admin.token_file and use a token\n",
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
    State(state): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    match state.admit(&Presented::of(&request)) {
        Ok(_) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Like [`check`], but for the files of the dashboard and for `/api/v1/session`. They need no
/// token, because a browser requests them before the user has logged in. The files contain no
/// secrets.
pub(super) async fn check_page(
    State(state): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    let guard = state.guard.load_full();
    match guard.admit_page(&Presented::of(&request)) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Like [`check`], but for actions: if tokens are required, the caller's token must have
/// [`Role::Act`]. Each admitted action is written to the log, even if the caller disconnects before
/// the action ends. Refused actions are counted, and at most one a minute is logged. Handlers get
/// the extension [`ActionParameters`](crate::runtime::ActionParameters), in which they record
/// parameters for the log.
pub(super) async fn check_action(
    State(state): State<Arc<AdminState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let admitted = state.admit(&Presented::of(&request));
    let caller = match &admitted {
        Ok(Some(token)) => token.name.clone(),
        Ok(None) => "no token".to_owned(),
        Err(_) => "refused".to_owned(),
    };
    let action = |action| action_of(action, Some(caller), request.extensions());
    let allowed = match admitted {
        Ok(Some(token)) if token.role == Role::Read => Err(AccessRefusal::Role),
        other => other.map(drop),
    };
    match allowed {
        Ok(()) => {
            let running = action(format!("{} {}", request.method(), request.uri())).begin();
            request.extensions_mut().insert(running.parameters());
            let response = next.run(request).await;
            running.end_with_status(response.status().as_u16());
            response
        }
        Err(refusal) => {
            // The query is not logged: a caller without a token could fill the log with it.
            let action = action(format!("{} {}", request.method(), request.uri().path()));
            let response = refusal.into_response();
            if let Some(refused) = state.refused_actions.count(Instant::now()) {
                action.log_refused_status(response.status().as_u16(), refused);
            }
            response
        }
    }
}

/// The line of the audit log for an action that has not ended. `extensions` come from the request.
pub(super) fn action_of(action: String, caller: Option<String>, extensions: &Extensions) -> Action {
    let origin = caller_of(extensions);
    let certificate = origin.and_then(|of| of.certificate.as_ref());
    Action::new(action, caller, origin.map(|of| of.address))
        .with_certificate(certificate.map(|of| of.subject.clone()))
}

/// The parts of a request that decide if it is admitted.
pub(super) struct Presented<'r> {
    uri: &'r Uri,
    headers: &'r HeaderMap,
    /// The client certificate with which the connection was established; `None` if the caller sent
    /// none.
    certificate: Option<&'r Certificate>,
}

impl<'r> Presented<'r> {
    fn of(request: &'r Request) -> Self {
        Self::new(request.uri(), request.headers(), request.extensions())
    }

    /// Selects the parts of a request that decide if it is admitted.
    pub(super) fn of_parts(parts: &'r Parts) -> Self {
        Self::new(&parts.uri, &parts.headers, &parts.extensions)
    }

    fn new(uri: &'r Uri, headers: &'r HeaderMap, extensions: &'r Extensions) -> Self {
        Self {
            uri,
            headers,
            certificate: caller_of(extensions).and_then(|of| of.certificate.as_deref()),
        }
    }
}

/// The caller that sent a request; `None` only in tests without a connection.
pub(super) fn caller_of(extensions: &Extensions) -> Option<&Caller> {
    let caller = extensions.get::<ConnectInfo<Caller>>();
    caller.map(|ConnectInfo(caller)| caller)
}

impl Guard {
    /// Admits a request. `session` is the token with which the browser has logged in to the
    /// dashboard; `None` without a login. Returns the token that the request contains, or else the
    /// token of the login. Returns no token if none is required.
    fn admit(
        &self,
        presented: &Presented<'_>,
        session: Option<&str>,
    ) -> Result<Option<Arc<Token>>, AccessRefusal> {
        self.admit_certificate(presented)?;
        let Presented { uri, headers, .. } = *presented;
        if self.tokens.is_empty() {
            self.admit_own(presented)?;
            return match is_from_own_page(uri, headers) {
                true => Ok(None),
                false => Err(AccessRefusal::Origin),
            };
        }
        if let Some(sent) = headers.get(header::AUTHORIZATION) {
            let sent = sent.to_str().ok().and_then(|s| s.strip_prefix("Bearer "));
            let token = sent.and_then(|sent| self.token(sent));
            return token.map(Some).ok_or(AccessRefusal::Token);
        }
        let token = session.and_then(|secret| self.token(secret));
        let token = token.ok_or(AccessRefusal::Token)?;
        match is_from_own_page(uri, headers) {
            true => Ok(Some(token)),
            false => Err(AccessRefusal::Origin),
        }
    }

    /// Refuses a request if its connection has no certificate although one is required, or has a
    /// certificate that is no longer valid.
    fn admit_certificate(&self, presented: &Presented<'_>) -> Result<(), AccessRefusal> {
        let is_valid = presented.certificate.map(|of| (of.is_valid)());
        match is_valid.unwrap_or(!self.requires_certificate) {
            true => Ok(()),
            false => Err(AccessRefusal::Certificate),
        }
    }

    /// Admits a request for a file of the dashboard. Such a request never needs a token: if tokens
    /// are configured, the page asks the user for one.
    fn admit_page(&self, presented: &Presented<'_>) -> Result<(), AccessRefusal> {
        self.admit_certificate(presented)?;
        match self.tokens.is_empty() {
            true => self.admit_own(presented),
            false => Ok(()),
        }
    }

    /// Decides about a request if no tokens are configured. Refuses the request if its `Origin`
    /// header names another origin, or if a page of another site made the browser send it. Without
    /// a certificate, also refuses unknown host names.
    fn admit_own(&self, presented: &Presented<'_>) -> Result<(), AccessRefusal> {
        let Presented { uri, headers, .. } = *presented;
        let hosts = hosts(uri, headers);
        let is_allowed =
            |host: &Option<Authority>| host.as_ref().is_some_and(|host| self.allows(host.host()));
        // Against DNS rebinding: a page may have a foreign host name that resolves to this address.
        // So the host that the request names must be allowed, unless the client has a certificate.
        // Then the connection uses TLS, and the browser itself refuses the foreign host name.
        if presented.certificate.is_none() && !hosts.iter().all(is_allowed) {
            return Err(AccessRefusal::Host);
        }
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        if !has_own_origin(&hosts, headers) || sites.any(|site| site == "cross-site") {
            return Err(AccessRefusal::Origin);
        }
        Ok(())
    }

    /// The token with this secret. All tokens are compared, so the time does not depend on the
    /// position of the matching token.
    pub(super) fn token(&self, secret: &str) -> Option<Arc<Token>> {
        let is_sent = |token: &&Arc<Token>| token.secret.as_bytes().ct_eq(secret.as_bytes()).into();
        let sent: Vec<&Arc<Token>> = self.tokens.iter().filter(is_sent).collect();
        sent.first().copied().map(Arc::clone)
    }

    fn allows(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = host.to_ascii_lowercase();
        host == "localhost" || host.parse::<IpAddr>().is_ok() || self.allowed_hosts.contains(&host)
    }
}

impl AdminState {
    /// True if a request may perform actions ([`Role::Act`]), for example read captures.
    pub(super) fn admits_action(&self, presented: &Presented<'_>) -> bool {
        let may_act = |token: Option<Arc<Token>>| token.is_none_or(|of| of.role == Role::Act);
        self.admit(presented).is_ok_and(may_act)
    }

    /// Admits a request. Returns the token that the request contains, or else the token with which
    /// the browser has logged in to the dashboard; `None` if no token is required.
    pub(super) fn admit(
        &self,
        presented: &Presented<'_>,
    ) -> Result<Option<Arc<Token>>, AccessRefusal> {
        let session = match self.has_dashboard() {
            true => self.sessions.token(presented.headers, Instant::now()),
            false => None,
        };
        let session = session.as_ref().map(|token| token.as_str());
        self.guard.load().admit(presented, session)
    }
}

/// False if a page of another origin made the browser send the request.
pub(super) fn is_from_own_page(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    has_own_origin(&hosts(uri, headers), headers)
        && sites.all(|site| site == "same-origin" || site == "none")
}

fn hosts(uri: &Uri, headers: &HeaderMap) -> Vec<Option<Authority>> {
    let hosts = headers.get_all(header::HOST).iter().map(authority);
    hosts.chain(uri.authority().cloned().map(Some)).collect()
}

/// True if each `Origin` header of a request names one of `hosts`, the hosts to which the request
/// was sent.
fn has_own_origin(hosts: &[Option<Authority>], headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.all(|origin| {
        let origin = origin_authority(origin);
        origin.is_some() && hosts.contains(&origin)
    })
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

    #[test]
    fn debug_output_of_a_token_hides_its_secret() {
        let token = Token {
            name: "file".to_owned(),
            secret: "s3cret".to_owned(),
            role: Role::Act,
        };
        let text = format!("{token:?}");
        assert!(text.contains("file") && !text.contains("s3cret"), "{text}");
    }

    fn admit(guard: &Guard, request: &[(&str, &str)]) -> Result<(), AccessRefusal> {
        admit_in(guard, request, None).map(drop)
    }

    fn admit_in(
        guard: &Guard,
        request: &[(&str, &str)],
        session: Option<&str>,
    ) -> Result<Option<Arc<Token>>, AccessRefusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in request {
            let name: header::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let uri = "/api/v1/status".parse().unwrap();
        let presented = Presented {
            uri: &uri,
            headers: &headers,
            certificate: None,
        };
        guard.admit(&presented, session)
    }

    fn with_tokens() -> Guard {
        let tokens = [("other", Role::Act), ("secret", Role::Read)].map(|(secret, role)| Token {
            name: secret.to_owned(),
            secret: secret.to_owned(),
            role,
        });
        Guard {
            tokens: tokens.into_iter().map(Arc::new).collect(),
            ..without_token()
        }
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
            let presented = Presented {
                uri: &"/metrics".parse().unwrap(),
                headers: &headers,
                certificate,
            };
            guard.admit(&presented, None).map(drop)
        };
        let certificate = |is_valid: bool| Certificate {
            subject: "CN=app".to_owned(),
            is_valid: Box::new(move || is_valid),
        };
        let (valid, revoked) = (certificate(true), certificate(false));
        assert_eq!(
            admit(&guard, "localhost", None),
            Err(AccessRefusal::Certificate)
        );
        let refused = admit(&guard, "localhost", Some(&revoked));
        assert_eq!(refused, Err(AccessRefusal::Certificate));
        // With TLS, the browser checks the host name, so the guard accepts any name.
        assert_eq!(admit(&guard, "seawall.example", Some(&valid)), Ok(()));
        // A certificate that is sent must be valid even if no certificate is required.
        let refused = admit(&without_token(), "localhost", Some(&revoked));
        assert_eq!(refused, Err(AccessRefusal::Certificate));
        let with_token = Guard {
            tokens: vec![Arc::new(Token {
                name: "file".to_owned(),
                secret: "secret".to_owned(),
                role: Role::Act,
            })],
            ..guard
        };
        let refused = admit(&with_token, "localhost", Some(&valid));
        assert_eq!(refused, Err(AccessRefusal::Token));
    }

    /// Without a token, the guard checks the host name in the `Host` header, to prevent DNS
    /// rebinding.
    #[test]
    fn requests_that_name_an_unknown_host_are_refused_without_a_token() {
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
            assert_eq!(refused, Err(AccessRefusal::Host), "{host}");
        }
        let both = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(admit(&guard, &both), Err(AccessRefusal::Host));
    }

    #[test]
    fn requests_of_pages_of_another_origin_are_refused_without_a_token() {
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
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
        ] {
            let refused = admit(&guard, &[host, header]);
            assert_eq!(refused, Err(AccessRefusal::Origin), "{header:?}");
        }
    }

    /// A link on a page of another port, for example of Grafana, leads to the dashboard.
    #[test]
    fn a_page_of_another_port_may_link_to_the_dashboard_without_a_token() {
        let headers = [
            (header::HOST, "localhost:9909"),
            (header::HeaderName::from_static(SEC_FETCH_SITE), "same-site"),
        ];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
        let presented = Presented {
            uri: &"/".parse().unwrap(),
            headers: &HeaderMap::from_iter(headers),
            certificate: None,
        };
        assert_eq!(without_token().admit_page(&presented), Ok(()));
    }

    #[test]
    fn a_valid_token_admits_any_host_and_origin_and_an_invalid_token_is_refused() {
        let guard = with_tokens();
        let foreign = [
            ("host", "seawall.default.svc:9909"),
            ("origin", "https://grafana.example"),
            ("authorization", "Bearer secret"),
        ];
        assert_eq!(admit(&guard, &foreign), Ok(()));
        for authorization in ["Bearer secre", "Bearer ", "secret", "Basic secret"] {
            let request = [("host", "localhost"), ("authorization", authorization)];
            assert_eq!(admit(&guard, &request), Err(AccessRefusal::Token));
        }
        assert_eq!(
            admit(&guard, &[("host", "localhost")]),
            Err(AccessRefusal::Token)
        );
    }

    #[test]
    fn a_session_has_the_rights_of_its_token_only_for_requests_from_the_same_origin() {
        let guard = with_tokens();
        let own = [
            ("host", "seawall.example:9909"),
            ("origin", "https://seawall.example:9909"),
            ("sec-fetch-site", "same-origin"),
        ];
        let admitted = |request: &[(&str, &str)], session| admit_in(&guard, request, session);
        let token = admitted(&own, Some("secret")).unwrap().unwrap();
        assert_eq!(token.role, Role::Read);
        // A reload has removed the token `former`, with which this session began.
        let replaced = admitted(&own, Some("former"));
        assert_eq!(replaced.unwrap_err(), AccessRefusal::Token);
        for foreign in [
            ("origin", "https://seawall.example:8080"),
            ("origin", "null"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
        ] {
            let refused = admitted(&[own[0], foreign], Some("secret"));
            assert_eq!(refused.unwrap_err(), AccessRefusal::Origin, "{foreign:?}");
        }
        // A wrong token is refused even with a session.
        let wrong = [own[0], ("authorization", "Bearer wrong")];
        let refused = admitted(&wrong, Some("secret"));
        assert_eq!(refused.unwrap_err(), AccessRefusal::Token);
    }

    /// The host name in the `Host` header of this request is unknown: it is neither an IP address,
    /// nor `localhost`, nor an allowed host name.
    #[test]
    fn unknown_host_names_get_dashboard_files_only_if_tokens_are_configured() {
        let uri = "/".parse().unwrap();
        let foreign = [(header::HOST, HeaderValue::from_static("evil.example"))];
        let foreign = Presented {
            uri: &uri,
            headers: &HeaderMap::from_iter(foreign),
            certificate: None,
        };
        let refused = without_token().admit_page(&foreign);
        assert_eq!(refused, Err(AccessRefusal::Host));
        assert_eq!(with_tokens().admit_page(&foreign), Ok(()));
        let requiring = Guard {
            requires_certificate: true,
            ..with_tokens()
        };
        assert_eq!(
            requiring.admit_page(&foreign),
            Err(AccessRefusal::Certificate)
        );
    }
}
