//! Tests in which Seawall reads a user's keys from the server again, and tests of logins that are
//! checked against these keys.

use std::time::Duration;

use bson::rawdoc;
use futures_util::FutureExt as _;
use tokio::{task::yield_now, time::Instant};

use super::{
    super::READING_PACE,
    CredentialError, CredentialMode, Credentials, LIMIT, LoginScene, Obtained, SHA_256, Topology,
    refused, user,
    users::{error, keys_of, no_user, stored_keys, users_info, users_info_of_both},
};
use crate::pool::Demand;
use seawall_auth::{IdentityStatus, Login, Mechanism};
use seawall_transport::Sharer;

#[tokio::test]
async fn unchanged_keys_from_the_server_confirm_the_cached_keys() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.read_again(&known).await;
    let confirmed = scene.known("u").unwrap();
    assert!(confirmed.confirmed_at >= known.confirmed_at + READING_PACE);
    assert_eq!(confirmed.identity.id(), known.identity.id());
    assert_eq!(scene.server.count("usersInfo"), 2);
    assert_eq!(scene.pool.snapshot().available, 1);
}

#[tokio::test]
async fn concurrent_readings_of_the_keys_of_a_user_send_one_users_info() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    let mut readings = Vec::new();
    for _ in 0..3 {
        readings.push(scene.credentials.read_again(&user("u"), &known.identity));
    }
    for mut reading in readings {
        reading.wait_for(|done| *done).await.unwrap();
    }
    assert_eq!(scene.server.count("usersInfo"), 2);
    scene.read_again(&known).await;
    assert_eq!(scene.server.count("usersInfo"), 3);
}

#[tokio::test]
async fn a_reading_after_a_password_change_keeps_the_identity_and_clears_its_login() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.server.set_password("u", "changed");
    scene.read_again(&known).await;
    let changed = scene.known("u").unwrap();
    assert_eq!(changed.identity.id(), known.identity.id());
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    assert!(matches!(known.identity.login(), Login::Unknown));
    let keys = changed.credentials.keys(SHA_256);
    assert_eq!(keys, Some(&keys_of(SHA_256, "u", "changed").keys));
}

/// A new connection could not log in, because no client has logged in with the new password yet.
#[tokio::test]
async fn a_reading_after_a_password_change_waits_for_a_connection_in_use() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.server.set_password("u", "changed");
    scene.read_again(&known).await;
    let deadline = Instant::now() + LIMIT;
    let held = scene.pool.check_out(&known.identity, Demand::OWN, deadline);
    let held = held.await.unwrap();
    let mut reading = scene.credentials.read_again(&user("u"), &known.identity);
    while !scene.pool.has_waiting() {
        yield_now().await;
    }
    assert_eq!(scene.pool.snapshot().pending, 0);
    drop(held);
    reading.wait_for(|done| *done).await.unwrap();
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    assert_eq!(scene.server.count("usersInfo"), 3);
}

/// To read a user's keys again, Seawall sends `usersInfo` as this user. Every user may read its own
/// keys. If a server replies with error 13 (Unauthorized), the user no longer exists.
#[tokio::test]
async fn a_dropped_user_loses_its_identity_and_its_connections() {
    for gone in [no_user(), error(13)] {
        let scene = LoginScene::new().await;
        let known = scene.log_in("u", "secret").await.unwrap();
        scene.server.reply_instead("usersInfo", gone);
        scene.read_again(&known).await;
        assert_eq!(known.identity.status(), IdentityStatus::Gone);
        assert!(scene.known("u").is_none());
        assert_eq!(scene.pool.snapshot().available, 0);
    }
}

#[tokio::test]
async fn cached_keys_stay_valid_if_the_server_fails_while_they_are_read_again() {
    // 10107 is NotWritablePrimary, 11600 InterruptedAtShutdown, 50 MaxTimeMSExpired.
    for code in [10_107, 11_600, 50] {
        let scene = LoginScene::new().await;
        let known = scene.log_in("u", "secret").await.unwrap();
        scene.server.reply_instead("usersInfo", error(code));
        scene.read_again(&known).await;
        assert_eq!(known.identity.status(), IdentityStatus::Good);
        assert_eq!(scene.known("u").unwrap().confirmed_at, known.confirmed_at);
    }
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.server.close_at("usersInfo");
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    // An unreachable server changes nothing, either.
    scene.server.server.close_all().await;
    scene.server.close_at("isMaster");
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Good);
}

#[tokio::test]
async fn clients_must_log_in_again_if_the_server_returns_the_keys_of_another_user() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    let other = users_info("v", &stored_keys("v", "secret"), []);
    scene.server.reply_instead("usersInfo", other);
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Refused);
}

/// To read the keys of a user again, Seawall logs in with the cached keys.
#[tokio::test]
async fn clients_must_log_in_again_if_a_server_refuses_the_cached_keys_of_their_user() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.change_password_and_close_connections().await;
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Refused);
    assert!(scene.known("u").is_none());
}

