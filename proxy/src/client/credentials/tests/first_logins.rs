//! Tests of a user's first login, which a server checks.

use std::{pin::pin, time::Duration};

use bson::rawdoc;
use futures_util::{FutureExt as _, poll};
use tokio::{
    runtime::Handle,
    time::{Instant, advance, pause, timeout},
};

use super::{
    CredentialError, CredentialMode, CredentialSettings, KeyReading, LIMIT, LoginScene, Obtained,
    SHA_256, SOURCE, Topology, UserSecret, address, configured, configured_user, key_request,
    key_request_from, password, refused, served_after_crowd, settings, user,
    users::{UserServer, error, keys_of, stored_keys, users_info, users_info_of_both},
};
use crate::{
    client::credentials::{mode::ask_deployment, spares::MAX_SPARE},
    observe::Recorder,
    pool::{ServerPool, tests::limits},
};
use seawall_auth::{
    ClientFirst, Credentials, DerivedKeys, Identity, IdentityStatus, Login, Mechanism,
    Restrictions, ScramKeys,
};

/// After the first login, Seawall has the keys of the user, and pools the server connection.
#[tokio::test]
async fn seawall_itself_checks_logins_after_a_server_has_checked_the_first_one() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    assert_eq!(known.identity.user_id(), Some([1; 16]));
    assert!(matches!(known.identity.login(), Login::Keys { .. }));
    assert_eq!(scene.credentials.known_users(), 1);
    assert_eq!(scene.pool.snapshot().available, 1);
    // The next login sends no command to the server.
    let again = scene.obtain(&user("u")).await;
    assert!(matches!(again, Ok(Obtained::Known(_))));
    assert_eq!(scene.server.count("saslStart"), 1);
    assert_eq!(scene.server.count("usersInfo"), 1);
}

#[tokio::test]
async fn a_server_connection_is_reused_for_another_first_login_after_a_wrong_password() {
    let scene = LoginScene::new().await;
    assert!(refused(scene.log_in("u", "wrong").await));
    assert_eq!(scene.pool.snapshot().available, 0);
    assert!(scene.known("u").is_none());
    assert!(scene.log_in("u", "secret").await.is_ok());
    assert_eq!(scene.server.server.accepted(), 1);
}

/// For one second after a server has refused a user as unknown, Seawall itself refuses each login
/// of this user by the same mechanism.
#[tokio::test]
async fn a_user_unknown_for_one_mechanism_can_begin_a_login_by_another_mechanism() {
    let scene = LoginScene::new().await;
    assert!(refused(scene.start("nobody").await));
    scene.server.set_password("nobody", "secret");
    assert!(refused(scene.obtain(&user("nobody")).await));
    let (nobody, mechanism) = (user("nobody"), Mechanism::ScramSha1);
    let request = key_request(&nobody, mechanism);
    let other = scene.credentials.obtain(&request).await;
    assert!(matches!(other, Ok(Obtained::FirstLogin(_))));
}

/// Servers compare the authorization identity with the user's name without decoding escapes. So
/// they refuse this login, although the user exists.
#[tokio::test]
async fn a_user_is_not_remembered_as_unknown_after_a_login_with_an_escaped_identity() {
    let scene = LoginScene::new().await;
    scene.server.set_password("a=b", "secret");
    scene.server.reply_instead("saslStart", error(18));
    let payload = b"n,a=a=3Db,n=a=3Db,r=abcd";
    let started = async {
        let client_first = ClientFirst::parse(payload).ok()?;
        let first_login = scene.first_login("a=b").await;
        let started = first_login.start(SHA_256, client_first, payload).await;
        started.ok()
    };
    assert!(started.await.is_none());
    scene.server.reply_as_usual("saslStart");
    assert!(scene.log_in("a=b", "secret").await.is_ok());
}

