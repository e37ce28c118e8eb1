//! Monitoring by the official driver. Its events update Seawall's topology description.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use mongodb::{
    Client, ServerInfo, ServerType as DriverServerType, TopologyType as DriverTopologyType,
    error::ErrorKind,
    event::{
        EventHandler,
        sdam::{SdamEvent, TopologyDescription},
    },
    options::{ClientOptions, Compressor, Tls, TlsOptions},
};
use tokio::{sync::Notify, time::sleep};
use zeroize::Zeroizing;

use super::{
    Member, Topology,
    description::{ServerDescription, ServerType, TopologyType},
    probe,
};
use crate::pool::ServerPool;
use seawall_transport::connection::ServerAddress;

/// Pause between two attempts to resolve the DNS name of a connection string.
const RESOLVE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The reason why a connection string is unusable.
#[derive(Debug, thiserror::Error)]
pub enum DeploymentError {
    /// The official driver rejects the connection string.
    #[error("{0}")]
    Uri(Box<mongodb::error::Error>),
    /// Seawall does not support this option.
    #[error("{0} is not supported in the deployment's connection string")]
    Unsupported(&'static str),
}

/// A parsed connection string. `Debug` does not print it, because it may contain the service
/// account's password.
#[derive(Clone)]
pub struct DeploymentOptions {
    uri: Zeroizing<String>,
    heartbeat_frequency: Duration,
    /// All options; `None` until the DNS name of a `mongodb+srv` string has been resolved.
    options: Option<Box<ClientOptions>>,
    /// The options in the string itself. If the DNS name has been resolved, the options from DNS
    /// are included.
    written: Box<ClientOptions>,
}

impl fmt::Debug for DeploymentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeploymentOptions")
    }
}

/// Parses the options in a `mongodb+srv` string itself, without DNS. TLS is on by default.
async fn options_without_dns(uri: &str) -> Result<ClientOptions, DeploymentError> {
    let plain = uri.replacen("mongodb+srv://", "mongodb://", 1);
    let parsed = ClientOptions::parse(plain).await;
    let mut options = parsed.map_err(|error| DeploymentError::Uri(Box::new(error)))?;
    options
        .tls
        .get_or_insert(Tls::Enabled(TlsOptions::default()));
    Ok(options)
}

impl DeploymentOptions {
    /// Parses a connection string. A `mongodb+srv` string requires a DNS query. If the query fails,
    /// it is repeated later.
    ///
    /// # Errors
    /// [`DeploymentError`] if the string itself is invalid.
    pub async fn parse(uri: &str, heartbeat_frequency: Duration) -> Result<Self, DeploymentError> {
        let options = match ClientOptions::parse(uri).await {
            Ok(options) => Some(Box::new(options)),
            Err(error) if matches!(*error.kind, ErrorKind::DnsResolve { .. }) => None,
            Err(error) => return Err(DeploymentError::Uri(Box::new(error))),
        };
        let written = match &options {
            Some(options) => options.clone(),
            None => Box::new(options_without_dns(uri).await?),
        };
        if written.load_balanced == Some(true) {
            return Err(DeploymentError::Unsupported("loadBalanced=true"));
        }
        Ok(Self {
            uri: Zeroizing::new(uri.to_owned()),
            heartbeat_frequency,
            options,
            written,
        })
    }

    /// The options in the string, for driver clients of the service account.
    pub(crate) fn client_options(&self) -> ClientOptions {
        (*self.written).clone()
    }

    /// True if the string has a user, which is the service account.
    pub(crate) fn has_credentials(&self) -> bool {
        self.written.credential.is_some()
    }

    /// The names of the compressors for messages to servers, in order of preference.
    pub fn compressors(&self) -> Vec<&'static str> {
        let wanted = self.written.compressors.as_deref();
        let names = wanted.unwrap_or_default().iter().filter_map(|compressor| {
            Some(match compressor {
                Compressor::Snappy => "snappy",
                Compressor::Zlib { .. } => "zlib",
                Compressor::Zstd { .. } => "zstd",
                // Compressors that Seawall does not know are skipped.
                _ => return None,
            })
        });
        names.collect()
    }

    /// The TLS options in the string: the CA file, the certificate file, and true if Seawall
    /// accepts any server certificate. `None` if TLS is off.
    pub fn tls(&self) -> Option<(Option<std::path::PathBuf>, Option<std::path::PathBuf>, bool)> {
        match self.written.tls.clone()? {
            Tls::Enabled(tls) => {
                let trusts_anyone = tls.allow_invalid_certificates == Some(true);
                Some((tls.ca_file_path, tls.cert_key_file_path, trusts_anyone))
            }
            Tls::Disabled => None,
        }
    }
}

