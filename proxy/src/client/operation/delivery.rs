//! Sends whole replies to the client: Seawall's own replies, and replies of servers that Seawall
//! has read to their end.

use tokio::time::Instant;

use super::context::Operation;
use crate::{
    client::{End, backlog::Backlog, client_end::ClientEnd, reply::HeldReply},
    observe::Observation,
};
use seawall_stats::Phase;

impl Operation<'_> {
    /// Sends a whole reply if the client wants a reply.
    pub(super) async fn send(
        &self,
        reply: HeldReply,
        documents: u64,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
    ) -> Result<(), End> {
        if observation.phase() != Phase::Send {
            observation.enter(Phase::Send, Instant::now());
        }
        if self.reply_to.is_unwanted() {
            // The server has run the operation although the client wants no reply, so its documents
            // count.
            observation.add_reply(0, documents);
            return Ok(());
        }
        let plain_bytes = reply.bytes.len();
        let packed = self.reply_to.pack(reply.bytes, self.heavy()).await;
        let sent = match reply.share {
            None => end.send(&packed).await,
            share => {
                Backlog::of(packed, share)
                    .send(end, self.forwarding())
                    .await
            }
        };
        sent.map_err(|_| end.end())?;
        observation.add_reply(plain_bytes, documents);
        Ok(())
    }
}
