//! Users and their keys: plain data in bounded tables. No I/O, no clock.
//!
//! The age of a user's keys counts from the time at which Seawall requested them, not from the
//! arrival of the reply. Keys from an earlier request never replace keys from a later request, even
//! if the reply to the earlier request arrives last.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use super::{CredentialError, live::LiveIdentities};
use crate::limits::{NameHash, NameHasher, RecentMap, Retired};
use seawall_auth::{ClientKey, Identity, IdentityStatus, Login, Mechanism, ScramKeys};

/// Before a login uses cached keys that are older than this time, Seawall reads the keys from a
/// server again. If the reading takes too long, the login uses the cached keys.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(1);

/// For this long after a server has refused a user as unknown, Seawall refuses the user without
/// another request to a server.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// How long the cached mechanisms of a user are valid if the user's keys are not known.
const MECHANISMS_FOR: Duration = Duration::from_secs(5);

/// Shortest time between two attempts to confirm a user's keys while no login needs the keys. The
/// pause limits the requests while no server replies.
const CONFIRMATION_PAUSE: Duration = Duration::from_secs(10);

/// Maximum length of a user name, in bytes. A user with a longer name is treated as unknown, so
/// that clients that have not logged in cannot fill memory with names.
const MAX_NAME_BYTES: usize = 1024;

/// Longest database name, in bytes. Servers have the same limit.
pub(in crate::client) const MAX_SOURCE_BYTES: usize = 63;

/// A user's name and the database in which the user is defined, both limited in length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::client) struct UserName {
    pub(in crate::client) name: String,
    pub(in crate::client) source: String,
}

impl UserName {
    /// Creates a name. `None` if the user's name or the database's name is too long.
    pub(in crate::client) fn new(name: &str, source: &str) -> Option<Self> {
        let is_bounded = name.len() <= MAX_NAME_BYTES && source.len() <= MAX_SOURCE_BYTES;
        is_bounded.then(|| Self {
            name: name.to_owned(),
            source: source.to_owned(),
        })
    }

    /// The name of an identity's user.
    pub(super) fn of(identity: &Identity) -> Self {
        Self {
            name: identity.name().to_owned(),
            source: identity.source().to_owned(),
        }
    }
}

/// A user whose keys are known.
#[derive(Clone, Debug)]
pub(in crate::client) struct Known {
    pub(in crate::client) identity: Arc<Identity>,
    pub(in crate::client) credentials: Arc<seawall_auth::Credentials>,
    /// Time of the last request whose reply confirmed these keys.
    pub(in crate::client) confirmed_at: Instant,
    /// When a login's proof last failed against these keys; `None` if no proof has failed since
    /// `confirmed_at`.
    doubted_at: Option<Instant>,
    /// The right of one login to use the cached keys although no server has confirmed them since
    /// the login began. Set only in the copy that [`Store::claim_cached`] returns to the login.
    /// Only one login at a time has this right. The right ends when the login drops the claim.
    claim: Option<Arc<()>>,
    /// A weak reference to the `claim` of the login that claimed these keys last. It can be
    /// upgraded only as long as this login has not dropped its claim.
    claimed: Weak<()>,
    /// When a login last claimed these keys; `None` if no login has claimed them.
    claimed_at: Option<Instant>,
    /// When a server was last asked to confirm these keys although no login needed them; `None` if
    /// this has not happened since `confirmed_at`.
    confirmation_tried_at: Option<Instant>,
}

impl Known {
    /// True if a proof failed against these keys and no server has confirmed them since then.
    pub(in crate::client) fn is_doubted(&self) -> bool {
        self.doubted_at.is_some()
    }

    /// Releases this login's claim, so that other logins may use the cached keys.
    pub(in crate::client) fn without_claim(self) -> Self {
        Self {
            claim: None,
            ..self
        }
    }

    /// Decides about a login whose proof was checked against `credentials`. `self` has keys from a
    /// later request. Accepts the login if `self` and `credentials` have the same user id and the
    /// same keys for the login's mechanism. Otherwise returns `None`, and the login fails.
    fn prove_older(
        &self,
        credentials: &seawall_auth::Credentials,
        login: Option<Login>,
    ) -> Option<Self> {
        let mechanism = login.as_ref().and_then(Login::mechanism)?;
        let is_same = self.credentials.user_id == credentials.user_id
            && self.credentials.keys(mechanism) == credentials.keys(mechanism);
        if !is_same {
            return None;
        }
        self.identity.learn(login?);
        Some(self.clone())
    }

