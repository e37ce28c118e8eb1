//! The dashboard: a page for browsers, with its files, its sessions and its live updates. All its
//! figures come from the API.

mod assets;
mod live;
mod session;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::time::timeout;

use self::assets::Assets;
pub use self::live::Live;
pub(super) use self::live::{event, interval, latest, run, tick};
use super::{AdminState, guard};

/// Time limit of a request to `/api/v1/session`.
const SESSION_REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Maximum size of the body of a request to `/api/v1/session`, in bytes. The request that begins a
/// session contains one token.
const MAX_SESSION_REQUEST_BYTES: usize = 8 << 10;

/// The policy that limits what the page may load and do. The page shows texts that come from
/// clients, such as shapes (commands without their values) and application names. Even if such a
/// text became part of the page as HTML, its scripts would not run, and no data would leave the
/// page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of all replies of the dashboard.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The routes of the dashboard, with their access rules.
pub(super) struct Routes {
    /// The route `/api/v1/session`. Seawall reads the body of such a request before it knows the
    /// caller, and the caller may send the body slowly. If the number of these requests were
    /// limited, slow callers would block all others. So only the time and size of each request are
    /// limited, and the maximum number of connections limits the memory.
    pub(super) sessions: Router<Arc<AdminState>>,
    /// All other routes.
    pub(super) others: Router<Arc<AdminState>>,
}

/// Creates the routes of the dashboard.
pub(super) fn routes(state: &Arc<AdminState>) -> Routes {
    let layered = |routes: Router<Arc<AdminState>>| {
        let served = middleware::from_fn_with_state(Arc::clone(state), serve_if_on);
        routes.route_layer(served)
    };
    let assets = Arc::new(Assets::default());
    let files = Router::new()
        .route("/", get(assets::page))
        .route("/assets/{file}", get(assets::asset))
        .layer(axum::Extension(assets))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(state),
            guard::check_page,
        ));
    let session = Router::new()
        .route(
            "/api/v1/session",
            get(session::describe)
                .post(session::begin)
                .delete(session::end),
        )
        .layer(DefaultBodyLimit::max(MAX_SESSION_REQUEST_BYTES))
        .layer(middleware::from_fn(limit_time))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(state),
            guard::check_page,
        ))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(state),
            session::log_refused_login,
        ));
    let live = Router::new()
        .route("/api/v1/live", get(live::stream))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(state),
            guard::check,
        ));
    Routes {
        sessions: layered(session),
        others: layered(files.merge(live)),
    }
}

/// Middleware that limits the time of a request to `/api/v1/session`, including the time for
/// reading the body of the request.
async fn limit_time(request: Request, next: Next) -> Response {
    match timeout(SESSION_REQUEST_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// Serves a request if the dashboard is on, and adds the headers of the dashboard to the response.
/// If the dashboard is off, the status is 404.
async fn serve_if_on(
    State(state): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    if !state.has_dashboard() {
        let why = "the dashboard is off: set admin.dashboard = true\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    }
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
