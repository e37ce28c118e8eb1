package seawall.drivers;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonString;

/** Makes bytes that are too many to print, and their printed digest. */
final class Digest {
    private Digest() {
    }

    /** Bytes that depend only on the length. All chunks of the bytes differ from each other. */
    static byte[] content(int length) {
        byte[] content = new byte[length];
        for (int at = 0; at < length; at++) {
            content[at] = (byte) (at * 31 + at / 251);
        }
        return content;
    }

    static BsonDocument of(byte[] bytes) {
        try {
            String sha256 = HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
            return new BsonDocument("length", new BsonInt32(bytes.length)).append("sha256", new BsonString(sha256));
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java has SHA-256", error);
        }
    }
}
