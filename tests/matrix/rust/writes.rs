//! Steps for write operations: inserts, updates, deletes, bulk writes, GridFS files, unacknowledged
//! writes and large documents.

use futures_util::{AsyncReadExt, AsyncWriteExt, TryStreamExt};
use mongodb::{
    bson::{Binary, Bson, Document, doc, spec::BinarySubtype},
    error::Error,
    options::{
        Collation, CollationStrength, DeleteOneModel, GridFsBucketOptions, Hint, InsertOneModel,
        ReturnDocument, UpdateModifications, UpdateOneModel, UpdateOptions, WriteConcern,
        WriteModel,
    },
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    Application,
    outcome::{Steps, extended_json, plain},
};

impl Application {
    pub(super) async fn inserts(&self, steps: &mut Steps) {
        let insert = async || Ok(plain(&self.things.insert_one(thing(0)).await?));
        steps.step("insert one", insert).await;
        let insert = async || {
            let insert = self.things.insert_many((1..300).map(thing)).ordered(false);
            let insert = insert
                .comment(Bson::from("matrix"))
                .bypass_document_validation(true);
            let inserted = insert.write_concern(WriteConcern::majority()).await?;
            Ok(plain(&inserted))
        };
        steps.step("insert many", insert).await;
    }

    pub(super) async fn updates(&self, steps: &mut Steps) {
        let seen = || UpdateModifications::from(doc! {"$set": {"seen": true}});
        let of = |id: &str| doc! {"_id": id};
        let collation = Collation::builder()
            .locale("en")
            .strength(CollationStrength::Secondary);
        let options = UpdateOptions::builder;
        let upserted = doc! {"$set": {"list": [1, 5, 9]}}.into();
        let increased = doc! {"$inc": {"list.$[big]": 1}}.into();
        let filters = vec![doc! {"big": {"$gt": 4}}];
        let piped = UpdateModifications::Pipeline(vec![doc! {"$set": {"sum": {"$sum": "$list"}}}]);
        let cases = [
            ("one", doc! {"_id": 1}, seen(), UpdateOptions::default()),
            (
                "upsert",
                of("new"),
                upserted,
                options().upsert(true).build(),
            ),
            (
                "arrayFilters",
                of("new"),
                increased,
                options().array_filters(filters).build(),
            ),
            ("pipeline", of("new"), piped, UpdateOptions::default()),
            (
                "collation",
                doc! {"text": "TEXT 3"},
                seen(),
                options().collation(collation.build()).build(),
            ),
            (
                "hint",
                doc! {"_id": 4},
                seen(),
                options().hint(Hint::Keys(doc! {"_id": 1})).build(),
            ),
        ];
        for (name, filter, change, options) in cases {
            let update = async || {
                let update = self.things.update_one(filter, change);
                Ok(plain(&update.with_options(options).await?))
            };
            steps.step(&format!("update {name}"), update).await;
        }
        let many = async || {
            Ok(plain(
                &self.things.update_many(doc! {"group": 2}, seen()).await?,
            ))
        };
        steps.step("update many", many).await;
        let read = async || Ok(extended_json(self.things.find_one(of("new")).await?));
        steps.step("update read", read).await;
        let replace = async || {
            let replaced = self
                .things
                .replace_one(of("new"), doc! {"replaced": 1})
                .await?;
            Ok(plain(&replaced))
        };
        steps.step("update replace", replace).await;
    }

    pub(super) async fn find_and_modify(&self, steps: &mut Steps) {
        let things = &self.things;
        let ten = || doc! {"_id": 10};
        let more = || doc! {"$inc": {"n": 1}};
        let upserted = || doc! {"_id": "upserted"};
        let after = ReturnDocument::After;
        let modify = async || {
            Ok(extended_json(
                things.find_one_and_update(ten(), more()).await?,
            ))
        };
        steps.step("modify before", modify).await;
        let modify = async || {
            let modify = things.find_one_and_update(ten(), more());
            Ok(extended_json(modify.return_document(after.clone()).await?))
        };
        steps.step("modify after", modify).await;
        let modify = async || {
            let modify = things.find_one_and_update(doc! {"group": 4}, more());
            let modify = modify.sort(doc! {"_id": -1}).projection(doc! {"n": 1});
            Ok(extended_json(modify.return_document(after.clone()).await?))
        };
        steps.step("modify sorted", modify).await;
        let modify = async || {
            let modify = things.find_one_and_update(upserted(), more()).upsert(true);
            Ok(extended_json(modify.return_document(after.clone()).await?))
        };
        steps.step("modify upsert", modify).await;
        let modify = async || {
            let replacement = doc! {"replaced": 2};
            Ok(extended_json(
                things.find_one_and_replace(upserted(), replacement).await?,
            ))
        };
        steps.step("modify replace", modify).await;
        for name in ["modify delete", "modify nothing"] {
            let modify = async || Ok(extended_json(things.find_one_and_delete(upserted()).await?));
            steps.step(name, modify).await;
        }
    }

    pub(super) async fn deletes(&self, steps: &mut Steps) {
        let things = &self.things;
        let delete = async || Ok(plain(&things.delete_one(doc! {"_id": 20}).await?));
        steps.step("delete one", delete).await;
        let delete = async || Ok(plain(&things.delete_many(doc! {"group": 5}).await?));
        steps.step("delete many", delete).await;
        let delete = async || {
            let delete = things.delete_one(doc! {"_id": 21});
            Ok(plain(&delete.hint(Hint::Keys(doc! {"_id": 1})).await?))
        };
        steps.step("delete hint", delete).await;
    }

