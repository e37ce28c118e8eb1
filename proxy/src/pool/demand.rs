//! The needs of an operation that asks for a connection.

use tokio::time::Instant;

use seawall_transport::Sharer;

/// The resource that an operation needs besides a connection. Each user has a separate wait queue
/// for each need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: the operation is a command that Seawall itself sends on a connection of the user,
    /// for example to read the user's rights. Only a few such commands run at a time for a user.
    /// They are served before the operations of the user's clients. They may use the connections
    /// that are reserved for urgent operations (see `super::reserve`).
    Nothing,
    /// A permit to wait for data at the server. The operation already has the permit. This is the
    /// need of operations such as a `getMore` on a change stream. The lane (see `super::lane`)
    /// limits the number of these permits.
    LanePermit,
    /// A slot, or one of the reserved slots while all other slots are taken. Slots limit how many
    /// operations run on the server at a time (see `super::slots`). The operation may also use the
    /// connections that are reserved for urgent operations (see `super::reserve`). This is the need
    /// of operations that other operations may wait for, for example the commit of a transaction
    /// that holds locks.
    SlotOrReserve,
    /// A slot that is not reserved. The operation must not use reserved connections either. This is
    /// the need of all other operations.
    Slot,
}

impl Need {
    /// All needs, in the order of [`Self::index`].
    pub(super) const ALL: [Self; 4] = [
        Self::Nothing,
        Self::LanePermit,
        Self::SlotOrReserve,
        Self::Slot,
    ];

    /// The position in [`Self::ALL`].
    pub(super) fn index(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::LanePermit => 1,
            Self::SlotOrReserve => 2,
            Self::Slot => 3,
        }
    }

    /// True if the operation is urgent: it may use all reserved connections (see `super::reserve`).
    pub(super) fn may_use_reserve(self) -> bool {
        matches!(self, Self::Nothing | Self::SlotOrReserve)
    }

    /// True if the operation uses a slot or a reserved slot.
    pub(super) fn is_limited(self) -> bool {
        matches!(self, Self::SlotOrReserve | Self::Slot)
    }
}

/// An operation that asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The need of the operation besides a connection.
    pub need: Need,
    /// The group of clients to which the client belongs, for example all clients of one address.
    /// The groups are served round-robin. For a command of Seawall itself, the value does not
    /// matter.
    pub from: Sharer,
    /// A number that identifies the shape of the operation. `None` if the time of the operation
    /// must not be compared with the times of other operations.
    pub shape: Option<u64>,
    /// When the operation began to wait, if it has waited for a connection before. `None` if it
    /// begins to wait now.
    pub waits_since: Option<Instant>,
}

impl Demand {
    /// The demand of a command of Seawall itself.
    pub(crate) const OWN: Self = Self {
        need: Need::Nothing,
        from: Sharer::Local,
        shape: None,
        waits_since: None,
    };

    /// The demand of a client's operation that needs a slot. `shape` identifies its shape.
    pub const fn slot(from: Sharer, shape: u64) -> Self {
        Self {
            need: Need::Slot,
            from,
            shape: Some(shape),
            waits_since: None,
        }
    }
}
