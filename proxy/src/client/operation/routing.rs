//! Selects a server and checks out a connection for an operation, within the operation's time
//! limits.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::context::Operation;
use crate::{
    observe::Observation,
    pool::{CheckOutError, Checkout, Demand, Need, Overload, ServerPool},
    topology::TopologyType,
};
use seawall_auth::IdentityStatus;
use seawall_command::{Class, ReadPreference};

/// Pause between two attempts to check out from a paused pool.
const PAUSE_WHILE_PAUSED: Duration = Duration::from_millis(5);

/// How long a `getMore` on a change stream waits for an unavailable server. The wait is short,
/// because the driver can reopen the change stream on another server without losing events.
const RESUMABLE_WAIT: Duration = Duration::from_secs(1);

/// The reason why an operation got no connection.
pub(super) enum CheckOutFailure {
    /// No suitable server was available in time.
    NoServer,
    /// No connection became available in time.
    Overload(Overload),
    /// A server refused the user's keys.
    KeysRefused,
    /// The client has not logged in, but the server requires it.
    Unauthenticated,
}

impl Operation<'_> {
    /// Selects a server and checks out a connection to it. After a failure, tries again until the
    /// time limit, if another attempt can succeed. `is_slice` is true for a slice of a wait for
    /// data, which has a permit of the server's lane.
    pub(super) async fn check_out(
        &self,
        observation: &Observation<'_>,
        is_slice: bool,
    ) -> Result<Checkout, CheckOutFailure> {
        let mut limit = self.shared.settings.server_selection_timeout;
        if self.is_resumable() {
            limit = limit.min(RESUMABLE_WAIT);
        }
        let deadline = self.within_time_limit(observation, observation.phase_began() + limit);
        // The pool limits the wait to `wait_queue_timeout`, which may begin as late as `deadline`.
        let wait_queue_timeout = self.shared.settings.wait_queue_timeout;
        let demand = self.demand(observation, is_slice);
        let turn_by = self.within_time_limit(observation, deadline + wait_queue_timeout);
        loop {
            let pool = self.server(observation, deadline).await?;
            match pool.check_out(self.identity, demand, turn_by).await {
                Ok(checkout) => return Ok(checkout),
                Err(CheckOutError::Paused) if Instant::now() < deadline => {
                    // The next snapshot of the topology shows that the pool is paused, so another
                    // server is selected. A pinned operation needs this server, so it tries the
                    // same pool again.
                    sleep(PAUSE_WHILE_PAUSED).await;
                }
                Err(CheckOutError::Paused | CheckOutError::Closed) => {
                    return Err(CheckOutFailure::NoServer);
                }
                Err(CheckOutError::Overload(overload)) => {
                    return Err(CheckOutFailure::Overload(overload));
                }
                Err(CheckOutError::Establish {
                    error,
                    login_version,
                    ..
                }) if error.refuses_keys() => {
                    let credentials = &self.shared.logins.credentials;
                    credentials.keys_refused(self.identity, login_version);
                    if self.identity.status() != IdentityStatus::Good || Instant::now() >= deadline
                    {
                        return Err(CheckOutFailure::KeysRefused);
                    }
                }
                Err(CheckOutError::Establish { error, .. }) if error.requires_authentication() => {
                    self.shared.logins.credentials.anonymous_refused();
                    return Err(CheckOutFailure::Unauthenticated);
                }
                Err(CheckOutError::Establish {
                    error, generation, ..
                }) => {
                    if error.blames_server() {
                        self.shared
                            .routing
                            .topology
                            .report_failure(&pool, generation);
                    } else {
                        tracing::debug!(%error, "connection not established");
                    }
                    if Instant::now() >= deadline {
                        return Err(CheckOutFailure::NoServer);
                    }
                }
            }
        }
    }

    /// What the operation needs to run on a server.
    pub(super) fn demand(&self, observation: &Observation<'_>, is_slice: bool) -> Demand {
        let need = if is_slice {
            Need::LanePermit
        } else if self.command.may_unblock_others() {
            Need::SlotOrReserve
        } else {
            Need::Slot
        };
        Demand {
            need,
            from: self.sharer,
            shape: Some(observation.shape().as_u64()),
        }
    }

    /// Returns the server to which the operation is pinned, or a selected server.
    async fn server(
        &self,
        observation: &Observation<'_>,
        deadline: Instant,
    ) -> Result<Arc<ServerPool>, CheckOutFailure> {
        let now = observation.began();
        let pins = &self.shared.routing.pins;
        let pin = match self.command.class {
            Class::KillCursors => self.cursor_ids().find_map(|id| pins.cursor(id, now)),
            _ => self.cursor_id().and_then(|id| pins.cursor(id, now)),
        };
        if let Some(pin) = pin {
            return Ok(pin.server);
        }
        let is_sharded = || {
            self.shared
                .routing
                .topology
                .snapshot()
                .description
                .topology_type
                == TopologyType::Sharded
        };
        let transaction = self.transaction();
        if let Some((key, number)) = transaction.filter(|_| is_sharded()) {
            if let Some(server) = pins.transaction(key, number, now) {
                return Ok(server);
            }
            let pool = self.select(&ReadPreference::PRIMARY, deadline).await?;
            if !pins.pin_transaction(key, number, Arc::clone(&pool), now) {
                self.shared.recorder.unobserved("transaction_pins_full");
            }
            return Ok(pool);
        }
        self.select(&self.read_preference(), deadline).await
    }

    async fn select(
        &self,
        preference: &ReadPreference,
        deadline: Instant,
    ) -> Result<Arc<ServerPool>, CheckOutFailure> {
        let selected = self
            .shared
            .routing
            .topology
            .select(preference, deadline)
            .await;
        selected.map_err(|_| CheckOutFailure::NoServer)
    }
}
