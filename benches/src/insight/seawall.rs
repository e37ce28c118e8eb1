//! Starts the Seawall binary, and reads its health check, metrics and API.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use seawall_api::Status;
use seawall_tests::{eventually::eventually, scratch::Scratch};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Plan;
use crate::process::{Process, free_port, serve};

/// Time limit for Seawall to become ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A Seawall process in front of a deployment. Dropping the value kills the process.
#[derive(Debug)]
pub struct Seawall {
    process: Process,
    address: SocketAddr,
    admin: SocketAddr,
    _scratch: Scratch,
}

impl Seawall {
    /// Starts Seawall in front of the deployment with the URI `deployment`, and waits until Seawall
    /// is ready. `toml` is added to the configuration.
    ///
    /// # Panics
    /// If Seawall is not ready within half a minute.
    pub async fn start(plan: &Plan, deployment: &str, toml: &str) -> Self {
        let scratch = Scratch::create().expect("the directory can be created");
        let [address, admin] = [(); 2].map(|()| {
            let port = free_port().expect("a port is free");
            SocketAddr::from((Ipv4Addr::LOCALHOST, port))
        });
        let toml = format!(
            "listen.address = \"{address}\"\nadmin.address = \"{admin}\"\ndeployment.uri = {deployment:?}\n{toml}"
        );
        let file = scratch
            .write("seawall.toml", toml)
            .expect("the file can be written");
        let mut command = serve(&plan.binary);
        command.arg("--config").arg(file);
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

    /// Waits until Seawall has determined the source of the clients' credentials.
    ///
    /// # Panics
    /// If Seawall has not determined the source within half a minute.
    pub async fn wait_for_credential_source(&self) {
        let are_known = || async {
            let status: Status = self.api("/api/v1/status").await;
            status.credentials != "auto"
        };
        eventually(START_LIMIT, are_known)
            .await
            .expect("the credential source is determined");
    }

    /// True if Seawall's health check reports that Seawall is ready.
    pub async fn is_ready(&self) -> bool {
        let page = self.get("/health/ready").await;
        page.is_some_and(|page| page.starts_with("HTTP/1.1 200"))
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the metrics and of the API.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The id of the Seawall process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// The JSON document at this path of the API.
    ///
    /// # Panics
    /// If there is no such document, or it cannot be parsed.
    pub async fn api<T: DeserializeOwned>(&self, path: &str) -> T {
        let body = self.body(path).await;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// Returns all metrics.
    pub async fn metrics(&self) -> String {
        self.body("/metrics").await
    }

    async fn body(&self, path: &str) -> String {
        let page = self.get(path).await.expect("the admin address responds");
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
