//! Tests of logins with `auth.credentials = "self"`. Seawall's configuration then contains no
//! credentials, and all users keep their own rights on the server.

use std::time::Duration;

use bson::{Bson, doc};
use seawall_api::Status;
use seawall_tests::{
    crowd,
    eventually::eventually,
    mongod::{NewUser, RunCommand, create_user, shared_replica_set, unique_name},
    raw::{KeyCache, Mechanism, OpMsg, RawClient, RawReply, Start},
    seawall::Seawall,
};
use tokio::task::JoinSet;

use crate::scene::{
    connect, connect_from, connection_to, find, insert, log_in, logged_in, recorded, root, seawall,
    seawall_at, server, update_user, writer,
};

const STARTS: [Start; 3] = [
    Start::Command,
    Start::SpeculativeHello,
    Start::SpeculativeLegacyHello,
];

/// Creates users with one or with both SCRAM mechanisms. Logs each user in twice: with and without
/// the empty exchange at the end of the login. Uses each mechanism, and begins logins in each of
/// three ways: with `saslStart`, with a speculative `hello`, and with a speculative `isMaster`.
async fn log_in_in_every_way(seawall: &Seawall, root: &impl RunCommand) {
    let [sha1, sha256] = [Mechanism::ScramSha1, Mechanism::ScramSha256];
    let kinds: [(&[Mechanism], Mechanism); 4] = [
        (&[sha1, sha256], sha1),
        (&[sha1, sha256], sha256),
        (&[sha1], sha1),
        (&[sha256], sha256),
    ];
    for (kind, (mechanisms, mechanism)) in kinds.into_iter().enumerate() {
        for (way, start) in STARTS.into_iter().enumerate() {
            let has_empty_exchange = (kind + way) % 2 == 0;
            let data = unique_name("data");
            let db = if way == 0 { "admin" } else { data.as_str() };
            let user = NewUser::new(db, &unique_name("a.b=c,d"), "pass word")
                .mechanisms(mechanisms)
                .role("read", &data);
            create_user(root, &user).await.unwrap();
            for skip_empty_exchange in [!has_empty_exchange, has_empty_exchange] {
                let mut login = user.login().mechanism(mechanism).start(start);
                login.skip_empty_exchange = skip_empty_exchange;
                let mut client = logged_in(seawall, &login).await;
                assert!(find(&mut client, &data).await.is_ok(), "{login:?}");
                let refused = insert(&mut client, &data).await;
                assert_eq!(refused.code(), Some(13), "{refused:?}");
                let text = refused.body.get_str("errmsg").unwrap();
                assert!(text.starts_with("not authorized on"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn users_can_log_in_with_each_mechanism_and_with_or_without_speculative_authentication() {
    let seawall = seawall("").await;
    let status: Status = seawall.api("/api/v1/status").await;
    assert_eq!(status.credentials, "self");
    log_in_in_every_way(&seawall, &root().await).await;
}

#[tokio::test]
async fn users_of_a_replica_set_can_log_in_with_each_mechanism_with_or_without_speculation() {
    let set = shared_replica_set().await.unwrap();
    let seawall = seawall_at(&set.uri(), "").await;
    log_in_in_every_way(&seawall, &set.administrator().await.unwrap()).await;
}

/// Code 13 (Unauthorized) can mean that the user was dropped. Only then does Seawall close the
/// pooled connection.
#[tokio::test]
async fn code_13_for_a_user_that_still_exists_closes_no_pooled_connection() {
    let seawall = seawall("").await;
    let user = writer().await;
    let mut client = logged_in(&seawall, &user.login()).await;
    let created = seawall
        .metric("seawall_server_connections_created_total", &[])
        .await;
    for _ in 0..30 {
        assert_eq!(insert(&mut client, "another").await.code(), Some(13));
        // The server refuses this command with an error text that quotes the command. The quoted
        // text looks like the server's error for a dropped user, but Seawall must ignore it.
        let quoted = doc! { "find": "command x requires authentication" };
        let refused = client.command("another", quoted).await.unwrap();
        assert_eq!(refused.code(), Some(13));
        assert!(insert(&mut client, &user.name).await.is_ok());
    }
    let name = "seawall_server_connections_created_total";
    assert_eq!(seawall.metric(name, &[]).await, created);
}

/// Seawall forwards the first login of a user to a server, and verifies later logins itself.
#[tokio::test]
async fn only_the_first_login_of_a_user_reaches_the_server() {
    let seawall = seawall("").await;
    let user = writer().await;
    for mechanism in Mechanism::ALL {
        for start in STARTS {
            let login = user.login().mechanism(mechanism).start(start);
            for _ in 0..5 {
                logged_in(&seawall, &login).await;
            }
        }
    }
    let authentications = seawall
        .metric("seawall_server_authentications_total", &[])
        .await;
    assert_eq!(authentications, 1.0);
}

#[tokio::test]
async fn hello_lists_the_mechanisms_of_a_user_as_a_server_does() {
    let seawall = seawall("").await;
    let root = root().await;
    let mut direct = server().await.raw_client().await.unwrap();
    let mechanisms_of = |reply: RawReply| {
        let array = reply.body.get_array("saslSupportedMechs").ok()?;
        let mut names: Vec<_> = array.iter().map(Bson::to_string).collect();
        names.sort();
        Some(names)
    };
    let [sha1, sha256] = [Mechanism::ScramSha1, Mechanism::ScramSha256];
    let sets: [&[Mechanism]; 3] = [&[sha1], &[sha256], &[sha1, sha256]];
    for mechanisms in sets {
        let user = NewUser::new("admin", &unique_name("x.y"), "p").mechanisms(mechanisms);
        create_user(&root, &user).await.unwrap();
        let asked = doc! { "saslSupportedMechs": format!("admin.{}", user.name) };
        let expected = mechanisms_of(direct.greet(asked.clone()).await.unwrap());
        assert_eq!(expected.as_ref().map(Vec::len), Some(mechanisms.len()));
        let mut client = connect(&seawall).await;
        let before = mechanisms_of(client.greet(asked.clone()).await.unwrap());
        let legacy = mechanisms_of(client.legacy_hello(asked.clone()).await.unwrap());
        logged_in(&seawall, &user.login()).await;
        let after = mechanisms_of(client.greet(asked).await.unwrap());
        assert_eq!([&before, &legacy, &after], [&expected; 3]);
    }
    let asked = doc! { "saslSupportedMechs": format!("admin.{}", unique_name("nobody")) };
    for client in [&mut direct, &mut connect(&seawall).await] {
        let reply = client.greet(asked.clone()).await.unwrap();
        assert!(reply.is_ok(), "{reply:?}");
        assert_eq!(mechanisms_of(reply), None);
    }
}

#[tokio::test]
async fn speculative_authentication_works_only_for_users_whose_scram_keys_seawall_has_cached() {
    let seawall = seawall("").await;
    let user = writer().await;
    let login = user.login().start(Start::SpeculativeHello);
    // The first login gets three replies, to the hello and to two commands, because Seawall ignored
    // the speculative part of the hello.
    let (_, first) = log_in(&seawall, &login).await;
    assert_eq!((first.is_authenticated(), first.replies.len()), (true, 3));
    let reply = &first.replies[0];
    assert!(!reply.body.contains_key("speculativeAuthenticate"));
    let is_used = || async { log_in(&seawall, &login).await.1.replies.len() == 2 };
    eventually(LIMIT, is_used).await.unwrap();
    let unknown = NewUser::new("admin", &unique_name("nobody"), "p").login();
    for start in [Start::SpeculativeHello, Start::SpeculativeLegacyHello] {
        let (_, refused) = log_in(&seawall, &unknown.clone().start(start)).await;
        assert_eq!((refused.code(), refused.replies.len()), (Some(18), 2));
        let hello = &refused.replies[0];
        assert!(hello.is_ok() && !hello.body.contains_key("speculativeAuthenticate"));
    }
}

/// Seawall forwards the first login of a user to a server, and verifies later logins itself.
#[tokio::test]
async fn client_source_restrictions_of_users_and_roles_apply_to_the_first_and_to_later_logins() {
    let seawall = seawall("").await;
    let root = root().await;
    let source = doc! { "clientSource": ["127.0.0.1"] };
    let role = unique_name("role");
    let create_role = doc! {
        "createRole": &role, "privileges": [], "roles": [], "authenticationRestrictions": [&source],
    };
    root.run("admin", create_role).await.unwrap();
    for is_inherited in [false, true] {
        for begins_outside in [false, true] {
            let user = NewUser::new("admin", &unique_name("user"), "p");
            let user = match is_inherited {
                true => user.role(&role, "admin"),
                false => user.restriction(source.clone()),
            };
            create_user(&root, &user).await.unwrap();
            for attempt in 0..4 {
                let is_outside = (attempt % 2 == 0) == begins_outside;
                let address = if is_outside {
                    [127, 0, 0, 2]
                } else {
                    [127, 0, 0, 1]
                };
                let mut client = connect_from(&seawall, address).await;
                let outcome = client.login(&user.login()).await.unwrap();
                assert_eq!(outcome.is_authenticated(), !is_outside, "{outcome:?}");
                let expected = is_outside.then_some(18);
                assert_eq!(outcome.code(), expected, "{outcome:?}");
                let listed = client
                    .command("admin", doc! { "listDatabases": 1 })
                    .await
                    .unwrap();
                assert_eq!(listed.code(), is_outside.then_some(13), "{listed:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_restriction_that_is_added_after_a_login_applies_to_later_logins_and_connected_clients() {
    let seawall = seawall("").await;
    let name = unique_name("user");
    let user = NewUser::new("admin", &name, "secret").role("readWrite", &name);
    let user = user.role("clusterMonitor", "admin");
    create_user(&root().await, &user).await.unwrap();
    let restriction = doc! { "authenticationRestrictions": [{ "clientSource": ["127.0.0.1"] }] };
    let mut outside = connect_from(&seawall, [127, 0, 0, 2]).await;
    let outcome = outside.login(&user.login()).await.unwrap();
    assert!(outcome.is_authenticated());
    let status = || doc! { "seawall": "status" };
    assert!(outside.command("admin", status()).await.unwrap().is_ok());
    // This client waits for data while the restriction is added.
    let mut waiting = connect_from(&seawall, [127, 0, 0, 2]).await;
    let outcome = waiting.login(&user.login()).await.unwrap();
    assert!(outcome.is_authenticated());
    let capped = doc! { "create": "events", "capped": true, "size": 4096 };
    let insert = doc! { "insert": "events", "documents": [{}] };
    for command in [capped, insert] {
        waiting.expect_ok(&name, command).await;
    }
    let tail = doc! { "find": "events", "tailable": true, "awaitData": true };
    let opened = waiting.command(&name, tail).await.unwrap();
    let cursor = opened.body.get_document("cursor").unwrap();
    let more = doc! {
        "getMore": cursor.get_i64("id").unwrap(),
        "collection": "events",
        "maxTimeMS": 600_000,
        "$db": &name,
    };
    waiting.send(&OpMsg::new(more)).await.unwrap();
    let port = server().await.address().port();
    let mut direct = RawClient::new(connection_to(port, [127, 0, 0, 2]).await);
    let outcome = direct.login(&user.login()).await.unwrap();
    assert!(outcome.is_authenticated());
    update_user(&root().await, &user, restriction).await;
    let is_refused = || async {
        let mut client = connect_from(&seawall, [127, 0, 0, 2]).await;
        client.login(&user.login()).await.unwrap().code() == Some(18)
    };
    eventually(LIMIT, is_refused).await.unwrap();
    let mut inside = logged_in(&seawall, &user.login()).await;
    assert!(find(&mut inside, &user.name).await.is_ok());
    for client in [&mut direct, &mut outside] {
        assert_eq!(find(client, &user.name).await.code(), Some(13));
    }
    let refused = outside.command("admin", status()).await.unwrap();
    assert_eq!(refused.code(), Some(13), "{refused:?}");
    let ended = waiting.read_reply().await.unwrap();
    assert_eq!(ended.code(), Some(13), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_users_share_few_server_connections_and_all_are_served() {
    const USERS: usize = 200;
    const MAX_SERVER_CONNECTIONS: u32 = 20;
    /// Maximum number of server connections outside of pools: 64 for first logins (logins that the
    /// server checks), and eight that are kept for later first logins. There are a few more for
    /// monitors, and for connections that are being closed.
    const OUTSIDE_OF_POOLS: u32 = 84;
    let _turn = crowd::turn().await;
    let toml = format!(
        "[pool]\nmax_server_connections = {MAX_SERVER_CONNECTIONS}\nmax_pool_size = 5\nwait_queue_timeout_ms = 60000\n"
    );
    let (seawall, recorder) = recorded(&toml).await;
    let root = root().await;
    let prefix = unique_name("crowd");
    let mut users = Vec::with_capacity(USERS);
    for n in 0..USERS {
        let user = NewUser::new("admin", &format!("{prefix}-{n}"), "secret").role("read", &prefix);
        create_user(&root, &user).await.unwrap();
        users.push(user);
    }
    // Without this cache, the test would spend most of its time on the clients' key derivation.
    let keys = KeyCache::default();
    for user in &users {
        let mut direct = server().await.raw_client().await.unwrap();
        let outcome = direct.login(&user.login().keys(&keys)).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
    }
    let address = seawall.address().parse::<std::net::SocketAddr>().unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], address.port()));
    let mut clients = JoinSet::new();
    for user in users {
        for _ in 0..5 {
            let (login, prefix) = (user.login().keys(&keys), prefix.clone());
            clients.spawn(async move {
                let mut client = RawClient::connect(address).await.unwrap();
                client.set_limit(CROWD_LIMIT);
                let outcome = client.login(&login).await.unwrap();
                assert!(outcome.is_authenticated(), "{outcome:?}");
                for _ in 0..3 {
                    let found = find(&mut client, &prefix).await;
                    assert!(found.is_ok(), "{found:?}");
                }
            });
        }
    }
    let (mut served, mut most_open) = (0, 0);
    let mut sample = tokio::time::interval(Duration::from_millis(5));
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                Some(ended) => { ended.unwrap(); served += 1; }
                None => break,
            },
            _ = sample.tick() => {
                most_open = most_open.max(recorder.open_count());
                let pooled = seawall.metric("seawall_server_connections", &[]).await;
                assert!(
                    pooled <= f64::from(MAX_SERVER_CONNECTIONS),
                    "expected at most {MAX_SERVER_CONNECTIONS} pooled connections, got {pooled}"
                );
            }
        }
    }
    assert_eq!(served, 5 * USERS);
    assert!(
        most_open <= usize::try_from(MAX_SERVER_CONNECTIONS + OUTSIDE_OF_POOLS).unwrap(),
        "expected at most {MAX_SERVER_CONNECTIONS} + {OUTSIDE_OF_POOLS} server connections, got {most_open}"
    );
}

/// Time limit of each wait. Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a reply while a thousand clients wait on a busy machine.
const CROWD_LIMIT: Duration = Duration::from_secs(120);
