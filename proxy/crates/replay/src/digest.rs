//! Digests of results, and the commands whose results cannot be compared.
//!
//! The digest of a shape is the sum of the hashes of all documents that its operations returned. So
//! the order of documents and of operations does not matter. ObjectIds, dates and timestamps that
//! were created after the capture began are excluded, because the replay creates different ones.

use seawall_command::table::Syntax;
use seawall_wire::kind::{ARRAY, DATE, DOCUMENT, DOUBLE, OBJECT_ID, REGEX, STRING, TIMESTAMP};
use seawall_wire::{ElementKind, Elements, MAX_BSON_DEPTH, RawElement, Sequence};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The reason why the results of a shape are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusion {
    /// Seawall compares no results of this command. Examples are `listCollections`, `explain` and
    /// `mapReduce`. Or the results are in the row that all further shapes share.
    NoDocuments,
    /// The command uses the time, random numbers, or the state of the server. Or its documents are
    /// nested too deeply to be searched for such values.
    Volatile,
    /// The command compares strings by order or pattern, and the capture is redacted.
    StringRange,
    /// The command reads the data of an earlier time, or resumes a change stream. The replay can do
    /// neither: it reads the current data, and a change stream begins when the replay opens it.
    EarlierTime,
}

/// The reason why the results of a command cannot be compared; `None` if they can be compared.
pub(crate) fn exclusion(
    syntax: Syntax,
    has_statements: bool,
    body: &[u8],
    sequences: &[Sequence<'_>],
    is_redacted: bool,
) -> Option<Exclusion> {
    match syntax {
        Syntax::Find
        | Syntax::Aggregate
        | Syntax::Count
        | Syntax::Distinct
        | Syntax::Update
        | Syntax::Delete
        | Syntax::FindAndModify
        | Syntax::BulkWrite => {}
        Syntax::GetMore => return None,
        // The documents of an insert contain only data, so they are not searched for expressions.
        Syntax::OnCollection if has_statements => return None,
        Syntax::MapReduce
        | Syntax::CreateIndexes
        | Syntax::Explain
        | Syntax::OnCollection
        | Syntax::Plain => return Some(Exclusion::NoDocuments),
    }
    if reads_at_time(body) {
        return Some(Exclusion::EarlierTime);
    }
    let statements = sequences
        .iter()
        .flat_map(|sequence| split(sequence.documents));
    let mut found = [body].into_iter().chain(statements);
    found.find_map(|document| search(document, is_redacted, 0))
}

/// The documents of a document sequence of an `OP_MSG`.
fn split(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let document = seawall_wire::document_at(bytes).ok()?;
        bytes = bytes.get(document.len()..)?;
        Some(document)
    })
}

fn search(document: &[u8], is_redacted: bool, depth: usize) -> Option<Exclusion> {
    if depth > MAX_BSON_DEPTH {
        return Some(Exclusion::Volatile);
    }
    elements(document).find_map(|element| {
        let is_volatile = matches!(
            element.name,
            b"$rand"
                | b"$sample"
                | b"$sampleRate"
                | b"$currentDate"
                | b"$currentOp"
                | b"$indexStats"
                | b"$collStats"
                | b"$planCacheStats"
                | b"$listSessions"
                | b"$listLocalSessions"
        );
        if is_volatile {
            return Some(Exclusion::Volatile);
        }
        if element.name == b"$changeStream" && has_start(element.value) {
            return Some(Exclusion::EarlierTime);
        }
        let is_range = matches!(
            element.name,
            b"$gt" | b"$gte" | b"$lt" | b"$lte" | b"$regex"
        );
        let is_pattern = matches!(
            element.name,
            b"$regexFind" | b"$regexFindAll" | b"$regexMatch"
        );
        match element.kind {
            STRING if is_redacted && is_range => Some(Exclusion::StringRange),
            REGEX if is_redacted => Some(Exclusion::StringRange),
            DOCUMENT if is_redacted && is_pattern => Some(Exclusion::StringRange),
            ARRAY if is_redacted && is_range && has_constant_string(element.value) => {
                Some(Exclusion::StringRange)
            }
            STRING => is_clock(element.value).then_some(Exclusion::Volatile),
            DOCUMENT | ARRAY => search(element.value, is_redacted, depth + 1),
            _ => None,
        }
    })
}

/// True if a command reads the data of a given time. All commands of a snapshot session except the
/// first command do this.
fn reads_at_time(body: &[u8]) -> bool {
    let mut concerns = elements(body).filter(|element| element.name == b"readConcern");
    concerns.any(|concern| elements(concern.value).any(|of| of.name == b"atClusterTime"))
}