/// Only the first login is sent to the server. The logins that wait for it send nothing.
#[tokio::test]
async fn all_waiting_logins_of_a_user_that_the_server_does_not_know_are_refused() {
    let scene = LoginScene::new().await;
    let (nobody, first_login) = (user("nobody"), scene.first_login("nobody").await);
    let mut waiting = Box::pin(scene.obtain(&nobody));
    assert!(waiting.as_mut().now_or_never().is_none());
    let started = scene.start_first_login("nobody", first_login).await;
    assert!(refused(started));
    assert!(waiting.now_or_never().is_some_and(refused));
    assert_eq!(scene.server.count("saslStart"), 1);
}

/// After a failure of the server, the error of the login is [`CredentialError::Unavailable`],
/// because the client's password may be right.
#[tokio::test]
async fn a_login_is_refused_after_an_error_reply_unless_the_error_is_a_server_failure() {
    for command in ["saslStart", "saslContinue"] {
        let scene = LoginScene::new().await;
        // 11600 is InterruptedAtShutdown, 91 ShutdownInProgress, 462
        // IngressRequestRateLimitExceeded, 18 AuthenticationFailed, 334 MechanismUnavailable, 2
        // BadValue, 8000 AtlasError.
        for (code, expected, kept) in [
            (11_600, CredentialError::Unavailable, 0),
            (91, CredentialError::Unavailable, 0),
            (462, CredentialError::Unavailable, 0),
            (18, CredentialError::Refused, 1),
            (334, CredentialError::Refused, 1),
            (2, CredentialError::Refused, 1),
            (8000, CredentialError::Refused, 1),
        ] {
            // A user that was refused at `saslStart` is unknown for a second, so each login has
            // its own user.
            let name = format!("u{code}");
            scene.server.set_password(&name, "secret");
            scene.server.reply_instead(command, error(code));
            let failed = scene.log_in(&name, "secret").await.err();
            assert_eq!(failed, Some(expected), "{command} {code}");
            assert_eq!(
                scene.credentials.spares.lock().len(),
                kept,
                "{command} {code}"
            );
        }
        scene.server.reply_as_usual(command);
        assert!(scene.log_in("u", "secret").await.is_ok());
    }
}

#[tokio::test]
async fn a_login_succeeds_after_the_server_has_closed_the_connection_kept_for_reuse() {
    let scene = LoginScene::new().await;
    assert!(refused(scene.log_in("u", "wrong").await));
    scene.server.server.close_all().await;
    assert!(scene.log_in("u", "secret").await.is_ok());
}

/// After a login, `connectionStatus` must list exactly the user of the login.
#[tokio::test]
async fn a_login_is_refused_if_connection_status_lists_other_users_or_no_user() {
    let authenticated = |users: bson::RawArrayBuf| {
        let reply = rawdoc! { "authInfo": { "authenticatedUsers": users }, "ok": 1 };
        ("connectionStatus", reply)
    };
    let of = |names: &[(&str, &str)]| {
        let users = names.iter();
        let users = users.map(|(name, source)| rawdoc! { "user": *name, "db": *source });
        authenticated(users.collect())
    };
    let scene = LoginScene::new().await;
    for (command, reply) in [
        of(&[]),
        of(&[("u", SOURCE), ("v", SOURCE)]),
        of(&[("v", SOURCE)]),
        of(&[("u", "other")]),
        ("connectionStatus", rawdoc! { "ok": 1 }),
    ] {
        scene.server.reply_instead(command, reply.clone());
        assert!(refused(scene.log_in("u", "secret").await), "{reply:?}");
        assert_eq!(scene.pool.snapshot().available, 0);
    }
}

#[tokio::test]
async fn a_login_is_refused_if_its_proof_does_not_match_the_keys_that_the_server_returns() {
    let scene = LoginScene::new().await;
    let other = users_info("u", &stored_keys("u", "other"), []);
    scene.server.reply_instead("usersInfo", other);
    assert!(refused(scene.log_in("u", "secret").await));
    assert!(scene.known("u").is_none());
    assert_eq!(scene.pool.snapshot().available, 0);
}

