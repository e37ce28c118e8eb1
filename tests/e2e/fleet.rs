//! Tests of several Seawall instances in front of one deployment: merged figures, and cursors and
//! transactions that a client uses through more than one instance.

use std::time::Duration;

use bson::doc;
use seawall_api::{Changes, Report, Shape, Shapes, Status};
use seawall_tests::{
    eventually::eventually,
    mongod::{
        NewUser, ROOT, ROOT_PASSWORD, create_user, shared_replica_set, shared_standalone,
        unique_name,
    },
    process::run,
    raw::{Login, RawClient},
    seawall::Seawall,
};

const LIMIT: Duration = Duration::from_secs(20);

/// Instances of Seawall in front of the same server, and a user with rights on one database, which
/// has the same name as the user.
struct Fleet {
    user: NewUser,
    instances: Vec<Seawall>,
}

impl Fleet {
    async fn start(instances: usize) -> Self {
        let server = shared_standalone().await.unwrap();
        let name = unique_name("fleet");
        let user = NewUser::new("admin", &name, "secret").role("readWrite", &name);
        create_user(&server.client().unwrap(), &user).await.unwrap();
        let mut fleet = Self {
            user,
            instances: Vec::new(),
        };
        for _ in 0..instances {
            fleet.instances.push(Seawall::start(&server.uri()).await);
        }
        fleet
    }

    /// Runs finds through one instance, and waits until the instance reports them.
    async fn finds(&self, instance: usize, field: &str, count: u64) {
        let seawall = &self.instances[instance];
        let address = seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        let login = Login::new("admin", &self.user.name, "secret");
        client.login(&login).await.unwrap();
        for _ in 0..count {
            let command = doc! { "find": "things", "filter": { field: 1 } };
            client.expect_ok(&self.user.name, command).await;
        }
        let text = format!("{{filter:{{{field}:?}}}}");
        let is_reported = async || {
            let shapes: Shapes = seawall.api("/api/v1/shapes?since=10m").await;
            let is_it = |shape: &&Shape| shape.db == self.user.name && shape.shape == text;
            let shape = shapes.shapes.iter().find(is_it).cloned();
            shape.unwrap_or_default().count == count
        };
        eventually(LIMIT, is_reported).await.unwrap();
    }

    /// The admin addresses of all instances, separated by commas.
    fn admin(&self) -> String {
        let addresses = self.instances.iter();
        let addresses = addresses.map(|seawall| seawall.app.admin_address().unwrap().to_string());
        addresses.collect::<Vec<_>>().join(",")
    }
}

fn report(json: &[u8]) -> Report {
    Report::read(serde_json::from_slice(json).unwrap()).unwrap()
}

#[tokio::test]
async fn the_commands_top_and_report_merge_the_statistics_of_several_instances() {
    let fleet = Fleet::start(2).await;
    fleet.finds(0, "both", 30).await;
    fleet.finds(1, "both", 12).await;
    fleet.finds(1, "second", 5).await;
    let admin = fleet.admin();
    let top = run(&["top", "--once", "--admin", &admin]).await;
    assert!(top.status.success(), "{top:?}");
    let top = String::from_utf8(top.stdout).unwrap();
    assert!(top.contains(" 2 instances: "), "{top}");
    for shape in ["{filter:{both:?}}", "{filter:{second:?}}"] {
        assert_eq!(top.matches(shape).count(), 1, "{top}");
    }

    let arguments = [
        "report", "--since", "10m", "--format", "json", "--admin", &admin,
    ];
    let output = run(&arguments).await;
    assert!(output.status.success(), "{output:?}");
    let merged = report(&output.stdout);
    let of = |field: &str| {
        let text = format!("{{filter:{{{field}:?}}}}");
        let mut shapes = merged.shapes.iter();
        shapes.find(|shape| shape.shape == text).unwrap()
    };
    let both = of("both");
    assert_eq!((both.count, of("second").count), (42, 5));
    let counts = both.buckets().iter().map(|bucket| bucket.count);
    assert_eq!(counts.sum::<u64>(), 42);
    let mut alone = Vec::new();
    for seawall in &fleet.instances {
        let path = format!("/api/v1/shapes/{}?since=10m", both.id);
        alone.push(seawall.api::<Shape>(&path).await);
    }
    let max = alone.iter().map(|shape| shape.latency_ms.max);
    assert_eq!(both.latency_ms.max, max.fold(0.0, f64::max));
    assert!(both.phases_ms.server > alone[0].phases_ms.server);
    let steps = merged.timeline.steps.iter().map(|step| step.count);
    assert_eq!(steps.sum::<u64>(), merged.operations());
    let operations: Vec<_> = merged.instances.iter().map(|i| i.operations).collect();
    assert_eq!(operations.iter().sum::<u64>(), merged.status.operations);
    assert_eq!(merged.servers.len(), 1);
    assert_eq!(merged.pools.len(), 1);
}

#[tokio::test]
async fn report_of_several_instances_names_the_instance_that_did_not_reply() {
    let fleet = Fleet::start(1).await;
    fleet.finds(0, "one", 3).await;
    let admin = format!("{},127.0.0.1:1", fleet.admin());
    let arguments = [
        "report", "--since", "10m", "--format", "json", "--admin", &admin,
    ];
    let output = run(&arguments).await;
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("cannot reach Seawall at http://127.0.0.1:1"),
        "{said}"
    );
    let merged = report(&output.stdout);
    let errors: Vec<_> = merged.instances.iter().map(|i| i.error.is_some()).collect();
    assert_eq!(errors, [false, true]);
    let top = run(&["top", "--once", "--admin", &admin]).await;
    assert_eq!(top.status.code(), Some(69));
    let shown = String::from_utf8(top.stdout).unwrap();
    assert!(shown.contains("{filter:{one:?}}"), "{shown}");
    let said = String::from_utf8(top.stderr).unwrap();
    assert!(said.contains("errors at 1 of 2 instances"), "{said}");
    assert!(merged.operations() >= 3);

    let output = run(&["top", "--once", "--admin", "127.0.0.1:1,127.0.0.1:2"]).await;
    assert_eq!(output.status.code(), Some(69));
}

