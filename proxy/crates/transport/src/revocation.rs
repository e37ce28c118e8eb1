//! Certificate revocation lists: reads them, and finds the authorities that have no current list.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::{
    certificate::X509Certificate, extensions::ParsedExtension, parse_x509_certificate,
    parse_x509_crl, revocation_list::CertificateRevocationList,
};

use crate::certificates::{CertificateExpiry, Pem, PemError};

/// Reads the revocation lists in several files. Returns the newest lists first, because rustls uses
/// the first list of an issuer, and an older list lacks the latest revocations. Adds the expiries
/// of the lists to `expiries`. The expiry of a list is the time at which it must be replaced. If a
/// file has many lists, only the earliest expiries are added.
///
/// # Errors
/// If a file has no revocation list, or a list is malformed.
pub fn revocation_lists(
    files: &[Pem<'_>],
    expiries: &mut Vec<CertificateExpiry>,
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    let mut all = Vec::new();
    for file in files {
        let (lists, of_file) = file.revocation_lists()?;
        expiries.extend(of_file);
        all.extend(lists);
    }
    all.sort_by_cached_key(|list| Reverse(age_order(list)));
    Ok(all)
}

/// Orders the lists of an issuer by their age: the date of a list, and then its number.
fn age_order(list: &CertificateRevocationListDer<'_>) -> impl Ord + use<> {
    let (_, list) = parse_x509_crl(list).ok()?;
    Some((list.last_update().timestamp(), list.crl_number().cloned()))
}

/// A set of revocation lists. An issuer may have several keys, and may divide its list into
/// partitions. All lists of one issuer in the set belong to the same key and the same partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListSet {
    /// The lists, the newest ones first.
    pub lists: Vec<CertificateRevocationListDer<'static>>,
    /// True if each list is a partition of its issuer's list. False if no list is a partition.
    pub are_partitions: bool,
}

/// Divides revocation lists into sets (see [`ListSet`]). `lists` has the newest lists first. If an
/// authority gets a new key, there are two authorities with the same name, each with its own list.
/// An authority can also divide its list into partitions. rustls chooses a list by the name of the
/// issuer. It also chooses by the partition, but only if the certificate names one. So rustls needs
/// one verifier for each set.
///
/// Without lists, the result is one empty set: a verifier without lists does not check revocation.
/// Otherwise no set is empty. The keys are compared by their identifiers.
pub fn sets_by_key(lists: &[CertificateRevocationListDer<'static>]) -> Vec<ListSet> {
    let [mut whole, mut partitions] = [(); 2].map(|()| Vec::<ListSet>::new());
    let mut keys_of_issuers: HashMap<(Vec<u8>, bool), Vec<SetKey>> = HashMap::new();
    for list in lists {
        let Ok((_, parsed)) = parse_x509_crl(list) else {
            // This does not happen, because `revocation_lists` has refused malformed lists.
            continue;
        };
        let are_partitions = partition_of_list(&parsed).is_some();
        let issuer = parsed.issuer().as_raw().to_vec();
        let keys = keys_of_issuers.entry((issuer, are_partitions)).or_default();
        let key = [key_of_list(&parsed), partition_of_list(&parsed)];
        let key = key.map(|part| part.map(<[u8]>::to_vec));
        let place = keys.iter().position(|known| *known == key);
        let place = place.unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        });
        let sets = match are_partitions {
            true => &mut partitions,
            false => &mut whole,
        };
        if place == sets.len() {
            sets.push(ListSet {
                lists: Vec::new(),
                are_partitions,
            });
        }
        if let Some(set) = sets.get_mut(place) {
            set.lists.push(list.clone());
        }
    }
    whole.append(&mut partitions);
    match whole.is_empty() {
        true => vec![ListSet::default()],
        false => whole,
    }
}

/// The identifier of the key that has signed a list, and the list's partition. All lists of one
/// issuer with the same values are in the same set.
type SetKey = [Option<Vec<u8>>; 2];

