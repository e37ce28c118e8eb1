//! Tests of the fingerprint rules: the published examples (the test vectors), single rules, and
//! properties that hold for all commands.

mod bounds;
mod corpus;
mod names;
mod properties;
mod rules;
mod vectors;

use bson::Document;

use super::{Description, ShapeId, describe, fingerprint};
use seawall_command::CommandBytes;

/// The printed fingerprint of a command.
fn described(command: &Document) -> Description {
    describe(&CommandBytes::of_body(&command.to_vec().unwrap()))
}

/// The hash of a command's shape, and the hash of its coarse shape (the shape without the parts
/// that select no documents).
fn hashed(command: &Document) -> (ShapeId, ShapeId) {
    let body = command.to_vec().unwrap();
    let print = fingerprint(&CommandBytes::of_body(&body));
    (print.shape, print.coarse)
}

/// The text of a command's shape with all its parts (not of its coarse shape).
fn shape(command: &Document) -> String {
    described(command).shape
}

/// The shape of a filter in a `find`, without the enclosing `{filter:…}`.
fn filter_shape(filter: Document) -> String {
    let shape = shape(&bson::doc! { "find": "c", "filter": filter, "$db": "d" });
    let inner = shape
        .strip_prefix("{filter:")
        .and_then(|rest| rest.strip_suffix('}'));
    inner.unwrap_or("{}").to_owned()
}
