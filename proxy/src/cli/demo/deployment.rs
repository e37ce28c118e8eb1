//! The private mongod of a demonstration. It is a replica set of one member, it uses access
//! control, and its users have random passwords.

use std::{fmt, fmt::Write as _, path::Path};

use mongodb::{
    Client,
    bson::{Document, doc},
    options::{ClientOptions, Credential},
};
use rand::{TryRng as _, rngs::SysRng};

use super::{DemoError, traffic::DATABASE};
use seawall_console::say;
use seawall_mongod::{
    Member, Mongod, Options, ReplicaSetSettings, create_first_user, initiate_replica_set,
};

/// The user of the demonstration's clients.
pub(super) const USER: &str = "demo";

/// The demonstration's mongod. Dropping this value stops the mongod and removes its data.
pub(super) struct Deployment {
    password: String,
    /// A client that logs in as root and bypasses Seawall, to read the mongod's counters.
    root: Client,
    mongod: Mongod,
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deployment")
            .field("mongod", &self.mongod)
            .finish_non_exhaustive()
    }
}

/// Counters of a mongod: their values since its start, or their increase during a burst of short
/// connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerCounts {
    /// `None` if the mongod does not report the number of connections.
    pub(super) connections: Option<i64>,
    /// `None` if the mongod does not count logins. Only versions from 4.4 on count them.
    pub(super) authentications: Option<i64>,
}

impl ServerCounts {
    /// The counters in a reply to `serverStatus`.
    fn of(status: &Document) -> Self {
        let [a, b, c] = ["security", "authentication", "mechanisms"];
        let authentications = ["SCRAM-SHA-256", "SCRAM-SHA-1"]
            .map(|mechanism| number(status, &[a, b, c, mechanism, "authenticate", "successful"]));
        Self {
            connections: number(status, &["connections", "totalCreated"]),
            authentications: authentications
                .into_iter()
                .flatten()
                .reduce(|sum, more| sum + more),
        }
    }

    /// The increase of the counters since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        let increase = |now: Option<i64>, before: Option<i64>| Some(now? - before?);
        Self {
            connections: increase(self.connections, before.connections),
            authentications: increase(self.authentications, before.authentications),
        }
    }
}

impl Deployment {
    pub(super) async fn start(program: &Path) -> Result<Self, DemoError> {
        say("Starting mongod as a replica set of one member, with access control ...");
        let options = Options {
            replica_set: Some(SET.to_owned()),
            auth: true,
            ..Options::default()
        };
        let mongod = Mongod::start(program, options).await?;
        initiate_replica_set(&[Member::new(&mongod)], ReplicaSetSettings::default()).await?;
        let (root_password, password) = (random_password()?, random_password()?);
        create_first_user(&mongod, ROOT, &root_password).await?;
        let root = mongod.direct_client(Some(credential(ROOT, &root_password)))?;
        let admin = root.database("admin");
        let new_user = doc! {
            "createUser": USER,
            "pwd": &password,
            "roles": [{ "role": "readWrite", "db": DATABASE }],
            "writeConcern": { "w": "majority" },
        };
        admin.run_command(new_user).await?;
        let build = admin.run_command(doc! { "buildInfo": 1 }).await?;
        say(&format!(
            "mongod {} listens on {}; its data is in {}.",
            build.get_str("version").unwrap_or("of an unknown version"),
            mongod.address(),
            mongod.data_dir().display()
        ));
        Ok(Self {
            password,
            root,
            mongod,
        })
    }

    /// The connection string, without credentials.
    pub(super) fn uri(&self) -> String {
        format!("mongodb://{}/?replicaSet={SET}", self.mongod.address())
    }

    /// The credential of the demonstration's clients.
    pub(super) fn user(&self) -> Credential {
        credential(USER, &self.password)
    }

    pub(super) fn password(&self) -> &str {
        &self.password
    }

    /// Options for a client that logs in as [`USER`] and bypasses Seawall.
    pub(super) async fn user_options(&self) -> Result<ClientOptions, DemoError> {
        let mut options = ClientOptions::parse(self.uri()).await?;
        options.credential = Some(self.user());
        Ok(options)
    }

    /// Reads the mongod's counters.
    pub(super) async fn counts(&self) -> Result<ServerCounts, DemoError> {
        let command = doc! { "serverStatus": 1 };
        let status = self.root.database("admin").run_command(command).await?;
        Ok(ServerCounts::of(&status))
    }
}

/// The number at the end of a path; `None` if there is none.
fn number(document: &Document, path: &[&str]) -> Option<i64> {
    let (last, parents) = path.split_last()?;
    let mut document = document;
    for parent in parents {
        document = document.get_document(parent).ok()?;
    }
    let long = document.get_i64(last);
    long.or_else(|_| document.get_i32(last).map(i64::from)).ok()
}

fn credential(user: &str, password: &str) -> Credential {
    Credential::builder()
        .username(user.to_owned())
        .password(password.to_owned())
        .source("admin".to_owned())
        .build()
}

fn random_password() -> Result<String, seawall_mongod::Error> {
    let mut bytes = [0; 12];
    SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(seawall_mongod::Error::Entropy)?;
    let mut password = String::new();
    for byte in bytes {
        write!(password, "{byte:02x}").expect("writing to a String cannot fail");
    }
    Ok(password)
}

const SET: &str = "demo";
const ROOT: &str = "root";

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions before 4.4 have no section `security.authentication`.
    #[test]
    fn the_logins_of_both_mechanisms_are_added_up_and_are_unknown_without_counters() {
        let logins = |successful: i64| doc! { "authenticate": { "successful": successful } };
        let mut status = doc! { "connections": { "totalCreated": 7 } };
        let counts = ServerCounts::of(&status);
        assert_eq!(
            (counts.connections, counts.authentications),
            (Some(7), None)
        );
        let mechanisms = doc! { "SCRAM-SHA-1": logins(1), "SCRAM-SHA-256": logins(2) };
        status.insert(
            "security",
            doc! { "authentication": { "mechanisms": mechanisms } },
        );
        assert_eq!(ServerCounts::of(&status).authentications, Some(3));
        assert_eq!(
            ServerCounts::of(&status).since(counts).authentications,
            None
        );
    }

    #[test]
    fn a_number_is_found_by_its_path() {
        let document = doc! { "a": { "b": 3_i32, "c": 4_i64, "d": "x" } };
        let cases = [
            (vec!["a", "b"], Some(3)),
            (vec!["a", "c"], Some(4)),
            (vec!["a", "d"], None),
            (vec!["a", "e"], None),
            (vec!["b", "b"], None),
            (vec![], None),
        ];
        for (path, expected) in cases {
            assert_eq!(number(&document, &path), expected, "{path:?}");
        }
    }

    #[test]
    fn two_random_passwords_differ() {
        assert_ne!(random_password().unwrap(), random_password().unwrap());
    }
}
