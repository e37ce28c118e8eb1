//! Users' keys: where they come from, and how they are kept fresh.
//!
//! ```text
//!  own      a user's first login is carried to a server (introduction) and reads the user's keys
//!  lookup   the service account reads any user's keys
//!  users    Seawall logs in with a configured password or keys and reads the user's keys
//!  none     no access control: clients need not log in; a login works as in `own`
//! ```
//!
//! Invariants: a login succeeds only with a proof against keys from a server or the configuration,
//! and only if these keys are still the latest at its last step. The user's restrictions have been
//! read by then, in every mode. Keys that cannot be confirmed expire. A user that was dropped and
//! created again is a new identity. There is one reading at a time for each user, and one
//! introduction for each user and address; both are bounded over all users.

mod conversations;
mod flights;
mod introduction;
mod mode;
mod reading;
mod store;

use std::{collections::HashMap, fmt, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    time::{Instant, sleep_until, timeout, timeout_at},
};

use crate::topology::Topology;
use seawall_auth::{ClientKey, Identity, Mechanism, NonceSource, ScramKeys, Standing};
use seawall_transport::{
    Sharer,
    connection::{Connection, ServerAddress},
};

pub use self::mode::{CredentialMode, CredentialSettings, UserSecret};
use self::{conversations::Conversations, flights::Flights, store::Store};
pub(super) use self::{
    introduction::{Carried, Introduction, Secret},
    store::{Known, Reading, UserName},
};

/// Shortest time between two readings of a user's keys, so that many logins at once share them.
const READING_PACE: Duration = Duration::from_millis(5);

/// How long a login waits for a new reading. After that, it uses the cached keys.
const FRESHEN_LIMIT: Duration = Duration::from_millis(20);

/// The same limit while another login uses the keys on trust, when they are at most a second old.
/// If the keys have changed, only one login should fail.
const CONTENDED_LIMIT: Duration = Duration::from_millis(250);

/// The same limit after a proof has failed against the cached keys: they are probably outdated.
const DOUBTED_LIMIT: Duration = Duration::from_millis(500);

/// How long an introduction may take in total, once it has its turn.
const INTRODUCTION_LIMIT: Duration = Duration::from_secs(5);

/// How long a login waits for its turn among the introductions. The limit is long: a delayed login
/// harms no driver, but a refused login clears the driver's pool.
const INTRODUCTION_QUEUE_LIMIT: Duration = Duration::from_secs(25);

/// How long a query about a user may take.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// Why a login cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredentialError {
    /// Code 18: unknown user, wrong proof, or an address that the user's restrictions forbid.
    #[error("authentication failed")]
    Refused,
    /// No server was available.
    #[error("no server available")]
    Unavailable,
}

/// A login that needs keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRequest<'a> {
    /// The user that a client claims to be.
    pub(super) user: &'a UserName,
    /// The mechanism of its proof.
    pub(super) mechanism: Mechanism,
    /// The address it comes from.
    pub(super) sharer: Sharer,
}

/// How to check the proof of a login.
pub(super) enum Obtained {
    /// With keys from a server.
    Known(Known),
    /// With keys from the configuration. The user's restrictions are not known yet.
    Configured(ScramKeys),
    /// By a server, to which the proof has to be carried.
    Introduce(Introduction),
}

