//! Reads, in one pass, the top-level fields that Seawall needs from a command.

use crate::table::{self, Class, CommandSpec, Syntax};
use seawall_wire::{BsonError, ElementKind, Elements, MAX_BSON_OBJECT_BYTES, kind};

/// The value of a command's first field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A string: for most commands, the name of the collection.
    Text(&'a str),
    /// A number without a fraction, such as the cursor's id in a `getMore` or the 1 in `ping: 1`.
    Number(i64),
    /// A value of any other type.
    Other,
}

/// A command's `maxTimeMS`, with its position, so that Seawall can overwrite it with the remaining
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxTime {
    /// Milliseconds; 0 means no limit.
    pub milliseconds: i64,
    /// Offset of the value from the body's first byte.
    pub offset: usize,
    /// The BSON type of the value: double, int32 or int64 (see [`kind`]).
    pub bson_type: u8,
}

/// The fields of a command that decide how Seawall serves it, borrowed from the message.
#[derive(Clone, Debug, PartialEq)]
pub struct Command<'a> {
    /// The name of the first field, as the client sent it.
    pub name: &'a [u8],
    /// The properties of this command in the table of commands.
    pub spec: &'static CommandSpec,
    /// The class of the command, from `spec`.
    pub class: Class,
    /// The value of the first field.
    pub target: Target<'a>,
    /// The database, from `$db`.
    pub db: &'a str,
    /// The whole body of the message.
    pub body: &'a [u8],
    /// The `id` of the `lsid`, if it has the usual 16 bytes.
    pub lsid: Option<[u8; 16]>,
    /// The `txnNumber`: the number of a retryable write or of a transaction in the session.
    pub txn_number: Option<i64>,
    /// True for the first command of a transaction: `startTransaction: true`.
    pub starts_transaction: bool,
    /// True within a transaction: `autocommit: false`.
    pub in_transaction: bool,
    /// The document `$readPreference`, as BSON bytes.
    pub read_preference: Option<&'a [u8]>,
    /// The client's time limit, `maxTimeMS`.
    pub max_time: Option<MaxTime>,
    /// True if servers refuse the value of `maxTimeMS`.
    pub has_invalid_max_time: bool,
    /// The field `collection`. In a `getMore`, it names the cursor's collection.
    pub collection: Option<&'a str>,
    /// The array `cursors`, as BSON bytes. In a `killCursors`, it contains the cursors' ids.
    pub cursors: Option<&'a [u8]>,
    /// The array `pipeline`, as BSON bytes.
    pub pipeline: Option<&'a [u8]>,
    /// True if the command is an `aggregate` whose last stage is `$out` or `$merge`.
    ends_in_write: bool,
    /// True if the command has `awaitData: true`.
    awaits_data: bool,
    /// True if the client's command already has a `$client` field.
    pub has_client: bool,
    /// True if the command has a field `$readPreference`, even if its value is not a document.
    pub has_read_preference: bool,
    /// True if the write concern is `{w: 0}`: the server does not acknowledge the write.
    pub is_unacknowledged: bool,
}

/// The reason why a body is invalid. A server refuses an invalid body before it looks up the
/// command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InspectError {
    /// The body is not valid BSON.
    #[error("invalid BSON: {0}")]
    Bson(#[from] BsonError),
    /// The body has no fields.
    #[error("empty command")]
    EmptyCommand,
    /// The body has no `$db`.
    #[error("OP_MSG requests require a $db argument")]
    NoDatabase,
    /// `$db` is not a string.
    #[error("$db is not a string")]
    DatabaseNotString,
    /// `$db` is empty, too long, or has characters that a database name must not have.
    #[error("Invalid database name")]
    InvalidDatabase,
    /// `$db` occurs twice.
    #[error("Duplicate field $db")]
    DuplicateDatabase,
}

impl InspectError {
    /// The error code with which a server refuses the body.
    pub fn code(&self) -> i32 {
        match self {
            Self::Bson(_) => 22,
            Self::EmptyCommand | Self::NoDatabase => 40571,
            Self::DatabaseNotString => 13111,
            Self::InvalidDatabase => 73,
            Self::DuplicateDatabase => 40413,
        }
    }
}

impl<'a> Command<'a> {
    /// Inspects the body of an `OP_MSG`.
    ///
    /// # Errors
    /// See [`InspectError`].
    pub fn inspect(body: &'a [u8]) -> Result<Self, InspectError> {
        let mut db = None;
        let command = Self::walk(body, |value| match (db, value) {
            (Some(_), _) => Err(InspectError::DuplicateDatabase),
            (None, ElementKind::String(name)) => {
                db = Some(database_name(name)?);
                Ok(())
            }
            (None, _) => Err(InspectError::DatabaseNotString),
        })?;
        Ok(Self {
            db: db.ok_or(InspectError::NoDatabase)?,
            ..command
        })
    }

