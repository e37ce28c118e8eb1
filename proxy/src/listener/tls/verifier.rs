//! Verifies clients' certificates: their authority, their revocation and their validity period.

use std::{fmt, sync::Arc};

use tokio_rustls::rustls::{
    self, CertificateError, RootCertStore,
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime},
    server::{
        VerifierBuilderError, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use seawall_transport::{
    AuthorityWithoutList, CertificateExpiry, Pem, SetVerifier, authorities,
    authorities_without_list, revocation_lists, sets_by_key, verify_chain,
};

use super::certificates::ServerTlsError;

/// How clients' certificates are verified.
#[derive(Debug)]
pub(crate) struct ClientCertificates<'a> {
    /// True if clients without a certificate are refused.
    pub(crate) is_required: bool,
    /// Files with the certificates of authorities.
    pub(crate) authorities: Vec<Pem<'a>>,
    /// Files with revocation lists. If the list of files is not empty, a client's certificate is
    /// accepted only if its issuer has a revocation list.
    pub(crate) revocation_lists: Vec<Pem<'a>>,
}

/// How strictly a [`ChainVerifier`] uses revocation lists.
#[derive(Clone, Copy, Debug)]
enum ListUse {
    /// As in a mongod, the issuer of the client's own certificate must have a list that is not
    /// outdated.
    Required,
    /// A list may be missing or outdated.
    Optional,
}

/// Verifies clients' certificate chains.
#[derive(Debug)]
pub(super) struct ChainVerifier {
    /// One verifier for each set of revocation lists.
    by_lists: Vec<SetVerifier<Arc<dyn ClientCertVerifier>>>,
    /// A verifier without revocation lists, for tasks that need none: it returns the names of
    /// authorities and verifies signatures. If there are several sets of lists, it also verifies
    /// each chain before `by_lists` does (see [`verify_chain`]).
    without_lists: Arc<dyn ClientCertVerifier>,
}

impl ChainVerifier {
    fn new(
        is_required: bool,
        roots: &Arc<RootCertStore>,
        lists: &[CertificateRevocationListDer<'static>],
        list_use: ListUse,
    ) -> Result<Self, VerifierBuilderError> {
        let verifier = |lists| {
            let roots = Arc::clone(roots);
            let builder = WebPkiClientVerifier::builder_with_provider(roots, super::provider())
                .with_crls(lists)
                // As in a mongod, certificates of authorities are not checked for revocation.
                .only_check_end_entity_revocation();
            let builder = match list_use {
                ListUse::Required => builder.enforce_revocation_expiration(),
                ListUse::Optional => builder.allow_unknown_revocation_status(),
            };
            match is_required {
                true => builder.build(),
                false => builder.allow_unauthenticated().build(),
            }
        };
        let sets = sets_by_key(lists).into_iter();
        let by_lists = sets.map(|set| SetVerifier::of_set(set, verifier));
        Ok(Self {
            by_lists: by_lists.collect::<Result<_, _>>()?,
            without_lists: verifier(Vec::new())?,
        })
    }

    /// The verifier without revocation lists, for the names of authorities and for signatures.
    pub(super) fn without_lists(&self) -> &dyn ClientCertVerifier {
        &*self.without_lists
    }

    /// Verifies a chain at this time.
    pub(super) fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let without_lists = (self.by_lists.len() > 1).then_some(&self.without_lists);
        verify_chain(without_lists, &self.by_lists, intermediates, |verifier| {
            verifier.verify_client_cert(end_entity, intermediates, now)
        })
    }
}

/// Finds connected clients that must be closed. It refuses fewer certificates than a handshake
/// does. Otherwise, a reload with an outdated revocation list would close all clients, and a reload
/// of Seawall's own certificate would close each client whose certificate has expired since its
/// handshake.
#[derive(Debug)]
pub(crate) struct ConnectedVerifier(ChainVerifier);

