//! The identities that are in use, by user name. An [`Identity`] represents a user of the
//! deployment, with its login at the servers.
//!
//! The cached keys of a user may expire or be evicted while clients and pools still use the user's
//! identity. A later login of the user must get the same identity. One reason is that limits and
//! pins (the server of each transaction) belong to one identity. The other reason is that the
//! status of this identity decides if the user's operations are refused.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use crate::limits::NameHash;
use seawall_auth::{Identity, IdentityStatus};

/// Minimum number of entries before unused entries are removed.
const MIN_ENTRIES: usize = 64;

/// The identities in use, at most one for each user. An entry is unused if no client, no pool and
/// no cached keys have its identity. Unused entries are removed when the table has twice as many
/// entries as after the last removal, and at least 64.
#[derive(Debug, Default)]
pub(super) struct LiveIdentities {
    by_name: HashMap<NameHash, Weak<Identity>>,
    /// Unused entries are removed when the table has this many entries.
    clean_at: usize,
}

impl LiveIdentities {
    /// The identity of a user; `None` if no client, no pool and no cached keys have the identity,
    /// or if the identity is no longer usable.
    pub(super) fn get(&self, user: &NameHash) -> Option<Arc<Identity>> {
        let identity = self.by_name.get(user)?.upgrade()?;
        (identity.status() == IdentityStatus::Good).then_some(identity)
    }

    /// Adds the new identity of a user.
    pub(super) fn insert(&mut self, user: NameHash, identity: &Arc<Identity>) {
        if self.by_name.len() >= self.clean_at {
            self.by_name.retain(|_, entry| entry.strong_count() > 0);
            self.clean_at = MIN_ENTRIES.max(2 * self.by_name.len());
        }
        self.by_name.insert(user, Arc::downgrade(identity));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NameHasher;
    use seawall_auth::Login;

    /// An *identity* is a user of the deployment, with its login at the servers.
    #[test]
    fn identities_that_no_client_and_no_pool_uses_are_removed_from_the_table() {
        let (mut live, names) = (LiveIdentities::default(), NameHasher::default());
        let identity = |number: usize| {
            let name = format!("user {number}");
            let identity = Identity::new(&name, "admin", None, Login::Unknown);
            (names.hash(&name), Arc::new(identity))
        };
        let (kept, in_use) = identity(0);
        live.insert(kept, &in_use);
        for number in 1..1_000 {
            let (hash, identity) = identity(number);
            live.insert(hash, &identity);
        }
        assert!(live.by_name.len() <= MIN_ENTRIES, "{}", live.by_name.len());
        assert!(Arc::ptr_eq(&live.get(&kept).unwrap(), &in_use));
        in_use.end(IdentityStatus::Gone);
        assert!(live.get(&kept).is_none());
    }
}