    /// True if a server confirmed the keys in the last second and no proof has failed since then.
    /// Such keys need no new request to a server, but only one login at a time may use them.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.confirmed_at);
        !self.is_doubted() && age < FRESH_FOR
    }
}

/// Result of reading a user's keys.
#[derive(Clone, Debug)]
pub(in crate::client) enum KeyReading {
    /// The current keys of the user.
    Keys(Box<seawall_auth::Credentials>),
    /// The user no longer exists.
    Gone,
    /// The keys of this [`Identity::login_version`] were refused, or the reply has no usable keys.
    Refused(u64),
    /// All usable routers refused a login with the keys of this [`Identity::login_version`]. The
    /// identity stays usable, because a router also refuses valid keys while it cannot read the
    /// user from the config servers.
    RefusedByRouters {
        /// The [`Identity::login_version`] of the refused keys.
        login_version: u64,
        /// True if a further router might accept the keys. Such a router has not refused them. It
        /// is not usable now, but it can become usable soon.
        is_undecided: bool,
    },
    /// The reading failed, so nothing changes.
    Unavailable,
}

/// The result of a key reading (a request for a user's keys) that ended the user's identity.
/// Seawall remembers this result, because the reply to an earlier request may arrive later and must
/// not restore the identity.
#[derive(Debug)]
pub(super) struct EndedIdentity {
    asked_at: Instant,
    /// The keys that the server refused; `None` if the user no longer exists.
    refused: Option<Arc<seawall_auth::Credentials>>,
}

impl EndedIdentity {
    /// True if `credentials`, which a server returned to a request sent at `asked_at`, must not
    /// restore the identity.
    fn outdates(&self, credentials: &seawall_auth::Credentials, asked_at: Instant) -> bool {
        let refused = self.refused.as_deref();
        self.asked_at > asked_at && refused.is_none_or(|refused| refused == credentials)
    }
}

/// Entries that were evicted from a table.
pub(super) type Evicted<V> = Retired<NameHash, V>;

/// Entries that were evicted when [`Store::confirm`] applied the result of reading a user's keys.
/// The caller drops them after it has released the store's lock, because dropping them takes time.
#[derive(Debug, Default)]
#[must_use = "drop this value after the lock is released"]
pub(super) struct Confirmed {
    #[expect(dead_code, reason = "dropped, never read")]
    known: Option<Evicted<Known>>,
    #[expect(dead_code, reason = "dropped, never read")]
    ended: Option<Evicted<EndedIdentity>>,
}

/// Bounded tables of users, keyed by hashes of their names.
#[derive(Debug)]
pub(super) struct Store {
    max_stale: Duration,
    names: NameHasher,
    known: RecentMap<NameHash, Known>,
    ended: RecentMap<NameHash, EndedIdentity>,
    /// Users that a server refused as unknown, each with the time until which Seawall refuses the
    /// user without another request to a server. The key is a hash of the user and the mechanism,
    /// because a user may have only one of the mechanisms.
    unknown: RecentMap<NameHash, Instant>,
    /// Cached mechanisms of users, each with the time until which they are valid.
    mechanisms: RecentMap<NameHash, (Vec<String>, Instant)>,
    /// Empty lists of mechanisms, cached for names of users that do not exist, each with the time
    /// until which it is valid. A client that has not logged in can ask for any number of such
    /// names. The empty lists have a separate table, so that they do not displace the mechanisms of
    /// users that exist.
    absent: RecentMap<NameHash, (Vec<String>, Instant)>,
    /// Mechanisms for which a user has keys, but which the servers do not offer: their parameter
    /// `authenticationMechanisms` excludes these mechanisms. Seawall finds them by two queries: for
    /// a user's keys, and for the mechanisms that a server offers to this user. If the user changes
    /// between the queries, the result is wrong. So it is stored for this user only.
    disabled: RecentMap<NameHash, Vec<Mechanism>>,
    live: LiveIdentities,
}

