//! Sends the commands that a server knows, with valid and with invalid arguments, once directly to
//! the server and once through Seawall. The two replies must be equal. The constants below list the
//! exceptions.

use std::{collections::BTreeSet, net::SocketAddr};

use mongodb::bson::{Bson, Document, doc};
use seawall_tests::{
    mongod::{Options, ROOT, ROOT_PASSWORD, ReplicaSet, ServerVersion, server_version},
    raw::{Login, RawClient, RawError, RawReply},
    seawall::Seawall,
};

const DB: &str = "differential";

/// Commands that are not sent. Some of these commands stop the server, change it for all clients,
/// or block the connection. The other commands are only for internal use or for tests of the
/// server.
const NOT_SENT: &[&str] = &[
    "shutdown",
    "fsync",
    "fsyncUnlock",
    "configureFailPoint",
    "waitForFailPoint",
    "sleep",
    "setParameter",
    "setFeatureCompatibilityVersion",
    "lockInfo",
    "logRotate",
    "compact",
    "godinsert",
    "captrunc",
    "emptycapped",
    "journalLatencyTest",
    "cpuload",
    "appendOplogNote",
    "applyOps",
    "doTxn",
    "dropAllUsersFromDatabase",
    "dropAllRolesFromDatabase",
    "killAllSessions",
    "killAllSessionsByPattern",
    "killSessions",
    "httpClientRequest",
    "rotateCertificates",
    "setDefaultRWConcern",
    "setUserWriteBlockMode",
    "setIndexCommitQuorum",
    "stageDebug",
    "stopRecordingTraffic",
    "startRecordingTraffic",
    "cloneCollectionAsCapped",
    "convertToCapped",
    "hashBSONElement",
    "testInternalTransactions",
    "mergeAuthzCollections",
    "_mergeAuthzCollections",
    "pinHistoryReplicated",
    "refreshLogicalSessionCacheNow",
    "reapLogicalSessionCacheNow",
    "profile",
    "validateDBMetadata",
    "dbCheck",
    "oidcListKeys",
    // With authentication, this command aborts the server process of MongoDB 4.4 and 5.0.
    "repairDatabase",
    // These commands would succeed in the direct run, so the run through Seawall would start with
    // other data. [`scenario`] sends them instead.
    "create",
    "drop",
];

/// Commands to which Seawall replies itself, because Seawall acts as a router, or because the
/// commands concern the connection (docs/transparency.md).
const SERVED_BY_SEAWALL: &[&str] = &[
    "hello",
    "isMaster",
    "ismaster",
    "whatsmyuri",
    "getnonce",
    "saslStart",
    "saslContinue",
    "authenticate",
    "logout",
];

/// Fields that may differ between two replies of a server to the same command: times, counters,
/// identifiers and addresses.
const VOLATILE: &[&str] = &[
    "$clusterTime",
    "operationTime",
    "opTime",
    "electionId",
    "localTime",
    "lastWriteDate",
    "topologyVersion",
    "postBatchResumeToken",
    "_data",
    "uuid",
    "userId",
    "opid",
    "connectionId",
    "you",
    "client",
    "host",
    "executionTimeMillis",
    "executionTimeMillisEstimate",
    "timeMillis",
    "id",
    "_id",
    "ns_uuid",
    "readTs",
    "atClusterTime",
    "localUpdateWallClockTime",
    "queryHash",
];

/// Commands whose replies describe the state of the server. Only the names of their fields are
/// compared.
const STATE: &[&str] = &[
    "serverStatus",
    "replSetGetStatus",
    "top",
    "getLog",
    "hostInfo",
    "currentOp",
    "connPoolStats",
    "dbStats",
    "dbstats",
    "collStats",
    "collstats",
    "getDiagnosticData",
    "connectionStatus",
    "features",
    "startSession",
    "listDatabases",
    "dbHash",
    "dbhash",
    "validate",
    "lockInfo",
    "shardConnPoolStats",
    "getShardVersion",
    "explain",
    "internalRenameIfOptionsAndIndexesMatch",
    "replSetGetRBID",
    "usersInfo",
    "isSelf",
    "_isSelf",
    "getParameter",
    "listCommands",
    "echo",
];

fn masked(value: Bson) -> Bson {
    match value {
        Bson::Document(document) => Bson::Document(masked_document(document)),
        Bson::Array(values) => values.into_iter().map(masked).collect::<Vec<_>>().into(),
        // Some error texts end with the refused command as the server received it (with `$client`),
        // or with the identifier of an index build. These ends are removed.
        Bson::String(text) => {
            let ends = ["to execute command ", "Index build failed: "];
            let end = ends.iter().find_map(|end| text.split_once(end));
            end.map_or(text.as_str(), |(before, _)| before).into()
        }
        other => other,
    }
}

