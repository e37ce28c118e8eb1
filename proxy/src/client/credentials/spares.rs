//! Unauthenticated server connections that are kept for reuse. The next query about the mechanisms
//! of a user can reuse such a connection. A login that a server checks (the first login of a user)
//! can also reuse it. Plain data: no I/O, no clock.

use std::time::Duration;

use tokio::time::Instant;

use seawall_transport::connection::{Connection, ServerAddress};

/// Maximum number of unauthenticated server connections that are kept for reuse.
pub(super) const MAX_SPARE: usize = 8;

/// How long an unused connection is kept. Without this limit, connections to a former primary, for
/// example, would stay open.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// The connections that are kept, in the order in which they were last used. The most recently used
/// connection is at the end.
#[derive(Debug, Default)]
pub(super) struct Spares(Vec<Spare>);

/// A kept connection. It has been unused since `since`.
#[derive(Debug)]
pub(super) struct Spare {
    address: ServerAddress,
    connection: Connection,
    since: Instant,
}

impl Spares {
    /// Takes the most recently used connection to the server at `address`; `None` if no connection
    /// to this server is kept.
    pub(super) fn take(&mut self, address: &ServerAddress) -> Option<Connection> {
        let last = self.0.iter().rposition(|spare| spare.address == *address)?;
        Some(self.0.remove(last).connection)
    }

    /// Adds a connection. If [`MAX_SPARE`] connections are already kept, replaces the connection
    /// that has been unused for longest. Returns the replaced connection, which the caller drops
    /// after it has released the lock of this list, because closing a connection takes time.
    pub(super) fn keep(
        &mut self,
        address: ServerAddress,
        connection: Connection,
        now: Instant,
    ) -> Option<Spare> {
        let replaced = (self.0.len() >= MAX_SPARE).then(|| self.0.remove(0));
        self.0.push(Spare {
            address,
            connection,
            since: now,
        });
        replaced
    }

    /// Removes the connections for which `is_current` is false, and the connections that have been
    /// unused for [`IDLE_LIMIT`]. Returns them, so that the caller drops them after it has released
    /// the lock of this list: closing connections takes time.
    pub(super) fn remove_outdated(
        &mut self,
        is_current: impl Fn(&ServerAddress, &Connection) -> bool,
        now: Instant,
    ) -> Vec<Spare> {
        let is_outdated = |spare: &mut Spare| {
            let idle = now.saturating_duration_since(spare.since);
            idle >= IDLE_LIMIT || !is_current(&spare.address, &spare.connection)
        };
        self.0.extract_if(.., is_outdated).collect()
    }

    /// Number of connections.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;
    use seawall_transport::Stream;

    fn address(port: u16) -> ServerAddress {
        format!("h:{port}").parse().unwrap()
    }

    fn connection() -> Connection {
        let (stream, _) = UnixStream::pair().unwrap();
        Connection::new(Stream::Unix(stream), Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn the_most_recently_used_connection_to_a_server_is_taken_first() {
        let mut spares = Spares::default();
        let now = Instant::now();
        let ids = [1, 1, 2].map(|port| {
            let connection = connection();
            let id = connection.id();
            assert!(spares.keep(address(port), connection, now).is_none());
            id
        });
        let taken = spares.take(&address(1)).map(|connection| connection.id());
        assert_eq!(taken, Some(ids[1]));
        assert!(spares.take(&address(3)).is_none());
        assert_eq!(spares.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_maximum_a_new_spare_connection_replaces_the_longest_unused_one() {
        let mut spares = Spares::default();
        let now = Instant::now();
        for _ in 0..MAX_SPARE {
            assert!(spares.keep(address(1), connection(), now).is_none());
        }
        assert!(spares.keep(address(2), connection(), now).is_some());
        assert_eq!(spares.len(), MAX_SPARE);
        assert!(spares.take(&address(2)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_are_unused_for_a_minute_or_not_current_are_removed() {
        let mut spares = Spares::default();
        let began = Instant::now();
        for port in [1, 2] {
            assert!(spares.keep(address(port), connection(), began).is_none());
        }
        let is_current = |server: &ServerAddress, _: &Connection| *server == address(2);
        assert_eq!(spares.remove_outdated(is_current, began).len(), 1);
        let later = began + IDLE_LIMIT;
        assert!(spares.keep(address(2), connection(), later).is_none());
        assert_eq!(spares.remove_outdated(is_current, later).len(), 1);
        assert_eq!(spares.len(), 1);
    }
}
