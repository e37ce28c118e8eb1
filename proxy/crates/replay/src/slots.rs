//! Assigns the clients of a capture to the connections of the replay.
//!
//! Each client has a connection of its own, until the number of connections reaches the limit.
//! Further clients share connections. A slot is the index of a connection, even if the connection
//! is not established yet.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// Maximum number of clients whose slots are remembered. A further client shares a slot that is
/// computed from its number and the number of slots. When a remembered client leaves, the further
/// client is remembered at its next operation, and its slot can change.
const MAX_CLIENTS: usize = 1_000_000;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    clients: usize,
    operations: usize,
}

/// The slots, and the clients in them.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_client: HashMap<u64, usize, RandomState>,
    limit: usize,
    /// Maximum number of clients whose slots are remembered.
    max_clients: usize,
    /// Number of clients that got a slot that other clients already used. A client that cannot be
    /// remembered is counted at each of its operations.
    pub shared: u64,
}

impl Slots {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_client: HashMap::default(),
            limit: limit.max(1),
            max_clients: MAX_CLIENTS,
            shared: 0,
        }
    }

    /// The slot of a client. A new client gets a slot that no client uses. If all slots are used,
    /// or no further client can be remembered, the client shares a slot with other clients.
    pub(crate) fn of(&mut self, client: u64) -> usize {
        if let Some(slot) = self.by_client.get(&client) {
            return *slot;
        }
        if self.by_client.len() >= self.max_clients {
            return self.shared_slot(client);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
            None => self.shared_slot(client),
        };
        self.by_client.insert(client, slot);
        self.change(slot, |slot| slot.clients += 1);
        slot
    }

    /// A slot that is computed from the client's number and the number of slots. The client shares
    /// it with other clients.
    fn shared_slot(&mut self, client: u64) -> usize {
        self.shared += 1;
        let slots = u64::try_from(self.slots.len().max(1)).unwrap_or(u64::MAX);
        usize::try_from(client % slots).unwrap_or(0)
    }

    /// Counts an operation that was added to a slot.
    pub(crate) fn begin(&mut self, slot: usize) {
        self.change(slot, |slot| slot.operations += 1);
    }

    /// Notes that an operation ended. Returns true if the slot is free now: no client uses it, and
    /// all its operations have ended.
    pub(crate) fn end(&mut self, slot: usize) -> bool {
        self.change(slot, |slot| {
            slot.operations = slot.operations.saturating_sub(1);
        });
        self.free_if_possible(slot)
    }

    /// Notes that a client disconnected. Returns its slot if the slot is free now.
    pub(crate) fn leave(&mut self, client: u64) -> Option<usize> {
        let slot = self.by_client.remove(&client)?;
        self.change(slot, |slot| slot.clients = slot.clients.saturating_sub(1));
        self.free_if_possible(slot).then_some(slot)
    }

    fn free_if_possible(&mut self, slot: usize) -> bool {
        let is_free = self
            .slots
            .get(slot)
            .is_some_and(|slot| slot.clients == 0 && slot.operations == 0);
        if is_free && !self.free.contains(&slot) {
            self.free.push(slot);
        }
        is_free
    }

    fn change(&mut self, slot: usize, change: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.slots.get_mut(slot) {
            change(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A *slot* is the index of a connection to the target.
    #[test]
    fn each_client_has_its_own_slot_until_all_slots_are_used_and_then_clients_share_slots() {
        let mut slots = Slots::new(2);
        assert_eq!((slots.of(10), slots.of(20), slots.of(10)), (0, 1, 0));
        assert_eq!((slots.of(30), slots.shared), (0, 1));
        assert_eq!(slots.of(30), 0);
    }

    /// A *slot* is the index of a connection to the target.
    #[test]
    fn a_slot_is_free_when_its_clients_have_disconnected_and_its_operations_have_ended() {
        let mut slots = Slots::new(1);
        let slot = slots.of(10);
        slots.begin(slot);
        assert_eq!(slots.leave(10), None);
        assert!(slots.end(slot));
        assert_eq!((slots.of(20), slots.shared), (slot, 0));
        assert_eq!(slots.of(30), slot);
        assert_eq!(slots.leave(20), None);
        assert_eq!(slots.leave(30), Some(slot));
        assert_eq!(slots.leave(30), None);
    }

    /// A *slot* is the index of a connection to the target. The slot of a client that is not
    /// remembered is computed from its number.
    #[test]
    fn a_client_that_is_not_remembered_keeps_its_slot_until_a_remembered_client_leaves() {
        let mut slots = Slots::new(4);
        slots.max_clients = 2;
        assert_eq!((slots.of(10), slots.of(20)), (0, 1));
        let slot = slots.of(31);
        assert_eq!((slot, slots.of(31)), (1, 1));
        slots.begin(slot);
        assert!(!slots.end(slot));
        assert_eq!((slots.slots.len(), slots.shared), (2, 2));
        assert_eq!(slots.leave(10), Some(0));
        assert_eq!((slots.of(31), slots.shared), (0, 2));
    }
}
