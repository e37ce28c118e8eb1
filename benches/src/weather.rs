//! What a storm needs: a set whose primary can stall, Seawall in front of it as a process, loads as processes, and what
//! they tell.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use bson::doc;
use mongodb::Client;
use seawall::mongod::Mongod;
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

use crate::process::{Process, free_port};

const USER: &str = "load";
const PASSWORD: &str = "only-a-bench";

/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A set of a primary and a secondary, and Seawall in front of it.
#[derive(Debug)]
pub struct Weather {
    /// The set; the primary keeps its place whatever happens.
    pub set: ReplicaSet,
    /// Connected before any storm: in one it might not come through.
    control: Client,
    primary: SocketAddr,
    binary: PathBuf,
    seawall: Option<Process>,
    listen: u16,
    admin: u16,
    pool_size: usize,
}

/// What Seawall says of its server connections and logins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Connections established so far.
    pub created: f64,
    /// Connections now.
    pub open: f64,
    /// Logins at servers so far.
    pub authentications: f64,
}

/// How a server fails to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Its process is stopped.
    Stopped,
    /// It takes 600 ms longer for each command of a client.
    Delayed,
}

impl Weather {
    /// Starts all of it.
    pub async fn start(pool_size: usize) -> Self {
        let mut options = Options::with_auth();
        options.priorities = vec![1, 0];
        // Who stalls stays primary.
        options.settings.election_timeout = Duration::from_secs(60);
        let set = ReplicaSet::start(2, options).await.expect("a set starts");
        let primary = set.primary().await.expect("a primary").address();
        let client = set.client().await.expect("it can be reached");
        let user = NewUser::new("admin", USER, PASSWORD).role("readWriteAnyDatabase", "admin");
        create_user(&client, &user).await.expect("a user is made");
        let mut weather = Self {
            set,
            control: client,
            primary,
            binary: binary().to_owned(),
            seawall: None,
            listen: free_port().expect("a port"),
            admin: free_port().expect("a port"),
            pool_size,
        };
        weather.restart_seawall().await;
        weather
    }

    /// From the next start on.
    pub fn set_pool_size(&mut self, pool_size: usize) {
        self.pool_size = pool_size;
    }

    /// Kills Seawall and starts it again on the same ports; returns when it is ready.
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

    /// Starts Seawall, and does not wait for it.
    pub fn start_seawall(&mut self) {
        let mut command = Command::new(&self.binary);
        command
            .args(["serve", "--listen", &format!("127.0.0.1:{}", self.listen)])
            .args(["--admin", &format!("127.0.0.1:{}", self.admin)])
            .args(["--deployment", &self.set.uri()])
            .env("SEAWALL_POOL__MAX_POOL_SIZE", self.pool_size.to_string());
        self.seawall = Some(Process::start(&mut command).expect("Seawall starts"));
    }

    /// Seawall's process id.
    pub fn seawall_id(&self) -> Option<u32> {
        self.seawall.as_ref().map(Process::id)
    }

    /// Where loads through Seawall go.
    pub fn through(&self) -> String {
        format!("mongodb://{USER}:{PASSWORD}@127.0.0.1:{}/", self.listen)
    }

    /// Where loads on the primary itself go.
    pub fn primary(&self) -> String {
        format!("mongodb://{USER}:{PASSWORD}@{}/", self.primary)
    }

    /// Where loads on the secondary itself go.
    pub fn secondary(&self) -> String {
        let mut members = self.set.members().iter().map(Mongod::address);
        let secondary = members.find(|address| *address != self.primary);
        let secondary = secondary.expect("there are two members");
        format!("mongodb://{USER}:{PASSWORD}@{secondary}/?readPreference=secondary")
    }

    /// Stalls the primary for so long.
    pub async fn stall(&self, how: Stall, time: Duration) {
        let primary = self.set.member_at(self.primary).expect("it is a member");
        match how {
            Stall::Stopped => {
                primary.stop_process().expect("it can be stopped");
                tokio::time::sleep(time).await;
                primary.continue_process().expect("it can go on");
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
                    .expect("it is told");
                tokio::time::sleep(time).await;
                clear_fail_command(client).await.expect("it is told");
            }
        }
    }

    /// A load, to be run as a process of its own.
    pub fn load(&self, arguments: &[String]) -> Load {
        Load::start(&self.binary, arguments)
    }

    /// What Seawall has counted.
    pub async fn counts(&self) -> Counts {
        let Some(page) = self.get("/metrics").await else {
            return Counts::default();
        };
        Counts {
            created: sum_of(&page, "seawall_server_connections_created_total", &[]),
            open: sum_of(&page, "seawall_server_connections", &[]),
            authentications: sum_of(&page, "seawall_server_authentications_total", &[]),
        }
    }

    /// Logins of clients so far.
    pub async fn client_logins(&self) -> f64 {
        let page = self.get("/metrics").await.unwrap_or_default();
        let labels = ["result=\"ok\""];
        sum_of(&page, "seawall_client_authentications_total", &labels)
    }

    /// Clients connected now.
    pub async fn clients(&self) -> f64 {
        let page = self.get("/metrics").await.unwrap_or_default();
        sum_of(&page, "seawall_client_connections", &[])
    }

    /// The primary's process id.
    pub fn primary_id(&self) -> Option<u32> {
        let primary = self.set.member_at(self.primary)?.pid()?;
        u32::try_from(primary.as_raw_nonzero().get()).ok()
    }

    /// A page of the admin address; `None` if Seawall does not run.
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

    /// Logins that the primary itself has begun.
    pub async fn primary_logins(&self) -> f64 {
        let status = self
            .control
            .database("admin")
            .run_command(doc! { "serverStatus": 1 })
            .await;
        let status = status.expect("serverStatus");
        let received = || {
            let mechanisms = status
                .get_document("security")
                .ok()?
                .get_document("authentication")
                .ok()?;
            let of_ours = mechanisms
                .get_document("mechanisms")
                .ok()?
                .get_document("SCRAM-SHA-256")
                .ok()?;
            let received = of_ours.get_document("authenticate").ok()?.get("received")?;
            received
                .as_i64()
                .or_else(|| received.as_i32().map(i64::from))
        };
        i32::try_from(received().unwrap_or(0)).map_or(f64::NAN, f64::from)
    }
}

/// A load that runs.
#[derive(Debug)]
pub struct Load(tokio_process::Child);

impl Load {
    fn start(binary: &Path, arguments: &[String]) -> Self {
        let mut command = tokio_process::Command::new(binary);
        command
            .arg("load")
            .args(arguments)
            .args(["--format", "json", "--quiet"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        Self(command.kill_on_drop(true).spawn().expect("a load starts"))
    }

    /// What it came to.
    pub async fn report(self) -> Told {
        let output = self.0.wait_with_output().await.expect("it ends");
        assert!(
            output.status.success(),
            "a load ended with {}",
            output.status
        );
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let told = Told(report);
        assert!(told.number("/wrong").abs() < f64::EPSILON, "wrong answers");
        told
    }
}

/// What a load told.
#[derive(Clone, Debug)]
pub struct Told(pub Value);

impl Told {
    /// A number at this place.
    pub fn number(&self, pointer: &str) -> f64 {
        self.0
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or(f64::NAN)
    }

    /// A field of each second.
    pub fn seconds(&self, field: &str) -> Vec<f64> {
        let seconds = self.0.get("timeline").and_then(Value::as_array);
        let of_each = |second: &Value| second.get(field).and_then(Value::as_f64);
        let fields = seconds.into_iter().flatten().map(of_each);
        fields.map(|field| field.unwrap_or(f64::NAN)).collect()
    }
}
