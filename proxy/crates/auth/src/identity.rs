//! Identities: the users as which Seawall's connections authenticate at servers. An identity has
//! the name, the source (the database that defines the user) and the user id of a user. Its
//! [`Login`] is the way in which the connections authenticate.

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{ClientKey, Mechanism, Restrictions, ScramKeys};
use seawall_locks::RwLock;

/// The number of an identity, unique within this process. A number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityId(u64);

impl IdentityId {
    /// The id as a plain number, which no other identity of this process has.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

/// The status of an identity: usable, or the reason why it is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityStatus {
    /// The identity is usable.
    Good,
    /// The user was dropped, and may have been created again with another user id. The anonymous
    /// identity (of clients that have not logged in) gets this status when a server requires a
    /// login. Clients of an identity with this status get error 13 (Unauthorized).
    Gone,
    /// A server refused the user's keys, so the clients of this identity must log in again.
    Refused,
}

/// The way in which Seawall's connections authenticate as an identity.
#[derive(Clone)]
pub enum Login {
    /// Connections need no login, because the deployment has no access control.
    Anonymous,
    /// Connections log in with SCRAM keys. No password is needed.
    Keys {
        /// The user's ClientKey, recovered from a client's proof.
        client_key: ClientKey,
        /// The user's keys as a server stores them.
        keys: ScramKeys,
    },
    /// Connections cannot log in. The identity is unusable, or its keys are outdated and no client
    /// has logged in with newer keys yet.
    Unknown,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Keys { .. } => "Keys",
            Self::Unknown => "Unknown",
        })
    }
}

impl Login {
    /// The mechanism of the login; `None` if there are no keys.
    pub fn mechanism(&self) -> Option<Mechanism> {
        match self {
            Self::Keys { keys, .. } => Some(keys.mechanism()),
            Self::Anonymous | Self::Unknown => None,
        }
    }

    /// True if both logins have the same keys, or are the same variant without keys.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Anonymous, Self::Anonymous) | (Self::Unknown, Self::Unknown) => true,
            (Self::Keys { keys, .. }, Self::Keys { keys: others, .. }) => keys == others,
            _ => false,
        }
    }
}

/// A user of the deployment, identified by name, source and user id. A user that was dropped and
/// created again has another user id and is another identity.
pub struct Identity {
    id: IdentityId,
    name: String,
    source: String,
    user_id: Option<[u8; 16]>,
    is_anonymous: bool,
    status: AtomicU8,
    in_flight: Arc<AtomicUsize>,
    login: RwLock<Login>,
    login_version: AtomicU64,
    /// True if `restrictions` may refuse a client.
    is_restricted: AtomicBool,
    restrictions: RwLock<Restrictions>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?}, {}.{})", self.id, self.source, self.name)
    }
}

