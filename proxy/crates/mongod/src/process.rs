//! The guard of a running mongod and of its private directory. Dropping the guard kills mongod.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::{ClientOptions, Credential, ServerAddress, TlsOptions};
use rand::TryRng as _;
use rand::rngs::SysRng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep, timeout};

use super::control::run_command;
use super::error::Error;
use super::supervisor::{Run, Supervisor};
use super::tls::Tls;

/// The options of a mongod.
#[derive(Clone, Debug)]
pub struct Options {
    /// The port on which mongod listens; 0 means any free port.
    pub port: u16,
    /// The address on which mongod listens. If it is unspecified (`0.0.0.0` or `::`), clients
    /// connect over loopback.
    pub bind_ip: IpAddr,
    /// The name of the replica set to which mongod belongs. The caller must initiate the set.
    pub replica_set: Option<String>,
    /// True if clients must authenticate. Until the first user exists, clients on loopback may
    /// create this user without a login.
    pub auth: bool,
    /// The key with which members of a set authenticate to each other. With `auth` and
    /// `replica_set` but without a key, mongod gets a generated key. A set with several members
    /// needs the same key for all of them.
    pub cluster_key: Option<ClusterKey>,
    /// Certificates for TLS. If set, mongod accepts only TLS connections.
    pub tls: Option<Tls>,
    /// Names and values for `--setParameter`, such as `enableTestCommands` and `1`.
    pub parameters: Vec<(String, String)>,
    /// True if mongod also listens on a Unix domain socket in its data directory.
    pub unix_socket: bool,
    /// Size of WiredTiger's cache in GiB. mongod accepts no value below 0.25.
    pub cache_gb: f64,
    /// Further command-line arguments of mongod.
    pub arguments: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 0,
            bind_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            replica_set: None,
            auth: false,
            cluster_key: None,
            tls: None,
            parameters: Vec::new(),
            unix_socket: false,
            cache_gb: 0.25,
            arguments: Vec::new(),
        }
    }
}

/// The secret that the members of a replica set share.
#[derive(Clone)]
pub struct ClusterKey(String);

impl ClusterKey {
    /// Generates a random key.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = [0; CLUSTER_KEY_BYTES];
        SysRng.try_fill_bytes(&mut bytes).map_err(Error::Entropy)?;
        Ok(Self(STANDARD.encode(bytes)))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(hidden)")
    }
}

/// The guard of a running mongod and of its directory.
///
/// Dropping the guard kills the process, waits until the process has ended and removes its data.
/// This blocks the thread for some milliseconds. The guard may be dropped on any runtime.
#[derive(Debug)]
#[must_use = "dropping it kills the mongod"]
pub struct Mongod {
    program: PathBuf,
    options: Options,
    port: u16,
    /// Offset in the log file at which this run begins. Each run appends to the file.
    log_start_bytes: u64,
    // Fields are dropped in the order of their declaration. `supervisor` is declared before
    // `directory`, because mongod must end before its directory is removed.
    supervisor: Supervisor,
    directory: Directory,
}

impl Mongod {
    /// Starts `program` and waits until it replies to a `ping`.
    pub async fn start(program: &Path, options: Options) -> Result<Self, Error> {
        let mut attempts_left = PORT_ATTEMPTS;
        loop {
            attempts_left -= 1;
            let port = match options.port {
                0 => free_port(options.bind_ip).map_err(Error::NoPort)?,
                port => port,
            };
            let result = Self::start_at(program, options.clone(), port).await;
            // After `free_port` has found a port, another process may take it before mongod does.
            let port_was_taken = match &result {
                Err(Error::Ended { status, log }) => match *status {
                    Some(NET_ERROR) => true,
                    Some(ABORTED) => log.contains(LISTENER_FAILED),
                    _ => false,
                },
                _ => false,
            };
            if !port_was_taken || options.port != 0 || attempts_left == 0 {
                return result;
            }
        }
    }

    /// The address at which clients on this machine reach mongod.
    pub fn address(&self) -> SocketAddr {
        let ip = match self.options.bind_ip {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        SocketAddr::new(ip, self.port)
    }

    /// The port on which mongod listens. It stays the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The options with which mongod was started.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The id of the process; `None` if the process has not started yet or has ended.
    pub fn pid(&self) -> Option<Pid> {
        match self.supervisor.run() {
            Run::Running(pid) => Some(pid),
            Run::Starting | Run::Ended(_) => None,
        }
    }

    /// The private directory with mongod's data, key and log.
    pub fn data_dir(&self) -> &Path {
        &self.directory.path
    }

    /// The path of the Unix domain socket; `None` unless [`Options::unix_socket`] is set.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        let name = format!("mongodb-{}.sock", self.port);
        self.options.unix_socket.then(|| self.data_dir().join(name))
    }

