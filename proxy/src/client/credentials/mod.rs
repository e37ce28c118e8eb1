//! Users' SCRAM keys: where Seawall gets them, and how it keeps them fresh.
//!
//! ```text
//!  own      Seawall forwards a user's first login to a server and then reads the user's keys on
//!           the same connection
//!  lookup   the service account reads any user's keys
//!  users    Seawall logs in with a configured password or keys and reads the user's keys
//!  none     no access control: clients need not log in; a login works as in `own`
//! ```
//!
//! Invariants:
//!
//! - A login succeeds only if its proof matches keys from a server or the configuration. At the
//!   last step of the login, these keys must still be the latest ones.
//! - In every mode, the user's restrictions have been read before a login succeeds.
//! - Keys that cannot be confirmed expire.
//! - A user that was dropped and created again gets a new identity.
//! - Each user has at most one reading (a request for its keys) at a time, and at most one first
//!   login for each address, not counting stalled first logins. The number of readings and first
//!   logins of all users is bounded.

mod conversations;
mod first_login;
mod flights;
mod live;
mod mode;
mod reading;
mod spares;
mod store;

use std::{collections::HashMap, fmt, net::IpAddr, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use crate::{limits::Turns, runtime::OccasionalLog, topology::Topology};
use seawall_auth::{ClientKey, Identity, IdentityStatus, Mechanism, NonceSource, ScramKeys};
use seawall_locks::{Mutex, RwLock};
use seawall_transport::{Sharer, connection::Connection};

pub use self::mode::CredentialMode;
pub(crate) use self::mode::{ConfiguredUser, CredentialSettings, UserSecret};
use self::{
    conversations::Conversations,
    flights::{FirstLoginWait, Flights},
    spares::Spares,
    store::{FRESH_FOR, Store},
};
pub(super) use self::{
    first_login::{Carried, FirstLogin, Secret},
    store::{KeyReading, Known, MAX_SOURCE_BYTES, UserName},
};

/// Minimum time between two requests to a server for a user's keys, if the first request succeeded.
/// Logins that need new keys during this time share the second request. If a login failed while the
/// first request was in progress, the second request follows at once.
const READING_PACE: Duration = Duration::from_millis(5);

/// How long a login waits until a server has returned the user's keys again, if the cached keys are
/// more than a second old. After that, the login uses the cached keys.
const FRESHEN_LIMIT: Duration = Duration::from_millis(20);

/// How long a login waits until a server has returned the user's keys again. This limit applies if
/// the cached keys are at most a second old, but another login uses them. The limit is longer than
/// [`FRESHEN_LIMIT`]: if the password has changed, the other login fails with the cached keys, and
/// this login should get the new keys instead.
const CONTENDED_LIMIT: Duration = Duration::from_millis(250);

/// How long a login waits until a server has returned the user's keys again. This limit applies if
/// the proof of an earlier login has failed against the cached keys. It is longer than
/// [`FRESHEN_LIMIT`] and [`CONTENDED_LIMIT`], because the cached keys are probably outdated.
const DOUBTED_LIMIT: Duration = Duration::from_millis(500);

/// How long a first login (see [`first_login`]) may take. The wait in the queue before the first
/// login does not count.
const FIRST_LOGIN_LIMIT: Duration = Duration::from_secs(5);

/// How long a login of an unknown user waits until it may become the first login. The limit is
/// long: a delayed login harms no driver, but a refused login makes the driver clear its pool.
const FIRST_LOGIN_QUEUE_LIMIT: Duration = Duration::from_secs(25);

/// Time limit of a query to a server about a user. Also the maximum time that a login waits until
/// the credential mode (see [`mode`]) is decided.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// How long a query for the mechanisms of a user may take if Seawall does not depend on the reply,
/// because it remembers the mechanisms from an earlier time or has read the user's keys. A driver
/// that waits too long for the reply to its `hello` clears its pool.
const KNOWN_QUESTION_LIMIT: Duration = Duration::from_millis(250);

/// [`Credentials::confirm_old_keys`] begins no further reading while this number of readings is in
/// progress.
const MAX_CONFIRMATIONS: usize = 8;

/// The reason why a login cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredentialError {
    /// Code 18: unknown user, wrong proof, or an address that the user's restrictions forbid.
    #[error("authentication failed")]
    Refused,
    /// No server could check the login in time, for example because no server was available.
    #[error("no server could check the login in time")]
    Unavailable,
}

