//! One connection of a replay: sends a command, receives its reply, and connects again after a
//! failure.

use std::{sync::Arc, time::Duration};

use seawall_command::{ReplyFacts, ReplyForm};
use seawall_load::{Failure, Link};
use seawall_wire::OpMsg;
use tokio::{sync::mpsc, time::Instant};

use crate::{OperationId, digest::digest, endpoint::Endpoint};

/// A reply up to this size needs no share of the memory for replies, in bytes.
const SMALL_REPLY_BYTES: usize = 64 * 1024;

/// A command to send.
#[derive(Debug)]
pub(crate) struct Job {
    pub operation: OperationId,
    pub message: Vec<u8>,
    pub request_id: i32,
    pub wants_reply: bool,
    pub reply_form: ReplyForm,
    /// The time from which values are excluded from the digest, in seconds since 1970; `None` for
    /// no digest.
    pub digest_until_s: Option<u64>,
}

/// A command that was sent, or could not be sent.
#[derive(Debug)]
pub(crate) struct Done {
    pub operation: OperationId,
    /// When sending began.
    pub sent_at: Instant,
    /// The time from `sent_at` to the end of the reply.
    pub duration: Duration,
    pub request_bytes: usize,
    /// The reply; `None` if none was wanted.
    pub result: Result<Option<Received>, Failure>,
}

/// The parts of a reply that results need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub facts: ReplyFacts,
    pub bytes: usize,
    pub digest: u64,
}

/// Runs the connection of a slot until the sender of its jobs is dropped.
pub(crate) async fn run(
    endpoint: Arc<Endpoint>,
    slot: usize,
    mut jobs: mpsc::Receiver<Job>,
    done: mpsc::Sender<Done>,
) {
    // A failure is reported for the first job, which tries again.
    let mut link = endpoint.connect(slot).await.ok();
    while let Some(job) = jobs.recv().await {
        let connected = match link.take() {
            Some(link) => Ok(link),
            None => endpoint.connect(slot).await,
        };
        let sent_at = Instant::now();
        let result = match connected {
            Ok(mut connected) => {
                let result = exchange(&endpoint, &mut connected, &job).await;
                // After a failure, the rest of a reply may still arrive on the connection.
                link = result.is_ok().then_some(connected);
                result
            }
            Err(failure) => Err(failure),
        };
        let ended = Done {
            operation: job.operation,
            sent_at,
            duration: sent_at.elapsed(),
            request_bytes: job.message.len(),
            result,
        };
        if done.send(ended).await.is_err() {
            return;
        }
    }
}

async fn exchange(
    endpoint: &Endpoint,
    link: &mut Link,
    job: &Job,
) -> Result<Option<Received>, Failure> {
    link.send(&job.message).await?;
    if !job.wants_reply {
        return Ok(None);
    }
    let bytes = link.receive_header(job.request_id).await?;
    let kib = match bytes > SMALL_REPLY_BYTES {
        true => u32::try_from(bytes / 1024).unwrap_or(u32::MAX),
        false => 0,
    };
    let permit = endpoint.replies.acquire_many(kib).await;
    let message = link.receive().await?;
    let reply = OpMsg::parse(message).map_err(|_| Failure::Wrong("not an OP_MSG"))?;
    let received = Received {
        facts: ReplyFacts::of(job.reply_form, reply.body),
        bytes,
        digest: job
            .digest_until_s
            .map_or(0, |recent_s| digest(reply.body, recent_s)),
    };
    drop(permit);
    Ok(Some(received))
}
