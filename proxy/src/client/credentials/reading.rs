//! Reads users' keys: each user's keys on a connection of that user, or the keys of all users
//! through the service account.

use std::sync::Arc;

use bson::{Bson, Document, RawDocumentBuf, cstr};
use mongodb::error::ErrorKind;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroize as _;

use super::{
    CredentialError, CredentialMode, Credentials, Known, QUESTION_LIMIT, Reading, UserName,
};
use crate::{
    client::refusals::Refusals,
    observe::CloseReason,
    pool::{CheckOutError, Checkout, Demand},
};
use seawall_auth::{Identity, Mechanism, UsersInfoError, parse_users_info, users_info_command};
use seawall_command::{ReadPreference, UNAUTHORIZED, is_state_change};
use seawall_transport::connection::{Connection, SecretDocument};

impl Credentials {
    /// Reads the keys of a known user again, on the primary or on a router.
    pub(super) async fn read(&self, user: &UserName, identity: &Arc<Identity>) -> Reading {
        match self.mode() {
            CredentialMode::Lookup => {
                let login_version = identity.login_version();
                match self.read_as_service(user).await {
                    Ok(credentials) => Reading::Keys(Box::new(credentials)),
                    Err(error) => reading_without_keys(error.as_ref(), login_version),
                }
            }
            CredentialMode::Undecided => Reading::Unavailable,
            CredentialMode::Own | CredentialMode::Users | CredentialMode::None => {
                self.read_as_itself(user, identity).await
            }
        }
    }

    /// Reads a user's keys on a connection that is authenticated as this user.
    async fn read_as_itself(&self, user: &UserName, identity: &Arc<Identity>) -> Reading {
        let login_version = identity.login_version();
        let mut checkout = match self.check_out_to_read(identity).await {
            Ok(checkout) => checkout,
            Err(reading) => return reading,
        };
        match ask_own_keys(checkout.begin(), user).await {
            Ok(credentials) => {
                checkout.finish();
                Reading::Keys(Box::new(credentials))
            }
            // Every user may read its own keys. A refusal means that the user no longer exists.
            Err(Some(UsersInfoError::CommandFailed { code: UNAUTHORIZED })) => {
                checkout.discard(CloseReason::Unauthorized);
                Reading::Gone
            }
            Err(Some(UsersInfoError::NoSuchUser)) => Reading::Gone,
            // Other error codes concern the server, not the user. For example, the server is no
            // longer the primary.
            Err(Some(UsersInfoError::CommandFailed { code })) => {
                checkout.finish();
                if is_state_change(code) {
                    self.topology.report_state_change(checkout.pool(), code);
                }
                Reading::Unavailable
            }
            Err(Some(error)) => {
                tracing::warn!(user = %user.name, source = %user.source, %error, "user could not read its own keys");
                Reading::Refused(login_version)
            }
            Err(None) => Reading::Unavailable,
        }
    }

