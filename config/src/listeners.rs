//! The listeners. `[listen]` describes a single listener. `[[listeners]]` describes several
//! listeners, each with its own settings.

use std::num::{NonZeroU32, NonZeroUsize};

use ipnet::IpNet;

use crate::address::ListenAddress;
use crate::declare::{keys, section};
use crate::file::ReadFile;
use crate::kinds::{CONNECTIONS, MAX_CONNECTIONS};
use crate::problem::shown_text;
use crate::read::{Part, ReadSection};
use crate::schema::{Key, KeyKind, Section};
use crate::words::{ClientCertificate, Compressor, ProxyProtocol, TlsMode};

section! {
    /// The addresses to which clients connect, with the same settings for all addresses.
    /// `[[listeners]]` gives each listener its own settings.
    "listen" => Listen;

    /// Address to which clients connect, or a list of addresses.
    addresses: Vec<ListenAddress> = key("listen.address",
        KeyKind::Addresses, Restart, default "127.0.0.1:27018");
    // With a common limit of 20,000 descriptors, the default leaves 2,000 for connections to
    // servers, for files and for the admin address.
    /// Maximum number of client connections of all listeners. At this number, Seawall closes a
    /// silent client of the IP address with the most clients. If there is no such client, it
    /// refuses the new client. Each connection needs a file descriptor.
    max_client_connections: NonZeroUsize = key("listen.max_client_connections",
        CONNECTIONS, Live, default 18000, unit "connections");
    // The default is large, so that in a reconnect storm new connections wait in the backlog and
    // are not dropped by the kernel. The kernel may limit the backlog further
    // (`net.core.somaxconn`).
    /// Maximum number of new connections that wait in the kernel until Seawall accepts them. Each
    /// TCP address of the listener has its own maximum.
    backlog: NonZeroU32 = key("listen.backlog",
        KeyKind::Integer { min: 1, max: 65_535 }, Restart, default 4096, unit "connections");
    /// With `accept`, each connection must begin with a header of the PROXY protocol (version 1 or
    /// 2), before the TLS handshake. In this header, a load balancer sends the address of the
    /// client. A unix socket needs a listener of its own, without headers.
    proxy_protocol: ProxyProtocol = key("listen.proxy_protocol",
        ProxyProtocol::KIND, Restart, default "off");
    /// IP addresses or ranges (such as 10.0.0.0/8) of the load balancers, separated by commas;
    /// connections from all other addresses are closed. Required with `proxy_protocol = "accept"`.
    proxy_networks: Vec<IpNet> = key("listen.proxy_networks",
        KeyKind::Text, Restart, example "10.0.0.0/8,192.0.2.7");
    // A mongod has the same default (`networkMessageCompressors`), in the same order.
    /// Compressors that clients may use, separated by commas, or `disabled` for none; connections
    /// to servers use the compressors in the connection string.
    compressors: Vec<Compressor> = key("listen.compressors",
        KeyKind::Text, Restart, default "snappy,zstd,zlib");
    {
        /// The TLS settings for clients; `None` if clients connect without TLS.
        tls: Option<Tls> = tls;
    }
}

section! {
    /// TLS for clients. Without this section, clients connect without TLS.
    optional "listen.tls" => Tls;

    /// PEM file with the certificate chain, beginning with this host's certificate; required for
    /// TLS. Several files, separated by commas, give several certificates: a client gets the first
    /// certificate that is valid for the requested host name and has a key that the client
    /// supports.
    certificate_files: Vec<ReadFile> = key("listen.tls.certificate_file",
        KeyKind::ReadableFiles, Live, example "/etc/seawall/certificate.pem");
    /// PEM file with the certificate's private key; required for TLS. For several certificates,
    /// list their key files in the same order, separated by commas.
    key_files: Vec<ReadFile> = key("listen.tls.key_file",
        KeyKind::ReadableFiles, Live, example "/etc/seawall/key.pem");
    // `prefer` also accepts clients that are not configured for TLS yet, as a server with the mode
    // `preferTLS` does.
    /// With `require`, clients must use TLS; with `prefer`, clients may also connect without TLS.
    mode: TlsMode = key("listen.tls.mode",
        TlsMode::KIND, Live, default "require");
    /// With `none`, Seawall does not request certificates of clients; with `optional`, it verifies
    /// a certificate if the client sends one; with `required`, each client must send a valid
    /// certificate.
    client_certificate: ClientCertificate = key("listen.tls.client_certificate",
        ClientCertificate::KIND, Live, default "none");
    /// PEM files with the certificate authorities of clients, separated by commas; required unless
    /// `client_certificate` is `none`.
    client_ca_files: Option<Vec<ReadFile>> = key("listen.tls.client_ca_file",
        KeyKind::ReadableFiles, Live, example "/etc/seawall/client-ca.pem");
    /// PEM files with the revocation lists of the clients' certificate authorities, separated by
    /// commas.
    client_crl_files: Option<Vec<ReadFile>> = key("listen.tls.client_crl_file",
        KeyKind::ReadableFiles, Live, example "/etc/seawall/client-crl.pem");
    /// At a reload, close the connections of clients whose certificate is in a revocation list, or
    /// whose certificate's authority is no longer trusted.
    close_revoked: bool = key("listen.tls.close_revoked",
        KeyKind::Boolean, Live, default false);
}

/// Reads the section `tls` of a listener or of the admin address.
pub(crate) fn tls(part: &mut Part<'_>) -> Option<Option<Tls>> {
    Some(part.optional_section("tls"))
}

