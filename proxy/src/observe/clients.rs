//! Who is connected: counted and listed while they live.

use std::{sync::Arc, time::SystemTime};

use super::Observer;

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
        self.observer.clients.lock().remove(&self.id);
    }
}