fn masked_document(document: Document) -> Document {
    let fields = document.into_iter().map(|(name, value)| {
        let is_volatile = VOLATILE.contains(&name.as_str());
        let value = if is_volatile {
            Bson::Null
        } else {
            masked(value)
        };
        (name, value)
    });
    fields.collect()
}

/// The part of a reply that must be equal whether the test sends the command directly to the server
/// or through Seawall. For a successful command in [`STATE`], this part is only the names of the
/// reply's fields. For any other reply, it is the reply without the values of the fields in
/// [`VOLATILE`]. Some error texts are also cut short, because their ends always differ (see
/// [`masked`]).
fn compared(name: &str, reply: &RawReply) -> Document {
    if STATE.contains(&name) && reply.is_ok() {
        let names: BTreeSet<_> = reply.body.keys().cloned().collect();
        return doc! {"fields": names.into_iter().collect::<Vec<_>>()};
    }
    masked_document(reply.body.clone())
}

/// Commands that run in this order, because many of them need the data of earlier commands.
fn scenario() -> Vec<Document> {
    [
        inserts(),
        finds(),
        changes(),
        aggregates(),
        structure(),
        sessions(),
    ]
    .concat()
}

fn inserts() -> Vec<Document> {
    let many: Vec<_> = (0..20)
        .map(|n| doc! {"_id": n, "n": n, "g": n % 3, "t": "x"})
        .collect();
    vec![
        doc! {"insert": "c", "documents": many},
        doc! {"insert": "c", "documents": [{"_id": 1}, {"_id": 100}], "ordered": false},
        doc! {"insert": "c", "documents": []},
        doc! {"insert": "c", "documents": [{"_id": [1]}]},
        doc! {"insert": "c", "documents": [{"$bad": 1}]},
        doc! {"insert": "c", "documents": [{"_id": 200}], "writeConcern": {"w": 9, "wtimeout": 50}},
        doc! {"insert": "", "documents": [{}]},
        doc! {"insert": "system.views", "documents": [{"_id": "x"}]},
    ]
}

fn finds() -> Vec<Document> {
    vec![
        doc! {"find": "c", "filter": {"n": {"$gt": 5}}, "sort": {"n": -1}, "limit": 3},
        doc! {"find": "c", "filter": {"$where": "this.n == 3"}, "projection": {"n": 1, "_id": 0}},
        doc! {"find": "c", "filter": {"$nope": 1}},
        doc! {"find": "c", "skip": -1},
        doc! {"find": "c", "singleBatch": true, "batchSize": 2, "sort": {"_id": 1}},
        doc! {"find": "c", "hint": "nope"},
        doc! {"find": "c", "collation": {"locale": "xx"}},
        doc! {"find": "c", "readConcern": {"level": "snapshot"}, "filter": {"_id": 1}},
        doc! {"find": "c", "readConcern": {"level": "bogus"}},
        doc! {"find": "c", "maxTimeMS": -1},
        doc! {"find": "c", "$readPreference": {"mode": "primary"}, "filter": {"_id": 2}},
        doc! {"find": "c", "$readPreference": {"mode": "bogus"}},
        doc! {"find": "c", "$readPreference": "text"},
        doc! {"find": "nothing"},
        doc! {"find": 5},
        doc! {"find": "c", "apiVersion": "1", "apiStrict": true, "filter": {"_id": 3}},
        doc! {"find": "c", "apiVersion": "2"},
        doc! {"count": "c", "apiVersion": "1", "apiStrict": true},
        doc! {"collStats": "c", "apiVersion": "1", "apiStrict": true},
    ]
}

fn changes() -> Vec<Document> {
    vec![
        doc! {"update": "c", "updates": [{"q": {"g": 1}, "u": {"$inc": {"n": 1}}, "multi": true}]},
        doc! {"update": "c", "updates": [{"q": {"_id": "up"}, "u": {"$set": {"a": 1}}, "upsert": true}]},
        doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"_id": 2}}}]},
        doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$nope": 1}}]},
        doc! {"update": "c", "updates": [{"q": {}, "u": [{"$set": {"p": "$n"}}], "multi": true}]},
        doc! {"update": "c", "updates": []},
        doc! {"delete": "c", "deletes": [{"q": {"n": 100}, "limit": 1}]},
        doc! {"delete": "c", "deletes": [{"q": {"g": 2}, "limit": 0}]},
        doc! {"delete": "c", "deletes": [{"q": {}, "limit": 7}]},
        doc! {"findAndModify": "c", "query": {"_id": 4}, "update": {"$set": {"f": 1}}, "new": true},
        doc! {"findAndModify": "c", "query": {"_id": 6}, "remove": true},
        doc! {"findAndModify": "c", "query": {}, "remove": true, "update": {"a": 1}},
    ]
}

