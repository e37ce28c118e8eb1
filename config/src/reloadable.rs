//! The parts of the settings that a reload compares and changes.

use crate::schema::Change;

/// A part of the settings that a reload compares with the running settings.
pub(crate) trait Reloadable {
    /// Adds the path of each key or section whose value differs from the value in `running`.
    fn changed(&self, running: &Self, changed: &mut Vec<&'static str>);

    /// Copies values from `newer`: those of all keys and sections that are declared with
    /// [`Change::Live`]. `change_of` takes the path of a section and returns when a change of this
    /// section takes effect.
    fn adopt_live(&mut self, newer: &Self, change_of: fn(&str) -> Change);
}
