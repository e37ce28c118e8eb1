//! Seawall as users run it, and what it tells.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    time::Duration,
};

use seawall_tests::{eventually::eventually, scratch::Scratch};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Plan;
use crate::process::{Process, free_port};

/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A process in front of a deployment; ends with the value.
#[derive(Debug)]
pub struct Seawall {
    process: Process,
    address: SocketAddr,
    admin: SocketAddr,
    _scratch: Scratch,
}

impl Seawall {
    /// Starts it with more configuration, in TOML, and waits until it is ready.
    ///
    /// # Panics
    /// If it is not within half a minute.
    pub async fn start(plan: &Plan, deployment: &str, toml: &str) -> Self {
        let scratch = Scratch::create().expect("a directory");
        let [address, admin] = [(); 2].map(|()| {
            let port = free_port().expect("a port");
            SocketAddr::from((Ipv4Addr::LOCALHOST, port))
        });
        let toml = format!(
            "listen.address = \"{address}\"\nadmin.address = \"{admin}\"\ndeployment.uri = {deployment:?}\n{toml}"
        );
        let file = scratch.write("seawall.toml", toml).expect("a file");
        let mut command = Command::new(&plan.binary);
        command.args(["serve", "--config"]).arg(file);
        let seawall = Self {
            process: Process::start(&mut command).expect("Seawall starts"),
            address,
            admin,
            _scratch: scratch,
        };
        eventually(START_LIMIT, || seawall.is_ready())
            .await
            .expect("Seawall is ready");
        seawall
    }

    /// Waits until it has found out where clients' credentials come from.
    ///
    /// # Panics
    /// If it has not within half a minute.
    pub async fn credentials_are_known(&self) {
        let are_known = || async {
            let status = self.api("/api/v1/status").await;
            status.get("credentials").is_some_and(|mode| mode != "auto")
        };
        eventually(START_LIMIT, are_known)
            .await
            .expect("the credentials' source is found");
    }

    /// Whether it answers and says that it is ready.
    pub async fn is_ready(&self) -> bool {
        let page = self.get("/health/ready").await;
        page.is_some_and(|page| page.starts_with("HTTP/1.1 200"))
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its metrics and API are.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Its process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// What the API answers.
    ///
    /// # Panics
    /// If that is not JSON.
    pub async fn api(&self, path: &str) -> Value {
        let body = self.body(path).await;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// All metrics.
    pub async fn metrics(&self) -> String {
        self.body("/metrics").await
    }

    async fn body(&self, path: &str) -> String {
        let page = self.get(path).await.expect("the admin address answers");
        let (head, body) = page.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {page}");
        body.to_owned()
    }

    async fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.admin).await.ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await.ok()?;
        Some(page)
    }
}

/// The rows of a list that the API answered.
pub fn rows<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    let rows = answer.get(name).and_then(Value::as_array);
    rows.map(Vec::as_slice).unwrap_or_default()
}

/// A number in a row; NaN where there is none, which equals nothing and is within no bounds.
pub fn number(row: &Value, pointer: &str) -> f64 {
    let number = row.pointer(pointer).and_then(Value::as_f64);
    number.unwrap_or(f64::NAN)
}

/// A text in a row; empty where there is none.
pub fn text<'a>(row: &'a Value, pointer: &str) -> &'a str {
    row.pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