    /// The path of the log, which contains all runs since [`Mongod::start`]. Since MongoDB 4.4, it
    /// has one JSON document per line.
    pub(crate) fn log_path(&self) -> PathBuf {
        self.data_dir().join("mongod.log")
    }

    /// Creates a client of the driver. The client connects only to this mongod, even if mongod is a
    /// member of a set. The driver refuses servers before 4.4. The client uses the runtime that
    /// called this function, and stops working when this runtime ends.
    pub fn direct_client(&self, credential: Option<Credential>) -> Result<Client, Error> {
        let address = self.address();
        let mut options = ClientOptions::default();
        options.hosts = vec![ServerAddress::Tcp {
            host: address.ip().to_string(),
            port: Some(address.port()),
        }];
        options.direct_connection = Some(true);
        options.app_name = Some("seawall-mongod".to_owned());
        options.server_selection_timeout = Some(SELECTION_TIMEOUT);
        options.credential = credential;
        if let Some(tls) = &self.options.tls {
            let mut of_driver = TlsOptions::builder()
                .ca_file_path(tls.ca_file.clone())
                .build();
            of_driver.cert_key_file_path.clone_from(&tls.client_file);
            options.tls = Some(of_driver.into());
        }
        Ok(Client::with_options(options)?)
    }

    /// Suspends the process (`SIGSTOP`): its connections stay open, but it does not reply.
    pub fn stop_process(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)
    }

    /// Resumes a suspended process (`SIGCONT`).
    pub fn continue_process(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// Kills the process and waits until it has ended. The data is kept.
    pub async fn kill(&self) -> Result<(), Error> {
        self.end(Signal::KILL).await
    }

    /// Requests a clean shutdown (`SIGTERM`) and waits until the process has ended. The data is
    /// kept.
    pub async fn terminate(&self) -> Result<(), Error> {
        self.end(Signal::TERM).await
    }

    /// Starts mongod again with the same data and port. If mongod still runs, it is killed first.
    pub async fn restart(&mut self) -> Result<(), Error> {
        if self.pid().is_some() {
            self.kill().await?;
        }
        self.log_start_bytes = fs::metadata(self.log_path()).map_or(0, |log| log.len());
        let arguments = arguments(&self.options, self.port, self.data_dir());
        let next = Supervisor::spawn(self.data_dir(), &self.program, arguments)?;
        // The shell of `next` removes the directory when it ends, so the shell of the previous run
        // must not remove it.
        self.supervisor.leave_directory();
        self.supervisor = next;
        self.ready().await
    }

    /// Restarts mongod with one more argument, which later restarts keep.
    pub async fn restart_with(&mut self, argument: &str) -> Result<(), Error> {
        self.options.arguments.push(argument.into());
        self.restart().await
    }

    async fn start_at(program: &Path, mut options: Options, port: u16) -> Result<Self, Error> {
        let directory = Directory::create(&std::env::temp_dir(), "seawall-mongod-")?;
        if options.auth && options.replica_set.is_some() && options.cluster_key.is_none() {
            options.cluster_key = Some(ClusterKey::generate()?);
        }
        if let Some(key) = &options.cluster_key {
            let path = key_path(&directory.path);
            let mut file = OpenOptions::new();
            let file = file.write(true).create_new(true).mode(0o600).open(&path);
            file.and_then(|mut file| file.write_all(key.0.as_bytes()))
                .map_err(Error::file(path))?;
        }
        let arguments = arguments(&options, port, &directory.path);
        let mongod = Self {
            program: program.to_owned(),
            port,
            log_start_bytes: 0,
            supervisor: Supervisor::spawn(&directory.path, program, arguments)?,
            directory,
            options,
        };
        mongod.ready().await?;
        Ok(mongod)
    }

    /// Runs one command over a new connection without a login. A reply with `ok: 0` is an error.
    pub(super) async fn run_command(&self, db: &str, command: Document) -> Result<Document, Error> {
        run_command(self.address(), self.options().tls.as_ref(), db, command).await
    }

    /// Waits until mongod listens and replies.
    ///
    /// Connects only after mongod has written to its log that it listens. An earlier connection
    /// might reach another process that uses the same port, if mongod failed to bind the port.
    async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + START_LIMIT;
        while !self.is_listening() {
            self.pause_until(deadline).await?;
        }
        while let Err(error) = self.run_command("admin", doc! { "ping": 1 }).await {
            tracing::debug!(address = %self.address(), %error, "mongod does not reply yet");
            self.pause_until(deadline).await?;
        }
        Ok(())
    }

    /// Pauses before the caller checks again whether mongod is ready. Fails if mongod has ended, or
    /// if the deadline has passed.
    async fn pause_until(&self, deadline: Instant) -> Result<(), Error> {
        if let Run::Ended(status) = self.supervisor.run() {
            let log = self.last_log_lines();
            return Err(Error::Ended { status, log });
        }
        if Instant::now() >= deadline {
            return Err(Error::NotReady {
                address: self.address(),
                limit: START_LIMIT,
                log: self.last_log_lines(),
            });
        }
        sleep(POLL_INTERVAL).await;
        Ok(())
    }

    fn is_listening(&self) -> bool {
        let log = read_from(&self.log_path(), self.log_start_bytes);
        log.is_ok_and(|log| log.contains(LISTENING))
    }

    /// Returns the last lines of a text that consists of the log of this run, and then the standard
    /// output and error of all runs.
    fn last_log_lines(&self) -> String {
        let mut text = read_from(&self.log_path(), self.log_start_bytes).unwrap_or_default();
        let output = read_from(&self.data_dir().join("output"), 0).unwrap_or_default();
        text.push_str(&output);
        let lines: Vec<&str> = text.lines().collect();
        let (_, last) = lines.split_at(lines.len().saturating_sub(MAX_LOG_LINES));
        last.join("\n")
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let pid = self.pid().ok_or(Error::NotRunning)?;
        kill_process(pid, signal).map_err(|errno| Error::Signal(errno.into()))
    }

    async fn end(&self, signal: Signal) -> Result<(), Error> {
        self.signal(signal)?;
        match timeout(END_LIMIT, self.supervisor.ended()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::StillRunning { limit: END_LIMIT }),
        }
    }
}