impl Store {
    pub(super) fn new(max_users: usize, max_stale: Duration) -> Self {
        Self {
            max_stale,
            names: NameHasher::default(),
            known: RecentMap::new(max_users),
            ended: RecentMap::new(max_users),
            unknown: RecentMap::new(max_users),
            mechanisms: RecentMap::new(max_users),
            absent: RecentMap::new(max_users),
            disabled: RecentMap::new(max_users),
            live: LiveIdentities::default(),
        }
    }

    /// Applies changed limits: the number of users in each table, and the time after which
    /// unconfirmed keys expire.
    pub(super) fn set_limits(&mut self, max_users: usize, max_stale: Duration) {
        self.max_stale = max_stale;
        self.known.set_max(max_users);
        self.ended.set_max(max_users);
        self.unknown.set_max(max_users);
        self.mechanisms.set_max(max_users);
        self.absent.set_max(max_users);
        self.disabled.set_max(max_users);
    }

    fn hash(&self, user: &UserName) -> NameHash {
        self.names.hash(user)
    }

    fn hash_with(&self, user: &UserName, mechanism: Mechanism) -> NameHash {
        self.names.hash((user, mechanism))
    }

    /// Returns a known user. `None` if no keys of the user are stored, if no server has confirmed
    /// the keys for `max_stale`, or if the user's identity has ended.
    pub(super) fn known(&mut self, user: &UserName, now: Instant) -> Option<Known> {
        let hash = self.hash(user);
        let known = self.known.get(&hash)?;
        let is_stale = now.saturating_duration_since(known.confirmed_at) >= self.max_stale;
        if is_stale || known.identity.status() != IdentityStatus::Good {
            let mechanisms = known.credentials.mechanisms.clone();
            self.known.remove(&hash);
            // This insert may drop half of the table under the store's lock. This is rare: before
            // each such drop, as many new entries as half of the table's maximum are inserted.
            drop(self.mechanisms.insert(hash, (mechanisms, now)));
            return None;
        }
        Some(known.clone())
    }

    /// The identities in use whose keys no server has confirmed for half of `max_stale`, the oldest
    /// first, at most `count`. After a confirmation, clients can log in with these keys for
    /// `max_stale`, even if the servers stop replying. Each identity is returned at most once per
    /// [`CONFIRMATION_PAUSE`].
    pub(super) fn due_for_confirmation(
        &mut self,
        count: usize,
        now: Instant,
    ) -> Vec<Arc<Identity>> {
        let max_age = self.max_stale / 2;
        let age = |known: &Known| now.saturating_duration_since(known.confirmed_at);
        let was_tried = |known: &Known| {
            let tried_at = known.confirmation_tried_at;
            tried_at.is_some_and(|at| now < at + CONFIRMATION_PAUSE)
        };
        let is_due = |known: &&mut Known| {
            known.identity.status() == IdentityStatus::Good
                && age(known) >= max_age
                && age(known) < self.max_stale
                && !was_tried(known)
                // The store has one reference. Clients and pools that use the identity have others.
                && Arc::strong_count(&known.identity) > 1
        };
        let mut due: Vec<_> = self.known.values_mut().filter(is_due).collect();
        due.sort_by_key(|known| known.confirmed_at);
        due.truncate(count);
        let identities = due.into_iter().map(|known| {
            known.confirmation_tried_at = Some(now);
            Arc::clone(&known.identity)
        });
        identities.collect()
    }

    /// Returns the cached keys for a login that uses them without asking a server again. `None` if
    /// the user is not known, or if another login of the user uses the keys now. So after a change
    /// of the password, only one login fails because of the old keys, and the other logins wait for
    /// new keys. The login drops the result to let other logins use the cached keys.
    pub(super) fn claim_cached(&mut self, user: &UserName, now: Instant) -> Option<Known> {
        let mut lent = self.known(user, now)?;
        if lent.claimed.strong_count() > 0 {
            return None;
        }
        let claim = Arc::new(());
        let hash = self.hash(user);
        let known = self.known.get_mut(&hash)?;
        known.claimed = Arc::downgrade(&claim);
        known.claimed_at = Some(now);
        lent.claim = Some(claim);
        Some(lent)
    }

