package seawall.drivers;

import com.mongodb.MongoException;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.List;
import java.util.StringJoiner;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonObjectId;
import org.bson.BsonString;
import org.bson.json.JsonMode;
import org.bson.json.JsonWriterSettings;

/** TLS connections, with a line for each connection string; see scenarios.md. */
final class TlsConnections {
    private static final JsonWriterSettings PLAIN = JsonWriterSettings.builder().outputMode(JsonMode.RELAXED).build();

    private TlsConnections() {
    }

    static void run(List<String> uris) throws GeneralSecurityException, IOException {
        for (String uri : uris) {
            BsonDocument line = new BsonDocument("step", new BsonString("connect"));
            try {
                line.append("value", new BsonInt32(writtenAndFound(uri)));
            } catch (MongoException error) {
                line.append("error", new BsonString(messagesOf(error)));
            }
            System.out.println(line.toJson(PLAIN));
        }
    }

    private static int writtenAndFound(String uri) throws GeneralSecurityException, IOException {
        try (MongoClient client = MongoClients.create(Connection.settings(uri, false))) {
            MongoCollection<BsonDocument> things = client.getDatabase("tls").getCollection("things", BsonDocument.class);
            BsonDocument itself = new BsonDocument("_id", new BsonObjectId());
            things.insertOne(itself.clone().append("text", new BsonString("tls")));
            return Context.all(things.find(itself)).size();
        }
    }

    /** The messages of the error and of its causes. */
    private static String messagesOf(Throwable error) {
        StringJoiner messages = new StringJoiner("; ");
        for (Throwable each = error; each != null; each = each.getCause()) {
            messages.add(each.toString());
        }
        return messages.toString();
    }
}
