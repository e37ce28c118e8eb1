package seawall.drivers;

import static seawall.drivers.Context.all;
import static seawall.drivers.Context.document;

import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.BulkWriteOptions;
import com.mongodb.client.model.DeleteManyModel;
import com.mongodb.client.model.DeleteOneModel;
import com.mongodb.client.model.InsertOneModel;
import com.mongodb.client.model.ReplaceOneModel;
import com.mongodb.client.model.UpdateManyModel;
import com.mongodb.client.model.UpdateOneModel;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.WriteModel;
import java.util.List;
import org.bson.BsonDocument;

/**
 * Mixed models in one call. Each kind of bulk runs once without an error and once with an error in
 * the middle.
 */
final class Bulks {
    private Bulks() {
    }

    static void run(Context context) {
        bulk(context, "bulk ordered", context.filled("ordered", 20), true);
        bulk(context, "bulk unordered", context.filled("unordered", 20), false);
    }

    private static void bulk(Context context, String name, MongoCollection<BsonDocument> collection, boolean ordered) {
        BulkWriteOptions options = new BulkWriteOptions().ordered(ordered);
        context.report().step(name, () -> Results.bulk(collection.bulkWrite(mixed(), options)));
        context.report().step(name + ": error", () -> Results.bulk(collection.bulkWrite(failing(), options)));
        // A separate step, because servers before 4.4 refuse the comment.
        BulkWriteOptions commented = Version.commented(new BulkWriteOptions().ordered(ordered), name);
        context.report().step(name + ": comment",
                () -> Results.bulk(context.collection("commented " + name).bulkWrite(mixed(), commented)));
        context.report().step(name + ": afterwards", () -> all(collection.find().sort(document("{_id: 1}"))));
    }

    private static List<WriteModel<BsonDocument>> mixed() {
        return List.of(
                new InsertOneModel<>(document("{_id: 'a', n: 0}")),
                new UpdateOneModel<>(document("{_id: 1}"), document("{$set: {one: true}}")),
                new UpdateManyModel<>(document("{group: 2}"), document("{$set: {many: true}}")),
                new UpdateOneModel<>(document("{_id: 'b'}"), document("{$set: {made: true}}"), new UpdateOptions().upsert(true)),
                new ReplaceOneModel<>(document("{_id: 3}"), document("{replaced: true}")),
                new DeleteOneModel<>(document("{_id: 4}")),
                new DeleteManyModel<>(document("{group: 5}")),
                new InsertOneModel<>(document("{_id: 'c'}")));
    }

    private static List<WriteModel<BsonDocument>> failing() {
        return List.of(
                new InsertOneModel<>(document("{_id: 'd'}")),
                new UpdateOneModel<>(document("{_id: 'd'}"), document("{$set: {x: 1}}")),
                new InsertOneModel<>(document("{_id: 'a'}")),
                new UpdateOneModel<>(document("{_id: 'a'}"), document("{$inc: {n: 1}}")),
                new UpdateOneModel<>(document("{_id: 6}"), document("{$inc: {text: 1}}")),
                new DeleteOneModel<>(document("{_id: 8}")));
    }
}
