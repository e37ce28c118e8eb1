//! The sketch: estimates, in bounded memory, which shapes without a row in the shape table are the
//! heaviest, that is, have the operations that took the most time.

use std::collections::HashMap;

use seawall_shape::ShapeId;

/// Maximum number of shapes in the sketch.
const ENTRIES: usize = 1_024;

/// A Space-Saving sketch with weights. An entry's weight is never less than the true weight of the
/// shape, and exceeds it by at most `error`.
#[derive(Debug, Default)]
pub(super) struct Sketch(HashMap<ShapeId, Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    coarse: ShapeId,
    weight: f64,
    error: f64,
    /// True if at least two calls of [`Sketch::add`] have added to this entry.
    seen_again: bool,
}

/// A shape that may get a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: ShapeId,
    pub(super) coarse: ShapeId,
    /// A lower bound of the shape's true weight.
    pub(super) least: f64,
}

impl Sketch {
    /// Adds `weight` to the weight of a shape. If the sketch is full, a new shape replaces the
    /// lightest shape. The weight of the replaced shape becomes the `error` of the new shape.
    pub(super) fn add(&mut self, id: ShapeId, coarse: ShapeId, weight: f64) {
        if let Some(entry) = self.0.get_mut(&id) {
            entry.weight += weight;
            entry.seen_again = true;
            return;
        }
        let mut error = 0.0;
        if self.0.len() >= ENTRIES {
            let lightest = self
                .0
                .iter()
                .min_by(|(_, a), (_, b)| a.weight.total_cmp(&b.weight))
                .map(|(id, entry)| (*id, entry.weight));
            if let Some((lightest, its_weight)) = lightest {
                self.0.remove(&lightest);
                error = its_weight;
            }
        }
        let entry = Entry {
            coarse,
            weight: weight + error,
            error,
            seen_again: false,
        };
        self.0.insert(id, entry);
    }

    /// Multiplies all weights by `share`, so that older operations count less.
    pub(super) fn decay(&mut self, share: f64) {
        for entry in self.0.values_mut() {
            entry.weight *= share;
            entry.error *= share;
        }
    }

    /// Removes a shape that gets a row. Returns the lower bound of its weight.
    pub(super) fn forget(&mut self, id: ShapeId) -> f64 {
        let entry = self.0.remove(&id);
        entry.map_or(0.0, |entry| entry.weight - entry.error)
    }

    /// All shapes for which [`Sketch::add`] was called more than once, sorted by the lower bound of
    /// their weight, the heaviest first. A shape that was added only once gets no row, because a
    /// client can send any number of shapes that occur only once.
    pub(super) fn heaviest(&self) -> Vec<Candidate> {
        let mut all: Vec<_> = self
            .0
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
