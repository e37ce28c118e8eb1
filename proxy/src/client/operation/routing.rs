//! Selects a server and checks out a connection for an operation, within the operation's time
//! limits.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::context::Operation;
use crate::{
    client::refusals::Refusals,
    observe::Observation,
    pins::SessionKey,
    pool::{Begun, CheckOutError, Checkout, Demand, Need, Overload, ServerPool},
    topology::{Topology, TopologyType},
};
use seawall_auth::{Identity, IdentityStatus};
use seawall_command::Class;
use seawall_transport::connection::{EstablishError, ServerAddress};
use seawall_wire::Elements;

/// Pause between two attempts to check out from a paused pool.
const PAUSE_WHILE_PAUSED: Duration = Duration::from_millis(5);

/// Pause between two attempts to check out after Seawall's host could not open a connection, or
/// after a login failed. The next attempt will probably fail too.
pub(super) const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Time between two checks of the user's identity while an operation waits for another router. A
/// check finds out whether the user has new keys, and whether the client has to log in again.
const KEYS_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How long an `abortTransaction` waits for the router of its transaction. The wait is short,
/// because drivers ignore errors of this command.
const ABORT_WAIT: Duration = Duration::from_secs(1);

/// How long a `killCursors` and a `getMore` on a change stream wait for an unavailable server. The
/// wait is short: drivers ignore the reply to `killCursors`, and can reopen the change stream on
/// another server without losing events.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// The reason why an operation got no permit or no connection.
pub(super) enum CheckOutFailure {
    /// No suitable server was available in time.
    NoServer,
    /// No connection or permit became available in time, or too many operations already waited.
    Overload(Overload),
    /// A server refused the user's keys, so the client has to log in again.
    KeysRefused,
    /// A server whose data about users may be outdated refused the user's keys, and the operation
    /// cannot use another server. The client need not log in again, because the keys may be valid:
    /// another server (the primary or a router) has accepted them, or did not reply in time.
    LoginRefused,
    /// The client has not logged in, but the server requires a login.
    Unauthenticated,
}

impl CheckOutFailure {
    /// True if the failure says nothing about the operation's user, and may be over when the client
    /// sends its next operation.
    pub(super) fn may_be_temporary(&self) -> bool {
        match self {
            Self::NoServer | Self::Overload(_) => true,
            Self::KeysRefused | Self::LoginRefused | Self::Unauthenticated => false,
        }
    }
}

/// The values that are the same in all attempts to check out a connection for one operation.
#[derive(Clone, Copy, Debug)]
struct CheckOutAttempt {
    demand: Demand,
    /// The time at which server selection fails if no server is suitable.
    deadline: Instant,
    /// The time at which the wait for a connection fails if none has become available.
    turn_by: Instant,
}

