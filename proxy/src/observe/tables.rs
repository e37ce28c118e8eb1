//! Statistics by namespace and by shape: what each worker thread gathers, and what all came to.
//!
//! A thread adds to a shard of its own behind a mutex that only the collector ever shares, and the collector
//! takes a shard's figures away whole, so neither waits for the other. Which row an operation counts in is
//! decided once a shape by the registry, which is bounded: what does not fit counts in the namespace's row
//! `other`, and beyond that in the command's, so the sums are always exact.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    history::Distribution,
    shape::{Description, ShapeId},
};

use super::observation::{OUTCOMES, Outcome, PHASES};

/// The shape text of rows that stand for several shapes.
pub const OTHER: &str = "other";

/// A row of the namespace table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceIndex(usize);

/// A row of the shape table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeIndex(usize);

/// Where an operation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its command and namespace.
    pub namespace: NamespaceIndex,
    /// Its shape, if shapes are counted.
    pub shape: Option<ShapeIndex>,
}

/// A command on a collection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The command's canonical name.
    pub command: &'static str,
    /// The database.
    pub db: Arc<str>,
    /// The collection; empty for commands without one.
    pub collection: Arc<str>,
}

/// A kind of operation.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its id; for rows `other` that of the namespace's name.
    pub id: ShapeId,
    /// Its command and namespace.
    pub namespace: Namespace,
    /// Its text.
    pub text: Arc<str>,
}

/// What an operation came to, given to a shard when it ends.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) place: Place,
    /// The shape that opened the cursor, for a `getMore`.
    pub(super) origin: Option<ShapeIndex>,
    pub(super) outcome: Outcome,
    pub(super) phases: [Duration; PHASES],
    pub(super) request_bytes: u64,
    pub(super) reply_bytes: u64,
    pub(super) documents: u64,
    pub(super) is_streamed: bool,
}

/// Sums of one namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceSums {
    /// Operations by outcome.
    pub outcomes: [u64; OUTCOMES],
    /// Their durations.
    pub durations: Distribution,
    /// Bytes of their requests.
    pub request_bytes: u64,
    /// Bytes of their replies.
    pub reply_bytes: u64,
    /// Documents they returned, wrote or counted.
    pub documents: u64,
    /// Those whose request was forwarded as it came, so that their time began with its first byte.
    pub streamed: u64,
}

/// Sums of one shape.
#[derive(Clone, Debug, Default)]
pub struct ShapeSums {
    /// Operations, without the `getMore`s of their cursors.
    pub count: u64,
    /// Those that failed, by whomsoever's fault.
    pub errors: u64,
    /// Durations.
    pub durations: Distribution,
    /// Time in each phase.
    pub phases: [Duration; PHASES],
    /// Bytes of requests.
    pub request_bytes: u64,
    /// Bytes of replies.
    pub reply_bytes: u64,
    /// Documents.
    pub documents: u64,
    /// Operations whose request was forwarded as it came.
    pub streamed: u64,
    /// `getMore`s on cursors that this shape opened.
    pub more_count: u64,
    /// Their time.
    pub more_time: Duration,
    /// Their documents.
    pub more_documents: u64,
}

/// What a shard, or all of them, gathered.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) namespaces: Vec<Option<Box<NamespaceSums>>>,
    pub(super) shapes: Vec<Option<Box<ShapeSums>>>,
    pub(super) phases: [Distribution; PHASES],
}

