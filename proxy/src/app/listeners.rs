//! The listeners: binds their addresses or takes over bound sockets, and starts to accept clients.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
};

use seawall_config as config;
use tokio::runtime::Handle;

use super::{
    App, StartError, convert,
    tls::{RunningTls, section_of},
};
use crate::{
    client::{Newcomer, Peer, Shared},
    limits::ListenerPermits,
    listener::{
        self, Acceptor, Address, Inherited, InheritedSocket, Listener, ProxyProtocol, WaitingPlaces,
    },
};
use seawall_wire::Compressor;

/// A listener of a running Seawall.
pub(super) struct RunningListener {
    pub(super) tls: RunningTls,
    proxy_protocol: Option<ProxyProtocol>,
    permits: Option<ListenerPermits>,
    compressors: Arc<[Compressor]>,
}

/// Prepares all listeners, before their addresses are bound.
///
/// # Errors
/// If TLS cannot be set up.
pub(super) fn start(settings: &config::Settings) -> Result<Vec<RunningListener>, StartError> {
    let places = WaitingPlaces::default();
    // If the listener of `[listen]` is the only one, it needs no limit of its own: the limit of all
    // clients has the same effect.
    let has_limits = !settings.listeners.is_empty();
    let listeners = settings.listeners();
    let listeners = listeners
        .iter()
        .map(|listener| RunningListener::start(listener, has_limits, &places));
    listeners.collect()
}

impl RunningListener {
    fn start(
        listener: &config::Listener,
        has_limit: bool,
        places: &WaitingPlaces,
    ) -> Result<Self, StartError> {
        let compressors: Vec<_> = listener.compressors.iter().map(|of| of.name()).collect();
        Ok(Self {
            tls: RunningTls::start(section_of(listener), listener.tls.as_ref())?,
            proxy_protocol: match listener.proxy_protocol {
                config::ProxyProtocol::Off => None,
                config::ProxyProtocol::Accept => {
                    Some(ProxyProtocol::new(&listener.proxy_networks, places))
                }
            },
            permits: has_limit.then(|| ListenerPermits::new(listener.max_client_connections)),
            compressors: convert::named(&compressors).into(),
        })
    }

    /// Applies a changed maximum number of clients.
    pub(super) fn configure(&self, listener: &config::Listener) {
        if let Some(permits) = &self.permits {
            permits.set_max(listener.max_client_connections);
        }
    }

    /// The permits for a new client of this listener; `None` if a limit refuses the client.
    pub(super) fn newcomer(&self, shared: &Shared, peer: &Peer) -> Option<Newcomer> {
        listener::newcomer(shared, peer, self.permits.as_ref(), &self.compressors)
    }
}

impl App {
    /// Starts to accept the clients of each listener on its sockets.
    pub(super) fn accept_clients(&mut self, bound: Vec<Vec<Listener>>, data_plane: &Handle) {
        for (running, sockets) in self.listeners.iter().zip(bound) {
            let handshake_log = Arc::default();
            for socket in sockets {
                self.client_addresses.push(socket.local_address());
                let acceptor = Acceptor {
                    shared: Arc::clone(&self.shared),
                    tls: running.tls.subscribe(),
                    handshake_log: Arc::clone(&handshake_log),
                    proxy_protocol: running.proxy_protocol.clone(),
                    permits: running.permits.clone(),
                    compressors: Arc::clone(&running.compressors),
                    stop: self.stop_accepting.clone(),
                    tracker: self.tracker.clone(),
                };
                data_plane.spawn(listener::accept(socket, acceptor));
            }
        }
    }
}

/// Binds the addresses of each listener, or takes over its inherited sockets.
///
/// # Errors
/// If an address cannot be bound, a socket belongs to no listener, or a unix socket belongs to a
/// listener whose connections must begin with a header of the PROXY protocol.
pub(super) async fn bind(
    listeners: &[config::Listener],
    inherited: Vec<Inherited>,
    runtime: &Handle,
) -> Result<Vec<Vec<Listener>>, StartError> {
    let inherited = inherited.into_iter().map(|of| (of.name, of.socket));
    let inherited = by_listener(listeners, inherited.collect())
        .map_err(|name| StartError::SocketName { name })?;
    let mut bound = Vec::new();
    for (listener, sockets) in listeners.iter().zip(inherited) {
        let is_unix = |socket: &InheritedSocket| matches!(socket, InheritedSocket::Unix(_));
        let is_proxied = listener.proxy_protocol == config::ProxyProtocol::Accept;
        if is_proxied && sockets.iter().any(is_unix) {
            let section = listener.path.clone();
            return Err(StartError::ProxiedUnixSocket { section });
        }
        bound.push(match sockets.is_empty() {
            true => bind_addresses(listener, listeners, runtime).await?,
            false => adopt(sockets, runtime)?,
        });
    }
    Ok(bound)
}

/// Assigns named sockets to listeners. A single listener gets all sockets. If there are several
/// listeners, each listener gets the sockets with its own name.
///
/// # Errors
/// The name of a socket that belongs to no listener.
fn by_listener<T>(
    listeners: &[config::Listener],
    sockets: Vec<(String, T)>,
) -> Result<Vec<Vec<T>>, String> {
    let mut assigned: Vec<Vec<T>> = listeners.iter().map(|_| Vec::new()).collect();
    for (name, socket) in sockets {
        let has_name = |of: &config::Listener| of.name.as_ref() == Some(&name);
        let place = match listeners {
            [_] => Some(0),
            _ => listeners.iter().position(has_name),
        };
        match place.and_then(|place| assigned.get_mut(place)) {
            Some(own) => own.push(socket),
            None => return Err(name),
        }
    }
    Ok(assigned)
}