/// The identifier of the key that has signed a list.
fn key_of_list<'a>(list: &'a CertificateRevocationList<'_>) -> Option<&'a [u8]> {
    list.extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(of) => {
                of.key_identifier.as_ref().map(|id| id.0)
            }
            _ => None,
        })
}

/// The partition of the authority's list that this list contains, as bytes. `None` if the list
/// names no partition.
fn partition_of_list<'a>(list: &'a CertificateRevocationList<'_>) -> Option<&'a [u8]> {
    let point = list.extensions().iter().find(|extension| {
        matches!(
            extension.parsed_extension(),
            ParsedExtension::IssuingDistributionPoint(_)
        )
    });
    point.map(|extension| extension.value)
}

/// True if a list has only certificates of authorities. Such a list does not show if the
/// certificate of a peer was revoked, so rustls does not use the list for peers.
fn has_only_authorities(list: &CertificateRevocationList<'_>) -> bool {
    list.extensions().iter().any(|extension| {
        matches!(
            extension.parsed_extension(),
            ParsedExtension::IssuingDistributionPoint(point) if point.only_contains_ca_certs
        )
    })
}

/// The identifier of the key of an authority.
fn key_of_authority<'a>(authority: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    authority
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
            _ => None,
        })
}

/// True if an authority may have signed this list: the names are equal, and also the identifiers of
/// the keys, if both are known.
fn may_have_signed(authority: &X509Certificate<'_>, list: &CertificateRevocationList<'_>) -> bool {
    let keys = key_of_authority(authority).zip(key_of_list(list));
    list.issuer().as_raw() == authority.subject().as_raw()
        && keys.is_none_or(|(of_authority, of_list)| of_authority == of_list)
}

/// An authority without a current revocation list. Seawall refuses the certificates that this
/// authority has issued. If only a partition of the list is outdated, Seawall accepts certificates
/// that name another partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityWithoutList {
    /// The subject of the authority, such as `CN=clients, O=Example`.
    pub authority: String,
    /// The public key of the authority as a DER structure (`SubjectPublicKeyInfo`, RFC 5280). It
    /// tells authorities with the same subject apart.
    pub key: Vec<u8>,
    /// The state of the authority's list: `missing` or `outdated`. If a partition is outdated, the
    /// state is `outdated`.
    pub list: &'static str,
}

