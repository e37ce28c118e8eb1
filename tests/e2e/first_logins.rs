//! Tests of users' first logins, which Seawall forwards to a server: which bytes Seawall forwards,
//! how many first logins run at the same time, and how they end. Also tests that an error in any
//! SCRAM conversation has the same code as on a server.

use std::time::Duration;

use bson::{Bson, Document, doc};
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, ServerVersion, create_user, server_version, unique_name},
    raw::{Mechanism, OpMsg, RawClient, RawReply},
};
use tokio::{task::JoinSet, time::Instant};

use crate::scene::{
    binary, commands_named, connect, connect_from, find, first_logins, log_in, logged_in, recorded,
    root, seawall, server, with_password, writer,
};

fn sasl_start(user: &str) -> Document {
    let payload = binary(&format!("n,,n={user},r=0123456789abcdefghij"));
    doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload }
}

fn sasl_continue(conversation_id: impl Into<Bson>) -> Document {
    doc! { "saslContinue": 1, "conversationId": conversation_id, "payload": binary("c=biws,r=x,p=AAAA") }
}

/// Begins a login and does not continue it.
async fn stall(client: &mut RawClient, user: &NewUser) {
    client.expect_ok(&user.db, sasl_start(&user.name)).await;
}

/// The names of the users that are logged in on a connection.
async fn users_of(client: &mut RawClient) -> Vec<String> {
    let reply = client
        .command("admin", doc! { "connectionStatus": 1 })
        .await
        .unwrap();
    let info = reply.body.get_document("authInfo").unwrap();
    let users = info.get_array("authenticatedUsers").unwrap().iter();
    users
        .map(|user| {
            user.as_document()
                .unwrap()
                .get_str("user")
                .unwrap()
                .to_owned()
        })
        .collect()
}

/// Seawall forwards the first login of a user to a server, and verifies later logins itself.
#[tokio::test]
async fn when_seawall_forwards_a_first_login_it_omits_all_fields_that_the_login_does_not_need() {
    let (seawall, recorder) = recorded("").await;
    let user = writer().await;
    let mut client = connect(&seawall).await;
    let mut start = sasl_start(&user.name);
    start.extend(doc! {
        "autoAuthorize": 1, "comment": "planted", "maxTimeMS": 9999, "planted": "planted",
        "options": { "skipEmptyExchange": false, "planted": 1 }, "$readPreference": { "mode": "primary" },
    });
    let payload = start.get("payload").cloned();
    let challenge = client.expect_ok(&user.db, start).await;
    let given = challenge.body.get_binary_generic("payload").unwrap();
    let given = String::from_utf8(given.clone()).unwrap();
    let nonce = given.split(',').next().unwrap();
    let mut proof = sasl_continue(1);
    let wrong = format!("c=biws,{nonce},p={}", "A".repeat(43) + "=");
    proof.insert("payload", binary(&wrong));
    proof.extend(doc! { "comment": "planted", "lsid": { "id": 1 }, "maxTimeMS": 9999 });
    let refused = client.command(&user.db, proof.clone()).await.unwrap();
    assert_eq!(refused.code(), Some(18), "{refused:?}");

    let starts = first_logins(&recorder, &user.name);
    let continues = commands_named(&recorder, "saslContinue");
    let ([(first, start)], [(second, forwarded)]) = (starts.as_slice(), continues.as_slice())
    else {
        panic!("{starts:?} {continues:?}");
    };
    assert_eq!(first, second);
    let expected = doc! {
        "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload,
        "options": { "skipEmptyExchange": true }, "$db": "admin",
    };
    assert_eq!(*start, expected);
    let expected = doc! {
        "saslContinue": 1, "conversationId": 1, "payload": proof.get("payload").cloned(),
        "$db": "admin",
    };
    assert_eq!(*forwarded, expected);
    for connection in recorder.connections() {
        let bytes = [connection.from_client, connection.from_server].concat();
        assert!(!bytes.windows(7).any(|window| window == b"planted"));
    }
}

