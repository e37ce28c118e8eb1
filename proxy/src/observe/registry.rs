//! The registry of statistics rows: decides which namespaces and shapes have their own row, and
//! holds the sums that each shape row counts.
//!
//! Every operation is counted in exactly one shape row, so the sum of all rows is the sum of all
//! operations. A row that counts one shape is *fine*. A shape without a row is *folded*: it is
//! counted in the row of its *coarse* shape. The coarse shape lacks parts that do not select
//! documents, such as a projection. If the row of the coarse shape would exceed a limit, the shape
//! is counted in the `other` row of its namespace. A namespace without a row is counted in the
//! `other` row of its command.
//!
//! The heaviest shapes keep their rows: a shape's weight is the time of its operations. The
//! registry watches the weights of shapes without a row. If a shape without a row becomes heavier
//! than the lightest row, the shape replaces that row. The sums of an evicted row are added to the
//! row of its coarse shape.
//!
//! These limits belong to the fingerprint version `fp1` (see `seawall_shape`). A Space-Saving
//! sketch limits the memory of watched shapes: Metwally, Agrawal, El Abbadi, "Efficient Computation
//! of Frequent and Top-k Elements in Data Streams" (2005).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use seawall_shape::{Description, Fingerprint, ShapeId};
use seawall_stats::{Label, Level};

use super::{
    sketch::Sketch,
    sums::{Folded, NamespaceIndex, RowIndexes, ShapeIndex, ShapeSums},
};

/// The name of a row that counts the namespaces, the shapes or the servers without a row of their
/// own. If such a row counts shapes of a namespace, this name is also shown as the text of the
/// shape.
pub(crate) const OTHER: &str = "other";

/// Maximum number of fine rows (rows that count one shape) for shapes with the same coarse shape.
/// Such shapes differ only in parts such as a projection. Without this limit, a client that varies
/// these parts could fill the table.
const FINE_PER_COARSE: u32 = 64;

/// Maximum length of a database name and a collection name together, in bytes. This maximum limits
/// the memory for names. Longer namespaces cannot exist on a server; their operations are counted
/// in the `other` row of their command.
///
/// Source: MongoDB's limit of 255 bytes for a namespace, with the dot.
const MAX_NAME_BYTES: usize = 254;

/// Maximum number of coarse rows (rows that count a group of similar shapes) of a namespace. So one
/// namespace alone cannot fill the table with them.
const COARSE_PER_NAMESPACE: u32 = 512;

/// A coarse row is added only if the coarse rows are fewer than one tenth of the maximum number of
/// shape rows. Coarse rows are never evicted, so without this limit they could fill the table.
const COARSE_SHARE: usize = 10;

/// When this number of shapes of a namespace have got a row in the current second, further shapes
/// of the namespace get a row only if a row is reserved for them. So shapes that occur only once do
/// not fill the table at once.
const ADMITTED_PER_SECOND: u32 = 20;

/// Assumed average number of non-empty histogram buckets in a row, to estimate the row's memory.
/// Most durations of one shape are within two octaves (a factor of four).
const BUCKETS_OF_A_ROW: usize = 24;

/// A shape's weight is the total time of its operations. The weight of past operations falls by
/// half in this time.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// How long a row stays reserved for a shape that does not occur again, in seconds. After that,
/// another shape can use the row.
const PROMOTION_LIFE: u32 = 60;

/// Maximum number of shapes that get a reserved row within one second.
const PROMOTED_PER_SECOND: usize = 64;

/// A command, together with the database and the collection that it uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The command's canonical name.
    pub command: &'static str,
    /// The database.
    pub db: Arc<str>,
    /// The collection; empty for commands without one.
    pub collection: Arc<str>,
}

impl Namespace {
    /// True if commands of the handshake may be counted in the row of this namespace: it has no
    /// collection, and its database is `admin` or `other`. Each command has at most two such rows.
    /// They count towards no limit. Otherwise clients that have not logged in could use up the rows
    /// of all other namespaces.
    fn may_count_handshakes(&self) -> bool {
        self.collection.is_empty() && matches!(&*self.db, "admin" | OTHER)
    }
}

/// A shape, or a group of shapes that share a row.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The shape's id, the same in every instance.
    pub id: ShapeId,
    /// The command and namespace of the shape.
    pub namespace: Namespace,
    /// The text of the shape.
    pub text: Arc<str>,
    /// Says if the row counts one shape or a group of shapes.
    pub level: Level,
}

