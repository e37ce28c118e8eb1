//! Tests of users that change while their clients are connected: new passwords, new roles, dropped
//! users and recreated users.

use std::time::Duration;

use bson::doc;
use futures_util::future::join_all;
use seawall_tests::{
    eventually::eventually,
    mongod::{
        FailTimes, NewUser, Options, ReplicaSet, RunCommand, Standalone, clear_fail_command,
        create_user, fail_command,
    },
    raw::{KeyCache, Login, Mechanism, Outcome, RawError, Start},
    recorder::{Cut, Recorder},
    seawall::Seawall,
};
use tokio::time::timeout;

use crate::{
    routers::{BOTH_ROUTERS, wait_for_routers},
    scene::{
        connect, find, insert, log_in, logged_in, recorded, root, seawall, seawall_at, server,
        update_user, with_password, writer,
    },
};

/// Logs in five times. Returns the number of refused logins among the first four. The last login
/// must succeed.
async fn refused(seawall: &Seawall, login: &Login) -> usize {
    let mut refused = 0;
    for _ in 0..4 {
        let (_, outcome) = log_in(seawall, login).await;
        refused += usize::from(outcome.code() == Some(18));
        assert!(
            outcome.is_authenticated() || outcome.code() == Some(18),
            "{outcome:?}"
        );
    }
    logged_in(seawall, login).await;
    refused
}

/// Seawall verifies logins with cached SCRAM keys. After a failed login, it reads the keys again.
#[tokio::test]
async fn at_most_one_login_with_a_new_password_is_refused_and_the_old_password_no_longer_works() {
    let seawall = seawall("").await;
    let root = root().await;
    for mechanism in Mechanism::ALL {
        let user = writer().await;
        let keys = KeyCache::default();
        let login_with = |password: &str| {
            with_password(&user, password)
                .mechanism(mechanism)
                .keys(&keys)
        };
        let mut connected = logged_in(&seawall, &login_with("secret")).await;
        let mut old = "secret".to_owned();
        for change in 0..4 {
            let new = format!("secret-{change}");
            update_user(&root, &user, doc! { "pwd": &new }).await;
            let refused = refused(&seawall, &login_with(&new)).await;
            assert!(
                refused <= 1,
                "expected at most one refused login, got {refused}"
            );
            let (_, outcome) = log_in(&seawall, &login_with(&old)).await;
            assert_eq!(outcome.code(), Some(18), "{outcome:?}");
            // A connected client keeps its login after a password change, as without Seawall.
            assert!(find(&mut connected, &user.name).await.is_ok());
            old = new;
        }
    }
}

/// Seawall verifies logins with cached SCRAM keys. After a failed login, it reads the keys again.
#[tokio::test]
async fn at_most_one_of_many_concurrent_logins_with_a_new_password_is_refused() {
    let seawall = seawall("").await;
    let root = root().await;
    for start in [Start::Command, Start::SpeculativeHello] {
        let user = writer().await;
        let keys = KeyCache::default();
        logged_in(&seawall, &user.login()).await;
        let mut late = 0;
        for change in 0..4 {
            let new = format!("secret-{change}");
            update_user(&root, &user, doc! { "pwd": &new }).await;
            let login = with_password(&user, &new).start(start).keys(&keys);
            let logins = (0..10).map(|_| log_in(&seawall, &login));
            let outcomes = join_all(logins).await;
            let is_refused = |(_, outcome): &&(_, Outcome)| outcome.code() == Some(18);
            let refused = outcomes.iter().filter(is_refused).count();
            late += usize::from(refused > 1);
            let authenticated = outcomes.iter().filter(|(_, o)| o.is_authenticated());
            assert_eq!(authenticated.count(), outcomes.len() - refused);
        }
        // After a failed login, Seawall reads the user's keys again. If the new keys arrive late,
        // as on a busy machine, further logins fail with the cached old keys. The test allows this
        // after one of the four password changes.
        assert!(
            late <= 1,
            "expected at most one password change with several refused logins, got {late} of 4"
        );
    }
}

