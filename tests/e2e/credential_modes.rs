//! Tests of the values of `auth.credentials`. For example, Seawall reads the users' SCRAM keys with
//! a service account (`lookup`), the configuration contains the users (`users`), or clients need no
//! login (`none`).

use std::time::Duration;

use bson::{Document, doc};
use futures_util::future::join_all;
use seawall_api::{AdminClient, Reload, Stalls, Status};
use seawall_tests::{
    eventually::eventually,
    mongod::{
        FailTimes, NewUser, Options, ReplicaSet, RunCommand, Standalone, create_user, fail_command,
        unique_name,
    },
    process::Process,
    raw::{Mechanism, RawClient},
    recorder::{Cut, Recorder},
    scratch::Scratch,
    seawall::Seawall,
};

use crate::scene::{
    connect, connect_from, find, first_logins, insert, log_in, logged_in, root, seawall,
    seawall_at, server, update_user, with_password, writer,
};

pub(crate) async fn mode(seawall: &Seawall) -> String {
    let status: Status = seawall.api("/api/v1/status").await;
    status.credentials
}

/// Creates an account whose only right is to look up users' SCRAM keys. Returns the account's
/// connection string.
async fn service_uri(address: std::net::SocketAddr) -> String {
    let (root, name) = (root().await, unique_name("service"));
    let privilege = doc! { "resource": { "db": "", "collection": "" }, "actions": ["viewUser"] };
    let role = doc! { "createRole": &name, "privileges": [privilege], "roles": [] };
    root.run("admin", role).await.unwrap();
    let account = NewUser::new("admin", &name, "service").role(&name, "admin");
    create_user(&root, &account).await.unwrap();
    format!("mongodb://{name}:service@{address}/?authSource=admin&directConnection=true")
}

/// With `auth.credentials = "lookup"`, Seawall reads the users' SCRAM keys with a service account.
#[tokio::test]
async fn with_credentials_lookup_seawall_verifies_logins_itself_and_forwards_none_to_a_server() {
    let recorder = Recorder::start(server().await.address()).await.unwrap();
    let seawall = seawall_at(&service_uri(recorder.address()).await, "").await;
    assert_eq!(mode(&seawall).await, "lookup");
    let root = root().await;
    for mechanism in Mechanism::ALL {
        let db = unique_name("db");
        let user = NewUser::new(&db, &unique_name("user"), "secret")
            .mechanisms(&[mechanism])
            .role("read", &db);
        create_user(&root, &user).await.unwrap();
        let (_, outcome) = log_in(&seawall, &with_password(&user, "wrong")).await;
        assert_eq!(outcome.code(), Some(18), "{outcome:?}");
        let mut client = logged_in(&seawall, &user.login()).await;
        // Seawall itself verified the client's SCRAM proof, so no login reached the server.
        assert_eq!(first_logins(&recorder, &user.name), []);
        assert!(find(&mut client, &db).await.is_ok());
        assert_eq!(insert(&mut client, &db).await.code(), Some(13));
    }
}

/// With `auth.credentials = "lookup"`, Seawall reads the users' SCRAM keys with a service account.
#[tokio::test]
async fn credentials_lookup_refuses_unknown_users_dropped_users_and_forbidden_client_addresses() {
    let seawall = seawall_at(&service_uri(server().await.address()).await, "").await;
    let root = root().await;
    let unknown = NewUser::new("admin", &unique_name("nobody"), "p");
    let (_, outcome) = log_in(&seawall, &unknown.login()).await;
    assert_eq!(outcome.code(), Some(18), "{outcome:?}");

    let restricted = NewUser::new("admin", &unique_name("user"), "p")
        .restriction(doc! { "clientSource": ["127.0.0.1"] });
    create_user(&root, &restricted).await.unwrap();
    logged_in(&seawall, &restricted.login()).await;
    let mut outside = connect_from(&seawall, [127, 0, 0, 2]).await;
    let outcome = outside.login(&restricted.login()).await.unwrap();
    assert_eq!(outcome.code(), Some(18), "{outcome:?}");

    let user = writer().await;
    let mut connected = logged_in(&seawall, &user.login()).await;
    assert!(find(&mut connected, &user.name).await.is_ok());
    update_user(&root, &user, doc! { "pwd": "new" }).await;
    let new = with_password(&user, "new");
    let (mut refused, mut last) = (0, false);
    for _ in 0..3 {
        last = log_in(&seawall, &new).await.1.is_authenticated();
        refused += usize::from(!last);
    }
    assert!(last && refused <= 1, "{refused} of 3 logins refused");
    let command = doc! { "dropUser": &user.name };
    root.run("admin", command).await.unwrap();
    assert_eq!(find(&mut connected, &user.name).await.code(), Some(13));
    let is_refused = || async { log_in(&seawall, &new).await.1.code() == Some(18) };
    eventually(LIMIT, is_refused).await.unwrap();
    assert_eq!(find(&mut connected, &user.name).await.code(), Some(13));
}