/// Finds the authorities without a current revocation list at the time `now`, in seconds since the
/// Unix epoch. `lists` has the newest lists first. Without any list, revocation is not checked, so
/// no authority needs a list.
///
/// A peer's own certificate is checked for revocation, but the certificates of authorities are not.
/// So a list is needed only for an authority that issues certificates of peers. An authority that
/// has issued the certificate of another authority in `authorities` is skipped: this function
/// assumes that such an authority issues certificates only for authorities.
pub fn authorities_without_list(
    authorities: &[CertificateDer<'_>],
    lists: &[CertificateRevocationListDer<'_>],
    now: i64,
) -> Vec<AuthorityWithoutList> {
    if lists.is_empty() {
        return Vec::new();
    }
    let parsed = authorities.iter().filter_map(|certificate| {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        Some(certificate)
    });
    let authorities: Vec<_> = parsed.collect();
    let parsed = lists.iter().filter_map(|list| {
        let (_, list) = parse_x509_crl(list).ok()?;
        Some(list)
    });
    let lists: Vec<_> = parsed.collect();
    let mut found = Vec::new();
    for authority in &authorities {
        let subject = authority.subject().as_raw();
        let has_issued_another = authorities
            .iter()
            .any(|other| other.issuer().as_raw() == subject && other.subject().as_raw() != subject);
        if has_issued_another {
            continue;
        }
        let own = lists
            .iter()
            .filter(|list| may_have_signed(authority, list) && !has_only_authorities(list));
        let mut partitions = HashSet::new();
        let next_updates = own.enumerate().filter_map(|(place, list)| {
            // If a partition is outdated, peers may be refused even if another list is current. So
            // the newest list of each partition counts. A list that is not a partition counts only
            // if it is the newest of all lists.
            let counts = match partition_of_list(list) {
                Some(partition) => partitions.insert(partition),
                None => place == 0,
            };
            counts.then(|| list.next_update().map_or(i64::MAX, |of| of.timestamp()))
        });
        let list = match next_updates.min() {
            None => "missing",
            Some(time) if time <= now => "outdated",
            Some(_) => continue,
        };
        found.push(AuthorityWithoutList {
            authority: authority.subject().to_string(),
            key: authority.public_key().raw.to_vec(),
            list,
        });
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
        CrlIssuingDistributionPoint, CrlScope, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
        KeyUsagePurpose, SerialNumber, date_time_ymd,
    };

    use super::*;

    pub(crate) fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    fn authority(name: &str) -> (Issuer<'static, KeyPair>, CertificateDer<'static>) {
        let (params, key) = (params(name), KeyPair::generate().unwrap());
        let certificate = params.self_signed(&key).unwrap().der().clone();
        (Issuer::new(params, key), certificate)
    }

    /// The properties of a revocation list with this number. The list must be replaced at the
    /// beginning of the year `next_update_year`. Its date is one year earlier.
    fn list_params(number: u64, next_update_year: i32) -> CertificateRevocationListParams {
        CertificateRevocationListParams {
            this_update: date_time_ymd(next_update_year - 1, 1, 1),
            next_update: date_time_ymd(next_update_year, 1, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        }
    }

    /// A revocation list with the properties of [`list_params`].
    pub(crate) fn numbered_list(
        issuer: &Issuer<'static, KeyPair>,
        number: u64,
        next_update_year: i32,
    ) -> rcgen::CertificateRevocationList {
        let params = list_params(number, next_update_year);
        params.signed_by(issuer).unwrap()
    }

    fn list(
        issuer: &Issuer<'static, KeyPair>,
        next_update_year: i32,
    ) -> CertificateRevocationListDer<'static> {
        numbered_list(issuer, 1, next_update_year).der().clone()
    }

    /// The partition `uri` of the issuer's revocation list. `scope` is the kind of certificates in
    /// the partition; `None` for all kinds.
    fn partition(
        issuer: &Issuer<'static, KeyPair>,
        uri: &str,
        scope: Option<CrlScope>,
        next_update_year: i32,
    ) -> CertificateRevocationListDer<'static> {
        let distribution_point = CrlDistributionPoint {
            uris: vec![uri.to_owned()],
        };
        let params = CertificateRevocationListParams {
            issuing_distribution_point: Some(CrlIssuingDistributionPoint {
                distribution_point,
                scope,
            }),
            ..list_params(1, next_update_year)
        };
        params.signed_by(issuer).unwrap().der().clone()
    }

    fn found(
        authorities: &[CertificateDer<'_>],
        lists: &[CertificateRevocationListDer<'_>],
    ) -> Vec<(String, &'static str)> {
        let now = date_time_ymd(2_030, 1, 1).unix_timestamp();
        let found = authorities_without_list(authorities, lists, now).into_iter();
        found.map(|of| (of.authority, of.list)).collect()
    }

    #[test]
    fn authorities_with_a_missing_or_outdated_revocation_list_are_found() {
        let [first, second, third] = ["first", "second", "third"].map(authority);
        let authorities = [first.1, second.1, third.1];
        let lists = [list(&first.0, 2_031), list(&second.0, 2_030)];
        let expected = [
            ("CN=second".to_owned(), "outdated"),
            ("CN=third".to_owned(), "missing"),
        ];
        assert_eq!(found(&authorities, &lists), expected);
        assert!(found(&authorities, &[]).is_empty());
    }

    /// If a partition is outdated, each certificate that names no partition is refused.
    #[test]
    fn an_authority_is_found_if_the_newest_list_of_a_partition_is_outdated() {
        let (issuer, certificate) = authority("clients");
        let partition = |uri, year| partition(&issuer, uri, None, year);
        let whole = |year| list(&issuer, year);
        let (a, b) = ("http://a/", "http://b/");
        for (lists, is_found) in [
            (vec![partition(b, 2_031), partition(a, 2_030)], true),
            (vec![whole(2_031), partition(a, 2_030)], true),
            (
                vec![
                    partition(a, 2_032),
                    partition(b, 2_031),
                    partition(a, 2_030),
                ],
                false,
            ),
            (vec![partition(a, 2_031), whole(2_030)], false),
        ] {
            let expected = is_found.then(|| ("CN=clients".to_owned(), "outdated"));
            let found = found(std::slice::from_ref(&certificate), &lists);
            assert_eq!(found, expected.as_slice());
        }
    }

    /// A list of authorities' certificates does not show if the certificate of a peer was revoked.
    #[test]
    fn a_revocation_list_that_has_only_certificates_of_authorities_does_not_count() {
        let (issuer, certificate) = authority("clients");
        let scope = Some(CrlScope::CaCertsOnly);
        let of_authorities = |year| partition(&issuer, "http://a/", scope, year);
        let authorities = [certificate];
        let missing = [("CN=clients".to_owned(), "missing")];
        assert_eq!(found(&authorities, &[of_authorities(2_031)]), missing);
        let lists = [list(&issuer, 2_031), of_authorities(2_030)];
        assert!(found(&authorities, &lists).is_empty());
    }

    /// Only a peer's own certificate is checked for revocation, not certificates of authorities.
    #[test]
    fn an_authority_that_issued_the_certificate_of_another_authority_needs_no_revocation_list() {
        let (root, certificate) = authority("root");
        let (params, key) = (params("intermediate"), KeyPair::generate().unwrap());
        let issued = params.signed_by(&key, &root).unwrap().der().clone();
        let intermediate = Issuer::new(params, key);
        let lists = [list(&intermediate, 2_031)];
        assert!(found(&[certificate, issued], &lists).is_empty());
    }

    #[test]
    fn revocation_lists_are_sorted_by_date_and_number_and_the_newest_list_is_the_first() {
        let (issuer, _) = authority("clients");
        let ordered = [(1, 2_032), (10, 2_031), (9, 2_031), (2, 2_030)];
        let ordered = ordered.map(|(number, year)| numbered_list(&issuer, number, year));
        let expected = ordered.iter().map(|list| list.der().clone());
        let expected: Vec<_> = expected.collect();
        let files = ordered.map(|list| list.pem().unwrap());
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let files = order.map(|place: usize| Pem {
                path: Path::new("crl.pem"),
                content: files.get(place).unwrap(),
            });
            let read = revocation_lists(&files, &mut Vec::new()).unwrap();
            assert_eq!(read, expected, "{order:?}");
        }
    }

    /// An authority with a new key may have the same name as before.
    #[test]
    fn each_set_of_lists_has_only_lists_of_one_key_for_each_issuer() {
        let [old, new, other] = ["clients", "clients", "servers"].map(|name| authority(name).0);
        let lists = [
            list(&new, 2_032),
            list(&old, 2_031),
            list(&other, 2_031),
            list(&old, 2_030),
        ];
        let [of_new, of_old, of_other, earlier_of_old] = lists.clone();
        let expected = [vec![of_new, of_other], vec![of_old, earlier_of_old]];
        let expected = expected.map(|lists| ListSet {
            lists,
            are_partitions: false,
        });
        assert_eq!(sets_by_key(&lists), expected);
        assert_eq!(sets_by_key(&[]), [ListSet::default()]);
    }

    #[test]
    fn two_authorities_with_the_same_name_need_one_list_for_each_of_their_keys() {
        let [old, new] = ["clients", "clients"].map(authority);
        let authorities = [old.1, new.1];
        let missing = [("CN=clients".to_owned(), "missing")];
        assert_eq!(found(&authorities, &[list(&old.0, 2_031)]), missing);
        let lists = [list(&new.0, 2_031), list(&old.0, 2_031)];
        assert!(found(&authorities, &lists).is_empty());
    }
}
