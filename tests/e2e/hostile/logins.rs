//! Logins with which a client tries to get more access than its rights allow (for example with an
//! old password), or to delay the logins of other users.

use std::time::Duration;

use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, Options, Standalone, create_user, unique_name},
    raw::{Login, Mechanism, OpMsg, Start, message::MORE_TO_COME},
    seawall::Seawall,
};
use tokio::{task::JoinSet, time::timeout};

use crate::{
    credential_modes::{configured_keys, mode},
    scene::{
        connect, connect_from, find, insert, log_in, logged_in, recorded, root, seawall,
        seawall_at, update_user, with_password, writer,
    },
};

const AUTHENTICATION_FAILED: i32 = 18;
const UNAUTHORIZED: i32 = 13;
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_login_that_began_before_a_password_change_fails_and_disconnects_no_other_client() {
    let seawall = seawall("").await;
    for mechanism in Mechanism::ALL {
        let user = writer().await;
        let old = user.login().mechanism(mechanism);
        logged_in(&seawall, &old).await;
        let mut late = connect(&seawall).await;
        let begun = late.begin_login(&old).await.unwrap();
        update_user(&root().await, &user, doc! {"pwd": "new"}).await;
        let new = with_password(&user, "new").mechanism(mechanism);
        // If Seawall still has the old keys, the first login with the new password fails, and makes
        // Seawall read the keys again.
        let is_logged_in = || async { log_in(&seawall, &new).await.1.is_authenticated() };
        eventually(LIMIT, is_logged_in).await.unwrap();
        let mut client = logged_in(&seawall, &new).await;
        assert!(insert(&mut client, &user.name).await.is_ok());
        let outcome = late.finish_login(&begun).await.unwrap();
        assert_eq!(outcome.code(), Some(AUTHENTICATION_FAILED), "{outcome:?}");
        assert_eq!(find(&mut late, &user.name).await.code(), Some(UNAUTHORIZED));
        for _ in 0..3 {
            assert!(insert(&mut client, &user.name).await.is_ok());
            let mut another = logged_in(&seawall, &new).await;
            assert!(find(&mut another, &user.name).await.is_ok());
        }
    }
}

/// `[[auth.users]]` has no `authenticationRestrictions`, so Seawall must read them from a server.
#[tokio::test]
async fn login_restrictions_of_users_with_configured_scram_keys_apply_from_the_first_login() {
    restrictions_apply_to_configured_users(configured_keys).await;
}

/// `[[auth.users]]` has no `authenticationRestrictions`, so Seawall must read them from a server.
#[tokio::test]
async fn login_restrictions_of_users_with_configured_passwords_apply_from_the_first_login() {
    let password = async |user: &NewUser| format!("password = {:?}\n", user.password);
    restrictions_apply_to_configured_users(password).await;
}

/// Checks that authentication restrictions apply to users in the configuration. `credentials`
/// returns the lines of the configuration with a user's credentials.
async fn restrictions_apply_to_configured_users(credentials: impl AsyncFn(&NewUser) -> String) {
    let elsewhere = doc! {"clientSource": ["192.0.2.0/24"]};
    let here = doc! {"clientSource": ["127.0.0.1"]};
    let users = [elsewhere, here].map(|restriction| {
        NewUser::new("admin", &unique_name("user"), "secret").restriction(restriction)
    });
    let mut toml = String::new();
    for user in &users {
        create_user(&root().await, user).await.unwrap();
        let credentials = credentials(user).await;
        let name = &user.name;
        toml += &format!("[[auth.users]]\nname = {name:?}\nsource = \"admin\"\n{credentials}");
    }
    let seawall = seawall(&toml).await;
    assert_eq!(mode(&seawall).await, "users");
    let [elsewhere, here] = &users;
    for _ in 0..2 {
        let (mut client, outcome) = log_in(&seawall, &elsewhere.login()).await;
        assert_eq!(outcome.code(), Some(AUTHENTICATION_FAILED), "{outcome:?}");
        assert_eq!(find(&mut client, "test").await.code(), Some(UNAUTHORIZED));
        logged_in(&seawall, &here.login()).await;
        let mut outside = connect_from(&seawall, [127, 0, 0, 2]).await;
        for start in [Start::Command, Start::SpeculativeHello] {
            let outcome = outside.login(&here.login().start(start)).await.unwrap();
            assert_eq!(outcome.code(), Some(AUTHENTICATION_FAILED), "{outcome:?}");
        }
    }
    // When Seawall reads keys again, it also reads the restrictions again.
    let nowhere = doc! {"authenticationRestrictions": [{"clientSource": ["192.0.2.0/24"]}]};
    update_user(&root().await, here, nowhere).await;
    let is_refused =
        || async { log_in(&seawall, &here.login()).await.1.code() == Some(AUTHENTICATION_FAILED) };
    eventually(LIMIT, is_refused).await.unwrap();
}