#[tokio::test]
async fn seawall_can_look_up_the_scram_keys_of_a_user_right_after_an_election() {
    let set = ReplicaSet::start(3, Options::with_auth()).await.unwrap();
    let root = set.administrator().await.unwrap();
    let users = ["early", "late"].map(|name| NewUser::new("admin", name, "secret"));
    for user in &users {
        create_user(&root, user).await.unwrap();
    }
    let seawall = seawall_at(&set.root_uri(), "").await;
    assert_eq!(mode(&seawall).await, "lookup");
    logged_in(&seawall, &users[0].login()).await;
    set.step_down().await.unwrap();
    logged_in(&seawall, &users[1].login()).await;
}

#[tokio::test]
async fn a_failed_login_of_the_service_account_closes_no_pooled_connection() {
    let uri = service_uri(server().await.address()).await;
    let seawall = seawall_at(&uri, "").await;
    let user = writer().await;
    let mut client = logged_in(&seawall, &user.login()).await;
    assert!(find(&mut client, &user.name).await.is_ok());
    let account = uri["mongodb://".len()..].split(':').next().unwrap();
    let change = doc! { "updateUser": account, "pwd": "changed" };
    root().await.run("admin", change).await.unwrap();
    // Seawall's open connections stay logged in as the service account. So the test causes several
    // lookups at the same time, until Seawall opens a new connection, whose login fails.
    let has_lookup_failed = async || {
        let logins = (0..8).map(async |_| {
            let unknown = NewUser::new("admin", &unique_name("unknown"), "p");
            log_in(&seawall, &unknown.login()).await.1.code()
        });
        let codes = join_all(logins).await;
        codes.iter().any(|code| *code != Some(18))
    };
    eventually(LIMIT, has_lookup_failed).await.unwrap();
    assert!(find(&mut client, &user.name).await.is_ok());
    let name = "seawall_server_connections_closed_total";
    assert_eq!(seawall.metric(name, &["reason=\"stale\""]).await, 0.0);
}

/// The samples are replies to `serverStatus`.
#[tokio::test]
async fn the_servers_are_sampled_through_the_service_account() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let seawall = seawall_at(&server.root_uri(), "pulse.interval_ms = 100\n").await;
    let has_samples = async || {
        let stalls: Stalls = seawall.api("/api/v1/stalls").await;
        stalls.pulse.answered.unwrap_or(0) > 1
    };
    eventually(LIMIT, has_samples).await.unwrap();
}

/// A user's SCRAM keys, as TOML tables for the configuration file.
pub(crate) async fn configured_keys(user: &NewUser) -> String {
    let command =
        doc! { "usersInfo": { "user": &user.name, "db": &user.db }, "showCredentials": true };
    let reply = root().await.run("admin", command).await.unwrap();
    let users = reply.get_array("users").unwrap();
    let credentials = users[0].as_document().unwrap();
    let credentials = credentials.get_document("credentials").unwrap();
    let section = |(mechanism, table): (Mechanism, &str)| {
        let keys: &Document = credentials.get_document(mechanism.name()).unwrap();
        let text = |name| keys.get_str(name).unwrap();
        format!(
            "[auth.users.{table}]\nsalt = {:?}\niterations = {}\nstored_key = {:?}\nserver_key = {:?}\n",
            text("salt"),
            keys.get_i32("iterationCount").unwrap(),
            text("storedKey"),
            text("serverKey"),
        )
    };
    let tables = [
        (Mechanism::ScramSha1, "scram_sha_1"),
        (Mechanism::ScramSha256, "scram_sha_256"),
    ];
    tables.map(section).concat()
}

