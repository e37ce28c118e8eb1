//! The target of a replay: its connections, its properties, and the check that it is not the
//! captured deployment.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bson::{RawDocument, oid::ObjectId, rawdoc};
use seawall_auth::NonceSource;
use seawall_capture::record::{Header, Server};
use seawall_load::{Address, Failure, Keyring, Link, Target};
use tokio::{net::lookup_host, sync::Semaphore, time::timeout};

use crate::SessionKey;

/// Time limit for connecting and logging in.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Maximum total size of the large replies in memory, in KiB (see [`Endpoint::replies`]). It is
/// larger than the largest reply (48 MB).
const REPLIES_KIB: usize = 48 * 1024;

/// The reason why the target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The target has several addresses.
    #[error(
        "a replay uses one address, but the target has {0}: give the address of one server, of one router or of a Seawall"
    )]
    SeveralAddresses(usize),
    /// The replay cannot connect to the target, cannot log in, or gets an error for a first command
    /// such as `buildInfo`.
    #[error("cannot use the target {address}: {failure}")]
    Unreachable {
        /// The address of the target.
        address: String,
        /// The reason why the connection, the login or the command failed.
        failure: Failure,
    },
    /// The target is the captured deployment.
    #[error("{0} belongs to the captured deployment; a replay must never change this deployment")]
    CapturedDeployment(String),
    /// Writes would go to a server that may belong to the captured deployment.
    #[error(
        "{0} has no process id, so it may belong to the captured deployment (it is a proxy, or older than MongoDB 4.4); use --yes-i-own-this to send writes to it"
    )]
    Unidentified(String),
    /// The operating system did not provide random numbers.
    #[error("the operating system returned no random numbers: {0}")]
    Random(String),
}

/// The target, and everything that its connections share.
pub(crate) struct Endpoint {
    target: Target,
    keys: Keyring,
    nonces: NonceSource,
    /// Limits the memory for large replies: one permit is 1 KiB. Small replies need no permit.
    pub replies: Semaphore,
}

/// The properties of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// The target's address and server version, as one text.
    pub name: String,
    pub has_retryable_writes: bool,
}

impl Endpoint {
    pub(crate) fn new(target: Target) -> Result<Arc<Self>, EndpointError> {
        let random = |error: seawall_auth::SeedError| EndpointError::Random(error.to_string());
        Ok(Arc::new(Self {
            target,
            keys: Keyring::default(),
            nonces: NonceSource::new().map_err(random)?,
            replies: Semaphore::new(REPLIES_KIB),
        }))
    }

    /// A random key for a new replay, from which the ids of its sessions are derived.
    pub(crate) fn session_key(&self) -> SessionKey {
        let mut random = [0; 16];
        self.nonces.fill(&mut random);
        SessionKey::new(random)
    }

