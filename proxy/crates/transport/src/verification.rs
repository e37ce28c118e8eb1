//! Verifies the certificate chains of peers, within limits that the library does not have.

use std::sync::Arc;

use tokio_rustls::rustls::{
    self, CertificateError, OtherError,
    pki_types::{CertificateDer, CertificateRevocationListDer},
};

use crate::ListSet;

/// Maximum number of certificates that a peer may send after its own. The verifier tries to order
/// these certificates in every possible way, even before it has verified a signature. With 880
/// small certificates, which fit into a handshake, this takes 14 s of CPU time. With 6
/// certificates, it takes at most 6 ms.
const MAX_INTERMEDIATES: usize = 6;

/// A peer has sent more certificates than Seawall verifies.
#[derive(Debug, thiserror::Error)]
#[error(
    "the chain has {0} intermediate certificates, and at most {MAX_INTERMEDIATES} are accepted"
)]
struct LongChain(usize);

/// A verifier with the revocation lists of one set.
#[derive(Clone, Debug)]
pub struct SetVerifier<V> {
    /// The verifier.
    pub verifier: V,
    /// True if each list is a partition of its issuer's list.
    pub are_partitions: bool,
}

impl<V> SetVerifier<V> {
    /// Builds the verifier of a set from its lists.
    ///
    /// # Errors
    /// The error of `build`.
    pub fn of_set<E>(
        set: ListSet,
        build: impl FnOnce(Vec<CertificateRevocationListDer<'static>>) -> Result<V, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            verifier: build(set.lists)?,
            are_partitions: set.are_partitions,
        })
    }
}

/// Verifies a chain with several verifiers. Their revocation lists come from [`sets_by_key`]. The
/// chain is accepted if a verifier accepts it, no verifier knows it as revoked, and no partition
/// that may contain its certificate is outdated. `intermediates` are the certificates that the peer
/// has sent after its own.
///
/// If `without_lists` is set, this verifier without revocation lists must also accept the chain. It
/// verifies the chain first. So a peer without a valid certificate causes one verification, and not
/// one for each set of lists.
///
/// # Errors
/// If the chain is refused, or has too many certificates. The error of a verifier whose lists come
/// from another key of the same authority does not describe the certificate. So this error is
/// returned only if no verifier has another error.
///
/// [`sets_by_key`]: crate::sets_by_key
pub fn verify_chain<'v, V: 'v, T>(
    without_lists: Option<&'v V>,
    verifiers: impl IntoIterator<Item = &'v SetVerifier<V>>,
    intermediates: &[CertificateDer<'_>],
    verify: impl Fn(&'v V) -> Result<T, rustls::Error>,
) -> Result<T, rustls::Error> {
    if intermediates.len() > MAX_INTERMEDIATES {
        let error = OtherError(Arc::new(LongChain(intermediates.len())));
        return Err(CertificateError::Other(error).into());
    }
    if let Some(verifier) = without_lists {
        verify(verifier)?;
    }
    let (mut accepted, mut outdated, mut refused) = (None, None, None);
    for set in verifiers {
        match verify(&set.verifier) {
            Ok(verified) => accepted = Some(verified),
            Err(error @ rustls::Error::InvalidCertificate(CertificateError::Revoked)) => {
                return Err(error);
            }
            // The certificate may be in the outdated partition, and no other partition shows if it
            // is. So the chain is refused.
            Err(error) if set.are_partitions && is_outdated_list(&error) => outdated = Some(error),
            Err(error) if refused.as_ref().is_none_or(concerns_other_list) => refused = Some(error),
            Err(_) => {}
        }
    }
    if let Some(outdated) = outdated {
        return Err(outdated);
    }
    let refused = refused.unwrap_or_else(|| rustls::Error::General("no verifier".to_owned()));
    accepted.ok_or(refused)
}

/// True if the revocation list is outdated. Its signature has been verified before, so the list
/// comes from the authority of the certificate.
fn is_outdated_list(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::ExpiredRevocationList
                | CertificateError::ExpiredRevocationListContext { .. }
        )
    )
}