fn aggregates() -> Vec<Document> {
    let group = doc! {"$group": {"_id": "$g", "n": {"$sum": "$n"}}};
    let pipeline = vec![
        doc! {"$match": {"n": {"$lt": 9}}},
        group,
        doc! {"$sort": {"_id": 1}},
    ];
    vec![
        doc! {"count": "c", "query": {"g": 1}},
        doc! {"distinct": "c", "key": "g"},
        doc! {"distinct": "c", "key": 1},
        doc! {"aggregate": "c", "pipeline": pipeline.clone(), "cursor": {}},
        doc! {"aggregate": "c", "pipeline": pipeline},
        doc! {"aggregate": "c", "pipeline": [{"$nope": 1}], "cursor": {}},
        doc! {"aggregate": "c", "pipeline": [{"$out": "copied"}], "cursor": {}},
        doc! {"aggregate": "c", "pipeline": [{"$merge": {"into": "copied"}}], "cursor": {}},
        doc! {"aggregate": "copied", "pipeline": [{"$count": "n"}], "cursor": {}},
        doc! {"aggregate": 1, "pipeline": [{"$documents": [{"a": 1}]}], "cursor": {}},
        doc! {"aggregate": 1, "pipeline": [{"$match": {}}], "cursor": {}},
        doc! {"mapReduce": "c", "map": "function() { emit(this.g, 1) }", "reduce": "function(k, v) { return v.length }", "out": {"inline": 1}, "query": {"g": 1}},
    ]
}

fn structure() -> Vec<Document> {
    vec![
        doc! {"create": "made", "validator": {"a": {"$type": "int"}}},
        doc! {"create": "made"},
        doc! {"create": "capped", "capped": true, "size": 4096},
        doc! {"create": "viewed", "viewOn": "c", "pipeline": [{"$match": {"g": 1}}]},
        doc! {"insert": "made", "documents": [{"_id": 1, "a": "text"}]},
        doc! {"find": "viewed", "sort": {"_id": 1}},
        doc! {"insert": "viewed", "documents": [{}]},
        doc! {"collMod": "made", "validator": {}},
        doc! {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]},
        doc! {"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "other"}]},
        doc! {"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g_1", "unique": true}]},
        doc! {"createIndexes": "c", "indexes": [{"key": {}, "name": "x"}]},
        doc! {"listIndexes": "c"},
        doc! {"listIndexes": "nothing"},
        doc! {"explain": {"find": "c", "filter": {"n": 1}}, "verbosity": "queryPlanner"},
        doc! {"planCacheClear": "c"},
        doc! {"dropIndexes": "c", "index": "n_1"},
        doc! {"dropIndexes": "c", "index": "n_1"},
        doc! {"listCollections": 1, "nameOnly": true, "filter": {"name": "c"}},
        doc! {"renameCollection": "differential.copied", "to": "differential.moved"},
        doc! {"drop": "copied"},
        doc! {"drop": "capped"},
        doc! {"dataSize": "differential.nothing"},
        doc! {"dbStats": 1},
        doc! {"collStats": "c"},
        doc! {"validate": "c"},
    ]
}

fn sessions() -> Vec<Document> {
    vec![
        doc! {"getMore": 1_i64, "collection": "c"},
        doc! {"getMore": "text", "collection": "c"},
        doc! {"killCursors": "c", "cursors": [1_i64, 2_i64]},
        doc! {"killCursors": "c", "cursors": "text"},
        doc! {"endSessions": []},
        doc! {"commitTransaction": 1},
        doc! {"abortTransaction": 1, "txnNumber": 1_i64, "autocommit": false},
        doc! {"find": "c", "txnNumber": 5_i64},
        doc! {"find": "c", "startTransaction": true},
        doc! {"insert": "c", "documents": [{"_id": 300}], "txnNumber": 5_i64},
        doc! {"ping": 1},
        doc! {"ping": 1, "foo": {"bar": 1}},
        doc! {"buildInfo": 1},
        doc! {"noSuchCommand": 1},
        doc! {"FIND": "c"},
        doc! {"dropDatabase": 1},
    ]
}

