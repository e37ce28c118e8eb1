/* Writes: inserts, every type, updates, find and modify, deletes, unacknowledged and large
 * writes. */
#include "common.h"

#define COUNT 300
#define MIB (1024 * 1024)

static void
tell_update (const char *step, run_t *run, bool many, bson_t *filter, bson_t *update, bson_t *options)
{
   bson_t reply;
   bson_error_t error;
   bool ok = many ? mongoc_collection_update_many (run->things, filter, update, options, &reply, &error)
                  : mongoc_collection_update_one (run->things, filter, update, options, &reply, &error);
   tell (step, ok, &reply, &error);
}

void
inserts (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   const bson_t *documents[COUNT];
   for (int n = 0; n < COUNT; n++) {
      documents[n] = json ("{'_id': %d, 'text': 'text %d', 'group': %d}", n, n, n % 7);
   }
   bool ok = mongoc_collection_insert_one (
      run->things, documents[0],
      json ("{'bypassDocumentValidation': true, 'writeConcern': {'w': 'majority'}}"), &reply, &error);
   tell ("insert one", ok, &reply, &error);
   ok = mongoc_collection_insert_many (run->things, documents + 1, COUNT - 1,
                                       json ("{'ordered': false, 'bypassDocumentValidation': true,"
                                             " 'writeConcern': {'w': 'majority'}}"),
                                       &reply, &error);
   tell ("insert many", ok, &reply, &error);
   /* A separate step, because servers before 4.4 refuse the comment. */
   mongoc_collection_t *commented = collection_named (run, "commented");
   ok = mongoc_collection_insert_one (commented, documents[0], json ("{'comment': 'one'}"), &reply, &error);
   tell ("insert with a comment", ok, &reply, &error);
   mongoc_collection_destroy (commented);
}