    /// Checks out a connection of a user to the primary or to a router, to read the user's keys. If
    /// a router refuses the user's keys, tries another router, because the data about users on the
    /// first router may be outdated. The error is the [`Reading`] that the caller returns instead
    /// of the keys.
    async fn check_out_to_read(&self, identity: &Arc<Identity>) -> Result<Checkout, Reading> {
        let deadline = Instant::now() + QUESTION_LIMIT;
        let preference = ReadPreference::PRIMARY;
        let selected = self.topology.select(&preference, deadline).await;
        let mut pool = selected.map_err(|_| Reading::Unavailable)?;
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
                Err(_) => return Err(Reading::Unavailable),
            };
            refusals.add(pool.address().clone(), refused_version);
            let refusing = refusals.routers();
            pool = match self.topology.router_except(refusing) {
                Some(other) => other,
                None if self.topology.is_router(pool.address()) => {
                    return Err(Reading::RefusedByRouters {
                        login_version: refused_version,
                        is_undecided: self.topology.expects_router_except(refusing),
                    });
                }
                None => return Err(Reading::Refused(refused_version)),
            };
        }
    }

    /// Reads the keys of a user that is not known yet, through the service account. If this future
    /// is dropped after the query has begun, the query continues.
    pub(super) async fn look_up(
        self: &Arc<Self>,
        user: &UserName,
        mechanism: Mechanism,
    ) -> Result<Known, CredentialError> {
        let began = Instant::now();
        if self.store.lock().is_unknown(user, mechanism, began) {
            return Err(CredentialError::Refused);
        }
        let deadline = began + QUESTION_LIMIT;
        let exchange = Arc::clone(self.exchanges.semaphore()).acquire_owned();
        let exchange = timeout_at(deadline, exchange).await;
        let exchange = exchange.ok().and_then(Result::ok);
        let exchange = exchange.ok_or(CredentialError::Unavailable)?;
        // Another login may have read the keys during the wait for the permit.
        if let Some(known) = self.concurrent_result(user, mechanism, Instant::now())? {
            return Ok(known);
        }
        let (me, user) = (Arc::clone(self), user.clone());
        self.run_to_end(async move {
            let learnt = timeout_at(deadline, me.learn_as_service(&user)).await;
            let learnt = learnt.unwrap_or(Err(CredentialError::Unavailable));
            drop(exchange);
            if matches!(learnt, Err(CredentialError::Refused)) {
                me.remember_unknown(&user, mechanism);
            }
            learnt
        })
        .await
    }

    /// Reads a user's keys through the service account and stores them.
    async fn learn_as_service(&self, user: &UserName) -> Result<Known, CredentialError> {
        let asked_at = Instant::now();
        let read = self.read_as_service(user).await;
        let credentials = read.map_err(|error| match error {
            None | Some(UsersInfoError::CommandFailed { .. }) => CredentialError::Unavailable,
            Some(
                UsersInfoError::NoSuchUser
                | UsersInfoError::OtherUser
                | UsersInfoError::Malformed { .. }
                | UsersInfoError::RestrictionsUnreadable(_),
            ) => CredentialError::Refused,
        })?;
        let learnt = self.store.lock().learn(user, credentials, None, asked_at);
        let (known, evicted) = learnt;
        drop(evicted);
        match known {
            Some(known) => Ok(known),
            // Another login has read newer keys.
            None => {
                (self.store.lock().known(user, Instant::now())).ok_or(CredentialError::Unavailable)
            }
        }
    }

    /// Reads a user's keys through the service account. The driver may learn of an election only
    /// from the error of a command. After such an error, or if the connection fails, the command is
    /// sent a second time. The error is `None` if the driver got no reply or an error reply.
    async fn read_as_service(
        &self,
        user: &UserName,
    ) -> Result<seawall_auth::Credentials, Option<UsersInfoError>> {
        let client = self.topology.control_client().ok_or(None)?;
        let command = users_info_command(&user.name, &user.source);
        let command = Document::try_from(command).map_err(|_| None)?;
        let admin = client.database("admin");
        let mut reply = admin.run_command(command.clone()).await;
        if let Err(error) = &reply
            && may_succeed_elsewhere(error)
        {
            tracing::debug!(%error, "could not read a user's keys; the command is repeated once");
            reply = admin.run_command(command).await;
        }
        let reply = SecretFields(reply.map_err(|error| {
            tracing::warn!(%error, "service account could not read a user's keys");
            None
        })?);
        let reply = RawDocumentBuf::try_from(&reply.0).map_err(|_| None)?;
        let reply = SecretDocument::from(reply);
        parse_users_info(&reply, &user.name, &user.source).map_err(|error| {
            tracing::debug!(user = %user.name, source = %user.source, %error, "could not use the user's keys");
            Some(error)
        })
    }
}

/// True if a command may succeed at the server that the driver selects next, because the state of
/// the first server has changed or the connection to it has failed.
fn may_succeed_elsewhere(error: &mongodb::error::Error) -> bool {
    match &*error.kind {
        ErrorKind::Command(error) => is_state_change(error.code),
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => true,
        _ => false,
    }
}

/// The result of reading a user's keys if the service account got no keys. `error` is `None` if the
/// driver got no reply or an error reply.
fn reading_without_keys(error: Option<&UsersInfoError>, login_version: u64) -> Reading {
    match error {
        None | Some(UsersInfoError::CommandFailed { .. }) => Reading::Unavailable,
        Some(UsersInfoError::NoSuchUser) => Reading::Gone,
        // The user exists, but its keys or restrictions cannot be confirmed.
        Some(
            UsersInfoError::OtherUser
            | UsersInfoError::Malformed { .. }
            | UsersInfoError::RestrictionsUnreadable(_),
        ) => Reading::Refused(login_version),
    }
}

