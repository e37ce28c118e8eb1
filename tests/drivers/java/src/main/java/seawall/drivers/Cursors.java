package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.CursorType;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoCursor;
import com.mongodb.client.model.CreateCollectionOptions;
import org.bson.BsonArray;
import org.bson.BsonDocument;

/** Cursors that are not read to their end. */
final class Cursors {
    private Cursors() {
    }

    static void run(Context context) {
        context.report().step("cursors: closed before its end", () -> {
            try (MongoCursor<BsonDocument> cursor =
                    context.things().find().sort(document("{_id: 1}")).batchSize(5).cursor()) {
                return taken(cursor, 7);
            }
        });
        context.report().step("cursors: tailable", () -> tailed(context));
    }

    private static BsonArray tailed(Context context) {
        context.database().createCollection("tailed", new CreateCollectionOptions().capped(true).sizeInBytes(65536));
        MongoCollection<BsonDocument> tailed = context.filled("tailed", 3);
        try (MongoCursor<BsonDocument> cursor = tailed.find().cursorType(CursorType.TailableAwait).cursor()) {
            BsonArray seen = taken(cursor, 3);
            tailed.insertMany(Context.smallDocuments(3, 5));
            seen.addAll(taken(cursor, 2));
            return seen;
        }
    }

    private static BsonArray taken(MongoCursor<BsonDocument> cursor, int count) {
        BsonArray taken = new BsonArray();
        while (taken.size() < count) {
            taken.add(cursor.next());
        }
        return taken;
    }
}
