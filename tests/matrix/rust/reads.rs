//! Steps for read operations: BSON types, options of `find`, read concerns, read preferences,
//! counts, aggregation and cursors.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use mongodb::{
    bson::{
        Binary, Bson, DateTime, Document, JavaScriptCodeWithScope, Regex, Timestamp, doc,
        oid::ObjectId, spec::BinarySubtype,
    },
    options::{
        Collation, CollationStrength, CursorType, FindOptions, Hint, ReadConcern, ReadPreference,
    },
};

use super::{
    Application,
    outcome::{Steps, extended_json, plain},
};

impl Application {
    pub(super) async fn types(&self, steps: &mut Steps) {
        let id = ObjectId::parse_str("0123456789abcdef01234567").unwrap();
        let binary = |subtype, bytes: &[u8]| Binary {
            subtype,
            bytes: bytes.to_vec(),
        };
        let scoped = JavaScriptCodeWithScope {
            code: "x".to_owned(),
            scope: doc! {"x": 1},
        };
        let document = doc! {
            "_id": "types", "double": 1.5, "infinite": f64::NEG_INFINITY, "string": "naïve Ω 🌊",
            "embedded": {"a": {}}, "array": [null, true, [1]],
            "binary": binary(BinarySubtype::UserDefined(128), &[0, 255]),
            "generic": binary(BinarySubtype::Generic, b"bytes"),
            "uuid": binary(BinarySubtype::Uuid, &[7; 16]),
            "undefined": Bson::Undefined, "id": id, "boolean": false,
            "date": DateTime::from_millis(1_577_934_245_678), "null": null,
            "regex": Regex { pattern: "^a.*".try_into().unwrap(), options: "im".try_into().unwrap() },
            "code": Bson::JavaScriptCode("function() {}".to_owned()),
            "scoped": scoped, "symbol": Bson::Symbol("symbol".to_owned()), "int": 42,
            "timestamp": Timestamp { time: 5, increment: 6 }, "long": 9_007_199_254_740_993_i64,
            "decimal": Bson::Decimal128("-1.10E-300".parse().unwrap()),
            "min": Bson::MinKey, "max": Bson::MaxKey,
        };
        let both_ways = async || {
            let types = self.db.collection::<Document>("types");
            types.insert_one(document).await?;
            Ok(extended_json(types.find_one(doc! {"_id": "types"}).await?))
        };
        steps.step("types", both_ways).await;
    }

    pub(super) async fn find_options(&self, steps: &mut Steps) {
        for (name, filter, options) in find_cases_of_results()
            .into_iter()
            .chain(find_cases_of_plans())
        {
            let find = async || {
                let cursor = self.things.find(filter).with_options(options).await?;
                Ok(extended_json(cursor.try_collect::<Vec<_>>().await?))
            };
            steps.step(&format!("find {name}"), find).await;
        }
    }

    pub(super) async fn concerns_and_preferences(&self, steps: &mut Steps) {
        let concerns = [
            ("local", ReadConcern::local()),
            ("majority", ReadConcern::majority()),
            ("available", ReadConcern::available()),
        ];
        for (name, concern) in concerns {
            let read = async || {
                let read = self.things.find_one(doc! {"_id": 1});
                Ok(extended_json(read.read_concern(concern).await?))
            };
            steps.step(&format!("read concern {name}"), read).await;
        }
        let options = None;
        let preferences = [
            ("primary", ReadPreference::Primary),
            (
                "primaryPreferred",
                ReadPreference::PrimaryPreferred {
                    options: options.clone(),
                },
            ),
            (
                "secondary",
                ReadPreference::Secondary {
                    options: options.clone(),
                },
            ),
            (
                "secondaryPreferred",
                ReadPreference::SecondaryPreferred {
                    options: options.clone(),
                },
            ),
            ("nearest", ReadPreference::Nearest { options }),
        ];
        for (name, preference) in preferences {
            let read = async || {
                let mut session = self.client.start_session().causal_consistency(true).await?;
                let change = doc! {"$set": {"read by": name}};
                let update = self.things.update_one(doc! {"_id": 2}, change);
                update.session(&mut session).await?;
                let read = self.things.find_one(doc! {"_id": 2}).session(&mut session);
                Ok(extended_json(
                    read.selection_criteria(preference.into()).await?,
                ))
            };
            steps.step(&format!("read preference {name}"), read).await;
        }
    }

    pub(super) async fn counts(&self, steps: &mut Steps) {
        let things = &self.things;
        let count = async || Ok(things.count_documents(doc! {"group": 1}).await?.into());
        steps.step("count with filter", count).await;
        let count = async || Ok(things.estimated_document_count().await?.into());
        steps.step("estimated count", count).await;
        let distinct = async || Ok(extended_json(things.distinct("group", doc! {}).await?));
        steps.step("distinct", distinct).await;
    }

