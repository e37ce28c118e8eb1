//! TLS for clients: sets it up, and replaces it at a reload. Reports when certificates expire.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use seawall_config as config;
use tokio::{sync::watch, time::sleep};

use super::StartError;
use crate::{
    listener::{ClientCertificates, ClientTls, TlsSettings},
    observe::CertificateSeries,
};
use seawall_transport::{
    AuthorityWithoutList, CertificateExpiry, ExpiryKind, Pem, without_repetitions,
};

/// Certificates that expire within this time are reported. Most programs that renew certificates
/// renew them earlier. So a reported certificate has probably not been renewed as planned.
const CERTIFICATE_SOON_SECONDS: i64 = 14 * SECONDS_PER_DAY;

/// Revocation lists that expire within this time are reported. Many authorities issue a list every
/// day. A longer time, for example a day, could report their lists all the time.
const LIST_SOON_SECONDS: i64 = 6 * 60 * 60;

/// Interval at which certificates and revocation lists that expire soon are logged. It is not
/// longer than [`LIST_SOON_SECONDS`], so each list is reported before it expires.
const REPORT_INTERVAL: Duration = Duration::from_secs(LIST_SOON_SECONDS.unsigned_abs());

/// The configuration path of the TLS settings for the admin address.
pub(super) const ADMIN_TLS: &str = "admin.tls";

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// TLS that has been set up, or the reason why it cannot be set up; `None` if TLS is off.
type Built = Result<Option<Arc<ClientTls>>, StartError>;

/// TLS for the clients of one listener, or for the callers of the admin address.
pub(super) struct RunningTls {
    /// The path of the TLS settings, for example `listen.tls`.
    section: String,
    current: watch::Sender<Option<Arc<ClientTls>>>,
}

/// A changed TLS configuration that is not yet in use; `None` if TLS is now off.
pub(super) struct NewTls(Option<Arc<ClientTls>>);

impl RunningTls {
    /// Sets up TLS at the start. `section` is the path of the TLS settings, for example
    /// `listen.tls`.
    ///
    /// # Errors
    /// See [`StartError::ClientTls`].
    pub(super) fn start(section: String, tls: Option<&config::Tls>) -> Result<Self, StartError> {
        let current = client_tls(&section, tls, None)?;
        warn(&section, current.as_deref());
        Ok(Self {
            section,
            current: watch::Sender::new(current),
        })
    }

    /// A receiver of the TLS configuration, which later reloads change; `None` while TLS is off.
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<ClientTls>>> {
        self.current.subscribe()
    }

    /// Sets up TLS with changed settings; `None` if they have not changed.
    ///
    /// # Errors
    /// See [`StartError::ClientTls`].
    pub(super) fn prepare(
        &self,
        new: Option<&config::Tls>,
        running: Option<&config::Tls>,
    ) -> Result<Option<NewTls>, StartError> {
        if new == running {
            return Ok(None);
        }
        let earlier = self.current.borrow().clone();
        let tls = client_tls(&self.section, new, earlier.as_deref())?;
        Ok(Some(NewTls(tls)))
    }

    /// Uses a changed configuration for new handshakes.
    pub(super) fn replace(&self, NewTls(tls): NewTls) {
        let earlier = self.current.borrow().clone();
        log_replaced(expiries(tls.as_deref()), expiries(earlier.as_deref()));
        warn(&self.section, tls.as_deref());
        self.current.send_replace(tls);
    }
}

/// The problems of all TLS settings for clients and for callers of the admin address.
pub(crate) fn tls_problems(settings: &config::Settings) -> Vec<String> {
    let built = built_tls(settings).into_iter();
    built
        .filter_map(|(_, built)| Some(built.err()?.to_string()))
        .collect()
}

/// The warnings about all TLS settings for clients and for callers of the admin address.
pub(crate) fn tls_warnings(settings: &config::Settings) -> Vec<String> {
    let mut warnings = Vec::new();
    for (section, built) in built_tls(settings) {
        let tls = built.ok().flatten();
        for AuthorityWithoutList {
            authority, list, ..
        } in authorities_without_list(tls.as_deref())
        {
            warnings.push(format!(
                "{section}: certificates of the authority {authority} are refused, because its \
                 revocation list is {list}"
            ));
        }
    }
    warnings
}

/// Sets up TLS for the clients of each listener and for callers of the admin address. Returns each
/// result with the path of its settings.
fn built_tls(settings: &config::Settings) -> Vec<(String, Built)> {
    let listeners = settings.listeners();
    let listeners = listeners.iter().map(|of| (section_of(of), of.tls.as_ref()));
    let all = listeners.chain([(ADMIN_TLS.to_owned(), settings.admin.tls.as_ref())]);
    let built = all.map(|(section, tls)| {
        let built = client_tls(&section, tls, None);
        (section, built)
    });
    built.collect()
}

