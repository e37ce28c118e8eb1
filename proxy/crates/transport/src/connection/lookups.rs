//! Resolves the host names of servers.
//!
//! The operating system's resolver blocks a thread. If a DNS server does not reply, a lookup can
//! take much longer than an attempt to connect, and nothing can end it earlier. So all attempts
//! that need the same name at the same time share one lookup. Otherwise, lookups without replies
//! could occupy all threads that the runtime has for blocking work. Other work needs these threads
//! too.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::Arc,
};

use tokio::{sync::watch, task::spawn_blocking};

use seawall_locks::Mutex;

/// A host name and a port.
type HostPort = (String, u16);

/// The result of a lookup. All attempts that wait for the lookup get a clone.
type Resolution = Result<Vec<SocketAddr>, Arc<io::Error>>;

/// The running lookups, at most one for each host and port. Results are not kept: an attempt that
/// begins after the end of a lookup begins another lookup.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    running: Mutex<HashMap<HostPort, watch::Receiver<Option<Resolution>>>>,
}

/// The entry of a running lookup. Dropping it removes the entry.
struct RunningLookup {
    lookups: Arc<Lookups>,
    name: HostPort,
}

impl Drop for RunningLookup {
    fn drop(&mut self) {
        self.lookups.running.lock().remove(&self.name);
    }
}

impl Lookups {
    /// Returns the addresses of a host, in the order of the operating system's resolver. If the
    /// returned future is dropped, the lookup continues, because it cannot be ended.
    ///
    /// # Errors
    /// The error of the resolver.
    pub(super) async fn resolve(
        self: &Arc<Self>,
        host: &str,
        port: u16,
    ) -> io::Result<Vec<SocketAddr>> {
        match host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, port)]),
            Err(_) => self.resolve_by((host.to_owned(), port), ask_system).await,
        }
    }

    /// Like [`Self::resolve`], but calls `ask` instead of the operating system's resolver.
    async fn resolve_by(
        self: &Arc<Self>,
        name: HostPort,
        ask: impl FnOnce(&HostPort) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let mut lookup = self.join_or_begin(name, ask);
        let ended = lookup.wait_for(Option::is_some).await;
        match ended.ok().and_then(|resolution| (*resolution).clone()) {
            Some(resolution) => resolution.map_err(|error| io::Error::new(error.kind(), error)),
            None => Err(io::Error::other("the lookup of the host name was aborted")),
        }
    }

    /// Returns a receiver of the result of the name's lookup. Begins a lookup if none is running.
    fn join_or_begin(
        self: &Arc<Self>,
        name: HostPort,
        ask: impl FnOnce(&HostPort) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> watch::Receiver<Option<Resolution>> {
        let mut running = self.running.lock();
        let vacant = match running.entry(name) {
            Entry::Occupied(lookup) => return lookup.get().clone(),
            Entry::Vacant(vacant) => vacant,
        };
        let entry = RunningLookup {
            lookups: Arc::clone(self),
            name: vacant.key().clone(),
        };
        let (sender, receiver) = watch::channel(None);
        vacant.insert(receiver.clone());
        // The lock is released before `spawn_blocking`, because a runtime that shuts down drops the
        // closure immediately, and `entry` needs the lock when it is dropped.
        drop(running);
        spawn_blocking(move || {
            let resolution = ask(&entry.name).map_err(Arc::new);
            // The entry is removed before the result is sent, so that no later attempt gets this
            // result.
            drop(entry);
            sender.send_replace(Some(resolution));
        });
        receiver
    }
}

fn ask_system((host, port): &HostPort) -> io::Result<Vec<SocketAddr>> {
    let addresses = (host.as_str(), *port).to_socket_addrs()?;
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn attempts_that_need_the_same_name_share_one_lookup_and_later_attempts_begin_another() {
        let lookups = Arc::<Lookups>::default();
        let asked = Arc::<AtomicUsize>::default();
        let (replies, receiver) = mpsc::channel::<io::Result<Vec<SocketAddr>>>();
        let receiver = Arc::new(Mutex::new(receiver));
        let resolve = |port: u16| {
            let (asked, receiver) = (Arc::clone(&asked), Arc::clone(&receiver));
            let ask = move |_: &HostPort| {
                asked.fetch_add(1, Ordering::SeqCst);
                receiver.lock().recv().unwrap()
            };
            lookups.resolve_by(("h".to_owned(), port), ask)
        };
        let mut attempts = Vec::from([1, 1, 1, 2].map(|port| Box::pin(resolve(port))));
        for attempt in &mut attempts {
            assert!(attempt.as_mut().now_or_never().is_none());
        }
        // The lookup continues although the attempt that began it has ended.
        drop(attempts.remove(0));
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        for _ in 0..2 {
            replies.send(Ok(vec![address])).unwrap();
        }
        for attempt in attempts {
            assert_eq!(attempt.await.unwrap(), [address]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let failure = io::Error::new(io::ErrorKind::NotFound, "no such name");
        replies.send(Err(failure)).unwrap();
        let error = resolve(1).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), "no such name");
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        assert!(lookups.running.lock().is_empty());
    }

    /// This test has no runtime, and a lookup without a runtime would panic.
    #[test]
    fn ip_addresses_need_no_lookup() {
        let lookups = Arc::<Lookups>::default();
        for ip in ["192.0.2.1", "2001:db8::1"] {
            let resolved = lookups.resolve(ip, 9).now_or_never().unwrap();
            let expected = SocketAddr::new(ip.parse().unwrap(), 9);
            assert_eq!(resolved.unwrap(), [expected]);
        }
    }

    #[tokio::test]
    async fn the_operating_system_resolves_localhost_and_reports_an_invalid_name() {
        let lookups = Arc::<Lookups>::default();
        let addresses = lookups.resolve("localhost", 9).await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(!addresses.is_empty());
        let error = lookups.resolve("a\0b", 9).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(lookups.running.lock().is_empty());
    }
}
