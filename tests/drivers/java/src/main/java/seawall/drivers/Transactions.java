package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.ReadConcern;
import com.mongodb.TransactionOptions;
import com.mongodb.WriteConcern;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoCollection;
import java.util.List;
import org.bson.BsonArray;
import org.bson.BsonDocument;

/** Transactions that commit, that abort, and that conflict. */
final class Transactions {
    private static final BsonDocument FIRST = document("{_id: 1}");
    private static final BsonDocument COUNT_UP = document("{$inc: {n: 1}}");

    private final Context context;
    private final MongoCollection<BsonDocument> accounts;

    private Transactions(Context context) {
        this.context = context;
        this.accounts = context.filled("accounts", 3);
    }

    static void run(Context context) {
        Transactions transactions = new Transactions(context);
        Report report = context.report();
        report.step("transactions: commit", transactions::commit);
        report.step("transactions: abort", transactions::abort);
        report.step("transactions: callback", transactions::callback);
        transactions.writeConflict();
        transactions.afterAbort();
    }

    private BsonArray commit() {
        TransactionOptions options = TransactionOptions.builder()
                .readConcern(ReadConcern.SNAPSHOT).writeConcern(WriteConcern.MAJORITY).build();
        try (ClientSession session = context.client().startSession()) {
            // Without this read, a 4.2 server may choose a snapshot from before the collection was
            // created.
            accounts.countDocuments(session);
            session.startTransaction(options);
            accounts.insertOne(session, document("{_id: 'commit'}"));
            accounts.updateOne(session, document("{_id: 'commit'}"), COUNT_UP);
            BsonArray read = new BsonArray(List.of(
                    found(session, "{_id: 'commit'}"), Results.orNull(accounts.find(document("{_id: 'commit'}")).first())));
            session.commitTransaction();
            read.add(found(session, "{_id: 'commit'}"));
            return read;
        }
    }

    private BsonArray abort() {
        try (ClientSession session = context.client().startSession()) {
            session.startTransaction();
            accounts.insertOne(session, document("{_id: 'abort'}"));
            BsonDocument inside = accounts.find(session, document("{_id: 'abort'}")).first();
            session.abortTransaction();
            return new BsonArray(List.of(
                    inside, Results.orNull(accounts.find(session, document("{_id: 'abort'}")).first())));
        }
    }

    private BsonDocument callback() {
        try (ClientSession session = context.client().startSession()) {
            return session.withTransaction(() -> {
                accounts.insertOne(session, document("{_id: 'callback'}"));
                accounts.updateMany(session, document("{_id: {$type: 'string'}}"), COUNT_UP);
                return found(session, "{_id: 'callback'}");
            });
        }
    }

    private void writeConflict() {
        Report report = context.report();
        try (ClientSession first = context.client().startSession(); ClientSession second = context.client().startSession()) {
            first.startTransaction();
            second.startTransaction();
            report.step("transactions: first of two", () -> Results.update(accounts.updateOne(first, FIRST, COUNT_UP)));
            report.step("transactions: write conflict", () -> Results.update(accounts.updateOne(second, FIRST, COUNT_UP)));
            second.abortTransaction();
            report.step("transactions: repeated and committed", () -> {
                first.commitTransaction();
                second.startTransaction();
                accounts.updateOne(second, FIRST, COUNT_UP);
                second.commitTransaction();
                return accounts.find(FIRST).first();
            });
        }
    }

    private void afterAbort() {
        Report report = context.report();
        try (ClientSession session = context.client().startSession()) {
            session.startTransaction();
            // The server itself aborts a transaction when one of its writes fails.
            report.step("transactions: failed write", () -> Results.insert(accounts.insertOne(session, FIRST)));
            report.step("transactions: operation in the aborted transaction", () -> found(session, "{_id: 1}"));
            report.step("transactions: commit of the aborted transaction", () -> {
                session.commitTransaction();
                return document("{}");
            });
        }
        try (ClientSession session = context.client().startSession()) {
            session.startTransaction();
            report.step("transactions: operation after abort", () -> {
                accounts.updateOne(session, FIRST, COUNT_UP);
                session.abortTransaction();
                return found(session, "{_id: 1}");
            });
        }
    }

    private BsonDocument found(ClientSession session, String filter) {
        return accounts.find(session, document(filter)).first();
    }
}
