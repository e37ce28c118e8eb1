//! A message before it is encoded, so that tests can change each of its parts.

use super::{
    message::{Body, DOCUMENT, INT32, Query, STRING, body_section, op_msg, string},
    twists::X509,
};

/// The position of `$db` in the document of an OP_MSG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatabasePlace {
    Nowhere,
    First,
    BehindName,
    Last,
    FirstAndLast,
}

/// A document that contains the command as a field.
#[derive(Clone, Debug)]
pub(super) struct Wrap {
    pub(super) name: &'static str,
    /// The type byte of the field that contains the command.
    pub(super) kind: u8,
    pub(super) before: Body,
    pub(super) behind: Body,
}

impl Wrap {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            kind: DOCUMENT,
            before: Body::new(),
            behind: Body::new(),
        }
    }
}

/// A change to the bytes of an encoded document.
#[derive(Clone, Copy, Debug)]
pub(super) enum Damage {
    /// Adds this number to the declared length.
    Length(i32),
    /// Replaces the last byte.
    LastByte(u8),
    /// Removes this many bytes at the end.
    Cut(usize),
    /// Inserts a NUL before the last byte, so that the fields end before the document ends.
    EarlyEnd,
}

/// A command, with all parts of its message.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) name: Vec<u8>,
    pub(super) target_kind: u8,
    pub(super) target: Vec<u8>,
    /// Fields before the field with the command's name.
    pub(super) before: Body,
    /// Fields after the field with the command's name.
    pub(super) behind: Body,
    /// The documents that wrap the command, the innermost first.
    pub(super) wraps: Vec<Wrap>,
    pub(super) damage: Option<Damage>,
    pub(super) database_place: DatabasePlace,
    pub(super) database_kind: u8,
    pub(super) database: Vec<u8>,
    pub(super) flags: u32,
    pub(super) sections_before: Vec<u8>,
    pub(super) sections_behind: Vec<u8>,
    /// The header fields of an OP_QUERY; `None` makes an OP_MSG.
    pub(super) query: Option<Query>,
}

impl Draft {
    /// An OP_MSG with this command on the database `admin`, and with all fields that the command
    /// must have.
    pub(super) fn msg(name: &str) -> Self {
        let (target_kind, target) = target(name);
        Self {
            name: name.as_bytes().to_vec(),
            target_kind,
            target,
            before: Body::new(),
            behind: fields(name),
            wraps: Vec::new(),
            damage: None,
            database_place: DatabasePlace::Last,
            database_kind: STRING,
            database: string("admin"),
            flags: 0,
            sections_before: Vec::new(),
            sections_behind: Vec::new(),
            query: None,
        }
    }

    pub(super) fn query(name: &str) -> Self {
        Self {
            query: Some(Query::admin()),
            database_place: DatabasePlace::Nowhere,
            ..Self::msg(name)
        }
    }

    pub(super) fn to_bytes(&self, request_id: i32) -> Vec<u8> {
        let document = self.document();
        match &self.query {
            Some(query) => query.to_bytes(request_id, &document),
            None => {
                let body = body_section(&document);
                let sections = [&self.sections_before, &body, &self.sections_behind];
                op_msg(
                    request_id,
                    self.flags,
                    &sections.map(Vec::as_slice).concat(),
                )
            }
        }
    }

    fn document(&self) -> Vec<u8> {
        use DatabasePlace::{BehindName, First, FirstAndLast, Last};
        let with_database = |body: Body, places: &[DatabasePlace]| match places {
            places if places.contains(&self.database_place) => {
                body.element(self.database_kind, "$db", &self.database)
            }
            _ => body,
        };
        let command =
            Body::new()
                .and(&self.before)
                .element(self.target_kind, &self.name, &self.target);
        let mut body = with_database(command, &[BehindName]).and(&self.behind);
        for wrap in &self.wraps {
            let outer = Body::new().and(&wrap.before);
            let outer = outer.element(wrap.kind, wrap.name, &body.to_bytes());
            body = outer.and(&wrap.behind);
        }
        let body = with_database(Body::new(), &[First, FirstAndLast]).and(&body);
        let body = with_database(body, &[Last, FirstAndLast]);
        damaged(body.to_bytes(), self.damage)
    }
}

fn damaged(mut document: Vec<u8>, damage: Option<Damage>) -> Vec<u8> {
    match damage {
        None => {}
        Some(Damage::Length(more)) => {
            let length = i32::from_le_bytes(document[..4].try_into().unwrap());
            document[..4].copy_from_slice(&(length + more).to_le_bytes());
        }
        Some(Damage::LastByte(byte)) => *document.last_mut().unwrap() = byte,
        Some(Damage::Cut(byte_count)) => document.truncate(document.len() - byte_count),
        Some(Damage::EarlyEnd) => {
            document.push(0);
            let length = i32::try_from(document.len()).unwrap();
            document[..4].copy_from_slice(&length.to_le_bytes());
        }
    }
    document
}

/// The type and value of a command's first field.
fn target(name: &str) -> (u8, Vec<u8>) {
    match name {
        "insert" => (STRING, string("scratch")),
        "aggregate" | "count" | "deleteIndexes" | "find" | "findandmodify" => (STRING, string("c")),
        _ => (INT32, 1_i32.to_le_bytes().to_vec()),
    }
}

/// The fields that a command must have, except its first field.
fn fields(name: &str) -> Body {
    let none = Body::new();
    let payload = [&5_i32.to_le_bytes()[..], &[0], b"n,,n="].concat();
    match name {
        "insert" => none.array("documents", &Body::new().document("0", &Body::new())),
        "find" => none.int("limit", 1),
        "aggregate" => none
            .array("pipeline", &Body::new())
            .document("cursor", &Body::new()),
        "findandmodify" => none.int("remove", 1),
        "deleteIndexes" => none.text("index", "a_1"),
        "getParameter" => none.int("logLevel", 1),
        "authenticate" => none.text("mechanism", X509),
        "saslStart" => none
            .text("mechanism", "SCRAM-SHA-256")
            .element(BINARY, "payload", &payload),
        "saslContinue" => none
            .int("conversationId", 1)
            .element(BINARY, "payload", &payload),
        _ => none,
    }
}

const BINARY: u8 = 0x05;
