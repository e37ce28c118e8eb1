//! Learns which field names are data, for example user ids that an application uses as field names:
//! if there are many different names below a prefix of a field path, these names are data. The
//! fingerprint version `fp1` calls this rule R5.
//!
//! Only commands whose row is not in the recorder's cache are examined, for example commands with a
//! new shape. Once more than 64 names were seen below a prefix, all names below that prefix count
//! as data. Commands that differ only in such names then have the same shape.
//!
//! The number of prefixes is limited, and users share it. So a user that invents prefixes does not
//! prevent Seawall from learning the prefixes of other users.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use seawall_command::CommandBytes;
use seawall_locks::Mutex;
use seawall_shape::{ChildName, LearnedNames, Prefix};

/// Maximum number of names below one prefix; if there are more, the names are data.
const MAX_NAMES: usize = 64;

/// Maximum number of prefixes whose names are counted at the same time. It bounds memory.
const MAX_WATCHED: usize = 1_024;

/// Maximum number of learned prefixes. Once this number is reached, no more prefixes are learned,
/// and only the size of the shape table limits the number of shapes.
const MAX_LEARNED: usize = 4_096;

/// A further prefix can be learned from a user's command only if `own < SHARE * left`. Here, `own`
/// is the number of prefixes learned from this user's commands. `left` is the number of prefixes
/// that can still be learned from the commands of all users. So one user can use only about eight
/// ninths of [`MAX_LEARNED`].
const SHARE: usize = 8;

/// The user of a command: its name and its authentication database. Both are empty if the user is
/// not known, so all commands without a known user count as commands of one user.
pub(super) type CommandUser<'a> = (&'a str, &'a str);

/// The prefixes below which names are known to be data, and the names counted below other prefixes.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    state: Mutex<NameState>,
}

#[derive(Debug, Default)]
struct NameState {
    watched: HashMap<Prefix, Watched>,
    learned: Option<Arc<LearnedNames>>,
    /// The users with prefixes, by a hash of their names.
    users: HashMap<u64, UserPrefixes>,
    hasher: RandomState,
}

/// The names that were counted below one prefix.
#[derive(Debug)]
struct Watched {
    /// The user whose command contained the prefix first: the key in [`NameState::users`].
    user: u64,
    names: HashSet<ChildName>,
}

/// The number of prefixes that a user causes.
#[derive(Debug, Default)]
struct UserPrefixes {
    watched: usize,
    /// Number of prefixes that were learned from the user's commands.
    learned: usize,
}

impl NameTable {
    /// The prefixes of field paths below which all field names count as data, not as part of the
    /// shape; `None` if there are no such prefixes.
    pub(super) fn learned(&self) -> Option<Arc<LearnedNames>> {
        self.state.lock().learned.clone()
    }

    /// Counts the field names in a user's command. Returns the number of prefixes learned from this
    /// command.
    pub(super) fn add_names(&self, user: CommandUser<'_>, input: &CommandBytes<'_>) -> u64 {
        let known = self.learned().unwrap_or_default();
        let children = known.child_names(input);
        if children.is_empty() || known.len() >= MAX_LEARNED {
            return 0;
        }
        let mut state = self.state.lock();
        let user = state.hasher.hash_one(user);
        let found: HashSet<Prefix> = children
            .into_iter()
            .filter(|(prefix, name)| state.add_and_check_limit(user, *prefix, *name))
            .map(|(prefix, _)| prefix)
            .collect();
        let share = state.left_for(user);
        let new: Vec<Prefix> = found.into_iter().take(share).collect();
        if !new.is_empty() {
            state.learn(user, &new);
        }
        u64::try_from(new.len()).unwrap_or(u64::MAX)
    }

    /// Estimated memory of the table, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let state = self.state.lock();
        let names = state.watched.values().map(|of| of.names.capacity());
        let entries = state.watched.len() + state.learned_len() + state.users.len();
        names.sum::<usize>() * size_of::<ChildName>() + entries * size_of::<Prefix>() * 4
    }
}

impl NameState {
    /// Counts a name below a prefix. True if there are now too many names below the prefix.
    fn add_and_check_limit(&mut self, user: u64, prefix: Prefix, name: ChildName) -> bool {
        if !self.watched.contains_key(&prefix) {
            if self.watched.len() >= MAX_WATCHED {
                self.drop_watched();
            }
            self.change(user, |own| own.watched += 1);
        }
        let watched = self.watched.entry(prefix).or_insert_with(|| Watched {
            user,
            names: HashSet::new(),
        });
        let names = &mut watched.names;
        if names.len() <= MAX_NAMES {
            names.insert(name);
        }
        names.len() > MAX_NAMES
    }

