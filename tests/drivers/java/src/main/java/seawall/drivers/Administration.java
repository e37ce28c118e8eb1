package seawall.drivers;

import static seawall.drivers.Context.all;
import static seawall.drivers.Context.document;
import static seawall.drivers.Context.documents;

import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.CreateCollectionOptions;
import com.mongodb.client.model.IndexOptions;
import com.mongodb.client.model.ValidationAction;
import com.mongodb.client.model.ValidationLevel;
import com.mongodb.client.model.ValidationOptions;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonString;
import org.bson.BsonValue;

/** Indexes, collections and views, and dropping the database. */
final class Administration {
    private final Context context;
    private final Report report;

    private Administration(Context context) {
        this.context = context;
        this.report = context.report();
    }

    static void run(Context context) {
        Administration administration = new Administration(context);
        administration.indexes();
        administration.collections();
        administration.statistics();
        administration.report.step("drop", () -> {
            context.database().drop();
            return administration.listed();
        });
    }

    private void indexes() {
        MongoCollection<BsonDocument> indexed = context.filled("indexed", 10);
        report.step("administration: create indexes", () -> new BsonArray(List.of(
                new BsonString(indexed.createIndex(document("{group: 1, text: -1}"))),
                new BsonString(indexed.createIndex(document("{text: 1}"), new IndexOptions().unique(true)
                        .name("unique").partialFilterExpression(document("{group: {$gt: 1}}")))),
                new BsonString(indexed.createIndex(document("{made: 1}"), new IndexOptions()
                        .expireAfter(3600L, TimeUnit.SECONDS).collation(Finds.IGNORING_CASE))))));
        report.step("administration: list indexes", () -> all(indexed.listIndexes(BsonDocument.class)));
        report.step("administration: drop index", () -> {
            indexed.dropIndex("unique");
            return all(indexed.listIndexes(BsonDocument.class));
        });
        report.step("administration: drop indexes", () -> {
            indexed.dropIndexes();
            return all(indexed.listIndexes(BsonDocument.class));
        });
        report.step("administration: drop a missing index", () -> {
            indexed.dropIndex("unique");
            return document("{}");
        });
    }

    private void collections() {
        report.step("administration: create with validator", () -> {
            context.database().createCollection("checked", new CreateCollectionOptions().validationOptions(
                    new ValidationOptions().validator(document("{n: {$gte: 0}}"))
                            .validationLevel(ValidationLevel.MODERATE).validationAction(ValidationAction.WARN)));
            return document("{}");
        });
        report.step("administration: create capped", () -> {
            context.database().createCollection("capped",
                    new CreateCollectionOptions().capped(true).sizeInBytes(4096).maxDocuments(10));
            return document("{}");
        });
        report.step("administration: view", () -> {
            context.database().createView("view", "things",
                    documents("{$match: {group: 1}}", "{$project: {text: 1}}"));
            return all(context.collection("view").find(document("{_id: {$lt: 40}}")).sort(document("{_id: 1}")));
        });
        report.step("administration: list collections", this::listed);
    }

    /** Sorted by name, because servers return them in any order. */
    private BsonArray listed() {
        List<BsonDocument> collections = context.database().listCollections(BsonDocument.class).into(new ArrayList<>());
        collections.sort(Comparator.comparing(each -> each.getString("name").getValue()));
        return new BsonArray(collections);
    }

    private void statistics() {
        if (!context.stable()) {
            report.step("administration: collStats", () -> {
                context.database().createCollection("empty");
                BsonDocument stats = context.command("{collStats: 'empty'}");
                BsonDocument printed = new BsonDocument("keys", Results.keys(stats));
                for (String key : List.of("ns", "count", "size", "storageSize", "nindexes", "capped", "ok")) {
                    printed.append(key, stats.get(key));
                }
                return printed;
            });
        }
        report.step("administration: dbStats", () -> ok(context.command("{dbStats: 1}")));
    }

    private static BsonValue ok(BsonDocument reply) {
        return reply.get("ok");
    }
}