    pub(super) fn is_unknown(&self, user: &UserName, mechanism: Mechanism, now: Instant) -> bool {
        let until = self.unknown.get(&self.hash_with(user, mechanism));
        until.is_some_and(|until| now < *until)
    }

    pub(super) fn remember_unknown(
        &mut self,
        user: &UserName,
        mechanism: Mechanism,
        now: Instant,
    ) -> Evicted<Instant> {
        let hash = self.hash_with(user, mechanism);
        self.unknown.insert(hash, now + UNKNOWN_FOR)
    }

    pub(super) fn mechanisms(&mut self, user: &UserName, now: Instant) -> Option<Vec<String>> {
        if let Some(known) = self.known(user, now) {
            return Some(known.credentials.mechanisms.clone());
        }
        let (mechanisms, until) = self.cached_mechanisms(user)?;
        (now < *until).then(|| mechanisms.clone())
    }

    /// The mechanisms of a user, even if they are no longer valid. Used if no server replies.
    pub(super) fn last_mechanisms(&self, user: &UserName) -> Option<Vec<String>> {
        let (mechanisms, _) = self.cached_mechanisms(user)?;
        Some(mechanisms.clone())
    }

    fn cached_mechanisms(&self, user: &UserName) -> Option<&(Vec<String>, Instant)> {
        let hash = self.hash(user);
        let mechanisms = self.mechanisms.get(&hash);
        mechanisms.or_else(|| self.absent.get(&hash))
    }

    pub(super) fn remember_mechanisms(
        &mut self,
        user: &UserName,
        mechanisms: Vec<String>,
        now: Instant,
    ) -> Evicted<(Vec<String>, Instant)> {
        let hash = self.hash(user);
        let (table, other) = match mechanisms.is_empty() {
            true => (&mut self.absent, &mut self.mechanisms),
            false => (&mut self.mechanisms, &mut self.absent),
        };
        other.remove(&hash);
        table.insert(hash, (mechanisms, now + MECHANISMS_FOR))
    }

    /// Records the mechanisms that a server offers to a user with these credentials. `used` is the
    /// mechanism with which the user has just logged in at the server; `None` if the user has not
    /// logged in there. Ignores an empty list, because the user has at least one mechanism. Returns
    /// entries that were evicted.
    pub(super) fn record_offered(
        &mut self,
        user: &UserName,
        credentials: &seawall_auth::Credentials,
        offered: &[String],
        used: Option<Mechanism>,
    ) -> Option<Retired<NameHash, Vec<Mechanism>>> {
        if offered.is_empty() {
            return None;
        }
        let hash = self.hash(user);
        let is_disabled = |mechanism: &Mechanism| {
            credentials.keys(*mechanism).is_some()
                && Some(*mechanism) != used
                && !offered.iter().any(|name| name == mechanism.name())
        };
        let disabled: Vec<_> = Mechanism::ALL.into_iter().filter(is_disabled).collect();
        if disabled.is_empty() {
            self.disabled.remove(&hash);
            return None;
        }
        Some(self.disabled.insert(hash, disabled))
    }

    /// True if a server did not offer a mechanism for which the user had keys
    /// (see [`Self::record_offered`]).
    pub(super) fn has_disabled(&self, user: &UserName) -> bool {
        self.disabled.get(&self.hash(user)).is_some()
    }

    /// Removes the user's keys for mechanisms that the servers do not offer. Otherwise Seawall
    /// would accept a login with such a mechanism, and could not log in at the servers with its
    /// keys. Removes nothing if the user does not have keys for both mechanisms, because the user
    /// could not log in without keys.
    fn without_disabled(
        &self,
        hash: NameHash,
        mut credentials: seawall_auth::Credentials,
    ) -> seawall_auth::Credentials {
        if credentials.sha1.is_none() || credentials.sha256.is_none() {
            return credentials;
        }
        for mechanism in self.disabled.get(&hash).into_iter().flatten() {
            match mechanism {
                Mechanism::ScramSha1 => credentials.sha1 = None,
                Mechanism::ScramSha256 => credentials.sha256 = None,
            }
            let names = &mut credentials.mechanisms;
            names.retain(|name| name != mechanism.name());
        }
        credentials
    }