/* A document with every BSON type, including deprecated types. */
static bson_t *
document_of_all_types (void)
{
   static const uint8_t BYTES[] = {0x00, 0xff, 0x10, 0x80, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
   bson_t *document = empty ();
   bson_t *scope = json ("{'a': 1}");
   bson_oid_t oid;
   bson_decimal128_t decimal;
   bson_oid_init_from_string (&oid, "0123456789abcdef01234567");
   bson_decimal128_from_string ("1.10", &decimal);
   BSON_APPEND_UTF8 (document, "_id", "types");
   BSON_APPEND_DOUBLE (document, "double", 1.5);
   BSON_APPEND_DOUBLE (document, "negative zero", -0.0);
   BSON_APPEND_UTF8 (document, "text", "na\xc3\xafve \xce\xa9 \xf0\x9f\x8c\x8a");
   bson_append_utf8 (document, "text with a zero", -1, "a\0b", 3);
   BSON_APPEND_DOCUMENT (document, "document", json ("{'a': {'b': []}, '': 1}"));
   BSON_APPEND_ARRAY (document, "array", json ("{'0': null, '1': true, '2': [1.5]}"));
   BSON_APPEND_BINARY (document, "binary", BSON_SUBTYPE_BINARY, BYTES, 4);
   BSON_APPEND_BINARY (document, "binary, old", BSON_SUBTYPE_BINARY_DEPRECATED, BYTES, 4);
   BSON_APPEND_BINARY (document, "UUID", BSON_SUBTYPE_UUID, BYTES, 16);
   BSON_APPEND_BINARY (document, "binary, user defined", BSON_SUBTYPE_USER, BYTES, 0);
   BSON_APPEND_UNDEFINED (document, "undefined");
   BSON_APPEND_OID (document, "object id", &oid);
   BSON_APPEND_BOOL (document, "false", false);
   BSON_APPEND_DATE_TIME (document, "date", 1577923200123);
   BSON_APPEND_DATE_TIME (document, "date before 1970", -1);
   BSON_APPEND_NULL (document, "null");
   BSON_APPEND_REGEX (document, "regular expression", "^a/b$", "im");
   BSON_APPEND_DBPOINTER (document, "DBPointer", "db.things", &oid);
   BSON_APPEND_CODE (document, "code", "function() { return 1; }");
   BSON_APPEND_SYMBOL (document, "symbol", "symbol");
   BSON_APPEND_CODE_WITH_SCOPE (document, "code with scope", "function() { return a; }", scope);
   BSON_APPEND_INT32 (document, "int32", INT32_MIN);
   BSON_APPEND_TIMESTAMP (document, "timestamp", 1577923200, 7);
   BSON_APPEND_INT64 (document, "int64", INT64_MAX);
   BSON_APPEND_DECIMAL128 (document, "decimal128", &decimal);
   BSON_APPEND_MINKEY (document, "least key");
   BSON_APPEND_MAXKEY (document, "greatest key");
   return document;
}

void
types (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   /* `validate: false` disables the driver's own check, which would refuse the empty field name. */
   bool ok = mongoc_collection_insert_one (run->things, document_of_all_types (), json ("{'validate': false}"), &reply,
                                           &error);
   tell ("types: written", ok, &reply, &error);
   tell_documents ("types: read back", run->things, json ("{'_id': 'types'}"), NULL);
}

void
updates (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   tell_update ("updates: one", run, false, json ("{'_id': 10}"), json ("{'$set': {'seen': true}}"), NULL);
   tell_update ("updates: many", run, true, json ("{'group': 2}"), json ("{'$set': {'seen': true}}"), NULL);
   tell_update ("updates: upsert", run, false, json ("{'_id': 'new'}"), json ("{'$set': {'list': [1, 5, 9]}}"),
                json ("{'upsert': true}"));
   tell_update ("updates: array filters", run, false, json ("{'_id': 'new'}"),
                json ("{'$set': {'list.$[big]': 0}}"), json ("{'arrayFilters': [{'big': {'$gt': 4}}]}"));
   tell_update ("updates: pipeline", run, false, json ("{'_id': 'new'}"),
                json ("{'0': {'$set': {'size': {'$size': '$list'}}}, '1': {'$unset': 'nothing'}}"), NULL);
   bool ok = mongoc_collection_replace_one (run->things, json ("{'_id': 11}"),
                                            json ("{'text': 'replaced', 'group': 11}"), NULL, &reply, &error);
   tell ("updates: replace", ok, &reply, &error);
   tell_update ("updates: collation", run, true, json ("{'text': 'TEXT 12'}"), json ("{'$set': {'found': true}}"),
                json ("{'collation': {'locale': 'en', 'strength': 2}}"));
   tell_update ("updates: hint", run, true, json ("{'_id': {'$lt': 3}}"), json ("{'$inc': {'hinted': 1}}"),
                json ("{'hint': {'_id': 1}}"));
   tell_documents ("updates: read back", run->things, json ("{'_id': {'$in': [1, 10, 11, 12, 'new']}}"),
                   json ("{'sort': {'_id': 1}}"));
}

static void
tell_modified (const char *step, run_t *run, bson_t *filter, bson_t *update, int flags, const char *fields)
{
   bson_t reply;
   bson_error_t error;
   mongoc_find_and_modify_opts_t *options = mongoc_find_and_modify_opts_new ();
   if (update) {
      mongoc_find_and_modify_opts_set_update (options, update);
   }
   mongoc_find_and_modify_opts_set_flags (options, (mongoc_find_and_modify_flags_t) flags);
   mongoc_find_and_modify_opts_set_sort (options, json ("{'_id': -1}"));
   mongoc_find_and_modify_opts_set_fields (options, json ("%s", fields));
   bool ok = mongoc_collection_find_and_modify_with_opts (run->things, filter, options, &reply, &error);
   tell (step, ok, &reply, &error);
   mongoc_find_and_modify_opts_destroy (options);
}

void
find_and_modify (run_t *run)
{
   int after = MONGOC_FIND_AND_MODIFY_RETURN_NEW;
   tell_modified ("find and modify: update, before", run, json ("{'group': 4}"), json ("{'$inc': {'times': 1}}"),
                  MONGOC_FIND_AND_MODIFY_NONE, "{}");
   tell_modified ("find and modify: update, after", run, json ("{'group': 4}"), json ("{'$inc': {'times': 1}}"), after,
                  "{'times': 1}");
   tell_modified ("find and modify: replace", run, json ("{'_id': 20}"), json ("{'text': 'replaced'}"), after, "{}");
   tell_modified ("find and modify: upsert", run, json ("{'_id': 'upserted'}"), json ("{'$set': {'a': 1}}"),
                  after | MONGOC_FIND_AND_MODIFY_UPSERT, "{}");
   tell_modified ("find and modify: delete", run, json ("{'group': 4}"), NULL, MONGOC_FIND_AND_MODIFY_REMOVE,
                  "{'text': 0}");
   tell_modified ("find and modify: nothing found", run, json ("{'_id': 'none'}"), json ("{'$set': {'a': 1}}"),
                  MONGOC_FIND_AND_MODIFY_NONE, "{}");
}

void
deletes (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   bool ok = mongoc_collection_delete_one (run->things, json ("{'_id': 30}"), NULL, &reply, &error);
   tell ("deletes: one", ok, &reply, &error);
   ok = mongoc_collection_delete_many (run->things, json ("{'group': 5}"), NULL, &reply, &error);
   tell ("deletes: many", ok, &reply, &error);
   ok = mongoc_collection_delete_many (run->things, json ("{'_id': {'$gte': 290, '$lt': 293}}"),
                                       json ("{'hint': {'_id': 1}}"), &reply, &error);
   tell ("deletes: hint", ok, &reply, &error);
}

void
unacknowledged (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   mongoc_collection_t *collection = collection_named (run, "unacknowledged");
   mongoc_client_session_t *session = session_of (run, false);
   bool ok = mongoc_collection_insert_one (collection, json ("{'_id': 'in a session'}"),
                                           within (session, json ("{'writeConcern': {'w': 0}}")), &reply, &error);
   tell ("unacknowledged: in a session", ok, &reply, &error);
   mongoc_client_session_destroy (session);
   ok = true;
   for (int n = 0; n < 50 && ok; n++) {
      ok = mongoc_collection_insert_one (collection, json ("{'_id': %d}", n), json ("{'writeConcern': {'w': 0}}"),
                                         NULL, &error);
   }
   /* The client has one connection per server, so the count runs after the inserts. */
   int64_t count = ok ? mongoc_collection_count_documents (collection, empty (), NULL, NULL, NULL, &error) : -1;
   if (count >= 0) {
      say_number ("unacknowledged: counted", count);
   } else {
      say_error ("unacknowledged: counted", &error, NULL);
   }
   mongoc_collection_destroy (collection);
}

/* A document of this many bytes. The bytes of its field depend only on their positions. */
static bson_t *
document_of_size (const char *id, uint32_t size)
{
   bson_t *document = bson_new ();
   BSON_APPEND_UTF8 (document, "_id", id);
   /* A type, a name with its NUL, a length and a subtype precede the bytes. */
   uint32_t length = size - document->len - (1 + sizeof "bytes" + 4 + 1);
   uint8_t *bytes = bson_malloc (length);
   for (uint32_t n = 0; n < length; n++) {
      bytes[n] = (uint8_t) (n * 31 % 251);
   }
   BSON_APPEND_BINARY (document, "bytes", BSON_SUBTYPE_BINARY, bytes, length);
   bson_free (bytes);
   require (document->len == size, "size of the large document", NULL);
   return document;
}

static void
tell_large (run_t *run)
{
   const bson_t *found;
   bson_error_t error;
   mongoc_cursor_t *cursor = mongoc_collection_find_with_opts (run->things, json ("{'_id': 'large'}"), NULL, NULL);
   if (mongoc_cursor_next (cursor, &found)) {
      bson_iter_t iter;
      const uint8_t *bytes;
      uint32_t length;
      char digest[65];
      require (bson_iter_init_find (&iter, found, "bytes"), "the large document's bytes", NULL);
      bson_iter_binary (&iter, NULL, &length, &bytes);
      sha256_hex (bytes, length, digest);
      say ("large: read back",
           json ("{'size': %u, 'length': %u, 'sha256': '%s'}", found->len, length, digest));
   } else if (mongoc_cursor_error (cursor, &error)) {
      say_error ("large: read back", &error, NULL);
   } else {
      say_text ("large: read back", "not found");
   }
   mongoc_cursor_destroy (cursor);
}

void
large (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   bson_t *document = document_of_size ("large", 16 * MIB - 64);
   bool ok = mongoc_collection_insert_one (run->things, document, NULL, &reply, &error);
   tell ("large: written", ok, &reply, &error);
   bson_destroy (document);
   tell_large (run);
   document = document_of_size ("too large", 16 * MIB + 1024);
   ok = mongoc_collection_insert_one (run->things, document, NULL, &reply, &error);
   tell ("large: refused", ok, &reply, &error);
   bson_destroy (document);
}
