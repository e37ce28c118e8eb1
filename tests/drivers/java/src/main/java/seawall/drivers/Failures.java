package seawall.drivers;

import static seawall.drivers.Context.all;
import static seawall.drivers.Context.document;

import com.mongodb.WriteConcern;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.CreateCollectionOptions;
import com.mongodb.client.model.IndexOptions;
import com.mongodb.client.model.ValidationOptions;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.bson.BsonDocument;
import org.bson.BsonString;
import org.bson.BsonValue;

/** Operations that the server refuses, one line each. */
final class Failures {
    private final Context context;

    private Failures(Context context) {
        this.context = context;
    }

    static void run(Context context) {
        Failures failures = new Failures(context);
        failures.documents();
        failures.commands();
        failures.collections();
        failures.fields();
    }

    private void documents() {
        MongoCollection<BsonDocument> things = context.things();
        failure("duplicate key", () -> Results.insert(things.insertOne(document("{_id: 1}"))));
        failure("unknown operator", () -> all(things.find(document("{$nope: 1}"))));
        failure("unknown command", () -> context.command("{noSuchCommand: 1}"));
        failure("not authorised", () -> Results.insert(context.client().getDatabase("elsewhere")
                .getCollection("things", BsonDocument.class).insertOne(document("{_id: 1}"))));
    }

    private void commands() {
        failure("maxTimeMS", () -> all(context.things().find(document(
                "{$expr: {$gte: [{$reduce: {input: {$range: [0, 20000]}, initialValue: 0,"
                        + " in: {$add: ['$$value', '$$this']}}}, 0]}}"))
                .maxTime(50, TimeUnit.MILLISECONDS)));
        failure("document validation", () -> {
            BsonDocument schema = document("{$jsonSchema: {required: ['n'], properties: {n: {bsonType: 'int'}}}}");
            context.database().createCollection("validated",
                    new CreateCollectionOptions().validationOptions(new ValidationOptions().validator(schema)));
            return Results.insert(context.collection("validated").insertOne(document("{_id: 1, n: 'text'}")));
        });
        failure("cursor not found", () -> context.command("{getMore: {$numberLong: '123456789'}, collection: 'things'}"));
    }

    private void collections() {
        failure("collection exists", () -> {
            // The options differ from those of the collection, because later servers report success
            // if they are equal.
            context.database().createCollection("things", new CreateCollectionOptions().collation(Finds.IGNORING_CASE));
            return document("{}");
        });
        failure("index conflict", () -> {
            MongoCollection<BsonDocument> indexed = context.collection("conflicts");
            indexed.createIndex(document("{group: 1}"), new IndexOptions().name("by"));
            return new BsonString(indexed.createIndex(document("{text: 1}"), new IndexOptions().name("by")));
        });
        failure("write concern", () -> Results.insert(context.collection("unmet")
                .withWriteConcern(new WriteConcern(50).withWTimeout(100, TimeUnit.MILLISECONDS))
                .insertOne(document("{_id: 1}"))));
        failure("invalid namespace", () -> Results.insert(
                context.collection(".starts with a dot").insertOne(document("{_id: 1}"))));
    }

    private void fields() {
        failure("immutable field", () -> Results.update(
                context.things().updateOne(document("{_id: 1}"), document("{$set: {_id: 2}}"))));
        failure("getMore of an invalid type", () -> context.command("{getMore: 'text', collection: 'things'}"));
        failure("commit of an unknown transaction", () -> {
            try (ClientSession session = context.client().startSession()) {
                return context.client().getDatabase("admin").runCommand(session, document(
                        "{commitTransaction: 1, txnNumber: {$numberLong: '1000'}, autocommit: false}"), BsonDocument.class);
            }
        });
    }

    private void failure(String name, Supplier<BsonValue> action) {
        context.report().step("errors: " + name, action);
    }
}
