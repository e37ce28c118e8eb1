//! Which namespaces and shapes have a row of their own, and what their rows came to.
//!
//! A shape that has no row counts in its *coarse* shape's, and where there is no room for that in the row of its
//! namespace's other shapes; a namespace that has none counts in the row of its command's others. So every operation
//! is in exactly one row, and sums add up whatever the bounds are. The heaviest stay: what has no row is watched by the
//! time that it takes, and what passes the lightest row takes its place; the sums of that go one level up.
//!
//! The rules are R1 to R4 and R6 of the fingerprints' `fp1`. What is watched is bounded by the Space-Saving sketch:
//! Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    history::{Label, Level},
    shape::{Description, Fingerprint, ShapeId},
};

use super::{
    sketch::Sketch,
    sums::{Folded, NamespaceIndex, Place, ShapeIndex, ShapeSums},
};

/// The name and text of what stands for several.
pub const OTHER: &str = "other";

/// Fine shapes under one coarse shape.
const FINE_PER_COARSE: u32 = 64;

/// Coarse rows of a namespace.
const COARSE_PER_NAMESPACE: u32 = 512;

/// Of all rows at most one in so many is coarse: they are never taken away.
const COARSE_SHARE: usize = 10;

/// New shapes of a namespace that get a row in one second.
const ADMITTED_PER_SECOND: u32 = 20;

/// Buckets of the durations that a row has in the mean, for telling its size: two octaves and some strays.
const BUCKETS_OF_A_ROW: usize = 24;

/// The time over which what a shape cost loses half of its weight.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// How long a shape that shall have a row may take to come again.
const PROMOTION_LIFE: u32 = 60;

/// Shapes that get a row in the place of others within a second.
const PROMOTED_PER_SECOND: usize = 64;

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
    /// Its id, the same in every instance.
    pub id: ShapeId,
    /// Its command and namespace.
    pub namespace: Namespace,
    /// Its text.
    pub text: Arc<str>,
    /// Whether it is one shape, or what stands for several.
    pub level: Level,
}

/// A shape and what it came to.
#[derive(Clone, Debug)]
pub struct ShapeRow {
    /// The shape.
    pub shape: Shape,
    /// When it came first.
    pub first_seen: SystemTime,
    /// When it came last, to the second.
    pub last_seen: SystemTime,
    /// Its sums since the start.
    pub sums: ShapeSums,
}

struct Row {
    row: ShapeRow,
    label: Arc<Label>,
    coarse: ShapeId,
    /// The text of its coarse shape, if that is another.
    coarse_text: Option<Arc<str>>,
    /// Seconds that it cost, the older the less.
    weight: f64,
}

#[derive(Default)]
struct NamespaceRow {
    coarse_rows: u32,
    admitted: u32,
}

/// All rows. Asked once a shape and thread, and once a second.
pub(super) struct Registry {
    max_shapes: usize,
    max_namespaces: usize,
    namespaces: Vec<(Namespace, NamespaceRow)>,
    namespace_rows: HashMap<Namespace, usize>,
    rows: BTreeMap<u32, Row>,
    by_id: HashMap<ShapeId, u32>,
    next_serial: u32,
    fine_rows: usize,
    coarse_rows: usize,
    /// Fine rows under each coarse shape, and places kept for some.
    siblings: HashMap<ShapeId, u32>,
    sketch: Sketch,
    /// Shapes for which a place is kept, each with its coarse shape, and for how many seconds still.
    promoted: HashMap<ShapeId, (ShapeId, u32)>,
    evicted: u64,
    /// Rows were taken away since the threads were told.
    is_stale: bool,
}

impl Registry {
    /// At most so many rows of shapes and of namespaces; each namespace's rest comes on top.
    pub(super) fn new(max_shapes: usize, max_namespaces: usize) -> Self {
        Self {
            max_shapes,
            max_namespaces,
            namespaces: Vec::new(),
            namespace_rows: HashMap::new(),
            rows: BTreeMap::new(),
            by_id: HashMap::new(),
            next_serial: 0,
            fine_rows: 0,
            coarse_rows: 0,
            siblings: HashMap::new(),
            sketch: Sketch::default(),
            promoted: HashMap::new(),
            evicted: 0,
            is_stale: false,
        }
    }