    /// Connects and logs in. Uses the first address of the target; [`Self::describe`] refuses a
    /// target with several addresses.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        let connecting = async {
            let mut link = Link::connect(&self.target, 0).await?;
            link.hello().await?;
            if let Some(user) = self.target.user() {
                link.log_in(user, &self.keys, &self.nonces).await?;
            }
            Ok(link)
        };
        let connected = timeout(CONNECT_LIMIT, connecting).await;
        connected.unwrap_or(Err(Failure::TimedOut))
    }

    /// Describes the target, and refuses the captured deployment. If `must_identify` is true, it
    /// also refuses a target that reports no process id.
    ///
    /// It refuses a target with several addresses, too. The clients of a capture share cursors and
    /// transactions, because a driver may send each command on another connection of its pool. So
    /// all connections of a replay must lead to one server or router.
    pub(crate) async fn describe(
        &self,
        header: &Header,
        must_identify: bool,
    ) -> Result<Description, EndpointError> {
        let addresses = self.target.addresses().count();
        if addresses > 1 {
            return Err(EndpointError::SeveralAddresses(addresses));
        }
        let address = self.target.address(0);
        if is_captured_address(address, &header.servers).await {
            return Err(EndpointError::CapturedDeployment(address.to_string()));
        }
        let address = address.to_string();
        let failed = |failure| EndpointError::Unreachable {
            address: address.clone(),
            failure,
        };
        let mut link = self.connect().await.map_err(failed)?;
        let hello = rawdoc! {"isMaster": 1, "$db": "admin"};
        let reply = link.run(&hello).await.map_err(failed)?;
        let has_retryable_writes =
            reply.get_str("setName").is_ok() || matches!(reply.get_str("msg"), Ok("isdbgrid"));
        let mut process_ids: Vec<_> = process_id(reply).into_iter().collect();
        // A proxy replies to `isMaster` itself, but forwards `serverStatus`. So this reply has the
        // process id of the server behind the proxy. A failure is ignored, because the account may
        // lack the right to run `serverStatus`.
        let status = rawdoc! {"serverStatus": 1, "$db": "admin"};
        if let Ok(status) = link.run(&status).await
            && let Ok(repl) = status.get_document("repl")
        {
            process_ids.extend(process_id(repl));
        }
        let is_captured = |id: &ObjectId| {
            let mut captured = header.servers.iter();
            captured.any(|server| server.process_id[..] == id.bytes())
        };
        if process_ids.iter().any(is_captured) {
            return Err(EndpointError::CapturedDeployment(address));
        }
        if must_identify && process_ids.is_empty() {
            return Err(EndpointError::Unidentified(address));
        }
        let build = rawdoc! {"buildInfo": 1, "$db": "admin"};
        let build = link.run(&build).await.map_err(failed)?;
        let version = build.get_str("version").unwrap_or("unknown version");
        Ok(Description {
            name: format!("{address} ({version})"),
            has_retryable_writes,
        })
    }
}

/// The id of the server's process, which changes when the server restarts; `None` if the reply
/// comes from a proxy, or from a server before 4.4.
fn process_id(reply: &RawDocument) -> Option<ObjectId> {
    let topology_version = reply.get_document("topologyVersion").ok()?;
    topology_version.get_object_id("processId").ok()
}

/// True if the address belongs to a captured server: its text equals the text of the server's
/// address, or both texts resolve to the same IP address and port.
async fn is_captured_address(address: &Address, servers: &[Server]) -> bool {
    let Address::Tcp(address) = address else {
        return false;
    };
    let resolved = resolve(address).await;
    for server in servers {
        if server.address.eq_ignore_ascii_case(address) {
            return true;
        }
        let captured = resolve(&server.address).await;
        if captured.iter().any(|address| resolved.contains(address)) {
            return true;
        }
    }
    false
}

async fn resolve(address: &str) -> Vec<SocketAddr> {
    match timeout(CONNECT_LIMIT, lookup_host(address)).await {
        Ok(Ok(addresses)) => addresses.collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn server(address: &str, process_id: &'static [u8]) -> Server {
        Server {
            address: address.to_owned(),
            process_id: Bytes::from_static(process_id),
        }
    }

    #[tokio::test]
    async fn an_address_of_the_captured_deployment_is_recognized_by_ip_address_and_by_host_name() {
        let servers = [server("127.0.0.1:27017", b"")];
        let cases = [
            ("127.0.0.1:27017", true),
            ("localhost:27017", true),
            ("127.0.0.1:27018", false),
            ("127.0.0.2:27017", false),
        ];
        for (address, expected) in cases {
            let address = Address::Tcp(address.to_owned());
            let captured = is_captured_address(&address, &servers).await;
            assert_eq!(captured, expected, "{address}");
        }
    }

    #[test]
    fn the_process_id_is_read_from_the_topology_version() {
        let id = ObjectId::from_bytes([7; 12]);
        let reply = rawdoc! {"topologyVersion": {"processId": id}};
        assert_eq!(process_id(&reply), Some(id));
        assert_eq!(process_id(&rawdoc! {"ok": 1}), None);
    }
}