impl Sums {
    pub(super) fn add(&mut self, record: &Record) {
        let total = record.phases.iter().sum();
        let sums = row(&mut self.namespaces, record.place.namespace.0);
        if let Some(count) = sums.outcomes.get_mut(record.outcome.index()) {
            *count += 1;
        }
        sums.durations.record(total);
        sums.request_bytes += record.request_bytes;
        sums.reply_bytes += record.reply_bytes;
        sums.documents += record.documents;
        sums.streamed += u64::from(record.is_streamed);
        if record.outcome == Outcome::Local {
            return;
        }
        for (distribution, time) in self.phases.iter_mut().zip(record.phases) {
            distribution.record(time);
        }
        if let Some(origin) = record.origin {
            let sums = row(&mut self.shapes, origin.0);
            sums.more_count += 1;
            sums.more_time += total;
            sums.more_documents += record.documents;
        } else if let Some(shape) = record.place.shape {
            row(&mut self.shapes, shape.0).add(record, total);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        merge_rows(&mut self.namespaces, other.namespaces, NamespaceSums::merge);
        merge_rows(&mut self.shapes, other.shapes, ShapeSums::merge);
        let pairs = self.phases.iter_mut().zip(&other.phases);
        pairs.for_each(|(mine, theirs)| mine.merge(theirs));
    }
}

fn row<T: Default>(rows: &mut Vec<Option<Box<T>>>, index: usize) -> &mut T {
    if rows.len() <= index {
        rows.resize_with(index + 1, || None);
    }
    let place = rows
        .get_mut(index)
        .expect("the rows were just made long enough");
    place.get_or_insert_default()
}

fn merge_rows<T: Default>(
    mine: &mut Vec<Option<Box<T>>>,
    theirs: Vec<Option<Box<T>>>,
    merge: impl Fn(&mut T, &T),
) {
    for (index, sums) in theirs.into_iter().enumerate() {
        if let Some(sums) = sums {
            merge(row(mine, index), &sums);
        }
    }
}

impl NamespaceSums {
    fn merge(&mut self, other: &Self) {
        let pairs = self.outcomes.iter_mut().zip(other.outcomes);
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        self.durations.merge(&other.durations);
        self.request_bytes += other.request_bytes;
        self.reply_bytes += other.reply_bytes;
        self.documents += other.documents;
        self.streamed += other.streamed;
    }
}

impl ShapeSums {
    fn add(&mut self, record: &Record, total: Duration) {
        self.count += 1;
        self.errors += u64::from(record.outcome.is_failure());
        self.durations.record(total);
        let pairs = self.phases.iter_mut().zip(record.phases);
        pairs.for_each(|(sum, time)| *sum += time);
        self.request_bytes += record.request_bytes;
        self.reply_bytes += record.reply_bytes;
        self.documents += record.documents;
        self.streamed += u64::from(record.is_streamed);
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.errors += other.errors;
        self.durations.merge(&other.durations);
        let pairs = self.phases.iter_mut().zip(other.phases);
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        self.request_bytes += other.request_bytes;
        self.reply_bytes += other.reply_bytes;
        self.documents += other.documents;
        self.streamed += other.streamed;
        self.more_count += other.more_count;
        self.more_time += other.more_time;
        self.more_documents += other.more_documents;
    }
}

/// Which rows there are. Shared by the threads, asked once a shape and thread.
#[derive(Debug)]
pub(super) struct Registry {
    max_shapes: usize,
    max_namespaces: usize,
    namespaces: Vec<Namespace>,
    namespace_rows: HashMap<Namespace, usize>,
    shapes: Vec<(Shape, SystemTime)>,
    shape_rows: HashMap<ShapeId, usize>,
    /// Shapes that got no row of their own.
    pub(super) folded: u64,
}

impl Registry {
    /// At most so many rows; the rows `other` come on top, at most one a namespace and one a command.
    pub(super) fn new(max_shapes: usize, max_namespaces: usize) -> Self {
        Self {
            max_shapes,
            max_namespaces,
            namespaces: Vec::new(),
            namespace_rows: HashMap::new(),
            shapes: Vec::new(),
            shape_rows: HashMap::new(),
            folded: 0,
        }
    }

    /// The place of a described operation; `counts_shapes` is false for commands that Seawall answers.
    pub(super) fn place(
        &mut self,
        id: ShapeId,
        description: &Description,
        counts_shapes: bool,
        now: SystemTime,
    ) -> Place {
        let index = self.namespace(description);
        let shape = counts_shapes.then(|| self.shape(id, index, &description.shape, now));
        Place {
            namespace: NamespaceIndex(index),
            shape,
        }
    }

    fn namespace(&mut self, description: &Description) -> usize {
        let wanted = Namespace {
            command: description.op,
            db: description.db.as_str().into(),
            collection: description.collection.as_str().into(),
        };
        if let Some(index) = self.namespace_rows.get(&wanted) {
            return *index;
        }
        if self.namespaces.len() < self.max_namespaces {
            return self.add_namespace(wanted);
        }
        let other = Namespace {
            command: description.op,
            db: OTHER.into(),
            collection: OTHER.into(),
        };
        match self.namespace_rows.get(&other) {
            Some(index) => *index,
            None => self.add_namespace(other),
        }
    }

    fn add_namespace(&mut self, namespace: Namespace) -> usize {
        let index = self.namespaces.len();
        self.namespaces.push(namespace.clone());
        self.namespace_rows.insert(namespace, index);
        index
    }

    fn shape(&mut self, id: ShapeId, namespace: usize, text: &str, now: SystemTime) -> ShapeIndex {
        if let Some(index) = self.shape_rows.get(&id) {
            return ShapeIndex(*index);
        }
        if self.shape_rows.len() < self.max_shapes {
            return self.add_shape(id, namespace, text, now);
        }
        self.folded += 1;
        let id = other_id(namespace);
        match self.shape_rows.get(&id) {
            Some(index) => ShapeIndex(*index),
            None => self.add_shape(id, namespace, OTHER, now),
        }
    }

    fn add_shape(
        &mut self,
        id: ShapeId,
        namespace: usize,
        text: &str,
        now: SystemTime,
    ) -> ShapeIndex {
        let index = self.shapes.len();
        let namespace = self
            .namespaces
            .get(namespace)
            .expect("the row was just looked up")
            .clone();
        self.shapes.push((
            Shape {
                id,
                namespace,
                text: text.into(),
            },
            now,
        ));
        self.shape_rows.insert(id, index);
        ShapeIndex(index)
    }

    pub(super) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    pub(super) fn shapes(&self) -> &[(Shape, SystemTime)] {
        &self.shapes
    }
}

/// The id of a namespace's row `other`: small numbers, which no hash of 64 bits gives in practice.
fn other_id(namespace: usize) -> ShapeId {
    ShapeId::from_hex(&format!("{namespace:016x}")).expect("a row's number has at most 16 digits")
}