    /// The place of an operation; `counts_shapes` is false for commands that Seawall answers. `describe` is called for
    /// what gets a new row only.
    pub(super) fn place(
        &mut self,
        fingerprint: &Fingerprint<'_>,
        counts_shapes: bool,
        now: SystemTime,
        describe: impl Fn() -> Description,
    ) -> Place {
        let index = self.namespace(fingerprint);
        let mut place = Place {
            namespace: NamespaceIndex(index),
            shape: None,
            id: fingerprint.shape,
            folded: None,
        };
        if counts_shapes {
            let serial = self.shape(fingerprint, index, now, &describe);
            place.shape = Some(ShapeIndex {
                namespace: place.namespace,
                serial,
                coarse: fingerprint.coarse,
            });
            let is_its_own = self.by_id.get(&fingerprint.shape) == Some(&serial);
            place.folded = (!is_its_own).then_some(fingerprint.coarse);
        }
        place
    }

    fn namespace(&mut self, fingerprint: &Fingerprint<'_>) -> usize {
        let wanted = Namespace {
            command: fingerprint.op,
            db: fingerprint.readable_db().into(),
            collection: fingerprint.readable_collection().into(),
        };
        if let Some(index) = self.namespace_rows.get(&wanted) {
            return *index;
        }
        if self.namespaces.len() < self.max_namespaces {
            return self.add_namespace(wanted);
        }
        let other = Namespace {
            command: fingerprint.op,
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
        self.namespaces
            .push((namespace.clone(), NamespaceRow::default()));
        self.namespace_rows.insert(namespace, index);
        index
    }

    fn shape(
        &mut self,
        fingerprint: &Fingerprint<'_>,
        namespace: usize,
        now: SystemTime,
        describe: impl Fn() -> Description,
    ) -> u32 {
        let (id, coarse) = (fingerprint.shape, fingerprint.coarse);
        if let Some(serial) = self.by_id.get(&id) {
            return *serial;
        }
        let is_promoted = self.promoted.remove(&id).is_some();
        if is_promoted || self.admits(coarse, namespace) {
            if !is_promoted {
                *self.siblings.entry(coarse).or_default() += 1;
            }
            self.fine_rows += 1;
            // What it has cost so far counts: as the lightest of all it would lose its row at once.
            let weight = self.sketch.forget(id);
            if let Some((_, row)) = self.namespaces.get_mut(namespace) {
                row.admitted += 1;
            }
            let Description {
                shape,
                coarse: of_coarse,
                ..
            } = describe();
            let serial = self.add_row(id, coarse, Level::Fine, namespace, &shape, now);
            if let Some(row) = self.rows.get_mut(&serial) {
                row.weight = weight;
                row.coarse_text = (coarse != id).then(|| of_coarse.into());
            }
            return serial;
        }
        self.fold(coarse, namespace, now, describe)
    }

    fn admits(&self, coarse: ShapeId, namespace: usize) -> bool {
        let admitted = self.namespaces.get(namespace).map(|(_, row)| row.admitted);
        self.has_room()
            && self.siblings_of(coarse) < FINE_PER_COARSE
            && admitted.is_some_and(|admitted| admitted < ADMITTED_PER_SECOND)
    }

    fn has_room(&self) -> bool {
        self.taken() < self.max_shapes
    }

    /// Rows of shapes, and places kept for some.
    fn taken(&self) -> usize {
        self.fine_rows + self.promoted.len() + self.coarse_rows
    }

    /// Shapes under a coarse one that have a row, or a place kept.
    fn siblings_of(&self, coarse: ShapeId) -> u32 {
        self.siblings.get(&coarse).copied().unwrap_or(0)
    }

    fn lose_sibling(&mut self, coarse: ShapeId) {
        if let Some(siblings) = self.siblings.get_mut(&coarse) {
            *siblings -= 1;
            if *siblings == 0 {
                self.siblings.remove(&coarse);
            }
        }
    }

    /// The row one level up, or two.
    fn fold(
        &mut self,
        coarse: ShapeId,
        namespace: usize,
        now: SystemTime,
        describe: impl Fn() -> Description,
    ) -> u32 {
        if let Some(serial) = self.by_id.get(&coarse.of_coarse_row()) {
            return *serial;
        }
        if !self.may_be_coarse(namespace) {
            return self.rest(namespace, now);
        }
        let serial = self.add_coarse(coarse, namespace, &describe().coarse, now);
        // A row that is taken away may leave a coarse one too.
        if self.taken() > self.max_shapes {
            let mut lightest = self.lightest();
            while self.taken() > self.max_shapes
                && let Some((_, lightest)) = lightest.pop()
            {
                self.evict(lightest, now);
            }
        }
        serial
    }

    /// Whether a namespace may have one more coarse row.
    fn may_be_coarse(&self, namespace: usize) -> bool {
        let rows = self.namespaces.get(namespace);
        rows.is_some_and(|(_, row)| row.coarse_rows < COARSE_PER_NAMESPACE)
            && self.coarse_rows < self.max_shapes / COARSE_SHARE
    }

    fn add_coarse(
        &mut self,
        coarse: ShapeId,
        namespace: usize,
        text: &str,
        now: SystemTime,
    ) -> u32 {
        self.coarse_rows += 1;
        if let Some((_, row)) = self.namespaces.get_mut(namespace) {
            row.coarse_rows += 1;
        }
        let id = coarse.of_coarse_row();
        self.add_row(id, coarse, Level::Coarse, namespace, text, now)
    }

    /// The row of a namespace's other shapes.
    fn rest(&mut self, namespace: usize, now: SystemTime) -> u32 {
        let (of, _) = self
            .namespaces
            .get(namespace)
            .expect("a namespace is looked up before its shapes");
        let id = ShapeId::of_rest(of.command, &of.db, &of.collection);
        match self.by_id.get(&id) {
            Some(serial) => *serial,
            None => self.add_row(id, id, Level::Rest, namespace, OTHER, now),
        }
    }

    fn add_row(
        &mut self,
        id: ShapeId,
        coarse: ShapeId,
        level: Level,
        namespace: usize,
        text: &str,
        now: SystemTime,
    ) -> u32 {
        let (namespace, _) = self
            .namespaces
            .get(namespace)
            .expect("a namespace is looked up before its shapes");
        let shape = Shape {
            id,
            namespace: namespace.clone(),
            text: text.into(),
            level,
        };
        let label = Arc::new(Label::Shape {
            level,
            id: id.to_string().into(),
            command: namespace.command.into(),
            db: (*namespace.db).into(),
            collection: (*namespace.collection).into(),
            text: text.into(),
        });
        let row = ShapeRow {
            shape,
            first_seen: now,
            last_seen: now,
            sums: ShapeSums::default(),
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        let row = Row {
            row,
            label,
            coarse,
            coarse_text: None,
            weight: 0.0,
        };
        self.rows.insert(serial, row);
        self.by_id.insert(id, serial);
        serial
    }

    /// Adds what threads gathered. Sums of rows that are no more go one level up. Returns the sums by row, as they were
    /// added.
    pub(super) fn add(
        &mut self,
        fresh: HashMap<ShapeIndex, ShapeSums>,
        now: SystemTime,
    ) -> BTreeMap<u32, ShapeSums> {
        let mut added = BTreeMap::new();
        for (index, sums) in fresh {
            let serial = match self.rows.contains_key(&index.serial) {
                true => index.serial,
                false => self.above(index.coarse, index.namespace.0, now),
            };
            let Some(row) = self.rows.get_mut(&serial) else {
                continue;
            };
            row.weight += sums.load().as_secs_f64();
            row.row.last_seen = now;
            row.row.sums.merge(&sums);
            let all: &mut ShapeSums = added.entry(serial).or_default();
            all.merge(&sums);
        }
        added
    }

    /// Takes in what folded shapes cost, and gives rows to those that are heavier than the lightest that has one. Called
    /// once a second; true if a thread's look-ups are no longer right.
    pub(super) fn turn_over(
        &mut self,
        folded: HashMap<ShapeId, Folded>,
        elapsed: Duration,
        now: SystemTime,
    ) -> bool {
        let share = 0.5_f64.powf(elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.rows.values_mut().for_each(|row| row.weight *= share);
        self.sketch.decay(share);
        for (_, row) in &mut self.namespaces {
            row.admitted = 0;
        }
        self.promoted
            .values_mut()
            .for_each(|(_, seconds)| *seconds = seconds.saturating_sub(1));
        let given_up = self.promoted.extract_if(|_, (_, seconds)| *seconds == 0);
        let given_up: Vec<_> = given_up.map(|(_, (coarse, _))| coarse).collect();
        given_up
            .into_iter()
            .for_each(|coarse| self.lose_sibling(coarse));
        self.watch(folded);
        let has_changed = self.promote(now);
        std::mem::take(&mut self.is_stale) || has_changed
    }

    /// Takes in what folded shapes cost.
    pub(super) fn watch(&mut self, folded: HashMap<ShapeId, Folded>) {
        for (id, folded) in folded {
            if !self.by_id.contains_key(&id) {
                let weight = folded.time.as_secs_f64();
                self.sketch.add(id, folded.coarse, weight);
            }
        }
    }

    /// Makes room for the heaviest of those that have no row, where that is lighter.
    fn promote(&mut self, now: SystemTime) -> bool {
        let mut changed = false;
        let mut lightest = self.lightest();
        let mut per_coarse: HashSet<ShapeId> = HashSet::new();
        let candidates = self.sketch.heaviest();
        for candidate in candidates.into_iter().take(PROMOTED_PER_SECOND) {
            if self.promoted.contains_key(&candidate.id) {
                continue;
            }
            let siblings = self.siblings_of(candidate.coarse);
            if siblings >= FINE_PER_COARSE {
                // One change a second under one coarse shape: the look for its lightest is over all rows.
                if per_coarse.insert(candidate.coarse)
                    && let Some((weight, serial)) = self.lightest_under(candidate.coarse)
                    && candidate.least > weight
                {
                    self.evict(serial, now);
                    lightest.retain(|(_, other)| *other != serial);
                } else {
                    continue;
                }
            }
            // A row that is taken away may leave a coarse one.
            while !self.has_room() {
                match lightest.pop() {
                    Some((weight, serial)) if candidate.least > weight => self.evict(serial, now),
                    Some(_) | None => return changed,
                }
            }
            let kept = (candidate.coarse, PROMOTION_LIFE);
            self.promoted.insert(candidate.id, kept);
            *self.siblings.entry(candidate.coarse).or_default() += 1;
            changed = true;
        }
        changed
    }

    /// Fine rows by weight, the lightest last.
    fn lightest(&self) -> Vec<(f64, u32)> {
        let fine = self
            .rows
            .iter()
            .filter(|(_, row)| row.row.shape.level == Level::Fine);
        let mut rows: Vec<_> = fine.map(|(serial, row)| (row.weight, *serial)).collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        rows
    }

    fn lightest_under(&self, coarse: ShapeId) -> Option<(f64, u32)> {
        let fine = self
            .rows
            .iter()
            .filter(|(_, row)| row.row.shape.level == Level::Fine && row.coarse == coarse);
        fine.map(|(serial, row)| (row.weight, *serial))
            .min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Takes a shape's row away; its sums go one level up.
    fn evict(&mut self, serial: u32, now: SystemTime) {
        let Some(Row {
            row,
            coarse,
            coarse_text,
            weight,
            ..
        }) = self.rows.remove(&serial)
        else {
            return;
        };
        self.by_id.remove(&row.shape.id);
        self.sketch.add(row.shape.id, coarse, weight);
        self.fine_rows -= 1;
        self.evicted += 1;
        self.is_stale = true;
        self.lose_sibling(coarse);
        let Some(namespace) = self.namespace_rows.get(&row.shape.namespace).copied() else {
            return;
        };
        let has_coarse = self.by_id.contains_key(&coarse.of_coarse_row());
        if let Some(text) = coarse_text.filter(|_| !has_coarse && self.may_be_coarse(namespace)) {
            self.add_coarse(coarse, namespace, &text, now);
        }
        let up = self.above(coarse, namespace, now);
        if let Some(up) = self.rows.get_mut(&up) {
            up.row.sums.merge(&row.sums);
            up.row.last_seen = up.row.last_seen.max(row.last_seen);
            up.row.first_seen = up.row.first_seen.min(row.first_seen);
        }
    }

    /// The row one level up, or the namespace's rest if there is none.
    fn above(&mut self, coarse: ShapeId, namespace: usize, now: SystemTime) -> u32 {
        match self.by_id.get(&coarse.of_coarse_row()) {
            Some(serial) => *serial,
            None => self.rest(namespace, now),
        }
    }

    /// Rows taken away from shapes since the last call.
    pub(super) fn evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// What rows take, roughly: their texts twice, since a series has them too, and their sums.
    pub(super) fn bytes(&self) -> usize {
        let texts: usize = self.rows.values().map(|row| row.row.shape.text.len()).sum();
        let row = size_of::<Row>() + size_of::<Label>() + BUCKETS_OF_A_ROW * 10;
        texts * 2 + self.rows.len() * row + self.namespaces.len() * size_of::<Namespace>() * 2
    }

    /// Namespaces in the order of their index.
    pub(super) fn namespaces(&self) -> impl ExactSizeIterator<Item = &Namespace> {
        self.namespaces.iter().map(|(namespace, _)| namespace)
    }

    /// All rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = &ShapeRow> {
        self.rows.values().map(|row| &row.row)
    }

    /// The heaviest shapes of all levels, in order.
    pub(super) fn heaviest(&self, count: usize) -> Vec<&Shape> {
        let mut rows: Vec<_> = self.rows.values().collect();
        let by_weight = |a: &&Row, b: &&Row| b.weight.total_cmp(&a.weight);
        if count < rows.len() {
            rows.select_nth_unstable_by(count, by_weight);
            rows.truncate(count);
        }
        rows.sort_by(by_weight);
        rows.into_iter().map(|row| &row.row.shape).collect()
    }

    /// A row's shape, what its series is called, and its weight.
    pub(super) fn row(&self, serial: u32) -> Option<(&Shape, &Arc<Label>, f64)> {
        let row = self.rows.get(&serial)?;
        Some((&row.row.shape, &row.label, row.weight))
    }
}

#[cfg(test)]
mod tests;
