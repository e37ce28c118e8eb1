//! TLS towards servers: combines the options of the connection string with `[deployment.tls]`. Also
//! tries changed TLS files and a changed password at the servers, before a reload uses them.

use std::{env, ffi::OsStr, fs, io, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::select_ok;
use openssl_probe::{ENV_CERT_DIR, ENV_CERT_FILE, ProbeResult};
use seawall_config::{self as config, ReadFile};
use seawall_locks::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{App, reload_problems::ReloadProblems, tls::pem};
use crate::topology::{DeploymentOptions, DriverTls, ServerType};
use seawall_auth::NonceSource;
use seawall_command::ReadPreference;
use seawall_transport::{
    CertificateExpiry, KeyPassword, Pem,
    connection::{
        Account, Authorities, Connector, EstablishError, Password, ServerTls, TlsError,
        TlsSettings, Verification,
    },
};

/// Time limit for trying new TLS files, or a new password, at the servers.
const TRIAL_LIMIT: Duration = Duration::from_secs(5);

/// The reason why TLS towards servers cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum DeploymentTlsError {
    /// The configuration has TLS options, but TLS is off.
    #[error("deployment.tls: TLS is off; add tls=true to the connection string")]
    Off,
    /// A server would get the password of the service account, although its host name is not
    /// verified.
    #[error(
        "deployment.tls.allow_invalid_hostnames: must be false with authMechanism=PLAIN, because \
         the server gets the password of the service account"
    )]
    PasswordToAnyHost,
    /// A server would get the password of the service account, although its certificate is not
    /// verified.
    #[error(
        "deployment.uri: tlsInsecure and tlsAllowInvalidCertificates must be false with \
         authMechanism=PLAIN, because the server gets the password of the service account"
    )]
    PasswordToAnyServer,
    /// A file cannot be read.
    #[error("TLS to servers: {path}: {source}")]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the file cannot be read.
        source: io::Error,
    },
    /// The TLS files are unusable.
    #[error("TLS to servers: {0}")]
    Tls(#[from] TlsError),
}

/// The TLS files for connections to servers, with the contents that were read. Also says how
/// strictly the certificates of servers are verified. Two values are equal only if the contents of
/// all files are equal too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerTlsFiles {
    authorities: Option<ReadFile>,
    /// The certificate authorities of the operating system; `None` if they are not used.
    system_authorities: Option<ReadFile>,
    identity: Option<ReadFile>,
    /// The password of the connection string that decrypts the key in `identity`.
    key_password: Option<KeyPassword>,
    revocation_lists: Vec<ReadFile>,
    verification: Verification,
}

impl ServerTlsFiles {
    /// Reads the files that the connection string names. A file in `tls`, which has been read with
    /// the configuration, replaces the file for the same purpose in the connection string. If
    /// neither names authorities, reads the authorities of the operating system. `None` if TLS is
    /// off.
    ///
    /// # Errors
    /// If a file cannot be read, or the options contradict each other.
    pub(crate) fn read(
        deployment: &DeploymentOptions,
        tls: Option<&config::ServerTls>,
    ) -> Result<Option<Self>, DeploymentTlsError> {
        Self::read_with(deployment, tls, openssl_probe::probe)
    }