/// Users of the deployment and their keys.
pub struct Credentials {
    settings: CredentialSettings,
    mode: watch::Sender<CredentialMode>,
    anonymous: Arc<Identity>,
    topology: Arc<Topology>,
    nonces: Arc<NonceSource>,
    store: Mutex<Store>,
    introductions: Arc<Flights>,
    readings: Mutex<HashMap<UserName, watch::Receiver<bool>>>,
    /// Limits exchanges with servers for introductions and lookups, over all users. Not held while
    /// waiting for a client.
    exchanges: Arc<Semaphore>,
    /// Limits queries about users.
    questions: Semaphore,
    /// Introductions that wait for their client.
    conversations: Arc<Conversations<Connection>>,
    /// Unauthenticated connections for reuse.
    spare: Mutex<Vec<(ServerAddress, Connection)>>,
    runtime: Handle,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("mode", &*self.mode.borrow())
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Creates the credentials. With mode `auto`, Seawall determines the mode as soon as it sees
    /// the deployment.
    pub fn start(
        settings: CredentialSettings,
        topology: Arc<Topology>,
        nonces: Arc<NonceSource>,
        runtime: Handle,
    ) -> Arc<Self> {
        let credentials = Arc::new(Self {
            mode: watch::Sender::new(settings.mode),
            anonymous: Arc::new(Identity::anonymous()),
            topology,
            nonces,
            store: Mutex::new(Store::new(settings.max_users, settings.max_stale)),
            introductions: Arc::default(),
            readings: Mutex::default(),
            exchanges: Arc::new(Semaphore::new(settings.introductions)),
            questions: Semaphore::new(settings.introductions),
            conversations: Conversations::new(settings.conversations),
            spare: Mutex::default(),
            runtime: runtime.clone(),
            settings,
        });
        if credentials.mode() == CredentialMode::Undecided {
            runtime.spawn(mode::decide(Arc::downgrade(&credentials)));
        }
        credentials
    }

    /// The current mode.
    pub fn mode(&self) -> CredentialMode {
        *self.mode.borrow()
    }

    /// Waits until the mode is decided: a login right after the start must not fail because it is
    /// early. Returns `Undecided` if the deployment does not reply within [`QUESTION_LIMIT`].
    async fn decided_mode(&self) -> CredentialMode {
        let mut mode = self.mode.subscribe();
        let decided = mode.wait_for(|mode| *mode != CredentialMode::Undecided);
        // The sender is in `self`, so the channel stays open: only the timeout can fail.
        match timeout(QUESTION_LIMIT, decided).await {
            Ok(Ok(mode)) => *mode,
            Ok(Err(_)) | Err(_) => CredentialMode::Undecided,
        }
    }

    /// Number of users whose keys are known.
    pub fn known_users(&self) -> usize {
        self.store.lock().count()
    }

    /// The identity of clients that need no login; `None` if the deployment has access control.
    pub(super) fn anonymous(&self) -> Option<Arc<Identity>> {
        (self.mode() == CredentialMode::None).then(|| Arc::clone(&self.anonymous))
    }

    /// Handles a server that requires a login in mode `none`. Clients that have not logged in lose
    /// their identity.
    pub(super) fn anonymous_refused(&self) {
        self.anonymous.end(Standing::Gone);
        let changed = self.mode.send_if_modified(|mode| {
            let was_none = *mode == CredentialMode::None;
            if was_none {
                *mode = CredentialMode::Own;
            }
            was_none
        });
        if changed {
            tracing::warn!("deployment now requires authentication");
        }
    }

    /// Returns fresh keys without waiting. Starts a reading if the keys are not fresh.
    pub(super) fn fresh(self: &Arc<Self>, user: &UserName, now: Instant) -> Option<Known> {
        let known = self.store.lock().known(user, now)?;
        if known.is_fresh(now) {
            return self.store.lock().on_trust(user, now);
        }
        self.read_again(user, &known.identity);
        None
    }

    /// Obtains what a login needs to continue.
    pub(super) async fn obtain(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
    ) -> Result<Obtained, CredentialError> {
        let KeyRequest {
            user, mechanism, ..
        } = *request;
        if let Some(known) = self.freshened(user).await {
            return Ok(Obtained::Known(known));
        }
        match self.decided_mode().await {
            CredentialMode::Own => self.introduction(request).await,
            CredentialMode::Lookup => self.look_up(user, mechanism).await.map(Obtained::Known),
            CredentialMode::Users => self.obtain_configured(request).await,
            CredentialMode::None => self.introduction(request).await,
            CredentialMode::Undecided => Err(CredentialError::Unavailable),
        }
    }

