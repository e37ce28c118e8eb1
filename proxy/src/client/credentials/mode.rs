//! Where credentials come from, and finding that out.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use bson::rawdoc;
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::{Credentials, Known, UserName};
use crate::{
    auth::{self, Restrictions, ScramKeys},
    connection::reply_is_ok,
};

/// Pause before the deployment is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Where credentials come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialMode {
    /// Not yet known: `auto`, and no server seen.
    Undecided,
    /// Each user reads its own.
    Own,
    /// The service account reads them.
    Lookup,
    /// They are configured.
    Users,
    /// The deployment asks nobody.
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

/// A configured user's secret.
#[derive(Clone)]
pub enum UserSecret {
    /// The password.
    Password(Zeroizing<String>),
    /// Keys as a server stores them, by mechanism.
    Keys {
        /// SCRAM-SHA-1.
        sha1: Option<ScramKeys>,
        /// SCRAM-SHA-256.
        sha256: Option<ScramKeys>,
    },
}

impl fmt::Debug for UserSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserSecret")
    }
}

/// How users are believed.
#[derive(Clone, Debug)]
pub struct CredentialSettings {
    /// Where credentials come from; `Undecided` for `auto` with nothing else to go by.
    pub mode: CredentialMode,
    /// Configured users: name, source, secret.
    pub users: Vec<(String, String, UserSecret)>,
    /// How long keys serve that could not be confirmed.
    pub max_stale: Duration,
    /// Users remembered.
    pub max_users: usize,
    /// Introductions at a time.
    pub introductions: usize,
}

impl Credentials {
    pub(super) fn configured(&self, user: &UserName) -> Option<&UserSecret> {
        let mut users = self.settings.users.iter();
        users
            .find(|(n, s, _)| *n == user.name && *s == user.source)
            .map(|(_, _, secret)| secret)
    }

    /// Whether a user's keys stand in the configuration: then no server is asked for them.
    pub(super) fn has_configured_keys(&self, user: &UserName) -> bool {
        matches!(self.configured(user), Some(UserSecret::Keys { .. }))
    }

    /// Makes configured keys known.
    pub(super) fn store_configured(
        &self,
        user: &UserName,
        sha1: &Option<ScramKeys>,
        sha256: &Option<ScramKeys>,
    ) -> Known {
        let mechanisms = [sha1, sha256].into_iter().flatten();
        let mechanisms = mechanisms
            .map(|keys| keys.mechanism().name().to_owned())
            .collect();
        let credentials = auth::Credentials {
            user_id: None,
            source: user.source.clone(),
            name: user.name.clone(),
            sha1: sha1.clone(),
            sha256: sha256.clone(),
            restrictions: Restrictions::default(),
            mechanisms,
        };
        self.store
            .lock()
            .learn(user.clone(), credentials, None, Instant::now())
    }
}

/// `auto`, with nothing configured: `none` only if every server that holds data lets anybody read.
pub(super) async fn decide(credentials: Weak<Credentials>) {
    loop {
        let Some(strong) = credentials.upgrade() else {
            return;
        };
        if let Some(mode) = ask_deployment(&strong).await {
            tracing::info!(
                credentials = mode.as_str(),
                "found where credentials come from"
            );
            strong.mode.send_replace(mode);
            return;
        }
        drop(strong);
        sleep(ASK_AGAIN_AFTER).await;
    }
}

async fn ask_deployment(credentials: &Arc<Credentials>) -> Option<CredentialMode> {
    let topology = &credentials.topology;
    let snapshot = topology.snapshot();
    let servers: Vec<_> = snapshot
        .description
        .servers
        .iter()
        .filter(|server| server.is_usable())
        .collect();
    if servers.is_empty() {
        return None;
    }
    for server in servers {
        let mut connection = topology.connector().connect(&server.address).await.ok()?;
        let find = rawdoc! {
            "find": "system.version", "limit": 1, "singleBatch": true, "$db": "admin",
            "$readPreference": { "mode": "primaryPreferred" },
        };
        let reply = connection.run(&find).await.ok()?;
        match reply_is_ok(&reply) {
            Ok(()) => {}
            Err((13, _)) => return Some(CredentialMode::Own),
            Err(_) => return None,
        }
    }
    Some(CredentialMode::None)
}
