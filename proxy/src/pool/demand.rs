//! What an operation needs to run on a server.

use seawall_transport::Sharer;

/// What an operation needs besides a connection. Operations with different needs wait in different
/// lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: a command of Seawall itself, at most one for each user at a time. It is served
    /// before the user's clients.
    Nothing,
    /// A permit of the lane, which the operation already has: it waits for data.
    LanePermit,
    /// A slot, or a part of the reserve while all slots are taken: other operations may wait for
    /// this one, as for the commit of a transaction that holds locks.
    SlotOrReserve,
    /// A slot.
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

    /// True if the operation uses a slot or the reserve.
    pub(super) fn is_limited(self) -> bool {
        matches!(self, Self::SlotOrReserve | Self::Slot)
    }
}

/// An operation that asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// What it needs besides a connection.
    pub need: Need,
    /// The address or user of its client. They are served in turn. Any value for Seawall itself.
    pub from: Sharer,
    /// A number that identifies the shape of the operation. `None`: its time is not compared with
    /// the times of others.
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
