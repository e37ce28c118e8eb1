//! The operations that simulated clients run, and the check that a reply matches its operation.

use std::str::FromStr;

use bson::{RawDocument, RawDocumentBuf, cstr, oid::ObjectId, rawdoc};
use rand::{RngExt as _, rngs::StdRng};

use super::link::Failure;

/// Seed of the clients' random numbers. It is constant, so two runs choose the same operations.
pub(super) const SEED: u64 = 0x5ea_3a11;

/// The operations that clients run: the share of each kind, and the documents that they use.
#[derive(Clone, Debug)]
pub struct Work {
    /// The database that contains the collection.
    pub database: String,
    /// The collection. Documents with an `_id` from 0 to `documents` (exclusive) are inserted if
    /// missing.
    pub collection: String,
    /// Number of inserted documents. Each find or update selects one of them at random.
    pub documents: u32,
    /// Size of the text in each document, in bytes.
    pub payload_bytes: usize,
    /// The share of each kind of operation.
    pub mix: Mix,
}

/// The share of each kind of operation, relative to the sum of all shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    find: u32,
    insert: u32,
    update: u32,
}

impl Mix {
    /// Only finds by `_id`.
    pub const FINDS: Self = Self {
        find: 1,
        insert: 0,
        update: 0,
    };
}

/// The text is not a valid mix.
#[derive(Debug, thiserror::Error)]
#[error("expected shares of find, insert and update, such as find=90,insert=5,update=5")]
pub struct MixError;

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, MixError> {
        let mut mix = Self {
            find: 0,
            insert: 0,
            update: 0,
        };
        for part in text.split(',') {
            let (name, share) = part.split_once('=').ok_or(MixError)?;
            let share = share.trim().parse::<u16>().map_err(|_| MixError)?.into();
            match name.trim() {
                "find" => mix.find = share,
                "insert" => mix.insert = share,
                "update" => mix.update = share,
                _ => return Err(MixError),
            }
        }
        match mix.find + mix.insert + mix.update {
            0 => Err(MixError),
            _ => Ok(mix),
        }
    }
}

/// An operation to send. The number is the `_id` of the document.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Find(u32),
    Insert,
    Update(u32),
}

impl Work {
    pub(super) fn next(&self, random: &mut StdRng) -> Ask {
        let id = random.random_range(0..self.documents.max(1));
        let Mix {
            find,
            insert,
            update,
        } = self.mix;
        let chosen = random.random_range(0..find + insert + update);
        if chosen < find {
            Ask::Find(id)
        } else if chosen < find + insert {
            Ask::Insert
        } else {
            Ask::Update(id)
        }
    }

    pub(super) fn command(&self, ask: Ask, read_mode: Option<&str>) -> RawDocumentBuf {
        let collection = self.collection.as_str();
        let mut command = match ask {
            Ask::Find(id) => rawdoc! {
                "find": collection, "filter": { "_id": i64::from(id) }, "limit": 1, "singleBatch": true,
            },
            Ask::Insert => rawdoc! {
                "insert": collection, "documents": [{ "_id": ObjectId::new(), "text": self.text() }],
            },
            Ask::Update(id) => rawdoc! {
                "update": collection,
                "updates": [{ "q": { "_id": i64::from(id) }, "u": { "$inc": { "changes": 1 } } }],
            },
        };
        command.append(cstr!("$db"), self.database.as_str());
        if let (Ask::Find(_), Some(mode)) = (ask, read_mode) {
            command.append(cstr!("$readPreference"), rawdoc! { "mode": mode });
        }
        command
    }

    /// Returns a command that inserts documents with ascending `_id`s from `first` on. Also returns
    /// the first `_id` of the next command. The command has at most [`SEEDED_AT_A_TIME`] documents
    /// and at most [`SEEDED_BYTES`] of text, but at least one document. Documents that already
    /// exist stay unchanged.
    pub(super) fn seed(&self, first: u32) -> (RawDocumentBuf, u32) {
        let fitting = SEEDED_BYTES / self.payload_bytes.max(1);
        let count = u32::try_from(fitting).unwrap_or(u32::MAX);
        let count = count.clamp(1, SEEDED_AT_A_TIME);
        let end = self.documents.min(first.saturating_add(count));
        let mut updates = bson::RawArrayBuf::new();
        for id in first..end {
            updates.push(rawdoc! {
                "q": { "_id": i64::from(id) },
                "u": { "$setOnInsert": { "text": self.text() } },
                "upsert": true,
            });
        }
        let command = rawdoc! {
            "update": self.collection.as_str(), "updates": updates, "ordered": false,
            "$db": self.database.as_str(),
        };
        (command, end)
    }

    fn text(&self) -> String {
        "x".repeat(self.payload_bytes)
    }
}

const SEEDED_AT_A_TIME: u32 = 500;

/// Maximum size in bytes of the text in one command of [`Work::seed`], unless the text of one
/// document alone is larger. The command is itself a document, and each of its updates has at most
/// 78 bytes besides its text. So with this maximum, the command does not exceed the largest
/// document that a server accepts ([`seawall_wire::MAX_WIRE_DOCUMENT_BYTES`]).
const SEEDED_BYTES: usize = 15 << 20;