    /// Inspects a command from an `OP_QUERY`. `db` is the database from the namespace of the
    /// message, because the body has no `$db`.
    ///
    /// # Errors
    /// See [`InspectError`].
    pub fn inspect_legacy(body: &'a [u8], db: &'a str) -> Result<Self, InspectError> {
        // Some drivers wrap the command in `$query` to add a read preference.
        let body = Elements::of(body)
            .next()
            .and_then(Result::ok)
            .filter(|e| e.name == b"$query" || e.name == b"query")
            .and_then(|e| e.value.as_document())
            .unwrap_or(body);
        let command = Self::walk(body, |_| Err(InspectError::DuplicateDatabase))?;
        let db = database_name(db.as_bytes())?;
        Ok(Self { db, ..command })
    }

    fn walk(
        body: &'a [u8],
        mut on_db: impl FnMut(ElementKind<'a>) -> Result<(), InspectError>,
    ) -> Result<Self, InspectError> {
        let mut elements = Elements::of(body);
        let first = elements.next().ok_or(InspectError::EmptyCommand)??;
        let mut command = Self::begin(body, first.name, first.value);
        for element in elements {
            let element = element?;
            match element.name {
                b"$db" => on_db(element.value)?,
                name => command.record_field(name, element.value, element.value_offset),
            }
        }
        Ok(command)
    }

    fn begin(body: &'a [u8], name: &'a [u8], value: ElementKind<'a>) -> Self {
        let target = match value {
            ElementKind::String(_) => value.as_str().map_or(Target::Other, Target::Text),
            _ => value.as_i64().map_or(Target::Other, Target::Number),
        };
        let spec = table::find(name);
        Self {
            name,
            spec,
            class: spec.class,
            target,
            db: "",
            body,
            lsid: None,
            txn_number: None,
            starts_transaction: false,
            in_transaction: false,
            read_preference: None,
            max_time: None,
            has_invalid_max_time: false,
            collection: None,
            cursors: None,
            pipeline: None,
            ends_in_write: false,
            awaits_data: false,
            has_client: false,
            has_read_preference: false,
            is_unacknowledged: false,
        }
    }

    fn record_field(&mut self, name: &[u8], value: ElementKind<'a>, offset: usize) {
        match name {
            b"lsid" => self.lsid = value.as_document().and_then(session_id),
            b"txnNumber" => self.txn_number = value.as_i64(),
            b"startTransaction" => self.starts_transaction = value.is_truthy(),
            b"autocommit" => self.in_transaction = value == ElementKind::Bool(false),
            b"$readPreference" => {
                self.has_read_preference = true;
                self.read_preference = value.as_document();
            }
            b"maxTimeMS" => {
                self.max_time = max_time(value, offset);
                self.has_invalid_max_time = !is_max_time(value);
            }
            b"collection" => self.collection = value.as_str(),
            b"cursors" => self.cursors = array(value),
            b"pipeline" => {
                self.pipeline = array(value);
                let is_aggregate = self.class == Class::Aggregate;
                self.ends_in_write = is_aggregate && self.pipeline.is_some_and(ends_in_write);
            }
            b"awaitData" => self.awaits_data = value.is_truthy(),
            b"$client" => self.has_client = true,
            b"writeConcern" => {
                let w = value.as_document().and_then(|d| Elements::find(d, "w"));
                self.is_unacknowledged = w.is_some_and(|w| w.value.as_i64() == Some(0));
            }
            _ => {}
        }
    }

    /// The name as text, for messages and labels; `?` if it is not UTF-8. All known names are
    /// ASCII.
    pub fn name_str(&self) -> &'a str {
        std::str::from_utf8(self.name).unwrap_or("?")
    }

    /// True if the command may contain authentication data: for example a `hello` or a `saslStart`.
    pub fn may_log_in(&self) -> bool {
        matches!(self.class, Class::Handshake(_))
    }

    /// True if the command writes: by its class, or because its last stage is `$out` or `$merge`.
    pub fn writes(&self) -> bool {
        match self.class {
            Class::Write | Class::CommitTransaction | Class::AbortTransaction => true,
            Class::Aggregate => self.ends_in_write,
            Class::Handshake(_)
            | Class::Read
            | Class::GetMore
            | Class::KillCursors
            | Class::Other => false,
        }
    }

