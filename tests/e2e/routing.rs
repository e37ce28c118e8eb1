//! Checks that each operation runs on a member that the server selection specification allows. The
//! members' profilers show where an operation ran.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::TryStreamExt;
use mongodb::{
    Client, Collection,
    bson::{DateTime, Document, doc},
    error::ErrorKind,
    options::WriteConcern,
};
use seawall_api::Topology;
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ROOT, ROOT_PASSWORD, ReplicaSet, RunCommand as _, unique_name},
    raw::{Login, RawClient},
    seawall::{self as proxy, Seawall},
};
use tokio::sync::OnceCell;

use crate::scene;

const COLLECTION: &str = "things";
const DOCUMENTS: usize = 20;
/// Number of reads with each read preference. The number is so large that each suitable member gets
/// at least one of these reads.
const READS: usize = 12;
const LIMIT: Duration = Duration::from_secs(60);

/// A database of one test, in a set whose members profile operations. Member 0 is the primary. Each
/// member has a different tag `n`. Members 0 and 1 have the same tag `dc`.
struct ProfiledDatabase {
    set: Arc<ReplicaSet>,
    members: Vec<Client>,
    db: String,
}

impl ProfiledDatabase {
    /// Starts a new replica set. The test may stop its members.
    async fn alone() -> Self {
        Self::in_set(Arc::new(start_set().await)).await
    }

    /// A new database in a replica set that several tests share.
    async fn shared() -> Self {
        static SET: OnceCell<Arc<ReplicaSet>> = OnceCell::const_new();
        let set = SET.get_or_init(async || Arc::new(start_set().await)).await;
        Self::in_set(Arc::clone(set)).await
    }

    async fn in_set(set: Arc<ReplicaSet>) -> Self {
        let db = unique_name("routing");
        let things = set.client().await.unwrap();
        let things = things.database(&db).collection::<Document>(COLLECTION);
        things
            .insert_many((0..20).map(|n| doc! {"_id": n}))
            .write_concern(WriteConcern::builder().w(Some(3.into())).build())
            .await
            .unwrap();
        let mut members = Vec::new();
        for member in set.members() {
            let client = set.direct_client(member).unwrap();
            let profiled = client.database(&db);
            profiled.run_command(doc! {"profile": 2}).await.unwrap();
            members.push(client);
        }
        Self { set, members, db }
    }

    /// For each kind of operation: how many operations with this comment the member ran.
    async fn ran(&self, member: usize, comment: &str) -> BTreeMap<String, usize> {
        let profile = self.members[member]
            .database(&self.db)
            .collection::<Document>("system.profile");
        let entries: Vec<Document> = profile
            .find(doc! {"command.comment": comment})
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        let mut counts = BTreeMap::new();
        for entry in entries {
            *counts
                .entry(entry.get_str("op").unwrap().to_owned())
                .or_default() += 1;
        }
        counts
    }

    /// The members that ran operations with this comment. Checks that all members together ran
    /// `count` of these operations.
    async fn where_ran(&self, comment: &str, count: usize) -> Vec<usize> {
        let mut members = Vec::new();
        let mut total = 0;
        for member in 0..self.members.len() {
            let ran: usize = self.ran(member, comment).await.values().sum();
            total += ran;
            members.extend((ran > 0).then_some(member));
        }
        assert_eq!(total, count, "{comment}");
        members
    }

    /// Time from the member's last write to the primary's last write.
    async fn lag(&self, member: usize) -> Duration {
        let last_write = async |member: usize| -> DateTime {
            let hello = self.members[member].database("admin");
            let hello = hello.run_command(doc! {"hello": 1}).await.unwrap();
            let last_write = hello.get_document("lastWrite").unwrap();
            *last_write.get_datetime("lastWriteDate").unwrap()
        };
        let behind =
            last_write(0).await.timestamp_millis() - last_write(member).await.timestamp_millis();
        Duration::from_millis(u64::try_from(behind).unwrap_or(0))
    }
}

