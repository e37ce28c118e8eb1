package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoCursor;
import com.mongodb.client.model.changestream.FullDocument;
import org.bson.BsonDocument;

/** Change stream events as the server sent them. Each event is read before the next change. */
final class ChangeStreams {
    private ChangeStreams() {
    }

    static void run(Context context) {
        Report report = context.report();
        MongoCollection<BsonDocument> watched = context.filled("watched", 3);
        BsonDocument[] second = new BsonDocument[1];
        try (MongoCursor<BsonDocument> events = watched.watch()
                .fullDocument(FullDocument.UPDATE_LOOKUP).withDocumentClass(BsonDocument.class).cursor()) {
            report.step("change stream: insert", () -> {
                watched.insertOne(document("{_id: 'watched', n: 1}"));
                return events.next();
            });
            report.step("change stream: update", () -> {
                watched.updateOne(document("{_id: 'watched'}"), document("{$set: {n: 2, added: 'now'}}"));
                second[0] = events.next();
                return second[0];
            });
            report.step("change stream: delete", () -> {
                watched.deleteOne(document("{_id: 'watched'}"));
                return events.next();
            });
        }
        report.step("change stream: resumed", () -> {
            try (MongoCursor<BsonDocument> events = watched.watch()
                    .resumeAfter(second[0].getDocument("_id")).withDocumentClass(BsonDocument.class).cursor()) {
                return events.next();
            }
        });
    }
}
