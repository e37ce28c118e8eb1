//! Counts, for each user, the slots (see [`super::slots`]) and the operations that wait for a slot.
//! With these counts, Seawall gives all users equal shares of the slots.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use seawall_auth::IdentityId;

/// The number of slots that one user holds, and the number of its operations that wait for a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    slots: usize,
    waiters: usize,
}

/// The users that hold slots or wait for them.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    users: HashMap<IdentityId, Holding, RandomState>,
    /// The element at index `n` is the number of users that hold exactly `n` slots.
    users_by_slots: Vec<usize>,
    /// The largest number of slots that one user holds.
    most: usize,
}

impl Holdings {
    pub(super) fn add_slot(&mut self, id: IdentityId) {
        self.change(id, |holding| holding.slots += 1);
    }

    pub(super) fn remove_slot(&mut self, id: IdentityId) {
        self.change(id, |holding| holding.slots -= 1);
    }

    pub(super) fn add_waiter(&mut self, id: IdentityId) {
        self.change(id, |holding| holding.waiters += 1);
    }

    pub(super) fn remove_waiter(&mut self, id: IdentityId) {
        self.change(id, |holding| holding.waiters -= 1);
    }

    fn change(&mut self, id: IdentityId, change: impl FnOnce(&mut Holding)) {
        let holding = self.users.entry(id).or_default();
        let before = holding.slots;
        change(holding);
        let Holding { slots, waiters } = *holding;
        if slots == 0 && waiters == 0 {
            self.users.remove(&id);
        }
        if slots == before {
            return;
        }
        if self.users_by_slots.len() <= slots {
            self.users_by_slots.resize(slots + 1, 0);
        }
        if let Some(users) = self.users_by_slots.get_mut(before).filter(|_| before > 0) {
            *users -= 1;
        }
        if let Some(users) = self.users_by_slots.get_mut(slots) {
            *users += 1;
        }
        self.most = self.most.max(slots);
        while self.most > 0 && self.users_by_slots.get(self.most) == Some(&0) {
            self.most -= 1;
        }
    }

    /// Number of slots that a user holds.
    pub(super) fn slots_of(&self, id: IdentityId) -> usize {
        self.users.get(&id).map_or(0, |holding| holding.slots)
    }

    /// The largest number of slots that one user holds.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Number of users that hold slots or wait for them. The user `id` is counted even without
    /// slots and waiters.
    pub(super) fn users_with(&self, id: IdentityId) -> usize {
        self.users.len() + usize::from(!self.users.contains_key(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::identity, *};

    /// The holdings are the slots of each user. A slot lets one operation run on the server.
    #[test]
    fn holdings_count_the_users_and_the_largest_number_of_slots_of_one_user() {
        let [a, b] = ["a", "b"].map(|name| identity(name).id());
        let mut holdings = Holdings::default();
        assert_eq!(holdings.users_with(a), 1);
        for _ in 0..3 {
            holdings.add_slot(a);
        }
        holdings.add_slot(b);
        holdings.add_waiter(b);
        assert_eq!((holdings.most(), holdings.users_with(a)), (3, 2));
        assert_eq!((holdings.slots_of(a), holdings.slots_of(b)), (3, 1));
        holdings.remove_slot(a);
        assert_eq!(holdings.most(), 2);
        holdings.remove_slot(a);
        holdings.remove_slot(a);
        assert_eq!((holdings.most(), holdings.users_with(b)), (1, 1));
        holdings.remove_slot(b);
        assert_eq!((holdings.most(), holdings.users_with(a)), (0, 2));
        holdings.remove_waiter(b);
        assert_eq!(holdings.users_with(a), 1);
    }
}
