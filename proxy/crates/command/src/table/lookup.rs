//! Finds the row of a command by its name, with a hash table of all names and aliases. The hash
//! table is built at compile time.

use seawall_wire::head_of;

use super::{COMMANDS, CommandSpec, UNKNOWN};

/// The row of the command with the name or alias `name`; [`UNKNOWN`] if there is none.
#[inline]
pub fn find(name: &[u8]) -> &'static CommandSpec {
    let position = position(name, head_of(name));
    position
        .and_then(|position| COMMANDS.get(position))
        .unwrap_or(&UNKNOWN)
}

/// The position in [`COMMANDS`] of the command with the name or alias `name`; `None` if there is
/// none. `head` is the result of [`head_of`] for the name.
#[inline]
pub fn position(name: &[u8], head: u64) -> Option<usize> {
    let mut slot = first_slot(head);
    loop {
        // An empty slot contains an index past the end of `NAMES`, so the search ends there.
        let known = NAMES.get(usize::from(*SLOTS.get(slot)?))?;
        if known.text.as_bytes() == name {
            return Some(usize::from(known.position));
        }
        slot = (slot + 1) % SLOT_COUNT;
    }
}

/// A name or an alias of a command.
#[derive(Clone, Copy)]
struct Name {
    text: &'static str,
    /// The position of the command in [`COMMANDS`].
    position: u8,
}

static NAMES: [Name; NAME_COUNT] = make_names();

const NAME_COUNT: usize = {
    let mut count = 0;
    let mut rest = COMMANDS;
    while let [command, after @ ..] = rest {
        count += 1 + command.aliases.len();
        rest = after;
    }
    count
};

#[expect(
    clippy::as_conversions,
    reason = "const code cannot call try_from; the table has fewer than 255 rows"
)]
#[expect(
    clippy::indexing_slicing,
    reason = "const code cannot call get; a wrong index fails the build"
)]
const fn make_names() -> [Name; NAME_COUNT] {
    let none = Name {
        text: "",
        position: 0,
    };
    let mut names = [none; NAME_COUNT];
    let mut count = 0;
    let mut at = 0;
    while at < COMMANDS.len() {
        let position = at as u8;
        let text = COMMANDS[at].name;
        names[count] = Name { text, position };
        count += 1;
        let mut aliases = COMMANDS[at].aliases;
        while let [text, after @ ..] = aliases {
            names[count] = Name { text, position };
            count += 1;
            aliases = after;
        }
        at += 1;
    }
    names
}

/// The slot at which the search for a name begins. `head` is the first eight bytes of the name (see
/// [`head_of`]), so names that begin with the same eight bytes have the same first slot.
#[inline]
#[expect(
    clippy::as_conversions,
    reason = "const code cannot call try_from; the result fits any usize"
)]
const fn first_slot(head: u64) -> usize {
    // Fibonacci hashing: the multiplier is 2^64 divided by the golden ratio. The slot is the high
    // bits of the product, because they depend on all bits of `head`.
    (head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
}

/// An open-addressing hash table of indexes into [`NAMES`].
static SLOTS: [u8; SLOT_COUNT] = make_slots();

#[expect(
    clippy::as_conversions,
    reason = "const code cannot call try_from; there are fewer than 255 names"
)]
#[expect(
    clippy::indexing_slicing,
    reason = "const code cannot call get; a wrong index fails the build"
)]
const fn make_slots() -> [u8; SLOT_COUNT] {
    let mut slots = [EMPTY; SLOT_COUNT];
    let mut index = 0;
    while index < NAMES.len() {
        let mut slot = first_slot(head_of(NAMES[index].text.as_bytes()));
        while slots[slot] != EMPTY {
            slot = (slot + 1) % SLOT_COUNT;
        }
        slots[slot] = index as u8;
        index += 1;
    }
    slots
}

/// Number of slots. With this many slots, most names are in their first slot.
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 9;
const EMPTY: u8 = u8::MAX;

const _: () = assert!(
    NAME_COUNT < 255,
    "every index of a name fits a slot and differs from EMPTY"
);
