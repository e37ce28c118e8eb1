//! Tries to reach the deployment of a configuration, in the same way as a running Seawall.

use std::{sync::Arc, time::Duration};

use bson::cstr;
use futures_util::future::select_ok;
use seawall_config::{self as config, Credentials};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{convert, insight, server_tls::RunningServerTls};
use crate::topology::{DeploymentOptions, Topology};
use seawall_auth::{NonceSource, users_info_command};
use seawall_command::{ReadPreference, UNAUTHORIZED};
use seawall_transport::connection::{Connection, Connector, ServerAddress, reply_is_ok};

/// Connects to a host of the connection string, and selects the primary, a router or the standalone
/// server. If there is a service account, logs in there as this account. If Seawall verifies
/// clients through the account, also checks that the account may read the keys of other users. Each
/// of these steps takes at most `limit`.
///
/// # Errors
/// A text that describes the problem.
pub(crate) async fn reach_deployment(
    settings: &config::Settings,
    limit: Duration,
) -> Result<(), String> {
    let section = &settings.deployment;
    let parsed = DeploymentOptions::parse(section.uri.expose(), section.heartbeat_frequency);
    let parsed = parsed.await.map_err(|error| error.to_string())?;
    let (_, deployment, tls) =
        RunningServerTls::start(parsed, section).map_err(|error| error.to_string())?;
    let hosts = deployment.hosts();
    let hosts = hosts.ok_or("could not resolve the DNS name of the connection string")?;
    let nonces = Arc::new(NonceSource::new().map_err(|error| error.to_string())?);
    let connector = convert::connector(settings, &deployment, tls, &nonces);
    connector.set_limit(limit);
    connect_to_any(&connector, &hosts).await?;
    let account = deployment.service_account();
    let nothing_found = match deployment.set_name() {
        Some(name) => format!(
            "found no primary in the replica set {name:?}: check `replicaSet` in the connection \
             string, and that the set has a primary"
        ),
        None => "found no primary, no router and no standalone server".to_owned(),
    };
    let observer = insight::unexported_observer(settings).map_err(|error| error.to_string())?;
    let topology = Topology::start(
        deployment,
        convert::topology_settings(settings),
        connector.clone(),
        observer.recorder,
        Handle::current(),
        Handle::current(),
    );
    let preference = ReadPreference::PRIMARY;
    let selected = topology.select(&preference, Instant::now() + limit);
    let Ok(pool) = selected.await else {
        return Err(nothing_found);
    };
    if let Some(account) = account {
        let login = connector.establish_account(pool.address(), &account);
        let mut connection = login.await.map_err(|error| error.to_string())?;
        if matches!(
            settings.auth.credentials,
            Credentials::Auto | Credentials::Lookup
        ) {
            let lookup = timeout(limit, check_lookup(&mut connection)).await;
            lookup.map_err(|_| "usersInfo: no reply in time")??;
        }
    }
    Ok(())
}

/// Checks that the service account may read the keys of other users, by asking for a user that does
/// not exist.
async fn check_lookup(connection: &mut Connection) -> Result<(), String> {
    let mut command = users_info_command("seawall-check", "admin");
    command.append(cstr!("$db"), "admin");
    let reply = connection.run(&command).await;
    let reply = reply.map_err(|error| format!("usersInfo: {error}"))?;
    reply_is_ok(&reply).map_err(|(code, message)| match code {
        UNAUTHORIZED => "the user needs the privilege viewUser on all databases, because Seawall \
                         reads the keys of clients through it; or set auth.credentials = \"self\""
            .to_owned(),
        _ => format!("usersInfo: {message} ({code})"),
    })
}

/// Connects to one of `hosts`.
async fn connect_to_any(connector: &Connector, hosts: &[ServerAddress]) -> Result<(), String> {
    let attempts: Vec<_> = hosts
        .iter()
        .map(|host| Box::pin(connector.connect(host)))
        .collect();
    if attempts.is_empty() {
        return Err("the connection string has no usable host".to_owned());
    }
    let connected = select_ok(attempts).await;
    connected.map(drop).map_err(|error| error.to_string())
}
