//! What is known of users: plain data, bounded. No I/O, no clock.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use crate::auth::{self, ClientKey, Identity, Login, Mechanism, ScramKeys, Standing};

/// Keys older than this are read again before they are used.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// How long a name that the servers do not know is refused without asking again.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// How long the mechanisms of a user that never logged in are believed.
const MECHANISMS_FOR: Duration = Duration::from_secs(5);

/// A user's name and the database it is defined in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::client) struct UserName {
    pub(in crate::client) name: String,
    pub(in crate::client) source: String,
}

/// A user whose keys are known.
#[derive(Clone, Debug)]
pub(in crate::client) struct Known {
    pub(in crate::client) identity: Arc<Identity>,
    pub(in crate::client) credentials: Arc<auth::Credentials>,
    /// When a server was last asked that said so.
    pub(in crate::client) confirmed_at: Instant,
    /// When a proof last failed against these keys, if they have not been confirmed since.
    doubted_at: Option<Instant>,
    /// Held by the one login that goes on with these keys on trust.
    trust: Option<Arc<()>>,
    on_trust: Weak<()>,
    /// When that login took them.
    trusted_at: Option<Instant>,
}

impl Known {
    /// Whether a proof failed against these keys, and they have not been confirmed since.
    pub(in crate::client) fn is_doubted(&self) -> bool {
        self.doubted_at.is_some()
    }

    /// Whether they were confirmed so lately that one login may go on with them on trust.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.confirmed_at);
        !self.is_doubted() && age < FRESH_FOR
    }
}

/// What a server's reading of a user's keys means for what was known.
#[derive(Clone, Debug)]
pub(in crate::client) enum Reading {
    /// The keys as they are now.
    Keys(Box<auth::Credentials>),
    /// The user is no more.
    Gone,
    /// A server refused the keys.
    Refused,
    /// Nothing could be learned.
    Unavailable,
}

/// Bounded tables of users, by name.
#[derive(Debug)]
pub(super) struct Store {
    max_users: usize,
    max_stale: Duration,
    known: HashMap<UserName, Known>,
    /// By mechanism too: a user may have only the other one.
    unknown: HashMap<(UserName, &'static str), Instant>,
    mechanisms: HashMap<UserName, (Vec<String>, Instant)>,
}

impl Store {
    pub(super) fn new(max_users: usize, max_stale: Duration) -> Self {
        Self {
            max_users,
            max_stale,
            known: HashMap::new(),
            unknown: HashMap::new(),
            mechanisms: HashMap::new(),
        }
    }

    /// What is known of a user, unless it has gone unconfirmed for too long.
    pub(super) fn known(&mut self, user: &UserName, now: Instant) -> Option<Known> {
        let known = self.known.get(user)?;
        let is_stale = now.saturating_duration_since(known.confirmed_at) >= self.max_stale;
        if is_stale || known.identity.standing() != Standing::Good {
            self.known.remove(user);
            return None;
        }
        self.known.get(user).cloned()
    }

    /// Known keys for a login that goes on without asking whether they changed meanwhile. One login of a user at
    /// a time, until it is dropped: if they did change, its failure is the one that the others learn from.
    pub(super) fn on_trust(&mut self, user: &UserName, now: Instant) -> Option<Known> {
        let mut lent = self.known(user, now)?;
        if lent.on_trust.strong_count() > 0 {
            return None;
        }
        let trust = Arc::new(());
        let known = self.known.get_mut(user)?;
        known.on_trust = Arc::downgrade(&trust);
        known.trusted_at = Some(now);
        lent.trust = Some(trust);
        Some(lent)
    }

    pub(super) fn is_unknown(&self, user: &UserName, mechanism: Mechanism, now: Instant) -> bool {
        let until = self.unknown.get(&(user.clone(), mechanism.name()));
        until.is_some_and(|until| now < *until)
    }

    pub(super) fn remember_unknown(&mut self, user: UserName, mechanism: Mechanism, now: Instant) {
        bounded(&mut self.unknown, self.max_users, |until| now < *until);
        self.unknown
            .insert((user, mechanism.name()), now + UNKNOWN_FOR);
    }

    pub(super) fn mechanisms(&mut self, user: &UserName, now: Instant) -> Option<Vec<String>> {
        if let Some(known) = self.known(user, now) {
            return Some(known.credentials.mechanisms.clone());
        }
        let (mechanisms, until) = self.mechanisms.get(user)?;
        (now < *until).then(|| mechanisms.clone())
    }

    pub(super) fn remember_mechanisms(
        &mut self,
        user: UserName,
        mechanisms: Vec<String>,
        now: Instant,
    ) {
        bounded(&mut self.mechanisms, self.max_users, |(_, until)| {
            now < *until
        });
        self.mechanisms
            .insert(user, (mechanisms, now + MECHANISMS_FOR));
    }