/// The failed router may still accept the keys.
#[tokio::test]
async fn clients_stay_logged_in_if_one_router_refuses_their_keys_but_another_has_just_failed() {
    let scene = LoginScene::behind(CredentialMode::Own, Vec::new(), Topology::of_routers).await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.change_password_and_close_connections().await;
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    assert!(scene.known("u").is_some());
}

/// A mongos refuses each login while it cannot read users from the config servers. The reason may
/// also be a new password, so a server must check the next login of the user.
#[tokio::test]
async fn clients_stay_logged_in_if_the_only_router_refuses_their_keys() {
    let scene = LoginScene::behind(
        CredentialMode::Own,
        Vec::new(),
        |address, limits, connector, recorder| {
            Topology::of_usable_routers([address], limits, connector, recorder)
        },
    )
    .await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.change_password_and_close_connections().await;
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    assert!(scene.known("u").is_none());
    assert!(refused(scene.log_in("u", "secret").await));
    let changed = scene.log_in("u", "changed").await.unwrap();
    assert_eq!(changed.identity.id(), known.identity.id());
}

#[tokio::test]
async fn cached_keys_are_removed_after_a_failed_proof_if_all_usable_routers_refuse_them() {
    let scene = LoginScene::behind(CredentialMode::Own, Vec::new(), Topology::of_routers).await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.change_password_and_close_connections().await;
    // A login with the new password fails, because its proof is checked against the cached keys.
    scene
        .credentials
        .record_failed_proof(&user("u"), &known.identity);
    scene.read_again(&known).await;
    assert!(scene.known("u").is_none());
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    // A server checks the next logins: it refuses the old password and accepts the new one.
    assert!(refused(scene.log_in("u", "secret").await));
    let changed = scene.log_in("u", "changed").await.unwrap();
    assert_eq!(changed.identity.id(), known.identity.id());
}

#[tokio::test]
async fn keys_are_read_again_after_a_proof_that_does_not_match_the_cached_keys() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene
        .credentials
        .record_failed_proof(&user("u"), &known.identity);
    assert!(scene.known("u").unwrap().is_doubted());
    assert!(
        scene
            .credentials
            .fresh(&user("u"), Instant::now())
            .is_none()
    );
    let Ok(Obtained::Known(confirmed)) = scene.obtain(&user("u")).await else {
        panic!("the user is known");
    };
    assert!(confirmed.confirmed_at > known.confirmed_at);
    scene.read_again(&known).await;
    assert!(!scene.known("u").unwrap().is_doubted());
}

/// While one login uses keys that Seawall has read in the last second, all other logins of the user
/// wait until Seawall has read the keys again.
#[tokio::test]
async fn one_login_of_a_user_at_a_time_may_use_keys_that_were_read_in_the_last_second() {
    let scene = LoginScene::new().await;
    let (credentials, u) = (&scene.credentials, user("u"));
    assert!(credentials.fresh(&u, Instant::now()).is_none());
    let known = scene.log_in("u", "secret").await.unwrap();
    let lent = credentials.fresh(&u, Instant::now());
    assert!(lent.is_some());
    assert!(credentials.fresh(&u, Instant::now()).is_none());
    drop(lent);
    assert!(credentials.fresh(&u, Instant::now()).is_some());
    assert_eq!(scene.server.count("usersInfo"), 1);
    // Keys that are older than a second are read again before they are used.
    let later = Instant::now() + Duration::from_secs(2);
    assert!(credentials.fresh(&u, later).is_none());
    scene.read_again(&known).await;
    assert_eq!(scene.server.count("usersInfo"), 2);
}

#[tokio::test]
async fn a_login_waits_for_new_keys_while_another_login_uses_the_cached_keys() {
    let scene = LoginScene::new().await;
    scene.log_in("u", "secret").await.unwrap();
    let lent = scene.credentials.fresh(&user("u"), Instant::now());
    let began = Instant::now();
    let Ok(Obtained::Known(read)) = scene.obtain(&user("u")).await else {
        panic!("the user is known");
    };
    assert!(lent.is_some() && read.confirmed_at >= began);
}

#[tokio::test]
async fn a_login_with_keys_that_were_replaced_is_refused() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    let (credentials, u) = (&scene.credentials, user("u"));
    let client_key = || keys_of(SHA_256, "u", "secret").client_key;
    let version = known.identity.login_version();
    assert!(credentials.prove(&u, &known, SHA_256, client_key()).is_ok());
    assert_eq!(known.identity.login_version(), version);
    scene.server.set_password("u", "changed");
    scene.read_again(&known).await;
    assert!(refused(credentials.prove(
        &u,
        &known,
        SHA_256,
        client_key()
    )));
}

/// If the keys were replaced before the refusal, the clients stay logged in.
#[tokio::test]
async fn clients_must_log_in_again_if_a_server_refuses_the_current_keys_of_their_user() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    let version = known.identity.login_version();
    scene
        .credentials
        .record_refused_keys(&known.identity, version - 1);
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    scene
        .credentials
        .record_refused_keys(&known.identity, version);
    assert_eq!(known.identity.status(), IdentityStatus::Refused);
    assert_eq!(scene.pool.snapshot().available, 0);
}