    /// True if the command opens a cursor that waits for data: a change stream, or a tailable
    /// cursor with `awaitData`.
    pub fn opens_awaiting_cursor(&self) -> bool {
        self.opens_change_stream() || self.spec.syntax == Syntax::Find && self.awaits_data
    }

    /// True if the command opens a change stream.
    pub fn opens_change_stream(&self) -> bool {
        let first = self.pipeline.and_then(|p| Elements::of(p).next()?.ok());
        first.and_then(|stage| stage_name(stage.value)) == Some(b"$changeStream")
    }

    /// True if other operations may wait for this command. There are two cases. Either it ends a
    /// transaction, a session, a cursor, an operation or the lock of `fsync`
    /// (`CommandSpec::ends_work`). Or it continues a transaction, which may hold locks.
    pub fn may_unblock_others(&self) -> bool {
        self.spec.ends_work || (self.in_transaction && !self.starts_transaction)
    }

    /// True if the command only reads and is not in a transaction. Seawall may kill such a command
    /// at the server, if its client has disconnected. Seawall does not kill a command in a
    /// transaction, because the server would then abort the transaction.
    pub fn only_reads(&self) -> bool {
        match self.class {
            Class::Read | Class::GetMore => !self.in_transaction,
            Class::Aggregate => !self.in_transaction && !self.writes(),
            Class::Handshake(_)
            | Class::Write
            | Class::CommitTransaction
            | Class::AbortTransaction
            | Class::KillCursors
            | Class::Other => false,
        }
    }

    /// True if the command may be sent again after a server failed. This applies to reads outside
    /// of transactions (but not to `getMore`), and to retryable writes, which the server recognizes
    /// by their `txnNumber`.
    pub fn may_be_repeated(&self) -> bool {
        if self.in_transaction {
            return false;
        }
        match self.class {
            Class::Read => true,
            Class::Aggregate => !self.writes(),
            Class::Write => self.txn_number.is_some() && self.lsid.is_some(),
            Class::Handshake(_)
            | Class::CommitTransaction
            | Class::AbortTransaction
            | Class::GetMore
            | Class::KillCursors
            | Class::Other => false,
        }
    }

    /// The session id and the `txnNumber` of a command that a driver retries unchanged: a write
    /// outside of transactions, or the end of a transaction. `None` for other commands, and if one
    /// of the two values is missing.
    pub fn numbered(&self) -> Option<([u8; 16], i64)> {
        let is_numbered = match self.class {
            Class::Write => !self.in_transaction,
            Class::CommitTransaction | Class::AbortTransaction => true,
            Class::Handshake(_)
            | Class::Read
            | Class::Aggregate
            | Class::GetMore
            | Class::KillCursors
            | Class::Other => false,
        };
        self.lsid.zip(self.txn_number).filter(|_| is_numbered)
    }

    /// True if the body may grow by `extra_bytes` without exceeding [`MAX_BSON_OBJECT_BYTES`].
    pub fn has_room_for(&self, extra_bytes: usize) -> bool {
        // `MAX_BSON_OBJECT_BYTES` is the limit of a stored document. Servers accept a body that is
        // up to 16 KiB longer, so this check is stricter than necessary.
        self.body.len() + extra_bytes <= MAX_BSON_OBJECT_BYTES
    }
}

fn array(value: ElementKind<'_>) -> Option<&[u8]> {
    match value {
        ElementKind::Array(bytes) => Some(bytes),
        _ => None,
    }
}

fn ends_in_write(pipeline: &[u8]) -> bool {
    let last = Elements::of(pipeline).filter_map(Result::ok).last();
    let name = last.and_then(|stage| stage_name(stage.value));
    matches!(name, Some(b"$out" | b"$merge"))
}

fn stage_name(stage: ElementKind<'_>) -> Option<&[u8]> {
    let first = Elements::of(stage.as_document()?).next()?.ok()?;
    Some(first.name)
}

fn session_id(lsid: &[u8]) -> Option<[u8; 16]> {
    match Elements::find(lsid, "id")?.value {
        ElementKind::Binary(_, bytes) => bytes.try_into().ok(),
        _ => None,
    }
}

fn max_time(value: ElementKind<'_>, offset: usize) -> Option<MaxTime> {
    let bson_type = match value {
        ElementKind::Double(_) => kind::DOUBLE,
        ElementKind::Int32(_) => kind::INT32,
        ElementKind::Int64(_) => kind::INT64,
        _ => return None,
    };
    Some(MaxTime {
        milliseconds: value.as_i64()?,
        offset,
        bson_type,
    })
}

