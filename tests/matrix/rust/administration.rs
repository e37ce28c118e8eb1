//! Steps that create, list and drop indexes and collections, read a view, or read statistics.

use futures_util::TryStreamExt;
use mongodb::{
    IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};
use serde_json::json;

use super::{
    Application,
    outcome::{Steps, extended_json, plain},
};

impl Application {
    pub(super) async fn indexes(&self, steps: &mut Steps) {
        let things = &self.things;
        let create = async || {
            let options = IndexOptions::builder()
                .sparse(true)
                .name("sparse".to_owned());
            let both = IndexModel::builder()
                .keys(doc! {"group": 1, "text": 1})
                .build();
            let sparse = IndexModel::builder().keys(doc! {"seen": 1});
            let sparse = sparse.options(options.build()).build();
            Ok(json!(
                things.create_indexes([both, sparse]).await?.index_names
            ))
        };
        steps.step("create indexes", create).await;
        let list = async || {
            let indexes: Vec<_> = things.list_indexes().await?.try_collect().await?;
            Ok(indexes.iter().map(plain).collect())
        };
        steps.step("list indexes", list).await;
        let drop = async || Ok(plain(&things.drop_index("sparse").await?));
        steps.step("drop index", drop).await;
        let left = async || Ok(json!(things.list_index_names().await?));
        steps.step("indexes left", left).await;
    }

    pub(super) async fn collections(&self, steps: &mut Steps) {
        let db = &self.db;
        let create = async || {
            let create = db.create_collection("strict");
            Ok(plain(
                &create.validator(doc! {"a": {"$exists": true}}).await?,
            ))
        };
        steps.step("create with validator", create).await;
        let create = async || {
            let create = db.create_collection("ring").capped(true);
            Ok(plain(&create.size(4096).max(10).await?))
        };
        steps.step("create capped", create).await;
        let create = async || {
            let pipeline = [
                doc! {"$match": {"group": 1}},
                doc! {"$project": {"group": 1}},
            ];
            let create = db.create_collection("view").view_on("things".to_owned());
            Ok(plain(&create.pipeline(pipeline).await?))
        };
        steps.step("create view", create).await;
        let list = async || {
            let mut found: Vec<_> = db.list_collections().await?.try_collect().await?;
            found.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(found.iter().map(plain).collect())
        };
        steps.step("list collections", list).await;
        let read = async || {
            let view = db.collection::<Document>("view");
            let found = view.find(doc! {}).sort(doc! {"_id": 1}).limit(3).await?;
            Ok(extended_json(found.try_collect::<Vec<_>>().await?))
        };
        steps.step("read view", read).await;
        if !self.is_stable {
            let run = async || {
                Ok(extended_json(
                    db.run_command(doc! {"collStats": "strict"}).await?,
                ))
            };
            steps.step("collection statistics", run).await;
        }
        let run = async || {
            let reply = db.run_command(doc! {"dbStats": 1}).await?;
            Ok(extended_json(reply.get("ok").cloned()))
        };
        steps.step("database statistics", run).await;
    }
}
