//! Reads users' keys: each user's keys on a connection of that user, or the keys of all users
//! through the service account.

use std::sync::Arc;

use bson::{RawDocumentBuf, cstr, rawdoc};
use tokio::time::{Instant, timeout_at};

use super::{
    CredentialError, CredentialMode, Credentials, KNOWN_QUESTION_LIMIT, KeyReading, KeyRequest,
    Known, QUESTION_LIMIT, UserName,
};
use crate::{
    client::refusals::Refusals,
    observe::CloseReason,
    pool::{CheckOutError, Checkout, Demand},
    service_account::ServiceError,
    topology::{SelectError, Topology, TopologyType},
};
use seawall_auth::{Identity, Mechanism, UsersInfoError, parse_users_info, users_info_command};
use seawall_command::{ReadPreference, UNAUTHORIZED, is_state_change, reports_server_failure};
use seawall_transport::{
    Sharer,
    connection::{Connection, SecretDocument, ServerAddress},
};

/// Maximum number of queries of the service account for one reading of a user's keys.
const MAX_ATTEMPTS: usize = 3;

impl Credentials {
    /// Reads the keys of a known user again, on the primary or on a router.
    pub(super) async fn read(&self, user: &UserName, identity: &Arc<Identity>) -> KeyReading {
        let reading = match self.mode() {
            CredentialMode::Lookup => {
                let login_version = identity.login_version();
                match self.read_as_service(user).await {
                    Ok(credentials) => KeyReading::Keys(Box::new(credentials)),
                    Err(NoKeys::Unavailable) => KeyReading::Unavailable,
                    Err(NoKeys::NoSuchUser) => KeyReading::Gone,
                    Err(NoKeys::Unusable) => KeyReading::Refused(login_version),
                }
            }
            CredentialMode::Undecided => KeyReading::Unavailable,
            CredentialMode::Own | CredentialMode::Users | CredentialMode::None => {
                self.read_as_itself(user, identity).await
            }
        };
        if let KeyReading::Keys(read) = &reading {
            self.ask_about_disabled(user, identity, read).await;
        }
        reading
    }

    /// If the servers did not offer one of the user's mechanisms, asks a server which mechanisms it
    /// offers now. `read` has the user's keys. Does nothing if the user does not have keys for both
    /// mechanisms.
    async fn ask_about_disabled(
        &self,
        user: &UserName,
        identity: &Identity,
        read: &seawall_auth::Credentials,
    ) {
        if !has_both_mechanisms(read) || !self.store.lock().has_disabled(user) {
            return;
        }
        // The future is boxed, because few readings need it: it must not enlarge the futures of all
        // readings.
        let asking = Box::pin(async {
            let sharer = Sharer::User(identity.id().as_u64());
            let _question = self.questions.take(sharer).await;
            self.query_mechanisms(user).await
        });
        let asked = timeout_at(Instant::now() + KNOWN_QUESTION_LIMIT, asking).await;
        if let Ok(Ok(offered)) = asked {
            self.record_offered(user, read, &offered, identity.login().mechanism());
        }
    }

    /// Records the mechanisms that a server offers to a user with the keys in `read`. `used` is the
    /// mechanism with which the user has logged in; `None` if the user has not logged in.
    pub(super) fn record_offered(
        &self,
        user: &UserName,
        read: &seawall_auth::Credentials,
        offered: &[String],
        used: Option<Mechanism>,
    ) {
        let evicted = {
            let mut store = self.store.lock();
            store.record_offered(user, read, offered, used)
        };
        drop(evicted);
    }

    /// Reads a user's keys on a connection that is authenticated as this user.
    async fn read_as_itself(&self, user: &UserName, identity: &Arc<Identity>) -> KeyReading {
        let login_version = identity.login_version();
        let mut checkout = match self.check_out_to_read(identity).await {
            Ok(checkout) => checkout,
            Err(reading) => return reading,
        };
        match ask_own_keys(checkout.begin(), user, &self.topology).await {
            Ok(credentials) => {
                checkout.finish();
                KeyReading::Keys(Box::new(credentials))
            }
            // Every user may read its own keys. A refusal means that the user no longer exists.
            Err(Some(UsersInfoError::CommandFailed { code: UNAUTHORIZED })) => {
                checkout.discard(CloseReason::Unauthorized);
                KeyReading::Gone
            }
            Err(Some(UsersInfoError::NoSuchUser)) => KeyReading::Gone,
            // Other error codes concern the server, not the user. For example, the server is no
            // longer the primary.
            Err(Some(UsersInfoError::CommandFailed { code })) => {
                checkout.finish();
                if is_state_change(code) {
                    let generation = checkout.generation();
                    self.topology
                        .report_state_change(checkout.pool(), generation, code);
                }
                KeyReading::Unavailable
            }
            Err(Some(error)) => {
                self.log_failed_reading(user, Some(&error));
                KeyReading::Refused(login_version)
            }
            Err(None) => KeyReading::Unavailable,
        }
    }

