//! Identities: the user that a client has authenticated as, and the login that Seawall uses at
//! servers for that user.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::RwLock;

use super::{ClientKey, Mechanism, ScramKeys};

/// Unique number of an identity in this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityId(u64);

impl IdentityId {
    /// The number itself.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

/// The state of an identity: usable, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Usable.
    Good,
    /// The user was dropped, and perhaps created again with another id. Its clients get error 13.
    Gone,
    /// A server refused its keys: its clients must log in again.
    Refused,
}

/// How Seawall's connections log in as the identity.
#[derive(Clone)]
pub enum Login {
    /// No login: the deployment has no authentication.
    Anonymous,
    /// With SCRAM keys; no password is needed.
    Keys {
        /// Learned from a client's proof.
        client_key: ClientKey,
        /// As a server stores them.
        keys: ScramKeys,
    },
    /// The keys are outdated, and no client has proved newer ones yet.
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
}

/// A user of the deployment: name, source and id. A user that is dropped and created again gets
/// another id.
pub struct Identity {
    id: IdentityId,
    name: String,
    source: String,
    user_id: Option<[u8; 16]>,
    is_anonymous: bool,
    standing: AtomicU8,
    in_flight: Arc<AtomicUsize>,
    login: RwLock<Login>,
    login_version: AtomicU64,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?}, {}.{})", self.id, self.source, self.name)
    }
}

impl Identity {
    /// Makes the identity of a user. A user has one identity at a time.
    pub fn new(name: &str, source: &str, user_id: Option<[u8; 16]>, login: Login) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: IdentityId(NEXT.fetch_add(1, Ordering::Relaxed)),
            name: name.to_owned(),
            source: source.to_owned(),
            user_id,
            is_anonymous: matches!(login, Login::Anonymous),
            standing: AtomicU8::new(0),
            in_flight: Arc::default(),
            login: RwLock::new(login),
            login_version: AtomicU64::new(0),
        }
    }

    /// The identity of clients that have not logged in.
    pub fn anonymous() -> Self {
        Self::new("", "", None, Login::Anonymous)
    }

    /// The unique number of this identity.
    pub fn id(&self) -> IdentityId {
        self.id
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database that the user is defined in.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The user's `userId` on the server, if it has one.
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

    /// The current state of the identity.
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            0 => Standing::Good,
            1 => Standing::Gone,
            _ => Standing::Refused,
        }
    }

    /// Makes the identity unusable. Only the first reason counts. It cannot become usable again: a
    /// later login makes a new identity.
    pub fn end(&self, standing: Standing) {
        let value = match standing {
            Standing::Good => return,
            Standing::Gone => 1,
            Standing::Refused => 2,
        };
        // An operation in flight may find its keys refused after the user is known to be gone.
        // Error 13 is right then, so the first reason stays.
        self.standing
            .compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire)
            .ok();
        *self.login.write() = Login::Unknown;
    }

    /// How Seawall's connections currently log in as this identity.
    pub fn login(&self) -> Login {
        self.login.read().clone()
    }

    /// The version of the login; each new login increases it. Read it before [`Identity::login`]: a
    /// server's refusal concerns only the version read before it, not a later one.
    pub fn login_version(&self) -> u64 {
        self.login_version.load(Ordering::Acquire)
    }

    /// Replaces the login, unless the identity is unusable.
    pub fn learn(&self, login: Login) {
        if self.standing() == Standing::Good {
            *self.login.write() = login;
            self.login_version.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_of_the_same_user_are_distinct() {
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

    #[test]
    fn anonymous_identity_has_no_name_and_no_user_id() {
        let anonymous = Identity::anonymous();
        assert!(anonymous.is_anonymous());
        assert_eq!((anonymous.name(), anonymous.user_id()), ("", None));
    }
}
