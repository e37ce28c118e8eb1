//! Tests of the PROXY protocol headers in which relays send the addresses of clients to servers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use seawall_locks::Mutex;
use seawall_tests::{
    mongod::{Options, Standalone, shared_standalone},
    raw::RawClient,
    seawall::Seawall,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    time::timeout,
};

const LIMIT: Duration = Duration::from_secs(20);

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A proxy in front of a server's port. It expects a PROXY protocol header at the start of each
/// connection, removes the header, and forwards the other bytes.
struct Gate {
    port: u16,
    /// The received PROXY protocol headers, without their signature.
    headers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Gate {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let headers = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let seen = Arc::clone(&headers);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    let header = read_header(&mut client).await;
                    seen.lock().push(header);
                    let mut server = TcpStream::connect(server).await.unwrap();
                    // An error is ignored: both connections are then closed.
                    drop(copy_bidirectional(&mut client, &mut server).await);
                });
            }
        });
        Self { port, headers }
    }

    fn take_headers(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.headers.lock())
    }
}

/// Reads a PROXY protocol header of version 2, and returns it without its signature.
async fn read_header(client: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 16];
    client.read_exact(&mut head).await.unwrap();
    assert_eq!(&head[..12], SIGNATURE);
    let length = u16::from_be_bytes([head[14], head[15]]);
    let mut addresses = vec![0; usize::from(length)];
    client.read_exact(&mut addresses).await.unwrap();
    [&head[12..], &addresses].concat()
}

/// The header of a client whose address is not an address of Seawall's host.
const REMOTE: &str = "PROXY TCP4 192.0.2.7 192.0.2.1 4711 27017\r\n";

/// Starts Seawall in front of the server with this connection string. Relays connect to the gate.
async fn start(uri: &str, gate: &Gate, settings: &str) -> Seawall {
    let toml = format!(
        "listen.proxy_protocol = \"accept\"\nlisten.proxy_networks = \"127.0.0.0/8\"\n\
         deployment.relay_proxy_port = {}\n{settings}\n",
        gate.port
    );
    let seawall = Seawall::start_configured(uri, &toml).await;
    // Seawall monitors the server at the server's own port, so the monitoring connections do not
    // reach `gate`.
    assert_eq!(gate.take_headers(), Vec::<Vec<u8>>::new());
    seawall
}

/// Connects with this header, and sends a `hello`.
async fn connect(seawall: &Seawall, header: &str) -> RawClient {
    let mut stream = TcpStream::connect(seawall.address()).await.unwrap();
    stream.write_all(header.as_bytes()).await.unwrap();
    let mut client = RawClient::new(stream);
    let reply = timeout(LIMIT, client.hello(doc! {})).await.unwrap();
    assert!(reply.unwrap().is_ok());
    client
}

/// A command that begins a login with a mechanism that the servers of these tests do not support.
fn begin_of_login() -> Document {
    let payload = Binary {
        subtype: BinarySubtype::Generic,
        bytes: b"\0app\0secret".to_vec(),
    };
    doc! { "saslStart": 1, "mechanism": "PLAIN", "payload": payload }
}

/// Checks that the gate has got one header, for the client with the header [`REMOTE`].
fn assert_remote(gate: &Gate) {
    let headers = gate.take_headers();
    let [sent] = headers.as_slice() else {
        panic!("{headers:?}")
    };
    // The header contains version 2, a proxied TCP connection over IPv4, and the addresses.
    assert_eq!(sent[..8], [0x21, 0x11, 0, 12, 192, 0, 2, 7], "{sent:?}");
    assert_eq!(sent[12..14], 4711_u16.to_be_bytes(), "{sent:?}");
}

const RELAY: &str = "deployment.mode = \"relay\"";

/// With this setting, a pooled client becomes a relayed client when it begins a login with a
/// mechanism other than SCRAM.
const RELAY_OTHER_MECHANISMS: &str = "auth.other_mechanisms = \"relay\"";

#[tokio::test]
async fn a_server_gets_the_address_of_a_relayed_client_in_a_proxy_header() {
    let server = shared_standalone().await.unwrap();
    let gate = Gate::start(server.address()).await;
    let seawall = start(&server.uri(), &gate, RELAY).await;
    let _remote = connect(&seawall, REMOTE).await;
    assert_remote(&gate);
    // The address of this client is a loopback address, so the header is `LOCAL` and has no
    // addresses.
    let local = "PROXY TCP4 127.0.0.9 192.0.2.1 4711 27017\r\n";
    let _local = connect(&seawall, local).await;
    assert_eq!(gate.take_headers(), [[0x20, 0, 0, 0]]);
}

#[tokio::test]
async fn a_server_gets_the_address_of_a_client_that_is_relayed_only_because_of_its_mechanism() {
    let server = shared_standalone().await.unwrap();
    let gate = Gate::start(server.address()).await;
    let seawall = start(&server.uri(), &gate, RELAY_OTHER_MECHANISMS).await;
    let mut client = connect(&seawall, REMOTE).await;
    assert_eq!(gate.take_headers(), Vec::<Vec<u8>>::new());
    let reply = timeout(LIMIT, client.command("$external", begin_of_login())).await;
    assert!(!reply.unwrap().unwrap().is_ok());
    assert_remote(&gate);
}

/// The server accepts only TLS. So it replies only if the TLS handshake follows the header, which
/// the gate reads in clear text and removes.
#[tokio::test]
async fn a_proxy_header_precedes_the_tls_handshake_with_a_server() {
    let options = Options {
        tls: true,
        ..Options::with_auth()
    };
    let server = Standalone::start(options).await.unwrap();
    let gate = Gate::start(server.address()).await;
    let mut direct = server.raw_client().await.unwrap();
    let refusal = direct.command("$external", begin_of_login()).await.unwrap();
    for settings in [RELAY, RELAY_OTHER_MECHANISMS] {
        let seawall = start(&server.uri(), &gate, settings).await;
        let mut client = connect(&seawall, REMOTE).await;
        let reply = timeout(LIMIT, client.command("$external", begin_of_login())).await;
        let reply = reply.unwrap().unwrap();
        assert_eq!(reply.body, refusal.body, "{settings}");
        assert_remote(&gate);
    }
}
