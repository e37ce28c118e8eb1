//! The export of metrics to a collector: reads the figures once per interval, and sends them.
//!
//! The export runs on the control plane, with at most one export in flight. A failed export loses
//! no count, because all figures are cumulative. So there is no queue of failed exports: Seawall
//! sends a failed export again only until the next export is due.

use std::{
    io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use seawall_config as config;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::tls::log_replaced;
use crate::observe::Exporter;
use seawall_telemetry::{Address, Collector, CollectorError, Exported, Outcome};
use seawall_transport::{
    CertificateExpiry, Pem,
    connection::{Authorities, ServerTls, TlsError, TlsSettings, Verification},
};

/// Time limit of the last export, at the end of a drain.
const LAST_EXPORT_LIMIT: Duration = Duration::from_secs(2);

/// The reason why metrics cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The URL or a header cannot be used.
    #[error("telemetry: {0}")]
    Collector(#[from] CollectorError),
    /// The file with the certificate authorities of the operating system cannot be read.
    #[error("telemetry: {path}: {source}")]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the file cannot be read.
        source: io::Error,
    },
    /// The TLS files cannot be used.
    #[error("telemetry: {0}")]
    Tls(#[from] TlsError),
}

/// The destination of exported metrics, and the interval of the exports.
#[derive(Debug)]
pub(super) struct ExportDestination {
    collector: Collector,
    interval: Duration,
    resource: Vec<(String, String)>,
    /// When each TLS file expires; empty without TLS.
    expiries: Vec<CertificateExpiry>,
}

/// The running export. A change of the destination ends an export in flight.
#[derive(Debug)]
pub(super) struct RunningTelemetry {
    destination: watch::Sender<Option<Arc<ExportDestination>>>,
    /// When each TLS file of the destination expires.
    pub(super) expiries: watch::Sender<Vec<CertificateExpiry>>,
    /// The attribute `service.instance.id`: a random identifier of this process.
    instance: String,
}

impl RunningTelemetry {
    /// Prepares the export, which begins with [`Self::run`].
    ///
    /// # Errors
    /// See [`TelemetryError`].
    pub(super) fn new(settings: &config::Telemetry) -> Result<Self, TelemetryError> {
        let instance = bson::Uuid::new().to_string();
        let destination = destination(settings, &instance)?;
        Ok(Self {
            expiries: watch::Sender::new(expiries(destination.as_deref())),
            destination: watch::Sender::new(destination),
            instance,
        })
    }

    /// Returns a function that builds the destination from new settings; the destination is `None`
    /// if the export is off. The function may block while it reads the authorities of the operating
    /// system. For its errors, see [`TelemetryError`].
    pub(super) fn builder(
        &self,
        settings: config::Telemetry,
    ) -> impl FnOnce() -> Result<Option<Arc<ExportDestination>>, TelemetryError> + Send + use<>
    {
        let instance = self.instance.clone();
        move || destination(&settings, &instance)
    }

    /// Exports to another destination from now on; exports nothing if `destination` is `None`.
    pub(super) fn replace(&self, destination: Option<Arc<ExportDestination>>) {
        let expiries = expiries(destination.as_deref());
        log_replaced(&expiries, &self.expiries.borrow());
        self.expiries.send_replace(expiries);
        self.destination.send_replace(destination);
    }

    /// The task that exports the metrics until it is cancelled.
    pub(super) fn run(&self, exporter: Arc<Exporter>) -> impl Future<Output = ()> + use<> {
        run(self.destination.subscribe(), exporter)
    }

    /// Ends the export with a last request, so that the counts of the last interval are not lost.
    pub(super) async fn close(&self, exporter: &Arc<Exporter>) {
        let Some(destination) = self.destination.send_replace(None) else {
            return;
        };
        // `export` repeats failed attempts until the time in its second argument. Here, this
        // argument is the current time, so `export` makes only one attempt: a drain has no time for
        // a second attempt.
        let ended = destination.export(exporter, Instant::now());
        if let Ok(exported) = timeout(LAST_EXPORT_LIMIT, ended).await {
            note(exporter, &exported, &mut Outcome::Ok);
        }
    }
}

fn expiries(destination: Option<&ExportDestination>) -> Vec<CertificateExpiry> {
    let expiries = destination.map(|destination| destination.expiries.clone());
    expiries.unwrap_or_default()
}

/// The reason why the destination of metrics cannot be built from the telemetry settings; `None` if
/// it can be built. Reading the configuration does not find such problems.
pub(crate) fn telemetry_problems(settings: &config::Settings) -> Option<String> {
    let built = destination(&settings.telemetry, "");
    built.err().map(|error| error.to_string())
}

async fn run(
    mut destinations: watch::Receiver<Option<Arc<ExportDestination>>>,
    exporter: Arc<Exporter>,
) {
    loop {
        let destination = destinations.borrow_and_update().clone();
        let changed = match destination {
            None => destinations.changed().await,
            Some(destination) => tokio::select! {
                changed = destinations.changed() => changed,
                never = destination.export_regularly(&exporter) => match never {},
            },
        };
        if changed.is_err() {
            return;
        }
    }
}

impl ExportDestination {
    async fn export_regularly(&self, exporter: &Arc<Exporter>) -> std::convert::Infallible {
        let mut last = Outcome::Ok;
        let mut due = Instant::now() + self.interval;
        loop {
            sleep_until(due).await;
            let next = due + self.interval;
            let exported = self.export(exporter, next).await;
            note(exporter, &exported, &mut last);
            // The next export is late if the collector was slow or asked for a longer wait.
            let earliest = exported.not_before.unwrap_or(next).max(Instant::now());
            due = next.max(earliest);
        }
    }

    /// Exports the current figures. After a failure, tries again until `until`. Cancel safe.
    async fn export(&self, exporter: &Arc<Exporter>, until: Instant) -> Exported {
        let (exporter, resource) = (Arc::clone(exporter), self.resource.clone());
        // Reading all figures takes some milliseconds, so another thread reads them.
        let message = tokio::task::spawn_blocking(move || exporter.telemetry().encode(&resource));
        match message.await {
            Ok(message) => self.collector.export(message, until).await,
            Err(error) => Exported {
                outcome: Outcome::Failed,
                reason: error.to_string(),
                rejected: 0,
                not_before: None,
            },
        }
    }
}

/// Counts an export, and logs its outcome if it differs from `last`, the outcome of the previous
/// export. Logs a repeated failure only at the level `debug`. Stores the new outcome in `last`.
fn note(exporter: &Exporter, exported: &Exported, last: &mut Outcome) {
    let Exported {
        outcome,
        reason,
        rejected,
        ..
    } = exported;
    let result = outcome.as_str();
    exporter.count_telemetry_export(result, *rejected);
    match to_log(mem::replace(last, *outcome), *outcome) {
        Some(Logged::Recovered) => tracing::info!("export of metrics recovered"),
        Some(Logged::Partial) => {
            tracing::warn!(rejected, reason, "collector refused some metrics");
        }
        Some(Logged::Failed) => {
            tracing::warn!(result, reason, "cannot export metrics");
        }
        Some(Logged::StillFailing) => {
            tracing::debug!(result, reason, "still cannot export metrics");
        }
        None => {}
    }
}

/// The log lines about the outcome of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logged {
    Recovered,
    Partial,
    Failed,
    StillFailing,
}

