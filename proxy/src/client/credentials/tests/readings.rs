//! Tests of readings of users' keys, and of logins that are checked against these keys.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    super::READING_PACE,
    CredentialError, CredentialMode, Credentials, Obtained, SHA_256, Scene, Topology, refused,
    user,
    users::{error, keys_of, no_user, stored_keys, users_info},
};
use seawall_auth::{IdentityStatus, Login};

#[tokio::test]
async fn a_key_reading_confirms_the_cached_keys() {
    let scene = Scene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.read_again(&known).await;
    let confirmed = scene.known("u").unwrap();
    assert!(confirmed.confirmed_at >= known.confirmed_at + READING_PACE);
    assert_eq!(confirmed.identity.id(), known.identity.id());
    assert_eq!(scene.server.count("usersInfo"), 2);
    assert_eq!(scene.pool.snapshot().available, 1);
}

#[tokio::test]
async fn concurrent_key_readings_of_a_user_share_one_exchange_with_the_server() {
    let scene = Scene::new().await;
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
async fn changed_keys_clear_the_stored_login_but_keep_the_identity() {
    let scene = Scene::new().await;
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

#[tokio::test]
async fn a_dropped_user_loses_its_identity_and_its_connections() {
    for gone in [no_user(), error(13)] {
        let scene = Scene::new().await;
        let known = scene.log_in("u", "secret").await.unwrap();
        scene.server.reply_instead("usersInfo", gone);
        scene.read_again(&known).await;
        assert_eq!(known.identity.status(), IdentityStatus::Gone);
        assert!(scene.known("u").is_none());
        assert_eq!(scene.pool.snapshot().available, 0);
    }
}

#[tokio::test]
async fn a_server_error_during_a_key_reading_changes_nothing() {
    // 10107 is NotWritablePrimary, 11600 InterruptedAtShutdown, 50 MaxTimeMSExpired.
    for code in [10_107, 11_600, 50] {
        let scene = Scene::new().await;
        let known = scene.log_in("u", "secret").await.unwrap();
        scene.server.reply_instead("usersInfo", error(code));
        scene.read_again(&known).await;
        assert_eq!(known.identity.status(), IdentityStatus::Good);
        assert_eq!(scene.known("u").unwrap().confirmed_at, known.confirmed_at);
    }
    let scene = Scene::new().await;
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
async fn an_identity_ends_if_the_server_returns_the_keys_of_another_user() {
    let scene = Scene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    let other = users_info("v", &stored_keys("v", "secret"), []);
    scene.server.reply_instead("usersInfo", other);
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Refused);
}

#[tokio::test]
async fn an_identity_ends_if_a_server_refuses_its_keys_during_a_key_reading() {
    let scene = Scene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.server.server.close_all().await;
    scene.pool.maintain();
    scene.server.set_password("u", "changed");
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Refused);
    assert!(scene.known("u").is_none());
}

#[tokio::test]
async fn an_identity_stays_usable_if_the_router_that_may_accept_its_keys_has_just_failed() {
    let scene = Scene::behind(CredentialMode::Own, Vec::new(), Topology::of_routers).await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.server.server.close_all().await;
    scene.pool.maintain();
    scene.server.set_password("u", "changed");
    scene.read_again(&known).await;
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    assert!(scene.known("u").is_some());
}

#[tokio::test]
async fn after_a_failed_proof_cached_keys_that_all_usable_routers_refuse_are_removed() {
    let scene = Scene::behind(CredentialMode::Own, Vec::new(), Topology::of_routers).await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.server.server.close_all().await;
    scene.pool.maintain();
    scene.server.set_password("u", "changed");
    // A login with the new password fails, because its proof is checked against the cached keys.
    scene.credentials.proof_failed(&user("u"), &known.identity);
    scene.read_again(&known).await;
    assert!(scene.known("u").is_none());
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    // A server checks the next logins: it refuses the old password and accepts the new one.
    assert!(refused(scene.log_in("u", "secret").await));
    let changed = scene.log_in("u", "changed").await.unwrap();
    assert_eq!(changed.identity.id(), known.identity.id());
}

#[tokio::test]
async fn after_a_failed_proof_the_keys_are_read_again() {
    let scene = Scene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene.credentials.proof_failed(&user("u"), &known.identity);
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

#[tokio::test]
async fn fresh_keys_serve_one_login_at_a_time_without_a_new_key_reading() {
    let scene = Scene::new().await;
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
async fn a_login_waits_for_a_key_reading_while_another_login_uses_the_cached_keys() {
    let scene = Scene::new().await;
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
    let scene = Scene::new().await;
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

#[tokio::test]
async fn refused_keys_end_the_identity_unless_they_were_replaced_before_the_refusal() {
    let scene = Scene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    let version = known.identity.login_version();
    scene.credentials.keys_refused(&known.identity, version - 1);
    assert_eq!(known.identity.status(), IdentityStatus::Good);
    scene.credentials.keys_refused(&known.identity, version);
    assert_eq!(known.identity.status(), IdentityStatus::Refused);
    assert_eq!(scene.pool.snapshot().available, 0);
}

#[tokio::test]
async fn a_user_that_a_server_no_longer_knows_loses_its_identity() {
    let scene = Scene::new().await;
    let known = scene.log_in("u", "secret").await.unwrap();
    scene
        .credentials
        .user_unknown_on_connection(&known.identity);
    assert_eq!(known.identity.status(), IdentityStatus::Gone);
    assert_eq!(scene.credentials.known_users(), 0);
}

#[tokio::test]
async fn the_restrictions_of_a_user_limit_the_addresses_of_its_clients() {
    let scene = Scene::new().await;
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
    for command in ["saslContinue", "connectionStatus"] {
        let scene = Scene::new().await;
        scene.server.close_at(command);
        let failed = scene.log_in("u", "secret").await.err();
        assert_eq!(failed, Some(CredentialError::Unavailable), "{command}");
    }
}