/// True if this error may only mean that a key of the authority signed the revocation list, and
/// another key of the authority signed the certificate. Then the error says nothing about the
/// certificate.
fn concerns_other_list(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertRevocationList(_)
            | rustls::Error::InvalidCertificate(
                CertificateError::BadSignature | CertificateError::UnknownRevocationStatus
            )
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustls::CertRevocationListError;

    use super::*;

    type Verified = Result<(), rustls::Error>;

    /// Verifies a chain with verifiers that have these results.
    fn verified(results: &[Verified], are_partitions: bool) -> Verified {
        let sets = results.iter().cloned().map(|verifier| SetVerifier {
            verifier,
            are_partitions,
        });
        let sets: Vec<_> = sets.collect();
        verify_chain(None, &sets, &[], Clone::clone)
    }

    #[test]
    fn a_chain_is_accepted_if_one_verifier_accepts_it_and_no_verifier_knows_it_as_revoked() {
        let other = || Err(rustls::Error::from(CertRevocationListError::BadSignature));
        let revoked = || Err(rustls::Error::from(CertificateError::Revoked));
        let expired = || Err(rustls::Error::from(CertificateError::Expired));
        for (results, expected) in [
            (vec![Ok(())], Ok(())),
            (vec![other(), Ok(())], Ok(())),
            (vec![Ok(()), other()], Ok(())),
            (vec![Ok(()), revoked()], revoked()),
            (vec![revoked(), Ok(())], revoked()),
            (vec![other(), expired()], expired()),
            (vec![expired(), other()], expired()),
            (vec![other()], other()),
        ] {
            assert_eq!(verified(&results, false), expected, "{results:?}");
            assert_eq!(verified(&results, true), expected, "{results:?}");
        }
        assert!(verified(&[], false).is_err());
    }

    /// An outdated list that is not a partition does not refuse the chain, because another set may
    /// have a newer list of the same authority. This happens if an authority begins to write the
    /// identifier of its key into its lists: the older lists have no identifier, so they are in
    /// another set.
    #[test]
    fn only_an_outdated_partition_refuses_a_chain_that_another_verifier_accepts() {
        let outdated = || Err(rustls::Error::from(CertificateError::ExpiredRevocationList));
        let revoked = || Err(rustls::Error::from(CertificateError::Revoked));
        for (results, of_partitions, of_whole) in [
            (vec![Ok(()), outdated()], outdated(), Ok(())),
            (vec![outdated(), Ok(())], outdated(), Ok(())),
            (vec![outdated(), revoked()], revoked(), revoked()),
            (vec![outdated()], outdated(), outdated()),
        ] {
            assert_eq!(verified(&results, true), of_partitions, "{results:?}");
            assert_eq!(verified(&results, false), of_whole, "{results:?}");
        }
    }

    /// An authority can divide its revocation list into many partitions, each with a verifier.
    #[test]
    fn an_invalid_chain_is_verified_once_if_there_are_many_sets_of_lists() {
        let count = Cell::new(0);
        let expired = || Verified::Err(CertificateError::Expired.into());
        let verify = |&()| {
            count.set(count.get() + 1);
            expired()
        };
        let set = SetVerifier {
            verifier: (),
            are_partitions: true,
        };
        let sets = vec![set; 100];
        let verified = verify_chain(Some(&()), &sets, &[], verify);
        assert_eq!(verified, expired());
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn a_chain_with_more_than_six_intermediate_certificates_is_refused_without_verification() {
        let certificate = CertificateDer::from(Vec::new());
        for (count, is_verified) in [(6, true), (7, false), (880, false)] {
            let chain = vec![certificate.clone(); count];
            let set = SetVerifier {
                verifier: (),
                are_partitions: false,
            };
            let verified = verify_chain(None, [&set], &chain, Ok);
            assert_eq!(verified.is_ok(), is_verified, "{count}: {verified:?}");
        }
    }
}
