package seawall.drivers;

import static seawall.drivers.Context.all;
import static seawall.drivers.Context.document;
import static seawall.drivers.Context.documents;

import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.DeleteOptions;
import com.mongodb.client.model.FindOneAndDeleteOptions;
import com.mongodb.client.model.FindOneAndReplaceOptions;
import com.mongodb.client.model.FindOneAndUpdateOptions;
import com.mongodb.client.model.ReplaceOptions;
import com.mongodb.client.model.ReturnDocument;
import com.mongodb.client.model.UpdateOptions;
import java.util.function.Supplier;
import org.bson.BsonDocument;

/** Updates, finds that modify, and deletes. */
final class Writes {
    private static final BsonDocument BY_ID = document("{_id: 1}");

    private final Context context;

    private Writes(Context context) {
        this.context = context;
    }

    static void run(Context context) {
        Writes writes = new Writes(context);
        writes.updates();
        writes.findAndModify();
        writes.deletes();
    }

    private void updates() {
        Report report = context.report();
        MongoCollection<BsonDocument> updated = context.filled("updates", 30);
        updated.insertOne(document("{_id: 'array', marks: [{n: 1}, {n: 5}, {n: 9}]}"));
        report.step("updates: one", () -> Results.update(
                updated.updateOne(document("{group: 1}"), document("{$set: {seen: true}}"))));
        report.step("updates: many", () -> Results.update(
                updated.updateMany(document("{group: 2}"), document("{$inc: {seen: 1}}"), Version.commented(new UpdateOptions(), "many"))));
        report.step("updates: upsert", () -> Results.update(updated.updateOne(
                document("{_id: 'new'}"), document("{$setOnInsert: {made: true}}"), new UpdateOptions().upsert(true))));
        report.step("updates: arrayFilters", () -> Results.update(updated.updateOne(
                document("{_id: 'array'}"), document("{$set: {'marks.$[high].high': true}}"),
                new UpdateOptions().arrayFilters(documents("{'high.n': {$gte: 5}}")))));
        report.step("updates: pipeline", () -> Results.update(updated.updateMany(document("{group: 3}"),
                documents("{$set: {both: {$concat: ['$text', '/', {$toString: '$group'}]}}}", "{$unset: 'text'}"))));
        report.step("updates: replace", () -> Results.update(updated.replaceOne(
                document("{_id: 4}"), document("{replaced: [1, 2]}"), new ReplaceOptions().upsert(true))));
        report.step("updates: collation", () -> Results.update(updated.updateOne(document("{text: 'ITEM 5'}"),
                document("{$set: {collated: true}}"), new UpdateOptions().collation(Finds.IGNORING_CASE))));
        report.step("updates: hint", () -> Results.update(updated.updateMany(document("{_id: {$lt: 3}}"),
                document("{$set: {hinted: true}}"), Version.hinted(new UpdateOptions(), BY_ID))));
        report.step("updates: afterwards", () -> all(updated.find().sort(BY_ID)));
    }

    private void findAndModify() {
        MongoCollection<BsonDocument> modified = context.filled("modified", 20);
        modify("update before", () -> modified.findOneAndUpdate(document("{group: 1}"), document("{$set: {a: 1}}"),
                new FindOneAndUpdateOptions().sort(document("{_id: -1}"))));
        modify("update after", () -> modified.findOneAndUpdate(document("{group: 1}"), document("{$inc: {a: 1}}"),
                new FindOneAndUpdateOptions().sort(document("{_id: -1}")).projection(document("{text: 0}"))
                        .returnDocument(ReturnDocument.AFTER)));
        modify("replace", () -> modified.findOneAndReplace(document("{_id: 2}"), document("{replaced: true}"),
                new FindOneAndReplaceOptions().returnDocument(ReturnDocument.AFTER)));
        modify("delete", () -> modified.findOneAndDelete(document("{group: 3}"),
                new FindOneAndDeleteOptions().sort(BY_ID).projection(document("{text: 1}"))));
        modify("upsert", () -> modified.findOneAndUpdate(document("{_id: 'new'}"), document("{$set: {a: 1}}"),
                new FindOneAndUpdateOptions().upsert(true).returnDocument(ReturnDocument.AFTER)));
        modify("upsert before", () -> modified.findOneAndReplace(document("{_id: 'newer'}"), document("{a: 1}"),
                new FindOneAndReplaceOptions().upsert(true)));
        modify("nothing found", () -> modified.findOneAndDelete(document("{_id: 'nowhere'}")));
    }

    private void modify(String how, Supplier<BsonDocument> action) {
        context.report().step("find and modify: " + how, () -> Results.orNull(action.get()));
    }

    private void deletes() {
        Report report = context.report();
        MongoCollection<BsonDocument> deleted = context.filled("deletes", 30);
        report.step("deletes: one", () -> Results.delete(deleted.deleteOne(document("{group: 1}"))));
        report.step("deletes: many", () -> Results.delete(deleted.deleteMany(document("{group: 2}"))));
        report.step("deletes: hint", () -> Results.delete(
                deleted.deleteMany(document("{_id: {$gte: 25}}"), Version.hinted(new DeleteOptions(), BY_ID))));
        report.step("deletes: afterwards", () -> all(deleted.find().sort(BY_ID).projection(document("{_id: 1}"))));
    }
}
