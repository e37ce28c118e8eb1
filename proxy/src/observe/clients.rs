//! The directory of clients: counts and lists clients while they are connected.

use std::{
    cell::Cell,
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use tokio::time::Instant;

use super::{metric_handles::Metrics, metric_name::MetricName, shared_names::SharedNames};
use seawall_locks::Mutex;
use seawall_stats::{Departure, Leaving, Stage, Traffic};

/// The list of connected clients, and the counts of connections and disconnections since the last
/// call of `take_traffic`.
pub struct ClientDirectory {
    metrics: Arc<Metrics>,
    pub(super) rows: Mutex<HashMap<i32, ClientRow>>,
    /// Number of connected clients that have logged in.
    authenticated: AtomicUsize,
    next_id: AtomicI32,
    traffic: Mutex<Traffic>,
    names: Mutex<SharedNames>,
}

impl fmt::Debug for ClientDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientDirectory").finish_non_exhaustive()
    }
}

impl ClientDirectory {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            rows: Mutex::default(),
            authenticated: AtomicUsize::new(0),
            next_id: AtomicI32::new(1),
            traffic: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// Returns the shared copy of a name: all clients with the same name use one copy. A name with
    /// more than [`MAX_NAME_BYTES`] bytes is truncated.
    fn shared(&self, name: &str) -> Arc<str> {
        self.names.lock().intern(shortened(name))
    }

    /// Counts an accepted client, and adds it to the list of connected clients.
    pub fn connected(self: &Arc<Self>, peer: Arc<str>, ip: Option<IpAddr>) -> ConnectedClient {
        let mut rows = self.rows.lock();
        let id = self.unused_id(&rows);
        let row = ClientRow {
            id,
            peer: Arc::clone(&peer),
            connected_at: SystemTime::now(),
            user: None,
            application: None,
            driver: None,
        };
        rows.insert(id, row);
        drop(rows);
        self.traffic.lock().arrivals += 1;
        self.metrics.count(MetricName::ClientConnectionsTotal, &[]);
        ConnectedClient {
            directory: Arc::clone(self),
            id,
            ip,
            peer,
            application: OnceLock::new(),
            user: Mutex::default(),
            since: Instant::now(),
            stage: Stage::default(),
            how: None,
        }
    }

