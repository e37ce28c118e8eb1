//! Steps in which the server or the driver returns an error, and steps that prepare for them.

use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::{
    IndexModel,
    bson::{Document, doc},
    error::Error,
    options::{IndexOptions, WriteConcern},
};
use serde_json::Value;

use super::{
    Application,
    outcome::{Steps, extended_json, plain},
};

impl Application {
    pub(super) async fn refused(&self, steps: &mut Steps) {
        let things = &self.things;
        let insert = async || Ok(plain(&things.insert_one(doc! {"_id": 1}).await?));
        steps.step("error duplicate key", insert).await;
        let find = async || Ok(extended_json(things.find_one(doc! {"$nope": 1}).await?));
        steps.step("error unknown operator", find).await;
        let insert = async || {
            let elsewhere = self.client.database("elsewhere").collection("things");
            Ok(plain(&elsewhere.insert_one(doc! {"_id": 1}).await?))
        };
        steps.step("error not authorised", insert).await;
        let slow = async || {
            let numbers = doc! {"$range": [0, 20_000]};
            let add = doc! {"$add": ["$$value", "$$this"]};
            let added = doc! {"$reduce": {"input": numbers, "initialValue": 0, "in": add}};
            let find = things.find(doc! {"$expr": {"$gte": [added, 0]}});
            let found = find.max_time(Duration::from_millis(50)).await?;
            Ok(extended_json(found.try_collect::<Vec<_>>().await?))
        };
        steps.step("error maxTimeMS", slow).await;
        let update = async || {
            let change = doc! {"$set": {"_id": 2}};
            Ok(plain(&things.update_one(doc! {"_id": 1}, change).await?))
        };
        steps.step("error immutable field", update).await;
        let unmet = async || {
            let concern = WriteConcern::builder().w(Some(50.into()));
            let concern = concern.w_timeout(Duration::from_millis(100)).build();
            let insert = things.insert_one(doc! {"_id": "unmet"});
            Ok(plain(&insert.write_concern(concern).await?))
        };
        steps.step("error write concern", unmet).await;
        let commands = [
            ("error unknown command", doc! {"noSuchCommand": 1}),
            (
                "error cursor not found",
                doc! {"getMore": 123_456_789_i64, "collection": "things"},
            ),
            (
                "error cursor of a wrong type",
                doc! {"getMore": "text", "collection": "things"},
            ),
            ("error invalid namespace", doc! {"find": ""}),
        ];
        for (name, command) in commands {
            let run = async || Ok(extended_json(self.db.run_command(command).await?));
            steps.step(name, run).await;
        }
    }

    pub(super) async fn refused_by_state(&self, steps: &mut Steps) {
        let create = async |kind: &str| -> Result<Value, Error> {
            let create = self.db.create_collection("validated");
            Ok(plain(&create.validator(doc! {"n": {"$type": kind}}).await?))
        };
        steps
            .step("error create validated", async || create("int").await)
            .await;
        let insert = async || {
            let validated = self.db.collection::<Document>("validated");
            Ok(plain(
                &validated.insert_one(doc! {"_id": 1, "n": "text"}).await?,
            ))
        };
        steps.step("error document validation", insert).await;
        steps
            .step("error collection exists", async || create("string").await)
            .await;
        for (name, key) in [("error index", "group"), ("error index conflict", "text")] {
            let index = async || {
                let options = IndexOptions::builder().name("conflict".to_owned()).build();
                let index = IndexModel::builder().keys(doc! {key: 1}).options(options);
                Ok(self
                    .things
                    .create_index(index.build())
                    .await?
                    .index_name
                    .into())
            };
            steps.step(name, index).await;
        }
        let never_begun = async || {
            let mut session = self.client.start_session().await?;
            let command = doc! {"commitTransaction": 1, "txnNumber": 1000_i64, "autocommit": false};
            let admin = self.client.database("admin");
            Ok(extended_json(
                admin.run_command(command).session(&mut session).await?,
            ))
        };
        steps
            .step("error transaction never begun", never_begun)
            .await;
    }
}
