//! The routers that have refused a user's keys. Seawall uses this list while it looks for a router
//! that accepts the keys, either for an operation or to read the keys again.

use seawall_transport::connection::ServerAddress;

/// The routers that have refused the same keys of a user. `login_version` identifies these keys.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The [`seawall_auth::Identity::login_version`] of the refused keys.
    login_version: u64,
    routers: Vec<ServerAddress>,
}

impl Refusals {
    /// Adds a router. If the list contains routers that have refused other keys, removes these
    /// routers first, because they may accept the keys of `login_version`.
    pub(super) fn add(&mut self, router: ServerAddress, login_version: u64) {
        if self.login_version != login_version {
            self.routers.clear();
            self.login_version = login_version;
        }
        self.routers.push(router);
    }

    /// The [`seawall_auth::Identity::login_version`] of the refused keys.
    pub(super) fn login_version(&self) -> u64 {
        self.login_version
    }

    /// The routers that have refused the keys.
    pub(super) fn routers(&self) -> &[ServerAddress] {
        &self.routers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_new_keys_removes_the_routers_that_refused_the_old_keys() {
        let routers: [ServerAddress; 3] = ["a:1", "b:1", "c:1"].map(|r| r.parse().unwrap());
        let mut refusals = Refusals::default();
        refusals.add(routers[0].clone(), 1);
        refusals.add(routers[1].clone(), 1);
        assert_eq!(refusals.routers(), &routers[..2]);
        refusals.add(routers[2].clone(), 2);
        assert_eq!(refusals.routers(), &routers[2..]);
    }
}