    /// Drops watched prefixes of the user with the most watched prefixes. Chooses the prefixes with
    /// only one name, because most prefixes have only one name. If this user has no such prefix,
    /// drops all watched prefixes of this user. A dropped prefix can still be learned later.
    fn drop_watched(&mut self) {
        let users = self.users.iter();
        let Some((&greediest, _)) = users.max_by_key(|(_, own)| own.watched) else {
            return;
        };
        let before = self.watched.len();
        self.watched
            .retain(|_, of| of.user != greediest || of.names.len() > 1);
        if self.watched.len() == before {
            self.watched.retain(|_, of| of.user != greediest);
        }
        let dropped = before - self.watched.len();
        self.change(greediest, |own| own.watched -= dropped);
    }

    fn learned_len(&self) -> usize {
        self.learned.as_ref().map_or(0, |learned| learned.len())
    }

    /// Number of prefixes that can still be learned from commands of this user. With each prefix,
    /// `own` rises by one and `left` falls by one, see [`SHARE`].
    fn left_for(&self, user: u64) -> usize {
        let own = self.users.get(&user).map_or(0, |own| own.learned);
        let left = MAX_LEARNED.saturating_sub(self.learned_len());
        (SHARE * left).saturating_sub(own).div_ceil(SHARE + 1)
    }

    /// Learns prefixes from a command of this user.
    fn learn(&mut self, user: u64, prefixes: &[Prefix]) {
        let mut learned = LearnedNames::clone(&self.learned.take().unwrap_or_default());
        for prefix in prefixes {
            learned.learn(*prefix);
            if let Some(of) = self.watched.remove(prefix) {
                self.change(of.user, |own| own.watched -= 1);
            }
        }
        self.learned = Some(Arc::new(learned));
        self.change(user, |own| own.learned += prefixes.len());
    }

