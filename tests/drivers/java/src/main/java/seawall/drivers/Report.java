package seawall.drivers;

import com.mongodb.MongoBulkWriteException;
import com.mongodb.MongoCommandException;
import com.mongodb.MongoException;
import com.mongodb.MongoQueryException;
import com.mongodb.MongoServerException;
import com.mongodb.MongoWriteConcernException;
import com.mongodb.MongoWriteException;
import com.mongodb.WriteError;
import com.mongodb.bulk.BulkWriteError;
import com.mongodb.bulk.WriteConcernError;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Supplier;
import org.bson.BSONException;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonNull;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.bson.json.JsonMode;
import org.bson.json.JsonWriterSettings;

/** Prints one line of JSON per step: the driver's value, or the error that it threw. */
final class Report {
    private static final JsonWriterSettings VALUE = JsonWriterSettings.builder().outputMode(JsonMode.EXTENDED).build();

    /**
     * In errors, a 32-bit integer is printed as a plain number. All other types keep their type.
     */
    private static final JsonWriterSettings ERROR = JsonWriterSettings.builder()
            .outputMode(JsonMode.EXTENDED)
            .int32Converter((value, writer) -> writer.writeNumber(Integer.toString(value)))
            .build();

    private final PrintStream out =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    /** Runs a step. An exception that does not come from the driver ends the program. */
    void step(String name, Supplier<? extends BsonValue> action) {
        if (Version.SKIPPED_STEPS.containsKey(name)) {
            return;
        }
        BsonDocument line = new BsonDocument("step", new BsonString(name));
        try {
            out.println(line.append("value", action.get()).toJson(VALUE));
        } catch (MongoException | BSONException error) {
            out.println(line.append("error", described(error)).toJson(ERROR));
        }
    }

    /**
     * Describes an error with the server's own text if there is one, because the driver's text also
     * contains the server's address.
     */
    private static BsonDocument described(RuntimeException error) {
        if (error instanceof MongoBulkWriteException bulk) {
            return describedBulk(bulk);
        }
        if (error instanceof MongoWriteException write) {
            WriteError cause = write.getError();
            return outline(write, cause.getCode(), cause.getMessage()).append("details", cause.getDetails());
        }
        if (error instanceof MongoWriteConcernException unmet) {
            WriteConcernError cause = unmet.getWriteConcernError();
            return outline(unmet, cause.getCode(), cause.getMessage())
                    .append("codeName", text(cause.getCodeName()))
                    .append("details", cause.getDetails());
        }
        if (error instanceof MongoCommandException refused) {
            return outline(refused, refused.getErrorCode(), refused.getErrorMessage())
                    .append("details", refused.getResponse());
        }
        // In old versions this class does not extend MongoCommandException.
        if (error instanceof MongoQueryException refused) {
            return outline(refused, refused.getErrorCode(), refused.getErrorMessage());
        }
        if (error instanceof MongoException other) {
            return outline(other, other.getCode(), other.getMessage());
        }
        return outline(null, -1, error.getMessage());
    }

    private static BsonDocument describedBulk(MongoBulkWriteException error) {
        BsonArray writeErrors = new BsonArray();
        for (BulkWriteError each : error.getWriteErrors()) {
            writeErrors.add(new BsonDocument("index", new BsonInt32(each.getIndex()))
                    .append("code", new BsonInt32(each.getCode()))
                    .append("message", new BsonString(each.getMessage()))
                    .append("details", each.getDetails()));
        }
        WriteConcernError unmet = error.getWriteConcernError();
        BsonDocument details = new BsonDocument("result", Results.bulk(error.getWriteResult()))
                .append("writeErrors", writeErrors)
                .append("writeConcernError", unmet == null ? BsonNull.VALUE : text(unmet.toString()));
        WriteError first = error.getWriteErrors().isEmpty() ? null : error.getWriteErrors().get(0);
        return outline(error, first == null ? -1 : first.getCode(), first == null ? null : first.getMessage())
                .append("details", details);
    }

    /** The fields of every error. The driver's own errors have a negative code or no code. */
    private static BsonDocument outline(MongoException error, int code, String message) {
        String codeName = error instanceof MongoServerException server ? Version.codeName(server) : null;
        Collection<String> labels = error == null ? Set.of() : new TreeSet<>(error.getErrorLabels());
        return new BsonDocument("code", code < 0 ? BsonNull.VALUE : new BsonInt32(code))
                .append("codeName", text(codeName))
                .append("labels", Context.all(labels.stream().map(BsonString::new).toList()))
                .append("message", text(message));
    }

    private static BsonValue text(String text) {
        return text == null ? BsonNull.VALUE : new BsonString(text);
    }
}
