//! Runs Seawall in the test's own process, on free ports, in front of a deployment.

use std::time::Duration;

use mongodb::{Client, options::ClientOptions};
use seawall::app::{App, StartError};
use seawall_api::{Capture, Captures, Reload, Status};
use seawall_config::Loaded;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::eventually::eventually;

/// Time limit for Seawall to discover the deployment.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// A running Seawall. Dropping it stops it.
#[derive(Debug)]
pub struct Seawall {
    /// The running application. From it, tests read state that is not visible to clients.
    pub app: App,
    /// The part of the configuration that this fixture sets, in TOML.
    base: String,
}

/// Configuration of the Seawall under test.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Additional configuration in TOML: whole sections or dotted keys. It follows the keys that
    /// the fixture sets.
    pub toml: String,
    /// The address for clients; `None` means a free port on loopback. Not used if `toml` has
    /// `[[listeners]]`.
    pub listen: Option<String>,
}

impl Seawall {
    /// Starts Seawall with the deployment's address and free ports as its only configuration. Waits
    /// until the deployment is discovered.
    pub async fn start(deployment: &str) -> Self {
        Self::start_with(deployment, Options::default()).await
    }

    /// Like [`Self::start`], but with the additional configuration `toml` (see [`Options::toml`]).
    pub async fn start_configured(deployment: &str, toml: &str) -> Self {
        let options = Options {
            toml: toml.to_owned(),
            ..Options::default()
        };
        Self::start_with(deployment, options).await
    }

    /// Like [`Self::start`], but with the additional configuration `options`.
    pub async fn start_with(deployment: &str, options: Options) -> Self {
        let seawall = Self::launch(deployment, options)
            .await
            .expect("Seawall starts");
        seawall.ready().await;
        seawall
    }

    /// Starts Seawall without waiting for the deployment.
    ///
    /// # Errors
    /// If Seawall cannot start.
    pub async fn launch(deployment: &str, options: Options) -> Result<Self, StartError> {
        let listen = options.listen.unwrap_or_else(|| "127.0.0.1:0".to_owned());
        let listen = match options.toml.contains("[[listeners]]") {
            true => String::new(),
            false => format!("listen.address = {listen:?}\n"),
        };
        let base =
            format!("{listen}deployment.uri = {deployment:?}\nadmin.address = \"127.0.0.1:0\"\n");
        // The future is boxed. Otherwise the futures of tests would be larger than the lint
        // `large_futures` allows.
        let app = Box::pin(App::start(load(&base, &options.toml))).await?;
        Ok(Self { app, base })
    }

    /// Applies a new configuration: `toml` replaces [`Options::toml`].
    ///
    /// # Errors
    /// The problems that prevent the reload. Seawall then keeps the earlier configuration.
    ///
    /// # Panics
    /// If the TOML cannot be loaded as a configuration.
    pub async fn reload(&self, toml: &str) -> Result<Reload, Vec<String>> {
        let loaded = load(&self.base, toml);
        // The future is boxed. Otherwise the futures of tests would be larger than the lint
        // `large_futures` allows.
        Box::pin(self.app.reload(&loaded, false)).await
    }

    /// Waits until Seawall can serve operations.
    pub async fn ready(&self) {
        let ready = || async { self.get("/health/ready").await.0 == 200 };
        eventually(READY_LIMIT, ready)
            .await
            .expect("the deployment is discovered");
        let decided = || async {
            let status: Status = self.api("/api/v1/status").await;
            !["", "auto"].contains(&&*status.credentials)
        };
        eventually(READY_LIMIT, decided)
            .await
            .expect("the credential source is determined");
    }

    /// The address of the first listener for clients.
    pub fn address(&self) -> &str {
        self.app
            .client_addresses()
            .first()
            .expect("Seawall has a client address")
    }

    /// The addresses of all listeners for clients.
    pub fn addresses(&self) -> &[String] {
        self.app.client_addresses()
    }

    /// A connection string without credentials.
    pub fn uri(&self) -> String {
        format!("mongodb://{}/", self.address())
    }

    /// A client of the official driver that connects as this user through Seawall.
    pub async fn client(&self, user: &str, password: &str, source: &str) -> Client {
        let uri = format!(
            "mongodb://{user}:{password}@{}/?authSource={source}",
            self.address()
        );
        let options = ClientOptions::parse(uri)
            .await
            .expect("the connection string is valid");
        Client::with_options(options).expect("the options are valid")
    }

