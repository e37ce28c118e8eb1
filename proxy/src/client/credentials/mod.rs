//! Whom to believe: the users' keys, where they come from, and how they are kept fresh.
//!
//! ```text
//!  own      a user's first login is carried to a server (introduction); it reads its own keys
//!  lookup   the service account reads any user's keys
//!  users    a configured password or configured keys; with them Seawall logs in, and the user reads its own keys
//!  none     the deployment has no access control: clients need not log in, and one that does is served as in `own`
//! ```
//!
//! Invariants: a login is accepted only by a proof against keys that a server or the configuration gave, and only if
//! they are still the latest at its last step; the user's restrictions have been read by then, whatever the mode; keys
//! that cannot be confirmed lapse; a user made again is another identity. Readings are single flight for each user,
//! introductions for each user and address; both are bounded over all.

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

use crate::{
    auth::{self, ClientKey, Identity, Mechanism, NonceSource, ScramKeys, Standing},
    connection::{Connection, ServerAddress},
    topology::Topology,
    wire::Sharer,
};

pub use self::mode::{CredentialMode, CredentialSettings, UserSecret};
use self::{conversations::Conversations, flights::Flights, store::Store};
pub(super) use self::{
    introduction::{Carried, Introduction, Secret},
    store::{Known, Reading, UserName},
};

/// Time between two readings of a user's keys, so that many logins at once share them.
const READING_PACE: Duration = Duration::from_millis(5);

/// How long a login waits for that; then the cached keys serve.
const FRESHEN_LIMIT: Duration = Duration::from_millis(20);

/// The same where another login has keys on trust that are no older than a second: both failing would be one too many.
const CONTENDED_LIMIT: Duration = Duration::from_millis(250);

/// The same where a proof has just failed against the cached keys: they are probably old.
const DOUBTED_LIMIT: Duration = Duration::from_millis(500);

/// How long an introduction may take in all, once it has its place.
const INTRODUCTION_LIMIT: Duration = Duration::from_secs(5);

/// How long a login waits for its turn among the introductions. Long, since a delayed login harms no driver,
/// while a refused one clears its pool.
const PLACE_LIMIT: Duration = Duration::from_secs(25);

/// How long a question about a user may take.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// A login that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredentialError {
    /// Code 18: unknown user, wrong proof, or a place the user may not come from.
    #[error("authentication failed")]
    Refused,
    /// No server could be asked.
    #[error("no server could be asked")]
    Unavailable,
}

/// What keys are wanted for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// The user that a client claims to be.
    pub(super) user: &'a UserName,
    /// By which mechanism.
    pub(super) mechanism: Mechanism,
    /// From which address.
    pub(super) sharer: Sharer,
}

/// What the proof of a login is checked with.
pub(super) enum Obtained {
    /// Keys that a server gave.
    Known(Known),
    /// Keys from the configuration. The user's restrictions are not known yet.
    Configured(ScramKeys),
    /// The proof has to be carried to a server.
    Introduce(Introduction),
}

/// Everything about users. One a deployment.
pub struct Credentials {
    settings: CredentialSettings,
    mode: watch::Sender<CredentialMode>,
    anonymous: Arc<Identity>,
    topology: Arc<Topology>,
    nonces: Arc<NonceSource>,
    store: Mutex<Store>,
    introductions: Arc<Flights>,
    readings: Mutex<HashMap<UserName, watch::Receiver<bool>>>,
    /// For exchanges of introductions and lookups with servers, over all users. Not held while a client is waited for.
    exchanges: Arc<Semaphore>,
    /// For questions about users.
    questions: Semaphore,
    /// Introductions that wait for their client.
    conversations: Arc<Conversations<Connection>>,
    /// Unauthenticated connections to use again.
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
    /// Begins; with mode `auto` the mode is found out as soon as the deployment is seen.
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

    /// The mode now.
    pub fn mode(&self) -> CredentialMode {
        *self.mode.borrow()
    }

    /// The mode, waited for where it is still being found out: a login that comes right after the start must not
    /// fail for coming early. Still undecided when the deployment could not be asked within the limit.
    async fn decided_mode(&self) -> CredentialMode {
        let mut mode = self.mode.subscribe();
        let decided = mode.wait_for(|mode| *mode != CredentialMode::Undecided);
        // The channel is ours and stays open, so that the only way to come to nothing is the limit.
        match timeout(QUESTION_LIMIT, decided).await {
            Ok(Ok(mode)) => *mode,
            Ok(Err(_)) | Err(_) => CredentialMode::Undecided,
        }
    }

    /// Users whose keys are known.
    pub fn known_users(&self) -> usize {
        self.store.lock().count()
    }

    /// Everybody's identity, where the deployment asks nobody.
    pub(super) fn anonymous(&self) -> Option<Arc<Identity>> {
        (self.mode() == CredentialMode::None).then(|| Arc::clone(&self.anonymous))
    }

