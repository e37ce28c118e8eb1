//! `seawall check`: validates the configuration, the connection string and the TLS files as a start
//! does. It binds no address, and opens neither the history nor the slow log.

use std::time::Duration;

use clap::Args;
use seawall_config::Settings;

use super::{ConfigArguments, log_filter};
use crate::{
    app::{
        ServerTlsFiles, UnreadDirectory, descriptor_problem, peer_problem, reach_deployment,
        telemetry_problems, tls_problems, tls_warnings,
    },
    topology::DeploymentOptions,
};
use seawall_console::{Exit, complain, print_line, say};

/// Time limit of `--connect` for each step: to connect, to find the primary, and to log in.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// Also try to reach the deployment.
    #[arg(long)]
    connect: bool,
}

pub(super) async fn run(arguments: Arguments) -> Exit {
    let settings = match arguments.config.load() {
        Ok(settings) => settings,
        Err(problems) => return complain(&problems.to_string(), Exit::Usage),
    };
    let filter = log_filter::variable();
    let deployment = match (valid_deployment(&settings).await, filter) {
        (Ok(deployment), Ok(_)) => deployment,
        (deployment, filter) => {
            let problems = deployment.err().into_iter().flatten().chain(filter.err());
            let problems: Vec<_> = problems.collect();
            return complain(&problems.join("\n"), Exit::Usage);
        }
    };
    let mut warnings = tls_warnings(&settings);
    warnings.extend(server_tls_warning(&deployment, &settings));
    for warning in warnings {
        complain(&format!("warning: {warning}"), Exit::Success);
    }
    if arguments.connect {
        if let Err(error) = reach_deployment(&settings, CONNECT_LIMIT).await {
            return complain(&format!("deployment.uri: {error}"), Exit::Unavailable);
        }
        say("the deployment is reachable");
    }
    print_line("the configuration is valid")
}

/// The parsed connection string, if the settings have no problem.
///
/// # Errors
/// All problems that the configuration parser cannot find, for example in the connection string and
/// in TLS files.
pub(super) async fn valid_deployment(
    settings: &Settings,
) -> Result<DeploymentOptions, Vec<String>> {
    let deployment = parse_deployment(settings).await;
    let mut problems = match &deployment {
        Ok(deployment) => deployment_problems(deployment, settings),
        Err(problem) => vec![problem.clone()],
    };
    problems.extend(tls_problems(settings));
    problems.extend(telemetry_problems(settings));
    problems.extend(peer_problem(settings));
    problems.extend(descriptor_problem(settings));
    match deployment {
        Ok(deployment) if problems.is_empty() => Ok(deployment),
        _ => Err(problems),
    }
}

/// Parses the connection string. Sends queries to DNS if the scheme is `mongodb+srv`, and waits a
/// few seconds for the replies.
///
/// # Errors
/// A text that describes the problem.
pub(super) async fn parse_deployment(settings: &Settings) -> Result<DeploymentOptions, String> {
    let uri = settings.deployment.uri.expose();
    let parsed = DeploymentOptions::parse(uri, settings.deployment.heartbeat_frequency).await;
    parsed.map_err(|error| format!("deployment.uri: {error}"))
}

/// Problems of the TLS files for connections to servers, and of `auth.credentials`. Blocks while
/// the files are read, which may take long on a network file system.
pub(super) fn deployment_problems(
    deployment: &DeploymentOptions,
    settings: &Settings,
) -> Vec<String> {
    let mut problems = Vec::new();
    let files = ServerTlsFiles::read(deployment, settings.deployment.tls.as_ref());
    let tls = files.and_then(|files| files.map(|files| files.build()).transpose());
    problems.extend(tls.err().map(|error| error.to_string()));
    let wants_lookup = settings.auth.credentials == seawall_config::Credentials::Lookup;
    if wants_lookup && !deployment.has_credentials() {
        let problem = "auth.credentials: \"lookup\" needs a user in deployment.uri";
        problems.push(problem.to_owned());
    }
    problems
}

/// The warning that Seawall does not read a directory with certificate authorities; `None` if there
/// is nothing to warn about.
fn server_tls_warning(deployment: &DeploymentOptions, settings: &Settings) -> Option<String> {
    let files = ServerTlsFiles::read(deployment, settings.deployment.tls.as_ref());
    let files = files.ok()??;
    let UnreadDirectory { directory, trusted } = files.unread_directory()?;
    Some(format!(
        "deployment.tls.ca_file: not set, and Seawall does not read the directory {directory}; it \
         trusts {trusted}"
    ))
}
