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
    history::Label,
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

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One shape.
    Fine,
    /// The shapes of one coarse shape that have no row of their own.
    Coarse,
    /// All other shapes of a namespace.
    Rest,
}

impl Level {
    /// The name in the API and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Coarse => "coarse",
            Self::Rest => "rest",
        }
    }
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
    /// Fine rows, all of them and under each coarse shape.
    fine_rows: usize,
    siblings: HashMap<ShapeId, u32>,
    sketch: Sketch,
    /// Shapes for which a place is kept, each with its coarse shape, and for how many seconds still.
    promoted: HashMap<ShapeId, (ShapeId, u32)>,
    folded: [u64; 2],
    evicted: u64,
}

/// What the rules did, since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turnover {
    /// Operations' look-ups that found room one level up only: in a coarse row, in a namespace's rest.
    pub(super) folded: [u64; 2],
    /// Rows taken away from shapes.
    pub(super) evicted: u64,
}

impl Registry {
    /// At most so many rows of single shapes and of namespaces; what stands for several comes on top.
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
            siblings: HashMap::new(),
            sketch: Sketch::default(),
            promoted: HashMap::new(),
            folded: [0; 2],
            evicted: 0,
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
        if is_promoted || self.has_room(coarse, namespace) {
            self.fine_rows += 1;
            *self.siblings.entry(coarse).or_default() += 1;
            self.sketch.forget(id);
            if let Some((_, row)) = self.namespaces.get_mut(namespace) {
                row.admitted += 1;
            }
            let text = describe().shape;
            return self.add_row(id, coarse, Level::Fine, namespace, &text, now);
        }
        self.fold(coarse, namespace, now, describe)
    }

    fn has_room(&self, coarse: ShapeId, namespace: usize) -> bool {
        let siblings = self.siblings_of(coarse);
        let admitted = self.namespaces.get(namespace).map(|(_, row)| row.admitted);
        self.fine_rows + self.promoted.len() < self.max_shapes
            && siblings < FINE_PER_COARSE
            && admitted.is_some_and(|admitted| admitted < ADMITTED_PER_SECOND)
    }

    /// Shapes under a coarse one that have a row, or a place kept.
    fn siblings_of(&self, coarse: ShapeId) -> u32 {
        let promoted = self.promoted.values().filter(|(of, _)| *of == coarse);
        let promoted = u32::try_from(promoted.count()).unwrap_or(u32::MAX);
        self.siblings.get(&coarse).copied().unwrap_or(0) + promoted
    }

    /// The row one level up, or two.
    fn fold(
        &mut self,
        coarse: ShapeId,
        namespace: usize,
        now: SystemTime,
        describe: impl Fn() -> Description,
    ) -> u32 {
        let [in_coarse, in_rest] = &mut self.folded;
        let id = coarse.of_coarse_row();
        if let Some(serial) = self.by_id.get(&id) {
            *in_coarse += 1;
            return *serial;
        }
        if let Some((_, row)) = self.namespaces.get_mut(namespace)
            && row.coarse_rows < COARSE_PER_NAMESPACE
            && self.rows.len() - self.fine_rows < self.max_shapes
        {
            *in_coarse += 1;
            row.coarse_rows += 1;
            let text = describe().coarse;
            return self.add_row(id, coarse, Level::Coarse, namespace, &text, now);
        }
        *in_rest += 1;
        self.rest(namespace, now)
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
            weight: 0.0,
        };
        self.rows.insert(serial, row);
        self.by_id.insert(id, serial);
        serial
    }

    /// Adds what threads gathered. Sums of rows that are no more go to the rest of their namespace. Returns the sums by
    /// row, as they were added.
    pub(super) fn add(
        &mut self,
        fresh: HashMap<ShapeIndex, ShapeSums>,
        now: SystemTime,
    ) -> BTreeMap<u32, ShapeSums> {
        let mut added = BTreeMap::new();
        for (index, sums) in fresh {
            let serial = match self.rows.contains_key(&index.serial) {
                true => index.serial,
                false => self.rest(index.namespace.0, now),
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
        self.promoted.retain(|_, (_, seconds)| {
            *seconds = seconds.saturating_sub(1);
            *seconds > 0
        });
        self.watch(folded);
        self.promote(now)
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
            } else if self.fine_rows + self.promoted.len() >= self.max_shapes {
                match lightest.last() {
                    Some((weight, serial)) if candidate.least > *weight => {
                        self.evict(*serial, now);
                        lightest.pop();
                    }
                    Some(_) | None => break,
                }
            }
            let kept = (candidate.coarse, PROMOTION_LIFE);
            self.promoted.insert(candidate.id, kept);
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
        let Some(Row { row, coarse, .. }) = self.rows.remove(&serial) else {
            return;
        };
        self.by_id.remove(&row.shape.id);
        self.fine_rows -= 1;
        self.evicted += 1;
        if let Some(siblings) = self.siblings.get_mut(&coarse) {
            *siblings -= 1;
            if *siblings == 0 {
                self.siblings.remove(&coarse);
            }
        }
        let up = match self.by_id.get(&coarse.of_coarse_row()) {
            Some(serial) => Some(*serial),
            None => self
                .namespace_rows
                .get(&row.shape.namespace)
                .copied()
                .map(|namespace| self.rest(namespace, now)),
        };
        if let Some(up) = up.and_then(|serial| self.rows.get_mut(&serial)) {
            up.row.sums.merge(&row.sums);
            up.row.last_seen = up.row.last_seen.max(row.last_seen);
        }
    }

    /// What happened since the last call.
    pub(super) fn turnover(&mut self) -> Turnover {
        Turnover {
            folded: std::mem::take(&mut self.folded),
            evicted: std::mem::take(&mut self.evicted),
        }
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
mod tests {
    use bson::doc;

    use super::*;
    use crate::shape::{self, Input};

    /// A find on one of many fields, with one of many projections: those make fine shapes of a coarse one.
    fn find(collection: &str, field: usize, projected: usize) -> Vec<u8> {
        let projection = doc! { format!("p{}", name(projected)): 1 };
        let command = doc! {
            "find": collection, "filter": { format!("f{}", name(field)): 1 }, "projection": projection, "$db": "shop",
        };
        command.to_vec().unwrap()
    }

    /// A name that is not taken for a dynamic one.
    fn name(number: usize) -> String {
        number
            .to_string()
            .bytes()
            .map(|b| char::from(b + 49))
            .collect()
    }

    struct Table {
        registry: Registry,
        fresh: HashMap<ShapeIndex, ShapeSums>,
        folded: HashMap<ShapeId, Folded>,
        recorded: u64,
    }

    impl Table {
        fn new(max_shapes: usize) -> Self {
            Self {
                registry: Registry::new(max_shapes, 10),
                fresh: HashMap::new(),
                folded: HashMap::new(),
                recorded: 0,
            }
        }

        fn place(&mut self, command: &[u8]) -> Place {
            let input = Input {
                body: command,
                sequences: &[],
            };
            let fingerprint = shape::fingerprint(&input);
            let describe = || shape::describe(&input);
            let now = SystemTime::UNIX_EPOCH;
            self.registry.place(&fingerprint, true, now, describe)
        }

        fn record(&mut self, place: Place, time: Duration) {
            let sums = self.fresh.entry(place.shape.unwrap()).or_default();
            sums.figures.count += 1;
            sums.figures.durations.record(time);
            self.recorded += 1;
            if let Some(coarse) = place.folded {
                let none = Duration::ZERO;
                self.folded
                    .entry(place.id)
                    .or_insert(Folded { coarse, time: none })
                    .time += time;
            }
        }

        fn run(&mut self, command: &[u8], time: Duration) {
            let place = self.place(command);
            self.record(place, time);
        }

        fn second(&mut self) {
            let now = SystemTime::UNIX_EPOCH;
            self.registry.add(std::mem::take(&mut self.fresh), now);
            let folded = std::mem::take(&mut self.folded);
            self.registry.turn_over(folded, Duration::from_secs(1), now);
        }

        fn counts(&self, level: Level) -> Vec<u64> {
            let rows = self.registry.rows();
            let of_level = rows.filter(|row| row.shape.level == level);
            of_level.map(|row| row.sums.figures.count).collect()
        }

        fn check_sums(&self) {
            let rows = self.registry.rows();
            let all: u64 = rows.map(|row| row.sums.figures.count).sum();
            assert_eq!(all, self.recorded);
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn no_more_than_twenty_new_shapes_of_a_namespace_get_rows_in_a_second() {
        let mut table = Table::new(1_000);
        for _ in 0..3 {
            (0..50).for_each(|field| table.run(&find("orders", field, 0), MS));
            table.second();
        }
        // Those that came again have rows of their own from then on.
        table.check_sums();
        (0..50).for_each(|field| table.run(&find("orders", field, 0), MS));
        table.second();
        assert_eq!(table.counts(Level::Fine).len(), 50);
        table.check_sums();
    }

    #[test]
    fn what_comes_once_gets_no_row_beyond_the_twenty() {
        let mut table = Table::new(1_000);
        for second in 0..10 {
            (0..100).for_each(|n| table.run(&find("orders", second * 100 + n, 0), MS));
            table.second();
        }
        assert_eq!(table.counts(Level::Fine).len(), 200);
        assert_eq!(table.registry.turnover().folded, [512, 288]);
        table.check_sums();
    }

    #[test]
    fn a_coarse_shape_has_64_fine_ones_and_a_row_for_the_others() {
        let mut table = Table::new(1_000);
        for projected in 0..100 {
            table.run(&find("orders", 1, projected), MS);
            if projected % 16 == 15 {
                table.second();
            }
        }
        table.second();
        assert_eq!(table.counts(Level::Fine).len(), 64);
        assert_eq!(table.counts(Level::Coarse), [36]);
        table.check_sums();
    }

    #[test]
    fn the_heaviest_have_rows_however_late_they_come() {
        let mut table = Table::new(10);
        for field in 0..10 {
            table.run(&find("orders", field, 0), MS * 10);
        }
        table.second();
        // Shape 100 is heavier than all of those, 101 lighter; a row under way when it is taken away still counts.
        let under_way = table.place(&find("orders", 3, 0));
        for _ in 0..3 {
            table.run(&find("orders", 100, 0), MS * 100);
            table.run(&find("orders", 101, 0), MS);
            table.second();
        }
        table.record(under_way, MS);
        table.run(&find("orders", 100, 0), MS * 100);
        table.run(&find("orders", 3, 0), MS);
        table.second();
        let has_row = |field| {
            let command = find("orders", field, 0);
            let input = Input {
                body: &command,
                sequences: &[],
            };
            table
                .registry
                .by_id
                .contains_key(&shape::fingerprint(&input).shape)
        };
        assert!(has_row(100) && !has_row(101));
        assert_eq!(table.registry.fine_rows, 10);
        assert_eq!(table.registry.turnover().evicted, 1);
        table.check_sums();
    }

    #[test]
    fn under_one_coarse_shape_too_the_heaviest_have_rows() {
        let mut table = Table::new(1_000);
        for projected in 0..64 {
            table.run(&find("orders", 1, projected), MS);
            if projected % 16 == 15 {
                table.second();
            }
        }
        for _ in 0..3 {
            table.run(&find("orders", 1, 90), MS * 50);
            table.second();
        }
        table.run(&find("orders", 1, 90), MS * 50);
        table.second();
        assert_eq!(table.counts(Level::Fine).len(), 64);
        let slow = table.registry.rows();
        let slow = slow.filter(|row| row.sums.figures.durations.max() == MS * 50);
        let levels: Vec<_> = slow.map(|row| row.shape.level).collect();
        assert_eq!(levels, [Level::Coarse, Level::Fine]);
        table.check_sums();
    }

    #[test]
    fn namespaces_beyond_the_bound_count_with_their_commands_others() {
        let mut table = Table::new(1_000);
        for n in 0..30 {
            table.run(&find(&format!("c{}", name(n)), 1, 0), MS);
        }
        table.second();
        let names: Vec<_> = table.registry.namespaces().cloned().collect();
        assert_eq!(names.len(), 11);
        assert_eq!(&*names[10].collection, OTHER);
        table.check_sums();
    }
}