/// Reads a user's keys on a connection that is authenticated as this user. The error is `None` if
/// no reply arrived.
pub(super) async fn ask_own_keys(
    connection: &mut Connection,
    user: &UserName,
) -> Result<seawall_auth::Credentials, Option<UsersInfoError>> {
    let mut command = users_info_command(&user.name, &user.source);
    command.append(cstr!("$db"), "admin");
    let reply = connection.run(&command).await.map_err(|_| None)?;
    let reply = SecretDocument::from(reply);
    parse_users_info(&reply, &user.name, &user.source).map_err(Some)
}

/// The text of an error of [`ask_own_keys`], for a log line.
pub(super) fn shown_error(error: Option<&UsersInfoError>) -> String {
    error.map_or_else(|| "no reply arrived".to_owned(), ToString::to_string)
}

/// A decoded document that contains keys, zeroed on drop.
struct SecretFields(Document);

impl Drop for SecretFields {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Zeroes all strings in a document, and in its nested documents and arrays.
fn wipe(document: &mut Document) {
    document.iter_mut().for_each(|(_, value)| wipe_value(value));
}

fn wipe_value(value: &mut Bson) {
    match value {
        Bson::String(text) => text.zeroize(),
        Bson::Document(inside) => wipe(inside),
        Bson::Array(values) => values.iter_mut().for_each(wipe_value),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use mongodb::error::CommandError;

    use super::*;

    #[test]
    fn for_the_service_account_only_the_error_nosuchuser_means_that_a_user_was_dropped() {
        let reading = |error: Option<&UsersInfoError>| reading_without_keys(error, 7);
        let missing = reading(Some(&UsersInfoError::NoSuchUser));
        assert!(matches!(missing, Reading::Gone), "{missing:?}");
        let malformed = UsersInfoError::Malformed { field: "salt" };
        for error in [malformed, UsersInfoError::OtherUser] {
            let reading = reading(Some(&error));
            assert!(matches!(reading, Reading::Refused(7)), "{reading:?}");
        }
        let failed = UsersInfoError::CommandFailed { code: 11_600 };
        for error in [None, Some(&failed)] {
            let reading = reading(error);
            assert!(matches!(reading, Reading::Unavailable), "{reading:?}");
        }
    }

    #[test]
    fn errors_are_shown_without_their_rust_syntax() {
        let failed = UsersInfoError::CommandFailed { code: 13 };
        let shown = "the server replied with error code 13";
        assert_eq!(shown_error(Some(&failed)), shown);
        assert_eq!(shown_error(None), "no reply arrived");
    }

    #[test]
    fn scram_keys_are_read_again_only_after_a_connection_failure_or_a_state_change_error() {
        let closed = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(may_succeed_elsewhere(&closed.into()));
        // 10107 is NotWritablePrimary, 13 Unauthorized.
        for (code, is_repeated) in [(10_107, true), (13, false)] {
            let reply = serde_json::json!({ "code": code });
            let reply: CommandError = serde_json::from_value(reply).unwrap();
            let refused = mongodb::error::Error::from(ErrorKind::Command(reply));
            assert_eq!(may_succeed_elsewhere(&refused), is_repeated, "{code}");
        }
        let ours = mongodb::error::Error::custom("x");
        assert!(!may_succeed_elsewhere(&ours));
    }

    #[test]
    fn wipe_replaces_each_string_in_a_document_by_an_empty_string() {
        let key = "JqXOO0TnCLQVo7Q/oInBisrQvto=";
        let mut reply = doc! {
            "users": [{ "credentials": { "SCRAM-SHA-1": { "storedKey": key } } }], "ok": 1.0,
        };
        wipe(&mut reply);
        let wiped = doc! {
            "users": [{ "credentials": { "SCRAM-SHA-1": { "storedKey": "" } } }], "ok": 1.0,
        };
        assert_eq!(reply, wiped);
    }
}
