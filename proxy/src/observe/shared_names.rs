//! A table of names that many clients have in common.
//!
//! Clients choose their names freely. So unused names are removed when the table has twice as many
//! names as were in use at the last removal.

use std::{collections::HashSet, sync::Arc};

/// The table searches for unused names only if it has at least this many names.
const MIN_PURGE: usize = 64;

/// The names of applications, users and drivers in use. Clients with the same name share the memory
/// of the name. So thousands of clients need little memory, and the data path can compare names by
/// their memory address.
#[derive(Debug, Default)]
pub(super) struct SharedNames {
    names: HashSet<Arc<str>>,
    /// Number of names at which unused names are removed.
    purge_at: usize,
}

impl SharedNames {
    /// The shared copy of a name.
    pub(super) fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        if self.names.len() >= self.purge_at.max(MIN_PURGE) {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.purge_at = self.names.len() * 2;
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_names_do_not_fill_the_table() {
        let mut names = SharedNames::default();
        let kept: Vec<_> = (0..100)
            .map(|n| names.intern(&format!("kept{n}")))
            .collect();
        for n in 0..10_000 {
            drop(names.intern(&format!("hostile{n}")));
        }
        assert!(names.names.len() <= 2 * kept.len() + MIN_PURGE);
        assert!(Arc::ptr_eq(&names.intern("kept7"), &kept[7]));
    }
}
