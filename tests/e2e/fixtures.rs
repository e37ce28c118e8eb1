//! Tests of the fixtures that all other tests rely on: servers, the raw client (which sends any
//! bytes), and the recorder (a proxy that records the traffic of the server behind it). The tests
//! use real servers.

use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use bson::{Document, doc};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use seawall_tests::eventually::eventually;
use seawall_tests::mongod::{
    FailTimes, NewUser, Options, ReplicaSet, Standalone, clear_fail_command, create_user,
    fail_command, shared_replica_set, shared_standalone, unique_name,
};
use seawall_tests::raw::message::{EXHAUST_ALLOWED, MORE_TO_COME};
use seawall_tests::raw::{
    KeyCache, Mechanism, OpMsg, RawClient, RawError, Section, Start, Verdict,
};
use seawall_tests::recorder::{Cut, Recorder};
use seawall_tests::scratch::Scratch;

#[tokio::test]
async fn raw_client_can_log_in_with_each_mechanism_and_begin_the_login_in_each_way() {
    let server = shared_standalone().await.unwrap();
    let db = unique_name("login");
    let user = NewUser::new(&db, "a=b,c.d", "pass word").role("readWrite", &db);
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let keys = KeyCache::default();
    let starts = [
        Start::Command,
        Start::SpeculativeHello,
        Start::SpeculativeLegacyHello,
    ];
    for mechanism in Mechanism::ALL {
        for start in starts {
            for has_empty_exchange in [false, true] {
                let mut login = user.login().mechanism(mechanism).start(start).keys(&keys);
                login.skip_empty_exchange = !has_empty_exchange;
                let mut client = server.raw_client().await.unwrap();
                let outcome = client.login(&login).await.unwrap();
                assert!(outcome.is_authenticated(), "{login:?}: {outcome:?}");
                let reply_count = 2 + usize::from(has_empty_exchange);
                assert_eq!(outcome.replies.len(), reply_count, "{login:?}");
                let find = client.expect_ok(&db, doc! { "find": "c" }).await;
                assert_eq!(find.cursor_id(), Some(0));
            }
        }
    }
}

#[tokio::test]
async fn a_login_that_a_server_refuses_gets_a_reply_and_leaves_the_connection_usable() {
    let server = shared_standalone().await.unwrap();
    let db = unique_name("refused");
    let user = NewUser::new(&db, "user", "right").mechanisms(&[Mechanism::ScramSha1]);
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let mut client = server.raw_client().await.unwrap();
    let mut wrong = user.login();
    wrong.password = "wrong".to_owned();
    let other_mechanism = user.login().mechanism(Mechanism::ScramSha256);
    for login in [
        wrong,
        other_mechanism.clone(),
        other_mechanism.start(Start::SpeculativeHello),
    ] {
        let outcome = client.login(&login).await.unwrap();
        assert_eq!(
            (outcome.verdict.clone(), outcome.code()),
            (Verdict::Refused, Some(18))
        );
    }
    let find = client.command(&db, doc! { "find": "c" }).await.unwrap();
    assert_eq!((find.is_ok(), find.code()), (false, Some(13)));
    assert!(
        client
            .login(&user.login())
            .await
            .unwrap()
            .is_authenticated()
    );
}

#[tokio::test]
async fn a_server_refuses_a_user_whose_restriction_excludes_the_client_address() {
    let server = shared_standalone().await.unwrap();
    let db = unique_name("restricted");
    let elsewhere = doc! { "clientSource": ["192.0.2.0/24"] };
    let user = NewUser::new(&db, "user", "password").restriction(elsewhere);
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let mut client = server.raw_client().await.unwrap();
    let outcome = client.login(&user.login()).await.unwrap();
    assert_eq!(outcome.verdict, Verdict::Refused);
}

