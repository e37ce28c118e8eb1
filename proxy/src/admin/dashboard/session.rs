//! `/api/v1/session`: `POST` exchanges a token for the cookie of a dashboard session, `DELETE` ends
//! the session, and `GET` returns the caller's rights.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::{Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tokio::time::Instant;

use super::super::{
    AdminState, Role,
    guard::{AccessRefusal, Presented, action_of, caller_of, is_from_own_page},
    sessions::{LIFETIME, cookie_name},
};

/// The name of a login in the audit log.
const LOGIN: &str = "login";

#[derive(Deserialize)]
pub(super) struct Login {
    token: String,
}

/// Begins a session. If no tokens are configured, no session is needed, and the reply sets no
/// cookie.
pub(super) async fn begin(
    State(state): State<Arc<AdminState>>,
    parts: Parts,
    Json(login): Json<Login>,
) -> Response {
    if state.guard.load().tokens.is_empty() {
        return StatusCode::NO_CONTENT.into_response();
    }
    // Only the dashboard's own page may begin a session. Otherwise a page of another origin could
    // replace the session of a user.
    if !is_from_own_page(&parts.uri, &parts.headers) {
        return AccessRefusal::Origin.into_response();
    }
    let Some(token) = state.guard.load().token(&login.token) else {
        return AccessRefusal::Token.into_response();
    };
    let id = match state.sessions.begin(&login.token, Instant::now()) {
        Ok(id) => id,
        Err(error) => {
            let why = format!("the system returned no random numbers: {error}\n");
            return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
        }
    };
    let caller = Some(token.name.clone());
    let line = action_of(LOGIN.to_owned(), caller, &parts.extensions);
    line.log_status(StatusCode::NO_CONTENT.as_u16());
    with_cookie(&parts, &id, LIFETIME.as_secs())
}

/// Middleware that logs a login that is refused with the status 401 or 403. At most one a minute is
/// logged.
pub(super) async fn log_refused_login(
    State(state): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    let is_login = request.method() == Method::POST;
    let line = is_login.then(|| action_of(LOGIN.to_owned(), None, request.extensions()));
    let response = next.run(request).await;
    let status = response.status();
    if let Some(line) = line
        && matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        && let Some(refused) = state.refused_logins.count(Instant::now())
    {
        line.log_refused_status(status.as_u16(), refused);
    }
    response
}

/// Ends the session of the request.
pub(super) async fn end(State(state): State<Arc<AdminState>>, parts: Parts) -> Response {
    if !is_from_own_page(&parts.uri, &parts.headers) {
        return AccessRefusal::Origin.into_response();
    }
    // A request without a valid session ends nothing, so it is not logged.
    if let Some(secret) = state.sessions.token(&parts.headers, Instant::now()) {
        let token = state.guard.load().token(&secret);
        let caller = token.map(|token| token.name.clone());
        let line = action_of("logout".to_owned(), caller, &parts.extensions);
        line.log_status(StatusCode::NO_CONTENT.as_u16());
    }
    state.sessions.end(&parts.headers);
    with_cookie(&parts, "", 0)
}

/// Reports the caller's rights. The status is 401 if a token is required and the request has no
/// valid token. The page then asks the user for a token.
pub(super) async fn describe(State(state): State<Arc<AdminState>>, parts: Parts) -> Response {
    let admitted = state.admit(&Presented::of_parts(&parts));
    let token = match admitted {
        Ok(token) => token,
        Err(refusal) => return refusal.into_response(),
    };
    let role = match token.as_deref().map_or(Role::Act, |token| token.role) {
        Role::Act => "act",
        Role::Read => "read",
    };
    Json(seawall_api::DashboardSession {
        peers: state.fleet.load().addresses(),
        role: role.to_owned(),
        token_required: token.is_some(),
    })
    .into_response()
}

/// A reply that sets the cookie of a session. If the request used TLS, the browser may send the
/// cookie only over TLS.
fn with_cookie(parts: &Parts, id: &str, max_age_seconds: u64) -> Response {
    let is_encrypted = caller_of(&parts.extensions).is_some_and(|from| from.is_encrypted);
    let secure = if is_encrypted { "; Secure" } else { "" };
    let name = cookie_name(&parts.headers);
    let cookie = format!(
        "{name}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age_seconds}{secure}"
    );
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}
