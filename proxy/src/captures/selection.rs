//! Decides which clients are captured.

use seawall_capture::record;

/// Maximum number of entries in each list of a [`Selection`]. Long lists would delay operations,
/// because Seawall compares clients and operations with each entry.
pub(crate) const MAX_NAMES: usize = 100;

/// Selects the clients that are captured: a client must be in the sample, and must match each list
/// that is not empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The sample, as a share of all clients: above 0 and at most 1.
    pub sample: f64,
    /// Namespaces, each as `database.collection`, or as `database` for all its collections. A
    /// client is captured from its first operation on one of them.
    pub namespaces: Vec<String>,
    /// Users, as `database.user`.
    pub users: Vec<String>,
    /// Names of applications, as their drivers send them in the handshake.
    pub applications: Vec<String>,
}

impl Default for Selection {
    /// All clients.
    fn default() -> Self {
        Self {
            sample: 1.0,
            namespaces: Vec::new(),
            users: Vec::new(),
            applications: Vec::new(),
        }
    }
}

/// Properties of a client, which the capture records. A [`Selection`] looks up the application name
/// and the user in its lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// The application name; empty if there is none.
    pub application: String,
    /// The driver's name and version; empty if they are not known.
    pub driver: String,
    /// The user, as `database.user`; empty without access control.
    pub user: String,
}

/// The decision of a [`Selection`] about one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelectionVerdict {
    /// The client is not captured.
    Outside,
    /// The client is not captured yet. Its first operation on one of the namespaces adds the client
    /// to the capture.
    AwaitsNamespace,
    /// The client is captured.
    Inside,
}

impl Selection {
    /// Decides whether a client is captured. `number` identifies the client within the process.
    /// `seed` differs between captures, so that the samples of two captures are independent.
    pub(super) fn verdict(&self, seed: u64, number: u64, client: &Described) -> SelectionVerdict {
        let is_listed = |list: &[String], name: &String| list.is_empty() || list.contains(name);
        let is_inside = self.samples(seed, number)
            && is_listed(&self.users, &client.user)
            && is_listed(&self.applications, &client.application);
        match (is_inside, self.namespaces.is_empty()) {
            (false, _) => SelectionVerdict::Outside,
            (true, false) => SelectionVerdict::AwaitsNamespace,
            (true, true) => SelectionVerdict::Inside,
        }
    }

    /// True if the namespaces contain the collection or its database.
    pub(super) fn contains(&self, db: &str, collection: Option<&str>) -> bool {
        self.namespaces.iter().any(|namespace| {
            let rest = namespace.strip_prefix(db);
            rest.is_some_and(|rest| {
                rest.is_empty() || (rest.strip_prefix('.') == collection && collection.is_some())
            })
        })
    }

    fn samples(&self, seed: u64, number: u64) -> bool {
        let high_half = u32::try_from(split_mix_64(seed ^ number) >> 32).unwrap_or(u32::MAX);
        self.sample >= 1.0 || f64::from(high_half) / 2_f64.powi(32) < self.sample
    }

    pub(super) fn to_record(&self) -> record::Selection {
        record::Selection {
            sample: self.sample,
            namespaces: self.namespaces.clone(),
            users: self.users.clone(),
            applications: self.applications.clone(),
        }
    }
}

/// The finalizer of SplitMix64, which maps similar numbers to unrelated numbers. (Steele, Lea and
/// Flood: "Fast splittable pseudorandom number generators", 2014; the constants are those of
/// Vigna's public-domain `splitmix64.c`.)
fn split_mix_64(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// If namespaces are listed too, a client is captured from its first operation on one of them.
    #[test]
    fn only_clients_that_match_each_non_empty_list_are_captured() {
        let client = Described {
            application: "shop".to_owned(),
            driver: String::new(),
            user: "admin.app".to_owned(),
        };
        let verdict = |users: &[&str], applications: &[&str], namespaces: &[&str]| {
            let selection = Selection {
                users: names(users),
                applications: names(applications),
                namespaces: names(namespaces),
                ..Selection::default()
            };
            selection.verdict(7, 1, &client)
        };
        assert_eq!(verdict(&[], &[], &[]), SelectionVerdict::Inside);
        assert_eq!(
            verdict(&["admin.app"], &["shop"], &[]),
            SelectionVerdict::Inside
        );
        assert_eq!(
            verdict(&["admin.app"], &["other"], &[]),
            SelectionVerdict::Outside
        );
        assert_eq!(verdict(&["app"], &[], &[]), SelectionVerdict::Outside);
        assert_eq!(
            verdict(&[], &["shop"], &["d"]),
            SelectionVerdict::AwaitsNamespace
        );
        assert_eq!(verdict(&["x.y"], &[], &["d"]), SelectionVerdict::Outside);
    }

    #[test]
    fn a_selected_namespace_is_a_collection_or_a_whole_database() {
        let selection = Selection {
            namespaces: names(&["shop", "crm.people", "a.b.c"]),
            ..Selection::default()
        };
        for (db, collection, expected) in [
            ("shop", Some("orders"), true),
            ("shop", None, true),
            ("shops", Some("orders"), false),
            ("sho", Some("p"), false),
            ("crm", Some("people"), true),
            ("crm", Some("people2"), false),
            ("crm", None, false),
            ("a", Some("b.c"), true),
            ("a", Some("b"), false),
        ] {
            let contains = selection.contains(db, collection);
            assert_eq!(contains, expected, "{db} {collection:?}");
        }
    }

    #[test]
    fn a_sample_has_the_configured_share_of_all_clients_and_differs_between_seeds() {
        let selection = Selection {
            sample: 0.25,
            ..Selection::default()
        };
        let selected = |seed: u64| {
            let numbers = 0..10_000_u64;
            let all = numbers.filter(|number| selection.samples(seed, *number));
            all.collect::<Vec<_>>()
        };
        let (one, two) = (selected(1), selected(2));
        assert!((2_300..2_700).contains(&one.len()), "{}", one.len());
        assert_ne!(one, two);
        assert_eq!(one, selected(1));
    }
}
