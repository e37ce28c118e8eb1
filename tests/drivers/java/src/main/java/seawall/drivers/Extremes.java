package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.WriteConcern;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoCollection;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.bson.BsonBinary;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonString;
import org.bson.RawBsonDocument;
import org.bson.codecs.BsonDocumentCodec;

/** Unacknowledged writes, and documents at the server's size limit. */
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
        largeBatches(context);
        MongoCollection<BsonDocument> large = context.collection("large");
        context.report().step("large: written", () -> Results.insert(large.insertOne(sized("fits", LIMIT - 64))));
        context.report().step("large: read", () -> {
            BsonDocument read = large.find(document("{_id: 'fits'}")).first();
            return Digest.of(read.getBinary("bytes").getData()).append("size", new BsonInt32(size(read)));
        });
        context.report().step("large: refused", () -> Results.insert(large.insertOne(sized("refused", LIMIT + 1024))));
    }

    /**
     * The inserts run one after another, so they use one connection of the driver's pool. The count
     * runs after all of them.
     */
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

    /** Compresses commands and replies of several hundred KiB: each document has about 7 KiB. */
    private static void largeBatches(Context context) {
        Report report = context.report();
        MongoCollection<BsonDocument> padded = context.collection("padded");
        report.step("large batches: written", () -> {
            List<BsonDocument> documents = IntStream.range(0, 250).mapToObj(Extremes::padded).toList();
            return Results.insert(padded.insertMany(documents));
        });
        report.step("large batches: found", () -> textsDigest(padded.find().sort(document("{_id: 1}"))));
        report.step("large batches: found in batches of 50", () -> textsDigest(padded.find().sort(document("{_id: -1}")).batchSize(50)));
        report.step("large batches: aggregated", () -> textsDigest(
                padded.aggregate(Context.documents("{$sort: {_id: 1}}")).batchSize(90)));
    }

    private static BsonDocument padded(int id) {
        String text = IntStream.range(0, 1200).mapToObj(at -> Integer.toString(id * at)).collect(Collectors.joining(" "));
        return new BsonDocument("_id", new BsonInt32(id)).append("text", new BsonString(text));
    }

    private static BsonDocument textsDigest(Iterable<BsonDocument> found) {
        StringBuilder texts = new StringBuilder();
        found.forEach(each -> texts.append(each.getString("text").getValue()));
        return Digest.of(texts.toString().getBytes(StandardCharsets.UTF_8));
    }

    /** A document of this many bytes of BSON. Its last field pads it. */
    private static BsonDocument sized(String id, int size) {
        BsonDocument document = new BsonDocument("_id", new BsonString(id)).append("bytes", new BsonBinary(new byte[0]));
        return document.append("bytes", new BsonBinary(Digest.content(size - size(document))));
    }

    private static int size(BsonDocument document) {
        return new RawBsonDocument(document, new BsonDocumentCodec()).getByteBuffer().remaining();
    }
}
