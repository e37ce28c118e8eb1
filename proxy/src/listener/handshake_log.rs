//! Logs why TLS handshakes with clients, and with callers of the admin address, failed. Thousands
//! of handshakes may fail within seconds, so each cause is logged as a warning at most once a
//! minute.

use std::{collections::HashMap, io, net::SocketAddr};

use tokio::time::Instant;
use tokio_rustls::rustls::{self, AlertDescription, CertificateError};

use super::tls::NotTls;
use crate::{client::Peer, runtime::OccasionalLog};
use seawall_locks::Mutex;

/// Logs the failed handshakes at one listener, or at the admin address.
#[derive(Debug, Default)]
pub(crate) struct HandshakeLog(Mutex<HashMap<Cause, OccasionalLog>>);

/// The cause of a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    NoTls,
    NoCertificate,
    UnknownAuthority,
    Expired,
    NotYetValid,
    Revoked,
    NoRevocationList,
    OutdatedRevocationList,
    UnusableCertificate,
    RefusedByClient,
    Alert,
    Incompatible,
    Violation,
}

impl HandshakeLog {
    /// Logs a failed handshake with a client: as a warning if this cause was not logged as a
    /// warning within the last minute, otherwise only at the level `debug`. A failure without a
    /// [`Cause`] is also logged only at the level `debug`.
    pub(super) fn record(&self, error: &io::Error, peer: &Peer) {
        let peer = &peer.text;
        if let Some((cause, failures)) = self.due(error, Instant::now()) {
            tracing::warn!(cause, %error, %peer, failures, "TLS handshake with a client failed");
            return;
        }
        tracing::debug!(%error, %peer, "TLS handshake with a client failed");
    }

    /// Logs a failed handshake with a caller of the admin API. The levels are chosen as in
    /// [`Self::record`].
    pub(crate) fn record_caller(&self, error: &io::Error, peer: SocketAddr) {
        if let Some((cause, failures)) = self.due(error, Instant::now()) {
            tracing::warn!(cause, %error, %peer, failures, "TLS handshake with a caller of the admin API failed");
            return;
        }
        tracing::debug!(%error, %peer, "TLS handshake with a caller of the admin API failed");
    }

    /// Counts a failure that has a [`Cause`]. Returns the cause, and the number of failures with
    /// this cause since the last warning about it. Returns `None` if there was a warning about this
    /// cause within the last minute, or if the failure has no cause.
    fn due(&self, error: &io::Error, now: Instant) -> Option<(&'static str, u64)> {
        let cause = Cause::of(error)?;
        let failures = self.0.lock().entry(cause).or_default().count(now)?;
        Some((cause.as_str(), failures))
    }
}