impl Identity {
    /// Creates an identity. The caller makes sure that a user has only one identity at a time.
    pub fn new(name: &str, source: &str, user_id: Option<[u8; 16]>, login: Login) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: IdentityId(NEXT.fetch_add(1, Ordering::Relaxed)),
            name: name.to_owned(),
            source: source.to_owned(),
            user_id,
            is_anonymous: matches!(login, Login::Anonymous),
            status: AtomicU8::new(0),
            in_flight: Arc::default(),
            login: RwLock::new(login),
            login_version: AtomicU64::new(0),
            is_restricted: AtomicBool::new(false),
            restrictions: RwLock::default(),
        }
    }

    /// Creates the identity of clients that have not logged in.
    pub fn anonymous() -> Self {
        Self::new("", "", None, Login::Anonymous)
    }

    /// Replaces the user's `authenticationRestrictions`. They apply to connected clients too, as on
    /// servers.
    pub fn restrict(&self, restrictions: &Restrictions) {
        let is_restricted = !restrictions.is_unrestricted();
        if is_restricted || self.is_restricted.load(Ordering::Acquire) {
            self.restrictions.write().clone_from(restrictions);
            self.is_restricted.store(is_restricted, Ordering::Release);
        }
    }

    /// True if the user's `authenticationRestrictions` permit a client at `peer`. `None` is a
    /// client without an IP address.
    pub fn permits(&self, peer: Option<IpAddr>) -> bool {
        !self.is_restricted.load(Ordering::Acquire) || self.restrictions.read().permits(peer)
    }

    /// The unique number of this identity.
    pub fn id(&self) -> IdentityId {
        self.id
    }

    /// The user's name; empty for the anonymous identity.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database that the user is defined in.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The user's `userId` on the servers; `None` for users that have none.
    pub fn user_id(&self) -> Option<[u8; 16]> {
        self.user_id
    }

    /// True if this is the identity of clients that have not logged in.
    pub fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    /// The counter of the user's operations in flight.
    pub fn in_flight(&self) -> &Arc<AtomicUsize> {
        &self.in_flight
    }

    /// The current status of the identity.
    pub fn status(&self) -> IdentityStatus {
        match self.status.load(Ordering::Acquire) {
            0 => IdentityStatus::Good,
            1 => IdentityStatus::Gone,
            _ => IdentityStatus::Refused,
        }
    }

    /// Makes the identity unusable forever. `status` is the reason. A second call does not change
    /// the reason. A call with [`IdentityStatus::Good`] has no effect. A later login of the user
    /// creates a new identity.
    pub fn end(&self, status: IdentityStatus) {
        let value = match status {
            IdentityStatus::Good => return,
            IdentityStatus::Gone => 1,
            IdentityStatus::Refused => 2,
        };
        // After a user was dropped, an operation in flight may still report that a server refused
        // the user's keys. This report must not replace `Gone`, because clients of a dropped user
        // must get error 13.
        self.status
            .compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire)
            .ok();
        *self.login.write() = Login::Unknown;
    }

    /// The way in which Seawall's connections authenticate now.
    pub fn login(&self) -> Login {
        self.login.read().clone()
    }

    /// True if Seawall's connections can log in, or need no login.
    pub fn can_log_in(&self) -> bool {
        !matches!(*self.login.read(), Login::Unknown)
    }

    /// The version of the login. [`Identity::learn`] increases the version when it changes the
    /// login. Callers read the version before they call [`Identity::login`]. If a server refuses
    /// the login, the version shows whether a newer login has already replaced the refused one.
    pub fn login_version(&self) -> u64 {
        self.login_version.load(Ordering::Acquire)
    }

    /// Replaces the login with `login`, unless the identity is unusable or both logins are the
    /// same.
    pub fn learn(&self, login: Login) {
        // The status is read while this thread holds the lock of the login. `end` first changes
        // the status, and then takes the same lock to remove the login. So no login is set after
        // `end` has removed the old login.
        let mut current = self.login.write();
        if self.status() == IdentityStatus::Good && !current.is_same(&login) {
            *current = login;
            self.login_version.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scram::{DerivedKeys, derive_from_password};

    /// An identity is never used again after it has ended. If its user logs in later, Seawall
    /// creates a new identity, which must not be mixed up with the old one.
    #[test]
    fn two_identities_with_the_same_user_id_have_different_ids_and_separate_in_flight_counters() {
        let id = [7; 16];
        let user = Identity::new("u", "db", Some(id), Login::Unknown);
        assert_eq!((user.name(), user.source()), ("u", "db"));
        assert_eq!(user.user_id(), Some(id));
        assert!(!user.is_anonymous());
        let again = Identity::new("u", "db", Some(id), Login::Unknown);
        assert_ne!(user.id(), again.id());
        assert_ne!(user.id().as_u64(), again.id().as_u64());
        assert!(!Arc::ptr_eq(user.in_flight(), again.in_flight()));
        assert!(Arc::ptr_eq(user.in_flight(), user.in_flight()));
    }

    /// A `Login` says how Seawall's connections authenticate as the user, for example with SCRAM
    /// keys.
    #[test]
    fn login_version_increases_only_if_the_new_login_differs_from_the_current_login() {
        let login = |password| {
            let salt = [7; 28];
            let derived = derive_from_password(Mechanism::ScramSha256, "u", password, &salt, 4096);
            let DerivedKeys { client_key, keys } = derived.unwrap();
            Login::Keys { client_key, keys }
        };
        let user = Identity::new("u", "admin", None, Login::Unknown);
        let versions = [login("one"), login("one"), login("two"), Login::Unknown].map(|login| {
            user.learn(login);
            user.login_version()
        });
        assert_eq!(versions, [1, 1, 2, 3]);
    }

    #[test]
    fn anonymous_identity_has_no_name_and_no_user_id() {
        let anonymous = Identity::anonymous();
        assert!(anonymous.is_anonymous());
        assert_eq!((anonymous.name(), anonymous.user_id()), ("", None));
    }
}
