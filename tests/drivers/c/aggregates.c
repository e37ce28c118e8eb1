/* Aggregation, and cursors that are not read to their end. */
#include "common.h"

static void
tell_pipeline (const char *step, run_t *run, bson_t *pipeline, bson_t *options)
{
   tell_cursor (step, mongoc_collection_aggregate (run->things, MONGOC_QUERY_NONE, pipeline, options, NULL));
}

static void
tell_collection (const char *step, run_t *run, const char *name)
{
   mongoc_collection_t *collection = collection_named (run, name);
   tell_documents (step, collection, empty (), json ("{'sort': {'_id': 1}}"));
   mongoc_collection_destroy (collection);
}

static void
explain (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   bson_t *command = json ("{'explain': {'aggregate': 'things', 'pipeline': [{'$match': {'_id': 3}}], 'cursor': {}},"
                           " 'verbosity': 'queryPlanner'}");
   if (mongoc_client_command_with_opts (run->client, run->name, command, NULL, NULL, &reply, &error)) {
      bson_t *keys = empty ();
      push_keys (keys, &reply);
      say_list ("aggregate: explain's keys", keys);
   } else {
      say_error ("aggregate: explain's keys", &error, &reply);
   }
   bson_destroy (&reply);
}

void
aggregates (run_t *run)
{
   tell_pipeline ("aggregate: groups in batches", run,
                  json ("{'pipeline': [{'$group': {'_id': '$group', 'n': {'$sum': 1}}}, {'$sort': {'_id': 1}}]}"),
                  json ("{'batchSize': 2}"));
   tell_pipeline ("aggregate: lookup", run,
                  json ("{'pipeline': [{'$match': {'_id': {'$gte': 2, '$lt': 4}}}, {'$sort': {'_id': 1}}, {'$lookup': {"
                        " 'from': 'ordered', 'localField': '_id', 'foreignField': 'n', 'as': 'same'}}]}"),
                  NULL);
   tell_pipeline ("aggregate: facet", run,
                  json ("{'pipeline': [{'$match': {'_id': {'$lt': 10}}}, {'$facet': {'count': [{'$count': 'n'}],"
                        " 'least': [{'$sort': {'_id': 1}}, {'$limit': 1}]}}]}"),
                  NULL);
   tell_pipeline ("aggregate: out", run,
                  json ("{'pipeline': [{'$match': {'_id': {'$lt': 3}}}, {'$out': 'copied'}]}"), NULL);
   tell_collection ("aggregate: out, read back", run, "copied");
   tell_pipeline ("aggregate: merge", run,
                  json ("{'pipeline': [{'$match': {'_id': {'$gte': 2, '$lt': 4}}}, {'$project': {'merged': 'yes'}},"
                        " {'$merge': {'into': 'copied', 'whenMatched': 'merge'}}]}"),
                  NULL);
   tell_collection ("aggregate: merge, read back", run, "copied");
   if (!run->stable) {
      explain (run);
   }
}

/* The next documents of a tailable cursor. If there is no document, the limit ends the wait. */
static bool
next_of (mongoc_cursor_t *cursor, int count, bson_t *into)
{
   const bson_t *document;
   bson_error_t error;
   for (int tries = 0; count > 0 && tries < 100; tries++) {
      if (mongoc_cursor_next (cursor, &document)) {
         push (into, document);
         count--;
      } else if (mongoc_cursor_error (cursor, &error)) {
         return false;
      }
   }
   return true;
}

static void
insert_numbers (mongoc_collection_t *collection, int from, int to)
{
   bson_error_t error;
   for (int n = from; n < to; n++) {
      require (mongoc_collection_insert_one (collection, json ("{'_id': %d}", n), NULL, NULL, &error),
               "insert", &error);
   }
}

static void
tail (run_t *run)
{
   bson_error_t error;
   const bson_t *reply;
   mongoc_collection_t *collection =
      mongoc_database_create_collection (run->database, "log", json ("{'capped': true, 'size': 65536}"), &error);
   if (!collection) {
      say_error ("cursors: tailable", &error, NULL);
      return;
   }
   insert_numbers (collection, 0, 3);
   mongoc_cursor_t *cursor = mongoc_collection_find_with_opts (
      collection, empty (), json ("{'tailable': true, 'awaitData': true, 'maxAwaitTimeMS': 100}"), NULL);
   bson_t *seen = empty ();
   if (next_of (cursor, 3, seen)) {
      /* At its end the cursor stays open and returns documents that are inserted later. */
      insert_numbers (collection, 3, 5);
      next_of (cursor, 2, seen);
   }
   if (mongoc_cursor_error_document (cursor, &error, &reply)) {
      say_error ("cursors: tailable", &error, reply);
   } else {
      say_list ("cursors: tailable", seen);
   }
   mongoc_cursor_destroy (cursor);
   mongoc_collection_destroy (collection);
}

void
cursors (run_t *run)
{
   const bson_t *document, *reply;
   bson_error_t error;
   mongoc_cursor_t *cursor = mongoc_collection_find_with_opts (
      run->things, json ("{'group': 3}"), json ("{'batchSize': 2, 'sort': {'_id': 1}}"), NULL);
   if (mongoc_cursor_next (cursor, &document)) {
      say ("cursors: closed before its end", document);
   } else if (mongoc_cursor_error_document (cursor, &error, &reply)) {
      say_error ("cursors: closed before its end", &error, reply);
   } else {
      say_text ("cursors: closed before its end", "nothing found");
   }
   /* This also kills the cursor on the server. */
   mongoc_cursor_destroy (cursor);
   tail (run);
}