#[tokio::test]
async fn raw_client_can_send_op_query_and_op_msg_with_any_flags_and_sections() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let mut client = server.raw_client().await.unwrap();
    let hello = client.legacy_hello(doc! {}).await.unwrap();
    assert_eq!((hello.header.op_code, hello.is_ok()), (1, true));

    let insert = OpMsg::new(doc! { "insert": "c", "$db": "test" });
    let insert = insert.sequence("documents", vec![doc! { "_id": 1 }, doc! { "_id": 2 }]);
    let reply = client.exchange(&insert.checksum()).await.unwrap();
    assert_eq!(reply.body.get_i32("n").unwrap(), 2);
    assert_eq!(reply.checksum_fits(), Some(true));

    let silent = doc! { "insert": "c", "documents": [{ "_id": 3 }], "$db": "test" };
    client
        .send(&OpMsg::new(silent).flags(MORE_TO_COME))
        .await
        .unwrap();
    let reply = client.command("test", doc! { "count": "c" }).await.unwrap();
    assert_eq!(
        (reply.checksum_fits(), reply.body.get_i32("n").unwrap()),
        (None, 3)
    );

    let find = doc! { "find": "c", "batchSize": 0 };
    let cursor_id = client
        .command("test", find)
        .await
        .unwrap()
        .cursor_id()
        .unwrap();
    let more = doc! { "getMore": cursor_id, "collection": "c", "batchSize": 1, "$db": "test" };
    let more = OpMsg::new(more).flags(EXHAUST_ALLOWED);
    let mut reply = client.exchange(&more).await.unwrap();
    let mut reply_count = 1;
    while reply.has_more_to_come() {
        reply = client.read_reply().await.unwrap();
        reply_count += 1;
    }
    assert!(
        reply_count >= 3,
        "expected at least 3 replies, got {reply_count}"
    );

    let unknown_kind = OpMsg {
        sections: vec![Section::Bytes(b"\x07".to_vec())],
        ..OpMsg::new(doc! {})
    };
    assert_eq!(
        client.exchange(&unknown_kind).await.unwrap().code(),
        Some(40432)
    );
}

#[tokio::test]
async fn raw_client_reports_a_close_and_a_timeout_differently() {
    let server = shared_standalone().await.unwrap();
    let mut client = server.raw_client().await.unwrap();
    client.send_bytes(&[0xFF; 64]).await.unwrap();
    assert!(client.read_to_close().await.unwrap().is_empty());

    let mut client = server.raw_client().await.unwrap();
    client.set_limit(Duration::from_millis(50));
    let silence = client.read_reply().await.unwrap_err();
    assert!(matches!(silence, RawError::TimedOut { .. }), "{silence:?}");
}

#[tokio::test]
async fn raw_client_connects_over_a_unix_socket_and_over_tls() {
    let options = Options {
        auth: true,
        tls: true,
        ..Options::default()
    };
    let server = Standalone::start(options).await.unwrap();
    let ping = doc! { "ping": 1 };
    server
        .client()
        .unwrap()
        .database("admin")
        .run_command(ping.clone())
        .await
        .unwrap();
    let mut client = server.raw_client().await.unwrap();
    client.expect_ok("admin", ping.clone()).await;
    let mut plain = RawClient::connect(server.address()).await.unwrap();
    assert!(plain.command("admin", ping.clone()).await.is_err());

    let options = Options {
        unix_socket: true,
        ..Options::default()
    };
    let server = Standalone::start(options).await.unwrap();
    let socket = server.mongod().unix_socket().unwrap();
    let mut client = RawClient::connect_unix(&socket).await.unwrap();
    client.expect_ok("admin", ping).await;
}

#[tokio::test]
async fn replica_set_members_have_the_configured_tags_and_priorities() {
    let options = Options {
        tags: vec![Vec::new(), vec![("zone".to_owned(), "b".to_owned())]],
        priorities: vec![1, 0],
        ..Options::with_auth()
    };
    let set = ReplicaSet::start(2, options).await.unwrap();
    let client = set.client().await.unwrap();
    let admin = client.database("admin");
    let reply = admin
        .run_command(doc! { "replSetGetConfig": 1 })
        .await
        .unwrap();
    let members = reply
        .get_document("config")
        .unwrap()
        .get_array("members")
        .unwrap();
    let second = members[1].as_document().unwrap();
    assert_eq!(second.get_document("tags").unwrap(), &doc! { "zone": "b" });
    assert_eq!(set.primary().await.unwrap().port(), set.members()[0].port());
    assert_eq!(set.secondaries().await[0].port(), set.members()[1].port());
}

#[tokio::test]
async fn replica_set_start_waits_until_the_member_with_the_highest_priority_is_primary() {
    let options = Options {
        priorities: vec![1, 1, 9],
        ..Options::with_auth()
    };
    let set = ReplicaSet::start(3, options).await.unwrap();
    let preferred = set.direct_client(&set.members()[2]).unwrap();
    let admin = preferred.database("admin");
    let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
    assert!(hello.get_bool("isWritablePrimary").unwrap());
}