    /// Counts a reading in which a user could not read its own keys, and logs at most one a minute.
    /// `error` is the error of [`ask_own_keys`].
    pub(super) fn log_failed_reading(&self, user: &UserName, error: Option<&UsersInfoError>) {
        if let Some(attempts) = self.failed_readings.count(Instant::now()) {
            let error = shown_error(error);
            tracing::warn!(user = %user.name, source = %user.source, %error, attempts, "user could not read its own keys");
        }
    }

    /// Checks out a connection of a user to the primary or to a router, to read the user's keys. If
    /// a router refuses the user's keys, tries another router, because the data about users on the
    /// first router may be outdated. The error is the [`KeyReading`] that the caller returns
    /// instead of the keys.
    async fn check_out_to_read(&self, identity: &Arc<Identity>) -> Result<Checkout, KeyReading> {
        let deadline = Instant::now() + QUESTION_LIMIT;
        let preference = ReadPreference::PRIMARY;
        let selected = self.topology.select(&preference, deadline).await;
        let mut pool = selected.map_err(|_| KeyReading::Unavailable)?;
        let mut refusals = Refusals::default();
        loop {
            // This checkout is served before the user's waiting operations, because logins wait for
            // the reading. The delay of the operations is short, because each user has only one
            // reading at a time.
            let refused_version = match pool.check_out(identity, Demand::OWN, deadline).await {
                Ok(checkout) => return Ok(checkout),
                Err(CheckOutError::Establish {
                    error,
                    login_version,
                    ..
                }) if error.refuses_keys() => login_version,
                Err(_) => return Err(KeyReading::Unavailable),
            };
            refusals.add(pool.address().clone(), refused_version);
            let refusing = refusals.routers();
            pool = match self.topology.router_except(refusing) {
                Some(other) => other,
                None if self.topology.is_router(pool.address()) => {
                    return Err(KeyReading::RefusedByRouters {
                        login_version: refused_version,
                        is_undecided: self.topology.expects_router_except(refusing),
                    });
                }
                None => return Err(KeyReading::Refused(refused_version)),
            };
        }
    }

    /// Reads the keys of a user that is not known yet, through the service account. If this future
    /// is dropped after the query has begun, the query continues.
    pub(super) async fn look_up(
        self: &Arc<Self>,
        request: &KeyRequest<'_>,
    ) -> Result<Known, CredentialError> {
        let KeyRequest {
            user,
            mechanism,
            sharer,
        } = *request;
        let began = Instant::now();
        if self.store.lock().is_unknown(user, mechanism, began) {
            return Err(CredentialError::Refused);
        }
        let deadline = began + QUESTION_LIMIT;
        let exchange = timeout_at(deadline, self.exchanges.take(sharer)).await;
        let exchange = exchange.map_err(|_| CredentialError::Unavailable)?;
        // Another login may have read the keys during the wait for the turn.
        if let Some(known) = self.concurrent_result(user, mechanism, Instant::now())? {
            return Ok(known);
        }
        let (me, user) = (Arc::clone(self), user.clone());
        self.run_to_end(async move {
            let learnt = timeout_at(deadline, me.learn_as_service(&user, sharer)).await;
            let learnt = learnt.unwrap_or(Err(CredentialError::Unavailable));
            drop(exchange);
            if matches!(learnt, Err(CredentialError::Refused)) {
                me.remember_unknown(&user, mechanism);
            }
            learnt
        })
        .await
    }

    /// Reads a user's keys through the service account and stores them. If the user has keys for
    /// both mechanisms, first asks a server which of them it offers. `sharer` is the address of the
    /// client that logs in.
    async fn learn_as_service(
        &self,
        user: &UserName,
        sharer: Sharer,
    ) -> Result<Known, CredentialError> {
        let asked_at = Instant::now();
        let read = self.read_as_service(user).await;
        let credentials = read.map_err(|error| match error {
            NoKeys::Unavailable => CredentialError::Unavailable,
            NoKeys::NoSuchUser | NoKeys::Unusable => CredentialError::Refused,
        })?;
        if has_both_mechanisms(&credentials) {
            let asking = self.ask_mechanisms(user, sharer);
            let asked = timeout_at(Instant::now() + KNOWN_QUESTION_LIMIT, asking).await;
            // Without a reply in time, Seawall uses what it has learned earlier about the user.
            if let Ok(Ok(offered)) = asked {
                self.record_offered(user, &credentials, &offered, None);
            }
        }
        let learnt = self.store.lock().learn(user, credentials, None, asked_at);
        let (known, evicted) = learnt;
        drop(evicted);
        match known {
            Some(known) => Ok(known),
            // Newer keys are known, or a newer reading has ended the user's identity.
            None => {
                (self.store.lock().known(user, Instant::now())).ok_or(CredentialError::Unavailable)
            }
        }
    }

