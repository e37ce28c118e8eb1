package seawall.drivers;

import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoDatabase;
import java.util.ArrayList;
import java.util.List;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonString;
import org.bson.BsonValue;

/** The state that all steps share. */
record Context(MongoClient client, MongoDatabase database, boolean stable, Report report) {
    /** The collection that the first steps fill. Most later steps only read it. */
    MongoCollection<BsonDocument> things() {
        return collection("things");
    }

    MongoCollection<BsonDocument> collection(String name) {
        return database.getCollection(name, BsonDocument.class);
    }

    /** A step's own collection with the small documents from 0 to {@code count} - 1. */
    MongoCollection<BsonDocument> filled(String name, int count) {
        MongoCollection<BsonDocument> collection = collection(name);
        collection.insertMany(smallDocuments(0, count));
        return collection;
    }

    BsonDocument command(String json) {
        return database.runCommand(document(json), BsonDocument.class);
    }

    static List<BsonDocument> smallDocuments(int from, int to) {
        List<BsonDocument> documents = new ArrayList<>();
        for (int id = from; id < to; id++) {
            documents.add(smallDocument(id));
        }
        return documents;
    }

    static BsonDocument smallDocument(int id) {
        return new BsonDocument("_id", new BsonInt32(id))
                .append("text", new BsonString("item " + id))
                .append("group", new BsonInt32(id % 7));
    }

    static BsonDocument document(String json) {
        return BsonDocument.parse(json);
    }

    static List<BsonDocument> documents(String... json) {
        return List.of(json).stream().map(BsonDocument::parse).toList();
    }

    /** All documents of a cursor, in their order. */
    static BsonArray all(Iterable<? extends BsonValue> values) {
        BsonArray array = new BsonArray();
        values.forEach(array::add);
        return array;
    }
}
