//! The records of a capture: the commands of clients, the replies to them, and information about
//! the capture itself.
//!
//! The [`Command`] of an operation precedes its [`Reply`]. Records of different clients are in the
//! order in which Seawall saw the events: if one operation's `Reply` precedes another operation's
//! `Command`, the first operation ended before the second began.
//!
//! All times named `at_us` are microseconds since the capture began.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// One record of a capture.
#[derive(Clone, PartialEq, Message)]
pub struct Record {
    /// The content; `None` if a reader does not know the type of the record.
    #[prost(oneof = "Content", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub content: Option<Content>,
}

/// The content of a record.
#[derive(Clone, PartialEq, Oneof)]
pub enum Content {
    /// The first record of a part.
    #[prost(message, tag = "1")]
    Header(Header),
    /// Seawall begins to capture a client.
    #[prost(message, tag = "2")]
    ClientBegan(ClientBegan),
    /// A captured client disconnected.
    #[prost(message, tag = "3")]
    ClientEnded(ClientEnded),
    /// A client sent a command.
    #[prost(message, tag = "4")]
    Command(Command),
    /// An operation ended.
    #[prost(message, tag = "5")]
    Reply(Reply),
    /// Operations, or only the messages of replies, were omitted from the capture at this point.
    #[prost(message, tag = "6")]
    Omitted(Omitted),
    /// An event that helps to understand the captured traffic, such as a stall of a server.
    #[prost(message, tag = "7")]
    Event(Event),
    /// The last record of a part.
    #[prost(message, tag = "8")]
    End(End),
}

impl From<Content> for Record {
    fn from(content: Content) -> Self {
        Self {
            content: Some(content),
        }
    }
}

/// The description of a capture. All parts (files) of a capture have the same header, except for
/// the field `part`.
#[derive(Clone, PartialEq, Message)]
pub struct Header {
    /// Bytes that identify the capture.
    #[prost(bytes = "bytes", tag = "1")]
    pub capture: Bytes,
    /// The position of this part in the capture, from 0.
    #[prost(uint32, tag = "2")]
    pub part: u32,
    /// The time at which the capture began, in microseconds since 1970.
    #[prost(uint64, tag = "3")]
    pub began_at_us: u64,
    /// The program that wrote the capture, with its version.
    #[prost(string, tag = "4")]
    pub program: String,
    /// The servers of the deployment when the capture began.
    #[prost(message, repeated, tag = "5")]
    pub servers: Vec<Server>,
    /// How much of each reply is recorded.
    #[prost(enumeration = "ReplyDetail", tag = "6")]
    pub reply_detail: i32,
    /// How values in commands and replies are replaced before they are written.
    #[prost(enumeration = "Redaction", tag = "7")]
    pub redaction: i32,
    /// The conditions by which clients are selected for the capture.
    #[prost(message, optional, tag = "8")]
    pub selection: Option<Selection>,
}

/// A server of the captured deployment.
#[derive(Clone, PartialEq, Message)]
pub struct Server {
    /// Host and port.
    #[prost(string, tag = "1")]
    pub address: String,
    /// `topologyVersion.processId`, 12 bytes; empty if it is not known.
    #[prost(bytes = "bytes", tag = "2")]
    pub process_id: Bytes,
}

/// How much of each reply is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ReplyDetail {
    /// Only the [`Facts`] of the reply.
    Facts = 0,
    /// The facts and the whole message.
    Whole = 1,
}

/// How values in commands and replies are replaced before they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Redaction {
    /// Values are recorded unchanged.
    None = 0,
    /// Each value is replaced by a pseudonym: another value of the same type and length, computed
    /// from the value with a secret key. Equal values have equal pseudonyms.
    Equality = 1,
    /// Like `Equality`. In addition, pseudonyms of numbers, of dates and of the times in ObjectIds
    /// are in the same order as the values. Strings with equal prefixes have pseudonyms with equal
    /// prefixes.
    Ordered = 2,
}