/// True if the options of a change stream say where the stream starts.
fn has_start(options: &[u8]) -> bool {
    elements(options).any(|option| {
        matches!(
            option.name,
            b"resumeAfter" | b"startAfter" | b"startAtOperationTime"
        )
    })
}

/// True if a string begins with the variable `$$NOW` or `$$CLUSTER_TIME`.
fn is_clock(string: &[u8]) -> bool {
    let text = string.get(4..).unwrap_or_default();
    text.starts_with(b"$$NOW") || text.starts_with(b"$$CLUSTER_TIME")
}

/// True if the arguments of an operator in an expression contain a string that is a constant, and
/// not a field path or a variable.
fn has_constant_string(arguments: &[u8]) -> bool {
    let is_constant = |element: &RawElement<'_>| element.value.get(4) != Some(&b'$');
    elements(arguments).any(|element| element.kind == STRING && is_constant(&element))
}

/// The elements of a document, up to the first invalid one.
fn elements(document: &[u8]) -> impl Iterator<Item = RawElement<'_>> {
    RawElement::all(document).map_while(Result::ok)
}

/// The sum of the hashes of the results in a reply: the documents of a batch, the values of a
/// `distinct`, or the document of a `findAndModify`. ObjectIds, dates and timestamps whose
/// time is `recent_s` (in seconds since 1970) or later are excluded.
pub(crate) fn digest(reply: &[u8], recent_s: u64) -> u64 {
    let hasher = Hasher { recent_s };
    let of_array = |array: &[u8]| {
        let hashes = elements(array).map(|element| hasher.hash(element.kind, element.value));
        hashes.fold(0_u64, u64::wrapping_add)
    };
    let mut sum = 0_u64;
    for element in Elements::of(reply).map_while(Result::ok) {
        let part = match (element.name, element.value) {
            (b"cursor", ElementKind::Document(cursor)) => {
                let batch = elements(cursor)
                    .find(|inner| matches!(inner.name, b"firstBatch" | b"nextBatch"));
                batch.map_or(0, |batch| of_array(batch.value))
            }
            (b"values", ElementKind::Array(values)) => of_array(values),
            (b"value", ElementKind::Document(value)) => hasher.hash(DOCUMENT, value),
            _ => 0,
        };
        sum = sum.wrapping_add(part);
    }
    sum
}

#[derive(Clone, Copy)]
struct Hasher {
    recent_s: u64,
}

impl Hasher {
    /// The first eight bytes of the SHA-256 of a value's type and content.
    fn hash(self, kind: u8, value: &[u8]) -> u64 {
        let mut hash = Sha256::new();
        self.add(&mut hash, kind, value, 0);
        let hash = hash.finalize();
        hash.first_chunk()
            .map_or(0, |first| u64::from_le_bytes(*first))
    }

    fn add(self, hash: &mut Sha256, kind: u8, value: &[u8], depth: usize) {
        hash.update([kind]);
        match kind {
            DOCUMENT | ARRAY if depth <= MAX_BSON_DEPTH => {
                for element in elements(value) {
                    hash.update(element.name);
                    hash.update([0]);
                    self.add(hash, element.kind, element.value, depth + 1);
                }
                // No element has the type 0, so this byte marks the end of the document.
                hash.update([0]);
            }
            DOCUMENT | ARRAY => {}
            OBJECT_ID | DATE | TIMESTAMP if self.is_recent(kind, value) => {}
            // 0.0 and -0.0 are equal, so they need the same hash.
            DOUBLE if value == NEGATIVE_ZERO => hash.update([0; 8]),
            _ => hash.update(value),
        }
    }

    fn is_recent(self, kind: u8, value: &[u8]) -> bool {
        let seconds = match (kind, value) {
            (OBJECT_ID, [a, b, c, d, ..]) => u64::from(u32::from_be_bytes([*a, *b, *c, *d])),
            (DATE, value) => {
                let milliseconds = value.first_chunk().map(|chunk| i64::from_le_bytes(*chunk));
                u64::try_from(milliseconds.unwrap_or(0)).unwrap_or(0) / 1000
            }
            // The seconds are the upper half of a timestamp.
            (_, [_, _, _, _, a, b, c, d]) => u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
            _ => 0,
        };
        seconds >= self.recent_s
    }
}

/// The bytes of the double -0.0.
const NEGATIVE_ZERO: [u8; 8] = (-0.0_f64).to_le_bytes();

