//! Connections that are reserved for operations that other operations may wait for.
//!
//! Operations may wait at the server for a lock until a transaction ends. If such operations used
//! all connections, the commit of this transaction could never run. So there is a reserve of a few
//! connections for urgent operations, which have
//! [`Need::SlotOrReserve`](super::Need::SlotOrReserve) or are commands of Seawall itself:
//!
//! - For urgent operations, a user may have a few connections more than `max_pool_size`. Other
//!   operations of a user never use more than `max_pool_size` connections.
//! - The last few of `max_server_connections` are not used by operations with
//!   [`Need::Slot`](super::Need::Slot). A `max_server_connections` below eight has no reserve.
//!
//! For a command of Seawall itself, a connection above `max_pool_size` is established only after
//! the command has waited for a short time. Usually an operation of the same user ends within this
//! time, and the command gets the connection of this operation.
//!
//! A connection above `max_pool_size` is kept like all others: until it has been unused for
//! `max_idle_time`, until another user needs it, or until `max_pool_size` is lowered. Otherwise
//! each statement of a transaction could need a login.

use super::{PoolLimits, slots::RESERVE};

/// The number of reserved connections is the maximum number of connections divided by this number,
/// but at most [`RESERVE`].
const SHARE: usize = 8;

impl PoolLimits {
    /// Maximum number of connections of one user, with the reserve. The reserve has at least one
    /// connection.
    pub(super) fn max_with_reserve(&self) -> usize {
        let reserve = (self.max_pool_size / SHARE).clamp(1, RESERVE);
        self.max_pool_size.saturating_add(reserve)
    }

    /// Maximum number of connections to the server that operations with
    /// [`Need::Slot`](super::Need::Slot) may use at the same time, for all users together.
    pub(super) fn max_for_slots(&self) -> usize {
        let max = self.max_server_connections;
        max - (max / SHARE).min(RESERVE)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::limits, *};

    /// The reserved connections are for urgent operations, such as commits. Each user has at least
    /// one reserved connection. A server with fewer than eight connections has none.
    #[test]
    fn the_reserve_is_an_eighth_of_the_connections_but_at_most_eight() {
        for (max, with_reserve, for_slots) in [
            (1, 2, 1),
            (2, 3, 2),
            (7, 8, 7),
            (8, 9, 7),
            (16, 18, 14),
            (64, 72, 56),
            (100, 108, 92),
            (500, 508, 492),
        ] {
            let limits = PoolLimits {
                max_pool_size: max,
                max_server_connections: max,
                ..limits()
            };
            let maximums = (limits.max_with_reserve(), limits.max_for_slots());
            assert_eq!(maximums, (with_reserve, for_slots), "{max}");
        }
    }
}