/// Logs each certificate authority for client certificates that has no current revocation list.
/// Logs nothing if no revocation list is configured, because revocation is then not checked.
fn warn(section: &str, tls: Option<&ClientTls>) {
    for AuthorityWithoutList {
        authority, list, ..
    } in authorities_without_list(tls)
    {
        tracing::warn!(
            section,
            authority,
            list,
            "authority has no current revocation list"
        );
    }
}

fn expiries(tls: Option<&ClientTls>) -> &[CertificateExpiry] {
    tls.map(ClientTls::expiries).unwrap_or_default()
}

fn authorities_without_list(tls: Option<&ClientTls>) -> Vec<AuthorityWithoutList> {
    tls.map(ClientTls::authorities_without_list)
        .unwrap_or_default()
}

/// The configuration path of the TLS settings for a listener.
pub(super) fn section_of(listener: &config::Listener) -> String {
    format!("{}.tls", listener.path)
}

/// Sets up TLS for clients; `None` if clients connect without TLS. TLS sessions of the
/// configuration `earlier` can be resumed if both configurations verify clients in the same way.
fn client_tls(
    section: &str,
    tls: Option<&config::Tls>,
    earlier: Option<&ClientTls>,
) -> Result<Option<Arc<ClientTls>>, StartError> {
    let Some(tls) = tls else {
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
    let tls = ClientTls::new(&settings, earlier);
    let tls = tls.map_err(|source| StartError::ClientTls {
        section: section.to_owned(),
        source,
    })?;
    Ok(Some(Arc::new(tls)))
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

/// The sources of the expiry times of all TLS files. A reload updates them.
#[derive(Clone)]
pub(super) struct Expiries {
    /// The TLS configurations of each listener and of the admin address.
    pub(super) clients: Vec<watch::Receiver<Option<Arc<ClientTls>>>>,
    /// The expiry times of the TLS files for connections that Seawall opens: to servers, to the
    /// peers of the admin address, and to the collector of metrics.
    pub(super) outgoing: Vec<watch::Receiver<Vec<CertificateExpiry>>>,
}

impl Expiries {
    /// When each certificate, authority and revocation list expires. An item is returned only once,
    /// even if several listeners or connections use its file.
    pub(super) fn all(&self) -> Vec<CertificateExpiry> {
        let mut all = Vec::new();
        for tls in &self.clients {
            if let Some(tls) = &*tls.borrow() {
                all.extend_from_slice(tls.expiries());
            }
        }
        for expiries in &self.outgoing {
            all.extend_from_slice(&expiries.borrow());
        }
        without_repetitions(all)
    }
}

/// The entries of [`Expiries::all`] for the API.
pub(super) fn for_api(expiries: &Expiries) -> Vec<seawall_api::Certificate> {
    let certificates = expiries.all().into_iter();
    let certificates = certificates.map(|expiry| seawall_api::Certificate {
        file: expiry.file,
        kind: expiry.kind.as_str().to_owned(),
        not_after: expiry.not_after,
        serial: expiry.serial,
        subject: expiry.subject,
    });
    certificates.collect()
}

/// The time series of the metric `seawall_certificate_expiry_timestamp_seconds`. `expiries` are the
/// entries of [`Expiries::all`]. If several entries have the same labels, only the earliest expiry
/// is in the metric. The number of a revocation list is no label, because each new list would begin
/// a new series.
pub(super) fn series(expiries: Vec<CertificateExpiry>) -> Vec<CertificateSeries> {
    let mut earliest = BTreeMap::new();
    for expiry in expiries {
        let serial = match expiry.kind {
            ExpiryKind::Certificate => expiry.serial,
            ExpiryKind::RevocationList => String::new(),
        };
        let labels = (expiry.file, expiry.kind.as_str(), expiry.subject, serial);
        let not_after = earliest.entry(labels).or_insert(expiry.not_after);
        *not_after = expiry.not_after.min(*not_after);
    }
    let series = earliest.into_iter();
    let series = series.map(
        |((file, kind, subject, serial), not_after)| CertificateSeries {
            file,
            kind,
            subject,
            serial,
            not_after,
        },
    );
    series.collect()
}

/// Logs each certificate and revocation list that was loaded, with the days until it expires.
pub(super) fn log_loaded(expiries: &[CertificateExpiry]) {
    for expiry in expiries {
        if !log_if_soon(expiry) {
            let days = days(seconds_left(expiry));
            let (file, kind) = (&expiry.file, expiry.kind.as_str());
            let (subject, serial) = (&expiry.subject, &expiry.serial);
            tracing::info!(
                file,
                kind,
                subject,
                serial,
                days,
                "certificate or revocation list loaded"
            );
        }
    }
}

/// Like [`log_loaded`], but skips the entries that are also in `earlier`.
pub(super) fn log_replaced(expiries: &[CertificateExpiry], earlier: &[CertificateExpiry]) {
    log_loaded(&added(expiries, earlier));
}

/// The entries that are not in `earlier`.
fn added(expiries: &[CertificateExpiry], earlier: &[CertificateExpiry]) -> Vec<CertificateExpiry> {
    let earlier: HashSet<_> = earlier.iter().collect();
    let added = expiries.iter().filter(|expiry| !earlier.contains(expiry));
    added.cloned().collect()
}

/// Logs every six hours which certificates and revocation lists have expired or expire soon.
pub(super) async fn watch_expiries(expiries: Expiries) {
    loop {
        sleep(REPORT_INTERVAL).await;
        for expiry in expiries.all() {
            log_if_soon(&expiry);
        }
    }
}

/// Logs a certificate or revocation list if it has expired or expires soon. Returns true if it was
/// logged.
fn log_if_soon(expiry: &CertificateExpiry) -> bool {
    let left = seconds_left(expiry);
    let is_soon = is_soon(expiry.kind, left);
    let days = days(left);
    let (file, kind) = (&expiry.file, expiry.kind.as_str());
    let (subject, serial) = (&expiry.subject, &expiry.serial);
    if days < 0 {
        tracing::error!(
            file,
            kind,
            subject,
            serial,
            days,
            "certificate or revocation list has expired"
        );
    } else if is_soon {
        tracing::warn!(
            file,
            kind,
            subject,
            serial,
            days,
            "certificate or revocation list expires soon"
        );
    }
    is_soon
}

/// True if a certificate or revocation list has so few seconds left that it must be reported.
fn is_soon(kind: ExpiryKind, seconds_left: i64) -> bool {
    seconds_left
        < match kind {
            ExpiryKind::Certificate => CERTIFICATE_SOON_SECONDS,
            ExpiryKind::RevocationList => LIST_SOON_SECONDS,
        }
}

/// Number of seconds until the expiry; negative after the expiry.
fn seconds_left(expiry: &CertificateExpiry) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
    expiry.not_after.saturating_sub(now)
}

/// Number of days in this number of seconds, rounded down; negative for a negative number.
fn days(seconds: i64) -> i64 {
    seconds.div_euclid(SECONDS_PER_DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expiry(kind: ExpiryKind, serial: &str, not_after: i64) -> CertificateExpiry {
        CertificateExpiry {
            file: "ca.pem".to_owned(),
            kind,
            subject: "CN=clients".to_owned(),
            serial: serial.to_owned(),
            not_after,
        }
    }

    #[test]
    fn the_metric_shows_the_earliest_expiry_of_certificates_with_equal_labels() {
        let all = [("1", 200), ("1", 100), ("2", 300), ("1", 400)];
        let all = all.map(|(serial, end)| expiry(ExpiryKind::Certificate, serial, end));
        let series = series(all.to_vec());
        let ends: Vec<_> = series
            .iter()
            .map(|of| (&*of.serial, of.not_after))
            .collect();
        assert_eq!(ends, [("1", 100), ("2", 300)]);
    }

    #[test]
    fn certificates_are_reported_14_days_and_revocation_lists_6_hours_before_they_expire() {
        for (kind, limit) in [
            (ExpiryKind::Certificate, 14 * 24 * 3_600),
            (ExpiryKind::RevocationList, 6 * 3_600),
        ] {
            assert!(!is_soon(kind, limit), "{kind:?}");
            assert!(is_soon(kind, limit - 1), "{kind:?}");
            assert!(is_soon(kind, -1), "{kind:?}");
        }
    }

    #[test]
    fn only_new_certificates_are_logged_after_a_file_was_replaced() {
        let [first, second, third] =
            ["1", "2", "3"].map(|serial| expiry(ExpiryKind::Certificate, serial, 100));
        let earlier = [first.clone(), second];
        let replaced = [first, third.clone()];
        assert_eq!(added(&replaced, &earlier), [third]);
        assert!(added(&earlier, &earlier).is_empty());
    }

    #[test]
    fn a_revocation_list_with_a_new_number_keeps_its_time_series_in_the_metric() {
        let [first, second] = ["1", "2"].map(|number| {
            let list = expiry(ExpiryKind::RevocationList, number, 100);
            series(vec![list])
        });
        assert_eq!(first.len(), 1);
        assert_eq!(first, second);
    }
}
