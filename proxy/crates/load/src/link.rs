//! One connection of a simulated client. It uses no driver, so it has no pool, no monitor and no
//! retries.

use std::io;

use bson::{Binary, RawBsonRef, RawDocument, rawdoc, spec::BinarySubtype};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use super::target::{Address, Keyring, Target, User, host};
use seawall_auth::{ClientConversation, Mechanism, NonceSource, ScramError, mechanism_names};
use seawall_transport::Stream;
use seawall_wire::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES, encode_request};

/// Offset of the body in an `OP_MSG` with one section: after the header, the flags and the
/// section's kind.
const BODY_OFFSET: usize = HEADER_BYTES + 5;

/// Capacity in bytes to which the buffer of a connection shrinks before it receives a reply.
const KEPT_BYTES: usize = 4096;

/// The reason why a step of a client failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The step did not end within its time limit, for example because no reply arrived.
    #[error("the time limit was reached")]
    TimedOut,
    /// The connection failed. For example, it was refused, closed or reset, or its TLS handshake
    /// failed.
    #[error("{0}")]
    Closed(#[from] io::Error),
    /// The reply was an error, or contained the error of a write. The number is the code of this
    /// error; 0 if it has none.
    #[error("the reply has error code {0}")]
    Refused(i32),
    /// The reply does not match the command.
    #[error("wrong reply: {0}")]
    Wrong(&'static str),
}

/// A raw connection, which sends messages without the help of a driver.
pub struct Link {
    stream: Stream,
    buffer: Vec<u8>,
    /// The size of the current reply in bytes.
    reply_bytes: usize,
    request_id: i32,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Link {
    /// Connects to an address of the target. `number` is the number of the client, which selects
    /// the address.
    ///
    /// # Errors
    /// If the connection is refused, or the TLS handshake fails.
    pub async fn connect(target: &Target, number: usize) -> Result<Self, Failure> {
        let stream = match target.address(number) {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                match &target.tls {
                    Some(tls) => tls.connect(host(address), stream).await?,
                    None => Stream::Tcp(stream),
                }
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(KEPT_BYTES),
            reply_bytes: 0,
            request_id: 0,
        })
    }

    /// Sends the same handshake as drivers. Its command is `isMaster`, because servers before 4.4.2
    /// do not know `hello`.
    ///
    /// # Errors
    /// If the connection fails, or the reply is an error.
    pub async fn hello(&mut self) -> Result<(), Failure> {
        let hello = rawdoc! {
            "isMaster": 1, "helloOk": true,
            "client": {
                "application": { "name": "seawall load" },
                "driver": { "name": "seawall-load", "version": env!("CARGO_PKG_VERSION") },
                "os": { "type": std::env::consts::OS },
            },
            "$db": "admin",
        };
        self.run(&hello).await.map(drop)
    }

    /// Authenticates with SCRAM. The first login derives the keys, later logins reuse them. If the
    /// connection string names no mechanism, the first login also asks the server for the user's
    /// mechanisms.
    ///
    /// # Errors
    /// If the connection fails, the server refuses the login, or a SCRAM message of the server is
    /// not valid.
    pub async fn log_in(
        &mut self,
        user: &User,
        keyring: &Keyring,
        nonces: &NonceSource,
    ) -> Result<(), Failure> {
        let mechanism = match user.mechanism.or_else(|| keyring.mechanism()) {
            Some(mechanism) => mechanism,
            None => {
                let chosen = self.choose_mechanism(user).await?;
                keyring.put_mechanism(chosen);
                chosen
            }
        };
        let (conversation, first) =
            ClientConversation::start(mechanism, &user.name, &nonces.nonce());
        let start = rawdoc! {
            "saslStart": 1, "mechanism": mechanism.name(), "payload": binary(&first),
            "options": { "skipEmptyExchange": true }, "$db": user.source.as_str(),
        };
        let challenge = self.run(&start).await?;
        let challenge = payload(challenge)?.to_vec();
        let (proof_sent, last) = match keyring.get() {
            Some((client_key, keys)) => {
                let response = conversation.respond(&challenge, &client_key, &keys);
                response.map_err(|error| clear_outdated_keys(keyring, error))?
            }
            None => {
                let response = conversation.respond_with_password(&challenge, &user.password);
                let (proof_sent, last, derived) =
                    response.map_err(|_| Failure::Wrong("unexpected SCRAM challenge"))?;
                keyring.put(derived.client_key, derived.keys);
                (proof_sent, last)
            }
        };
        let proceed = rawdoc! {
            "saslContinue": 1, "conversationId": 1, "payload": binary(&last), "$db": user.source.as_str(),
        };
        let ended = self.run(&proceed).await?;
        let is_done = ended.get_bool("done").unwrap_or(false);
        let signature = payload(ended)?;
        proof_sent
            .finish(signature)
            .map_err(|_| Failure::Wrong("invalid SCRAM signature"))?;
        if !is_done {
            // Servers before 4.4 do not know `skipEmptyExchange` and expect an empty last message.
            let empty = rawdoc! {
                "saslContinue": 1, "conversationId": 1, "payload": binary(&[]), "$db": user.source.as_str(),
            };
            self.run(&empty).await?;
        }
        Ok(())
    }

    /// Chooses the mechanism of a user from the list of the server, as drivers do: SCRAM-SHA-256 if
    /// the server lists it, and SCRAM-SHA-1 otherwise (Authentication specification).
    async fn choose_mechanism(&mut self, user: &User) -> Result<Mechanism, Failure> {
        let name = format!("{}.{}", user.source, user.name);
        let hello = rawdoc! {
            "isMaster": 1, "saslSupportedMechs": name.as_str(), "$db": "admin",
        };
        let reply = self.run(&hello).await?;
        let listed = reply.get_array("saslSupportedMechs").ok();
        let listed = listed.map(mechanism_names).unwrap_or_default();
        let preferred = Mechanism::ScramSha256;
        Ok(match listed.iter().any(|name| name == preferred.name()) {
            true => preferred,
            false => Mechanism::ScramSha1,
        })
    }

    /// Runs one command. Returns the reply if it has `ok: 1` and belongs to this command.
    ///
    /// # Errors
    /// If the connection fails, or the reply is an error, is malformed or belongs to another
    /// command.
    pub async fn run(&mut self, command: &RawDocument) -> Result<&RawDocument, Failure> {
        self.request_id = self.request_id.wrapping_add(1);
        let request = encode_request(self.request_id, command.as_bytes());
        self.send(&request).await?;
        self.read_reply().await?;
        let body = self.buffer.get(BODY_OFFSET..).unwrap_or_default();
        let body = RawDocument::from_bytes(body).map_err(|_| Failure::Wrong("invalid BSON"))?;
        match body.get("ok") {
            Ok(Some(RawBsonRef::Double(1.0) | RawBsonRef::Int32(1))) => Ok(body),
            _ => Err(Failure::Refused(body.get_i32("code").unwrap_or(0))),
        }
    }

    async fn read_reply(&mut self) -> Result<(), Failure> {
        self.receive_header(self.request_id).await?;
        self.receive().await.map(drop)
    }

    /// Sends a whole message. Its reply must be received before the next message is sent.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(message).await?;
        // The TLS library may still hold the end of the message.
        Ok(self.stream.flush().await?)
    }

    /// Waits for the beginning of the reply to the message that has this `request_id`. Returns the
    /// size of the whole reply in bytes.
    ///
    /// # Errors
    /// If the connection fails, the header is invalid, or the reply belongs to another request.
    pub async fn receive_header(&mut self, request_id: i32) -> Result<usize, Failure> {
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BYTES);
        loop {
            if let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() {
                let header = Header::parse(head, MAX_MESSAGE_BYTES)
                    .map_err(|_| Failure::Wrong("invalid message header"))?;
                if header.response_to != request_id {
                    return Err(Failure::Wrong("a reply to another request"));
                }
                self.reply_bytes = header.message_length;
                return Ok(header.message_length);
            }
            self.read_more().await?;
        }
    }

    /// Receives the rest of a reply. [`Link::receive_header`] must have received the beginning of
    /// the reply. Returns the whole reply.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn receive(&mut self) -> Result<&[u8], Failure> {
        let missing = self.reply_bytes.saturating_sub(self.buffer.len());
        self.buffer.reserve(missing);
        while self.buffer.len() < self.reply_bytes {
            self.read_more().await?;
        }
        Ok(self.buffer.get(..self.reply_bytes).unwrap_or_default())
    }

    async fn read_more(&mut self) -> Result<(), Failure> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(())
    }
}

