//! The testbed for reconnect storms: a replica set whose primary can be stalled, a Seawall process
//! in front of the set, and loads. Each load is a process that prints a report.

use std::{net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use bson::doc;
use mongodb::Client;
use seawall_mongod::Mongod;
use seawall_tests::{
    eventually::eventually,
    mongod::{
        FailTimes, NewUser, Options, ReplicaSet, clear_fail_command, create_user, fail_command,
    },
    process::binary,
    seawall::sum_of,
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process as tokio_process,
};

use crate::process::{Process, free_port, serve};

const USER: &str = "load";
const PASSWORD: &str = "only-a-bench";

/// Time limit for Seawall to become ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A replica set with a primary and a secondary, and Seawall in front of it.
#[derive(Debug)]
pub struct StormTestbed {
    /// The replica set. Its primary stays primary during a run.
    pub set: ReplicaSet,
    /// A client of the set that connects before any storm. A client that connects during a storm
    /// might not get a connection.
    control: Client,
    primary: SocketAddr,
    /// The binary of the measured Seawall.
    binary: PathBuf,
    seawall: Option<Process>,
    listen: u16,
    admin: u16,
    pool_size: Option<usize>,
}

/// Seawall's counts of server connections and logins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Number of server connections that Seawall has established since its start.
    pub created: f64,
    /// Number of server connections that are open.
    pub open: f64,
    /// Number of Seawall's logins at servers since its start.
    pub authentications: f64,
    /// Number of successful client logins since Seawall's start.
    pub client_logins: f64,
}

/// How the primary stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The primary's process is suspended (`SIGSTOP`): its connections stay open, but it does not
    /// reply.
    Stopped,
    /// The primary delays clients' finds, hellos and logins by 600 ms.
    Delayed,
}

impl StormTestbed {
    /// Starts the replica set, and Seawall with the binary `seawall`. See [`Self::set_pool_size`]
    /// for `pool_size`.
    pub async fn start(seawall: PathBuf, pool_size: Option<usize>) -> Self {
        let mut options = Options::with_auth();
        options.priorities = vec![1, 0];
        // With a long election timeout, a stalled primary stays primary.
        options.settings.election_timeout = Duration::from_secs(60);
        let set = ReplicaSet::start(2, options).await.expect("the set starts");
        let primary = set
            .primary()
            .await
            .expect("the set has a primary")
            .address();
        let client = set.client().await.expect("the set accepts connections");
        let user = NewUser::new("admin", USER, PASSWORD).role("readWriteAnyDatabase", "admin");
        create_user(&client, &user)
            .await
            .expect("the user can be created");
        let mut testbed = Self {
            set,
            control: client,
            primary,
            binary: seawall,
            seawall: None,
            listen: free_port().expect("a port is free"),
            admin: free_port().expect("a port is free"),
            pool_size,
        };
        testbed.restart_seawall().await;
        testbed
    }

    /// Sets `max_pool_size` for the next start of Seawall. With `None`, Seawall has its default
    /// configuration.
    pub fn set_pool_size(&mut self, pool_size: Option<usize>) {
        self.pool_size = pool_size;
    }

    /// Kills Seawall, starts it again on the same ports, and waits until it is ready.
    pub async fn restart_seawall(&mut self) {
        self.kill_seawall();
        self.start_seawall();
        let ready = || async {
            self.get("/health/ready")
                .await
                .is_some_and(|page| page.starts_with("HTTP/1.1 200"))
        };
        eventually(START_LIMIT, ready)
            .await
            .expect("Seawall is ready");
    }

    /// Kills Seawall, as `kill -9` does.
    pub fn kill_seawall(&mut self) {
        drop(self.seawall.take());
    }

    /// Starts Seawall without waiting until it is ready.
    pub fn start_seawall(&mut self) {
        let mut command = serve(&self.binary);
        command
            .args(["--listen", &format!("127.0.0.1:{}", self.listen)])
            .args(["--admin", &format!("127.0.0.1:{}", self.admin)])
            .args(["--deployment", &self.set.uri()]);
        if let Some(pool_size) = self.pool_size {
            command.env("SEAWALL_POOL__MAX_POOL_SIZE", pool_size.to_string());
        }
        self.seawall = Some(Process::start(&mut command).expect("Seawall starts"));
    }

    /// Returns Seawall's process id; `None` if Seawall does not run.
    pub fn seawall_id(&self) -> Option<u32> {
        self.seawall.as_ref().map(Process::id)
    }

    /// The connection string for loads through Seawall.
    pub fn through(&self) -> String {
        format!("mongodb://{USER}:{PASSWORD}@127.0.0.1:{}/", self.listen)
    }

    /// The connection string for loads directly on the primary.
    pub fn primary(&self) -> String {
        format!("mongodb://{USER}:{PASSWORD}@{}/", self.primary)
    }

    /// The connection string for loads directly on the secondary.
    pub fn secondary(&self) -> String {
        let mut members = self.set.members().iter().map(Mongod::address);
        let secondary = members.find(|address| *address != self.primary);
        let secondary = secondary.expect("there are two members");
        format!("mongodb://{USER}:{PASSWORD}@{secondary}/?readPreference=secondary")
    }

