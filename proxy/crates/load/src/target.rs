//! The endpoint under load, and the user that the load logs in as.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use mongodb::options::{
    ClientOptions, ReadPreference, SelectionCriteria, ServerAddress, Tls, TlsOptions,
};
use tokio::net::lookup_host;

use seawall_auth::{ClientKey, Mechanism, ScramKeys};
use seawall_locks::RwLock;
use seawall_transport::{
    KeyPassword, Pem,
    connection::{Authorities, ServerTls, TlsError, TlsSettings, Verification},
};

/// The endpoint of a load.
#[derive(Clone)]
pub struct Target {
    first: Address,
    others: Vec<Address>,
    user: Option<User>,
    /// The TLS configuration for connections to the endpoint; `None` without TLS.
    pub(super) tls: Option<Arc<ServerTls>>,
    /// The read preference mode in the connection string; `None` means primary.
    pub(super) read_mode: Option<&'static str>,
}

/// The user that the clients log in as.
#[derive(Clone)]
pub struct User {
    pub(super) name: String,
    pub(super) password: String,
    pub(super) source: String,
    /// The mechanism that the connection string names; `None` if it names none.
    pub(super) mechanism: Option<Mechanism>,
}

/// One address of the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String),
    /// The path of a Unix domain socket.
    Unix(PathBuf),
}

impl Address {
    /// True for a Unix domain socket, and for a host that resolves only to loopback addresses.
    pub async fn is_loopback(&self) -> bool {
        let Self::Tcp(address) = self else {
            return true;
        };
        match lookup_host(address).await {
            Ok(mut resolved) => resolved.all(|address| address.ip().is_loopback()),
            Err(_) => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A connection string that the load cannot use.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The connection string is malformed. The text of this error does not contain the driver's
    /// message, because that message may contain the password.
    #[error(
        "the official driver rejects the connection string: check its hosts and options, and \
         percent-encode special characters in the user and the password"
    )]
    Malformed(#[from] mongodb::error::Error),
    /// The connection string needs a feature that the load harness does not support.
    #[error("the load harness does not support {0}")]
    Unsupported(&'static str),
    /// A file with certificates or a private key cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The content of a file with certificates or a private key is not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("first", &self.first)
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// Parses the addresses, the user, TLS and the read preference mode of a connection string, and
    /// reads the TLS files. The clients are spread over the addresses.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub async fn parse(uri: &str) -> Result<Self, TargetError> {
        let options = ClientOptions::parse(uri).await?;
        let tls = match &options.tls {
            Some(Tls::Enabled(files)) => Some(Arc::new(tls(files)?)),
            Some(Tls::Disabled) | None => None,
        };
        let mut addresses = options.hosts.iter().filter_map(|host| match host {
            ServerAddress::Unix { path } => Some(Address::Unix(path.clone())),
            ServerAddress::Tcp { host, port } => Some(Address::Tcp(joined(host, *port))),
            _ => None,
        });
        let user = options.credential.map(|credential| {
            let mechanism = match credential.mechanism {
                None => None,
                Some(mongodb::options::AuthMechanism::ScramSha1) => Some(Mechanism::ScramSha1),
                Some(mongodb::options::AuthMechanism::ScramSha256) => Some(Mechanism::ScramSha256),
                Some(_) => return Err(TargetError::Unsupported("a mechanism other than SCRAM")),
            };
            Ok(User {
                name: credential.username.unwrap_or_default(),
                password: credential
                    .password
                    .ok_or(TargetError::Unsupported("a user without a password"))?,
                source: credential.source.unwrap_or_else(|| "admin".to_owned()),
                mechanism,
            })
        });
        let read_mode = options
            .selection_criteria
            .and_then(|criteria| match criteria {
                SelectionCriteria::ReadPreference(preference) => mode(&preference),
                _ => None,
            });
        Ok(Self {
            first: addresses
                .next()
                .ok_or(TargetError::Unsupported("an empty list of hosts"))?,
            others: addresses.collect(),
            user: user.transpose()?,
            tls,
            read_mode,
        })
    }

    /// True if every address is a loopback address ([`Address::is_loopback`]).
    pub async fn is_loopback(&self) -> bool {
        for address in self.addresses() {
            if !address.is_loopback().await {
                return false;
            }
        }
        true
    }

    /// The address to which the client with this number connects.
    pub fn address(&self, number: usize) -> &Address {
        let index = number % (1 + self.others.len());
        let other = index
            .checked_sub(1)
            .and_then(|index| self.others.get(index));
        other.unwrap_or(&self.first)
    }

    /// All addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        [&self.first].into_iter().chain(&self.others)
    }

    /// The user to log in as; `None` if the connection string has no user.
    pub fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }
}

fn mode(preference: &ReadPreference) -> Option<&'static str> {
    match preference {
        ReadPreference::Primary => None,
        ReadPreference::PrimaryPreferred { .. } => Some("primaryPreferred"),
        ReadPreference::Secondary { .. } => Some("secondary"),
        ReadPreference::SecondaryPreferred { .. } => Some("secondaryPreferred"),
        ReadPreference::Nearest { .. } => Some("nearest"),
        _ => None,
    }
}

