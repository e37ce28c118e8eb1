package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.WriteConcern;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.InsertManyOptions;
import com.mongodb.client.model.InsertOneOptions;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.UUID;
import org.bson.BsonArray;
import org.bson.BsonBinary;
import org.bson.BsonBinarySubType;
import org.bson.BsonBoolean;
import org.bson.BsonDateTime;
import org.bson.BsonDbPointer;
import org.bson.BsonDecimal128;
import org.bson.BsonDocument;
import org.bson.BsonDouble;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonJavaScript;
import org.bson.BsonJavaScriptWithScope;
import org.bson.BsonMaxKey;
import org.bson.BsonMinKey;
import org.bson.BsonNull;
import org.bson.BsonObjectId;
import org.bson.BsonRegularExpression;
import org.bson.BsonString;
import org.bson.BsonSymbol;
import org.bson.BsonTimestamp;
import org.bson.BsonUndefined;
import org.bson.types.Decimal128;
import org.bson.types.ObjectId;

/** The connection's status, the first documents, and every type. */
final class Inserts {
    private static final ObjectId OBJECT_ID = new ObjectId("0123456789abcdef01234567");

    private Inserts() {
    }

    static void run(Context context) {
        Report report = context.report();
        report.step("status: ping", () -> context.command("{ping: 1}"));
        report.step("status: users", () -> context.command("{connectionStatus: 1}").get("authInfo"));
        report.step("status: version", () -> context.command("{buildInfo: 1}").get("version"));
        report.step("insert one", () -> Results.insert(context.things().withWriteConcern(WriteConcern.MAJORITY)
                .insertOne(Context.smallDocument(0), new InsertOneOptions().bypassDocumentValidation(true))));
        report.step("insert many", () -> Results.insert(context.things().withWriteConcern(WriteConcern.MAJORITY)
                .insertMany(Context.smallDocuments(1, 300),
                        new InsertManyOptions().ordered(false).bypassDocumentValidation(true))));
        // Separate steps, because servers before 4.4 refuse the comments.
        MongoCollection<BsonDocument> commented = context.collection("commented");
        report.step("insert one: comment", () -> Results.insert(commented.insertOne(
                Context.smallDocument(0), Version.commented(new InsertOneOptions(), "insert one"))));
        report.step("insert many: comment", () -> Results.insert(commented.insertMany(
                Context.smallDocuments(1, 3), Version.commented(new InsertManyOptions(), "insert many"))));
        report.step("types: written", () -> Results.insert(context.collection("types").insertOne(everyType())));
        report.step("types: read", () -> context.collection("types").find().first());
    }

    private static BsonDocument everyType() {
        return new BsonDocument("_id", new BsonString("types"))
                .append("doubles", new BsonArray(List.of(new BsonDouble(1.5), new BsonDouble(-0.0),
                        new BsonDouble(Double.MIN_VALUE), new BsonDouble(Double.POSITIVE_INFINITY),
                        new BsonDouble(Double.NEGATIVE_INFINITY), new BsonDouble(Double.NaN))))
                .append("strings", new BsonArray(List.of(new BsonString(""), new BsonString("naïve Ω 🌊"),
                        new BsonString("null \0 inside"), new BsonString("\"quoted\"\n\t\\"))))
                .append("document", document("{a: {b: [null, true, {c: {}}]}, '': 'empty name'" + Version.ODD_FIELDS + "}"))
                .append("empty", new BsonArray())
                .append("binary", binaries())
                .append("undefined", new BsonUndefined())
                .append("objectId", new BsonObjectId(OBJECT_ID))
                .append("booleans", new BsonArray(List.of(BsonBoolean.TRUE, BsonBoolean.FALSE)))
                .append("dates", new BsonArray(List.of(new BsonDateTime(0), new BsonDateTime(1577934245678L),
                        new BsonDateTime(-1), new BsonDateTime(Long.MAX_VALUE))))
                .append("null", BsonNull.VALUE)
                .append("regex", new BsonRegularExpression("^a/b.*$", "imsx"))
                .append("dbPointer", new BsonDbPointer("db.collection", OBJECT_ID))
                .append("dbRef", new BsonDocument("$ref", new BsonString("collection"))
                        .append("$id", new BsonObjectId(OBJECT_ID)).append("$db", new BsonString("db")))
                .append("code", new BsonJavaScript("function() { return 1 }"))
                .append("symbol", new BsonSymbol("symbol"))
                .append("codeWithScope", new BsonJavaScriptWithScope("return x", document("{x: 1}")))
                .append("int32", new BsonArray(List.of(
                        new BsonInt32(Integer.MIN_VALUE), new BsonInt32(Integer.MAX_VALUE))))
                .append("timestamp", new BsonTimestamp(1577934245, 7))
                .append("int64", new BsonArray(List.of(
                        new BsonInt64(1), new BsonInt64(Long.MIN_VALUE), new BsonInt64(Long.MAX_VALUE))))
                .append("decimal128", decimals())
                .append("minKey", new BsonMinKey())
                .append("maxKey", new BsonMaxKey());
    }

    private static BsonArray binaries() {
        UUID uuid = UUID.fromString("00112233-4455-6677-8899-aabbccddeeff");
        byte[] uuidBytes = ByteBuffer.allocate(16)
                .putLong(uuid.getMostSignificantBits()).putLong(uuid.getLeastSignificantBits()).array();
        byte[] bytes = {0, 1, (byte) 0xff};
        return new BsonArray(List.of(
                new BsonBinary(new byte[0]),
                new BsonBinary(BsonBinarySubType.BINARY, bytes),
                new BsonBinary(BsonBinarySubType.FUNCTION, bytes),
                new BsonBinary(BsonBinarySubType.OLD_BINARY, bytes),
                new BsonBinary(BsonBinarySubType.UUID_LEGACY, uuidBytes),
                new BsonBinary(uuid),
                new BsonBinary(BsonBinarySubType.MD5, uuidBytes),
                new BsonBinary(BsonBinarySubType.USER_DEFINED, bytes)));
    }

    private static BsonArray decimals() {
        return Context.all(List.of("1.10", "-0", "9.999999999999999999999999999999999E+6144", "NaN", "Infinity").stream()
                .map(text -> new BsonDecimal128(Decimal128.parse(text))).toList());
    }
}
