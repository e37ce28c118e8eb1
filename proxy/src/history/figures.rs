//! What a kind of operation came to over some time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::Distribution;

/// Phases of an operation: permit, checkout, forward, server, receive, send.
pub const PHASES: usize = 6;

/// Sums of one series. They add up: no mean and no percentile is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations that ended.
    pub count: u64,
    /// Those that failed, by whomsoever's fault.
    pub errors: u64,
    /// Their durations.
    pub durations: Distribution,
    /// Their time in each phase.
    pub phases: [Duration; PHASES],
    /// Bytes of their requests.
    pub request_bytes: u64,
    /// Bytes of their replies.
    pub reply_bytes: u64,
    /// Documents that they returned, wrote or counted.
    pub documents: u64,
    /// `getMore`s on cursors that they opened.
    pub more_count: u64,
    /// Their time, without such as waited for something to happen.
    pub more_time: Duration,
}

impl Figures {
    /// Adds another's.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.errors += other.errors;
        self.durations.merge(&other.durations);
        let pairs = self.phases.iter_mut().zip(other.phases);
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        self.request_bytes += other.request_bytes;
        self.reply_bytes += other.reply_bytes;
        self.documents += other.documents;
        self.more_count += other.more_count;
        self.more_time += other.more_time;
    }

    /// What they cost the servers: their own time and that of their cursors.
    pub fn load(&self) -> Duration {
        self.durations.sum() + self.more_time
    }
}

/// What a row of the table of shapes stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// One shape.
    Fine,
    /// The shapes of one coarse shape that have no row of their own.
    Coarse,
    /// All other shapes of a namespace.
    Rest,
}

impl Level {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::Fine, Self::Coarse, Self::Rest];

    /// The name in the API, in metrics and in the history's file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Coarse => "coarse",
            Self::Rest => "rest",
        }
    }
}

/// What a series is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// All operations.
    Whole,
    /// A row of the table of shapes.
    Shape {
        /// Whether it is one shape, or what stands for several.
        level: Level,
        /// Its id, 16 hexadecimal digits.
        id: Box<str>,
        /// The command's name.
        command: Box<str>,
        /// The database.
        db: Box<str>,
        /// The collection.
        collection: Box<str>,
        /// The shape's text.
        text: Box<str>,
    },
    /// The shapes that are not among the heaviest.
    OtherShapes,
    /// One command on one collection.
    Namespace {
        /// The command's name.
        command: Box<str>,
        /// The database.
        db: Box<str>,
        /// The collection.
        collection: Box<str>,
    },
    /// What one server answered, by its address.
    Server(Box<str>),
}

/// What all series came to over some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// How long it was.
    pub length: Duration,
    /// The series in which something happened.
    pub series: BTreeMap<Arc<Label>, Figures>,
}

impl Period {
    /// Adds another's figures; lengths are the caller's affair, since periods may lie side by side or apart.
    pub fn merge(&mut self, other: &Self) {
        for (label, figures) in &other.series {
            match self.series.get_mut(label) {
                Some(mine) => mine.merge(figures),
                None => {
                    self.series.insert(Arc::clone(label), figures.clone());
                }
            }
        }
    }
}