    /// Like [`Self::read`]. `probe` finds the authorities of the operating system.
    fn read_with(
        deployment: &DeploymentOptions,
        tls: Option<&config::ServerTls>,
        probe: impl FnOnce() -> ProbeResult,
    ) -> Result<Option<Self>, DeploymentTlsError> {
        let Some(written) = deployment.tls() else {
            return match tls {
                Some(_) => Err(DeploymentTlsError::Off),
                None => Ok(None),
            };
        };
        let allows_any_name = tls.is_some_and(|tls| tls.allow_invalid_hostnames);
        if deployment.sends_password() {
            match (written.trusts_anyone, allows_any_name) {
                (true, _) => return Err(DeploymentTlsError::PasswordToAnyServer),
                (false, true) => return Err(DeploymentTlsError::PasswordToAnyHost),
                (false, false) => {}
            }
        }
        let read = |path: PathBuf| {
            let read = ReadFile::read(path);
            read.map_err(|(path, source)| DeploymentTlsError::Unreadable { path, source })
        };
        let authorities = match tls.and_then(|tls| tls.ca_file.clone()) {
            Some(file) => Some(file),
            None => written.ca_file.map(read).transpose()?,
        };
        let system = authorities.is_none().then(probe);
        Ok(Some(Self {
            authorities,
            system_authorities: system.and_then(|of| of.cert_file).map(read).transpose()?,
            identity: match tls.and_then(|tls| tls.certificate_key_file.clone()) {
                Some(file) => Some(file),
                None => written.identity_file.map(read).transpose()?,
            },
            key_password: written.key_password,
            revocation_lists: tls
                .and_then(|tls| tls.crl_files.clone())
                .unwrap_or_default(),
            verification: match (written.trusts_anyone, allows_any_name) {
                (true, _) => Verification::Off,
                (false, true) => Verification::AnyHostName,
                (false, false) => Verification::Full,
            },
        }))
    }

    /// Creates the TLS configuration of connections in the pools.
    ///
    /// # Errors
    /// [`DeploymentTlsError::Tls`].
    pub(crate) fn build(&self) -> Result<ServerTls, DeploymentTlsError> {
        let identity = self.identity.as_ref().map(pem);
        let decrypted = match (identity, &self.key_password) {
            (Some(identity), Some(password)) => Some(identity.decrypt_keys(password)),
            _ => None,
        };
        let decrypted = decrypted.transpose().map_err(TlsError::from)?;
        Ok(ServerTls::new(&TlsSettings {
            authorities: Authorities::of(
                self.authorities.as_ref().map(pem),
                self.system_authorities.as_ref().map(pem),
            ),
            identity: identity.map(|file| Pem {
                content: decrypted.as_ref().map_or(file.content, |of| of.as_str()),
                ..file
            }),
            revocation_lists: self.revocation_lists.iter().map(pem).collect(),
            verification: self.verification,
        })?)
    }

    /// The TLS options of the official driver. The driver verifies the whole certificate or
    /// nothing, so with `allow_invalid_hostnames` it verifies nothing. This is acceptable, because
    /// the driver only monitors servers and does not log in.
    pub(crate) fn driver_tls(&self) -> DriverTls {
        let ca = self.authorities.as_ref();
        let ca = ca.or(self.system_authorities.as_ref());
        let identity = self.identity.as_ref().map(pem);
        let is_encrypted = identity.is_some_and(|file| file.has_encrypted_key());
        DriverTls {
            ca_file: ca.map(|file| file.path().to_owned()),
            identity_file: (self.identity.as_ref()).map(|file| file.path().to_owned()),
            key_password: self.key_password.clone().filter(|_| is_encrypted),
            trusts_anyone: self.verification != Verification::Full,
        }
    }

    /// The directory of authorities that `SSL_CERT_DIR` or the operating system names. Seawall does
    /// not read this directory, and verifies servers with other authorities. If the authorities of
    /// the operating system are used, this method may block, because it lists the file names in
    /// their directory. `None` in any of these cases:
    ///
    /// - There is no such directory.
    /// - The configuration names a file of authorities, or servers are not verified.
    /// - `SSL_CERT_DIR` is not used, and the operating system has a file of authorities or has no
    ///   authorities in its directory.
    pub(crate) fn unread_directory(&self) -> Option<UnreadDirectory> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let named = match variable(ENV_CERT_FILE) {
            Some(_) => None,
            None => variable(ENV_CERT_DIR),
        };
        self.unread_directory_of(openssl_probe::probe, named.as_deref())
    }

    /// Like [`Self::unread_directory`]. `probe` finds the file and the directory in which the
    /// operating system keeps authorities. `named` is the value of `SSL_CERT_DIR`; `None` if this
    /// variable is not set, or if `SSL_CERT_FILE` is set too.
    fn unread_directory_of(
        &self,
        probe: impl FnOnce() -> ProbeResult,
        named: Option<&OsStr>,
    ) -> Option<UnreadDirectory> {
        if self.verification == Verification::Off || self.authorities.is_some() {
            return None;
        }
        let directory = match named {
            Some(named) => named.to_string_lossy().into_owned(),
            None => unread_directory(&probe())?.display().to_string(),
        };
        let trusted = match &self.system_authorities {
            Some(file) => format!("the authorities in {}", file.path().display()),
            None => "the authorities of Mozilla".to_owned(),
        };
        Some(UnreadDirectory { directory, trusted })
    }

    /// Logs warnings about the verification of servers: one if certificates or host names are not
    /// verified, and one if a directory of authorities is not read. Called at the start and after
    /// each change.
    pub(super) fn warn(&self) {
        match self.verification {
            Verification::Full => {}
            Verification::AnyHostName => {
                tracing::warn!("host names in servers' certificates are not verified");
            }
            Verification::Off => tracing::warn!("server certificates are not verified"),
        }
        if let Some(UnreadDirectory { directory, trusted }) = self.unread_directory() {
            tracing::warn!(
                directory,
                trusted,
                "Seawall ignores the directory of certificate authorities, because it reads authorities only from a file"
            );
        }
    }
}