/// Even if the new password is the same as the old one, a server stores new SCRAM keys, because it
/// chooses a new salt. Seawall may still have the old keys in its cache.
#[tokio::test]
async fn at_most_one_login_is_refused_after_the_same_password_was_set_again() {
    let seawall = seawall("").await;
    let user = writer().await;
    logged_in(&seawall, &user.login()).await;
    for _ in 0..3 {
        update_user(&root().await, &user, doc! { "pwd": &user.password }).await;
        let refused = refused(&seawall, &user.login()).await;
        assert!(
            refused <= 1,
            "expected at most one refused login, got {refused}"
        );
    }
}

#[tokio::test]
async fn an_old_password_is_refused_even_before_a_login_with_the_new_one() {
    let seawall = seawall("").await;
    let user = writer().await;
    logged_in(&seawall, &user.login()).await;
    update_user(&root().await, &user, doc! { "pwd": "new" }).await;
    let is_refused = || async { log_in(&seawall, &user.login()).await.1.code() == Some(18) };
    eventually(LIMIT, is_refused).await.unwrap();
    logged_in(&seawall, &with_password(&user, "new")).await;
}

#[tokio::test]
async fn clients_are_disconnected_if_a_server_refuses_the_cached_scram_keys_of_their_user() {
    let (seawall, recorder) = recorded("").await;
    let user = writer().await;
    let mut connected = logged_in(&seawall, &user.login()).await;
    assert!(find(&mut connected, &user.name).await.is_ok());
    update_user(&root().await, &user, doc! { "pwd": "new" }).await;
    recorder.cut_all(Cut::Close);
    let closed = connected
        .command(&user.name, doc! { "find": "c" })
        .await
        .map(|reply| reply.body);
    assert!(closed.is_err(), "{closed:?}");
    let new = with_password(&user, "new");
    assert!(refused(&seawall, &new).await <= 1);
    let (_, outcome) = log_in(&seawall, &user.login()).await;
    assert_eq!(outcome.code(), Some(18));
    let mut client = logged_in(&seawall, &new).await;
    assert!(insert(&mut client, &user.name).await.is_ok());
}

/// Servers reply with code 334 to a login in two cases: the user has lost the mechanism of this
/// login, or the server no longer offers the mechanism.
#[tokio::test]
async fn clients_are_disconnected_if_a_server_refuses_the_mechanism_of_their_login() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let root = server.administrator().await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWrite", "app");
    create_user(&root, &user).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = seawall_at(&uri, "").await;
    let mut client = logged_in(&seawall, &user.login()).await;
    assert!(find(&mut client, "app").await.is_ok());
    let refusal = doc! { "failCommands": ["saslStart", "saslContinue"], "errorCode": 334 };
    fail_command(&root, FailTimes::Always, refusal)
        .await
        .unwrap();
    recorder.cut_all(Cut::Close);
    let closed = client.command("app", doc! { "find": "c" }).await;
    assert!(matches!(closed, Err(RawError::Closed)), "{closed:?}");
    clear_fail_command(&root).await.unwrap();
    logged_in(&seawall, &user.login()).await;
}

/// Seawall reads a user's SCRAM keys with `usersInfo`. A server that is not primary, or that is
/// shutting down, replies to this command with an error. Such an error does not mean that the user
/// no longer exists.
#[tokio::test]
async fn cached_scram_keys_are_used_while_the_server_replies_to_users_info_with_an_error() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let root = server.administrator().await.unwrap();
    let user = NewUser::new("admin", "kept", "secret").role("readWrite", "kept");
    create_user(&root, &user).await.unwrap();
    let seawall = seawall_at(&server.uri(), "").await;
    let mut connected = logged_in(&seawall, &user.login()).await;
    for code in [13435, 11602, 11600, 6] {
        let data = doc! { "failCommands": ["usersInfo"], "errorCode": code };
        fail_command(&root, FailTimes::Count(2), data)
            .await
            .unwrap();
        // After a failed login, the cached keys may be outdated, so Seawall tries to read them
        // again. The fail point makes this read fail.
        let (_, wrong) = log_in(&seawall, &with_password(&user, "wrong")).await;
        assert_eq!(wrong.code(), Some(18));
        logged_in(&seawall, &user.login()).await;
        assert!(find(&mut connected, "kept").await.is_ok(), "{code}");
    }
}

