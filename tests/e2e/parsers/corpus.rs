//! The messages that the tests of this folder send. They are the same in each run.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use seawall_tests::raw::message::HEADER_BYTES;

use super::{
    draft::Draft,
    twists::{self, Twist},
};

/// The request id of the first message. Seawall's own messages have lower ids.
pub(super) const FIRST_ID: i32 = 0x4000_0000;

/// The commands and aliases that are sent by OP_MSG. These commands change no data except two
/// collections that only these tests use.
const BY_MSG: &[&str] = &[
    "_isSelf",
    "aggregate",
    "authenticate",
    "buildInfo",
    "buildinfo",
    "connectionStatus",
    "count",
    "dbStats",
    "deleteIndexes",
    "find",
    "findandmodify",
    "getLastError",
    "getParameter",
    "getnonce",
    "hello",
    "insert",
    "isMaster",
    "ismaster",
    "listCommands",
    "listDatabases",
    "logout",
    "nosuch",
    "ping",
    "saslContinue",
    "saslStart",
    "whatsmyuri",
];

/// Commands that are sent by OP_QUERY: all commands that a server accepts in an OP_QUERY, and some
/// others.
const BY_QUERY: &[&str] = &[
    "_isSelf",
    "authenticate",
    "buildInfo",
    "buildinfo",
    "find",
    "hello",
    "isMaster",
    "ismaster",
    "listDatabases",
    "nosuch",
    "ping",
    "saslContinue",
    "saslStart",
];

/// Number of messages with several changed parts.
const MIXED: u32 = 2000;

/// Number of messages in which up to three bytes are changed.
const MUTATED: u32 = 2000;

/// All messages. The request id of each message is its index plus `FIRST_ID`.
pub(super) fn messages() -> Vec<Vec<u8>> {
    let documents = twists::of_documents();
    let (msgs, queries) = (twists::of_msgs(), twists::of_queries());
    let mut drafts = Vec::new();
    for name in BY_MSG {
        drafts.push(Draft::msg(name));
        drafts.extend(twisted(&Draft::msg(name), &documents));
        drafts.extend(twisted(&Draft::msg(name), &msgs));
    }
    for name in BY_QUERY {
        drafts.push(Draft::query(name));
        drafts.extend(twisted(&Draft::query(name), &documents));
        drafts.extend(twisted(&Draft::query(name), &queries));
    }
    let mut rng = StdRng::seed_from_u64(0);
    for _ in 0..MIXED {
        let is_msg = rng.random();
        let mut draft = plain(&mut rng, is_msg);
        let carriers = if is_msg { &msgs } else { &queries };
        for _ in 0..rng.random_range(2..=3) {
            let twists = if rng.random() { &documents } else { carriers };
            pick(&mut rng, twists)(&mut draft);
        }
        drafts.push(draft);
    }
    let ids = FIRST_ID..;
    let mut messages: Vec<_> = ids
        .zip(&drafts)
        .map(|(id, draft)| draft.to_bytes(id))
        .collect();
    for _ in 0..MUTATED {
        let id = FIRST_ID + i32::try_from(messages.len()).unwrap();
        let is_msg = rng.random();
        let mut message = plain(&mut rng, is_msg).to_bytes(id);
        mutate(&mut message, &mut rng);
        messages.push(message);
    }
    messages
}

fn twisted<'a>(draft: &'a Draft, twists: &'a [Twist]) -> impl Iterator<Item = Draft> + 'a {
    twists.iter().map(|twist| {
        let mut draft = draft.clone();
        twist(&mut draft);
        draft
    })
}

fn plain(rng: &mut StdRng, is_msg: bool) -> Draft {
    match is_msg {
        true => Draft::msg(pick::<&str>(rng, BY_MSG)),
        false => Draft::query(pick::<&str>(rng, BY_QUERY)),
    }
}

fn pick<'a, T>(rng: &mut StdRng, among: &'a [T]) -> &'a T {
    &among[rng.random_range(0..among.len())]
}

/// Changes a few bytes after the header. The message length in the header stays correct, so that a
/// server finds the start of the next message.
fn mutate(message: &mut [u8], rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..=3) {
        let byte = &mut message[HEADER_BYTES + 4..];
        let index = rng.random_range(0..byte.len());
        byte[index] = match rng.random_range(0..4) {
            0 => rng.random(),
            1 => byte[index] ^ 1 << rng.random_range(0..8),
            2 => [0, 1, 2, 3, 4, 0x7f, 0x80, 0xff][rng.random_range(0..8)],
            _ => byte[index].wrapping_add(1),
        };
    }
}