    /// Reads a user's keys through the service account, on the primary or on a router. Asks again
    /// if the server has failed, is no longer the primary, or is a router that refuses the login.
    /// Asks at most [`MAX_ATTEMPTS`] times in total.
    async fn read_as_service(&self, user: &UserName) -> Result<seawall_auth::Credentials, NoKeys> {
        let deadline = Instant::now() + QUESTION_LIMIT;
        let mut refusing = Vec::new();
        let mut read = self.ask_as_service(user, &mut refusing, deadline).await;
        for _ in 1..MAX_ATTEMPTS {
            let Err(error) = &read else { break };
            let may_repeat = match error.is_refused_login() {
                true => self.topology.router_except(&refusing).is_some(),
                false => error.may_succeed_elsewhere(),
            };
            if !may_repeat {
                break;
            }
            tracing::debug!(%error, "could not read a user's keys; trying again");
            read = self.ask_as_service(user, &mut refusing, deadline).await;
        }
        read.map_err(|error| {
            let no_keys = error.no_keys();
            if no_keys != NoKeys::Unavailable {
                tracing::debug!(user = %user.name, source = %user.source, %error, "could not use the user's keys");
            } else if let Some(attempts) = self.failed_lookups.count(Instant::now()) {
                // A client needs no login to cause this error, so the lines are limited.
                tracing::warn!(%error, attempts, "service account could not read a user's keys");
            }
            no_keys
        })
    }

    /// Sends one query for a user's keys through the service account. `refusing` has the routers
    /// that have refused the login of this account.
    async fn ask_as_service(
        &self,
        user: &UserName,
        refusing: &mut Vec<ServerAddress>,
        deadline: Instant,
    ) -> Result<seawall_auth::Credentials, AskError> {
        let topology = &self.topology;
        let account = topology.service_account().ok_or(AskError::NoAccount)?;
        let other = match refusing.is_empty() {
            true => None,
            false => topology.router_except(refusing),
        };
        let pool = match other {
            Some(other) => other,
            None => topology.select(&ReadPreference::PRIMARY, deadline).await?,
        };
        let (generation, command) = (pool.generation(), keys_command(user, topology));
        let asked = tokio::select! {
            asked = timeout_at(deadline, account.run(pool.address(), generation, &command)) => {
                asked.map_err(|_| AskError::TimedOut)?
            }
            () = pool.until_paused() => return Err(AskError::ServerFailed),
        };
        let reply = asked.inspect_err(|error| match error {
            // A failure before the login shows that the server has failed. A failed login of the
            // service account says nothing about the connections of other users, so it does not
            // clear their pool.
            ServiceError::Establish(error) if error.blames_server_before_login() => {
                topology.report_failure(&pool, generation);
            }
            error if error.is_refused_login() => refusing.push(pool.address().clone()),
            _ => {}
        })?;
        let parsed = parse_users_info(&reply, &user.name, &user.source);
        if let Err(UsersInfoError::CommandFailed { code }) = &parsed
            && is_state_change(*code)
        {
            topology.report_state_change(&pool, generation, *code);
        }
        Ok(parsed?)
    }
}

/// True if a user has keys for both mechanisms.
fn has_both_mechanisms(read: &seawall_auth::Credentials) -> bool {
    read.sha1.is_some() && read.sha256.is_some()
}

/// The reason why a query of the service account for a user's keys returned no keys.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("there is no service account")]
    NoAccount,
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("no reply arrived within {} s", QUESTION_LIMIT.as_secs())]
    TimedOut,
    #[error("the server failed before its reply")]
    ServerFailed,
    #[error(transparent)]
    Reply(#[from] UsersInfoError),
}

impl AskError {
    /// True if the query may succeed at the server that is selected next, because the state of the
    /// first server has changed or the connection to it has failed.
    fn may_succeed_elsewhere(&self) -> bool {
        match self {
            Self::Service(error) => !error.is_refused_login(),
            Self::Reply(UsersInfoError::CommandFailed { code }) => is_state_change(*code),
            Self::ServerFailed => true,
            Self::NoAccount | Self::Select(_) | Self::TimedOut | Self::Reply(_) => false,
        }
    }

    fn is_refused_login(&self) -> bool {
        matches!(self, Self::Service(error) if error.is_refused_login())
    }

    fn no_keys(&self) -> NoKeys {
        match self {
            Self::NoAccount
            | Self::Select(_)
            | Self::Service(_)
            | Self::TimedOut
            | Self::ServerFailed
            | Self::Reply(UsersInfoError::CommandFailed { .. }) => NoKeys::Unavailable,
            Self::Reply(UsersInfoError::NoSuchUser) => NoKeys::NoSuchUser,
            Self::Reply(
                UsersInfoError::OtherUser
                | UsersInfoError::Malformed { .. }
                | UsersInfoError::RestrictionsUnreadable(_),
            ) => NoKeys::Unusable,
        }
    }
}

