//! Who is connected: counted and listed while they live.

use std::{net::IpAddr, sync::Arc, time::SystemTime};

use tokio::time::Instant;

use super::{
    Observer,
    storms::{Departure, Leaving, Stage},
};

/// What is known of a connected client, for people.
#[derive(Clone, Debug)]
pub struct ClientRow {
    /// Its number, as `hello.connectionId` has it.
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

/// Longest name that is kept, in bytes: applications' have up to 128.
const MAX_NAME_BYTES: usize = 256;

fn shortened(name: &str) -> String {
    let end = name.floor_char_boundary(MAX_NAME_BYTES.min(name.len()));
    name.get(..end).unwrap_or_default().to_owned()
}

/// One connected client, counted and listed while it lives.
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
    /// Its number.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// It said what it is.
    pub fn is_application(&self, name: Option<&str>) {
        self.update(|row| row.application = name.map(shortened));
    }

    /// It said by which driver it speaks.
    pub fn is_driver(&self, name: &str, version: &str) {
        self.update(|row| row.driver = Some(shortened(&format!("{name} {version}"))));
    }

    /// It has come so far.
    pub fn reached(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// It has come so far at least.
    pub fn greeted(&mut self, is_monitor: bool) {
        // Nothing more is owed to a driver's monitor.
        let stage = if is_monitor {
            Stage::Ready
        } else {
            Stage::Greeted
        };
        self.stage = self.stage.max(stage);
    }

    /// It is ending so; unsaid, it was its own doing.
    pub fn ends(&mut self, how: Departure) {
        self.how.get_or_insert(how);
    }

    /// It had left before what it asked was looked at.
    pub fn is_not_served(&self) {
        self.observer.client_not_served(self.stage.as_str());
    }

    /// Leaving while something is owed to it is giving up.
    fn departure(&self) -> Departure {
        self.how.unwrap_or(match self.stage {
            Stage::Ready => Departure::Clean,
            Stage::Connected | Stage::Greeted | Stage::LoggingIn | Stage::Operation => {
                Departure::GaveUp
            }
        })
    }

    /// It logged in, or out.
    pub fn is_user(&self, user: Option<String>) {
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