/// A directory of authorities that Seawall does not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnreadDirectory {
    /// The path of the directory, or the value of `SSL_CERT_DIR`, which may name several paths.
    pub(crate) directory: String,
    /// The authorities that Seawall trusts instead of those in the directory.
    pub(crate) trusted: String,
}

/// The directory in which the operating system keeps authorities. Seawall reads authorities only
/// from a file. `None` if the operating system also has such a file, or if OpenSSL would find no
/// authorities in the directory.
fn unread_directory(system: &ProbeResult) -> Option<PathBuf> {
    if system.cert_file.is_some() {
        return None;
    }
    let directory = system.cert_dir.as_ref()?;
    let mut entries = fs::read_dir(directory).ok()?.filter_map(Result::ok);
    let has_authorities = entries.any(|entry| is_hashed_name(&entry.file_name()));
    has_authorities.then(|| directory.clone())
}

/// True for a name such as `3513523f.0`: the hash of an authority's subject, and a number. OpenSSL
/// finds authorities in a directory by such names.
fn is_hashed_name(name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.split_once('.'));
    parts.is_some_and(|(hash, number)| {
        hash.len() == 8
            && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
            && number.parse::<u32>().is_ok()
    })
}

/// The part of a running Seawall that manages TLS towards servers.
pub(super) struct RunningServerTls {
    /// The options of the connection string at the start, without those in `[deployment.tls]`. A
    /// reload may change only the passwords of the connection string.
    deployment: DeploymentOptions,
    /// The files in use; `None` if TLS is off.
    files: Mutex<Option<ServerTlsFiles>>,
    pub(super) expiries: watch::Sender<Vec<CertificateExpiry>>,
}

/// The TLS files and the password that a reload changes for connections to servers. They have been
/// tried at the available servers and are not yet in use.
pub(super) struct NewAccess {
    pub(super) tls: Option<NewServerTls>,
    /// The new password of the service account; `None` if it does not change.
    pub(super) password: Option<Password>,
}

/// New TLS files for connections to servers, not yet in use.
pub(super) struct NewServerTls {
    files: ServerTlsFiles,
    tls: Arc<ServerTls>,
}

impl RunningServerTls {
    /// Reads the TLS files at the start. Returns three values: the new `RunningServerTls`; the
    /// options of the connection string, in which these files replace the files that the string
    /// names; and the TLS configuration of connections to servers, which is `None` if TLS is off.
    ///
    /// # Errors
    /// See [`DeploymentTlsError`].
    pub(super) fn start(
        deployment: DeploymentOptions,
        settings: &config::Deployment,
    ) -> Result<(Self, DeploymentOptions, Option<Arc<ServerTls>>), DeploymentTlsError> {
        let files = ServerTlsFiles::read(&deployment, settings.tls.as_ref())?;
        let tls = files.as_ref().map(ServerTlsFiles::build).transpose()?;
        // With TLS, servers are verified: see `ServerTlsFiles::read`.
        if deployment.sends_password() && files.is_none() {
            tracing::warn!(
                "TLS is off: PLAIN sends the password of the service account unencrypted"
            );
        }
        let mut combined = deployment.clone();
        if let Some(files) = &files {
            files.warn();
            combined.set_driver_tls(&files.driver_tls());
        }
        let expiries = tls.as_ref().map(|tls| tls.expiries().to_vec());
        let running = Self {
            deployment,
            files: Mutex::new(files),
            expiries: watch::Sender::new(expiries.unwrap_or_default()),
        };
        Ok((running, combined, tls.map(Arc::new)))
    }

