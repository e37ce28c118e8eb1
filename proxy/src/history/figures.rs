//! Sums of the operations of a series over a period.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::Distribution;

/// Number of phases of an operation: permit, checkout, forward, server, receive, send.
pub const PHASES: usize = 6;

/// Sums of one series. All fields can be added up, so no mean and no percentile is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations that ended.
    pub count: u64,
    /// Operations that failed, whether the client, the server or Seawall was at fault.
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
    /// Time of these `getMore`s. A `getMore` that waited for an event (an awaiting cursor) adds no
    /// time.
    pub more_time: Duration,
}

impl Figures {
    /// Adds the sums of `other`.
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

    /// Time that these operations cost the servers: their own and that of their cursors.
    pub fn load(&self) -> Duration {
        self.durations.sum() + self.more_time
    }
}

/// The kind of a row in the shape table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// A single shape.
    Fine,
    /// All shapes of one coarse shape that have no row of their own.
    Coarse,
    /// All remaining shapes of a namespace.
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

/// Identifies a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// All operations.
    Whole,
    /// A row of the table of shapes.
    Shape {
        /// One shape, or a group of shapes.
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
    /// All shapes without a series of their own; the heaviest shapes have one.
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
    /// Operations that one server handled. The value is the server's address.
    Server(Box<str>),
}

/// The sums of all series over a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// The known length of the period.
    pub length: Duration,
    /// The series with at least one operation.
    pub series: BTreeMap<Arc<Label>, Figures>,
}

impl Period {
    /// Adds the figures of `other`. The caller adjusts `length`: the two periods may be consecutive
    /// or simultaneous.
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