    /// The JSON document at this path of the API.
    pub async fn api<T: DeserializeOwned>(&self, path: &str) -> T {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// Sends a GET request to the admin address. Returns the HTTP status and the body of the reply.
    pub async fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path, "").await
    }

    /// Sends a request with additional header lines to the admin address. Returns the HTTP status
    /// and the body of the reply.
    pub async fn request(&self, method: &str, path: &str, headers: &str) -> (u16, String) {
        let address = self
            .app
            .admin_address()
            .expect("Seawall has an admin address");
        let host = format!("Host: {address}\r\n{headers}");
        http(address, method, path, &host).await
    }

    /// Sends a POST request with a JSON body to the admin address. Returns the HTTP status and the
    /// body of the reply.
    pub async fn post(&self, path: &str, json: &str) -> (u16, String) {
        // This text contains the body too, because `request` takes only header lines.
        let headers = format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{json}",
            json.len()
        );
        self.request("POST", path, &headers).await
    }

    /// Starts a capture of at most ten minutes and returns its id. `members` is appended to the
    /// request's JSON object: it is empty, or a comma and more members.
    pub async fn start_capture(&self, members: &str) -> String {
        let json = format!(r#"{{ "duration_ms": 600000{members} }}"#);
        let (status, body) = self.post("/api/v1/captures", &json).await;
        assert_eq!(status, 201, "{body}");
        let capture: Capture = serde_json::from_str(&body).expect("the reply is a capture");
        assert!(capture.running);
        capture.id
    }

    /// Stops a capture and returns its description.
    pub async fn stop_capture(&self, id: &str) -> Capture {
        let path = format!("/api/v1/captures/{id}/stop");
        let (status, body) = self.request("POST", &path, "").await;
        assert_eq!(status, 200, "{body}");
        self.capture(id).await
    }

    /// The description of a capture.
    pub async fn capture(&self, id: &str) -> Capture {
        let captures: Captures = self.api("/api/v1/captures").await;
        let mut captures = captures.captures.into_iter();
        let found = captures.find(|capture| capture.id == id);
        found.expect("the capture is listed")
    }

    /// The sum of a metric over the series whose lines contain all of `labels`.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let (_, text) = self.get("/metrics").await;
        sum_of(&text, name, labels)
    }

    /// Waits until two server connections are available, so that each of the next two concurrent
    /// operations finds one.
    ///
    /// # Panics
    /// If fewer connections are available after `limit`.
    pub async fn wait_for_two_available(&self, limit: Duration) {
        let are_available = async || {
            let available = ["state=\"available\""];
            self.metric("seawall_server_connections", &available).await >= 2.0
        };
        eventually(limit, are_available)
            .await
            .expect("two server connections are available");
    }

    /// Checks that every client connection since the start is still open.
    ///
    /// # Panics
    /// If a connection has ended.
    pub async fn assert_all_connected(&self) {
        let (_, text) = self.get("/metrics").await;
        let [opened, connected] = [
            "seawall_client_connections_total",
            "seawall_client_connections",
        ]
        .map(|name| sum_of(&text, name, &[]));
        assert!(
            (opened - connected).abs() < f64::EPSILON,
            "{connected} of {opened} client connections are still open"
        );
    }
}

fn load(base: &str, toml: &str) -> Loaded {
    let loaded = Loaded::from_toml(&format!("{base}{toml}"));
    loaded.unwrap_or_else(|problems| panic!("{problems}"))
}

/// Sends a request with these header lines to an HTTP address of Seawall. Returns the HTTP status
/// and the body of the reply.
///
/// # Panics
/// If there is no reply.
pub async fn http(address: &str, method: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address)
        .await
        .expect("the admin address accepts connections");
    let request = format!("{method} {path} HTTP/1.0\r\n{headers}Connection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the request can be sent");
    let mut reply = String::new();
    stream
        .read_to_string(&mut reply)
        .await
        .expect("the reply is text");
    let status = reply
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .expect("the reply has a status");
    let body = reply
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned());
    (status, body.unwrap_or_default())
}

/// The sum of a metric over the series whose lines contain all of `labels`. `text` is in
/// Prometheus' text format.
pub fn sum_of(text: &str, name: &str, labels: &[&str]) -> f64 {
    let series = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        let is_named = rest.is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '));
        is_named && labels.iter().all(|label| line.contains(label))
    });
    series
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
