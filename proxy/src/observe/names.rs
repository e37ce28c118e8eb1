//! Learns which field names are data, for example user ids that an application uses as field names:
//! if there are many different names below a prefix of a field path, these names are data. The
//! fingerprint version `fp1` calls this rule R5.
//!
//! Only commands with a new shape are examined. Once more than 64 names were seen below a prefix,
//! all names below that prefix count as data. Commands that differ only in such names then have the
//! same shape.

use std::{
    collections::{HashMap, HashSet},
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

/// The prefixes below which names are known to be data, and the names counted below other prefixes.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    state: Mutex<NameState>,
}

#[derive(Debug, Default)]
struct NameState {
    watched: HashMap<Prefix, HashSet<ChildName>>,
    learned: Option<Arc<LearnedNames>>,
}

impl NameTable {
    /// The prefixes of field paths below which all field names count as data, not as part of the
    /// shape; `None` if there are no such prefixes.
    pub(super) fn learned(&self) -> Option<Arc<LearnedNames>> {
        self.state.lock().learned.clone()
    }

    /// Counts the field names in a command. Returns the number of prefixes learned from this
    /// command.
    pub(super) fn add_names(&self, input: &CommandBytes<'_>) -> u64 {
        let known = self.learned().unwrap_or_default();
        let children = known.child_names(input);
        if children.is_empty() || known.len() >= MAX_LEARNED {
            return 0;
        }
        let mut state = self.state.lock();
        let found: HashSet<Prefix> = children
            .into_iter()
            .filter(|(prefix, name)| state.add_and_check_limit(*prefix, *name))
            .map(|(prefix, _)| prefix)
            .collect();
        if !found.is_empty() {
            let mut learned = LearnedNames::clone(&state.learned.take().unwrap_or_default());
            for prefix in &found {
                state.watched.remove(prefix);
                learned.learn(*prefix);
            }
            state.learned = Some(Arc::new(learned));
        }
        u64::try_from(found.len()).unwrap_or(u64::MAX)
    }

    /// Estimated memory of the table, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let state = self.state.lock();
        let names: usize = state.watched.values().map(HashSet::capacity).sum();
        let learned = state.learned.as_ref().map_or(0, |learned| learned.len());
        names * size_of::<ChildName>() + (state.watched.len() + learned) * size_of::<Prefix>() * 4
    }
}

impl NameState {
    fn add_and_check_limit(&mut self, prefix: Prefix, name: ChildName) -> bool {
        if !self.watched.contains_key(&prefix) && self.watched.len() >= MAX_WATCHED {
            // Drop the prefixes with only one name, because most prefixes have only one. If all
            // prefixes have more than one name, drop all prefixes. A dropped prefix can still be
            // learned later.
            self.watched.retain(|_, names| names.len() > 1);
            if self.watched.len() >= MAX_WATCHED {
                self.watched.clear();
            }
        }
        let names = self.watched.entry(prefix).or_default();
        names.insert(name);
        names.len() > MAX_NAMES
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use tokio::time::Instant;

    use super::*;
    use crate::observe::{Observer, ObserverSettings};
    use seawall_stats::Outcome;

    fn add(table: &NameTable, command: &Document) -> u64 {
        let body = command.to_vec().unwrap();
        table.add_names(&CommandBytes::of_body(&body))
    }

    /// Converts a number to a word of letters. Such a word does not look like data.
    fn word(number: usize) -> String {
        let digits = number.to_string();
        digits.bytes().map(|digit| char::from(digit + 49)).collect()
    }

    fn set(path: &str) -> Document {
        doc! {"update": "games", "updates": [{"q": {"_id": 1}, "u": {"$set": {path: 1}}}], "$db": "d"}
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
        let shapes = observer.exporter.shapes().into_iter();
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
}