#[tokio::test]
async fn seawall_forwards_one_of_several_concurrent_logins_of_a_new_user_and_verifies_the_others() {
    let (seawall, recorder) = recorded("").await;
    let user = writer().await;
    let began = Instant::now();
    let mut logins = JoinSet::new();
    for _ in 0..20 {
        let mut client = connect(&seawall).await;
        let login = user.login();
        logins.spawn(async move { client.login(&login).await.unwrap() });
    }
    while let Some(outcome) = logins.join_next().await {
        let outcome = outcome.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
    }
    // Seawall replaces a first login that takes more than 250 ms by another one. So a slow machine
    // may need several first logins.
    let most = 1 + began.elapsed().as_millis() / 250;
    let count = first_logins(&recorder, &user.name).len();
    assert!(
        count >= 1 && u128::try_from(count).unwrap() <= most,
        "expected 1 to {most} first logins, got {count}"
    );
}

/// Seawall forwards the first login of a user to a server. Such a login is unfinished until the
/// client has sent its proof. `limits.introduction_conversations` limits the unfinished logins.
#[tokio::test]
async fn seawall_ends_the_oldest_of_the_unfinished_first_logins_if_their_limit_is_reached() {
    let toml = "[limits]\nintroductions = 1\nintroduction_conversations = 2\n";
    let (seawall, recorder) = recorded(toml).await;
    let mut stalled = Vec::new();
    for _ in 0..2 {
        let (mut client, user) = (connect(&seawall).await, writer().await);
        stall(&mut client, &user).await;
        stalled.push((client, user));
    }
    let user = writer().await;
    let mut client = connect_from(&seawall, [127, 0, 0, 2]).await;
    let begun = client.begin_login(&user.login()).await.unwrap();
    let (mut first, first_user) = stalled.remove(0);
    let connection = first_logins(&recorder, &first_user.name)[0].0;
    let is_closed = || async { !recorder.connections()[connection].is_open };
    eventually(LIMIT, is_closed).await.unwrap();
    let outcome = client.finish_login(&begun).await.unwrap();
    assert!(outcome.is_authenticated(), "{outcome:?}");
    // The client whose login was ended gets an error when it sends its proof, and can then log in
    // again.
    let continued = first
        .command(&first_user.db, sasl_continue(1))
        .await
        .unwrap();
    assert!(!continued.is_ok(), "{continued:?}");
    let outcome = first.login(&first_user.login()).await.unwrap();
    assert!(outcome.is_authenticated(), "{outcome:?}");
}

/// Seawall forwards the first login of a user to a server, and verifies later logins itself.
#[tokio::test]
async fn a_user_can_log_in_while_clients_of_other_users_do_not_finish_their_first_login() {
    let (seawall, recorder) = recorded("[limits]\nintroductions = 1\n").await;
    let (first, second, user) = (writer().await, writer().await, writer().await);
    let mut stalled = connect(&seawall).await;
    stall(&mut stalled, &first).await;
    let mut queued = connect(&seawall).await;
    let mut start = sasl_start(&second.name);
    start.insert("$db", "admin");
    queued.send(&OpMsg::new(start)).await.unwrap();
    logged_in(&seawall, &user.login()).await;
    assert_eq!(first_logins(&recorder, &first.name).len(), 1);
    assert_eq!(first_logins(&recorder, &user.name).len(), 1);
}

/// Seawall forwards the first login of a user to a server. Other logins of this user wait for it.
#[tokio::test]
async fn seawall_ends_an_unfinished_first_login_so_the_next_login_of_the_user_waits_only_briefly() {
    let (seawall, recorder) = recorded("").await;
    let user = writer().await;
    let mut leader = connect(&seawall).await;
    stall(&mut leader, &user).await;
    logged_in(&seawall, &user.login()).await;
    let connection = first_logins(&recorder, &user.name)[0].0;
    let is_closed = || async { !recorder.connections()[connection].is_open };
    eventually(LIMIT, is_closed).await.unwrap();
    let late = leader.command(&user.db, sasl_continue(1)).await.unwrap();
    assert_eq!(late.code(), Some(17), "{late:?}");
    let outcome = leader.login(&user.login()).await.unwrap();
    assert!(outcome.is_authenticated(), "{outcome:?}");
}