    /// Takes in a user that was read for the first time, or anew; the identity stays if the user is the same.
    /// `now` is when the server was asked: what was doubted after that, it did not answer.
    pub(super) fn learn(
        &mut self,
        user: UserName,
        credentials: auth::Credentials,
        login: Option<(ClientKey, ScramKeys)>,
        now: Instant,
    ) -> Known {
        self.unknown
            .retain(|(unknown, _), until| *unknown != user && now < *until);
        let login = login.map(|(client_key, keys)| Login::Keys { client_key, keys });
        let same = self
            .known(&user, now)
            .filter(|k| k.credentials.user_id == credentials.user_id);
        let doubted_at = same
            .as_ref()
            .and_then(|known| known.doubted_at)
            .filter(|doubted_at| *doubted_at > now);
        // A reading that was asked for before says nothing to a login on trust that came after.
        let on_trust = same
            .as_ref()
            .filter(|known| known.trusted_at.is_some_and(|at| at > now))
            .map(|known| (known.on_trust.clone(), known.trusted_at));
        let (on_trust, trusted_at) = on_trust.unwrap_or_default();
        let identity = match same {
            Some(known) => {
                keep_fitting_login(&known.identity, &credentials);
                known.identity
            }
            None => {
                if let Some(earlier) = self.known.get(&user) {
                    earlier.identity.end(Standing::Gone);
                }
                let (name, source) = (&user.name, &user.source);
                Arc::new(Identity::new(
                    name,
                    source,
                    credentials.user_id,
                    Login::Unknown,
                ))
            }
        };
        if let Some(login) = login {
            identity.learn(login);
        }
        let known = Known {
            identity,
            credentials: Arc::new(credentials),
            confirmed_at: now,
            doubted_at,
            trust: None,
            on_trust,
            trusted_at,
        };
        bounded(&mut self.known, self.max_users, |known| {
            now.saturating_duration_since(known.confirmed_at) < self.max_stale
        });
        self.known.insert(user, known.clone());
        known
    }

    /// Takes in what a re-reading said of `identity`; what is said of an earlier identity changes nothing.
    pub(super) fn confirm(
        &mut self,
        user: &UserName,
        identity: &Arc<Identity>,
        reading: Reading,
        now: Instant,
    ) {
        let is_current = self
            .known
            .get(user)
            .is_some_and(|known| known.identity.id() == identity.id());
        match reading {
            Reading::Unavailable => {}
            Reading::Keys(credentials) if is_current => {
                self.learn(user.clone(), *credentials, None, now);
            }
            Reading::Keys(_) => {}
            Reading::Gone => self.end(user, identity, Standing::Gone, is_current),
            Reading::Refused => self.end(user, identity, Standing::Refused, is_current),
        }
    }

    fn end(
        &mut self,
        user: &UserName,
        identity: &Arc<Identity>,
        standing: Standing,
        is_current: bool,
    ) {
        identity.end(standing);
        if is_current {
            self.known.remove(user);
        }
    }

    /// A proof failed against what is known.
    pub(super) fn doubt(&mut self, user: &UserName, now: Instant) {
        if let Some(known) = self.known.get_mut(user) {
            known.doubted_at = Some(now);
        }
    }

    /// Whether a proof failed since the servers were last asked.
    pub(super) fn is_doubted(&self, user: &UserName) -> bool {
        self.known.get(user).is_some_and(Known::is_doubted)
    }

    pub(super) fn count(&self) -> usize {
        self.known.len()
    }
}

/// The keys changed: an old ClientKey must not be tried at a server.
fn keep_fitting_login(identity: &Identity, credentials: &auth::Credentials) {
    let Login::Keys { keys, .. } = identity.login() else {
        return;
    };
    let now = credentials.keys(keys.mechanism());
    if now.is_none_or(|now| *now != keys) {
        identity.learn(Login::Unknown);
    }
}

/// Makes room in a full table: what has lapsed first, else any one entry.
fn bounded<K: Clone + Eq + Hash, V>(
    table: &mut HashMap<K, V>,
    max: usize,
    is_live: impl Fn(&V) -> bool,
) {
    if table.len() < max {
        return;
    }
    table.retain(|_, value| is_live(value));
    while table.len() >= max {
        let Some(any) = table.keys().next().cloned() else {
            return;
        };
        table.remove(&any);
    }
}

/// The keys for a mechanism, with the ClientKey that a proof gave up.
pub(in crate::client) fn login_of(
    credentials: &auth::Credentials,
    mechanism: Mechanism,
    client_key: ClientKey,
) -> Option<Login> {
    let keys = credentials.keys(mechanism)?.clone();
    Some(Login::Keys { client_key, keys })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Restrictions, derive_from_password};

    fn user(name: &str) -> UserName {
        UserName {
            name: name.into(),
            source: "admin".into(),
        }
    }

    fn credentials(name: &str, password: &str, user_id: u8) -> (auth::Credentials, ClientKey) {
        let mechanism = Mechanism::ScramSha256;
        let salt = password.repeat(4);
        let derived =
            derive_from_password(mechanism, name, password, salt.as_bytes(), 4096).unwrap();
        let credentials = auth::Credentials {
            user_id: Some([user_id; 16]),
            source: "admin".into(),
            name: name.into(),
            sha1: None,
            sha256: Some(derived.keys),
            restrictions: Restrictions::default(),
            mechanisms: vec![mechanism.name().into()],
        };
        (credentials, derived.client_key)
    }