    /// Known keys: fresh ones on trust, or keys that were read since the login began. After a short
    /// limit, the keys that are known then.
    async fn freshened(self: &Arc<Self>, user: &UserName) -> Option<Known> {
        let began = Instant::now();
        let mut readings = 0;
        loop {
            let now = Instant::now();
            let known = self.store.lock().known(user, now)?;
            if known.confirmed_at >= began {
                return Some(known);
            }
            let is_fresh = known.is_fresh(now);
            if is_fresh && let Some(lent) = self.store.lock().on_trust(user, now) {
                return Some(lent);
            }
            let limit = match (known.is_doubted(), is_fresh) {
                (true, _) => DOUBTED_LIMIT,
                (false, true) => CONTENDED_LIMIT,
                (false, false) => FRESHEN_LIMIT,
            };
            // One reading was in progress already, and one has begun since: a third would add
            // nothing.
            if readings == 2 || now >= began + limit {
                return Some(known);
            }
            let mut done = self.read_again(user, &known.identity);
            let read = timeout_at(began + limit, done.wait_for(|done| *done)).await;
            readings += u32::from(read.is_ok());
        }
    }

    /// Reads a user's keys again in the background, one reading at a time. The receiver turns true
    /// at the end.
    pub(super) fn read_again(
        self: &Arc<Self>,
        user: &UserName,
        identity: &Arc<Identity>,
    ) -> watch::Receiver<bool> {
        let mut readings = self.readings.lock();
        if let Some(running) = readings.get(user) {
            return running.clone();
        }
        let (sender, receiver) = watch::channel(false);
        readings.insert(user.clone(), receiver.clone());
        drop(readings);
        let (me, user, identity) = (Arc::clone(self), user.clone(), Arc::clone(identity));
        self.runtime.spawn(async move {
            let last = me.store.lock().known(&user, Instant::now());
            if let Some(last) = last {
                sleep_until(last.confirmed_at + READING_PACE).await;
            }
            // If a proof fails while the first reading runs, a second one must begin after it.
            for _ in 0..2 {
                let asked_at = Instant::now();
                let reading = timeout(QUESTION_LIMIT, me.read(&user, &identity)).await;
                let reading = reading.unwrap_or(Reading::Unavailable);
                me.take_reading(&user, &identity, reading, asked_at);
                if !me.store.lock().is_doubted(&user) {
                    break;
                }
            }
            me.readings.lock().remove(&user);
            sender.send_replace(true);
        });
        receiver
    }

    fn take_reading(
        &self,
        user: &UserName,
        identity: &Arc<Identity>,
        reading: Reading,
        asked_at: Instant,
    ) {
        let evicted = self.store.lock().confirm(user, identity, reading, asked_at);
        drop(evicted);
        if identity.standing() != Standing::Good {
            tracing::info!(user = %user.name, source = %user.source, "user's keys dropped");
            for pool in &self.topology.snapshot().pools {
                pool.forget(identity.id());
            }
        }
    }

    /// Remembers that a server did not know the user at `saslStart`.
    pub(super) fn remember_unknown(&self, user: &UserName, mechanism: Mechanism) {
        let now = Instant::now();
        let evicted = self.store.lock().remember_unknown(user, mechanism, now);
        drop(evicted);
    }

    /// Stores a user whose keys were requested at `asked_at` and match a proof. Older keys that
    /// differ from the known ones are refused and change nothing.
    fn learn(
        &self,
        user: &UserName,
        read: seawall_auth::Credentials,
        login: (ClientKey, ScramKeys),
        asked_at: Instant,
    ) -> Result<Known, CredentialError> {
        let learnt = self.store.lock().learn(user, read, Some(login), asked_at);
        let (known, evicted) = learnt;
        drop(evicted);
        known.ok_or(CredentialError::Refused)
    }