impl ConnectedVerifier {
    /// True if a revocation list contains the client's certificate, or if the certificate's
    /// authority is not trusted. `since` is the time of the client's handshake, at which the chain
    /// was valid.
    pub(crate) fn refuses(&self, chain: &[CertificateDer<'_>], since: UnixTime) -> bool {
        let Some((certificate, intermediates)) = chain.split_first() else {
            return false;
        };
        let without_lists = self.0.without_lists();
        let trusted = without_lists.verify_client_cert(certificate, intermediates, since);
        if trusted.is_err() {
            return true;
        }
        // All other errors are about the lists. For example, a list belongs to another authority
        // with the same name, or the certificate of its issuer does not allow the issuer to sign
        // lists.
        let revoked = rustls::Error::InvalidCertificate(CertificateError::Revoked);
        let mut with_lists = self.0.by_lists.iter();
        with_lists.any(|SetVerifier { verifier, .. }| {
            let verified = verifier.verify_client_cert(certificate, intermediates, since);
            verified.is_err_and(|error| error == revoked)
        })
    }
}

/// Verifies clients' certificates. Two verifiers are equal if they have the same authorities and
/// revocation lists, and both or neither require a certificate: they then accept the same clients.
pub(super) struct Verifier {
    is_required: bool,
    roots: Arc<RootCertStore>,
    authorities: Vec<CertificateDer<'static>>,
    revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    verifier: Arc<ChainVerifier>,
    expiries: Vec<CertificateExpiry>,
}

impl PartialEq for Verifier {
    fn eq(&self, other: &Self) -> bool {
        self.is_required == other.is_required
            && self.authorities == other.authorities
            && self.revocation_lists == other.revocation_lists
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("is_required", &self.is_required)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Verifier {
    /// A verifier that requires certificates of this authority. It has no revocation lists.
    pub(super) fn requiring(authority: &str) -> Self {
        let authority = Pem {
            path: std::path::Path::new("ca.pem"),
            content: authority,
        };
        let settings = ClientCertificates {
            is_required: true,
            authorities: vec![authority],
            revocation_lists: Vec::new(),
        };
        Self::new(&settings).unwrap()
    }
}

impl Verifier {
    /// Creates a verifier from the contents of the files in `settings`.
    ///
    /// # Errors
    /// If a file has no usable certificate or revocation list.
    pub(super) fn new(settings: &ClientCertificates<'_>) -> Result<Self, ServerTlsError> {
        let mut expiries = Vec::new();
        let (roots, authorities) = authorities(&settings.authorities, &mut expiries)?;
        let revocation_lists = revocation_lists(&settings.revocation_lists, &mut expiries)?;
        let (is_required, roots) = (settings.is_required, Arc::new(roots));
        let lists = &revocation_lists;
        let verifier = ChainVerifier::new(is_required, &roots, lists, ListUse::Required)?;
        Ok(Self {
            is_required,
            roots,
            authorities,
            revocation_lists,
            verifier: Arc::new(verifier),
            expiries,
        })
    }

    /// The verifier for full handshakes.
    pub(super) fn for_handshakes(&self) -> Arc<ChainVerifier> {
        Arc::clone(&self.verifier)
    }

    /// Creates the verifier for connected clients.
    ///
    /// # Errors
    /// If rustls refuses the authorities or the revocation lists.
    pub(super) fn for_connected(&self) -> Result<ConnectedVerifier, VerifierBuilderError> {
        let lists = &self.revocation_lists;
        let verifier = ChainVerifier::new(self.is_required, &self.roots, lists, ListUse::Optional);
        verifier.map(ConnectedVerifier)
    }

    /// When each certificate of an authority, and each revocation list, expires.
    pub(super) fn expiries(&self) -> &[CertificateExpiry] {
        &self.expiries
    }

    /// The authorities that have no current revocation list. The verifier refuses certificates of
    /// these authorities. Empty if no revocation list is configured, because revocation is then not
    /// checked.
    pub(super) fn authorities_without_list(&self) -> Vec<AuthorityWithoutList> {
        authorities_without_list(&self.authorities, &self.revocation_lists, super::now())
    }

    /// Checks that no authority of this verifier loses its current revocation list. If `earlier`
    /// checks no revocation, each authority needs a current list.
    ///
    /// # Errors
    /// If an authority has no current list, but would have one with the lists of `earlier`.
    pub(super) fn check_lists(&self, earlier: &Self) -> Result<(), ServerTlsError> {
        let now = super::now();
        let before = authorities_without_list(&self.authorities, &earlier.revocation_lists, now);
        let mut without = self.authorities_without_list().into_iter();
        let is_same = |a: &AuthorityWithoutList, b: &AuthorityWithoutList| {
            (&a.authority, &a.key) == (&b.authority, &b.key)
        };
        let lost = without.find(|of| !before.iter().any(|had| is_same(had, of)));
        match lost {
            Some(AuthorityWithoutList {
                authority, list, ..
            }) => Err(ServerTlsError::ListLost { authority, list }),
            None => Ok(()),
        }
    }

    /// Verifies a certificate chain at the current time. An empty chain is valid if certificates
    /// are optional.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        match chain.split_first() {
            None if self.is_required => Err(rustls::Error::NoCertificatesPresented),
            None => Ok(()),
            Some((certificate, intermediates)) => {
                let now = UnixTime::now();
                let verified = self.verifier.verify(certificate, intermediates, now);
                verified.map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        iter::repeat_n,
        path::Path,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
        CrlIssuingDistributionPoint, DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
        RevokedCertParams, SerialNumber, date_time_ymd,
    };
    use tokio_rustls::rustls::{
        DigitallySignedStruct, DistinguishedName, SignatureScheme,
        client::danger::HandshakeSignatureValid,
    };

    use super::*;

    /// Accepts every certificate, and counts the verifications.
    #[derive(Debug, Default)]
    struct CountingVerifier(AtomicUsize);

    impl ClientCertVerifier for CountingVerifier {
        fn root_hint_subjects(&self) -> &[DistinguishedName] {
            &[]
        }

        fn verify_client_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: UnixTime,
        ) -> Result<ClientCertVerified, rustls::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(ClientCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            Vec::new()
        }
    }

    /// An authority with the subject `CN=clients`.
    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    impl Authority {
        fn generate() -> Self {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params
                .distinguished_name
                .push(DnType::CommonName, "clients");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            let pem = params.self_signed(&key).unwrap().pem();
            let issuer = Issuer::new(params, key);
            Self { issuer, pem }
        }

        /// A certificate with this serial number.
        fn client(&self, serial: u64) -> CertificateDer<'static> {
            self.client_until(2_100, serial)
        }

        /// A certificate with this serial number. It expires at the beginning of the year.
        fn client_until(&self, year: i32, serial: u64) -> CertificateDer<'static> {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.serial_number = Some(SerialNumber::from(serial));
            params.not_after = date_time_ymd(year, 1, 1);
            let certificate = params.signed_by(&key, &self.issuer).unwrap();
            certificate.der().clone()
        }

