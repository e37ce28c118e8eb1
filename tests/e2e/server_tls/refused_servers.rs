//! Servers whose certificates Seawall refuses.

use std::sync::Arc;

use futures_util::future::join_all;
use seawall_locks::Mutex;
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    eventually::eventually,
    scratch::Scratch,
};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::{FILES, LIMIT, TLS, check_refusal, serve};

/// A server that presents a certificate. It closes each connection after the first bytes that
/// follow the TLS handshake.
struct Presenter {
    port: u16,
    outcomes: Arc<Mutex<Vec<HandshakeOutcome>>>,
}

/// The first bytes that followed a TLS handshake, or the error of the handshake.
type HandshakeOutcome = Result<Vec<u8>, String>;

impl Presenter {
    async fn start(identity: &Identity) -> Self {
        let acceptor = TlsAcceptor::from(identity.server_config().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let outcomes: Arc<Mutex<Vec<HandshakeOutcome>>> = Arc::default();
        let recorded = Arc::clone(&outcomes);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, recorded) = (acceptor.clone(), Arc::clone(&recorded));
                tokio::spawn(async move {
                    let outcome = Self::first_bytes(acceptor, stream).await;
                    recorded.lock().push(outcome);
                });
            }
        });
        Self { port, outcomes }
    }

    async fn first_bytes(acceptor: TlsAcceptor, stream: TcpStream) -> HandshakeOutcome {
        let accepted = acceptor.accept(stream).await;
        let mut stream = accepted.map_err(|error| error.to_string())?;
        let mut bytes = vec![0; 4096];
        let length = stream.read(&mut bytes).await.unwrap_or(0);
        bytes.truncate(length);
        Ok(bytes)
    }

    /// True if a handshake ended with an error that contains `text`.
    fn has_error(&self, text: &str) -> bool {
        let outcomes = self.outcomes.lock();
        let mut errors = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        errors.any(|error| error.contains(text))
    }
}

/// A certificate that Seawall must refuse.
struct Unacceptable {
    identity: Identity,
    /// A part of the error in Seawall's log.
    cause: &'static str,
    /// A part of the error that the server gets. It names the TLS alert that Seawall has sent.
    alert: &'static str,
    /// True if the official driver, with which Seawall monitors servers, accepts the certificate.
    /// The driver checks no revocation lists.
    driver_accepts: bool,
}

impl Unacceptable {
    fn new(identity: Identity, cause: &'static str, alert: &'static str) -> Self {
        Self {
            identity,
            cause,
            alert,
            driver_accepts: false,
        }
    }

    /// Starts Seawall with the files in `scratch`, in front of a server with this certificate.
    /// Checks that Seawall logs the cause, that the server gets the alert, and that Seawall sends
    /// the server no login.
    async fn check(&self, scratch: &Scratch) {
        let server = Presenter::start(&self.identity).await;
        let process = serve(scratch, server.port, TLS, FILES).await;
        check_refusal(&process, self.cause).await;
        let is_refused = async || server.has_error(self.alert);
        eventually(LIMIT, is_refused).await.unwrap();
        for passed in server.outcomes.lock().iter().flatten() {
            assert!(self.driver_accepts, "{}: {passed:?}", self.cause);
            let has_login = passed.windows(4).any(|bytes| bytes == b"sasl");
            assert!(!has_login, "{}", self.cause);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seawall_logs_why_it_refuses_a_server_certificate_and_sends_a_tls_alert_but_no_login() {
    let scratch = Scratch::create().unwrap();
    let authority = Authority::generate("servers").unwrap();
    let foreign = Authority::generate("foreign").unwrap();
    let host = ["127.0.0.1"];
    let revoked = authority.server(&host, &ECDSA).unwrap();
    scratch.write("ca.pem", authority.pem()).unwrap();
    let list = authority.revocation_list(&[&revoked]).unwrap();
    scratch.write("crl.pem", list).unwrap();
    let client = authority.client("seawall", YEAR).unwrap();
    scratch.write("client.pem", client.pem()).unwrap();
    let of_foreign = foreign.server(&host, &ECDSA).unwrap();
    let of_other_host = authority.server(&["elsewhere.example"], &ECDSA).unwrap();
    let expired = authority.expired_server(&host).unwrap();
    let self_signed = Identity::self_signed_server(&host).unwrap();
    let cases = [
        Unacceptable::new(of_foreign, "UnknownIssuer", "UnknownCA"),
        Unacceptable::new(self_signed, "UnknownIssuer", "UnknownCA"),
        Unacceptable::new(expired, "certificate expired", "CertificateExpired"),
        Unacceptable::new(of_other_host, "not valid for name", "BadCertificate"),
        Unacceptable {
            driver_accepts: true,
            ..Unacceptable::new(revoked, "Revoked", "CertificateRevoked")
        },
    ];
    join_all(cases.iter().map(|case| case.check(&scratch))).await;
}