    pub(super) async fn aggregate(&self, steps: &mut Steps) {
        let grouped = vec![
            doc! {"$group": {"_id": "$group", "n": {"$sum": 1}}},
            doc! {"$sort": {"_id": 1}},
        ];
        let then = |more: Vec<Document>| [grouped.clone(), more].concat();
        let cases = [
            ("grouped", grouped.clone()),
            (
                "lookup",
                vec![
                    doc! {"$match": {"_id": {"$lt": 2}}},
                    doc! {"$project": {"text": 0}},
                    doc! {"$lookup": {"from": "types", "localField": "group", "foreignField": "int", "as": "found"}},
                ],
            ),
            (
                "facet",
                vec![doc! {"$facet": {"groups": grouped.clone(), "count": [{"$count": "n"}]}}],
            ),
            ("out", then(vec![doc! {"$out": "groups"}])),
            (
                "merge",
                then(vec![
                    doc! {"$match": {"_id": {"$ne": null}}},
                    doc! {"$set": {"n": 0}},
                    doc! {"$merge": {"into": "groups", "on": "_id"}},
                ]),
            ),
        ];
        for (name, pipeline) in cases {
            let run = async || {
                let cursor = self.things.aggregate(pipeline).batch_size(2).await?;
                Ok(extended_json(cursor.try_collect::<Vec<_>>().await?))
            };
            steps.step(&format!("aggregate {name}"), run).await;
        }
        let written = async || {
            let groups = self.db.collection::<Document>("groups");
            let found = groups.find(doc! {}).sort(doc! {"_id": 1}).await?;
            Ok(extended_json(found.try_collect::<Vec<_>>().await?))
        };
        steps.step("aggregate written", written).await;
        if !self.is_stable {
            let explained = async || {
                let aggregate = doc! {"aggregate": "things", "pipeline": grouped, "cursor": {}};
                let reply = self.db.run_command(doc! {"explain": aggregate}).await?;
                Ok(extended_json(reply.keys().cloned().collect::<Vec<_>>()))
            };
            steps.step("aggregate explain", explained).await;
        }
    }

    pub(super) async fn cursors(&self, steps: &mut Steps) {
        let closed = async || {
            let find = self.things.find(doc! {}).projection(doc! {"_id": 1});
            let cursor = find.batch_size(2).sort(doc! {"_id": 1}).await?;
            Ok(extended_json(cursor.take(3).try_collect::<Vec<_>>().await?))
        };
        steps.step("cursor closed before its end", closed).await;
        let create = async || {
            let create = self.db.create_collection("capped").capped(true);
            Ok(plain(&create.size(65536).await?))
        };
        steps.step("cursor create capped", create).await;
        let tailed = async || {
            let capped = self.db.collection::<Document>("capped");
            capped.insert_many((0..3).map(|n| doc! {"_id": n})).await?;
            let find = capped.find(doc! {}).cursor_type(CursorType::TailableAwait);
            let mut cursor = find.max_await_time(Duration::from_secs(5)).await?;
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.push(cursor.next().await.transpose()?);
            }
            capped.insert_one(doc! {"_id": 3}).await?;
            seen.push(cursor.next().await.transpose()?);
            Ok(extended_json(seen))
        };
        steps.step("cursor tailable", tailed).await;
    }
}

type FindCase = (&'static str, Document, FindOptions);

/// Test cases of `find`, with options that change the returned documents or their fields.
fn find_cases_of_results() -> [FindCase; 7] {
    let few = || doc! {"_id": {"$lt": 3}};
    let wanted = doc! {"$expr": {"$eq": ["$_id", "$$wanted"]}};
    let collation = Collation::builder()
        .locale("en")
        .strength(CollationStrength::Secondary)
        .build();
    let options = || FindOptions::builder().projection(doc! {"text": 0});
    let projected = FindOptions::builder().projection(doc! {"_id": 0, "group": 1});
    let sorted = options().sort(doc! {"group": -1, "_id": 1});
    [
        ("projection", few(), projected.build()),
        ("sort", doc! {}, sorted.skip(2).limit(5).build()),
        (
            "collation",
            doc! {"text": "TEXT 5"},
            options().collation(collation).build(),
        ),
        (
            "showRecordId",
            few(),
            options().show_record_id(true).build(),
        ),
        (
            "let",
            wanted,
            options().let_vars(doc! {"wanted": 7}).build(),
        ),
        (
            "singleBatch",
            doc! {},
            options().limit(-3).sort(doc! {"_id": 1}).build(),
        ),
        (
            "batches",
            doc! {"group": 3},
            options().batch_size(5).sort(doc! {"_id": 1}).build(),
        ),
    ]
}

/// Test cases of `find`, with options that control how the server uses indexes and executes the
/// query.
fn find_cases_of_plans() -> [FindCase; 6] {
    let by_id = || Some(Hint::Keys(doc! {"_id": 1}));
    let one = || doc! {"_id": 1};
    let options = || FindOptions::builder().projection(doc! {"text": 0});
    let bounded = options().min(doc! {"_id": 3}).max(doc! {"_id": 6});
    let sorted = options().sort(doc! {"text": 1}).limit(2);
    let key = options().return_key(true).hint(by_id());
    let comment = Bson::from(doc! {"why": "matrix"});
    [
        (
            "hint",
            doc! {"_id": {"$gt": 295}},
            options().hint(by_id()).build(),
        ),
        ("min and max", doc! {}, bounded.hint(by_id()).build()),
        ("returnKey", doc! {"_id": {"$lt": 3}}, key.build()),
        ("allowDiskUse", doc! {}, sorted.allow_disk_use(true).build()),
        ("comment", one(), options().comment(comment).build()),
        (
            "maxTimeMS",
            one(),
            options().max_time(Duration::from_secs(10)).build(),
        ),
    ]
}
