//! One connection of a replay: sends a command, receives its reply, and connects again after a
//! failure.

use std::{sync::Arc, time::Duration};

use seawall_command::{ReplyFacts, ReplyForm};
use seawall_load::{Failure, Link};
use seawall_wire::OpMsg;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{OperationId, digest::digest, endpoint::Endpoint};

/// Maximum size in bytes of a reply that is received without a reservation of memory. See
/// [`Endpoint::replies`].
const SMALL_REPLY_BYTES: usize = 64 * 1024;

/// A command to send.
#[derive(Debug)]
pub(crate) struct Job {
    pub operation: OperationId,
    pub message: Vec<u8>,
    pub request_id: i32,
    pub wants_reply: bool,
    pub reply_form: ReplyForm,
    /// The time limit from sending the command to the end of its reply.
    pub reply_limit: Duration,
    /// A time in seconds since 1970. The digest (a hash of the returned documents) excludes
    /// ObjectIds, dates and timestamps of this time or later. `None` if no digest is wanted.
    pub digest_until_s: Option<u64>,
    /// Events to fetch before the command is sent, because the command closes the cursors that
    /// return these events.
    pub catch_up: Vec<CatchUp>,
}

/// Missing events of one awaiting cursor (a change stream or a tailable cursor): in the capture,
/// the clients received these events, but the replay has not received them yet. In the replay, a
/// `getMore` may return fewer events than in the capture.
#[derive(Debug)]
pub(crate) struct CatchUp {
    /// The captured id of the cursor.
    pub cursor: i64,
    /// A `getMore` on the cursor of the target server. Its request id must be the one that is
    /// passed to [`catch_up`].
    pub message: Vec<u8>,
    /// The number of missing events.
    pub missing: u64,
    /// The time limit from sending a `getMore` to the end of its reply.
    pub reply_limit: Duration,
}

/// The result of a command, even if the command could not be sent.
#[derive(Debug)]
pub(crate) struct Done {
    pub operation: OperationId,
    /// The time at which the sending of the command began.
    pub sent_at: Instant,
    /// The time from `sent_at` to the end of the reply, without the wait for memory for a large
    /// reply. If the command failed: the time from `sent_at` to the failure.
    pub duration: Duration,
    pub request_bytes: usize,
    /// The needed parts of the reply; `None` if the command wants no reply; an error if the command
    /// failed or could not be sent.
    pub result: Result<Option<Received>, Failure>,
    /// For each cursor whose events were fetched before the command: its captured id, and the
    /// number of fetched events.
    pub caught_up: Vec<(i64, u64)>,
}

/// The parts of a reply that the results of the replay need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub facts: ReplyFacts,
    pub bytes: usize,
    pub digest: u64,
    /// See [`Done::duration`].
    pub duration: Duration,
}

/// Runs one connection, until the sender of its jobs is dropped.
pub(crate) async fn run(
    endpoint: Arc<Endpoint>,
    mut jobs: mpsc::Receiver<Job>,
    done: mpsc::Sender<Done>,
) {
    // A failure is ignored here, because the first job connects again and reports its own failure.
    let mut link = endpoint.connect().await.ok();
    while let Some(job) = jobs.recv().await {
        let mut connected = match link.take() {
            Some(link) => Ok(link),
            None => endpoint.connect().await,
        };
        let mut caught_up = Vec::new();
        for events in &job.catch_up {
            if let Ok(link) = &mut connected {
                let fetched = catch_up(&endpoint, link, events, job.request_id).await;
                match fetched {
                    Ok(fetched) => caught_up.push((events.cursor, fetched)),
                    Err(failure) => connected = Err(failure),
                }
            }
        }
        let sent_at = Instant::now();
        let result = match connected {
            Ok(mut connected) => {
                let sending = timeout(job.reply_limit, send(&endpoint, &mut connected, &job));
                let result = sending.await.unwrap_or(Err(Failure::TimedOut));
                // After a failure, the connection is closed, because the rest of a reply may still
                // arrive on it.
                link = result.is_ok().then_some(connected);
                result
            }
            Err(failure) => Err(failure),
        };
        // The digest of the reply is not a part of the duration.
        let duration = match &result {
            Ok(received) => received.duration,
            Err(_) => sent_at.elapsed(),
        };
        // The client of an unacknowledged write got no reply, so the reply that the replay gets is
        // not counted. The replay waits for this reply, as Seawall does, so that the client's next
        // operation runs after the write.
        let result = result.map(|received| Some(received).filter(|_| job.wants_reply));
        let ended = Done {
            operation: job.operation,
            sent_at,
            duration,
            request_bytes: job.message.len(),
            result,
            caught_up,
        };
        if done.send(ended).await.is_err() {
            return;
        }
    }
}

async fn send(endpoint: &Endpoint, link: &mut Link, job: &Job) -> Result<Received, Failure> {
    let (request_id, until_s) = (job.request_id, job.digest_until_s);
    let (message, form) = (&job.message, job.reply_form);
    exchange(endpoint, link, message, request_id, form, until_s).await
}

/// Fetches missing events until none are missing or a `getMore` returns no event. Returns the
/// number of fetched events.
pub(crate) async fn catch_up(
    endpoint: &Endpoint,
    link: &mut Link,
    events: &CatchUp,
    request_id: i32,
) -> Result<u64, Failure> {
    let mut fetched = 0;
    while fetched < events.missing {
        let form = ReplyForm::Plain;
        let exchanging = exchange(endpoint, link, &events.message, request_id, form, None);
        let received = timeout(events.reply_limit, exchanging).await;
        let received = received.unwrap_or(Err(Failure::TimedOut))?;
        let documents = received.facts.documents();
        fetched += documents;
        if documents == 0 {
            break;
        }
    }
    Ok(fetched)
}

async fn exchange(
    endpoint: &Endpoint,
    link: &mut Link,
    message: &[u8],
    request_id: i32,
    reply_form: ReplyForm,
    digest_until_s: Option<u64>,
) -> Result<Received, Failure> {
    let began = Instant::now();
    link.send(message).await?;
    let bytes = link.receive_header(request_id).await?;
    let kib = match bytes > SMALL_REPLY_BYTES {
        true => u32::try_from(bytes / 1024).unwrap_or(u32::MAX),
        false => 0,
    };
    let waits_at = Instant::now();
    let permit = endpoint.replies.acquire_many(kib).await;
    let waited = waits_at.elapsed();
    let message = link.receive().await?;
    let duration = began.elapsed().saturating_sub(waited);
    let reply = OpMsg::parse(message).map_err(|_| Failure::Wrong("not an OP_MSG"))?;
    let received = Received {
        facts: ReplyFacts::of(reply_form, reply.body),
        bytes,
        digest: digest_until_s.map_or(0, |recent_s| digest(reply.body, recent_s)),
        duration,
    };
    drop(permit);
    Ok(received)
}
