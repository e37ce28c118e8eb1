package seawall.drivers;

import com.mongodb.bulk.BulkWriteInsert;
import com.mongodb.bulk.BulkWriteResult;
import com.mongodb.bulk.BulkWriteUpsert;
import com.mongodb.client.result.DeleteResult;
import com.mongodb.client.result.InsertManyResult;
import com.mongodb.client.result.InsertOneResult;
import com.mongodb.client.result.UpdateResult;
import org.bson.BsonArray;
import org.bson.BsonBoolean;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonNull;
import org.bson.BsonString;
import org.bson.BsonValue;

/** All fields of the driver's write results. */
final class Results {
    private Results() {
    }

    static BsonDocument insert(InsertOneResult result) {
        return acknowledged(result.wasAcknowledged()).append("insertedId", orNull(result.getInsertedId()));
    }

    static BsonDocument insert(InsertManyResult result) {
        BsonDocument ids = new BsonDocument();
        result.getInsertedIds().forEach((index, id) -> ids.append(index.toString(), id));
        return acknowledged(result.wasAcknowledged()).append("insertedIds", ids);
    }

    static BsonDocument update(UpdateResult result) {
        return acknowledged(result.wasAcknowledged())
                .append("matchedCount", new BsonInt64(result.getMatchedCount()))
                .append("modifiedCount", new BsonInt64(result.getModifiedCount()))
                .append("upsertedId", orNull(result.getUpsertedId()));
    }

    static BsonDocument delete(DeleteResult result) {
        return acknowledged(result.wasAcknowledged()).append("deletedCount", new BsonInt64(result.getDeletedCount()));
    }

    static BsonDocument bulk(BulkWriteResult result) {
        BsonArray inserts = new BsonArray();
        for (BulkWriteInsert insert : result.getInserts()) {
            inserts.add(new BsonDocument("index", new BsonInt32(insert.getIndex())).append("id", insert.getId()));
        }
        BsonArray upserts = new BsonArray();
        for (BulkWriteUpsert upsert : result.getUpserts()) {
            upserts.add(new BsonDocument("index", new BsonInt32(upsert.getIndex())).append("id", upsert.getId()));
        }
        return acknowledged(result.wasAcknowledged())
                .append("insertedCount", new BsonInt32(result.getInsertedCount()))
                .append("matchedCount", new BsonInt32(result.getMatchedCount()))
                .append("modifiedCount", new BsonInt32(result.getModifiedCount()))
                .append("deletedCount", new BsonInt32(result.getDeletedCount()))
                .append("inserts", inserts)
                .append("upserts", upserts);
    }

    /** Only the field names of a command's reply, because the types of the values vary. */
    static BsonArray keys(BsonDocument reply) {
        return Context.all(reply.keySet().stream().sorted().map(BsonString::new).toList());
    }

    static BsonValue orNull(BsonValue value) {
        return value == null ? BsonNull.VALUE : value;
    }

    private static BsonDocument acknowledged(boolean acknowledged) {
        return new BsonDocument("acknowledged", BsonBoolean.valueOf(acknowledged));
    }
}
