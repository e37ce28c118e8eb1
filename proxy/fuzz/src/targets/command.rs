//! The body of a command: its elements, and the fields that decide how Seawall serves the command.
//!
//! The fuzzer's input, in this order:
//!
//! - one byte that selects where the body comes from (see the last item);
//! - one length byte, then that many bytes, which select changes to the body;
//! - the body, or bytes that select a command from the grammar in [`documents`].

use bson::{Bson, Document, oid::ObjectId};
use seawall_command::CommandBytes;
use seawall_command::{Class, Command, Mode, ReadPreference, Target, statements, table};
use seawall_wire::Sequence;
use seawall_wire::{DocumentWalk, ElementKind, Elements, document_at};

use crate::{
    choices::{Choices, Pieces, altered},
    documents,
};

/// Checks that `Command::inspect` returns the fields of the body, and that Seawall and the `bson`
/// crate read the same elements in the body.
pub fn command(data: &[u8]) {
    let mut choices = Choices::new(data);
    let kind = choices.byte();
    let mut alterations = Choices::new(choices.short());
    if !kind.is_multiple_of(4) {
        check_body(choices.rest(), kind);
        let body = documents::repaired(choices.rest());
        check_body(&body, kind);
        if let Some(body) = documents::altered(&body, &mut alterations) {
            check_body(&body, kind);
        }
        return;
    }
    let mut command = documents::command(choices.rest(), u32::from(kind), false);
    add_generic_fields(&mut command, &mut alterations);
    let body = documents::encode(&command);
    assert!(documents::check_walk(&body));
    assert!(Command::inspect(&body).is_ok(), "{command}");
    check_body(&body, kind);
    check_body(&altered(&body, &mut alterations, 4), kind);
}

/// Adds fields that any command may have.
fn add_generic_fields(command: &mut Document, choices: &mut Choices<'_>) {
    for _ in 0..choices.byte() % 4 {
        let number = choices.byte();
        let numeric = match choices.byte() % 4 {
            0 => Bson::Int32(number.into()),
            1 => Bson::Int64(-i64::from(number)),
            2 => Bson::Double(f64::from(number) / 2.0),
            _ => Bson::ObjectId(ObjectId::from_bytes([number; 12])),
        };
        let id = bson::Binary {
            subtype: bson::spec::BinarySubtype::Uuid,
            bytes: vec![number; 16 - usize::from(number % 5 / 4)],
        };
        let (name, value): (_, Bson) = match choices.byte() % 8 {
            0 => ("maxTimeMS", numeric),
            1 => ("txnNumber", numeric),
            2 => ("lsid", bson::doc! { "id": id }.into()),
            3 => ("autocommit", number.is_multiple_of(2).into()),
            4 => ("startTransaction", numeric),
            5 => ("writeConcern", bson::doc! { "w": numeric }.into()),
            6 => ("cursors", vec![numeric].into()),
            _ => ("$readPreference", read_preference(number, numeric).into()),
        };
        command.insert(name, value);
    }
}

fn read_preference(kind: u8, number: Bson) -> Document {
    let modes = [
        Mode::Primary,
        Mode::PrimaryPreferred,
        Mode::Secondary,
        Mode::SecondaryPreferred,
        Mode::Nearest,
    ];
    let mode = modes.get(usize::from(kind) % modes.len());
    let mode = mode.expect("the index is below the length").as_str();
    let tag = bson::doc! { "region": format!("r{kind}") };
    match kind / 8 % 4 {
        0 => bson::doc! { "mode": mode },
        1 => bson::doc! { "mode": mode, "tags": [tag, {}] },
        2 => bson::doc! { "mode": mode, "maxStalenessSeconds": number },
        _ => bson::doc! { "tags": [number] },
    }
}

fn check_body(body: &[u8], pieces: u8) {
    documents::check_walk(body);
    // `Command::inspect` expects a body whose length is valid, because the parser of messages has
    // checked the length before.
    let Ok(body) = document_at(body) else {
        return;
    };
    match Command::inspect(body) {
        Ok(command) => check_command(&command, body),
        Err(error) => assert_ne!(error.code(), 0),
    }
    if let Ok(command) = Command::inspect_legacy(body, "admin") {
        assert_eq!(command.db, "admin");
        check_fields(&command);
    }
    check_statements(body, Pieces::new(pieces));
}

fn check_command(command: &Command<'_>, body: &[u8]) {
    assert_eq!(command.body, body);
    assert!(!command.db.is_empty() && command.db.len() <= 63);
    assert!(!command.db.contains(['/', '\\', '.', ' ', '"', '\0']));
    let first = Elements::of(body).next().and_then(Result::ok);
    let first = first.expect("a command has a first field");
    assert_eq!(command.name, first.name);
    match (command.target, first.value) {
        (Target::Text(text), ElementKind::String(bytes)) => assert_eq!(text.as_bytes(), bytes),
        (Target::Number(number), value) => assert_eq!(value.as_i64(), Some(number)),
        (Target::Text(_), _) => panic!("only a string is Target::Text"),
        (Target::Other, _) => {}
    }
    check_fields(command);
}

fn check_fields(command: &Command<'_>) {
    assert_eq!(command.spec, table::find(command.name));
    assert_eq!(command.class, command.spec.class);
    assert!(!(command.only_reads() && command.writes()));
    assert!(!(command.in_transaction && command.may_be_repeated()));
    if command.class == Class::Write && command.may_be_repeated() {
        assert!(command.numbered().is_some());
    }
    assert!(!command.opens_change_stream() || command.opens_awaiting_cursor());
    assert!(!command.name_str().is_empty() || command.name.is_empty());
    if let Some(max_time) = command.max_time {
        let value = command.body.get(max_time.offset..).unwrap_or_default();
        let milliseconds = match max_time.bson_type {
            16 => value
                .first_chunk()
                .map(|b| i64::from(i32::from_le_bytes(*b))),
            18 => value.first_chunk().map(|b| i64::from_le_bytes(*b)),
            _ => {
                let number = value.first_chunk().map(|b| f64::from_le_bytes(*b));
                number.and_then(|number| ElementKind::Double(number).as_i64())
            }
        };
        assert_eq!(milliseconds, Some(max_time.milliseconds));
    }
    if let Some(preference) = command.read_preference
        && let Ok(preference) = ReadPreference::parse(preference)
        && preference.mode == Mode::Primary
    {
        assert_eq!(preference.max_staleness, None);
        assert!(preference.tag_sets.iter().all(Vec::is_empty));
    }
}

/// Checks that Seawall counts the same number of statements in a document sequence, whether the
/// sequence arrives in one piece or in many.
fn check_statements(body: &[u8], pieces: Pieces) {
    let none = statements(&CommandBytes::of_body(body));
    assert!(none <= u64::try_from(body.len()).unwrap_or(u64::MAX));
    let first = Elements::of(body).next().and_then(Result::ok);
    let field = first.and_then(|first| table::find(first.name).statements.field());
    let Some(field) = field else {
        return;
    };
    let sequences = [Sequence {
        identifier: field.as_bytes(),
        documents: body,
    }];
    let whole = statements(&CommandBytes {
        body,
        sequences: &sequences,
    });
    let mut walk = DocumentWalk::default();
    pieces.split(body).for_each(|piece| walk.feed(piece));
    assert_eq!(walk.count(), whole);
}