#[tokio::test]
async fn a_user_that_a_server_no_longer_knows_loses_its_identity_and_keys() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.credentials.record_dropped_user(&known.identity);
    assert_eq!(known.identity.status(), IdentityStatus::Gone);
    assert_eq!(scene.credentials.known_users(), 0);
}

#[tokio::test]
async fn the_restrictions_of_a_user_limit_the_addresses_of_its_clients() {
    let scene = LoginScene::new().await;
    let restricted = users_info("u", &stored_keys("u", "secret"), ["10.0.0.0/8"]);
    scene.server.reply_instead("usersInfo", restricted);
    let known = scene.log_in("u", "secret").await.unwrap();
    let permits = |peer: &str| Credentials::permits(&known, Some(peer.parse().unwrap()));
    assert!(permits("10.1.2.3"));
    assert!(!permits("11.1.2.3"));
    assert!(!Credentials::permits(&known, None));
}

#[tokio::test]
async fn a_login_whose_server_fails_is_not_reported_as_a_wrong_password() {
    for command in ["saslContinue", "connectionStatus", "usersInfo"] {
        let scene = LoginScene::new().await;
        scene.server.close_at(command);
        let failed = scene.log_in("u", "secret").await.err();
        assert_eq!(failed, Some(CredentialError::Unavailable), "{command}");
        // 11600 is InterruptedAtShutdown.
        scene.server.reply_instead(command, error(11_600));
        let failed = scene.log_in("u", "secret").await.err();
        assert_eq!(failed, Some(CredentialError::Unavailable), "{command}");
    }
}

/// The servers' parameter `authenticationMechanisms` can change when the servers restart.
#[tokio::test]
async fn a_mechanism_that_a_server_did_not_offer_is_used_again_once_the_server_offers_it() {
    let scene = LoginScene::new().await;
    let sha_1 = keys_of(Mechanism::ScramSha1, "u", "secret").keys;
    let both = users_info_of_both("u", &sha_1, &stored_keys("u", "secret"));
    scene.server.reply_instead("usersInfo", both);
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.read_again(&known).await;
    let read = scene.known("u").unwrap();
    assert!(read.credentials.keys(Mechanism::ScramSha1).is_none());
    let hello = rawdoc! {
        "ok": 1, "maxWireVersion": 17, "saslSupportedMechs": ["SCRAM-SHA-1", "SCRAM-SHA-256"],
    };
    scene.server.reply_instead("isMaster", hello);
    scene.read_again(&known).await;
    let read = scene.known("u").unwrap();
    let keys = read.credentials.keys(Mechanism::ScramSha1);
    assert_eq!(keys, Some(&sha_1));
    assert_eq!(read.identity.id(), known.identity.id());
}

#[tokio::test]
async fn the_keys_of_a_user_in_use_are_confirmed_although_the_user_does_not_log_in() {
    let scene = LoginScene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    let almost = known.confirmed_at + Duration::from_secs(149);
    scene.credentials.confirm_old_keys(almost);
    assert!(scene.credentials.readings.lock().is_empty());
    let due = known.confirmed_at + Duration::from_secs(150);
    scene.credentials.confirm_old_keys(due);
    // This call waits for the reading that has begun.
    scene.read_again(&known).await;
    assert_eq!(scene.server.count("usersInfo"), 2);
    assert!(scene.known("u").unwrap().confirmed_at > known.confirmed_at);
}

#[tokio::test]
async fn the_last_known_mechanisms_of_a_user_are_returned_if_no_server_replies() {
    let scene = LoginScene::new().await;
    scene.log_in("u", "secret").await.unwrap();
    let (u, other) = (user("u"), user("other"));
    let known = scene.mechanisms(&u).await.unwrap();
    // The keys expire at once.
    let store = || scene.credentials.store.lock();
    store().set_limits(8, Duration::ZERO);
    assert!(scene.known("u").is_none());
    scene.server.reply_instead("isMaster", error(91));
    assert_eq!(scene.mechanisms(&u).await.unwrap(), known);
    let unknown = scene.mechanisms(&other).await;
    assert_eq!(unknown.unwrap_err(), CredentialError::Unavailable);
}

/// A login with `auth.credentials = "lookup"` may need the mechanisms while many clients ask for
/// the mechanisms of other users.
#[tokio::test]
async fn cached_mechanisms_are_returned_without_a_turn_for_a_query() {
    let scene = LoginScene::new().await;
    let u = user("u");
    let listed = scene.mechanisms(&u).await;
    let (credentials, mut held) = (&scene.credentials, Vec::new());
    while credentials.questions.free() > 0 {
        held.push(credentials.questions.take(Sharer::Local).await);
    }
    let cached = credentials.ask_mechanisms(&u, Sharer::Local);
    assert_eq!(cached.now_or_never(), Some(listed));
}
