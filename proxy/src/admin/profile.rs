//! CPU profiles of Seawall itself. A request profiles some seconds and returns a flame graph.
//!
//! A signal takes a sample after each interval of CPU time that the process uses. Stacks are walked
//! by frame pointers and not by the unwinder. The unwinder takes locks, and the thread that the
//! signal stopped may hold one of these locks. The profiler runs only during a request.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use pprof::{ProfilerGuard, ProfilerGuardBuilder, flamegraph::Options};
use serde::Deserialize;

use super::AdminState;

/// Length of a profile, in seconds, if the request has no `seconds`.
const DEFAULT_SECONDS: u64 = 10;

/// Maximum length of a profile, in seconds. A request for a longer profile is refused, because it
/// is probably a mistake.
const MAX_SECONDS: u64 = 60;

/// Samples per second of CPU time. The number is 99 and not 100, so that samples do not coincide
/// with work that runs every ten milliseconds.
const DEFAULT_FREQUENCY: i32 = 99;

/// The maximum frequency. At a higher frequency, the samples would cost as much as the work that
/// they measure.
const MAX_FREQUENCY: i32 = 999;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileParameters {
    seconds: Option<u64>,
    frequency: Option<i32>,
}

/// Takes a profile that begins now, and returns a flame graph as SVG. The profile ends early if the
/// caller disconnects.
pub(super) async fn profile(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<ProfileParameters>,
) -> Response {
    if !state.profiles.load(Ordering::Relaxed) {
        let why = "profiles are off: set admin.profile = true\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let seconds = parameters.seconds.unwrap_or(DEFAULT_SECONDS);
    let frequency = parameters.frequency.unwrap_or(DEFAULT_FREQUENCY);
    if !(1..=MAX_SECONDS).contains(&seconds) || !(1..=MAX_FREQUENCY).contains(&frequency) {
        let why = format!(
            "seconds must be 1 to {MAX_SECONDS}, frequency (samples per second of CPU time) 1 to {MAX_FREQUENCY}\n"
        );
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    let guard = match ProfilerGuardBuilder::default().frequency(frequency).build() {
        Ok(guard) => guard,
        Err(pprof::Error::Running) => {
            let why = "another profile is already running\n";
            return (StatusCode::CONFLICT, why).into_response();
        }
        Err(error) => return failed(&obstacle(&error)),
    };
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let title = format!("Seawall, {seconds} s, {frequency} samples per second of CPU time");
    // Resolving function names takes too long for an async thread.
    match tokio::task::spawn_blocking(move || flame_graph(guard, title)).await {
        Ok(Ok(Some(svg))) => ([(header::CONTENT_TYPE, "image/svg+xml")], svg).into_response(),
        Ok(Ok(None)) => "no sample was taken: Seawall used almost no CPU time\n".into_response(),
        Ok(Err(error)) => failed(&error.to_string()),
        Err(error) => failed(&error.to_string()),
    }
}

/// The reason why no profile can be taken. The profiler keeps its samples in a temporary file,
/// which it creates for the first profile. If this fails, all later profiles fail too.
fn obstacle(error: &pprof::Error) -> String {
    match error {
        pprof::Error::CreatingError => format!(
            "{error}: the profiler needs a temporary file; make {} writable and restart Seawall",
            std::env::temp_dir().display()
        ),
        error => error.to_string(),
    }
}

/// Draws the flame graph as SVG. `None` if no sample was taken.
fn flame_graph(guard: ProfilerGuard<'_>, title: String) -> pprof::Result<Option<Vec<u8>>> {
    let report = guard.report().build()?;
    drop(guard);
    if report.data.is_empty() {
        return Ok(None);
    }
    let mut options = Options::default();
    options.title = title;
    options.count_name = "samples".to_owned();
    let mut svg = Vec::new();
    report.flamegraph_with_options(&mut svg, &mut options)?;
    Ok(Some(svg))
}

fn failed(why: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_profiler_names_the_temporary_directory() {
        let why = obstacle(&pprof::Error::CreatingError);
        let directory = std::env::temp_dir();
        assert!(why.contains(directory.to_str().unwrap()), "{why}");
        assert_eq!(
            obstacle(&pprof::Error::NotRunning),
            "stop running cpu profiler error"
        );
    }
}
