//! The HTTP addresses: binds and serves them. An address cannot be bound if it is in use, or if
//! this host does not have it. If this happens at the start, Seawall serves clients without this
//! address, and tries to bind it again every second.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use seawall_config as config;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::TlsStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::StartError;
use crate::{
    admin::{self, AdminState, Admitted, Certificate, Handshake},
    client::Shared,
    listener::{ClientTls, FailedHandshake, HandshakeLog, TLS_LIMIT, certificates_of},
};
use seawall_transport::{Sharer, Stream, subject};

/// Time between two attempts to bind an address that could not be bound at the start.
const BIND_INTERVAL: Duration = Duration::from_secs(1);

/// The endpoints that an address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The API, metrics and health checks.
    All,
    /// Metrics and health checks.
    Metrics,
}

impl Content {
    /// The configuration key of the address.
    fn key(self) -> &'static str {
        match self {
            Self::All => "admin.address",
            Self::Metrics => "admin.metrics_address",
        }
    }
}

/// Binds and serves HTTP addresses. The fields are the state that all addresses share.
pub(super) struct Http<'a> {
    pub(super) state: Arc<AdminState>,
    /// Performs the handshake of each connection to an address with [`Content::All`].
    pub(super) handshake: Handshake,
    pub(super) stop: CancellationToken,
    pub(super) tasks: &'a TaskTracker,
    pub(super) runtime: &'a Handle,
}

impl Http<'_> {
    /// Binds an address and starts to serve it. Returns the bound address; `None` if the address is
    /// off, or if it will be bound later because [`is_taken`] is true for the error.
    ///
    /// # Errors
    /// If the address cannot be bound for another reason.
    pub(super) async fn serve(
        &self,
        address: &config::AdminAddress,
        content: Content,
    ) -> Result<Option<String>, StartError> {
        let config::AdminAddress::Tcp(address) = address else {
            return Ok(None);
        };
        let wanted = address.clone();
        let bound = self.runtime.spawn(TcpListener::bind(wanted)).await;
        let bound = bound.unwrap_or_else(|error| Err(io::Error::other(error)));
        let listener = match bound {
            Ok(listener) => Some(listener),
            Err(error) if is_taken(&error) => {
                tracing::error!(%error, address, key = content.key(), "could not bind the HTTP address; clients are served, and binding is tried again every second");
                None
            }
            Err(source) => {
                return Err(StartError::Bind {
                    address: address.clone(),
                    source,
                });
            }
        };
        let local = listener.as_ref().map(TcpListener::local_addr);
        let local = local.and_then(Result::ok).map(|local| local.to_string());
        let serving = run(
            (address.clone(), listener),
            content,
            Arc::clone(&self.handshake),
            Arc::clone(&self.state),
            self.stop.clone(),
        );
        self.tasks.spawn_on(serving, self.runtime);
        Ok(local)
    }
}

/// True if the address is in use or this host does not have it, so that it can perhaps be bound
/// later.
fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

/// Serves an address until `stop` is cancelled. Binds it first if there is no listener yet.
async fn run(
    (address, listener): (String, Option<TcpListener>),
    content: Content,
    handshake: Handshake,
    state: Arc<AdminState>,
    stop: CancellationToken,
) {
    let listener = match listener {
        Some(listener) => listener,
        None => match stop.run_until_cancelled(bind_later(&address)).await {
            Some(listener) => listener,
            None => return,
        },
    };
    let served = match content {
        Content::All => admin::serve(listener, handshake, state, stop).await,
        Content::Metrics => admin::serve_metrics(listener, state, stop).await,
    };
    if let Err(error) = served {
        tracing::error!(%error, address, key = content.key(), "HTTP listener failed");
    }
}

/// Returns the function that performs the TLS handshake with each caller of the admin address. The
/// function also logs failed handshakes. The cryptography runs on threads of low priority, so that
/// handshakes do not delay the control plane. While TLS is off, there is no handshake.
pub(super) fn handshakes(
    tls: watch::Receiver<Option<Arc<ClientTls>>>,
    shared: Arc<Shared>,
) -> Handshake {
    let log = Arc::new(HandshakeLog::default());
    Arc::new(move |stream, address| {
        let (tls, shared, log) = (tls.clone(), Arc::clone(&shared), Arc::clone(&log));
        Box::pin(async move {
            let limited = timeout(TLS_LIMIT, handshake(tls, &shared, stream, address)).await;
            let admitted = limited.unwrap_or_else(|late| Err(io::Error::from(late).into()));
            match admitted {
                Ok(admitted) => Some(admitted),
                Err(failed) => {
                    log.record_caller(failed.error(), address);
                    failed.close().await;
                    None
                }
            }
        })
    })
}

async fn handshake(
    tls: watch::Receiver<Option<Arc<ClientTls>>>,
    shared: &Shared,
    stream: TcpStream,
    address: SocketAddr,
) -> Result<Admitted, FailedHandshake> {
    let now = tls.borrow().clone();
    let Some(now) = now else {
        return Ok(Admitted {
            stream: Stream::Tcp(stream),
            certificate: None,
        });
    };
    let heavy = shared.limits.heavy(Sharer::at(Some(address.ip())));
    let Some(stream) = now.accept(tls.clone(), stream, heavy).await? else {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    };
    let stream = Stream::from(TlsStream::Server(stream));
    let chain = certificates_of(&stream);
    let subject = chain.first().map(|of| subject(of).unwrap_or_default());
    let certificate = subject.map(|subject| Certificate {
        subject,
        is_valid: Box::new(move || {
            let now = tls.borrow().clone();
            now.is_none_or(|tls| !tls.refuses(&chain))
        }),
    });
    Ok(Admitted {
        stream,
        certificate,
    })
}

async fn bind_later(address: &str) -> TcpListener {
    loop {
        sleep(BIND_INTERVAL).await;
        // Do not log this failure: the first failure was logged, and further failures usually have
        // the same cause.
        if let Ok(listener) = TcpListener::bind(address).await {
            tracing::info!(address, "HTTP address bound");
            return listener;
        }
    }
}
