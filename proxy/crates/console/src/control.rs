//! Commands that show the state of a running proxy, or act on it.

use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    admin_client::{self, Endpoint},
    exit::{Exit, complain, print_line},
    figures,
};
use seawall_api::{AdminClient, ClientError, Clients, Configuration, Pools, Reload, Status};

/// Time between two checks of a proxy that is starting or stopping.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Shortest time limit of one check, even if the time limit of the command is shorter.
const SHORTEST_CHECK: Duration = Duration::from_secs(1);

/// The text for a key that has no value after a reload or a restart.
const ABSENT: &str = "(absent)";

/// The path in the admin API that starts a drain.
const DRAIN: &str = "/api/v1/drain";

/// The arguments of a command that shows a part of the proxy's state, such as `seawall pools`.
#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    admin: Endpoint,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// The arguments of `seawall clients`.
#[derive(Debug, Args)]
pub struct ShowClients {
    #[command(flatten)]
    show: Show,
    /// Maximum number of clients to list; the oldest connections come first.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
}

/// The arguments of `seawall reload`.
#[derive(Debug, Args)]
pub struct ReloadArguments {
    #[command(flatten)]
    show: Show,
    /// Report what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// The arguments of `seawall drain`.
#[derive(Debug, Args)]
pub struct Drain {
    #[command(flatten)]
    admin: Endpoint,
    /// Print JSON after the drain has started. By default, nothing is printed.
    #[arg(long)]
    json: bool,
}

/// The arguments of `seawall health`.
#[derive(Debug, Args)]
pub struct Health {
    #[command(flatten)]
    admin: Endpoint,
    /// Check that the proxy can serve operations, and not only that it runs.
    #[arg(long)]
    ready: bool,
}

/// The arguments of `seawall wait` and `seawall shutdown`.
#[derive(Debug, Args)]
pub struct Wait {
    #[command(flatten)]
    admin: Endpoint,
    /// Maximum time to wait, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout_s: u32,
}

/// `seawall status`: shows the state of the proxy.
pub async fn status(show: Show) -> Exit {
    show.run("/api/v1/status", |status: &Status| status_rows(status))
        .await
}

/// `seawall pools`: shows the connections to each server.
pub async fn pools(show: Show) -> Exit {
    show.run("/api/v1/pools", |pools: &Pools| pool_rows(pools))
        .await
}

/// `seawall clients`: lists the connected clients.
pub async fn clients(arguments: ShowClients) -> Exit {
    let path = format!("/api/v1/clients?limit={}", arguments.limit);
    let rows = |clients: &Clients| client_rows(clients);
    arguments.show.run(&path, rows).await
}

/// `seawall config`: shows the value and the source of each key.
pub async fn config(show: Show) -> Exit {
    let rows = |configuration: &Configuration| configuration_rows(configuration);
    show.run("/api/v1/config", rows).await
}

/// `seawall reload`: makes the proxy read its configuration again.
pub async fn reload(arguments: ReloadArguments) -> Exit {
    let client = match client_of(&arguments.show.admin) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let path = format!("/api/v1/reload?dry_run={}", arguments.dry_run);
    let reload: Reload = match client.post(&path).await {
        Ok(reload) => reload,
        Err(error) => return failed(&error),
    };
    if arguments.show.json {
        return match serde_json::to_string_pretty(&reload) {
            Ok(text) => match print_line(&text) {
                Exit::Success => exit_of(&reload),
                failed => failed,
            },
            Err(error) => complain(&error.to_string(), Exit::Internal),
        };
    }
    if !reload.problems.is_empty() {
        return complain(&reload.problems.join("\n"), Exit::Usage);
    }
    print_line(&reload_rows(&reload).join("\n"))
}

fn exit_of(reload: &Reload) -> Exit {
    match reload.problems.is_empty() {
        true => Exit::Success,
        false => Exit::Usage,
    }
}

/// `seawall drain`: starts a drain and returns immediately.
pub async fn drain(arguments: Drain) -> Exit {
    let client = match client_of(&arguments.admin) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let exit = ended(client.act(DRAIN).await);
    match arguments.json && exit == Exit::Success {
        true => print_line(r#"{ "draining": true }"#),
        false => exit,
    }
}

/// `seawall health`: checks that the proxy runs or can serve operations.
pub async fn health(arguments: Health) -> Exit {
    let path = match arguments.ready {
        true => "/health/ready",
        false => "/health/live",
    };
    match client_of(&arguments.admin) {
        Ok(client) => ended(client.check(path).await),
        Err(exit) => exit,
    }
}

/// `seawall wait`: waits until the proxy can serve operations.
pub async fn wait(arguments: Wait) -> Exit {
    let client = match client_of(&arguments.admin) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let is_ready = async || client.check("/health/ready").await;
    arguments.until(is_ready, "not ready").await
}

/// `seawall shutdown`: starts a drain and waits until the proxy has closed its admin address. The
/// proxy closes this address as the last step of the drain.
pub async fn shutdown(arguments: Wait) -> Exit {
    let client = match client_of(&arguments.admin) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    if let Err(error) = client.act(DRAIN).await {
        return failed(&error);
    }
    // Only a refused connection shows that the process has closed its address. Other failures also
    // happen while the process drains: for example, it may close one connection to accept another.
    let has_ended = async || match client.check("/health/live").await {
        Err(ClientError::Unreachable {
            is_refused: true, ..
        }) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(ClientError::TimedOut {
            address: client.address().to_owned(),
        }),
    };
    arguments
        .until(has_ended, "the end of the drain was not seen")
        .await
}

impl Wait {
    /// Calls `check` until it succeeds or `timeout_s` seconds have passed, but at least once. After
    /// this time, prints an error message that begins with `state`.
    async fn until(&self, check: impl AsyncFn() -> Result<(), ClientError>, state: &str) -> Exit {
        let until = Instant::now() + Duration::from_secs(self.timeout_s.into());
        loop {
            let limit = until.max(Instant::now() + SHORTEST_CHECK);
            let checked = timeout_at(limit, check()).await;
            let reason = match checked {
                Ok(Ok(())) => return Exit::Success,
                Ok(Err(ClientError::Refused { said, .. })) => format!(": {said}"),
                Ok(Err(ClientError::TimedOut { .. })) | Err(_) => String::new(),
                Ok(Err(error)) => format!(": {error}"),
            };
            if Instant::now() + CHECK_INTERVAL >= until {
                let message = format!("{state} after {} s{reason}", self.timeout_s);
                return complain(&message, Exit::Unavailable);
            }
            sleep(CHECK_INTERVAL).await;
        }
    }
}

impl Show {
    /// Sends a request to `path` of the admin API, and prints the reply as JSON or as the lines
    /// that `lines` returns.
    pub(super) async fn run<T: DeserializeOwned>(
        &self,
        path: &str,
        lines: impl Fn(&T) -> Vec<String>,
    ) -> Exit {
        let client = match client_of(&self.admin) {
            Ok(client) => client,
            Err(exit) => return exit,
        };
        let printed = match self.json {
            true => client
                .ask_for_json(path)
                .await
                .map(|json| vec![format!("{json:#}")]),
            false => client.ask(path).await.map(|reply| lines(&reply)),
        };
        match printed {
            Ok(lines) => print_line(&lines.join("\n")),
            Err(error) => failed(&error),
        }
    }
}

/// Creates a client for the admin API. Prints the error if the arguments are not usable.
fn client_of(admin: &Endpoint) -> Result<AdminClient, Exit> {
    let client = admin.client();
    client.map_err(|error| complain(&error.to_string(), Exit::Usage))
}

fn ended(result: Result<(), ClientError>) -> Exit {
    match result {
        Ok(()) => Exit::Success,
        Err(error) => failed(&error),
    }
}

fn failed(error: &ClientError) -> Exit {
    complain(&admin_client::message(error), admin_client::exit(error))
}

fn status_rows(status: &Status) -> Vec<String> {
    let connections = status.server_connections;
    let rows = [
        ("version", status.version.clone()),
        ("uptime", figures::uptime(status.uptime_seconds)),
        ("mode", status.mode.clone()),
        ("deployment", status.deployment.clone()),
        ("credentials", status.credentials.clone()),
        ("state", state(status)),
        ("clients", figures::exact(status.clients)),
        (
            "pooled server connections",
            figures::exact(connections.total()),
        ),
        ("waiting operations", figures::exact(status.wait_queue)),
        (
            "operations since the start",
            figures::exact(status.operations.saturating_sub(status.local_operations)),
        ),
        (
            "handshakes and other commands without a server",
            figures::exact(status.local_operations),
        ),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    figures::table(&["<", "<"], &rows)
        .into_iter()
        .skip(1)
        .collect()
}

fn state(status: &Status) -> String {
    match (status.draining, &status.not_ready, status.injects_faults) {
        (true, _, _) => "draining".to_owned(),
        (false, Some(reason), _) => format!("not ready: {}", figures::printable(reason)),
        (false, None, true) => "serving, with injected faults".to_owned(),
        (false, None, false) => "serving".to_owned(),
    }
}

fn pool_rows(pools: &Pools) -> Vec<String> {
    let headings = [
        "<server",
        "<state",
        "pending",
        "available",
        "in use",
        "waiting",
        "limit",
    ];
    let rows = pools.pools.iter().map(|pool| {
        vec![
            figures::printable(&pool.server),
            pool.state.clone(),
            figures::exact(pool.pending),
            figures::exact(pool.available),
            figures::exact(pool.in_use),
            figures::exact(pool.wait_queue),
            pool.concurrency
                .limit
                .map_or_else(|| "off".to_owned(), figures::exact),
        ]
    });
    figures::table(&headings, &rows.collect::<Vec<_>>())
}

fn client_rows(clients: &Clients) -> Vec<String> {
    let or_none = |text: &Option<String>| figures::printable(text.as_deref().unwrap_or("–"));
    let rows = clients.clients.iter().map(|client| {
        vec![
            client.id.to_string(),
            figures::printable(&client.peer),
            or_none(&client.user),
            or_none(&client.application),
            figures::moment(client.connected_at),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut lines = figures::table(
        &[
            "id",
            "<address",
            "<user",
            "<application",
            "<connected (UTC)",
        ],
        &rows,
    );
    let shown = u64::try_from(rows.len()).unwrap_or(u64::MAX);
    if shown < clients.count {
        let more = figures::exact(clients.count - shown);
        lines.push(format!("and {more} more; --limit shows more of them"));
    }
    lines
}

fn configuration_rows(configuration: &Configuration) -> Vec<String> {
    let rows = configuration.values.iter().map(|value| {
        let pending = match value.pending.as_deref() {
            Some("") => ABSENT.to_owned(),
            pending => figures::printable(pending.unwrap_or_default()),
        };
        let configured = figures::printable(&value.value);
        let shown = match &value.in_effect {
            Some(other) => format!("{configured} (in effect: {})", figures::printable(other)),
            None => configured,
        };
        vec![
            figures::printable(&value.key),
            shown,
            value.origin.clone(),
            pending,
        ]
    });
    let headings = ["<key", "<value", "<source", "<after a restart"];
    let mut lines = figures::table(&headings, &rows.collect::<Vec<_>>());
    lines.push(format!("hash of the values: {}", configuration.hash));
    lines
}

fn reload_rows(reload: &Reload) -> Vec<String> {
    if reload.changes.is_empty() {
        return vec!["nothing has changed".to_owned()];
    }
    let rows = reload.changes.iter().map(|change| {
        let effect = match (change.needs_restart, reload.applied) {
            (true, _) => "at the next start",
            (false, true) => "now",
            (false, false) => "at a reload",
        };
        let (from, to) = match change.from == change.to {
            true => (String::new(), "(other content)".to_owned()),
            false => {
                let to = match &*change.to {
                    "" => ABSENT.to_owned(),
                    to => figures::printable(to),
                };
                (figures::printable(&change.from), to)
            }
        };
        vec![figures::printable(&change.key), from, to, effect.to_owned()]
    });
    let headings = ["<key", "<from", "<to", "<takes effect"];
    figures::table(&headings, &rows.collect::<Vec<_>>())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::pin::pin;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::admin_client::TlsFiles;
    use seawall_api::{ConfigurationChange, ConfigurationValue};

    /// Accepts a connection, reads a request without a body, sends `response` and closes the
    /// connection.
    pub(crate) async fn respond(listener: &TcpListener, response: &str) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(response.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn shutdown_ends_when_the_address_is_closed_and_not_when_a_connection_breaks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut stopping = pin!(shutdown(Wait {
            admin: Endpoint::new(&address, None, TlsFiles::default()),
            timeout_s: 60,
        }));
        for response in [
            "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nali",
            "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nalive\n",
        ] {
            tokio::select! {
                exit = &mut stopping => panic!("{exit:?} before the response {response:?}"),
                () = respond(&listener, response) => {}
            }
        }
        drop(listener);
        assert_eq!(stopping.await, Exit::Success);
    }

    #[test]
    fn status_shows_why_the_proxy_is_not_ready() {
        let mut status = Status {
            not_ready: Some("no server".to_owned()),
            ..Status::default()
        };
        let state = |status: &Status| {
            let rows = status_rows(status);
            rows.into_iter().find(|row| row.starts_with("state"))
        };
        assert!(state(&status).unwrap().ends_with("not ready: no server"));
        status.not_ready = None;
        assert!(state(&status).unwrap().ends_with("serving"));
    }

    #[test]
    fn configuration_changes_are_listed_with_the_time_when_they_take_effect() {
        let change = |key: &str, to: &str, needs_restart| ConfigurationChange {
            from: "1".to_owned(),
            key: key.to_owned(),
            needs_restart,
            to: to.to_owned(),
        };
        let reload = Reload {
            applied: true,
            changes: vec![change("a.b", "2", false), change("c.d", "1", true)],
            problems: Vec::new(),
        };
        let lines = reload_rows(&reload);
        assert!(
            lines[1].contains("a.b") && lines[1].ends_with("now"),
            "{lines:?}"
        );
        assert!(lines[2].contains("(other content)"), "{lines:?}");
        assert!(lines[2].ends_with("at the next start"), "{lines:?}");
        assert_eq!(reload_rows(&Reload::default()), ["nothing has changed"]);
    }

    #[test]
    fn configuration_table_shows_which_values_need_a_restart_and_the_hash_of_all_values() {
        let configuration = Configuration {
            hash: "0123".to_owned(),
            values: vec![
                ConfigurationValue {
                    in_effect: Some("7".to_owned()),
                    instance: None,
                    key: "listen.backlog".to_owned(),
                    origin: "file".to_owned(),
                    pending: Some("9".to_owned()),
                    value: "8".to_owned(),
                },
                ConfigurationValue {
                    key: "history.directory".to_owned(),
                    pending: Some(String::new()),
                    ..ConfigurationValue::default()
                },
            ],
        };
        let lines = configuration_rows(&configuration);
        assert!(lines[1].starts_with("listen.backlog"), "{lines:?}");
        assert!(lines[1].contains("8 (in effect: 7)"), "{lines:?}");
        assert!(lines[1].trim_end().ends_with('9'), "{lines:?}");
        assert!(lines[2].trim_end().ends_with("(absent)"), "{lines:?}");
        assert_eq!(lines[3], "hash of the values: 0123");
    }

    #[test]
    fn client_list_shows_in_utc_when_each_client_connected() {
        let client = seawall_api::Client {
            connected_at: 951_782_400.0,
            ..seawall_api::Client::default()
        };
        let lines = client_rows(&Clients {
            clients: vec![client],
            count: 1,
        });
        assert!(lines[0].ends_with("connected (UTC)"), "{lines:?}");
        assert!(lines[1].ends_with("2000-02-29 00:00:00"), "{lines:?}");
    }

    #[test]
    fn the_line_below_the_client_list_counts_the_clients_that_are_not_listed() {
        let clients = Clients {
            clients: vec![seawall_api::Client::default()],
            count: 3,
        };
        let lines = client_rows(&clients);
        assert_eq!(
            lines.last().unwrap(),
            "and 2 more; --limit shows more of them"
        );
    }
}