#[cfg(test)]
mod tests {
    use bson::{Bson, DateTime, Document, Regex, Timestamp, doc, oid::ObjectId, raw::CString};
    use proptest::prelude::*;

    use super::*;

    const RECENT_S: u64 = 1_700_000_000;

    fn of(reply: &Document) -> u64 {
        digest(&reply.to_vec().unwrap(), RECENT_S)
    }

    fn batch(documents: Vec<Document>) -> Document {
        doc! {"cursor": {"firstBatch": documents, "id": 5_i64, "ns": "d.c"}, "ok": 1.0}
    }

    fn excluded(command: &Document, syntax: Syntax, is_redacted: bool) -> Option<Exclusion> {
        let body = command.to_vec().unwrap();
        exclusion(syntax, false, &body, &[], is_redacted)
    }

    #[test]
    fn the_digest_depends_on_the_documents_but_not_on_their_order_or_batches() {
        let (a, b) = (
            doc! {"_id": 1, "x": "a"},
            doc! {"_id": 2, "x": [1, {"y": 2}]},
        );
        let both = of(&batch(vec![a.clone(), b.clone()]));
        assert_eq!(both, of(&batch(vec![b.clone(), a.clone()])));
        let next = doc! {"cursor": {"nextBatch": [&b], "id": 0_i64}, "ok": 1.0};
        assert_eq!(both, of(&batch(vec![a.clone()])).wrapping_add(of(&next)));
        let changed = doc! {"_id": 2, "x": [1, {"y": 3}]};
        assert_ne!(both, of(&batch(vec![a.clone(), changed])));
        assert_ne!(both, of(&batch(vec![a])));
        assert_eq!(of(&doc! {"n": 5, "ok": 1.0}), 0);
    }

    #[test]
    fn the_digest_depends_on_the_innermost_value_of_the_deepest_document() {
        let nested = |value| (0..180).fold(doc! {"a": value}, |inner, _| doc! {"a": inner});
        let of_value = |value: i32| of(&batch(vec![nested(value)]));
        assert_ne!(of_value(1), of_value(2));
    }

    #[test]
    fn results_of_the_commands_distinct_and_find_and_modify_are_part_of_the_digest() {
        assert_ne!(of(&doc! {"values": [1, 2]}), of(&doc! {"values": [1, 3]}));
        assert_eq!(of(&doc! {"values": [1, 2]}), of(&doc! {"values": [2, 1]}));
        assert_ne!(of(&doc! {"value": {"a": 1}}), of(&doc! {"value": {"a": 2}}));
    }

    /// Ids and times that were created after the start of the capture are not compared, because the
    /// replay creates different ones.
    #[test]
    fn object_ids_and_times_later_than_the_start_of_the_capture_do_not_change_the_digest() {
        let id = |seconds: u32, last: u8| {
            let mut bytes = [last; 12];
            bytes[..4].copy_from_slice(&seconds.to_be_bytes());
            Bson::ObjectId(ObjectId::from_bytes(bytes))
        };
        let date = |seconds: i64| Bson::DateTime(DateTime::from_millis(seconds * 1000));
        let stamp = |time| Bson::Timestamp(Timestamp { time, increment: 1 });
        let later = 1_700_000_100;
        let of_value = |value: Bson| of(&batch(vec![doc! {"a": value}]));
        assert_eq!(of_value(id(later, 1)), of_value(id(later, 2)));
        assert_ne!(of_value(id(5, 1)), of_value(id(5, 2)));
        assert_eq!(of_value(date(1_700_000_100)), of_value(date(1_800_000_000)));
        assert_ne!(of_value(date(5)), of_value(date(6)));
        assert_eq!(of_value(stamp(later)), of_value(stamp(later + 1)));
        assert_ne!(of_value(id(later, 1)), of_value(date(1_700_000_100)));
    }

    #[test]
    fn results_of_commands_that_read_data_of_an_earlier_time_are_not_compared() {
        let time = Timestamp {
            time: 5,
            increment: 1,
        };
        let earlier = Some(Exclusion::EarlierTime);
        let snapshot = doc! {"level": "snapshot"};
        let at_time = doc! {"level": "snapshot", "atClusterTime": time};
        for (concern, expected) in [(snapshot, None), (at_time, earlier)] {
            let command = doc! {"find": "c", "readConcern": concern};
            assert_eq!(excluded(&command, Syntax::Find, false), expected);
        }
        let resumed = doc! {"resumeAfter": {"_data": "8"}};
        for (stream, expected) in [(doc! {}, None), (resumed, earlier)] {
            let command = doc! {"aggregate": "c", "pipeline": [{"$changeStream": stream}]};
            assert_eq!(excluded(&command, Syntax::Aggregate, false), expected);
        }
    }