fn tls(options: &TlsOptions) -> Result<ServerTls, TargetError> {
    let system = match options.ca_file_path {
        Some(_) => None,
        None => openssl_probe::probe().cert_file,
    };
    let contents = |path: &Option<PathBuf>| path.as_deref().map(content).transpose();
    let (authority, system) = (contents(&options.ca_file_path)?, contents(&system)?);
    let mut identity = contents(&options.cert_key_file_path)?;
    if let (Some(file), Some(password)) =
        (&mut identity, &options.tls_certificate_key_file_password)
    {
        let decrypted = pem(file).decrypt_keys(&KeyPassword::new(password.clone()));
        file.1.clone_from(&*decrypted.map_err(TlsError::from)?);
    }
    Ok(ServerTls::new(&TlsSettings {
        authorities: Authorities::of(authority.as_ref().map(pem), system.as_ref().map(pem)),
        identity: identity.as_ref().map(pem),
        revocation_lists: Vec::new(),
        verification: match options.allow_invalid_certificates {
            Some(true) => Verification::Off,
            Some(false) | None => Verification::Full,
        },
    })?)
}

fn content(path: &Path) -> Result<(PathBuf, String), TargetError> {
    let path = path.to_owned();
    match fs::read_to_string(&path) {
        Ok(content) => Ok((path, content)),
        Err(source) => Err(TargetError::Unreadable { path, source }),
    }
}

fn pem((path, content): &(PathBuf, String)) -> Pem<'_> {
    Pem { path, content }
}

/// The host of an address, without the port and without the brackets of an IPv6 address.
pub(super) fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_matches(['[', ']'])
}

fn joined(host: &str, port: Option<u16>) -> String {
    let port = port.unwrap_or(27017);
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// A cache of the user's SCRAM keys, and of the mechanism that was chosen for the user. If each
/// login derived the keys from the password, the derivation would take most of the harness's CPU
/// time.
#[derive(Default)]
pub struct Keyring {
    keys: RwLock<Option<(ClientKey, ScramKeys)>>,
    mechanism: RwLock<Option<Mechanism>>,
}

impl fmt::Debug for User {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut user = formatter.debug_struct("User");
        user.field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    pub(super) fn get(&self) -> Option<(ClientKey, ScramKeys)> {
        self.keys.read().clone()
    }

    pub(super) fn put(&self, client_key: ClientKey, keys: ScramKeys) {
        *self.keys.write() = Some((client_key, keys));
    }

    pub(super) fn clear(&self) {
        *self.keys.write() = None;
    }

    pub(super) fn mechanism(&self) -> Option<Mechanism> {
        *self.mechanism.read()
    }

    pub(super) fn put_mechanism(&self, mechanism: Mechanism) {
        *self.mechanism.write() = Some(mechanism);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_string_is_parsed_into_addresses_a_user_and_a_read_mode() {
        let uri =
            "mongodb://me:p%40ss@127.0.0.1:27018,[::1]:5/?authSource=app&readPreference=nearest";
        let target = Target::parse(uri).await.unwrap();
        assert_eq!(target.address(0), &Address::Tcp("127.0.0.1:27018".into()));
        assert_eq!(target.address(3), &Address::Tcp("[::1]:5".into()));
        let user = target.user().unwrap();
        assert_eq!(
            (
                user.name.as_str(),
                user.password.as_str(),
                user.source.as_str()
            ),
            ("me", "p@ss", "app")
        );
        assert_eq!(target.read_mode, Some("nearest"));
        assert!(target.is_loopback().await);
    }

    #[tokio::test]
    async fn a_target_with_a_remote_address_is_not_loopback() {
        for uri in ["mongodb://192.0.2.1/", "mongodb://127.0.0.1,192.0.2.1/"] {
            assert!(
                !Target::parse(uri).await.unwrap().is_loopback().await,
                "{uri}"
            );
        }
    }

    #[tokio::test]
    async fn a_mechanism_other_than_scram_and_a_user_without_a_password_are_errors() {
        for uri in [
            "mongodb://127.0.0.1/?authMechanism=MONGODB-X509",
            "mongodb://me@127.0.0.1/",
        ] {
            let target = Target::parse(uri).await;
            let is_refused = matches!(target, Err(TargetError::Unsupported(_)));
            assert!(is_refused, "{uri}");
        }
    }

    #[tokio::test]
    async fn tls_files_are_read_and_checked() {
        let parse = async |file: &str| {
            Target::parse(&format!("mongodb://127.0.0.1/?tls=true&tlsCAFile={file}")).await
        };
        let missing = parse("/nowhere/ca.pem").await;
        assert!(matches!(missing, Err(TargetError::Unreadable { .. })));
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(matches!(parse(manifest).await, Err(TargetError::Tls(_))));
        let system = Target::parse("mongodb://127.0.0.1/?tls=true").await;
        assert!(system.unwrap().tls.is_some());
        let plain = Target::parse("mongodb://127.0.0.1/").await;
        assert!(plain.unwrap().tls.is_none());
    }

    #[test]
    fn the_host_of_an_address_has_no_port_and_no_brackets() {
        for (address, expected) in [
            ("db.example:27017", "db.example"),
            ("127.0.0.1:5", "127.0.0.1"),
            ("[::1]:5", "::1"),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