async fn start_set() -> ReplicaSet {
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let options = Options {
        tags: vec![
            vec![tag("n", "0"), tag("dc", "east")],
            vec![tag("n", "1"), tag("dc", "east")],
            vec![tag("n", "2"), tag("dc", "west")],
        ],
        priorities: vec![9],
        ..Options::with_auth()
    };
    let set = ReplicaSet::start(3, options).await.unwrap();
    // With this long timeout, the first member stays primary even on a slow machine. The test sets
    // the timeout only now, because otherwise the first election would take as long as the timeout.
    let administrator = set.administrator().await.unwrap();
    let reconfigure = async || {
        let get = doc! {"replSetGetConfig": 1};
        let mut reply = administrator.run("admin", get).await.unwrap();
        let config = reply.get_document_mut("config").unwrap();
        let version = config.get_i32("version").unwrap() + 1;
        config.insert("version", version);
        let settings = config.get_document_mut("settings").unwrap();
        settings.insert("electionTimeoutMillis", 10_000);
        let command = doc! {"replSetReconfig": config.clone()};
        // After an election, the server itself changes the configuration, and refuses this command
        // during its own change.
        administrator.run("admin", command).await
    };
    eventually(LIMIT, reconfigure).await.unwrap();
    let primary = set.primary().await.unwrap().address();
    assert_eq!(primary, set.members()[0].address());
    set
}

/// Starts Seawall with a latency window that includes all members, even on a busy machine.
async fn in_front_of(set: &ReplicaSet, more: &str) -> (Seawall, Client) {
    let options = proxy::Options {
        toml: format!("deployment.local_threshold_ms = 60000\n{more}"),
        ..proxy::Options::default()
    };
    let seawall = Seawall::start_with(&set.uri(), options).await;
    let client = seawall.client(ROOT, ROOT_PASSWORD, "admin").await;
    (seawall, client)
}

fn things(client: &Client, db: &str) -> Collection<Document> {
    client.database(db).collection(COLLECTION)
}

/// Reads with `find`, `distinct` and `aggregate` one after another, and checks that each reply
/// covers all documents.
///
/// The function does not use the official driver: to this driver, Seawall is a router, and the
/// driver sends tag sets to routers in the field `tagSets` instead of `tags`.
async fn read(client: &mut RawClient, db: &str, preference: &Document, comment: &str) {
    for n in 0..READS {
        let group = doc! {"$group": {"_id": null, "n": {"$sum": 1}}};
        let mut command = match n % 3 {
            0 => doc! {"find": COLLECTION},
            1 => doc! {"distinct": COLLECTION, "key": "_id"},
            _ => doc! {"aggregate": COLLECTION, "pipeline": [group], "cursor": {}},
        };
        command.extend(doc! {"comment": comment, "$readPreference": preference});
        let reply = client.command(db, command).await.unwrap();
        assert!(reply.is_ok(), "{preference}: {reply:?}");
        let batch = |reply: &Document| {
            let cursor = reply.get_document("cursor").unwrap();
            cursor.get_array("firstBatch").unwrap().clone()
        };
        let seen = match n % 3 {
            0 => batch(&reply.body).len(),
            1 => reply.body.get_array("values").unwrap().len(),
            _ => {
                let group = batch(&reply.body)[0].as_document().unwrap().clone();
                usize::try_from(group.get_i32("n").unwrap()).unwrap()
            }
        };
        assert_eq!(seen, DOCUMENTS, "{preference}");
    }
}

async fn topology(seawall: &Seawall) -> Topology {
    seawall.api("/api/v1/topology").await
}