    /// Stores a user whose keys were requested at `asked_at`. `login` is set if a client has proved
    /// that it knows the ClientKey. If the user's id has not changed, the user keeps its identity.
    /// Returns the user, and entries that were evicted. Stores nothing in two cases:
    ///
    /// - Seawall has learned since `asked_at` that the user was dropped or that a server refuses
    ///   these keys. The returned user is `None`.
    /// - Newer keys are known. The returned user is `None`, except for a `login` that the newer
    ///   keys confirm (same user id, and same keys for its mechanism).
    pub(super) fn learn(
        &mut self,
        user: &UserName,
        credentials: seawall_auth::Credentials,
        login: Option<(ClientKey, ScramKeys)>,
        asked_at: Instant,
    ) -> (Option<Known>, Option<Evicted<Known>>) {
        let hash = self.hash(user);
        let credentials = self.without_disabled(hash, credentials);
        let ended = self.ended.get(&hash);
        if ended.is_some_and(|ended| ended.outdates(&credentials, asked_at)) {
            return (None, None);
        }
        for mechanism in Mechanism::ALL {
            let hash = self.hash_with(user, mechanism);
            self.unknown.remove(&hash);
        }
        let login = login.map(|(client_key, keys)| Login::Keys { client_key, keys });
        let before = self.known(user, asked_at);
        if let Some(newer) = before.as_ref().filter(|b| b.confirmed_at > asked_at) {
            return (newer.prove_older(&credentials, login), None);
        }
        let same = before.filter(|known| known.credentials.user_id == credentials.user_id);
        let doubted_at = same.as_ref().and_then(|known| known.doubted_at);
        // A login keeps its claim on the cached keys if the claim began after this reading was
        // requested.
        let claimed = same
            .as_ref()
            .filter(|known| known.claimed_at.is_some_and(|at| at > asked_at))
            .map(|known| (known.claimed.clone(), known.claimed_at));
        let (claimed, claimed_at) = claimed.unwrap_or_default();
        let identity = self.identity_of(user, &credentials);
        identity.restrict(&credentials.restrictions);
        if let Some(login) = login {
            identity.learn(login);
        }
        let known = Known {
            identity,
            credentials: Arc::new(credentials),
            confirmed_at: asked_at,
            doubted_at: doubted_at.filter(|doubted_at| *doubted_at > asked_at),
            claim: None,
            claimed,
            claimed_at,
            confirmation_tried_at: None,
        };
        let evicted = self.known.insert(hash, known.clone());
        (Some(known), Some(evicted))
    }

    /// Returns the identity for a user's new keys: the identity in use if it has the same user id,
    /// or a new identity. A new identity ends the user's earlier identity.
    fn identity_of(
        &mut self,
        user: &UserName,
        credentials: &seawall_auth::Credentials,
    ) -> Arc<Identity> {
        let user_id = credentials.user_id;
        if let Some(earlier) = self.live_identity(user) {
            if earlier.user_id() == user_id {
                clear_outdated_login(&earlier, credentials);
                return earlier;
            }
            earlier.end(IdentityStatus::Gone);
        }
        let identity = Identity::new(&user.name, &user.source, user_id, Login::Unknown);
        let identity = Arc::new(identity);
        self.live.insert(self.hash(user), &identity);
        identity
    }

    /// Returns a user's identity if it is in use (see [`LiveIdentities`]), even if the user's keys
    /// have expired or were evicted.
    pub(super) fn live_identity(&self, user: &UserName) -> Option<Arc<Identity>> {
        self.live.get(&self.hash(user))
    }

