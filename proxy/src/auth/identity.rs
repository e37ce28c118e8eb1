//! Whose connection it is: the user that a client proved to be, and as whom we log in at servers.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::RwLock;

use super::{ClientKey, Mechanism, ScramKeys};

/// Tells one identity from every other of this process; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityId(u64);

impl IdentityId {
    /// The number itself.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

/// Whether an identity may still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may.
    Good,
    /// The user was dropped (and perhaps made again, as another): its clients get 13.
    Gone,
    /// A server refused its keys: its clients must log in again.
    Refused,
}

/// How a connection of ours logs in as the identity.
#[derive(Clone)]
pub enum Login {
    /// Not at all: a deployment without authentication.
    Anonymous,
    /// With keys, no password.
    Keys {
        /// Learned from a client's proof.
        client_key: ClientKey,
        /// As a server stores them.
        keys: ScramKeys,
    },
    /// Keys are known to be outdated and no client has proved newer ones yet.
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
    /// The mechanism it uses.
    pub fn mechanism(&self) -> Option<Mechanism> {
        match self {
            Self::Keys { keys, .. } => Some(keys.mechanism()),
            Self::Anonymous | Self::Unknown => None,
        }
    }
}

/// A user as one deployment knows it: name, source, and the id that a user made again does not inherit.
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
    /// A new identity of a user; the same user has one at a time.
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

    /// The identity of everybody, where the deployment asks nobody.
    pub fn anonymous() -> Self {
        Self::new("", "", None, Login::Anonymous)
    }

    /// Its id.
    pub fn id(&self) -> IdentityId {
        self.id
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database it is defined in.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The server's id of the user.
    pub fn user_id(&self) -> Option<[u8; 16]> {
        self.user_id
    }

    /// Whether it is that of clients that have not logged in.
    pub fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    /// Counts the user's operations in flight.
    pub fn in_flight(&self) -> &Arc<AtomicUsize> {
        &self.in_flight
    }

    /// Whether it may still be used.
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            0 => Standing::Good,
            1 => Standing::Gone,
            _ => Standing::Refused,
        }
    }

    /// Ends its use, for the first reason given. There is no way back: a later login makes a new identity.
    pub fn end(&self, standing: Standing) {
        let value = match standing {
            Standing::Good => return,
            Standing::Gone => 1,
            Standing::Refused => 2,
        };
        // An operation under way may meet refused keys after the user is known to be gone; 13 is the truth then.
        self.standing
            .compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire)
            .ok();
        *self.login.write() = Login::Unknown;
    }

    /// How our connections log in as it, as of now.
    pub fn login(&self) -> Login {
        self.login.read().clone()
    }

    /// Grows with each way to log in that is learned. Read it before [`Identity::login`]: a server's refusal says nothing of
    /// a later version.
    pub fn login_version(&self) -> u64 {
        self.login_version.load(Ordering::Acquire)
    }

    /// Learns a way to log in.
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
    fn an_identity_is_one_user_and_no_other() {
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
    fn an_anonymous_identity_stays_so() {
        let anonymous = Identity::anonymous();
        assert!(anonymous.is_anonymous());
        assert_eq!((anonymous.name(), anonymous.user_id()), ("", None));
    }
}
