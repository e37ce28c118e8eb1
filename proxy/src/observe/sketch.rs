//! Finds the heaviest shapes without a row, in bounded memory.

use std::collections::HashMap;

use seawall_shape::ShapeId;

/// Maximum number of watched shapes.
const ENTRIES: usize = 1_024;

/// Space-Saving with weights: an entry's weight is never less than the true weight, and greater by
/// at most `error`.
#[derive(Debug, Default)]
pub(super) struct Sketch(HashMap<ShapeId, Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    coarse: ShapeId,
    weight: f64,
    error: f64,
    /// True if it came in more than one second.
    came_again: bool,
}

/// A shape that may get a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: ShapeId,
    pub(super) coarse: ShapeId,
    /// Its minimum weight.
    pub(super) least: f64,
}

impl Sketch {
    /// Adds to a shape's weight. If the sketch is full, a new shape replaces the lightest one and
    /// inherits its weight as `error`.
    pub(super) fn add(&mut self, id: ShapeId, coarse: ShapeId, weight: f64) {
        if let Some(entry) = self.0.get_mut(&id) {
            entry.weight += weight;
            entry.came_again = true;
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
            came_again: false,
        };
        self.0.insert(id, entry);
    }

    /// Multiplies all weights by `share`, so that older costs weigh less.
    pub(super) fn decay(&mut self, share: f64) {
        for entry in self.0.values_mut() {
            entry.weight *= share;
            entry.error *= share;
        }
    }

    /// Removes a shape that got a row. Returns its minimum weight.
    pub(super) fn forget(&mut self, id: ShapeId) -> f64 {
        let entry = self.0.remove(&id);
        entry.map_or(0.0, |entry| entry.weight - entry.error)
    }

    /// All shapes that came in more than one second, the heaviest by minimum weight first. A shape
    /// that came only once gets no row: there may be a flood of such shapes.
    pub(super) fn heaviest(&self) -> Vec<Candidate> {
        let mut all: Vec<_> = self
            .0
            .iter()
            .filter(|(_, entry)| entry.came_again)
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
