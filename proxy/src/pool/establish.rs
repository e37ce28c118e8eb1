//! Establishes the connections of a pool, one task for each.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::{CheckOutError, ServerPool};
use seawall_auth::Identity;
use seawall_transport::connection::{Connection, EstablishError, Generation};

impl ServerPool {
    /// Establishes a connection that is authenticated as `identity`. The connection does not belong
    /// to the pool. The login is counted in the metrics of the server.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub(crate) async fn establish_outside(
        &self,
        identity: &Identity,
    ) -> Result<Connection, EstablishError> {
        let mechanism = identity.login().mechanism();
        let result = self.connector.establish(&self.address, identity).await;
        let reached_login = match &result {
            Ok(_) => true,
            Err(error) => error.failed_authentication(),
        };
        if let Some(mechanism) = mechanism.filter(|_| reached_login) {
            self.metrics.count_login(mechanism.name(), result.is_ok());
        }
        result
    }

    /// Establishes a connection of the pool in the background, as soon as the pace of new
    /// connections ([`super::pace`]) allows it. If the pool is cleared or closed before the
    /// connection is established, Seawall gives up the connection.
    pub(super) fn establish(&self, identity: Arc<Identity>, generation: Generation) {
        let me = self.me.clone();
        self.runtime.spawn(async move {
            let Some(pool) = me.upgrade() else { return };
            let establishing = async {
                pool.wait_for_start_time().await;
                let login_version = identity.login_version();
                let result = pool.establish_outside(&identity).await;
                pool.record_establishment(&identity, generation, login_version, result);
            };
            tokio::select! {
                // The first branch is polled first, so that no start time is reserved after the
                // pool was cleared.
                biased;
                () = pool.emptied_after(generation) => {
                    let todo = pool.inner.lock().gave_up(&identity, Instant::now());
                    pool.perform(todo);
                }
                () = establishing => {}
            }
        });
    }

    fn record_establishment(
        &self,
        identity: &Arc<Identity>,
        generation: Generation,
        login_version: u64,
        result: Result<Connection, EstablishError>,
    ) {
        let todo = match result {
            Ok(connection) => {
                let mut connection = self.created(connection);
                connection.generation = generation;
                self.inner
                    .lock()
                    .established(identity, connection, Instant::now())
            }
            Err(error) => {
                tracing::debug!(server = %self.address, %error, "could not establish a server connection");
                let error = CheckOutError::Establish {
                    error: Arc::new(error),
                    generation,
                    login_version,
                };
                let now = Instant::now();
                self.inner.lock().not_established(identity, &error, now)
            }
        };
        self.perform(todo);
    }

    /// Waits until the pace ([`super::pace`]) allows Seawall to begin to establish one more
    /// connection.
    async fn wait_for_start_time(&self) {
        loop {
            let changed = self.pace_changed.notified();
            let turn = self.pace.lock().turn(Instant::now());
            if timeout_at(turn, changed).await.is_err() {
                return;
            }
        }
    }

    /// Waits until the pool is closed or is no longer in `generation`.
    async fn emptied_after(&self, generation: Generation) {
        loop {
            let emptied = self.emptied.notified();
            if !self.inner.lock().may_establish(generation) {
                return;
            }
            emptied.await;
        }
    }

    /// Gives up the connections that are being established, after the pool was cleared or closed.
    /// Cancels the start times that are reserved for these connections, so that later connections
    /// do not wait for these times.
    pub(super) fn give_up_establishing(&self) {
        self.pace.lock().restart();
        self.emptied.notify_waiters();
    }
}