fn arguments(options: &Options, port: u16, directory: &Path) -> Vec<OsString> {
    let mut arguments = Vec::new();
    let mut option = |name: &str, value: OsString| {
        arguments.extend([OsString::from(name), value]);
    };
    option("--dbpath", directory.into());
    option("--logpath", directory.join("mongod.log").into());
    option("--port", port.to_string().into());
    option("--bind_ip", options.bind_ip.to_string().into());
    option(
        "--wiredTigerCacheSizeGB",
        options.cache_gb.to_string().into(),
    );
    if let Some(set) = &options.replica_set {
        option("--replSet", set.into());
    }
    if options.cluster_key.is_some() {
        option("--keyFile", key_path(directory).into());
    }
    if let Some(tls) = &options.tls {
        option("--tlsMode", "requireTLS".into());
        option(
            "--tlsCertificateKeyFile",
            tls.certificate_key_file.clone().into(),
        );
        option("--tlsCAFile", tls.ca_file.clone().into());
    }
    if options.unix_socket {
        option("--unixSocketPrefix", directory.into());
    }
    for (name, value) in &options.parameters {
        option("--setParameter", format!("{name}={value}").into());
    }
    // mongod's collection of diagnostic data helps with long-running servers. For a private mongod,
    // it only costs CPU time and disk space, so it is off unless the caller sets the parameter.
    if options
        .parameters
        .iter()
        .all(|(name, _)| name != DIAGNOSTICS)
    {
        option("--setParameter", format!("{DIAGNOSTICS}=false").into());
    }
    let tls = options.tls.as_ref();
    let flags = [
        ("--logappend", true),
        ("--quiet", true),
        ("--auth", options.auth),
        ("--ipv6", options.bind_ip.is_ipv6()),
        ("--nounixsocket", !options.unix_socket),
        (
            "--tlsAllowConnectionsWithoutCertificates",
            tls.is_some_and(|tls| tls.client_file.is_none()),
        ),
    ];
    arguments.extend(
        flags
            .iter()
            .filter(|(_, is_set)| *is_set)
            .map(|(flag, _)| flag.into()),
    );
    arguments.extend(options.arguments.iter().cloned());
    arguments
}

fn key_path(directory: &Path) -> PathBuf {
    directory.join("cluster-key")
}

/// Finds a port that is free at this moment.
fn free_port(ip: IpAddr) -> io::Result<u16> {
    Ok(TcpListener::bind((ip, 0))?.local_addr()?.port())
}

/// Reads at most [`MAX_LOG_BYTES`] of a file, beginning at `start_bytes`. Invalid UTF-8 is
/// replaced.
fn read_from(path: &Path, start_bytes: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(start_bytes))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A name of `prefix` and 16 random hexadecimal digits.
pub(super) fn random_name(prefix: &str) -> Result<String, Error> {
    let mut bytes = [0; 8];
    SysRng.try_fill_bytes(&mut bytes).map_err(Error::Entropy)?;
    let mut name = prefix.to_owned();
    for byte in bytes {
        write!(name, "{byte:02x}").expect("writing to a String cannot fail");
    }
    Ok(name)
}

/// A private temporary directory. It is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
}