/// The conditions by which clients are selected for the capture. A client must match each list that
/// is not empty.
#[derive(Clone, PartialEq, Message)]
pub struct Selection {
    /// The share of all clients that the capture selects at random: a number from 0 to 1.
    #[prost(double, tag = "1")]
    pub sample: f64,
    /// Namespaces: `database.collection` for one collection, `database` for all collections of a
    /// database. A client is captured from its first operation on one of these namespaces.
    #[prost(string, repeated, tag = "2")]
    pub namespaces: Vec<String>,
    /// Users, as `database.user`.
    #[prost(string, repeated, tag = "3")]
    pub users: Vec<String>,
    /// Application names.
    #[prost(string, repeated, tag = "4")]
    pub applications: Vec<String>,
}

/// Seawall begins to capture a client.
#[derive(Clone, PartialEq, Message)]
pub struct ClientBegan {
    /// The client's number in this capture.
    #[prost(uint64, tag = "1")]
    pub client: u64,
    /// The time of this record, in microseconds since the capture began.
    #[prost(uint64, tag = "2")]
    pub at_us: u64,
    /// `application.name` of the client's `hello`; empty if the `hello` has no such field.
    #[prost(string, tag = "3")]
    pub application: String,
    /// `driver.name` and `driver.version`, with a space between them; empty if not known.
    #[prost(string, tag = "4")]
    pub driver: String,
    /// The user, as `database.user`; empty if the client did not log in, or if the user is not
    /// known.
    #[prost(string, tag = "5")]
    pub user: String,
    /// True if the client ran operations before its capture began. The capture does not contain the
    /// commands with which the client opened its earlier cursors, sessions and transactions.
    #[prost(bool, tag = "6")]
    pub was_active: bool,
}

/// A captured client disconnected.
#[derive(Clone, PartialEq, Message)]
pub struct ClientEnded {
    /// The client's number in this capture.
    #[prost(uint64, tag = "1")]
    pub client: u64,
    /// The time of this record, in microseconds since the capture began.
    #[prost(uint64, tag = "2")]
    pub at_us: u64,
}

/// A client sent a command.
#[derive(Clone, PartialEq, Message)]
pub struct Command {
    /// The client's number in this capture.
    #[prost(uint64, tag = "1")]
    pub client: u64,
    /// The operation's number in this capture. Numbers are unique and increase.
    #[prost(uint64, tag = "2")]
    pub operation: u64,
    /// The time at which the command's last byte arrived, in microseconds since the capture began.
    #[prost(uint64, tag = "3")]
    pub at_us: u64,
    /// The whole `OP_MSG` with its header, not compressed.
    #[prost(bytes = "bytes", tag = "4")]
    pub message: Bytes,
}

