//! Establishes connections: connect, TLS, `hello`, authenticate.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use tokio::{
    io::AsyncWriteExt as _,
    net::UnixStream,
    time::{Instant, timeout},
};
use zeroize::Zeroizing;

use super::{
    Connection, EstablishError, EstablishStep, SecretDocument, ServerAddress, ServerTls,
    TlsVersion, conversation_id, empty_exchange,
    lookups::Lookups,
    payload, reply_is_ok, sasl_continue, sasl_start,
    socket::{OpenError, connect_tcp},
    tls::{CertificateRequest, is_refused_session},
};
use crate::{
    Stream,
    keep_alive::{keep_server_alive, limit_silence},
};
use seawall_auth::{ClientConversation, Identity, Login, NonceSource};
use seawall_command::UNAUTHORIZED;
use seawall_wire::Compressor;

/// Establishes connections to servers. Clones share the TLS configuration, the time limit and the
/// lookups of host names.
#[derive(Clone)]
pub struct Connector {
    /// The TLS configuration, shared by all clones of the connector.
    tls: Arc<ArcSwap<VersionedTls>>,
    compressors: Vec<Compressor>,
    /// The time limit in nanoseconds, shared by all clones of the connector.
    limit: Arc<AtomicU64>,
    /// The running lookups of host names, shared by all clones of the connector.
    lookups: Arc<Lookups>,
    nonces: Arc<NonceSource>,
}

/// The TLS configuration for connections to servers, and its version.
struct VersionedTls {
    version: TlsVersion,
    /// The TLS configuration; `None` if Seawall connects to servers without TLS.
    tls: Option<Arc<ServerTls>>,
}

/// A byte stream to a server. No command has been sent on this stream.
struct OpenedStream {
    stream: Stream,
    /// The version of the TLS configuration.
    tls_version: TlsVersion,
    /// `None` if the stream does not use TLS.
    request: Option<CertificateRequest>,
}