/// The result of a reading through the service account that returned no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoKeys {
    /// The read failed and shows nothing about the user. For example, no server was available, the
    /// service account could not log in, or the server returned an error.
    Unavailable,
    NoSuchUser,
    /// The user exists, but its keys or restrictions cannot be used.
    Unusable,
}

/// Reads a user's keys on a connection that is authenticated as this user. The error is `None` if
/// no reply arrived.
pub(super) async fn ask_own_keys(
    connection: &mut Connection,
    user: &UserName,
    topology: &Topology,
) -> Result<seawall_auth::Credentials, Option<UsersInfoError>> {
    let command = keys_command(user, topology);
    let reply = connection.run(&command).await.map_err(|_| None)?;
    let reply = SecretDocument::from(reply);
    parse_users_info(&reply, &user.name, &user.source).map_err(Some)
}

/// The text of an error of [`ask_own_keys`], for a log line.
pub(super) fn shown_error(error: Option<&UsersInfoError>) -> String {
    error.map_or_else(|| "no reply arrived".to_owned(), ToString::to_string)
}

/// True if an error of [`ask_own_keys`] reports a failure of the server or of its connection. Such
/// an error says nothing about the user.
pub(super) fn is_server_failure(error: Option<&UsersInfoError>) -> bool {
    match error {
        None => true,
        Some(UsersInfoError::CommandFailed { code }) => reports_server_failure(*code),
        Some(
            UsersInfoError::NoSuchUser
            | UsersInfoError::OtherUser
            | UsersInfoError::Malformed { .. }
            | UsersInfoError::RestrictionsUnreadable(_),
        ) => false,
    }
}

fn keys_command(user: &UserName, topology: &Topology) -> RawDocumentBuf {
    let mut command = users_info_command(&user.name, &user.source);
    command.append(cstr!("$db"), "admin");
    if topology.snapshot().description.topology_type == TopologyType::Single {
        // The only server may be a secondary, which refuses reads without this element. Drivers add
        // it, too.
        command.append(
            cstr!("$readPreference"),
            rawdoc! { "mode": "primaryPreferred" },
        );
    }
    command
}

#[cfg(test)]
mod tests {
    use seawall_transport::connection::{EstablishError, EstablishStep};

    use super::*;

    #[test]
    fn a_lookup_treats_a_user_as_dropped_only_after_the_error_no_such_user() {
        for (error, no_keys) in [
            (UsersInfoError::NoSuchUser, NoKeys::NoSuchUser),
            (UsersInfoError::OtherUser, NoKeys::Unusable),
            (
                UsersInfoError::Malformed { field: "salt" },
                NoKeys::Unusable,
            ),
            (
                UsersInfoError::CommandFailed { code: 11_600 },
                NoKeys::Unavailable,
            ),
        ] {
            assert_eq!(AskError::Reply(error).no_keys(), no_keys);
        }
        assert_eq!(AskError::TimedOut.no_keys(), NoKeys::Unavailable);
    }

    #[test]
    fn errors_are_shown_without_their_rust_syntax() {
        let failed = UsersInfoError::CommandFailed { code: 13 };
        let shown = "the server replied with error code 13";
        assert_eq!(shown_error(Some(&failed)), shown);
        assert_eq!(shown_error(None), "no reply arrived");
    }

    /// Exception: if a router refuses the login of the service account, for example with error 18
    /// (AuthenticationFailed), `read_as_service` repeats the lookup if another router is left.
    #[test]
    fn a_lookup_is_repeated_only_after_a_server_failure_or_a_state_change() {
        let closed = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let failed = |code| AskError::Reply(UsersInfoError::CommandFailed { code });
        let refused = |code| {
            let error = EstablishError::Refused {
                step: EstablishStep::Authenticate,
                address: "h:1".parse().unwrap(),
                code,
                message: String::new(),
            };
            AskError::Service(ServiceError::Establish(error))
        };
        // 10107 is NotWritablePrimary, 13 Unauthorized, 11600 InterruptedAtShutdown and 18
        // AuthenticationFailed.
        for (error, is_repeated) in [
            (
                AskError::Service(ServiceError::Exchange(closed.into())),
                true,
            ),
            (failed(10_107), true),
            (failed(13), false),
            (refused(11_600), true),
            (refused(18), false),
            (AskError::NoAccount, false),
            (AskError::TimedOut, false),
            (AskError::ServerFailed, true),
            (AskError::Reply(UsersInfoError::NoSuchUser), false),
        ] {
            assert_eq!(error.may_succeed_elsewhere(), is_repeated, "{error}");
        }
    }
}
