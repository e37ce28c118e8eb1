//! Assigns operations to groups by the usual server time of their shape (the command without its
//! values).
//!
//! When shapes get their group, the usual times in a group differ by at most a factor of four. Only
//! the first and the last group are wider: they also contain all shorter and all longer times. A
//! shape stays in its group while its usual time changes by less than a factor of four. This is
//! necessary because a trial of another limit changes the times of all shapes. The trial compares
//! *work*: the number of completed operations, weighted by the usual time of their group. Work is
//! comparable only while shapes stay in their groups.
//!
//! For the same reason, shapes stay in their groups if all of them become slower, for example
//! because other clients load the server. So the usual time of a shape is relative to the *shift*:
//! the recent change of the times of all operations.

use std::time::Duration;

use crate::sample::GROUPS;

/// Number of entries in the table of shapes. The hash of a shape modulo `ENTRIES` selects its
/// entry, so several shapes may share an entry.
const ENTRIES: u64 = 1_024;

/// Weight of a new server time in the mean server time of all operations with the same shape.
const SMOOTHING: f32 = 1.0 / 64.0;

/// Weight of an operation in the shift ([`ShapeGroups::shift`]). The shift must follow a change of
/// the whole server faster than the mean time of a shape does. Otherwise shapes would get new
/// groups before the shift has changed.
const SHIFT_SMOOTHING: f32 = 1.0 / 16.0;

/// A shape gets a new group if the binary logarithm of its mean server time has changed by this
/// amount since it got its group.
const MOVES_AT: f32 = 2.0;

/// Upper bound of the first group, as a binary logarithm of seconds: 244 µs.
const FIRST_BOUND: f32 = -12.0;

/// Binary logarithm of the factor between the bounds of a group.
const WIDTH: f32 = 2.0;

/// The usual server time of the operations with one shape (the command without its values), as
/// binary logarithms of seconds, relative to the shift ([`ShapeGroups::shift`]).
#[derive(Clone, Copy, Debug)]
struct Usual {
    mean: f32,
    /// The mean when the shape got its group.
    reference: f32,
}

/// The group of each shape (the command without its values) at one server. Recording an operation
/// costs a few instructions and no memory.
#[derive(Clone, Debug)]
pub struct ShapeGroups {
    entries: Box<[Option<Usual>]>,
    /// Smoothed difference between the times of all operations and the references of their shapes,
    /// as a binary logarithm. It is 1 if the server has become slower by a factor of two.
    shift: f32,
}

impl Default for ShapeGroups {
    fn default() -> Self {
        Self {
            entries: (0..ENTRIES).map(|_| None).collect(),
            shift: 0.0,
        }
    }
}

impl ShapeGroups {
    /// Adds the server time of one operation. Returns the group that the operation's shape had
    /// before this call; for the first operation of a shape, the group of `server_time`. `shape` is
    /// a hash of the shape, or another number whose values are spread evenly.
    pub fn record(&mut self, shape: u64, server_time: Duration) -> usize {
        let index = usize::try_from(shape % ENTRIES).unwrap_or_default();
        let log = server_time.as_secs_f32().max(1e-7).log2();
        let Some(entry) = self.entries.get_mut(index) else {
            return 0;
        };
        let relative = log - self.shift;
        let usual = entry.get_or_insert(Usual {
            mean: relative,
            reference: relative,
        });
        let group = group_of(usual.reference);
        self.shift += SHIFT_SMOOTHING * (relative - usual.reference);
        usual.mean += SMOOTHING * (log - self.shift - usual.mean);
        if (usual.mean - usual.reference).abs() >= MOVES_AT {
            usual.reference = usual.mean;
        }
        group
    }
}

#[expect(
    clippy::as_conversions,
    reason = "the conversion of a float to an integer saturates"
)]
fn group_of(log: f32) -> usize {
    let group = ((log - FIRST_BOUND) / WIDTH).floor() + 1.0;
    (group.max(0.0) as usize).min(GROUPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group contains the shapes (commands without their values) with similar server times.
    #[test]
    fn each_group_of_shapes_covers_server_times_within_a_factor_of_four() {
        let groups = [100, 300, 1_000, 4_000, 16_000, 64_000, 260_000, 1_100_000]
            .map(|us| ShapeGroups::default().record(1, Duration::from_micros(us)));
        assert_eq!(groups, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(ShapeGroups::default().record(1, Duration::ZERO), 0);
        assert_eq!(ShapeGroups::default().record(1, Duration::MAX), 7);
    }

    /// A group contains the shapes (commands without their values) with similar server times.
    #[test]
    fn a_shape_stays_in_its_group_if_its_server_times_triple() {
        let mut groups = ShapeGroups::default();
        let first = groups.record(7, Duration::from_micros(900));
        for _ in 0..10_000 {
            assert_eq!(groups.record(7, Duration::from_micros(2_700)), first);
        }
    }

    /// A group contains the shapes (commands without their values) with similar server times.
    #[test]
    fn a_shape_whose_server_times_alone_change_much_moves_to_another_group() {
        let mut groups = ShapeGroups::default();
        groups.record(7, Duration::from_micros(900));
        for _ in 0..1_000 {
            groups.record(7, Duration::from_millis(50));
            let mut others = (0..9).map(|_| groups.record(8, Duration::from_micros(900)));
            assert!(others.all(|group| group == 1));
        }
        assert!(groups.record(7, Duration::from_millis(50)) > 2);
    }

    /// A group contains the shapes (commands without their values) with similar server times.
    #[test]
    fn shapes_stay_in_their_groups_if_all_operations_become_a_hundred_times_slower_or_faster() {
        let mut groups = ShapeGroups::default();
        let shapes = [(1, 200), (2, 900), (3, 9_000)];
        let first = shapes.map(|(shape, us)| groups.record(shape, Duration::from_micros(us)));
        assert_eq!(first, [0, 1, 3]);
        for factor in [100, 1, 10, 1] {
            for _ in 0..2_000 {
                let now = shapes
                    .map(|(shape, us)| groups.record(shape, Duration::from_micros(us * factor)));
                assert_eq!(now, first, "factor {factor}");
            }
        }
    }

    /// A group contains the shapes (commands without their values) with similar server times.
    #[test]
    fn shapes_in_different_entries_of_the_table_have_independent_groups() {
        let mut groups = ShapeGroups::default();
        groups.record(1, Duration::from_micros(100));
        groups.record(2, Duration::from_secs(2));
        assert_eq!(groups.record(1, Duration::from_secs(2)), 0);
        assert_eq!(groups.record(2, Duration::from_micros(100)), 7);
    }
}
