//! The deployment's connection string: given in the configuration or in a file.

use std::path::{Path, PathBuf};

use crate::declare::keys;
use crate::problem::{Problem, Problems};
use crate::read::{Part, secret_from, shown_path};
use crate::schema::{Kind, Section, is_connection_string};
use crate::secret::Secret;

/// The two keys for the connection string. Exactly one of them must be given.
pub(crate) const SECTION: Section = Section {
    path: "deployment",
    about: "The servers behind Seawall.",
    is_optional: false,
    keys: keys! {
        /// Connection string of the deployment; required unless `uri_file` is set. A user in it is
        /// the service account.
        key("deployment.uri",
            Kind::ConnectionString, Restart, example "mongodb://127.0.0.1:27017/");
        /// File with the connection string of the deployment, instead of `uri`.
        key("deployment.uri_file",
            Kind::Path, Restart, example "/run/secrets/uri");
    },
};

/// Reads the connection string from `uri` or `uri_file`. Returns an empty text after a problem, so
/// that the relations between the other settings are still checked.
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