#[tokio::test]
async fn each_read_preference_uses_the_members_that_the_server_selection_specification_allows() {
    let profiled = ProfiledDatabase::shared().await;
    let (seawall, _client) = in_front_of(&profiled.set, "").await;
    let members = async || {
        let topology = topology(&seawall).await;
        let mut servers = topology.servers.iter();
        servers.len() == 3 && servers.all(|server| server.server_type != "Unknown")
    };
    eventually(LIMIT, members).await.unwrap();
    let cases: Vec<(Document, &[usize])> = vec![
        (doc! {"mode": "primary"}, &[0]),
        (doc! {"mode": "primaryPreferred"}, &[0]),
        // With `primaryPreferred`, tags do not exclude the primary.
        (
            doc! {"mode": "primaryPreferred", "tags": [{"n": "2"}]},
            &[0],
        ),
        (doc! {"mode": "secondary"}, &[1, 2]),
        (
            doc! {"mode": "secondary", "maxStalenessSeconds": 0_i64},
            &[1, 2],
        ),
        (doc! {"mode": "secondary", "tags": [{"dc": "east"}]}, &[1]),
        // The Rust driver sends tag sets to routers in this field, which servers ignore.
        (
            doc! {"mode": "secondary", "tagSets": [{"dc": "east"}]},
            &[1],
        ),
        (
            doc! {"mode": "secondary", "tags": [{"dc": "north"}, {"dc": "west"}]},
            &[2],
        ),
        (
            doc! {"mode": "secondary", "tags": [{"dc": "west", "n": "1"}, {}]},
            &[1, 2],
        ),
        (doc! {"mode": "secondaryPreferred"}, &[1, 2]),
        (
            doc! {"mode": "secondaryPreferred", "tags": [{"n": "2"}]},
            &[2],
        ),
        (
            doc! {"mode": "secondaryPreferred", "tags": [{"dc": "north"}]},
            &[0],
        ),
        (doc! {"mode": "nearest"}, &[0, 1, 2]),
        (doc! {"mode": "nearest", "tags": [{"dc": "east"}]}, &[0, 1]),
        (doc! {"mode": "nearest", "tags": [{"n": "0"}]}, &[0]),
    ];
    let mut client = logged_in(&seawall).await;
    for (n, (preference, expected)) in cases.iter().enumerate() {
        let comment = format!("case {n}");
        read(&mut client, &profiled.db, preference, &comment).await;
        let members = profiled.where_ran(&comment, READS).await;
        assert_eq!(members, *expected, "{preference:?}");
    }
}

#[tokio::test]
async fn writes_and_transactions_use_the_primary_with_any_read_preference() {
    let profiled = ProfiledDatabase::shared().await;
    let (seawall, client) = in_front_of(&profiled.set, "").await;
    let mut raw = logged_in(&seawall).await;
    let secondary = doc! {"mode": "secondary"};
    let commands = [
        doc! {"insert": COLLECTION, "documents": [{"_id": "new"}], "comment": "write"},
        doc! {"update": COLLECTION, "updates": [{"q": {"_id": "new"}, "u": {"$set": {"a": 1}}}], "comment": "write"},
        doc! {"findAndModify": COLLECTION, "query": {"_id": "new"}, "remove": true, "comment": "write"},
        doc! {"aggregate": COLLECTION, "pipeline": [{"$out": "copy"}], "cursor": {}, "comment": "write"},
    ];
    for mut command in commands {
        command.insert("$readPreference", secondary.clone());
        let reply = raw.command(&profiled.db, command.clone()).await.unwrap();
        assert!(reply.is_ok(), "{command}: {reply:?}");
    }
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    for n in 0..2 {
        let document = doc! {"_id": format!("transaction {n}")};
        let things = things(&client, &profiled.db);
        let insert = things.insert_one(document).session(&mut session);
        insert.comment("write").await.unwrap();
    }
    session.commit_transaction().await.unwrap();
    for member in [1, 2] {
        assert_eq!(
            profiled.ran(member, "write").await,
            BTreeMap::new(),
            "member {member}"
        );
    }
    // The profiler counts an update or a removal twice: as a statement and as its command.
    let ran: usize = profiled.ran(0, "write").await.values().sum();
    assert!(
        ran >= 6,
        "expected at least 6 operations on the primary, got {ran}"
    );
}

#[tokio::test]
async fn seawall_serves_only_commands_that_a_secondary_may_run_while_the_set_has_no_primary() {
    let profiled = ProfiledDatabase::alone().await;
    let more =
        "deployment.server_selection_timeout_ms = 1000\ndeployment.heartbeat_frequency_ms = 500";
    let (seawall, client) = in_front_of(&profiled.set, more).await;
    things(&client, &profiled.db)
        .find_one(doc! {})
        .await
        .unwrap();
    for member in &profiled.set.members()[..2] {
        member.kill().await.unwrap();
    }
    let no_primary = async || topology(&seawall).await.topology_type == "ReplicaSetNoPrimary";
    eventually(LIMIT, no_primary).await.unwrap();
    let mut raw = logged_in(&seawall).await;
    for mode in [
        "primaryPreferred",
        "secondary",
        "secondaryPreferred",
        "nearest",
    ] {
        read(&mut raw, &profiled.db, &doc! {"mode": mode}, mode).await;
        let ran: usize = profiled.ran(2, mode).await.values().sum();
        assert_eq!(ran, READS, "{mode}");
    }
    for command in [doc! {"ping": 1}, doc! {"endSessions": []}] {
        let reply = raw.command("admin", command.clone()).await.unwrap();
        assert!(reply.is_ok(), "{command}: {reply:?}");
    }
    let refused = things(&client, &profiled.db)
        .find_one(doc! {})
        .await
        .unwrap_err();
    let ErrorKind::Command(error) = refused.kind.as_ref() else {
        panic!("{refused:?}");
    };
    assert_eq!(error.code, 6, "{error}");
}