#[tokio::test]
async fn a_login_is_refused_if_the_user_is_not_allowed_to_read_its_own_keys() {
    let scene = LoginScene::new().await;
    scene.server.reply_instead("usersInfo", error(13));
    assert!(refused(scene.log_in("u", "secret").await));
    assert_eq!(scene.pool.snapshot().available, 0);
}

/// Servers before MongoDB 4.4 require an empty `saslContinue` at the end of a login.
#[tokio::test]
async fn seawall_sends_a_last_empty_sasl_continue_to_a_server_that_requires_it() {
    let scene = LoginScene::new().await;
    scene
        .server
        .change(|behaviour| behaviour.requires_empty_exchange = true);
    assert!(scene.log_in("u", "secret").await.is_ok());
    assert_eq!(scene.server.count("saslContinue"), 2);
}

#[tokio::test]
async fn a_second_login_of_a_user_waits_while_a_server_checks_the_first_login() {
    let scene = LoginScene::new().await;
    let (client, carried, server_first) = scene.start("u").await.unwrap();
    let u = user("u");
    let mut second = Box::pin(scene.obtain(&u));
    assert!(second.as_mut().now_or_never().is_none());
    let response = client.0.respond_with_password(&server_first, "secret");
    let (_, client_final, _) = response.unwrap();
    let known = carried.finish(&client_final).await.unwrap().0;
    let Ok(Obtained::Known(second)) = second.await else {
        panic!("the first login made the user known");
    };
    assert_eq!(second.identity.id(), known.identity.id());
}

/// If Seawall does not have a user's keys, a server checks one login, and the others wait.
#[tokio::test]
async fn a_login_does_not_wait_if_its_keys_arrive_just_before_the_wait_begins() {
    let scene = LoginScene::new().await;
    let (credentials, u) = (&scene.credentials, user("u"));
    let request = key_request(&u, SHA_256);
    let read = credentials_of_u(&keys_of(SHA_256, "u", "secret").keys);
    pause();
    let now = Instant::now();
    let lead = || credentials.first_logins.lead(&u, request.sharer, now);
    let _first_login = lead().unwrap();
    let (known, _) = credentials.store.lock().learn(&u, read, None, now);
    assert!(known.is_some());
    // The user became known before this login begins to wait, so the login is not notified of it.
    let wait = *lead().err().unwrap();
    let waited = credentials.wait_unless_known(&request, wait, now + LIMIT);
    assert!(matches!(waited.now_or_never(), Some(Ok(Some(_)))));
}

/// A user is known while Seawall has its keys. Then Seawall checks logins without a server.
#[tokio::test]
async fn logins_at_the_conversation_limit_continue_when_a_login_makes_their_user_known() {
    let scene = LoginScene::new().await;
    // These first logins reach the limit of conversations with servers, so the next one waits.
    let mut conversations = Vec::new();
    for name in ["a", "b", "c", "d"] {
        scene.server.set_password(name, "secret");
        conversations.push(scene.start(name).await.unwrap());
    }
    let u = user("u");
    let mut waiting = Box::pin(scene.obtain(&u));
    assert!(waiting.as_mut().now_or_never().is_none());
    let DerivedKeys { client_key, keys } = keys_of(SHA_256, "u", "secret");
    let read = credentials_of_u(&keys);
    let learnt = (scene.credentials).learn(&u, read, (client_key, keys), Instant::now());
    assert!(learnt.is_ok());
    let obtained = waiting.now_or_never();
    assert!(matches!(obtained, Some(Ok(Obtained::Known(_)))));
}

/// The keys of the user `u`, as a server returns them.
fn credentials_of_u(keys: &ScramKeys) -> Credentials {
    Credentials {
        user_id: None,
        source: SOURCE.to_owned(),
        name: "u".to_owned(),
        sha1: None,
        sha256: Some(keys.clone()),
        restrictions: Restrictions::default(),
        mechanisms: Vec::new(),
    }
}

