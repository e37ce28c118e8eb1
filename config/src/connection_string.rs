//! Reads the deployment's connection string from the configuration or from a separate file.

use std::path::{Path, PathBuf};

use crate::declare::keys;
use crate::problem::{Problem, Problems};
use crate::read::{Part, secret_from, shown_path};
use crate::schema::{KeyKind, Section, is_connection_string};
use crate::secret::Secret;

/// The two keys for the connection string. Exactly one of them must be given.
pub(crate) const SECTION: Section = Section {
    path: "deployment",
    about: "The servers behind Seawall.",
    is_optional: false,
    keys: keys! {
        /// Connection string of the deployment; required unless `uri_file` is set. If it contains a
        /// user, this user is the service account. A change of only passwords is live.
        key("deployment.uri",
            KeyKind::ConnectionString, Restart, example "mongodb://127.0.0.1:27017/");
        /// File with the connection string of the deployment, instead of `uri`.
        key("deployment.uri_file",
            KeyKind::Path, Restart, example "/run/secrets/uri");
    },
};

/// Reads the connection string from `uri` or `uri_file`. Returns an empty text if `uri_file` cannot
/// be read or contains no connection string, or if not exactly one of the two keys is given. With
/// an empty text instead of `None`, the caller can still check the relations between the other
/// settings. Returns `None` if the value of a key cannot be converted.
pub(crate) fn read(deployment: &mut Part<'_>) -> Option<Secret> {
    let uri: Option<Secret> = deployment.named(&SECTION, "uri")?;
    let file: Option<PathBuf> = deployment.named(&SECTION, "uri_file")?;
    let uri = match (uri, file) {
        (Some(uri), None) => Some(uri),
        (None, Some(path)) => connection_string_from(&path, deployment.problems),
        (Some(_), Some(path)) => {
            deployment.add(
                "deployment.uri_file",
                &shown_path(&path),
                "must not be given together with deployment.uri",
            );
            None
        }
        (None, None) => {
            let paths = ["deployment", "deployment.uri", "deployment.uri_file"];
            if !paths.iter().any(|path| deployment.problems.has(path)) {
                deployment.add(
                    "deployment.uri",
                    "",
                    "must be given as deployment.uri, deployment.uri_file or SEAWALL_DEPLOYMENT__URI",
                );
            }
            None
        }
    };
    Some(uri.unwrap_or_else(|| Secret::new(String::new())))
}

/// Splits a connection string around its password: returns the text before the password (scheme and
/// user) and the text after it (hosts and options). `None` if the string has no password. In a
/// password, `@`, `:`, `/` and `?` are always escaped (Connection String specification). The `/`
/// between hosts and options may be absent.
fn around_password(uri: &str) -> Option<(&str, &str)> {
    let authority = uri.find("://")? + "://".len();
    let end = uri[authority..]
        .find(['/', '?'])
        .map_or(uri.len(), |end| authority + end);
    let at = authority + uri[authority..end].rfind('@')?;
    let colon = authority + uri[authority..at].find(':')?;
    Some((&uri[..colon], &uri[at..]))
}

/// The option of a connection string with the password that decrypts the key of the certificate.
const KEY_PASSWORD: &str = "tlsCertificateKeyFilePassword";

/// The password of the user in a connection string; `None` if the string has no password.
pub(crate) fn user_password(uri: &str) -> Option<&str> {
    let (before, after) = around_password(uri)?;
    let password = uri.strip_prefix(before)?.strip_suffix(after)?;
    password.strip_prefix(':')
}

/// Returns a connection string without its passwords: the password of the user, and the password
/// that decrypts the key of the certificate.
pub(crate) fn without_passwords(uri: &str) -> String {
    let uri = match around_password(uri) {
        Some((before, after)) => format!("{before}:{after}"),
        None => uri.to_owned(),
    };
    let (before, options) = uri.split_once('?').unwrap_or((uri.as_str(), ""));
    let options = options
        .split('&')
        .map(|option| match option.split_once('=') {
            Some((name, _)) if name.eq_ignore_ascii_case(KEY_PASSWORD) => name,
            _ => option,
        });
    let options: Vec<&str> = options.collect();
    format!("{before}?{}", options.join("&"))
}

fn connection_string_from(path: &Path, problems: &mut Problems) -> Option<Secret> {
    let uri = secret_from("deployment.uri_file", path, problems)?;
    if is_connection_string(uri.expose()) {
        return Some(uri);
    }
    problems.add(Problem::new(
        "deployment.uri_file",
        &shown_path(path),
        "must contain a string that begins with mongodb:// or mongodb+srv://",
    ));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_is_split_around_the_password_of_the_user() {
        let found = |uri| around_password(uri);
        let rest = "@a,b:1/?authSource=admin";
        for password in ["", "secret", "p%40ss%3Aword"] {
            let uri = format!("mongodb://user:{password}{rest}");
            assert_eq!(around_password(&uri), Some(("mongodb://user", rest)));
        }
        assert_eq!(
            found("mongodb+srv://u:p@h"),
            Some(("mongodb+srv://u", "@h"))
        );
        assert_eq!(
            found("mongodb://u:p@h?appName=a:b@c"),
            Some(("mongodb://u", "@h?appName=a:b@c"))
        );
        assert_eq!(user_password("mongodb://u:p%40@h/?x=u:q@b"), Some("p%40"));
        for uri in [
            "mongodb://a,b:1/",
            "mongodb://user@a/",
            "mongodb://a/?x=u:p@b",
            "mongodb://a?x=u:p@b",
            "other",
        ] {
            assert_eq!(found(uri), None, "{uri}");
            assert_eq!(user_password(uri), None, "{uri}");
        }
    }

    #[test]
    fn without_passwords_removes_the_password_of_the_user_and_the_password_of_the_key() {
        for (uri, expected) in [
            (
                "mongodb://u:p@h/?tls=true&tlsCertificateKeyFilePassword=a%3Db&w=1",
                "mongodb://u:@h/?tls=true&tlsCertificateKeyFilePassword&w=1",
            ),
            (
                "mongodb://h/?TLSCERTIFICATEKEYFILEPASSWORD=p",
                "mongodb://h/?TLSCERTIFICATEKEYFILEPASSWORD",
            ),
            ("mongodb://u@h/?appName=p", "mongodb://u@h/?appName=p"),
        ] {
            assert_eq!(without_passwords(uri), expected);
        }
    }
}