impl Operation<'_> {
    /// Selects a server and checks out a connection to it. After a failure, tries again until the
    /// time limit, as long as another attempt can succeed. The wait began at `began`. Seawall
    /// splits the wait of a `getMore` for data into slices (see [`super::slices`]). `is_slice` is
    /// true if the connection is for one slice. Such a slice already has a
    /// [`crate::pool::LanePermit`].
    pub(super) async fn check_out(
        &self,
        observation: &Observation<'_>,
        began: Instant,
        is_slice: bool,
    ) -> Result<Checkout, CheckOutFailure> {
        let wait_queue_timeout = self.shared.settings().wait_queue_timeout;
        let deadline = self.selection_deadline(observation, began);
        // The pool limits each wait for a connection to `wait_queue_timeout`. A wait may begin as
        // late as `deadline`, when server selection ends, so `turn_by` must not be earlier than
        // the end of such a wait. A slice may wait several times for a connection. All its waits
        // share one limit, which counts from `began`.
        let turn_by = match is_slice {
            true => began,
            false => deadline,
        } + wait_queue_timeout;
        let attempt = CheckOutAttempt {
            demand: Demand {
                waits_since: is_slice.then_some(began),
                ..self.demand(observation, is_slice)
            },
            deadline,
            turn_by: self.within_time_limit(observation, turn_by),
        };
        let now = match is_slice {
            true => Instant::now(),
            false => began,
        };
        // Usually the first attempt succeeds. The futures of further attempts are boxed, so that
        // the caller's future stays small.
        let Some(pool) = self.server_now(observation) else {
            let refusals = Refusals::default();
            return Box::pin(self.check_out_again(observation, attempt, refusals)).await;
        };
        let begun = pool.begin_check_out(self.identity, attempt.demand, now, attempt.turn_by);
        let checked_out = match begun {
            Ok(Begun::Ready(checkout)) => return Ok(checkout),
            Ok(Begun::Waits(waiting)) => waiting.finish().await,
            Err(error) => Err(error),
        };
        match checked_out {
            Ok(checkout) => Ok(checkout),
            Err(error) => {
                let failed = (pool, error);
                Box::pin(self.check_out_after(failed, observation, attempt)).await
            }
        }
    }

    /// The time until which an operation that began to wait at `began` waits for a suitable server.
    pub(super) fn selection_deadline(
        &self,
        observation: &Observation<'_>,
        began: Instant,
    ) -> Instant {
        let mut limit = self.shared.settings().server_selection_timeout;
        // Drivers send `killCursors` before they report the error of a `getMore`. So a long wait
        // would delay this error.
        if self.is_resumable() || self.command.class == Class::KillCursors {
            limit = limit.min(SHORT_WAIT);
        }
        self.within_time_limit(observation, began + limit)
    }

    async fn check_out_after(
        &self,
        (pool, error): (Arc<ServerPool>, CheckOutError),
        observation: &Observation<'_>,
        attempt: CheckOutAttempt,
    ) -> Result<Checkout, CheckOutFailure> {
        let mut refusals = Refusals::default();
        self.handle_failure(&pool, error, observation, attempt.deadline, &mut refusals)
            .await?;
        drop(pool);
        self.check_out_again(observation, attempt, refusals).await
    }

    /// Tries again to check out a connection, until an attempt succeeds or no further attempt can
    /// succeed.
    async fn check_out_again(
        &self,
        observation: &Observation<'_>,
        attempt: CheckOutAttempt,
        mut refusals: Refusals,
    ) -> Result<Checkout, CheckOutFailure> {
        let CheckOutAttempt {
            demand,
            deadline,
            turn_by,
        } = attempt;
        loop {
            let selected = self.server(observation, deadline, &mut refusals);
            let pool = selected.await?;
            match pool.check_out(self.identity, demand, turn_by).await {
                Ok(checkout) => return Ok(checkout),
                Err(error) => {
                    self.handle_failure(&pool, error, observation, deadline, &mut refusals)
                        .await?;
                }
            }
        }
    }

    /// Handles a failed checkout. Fails if no further attempt can succeed. Adds a router to
    /// `refusals` if the router refused the user's keys and another router may accept them.
    async fn handle_failure(
        &self,
        pool: &Arc<ServerPool>,
        error: CheckOutError,
        observation: &Observation<'_>,
        deadline: Instant,
        refusals: &mut Refusals,
    ) -> Result<(), CheckOutFailure> {
        match error {
            CheckOutError::Paused | CheckOutError::Closed => {
                if self.may_change_router(observation) {
                    self.unpin_transaction();
                } else if self.command.class == Class::AbortTransaction
                    && self.pinned_transaction().is_some()
                {
                    // Only this router can abort the transaction immediately. If this router does
                    // not recover soon, another router is selected, and drivers ignore the error in
                    // the reply of the other router.
                    let until = deadline.min(Instant::now() + ABORT_WAIT);
                    if timeout_at(until, pool.until_open()).await.is_err() {
                        self.unpin_transaction();
                    }
                }
                let is_pinned = self.pinned_server(observation).is_some();
                let has_left = matches!(error, CheckOutError::Closed) && is_pinned;
                if has_left || Instant::now() >= deadline {
                    return Err(CheckOutFailure::NoServer);
                }
                if is_pinned {
                    // The operation needs the server of this pool, so it waits for this pool.
                    drop(timeout_at(deadline, pool.until_open()).await);
                } else {
                    // The next snapshot of the topology shows that the pool is paused or removed,
                    // so another server is selected.
                    sleep(PAUSE_WHILE_PAUSED).await;
                }
                Ok(())
            }
            CheckOutError::Overload(overload) => Err(CheckOutFailure::Overload(overload)),
            CheckOutError::Establish {
                error,
                login_version,
                ..
            } if error.refuses_keys() => {
                self.handle_refused_keys(pool, login_version, deadline)
                    .await?;
                if login_version == self.identity.login_version() {
                    refusals.add(pool.address().clone(), login_version);
                    self.leave_router(observation, refusals.routers())?;
                }
                match Instant::now() < deadline {
                    true => Ok(()),
                    false => Err(CheckOutFailure::NoServer),
                }
            }
            CheckOutError::Establish { error, .. } if error.requires_authentication() => {
                self.shared.logins.credentials.record_anonymous_refusal();
                Err(CheckOutFailure::Unauthenticated)
            }
            CheckOutError::Establish {
                error, generation, ..
            } => {
                if error.blames_server() {
                    let topology = &self.shared.routing.topology;
                    topology.report_failure(pool, generation);
                } else {
                    self.pause_after_failure(&error, deadline).await;
                }
                match Instant::now() < deadline {
                    true => Ok(()),
                    false => Err(CheckOutFailure::NoServer),
                }
            }
        }
    }

    /// Handles two kinds of failures: Seawall's host could not open a connection, or a login failed
    /// although the server did not refuse the user's keys. Logs at most one failure of each kind a
    /// minute. Then waits, because the next attempt will probably fail in the same way.
    async fn pause_after_failure(&self, error: &EstablishError, deadline: Instant) {
        let (now, routing) = (Instant::now(), &self.shared.routing);
        if error.is_local() {
            if let Some(attempts) = routing.local_failures.count(now) {
                tracing::warn!(%error, attempts, "Seawall's host could not open a server connection");
            }
        } else if let Some(logins) = routing.failed_logins.count(now) {
            tracing::warn!(%error, logins, "login at a server failed");
        }
        sleep_until(deadline.min(now + PAUSE_AFTER_FAILURE)).await;
    }

    /// Handles a server's refusal of the user's keys. `login_version` is the
    /// [`Identity::login_version`] of the refused keys. Fails if the client has to log in again.
    async fn handle_refused_keys(
        &self,
        pool: &ServerPool,
        login_version: u64,
        deadline: Instant,
    ) -> Result<(), CheckOutFailure> {
        let credentials = &self.shared.logins.credentials;
        let may_lag = self.shared.routing.topology.may_lag(pool.address());
        if may_lag && self.identity.can_log_in() {
            let reading = credentials.keys_refused_by_lagging_server(self.identity, deadline);
            Box::pin(reading).await;
        } else {
            credentials.record_refused_keys(self.identity, login_version);
        }
        let is_good = self.identity.status() == IdentityStatus::Good;
        match is_good && self.identity.can_log_in() {
            true => Ok(()),
            false => Err(CheckOutFailure::KeysRefused),
        }
    }

    /// Lets the next attempt use a router that is not one of `refusing`. Fails if the operation
    /// must stay at its pinned server. Also fails if no other router is usable or may become usable
    /// soon.
    fn leave_router(
        &self,
        observation: &Observation<'_>,
        refusing: &[ServerAddress],
    ) -> Result<(), CheckOutFailure> {
        if self.may_change_router(observation) {
            self.unpin_transaction();
        }
        let topology = &self.shared.routing.topology;
        let is_pinned = self.pinned_server(observation).is_some();
        match !is_pinned && topology.expects_router_except(refusing) {
            true => Ok(()),
            false => Err(CheckOutFailure::LoginRefused),
        }
    }

    /// Describes what the operation needs from a server.
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
            waits_since: None,
        }
    }

    /// Returns the server to which the operation is pinned, or a selected server. Waits until
    /// `deadline` for a suitable server. If routers have refused the user's keys, returns another
    /// router. If the keys were replaced during the wait, removes all refusals, because any router
    /// may accept the new keys.
    async fn server(
        &self,
        observation: &Observation<'_>,
        deadline: Instant,
        refusals: &mut Refusals,
    ) -> Result<Arc<ServerPool>, CheckOutFailure> {
        let topology = &self.shared.routing.topology;
        if !refusals.routers().is_empty() {
            if let Some(pinned) = self.pinned_server(observation) {
                return Ok(pinned);
            }
            let other = other_router(topology, self.identity, refusals, deadline).await?;
            if let Some(other) = other {
                self.pin_transaction(&other, observation);
                return Ok(other);
            }
            *refusals = Refusals::default();
        }
        if let Some(pool) = self.server_now(observation) {
            return Ok(pool);
        }
        let selected = topology.select(&self.read_preference(), deadline).await;
        let pool = selected.map_err(|_| CheckOutFailure::NoServer)?;
        self.pin_transaction(&pool, observation);
        Ok(pool)
    }

    /// Returns the server to which the operation is pinned, or a suitable server. `None` if no
    /// server is suitable now.
    fn server_now(&self, observation: &Observation<'_>) -> Option<Arc<ServerPool>> {
        if let Some(pinned) = self.pinned_server(observation) {
            return Some(pinned);
        }
        let topology = &self.shared.routing.topology;
        let pool = topology.select_now(&self.read_preference())?;
        self.pin_transaction(&pool, observation);
        Some(pool)
    }

    /// Returns the server of the operation's cursor or transaction; `None` if the operation is not
    /// pinned.
    pub(super) fn pinned_server(&self, observation: &Observation<'_>) -> Option<Arc<ServerPool>> {
        let now = observation.began();
        let pins = &self.shared.routing.pins;
        let pin = match self.command.class {
            Class::KillCursors => self.cursor_ids().find_map(|id| pins.cursor(id, now)),
            _ => self.cursor_id().and_then(|id| pins.cursor(id, now)),
        };
        if let Some(pin) = pin {
            return Some(pin.server);
        }
        let (key, number) = self.pinned_transaction()?;
        pins.transaction(key, number, now)
    }

    /// True if another router can run the operation although its transaction is pinned. There are
    /// two cases:
    ///
    /// - The operation is the first statement of a transaction, because no router knows the
    ///   transaction yet.
    /// - The operation is a repeated commit with a recovery token, because any router can find the
    ///   result of the first commit. A first commit must wait for its router, because another
    ///   router would abort the transaction.
    fn may_change_router(&self, observation: &Observation<'_>) -> bool {
        let has_recovery_token = || {
            let mut elements = Elements::of(self.parsed.body).map_while(Result::ok);
            elements.any(|element| element.name == b"recoveryToken")
        };
        match self.command.class {
            Class::CommitTransaction => observation.is_retry() && has_recovery_token(),
            _ => self.command.starts_transaction,
        }
    }

    /// The operation's transaction if the transaction must be pinned to a server; else `None`. Only
    /// routers require such a pin.
    pub(super) fn pinned_transaction(&self) -> Option<(SessionKey, i64)> {
        let transaction = self.transaction()?;
        let snapshot = self.shared.routing.topology.snapshot();
        let is_sharded = snapshot.description.topology_type == TopologyType::Sharded;
        is_sharded.then_some(transaction)
    }

    /// Removes the pin of the operation's transaction, so that another router can be selected.
    fn unpin_transaction(&self) {
        if let Some((key, number)) = self.pinned_transaction() {
            self.shared.routing.pins.unpin_transaction(key, number);
        }
    }

    fn pin_transaction(&self, pool: &Arc<ServerPool>, observation: &Observation<'_>) {
        let Some((key, number)) = self.pinned_transaction() else {
            return;
        };
        let pins = &self.shared.routing.pins;
        if !pins.pin_transaction(key, number, Arc::clone(pool), observation.began()) {
            self.shared
                .recorder
                .count_unobserved("transaction_pins_full");
        }
    }
}