/// A request for the keys that a login needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRequest<'a> {
    /// The user that a client claims to be.
    pub(super) user: &'a UserName,
    /// The SASL mechanism of the login.
    pub(super) mechanism: Mechanism,
    /// The address of the client.
    pub(super) sharer: Sharer,
}

/// The way in which a login's proof is checked.
pub(super) enum Obtained {
    /// Seawall checks the proof against keys that were read from a server.
    Known(Known),
    /// Seawall checks the proof against configured keys. The user's restrictions are not known yet.
    Configured(ScramKeys),
    /// Seawall does not know the user's keys, so it sends the proof to a server, which checks the
    /// proof.
    FirstLogin(FirstLogin),
}

/// Users of the deployment and their keys.
pub struct Credentials {
    /// The users in the configuration, with their secrets.
    users: RwLock<HashMap<UserName, UserSecret>>,
    mode: watch::Sender<CredentialMode>,
    /// The identity of clients that need no login.
    anonymous: Arc<Identity>,
    topology: Arc<Topology>,
    nonces: Arc<NonceSource>,
    store: Mutex<Store>,
    first_logins: Arc<Flights>,
    /// The readings in progress, by the user whose keys Seawall reads from a server again. The
    /// value of a receiver becomes true when the reading has ended.
    readings: Mutex<HashMap<UserName, watch::Receiver<bool>>>,
    /// Limits the number of concurrent exchanges with servers (a request and its reply): each
    /// exchange takes one of these turns. The first logins of all users share this limit with the
    /// lookups of unknown users (readings of their keys through the service account). A reading
    /// that confirms the keys of a known user takes no turn. The addresses of waiting clients are
    /// served round-robin. A first login holds no turn while it waits for its client.
    exchanges: Turns,
    /// Limits the number of concurrent queries about users' mechanisms: each query takes one of
    /// these turns. The addresses of waiting clients are served round-robin. Otherwise one address
    /// could delay all others, because a client needs no login for such a query.
    questions: Turns,
    /// First logins that wait for the proof of their client.
    conversations: Arc<Conversations<Connection>>,
    /// Unauthenticated server connections for reuse.
    spares: Mutex<Spares>,
    /// Counts readings of keys through the service account that failed for a reason that does not
    /// concern the user. At most one a minute is logged.
    failed_lookups: OccasionalLog,
    /// Counts readings in which a user could not read its own keys. At most one a minute is logged.
    failed_readings: OccasionalLog,
    /// Counts first logins that a server accepted and Seawall refused. At most one a minute is
    /// logged.
    refused_first_logins: OccasionalLog,
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
    /// Creates the credentials. If the mode is [`CredentialMode::Undecided`], starts a task that
    /// determines the mode as soon as the servers of the deployment can be reached.
    pub(crate) fn start(
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
            first_logins: Arc::default(),
            readings: Mutex::default(),
            exchanges: Turns::new(settings.first_logins),
            questions: Turns::new(settings.first_logins),
            conversations: Conversations::new(settings.conversations),
            spares: Mutex::default(),
            failed_lookups: OccasionalLog::default(),
            failed_readings: OccasionalLog::default(),
            refused_first_logins: OccasionalLog::default(),
            runtime: runtime.clone(),
            users: RwLock::new(mode::by_name(settings.users)),
        });
        if credentials.mode() == CredentialMode::Undecided {
            runtime.spawn(mode::decide(Arc::downgrade(&credentials)));
        }
        credentials
    }

    /// Applies the limits and the configured users of a changed configuration. The mode does not
    /// change.
    ///
    /// In the mode `users`, a user that is no longer configured counts as dropped. A user whose
    /// configured secret has changed keeps its identity: the keys that were read from a server stay
    /// valid as long as the server confirms them.
    pub(crate) fn configure(&self, settings: CredentialSettings) {
        self.exchanges.set_count(settings.first_logins);
        self.questions.set_count(settings.first_logins);
        self.conversations.set_max(settings.conversations);
        self.store
            .lock()
            .set_limits(settings.max_users, settings.max_stale);
        let users = mode::by_name(settings.users);
        let earlier = std::mem::replace(&mut *self.users.write(), users);
        if self.mode() != CredentialMode::Users {
            return;
        }
        let now = Instant::now();
        let removed = earlier.keys().filter(|user| !self.may_be_known(user));
        for user in removed {
            let identity = self.store.lock().live_identity(user);
            if let Some(identity) = identity {
                self.apply_reading(user, &identity, KeyReading::Gone, now);
            }
        }
    }

    /// The current mode, which says where Seawall gets users' keys.
    pub fn mode(&self) -> CredentialMode {
        *self.mode.borrow()
    }

    /// Waits until the mode is decided, so that a login right after the start of Seawall does not
    /// fail. Returns `Undecided` if the deployment does not reply within [`QUESTION_LIMIT`].
    async fn decided_mode(&self) -> CredentialMode {
        let mut mode = self.mode.subscribe();
        let decided = mode.wait_for(|mode| *mode != CredentialMode::Undecided);
        // The wait fails only at the timeout: the channel stays open, because `self` has the
        // sender.
        match timeout(QUESTION_LIMIT, decided).await {
            Ok(Ok(mode)) => *mode,
            Ok(Err(_)) | Err(_) => CredentialMode::Undecided,
        }
    }

    /// Number of users whose keys are known.
    #[cfg(test)]
    fn known_users(&self) -> usize {
        self.store.lock().count()
    }

    /// The identity of clients that need no login; `None` if the deployment has access control.
    pub(super) fn anonymous(&self) -> Option<Arc<Identity>> {
        (self.mode() == CredentialMode::None).then(|| Arc::clone(&self.anonymous))
    }

    /// Records that a server requires a login although the mode is `none`. The mode becomes `own`,
    /// and clients that have not logged in lose their identity.
    pub(super) fn record_anonymous_refusal(&self) {
        self.anonymous.end(IdentityStatus::Gone);
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

    /// Returns a user's cached keys without waiting, if they are fresh ([`Known::is_fresh`]) and no
    /// other login uses them. Otherwise returns `None`. If the keys are known but not fresh, also
    /// starts to read them from a server again.
    pub(super) fn fresh(self: &Arc<Self>, user: &UserName, now: Instant) -> Option<Known> {
        if !self.may_be_known(user) {
            return None;
        }
        let known = self.store.lock().known(user, now)?;
        if known.is_fresh(now) {
            return self.store.lock().claim_cached(user, now);
        }
        self.read_again(user, &known.identity);
        None
    }

    /// Determines how a login's proof is checked: by Seawall, against known or configured keys, or
    /// by a server.
    pub(super) async fn obtain(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
    ) -> Result<Obtained, CredentialError> {
        if self.may_be_known(request.user)
            && let Some(known) = self.freshened(request.user, Duration::ZERO).await
        {
            return Ok(Obtained::Known(known));
        }
        // The future is boxed, because each client that logs in would need memory for it, and most
        // users are known.
        Box::pin(self.obtain_unknown(request)).await
    }

    /// Like [`Self::obtain`], for a user that is not known.
    async fn obtain_unknown(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
    ) -> Result<Obtained, CredentialError> {
        match self.decided_mode().await {
            CredentialMode::Own => self.first_login(request).await,
            CredentialMode::Lookup => self.look_up(request).await.map(Obtained::Known),
            CredentialMode::Users => self.obtain_configured(request).await,
            CredentialMode::None => self.first_login(request).await,
            CredentialMode::Undecided => Err(CredentialError::Unavailable),
        }
    }

    /// Returns the keys of a known user for a login that begins now; `None` if the user is not
    /// known.
    ///
    /// Returns the cached keys at once if they are fresh and no other login uses them. Otherwise
    /// waits until a server has returned the keys again. The request for these keys must have been
    /// sent after the login began. Still returns the cached keys in two cases:
    ///
    /// - The wait takes too long. A wait shorter than `least` does not count as too long.
    /// - Two readings have ended without such newer keys.
    async fn freshened(self: &Arc<Self>, user: &UserName, least: Duration) -> Option<Known> {
        let began = Instant::now();
        let mut readings = 0;
        loop {
            let now = Instant::now();
            let known = self.store.lock().known(user, now)?;
            if known.confirmed_at >= began {
                return Some(known);
            }
            let is_fresh = known.is_fresh(now);
            if is_fresh && let Some(lent) = self.store.lock().claim_cached(user, now) {
                return Some(lent);
            }
            let limit = match (known.is_doubted(), is_fresh) {
                (true, _) => DOUBTED_LIMIT,
                (false, true) => CONTENDED_LIMIT,
                (false, false) => FRESHEN_LIMIT,
            }
            .max(least);
            // The first reading may have begun before this login, but the second reading began
            // after this login. A third reading would not help.
            if readings == 2 || now >= began + limit {
                return Some(known);
            }
            let mut done = self.read_again(user, &known.identity);
            let read = timeout_at(began + limit, done.wait_for(|done| *done)).await;
            readings += u32::from(read.is_ok());
        }
    }

    /// If a login has waited long for its client, the keys of its challenge may be outdated. Then
    /// reads the user's keys again. The login began at `began`, and `checked` has the keys of its
    /// challenge. The client was slow, so this reading may take longer than a reading before a
    /// challenge.
    pub(super) async fn freshen_for_proof(
        self: &Arc<Self>,
        user: &UserName,
        checked: &Known,
        began: Instant,
    ) {
        let now = Instant::now();
        let has_waited = now.saturating_duration_since(began) >= FRESH_FOR;
        if has_waited && !checked.is_fresh(now) {
            drop(Box::pin(self.freshened(user, DOUBTED_LIMIT)).await);
        }
    }

    /// Starts to read a user's keys again in the background, unless such a reading is in progress.
    /// The receiver's value becomes true when the keys have been read or could not be read.
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
            // If a proof fails while the first reading runs, this reading may return keys from
            // before a change of the password. So a second reading begins after the failure.
            for _ in 0..2 {
                let asked_at = Instant::now();
                let reading = timeout(QUESTION_LIMIT, me.read(&user, &identity)).await;
                let reading = reading.unwrap_or(KeyReading::Unavailable);
                me.apply_reading(&user, &identity, reading, asked_at);
                if !me.store.lock().is_doubted(&user) {
                    break;
                }
            }
            me.readings.lock().remove(&user);
            sender.send_replace(true);
        });
        receiver
    }

    /// Applies `reading`, the result of a request for a user's keys. The request was sent at
    /// `asked_at`. If the result contains keys, the logins that wait for a first login of the user
    /// continue. If the result ends the identity, the pools close the identity's connections.
    fn apply_reading(
        &self,
        user: &UserName,
        identity: &Arc<Identity>,
        reading: KeyReading,
        asked_at: Instant,
    ) {
        let has_keys = matches!(reading, KeyReading::Keys(_));
        let evicted = self.store.lock().confirm(user, identity, reading, asked_at);
        drop(evicted);
        if has_keys {
            self.first_logins.resolve(user);
        }
        if identity.status() != IdentityStatus::Good {
            tracing::info!(user = %user.name, source = %user.source, "dropped the user's cached keys");
            for pool in &self.topology.snapshot().pools {
                pool.forget(identity.id());
            }
        }
    }

    /// Remembers for a short time that logins of this user with this mechanism must be refused.
    /// Called after a server has refused the `saslStart`, or after the service account has found
    /// that the user does not exist or has no usable keys.
    pub(super) fn remember_unknown(&self, user: &UserName, mechanism: Mechanism) {
        let now = Instant::now();
        let evicted = self.store.lock().remember_unknown(user, mechanism, now);
        drop(evicted);
        self.first_logins.resolve(user);
    }

    /// Stores a user whose keys were requested at `asked_at` and match a proof. Returns an error
    /// and changes nothing in two cases:
    ///
    /// - Newer keys are known and differ from these keys.
    /// - Seawall has learned since `asked_at` that the user was dropped or that a server refuses
    ///   these keys.
    ///
    /// If the user is no longer configured, returns an error and ends the user's identity.
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
        let known = known.ok_or(CredentialError::Refused)?;
        self.first_logins.resolve(user);
        // A reload may have removed the user from the configuration during the user's login.
        if !self.may_be_known(user) {
            self.apply_reading(user, &known.identity, KeyReading::Gone, Instant::now());
            return Err(CredentialError::Refused);
        }
        Ok(known)
    }

    /// Records that a client has proved that it knows the ClientKey of `checked`. If the user's
    /// keys were replaced or are no longer cached, returns an error and changes nothing
    /// ([`Store::prove`]).
    pub(super) fn prove(
        &self,
        user: &UserName,
        checked: &Known,
        mechanism: Mechanism,
        client_key: ClientKey,
    ) -> Result<Known, CredentialError> {
        let now = Instant::now();
        let mut store = self.store.lock();
        store.prove(user, checked, mechanism, client_key, now)
    }

    /// Records that a proof has failed. The password may have changed, so the keys are read again.
    pub(super) fn record_failed_proof(self: &Arc<Self>, user: &UserName, identity: &Arc<Identity>) {
        self.store.lock().doubt(user, Instant::now());
        drop(self.read_again(user, identity));
    }

    /// Asks servers to confirm the keys of users that have connected clients, if no server has
    /// confirmed the keys for half of the time after which they expire. Without the confirmation,
    /// the keys would expire, and Seawall could check no login of these users while the servers do
    /// not reply.
    fn confirm_old_keys(self: &Arc<Self>, now: Instant) {
        let room = MAX_CONFIRMATIONS.saturating_sub(self.readings.lock().len());
        let due = self.store.lock().due_for_confirmation(room, now);
        let pools = &self.topology.snapshot().pools;
        for identity in due {
            let holders = pools
                .iter()
                .filter_map(|pool| pool.available_of(identity.id()));
            let holders: Vec<usize> = holders.collect();
            // The store, this function and each pool in `holders` have one reference. All further
            // references belong to clients.
            let has_clients = Arc::strong_count(&identity) > 2 + holders.len();
            // A user without an idle connection gets no new connection, because a new connection
            // could displace a connection of an active user.
            let is_readable = self.mode() == CredentialMode::Lookup
                || holders.iter().any(|available| *available > 0);
            if has_clients && is_readable {
                drop(self.read_again(&UserName::of(&identity), &identity));
            }
        }
    }

    /// Records that a server refused an identity's keys when Seawall established a connection.
    /// `login_version` is the [`Identity::login_version`] of the refused keys. If these keys were
    /// replaced in the meantime, nothing changes.
    pub(super) fn record_refused_keys(&self, identity: &Arc<Identity>, login_version: u64) {
        if identity.is_anonymous() {
            return;
        }
        let user = UserName::of(identity);
        let reading = KeyReading::Refused(login_version);
        self.apply_reading(&user, identity, reading, Instant::now());
    }

    /// Handles the case that a server refused an identity's keys, but the server's data about users
    /// may be outdated. Waits until the keys have been read again on the primary or on a router, or
    /// until `deadline`. If the primary refuses the keys too, the identity ends. A refusal by
    /// routers never ends the identity.
    pub(super) async fn keys_refused_by_lagging_server(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        deadline: Instant,
    ) {
        let mut done = self.read_again(&UserName::of(identity), identity);
        // Without a result in time, the identity stays usable.
        drop(timeout_at(deadline, done.wait_for(|done| *done)).await);
    }

    /// Records that a server no longer knows the user of a connection, because the user was
    /// dropped. Gives the identity the status [`IdentityStatus::Gone`] at once, so that the user's
    /// clients get an error. If the identity were still usable, the next login to a server would
    /// fail. The status would then become [`IdentityStatus::Refused`], and Seawall would close the
    /// user's clients.
    pub(super) fn record_dropped_user(&self, identity: &Arc<Identity>) {
        let user = UserName::of(identity);
        self.apply_reading(&user, identity, KeyReading::Gone, Instant::now());
    }

    /// Returns the mechanisms that Seawall offers for a user: those that the server lists and that
    /// [`Self::may_offer`] allows. The list is empty if the user does not exist. `sharer` is the
    /// address or user of the client that needs the mechanisms.
    pub(super) async fn mechanisms(
        &self,
        user: &UserName,
        sharer: Sharer,
    ) -> Result<Vec<String>, CredentialError> {
        let mut mechanisms = self.server_mechanisms(user, sharer).await?;
        mechanisms.retain(|name| {
            Mechanism::parse(name).is_none_or(|mechanism| self.may_offer(user, mechanism))
        });
        Ok(mechanisms)
    }

    /// Returns the mechanisms that the server lists for a user, from the cache or from a server. If
    /// no server replies in time, returns the last known mechanisms.
    async fn server_mechanisms(
        &self,
        user: &UserName,
        sharer: Sharer,
    ) -> Result<Vec<String>, CredentialError> {
        let now = Instant::now();
        let (valid, last) = {
            let mut store = self.store.lock();
            (store.mechanisms(user, now), store.last_mechanisms(user))
        };
        if let Some(mechanisms) = valid {
            return Ok(mechanisms);
        }
        // An empty list means that the user did not exist at that time, so the list is not used.
        let last = last.filter(|mechanisms| !mechanisms.is_empty());
        let limit = match last {
            Some(_) => KNOWN_QUESTION_LIMIT,
            None => QUESTION_LIMIT,
        };
        let asking = Box::pin(self.ask_mechanisms(user, sharer));
        let asked = timeout(limit, asking).await;
        let asked = asked.unwrap_or(Err(CredentialError::Unavailable));
        let Ok(mechanisms) = asked else {
            return last.ok_or(CredentialError::Unavailable);
        };
        let (known, now) = (mechanisms.clone(), Instant::now());
        let evicted = self.store.lock().remember_mechanisms(user, known, now);
        drop(evicted);
        Ok(mechanisms)
    }

    /// Waits until this login may become the first login of its user. Returns the first login, or
    /// the keys if another login has made the user known during the wait.
    async fn first_login(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
    ) -> Result<Obtained, CredentialError> {
        let KeyRequest {
            user,
            mechanism,
            sharer,
        } = *request;
        let began = Instant::now();
        let deadline = began + FIRST_LOGIN_QUEUE_LIMIT;
        loop {
            let now = Instant::now();
            if let Some(known) = self.concurrent_result(user, mechanism, now)? {
                return Ok(Obtained::Known(known));
            }
            match self.first_logins.lead(user, sharer, began) {
                Ok(lead) => return self.begin_first_login(request, lead, deadline).await,
                Err(_) if now >= deadline => return Err(CredentialError::Unavailable),
                Err(wait) => {
                    if let Some(known) = self.wait_unless_known(request, *wait, deadline).await? {
                        return Ok(Obtained::Known(known));
                    }
                }
            }
        }
    }

    /// Waits while other clients log in as this user for the first time. Then returns `None`, and
    /// this login should try again to become the first login. If the user became known before
    /// `wait` was created, returns the keys at once. If another login had already found that the
    /// user is unknown, returns an error at once. (`wait` is notified only of later results.)
    async fn wait_unless_known(
        &self,
        request: &KeyRequest<'_>,
        wait: FirstLoginWait,
        deadline: Instant,
    ) -> Result<Option<Known>, CredentialError> {
        let now = Instant::now();
        let known = self.concurrent_result(request.user, request.mechanism, now)?;
        if known.is_none() {
            wait.wait(deadline).await;
        }
        Ok(known)
    }

    /// Runs an exchange with a server in a task of its own. If the client disconnects and this
    /// future is dropped, the exchange continues, because its success makes the user known for the
    /// next logins. Otherwise the user might never become known in a storm of clients with short
    /// timeouts.
    async fn run_to_end<T: Send + 'static>(
        &self,
        exchange: impl Future<Output = Result<T, CredentialError>> + Send + 'static,
    ) -> Result<T, CredentialError> {
        let ended = self.runtime.spawn(exchange).await;
        // The task has no result only if it panicked or if the runtime stops.
        ended.unwrap_or(Err(CredentialError::Unavailable))
    }

    /// Returns the user's keys if another login has made the user known, and `None` if the user is
    /// not known yet. The error means that another login has found that the user is unknown.
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

    /// True if the user's `authenticationRestrictions` allow a client at `peer`.
    pub(super) fn permits(known: &Known, peer: Option<IpAddr>) -> bool {
        known.credentials.restrictions.permits(peer)
    }
}

#[cfg(test)]
mod tests;
