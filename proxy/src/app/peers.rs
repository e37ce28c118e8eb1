//! The other Seawall instances, which `admin.peers` lists, and the TLS files to connect to them.

use std::{fmt, io, path::PathBuf, sync::Arc};

use seawall_api::{AdminClient, ClientError};
use seawall_config::{self as config, ReadFile};

use super::{
    App,
    tls::{log_replaced, pem},
};
use crate::admin::Fleet;
use seawall_transport::{
    CertificateExpiry,
    connection::{Authorities, ServerTls, TlsError, TlsSettings, Verification},
};

/// The reason why the HTTP clients for the other Seawall instances cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// The file with the certificate authorities of the operating system cannot be read.
    #[error("admin.peers: {path}: {source}")]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the file cannot be read.
        source: io::Error,
    },
    /// The TLS files are unusable.
    #[error("admin.peers: {0}")]
    Tls(#[from] TlsError),
    /// The HTTP client for a peer cannot be set up.
    #[error("admin.peers: {0}")]
    Client(#[from] ClientError),
}

/// The other instances, and the expiry of the TLS files for connections to them.
pub(super) struct Peers {
    pub(super) fleet: Fleet,
    pub(super) expiries: Vec<CertificateExpiry>,
}

/// The settings of the HTTP clients for the peers: addresses, tokens and TLS files.
pub(super) fn settings(admin: &config::Admin) -> impl PartialEq + fmt::Debug + '_ {
    (
        &admin.peers,
        &admin.peer_tokens,
        &admin.peer_ca_file,
        &admin.peer_certificate_key_file,
    )
}

/// The reason why the HTTP clients for the peers cannot be set up, for example an unusable TLS
/// file. `None` if there is no problem.
pub(crate) fn peer_problem(settings: &config::Settings) -> Option<String> {
    let problem = peers(&settings.admin).err();
    problem.map(|error| error.to_string())
}

/// The HTTP clients for the other instances. Each client connects at its first request.
///
/// # Errors
/// If a TLS file cannot be used, or if an HTTP client cannot be set up.
pub(super) fn peers(admin: &config::Admin) -> Result<Peers, PeersError> {
    let tls = match admin.peers.iter().any(config::PeerAddress::uses_tls) {
        true => Some(tls(admin)?),
        false => None,
    };
    let clients = admin.peers.iter().enumerate().map(|(place, peer)| {
        let token = match admin.peer_tokens.as_slice() {
            [one] => Some(one),
            each => each.get(place),
        };
        let token = token.map(|file| file.secret.expose().to_owned());
        let tls = tls.as_ref().map(ServerTls::config_for_http);
        AdminClient::new(peer.url(), token, tls)
    });
    let fleet = Fleet::new(clients.collect::<Result<_, _>>()?);
    let expiries = tls.as_ref().map(|tls| tls.expiries().to_vec());
    Ok(Peers {
        fleet,
        expiries: expiries.unwrap_or_default(),
    })
}

impl App {
    /// Puts changed peers into use.
    pub(super) fn use_peers(&self, Peers { fleet, expiries }: Peers) {
        log_replaced(&expiries, &self.peer_expiries.borrow());
        self.peer_expiries.send_replace(expiries);
        if let Some(state) = &self.state {
            state.fleet.store(Arc::new(fleet));
        }
    }
}

fn tls(admin: &config::Admin) -> Result<ServerTls, PeersError> {
    let system = match admin.peer_ca_file {
        Some(_) => None,
        None => openssl_probe::probe().cert_file,
    };
    let read = |path: PathBuf| {
        let read = ReadFile::read(path);
        read.map_err(|(path, source)| PeersError::Unreadable { path, source })
    };
    let system = system.map(read).transpose()?;
    Ok(ServerTls::new(&TlsSettings {
        authorities: Authorities::of(
            admin.peer_ca_file.as_ref().map(pem),
            system.as_ref().map(pem),
        ),
        identity: admin.peer_certificate_key_file.as_ref().map(pem),
        revocation_lists: Vec::new(),
        verification: Verification::Full,
    })?)
}