impl Directory {
    /// Creates a directory in `parent`. Its name is `prefix` and random digits.
    pub(super) fn create(parent: &Path, prefix: &str) -> Result<Self, Error> {
        let path = parent.join(random_name(prefix)?);
        // If the directory exists, `create` fails. The directory must not be used, because another
        // user could have created it and could then read the files in it.
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::file(&path))?;
        Ok(Self { path })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // An error is ignored. The supervisor's shell has usually removed the directory of a mongod
        // already. If the directory of a download remains, a later download removes it
        // (`remove_abandoned`).
        drop(fs::remove_dir_all(&self.path));
    }
}

/// A part of the text that mongod logs when it accepts connections. The first letter is omitted,
/// because it is lower case before 4.4 and upper case since 4.4.
const LISTENING: &str = "aiting for connections";
const DIAGNOSTICS: &str = "diagnosticDataCollectionEnabled";
/// mongod's exit code if it cannot bind its port.
const NET_ERROR: i32 = 48;
/// mongod's exit code if it aborts. It aborts if another process took its port between mongod's
/// calls of `bind` and `listen`; the stack trace then contains [`LISTENER_FAILED`].
const ABORTED: i32 = 134;
const LISTENER_FAILED: &str = "_runListener";
const PORT_ATTEMPTS: u32 = 5;
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for mongod to end. A primary takes up to 15 s to hand over its role before it ends.
const END_LIMIT: Duration = Duration::from_secs(60);
const SELECTION_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);
const CLUSTER_KEY_BYTES: usize = 48;
/// Maximum number of bytes of a log that are read into memory. During its start, mongod writes
/// about 60 KB, or more with a higher log level.
const MAX_LOG_BYTES: u64 = 4 * 1024 * 1024;
const MAX_LOG_LINES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(options: &Options) -> String {
        let arguments = arguments(options, 27017, Path::new("/data"));
        let arguments = arguments.iter().map(|argument| argument.to_str().unwrap());
        arguments.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn default_options_give_arguments_for_a_quiet_server_on_loopback() {
        assert_eq!(
            text(&Options::default()),
            "--dbpath /data --logpath /data/mongod.log --port 27017 --bind_ip 127.0.0.1 \
             --wiredTigerCacheSizeGB 0.25 --setParameter diagnosticDataCollectionEnabled=false \
             --logappend --quiet --nounixsocket"
        );
    }

    #[test]
    fn each_option_becomes_a_command_line_argument() {
        let arguments = text(&Options {
            bind_ip: IpAddr::V6(Ipv6Addr::LOCALHOST),
            replica_set: Some("rs".to_owned()),
            auth: true,
            cluster_key: Some(ClusterKey("key".to_owned())),
            tls: Some(Tls {
                certificate_key_file: "server.pem".into(),
                ca_file: "ca.pem".into(),
                client_file: None,
            }),
            parameters: vec![(
                "diagnosticDataCollectionEnabled".to_owned(),
                "true".to_owned(),
            )],
            unix_socket: true,
            arguments: vec!["--slowms=0".into()],
            ..Options::default()
        });
        for part in [
            "--bind_ip ::1",
            "--ipv6",
            "--replSet rs",
            "--auth",
            "--keyFile /data/cluster-key",
            "--tlsMode requireTLS --tlsCertificateKeyFile server.pem --tlsCAFile ca.pem",
            "--tlsAllowConnectionsWithoutCertificates",
            "--setParameter diagnosticDataCollectionEnabled=true",
            "--unixSocketPrefix /data",
            "--slowms=0",
        ] {
            assert!(arguments.contains(part), "{part} is not in {arguments}");
        }
        assert!(!arguments.contains("=false"));
        assert!(!arguments.contains("--nounixsocket"));
    }

    #[test]
    fn mongod_requires_client_certificates_only_if_the_options_have_a_client_certificate() {
        let arguments = |client_file| {
            text(&Options {
                tls: Some(Tls {
                    certificate_key_file: "server.pem".into(),
                    ca_file: "ca.pem".into(),
                    client_file,
                }),
                ..Options::default()
            })
        };
        let flag = "--tlsAllowConnectionsWithoutCertificates";
        assert!(arguments(None).contains(flag));
        assert!(!arguments(Some("client.pem".into())).contains(flag));
    }

    #[test]
    fn debug_output_hides_the_cluster_key() {
        let key = ClusterKey::generate().unwrap();
        assert!(key.0.len() >= 6);
        assert!(!format!("{key:?}").contains(&key.0));
    }

    #[tokio::test]
    async fn error_for_a_program_that_is_not_mongod_contains_the_output_of_the_program() {
        let error = Mongod::start(Path::new("/bin/echo"), Options::default())
            .await
            .unwrap_err();
        let Error::Ended { status, log } = error else {
            panic!("{error:?}");
        };
        assert_eq!(status, Some(0));
        assert!(log.contains("--dbpath"), "{log}");
    }
}
