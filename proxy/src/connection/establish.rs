//! Making a connection ready: connect, TLS, `hello`, authenticate.

use std::{io, sync::Arc, time::Duration};

use bson::{
    Binary, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc, spec::BinarySubtype,
};
use tokio::{
    net::{TcpStream, UnixStream},
    time::{Instant, timeout},
};
use tokio_rustls::{
    TlsConnector, TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

use super::{Connection, ControlError, ServerAddress, reply_is_ok, requires_authentication};
use crate::{
    auth::{ClientConversation, Identity, Login, NonceSource, ScramError},
    observe::ServerMetrics,
    wire::{Compressor, Stream, keep_server_alive, limit_silence},
};

/// How far establishing came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// TCP or unix socket.
    Connect,
    /// TLS handshake.
    Tls,
    /// `hello`.
    Hello,
    /// SCRAM.
    Authenticate,
}

/// Why a connection could not be established.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// No connection to the address, or TLS refused.
    #[error("{step:?} to {address}: {source}")]
    Io {
        /// Where it stopped.
        step: Step,
        /// The server.
        address: ServerAddress,
        /// The cause.
        source: io::Error,
    },
    /// It took too long.
    #[error("{address} did not answer within {limit:?}")]
    TimedOut {
        /// The server.
        address: ServerAddress,
        /// The limit for all steps together.
        limit: Duration,
    },
    /// The exchange failed.
    #[error("{step:?} at {address}: {source}")]
    Exchange {
        /// Where it stopped.
        step: Step,
        /// The server.
        address: ServerAddress,
        /// The cause.
        source: ControlError,
    },
    /// The server answered with an error.
    #[error("{step:?} refused by {address}: {message} ({code})")]
    Refused {
        /// Where it stopped.
        step: Step,
        /// The server.
        address: ServerAddress,
        /// The server's code.
        code: i32,
        /// Its text.
        message: String,
    },
    /// The conversation went wrong on either side.
    #[error("authenticating at {address}: {source}")]
    Scram {
        /// The server.
        address: ServerAddress,
        /// The cause.
        source: ScramError,
    },
    /// No keys are known with which to log in.
    #[error("no keys to log in with")]
    NoLogin,
    /// A connection without a user was wanted, and the server wants one.
    #[error("{address} requires authentication")]
    RequiresAuthentication {
        /// The server.
        address: ServerAddress,
    },
}

impl EstablishError {
    /// Whether the server does not take the keys (any more): a new login of a client is needed.
    pub fn refuses_keys(&self) -> bool {
        match self {
            Self::Refused {
                step: Step::Authenticate,
                code,
                ..
            } => *code == 18,
            Self::Scram { source, .. } => *source == ScramError::KeysOutdated,
            Self::NoLogin => true,
            Self::RequiresAuthentication { .. }
            | Self::Refused { .. }
            | Self::Io { .. }
            | Self::TimedOut { .. }
            | Self::Exchange { .. } => false,
        }
    }

    /// Whether it is the server, or the way to it, that failed.
    pub fn blames_server(&self) -> bool {
        match self {
            Self::Io { .. } | Self::TimedOut { .. } | Self::Exchange { .. } => true,
            Self::Refused { step, .. } => *step == Step::Hello,
            Self::Scram { .. } | Self::NoLogin | Self::RequiresAuthentication { .. } => false,
        }
    }

    /// Whether a connection without a user was wanted, and the server wants one.
    pub fn requires_authentication(&self) -> bool {
        matches!(self, Self::RequiresAuthentication { .. })
    }
}