/// Drivers with a direct connection to a member of a replica set add `primaryPreferred` to commands
/// without a read preference. To them, Seawall is a router, so Seawall adds it.
#[tokio::test]
async fn a_direct_connection_to_a_secondary_serves_reads_without_a_read_preference() {
    let profiled = ProfiledDatabase::shared().await;
    let secondary = profiled.set.members()[1].address();
    let uri = format!("mongodb://{secondary}/?directConnection=true");
    let seawall = Seawall::start(&uri).await;
    let direct = &profiled.members[1];
    let client = seawall.client(ROOT, ROOT_PASSWORD, "admin").await;
    for client in [direct, &client] {
        // The refused write must not affect the reads after it.
        let database = client.database(&profiled.db);
        let things = things(client, &profiled.db);
        let refused = things.insert_one(doc! {"_id": "new"}).await;
        assert!(refused.is_err());
        let collections = database.list_collection_names().await.unwrap();
        assert!(collections.iter().any(|name| name == COLLECTION));
        let found = things.find(doc! {}).batch_size(2);
        let found: Vec<_> = found.await.unwrap().try_collect().await.unwrap();
        assert_eq!(found.len(), DOCUMENTS);
        assert_eq!(things.count_documents(doc! {}).await.unwrap(), 20);
        let values = things.distinct("_id", doc! {}).max_time(LIMIT);
        assert_eq!(values.await.unwrap().len(), DOCUMENTS);
        let command = doc! {"dbStats": 1};
        assert!(database.run_command(command).await.is_ok());
        let malformed = doc! {"find": COLLECTION, "$readPreference": "text"};
        assert!(database.run_command(malformed).await.is_err());
    }
}

#[tokio::test]
async fn a_secondary_whose_staleness_exceeds_max_staleness_seconds_gets_no_reads() {
    let profiled = ProfiledDatabase::alone().await;
    let stop = |mode: &str| doc! {"configureFailPoint": "rsSyncApplyStop", "mode": mode};
    let lagging = profiled.members[2].database("admin");
    lagging.run_command(stop("alwaysOn")).await.unwrap();
    let direct = profiled.set.client().await.unwrap();
    let ticks = direct.database("ticks").collection::<Document>("ticks");
    // The estimated staleness is the lag plus one heartbeat interval. With an interval of 80 s, a
    // lag of more than 10 s exceeds the smallest allowed limit, 90 s. So a lag of 12 s is enough.
    let lags = async || {
        ticks.insert_one(doc! {}).await.unwrap();
        profiled.lag(2).await >= Duration::from_secs(12)
    };
    eventually(LIMIT, lags).await.unwrap();
    let caught_up = async || profiled.lag(1).await < Duration::from_secs(5);
    eventually(LIMIT, caught_up).await.unwrap();

    let heartbeat = "deployment.heartbeat_frequency_ms = 80000";
    let (seawall, _client) = in_front_of(&profiled.set, heartbeat).await;
    let limited = |mode: &str| doc! {"mode": mode, "maxStalenessSeconds": 90};
    let tagged = |mode: &str, members: &[&str]| {
        let tags: Vec<_> = members.iter().map(|n| doc! {"n": n}).collect();
        doc! {"mode": mode, "maxStalenessSeconds": 90, "tags": tags}
    };
    let cases: Vec<(Document, &[usize])> = vec![
        (limited("secondary"), &[1]),
        (limited("secondaryPreferred"), &[1]),
        (tagged("secondaryPreferred", &["2"]), &[0]),
        (tagged("secondary", &["2", "1"]), &[1]),
        (limited("nearest"), &[0, 1]),
        (
            doc! {"mode": "secondary", "maxStalenessSeconds": 300},
            &[1, 2],
        ),
        (doc! {"mode": "secondary"}, &[1, 2]),
    ];
    let mut client = logged_in(&seawall).await;
    for (n, (preference, expected)) in cases.iter().enumerate() {
        let comment = format!("lagging {n}");
        read(&mut client, &profiled.db, preference, &comment).await;
        let members = profiled.where_ran(&comment, READS).await;
        assert_eq!(members, *expected, "{preference:?}");
    }

    lagging.run_command(stop("off")).await.unwrap();
    let caught_up = async || profiled.lag(2).await < Duration::from_secs(5);
    eventually(LIMIT, caught_up).await.unwrap();
    // The heartbeat interval is so long that the running Seawall would still see the old lag. So
    // the test starts a new Seawall.
    let (seawall, _client) = in_front_of(&profiled.set, heartbeat).await;
    let mut client = logged_in(&seawall).await;
    read(&mut client, &profiled.db, &limited("secondary"), "fresh").await;
    assert_eq!(profiled.where_ran("fresh", READS).await, [1, 2]);
}

