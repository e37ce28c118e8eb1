//! Tests of the wire protocol with raw messages. Most tests send each message through Seawall and
//! also directly to a server, and expect equal replies.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "test helpers may panic, as tests do, and a table of cases may be long"
)]

pub(crate) mod compression;
mod failures;
mod handshake;
mod malformed;
mod operations;

use std::time::Duration;

use mongodb::bson::{Binary, Bson, Document, Uuid, doc, oid::ObjectId, spec::BinarySubtype};
use seawall_tests::{
    eventually::eventually,
    mongod::{
        FailTimes, Options, ReplicaSet, ServerVersion, fail_command, server_version,
        shared_replica_set, shared_standalone, unique_name,
    },
    raw::message::{EXHAUST_ALLOWED, MORE_TO_COME, OP_MSG, OP_REPLY},
    raw::{Header, OpMsg, OpQuery, RawClient, RawError, RawReply, Section},
    recorder::{Cut, Recorder},
    scratch::Scratch,
    seawall::{self, Seawall},
};
use tokio::{sync::OnceCell, time::Instant};

use crate::scene::connect;

const LIMIT: Duration = Duration::from_secs(30);
const PING_ID: i32 = 4711;
const REQUEST_ID: i32 = 815;

/// A replica set of one member without authentication, with Seawall in front of it.
struct Rig {
    set: ReplicaSet,
    seawall: Seawall,
}

impl Rig {
    async fn start(toml: &str) -> Self {
        let set = ReplicaSet::start(1, Options::default()).await.unwrap();
        let seawall = Seawall::start_configured(&set.uri(), toml).await;
        Self { set, seawall }
    }

    /// The rig that is shared by all tests that change only their own databases.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Rig> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start("")).await
    }

    async fn direct(&self) -> RawClient {
        self.set.raw_client(&self.set.members()[0]).await.unwrap()
    }

    async fn through(&self) -> RawClient {
        connect(&self.seawall).await
    }

    /// Sets the fail point `failCommand` on the server. It affects the next `times` commands that
    /// `data` names.
    async fn fail(&self, times: i32, data: Document) {
        let administrator = self.set.administrator().await.unwrap();
        fail_command(&administrator, FailTimes::Count(times), data)
            .await
            .unwrap();
    }
}

/// The reaction of a server or of Seawall to a message, and to a `ping` that is sent right after
/// the message.
#[derive(Debug, PartialEq, Eq)]
struct ObservedReaction {
    replies: Vec<ObservedReply>,
    is_usable: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct ObservedReply {
    op_code: i32,
    flags: u32,
    response_to: i32,
    code: Option<i32>,
    code_name: Option<String>,
    checksum_fits: Option<bool>,
}

impl ObservedReply {
    fn of(reply: &RawReply) -> Self {
        Self {
            op_code: reply.header.op_code,
            flags: reply.flags,
            response_to: reply.header.response_to,
            code: reply.code(),
            code_name: reply.body.get_str("codeName").ok().map(str::to_owned),
            checksum_fits: reply.checksum_fits(),
        }
    }
}

async fn reaction(client: &mut RawClient, message: &[u8]) -> ObservedReaction {
    let ping = OpMsg {
        request_id: PING_ID,
        ..OpMsg::new(doc! {"ping": 1, "$db": "admin"})
    };
    // A server may close the connection before the whole message is written.
    let sent = client
        .send_bytes(&[message, &ping.to_bytes()].concat())
        .await;
    let mut replies = Vec::new();
    loop {
        match client.read_reply().await {
            Ok(reply) if reply.header.response_to == PING_ID => {
                let is_usable = sent.is_ok() && reply.is_ok();
                return ObservedReaction { replies, is_usable };
            }
            Ok(reply) => replies.push(ObservedReply::of(&reply)),
            Err(RawError::Closed | RawError::Truncated) => {
                return ObservedReaction {
                    replies,
                    is_usable: false,
                };
            }
            Err(error) => panic!("{error:?} after {replies:?}"),
        }
    }
}

/// True if the server is older than this version.
async fn is_before(version: ServerVersion) -> bool {
    server_version().await.unwrap() < version
}

/// The first version that knows `hello`. This version does not know `helloOk`.
const HELLO: ServerVersion = ServerVersion(4, 4, 2);
/// The first version with the Stable API and snapshot reads outside of transactions.
const STABLE_API: ServerVersion = ServerVersion(5, 0, 0);
/// The first version that accepts legacy opcodes only for the handshake, and that reports which
/// statements of a retry were already executed.
const NO_LEGACY_OPCODES: ServerVersion = ServerVersion(5, 1, 0);

/// The expected reaction to a message: the connection is closed, the message is ignored, or the
/// reply has this error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Closes,
    Ignores,
    Replies(i32),
}

impl Expected {
    fn fits(self, reaction: &ObservedReaction) -> bool {
        let codes: Vec<_> = reaction.replies.iter().map(|reply| reply.code).collect();
        match self {
            Self::Closes => codes.is_empty() && !reaction.is_usable,
            Self::Ignores => codes.is_empty() && reaction.is_usable,
            Self::Replies(code) => codes == [Some(code)] && reaction.is_usable,
        }
    }
}

fn op_msg(sections: Vec<Section>) -> OpMsg {
    OpMsg {
        request_id: REQUEST_ID,
        sections,
        ..OpMsg::new(doc! {})
    }
}

fn body(document: Document) -> Section {
    Section::Body(document)
}

fn ping() -> Document {
    doc! {"ping": 1, "$db": "admin"}
}

fn sequence(identifier: &str) -> Section {
    Section::Sequence {
        identifier: identifier.to_owned(),
        documents: vec![doc! {"a": 1}],
    }
}

fn framed(length: i32, op_code: i32, content: &[u8]) -> Vec<u8> {
    let header = Header {
        message_length: length,
        request_id: REQUEST_ID,
        response_to: 0,
        op_code,
    };
    [header.to_bytes().as_slice(), content].concat()
}
