//! The endpoints that start, stop, list, stream and delete captures of traffic. A request names a
//! capture by its id and never by a file path.

use std::{
    fs::File,
    io::{self, Read as _},
    sync::Arc,
    time::Duration,
};

use axum::{
    Extension, Json,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use seawall_api::NewCapture;
use seawall_capture::record::ReplyDetail;
use seawall_stats::float;
use tokio::time::{sleep, timeout};

use super::{AdminState, Refused, bad_request, guard::Presented, work_in};
use crate::{
    captures::{
        CaptureError, CaptureId, CaptureParts, CapturePlan, CaptureState, Captures, MAX_NAMES,
        Selection, redaction_named,
    },
    runtime::ActionParameters,
};

/// Maximum length of a name (namespace, user or application) that selects the clients of a capture,
/// in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Maximum size of one chunk of a streamed capture, in bytes. It bounds the memory of each stream.
const CHUNK_BYTES: usize = 256 * 1024;

/// Time between two checks for new bytes of a running capture.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum time that a request for captures waits for earlier requests. If they last longer, the
/// directory of captures probably does not respond.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Runs a task that uses the directory of captures. The directory may be on a file system that does
/// not respond, so at most [`MAX_CAPTURE_REQUESTS`](super::MAX_CAPTURE_REQUESTS) such tasks run. If
/// the task has to wait for longer than [`MAX_WAIT`], the status is 503.
async fn work<T: Send + 'static>(
    state: &Arc<AdminState>,
    task: impl FnOnce(&Captures) -> T + Send + 'static,
) -> Result<T, Refused> {
    let place = timeout(MAX_WAIT, Arc::clone(&state.capture_places).acquire_owned()).await;
    let place = place.ok().and_then(Result::ok);
    let place = place.ok_or_else(|| (StatusCode::SERVICE_UNAVAILABLE, format!("{BUSY}\n")))?;
    work_in(place, state, move |state| task(&state.captures)).await
}

/// The error text if too many requests for captures have not ended.
const BUSY: &str = "earlier requests for captures have not ended: try again later, and check that \
                    capture.directory responds";

pub(super) async fn list(
    State(state): State<Arc<AdminState>>,
) -> Result<Json<seawall_api::Captures>, Refused> {
    let listed = work(&state, Captures::list).await?;
    let captures = match listed {
        // The list is empty if captures are off.
        Err(CaptureError::Off) => Vec::new(),
        listed => listed.map_err(|error| refused(&error))?,
    };
    Ok(Json(seawall_api::Captures {
        bytes: captures.iter().map(|capture| capture.bytes).sum(),
        captures: captures.into_iter().map(shown).collect(),
        unavailable: state.captures.obstacle().map(|error| error.to_string()),
    }))
}

/// Starts a capture. The status is 403 if the configuration does not allow captures, 409 if another
/// capture runs, and 507 if the directory of captures is full.
pub(super) async fn start(
    State(state): State<Arc<AdminState>>,
    Extension(parameters): Extension<ActionParameters>,
    Json(new): Json<NewCapture>,
) -> Result<(StatusCode, Json<seawall_api::Capture>), Refused> {
    parameters.record(described(&new));
    let plan = checked(new)?;
    let started = work(&state, |captures| start_planned(captures, plan)).await?;
    let started = started.map_err(|error| refused(&error))?;
    Ok((StatusCode::CREATED, Json(shown(started))))
}

/// Starts a capture and logs the start. The log line is written even if the caller disconnects.
fn start_planned(captures: &Captures, plan: CapturePlan) -> Result<CaptureState, CaptureError> {
    let selection = plan.selection.clone();
    let duration_ms = u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX);
    let replies = name_of(plan.replies);
    let started = captures.start(plan)?;
    tracing::info!(
        capture = started.id,
        duration_ms,
        replies,
        redact = started.redaction,
        sample = selection.sample,
        namespaces = selection.namespaces.join(","),
        users = selection.users.join(","),
        applications = selection.applications.join(","),
        "capture started"
    );
    Ok(started)
}