    pub(super) async fn bulks(&self, steps: &mut Steps) {
        let namespace = self.things.namespace();
        let id = doc! {"_id": "bulk"};
        let models = || -> [WriteModel; 3] {
            let insert = InsertOneModel::builder().namespace(namespace.clone());
            let update = UpdateOneModel::builder().namespace(namespace.clone());
            let delete = DeleteOneModel::builder().namespace(namespace.clone());
            let change = doc! {"$set": {"x": 1}};
            [
                insert.document(id.clone()).build().into(),
                update.filter(id.clone()).update(change).build().into(),
                delete.filter(id.clone()).build().into(),
            ]
        };
        for (name, is_ordered) in [("bulk ordered", true), ("bulk unordered", false)] {
            let write = async || {
                let write = self.client.bulk_write(models()).ordered(is_ordered).await?;
                Ok(json!([
                    write.inserted_count,
                    write.modified_count,
                    write.deleted_count
                ]))
            };
            steps.step(name, write).await;
            // Inserts three documents. The second one fails, because its `_id` exists already.
            let insert = async || {
                let ids = [1, 2, 3].map(|n| {
                    if n == 2 {
                        Bson::from(1)
                    } else {
                        format!("{name} {n}").into()
                    }
                });
                let documents = ids.map(|id| doc! {"_id": id});
                let inserted = self
                    .things
                    .insert_many(documents)
                    .ordered(is_ordered)
                    .await?;
                Ok(plain(&inserted))
            };
            steps.step(&format!("{name} with an error"), insert).await;
        }
    }

    pub(super) async fn gridfs(&self, steps: &mut Steps) {
        let options = GridFsBucketOptions::builder()
            .chunk_size_bytes(100 * 1024)
            .build();
        let bucket = self.db.gridfs_bucket(options);
        let content = repeated(&(0..=250).collect::<Vec<_>>(), 350 * 1024);
        let upload = async || {
            let upload = bucket.open_upload_stream("name").id("file".into());
            let mut stream = upload.metadata(doc! {"a": 1}).await?;
            stream.write_all(&content).await?;
            stream.close().await?;
            Ok(Value::Null)
        };
        steps.step("gridfs upload", upload).await;
        let download = async || -> Result<Value, Error> {
            let mut whole = Vec::new();
            let mut stream = bucket.open_download_stream("file".into()).await?;
            stream.read_to_end(&mut whole).await?;
            Ok(digest(&whole))
        };
        steps.step("gridfs download", &download).await;
        let list = async || {
            let files = self
                .db
                .collection::<Document>("fs.files")
                .find(doc! {})
                .await?;
            Ok(extended_json(files.try_collect::<Vec<_>>().await?))
        };
        steps.step("gridfs list", list).await;
        let delete = async || Ok(plain(&bucket.delete("file".into()).await?));
        steps.step("gridfs delete", delete).await;
        steps.step("gridfs deleted", &download).await;
        let count = async || {
            let chunks = self.db.collection::<Document>("fs.chunks");
            Ok(chunks.count_documents(doc! {}).await?.into())
        };
        steps.step("gridfs chunks", count).await;
    }

    pub(super) async fn unacknowledged(&self, steps: &mut Steps) {
        let both = async || {
            let things = self.db.collection::<Document>("unacknowledged");
            let none = WriteConcern::builder().w(Some(0.into())).build();
            // The inserts run one after another on one connection of the driver's pool, so their
            // order is kept.
            for n in 0..50 {
                let insert = things.insert_one(doc! {"_id": n});
                insert.write_concern(none.clone()).await?;
            }
            Ok(things.count_documents(doc! {}).await?.into())
        };
        steps.step("unacknowledged", both).await;
    }

    pub(super) async fn large(&self, steps: &mut Steps) {
        let large = self.db.collection::<Document>("large");
        let both_ways = async || {
            large.insert_one(sized("large", 16 * MIB - 64)).await?;
            let found = large.find_one(doc! {"_id": "large"}).await?;
            let found = found.unwrap_or_default();
            Ok(digest(found.get_binary_generic("bytes").unwrap()))
        };
        steps.step("large", both_ways).await;
        let refused = async || {
            let inserted = large
                .insert_one(sized("too large", 16 * MIB + 1024))
                .await?;
            Ok(plain(&inserted))
        };
        steps.step("too large", refused).await;
    }
}

fn thing(n: i32) -> Document {
    doc! {"_id": n, "text": format!("text {}", n % 10), "group": n % 7}
}

/// A document with this length in BSON.
fn sized(id: &str, length_bytes: usize) -> Document {
    let with = |bytes| {
        let subtype = BinarySubtype::Generic;
        doc! {"_id": id, "bytes": Binary { subtype, bytes }}
    };
    let empty = with(Vec::new()).to_vec().unwrap().len();
    with(repeated(
        &(0..=255).collect::<Vec<_>>(),
        length_bytes - empty,
    ))
}

/// The pattern repeated up to this length. In a debug build, a cycling iterator would take seconds
/// for 16 MB.
fn repeated(pattern: &[u8], length_bytes: usize) -> Vec<u8> {
    let mut bytes = pattern.repeat(length_bytes.div_ceil(pattern.len()));
    bytes.truncate(length_bytes);
    bytes
}

fn digest(bytes: &[u8]) -> Value {
    json!([bytes.len(), format!("{:x?}", Sha256::digest(bytes))])
}

const MIB: usize = 1024 * 1024;
