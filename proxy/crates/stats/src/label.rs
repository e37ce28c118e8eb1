//! The labels of series. Most series cover operations: all operations, or only those of one shape,
//! of one namespace or of one server. The other series cover the time that operations spent in one
//! phase.

use super::Phase;

/// Identifies a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// All operations, except two kinds: operations that wait for an event (such as a `getMore` on
    /// a change stream), and operations to which Seawall itself replied.
    Whole,
    /// The operations that one row of the shape table (the counters of all shapes) counts.
    Shape {
        /// The row's level. It says whether the row counts one shape or several shapes.
        level: Level,
        /// The row's id: 16 hexadecimal digits.
        id: Box<str>,
        /// The command's name.
        command: Box<str>,
        /// The database.
        db: Box<str>,
        /// The collection.
        collection: Box<str>,
        /// The text of the shape.
        text: Box<str>,
    },
    /// All shapes without a series of their own, together. Only the shapes with the highest weight
    /// (see `WeighedSeries`) have a series of their own.
    OtherShapes,
    /// The operations of one command on one collection.
    Namespace {
        /// The command's name.
        command: Box<str>,
        /// The database.
        db: Box<str>,
        /// The collection.
        collection: Box<str>,
    },
    /// The operations on one server, except those that wait for an event. The value is the server's
    /// address.
    Server(Box<str>),
    /// The time that operations spent in one phase.
    Phase {
        /// The server of the operations; `None` for all operations.
        server: Option<Box<str>>,
        /// The phase.
        phase: Phase,
    },
}

/// The level of a row of the shape table. It says whether the row counts one shape or several
/// shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// One shape.
    Fine,
    /// All shapes that have the same coarse shape, and no row of their own. A coarse shape is a
    /// shape without the parts of the command that select no documents, such as a projection.
    Coarse,
    /// The remaining shapes of a namespace: the shapes that no other row counts.
    Rest,
}

impl Level {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::Fine, Self::Coarse, Self::Rest];

    /// The name of the level in the API, in metrics and in the history file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Coarse => "coarse",
            Self::Rest => "rest",
        }
    }
}
