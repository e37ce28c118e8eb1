/* Commands about the server, the collections and the indexes. */
#include "common.h"

#include <stdlib.h>

void
status (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   tell_command ("status: ping", run, run->name, json ("{'ping': 1}"), NULL);
   if (mongoc_client_command_simple (run->client, run->name, json ("{'connectionStatus': 1}"), NULL, &reply, &error)) {
      say_field ("status: users and roles", &reply, "authInfo");
   } else {
      say_error ("status: users and roles", &error, &reply);
   }
   bson_destroy (&reply);
   if (mongoc_client_command_simple (run->client, run->name, json ("{'buildInfo': 1}"), NULL, &reply, &error)) {
      say_field ("status: version", &reply, "version");
   } else {
      say_error ("status: version", &error, &reply);
   }
   bson_destroy (&reply);
}

static void
create (const char *step, run_t *run, const char *name, bson_t *options)
{
   bson_error_t error;
   mongoc_collection_t *collection = mongoc_database_create_collection (run->database, name, options, &error);
   if (collection) {
      say_text (step, "created");
      mongoc_collection_destroy (collection);
   } else {
      say_error (step, &error, NULL);
   }
}

static void
indexes (run_t *run)
{
   bson_error_t error;
   tell_command ("administration: create indexes", run, run->name,
                 json ("{'createIndexes': 'indexed', 'indexes': [{'key': {'group': 1}, 'name': 'by group'},"
                       " {'key': {'text': 1, '_id': -1}, 'name': 'by text', 'unique': true}]}"),
                 NULL);
   mongoc_collection_t *indexed = collection_named (run, "indexed");
   tell_cursor ("administration: list indexes", mongoc_collection_find_indexes_with_opts (indexed, NULL));
   if (mongoc_collection_drop_index_with_opts (indexed, "by text", NULL, &error)) {
      tell_cursor ("administration: drop an index", mongoc_collection_find_indexes_with_opts (indexed, NULL));
   } else {
      say_error ("administration: drop an index", &error, NULL);
   }
   tell_command ("administration: drop indexes", run, run->name, json ("{'dropIndexes': 'indexed', 'index': '*'}"),
                 NULL);
   tell_cursor ("administration: list indexes again", mongoc_collection_find_indexes_with_opts (indexed, NULL));
   mongoc_collection_destroy (indexed);
}

/* Sorted by name, because servers return them in any order. */
static int
by_name (const void *a, const void *b)
{
   bson_iter_t x, y;
   bson_iter_init_find (&x, *(const bson_t *const *) a, "name");
   bson_iter_init_find (&y, *(const bson_t *const *) b, "name");
   return strcmp (bson_iter_utf8 (&x, NULL), bson_iter_utf8 (&y, NULL));
}

static void
list_collections (run_t *run)
{
   bson_t *found[64], *list = empty ();
   const bson_t *document, *reply;
   uint32_t count = 0;
   bson_error_t error;
   mongoc_cursor_t *cursor = mongoc_database_find_collections_with_opts (run->database, NULL);
   while (count < 64 && mongoc_cursor_next (cursor, &document)) {
      found[count++] = bson_copy (document);
   }
   qsort (found, count, sizeof *found, by_name);
   for (uint32_t n = 0; n < count; n++) {
      push (list, found[n]);
      bson_destroy (found[n]);
   }
   if (mongoc_cursor_error_document (cursor, &error, &reply)) {
      say_error ("administration: list collections", &error, reply);
   } else {
      say_list ("administration: list collections", list);
   }
   mongoc_cursor_destroy (cursor);
}

/* Prints the statistics that do not depend on the storage engine's state, and the names of all
 * other statistics. */
static void
collection_statistics (run_t *run)
{
   static const char *const SAME[] = {"ns", "size", "count", "nindexes", "capped", "ok"};
   bson_t reply, *value = empty (), keys;
   bson_error_t error;
   bson_iter_t iter;
   bson_t *command = json ("{'collStats': 'validated'}");
   if (mongoc_client_command_simple (run->client, run->name, command, NULL, &reply, &error)) {
      for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
         if (bson_iter_init_find (&iter, &reply, SAME[i])) {
            BSON_APPEND_VALUE (value, SAME[i], bson_iter_value (&iter));
         }
      }
      BSON_APPEND_ARRAY_BEGIN (value, "keys", &keys);
      push_keys (&keys, &reply);
      bson_append_array_end (value, &keys);
      say ("administration: collection statistics", value);
   } else {
      say_error ("administration: collection statistics", &error, &reply);
   }
   bson_destroy (&reply);
}

void
administration (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   indexes (run);
   create ("administration: collection with validator", run, "validated",
           json ("{'validator': {'n': {'$gte': 0}}, 'validationLevel': 'moderate', 'validationAction': 'error'}"));
   create ("administration: capped collection", run, "capped", json ("{'capped': true, 'size': 8192, 'max': 10}"));
   create ("administration: view", run, "least",
           json ("{'viewOn': 'things', 'pipeline': [{'$match': {'_id': {'$lt': 3}}}, {'$project': {'text': 1}}]}"));
   list_collections (run);
   mongoc_collection_t *view = collection_named (run, "least");
   tell_documents ("administration: view read", view, empty (), json ("{'sort': {'_id': 1}}"));
   mongoc_collection_destroy (view);
   if (!run->stable) {
      collection_statistics (run);
   }
   if (mongoc_client_command_simple (run->client, run->name, json ("{'dbStats': 1}"), NULL, &reply, &error)) {
      say_field ("administration: database statistics", &reply, "ok");
   } else {
      say_error ("administration: database statistics", &error, &reply);
   }
   bson_destroy (&reply);
}

void
drop (run_t *run)
{
   bson_error_t error;
   if (mongoc_database_drop_with_opts (run->database, NULL, &error)) {
      say_text ("drop", "dropped");
   } else {
      say_error ("drop", &error, NULL);
   }
}
