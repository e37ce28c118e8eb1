//! The deployment, and the connections to its servers.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::connection_string;
use crate::declare::{keys, section};
use crate::file::ReadFile;
use crate::kinds::{
    CONNECTIONS, ENTRIES, MAX_CONNECTIONS, MAX_DURATION_MS, MIN_HEARTBEAT_FREQUENCY_MS, TIME_OR_0,
    TIMEOUT,
};
use crate::read::Part;
use crate::schema::KeyKind;
use crate::secret::Secret;
use crate::words::{Concurrency, Mode};

section! {
    /// The servers behind Seawall.
    "deployment" => Deployment;

    /// Pooled clients share server connections; each relayed client has its own.
    mode: Mode = key("deployment.mode",
        Mode::KIND, Restart, default "pooled");
    /// In relay mode, connect each client to the address that it used before the kernel redirected
    /// it to Seawall (Linux, SO_ORIGINAL_DST).
    original_destination: bool = key("deployment.original_destination",
        KeyKind::Boolean, Restart, default false);
    // Off by default, because Seawall cannot observe or limit encrypted traffic.
    /// In relay mode, also relay connections that clients encrypt with TLS; Seawall cannot observe
    /// or limit their traffic.
    relay_encrypted: bool = key("deployment.relay_encrypted",
        KeyKind::Boolean, Restart, default false);
    // Relays need a separate port of the server: at this port, the server requires the header from
    // every connection. Seawall's monitoring connections send no header, so they use the usual
    // port. The key is allowed in pooled mode, because `auth.other_mechanisms` causes relays there.
    /// Connect relays to this port of a server, and begin with a header of the PROXY protocol,
    /// version 2, which contains the client's address; 0 for the server's usual port and no header.
    relay_proxy_port: Option<u16> = key("deployment.relay_proxy_port",
        KeyKind::Integer { min: 0, max: 65535 }, Restart, default 0);
    // Off by default, because an operation that a driver does not retry fails if its connection is
    // closed just before the driver sends it.
    /// After a change of the TLS files for servers, close relayed clients whose server connection
    /// still uses the previous files. Seawall closes a client when it has been idle for a second,
    /// and at most 100 clients per second.
    relay_close_outdated: bool = key("deployment.relay_close_outdated",
        KeyKind::Boolean, Live, default false);
    /// How long an operation waits for a suitable server; elections take 10 s or more.
    server_selection_timeout: Duration = key("deployment.server_selection_timeout_ms",
        TIMEOUT, Live, default 30000, unit "ms");
    /// Add the client's metadata to each operation, so that servers' logs name the application and
    /// not the proxy.
    name_applications: bool = key("deployment.name_applications",
        KeyKind::Boolean, Live, default true);
    /// Repeat a failed operation once if that is safe, as a mongos does. If this is false, errors
    /// reach clients unchanged, and if a server closes a connection during an operation, Seawall
    /// also closes the client's connection.
    repeat: bool = key("deployment.repeat",
        KeyKind::Boolean, Live, default true);
    /// Width of the latency window of server selection: how much longer the round-trip time of a
    /// selected server may be than the round-trip time of the fastest suitable server.
    local_threshold: Duration = key("deployment.local_threshold_ms",
        TIME_OR_0, Live, default 15, unit "ms");
    /// Time between two checks of a server.
    heartbeat_frequency: Duration = key("deployment.heartbeat_frequency_ms",
        KeyKind::Integer { min: MIN_HEARTBEAT_FREQUENCY_MS, max: MAX_DURATION_MS }, Restart,
        default 10000, unit "ms");
    /// Maximum time to establish a connection to a server, and maximum time until a server replies
    /// to a probe.
    connect_timeout: Duration = key("deployment.connect_timeout_ms",
        TIMEOUT, Live, default 10000, unit "ms");
    {
        /// The connection string. Only its scheme has been checked.
        uri: Secret = connection_string::read;
        /// The options of `[deployment.tls]`; `None` if all of them have their defaults.
        tls: Option<ServerTls> = server_tls;
    }
}

section! {
    /// Further options of TLS to servers. The connection string switches TLS on (`tls=true`). Files
    /// in this section replace the files in the connection string.
    optional "deployment.tls" => ServerTls;

    /// PEM file with the certificate authorities of servers, instead of `tlsCAFile`. Without both,
    /// Seawall trusts the authorities of the operating system.
    ca_file: Option<ReadFile> = key("deployment.tls.ca_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/server-ca.pem");
    /// PEM file with Seawall's own certificate and its private key, for servers that require
    /// certificates. It replaces the option `tlsCertificateKeyFile` of the connection string.
    certificate_key_file: Option<ReadFile> = key("deployment.tls.certificate_key_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/client.pem");
    /// PEM files with the certificate revocation lists of the servers' authorities, separated by
    /// commas. The official driver, which only monitors servers, does not check these lists.
    crl_files: Option<Vec<ReadFile>> = key("deployment.tls.crl_file",
        KeyKind::ReadableFiles, Live, example "/etc/seawall/server-crl.pem");
    /// Insecure: accept a server's certificate for any host name. Its authority is still verified
    /// before an operation or a login. The official driver, which only monitors servers, then
    /// accepts any certificate. Not possible if the connection string has `authMechanism=PLAIN`.
    allow_invalid_hostnames: bool = key("deployment.tls.allow_invalid_hostnames",
        KeyKind::Boolean, Live, default false);
}