#[tokio::test]
async fn an_unfinished_second_login_of_a_logged_in_client_does_not_block_other_logins() {
    let (seawall, _recorder) = recorded("[limits]\nintroduction_conversations = 1\n").await;
    let mut client = logged_in(&seawall, &writer().await.login()).await;
    stall(&mut client, &writer().await).await;
    let user = writer().await;
    let is_served = || async { log_in(&seawall, &user.login()).await.1.is_authenticated() };
    eventually(LIMIT, is_served).await.unwrap();
    // Seawall has ended the stalled login, so the late message gets an error. The client is still
    // logged in as the user of its earlier login.
    let late = client.command("admin", sasl_continue(1)).await.unwrap();
    assert_eq!(late.code(), Some(17), "{late:?}");
    assert_eq!(users_of(&mut client).await.len(), 1);
}

#[tokio::test]
async fn a_client_whose_login_was_refused_can_log_in_on_the_same_connection() {
    let seawall = seawall("").await;
    for mechanism in Mechanism::ALL {
        let user = writer().await;
        // In the first round, Seawall does not know the user's keys yet, so it forwards the logins
        // to the server. In the second round, it verifies the logins of this user itself.
        for _ in 0..2 {
            let mut client = connect(&seawall).await;
            let unknown = seawall_tests::raw::Login::new("admin", &unique_name("nobody"), "p");
            let wrong = with_password(&user, "wrong").mechanism(mechanism);
            let mut elsewhere = user.login();
            elsewhere.db = "test".to_owned();
            for login in [unknown, wrong, elsewhere] {
                let outcome = client.login(&login).await.unwrap();
                assert_eq!(outcome.code(), Some(18), "{outcome:?}");
                let refused = find(&mut client, &user.name).await;
                assert_eq!(refused.code(), Some(13));
            }
            let good = user.login().mechanism(mechanism);
            let outcome = client.login(&good).await.unwrap();
            assert!(outcome.is_authenticated(), "{outcome:?}");
            assert!(find(&mut client, &user.name).await.is_ok());
        }
    }
}

#[tokio::test]
async fn a_login_works_only_with_a_mechanism_that_the_user_has() {
    let seawall = seawall("").await;
    for (has, lacks) in [(0, 1), (1, 0)] {
        let (has, lacks) = (Mechanism::ALL[has], Mechanism::ALL[lacks]);
        let user = NewUser::new("admin", &unique_name("user"), "p").mechanisms(&[has]);
        create_user(&root().await, &user).await.unwrap();
        for _ in 0..2 {
            let (_, outcome) = log_in(&seawall, &user.login().mechanism(lacks)).await;
            assert_eq!(outcome.code(), Some(18), "{outcome:?}");
            logged_in(&seawall, &user.login()).await;
        }
    }
}

#[tokio::test]
async fn failed_logins_of_unknown_users_are_cached_for_a_second() {
    let (seawall, recorder) = recorded("").await;
    let name = unique_name("nobody");
    let user = NewUser::new("admin", &name, "p");
    let began = Instant::now();
    for _ in 0..20 {
        let (_, outcome) = log_in(&seawall, &user.login()).await;
        assert_eq!(outcome.code(), Some(18), "{outcome:?}");
    }
    let most = 1 + began.elapsed().as_secs();
    let count = first_logins(&recorder, &name).len();
    assert!(
        count >= 1 && u64::try_from(count).unwrap() <= most,
        "expected 1 to {most} first logins, got {count}"
    );
    create_user(&root().await, &user).await.unwrap();
    let logs_in = || async { log_in(&seawall, &user.login()).await.1.is_authenticated() };
    eventually(LIMIT, logs_in).await.unwrap();
}