#[tokio::test]
async fn configured_users_log_in_and_others_are_refused() {
    let (by_password, by_keys, absent) = (writer().await, writer().await, writer().await);
    let toml = format!(
        "[[auth.users]]\nname = {:?}\nsource = \"admin\"\npassword = \"secret\"\n\
         [[auth.users]]\nname = {:?}\nsource = \"admin\"\n{}",
        by_password.name,
        by_keys.name,
        configured_keys(&by_keys).await,
    );
    let seawall = seawall(&toml).await;
    assert_eq!(mode(&seawall).await, "users");
    for user in [&by_password, &by_keys] {
        for mechanism in Mechanism::ALL {
            let wrong = with_password(user, "wrong").mechanism(mechanism);
            let (_, outcome) = log_in(&seawall, &wrong).await;
            assert_eq!(outcome.code(), Some(18), "{outcome:?}");
            for _ in 0..2 {
                let login = user.login().mechanism(mechanism);
                let mut client = logged_in(&seawall, &login).await;
                assert!(insert(&mut client, &user.name).await.is_ok());
                assert_eq!(insert(&mut client, "another").await.code(), Some(13));
            }
        }
    }
    let (_, outcome) = log_in(&seawall, &absent.login()).await;
    assert_eq!(outcome.code(), Some(18), "{outcome:?}");
}

#[tokio::test]
async fn no_login_is_needed_without_access_control() {
    let open = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&open.uri()).await;
    assert_eq!(mode(&seawall).await, "none");
    let mut client = RawClient::connect(seawall.address().parse().unwrap())
        .await
        .unwrap();
    assert!(insert(&mut client, "test").await.is_ok());
    assert!(find(&mut client, "test").await.is_ok());
}

#[tokio::test]
async fn a_server_without_users_gives_clients_of_seawall_no_rights() {
    // A server without users lets any client on its own host create the first user. Seawall runs on
    // this host, but its clients must not get this right.
    let options = Options {
        arguments: vec!["--auth".to_owned()],
        ..Options::default()
    };
    let empty = Standalone::start(options).await.unwrap();
    let seawall = seawall_at(&empty.uri(), "").await;
    assert_eq!(mode(&seawall).await, "self");
    let first_user = doc! { "createUser": "first", "pwd": "p", "roles": ["root"] };
    let role = doc! { "createRole": "r", "privileges": [], "roles": [] };
    let mut client = connect(&seawall).await;
    for command in [&first_user, &role] {
        let reply = client.command("admin", command.clone()).await.unwrap();
        assert_eq!(reply.code(), Some(13), "{reply:?}");
    }
    let mut direct = empty.raw_client().await.unwrap();
    assert!(direct.command("admin", first_user).await.unwrap().is_ok());
    logged_in(&seawall, &NewUser::new("admin", "first", "p").login()).await;
}

/// With the credentials `none`, clients need no login. With `self`, Seawall reads the SCRAM keys of
/// a user from a server, with the rights of this user.
///
/// The server has access control from the start, but the configuration says `none`. To Seawall,
/// this looks as if access control had been switched on later.
#[tokio::test]
async fn credentials_change_from_none_to_self_after_access_control_is_switched_on() {
    let seawall = seawall("[auth]\ncredentials = \"none\"\n").await;
    assert_eq!(mode(&seawall).await, "none");
    let mut early = connect(&seawall).await;
    assert_eq!(find(&mut early, "test").await.code(), Some(13));
    assert_eq!(mode(&seawall).await, "self");
    let user = writer().await;
    let mut client = logged_in(&seawall, &user.login()).await;
    assert!(insert(&mut client, &user.name).await.is_ok());
    let outcome = early.login(&user.login()).await.unwrap();
    assert!(outcome.is_authenticated(), "{outcome:?}");
    assert!(insert(&mut early, &user.name).await.is_ok());
}

/// The server has access control from the start, but the configuration says `none`. To Seawall,
/// this looks as if access control had been switched on later.
#[tokio::test]
async fn a_client_must_log_in_in_time_after_access_control_is_switched_on() {
    let toml = "[auth]\ncredentials = \"none\"\nauthentication_timeout_ms = 500\n";
    let seawall = seawall(toml).await;
    let mut client = connect(&seawall).await;
    assert_eq!(find(&mut client, "test").await.code(), Some(13));
    assert!(client.read_to_close().await.unwrap().is_empty());
}

