package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.ClientSessionOptions;
import com.mongodb.ReadConcern;
import com.mongodb.WriteConcern;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoCollection;
import java.util.List;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonInt64;

/** Sessions outside transactions. */
final class Sessions {
    private static final BsonDocument FIRST = document("{_id: 1}");
    private static final BsonDocument COUNT_UP = document("{$inc: {n: 1}}");

    private Sessions() {
    }

    static void run(Context context) {
        MongoCollection<BsonDocument> counted = context.filled("sessions", 3).withWriteConcern(WriteConcern.MAJORITY);
        context.report().step("sessions: causal consistency", () -> causal(context, counted));
        context.report().step("sessions: snapshot", () -> snapshot(context, counted));
    }

    private static BsonArray causal(Context context, MongoCollection<BsonDocument> counted) {
        MongoCollection<BsonDocument> read = counted.withReadConcern(ReadConcern.MAJORITY);
        ClientSessionOptions options = ClientSessionOptions.builder().causallyConsistent(true).build();
        try (ClientSession session = context.client().startSession(options)) {
            counted.updateOne(session, FIRST, COUNT_UP);
            return new BsonArray(List.of(
                    read.find(session, FIRST).first(), new BsonInt64(read.countDocuments(session))));
        }
    }

    /**
     * Reads in the snapshot, writes outside of it, reads in the snapshot again, then reads outside
     * of it.
     */
    private static BsonArray snapshot(Context context, MongoCollection<BsonDocument> counted) {
        try (ClientSession session = context.client().startSession(Version.snapshot())) {
            BsonDocument before = counted.find(session, FIRST).first();
            counted.updateOne(FIRST, COUNT_UP);
            return new BsonArray(List.of(before, counted.find(session, FIRST).first(), counted.find(FIRST).first()));
        }
    }
}
