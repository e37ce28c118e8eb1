//! Resumption of TLS sessions. A session with a client certificate is resumed only until a
//! certificate of its chain expires. Later, the client gets a full handshake, in which it may
//! present a renewed certificate.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use seawall_transport::not_after;
use tokio_rustls::rustls::{
    self, DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime},
    server::{
        ProducesTickets, ServerSessionMemoryCache, StoresServerSessions,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{now, verifier::ChainVerifier};

/// Maximum number of sessions that are kept for clients without support for tickets (TLS 1.2 with
/// session ids).
const MAX_SESSIONS: usize = 1_024;

/// Maximum size of a session in a ticket. A session contains the client's certificates, and the
/// client sends the ticket in its first message, whose size is limited. A client with more
/// certificates gets no ticket.
pub(super) const MAX_TICKET_BYTES: usize = 8 * 1024;

/// The expiry of a session without a client certificate.
const NEVER: i64 = i64::MAX;

/// The keys of tickets, and the stored sessions. A client resumes a session by a ticket or by a
/// stored session. All TLS configurations that verify clients in the same way (a *generation*)
/// share the keys and the stored sessions.
#[derive(Clone, Debug)]
pub(super) struct Resumption {
    pub(super) tickets: Arc<dyn ProducesTickets>,
    pub(super) sessions: Arc<dyn StoresServerSessions>,
}

impl Resumption {
    pub(super) fn new() -> Result<Self, rustls::Error> {
        Ok(Self {
            tickets: ring::Ticketer::new()?,
            sessions: ServerSessionMemoryCache::new(MAX_SESSIONS),
        })
    }
}

/// Verifies the client's certificate in one handshake, and stores the sessions of this handshake
/// together with the expiry of the certificate.
///
/// In a full handshake, rustls verifies the certificate before it stores a session. In a resumed
/// handshake, rustls first reads the earlier session, and this value takes over the expiry of that
/// session. So the new sessions of a resumed handshake have the same expiry as the earlier session.
#[derive(Debug)]
pub(super) struct ExpiringSessions {
    verifier: Arc<ChainVerifier>,
    resumption: Resumption,
    /// The earliest expiry of a certificate in the client's chain, in seconds since the Unix epoch.
    /// [`NEVER`] while no chain is known.
    expiry: AtomicI64,
}

impl ExpiringSessions {
    pub(super) fn new(verifier: Arc<ChainVerifier>, resumption: Resumption) -> Self {
        Self {
            verifier,
            resumption,
            expiry: AtomicI64::new(NEVER),
        }
    }

    /// Puts the expiry before the bytes of a session.
    fn seal(&self, session: &[u8]) -> Vec<u8> {
        let expiry = self.expiry.load(Relaxed).to_be_bytes();
        [expiry.as_slice(), session].concat()
    }

    /// Reverses [`Self::seal`]: returns the bytes of the session without the expiry. Stores the
    /// expiry in this value, so that the new sessions of this handshake get the same expiry. `None`
    /// if the session has expired, or `sealed` is too short. `now` is in seconds since the Unix
    /// epoch.
    fn open(&self, mut sealed: Vec<u8>, now: i64) -> Option<Vec<u8>> {
        let (expiry, _) = sealed.split_first_chunk()?;
        let expiry = i64::from_be_bytes(*expiry);
        if expiry < now {
            return None;
        }
        self.expiry.store(expiry, Relaxed);
        sealed.drain(..size_of::<i64>());
        Some(sealed)
    }
}

impl ProducesTickets for ExpiringSessions {
    fn enabled(&self) -> bool {
        self.resumption.tickets.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.resumption.tickets.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        if plain.len() > MAX_TICKET_BYTES {
            return None;
        }
        self.resumption.tickets.encrypt(&self.seal(plain))
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(self.resumption.tickets.decrypt(cipher)?, now())
    }
}

impl StoresServerSessions for ExpiringSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.resumption.sessions.put(key, self.seal(&value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.open(self.resumption.sessions.get(key)?, now())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.open(self.resumption.sessions.take(key)?, now())
    }

    fn can_cache(&self) -> bool {
        self.resumption.sessions.can_cache()
    }
}

impl ClientCertVerifier for ExpiringSessions {
    fn offer_client_auth(&self) -> bool {
        self.verifier.without_lists().offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.without_lists().client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.without_lists().root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.verify(end_entity, intermediates, now)?;
        let chain = iter::once(end_entity).chain(intermediates);
        // A certificate with an unknown expiry counts as expired, so its session is never resumed.
        let expiries = chain.map(|certificate| not_after(certificate).unwrap_or(i64::MIN));
        self.expiry.store(expiries.fold(NEVER, i64::min), Relaxed);
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier
            .without_lists()
            .verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier
            .without_lists()
            .verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.without_lists().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::verifier::Verifier;
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
    };

    fn sessions(resumption: &Resumption, expiry: i64) -> ExpiringSessions {
        let authority = params("root", 2_048, IsCa::Ca(BasicConstraints::Unconstrained));
        let authority = authority
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap();
        let verifier = Verifier::requiring(&authority.pem()).for_handshakes();
        let sessions = ExpiringSessions::new(verifier, resumption.clone());
        sessions.expiry.store(expiry, Relaxed);
        sessions
    }

    /// A TLS session expires when a certificate of the client's chain expires.
    #[test]
    fn a_resumed_tls_session_expires_at_the_same_time_as_the_original_tls_session() {
        let resumption = Resumption::new().unwrap();
        let sealed = sessions(&resumption, 1_000).seal(b"first");
        let resumed = sessions(&resumption, NEVER);
        assert_eq!(resumed.open(sealed.clone(), 1_001), None);
        assert_eq!(resumed.open(sealed, 1_000).unwrap(), b"first");
        let sealed = resumed.seal(b"second");
        let resumed = sessions(&resumption, NEVER);
        assert_eq!(resumed.open(sealed.clone(), 1_001), None);
        assert_eq!(resumed.open(sealed, 1_000).unwrap(), b"second");
        assert_eq!(resumed.open(b"short".to_vec(), 1_000), None);
    }

    #[test]
    fn neither_a_tls_ticket_nor_a_stored_tls_session_is_resumed_after_its_expiry() {
        let resumption = Resumption::new().unwrap();
        for (expiry, is_resumed) in [(NEVER, true), (1_000, false)] {
            let before = sessions(&resumption, expiry);
            let ticket = before.encrypt(b"session").unwrap();
            assert!(before.put(b"id".to_vec(), b"session".to_vec()));
            let expected = is_resumed.then(|| b"session".to_vec());
            let after = sessions(&resumption, NEVER);
            assert_eq!(after.decrypt(&ticket), expected);
            assert_eq!(after.get(b"id"), expected);
            assert_eq!(after.take(b"id"), expected);
            assert_eq!(after.take(b"id"), None);
        }
    }

    #[test]
    fn a_tls_session_of_more_than_8_kib_gets_no_ticket() {
        let sessions = sessions(&Resumption::new().unwrap(), NEVER);
        for (bytes, has_ticket) in [(8 * 1024, true), (8 * 1024 + 1, false)] {
            let ticket = sessions.encrypt(&vec![7; bytes]);
            assert_eq!(ticket.is_some(), has_ticket, "{bytes}");
        }
    }

    fn params(name: &str, expiry_year: i32, is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = date_time_ymd(expiry_year, 1, 1);
        params.is_ca = is_ca;
        params
    }

    #[test]
    fn a_tls_session_expires_when_any_certificate_of_the_chain_expires() {
        let is_ca = || IsCa::Ca(BasicConstraints::Unconstrained);
        let [root_key, intermediate_key, key] = [(); 3].map(|()| KeyPair::generate().unwrap());
        let root = params("root", 2_048, is_ca());
        let authority = root.self_signed(&root_key).unwrap().pem();
        let root = Issuer::new(root, root_key);
        let intermediate = params("intermediate", 2_040, is_ca());
        let issued = intermediate.signed_by(&intermediate_key, &root).unwrap();
        let intermediate = Issuer::new(intermediate, intermediate_key);
        let client = params("client", 2_045, IsCa::NoCa);
        let client = client.signed_by(&key, &intermediate).unwrap();
        let verifier = Verifier::requiring(&authority).for_handshakes();
        let sessions = ExpiringSessions::new(verifier, Resumption::new().unwrap());
        let intermediates = [issued.der().clone()];
        sessions
            .verify_client_cert(client.der(), &intermediates, UnixTime::now())
            .unwrap();
        let expected = date_time_ymd(2_040, 1, 1).unix_timestamp();
        assert_eq!(sessions.expiry.load(Relaxed), expected);
    }
}