/// Binds the configured addresses of a listener. `all` contains all listeners.
async fn bind_addresses(
    listener: &config::Listener,
    all: &[config::Listener],
    runtime: &Handle,
) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    for address in &listener.addresses {
        let name = address.to_string();
        let only_ipv6 = has_ipv4_beside(address, all);
        let address = match address {
            config::ListenAddress::Tcp(text) => Address::Tcp(text.clone()),
            config::ListenAddress::Unix(path) => Address::Unix(path.clone()),
        };
        let backlog = listener.backlog.get();
        let bound =
            runtime.spawn(async move { Listener::bind(&address, backlog, only_ipv6).await });
        let bound = bound
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        let failed = |source| StartError::Bind {
            address: name,
            source,
        };
        listeners.extend(bound.map_err(failed)?);
    }
    Ok(listeners)
}

/// True if `address` is `[::]` and a listener has an IPv4 address with the same port. By default,
/// Linux binds `[::]` for IPv4 too, and then cannot bind the IPv4 address.
fn has_ipv4_beside(address: &config::ListenAddress, all: &[config::Listener]) -> bool {
    let socket = |address: &config::ListenAddress| match address {
        config::ListenAddress::Tcp(text) => text.parse::<SocketAddr>().ok(),
        config::ListenAddress::Unix(_) => None,
    };
    // With port 0, the system chooses another port for each address.
    let is_for_all = |own: &SocketAddr| own.ip() == Ipv6Addr::UNSPECIFIED && own.port() != 0;
    let Some(own) = socket(address).filter(is_for_all) else {
        return false;
    };
    let mut others = all.iter().flat_map(|listener| &listener.addresses);
    others.any(|other| {
        socket(other).is_some_and(|other| other.is_ipv4() && other.port() == own.port())
    })
}

/// Uses sockets that another process has bound.
fn adopt(sockets: Vec<InheritedSocket>, runtime: &Handle) -> Result<Vec<Listener>, StartError> {
    let _runtime = runtime.enter();
    let adopted = sockets.into_iter().map(Listener::adopt);
    let adopted = adopted.collect::<io::Result<_>>();
    adopted.map_err(|source| StartError::Bind {
        address: "a socket of the service manager".to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn assigned(toml: &str, names: &[&str]) -> Result<Vec<Vec<usize>>, String> {
        let toml = format!("deployment.uri = \"mongodb://server/\"\n{toml}");
        let settings = config::Settings::from_toml(&toml).unwrap();
        let names = names.iter().enumerate();
        let sockets = names.map(|(number, name)| ((*name).to_owned(), number));
        by_listener(&settings.listeners(), sockets.collect())
    }

    /// A service manager such as systemd passes named sockets to Seawall.
    #[test]
    fn inherited_sockets_belong_to_the_listener_with_the_same_name() {
        let several = "[[listeners]]\naddress = \"a:1\"\nname = \"one\"\n\
                       [[listeners]]\naddress = \"b:1\"\n\
                       [[listeners]]\naddress = \"c:1\"\nname = \"three\"\n";
        let expected = vec![vec![1], vec![], vec![0, 2]];
        assert_eq!(assigned(several, &["three", "one", "three"]), Ok(expected));
        assert_eq!(assigned(several, &["one", "x"]), Err("x".to_owned()));
        // Without a name, a socket could belong to any listener.
        assert_eq!(assigned(several, &[""]), Err(String::new()));
    }

    #[test]
    fn a_single_listener_gets_all_sockets_of_the_service_manager() {
        let one = "[[listeners]]\naddress = \"a:1\"\nname = \"one\"\n";
        for toml in ["", one] {
            assert_eq!(assigned(toml, &["x", ""]), Ok(vec![vec![0, 1]]));
        }
    }

    #[test]
    fn the_ipv6_wildcard_address_includes_ipv4_unless_an_ipv4_address_has_the_same_port() {
        for (addresses, expected) in [
            (["[::]:1", "0.0.0.0:1"], [true, false]),
            (["127.0.0.1:1", "[::]:1"], [false, true]),
            (["[::]:1", "0.0.0.0:2"], [false, false]),
            (["[::]:1", "a:1"], [false, false]),
            (["[::1]:1", "0.0.0.0:1"], [false, false]),
            (["[::]:0", "0.0.0.0:0"], [false, false]),
        ] {
            let [one, two] = addresses;
            let toml = format!(
                "deployment.uri = \"mongodb://server/\"\n\
                 [[listeners]]\naddress = {one:?}\n[[listeners]]\naddress = {two:?}\n"
            );
            let settings = config::Settings::from_toml(&toml).unwrap();
            let listeners = settings.listeners();
            let found = [0, 1]
                .map(|index: usize| has_ipv4_beside(&listeners[index].addresses[0], &listeners));
            assert_eq!(found, expected, "{addresses:?}");
        }
    }

    #[tokio::test]
    async fn ipv4_and_ipv6_wildcard_addresses_with_the_same_port_are_both_bound() {
        let mut last = None;
        for _ in 0..10 {
            let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let toml = format!(
                "deployment.uri = \"mongodb://server/\"\n\
                 listen.address = [\"0.0.0.0:{port}\", \"[::]:{port}\"]\n"
            );
            let settings = config::Settings::from_toml(&toml).unwrap();
            match bind(&settings.listeners(), Vec::new(), &Handle::current()).await {
                Ok(bound) => {
                    assert_eq!(bound[0].len(), 2);
                    return;
                }
                // Another process may have taken the port.
                Err(error) => last = Some(error),
            }
        }
        panic!("{last:?}");
    }
}
