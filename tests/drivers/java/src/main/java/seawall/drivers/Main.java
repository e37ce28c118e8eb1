package seawall.drivers;

import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.util.List;
import java.util.Set;

/**
 * The steps of an application with the official synchronous driver. Prints a line of JSON per step.
 *
 * <p>Arguments: connection string, database, "stable" or "plain". The steps are those of
 * scenarios.md, in the same order. For TLS connections: "tls" and connection strings.
 *
 * <p>The driver refuses an unacknowledged write in an explicit session. The program prints this
 * refusal, then runs the writes without a session.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 1 && arguments[0].equals("tls")) {
            TlsConnections.run(List.of(arguments).subList(1, arguments.length));
            return;
        }
        if (arguments.length != 3 || !Set.of("stable", "plain").contains(arguments[2])) {
            System.err.println("usage: driver URI DATABASE stable|plain, or driver tls URI...");
            System.exit(2);
        }
        boolean stable = arguments[2].equals("stable");
        try (MongoClient client = MongoClients.create(Connection.settings(arguments[0], stable))) {
            run(new Context(client, client.getDatabase(arguments[1]), stable, new Report()));
        }
    }

    private static void run(Context context) {
        Inserts.run(context);
        Finds.run(context);
        Writes.run(context);
        Bulks.run(context);
        Aggregations.run(context);
        Cursors.run(context);
        Sessions.run(context);
        Transactions.run(context);
        ChangeStreams.run(context);
        Files.run(context);
        Extremes.run(context);
        Failures.run(context);
        Administration.run(context);
    }
}