/// Checks that a reply matches `ask`. If a find returns a document with another `_id`, the reply
/// may belong to the command of another client. If the server refused a write, or a failover may
/// undo it, the result is [`Failure::Refused`] and not [`Failure::Wrong`].
pub(super) fn check(ask: Ask, reply: &RawDocument) -> Result<(), Failure> {
    if let Some(code) = write_error(reply) {
        return Err(Failure::Refused(code));
    }
    match ask {
        Ask::Find(id) => {
            let found = found_id(reply).ok_or(Failure::Wrong("no document found"))?;
            match found == i64::from(id) {
                true => Ok(()),
                false => Err(Failure::Wrong("a document with another _id")),
            }
        }
        Ask::Insert | Ask::Update(_) => match reply.get_i32("n") {
            Ok(1) => Ok(()),
            _ => Err(Failure::Wrong("did not write exactly one document")),
        },
    }
}

/// The code of the write concern error in a reply or, without such an error, of the first write
/// error; 0 if the error has no code. `None` if the reply has neither.
pub(super) fn write_error(reply: &RawDocument) -> Option<i32> {
    if let Ok(error) = reply.get_document("writeConcernError") {
        return Some(error.get_i32("code").unwrap_or(0));
    }
    let errors = reply.get_array("writeErrors").ok()?;
    let first = errors.into_iter().next()?.ok()?;
    Some(first.as_document()?.get_i32("code").unwrap_or(0))
}

fn found_id(reply: &RawDocument) -> Option<i64> {
    let cursor = reply.get_document("cursor").ok()?;
    let batch = cursor.get_array("firstBatch").ok()?;
    let first = batch.into_iter().next()?.ok()?;
    first.as_document()?.get_i64("_id").ok()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;
    use seawall_wire::MAX_WIRE_DOCUMENT_BYTES;

    fn work(mix: &str) -> Work {
        Work {
            database: "load".into(),
            collection: "things".into(),
            documents: 1200,
            payload_bytes: 10,
            mix: mix.parse().unwrap(),
        }
    }

    #[test]
    fn operations_are_chosen_by_the_shares_in_the_mix() {
        let work = work("find=90,insert=5,update=5");
        let mut random = StdRng::seed_from_u64(SEED);
        let (mut finds, mut inserts, mut updates) = (0, 0, 0);
        for _ in 0..10_000 {
            match work.next(&mut random) {
                Ask::Find(id) => finds += usize::from(id < 1200),
                Ask::Insert => inserts += 1,
                Ask::Update(id) => updates += usize::from(id < 1200),
            }
        }
        assert_eq!(finds + inserts + updates, 10_000);
        assert!((8_800..9_200).contains(&finds), "{finds}");
        assert!((400..600).contains(&inserts), "{inserts}");
    }

    #[test]
    fn malformed_mix_is_an_error() {
        for text in ["", "find", "find=x", "delete=5", "find=0", "find=-1"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    /// An upsert inserts the document if it does not exist.
    #[test]
    fn seeding_sends_one_upsert_for_each_document() {
        let (mut first, mut commands) = (0, 0);
        while first < 1200 {
            let (command, end) = work("find=1").seed(first);
            let updates = command.get_array("updates").unwrap().into_iter().count();
            assert_eq!(u32::try_from(updates).unwrap(), end - first);
            (first, commands) = (end, commands + 1);
        }
        assert_eq!(commands, 3);
    }

    #[test]
    fn seeding_sends_few_large_documents_at_a_time_but_at_least_one() {
        for (payload_bytes, expected) in [(6 << 20, 2), (20 << 20, 1)] {
            let work = Work {
                payload_bytes,
                ..work("find=1")
            };
            let (command, end) = work.seed(7);
            let updates = command.get_array("updates").unwrap().into_iter().count();
            assert_eq!(
                (updates, end),
                (expected, 7 + u32::try_from(expected).unwrap())
            );
        }
    }

    #[test]
    fn seeding_commands_are_not_larger_than_servers_accept() {
        for payload_bytes in [0, 31_457, 65_536, 15 << 20] {
            let work = Work {
                payload_bytes,
                ..work("find=1")
            };
            let (command, _) = work.seed(0);
            let bytes = command.as_bytes().len();
            assert!(bytes <= MAX_WIRE_DOCUMENT_BYTES, "{payload_bytes}: {bytes}");
        }
    }

    #[test]
    fn a_reply_that_does_not_match_the_operation_is_an_error() {
        let found = |id: i64| rawdoc! { "cursor": { "firstBatch": [{ "_id": id }] }, "ok": 1.0 };
        assert!(check(Ask::Find(7), &found(7)).is_ok());
        assert!(check(Ask::Find(7), &found(8)).is_err());
        assert!(check(Ask::Find(7), &rawdoc! { "cursor": { "firstBatch": [] } }).is_err());
        assert!(check(Ask::Update(7), &rawdoc! { "n": 1 }).is_ok());
        assert!(check(Ask::Insert, &rawdoc! { "n": 0 }).is_err());
    }

    #[test]
    fn a_write_with_an_error_is_refused() {
        for (reply, expected) in [
            (
                rawdoc! { "n": 1, "ok": 1.0, "writeConcernError": { "code": 11602 } },
                11602,
            ),
            (
                rawdoc! { "n": 0, "ok": 1.0, "writeErrors": [{ "index": 0, "code": 121 }] },
                121,
            ),
        ] {
            for ask in [Ask::Insert, Ask::Update(7)] {
                let checked = check(ask, &reply);
                assert!(matches!(checked, Err(Failure::Refused(code)) if code == expected));
            }
        }
    }
}
