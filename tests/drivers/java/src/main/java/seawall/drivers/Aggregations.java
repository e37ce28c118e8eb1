package seawall.drivers;

import static seawall.drivers.Context.all;
import static seawall.drivers.Context.documents;

import com.mongodb.client.MongoCollection;
import org.bson.BsonDocument;
import org.bson.Document;

/** Pipelines that read, and pipelines that write. */
final class Aggregations {
    private Aggregations() {
    }

    static void run(Context context) {
        Report report = context.report();
        MongoCollection<BsonDocument> things = context.things();
        report.step("aggregate: grouped in batches", () -> all(things.aggregate(documents(
                "{$group: {_id: '$group', n: {$sum: 1}, sum: {$sum: '$_id'}}}", "{$sort: {_id: 1}}"))
                .batchSize(2).allowDiskUse(true).comment("grouped")));
        report.step("aggregate: $lookup", () -> all(things.aggregate(documents(
                "{$match: {_id: {$lt: 3}}}",
                "{$lookup: {from: 'updates', localField: '_id', foreignField: '_id', as: 'updated'}}",
                "{$sort: {_id: 1}}"))));
        report.step("aggregate: $facet", () -> all(things.aggregate(documents(
                "{$facet: {count: [{$count: 'n'}], last: [{$sort: {_id: -1}}, {$limit: 2}]}}"))));
        report.step("aggregate: $out", () -> {
            things.aggregate(documents("{$match: {group: 4}}", "{$out: 'out'}")).toCollection();
            return all(context.collection("out").find().sort(new Document("_id", 1)));
        });
        report.step("aggregate: $merge", () -> {
            things.aggregate(documents("{$match: {_id: {$lte: 11}}}", "{$set: {merged: true}}",
                    "{$merge: {into: 'out', whenMatched: 'merge', whenNotMatched: 'discard'}}")).toCollection();
            return all(context.collection("out").find().sort(new Document("_id", 1)));
        });
        if (!context.stable()) {
            report.step("aggregate: explain", () -> Results.keys(Version.explain(things.aggregate(documents(
                    "{$match: {group: 4}}", "{$group: {_id: '$text'}}")))));
        }
    }
}
