//! Tests of the rules that decide which shapes have their own row.

use bson::doc;

use super::*;
use seawall_command::CommandBytes;

/// A `find` command. `field` is the number of the field in its filter. `projected` is the number of
/// the field in its projection. Two `find` commands that differ only in the projection have the
/// same coarse shape (see [`super`]).
fn find(collection: &str, field: usize, projected: usize) -> Vec<u8> {
    let projection = doc! { format!("p{}", name(projected)): 1 };
    let command = doc! {
        "find": collection, "filter": { format!("f{}", name(field)): 1 }, "projection": projection, "$db": "shop",
    };
    command.to_vec().unwrap()
}

/// A name for this number. It has only letters, so that the fingerprint does not treat it as data.
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

    fn rows_of(&mut self, command: &[u8]) -> RowIndexes {
        let input = CommandBytes::of_body(command);
        let fingerprint = seawall_shape::fingerprint(&input);
        let describe = || seawall_shape::describe(&input);
        let now = SystemTime::UNIX_EPOCH;
        self.registry.rows_of(&fingerprint, true, now, describe)
    }

    fn record(&mut self, rows: RowIndexes, time: Duration) {
        let sums = self.fresh.entry(rows.shape.unwrap()).or_default();
        sums.figures.count += 1;
        sums.figures.durations.record(time);
        self.recorded += 1;
        if let Some(coarse) = rows.folded {
            let none = Duration::ZERO;
            self.folded
                .entry(rows.id)
                .or_insert(Folded { coarse, time: none })
                .time += time;
        }
    }

    fn run(&mut self, command: &[u8], time: Duration) {
        let rows = self.rows_of(command);
        self.record(rows, time);
    }

    /// Does the work of one collection.
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

    /// True if the find on field number `field` has its own row.
    fn has_row(&self, field: usize) -> bool {
        let command = find("orders", field, 0);
        let input = CommandBytes::of_body(&command);
        let id = seawall_shape::fingerprint(&input).shape;
        self.registry.by_id.contains_key(&id)
    }

    fn check_sums(&self) {
        let rows = self.registry.rows();
        let all: u64 = rows.map(|row| row.sums.figures.count).sum();
        assert_eq!(all, self.recorded);
    }
}

const MS: Duration = Duration::from_millis(1);

/// In each second, at most 20 new shapes of a namespace get their own row of statistics.
#[test]
fn a_shape_over_the_limit_of_new_rows_per_second_gets_a_row_when_it_occurs_again() {
    let mut table = Table::new(1_000);
    for _ in 0..3 {
        (0..50).for_each(|field| table.run(&find("orders", field, 0), MS));
        table.second();
    }
    table.check_sums();
    // In the first second, only 20 of the 50 shapes got a row. The other shapes got their rows in
    // the next seconds, so each shape is now counted in its own row.
    (0..50).for_each(|field| table.run(&find("orders", field, 0), MS));
    table.second();
    assert_eq!(table.counts(Level::Fine).len(), 50);
    table.check_sums();
}

#[test]
fn shapes_that_occur_only_once_get_at_most_20_rows_per_second() {
    let mut table = Table::new(1_000);
    for second in 0..10 {
        (0..100).for_each(|n| table.run(&find("orders", second * 100 + n, 0), MS));
        table.second();
    }
    assert_eq!(table.counts(Level::Fine).len(), 200);
    // One row in ten may be coarse: 100 of the 1,000.
    assert_eq!(table.counts(Level::Coarse).len(), 100);
    assert_eq!(table.counts(Level::Rest), [700]);
    table.check_sums();
}