/// The line to log for an export with the outcome `now`, after an export with the outcome `last`.
/// All complete failures count as the same outcome.
fn to_log(last: Outcome, now: Outcome) -> Option<Logged> {
    match (last, now) {
        (Outcome::Ok, Outcome::Ok) | (Outcome::Partial, Outcome::Partial) => None,
        (_, Outcome::Ok) => Some(Logged::Recovered),
        (_, Outcome::Partial) => Some(Logged::Partial),
        (Outcome::Ok | Outcome::Partial, _) => Some(Logged::Failed),
        _ => Some(Logged::StillFailing),
    }
}

fn destination(
    settings: &config::Telemetry,
    instance: &str,
) -> Result<Option<Arc<ExportDestination>>, TelemetryError> {
    if !settings.enabled {
        return Ok(None);
    }
    let address = match &settings.metrics_endpoint {
        Some(url) => Address::Exact(url.clone()),
        None => Address::Base(settings.endpoint.clone()),
    };
    let (Address::Exact(url) | Address::Base(url)) = &address;
    let tls = match url.starts_with("https://") {
        true => Some(tls(settings)?),
        false => None,
    };
    let expiries = tls.as_ref().map(|tls| tls.expiries().to_vec());
    let headers = settings.headers.as_ref().or(settings.headers_file.as_ref());
    let headers = headers.iter().flat_map(|headers| headers.iter());
    let collector = Collector::new(
        &address,
        headers.map(|(name, value)| (name, value.expose())),
        settings.compression == config::Compression::Gzip,
        settings.timeout,
        tls.as_ref().map(ServerTls::config_for_http),
    )?;
    Ok(Some(Arc::new(ExportDestination {
        collector,
        interval: settings.interval,
        resource: resource(settings, instance),
        expiries: expiries.unwrap_or_default(),
    })))
}