/// With the keys of a user, Seawall checks logins itself, without a conversation with a server.
#[tokio::test]
async fn logins_at_the_conversation_limit_continue_when_keys_of_their_user_are_read() {
    let scene = LoginScene::new().await;
    let (u, keys) = (user("u"), keys_of(SHA_256, "u", "secret").keys);
    let store = || scene.credentials.store.lock();
    // The keys of `u` expire, but a client still uses the identity.
    let (known, _) = store().learn(&u, credentials_of_u(&keys), None, Instant::now());
    let identity = known.unwrap().identity;
    store().set_limits(8, Duration::ZERO);
    assert!(scene.known("u").is_none());
    store().set_limits(8, Duration::from_secs(300));
    // These first logins reach the limit of conversations with servers, so the next one waits.
    let mut conversations = Vec::new();
    for name in ["a", "b", "c", "d"] {
        scene.server.set_password(name, "secret");
        conversations.push(scene.start(name).await.unwrap());
    }
    let mut waiting = Box::pin(scene.obtain(&u));
    assert!(waiting.as_mut().now_or_never().is_none());
    let reading = KeyReading::Keys(Box::new(credentials_of_u(&keys)));
    (scene.credentials).apply_reading(&u, &identity, reading, Instant::now());
    let obtained = waiting.now_or_never();
    assert!(matches!(obtained, Some(Ok(Obtained::Known(_)))));
}

/// The number of concurrent exchanges (a request to a server and its reply) is limited.
#[tokio::test]
async fn a_login_that_waits_for_its_client_does_not_delay_other_first_logins() {
    let scene = LoginScene::new().await;
    for name in ["a", "b", "c"] {
        scene.server.set_password(name, "secret");
    }
    // Two exchanges with the server may run at a time; four logins may wait for their clients.
    let a = scene.start("a").await.unwrap();
    let b = scene.start("b").await.unwrap();
    assert!(a.1.deadline() <= b.1.deadline());
    assert!(scene.log_in("c", "secret").await.is_ok());
}

#[tokio::test]
async fn seawall_logs_in_with_a_configured_password() {
    let scene = LoginScene::with(CredentialMode::Users, configured(password("secret"))).await;
    let Ok(Obtained::Known(known)) = scene.obtain(&user("u")).await else {
        panic!("the configured password is right");
    };
    assert!(matches!(known.identity.login(), Login::Keys { .. }));
    assert_eq!(scene.pool.snapshot().available, 1);
    assert!(refused(scene.obtain(&user("v")).await));
    let scene = LoginScene::with(CredentialMode::Users, configured(password("wrong"))).await;
    assert!(refused(scene.obtain(&user("u")).await));
}

#[tokio::test]
async fn configured_sha_256_keys_are_used_for_sha_256_logins_but_not_for_sha_1_logins() {
    let derived = keys_of(SHA_256, "u", "secret");
    let secret = UserSecret::Keys {
        sha1: None,
        sha256: Some(derived.keys.clone()),
    };
    let scene = LoginScene::with(CredentialMode::Users, configured(secret)).await;
    let u = user("u");
    let mut request = key_request(&u, Mechanism::ScramSha1);
    assert!(refused(scene.credentials.obtain(&request).await));
    request.mechanism = SHA_256;
    let Ok(Obtained::Configured(keys)) = scene.credentials.obtain(&request).await else {
        panic!("keys are configured");
    };
    assert_eq!(keys, derived.keys);
    let logged_in =
        (scene.credentials).log_in_with_keys(&request, derived.client_key.clone(), keys);
    let known = logged_in.await.unwrap();
    assert_eq!(known.identity.user_id(), Some([1; 16]));
    assert_eq!(scene.pool.snapshot().available, 1);
    // The user is known now, so Seawall checks the proof itself, without a server.
    let again = scene
        .credentials
        .log_in_with_keys(&request, derived.client_key, derived.keys);
    assert!(again.await.is_ok());
    assert_eq!(scene.server.count("usersInfo"), 1);
    let other = keys_of(SHA_256, "u", "other");
    let other = scene
        .credentials
        .log_in_with_keys(&request, other.client_key, other.keys);
    assert!(refused(other.await));
}