#[tokio::test]
async fn root_user_can_connect_to_a_replica_set_with_tls() {
    let options = Options {
        tls: true,
        ..Options::with_auth()
    };
    let set = ReplicaSet::start(1, options).await.unwrap();
    let client = set.client().await.unwrap();
    let names = client.list_database_names().await.unwrap();
    assert!(names.contains(&"admin".to_owned()));
    let primary = set.primary().await.unwrap();
    let mut raw = set.raw_client(primary).await.unwrap();
    assert!(raw.hello(doc! {}).await.unwrap().is_ok());
}

#[tokio::test]
async fn shared_replica_set_replicates_and_every_member_accepts_commands() {
    let set = shared_replica_set().await.unwrap();
    let db = unique_name("replicated");
    let client = set.client().await.unwrap();
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }], "writeConcern": { "w": 3 } };
    client.database(&db).run_command(insert).await.unwrap();
    assert_eq!(set.secondaries().await.len(), 2);
    for member in set.members() {
        let direct = set.direct_client(member).unwrap();
        let found = direct
            .database(&db)
            .run_command(doc! { "count": "c" })
            .await
            .unwrap();
        assert_eq!(found.get_i32("n").unwrap(), 1);
    }
}

#[tokio::test]
async fn replica_set_recovers_after_its_primary_steps_down_or_is_suspended_or_is_killed() {
    let mut set = ReplicaSet::start(3, Options::default()).await.unwrap();
    let first = set.primary().await.unwrap().address();
    let second = set.step_down().await.unwrap().address();
    assert_ne!(first, second);

    // A suspended primary is replaced, and steps down when it resumes.
    set.member_at(second).unwrap().stop_process().unwrap();
    let others = || async {
        let primary = set.primary().await.ok()?;
        (primary.address() != second).then_some(primary.address())
    };
    // A member that has stepped down cannot become primary for 30 s. If only this member has the
    // newest entry of the oplog, the election takes that long.
    let limit = 3 * LIMIT;
    let third = eventually(limit, others).await.unwrap();
    set.member_at(second).unwrap().continue_process().unwrap();

    let killed = set.member_at_mut(third).unwrap();
    let port = killed.port();
    killed.kill().await.unwrap();
    assert_eq!(killed.pid(), None);
    killed.restart().await.unwrap();
    assert_eq!(killed.port(), port);
    let is_complete = || async { set.secondaries().await.len() == 2 };
    eventually(LIMIT, is_complete).await.unwrap();
}

#[tokio::test]
async fn a_restarted_mongod_keeps_its_data_and_a_dropped_mongod_removes_its_data() {
    let mut server = Standalone::start(Options::with_auth()).await.unwrap();
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
    server
        .client()
        .unwrap()
        .database("test")
        .run_command(insert)
        .await
        .unwrap();
    server.mongod().terminate().await.unwrap();
    assert!(server.mongod().stop_process().is_err());
    server.mongod_mut().restart().await.unwrap();
    let db = server.client().unwrap().database("test");
    let count = db.run_command(doc! { "count": "c" }).await.unwrap();
    assert_eq!(count.get_i32("n").unwrap(), 1);
    let directory = server.mongod().data_dir().to_owned();
    let pid = server.mongod().pid().unwrap();
    drop(server);
    assert!(!directory.exists());
    assert!(test_kill_process(pid).is_err());
}

#[tokio::test]
async fn a_fail_point_makes_commands_fail_the_requested_number_of_times() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let driver = server.client().unwrap();
    let data = doc! { "failCommands": ["find"], "errorCode": 91 };
    fail_command(&driver, FailTimes::Count(1), data.clone())
        .await
        .unwrap();
    let mut client = server.raw_client().await.unwrap();
    let find = || doc! { "find": "c" };
    assert_eq!(
        client.command("test", find()).await.unwrap().code(),
        Some(91)
    );
    client.expect_ok("test", find()).await;
    fail_command(&driver, FailTimes::Always, data)
        .await
        .unwrap();
    for _ in 0..3 {
        assert!(!client.command("test", find()).await.unwrap().is_ok());
    }
    clear_fail_command(&driver).await.unwrap();
    client.expect_ok("test", find()).await;
}

