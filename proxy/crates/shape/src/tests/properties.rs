//! Tests of properties that the fingerprints of all commands have.

use bson::{Bson, Document, doc};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{LearnedNames, describe, fingerprint};
use super::corpus::{Dice, PLANTED};
use super::{described, hashed};
use seawall_command::CommandBytes;
use seawall_wire::Sequence;

fn choices() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hashes_are_equal_if_and_only_if_command_names_collections_and_shape_texts_are_equal(
        seeds in vec(vec(any::<u8>(), 0..40), 12),
    ) {
        let commands: Vec<_> = seeds.iter().map(|seed| Dice::new(seed).command()).collect();
        let outcomes: Vec<_> =
            commands.iter().map(|command| (described(command), hashed(command))).collect();
        for (index, (left, left_hash)) in outcomes.iter().enumerate() {
            for (right, right_hash) in &outcomes[index..] {
                let same_target = left.op == right.op && left.collection == right.collection;
                prop_assert_eq!(
                    same_target && left.shape == right.shape,
                    left_hash.0 == right_hash.0,
                    "{:?} {:?}", left, right
                );
                prop_assert_eq!(
                    same_target && left.coarse == right.coarse,
                    left_hash.1 == right_hash.1,
                    "{:?} {:?}", left, right
                );
            }
        }
    }

    /// *Learned names* are field names that count as data, because too many different field names
    /// follow the same beginning of a field path.
    #[test]
    fn hashes_are_equal_if_and_only_if_texts_are_equal_when_learned_names_are_replaced_by_a_star(
        seeds in vec(vec(any::<u8>(), 0..40), 12),
    ) {
        let bodies: Vec<_> =
            seeds.iter().map(|seed| Dice::new(seed).command().to_vec().unwrap()).collect();
        let inputs: Vec<_> = bodies.iter().map(|body| CommandBytes::of_body(body)).collect();
        let mut names = LearnedNames::default();
        for input in &inputs {
            prop_assert_eq!(names.fingerprint(input), fingerprint(input));
            prop_assert_eq!(names.describe(input, None), describe(input));
        }
        // After a prefix is learned, names at a deeper level may be found, so the loop continues.
        while let Some((prefix, _)) = inputs.iter().flat_map(|input| names.child_names(input)).next() {
            names.learn(prefix);
        }
        let outcomes: Vec<_> =
            inputs.iter().map(|input| (names.describe(input, None), names.fingerprint(input))).collect();
        for (left, left_hash) in &outcomes {
            prop_assert!(!left.shape.contains("c.d"), "{}", left.shape);
            for (right, right_hash) in &outcomes {
                let same_target = left.op == right.op && left.collection == right.collection;
                let is_same = same_target && left.shape == right.shape;
                prop_assert_eq!(is_same, left_hash.shape == right_hash.shape, "{:?} {:?}", left, right);
                let is_same = same_target && left.coarse == right.coarse;
                prop_assert_eq!(is_same, left_hash.coarse == right_hash.coarse, "{:?} {:?}", left, right);
            }
        }
    }

    #[test]
    fn values_are_not_in_the_text_or_hash_of_a_shape(choices in choices(), salt in 1_u32..100_000) {
        let command = Dice::new(&choices).command();
        let mut dice = Dice::new(&choices);
        dice.salt = salt;
        let other = dice.command();
        let text = described(&command);
        prop_assert!(!text.shape.contains(PLANTED), "{}", text.shape);
        prop_assert!(!text.coarse.contains(PLANTED), "{}", text.coarse);
        prop_assert_eq!(&text, &described(&other));
        prop_assert_eq!(hashed(&command), hashed(&other));
    }

    /// The order of the conditions of a filter, for example, does not matter to the server.
    #[test]
    fn fingerprint_does_not_depend_on_an_order_that_does_not_matter_to_the_server(choices in choices()) {
        let command = Dice::new(&choices).command();
        let mut dice = Dice::new(&choices);
        dice.is_shuffled = true;
        let shuffled = dice.command();
        prop_assert_eq!(described(&command), described(&shuffled));
        prop_assert_eq!(hashed(&command), hashed(&shuffled));
    }

    #[test]
    fn fingerprint_depends_on_the_order_of_stages_and_of_index_keys(
        choices in choices(),
        swapped in 0_usize..3,
    ) {
        let mut stages = Dice::new(&choices).pipeline();
        stages.push(doc! { "$match": { "first": 1 } });
        stages.push(doc! { "$match": { "second": 1 } });
        let keys = doc! { "s": 1, "t": 1, "u": -1 };
        let command = |stages: &[Document], keys: &Document| {
            doc! { "aggregate": "c", "pipeline": stages.to_vec(), "hint": keys.clone(), "$db": "d" }
        };
        let one = command(&stages, &keys);
        let last = stages.len() - 1;
        let other = if swapped == 0 {
            stages.swap(last - 1, last);
            command(&stages, &keys)
        } else {
            let mut fields: Vec<_> = keys.into_iter().collect();
            fields.swap(0, swapped);
            command(&stages, &fields.into_iter().collect())
        };
        prop_assert_ne!(described(&one).shape, described(&other).shape);
        prop_assert_ne!(hashed(&one).0, hashed(&other).0);
    }

    #[test]
    fn fingerprints_of_corrupt_commands_have_equal_hashes_if_and_only_if_their_texts_are_equal(
        choices in choices(),
        cut in any::<prop::sample::Index>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let whole = Dice::new(&choices).command().to_vec().unwrap();
        let mut corrupt = whole.clone();
        for (position, byte) in changes {
            let position = position.index(corrupt.len());
            corrupt[position] = byte;
        }
        let truncated = &corrupt[..cut.index(corrupt.len() + 1)];
        let outcomes = [&whole, &corrupt, truncated].map(|body| {
            let sequences = [Sequence { identifier: b"updates", documents: body }];
            let input = CommandBytes { body, sequences: &sequences };
            let print = fingerprint(&input);
            let target = (print.op, print.db.to_vec(), print.collection.as_bytes().to_vec());
            (target, describe(&input).shape, print.shape)
        });
        for (left_target, left_text, left_hash) in &outcomes {
            for (right_target, right_text, right_hash) in &outcomes {
                let same = left_target == right_target && left_text == right_text;
                prop_assert_eq!(same, left_hash == right_hash);
            }
        }
    }

    #[test]
    fn fingerprint_of_random_bytes_never_panics(
        body in vec(any::<u8>(), 0..300),
        documents in vec(any::<u8>(), 0..100),
    ) {
        let sequences = [Sequence { identifier: b"ops", documents: &documents }];
        let input = CommandBytes { body: &body, sequences: &sequences };
        prop_assert_eq!(fingerprint(&input).op, describe(&input).op);
    }
}

