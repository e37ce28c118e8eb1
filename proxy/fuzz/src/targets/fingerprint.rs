//! Fingerprints: hashes and texts of commands.
//!
//! Input, in this order:
//!
//! - one byte that selects the source of commands;
//! - one byte that selects three things: the values of a second command with the same shape, the
//!   document sequence, and the legacy opcode;
//! - one length byte, then that many bytes, which select changes to the body;
//! - a body, or bytes that select a command from the grammar in [`documents`].

use seawall_command::CommandBytes;
use seawall_shape::{
    Description, LearnedNames, Legacy, Query, ShapeId, describe, describe_legacy,
    fingerprint as print_of, fingerprint_legacy,
};
use seawall_wire::Sequence;

use crate::{
    choices::{Choices, altered},
    documents,
};

/// Maximum length of the text of a shape (a command without its values), in bytes.
const MAX_TEXT_BYTES: usize = 4_096;

/// Computes the hash and the text of a command's shape. Checks that the hash and the text depend
/// neither on the values of the command, nor on the order of the members of a set. The fields of a
/// filter are such a set. Checks that two commands have the same hash if and only if they have the
/// same text.
pub fn fingerprint(data: &[u8]) {
    let mut choices = Choices::new(data);
    let kind = choices.byte();
    let change = choices.byte();
    let mut alterations = Choices::new(choices.short());
    let rest = choices.rest();
    let body = match kind % 4 {
        0 => rest.to_vec(),
        1 => {
            check_legacy(rest, change);
            rest.to_vec()
        }
        _ => {
            check_grammar(rest, change);
            documents::encode(&documents::command(rest, 0, false))
        }
    };
    let other = altered(&body, &mut alterations, 4);
    let identifiers: [&[u8]; 4] = [b"updates", b"deletes", b"documents", b"ops"];
    let identifier = identifiers.get(usize::from(change) % 4);
    let sequences = [Sequence {
        identifier: identifier.copied().unwrap_or_default(),
        documents: &body,
    }];
    let sequences = match change % 8 {
        0..=3 => &sequences[..0],
        _ => &sequences[..],
    };
    let one = check_command(&CommandBytes {
        body: &body,
        sequences,
    });
    let other = check_command(&CommandBytes {
        body: &other,
        sequences,
    });
    check_pair(&one, &other);
}

/// The results that Seawall computes for a command: its database and collection, and the text and
/// the hashes of its fine and its coarse shape. The fine shape is the command without its values.
/// The coarse shape also lacks the parts that select no documents, such as a projection.
#[derive(Debug)]
struct Shaped {
    target: (Vec<u8>, Vec<u8>),
    text: Description,
    fine: ShapeId,
    coarse: ShapeId,
}

fn check_command(input: &CommandBytes<'_>) -> Shaped {
    let print = print_of(input);
    assert_eq!(
        print_of(input),
        print,
        "equal commands have equal fingerprints"
    );
    let text = describe(input);
    assert_eq!(text.op, print.op);
    assert_eq!(text.db, print.readable_db());
    assert_eq!(text.collection, print.readable_collection());
    assert!(text.shape.len() <= MAX_TEXT_BYTES && text.coarse.len() <= MAX_TEXT_BYTES);
    assert_eq!(
        ShapeId::from_hex(&print.shape.to_string()),
        Some(print.shape)
    );

    let mut names = LearnedNames::default();
    assert_eq!(names.fingerprint(input), print, "no names are learned yet");
    let children = names.child_names(input);
    children.iter().for_each(|(prefix, _)| names.learn(*prefix));
    let learned = names.fingerprint(input);
    assert_eq!(learned.op, print.op);
    assert_eq!(names.describe(input, None).op, print.op);
    Shaped {
        target: (print.db.to_vec(), print.collection.as_bytes().to_vec()),
        text,
        fine: print.shape,
        coarse: print.coarse,
    }
}

fn check_pair(one: &Shaped, other: &Shaped) {
    let is_same_target = one.text.op == other.text.op && one.target == other.target;
    let is_cut = |text: &str| text.len() >= MAX_TEXT_BYTES - 3 && text.ends_with("...");
    if !is_cut(&one.text.shape) {
        let is_same = is_same_target && one.text.shape == other.text.shape;
        assert_eq!(is_same, one.fine == other.fine, "{one:?} {other:?}");
    }
    if !is_cut(&one.text.coarse) {
        let is_same = is_same_target && one.text.coarse == other.text.coarse;
        assert_eq!(is_same, one.coarse == other.coarse, "{one:?} {other:?}");
    }
}

/// Checks that a command keeps its hashes and its text if its values change, or if the members of
/// its sets change their order.
fn check_grammar(choices: &[u8], change: u8) {
    let command = documents::command(choices, 0, false);
    let body = documents::encode(&command);
    let input = CommandBytes::of_body(&body);
    let print = print_of(&input);
    let text = describe(&input);
    assert!(!text.shape.contains(documents::planted()), "{text:?}");
    let salt = 1 + u32::from(change) * 257;
    for (salt, is_shuffled) in [(salt, false), (0, true)] {
        let other = documents::command(choices, salt, is_shuffled);
        let other = documents::encode(&other);
        let input = CommandBytes::of_body(&other);
        let other = print_of(&input);
        assert_eq!(
            (other.shape, other.coarse),
            (print.shape, print.coarse),
            "{command}"
        );
        assert_eq!(describe(&input), text);
    }
}

/// Checks a message with a legacy opcode: its fingerprint and its text must name the same
/// operation, database and collection.
fn check_legacy(bytes: &[u8], kind: u8) {
    let (namespace, document) = bytes.split_at(bytes.len().min(usize::from(kind / 8)));
    let flags = u32::from(kind);
    let message = match kind % 6 {
        0 => Legacy::Insert { namespace },
        1 => Legacy::Update {
            namespace,
            flags,
            selector: document,
            update: document,
        },
        2 => Legacy::Delete {
            namespace,
            flags,
            selector: document,
        },
        3 => Legacy::GetMore { namespace },
        4 => Legacy::KillCursors,
        _ => Legacy::Query(Query {
            flags,
            namespace,
            number_to_skip: i32::from(kind) - 100,
            number_to_return: 100 - i32::from(kind),
            query: document,
            return_fields_selector: document,
        }),
    };
    let print = fingerprint_legacy(&message);
    let text = describe_legacy(&message);
    assert_eq!(text.op, print.op);
    assert_eq!(text.db, print.readable_db());
    assert_eq!(text.collection, print.readable_collection());
}