    /// Records that a client proved to have the key of `checked`. If its keys were replaced during
    /// the login, the login is refused and nothing changes.
    pub(super) fn prove(
        &self,
        user: &UserName,
        checked: &Known,
        mechanism: Mechanism,
        client_key: ClientKey,
    ) -> Result<Known, CredentialError> {
        let now = Instant::now();
        let proven = (self.store.lock()).prove(user, checked, mechanism, client_key, now);
        proven.ok_or(CredentialError::Refused)
    }

    /// Handles a failed proof: the password may have changed, so the keys are read again.
    pub(super) fn proof_failed(self: &Arc<Self>, user: &UserName, identity: &Arc<Identity>) {
        self.store.lock().doubt(user, Instant::now());
        drop(self.read_again(user, identity));
    }

    /// Handles a server that refused an identity's keys while a connection was established.
    /// `login_version` is the [`Identity::login_version`] of these keys. Keys that were replaced
    /// since are not affected.
    pub(super) fn keys_refused(&self, identity: &Arc<Identity>, login_version: u64) {
        if identity.is_anonymous() {
            return;
        }
        let user = UserName::of(identity);
        let reading = Reading::Refused(login_version);
        self.take_reading(&user, identity, reading, Instant::now());
    }

    /// Handles a server that no longer knows a connection's user. The user was dropped and cannot
    /// come back. This is recorded at once: if a server refused the user's keys first, the user's
    /// clients would be closed.
    pub(super) fn user_unknown_on_connection(&self, identity: &Arc<Identity>) {
        let user = UserName::of(identity);
        self.take_reading(&user, identity, Reading::Gone, Instant::now());
    }

    /// The mechanisms of a user; empty if there is no such user. Asks a server if nothing is
    /// cached.
    pub(super) async fn mechanisms(&self, user: &UserName) -> Result<Vec<String>, CredentialError> {
        let now = Instant::now();
        if let Some(mechanisms) = self.store.lock().mechanisms(user, now) {
            return Ok(mechanisms);
        }
        let asked = timeout(QUESTION_LIMIT, self.ask_mechanisms(user)).await;
        let mechanisms = asked.map_err(|_| CredentialError::Unavailable)??;
        let (known, now) = (mechanisms.clone(), Instant::now());
        let evicted = self.store.lock().remember_mechanisms(user, known, now);
        drop(evicted);
        Ok(mechanisms)
    }

    /// The right to introduce a user, or the keys from a concurrent introduction.
    async fn introduction(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
    ) -> Result<Obtained, CredentialError> {
        let KeyRequest {
            user,
            mechanism,
            sharer,
        } = *request;
        let began = Instant::now();
        let deadline = began + INTRODUCTION_QUEUE_LIMIT;
        loop {
            let now = Instant::now();
            if let Some(known) = self.concurrent_result(user, mechanism, now)? {
                return Ok(Obtained::Known(known));
            }
            if now >= deadline {
                return Err(CredentialError::Unavailable);
            }
            match self.introductions.lead(user, sharer, began) {
                Ok(lead) => return self.introduce(request, lead, deadline).await,
                Err(wait) => wait.over(deadline).await,
            }
        }
    }

    /// Result of a concurrent introduction: keys, a refusal, or nothing yet.
    fn concurrent_result(
        &self,
        user: &UserName,
        mechanism: Mechanism,
        now: Instant,
    ) -> Result<Option<Known>, CredentialError> {
        let mut store = self.store.lock();
        match store.known(user, now) {
            Some(known) => Ok(Some(known)),
            None if store.is_unknown(user, mechanism, now) => Err(CredentialError::Refused),
            None => Ok(None),
        }
    }

    /// True if the user's restrictions allow a client at `peer`.
    pub(super) fn permits(known: &Known, peer: Option<IpAddr>) -> bool {
        known.credentials.restrictions.permits(peer)
    }
}

#[cfg(test)]
mod tests;
