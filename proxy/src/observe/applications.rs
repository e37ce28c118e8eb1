//! Counts the operations of each shape by application. Operations of one shape differ only in their
//! values.
//!
//! Clients choose the name of their application freely, so each shape counts at most
//! [`APPLICATIONS`] names separately.

use std::sync::Arc;

/// Maximum number of applications that are counted separately for a shape.
const APPLICATIONS: usize = 8;

/// The number of operations of a shape by application.
#[derive(Clone, Debug, Default)]
pub struct ApplicationCounts {
    /// The applications that are counted separately, with their counts; at most [`APPLICATIONS`].
    named: Vec<(Arc<str>, u64)>,
    /// Number of operations of clients without an application name.
    unnamed: u64,
    /// Number of operations that are not counted separately: those of other applications, and
    /// those that were counted before their application got a separate count.
    other: u64,
}

impl ApplicationCounts {
    /// Adds one operation of an application; `None` if the client has no application name. Clients
    /// with the same application name share one copy of the name, so names are compared by their
    /// memory address.
    pub(super) fn add(&mut self, application: Option<&Arc<str>>) {
        let Some(application) = application else {
            self.unnamed += 1;
            return;
        };
        let mut named = self.named.iter_mut();
        if let Some((_, count)) = named.find(|(name, _)| Arc::ptr_eq(name, application)) {
            *count += 1;
        } else if self.named.len() < APPLICATIONS {
            self.named.push((Arc::clone(application), 1));
        } else {
            self.other += 1;
        }
    }

    /// Adds the counts of later operations. If [`APPLICATIONS`] names are already counted
    /// separately, a new name with a higher count than the lowest replaces the name with the lowest
    /// count. So a name with few operations is not counted separately forever.
    pub(super) fn merge(&mut self, later: &Self) {
        self.unnamed += later.unnamed;
        self.other += later.other;
        for (name, count) in &later.named {
            if let Some((_, sum)) = self.named.iter_mut().find(|(known, _)| known == name) {
                *sum += count;
            } else if self.named.len() < APPLICATIONS {
                self.named.push((Arc::clone(name), *count));
            } else {
                let lightest = self.named.iter_mut().min_by_key(|(_, count)| *count);
                match lightest {
                    Some(lightest) if lightest.1 < *count => {
                        self.other += lightest.1;
                        *lightest = (Arc::clone(name), *count);
                    }
                    Some(_) | None => self.other += count,
                }
            }
        }
    }

    /// The applications and their counts, the most frequent first. The name is empty for clients
    /// without an application name. If some operations are not counted separately, the last entry
    /// counts all of these, and its name is `None`.
    pub(crate) fn ranked(&self) -> Vec<(Option<&str>, u64)> {
        let named = self
            .named
            .iter()
            .map(|(name, count)| (Some(&**name), *count));
        let unnamed = [(Some(""), self.unnamed)];
        let mut ranked: Vec<_> = named
            .chain(unnamed)
            .filter(|(_, count)| *count > 0)
            .collect();
        ranked.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.extend((self.other > 0).then_some((None, self.other)));
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::shared_names::SharedNames;

    fn counted(names: &mut SharedNames, of: &[(&str, u64)]) -> ApplicationCounts {
        let mut counts = ApplicationCounts::default();
        for (name, count) in of {
            let name = names.intern(name);
            (0..*count).for_each(|_| counts.add(Some(&name)));
        }
        counts
    }

    #[test]
    fn the_first_eight_applications_are_counted_separately_and_all_others_together() {
        let mut names = SharedNames::default();
        let many: Vec<_> = (0..20).map(|n| (format!("app{n}"), n + 1)).collect();
        let many: Vec<_> = many.iter().map(|(name, count)| (&**name, *count)).collect();
        let mut counts = counted(&mut names, &many);
        counts.add(None);
        let ranked = counts.ranked();
        assert_eq!(ranked.len(), APPLICATIONS + 2);
        assert_eq!(ranked[0], (Some("app7"), 8));
        assert!(ranked.contains(&(Some(""), 1)));
        assert_eq!(ranked.iter().map(|(_, count)| count).sum::<u64>(), 211);
        assert_eq!(ranked.last(), Some(&(None, 211 - 1 - 36)));
    }

    #[test]
    fn a_busier_application_replaces_the_application_with_the_fewest_operations() {
        let mut names = SharedNames::default();
        let light: Vec<_> = (0..9).map(|n| format!("junk{n}")).collect();
        let light: Vec<_> = light.iter().map(|name| (&**name, 2)).collect();
        let mut all = counted(&mut names, &light);
        all.merge(&counted(&mut names, &[("shop", 2)]));
        assert!(all.ranked().iter().all(|(name, _)| *name != Some("shop")));
        all.merge(&counted(&mut names, &[("shop", 50)]));
        all.merge(&counted(&mut names, &[("shop", 1)]));
        assert_eq!(all.ranked()[0], (Some("shop"), 51));
        let sum: u64 = all.ranked().iter().map(|(_, count)| count).sum();
        assert_eq!(sum, 9 * 2 + 2 + 51);
    }
}
