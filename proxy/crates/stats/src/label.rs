//! The names of series: all operations, a shape, a namespace, a server.

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
