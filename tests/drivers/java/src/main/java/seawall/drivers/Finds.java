package seawall.drivers;

import static seawall.drivers.Context.all;
import static seawall.drivers.Context.document;

import com.mongodb.ClientSessionOptions;
import com.mongodb.ReadConcern;
import com.mongodb.ReadConcernLevel;
import com.mongodb.ReadPreference;
import com.mongodb.WriteConcern;
import com.mongodb.client.ClientSession;
import com.mongodb.client.FindIterable;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.Collation;
import com.mongodb.client.model.CollationStrength;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonString;
import org.bson.BsonValue;

/** Reads: the options of a find, read concerns, read preferences and counts. */
final class Finds {
    static final Collation IGNORING_CASE = Collation.builder()
            .locale("en").collationStrength(CollationStrength.SECONDARY).build();

    private final Context context;

    private Finds(Context context) {
        this.context = context;
    }

    static void run(Context context) {
        Finds finds = new Finds(context);
        finds.options();
        finds.readConcerns();
        finds.readPreferences();
        finds.counts();
    }

    private void options() {
        BsonDocument byId = document("{_id: 1}");
        find("projection", "{group: 3}", find -> find.projection(document("{text: 1, _id: 0}")));
        find("sort, skip and limit", "{group: 3}", find -> find.sort(document("{_id: -1}")).skip(2).limit(3));
        find("collation", "{text: 'ITEM 5'}", find -> find.collation(IGNORING_CASE));
        find("hint", "{_id: {$lt: 3}}", find -> find.hint(byId));
        find("min and max", "{}", find -> find.hint(byId).min(document("{_id: 10}")).max(document("{_id: 13}")));
        find("returnKey", "{_id: {$lt: 3}}", find -> find.hint(byId).returnKey(true));
        find("showRecordId", "{_id: {$lt: 3}}", find -> find.sort(byId).showRecordId(true));
        find("let", "{$expr: {$eq: ['$_id', '$$wanted']}}", find -> Version.let(find, document("{wanted: 5}")));
        find("allowDiskUse", "{group: 1}", find -> Version.allowDiskUse(find.sort(document("{text: 1}")).limit(3)));
        find("comment", "{_id: 4}", find -> find.comment("from a test"));
        find("maxTimeMS", "{_id: 4}", find -> find.maxTime(10, TimeUnit.SECONDS));
        find("singleBatch", "{group: 3}", find -> find.sort(byId).limit(-4));
        find("batch size", "{group: 3}", find -> find.sort(byId).batchSize(5));
    }

    private void find(String option, String filter, UnaryOperator<FindIterable<BsonDocument>> with) {
        context.report().step("find options: " + option, () -> all(with.apply(context.things().find(document(filter)))));
    }

    private void readConcerns() {
        for (ReadConcernLevel level : List.of(ReadConcernLevel.LOCAL, ReadConcernLevel.MAJORITY, ReadConcernLevel.AVAILABLE)) {
            context.report().step("read concerns: " + level.getValue(), () -> all(context.things()
                    .withReadConcern(new ReadConcern(level)).find(document("{_id: {$lt: 3}}")).sort(document("{_id: 1}"))));
        }
    }

    private void readPreferences() {
        for (ReadPreference mode : List.of(ReadPreference.primary(), ReadPreference.primaryPreferred(),
                ReadPreference.secondary(), ReadPreference.secondaryPreferred(), ReadPreference.nearest())) {
            context.report().step("read preferences: " + mode.getName(), () -> readOwnWrite(mode));
        }
    }

    /** A causally consistent session reads its own write on any member. */
    private BsonValue readOwnWrite(ReadPreference mode) {
        MongoCollection<BsonDocument> written = context.collection("preferences").withWriteConcern(WriteConcern.MAJORITY);
        ClientSessionOptions causal = ClientSessionOptions.builder().causallyConsistent(true).build();
        try (ClientSession session = context.client().startSession(causal)) {
            BsonDocument own = new BsonDocument("_id", new BsonString(mode.getName()));
            written.insertOne(session, own);
            return Results.orNull(written.withReadConcern(ReadConcern.MAJORITY).withReadPreference(mode)
                    .find(session, own).first());
        }
    }

    private void counts() {
        MongoCollection<BsonDocument> things = context.things();
        Report report = context.report();
        report.step("counts: filter", () -> new BsonInt64(things.countDocuments(document("{group: {$in: [1, 2]}}"))));
        report.step("counts: estimated", () -> new BsonInt64(things.estimatedDocumentCount()));
        report.step("counts: distinct", () -> all(things.distinct("group", document("{_id: {$gte: 5}}"), BsonInt32.class)));
    }
}
