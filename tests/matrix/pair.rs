//! A deployment with two instances of Seawall in front of it. Programs connect to the first
//! instance directly, or to both instances through a load balancer.

use std::borrow::Borrow;

use seawall_tests::{
    balancer::Balancer,
    mongod::{NewUser, Options, ReplicaSet, create_user},
    raw::Mechanism,
    seawall::{self, Seawall},
};
use tokio::sync::OnceCell;

use crate::case::Case;

/// The endpoint to which a program connects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Seawall,
    /// The members of the replica set, without Seawall.
    Servers,
}

/// `S` is [`ReplicaSet`], or a reference to a set that several tests share.
pub(crate) struct Pair<S = ReplicaSet> {
    pub(crate) set: S,
    pub(crate) seawall: Seawall,
    /// The second instance. Only the load balancer connects to it.
    second: Seawall,
    balancer: Balancer,
}

/// The password of all users.
pub(crate) const PASSWORD: &str = "p@ss word";

impl Pair {
    /// Starts servers of its own, and Seawall.
    pub(crate) async fn start(is_tls: bool) -> Self {
        Self::start_with(is_tls, "").await
    }

    /// Like [`Self::start`]. `keys` is additional configuration of the first instance.
    pub(crate) async fn start_with(is_tls: bool, keys: &str) -> Self {
        Self::in_front_of(start_set(is_tls).await, keys).await
    }
}

/// A pair in front of a set that several tests share.
pub(crate) type SharedPair = Pair<&'static ReplicaSet>;

impl SharedPair {
    /// Starts two instances of Seawall in front of a set that all tests with the same `is_tls`
    /// share. So the tests must neither stop a member nor change a setting of the servers.
    pub(crate) async fn start_shared(is_tls: bool) -> Self {
        static SETS: [OnceCell<ReplicaSet>; 2] = [const { OnceCell::const_new() }; 2];
        let set = SETS[usize::from(is_tls)].get_or_init(|| start_set(is_tls));
        Self::in_front_of(set.await, "").await
    }
}

async fn start_set(is_tls: bool) -> ReplicaSet {
    let options = Options {
        tls: is_tls,
        ..Options::with_auth()
    };
    // The programs also read from secondaries, so at least one is needed.
    let members = if is_tls { 2 } else { 3 };
    ReplicaSet::start(members, options).await.unwrap()
}

impl<S: Borrow<ReplicaSet>> Pair<S> {
    async fn in_front_of(owner: S, keys: &str) -> Self {
        let set = owner.borrow();
        let toml = set.certificates().map(|own| own.listen_toml());
        let toml = toml.unwrap_or_default();
        let options = |toml| seawall::Options {
            toml,
            ..seawall::Options::default()
        };
        let seawall = Seawall::start_with(&set.uri(), options(toml.clone() + keys)).await;
        let second = Seawall::start_with(&set.uri(), options(toml)).await;
        let targets = [&seawall, &second].map(|instance| instance.address().parse().unwrap());
        let balancer = Balancer::start(targets.to_vec()).await.unwrap();
        Self {
            set: owner,
            seawall,
            second,
            balancer,
        }
    }

    /// Creates a user whose only rights are on the database of the same name.
    pub(crate) async fn create_user(&self, name: &str, mechanism: Option<Mechanism>) {
        let mechanisms = mechanism.map_or(Mechanism::ALL.to_vec(), |mechanism| vec![mechanism]);
        let user = NewUser::new("admin", name, PASSWORD)
            .role("readWrite", name)
            .role("dbAdmin", name)
            .mechanisms(&mechanisms);
        let administrator = self.set.borrow().administrator().await.unwrap();
        create_user(&administrator, &user).await.unwrap();
    }

    /// Checks that the load balancer distributed the connections over both instances. Also checks
    /// that the second instance got no operation of a cursor or transaction that the first instance
    /// opened. `has_pool` is false if the driver has no connection pool: its only connection
    /// reaches only one instance.
    pub(crate) async fn assert_balanced(&self, has_pool: bool) {
        let connections = self.balancer.connections();
        assert!(connections > 0, "no connection to the load balancer");
        // Seawall itself replies to handshakes, so only other operations show that the second
        // instance is used.
        let is_ok = [r#"outcome="ok""#];
        let served = self.second.metric("seawall_operations_total", &is_ok).await;
        if has_pool || connections > 1 {
            assert!(
                connections > 1 && served > 0.0,
                "expected the second instance to serve operations: {connections} connections, {served} operations"
            );
        }
        let foreign = async |kind: &str| {
            let kind = format!("kind={kind:?}");
            let name = "seawall_foreign_operations_total";
            self.second.metric(name, &[&kind]).await
        };
        let transactions = foreign("transaction").await;
        assert_eq!(
            transactions, 0.0,
            "expected no operation of a transaction that another instance began"
        );
        // Each program sends one operation for a cursor that no server knows. The second instance
        // counts this operation if the load balancer forwards it there, so a count of 1 is allowed.
        let cursors = foreign("cursor").await;
        assert!(
            cursors <= 1.0,
            "expected at most 1 operation on a cursor of another instance, got {cursors}"
        );
    }

    /// The connection string with which this user connects to the target in this case.
    pub(crate) fn uri(&self, user: &str, case: &Case, target: Target) -> String {
        let (hosts, more) = match target {
            Target::Seawall => {
                let host = match case.is_load_balanced() {
                    true => self.balancer.address().to_string(),
                    false => self.seawall.address().to_owned(),
                };
                (host, case.through.to_owned())
            }
            Target::Servers => {
                let members = self.set.borrow().members().iter();
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
        let tls = self.set.borrow().certificates().map(|certificates| {
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

/// [`PASSWORD`], percent-encoded for a connection string.
const PASSWORD_ENCODED: &str = "p%40ss%20word";
