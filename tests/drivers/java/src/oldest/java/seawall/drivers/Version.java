package seawall.drivers;

import com.mongodb.ClientSessionOptions;
import com.mongodb.MongoClientSettings;
import com.mongodb.MongoCommandException;
import com.mongodb.MongoServerException;
import com.mongodb.client.AggregateIterable;
import com.mongodb.client.FindIterable;
import com.mongodb.client.model.BulkWriteOptions;
import com.mongodb.client.model.DeleteOptions;
import com.mongodb.client.model.InsertManyOptions;
import com.mongodb.client.model.InsertOneOptions;
import com.mongodb.client.model.UpdateOptions;
import java.util.Map;
import org.bson.BsonDocument;

/**
 * The calls of driver 4.0. This driver has no comments on writes, so this class ignores them. Steps
 * that need other missing calls are skipped.
 */
final class Version {
    /** The steps that this version skips, with the reason. */
    static final Map<String, String> SKIPPED_STEPS = Map.of(
            "find options: let", "find has no let before 4.6",
            "find options: allowDiskUse", "find has no allowDiskUse before 4.1",
            "updates: hint", "update has no hint before 4.1",
            "deletes: hint", "delete has no hint before 4.1",
            "aggregate: explain", "aggregate has no explain before 4.2",
            "sessions: snapshot", "no snapshot sessions before 4.3");

    /** Empty, because this version refuses to insert fields with a dot or a dollar sign. */
    static final String ODD_FIELDS = "";

    private Version() {
    }

    static void stableApi(MongoClientSettings.Builder settings) {
        throw new UnsupportedOperationException("no Stable API before 4.3");
    }

    static ClientSessionOptions snapshot() {
        throw skipped();
    }

    static InsertOneOptions commented(InsertOneOptions options, String comment) {
        return options;
    }

    static InsertManyOptions commented(InsertManyOptions options, String comment) {
        return options;
    }

    static BulkWriteOptions commented(BulkWriteOptions options, String comment) {
        return options;
    }

    static UpdateOptions commented(UpdateOptions options, String comment) {
        return options;
    }

    static UpdateOptions hinted(UpdateOptions options, BsonDocument hint) {
        throw skipped();
    }

    static DeleteOptions hinted(DeleteOptions options, BsonDocument hint) {
        throw skipped();
    }

    static FindIterable<BsonDocument> let(FindIterable<BsonDocument> find, BsonDocument variables) {
        throw skipped();
    }

    static FindIterable<BsonDocument> allowDiskUse(FindIterable<BsonDocument> find) {
        throw skipped();
    }

    static BsonDocument explain(AggregateIterable<BsonDocument> aggregate) {
        throw skipped();
    }

    /** Null if the server's reply has no such field. */
    static String codeName(MongoServerException error) {
        return error instanceof MongoCommandException refused ? refused.getErrorCodeName() : null;
    }

    private static UnsupportedOperationException skipped() {
        return new UnsupportedOperationException("this step is skipped");
    }
}