/// A driver chooses SCRAM-SHA-256 if the list of offered mechanisms contains it. If the
/// configuration had only SCRAM-SHA-1 keys of the user, this login would fail.
#[tokio::test]
async fn a_mechanism_is_offered_for_a_user_with_configured_keys_only_if_there_are_keys_for_it() {
    const SHA_1: Mechanism = Mechanism::ScramSha1;
    let hello = rawdoc! {
        "ok": 1, "maxWireVersion": 17, "saslSupportedMechs": ["SCRAM-SHA-1", "SCRAM-SHA-256"],
    };
    let keys = |mechanism| Some(keys_of(mechanism, "u", "secret").keys);
    let of = |sha1, sha256| UserSecret::Keys { sha1, sha256 };
    for (secret, offered) in [
        (of(keys(SHA_1), None), vec![SHA_1]),
        (of(None, keys(SHA_256)), vec![SHA_256]),
        (of(keys(SHA_1), keys(SHA_256)), vec![SHA_1, SHA_256]),
        (password("secret"), vec![SHA_1, SHA_256]),
    ] {
        let scene = LoginScene::with(CredentialMode::Users, configured(secret)).await;
        scene.server.reply_instead("isMaster", hello.clone());
        let u = user("u");
        let names: Vec<_> = offered.iter().map(|mechanism| mechanism.name()).collect();
        assert_eq!(scene.mechanisms(&u).await.unwrap(), names);
        for mechanism in [SHA_1, SHA_256] {
            let is_offered = scene.credentials.may_offer(&u, mechanism);
            assert_eq!(is_offered, offered.contains(&mechanism));
        }
    }
}

/// The parameter `authenticationMechanisms` of a server can exclude a mechanism for which users
/// have keys. A server refuses each login with this mechanism, also a login of Seawall.
#[tokio::test]
async fn a_mechanism_that_the_server_does_not_offer_is_not_used_even_if_the_user_has_keys_for_it() {
    let scene = LoginScene::new().await;
    let sha_1 = keys_of(Mechanism::ScramSha1, "u", "secret").keys;
    let reply = users_info_of_both("u", &sha_1, &stored_keys("u", "secret"));
    scene.server.reply_instead("usersInfo", reply);
    assert!(scene.log_in("u", "secret").await.is_ok());
    // The second check is after another reading of the keys.
    for _ in 0..2 {
        let known = scene.known("u").unwrap();
        assert!(known.credentials.keys(SHA_256).is_some());
        assert!(known.credentials.keys(Mechanism::ScramSha1).is_none());
        let offered = scene.mechanisms(&user("u")).await.unwrap();
        assert_eq!(offered, ["SCRAM-SHA-256"]);
        scene.read_again(&known).await;
    }
}

/// If the server cannot be reached, the login fails as unavailable, not as refused.
#[tokio::test]
async fn a_login_with_configured_keys_that_the_server_does_not_accept_is_refused() {
    let scene = LoginScene::with(CredentialMode::Users, Vec::new()).await;
    let derived = keys_of(SHA_256, "u", "other");
    let u = user("u");
    let request = key_request(&u, SHA_256);
    let logged_in = scene.credentials.log_in_with_keys(
        &request,
        derived.client_key.clone(),
        derived.keys.clone(),
    );
    assert!(refused(logged_in.await));
    scene.server.close_at("isMaster");
    let logged_in = scene
        .credentials
        .log_in_with_keys(&request, derived.client_key, derived.keys);
    assert_eq!(logged_in.await.err(), Some(CredentialError::Unavailable));
}