    /// Reads the TLS files again; `None` if TLS is off. The password of the key comes from the
    /// connection string in `settings`.
    fn read(
        &self,
        settings: &config::Deployment,
    ) -> Result<Option<ServerTlsFiles>, DeploymentTlsError> {
        let files = ServerTlsFiles::read(&self.deployment, settings.tls.as_ref())?;
        let key_password = DriverTls::key_password_in(settings.uri.expose());
        Ok(files.map(|files| ServerTlsFiles {
            key_password,
            ..files
        }))
    }

    /// Builds the TLS configuration from the files in `read`. `None` if these files equal the files
    /// in use, or if `read` is `None`.
    ///
    /// # Errors
    /// [`DeploymentTlsError::Tls`].
    fn changed(
        &self,
        read: Option<ServerTlsFiles>,
    ) -> Result<Option<NewServerTls>, DeploymentTlsError> {
        if read == *self.files.lock() {
            return Ok(None);
        }
        let new = read.map(|files| {
            let tls = Arc::new(files.build()?);
            Ok(NewServerTls { files, tls })
        });
        new.transpose()
    }
}

impl App {
    /// The TLS files in use for connections to servers; `None` if TLS is off.
    pub(crate) fn server_tls_in_use(&self) -> Option<ServerTlsFiles> {
        self.server_tls.files.lock().clone()
    }

    /// Reads the TLS files for connections to servers again; `None` if TLS is off.
    ///
    /// Ignores values of `settings` that need a restart, for example another connection string.
    /// With such a string, changed keys of `[deployment.tls]` need a restart too.
    ///
    /// # Errors
    /// See [`DeploymentTlsError`].
    pub(crate) fn read_server_tls(
        &self,
        settings: &config::Settings,
    ) -> Result<Option<ServerTlsFiles>, DeploymentTlsError> {
        let settings = self.settings().with_live_values_of(settings);
        self.server_tls.read(&settings.deployment)
    }

    /// Applies the live values of a new configuration. Values that need a restart stay as they are
    /// and are reported. With `is_dry_run`, reports the changes and applies nothing.
    ///
    /// First tries to connect to a server if TLS files for connections to servers or the password
    /// of the service account have changed. If no available server accepts the files, nothing
    /// changes, because the pools would lose all connections. Nothing changes either if a server
    /// refuses the login of the service account with the changed password or certificate.
    ///
    /// # Errors
    /// The problems of the new configuration. Nothing has changed.
    pub async fn reload(
        &self,
        new: &config::Loaded,
        is_dry_run: bool,
    ) -> Result<seawall_api::Reload, Vec<String>> {
        let read = self.read_server_tls(&new.settings);
        let read = read.map_err(|error| error.to_string());
        self.reload_read(new, read, Vec::new(), is_dry_run).await
    }

    /// Like [`Self::reload`], but the caller has read the TLS files for connections to servers.
    /// `problems` has the problems that the caller has found; if there are problems, nothing
    /// changes.
    ///
    /// # Errors
    /// See [`Self::reload`].
    pub(crate) async fn reload_read(
        &self,
        new: &config::Loaded,
        read: Result<Option<ServerTlsFiles>, String>,
        problems: Vec<String>,
        is_dry_run: bool,
    ) -> Result<seawall_api::Reload, Vec<String>> {
        let mut threads = self.reloading.lock().await;
        let mut found = ReloadProblems::default();
        problems.into_iter().for_each(|problem| found.add(problem));
        let read = found.unless_failed(read).flatten();
        let tls = found.unless_failed(self.server_tls.changed(read)).flatten();
        if let Some(tls) = &tls
            && let Some(problem) = self.problem_with_servers(&tls.tls).await
        {
            found.add(problem);
        }
        let password = self.changed_password(&new.settings).await;
        let password = found.unless_failed(password).flatten();
        let access = NewAccess { tls, password };
        let reload = self.reload_with(new, access, found, &mut threads, is_dry_run);
        reload.await
    }