/// Returns a router that has not refused the user's keys. Waits until `deadline` for a router that
/// may become usable soon. `None` if the keys have been replaced since the refusals.
///
/// # Errors
/// - [`CheckOutFailure::KeysRefused`] if the identity is no longer usable.
/// - [`CheckOutFailure::LoginRefused`] if no other router may become usable soon.
/// - [`CheckOutFailure::NoServer`] at the deadline.
async fn other_router(
    topology: &Topology,
    identity: &Identity,
    refusals: &Refusals,
    deadline: Instant,
) -> Result<Option<Arc<ServerPool>>, CheckOutFailure> {
    loop {
        if identity.status() != IdentityStatus::Good {
            return Err(CheckOutFailure::KeysRefused);
        }
        if identity.login_version() != refusals.login_version() {
            return Ok(None);
        }
        let until = deadline.min(Instant::now() + KEYS_CHECK_INTERVAL);
        let selected = topology.select_router_except(refusals.routers(), until);
        match selected.await {
            Ok(Some(other)) => return Ok(Some(other)),
            Ok(None) => return Err(CheckOutFailure::LoginRefused),
            Err(_) if until == deadline => return Err(CheckOutFailure::NoServer),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use tokio::time::advance;

    use super::*;
    use crate::{observe::Recorder, pool::tests::limits};
    use seawall_auth::{Login, NonceSource};
    use seawall_transport::connection::Connector;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A user, and a topology of two routers. The first router has refused the user's keys, and the
    /// second router has just failed.
    fn refused_at_a_router() -> (Arc<Topology>, Identity, Refusals) {
        let nonces = Arc::new(NonceSource::new().unwrap());
        let connector = Connector::new(None, Vec::new(), LIMIT, nonces);
        let router: ServerAddress = "127.0.0.1:2".parse().unwrap();
        let recorder = Recorder::without_shapes();
        let topology = Topology::of_routers(router.clone(), limits(), connector, recorder);
        let identity = Identity::new("u", "admin", None, Login::Unknown);
        let mut refusals = Refusals::default();
        refusals.add(router, identity.login_version());
        (topology, identity, refusals)
    }

    /// The other router has refused the user's keys, so the operation needs the failed router.
    #[tokio::test(start_paused = true)]
    async fn an_operation_waits_for_a_failed_router_until_the_router_is_usable_again() {
        let (topology, identity, refusals) = refused_at_a_router();
        let deadline = Instant::now() + LIMIT;
        let mut waiting = pin!(other_router(&topology, &identity, &refusals, deadline));
        assert!(waiting.as_mut().now_or_never().is_none());
        topology.recover_all();
        let Ok(Some(other)) = waiting.await else {
            panic!("expected the router that is usable again");
        };
        assert_eq!(other.address(), topology.snapshot().pools[1].address());
    }

    /// The other router has refused the old keys of the user, but may accept the new keys.
    #[tokio::test(start_paused = true)]
    async fn an_operation_stops_waiting_for_a_failed_router_when_its_user_has_new_keys() {
        let (topology, identity, refusals) = refused_at_a_router();
        let deadline = Instant::now() + LIMIT;
        let mut waiting = pin!(other_router(&topology, &identity, &refusals, deadline));
        assert!(waiting.as_mut().now_or_never().is_none());
        // A login with the same keys does not end the wait.
        identity.learn(Login::Unknown);
        advance(LIMIT / 2).await;
        assert!(waiting.as_mut().now_or_never().is_none());
        identity.learn(Login::Anonymous);
        assert!(matches!(waiting.await, Ok(None)));
    }

    /// After the refusal of the user's keys, the clients of this user have to log in again.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_waits_for_a_failed_router_fails_if_keys_of_its_user_are_refused() {
        let (topology, identity, refusals) = refused_at_a_router();
        let deadline = Instant::now() + LIMIT;
        let mut waiting = pin!(other_router(&topology, &identity, &refusals, deadline));
        assert!(waiting.as_mut().now_or_never().is_none());
        identity.end(IdentityStatus::Refused);
        let failed = waiting.await;
        assert!(matches!(failed, Err(CheckOutFailure::KeysRefused)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_waits_for_a_failed_router_fails_at_its_deadline() {
        let (topology, identity, refusals) = refused_at_a_router();
        let deadline = Instant::now() + LIMIT;
        let failed = other_router(&topology, &identity, &refusals, deadline).await;
        assert!(matches!(failed, Err(CheckOutFailure::NoServer)));
    }
}