/// Stops a capture, even if the directory of captures does not respond. The status is 202 if the
/// last records of the capture are still being redacted and written.
pub(super) async fn stop(
    State(state): State<Arc<AdminState>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refused> {
    let id = parsed(&id)?;
    let stopped = super::work(&state, move |state| state.captures.stop(&id)).await?;
    acted(stopped)
}

pub(super) async fn delete(
    State(state): State<Arc<AdminState>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refused> {
    let id = parsed(&id)?;
    acted(work(&state, move |captures| captures.delete(&id)).await?)
}

fn acted(result: Result<(), CaptureError>) -> Result<StatusCode, Refused> {
    result
        .map(|()| StatusCode::OK)
        .map_err(|error| refused(&error))
}

/// Streams all parts of a capture (a part is one file), one after another. The stream of a running
/// capture continues until the capture ends, or until the caller loses its right to read captures.
pub(super) async fn content(
    State(state): State<Arc<AdminState>>,
    Path(id): Path<String>,
    request: Parts,
) -> Result<Response, Refused> {
    let id = parsed(&id)?;
    let checked = id.clone();
    let found = work(&state, move |captures| captures.parts(&checked)).await?;
    let parts = found.map_err(|error| refused(&error))?;
    let content = CaptureStream {
        state,
        request,
        id,
        parts,
        next_part: 0,
        file: None,
    };
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let body = Body::from_stream(stream::unfold(content, CaptureStream::next));
    Ok((headers, body).into_response())
}

/// The position in a streamed capture.
struct CaptureStream {
    state: Arc<AdminState>,
    /// The request that opened the stream. Before each chunk, Seawall checks again if this request
    /// may read captures.
    request: Parts,
    id: CaptureId,
    parts: CaptureParts,
    next_part: u32,
    file: Option<File>,
}

/// The result of reading the next bytes of a streamed capture.
enum Chunk {
    Bytes(Bytes),
    /// There are no new bytes yet, but the capture may still grow.
    Wait,
    End,
}

impl CaptureStream {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            // If the directory does not respond, reads do not end. So each read takes a permit. The
            // number of permits limits the number of reads that hang.
            let places = Arc::clone(&self.state.capture_places);
            let place = places.acquire_owned().await.ok()?;
            let request = Presented::of_parts(&self.request);
            if !self.state.admits_action(&request) {
                let error = io::Error::from(io::ErrorKind::PermissionDenied);
                return Some((Err(error), self));
            }
            // Read on a thread where blocking is allowed, because the disk may be slow.
            let state = Arc::clone(&self.state);
            let read = work_in(place, &state, move |_| {
                let chunk = self.read();
                (chunk, self)
            });
            let chunk;
            (chunk, self) = read.await.ok()?;
            match chunk {
                Ok(Chunk::Bytes(bytes)) => return Some((Ok(bytes), self)),
                Ok(Chunk::Wait) => sleep(FOLLOW_INTERVAL).await,
                Ok(Chunk::End) => return None,
                Err(error) => return Some((Err(error), self)),
            }
        }
    }

    fn read(&mut self) -> io::Result<Chunk> {
        // Before the files of the capture are read, check if the capture runs. If it has already
        // ended, the reads below find all of its bytes.
        let may_grow = self.state.captures.is_running(&self.id);
        loop {
            if let Some(bytes) = self.read_part()? {
                return Ok(Chunk::Bytes(bytes));
            }
            match self.parts.path(self.next_part)? {
                Some(path) => {
                    // The next part exists, so the current part is complete. Its last bytes may
                    // have been written after the read above, so read them first.
                    if let Some(bytes) = self.read_part()? {
                        return Ok(Chunk::Bytes(bytes));
                    }
                    self.file = Some(File::open(path)?);
                    self.next_part += 1;
                }
                None if may_grow => return Ok(Chunk::Wait),
                None => return Ok(Chunk::End),
            }
        }
    }

    /// The next bytes of the current part, at most [`CHUNK_BYTES`]. `None` if the file has no more
    /// bytes, or if there is no current part.
    fn read_part(&mut self) -> io::Result<Option<Bytes>> {
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        let mut chunk = Vec::new();
        let limit = u64::try_from(CHUNK_BYTES).unwrap_or(u64::MAX);
        file.take(limit).read_to_end(&mut chunk)?;
        Ok((!chunk.is_empty()).then(|| chunk.into()))
    }
}

/// The parameters of a new capture for the audit log, without those that have their default. They
/// contain names, but no values of users. The lists come last, because they may be too long for the
/// log.
fn described(new: &NewCapture) -> String {
    let NewCapture {
        applications,
        duration_ms,
        namespaces,
        redact,
        replies,
        sample,
        users,
    } = new;
    let mut parts = vec![format!("duration_ms: {duration_ms}")];
    if let Some(replies) = replies {
        parts.push(format!("replies: {replies:?}"));
    }
    if let Some(redact) = redact {
        parts.push(format!("redact: {redact:?}"));
    }
    if let Some(sample) = sample {
        parts.push(format!("sample: {sample}"));
    }
    for (name, list) in [
        ("namespaces", namespaces),
        ("users", users),
        ("applications", applications),
    ] {
        if !list.is_empty() {
            parts.push(format!("{name}: {list:?}"));
        }
    }
    format!("{{{}}}", parts.join(", "))
}