section! {
    /// Listeners with separate settings, instead of the addresses in `[listen]`.
    optional "listeners[]" => Listener;

    /// Name of the listener. A socket of the service manager with this name (`FileDescriptorName`
    /// in systemd) replaces the listener's addresses.
    name: Option<String> = key("listeners[].name",
        KeyKind::Text, Restart, example "public");
    /// Address to which clients connect, or a list of addresses; required in `[[listeners]]`.
    addresses: Vec<ListenAddress> = key("listeners[].address",
        KeyKind::Addresses, Restart, example "0.0.0.0:27018");
    // With this limit, one application's listener cannot use up the connections of the other
    // listeners.
    /// Maximum number of client connections of this listener, with the same rule as
    /// `listen.max_client_connections`, which limits all listeners together. With 0, the listener
    /// has no limit of its own.
    max_client_connections: Option<NonZeroUsize> = key("listeners[].max_client_connections",
        KeyKind::Integer { min: 0, max: MAX_CONNECTIONS }, Live, default 0, unit "connections");
    /// As `listen.backlog`, for this listener.
    backlog: NonZeroU32 = key("listeners[].backlog",
        KeyKind::Integer { min: 1, max: 65_535 }, Restart, default 4096, unit "connections");
    /// As `listen.proxy_protocol`, for this listener.
    proxy_protocol: ProxyProtocol = key("listeners[].proxy_protocol",
        ProxyProtocol::KIND, Restart, default "off");
    /// As `listen.proxy_networks`, for this listener.
    proxy_networks: Vec<IpNet> = key("listeners[].proxy_networks",
        KeyKind::Text, Restart, example "10.0.0.0/8,192.0.2.7");
    /// As `listen.compressors`, for clients of this listener.
    compressors: Vec<Compressor> = key("listeners[].compressors",
        KeyKind::Text, Restart, default "snappy,zstd,zlib");
    {
        /// The path of the listener's section: `listen`, or for example `listeners[1]`.
        path: String = path;
        /// TLS of the listener; `None` if clients connect without TLS.
        tls: Option<Tls> = tls;
    }
}

fn path(listener: &Part<'_>) -> Option<String> {
    Some(listener.path.shown.clone())
}

/// The section `tls` of each listener. It has the same keys as `[listen.tls]`.
pub(crate) fn tls_section() -> Section {
    let about = "TLS for clients of this listener. Without this section, they connect without TLS.";
    Tls::SECTION.at("listeners[].tls", about, |_| true)
}

impl Listener {
    /// Creates the listener that `[listen]` describes. It has no connection limit of its own,
    /// because the limit for all listeners together already applies to it.
    pub(crate) fn only(listen: &Listen) -> Self {
        let Listen {
            addresses,
            max_client_connections: _,
            backlog,
            proxy_protocol,
            proxy_networks,
            compressors,
            tls,
        } = listen.clone();
        Self {
            name: None,
            addresses,
            max_client_connections: None,
            backlog,
            proxy_protocol,
            proxy_networks,
            compressors,
            path: "listen".to_owned(),
            tls,
        }
    }
}

/// True for a key of `[listen]` that has no effect if there are `[[listeners]]`.
pub(crate) fn is_of_only_listener(key: &Key) -> bool {
    key.path.starts_with("listen.") && key.path != LIMIT_OF_ALL
}

/// Reads the list of listeners. The result does not contain listeners that cannot be read. It
/// contains listeners with equal names, although these names are reported as problems.
pub(crate) fn read(file: &mut Part<'_>) -> Vec<Listener> {
    let count = file.tables(LISTENERS).len();
    if count > 0 {
        refuse_keys_of_listen(file);
    }
    if count > MAX_LISTENERS {
        let allowed = format!("must be at most {MAX_LISTENERS} listeners");
        file.add(LISTENERS, &format!("({count} listeners)"), &allowed);
    }
    let read = |index| Listener::read(&mut file.element(LISTENERS, index));
    let listeners: Vec<Listener> = (0..count).filter_map(read).collect();
    no_name_twice(&listeners, file);
    listeners
}

/// Reports the keys of `[listen]` that have no effect because there are `[[listeners]]`. It does
/// not matter whether the file, the environment or the command line sets these keys.
fn refuse_keys_of_listen(file: &mut Part<'_>) {
    let listen = file.below("listen");
    let keys = Listen::SECTION.keys.iter();
    let keys = keys.filter(|key| is_of_only_listener(key)).map(Key::name);
    let given = keys
        .chain(["tls"])
        .filter(|name| listen.given(name).is_some());
    let given: Vec<&str> = given.collect();
    for name in given {
        let path = format!("listen.{name}");
        file.add(
            &path,
            "",
            "must be absent, because there are [[listeners]]; set it for each of them",
        );
    }
}

fn no_name_twice(listeners: &[Listener], file: &mut Part<'_>) {
    for (index, listener) in listeners.iter().enumerate() {
        let Some(name) = &listener.name else {
            continue;
        };
        let mut earlier = listeners.iter().take(index);
        if let Some(first) = earlier.find(|other| other.name.as_ref() == Some(name)) {
            let allowed = format!("must be unique; {} has the same name", first.path);
            file.add(
                &format!("{}.name", listener.path),
                &shown_text(name),
                &allowed,
            );
        }
    }
}

/// The name of the list of listeners.
pub(crate) const LISTENERS: &str = "listeners";

/// The only key of `[listen]` that applies to all listeners.
const LIMIT_OF_ALL: &str = "listen.max_client_connections";

/// Maximum number of listeners. Each listener needs file descriptors, which Seawall reserves when
/// it starts.
const MAX_LISTENERS: usize = 32;