/// `Dice` builds 40 commands from different choices. Each command is cut to every shorter length.
/// Each cut command is tested twice: with its original length field, and with a corrected length
/// field.
#[test]
fn fingerprint_of_a_truncated_command_never_panics() {
    let choices: Vec<u8> = (0..=255).cycle().take(600).collect();
    for start in 0..40 {
        let whole = Dice::new(&choices[start..]).command().to_vec().unwrap();
        for end in 0..whole.len() {
            let mut body = whole[..end].to_vec();
            let input = CommandBytes::of_body(&body);
            assert_eq!(fingerprint(&input).op, describe(&input).op);
            if let Some(length) = body.first_chunk_mut() {
                *length = i32::try_from(end).unwrap().to_le_bytes();
            }
            let input = CommandBytes::of_body(&body);
            assert_eq!(fingerprint(&input).op, describe(&input).op);
        }
    }
}

/// A thread with a small stack can compute the fingerprint of a deeply nested filter. The filter is
/// nested more deeply than `MAX_DEPTH`, and has many fields at each level.
#[test]
fn fingerprint_of_a_very_deep_command_needs_only_a_small_stack() {
    let branch = |filter: Document| {
        let mut filter = doc! { "$or": [filter, { "z": 1 }], "$nor": [{ "y": 1 }] };
        filter.extend((b'a'..=b'p').map(|name| (char::from(name).to_string(), Bson::Int32(1))));
        filter
    };
    let filter = (0..40).fold(doc! { "x": 1 }, |filter, _| branch(filter));
    let body = doc! { "find": "c", "filter": filter, "$db": "d" }
        .to_vec()
        .unwrap();
    let small = std::thread::Builder::new().stack_size(SMALL_STACK_BYTES);
    let walk = small.spawn(move || {
        let input = CommandBytes::of_body(&body);
        fingerprint(&input).shape
    });
    walk.unwrap().join().unwrap();
}

/// Unoptimized code needs several times the stack of a release build. A release build should need
/// at most about 100 KiB.
const SMALL_STACK_BYTES: usize = 512 * 1024;