/// Makes connections, all in the same manner.
#[derive(Clone)]
pub struct Connector {
    tls: Option<Arc<ClientConfig>>,
    compressors: Vec<Compressor>,
    limit: Duration,
    nonces: Arc<NonceSource>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Connector {
    /// Offers `compressors` in this order; `limit` holds for all steps of a connection together.
    pub fn new(
        tls: Option<Arc<ClientConfig>>,
        compressors: Vec<Compressor>,
        limit: Duration,
        nonces: Arc<NonceSource>,
    ) -> Self {
        Self {
            tls,
            compressors,
            limit,
            nonces,
        }
    }

    /// How long a server may take for what is asked of it by ourselves.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// A connection on which nobody has authenticated: for questions that need no user, and introductions.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn connect(&self, address: &ServerAddress) -> Result<Connection, EstablishError> {
        let greeted = async { self.greet(address, hello()).await.map(|(c, _)| c) };
        self.within_limit(address, greeted).await
    }

    /// A connection authenticated as `identity`.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn establish(
        &self,
        address: &ServerAddress,
        identity: &Identity,
        metrics: &ServerMetrics,
    ) -> Result<Connection, EstablishError> {
        let login = identity.login();
        let Some(mechanism) = login.mechanism() else {
            return match login {
                Login::Anonymous => self.anonymous(address).await,
                Login::Keys { .. } | Login::Unknown => Err(EstablishError::NoLogin),
            };
        };
        let authenticated = self.authenticated(address, identity, &login);
        let result = self.within_limit(address, authenticated).await;
        let reached_authentication = match &result {
            Ok(_) | Err(EstablishError::Scram { .. }) => true,
            Err(EstablishError::Refused { step, .. } | EstablishError::Exchange { step, .. }) => {
                *step == Step::Authenticate
            }
            Err(_) => false,
        };
        if reached_authentication {
            metrics.authenticated(mechanism.name(), result.is_ok());
        }
        result
    }

    /// A connection without a user, to a server that wants none. Asked each time: where access control has been switched on
    /// and no user has been made yet, the server would let a client of ours make one, for it comes from the same host.
    async fn anonymous(&self, address: &ServerAddress) -> Result<Connection, EstablishError> {
        let asked = async {
            let (mut connection, _) = self.greet(address, hello()).await?;
            match ask_for_authentication(address, &mut connection).await? {
                false => Ok(connection),
                true => Err(EstablishError::RequiresAuthentication {
                    address: address.clone(),
                }),
            }
        };
        self.within_limit(address, asked).await
    }

    /// The same, introduced as somebody else: with a client's metadata in place of ours, and its compressors. Gives the
    /// server's greeting too.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn connect_as(
        &self,
        address: &ServerAddress,
        metadata: Option<RawDocumentBuf>,
        compressors: &[Compressor],
    ) -> Result<(Connection, RawDocumentBuf), EstablishError> {
        let hello = match metadata {
            Some(metadata) => rawdoc! { "isMaster": 1, "helloOk": true, "client": metadata },
            None => hello(),
        };
        let greeted = self.greet_with(address, hello, compressors);
        self.within_limit(address, greeted).await
    }

    /// A stream for a client's own handshake, and whether the server wants clients to log in.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn dial_and_ask(
        &self,
        address: &ServerAddress,
    ) -> Result<(Stream, bool), EstablishError> {
        let asked = async {
            let mut connection = Connection::new(self.open(address).await?, Instant::now());
            let requires = ask_for_authentication(address, &mut connection).await?;
            Ok((connection.stream, requires))
        };
        self.within_limit(address, asked).await
    }

    /// Whether the server of a connection wants clients to log in.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn ask_for_authentication(
        &self,
        address: &ServerAddress,
        connection: &mut Connection,
    ) -> Result<bool, EstablishError> {
        let asked = ask_for_authentication(address, connection);
        self.within_limit(address, asked).await
    }

    /// A stream without TLS on which nothing has been sent, for a client that speaks TLS with the server itself.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn dial_bare(&self, address: &ServerAddress) -> Result<Stream, EstablishError> {
        self.within_limit(address, Self::open_bare(address)).await
    }

    async fn within_limit<T>(
        &self,
        address: &ServerAddress,
        steps: impl Future<Output = Result<T, EstablishError>>,
    ) -> Result<T, EstablishError> {
        timeout(self.limit, steps).await.unwrap_or_else(|_| {
            Err(EstablishError::TimedOut {
                address: address.clone(),
                limit: self.limit,
            })
        })
    }

    async fn authenticated(
        &self,
        address: &ServerAddress,
        identity: &Identity,
        login: &Login,
    ) -> Result<Connection, EstablishError> {
        let Login::Keys { client_key, keys } = login else {
            return Err(EstablishError::NoLogin);
        };
        let (conversation, client_first) =
            ClientConversation::start(keys.mechanism(), identity.name(), &self.nonces.nonce());
        let mut start = sasl_start(keys.mechanism().name(), &client_first);
        start.append(cstr!("db"), identity.source());
        let mut hello = hello();
        hello.append(cstr!("speculativeAuthenticate"), start);
        let (mut connection, greeting) = self.greet(address, hello).await?;
        let step = Step::Authenticate;
        let first = match greeting.get_document("speculativeAuthenticate") {
            Ok(reply) => reply.to_owned(),
            // Left out by servers that do not know it, and where it went wrong: then the error is wanted.
            Err(_) => {
                let mut start = sasl_start(keys.mechanism().name(), &client_first);
                start.append(cstr!("$db"), identity.source());
                ask(&mut connection, address, step, &start).await?
            }
        };
        let scram = |source| EstablishError::Scram {
            address: address.clone(),
            source,
        };
        let (proof_sent, client_final) = conversation
            .respond(&payload(&first), client_key, keys)
            .map_err(scram)?;
        let mut next = sasl_continue(&first, &client_final);
        next.append(cstr!("$db"), identity.source());
        let last = ask(&mut connection, address, step, &next).await?;
        proof_sent.finish(&payload(&last)).map_err(scram)?;
        if let Some(empty) = empty_exchange(&last, identity.source()) {
            ask(&mut connection, address, step, &empty).await?;
        }
        Ok(connection)
    }

    async fn greet(
        &self,
        address: &ServerAddress,
        hello: RawDocumentBuf,
    ) -> Result<(Connection, RawDocumentBuf), EstablishError> {
        self.greet_with(address, hello, &self.compressors).await
    }

    async fn greet_with(
        &self,
        address: &ServerAddress,
        mut hello: RawDocumentBuf,
        compressors: &[Compressor],
    ) -> Result<(Connection, RawDocumentBuf), EstablishError> {
        let stream = self.open(address).await?;
        limit_silence(&stream).map_err(|source| EstablishError::Io {
            step: Step::Connect,
            address: address.clone(),
            source,
        })?;
        let mut connection = Connection::new(stream, Instant::now());
        if !compressors.is_empty() {
            let mut names = RawArrayBuf::new();
            compressors.iter().for_each(|c| names.push(c.name()));
            hello.append(cstr!("compression"), names);
        }
        hello.append(cstr!("$db"), "admin");
        let greeting = ask(&mut connection, address, Step::Hello, &hello).await?;
        connection.server_connection_id = match greeting.get("connectionId").ok().flatten() {
            Some(RawBsonRef::Int32(id)) => Some(i64::from(id)),
            Some(RawBsonRef::Int64(id)) => Some(id),
            _ => None,
        };
        connection.compressor = greeting.get_array("compression").ok().and_then(|names| {
            let first = names.into_iter().next()?.ok()?;
            Compressor::parse(first.as_str()?)
        });
        connection.max_wire_version = greeting.get_i32("maxWireVersion").unwrap_or(0);
        Ok((connection, greeting))
    }

    async fn open(&self, address: &ServerAddress) -> Result<Stream, EstablishError> {
        let stream = Self::open_bare(address).await?;
        let (Some(tls), ServerAddress::Tcp { host, .. }) = (&self.tls, address) else {
            return Ok(stream);
        };
        let Stream::Tcp(stream) = stream else {
            return Ok(stream);
        };
        let failed = |source| EstablishError::Io {
            step: Step::Tls,
            address: address.clone(),
            source,
        };
        let name = ServerName::try_from(host.clone())
            .map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name, stream).await.map_err(failed)?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
    }

    async fn open_bare(address: &ServerAddress) -> Result<Stream, EstablishError> {
        let failed = |source| EstablishError::Io {
            step: Step::Connect,
            address: address.clone(),
            source,
        };
        match address {
            ServerAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(failed)?;
                Ok(Stream::Unix(stream))
            }
            ServerAddress::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                keep_server_alive(&stream).map_err(failed)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

async fn ask_for_authentication(
    address: &ServerAddress,
    connection: &mut Connection,
) -> Result<bool, EstablishError> {
    let requires = requires_authentication(connection).await;
    requires.map_err(|source| EstablishError::Exchange {
        step: Step::Authenticate,
        address: address.clone(),
        source,
    })
}

async fn ask(
    connection: &mut Connection,
    address: &ServerAddress,
    step: Step,
    command: &RawDocument,
) -> Result<RawDocumentBuf, EstablishError> {
    let reply = connection
        .run(command)
        .await
        .map_err(|source| EstablishError::Exchange {
            step,
            address: address.clone(),
            source,
        })?;
    match reply_is_ok(&reply) {
        Ok(()) => Ok(reply),
        Err((code, message)) => Err(EstablishError::Refused {
            step,
            address: address.clone(),
            code,
            message,
        }),
    }
}

/// Our own handshake; operations carry their client's metadata beside it. By its old name, which all servers know: those
/// before 4.4.2 do not know `hello`.
fn hello() -> RawDocumentBuf {
    rawdoc! {
        "isMaster": 1,
        "helloOk": true,
        "client": {
            "application": { "name": "seawall" },
            "driver": { "name": "seawall", "version": env!("CARGO_PKG_VERSION") },
            "os": { "type": std::env::consts::OS },
        },
    }
}

fn sasl_start(mechanism: &str, client_first: &[u8]) -> RawDocumentBuf {
    rawdoc! {
        "saslStart": 1,
        "mechanism": mechanism,
        "payload": binary(client_first),
        "options": { "skipEmptyExchange": true },
    }
}

fn sasl_continue(previous: &RawDocument, client_final: &[u8]) -> RawDocumentBuf {
    rawdoc! {
        "saslContinue": 1,
        "conversationId": previous.get_i32("conversationId").unwrap_or(1),
        "payload": binary(client_final),
    }
}

/// What a server still wants to be sent after its last payload: nothing, where it is done. Servers before 4.4 do not
/// know `skipEmptyExchange`; there a connection is not authenticated before this has been answered.
pub fn empty_exchange(last: &RawDocument, source: &str) -> Option<RawDocumentBuf> {
    if last.get_bool("done").unwrap_or(false) {
        return None;
    }
    let mut command = sasl_continue(last, &[]);
    command.append(cstr!("$db"), source);
    Some(command)
}

fn binary(bytes: &[u8]) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    }
}

fn payload(reply: &RawDocument) -> Vec<u8> {
    reply
        .get_binary("payload")
        .map(|b| b.bytes.to_vec())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_exchange_is_sent_to_servers_that_are_not_done() {
        let last = rawdoc! { "conversationId": 7, "done": false, "ok": 1.0 };
        let command = empty_exchange(&last, "source").unwrap();
        assert_eq!(command.get_i32("conversationId").ok(), Some(7));
        assert_eq!(command.get_str("$db").ok(), Some("source"));
        assert!(payload(&command).is_empty());
        let done = rawdoc! { "conversationId": 7, "done": true, "ok": 1.0 };
        assert!(empty_exchange(&done, "source").is_none());
    }
}
