//! Sends messages unchanged, and determines how a server reacts.

use std::net::SocketAddr;

use bson::doc;
use seawall_tests::raw::{Login, RawClient, RawError, message};
use seawall_wire::{Elements, OpMsg};

/// The command that is sent after each message, called the fence. Its reply marks the end of the
/// message's replies. Servers run it without a login.
const FENCE: &str = "connectionStatus";

/// The request id of the message with [`FENCE`]. No other message has this id.
pub(super) const FENCE_ID: i32 = i32::MAX;

/// The reaction of a server to a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Reaction {
    /// The document of the reply; `None` if there was no reply.
    pub(super) reply: Option<Vec<u8>>,
    /// True if the server closed the connection.
    pub(super) is_closed: bool,
}

impl Reaction {
    /// The error code, if the reply has one.
    pub(super) fn code(&self) -> Option<i64> {
        Elements::find(self.reply.as_ref()?, "code")?.value.as_i64()
    }

    /// The database in the namespace of the cursor in the reply.
    pub(super) fn database(&self) -> Option<&str> {
        let cursor = Elements::find(self.reply.as_ref()?, "cursor")?;
        let namespace = Elements::find(cursor.value.as_document()?, "ns")?;
        let (database, _) = namespace.value.as_str()?.split_once('.')?;
        Some(database)
    }
}

/// Sends messages one after another, and connects again when the connection was closed.
pub(super) struct Sender {
    address: SocketAddr,
    client: Option<RawClient>,
}

impl Sender {
    pub(super) fn to(address: SocketAddr) -> Self {
        Self {
            address,
            client: None,
        }
    }

    pub(super) async fn send(&mut self, message: &[u8]) -> Reaction {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => RawClient::connect(self.address).await.unwrap(),
        };
        let reaction = exchange(&mut client, message).await;
        self.client = (!reaction.is_closed).then_some(client);
        reaction
    }
}

async fn exchange(client: &mut RawClient, message: &[u8]) -> Reaction {
    let fence = message::OpMsg {
        request_id: FENCE_ID,
        ..message::OpMsg::new(doc! { FENCE: 1, "$db": "admin" })
    };
    let mut reaction = Reaction::default();
    // The server may close the connection before the whole message is written. Earlier replies can
    // still be read.
    drop(
        client
            .send_bytes(&[message, &fence.to_bytes()].concat())
            .await,
    );
    loop {
        let reply = match client.read_message().await {
            Ok(reply) => reply,
            Err(RawError::Closed | RawError::Truncated) => {
                reaction.is_closed = true;
                return reaction;
            }
            Err(error) => panic!("{error:?} after {}", message.escape_ascii()),
        };
        let header = message::Header::parse(&reply).unwrap();
        if header.response_to == FENCE_ID {
            return reaction;
        }
        reaction.reply = Some(match header.op_code {
            message::OP_REPLY => reply[message::HEADER_BYTES + 20..].to_vec(),
            _ => OpMsg::parse(&reply).unwrap().body.to_vec(),
        });
    }
}

/// A server's command counters: how often each command ran, and how often it failed.
pub(super) struct Counters {
    client: RawClient,
    /// A `serverStatus` command that excludes all sections except `metrics`.
    request: message::OpMsg,
    names: Vec<String>,
    counts: Vec<i64>,
}

impl Counters {
    /// Connects to the server at `address`, logs in if `login` is given, and reads the counters.
    pub(super) async fn of(address: SocketAddr, login: Option<&Login>) -> Self {
        let mut client = RawClient::connect(address).await.unwrap();
        if let Some(login) = login {
            assert!(client.login(login).await.unwrap().is_authenticated());
        }
        let mut request = doc! { "serverStatus": 1 };
        let whole = client.command("admin", request.clone()).await.unwrap();
        let sections = whole
            .body
            .keys()
            .filter(|key| !["metrics", "ok"].contains(&key.as_str()));
        request.extend(sections.map(|key| (key.clone(), 0.into())));
        request.insert("$db", "admin");
        let mut counters = Self {
            client,
            request: message::OpMsg::new(request),
            names: Vec::new(),
            counts: Vec::new(),
        };
        counters.read().await;
        counters
    }

    /// Reads the counters from the server again. Returns the commands whose counters differ from
    /// those that were read before. Ignores changes caused by [`FENCE`], and by the `serverStatus`
    /// command that reads the counters.
    pub(super) async fn changed(&mut self, reaction: &Reaction) -> Vec<String> {
        let before = std::mem::take(&mut self.counts);
        self.read().await;
        let changes = self.counts.iter().zip(before);
        let names = self.names.iter().zip(changes);
        let names = names.filter(|(name, (now, before))| {
            let expected = match name.as_str() {
                "serverStatus" => 1,
                FENCE if !reaction.is_closed => 1,
                _ => 0,
            };
            *now - before != expected
        });
        names.map(|(name, _)| name.clone()).collect()
    }

    async fn read(&mut self) {
        self.client.send(&self.request).await.unwrap();
        let reply = self.client.read_message().await.unwrap();
        let reply = OpMsg::parse(&reply).unwrap();
        let metrics = Elements::find(reply.body, "metrics").unwrap().value;
        let commands = Elements::find(metrics.as_document().unwrap(), "commands").unwrap();
        let commands: Vec<_> = Elements::of(commands.value.as_document().unwrap())
            .map(Result::unwrap)
            .collect();
        if self.names.len() != commands.len() {
            let names = commands.iter().map(|command| command.name.to_vec());
            self.names = names.map(|name| String::from_utf8(name).unwrap()).collect();
        }
        let counts = commands.iter().map(|command| {
            let Some(counts) = command.value.as_document() else {
                return command.value.as_i64().unwrap();
            };
            let fields = Elements::of(counts).map(Result::unwrap);
            let counts = fields.filter(|field| matches!(field.name, b"total" | b"failed"));
            counts.map(|count| count.value.as_i64().unwrap()).sum()
        });
        self.counts = counts.collect();
    }
}
