//! The HTTP addresses: binds and serves them. If an address cannot be bound at the start because it
//! is in use, or because this host does not have it, Seawall serves clients without this address,
//! and tries to bind it again every second.

use std::{io, net::SocketAddr, sync::Arc};

use seawall_config as config;
use tokio::{net::TcpStream, runtime::Handle, sync::watch, time::timeout};
use tokio_rustls::TlsStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::StartError;
use crate::{
    admin::{self, AdminState, Admitted, Certificate, Handshake, Sockets},
    client::Shared,
    listener::{ClientTls, FailedHandshake, HandshakeLog, TLS_LIMIT},
};
use seawall_transport::{Sharer, Stream, subject};

/// The endpoints that an address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedEndpoints {
    /// The API, the dashboard, metrics and health checks.
    All,
    /// Metrics and health checks.
    Metrics,
}

impl ServedEndpoints {
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
    /// Performs the handshake of each connection to an address with [`ServedEndpoints::All`].
    pub(super) handshake: Handshake,
    pub(super) stop: CancellationToken,
    pub(super) tasks: &'a TaskTracker,
    pub(super) runtime: &'a Handle,
}

impl Http<'_> {
    /// Binds an address and starts to serve it. Returns the bound addresses: several if the host
    /// name resolves to several addresses, none if the address is off or will be bound later.
    ///
    /// # Errors
    /// See [`Sockets::bind`].
    pub(super) async fn serve(
        &self,
        address: &config::AdminAddress,
        content: ServedEndpoints,
    ) -> Result<Vec<String>, StartError> {
        let config::AdminAddress::Tcp(address) = address else {
            return Ok(Vec::new());
        };
        let wanted = address.clone();
        let binding = async move { Sockets::bind(&wanted, content.key()).await };
        let bound = self.runtime.spawn(binding).await;
        let bound = bound.unwrap_or_else(|error| Err(io::Error::other(error)));
        let sockets = bound.map_err(|source| StartError::Bind {
            address: address.clone(),
            source,
        })?;
        let local = sockets.local_addresses();
        let serving = run(
            (address.clone(), sockets),
            content,
            Arc::clone(&self.handshake),
            Arc::clone(&self.state),
            self.stop.clone(),
        );
        self.tasks.spawn_on(serving, self.runtime);
        Ok(local)
    }
}

/// Serves an address until `stop` is cancelled.
async fn run(
    (address, sockets): (String, Sockets),
    content: ServedEndpoints,
    handshake: Handshake,
    state: Arc<AdminState>,
    stop: CancellationToken,
) {
    let served = match content {
        ServedEndpoints::All => admin::serve(sockets, handshake, state, stop).await,
        ServedEndpoints::Metrics => admin::serve_metrics(sockets, state, stop).await,
    };
    if let Err(error) = served {
        tracing::error!(%error, address, key = content.key(), "HTTP listener failed");
    }
}

/// Returns the function that performs the TLS handshake with each caller of the admin API. The
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
    let chain: Arc<[_]> = stream.peer_certificates().into();
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