fn server_tls(deployment: &mut Part<'_>) -> Option<Option<ServerTls>> {
    Some(deployment.section("tls").filter(ServerTls::has_effect))
}

impl ServerTls {
    /// True if an option differs from its default.
    fn has_effect(&self) -> bool {
        let has_file = self.ca_file.is_some() || self.certificate_key_file.is_some();
        has_file || self.crl_files.is_some() || self.allow_invalid_hostnames
    }
}

section! {
    /// Connections to servers.
    "pool" => Pool;

    /// Maximum number of connections of one user to one server. There are also reserved
    /// connections: an eighth of this number, at least 1 and at most 8. They are for commits and
    /// other commands that operations may wait for, and for commands of Seawall itself.
    max_pool_size: NonZeroUsize = key("pool.max_pool_size",
        CONNECTIONS, Live, default 100, unit "connections");
    // The limit protects the server, which needs a thread and about 1 MiB for each connection.
    /// Maximum number of connections of all users to one server. An eighth of them, at most 8, are
    /// reserved for commits and other commands that operations may wait for. If the maximum is
    /// below 8, no connections are reserved.
    max_server_connections: NonZeroUsize = key("pool.max_server_connections",
        CONNECTIONS, Live, default 500, unit "connections");
    /// Number of connections of one user to one server that are kept even if they are idle.
    min_pool_size: usize = key("pool.min_pool_size",
        KeyKind::Integer { min: 0, max: MAX_CONNECTIONS }, Live, default 0, unit "connections");
    // The limit protects the server from a storm of logins, whose cryptography is expensive.
    /// Maximum number of connections of one user to one server that are being established at a
    /// time.
    max_connecting: NonZeroUsize = key("pool.max_connecting",
        KeyKind::Integer { min: 1, max: 1_000 }, Live, default 2, unit "connections");
    // The limit prevents a burst of logins, which could overload a server that has just recovered.
    /// Maximum number of new connections per second to one server, for all users together; after a
    /// pause, 8 can start at once; 0 for no limit.
    connections_per_second: Option<NonZeroU32> = key("pool.connections_per_second",
        KeyKind::Integer { min: 0, max: 100_000 }, Live,
        default 200, unit "connections a second");
    // If a server runs too many operations at a time, each operation uses more CPU time, so the
    // server completes fewer operations per second.
    /// Maximum number of operations that run on one server at a time; further ones wait. `"auto"`
    /// finds the number by measuring the server's throughput, `"off"` sets no limit.
    concurrency: Concurrency = key("pool.concurrency",
        Concurrency::KIND, Live, default "auto", unit "operations");
    /// Maximum number of operations on one server that do not count toward `pool.concurrency`,
    /// because they run much longer than others. With 0, the maximum is the current limit of
    /// `pool.concurrency`. While no operation completes, one more operation is excluded from
    /// the count every 250 ms, even above this maximum.
    max_exempt_operations: Option<NonZeroU32> = key("pool.max_exempt_operations",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 0, unit "operations");
    // After a peak, closing idle connections frees resources of the servers.
    /// Idle time after which a server connection is closed; 0 for never. In the credential modes
    /// `self` and `users`, Seawall reads the keys of each user with connected clients again after
    /// half of `auth.max_stale_ms`. It reads them over a server connection of this user. So if
    /// `pool.max_idle_time_ms` is longer than half of `auth.max_stale_ms`, this connection usually
    /// stays open.
    max_idle_time: Option<Duration> = key("pool.max_idle_time_ms",
        TIME_OR_0, Live, default 600000, unit "ms");
    // A connection stays with one server and one address. The connection that replaces it can reach
    // a new server or a new address.
    /// Age at which a server connection is closed, as soon as no operation uses it; 0 for never.
    /// Connections are closed up to a fifth earlier, at different ages, so that they are not all
    /// replaced at the same time.
    max_life_time: Option<Duration> = key("pool.max_life_time_ms",
        TIME_OR_0, Live, default 1800000, unit "ms");
    /// How long an operation may wait until Seawall refuses it with an error. An operation can
    /// wait twice: while `limits.max_in_flight_operations` is reached, and then for a connection.
    /// The two waits add up.
    wait_queue_timeout: Duration = key("pool.wait_queue_timeout_ms",
        TIMEOUT, Live, default 10000, unit "ms");
    // The default is above the default of `listen.max_client_connections`. A client has at most one
    // operation at a time, so the operations of all clients can wait.
    /// Maximum number of operations that wait for connections to one server.
    wait_queue_size: NonZeroUsize = key("pool.wait_queue_size",
        ENTRIES, Live, default 20000, unit "operations");
}
