//! Which shapes have rows.

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

    /// Whether the find on the field has a row of its own.
    fn has_row(&self, field: usize) -> bool {
        let command = find("orders", field, 0);
        let input = Input {
            body: &command,
            sequences: &[],
        };
        let id = shape::fingerprint(&input).shape;
        self.registry.by_id.contains_key(&id)
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
    // A tenth of a thousand rows are coarse ones.
    assert_eq!(table.counts(Level::Coarse).len(), 100);
    assert_eq!(table.counts(Level::Rest), [700]);
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
    assert!(table.has_row(100) && !table.has_row(101));
    // One in ten is that of a coarse shape, to which what was taken away was added.
    assert_eq!(
        (table.registry.fine_rows, table.registry.coarse_rows),
        (9, 1)
    );
    assert!(table.registry.evicted() >= 1);
    table.check_sums();
}

#[test]
fn a_row_that_was_earned_is_kept_and_one_that_was_lost_is_not_forgotten() {
    let mut table = Table::new(10);
    for field in 0..9 {
        table.run(&find("orders", field, 0), MS * 10);
    }
    table.second();
    let earn = |table: &mut Table, field, time| {
        for _ in 0..3 {
            table.run(&find("orders", field, 0), time);
            table.second();
        }
        // The first operation in its own row is a light one.
        table.run(&find("orders", field, 0), MS);
        table.second();
    };
    earn(&mut table, 100, MS * 100);
    earn(&mut table, 101, MS * 20);
    assert!(table.has_row(100) && table.has_row(101));
    // One of the first nine has lost its row: with twice an operation more it has earned it back.
    let lost = (0..9).find(|field| !table.has_row(*field)).unwrap();
    for _ in 0..3 {
        table.run(&find("orders", lost, 0), MS);
        table.second();
    }
    assert!(table.has_row(lost));
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
