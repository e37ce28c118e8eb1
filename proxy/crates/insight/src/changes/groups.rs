//! The operations of a period that are counted in group rows: rows that count several shapes
//! together.

use std::{collections::HashMap, time::Duration};

use seawall_stats::{Figures, Label, Level, Period};

/// The command, the database and the collection of a row.
type Namespace<'a> = (&'a str, &'a str, &'a str);

/// The name of the database and of the collection in rows that count the namespaces without a row
/// of their own.
const OTHER: &str = "other";

/// The operations of a period in [`Label::OtherShapes`] and in group rows: the rows that count
/// several shapes of a command and a namespace together.
pub(super) struct Groups<'a> {
    others: Load,
    by_namespace: HashMap<Namespace<'a>, Load>,
}

/// The load of some operations on the servers.
#[derive(Clone, Copy, Default)]
pub(super) struct Load {
    /// Number of operations.
    pub(super) count: u64,
    /// Total time that servers spent on the operations and their `getMore`s.
    pub(super) time: Duration,
}

impl Load {
    fn add(&mut self, figures: &Figures) {
        self.count += figures.count;
        self.time += figures.load();
    }
}

impl<'a> Groups<'a> {
    pub(super) fn of(period: &'a Period) -> Self {
        let mut groups = Self {
            others: Load::default(),
            by_namespace: HashMap::new(),
        };
        for (label, figures) in &period.series {
            match &**label {
                Label::OtherShapes => groups.others.add(figures),
                Label::Shape {
                    level: Level::Coarse | Level::Rest,
                    command,
                    db,
                    collection,
                    ..
                } => {
                    let namespace: Namespace<'_> = (command, db, collection);
                    let load = groups.by_namespace.entry(namespace).or_default();
                    load.add(figures);
                }
                _ => {}
            }
        }
        groups
    }

    /// The operations in group rows and in [`Label::OtherShapes`] that may be operations of this
    /// shape. They include the group rows of the namespace `other`, because the namespace of the
    /// shape may have had no row of its own.
    pub(super) fn may_include(&self, shape: &Label) -> Load {
        let mut load = self.others;
        if let Label::Shape {
            command,
            db,
            collection,
            ..
        } = shape
        {
            let own: Namespace<'_> = (command, db, collection);
            let other: Namespace<'_> = (command, OTHER, OTHER);
            let groups = [Some(own), Some(other).filter(|other| *other != own)];
            for group in groups.into_iter().flatten() {
                let group = self.by_namespace.get(&group);
                let group = group.copied().unwrap_or_default();
                load.count += group.count;
                load.time += group.time;
            }
        }
        load
    }
}
