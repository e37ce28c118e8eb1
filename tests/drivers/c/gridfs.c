/* GridFS: a file of several chunks is uploaded and downloaded, a range of it is read, and it is
 * deleted. */
#include "common.h"

#define FILE_SIZE 1000000
#define NAME "file"

static void
upload (mongoc_gridfs_bucket_t *bucket, const bson_value_t *id, uint8_t *bytes)
{
   bson_error_t error;
   bson_t *options = json ("{'metadata': {'kind': 'test'}}");
   mongoc_stream_t *stream = mongoc_gridfs_bucket_open_upload_stream_with_id (bucket, id, NAME, options, &error);
   if (!stream) {
      say_error ("gridfs: uploaded", &error, NULL);
      return;
   }
   ssize_t written = mongoc_stream_write (stream, bytes, FILE_SIZE, 0);
   mongoc_stream_close (stream);
   if (mongoc_gridfs_bucket_stream_error (stream, &error)) {
      say_error ("gridfs: uploaded", &error, NULL);
   } else {
      say_number ("gridfs: uploaded", written);
   }
   mongoc_stream_destroy (stream);
}

static void
tell_bytes (const char *step, const uint8_t *bytes, size_t length)
{
   char digest[65];
   sha256_hex (bytes, length, digest);
   say (step, json ("{'length': %zu, 'sha256': '%s'}", length, digest));
}

static void
download (const char *step, mongoc_gridfs_bucket_t *bucket, const bson_value_t *id, uint8_t *bytes)
{
   bson_error_t error;
   mongoc_stream_t *stream = mongoc_gridfs_bucket_open_download_stream (bucket, id, &error);
   if (!stream) {
      say_error (step, &error, NULL);
      return;
   }
   memset (bytes, 0, FILE_SIZE);
   size_t length = 0;
   ssize_t got;
   while (length < FILE_SIZE && (got = mongoc_stream_read (stream, bytes + length, FILE_SIZE - length, 0, 0)) > 0) {
      length += (size_t) got;
   }
   if (mongoc_gridfs_bucket_stream_error (stream, &error)) {
      say_error (step, &error, NULL);
   } else {
      tell_bytes (step, bytes, length);
   }
   mongoc_stream_destroy (stream);
}

/* A range from the middle of one chunk into the second chunk after it. */
static void
range (run_t *run, uint8_t *bytes)
{
   const size_t LENGTH = 200000;
   bson_error_t error;
   mongoc_gridfs_t *files = mongoc_client_get_gridfs (run->client, run->name, "fs", &error);
   mongoc_gridfs_file_t *file = files ? mongoc_gridfs_find_one_by_filename (files, NAME, &error) : NULL;
   if (file && mongoc_gridfs_file_seek (file, 150000, SEEK_SET) == 0) {
      mongoc_iovec_t vector = {.iov_base = bytes, .iov_len = LENGTH};
      ssize_t got = mongoc_gridfs_file_readv (file, &vector, 1, LENGTH, 0);
      if (got >= 0) {
         tell_bytes ("gridfs: a range", bytes, (size_t) got);
      } else {
         mongoc_gridfs_file_error (file, &error);
         say_error ("gridfs: a range", &error, NULL);
      }
   } else {
      say_error ("gridfs: a range", &error, NULL);
   }
   if (file) {
      mongoc_gridfs_file_destroy (file);
   }
   if (files) {
      mongoc_gridfs_destroy (files);
   }
}

void
gridfs (run_t *run)
{
   bson_error_t error;
   bson_value_t id = {.value_type = BSON_TYPE_INT32, .value.v_int32 = 1};
   mongoc_gridfs_bucket_t *bucket =
      mongoc_gridfs_bucket_new (run->database, json ("{'chunkSizeBytes': 102400}"), NULL, &error);
   require (bucket, "bucket", &error);
   uint8_t *bytes = bson_malloc (FILE_SIZE);
   for (uint32_t n = 0; n < FILE_SIZE; n++) {
      bytes[n] = (uint8_t) (n * 31 % 251);
   }
   upload (bucket, &id, bytes);
   download ("gridfs: downloaded", bucket, &id, bytes);
   tell_cursor ("gridfs: listed", mongoc_gridfs_bucket_find (bucket, empty (), json ("{'sort': {'_id': 1}}")));
   range (run, bytes);
   if (mongoc_gridfs_bucket_delete_by_id (bucket, &id, &error)) {
      tell_cursor ("gridfs: deleted", mongoc_gridfs_bucket_find (bucket, empty (), NULL));
   } else {
      say_error ("gridfs: deleted", &error, NULL);
   }
   download ("gridfs: not found", bucket, &id, bytes);
   bson_free (bytes);
   mongoc_gridfs_bucket_destroy (bucket);
}