fn first_user() -> Document {
    doc! {"createUser": "mallory", "pwd": "x", "roles": ["root"]}
}

#[tokio::test]
async fn anonymous_clients_lose_their_rights_when_access_control_is_switched_on() {
    let mut server = Standalone::start(Options::default()).await.unwrap();
    let seawall = seawall_at(&server.uri(), "").await;
    assert_eq!(mode(&seawall).await, "none");
    let mut client = connect(&seawall).await;
    assert!(insert(&mut client, "test").await.is_ok());
    // After this restart, the server requires logins but has no users. Such a server lets a client
    // on its own host create the first user. Seawall runs on this host, but its clients must not
    // get this right.
    server.mongod().terminate().await.unwrap();
    server.mongod_mut().restart_with("--auth").await.unwrap();
    for _ in 0..3 {
        let reply = client.command("admin", first_user()).await.unwrap();
        assert_eq!(reply.code(), Some(UNAUTHORIZED), "{reply:?}");
    }
    assert_eq!(mode(&seawall).await, "self");
    let mut direct = server.raw_client().await.unwrap();
    let mut own = first_user();
    own.insert("createUser", "first");
    assert!(direct.command("admin", own).await.unwrap().is_ok());
    let outcome = direct.login(&Login::new("admin", "first", "x")).await;
    assert!(outcome.unwrap().is_authenticated());
    let users = direct
        .command("admin", doc! {"usersInfo": 1})
        .await
        .unwrap();
    assert_eq!(users.body.get_array("users").unwrap().len(), 1, "{users:?}");
    // The client that connected before access control was switched on can log in, and can write
    // again.
    let outcome = client.login(&Login::new("admin", "first", "x")).await;
    assert!(outcome.unwrap().is_authenticated());
    assert!(insert(&mut client, "test").await.is_ok());
}

#[tokio::test]
async fn a_code_13_error_does_not_make_logins_required_while_access_control_is_off() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = seawall_at(&server.uri(), "").await;
    let mut client = connect(&seawall).await;
    for _ in 0..3 {
        assert!(insert(&mut client, "test").await.is_ok());
    }
    let cursor = client
        .command("test", doc! {"find": "c", "batchSize": 1})
        .await
        .unwrap();
    let id = cursor.cursor_id().unwrap();
    // The cursor belongs to another collection, so the server replies with code 13.
    let more = doc! {"getMore": id, "collection": "other"};
    let reply = client.command("test", more).await.unwrap();
    assert_eq!(reply.code(), Some(UNAUTHORIZED), "{reply:?}");
    assert_eq!(mode(&seawall).await, "none");
    assert!(find(&mut connect(&seawall).await, "test").await.is_ok());
}