    fn store() -> Store {
        Store::new(3, Duration::from_secs(300))
    }

    fn learn(store: &mut Store, name: &str, password: &str, user_id: u8, now: Instant) -> Known {
        let (credentials, client_key) = credentials(name, password, user_id);
        let keys = credentials.sha256.clone().unwrap();
        store.learn(user(name), credentials, Some((client_key, keys)), now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_password_keeps_the_identity_and_drops_the_client_key() {
        let (mut store, now) = (store(), Instant::now());
        let before = learn(&mut store, "u", "one", 1, now);
        let (changed, _) = credentials("u", "two", 1);
        store.confirm(
            &user("u"),
            &before.identity,
            Reading::Keys(Box::new(changed)),
            now,
        );
        let after = store.known(&user("u"), now).unwrap();
        assert_eq!(after.identity.id(), before.identity.id());
        assert!(matches!(after.identity.login(), Login::Unknown));
        assert_eq!(after.identity.standing(), Standing::Good);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_begun_before_a_proof_failed_does_not_end_the_doubt() {
        let (mut store, began) = (store(), Instant::now());
        let known = learn(&mut store, "u", "one", 1, began);
        store.doubt(&user("u"), began + Duration::from_millis(2));
        let reading = || Reading::Keys(Box::new(credentials("u", "one", 1).0));
        let asked = began + Duration::from_millis(1);
        store.confirm(&user("u"), &known.identity, reading(), asked);
        assert!(store.is_doubted(&user("u")));
        let asked = began + Duration::from_millis(3);
        store.confirm(&user("u"), &known.identity, reading(), asked);
        assert!(!store.is_doubted(&user("u")));
    }

    #[tokio::test(start_paused = true)]
    async fn one_login_at_a_time_goes_on_with_keys_on_trust() {
        let (mut store, now) = (store(), Instant::now());
        learn(&mut store, "u", "one", 1, now);
        let first = store.on_trust(&user("u"), now);
        assert!(first.is_some());
        assert!(store.on_trust(&user("u"), now).is_none());
        drop(first);
        let second = store.on_trust(&user("u"), now);
        assert!(second.is_some());
        // A reading that was asked for before says nothing to it; one that was asked for since does.
        learn(&mut store, "u", "one", 1, now - Duration::from_millis(1));
        assert!(store.on_trust(&user("u"), now).is_none());
        learn(&mut store, "u", "one", 1, now);
        assert!(store.on_trust(&user("u"), now).is_some());
        drop(second);
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_made_again_is_another_identity_and_the_old_one_is_gone() {
        let (mut store, now) = (store(), Instant::now());
        let before = learn(&mut store, "u", "one", 1, now);
        let after = learn(&mut store, "u", "one", 2, now);
        assert_ne!(after.identity.id(), before.identity.id());
        assert_eq!(before.identity.standing(), Standing::Gone);
        // What is now learned of the old one does not touch the new one.
        store.confirm(&user("u"), &before.identity, Reading::Refused, now);
        assert!(store.known(&user("u"), now).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn refused_keys_are_evicted() {
        let (mut store, now) = (store(), Instant::now());
        let known = learn(&mut store, "u", "one", 1, now);
        store.confirm(&user("u"), &known.identity, Reading::Unavailable, now);
        assert!(store.known(&user("u"), now).is_some());
        store.confirm(&user("u"), &known.identity, Reading::Refused, now);
        assert!(store.known(&user("u"), now).is_none());
        assert_eq!(known.identity.standing(), Standing::Refused);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_unconfirmed_for_too_long_are_dropped() {
        let (mut store, now) = (store(), Instant::now());
        learn(&mut store, "u", "one", 1, now);
        assert!(
            store
                .known(&user("u"), now + Duration::from_secs(299))
                .is_some()
        );
        assert!(
            store
                .known(&user("u"), now + Duration::from_secs(300))
                .is_none()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn tables_stay_within_their_bound() {
        let (mut store, now) = (store(), Instant::now());
        for n in 0..10 {
            learn(&mut store, &format!("u{n}"), "p", n, now);
            store.remember_unknown(user(&format!("x{n}")), Mechanism::ScramSha1, now);
            store.remember_mechanisms(user(&format!("m{n}")), vec![], now);
        }
        assert_eq!(
            (store.count(), store.unknown.len(), store.mechanisms.len()),
            (3, 3, 3)
        );
        let is_unknown = |mechanism, now| store.is_unknown(&user("x9"), mechanism, now);
        assert!(is_unknown(Mechanism::ScramSha1, now));
        assert!(!is_unknown(Mechanism::ScramSha256, now));
        assert!(!is_unknown(Mechanism::ScramSha1, now + UNKNOWN_FOR));
    }
}