#[tokio::test]
async fn recorder_shows_the_messages_that_reached_the_server() {
    let server = shared_standalone().await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let mut client = RawClient::connect(recorder.address()).await.unwrap();
    client.command("admin", doc! { "ping": 1 }).await.unwrap();
    client.command("admin", doc! { "ping": 2 }).await.unwrap();
    let recording = recorder.connections().remove(0);
    let names: Vec<Document> = recording.commands();
    assert_eq!(
        names,
        [
            doc! { "ping": 1, "$db": "admin" },
            doc! { "ping": 2, "$db": "admin" }
        ]
    );
    assert_eq!(recording.messages_from_server().len(), 2);
    assert!(recording.is_open && !recording.is_truncated);
    recorder.forget();
    assert!(recorder.connections().remove(0).from_client.is_empty());
}

#[tokio::test]
async fn the_recorder_can_freeze_or_delay_or_cut_or_refuse_connections() {
    let server = shared_standalone().await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let mut client = RawClient::connect(recorder.address()).await.unwrap();
    let ping = OpMsg::new(doc! { "ping": 1, "$db": "admin" });

    recorder.freeze();
    client.set_limit(Duration::from_millis(100));
    client.send(&ping).await.unwrap();
    assert!(matches!(
        client.read_reply().await,
        Err(RawError::TimedOut { .. })
    ));
    assert!(recorder.connections().remove(0).from_client.is_empty());
    recorder.thaw();
    client.set_limit(LIMIT);
    assert!(client.read_reply().await.unwrap().is_ok());

    let began = tokio::time::Instant::now();
    recorder.delay(Duration::from_millis(50));
    assert!(client.exchange(&ping).await.unwrap().is_ok());
    assert!(began.elapsed() >= Duration::from_millis(100));
    recorder.delay(Duration::ZERO);

    for how in [Cut::Close, Cut::Reset] {
        let mut client = RawClient::connect(recorder.address()).await.unwrap();
        assert!(client.exchange(&ping).await.unwrap().is_ok());
        recorder.cut_all(how);
        assert!(matches!(client.read_reply().await, Err(RawError::Closed)));
        eventually(LIMIT, || async { recorder.open_count() == 0 })
            .await
            .unwrap();
    }

    recorder.refuse(true);
    let mut client = RawClient::connect(recorder.address()).await.unwrap();
    assert!(client.read_to_close().await.unwrap().is_empty());
}

/// This function is not a test: the test below starts it in a new process and kills that process.
#[tokio::test]
#[ignore = "started by a_killed_test_process_leaves_no_mongod"]
async fn start_a_mongod_and_wait_to_be_killed() {
    let Some(report) = env::var_os(REPORT_VARIABLE) else {
        return;
    };
    let server = Standalone::start(Options::default()).await.unwrap();
    let pid = server.mongod().pid().unwrap().as_raw_nonzero();
    let directory = server.mongod().data_dir().display().to_string();
    fs::write(&report, format!("{pid} {directory} .")).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_test_process_leaves_no_mongod() {
    let scratch = Scratch::create().unwrap();
    let report = scratch.join("report");
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "fixtures::start_a_mongod_and_wait_to_be_killed",
        ])
        .env(REPORT_VARIABLE, &report)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let read = || async {
        let text = fs::read_to_string(&report).ok()?;
        let mut words = text.split(' ');
        let pid = Pid::from_raw(words.next()?.parse().ok()?)?;
        let directory = std::path::PathBuf::from(words.next()?);
        // The third word is written last. If it is missing, the file is not complete.
        words.next().map(|_| (pid, directory))
    };
    let (pid, directory) = eventually(LIMIT, read).await.unwrap();
    assert!(test_kill_process(pid).is_ok() && directory.exists());

    let child_pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .unwrap();
    kill_process(child_pid, Signal::KILL).unwrap();
    child.wait().unwrap();
    let is_gone = || async { test_kill_process(pid).is_err() && !directory.exists() };
    eventually(LIMIT, is_gone).await.unwrap();
}

/// Time limit of each wait. Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(30);
/// The environment variable with the path of a file. The process under test writes the process id
/// and the directory of its mongod to this file.
const REPORT_VARIABLE: &str = "FIXTURE_REPORT";