/// The row of a shape or of a group of shapes, with the sums of the operations that the row counts.
#[derive(Clone, Debug)]
pub struct ShapeRow {
    /// The shape, or the group of shapes.
    pub shape: Shape,
    /// When the first operation that the row counts was seen.
    pub first_seen: SystemTime,
    /// When the last operation that the row counts was seen, to the second.
    pub last_seen: SystemTime,
    /// The sums of the operations that the row counts. They include the sums of evicted rows that
    /// were added to this row.
    pub sums: ShapeSums,
}

struct Row {
    row: ShapeRow,
    label: Arc<Label>,
    coarse: ShapeId,
    /// The text of the coarse shape (see the [module](self)); `None` if the shape is its own coarse
    /// shape, or if the row counts a group of shapes.
    coarse_text: Option<Arc<str>>,
    /// Total time of the shape's operations in seconds. The older an operation is, the less of its
    /// time counts.
    weight: f64,
}

#[derive(Default)]
struct NamespaceRow {
    coarse_rows: u32,
    admitted: u32,
}

/// The statistics of all shapes, by row. When a thread runs an operation of a shape for the first
/// time, the thread looks up the row of that shape. Each thread counts sums of its operations. Once
/// a second, [`Totals`](super::Totals) adds these sums to the rows.
pub(super) struct Registry {
    max_shapes: usize,
    max_namespaces: usize,
    namespaces: Vec<(Namespace, NamespaceRow)>,
    namespace_rows: HashMap<Namespace, usize>,
    /// Number of namespace rows that count towards `max_namespaces`.
    limited_namespaces: usize,
    rows: BTreeMap<u32, Row>,
    by_id: HashMap<ShapeId, u32>,
    next_serial: u32,
    fine_rows: usize,
    coarse_rows: usize,
    /// For each coarse shape (see the [module](self)), the number of its fine rows and reserved
    /// rows together.
    siblings: HashMap<ShapeId, u32>,
    sketch: Sketch,
    /// Shapes for which a row is reserved, each with its coarse shape and the number of seconds
    /// until the reservation ends.
    promoted: HashMap<ShapeId, (ShapeId, u32)>,
    evicted: u64,
    /// True if rows were evicted and the caches of the threads are not invalidated yet.
    is_stale: bool,
}