fn tls(settings: &config::Telemetry) -> Result<ServerTls, TelemetryError> {
    let system = match settings.ca_file {
        Some(_) => None,
        None => openssl_probe::probe().cert_file,
    };
    let read = |path: PathBuf| {
        let read = config::ReadFile::read(path);
        read.map_err(|(path, source)| TelemetryError::Unreadable { path, source })
    };
    let system = system.map(read).transpose()?;
    let own = settings.ca_file.as_ref();
    let authorities = Authorities::of(
        own.map(|file| pem(file.path(), file.expose())),
        system.as_ref().map(|file| pem(file.path(), file.expose())),
    );
    // The certificate and its key are passed as the content of one file.
    let files = settings
        .certificate_file
        .as_ref()
        .zip(settings.key_file.as_ref());
    let identity = files.map(|(certificate, key)| {
        let content = format!("{}\n{}", certificate.expose(), key.expose());
        (certificate.path(), content)
    });
    Ok(ServerTls::new(&TlsSettings {
        authorities,
        identity: identity.as_ref().map(|(path, content)| pem(path, content)),
        revocation_lists: Vec::new(),
        verification: Verification::Full,
    })?)
}

fn pem<'a>(path: &'a Path, content: &'a str) -> Pem<'a> {
    Pem { path, content }
}

/// The OpenTelemetry resource attributes of this Seawall instance. Configured attributes replace
/// the attributes that Seawall finds.
///
/// Source: <https://opentelemetry.io/docs/specs/semconv/resource/>.
fn resource(settings: &config::Telemetry, instance: &str) -> Vec<(String, String)> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let own = [
        ("service.name", "seawall"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", instance),
        ("host.name", &host),
    ];
    let configured = settings.resource_attributes.iter();
    let name = settings.service_name.as_deref();
    let name = name.map(|name| ("service.name", name));
    let mut resource: Vec<(String, String)> = Vec::new();
    for (name, value) in own.into_iter().chain(configured).chain(name) {
        match resource.iter_mut().find(|(other, _)| other == name) {
            Some((_, of)) => value.clone_into(of),
            None => resource.push((name.to_owned(), value.to_owned())),
        }
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(keys: &str) -> config::Telemetry {
        let text =
            format!("deployment.uri = \"mongodb://server/\"\n[telemetry]\nenabled = true\n{keys}");
        config::Settings::from_toml(&text).unwrap().telemetry
    }

    #[test]
    fn configured_resource_attributes_replace_the_attributes_that_seawall_finds() {
        let value = |keys: &str, name: &str| {
            let resource = resource(&settings(keys), "id");
            let mut values = resource.into_iter().filter(|(other, _)| other == name);
            let value = values.next().map(|(_, value)| value);
            assert_eq!(values.next(), None);
            value.unwrap()
        };
        let attributes = "resource_attributes = \"service.name=a,host.name=b,team=c\"\n";
        assert_eq!(value("", "service.name"), "seawall");
        assert_eq!(value("", "service.instance.id"), "id");
        assert_eq!(value(attributes, "service.name"), "a");
        assert_eq!(value(attributes, "host.name"), "b");
        assert_eq!(value(attributes, "team"), "c");
        let named = format!("{attributes}service_name = \"d\"\n");
        assert_eq!(value(&named, "service.name"), "d");
    }

    #[test]
    fn a_changed_outcome_of_an_export_is_logged_once_and_further_failures_only_at_debug() {
        use Outcome::{Ok, Partial, Refused, TimedOut};
        let outcomes = [
            Ok, Partial, Partial, TimedOut, Refused, Partial, Ok, Refused, Ok,
        ];
        let mut last = Ok;
        let lines = outcomes.map(|now| to_log(mem::replace(&mut last, now), now));
        let expected = [
            None,
            Some(Logged::Partial),
            None,
            Some(Logged::Failed),
            Some(Logged::StillFailing),
            Some(Logged::Partial),
            Some(Logged::Recovered),
            Some(Logged::Failed),
            Some(Logged::Recovered),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn unusable_tls_files_are_reported_before_the_export_begins() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let keys = format!("endpoint = \"https://collector\"\nca_file = {file:?}\n");
        let error = destination(&settings(&keys), "").unwrap_err().to_string();
        assert!(error.starts_with("telemetry: "), "{error}");
        let plain = format!("ca_file = {file:?}\n");
        assert!(destination(&settings(&plain), "").unwrap().is_some());
        let off = config::Telemetry {
            enabled: false,
            ..settings(&keys)
        };
        assert!(destination(&off, "").unwrap().is_none());
    }
}