/// Returns the result of the first command of a connection. If the command may have failed because
/// the server refuses Seawall's certificate, or requires one that Seawall does not have, the
/// returned error also says so.
fn first_result<T>(
    result: Result<T, EstablishError>,
    request: Option<CertificateRequest>,
) -> Result<T, EstablishError> {
    let Some(request) = request else {
        return result;
    };
    match result {
        Ok(result) => {
            request.note_success();
            Ok(result)
        }
        Err(error) => Err(error.explained_by(request)),
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("tls", &self.tls.load().tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Connector {
    /// Creates a connector. It offers `compressors` to servers in this order. `limit` is the time
    /// limit for all steps of a connection together.
    pub fn new(
        tls: Option<Arc<ServerTls>>,
        compressors: Vec<Compressor>,
        limit: Duration,
        nonces: Arc<NonceSource>,
    ) -> Self {
        let version = TlsVersion::default();
        let connector = Self {
            tls: Arc::new(ArcSwap::from_pointee(VersionedTls { version, tls })),
            compressors,
            limit: Arc::default(),
            lookups: Arc::default(),
            nonces,
        };
        connector.set_limit(limit);
        connector
    }

    /// Changes the TLS configuration for new connections of this connector and all its clones.
    /// Returns the version of the new configuration. Two threads must not call this function at the
    /// same time, because both configurations could then get the same version.
    pub fn set_tls(&self, tls: Arc<ServerTls>) -> TlsVersion {
        let version = self.tls.load().version.next();
        let tls = Some(tls);
        self.tls.store(Arc::new(VersionedTls { version, tls }));
        version
    }

    /// The version of the TLS configuration for new connections.
    pub fn tls_version(&self) -> TlsVersion {
        self.tls.load().version
    }

    /// Changes the time limit of this connector and all its clones.
    pub fn set_limit(&self, limit: Duration) {
        let nanoseconds = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.limit.store(nanoseconds, Ordering::Relaxed);
    }

    /// The time limit for establishing a connection, and for each of Seawall's own commands.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit.load(Ordering::Relaxed))
    }

    /// A nonce for a SCRAM conversation.
    pub(super) fn nonce(&self) -> String {
        self.nonces.nonce()
    }

    /// Connects and sends `hello`, but does not authenticate. Seawall uses the connection for
    /// commands that need no user, and to forward the first login of a user to the server.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn connect(&self, address: &ServerAddress) -> Result<Connection, EstablishError> {
        let connecting = async {
            self.connect_with_hello(address, hello())
                .await
                .map(|(c, _)| c)
        };
        self.within_limit(address, connecting).await
    }

    /// Establishes a connection that is authenticated as `identity`.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn establish(
        &self,
        address: &ServerAddress,
        identity: &Identity,
    ) -> Result<Connection, EstablishError> {
        let login = identity.login();
        if login.mechanism().is_none() {
            return match login {
                Login::Anonymous => self.establish_anonymous(address).await,
                Login::Keys { .. } | Login::Unknown => Err(EstablishError::NoLogin),
            };
        }
        let establishing = self.establish_authenticated(address, identity, &login);
        self.within_limit(address, establishing).await
    }

    /// True if the server requires clients to log in.
    ///
    /// # Errors
    /// See [`EstablishError`]. If the server replies with an error that does not show if the server
    /// requires a login, the error is [`EstablishError::Refused`] with
    /// [`EstablishStep::AccessControl`].
    pub async fn requires_authentication(
        &self,
        address: &ServerAddress,
    ) -> Result<bool, EstablishError> {
        let asking = async {
            let (mut connection, _) = self.connect_with_hello(address, hello()).await?;
            requires_authentication(address, &mut connection).await
        };
        self.within_limit(address, asking).await
    }

    /// Establishes a connection for anonymous clients. Fails if the server requires a login. The
    /// check runs for each connection, because an operator may have switched on access control on
    /// the server. If such a server has no user yet, it lets any client on its own host create the
    /// first user. Without the check, an anonymous client could create this user through a Seawall
    /// that runs on the server's host.
    async fn establish_anonymous(
        &self,
        address: &ServerAddress,
    ) -> Result<Connection, EstablishError> {
        let checking = async {
            let (mut connection, _) = self.connect_with_hello(address, hello()).await?;
            match requires_authentication(address, &mut connection).await? {
                false => Ok(connection),
                true => Err(EstablishError::RequiresAuthentication {
                    address: address.clone(),
                }),
            }
        };
        self.within_limit(address, checking).await
    }

    /// Connects and sends `hello` with a client's metadata and compressors. Also returns the
    /// server's reply to `hello`. `header` is a header of the PROXY protocol, which is sent before
    /// the TLS handshake.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn connect_as(
        &self,
        address: &ServerAddress,
        header: Option<&[u8]>,
        metadata: Option<RawDocumentBuf>,
        compressors: &[Compressor],
    ) -> Result<(Connection, SecretDocument), EstablishError> {
        let hello = match metadata {
            Some(metadata) => rawdoc! { "isMaster": 1, "helloOk": true, "client": metadata },
            None => hello(),
        };
        let connecting = self.connect_offering(address, header, hello, compressors);
        self.within_limit(address, connecting).await
    }

    /// Connects but sends no `hello`, because the client sends its own `hello`. Asks the server if
    /// it requires clients to log in. The returned flag is true if the server requires a login, or
    /// if its reply does not show whether a login is required. `header` is a header of the PROXY
    /// protocol, which is sent before the TLS handshake.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn connect_without_hello(
        &self,
        address: &ServerAddress,
        header: Option<&[u8]>,
    ) -> Result<(Connection, bool), EstablishError> {
        let checking = async {
            let opened = self.connect_stream(address, header).await?;
            let mut connection = Connection::new(opened.stream, Instant::now());
            connection.tls_version = opened.tls_version;
            let requires = may_require_authentication(address, &mut connection).await;
            let requires = first_result(requires, opened.request)?;
            Ok((connection, requires))
        };
        self.within_limit(address, checking).await
    }

    /// Asks the server of this connection if it requires clients to log in. Returns true if the
    /// server requires a login, or if its reply does not show whether a login is required.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn may_require_authentication(
        &self,
        address: &ServerAddress,
        connection: &mut Connection,
    ) -> Result<bool, EstablishError> {
        let checking = may_require_authentication(address, connection);
        self.within_limit(address, checking).await
    }

    /// Connects without TLS, for a client that itself begins TLS with the server. Sends nothing but
    /// `header`, a header of the PROXY protocol.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn connect_without_tls(
        &self,
        address: &ServerAddress,
        header: Option<&[u8]>,
    ) -> Result<Stream, EstablishError> {
        self.within_limit(address, self.connect_socket(address, header))
            .await
    }

    pub(super) async fn within_limit<T>(
        &self,
        address: &ServerAddress,
        steps: impl Future<Output = Result<T, EstablishError>>,
    ) -> Result<T, EstablishError> {
        let limit = self.limit();
        timeout(limit, steps).await.unwrap_or_else(|_| {
            let address = address.clone();
            Err(EstablishError::TimedOut { address, limit })
        })
    }

    async fn establish_authenticated(
        &self,
        address: &ServerAddress,
        identity: &Identity,
        login: &Login,
    ) -> Result<Connection, EstablishError> {
        let Login::Keys { client_key, keys } = login else {
            return Err(EstablishError::NoLogin);
        };
        let (conversation, client_first) =
            ClientConversation::start(keys.mechanism(), identity.name(), &self.nonce());
        let start = |field| {
            let source = (field, identity.source());
            sasl_start(keys.mechanism().name(), source, &client_first)
        };
        let mut hello = hello();
        hello.append(cstr!("speculativeAuthenticate"), &*start(cstr!("db")));
        let (mut connection, hello_reply) = self.connect_with_hello(address, hello).await?;
        let step = EstablishStep::Authenticate;
        let first = match hello_reply.get_document("speculativeAuthenticate") {
            Ok(reply) => reply.to_owned().into(),
            // The reply to `hello` has no `speculativeAuthenticate` if the server does not know
            // this field or if the login failed. So the login begins again with `saslStart`, which
            // also returns the error of a failed login.
            Err(_) => run_step(&mut connection, address, step, &start(cstr!("$db"))).await?,
        };
        let scram = |source| EstablishError::Scram {
            address: address.clone(),
            source,
        };
        let (proof_sent, client_final) = conversation
            .respond(&payload(&first), client_key, keys)
            .map_err(scram)?;
        let client_final = Zeroizing::new(client_final);
        let next = sasl_continue(conversation_id(&first), identity.source(), &client_final);
        let last = run_step(&mut connection, address, step, &next).await?;
        proof_sent.finish(&payload(&last)).map_err(scram)?;
        if let Some(empty) = empty_exchange(&last, identity.source()) {
            run_step(&mut connection, address, step, &empty).await?;
        }
        Ok(connection)
    }

    pub(super) async fn connect_with_hello(
        &self,
        address: &ServerAddress,
        hello: RawDocumentBuf,
    ) -> Result<(Connection, SecretDocument), EstablishError> {
        self.connect_offering(address, None, hello, &self.compressors)
            .await
    }

    async fn connect_offering(
        &self,
        address: &ServerAddress,
        header: Option<&[u8]>,
        mut hello: RawDocumentBuf,
        compressors: &[Compressor],
    ) -> Result<(Connection, SecretDocument), EstablishError> {
        let opened = self.connect_stream(address, header).await?;
        limit_silence(&opened.stream).map_err(|source| EstablishError::Io {
            step: EstablishStep::Connect,
            address: address.clone(),
            source,
        })?;
        let mut connection = Connection::new(opened.stream, Instant::now());
        connection.tls_version = opened.tls_version;
        if !compressors.is_empty() {
            let mut names = RawArrayBuf::new();
            compressors.iter().for_each(|c| names.push(c.name()));
            hello.append(cstr!("compression"), names);
        }
        hello.append(cstr!("$db"), "admin");
        let hello = SecretDocument::from(hello);
        let hello_reply = run_step(&mut connection, address, EstablishStep::Hello, &hello).await;
        let hello_reply = first_result(hello_reply, opened.request)?;
        connection.server_connection_id = match hello_reply.get("connectionId").ok().flatten() {
            Some(RawBsonRef::Int32(id)) => Some(i64::from(id)),
            Some(RawBsonRef::Int64(id)) => Some(id),
            _ => None,
        };
        connection.compressor = hello_reply.get_array("compression").ok().and_then(|names| {
            let first = names.into_iter().next()?.ok()?;
            Compressor::parse(first.as_str()?)
        });
        connection.max_wire_version = hello_reply.get_i32("maxWireVersion").unwrap_or(0);
        Ok((connection, hello_reply))
    }

    /// Connects a socket, sends `header` (a header of the PROXY protocol) and performs the TLS
    /// handshake. If the certificate of a resumed TLS session is no longer valid, connects once
    /// more, with a full handshake: the error would clear the pool of a server that may have a new
    /// certificate.
    async fn connect_stream(
        &self,
        address: &ServerAddress,
        header: Option<&[u8]>,
    ) -> Result<OpenedStream, EstablishError> {
        match self.try_connect_stream(address, header).await {
            Err(EstablishError::Io { source, .. }) if is_refused_session(&source) => {
                self.try_connect_stream(address, header).await
            }
            result => result,
        }
    }

    /// Like [`Self::connect_stream`], but connects only once.
    async fn try_connect_stream(
        &self,
        address: &ServerAddress,
        header: Option<&[u8]>,
    ) -> Result<OpenedStream, EstablishError> {
        let stream = self.connect_socket(address, header).await?;
        let versioned = self.tls.load_full();
        let without_tls = |stream| OpenedStream {
            stream,
            tls_version: versioned.version,
            request: None,
        };
        let (Some(tls), ServerAddress::Tcp { host, .. }) = (&versioned.tls, address) else {
            return Ok(without_tls(stream));
        };
        let Stream::Tcp(stream) = stream else {
            return Ok(without_tls(stream));
        };
        let failed = |source| EstablishError::Io {
            step: EstablishStep::Tls,
            address: address.clone(),
            source,
        };
        let (stream, request) = tls.connect_noting(host, stream).await.map_err(failed)?;
        Ok(OpenedStream {
            stream,
            tls_version: versioned.version,
            request: Some(request),
        })
    }

    async fn connect_socket(
        &self,
        address: &ServerAddress,
        header: Option<&[u8]>,
    ) -> Result<Stream, EstablishError> {
        let failed = |source| EstablishError::Io {
            step: EstablishStep::Connect,
            address: address.clone(),
            source,
        };
        let mut stream = match address {
            ServerAddress::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(failed)?;
                Stream::Unix(stream)
            }
            ServerAddress::Tcp { host, port } => {
                let stream = connect_tcp(&self.lookups, host, *port, self.limit() / 2).await;
                let stream = stream.map_err(|error| {
                    let (step, source) = match error {
                        OpenError::Resolve(source) => (EstablishStep::Resolve, source),
                        OpenError::Connect(source) => (EstablishStep::Connect, source),
                    };
                    EstablishError::Io {
                        step,
                        address: address.clone(),
                        source,
                    }
                })?;
                stream.set_nodelay(true).map_err(failed)?;
                keep_server_alive(&stream).map_err(failed)?;
                Stream::Tcp(stream)
            }
        };
        if let Some(header) = header {
            stream.write_all(header).await.map_err(failed)?;
        }
        Ok(stream)
    }
}