#[tokio::test]
async fn an_invalid_read_preference_gets_the_same_error_from_seawall_as_from_a_server() {
    let profiled = ProfiledDatabase::shared().await;
    let (seawall, _client) = in_front_of(&profiled.set, "").await;
    let mut through = logged_in(&seawall).await;
    let mut direct = profiled
        .set
        .raw_client(&profiled.set.members()[0])
        .await
        .unwrap();
    let outcome = direct
        .login(&Login::new("admin", ROOT, ROOT_PASSWORD))
        .await
        .unwrap();
    assert!(outcome.is_authenticated());
    let preferences = [
        doc! {"mode": "secondary", "maxStalenessSeconds": 30},
        doc! {"mode": "primary", "maxStalenessSeconds": 120},
        doc! {"mode": "nowhere"},
        doc! {"mode": "secondary", "tags": "east"},
        doc! {"mode": "primary", "tags": [{"dc": "east"}]},
    ];
    for preference in preferences {
        let command = doc! {"find": COLLECTION, "$readPreference": &preference};
        let here = through
            .command(&profiled.db, command.clone())
            .await
            .unwrap();
        let there = direct.command(&profiled.db, command).await.unwrap();
        assert!(!there.is_ok(), "{preference}: {there:?}");
        assert_eq!(
            (here.code(), here.body.get("errmsg")),
            (there.code(), there.body.get("errmsg")),
            "{preference}"
        );
    }
}

#[tokio::test]
async fn any_connection_of_a_user_can_continue_and_kill_a_cursor_on_the_member_that_opened_it() {
    let profiled = ProfiledDatabase::shared().await;
    let (seawall, _client) = in_front_of(&profiled.set, "").await;
    let mut opening = logged_in(&seawall).await;
    let mut others = [logged_in(&seawall).await, logged_in(&seawall).await];
    let mut cursors = Vec::new();
    for n in 0..30 {
        let member = n % 3;
        let command = doc! {
            "find": COLLECTION, "batchSize": 5, "comment": format!("cursor {n}"),
            "$readPreference": {"mode": "nearest", "tags": [{"n": member.to_string()}]},
        };
        let reply = opening.command(&profiled.db, command).await.unwrap();
        cursors.push((n, member, reply.cursor_id().filter(|id| *id != 0).unwrap()));
    }
    // All cursors are open at the same time. Each is continued on changing connections, never on
    // the connection that opened it.
    for round in 0..2 {
        for (n, _, cursor) in &cursors {
            let other = &mut others[(n + round) % 2];
            let command = doc! {
                "getMore": *cursor, "collection": COLLECTION, "batchSize": 5, "comment": format!("cursor {n}"),
            };
            let reply = other.command(&profiled.db, command).await.unwrap();
            assert_eq!(reply.cursor_id(), Some(*cursor), "{reply:?}");
        }
    }
    for (n, member, cursor) in cursors {
        let kill = doc! {"killCursors": COLLECTION, "cursors": [cursor]};
        let reply = others[n % 2].command(&profiled.db, kill).await.unwrap();
        assert_eq!(
            reply.body.get_array("cursorsKilled").unwrap().len(),
            1,
            "{reply:?}"
        );
        let comment = format!("cursor {n}");
        assert_eq!(profiled.where_ran(&comment, 3).await, [member]);
        let ran = profiled.ran(member, &comment).await;
        assert_eq!(
            (ran.get("query"), ran.get("getmore")),
            (Some(&1), Some(&2)),
            "{ran:?}"
        );
    }
}

async fn logged_in(seawall: &Seawall) -> RawClient {
    scene::logged_in(seawall, &Login::new("admin", ROOT, ROOT_PASSWORD)).await
}
