//! Steps that use sessions, transactions and change streams.

use futures_util::StreamExt;
use mongodb::{
    ClientSession,
    bson::{Document, doc},
    change_stream::event::{ChangeStreamEvent, ResumeToken},
    error::Error,
    options::ReadConcern,
};
use serde_json::{Value, json};

use super::{
    Application,
    outcome::{Steps, extended_json, plain},
};

impl Application {
    pub(super) async fn causal_and_snapshot(&self, steps: &mut Steps) {
        let things = &self.things;
        let causal = async || {
            let mut session = self.client.start_session().causal_consistency(true).await?;
            let id = doc! {"_id": "causal"};
            things.insert_one(id.clone()).session(&mut session).await?;
            let read = things.find_one(id).read_concern(ReadConcern::majority());
            let found = read.session(&mut session).await?;
            Ok(json!([
                extended_json(found),
                session.operation_time().is_some()
            ]))
        };
        steps.step("session causal", causal).await;
        let snapshot = async || {
            let mut session = self.client.start_session().snapshot(true).await?;
            let id = doc! {"_id": 3};
            let before = things.find_one(id.clone()).session(&mut session).await?;
            let change = doc! {"$set": {"snapshot": "changed"}};
            things.update_one(id.clone(), change).await?;
            let after = things.find_one(id.clone()).session(&mut session).await?;
            Ok(json!([
                extended_json(before),
                extended_json(after),
                extended_json(things.find_one(id).await?)
            ]))
        };
        steps.step("session snapshot", snapshot).await;
    }

    pub(super) async fn transactions(&self, steps: &mut Steps) {
        let things = &self.things;
        let commit = async || {
            let mut session = self.client.start_session().await?;
            let id = doc! {"_id": "t1"};
            session.start_transaction().await?;
            things.insert_one(id.clone()).session(&mut session).await?;
            let update = things.update_one(id.clone(), doc! {"$set": {"x": 2}});
            update.session(&mut session).await?;
            session.commit_transaction().await?;
            Ok(extended_json(
                things.find_one(id).session(&mut session).await?,
            ))
        };
        steps.step("transaction commit", commit).await;
        let abort = async || {
            let mut session = self.client.start_session().await?;
            let id = doc! {"_id": "t2"};
            session.start_transaction().await?;
            things.insert_one(id.clone()).session(&mut session).await?;
            let inside = things.find_one(id.clone()).session(&mut session).await?;
            session.abort_transaction().await?;
            Ok(json!([
                extended_json(inside),
                extended_json(things.find_one(id).await?)
            ]))
        };
        steps.step("transaction abort", abort).await;
        let callback = async || {
            let mut session = self.client.start_session().await?;
            let id = doc! {"_id": "t3"};
            let insert = async |session: &mut ClientSession| {
                things.insert_one(doc! {"_id": "t3"}).session(session).await
            };
            session.start_transaction().and_run2(insert).await?;
            Ok(extended_json(
                things.find_one(id).session(&mut session).await?,
            ))
        };
        steps.step("transaction callback", callback).await;
    }

    pub(super) async fn conflict(&self, steps: &mut Steps) {
        let things = &self.things;
        let mut first = self.client.start_session().await.unwrap();
        let mut second = self.client.start_session().await.unwrap();
        let begin = async |session: &mut ClientSession, x: &str| -> Result<Value, Error> {
            session.start_transaction().await?;
            let update = things.update_one(doc! {"_id": "t1"}, doc! {"$set": {"x": x}});
            Ok(plain(&update.session(session).await?))
        };
        steps
            .step("transaction first", async || {
                begin(&mut first, "first").await
            })
            .await;
        steps
            .step("transaction conflict", async || {
                begin(&mut second, "second").await
            })
            .await;
        let abort = async || Ok(plain(&second.abort_transaction().await?));
        steps.step("transaction conflict aborted", abort).await;
        let commit = async || Ok(plain(&first.commit_transaction().await?));
        steps.step("transaction first commit", commit).await;
        let again = async || {
            let updated = begin(&mut second, "second").await?;
            second.commit_transaction().await?;
            Ok(json!([
                updated,
                extended_json(things.find_one(doc! {"_id": "t1"}).await?)
            ]))
        };
        steps.step("transaction again", again).await;
        let after_abort = async || {
            let id = doc! {"_id": "t4"};
            second.start_transaction().await?;
            things.insert_one(id.clone()).session(&mut second).await?;
            second.abort_transaction().await?;
            Ok(extended_json(
                things.find_one(id).session(&mut second).await?,
            ))
        };
        steps.step("transaction after abort", after_abort).await;
    }

    pub(super) async fn change_stream(&self, steps: &mut Steps) {
        let watched = self.db.collection::<Document>("watched");
        let mut second: Option<ResumeToken> = None;
        let seen = async || {
            let mut stream = watched.watch().await?;
            watched.insert_one(doc! {"_id": 1}).await?;
            watched
                .update_one(doc! {"_id": 1}, doc! {"$set": {"a": 1}})
                .await?;
            watched.delete_one(doc! {"_id": 1}).await?;
            let mut events = Vec::new();
            for _ in 0..3 {
                events.extend(stream.next().await.transpose()?);
            }
            second = events.get(1).map(|event| event.id.clone());
            Ok(events.iter().map(event_json).collect())
        };
        steps.step("change stream", seen).await;
        if let Some(second) = second {
            let resumed = async || {
                let mut stream = watched.watch().resume_after(second).await?;
                let event = stream.next().await.transpose()?;
                Ok(event.as_ref().map(event_json).into())
            };
            steps.step("change stream resumed", resumed).await;
        }
    }
}

fn event_json(event: &ChangeStreamEvent<Document>) -> Value {
    json!({
        "_id": plain(&event.id),
        "operationType": plain(&event.operation_type),
        "ns": event.ns.as_ref().map(plain),
        "documentKey": event.document_key.clone().map(extended_json),
        "updateDescription": event.update_description.as_ref().map(plain),
        "clusterTime": event.cluster_time.map(extended_json),
        "wallTime": event.wall_time.map(extended_json),
        "fullDocument": event.full_document.clone().map(extended_json),
    })
}
