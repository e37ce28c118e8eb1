//! The service account in the options of a connection string.

use mongodb::options::{AuthMechanism, ClientOptions};

use super::rejection::DeploymentError;
use seawall_auth::Mechanism;
use seawall_transport::connection::{Account, LoginMethod, Password};

/// The authentication database of users that are defined outside MongoDB.
const EXTERNAL: &str = "$external";

/// The service account that the connection string describes; `None` if the connection string has no
/// user.
///
/// # Errors
/// [`DeploymentError::Unsupported`] for a mechanism that Seawall does not support, and for a
/// mechanism that needs a password if the connection string has none.
pub(super) fn service_account_in(
    options: &ClientOptions,
) -> Result<Option<Account>, DeploymentError> {
    let Some(credential) = &options.credential else {
        return Ok(None);
    };
    let password = || {
        let password = credential.password.clone().map(Password::new);
        password.ok_or(DeploymentError::Unsupported("a user without a password"))
    };
    let scram = |mechanism| {
        password().map(|password| LoginMethod::Scram {
            mechanism,
            password,
        })
    };
    let plain = |password| LoginMethod::Plain { password };
    let (method, default_source) = match credential.mechanism.as_ref() {
        None => (scram(None)?, "admin"),
        Some(AuthMechanism::ScramSha1) => (scram(Some(Mechanism::ScramSha1))?, "admin"),
        Some(AuthMechanism::ScramSha256) => (scram(Some(Mechanism::ScramSha256))?, "admin"),
        Some(AuthMechanism::Plain) => (password().map(plain)?, EXTERNAL),
        Some(AuthMechanism::MongoDbX509) => (LoginMethod::Certificate, EXTERNAL),
        Some(_) => return Err(DeploymentError::Unsupported("this value of authMechanism")),
    };
    let source = credential.source.as_deref().unwrap_or(default_source);
    let name = credential.username.as_deref().unwrap_or_default();
    Ok(Some(Account::new(name, source, method)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_user_without_a_password_is_an_error_unless_it_logs_in_with_a_certificate() {
        for (user, options, is_error) in [
            ("account", "", true),
            ("account", "authMechanism=SCRAM-SHA-1", true),
            ("account", "authMechanism=SCRAM-SHA-256", true),
            ("account:", "", false),
            ("account:secret", "", false),
            ("CN=a", "authMechanism=MONGODB-X509", false),
        ] {
            let uri = format!("mongodb://{user}@h:1/?{options}");
            let options = ClientOptions::parse(&uri).await.unwrap();
            let account = service_account_in(&options);
            let is_refused = matches!(account, Err(DeploymentError::Unsupported(_)));
            assert_eq!(is_refused, is_error, "{uri}");
        }
    }
}