        /// A revocation list of this year, which revokes the certificates with these serial
        /// numbers.
        fn list(&self, year: i32, revoked: &[u64]) -> String {
            self.list_with(None, 2_100, year, revoked)
        }

        /// Like [`Self::list`]. The list must be replaced at the beginning of `next_update_year`.
        fn list_until(&self, next_update_year: i32, year: i32, revoked: &[u64]) -> String {
            self.list_with(None, next_update_year, year, revoked)
        }

        /// Like [`Self::list`], for one partition of the authority's certificates.
        fn partition(&self, uri: &str, year: i32, revoked: &[u64]) -> String {
            self.list_with(Some(uri), 2_100, year, revoked)
        }

        fn list_with(
            &self,
            uri: Option<&str>,
            next_update_year: i32,
            year: i32,
            revoked: &[u64],
        ) -> String {
            let partition = uri.map(|uri| CrlIssuingDistributionPoint {
                distribution_point: CrlDistributionPoint {
                    uris: vec![uri.to_owned()],
                },
                scope: None,
            });
            let revoked = revoked.iter().map(|serial| RevokedCertParams {
                serial_number: SerialNumber::from(*serial),
                revocation_time: date_time_ymd(year, 1, 1),
                reason_code: None,
                invalidity_date: None,
            });
            let params = CertificateRevocationListParams {
                this_update: date_time_ymd(year, 1, 1),
                next_update: date_time_ymd(next_update_year, 1, 1),
                crl_number: SerialNumber::from(1_u64),
                issuing_distribution_point: partition,
                revoked_certs: revoked.collect(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            params.signed_by(&self.issuer).unwrap().pem().unwrap()
        }
    }

    fn verifier(authorities: &[&str], lists: &[&str]) -> Verifier {
        let pem = |content: &&'static str| Pem {
            path: Path::new("file"),
            content,
        };
        let leaked = |files: &[&str]| {
            let files = files.iter().map(|file| &*String::leak((*file).to_owned()));
            files.collect::<Vec<&'static str>>()
        };
        let settings = ClientCertificates {
            is_required: true,
            authorities: leaked(authorities).iter().map(pem).collect(),
            revocation_lists: leaked(lists).iter().map(pem).collect(),
        };
        Verifier::new(&settings).unwrap()
    }

