package seawall.drivers;

import com.mongodb.ClientSessionOptions;
import com.mongodb.MongoClientSettings;
import com.mongodb.MongoServerException;
import com.mongodb.ServerApi;
import com.mongodb.ServerApiVersion;
import com.mongodb.client.AggregateIterable;
import com.mongodb.client.FindIterable;
import com.mongodb.client.model.BulkWriteOptions;
import com.mongodb.client.model.DeleteOptions;
import com.mongodb.client.model.InsertManyOptions;
import com.mongodb.client.model.InsertOneOptions;
import com.mongodb.client.model.UpdateOptions;
import java.util.Map;
import org.bson.BsonDocument;

/** The calls that the oldest driver lacks. {@code src/oldest} has the class for that driver. */
final class Version {
    /** The steps that this version skips, with the reason. */
    static final Map<String, String> SKIPPED_STEPS = Map.of();

    /** Fields with a dot or a dollar sign in their names. */
    static final String ODD_FIELDS = ", 'a.b': 1, $c: 2";

    private Version() {
    }

    static void stableApi(MongoClientSettings.Builder settings) {
        settings.serverApi(ServerApi.builder().version(ServerApiVersion.V1).strict(true).build());
    }

    static ClientSessionOptions snapshot() {
        return ClientSessionOptions.builder().snapshot(true).build();
    }

    static InsertOneOptions commented(InsertOneOptions options, String comment) {
        return options.comment(comment);
    }

    static InsertManyOptions commented(InsertManyOptions options, String comment) {
        return options.comment(comment);
    }

    static BulkWriteOptions commented(BulkWriteOptions options, String comment) {
        return options.comment(comment);
    }

    static UpdateOptions commented(UpdateOptions options, String comment) {
        return options.comment(comment);
    }

    static UpdateOptions hinted(UpdateOptions options, BsonDocument hint) {
        return options.hint(hint);
    }

    static DeleteOptions hinted(DeleteOptions options, BsonDocument hint) {
        return options.hint(hint).comment("hint");
    }

    static FindIterable<BsonDocument> let(FindIterable<BsonDocument> find, BsonDocument variables) {
        return find.let(variables);
    }

    static FindIterable<BsonDocument> allowDiskUse(FindIterable<BsonDocument> find) {
        return find.allowDiskUse(true);
    }

    static BsonDocument explain(AggregateIterable<BsonDocument> aggregate) {
        return aggregate.explain(BsonDocument.class);
    }

    /** Null if the server's reply has no such field. */
    static String codeName(MongoServerException error) {
        return error.getErrorCodeName();
    }
}