    /// Records that a client has proved that it knows the ClientKey of `checked`. Returns the user
    /// as it is known now. In case of an error, changes nothing.
    ///
    /// # Errors
    /// - [`CredentialError::Refused`] if the user's keys were replaced or its identity ended during
    ///   the login.
    /// - [`CredentialError::Unavailable`] if the keys are no longer in the cache: the proof may
    ///   still be right.
    pub(super) fn prove(
        &mut self,
        user: &UserName,
        checked: &Known,
        mechanism: Mechanism,
        client_key: ClientKey,
        now: Instant,
    ) -> Result<Known, CredentialError> {
        let Some(current) = self.known(user, now) else {
            return Err(match checked.identity.status() {
                IdentityStatus::Good => CredentialError::Unavailable,
                IdentityStatus::Gone | IdentityStatus::Refused => CredentialError::Refused,
            });
        };
        let is_same_user = current.identity.id() == checked.identity.id();
        match current.credentials.keys(mechanism) {
            Some(keys) if is_same_user && checked.credentials.keys(mechanism) == Some(keys) => {
                let keys = keys.clone();
                current.identity.learn(Login::Keys { client_key, keys });
            }
            Some(_) | None => return Err(CredentialError::Refused),
        }
        Ok(current)
    }

    /// Applies the result of reading an identity's keys again. A result for an earlier identity
    /// does not change the current one.
    pub(super) fn confirm(
        &mut self,
        user: &UserName,
        identity: &Arc<Identity>,
        reading: KeyReading,
        asked_at: Instant,
    ) -> Confirmed {
        let hash = self.hash(user);
        let current = self.known.get(&hash);
        let current = current.filter(|known| known.identity.id() == identity.id());
        let (status, refused) = match reading {
            KeyReading::Unavailable => return Confirmed::default(),
            // If `current` is `None`, the keys have expired or were evicted. The reading still
            // counts if clients or pools use the identity.
            KeyReading::Keys(credentials) if current.is_some() || self.is_live(&hash, identity) => {
                let (_, known) = self.learn(user, *credentials, None, asked_at);
                return Confirmed { known, ended: None };
            }
            KeyReading::Keys(_) => return Confirmed::default(),
            KeyReading::Gone => (IdentityStatus::Gone, None),
            // The refused keys were replaced before the refusal arrived.
            KeyReading::Refused(version) if version != identity.login_version() => {
                return Confirmed::default();
            }
            // The cached keys may be outdated. They are removed, so that a server verifies the
            // user's next login. If a router may still accept the keys, they are removed only if a
            // proof has failed against them.
            KeyReading::RefusedByRouters {
                login_version,
                is_undecided,
            } => {
                let is_outdated = |known: &Known| !is_undecided || known.is_doubted();
                if current.is_some_and(is_outdated) && login_version == identity.login_version() {
                    self.known.remove(&hash);
                }
                return Confirmed::default();
            }
            KeyReading::Refused(_) => {
                let refused = current.map(|known| Arc::clone(&known.credentials));
                (IdentityStatus::Refused, refused)
            }
        };
        // If a dropped user's identity is in use, its end is remembered even if the cache has lost
        // the user's keys. Otherwise a late reply could restore the user.
        let is_in_use = status == IdentityStatus::Gone && self.is_live(&hash, identity);
        identity.end(status);
        if current.is_none() && !is_in_use {
            return Confirmed::default();
        }
        self.known.remove(&hash);
        let ended = self.ended.insert(hash, EndedIdentity { asked_at, refused });
        Confirmed {
            known: None,
            ended: Some(ended),
        }
    }

    fn is_live(&self, user: &NameHash, identity: &Identity) -> bool {
        let live = self.live.get(user);
        live.is_some_and(|live| live.id() == identity.id())
    }

    /// Records that a proof failed against the known keys, which may therefore be outdated.
    pub(super) fn doubt(&mut self, user: &UserName, now: Instant) {
        let hash = self.hash(user);
        if let Some(known) = self.known.get_mut(&hash) {
            known.doubted_at = Some(now);
        }
    }

    /// True if a proof failed against the known keys and no server has confirmed them since then.
    pub(super) fn is_doubted(&self, user: &UserName) -> bool {
        let known = self.known.get(&self.hash(user));
        known.is_some_and(Known::is_doubted)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }
}

/// Clears the identity's stored login if this login does not fit the new keys, because an old
/// ClientKey must not be sent to a server.
fn clear_outdated_login(identity: &Identity, credentials: &seawall_auth::Credentials) {
    let Login::Keys { keys, .. } = identity.login() else {
        return;
    };
    let now = credentials.keys(keys.mechanism());
    if now.is_none_or(|now| *now != keys) {
        identity.learn(Login::Unknown);
    }
}

#[cfg(test)]
mod tests;