/// Seawall logs in on each server connection as the user of the clients that use this connection.
#[tokio::test]
async fn clients_of_a_user_stay_connected_if_a_secondary_refuses_a_login_of_seawall_as_this_user() {
    let set = ReplicaSet::start(2, Options::with_auth()).await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWrite", "app");
    create_user(&set.administrator().await.unwrap(), &user)
        .await
        .unwrap();
    let seawall = seawall_at(&set.uri(), "").await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = logged_in(&seawall, &user.login()).await;
        assert!(insert(&mut client, "app").await.is_ok());
        clients.push(client);
    }
    let primary = set.primary().await.unwrap().address();
    let mut members = set.members().iter();
    let secondary = members.find(|member| member.address() != primary).unwrap();
    let secondary = set.administrator_of(secondary).await.unwrap();
    let refusal = doc! { "failCommands": ["saslStart", "saslContinue"], "errorCode": 18 };
    fail_command(&secondary, FailTimes::Always, refusal)
        .await
        .unwrap();
    let read = || doc! { "find": "c", "$readPreference": { "mode": "secondary" } };
    for _ in 0..3 {
        let reply = clients[0].command("app", read()).await.unwrap();
        assert_eq!(reply.code(), Some(18), "{reply:?}");
    }
    for client in &mut clients {
        assert!(insert(client, "app").await.is_ok());
    }
    clear_fail_command(&secondary).await.unwrap();
    clients[0].expect_ok("app", read()).await;
}

#[tokio::test]
async fn changed_roles_apply_to_the_next_command() {
    let seawall = seawall("").await;
    let user = writer().await;
    let mut client = logged_in(&seawall, &user.login()).await;
    assert!(insert(&mut client, &user.name).await.is_ok());
    let read_only = doc! { "roles": [{ "role": "read", "db": &user.name }] };
    update_user(&root().await, &user, read_only).await;
    assert_eq!(insert(&mut client, &user.name).await.code(), Some(13));
    assert!(find(&mut client, &user.name).await.is_ok());
}

async fn drop_user(root: &impl RunCommand, user: &NewUser) {
    let command = doc! { "dropUser": &user.name };
    root.run(&user.db, command).await.unwrap();
}

#[tokio::test]
async fn clients_of_a_dropped_user_get_code_13_and_new_logins_fail() {
    let seawall = seawall("").await;
    let user = writer().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(logged_in(&seawall, &user.login()).await);
    }
    drop_user(&root().await, &user).await;
    for _ in 0..5 {
        for client in &mut clients {
            let reply = find(client, &user.name).await;
            assert_eq!(reply.code(), Some(13), "{reply:?}");
        }
    }
    let is_refused = || async { log_in(&seawall, &user.login()).await.1.code() == Some(18) };
    eventually(LIMIT, is_refused).await.unwrap();
    assert_eq!(find(&mut clients[0], &user.name).await.code(), Some(13));
}

/// Two Seawalls in front of one replica set are the routers of a third Seawall.
#[tokio::test]
async fn kill_cursors_over_two_routers_closes_the_connection_of_a_dropped_user() {
    let set = ReplicaSet::start(1, Options::with_auth()).await.unwrap();
    let administrator = set.administrator().await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWrite", "app");
    create_user(&administrator, &user).await.unwrap();
    let routers = [
        Seawall::start(&set.uri()).await,
        Seawall::start(&set.uri()).await,
    ];
    let [one, other] = routers.each_ref().map(Seawall::address);
    let seawall = seawall_at(&format!("mongodb://{one},{other}/"), BOTH_ROUTERS).await;
    wait_for_routers(&seawall).await;
    let mut client = logged_in(&seawall, &user.login()).await;
    assert!(insert(&mut client, "app").await.is_ok());
    let has_cursor = async |router: &Seawall| {
        let finds = router.metric("seawall_operations_total", &["command=\"find\""]);
        finds.await > 0.0
    };
    let mut cursors = Vec::new();
    let both_have_cursors = async {
        while !has_cursor(&routers[0]).await || !has_cursor(&routers[1]).await {
            let find = doc! { "find": "c", "batchSize": 0 };
            let reply = client.expect_ok("app", find).await;
            cursors.push(reply.cursor_id().unwrap());
        }
    };
    timeout(LIMIT, both_have_cursors).await.unwrap();
    drop_user(&administrator, &user).await;
    let kill = doc! { "killCursors": "c", "cursors": cursors };
    let reply = client.command("app", kill).await.unwrap();
    assert_eq!(reply.code(), Some(13), "{reply:?}");
    let is_closed = async || {
        let reason = ["reason=\"unauthorized\""];
        let closed = seawall.metric("seawall_server_connections_closed_total", &reason);
        closed.await > 0.0
    };
    eventually(LIMIT, is_closed).await.unwrap();
}