/// True if the server requires clients to log in. The check runs on this connection, because all
/// commands on one connection reach the same server process. The check sends a command that servers
/// run in every state. A server that requires logins refuses this command with error 13
/// (Unauthorized) before a login, even to clients on its own host. Another error, for example from
/// a server that is shutting down, does not show whether the server requires a login. So this
/// function returns such an error.
async fn requires_authentication(
    address: &ServerAddress,
    connection: &mut Connection,
) -> Result<bool, EstablishError> {
    let command = rawdoc! { "getParameter": 1, "logLevel": 1, "$db": "admin" };
    match run_step(connection, address, EstablishStep::AccessControl, &command).await {
        // The server checks privileges before it runs a command. It has run this command on a
        // connection without a login, so it requires no login.
        Ok(_) => Ok(false),
        Err(EstablishError::Refused { code, .. }) if code == UNAUTHORIZED => Ok(true),
        Err(error) => Err(error),
    }
}

/// Like [`requires_authentication`], for a connection that relays the messages of one client. Also
/// returns true if the server replies with an error other than 13 (Unauthorized). It is then
/// unknown whether the server requires a login, so the client must log in.
async fn may_require_authentication(
    address: &ServerAddress,
    connection: &mut Connection,
) -> Result<bool, EstablishError> {
    match requires_authentication(address, connection).await {
        Err(EstablishError::Refused { .. }) => Ok(true),
        requires => requires,
    }
}

pub(super) async fn run_step(
    connection: &mut Connection,
    address: &ServerAddress,
    step: EstablishStep,
    command: &RawDocument,
) -> Result<SecretDocument, EstablishError> {
    let reply = connection.run(command).await.map(SecretDocument::from);
    let reply = reply.map_err(|source| EstablishError::Exchange {
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

/// The `hello` of Seawall's own connections. Its metadata names Seawall. If so configured, Seawall
/// sends a client's metadata with each of the client's operations (`$client`). The command has the
/// legacy name `isMaster`, because servers before 4.4.2 do not know `hello`.
pub(super) fn hello() -> RawDocumentBuf {
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
