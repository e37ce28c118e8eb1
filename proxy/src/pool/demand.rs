//! The needs of an operation that asks for a connection.

use seawall_transport::Sharer;

/// The resource that an operation needs besides a connection. Each user has a separate wait queue
/// for each need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: the operation is a command of Seawall itself. A user has only a few such operations
    /// at a time. They are served before the operations of the user's clients, and may use the
    /// reserved connections (see `super::reserve`).
    Nothing,
    /// A permit of the lane (see `super::lane`), which the operation already has. This is the need
    /// of operations that wait for data, such as a `getMore` on a change stream.
    LanePermit,
    /// A slot (see `super::slots`), or a reserved slot while all slots are taken. The operation may
    /// also use the reserved connections (see `super::reserve`). This is the need of operations
    /// that other operations may wait for, for example the commit of a transaction that holds
    /// locks.
    SlotOrReserve,
    /// A slot that is not reserved. The operation may also not use the reserved connections. This
    /// is the need of all other operations.
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

    /// True if the operation may use the reserved connections.
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
    /// The address or user of the client. Addresses and users are served in turn. For a command of
    /// Seawall itself, the value does not matter.
    pub from: Sharer,
    /// A number that identifies the shape of the operation. `None` if the time of the operation
    /// must not be compared with the times of other operations.
    pub shape: Option<u64>,
}

impl Demand {
    /// The demand of a command of Seawall itself.
    pub(crate) const OWN: Self = Self {
        need: Need::Nothing,
        from: Sharer::Local,
        shape: None,
    };

    /// The demand of a client's operation that needs a slot. `shape` identifies its shape.
    pub const fn slot(from: Sharer, shape: u64) -> Self {
        Self {
            need: Need::Slot,
            from,
            shape: Some(shape),
        }
    }
}
