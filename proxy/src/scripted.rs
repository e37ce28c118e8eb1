//! A scripted server for tests. It replies to each command as the test specifies.

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::{AbortHandle, JoinSet, yield_now},
};

use seawall_locks::Mutex;
use seawall_transport::{MemoryBudget, MessageReader, connection::ServerAddress};
use seawall_wire::{MAX_MESSAGE_BYTES, OpMsg, encode_op_msg_like};

/// The scripted server's reaction to a command.
#[derive(Debug)]
pub(crate) enum Response {
    Reply(RawDocumentBuf),
    /// The server waits until the `Notify` is notified, and then sends this reply.
    ReplyAfter(Arc<Notify>, RawDocumentBuf),
    /// The server closes the connection.
    Close,
}

/// A server that listens on a free port until it is dropped.
#[derive(Debug)]
pub(crate) struct ScriptedServer {
    address: ServerAddress,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    _accepting: JoinSet<()>,
}

impl ScriptedServer {
    /// Starts a server, which calls `new_script` for each connection. `new_script` returns a
    /// function, which replies to the commands on that connection.
    pub(crate) async fn start<S>(new_script: impl Fn() -> S + Send + 'static) -> Self
    where
        S: FnMut(&RawDocument) -> Response + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<Mutex<Vec<_>>>::default();
        let accepted = Arc::clone(&connections);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let served = serving.spawn(serve(stream, new_script()));
                accepted.lock().push(served);
            }
        });
        Self {
            address: ServerAddress::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            },
            connections,
            _accepting: accepting,
        }
    }

    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Number of accepted connections, without the connections that [`Self::close_all`] has closed.
    pub(crate) fn accepted(&self) -> usize {
        self.connections.lock().len()
    }

    /// Closes all connections. Returns when the clients can see that their connections are closed.
    pub(crate) async fn close_all(&self) {
        let ServerAddress::Tcp { host, port } = &self.address else {
            panic!("a scripted server listens on a port");
        };
        let accepted = self.accepted();
        let mut last = TcpStream::connect((host.as_str(), *port)).await.unwrap();
        while self.accepted() == accepted {
            yield_now().await;
        }
        for connection in self.connections.lock().drain(..) {
            connection.abort();
        }
        // The loop above closes the connections in the order in which they were accepted, and
        // `last` was accepted last. So when `last` ends, all connections are closed.
        assert_eq!(last.read(&mut [0]).await.unwrap(), 0);
    }
}

async fn serve(mut stream: TcpStream, mut script: impl FnMut(&RawDocument) -> Response) {
    let budget = MemoryBudget::of_bytes(1 << 20);
    let mut reader = MessageReader::default();
    while let Ok(Some(message)) = reader.next(&mut stream, MAX_MESSAGE_BYTES, &budget).await {
        let command = OpMsg::parse(&message.bytes).unwrap().body;
        let reply = match script(RawDocument::from_bytes(command).unwrap()) {
            Response::Reply(reply) => reply,
            Response::ReplyAfter(release, reply) => {
                release.notified().await;
                reply
            }
            Response::Close => return,
        };
        let reply = encode_op_msg_like(0, 1, message.header.request_id, reply.as_bytes());
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}