    #[test]
    fn results_that_vary_between_runs_are_not_compared() {
        use Exclusion::{NoDocuments, StringRange, Volatile};
        let pattern = Regex {
            pattern: CString::try_from("^a").unwrap(),
            options: CString::try_from("").unwrap(),
        };
        let cases = [
            (
                doc! {"find": "c", "filter": {"a": 1}},
                Syntax::Find,
                None,
                None,
            ),
            (
                doc! {"aggregate": "c", "pipeline": [{"$sample": {"size": 1}}]},
                Syntax::Aggregate,
                Some(Volatile),
                Some(Volatile),
            ),
            (
                doc! {"find": "c", "filter": {"$expr": {"$lt": [{"$rand": {}}, 0.5]}}},
                Syntax::Find,
                Some(Volatile),
                Some(Volatile),
            ),
            (
                doc! {"find": "c", "filter": {"$expr": {"$lt": ["$t", "$$NOW"]}}},
                Syntax::Find,
                Some(Volatile),
                Some(Volatile),
            ),
            (
                doc! {"find": "c", "filter": {"a": {"$gt": "m"}}},
                Syntax::Find,
                None,
                Some(StringRange),
            ),
            (
                doc! {"find": "c", "filter": {"a": {"$gt": 5}}},
                Syntax::Find,
                None,
                None,
            ),
            (
                doc! {"find": "c", "filter": {"a": pattern}},
                Syntax::Find,
                None,
                Some(StringRange),
            ),
            (
                doc! {"listCollections": 1},
                Syntax::Plain,
                Some(NoDocuments),
                Some(NoDocuments),
            ),
            (doc! {"getMore": 5_i64}, Syntax::GetMore, None, None),
        ];
        for (command, syntax, plain, redacted) in cases {
            assert_eq!(excluded(&command, syntax, false), plain, "{command}");
            assert_eq!(excluded(&command, syntax, true), redacted, "{command}");
        }
    }

    /// Pseudonyms keep neither the order of strings nor the rest of a pattern after its prefix.
    #[test]
    fn results_of_expressions_with_ranges_or_patterns_of_redacted_strings_are_not_compared() {
        let range = Some(Exclusion::StringRange);
        for (expression, redacted) in [
            (doc! {"$lt": ["$name", "m"]}, range),
            (doc! {"$gte": [{"$toLower": "$name"}, "m"]}, range),
            (
                doc! {"$regexMatch": {"input": "$name", "regex": "^m.*n"}},
                range,
            ),
            (doc! {"$eq": ["$name", "m"]}, None),
            (doc! {"$lt": ["$age", 5]}, None),
            (doc! {"$lt": ["$seen", "$changed"]}, None),
        ] {
            let command = doc! {"find": "c", "filter": {"$expr": expression}};
            let of = |is_redacted| excluded(&command, Syntax::Find, is_redacted);
            assert_eq!((of(false), of(true)), (None, redacted), "{command}");
        }
    }

    #[test]
    fn results_are_not_compared_if_a_statement_of_a_document_sequence_uses_the_current_time() {
        let plain = doc! {"q": {}, "u": {"$set": {"a": 1}}}.to_vec().unwrap();
        let clock = doc! {"q": {}, "u": {"$currentDate": {"a": true}}}
            .to_vec()
            .unwrap();
        let body = doc! {"update": "c"}.to_vec().unwrap();
        for (documents, expected) in [
            (plain.repeat(2), None),
            ([plain, clock].concat(), Some(Exclusion::Volatile)),
        ] {
            let sequences = [Sequence {
                identifier: b"updates",
                documents: &documents,
            }];
            let found = exclusion(Syntax::Update, true, &body, &sequences, false);
            assert_eq!(found, expected);
        }
    }

    proptest! {
        #[test]
        fn damaged_replies_and_commands_cause_no_panic(at in 0_usize..500, value: u8) {
            let mut bytes = batch(vec![doc! {"a": [1.5, {"b": "x", "c": DateTime::now()}]}]).to_vec().unwrap();
            let at = at % bytes.len();
            bytes[at] = value;
            digest(&bytes, RECENT_S);
            exclusion(Syntax::Find, false, &bytes, &[], true);
        }
    }
}