fn checked(new: NewCapture) -> Result<CapturePlan, Refused> {
    let sample = new.sample.unwrap_or(1.0);
    if !(sample > 0.0 && sample <= 1.0) {
        return Err(bad_request(
            "sample must be above 0 and at most 1".to_owned(),
        ));
    }
    let replies = match new.replies.as_deref() {
        None | Some("facts") => ReplyDetail::Facts,
        Some("whole") => ReplyDetail::Whole,
        Some(_) => return Err(bad_request("replies must be facts or whole".to_owned())),
    };
    let redaction = new.redact.as_deref().map(|name| {
        redaction_named(name)
            .ok_or_else(|| bad_request("redact must be none, equality or ordered".to_owned()))
    });
    for (name, list) in [
        ("namespaces", &new.namespaces),
        ("users", &new.users),
        ("applications", &new.applications),
    ] {
        let is_allowed = |name: &String| !name.is_empty() && name.len() <= MAX_NAME_BYTES;
        if list.len() > MAX_NAMES || !list.iter().all(is_allowed) {
            let wrong =
                format!("{name} must be at most {MAX_NAMES} names of 1 to {MAX_NAME_BYTES} bytes");
            return Err(bad_request(wrong));
        }
    }
    if !new.users.iter().all(|user| user.contains('.')) {
        let wrong = "users: each name must be DATABASE.USER, for example admin.shop";
        return Err(bad_request(wrong.to_owned()));
    }
    Ok(CapturePlan {
        selection: Selection {
            sample,
            namespaces: new.namespaces,
            users: new.users,
            applications: new.applications,
        },
        replies,
        redaction: redaction.transpose()?,
        duration: Duration::from_millis(new.duration_ms),
        trigger: "operator",
    })
}

fn parsed(id: &str) -> Result<CaptureId, Refused> {
    CaptureId::parse(id).ok_or_else(|| refused(&CaptureError::Unknown))
}

fn refused(error: &CaptureError) -> Refused {
    let status = match error {
        CaptureError::Off | CaptureError::Relayed => StatusCode::FORBIDDEN,
        CaptureError::Duration(_)
        | CaptureError::WeakerRedaction { .. }
        | CaptureError::NoRedactionKey => StatusCode::BAD_REQUEST,
        CaptureError::Running(_) | CaptureError::InUse => StatusCode::CONFLICT,
        CaptureError::Unknown | CaptureError::NotRunning => StatusCode::NOT_FOUND,
        CaptureError::Full { .. } => StatusCode::INSUFFICIENT_STORAGE,
        CaptureError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        // Not an error: the capture ends as soon as its last records are written.
        CaptureError::StillRunning => StatusCode::ACCEPTED,
    };
    (status, format!("{error}\n"))
}

fn name_of(replies: ReplyDetail) -> &'static str {
    match replies {
        ReplyDetail::Facts => "facts",
        ReplyDetail::Whole => "whole",
    }
}