/// An operation ended.
#[derive(Clone, PartialEq, Message)]
pub struct Reply {
    /// The operation's number, from its [`Command`].
    #[prost(uint64, tag = "1")]
    pub operation: u64,
    /// The time at which the operation ended, in microseconds since the capture began.
    #[prost(uint64, tag = "2")]
    pub at_us: u64,
    /// How the operation ended.
    #[prost(enumeration = "Outcome", tag = "3")]
    pub outcome: i32,
    /// Time from the command's last byte to the end of the operation, in microseconds. An operation
    /// with a reply ends just before the client gets the reply's last byte.
    #[prost(uint64, tag = "4")]
    pub duration_us: u64,
    /// The size of the reply's message in bytes, not compressed; 0 if there is no reply.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    /// The values in the reply that are needed to compare the capture with a replay of it; `None`
    /// if there is no reply.
    #[prost(message, optional, tag = "6")]
    pub facts: Option<Facts>,
    /// The whole `OP_MSG` with its header, not compressed; empty if there is no reply, or if only
    /// its facts are recorded.
    #[prost(bytes = "bytes", tag = "7")]
    pub message: Bytes,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Outcome {
    /// The client got the server's reply. The reply may be an error.
    Replied = 0,
    /// The client wanted no reply (`moreToCome`).
    Unacknowledged = 1,
    /// Seawall replied with an error of its own, for example because of overload.
    Refused = 2,
    /// The connection to the server failed.
    ServerFailed = 3,
    /// The client disconnected before it received the reply.
    ClientGone = 4,
}

/// The values in a reply that are needed to compare the capture with a replay of it.
#[derive(Clone, PartialEq, Message)]
pub struct Facts {
    /// True if `ok` is 1.
    #[prost(bool, tag = "1")]
    pub ok: bool,
    /// `code` of a reply with `ok: 0`; 0 if there is no error, or if the error has no code.
    #[prost(int32, tag = "2")]
    pub code: i32,
    /// `cursor.id`; 0 if the reply has no cursor, or if the cursor is exhausted.
    #[prost(int64, tag = "3")]
    pub cursor_id: i64,
    /// Number of documents that the operation returned, wrote or counted.
    #[prost(uint64, tag = "4")]
    pub documents: u64,
    /// Number of failed writes.
    #[prost(uint64, tag = "5")]
    pub write_errors: u64,
    /// The code of the first failed write; 0 if no write failed, or if the reply does not contain
    /// the code.
    #[prost(int32, tag = "6")]
    pub write_error_code: i32,
    /// The code of the `writeConcernError`; 0 if there is none.
    #[prost(int32, tag = "7")]
    pub write_concern_code: i32,
}

/// Operations, or only the messages of replies, were omitted from the capture at this point. If
/// only a reply's message was omitted, the capture still has the [`Reply`] record with its facts.
#[derive(Clone, PartialEq, Message)]
pub struct Omitted {
    /// The client's number in this capture; 0 if the omitted operations belong to several clients,
    /// or if only the messages of replies were omitted.
    #[prost(uint64, tag = "1")]
    pub client: u64,
    /// The time of this record, in microseconds since the capture began.
    #[prost(uint64, tag = "2")]
    pub at_us: u64,
    /// Number of omitted operations; 0 if the operations are in the capture and only the messages
    /// of their replies were omitted.
    #[prost(uint64, tag = "3")]
    pub operations: u64,
    /// Total size of the omitted messages, in bytes.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
    /// Why the operations or messages were omitted.
    #[prost(enumeration = "OmissionReason", tag = "5")]
    pub reason: i32,
}

/// Why operations, or the messages of replies, were omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum OmissionReason {
    /// The command or its reply contains a secret, or may contain one.
    Secret = 0,
    /// The queue of records that wait to be written was full.
    QueueFull = 1,
    /// The capture's limit of recorded bytes per second was reached.
    RateLimit = 2,
    /// A message was too large to record.
    TooLarge = 3,
    /// The values in a message could not be replaced by pseudonyms.
    NotRedactable = 4,
}

/// An event that helps to understand the captured traffic, such as a stall of a server.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// The time of the event, in microseconds since the capture began.
    #[prost(uint64, tag = "1")]
    pub at_us: u64,
    /// The kind of the event. `storm`: very many clients connected. `stall`: operations took far
    /// longer than usual for some seconds. `change`: operations became slower or faster, or new
    /// kinds of operations appeared. An event of one of these kinds is the reason why Seawall began
    /// the capture by itself. `quiet`: no records arrived for some time.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// A short description of the event, without values from commands. Empty if the kind is
    /// `quiet`.
    #[prost(string, tag = "3")]
    pub text: String,
}

/// The last record of a part.
#[derive(Clone, PartialEq, Message)]
pub struct End {
    /// The time of this record, in microseconds since the capture began.
    #[prost(uint64, tag = "1")]
    pub at_us: u64,
    /// Number of clients captured in this part and all earlier parts.
    #[prost(uint64, tag = "2")]
    pub clients: u64,
    /// Number of operations recorded in this part and all earlier parts.
    #[prost(uint64, tag = "3")]
    pub operations: u64,
    /// Number of operations omitted in this part and all earlier parts.
    #[prost(uint64, tag = "4")]
    pub omitted: u64,
    /// Why the part ended.
    #[prost(enumeration = "EndReason", tag = "5")]
    pub reason: i32,
}

/// Why a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum EndReason {
    /// The next part continues the capture.
    NextPart = 0,
    /// The requested duration has passed.
    Duration = 1,
    /// An operator stopped the capture. Conversions also write this reason if their input has no
    /// `End` record: a file of mongod's traffic recorder, or a capture that was cut off.
    Stopped = 2,
    /// The limit of bytes on disk was reached.
    DiskLimit = 3,
    /// Writing failed, for example because the disk was full.
    WriteFailed = 4,
    /// Seawall shut down.
    Shutdown = 5,
}