#[tokio::test]
async fn the_server_is_asked_only_once_for_the_mechanisms_of_a_user() {
    let scene = LoginScene::new().await;
    let mechanisms = |name| {
        let user = user(name);
        async { scene.mechanisms(&{ user }).await.unwrap() }
    };
    assert_eq!(mechanisms("u").await, ["SCRAM-SHA-256"]);
    assert!(mechanisms("nobody").await.is_empty());
    let asked = scene.server.count("isMaster");
    assert_eq!(mechanisms("u").await, ["SCRAM-SHA-256"]);
    assert_eq!(scene.server.count("isMaster"), asked);
    // All queries used one connection.
    assert_eq!(scene.server.server.accepted(), 1);
    scene.server.server.close_all().await;
    assert!(mechanisms("another").await.is_empty());
}

#[tokio::test]
async fn an_error_reply_to_a_query_about_mechanisms_is_not_cached() {
    let scene = LoginScene::new().await;
    scene.server.set_password("v", "secret");
    // After this query, Seawall keeps a connection for the next query.
    assert!(scene.mechanisms(&user("u")).await.is_ok());
    scene.server.reply_instead("isMaster", error(91));
    let refused = scene.mechanisms(&user("v")).await;
    assert_eq!(refused, Err(CredentialError::Unavailable));
    assert_eq!(scene.credentials.spares.lock().len(), 0);
    scene.server.reply_as_usual("isMaster");
    let listed = scene.mechanisms(&user("v")).await.unwrap();
    assert_eq!(listed, ["SCRAM-SHA-256"]);
}

/// A client needs no login for a query about the mechanisms of a user.
#[tokio::test]
async fn a_query_about_mechanisms_does_not_wait_for_all_earlier_queries_of_another_address() {
    let scene = LoginScene::new().await;
    let (credentials, u) = (&scene.credentials, user("u"));
    pause();
    let (listed, now) = (vec![SHA_256.name().to_owned()], Instant::now());
    let users = ["a", "b", "c"].map(user);
    let crowd = users.iter();
    let crowd = crowd.map(|user| credentials.ask_mechanisms(user, address(1)));
    // The mechanisms of `u` are cached while this query waits, so it ends as soon as it has a turn.
    let other = async {
        let mut asking = pin!(credentials.ask_mechanisms(&u, address(2)));
        assert!(poll!(asking.as_mut()).is_pending());
        let evicted = (credentials.store.lock()).remember_mechanisms(&u, listed.clone(), now);
        drop(evicted);
        asking.await
    };
    let served = served_after_crowd(&credentials.questions, crowd, other);
    assert_eq!(served, Some(Ok(listed)));
    assert_eq!(credentials.questions.free(), 2, "all clients have left");
}

#[tokio::test]
async fn a_first_login_does_not_wait_for_all_earlier_first_logins_of_another_address() {
    let scene = LoginScene::new().await;
    let (credentials, u) = (&scene.credentials, user("u"));
    pause();
    let users = ["a", "b", "c"].map(user);
    let requests = users.each_ref().map(|user| key_request_from(1, user));
    let crowd = requests.iter().map(|request| credentials.obtain(request));
    let request = key_request_from(2, &u);
    let other = credentials.obtain(&request);
    let served = served_after_crowd(&credentials.exchanges, crowd, other);
    assert!(matches!(served, Some(Ok(Obtained::FirstLogin(_)))));
    drop(served);
    assert_eq!(credentials.exchanges.free(), 2, "all clients have left");
}

/// A lookup reads the keys of a user through the service account.
#[tokio::test]
async fn a_lookup_does_not_wait_for_all_earlier_lookups_of_another_address() {
    let scene = LoginScene::with(CredentialMode::Lookup, Vec::new()).await;
    let (credentials, u) = (&scene.credentials, user("u"));
    let read = credentials_of_u(&keys_of(SHA_256, "u", "secret").keys);
    pause();
    let (known, _) = (credentials.store.lock()).learn(&u, read, None, Instant::now());
    assert!(known.is_some());
    let users = ["a", "b", "c"].map(user);
    let requests = users.each_ref().map(|user| key_request_from(1, user));
    let crowd = requests.iter().map(|request| credentials.look_up(request));
    // The keys of `u` are known, so this lookup ends as soon as it has a turn.
    let request = key_request_from(2, &u);
    let other = credentials.look_up(&request);
    let served = served_after_crowd(&credentials.exchanges, crowd, other);
    assert!(matches!(served, Some(Ok(_))));
    assert_eq!(credentials.exchanges.free(), 2, "all clients have left");
}