/// True if servers accept this value of `maxTimeMS`: a whole number from 0 to 2,147,483,647. Also
/// true for every value of the type Decimal128, which [`Elements`] does not decode.
fn is_max_time(value: ElementKind<'_>) -> bool {
    let is_in_range = |milliseconds: i64| (0..=i64::from(i32::MAX)).contains(&milliseconds);
    value == ElementKind::Other(kind::DECIMAL) || value.as_i64().is_some_and(is_in_range)
}

/// Checks a database name by the rules of servers on Linux.
fn database_name(name: &[u8]) -> Result<&str, InspectError> {
    /// The maximum length of a database name, in bytes.
    const MAX_BYTES: usize = 63;
    let text = std::str::from_utf8(name).map_err(|_| InspectError::InvalidDatabase)?;
    let is_bad = |c: char| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '$' | '\0');
    let is_special = text == "$external";
    if text.is_empty() || text.len() > MAX_BYTES || (text.contains(is_bad) && !is_special) {
        return Err(InspectError::InvalidDatabase);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Bson, doc, spec::BinarySubtype};

    use super::*;

    #[test]
    fn inspect_reads_top_level_fields_and_ignores_the_fields_of_nested_documents() {
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: (0..16).collect(),
        };
        let body = doc! {
            "find": "orders", "filter": {"$db": "decoy"}, "lsid": {"id": id}, "txnNumber": 4i64,
            "startTransaction": true, "autocommit": false, "$readPreference": {"mode": "secondary"},
            "maxTimeMS": 250, "$client": {}, "$db": "shop",
        };
        let bytes = body.to_vec().unwrap();
        let command = Command::inspect(&bytes).unwrap();
        assert_eq!(command.name, b"find");
        assert_eq!(command.target, Target::Text("orders"));
        assert_eq!(command.db, "shop");
        assert_eq!(command.lsid.unwrap().to_vec(), (0..16).collect::<Vec<u8>>());
        assert_eq!(command.txn_number, Some(4));
        assert!(command.starts_transaction && command.in_transaction && command.has_client);
        let max_time = command.max_time.unwrap();
        assert_eq!((max_time.milliseconds, max_time.bson_type), (250, 16));
        assert_eq!(&bytes[max_time.offset..][..4], &250i32.to_le_bytes());
        assert!(command.read_preference.is_some());
    }

    #[test]
    fn a_max_time_ms_is_invalid_if_servers_refuse_it() {
        let largest = i64::from(i32::MAX);
        let cases = [
            (Bson::Int32(0), false),
            (Bson::Int64(largest), false),
            (Bson::Double(250.0), false),
            (
                Bson::Decimal128(bson::Decimal128::from_bytes([0; 16])),
                false,
            ),
            (Bson::Int32(-1), true),
            (Bson::Int64(largest + 1), true),
            (Bson::Double(0.5), true),
            (Bson::Boolean(true), true),
            (Bson::Null, true),
            (Bson::from("250"), true),
        ];
        for (value, expected) in cases {
            let body = doc! {"getMore": 5i64, "maxTimeMS": value, "$db": "d"};
            let bytes = body.to_vec().unwrap();
            let command = Command::inspect(&bytes).unwrap();
            assert_eq!(command.has_invalid_max_time, expected, "{body}");
        }
        let bytes = doc! {"getMore": 5i64, "$db": "d"}.to_vec().unwrap();
        assert!(!Command::inspect(&bytes).unwrap().has_invalid_max_time);
    }

    #[test]
    fn invalid_bodies_are_refused_with_the_same_codes_as_on_a_server() {
        let cases = [
            (doc! {}, 40571),
            (doc! {"ping": 1}, 40571),
            (doc! {"ping": 1, "$db": 1}, 13111),
            (doc! {"ping": 1, "$db": ""}, 73),
            (doc! {"ping": 1, "$db": "a b"}, 73),
            (doc! {"ping": 1, "$db": "a".repeat(64)}, 73),
        ];
        for (body, code) in cases {
            let bytes = body.to_vec().unwrap();
            assert_eq!(Command::inspect(&bytes).unwrap_err().code(), code, "{body}");
        }
        let mut twice = doc! {"ping": 1, "$db": "a", "$dc": "b"}.to_vec().unwrap();
        let at = twice.windows(3).position(|w| w == b"$dc").unwrap();
        twice[at + 2] = b'b';
        assert_eq!(Command::inspect(&twice).unwrap_err().code(), 40413);
    }

    /// Work is, for example, an operation, a cursor, a transaction or a session. Other operations
    /// may wait until such work ends, for example until a transaction releases its locks.
    #[test]
    fn a_command_that_ends_work_or_continues_a_transaction_may_unblock_other_operations() {
        // The commands that end work have no `autocommit` here. With `autocommit: false`, they
        // would continue a transaction, and the cases would not test that they end work.
        let cases = [
            (doc! {"commitTransaction": 1}, true),
            (doc! {"abortTransaction": 1}, true),
            (doc! {"killCursors": "c", "cursors": [5i64]}, true),
            (doc! {"endSessions": []}, true),
            (doc! {"killSessions": []}, true),
            (doc! {"killOp": 1, "op": 5}, true),
            (doc! {"find": "c", "autocommit": false}, true),
            (doc! {"insert": "c", "autocommit": false}, true),
            (
                doc! {"insert": "c", "startTransaction": true, "autocommit": false},
                false,
            ),
            (doc! {"find": "c"}, false),
            (doc! {"insert": "c"}, false),
            (doc! {"unheardOf": 1}, false),
        ];
        for (mut body, expected) in cases {
            body.insert("$db", "d");
            let bytes = body.to_vec().unwrap();
            let command = Command::inspect(&bytes).unwrap();
            assert_eq!(command.may_unblock_others(), expected, "{body}");
        }
    }

    /// A read in a transaction, a `getMore` and an aggregation that writes must not be sent again.
    #[test]
    fn seawall_may_resend_only_reads_and_retryable_writes_after_a_server_failed() {
        let lsid = doc! {"id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![0; 16] }};
        let cases = [
            (doc! {"find": "c", "$db": "d"}, true),
            (doc! {"find": "c", "autocommit": false, "$db": "d"}, false),
            (
                doc! {"aggregate": "c", "pipeline": [{"$match": {}}], "$db": "d"},
                true,
            ),
            (
                doc! {"aggregate": "c", "pipeline": [{"$match": {}}, {"$out": "x"}], "$db": "d"},
                false,
            ),
            (
                doc! {"aggregate": "c", "pipeline": [{"$merge": {"into": "x"}}], "$db": "d"},
                false,
            ),
            (doc! {"insert": "c", "$db": "d"}, false),
            (
                doc! {"insert": "c", "lsid": lsid, "txnNumber": 1i64, "$db": "d"},
                true,
            ),
            (doc! {"getMore": 5i64, "collection": "c", "$db": "d"}, false),
            (doc! {"unheardOf": 1, "$db": "d"}, false),
        ];
        for (body, expected) in cases {
            let bytes = body.to_vec().unwrap();
            assert_eq!(
                Command::inspect(&bytes).unwrap().may_be_repeated(),
                expected,
                "{body}"
            );
        }
    }

    #[test]
    fn session_id_and_txn_number_are_found_in_retryable_writes_and_commits_and_aborts() {
        let lsid = doc! {"id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] }};
        let numbered = |mut body: bson::Document| {
            body.extend(doc! {"lsid": &lsid, "txnNumber": 3i64, "$db": "d"});
            let bytes = body.to_vec().unwrap();
            Command::inspect(&bytes).unwrap().numbered()
        };
        let known = Some(([7; 16], 3));
        assert_eq!(numbered(doc! {"insert": "c"}), known);
        for end in ["commitTransaction", "abortTransaction"] {
            assert_eq!(numbered(doc! {end: 1, "autocommit": false}), known);
        }
        for part in ["insert", "find"] {
            assert_eq!(numbered(doc! {part: "c", "autocommit": false}), None);
        }
        let bytes = doc! {"insert": "c", "lsid": &lsid, "$db": "d"}
            .to_vec()
            .unwrap();
        assert_eq!(Command::inspect(&bytes).unwrap().numbered(), None);
    }

    #[test]
    fn a_legacy_command_in_a_dollar_query_wrapper_is_unwrapped() {
        let bytes = doc! {"$query": {"isMaster": 1}, "$readPreference": {}}
            .to_vec()
            .unwrap();
        let command = Command::inspect_legacy(&bytes, "admin").unwrap();
        assert_eq!((command.name, command.db), (&b"isMaster"[..], "admin"));
        let bytes = doc! {"isMaster": 1, "$db": "admin"}.to_vec().unwrap();
        assert!(
            Command::inspect_legacy(&bytes, "admin").is_err(),
            "mongod refuses a $db in OP_QUERY"
        );
    }
}