/// Five variants of each command that the server lists, mostly with invalid arguments, and the
/// database to which each variant is sent. Excludes the commands that this test does not send.
async fn reference(client: &mut RawClient) -> Vec<(&'static str, Document)> {
    let listed = client
        .command("admin", doc! {"listCommands": 1})
        .await
        .unwrap();
    let commands = listed.body.get_document("commands").unwrap();
    // Servers before 5.1 execute `getLastError`. In front of these servers, Seawall itself replies,
    // with an error.
    let executes_get_last_error = server_version().await.unwrap() < ServerVersion(5, 1, 0);
    let names = commands.keys().filter(|name| {
        let name = name.as_str();
        let is_internal = [
            "_shardsvr",
            "_configsvr",
            "_flush",
            "_recv",
            "_clone",
            "_migrate",
            "_transfer",
        ];
        let is_setup = [
            "replSet", "_test", "test", "clusterA", "clusterC", "clusterI", "clusterU", "clusterD",
        ];
        let skips = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        !NOT_SENT.contains(&name)
            && !SERVED_BY_SEAWALL.contains(&name)
            && (name != "getLastError" || !executes_get_last_error)
            && !skips(&is_internal)
            && !skips(&is_setup)
    });
    let mut cases = Vec::new();
    for name in names {
        // Commands like `{createUser: "no such"}` change nothing, because required fields are
        // missing.
        let variants = [
            doc! {name: "no such"},
            doc! {name: 1.5, "bogus": 1},
            doc! {name: {}, "comment": "c"},
            doc! {name: 1, "apiVersion": "1", "apiStrict": true},
            doc! {name: [1], "maxTimeMS": "text"},
        ];
        let databases = ["admin", DB];
        for (index, variant) in variants.into_iter().enumerate() {
            cases.push((databases[index % 2], variant));
        }
    }
    cases
}

/// A connection on which the root user is logged in. If the server closes the connection, the test
/// opens a new one.
struct Root {
    address: SocketAddr,
    client: RawClient,
}

impl Root {
    async fn connect(address: SocketAddr) -> Self {
        let mut client = RawClient::connect(address).await.unwrap();
        let login = Login::new("admin", ROOT, ROOT_PASSWORD);
        assert!(client.login(&login).await.unwrap().is_authenticated());
        Self { address, client }
    }

    /// The reply to a command; `None` if the server closed the connection.
    async fn command(&mut self, db: &str, command: &Document) -> Option<RawReply> {
        match self.client.command(db, command.clone()).await {
            Ok(reply) => Some(reply),
            Err(RawError::Closed | RawError::Truncated) => {
                *self = Self::connect(self.address).await;
                None
            }
            Err(error) => panic!("{command}: {error}"),
        }
    }
}

#[tokio::test]
async fn every_command_has_the_same_reply_directly_and_through_the_proxy() {
    let set = ReplicaSet::start(1, Options::with_auth()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let mut direct = Root::connect(set.members()[0].address()).await;
    let mut through = Root::connect(seawall.address().parse().unwrap()).await;
    let mut differences = Vec::new();
    let mut expected = Vec::new();
    for command in scenario() {
        expected.push(direct.command(DB, &command).await);
    }
    for (command, expected) in scenario().into_iter().zip(expected) {
        let seen = through.command(DB, &command).await;
        compare(&command, expected, seen, &mut differences);
    }
    let cases = reference(&mut direct.client).await;
    let count = scenario().len() + cases.len();
    assert!(count >= 300, "expected at least 300 commands, got {count}");
    for (db, command) in cases {
        let expected = direct.command(db, &command).await;
        let seen = through.command(db, &command).await;
        compare(&command, expected, seen, &mut differences);
    }
    assert!(
        differences.is_empty(),
        "{} of {count} commands have a different reply through Seawall:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

fn compare(
    command: &Document,
    expected: Option<RawReply>,
    seen: Option<RawReply>,
    differences: &mut Vec<String>,
) {
    let name = command.keys().next().unwrap();
    let [of_server, of_seawall] = [expected, seen]
        .map(|reply| reply.map_or(doc! {"closed": true}, |reply| compared(name, &reply)));
    if of_server != of_seawall {
        differences.push(format!(
            "{command}\n  direct  {of_server}\n  through {of_seawall}"
        ));
    }
}