pub(super) fn shown(capture: CaptureState) -> seawall_api::Capture {
    let seconds = |at_us: u64| float(at_us) / 1e6;
    let replies = match capture.has_whole_replies {
        true => ReplyDetail::Whole,
        false => ReplyDetail::Facts,
    };
    seawall_api::Capture {
        applications: capture.selection.applications,
        began_at: seconds(capture.began_at_us),
        bytes: capture.bytes,
        clients: capture.clients,
        end: capture.end,
        ended_at: capture.ended_at_us.map(seconds),
        id: capture.id,
        namespaces: capture.selection.namespaces,
        omitted: capture.omitted,
        operations: capture.operations,
        parts: capture.parts,
        redact: capture.redaction,
        replies: name_of(replies).to_owned(),
        running: capture.is_running,
        sample: capture.selection.sample,
        trigger: capture.trigger,
        users: capture.selection.users,
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use axum::http::Request;
    use seawall_capture::record::Redaction;
    use tokio::{sync::Semaphore, task::yield_now, time::timeout};
    use tower::ServiceExt as _;

    use super::{
        super::{MAX_CAPTURE_REQUESTS, MAX_REQUESTS, router, tests::state},
        *,
    };
    use crate::{captures::CaptureSettings, observe::MemoryLog};

    #[tokio::test]
    async fn metrics_are_served_while_requests_for_captures_hang() {
        let directory = env::temp_dir().join(format!("seawall-hung-requests-{}", process::id()));
        let settings = CaptureSettings::for_tests(directory.clone());
        let (captures, gate) = Captures::with_hanging_starts(settings);
        let state = AdminState {
            captures: Arc::clone(&captures),
            ..state()
        };
        let router = router(Arc::new(state));
        let starts = (0..MAX_REQUESTS).map(|_| {
            let start = Request::post("/api/v1/captures")
                .header(header::HOST, "localhost")
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(r#"{"duration_ms": 60000}"#))
                .unwrap();
            tokio::spawn(router.clone().oneshot(start))
        });
        let starts: Vec<_> = starts.collect();
        let refusals = async {
            let ended = || starts.iter().filter(|start| start.is_finished()).count();
            while ended() < MAX_REQUESTS - MAX_CAPTURE_REQUESTS {
                yield_now().await;
            }
        };
        let refusals = timeout(Duration::from_secs(10), refusals).await;
        let scrape = Request::get("/metrics").header(header::HOST, "localhost");
        let scrape = router.oneshot(scrape.body(Body::empty()).unwrap());
        let scraped = timeout(Duration::from_secs(10), scrape).await;
        drop(gate);
        assert!(refusals.is_ok());
        assert_eq!(scraped.unwrap().unwrap().status(), StatusCode::OK);
        let mut statuses = Vec::new();
        for start in starts {
            statuses.push(start.await.unwrap().unwrap().status().as_u16());
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409, 409, 409, 503, 503, 503, 503]);
        captures.close();
        fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_streamed_capture_waits_while_too_many_tasks_use_the_directory_of_captures() {
        let state = Arc::new(AdminState {
            capture_places: Arc::new(Semaphore::new(0)),
            ..state()
        });
        let request = Request::get("/").header(header::HOST, "localhost");
        let id = CaptureId::parse("20261128T000000Z-00000000").unwrap();
        let content = CaptureStream {
            state: Arc::clone(&state),
            request: request.body(()).unwrap().into_parts().0,
            parts: CaptureParts::of_no_capture(id.clone()),
            id,
            next_part: 0,
            file: None,
        };
        let mut next = Box::pin(content.next());
        assert!(timeout(MAX_WAIT, &mut next).await.is_err());
        state.capture_places.add_permits(1);
        // The read has a permit now, but it fails, because the capture does not exist.
        assert!(matches!(next.await, Some((Err(_), _))));
    }

    #[tokio::test]
    async fn the_start_of_a_capture_is_logged_with_its_parameters_even_if_it_is_refused() {
        let log = MemoryLog::default();
        let _collecting = log.collect();
        let request = Request::post("/api/v1/captures")
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(
                r#"{"duration_ms": 5, "replies": "whole", "users": ["admin.app"]}"#,
            ))
            .unwrap();
        let response = router(Arc::new(state())).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let lines = log.lines_with("admin action");
        assert_eq!(lines.len(), 1, "{lines:?}");
        let parameters = r#"{duration_ms: 5, replies: "whole", users: ["admin.app"]}"#;
        // In JSON, quotation marks are escaped.
        let shown = format!("\"parameters\":{parameters:?}");
        assert!(lines[0].contains(&shown), "{lines:?}");
    }

    #[test]
    fn stopping_a_capture_succeeds_although_its_files_are_not_complete_yet() {
        assert!(refused(&CaptureError::StillRunning).0.is_success());
        assert!(refused(&CaptureError::Unknown).0.is_client_error());
    }

    #[test]
    fn invalid_requests_for_new_captures_are_refused() {
        let of = |change: fn(&mut NewCapture)| {
            let mut new = NewCapture {
                duration_ms: 1_000,
                ..NewCapture::default()
            };
            change(&mut new);
            checked(new)
        };
        let plan = of(|_| {}).unwrap();
        assert_eq!(
            (plan.selection, plan.replies),
            (Selection::default(), ReplyDetail::Facts)
        );
        let whole = of(|new| new.replies = Some("whole".to_owned())).unwrap();
        assert_eq!(whole.replies, ReplyDetail::Whole);
        assert_eq!(plan.redaction, None);
        let ordered = of(|new| new.redact = Some("ordered".to_owned())).unwrap();
        assert_eq!(ordered.redaction, Some(Redaction::Ordered));
        let refused: [fn(&mut NewCapture); 8] = [
            |new| new.sample = Some(0.0),
            |new| new.sample = Some(1.1),
            |new| new.sample = Some(f64::NAN),
            |new| new.replies = Some("all".to_owned()),
            |new| new.redact = Some("partly".to_owned()),
            |new| new.users = vec![String::new()],
            |new| new.users = vec!["shop".to_owned()],
            |new| new.namespaces = vec!["a".to_owned(); MAX_NAMES + 1],
        ];
        for change in refused {
            assert_eq!(of(change).unwrap_err().0, StatusCode::BAD_REQUEST);
        }
    }
}
