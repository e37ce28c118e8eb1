//! Connected clients: counted and listed while they are connected.

use std::{net::IpAddr, sync::Arc, time::SystemTime};

use tokio::time::Instant;

use super::Observer;
use crate::stats::{Departure, Leaving, Stage};

/// Description of a connected client, shown in the API.
#[derive(Clone, Debug)]
pub struct ClientRow {
    /// Its number, the same as `connectionId` in the reply to its `hello`.
    pub id: i32,
    /// Address and port.
    pub peer: String,
    /// When it connected.
    pub connected_at: SystemTime,
    /// Its user as `source.name`, once it has logged in.
    pub user: Option<String>,
    /// Its application's name.
    pub application: Option<String>,
    /// Its driver's name and version.
    pub driver: Option<String>,
}

/// Maximum length of a stored name, in bytes; application names have at most 128.
const MAX_NAME_BYTES: usize = 256;

fn shortened(name: &str) -> String {
    let end = name.floor_char_boundary(MAX_NAME_BYTES.min(name.len()));
    name.get(..end).unwrap_or_default().to_owned()
}

/// One connected client; counted and listed until dropped.
#[derive(Debug)]
#[must_use]
pub struct ConnectedClient {
    pub(super) observer: Arc<Observer>,
    pub(super) id: i32,
    pub(super) ip: Option<IpAddr>,
    pub(super) since: Instant,
    pub(super) stage: Stage,
    pub(super) how: Option<Departure>,
}

impl ConnectedClient {
    /// The client's number.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Sets the application name of the client's metadata.
    pub fn set_application(&self, name: Option<&str>) {
        self.update(|row| row.application = name.map(shortened));
    }

    /// Sets the driver's name and version of the client's metadata.
    pub fn set_driver(&self, name: &str, version: &str) {
        self.update(|row| row.driver = Some(shortened(&format!("{name} {version}"))));
    }

    /// Sets the stage that the client has reached.
    pub fn reached(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Records that the client got the reply to its `hello`. The stage never moves back.
    pub fn greeted(&mut self, is_monitor: bool) {
        // A driver's monitor expects nothing more.
        let stage = if is_monitor {
            Stage::Ready
        } else {
            Stage::Greeted
        };
        self.stage = self.stage.max(stage);
    }

    /// Sets how the connection ends; the first call wins. Without a call, the client ended it.
    pub fn set_departure(&mut self, how: Departure) {
        self.how.get_or_insert(how);
    }

    /// Counts that the client left before its command was processed.
    pub fn record_left_unserved(&self) {
        self.observer.client_left_unserved(self.stage.as_str());
    }

    /// A client that leaves while it waits for a reply has given up.
    fn departure(&self) -> Departure {
        self.how.unwrap_or(match self.stage {
            Stage::Ready => Departure::Clean,
            Stage::Connected | Stage::Greeted | Stage::LoggingIn | Stage::Operation => {
                Departure::GaveUp
            }
        })
    }

    /// Sets the user after a login; `None` after a logout.
    pub fn set_user(&self, user: Option<String>) {
        self.update(|row| row.user = user.as_deref().map(shortened));
    }

    fn update(&self, change: impl FnOnce(&mut ClientRow)) {
        if let Some(row) = self.observer.clients.lock().get_mut(&self.id) {
            change(row);
        }
    }
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        let Some(row) = self.observer.clients.lock().remove(&self.id) else {
            return;
        };
        self.observer.client_left(&Leaving {
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