/// Runs valid and invalid steps of logins, and returns the error code of each step. Seawall and a
/// server must return the same codes. After some steps, also checks which users are logged in on
/// the connection.
async fn conversation_codes(client: &mut RawClient, users: &[NewUser; 3]) -> Vec<String> {
    let [own, same_db, other_db] = users;
    let mut codes = Vec::new();
    let mut note = |what: &str, reply: &RawReply| codes.push(format!("{what}: {:?}", reply.code()));
    let db = own.db.as_str();

    let reply = client.command(db, sasl_continue(1)).await.unwrap();
    note("continue without start", &reply);
    stall(client, own).await;
    let reply = client.command(db, sasl_continue(2)).await.unwrap();
    note("another conversation", &reply);
    stall(client, own).await;
    let reply = client.command(db, sasl_continue(1_i64)).await.unwrap();
    note("64 bits", &reply);
    stall(client, own).await;
    let reply = client.command("test", sasl_continue(1)).await.unwrap();
    note("another database", &reply);
    stall(client, own).await;
    let reply = client.command(db, sasl_continue(1)).await.unwrap();
    note("another nonce", &reply);
    for mechanism in ["PLAIN", "SCRAM-SHA-512", ""] {
        let mut start = sasl_start(&own.name);
        start.insert("mechanism", mechanism);
        let reply = client.command(db, start).await.unwrap();
        note(mechanism, &reply);
    }
    for payload in [
        "",
        "garbage",
        "p=tls-unique,,n=a,r=abcdefgh",
        "n,,n=,r=abcdefgh",
    ] {
        let mut start = sasl_start(&own.name);
        start.insert("payload", binary(payload));
        let reply = client.command(db, start).await.unwrap();
        note(payload, &reply);
    }
    let reply = client.command(db, doc! { "logout": 1 }).await.unwrap();
    note("logout before login", &reply);

    for user in [own, own, same_db, other_db, own] {
        let outcome = client.login(&user.login()).await.unwrap();
        note("login", outcome.replies.last().unwrap());
        assert_eq!(users_of(client).await, [own.name.as_str()]);
    }
    let outcome = client.login(&with_password(own, "wrong")).await.unwrap();
    note("wrong password", outcome.replies.last().unwrap());
    note("find after wrong password", &find(client, &own.name).await);
    let reply = client.command("test", doc! { "logout": 1 }).await.unwrap();
    note("logout from another database", &reply);
    note(
        "find after logout from another database",
        &find(client, &own.name).await,
    );
    let reply = client.command(db, doc! { "logout": 1 }).await.unwrap();
    note("logout", &reply);
    assert_eq!(users_of(client).await, [""; 0]);
    note("find after logout", &find(client, &own.name).await);
    let outcome = client.login(&same_db.login()).await.unwrap();
    note("another user", outcome.replies.last().unwrap());
    assert_eq!(users_of(client).await, [same_db.name.as_str()]);
    note("data of the first user", &find(client, &own.name).await);
    codes
}

#[tokio::test]
async fn errors_in_a_scram_conversation_have_the_same_codes_as_on_a_server() {
    let seawall = seawall("").await;
    let other_db = NewUser::new(&unique_name("db"), "other", "p");
    create_user(&root().await, &other_db).await.unwrap();
    let users = [writer().await, writer().await, other_db];
    // In the first round, Seawall does not know the users' keys yet, so it forwards the logins to a
    // server. In the second round, it verifies the logins itself.
    let mut codes = Vec::new();
    for _ in 0..2 {
        codes.push(conversation_codes(&mut connect(&seawall).await, &users).await);
    }
    for code in [5_626_701, 5_626_702] {
        let refused = format!("login: Some({code})");
        assert!(codes[0].contains(&refused), "{codes:?}");
    }
    assert_eq!(codes[0], codes[1]);
    // Servers before 6.0 let a second user log in on a connection. Seawall refuses it, as newer
    // servers do.
    if server_version().await.unwrap() >= ONE_USER {
        let mut direct = server().await.raw_client().await.unwrap();
        let expected = conversation_codes(&mut direct, &users).await;
        assert_eq!(codes[0], expected);
    }
}

/// The first MongoDB version in which only one user can be logged in on a connection.
const ONE_USER: ServerVersion = ServerVersion(6, 0, 0);
/// Time limit of each wait. Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(30);
