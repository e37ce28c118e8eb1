package seawall.drivers;

import static seawall.drivers.Context.document;

import com.mongodb.MongoClientSettings;
import com.mongodb.client.gridfs.GridFSBucket;
import com.mongodb.client.gridfs.GridFSBuckets;
import com.mongodb.client.gridfs.GridFSDownloadStream;
import com.mongodb.client.gridfs.model.GridFSFile;
import com.mongodb.client.gridfs.model.GridFSUploadOptions;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;
import org.bson.BsonArray;
import org.bson.BsonDateTime;
import org.bson.BsonDocument;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonString;
import org.bson.Document;

/** A file in GridFS. */
final class Files {
    private static final BsonString ID = new BsonString("file");

    private final GridFSBucket bucket;

    private Files(GridFSBucket bucket) {
        this.bucket = bucket;
    }

    static void run(Context context) {
        Files files = new Files(GridFSBuckets.create(context.database()));
        Report report = context.report();
        report.step("gridfs: uploaded", files::upload);
        report.step("gridfs: downloaded", () -> {
            ByteArrayOutputStream content = new ByteArrayOutputStream();
            files.bucket.downloadToStream(ID, content);
            return Digest.of(content.toByteArray());
        });
        report.step("gridfs: listed", files::listed);
        report.step("gridfs: range", files::range);
        report.step("gridfs: deleted", () -> {
            files.bucket.delete(ID);
            return files.listed();
        });
        report.step("gridfs: download of the deleted file", () -> {
            ByteArrayOutputStream content = new ByteArrayOutputStream();
            files.bucket.downloadToStream(ID, content);
            return Digest.of(content.toByteArray());
        });
    }

    private BsonString upload() {
        GridFSUploadOptions options = new GridFSUploadOptions()
                .chunkSizeBytes(100 * 1024).metadata(new Document("kind", "test"));
        bucket.uploadFromStream(ID, "file.bin", new ByteArrayInputStream(Digest.content(1_000_000)), options);
        return ID;
    }

    /** Reads from the middle of one chunk to the middle of the next. */
    private BsonDocument range() {
        try (GridFSDownloadStream stream = bucket.openDownloadStream(ID)) {
            byte[] range = new byte[100_000];
            stream.skip(250_000);
            int length = 0;
            while (length < range.length) {
                length += stream.read(range, length, range.length - length);
            }
            return Digest.of(range);
        }
    }

    private BsonArray listed() {
        List<BsonDocument> listed = new ArrayList<>();
        for (GridFSFile file : bucket.find().sort(document("{_id: 1}"))) {
            listed.add(new BsonDocument("_id", file.getId())
                    .append("filename", new BsonString(file.getFilename()))
                    .append("length", new BsonInt64(file.getLength()))
                    .append("chunkSize", new BsonInt32(file.getChunkSize()))
                    .append("uploadDate", new BsonDateTime(file.getUploadDate().getTime()))
                    .append("metadata", file.getMetadata().toBsonDocument(
                            BsonDocument.class, MongoClientSettings.getDefaultCodecRegistry())));
        }
        return new BsonArray(listed);
    }
}