#[tokio::test]
async fn logins_are_verified_even_while_access_control_is_off() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let user = NewUser::new("admin", "app", "right").role("readWrite", "test");
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let seawall = seawall_at(&server.uri(), "").await;
    assert_eq!(mode(&seawall).await, "none");
    let mut anonymous = connect(&seawall).await;
    for mechanism in Mechanism::ALL {
        for start in [
            Start::Command,
            Start::SpeculativeHello,
            Start::SpeculativeLegacyHello,
        ] {
            let right = user.login().mechanism(mechanism).start(start);
            let mut wrong = right.clone();
            wrong.password = "wrong".to_owned();
            let unknown = Login::new("admin", "nobody", "right").start(start);
            for refused in [wrong, unknown] {
                let expected = server.raw_client().await.unwrap().login(&refused).await;
                let (mut client, outcome) = log_in(&seawall, &refused).await;
                assert_eq!(outcome.code(), expected.unwrap().code(), "{refused:?}");
                assert_eq!(outcome.code(), Some(AUTHENTICATION_FAILED), "{outcome:?}");
                assert!(find(&mut client, "test").await.is_ok());
            }
            let mut client = logged_in(&seawall, &right).await;
            let status = doc! {"connectionStatus": 1};
            let status = client.command("admin", status).await.unwrap();
            let users = status.body.get_document("authInfo").unwrap();
            let users = users.get_array("authenticatedUsers").unwrap();
            assert_eq!(users, &[doc! {"user": "app", "db": "admin"}.into()]);
            assert!(insert(&mut client, "test").await.is_ok());
        }
        assert!(insert(&mut anonymous, "test").await.is_ok());
    }
}

#[tokio::test]
async fn logins_with_long_names_fail_like_logins_of_unknown_users() {
    let seawall = seawall("").await;
    let mut client = connect(&seawall).await;
    for length in [1024, 1025, 10_000] {
        let name = "n".repeat(length);
        let asked = doc! {"saslSupportedMechs": format!("admin.{name}")};
        let hello = client.hello(asked).await.unwrap();
        assert!(hello.is_ok() && !hello.body.contains_key("saslSupportedMechs"));
        let outcome = client
            .login(&Login::new("admin", &name, "p"))
            .await
            .unwrap();
        assert_eq!(outcome.code(), Some(AUTHENTICATION_FAILED), "{length}");
    }
}

/// Time limit for a user's first login while the logins of other users are stalled.
const FIRST_LOGIN_LIMIT: Duration = Duration::from_secs(5);

/// Seawall forwards the first login of a user to a server. Clients might begin such logins, and not
/// continue them.
#[tokio::test]
async fn unfinished_logins_of_other_users_do_not_block_a_users_first_login() {
    let seawall = seawall("").await;
    let mut stalled = Vec::new();
    for _ in 0..25 {
        let user = writer().await;
        for _ in 0..4 {
            let mut client = connect_from(&seawall, [127, 0, 0, 9]).await;
            let payload = format!("n,,n={},r=0123456789abcdefghij", user.name);
            let start = doc! {
                "saslStart": 1, "mechanism": "SCRAM-SHA-256", "$db": "admin",
                "payload": Binary { subtype: BinarySubtype::Generic, bytes: payload.into() },
            };
            client.send(&OpMsg::new(start)).await.unwrap();
            stalled.push(client);
        }
    }
    for _ in 0..3 {
        let user = writer().await;
        let mut client = connect(&seawall).await;
        client.set_limit(FIRST_LOGIN_LIMIT);
        let asked = doc! {"saslSupportedMechs": format!("admin.{}", user.name)};
        assert!(client.hello(asked).await.unwrap().is_ok());
        let login = user.login();
        let outcome = timeout(FIRST_LOGIN_LIMIT, client.login(&login)).await;
        let outcome = outcome.expect("a first login ends in time").unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
    }
}

/// Number of clients that log in at the same time. One login per second is allowed, so the logins
/// of the last clients get the longest delay, ten seconds.
const DELAYED_CLIENTS: u32 = 20;

/// A tolerance of the test. One login per second is allowed, so some logins get their reply before
/// the test disconnects the clients: at most this number.
const MOST_ENDED: u32 = 5;

