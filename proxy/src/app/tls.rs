//! TLS for clients: converts its settings. Reports when certificates of clients and servers expire.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use seawall_config as config;
use tokio::{sync::watch, time::sleep};

use crate::listener::{ClientCertificates, ClientTls, ServerTlsError, TlsSettings};
use seawall_transport::{CertificateExpiry, Pem};

/// How often the log names certificates that expire soon.
const REPORT_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Certificates that expire within this number of days are reported.
const SOON_DAYS: i64 = 30;

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// Sets up TLS for clients; `None` if clients connect without TLS. Sessions of `earlier` can be
/// resumed if it verifies clients in the same way.
pub(crate) fn client_tls(
    listen: &config::Listen,
    earlier: Option<&ClientTls>,
) -> Result<Option<Arc<ClientTls>>, ServerTlsError> {
    let Some(tls) = &listen.tls else {
        return Ok(None);
    };
    let keys = pems(&tls.key_files);
    let settings = TlsSettings {
        certificates: pems(&tls.certificate_files).into_iter().zip(keys).collect(),
        allows_plain: tls.mode == config::TlsMode::Prefer,
        client_certificates: match tls.client_certificate {
            config::ClientCertificate::None => None,
            required => Some(ClientCertificates {
                is_required: required == config::ClientCertificate::Required,
                authorities: pems(tls.client_ca_files.as_deref().unwrap_or_default()),
                revocation_lists: pems(tls.client_crl_files.as_deref().unwrap_or_default()),
            }),
        },
        closes_revoked: tls.close_revoked,
    };
    Ok(Some(Arc::new(ClientTls::new(&settings, earlier)?)))
}

fn pems(files: &[config::ReadFile]) -> Vec<Pem<'_>> {
    files.iter().map(pem).collect()
}

pub(super) fn pem(file: &config::ReadFile) -> Pem<'_> {
    Pem {
        path: file.path(),
        content: file.expose(),
    }
}

/// The TLS files that can expire: the files for clients and the files for servers.
#[derive(Clone)]
pub(super) struct Expiries {
    pub(super) clients: watch::Receiver<Option<Arc<ClientTls>>>,
    pub(super) servers: watch::Receiver<Vec<CertificateExpiry>>,
}

impl Expiries {
    /// When each file with certificates, authorities or revocation lists expires; each file once.
    pub(super) fn all(&self) -> Vec<CertificateExpiry> {
        let clients = self.clients.borrow();
        let mut all = match &*clients {
            Some(tls) => tls.expiries().to_vec(),
            None => Vec::new(),
        };
        for expiry in &*self.servers.borrow() {
            if all.iter().all(|other| other.file != expiry.file) {
                all.push(expiry.clone());
            }
        }
        all
    }
}

/// When each certificate and authority expires, for the API.
pub(super) fn for_api(expiries: &Expiries) -> Vec<seawall_api::Certificate> {
    let certificates = expiries.all().into_iter();
    let certificates = certificates.map(|expiry| seawall_api::Certificate {
        file: expiry.file,
        not_after: expiry.not_after,
    });
    certificates.collect()
}

/// Logs all certificates, after they were loaded.
pub(super) fn log_loaded(expiries: &[CertificateExpiry]) {
    for expiry in expiries {
        if !log_if_soon(expiry) {
            let days = days_left(expiry);
            tracing::info!(file = expiry.file, days, "certificate loaded");
        }
    }
}

/// Logs once a day which certificates have expired or expire soon.
pub(super) async fn watch_expiries(expiries: Expiries) {
    loop {
        sleep(REPORT_INTERVAL).await;
        for expiry in expiries.all() {
            log_if_soon(&expiry);
        }
    }
}

/// Logs a certificate that has expired or expires soon. Returns false for any other.
fn log_if_soon(expiry: &CertificateExpiry) -> bool {
    let days = days_left(expiry);
    let file = &expiry.file;
    if days < 0 {
        tracing::error!(file, days, "certificate has expired");
    } else if days < SOON_DAYS {
        tracing::warn!(file, days, "certificate expires soon");
    }
    days < SOON_DAYS
}

/// Number of whole days until the expiry; negative after it.
fn days_left(expiry: &CertificateExpiry) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
    expiry
        .not_after
        .saturating_sub(now)
        .div_euclid(SECONDS_PER_DAY)
}