    fn revoked() -> Result<(), rustls::Error> {
        Err(CertificateError::Revoked.into())
    }

    #[test]
    fn the_newest_revocation_list_of_an_issuer_applies_whatever_the_order_of_the_files() {
        let authority = Authority::generate();
        let client = [authority.client(7)];
        let [old, new] =
            [(2_024, &[][..]), (2_025, &[7])].map(|(year, revoked)| authority.list(year, revoked));
        assert_eq!(verifier(&[&authority.pem], &[&old]).verify(&client), Ok(()));
        for lists in [[&*old, &*new], [&*new, &*old]] {
            assert_eq!(
                verifier(&[&authority.pem], &lists).verify(&client),
                revoked()
            );
        }
    }

    /// An authority with a new key may keep its name. Its certificates with the old key are then
    /// checked with the list that the old key has signed.
    #[test]
    fn two_authorities_with_the_same_name_each_have_their_own_revocation_list() {
        let [old, new] = [(), ()].map(|()| Authority::generate());
        let lists = [old.list(2_024, &[1]), new.list(2_025, &[2])];
        let [of_old, of_new] = &lists;
        for lists in [[&**of_old, &**of_new], [&**of_new, &**of_old]] {
            let verifier = verifier(&[&old.pem, &new.pem], &lists);
            assert_eq!(verifier.verify(&[old.client(1)]), revoked());
            assert_eq!(verifier.verify(&[old.client(2)]), Ok(()));
            assert_eq!(verifier.verify(&[new.client(1)]), Ok(()));
            assert_eq!(verifier.verify(&[new.client(2)]), revoked());
        }
    }

    /// Otherwise, clients whose certificates the old key has signed would be refused.
    #[test]
    fn a_new_key_of_an_authority_does_not_replace_the_revocation_list_of_its_old_key() {
        let [old, new] = [(), ()].map(|()| Authority::generate());
        let [of_old, of_new] = [&old, &new].map(|authority| authority.list(2_025, &[]));
        let earlier = verifier(&[&old.pem], &[&of_old]);
        let both = [&*old.pem, &new.pem];
        let lost = verifier(&both, &[&of_new]).check_lists(&earlier);
        assert!(
            matches!(
                lost,
                Err(ServerTlsError::ListLost {
                    list: "missing",
                    ..
                })
            ),
            "{lost:?}"
        );
        for lists in [&[&*of_old, &of_new][..], &[&of_old]] {
            let kept = verifier(&both, lists).check_lists(&earlier);
            assert!(kept.is_ok(), "{kept:?}");
        }
    }

    /// The certificates do not name their partitions.
    #[test]
    fn all_partitions_of_a_revocation_list_are_checked() {
        let authority = Authority::generate();
        let [a, b] = [("http://a/", 1), ("http://b/", 2)]
            .map(|(uri, serial)| authority.partition(uri, 2_025, &[serial]));
        for lists in [[&*a, &*b], [&*b, &*a]] {
            let verifier = verifier(&[&authority.pem], &lists);
            assert_eq!(verifier.verify(&[authority.client(1)]), revoked());
            assert_eq!(verifier.verify(&[authority.client(2)]), revoked());
            assert_eq!(verifier.verify(&[authority.client(3)]), Ok(()));
        }
    }