#[tokio::test]
async fn a_login_that_the_rate_limit_delays_ends_when_its_client_disconnects() {
    let seawall = seawall("limits.logins_per_second_per_user = 1").await;
    let known = writer().await;
    logged_in(&seawall, &known.login()).await;
    let new = writer().await;
    let steps = [
        ("unknown user", Login::new("admin", "nobody", "p"), false),
        ("first login", with_password(&new, "wrong"), false),
        ("wrong proof", with_password(&known, "wrong"), false),
        ("right proof", known.login(), true),
    ];
    for (name, login, is_right) in steps {
        let [delayed, gone, refused, ok] = counts(&seawall).await;
        let mut logins = JoinSet::new();
        for _ in 0..DELAYED_CLIENTS {
            let (mut client, login) = (connect(&seawall).await, login.clone());
            logins.spawn(async move { client.login(&login).await.map(drop) });
        }
        // The first of these logins may get its reply without a delay.
        let expected = delayed + f64::from(DELAYED_CLIENTS - 1);
        let are_delayed = async || counts(&seawall).await[0] >= expected;
        eventually(LIMIT, are_delayed).await.expect(name);
        logins.shutdown().await;
        // Before their clients leave, some logins end: at most one per second.
        let left = gone + f64::from(DELAYED_CLIENTS - MOST_ENDED);
        let are_gone = async || counts(&seawall).await[1] >= left;
        eventually(LIMIT, are_gone).await.expect(name);
        // Seawall counts a login as refused or successful even if the client did not wait for the
        // reply.
        let (counted, before) = if is_right { (3, ok) } else { (2, refused) };
        let expected = before + f64::from(DELAYED_CLIENTS);
        let are_counted = async || counts(&seawall).await[counted] >= expected;
        eventually(LIMIT, are_counted).await.expect(name);
    }
}

/// Four numbers: delayed logins, logins whose client left, refused logins, and successful logins.
async fn counts(seawall: &Seawall) -> [f64; 4] {
    let stage = ["stage=\"logging_in\""];
    let logins = "seawall_client_authentications_total";
    [
        seawall.metric("seawall_logins_delayed_total", &[]).await,
        seawall.metric("seawall_clients_gone_total", &stage).await,
        seawall.metric(logins, &["result=\"refused\""]).await,
        seawall.metric(logins, &["result=\"ok\""]).await,
    ]
}

/// Sends the last command of a login together with a `logout`, and then another command.
async fn check_login_with_logout(logout_flags: u32) {
    let (seawall, recorder) = recorded("deployment.mode = \"relay\"").await;
    let login = writer().await.login();
    let mut client = connect(&seawall).await;
    let begun = client.begin_login(&login).await.unwrap();
    let last = OpMsg::new(begun.last_command());
    let logout = OpMsg::new(doc! {"logout": 1, "$db": "admin"}).flags(logout_flags);
    let both = [last.to_bytes(), logout.to_bytes()].concat();
    client.send_bytes(&both).await.unwrap();
    let replies = if logout_flags == MORE_TO_COME { 1 } else { 2 };
    for _ in 0..replies {
        assert!(client.read_reply().await.unwrap().is_ok());
    }
    let user = doc! {"createUser": "mallory", "pwd": "x", "roles": ["root"]};
    let refused = client.command("admin", user).await.unwrap();
    assert_eq!(refused.code(), Some(UNAUTHORIZED), "{:?}", refused.body);
    let connections = recorder.connections();
    let sent = connections
        .iter()
        .map(|c| String::from_utf8_lossy(&c.from_client));
    assert!(!sent.collect::<String>().contains("mallory"));
}

#[tokio::test]
async fn a_relay_forwards_no_command_after_a_login_and_a_logout_that_were_sent_together() {
    check_login_with_logout(0).await;
}

/// The server sends no reply to a command with the flag `moreToCome`.
#[tokio::test]
async fn a_relay_forwards_no_command_after_a_login_and_an_unacknowledged_logout() {
    check_login_with_logout(MORE_TO_COME).await;
}
