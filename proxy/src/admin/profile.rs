//! Where Seawall's own CPU time goes: a flame graph of some seconds, on request.
//!
//! Samples are taken by a signal after so much CPU time of the process, and stacks are followed by frame pointers: the
//! unwinder takes locks, which a signal may find taken by the very thread that it stopped. Nothing of it runs unless asked.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use pprof::{ProfilerGuard, ProfilerGuardBuilder, flamegraph::Options};
use serde::Deserialize;

use super::Window;

/// Unless asked otherwise.
const DEFAULT_SECONDS: u64 = 10;

/// A request for more is a mistake.
const MAX_SECONDS: u64 = 60;

/// Samples a second of CPU time: not in step with anything that happens every ten milliseconds.
const DEFAULT_FREQUENCY: i32 = 99;

/// More would cost what it measures.
const MAX_FREQUENCY: i32 = 999;

#[derive(Deserialize)]
pub(super) struct Asked {
    seconds: Option<u64>,
    frequency: Option<i32>,
}

/// A flame graph as SVG, of the time from now on. If the client leaves, it ends.
pub(super) async fn profile(
    State(window): State<Arc<Window>>,
    Query(asked): Query<Asked>,
) -> Response {
    if !window.profiles {
        let why = "profiles are off: set admin.profile = true\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let seconds = asked.seconds.unwrap_or(DEFAULT_SECONDS);
    let frequency = asked.frequency.unwrap_or(DEFAULT_FREQUENCY);
    if !(1..=MAX_SECONDS).contains(&seconds) || !(1..=MAX_FREQUENCY).contains(&frequency) {
        let why = format!(
            "seconds is 1 to {MAX_SECONDS}, frequency (samples a second of CPU time) 1 to {MAX_FREQUENCY}\n"
        );
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    let guard = match ProfilerGuardBuilder::default().frequency(frequency).build() {
        Ok(guard) => guard,
        Err(pprof::Error::Running) => {
            let why = "another profile is being taken\n";
            return (StatusCode::CONFLICT, why).into_response();
        }
        Err(error) => return failed(&error.to_string()),
    };
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let title = format!("Seawall, {seconds} s, {frequency} samples a second of CPU time");
    // To find names of functions takes longer than a request may hold up others.
    match tokio::task::spawn_blocking(move || flame_graph(guard, title)).await {
        Ok(Ok(Some(svg))) => ([(header::CONTENT_TYPE, "image/svg+xml")], svg).into_response(),
        Ok(Ok(None)) => "no sample was taken: Seawall used next to no CPU time\n".into_response(),
        Ok(Err(error)) => failed(&error.to_string()),
        Err(error) => failed(&error.to_string()),
    }
}

/// The graph, unless there was no sample.
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
