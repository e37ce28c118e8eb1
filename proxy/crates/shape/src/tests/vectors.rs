//! Tests with the published examples of the fingerprint rules (the test vectors). The results must
//! match exactly.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::super::{
    Description, Fingerprint, Legacy, Query, ShapeId, describe, describe_legacy, fingerprint,
    fingerprint_legacy,
};
use seawall_command::CommandBytes;

#[derive(Deserialize)]
struct File {
    spec: String,
    vectors: Vec<Vector>,
}

/// One example: a command as exact BSON bytes, or a legacy message.
#[derive(Deserialize)]
struct Vector {
    id: String,
    bson: Option<String>,
    legacy: Option<OldMessage>,
    expected: Expected,
    #[serde(default)]
    same_as: Vec<String>,
    #[serde(default)]
    different_from: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OldMessage {
    opcode: String,
    full_collection_name: String,
    flags: u32,
    number_to_skip: i32,
    number_to_return: i32,
    query: bson::Document,
}

#[derive(Deserialize)]
struct Expected {
    op: String,
    db: String,
    coll: String,
    shape: String,
    /// The coarse shape, if it differs from `shape`.
    coarse: Option<String>,
}

/// A fingerprint that owns its bytes: the operation, the database, the collection, the hash of the
/// shape, and the hash of the coarse shape. The coarse shape lacks the parts that select no
/// documents.
type Hashed = (&'static str, Vec<u8>, Vec<u8>, ShapeId, ShapeId);

impl Vector {
    fn with_message<T>(
        &self,
        on_command: impl Fn(&CommandBytes<'_>) -> T,
        on_legacy: impl Fn(&Legacy<'_>) -> T,
    ) -> T {
        if let Some(bson) = &self.bson {
            let body = STANDARD.decode(bson).unwrap();
            return on_command(&CommandBytes::of_body(&body));
        }
        let message = self.legacy.as_ref().unwrap();
        assert_eq!(message.opcode, "OP_QUERY");
        on_legacy(&Legacy::Query(Query {
            namespace: message.full_collection_name.as_bytes(),
            flags: message.flags,
            number_to_skip: message.number_to_skip,
            number_to_return: message.number_to_return,
            query: &message.query.to_vec().unwrap(),
            return_fields_selector: &[],
        }))
    }

    fn describe(&self) -> Description {
        self.with_message(describe, describe_legacy)
    }

    fn hash(&self) -> Hashed {
        fn owned(print: Fingerprint<'_>) -> Hashed {
            let Fingerprint {
                shape,
                coarse,
                op,
                db,
                collection,
            } = print;
            (
                op,
                db.to_vec(),
                collection.as_bytes().to_vec(),
                shape,
                coarse,
            )
        }
        self.with_message(
            |input| owned(fingerprint(input)),
            |old| owned(fingerprint_legacy(old)),
        )
    }
}

fn vectors() -> Vec<Vector> {
    let file = include_str!("../../testdata/fingerprint-vectors.json");
    let file: File = serde_json::from_str(file).unwrap();
    assert_eq!(file.spec, "fp1");
    file.vectors
}

#[test]
fn shape_texts_match_the_test_vectors() {
    for vector in vectors() {
        let Vector { id, expected, .. } = &vector;
        let text = vector.describe();
        assert_eq!(text.op, expected.op, "{id}: op");
        assert_eq!(text.db, expected.db, "{id}: db");
        assert_eq!(text.collection, expected.coll, "{id}: coll");
        assert_eq!(text.shape, expected.shape, "{id}: shape");
        let coarse = expected.coarse.as_ref().unwrap_or(&expected.shape);
        assert_eq!(&text.coarse, coarse, "{id}: coarse");
    }
}

#[test]
fn hashes_of_the_test_vectors_are_equal_if_and_only_if_texts_are_equal() {
    let outcomes: Vec<_> = vectors()
        .iter()
        .map(|vector| (vector.id.clone(), vector.describe(), vector.hash()))
        .collect();
    for (left_id, left, left_hash) in &outcomes {
        let (op, db, collection, ..) = left_hash;
        assert_eq!(left.op, *op, "{left_id}");
        assert_eq!(left.db.as_bytes(), db, "{left_id}");
        assert_eq!(left.collection.as_bytes(), collection, "{left_id}");
        for (right_id, right, right_hash) in &outcomes {
            let pair = format!("{left_id} and {right_id}");
            let same_target =
                left.op == right.op && left.db == right.db && left.collection == right.collection;
            let same_shape = same_target && left.shape == right.shape;
            assert_eq!(same_shape, left_hash.3 == right_hash.3, "{pair}");
            let same_coarse = same_target && left.coarse == right.coarse;
            assert_eq!(same_coarse, left_hash.4 == right_hash.4, "{pair}: coarse");
        }
    }
}

#[test]
fn hashes_are_equal_or_different_as_the_test_vectors_require() {
    let vectors = vectors();
    let hashes: HashMap<_, _> = vectors
        .iter()
        .map(|vector| (vector.id.as_str(), vector.hash().3))
        .collect();
    for Vector {
        id,
        same_as,
        different_from,
        ..
    } in &vectors
    {
        for other in same_as {
            assert_eq!(
                hashes[id.as_str()],
                hashes[other.as_str()],
                "{id} and {other}"
            );
        }
        for other in different_from {
            assert_ne!(
                hashes[id.as_str()],
                hashes[other.as_str()],
                "{id} and {other}"
            );
        }
    }
}
