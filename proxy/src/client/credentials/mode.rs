//! The credential mode: the source of users' SCRAM keys. For the configured mode `auto`, Seawall
//! asks the servers whether they require a login, and then decides on another mode.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use zeroize::Zeroizing;

use super::{Credentials, UserName};
use crate::runtime::OccasionalLog;
use seawall_auth::{Mechanism, ScramKeys};
use seawall_transport::connection::EstablishError;

/// Pause between two attempts to determine the mode.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The source of users' keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialMode {
    /// The source is not decided yet: the configuration says `auto`, and no server has shown yet if
    /// it requires a login.
    Undecided,
    /// Each user reads its own keys. The configuration calls this mode `self`.
    Own,
    /// The service account reads the SCRAM keys of each user.
    Lookup,
    /// The configuration contains the password or the keys of each user.
    Users,
    /// The deployment has no access control.
    None,
}

impl CredentialMode {
    /// The name in the configuration and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Undecided => "auto",
            Self::Own => "self",
            Self::Lookup => "lookup",
            Self::Users => "users",
            Self::None => "none",
        }
    }
}

/// A user that the configuration names, with its secret.
#[derive(Clone, Debug)]
pub(crate) struct ConfiguredUser {
    /// The user's name.
    pub name: String,
    /// The database in which the user is defined.
    pub source: String,
    /// The user's secret: its password or its keys.
    pub secret: UserSecret,
}

/// The secrets of configured users by name. A user whose name is too long is omitted, because it
/// cannot log in.
pub(super) fn by_name(users: Vec<ConfiguredUser>) -> HashMap<UserName, UserSecret> {
    let named = users.into_iter().filter_map(|user| {
        let name = UserName::new(&user.name, &user.source)?;
        Some((name, user.secret))
    });
    named.collect()
}

/// A configured user's secret.
#[derive(Clone)]
pub(crate) enum UserSecret {
    /// The password in plain text.
    Password(Zeroizing<String>),
    /// Keys as a server stores them.
    Keys {
        /// Keys for SCRAM-SHA-1; `None` if the user cannot use this mechanism.
        sha1: Option<ScramKeys>,
        /// Keys for SCRAM-SHA-256; `None` if the user cannot use this mechanism.
        sha256: Option<ScramKeys>,
    },
}

impl fmt::Debug for UserSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserSecret")
    }
}

/// The settings of [`Credentials`]: the source of users' keys, the configured users, and limits.
#[derive(Clone, Debug)]
pub(crate) struct CredentialSettings {
    /// The source of keys. For `auto`, the source is [`CredentialMode::Lookup`] if a service
    /// account is configured, else [`CredentialMode::Users`] if users are configured, else
    /// [`CredentialMode::Undecided`].
    pub mode: CredentialMode,
    /// The users that the configuration names.
    pub users: Vec<ConfiguredUser>,
    /// How long cached keys are used after the last time that a server confirmed them.
    pub max_stale: Duration,
    /// Maximum number of users whose keys are cached.
    pub max_users: usize,
    /// Maximum number of concurrent exchanges with servers (a request and its reply), for first
    /// logins and lookups of unknown users (readings of their keys through the service account).
    /// Queries about users' mechanisms have a separate limit of the same size.
    pub first_logins: usize,
    /// Maximum number of first logins that wait for their client at the same time.
    pub conversations: usize,
}

impl Credentials {
    /// The secret of a configured user; `None` if the user is not configured.
    pub(super) fn configured(&self, user: &UserName) -> Option<UserSecret> {
        self.users.read().get(user).cloned()
    }

    /// True if Seawall may offer this mechanism to drivers that log in as this user. False if the
    /// configuration has SCRAM keys of the user, but none for this mechanism: a login with the
    /// mechanism fails while the user is not known.
    pub(in crate::client) fn may_offer(&self, user: &UserName, mechanism: Mechanism) -> bool {
        if self.mode() != CredentialMode::Users {
            return true;
        }
        match (self.users.read().get(user), mechanism) {
            (Some(UserSecret::Keys { sha1, .. }), Mechanism::ScramSha1) => sha1.is_some(),
            (Some(UserSecret::Keys { sha256, .. }), Mechanism::ScramSha256) => sha256.is_some(),
            (Some(UserSecret::Password(_)) | None, _) => true,
        }
    }

    /// True if Seawall may use cached keys of this user. False if only configured users may log in
    /// and this user is not configured.
    pub(super) fn may_be_known(&self, user: &UserName) -> bool {
        self.mode() != CredentialMode::Users || self.users.read().contains_key(user)
    }
}

/// Decides which mode replaces `auto` if the configuration has no users and no service account. The
/// new mode is `self` if any usable server requires a login, and `none` if no usable server
/// requires a login. Asks the servers again until the mode is decided.
pub(super) async fn decide(credentials: Weak<Credentials>) {
    let failures = OccasionalLog::default();
    loop {
        let Some(strong) = credentials.upgrade() else {
            return;
        };
        match ask_deployment(&strong).await {
            Ok(Some(mode)) => {
                tracing::info!(credentials = mode.as_str(), "credential source determined");
                strong.mode.send_replace(mode);
                return;
            }
            Ok(None) => {}
            Err(error) => {
                if let Some(attempts) = failures.count(Instant::now()) {
                    tracing::warn!(%error, attempts, "could not determine the credential source");
                }
            }
        }
        drop(strong);
        sleep(ASK_AGAIN_AFTER).await;
    }
}

/// Asks all usable servers at the same time whether they require a login. Returns
/// [`CredentialMode::Own`] as soon as one server replies that it requires a login, and
/// [`CredentialMode::None`] if all servers reply that they require no login. Returns `Ok(None)` if
/// no server is usable.
///
/// # Errors
/// At least one server did not reply, or its reply does not show whether it requires a login. No
/// other server replied that it requires a login.
pub(super) async fn ask_deployment(
    credentials: &Arc<Credentials>,
) -> Result<Option<CredentialMode>, EstablishError> {
    let topology = &credentials.topology;
    let snapshot = topology.snapshot();
    let servers = snapshot.description.servers.iter();
    let mut asking = JoinSet::new();
    for server in servers.filter(|server| server.is_usable()) {
        let (connector, address) = (topology.connector().clone(), server.address.clone());
        asking.spawn(async move { connector.requires_authentication(&address).await });
    }
    let (mut is_open, mut failed) = (false, None);
    while let Some(asked) = asking.join_next().await {
        match asked {
            Ok(Ok(true)) => return Ok(Some(CredentialMode::Own)),
            Ok(Ok(false)) => is_open = true,
            Ok(Err(error)) => failed = Some(error),
            // The task has no result only if it panicked or if the runtime stops.
            Err(_) => return Ok(None),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(is_open.then_some(CredentialMode::None)),
    }
}

#[cfg(test)]
mod tests {
    use super::CredentialMode::{Lookup, None, Own, Undecided, Users};

    #[test]
    fn each_credential_mode_has_its_name_in_the_configuration() {
        let names = [Undecided, Own, Lookup, Users, None].map(|mode| mode.as_str());
        assert_eq!(names, ["auto", "self", "lookup", "users", "none"]);
    }
}