    /// The new password of the service account. `None` if it has not changed, or if the connection
    /// string has other changes than passwords.
    ///
    /// # Errors
    /// The problem if the connection string is invalid, or if a server refuses the password. If no
    /// server replies in time, the password counts as correct.
    async fn changed_password(
        &self,
        settings: &config::Settings,
    ) -> Result<Option<Password>, String> {
        let new = &settings.deployment;
        if !new.changes_account_password(&self.settings().deployment) {
            return Ok(None);
        }
        let parsed = DeploymentOptions::parse(new.uri.expose(), new.heartbeat_frequency).await;
        let parsed = parsed.map_err(|error| format!("deployment.uri: {error}"))?;
        let Some(password) = parsed.password() else {
            return Ok(None);
        };
        let Some(account) = parsed.service_account() else {
            return Ok(None);
        };
        let connector = self.topology().connector();
        match self.refused_login(connector, &account).await {
            Some(error) => Err(format!(
                "deployment.uri: a server refuses the new password: {error}"
            )),
            None => Ok(Some(password)),
        }
    }

    /// The problem if no available server accepts a connection with `tls`, or if a server refuses
    /// the login of the service account with the certificate in `tls`. `None` if there is no such
    /// problem, or if no server is available.
    async fn problem_with_servers(&self, tls: &Arc<ServerTls>) -> Option<String> {
        let nonces = match NonceSource::new() {
            Ok(nonces) => Arc::new(nonces),
            Err(error) => return Some(error.to_string()),
        };
        let connector = Connector::new(Some(Arc::clone(tls)), Vec::new(), TRIAL_LIMIT, nonces);
        let snapshot = self.topology().snapshot();
        let servers = snapshot.description.servers.iter();
        let available = servers.filter(|server| server.server_type != ServerType::Unknown);
        // All servers are tried at the same time, because one of them may hang.
        let trials: Vec<_> = available
            .map(|server| Box::pin(connector.connect(&server.address)))
            .collect();
        if trials.is_empty() {
            return None;
        }
        let problem = match timeout(TRIAL_LIMIT, select_ok(trials)).await {
            Ok(Ok(_)) => return self.problem_with_certificate(&connector).await,
            Ok(Err(error)) => format!("no server accepts the files: {error}"),
            Err(_) => "no server replied to a connection with the new files in time".to_owned(),
        };
        Some(format!("TLS to servers: {problem}"))
    }

    /// The problem if a server refuses the login of the service account with the new certificate.
    /// `None` if the account does not log in with a certificate, or if no server replied in time.
    async fn problem_with_certificate(&self, connector: &Connector) -> Option<String> {
        let account = self.server_tls.deployment.service_account()?;
        let error = match account.uses_certificate() {
            true => self.refused_login(connector, &account).await?,
            false => return None,
        };
        Some(format!(
            "deployment.uri: a server refuses the login with the new certificate: {error}"
        ))
    }

    /// Tries to log in at the primary, a router or the standalone server. Returns the error if the
    /// server refuses the login.
    async fn refused_login(
        &self,
        connector: &Connector,
        account: &Account,
    ) -> Option<EstablishError> {
        let trial = async {
            let deadline = Instant::now() + TRIAL_LIMIT;
            let preference = ReadPreference::PRIMARY;
            let pool = self.topology().select(&preference, deadline).await.ok()?;
            let login = connector.establish_account(pool.address(), account);
            login.await.err()
        };
        let error = timeout(TRIAL_LIMIT, trial).await.ok().flatten();
        error.filter(EstablishError::is_refused_login)
    }