/// Clears the cached keys if the password has changed, so that the next login derives new keys.
fn clear_outdated_keys(keyring: &Keyring, error: ScramError) -> Failure {
    if error == ScramError::KeysOutdated {
        keyring.clear();
    }
    Failure::Wrong("unexpected SCRAM challenge")
}

fn binary(bytes: &[u8]) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    }
}

fn payload(reply: &RawDocument) -> Result<&[u8], Failure> {
    let payload = reply
        .get_binary("payload")
        .map_err(|_| Failure::Wrong("no SCRAM payload"))?;
    Ok(payload.bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bson::RawDocumentBuf;
    use rcgen::{CertificateParams, KeyPair};
    use seawall_transport::connection::{Authorities, ServerTls, TlsSettings, Verification};
    use seawall_wire::encode_op_msg_like;
    use tokio::net::{TcpListener, TcpSocket};
    use tokio_rustls::{
        TlsAcceptor,
        rustls::{
            ServerConfig,
            crypto::ring,
            pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
        },
        server::TlsStream,
    };

    use super::*;

    /// Size of the sockets' buffers in bytes. The TLS library can hold more bytes than these
    /// buffers.
    const SOCKET_BYTES: u32 = 8192;

    fn server() -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    fn client() -> ServerTls {
        let settings = TlsSettings {
            authorities: Authorities::Mozilla,
            identity: None,
            revocation_lists: Vec::new(),
            verification: Verification::Off,
        };
        ServerTls::new(&settings).unwrap()
    }

    /// A connection over TLS between sockets with small buffers. Returns both of its ends.
    async fn connected() -> (Link, TlsStream<TcpStream>) {
        let listening = TcpSocket::new_v4().unwrap();
        listening.set_recv_buffer_size(SOCKET_BYTES).unwrap();
        listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listening.listen(1).unwrap();
        let connecting = TcpSocket::new_v4().unwrap();
        connecting.set_send_buffer_size(SOCKET_BYTES).unwrap();
        let connecting = connecting.connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(connecting, listener.accept());
        let (near, (far, _)) = (near.unwrap(), far.unwrap());
        near.set_nodelay(true).unwrap();
        let (client, server) = (client(), server());
        let (near, far) = tokio::join!(client.connect("127.0.0.1", near), server.accept(far));
        let link = Link {
            stream: near.unwrap(),
            buffer: Vec::new(),
            reply_bytes: 0,
            request_id: 0,
        };
        (link, far.unwrap())
    }

    /// Ends the stream of the socket. Bytes that the TLS library holds are lost.
    async fn end(link: &mut Link) {
        let Stream::Tls { stream, .. } = &mut link.stream else {
            panic!("the stream is not encrypted");
        };
        stream.get_mut().0.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_message_that_is_larger_than_the_buffers_of_the_sockets_is_sent_whole_over_tls() {
        let (mut link, mut far) = connected().await;
        let message = vec![7; 256 * 1024];
        let mut received = vec![0; message.len()];
        let sending = async {
            link.send(&message).await.unwrap();
            end(&mut link).await;
        };
        let ((), result) = tokio::join!(sending, far.read_exact(&mut received));
        result.expect("the whole message arrives");
    }

    #[tokio::test]
    async fn a_command_that_is_larger_than_the_buffers_of_the_sockets_is_sent_whole_over_tls() {
        let (mut link, mut far) = connected().await;
        let command = rawdoc! { "insert": "things", "text": "x".repeat(256 * 1024), "$db": "load" };
        let request = encode_request(1, command.as_bytes());
        let reply = encode_op_msg_like(0, 1, 1, rawdoc! { "ok": 1.0 }.as_bytes());
        let mut received = vec![0; request.len()];
        let sending = async {
            link.run(&command).await.map(drop).unwrap();
            end(&mut link).await;
        };
        let receiving = async {
            // Send the reply before the command is read, so that the client never waits for the
            // reply.
            far.write_all(&reply).await.unwrap();
            far.flush().await.unwrap();
            far.read_exact(&mut received).await
        };
        let ((), result) = tokio::join!(sending, receiving);
        result.expect("the whole command arrives");
        assert!(received == request);
    }

    /// Logs in at a server that replies to `isMaster` with `hello`, and that refuses the login.
    /// Returns the mechanism of the login. `options` are those of the connection string.
    async fn mechanism_of_login(hello: RawDocumentBuf, options: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!(
            "mongodb://me:word@{}/{options}",
            listener.local_addr().unwrap()
        );
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            loop {
                let mut head = [0; HEADER_BYTES];
                stream.read_exact(&mut head).await.unwrap();
                let header = Header::parse(&head, MAX_MESSAGE_BYTES).unwrap();
                let mut rest = vec![0; header.message_length - HEADER_BYTES];
                stream.read_exact(&mut rest).await.unwrap();
                // The body follows the flags and the kind of the section.
                let command = RawDocument::from_bytes(&rest[5..]).unwrap();
                let mechanism = command.get_str("mechanism").ok().map(str::to_owned);
                let reply = match mechanism.is_some() {
                    true => rawdoc! { "ok": 0, "code": 18 },
                    false => hello.clone(),
                };
                let reply = encode_op_msg_like(0, 1, header.request_id, reply.as_bytes());
                stream.write_all(&reply).await.unwrap();
                if let Some(mechanism) = mechanism {
                    return mechanism;
                }
            }
        });
        let target = Target::parse(&uri).await.unwrap();
        let mut link = Link::connect(&target, 0).await.unwrap();
        let nonces = NonceSource::new().unwrap();
        let user = target.user().unwrap();
        let refused = link.log_in(user, &Keyring::default(), &nonces).await;
        assert!(matches!(refused, Err(Failure::Refused(18))), "{refused:?}");
        serving.await.unwrap()
    }

    #[tokio::test]
    async fn a_login_uses_a_mechanism_of_the_user_unless_the_connection_string_names_one() {
        let both = rawdoc! { "ok": 1, "saslSupportedMechs": ["SCRAM-SHA-1", "SCRAM-SHA-256"] };
        let only_sha_1 = rawdoc! { "ok": 1, "saslSupportedMechs": ["SCRAM-SHA-1"] };
        for (hello, options, expected) in [
            (both, "", "SCRAM-SHA-256"),
            (only_sha_1.clone(), "", "SCRAM-SHA-1"),
            // The server does not know the user.
            (rawdoc! { "ok": 1 }, "", "SCRAM-SHA-1"),
            (only_sha_1, "?authMechanism=SCRAM-SHA-256", "SCRAM-SHA-256"),
        ] {
            assert_eq!(mechanism_of_login(hello, options).await, expected);
        }
    }
}
