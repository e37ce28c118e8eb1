//! Connections that are reserved for operations that other operations may wait for.
//!
//! Operations may wait at the server for a lock until a transaction ends. If such operations used
//! all connections, the commit of this transaction could never run. So a few connections are
//! reserved: ordinary operations, which have [`Need::Slot`](super::Need::Slot), cannot use them.

use super::{Limits, slots::RESERVE};

/// The number of reserved connections is the maximum number of connections divided by this number,
/// but at least 1 and at most [`RESERVE`].
const SHARE: usize = 8;

impl Limits {
    /// Maximum number of one user's connections that are in use by operations with
    /// [`Need::Slot`](super::Need::Slot).
    pub(super) fn max_unreserved_of_user(&self) -> usize {
        unreserved(self.max_pool_size)
    }

    /// Maximum number of all users' connections that are in use by operations with
    /// [`Need::Slot`](super::Need::Slot).
    pub(super) fn max_unreserved(&self) -> usize {
        unreserved(self.max_server_connections)
    }
}

/// Number of connections that are not reserved. A single connection is not reserved.
fn unreserved(max: usize) -> usize {
    match max {
        0 | 1 => max,
        _ => max - (max / SHARE).clamp(1, RESERVE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_the_connections_but_at_most_eight_are_reserved() {
        for (max, expected) in [
            (0, 0),
            (1, 1),
            (2, 1),
            (3, 2),
            (15, 14),
            (16, 14),
            (64, 56),
            (100, 92),
            (500, 492),
        ] {
            assert_eq!(unreserved(max), expected, "{max}");
        }
    }
}