    /// The next id that no connected client has. After 2,147,483,647 clients, ids begin again at 1.
    fn unused_id(&self, rows: &HashMap<i32, ClientRow>) -> i32 {
        loop {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed) & i32::MAX;
            if id > 0 && !rows.contains_key(&id) {
                return id;
            }
        }
    }

    fn count_departure(&self, leaving: &Leaving<'_>) {
        let labels = [
            ("stage", leaving.stage.as_str()),
            ("how", leaving.how.as_str()),
        ];
        self.metrics
            .count(MetricName::ClientDeparturesTotal, &labels);
        self.traffic.lock().add_departure(leaving);
    }

    /// Number of clients connected now.
    pub fn count(&self) -> usize {
        self.rows.lock().len()
    }

    /// Number of connected clients that have logged in.
    pub(crate) fn authenticated_count(&self) -> usize {
        self.authenticated.load(Ordering::Relaxed)
    }

    /// Updates the number of clients that have logged in. `was` is true if the client had a user
    /// before, and `is` is true if the client has a user now.
    fn count_user(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => drop(self.authenticated.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.authenticated.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// The connected clients, sorted by their ids, at most `limit`.
    pub fn list(&self, limit: usize) -> Vec<ClientRow> {
        let mut rows: Vec<_> = self.rows.lock().values().cloned().collect();
        rows.sort_by_key(|row| row.id);
        rows.truncate(limit);
        rows
    }

    /// Returns the counts of connections and disconnections of clients since the last call.
    pub(super) fn take_traffic(&self) -> Traffic {
        std::mem::take(&mut *self.traffic.lock())
    }
}

/// Description of a connected client, shown in the API.
#[derive(Clone, Debug)]
pub struct ClientRow {
    /// The client's number, which is also the `connectionId` in the reply to its `hello`.
    pub id: i32,
    /// The client's address and port.
    pub peer: Arc<str>,
    /// When the client connected.
    pub connected_at: SystemTime,
    /// The client's user as `source.name`; `None` if the client has not logged in.
    pub user: Option<Arc<str>>,
    /// The application name in the client metadata; `None` if the client has sent none.
    pub application: Option<Arc<str>>,
    /// The driver's name and version in the client metadata; `None` if the client has sent no
    /// `driver`.
    pub driver: Option<Arc<str>>,
}

/// Maximum length in bytes of a stored name: the name of a user, of an application or of a driver.
/// Servers allow 128 bytes for an application name.
const MAX_NAME_BYTES: usize = 256;

fn shortened(name: &str) -> &str {
    let end = name.floor_char_boundary(MAX_NAME_BYTES.min(name.len()));
    name.get(..end).unwrap_or_default()
}

thread_local! {
    /// True while [`close`] runs on this thread.
    static IS_CLOSING: Cell<bool> = const { Cell::new(false) };
}

/// Drops the future or the relay that serves a client, because Seawall closes the client's
/// connection. The client then counts as closed by Seawall. If the caller dropped the future
/// itself, the client would count as a client that has left.
pub(crate) fn close<F>(serving: F) {
    IS_CLOSING.set(true);
    drop(serving);
    IS_CLOSING.set(false);
}

/// True while [`close`] runs on this thread.
pub(super) fn is_closing() -> bool {
    IS_CLOSING.get()
}

/// One connected client. The directory counts and lists the client until this guard is dropped.
#[derive(Debug)]
#[must_use]
pub struct ConnectedClient {
    directory: Arc<ClientDirectory>,
    id: i32,
    ip: Option<IpAddr>,
    peer: Arc<str>,
    /// The application's name. Only the first name that the client sends is stored, because a
    /// server accepts only one name on a connection.
    application: OnceLock<Arc<str>>,
    user: Mutex<Option<Arc<str>>>,
    since: Instant,
    stage: Stage,
    how: Option<Departure>,
}

impl ConnectedClient {
    /// The client's number.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The client's row in the directory.
    pub(crate) fn row(&self) -> Option<ClientRow> {
        self.directory.rows.lock().get(&self.id).cloned()
    }

    /// The client's address.
    pub(super) fn peer(&self) -> &Arc<str> {
        &self.peer
    }

    /// The application name; `None` if the client sent none.
    pub(super) fn application(&self) -> Option<&Arc<str>> {
        self.application.get()
    }

    /// The user, as `source.name`; `None` if the client has not logged in.
    pub(super) fn user(&self) -> Option<Arc<str>> {
        self.user.lock().clone()
    }

    /// Sets the application name from the client metadata, unless it was set before.
    pub(crate) fn set_application(&self, name: Option<&str>) {
        let Some(name) = name else { return };
        let name = self.application.get_or_init(|| self.directory.shared(name));
        self.update(|row| row.application = Some(Arc::clone(name)));
    }

    /// Sets the driver's name and version from the client metadata.
    pub(crate) fn set_driver(&self, name: &str, version: &str) {
        let driver = self.directory.shared(&format!("{name} {version}"));
        self.update(|row| row.driver = Some(driver));
    }

    /// Records that the client's connection has reached this [`Stage`].
    pub(crate) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Records that the client got the reply to its `hello`. A later `hello` never returns the
    /// client to an earlier stage.
    pub(crate) fn record_hello_reply(&mut self, is_monitor: bool) {
        // A driver's monitoring connection never logs in. Its last stage is `Ready`, so that the
        // end of the connection does not count as a client that gave up.
        let stage = if is_monitor {
            Stage::Ready
        } else {
            Stage::Greeted
        };
        self.stage = self.stage.max(stage);
    }

    /// Sets how the connection ends. Only the first call counts. If this function is never called,
    /// Seawall called [`close`] or the client ended the connection.
    pub(crate) fn set_departure(&mut self, how: Departure) {
        self.how.get_or_insert(how);
    }

    /// Counts a client that disconnected before Seawall served its message, or before Seawall had
    /// read a message from this client.
    pub(crate) fn record_left_unserved(&self) {
        let labels = [("stage", self.stage.as_str())];
        let metrics = &self.directory.metrics;
        metrics.count(MetricName::ClientsGoneTotal, &labels);
    }

    /// How the connection ended. If [`Self::set_departure`] was not called, either [`close`] is
    /// running, or the client ended the connection: in [`Stage::Ready`] this is a clean end, and in
    /// any other stage the client gave up.
    fn departure(&self) -> Departure {
        self.how.unwrap_or(match self.stage {
            _ if is_closing() => Departure::Closed,
            Stage::Ready => Departure::Clean,
            Stage::Connected | Stage::Greeted | Stage::LoggingIn | Stage::Operation => {
                Departure::GaveUp
            }
        })
    }

    /// Sets the user after a login, or removes it (`None`) after a logout.
    pub(crate) fn set_user(&self, user: Option<&str>) {
        let user = user.map(|user| self.directory.shared(user));
        *self.user.lock() = user.clone();
        self.update(|row| {
            self.directory
                .count_user(row.user.is_some(), user.is_some());
            row.user = user;
        });
    }

    fn update(&self, change: impl FnOnce(&mut ClientRow)) {
        if let Some(row) = self.directory.rows.lock().get_mut(&self.id) {
            change(row);
        }
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        let Some(row) = self.directory.rows.lock().remove(&self.id) else {
            return;
        };
        self.directory.count_user(row.user.is_some(), false);
        self.directory.count_departure(&Leaving {
            age: self.since.elapsed(),
            ip: self.ip,
            application: row.application.as_deref(),
            driver: row.driver.as_deref(),
            user: row.user.as_deref(),
            stage: self.stage,
            how: self.departure(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_seawall_closes_does_not_count_as_a_client_that_left() {
        let directory = Arc::new(ClientDirectory::new(Arc::new(Metrics::new(None).unwrap())));
        let client = || directory.connected("a:1".into(), None);
        assert_eq!(client().departure(), Departure::GaveUp);
        let seen = Arc::new(Mutex::default());
        let closed = Seen(client(), Arc::clone(&seen));
        close(closed);
        assert_eq!(*seen.lock(), Some(Departure::Closed));
        assert_eq!(client().departure(), Departure::GaveUp);
    }

    /// Records the departure of its client on drop.
    struct Seen(ConnectedClient, Arc<Mutex<Option<Departure>>>);

    impl Drop for Seen {
        fn drop(&mut self) {
            *self.1.lock() = Some(self.0.departure());
        }
    }

    #[test]
    fn client_ids_start_again_at_1_after_the_highest_id_and_skip_ids_in_use() {
        let directory = Arc::new(ClientDirectory::new(Arc::new(Metrics::new(None).unwrap())));
        let client = || directory.connected("a:1".into(), None);
        let first = client();
        directory.next_id.store(i32::MAX, Ordering::Relaxed);
        let (last, next) = (client(), client());
        assert_eq!([first.id(), last.id(), next.id()], [1, i32::MAX, 2]);
    }

    #[test]
    fn only_clients_with_a_user_count_as_authenticated() {
        let directory = Arc::new(ClientDirectory::new(Arc::new(Metrics::new(None).unwrap())));
        let clients: Vec<_> = (0..3)
            .map(|_| directory.connected("a:1".into(), None))
            .collect();
        for client in &clients[..2] {
            client.set_user(Some("admin.u"));
            client.set_user(Some("admin.v"));
        }
        assert_eq!(directory.authenticated_count(), 2);
        clients[0].set_user(None);
        clients[2].set_user(None);
        assert_eq!(directory.authenticated_count(), 1);
        drop(clients);
        assert_eq!(directory.authenticated_count(), 0);
    }
}