    /// The certificates do not name their partitions, so the outdated partition may be the one that
    /// contains their revocation.
    #[test]
    fn a_client_is_refused_if_a_partition_of_the_revocation_list_is_outdated() {
        let authority = Authority::generate();
        let outdated = authority.list_with(Some("http://a/"), 2_024, 2_023, &[1]);
        let current = authority.partition("http://b/", 2_025, &[2]);
        for lists in [[&*outdated, &*current], [&*current, &*outdated]] {
            let verifier = verifier(&[&authority.pem], &lists);
            for (serial, is_revoked) in [(1, false), (2, true), (3, false)] {
                let refused = verifier.verify(&[authority.client(serial)]);
                assert_eq!(refused == revoked(), is_revoked, "{serial}: {refused:?}");
                assert!(refused.is_err(), "{serial}");
            }
        }
    }

    /// The clients connected in 2024, and their certificates have expired since.
    #[test]
    fn a_connected_client_is_refused_only_if_it_is_revoked_or_its_authority_is_not_trusted() {
        let [own, other] = [(), ()].map(|()| Authority::generate());
        let since = date_time_ymd(2_024, 6, 1).unix_timestamp();
        let since = Duration::from_secs(u64::try_from(since).unwrap());
        let since = UnixTime::since_unix_epoch(since);
        let [unrevoked, revoked] = [8, 7].map(|serial| [own.client_until(2_025, serial)]);
        let outdated = own.list_until(2_024, 2_023, &[7]);
        let of_other = other.list(2_025, &[8]);
        let (outdated, of_other) = (outdated.as_str(), of_other.as_str());
        for (trusted, lists, client, is_refused) in [
            (vec![&own], vec![], &revoked, false),
            (vec![&own], vec![outdated], &unrevoked, false),
            (vec![&own], vec![outdated], &revoked, true),
            // Both authorities have the same name, and the list of the client's authority is
            // missing.
            (vec![&own], vec![of_other], &unrevoked, false),
            (vec![&own, &other], vec![of_other], &unrevoked, false),
            (vec![&other, &own], vec![of_other], &unrevoked, false),
            (vec![&own], vec![of_other, outdated], &unrevoked, false),
            (vec![&own], vec![of_other, outdated], &revoked, true),
            (vec![&other, &own], vec![of_other, outdated], &revoked, true),
            (vec![&other], vec![], &unrevoked, true),
        ] {
            let trusted: Vec<_> = trusted.iter().map(|of| of.pem.as_str()).collect();
            let verifier = verifier(&trusted, &lists);
            assert!(verifier.verify(client).is_err());
            let connected = verifier.for_connected().unwrap();
            assert_eq!(connected.refuses(client, since), is_refused, "{lists:?}");
        }
    }

    #[test]
    fn the_chain_of_a_connected_client_is_verified_once_without_lists_and_once_for_each_set() {
        let counting = Arc::new(CountingVerifier::default());
        let without_lists: Arc<dyn ClientCertVerifier> = counting.clone();
        let set = SetVerifier {
            verifier: Arc::clone(&without_lists),
            are_partitions: false,
        };
        let connected = ConnectedVerifier(ChainVerifier {
            by_lists: repeat_n(set, 3).collect(),
            without_lists,
        });
        let chain = [CertificateDer::from(Vec::new())];
        assert!(!connected.refuses(&chain, UnixTime::now()));
        assert_eq!(counting.0.load(Ordering::Relaxed), 4);
    }

    /// The verifier of rustls accepts such a chain, but can need 14 s for it.
    #[test]
    fn a_client_that_sends_too_many_certificates_is_refused() {
        let authority = Authority::generate();
        let verifier = verifier(&[&authority.pem], &[]);
        for (others, is_accepted) in [(6, true), (7, false)] {
            let chain = (0..=others).map(|serial| authority.client(serial));
            let chain: Vec<_> = chain.collect();
            assert_eq!(verifier.verify(&chain).is_ok(), is_accepted, "{others}");
        }
    }
}