impl Cause {
    /// The cause of a failed handshake. `None` if the connection itself failed, for example because
    /// the client has disconnected.
    fn of(error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?;
        if error.is::<NotTls>() {
            return Some(Self::NoTls);
        }
        match error.downcast_ref::<rustls::Error>()? {
            rustls::Error::NoCertificatesPresented => Some(Self::NoCertificate),
            rustls::Error::InvalidCertificate(error) => Some(Self::of_certificate(error)),
            rustls::Error::InvalidCertRevocationList(_) => Some(Self::UnusableCertificate),
            rustls::Error::AlertReceived(alert) => Some(Self::of_alert(*alert)),
            rustls::Error::PeerIncompatible(_) => Some(Self::Incompatible),
            _ => Some(Self::Violation),
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer => Self::UnknownAuthority,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::Revoked => Self::Revoked,
            CertificateError::UnknownRevocationStatus => Self::NoRevocationList,
            CertificateError::ExpiredRevocationList
            | CertificateError::ExpiredRevocationListContext { .. } => Self::OutdatedRevocationList,
            _ => Self::UnusableCertificate,
        }
    }

    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA => Self::RefusedByClient,
            _ => Self::Alert,
        }
    }

    /// The cause as text, for the log.
    fn as_str(self) -> &'static str {
        match self {
            Self::NoTls => "no TLS",
            Self::NoCertificate => "no certificate",
            Self::UnknownAuthority => "certificate of an unknown authority",
            Self::Expired => "certificate has expired",
            Self::NotYetValid => "certificate is not valid yet",
            Self::Revoked => "certificate is revoked",
            Self::NoRevocationList => "no revocation list of the issuer",
            Self::OutdatedRevocationList => "revocation list is outdated",
            Self::UnusableCertificate => "certificate cannot be used",
            Self::RefusedByClient => "client refuses Seawall's certificate",
            Self::Alert => "alert of the client",
            Self::Incompatible => "no common version, suite or signature",
            Self::Violation => "violation of the protocol",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_rustls::rustls::{InvalidMessage, PeerIncompatible};

    use super::*;

    fn failed(error: rustls::Error) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    #[test]
    fn each_failed_tls_handshake_has_a_cause_unless_the_client_has_disconnected() {
        let certificate = rustls::Error::InvalidCertificate;
        let alert = rustls::Error::AlertReceived;
        for (error, cause) in [
            (
                rustls::Error::NoCertificatesPresented,
                Some(Cause::NoCertificate),
            ),
            (
                certificate(CertificateError::UnknownIssuer),
                Some(Cause::UnknownAuthority),
            ),
            (certificate(CertificateError::Expired), Some(Cause::Expired)),
            (
                certificate(CertificateError::NotValidYet),
                Some(Cause::NotYetValid),
            ),
            (certificate(CertificateError::Revoked), Some(Cause::Revoked)),
            (
                certificate(CertificateError::UnknownRevocationStatus),
                Some(Cause::NoRevocationList),
            ),
            (
                certificate(CertificateError::ExpiredRevocationList),
                Some(Cause::OutdatedRevocationList),
            ),
            (
                certificate(CertificateError::BadEncoding),
                Some(Cause::UnusableCertificate),
            ),
            (
                alert(AlertDescription::UnknownCA),
                Some(Cause::RefusedByClient),
            ),
            (alert(AlertDescription::InternalError), Some(Cause::Alert)),
            (
                rustls::Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered),
                Some(Cause::Incompatible),
            ),
            (rustls::Error::DecryptError, Some(Cause::Violation)),
            (
                rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType),
                Some(Cause::Violation),
            ),
            (
                rustls::Error::PeerSentOversizedRecord,
                Some(Cause::Violation),
            ),
        ] {
            assert_eq!(Cause::of(&failed(error.clone())), cause, "{error}");
        }
        let left = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(Cause::of(&left), None);
    }

    /// Each error in this test can also occur after the first message of the handshake. The cause
    /// is then always [`Cause::Violation`].
    #[test]
    fn only_a_handshake_that_does_not_begin_with_a_tls_record_has_the_cause_no_tls() {
        for (error, cause) in [
            (InvalidMessage::InvalidContentType, Cause::NoTls),
            (InvalidMessage::UnknownProtocolVersion, Cause::NoTls),
            (InvalidMessage::InvalidEmptyPayload, Cause::Violation),
            (InvalidMessage::MissingKeyExchange, Cause::Violation),
        ] {
            let error = failed(rustls::Error::InvalidMessage(error));
            let later = Cause::of(&error);
            assert_eq!(later, Some(Cause::Violation), "{error}");
            let error = NotTls::of_first_message(error);
            assert_eq!(Cause::of(&error), Some(cause), "{error}");
        }
    }

    #[test]
    fn each_cause_of_failed_tls_handshakes_is_logged_as_a_warning_at_most_once_a_minute() {
        let (log, began) = (HandshakeLog::default(), Instant::now());
        let missing = || failed(rustls::Error::NoCertificatesPresented);
        let alert = || failed(rustls::Error::AlertReceived(AlertDescription::UnknownCA));
        let due = [
            (missing(), 0),
            (missing(), 1),
            (alert(), 2),
            (missing(), 59),
            (missing(), 60),
            (alert(), 61),
        ];
        let due = due.map(|(error, seconds)| {
            let due = log.due(&error, began + Duration::from_secs(seconds));
            due.map(|(_, failures)| failures)
        });
        assert_eq!(due, [Some(1), None, Some(1), None, Some(3), None]);
    }
}
