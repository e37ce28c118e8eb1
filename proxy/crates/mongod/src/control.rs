//! Runs commands on a private mongod without the driver, because the driver refuses old servers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bson::Document;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::error::Error;
use super::tls::Tls;

/// Runs one command over a new connection without a login. Uses TLS if `tls` is set. A reply with
/// `ok: 0` is an error.
pub(super) async fn run_command(
    address: SocketAddr,
    tls: Option<&Tls>,
    db: &str,
    mut command: Document,
) -> Result<Document, Error> {
    command.insert("$db", db);
    let reply = timeout(COMMAND_LIMIT, exchange(address, tls, &command))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|source| Error::Connection { address, source })?;
    if reply.get_f64("ok").is_ok_and(|ok| ok > 0.0) {
        return Ok(reply);
    }
    Err(Error::Refused {
        code: reply.get_i32("code").unwrap_or(0),
        message: reply.get_str("errmsg").unwrap_or_default().to_owned(),
    })
}

async fn exchange(
    address: SocketAddr,
    tls: Option<&Tls>,
    command: &Document,
) -> io::Result<Document> {
    let stream = TcpStream::connect(address).await?;
    match tls {
        None => exchange_over(stream, command).await,
        Some(tls) => {
            let connector = TlsConnector::from(Arc::new(client_config(tls)?));
            let stream = connector.connect(ServerName::from(address.ip()), stream);
            exchange_over(stream.await?, command).await
        }
    }
}

/// The TLS configuration of a client. The client trusts only the certificate authority in
/// `tls.ca_file`. It sends the certificate in `tls.client_file` if this field is set.
fn client_config(tls: &Tls) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(&tls.ca_file).map_err(io::Error::other)?;
    roots.add(authority).map_err(io::Error::other)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let Some(file) = &tls.client_file else {
        return Ok(config.with_no_client_auth());
    };
    let certificate = CertificateDer::from_pem_file(file).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(file).map_err(io::Error::other)?;
    let config = config.with_client_auth_cert(vec![certificate], key);
    config.map_err(io::Error::other)
}

async fn exchange_over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    command: &Document,
) -> io::Result<Document> {
    let body = command.to_vec().map_err(io::Error::other)?;
    let length = i32::try_from(PREFIX_BYTES + body.len()).map_err(io::Error::other)?;
    // These are the fields messageLength, requestID, responseTo, opCode and flagBits.
    let fields = [length, 1, 0, OP_MSG, 0];
    let mut message: Vec<u8> = fields.into_iter().flat_map(i32::to_le_bytes).collect();
    message.push(BODY_SECTION);
    message.extend(body);
    stream.write_all(&message).await?;
    stream.flush().await?;

    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix).await?;
    let (length, _) = prefix
        .split_first_chunk()
        .expect("the prefix has more than four bytes");
    let length = usize::try_from(i32::from_le_bytes(*length)).map_err(io::Error::other)?;
    let body_bytes = length
        .checked_sub(PREFIX_BYTES)
        .filter(|_| length <= MAX_REPLY_BYTES)
        .ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; body_bytes];
    stream.read_exact(&mut body).await?;
    Document::from_reader(&*body).map_err(io::Error::other)
}

const OP_MSG: i32 = 2013;
const BODY_SECTION: u8 = 0;
/// Number of bytes before the document of a message: the header, the flags and the kind of the only
/// section.
const PREFIX_BYTES: usize = 16 + 4 + 1;
/// Maximum size of a reply. Replies to administrative commands are far smaller.
const MAX_REPLY_BYTES: usize = 1024 * 1024;
/// Time limit for a command. It is long enough to replicate a new user to a majority on a machine
/// that is busy compiling.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