    /// Stalls the primary for `time`.
    pub async fn stall(&self, how: Stall, time: Duration) {
        let primary = self
            .set
            .member_at(self.primary)
            .expect("the primary is a member");
        match how {
            Stall::Stopped => {
                primary.stop_process().expect("the process can be stopped");
                tokio::time::sleep(time).await;
                primary
                    .continue_process()
                    .expect("the process can be continued");
            }
            Stall::Delayed => {
                let client = &self.control;
                let commands = [
                    "find",
                    "hello",
                    "isMaster",
                    "saslStart",
                    "saslContinue",
                    "authenticate",
                ];
                let data = doc! {
                    "failCommands": commands.to_vec(), "blockConnection": true, "blockTimeMS": 600,
                };
                fail_command(client, FailTimes::Always, data)
                    .await
                    .expect("failCommand is accepted");
                tokio::time::sleep(time).await;
                clear_fail_command(client)
                    .await
                    .expect("failCommand is accepted");
            }
        }
    }

    /// Seawall's counts; all are 0 if Seawall does not run.
    pub async fn counts(&self) -> Counts {
        let Some(page) = self.get("/metrics").await else {
            return Counts::default();
        };
        Counts {
            created: sum_of(&page, "seawall_server_connections_created_total", &[]),
            open: sum_of(&page, "seawall_server_connections", &[]),
            authentications: sum_of(&page, "seawall_server_authentications_total", &[]),
            client_logins: sum_of(
                &page,
                "seawall_client_authentications_total",
                &["result=\"ok\""],
            ),
        }
    }

    /// Number of connected clients.
    pub async fn clients(&self) -> f64 {
        let page = self.get("/metrics").await.unwrap_or_default();
        sum_of(&page, "seawall_client_connections", &[])
    }

    /// Returns the primary's process id; `None` if the primary does not run.
    pub fn primary_id(&self) -> Option<u32> {
        let primary = self.set.member_at(self.primary)?.pid()?;
        u32::try_from(primary.as_raw_nonzero().get()).ok()
    }

    /// Seawall's HTTP response to `GET path` at the admin address, with headers. `None` if Seawall
    /// does not run.
    async fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin)).await.ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await.ok()?;
        assert!(!page.starts_with("HTTP/1.1 403 "), "{path}: {page}");
        Some(page)
    }

    /// Number of logins with SCRAM-SHA-256 that the primary has received since its start, as
    /// `serverStatus` reports it.
    pub async fn primary_logins(&self) -> f64 {
        let status = self
            .control
            .database("admin")
            .run_command(doc! { "serverStatus": 1 })
            .await;
        let status = status.expect("serverStatus succeeds");
        let received = || {
            let mechanisms = status
                .get_document("security")
                .ok()?
                .get_document("authentication")
                .ok()?;
            let counts = mechanisms
                .get_document("mechanisms")
                .ok()?
                .get_document("SCRAM-SHA-256")
                .ok()?;
            let received = counts.get_document("authenticate").ok()?.get("received")?;
            received
                .as_i64()
                .or_else(|| received.as_i32().map(i64::from))
        };
        i32::try_from(received().unwrap_or(0)).map_or(f64::NAN, f64::from)
    }
}

/// The process of a running load.
#[derive(Debug)]
pub struct LoadProcess(tokio_process::Child);

impl LoadProcess {
    /// Starts a load (`seawall load`) as a separate process. The load always runs with the binary
    /// of this build, so that it does not depend on the measured binary.
    ///
    /// # Panics
    /// If the process does not start.
    pub fn start(arguments: &[String]) -> Self {
        let mut command = tokio_process::Command::new(binary());
        command
            .arg("load")
            .args(arguments)
            .args(["--format", "json", "--quiet"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        Self(command.kill_on_drop(true).spawn().expect("the load starts"))
    }

    /// Waits for the end of the load and returns its report.
    pub async fn report(self) -> LoadReport {
        let output = self.0.wait_with_output().await.expect("the load ends");
        assert!(
            output.status.success(),
            "a load ended with {}",
            output.status
        );
        let report: Value =
            serde_json::from_slice(&output.stdout).expect("the load prints a report");
        let report = LoadReport(report);
        assert!(
            report.number("/wrong").abs() < f64::EPSILON,
            "the load got wrong replies"
        );
        report
    }
}

/// The report of a load.
#[derive(Clone, Debug)]
pub struct LoadReport(pub Value);

impl LoadReport {
    /// The number at the JSON pointer `pointer`; NaN if the report has no number there.
    pub fn number(&self, pointer: &str) -> f64 {
        self.0
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or(f64::NAN)
    }

    /// The values of the field `field` in the report's timeline, one value for each second.
    pub fn seconds(&self, field: &str) -> Vec<f64> {
        let seconds = self.0.get("timeline").and_then(Value::as_array);
        let of_each = |second: &Value| second.get(field).and_then(Value::as_f64);
        let fields = seconds.into_iter().flatten().map(of_each);
        fields.map(|field| field.unwrap_or(f64::NAN)).collect()
    }
}
