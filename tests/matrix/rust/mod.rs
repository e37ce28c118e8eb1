//! The steps of an application with the Rust driver; see `drivers/scenarios.md`.
//!
//! Two things differ from the other programs. The step `unacknowledged` has no explicit session,
//! because the driver refuses a session for unacknowledged writes. The driver uses the command
//! `bulkWrite` for bulk writes. If the server does not have this command, the driver returns an
//! error, which is then the outcome of each step with a bulk write.

mod administration;
mod failures;
mod outcome;
mod reads;
mod sessions;
mod writes;

use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
    options::{ClientOptions, ServerApi, ServerApiVersion},
};

use self::outcome::{Steps, extended_json, plain};

/// Runs all steps with one client on one database. Returns one line of JSON for each step.
pub(crate) async fn run(uri: &str, database: &str, api: &str) -> Vec<String> {
    let application = Application::connect(uri, database, api).await;
    let mut steps = Steps::default();
    application.run(&mut steps).await;
    application.client.shutdown().await;
    steps.lines()
}

/// Runs only the first steps, for a server that the driver refuses.
pub(crate) async fn run_status(uri: &str, database: &str) -> Vec<String> {
    let application = Application::connect(uri, database, "plain").await;
    let mut steps = Steps::default();
    application.status(&mut steps).await;
    steps.lines()
}

/// The state that all steps share.
#[derive(Debug)]
struct Application {
    client: Client,
    db: Database,
    things: Collection<Document>,
    is_stable: bool,
}

impl Application {
    async fn connect(uri: &str, database: &str, api: &str) -> Self {
        let mut options = ClientOptions::parse(uri).await.unwrap();
        let is_stable = api == "stable";
        if is_stable {
            let version = ServerApi::builder().version(ServerApiVersion::V1);
            options.server_api = Some(version.strict(true).build());
        }
        let client = Client::with_options(options).unwrap();
        let db = client.database(database);
        Self {
            things: db.collection("things"),
            db,
            client,
            is_stable,
        }
    }

    async fn run(&self, steps: &mut Steps) {
        self.status(steps).await;
        self.inserts(steps).await;
        self.types(steps).await;
        self.find_options(steps).await;
        self.concerns_and_preferences(steps).await;
        self.counts(steps).await;
        self.updates(steps).await;
        self.find_and_modify(steps).await;
        self.deletes(steps).await;
        self.bulks(steps).await;
        self.aggregate(steps).await;
        self.cursors(steps).await;
        self.causal_and_snapshot(steps).await;
        self.transactions(steps).await;
        self.conflict(steps).await;
        self.change_stream(steps).await;
        self.gridfs(steps).await;
        self.unacknowledged(steps).await;
        self.large(steps).await;
        self.refused(steps).await;
        self.refused_by_state(steps).await;
        self.indexes(steps).await;
        self.collections(steps).await;
        let drop = async || Ok(plain(&self.db.drop().await?));
        steps.step("drop", drop).await;
    }

    async fn status(&self, steps: &mut Steps) {
        let commands = [
            ("status ping", doc! {"ping": 1}),
            ("status users", doc! {"connectionStatus": 1}),
        ];
        for (name, command) in commands {
            let run = async || Ok(extended_json(self.db.run_command(command).await?));
            steps.step(name, run).await;
        }
        let version = async || {
            let build = self.db.run_command(doc! {"buildInfo": 1}).await?;
            Ok(extended_json(build.get("version").cloned()))
        };
        steps.step("status version", version).await;
    }
}
