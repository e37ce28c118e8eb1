package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.WriteConcern;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoCollection;
import org.bson.BsonBinary;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonString;
import org.bson.RawBsonDocument;
import org.bson.codecs.BsonDocumentCodec;

/** Writes that are not answered, and documents at the limit of what the server takes. */
final class Extremes {
    private static final int LIMIT = 16 * 1024 * 1024;

    private Extremes() {
    }

    static void run(Context context) {
        context.report().step("unacknowledged: in a session", () -> {
            try (ClientSession session = context.client().startSession()) {
                return unacknowledged(context, session);
            }
        });
        context.report().step("unacknowledged", () -> unacknowledged(context, null));
        MongoCollection<BsonDocument> large = context.collection("large");
        context.report().step("large: written", () -> Results.insert(large.insertOne(sized("fits", LIMIT - 64))));
        context.report().step("large: read", () -> {
            BsonDocument read = large.find(document("{_id: 'fits'}")).first();
            return Digest.of(read.getBinary("bytes").getData()).append("size", new BsonInt32(size(read)));
        });
        context.report().step("large: refused", () -> Results.insert(large.insertOne(sized("refused", LIMIT + 1024))));
    }

    /** One after another, so on one connection of the driver's pool, and the count comes after them all. */
    private static BsonInt64 unacknowledged(Context context, ClientSession session) {
        MongoCollection<BsonDocument> collection = context.collection("unacknowledged");
        MongoCollection<BsonDocument> silent = collection.withWriteConcern(WriteConcern.UNACKNOWLEDGED);
        for (int id = 0; id < 50; id++) {
            if (session == null) {
                silent.insertOne(Context.smallDocument(id));
            } else {
                silent.insertOne(session, Context.smallDocument(id));
            }
        }
        return new BsonInt64(collection.countDocuments());
    }

    /** A document of so many bytes of BSON, filled up by its last field. */
    private static BsonDocument sized(String id, int size) {
        BsonDocument document = new BsonDocument("_id", new BsonString(id)).append("bytes", new BsonBinary(new byte[0]));
        return document.append("bytes", new BsonBinary(Digest.content(size - size(document))));
    }

    private static int size(BsonDocument document) {
        return new RawBsonDocument(document, new BsonDocumentCodec()).getByteBuffer().remaining();
    }
}
