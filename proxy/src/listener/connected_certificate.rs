//! Closes connected clients whose certificate a new TLS configuration refuses (`close_revoked`).

use std::sync::Arc;

use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

use super::tls::{ClientTls, ConnectedVerifier};
use crate::limits::{HandshakeStep, Limits};
use seawall_transport::Sharer;

/// The certificate of a connected client.
pub(super) struct ConnectedCertificate {
    pub(super) chain: Arc<[CertificateDer<'static>]>,
    /// The time of the client's handshake.
    pub(super) since: UnixTime,
    /// The last verifier that has accepted the chain; `None` if that configuration closes no
    /// clients.
    pub(super) verified: Option<Arc<ConnectedVerifier>>,
}

/// Waits until a new configuration closes connected clients with this certificate, and then for the
/// turn to close the connection. The closes are spread over time, so that not all closed clients
/// reconnect at the same time. The chain is verified on a thread of low priority, because after a
/// reload all connections verify their chains at the same time. A configuration that verifies
/// clients like the previous one, for example after a rotation of Seawall's own certificate, causes
/// no verification.
pub(super) async fn until_refused(
    limits: &Limits,
    sharer: Sharer,
    mut tls: watch::Receiver<Option<Arc<ClientTls>>>,
    mut certificate: ConnectedCertificate,
) {
    loop {
        if tls.changed().await.is_err() {
            // The sender has been dropped, so there will be no new configuration.
            return std::future::pending().await;
        }
        let current = tls.borrow_and_update().clone();
        let Some(verifier) = current.and_then(|tls| tls.connected().cloned()) else {
            continue;
        };
        let verified = certificate.verified.as_ref();
        if verified.is_some_and(|verified| Arc::ptr_eq(verified, &verifier)) {
            continue;
        }
        let (chain, since) = (Arc::clone(&certificate.chain), certificate.since);
        let verifying = Arc::clone(&verifier);
        let heavy = limits.heavy(sharer);
        // The future is boxed, so that the future of each connection stays small.
        let verifying = heavy.handshake_step(HandshakeStep::First, move || {
            verifying.refuses(&chain, since)
        });
        if !Box::pin(verifying).await {
            certificate.verified = Some(verifier);
            continue;
        }
        // The operator may correct the configuration during the wait. Then the chain is verified
        // again, by the new configuration.
        let is_due = || !tls.has_changed().unwrap_or_default();
        let turns = &limits.closes().refused_certificates;
        if turns.take(sharer, is_due).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use futures_util::future::join_all;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    use tokio::time::{Instant, timeout};

    use super::{
        super::{ClientCertificates, TlsSettings},
        *,
    };
    use crate::limits::{LimitNumbers, OperationPermits};
    use seawall_transport::Pem;

    fn authority() -> (rcgen::Certificate, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        (certificate, Issuer::new(params, key))
    }

    /// A configuration that requires certificates of this authority. It closes connected clients
    /// whose certificate comes from another authority.
    /// `earlier` is the configuration before it, if any.
    fn client_tls(authority: &rcgen::Certificate, earlier: Option<&ClientTls>) -> Arc<ClientTls> {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let path = Path::new("file");
        let [certificate, key, authority] = [
            own.cert.pem(),
            own.signing_key.serialize_pem(),
            authority.pem(),
        ];
        let pem = |content| Pem { path, content };
        let settings = TlsSettings {
            certificates: vec![(pem(&certificate), pem(&key))],
            allows_plain: false,
            client_certificates: Some(ClientCertificates {
                is_required: true,
                authorities: vec![pem(&authority)],
                revocation_lists: Vec::new(),
            }),
            closes_revoked: true,
        };
        Arc::new(ClientTls::new(&settings, earlier).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn clients_with_refused_certificates_are_closed_one_after_another() {
        let [(first, issuer), (second, _)] = [(); 2].map(|()| authority());
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // The certificate has expired since the handshake. This alone closes no client.
        params.not_after = date_time_ymd(2_025, 1, 1);
        let since = date_time_ymd(2_024, 1, 1).unix_timestamp();
        let since = Duration::from_secs(u64::try_from(since).unwrap());
        let since = UnixTime::since_unix_epoch(since);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let chain: Arc<[_]> = Arc::new([certificate.der().clone()]);
        let limits = Limits::new(LimitNumbers::of_each(9), OperationPermits::new(9));
        let tls = watch::Sender::new(Some(client_tls(&first, None)));
        let begun = Instant::now();
        let closed = (0..3).map(|_| {
            let certificate = ConnectedCertificate {
                chain: Arc::clone(&chain),
                since,
                verified: None,
            };
            let closed = until_refused(&limits, Sharer::Local, tls.subscribe(), certificate);
            async move {
                closed.await;
                Instant::now() - begun
            }
        });
        let mut closed = Box::pin(join_all(closed));
        // Without a new configuration, no connection is closed.
        let is_closed = timeout(Duration::from_secs(1), &mut closed).await.is_ok();
        assert!(!is_closed);
        // A configuration that accepts the certificate closes no connection. Each connection holds
        // the configuration until its chain has been verified.
        let accepting = client_tls(&first, None);
        tls.send_replace(Some(Arc::clone(&accepting)));
        loop {
            let is_closed = timeout(Duration::from_secs(1), &mut closed).await.is_ok();
            assert!(!is_closed);
            if Arc::strong_count(&accepting) == 2 {
                break;
            }
        }
        let is_closed = timeout(Duration::from_secs(1), &mut closed).await.is_ok();
        assert!(!is_closed);
        tls.send_replace(Some(client_tls(&second, None)));
        let mut times: Vec<_> = closed.await.iter().map(Duration::as_millis).collect();
        times.sort_unstable();
        // The clock of the test also advances while other threads verify the chains. So the time
        // between two closes may be longer than 10 ms.
        assert!(times[0] >= 1_000);
        let between = times.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(between.min().is_some_and(|least| least >= 10), "{times:?}");
    }

    /// After a rotation of Seawall's own certificate, thousands of connections would verify their
    /// chains again. This test shows that they do not: the verifier would refuse the chain.
    #[tokio::test(start_paused = true)]
    async fn a_rotation_of_seawalls_own_certificate_verifies_no_connected_client_again() {
        let [(first, _), (second, _)] = [(); 2].map(|()| authority());
        let earlier = client_tls(&first, None);
        let certificate = ConnectedCertificate {
            chain: Arc::new([second.der().clone()]),
            since: UnixTime::now(),
            verified: earlier.connected().cloned(),
        };
        let limits = Limits::new(LimitNumbers::of_each(9), OperationPermits::new(9));
        let tls = watch::Sender::new(Some(Arc::clone(&earlier)));
        let closed = until_refused(&limits, Sharer::Local, tls.subscribe(), certificate);
        let mut closed = Box::pin(closed);
        tls.send_replace(Some(client_tls(&first, Some(&earlier))));
        let is_closed = timeout(Duration::from_secs(1), &mut closed).await.is_ok();
        assert!(!is_closed);
        // This configuration was created without `earlier`, so it has another verifier.
        tls.send_replace(Some(client_tls(&first, None)));
        closed.await;
    }
}
