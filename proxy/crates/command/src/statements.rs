//! Counts the statements of a write command: the documents to insert, or the updates and deletes to
//! run. More statements cost the server more, but do not change the command's fingerprint (its
//! operation, namespace and shape).

use crate::CommandBytes;
use crate::table::{self, Statements};
use seawall_wire::{DocumentWalk, ElementKind, Elements};

/// Number of documents to insert, or of updates and deletes to run; 0 if the command is not a
/// write of documents. In a document sequence that is still arriving, a document counts as soon as
/// its length has arrived.
pub fn statements(input: &CommandBytes<'_>) -> u64 {
    let first = Elements::of(input.body).next().and_then(Result::ok);
    let Some(first) = first else { return 0 };
    let field = match table::find(first.name).statements {
        Statements::None => return 0,
        Statements::One => return 1,
        Statements::Listed(field) => field,
    };
    let mut sequences = input.sequences.iter();
    if let Some(sequence) = sequences.find(|s| s.identifier == field.as_bytes()) {
        let mut walk = DocumentWalk::default();
        walk.feed(sequence.documents);
        return walk.count();
    }
    match Elements::find(input.body, field).map(|element| element.value) {
        Some(ElementKind::Array(array)) => {
            let elements = Elements::of(array).take_while(Result::is_ok);
            u64::try_from(elements.count()).unwrap_or(u64::MAX)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};
    use seawall_wire::Sequence;

    fn of(command: &Document) -> u64 {
        let body = command.to_vec().unwrap();
        statements(&CommandBytes::of_body(&body))
    }

    #[test]
    fn write_statements_in_a_body_field_are_counted() {
        let two = vec![
            doc! {"q": {}, "limit": 0},
            doc! {"q": {"a": [1, 2]}, "limit": 1},
        ];
        let cases = [
            (doc! {"insert": "c", "documents": [{}, {"a": 1}, {}]}, 3),
            (
                doc! {"update": "c", "ordered": false, "updates": two.clone()},
                2,
            ),
            (doc! {"delete": "c", "deletes": two.clone()}, 2),
            (
                doc! {"bulkWrite": 1, "ops": two.clone(), "nsInfo": [{"ns": "a.b"}]},
                2,
            ),
            (doc! {"findAndModify": "c", "query": {}, "remove": true}, 1),
            // These commands have no statements, because they are not writes or are invalid.
            (doc! {"find": "c", "documents": two.clone()}, 0),
            (doc! {"explain": {"delete": "c", "deletes": two}}, 0),
            (doc! {"insert": "c", "documents": {"a": 1}}, 0),
            (doc! {"insert": "c"}, 0),
        ];
        for (command, count) in cases {
            assert_eq!(of(&command), count, "{command}");
        }
    }

    #[test]
    fn write_statements_in_a_document_sequence_are_counted() {
        let document = doc! {"a": "some text"}.to_vec().unwrap();
        let documents = document.repeat(1_000);
        let body = doc! {"insert": "c", "$db": "d"}.to_vec().unwrap();
        let count = |identifier: &str, bytes: usize| {
            let sequences = [Sequence {
                identifier: identifier.as_bytes(),
                documents: &documents[..bytes],
            }];
            statements(&CommandBytes {
                body: &body,
                sequences: &sequences,
            })
        };
        assert_eq!(count("documents", documents.len()), 1_000);
        assert_eq!(count("documents", 10 * document.len()), 10);
        assert_eq!(count("documents", 10 * document.len() + 4), 11);
        assert_eq!(count("documents", 0), 0);
        assert_eq!(count("updates", documents.len()), 0);
    }
}