/// Monitors the deployment until the future is dropped.
pub(super) async fn watch(topology: Weak<Topology>, mut deployment: DeploymentOptions) {
    let mut options = loop {
        match deployment.options.take() {
            Some(options) => break *options,
            None => sleep(RESOLVE_AGAIN_AFTER).await,
        }
        let again = DeploymentOptions::parse(&deployment.uri, deployment.heartbeat_frequency).await;
        match again {
            Ok(parsed) => deployment = parsed,
            Err(error) => {
                tracing::warn!(%error, "could not resolve the deployment's connection string");
            }
        }
    };
    options.app_name = Some("seawall".to_owned());
    options.heartbeat_freq = Some(deployment.heartbeat_frequency);
    // The driver's client needs only few connections: it runs the service account's commands, and
    // clients use Seawall's own pools.
    options.max_pool_size = Some(4);
    options.min_pool_size = Some(0);
    let events = topology.clone();
    options.sdam_event_handler = Some(EventHandler::callback(move |event| {
        if let (SdamEvent::TopologyDescriptionChanged(event), Some(topology)) =
            (event, events.upgrade())
        {
            topology.apply(&event.new_description);
        }
    }));
    match Client::with_options(options) {
        Ok(client) => {
            if let Some(topology) = topology.upgrade() {
                *topology.control_client.lock() = Some(client.clone());
            }
            // The driver's client monitors the deployment until it is dropped, so it is kept here.
            std::future::pending::<()>().await;
            drop(client);
        }
        Err(error) => tracing::error!(%error, "could not start to monitor the deployment"),
    }
}

impl Topology {
    /// Applies a topology description from the official driver.
    pub(super) fn apply(self: &Arc<Self>, new: &TopologyDescription) {
        let mut state = self.state.lock();
        state.topology_type = match new.topology_type() {
            DriverTopologyType::Single => TopologyType::Single,
            DriverTopologyType::ReplicaSetNoPrimary => TopologyType::ReplicaSetNoPrimary,
            DriverTopologyType::ReplicaSetWithPrimary => TopologyType::ReplicaSetWithPrimary,
            DriverTopologyType::Sharded => TopologyType::Sharded,
            _ => TopologyType::Unknown,
        };
        state.set_name = new.set_name().cloned();
        let servers = new.servers();
        let named: HashMap<ServerAddress, _> = servers
            .into_iter()
            .filter_map(|(address, server)| Some((address.to_string().parse().ok()?, server)))
            .collect();
        state.members.retain(|address, member| {
            let stays = named.contains_key(address);
            if !stays {
                member.stop.cancel();
                member.pool.close();
            }
            stays
        });
        for (address, server) in named {
            let member = state
                .members
                .entry(address.clone())
                .or_insert_with(|| self.member(address));
            member.apply(&server);
        }
        self.publish(&mut state);
    }

    fn member(self: &Arc<Self>, address: ServerAddress) -> Member {
        let pool = ServerPool::new(
            address.clone(),
            self.settings.load().pool.clone(),
            self.connector.clone(),
            self.recorder.server(&address.to_string()),
            self.data_plane.clone(),
        );
        let (wake_prober, stop) = (Arc::new(Notify::new()), self.stop.child_token());
        let probing = probe::keep_probing(
            Arc::downgrade(self),
            address.clone(),
            Arc::clone(&wake_prober),
        );
        self.control_plane
            .spawn(stop.clone().run_until_cancelled_owned(probing));
        let server = ServerDescription::unknown(address);
        Member {
            server,
            pool,
            wake_prober,
            stop,
        }
    }
}

impl Member {
    fn apply(&mut self, new: &ServerInfo<'_>) {
        let before = self.server.server_type;
        self.server.server_type = match new.server_type() {
            DriverServerType::Standalone => ServerType::Standalone,
            DriverServerType::Mongos => ServerType::Router,
            DriverServerType::RsPrimary => ServerType::Primary,
            DriverServerType::RsSecondary => ServerType::Secondary,
            DriverServerType::RsArbiter => ServerType::Arbiter,
            DriverServerType::RsOther | DriverServerType::RsGhost => ServerType::Other,
            _ => ServerType::Unknown,
        };
        self.server.tags = new
            .tags()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        if let Some(version) = new.max_wire_version() {
            self.server.probe.max_wire_version = version;
        }
        if self.server.probe.round_trip.is_none() {
            self.server.probe.round_trip = new.average_round_trip_time();
        }
        if self.server.server_type != before {
            self.pool.reset_limit();
            tracing::info!(
                server = %self.server.address,
                from = before.as_str(),
                to = self.server.server_type.as_str(),
                "server type changed"
            );
            self.server.is_demoted = false;
            self.wake_prober.notify_one();
        }
        if self.server.server_type == ServerType::Unknown {
            self.pool.clear(self.pool.generation());
        } else if !self.server.is_suspect {
            self.pool.ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn debug_hides_the_connection_string() {
        let uri = "mongodb://account:secret@h:1/";
        let options = DeploymentOptions::parse(uri, Duration::from_secs(10)).await;
        let text = format!("{:?}", options.unwrap());
        assert!(
            !text.contains("secret") && !text.contains("account"),
            "{text}"
        );
    }
}