/// The setting `limits.introductions` is the maximum for both exchanges and queries.
#[tokio::test]
async fn a_reload_changes_how_many_exchanges_and_how_many_queries_run_at_a_time() {
    let scene = LoginScene::new().await;
    for first_logins in [5, 1] {
        scene.credentials.configure(CredentialSettings {
            first_logins,
            ..settings(CredentialMode::Own, Vec::new())
        });
        assert_eq!(scene.credentials.exchanges.free(), first_logins);
        assert_eq!(scene.credentials.questions.free(), first_logins);
    }
}

#[tokio::test]
async fn clients_are_anonymous_while_the_server_requires_no_login() {
    let scene = LoginScene::with(CredentialMode::Undecided, Vec::new()).await;
    scene
        .server
        .change(|behaviour| behaviour.requires_login = false);
    assert!(scene.credentials.anonymous().is_none());
    assert_eq!(scene.credentials.decided_mode().await, CredentialMode::None);
    let anonymous = scene.credentials.anonymous().unwrap();
    // A login that is not required is still verified.
    assert!(refused(scene.log_in("u", "wrong").await));
    assert!(scene.log_in("u", "secret").await.is_ok());
    scene.credentials.record_refused_keys(&anonymous, 0);
    assert_eq!(anonymous.status(), IdentityStatus::Good);
    scene.credentials.record_anonymous_refusal();
    assert_eq!(anonymous.status(), IdentityStatus::Gone);
    assert!(scene.credentials.anonymous().is_none());
    assert_eq!(scene.credentials.mode(), CredentialMode::Own);
}

#[tokio::test]
async fn credential_mode_auto_becomes_self_if_a_server_requires_a_login() {
    let scene = LoginScene::with(CredentialMode::Undecided, Vec::new()).await;
    assert_eq!(scene.credentials.decided_mode().await, CredentialMode::Own);
    // In mode `self`, a refused anonymous client does not change the mode.
    scene.credentials.record_anonymous_refusal();
    assert_eq!(scene.credentials.mode(), CredentialMode::Own);
    assert!(scene.log_in("u", "secret").await.is_ok());
}

#[tokio::test]
async fn a_server_that_does_not_reply_does_not_delay_the_decision_of_the_credential_mode() {
    let other = UserServer::start().await;
    let other_address = other.server.address().clone();
    let scene = LoginScene::behind(
        CredentialMode::Own,
        Vec::new(),
        |address, limits, connector, recorder| {
            connector.set_limit(Duration::from_secs(3600));
            Topology::of_usable_routers([address, other_address], limits, connector, recorder)
        },
    )
    .await;
    let _never_released = scene.server.hold("getParameter");
    let mode = timeout(LIMIT, ask_deployment(&scene.credentials)).await;
    assert_eq!(mode.unwrap().unwrap(), Some(CredentialMode::Own));
}

#[tokio::test]
async fn only_error_13_shows_that_a_server_requires_a_login() {
    let scene = LoginScene::new().await;
    let (connector, address) = (scene.credentials.topology.connector(), scene.pool.address());
    let anonymous = Identity::anonymous();
    // 91 is ShutdownInProgress, 11600 InterruptedAtShutdown.
    for code in [91, 11_600] {
        scene.server.reply_instead("getParameter", error(code));
        let undecided = ask_deployment(&scene.credentials).await.unwrap_err();
        assert!(
            undecided.to_string().contains(&code.to_string()),
            "{undecided}"
        );
        let failed = connector.establish(address, &anonymous).await.unwrap_err();
        assert!(!failed.requires_authentication(), "{failed}");
        assert!(failed.blames_server(), "{failed}");
        // A relay is more careful: after such an error, it assumes that its client must log in.
        let mut connection = connector.connect(address).await.unwrap();
        let checking = connector.may_require_authentication(address, &mut connection);
        assert!(checking.await.unwrap(), "{code}");
    }
    scene.server.reply_instead("getParameter", error(13));
    let mode = ask_deployment(&scene.credentials).await.unwrap();
    assert_eq!(mode, Some(CredentialMode::Own));
    let refused = connector.establish(address, &anonymous).await.unwrap_err();
    assert!(refused.requires_authentication(), "{refused}");
}

