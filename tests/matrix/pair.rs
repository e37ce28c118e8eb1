//! A deployment with Seawall in front of it.

use seawall_tests::{
    mongod::{NewUser, Options, ReplicaSet, create_user},
    raw::Mechanism,
    seawall::{self, Seawall},
};

use crate::case::Case;

/// Where a program connects to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Seawall,
    /// The members of the replica set, without Seawall.
    Servers,
}

pub(crate) struct Pair {
    pub(crate) set: ReplicaSet,
    pub(crate) seawall: Seawall,
}

impl Pair {
    pub(crate) async fn start(is_tls: bool) -> Self {
        let options = Options {
            tls: is_tls,
            ..Options::with_auth()
        };
        // The programs also read from secondaries, so at least one is needed.
        let members = if is_tls { 2 } else { 3 };
        let set = ReplicaSet::start(members, options).await.unwrap();
        let toml = set.certificates().map(|own| own.listen_toml());
        let options = seawall::Options {
            toml: toml.unwrap_or_default(),
            ..seawall::Options::default()
        };
        let seawall = Seawall::start_with(&set.uri(), options).await;
        Self { set, seawall }
    }

    /// Creates a user whose only rights are on the database of the same name.
    pub(crate) async fn create_user(&self, name: &str, mechanism: Option<Mechanism>) {
        let mechanisms = mechanism.map_or(Mechanism::ALL.to_vec(), |mechanism| vec![mechanism]);
        let user = NewUser::new("admin", name, PASSWORD)
            .role("readWrite", name)
            .role("dbAdmin", name)
            .mechanisms(&mechanisms);
        let administrator = self.set.administrator().await.unwrap();
        create_user(&administrator, &user).await.unwrap();
    }

    /// The connection string of a case.
    pub(crate) fn uri(&self, user: &str, case: &Case, target: Target) -> String {
        let (hosts, more) = match target {
            Target::Seawall => (self.seawall.address().to_owned(), case.through.to_owned()),
            Target::Servers => {
                let members = self.set.members().iter();
                let members: Vec<_> = members.map(|member| member.address().to_string()).collect();
                (
                    members.join(","),
                    format!("&replicaSet={}", ReplicaSet::NAME),
                )
            }
        };
        let mechanism = case
            .mechanism
            .map(|mechanism| format!("&authMechanism={}", mechanism.name()));
        let tls = self.set.certificates().map(|certificates| {
            format!("&tls=true&tlsCAFile={}", certificates.ca_file().display())
        });
        format!(
            "mongodb://{user}:{PASSWORD_ENCODED}@{hosts}/?authSource=admin{}{}{}{more}",
            mechanism.unwrap_or_default(),
            tls.unwrap_or_default(),
            case.parameters
        )
    }
}

const PASSWORD: &str = "p@ss word";
const PASSWORD_ENCODED: &str = "p%40ss%20word";