    /// Puts new TLS files into use. Returns the TLS configurations of the pools and of the official
    /// driver, which the caller passes to the topology.
    pub(super) fn use_server_tls(&self, new: NewServerTls) -> (Arc<ServerTls>, DriverTls) {
        let NewServerTls { files, tls } = new;
        let running = &self.server_tls;
        files.warn();
        super::tls::log_replaced(tls.expiries(), &running.expiries.borrow());
        running.expiries.send_replace(tls.expiries().to_vec());
        let driver_tls = files.driver_tls();
        *running.files.lock() = Some(files);
        (tls, driver_tls)
    }

    /// Puts a new password of the service account into use.
    pub(super) fn use_password(&self, password: Password) {
        if let Some(account) = self.topology().service_account() {
            account.set_password(password);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process,
        time::{SystemTime, UNIX_EPOCH},
    };

    use super::*;

    fn files(verification: Verification) -> ServerTlsFiles {
        ServerTlsFiles {
            authorities: None,
            system_authorities: None,
            identity: None,
            key_password: None,
            revocation_lists: Vec::new(),
            verification,
        }
    }

    #[test]
    fn the_authorities_of_mozilla_are_used_if_there_are_no_other_authorities() {
        let files = files(Verification::Full);
        // Authorities from a file would have expiries. The authorities of Mozilla are compiled in
        // and have none.
        assert!(files.build().unwrap().expiries().is_empty());
        assert!(files.driver_tls().ca_file.is_none());
    }

    /// A directory that is removed at the end of the test.
    struct AuthorityDirectory(PathBuf);

    impl AuthorityDirectory {
        fn create() -> Self {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let unique = format!("{}-{}", process::id(), now.as_nanos());
            let path = env::temp_dir().join(format!("seawall-authorities-{unique}"));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        /// The result of `openssl_probe` on an operating system with this directory of authorities,
        /// and with `file` as the file of authorities.
        fn system(&self, file: Option<&str>) -> ProbeResult {
            ProbeResult {
                cert_file: file.map(PathBuf::from),
                cert_dir: Some(self.0.clone()),
            }
        }

        fn write(&self, name: &str) {
            fs::write(self.0.join(name), "").unwrap();
        }
    }

    impl Drop for AuthorityDirectory {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    /// The driver refuses a password if the key is not encrypted.
    #[test]
    fn the_driver_gets_the_password_of_the_key_only_if_the_key_is_encrypted() {
        let directory = AuthorityDirectory::create();
        let path = directory.0.join("client.pem");
        for (label, is_given) in [("ENCRYPTED PRIVATE KEY", true), ("PRIVATE KEY", false)] {
            let key = format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
            fs::write(&path, key).unwrap();
            let files = ServerTlsFiles {
                identity: Some(ReadFile::read(path.clone()).unwrap()),
                key_password: Some(KeyPassword::new(b"secret".to_vec())),
                ..files(Verification::Full)
            };
            let password = files.driver_tls().key_password;
            assert_eq!(password.is_some(), is_given, "{label}");
        }
    }

    /// A renewed certificate may come with a key that has another password.
    #[tokio::test]
    async fn a_reload_reads_the_password_of_the_key_from_the_new_connection_string() {
        let settings = |password: &str| {
            let options = format!("tls=true&tlsCertificateKeyFilePassword={password}");
            config::Settings::default_for(&format!("mongodb://localhost/?{options}")).unwrap()
        };
        let before = settings("p%40ss%20word");
        let uri = before.deployment.uri.expose();
        let deployment = DeploymentOptions::parse(uri, Duration::from_secs(10)).await;
        let started = RunningServerTls::start(deployment.unwrap(), &before.deployment);
        let (running, ..) = started.unwrap();
        assert!(running.files.lock().is_some());
        let read = running.read(&before.deployment).unwrap();
        assert_eq!(read, *running.files.lock());
        let after = before.with_live_values_of(&settings("an%20other"));
        let read = running.read(&after.deployment).unwrap().unwrap();
        let expected = KeyPassword::new(b"an other".to_vec());
        assert_eq!(read.key_password, Some(expected));
    }

    /// With the mechanism PLAIN, a server gets the password itself.
    #[tokio::test]
    async fn plain_is_refused_with_tls_unless_certificates_and_host_names_of_servers_are_verified()
    {
        for (mechanism, options, any_name, is_refused) in [
            ("PLAIN", "tls=true", false, false),
            ("PLAIN", "tls=true", true, true),
            ("PLAIN", "tls=true&tlsInsecure=true", false, true),
            (
                "PLAIN",
                "tls=true&tlsAllowInvalidCertificates=true",
                false,
                true,
            ),
            ("SCRAM-SHA-256", "tls=true&tlsInsecure=true", true, false),
        ] {
            let uri = format!("mongodb://a:b@localhost/?authMechanism={mechanism}&{options}");
            let toml = format!(
                "deployment.uri = {uri:?}\n\
                 deployment.tls.allow_invalid_hostnames = {any_name}\n"
            );
            let settings = config::Settings::from_toml(&toml).unwrap().deployment;
            let deployment = DeploymentOptions::parse(&uri, Duration::from_secs(10)).await;
            let read = ServerTlsFiles::read(&deployment.unwrap(), settings.tls.as_ref());
            assert_eq!(read.is_err(), is_refused, "{toml}: {read:?}");
        }
    }

    /// Seawall reads the file with the authorities of the system, but never the directory.
    #[test]
    fn an_authority_directory_is_reported_as_unread_only_without_an_authority_file() {
        let directory = AuthorityDirectory::create();
        // OpenSSL finds authorities only by hashed names.
        directory.write("authority.pem");
        assert_eq!(unread_directory(&directory.system(None)), None);
        directory.write("3513523f.0");
        let found = unread_directory(&directory.system(None));
        assert_eq!(found.as_ref(), Some(&directory.0));
        assert_eq!(unread_directory(&directory.system(Some("ca.pem"))), None);
    }

    /// Seawall reads authorities from files, but never from a directory.
    #[test]
    fn an_unread_authority_directory_is_reported_only_if_servers_are_verified() {
        let directory = AuthorityDirectory::create();
        directory.write("3513523f.0");
        for (verification, is_found) in [
            (Verification::Full, true),
            (Verification::AnyHostName, true),
            (Verification::Off, false),
        ] {
            let found = files(verification).unread_directory_of(|| directory.system(None), None);
            assert_eq!(found.is_some(), is_found, "{verification:?}");
        }
    }

    /// OpenSSL reads the authorities in the directories of `SSL_CERT_DIR`, but Seawall does not.
    #[test]
    fn a_directory_in_ssl_cert_dir_is_reported_as_unread_even_if_a_ca_file_was_read() {
        let directory = AuthorityDirectory::create();
        directory.write("ca.pem");
        let file = directory.0.join("ca.pem");
        let read = ServerTlsFiles {
            system_authorities: Some(ReadFile::read(file.clone()).unwrap()),
            ..files(Verification::Full)
        };
        let system = || directory.system(file.to_str());
        assert_eq!(read.unread_directory_of(system, None), None);
        let expected = UnreadDirectory {
            directory: "/one:/two".to_owned(),
            trusted: format!("the authorities in {}", file.display()),
        };
        let found = read.unread_directory_of(system, Some(OsStr::new("/one:/two")));
        assert_eq!(found, Some(expected));
    }

    #[tokio::test]
    async fn a_new_file_in_an_unread_directory_does_not_change_the_authorities() {
        let uri = "mongodb://localhost/?tls=true";
        let deployment = DeploymentOptions::parse(uri, Duration::from_secs(10)).await;
        let deployment = deployment.unwrap();
        let directory = AuthorityDirectory::create();
        let read = || {
            let probe = || directory.system(None);
            let files = ServerTlsFiles::read_with(&deployment, None, probe);
            files.unwrap().unwrap()
        };
        let before = read();
        directory.write("3513523f.0");
        let after = read();
        assert!(
            after
                .unread_directory_of(|| directory.system(None), None)
                .is_some()
        );
        assert_eq!(after, before);
    }
}
