//! Tests of the tables of users.

use super::*;
use seawall_auth::{Restrictions, derive_from_password};

fn user(name: &str) -> UserName {
    UserName {
        name: name.into(),
        source: "admin".into(),
    }
}

fn credentials(name: &str, password: &str, user_id: u8) -> (seawall_auth::Credentials, ClientKey) {
    let mechanism = Mechanism::ScramSha256;
    let salt = password.repeat(4);
    let derived = derive_from_password(mechanism, name, password, salt.as_bytes(), 4096).unwrap();
    let credentials = seawall_auth::Credentials {
        user_id: Some([user_id; 16]),
        source: "admin".into(),
        name: name.into(),
        sha1: None,
        sha256: Some(derived.keys),
        restrictions: Restrictions::default(),
        mechanisms: vec![mechanism.name().into()],
    };
    (credentials, derived.client_key)
}

fn store() -> Store {
    Store::new(4, Duration::from_secs(300))
}

/// The mechanisms of a user that exists.
fn scram() -> Vec<String> {
    vec![Mechanism::ScramSha256.name().to_owned()]
}

fn learn(store: &mut Store, name: &str, password: &str, user_id: u8, now: Instant) -> Known {
    let (credentials, client_key) = credentials(name, password, user_id);
    let keys = credentials.sha256.clone().unwrap();
    let (known, _) = store.learn(&user(name), credentials, Some((client_key, keys)), now);
    known.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_user_keeps_its_identity_but_not_its_login_after_a_password_change() {
    let (mut store, now) = (store(), Instant::now());
    let before = learn(&mut store, "u", "one", 1, now);
    let (changed, _) = credentials("u", "two", 1);
    drop(store.confirm(
        &user("u"),
        &before.identity,
        KeyReading::Keys(Box::new(changed)),
        now,
    ));
    let after = store.known(&user("u"), now).unwrap();
    assert_eq!(after.identity.id(), before.identity.id());
    assert!(matches!(after.identity.login(), Login::Unknown));
    assert_eq!(after.identity.status(), IdentityStatus::Good);
}

/// The parameter `authenticationMechanisms` of the servers can exclude a mechanism.
#[tokio::test(start_paused = true)]
async fn keys_for_a_mechanism_are_not_stored_while_the_servers_do_not_offer_the_mechanism() {
    let (mut store, now) = (store(), Instant::now());
    let (sha_1, user, other) = (Mechanism::ScramSha1, user("u"), user("v"));
    let derived = derive_from_password(sha_1, "u", "one", b"oneoneoneone", 4096).unwrap();
    let (mut both, _) = credentials("u", "one", 1);
    both.sha1 = Some(derived.keys);
    let stores_sha_1 = |store: &mut Store| {
        let (known, _) = store.learn(&user, both.clone(), None, now);
        known.unwrap().credentials.sha1.is_some()
    };
    assert!(stores_sha_1(&mut store));
    drop(store.record_offered(&user, &both, &scram(), None));
    assert!(!stores_sha_1(&mut store));
    let (known, _) = store.learn(&other, both.clone(), None, now);
    assert!(known.unwrap().credentials.sha1.is_some());
    // An empty list changes nothing.
    drop(store.record_offered(&user, &both, &[], None));
    assert!(!stores_sha_1(&mut store));
    let all = Mechanism::ALL.map(|mechanism| mechanism.name().to_owned());
    drop(store.record_offered(&user, &both, &all, None));
    assert!(stores_sha_1(&mut store));
    // The server has just accepted a login with SCRAM-SHA-1.
    drop(store.record_offered(&user, &both, &scram(), Some(sha_1)));
    assert!(stores_sha_1(&mut store));
    drop(store.record_offered(&user, &both, &scram(), None));
    assert!(!stores_sha_1(&mut store));
    // A user that has keys for only one mechanism keeps these keys.
    both.sha256 = None;
    let (known, _) = store.learn(&user, both, None, now);
    assert!(known.unwrap().credentials.sha1.is_some());
}

#[tokio::test(start_paused = true)]
async fn keys_requested_before_a_client_proof_failed_do_not_confirm_the_doubted_keys() {
    let (mut store, began) = (store(), Instant::now());
    let known = learn(&mut store, "u", "one", 1, began);
    store.doubt(&user("u"), began + Duration::from_millis(2));
    let reading = || KeyReading::Keys(Box::new(credentials("u", "one", 1).0));
    let asked = began + Duration::from_millis(1);
    drop(store.confirm(&user("u"), &known.identity, reading(), asked));
    assert!(store.is_doubted(&user("u")));
    let asked = began + Duration::from_millis(3);
    drop(store.confirm(&user("u"), &known.identity, reading(), asked));
    assert!(!store.is_doubted(&user("u")));
}

#[tokio::test(start_paused = true)]
async fn only_one_login_of_a_user_at_a_time_may_claim_the_cached_keys() {
    let (mut store, now) = (store(), Instant::now());
    learn(&mut store, "u", "one", 1, now);
    let first = store.claim_cached(&user("u"), now);
    assert!(first.is_some());
    assert!(store.claim_cached(&user("u"), now).is_none());
    drop(first);
    let second = store.claim_cached(&user("u"), now);
    assert!(second.is_some());
    // Only a reading that was requested after the claim began ends the claim.
    learn(&mut store, "u", "one", 1, now - Duration::from_millis(1));
    assert!(store.claim_cached(&user("u"), now).is_none());
    learn(&mut store, "u", "one", 1, now);
    assert!(store.claim_cached(&user("u"), now).is_some());
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn keys_from_an_earlier_request_never_replace_keys_from_a_later_request() {
    let (mut store, now) = (store(), Instant::now());
    let newer = learn(&mut store, "u", "two", 1, now);
    let earlier = now.checked_sub(Duration::from_millis(1)).unwrap();
    let (old, old_key) = credentials("u", "one", 1);
    let keys = old.sha256.clone().unwrap();
    let reading = KeyReading::Keys(Box::new(old.clone()));
    drop(store.confirm(&user("u"), &newer.identity, reading, earlier));
    let login = Some((old_key, keys));
    let (known, _) = store.learn(&user("u"), old, login, earlier);
    assert!(known.is_none(), "a first login with outdated keys fails");
    let known = store.known(&user("u"), now).unwrap();
    assert_eq!(known.credentials, newer.credentials);
    let Login::Keys { keys, .. } = known.identity.login() else {
        panic!("the newer login is kept")
    };
    assert_eq!(Some(&keys), newer.credentials.keys(Mechanism::ScramSha256));
    // A login with keys from an earlier request succeeds if these keys equal the newer keys.
    let (same, client_key) = credentials("u", "two", 1);
    let login = same.sha256.clone().map(|keys| (client_key, keys));
    let (known, _) = store.learn(&user("u"), same, login, earlier);
    assert_eq!(known.unwrap().confirmed_at, now);
}

#[tokio::test(start_paused = true)]
async fn a_login_fails_if_the_keys_of_its_user_are_replaced_while_its_proof_is_checked() {
    let (mut store, now) = (store(), Instant::now());
    let (mechanism, old) = (Mechanism::ScramSha256, credentials("u", "one", 1));
    let checked = learn(&mut store, "u", "one", 1, now);
    let newer = learn(&mut store, "u", "two", 1, now);
    let proven = store.prove(&user("u"), &checked, mechanism, old.1.clone(), now);
    assert_eq!(proven.err(), Some(CredentialError::Refused));
    let Login::Keys { keys, .. } = newer.identity.login() else {
        panic!("the newer login is kept")
    };
    assert_eq!(Some(&keys), newer.credentials.keys(mechanism));
    let again = learn(&mut store, "u", "one", 2, now);
    let proven = store.prove(&user("u"), &checked, mechanism, old.1.clone(), now);
    assert_eq!(
        proven.err(),
        Some(CredentialError::Refused),
        "a proof for a dropped user does not count for a new user of the same name"
    );
    assert!(
        store
            .prove(&user("u"), &again, mechanism, old.1, now)
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn a_login_fails_as_unavailable_and_not_as_refused_if_its_cached_keys_are_lost() {
    let (mut store, now) = (store(), Instant::now());
    let client_key = credentials("u", "one", 1).1;
    let prove = |store: &mut Store, checked: &Known, now| {
        let mechanism = Mechanism::ScramSha256;
        let proven = store.prove(&user("u"), checked, mechanism, client_key.clone(), now);
        proven.err()
    };
    let checked = learn(&mut store, "u", "one", 1, now);
    assert_eq!(prove(&mut store, &checked, now), None);
    let later = now + Duration::from_secs(300);
    let expired = prove(&mut store, &checked, later);
    assert_eq!(expired, Some(CredentialError::Unavailable));
    let checked = learn(&mut store, "u", "one", 1, later);
    for n in 0..10 {
        learn(&mut store, &format!("u{n}"), "p", n, later);
    }
    let evicted = prove(&mut store, &checked, later);
    assert_eq!(evicted, Some(CredentialError::Unavailable));
    drop(store.confirm(&user("u"), &checked.identity, KeyReading::Gone, later));
    let ended = prove(&mut store, &checked, later);
    assert_eq!(ended, Some(CredentialError::Refused));
}

#[test]
fn user_and_database_names_longer_than_the_limits_are_refused() {
    assert!(UserName::new(&"n".repeat(1024), &"s".repeat(63)).is_some());
    assert!(UserName::new(&"n".repeat(1025), "admin").is_none());
    assert!(UserName::new("n", &"s".repeat(64)).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_user_that_was_dropped_and_created_again_gets_a_new_identity() {
    let (mut store, now) = (store(), Instant::now());
    let before = learn(&mut store, "u", "one", 1, now);
    let after = learn(&mut store, "u", "one", 2, now);
    assert_ne!(after.identity.id(), before.identity.id());
    assert_eq!(before.identity.status(), IdentityStatus::Gone);
    // A later result for the old identity does not affect the new identity.
    let version = before.identity.login_version();
    let by_routers = KeyReading::RefusedByRouters {
        login_version: version,
        is_undecided: false,
    };
    for reading in [KeyReading::Refused(version), by_routers] {
        drop(store.confirm(&user("u"), &before.identity, reading, now));
        assert!(store.known(&user("u"), now).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_user_are_removed_after_a_server_has_refused_them() {
    let (mut store, now) = (store(), Instant::now());
    let known = learn(&mut store, "u", "one", 1, now);
    drop(store.confirm(&user("u"), &known.identity, KeyReading::Unavailable, now));
    assert!(store.known(&user("u"), now).is_some());
    let version = known.identity.login_version();
    drop(store.confirm(
        &user("u"),
        &known.identity,
        KeyReading::Refused(version),
        now,
    ));
    assert!(store.known(&user("u"), now).is_none());
    assert_eq!(known.identity.status(), IdentityStatus::Refused);
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_with_the_old_keys_does_not_restore_a_dropped_or_refused_user() {
    let (mut store, now) = (store(), Instant::now());
    let earlier = now.checked_sub(Duration::from_millis(1)).unwrap();
    let proven = |password: &str| {
        let (credentials, client_key) = credentials("u", password, 1);
        let login = credentials.sha256.clone().map(|keys| (client_key, keys));
        (credentials, login)
    };
    let gone = learn(&mut store, "u", "one", 1, earlier);
    drop(store.confirm(&user("u"), &gone.identity, KeyReading::Gone, now));
    let (credentials, login) = proven("one");
    let (known, _) = store.learn(&user("u"), credentials, login, earlier);
    assert!(known.is_none());
    let refused = learn(&mut store, "u", "one", 1, now);
    let version = refused.identity.login_version();
    let later = now + Duration::from_millis(2);
    drop(store.confirm(
        &user("u"),
        &refused.identity,
        KeyReading::Refused(version),
        later,
    ));
    let between = now + Duration::from_millis(1);
    let (credentials, login) = proven("one");
    let (known, _) = store.learn(&user("u"), credentials, login, between);
    assert!(known.is_none(), "refused keys do not restore the user");
    let (credentials, login) = proven("two");
    let (known, _) = store.learn(&user("u"), credentials, login, between);
    assert!(known.is_some(), "other keys restore the user");
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_does_not_restore_a_dropped_user_whose_cached_keys_had_expired() {
    let (mut store, now) = (store(), Instant::now());
    let gone = learn(&mut store, "u", "one", 1, now);
    let asked = now + Duration::from_secs(300);
    assert!(store.known(&user("u"), asked).is_none());
    let later = asked + Duration::from_millis(1);
    drop(store.confirm(&user("u"), &gone.identity, KeyReading::Gone, later));
    let (late, client_key) = credentials("u", "one", 1);
    let login = late.sha256.clone().map(|keys| (client_key, keys));
    let (known, _) = store.learn(&user("u"), late, login, asked);
    assert!(known.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_user_stays_known_if_a_server_refuses_keys_that_were_replaced() {
    let (mut store, now) = (store(), Instant::now());
    let known = learn(&mut store, "u", "one", 1, now);
    let before = known.identity.login_version();
    let known = learn(&mut store, "u", "two", 1, now);
    drop(store.confirm(
        &user("u"),
        &known.identity,
        KeyReading::Refused(before),
        now,
    ));
    assert!(store.known(&user("u"), now).is_some());
    assert_eq!(known.identity.status(), IdentityStatus::Good);
}

#[tokio::test(start_paused = true)]
async fn keys_that_no_server_has_confirmed_for_300_seconds_are_dropped() {
    let (mut store, now) = (store(), Instant::now());
    learn(&mut store, "u", "one", 1, now);
    assert!(
        store
            .known(&user("u"), now + Duration::from_secs(299))
            .is_some()
    );
    assert!(
        store
            .known(&user("u"), now + Duration::from_secs(300))
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn a_user_keeps_its_identity_when_its_cached_keys_expire_or_are_evicted() {
    let (mut store, now) = (store(), Instant::now());
    let first = learn(&mut store, "u", "one", 1, now).identity;
    let later = now + Duration::from_secs(300);
    let after_expiry = learn(&mut store, "u", "one", 1, later).identity;
    assert_eq!(after_expiry.id(), first.id());
    for n in 0..10 {
        learn(&mut store, &format!("u{n}"), "p", n, later);
    }
    assert!(store.known(&user("u"), later).is_none());
    let after_eviction = learn(&mut store, "u", "two", 1, later).identity;
    assert_eq!(after_eviction.id(), first.id());
    // The user was dropped and created again.
    let another = learn(&mut store, "u", "two", 2, later).identity;
    assert_ne!(another.id(), first.id());
    assert_eq!(first.status(), IdentityStatus::Gone);
}

#[tokio::test(start_paused = true)]
async fn credential_tables_hold_at_most_max_users_entries() {
    let (mut store, now) = (store(), Instant::now());
    for n in 0..10 {
        learn(&mut store, &format!("u{n}"), "p", n, now);
        drop(store.remember_unknown(&user(&format!("x{n}")), Mechanism::ScramSha1, now));
        drop(store.remember_mechanisms(&user(&format!("m{n}")), scram(), now));
        drop(store.remember_mechanisms(&user(&format!("x{n}")), vec![], now));
    }
    let counts = [
        store.count(),
        store.unknown.len(),
        store.mechanisms.len(),
        store.absent.len(),
    ];
    assert!(
        counts.iter().all(|count| (1..=4).contains(count)),
        "{counts:?}"
    );
    let is_unknown = |mechanism, now| store.is_unknown(&user("x9"), mechanism, now);
    assert!(is_unknown(Mechanism::ScramSha1, now));
    assert!(!is_unknown(Mechanism::ScramSha256, now));
    assert!(!is_unknown(Mechanism::ScramSha1, now + UNKNOWN_FOR));
}

#[tokio::test(start_paused = true)]
async fn keys_need_no_new_request_for_a_second_and_mechanisms_are_cached_for_five_seconds() {
    let (mut store, now) = (store(), Instant::now());
    let known = learn(&mut store, "u", "one", 1, now);
    assert!(known.is_fresh(now + FRESH_FOR - Duration::from_nanos(1)));
    assert!(!known.is_fresh(now + FRESH_FOR));
    drop(store.remember_mechanisms(&user("v"), vec![], now));
    let until = now + MECHANISMS_FOR;
    let before = store.mechanisms(&user("v"), until - Duration::from_nanos(1));
    assert!(before.is_some());
    assert!(store.mechanisms(&user("v"), until).is_none());
}

#[tokio::test(start_paused = true)]
async fn another_login_may_claim_the_cached_keys_only_after_keys_requested_later_have_arrived() {
    let (mut store, now) = (store(), Instant::now());
    learn(&mut store, "u", "one", 1, now);
    let second = Duration::from_secs(1);
    let lent = store.claim_cached(&user("u"), now + second);
    assert!(lent.is_some());
    learn(&mut store, "u", "one", 1, now + second / 2);
    assert!(store.claim_cached(&user("u"), now + second).is_none());
    learn(&mut store, "u", "one", 1, now + second);
    assert!(store.claim_cached(&user("u"), now + second).is_some());
}

#[tokio::test(start_paused = true)]
async fn keys_are_doubted_after_a_failed_proof_until_newly_requested_keys_arrive() {
    let (mut store, now) = (store(), Instant::now());
    learn(&mut store, "u", "one", 1, now);
    let second = Duration::from_secs(1);
    store.doubt(&user("u"), now + second);
    learn(&mut store, "u", "one", 1, now + second / 2);
    assert!(store.is_doubted(&user("u")));
    learn(&mut store, "u", "one", 1, now + second);
    assert!(!store.is_doubted(&user("u")));
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_dropped_user_do_not_change_the_new_user_of_that_name() {
    let (mut store, now) = (store(), Instant::now());
    let earlier = learn(&mut store, "u", "one", 1, now);
    let current = learn(&mut store, "u", "two", 2, now);
    let (read, _) = credentials("u", "three", 1);
    let reading = KeyReading::Keys(Box::new(read));
    drop(store.confirm(&user("u"), &earlier.identity, reading, now));
    let known = store.known(&user("u"), now).unwrap();
    assert_eq!(known.identity.id(), current.identity.id());
    assert_eq!(known.credentials, current.credentials);
}

#[test]
fn the_oldest_keys_in_use_are_confirmed_first_and_at_most_every_ten_seconds() {
    const MAX_STALE: Duration = Duration::from_secs(300);
    let mut store = Store::new(100, MAX_STALE);
    let began = Instant::now();
    let at = |seconds| began + Duration::from_secs(seconds);
    let first = learn(&mut store, "first", "one", 1, at(10)).identity;
    let second = learn(&mut store, "second", "one", 1, at(0)).identity;
    drop(learn(&mut store, "unused", "one", 1, at(0)));
    let mut due = |seconds, count| {
        let due = store.due_for_confirmation(count, at(seconds));
        let names = due.into_iter().map(|identity| identity.name().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(due(149, 9), [""; 0]);
    assert_eq!(due(150, 9), ["second"]);
    assert_eq!(due(155, 9), [""; 0]);
    assert_eq!(due(160, 1), ["second"]);
    assert_eq!(due(160, 9), ["first"]);
    assert_eq!(due(300, 9), ["first"]);
    drop((first, second));
}

#[test]
fn the_mechanisms_of_a_user_are_remembered_when_its_keys_expire() {
    let mut store = Store::new(100, Duration::from_secs(300));
    let now = Instant::now();
    let name = UserName::new("u", "admin").unwrap();
    learn(&mut store, "u", "one", 1, now);
    let later = now + Duration::from_secs(300);
    assert!(store.mechanisms(&name, now).is_some());
    assert_eq!(store.mechanisms(&name, later), None);
    assert!(store.last_mechanisms(&name).is_some());
    let other = UserName::new("other", "admin").unwrap();
    assert_eq!(store.last_mechanisms(&other), None);
}

/// A user that does not exist has no mechanisms.
#[test]
fn names_of_users_that_do_not_exist_do_not_displace_the_mechanisms_of_a_user() {
    let (mut store, now) = (store(), Instant::now());
    let name = user("u");
    drop(store.remember_mechanisms(&name, scram(), now));
    for n in 0..10 {
        drop(store.remember_mechanisms(&user(&format!("x{n}")), vec![], now));
    }
    assert_eq!(store.mechanisms(&name, now), Some(scram()));
    // The user is dropped, and then created again.
    for mechanisms in [vec![], scram()] {
        drop(store.remember_mechanisms(&name, mechanisms.clone(), now));
        assert_eq!(store.last_mechanisms(&name).as_ref(), Some(&mechanisms));
        assert_eq!(store.mechanisms(&name, now), Some(mechanisms));
    }
}
