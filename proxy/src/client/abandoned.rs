//! Operations whose clients have left (disconnected).
//!
//! When a client leaves during an operation, Seawall keeps the server connection, because closing
//! it would cost the server a new login. Seawall reads and drops the reply, within limits on time
//! and bytes. If a read operation still runs half a second after its client has left, Seawall kills
//! the operation at the server. `Abandoned::may_be_ended` describes the exceptions. Seawall does
//! not kill writes and commits, because the driver may send them again. Only the server's own
//! limits end a write or commit.

use std::time::Duration;

use tokio::time::timeout;

use super::reply::{Unread, drain_reply};
use crate::pool::Checkout;

/// Maximum time for reading and dropping one reply. After this time, Seawall closes the server
/// connection.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of bytes of one reply that Seawall reads and drops. If more bytes are unread, the
/// server connection is closed.
const DRAIN_BYTES: usize = 16 << 20;

/// Maximum time for which a read operation may still run after its client has left. After this
/// time, Seawall kills the operation at the server if [`Abandoned::may_be_ended`] is true.
const READ_GRACE: Duration = Duration::from_millis(500);

/// An operation whose client has left.
pub(super) struct Abandoned {
    pub(super) checkout: Checkout,
    pub(super) request_id: i32,
    /// The part of the reply that Seawall has not read from the server yet.
    pub(super) unread: Unread,
    /// True if Seawall may kill the operation at the server: it is a read operation outside
    /// transactions, and does not wait at the server for new data. For example, a `getMore` of a
    /// change stream waits for new data. `killOp` does not end such a wait.
    pub(super) may_be_ended: bool,
}

impl Abandoned {
    /// Reads the reply to its end in the background, then returns the connection to its pool or
    /// closes it.
    pub(super) fn settle(mut self) {
        self.checkout.mark_late();
        tokio::spawn(async move {
            let is_clean = timeout(DRAIN_LIMIT, self.drain()).await.unwrap_or(false);
            if is_clean {
                self.checkout.finish();
            }
            self.checkout
                .pool()
                .metrics()
                .count_abandoned_reply(is_clean);
        });
    }

    /// Reads and drops the reply, and kills a slow read operation at the server. Returns true if
    /// the server connection can be used again.
    async fn drain(&mut self) -> bool {
        let pool = self.checkout.pool().clone();
        let identity = self.checkout.identity().clone();
        let (connection, _, permit) = self.checkout.exchange();
        let generation = connection.generation;
        let id = connection
            .server_connection_id
            .filter(|_| self.may_be_ended);
        let stream = &mut connection.stream;
        let drained = drain_reply(stream, self.request_id, self.unread, DRAIN_BYTES);
        let drained = async move {
            match permit {
                Some(mut permit) => permit.hold_during(drained).await,
                None => drained.await,
            }
        };
        let mut drained = std::pin::pin!(drained);
        if let Ok(drained) = timeout(READ_GRACE, &mut drained).await {
            return drained.is_ok();
        }
        let Some(id) = id else {
            return drained.await.is_ok();
        };
        let request = pool.end_read(&identity, generation, id);
        tokio::select! {
            drained = drained => drained.is_ok(),
            () = request.refused() => false,
        }
    }
}