#[tokio::test]
async fn a_refused_anonymous_client_does_not_change_the_credential_mode_lookup() {
    let scene = LoginScene::with(CredentialMode::Lookup, Vec::new()).await;
    scene.credentials.record_anonymous_refusal();
    assert_eq!(scene.credentials.mode(), CredentialMode::Lookup);
    // There is no service account that could look users up, so the login fails.
    let unavailable = scene.obtain(&user("u")).await.err();
    assert_eq!(unavailable, Some(CredentialError::Unavailable));
    // The user was not remembered as unknown, so the second login fails in the same way.
    let unavailable = scene.obtain(&user("u")).await.err();
    assert_eq!(unavailable, Some(CredentialError::Unavailable));
}

#[tokio::test]
async fn failed_lookups_of_keys_are_logged_at_most_once_a_minute() {
    let scene = LoginScene::with(CredentialMode::Lookup, Vec::new()).await;
    for _ in 0..3 {
        assert!(scene.obtain(&user("u")).await.is_err());
    }
    // The first failure was logged, and the next two were not. A minute later, the log line of a
    // further failure reports all three.
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(scene.credentials.failed_lookups.count(later), Some(3));
}

#[tokio::test]
async fn users_of_the_same_name_on_different_databases_are_different_users() {
    let users = vec![
        configured_user("u", "other", password("secret")),
        configured_user("v", SOURCE, password("secret")),
    ];
    let scene = LoginScene::with(CredentialMode::Users, users).await;
    assert!(refused(scene.obtain(&user("u")).await));
}

#[tokio::test]
async fn the_number_of_unauthenticated_connections_kept_for_reuse_is_limited() {
    let scene = LoginScene::new().await;
    let connector = scene.credentials.topology.connector();
    for _ in 0..MAX_SPARE + 2 {
        let connection = connector.connect(scene.pool.address()).await.unwrap();
        scene.credentials.keep_spare(&scene.pool, connection);
    }
    assert_eq!(scene.credentials.spares.lock().len(), MAX_SPARE);
}

#[tokio::test]
async fn connections_kept_for_reuse_are_closed_after_a_minute_without_use() {
    let scene = LoginScene::new().await;
    let connector = scene.credentials.topology.connector();
    let connection = connector.connect(scene.pool.address()).await.unwrap();
    scene.credentials.keep_spare(&scene.pool, connection);
    scene.credentials.maintain();
    assert_eq!(scene.credentials.spares.lock().len(), 1);
    pause();
    advance(Duration::from_secs(60)).await;
    scene.credentials.maintain();
    assert_eq!(scene.credentials.spares.lock().len(), 0);
}

#[tokio::test]
async fn connections_to_servers_that_left_the_deployment_are_not_kept_for_reuse() {
    let scene = LoginScene::new().await;
    let connector = scene.credentials.topology.connector();
    let connection = connector.connect(scene.pool.address()).await.unwrap();
    let (address, runtime) = ("elsewhere:1".parse().unwrap(), Handle::current());
    let metrics = Recorder::without_shapes().server("elsewhere");
    let elsewhere = ServerPool::new(address, limits(), connector.clone(), metrics, runtime);
    scene.credentials.keep_spare(&elsewhere, connection);
    assert_eq!(scene.credentials.spares.lock().len(), 0);
}