#[tokio::test]
async fn a_client_whose_user_was_dropped_can_run_commands_that_need_no_login_as_on_a_server() {
    let seawall = seawall("").await;
    let direct = server().await.raw_client().await.unwrap();
    let mut replies = Vec::new();
    for mut client in [connect(&seawall).await, direct] {
        let dropped = writer().await;
        let outcome = client.login(&dropped.login()).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
        assert!(find(&mut client, &dropped.name).await.is_ok());
        drop_user(&root().await, &dropped).await;
        let refused = find(&mut client, &dropped.name).await;
        assert_eq!(refused.code(), Some(13), "{refused:?}");
        let commands = [
            doc! { "ping": 1 },
            doc! { "buildInfo": 1 },
            doc! { "connectionStatus": 1, "showPrivileges": true },
        ];
        let mut bodies = Vec::new();
        for command in commands {
            bodies.push(client.expect_ok("admin", command).await.body);
        }
        replies.push(bodies);
    }
    assert_eq!(replies[0], replies[1]);
}

#[tokio::test]
async fn a_client_whose_user_was_dropped_can_log_in_as_another_user_as_on_a_server() {
    let seawall = seawall("").await;
    let direct = server().await.raw_client().await.unwrap();
    for mut client in [connect(&seawall).await, direct] {
        let (dropped, other) = (writer().await, writer().await);
        let outcome = client.login(&dropped.login()).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
        assert!(find(&mut client, &dropped.name).await.is_ok());
        drop_user(&root().await, &dropped).await;
        let refused = find(&mut client, &dropped.name).await;
        assert_eq!(refused.code(), Some(13), "{refused:?}");
        let outcome = client.login(&other.login()).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
        assert!(insert(&mut client, &other.name).await.is_ok());
        let refused = find(&mut client, &dropped.name).await;
        assert_eq!(refused.code(), Some(13), "{refused:?}");
    }
}

#[tokio::test]
async fn clients_of_a_recreated_user_gain_its_rights_only_by_a_new_login() {
    let seawall = seawall("").await;
    let root = root().await;
    for sends_while_dropped in [false, true] {
        for mechanism in Mechanism::ALL {
            let user = writer().await;
            let login = user.login().mechanism(mechanism);
            let mut old = logged_in(&seawall, &login).await;
            assert!(find(&mut old, &user.name).await.is_ok());
            drop_user(&root, &user).await;
            if sends_while_dropped {
                assert_eq!(find(&mut old, &user.name).await.code(), Some(13));
            }
            let user = user.role("readWrite", "more");
            create_user(&root, &user).await.unwrap();
            for db in ["more", &user.name, "more"] {
                assert_eq!(find(&mut old, db).await.code(), Some(13));
            }
            assert!(refused(&seawall, &login).await <= 1);
            let mut new = logged_in(&seawall, &login).await;
            for _ in 0..3 {
                assert!(insert(&mut new, "more").await.is_ok());
                assert_eq!(insert(&mut old, "more").await.code(), Some(13));
            }
            // A new login on the same connection gives the new rights.
            let again = old.login(&login).await.unwrap();
            assert!(again.is_authenticated(), "{again:?}");
            assert!(insert(&mut old, "more").await.is_ok());
        }
    }
}

/// Time limit of each wait. Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(30);