#[tokio::test]
async fn api_replies_contain_distributions_of_durations_only_on_request() {
    let fleet = Fleet::start(1).await;
    fleet.finds(0, "one", 3).await;
    let seawall = &fleet.instances[0];
    let status: Status = seawall.api("/api/v1/status").await;
    assert!(status.operations >= 3);
    for since in ["", "since=10m&"] {
        let path = format!("/api/v1/shapes?{since}limit=100");
        let plain: Shapes = seawall.api(&path).await;
        assert!(
            plain
                .shapes
                .iter()
                .all(|shape| shape.distribution.is_none())
        );
        let path = format!("{path}&distributions=true");
        let full: Shapes = seawall.api(&path).await;
        let mut shapes = full.shapes.iter();
        let shape = shapes.find(|shape| shape.db == fleet.user.name).unwrap();
        let counts = shape.buckets().iter().map(|bucket| bucket.count);
        assert_eq!(counts.sum::<u64>(), 3);
        if let Some(cursors) = &shape.cursors {
            assert!(cursors.distribution.is_some());
        }
    }
    let path = "/api/v1/changes?against=5s&window=5s";
    let plain: Changes = seawall.api(path).await;
    let full: Changes = seawall.api(&format!("{path}&distributions=true")).await;
    assert!(plain.now.unwrap().figures.is_none());
    let now = full.now.unwrap();
    assert_eq!(now.figures.unwrap().all.count, now.count);
}

/// Opens a cursor over four documents, reads the first batch, and returns the cursor's id.
async fn open_cursor(client: &mut RawClient, db: &str, preference: &str) -> i64 {
    let find = doc! {
        "find": "things",
        "batchSize": 2,
        "$readPreference": { "mode": preference },
    };
    let reply = client.command(db, find).await.unwrap();
    let cursor = reply.body.get_document("cursor").unwrap();
    cursor.get_i64("id").unwrap()
}

/// The test acts as a client whose connections a load balancer has distributed over two instances.
/// A client without `loadBalanced=true` may send a `getMore` on another connection than the `find`.
/// A `getMore` is foreign to an instance if another instance has opened the cursor.
#[tokio::test]
async fn get_mores_on_cursors_of_another_instance_count_as_foreign_and_fail_on_a_secondary() {
    let set = shared_replica_set().await.unwrap();
    let first = Seawall::start(&set.uri()).await;
    let second = Seawall::start(&set.uri()).await;
    let client = async |seawall: &Seawall| {
        let address = seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        let login = Login::new("admin", ROOT, ROOT_PASSWORD);
        client.login(&login).await.unwrap();
        client
    };
    let (mut a, mut b) = (client(&first).await, client(&second).await);
    let db = unique_name("balanced");
    let documents: Vec<_> = (0..4).map(|n| doc! { "_id": n }).collect();
    let insert = doc! {
        "insert": "things",
        "documents": documents,
        "writeConcern": { "w": i32::try_from(set.members().len()).unwrap() },
    };
    a.expect_ok(&db, insert).await;
    let foreign = async || {
        let kind = [r#"kind="cursor""#];
        second
            .metric("seawall_foreign_operations_total", &kind)
            .await
    };

    let id = open_cursor(&mut a, &db, "primary").await;
    let more = doc! { "getMore": id, "collection": "things" };
    b.expect_ok(&db, more).await;
    assert_eq!(foreign().await, 1.0);

    let id = open_cursor(&mut a, &db, "secondary").await;
    let more = doc! { "getMore": id, "collection": "things" };
    let reply = b.command(&db, more.clone()).await.unwrap();
    assert_eq!(reply.code(), Some(43), "{reply:?}");
    assert_eq!(foreign().await, 2.0);
    // The cursor is still open at its server, and the instance that opened it can continue it.
    a.expect_ok(&db, more).await;
}

#[tokio::test]
async fn statements_of_one_transaction_may_use_several_instances_in_front_of_a_replica_set() {
    let set = shared_replica_set().await.unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let mut clients = Vec::new();
    let mut instances = Vec::new();
    for _ in 0..2 {
        let seawall = Seawall::start(&set.uri()).await;
        let mut client = RawClient::connect(seawall.address().parse().unwrap())
            .await
            .unwrap();
        client.login(&login).await.unwrap();
        clients.push(client);
        instances.push(seawall);
    }
    let db = unique_name("balanced");
    let lsid = doc! { "id": bson::Uuid::new() };
    let statement = |n: i32| {
        let mut insert = doc! {
            "insert": "things",
            "documents": [{ "_id": n }],
            "lsid": lsid.clone(),
            "txnNumber": 1_i64,
            "autocommit": false,
        };
        if n == 0 {
            insert.insert("startTransaction", true);
        }
        insert
    };
    let create = doc! { "create": "things" };
    clients[0].expect_ok(&db, create).await;
    for n in 0..4 {
        let client = &mut clients[usize::try_from(n % 2).unwrap()];
        client.expect_ok(&db, statement(n)).await;
    }
    let commit = doc! {
        "commitTransaction": 1,
        "lsid": lsid.clone(),
        "txnNumber": 1_i64,
        "autocommit": false,
    };
    clients[1].expect_ok("admin", commit).await;
    let count = doc! { "count": "things" };
    let reply = clients[0].command(&db, count).await.unwrap();
    assert_eq!(reply.body.get_i32("n").unwrap(), 4);
}