/// Shapes that differ only in the projection have the same *coarse shape*. The level of the row
/// that they share is `Coarse`.
#[test]
fn shapes_that_differ_only_in_the_projection_get_at_most_64_rows_and_then_share_one() {
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

/// The heavier of two shapes is the shape whose operations took more time in total.
#[test]
fn a_new_shape_replaces_the_lightest_shape_in_a_full_table_only_if_it_is_heavier() {
    let mut table = Table::new(10);
    for field in 0..10 {
        table.run(&find("orders", field, 0), MS * 10);
    }
    table.second();
    // Shape 100 is heavier than all other shapes, and shape 101 is lighter. The operation
    // `under_way` must be counted even if its row is evicted before it ends.
    let under_way = table.rows_of(&find("orders", 3, 0));
    for _ in 0..3 {
        table.run(&find("orders", 100, 0), MS * 100);
        table.run(&find("orders", 101, 0), MS);
        table.second();
    }
    table.record(under_way, MS);
    table.run(&find("orders", 100, 0), MS * 100);
    table.run(&find("orders", 3, 0), MS);
    table.second();
    assert!(table.has_row(100) && !table.has_row(101));
    // One of the ten rows is coarse. The sums of the evicted rows were added to this row.
    assert_eq!(
        (table.registry.fine_rows, table.registry.coarse_rows),
        (9, 1)
    );
    assert!(table.registry.evicted() >= 1);
    table.check_sums();
}

/// The *weight* of a shape is the total time of its operations. This includes operations that ran
/// before the shape had a row. In a full table, a heavier shape evicts the row with the least
/// weight.
#[test]
fn a_new_row_keeps_the_weight_of_its_shape_and_an_evicted_shape_can_get_a_row_again() {
    let mut table = Table::new(10);
    for field in 0..9 {
        table.run(&find("orders", field, 0), MS * 10);
    }
    table.second();
    let make_heavy = |table: &mut Table, field, time| {
        for _ in 0..3 {
            table.run(&find("orders", field, 0), time);
            table.second();
        }
        // The new row starts with the weight that the shape had without a row. So the row must be
        // kept, although its first operation is short.
        table.run(&find("orders", field, 0), MS);
        table.second();
    };
    make_heavy(&mut table, 100, MS * 100);
    make_heavy(&mut table, 101, MS * 20);
    assert!(table.has_row(100) && table.has_row(101));
    // One of the first nine shapes has lost its row. A few more operations make the shape heavy
    // enough for a row.
    let lost = (0..9).find(|field| !table.has_row(*field)).unwrap();
    for _ in 0..3 {
        table.run(&find("orders", lost, 0), MS);
        table.second();
    }
    assert!(table.has_row(lost));
    table.check_sums();
}

/// At most 64 shapes that differ only in the projection have their own row.
#[test]
fn a_slow_shape_replaces_a_faster_shape_that_differs_only_in_the_projection() {
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

/// At most 64 shapes that differ only in the projection have their own row. In this test, 70
/// further ones are too light to replace one of the 64, but heavier than all other shapes.
#[test]
fn shapes_that_cannot_get_a_row_do_not_keep_lighter_shapes_from_getting_one() {
    let mut table = Table::new(80);
    for projected in 0..64 {
        table.run(&find("orders", 1, projected), MS * 100);
        if projected % 16 == 15 {
            table.second();
        }
    }
    // These shapes fill the table: one coarse row, and a row for each of 15 light shapes.
    table.run(&find("orders", 1, 64), MS);
    (2..17).for_each(|field| table.run(&find("orders", field, 0), MS));
    table.second();
    for _ in 0..3 {
        (100..170).for_each(|projected| table.run(&find("orders", 1, projected), MS * 20));
        table.run(&find("orders", 100, 0), MS * 5);
        table.second();
    }
    table.run(&find("orders", 100, 0), MS * 5);
    table.second();
    assert!(table.has_row(100));
    table.check_sums();
}

#[test]
fn collections_beyond_the_limit_share_one_row_named_other_for_each_command() {
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

#[test]
fn collections_with_too_long_names_are_counted_in_the_row_named_other() {
    let mut table = Table::new(100);
    for (bytes, is_other) in [(250, false), (251, true), (100_000, true)] {
        let rows = table.rows_of(&find(&"c".repeat(bytes), 1, 1));
        let namespace = table.registry.namespaces().nth(rows.namespace.0).unwrap();
        assert_eq!(&*namespace.collection == OTHER, is_other, "{bytes} bytes");
    }
}

/// Collections with too long names are counted in the row `other`.
#[test]
fn the_row_named_other_does_not_count_towards_the_limit_of_collections() {
    let mut table = Table::new(100);
    table.run(&find(&"c".repeat(251), 1, 0), MS);
    for n in 0..10 {
        table.run(&find(&format!("c{}", name(n)), 1, 0), MS);
    }
    let names = table.registry.namespaces();
    let others = names.filter(|name| &*name.collection == OTHER);
    assert_eq!((others.count(), table.registry.namespaces().len()), (1, 11));
    // The limit is reached now, so a further collection has no row of its own.
    let rows = table.rows_of(&find("further", 1, 0));
    let namespace = table.registry.namespaces().nth(rows.namespace.0).unwrap();
    assert_eq!(&*namespace.collection, OTHER);
}