    /// Changes the numbers of a user, and removes a user without prefixes.
    fn change(&mut self, user: u64, change: impl FnOnce(&mut UserPrefixes)) {
        let own = self.users.entry(user).or_default();
        change(own);
        if own.watched == 0 && own.learned == 0 {
            self.users.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, doc};
    use tokio::time::Instant;

    use super::*;
    use crate::observe::{Observer, ObserverSettings};
    use seawall_stats::Outcome;

    fn add(table: &NameTable, command: &Document) -> u64 {
        add_of("app", table, command)
    }

    fn add_of(user: &str, table: &NameTable, command: &Document) -> u64 {
        let body = command.to_vec().unwrap();
        table.add_names((user, "admin"), &CommandBytes::of_body(&body))
    }

    /// Converts a number to a word of letters. Such a word does not look like data.
    fn word(number: usize) -> String {
        let digits = number.to_string();
        digits.bytes().map(|digit| char::from(digit + 49)).collect()
    }

    fn set(path: &str) -> Document {
        set_all([path.to_owned()])
    }

    fn set_all(paths: impl IntoIterator<Item = String>) -> Document {
        let changes = paths.into_iter().map(|path| (path, Bson::Int32(1)));
        let update = doc! {"$set": changes.collect::<Document>()};
        doc! {"update": "games", "updates": [{"q": {"_id": 1}, "u": update}], "$db": "d"}
    }

    /// Sends updates of this user with 65 different names below `scores`. Checks that Seawall then
    /// treats all names below `scores` as data.
    fn assert_scores_are_learned(user: &str, table: &NameTable) {
        let names = (0..65).map(|name| format!("scores.{}", word(name)));
        let learned: u64 = names.map(|path| add_of(user, table, &set(&path))).sum();
        assert_eq!(learned, 1);
    }

    /// For example, an application may use user ids as field names. Seawall learns such names.
    #[test]
    fn the_field_names_below_a_field_are_data_once_65_different_names_were_seen() {
        let table = NameTable::default();
        for number in 0..64 {
            let path = format!("scores.{}", word(number));
            // A repeated name counts once.
            for _ in 0..3 {
                assert_eq!(add(&table, &set(&path)), 0);
            }
        }
        assert!(table.learned().is_none());
        assert_eq!(add(&table, &set("scores.zoe")), 1);
        assert_eq!(add(&table, &set("scores.yan")), 0);
        assert_eq!(table.learned().unwrap().len(), 1);
    }

    /// After 65 different field names below a field, Seawall counts these names as data.
    #[test]
    fn commands_that_differ_only_in_field_names_that_are_data_have_the_same_shape() {
        let settings = ObserverSettings {
            counts_shapes: true,
            max_shapes: 1_000,
            name_key: None,
            max_namespaces: 10,
            keeps_seconds: false,
        };
        let observer = Observer::new(settings, None).unwrap();
        let run = |command: &Document| {
            let body = command.to_vec().unwrap();
            let input = CommandBytes::of_body(&body);
            let now = Instant::now();
            let observation = observer.recorder.begin(&input, 100, now);
            observation.finish(Outcome::Ok, now);
        };
        let filter = |name: usize| doc! {"find": "games", "filter": {format!("scores.{}.best", word(name)): 1}, "$db": "d"};
        (0..65).for_each(|name| run(&filter(name)));
        let before: u64 = counts(&observer).values().sum();
        (100..200).for_each(|name| run(&filter(name)));
        let shapes = counts(&observer);
        assert_eq!(shapes.get("{filter:{scores.*.best:?}}"), Some(&101));
        assert_eq!(shapes.values().sum::<u64>(), before + 100);
        // The names were learned only for the field `scores` of the collection `games`. So the
        // shapes of another collection and of another field contain their names.
        run(&doc! {"find": "other", "filter": {"scores.zoe.best": 1}, "$db": "d"});
        run(&doc! {"find": "games", "filter": {"name.first": 1, "scores": 2}, "$db": "d"});
        let shapes = counts(&observer);
        assert!(shapes.contains_key("{filter:{scores.zoe.best:?}}"));
        assert!(shapes.contains_key("{filter:{name.first:?,scores:?}}"));
    }

    fn counts(observer: &Observer) -> HashMap<String, u64> {
        let shapes = observer.totals.shapes().into_iter();
        let counts = shapes.map(|row| (row.shape.text.to_string(), row.sums.figures.count));
        counts.collect()
    }

    /// Seawall learns that field names are data after 65 different names below one field.
    #[test]
    fn nothing_is_learned_from_top_level_names_or_from_names_that_look_like_data() {
        let table = NameTable::default();
        for number in 0..200 {
            let name = word(number);
            add(&table, &set(&name));
            add(&table, &set(&format!("scores.{}", 10_000 + number)));
            add(&table, &set(&format!("scores.$[{name}]")));
            add(
                &table,
                &doc! {"find": name, "filter": {"a.b": 1}, "$db": "d"},
            );
        }
        assert!(table.learned().is_none());
    }

    /// Seawall counts different field names below a field, to learn which names are data.
    #[test]
    fn the_number_of_fields_whose_child_names_are_counted_is_limited() {
        let table = NameTable::default();
        for number in 0..3_000 {
            add(&table, &set(&format!("{}.one", word(number))));
            add(&table, &set(&format!("{}.two", word(number / 2))));
        }
        assert!(table.state.lock().watched.len() <= MAX_WATCHED);
        assert!(table.bytes() < 1 << 20);
        for number in 0..65 {
            add(&table, &set(&format!("scores.{}", word(number))));
        }
        assert_eq!(table.learned().unwrap().len(), 1);
    }

    /// After 65 different field names below a field, Seawall counts these names as data. The number
    /// of such fields is limited.
    #[test]
    fn one_user_cannot_use_the_whole_limit_of_fields_whose_child_names_are_data() {
        let table = NameTable::default();
        for group in 0..MAX_LEARNED.div_ceil(64) {
            for name in 0..65 {
                let fields = (group * 64..(group + 1) * 64).map(word);
                let paths = fields.map(|field| format!("{field}.{}", word(name)));
                add_of("greedy", &table, &set_all(paths));
            }
        }
        assert_eq!(table.learned().unwrap().len(), MAX_LEARNED / 9 * 8 + 1);
        assert_scores_are_learned("app", &table);
    }

    /// Seawall counts different field names below a field, to learn which names are data.
    #[test]
    fn field_names_that_one_user_invents_do_not_end_the_counts_of_another_user() {
        let table = NameTable::default();
        let invent = |round: usize| {
            for field in round * MAX_WATCHED..(round + 1) * MAX_WATCHED {
                let paths = ["one", "two"].map(|name| format!("{}.{name}", word(field)));
                add_of("greedy", &table, &set_all(paths));
            }
        };
        for name in 0..64 {
            let path = format!("scores.{}", word(name));
            assert_eq!(add(&table, &set(&path)), 0);
        }
        (0..2).for_each(invent);
        assert_eq!(add(&table, &set("scores.zoe")), 1);
    }
}