    /// A server wants clients to log in, after all. Clients that have not logged in lose their identity.
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
            tracing::warn!("deployment requires authentication after all");
        }
    }

    /// Fresh keys without waiting, for an answer that must not wait; starts a reading if they are not fresh.
    pub(super) fn fresh(self: &Arc<Self>, user: &UserName, now: Instant) -> Option<Known> {
        let known = self.store.lock().known(user, now)?;
        if known.is_fresh(now) {
            return self.store.lock().on_trust(user, now);
        }
        self.read_again(user, &known.identity);
        None
    }

    /// What a login of `user` goes on with.
    pub(super) async fn obtain(
        self: &Arc<Self>,
        asked: &Asked<'_>,
    ) -> Result<Obtained, CredentialError> {
        let Asked {
            user, mechanism, ..
        } = *asked;
        if let Some(known) = self.freshened(user).await {
            return Ok(Obtained::Known(known));
        }
        match self.decided_mode().await {
            CredentialMode::Own => self.introduction(asked).await,
            CredentialMode::Lookup => self.look_up(user, mechanism).await.map(Obtained::Known),
            CredentialMode::Users => self.obtain_configured(asked).await,
            CredentialMode::None => self.introduction(asked).await,
            CredentialMode::Undecided => Err(CredentialError::Unavailable),
        }
    }

    /// Known keys: fresh ones on trust, or such as were read since the login began, within a short limit; in the
    /// end those that are known then.
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
            // A reading that was under way already, and one begun since: a third would say no more.
            if readings == 2 || now >= began + limit {
                return Some(known);
            }
            let mut done = self.read_again(user, &known.identity);
            let read = timeout_at(began + limit, done.wait_for(|done| *done)).await;
            readings += u32::from(read.is_ok());
        }
    }

    /// Reads a user's keys again in the background; single flight. The receiver turns true at the end.
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
            // What is doubted while the first reading runs needs a second one, begun after it.
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

    /// A server said at `saslStart` that it does not know the user.
    pub(super) fn remember_unknown(&self, user: &UserName, mechanism: Mechanism) {
        let now = Instant::now();
        let evicted = self.store.lock().remember_unknown(user, mechanism, now);
        drop(evicted);
    }

    /// Takes in a user whose keys were asked for at `asked_at` and fit a proof. Keys that are older than the known ones are
    /// refused, and change nothing.
    fn learn(
        &self,
        user: &UserName,
        read: auth::Credentials,
        login: (ClientKey, ScramKeys),
        asked_at: Instant,
    ) -> Result<Known, CredentialError> {
        let learnt = self.store.lock().learn(user, read, Some(login), asked_at);
        let (known, evicted) = learnt;
        drop(evicted);
        known.ok_or(CredentialError::Refused)
    }

    /// A client proved that it has the key that `checked` was about. Keys that were replaced while the client logged in
    /// are refused, and change nothing.
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

    /// A proof failed: perhaps the password was changed.
    pub(super) fn proof_failed(self: &Arc<Self>, user: &UserName, identity: &Arc<Identity>) {
        self.store.lock().doubt(user, Instant::now());
        drop(self.read_again(user, identity));
    }

    /// A server refused an identity's keys of this [`Identity::login_version`] when a connection was being established. Keys
    /// that were replaced since are not affected.
    pub(super) fn keys_refused(&self, identity: &Arc<Identity>, login_version: u64) {
        if identity.is_anonymous() {
            return;
        }
        let user = UserName::of(identity);
        let reading = Reading::Refused(login_version);
        self.take_reading(&user, identity, reading, Instant::now());
    }

    /// A server no longer knows the user of a connection: it was dropped, and nothing brings this user back. Said
    /// at once, since keys that are refused in the meantime would have its clients closed.
    pub(super) fn user_unknown_on_connection(&self, identity: &Arc<Identity>) {
        let user = UserName::of(identity);
        self.take_reading(&user, identity, Reading::Gone, Instant::now());
    }

    /// The mechanisms of a user, asked of a server if nothing is known; empty if there is no such user.
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

    /// The right to introduce a user, or the keys that another's introduction brought meanwhile.
    async fn introduction(
        self: &Arc<Self>,
        asked: &Asked<'_>,
    ) -> Result<Obtained, CredentialError> {
        let Asked {
            user,
            mechanism,
            sharer,
        } = *asked;
        let began = Instant::now();
        let deadline = began + PLACE_LIMIT;
        loop {
            let now = Instant::now();
            if let Some(known) = self.already(user, mechanism, now)? {
                return Ok(Obtained::Known(known));
            }
            if now >= deadline {
                return Err(CredentialError::Unavailable);
            }
            match self.introductions.lead(user, sharer, began) {
                Ok(lead) => return self.introduce(asked, lead, deadline).await,
                Err(wait) => wait.over(deadline).await,
            }
        }
    }

    /// What another's introduction has brought, be it a refusal.
    fn already(
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

    /// Whether a user's client may come from `peer`.
    pub(super) fn permits(known: &Known, peer: Option<IpAddr>) -> bool {
        known.credentials.restrictions.permits(peer)
    }
}

#[cfg(test)]
mod tests;
