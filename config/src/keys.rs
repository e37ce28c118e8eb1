//! The schema: every key, in the order of the documentation.
//!
//! The list has four users: the check of each value, the environment, `docs/configuration.md`, and
//! the tests that compare the defaults and the examples with it.

mod operating;
mod serving;

use crate::schema::Key;

/// Every key of the configuration.
pub const KEYS: &[Key] = &joined();

const fn joined() -> [Key; serving::KEYS.len() + operating::KEYS.len()] {
    let filler = *serving::KEYS.first().expect("there are keys");
    let mut all = [filler; serving::KEYS.len() + operating::KEYS.len()];
    let (first, rest) = all.split_at_mut(serving::KEYS.len());
    first.copy_from_slice(serving::KEYS);
    rest.copy_from_slice(operating::KEYS);
    all
}