/// A server that is shutting down may refuse every command with code 11600.
#[tokio::test]
async fn an_error_of_a_server_that_is_shutting_down_does_not_make_logins_required() {
    let open = Standalone::start(Options::default()).await.unwrap();
    let recorder = Recorder::start(open.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = seawall_at(&uri, "").await;
    assert_eq!(mode(&seawall).await, "none");
    let mut early = connect(&seawall).await;
    assert!(insert(&mut early, "test").await.is_ok());
    let failure = doc! { "failCommands": ["getParameter"], "errorCode": 11600 };
    let administrator = open.administrator().await.unwrap();
    fail_command(&administrator, FailTimes::Count(2), failure)
        .await
        .unwrap();
    recorder.cut_all(Cut::Close);
    for client in [&mut early, &mut connect(&seawall).await] {
        let reply = find(client, "test").await;
        assert!(reply.is_ok(), "{reply:?}");
    }
    assert_eq!(mode(&seawall).await, "none");
}

/// Time limit of each wait. Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(30);

/// `deployment.uri_file` names a file with the connection string, which contains the password. A
/// tool that rotates secrets replaces this file.
#[tokio::test]
async fn a_reload_adopts_the_new_password_of_the_service_account_and_refuses_a_wrong_password() {
    let before = service_uri(server().await.address()).await;
    let (scratch, root) = (Scratch::create().unwrap(), root().await);
    let uri_file = scratch.write("uri", &before).unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri_file = {uri_file:?}\nauth.credentials = \"lookup\"\n"
    );
    let process = Process::serve(&scratch.write("seawall.toml", toml).unwrap()).await;
    let admin = AdminClient::new(process.admin(), None, None).unwrap();
    let reload = async |password: &str| -> Reload {
        let uri = before.replace(":service@", &format!(":{password}@"));
        scratch.write("uri", uri).unwrap();
        admin.post("/api/v1/reload").await.unwrap()
    };
    let refused = reload("wrong").await;
    let [problem] = &*refused.problems else {
        panic!("{refused:?}")
    };
    assert!(problem.contains("refuses the new password"), "{problem}");

    let name = before["mongodb://".len()..].split(':').next().unwrap();
    let change = doc! { "updateUser": name, "pwd": "rotated" };
    root.run("admin", change).await.unwrap();
    let applied = reload("rotated").await;
    assert!(applied.applied, "{applied:?}");
    let changes: Vec<_> = (applied.changes.iter())
        .map(|change| (&*change.key, change.needs_restart))
        .collect();
    assert_eq!(changes, [("deployment.uri", false)]);
    // Seawall has logged in with the old password. To look up users, Seawall must log in with the
    // new password.
    let user = writer().await;
    let is_served = async || {
        let address = process.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        client
            .login(&user.login())
            .await
            .unwrap()
            .is_authenticated()
    };
    eventually(Duration::from_secs(60), is_served)
        .await
        .unwrap();
    // Any other change of the connection string needs a restart.
    let other = before.replace("directConnection=true", "appName=other");
    scratch.write("uri", other).unwrap();
    let pending: Reload = admin.post("/api/v1/reload").await.unwrap();
    assert!(pending.changes.iter().all(|change| change.needs_restart));
}

/// A secondary refuses reads that do not allow secondaries. This includes the reading of users'
/// keys.
#[tokio::test]
async fn users_log_in_and_read_if_the_only_server_is_a_secondary() {
    let options = Options {
        priorities: vec![1, 0],
        ..Options::with_auth()
    };
    let set = ReplicaSet::start(2, options).await.unwrap();
    let db = unique_name("db");
    let user = NewUser::new(&db, "user", "secret").role("read", &db);
    let administrator = set.administrator().await.unwrap();
    create_user(&administrator, &user).await.unwrap();
    let secondary = set.members()[1].address();
    let uri = format!("mongodb://{secondary}/?directConnection=true");
    let seawall = seawall_at(&uri, "").await;
    for _ in 0..2 {
        let mut client = logged_in(&seawall, &user.login()).await;
        let find = doc! { "find": "c", "$readPreference": { "mode": "secondaryPreferred" } };
        let reply = client.command(&db, find).await.unwrap();
        assert!(reply.is_ok(), "{reply:?}");
    }
}