impl Registry {
    /// Creates a registry with a maximum number of shape rows and of namespace rows. The `other`
    /// rows do not count towards these limits. The rows that may count commands of the handshake do
    /// not count towards the limit of namespace rows.
    pub(super) fn new(max_shapes: usize, max_namespaces: usize) -> Self {
        Self {
            max_shapes,
            max_namespaces,
            namespaces: Vec::new(),
            namespace_rows: HashMap::new(),
            limited_namespaces: 0,
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

    /// Finds or adds the namespace row and the shape row that count an operation. `counts_shapes`
    /// is false for commands that get no shape row: commands of the handshake, commands to which
    /// Seawall itself replies, and all commands while shapes are not counted. `describe` returns
    /// the texts of the shape; it is called only if a shape row is added.
    pub(super) fn rows_of(
        &mut self,
        fingerprint: &Fingerprint<'_>,
        counts_shapes: bool,
        now: SystemTime,
        describe: impl Fn() -> Description,
    ) -> RowIndexes {
        let index = self.namespace(fingerprint);
        let mut rows = RowIndexes {
            namespace: NamespaceIndex(index),
            shape: None,
            id: fingerprint.shape,
            folded: None,
        };
        if counts_shapes {
            let serial = self.shape(fingerprint, index, now, &describe);
            rows.shape = Some(ShapeIndex {
                namespace: rows.namespace,
                serial,
                coarse: fingerprint.coarse,
            });
            let is_its_own = self.by_id.get(&fingerprint.shape) == Some(&serial);
            rows.folded = (!is_its_own).then_some(fingerprint.coarse);
        }
        rows
    }

    /// Changes the limits. If the limit of shape rows falls, evicts the rows of the shapes whose
    /// operations took the least time, until the limit is met. Rows of groups of shapes are kept.
    /// If the limit of namespace rows falls, keeps all existing namespace rows.
    pub(super) fn set_max(&mut self, max_shapes: usize, max_namespaces: usize, now: SystemTime) {
        (self.max_shapes, self.max_namespaces) = (max_shapes, max_namespaces);
        self.evict_excess(now);
    }

    fn namespace(&mut self, fingerprint: &Fingerprint<'_>) -> usize {
        let name_bytes = fingerprint.db.len() + fingerprint.collection.as_bytes().len();
        if name_bytes <= MAX_NAME_BYTES {
            let wanted = Namespace {
                command: fingerprint.op,
                db: fingerprint.readable_db().into(),
                collection: fingerprint.readable_collection().into(),
            };
            if let Some(index) = self.namespace_rows.get(&wanted) {
                return *index;
            }
            if wanted.may_count_handshakes() {
                return self.add_namespace(wanted);
            }
            if self.limited_namespaces < self.max_namespaces {
                self.limited_namespaces += 1;
                return self.add_namespace(wanted);
            }
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
            // The new row starts with the shape's weight so far. With weight 0 it would be the
            // lightest row and be evicted at once.
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

    /// Number of rows that count towards the limit: fine rows (of one shape), coarse rows (of a
    /// group of similar shapes) and reserved rows. `other` rows do not count towards the limit.
    fn taken(&self) -> usize {
        self.fine_rows + self.promoted.len() + self.coarse_rows
    }

    /// Number of fine rows (rows of one shape) and reserved rows whose shapes have this coarse
    /// shape.
    fn siblings_of(&self, coarse: ShapeId) -> u32 {
        self.siblings.get(&coarse).copied().unwrap_or(0)
    }

    fn remove_sibling(&mut self, coarse: ShapeId) {
        if let Some(siblings) = self.siblings.get_mut(&coarse) {
            *siblings -= 1;
            if *siblings == 0 {
                self.siblings.remove(&coarse);
            }
        }
    }

    /// The row that counts a shape without its own row: the row of its coarse shape, or the `other`
    /// row of the namespace.
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
        self.evict_excess(now);
        serial
    }

    /// Evicts the fine rows with the smallest weights until the number of rows is at most the
    /// maximum, or no fine row is left. An evicted shape is then counted in the row of its coarse
    /// shape or in an `other` row. If this adds a coarse row, more than one eviction may be needed.
    fn evict_excess(&mut self, now: SystemTime) {
        if self.taken() <= self.max_shapes {
            return;
        }
        let mut lightest = self.lightest();
        while self.taken() > self.max_shapes
            && let Some((_, lightest)) = lightest.pop()
        {
            self.evict(lightest, now);
        }
    }

    /// True if a namespace may have one more coarse row (a row that counts a group of similar
    /// shapes).
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

    /// The `other` row of a namespace. It counts the shapes that have neither a row of their own
    /// nor a row of their coarse shape.
    fn rest(&mut self, namespace: usize, now: SystemTime) -> u32 {
        let (of, _) = self
            .namespaces
            .get(namespace)
            .expect("a namespace is looked up before its shapes");
        let id = ShapeId::of_other_row(of.command, &of.db, &of.collection);
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

    /// Adds new sums, which the threads have counted, to the rows. Sums for an evicted row are
    /// added to the row of its coarse shape, or to the `other` row of its namespace. Returns the
    /// added sums by the serial number of the row.
    pub(super) fn add(
        &mut self,
        fresh: impl IntoIterator<Item = (ShapeIndex, ShapeSums)>,
        now: SystemTime,
    ) -> BTreeMap<u32, ShapeSums> {
        let mut added = BTreeMap::new();
        for (index, sums) in fresh {
            let serial = match self.rows.contains_key(&index.serial) {
                true => index.serial,
                false => self.group_row(index.coarse, index.namespace.0, now),
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

    /// Lowers the weights of all shapes, because past operations count less and less. Then adds
    /// `folded`, the time of the operations of shapes without a row, to the weights of these
    /// shapes. Reserves rows for the heaviest of these shapes. If a limit of rows is reached, a
    /// shape gets a row only if it is heavier than the lightest row. Called once a second. Returns
    /// true if the look-ups that threads have cached are no longer valid.
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
            .for_each(|coarse| self.remove_sibling(coarse));
        self.watch(folded);
        let has_changed = self.promote(now);
        std::mem::take(&mut self.is_stale) || has_changed
    }

    /// Adds the time of the operations of shapes without a row to the weights of these shapes. The
    /// sketch estimates these weights in bounded memory.
    pub(super) fn watch(&mut self, folded: HashMap<ShapeId, Folded>) {
        for (id, folded) in folded {
            if !self.by_id.contains_key(&id) {
                let weight = folded.time.as_secs_f64();
                self.sketch.add(id, folded.coarse, weight);
            }
        }
    }

    /// Reserves rows for the heaviest shapes without a row. If a limit of rows is reached, evicts
    /// rows of lighter shapes first. True if a row was reserved.
    fn promote(&mut self, now: SystemTime) -> bool {
        let mut reserved = 0;
        let mut lightest = self.lightest();
        let mut per_coarse: HashSet<ShapeId> = HashSet::new();
        for candidate in self.sketch.heaviest() {
            if reserved == PROMOTED_PER_SECOND {
                break;
            }
            if self.promoted.contains_key(&candidate.id) {
                continue;
            }
            let siblings = self.siblings_of(candidate.coarse);
            if siblings >= FINE_PER_COARSE {
                // Search at most once per second for the lightest row of a coarse shape, because
                // the search scans all rows. The number of searches per second is limited too.
                if per_coarse.len() < PROMOTED_PER_SECOND
                    && per_coarse.insert(candidate.coarse)
                    && let Some((weight, serial)) = self.lightest_under(candidate.coarse)
                    && candidate.least > weight
                {
                    self.evict(serial, now);
                    lightest.retain(|(_, other)| *other != serial);
                } else {
                    continue;
                }
            }
            // One eviction may not make enough room, because it may add a coarse row.
            while !self.has_room() {
                match lightest.pop() {
                    Some((weight, serial)) if candidate.least > weight => self.evict(serial, now),
                    Some(_) | None => return reserved > 0,
                }
            }
            let kept = (candidate.coarse, PROMOTION_LIFE);
            self.promoted.insert(candidate.id, kept);
            *self.siblings.entry(candidate.coarse).or_default() += 1;
            reserved += 1;
        }
        reserved > 0
    }

    /// The fine rows (rows of one shape) with their weights. The row with the smallest weight is
    /// last.
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

    /// Removes a shape's row, and adds its sums to the row of its coarse shape or to the `other`
    /// row of its namespace.
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
        self.remove_sibling(coarse);
        let Some(namespace) = self.namespace_rows.get(&row.shape.namespace).copied() else {
            return;
        };
        let has_coarse = self.by_id.contains_key(&coarse.of_coarse_row());
        if let Some(text) = coarse_text.filter(|_| !has_coarse && self.may_be_coarse(namespace)) {
            self.add_coarse(coarse, namespace, &text, now);
        }
        let group = self.group_row(coarse, namespace, now);
        if let Some(group) = self.rows.get_mut(&group) {
            group.row.sums.merge(&row.sums);
            group.row.last_seen = group.row.last_seen.max(row.last_seen);
            group.row.first_seen = group.row.first_seen.min(row.first_seen);
        }
    }

    /// The row of the coarse shape, or the `other` row of the namespace if the coarse shape has no
    /// row.
    fn group_row(&mut self, coarse: ShapeId, namespace: usize, now: SystemTime) -> u32 {
        match self.by_id.get(&coarse.of_coarse_row()) {
            Some(serial) => *serial,
            None => self.rest(namespace, now),
        }
    }

    /// Number of rows evicted since the last call.
    pub(super) fn evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// Estimated memory of the rows in bytes. Texts count twice, because metric series contain them
    /// too.
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

    /// The `count` rows with the largest weights, the heaviest first: rows of single shapes and
    /// rows of several shapes.
    pub(super) fn heaviest(&self, count: usize) -> Vec<&ShapeRow> {
        let mut rows: Vec<_> = self.rows.values().collect();
        let by_weight = |a: &&Row, b: &&Row| b.weight.total_cmp(&a.weight);
        if count < rows.len() {
            rows.select_nth_unstable_by(count, by_weight);
            rows.truncate(count);
        }
        rows.sort_by(by_weight);
        rows.into_iter().map(|row| &row.row).collect()
    }

    /// Finds the row with this serial number. Returns the row's shape, the label under which the
    /// history keeps the row's figures, and the row's weight.
    pub(super) fn row(&self, serial: u32) -> Option<(&Shape, &Arc<Label>, f64)> {
        let row = self.rows.get(&serial)?;
        Some((&row.row.shape, &row.label, row.weight))
    }
}

#[cfg(test)]
mod tests;
