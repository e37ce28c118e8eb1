//! The sketch: estimates, in bounded memory, which shapes without a row in the shape table are the
//! heaviest. The operations of the heaviest shapes took the most time in total.

use std::collections::{BTreeSet, HashMap};

use seawall_shape::ShapeId;

/// Maximum number of shapes in the sketch. It bounds memory.
const ENTRIES: usize = 1_024;

/// A Space-Saving sketch with weights. The true weight of a shape is at least the weight of its
/// entry minus the `error` of its entry.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    entries: HashMap<ShapeId, SketchEntry>,
    /// The rank of each entry, so that the lightest shape is found without a search.
    ranks: BTreeSet<Rank>,
}

/// The weight of a shape (the bits of a floating-point number), and the shape. Weights are never
/// negative, so the bits have the same order as the numbers.
type Rank = (u64, ShapeId);

#[derive(Clone, Copy, Debug)]
struct SketchEntry {
    coarse: ShapeId,
    weight: f64,
    error: f64,
    /// True if at least two calls of [`Sketch::add`] have added to this entry.
    seen_again: bool,
}

impl SketchEntry {
    fn rank(&self, id: ShapeId) -> Rank {
        (self.weight.to_bits(), id)
    }
}

/// A shape that may get a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: ShapeId,
    pub(super) coarse: ShapeId,
    /// A lower bound of the shape's true weight, in seconds.
    pub(super) least: f64,
}

impl Sketch {
    /// Adds `weight` to the weight of a shape. If the sketch is full, a new shape replaces the
    /// lightest shape. The weight of the replaced shape becomes the `error` of the new shape.
    pub(super) fn add(&mut self, id: ShapeId, coarse: ShapeId, weight: f64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.ranks.remove(&entry.rank(id));
            entry.weight += weight;
            entry.seen_again = true;
            self.ranks.insert(entry.rank(id));
            return;
        }
        let mut error = 0.0;
        if self.entries.len() >= ENTRIES
            && let Some((_, lightest)) = self.ranks.pop_first()
        {
            let replaced = self.entries.remove(&lightest);
            error = replaced.map_or(0.0, |entry| entry.weight);
        }
        let entry = SketchEntry {
            coarse,
            weight: weight + error,
            error,
            seen_again: false,
        };
        self.ranks.insert(entry.rank(id));
        self.entries.insert(id, entry);
    }

    /// Multiplies all weights by `share`, so that older operations count less.
    pub(super) fn decay(&mut self, share: f64) {
        for entry in self.entries.values_mut() {
            entry.weight *= share;
            entry.error *= share;
        }
        let entries = self.entries.iter();
        self.ranks = entries.map(|(id, entry)| entry.rank(*id)).collect();
    }

    /// Removes a shape that gets a row. Returns the lower bound of its weight.
    pub(super) fn forget(&mut self, id: ShapeId) -> f64 {
        let Some(entry) = self.entries.remove(&id) else {
            return 0.0;
        };
        self.ranks.remove(&entry.rank(id));
        entry.weight - entry.error
    }

    /// All shapes for which [`Sketch::add`] was called more than once, sorted by the lower bound of
    /// their weight, the heaviest first. A shape that was added only once gets no row, because a
    /// client can send any number of shapes that occur only once.
    pub(super) fn heaviest(&self) -> Vec<Candidate> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.seen_again)
            .map(|(id, entry)| Candidate {
                id: *id,
                coarse: entry.coarse,
                least: entry.weight - entry.error,
            })
            .collect();
        all.sort_by(|a, b| b.least.total_cmp(&a.least).then(a.id.cmp(&b.id)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ShapeId {
        ShapeId::of_other_row("find", "d", &number.to_string())
    }

    /// A full sketch, in which the shape with the number `n` has the weight `n + 1`.
    fn full() -> Sketch {
        let mut sketch = Sketch::default();
        (1..=1_024_u32)
            .zip(0..)
            .for_each(|(weight, number)| sketch.add(id(number), id(number), weight.into()));
        assert_eq!(sketch.entries.len(), ENTRIES);
        sketch
    }

    fn has(sketch: &Sketch, number: usize) -> bool {
        sketch.entries.contains_key(&id(number))
    }

    #[test]
    fn a_new_shape_replaces_the_lightest_shape_and_takes_over_its_weight() {
        let mut sketch = full();
        // The lightest shape becomes heavier, so the next one is the lightest.
        sketch.add(id(0), id(0), 7.0);
        sketch.add(id(5_000), id(5_000), 0.5);
        assert!(has(&sketch, 0) && !has(&sketch, 1) && has(&sketch, 5_000));
        // The shape 5,000 has the weight 2.5 and is now the lightest.
        sketch.add(id(5_001), id(5_001), 0.25);
        assert!(has(&sketch, 2) && !has(&sketch, 5_000));
        sketch.add(id(5_001), id(5_001), 0.25);
        let least = sketch.heaviest().into_iter().map(|of| of.least);
        assert_eq!(least.collect::<Vec<_>>(), [8.0, 0.5]);
    }

    #[test]
    fn a_full_sketch_replaces_its_lightest_shape_also_after_a_decay_and_a_removal() {
        let mut sketch = full();
        sketch.decay(0.5);
        assert!((sketch.forget(id(0)) - 0.5).abs() < 1e-12);
        // The first new shape takes the free entry. The second one replaces the lightest shape.
        sketch.add(id(5_000), id(5_000), 100.0);
        assert!(has(&sketch, 1));
        sketch.add(id(5_001), id(5_001), 100.0);
        assert!(!has(&sketch, 1) && has(&sketch, 2));
        assert_eq!(sketch.ranks.len(), sketch.entries.len());
        assert_eq!(sketch.entries.len(), ENTRIES);
    }
}
